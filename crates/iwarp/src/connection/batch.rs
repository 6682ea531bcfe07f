//! A batch of records for one send call: back to back, as a list of ranges.

use std::collections::VecDeque;
use verbs::MrRange;

/// Bytes that each list of a connection without anything to send keeps.
const KEPT: usize = 2048;

/// A range of bytes to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Of [`Transmit::scratch`].
    Scratch {
        /// First byte.
        start: usize,
        /// Length in bytes.
        len: usize,
    },
    /// Of registered memory.
    Region(MrRange),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Scratch { len, .. } => *len,
            Piece::Region(p) => p.len as usize,
        }
    }
}

/// What is to be sent next, in order.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Headers, trailers and short payloads.
    pub scratch: &'a [u8],
    /// The ranges. Of the first one `skip` bytes were sent before.
    pub pieces: &'a [Piece],
    /// See `pieces`.
    pub skip: usize,
    /// Bytes in all.
    pub len: usize,
}

/// An end of the batch between two records.
#[derive(Clone, Copy)]
pub(super) struct Point {
    scratch: usize,
    pieces: usize,
    last: Option<Piece>,
    len: usize,
}

/// Records on their way to the stream.
#[derive(Default)]
pub(super) struct Batch {
    scratch: Vec<u8>,
    /// Bytes of `scratch` that `pieces` name.
    sealed: usize,
    pieces: Vec<Piece>,
    /// Of `pieces`, those that were sent, and bytes of the next.
    done: usize,
    skip: usize,
    len: usize,
    sent: usize,
    /// Where messages end that the queue pair waits for: behind the last byte of each.
    ends: VecDeque<usize>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.len == self.sent
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
    /// Bytes that were copied.
    pub(super) fn copied(&self) -> usize {
        self.scratch.len()
    }
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }
    /// Scratch memory to append to; [`seal`](Batch::seal) afterwards.
    pub(super) fn raw(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }
    /// Bytes appended to the scratch memory since it was sealed.
    pub(super) fn unsealed(&self) -> &[u8] {
        &self.scratch[self.sealed..]
    }
    /// What was appended is to be sent behind everything before it.
    pub(super) fn seal(&mut self) {
        let added = self.scratch.len() - self.sealed;
        if added == 0 {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Scratch { start, len }) if *start + *len == self.sealed => *len += added,
            _ => self.pieces.push(Piece::Scratch { start: self.sealed, len: added }),
        }
        self.sealed = self.scratch.len();
        self.len += added;
    }
    /// A range of registered memory is to be sent behind everything before it.
    pub(super) fn region(&mut self, p: MrRange) {
        self.seal();
        self.len += p.len as usize;
        self.pieces.push(Piece::Region(p));
    }
    /// Where the batch ends now, for [`rewind`](Batch::rewind).
    pub(super) fn point(&self) -> Point {
        Point {
            scratch: self.scratch.len(),
            pieces: self.pieces.len(),
            last: self.pieces.last().copied(),
            len: self.len,
        }
    }
    /// Drops what was added since `p`: a record that could not be finished.
    pub(super) fn rewind(&mut self, p: Point) {
        self.scratch.truncate(p.scratch);
        self.pieces.truncate(p.pieces);
        if let (Some(now), Some(last)) = (self.pieces.last_mut(), p.last) {
            *now = last;
        }
        (self.sealed, self.len) = (p.scratch, p.len);
    }
    /// Drops what was appended to the scratch memory since it was sealed.
    pub(super) fn drop_unsealed(&mut self) {
        self.scratch.truncate(self.sealed);
    }
    /// A message ends here.
    pub(super) fn mark(&mut self) {
        self.ends.push_back(self.len);
    }
    pub(super) fn view(&self) -> Transmit<'_> {
        Transmit {
            scratch: &self.scratch,
            pieces: &self.pieces[self.done..],
            skip: self.skip,
            len: self.len - self.sent,
        }
    }
    /// The stream took `n` bytes.
    pub(super) fn on_sent(&mut self, n: usize) {
        let n = n.min(self.len - self.sent);
        self.sent += n;
        self.skip += n;
        while let Some(p) = self.pieces.get(self.done)
            && self.skip >= p.len()
        {
            self.skip -= p.len();
            self.done += 1;
        }
    }
    /// How many messages the stream has taken whole since this was asked.
    pub(super) fn taken(&mut self) -> usize {
        let mut n = 0;
        while self.ends.front().is_some_and(|end| *end <= self.sent) {
            self.ends.pop_front();
            n += 1;
        }
        n
    }
    /// Keeps little memory, of a batch of which everything was sent.
    pub(super) fn trim(&mut self) {
        self.clear();
        self.scratch.shrink_to(KEPT);
        self.pieces.shrink_to(KEPT / size_of::<Piece>());
        self.ends.shrink_to(KEPT / size_of::<usize>());
    }
    /// Forgets everything; memory is kept.
    pub(super) fn clear(&mut self) {
        self.scratch.clear();
        self.pieces.clear();
        self.ends.clear();
        (self.sealed, self.done, self.skip, self.len, self.sent) = (0, 0, 0, 0, 0);
    }
}
