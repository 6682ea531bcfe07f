//! The control protocol between a laboratory and its emulator: JSON objects, one per line, on the emulator's standard
//! input, each answered on its standard output. The emulator ends with its input.

use std::io;
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use super::record::{Mark, Summary};

/// The longest line: a description of a link may have 64 KiB.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// A request to the emulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Mark this moment in the records.
    Mark {
        /// The mark's label.
        label: String,
    },
    /// Set a link's description, with its schedule starting now.
    SetLink {
        /// Its name.
        link: String,
        /// The description.
        config: String,
    },
    /// Start the schedules of all links now.
    RestartSchedules,
}

/// An answer of the emulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The emulator is up.
    Ready,
    /// Done.
    Done,
    /// The mark was written.
    Marked(Mark),
    /// The emulator has ended.
    Ended(Summary),
    /// The request failed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Reads complete lines from the standard input.
#[derive(Debug, Default)]
pub(super) struct Input {
    pending: Vec<u8>,
}

/// What there was to read.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Complete lines.
    Lines(Vec<Vec<u8>>),
    /// The owner has closed the input or died.
    End,
}

impl Input {
    /// Reads what is available from a non-blocking descriptor.
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
