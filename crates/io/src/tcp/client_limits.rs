//! Limits the number of TCP connections of clients, in all and per network.

use endpoint::network_of;
use std::collections::HashMap;
use std::net::IpAddr;

/// Of all that there may be, those of one place (see [`network_of`]) are one in so many.
const PART: usize = 2;

/// The number of connections that clients have made, in all and by network.
#[derive(Debug, Default)]
pub(super) struct ClientLimits {
    most: usize,
    all: usize,
    places: HashMap<IpAddr, usize>,
}

impl ClientLimits {
    /// That takes so many.
    pub(super) fn new(most: usize) -> ClientLimits {
        ClientLimits { most: most.max(PART), ..ClientLimits::default() }
    }

    /// Whether one more client from there is admitted.
    pub(super) fn admits(&self, from: IpAddr) -> bool {
        let there = self.places.get(&network_of(from)).copied().unwrap_or(0);
        self.all < self.most && there < self.most / PART
    }

    /// Whether a quarter of the limit is free.
    pub(super) fn has_ample_room(&self) -> bool {
        self.all <= self.most / 4 * 3 && self.places.values().all(|n| *n <= self.most / PART / 4 * 3)
    }

    /// A client was accepted.
    pub(super) fn on_accepted(&mut self, from: IpAddr) {
        self.all += 1;
        *self.places.entry(network_of(from)).or_default() += 1;
    }

    /// A client's connection was closed.
    pub(super) fn on_closed(&mut self, from: IpAddr) {
        self.all -= 1;
        if let Some(n) = self.places.get_mut(&network_of(from)) {
            *n -= 1;
            if *n == 0 {
                self.places.remove(&network_of(from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_gets_half_and_the_total_is_not_exceeded() {
        let at = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, n, 0, 0, 0, 7]);
        let mut c = ClientLimits::new(8);
        for n in 0..4 {
            assert!(c.admits(at(1)) && c.has_ample_room() == (n <= 3));
            c.on_accepted(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, n, 7]));
        }
        assert!(!c.admits(at(1)) && c.admits(at(2)) && !c.has_ample_room());
        (0..4).for_each(|n| c.on_accepted(at(10 + n)));
        assert!(!c.admits(at(2)));
        (0..4).for_each(|n| c.on_closed(at(10 + n)));
        c.on_closed(at(1));
        assert!(c.admits(at(1)) && c.admits(at(2)) && c.has_ample_room());
        assert_eq!((c.all, c.places.len()), (3, 1));
    }
}
