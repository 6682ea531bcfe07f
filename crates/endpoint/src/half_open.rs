//! Limits the incomplete handshakes of clients, and chooses which one to drop for a newcomer.

use crate::app::ConnId;
use crate::shares::network_of;
use base::{Span, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

/// Of the addresses that have most, a handshake may be given up for another of the same address when it is as old as this:
/// longer than one takes on any path that works. Until then the newcomer's first packet is dropped, and it asks again.
const PATIENCE: Span = Span::from_secs(3);

/// Incomplete handshakes by age and by address. Identifiers grow, so the lowest is the oldest.
#[derive(Default)]
pub(crate) struct HalfOpen {
    all: BTreeMap<ConnId, (Time, IpAddr)>,
    by_network: HashMap<IpAddr, BTreeSet<ConnId>>,
}

impl HalfOpen {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn insert(&mut self, now: Time, id: ConnId, remote: SocketAddr) {
        let network = network_of(remote.ip());
        self.all.insert(id, (now, network));
        self.by_network.entry(network).or_default().insert(id);
    }

    pub fn remove(&mut self, id: ConnId) {
        let Some((_, network)) = self.all.remove(&id) else { return };
        if let Some(ids) = self.by_network.get_mut(&network) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_network.remove(&network);
            }
        }
    }

    /// The handshake to drop for a newcomer at `remote`: the oldest of the address that has most, unless that is the
    /// newcomer's own and it may still complete.
    pub fn eviction_candidate(&self, now: Time, remote: SocketAddr) -> Option<ConnId> {
        let network = network_of(remote.ip());
        let own = self.by_network.get(&network).map_or(0, BTreeSet::len);
        let oldest = |ids: &BTreeSet<ConnId>| ids.first().copied();
        let (most, first) = self
            .by_network
            .values()
            .filter_map(|ids| Some((ids.len(), oldest(ids)?)))
            .max_by_key(|(n, id)| (*n, std::cmp::Reverse(*id)))?;
        let (since, _) = self.all.get(&first)?;
        (own < most || now.since(*since) >= PATIENCE).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 1_000 + u16::from(last)))
    }

    fn secs(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000_000)
    }

    #[test]
    fn oldest_of_the_address_with_most_handshakes_is_evicted() {
        let mut h = HalfOpen::default();
        assert_eq!(h.eviction_candidate(secs(1), at(1)), None);
        for (id, last) in [(1, 1), (2, 2), (3, 2), (4, 3)] {
            h.insert(secs(1), ConnId(id), at(last));
        }
        assert_eq!(h.eviction_candidate(secs(1), at(1)), Some(ConnId(2)));
        assert_eq!(h.eviction_candidate(secs(1), at(9)), Some(ConnId(2)));
        // Its own newcomers wait until it is old.
        assert_eq!(h.eviction_candidate(secs(3), at(2)), None);
        assert_eq!(h.eviction_candidate(secs(4), at(2)), Some(ConnId(2)));
        h.remove(ConnId(2));
        h.remove(ConnId(2));
        assert_eq!(h.len(), 3);
        // Of several with as many, the one that began first.
        assert_eq!(h.eviction_candidate(secs(1), at(9)), Some(ConnId(1)));
        for id in [1, 3, 4] {
            h.remove(ConnId(id));
        }
        assert_eq!((h.len(), h.by_network.len()), (0, 0));
    }
}
