//! What the owner asks of the emulator while it runs: a JSON object a line on its standard input, answered by one on its
//! standard output. The end of the input is the end of the emulator.

use std::io;
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use super::record::{Mark, Summary};

/// The longest line: a description of a link may have 64 KiB.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Mark this moment in the records.
    Mark {
        /// What to call it.
        label: String,
    },
    /// Another description for a link, with its schedule from now on.
    SetLink {
        /// Its name.
        link: String,
        /// The description.
        config: String,
    },
    /// The schedules of all links from now on.
    RestartSchedules,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The emulator is up.
    Ready,
    /// Done.
    Done,
    /// Marked.
    Marked(Mark),
    /// It has ended: its last word.
    Ended(Summary),
    /// It cannot.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Lines from the standard input, as they come.
#[derive(Debug, Default)]
pub(super) struct Input {
    pending: Vec<u8>,
}

/// What there was to read.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Complete lines.
    Lines(Vec<Vec<u8>>),
    /// The owner has closed it, or is dead.
    End,
}

impl Input {
    /// Reads what there is, from a descriptor that does not block.
    pub(super) fn read(&mut self, from: impl AsFd) -> io::Result<Incoming> {
        let mut buffer = [0; 4096];
        match rustix::io::read(from, &mut buffer) {
            Ok(0) => return Ok(Incoming::End),
            Ok(length) => self.pending.extend_from_slice(&buffer[..length]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut lines = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let rest = self.pending.split_off(end + 1);
            lines.push(std::mem::replace(&mut self.pending, rest));
        }
        if self.pending.len() > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request is longer than a line may be"));
        }
        Ok(Incoming::Lines(lines))
    }
}
