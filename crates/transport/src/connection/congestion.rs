//! Which congestion control each direction uses: negotiated in the handshake, changed by proposals of either end.
//!
//! Whether this end's sending can change as the peer proposes is decided above, where policies are; of what the peer sends
//! with, this end knows the name.

use super::peer_preferences::{PeerPreferences, PreferenceSearches};
use super::{ConnEvent, Connection};
use crate::crypto::Side;
use crate::error::{Violation, code};
use crate::lane::MAX_FLOWS;
use crate::negotiation::agree::{accepts, agree};
use crate::negotiation::proposals::{Proposals, Step};
use crate::negotiation::{Allow, check, offer, refusal};
use base::{Span, Time};
use std::sync::Arc;
use wire::cc::CcTerms;
use wire::{CcAnswer, CcOffer, CcPropose, CcTopic, Frame, Params};

/// The agreed congestion control and the proposals under way.
#[derive(Debug)]
pub(super) struct Congestion {
    pub(super) proposals: Proposals,
    /// This end's terms.
    ours: CcTerms,
    /// Proposals for this end's sending on a queue pair that have no answer: each may need a flow.
    reserved: usize,
    /// Preferences for the peer's sending that are still to be proposed.
    pub(super) preference_searches: PreferenceSearches,
}

impl Congestion {
    pub(super) fn new(side: Side, ours: CcTerms) -> Congestion {
        let proposals = Proposals::new(side);
        Congestion { proposals, ours, reserved: 0, preference_searches: PreferenceSearches::default() }
    }
}

impl Connection {
    /// Sets the terms that this end sends in the handshake.
    pub(super) fn set_cc_terms(&mut self, ours: CcTerms) {
        let terms = CcTerms { offers: Vec::new(), ..ours.clone() };
        let configured = self.options.negotiation.clone();
        self.flow_setups[0].preferences = Arc::new(PeerPreferences { configured, terms });
        self.congestion = Congestion::new(self.side, ours);
    }

    /// The parameters of both ends are known: what both directions begin with.
    pub(super) fn negotiate_cc(&mut self, peer: &Params) -> Result<(), Violation> {
        let Some(theirs) = &peer.cc_terms else { return Ok(()) };
        let ours = &self.congestion.ours;
        let client = self.side == Side::Client;
        let (c, s) = if client { (ours, theirs) } else { (theirs, ours) };
        let a = agree(c, s).map_err(|e| Violation::new(code::NO_COMMON_CC, e.to_string()))?;
        let (mine, other) = if client { (a.by_client, a.by_server) } else { (a.by_server, a.by_client) };
        check(&mine).map_err(|code| {
            let words =
                format!("it prefers {} for what this end sends: {}", mine.spec(), refusal::description(code));
            Violation::new(code::PARAMETERS, words)
        })?;
        self.flow_setups[0].begin_with(&mine.spec());
        self.note_programs();
        self.cc_notifications.agreed(None, &mine.spec());
        self.cc_notifications.on_peer_agreed(None, 0, &other.spec());
        Ok(())
    }

    pub(super) fn topic(&self, qpn: Option<u16>, sending: bool) -> CcTopic {
        CcTopic { qpn, of_server: sending == (self.side == Side::Server) }
    }

    fn is_ours(&self, topic: CcTopic) -> bool {
        topic.of_server == (self.side == Side::Server)
    }

    /// The congestion control that this end sends with, or the peer as far as it has reported, on a queue pair or on
    /// all without a flow of their own. `None`: the peer does not negotiate, or there is no such queue pair.
    pub fn agreed_cc(&self, qpn: Option<u16>, sending: bool) -> Option<&str> {
        if sending {
            return self.algorithm(self.flow_of_own(qpn)?);
        }
        self.cc_notifications.peer_cc(qpn).map(|h| h.runs.chosen.as_str())
    }

    /// A queue pair is opened with an algorithm of its own, which the peer uses on it as well; empty: with the connection's.
    pub fn set_peer_cc(&mut self, qpn: u16, spec: &str) {
        if !spec.is_empty() && self.peer_params.cc_terms.is_some() {
            self.cc_notifications.on_peer_agreed(Some(qpn), 0, spec);
            self.cc_notifications.agreed(Some(qpn), spec);
        } else {
            self.cc_notifications.mark_pending();
        }
    }

    /// The queue pair is gone. Its numbers of proposals stay: another one may have its number.
    pub(super) fn forget_qp_cc(&mut self, qpn: u16) {
        self.cc_notifications.forget(qpn);
        self.congestion.preference_searches.forget(qpn);
    }

    /// Whether the policy of this end lets the peer open a queue pair with this algorithm, which both ends then use.
    pub fn accepts_cc_from_peer(&self, spec: &str) -> bool {
        let allow = &self.options.negotiation.allow;
        offer(spec)
            .is_ok_and(|o| self.may_be_asked(&o, allow) && accepts(&self.peer_preferences_on(None).terms, &o))
    }

    /// Whether the peer has said nothing in the handshake against being sent to with this algorithm.
    pub fn peer_accepts_cc(&self, spec: &str) -> bool {
        let theirs = self.peer_params.cc_terms.as_ref();
        theirs.is_none_or(|t| offer(spec).is_ok_and(|o| accepts(t, &o)))
    }

    /// Whether the peer may have this end send with it, where this is lent to it.
    fn may_be_asked(&self, o: &CcOffer, allow: &Allow) -> bool {
        let named = 1 + self.options.negotiation.also.len();
        let own = self.congestion.ours.offers.iter().take(named).any(|own| own.name == o.name);
        own || allow.contains(&o.name)
    }

    pub(super) fn round(&self) -> Span {
        self.lanes[self.main_lane()].rtt.smoothed()
    }

    /// Proposes another algorithm, or other parameters, for this end's sending (`sending`) or the peer's, on a queue pair
    /// or on all that have none of their own. [`ConnEvent::CcAnswered`] follows.
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
            return Err(refusal::description(refusal::TOO_MANY_ALGORITHMS).to_owned());
        }
        let topic = self.topic(qpn, sending);
        let round = self.round();
        let p = self.congestion.proposals.propose(now, round, topic, offer).map_err(|e| e.to_string())?;
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
        let steps = self.congestion.proposals.on_propose(now, round, p)?;
        self.on_cc_steps(now, steps);
        Ok(())
    }

    pub(super) fn on_cc_answer(&mut self, now: Time, a: CcAnswer) -> Result<(), Violation> {
        let round = self.round();
        let steps = self.congestion.proposals.on_answer(now, round, a)?;
        self.on_cc_steps(now, steps);
        Ok(())
    }

    fn on_cc_steps(&mut self, now: Time, steps: Vec<Step>) {
        for s in steps {
            match s {
                Step::Decide(p) => match self.check_cc_proposal(&p) {
                    Ok(()) if self.is_ours(p.topic) => self.events.push_back(ConnEvent::CcWanted(p)),
                    verdict => self.answer_cc(&p, verdict.err().unwrap_or(0)),
                },
                Step::Refuse(p) => self.answer_cc(&p, refusal::TOO_OFTEN),
                Step::Answered(topic, o, code) => self.on_own_answered(now, topic, &o, code),
                Step::Crossed(topic, o) => self.on_own_answered(now, topic, &o, refusal::CROSSED),
            }
        }
    }

    /// Answers [`ConnEvent::CcWanted`], before anything else of the peer's is handled: zero when what this end sends is
    /// changed already, else a code of [`refusal`].
    pub fn answer_cc(&mut self, p: &CcPropose, code: u64) {
        let a = self.congestion.proposals.decided(p, code);
        self.push_frame(Frame::CcAnswer(a));
        if code != 0 {
            return;
        }
        let (qpn, spec) = (p.topic.qpn, p.offer.spec());
        if self.is_ours(p.topic) {
            self.cc_notifications.agreed(qpn, &spec);
        } else {
            self.cc_notifications.on_peer_agreed(qpn, p.sequence, &spec);
            self.events.push_back(ConnEvent::CcOfPeer { qpn, spec });
        }
    }

    /// Whether what the peer proposes can be, as far as is known here.
    fn check_cc_proposal(&self, p: &CcPropose) -> Result<(), u64> {
        if p.topic.qpn.is_some_and(|q| !self.scheduler.contains(q)) {
            return Err(refusal::NO_QUEUE_PAIR);
        }
        let given = |t: &CcTerms| p.offer.needs & !t.echoes == 0;
        if !self.is_ours(p.topic) {
            let ours = &self.peer_preferences_on(p.topic.qpn).terms;
            return match accepts(ours, &p.offer) {
                true => Ok(()),
                false if given(ours) => Err(refusal::FORBIDDEN),
                false => Err(refusal::SIGNALS),
            };
        }
        check(&p.offer)?;
        if !self.may_be_asked(&p.offer, &self.peer_preferences_on(p.topic.qpn).configured.allow) {
            return Err(refusal::FORBIDDEN);
        }
        if !self.peer_params.cc_terms.as_ref().is_some_and(given) {
            return Err(refusal::SIGNALS);
        }
        Ok(())
    }

    /// This end's proposal was answered, or made void.
    fn on_own_answered(&mut self, now: Time, topic: CcTopic, o: &CcOffer, code: u64) {
        let (qpn, sending, spec) = (topic.qpn, self.is_ours(topic), o.spec());
        self.congestion.reserved -= usize::from(sending && qpn.is_some());
        if code == 0 && sending {
            self.cc_notifications.agreed(qpn, &spec);
        } else if code == 0 {
            self.cc_notifications.on_peer_agreed(qpn, self.congestion.proposals.settled(topic), &spec);
        }
        if !self.on_preference_answered(now, topic, &spec, code) {
            self.events.push_back(ConnEvent::CcAnswered { qpn, sending, spec, code });
        }
    }
}

/// An offer for the peer's sending: it may know algorithms that this end does not.
pub(super) fn wanted(theirs: &CcTerms, spec: &str) -> Result<CcOffer, String> {
    let (name, params) = spec.split_once(':').unwrap_or((spec, ""));
    match theirs.offers.iter().find(|o| o.name == name) {
        Some(o) if params.len() <= wire::cc::MAX_CC_PARAMS => {
            Ok(CcOffer { params: params.to_owned(), ..o.clone() })
        }
        _ => offer(spec),
    }
}
