//! Records (FPDUs): two bytes of length, the record's contents (ULPDU), zeros up to a multiple of four, four bytes of CRC
//! (RFC 5044, section 4.1).

use super::markers;
use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Bytes of the length field.
pub const LENGTH: usize = 2;
/// Bytes of the CRC.
pub const CRC: usize = 4;
/// Longest contents that may be sent (RFC 5044, section 3).
pub const MAX_ULPDU: usize = 64_768;
/// The record of these, without markers.
pub const MAX_FPDU_SENT: usize = len(MAX_ULPDU);
/// What a sender may always send, however small the segments are (RFC 5044, section 4.5).
pub const MIN_ULPDU: usize = 128;
/// Longest contents that the length field can announce.
const LONGEST: usize = u16::MAX as usize;
/// The longest record on the wire, with markers.
pub const MAX_FPDU: usize = {
    let plain = len(LONGEST);
    plain + markers::LEN * (plain / (markers::INTERVAL as usize - markers::LEN) + 1)
};

/// Zeros behind contents of `ulpdu` bytes.
pub const fn pad(ulpdu: usize) -> usize {
    (4 - (LENGTH + ulpdu) % 4) % 4
}

/// Length of a record with contents of `ulpdu` bytes, without markers.
pub const fn len(ulpdu: usize) -> usize {
    LENGTH + ulpdu + pad(ulpdu) + CRC
}

/// The longest contents whose record fits a segment of `emss` bytes (MULPDU; RFC 5044, section 4.5).
pub fn max_ulpdu(emss: usize, markers: bool) -> usize {
    let for_markers = if markers { markers::LEN * emss.div_ceil(markers::INTERVAL as usize) } else { 0 };
    emss.saturating_sub(LENGTH + CRC + for_markers + emss % 4).clamp(MIN_ULPDU, MAX_ULPDU)
}

/// The CRC field: CRC32C as iSCSI has it (RFC 5044, section 4.4), lowest byte first as the example there shows.
pub const fn crc_field(crc: u32) -> [u8; CRC] {
    crc.to_le_bytes()
}

/// The CRC of bytes that follow those of `crc`; 0 stands for no bytes.
pub fn crc(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return crc;
    }
    if crc == 0 {
        // Of few bytes, making a digest would take longer than the CRC.
        return checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    }
    // What a digest begins with is the CRC before its last step, which inverts it.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of figures 5 and 6 of RFC 5044: a send of 24 zeros.
    fn example(msn: u8) -> Vec<u8> {
        let mut r = vec![0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        r.resize(44, 0);
        r
    }

    #[test]
    fn fpdus_match_the_rfc_5044_examples() {
        for (at, msn, want) in [(0, 1, [0x52, 0x23, 0x99, 0x83]), (0x1ec, 2, [0x84, 0x92, 0x58, 0x98])] {
            let mut out = Vec::new();
            markers::insert(at, &example(msn), &mut out);
            assert_eq!(crc_field(crc(0, &out)), want);
            // In two parts, cut anywhere.
            for (a, b) in (0..out.len()).map(|n| out.split_at(n)) {
                assert_eq!(crc_field(crc(crc(0, a), b)), want);
            }
        }
    }

    #[test]
    fn lengths() {
        assert_eq!((len(0), len(1), len(2), len(3), len(42)), (8, 8, 8, 12, 48));
        assert_eq!(max_ulpdu(1448, false), 1442);
        // The formula of section 4.5: 1448 - (6 + 4 * 3 + 0).
        assert_eq!(max_ulpdu(1448, true), 1430);
        assert_eq!(max_ulpdu(1447, false), 1447 - 6 - 3);
        assert_eq!((max_ulpdu(64, false), max_ulpdu(1 << 20, false)), (MIN_ULPDU, MAX_ULPDU));
        for emss in 300..1500 {
            let ulpdu = max_ulpdu(emss, true);
            let fits = |at| len(ulpdu) + markers::LEN * markers::count(at, len(ulpdu)) <= emss;
            assert!((0..512).step_by(4).all(fits), "{emss}");
        }
        assert_eq!(MAX_FPDU, 66_064);
    }
}
