//! `cargo run --release -p longhaul-sim --example swarm -- 0 100`

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (from, to) = (args.first().copied().unwrap_or(0), args.get(1).copied().unwrap_or(100));
    let summary = longhaul_sim::swarm::run_range(from..to, 2, |n, f| {
        if n % 500 == 0 {
            println!("{n} worlds");
        }
        if let Some(f) = f {
            println!("{}: {}", f.seed, f.what);
        }
        true
    });
    if to - from == 1 {
        summary.failures.iter().for_each(|f| println!("{f}"));
    }
    println!(
        "{} worlds, {} failures, {} datagrams, {} completions",
        summary.seeds,
        summary.failures.len(),
        summary.datagrams,
        summary.completions
    );
}
