//! What the peer and the application are told when another algorithm decides than was agreed on: the policy is another one,
//! the path carries other signals, a program was stopped.

use super::{ConnEvent, Connection};
use crate::error::Violation;
use crate::negotiation::Reason;
use crate::negotiation::exchange::Ration;
use base::Time;
use std::collections::BTreeMap;
use wire::{CcRuns, CcTopic, Frame};

/// Frames that tell of changes at once, and more with each round trip: what changes faster is told when it has settled.
const AT_ONCE: u64 = 64;
const EACH_ROUND: u64 = 16;
/// Queue pairs that are not known here, as yet, of which the peer may have told something.
const MAX_AHEAD: usize = 1_024;

/// What a direction is sent with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Algorithm with parameters.
    pub chosen: String,
    /// What decides in its place; empty: nothing does.
    pub stand_in: String,
}

impl Runs {
    pub(super) fn of(chosen: &str) -> Runs {
        Runs { chosen: chosen.to_owned(), stand_in: String::new() }
    }

    /// What decides.
    pub fn deciding(&self) -> &str {
        if self.stand_in.is_empty() { &self.chosen } else { &self.stand_in }
    }

    fn deciding_name(&self) -> &str {
        self.deciding().split(':').next().unwrap_or_default().trim()
    }
}

/// How a flow's algorithm came to be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What decided before.
    pub from: String,
    /// What decides since.
    pub to: String,
    /// Why.
    pub why: Reason,
    /// Since when.
    pub at: Time,
}

/// What the peer said last of what it sends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What it sends with.
    pub runs: Runs,
    /// Why.
    pub why: Reason,
    /// The proposal that it follows, and its number behind that: what is newer counts.
    version: (u64, u64),
}

/// What was told, and what was heard, by queue pair; `None`: of all that have none of their own.
#[derive(Debug)]
pub(super) struct Telling {
    told: BTreeMap<Option<u16>, Runs>,
    heard: BTreeMap<Option<u16>, Heard>,
    /// Of the last frame.
    number: u64,
    /// When there may be something to tell.
    at: Option<Time>,
    own: Ration,
    theirs: Ration,
}

impl Telling {
    pub fn new() -> Telling {
        let ration = || Ration::new(AT_ONCE, EACH_ROUND);
        Telling {
            told: BTreeMap::new(),
            heard: BTreeMap::new(),
            number: 0,
            at: None,
            own: ration(),
            theirs: ration(),
        }
    }

    /// There may be something to tell.
    pub fn look(&mut self) {
        self.at = Some(Time::ZERO);
    }

    /// When to be asked.
    pub const fn due(&self) -> Option<Time> {
        self.at
    }

    /// The peer knows that this end sends with it, since both have agreed.
    pub fn agreed(&mut self, qpn: Option<u16>, spec: &str) {
        self.told.insert(qpn, Runs::of(spec));
        self.look();
    }

    /// What the peer sends with, as far as it has said.
    pub fn heard(&self, qpn: Option<u16>) -> Option<&Heard> {
        self.heard.get(&qpn).or_else(|| self.heard.get(&None))
    }

    /// Whether something was said of this queue pair alone.
    pub fn has_own(&self, qpn: u16) -> bool {
        self.heard.contains_key(&Some(qpn))
    }

    /// The peer sends with it, as both have agreed by the proposal of this number.
    pub fn hear_agreed(&mut self, qpn: Option<u16>, sequence: u64, spec: &str) {
        let version = (sequence, 0);
        if self.heard.get(&qpn).is_none_or(|h| h.version < version) {
            self.heard.insert(qpn, Heard { runs: Runs::of(spec), why: Reason::Agreed, version });
        }
    }

    /// A queue pair is gone.
    pub fn forget(&mut self, qpn: u16) {
        self.told.remove(&Some(qpn));
        self.heard.remove(&Some(qpn));
    }
}

impl Connection {
    /// Tells the peer and the layer above of algorithms that decide now where others did. Whether there may be events.
    pub fn tell_cc(&mut self, now: Time) -> bool {
        if !self.is_open() || !self.authorised {
            return false;
        }
        self.seek_wishes(now);
        if self.telling.at.is_none_or(|at| at > now) {
            return false;
        }
        self.telling.at = None;
        for flow in 0..self.flow_setups.len() {
            self.note_change(now, flow);
        }
        if self.peer_params.cc_terms.is_some() {
            self.tell_peer(now);
        }
        true
    }

    /// What a flow is sent with, by the path that carries most of it.
    fn runs(&self, flow: usize) -> Runs {
        let chosen = self.flow_setups[flow].spec.clone();
        let name = self.lanes[self.main_lane()].flows[flow].describe().0;
        let is_it = chosen.split(':').next().map(str::trim) == Some(name);
        Runs { chosen, stand_in: if is_it { String::new() } else { name.to_owned() } }
    }

    fn note_change(&mut self, now: Time, flow: usize) {
        let runs = self.runs(flow);
        let lack = self.lanes[self.main_lane()].stand_ins.lack(flow);
        let setup = &mut self.flow_setups[flow];
        let shown = core::mem::replace(&mut setup.shown, runs);
        let runs = &setup.shown;
        if shown.deciding() == runs.deciding() {
            return;
        }
        let why = match lack {
            _ if runs.stand_in.is_empty() && shown.chosen == runs.chosen => Reason::Back,
            _ if runs.stand_in.is_empty() => setup.why,
            Some(lack) => Reason::Lacks(lack),
            None => Reason::Program,
        };
        let (from, to) = (shown.deciding().to_owned(), runs.deciding().to_owned());
        setup.change = Some(Change { from: from.clone(), to: to.clone(), why, at: now });
        if why != Reason::Agreed {
            self.events.push_back(ConnEvent::CcReplaced { flow: flow as u8, from, to, why });
        }
    }

    fn tell_peer(&mut self, now: Time) {
        let round = self.lanes[self.main_lane()].rtt.smoothed();
        let own = self.scheduler.members().map(|(qpn, flow)| (Some(qpn), flow));
        let own = own.filter(|(qpn, flow)| *flow != 0 || self.telling.told.contains_key(qpn));
        let topics: Vec<_> = core::iter::once((None, 0)).chain(own).collect();
        for (qpn, flow) in topics {
            let setup = &self.flow_setups[usize::from(flow)];
            let told = self.telling.told.get(&qpn).or_else(|| self.telling.told.get(&None));
            if told == Some(&setup.shown) {
                continue;
            }
            if !self.telling.own.take_at(now, round) {
                self.telling.at = Some(now + round.max(base::Span::from_millis(1)));
                return;
            }
            self.telling.number += 1;
            let topic = CcTopic { qpn, of_server: self.side == crate::crypto::Side::Server };
            let runs = CcRuns {
                qpn,
                sequence: self.congestion.exchange.settled(topic),
                number: self.telling.number,
                reason: setup.change.as_ref().map_or(Reason::Policy, |c| c.why).code(),
                chosen: setup.shown.chosen.clone(),
                stand_in: setup.shown.stand_in.clone(),
            };
            let shown = setup.shown.clone();
            self.telling.told.insert(qpn, shown);
            self.push_frame(Frame::CcRuns(runs));
        }
    }

    /// Where a substitute may have come or gone, or a program been stopped.
    pub(super) fn look_who_decides(&mut self) {
        let lane = &self.lanes[self.main_lane()];
        let other =
            |(s, f): (&super::flows::FlowSetup, &cc::engine::Flow)| s.shown.deciding_name() != f.describe().0;
        if self.flow_setups.iter().zip(&lane.flows).any(other) {
            self.telling.look();
        }
    }

    pub(super) fn on_cc_runs(&mut self, now: Time, c: CcRuns) -> Result<(), Violation> {
        if self.peer_params.cc_terms.is_none() {
            return Err(Violation::protocol("a change of congestion control without terms"));
        }
        let round = self.lanes[self.main_lane()].rtt.smoothed();
        let known = c.qpn.is_none_or(|q| self.scheduler.contains(q));
        let t = &mut self.telling;
        let (before, version) = (t.heard(c.qpn).cloned(), (c.sequence, c.number));
        let late = t.heard.get(&c.qpn).is_some_and(|h| h.version >= version);
        let room = known || t.heard.len() < self.scheduler.len() + MAX_AHEAD;
        if late || !room {
            return Ok(());
        }
        let (qpn, why) = (c.qpn, Reason::of_code(c.reason));
        let runs = Runs { chosen: c.chosen, stand_in: c.stand_in };
        let from = before.map_or_else(String::new, |h| h.runs.deciding().to_owned());
        let to = runs.deciding().to_owned();
        t.heard.insert(qpn, Heard { runs, why, version });
        // Who tells more often is heard, but does not keep the application busy.
        if from != to && t.theirs.take_at(now, round) {
            self.events.push_back(ConnEvent::CcReplacedByPeer { qpn, from, to, why });
        }
        Ok(())
    }

    /// What the peer sends with, as far as it has said, on a queue pair or on all that have none of their own.
    pub fn heard_cc(&self, qpn: Option<u16>) -> Option<&Heard> {
        self.telling.heard(qpn)
    }
}
