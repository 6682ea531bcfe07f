//! Which congestion control both directions use: settled by the handshake, changed by proposals of either end.
//!
//! What this end sends with is swapped here; of what the peer sends with, this end knows the name.

use super::{ConnEvent, Connection, setup};
use crate::crypto::Side;
use crate::error::{Violation, code};
use crate::lane::flow::MAX_FLOWS;
use crate::negotiation::agree::{accepts, agree};
use crate::negotiation::exchange::{Exchange, Step};
use crate::negotiation::{check, offer, refusal};
use base::{Span, Time};
use std::collections::BTreeMap;
use wire::cc::CcTerms;
use wire::{CcOffer, CcPropose, CcTopic, Frame, Params};

/// What is agreed on, and what is being proposed.
#[derive(Debug)]
pub(super) struct Congestion {
    pub(super) exchange: Exchange,
    /// This end's terms.
    ours: CcTerms,
    /// What the peer sends with; `None`: it does not say, and does not negotiate.
    theirs: Option<String>,
    /// Of queue pairs that have an algorithm of their own, and of what was changed since. At most one for each topic of
    /// `exchange` and two for each queue pair.
    agreed: BTreeMap<CcTopic, String>,
    /// Proposals for this end's sending on a queue pair that have no answer: each may need a flow.
    reserved: usize,
}

impl Congestion {
    pub(super) fn new(side: Side, ours: CcTerms) -> Congestion {
        let exchange = Exchange::new(side);
        Congestion { exchange, ours, theirs: None, agreed: BTreeMap::new(), reserved: 0 }
    }
}

impl Connection {
    /// The parameters of both ends are known: what both directions begin with.
    pub(super) fn settle_cc(&mut self, peer: &Params) -> Result<(), Violation> {
        let Some(theirs) = &peer.cc_terms else { return Ok(()) };
        let ours = &self.congestion.ours;
        let client = self.side == Side::Client;
        let (c, s) = if client { (ours, theirs) } else { (theirs, ours) };
        let a = agree(c, s).map_err(|e| Violation::new(code::NO_COMMON_CC, e.to_string()))?;
        let (mine, other) = if client { (a.by_client, a.by_server) } else { (a.by_server, a.by_client) };
        check(&mine).map_err(|code| {
            let words =
                format!("it wishes {} for what this end sends: {}", mine.spec(), refusal::words(code));
            Violation::new(code::PARAMETERS, words)
        })?;
        self.options.cc = mine.spec();
        self.congestion.theirs = Some(other.spec());
        Ok(())
    }

    fn topic(&self, qpn: Option<u16>, sending: bool) -> CcTopic {
        CcTopic { qpn, of_server: sending == (self.side == Side::Server) }
    }

    fn is_ours(&self, topic: CcTopic) -> bool {
        topic.of_server == (self.side == Side::Server)
    }

    /// What is agreed on for this end's sending, or the peer's: on a queue pair, or on all that have none of their own.
    /// `None`: the peer does not negotiate, so that what it uses is not known.
    pub fn agreed_cc(&self, qpn: Option<u16>, sending: bool) -> Option<&str> {
        let of = |q| self.congestion.agreed.get(&self.topic(q, sending)).map(String::as_str);
        let first = if sending { Some(self.options.cc.as_str()) } else { self.congestion.theirs.as_deref() };
        qpn.and_then(|_| of(qpn)).or_else(|| of(None)).or(first)
    }

    /// A queue pair is opened with an algorithm of its own, in both directions; empty: with the connection's.
    pub(super) fn note_qp_cc(&mut self, qpn: u16, spec: &str) {
        if !spec.is_empty() {
            for sending in [true, false] {
                let topic = self.topic(Some(qpn), sending);
                self.congestion.agreed.insert(topic, spec.to_owned());
            }
        }
    }

    /// The queue pair is gone. Its numbers of proposals stay: another one may have its number.
    pub(super) fn forget_qp_cc(&mut self, qpn: u16) {
        for sending in [true, false] {
            let topic = self.topic(Some(qpn), sending);
            self.congestion.agreed.remove(&topic);
        }
    }

    /// Whether the policy of this end lets the peer open a queue pair with this algorithm, which both ends then use.
    pub fn admits_cc(&self, spec: &str) -> bool {
        offer(spec).is_ok_and(|o| self.may_be_asked(&o) && accepts(&self.congestion.ours, &o))
    }

    /// Whether the peer has said nothing in the handshake against being sent to with this algorithm.
    pub fn peer_takes_cc(&self, spec: &str) -> bool {
        let theirs = self.peer_params.cc_terms.as_ref();
        theirs.is_none_or(|t| offer(spec).is_ok_and(|o| accepts(t, &o)))
    }

    /// Whether the peer may have this end send with it.
    fn may_be_asked(&self, o: &CcOffer) -> bool {
        let own = self.congestion.ours.offers.first().is_some_and(|first| first.name == o.name);
        own || self.options.negotiation.allow.has(&o.name)
    }

    fn round(&self) -> Span {
        self.lanes[self.main_lane()].rtt.smoothed()
    }

    /// Proposes another algorithm, or other parameters, for this end's sending (`sending`) or the peer's, on a queue pair
    /// or on all that have none of their own. [`ConnEvent::CcChanged`] or [`ConnEvent::CcRefused`] follows.
    ///
    /// # Errors
    /// In words: not open, the peer does not negotiate or refuses this in advance, no such queue pair or algorithm, too
    /// many or too frequent proposals.
    pub fn propose_cc(
        &mut self,
        now: Time,
        qpn: Option<u16>,
        sending: bool,
        spec: &str,
    ) -> Result<(), String> {
        if !self.is_open() || !self.authorised {
            return Err("the connection is not open".to_owned());
        }
        let Some(theirs) = &self.peer_params.cc_terms else {
            return Err("the peer's program is older and does not negotiate congestion control".to_owned());
        };
        if qpn.is_some_and(|q| !self.scheduler.contains(q)) {
            return Err("the queue pair is not open: wait until it is ready".to_owned());
        }
        let offer = if sending { offer(spec)? } else { wanted(theirs, spec)? };
        if sending && !accepts(theirs, &offer) {
            return Err(format!("the peer will not have {} sent to it", offer.name));
        }
        let reserves = sending && qpn.is_some();
        if reserves && !self.has_flow_room() {
            return Err(refusal::words(refusal::NO_ROOM).to_owned());
        }
        let topic = self.topic(qpn, sending);
        let round = self.round();
        let p = self.congestion.exchange.propose(now, round, topic, offer).map_err(|e| e.to_string())?;
        self.congestion.reserved += usize::from(reserves);
        self.push_frame(Frame::CcPropose(p));
        Ok(())
    }

    /// Whether one more flow can be made beside those that are promised.
    pub(super) fn has_flow_room(&self) -> bool {
        self.lanes[0].flows.len() + self.congestion.reserved < MAX_FLOWS
    }

    pub(super) fn on_cc_propose(&mut self, now: Time, p: CcPropose) -> Result<(), Violation> {
        let round = self.round();
        let steps = self.congestion.exchange.on_propose(now, round, p)?;
        self.on_cc_steps(now, steps);
        Ok(())
    }

    pub(super) fn on_cc_answer(&mut self, now: Time, a: wire::CcAnswer) -> Result<(), Violation> {
        let round = self.round();
        let steps = self.congestion.exchange.on_answer(now, round, a)?;
        self.on_cc_steps(now, steps);
        Ok(())
    }

    fn on_cc_steps(&mut self, now: Time, steps: Vec<Step>) {
        for s in steps {
            match s {
                Step::Decide(p) => {
                    let code = self.decide_cc(&p).err().unwrap_or(0);
                    self.answer_cc(&p, code);
                }
                Step::Refuse(p) => self.answer_cc(&p, refusal::TOO_OFTEN),
                Step::Answered(topic, o, code) => self.on_own_settled(now, topic, &o, code),
                Step::Crossed(topic, o) => self.on_own_settled(now, topic, &o, refusal::CROSSED),
            }
        }
    }

    fn answer_cc(&mut self, p: &CcPropose, code: u64) {
        let a = self.congestion.exchange.decided(p, code);
        self.push_frame(Frame::CcAnswer(a));
        if code == 0 {
            self.note_agreed(p.topic, p.offer.spec(), true);
        }
    }

    fn note_agreed(&mut self, topic: CcTopic, spec: String, by_peer: bool) {
        let sending = self.is_ours(topic);
        self.congestion.agreed.insert(topic, spec.clone());
        self.events.push_back(ConnEvent::CcChanged { qpn: topic.qpn, sending, spec, by_peer });
    }

    /// Whether what the peer proposes can be; what concerns this end's sending holds at once.
    fn decide_cc(&mut self, p: &CcPropose) -> Result<(), u64> {
        if p.topic.qpn.is_some_and(|q| !self.scheduler.contains(q)) {
            return Err(refusal::NO_STREAM);
        }
        let given = |t: &CcTerms| p.offer.needs & !t.echoes == 0;
        if !self.is_ours(p.topic) {
            let ours = &self.congestion.ours;
            return match accepts(ours, &p.offer) {
                true => Ok(()),
                false if given(ours) => Err(refusal::FORBIDDEN),
                false => Err(refusal::SIGNALS),
            };
        }
        check(&p.offer)?;
        if !self.may_be_asked(&p.offer) {
            return Err(refusal::FORBIDDEN);
        }
        if !self.peer_params.cc_terms.as_ref().is_some_and(given) {
            return Err(refusal::SIGNALS);
        }
        self.send_with(p.topic.qpn, &p.offer.spec()).map_err(|_| refusal::NO_ROOM)
    }

    /// This end's proposal was answered, or made void.
    fn on_own_settled(&mut self, now: Time, topic: CcTopic, o: &CcOffer, code: u64) {
        let (qpn, sending, spec) = (topic.qpn, self.is_ours(topic), o.spec());
        self.congestion.reserved -= usize::from(sending && qpn.is_some());
        if code == 0 && (!sending || self.send_with(qpn, &spec).is_ok()) {
            return self.note_agreed(topic, spec, false);
        }
        if code == 0 {
            // It was unloaded meanwhile: the peer is to know what holds instead. If that cannot be said now, the next
            // proposal says it.
            let present = self.agreed_cc(qpn, true).map(str::to_owned);
            let _ = present.map(|spec| self.propose_cc(now, qpn, true, &spec));
        }
        let code = if code == 0 { refusal::UNKNOWN } else { code };
        self.events.push_back(ConnEvent::CcRefused { qpn, sending, spec, code });
    }

    /// What a queue pair sends with from now on, or all that have no algorithm of their own.
    fn send_with(&mut self, qpn: Option<u16>, spec: &str) -> Result<(), String> {
        let Some(qpn) = qpn else {
            self.swap_algorithm(0, spec)?;
            self.options.cc = spec.to_owned();
            return Ok(());
        };
        let flow = self.flow_for(Some(qpn), spec)?;
        self.scheduler.move_to(qpn, flow);
        Ok(())
    }

    /// The flow of queue pairs that use this algorithm: one for all of them, so that naming an algorithm again takes no
    /// larger share of the path. Without one, that of `qpn` if nobody else uses it, else one that nobody uses, else a new
    /// one.
    pub(super) fn flow_for(&mut self, qpn: Option<u16>, spec: &str) -> Result<u8, String> {
        if let Some(i) = self.flow_specs.iter().position(|s| s == spec) {
            return Ok(i as u8 + 1);
        }
        let own = qpn.and_then(|q| self.scheduler.flow(q)).filter(|f| *f > 0);
        let own = own.filter(|f| self.scheduler.members_of(*f) == 1);
        let flows = self.lanes[0].flows.len() as u8;
        if let Some(f) = own.or_else(|| (1..flows).find(|f| self.scheduler.members_of(*f) == 0)) {
            self.swap_algorithm(f, spec)?;
            spec.clone_into(&mut self.flow_specs[usize::from(f) - 1]);
            return Ok(f);
        }
        if !self.has_flow_room() {
            return Err(format!("{MAX_FLOWS} algorithms are in use on this connection already: share one"));
        }
        self.new_flow(spec)
    }

    /// A flow goes on under another algorithm, on each lane with what it has found there.
    fn swap_algorithm(&mut self, flow: u8, spec: &str) -> Result<(), String> {
        let i = usize::from(flow);
        let mut made = Vec::with_capacity(self.lanes.len());
        for k in 0..self.lanes.len() {
            let found = self.lanes[k].flows[i].found(self.lanes[k].rtt.min());
            let info = cc::PathInfo { remembered: found, ..self.path_info(k) };
            made.push(setup::algorithm(spec, &info, self.rng.fork())?);
        }
        for (l, a) in self.lanes.iter_mut().zip(made) {
            l.flows[i].set_algorithm(a);
        }
        Ok(())
    }
}

/// What the peer is to send with: it may know algorithms that this end does not.
fn wanted(theirs: &CcTerms, spec: &str) -> Result<CcOffer, String> {
    let (name, params) = spec.split_once(':').unwrap_or((spec, ""));
    match theirs.offers.iter().find(|o| o.name == name) {
        Some(o) if params.len() <= wire::cc::MAX_CC_PARAMS => {
            Ok(CcOffer { params: params.to_owned(), ..o.clone() })
        }
        _ => offer(spec),
    }
}
