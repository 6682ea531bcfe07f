//! Reassembles the byte streams of handshake messages (CRYPTO frames, RFC 9000, section 19.6).

use crate::error::{Violation, code};
use std::collections::BTreeMap;

/// How far ahead of a gap handshake messages may be, in bytes (TLS itself takes 128 KiB a level).
const MAX_AHEAD: usize = 128 * 1024;
/// Bytes of handshake messages buffered ahead of a gap at most, a level; pieces may overlap.
pub const MAX_CRYPTO_BUFFERED: usize = 2 * MAX_AHEAD;
/// Pieces of them.
pub const MAX_CRYPTO_PIECES: usize = 1_024;

/// One level's byte stream of handshake messages, both directions.
#[derive(Debug, Default)]
pub(super) struct CryptoStream {
    pub(super) out: Vec<u8>,
    pub(super) acked: usize,
    pub(super) next: usize,
    pub(super) received: u64,
    pub(super) ahead: BTreeMap<u64, Vec<u8>>,
    pub(super) ahead_bytes: usize,
    pub(super) ack_due: bool,
    pub(super) pn: u32,
}

impl CryptoStream {
    /// Takes in a piece; gives the bytes that are now in order.
    pub(super) fn take(&mut self, offset: u64, data: &[u8]) -> Result<Vec<u8>, Violation> {
        self.ack_due = true;
        let end = offset.saturating_add(data.len() as u64);
        let limit = Violation::new(code::LIMIT, "too many handshake bytes ahead of a gap");
        if end > self.received + MAX_AHEAD as u64 {
            return Err(limit);
        }
        // Of pieces that start at the same place the longest is kept, and only that counts.
        let old = self.ahead.get(&offset).map_or(0, Vec::len);
        if end > self.received && data.len() > old {
            let more = data.len() - old;
            if self.ahead_bytes + more > MAX_CRYPTO_BUFFERED || self.ahead.len() >= MAX_CRYPTO_PIECES {
                return Err(limit);
            }
            self.ahead.insert(offset, data.to_vec());
            self.ahead_bytes += more;
        }
        let mut ready = Vec::new();
        while let Some((&at, _)) = self.ahead.first_key_value() {
            if at > self.received {
                break;
            }
            let (at, piece) = self.ahead.pop_first().unwrap_or_default();
            self.ahead_bytes = self.ahead_bytes.saturating_sub(piece.len());
            let skip = (self.received - at) as usize;
            if let Some(new) = piece.get(skip..) {
                ready.extend_from_slice(new);
                self.received += new.len() as u64;
            }
        }
        Ok(ready)
    }

    pub(super) fn pending(&self) -> bool {
        self.next < self.out.len() || self.ack_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_bytes_are_reordered_and_bounded() {
        let mut s = CryptoStream::default();
        assert_eq!(s.take(5, b"world").unwrap(), b"");
        assert_eq!(s.take(3, b"lowor").unwrap(), b"");
        assert_eq!(s.take(0, b"hello").unwrap(), b"helloworld");
        assert_eq!((s.received, s.ahead_bytes), (10, 0));
        assert_eq!(s.take(2, b"llo").unwrap(), b"");
        assert!(s.take(MAX_AHEAD as u64 + 10, b"x").is_err());
    }

    /// Found by fuzzing: pieces that replaced others were not counted, and a stranger could fill the memory.
    #[test]
    fn out_of_order_handshake_bytes_are_bounded() {
        let mut s = CryptoStream::default();
        let mut refused = false;
        for n in 0..5_000u64 {
            let piece = vec![0; 1 + (n % 60_000) as usize];
            refused |= s.take(1 + n % 40, &piece).is_err();
            let kept: usize = s.ahead.values().map(Vec::len).sum();
            assert_eq!(kept, s.ahead_bytes);
            assert!(kept <= MAX_CRYPTO_BUFFERED && s.ahead.len() <= MAX_CRYPTO_PIECES);
        }
        // A shorter piece never takes the place of a longer one.
        let mut s = CryptoStream::default();
        s.take(1, b"bcdef").unwrap();
        s.take(1, b"b").unwrap();
        assert_eq!(s.take(0, b"a").unwrap(), b"abcdef");
        let mut s = CryptoStream::default();
        let small = (0..5_000u64).map(|n| s.take(1 + 2 * n, b"x").is_err()).filter(|e| *e).count();
        assert!(small > 0 && (refused || s.ahead.len() <= MAX_CRYPTO_PIECES));
    }
}
