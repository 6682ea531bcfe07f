//! Computes the initial congestion control of both directions from both ends' terms; both ends get the same result.

use wire::CcOffer;
use wire::cc::{CcPreference, CcTerms, signal};

/// Nothing that the sender offers is what the receiver will have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot agree on congestion control for what the {sender} sends: it offers {offers}, and the other end {terms}; try others at \
     either end (--cc, --cc-allow; --peer-cc, --peer-cc-refuse)"
)]
pub struct NoCommonAlgorithm {
    /// Which end sends.
    pub sender: &'static str,
    /// What it offers.
    pub offers: String,
    /// What the receiver says to that.
    pub terms: String,
}

/// The congestion control of both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgreedAlgorithms {
    /// What the client sends with.
    pub by_client: CcOffer,
    /// What the server sends with.
    pub by_server: CcOffer,
}

/// Both directions.
///
/// # Errors
/// The first direction for which nothing suits both ends.
pub fn agree(client: &CcTerms, server: &CcTerms) -> Result<AgreedAlgorithms, NoCommonAlgorithm> {
    let none = |sender, from: &CcTerms, to: &CcTerms| NoCommonAlgorithm {
        sender,
        offers: names(from.offers.iter().map(|o| &o.name)),
        terms: describe(to),
    };
    Ok(AgreedAlgorithms {
        by_client: one_way(client, server).ok_or_else(|| none("client", client, server))?,
        by_server: one_way(server, client).ok_or_else(|| none("server", server, client))?,
    })
}

/// Whether a receiver with these terms lets the peer send with it.
pub fn accepts(receiver: &CcTerms, o: &CcOffer) -> bool {
    let about = |refused: bool| receiver.preferences.iter().any(|w| w.refused == refused && w.is_about(o));
    o.needs & !receiver.echoes == 0 && !about(true) && (!receiver.only || about(false))
}

/// Of the sender's offers that the receiver accepts: the sender's first if it prefers its own order; else the one that the receiver
/// prefers most; else the sender's first.
fn one_way(sender: &CcTerms, receiver: &CcTerms) -> Option<CcOffer> {
    let mut candidates = sender.offers.iter().filter(|o| accepts(receiver, o));
    let preferred = || receiver.preferences.iter().filter(|w| !w.refused);
    let with = |o: &CcOffer, w: &CcPreference| {
        let params = if w.params.is_empty() { &o.params } else { &w.params };
        CcOffer { params: params.clone(), ..o.clone() }
    };
    if !sender.prefer_own {
        let best = preferred().find_map(|w| Some((w, candidates.clone().find(|o| w.is_about(o))?)));
        if let Some((w, o)) = best {
            return Some(with(o, w));
        }
    }
    candidates.next().cloned()
}

fn names<'a>(all: impl Iterator<Item = &'a String>) -> String {
    all.cloned().collect::<Vec<_>>().join(", ")
}

/// What a receiver says of what it is sent with: what it takes, refuses, and tells senders of their packets.
fn describe(t: &CcTerms) -> String {
    let list = |refused| names(t.preferences.iter().filter(|w| w.refused == refused).map(|w| &w.name));
    let (preferred, refused) = (list(false), list(true));
    let mut parts = Vec::new();
    if t.only {
        parts.push(if preferred.is_empty() {
            "takes none".to_owned()
        } else {
            format!("takes only {preferred}")
        });
    }
    if !refused.is_empty() {
        parts.push(format!("refuses {refused}"));
    }
    parts.push(format!("tells of {}", signals(t.echoes)));
    match parts.pop() {
        Some(last) if parts.is_empty() => last,
        Some(last) => format!("{} and {last}", parts.join(", ")),
        None => String::new(),
    }
}

/// The signals of these bits, by their names.
fn signals(bits: u64) -> String {
    const KNOWN: [(u64, &str); 3] = [
        (signal::MARKS, "congestion marks"),
        (signal::L4S, "marks of L4S"),
        (signal::TELEMETRY, "telemetry"),
    ];
    let mut all: Vec<_> = KNOWN.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if bits & !(signal::MARKS | signal::L4S | signal::TELEMETRY) != 0 {
        all.push("signals that this version does not know");
    }
    if all.is_empty() { "no signals".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests;
