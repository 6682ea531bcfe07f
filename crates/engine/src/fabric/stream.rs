//! Queue pairs over iWARP: each has a stream of its own, which belongs to a connection of its own.
//!
//! The private data of the connection is that of every request for a queue pair (`pairing.rs`). Who sent it is the process whose port
//! the number of the asking queue pair says, at the address that the stream comes from: all that get so far have the cluster's key.
//!
//! What connection managers say to each other takes one more connection, as many as two processes ever make. Its private data is:
//! version 2 (one byte) and the UDP port of the process that connects (two bytes, big endian).

use super::pairing::{OTHER_TRANSPORT, Request, canonical, decode, encode};
use super::{AsyncEvent, Fabric, Link, Remote};
use crate::address::{FIRST_PORT, PORTS, port_of};
use base::{Span, Time};
use endpoint::{CloseReason, ConnId, Connect, Endpoint, Iwarp, IwarpServer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use transport::crypto::ServerTrust;
use verbs::Status;

const PROCESS: u8 = 2;
/// How long a request may wait until the program names the peer: programs exchange numbers by other ways, and with each other.
const STARTUP: Span = Span::from_secs(60);

/// How streams are made, and which connection has the stream of which queue pair.
#[derive(Debug, Default)]
pub(crate) struct ByStreams {
    /// Without TLS: everything is in the clear.
    pub(crate) plain: bool,
    /// Congestion control by the system's name for it.
    pub(crate) congestion: Option<String>,
    numbers: BTreeMap<ConnId, u32>,
}

impl ByStreams {
    pub(crate) fn new(plain: bool, congestion: Option<String>) -> ByStreams {
        ByStreams { plain, congestion, numbers: BTreeMap::new() }
    }

    /// How peers are answered.
    pub(crate) fn server(&self) -> IwarpServer {
        let mut server = IwarpServer { plain: self.plain, tls: !self.plain, ..IwarpServer::default() };
        server.settings.startup_timeout = STARTUP;
        server
    }

    fn client(&self, private_data: Vec<u8>) -> Iwarp {
        let congestion = self.congestion.clone();
        let mut iwarp = Iwarp { tls: !self.plain, congestion, private_data, ..Iwarp::default() };
        iwarp.settings.startup_timeout = STARTUP;
        iwarp
    }
}

fn process_of(private_data: &[u8]) -> Option<u16> {
    let &[PROCESS, high, low, ..] = private_data else { return None };
    let port = u16::from_be_bytes([high, low]);
    (FIRST_PORT..FIRST_PORT + PORTS).contains(&port).then_some(port)
}

impl Fabric {
    /// What a connection between two processes is to be, beside those of queue pairs.
    pub(super) fn between_processes(&self) -> Option<Iwarp> {
        let [high, low] = self.numbers.port().to_be_bytes();
        Some(self.by_streams.as_ref()?.client(vec![PROCESS, high, low]))
    }

    /// Connects a queue pair's stream.
    pub(super) fn ask_by_stream(&mut self, now: Time, endpoint: &mut Endpoint, number: u32, remote: Remote) {
        let (Some(streams), Some(e)) = (&mut self.by_streams, self.entries.get(&number)) else { return };
        let iwarp = Iwarp { own_qp: Some(e.id), ..streams.client(encode(number, remote.number)) };
        let connect = Connect {
            remote: remote.process,
            server_name: remote.process.ip().to_string(),
            trust: ServerTrust::Pinned(vec![self.trusted]),
            token: None,
            options: None,
            iwarp: Some(iwarp),
        };
        match endpoint.connect(now, connect) {
            Ok(conn) => {
                streams.numbers.insert(conn, number);
                self.mark_stream(endpoint, conn, number);
            }
            Err(error) => {
                tracing::warn!(number, %error, "cannot connect a queue pair");
                self.fail(now, endpoint, number, Status::TransportFailed);
            }
        }
    }

    /// A peer asks for a stream to a queue pair of ours.
    pub(super) fn on_stream_request(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        conn: ConnId,
        private_data: &[u8],
    ) {
        let host = endpoint.connection(conn).map(|c| c.remote.ip().to_canonical());
        let from = decode(private_data).and_then(|(from, to)| {
            let process = SocketAddr::new(host?, port_of(from)?);
            Some((Remote { process, number: from }, to))
        });
        match from {
            Some((from, to)) => {
                self.consider(now, endpoint, Request { conn, slot: None, from, to, queue: None });
            }
            None => endpoint.refuse_stream(now, conn, "the request for a queue pair is malformed"),
        }
    }

    /// A connection has the stream of this queue pair.
    pub(super) fn name_stream(&mut self, conn: ConnId, number: u32) {
        if let Some(streams) = &mut self.by_streams {
            streams.numbers.insert(conn, number);
        }
    }

    /// Has the packets of a queue pair's stream carry its code point, by which rules of policies find it.
    pub(super) fn mark_stream(&self, endpoint: &mut Endpoint, conn: ConnId, number: u32) {
        if let Some(dscp) = self.entries.get(&number).and_then(|e| e.dscp) {
            let _ = endpoint.set_iwarp_qos(conn, None, Some(dscp));
        }
    }

    fn number_of(&self, conn: ConnId) -> Option<u32> {
        self.by_streams.as_ref()?.numbers.get(&conn).copied()
    }

    /// A connection is there. False when it is none of a queue pair.
    pub(super) fn on_stream(&mut self, conn: ConnId) -> bool {
        let Some(number) = self.number_of(conn) else { return false };
        if let Some(e) = self.entries.get_mut(&number).filter(|e| e.link == Link::Waiting) {
            e.link = Link::Paired(conn);
        }
        true
    }

    /// A peer has connected: the process that it is, if the connection is one between processes.
    pub(super) fn incoming_by_stream(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        conn: ConnId,
    ) -> Option<SocketAddr> {
        if self.on_stream(conn) {
            return None;
        }
        let info = endpoint.connection(conn)?;
        let Some(iwarp) = &info.iwarp else {
            let words = "the program there runs with --transport iwarp; give both ends the same --transport";
            endpoint.close(now, conn, OTHER_TRANSPORT, words);
            return None;
        };
        match process_of(&iwarp.private_data) {
            Some(port) => Some(SocketAddr::new(canonical(info.remote).ip(), port)),
            None => {
                endpoint.close(now, conn, OTHER_TRANSPORT, "this is not what processes of a cluster say");
                None
            }
        }
    }

    /// A connection has ended. False when it is none of a queue pair.
    pub(super) fn on_stream_closed(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        conn: ConnId,
        why: &CloseReason,
    ) -> bool {
        let Some(number) = self.number_of(conn) else { return false };
        if let Some(streams) = &mut self.by_streams {
            streams.numbers.remove(&conn);
        }
        let link = self.entries.get(&number).map(|e| (e.link, e.remote));
        match (link, why) {
            // This end did it: it may have another one by now.
            (_, CloseReason::Local) | (None, _) => {}
            (Some((Link::Paired(c), _)), CloseReason::Peer { .. }) if c == conn => self.on_gone(now, number),
            (Some((Link::Paired(c), _)), _) if c != conn => {}
            (Some((Link::Waiting | Link::Paired(_), Some(remote))), _) => {
                let why = self.words_of(why);
                self.events.push(AsyncEvent::ProcessLost { process: remote.process, why });
                self.fail(now, endpoint, number, Status::TransportFailed);
            }
            _ => {}
        }
        let _ = endpoint.release(conn);
        true
    }

    /// Why a connection ended, for people.
    pub(super) fn words_of(&self, why: &CloseReason) -> String {
        let said = match why {
            CloseReason::Peer { code: OTHER_TRANSPORT, reason } => reason.clone(),
            CloseReason::Stream(text) if self.by_streams.is_some() && text.contains("for iWARP") => {
                format!("{text} (both programs need --transport iwarp)")
            }
            CloseReason::Handshake(_) => format!("{why} (do both programs have the same cluster's key?)"),
            _ => why.to_string(),
        };
        base::text::line(&said).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_its_port_and_nothing_else_is_taken_for_one() {
        assert_eq!(process_of(&[2, 0x60, 5]), Some(FIRST_PORT + 5));
        assert_eq!(process_of(&[2, 0x60, 5, 9]), Some(FIRST_PORT + 5), "later versions may say more");
        for bad in [&[][..], &[2], &[2, 0x60], &[1, 0x60, 5], &[2, 0x5f, 0xff], &[2, 0x64, 0]] {
            assert_eq!(process_of(bad), None, "{bad:?}");
        }
    }
}
