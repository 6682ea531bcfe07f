//! The checksum of IP, TCP and UDP (RFC 1071).

/// The unfolded sum of 16-bit words in network order. An odd last byte is the high one of its word. Cannot overflow
/// for anything that fits a packet.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let last = rest.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    // Since 2^16 is 1 modulo 2^16 - 1, words of 32 bits may be summed.
    words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).chain(last).sum()
}

/// The sum in 16 bits, with end-around carry.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The checksum: the folded sum, inverted.
pub(super) fn finish(sum: u64) -> u16 {
    !fold(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_rfc_1071() {
        // Section 3.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
        assert_eq!(finish(sum(&[0x00, 0x01, 0xf2])), !0xf201);
        assert_eq!(finish(sum(&[])), 0xffff);
    }
}
