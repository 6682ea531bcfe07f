//! `cargo run --release -p longhaul-sim --example steady -- 1000 70 0.01 10 1.0 bbr`: Mbit/s, ms, loss, s, queue, cc.

use base::{Rate, Span};
use longhaul_sim::steady::{Case, measure};
use netem::Probability;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: f64| args.get(i).map_or(Ok(default), |s| s.parse::<f64>());
    let rate = Rate::from_bits_per_sec((number(0, 1_000.0)? * 1e6) as u64);
    let rtt = Span::from_secs_f64(number(1, 70.0)? / 1e3);
    let loss = Probability::new(number(2, 0.0)?).ok_or("loss is a share from 0 to 1")?;
    let mut case = Case::new(rate, rtt, loss, Span::from_secs_f64(number(3, 10.0)?));
    case.queue_bdp = number(4, 1.0)?;
    if let Some(cc) = args.get(5) {
        case.cc.clone_from(cc);
    }
    println!("{}", measure(&case)?);
    Ok(())
}
