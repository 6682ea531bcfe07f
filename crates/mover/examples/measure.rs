//! Measures transfers between two machines, name spaces or folders.
//!
//! `measure serve DIR IP:PORT`, then `measure put IP:PORT SOURCE DEST` or `measure get IP:PORT SOURCE DIR`: prints
//! time, rate and CPU time of this end. `delta`, `whole`, `compressed`, `plain` and `auto` put with that and nothing else
//! to save traffic. `measure relay IP:PORT TO:PORT 'rate=500mbit delay=35ms'` stands for a long path.
//! Both ends use fixed keys: for measuring only.

#[path = "../tests/common/mod.rs"]
mod common;

use lhio::clock::CpuTime;
use longhaul_mover::{DataReduction, ReductionMode, ServeOptions, Summary, TransferOptions};
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let a: Vec<&str> = args.iter().map(String::as_str).collect();
    match a[..] {
        ["serve", dir, at] => {
            common::serve_here(ServeOptions::new(dir), at.parse().expect("IP:PORT"), |a, _, _| {
                println!("{a}")
            });
        }
        ["relay", at, to, link] => {
            let link: netem::LinkConfig = link.parse().expect("as in `rate=500mbit delay=35ms`");
            let mut c =
                lhio::relay::RelayConfig::new(at.parse().expect("IP:PORT"), to.parse().expect("IP:PORT"));
            (c.up, c.down) = (link.clone(), link);
            let relay = lhio::relay::RelayHandle::start(c).expect("relay");
            let _ = std::io::stdin().read_line(&mut String::new()); // runs until its input ends
            println!("{:?}", relay.stop());
        }
        ["put", at, source, dest] => {
            report(common::put(at.parse().expect("IP:PORT"), Path::new(source), dest))
        }
        [how @ ("delta" | "whole" | "compressed" | "plain" | "auto"), at, source, dest] => {
            report(update(how, at, source, dest))
        }
        ["get", at, source, dest] => {
            report(common::get(at.parse().expect("IP:PORT"), source, Path::new(dest)))
        }
        _ => eprintln!(
            "measure serve DIR IP:PORT | put IP:PORT SOURCE DEST | get IP:PORT SOURCE DIR | delta, whole, compressed, plain or auto IP:PORT SOURCE DEST"
        ),
    }
}

/// As `put`, with what saves traffic done in any case, or not at all.
fn update(how: &str, at: &str, source: &str, dest: &str) -> Result<Summary, longhaul_mover::Error> {
    let mut data_reduction = DataReduction { deltas: ReductionMode::Never, compress: ReductionMode::Never };
    match how {
        "delta" => data_reduction.deltas = ReductionMode::Always,
        "compressed" => data_reduction.compress = ReductionMode::Always,
        "auto" => data_reduction = DataReduction::default(),
        _ => {}
    }
    let o = TransferOptions { data_reduction, ..TransferOptions::default() };
    common::put_with(at.parse().expect("IP:PORT"), Path::new(source), dest, o, |_, _| ())
}

fn report(r: Result<Summary, longhaul_mover::Error>) {
    let s = r.expect("prepared");
    let cpu = CpuTime::of_process().total().as_secs_f64();
    let (p, secs) = (&s.progress, s.nanos as f64 / 1e9);
    println!(
        "{:.3} s, {} files, {:.1} MB, {:.3} Gbit/s, {cpu:.3} CPU s, {} retransmitted, {} sent, {} received, {} copied, {} \
         compressed to {}, {:?} {:?}",
        secs,
        s.totals.files,
        s.totals.bytes as f64 / 1e6,
        s.totals.bytes as f64 * 8e-9 / secs,
        p.bytes_retransmitted,
        p.bytes_sent,
        p.bytes_received,
        p.bytes_matched,
        p.bytes_before_compression,
        p.bytes_after_compression,
        s.error,
        p.errors.first(),
    );
}
