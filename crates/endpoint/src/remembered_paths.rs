//! Remembers the rates of paths for later connections (Careful Resume, RFC 9959).

use base::{Span, Time};
use cc::Remembered;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Peers remembered at most; beyond, the oldest is forgotten.
pub const MAX_PATHS: usize = 1_024;
/// How long a path is remembered: other traffic comes and goes.
pub const LIFETIME: Span = Span::from_secs(3_600);

/// Remembered paths by the peer's address.
#[derive(Debug, Default)]
pub struct RememberedPaths {
    known: BTreeMap<IpAddr, (Remembered, Time)>,
}

impl RememberedPaths {
    /// Notes what the path to `peer` carried at `at`.
    pub fn remember(&mut self, peer: IpAddr, path: Remembered, at: Time) {
        self.known.insert(peer.to_canonical(), (path, at));
        if self.known.len() > MAX_PATHS
            && let Some(oldest) = self.known.iter().min_by_key(|(_, (_, at))| *at).map(|(peer, _)| *peer)
        {
            self.known.remove(&oldest);
        }
    }

    /// The remembered rate of the path to `peer`, if it is recent.
    pub fn recall(&self, peer: IpAddr, now: Time) -> Option<Remembered> {
        let (path, at) = self.known.get(&peer.to_canonical())?;
        (now.since(*at) <= LIFETIME).then_some(*path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rate;

    #[test]
    fn remembered_paths_expire_after_an_hour_and_are_bounded() {
        let path = |mbit| Remembered { rate: Rate::from_mbit(mbit), rtt: Span::from_millis(70), train: None };
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let (mut p, now) = (RememberedPaths::default(), Time::ZERO + Span::from_secs(10_000));
        p.remember(peer(1), path(100), now);
        assert_eq!(p.recall(peer(1), now + LIFETIME), Some(path(100)));
        assert_eq!(p.recall(peer(1), now + LIFETIME + Span::from_nanos(1)), None);
        assert_eq!(p.recall("::ffff:0.0.0.1".parse().expect("an address"), now), Some(path(100)));
        for n in 0..2 * MAX_PATHS as u32 {
            p.remember(peer(n + 2), path(u64::from(n)), now + Span::from_micros(u64::from(n) + 1));
        }
        assert_eq!(p.known.len(), MAX_PATHS);
        assert_eq!(p.recall(peer(1), now), None);
        assert!(p.recall(peer(2 * MAX_PATHS as u32 + 1), now).is_some());
    }
}
