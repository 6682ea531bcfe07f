//! What arrives compressed: chunks of large files and messages of small ones.

use super::large::Arrived;
use super::{Report, Sink, Stage, small};
use crate::data_reduction;
use crate::pack::Unpacker;
use crate::session::Fatal;
use lhio::staging::Staging;
use std::io;

impl Sink {
    /// A message of small files that came as a frame.
    pub fn zipped(&mut self, len: usize, frame: Vec<u8>) -> Result<(), Fatal> {
        if self.stage != Stage::Running || self.options.flags.dry_run {
            return Err(Fatal::protocol("files came before the destination was prepared"));
        }
        self.waiting += len;
        data_reduction::packed(&self.progress, len as u64, frame.len() as u64);
        let (made, targets, flags) = (self.made.clone(), self.targets.clone(), self.options.flags);
        self.jobs.submit(Report::Died, move || {
            let m = crate::pack::message(&frame, len).filter(|m| small::is_small(m));
            match m {
                Some(m) => Report::Placed { len, placed: small::small(&made, &targets, &m, flags) },
                None => Report::BadFrame,
            }
        });
        Ok(())
    }
}

/// The data of a chunk as it arrived.
pub(super) enum Data<'a> {
    Plain(&'a Arrived),
    Packed(Box<Unpacker<'static, Frame>>),
}

/// A frame in the memory that it arrived in.
pub(super) struct Frame {
    memory: Staging,
    at: usize,
    end: usize,
}

impl io::Read for Frame {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(self.end - self.at);
        if !self.memory.read(self.at, &mut out[..n]) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.at += n;
        Ok(n)
    }
}

impl Data<'_> {
    pub fn new(c: &Arrived) -> io::Result<Data<'_>> {
        let Some(len) = c.packed else { return Ok(Data::Plain(c)) };
        let frame = Frame { memory: c.memory.clone(), at: c.offset, end: c.offset + len as usize };
        Ok(Data::Packed(Box::new(Unpacker::new(frame)?)))
    }
    /// What follows, which belongs `at` bytes behind the beginning of the chunk; false when it is no frame, or too short.
    pub fn read(&mut self, at: usize, out: &mut [u8]) -> io::Result<bool> {
        match self {
            Data::Plain(c) if c.memory.read(c.offset + at, out) => Ok(true),
            Data::Plain(_) => Err(io::ErrorKind::InvalidInput.into()),
            Data::Packed(u) => Ok(u.fill(out).is_ok()),
        }
    }
    pub fn is_over(&mut self) -> bool {
        match self {
            Data::Plain(_) => true,
            Data::Packed(u) => u.is_over(),
        }
    }
}
