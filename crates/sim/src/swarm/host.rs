//! The application of a simulated host: its ends of connections, and their shared receive queue.

use super::app::Peer;
use super::pool::Pool;
use base::Time;
use endpoint::{App, ConnId, Endpoint, Event};
use transport::crypto::{PeerIdentity, PublicKey};

/// A host with its ends of connections.
pub struct Host {
    pub peers: Vec<Peer>,
    /// Keys of the clients for which each peer is the server.
    pub keys: Vec<Option<PublicKey>>,
    /// Number of queue pairs that share receives; zero if each has its own.
    pub sharing_qps: u64,
    pub pool: Option<Pool>,
    pub ended: bool,
}

impl Host {
    pub fn new(peers: Vec<Peer>, keys: Vec<Option<PublicKey>>, sharers: u64) -> Host {
        Host { peers, keys, sharing_qps: sharers, pool: None, ended: false }
    }

    /// The peer that an event is for.
    fn owner(&self, e: &Endpoint, ev: &Event) -> Option<usize> {
        let of = |conn: ConnId| self.peers.iter().position(|p| p.has(conn));
        match ev {
            Event::Incoming { conn } => {
                let Some(PeerIdentity::RawKey(key)) = e.connection(*conn)?.peer.as_ref() else { return None };
                self.keys.iter().position(|k| k.as_ref() == Some(key))
            }
            Event::Connected { conn }
            | Event::QpRequested { conn, .. }
            | Event::StreamRequested { conn, .. }
            | Event::QpGone { conn, .. }
            | Event::QpReady { conn, .. }
            | Event::QpRefused { conn, .. }
            | Event::CcChanged { conn, .. }
            | Event::CcRefused { conn, .. }
            | Event::CcReplaced { conn, .. }
            | Event::CcReplacedByPeer { conn, .. }
            | Event::PathChanged { conn, .. }
            | Event::PathUp { conn, .. }
            | Event::PathDown { conn, .. }
            | Event::Closed { conn, .. } => of(*conn),
        }
    }

    fn events(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(ev) = e.poll_event() {
            match self.owner(e, &ev) {
                Some(i) => {
                    if let Err(text) = self.peers[i].handle(now, e, ev, &mut self.pool) {
                        self.peers[i].fail(&text);
                    }
                }
                // An older connection, released when it was replaced.
                None if matches!(ev, Event::Closed { .. }) => {}
                None => self.peers[0].fail(&format!("nobody's: {ev:?}")),
            }
        }
    }

    fn manage_pool(&mut self, e: &mut Endpoint) {
        if self.sharing_qps > 0 && self.pool.is_none() && !self.ended {
            match Pool::new(self.sharing_qps, e) {
                Ok(p) => {
                    self.pool = Some(p);
                    self.peers[0].set_pool_ended(false);
                }
                Err(text) => self.peers[0].fail(&text),
            }
        }
        if e.connections().count() == 0
            && self.peers.iter().all(Peer::is_over)
            && let Some(pool) = self.pool.take()
        {
            self.ended = true;
            match pool.end(e) {
                Ok(()) => self.peers[0].set_pool_ended(true),
                Err(text) => self.peers[0].fail(&text),
            }
        }
    }
}

impl App for Host {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        self.manage_pool(e);
        let each =
            |this: &mut Host,
             e: &mut Endpoint,
             f: fn(&mut Peer, Time, &mut Endpoint, &mut Option<Pool>) -> Result<(), String>| {
                for p in &mut this.peers {
                    if let Err(text) = f(p, now, e, &mut this.pool) {
                        p.fail(&text);
                    }
                }
            };
        each(self, e, |p, now, e, _| p.connect(now, e));
        self.events(now, e);
        each(self, e, |p, now, e, pool| p.drive(now, e, pool));
        // Events caused by closing.
        self.events(now, e);
        each(self, e, |p, now, e, _| p.connect(now, e));
        self.manage_pool(e);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.peers.iter().filter_map(Peer::wants).min()
    }
}
