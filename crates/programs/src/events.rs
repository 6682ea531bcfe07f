//! What befell programs: kept for whoever administers, and logged.

use crate::Fault;
use base::{Rate, Time};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Events that are kept; older ones are forgotten.
pub const MAX_EVENTS: usize = 256;

/// A program was replaced in a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Replaced {
    /// Count of such events in this process so far, this one included.
    pub number: u64,
    /// When, by the flow's clock.
    pub at: Time,
    /// The program.
    pub program: &'static str,
    /// The algorithm that took its place.
    pub fallback: &'static str,
    /// What the program did.
    pub fault: Fault,
    /// In which of its functions: `start`, `feedback`, `event`, `sent`.
    pub call: &'static str,
    /// Which call of this flow that was, counted from 1.
    pub calls: u64,
    /// The rate with which the fallback began; `None` when none was known that had served, and it started afresh.
    pub rate: Option<Rate>,
}

struct Events {
    count: u64,
    kept: VecDeque<Replaced>,
}

static EVENTS: Mutex<Events> = Mutex::new(Events { count: 0, kept: VecDeque::new() });

/// The latest events, [`MAX_EVENTS`] at most, oldest first, with a [`Replaced::number`] above `after` (0: all).
pub fn events(after: u64) -> Vec<Replaced> {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    events.kept.iter().filter(|e| e.number > after).cloned().collect()
}

/// Whether somebody else tells of faults.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Faults are kept and not logged from now on: whoever calls this tells of them itself.
pub fn log_no_faults() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Logs and keeps an event; its number is given here.
pub(crate) fn add(mut event: Replaced) {
    if !QUIET.load(Ordering::Relaxed) {
        log(&event);
    }
    let mut events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    events.count += 1;
    event.number = events.count;
    if events.kept.len() == MAX_EVENTS {
        events.kept.pop_front();
    }
    events.kept.push_back(event);
}

fn log(event: &Replaced) {
    let rate = event.rate.map_or("afresh".to_owned(), |r| format!("from {r}"));
    tracing::warn!(
        program = event.program,
        fallback = event.fallback,
        "congestion-control program {} {} in call {}, {}: {} takes its place, {rate}",
        event.program,
        event.fault,
        event.calls,
        event.call,
        event.fallback,
    );
}
