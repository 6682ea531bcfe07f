//! Budgets of memory and file descriptors that a server divides among its clients.
//!
//! Whatever a client asks for is taken from one [`Budget`] of the process. Each session has a small part for sure; beyond that a
//! client may hold as much as it leaves free (dynamic thresholds, Choudhury and Hahne 1998): one alone may have half of all, the next
//! half of the rest, and no number of sessions of one client, or of one address, brings it more. So nothing is set aside for clients
//! that do not come, and none that comes later finds nothing.

mod free;

pub use free::free_memory;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A server gives its clients this part of the memory that is free when it starts,
const PART: u64 = 4;
/// and this much at most, unless its operator says otherwise.
pub const DEFAULT_MAX: u64 = 640 << 20;

/// Memory that a server gives its clients in all: what its operator says (`asked`), else the usual.
pub fn memory_for_clients(asked: Option<u64>) -> u64 {
    asked.unwrap_or_else(|| (free_memory() / PART).min(DEFAULT_MAX))
}

/// A number of bytes or descriptors that sessions share. Clones refer to the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<BudgetState>>);

#[derive(Debug, Default)]
struct BudgetState {
    total: u64,
    all: u64,
    /// Beyond what is theirs for sure, of each client and of each address.
    groups: HashMap<String, u64>,
}

/// A request that exceeds the budget. Its text is for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    /// Asked for.
    pub wanted: u64,
    /// What the server gives to all.
    pub total: u64,
    /// What this client could have now.
    pub free: u64,
}

impl Budget {
    /// A budget of `total` bytes or descriptors.
    pub fn new(total: u64) -> Budget {
        Budget(Arc::new(Mutex::new(BudgetState { total, ..BudgetState::default() })))
    }

    /// A budget without a limit: for the only session of a program.
    pub fn unlimited() -> Budget {
        Budget::new(u64::MAX)
    }

    /// The whole budget.
    pub fn total(&self) -> u64 {
        self.held().total
    }

    /// How much sessions hold.
    pub fn used(&self) -> u64 {
        self.held().all
    }

    /// A share for a session, which has `guaranteed` in any case (the number of sessions must be limited), and beyond
    /// that what all members of the same `groups` (the client's key, its address) may hold together.
    pub fn share(&self, guaranteed: u64, groups: Vec<String>) -> Share {
        let mut h = self.held();
        h.all = h.all.saturating_add(guaranteed);
        drop(h);
        Share { budget: self.clone(), groups, guaranteed, more: 0 }
    }

    fn held(&self) -> MutexGuard<'_, BudgetState> {
        // Nothing in there can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    /// How much more those groups may hold: as much as is left to others.
    fn room(&self, groups: &[String]) -> u64 {
        let left = self.total.saturating_sub(self.all);
        let most = groups.iter().filter_map(|g| self.groups.get(g)).max().copied().unwrap_or(0);
        left.saturating_sub(most) / 2
    }
    fn add(&mut self, groups: &[String], n: u64) {
        self.all = self.all.saturating_add(n);
        for g in groups {
            let held = self.groups.entry(g.clone()).or_default();
            *held = held.saturating_add(n);
        }
    }
    fn remove(&mut self, groups: &[String], n: u64) {
        self.all = self.all.saturating_sub(n);
        for g in groups {
            if let Some(held) = self.groups.get_mut(g) {
                *held = held.saturating_sub(n);
            }
        }
    }
}

/// A session's share of a [`Budget`], returned when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    groups: Vec<String>,
    guaranteed: u64,
    more: u64,
}

impl Share {
    /// All that it holds.
    pub fn held(&self) -> u64 {
        self.guaranteed + self.more
    }

    /// Holds `n` more.
    ///
    /// # Errors
    /// That is not to be had: then it holds what it held.
    pub fn take(&mut self, n: u64) -> Result<(), BudgetExceeded> {
        let mut h = self.budget.held();
        let free = h.room(&self.groups);
        if n > free {
            return Err(BudgetExceeded { wanted: n, total: h.total, free });
        }
        h.add(&self.groups, n);
        self.more += n;
        Ok(())
    }

    /// Holds `n` less, of what it holds beyond what it has for sure.
    pub fn give_back(&mut self, n: u64) {
        let n = n.min(self.more);
        self.budget.held().remove(&self.groups, n);
        self.more -= n;
    }

    /// Holds `want` if that is to be had, else as much as is, and no less than `least` of what it holds already. Gives what it holds.
    pub fn adapt(&mut self, want: u64, least: u64) -> u64 {
        let more = want.saturating_sub(self.guaranteed);
        if more > self.more {
            let mut h = self.budget.held();
            let n = (more - self.more).min(h.room(&self.groups));
            h.add(&self.groups, n);
            self.more += n;
        } else {
            let keep = more.max(least.saturating_sub(self.guaranteed)).min(self.more);
            self.give_back(self.more - keep);
        }
        self.held()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut h = self.budget.held();
        h.remove(&self.groups, self.more);
        h.all = h.all.saturating_sub(self.guaranteed);
        h.groups.retain(|_, held| *held > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn client_share_is_bounded_by_free_budget_across_sessions() {
        let b = Budget::new(1_000);
        let mut a = b.share(0, of(&["key a", "10.0.0.1"]));
        assert_eq!(a.take(501), Err(BudgetExceeded { wanted: 501, total: 1_000, free: 500 }));
        assert_eq!(a.take(500), Ok(()));
        // The same key from elsewhere, the same address with another key, and somebody else.
        for (groups, free) in
            [(["key a", "10.0.0.2"], 0), (["key b", "10.0.0.1"], 0), (["key c", "10.0.0.3"], 250)]
        {
            let mut s = b.share(0, of(&groups));
            assert_eq!(
                s.take(u64::MAX),
                Err(BudgetExceeded { wanted: u64::MAX, total: 1_000, free }),
                "{groups:?}"
            );
            assert_eq!(s.take(free), Ok(()));
        }
        a.give_back(100);
        assert_eq!((a.held(), b.used()), (400, 400));
        drop(a);
        assert_eq!(b.used(), 0);
        assert_eq!(b.share(0, of(&["key b"])).take(500), Ok(()));
    }

    #[test]
    fn many_clients_never_exceed_the_budget_and_leave_a_share() {
        let b = Budget::new(1 << 20);
        let mut all = Vec::new();
        for n in 0..8 {
            let mut s = b.share(0, of(&[&format!("key {n}")]));
            let Err(short) = s.take(u64::MAX) else { panic!("more than there is") };
            assert!(short.free >= 1 << (19 - n), "{n}: {short:?}");
            s.take(short.free).unwrap();
            all.push(s);
        }
        assert!(b.used() < b.total());
    }

    #[test]
    fn guaranteed_share_is_available_when_the_budget_is_exhausted() {
        let b = Budget::new(100);
        let mut a = b.share(10, of(&["a"]));
        assert_eq!(a.adapt(1_000, 0), 55);
        let mut late = b.share(40, of(&["b"]));
        assert_eq!((late.held(), late.adapt(50, 0)), (40, 42));
        assert_eq!((a.adapt(20, 30), a.adapt(20, 0), a.adapt(0, 0)), (30, 20, 10));
        assert_eq!(b.used(), 52);
        drop((a, late));
        assert_eq!((b.used(), b.held().groups.len()), (0, 0));
        let mut only = Budget::unlimited().share(5, Vec::new());
        assert_eq!(only.adapt(4 << 30, 0), 4 << 30);
    }

    #[test]
    fn server_budget_is_configured_or_a_part_of_free_memory() {
        assert_eq!(memory_for_clients(Some(5 << 30)), 5 << 30);
        assert!((1..=DEFAULT_MAX).contains(&memory_for_clients(None)));
    }
}
