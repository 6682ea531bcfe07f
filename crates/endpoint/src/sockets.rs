//! Endpoints with several sockets, each with a thread that encrypts and decrypts for it.

use crate::conn::Conn;
use crate::{AdditionalPath, ConnId, ConnectError, DatagramInfo, Endpoint, Transmit, streams};
use base::{Span, Time};
use transport::connection::TransmitBuffers;
use transport::crypto::{OpenedTrain, TrainOpener};
use wire::Cid;

/// Sockets of one endpoint at most.
pub const MAX_SOCKETS: u16 = 64;

/// A changed [`TrainOpener`] for the thread of the socket at which a lane's packets arrive.
#[derive(Clone, Debug)]
pub struct OpenerUpdate {
    /// The socket.
    pub socket: u16,
    /// The identifier of the lane's packets.
    pub cid: Cid,
    /// What opens them from now on; `None`: nothing, the lane is gone.
    pub opener: Option<TrainOpener>,
}

/// The socket at which packets with an identifier arrive, of `sockets` that share an address: the network's side steers
/// by this rule (`lhio::udp::steer`), and identifiers are chosen by it.
pub const fn socket_of(cid: Cid, sockets: u16) -> u16 {
    if sockets < 2 { 0 } else { (cid.0 & 0xff) as u16 % sockets }
}

impl Endpoint {
    /// Sets the number of sockets, 1 to [`MAX_SOCKETS`]; those of a server share its address. New lanes of clients
    /// are spread over them.
    pub fn use_sockets(&mut self, sockets: u16) {
        self.sockets = sockets.clamp(1, MAX_SOCKETS);
    }

    /// Makes lanes of these sockets (bit `k` for socket `k`) carry data of this end only while no other lane does,
    /// because no processor is free for their threads. The lanes stay open and receive.
    pub fn set_spare_sockets(&mut self, spare: u64) {
        if core::mem::replace(&mut self.spare, spare) == spare {
            return;
        }
        let all: Vec<_> = self.conns.keys().copied().collect();
        for id in all {
            if let Some(c) = self.conns.get_mut(&id) {
                c.connection.set_spare_sockets(spare);
            }
            self.touch(id);
        }
    }

    /// An identifier that nobody has, of packets that are to arrive at a socket.
    pub(crate) fn new_cid_at(&mut self, socket: u16) -> Cid {
        loop {
            let c = Cid(self.rng.u32());
            if socket_of(c, self.sockets) == socket && !self.by_cid.contains_key(&c) {
                return c;
            }
        }
    }

    /// Opens one more lane of a connection of this client over the path that it has, by another socket: so that another
    /// thread does a part of the work. [`crate::Event::PathUp`] follows when it can be used; [`Endpoint::remove_path`] takes
    /// it back. Gives the lane's number.
    ///
    /// # Errors
    /// No such socket, the connection is not open, or has had all the lanes it may have.
    pub fn add_lane(&mut self, now: Time, conn: ConnId, socket: u16) -> Result<u32, ConnectError> {
        if socket >= self.sockets {
            let text = format!("there is no socket {socket}: they are numbered 0 to {}", self.sockets - 1);
            return Err(ConnectError::Settings(text));
        }
        let remote = self.conns.get(&conn).ok_or(ConnectError::NotOpen)?.info.remote;
        let lane = self.open_path(conn, AdditionalPath { local: None, remote, backup: false }, socket)?;
        self.after(now, conn);
        Ok(lane)
    }

    /// How long reports that peers ask for wait for data that takes them along, from the next train on: for an application that gets
    /// its messages after a turn and answers before the next one. At first they do not wait.
    pub const fn set_answer_wait(&mut self, wait: Span) {
        self.answer_wait = wait;
    }

    /// Writes what is to be sent now into the slot of the socket by which it leaves. Call until it gives nothing. A socket
    /// that takes nothing more stops none but its own lanes; tell when it does again by [`Endpoint::resume`].
    pub fn poll_trains(&mut self, now: Time, out: &mut impl TransmitBuffers) -> Option<Transmit> {
        if self.acceptor.has_pending()
            && let Some(slot) = out.slot(0)
            && let Some(t) = self.acceptor.poll_transmit(slot)
        {
            return Some(t);
        }
        self.check_policy();
        self.collect_work();
        while let Some(id) = self.next_ready(now) {
            let Some(mut c) = self.conns.get_mut(&id) else { continue };
            if c.connection.notify_cc_changes(now) {
                self.app_due = true;
                self.pass_on_events(now, id);
                let Some(again) = self.conns.get_mut(&id) else { continue };
                c = again;
            }
            let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
            let waited = c.connection.has_deferred_feedback();
            c.connection.set_answer_wait(self.answer_wait);
            let train = c.connection.poll_transmit(now, out, &mut s);
            if waited && !c.connection.has_deferred_feedback() {
                // The application may see completions now, before it sleeps.
                self.app_due = true;
                self.pass_on_events(now, id);
            }
            if let Some(t) = train {
                // Connections take turns, a train each.
                self.ready.push_back(id);
                return Some(t);
            }
            let Some(c) = self.conns.get_mut(&id) else { continue };
            c.queued = false;
            if c.connection.is_blocked() {
                self.blocked.insert(id);
            }
            self.after_send(now, id);
        }
        None
    }

    /// A socket that was full has room again.
    pub fn resume(&mut self) {
        while let Some(id) = self.blocked.pop_first() {
            self.touch(id);
        }
    }

    /// As [`Endpoint::handle_train`], for a train of one lane that a socket's thread has opened.
    pub fn handle_opened(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        (cid, opened): (Cid, &OpenedTrain),
        (train, stride): (&mut [u8], usize),
    ) {
        // The connection may have ended since: what was opened for it is of no use to anyone.
        let Some(&id) = self.by_cid.get(&cid) else { return };
        let Some(c) = self.conns.get_mut(&id) else { return };
        let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
        c.connection.handle_opened(now, meta, (train, stride), Some(opened), &mut s);
        self.after(now, id);
    }

    /// A socket is beyond use: lanes that have it are closed, and what is under way on them goes over the others.
    pub fn abandon_socket(&mut self, now: Time, socket: u16) {
        let mut lanes = Vec::new();
        for (id, c) in &self.conns {
            let its = c.connection.lanes_on_other_sockets().filter(|l| l.2 == socket);
            lanes.extend(its.map(|l| (*id, l.0)));
        }
        for (id, lane) in lanes {
            self.remove_path(now, id, lane);
        }
    }

    /// Whether this end has made a connection and may add lanes to it.
    pub fn is_open_client(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|c| c.info.is_client && c.established && !c.closed)
    }

    /// The address from which alone something is expected: this end takes no connections, and has one, whose lanes all lead
    /// there.
    pub fn only_remote(&self) -> Option<std::net::SocketAddr> {
        let mut conns = self.conns.values();
        let (Some(c), None, None) = (conns.next(), conns.next(), &self.config.server) else { return None };
        c.connection.only_remote()
    }

    /// Whether there are threads that [`Endpoint::poll_opener_update`] is for. Threads that start are sent all
    /// openers.
    pub fn publish_openers(&mut self, shown: bool) {
        if core::mem::replace(&mut self.publishes_openers, shown) == shown {
            return;
        }
        self.opener_updates.clear();
        let all: Vec<_> = self.conns.keys().copied().collect();
        for id in all {
            if let Some(c) = self.conns.get_mut(&id) {
                c.opener_lanes.clear();
            }
            self.publish_conn_openers(id, true);
        }
    }

    /// The next opener update for a socket's thread.
    pub fn poll_opener_update(&mut self) -> Option<OpenerUpdate> {
        self.opener_updates.pop_front()
    }

    /// Tells the threads of a connection's lanes what has changed; `renewed`: their keys, too.
    pub(crate) fn publish_conn_openers(&mut self, id: ConnId, renewed: bool) {
        if !self.publishes_openers {
            return;
        }
        let Some(c) = self.conns.get_mut(&id) else { return };
        let Conn { connection, opener_lanes, closed, .. } = &mut **c;
        let lanes: Vec<_> = connection.lanes_on_other_sockets().filter(|_| !*closed).collect();
        opener_lanes.retain(|(cid, socket)| {
            let stays = lanes.iter().any(|(_, c, _)| c == cid);
            if !stays {
                self.opener_updates.push_back(OpenerUpdate { socket: *socket, cid: *cid, opener: None });
            }
            stays
        });
        for (lane, cid, socket) in lanes.into_iter().filter(|_| renewed) {
            if !opener_lanes.contains(&(cid, socket)) {
                opener_lanes.push((cid, socket));
            }
            self.opener_updates.push_back(OpenerUpdate {
                socket,
                cid,
                opener: connection.train_opener(lane),
            });
        }
    }
}
