//! What it costs one stream at full speed that a program decides how fast to send, instead of the built-in algorithm that
//! decides the same: both in turn.

use anyhow::Result;

use crate::Compare;
use crate::bulk::{cpu, gbits};
use crate::net::Kind;
use crate::peer::{self, Both, Place};
use crate::rounds::{self, Peer, Runs, spread};

/// Each shipped program behind the algorithm that it repeats.
const PAIRS: [[&str; 2]; 4] =
    [["reno", "reno-c"], ["cubic", "cubic-c"], ["dctcp", "dctcp-c"], ["vegas", "vegas-c"]];
/// What of the built-in algorithm's throughput a program has to leave.
const ASKED: f64 = 0.98;

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let mut peers = Vec::new();
    for [built_in, program] in PAIRS {
        peers.push(Peer::new(&format!("built in, {built_in}"), move |p: &Place<'_>| {
            run(p, &["--cc", built_in])
        }));
        let options = ["--cc-program", program, "--cc", program];
        peers.push(Peer::new(&format!("program, {built_in}"), move |p: &Place<'_>| run(p, &options)));
    }
    println!(
        "One stream for {} s, {} rounds, MTU {}; a program is to leave {ASKED} of the throughput",
        c.seconds, c.rounds, c.mtu
    );
    rounds::run(c, &peers, show)
}

fn run(p: &Place<'_>, by: &[&str]) -> Result<Both> {
    let own = ["--suite", "aegis-128l", "--verify", "--region", "256MiB"];
    peer::longhaul(p, &[&own, by].concat(), &[], &[])
}

/// The programs' throughput by that of the built-in algorithm in the same round: the median, and the ratio of medians.
fn ratios(built_in: &[f64], program: &[f64]) -> Option<(f64, f64)> {
    let pairs = built_in.iter().zip(program).filter(|(b, _)| **b > 0.0).map(|(b, p)| p / b);
    let (of_pairs, b, p) =
        (spread(pairs)?, spread(built_in.iter().copied())?, spread(program.iter().copied())?);
    Some((of_pairs.median, p.median / b.median))
}

fn show(kind: Kind, runs: &Runs) {
    println!("\n{}", kind.name());
    println!(
        "{:20} {:>8} {:>16} {:>9} {:>11} {:>10}",
        "", "Gbit/s", "(least to most)", "CPU send", "of medians", "of pairs"
    );
    let mut before: Option<Vec<f64>> = None;
    for (name, runs) in runs {
        let rates: Vec<f64> = runs.iter().map(gbits).collect();
        let (Some(rate), Some(send)) = (spread(rates.clone()), spread(runs.iter().map(|b| cpu(b, 0)))) else {
            continue;
        };
        let is_program = name.starts_with("program");
        let found = before.take().filter(|_| is_program).and_then(|b| ratios(&b, &rates));
        let (of_medians, of_pairs) = found.map_or(("-".to_owned(), "-".to_owned()), |(pairs, medians)| {
            let word = if medians.max(pairs) < ASKED { " LESS" } else { "" };
            (format!("{medians:.3}"), format!("{pairs:.3}{word}"))
        });
        let range = format!("({:.1} to {:.1})", rate.least, rate.most);
        println!(
            "{name:20} {:8.2} {range:>16} {:9.2} {of_medians:>11} {of_pairs:>10}",
            rate.median, send.median
        );
        before = (!is_program).then_some(rates);
        if runs.iter().any(|b| b[1].verified == Some(false)) {
            println!("{name:20} WHAT ARRIVED IS NOT WHAT WAS SENT");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round_and_of_medians() {
        // A machine that slows down by half in the second round: pairs do not see it.
        let found = ratios(&[10.0, 5.0, 10.0], &[9.9, 4.9, 9.9]).expect("some");
        assert_eq!((found.0, found.1), (0.99, 0.99));
        let found = ratios(&[10.0, 10.0, 10.0], &[5.0, 10.0, 9.0]).expect("some");
        assert_eq!((found.0, found.1), (0.9, 0.9));
        assert_eq!(ratios(&[0.0], &[1.0]), None);
    }
}
