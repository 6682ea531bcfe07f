//! `longhaul sim`.

use crate::args::{Steady, Swarm};
use crate::exit::{Code, Failure, Outcome};
use crate::stop;
use base::{Span, Time};
use endpoint::TransportOptions;
use netem::LinkConfig;
use serde_json::json;
use sim::pair::{Load, Pair};
use std::sync::atomic::Ordering;

/// Bytes of a write.
const MESSAGE: usize = 1 << 20;
/// Granularity of deliveries beside what hosts take: none.
const SLACK: Span = Span::ZERO;
/// Worlds between two lines of progress.
const REPORT_EVERY: u64 = 100;

/// One flow over one link.
pub fn steady(a: &Steady) -> Outcome<()> {
    let delay = a.rtt / 2;
    let bits = a.rate.bits_per_sec();
    let text = format!(
        "rate={bits}bit delay={}ns loss={:.9}% queue=1bdp mtu={}B",
        delay.as_nanos(),
        a.loss * 100.0,
        a.mtu
    );
    let there = LinkConfig::parse(&text).map_err(Failure::usage)?;
    let back = LinkConfig { delay, ..LinkConfig::default() };
    let mut options = TransportOptions { max_packet: a.mtu, ..TransportOptions::default() };
    options.cc.clone_from(&a.cc);
    // Two bandwidth-delay products and some, so that the application never holds the sender up.
    let ahead = (a.rate.bytes_in(a.rtt) * 4 / MESSAGE as u64 + 8) as usize;
    let load = Load { message: MESSAGE, ahead: ahead.min(8_192), messages: None };
    let mut pair = Pair::new(a.seed, SLACK, (there, back), options, load)?;
    pair.world.set_host_model(a.hosts.model()?);
    let fail = |e: String| {
        Failure::new(
            Code::Partial,
            format!("cannot finish the simulation: {e}; try --seed {} to reproduce it", a.seed),
        )
    };
    let (mut last, mut rows) = (0, Vec::new());
    for second in 1..=a.seconds {
        pair.run_until(Time::ZERO + Span::from_secs(second)).map_err(fail)?;
        let done = pair.shared.borrow().completed * MESSAGE as u64;
        rows.push((second, (done - last) * 8));
        if !a.json {
            out_line!("{second:>6} s  {:>10.1} Mbit/s", (done - last) as f64 * 8.0 / 1e6);
        }
        last = done;
    }
    let sender = pair.shared.borrow().sender;
    let stats = sender.and_then(|c| pair.world.endpoint(pair.sender).stats(c)).unwrap_or_default();
    let goodput = last as f64 * 8.0 / a.seconds as f64;
    if a.json {
        let rows: Vec<_> = rows.iter().map(|(s, b)| json!({ "second": s, "bits_per_second": b })).collect();
        out_line!(
            "{}",
            json!({ "link": text, "seed": a.seed, "goodput_bits_per_second": goodput, "share_of_link": goodput / bits as f64,
                    "intervals": rows, "connection": crate::show::stats_json(&stats, None) })
        );
    } else {
        let again = stats.payload_again as f64 / stats.payload_sent.max(1) as f64;
        out_line!(
            "{:.1} Mbit/s, {:.1}% of the link; {:.3}% retransmitted; RTT {}",
            goodput / 1e6,
            goodput / bits as f64 * 100.0,
            again * 100.0,
            stats.srtt
        );
    }
    Ok(())
}

/// Many random worlds.
pub fn swarm(a: &Swarm) -> Outcome<()> {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = a.threads.map_or_else(processors, usize::from);
    let total = a.seeds.end - a.seeds.start;
    let stopped = stop::on_signal(|| ())?;
    let summary = sim::swarm::run_range(a.seeds.clone(), threads, |done, failure| {
        if let Some(f) = failure {
            err_lines!("{f}");
        } else if !a.json && done.is_multiple_of(REPORT_EVERY) {
            err_line!("{done} of {total} simulations");
        }
        !stopped.load(Ordering::SeqCst)
    });
    let failed: Vec<u64> = summary.failures.iter().map(|f| f.seed).collect();
    if a.json {
        out_line!(
            "{}",
            json!({ "worlds": summary.seeds, "failed_seeds": failed, "datagrams": summary.datagrams,
                    "completions": summary.completions })
        );
    } else {
        out_line!(
            "{} simulations, {} datagrams, {} completions checked, {} simulations failed",
            summary.seeds,
            summary.datagrams,
            summary.completions,
            failed.len()
        );
    }
    match failed.first() {
        Some(seed) => Err(Failure::new(
            Code::Partial,
            format!(
                "cannot verify all simulations: some failed; try `longhaul sim swarm --seeds {seed}..{}` to reproduce the first",
                seed + 1
            ),
        )),
        None if summary.seeds < total => Err(Failure::new(Code::Interrupted, "interrupted")),
        None => Ok(()),
    }
}
