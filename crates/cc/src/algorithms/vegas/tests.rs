use super::*;
use crate::RateSample;
use crate::algorithms::delay::TRAIN_TIME;
use base::Rate;

const PACKET: u64 = 1_500;
const BASE: Span = Span::from_millis(100);

fn vegas() -> Vegas {
    let config = Config { initial: 10, alpha: 2, beta: 4, gamma: 1 };
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(BASE),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    Vegas::new(config, &info)
}

/// One of eight feedbacks of round `round`, for a fully used window of which an eighth is acknowledged.
fn feedback(v: &Vegas, round: u64, part: u64, rtt: Span) -> Signals {
    let cwnd = v.window.cwnd;
    let now = Time::ZERO + BASE * (round + 1) + BASE / 8 * part;
    Signals {
        now,
        acked: cwnd / 8,
        acked_packets: cwnd / 8 / PACKET,
        prior_inflight: cwnd,
        rtt: Some(rtt),
        srtt: BASE,
        newest_acked_sent: Some(now - rtt),
        rate: Some(RateSample {
            rate: Rate::from_bytes_in(cwnd, rtt),
            interval: rtt,
            delivered: cwnd,
            prior_delivered: 0,
            tx_inflight: cwnd,
            lost: 0,
            forgone: 0,
            app_limited: false,
        }),
        round_start: part == 0,
        round,
        ..Signals::default()
    }
}

/// A whole round at `rtt` beyond the time of trains; returns the window after it, in packets.
fn round(v: &mut Vegas, n: u64, rtt: Span) -> u64 {
    let seen = if rtt > BASE { rtt + TRAIN_TIME } else { rtt };
    for part in 0..8 {
        v.on_feedback(&feedback(v, n, part, seen));
    }
    v.window.cwnd / PACKET
}

/// A window of 100 packets in congestion avoidance that has seen the base round-trip time.
fn in_congestion_avoidance() -> Vegas {
    let mut v = vegas();
    v.window.cwnd = 100 * PACKET;
    v.window.ssthresh = 100 * PACKET;
    round(&mut v, 0, BASE);
    v.window.cwnd = 100 * PACKET;
    v
}

/// The round-trip time at which `queued` of 100 packets wait: `100 (RTT - BaseRTT) / RTT = queued`.
fn rtt_with(queued: f64) -> Span {
    Span::from_secs_f64(BASE.as_secs_f64() / (1.0 - queued / 100.0))
}

#[test]
fn window_changes_by_a_packet_as_diff_compares_with_alpha_and_beta() {
    // Section III.B: below alpha linear increase, above beta linear decrease, nothing in between.
    for (queued, change) in [(0.0, 1), (1.9, 1), (2.1, 0), (3.0, 0), (3.9, 0), (4.1, -1), (30.0, -1)] {
        let mut v = in_congestion_avoidance();
        round(&mut v, 1, rtt_with(queued));
        // A round is evaluated when the next one starts: the start of this one saw the base and added a packet.
        assert_eq!(v.window.cwnd, 101 * PACKET);
        v.window.cwnd = 100 * PACKET;
        let s = feedback(&v, 2, 0, rtt_with(queued) + TRAIN_TIME);
        v.on_feedback(&s);
        let got = v.window.cwnd as i64 / PACKET as i64;
        assert_eq!(got - 100, change, "{queued} queued");
    }
}

#[test]
fn base_rtt_is_the_overall_minimum_and_rounds_use_their_minimum() {
    let mut v = in_congestion_avoidance();
    assert_eq!(v.base_rtt, Some(BASE));
    // Seven late samples and one in time: no congestion.
    let before = v.window.cwnd;
    for part in 0..8 {
        let rtt = if part == 5 { BASE } else { BASE * 2 };
        v.on_feedback(&feedback(&v, 1, part, rtt));
    }
    v.on_feedback(&feedback(&v, 2, 0, BASE * 2));
    assert!(v.window.cwnd > before);
    // All late: one packet less per round.
    let before = v.window.cwnd;
    round(&mut v, 3, BASE * 2);
    round(&mut v, 4, BASE * 2);
    round(&mut v, 5, BASE * 2);
    assert!((2 * PACKET..=3 * PACKET).contains(&(before - v.window.cwnd)), "{}", before - v.window.cwnd);
}

#[test]
fn rounds_with_fewer_than_three_samples_are_pooled() {
    let mut v = in_congestion_avoidance();
    (v.round_min, v.samples) = (Span::MAX, 0);
    for n in 1..3 {
        v.on_feedback(&feedback(&v, n, 0, BASE * 2));
        assert_eq!(v.window.cwnd, 100 * PACKET);
    }
    v.on_feedback(&feedback(&v, 3, 0, BASE * 2));
    assert_eq!(v.window.cwnd, 99 * PACKET);
}

#[test]
fn slow_start_doubles_every_other_round_trip() {
    let mut v = vegas();
    let mut before = v.window.cwnd / PACKET;
    for n in 0..8 {
        let window = round(&mut v, n, BASE);
        let growth = window as f64 / before as f64;
        // Eight eighths of a window that grows meanwhile are more than a window: (9/8)^8 = 2.57.
        let fits = if n % 2 == 0 { (2.0..2.7).contains(&growth) } else { growth == 1.0 };
        assert!(fits, "round {n}: {before} to {window}");
        before = window;
    }
    assert!(v.window.in_slow_start());
}

#[test]
fn slow_start_ends_at_the_window_without_the_queue() {
    let mut v = vegas();
    v.window.cwnd = 200 * PACKET;
    round(&mut v, 0, BASE);
    let cwnd = v.window.cwnd;
    // gamma is one packet: half a packet queued counts as nothing.
    let half = Span::from_secs_f64(BASE.as_secs_f64() * (1.0 + 0.5 / (cwnd / PACKET) as f64));
    round(&mut v, 1, half);
    assert!(v.window.in_slow_start());
    assert_eq!(v.window.cwnd, cwnd, "held in this round");
    // Actual = window / RTT, so what fits is window * BaseRTT / RTT: 4/5 of it. The delay has to be there for
    // half a round, in which a growing window grows by 9/8 each time.
    v.growing = true;
    round(&mut v, 2, BASE.scale(5, 4));
    assert_eq!(v.state(), "avoidance");
    let fits = cwnd as f64 * 0.8;
    assert!((v.window.cwnd as f64 / fits - 1.0).abs() < 0.03, "{} of {cwnd}", v.window.cwnd);
}

#[test]
fn loss_reduces_the_window_by_a_quarter_once_per_window_sent() {
    let mut v = in_congestion_avoidance();
    let lost = |v: &Vegas, at: Time, sent: Time| Signals {
        now: at,
        acked: 0,
        lost: PACKET,
        lost_packets: 1,
        latest_lost_sent: Some(sent),
        ..feedback(v, 1, 1, BASE)
    };
    let t = |ms| Time::ZERO + Span::from_millis(ms);
    v.on_feedback(&lost(&v, t(500), t(400)));
    assert_eq!(v.window.cwnd, 75 * PACKET);
    v.on_feedback(&lost(&v, t(560), t(499)));
    assert_eq!(v.window.cwnd, 75 * PACKET, "sent before the decrease");
    v.on_feedback(&lost(&v, t(700), t(600)));
    assert_eq!(v.window.cwnd, 75 * PACKET * 3 / 4);
    assert_eq!(v.state(), "avoidance");
}

#[test]
fn idle_time_forgets_the_base_rtt() {
    // Otherwise a path that has become longer would look like a standing queue for ever.
    let mut v = in_congestion_avoidance();
    v.on_event(Time::ZERO + BASE * 20, Event::RestartFromIdle { idle_since: Time::ZERO });
    for n in 20..24 {
        for part in 0..8 {
            v.on_feedback(&feedback(&v, n, part, BASE * 2));
        }
    }
    assert_eq!(v.base_rtt, Some(BASE * 2));
    assert!(v.window.cwnd > 100 * PACKET);
}
