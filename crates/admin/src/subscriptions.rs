//! Passes congestion control decisions from the loop that makes them to the threads of clients that subscribed to them.

use crate::proto::{Decision, FlowId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most subscribers at a time.
pub const MAX_SUBSCRIPTIONS: usize = 8;
/// Most decisions that wait for one subscriber; beyond them the oldest are dropped and counted as missed.
pub const MAX_WAITING: usize = 16_384;
/// Most flows whose decisions are counted for one subscriber; those of further flows are all delivered.
const MAX_COUNTED: usize = 10_000;

/// What one client subscribed to, and the decisions that wait for it.
#[derive(Debug)]
pub struct Subscription {
    /// `None`: all flows.
    flow: Option<FlowId>,
    /// Only every n-th decision of a flow is delivered.
    every: u32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Decision>,
    /// Dropped since the last call of [`Subscription::take`].
    missed: u64,
    /// Decisions of each flow so far.
    counts: BTreeMap<String, u32>,
}

impl Subscription {
    /// Takes the waiting decisions, and the number of those that were dropped before them since the last call.
    pub fn take(&self) -> (Vec<Decision>, u64) {
        let mut q = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = std::mem::take(&mut q.missed);
        (q.waiting.drain(..).collect(), missed)
    }

    fn publish(&self, d: &Decision, id: FlowId) {
        if self.flow.is_some_and(|f| f != id) {
            return;
        }
        let mut q = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if self.every > 1 && (q.counts.len() < MAX_COUNTED || q.counts.contains_key(&d.flow)) {
            let n = q.counts.entry(d.flow.clone()).or_default();
            *n += 1;
            // The first decision of a flow is always delivered.
            if *n % self.every != 1 {
                return;
            }
        }
        if q.waiting.len() >= MAX_WAITING {
            q.waiting.pop_front();
            q.missed += 1;
        }
        q.waiting.push_back(d.clone());
    }
}

/// All subscriptions. Cheap to clone; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
    /// Grows with every change of the list, so that the loop notices it with one load; 0: nobody has ever subscribed.
    changes: AtomicU32,
}

/// A client's handle of its subscription; dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscriber {
    subscription: Arc<Subscription>,
    all: Subscriptions,
}

impl std::ops::Deref for Subscriber {
    type Target = Subscription;
    fn deref(&self) -> &Subscription {
        &self.subscription
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.all.change(|subscriptions| subscriptions.retain(|t| !Arc::ptr_eq(t, &self.subscription)));
    }
}

impl Subscriptions {
    fn change<T>(&self, f: impl FnOnce(&mut Vec<Arc<Subscription>>) -> T) -> T {
        let result = f(&mut self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.changes.fetch_add(1, Ordering::Release);
        result
    }

    /// Subscribes to every n-th (`every`) decision of one flow, or of each flow. `None`: there are [`MAX_SUBSCRIPTIONS`].
    pub fn subscribe(&self, flow: Option<FlowId>, every: u32) -> Option<Subscriber> {
        let subscription = Arc::new(Subscription { flow, every: every.max(1), queue: Mutex::default() });
        let fits = self.change(|subscriptions| {
            let fits = subscriptions.len() < MAX_SUBSCRIPTIONS;
            if fits {
                subscriptions.push(subscription.clone());
            }
            fits
        });
        fits.then(|| Subscriber { subscription, all: self.clone() })
    }

    /// Called by the loop: how often the list of subscriptions has changed.
    pub fn changes(&self) -> u32 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Called by the loop: whose decisions are subscribed to. `None`: no flow's; `Some(None)`: those of all or several flows.
    pub fn watched(&self) -> Option<Option<FlowId>> {
        let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        let first = subscriptions.first()?.flow;
        Some(first.filter(|_| subscriptions.iter().all(|t| t.flow == first)))
    }

    /// Called by the loop: `count` decisions were lost before they could be published.
    pub fn add_missed(&self, count: u64) {
        if count > 0 {
            let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
            subscriptions
                .iter()
                .for_each(|t| t.queue.lock().unwrap_or_else(PoisonError::into_inner).missed += count);
        }
    }

    /// Called by the loop: adds a decision to the queues of those who subscribed to it.
    pub fn publish(&self, d: &Decision, id: FlowId) {
        let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions.iter().for_each(|t| t.publish(d, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(subscriptions: &Subscriptions, connection: u64, n: u64) {
        let id = FlowId { connection, flow: 0 };
        subscriptions.publish(&Decision { flow: id.to_string(), acked_bytes: n, ..Decision::default() }, id);
    }

    #[test]
    fn subscribers_get_every_nth_decision_and_the_number_of_missed_ones() {
        let subscriptions = Subscriptions::default();
        assert_eq!((subscriptions.changes(), subscriptions.watched()), (0, None));
        let three = FlowId { connection: 3, flow: 0 };
        let one = subscriptions.subscribe(Some(three), 1).unwrap();
        assert_eq!(subscriptions.watched(), Some(Some(three)));
        let all = subscriptions.subscribe(None, 10).unwrap();
        assert_eq!(subscriptions.watched(), Some(None));
        (0..20).for_each(|n| publish(&subscriptions, 3, n));
        (0..5).for_each(|n| publish(&subscriptions, 4, n));
        assert_eq!(one.take().0.len(), 20);
        let sampled: Vec<_> = all.take().0.into_iter().map(|d| (d.flow, d.acked_bytes)).collect();
        assert_eq!(sampled, [("3.0".into(), 0), ("3.0".into(), 10), ("4.0".into(), 0)]);
        (0..MAX_WAITING as u64 + 7).for_each(|n| publish(&subscriptions, 3, n));
        let (kept, missed) = one.take();
        assert_eq!((kept.len(), kept[0].acked_bytes, missed), (MAX_WAITING, 7, 7));
        assert_eq!(one.take(), (vec![], 0));
    }

    #[test]
    fn subscriptions_are_limited_and_removed() {
        let subscriptions = Subscriptions::default();
        let many: Vec<_> =
            (0..MAX_SUBSCRIPTIONS).map(|_| subscriptions.subscribe(None, 1).unwrap()).collect();
        assert!(subscriptions.subscribe(None, 1).is_none());
        let changes = subscriptions.changes();
        drop(many);
        assert!(subscriptions.changes() > changes && subscriptions.watched().is_none());
    }
}
