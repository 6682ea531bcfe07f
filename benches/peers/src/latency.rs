//! Round trips of messages.

use anyhow::Result;

use crate::Compare;
use crate::net::Kind;
use crate::peer::{self, Place};
use crate::rounds::{self, Peer, Runs, spread};

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let mut peers = Vec::new();
    for (size, text) in [(4u32, "4 B"), (64 << 10, "64 KiB")] {
        for spin in [false, true] {
            let manner = if spin { "spinning" } else { "blocking" };
            // A datagram holds no 64 KiB.
            for protocol in if size < 60_000 { &["tcp", "udp"][..] } else { &["tcp"] } {
                let name = format!("{text} {manner} {}", protocol.to_uppercase());
                peers.push(Peer::new(&name, move |p: &Place<'_>| {
                    let spin = if spin { &["--spin".to_owned()][..] } else { &[] };
                    let size = ["--size".to_owned(), size.to_string()];
                    let time = ["--seconds".to_owned(), p.seconds.to_string()];
                    let ends = [format!("{protocol}-ping"), format!("{protocol}-echo")];
                    let options = [[&size[..], &time, spin].concat(), [&size[..], spin].concat()];
                    peer::own(p, [&ends[0], &ends[1]], [&options[0], &options[1]])
                }));
            }
            let name = format!("{text} {manner} Longhaul");
            peers.push(Peer::new(&name, move |p: &Place<'_>| {
                let size = size.to_string();
                let spin: &[&str] = if spin { &["--poll", "spin"] } else { &[] };
                peer::longhaul(p, &["--latency", "-o", "write", "-s", &size], spin, &[])
            }));
        }
    }
    println!("Round trips for {} s, {} rounds", c.seconds, c.rounds);
    rounds::run(c, &peers, show)
}

fn show(kind: Kind, runs: &Runs) {
    println!("\n{}, microseconds", kind.name());
    println!("{:28} {:>8} {:>18} {:>8}", "", "median", "(least to most)", "p99");
    for (name, runs) in runs {
        let of = |i: usize| spread(runs.iter().filter_map(|b| b[0].trips.map(|t| t[i])));
        if let (Some(m), Some(p99)) = (of(0), of(1)) {
            let range = format!("({:.1} to {:.1})", m.least, m.most);
            println!("{name:28} {:8.1} {range:>18} {:8.1}", m.median, p99.median);
        }
    }
}
