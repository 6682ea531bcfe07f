//! Transport parameters: what each end says of itself inside the handshake, authenticated by it.
//!
//! A list of identifier, length, value; unknown identifiers are passed over, each may stand once.

use crate::cc::{self, CcTerms, MAX_CC_PREFERENCES};
use crate::codec::{Put, Reader, WireError};

/// Encryption module of a connection. Anything but [`Module::Aead`] must be asked for by both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Module {
    /// Encrypted and authenticated.
    #[default]
    Aead,
    /// Authenticated, readable on the way.
    Integrity,
    /// Protected against accidents only.
    Crc32c,
}

impl Module {
    /// Its number on the wire.
    pub const fn id(self) -> u8 {
        match self {
            Module::Aead => 0,
            Module::Integrity => 1,
            Module::Crc32c => 2,
        }
    }
    /// The module with this number.
    pub const fn from_id(id: u8) -> Option<Module> {
        match id {
            0 => Some(Module::Aead),
            1 => Some(Module::Integrity),
            2 => Some(Module::Crc32c),
            _ => None,
        }
    }
}

/// Cipher suites offered at most.
pub const MAX_SUITES: usize = 16;
/// Texts that name congestion control for people at most, each of at most [`crate::frame::MAX_CC_SPEC`] bytes.
pub const MAX_CC_TEXTS: usize = 16;

/// One end's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Cipher suites it can use, best first.
    pub suites: Vec<u8>,
    /// What each of them costs it, in its order; 0: unknown.
    pub suite_costs: Vec<u8>,
    /// Encryption module it asks for.
    pub module: Module,
    /// Congestion control that it begins with, for people: nothing follows from it.
    pub cc: Vec<Vec<u8>>,
    /// Its terms for congestion control; `None` of ends that do not negotiate it.
    pub cc_terms: Option<CcTerms>,
    /// It closes after this long without a packet, in milliseconds.
    pub idle_ms: u64,
    /// Largest UDP payload it takes.
    pub max_datagram: u64,
    /// Queue pairs it allows.
    pub max_qps: u64,
    /// Queue pairs open from the start, numbered from zero.
    pub initial_qps: u64,
    /// Lanes it allows.
    pub max_lanes: u64,
    /// Whether the initial queue pairs send lost data again.
    pub reliable: bool,
    /// The source identifier of its first packet: authenticates what stood in clear.
    pub scid: Vec<u8>,
    /// Server only: the destination identifier of the client's first packet.
    pub original_dcid: Option<Vec<u8>>,
    /// Server only: the source identifier of its Retry.
    pub retry_scid: Option<Vec<u8>>,
    /// Token of its stateless reset for `scid`.
    pub reset_token: Option<[u8; 16]>,
    /// Client only: it will prove a one-time token, so the server waits for that before it turns it away.
    pub token: bool,
    /// Client only: it wants to know of the server's further addresses.
    pub addresses: bool,
    /// It understands FEEDBACK_SIGNALS, and packets behind telemetry.
    pub signals: bool,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            suites: Vec::new(),
            suite_costs: Vec::new(),
            module: Module::Aead,
            cc: Vec::new(),
            cc_terms: None,
            idle_ms: 30_000,
            max_datagram: 1_472,
            max_qps: 256,
            initial_qps: 1,
            max_lanes: 1,
            reliable: true,
            scid: Vec::new(),
            original_dcid: None,
            retry_scid: None,
            reset_token: None,
            token: false,
            addresses: false,
            signals: false,
        }
    }
}

mod id {
    pub const SUITES: u64 = 1;
    pub const MODULE: u64 = 2;
    pub const CC: u64 = 3;
    pub const IDLE: u64 = 4;
    pub const MAX_DATAGRAM: u64 = 5;
    pub const MAX_QPS: u64 = 6;
    pub const INITIAL_QPS: u64 = 7;
    pub const MAX_LANES: u64 = 8;
    pub const RELIABLE: u64 = 9;
    pub const SCID: u64 = 10;
    pub const ORIGINAL_DCID: u64 = 11;
    pub const RETRY_SCID: u64 = 12;
    pub const RESET_TOKEN: u64 = 13;
    pub const TOKEN: u64 = 14;
    pub const SUITE_COSTS: u64 = 15;
    pub const ADDRESSES: u64 = 16;
    pub const CC_TERMS: u64 = 17;
    pub const CC_OFFER: u64 = 18;
    pub const CC_PREFERENCE: u64 = 19;
    pub const SIGNALS: u64 = 24;
}

impl Params {
    /// Writes all parameters.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut item = |id: u64, v: &[u8]| {
            out.put_varint(id);
            out.put_string(v);
        };
        item(id::SUITES, &self.suites);
        if self.suite_costs.iter().any(|c| *c > 0) {
            item(id::SUITE_COSTS, &self.suite_costs);
        }
        item(id::MODULE, &[self.module.id()]);
        for spec in &self.cc {
            item(id::CC, spec);
        }
        if let Some(t) = &self.cc_terms {
            let mut head = Vec::new();
            t.put_head(&mut head);
            item(id::CC_TERMS, &head);
            t.offers.iter().for_each(|o| item(id::CC_OFFER, &cc::offer_bytes(o)));
            t.preferences.iter().for_each(|w| item(id::CC_PREFERENCE, &cc::preference_bytes(w)));
        }
        let ints = [
            (id::IDLE, self.idle_ms),
            (id::MAX_DATAGRAM, self.max_datagram),
            (id::MAX_QPS, self.max_qps),
            (id::INITIAL_QPS, self.initial_qps),
            (id::MAX_LANES, self.max_lanes),
            (id::RELIABLE, u64::from(self.reliable)),
        ];
        for (k, v) in ints {
            let mut b = Vec::with_capacity(8);
            b.put_varint(v);
            item(k, &b);
        }
        item(id::SCID, &self.scid);
        for (k, v) in [(id::ORIGINAL_DCID, &self.original_dcid), (id::RETRY_SCID, &self.retry_scid)] {
            if let Some(v) = v {
                item(k, v);
            }
        }
        if let Some(t) = &self.reset_token {
            item(id::RESET_TOKEN, t);
        }
        if self.token {
            item(id::TOKEN, &[]);
        }
        if self.addresses {
            item(id::ADDRESSES, &[]);
        }
        if self.signals {
            item(id::SIGNALS, &[]);
        }
    }

    /// Reads and checks all parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, WireError> {
        let mut r = Reader::new(bytes);
        let mut p = Params::default();
        let mut seen = 0u64;
        let (mut offers, mut preferences) = (Vec::new(), Vec::new());
        while !r.is_empty() {
            let k = r.varint("parameter identifier")?;
            let v = r.string(4096, "parameter")?;
            let many = matches!(k, id::CC | id::CC_OFFER | id::CC_PREFERENCE);
            if k < 64 && !many {
                if seen >> k & 1 == 1 {
                    return Err(WireError::Invalid("parameter given twice"));
                }
                seen |= 1 << k;
            }
            if k == id::CC_OFFER && offers.len() < cc::MAX_CC_OFFERS {
                offers.push(cc::parse_offer(v)?);
            } else if k == id::CC_PREFERENCE && preferences.len() < MAX_CC_PREFERENCES {
                preferences.push(cc::parse_preference(v)?);
            } else {
                p.set(k, v)?;
            }
        }
        match &mut p.cc_terms {
            Some(t) if !offers.is_empty() => (t.offers, t.preferences) = (offers, preferences),
            None if offers.is_empty() && preferences.is_empty() => {}
            _ => return Err(WireError::Invalid("congestion-control offers")),
        }
        Ok(p)
    }

    fn set(&mut self, k: u64, v: &[u8]) -> Result<(), WireError> {
        let cid = |what| {
            if v.len() <= crate::packet::MAX_LONG_CID {
                Ok(v.to_vec())
            } else {
                Err(WireError::TooLong(what))
            }
        };
        match k {
            id::SUITES if v.len() <= MAX_SUITES => self.suites = v.to_vec(),
            id::SUITES => return Err(WireError::TooLong("cipher suites")),
            // Nothing but zeroes is as good as nothing.
            id::SUITE_COSTS if v.len() <= MAX_SUITES && v.iter().all(|c| *c == 0) => {}
            id::SUITE_COSTS if v.len() <= MAX_SUITES => self.suite_costs = v.to_vec(),
            id::SUITE_COSTS => return Err(WireError::TooLong("costs of cipher suites")),
            id::MODULE => {
                let [b] = v else { return Err(WireError::Invalid("module")) };
                self.module = Module::from_id(*b).ok_or(WireError::Invalid("module"))?;
            }
            id::CC => {
                if self.cc.len() == MAX_CC_TEXTS || v.len() > crate::frame::MAX_CC_SPEC {
                    return Err(WireError::TooLong("congestion-control offers"));
                }
                self.cc.push(v.to_vec());
            }
            id::CC_TERMS => self.cc_terms = Some(CcTerms::parse_head(v)?),
            id::CC_OFFER | id::CC_PREFERENCE => return Err(WireError::TooLong("congestion-control offers")),
            id::IDLE => self.idle_ms = int(v, "idle time-out", 0..=u64::MAX)?,
            id::MAX_DATAGRAM => self.max_datagram = int(v, "largest datagram", 1200..=65_535)?,
            id::MAX_QPS => self.max_qps = int(v, "queue pairs", 1..=65_536)?,
            id::INITIAL_QPS => self.initial_qps = int(v, "initial queue pairs", 1..=256)?,
            id::MAX_LANES => self.max_lanes = int(v, "lanes", 1..=crate::frame::MAX_LANES)?,
            id::RELIABLE => self.reliable = int(v, "reliability", 0..=1)? == 1,
            id::SCID => self.scid = cid("source identifier")?,
            id::ORIGINAL_DCID => self.original_dcid = Some(cid("original identifier")?),
            id::RETRY_SCID => self.retry_scid = Some(cid("retry identifier")?),
            id::RESET_TOKEN => {
                self.reset_token = Some(v.try_into().map_err(|_| WireError::Invalid("reset token"))?)
            }
            id::TOKEN if v.is_empty() => self.token = true,
            id::TOKEN => return Err(WireError::Invalid("token announcement")),
            id::ADDRESSES if v.is_empty() => self.addresses = true,
            id::ADDRESSES => return Err(WireError::Invalid("preference for addresses")),
            id::SIGNALS if v.is_empty() => self.signals = true,
            id::SIGNALS => return Err(WireError::Invalid("further signals")),
            _ => {}
        }
        Ok(())
    }
}

fn int(v: &[u8], what: &'static str, range: core::ops::RangeInclusive<u64>) -> Result<u64, WireError> {
    let mut r = Reader::new(v);
    let n = r.varint(what)?;
    if !r.is_empty() || !range.contains(&n) {
        return Err(WireError::Invalid(what));
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Found by fuzzing: costs of zero are not written, and were read.
    #[test]
    fn costs_that_are_all_zero_are_none() {
        for bytes in [&[0x0f, 1, 0][..], &[0x0f, 3, 0, 0, 0], &[0x0f, 0]] {
            let p = Params::parse(bytes).unwrap();
            assert!(p.suite_costs.is_empty());
            let mut again = Vec::new();
            p.put(&mut again);
            assert_eq!(Params::parse(&again), Ok(p));
        }
        assert_eq!(Params::parse(&[0x0f, 2, 0, 9]).unwrap().suite_costs, [0, 9]);
    }

    #[test]
    fn parameters_round_trip_and_unknown_ones_are_passed_over() {
        let p = Params {
            suites: vec![3, 1],
            suite_costs: vec![30, 35],
            module: Module::Integrity,
            cc: vec![b"bbr".to_vec(), b"cubic".to_vec()],
            max_qps: 65_536,
            scid: vec![1, 2, 3, 4],
            original_dcid: Some(vec![7; 8]),
            reset_token: Some([9; 16]),
            token: true,
            addresses: true,
            signals: true,
            ..Params::default()
        };
        let mut b = Vec::new();
        p.put(&mut b);
        b.put_varint(900);
        b.put_string(b"future");
        assert_eq!(Params::parse(&b), Ok(p));
    }

    #[test]
    fn bad_values_are_named() {
        let mut b = vec![5, 2];
        b.put_u16(0x4000 | 100);
        assert_eq!(Params::parse(&b), Err(WireError::Invalid("largest datagram")));
        assert_eq!(Params::parse(&[2, 1, 9]), Err(WireError::Invalid("module")));
        assert_eq!(Params::parse(&[2, 1, 0, 2, 1, 0]), Err(WireError::Invalid("parameter given twice")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(d in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Params::parse(&d);
        }
    }
}
