use super::fluid::{Flow, Link, Source, World};
use crate::{Params, PathInfo, create};
use base::{Rate, Rng, Span, Time};

pub(super) fn info(link: &Link) -> PathInfo {
    PathInfo { packet_bytes: link.packet, handshake_rtt: Some(link.rtt), ecn: false, known_rate: None }
}

pub(super) fn flow(name: &str, link: &Link, source: Source, seed: u64) -> Flow {
    let a = create(name, &Params::default(), &info(link), Rng::from_u64(seed)).unwrap();
    Flow::new(a, source, Time::ZERO)
}

fn secs(s: u64) -> Time {
    Time::ZERO + Span::from_secs(s)
}

#[test]
fn show() {
    let mbit: u64 = std::env::var("MBIT").ok().and_then(|s| s.parse().ok()).unwrap_or(500);
    let loss: f64 = std::env::var("LOSS").ok().and_then(|s| s.parse().ok()).unwrap_or(0.01);
    let buf: u64 = std::env::var("BUF").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let alg = std::env::var("ALG").unwrap_or("bbr".into());
    let verbose = std::env::var("V").is_ok();
    let link = Link::new(Rate::from_mbit(mbit), Span::from_millis(70), buf, loss);
    let mut w = World::new(link.clone(), vec![flow(&alg, &link, Source::Endless, 1)], Rng::from_u64(2));
    w.run(secs(20));
    let f = &w.flows[0];
    let bdp = link.rate.bytes_in(link.rtt) as f64;
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
    let limit = link.rate.bytes_per_sec() as f64 * (1.0 - loss);
    println!("steady {:.4}", f.delivered_between(secs(5), secs(20)) as f64 / 15.0 / limit);
    println!("all {:.4}", f.delivered_between(secs(0), secs(17)) as f64 / 17.0 / limit);
}
