//! Expands truncated sequence numbers (RFC 9000, appendix A.3).

/// Recovers the full number whose low `bits` bits are `low`, the one nearest to `expected`.
///
/// `bits` must be between 1 and 63 and `low` must fit them. Right as long as the true number lies within
/// `2^(bits-1)` of `expected` (the rule of RFC 9000, appendix A.3).
pub const fn expand(low: u64, bits: u32, expected: u64) -> u64 {
    let win = 1u64 << bits;
    let half = win / 2;
    let candidate = (expected & !(win - 1)) | low;
    if candidate.saturating_add(half) <= expected && candidate <= u64::MAX - win {
        candidate + win
    } else if candidate > expected.saturating_add(half) && candidate >= win {
        candidate - win
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expansion_matches_the_rfc_9000_example() {
        assert_eq!(expand(0x9b32, 16, 0xa82f_30ea + 1), 0xa82f_9b32);
    }

    proptest! {
        #[test]
        fn truncation_round_trips(expected in 0u64..1 << 62, near in -30_000i64..30_000) {
            let full = expected.saturating_add_signed(near);
            prop_assert_eq!(expand(full & 0xffff, 16, expected), full);
            prop_assert_eq!(expand(full & 0xffff_ffff, 32, expected), full);
        }
    }
}
