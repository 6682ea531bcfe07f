//! iWARP beside plain TCP: the same messages over the same sockets, in turn.
//!
//! Round trips and throughput, by message size, sleeping and spinning, with CRC and markers and without. TCP is our own
//! sender and receiver of messages, which have no other work than that.

use anyhow::Result;
use clap::{Args, ValueEnum};

use lhio::tcp::MAX_LOW_WATERMARK;

use crate::bulk::{cpu, gbits};
use crate::net::Kind;
use crate::peer::{self, Both, Mpa, Place};
use crate::rounds::{self, Peer, Runs, spread};
use crate::{Compare, Sockets};

/// What all others are compared with.
const REFERENCE: &str = "TCP";
/// Plain TCP's line-ups: the ends of round trips, and those of streams. With CRCs and nothing else it is what iWARP with CRCs
/// cannot do without.
const TCP: [(&str, [[&str; 2]; 2]); 5] = [
    (REFERENCE, UNCHECKED),
    (ASKING, UNCHECKED),
    (GATHERING, UNCHECKED),
    ("TCP, CRC", [CHECKED_TRIPS, ["checked-stream", "checked-collect"]]),
    (EARLY, [CHECKED_TRIPS, ["checked-stream", "checked-place"]]),
];
const CHECKED_TRIPS: [&str; 2] = ["checked-ping", "checked-echo"];
const UNCHECKED: [[&str; 2]; 2] = [["tcp-ping", "tcp-echo"], ["tcp-stream", "tcp-collect"]];
/// Its ends, spinning, ask whether there is something to read, as iWARP's do, where the others read in vain. Which of them is quicker
/// depends on when in a look a message arrives.
const ASKING: &str = "TCP, asking";
/// The receiver of its streams is woken for [`MAX_LOW_WATERMARK`], as iWARP's has itself woken while much comes; programs rarely ask for that.
const GATHERING: &str = "TCP, woken for much";
/// Its streams are read straight to their places, and checked there; round trips are in any case.
const EARLY: &str = "TCP, CRC, early";
/// iWARP's line-ups.
const VARIANTS: [(&str, Mpa); 5] = [
    ("iWARP", PLAIN),
    ("iWARP, CRC", Mpa { crc: true, ..PLAIN }),
    ("iWARP, CRC, early", Mpa { crc: true, early: true, ..PLAIN }),
    ("iWARP, markers", Mpa { markers: true, ..PLAIN }),
    ("iWARP, CRC and markers", Mpa { crc: true, markers: true, ..PLAIN }),
];
/// Congestion control of all peers, unless another one is asked for. Where the system's is one that paces by what it finds a path to
/// carry (BBR), what it finds differs by half from run to run over loopback, and that is what would be compared.
const CONGESTION: &str = "cubic";
/// Neither CRC nor markers.
const PLAIN: Mpa = Mpa { crc: false, markers: false, early: false };

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// One message at a time, to and fro.
    Latency,
    /// One message behind the other.
    Throughput,
}

/// How ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Waiting {
    /// In the system.
    Sleeping,
    /// Asking again and again.
    Spinning,
}

/// Which operation carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// RDMA Writes; of round trips, Writes that tell their arrival.
    Write,
    /// Sends.
    Send,
    /// RDMA Reads; throughput only.
    Read,
}

impl Operation {
    /// As `longhaul perf -o` takes it.
    fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Send => "send",
            Operation::Read => "read",
        }
    }
}

/// Options of the comparison.
#[derive(Args, Clone)]
pub struct Options {
    #[command(flatten)]
    compare: Compare,
    /// What is measured: latency, throughput
    #[arg(long, value_delimiter = ',', default_value = "latency,throughput")]
    what: Vec<What>,
    /// How both ends wait: sleeping, spinning
    #[arg(long, value_delimiter = ',', default_value = "sleeping,spinning")]
    waiting: Vec<Waiting>,
    /// Bytes of messages to and fro
    #[arg(long, value_delimiter = ',', default_value = "4,1024,65536,1048576")]
    trips: Vec<u64>,
    /// Bytes of messages behind each other
    #[arg(long, value_delimiter = ',', default_value = "65536,262144,1048576")]
    sizes: Vec<u64>,
    /// The operation of throughput: write, send, read
    #[arg(long, default_value = "write")]
    operation: Operation,
    /// The operation of round trips: send, or write
    #[arg(long, default_value = "send")]
    ping: Operation,
    #[command(flatten)]
    sockets: Sockets,
}

/// Rows that are compared with each other: the same size, the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    what: What,
    size: u64,
    waiting: Waiting,
}

impl Group {
    fn name(self) -> String {
        let how = if self.waiting == Waiting::Spinning { "spinning" } else { "sleeping" };
        let what = if self.what == What::Latency { "to and fro" } else { "streamed" };
        format!("{} {what}, {how}", bytes(self.size))
    }
}

fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Measures and tells.
pub fn compare(o: &Options) -> Result<()> {
    let groups = groups(o);
    let mut peers = Vec::new();
    for g in &groups {
        peers.extend(line_up(o, *g));
    }
    let c = &o.compare;
    println!("Messages of one size for {} s, {} rounds, MTU {}", c.seconds, c.rounds, c.mtu);
    rounds::run(c, &peers, |kind, runs| show(kind, &groups, runs))
}

fn groups(o: &Options) -> Vec<Group> {
    let mut out = Vec::new();
    for what in &o.what {
        let sizes = if *what == What::Latency { &o.trips } else { &o.sizes };
        for size in sizes {
            out.extend(o.waiting.iter().map(|w| Group { what: *what, size: *size, waiting: *w }));
        }
    }
    out
}

/// TCP and all of iWARP's variants for one group.
fn line_up(o: &Options, g: Group) -> Vec<Peer> {
    let name = |who: &str| format!("{}: {who}", g.name());
    let congestion = o.sockets.congestion.clone().unwrap_or_else(|| CONGESTION.to_owned());
    let spin = g.waiting == Waiting::Spinning;
    let asking = spin && g.what == What::Latency;
    let mut out: Vec<Peer> = TCP
        .into_iter()
        .filter(|(who, _)| match *who {
            ASKING => asking,
            EARLY => g.what == What::Throughput,
            GATHERING => g.what == What::Throughput && !spin,
            _ => true,
        })
        .map(|(who, ends)| {
            let (congestion, asks) = (Some(congestion.clone()), who == ASKING);
            let enough = (who == GATHERING).then_some(MAX_LOW_WATERMARK).or(o.sockets.enough);
            let sockets = Sockets { congestion, asks, enough, ..o.sockets.clone() }.args();
            Peer::new(&name(who), move |p: &Place<'_>| {
                let mut shared = vec!["--size".to_owned(), g.size.to_string()];
                shared.extend(spin.then(|| "--spin".to_owned()));
                shared.extend(sockets.iter().cloned());
                let time = ["--seconds".to_owned(), p.seconds.to_string()];
                let ends = ends[usize::from(g.what == What::Throughput)];
                peer::own(p, ends, [&[&shared[..], &time].concat(), &shared])
            })
        })
        .collect();
    let operation = if g.what == What::Latency { o.ping } else { o.operation };
    for (who, mpa) in VARIANTS {
        let congestion = congestion.clone();
        out.push(Peer::new(&name(who), move |p: &Place<'_>| {
            let size = g.size.to_string();
            // One buffer of a message's size at each end, as TCP's ends have it.
            let mut own = vec!["-o", operation.name(), "-s", &size, "--region", &size];
            if g.what == What::Latency {
                own.push("--latency");
            }
            let mut shared = vec!["--tcp-cc", &congestion];
            if spin {
                shared.extend(["--poll", "spin"]);
            }
            peer::iwarp(p, mpa, &own, &shared)
        }));
    }
    out
}

/// The headline of a run: microseconds, or Gbit/s.
fn headline(what: What, b: &Both) -> f64 {
    match what {
        What::Latency => b[0].trips.map_or(0.0, |t| t[0]),
        What::Throughput => gbits(b),
    }
}

fn show(kind: Kind, groups: &[Group], runs: &Runs) {
    println!("\n{}", kind.name());
    for g in groups {
        let prefix = format!("{}: ", g.name());
        let rows: Vec<_> =
            runs.iter().filter_map(|(n, r)| Some((n.strip_prefix(&prefix)?, r.as_slice()))).collect();
        if rows.is_empty() {
            continue;
        }
        let unit = if g.what == What::Latency { "us" } else { "Gbit/s" };
        println!(
            "\n{:26} {unit:>8} {:>18} {:>8} {:>16} {:>9} {:>9} {:>7} {:>7}",
            g.name(),
            "(least to most)",
            "to TCP",
            "(round by round)",
            "CPU send",
            "CPU recv",
            "to TCP",
            "to TCP"
        );
        let reference = rows.iter().find(|(n, _)| *n == REFERENCE).map(|(_, r)| *r);
        rows.iter().for_each(|(name, r)| println!("{}", row(name, g.what, r, reference).unwrap_or_default()));
    }
}

/// One peer's row: its headline, that to TCP's of all rounds and of each, and CPU seconds per 10^9 bytes (of round trips:
/// microseconds per round trip) of both ends, and those to TCP's.
fn row(name: &str, what: What, runs: &[Both], reference: Option<&[Both]>) -> Option<String> {
    let head = spread(runs.iter().map(|b| headline(what, b)))?;
    let cost = |runs: &[Both], end: usize| match what {
        What::Throughput => spread(runs.iter().map(|b| cpu(b, end))),
        What::Latency => spread(runs.iter().map(|b| b[end].cpu * 1e6 / b[0].count.max(1) as f64)),
    };
    let costs = [cost(runs, 0)?.median, cost(runs, 1)?.median];
    let range = format!("({:.2} to {:.2})", head.least, head.most);
    let mut out = format!("  {name:24} {:8.2} {range:>18}", head.median);
    let base = reference.and_then(|r| spread(r.iter().map(|b| headline(what, b))).map(|s| (r, s.median)));
    let (mut share, mut each, mut ratios) =
        ("-".to_owned(), "-".to_owned(), ["-".to_owned(), "-".to_owned()]);
    if let Some((r, median)) = base.filter(|b| b.1 > 0.0) {
        share = format!("{:.2}", head.median / median);
        // Neighbours in time, so that what disturbs both does not count.
        let pairs = runs.iter().zip(r).map(|(a, b)| headline(what, a) / headline(what, b));
        each = spread(pairs).map_or(each, |s| format!("({:.2} to {:.2})", s.least, s.most));
        for (end, ratio) in ratios.iter_mut().enumerate() {
            if let Some(s) = cost(r, end).filter(|s| s.median > 0.0) {
                *ratio = format!("{:.2}", costs[end] / s.median);
            }
        }
    }
    let [send, recv] = ratios;
    out.push_str(&format!(" {share:>8} {each:>16} {:9.2} {:9.2} {send:>7} {recv:>7}", costs[0], costs[1]));
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::End;

    fn run(us: f64, cpu: f64) -> Both {
        let end = End { count: 1_000_000, seconds: 1.0, cpu, trips: Some([us, us]), ..End::default() };
        [end, end]
    }

    #[test]
    fn a_row_tells_medians_ratios_and_cost() {
        let tcp = [run(10.0, 1.0), run(20.0, 1.0), run(30.0, 1.0)];
        let ours = [run(11.0, 1.1), run(24.0, 1.1), run(30.0, 1.1)];
        let text = row("iWARP", What::Latency, &ours, Some(&tcp)).expect("a row");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..5], ["iWARP", "24.00", "(11.00", "to", "30.00)"]);
        assert_eq!(words[5..9], ["1.20", "(1.00", "to", "1.20)"]);
        assert_eq!(words[9..], ["1.10", "1.10", "1.10", "1.10"]);
        assert_eq!(row("iWARP", What::Latency, &[], None), None);
        let alone = row("iWARP", What::Throughput, &ours, None).expect("a row");
        assert_eq!(alone.split_whitespace().filter(|w| *w == "-").count(), 4);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([4, 65_536, 1 << 20, 1_500].map(bytes), ["4 B", "64 KiB", "1 MiB", "1500 B"]);
    }
}
