//! Notifies the peer and the application when a flow's congestion control changes without a proposal: by policy, by a
//! fallback for missing signals, or because a loaded program was stopped.

use super::{ConnEvent, Connection};
use crate::error::Violation;
use crate::negotiation::CcChangeReason;
use crate::negotiation::proposals::RateLimit;
use base::Time;
use std::collections::BTreeMap;
use wire::{CcRuns, CcTopic, Frame};

/// Frames that tell of changes at once, and more with each round trip: what changes faster is told when it has settled.
const AT_ONCE: u64 = 64;
const EACH_ROUND: u64 = 16;
/// Queue pairs that are not known here, as yet, of which the peer may have told something.
const MAX_AHEAD: usize = 1_024;

/// The congestion control that one direction uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CcInUse {
    /// The chosen algorithm with its parameters.
    pub chosen: String,
    /// The fallback in effect; empty when there is none.
    pub fallback: String,
}

impl CcInUse {
    pub(super) fn of(chosen: &str) -> CcInUse {
        CcInUse { chosen: chosen.to_owned(), fallback: String::new() }
    }

    /// The algorithm in effect: the fallback if there is one, else the chosen one.
    pub fn effective(&self) -> &str {
        if self.fallback.is_empty() { &self.chosen } else { &self.fallback }
    }

    fn effective_name(&self) -> &str {
        self.effective().split(':').next().unwrap_or_default().trim()
    }
}

/// The last change of a flow's algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CcChange {
    /// The algorithm in effect before.
    pub from: String,
    /// The algorithm in effect since.
    pub to: String,
    /// Why.
    pub why: CcChangeReason,
    /// Since when.
    pub at: Time,
}

/// What the peer last reported about the congestion control of its sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPreferences {
    /// The congestion control that the peer sends with.
    pub runs: CcInUse,
    /// Why.
    pub why: CcChangeReason,
    /// The proposal that it follows, and its number behind that: what is newer counts.
    version: (u64, u64),
}

/// What was reported to the peer and by the peer, per queue pair; `None` stands for all queue pairs without a flow of
/// their own.
#[derive(Debug)]
pub(super) struct CcNotifications {
    sent: BTreeMap<Option<u16>, CcInUse>,
    peer: BTreeMap<Option<u16>, PeerPreferences>,
    /// Of the last frame.
    number: u64,
    /// When there may be something to tell.
    at: Option<Time>,
    own: RateLimit,
    theirs: RateLimit,
}

impl CcNotifications {
    pub fn new() -> CcNotifications {
        let ration = || RateLimit::new(AT_ONCE, EACH_ROUND);
        CcNotifications {
            sent: BTreeMap::new(),
            peer: BTreeMap::new(),
            number: 0,
            at: None,
            own: ration(),
            theirs: ration(),
        }
    }

    /// Marks that there may be a change to report.
    pub fn mark_pending(&mut self) {
        self.at = Some(Time::ZERO);
    }

    /// When to check for changes next.
    pub const fn next_timeout(&self) -> Option<Time> {
        self.at
    }

    /// The peer knows that this end sends with it, since both have agreed.
    pub fn agreed(&mut self, qpn: Option<u16>, spec: &str) {
        self.sent.insert(qpn, CcInUse::of(spec));
        self.mark_pending();
    }

    /// What the peer last reported for a queue pair.
    pub fn peer_cc(&self, qpn: Option<u16>) -> Option<&PeerPreferences> {
        self.peer.get(&qpn).or_else(|| self.peer.get(&None))
    }

    /// Whether something was said of this queue pair alone.
    pub fn has_own(&self, qpn: u16) -> bool {
        self.peer.contains_key(&Some(qpn))
    }

    /// The peer sends with it, as both have agreed by the proposal of this number.
    pub fn on_peer_agreed(&mut self, qpn: Option<u16>, sequence: u64, spec: &str) {
        let version = (sequence, 0);
        if self.peer.get(&qpn).is_none_or(|h| h.version < version) {
            self.peer.insert(
                qpn,
                PeerPreferences { runs: CcInUse::of(spec), why: CcChangeReason::Agreed, version },
            );
        }
    }

    /// A queue pair is gone.
    pub fn forget(&mut self, qpn: u16) {
        self.sent.remove(&Some(qpn));
        self.peer.remove(&Some(qpn));
    }
}

impl Connection {
    /// Reports changes of algorithms to the peer and to the layer above. Returns whether there may be events.
    pub fn notify_cc_changes(&mut self, now: Time) -> bool {
        if !self.is_open() || !self.authorised {
            return false;
        }
        self.propose_preferences(now);
        if self.cc_notifications.at.is_none_or(|at| at > now) {
            return false;
        }
        self.cc_notifications.at = None;
        for flow in 0..self.flow_setups.len() {
            self.record_cc_change(now, flow);
        }
        if self.peer_params.cc_terms.is_some() {
            self.notify_peer_of_cc(now);
        }
        true
    }

    /// The congestion control of a flow on the path that carries most of it.
    fn cc_in_use(&self, flow: usize) -> CcInUse {
        let chosen = self.flow_setups[flow].spec.clone();
        let name = self.lanes[self.main_lane()].flows[flow].describe().0;
        let is_it = chosen.split(':').next().map(str::trim) == Some(name);
        CcInUse { chosen, fallback: if is_it { String::new() } else { name.to_owned() } }
    }

    fn record_cc_change(&mut self, now: Time, flow: usize) {
        let runs = self.cc_in_use(flow);
        let lack = self.lanes[self.main_lane()].fallbacks.lack(flow);
        let setup = &mut self.flow_setups[flow];
        let shown = core::mem::replace(&mut setup.last_reported, runs);
        let runs = &setup.last_reported;
        if shown.effective() == runs.effective() {
            return;
        }
        let why = match lack {
            _ if runs.fallback.is_empty() && shown.chosen == runs.chosen => CcChangeReason::SignalsRestored,
            _ if runs.fallback.is_empty() => setup.why,
            Some(lack) => CcChangeReason::Lacks(lack),
            None => CcChangeReason::Program,
        };
        let (from, to) = (shown.effective().to_owned(), runs.effective().to_owned());
        setup.change = Some(CcChange { from: from.clone(), to: to.clone(), why, at: now });
        if why != CcChangeReason::Agreed {
            self.events.push_back(ConnEvent::CcReplaced { flow: flow as u8, from, to, why });
        }
    }

    fn notify_peer_of_cc(&mut self, now: Time) {
        let round = self.lanes[self.main_lane()].rtt.smoothed();
        let own = self.scheduler.members().map(|(qpn, flow)| (Some(qpn), flow));
        let own = own.filter(|(qpn, flow)| *flow != 0 || self.cc_notifications.sent.contains_key(qpn));
        let topics: Vec<_> = core::iter::once((None, 0)).chain(own).collect();
        for (qpn, flow) in topics {
            let setup = &self.flow_setups[usize::from(flow)];
            let told = self.cc_notifications.sent.get(&qpn).or_else(|| self.cc_notifications.sent.get(&None));
            if told == Some(&setup.last_reported) {
                continue;
            }
            if !self.cc_notifications.own.take_at(now, round) {
                self.cc_notifications.at = Some(now + round.max(base::Span::from_millis(1)));
                return;
            }
            self.cc_notifications.number += 1;
            let topic = CcTopic { qpn, of_server: self.side == crate::crypto::Side::Server };
            let runs = CcRuns {
                qpn,
                sequence: self.congestion.proposals.settled(topic),
                number: self.cc_notifications.number,
                reason: setup.change.as_ref().map_or(CcChangeReason::Policy, |c| c.why).code(),
                chosen: setup.last_reported.chosen.clone(),
                fallback: setup.last_reported.fallback.clone(),
            };
            let shown = setup.last_reported.clone();
            self.cc_notifications.sent.insert(qpn, shown);
            self.push_frame(Frame::CcRuns(runs));
        }
    }

    /// Where a fallback may have come or gone, or a program been stopped.
    pub(super) fn check_cc_changes(&mut self) {
        let lane = &self.lanes[self.main_lane()];
        let other = |(s, f): (&super::flows::FlowSetup, &cc::engine::Flow)| {
            s.last_reported.effective_name() != f.describe().0
        };
        if self.flow_setups.iter().zip(&lane.flows).any(other) {
            self.cc_notifications.mark_pending();
        }
    }

    pub(super) fn on_cc_runs(&mut self, now: Time, c: CcRuns) -> Result<(), Violation> {
        if self.peer_params.cc_terms.is_none() {
            return Err(Violation::protocol("a change of congestion control without terms"));
        }
        let round = self.lanes[self.main_lane()].rtt.smoothed();
        let known = c.qpn.is_none_or(|q| self.scheduler.contains(q));
        let t = &mut self.cc_notifications;
        let (before, version) = (t.peer_cc(c.qpn).cloned(), (c.sequence, c.number));
        let late = t.peer.get(&c.qpn).is_some_and(|h| h.version >= version);
        let room = known || t.peer.len() < self.scheduler.len() + MAX_AHEAD;
        if late || !room {
            return Ok(());
        }
        let (qpn, why) = (c.qpn, CcChangeReason::of_code(c.reason));
        let runs = CcInUse { chosen: c.chosen, fallback: c.fallback };
        let from = before.map_or_else(String::new, |h| h.runs.effective().to_owned());
        let to = runs.effective().to_owned();
        t.peer.insert(qpn, PeerPreferences { runs, why, version });
        // Who tells more often is heard, but does not keep the application busy.
        if from != to && t.theirs.take_at(now, round) {
            self.events.push_back(ConnEvent::CcReplacedByPeer { qpn, from, to, why });
        }
        Ok(())
    }

    /// What the peer last reported for a queue pair, or for all without a flow of their own.
    pub fn peer_cc_in_use(&self, qpn: Option<u16>) -> Option<&PeerPreferences> {
        self.cc_notifications.peer_cc(qpn)
    }
}
