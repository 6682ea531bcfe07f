//! Delivers congestion control decisions from the loop to subscribed clients.

use crate::proto::{Decision, FlowId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The most subscribers at a time.
pub const MAX_SUBSCRIPTIONS: usize = 8;
/// Decisions that wait for a watcher; the oldest go first.
pub const MAX_WAITING: usize = 16_384;
/// Flows of which decisions are counted for one watcher; of more, all are given.
const MAX_COUNTED: usize = 10_000;

/// What one subscriber receives.
#[derive(Debug)]
pub struct Subscription {
    flow: Option<FlowId>,
    every: u32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Decision>,
    missed: u64,
    counts: BTreeMap<String, u32>,
}

impl Subscription {
    /// What has come since the last call, and how many were dropped before it.
    pub fn take(&self) -> (Vec<Decision>, u64) {
        let mut q = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = std::mem::take(&mut q.missed);
        (q.waiting.drain(..).collect(), missed)
    }

    fn offer(&self, d: &Decision, id: FlowId) {
        if self.flow.is_some_and(|f| f != id) {
            return;
        }
        let mut q = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if self.every > 1 && (q.counts.len() < MAX_COUNTED || q.counts.contains_key(&d.flow)) {
            let n = q.counts.entry(d.flow.clone()).or_default();
            *n += 1;
            // The first of a flow is always given.
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
    /// Grows with every change of who watches, so that the loop notices with one load; 0: nobody ever did.
    changes: AtomicU32,
}

/// A subscriber; it unsubscribes when dropped.
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

    /// Watches one flow or all, every so-many-th decision of each. `None` when there are too many watchers.
    pub fn watch(&self, flow: Option<FlowId>, every: u32) -> Option<Subscriber> {
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

    /// The loop's side: how often who watches has changed.
    pub fn changes(&self) -> u32 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Which flow is watched: `None` for nobody, `Some(None)` for all or several.
    pub fn wanted(&self) -> Option<Option<FlowId>> {
        let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        let first = subscriptions.first()?.flow;
        Some(first.filter(|_| subscriptions.iter().all(|t| t.flow == first)))
    }

    /// The loop's side: so many decisions were lost before they came here.
    pub fn missed(&self, count: u64) {
        if count > 0 {
            let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
            subscriptions
                .iter()
                .for_each(|t| t.queue.lock().unwrap_or_else(PoisonError::into_inner).missed += count);
        }
    }

    /// The loop's side: a decision was made.
    pub fn offer(&self, d: &Decision, id: FlowId) {
        let subscriptions = self.0.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions.iter().for_each(|t| t.offer(d, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(subscriptions: &Subscriptions, connection: u64, n: u64) {
        let id = FlowId { connection, flow: 0 };
        subscriptions.offer(&Decision { flow: id.to_string(), acked_bytes: n, ..Decision::default() }, id);
    }

    #[test]
    fn watchers_get_their_share_and_a_count_of_missed_records() {
        let subscriptions = Subscriptions::default();
        assert_eq!((subscriptions.changes(), subscriptions.wanted()), (0, None));
        let three = FlowId { connection: 3, flow: 0 };
        let one = subscriptions.watch(Some(three), 1).unwrap();
        assert_eq!(subscriptions.wanted(), Some(Some(three)));
        let all = subscriptions.watch(None, 10).unwrap();
        assert_eq!(subscriptions.wanted(), Some(None));
        (0..20).for_each(|n| offer(&subscriptions, 3, n));
        (0..5).for_each(|n| offer(&subscriptions, 4, n));
        assert_eq!(one.take().0.len(), 20);
        let sampled: Vec<_> = all.take().0.into_iter().map(|d| (d.flow, d.acked_bytes)).collect();
        assert_eq!(sampled, [("3.0".into(), 0), ("3.0".into(), 10), ("4.0".into(), 0)]);
        (0..MAX_WAITING as u64 + 7).for_each(|n| offer(&subscriptions, 3, n));
        let (kept, missed) = one.take();
        assert_eq!((kept.len(), kept[0].acked_bytes, missed), (MAX_WAITING, 7, 7));
        assert_eq!(one.take(), (vec![], 0));
    }

    #[test]
    fn watchers_are_limited_and_removed() {
        let subscriptions = Subscriptions::default();
        let many: Vec<_> = (0..MAX_SUBSCRIPTIONS).map(|_| subscriptions.watch(None, 1).unwrap()).collect();
        assert!(subscriptions.watch(None, 1).is_none());
        let changes = subscriptions.changes();
        drop(many);
        assert!(subscriptions.changes() > changes && subscriptions.wanted().is_none());
    }
}
