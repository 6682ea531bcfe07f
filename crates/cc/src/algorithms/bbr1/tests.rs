use super::*;
use crate::RateSample;
use crate::algorithms::test_signals::{self, PACKET, RTT};
use crate::registry::find;

fn bbr() -> Bbr1 {
    let config = Config::from_params(&find("bbr1").unwrap().defaults());
    Bbr1::new(config, &test_signals::info(), Rng::from_u64(1))
}

/// Feedback that ends round trip `n`, with a delivery rate in Mbit/s.
fn feedback(n: u64, mbit: u64) -> Signals {
    let rate = Rate::from_mbit(mbit);
    let sample = RateSample {
        rate,
        interval: RTT,
        delivered: rate.bytes_in(RTT),
        prior_delivered: (n - 1) << 40,
        tx_inflight: rate.bytes_in(RTT),
        lost: 0,
        forgone: 0,
        app_limited: false,
    };
    let acked = rate.bytes_in(RTT);
    Signals {
        delivered: n << 40,
        acked,
        inflight: acked,
        prior_inflight: acked,
        rate: Some(sample),
        ..test_signals::round(n, 1)
    }
}

/// A flow in ProbeBW at 1 Gbit/s and the round trips it took.
fn steady() -> (Bbr1, u64) {
    let mut b = bbr();
    for n in 1..=6 {
        b.on_feedback(&feedback(n, 1_000));
    }
    assert!(matches!(b.phase, Phase::ProbeBw(_)), "{}", b.state());
    (b, 7)
}

#[test]
fn startup_doubles_at_2_89_and_ends_after_three_rounds_without_growth() {
    let mut b = bbr();
    let nominal = Rate::from_bytes_in(10 * PACKET, RTT);
    assert_eq!(b.decision().rate, nominal.scale(289, 100));
    for (n, mbit) in [(1, 200), (2, 400), (3, 800), (4, 1_000)] {
        b.on_feedback(&feedback(n, mbit));
        assert_eq!(b.decision().rate, Rate::from_mbit(mbit).scale(289, 100), "{n}");
    }
    for n in 5..=6 {
        b.on_feedback(&feedback(n, 1_000));
        assert_eq!(b.state(), "startup");
    }
    // Data in flight is still high, so Drain continues, at the inverse gain.
    b.on_feedback(&Signals { inflight: u64::MAX / 2, ..feedback(7, 1_000) });
    assert_eq!(b.state(), "drain");
    assert_eq!(b.decision().rate, Rate::from_mbit(1_000).scale(ONE * ONE / HIGH_GAIN, ONE));
    b.on_feedback(&feedback(8, 1_000));
    assert!(b.state().starts_with("probe_bw"), "{}", b.state());
}

#[test]
fn probe_bw_cycle_probes_drains_and_cruises_for_six_phases() {
    let (mut b, mut n) = steady();
    b.enter_cycle(0, test_signals::at(n));
    let mut gains = Vec::new();
    for _ in 0..9 {
        gains.push(b.pacing_gain);
        n += 2;
        // More than a round trip later, with the data in flight that the phase targets.
        b.on_feedback(&Signals { prior_inflight: u64::MAX / 2, ..feedback(n, 1_000) });
    }
    assert_eq!(gains, [1_250, 750, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_250]);
}

#[test]
fn probe_lasts_until_a_quarter_more_is_in_flight_or_a_loss() {
    let (mut b, n) = steady();
    b.enter_cycle(0, test_signals::at(n));
    b.on_feedback(&feedback(n + 2, 1_000));
    assert_eq!(b.state(), "probe_bw:up", "a round trip, but no more in flight");
    b.on_feedback(&Signals { lost: PACKET, ..feedback(n + 3, 1_000) });
    assert_eq!(b.state(), "probe_bw:down");
    // It drains until the data in flight fits the path.
    b.on_feedback(&Signals { now: test_signals::at(n + 3), ..feedback(n + 4, 1_000) });
    assert_eq!(b.state(), "probe_bw:cruise");
}

#[test]
fn bandwidth_is_the_maximum_of_ten_round_trips() {
    let (mut b, n) = steady();
    for k in 0..9 {
        b.on_feedback(&feedback(n + k, 100));
        assert_eq!(b.bandwidth.get(), Rate::from_mbit(1_000), "{k}");
    }
    b.on_feedback(&feedback(n + 9, 100));
    assert_eq!(b.bandwidth.get(), Rate::from_mbit(100));
    let limited = |mut s: Signals| {
        s.rate.as_mut().unwrap().app_limited = true;
        s
    };
    b.on_feedback(&limited(feedback(n + 10, 50)));
    b.on_feedback(&limited(feedback(n + 11, 500)));
    assert_eq!(
        b.bandwidth.rounds[..2],
        [Rate::from_mbit(500), Rate::ZERO],
        "application-limited samples only raise it"
    );
}

#[test]
fn loss_causes_packet_conservation_for_one_round_trip_only() {
    let (mut b, n) = steady();
    b.enter_cycle(3, test_signals::at(n));
    let (rate, cwnd) = (b.rate, b.cwnd);
    let inflight = 50 * PACKET;
    let lossy = Signals { lost: 10 * PACKET, acked: 20 * PACKET, inflight, ..feedback(n, 1_000) };
    b.on_feedback(&lossy);
    assert_eq!(b.cwnd, 70 * PACKET, "in flight and what was acknowledged");
    // In the same round trip: packet conservation.
    let same = Signals {
        acked: 5 * PACKET,
        inflight: 65 * PACKET,
        newest_acked_sent: Some(test_signals::at(n)),
        ..feedback(n, 1_000)
    };
    b.on_feedback(&same);
    assert_eq!(b.cwnd, 70 * PACKET);
    b.on_feedback(&Signals { acked: 0, ..feedback(n + 1, 1_000) });
    assert_eq!(b.cwnd, cwnd, "restored");
    assert_eq!(b.bandwidth.get(), Rate::from_mbit(1_000));
    assert_eq!(b.rate, rate);
}

#[test]
fn probe_rtt_holds_four_packets_for_200_ms_every_ten_seconds() {
    let (mut b, n) = steady();
    let high = |now: Time, n: u64| Signals { now, rtt: Some(RTT * 2), ..feedback(n, 1_000) };
    let later = test_signals::at(n) + Span::from_millis(10_001);
    b.on_feedback(&high(test_signals::at(n) + Span::from_secs(5), n));
    assert_ne!(b.state(), "probe_rtt");
    b.on_feedback(&high(later, n + 1));
    assert_eq!(b.state(), "probe_rtt");
    assert_eq!(b.rtprop, Some(RTT * 2), "the old one has expired");
    assert_eq!(b.decision().cwnd, 4 * PACKET);
    let cwnd = b.cwnd;
    let low = |ms: u64, n: u64| Signals { inflight: 4 * PACKET, ..high(later + Span::from_millis(ms), n) };
    b.on_feedback(&low(10, n + 2));
    b.on_feedback(&low(110, n + 3));
    b.on_feedback(&low(209, n + 4));
    assert_eq!(b.state(), "probe_rtt", "200 ms from when data in flight was down");
    b.on_feedback(&low(211, n + 5));
    assert!(b.state().starts_with("probe_bw"));
    assert!(b.decision().cwnd >= cwnd.min(b.inflight(CWND_GAIN)));
}

#[test]
fn idle_time_does_not_raise_the_min_rtt() {
    let (mut b, n) = steady();
    b.on_event(test_signals::at(n), Event::RestartFromIdle { idle_since: test_signals::at(n) });
    assert_eq!(b.decision().rate, Rate::from_mbit(1_000));
    b.on_feedback(&Signals {
        now: test_signals::at(n) + Span::from_secs(60),
        rtt: Some(RTT * 2),
        ..feedback(n, 1_000)
    });
    assert_ne!(b.state(), "probe_rtt");
}
