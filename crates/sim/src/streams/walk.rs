//! Parses the boundaries of records in a stream, to detect a stream that ends within a record.

use iwarp::mpa::{fpdu, markers};

/// Bytes of a start-up frame before its private data.
const FRAME: usize = 20;

/// The parser's state in one direction.
pub struct RecordParser {
    /// Bytes of an incomplete frame or record.
    waiting: Vec<u8>,
    /// Bytes of records so far; `None` before the start-up frame.
    position: Option<u64>,
    with_markers: bool,
}

impl RecordParser {
    pub fn new(with_markers: bool) -> RecordParser {
        RecordParser { waiting: Vec::new(), position: None, with_markers }
    }
    /// Whether only whole frames and records have come, at least one frame.
    pub fn is_at_record_boundary(&self) -> bool {
        self.waiting.is_empty() && self.position.is_some()
    }
    pub fn take(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
        while let Some(len) = self.front_len().filter(|len| *len <= self.waiting.len()) {
            self.waiting.drain(..len);
            self.position = Some(self.position.map_or(0, |p| p + len as u64));
        }
    }
    /// Length of the first frame or record, if known.
    fn front_len(&self) -> Option<usize> {
        let number = |at: usize| {
            Some(usize::from(u16::from_be_bytes([*self.waiting.get(at)?, *self.waiting.get(at + 1)?])))
        };
        let Some(position) = self.position else { return Some(FRAME + number(FRAME - 2)?) };
        let before = if self.with_markers && markers::is_here(position) { markers::LEN } else { 0 };
        let len = fpdu::len(number(before)?);
        Some(len + if self.with_markers { markers::LEN * markers::count(position, len) } else { 0 })
    }
}
