//! Queue pairs that the application creates, in protection domains and with completion queues of its own.
//!
//! [`Endpoint::open_qp`] makes a queue pair in the connection's protection domain, which keeps memory keys within that
//! connection. Programs for verbs expect more: regions and completion queues that serve queue pairs to many peers. They create
//! their queue pairs by [`Endpoint::adapter`] and connect them here.

use crate::Endpoint;
use crate::app::{ConnId, Event};
use crate::config::{ConnectError, QpOptions};
use crate::conn::Conn;
use crate::flow_policy::QpRequest;
use base::Time;
use verbs::QpId;
use wire::QpOpen;

/// Requests for queue pairs that wait for the application on one connection at most.
const MAX_REQUESTS: usize = 1_024;
/// Code of QP_ERROR: the queue pair was destroyed, or put into error by its application.
pub(crate) const CODE_GONE: u64 = 14;

impl Endpoint {
    /// Connects a queue pair that the application created, and moved to [`verbs::QpState::Rts`], with one that the peer's
    /// application accepts. [`Event::QpReady`] or [`Event::QpRefused`] follows; a refused queue pair is disconnected, not
    /// destroyed. The reliability in `o` must be the queue pair's own. Numbers are not used twice: a connection serves some 30,000
    /// queue pairs in each direction.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open_own_qp(
        &mut self,
        now: Time,
        conn: ConnId,
        o: QpOptions,
        qp: QpId,
    ) -> Result<(), ConnectError> {
        let c = self.conns.get(&conn).filter(|c| c.established && !c.closed).ok_or(ConnectError::NotOpen)?;
        let limit = self.most_qps(c);
        // Even numbers are the client's, odd ones the server's.
        let start = c.qps.len().max(c.connection.initial_qps().into());
        let qpn = start + usize::from(start % 2 == usize::from(c.info.is_client));
        if qpn as u64 >= limit {
            return Err(ConnectError::TooMany(limit));
        }
        let (o, asks) = self.checked(conn, o)?;
        let promised = self.promise(now, conn, &o.cc, &asks)?;
        let qpn = qpn as u16;
        let bound = self.bind_qp(conn, qpn, qp);
        bound.inspect_err(|_| promised.iter().for_each(|p| self.forget_share(p)))?;
        self.ask_peer(conn, qpn, o, asks, promised);
        self.after(now, conn);
        Ok(())
    }

    /// Whether the peers' requests for queue pairs are shown to the application as [`Event::QpRequested`] from now on, instead of
    /// being granted in the connection's protection domain.
    pub fn set_asks_for_qps(&mut self, asks: bool) {
        self.asks_for_qps = asks;
    }

    /// Grants a request ([`Event::QpRequested`]) with a queue pair that the application created and moved to
    /// [`verbs::QpState::Rtr`] or further. [`Event::QpReady`] follows.
    ///
    /// # Errors
    /// The connection or the request is gone; the queue pair does not exist or is connected already, and the request is refused.
    pub fn accept_qp(&mut self, now: Time, conn: ConnId, number: u16, qp: QpId) -> Result<(), ConnectError> {
        self.accept_qp_marked(now, conn, (number, qp), None)
    }

    /// The same, with a code point for what this end sends on it, as [`QpOptions::dscp`].
    ///
    /// # Errors
    /// As [`accept_qp`](Endpoint::accept_qp).
    pub fn accept_qp_marked(
        &mut self,
        now: Time,
        conn: ConnId,
        (number, qp): (u16, QpId),
        dscp: Option<u8>,
    ) -> Result<(), ConnectError> {
        let open = self.take_request(conn, number).ok_or(ConnectError::NotOpen)?;
        if let Err(e) = self.bind_qp(conn, number, qp) {
            // The peer is told either way.
            self.refuse_qp(conn, number, crate::conn::REFUSED_LIMIT);
            self.after(now, conn);
            return Err(e);
        }
        let asks = QpRequest { dscp: dscp.map(|d| d & 0x3f), ..QpRequest::default() };
        self.grant(conn, qp, open, (asks, false));
        self.after(now, conn);
        Ok(())
    }

    /// Turns a request down; the peer gets [`Event::QpRefused`] with `code`, which is not zero.
    pub fn refuse_requested_qp(&mut self, now: Time, conn: ConnId, number: u16, code: u64) {
        if self.take_request(conn, number).is_some() {
            self.refuse_qp(conn, number, code.max(1));
            self.after(now, conn);
        }
    }

    /// Whether the application created a queue pair of a connection.
    pub(crate) fn is_own_qp(&self, conn: ConnId, qp: QpId) -> bool {
        self.conns.get(&conn).is_some_and(|c| !c.info.qps.contains(&qp))
    }

    /// The connection has ended. What the application's queue pairs have not sent is the application's to end: they may be
    /// receiving only, and have all that there is.
    pub(crate) fn part_own_qps(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let Conn { qps, info, .. } = &mut **c;
        for qp in qps.iter_mut() {
            if let Some(own) = qp.take_if(|qp| !info.qps.contains(qp)) {
                self.by_qp.remove(&own);
            }
        }
    }

    /// Parts a queue pair of the application's from its connection, and tells the peer by [`Event::QpGone`]. It can be destroyed
    /// then.
    pub fn disconnect_qp(&mut self, now: Time, qp: QpId) {
        self.disconnect_qp_for(now, qp, CODE_GONE);
    }

    /// As [`disconnect_qp`](Endpoint::disconnect_qp), for a reason: a code of [`verbs::Violation::code`], with which what the peer has
    /// sent fails.
    pub fn disconnect_qp_for(&mut self, now: Time, qp: QpId, code: u64) {
        if self.part_from_stream(now, qp) {
            return;
        }
        let Some((conn, qpn)) = self.by_qp.remove(&qp) else { return };
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.qps[usize::from(qpn)] = None;
        c.info.qps.retain(|q| *q != qp);
        c.opening.retain(|(o, ..)| o.qpn != qpn);
        c.connection.remove_qp(qpn);
        // What arrived for it counts as delivered at the peer, too.
        c.connection.hurry_reports();
        c.connection.send_qp_error(qpn, code);
        self.after(now, conn);
    }

    /// A request that the application is asked about; refused when too many wait.
    pub(crate) fn request_qp(&mut self, id: ConnId, q: QpOpen) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        if c.requested.iter().any(|r| r.qpn == q.qpn) {
            // Repeated, since the answer takes its time.
            return;
        }
        if c.requested.len() >= MAX_REQUESTS {
            return self.refuse_qp(id, q.qpn, crate::conn::REFUSED_LIMIT);
        }
        c.requested.push(q.clone());
        let QpOpen { qpn: number, reliable, private_data, .. } = q;
        self.emit(Event::QpRequested { conn: id, number, reliable, private_data });
    }

    fn take_request(&mut self, conn: ConnId, number: u16) -> Option<QpOpen> {
        let c = self.conns.get_mut(&conn).filter(|c| !c.closed)?;
        let at = c.requested.iter().position(|r| r.qpn == number)?;
        Some(c.requested.swap_remove(at))
    }

    /// Gives a queue pair of the application's a number on a connection.
    fn bind_qp(&mut self, conn: ConnId, number: u16, qp: QpId) -> Result<(), ConnectError> {
        if self.adapter.qp_state(qp).is_none() {
            return Err(verbs::Error::NotFound("queue pair").into());
        }
        if self.by_qp.contains_key(&qp) {
            return Err(verbs::Error::Busy("the queue pair").into());
        }
        self.number_qp(conn, number, qp)
    }

    /// What a queue pair asks for, checked.
    pub(crate) fn checked(&self, conn: ConnId, o: QpOptions) -> Result<(QpOptions, QpRequest), ConnectError> {
        if o.private_data.len() > wire::frame::MAX_PRIVATE_DATA || o.cc.len() > wire::frame::MAX_CC_SPEC {
            return Err(ConnectError::Settings("private data or congestion-control text is too long".into()));
        }
        cc::registry::parse(if o.cc.is_empty() { cc::registry::DEFAULT } else { &o.cc })
            .map_err(|e| ConnectError::Settings(e.to_string()))?;
        let c = self.conns.get(&conn).ok_or(ConnectError::NotOpen)?;
        if !o.cc.is_empty() && !c.connection.peer_accepts_cc(&o.cc) {
            let text = format!("the peer will not have {} sent to it", o.cc);
            return Err(ConnectError::Settings(text));
        }
        let (qos, application) = (o.qos, o.application.clone());
        let asks = QpRequest { qos, application, dscp: o.dscp.map(|d| d & 0x3f) };
        Ok((o, asks))
    }
}
