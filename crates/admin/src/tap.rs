//! Decisions on their way from the loop to those who watch them.

use crate::proto::{Decision, FlowId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Watchers at a time.
pub const MAX_TAPS: usize = 8;
/// Decisions that wait for a watcher; the oldest go first.
pub const MAX_WAITING: usize = 16_384;
/// Flows of which decisions are counted for one watcher; of more, all are given.
const MAX_COUNTED: usize = 10_000;

/// What one watcher gets.
#[derive(Debug)]
pub struct Tap {
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

impl Tap {
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

/// All watchers. Cheap to clone; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Taps(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taps: Mutex<Vec<Arc<Tap>>>,
    /// Grows with every change of who watches, so that the loop notices with one load; 0: nobody ever did.
    changes: AtomicU32,
}

/// A watcher: it stops when this goes.
#[derive(Debug)]
pub struct Watching {
    tap: Arc<Tap>,
    all: Taps,
}

impl std::ops::Deref for Watching {
    type Target = Tap;
    fn deref(&self) -> &Tap {
        &self.tap
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.all.change(|taps| taps.retain(|t| !Arc::ptr_eq(t, &self.tap)));
    }
}

impl Taps {
    fn change<T>(&self, f: impl FnOnce(&mut Vec<Arc<Tap>>) -> T) -> T {
        let result = f(&mut self.0.taps.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.changes.fetch_add(1, Ordering::Release);
        result
    }

    /// Watches one flow or all, every so-many-th decision of each. `None` when there are too many watchers.
    pub fn watch(&self, flow: Option<FlowId>, every: u32) -> Option<Watching> {
        let tap = Arc::new(Tap { flow, every: every.max(1), queue: Mutex::default() });
        let fits = self.change(|taps| {
            let fits = taps.len() < MAX_TAPS;
            if fits {
                taps.push(tap.clone());
            }
            fits
        });
        fits.then(|| Watching { tap, all: self.clone() })
    }

    /// The loop's side: how often who watches has changed.
    pub fn changes(&self) -> u32 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Which flow is watched: `None` for nobody, `Some(None)` for all or several.
    pub fn wanted(&self) -> Option<Option<FlowId>> {
        let taps = self.0.taps.lock().unwrap_or_else(PoisonError::into_inner);
        let first = taps.first()?.flow;
        Some(first.filter(|_| taps.iter().all(|t| t.flow == first)))
    }

    /// The loop's side: so many decisions were lost before they came here.
    pub fn missed(&self, count: u64) {
        if count > 0 {
            let taps = self.0.taps.lock().unwrap_or_else(PoisonError::into_inner);
            taps.iter().for_each(|t| t.queue.lock().unwrap_or_else(PoisonError::into_inner).missed += count);
        }
    }

    /// The loop's side: a decision was made.
    pub fn offer(&self, d: &Decision, id: FlowId) {
        let taps = self.0.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.iter().for_each(|t| t.offer(d, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(taps: &Taps, connection: u64, n: u64) {
        let id = FlowId { connection, flow: 0 };
        taps.offer(&Decision { flow: id.to_string(), acked_bytes: n, ..Decision::default() }, id);
    }

    #[test]
    fn watchers_get_their_share_and_a_count_of_missed_records() {
        let taps = Taps::default();
        assert_eq!((taps.changes(), taps.wanted()), (0, None));
        let three = FlowId { connection: 3, flow: 0 };
        let one = taps.watch(Some(three), 1).unwrap();
        assert_eq!(taps.wanted(), Some(Some(three)));
        let all = taps.watch(None, 10).unwrap();
        assert_eq!(taps.wanted(), Some(None));
        (0..20).for_each(|n| offer(&taps, 3, n));
        (0..5).for_each(|n| offer(&taps, 4, n));
        assert_eq!(one.take().0.len(), 20);
        let sampled: Vec<_> = all.take().0.into_iter().map(|d| (d.flow, d.acked_bytes)).collect();
        assert_eq!(sampled, [("3.0".into(), 0), ("3.0".into(), 10), ("4.0".into(), 0)]);
        (0..MAX_WAITING as u64 + 7).for_each(|n| offer(&taps, 3, n));
        let (kept, missed) = one.take();
        assert_eq!((kept.len(), kept[0].acked_bytes, missed), (MAX_WAITING, 7, 7));
        assert_eq!(one.take(), (vec![], 0));
    }

    #[test]
    fn watchers_are_limited_and_removed() {
        let taps = Taps::default();
        let many: Vec<_> = (0..MAX_TAPS).map(|_| taps.watch(None, 1).unwrap()).collect();
        assert!(taps.watch(None, 1).is_none());
        let changes = taps.changes();
        drop(many);
        assert!(taps.changes() > changes && taps.wanted().is_none());
    }
}
