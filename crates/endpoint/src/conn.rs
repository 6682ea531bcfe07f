//! One connection of an endpoint: turns its events into verbs objects and events for the application.

use crate::Endpoint;
use crate::app::{ConnId, ConnInfo, Event};
use crate::config::{ConnectError, QpOptions};
use crate::flow_policy::QpRequest;
use crate::qp_shares::{Party, parties};
use base::Time;
use std::net::{IpAddr, SocketAddr};
use transport::{AdditionalPath, ConnEvent, Connection};
use verbs::{Kind, QpId, QpInit, QpState, SrqId, Status};
use wire::QpOpen;

/// Completions that a connection's queue holds at most.
pub(crate) const CQ_ENTRIES: usize = 1 << 17;
/// Work requests outstanding on a queue pair at most.
pub(crate) const SEND_WR: usize = 1 << 14;
/// Receives outstanding on a queue pair at most.
pub(crate) const RECV_WR: usize = 1 << 12;
/// Reads outstanding in each direction. Part of the protocol: see `docs/protocol.md`.
pub(crate) const READS: usize = 64;
/// Longest datagram of an unreliable queue pair: fits the smallest path with every header.
const MAX_DATAGRAM: u32 = 1_100;
/// Code of a refused queue pair: no room.
pub(crate) const REFUSED_LIMIT: u64 = 1;
/// Code of a refused queue pair: its congestion control is unknown here.
const REFUSED_CC: u64 = 2;
/// Credits kept for queue pairs that are not there yet.
const MAX_EARLY_LIMITS: usize = 1_024;

pub(crate) struct Conn {
    pub connection: Connection,
    pub info: ConnInfo,
    /// Where the peer was when the connection was made: its first packet is known by it.
    pub first_remote: SocketAddr,
    /// Of a client: paths that were added because addresses were found.
    pub found: crate::discovery::DiscoveredPaths,
    /// Of a client: when the network was looked at last, it was known from which address the connection leaves.
    pub local_known: bool,
    /// Queue pairs by number.
    pub qps: Vec<Option<QpId>>,
    pub deadline: Option<Time>,
    pub queued: bool,
    pub established: bool,
    pub closed: bool,
    pub released: bool,
    /// Identifiers and sockets of lanes that threads of sockets have views of.
    pub opener_lanes: Vec<(wire::Cid, u16)>,
    /// Queue pairs that the peer asked for, while the application decides.
    pub requested: Vec<QpOpen>,
    /// Queue pairs this end has opened and waits for.
    pub opening: Vec<(QpOpen, QpRequest, Option<crate::flow_policy::FlowPolicy>)>,
    /// Of a server's: the client by which its queue pairs are counted.
    pub parties: Vec<Party>,
    /// Where queue pairs without another instruction take their receives from.
    pub srq: Option<SrqId>,
    /// Credits that came before the queue pair they are about.
    early_limits: Vec<(u16, u64)>,
    /// Of each flow, by number: what is known of it, and what the policy made of it.
    pub flows: Vec<crate::flow_policy::FlowPolicy>,
    /// What the application says of congestion control beside its own choice; policies go before it.
    pub said: transport::CcNegotiation,
}

/// The message about a path that takes smaller packets than before.
const SHRANK: &str =
    "large packets do not get through any more: smaller ones are sent until larger ones are found to pass";

impl Conn {
    pub fn new(connection: Connection, info: ConnInfo, said: transport::CcNegotiation) -> Conn {
        Conn {
            connection,
            first_remote: info.remote,
            found: Default::default(),
            local_known: !info.is_client,
            info,
            qps: Vec::new(),
            deadline: None,
            queued: false,
            established: false,
            closed: false,
            released: false,
            opener_lanes: Vec::new(),
            requested: Vec::new(),
            opening: Vec::new(),
            parties: Vec::new(),
            srq: None,
            early_limits: Vec::new(),
            flows: Vec::new(),
            said,
        }
    }

    /// Keeps a credit whose queue pair is about to be opened. A peer that names pairs at random fills a short
    /// list.
    fn early_limit(&mut self, qpn: u16, limit: u64) {
        self.early_limits.retain(|(n, _)| *n != qpn);
        if self.early_limits.len() < MAX_EARLY_LIMITS {
            self.early_limits.push((qpn, limit));
        }
    }
}

/// Two ends of a path, for people.
fn between(to: SocketAddr, from: Option<IpAddr>) -> String {
    from.map_or_else(|| format!("to {to}"), |from| format!("{from} to {to}"))
}

impl Endpoint {
    /// Opens a further queue pair; [`Event::QpReady`] follows a round trip later. Work may be posted at once and
    /// leaves when the peer has agreed.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open_qp(&mut self, now: Time, conn: ConnId, o: QpOptions) -> Result<QpId, ConnectError> {
        self.open_qp_with_srq(now, conn, o, None)
    }

    /// As [`Endpoint::open_qp`], with receives from a shared receive queue of this end; `None` takes the connection's, if
    /// it has one ([`Endpoint::set_srq`]).
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open_qp_with_srq(
        &mut self,
        now: Time,
        conn: ConnId,
        o: QpOptions,
        srq: Option<SrqId>,
    ) -> Result<QpId, ConnectError> {
        let c = self.conns.get(&conn).filter(|c| c.established && !c.closed).ok_or(ConnectError::NotOpen)?;
        let limit = self.most_qps(c);
        let base = usize::from(c.connection.initial_qps());
        // Even numbers are the client's, odd ones the server's.
        let odd = usize::from(!c.info.is_client);
        let start = base + (base + odd) % 2;
        let qpn = (start..limit as usize).step_by(2).find(|n| c.qps.get(*n).is_none_or(Option::is_none));
        let qpn = qpn.ok_or(ConnectError::TooMany(limit))? as u16;
        let (o, asks) = self.checked(conn, o)?;
        let promised = self.promise(now, conn, &o.cc, &asks)?;
        let qp = self.create_qp(conn, qpn, o.reliable, srq);
        let qp = qp.inspect_err(|_| promised.iter().for_each(|p| self.forget_share(p)))?;
        if let Some(c) = self.conns.get_mut(&conn) {
            c.info.qps.push(qp);
        }
        self.ask_peer(conn, qpn, o, asks, promised);
        self.after(now, conn);
        Ok(qp)
    }

    /// How many queue pairs a connection may have.
    pub(crate) fn most_qps(&self, c: &Conn) -> u64 {
        c.connection.peer_params().max_qps.min(u64::from(self.config.options.max_qps)).min(1 << 16)
    }

    /// Asks the peer for a queue pair that this end has numbered.
    pub(crate) fn ask_peer(
        &mut self,
        conn: ConnId,
        qpn: u16,
        o: QpOptions,
        asks: QpRequest,
        promised: Option<crate::flow_policy::FlowPolicy>,
    ) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let (cc, priority) = (o.cc.into_bytes(), o.priority.min(7));
        let open = QpOpen { qpn, reliable: o.reliable, priority, cc, private_data: o.private_data };
        // The scheduler learns of it when the peer has agreed: see `on_qp_accept`.
        c.opening.push((open.clone(), asks, promised));
        c.connection.open_qp(open);
    }

    /// From now on, queue pairs of this connection that come into being without naming a shared receive queue take
    /// their receives from this one: those the peer opens, those of [`Endpoint::open_qp`], and, set right after
    /// [`Endpoint::connect`], those open from the start. It lives in a protection domain of the application's, so that
    /// queue pairs of many connections can share it; each completes into its own connection's queue.
    ///
    /// # Errors
    /// No such connection, or no such shared receive queue.
    pub fn set_srq(&mut self, conn: ConnId, srq: Option<SrqId>) -> Result<(), ConnectError> {
        self.check_srq(srq)?;
        self.conns.get_mut(&conn).ok_or(ConnectError::NotOpen)?.srq = srq;
        Ok(())
    }

    /// As [`Endpoint::set_srq`], for all connections that clients make from now on.
    ///
    /// # Errors
    /// No such shared receive queue.
    pub fn set_srq_of_incoming(&mut self, srq: Option<SrqId>) -> Result<(), ConnectError> {
        self.check_srq(srq)?;
        self.incoming_srq = srq;
        Ok(())
    }

    fn check_srq(&self, srq: Option<SrqId>) -> Result<(), ConnectError> {
        match srq {
            Some(s) if self.adapter.srq_len(s).is_none() => {
                Err(verbs::Error::NotFound("shared receive queue").into())
            }
            _ => Ok(()),
        }
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        qpn: u16,
        reliable: bool,
        srq: Option<SrqId>,
    ) -> Result<QpId, ConnectError> {
        let c = self.conns.get_mut(&conn).ok_or(ConnectError::NotOpen)?;
        let init = QpInit {
            kind: if reliable { Kind::Reliable } else { Kind::Unreliable },
            max_send_wr: SEND_WR,
            max_recv_wr: RECV_WR,
            max_rd_atomic: READS,
            max_datagram: MAX_DATAGRAM,
            srq: srq.or(c.srq),
            ..QpInit::new(c.info.cq, c.info.cq)
        };
        let (limit, by_client) = (self.config.limits.qps, !c.parties.is_empty());
        if by_client && !self.qp_shares.take(&c.parties, limit) {
            return Err(ConnectError::Share(limit));
        }
        let qp =
            self.adapter.create_qp(c.info.pd, init).inspect_err(|_| self.qp_shares.release(&c.parties, 1))?;
        self.adapter.modify_qp(qp, QpState::Rtr)?;
        self.adapter.modify_qp(qp, QpState::Rts)?;
        self.number_qp(conn, qpn, qp)?;
        Ok(qp)
    }

    /// Gives a queue pair its number on a connection.
    pub(crate) fn number_qp(&mut self, conn: ConnId, qpn: u16, qp: QpId) -> Result<(), ConnectError> {
        let c = self.conns.get_mut(&conn).ok_or(ConnectError::NotOpen)?;
        let i = usize::from(qpn);
        if c.qps.len() <= i {
            c.qps.resize(i + 1, None);
        }
        c.qps[i] = Some(qp);
        if let Some(k) = c.early_limits.iter().position(|(n, _)| *n == qpn) {
            let (_, limit) = c.early_limits.swap_remove(k);
            self.adapter.set_send_limit(qp, limit)?;
        }
        self.by_qp.insert(qp, (conn, qpn));
        Ok(())
    }

    /// Turns a connection's events into the application's, and has it looked at for sending.
    pub(crate) fn after(&mut self, now: Time, id: ConnId) {
        self.pass_on_events(now, id);
        self.touch(id);
    }

    pub(crate) fn pass_on_events(&mut self, now: Time, id: ConnId) {
        self.log.set_time(now);
        while let Some(e) = self.conns.get_mut(&id).and_then(|c| c.connection.poll_event()) {
            self.on_conn_event(now, id, e);
        }
    }

    fn on_conn_event(&mut self, now: Time, id: ConnId, e: ConnEvent) {
        let qp_of =
            |this: &Endpoint, qpn: u16| this.conns.get(&id)?.qps.get(usize::from(qpn)).copied().flatten();
        // What came along with the last message of the handshake, of one that was turned away.
        let refused = self.conns.get(&id).is_some_and(|c| !c.established && !c.connection.is_open());
        if refused && !matches!(e, ConnEvent::Established | ConnEvent::Closed(_)) {
            return;
        }
        match e {
            ConnEvent::Established => self.on_established(now, id),
            ConnEvent::QpOpen(q) => self.on_qp_open(id, q),
            ConnEvent::QpAccept(qpn, code) => self.on_qp_accept(id, qpn, code),
            ConnEvent::QpError(qpn, code) => {
                let status = match code {
                    crate::own_qp::CODE_GONE => Status::TransportFailed,
                    _ => u16::try_from(code)
                        .map_or(Status::RemoteInvalidRequest, verbs::Violation::status_of_code),
                };
                match qp_of(self, qpn) {
                    Some(qp) if code == crate::own_qp::CODE_GONE && self.is_own_qp(id, qp) => {
                        self.emit(Event::QpGone { conn: id, qp });
                    }
                    Some(qp) => drop(self.adapter.set_error(qp, status)),
                    None => {}
                }
            }
            ConnEvent::PlaceFailed(qpn, _) => {
                if let Some(qp) = qp_of(self, qpn) {
                    let _ = self.adapter.set_error(qp, Status::FlushError);
                }
            }
            ConnEvent::RecvLimit(qpn, limit) => {
                if let Some(qp) = qp_of(self, qpn) {
                    let _ = self.adapter.set_send_limit(qp, limit);
                } else if let Some(c) = self.conns.get_mut(&id) {
                    c.early_limit(qpn, limit);
                }
            }
            ConnEvent::PathChanged(remote) => {
                if let Some(c) = self.conns.get_mut(&id) {
                    c.info.remote = remote;
                }
                self.emit(Event::PathChanged { conn: id, remote });
            }
            ConnEvent::OpenersChanged => self.publish_conn_openers(id, true),
            ConnEvent::Closed(reason) => self.on_closed(now, id, reason),
            e => {
                if !self.on_cc_event(id, &e) {
                    self.on_lane_event(id, e);
                }
            }
        }
    }

    /// Between which addresses a path leads, for people.
    fn ends(&self, id: ConnId, path: u32) -> String {
        let ends = self.conns.get(&id).and_then(|c| c.connection.lane_addresses(path));
        ends.map_or_else(String::new, |(to, from)| between(to, from))
    }

    /// Says which of the paths that the user named never came up, where the connection ended before that was found out.
    fn report_unanswered_paths(&self, c: &Conn) {
        for (path, to, from) in c.connection.unanswered_lanes() {
            let ends = between(to, from);
            if c.found.has(path) {
                tracing::debug!(path, ends, "a path that was found never came up");
            } else {
                tracing::warn!(
                    path,
                    ends,
                    "a path never came up: nobody had answered there when the connection ended"
                );
            }
        }
    }

    /// What concerns one path of a connection.
    fn on_lane_event(&mut self, id: ConnId, e: ConnEvent) {
        match e {
            ConnEvent::LaneWanted(lane) => {
                let socket = (lane % u32::from(self.sockets)) as u16;
                let cid = self.new_cid_at(socket);
                self.by_cid.insert(cid, id);
                if let Some(c) = self.conns.get_mut(&id) {
                    c.connection.accept_lane(lane, Some((cid, socket)));
                }
            }
            ConnEvent::Addresses => self.network_stale = true,
            ConnEvent::LaneUp(path) => {
                if let Some(c) = self.conns.get_mut(&id) {
                    c.found.on_up(path);
                }
                tracing::info!(path, ends = self.ends(id, path), "a path is up");
                self.emit(Event::PathUp { conn: id, path });
            }
            ConnEvent::LaneDown(path) => {
                if let Some(c) = self.conns.get_mut(&id) {
                    self.network_stale |= c.info.is_client;
                    c.found.on_down(path);
                }
                tracing::info!(path, ends = self.ends(id, path), "a path is down");
                self.emit(Event::PathDown { conn: id, path });
                self.publish_conn_openers(id, false);
            }
            ConnEvent::FallbackChanged { lane, flow, spec, why: Some(why) } => {
                tracing::warn!(
                    path = lane,
                    flow,
                    algorithm = spec,
                    "another algorithm decides for a while: {why}"
                );
            }
            ConnEvent::FallbackChanged { lane, flow, spec, why: None } => {
                tracing::info!(
                    path = lane,
                    flow,
                    algorithm = spec,
                    "the path carries the signals it needs again"
                );
            }
            ConnEvent::LaneTrouble(path, why) => {
                tracing::warn!(path, ends = self.ends(id, path), "a path is of no use for now: {why}");
            }
            ConnEvent::PacketsShrank(path, bytes, true) => {
                tracing::warn!(path, bytes, "{SHRANK}");
            }
            // A busy host looks the same for a moment: no reason to alarm anybody.
            ConnEvent::PacketsShrank(path, bytes, false) => tracing::info!(path, bytes, "{SHRANK}"),
            _ => {}
        }
    }

    /// Adds a path to a connection of this client: from `local`, where that matters, to `remote`, another address of the
    /// same server. Data is spread over all paths by what each carries; over a backup only while no other works.
    /// [`Event::PathUp`] follows when the server has answered there, [`Event::PathDown`] when it has not. Gives the path's
    /// number.
    ///
    /// # Errors
    /// The connection is not open, or has had all the paths it may have.
    pub fn add_path(&mut self, now: Time, conn: ConnId, path: AdditionalPath) -> Result<u32, ConnectError> {
        let path = self.open_path(conn, path, 0)?;
        self.after(now, conn);
        Ok(path)
    }

    pub(crate) fn open_path(
        &mut self,
        conn: ConnId,
        path: AdditionalPath,
        socket: u16,
    ) -> Result<u32, ConnectError> {
        // A client's sockets have ports of their own: nobody steers by its identifiers.
        let cid = self.new_cid();
        let c = self.conns.get_mut(&conn).filter(|c| c.established && !c.closed);
        let c = c.ok_or(ConnectError::NotOpen)?;
        let path = c.connection.open_lane(cid, path, socket).map_err(ConnectError::Settings)?;
        self.by_cid.insert(cid, conn);
        Ok(path)
    }

    /// Closes a path at both ends. What is in flight on it is sent over the others. Path zero stays.
    pub fn remove_path(&mut self, now: Time, conn: ConnId, path: u32) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let mut s = crate::streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
        c.connection.close_lane(now, path, &mut s);
        self.after(now, conn);
    }

    /// Others took the last places while the client's handshake was under way.
    fn no_room_reason(&self, id: ConnId) -> Option<String> {
        let server = self.config.server.as_ref()?;
        let c = self.conns.get(&id).filter(|c| !c.info.is_client)?;
        let full = self.acceptor.full(server.max_connections)?;
        debug_assert!(!c.established, "established once");
        Some(format!("the server is full ({full}): try again later"))
    }

    /// Why a client that the transport lets in may not come in after all.
    fn refusal_reason(&mut self, now: Time, id: ConnId) -> Option<String> {
        let c = self.conns.get(&id).filter(|c| !c.info.is_client)?;
        if let (Some(t), Some(s)) = (c.connection.token_used(), &mut self.config.server) {
            let before = s.authority.tokens.len();
            // Once means once, whoever else holds it; and the list that this connection was accepted with may be older
            // than another's use of the token.
            s.authority.tokens.retain(|x| x.id() != t.id());
            if s.authority.tokens.len() == before {
                return Some("this one-time token was used before: ask for another".to_owned());
            }
        }
        let peer = c.connection.peer()?;
        self.client_admission.as_mut()?.admit(now, peer).err()
    }

    fn on_established(&mut self, now: Time, id: ConnId) {
        if self.conns.get(&id).is_none_or(|c| c.closed) {
            // The application has closed it meanwhile, and what belonged to it is freed.
            return;
        }
        let refused = match self.no_room_reason(id) {
            Some(words) => Some((transport::error::code::BUSY, words)),
            None => self.refusal_reason(now, id).map(|w| (transport::error::code::UNAUTHORISED, w)),
        };
        if let Some((code, words)) = refused {
            if let Some(c) = self.conns.get_mut(&id) {
                c.connection.close(now, code, &words);
            }
            return;
        }
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.established = true;
        c.info.peer = c.connection.peer().cloned();
        c.info.suite = c.connection.suite();
        if !c.info.is_client {
            c.parties = parties(c.info.peer.as_ref(), c.info.remote);
        }
        let (n, reliable, is_client) =
            (c.connection.initial_qps(), c.connection.initial_reliable(), c.info.is_client);
        if let Some(t) = c.connection.peer_params().reset_token {
            self.by_reset.insert(t, id);
        }
        if !is_client {
            self.acceptor.on_established(id);
        }
        for qpn in 0..n {
            match self.create_qp(id, qpn, reliable, None) {
                Ok(qp) => {
                    if let Some(c) = self.conns.get_mut(&id) {
                        c.info.qps.push(qp);
                    }
                }
                Err(e) => return self.close(now, id, transport::error::code::BUSY, &e.to_string()),
            }
        }
        self.note_agreed_cc(id);
        self.emit(if is_client { Event::Connected { conn: id } } else { Event::Incoming { conn: id } });
        if is_client {
            self.network_stale = true;
            self.add_further_paths(id);
        } else {
            self.advertise(id);
        }
    }

    fn add_further_paths(&mut self, id: ConnId) {
        let paths = self.conns.get(&id).map(|c| c.connection.further_paths().to_vec()).unwrap_or_default();
        for p in paths {
            if let Err(e) = self.open_path(id, p, 0) {
                tracing::warn!(to = %p.remote, error = %e, "a path was not added");
            }
        }
    }

    fn on_qp_open(&mut self, id: ConnId, q: QpOpen) {
        let max = u64::from(self.config.options.max_qps);
        let Some(c) = self.conns.get(&id) else { return };
        if u64::from(q.qpn) >= max || c.qps.get(usize::from(q.qpn)).is_some_and(Option::is_some) {
            return self.refuse_qp(id, q.qpn, REFUSED_LIMIT);
        }
        let cc = String::from_utf8_lossy(&q.cc).into_owned();
        if !cc.is_empty() && !c.connection.accepts_cc_from_peer(&cc) {
            return self.refuse_qp(id, q.qpn, REFUSED_CC);
        }
        if self.asks_for_qps {
            return self.request_qp(id, q);
        }
        let Ok(qp) = self.create_qp(id, q.qpn, q.reliable, None) else {
            return self.refuse_qp(id, q.qpn, REFUSED_LIMIT);
        };
        if let Some(c) = self.conns.get_mut(&id) {
            c.info.qps.push(qp);
        }
        self.grant(id, qp, q, (QpRequest::default(), true));
    }

    /// Lets the peer have a queue pair that it asked for. `made` says that it was created for that.
    pub(crate) fn grant(&mut self, id: ConnId, qp: QpId, q: QpOpen, (asks, made): (QpRequest, bool)) {
        let cc = String::from_utf8_lossy(&q.cc).into_owned();
        if self.join_flow(id, (q.qpn, q.priority), (&cc, &asks), None).is_err() {
            self.part_qp(id, q.qpn, qp, made);
            return self.refuse_qp(id, q.qpn, REFUSED_CC);
        }
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.connection.set_peer_cc(q.qpn, &cc);
        c.connection.accept_qp(q.qpn, 0);
        c.connection.activate(q.qpn);
        if !made {
            // What was posted before it was connected has not been told.
            self.tell_recv_limit(id, q.qpn, qp);
        }
        self.emit(Event::QpReady { conn: id, qp, private_data: q.private_data, by_peer: true });
    }

    /// Takes a queue pair that was never used off its connection, and destroys it if it was made for that.
    fn part_qp(&mut self, id: ConnId, qpn: u16, qp: QpId, made: bool) {
        self.by_qp.remove(&qp);
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.qps[usize::from(qpn)] = None;
        if made {
            c.info.qps.retain(|q| *q != qp);
            self.qp_shares.release(&c.parties, 1);
            let _ = self.adapter.destroy_qp(qp);
        }
    }

    fn tell_recv_limit(&mut self, id: ConnId, qpn: u16, qp: QpId) {
        if let (Some(limit), Some(c)) = (self.adapter.recv_limit(qp), self.conns.get_mut(&id)) {
            c.connection.send_recv_limit(qpn, limit);
        }
    }

    pub(crate) fn refuse_qp(&mut self, id: ConnId, qpn: u16, code: u64) {
        if let Some(c) = self.conns.get_mut(&id) {
            c.connection.accept_qp(qpn, code);
        }
    }

    fn on_qp_accept(&mut self, id: ConnId, qpn: u16, code: u64) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let Some(i) = c.opening.iter().position(|(o, ..)| o.qpn == qpn) else { return };
        let (QpOpen { cc, priority, private_data, .. }, asks, promised) = c.opening.swap_remove(i);
        let Some(qp) = c.qps[usize::from(qpn)] else { return };
        let asked = String::from_utf8_lossy(&cc);
        let joins = match code {
            0 => self.join_flow(id, (qpn, priority), (&asked, &asks), promised).is_ok(),
            _ => {
                promised.iter().for_each(|p| self.forget_share(p));
                false
            }
        };
        let Some(c) = self.conns.get_mut(&id) else { return };
        if joins {
            c.connection.set_peer_cc(qpn, &String::from_utf8_lossy(&cc));
            c.connection.activate(qpn);
            self.emit(Event::QpReady { conn: id, qp, private_data, by_peer: false });
            // What was posted before the peer agreed has not been told.
            self.tell_recv_limit(id, qpn, qp);
            return;
        }
        let made = c.info.qps.contains(&qp);
        self.part_qp(id, qpn, qp, made);
        self.emit(Event::QpRefused { conn: id, qp, code });
    }

    fn on_closed(&mut self, now: Time, id: ConnId, reason: transport::CloseReason) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.closed = true;
        self.forget_shares(id);
        self.publish_conn_openers(id, false);
        if let Some(c) = self.conns.get(&id).filter(|c| c.established && c.info.is_client) {
            self.report_unanswered_paths(c);
        }
        let Some(c) = self.conns.get_mut(&id) else { return };
        if let Some(path) = c.connection.remembered_path().filter(|_| c.established) {
            self.paths.remember(c.info.remote.ip(), path, now);
        }
        if !c.info.is_client {
            self.acceptor.on_closed(id, c.established);
        }
        let qps = c.info.qps.clone();
        for qp in qps {
            let _ = self.adapter.set_error(qp, Status::TransportFailed);
        }
        self.part_own_qps(id);
        let Some(c) = self.conns.get(&id) else { return };
        let (established, is_client) = (c.established, c.info.is_client);
        if established || is_client {
            self.emit(Event::Closed { conn: id, reason });
        }
        if !established {
            // The application has nothing of it.
            let _ = self.release(id);
        }
    }

    /// Nothing more to send for now: when to look again, or whether all is over.
    pub(crate) fn after_send(&mut self, now: Time, id: ConnId) {
        self.reap(id);
        let Some(c) = self.conns.get_mut(&id) else { return };
        if let Some(t) = c.deadline.take() {
            self.deadlines.remove(&(t, id));
        }
        let Some(t) = c.connection.next_timeout() else { return };
        // A deadline in the past was looked at just now and gave nothing: not before the next turn.
        let t = t.max(now + base::Span::from_micros(10));
        c.deadline = Some(t);
        self.deadlines.insert((t, id));
    }

    /// Forgets a connection that is over and released.
    pub(crate) fn reap(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|c| c.connection.is_closed()) {
            self.forget(id);
        }
    }

    /// Drops a handshake that gives way to another: nothing is sent, and nothing kept.
    pub(crate) fn abandon(&mut self, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id).filter(|c| !c.established) else { return };
        c.closed = true;
        self.forget_shares(id);
        // It has no queue pairs and no regions: nothing is in the way.
        let _ = self.release(id);
        self.forget(id);
    }

    /// Takes a connection off the tables that lead to it, and drops it once it is released.
    fn forget(&mut self, id: ConnId) {
        let Some(c) = self.conns.get(&id) else { return };
        for cid in c.connection.local_cids() {
            self.by_cid.remove(&cid);
        }
        if let Some(t) = c.connection.peer_params().reset_token {
            self.by_reset.remove(&t);
        }
        let key = (c.first_remote, c.connection.initial_dcid().to_vec());
        self.by_initial.remove(&key);
        if c.released
            && let Some(c) = self.conns.remove(&id)
            && let Some(t) = c.deadline
        {
            self.deadlines.remove(&(t, id));
        }
    }
}
