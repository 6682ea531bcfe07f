//! Round trips of messages.

use anyhow::Result;

use crate::Compare;
use crate::net::Kind;
use crate::peer::{self, Both, Place};
use crate::rounds::{self, Peer, Runs, spread};

/// Whether ends sleep while nothing is there, or look on.
const MANNERS: [&str; 2] = ["blocking", "spinning"];
/// What the others are compared with: the last does nothing but what an encrypting transport cannot do without.
const REFERENCES: [&str; 3] = ["TCP", "UDP", "UDP, sealed"];

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let mut peers = Vec::new();
    for (size, text) in [(4u32, "4 B"), (64 << 10, "64 KiB")] {
        for (spin, manner) in [false, true].into_iter().zip(MANNERS) {
            for (name, protocol) in REFERENCES.into_iter().zip(["tcp", "udp", "sealed"]) {
                let name = format!("{text} {manner} {name}");
                peers.push(Peer::new(&name, move |p: &Place<'_>| {
                    let spin = if spin { &["--spin".to_owned()][..] } else { &[] };
                    let size = ["--size".to_owned(), size.to_string()];
                    let time = ["--seconds".to_owned(), p.seconds.to_string()];
                    let ends = [format!("{protocol}-ping"), format!("{protocol}-echo")];
                    let options = [[&size[..], &time, spin].concat(), [&size[..], spin].concat()];
                    peer::own(p, [&ends[0], &ends[1]], [&options[0], &options[1]])
                }));
            }
            peers.push(longhaul(&format!("{text} {manner} Longhaul"), size, spin, "udp"));
            if size == 4 && spin {
                // What looks on finds frames in memory, without a system call.
                peers.push(
                    longhaul(&format!("{text} {manner} Longhaul, xdp"), size, spin, "xdp").between_hosts(),
                );
            }
        }
    }
    println!("Round trips for {} s, {} rounds", c.seconds, c.rounds);
    rounds::run(c, &peers, show)
}

fn longhaul(name: &str, size: u32, spin: bool, datapath: &'static str) -> Peer {
    Peer::new(name, move |p: &Place<'_>| {
        let size = size.to_string();
        let mut shared = vec!["--datapath", datapath];
        if spin {
            shared.extend(["--poll", "spin"]);
        }
        peer::longhaul(p, &["--latency", "-o", "write", "-s", &size], &shared, &[])
    })
}

fn show(kind: Kind, runs: &Runs) {
    println!("\n{}, microseconds; ratios round by round", kind.name());
    print!("{:28} {:>8} {:>18} {:>8}", "", "median", "(least to most)", "p99");
    REFERENCES.iter().for_each(|other| print!(" {:>22}", format!("to {other}")));
    println!();
    for (name, own) in runs {
        let of = |i: usize| spread(own.iter().filter_map(|b| b[0].trips.map(|t| t[i])));
        let (Some(m), Some(p99)) = (of(0), of(1)) else { continue };
        let range = format!("({:.1} to {:.1})", m.least, m.most);
        print!("{name:28} {:8.1} {range:>18} {:8.1}", m.median, p99.median);
        REFERENCES.iter().for_each(|other| print!(" {:>22}", ratio(own, runs, &beside(name, other))));
        println!();
    }
}

/// The peer that did the same in the same manner.
fn beside(name: &str, peer: &str) -> String {
    let what = MANNERS.iter().find_map(|m| Some(&name[..name.find(m)? + m.len()]));
    what.map_or_else(String::new, |what| format!("{what} {peer}"))
}

/// Median, least and most of the ratios of rounds to those of another peer: the machine is not the same in every minute.
fn ratio(own: &[Both], runs: &Runs, other: &str) -> String {
    let Some((_, other)) = runs.iter().find(|(n, _)| n == other) else { return String::new() };
    let median = |b: &Both| b[0].trips.map(|t| t[0]);
    let each = own.iter().zip(other).filter_map(|(a, b)| Some(median(a)? / median(b)?));
    spread(each).map_or_else(String::new, |s| format!("{:.2} ({:.2} to {:.2})", s.median, s.least, s.most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::End;

    #[test]
    fn ratios_are_of_the_same_round() {
        let run = |us: f64| [End { trips: Some([us, us]), ..End::default() }, End::default()];
        let runs: Runs = vec![
            ("4 B spinning UDP".to_owned(), vec![run(5.0), run(50.0), run(10.0)]),
            ("4 B spinning Longhaul".to_owned(), vec![run(6.0), run(75.0), run(14.0)]),
        ];
        let udp = beside("4 B spinning Longhaul", "UDP");
        assert_eq!(ratio(&runs[1].1, &runs, &udp), "1.40 (1.20 to 1.50)");
        assert_eq!(ratio(&runs[1].1, &runs, &beside("4 B spinning Longhaul", "TCP")), "");
    }

    #[test]
    fn peers_stand_beside_those_of_the_same_size_and_manner() {
        for name in ["64 KiB blocking Longhaul", "64 KiB blocking UDP, sealed", "64 KiB blocking TCP"] {
            assert_eq!(beside(name, "UDP, sealed"), "64 KiB blocking UDP, sealed");
            assert_eq!(beside(name, "TCP"), "64 KiB blocking TCP");
        }
        assert_eq!(beside("TCP", "TCP"), "");
    }
}
