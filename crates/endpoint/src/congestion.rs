//! Changes congestion control during a connection, by agreement with the peer.

use crate::app::{ConnId, Event};
use crate::config::ConnectError;
use crate::flow_policy::key_of;
use crate::{Endpoint, QpId};
use base::Time;
use cc::platform::{Choice, PeerTerms, Traffic};
use transport::{Allow, CcChangeReason, CcNegotiation, ConnEvent, refusal};

/// Overrides the negotiation settings by the policy's terms for the peer.
pub(crate) fn apply_policy_terms(n: &mut CcNegotiation, terms: &PeerTerms) {
    n.prefer_own = terms.prefer_own.unwrap_or(n.prefer_own);
    if let Some(names) = &terms.allow {
        n.also.retain(|spec| terms.allows(spec));
        n.allow = Allow::Only(names.iter().filter(|name| n.allow.contains(name)).cloned().collect());
    }
    if let Some(preferred) = &terms.preferred {
        (n.preferred, n.preferred_only) = (preferred.clone(), terms.preferred_only);
    }
    for name in &terms.refuse {
        if !n.refuse.contains(name) {
            n.refuse.push(name.clone());
        }
    }
}

impl Endpoint {
    /// Proposes to the peer another algorithm, or other parameters (as [`cc::registry::parse`] reads them): for what this
    /// end sends (`sending`) or for what the peer sends, on a queue pair, or (`None`) on all that have none of their own.
    /// [`Event::CcChanged`] or [`Event::CcRefused`] follows, a round trip later unless frames are lost. Nothing stops
    /// meanwhile, and what is under way stays so.
    ///
    /// # Errors
    /// In words: not open, with a peer that does not negotiate, by iWARP for what the peer sends (there the system's TCP
    /// decides, by its own names: for what this end sends, nobody need agree); an algorithm that is unknown or that the peer
    /// has refused in the handshake; too many proposals without an answer, or in a short time.
    pub fn propose_cc(
        &mut self,
        now: Time,
        conn: ConnId,
        qp: Option<QpId>,
        sending: bool,
        cc: &str,
    ) -> Result<(), ConnectError> {
        if self.iwarp_state.conns.contains_key(&conn) {
            if sending {
                return self.set_iwarp_congestion(conn, cc).map_err(ConnectError::Settings);
            }
            let why =
                "with iWARP the system's TCP controls congestion, and each end chooses for what it sends";
            return Err(ConnectError::Settings(why.into()));
        }
        let qpn = self.number_of(conn, qp)?;
        let c = self.conns.get(&conn).filter(|c| c.established && !c.closed).ok_or(ConnectError::NotOpen)?;
        let ruled = c.connection.flow_of_own(qpn).and_then(|f| c.flows.get(usize::from(f)));
        if sending && ruled.is_some_and(|r| !self.permits(&r.traffic, cc)) {
            return Err(ConnectError::Settings(format!(
                "this host's policy does not let this traffic have {cc}"
            )));
        }
        let terms = ruled.and_then(|r| r.choice.as_ref()).map(|choice| &choice.peer);
        if !sending && terms.is_some_and(|t| !t.may_prefer(cc)) {
            let why = format!("this host's policy does not let the other end send with {cc}");
            return Err(ConnectError::Settings(why));
        }
        let Some(c) = self.conns.get_mut(&conn) else { return Err(ConnectError::NotOpen) };
        c.connection.propose_cc(now, qpn, sending, cc).map_err(ConnectError::Settings)?;
        self.after(now, conn);
        Ok(())
    }

    /// Whether the peer may have this end send with `spec` on a connection: what this end names itself, and of the
    /// rest what [`CcNegotiation::allow`] contains, unless it prefers its own order; nothing that the policy forbids for
    /// this traffic. By iWARP, where the kernel's TCP sends, the algorithm in use counts as named.
    pub fn allows_peer_cc(&self, conn: ConnId, spec: &str) -> bool {
        let name = |spec: &str| spec.split(':').next().unwrap_or_default().trim().to_owned();
        let asked = name(spec);
        let (ruled, mut said, runs) = match (self.conns.get(&conn), self.iwarp_state.conns.get(&conn)) {
            (Some(c), _) => (c.flows.first(), c.said.clone(), String::new()),
            (None, Some(b)) => {
                let runs = b.info.iwarp.as_ref().map(|i| i.congestion.clone()).unwrap_or_default();
                (b.ruled.as_ref(), self.config.options.negotiation.clone(), runs)
            }
            (None, None) => return false,
        };
        let own = |name: &str| name == asked;
        let mut named = own(&name(&self.config.options.cc)) || own(&runs);
        if let Some((ruled, choice)) = ruled.and_then(|r| Some((r, r.choice.as_ref()?))) {
            if own(&name(&choice.algorithm)) {
                return true;
            }
            if !self.permits(&ruled.traffic, spec) {
                return false;
            }
            apply_policy_terms(&mut said, &choice.peer);
        }
        named |= said.also.iter().any(|also| own(&name(also)));
        named || !said.prefer_own && said.allow.contains(&asked)
    }

    /// What this end sends with (`sending`), or the peer as far as it has said, on a queue pair or on all that have none of
    /// their own. `None`: no such connection or queue pair, or a peer that does not negotiate.
    pub fn agreed_cc(&self, conn: ConnId, qp: Option<QpId>, sending: bool) -> Option<&str> {
        let qpn = self.number_of(conn, qp).ok()?;
        self.conns.get(&conn)?.connection.agreed_cc(qpn, sending)
    }

    fn number_of(&self, conn: ConnId, qp: Option<QpId>) -> Result<Option<u16>, ConnectError> {
        let Some(qp) = qp else { return Ok(None) };
        match self.by_qp.get(&qp) {
            Some((c, qpn)) if *c == conn => Ok(Some(*qpn)),
            _ => Err(verbs::Error::NotFound("queue pair").into()),
        }
    }

    /// What became of a proposal, and what the peer proposes. False: it is about something else.
    pub(crate) fn on_cc_event(&mut self, conn: ConnId, e: &ConnEvent) -> bool {
        match e {
            ConnEvent::CcWanted(p) => {
                let spec = p.offer.spec();
                let code = self.set_sending_cc(conn, p.topic.qpn, &spec, true).err().unwrap_or(0);
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.connection.answer_cc(p, code);
                }
                if code == 0 {
                    self.report_cc_change(conn, p.topic.qpn, (true, true), spec);
                }
            }
            ConnEvent::CcOfPeer { qpn, spec } => {
                self.report_cc_change(conn, *qpn, (false, true), spec.clone())
            }
            ConnEvent::CcAnswered { qpn, sending, spec, code } => {
                let changed = if *code == 0 && *sending {
                    self.set_sending_cc(conn, *qpn, spec, false)
                } else {
                    Ok(())
                };
                match changed.err().unwrap_or(*code) {
                    0 => self.report_cc_change(conn, *qpn, (*sending, false), spec.clone()),
                    code => {
                        tracing::info!(
                            cc = spec,
                            sending,
                            code,
                            "not agreed on: {}",
                            refusal::description(code)
                        );
                        let (qp, cc) = (self.qp_at(conn, *qpn), spec.clone());
                        self.emit(Event::CcRefused { conn, qp, sending: *sending, cc, code });
                    }
                }
            }
            ConnEvent::PreferenceRefused { qpn, spec, code } => {
                tracing::info!(
                    qpn,
                    cc = spec,
                    code,
                    "the peer refused the preferred congestion control: {}",
                    refusal::description(*code)
                );
            }
            ConnEvent::CcReplaced { flow, from, to, why } => {
                tracing::info!(flow, from, to, "another algorithm decides: {}", why.words());
                let (flow, from, to, why) = (*flow, from.clone(), to.clone(), *why);
                self.emit(Event::CcReplaced { conn, flow, from, to, why });
            }
            ConnEvent::CcReplacedByPeer { qpn, from, to, why } => {
                let (qp, from, to, why) = (self.qp_at(conn, *qpn), from.clone(), to.clone(), *why);
                self.emit(Event::CcReplacedByPeer { conn, qp, from, to, why });
            }
            _ => return false,
        }
        true
    }

    fn qp_at(&self, conn: ConnId, qpn: Option<u16>) -> Option<QpId> {
        self.conns.get(&conn)?.qps.get(usize::from(qpn?)).copied().flatten()
    }

    fn report_cc_change(
        &mut self,
        conn: ConnId,
        qpn: Option<u16>,
        (sending, by_peer): (bool, bool),
        cc: String,
    ) {
        tracing::info!(cc, sending, by_peer, "another congestion control holds");
        let qp = self.qp_at(conn, qpn);
        self.emit(Event::CcChanged { conn, qp, sending, cc, by_peer });
    }

    /// What this end sends from now on on a queue pair, or on all that have none of their own, is decided by this
    /// algorithm, which the peer wants or (`by_peer` unset) this end: as if the application had asked for it from the
    /// start. Else a code of [`refusal`].
    fn set_sending_cc(
        &mut self,
        conn: ConnId,
        qpn: Option<u16>,
        spec: &str,
        by_peer: bool,
    ) -> Result<(), u64> {
        let c = self.conns.get(&conn).ok_or(refusal::NO_QUEUE_PAIR)?;
        let flow = c.connection.flow_of_own(qpn).ok_or(refusal::NO_QUEUE_PAIR)?;
        let ruled = c.flows.get(usize::from(flow)).ok_or(refusal::NO_QUEUE_PAIR)?;
        let before = &ruled.traffic;
        let of_peer = |choice: &Choice| by_peer && choice.algorithm != spec && !choice.peer.allows(spec);
        if !self.permits(before, spec) || ruled.choice.as_ref().is_some_and(of_peer) {
            return Err(refusal::FORBIDDEN);
        }
        let traffic = Traffic { asked: spec.to_owned(), ..before.clone() };
        let c = self.conns.get_mut(&conn).ok_or(refusal::NO_QUEUE_PAIR)?;
        let moved = match qpn {
            None => c.connection.set_algorithm(0, spec, CcChangeReason::Agreed).map(|()| 0),
            Some(n) => c.connection.move_qp(n, &key_of(spec, &traffic, n), spec),
        };
        let moved = moved.map_err(|_| refusal::TOO_MANY_ALGORITHMS)?;
        if moved == flow {
            self.apply_policy_again(conn, moved.into(), traffic);
        } else {
            let ruled = self.unpromised(conn, traffic);
            self.set_flow_policy(conn, moved.into(), ruled);
        }
        Ok(())
    }

    /// The handshake is over: what the policy and others are told of the connection's flow is what was agreed on.
    pub(crate) fn note_agreed_cc(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let (Some(spec), Some(ruled)) = (c.connection.algorithm(0), c.flows.first_mut()) else { return };
        let asked_for = ruled.choice.as_ref().is_none_or(|choice| choice.algorithm != spec);
        if asked_for && spec != cc::registry::DEFAULT {
            ruled.traffic.asked = spec.to_owned();
            let traffic = ruled.traffic.clone();
            self.apply_policy_again(conn, 0, traffic);
        }
    }
}
