//! Which of the flows of a class is next: by weights, the heaviest first, or the nearest deadline first.
//!
//! Weights hold by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996): each flow has a
//! tag that grows by what it sent divided by its weight, and the lowest tag is next. A flow that comes anew starts from
//! the tag of the one that was served last, so that time in which it wanted nothing gives it no claim. Strict priority and
//! earliest deadline first (Liu and Layland, J. ACM 20(1), 1973) put flows in order by weight and by deadline; those that
//! are equal take turns.

use crate::platform::Order;
use base::Time;
use std::collections::BTreeSet;

/// Tags are in bytes of a weight of one, times this.
pub(super) const SCALE: u128 = 1 << 16;

/// How far a tag moves by so many bytes.
pub(super) fn step(bytes: u64, weight: u64) -> u128 {
    u128::from(bytes) * SCALE / u128::from(weight.max(1))
}

/// A flow's place: key, turn, number. The least is next.
pub(super) type Place = (u128, u64, u32);

/// What a place is reckoned from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub weight: u32,
    pub deadline: Option<Time>,
    /// Virtual time at which its next train starts.
    pub tag: u128,
}

/// Flows that want to send, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    order: Order,
    waiting: BTreeSet<Place>,
    /// The sum of their weights.
    weight: u64,
    /// The tag of the flow served last.
    now: u128,
    turn: u64,
}

impl Queue {
    pub fn new(order: Order) -> Queue {
        Queue { order, ..Queue::default() }
    }

    /// The virtual time.
    pub const fn now(&self) -> u128 {
        self.now
    }

    /// The weights of all that wait, together.
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes in a flow; its place is returned, to be given back to [`Queue::remove`].
    pub fn insert(&mut self, flow: u32, s: &Standing) -> Place {
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

    pub fn remove(&mut self, place: &Place, weight: u32) {
        if self.waiting.remove(place) {
            self.weight = self.weight.saturating_sub(weight.into());
        }
    }

    /// The flow that is next.
    pub fn first(&self) -> Option<u32> {
        self.waiting.first().map(|p| p.2)
    }

    /// A flow is served that started at this tag.
    pub fn served(&mut self, tag: u128) {
        self.now = self.now.max(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Span;
    use proptest::prelude::*;

    /// Serves `rounds` trains of flows that always want more; gives what each has got.
    fn serve(order: Order, flows: &[Standing], trains: &[u64]) -> Vec<u64> {
        let mut q = Queue::new(order);
        let mut flows = flows.to_vec();
        let mut places: Vec<Place> = flows.iter().enumerate().map(|(i, s)| q.insert(i as u32, s)).collect();
        let mut got = vec![0; flows.len()];
        for train in trains {
            let i = q.first().expect("somebody waits") as usize;
            q.remove(&places[i], flows[i].weight);
            q.served(flows[i].tag);
            flows[i].tag += step(*train, flows[i].weight.into());
            got[i] += train;
            places[i] = q.insert(i as u32, &flows[i]);
        }
        got
    }

    fn flow(weight: u32, deadline: Option<u64>) -> Standing {
        Standing { weight, deadline: deadline.map(|ms| Time::ZERO + Span::from_millis(ms)), tag: 0 }
    }

    proptest! {
        #[test]
        fn weights_hold_to_a_train(
            weights in prop::collection::vec(1_u32..100, 2..10),
            trains in prop::collection::vec(100_u64..65_507, 500..1_000),
        ) {
            let flows: Vec<_> = weights.iter().map(|w| flow(*w, None)).collect();
            let got = serve(Order::Fair, &flows, &trains);
            // SFQ, theorem 1: what two flows got, by their weights, differs by a longest train of each at most.
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
    fn the_heaviest_has_all_it_wants_and_equals_take_turns() {
        let got = serve(Order::Strict, &[flow(2, None), flow(9, None), flow(9, None)], &[1_000; 10]);
        assert_eq!(got, [0, 5_000, 5_000]);
    }

    #[test]
    fn the_nearest_deadline_is_first_and_none_is_last() {
        let flows = [flow(1, None), flow(1, Some(20)), flow(1, Some(10))];
        let mut q = Queue::new(Order::Deadline);
        let places: Vec<Place> = flows.iter().enumerate().map(|(i, s)| q.insert(i as u32, s)).collect();
        for i in [2, 1, 0] {
            assert_eq!(q.first(), Some(i));
            q.remove(&places[i as usize], 1);
        }
        assert!(q.is_empty() && q.weight() == 0);
    }
}
