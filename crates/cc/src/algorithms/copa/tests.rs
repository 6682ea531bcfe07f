//! Tests of Copa against the rules of its paper (Arun and Balakrishnan, NSDI 2018); sections are those of the paper.

use super::*;
use crate::RateSample;
use base::Rate;

const PACKET: u64 = 1_500;
const BASE: Span = Span::from_millis(100);

fn copa() -> Copa {
    let config = Config {
        initial: 10,
        inverse_delta: 2,
        competitive: true,
        rtt_window: Span::from_secs(10),
        loss: 10_000,
    };
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(BASE),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    Copa::new(config, &info)
}

/// The time of feedback `part` (0 to 7) of a round.
fn at(round: u64, part: u64) -> Time {
    Time::ZERO + BASE * (round + 1) + BASE / 8 * part
}

/// One of the eight feedbacks of a round, for a fully used window. `dq` is the queueing delay beyond [`TRAIN_TIME`], which
/// Copa does not count as queue.
fn feedback(c: &Copa, round: u64, part: u64, dq: Span) -> Signals {
    let rtt = if dq.is_zero() { BASE } else { BASE + TRAIN_TIME + dq };
    let (now, cwnd) = (at(round, part), c.window.cwnd);
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

/// Gives all eight feedbacks of round `n`.
fn round(c: &mut Copa, n: u64, dq: Span) {
    for part in 0..8 {
        c.on_feedback(&feedback(c, n, part, dq));
    }
}

/// A window of `packets` in default mode that has seen the base round-trip time.
fn out_of_slow_start(packets: u64) -> Copa {
    let mut c = copa();
    c.window.cwnd = packets * PACKET;
    c.leave_slow_start();
    c.min_rtt.update(Time::ZERO, Span::from_secs(10), BASE);
    c
}

/// The delay at which the target rate is `packets` per standing round trip: `packets / (base + 1 ms + dq) = 1 /
/// (delta dq)`, so `dq = (base + 1 ms) / (delta packets - 1)`.
fn dq_at(packets: f64) -> Span {
    Span::from_secs_f64((BASE + TRAIN_TIME).as_secs_f64() / (packets / 2.0 - 1.0))
}

#[test]
fn window_moves_towards_the_target_rate() {
    // Section 2.1, step 3, with delta = 1/2: 200 packets in flight match a target of 200 packets a round trip.
    for (target, up) in [(100.0, false), (180.0, false), (220.0, true), (400.0, true)] {
        let mut c = out_of_slow_start(200);
        c.on_feedback(&feedback(&c, 1, 1, dq_at(target)));
        assert_eq!(c.window.cwnd > 200 * PACKET, up, "target {target}: {}", c.window.cwnd);
        assert_eq!(c.window.cwnd < 200 * PACKET, !up, "target {target}: {}", c.window.cwnd);
    }
}

#[test]
fn window_moves_by_one_over_delta_packets_per_round_trip() {
    // v / (delta cwnd) packets for each packet acknowledged: with v = 1 and delta = 1/2 two packets a window.
    for (dq, sign) in [(Span::ZERO, 1.0), (dq_at(195.0), -1.0)] {
        let mut c = out_of_slow_start(200);
        (1..9).for_each(|part| c.on_feedback(&feedback(&c, 1, part, dq)));
        let moved = (c.window.cwnd as f64 - 200.0 * PACKET as f64) / PACKET as f64;
        assert!((moved - 2.0 * sign).abs() < 0.05, "{moved}");
    }
}

#[test]
fn velocity_doubles_after_three_rounds_in_one_direction_and_resets_on_turning() {
    let mut c = out_of_slow_start(10_000);
    let mut v = vec![];
    for n in 1..10 {
        round(&mut c, n, Span::ZERO);
        v.push(c.velocity.v);
    }
    assert_eq!(v, [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
    // The delay takes half a round trip to take effect (RTTstanding); then the direction changes.
    round(&mut c, 10, dq_at(5_000.0));
    assert_eq!((c.velocity.v, c.velocity.up), (1.0, false));
}

#[test]
fn velocity_is_bounded_in_both_directions() {
    let mut c = out_of_slow_start(200);
    let mut before = c.window.cwnd;
    for n in 1..40 {
        round(&mut c, n, Span::ZERO);
        let growth = c.window.cwnd as f64 / before as f64;
        assert!(growth < 1.07, "round {n}: {growth}");
        before = c.window.cwnd;
    }
    let grown = c.window.cwnd / PACKET;
    assert!(grown > 1_000, "only {grown} packets after 40 round trips");
    for n in 40..60 {
        let queue = c.window.cwnd as f64 * 20.0 / 121.0;
        let before = c.window.cwnd;
        round(&mut c, n, Span::from_millis(20));
        let gone = before.saturating_sub(c.window.cwnd) as f64;
        assert!(gone <= queue * 0.55 + 3.0 * PACKET as f64, "round {n}: {gone} of {queue}");
    }
}

#[test]
fn slow_start_doubles_until_the_rate_exceeds_the_target() {
    let mut c = copa();
    round(&mut c, 0, Span::ZERO);
    let growth = c.window.cwnd as f64 / (10 * PACKET) as f64;
    assert!((2.0..2.7).contains(&growth), "{growth}");
    c.window.cwnd = 200 * PACKET;
    round(&mut c, 1, Span::ZERO);
    assert_eq!(c.state(), "slow_start");
    let (cwnd, target) = (c.window.cwnd, 2 * PACKET);
    let dq = Span::from_millis(25);
    (0..4).for_each(|part| c.on_feedback(&feedback(&c, 2, part, dq)));
    assert_eq!(c.state(), "default");
    // A fifth of the data in flight is queued; the rest is the path's, plus 1/delta packets.
    let sent = c.window.cwnd.saturating_sub(target) as f64;
    assert!((0.75..1.2).contains(&(sent / cwnd as f64)), "{sent} of {cwnd}");
}

#[test]
fn competitive_mode_starts_after_five_rounds_without_an_empty_queue() {
    let mut c = out_of_slow_start(1_000);
    let swing = |n: u64| Span::from_millis(40 + n % 2);
    for n in 1..6 {
        round(&mut c, n, swing(n));
        assert_eq!(c.state(), "default", "round {n}");
    }
    (6..8).for_each(|n| round(&mut c, n, swing(n)));
    assert_eq!(c.state(), "competitive");
    // 1/delta grows by one in each round trip without loss and halves in one with loss.
    let before = c.inverse_delta();
    (8..18).for_each(|n| round(&mut c, n, swing(n)));
    assert_eq!(c.inverse_delta(), before + 10.0);
    let lost = Signals { lost: PACKET, lost_packets: 1, ..feedback(&c, 17, 7, swing(17)) };
    c.on_feedback(&lost);
    round(&mut c, 18, swing(18));
    assert_eq!(c.inverse_delta(), (before + 10.0) / 2.0);
    // A tenth of the delay range (section 2.2) counts as empty.
    round(&mut c, 19, Span::from_millis(3));
    round(&mut c, 20, Span::from_millis(3));
    assert_eq!(c.state(), "default");
    assert_eq!(c.inverse_delta(), 2.0);
    c.config.competitive = false;
    (21..40).for_each(|n| round(&mut c, n, swing(n)));
    assert!(c.state().starts_with("default"));
}

#[test]
fn random_loss_changes_nothing_and_policer_loss_cuts_to_the_delivered_rate() {
    for (share, cut) in [(30, false), (50, false), (200, true)] {
        let mut c = out_of_slow_start(1_000);
        let now = at(3, 4);
        let s = Signals {
            lost: share * PACKET,
            lost_packets: share,
            latest_lost_sent: Some(now - BASE),
            acked: 0,
            acked_packets: 1_000 - share,
            ..feedback(&c, 3, 4, Span::ZERO)
        };
        c.on_feedback(&s);
        let left = c.window.cwnd / PACKET;
        // 80 % were delivered; the window is set to seven eighths of that, 70 %.
        assert_eq!(left, if cut { 700 } else { 1_000 }, "{share} of 1000 lost");
    }
}

#[test]
fn queue_is_drained_when_the_min_rtt_was_not_seen_for_long() {
    let mut c = out_of_slow_start(2_000);
    c.config.competitive = false;
    let dq = dq_at(2_000.0);
    let mut drained = vec![];
    for n in 0..200u64 {
        // The effect of the round at half the rate shows in the next round.
        let emptied = drained.last().is_some_and(|d| d + 1 == n);
        round(&mut c, n, if emptied { Span::ZERO } else { dq });
        if c.state() == "default:drain" {
            drained.push(n);
            let whole = Rate::from_bytes_in(c.window.cwnd, c.standing());
            assert_eq!(c.decision().rate, whole.scale(1, 2));
        }
    }
    // Once in three quarters of ten seconds, for one round trip of a tenth of a second.
    assert!((2..=3).contains(&drained.len()), "{drained:?}");
    assert!(drained.windows(2).all(|w| w[1] - w[0] >= 75), "{drained:?}");
}

#[test]
fn known_rate_skips_slow_start_at_any_clock_value() {
    let known = Rate::from_mbit(100);
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(BASE),
        ecn: true,
        known_rate: Some(known),
        remembered: None,
    };
    let mut c = Copa::new(copa().config, &info);
    assert_eq!((c.decision().rate, c.state()), (known, "default"));
    for n in 100_000..100_005 {
        round(&mut c, n, Span::ZERO);
        assert_eq!(c.state(), "default");
        assert!(c.decision().rate >= known);
    }
}

#[test]
fn persistent_congestion_restarts_even_during_a_drain() {
    let mut c = out_of_slow_start(2_000);
    c.draining = true;
    c.on_event(at(50, 0), Event::PersistentCongestion);
    assert_eq!((c.state(), c.decision().cwnd), ("slow_start", 2 * PACKET));
    (50..53).for_each(|n| round(&mut c, n, Span::ZERO));
    assert!(c.window.cwnd > 10 * PACKET, "{}", c.window.cwnd);
}

/// Found by the simulator when algorithms are changed while packets are in flight.
#[test]
fn marks_without_acknowledged_packets_change_nothing() {
    let mut c = out_of_slow_start(100);
    let before = c.window.cwnd;
    let s = Signals {
        now: at(1, 0),
        ce_packets: 3,
        spurious: 3 * PACKET,
        newest_acked_sent: Some(at(0, 7)),
        ..Signals::default()
    };
    c.on_feedback(&s);
    assert_eq!(c.window.cwnd, before);
}
