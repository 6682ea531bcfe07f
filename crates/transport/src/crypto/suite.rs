//! Cipher suites of data packets: numbers, limits and negotiation.

use core::fmt;

use thiserror::Error;
use wire::Module;

/// What protects the packets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM (RFC 5116). The suite of set-up packets, and the one every end must have.
    Aes128Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): for processors without AES instructions.
    ChaCha20Poly1305,
    /// AEGIS-128L with a tag of 16 bytes (draft-irtf-cfrg-aegis-aead): the fastest with AES instructions.
    Aegis128L,
    /// AEGIS-128X2 with a tag of 16 bytes (the same draft): two of AEGIS-128L side by side, for processors whose AES
    /// instructions take two blocks at once.
    Aegis128X2,
    /// The payload stays readable; the tag is AES-128-GCM's over all of it. Module "integrity".
    IntegrityGmac,
    /// The payload stays readable; the tag is AEGIS-128L's MAC over all of it. Module "integrity", several times as
    /// fast as [`Suite::IntegrityGmac`] with AES instructions.
    IntegrityAegis,
    /// A checksum against accidents, no key, no header protection. Module "crc32c".
    Crc32c,
}

/// Longest packet for which the larger limits of RFC 9001, appendix B.1, hold.
pub const SMALL_PACKET: usize = 1 << 11;

impl Suite {
    /// All suites, by their numbers.
    pub const ALL: [Suite; 7] = [
        Suite::Aes128Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aegis128L,
        Suite::Aegis128X2,
        Suite::IntegrityGmac,
        Suite::IntegrityAegis,
        Suite::Crc32c,
    ];

    /// Its number on the wire.
    pub const fn id(self) -> u8 {
        match self {
            Suite::Aes128Gcm => 1,
            Suite::ChaCha20Poly1305 => 2,
            Suite::Aegis128L => 3,
            Suite::Aegis128X2 => 4,
            Suite::IntegrityGmac => 0x40,
            Suite::IntegrityAegis => 0x41,
            Suite::Crc32c => 0x80,
        }
    }

    /// The suite with this number.
    pub const fn from_id(id: u8) -> Option<Suite> {
        match id {
            1 => Some(Suite::Aes128Gcm),
            2 => Some(Suite::ChaCha20Poly1305),
            3 => Some(Suite::Aegis128L),
            4 => Some(Suite::Aegis128X2),
            0x40 => Some(Suite::IntegrityGmac),
            0x41 => Some(Suite::IntegrityAegis),
            0x80 => Some(Suite::Crc32c),
            _ => None,
        }
    }

    /// Its name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
            Suite::Aegis128L => "aegis-128l",
            Suite::Aegis128X2 => "aegis-128x2",
            Suite::IntegrityGmac => "integrity-gmac",
            Suite::IntegrityAegis => "integrity-aegis",
            Suite::Crc32c => "crc32c",
        }
    }

    /// The suite with this name.
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The module it belongs to.
    pub const fn module(self) -> Module {
        match self {
            Suite::Aes128Gcm | Suite::ChaCha20Poly1305 | Suite::Aegis128L | Suite::Aegis128X2 => Module::Aead,
            Suite::IntegrityGmac | Suite::IntegrityAegis => Module::Integrity,
            Suite::Crc32c => Module::Crc32c,
        }
    }

    /// Bytes of the tag field in short packets: 4 for CRC32C, else 16.
    pub const fn tag_len(self) -> usize {
        match self {
            Suite::Crc32c => 4,
            _ => super::packet::TAG_LEN,
        }
    }

    /// Whether byte 0 and the packet number are masked.
    pub const fn protects_header(self) -> bool {
        !matches!(self, Suite::Crc32c)
    }

    /// Bytes of the key.
    pub(super) const fn key_len(self) -> usize {
        match self {
            Suite::ChaCha20Poly1305 => 32,
            Suite::Crc32c => 0,
            _ => 16,
        }
    }

    /// Packets that one key may seal, for packets of at most `max_packet` bytes.
    ///
    /// AES-GCM: 2^23 (RFC 9001, section 6.6), or 2^28 if no packet is longer than 2^11 bytes (appendix B.1.1);
    /// without that, 100 Gbit/s would use up a key each second, faster than a long path can change keys.
    /// ChaCha20: more than there are packet numbers. AEGIS-128L: 2^48 by its draft, section "Security
    /// Considerations", which says that AEGIS-128X has the same limits.
    pub const fn confidentiality_limit(self, max_packet: usize) -> u64 {
        match self {
            Suite::Aes128Gcm | Suite::IntegrityGmac if max_packet <= SMALL_PACKET => 1 << 28,
            Suite::Aes128Gcm | Suite::IntegrityGmac => 1 << 23,
            Suite::ChaCha20Poly1305 => 1 << 62,
            Suite::Aegis128L | Suite::Aegis128X2 | Suite::IntegrityAegis => 1 << 48,
            Suite::Crc32c => u64::MAX,
        }
    }

    /// Packets that may fail to open, over all keys of a connection, before it must be closed.
    ///
    /// RFC 9001, section 6.6: 2^52 for AES-GCM, 2^36 for ChaCha20-Poly1305. AEGIS is held to the limit of
    /// AES-GCM though its tag would allow more. CRC32C fails by accident only, and has no limit.
    pub const fn integrity_limit(self) -> u64 {
        match self {
            Suite::Aes128Gcm | Suite::IntegrityGmac => 1 << 52,
            Suite::Aegis128L | Suite::Aegis128X2 | Suite::IntegrityAegis => 1 << 52,
            Suite::ChaCha20Poly1305 => 1 << 36,
            Suite::Crc32c => u64::MAX,
        }
    }

    /// The suites of module "aead" in the order in which an end should offer them that has not measured
    /// ([`super::rank`]).
    ///
    /// `aes_in_hardware`: the processor has AES instructions. Without them AEGIS and AES-GCM are an order of
    /// magnitude slower than ChaCha20.
    pub const fn preferred(aes_in_hardware: bool) -> [Suite; 4] {
        if aes_in_hardware {
            [Suite::Aegis128L, Suite::Aegis128X2, Suite::Aes128Gcm, Suite::ChaCha20Poly1305]
        } else {
            [Suite::ChaCha20Poly1305, Suite::Aes128Gcm, Suite::Aegis128L, Suite::Aegis128X2]
        }
    }
}

/// Whether this processor has AES instructions.
pub(super) fn aes_in_hardware() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one end asks for; the fields `module`, `suites` and `suite_costs` of its transport parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The module it wants.
    pub module: Module,
    /// Numbers of suites that it can use, best first: of module "aead" always, of "integrity" if it asks for that.
    /// Unknown numbers are passed over.
    pub suites: &'a [u8],
    /// What each of them costs it ([`super::rank`]), 0 where unknown; as many as `suites`, or it counts as unknown.
    pub costs: &'a [u8],
}

impl Offer<'_> {
    /// What a suite that it offers costs it, if it says so.
    fn cost(&self, id: u8) -> Option<u8> {
        let at = self.suites.iter().position(|s| *s == id)?;
        self.costs.get(at).copied().filter(|c| *c > 0 && self.costs.len() == self.suites.len())
    }
}

/// Why two offers do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NegotiateError {
    /// No suite is in both lists.
    #[error("the two ends have no cipher suite in common: offer aes-128-gcm on both")]
    NoCommonSuite,
}

/// The suite of a connection. Both ends compute it, from parameters that the handshake authenticated.
///
/// A weaker module than "aead" is taken only if both ends ask for that same module; otherwise it is "aead". Of
/// the module's suites that both have, it is the one that costs the slower end least, since that end holds the other up;
/// of those the one with the least sum of both ends' costs; of those the first of the server's list. Where an end does
/// not say what one of them costs, the server's list decides alone (the server serves many and knows its load). Module "integrity" falls back on [`Suite::IntegrityGmac`], "crc32c" has one suite.
pub fn negotiate(client: Offer<'_>, server: Offer<'_>) -> Result<Suite, NegotiateError> {
    let module = if client.module == server.module { client.module } else { Module::Aead };
    let mut both = server
        .suites
        .iter()
        .filter(|id| client.suites.contains(id))
        .filter_map(|id| Suite::from_id(*id))
        .filter(|s| s.module() == module);
    let cost = |s: Suite| {
        let (c, s) = (client.cost(s.id())?, server.cost(s.id())?);
        Some((c.max(s), u16::from(c) + u16::from(s)))
    };
    let common = if both.clone().all(|s| cost(s).is_some()) {
        // Of equals it gives the first.
        both.min_by_key(|s| cost(*s))
    } else {
        both.next()
    };
    match module {
        Module::Aead => common.ok_or(NegotiateError::NoCommonSuite),
        Module::Integrity => Ok(common.unwrap_or(Suite::IntegrityGmac)),
        Module::Crc32c => Ok(Suite::Crc32c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(s: &[Suite]) -> Vec<u8> {
        s.iter().map(|s| s.id()).collect()
    }

    #[test]
    fn numbers_and_names_are_unique_and_reversible() {
        for s in Suite::ALL {
            assert_eq!(Suite::from_id(s.id()), Some(s));
            assert_eq!(Suite::from_name(s.name()), Some(s));
        }
        assert_eq!((0..=255u8).filter_map(Suite::from_id).count(), Suite::ALL.len());
        assert_eq!(Suite::from_name("null"), None);
    }

    #[test]
    fn server_order_decides() {
        let c = ids(&Suite::preferred(true));
        let s = ids(&Suite::preferred(false));
        let offer = |suites| Offer { module: Module::Aead, suites, costs: &[] };
        assert_eq!(negotiate(offer(&c), offer(&s)), Ok(Suite::ChaCha20Poly1305));
        assert_eq!(negotiate(offer(&s), offer(&c)), Ok(Suite::Aegis128L));
        assert_eq!(negotiate(offer(&[1]), offer(&[0xee, 3, 1])), Ok(Suite::Aes128Gcm));
        assert_eq!(negotiate(offer(&[1]), offer(&[2])), Err(NegotiateError::NoCommonSuite));
        assert_eq!(negotiate(offer(&[0xee]), offer(&[0xee])), Err(NegotiateError::NoCommonSuite));
    }

    #[test]
    fn cost_of_the_slower_end_decides() {
        let offer = |suites, costs| Offer { module: Module::Aead, suites, costs };
        // One end has AES instructions, the other has none: what the fast end likes best would hold the slow one up.
        let fast = offer(&[4, 3, 1, 2], &[30, 33, 36, 42]);
        let slow = offer(&[2, 1, 3, 4], &[45, 58, 59, 60]);
        assert_eq!(negotiate(fast, slow), Ok(Suite::ChaCha20Poly1305));
        assert_eq!(negotiate(slow, fast), Ok(Suite::ChaCha20Poly1305));
        // Two fast ones, of which one is wider.
        let narrow = offer(&[3, 4, 1, 2], &[33, 34, 36, 42]);
        assert_eq!(negotiate(fast, narrow), Ok(Suite::Aegis128L));
        assert_eq!(negotiate(narrow, fast), Ok(Suite::Aegis128L));
        assert_eq!(negotiate(fast, fast), Ok(Suite::Aegis128X2));
        // Equal for the slower end: the sum decides; equal altogether: the server's order.
        let one = offer(&[3, 4], &[30, 28]);
        let two = offer(&[4, 3], &[35, 35]);
        assert_eq!(negotiate(one, two), Ok(Suite::Aegis128X2));
        let even = [offer(&[3, 4], &[30, 30]), offer(&[4, 3], &[30, 30])];
        assert_eq!(negotiate(even[0], even[1]), Ok(Suite::Aegis128X2));
        assert_eq!(negotiate(even[1], even[0]), Ok(Suite::Aegis128L));
        // An end that says nothing, or nothing usable, of what both have: the server's order.
        for costs in [&[][..], &[30], &[0, 30, 30, 30], &[1; 5]] {
            assert_eq!(negotiate(offer(&[2, 1, 3, 4], costs), fast), Ok(Suite::Aegis128X2), "{costs:?}");
            assert_eq!(
                negotiate(fast, offer(&[2, 1, 3, 4], costs)),
                Ok(Suite::ChaCha20Poly1305),
                "{costs:?}"
            );
        }
    }

    #[test]
    fn weak_modules_require_both_ends() {
        let all = ids(&Suite::ALL);
        let offer = |module| Offer { module, suites: &all, costs: &[] };
        for a in [Module::Aead, Module::Integrity, Module::Crc32c] {
            for b in [Module::Aead, Module::Integrity, Module::Crc32c] {
                let got = negotiate(offer(a), offer(b)).unwrap();
                assert_eq!(got.module(), if a == b { a } else { Module::Aead }, "{a:?} and {b:?}");
            }
        }
        // Module "integrity" takes the server's choice, or what everyone has.
        let (gmac, mac) = (Suite::IntegrityGmac, Suite::IntegrityAegis);
        let best = [mac.id(), gmac.id()];
        let offer = |suites| Offer { module: Module::Integrity, suites, costs: &[] };
        assert_eq!(negotiate(offer(&all), offer(&best)), Ok(mac));
        assert_eq!(negotiate(offer(&all), offer(&[1])), Ok(gmac));
        // A suite of a weak module in the list of AEAD suites is no back door.
        let weak = [Suite::IntegrityGmac.id(), Suite::Crc32c.id()];
        let o = Offer { module: Module::Aead, suites: &weak, costs: &[1, 1] };
        assert_eq!(negotiate(o, o), Err(NegotiateError::NoCommonSuite));
    }

    #[test]
    fn limits_are_those_of_rfc_9001() {
        assert_eq!(Suite::Aes128Gcm.confidentiality_limit(65_535), 1 << 23);
        assert_eq!(Suite::Aes128Gcm.confidentiality_limit(1_472), 1 << 28);
        assert_eq!(Suite::Aes128Gcm.integrity_limit(), 1 << 52);
        assert_eq!(Suite::ChaCha20Poly1305.integrity_limit(), 1 << 36);
    }
}
