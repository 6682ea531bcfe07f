//! Limits the streams of clients that are not established, and chooses which one to close for a newcomer.

use super::StreamId;
use crate::shares::network_of;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Identifiers grow, so the least is the oldest.
#[derive(Default)]
pub(crate) struct HalfOpen {
    all: BTreeMap<StreamId, IpAddr>,
    by_network: HashMap<IpAddr, BTreeSet<StreamId>>,
}

impl HalfOpen {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn insert(&mut self, id: StreamId, ip: IpAddr) {
        let network = network_of(ip);
        self.all.insert(id, network);
        self.by_network.entry(network).or_default().insert(id);
    }

    pub fn remove(&mut self, id: StreamId) {
        let Some(network) = self.all.remove(&id) else { return };
        if let Some(ids) = self.by_network.get_mut(&network) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_network.remove(&network);
            }
        }
    }

    /// Of the address with most streams, the oldest that is `alone`, else the oldest.
    pub fn oldest_of_largest(&self, alone: impl Fn(&StreamId) -> bool) -> Option<StreamId> {
        let most =
            self.by_network.values().max_by_key(|ids| (ids.len(), ids.first().map(std::cmp::Reverse)))?;
        HalfOpen::oldest(most, alone)
    }

    /// The same of one address.
    pub fn of(&self, ip: IpAddr, alone: impl Fn(&StreamId) -> bool) -> Option<StreamId> {
        HalfOpen::oldest(self.by_network.get(&network_of(ip))?, alone)
    }

    fn oldest(ids: &BTreeSet<StreamId>, alone: impl Fn(&StreamId) -> bool) -> Option<StreamId> {
        ids.iter().find(|id| alone(id)).or(ids.first()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_of_the_address_with_most_streams_is_evicted_and_joined_streams_last() {
        let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut h = HalfOpen::default();
        let all = |_: &StreamId| true;
        assert_eq!(h.oldest_of_largest(all), None);
        for (id, n) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 2), (6, 3)] {
            h.insert(StreamId(id), ip(n));
        }
        assert_eq!(h.oldest_of_largest(all), Some(StreamId(2)));
        assert_eq!(h.oldest_of_largest(|id| *id != StreamId(2)), Some(StreamId(3)));
        assert_eq!(h.oldest_of_largest(|_| false), Some(StreamId(2)));
        h.remove(StreamId(2));
        // Two addresses with two: the oldest of both.
        assert_eq!((h.oldest_of_largest(all), h.len()), (Some(StreamId(3)), 5));
        assert_eq!((h.of(ip(1), all), h.of(ip(9), all)), (Some(StreamId(1)), None));
        for id in 0..9 {
            h.remove(StreamId(id));
        }
        assert!(h.len() == 0 && h.by_network.is_empty());
    }

    #[test]
    fn ipv6_addresses_of_one_prefix_count_as_one() {
        let mut h = HalfOpen::default();
        h.insert(StreamId(0), "192.0.2.1".parse().unwrap());
        for n in 1..4 {
            h.insert(StreamId(n), format!("2001:db8::{n}:{n}").parse().unwrap());
        }
        assert_eq!(h.oldest_of_largest(|_| true), Some(StreamId(1)));
        assert_eq!(h.of("2001:db8::ffff".parse().unwrap(), |_| true), Some(StreamId(1)));
    }
}
