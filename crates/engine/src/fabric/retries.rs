//! Gives up queue pairs whose sends get nowhere: because the peer posts no receive, or because nothing is heard of it.
//!
//! An adapter counts attempts. Here the transport repeats what is lost for as long as the connection lives, and a send leaves only
//! once the peer has posted a receive. So the product of attempts and waiting time, which programs set for local networks, is taken as
//! a time; and neither may end before a path as long and lossy as ours are for could have had an answer.

use super::{Fabric, Link};
use base::{Span, Time};
use endpoint::Endpoint;
use verbs::{QpState, Status};

/// How long sends of a queue pair are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// How long the peer may have no receive posted (`rnr_retry` times the time of `min_rnr_timer`). None: for ever.
    pub not_ready: Option<Span>,
    /// How long nothing may be heard of the peer (`retry_cnt` times that of `timeout`). None: until the connection is given up.
    pub silent: Option<Span>,
}

/// What the news of a posted receive may take beyond two round-trip times.
const NEWS: Span = Span::from_millis(250);
/// What a path may be silent without being given up: several probes, each of which waits twice as long as the one before.
const LEAST_SILENCE: Span = Span::from_secs(3);
/// The same in round-trip times.
const SILENT_ROUNDS: u64 = 16;
/// How often queue pairs with sends outstanding are looked at.
const LOOKS: Span = Span::from_millis(20);

/// Queue pairs that are looked at.
#[derive(Default)]
pub(super) struct Watched {
    pairs: Vec<Pair>,
    /// When they are looked at next, while there are any.
    pub(super) at: Option<Time>,
}

struct Pair {
    number: u32,
    /// Since when its next send waits for a receive.
    not_ready: Option<Time>,
}

impl Fabric {
    /// Sets how long sends of a queue pair are tried.
    pub(crate) fn set_retries(&mut self, number: u32, retries: Retries) {
        if let Some(e) = self.entries.get_mut(&number) {
            e.retries = retries;
        }
    }

    /// Something was posted to a queue pair.
    pub(super) fn watch(&mut self, now: Time, number: u32) {
        let limited = self.entries.get(&number).is_some_and(|e| e.retries != Retries::default());
        if limited && !self.watched.pairs.iter().any(|w| w.number == number) {
            self.watched.pairs.push(Pair { number, not_ready: None });
            self.watched.at.get_or_insert(now + LOOKS);
        }
    }

    /// Ends queue pairs whose time is over.
    pub(super) fn end_overdue(&mut self, now: Time, endpoint: &mut Endpoint) {
        if self.watched.at.is_none_or(|at| at > now) {
            return;
        }
        let mut pairs = core::mem::take(&mut self.watched.pairs);
        pairs.retain_mut(|w| match self.overdue(now, endpoint, w) {
            Look::Done => false,
            Look::Again => true,
            Look::Overdue(status) => {
                self.fail(now, endpoint, w.number, status);
                false
            }
        });
        self.watched.at = (!pairs.is_empty()).then_some(now + LOOKS);
        self.watched.pairs = pairs;
    }

    fn overdue(&self, now: Time, endpoint: &mut Endpoint, w: &mut Pair) -> Look {
        let Some(e) = self.entries.get(&w.number) else { return Look::Done };
        let info = endpoint.adapter().query_qp(e.id);
        if info.is_none_or(|i| i.sends == 0 || i.state == QpState::Error) {
            return Look::Done;
        }
        let Link::Paired(conn) = e.link else { return Look::Again };
        let rtt = endpoint.srtt(conn).unwrap_or(Span::ZERO);
        if endpoint.adapter().waits_for_receive(e.id) {
            let since = *w.not_ready.get_or_insert(now);
            let over = |wait: Span| now.since(since) >= wait + NEWS + rtt * 2;
            if e.retries.not_ready.is_some_and(over) {
                return Look::Overdue(Status::ReceiverNotReady);
            }
        } else {
            w.not_ready = None;
        }
        let over = |wait: Span| {
            let most = wait.max(LEAST_SILENCE).max(rtt * SILENT_ROUNDS);
            endpoint.silent_since(conn).is_some_and(|since| now.since(since) >= most)
        };
        if e.retries.silent.is_some_and(over) { Look::Overdue(Status::TransportFailed) } else { Look::Again }
    }
}

enum Look {
    Done,
    Again,
    Overdue(Status),
}
