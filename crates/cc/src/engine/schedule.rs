//! The order of the flows of a class: by weighted fair share, the heaviest first, or the earliest deadline first.
//!
//! Weights are enforced by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996):
//! each flow has a tag that grows by the bytes sent divided by the weight, and the lowest tag is next. A flow that
//! starts to wait begins at the tag served last, so an idle time earns no credit. Strict priority orders by weight
//! and earliest deadline first (Liu and Layland, J. ACM 20(1), 1973) by deadline; equal flows take turns.

use crate::platform::Order;
use base::Time;
use std::collections::BTreeSet;

/// Unit of tags: bytes at weight one, times this.
pub(super) const TAG_SCALE: u128 = 1 << 16;

/// The advance of a tag for these bytes.
pub(super) fn tag_step(bytes: u64, weight: u64) -> u128 {
    u128::from(bytes) * TAG_SCALE / u128::from(weight.max(1))
}

/// A flow's key in the queue: sort key, turn, number. The smallest is next.
pub(super) type QueueKey = (u128, u64, u32);

/// The scheduling state of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct SchedState {
    pub weight: u32,
    pub deadline: Option<Time>,
    /// Virtual time at which its next train starts.
    pub tag: u128,
}

/// Flows that wait to send, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    order: Order,
    waiting: BTreeSet<QueueKey>,
    /// The sum of their weights.
    weight: u64,
    /// The tag of the flow served last.
    virtual_time: u128,
    turn: u64,
}

impl Queue {
    pub fn new(order: Order) -> Queue {
        Queue { order, ..Queue::default() }
    }

    /// The virtual time.
    pub const fn virtual_time(&self) -> u128 {
        self.virtual_time
    }

    /// The total weight of all waiting flows.
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Inserts a flow and returns its key for [`Queue::remove`].
    pub fn insert(&mut self, flow: u32, s: &SchedState) -> QueueKey {
        self.turn += 1;
        let key = match self.order {
            Order::Fair => s.tag,
            Order::Strict => u128::from(u32::MAX - s.weight),
            Order::Deadline => s.deadline.map_or(u128::MAX, |t| t.as_nanos().into()),
        };
        let place = (key, self.turn, flow);
        self.waiting.insert(place);
        self.weight += u64::from(s.weight);
        place
    }

    pub fn remove(&mut self, place: &QueueKey, weight: u32) {
        if self.waiting.remove(place) {
            self.weight = self.weight.saturating_sub(weight.into());
        }
    }

    /// The next flow.
    pub fn first(&self) -> Option<u32> {
        self.waiting.first().map(|p| p.2)
    }

    /// Advances virtual time to the tag of a served flow.
    pub fn on_served(&mut self, tag: u128) {
        self.virtual_time = self.virtual_time.max(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Span;
    use proptest::prelude::*;

    /// Serves `rounds` trains of flows that always want more; returns the bytes of each.
    fn serve(order: Order, flows: &[SchedState], trains: &[u64]) -> Vec<u64> {
        let mut q = Queue::new(order);
        let mut flows = flows.to_vec();
        let mut places: Vec<QueueKey> =
            flows.iter().enumerate().map(|(i, s)| q.insert(i as u32, s)).collect();
        let mut got = vec![0; flows.len()];
        for train in trains {
            let i = q.first().expect("somebody waits") as usize;
            q.remove(&places[i], flows[i].weight);
            q.on_served(flows[i].tag);
            flows[i].tag += tag_step(*train, flows[i].weight.into());
            got[i] += train;
            places[i] = q.insert(i as u32, &flows[i]);
        }
        got
    }

    fn flow(weight: u32, deadline: Option<u64>) -> SchedState {
        SchedState { weight, deadline: deadline.map(|ms| Time::ZERO + Span::from_millis(ms)), tag: 0 }
    }

    proptest! {
        #[test]
        fn weighted_shares_differ_by_at_most_a_train(
            weights in prop::collection::vec(1_u32..100, 2..10),
            trains in prop::collection::vec(100_u64..65_507, 500..1_000),
        ) {
            let flows: Vec<_> = weights.iter().map(|w| flow(*w, None)).collect();
            let got = serve(Order::Fair, &flows, &trains);
            // SFQ, theorem 1: the weighted service of two flows differs by at most the longest train of each.
            for i in 0..flows.len() {
                for k in 0..flows.len() {
                    let (a, b) = (got[i] as f64 / f64::from(weights[i]), got[k] as f64 / f64::from(weights[k]));
                    let most = 65_507.0 / f64::from(weights[i]) + 65_507.0 / f64::from(weights[k]);
                    prop_assert!((a - b).abs() <= most, "{a} {b} {most}");
                }
            }
        }
    }

    #[test]
    fn strict_order_serves_the_heaviest_first_and_equals_in_turn() {
        let got = serve(Order::Strict, &[flow(2, None), flow(9, None), flow(9, None)], &[1_000; 10]);
        assert_eq!(got, [0, 5_000, 5_000]);
    }

    #[test]
    fn deadline_order_serves_the_nearest_first_and_none_last() {
        let flows = [flow(1, None), flow(1, Some(20)), flow(1, Some(10))];
        let mut q = Queue::new(Order::Deadline);
        let places: Vec<QueueKey> = flows.iter().enumerate().map(|(i, s)| q.insert(i as u32, s)).collect();
        for i in [2, 1, 0] {
            assert_eq!(q.first(), Some(i));
            q.remove(&places[i as usize], 1);
        }
        assert!(q.is_empty() && q.weight() == 0);
    }
}
