use super::*;

const PACKET: u64 = 1_500;

fn ledbat() -> Ledbat {
    let config = Config { initial: 2, target: Span::from_millis(60), slowest: 16, slowdown: true };
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(Span::from_millis(120)),
        ecn: true,
        known_rate: Some(base::Rate::from_mbit(1_000)),
        remembered: None,
    };
    Ledbat::new(config, &info)
}

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// Feedback for `acked` bytes of a fully used window.
fn feedback(l: &Ledbat, now: Time, acked: u64, rtt: Span) -> Signals {
    Signals {
        now,
        acked,
        acked_packets: acked / PACKET,
        prior_inflight: l.window.cwnd,
        rtt: Some(rtt),
        srtt: rtt,
        newest_acked_sent: Some(now - rtt),
        ..Signals::default()
    }
}

/// A steady window of `packets` that has seen `base` and whose next slowdown is far away.
fn steady(base: Span, packets: u64) -> Ledbat {
    let mut l = ledbat();
    l.update_delays(&feedback(&l, Time::ZERO, 0, base));
    l.current = [base; CURRENT_FILTER];
    l.window.cwnd = packets * PACKET;
    l.window.ssthresh = l.window.cwnd;
    l.phase = Phase::Steady { next: Time::MAX };
    l
}

#[test]
fn initial_window_is_two_packets_even_with_a_known_rate() {
    assert_eq!(ledbat().decision().cwnd, 2 * PACKET);
    assert_eq!(ledbat().state(), "slow_start");
}

#[test]
fn gain_follows_section_4_2() {
    // GAIN = 1 / min(16, CEIL(2 * 60 ms / base)).
    for (base, times) in
        [(1, 16.0), (7, 16.0), (8, 15.0), (20, 6.0), (60, 2.0), (70, 2.0), (120, 1.0), (300, 1.0)]
    {
        let l = steady(ms(base), 10);
        assert!((l.gain() - 1.0 / times).abs() < 1e-12, "{base} ms: {}", l.gain());
    }
}

#[test]
fn window_change_follows_section_4_3() {
    // W += GAIN below the target, else max(GAIN - W (delay / target - 1), -W / 2), per round trip.
    let cases = [
        (0, 1.0),
        (59, 1.0),
        (60, 1.0),
        (66, 1.0 - 10.0),
        (75, 1.0 - 25.0),
        (90, 1.0 - 50.0),
        (120, -50.0f64),
    ];
    for (delay, want) in cases {
        let mut l = steady(ms(120), 100);
        l.current = [ms(120 + delay); CURRENT_FILTER];
        let got = l.change(100.0);
        assert!((got - want).abs() < 1e-6, "{delay} ms: {got}, not {want}");
    }
}

#[test]
fn acknowledging_a_window_applies_the_change_of_a_round() {
    let mut l = steady(ms(60), 100);
    let t = Time::ZERO + ms(1_000);
    for i in 0..16 {
        l.on_feedback(&feedback(&l, t + ms(i), l.window.cwnd / 8, ms(60)));
    }
    // GAIN is a half: two round trips are a packet.
    assert!(l.window.cwnd.abs_diff(101 * PACKET) <= PACKET / 50, "{}", l.window.cwnd);
    l.current = [ms(60 + 66); CURRENT_FILTER];
    let before = l.window.cwnd;
    for i in 0..8 {
        l.on_feedback(&feedback(&l, t + ms(100 + i), l.window.cwnd / 8, ms(60 + 66)));
    }
    let left = l.window.cwnd as f64 / before as f64;
    // A tenth of the window for a tenth above the target, compounded in eight parts.
    assert!((left - 0.908).abs() < 0.005, "{left}");
    assert!(!l.window.in_slow_start(), "a decrease is no reason to double");
}

#[test]
fn current_delay_is_the_minimum_of_four_and_base_delay_of_ten_minutes() {
    let mut l = steady(ms(50), 10);
    for (i, rtt) in [200, 90, 200, 200].into_iter().enumerate() {
        l.update_delays(&feedback(&l, Time::ZERO + ms(i as u64), 0, ms(rtt)));
    }
    assert_eq!(l.queueing_delay(), ms(40));
    l.update_delays(&feedback(&l, Time::ZERO + ms(9), 0, ms(200)));
    assert_eq!(l.queueing_delay(), ms(40));
    l.update_delays(&feedback(&l, Time::ZERO + ms(10), 0, ms(200)));
    assert_eq!(l.queueing_delay(), ms(150));
    // RFC 6817, section 3.4.2: a path that has become longer is noticed after BASE_HISTORY minutes.
    for s in 1..=600u64 {
        l.update_delays(&feedback(&l, Time::ZERO + Span::from_secs(s), 0, ms(200)));
        let base = if s < 600 { ms(50) } else { ms(200) };
        assert_eq!(l.base.get(), Some(base), "second {s}");
    }
}

#[test]
fn slow_start_grows_by_gain_and_ends_at_three_quarters_of_the_target() {
    let mut l = ledbat();
    l.window.cwnd = 100 * PACKET;
    let t = Time::ZERO + ms(1_000);
    l.on_feedback(&feedback(&l, t, 40 * PACKET, ms(60)));
    assert_eq!(l.window.cwnd, 120 * PACKET, "GAIN is a half at 60 ms");
    for i in 1..=4 {
        l.on_feedback(&feedback(&l, t + ms(i), PACKET, ms(60 + 45)));
    }
    assert_eq!(l.phase, Phase::Initial, "45 ms are not more than three quarters of 60");
    for i in 5..=8 {
        l.on_feedback(&feedback(&l, t + ms(i), PACKET, ms(60 + 46)));
    }
    assert!(matches!(l.phase, Phase::Steady { .. }), "{:?}", l.phase);
    assert_eq!(l.state(), "avoidance");
}

#[test]
fn slowdowns_hold_two_packets_for_two_rounds_and_repeat_after_nine_times_their_length() {
    let mut l = steady(ms(120), 64);
    l.phase = Phase::Initial;
    let rtt = ms(120);
    let mut now = Time::ZERO + ms(10_000);
    let mut changes = vec![];
    let mut frozen = 0;
    for step in 0..2_000u64 {
        now += rtt / 8;
        l.on_feedback(&feedback(&l, now, (l.window.cwnd / 8).max(PACKET / 4), rtt));
        if changes.last().is_none_or(|(_, s)| *s != l.state()) {
            changes.push((now, l.state()));
        }
        if l.state() == "slowdown" {
            assert_eq!(l.decision().cwnd, 2 * PACKET);
            frozen += 1;
        }
        assert!(step < 100 || l.window.cwnd >= 2 * PACKET);
    }
    let names: Vec<_> = changes.iter().map(|c| c.1).collect();
    let cycle = ["avoidance", "slowdown", "slowdown:ramp"];
    assert!(names.len() >= 7 && names.iter().zip(cycle.iter().cycle()).all(|(a, b)| a == b), "{names:?}");
    let at = |i: usize| changes[i].0;
    assert_eq!(at(1).since(at(0)), rtt * 2, "the first begins two round trips after slow start");
    assert_eq!(at(2).since(at(1)), rtt * 2, "frozen for two round trips");
    assert!(frozen >= 32, "{frozen}");
    let (length, wait) = (at(3).since(at(1)), at(4).since(at(3)));
    assert!(wait >= length * 9 && wait <= length * 9 + rtt, "{length} and then {wait}");
    // The ramp is a slow start with GAIN 1 from 2 packets to the former window.
    let ramp = at(3).since(at(2)).as_secs_f64() / rtt.as_secs_f64();
    assert!((3.5..5.5).contains(&ramp), "{ramp} round trips");
}

#[test]
fn loss_halves_once_a_round_trip_and_not_after_a_slowdown() {
    let mut l = steady(ms(120), 64);
    let t = |n| Time::ZERO + ms(n);
    let lost = |l: &Ledbat, at: u64, sent: u64| Signals {
        lost: PACKET,
        lost_packets: 1,
        latest_lost_sent: Some(t(sent)),
        ..feedback(l, t(at), 0, ms(120))
    };
    l.on_feedback(&lost(&l, 1_000, 900));
    l.on_feedback(&lost(&l, 1_050, 999));
    assert_eq!(l.window.cwnd, 32 * PACKET);
    l.phase = Phase::Steady { next: t(1_100) };
    l.on_feedback(&feedback(&l, t(1_200), PACKET, ms(120)));
    assert_eq!((l.state(), l.window.cwnd), ("slowdown", 2 * PACKET));
    l.on_feedback(&feedback(&l, t(1_440), 0, ms(120)));
    assert_eq!(l.state(), "slowdown:ramp");
    l.on_feedback(&lost(&l, 1_450, 1_190));
    assert_eq!(l.window.ssthresh / PACKET, 32, "a loss from before is no reason to come back lower");
    l.on_feedback(&lost(&l, 1_600, 1_450));
    assert!(l.window.ssthresh <= 4 * PACKET);
}

#[test]
fn idle_time_ends_a_slowdown() {
    let mut l = steady(ms(120), 64);
    let t = Time::ZERO + ms(1_000);
    l.phase = Phase::Frozen { start: t, until: t + ms(240) };
    l.on_event(t + ms(10), Event::RestartFromIdle { idle_since: t });
    l.on_feedback(&feedback(&l, t + ms(20), PACKET, ms(120)));
    assert_eq!(l.state(), "slowdown:ramp");
}
