//! The input, byte by byte. What is asked for beyond its end is `None`.

#![allow(dead_code, reason = "each target uses its part")]

pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }
    /// A number of any size: how many bytes, then these.
    pub fn number(&mut self) -> Option<u64> {
        let n = self.u8()? % 9;
        (0..n).try_fold(0, |v, _| Some(v << 8 | u64::from(self.u8()?)))
    }
    /// So many bytes, or what is left.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
}
