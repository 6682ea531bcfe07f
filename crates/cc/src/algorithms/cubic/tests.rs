use super::*;
use crate::registry::{Params, create};
use base::Rng;

const PACKET: u64 = 1_500;

fn info() -> PathInfo {
    PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(Span::from_millis(100)),
        ecn: false,
        known_rate: None,
        remembered: None,
    }
}

fn cubic() -> Cubic {
    Cubic::new(Config { initial: 10, fast_convergence: true, hystart: true }, &info())
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// Feedback for a fully used window.
fn feedback(ms: u64, acked: u64, cwnd: u64) -> Signals {
    let rtt = Span::from_millis(100);
    Signals {
        now: at(ms),
        acked,
        acked_packets: acked / PACKET,
        prior_inflight: cwnd,
        srtt: rtt,
        rtt: Some(rtt),
        newest_acked_sent: Some(at(ms) - rtt),
        ..Signals::default()
    }
}

#[test]
fn curve_follows_equations_1_and_2() {
    let mut c = Curve { w_max: 100.0, prior: 100.0, ..Curve::default() };
    c.begin(at(0), 70.0);
    // K = cbrt((100 - 70) / 0.4) = cbrt(75) = 4.21716 s.
    assert!((c.k - 4.217_163).abs() < 1e-5);
    for (t, w) in [(0.0, 70.0), (1.0, 86.681), (2.0, 95.639), (4.217_163, 100.0), (8.434_327, 130.0)] {
        assert!((c.at(t) - w).abs() < 0.01, "W({t}) = {}, not {w}", c.at(t));
    }
    let slope = |t: f64| c.at(t + 0.5) - c.at(t);
    assert!(slope(0.0) > slope(1.0) && slope(1.0) > slope(3.0), "concave up to K");
    assert!(slope(5.0) < slope(6.0) && slope(6.0) < slope(8.0), "convex from there");
    // From above the last maximum there is no concave part.
    c.begin(at(0), 120.0);
    assert_eq!((c.k, c.w_max), (0.0, 120.0));
}

#[test]
fn target_is_at_most_1_5_windows() {
    let mut c = Curve { w_max: 10.0, epoch: Some(at(0)), prior: f64::MAX, ..Curve::default() };
    let next = c.next(at(60_000), Span::from_millis(100), 10.0, 10.0);
    assert!((next - 15.0).abs() < 1e-9, "{next}");
}

/// Average window, in packets, when one of every `every` packets is lost.
fn average_window(name: &str, every: u64, rtt_ms: u64, seconds: u64) -> f64 {
    let mut a = create(name, &Params::default(), &info(), Rng::from_u64(1)).unwrap();
    let (mut until_loss, mut sum, mut count) = (every as f64, 0.0, 0u64);
    let steps = 8;
    for step in 0..seconds * 1_000 * steps / rtt_ms {
        let cwnd = a.decision().cwnd;
        let ms = step * rtt_ms / steps;
        let packets = cwnd as f64 / PACKET as f64 / steps as f64;
        let mut s = feedback(ms, (packets * PACKET as f64) as u64, cwnd);
        s.srtt = Span::from_millis(rtt_ms);
        s.rtt = Some(s.srtt);
        s.newest_acked_sent = Some(at(ms) - s.srtt);
        until_loss -= packets;
        if until_loss <= 0.0 {
            until_loss += every as f64;
            (s.lost, s.lost_packets, s.latest_lost_sent) = (PACKET, 1, s.newest_acked_sent);
        }
        a.on_feedback(&s);
        if ms > seconds * 500 {
            sum += cwnd as f64 / PACKET as f64;
            count += 1;
        }
    }
    sum / count as f64
}

#[test]
fn average_windows_match_the_rfc() {
    // RFC 9438, section 5.2 (equation 6 with C = 0.4): 1.054 (RTT / p)^0.75, for deterministic loss.
    for (every, rtt_ms) in [(10_000u64, 100u64), (100_000, 100), (1_000_000, 100)] {
        let want = 1.054 * (every as f64 * rtt_ms as f64 / 1e3).powf(0.75);
        let got = average_window("cubic", every, rtt_ms, 2_000);
        assert!((got / want - 1.0).abs() < 0.12, "1/{every} at {rtt_ms} ms: {got:.0}, not {want:.0}");
    }
    // In the Reno-friendly region it is Reno's: sqrt(3 / 2p).
    for name in ["reno", "cubic"] {
        let (got, want) = (average_window(name, 1_000, 10, 200), (1.5f64 * 1_000.0).sqrt());
        assert!((got / want - 1.0).abs() < 0.15, "{name}: {got:.1}, not {want:.1}");
    }
}

#[test]
fn fast_convergence_lowers_w_max_when_the_window_shrinks() {
    let mut c = cubic();
    c.window.cwnd = 100 * PACKET;
    let lose = |c: &mut Cubic, ms: u64| {
        let s = Signals {
            lost: PACKET,
            lost_packets: 1,
            latest_lost_sent: Some(at(ms - 50)),
            ..feedback(ms, 0, 0)
        };
        c.on_feedback(&s);
    };
    lose(&mut c, 1_000);
    assert_eq!((c.window.cwnd, c.curve.w_max), (70 * PACKET, 100.0));
    lose(&mut c, 1_040);
    assert_eq!(c.window.cwnd, 70 * PACKET, "a packet sent before the reduction belongs to it");
    lose(&mut c, 2_000);
    assert_eq!(c.window.cwnd, 49 * PACKET);
    assert!((c.curve.w_max - 70.0 * 0.85).abs() < 1e-9, "below the window at the loss: {}", c.curve.w_max);
}

#[test]
fn spurious_reduction_is_undone() {
    let mut c = cubic();
    c.window.cwnd = 100 * PACKET;
    let lost = Signals {
        lost: 2 * PACKET,
        lost_packets: 2,
        latest_lost_sent: Some(at(900)),
        ..feedback(1_000, 0, 0)
    };
    c.on_feedback(&lost);
    assert_eq!(c.window.cwnd, 70 * PACKET);
    c.on_feedback(&Signals { spurious: PACKET, ..feedback(1_010, 0, 0) });
    assert_eq!(c.window.cwnd, 70 * PACKET, "one of the two is still lost");
    c.on_feedback(&Signals { spurious: PACKET, ..feedback(1_020, 0, 0) });
    assert_eq!(c.window.cwnd, 100 * PACKET);
}

#[test]
fn unused_time_does_not_advance_the_curve() {
    let mut c = cubic();
    c.window.cwnd = 70 * PACKET;
    c.window.ssthresh = 70 * PACKET;
    c.curve.w_max = 100.0;
    c.on_feedback(&feedback(1_000, 9 * PACKET, 70 * PACKET));
    let epoch = c.curve.epoch.unwrap();
    c.on_feedback(&Signals { app_limited: true, ..feedback(2_000, PACKET, PACKET) });
    let before = c.window.cwnd;
    c.on_feedback(&feedback(9_000, 9 * PACKET, 71 * PACKET));
    assert_eq!(c.curve.epoch.unwrap().since(epoch), Span::from_secs(7));
    assert!(c.window.cwnd < before + 4 * PACKET);
}
