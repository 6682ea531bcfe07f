//! Reading and writing the fields of records: LEB128 numbers, short byte strings, fixed hashes.

use super::ProtoError;

/// Reads fields from the front of a slice.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], ProtoError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(ProtoError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }
    pub fn u8(&mut self) -> Result<u8, ProtoError> {
        Ok(self.bytes(1)?[0])
    }
    /// One spelling per number: no trailing zero groups, no bits beyond 64.
    pub fn num(&mut self) -> Result<u64, ProtoError> {
        let mut v = 0u64;
        for i in 0..10 {
            let b = self.u8()?;
            if i == 9 && b > 1 || i > 0 && b == 0 {
                return Err(ProtoError::Number);
            }
            v |= u64::from(b & 0x7f) << (7 * i);
            if b & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(ProtoError::Number)
    }
    pub fn num_max(&mut self, max: u64, what: &'static str) -> Result<u64, ProtoError> {
        let v = self.num()?;
        if v > max { Err(ProtoError::Range(what)) } else { Ok(v) }
    }
    /// Sign in the lowest bit.
    pub fn signed(&mut self) -> Result<i64, ProtoError> {
        let z = self.num()?;
        Ok((z >> 1) as i64 ^ -((z & 1) as i64))
    }
    pub fn blob(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], ProtoError> {
        let n = self.num_max(max as u64, what)?;
        self.bytes(n as usize)
    }
    /// Words of the peer, fit to be shown in a line.
    pub fn text(&mut self, max: usize) -> Result<String, ProtoError> {
        Ok(base::text::line_of(self.blob(max, "text")?))
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let b = self.bytes(N)?;
        let mut a = [0; N];
        a.copy_from_slice(b);
        Ok(a)
    }
    pub fn end(&self) -> Result<(), ProtoError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtoError::Trailing) }
    }
}

/// Appends fields to a message.
pub(super) trait Put {
    fn num(&mut self, v: u64);
    fn signed(&mut self, v: i64);
    fn blob(&mut self, b: &[u8]);
}
impl Put for Vec<u8> {
    fn num(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.push(v as u8);
    }
    fn signed(&mut self, v: i64) {
        self.num(((v << 1) ^ (v >> 63)) as u64);
    }
    fn blob(&mut self, b: &[u8]) {
        self.num(b.len() as u64);
        self.extend_from_slice(b);
    }
}
