//! Path MTU discovery by probing (RFC 8899, DPLPMTUD), in bytes of UDP payload.

use base::{Span, Time};

/// The payload that every path must carry (RFC 8899, section 5.1.2, as QUIC has it).
pub const BASE: u16 = 1200;
/// Probes of one size before it counts as too large (MAX_PROBES of RFC 8899).
const MAX_PROBES: u8 = 3;
/// After a search ended, try again for more after this long (PMTU_RAISE_TIMER of RFC 8899: 600 s).
const RAISE_AFTER: Span = Span::from_secs(600);
/// The search ends when the range is this narrow: less is not worth a probe.
const ENOUGH: u16 = 32;
/// Sizes that networks have, as IP packet sizes: tried before halving.
const USUAL: [u32; 4] = [1500, 9000, 4352, 65_535];

/// State of the search on one path.
#[derive(Clone, Debug)]
pub struct MtuSearch {
    current: u16,
    max: u16,
    /// Smallest size known not to pass.
    ceiling: u16,
    overhead: u16,
    in_flight: Option<u16>,
    failures: u8,
    next_at: Time,
    enabled: bool,
}

impl MtuSearch {
    /// Starts at `initial` (what the handshake has shown to pass, at least [`BASE`]) and searches up to
    /// `max`. `overhead` are the bytes of IP and UDP headers, 28 or 48.
    pub fn new(initial: u16, max: u16, overhead: u16) -> MtuSearch {
        let max = max.max(BASE);
        let current = initial.clamp(BASE, max);
        MtuSearch {
            current,
            max,
            ceiling: max.saturating_add(1),
            overhead,
            in_flight: None,
            failures: 0,
            next_at: Time::ZERO,
            enabled: current < max,
        }
    }

    /// The size in use.
    pub const fn current(&self) -> u16 {
        self.current
    }

    fn candidate(&self) -> Option<u16> {
        if self.ceiling.saturating_sub(self.current) <= 1 {
            return None;
        }
        let fits = |s: u16| s > self.current && s < self.ceiling;
        if self.ceiling == self.max + 1 && fits(self.max) && self.max <= 1500 {
            return Some(self.max);
        }
        let usual = USUAL.iter().filter_map(|&u| u16::try_from(u.checked_sub(self.overhead.into())?).ok());
        if let Some(s) = usual.map(|s| s.min(self.max)).find(|&s| fits(s)) {
            return Some(s);
        }
        (self.ceiling - self.current > ENOUGH).then(|| self.current + (self.ceiling - self.current) / 2)
    }

    /// The size of a probe to send now.
    pub fn poll_probe(&mut self, now: Time) -> Option<u16> {
        if !self.enabled || self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        let Some(size) = self.candidate() else {
            self.next_at = now + RAISE_AFTER;
            self.ceiling = self.max + 1;
            self.enabled = self.candidate().is_some();
            return None;
        };
        self.in_flight = Some(size);
        Some(size)
    }

    /// The probe of this size arrived. Returns true when the size in use has grown.
    pub fn on_acked(&mut self, size: u16) -> bool {
        if self.in_flight == Some(size) {
            self.in_flight = None;
        }
        self.failures = 0;
        let grown = size > self.current && size <= self.max;
        self.current = self.current.max(size.min(self.max));
        // A late report may show that what counted as too large passes after all.
        self.ceiling = self.ceiling.max(self.current.saturating_add(1));
        grown
    }

    /// The probe of this size was lost. Not a sign of congestion (RFC 8899, section 3, item 7).
    pub fn on_lost(&mut self, size: u16) {
        if self.in_flight != Some(size) {
            return;
        }
        self.in_flight = None;
        self.failures += 1;
        if self.failures >= MAX_PROBES {
            self.failures = 0;
            self.ceiling = self.ceiling.min(size);
        }
    }

    /// The local system refused the size (EMSGSIZE): no need to try again. Returns true when it is one that was in use (the
    /// interface's MTU was lowered): then the size falls at once, since no time-out could tell more.
    pub fn on_too_large(&mut self, now: Time, size: u16) -> bool {
        self.in_flight = None;
        self.failures = 0;
        if size > self.current {
            self.ceiling = self.ceiling.min(size);
            return false;
        }
        // What left before the size fell is refused too, and tells nothing new.
        let fell = size > BASE && self.on_black_hole(now);
        if fell {
            self.ceiling = size;
        }
        fell
    }

    /// Full packets vanish while small ones pass: fall back and search again (RFC 8899, section 4.3).
    pub fn on_black_hole(&mut self, now: Time) -> bool {
        if self.current == BASE {
            return false;
        }
        self.ceiling = self.current;
        self.current = BASE;
        self.in_flight = None;
        self.failures = 0;
        self.enabled = true;
        self.next_at = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(path: u16, mut s: MtuSearch) -> (u16, usize) {
        let mut probes = 0;
        let mut now = Time::ZERO;
        while let Some(size) = s.poll_probe(now) {
            probes += 1;
            now += Span::from_millis(1);
            if size <= path {
                s.on_acked(size);
            } else {
                s.on_lost(size);
            }
            assert!(probes < 200);
        }
        (s.current(), probes)
    }

    #[test]
    fn first_probe_finds_the_ethernet_mtu() {
        let (mtu, probes) = search(1472, MtuSearch::new(BASE, 1472, 28));
        assert_eq!((mtu, probes), (1472, 1));
    }

    #[test]
    fn jumbo_and_loopback_mtus_are_found() {
        assert_eq!(search(8972, MtuSearch::new(BASE, 8972, 28)).0, 8972);
        assert_eq!(search(65_507, MtuSearch::new(BASE, 65_507, 28)).0, 65_507);
        let tunnel = search(1420, MtuSearch::new(BASE, 65_507, 28)).0;
        assert!((1420 - ENOUGH..=1420).contains(&tunnel), "{tunnel}");
    }

    #[test]
    fn late_acknowledged_probe_raises_the_mtu() {
        let mut s = MtuSearch::new(BASE, 1472, 28);
        for _ in 0..MAX_PROBES {
            let size = s.poll_probe(Time::ZERO).expect("probe");
            s.on_lost(size);
        }
        assert!(s.on_acked(1472));
        assert_eq!((s.current(), s.poll_probe(Time::ZERO)), (1472, None));
        let mut s = MtuSearch::new(8972, 8972, 28);
        s.on_black_hole(Time::ZERO);
        assert!(!s.on_too_large(Time::ZERO, 1300));
        s.on_acked(8972);
        assert_eq!(s.poll_probe(Time::ZERO), None);
    }

    #[test]
    fn lowered_interface_mtu_takes_effect_at_once() {
        let mut s = MtuSearch::new(8972, 8972, 28);
        assert!(s.on_too_large(Time::ZERO, 8972));
        assert_eq!(s.current(), BASE);
        // The rest of what was under way says the same again.
        assert!(!s.on_too_large(Time::ZERO, 8972) && s.current() == BASE);
        assert_eq!(search(1472, s).0, 1472);
        // What every path carries cannot be too large: there is nothing smaller to fall to.
        let mut s = MtuSearch::new(BASE, 1472, 28);
        assert!(!s.on_too_large(Time::ZERO, BASE) && s.current() == BASE);
    }

    #[test]
    fn black_hole_falls_back_to_the_base_mtu() {
        let mut s = MtuSearch::new(8972, 8972, 28);
        assert!(s.on_black_hole(Time::ZERO));
        assert_eq!(s.current(), BASE);
        let (mtu, _) = search(1472, s);
        assert_eq!(mtu, 1472);
    }
}
