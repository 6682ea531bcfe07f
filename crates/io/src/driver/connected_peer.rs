//! Gives a spinning server a connected socket for the one client that exchanges short messages with it: both
//! directions then save what [`UdpSocket::attach`] saves.

use super::single_messages::SingleMessages;
use crate::udp::{RecvBatch, SendBatch, UdpError, UdpSocket};
use base::Time;
use std::net::{IpAddr, SocketAddr};

/// One look of so many is for those who are not the connected socket's peer: they wait for up to some seven microseconds longer, and
/// what is looked for in vain costs the peer 20 ns of a round trip.
const OTHERS: u32 = 16;

/// The state of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There may still be what came before it was connected: senders are asked for.
    Fresh,
    /// All is the peer's.
    Settled,
    /// Nothing arrives any more. It is closed as soon as it is empty.
    Leaving,
}

/// The client that sends single messages, and the socket connected to it.
#[derive(Debug)]
pub(super) struct ConnectedPeer {
    open: Option<(UdpSocket, Stage)>,
    /// The client, and the address that it speaks to.
    peer: Option<(SocketAddr, IpAddr)>,
    /// Its messages, less what those of others take back. "Lean" is that it has a socket, or was refused one.
    singles: SingleMessages,
    looks: u32,
    /// How many there were.
    #[cfg(test)]
    pub opened: std::sync::Arc<std::sync::atomic::AtomicU32>,
}

impl ConnectedPeer {
    pub(super) fn new() -> ConnectedPeer {
        ConnectedPeer {
            open: None,
            peer: None,
            singles: SingleMessages::new(),
            looks: 0,
            #[cfg(test)]
            opened: Default::default(),
        }
    }

    /// Whether there is something to look at beside the first socket.
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A single message arrived `from` a client at an address of ours. Opens a connected socket beside `first` for it
    /// if that is worth it, and then returns true; closes it when other clients send more than occasionally.
    pub(super) fn on_single_message(
        &mut self,
        now: Time,
        from: (SocketAddr, IpAddr),
        first: &UdpSocket,
    ) -> bool {
        if self.peer != Some(from) {
            if self.singles.on_several() {
                self.leave();
                self.peer = Some(from);
            }
            return false;
        }
        if !self.singles.on_single() || self.open.is_some() || !self.singles.should_become_lean(now) {
            return false;
        }
        match first.open_connected(from.0, from.1) {
            Ok(socket) => self.open = Some((socket, Stage::Fresh)),
            // It is not tried again before messages came in another way for a while.
            Err(error) => tracing::debug!(%error, peer = %from.0, "no socket of its own for a client"),
        }
        #[cfg(test)]
        self.opened.fetch_add(self.open.is_some().into(), std::sync::atomic::Ordering::Relaxed);
        self.open.is_some()
    }

    /// Receives from the connected socket. `None`: it is the first socket's turn.
    pub(super) fn receive(&mut self, batch: &mut RecvBatch) -> Result<Option<usize>, UdpError> {
        let Some((socket, stage)) = &mut self.open else { return Ok(None) };
        self.looks = (self.looks + 1) % OTHERS;
        if self.looks == 0 && *stage != Stage::Leaving {
            return Ok(None);
        }
        let n = socket.recv(batch)?;
        if batch.trains() == 0 {
            match (*stage, self.peer) {
                (Stage::Fresh, Some((peer, _))) => {
                    socket.mark_drained(peer);
                    *stage = Stage::Settled;
                }
                (Stage::Leaving, _) => {
                    self.open = None;
                    return Ok(None);
                }
                _ => {}
            }
        }
        Ok(Some(n))
    }

    /// The connected socket, if it can send all of this batch.
    pub(super) fn can_send(&self, batch: &SendBatch) -> Option<&UdpSocket> {
        let (socket, _) = self.open.as_ref()?;
        batch.ends().all(|(dst, src)| socket.is_attached_to(dst, src)).then_some(socket)
    }

    /// Closes the connected socket once what waits there was received.
    pub(super) fn leave(&mut self) {
        self.singles.end();
        let _ = self.singles.should_end_lean();
        let Some((socket, stage)) = self.open.as_mut().filter(|(_, stage)| *stage != Stage::Leaving) else {
            return;
        };
        *stage = Stage::Leaving;
        if let Err(error) = socket.retire() {
            tracing::debug!(%error, "a client's socket is closed as it is");
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{SendMeta, UdpOptions};
    use base::{Ecn, Span};

    const AT: Time = Time::from_nanos(1 << 40);

    fn socket(bind: &str) -> UdpSocket {
        UdpSocket::open(&UdpOptions::new(bind.parse().unwrap())).unwrap()
    }

    fn batch(dst: SocketAddr, src: IpAddr, bytes: &[u8]) -> SendBatch {
        let mut b = SendBatch::new();
        b.slot().unwrap()[..bytes.len()].copy_from_slice(bytes);
        let meta = SendMeta { dst, src: Some(src), ecn: Ecn::Ect0, dscp: 0, segment: bytes.len() };
        b.commit(meta, bytes.len()).unwrap();
        b
    }

    /// A server's first socket, two clients, and the address that these speak to.
    struct Place {
        first: UdpSocket,
        clients: [UdpSocket; 2],
        at: SocketAddr,
        c: ConnectedPeer,
        batch: RecvBatch,
    }

    impl Place {
        fn new(bind: &str, from: &str) -> Place {
            let (first, clients) = (socket(bind), [socket(from), socket(from)]);
            let at = SocketAddr::new(clients[0].local_addr().ip(), first.local_addr().port());
            let batch = first.recv_batch();
            Place { first, clients, at, c: ConnectedPeer::new(), batch }
        }

        /// A client's message was taken.
        fn on_single_message(&mut self, now: Time, client: usize) -> bool {
            self.c.on_single_message(now, (self.clients[client].local_addr(), self.at.ip()), &self.first)
        }

        /// Enough messages for a connected socket for the first client.
        fn open(&mut self, now: Time) {
            let opened = (0..100).position(|_| self.on_single_message(now, 0));
            assert!(opened.is_some_and(|n| n >= 31) && self.c.is_open(), "{opened:?}");
        }

        fn say(&self, client: usize, text: &[u8]) {
            let mut b = batch(self.at, self.at.ip(), text);
            assert_eq!(self.clients[client].send(&mut b).unwrap().sent, 1);
        }

        /// What many looks find, in order: whether at the connected socket, from which client, and what it says. Loopback delivers
        /// before a send returns.
        fn found(&mut self) -> Vec<(bool, usize, Vec<u8>)> {
            let mut found = Vec::new();
            for _ in 0..4 * OTHERS {
                let n = self.c.receive(&mut self.batch).unwrap();
                if n.is_none() {
                    self.first.recv(&mut self.batch).unwrap();
                }
                for (m, bytes) in self.batch.iter_mut() {
                    assert_eq!((m.local, m.ecn), (Some(self.at.ip()), Ecn::Ect0));
                    let client = self.clients.iter().position(|c| c.local_addr() == m.remote);
                    found.push((n.is_some(), client.expect("one of the two"), bytes.to_vec()));
                }
                // Most are asked for nothing but their bytes then.
                self.batch.expect_plain();
            }
            found
        }
    }

    /// For each way to be bound: to one address or to all, for one family or for both.
    fn places() -> impl Iterator<Item = Place> {
        let ends = [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:0", "127.0.0.1:0"),
            ("[::1]:0", "[::1]:0"),
            ("[::]:0", "[::1]:0"),
            ("[::]:0", "127.0.0.1:0"),
        ];
        ends.into_iter().map(|(bind, from)| Place::new(bind, from))
    }

    #[test]
    fn connected_socket_receives_its_peer_and_others_reach_the_first() {
        for mut p in places() {
            p.say(0, b"before");
            p.open(AT);
            let sealed = batch(p.clients[0].local_addr(), p.at.ip(), b"x");
            assert!(p.c.can_send(&sealed).is_none(), "not before it was found empty");
            for i in 0..40 {
                p.say(0, &[i]);
                p.say(1, &[i, i]);
                let mut found = p.found();
                found.sort_unstable();
                let before = (i == 0).then(|| (false, 0, b"before".to_vec()));
                let mut all: Vec<_> = before.into_iter().collect();
                all.extend([(false, 1, vec![i, i]), (true, 0, vec![i])]);
                assert_eq!(found, all);
            }
            let others = batch(p.clients[1].local_addr(), p.at.ip(), b"x");
            assert!(p.c.can_send(&others).is_none());
            for len in [1, 900] {
                let mut back = batch(p.clients[0].local_addr(), p.at.ip(), &vec![7; len]);
                let companion = p.c.can_send(&back).expect("all of it is for the one");
                assert_eq!(companion.send(&mut back).unwrap().sent, 1);
                assert_eq!(p.clients[0].recv(&mut p.batch).unwrap(), 1);
                let (m, bytes) = p.batch.iter_mut().next().expect("one");
                assert_eq!((m.remote, m.ecn, bytes.len()), (p.at, Ecn::Ect0, len));
            }
        }
    }

    #[test]
    fn closing_connected_socket_is_drained_and_keeps_the_port() {
        for mut p in places() {
            let taken = |p: &Place| {
                let own = p.first.local_addr();
                [own, p.at].into_iter().all(|at| {
                    UdpSocket::open(&UdpOptions { reuse_port: true, ..UdpOptions::new(at) }).is_err()
                })
            };
            for round in 0..3u64 {
                p.open(AT + Span::from_secs(round));
                assert!(taken(&p), "nobody may join");
                assert_eq!(p.found(), []);
                (0..3).for_each(|i| p.say(0, &[i]));
                p.c.leave();
                p.c.leave();
                let back = batch(p.clients[0].local_addr(), p.at.ip(), b"x");
                assert!(p.c.is_open() && p.c.can_send(&back).is_none());
                p.say(0, b"after");
                p.say(1, b"another");
                let mut found = p.found();
                found.sort_by_key(|(companion, client, _)| (!companion, *client));
                let waited = (0..3).map(|i| (true, 0, vec![i]));
                let rest = [(false, 0, b"after".to_vec()), (false, 1, b"another".to_vec())];
                assert_eq!(found, waited.chain(rest).collect::<Vec<_>>());
                assert!(!p.c.is_open() && taken(&p));
            }
        }
    }

    #[test]
    fn occasional_messages_of_others_keep_the_connected_socket() {
        let mut p = Place::new("127.0.0.1:0", "127.0.0.1:0");
        for _ in 0..10 {
            (0..20).for_each(|_| _ = p.on_single_message(AT, 0));
            assert!(!p.on_single_message(AT, 1));
        }
        assert!(p.c.is_open());
        assert_eq!(p.found(), []);
        let settled = batch(p.clients[0].local_addr(), p.at.ip(), b"x");
        assert!(p.c.can_send(&settled).is_some());
        (0..20).for_each(|_| _ = p.on_single_message(AT, 1));
        assert!(p.c.can_send(&settled).is_none(), "another speaks all the time");
        assert_eq!(p.found(), []);
        assert!((0..100).all(|_| !p.on_single_message(AT, 1)), "sockets are not opened all the time");
        assert!((0..100).any(|_| p.on_single_message(AT + Span::from_secs(1), 1)));
    }

    #[test]
    fn foreign_address_gets_no_connected_socket() {
        let mut p = Place::new("127.0.0.1:0", "127.0.0.1:0");
        p.at.set_ip("192.0.2.1".parse().unwrap());
        assert!((0..100).all(|_| !p.on_single_message(AT, 0)) && !p.c.is_open());
        p.at.set_ip("127.0.0.1".parse().unwrap());
        p.say(0, b"hello");
        assert_eq!(p.found(), [(false, 0, b"hello".to_vec())]);
    }
}
