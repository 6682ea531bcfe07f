//! Divides a server's sessions among clients by key and by address.
//!
//! While there is room, whoever is authorised gets as many places as it asks for. When all are taken, a newcomer gets the
//! place of another one that, in this order,
//!
//! 1. has said nothing of what it wants for [`ShareLimits::grace`],
//! 2. has moved less than [`ShareLimits::floor`] for [`ShareLimits::window`], though not because the server itself had to
//!    work, or
//! 3. belongs to a key or comes from an address with more places than the newcomer's would have with it, and has more than
//!    the newcomer in the other respect, too.
//!
//! Else it is refused, in words that say what is full. An address is one of IPv4, or 64 bits of IPv6: what one host or
//! household is given (RFC 6177), and what ssh's `PerSourceNetBlockSize` is best set to.

use crate::app::ConnId;
use base::{Span, Time};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use transport::crypto::PeerIdentity;

/// How many sessions a server has, and when a session that is not used can be given to another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Places in all.
    pub places: usize,
    /// One that has not said by then what it wants is closed, whether others wait or not.
    pub first_request: Span,
    /// When all places are taken, by then already.
    pub grace: Span,
    /// Bytes per second, both ways together, below which a session is slow. It is closed only when others wait.
    pub floor: u64,
    /// Over how long that is averaged.
    pub window: Span,
}

impl ShareLimits {
    /// Limits for so many sessions, with defaults for the rest: 20 s and 2 s for the first request, 4 KiB a second
    /// over 10 s.
    pub const fn of(places: usize) -> ShareLimits {
        ShareLimits {
            places,
            first_request: Span::from_secs(20),
            grace: Span::from_secs(2),
            floor: 4_096,
            window: Span::from_secs(10),
        }
    }
}

/// The holder of a session, by key or certificate and by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Of a client that has shown nothing (iWARP without TLS), its address.
    key: [u8; 32],
    network: IpAddr,
}

impl Holder {
    /// The one who has proved to be `peer`, at `remote`.
    pub fn new(peer: Option<&PeerIdentity>, remote: SocketAddr) -> Holder {
        let network = network_of(remote.ip());
        let key = peer.map_or_else(|| nobody(network), PeerIdentity::digest);
        Holder { key, network }
    }
}

/// The part of an address that shares are counted by.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

/// No digest of a key has so many zeros.
fn nobody(network: IpAddr) -> [u8; 32] {
    let mut key = [0; 32];
    let octets = match network {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    key[..16].copy_from_slice(&octets);
    key
}

/// The progress of a session, for [`Shares::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionProgress {
    /// Payload so far, both ways together, what was sent again left out: [`crate::Endpoint::payload_moved`].
    pub bytes: u64,
    /// The server itself works for it, on a disk or at hashes: nothing moving is not the client's doing.
    pub working: bool,
}

/// A session to close: another client gets its place, or it forfeited it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// Which.
    pub conn: ConnId,
    /// Why, for its client; fits a CLOSE frame.
    pub words: String,
}

/// There is no place for a newcomer. The text fits a CLOSE frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SharesFull(String);

struct Session {
    holder: Holder,
    since: Time,
    /// It has said what it wants.
    has_requested: bool,
    /// Start of the window, and what had moved by then.
    window: (Time, u64),
    /// It moved less than the floor in the window before this one, and has not made up for it.
    slow: bool,
}

#[derive(Default)]
struct Counts {
    keys: BTreeMap<[u8; 32], usize>,
    networks: BTreeMap<IpAddr, usize>,
}

impl Counts {
    /// Places of the same key, and of the same address.
    fn of(&self, h: Holder) -> (usize, usize) {
        let (key, network) = (self.keys.get(&h.key), self.networks.get(&h.network));
        (key.copied().unwrap_or(0), network.copied().unwrap_or(0))
    }
}

/// The sessions of a server. The application calls [`Shares::enter`] for each client, reports its first request and
/// its end, and calls [`Shares::check`] each time it is driven.
pub struct Shares {
    limits: ShareLimits,
    /// What a place is for, as users call it: `transfers`.
    what: &'static str,
    places: BTreeMap<ConnId, Session>,
    next: Option<Time>,
}

impl Shares {
    /// All places free.
    pub fn new(limits: ShareLimits, what: &'static str) -> Shares {
        Shares { limits, what, places: BTreeMap::new(), next: None }
    }

    /// A newcomer. When all places are taken, it may get another one's, which is to be closed.
    ///
    /// # Errors
    /// There is no place for it.
    pub fn enter(
        &mut self,
        now: Time,
        conn: ConnId,
        peer: Option<&PeerIdentity>,
        remote: SocketAddr,
    ) -> Result<Option<Displaced>, SharesFull> {
        let holder = Holder::new(peer, remote);
        let mut displaced = None;
        if self.places.len() >= self.limits.places {
            let d = self.displace(now, holder).ok_or_else(|| self.full(holder))?;
            self.leave(d.conn);
            displaced = Some(d);
        }
        let place = Session { holder, since: now, has_requested: false, window: (now, 0), slow: false };
        self.places.insert(conn, place);
        self.plan(now + self.limits.first_request);
        Ok(displaced)
    }

    /// The client has sent its first request.
    pub fn on_first_request(&mut self, now: Time, conn: ConnId, moved: u64) {
        if let Some(p) = self.places.get_mut(&conn).filter(|p| !p.has_requested) {
            (p.has_requested, p.window) = (true, (now, moved));
            self.plan(now + self.limits.window);
        }
    }

    /// Its place is free again.
    pub fn leave(&mut self, conn: ConnId) {
        self.places.remove(&conn);
    }

    /// Places that are taken.
    pub fn taken(&self) -> usize {
        self.places.len()
    }

    /// When to look again.
    pub fn next_timeout(&self) -> Option<Time> {
        self.next
    }

    /// Looks at how fast sessions are, at most a few times in a window; gives those that have forfeited their places,
    /// which are free from now on.
    pub fn check(&mut self, now: Time, mut each: impl FnMut(ConnId) -> SessionProgress) -> Vec<Displaced> {
        if self.next.is_none_or(|t| now < t) {
            return Vec::new();
        }
        let l = self.limits;
        let enough = u64::try_from(u128::from(l.floor) * u128::from(l.window.as_nanos()) / 1_000_000_000);
        let enough = enough.unwrap_or(u64::MAX);
        // Often enough that work of the server's own is seen.
        let mut next = now + l.window.scale(1, 8).max(Span::from_millis(1));
        let mut silent = Vec::new();
        for (&conn, p) in &mut self.places {
            if !p.has_requested {
                let until = p.since + l.first_request;
                if until <= now {
                    silent.push(conn);
                } else {
                    next = next.min(until);
                }
                continue;
            }
            let SessionProgress { bytes, working } = each(conn);
            let moved = bytes.saturating_sub(p.window.1);
            if working || moved >= enough {
                (p.window, p.slow) = ((now, bytes), false);
            } else if now.since(p.window.0) >= l.window {
                (p.window, p.slow) = ((now, bytes), true);
            }
        }
        let words = format!(
            "no request came within {} s of connecting; connect again and send it at once",
            l.first_request.as_nanos().div_ceil(1_000_000_000)
        );
        silent.iter().for_each(|c| self.leave(*c));
        self.next = (!self.places.is_empty()).then_some(next);
        silent.into_iter().map(|conn| Displaced { conn, words: words.clone() }).collect()
    }

    fn plan(&mut self, at: Time) {
        self.next = Some(self.next.map_or(at, |t| t.min(at)));
    }

    /// How many places each key has, and each address.
    fn count(&self) -> Counts {
        let mut counts = Counts::default();
        for p in self.places.values() {
            *counts.keys.entry(p.holder.key).or_default() += 1;
            *counts.networks.entry(p.holder.network).or_default() += 1;
        }
        counts
    }

    /// Whose place a newcomer gets.
    fn displace(&self, now: Time, newcomer: Holder) -> Option<Displaced> {
        let l = self.limits;
        let counts = self.count();
        let (own_key, own_network) = counts.of(newcomer);
        // (which reason, places of its key and address, how late it came): the greatest goes.
        let mut best: Option<((u8, usize, Time), ConnId, String)> = None;
        for (&conn, p) in &self.places {
            let (key, network) = counts.of(p.holder);
            // More than the newcomer in the other respect, too: neither many keys at one address nor one key at many
            // addresses take from those who have few of both.
            let near = p.holder.network == newcomer.network;
            let by_key = key > own_key + 1 && (near || network > own_network);
            let by_network = network > own_network + 1 && key > own_key;
            let (rank, words) = if !p.has_requested && now.since(p.since) >= l.grace {
                (3, "no request came and others wait; repeat the command".to_owned())
            } else if p.slow {
                let (floor, s) = (l.floor, l.window.as_nanos() / 1_000_000_000);
                let words = format!(
                    "less than {floor} bytes/s moved for {s} s while others wait; repeat the command to go on"
                );
                (2, words)
            } else if by_key || by_network {
                let (n, whose) = if by_key { (key, "your key") } else { (network, "your address") };
                let words = format!(
                    "others wait and {whose} has {n} of {} {}; repeat the command later to go on",
                    l.places, self.what
                );
                (1, words)
            } else {
                continue;
            };
            let this = (rank, key.max(network), p.since);
            if best.as_ref().is_none_or(|(b, ..)| this > *b) {
                best = Some((this, conn, words));
            }
        }
        best.map(|(_, conn, words)| Displaced { conn, words })
    }

    fn full(&self, h: Holder) -> SharesFull {
        let (key, network) = self.count().of(h);
        SharesFull(format!(
            "{} {} run, the server's limit, {key} with your key, {network} from your address; try again when one has ended",
            self.limits.places, self.what
        ))
    }
}

#[cfg(test)]
mod tests;
