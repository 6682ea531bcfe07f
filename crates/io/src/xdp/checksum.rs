//! The Internet checksum (RFC 1071), in the machine's byte order.
//!
//! A sum of 16-bit words in one's complement is the same in either byte order but for the order of its two bytes
//! (RFC 1071, section 2 (B)). So nothing is swapped: words are read and results stored as the machine has them.

/// Adds up `bytes`, of which there are at most 64 KiB (no frame has more): the sum stays below 2^47. A byte left over
/// counts as the first of a word (RFC 1071, section 4.1). Parts may be added to one another when all but the last have
/// an even length.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 8];
    let mut rows = bytes.chunks_exact(32);
    for row in &mut rows {
        for (lane, word) in lanes.iter_mut().zip(row.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let (pairs, last) = rows.remainder().as_chunks::<2>();
    total += pairs.iter().map(|p| word(*p)).sum::<u64>();
    if let [odd] = last {
        total += word([*odd, 0]);
    }
    total
}

/// Two bytes of a frame as a term of a sum.
pub(super) fn word(bytes: [u8; 2]) -> u64 {
    u64::from(u16::from_ne_bytes(bytes))
}

/// A sum as one 16-bit word, carries added in. Zero only if every term was.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What stands in a header for a sum of the rest.
pub(super) fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_the_rfc_1071_example() {
        // Section 3: 00 01 f2 03 f4 f5 f6 f7 adds up to dd f2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)).to_ne_bytes(), [0xdd, 0xf2]);
        assert_eq!(finish(sum(&bytes)), [0x22, 0x0d]);
    }

    #[test]
    fn known_header_has_its_known_checksum() {
        // 172.16.10.99 to 172.16.10.12, TCP, 60 bytes: checksum b1e6 (the usual textbook header).
        let header = [
            0x45, 0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0, 0, 0xac, 0x10, 0x0a, 0x63, 0xac,
            0x10, 0x0a, 0x0c,
        ];
        assert_eq!(finish(sum(&header)), [0xb1, 0xe6]);
    }

    proptest::proptest! {
        #[test]
        fn checksum_of_every_length_matches_the_definition(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let mut total = 0u32;
            for pair in bytes.chunks(2) {
                total += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
                total = (total & 0xffff) + (total >> 16);
            }
            proptest::prop_assert_eq!(fold(sum(&bytes)).to_ne_bytes(), (total as u16).to_be_bytes());
        }
    }
}
