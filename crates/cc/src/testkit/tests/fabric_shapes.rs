//! The shape of what steers by marks, delay to the microsecond, or telemetry: what the papers on data centres claim.

use super::delay_shapes::{flows, queue, shares};
use crate::testkit::fluid::Link;
use base::{Rate, Span, Time};

/// 10 Gbit/s over 100 us with a megabyte of queue.
fn fabric(mark: Option<u64>) -> Link {
    Link::fabric(Rate::from_mbit(10_000), Span::from_micros(100), 1 << 20, mark)
}

fn ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

const K: u64 = 65 * 1_500;

#[test]
fn dctcp_keeps_the_queue_around_the_threshold_at_full_rate() {
    // 65 packets of 1.5 kB at 10 Gbit/s (Alizadeh et al., SIGCOMM 2010, section 3.4); the least by their equation 13 is 12.
    let link = fabric(Some(K));
    let run = |selection, count: u64| {
        let all: Vec<_> = (0..count).map(|_| (selection, 0)).collect();
        flows(&link, &all, 1)
    };
    for count in [1, 2, 8] {
        let w = run("dctcp", count);
        let got: f64 = shares(&w, &link, 0, 1).iter().sum();
        assert!(got > 0.99, "{count} flows: {got:.4}");
        let steady = |part| queue(&w.flows[0], part, |p| p.time > ms(200));
        let (low, middle, high) = (steady(0.01), steady(0.5), steady(0.99));
        // Figure 1: the queue stays close to K, and never runs empty.
        assert!(low > 0 && high < K + count * 60_000, "{count} flows: {low} to {high}");
        assert!((K / 2..K + K / 2).contains(&middle), "{count} flows: {middle}");
        assert_eq!(w.flows.iter().map(|f| f.lost).sum::<u64>(), 0, "nothing is lost");
        assert!(w.flows[0].marked > 0);
    }
}
