//! Cuts a file by its contents.

use super::{Cut, Key};
use fastcdc::v2020::FastCDC;

/// Cuts what it is given, in whatever portions: the cuts depend on the bytes only.
pub(crate) struct Cutter {
    aim: usize,
    /// Not cut yet.
    pending: Vec<u8>,
    /// Where the first of them is in the file.
    at: u64,
}

impl Cutter {
    /// With pieces of about `aim` bytes, a power of two: a quarter of it at least and four times as much at most.
    pub fn new(aim: usize) -> Cutter {
        Cutter { aim, pending: Vec::new(), at: 0 }
    }
    /// Takes the bytes that begin at `offset`; the pieces that are certain go to `out`. Behind a gap, cutting begins anew.
    pub fn feed(&mut self, offset: u64, data: &[u8], out: &mut Vec<Cut>) {
        if offset != self.at + self.pending.len() as u64 {
            self.end(out);
            self.at = offset;
        }
        self.pending.extend_from_slice(data);
        self.cut(4 * self.aim, out);
    }
    /// Nothing follows directly.
    pub fn end(&mut self, out: &mut Vec<Cut>) {
        self.cut(1, out);
    }
    /// Cuts as long as so many bytes are left: a cut is certain where the longest piece would fit.
    fn cut(&mut self, least: usize, out: &mut Vec<Cut>) {
        let cdc = FastCDC::new(&self.pending, self.aim / 4, self.aim, 4 * self.aim);
        let mut start = 0;
        while self.pending.len() - start >= least {
            let (_, end) = cdc.cut(start, self.pending.len() - start);
            let piece = &self.pending[start..end];
            out.push(Cut { offset: self.at + start as u64, len: piece.len() as u32, key: key(piece) });
            start = end;
        }
        self.pending.drain(..start);
        self.at += start as u64;
    }
}

/// Tells pieces apart.
pub(super) fn key(piece: &[u8]) -> Key {
    let mut k = Key::default();
    k.copy_from_slice(&blake3::hash(piece).as_bytes()[..16]);
    k
}
