//! One flow over each of some paths with many seeds, and every run's share of the path: a median would hide a second mode.
//!
//! `cargo run --release -p longhaul-sim --example runs -- [jitter|long|FILE] [CC,CC] [SEEDS] [FROM] [TO]`
//!
//! A file has a link's description a line.

use base::{Span, Time};
use longhaul_sim::pair::{Load, Pair};
use netem::LinkConfig;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use transport::TransportOptions;

/// Rates, round trips, random loss and jitter, crossed.
fn grid() -> Vec<String> {
    let mut all = Vec::new();
    for rate in ["50mbit", "300mbit", "1gbit"] {
        for delay in [10, 40, 90] {
            for loss in ["0.1%", "1%", "3%"] {
                for jitter in ["0ms", "1ms", "5ms"] {
                    all.push(format!("rate={rate} delay={delay}ms queue=1bdp loss={loss} jitter={jitter}"));
                }
            }
        }
    }
    all
}

struct Outcome {
    share: f64,
    first: f64,
    dropped: f64,
}

fn run(link: &LinkConfig, cc: &str, seed: u64, from: u64, to: u64) -> Result<Outcome, String> {
    let options = TransportOptions {
        cc: cc.into(),
        max_packet: 1_500,
        module: wire::Module::Crc32c,
        ..TransportOptions::default()
    };
    let back = LinkConfig { loss: netem::Loss::NONE, ..link.clone() };
    let load = Load { message: 1 << 20, ahead: 4_096, messages: None };
    let mut pair = Pair::new(seed, Span::from_micros(20), (link.clone(), back), options, load)
        .map_err(|e| e.to_string())?;
    let mut payload = |at: u64| -> Result<(u64, u64, u64), String> {
        pair.run_until(Time::ZERO + Span::from_millis(at))?;
        let r = pair.board.borrow().receiver;
        let st = r.and_then(|r| pair.world.endpoint(pair.receiver).stats(r)).unwrap_or_default();
        let l = pair.world.link_stats(pair.there);
        Ok((st.payload_received, l.dropped_queue, l.sent))
    };
    let four = payload(4_000)?.0;
    let (a, dropped, sent) = payload(from)?;
    let (b, dropped_then, sent_then) = payload(to)?;
    let limit = link.rate.map_or(1.0, |r| r.bytes_per_sec() as f64) * 0.955;
    Ok(Outcome {
        share: (b - a) as f64 / limit / ((to - from) as f64 / 1e3),
        first: four as f64 / limit / 4.0,
        dropped: (dropped_then - dropped) as f64 / (sent_then - sent).max(1) as f64,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let which = args.first().map_or("jitter", String::as_str);
    let ccs: Vec<&str> = args.get(1).map_or("haul", String::as_str).split(',').collect();
    let number = |i: usize, d: u64| args.get(i).map_or(Ok(d), |s| s.parse());
    let (seeds, from, to) = (number(2, 6)?, number(3, 4_000)?, number(4, 12_000)?);
    let links = match which {
        "jitter" => grid(),
        file => std::fs::read_to_string(file)?.lines().map(str::to_owned).filter(|l| !l.is_empty()).collect(),
    };
    let jobs: Vec<(usize, usize, u64)> = (0..links.len())
        .flat_map(|l| (0..ccs.len()).flat_map(move |c| (1..=seeds).map(move |s| (l, c, s))))
        .collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![None; links.len() * ccs.len()]));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some((l, c, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let link = LinkConfig::parse(&links[*l]).expect("a link");
                    let o =
                        run(&link, ccs[*c], *seed, from, to).unwrap_or_else(|e| panic!("{}: {e}", links[*l]));
                    let mut done = done.lock().expect("no panic");
                    let cell: &mut Option<Vec<(f64, f64, f64, u64)>> = &mut done[l * ccs.len() + c];
                    let runs = cell.get_or_insert_default();
                    runs.push((o.share, o.first, o.dropped, *seed));
                    if runs.len() as u64 == seeds {
                        show(&links[*l], ccs[*c], runs);
                    }
                }
            });
        }
    });
    Ok(())
}

fn show(link: &str, cc: &str, runs: &mut [(f64, f64, f64, u64)]) {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let list = |f: fn(&(f64, f64, f64, u64)) -> f64| {
        let mut v: Vec<f64> = runs.iter().map(f).collect();
        v.sort_by(f64::total_cmp);
        v.iter().map(|x| format!("{x:.2}")).collect::<Vec<_>>().join(" ")
    };
    let worst = if runs[0].0 < 0.8 { "!" } else { " " };
    let lost = runs.iter().map(|r| r.2).fold(0.0, f64::max);
    println!(
        "{worst} {link} {cc}: {} | first 4 s {} | own loss {:.2} % | worst seed {}",
        list(|r| r.0),
        list(|r| r.1),
        lost * 100.0,
        runs[0].3
    );
}
