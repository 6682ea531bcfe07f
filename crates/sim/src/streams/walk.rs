//! Where records begin and end in a stream: found again from its bytes, to know whether it ends in the midst of one.

use iwarp::mpa::{fpdu, markers};

/// Bytes of a start-up frame before its private data.
const FRAME: usize = 20;

/// What was seen of one direction.
pub struct Walk {
    /// Bytes of what is not complete.
    waiting: Vec<u8>,
    /// Bytes of records so far; `None` before the start-up frame.
    position: Option<u64>,
    with_markers: bool,
}

impl Walk {
    pub fn new(with_markers: bool) -> Walk {
        Walk { waiting: Vec::new(), position: None, with_markers }
    }
    /// Whether all that came is whole frames and records, one frame at least.
    pub fn is_between(&self) -> bool {
        self.waiting.is_empty() && self.position.is_some()
    }
    pub fn take(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
        while let Some(len) = self.front().filter(|len| *len <= self.waiting.len()) {
            self.waiting.drain(..len);
            self.position = Some(self.position.map_or(0, |p| p + len as u64));
        }
    }
    /// Length of what is at the front, when that is known.
    fn front(&self) -> Option<usize> {
        let number = |at: usize| {
            Some(usize::from(u16::from_be_bytes([*self.waiting.get(at)?, *self.waiting.get(at + 1)?])))
        };
        let Some(position) = self.position else { return Some(FRAME + number(FRAME - 2)?) };
        let before = if self.with_markers && markers::is_here(position) { markers::LEN } else { 0 };
        let len = fpdu::len(number(before)?);
        Some(len + if self.with_markers { markers::LEN * markers::count(position, len) } else { 0 })
    }
}
