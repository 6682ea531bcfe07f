//! Runs random simulations of iWARP connections over a modelled TCP: `cargo run --release -p longhaul-sim --example
//! streams -- FROM [TO]`

fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let from = args.first().copied().unwrap_or(0);
    let to = args.get(1).copied().unwrap_or(from + 1);
    let (all, failures) = longhaul_sim::streams::run_range(from..to);
    failures.iter().take(20).for_each(|f| println!("{f}\n"));
    println!(
        "{} worlds, {} failures, {} events, {} completions",
        to - from,
        failures.len(),
        all.events,
        all.completions
    );
    if !failures.is_empty() {
        std::process::exit(1);
    }
}
