//! Simulates one transfer over a described link and prints the connection's statistics over time.
//!
//! `cargo run --release -p longhaul-sim --example transfer -- 'rate=500mbit delay=35ms queue=1bdp' 100`

use base::{Span, Time};
use longhaul_sim::pair::{Load, Pair};
use netem::LinkConfig;
use transport::TransportOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let link = LinkConfig::parse(args.first().map_or("rate=500mbit delay=35ms queue=1bdp", |s| s))?;
    let megabytes: u64 = args.get(1).map_or(Ok(100), |s| s.parse())?;
    let cc = args.get(2).map_or("bbr", |s| s);
    let step = args.get(3).map_or(Ok(100), |s| s.parse())?;
    let module = args.get(4).map_or("aead", |s| s);
    let seed = args.get(5).map_or(Ok(1), |s| s.parse())?;
    let mut options = TransportOptions { cc: cc.into(), ..TransportOptions::default() };
    options.max_packet = 1500;
    if module == "crc32c" {
        options.module = wire::Module::Crc32c;
    }
    let reverse = LinkConfig { loss: netem::Loss::NONE, ..link.clone() };
    let load = Load { message: 1_000_000, ahead: 4096, messages: Some(megabytes) };
    let mut pair = Pair::new(seed, Span::from_micros(20), (link, reverse), options, load)?;
    let mut at = Time::ZERO;
    let mut last = 0;
    while pair.shared.borrow().finished.is_none() && at < Time::from_nanos(600_000_000_000) {
        at += Span::from_millis(step);
        pair.run_until(at)?;
        let (s, r) = (pair.shared.borrow().sender, pair.shared.borrow().receiver);
        let (Some(s), Some(r)) = (s, r) else { continue };
        let (sender, receiver) = (pair.sender, pair.receiver);
        let st = pair.world.endpoint(sender).stats(s).unwrap_or_default();
        let rt = pair.world.endpoint(receiver).stats(r).unwrap_or_default();
        let l = pair.world.link_stats(pair.forward);
        println!(
            "{:>6} ms {:>9.1} Mbit/s rate {:>9.1} cwnd {:>10} inflight {:>10} srtt {:>6.2} ms queue {:>9} drop {:>6} lost {:>6} spur {:>5} pto {} {:?} mtu {} again {} fb {}",
            at.as_nanos() / 1_000_000,
            (rt.payload_received - last) as f64 * 8.0 / step as f64 / 1000.0,
            st.rate.bits_per_sec() as f64 / 1e6,
            st.cwnd,
            st.inflight,
            st.srtt.as_nanos() as f64 / 1e6,
            l.queue_bytes,
            l.dropped(),
            st.packets_lost,
            st.packets_spurious,
            st.probe_timeouts,
            st.cc,
            st.mtu,
            st.packets_again,
            rt.control_bytes_sent
        );
        last = rt.payload_received;
    }
    let b = pair.shared.borrow();
    if let (Some(s), Some(f)) = (b.started, b.finished) {
        let t = f.since(s).as_secs_f64();
        println!(
            "{} MB in {t:.3} s: {:.1} Mbit/s {:?}",
            megabytes,
            megabytes as f64 * 8.0 / t,
            pair.world.totals()
        );
    }
    Ok(())
}
