//! Ends a transfer that stands still, and says who waits for whom.

use base::{Span, Time};
use endpoint::{App, Endpoint};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// With nothing to do for this long, a test has failed: something waits for what never comes.
const STUCK: Span = Span::from_secs(60);
/// How often it is looked.
const LOOK_EVERY: Span = Span::from_secs(2);

/// What each end in this process said last.
static STATES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// An end of transfers whose state others can see.
pub struct Watched<'a, A> {
    app: &'a mut A,
    name: String,
    state: fn(&A) -> String,
    /// A client must get on; a server may wait for clients.
    must_move: bool,
    looked: Time,
    moved: Option<Time>,
    said: String,
}

impl<'a, A> Watched<'a, A> {
    pub fn new(app: &'a mut A, name: String, state: fn(&A) -> String, must_move: bool) -> Watched<'a, A> {
        Watched { app, name, state, must_move, looked: Time::ZERO, moved: None, said: String::new() }
    }
    fn look(&mut self, now: Time) {
        let moved = *self.moved.get_or_insert(now);
        if now.since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let said = (self.state)(self.app);
        let mut states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
        if said != self.said {
            states.insert(self.name.clone(), said.clone());
            (self.said, self.moved) = (said, Some(now));
            return;
        }
        if self.must_move && now.since(moved) > STUCK {
            let all: Vec<String> = states.iter().map(|(n, s)| format!("{n}: {s}")).collect();
            panic!("{} stands still; the ends in this process:\n{}", self.name, all.join("\n"));
        }
    }
}

impl<A: App> App for Watched<'_, A> {
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint) {
        self.app.drive(now, endpoint);
        self.look(now);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.app.next_timeout().into_iter().chain([self.looked + LOOK_EVERY]).min()
    }
    fn finished(&self) -> bool {
        self.app.finished()
    }
}

impl<A> Drop for Watched<'_, A> {
    fn drop(&mut self) {
        STATES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}
