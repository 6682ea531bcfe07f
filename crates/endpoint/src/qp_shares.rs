//! Divides the queue pairs of an endpoint fairly among its clients.
//!
//! A client, by its key or certificate and by its address, gets one more as long as it holds fewer than are left for all
//! others (the rule of dynamic thresholds: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
//! Switches", 1998). One client alone can hold half of all, two a third each, and one that comes late finds some. An address
//! is one of IPv4, or 64 bits of IPv6: many keys at one address take no more than one does.

use crate::shares::network_of;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use transport::crypto::PeerIdentity;

/// A holder of queue pairs, by key or by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// The digest of a key or certificate.
    Identity([u8; 32]),
    /// One address of IPv4, or 64 bits of IPv6.
    Network(IpAddr),
}

/// The client of a connection, in both respects. By iWARP without TLS it has shown nothing but its address.
pub(crate) fn parties(peer: Option<&PeerIdentity>, remote: SocketAddr) -> Vec<Party> {
    let shown = peer.map(|p| Party::Identity(p.digest()));
    shown.into_iter().chain([Party::Network(network_of(remote.ip()))]).collect()
}

/// The queue pairs that clients hold at this endpoint.
#[derive(Debug, Default)]
pub(crate) struct QpShares {
    held: BTreeMap<Party, usize>,
    total: usize,
}

impl QpShares {
    /// One more for this client, of `limit` in all; false when its share is used up.
    pub fn take(&mut self, client: &[Party], limit: usize) -> bool {
        let left = limit.saturating_sub(self.total);
        if client.iter().any(|h| self.held.get(h).copied().unwrap_or(0) >= left) {
            return false;
        }
        self.total += 1;
        for h in client {
            *self.held.entry(*h).or_default() += 1;
        }
        true
    }

    /// The client gives back `n` of them.
    pub fn release(&mut self, client: &[Party], n: usize) {
        if client.is_empty() {
            return; // a server that this end is a client of
        }
        self.total = self.total.saturating_sub(n);
        for h in client {
            if let Some(held) = self.held.get_mut(h) {
                *held = held.saturating_sub(n);
                if *held == 0 {
                    self.held.remove(h);
                }
            }
        }
    }

    /// Clients that hold some.
    #[cfg(test)]
    fn clients(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: u8, network: u8) -> [Party; 2] {
        [Party::Identity([key; 32]), Party::Network(IpAddr::from([192, 0, 2, network]))]
    }
    /// Takes as many as it gets.
    fn all(s: &mut QpShares, who: &[Party], limit: usize) -> usize {
        (0..=limit).take_while(|_| s.take(who, limit)).count()
    }

    #[test]
    fn a_client_holds_at_most_as_many_queue_pairs_as_remain_free() {
        let mut s = QpShares::default();
        assert_eq!(all(&mut s, &client(1, 1), 100), 50);
        assert_eq!(all(&mut s, &client(2, 2), 100), 25);
        for n in 3..8 {
            assert!(all(&mut s, &client(n, n), 100) > 0, "client {n}");
        }
        s.release(&client(1, 1), 50);
        assert!(all(&mut s, &client(9, 9), 100) >= 25);
    }

    #[test]
    fn many_keys_or_many_addresses_gain_no_extra_queue_pairs() {
        let mut s = QpShares::default();
        let by_keys: usize = (0..20).map(|n| all(&mut s, &client(n, 1), 100)).sum();
        assert_eq!(by_keys, 50);
        let mut s = QpShares::default();
        let by_addresses: usize = (0..20).map(|n| all(&mut s, &client(1, n), 100)).sum();
        assert_eq!(by_addresses, 50);
    }

    #[test]
    fn released_queue_pairs_are_forgotten() {
        let mut s = QpShares::default();
        assert_eq!(all(&mut s, &client(1, 1), 10), 5);
        s.release(&client(1, 1), 5);
        assert_eq!((s.total, s.clients()), (0, 0));
        s.release(&[], 7);
        assert_eq!(all(&mut s, &client(1, 1), 10), 5);
        assert!(!s.take(&client(1, 1), 0) && QpShares::default().take(&client(1, 1), 1));
    }
}
