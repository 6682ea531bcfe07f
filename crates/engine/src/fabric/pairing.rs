//! How two queue pairs find each other.
//!
//! The private data of the request for a queue pair (QP_OPEN) is: version 1 (one byte), the number of the queue pair that asks and of
//! the one that is asked for (four bytes each, big endian). It is granted when the program has named exactly that peer.

use super::{Entry, Fabric, Link, Remote};
use base::Time;
use endpoint::{CloseReason, ConnId, Connect, Endpoint, QpOptions};
use std::net::{IpAddr, SocketAddr};
use transport::crypto::ServerTrust;
use verbs::{Error, Kind, QpState, Status};

const VERSION: u8 = 1;
/// Requests that wait until the program names the peer, at most.
const MAX_REQUESTS: usize = 1 << 14;
/// Why a request is refused: no such queue pair, or it is another one's peer.
const NOT_HERE: u64 = 0x100;
/// The same: too many requests wait.
const TOO_MANY: u64 = 0x101;

/// A peer's request for a queue pair of ours that has not been told of its peer yet.
pub(super) struct Request {
    conn: ConnId,
    /// Its number on the connection.
    slot: u16,
    from: Remote,
    to: u32,
}

fn encode(from: u32, to: u32) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u32, u32)> {
    let [VERSION, rest @ ..] = bytes else { return None };
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let to = rest.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*from), u32::from_be_bytes(*to)))
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
        e.asks = (own, number) < (remote.process, remote.number);
        if e.asks {
            self.ask(now, endpoint, number);
        } else if let Some(i) = self.requests.iter().position(|r| r.to == number && r.from == remote) {
            let r = self.requests.swap_remove(i);
            self.grant(now, endpoint, &r);
        }
        Ok(())
    }

    /// Asks the peer's process, by a connection that there is or is made.
    fn ask(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        let Some(e) = self.entries.get(&number) else { return };
        let Some(remote) = e.remote else { return };
        match self.peers.get(&remote.process) {
            Some(conn) if self.established.contains_key(conn) => {
                let options = QpOptions {
                    reliable: e.init.kind != Kind::Unreliable,
                    private_data: encode(number, remote.number),
                    ..QpOptions::default()
                };
                if let Err(error) = endpoint.open_own_qp(now, *conn, options, e.id) {
                    tracing::warn!(number, %error, "cannot connect a queue pair");
                    self.fail(now, endpoint, number, Status::TransportFailed);
                }
            }
            Some(_) => {}
            None => {
                let connect = Connect {
                    remote: remote.process,
                    server_name: remote.process.ip().to_string(),
                    trust: ServerTrust::Pinned(vec![self.trusted]),
                    token: None,
                    options: None,
                    iwarp: None,
                };
                match endpoint.connect(now, connect) {
                    Ok(conn) => {
                        self.peers.insert(remote.process, conn);
                    }
                    Err(error) => {
                        tracing::warn!(peer = %remote.process, %error, "cannot connect");
                        self.fail(now, endpoint, number, Status::TransportFailed);
                    }
                }
            }
        }
    }

    pub(super) fn on_connected(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId) {
        let Some((process, _)) = self.peers.iter().find(|(_, c)| **c == conn) else { return };
        let process = *process;
        self.established.insert(conn, process);
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
        let r = Request { conn, slot, from: Remote { process: canonical(process), number: from }, to };
        match self.entries.get(&to).map(|e| e.remote) {
            Some(Some(remote)) if remote == r.from => self.grant(now, endpoint, &r),
            // Its program has not named the peer yet.
            Some(None) if self.requests.len() < MAX_REQUESTS => self.requests.push(r),
            Some(None) => endpoint.refuse_requested_qp(now, conn, slot, TOO_MANY),
            _ => endpoint.refuse_requested_qp(now, conn, slot, NOT_HERE),
        }
    }

    fn grant(&mut self, now: Time, endpoint: &mut Endpoint, r: &Request) {
        let Some(e) = self.entries.get_mut(&r.to) else { return };
        if let Err(error) = endpoint.accept_qp(now, r.conn, r.slot, e.id) {
            tracing::debug!(number = r.to, %error, "a request is gone");
        }
    }

    pub(super) fn on_closed(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId, why: &CloseReason) {
        self.established.remove(&conn);
        self.requests.retain(|r| r.conn != conn);
        let process = self.peers.iter().find(|(_, c)| **c == conn).map(|(p, _)| *p);
        if let Some(process) = process {
            self.peers.remove(&process);
            tracing::info!(peer = %process, %why, "a connection has ended");
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
        let is_ended = matches!(why, CloseReason::Peer { .. } | CloseReason::Local);
        for number in paired {
            if is_ended {
                self.on_gone(now, number);
            } else {
                // It fell silent: who waits for it is told.
                self.fail(now, endpoint, number, Status::TransportFailed);
            }
        }
        let _ = endpoint.release(conn);
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
fn canonical(a: SocketAddr) -> SocketAddr {
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
