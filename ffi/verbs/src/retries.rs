//! The time-outs of a reliable queue pair, as times (InfiniBand, 9.7.5.2.8 and 9.7.6).

use crate::abi::ibv_qp_attr;
use core::ffi::c_int;
use engine::Retries;

/// IBV_QP_MIN_RNR_TIMER may be set again on the way to RTS.
const MIN_RNR_TIMER: c_int = 1 << 15;
/// `rnr_retry` with this value: for ever.
const FOR_EVER: u8 = 7;
/// Times of `min_rnr_timer` in units of 10 us (InfiniBand, table 46).
const NOT_READY: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long is tried what is sent with these attributes: `kept` from transitions before, `a` with those of `set`.
///
/// A receiver's `min_rnr_timer` is not told to its sender: the sender's own stands for it, which programs set alike at both ends.
pub(crate) fn of(kept: &ibv_qp_attr, a: &ibv_qp_attr, set: c_int) -> Retries {
    let timer = if set & MIN_RNR_TIMER != 0 { a.min_rnr_timer } else { kept.min_rnr_timer };
    let step = NOT_READY[usize::from(timer & 31)];
    let not_ready = (a.rnr_retry < FOR_EVER).then(|| micros(u64::from(a.rnr_retry) * step * 10));
    // 4.096 us * 2^timeout, once and `retry_cnt` times again; 0 is for ever.
    let once = 4_096u64 << (a.timeout & 31);
    let silent = (a.timeout & 31 != 0).then(|| nanos(once * (u64::from(a.retry_cnt) + 1)));
    Retries { not_ready, silent }
}

const fn micros(n: u64) -> base::Span {
    base::Span::from_micros(n)
}
const fn nanos(n: u64) -> base::Span {
    base::Span::from_nanos(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_become_times() {
        let a = |timeout, retry_cnt, rnr_retry, min_rnr_timer| {
            let attr = ibv_qp_attr { timeout, retry_cnt, rnr_retry, min_rnr_timer, ..ibv_qp_attr::default() };
            of(&attr, &attr, 0)
        };
        assert_eq!(a(14, 7, 7, 12), Retries { not_ready: None, silent: Some(nanos(8 * 4_096 * (1 << 14))) });
        assert_eq!(a(0, 7, 6, 12), Retries { not_ready: Some(micros(6 * 640)), silent: None });
        assert_eq!(a(0, 7, 1, 0).not_ready, Some(micros(655_360)));
        assert_eq!(
            a(31, 7, 0, 31),
            Retries { not_ready: Some(micros(0)), silent: Some(nanos(8 * (4_096 << 31))) }
        );
    }
}
