//! Peers in turn, round after round, and what their runs come to.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::Compare;
use crate::distance::Distance;
use crate::net::{Kind, Net};
use crate::peer::{Both, Place};

/// How one peer is measured.
pub type Measure = Box<dyn Fn(&Place<'_>) -> Result<Both>>;

/// A peer with its name.
pub struct Peer {
    /// In tables, and for `--peers`.
    pub name: String,
    /// One run.
    pub measure: Measure,
    /// Whether it can be had over loopback.
    local: bool,
    /// Whether a run may be made again, and the first left out.
    again: bool,
}

impl Peer {
    /// A peer.
    pub fn new(name: &str, measure: impl Fn(&Place<'_>) -> Result<Both> + 'static) -> Peer {
        Peer { name: name.to_owned(), measure: Box::new(measure), local: true, again: true }
    }

    /// Each run counts: it leaves more behind than what it gives.
    pub fn once(self) -> Peer {
        Peer { again: false, ..self }
    }

    /// Left out over loopback: it would be another there.
    pub fn between_hosts(self) -> Peer {
        Peer { local: false, ..self }
    }
}

/// Runs of each peer, in the order of the peers.
pub type Runs = Vec<(String, Vec<Both>)>;

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Of an even number, the mean of the middle two.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Of some values; `None` of none.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let (least, most) = (*v.first()?, *v.last()?);
    let median = (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0;
    Some(Spread { median, least, most })
}

/// Measures all peers over all networks asked for; `show` tells of each network when it is done.
pub fn run(c: &Compare, peers: &[Peer], mut show: impl FnMut(Kind, &Runs)) -> Result<()> {
    let cores = <[u32; 2]>::try_from(c.cores.clone()).ok().context("--cores takes two numbers: 0,1")?;
    let mut distance = Distance::new(cores.map(|c| c as usize))?;
    let cores = cores.map(|c| c.to_string());
    let state = std::env::temp_dir().join(format!("longhaul-bench-{}", std::process::id()));
    std::fs::create_dir_all(&state)?;
    let asked = |p: &&Peer| c.peers.is_empty() || c.peers.iter().any(|part| p.name.contains(part.as_str()));
    let peers: Vec<&Peer> = peers.iter().filter(asked).collect();
    let mut all = BTreeMap::new();
    let mut result = Ok(());
    for kind in &c.nets {
        match network(c, *kind, (cores.clone(), &mut distance), &state, &peers) {
            Ok(runs) => {
                show(*kind, &runs);
                all.insert(kind.name(), to_json(&runs));
            }
            Err(e) => {
                result = Err(e.context(kind.name()));
                break;
            }
        }
    }
    std::fs::remove_dir_all(&state)?;
    if peers.iter().any(|p| p.again) {
        println!("\n{}", distance.words());
    }
    if let Some(file) = &c.json {
        std::fs::write(
            file,
            serde_json::to_string_pretty(&json!({ "seconds": c.seconds, "mtu": c.mtu, "runs": all }))?,
        )?;
    }
    result
}

fn network(
    c: &Compare,
    kind: Kind,
    (cores, distance): ([String; 2], &mut Distance),
    state: &std::path::Path,
    peers: &[&Peer],
) -> Result<Runs> {
    let net = Net::up(kind, c.mtu)?;
    let place = Place {
        net: &net,
        cores,
        programs: &c.programs,
        seconds: c.seconds,
        mtu: c.mtu,
        state,
        profile: None,
    };
    let peers: Vec<_> = peers.iter().filter(|p| p.local || kind != Kind::Loopback).collect();
    let progress = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let mut runs: Runs = peers.iter().map(|p| (p.name.clone(), Vec::new())).collect();
    for round in 1..=c.rounds {
        for (peer, (_, runs)) in peers.iter().zip(&mut runs) {
            if progress {
                eprint!("\r\x1b[K{}, round {round} of {}: {}", kind.name(), c.rounds, peer.name);
            }
            let run = match peer.again {
                true => distance.near(|| (peer.measure)(&place)),
                false => (peer.measure)(&place),
            };
            runs.push(run.with_context(|| format!("{} failed", peer.name))?);
        }
    }
    if progress {
        eprint!("\r\x1b[K");
    }
    Ok(runs)
}

fn to_json(runs: &Runs) -> Value {
    let each = runs.iter().map(|(name, runs)| (name.clone(), json!(runs)));
    Value::Object(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_median_least_and_most() {
        let s = spread([3.0, 1.0, 2.0]).expect("some");
        assert_eq!((s.median, s.least, s.most), (2.0, 1.0, 3.0));
        assert_eq!(spread([1.0, 2.0]).map(|s| s.median), Some(1.5));
        assert_eq!(spread([]), None);
    }
}
