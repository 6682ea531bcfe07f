//! Negotiates the congestion control of each direction: in the handshake, and by proposals afterwards.
//!
//! The sender of a direction runs the algorithm. The receiver can prefer and refuse algorithms, and states which signals it
//! provides. The first algorithm follows from the terms that both ends send in the handshake, by one function ([`agree`]), so
//! that both know it without another message. Later changes are proposed and answered ([`proposals`]).

pub mod agree;
pub mod proposals;
mod reason;

pub use reason::CcChangeReason;

use crate::config::CcNegotiation;
use cc::registry::{self, Definition, Marks, Needs};
use wire::CcOffer;
use wire::cc::{CcPreference, CcTerms, MAX_CC_OFFERS, MAX_CC_PARAMS, MAX_CC_PREFERENCES, signal};

/// Codes with which a CC_ANSWER frame refuses a proposal. See `docs/protocol.md`, section 10.4.
pub mod refusal {
    /// No algorithm of this name.
    pub const UNKNOWN: u64 = 1;
    /// This end has another version of the algorithm.
    pub const VERSION: u64 = 2;
    /// Parameters that the algorithm does not have, or out of their range.
    pub const PARAMETERS: u64 = 3;
    /// This end's policy does not allow it.
    pub const FORBIDDEN: u64 = 4;
    /// The algorithm needs signals that this end does not provide.
    pub const SIGNALS: u64 = 5;
    /// Proposals come too often.
    pub const TOO_OFTEN: u64 = 6;
    /// Too many different algorithms on this connection.
    pub const TOO_MANY_ALGORITHMS: u64 = 7;
    /// There is no such queue pair yet.
    pub const NO_QUEUE_PAIR: u64 = 8;
    /// The other end proposed at the same time, and its proposal has precedence. Never on the wire.
    pub const CROSSED: u64 = 9;

    /// A code's meaning for people.
    pub const fn description(code: u64) -> &'static str {
        match code {
            UNKNOWN => "no algorithm of this name is known there",
            VERSION => "the algorithm has another version there: run the same program at both ends",
            PARAMETERS => "parameters that it does not have there, or out of range",
            FORBIDDEN => "the policy of the other end forbids it",
            SIGNALS => "it needs signals that the other end does not give",
            TOO_OFTEN => "changes were proposed too often: wait some round trips",
            TOO_MANY_ALGORITHMS => "too many different algorithms are in use on this connection",
            NO_QUEUE_PAIR => "the queue pair is not open there: wait until it is",
            CROSSED => "the other end proposed something at the same time, which counts",
            _ => "for a reason that this version does not know",
        }
    }
}

/// The algorithms to which the peer may move this end's sending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allow {
    /// Any that is registered.
    #[default]
    All,
    /// Those with these names; with an empty list only this end's own choice.
    Only(Vec<String>),
}

impl Allow {
    /// Whether the algorithm of this name is allowed.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Allow::All => true,
            Allow::Only(names) => names.iter().any(|n| n == name),
        }
    }
}

/// The signals that an algorithm needs from the receiver, as bits of [`signal`].
pub fn needed_signals(n: Needs) -> u64 {
    let marks = match n.marks {
        Marks::Optional => 0,
        Marks::Step => signal::MARKS,
        Marks::L4s => signal::L4S,
    };
    marks | if n.telemetry { signal::TELEMETRY } else { 0 }
}

/// The signals that this program provides as a receiver: it counts ECN marks of any meaning (of a threshold, as for
/// DCTCP, or of L4S), and returns the telemetry of switches unchanged.
pub const PROVIDED_SIGNALS: u64 = signal::MARKS | signal::L4S | signal::TELEMETRY;

fn offer_of(def: &Definition, params: &str) -> CcOffer {
    CcOffer {
        name: def.name.to_owned(),
        version: def.version(),
        needs: needed_signals(def.needs),
        params: params.to_owned(),
    }
}

/// Turns an algorithm with parameters, written as for [`cc::registry`] (`bbr:probe_rtt=off`), into an offer.
///
/// # Errors
/// A text, if the algorithm is unknown or its parameters are wrong or too long.
pub fn offer(spec: &str) -> Result<CcOffer, String> {
    let (def, _) = registry::parse(spec).map_err(|e| e.to_string())?;
    let params = spec.split_once(':').map_or("", |(_, p)| p.trim());
    if params.len() > MAX_CC_PARAMS {
        return Err(format!("the parameters of {} are longer than {MAX_CC_PARAMS} characters", def.name));
    }
    Ok(offer_of(def, params))
}

/// Checks that this end can run an algorithm that is proposed for its sending.
///
/// # Errors
/// A code of [`refusal`].
pub fn check(o: &CcOffer) -> Result<(), u64> {
    let def = registry::find(&o.name).map_err(|_| refusal::UNKNOWN)?;
    if def.version() != o.version {
        return Err(refusal::VERSION);
    }
    registry::Params::parse(def.name, &o.params).map(|_| ()).map_err(|_| refusal::PARAMETERS)
}

/// The terms that this end sends in the handshake. `own` is the algorithm that it chooses for its own sending.
///
/// # Errors
/// A text, if a choice or preference is invalid.
pub fn terms(own: &str, n: &CcNegotiation) -> Result<CcTerms, String> {
    let first = offer(own)?;
    if n.also.len() >= MAX_CC_OFFERS {
        return Err(format!("at most {MAX_CC_OFFERS} algorithms can be offered"));
    }
    let mut offers = vec![first];
    for o in n.also.iter().map(|spec| offer(spec)) {
        let o = o?;
        if offers.iter().all(|known| known.name != o.name) {
            offers.push(o);
        }
    }
    let others = registry::list().into_iter().filter(|d| n.allow.contains(d.name));
    for d in others {
        if offers.len() < MAX_CC_OFFERS && offers.iter().all(|known| known.name != d.name) {
            offers.push(offer_of(d, ""));
        }
    }
    Ok(CcTerms {
        prefer_own: n.prefer_own,
        only: n.preferred_only,
        echoes: PROVIDED_SIGNALS,
        offers,
        preferences: preferences(n)?,
    })
}

/// The algorithms that this end prefers and refuses for the peer's sending.
///
/// # Errors
/// A text, if there are too many or one is invalid.
pub fn preferences(n: &CcNegotiation) -> Result<Vec<CcPreference>, String> {
    if n.preferred.len() + n.refuse.len() > MAX_CC_PREFERENCES {
        return Err(format!("at most {MAX_CC_PREFERENCES} algorithms can be preferred and refused together"));
    }
    let refused = n.refuse.iter().map(|name| any_version(true, name));
    n.preferred.iter().map(|w| preferred(w)).chain(refused).collect()
}

/// Without parameters the name need not be known here, since only the peer runs the algorithm.
fn preferred(spec: &str) -> Result<CcPreference, String> {
    if !spec.contains(':') {
        return any_version(false, spec);
    }
    let CcOffer { name, version, params, .. } = offer(spec)?;
    Ok(CcPreference { refused: false, name, version, params })
}

/// A preference for every version of an algorithm.
fn any_version(refused: bool, name: &str) -> Result<CcPreference, String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'+');
    if name.is_empty() || name.len() > wire::cc::MAX_CC_NAME || !name.bytes().all(fits) {
        return Err(format!("\"{name}\" is not the name of an algorithm: write one such as bbr"));
    }
    Ok(CcPreference { refused, name: name.to_owned(), version: 0, params: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_round_trips_as_an_offer() {
        for def in registry::list() {
            let t = terms(
                def.name,
                &CcNegotiation { preferred: vec![def.name.to_owned()], ..CcNegotiation::default() },
            );
            let p = wire::Params { cc_terms: t.ok(), ..wire::Params::default() };
            let mut b = Vec::new();
            p.put(&mut b);
            assert_eq!(wire::Params::parse(&b).as_ref(), Ok(&p), "{}", def.name);
            let all = p.cc_terms.unwrap().offers;
            assert_eq!(
                (all.len(), all[0].name.as_str()),
                (registry::list().len().min(MAX_CC_OFFERS), def.name)
            );
            all.iter().for_each(|o| assert_eq!(check(o), Ok(()), "{}", o.name));
        }
    }

    #[test]
    fn preferred_algorithm_is_offered_first_and_once() {
        let also = vec!["cubic:hystart=off".to_owned(), "bbr:probe_rtt=off".to_owned(), "reno".to_owned()];
        let n = CcNegotiation {
            also,
            allow: Allow::Only(vec!["vegas".into(), "reno".into()]),
            ..CcNegotiation::default()
        };
        let all: Vec<_> = terms("bbr", &n).unwrap().offers.iter().map(CcOffer::spec).collect();
        assert_eq!(all, ["bbr", "cubic:hystart=off", "reno", "vegas"]);
        let many = CcNegotiation { also: vec!["reno".into(); MAX_CC_OFFERS], ..n.clone() };
        assert!(terms("bbr", &many).unwrap_err().contains("at most"));
        let wrong = CcNegotiation { also: vec!["nonsense".into()], ..n };
        assert!(terms("bbr", &wrong).unwrap_err().contains("nonsense"));
    }

    #[test]
    fn needs_map_to_signal_bits() {
        assert_eq!(needed_signals(Needs::NOTHING), 0);
        let marks = |marks| needed_signals(Needs { marks, telemetry: true });
        assert_eq!(marks(Marks::Step), signal::MARKS | signal::TELEMETRY);
        assert_eq!(marks(Marks::L4s), signal::L4S | signal::TELEMETRY);
    }
}
