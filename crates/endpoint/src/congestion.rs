//! Changes of congestion control while a connection lasts, by agreement of both ends.

use crate::app::{ConnId, Event};
use crate::config::ConnectError;
use crate::{Endpoint, QpId};
use base::Time;
use transport::{ConnEvent, refusal};

impl Endpoint {
    /// Proposes to the peer another algorithm, or other parameters (as [`cc::registry::parse`] reads them): for what this
    /// end sends (`sending`) or for what the peer sends, on a queue pair, or (`None`) on all that have none of their own.
    /// [`Event::CcChanged`] or [`Event::CcRefused`] follows, a round trip later unless frames are lost. Nothing stops
    /// meanwhile, and what is under way stays so.
    ///
    /// # Errors
    /// In words: not open, by iWARP, or with a peer that does not negotiate; an algorithm that is unknown or that the peer
    /// has refused in the handshake; too many proposals without an answer, or in a short time.
    pub fn propose_cc(
        &mut self,
        now: Time,
        conn: ConnId,
        qp: Option<QpId>,
        sending: bool,
        cc: &str,
    ) -> Result<(), ConnectError> {
        if self.hub.bundles.contains_key(&conn) {
            let why =
                "with iWARP the kernel's TCP controls congestion: set it there, each end for what it sends";
            return Err(ConnectError::Settings(why.into()));
        }
        let qpn = self.number_of(conn, qp)?;
        let c = self.conns.get_mut(&conn).filter(|c| c.established && !c.closed);
        let c = c.ok_or(ConnectError::NotOpen)?;
        c.connection.propose_cc(now, qpn, sending, cc).map_err(ConnectError::Settings)?;
        self.after(now, conn);
        Ok(())
    }

    /// What both ends have agreed on for what this end sends (`sending`) or for what the peer sends, on a queue pair or on
    /// all that have none of their own. `None`: no such connection, or a peer that does not say what it sends with.
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

    /// What became of a proposal, for the application. False: it is about something else.
    pub(crate) fn on_cc_event(&mut self, conn: ConnId, e: &ConnEvent) -> bool {
        let qp_of = |qpn: &Option<u16>| {
            let c = self.conns.get(&conn)?;
            qpn.and_then(|n| c.qps.get(usize::from(n)).copied().flatten())
        };
        let event = match e {
            ConnEvent::CcChanged { qpn, sending, spec, by_peer } => {
                tracing::info!(cc = spec, sending, by_peer, "another congestion control holds");
                let (qp, cc) = (qp_of(qpn), spec.clone());
                Event::CcChanged { conn, qp, sending: *sending, cc, by_peer: *by_peer }
            }
            ConnEvent::CcRefused { qpn, sending, spec, code } => {
                tracing::info!(cc = spec, sending, code, "not agreed on: {}", refusal::words(*code));
                Event::CcRefused { conn, qp: qp_of(qpn), sending: *sending, cc: spec.clone(), code: *code }
            }
            _ => return false,
        };
        self.events.push_back(event);
        true
    }
}
