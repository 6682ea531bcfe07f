//! Pairs two queue pairs of two processes.
//!
//! The private data of the request for a queue pair (QP_OPEN) is: version 1 (one byte), the number of the queue pair that asks and of
//! the one that is asked for (four bytes each, big endian); for a branch of XRC (`xrc.rs`), the number of the receive queue (four
//! bytes) as well. It is granted when the program has named exactly that peer.

use super::xrc::Xrc;
use super::{AsyncEvent, Entry, Fabric, Link, Remote};
use base::Time;
use endpoint::{CloseReason, ConnId, Connect, Endpoint, QpOptions};
use std::net::{IpAddr, SocketAddr};
use transport::crypto::ServerTrust;
use verbs::{Error, Kind, QpInit, QpState, Status};

const VERSION: u8 = 1;
/// Requests that wait until the program names the peer, at most.
const MAX_REQUESTS: usize = 1 << 14;
/// Why a request is refused: no such queue pair, or it is another one's peer.
pub(super) const NOT_HERE: u64 = 0x100;
/// The same: too many requests wait.
pub(super) const TOO_MANY: u64 = 0x101;
/// Why a connection is closed: this process has its queue pairs on streams.
pub(super) const OTHER_TRANSPORT: u64 = 0x102;

/// A peer's request for a queue pair of ours that has not been told of its peer yet.
pub(super) struct Request {
    pub(super) conn: ConnId,
    /// Its number on the connection. None: the connection is its stream.
    pub(super) slot: Option<u16>,
    pub(super) from: Remote,
    pub(super) to: u32,
    /// The receive queue that a branch is for.
    pub(super) queue: Option<u32>,
}

impl Request {
    fn refuse(&self, now: Time, endpoint: &mut Endpoint, code: u64) {
        match self.slot {
            Some(slot) => endpoint.refuse_requested_qp(now, self.conn, slot, code),
            None if code == TOO_MANY => {
                endpoint.refuse_stream(now, self.conn, "too many requests wait there")
            }
            None => endpoint.refuse_stream(
                now,
                self.conn,
                "there is no such queue pair, or another one is its peer",
            ),
        }
    }
}

pub(super) fn encode(from: u32, to: u32) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Option<(u32, u32)> {
    let [VERSION, rest @ ..] = bytes else { return None };
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let to = rest.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*from), u32::from_be_bytes(*to)))
}

/// The receive queue that a request is for.
fn queue_of(bytes: &[u8]) -> Option<u32> {
    bytes.get(9..)?.first_chunk::<4>().map(|n| u32::from_be_bytes(*n))
}

impl Fabric {
    /// The program names the peer of a queue pair, which goes from INIT to RTR. `own` is the address by which the peer names this
    /// process.
    pub(crate) fn set_remote(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        number: u32,
        (own, remote): (SocketAddr, Remote),
    ) -> Result<(), Error> {
        let e = self.entries.get_mut(&number).ok_or(Error::NotFound("queue pair"))?;
        endpoint.adapter().modify_qp(e.id, QpState::Rtr)?;
        e.remote = Some(remote);
        e.link = Link::Waiting;
        let is_own = (own, number) == (remote.process, remote.number) && e.xrc.is_none();
        // Of XRC who sends asks, once it has something for a receive queue.
        e.asks = is_own || e.xrc.is_none() && (own, number) < (remote.process, remote.number);
        if is_own {
            self.split(endpoint, number)?;
        }
        let Some(e) = self.entries.get(&number) else { return Ok(()) };
        if e.asks {
            self.ask(now, endpoint, number);
        }
        while let Some(i) = self.requests.iter().position(|r| r.to == number && r.from == remote) {
            let r = self.requests.swap_remove(i);
            self.grant(now, endpoint, &r);
        }
        Ok(())
    }

    /// A queue pair that is its own peer, which InfiniBand allows: it keeps the adapter's queue pair that has its receives, and sends
    /// by another one.
    fn split(&mut self, endpoint: &mut Endpoint, number: u32) -> Result<(), Error> {
        let Some(e) = self.entries.get_mut(&number) else { return Ok(()) };
        let adapter = endpoint.adapter();
        let sends = adapter.create_qp(e.pd, QpInit { srq: None, max_recv_wr: 1, ..e.init.clone() })?;
        adapter.modify_qp(sends, QpState::Rtr)?;
        adapter.modify_qp(e.id, QpState::Rts)?;
        adapter.set_qp_access(e.id, e.access)?;
        e.twin = Some(core::mem::replace(&mut e.id, sends));
        self.by_id.insert(sends, number);
        Ok(())
    }

    /// Asks the peer's process, by a connection that there is or is made.
    pub(super) fn ask(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        let Some(e) = self.entries.get(&number) else { return };
        let Some(remote) = e.remote else { return };
        if self.by_streams.is_some() {
            return self.ask_by_stream(now, endpoint, number, remote);
        }
        match self.peers.get(&remote.process) {
            Some(conn) if self.established.contains_key(conn) => {
                let mut private_data = encode(number, remote.number);
                private_data.extend(e.queue().into_iter().flat_map(u32::to_be_bytes));
                let options = QpOptions {
                    reliable: e.init.kind != Kind::Unreliable,
                    private_data,
                    dscp: e.dscp,
                    ..QpOptions::default()
                };
                if let Err(error) = endpoint.open_own_qp(now, *conn, options, e.id) {
                    tracing::warn!(number, %error, "cannot connect a queue pair");
                    self.fail(now, endpoint, number, Status::TransportFailed);
                }
            }
            Some(_) => {}
            None => {
                if !self.connect(now, endpoint, remote.process) {
                    self.fail(now, endpoint, number, Status::TransportFailed);
                }
            }
        }
    }

    /// Begins to connect to a process. False when that is not possible.
    pub(super) fn connect(&mut self, now: Time, endpoint: &mut Endpoint, process: SocketAddr) -> bool {
        let connect = Connect {
            remote: process,
            server_name: process.ip().to_string(),
            trust: ServerTrust::Pinned(vec![self.trusted]),
            token: None,
            options: None,
            iwarp: self.between_processes(),
        };
        match endpoint.connect(now, connect) {
            Ok(conn) => drop(self.peers.insert(process, conn)),
            Err(error) => {
                tracing::warn!(peer = %process, %error, "cannot connect");
                return false;
            }
        }
        true
    }

    /// A process has connected to this one: what is sent to it takes this connection, too, unless there is one already.
    pub(super) fn on_incoming(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId) {
        let process = match &self.by_streams {
            None => endpoint.connection(conn).map(|c| canonical(c.remote)),
            Some(_) => self.incoming_by_stream(now, endpoint, conn),
        };
        let Some(process) = process else { return };
        self.established.insert(conn, process);
        self.peers.entry(process).or_insert(conn);
        self.carry(now, endpoint, conn, process);
    }

    pub(super) fn on_connected(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId) {
        if self.on_stream(conn) {
            return;
        }
        let Some((process, _)) = self.peers.iter().find(|(_, c)| **c == conn) else { return };
        let process = *process;
        self.established.insert(conn, process);
        self.carry(now, endpoint, conn, process);
        let wants =
            |e: &Entry| e.asks && e.link == Link::Waiting && e.remote.is_some_and(|r| r.process == process);
        let numbers: Vec<u32> = self.entries.iter().filter(|(_, e)| wants(e)).map(|(n, _)| *n).collect();
        for number in numbers {
            self.ask(now, endpoint, number);
        }
    }

    pub(super) fn on_request(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        conn: ConnId,
        slot: u16,
        private_data: &[u8],
    ) {
        let process = endpoint.connection(conn).map(|c| c.remote);
        let (Some((from, to)), Some(process)) = (decode(private_data), process) else {
            return endpoint.refuse_requested_qp(now, conn, slot, NOT_HERE);
        };
        if (from, to) == (0, 0) {
            let dscp = private_data.get(9).copied().unwrap_or(0);
            return self.grant_lane(now, endpoint, (conn, slot), dscp);
        }
        let queue = queue_of(private_data);
        let from = Remote { process: canonical(process), number: from };
        self.consider(now, endpoint, Request { conn, slot: Some(slot), from, to, queue });
    }

    /// Grants a request, refuses it, or lets it wait until the program has named the peer.
    pub(super) fn consider(&mut self, now: Time, endpoint: &mut Endpoint, r: Request) {
        match self.entries.get(&r.to).map(|e| e.remote) {
            Some(Some(remote)) if remote == r.from => self.grant(now, endpoint, &r),
            Some(None) if self.requests.len() < MAX_REQUESTS => self.requests.push(r),
            Some(None) => r.refuse(now, endpoint, TOO_MANY),
            _ => r.refuse(now, endpoint, NOT_HERE),
        }
    }

    /// A queue pair of ours is gone: who asked for it waits in vain.
    pub(super) fn refuse_requests(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        let (refused, kept) = self.requests.drain(..).partition::<Vec<_>, _>(|r| r.to == number);
        self.requests = kept;
        refused.iter().for_each(|r| r.refuse(now, endpoint, NOT_HERE));
    }

    fn grant(&mut self, now: Time, endpoint: &mut Endpoint, r: &Request) {
        let Some(e) = self.entries.get_mut(&r.to) else { return };
        let is_granted = match (r.queue, &e.xrc) {
            (Some(queue), Some(Xrc::Target { .. })) => self.grant_branch(now, endpoint, r, queue),
            (None, None) => return self.pair(now, endpoint, r),
            _ => false,
        };
        if !is_granted {
            r.refuse(now, endpoint, NOT_HERE);
        }
    }

    fn pair(&mut self, now: Time, endpoint: &mut Endpoint, r: &Request) {
        let Some(e) = self.entries.get_mut(&r.to) else { return };
        let (id, dscp) = (e.receives_at(), e.dscp);
        let accepted = match r.slot {
            Some(slot) => endpoint.accept_qp_marked(now, r.conn, (slot, id), dscp),
            None => endpoint.accept_stream(now, r.conn, id).map(|()| {
                self.name_stream(r.conn, r.to);
                self.mark_stream(endpoint, r.conn, r.to);
            }),
        };
        if let Err(error) = accepted {
            tracing::debug!(number = r.to, %error, "a request is gone");
        }
    }

    pub(super) fn on_closed(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId, why: &CloseReason) {
        if self.on_stream_closed(now, endpoint, conn, why) {
            return;
        }
        let was_at = self.established.remove(&conn);
        self.carry_no_more(endpoint, conn);
        self.requests.retain(|r| r.conn != conn);
        let is_other = matches!(why, CloseReason::Peer { code: OTHER_TRANSPORT, .. });
        let is_ended = matches!(why, CloseReason::Peer { .. } | CloseReason::Local) && !is_other;
        let process = self.peers.iter().find(|(_, c)| **c == conn).map(|(p, _)| *p);
        if let Some(process) = process {
            self.peers.remove(&process);
            self.drop_waiting(process);
            if !is_ended {
                let why = self.words_of(why);
                self.events.push(AsyncEvent::ProcessLost { process, why });
            }
        }
        let asked = |e: &Entry| {
            e.asks && e.link == Link::Waiting && e.remote.map(|r| r.process) == process && process.is_some()
        };
        let of = |f: &dyn Fn(&Entry) -> bool| -> Vec<u32> {
            self.entries.iter().filter(|(_, e)| f(e)).map(|(n, _)| *n).collect()
        };
        let (waiting, paired) = (of(&asked), of(&|e| e.link == Link::Paired(conn)));
        for number in waiting {
            self.fail(now, endpoint, number, Status::TransportFailed);
        }
        for number in paired {
            if is_ended {
                self.on_gone(now, number);
            } else {
                // It fell silent: who waits for it is told.
                self.fail(now, endpoint, number, Status::TransportFailed);
            }
        }
        let _ = endpoint.release(conn);
        if let Some(process) = was_at.or(process) {
            self.tell_gone(process);
        }
    }

    /// Closes connections for good: the process ends.
    pub(crate) fn close_all(&mut self, now: Time, endpoint: &mut Endpoint) {
        let ids: Vec<_> = self.by_id.keys().copied().collect();
        ids.into_iter().for_each(|id| endpoint.disconnect_qp(now, id));
        for conn in self.established.keys().chain(self.peers.values()) {
            endpoint.close(now, *conn, 0, "the program has ended");
        }
    }
}

/// IPv4 mapped into IPv6 is IPv4.
pub(super) fn canonical(a: SocketAddr) -> SocketAddr {
    let ip: IpAddr = a.ip().to_canonical();
    SocketAddr::new(ip, a.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_both_numbers_and_others_are_refused() {
        assert_eq!(encode(0x0102_0304, 5), [1, 1, 2, 3, 4, 0, 0, 0, 5]);
        assert_eq!(decode(&encode(7, 0xff_ffff)), Some((7, 0xff_ffff)));
        assert_eq!(decode(&[&encode(7, 8)[..], b"later versions"].concat()), Some((7, 8)));
        for bad in [&[][..], &[1], &[2, 0, 0, 0, 7, 0, 0, 0, 8], &encode(7, 8)[..8]] {
            assert_eq!(decode(bad), None);
        }
    }
}
