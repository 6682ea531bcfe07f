//! Limits the first train of a flow that starts sending on a short path.

use super::{Lane, MAX_FLOWS};
use crate::connection::{MAX_SEGMENTS, MAX_TRAIN};
use base::Span;

/// Bytes of the first train on a short path: the other end takes it in while the next one is built. A message of 64 KiB in
/// packets of 1,500 bytes then arrives a tenth sooner; a single packet of that size is not cut, as what a second one costs is
/// what it saves.
const FIRST_TRAIN: usize = 32 << 10;
/// Beside a longer round trip, the time for building a train is nothing.
const SHORT_PATH: Span = Span::from_millis(1);

/// The flows of a lane, as bits, that had more to send when their last train left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bursts(u64);

const _: () = assert!(MAX_FLOWS <= u64::BITS as usize);

impl Bursts {
    /// A train of a flow has left, `last` when nothing waits behind it.
    pub fn on_sent(&mut self, flow: u8, last: bool) {
        let bit = 1u64.checked_shl(flow.into()).unwrap_or(0);
        self.0 = if last { self.0 & !bit } else { self.0 | bit };
    }

    /// Whether the next train of a flow goes on with what the last one began.
    fn continues_train(self, flow: u8) -> bool {
        self.0.checked_shr(flow.into()).is_some_and(|bits| bits & 1 != 0)
    }
}

impl Lane {
    /// Packets of a flow's next train at most, one at least.
    pub fn most_packets(&self, flow: u8) -> usize {
        let first = !self.bursts.continues_train(flow) && self.rtt.smoothed() < SHORT_PATH;
        let room = if first { FIRST_TRAIN } else { MAX_TRAIN };
        (room / usize::from(self.mtu.current())).clamp(1, MAX_SEGMENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_train_is_short_when_a_flow_starts_anew() {
        let mut b = Bursts::default();
        let last = MAX_FLOWS as u8 - 1;
        b.on_sent(0, false);
        b.on_sent(last, false);
        assert!(
            b.continues_train(0)
                && b.continues_train(last)
                && !b.continues_train(1)
                && !b.continues_train(u8::MAX)
        );
        b.on_sent(0, true);
        b.on_sent(1, true);
        assert!(!b.continues_train(0) && b.continues_train(last) && !b.continues_train(1));
    }
}
