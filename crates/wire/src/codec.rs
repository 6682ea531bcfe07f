//! Reading and writing of integers and byte strings with bounds checked. All integers are big-endian.

/// Why bytes could not be read as what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than the field needs.
    #[error("truncated: {0} is cut short")]
    Truncated(&'static str),
    /// A field holds a value outside its range.
    #[error("invalid value in {0}")]
    Invalid(&'static str),
    /// A list or string is longer than its stated limit.
    #[error("{0} exceeds its limit")]
    TooLong(&'static str),
    /// A frame type that this version does not know.
    #[error("unknown frame type {0:#x}")]
    UnknownFrame(u8),
}

/// Largest value of a variable-length integer (RFC 9000, section 16).
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Bytes a variable-length integer takes. Values above [`VARINT_MAX`] count as eight.
pub const fn varint_len(v: u64) -> usize {
    match v {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// A cursor over received bytes.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }
    /// Bytes not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
    /// Whether everything was read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(WireError::Truncated(what))?;
        self.rest = tail;
        Ok(head)
    }
    /// The next `N` bytes by value.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(WireError::Truncated(what))?;
        self.rest = tail;
        Ok(*head)
    }
    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|b| b[0])
    }
    /// Two bytes.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_be_bytes)
    }
    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_be_bytes)
    }
    /// Six bytes.
    pub fn u48(&mut self, what: &'static str) -> Result<u64, WireError> {
        let [a, b, c, d, e, f] = self.array::<6>(what)?;
        Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_be_bytes)
    }
    /// A variable-length integer (RFC 9000, section 16).
    #[inline]
    pub fn varint(&mut self, what: &'static str) -> Result<u64, WireError> {
        match self.rest {
            // Most are of one byte.
            [first @ ..0x40, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*first))
            }
            _ => self.long_varint(what),
        }
    }
    fn long_varint(&mut self, what: &'static str) -> Result<u64, WireError> {
        let first = *self.rest.first().ok_or(WireError::Truncated(what))?;
        let n = 1usize << (first >> 6);
        let b = self.bytes(n, what)?;
        Ok(b[1..].iter().fold(u64::from(first & 0x3f), |v, &x| v << 8 | u64::from(x)))
    }
    /// A byte string behind its length, at most `limit` bytes.
    pub fn string(&mut self, limit: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let n = self.varint(what)?;
        if n > limit as u64 {
            return Err(WireError::TooLong(what));
        }
        self.bytes(n as usize, what)
    }
}

/// Appends to a buffer. The caller makes sure of the room by the `len` functions of what it writes.
pub trait Put {
    /// Appends `b`.
    fn put(&mut self, b: &[u8]);
    /// Appends one byte.
    fn put_u8(&mut self, v: u8) {
        self.put(&[v]);
    }
    /// Appends two bytes.
    fn put_u16(&mut self, v: u16) {
        self.put(&v.to_be_bytes());
    }
    /// Appends four bytes.
    fn put_u32(&mut self, v: u32) {
        self.put(&v.to_be_bytes());
    }
    /// Appends the low six bytes.
    fn put_u48(&mut self, v: u64) {
        self.put(&v.to_be_bytes()[2..]);
    }
    /// Appends eight bytes.
    fn put_u64(&mut self, v: u64) {
        self.put(&v.to_be_bytes());
    }
    /// Appends a variable-length integer; values above [`VARINT_MAX`] are cut to it.
    #[inline]
    fn put_varint(&mut self, v: u64) {
        if v < 0x40 {
            // Most are.
            return self.put_u8(v as u8);
        }
        let v = v.min(VARINT_MAX);
        match varint_len(v) {
            1 => self.put_u8(v as u8),
            2 => self.put_u16(v as u16 | 0x4000),
            4 => self.put_u32(v as u32 | 0x8000_0000),
            _ => self.put_u64(v | 0xc000_0000_0000_0000),
        }
    }
    /// Appends a byte string behind its length.
    fn put_string(&mut self, b: &[u8]) {
        self.put_varint(b.len() as u64);
        self.put(b);
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, b: &[u8]) {
        self.extend_from_slice(b);
    }
    #[inline]
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
}

/// A writer into a fixed slice. Writing beyond its end is a broken invariant of the caller and panics.
#[derive(Debug)]
pub struct SliceWriter<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> SliceWriter<'a> {
    /// Starts at the first byte of `buf`.
    pub const fn new(buf: &'a mut [u8]) -> SliceWriter<'a> {
        SliceWriter { buf, len: 0 }
    }
    /// Bytes written so far.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing was written yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes that still fit.
    pub const fn room(&self) -> usize {
        self.buf.len() - self.len
    }
}

impl Put for SliceWriter<'_> {
    fn put(&mut self, b: &[u8]) {
        self.buf[self.len..self.len + b.len()].copy_from_slice(b);
        self.len += b.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn varint_vectors_of_rfc_9000() {
        // RFC 9000, appendix A.1.
        let cases: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, v) in cases {
            assert_eq!(Reader::new(bytes).varint("v"), Ok(v));
        }
        assert_eq!(Reader::new(&[0xc2, 0x19]).varint("v"), Err(WireError::Truncated("v")));
    }

    proptest! {
        #[test]
        fn integers_round_trip(v in 0..=VARINT_MAX, s in proptest::collection::vec(any::<u8>(), 0..90)) {
            let mut b = Vec::new();
            b.put_varint(v);
            prop_assert_eq!(b.len(), varint_len(v));
            b.put_string(&s);
            b.put_u48(v & 0xffff_ffff_ffff);
            let mut r = Reader::new(&b);
            prop_assert_eq!(r.varint("v"), Ok(v));
            prop_assert_eq!(r.string(90, "s"), Ok(&s[..]));
            prop_assert_eq!(r.u48("w"), Ok(v & 0xffff_ffff_ffff));
            prop_assert!(r.is_empty());
        }
    }
}
