//! The shape of each algorithm over time, in the model of a bottleneck.

use crate::registry::parse;
use crate::testkit::fluid::{Flow, Link, Source, World};
use crate::{PathInfo, create};
use base::{Rate, Rng, Span, Time};

fn secs(s: u64) -> Time {
    Time::ZERO + Span::from_secs(s)
}

fn flow(selection: &str, link: &Link, source: Source, start: Time, seed: u64) -> Flow {
    flow_knowing(selection, link, source, start, seed, None)
}

fn flow_knowing(
    selection: &str,
    link: &Link,
    source: Source,
    start: Time,
    seed: u64,
    known_rate: Option<Rate>,
) -> Flow {
    let (def, params) = parse(selection).unwrap();
    let info = PathInfo { packet_bytes: link.packet, handshake_rtt: Some(link.rtt), ecn: false, known_rate };
    Flow::new(create(def.name, &params, &info, Rng::from_u64(seed)).unwrap(), source, start)
}

fn world(selection: &str, link: &Link, seed: u64) -> World {
    World::new(
        link.clone(),
        vec![flow(selection, link, Source::Endless, Time::ZERO, seed)],
        Rng::from_u64(seed),
    )
}

/// Share of what the link can deliver that a flow got.
fn share(f: &Flow, link: &Link, from: Time, to: Time) -> f64 {
    f.delivered_between(from, to) as f64 / (link.rate.bytes_in(to.since(from)) as f64 * (1.0 - link.loss))
}

#[test]
fn show() {
    let env = |k: &str, d: &str| std::env::var(k).unwrap_or(d.into());
    let mbit: u64 = env("MBIT", "500").parse().unwrap();
    let loss: f64 = env("LOSS", "0.01").parse().unwrap();
    let buf: u64 = env("BUF", "1000").parse().unwrap();
    let rtt: u64 = env("RTTUS", "70000").parse().unwrap();
    let n: u64 = env("FLOWS", "1").parse().unwrap();
    let end: u64 = env("END", "20").parse().unwrap();
    let alg = env("ALG", "bbr");
    let known = env("KNOWN", "0").parse::<u64>().unwrap();
    let verbose = std::env::var("V").is_ok();
    let mut link = Link::new(Rate::from_mbit(mbit), Span::from_micros(rtt), buf, loss);
    link.jitter = Span::from_micros(env("JIT", "0").parse().unwrap());
    for c in env("CHANGES", "").split(',').filter(|c| !c.is_empty()) {
        let (t, r) = c.split_once(':').unwrap();
        link.changes.push((
            Time::ZERO + Span::from_secs_f64(t.parse().unwrap()),
            Rate::from_mbit(r.parse().unwrap()),
        ));
    }
    let algs: Vec<_> = alg.split('+').collect();
    let flows = (0..n)
        .map(|i| {
            flow_knowing(
                algs[i as usize % algs.len()],
                &link,
                Source::Endless,
                secs(i * 2),
                i,
                (known > 0).then(|| Rate::from_mbit(known)),
            )
        })
        .collect();
    let mut w = World::new(link.clone(), flows, Rng::from_u64(2));
    w.run(secs(end));
    let bdp = link.rate.bytes_in(link.rtt) as f64;
    let f = &w.flows[0];
    let mut last = "";
    for p in &f.trace {
        if verbose || p.state != last {
            println!(
                "{:.3} {:16} rate {:.3} bound {:.3} inflight {:.3} queue {:.3} delivered {:.3} lost {:.3}",
                p.time.as_secs_f64(),
                p.state,
                p.rate.bytes_per_sec() as f64 / link.rate.bytes_per_sec() as f64,
                p.bound as f64 / bdp,
                p.inflight as f64 / bdp,
                p.queue as f64 / bdp,
                p.delivered as f64 / bdp,
                p.lost as f64 / bdp
            );
            last = p.state;
        }
    }
    for f in &w.flows {
        println!("steady {:.4}", share(f, &link, secs(end / 4), secs(end)));
        println!("all {:.4}", share(f, &link, secs(0), secs(17.min(end))));
    }
    println!(
        "last quarter {:?}",
        w.flows
            .iter()
            .map(|f| (share(f, &link, secs(end * 3 / 4), secs(end)) * 1000.0) as u64)
            .collect::<Vec<_>>()
    );
}
