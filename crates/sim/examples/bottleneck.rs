//! Simulates flows over one bottleneck and prints one line per seed, for work on algorithms.
//!
//! `cargo run --release -p longhaul-sim --example bottleneck -- 1..13 40 20 'rate=1gbit delay=34ms queue=8750000B' haul haul@5000 cubic@0/20ms`
//! runs seeds 1 to 12 for 40 s, of which the first 20 s do not count as steady state. A flow is an algorithm, its
//! start (in ms; `~`: at a random time until then) and the delay of its access link in each direction; `10*haul` is
//! ten flows.

use base::{Rng, Span, Time};
use longhaul_sim::flows::{FlowPlan, Flows};
use longhaul_sim::pair::Load;
use netem::{Duplex, LinkConfig, Topology};
use transport::TransportOptions;
use wire::Module;

/// Interval between samples of the received data.
const STEP: Span = Span::from_millis(10);
/// Samples over which a rate is averaged for the time to 90 %: the order of the paths' feedback and round trips.
const LOOKS: usize = 7;
/// Payload of a packet of 1,500 bytes.
const PAYLOAD: f64 = 1_436.0 / 1_500.0;

struct Described {
    cc: String,
    starts: u64,
    random: bool,
    delay: String,
}

fn described(text: &str) -> Result<Vec<Described>, Box<dyn std::error::Error>> {
    let (count, flow) = text.split_once('*').unwrap_or(("1", text));
    let (flow, delay) = flow.split_once('/').unwrap_or((flow, "1ms"));
    let (cc, starts) = flow.split_once('@').unwrap_or((flow, "0"));
    let random = starts.starts_with('~');
    let starts = starts.trim_start_matches('~').parse()?;
    let one = || Described { cc: cc.into(), starts, random, delay: delay.into() };
    Ok((0..count.parse::<usize>()?).map(|_| one()).collect())
}

fn duplex(text: &str) -> Result<Duplex, netem::SpecError> {
    let forward = LinkConfig::parse(text)?;
    let reverse = LinkConfig { loss: netem::Loss::NONE, ..forward.clone() };
    Ok(Duplex { forward, reverse })
}

fn ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn plans(t: &Topology, flows: &[Described], seed: u64) -> Option<Vec<FlowPlan>> {
    let mut rng = Rng::from_u64(seed);
    let plan = |(i, f): (usize, &Described)| {
        let cc = f.cc.as_str().into();
        let starts = if f.random { rng.below(f.starts * 1_000) } else { f.starts * 1_000 };
        Some(FlowPlan {
            from: t.port(&format!("left{}", i + 1))?,
            to: t.port(&format!("right{}", i + 1))?,
            options: TransportOptions {
                cc,
                max_packet: 1_500,
                module: Module::Crc32c,
                ..TransportOptions::default()
            },
            load: Load { message: 1_000_000, ahead: 128, messages: None },
            starts: Time::ZERO + Span::from_micros(starts),
        })
    };
    flows.iter().enumerate().map(plan).collect()
}

/// The results of one seed, as text.
fn world(
    seed: u64,
    (last, warm): (u64, u64),
    bottleneck: &Duplex,
    flows: &[Described],
) -> Result<String, Box<dyn std::error::Error>> {
    let access: Result<Vec<_>, _> = flows.iter().map(|f| duplex(&format!("delay={}", f.delay))).collect();
    let t = Topology::dumbbell(flows.len(), &access?, bottleneck);
    let plans = plans(&t, flows, seed).ok_or("a port is missing")?;
    let link = t.route(plans[0].from, plans[0].to).ok_or("no way there")?[1];
    let mut f = Flows::new(seed, Span::from_micros(50), &t, &plans)?;
    let limit = bottleneck.forward.rate.map_or(f64::INFINITY, |r| r.bytes_per_sec() as f64) * PAYLOAD;
    let (mut first, mut full, mut totals) = (None, None, Vec::new());
    let (mut at_start, mut at_warm) = (None, None);
    let (mut queue, mut before) = (Vec::new(), Vec::new());
    let mut at = Time::ZERO;
    while at < ms(last * 1_000) {
        at += STEP;
        f.run_until(at)?;
        let each: Vec<u64> = (0..flows.len()).map(|i| f.received(i)).collect();
        let total: u64 = each.iter().sum();
        let link = f.world.link_stats(link);
        if first.is_none() && total > 15_000 {
            first = Some(at - STEP);
        }
        totals.push(total);
        let n = totals.len();
        let rate =
            |n: usize| (totals[n - 1] - totals[n - 1 - LOOKS]) as f64 / (STEP * LOOKS as u64).as_secs_f64();
        if full.is_none() && n > LOOKS && rate(n) >= 0.9 * limit {
            full = Some(at - STEP * LOOKS as u64);
        }
        if at_start.is_none() && first.is_some_and(|t| at.since(t) >= Span::from_secs(1)) {
            at_start = Some(link);
        }
        if at >= ms(warm * 1_000) {
            if at_warm.is_none() {
                (at_warm, before) = (Some(link), each);
            }
            queue.push(link.queue_bytes);
        }
    }
    let (Some(first), Some(start), Some(warm_link)) = (first, at_start, at_warm) else {
        return Err("too short to tell".into());
    };
    let end = f.world.link_stats(link);
    let time = at.since(ms(warm * 1_000)).as_secs_f64();
    let got: Vec<f64> = (0..flows.len()).map(|i| (f.received(i) - before[i]) as f64 / time).collect();
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|g| g * g).sum();
    queue.sort_unstable();
    let part = |dropped: u64, sent: u64| 100.0 * dropped as f64 / sent.max(1) as f64;
    let shares: Vec<String> = got.iter().take(12).map(|g| format!("{:.1}", 100.0 * g / sum)).collect();
    Ok(format!(
        "{seed:3}: full {:>5} ms, start loss {:5.2} %, got {:5.1} %, own loss {:5.2} %, queue {:5.1} ms, jain {:.3}, [{}]",
        full.map_or(-1, |t: Time| (t.since(first).as_nanos() / 1_000_000) as i64),
        part(start.dropped_queue, start.sent),
        100.0 * sum / limit,
        part(end.dropped_queue - warm_link.dropped_queue, end.sent - warm_link.sent),
        queue.get(queue.len() / 2).map_or(0.0, |q| *q as f64 / limit * PAYLOAD * 1e3),
        sum * sum / (flows.len() as f64 * squares),
        shares.join(" "),
    ))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [seeds, last, warm, path, flows @ ..] = args.as_slice() else {
        return Err("seeds (1..13), seconds, seconds of warm-up, the bottleneck, flows".into());
    };
    let (from, to) = seeds.split_once("..").ok_or("seeds are a range: 1..13")?;
    let times = (last.parse()?, warm.parse()?);
    let flows: Result<Vec<_>, _> = flows.iter().map(|f| described(f)).collect();
    let flows: Vec<_> = flows?.into_iter().flatten().collect();
    for seed in from.parse::<u64>()?..to.parse()? {
        println!("{}", world(seed, times, &duplex(path)?, &flows)?);
    }
    Ok(())
}
