//! The log of programs that were replaced because they misbehaved, kept for administrators.

use crate::Fault;
use base::{Rate, Time};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most events that are kept; older ones are dropped.
pub const MAX_EVENTS: usize = 256;

/// A program was replaced in a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Replaced {
    /// Sequence number of the event in this process, from 1.
    pub number: u64,
    /// The time on the flow's clock.
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
    /// The rate at which the fallback started; `None` if no measured rate was known and it started afresh.
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

/// Whether faults are left to others to log.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Stops logging faults, which the caller then reports from [`events`] itself.
pub fn log_no_faults() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Numbers, logs and keeps an event.
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
