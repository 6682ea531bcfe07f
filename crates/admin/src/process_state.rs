//! The state of a process's policy and its recent events, shared between its threads.

use crate::proto::{Event, PolicyStatus, Process, VERSION};
use lhio::clock::WallTime;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events kept of each half: the latest of the process and its policy, and the latest of connections, so that many connections
/// do not push out what became of a policy.
pub const MAX_EVENTS: usize = 1_024;
/// Digits of the hash that tells policies apart.
const HASH_DIGITS: usize = 12;
/// Longest text of an event, in characters.
const MAX_EVENT_TEXT: usize = 2_000;

/// Facts and events of a process. Cheap to clone; clones share their state.
#[derive(Clone, Debug)]
pub struct ProcessState(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    process: Process,
    /// The policy that runs.
    text: Arc<str>,
    of_process: VecDeque<Event>,
    of_connections: VecDeque<Event>,
    next: u64,
}

/// What tells a policy's text from others: the first digits of its BLAKE3 hash.
pub fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex()[..HASH_DIGITS].to_owned()
}

impl ProcessState {
    /// Of a process that does `command`.
    pub fn new(command: &str) -> ProcessState {
        let process = Process {
            protocol: VERSION,
            pid: std::process::id(),
            command: command.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: WallTime::now().unix_secs(),
            policy: PolicyStatus::default(),
            programs: Vec::new(),
            problems: Vec::new(),
        };
        ProcessState(Arc::new(Mutex::new(State {
            process,
            text: "".into(),
            of_process: VecDeque::new(),
            of_connections: VecDeque::new(),
            next: 1,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it but the policy's text, the programs and what is wrong with those.
    pub fn process(&self) -> Process {
        self.state().process.clone()
    }

    /// The text of the policy that runs, and its state.
    pub fn policy(&self) -> (Arc<str>, PolicyStatus) {
        let f = self.state();
        (f.text.clone(), f.process.policy.clone())
    }

    /// Policies come from `source`.
    pub fn set_source(&self, source: &str) {
        source.clone_into(&mut self.state().process.policy.source);
    }

    /// A policy is in force now that was found in `from`, and read from the file `path`, if it was one.
    pub fn set_policy(&self, text: &str, from: &str, path: &str, revision: u64) {
        {
            let mut f = self.state();
            f.text = text.into();
            let p = &mut f.process.policy;
            from.clone_into(&mut p.origin);
            path.clone_into(&mut p.path);
            p.hash = hash(text.as_bytes());
            (p.revision, p.since) = (revision, WallTime::now().unix_secs());
            p.changes += 1;
        }
        let at = if revision == 0 { String::new() } else { format!(" at revision {revision}") };
        self.record_event("policy", format!("the policy of {from}{at} is in force"));
    }

    /// What is wrong with the source of policies; nothing any more when empty. Whether that is news.
    pub fn set_source_errors(&self, errors: &[String]) -> bool {
        let mut f = self.state();
        let news = f.process.policy.errors != errors;
        if news {
            f.process.policy.errors = errors.to_vec();
        }
        news
    }

    /// Records an event of the process or its policy; the oldest one is dropped when there are too many.
    pub fn record_event(&self, kind: &str, text: impl Into<String>) {
        let mut f = self.state();
        let event = f.event(kind, text.into());
        push(&mut f.of_process, event);
    }

    /// Records an event of a connection, likewise.
    pub fn record_connection_event(&self, kind: &str, text: impl Into<String>) {
        let mut f = self.state();
        let event = f.event(kind, text.into());
        push(&mut f.of_connections, event);
    }

    /// The events after number `after`, and how many of them are no longer kept.
    pub fn events(&self, after: u64) -> (Vec<Event>, u64) {
        let f = self.state();
        let kept = f.of_process.iter().chain(&f.of_connections).filter(|e| e.number > after);
        let mut events: Vec<Event> = kept.cloned().collect();
        events.sort_by_key(|e| e.number);
        let all = (f.next - 1).saturating_sub(after);
        let missed = all.saturating_sub(events.len() as u64);
        (events, missed)
    }
}

impl State {
    fn event(&mut self, kind: &str, text: String) -> Event {
        let number = self.next;
        self.next += 1;
        let text = text.chars().take(MAX_EVENT_TEXT).collect();
        Event { number, time: WallTime::now().unix_secs(), kind: kind.to_owned(), text }
    }
}

fn push(events: &mut VecDeque<Event>, event: Event) {
    if events.len() == MAX_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_do_not_push_out_what_became_of_the_policy() {
        let b = ProcessState::new("test");
        b.record_event("policy", "first");
        (0..2 * MAX_EVENTS).for_each(|i| b.record_connection_event("connection", format!("{i}")));
        b.record_event("policy", "last");
        let (events, missed) = b.events(0);
        assert_eq!((events.len(), missed), (MAX_EVENTS + 2, MAX_EVENTS as u64));
        let ends = [&events[0], &events[MAX_EVENTS + 1]];
        assert_eq!(ends.map(|e| e.text.as_str()), ["first", "last"]);
        assert!(events.is_sorted_by_key(|e| e.number));
    }

    #[test]
    fn oldest_events_are_dropped_and_counted() {
        let b = ProcessState::new("test");
        assert_eq!(b.events(0), (vec![], 0));
        for i in 1..=MAX_EVENTS + 10 {
            b.record_event("policy", format!("{i}"));
        }
        let (events, missed) = b.events(0);
        assert_eq!((events.len(), missed), (MAX_EVENTS, 10));
        assert_eq!((events[0].number, events[0].text.as_str()), (11, "11"));
        let (events, missed) = b.events(MAX_EVENTS as u64 + 8);
        assert_eq!((events.len(), missed), (2, 0));
        assert_eq!(b.events(u64::MAX), (vec![], 0));
    }

    #[test]
    fn problem_is_reported_once() {
        let b = ProcessState::new("test");
        let errors = ["line 1: no".to_owned()];
        assert!(!b.set_source_errors(&[]));
        assert!(b.set_source_errors(&errors) && !b.set_source_errors(&errors));
        assert_eq!(b.process().policy.errors, errors);
        assert!(b.set_source_errors(&[]) && !b.set_source_errors(&[]));
    }
}
