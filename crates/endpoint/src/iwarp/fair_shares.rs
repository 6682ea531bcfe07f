//! Max-min fair division of a rate cap among connections of which some need less than an equal share.

use base::{Rate, Span, Time};

/// Over how long a connection's rate is measured at least: a few reports of the system, and round trips of most paths.
const WINDOW: Span = Span::from_millis(400);
/// A connection that moves this much of its share, in percent, is held back by it. The rest is headers and the coarseness of
/// TCP's pacing.
const HELD_BACK: u64 = 85;

/// Divides `cap`: whoever needs less than an equal share gets what it needs, the others share the rest equally. The shares
/// never exceed the cap together.
pub(super) fn fair_shares(cap: Rate, needs: &[Rate]) -> Vec<Rate> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&i| needs[i]);
    let mut shares = vec![Rate::ZERO; needs.len()];
    let mut rest = cap.bytes_per_sec();
    for (done, &i) in order.iter().enumerate() {
        let equal = rest / (order.len() - done) as u64;
        let share = needs[i].bytes_per_sec().min(equal);
        shares[i] = Rate::from_bytes_per_sec(share);
        rest -= share;
    }
    // What nobody needs is divided too: who comes to need more than a moment ago need not wait for the next division.
    let spare = rest / needs.len().max(1) as u64;
    shares.iter().map(|s| Rate::from_bytes_per_sec(s.bytes_per_sec() + spare)).collect()
}

/// How much a connection needs, from how much it moves beside how much it may.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// When the present window began, with the bytes acknowledged until then.
    since: Option<(Time, u64)>,
    /// `None`: as much as it can get.
    need: Option<Rate>,
}

impl Need {
    /// What it needs; [`Rate::MAX`] when it is held back by its share, or nothing is known yet.
    pub fn rate(&self) -> Rate {
        self.need.unwrap_or(Rate::MAX)
    }

    /// Counts `acked` bytes in all by `now` of a connection that may send at `share`. Returns whether its need has changed.
    pub fn measure(&mut self, now: Time, acked: u64, share: Option<Rate>) -> bool {
        let (since, before) = *self.since.get_or_insert((now, acked));
        let over = now.since(since);
        if over < WINDOW {
            return false;
        }
        self.since = Some((now, acked));
        let rate = Rate::from_bytes_in(acked.saturating_sub(before), over);
        let is_held_back = share.is_some_and(|share| rate >= share.scale(HELD_BACK, 100));
        let need = if is_held_back || share.is_none() {
            None
        } else if self.need.is_some_and(|n| rate <= n && rate >= n.scale(1, 2)) {
            // Near enough to what was measured before: small changes do not move everybody's share.
            self.need
        } else {
            // Half more than it moves, so that it can grow until its share holds it back.
            Some(rate.scale(3, 2))
        };
        core::mem::replace(&mut self.need, need) != need
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mbit(n: u64) -> Rate {
        Rate::from_mbit(n)
    }

    #[test]
    fn who_needs_less_leaves_the_rest_to_the_others() {
        let max = Rate::MAX;
        for (needs, shares) in [
            (vec![max, max], vec![15, 15]),
            (vec![mbit(3), max], vec![3, 27]),
            (vec![max, mbit(3), mbit(6)], vec![21, 3, 6]),
            (vec![mbit(3), mbit(6)], vec![3 + 10, 6 + 11]), // 21 to spare: half each
            (vec![max], vec![30]),
            (vec![], vec![]),
        ] {
            let spare = needs == [mbit(3), mbit(6)];
            let got = fair_shares(mbit(30), &needs);
            if spare {
                assert_eq!(got, [Rate::from_bits_per_sec(13_500_000), Rate::from_bits_per_sec(16_500_000)]);
            } else {
                assert_eq!(got, shares.into_iter().map(mbit).collect::<Vec<_>>(), "{needs:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn shares_keep_to_the_cap_and_use_it_up(
            cap in 1_000_u64..10_000_000_000,
            needs in prop::collection::vec(prop_oneof![Just(u64::MAX), 0..20_000_000_000_u64], 1..40),
        ) {
            let needs: Vec<Rate> = needs.into_iter().map(Rate::from_bytes_per_sec).collect();
            let shares = fair_shares(Rate::from_bytes_per_sec(cap), &needs);
            let sum: u64 = shares.iter().map(|s| s.bytes_per_sec()).sum();
            prop_assert!(sum <= cap && sum + needs.len() as u64 * 2 >= cap, "{} of {}", sum, cap);
            // Nobody who needs more than another gets less than it.
            for (a, x) in needs.iter().zip(&shares) {
                for (b, y) in needs.iter().zip(&shares) {
                    prop_assert!(a <= b || x.bytes_per_sec() + 1 >= y.bytes_per_sec());
                }
            }
        }
    }

    #[test]
    fn need_follows_what_moves_and_is_unbounded_when_held_back() {
        let mut need = Need::default();
        let (mut at, mut acked) = (Time::ZERO, 0);
        let mut run = |need: &mut Need, rate: u64, share: u64| {
            (at, acked) = (at + WINDOW, acked + mbit(rate).bytes_in(WINDOW));
            (need.measure(at, acked, Some(mbit(share))), need.rate())
        };
        assert_eq!(run(&mut need, 0, 20), (false, Rate::MAX), "the first window begins");
        assert_eq!(run(&mut need, 4, 20), (true, mbit(6)));
        assert_eq!(run(&mut need, 5, 6), (false, mbit(6)), "about as before");
        assert_eq!(run(&mut need, 6, 6), (true, Rate::MAX), "its share holds it back");
        assert_eq!(run(&mut need, 19, 20), (false, Rate::MAX));
        assert_eq!(run(&mut need, 2, 20), (true, mbit(3)));
        assert_eq!(run(&mut need, 1, 20), (true, Rate::from_bits_per_sec(1_500_000)));
    }
}
