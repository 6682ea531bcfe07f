//! Proposes to the peer, best first, the congestion control that this end prefers it to send with, when a preference changes
//! during the connection or differs for the queue pairs of one flow.
//!
//! The handshake settles what the connection begins with; that is not asked for again. Proposals are those of an application
//! ([`super::congestion`]) in all else: the same numbers, and the same limits of how many and how often.

use super::{ConnEvent, Connection};
use crate::config::CcNegotiation;
use crate::negotiation::agree::accepts;
use crate::negotiation::proposals::ProposeError;
use crate::negotiation::{preferences, refusal};
use base::{Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::cc::CcTerms;
use wire::{CcOffer, CcTopic, Frame};

/// Proposals of one preference that cross others or come too early, before it is given up.
const MAX_RETRIES: u8 = 16;

/// The preferences for the peer's congestion control on the queue pairs of a flow, and what the peer may use there.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerPreferences {
    pub configured: CcNegotiation,
    /// The terms for the peer, without offers.
    pub terms: CcTerms,
}

impl PeerPreferences {
    fn same_for_peer(&self, other: &PeerPreferences) -> bool {
        let of = |w: &PeerPreferences| {
            (w.configured.preferred_only, w.terms.preferences.clone(), w.configured.preferred.clone())
        };
        of(self) == of(other)
    }
}

/// The preferences not yet proposed for one queue pair, or for all without a flow of their own.
#[derive(Debug, Default)]
struct PreferenceSearch {
    /// Best first; `None`: not looked at yet.
    left: Option<VecDeque<String>>,
    /// The proposal that has no answer yet.
    asked: Option<String>,
    retries: u8,
}

/// The searches in progress: at most one for each queue pair, and one for the connection.
#[derive(Debug, Default)]
pub(super) struct PreferenceSearches {
    searches: BTreeMap<Option<u16>, PreferenceSearch>,
    /// When there may be something to propose.
    at: Option<Time>,
}

impl PreferenceSearches {
    /// When to be asked.
    pub const fn next_timeout(&self) -> Option<Time> {
        self.at
    }

    fn begin(&mut self, qpn: Option<u16>) {
        let s = self.searches.entry(qpn).or_default();
        (s.left, s.retries) = (None, 0);
        self.at = Some(Time::ZERO);
    }

    /// A queue pair is gone.
    pub fn forget(&mut self, qpn: u16) {
        self.searches.remove(&Some(qpn));
    }
}

/// Whether what the peer sends with is what is preferred: a name alone, or a name with its parameters.
fn satisfies(runs: &str, preferred: &str) -> bool {
    let split = |s: &str| {
        let (name, params) = s.split_once(':').unwrap_or((s, ""));
        (name.trim().to_owned(), params.trim().to_owned())
    };
    let ((name, params), (wanted, with)) = (split(runs), split(preferred));
    name == wanted && (with.is_empty() || with == params)
}

impl Connection {
    /// Sets the preferences for the peer's congestion control on the queue pairs of a flow, and what the peer may use
    /// there; `also`, `prefer_own` and the offers of the handshake are unchanged. A preference that differs from the last one, or
    /// from the connection's, is proposed as soon as the limits allow; [`ConnEvent::CcAnswered`] or
    /// [`ConnEvent::PreferenceRefused`] follows each proposal. Of several changes within a round trip only the last is
    /// sure to be proposed.
    ///
    /// # Errors
    /// A preference that cannot be, or too many: in words; the previous preferences stay.
    pub fn set_peer_cc_preferences(&mut self, flow: u8, n: &CcNegotiation) -> Result<(), String> {
        let Some(setup) = self.flow_setups.get_mut(usize::from(flow)) else { return Ok(()) };
        if setup.preferences.configured == *n {
            return Ok(());
        }
        let terms = CcTerms {
            only: n.preferred_only,
            echoes: crate::negotiation::PROVIDED_SIGNALS,
            preferences: preferences(n)?,
            ..CcTerms::default()
        };
        let new = PeerPreferences { configured: n.clone(), terms };
        let same = new.same_for_peer(&setup.preferences);
        setup.preferences = Arc::new(new);
        if same {
            return Ok(());
        }
        if flow == 0 {
            self.congestion.preference_searches.begin(None);
        }
        let own = self.scheduler.members().filter(|(_, f)| *f == flow);
        for (qpn, _) in own.filter(|(qpn, _)| flow > 0 || self.cc_notifications.has_own(*qpn)) {
            self.congestion.preference_searches.begin(Some(qpn));
        }
        Ok(())
    }

    /// A queue pair has joined a flow, which may prefer another than the connection.
    pub(super) fn start_preference_search(&mut self, qpn: u16, flow: u8) {
        let of = |f: u8| self.flow_setups.get(usize::from(f)).map(|s| &s.preferences);
        if let (Some(own), Some(first)) = (of(flow), of(0))
            && !own.same_for_peer(first)
        {
            self.congestion.preference_searches.begin(Some(qpn));
        }
    }

    /// The preferences for a queue pair, or for all without a flow of their own.
    pub(super) fn peer_preferences_on(&self, qpn: Option<u16>) -> &PeerPreferences {
        let flow = usize::from(self.flow_of_own(qpn).unwrap_or(0));
        &self.flow_setups.get(flow).unwrap_or(&self.flow_setups[0]).preferences
    }

    /// Proposes the next preference of each search, as far as the limits of proposals allow.
    pub(super) fn propose_preferences(&mut self, now: Time) {
        if self.congestion.preference_searches.at.is_none_or(|at| at > now) {
            return;
        }
        self.congestion.preference_searches.at = None;
        let open = self.congestion.preference_searches.searches.iter().filter(|(_, s)| s.asked.is_none());
        let all: Vec<_> = open.map(|(qpn, _)| *qpn).collect();
        for qpn in all {
            let Err(why) = self.propose_next(now, qpn) else { continue };
            self.congestion.preference_searches.at = Some(now + self.round().max(Span::from_millis(1)));
            if why != ProposeError::Unanswered {
                return;
            }
        }
    }

    /// Proposes the next preference of one search, and removes the search when none is left.
    fn propose_next(&mut self, now: Time, qpn: Option<u16>) -> Result<(), ProposeError> {
        let here = qpn.is_none_or(|q| self.scheduler.contains(q));
        let left = self.congestion.preference_searches.searches.get_mut(&qpn).and_then(|s| s.left.take());
        let mut left = left.unwrap_or_else(|| self.candidates(qpn));
        let runs = self.cc_notifications.peer_cc(qpn).map(|h| h.runs.chosen.clone());
        // It may have changed to one of them meanwhile.
        if let Some(k) = left.iter().position(|w| runs.as_deref().is_some_and(|r| satisfies(r, w))) {
            left.truncate(k);
        }
        let wanted = left.front().filter(|_| here).and_then(|spec| self.offer_for_peer(spec));
        let Some(offer) = wanted else {
            self.congestion.preference_searches.searches.remove(&qpn);
            return Ok(());
        };
        let (topic, round, spec) = (self.topic(qpn, false), self.round(), offer.spec());
        let proposed = self.congestion.proposals.propose(now, round, topic, offer);
        if proposed == Err(ProposeError::TooManyTopics) {
            self.congestion.preference_searches.searches.remove(&qpn);
            return Ok(());
        }
        if let Some(s) = self.congestion.preference_searches.searches.get_mut(&qpn) {
            s.left = Some(left);
            s.asked = proposed.is_ok().then_some(spec);
        }
        self.push_frame(Frame::CcPropose(proposed?));
        Ok(())
    }

    /// Algorithms that are better for a queue pair than what the peer uses there, best first: the preferences; and where
    /// the present one is refused by now, whatever the peer has offered that is not refused.
    fn candidates(&self, qpn: Option<u16>) -> VecDeque<String> {
        let w = self.peer_preferences_on(qpn);
        let (Some(heard), Some(theirs)) = (self.cc_notifications.peer_cc(qpn), &self.peer_params.cc_terms)
        else {
            return VecDeque::new();
        };
        let runs = heard.runs.chosen.as_str();
        let takes = |spec: &str| self.offer_for_peer(spec).is_some_and(|o| accepts(&w.terms, &o));
        let better = w.configured.preferred.iter().take_while(|preferred| !satisfies(runs, preferred));
        let mut all: VecDeque<String> = better.filter(|preferred| takes(preferred)).cloned().collect();
        if !takes(runs) {
            let others = theirs.offers.iter().filter(|o| accepts(&w.terms, o)).map(CcOffer::spec);
            let others: Vec<String> = others.filter(|o| !all.iter().any(|a| satisfies(o, a))).collect();
            all.extend(others);
        }
        all
    }

    fn offer_for_peer(&self, spec: &str) -> Option<CcOffer> {
        let theirs = self.peer_params.cc_terms.as_ref()?;
        super::congestion::wanted(theirs, spec).ok()
    }

    /// A proposal was answered. False: it is not one of these.
    pub(super) fn on_preference_answered(
        &mut self,
        now: Time,
        topic: CcTopic,
        spec: &str,
        code: u64,
    ) -> bool {
        let again_at = now + self.round().max(Span::from_millis(1));
        let ours = topic.of_server == (self.side == crate::crypto::Side::Server);
        let search = self.congestion.preference_searches.searches.get_mut(&topic.qpn);
        let Some(s) = search.filter(|s| !ours && s.asked.as_deref() == Some(spec)) else { return false };
        s.asked = None;
        let later = matches!(code, refusal::CROSSED | refusal::TOO_OFTEN | refusal::NO_QUEUE_PAIR);
        if later && s.retries < MAX_RETRIES {
            s.retries += 1;
            self.congestion.preference_searches.at = Some(again_at);
            return true;
        }
        // A preference set meanwhile is proposed by its own search.
        if let Some(left) = &mut s.left
            && code != 0
        {
            left.pop_front();
        }
        self.congestion.preference_searches.at = Some(now);
        if code != 0 {
            let (qpn, spec) = (topic.qpn, spec.to_owned());
            self.events.push_back(ConnEvent::PreferenceRefused { qpn, spec, code });
        }
        code != 0
    }
}
