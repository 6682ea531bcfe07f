use super::*;
use crate::RateSample;

const GIGABIT: f64 = 125e6;

fn info() -> PathInfo {
    PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(Span::from_millis(70)),
        ecn: true,
        known_rate: None,
        remembered: None,
    }
}

fn config() -> Config {
    Config::from_params(&crate::registry::find("haul").unwrap().defaults())
}

fn haul(info: &PathInfo) -> Haul {
    Haul::new(config(), info, Rng::from_u64(1))
}

const RTT: Span = Span::from_millis(70);
/// Reports per round.
const REPORTS: u64 = 4;

/// Report `n` on a path that delivers `rate` with a delay of `queue`; every fourth begins a round.
fn report(n: u64, rate: Rate, queue: Span) -> Signals {
    let flight = rate.bytes_in(RTT);
    let bytes = flight / REPORTS;
    Signals {
        now: Time::ZERO + RTT * n / REPORTS,
        acked: bytes,
        acked_packets: bytes / 1_500,
        inflight: flight,
        prior_inflight: flight,
        rtt: Some(RTT + queue),
        srtt: RTT + queue,
        min_rtt: RTT,
        delivered: bytes * n,
        newest_acked_sent: Some(Time::ZERO + (RTT * n / REPORTS - RTT)),
        rate: Some(RateSample {
            rate,
            interval: RTT,
            delivered: flight,
            prior_delivered: (bytes * n).saturating_sub(flight),
            tx_inflight: flight,
            lost: 0,
            forgone: 0,
            app_limited: false,
        }),
        round_start: n.is_multiple_of(REPORTS),
        round: n / REPORTS,
        ..Signals::default()
    }
}

fn steady(mbit: u64) -> Haul {
    let mut h = haul(&info());
    h.bottleneck = Some(GIGABIT);
    h.end_start(Rate::from_mbit(mbit).bytes_per_sec() as f64, 0, Time::from_nanos(1));
    h.steady.begin(0, h.rate);
    h
}

/// Runs whole rounds in which what is sent arrives, at most `most`, and `change` modifies each report.
fn run_rounds(
    h: &mut Haul,
    rounds: core::ops::Range<u64>,
    queue: Span,
    most: Rate,
    change: impl Fn(Signals) -> Signals,
) {
    for n in rounds.start * REPORTS + 1..=rounds.end * REPORTS {
        let rate = h.decision().rate.min(most);
        h.on_feedback(&change(report(n, rate, queue)));
    }
}

fn run(h: &mut Haul, rounds: core::ops::Range<u64>, queue: Span, most: Rate) {
    run_rounds(h, rounds, queue, most, |s| s);
}

/// Adds losses, in percent of what arrives.
fn lossy(percent: u64) -> impl Fn(Signals) -> Signals {
    move |s| Signals {
        lost_packets: s.acked_packets * percent / 100,
        lost: s.acked * percent / 100,
        latest_lost_sent: Some(s.now - RTT),
        ..s
    }
}

#[test]
fn queue_target_falls_with_the_square_root_of_the_rate() {
    let c = config();
    assert!((c.target(GIGABIT, 0.07) - 0.004).abs() < 1e-9);
    assert!((c.target(GIGABIT / 4.0, 0.07) - 0.008).abs() < 1e-9, "half the square root, twice the queue");
    assert!((c.target(GIGABIT * 4.0, 0.07) - 0.002).abs() < 1e-9);
    assert!(c.target(GIGABIT * 1e6, 0.07) >= HOST_NOISE / 2.0, "hosts are not that exact");
    assert!(c.target(1.0, 0.07) <= 0.07 * 0.35);
    assert!(c.target(GIGABIT, 0.005) <= 0.001, "a fifth of a short path");
}

#[test]
fn law_corrects_half_of_the_deviation_from_the_queue_target() {
    for (queue, aimed) in [(8.0, 4.0), (2.0, 4.0), (30.0, 4.0)] {
        let mut h = steady(1_000);
        // The law rests for two rounds after the start.
        let span = Span::from_micros((queue * 1_000.0) as u64);
        run(&mut h, 0..3, span, Rate::from_mbit(1_000));
        let expected = 1.0 + 0.5 * (aimed - queue) / 70.0;
        assert!((h.rate / GIGABIT - expected).abs() < 0.002, "{} of {expected}", h.rate / GIGABIT);
    }
}

#[test]
fn steps_beyond_the_former_ceiling_begin_small_and_double_without_a_queue() {
    let mut h = steady(100);
    run(&mut h, 0..4, Span::ZERO, Rate::MAX);
    let small = h.rate / GIGABIT;
    assert!(small > 0.1 && small < 0.12, "{small}");
    run(&mut h, 4..40, Span::ZERO, Rate::MAX);
    assert!(h.rate / GIGABIT > 1.0, "the path has grown: {}", h.rate / GIGABIT);
}

#[test]
fn random_loss_does_not_reduce_the_rate() {
    let mut h = steady(1_000);
    run_rounds(&mut h, 0..40, Span::from_millis(1), Rate::from_mbit(970), lossy(3));
    assert!(h.rate > GIGABIT * 0.95, "{}", h.rate / GIGABIT);
}

#[test]
fn heavy_loss_reduces_the_rate_and_reordering_restores_it() {
    let mut h = steady(1_000);
    run(&mut h, 0..3, Span::from_millis(4), Rate::from_mbit(1_000));
    let before = h.rate;
    run_rounds(&mut h, 3..4, Span::from_millis(4), Rate::from_mbit(850), lossy(20));
    assert!(h.rate <= before * 0.86, "{} of {before}", h.rate);
    let s = report(17, Rate::from_mbit(850), Span::from_millis(4));
    h.on_feedback(&Signals { spurious: 1_500, ..s });
    assert!(h.rate >= before, "{} of {before}", h.rate);
}

#[test]
fn losses_of_a_single_report_are_a_burst_and_no_congestion() {
    // 2 % of two rounds: in one report, and spread over all.
    for (every, least, most) in [(2 * REPORTS, 0.97, 1.05), (1, 0.0, 0.86)] {
        let mut h = steady(1_000);
        run(&mut h, 0..4, Span::from_millis(4), Rate::from_mbit(1_000));
        let before = h.rate;
        for n in 4 * REPORTS + 1..=6 * REPORTS {
            let s = report(n, h.decision().rate.min(Rate::from_mbit(1_000)), Span::from_millis(4));
            h.on_feedback(&if n % every == 1 % every { lossy(2 * every)(s) } else { s });
        }
        let part = h.rate / before;
        assert!(part >= least && part <= most, "every {every} reports: {part}");
    }
}

#[test]
fn losses_of_an_outage_are_no_congestion() {
    let mut h = steady(1_000);
    run(&mut h, 0..5, Span::from_millis(4), Rate::from_mbit(1_000));
    let before = h.rate;
    // Nothing for three round trips; then everything sent meanwhile is reported lost.
    run_rounds(&mut h, 8..12, Span::from_millis(4), Rate::from_mbit(1_000), |s| {
        let dark = s.now < Time::ZERO + RTT * 9;
        if dark { Signals { latest_lost_sent: Some(s.now - RTT * 2), ..lossy(400)(s) } } else { s }
    });
    assert!(h.rate > before * 0.9, "{} of {before}", h.rate);
}

#[test]
fn marks_reduce_the_rate_once_a_round_unless_disabled() {
    let marked = |h: &mut Haul| {
        run(h, 0..5, Span::from_millis(4), Rate::from_mbit(1_000));
        let before = h.rate;
        let mark = |s: Signals| Signals { ce_packets: 3, ..s };
        run_rounds(h, 5..6, Span::from_millis(4), Rate::from_mbit(1_000), mark);
        h.rate / before
    };
    assert!((marked(&mut steady(1_000)) - 0.85).abs() < 0.01);
    let mut deaf = steady(1_000);
    deaf.config.ecn = false;
    assert!(marked(&mut deaf) > 0.95);
}

#[test]
fn app_limited_flow_keeps_its_rate() {
    let mut h = steady(1_000);
    run_rounds(&mut h, 0..60, Span::from_millis(2), Rate::from_mbit(10), |s| Signals {
        app_limited: true,
        rate: s.rate.map(|r| RateSample { app_limited: true, ..r }),
        ..s
    });
    assert!((h.rate / GIGABIT - 1.0).abs() < 0.01, "{}", h.rate / GIGABIT);
}

#[test]
fn start_follows_train_rates_and_ends_at_a_queue() {
    let mut h = haul(&info());
    assert!(h.wants_dispersion());
    let shown = Rate::from_mbit(1_000);
    let train = |s| Signals { dispersion: Some(shown), ..s };
    run_rounds(&mut h, 0..3, Span::ZERO, shown, train);
    assert!(h.wants_dispersion(), "it still looks: {}", h.state());
    let d = h.decision();
    assert!(d.rate >= shown.scale(9, 10) && d.rate <= shown.scale(113, 100), "{d:?} {}", h.state());
    run_rounds(&mut h, 3..5, Span::from_millis(12), shown, train);
    assert!(!h.wants_dispersion(), "{}", h.state());
    assert!(h.rate <= GIGABIT * 1.01, "what arrives is the rate: {}", h.rate / GIGABIT);
}

/// Reports of the first flight on a path whose delays vary by 40 ms, of which a policer drops `lost` packets.
fn first_flight(h: &mut Haul, lost: u64) {
    let delays = [0, 45, 20, 45, 22, 48, 25, 45, 24, 50, 25, 45, 28, 50, 30, 45];
    let first = Time::ZERO + RTT * 2;
    for (n, delay) in (0..16).zip(delays) {
        let r = report(n, Rate::from_mbit(1), Span::from_millis(delay));
        let now = first + Span::from_millis(6) * n;
        let sent = now - RTT;
        let last = n == 15;
        let lost_packets = if last { lost } else { 0 };
        let latest_lost_sent = last.then_some(sent);
        let (acked, acked_packets) = (1_500, 1);
        h.on_feedback(&Signals {
            now,
            acked,
            acked_packets,
            lost_packets,
            lost: lost_packets * 1_500,
            latest_lost_sent,
            newest_acked_sent: Some(sent),
            round_start: last,
            ..r
        });
    }
}

#[test]
fn delays_that_vary_do_not_end_the_start_after_the_first_flight() {
    let mut h = haul(&info());
    first_flight(&mut h, 0);
    assert_eq!(h.state(), "start");
}

#[test]
fn loss_of_a_first_flight_that_left_at_once_shortens_trains() {
    let mut h = haul(&info());
    let window = h.rate * 0.07;
    first_flight(&mut h, 16);
    assert_eq!(h.state(), "start");
    assert!(h.decision().quantum <= 16 * 1_500, "{:?}", h.decision());
    assert!(h.rate * 0.07 > window / 3.0, "half of it arrived: {}", h.rate * 0.07);
}

#[test]
fn known_rate_is_used_at_once_and_remembered_rate_by_half() {
    let known = Rate::from_mbit(2_000);
    let h = haul(&PathInfo { known_rate: Some(known), ..info() });
    assert_eq!(h.decision().rate, known);
    let mut h = steady(1_000);
    run(&mut h, 0..5, Span::from_millis(4), Rate::from_mbit(1_000));
    let before = h.rate;
    let now = Time::ZERO + Span::from_secs(60);
    h.on_event(now, Event::RestartFromIdle { idle_since: now - Span::from_secs(3) });
    assert!((h.rate - before).abs() < 1.0, "a short pause changes nothing");
    h.on_event(now, Event::RestartFromIdle { idle_since: now - Span::from_secs(30) });
    assert!((h.rate - before / 2.0).abs() < 1.0, "RFC 9959, section 3: half of what was remembered");
    assert_eq!(h.state(), "start:known");
}

#[test]
fn flow_competes_after_an_overflow_and_returns_to_the_law() {
    let mut h = steady(1_000);
    run(&mut h, 0..40, Span::from_millis(4), Rate::from_mbit(1_000));
    // A competitor overflows a queue of 60 ms.
    run_rounds(&mut h, 40..41, Span::from_millis(60), Rate::from_mbit(600), lossy(10));
    run(&mut h, 41..51, Span::from_millis(30), Rate::from_mbit(600));
    assert_eq!(h.state(), "steady:competing");
    let before = h.rate;
    run(&mut h, 51..60, Span::from_millis(30), Rate::from_mbit(600));
    assert!(h.rate > before, "below its part of the queue it grows");
    assert!(h.rate < GIGABIT * 0.55, "up to half of the path: {}", h.rate / GIGABIT);
    // Nobody fills the queue for 30 s: 430 rounds.
    run(&mut h, 60..520, Span::from_millis(5), Rate::from_mbit(600));
    assert_ne!(h.state(), "steady:competing");
}

#[test]
fn small_flow_holds_its_rate_now_and_then_instead_of_yielding() {
    // 9.9 ms are a little more than the target of 200 Mbit/s.
    let mut h = steady(200);
    run(&mut h, 0..32, Span::from_micros(8_900), Rate::MAX);
    let before = h.rate;
    run(&mut h, 32..70, Span::from_micros(9_900), Rate::MAX);
    let held = h.rate;
    assert!(held > before * 0.95, "{held} of {before}");
    // Nothing happens in three seconds, so the flow continues to yield.
    run(&mut h, 76..110, Span::from_micros(9_900), Rate::MAX);
    assert!(h.rate < held * 0.95, "{} of {held}", h.rate);
    assert_ne!(h.state(), "steady:competing");
}

#[test]
fn queue_growth_at_a_held_rate_reveals_a_competitor() {
    let found = || {
        let mut h = steady(200);
        run(&mut h, 0..32, Span::from_micros(8_900), Rate::MAX);
        run(&mut h, 32..45, Span::from_micros(9_900), Rate::MAX);
        run(&mut h, 45..65, Span::from_millis(18), Rate::MAX);
        assert_eq!(h.state(), "steady:competing");
        h
    };
    // The queue stays although this flow takes a third more: the others yield, as flows under the law do.
    let mut h = found();
    run(&mut h, 65..80, Span::from_millis(18), Rate::MAX);
    assert_ne!(h.state(), "steady:competing");
    // It grows: the others keep their rate.
    let mut h = found();
    run(&mut h, 65..110, Span::from_millis(30), Rate::MAX);
    assert!(h.rate > GIGABIT * 0.45 && h.rate < GIGABIT * 0.55, "half of the path: {}", h.rate / GIGABIT);
    // The queue is as short as flows under the law keep it: back to the law.
    run(&mut h, 110..125, Span::from_millis(5), Rate::MAX);
    assert_ne!(h.state(), "steady:competing");
}

#[test]
fn persistent_congestion_restarts_from_an_eighth_of_the_rate() {
    let mut h = steady(1_000);
    let before = h.rate;
    h.on_event(Time::from_nanos(2), Event::PersistentCongestion);
    assert!((h.rate - before / 8.0).abs() < 1.0 && h.wants_dispersion());
}

#[test]
fn longer_min_rtt_is_accepted_only_after_rtt_probes() {
    let mut h = steady(1_000);
    run(&mut h, 0..5, Span::from_millis(4), Rate::from_mbit(1_000));
    // The path is 30 ms longer now, which looks like a queue until a reduction does not shorten it.
    let mut probed_rtt = false;
    for n in 5..400 {
        run(&mut h, n..n + 1, Span::from_millis(30), Rate::from_mbit(1_000));
        probed_rtt |= h.state() == "probe_rtt";
    }
    assert!(probed_rtt);
    assert!(h.rate > GIGABIT * 0.8, "{} {}", h.rate / GIGABIT, h.state());
}

#[test]
fn busy_host_is_not_taken_for_a_slower_path() {
    // A busy host did not send a tenth in time: less arrives, without a queue.
    let late = |s: Signals| Signals {
        rate: s.rate.map(|r| RateSample {
            rate: Rate::from_bytes_per_sec(r.rate.bytes_per_sec() * 9 / 10),
            forgone: r.delivered / 9,
            ..r
        }),
        ..s
    };
    let mut h = steady(900);
    run_rounds(&mut h, 1..60, Span::from_millis(4), Rate::from_mbit(10_000), late);
    assert!(h.rate > GIGABIT * 0.9, "{}", h.rate);
    // A longer queue then keeps the path busy.
    assert!(h.steady.host_lateness() > 0.05);
    // The same shortfall without a busy host is the path's.
    let narrow = |s: Signals| Signals { rate: late(s).rate.map(|r| RateSample { forgone: 0, ..r }), ..s };
    let mut h = steady(900);
    run_rounds(&mut h, 1..60, Span::from_millis(4), Rate::from_mbit(10_000), narrow);
    assert!(h.rate < GIGABIT * 0.5, "{}", h.rate);
}

#[test]
fn remembered_trains_are_used_from_the_first_packet_unless_the_path_is_another() {
    let memory = |rtt| crate::Remembered {
        rate: Rate::from_mbit(1_000),
        rtt: Span::from_millis(rtt),
        train: Some(12_000),
    };
    let usual = haul(&info());
    assert!(usual.decision.quantum > 12_000 && usual.longest_train().is_none());
    let mut same = haul(&PathInfo { remembered: Some(memory(70)), ..info() });
    assert_eq!((same.decision.quantum, same.longest_train()), (12_000, Some(12_000)));
    run(&mut same, 0..2, Span::ZERO, Rate::from_mbit(1_000));
    assert_eq!(same.decision.quantum, 12_000, "at the remembered rate, too");
    let mut other = haul(&PathInfo { remembered: Some(memory(200)), ..info() });
    run(&mut other, 0..2, Span::ZERO, Rate::from_mbit(1_000));
    assert!(other.decision.quantum > 12_000 && other.longest_train().is_none(), "{other:?}");
}

#[test]
fn start_at_a_remembered_rate_tries_no_more_where_the_queue_is_known_to_be_short() {
    let memory =
        |train| crate::Remembered { rate: Rate::from_mbit(1_000), rtt: Span::from_millis(70), train };
    let highest = |train| {
        let mut h = haul(&PathInfo { remembered: Some(memory(train)), ..info() });
        let mut most = 0.0f64;
        for round in 0..5 {
            run(&mut h, round..round + 1, Span::ZERO, Rate::from_mbit(1_000));
            most = most.max(h.rate);
        }
        most
    };
    assert!(highest(Some(12_000)) <= GIGABIT * 1.001, "{}", highest(Some(12_000)));
    assert!(highest(None) > GIGABIT * 1.05);
}

#[test]
fn remembered_rate_is_resumed_by_half_once_the_rtt_matches() {
    let path =
        |rtt| crate::Remembered { rate: Rate::from_mbit(2_000), rtt: Span::from_millis(rtt), train: None };
    let first = |memory, change: fn(Signals) -> Signals| {
        let mut h = haul(&PathInfo { remembered: Some(memory), ..info() });
        assert!(h.rate < GIGABIT / 10.0, "nothing before the first packets have arrived: {}", h.rate);
        h.on_feedback(&change(report(1, Rate::from_mbit(10), Span::ZERO)));
        h.rate
    };
    assert!((first(path(70), |s| s) - GIGABIT).abs() < GIGABIT / 10.0, "RFC 9959, section 3.1: half");
    for (rtt, why) in [(141, "less than half the round trip"), (6, "more than ten times the round trip")] {
        assert!(first(path(rtt), |s| s) < GIGABIT / 10.0, "{why}");
    }
    assert!(first(path(70), |s| Signals { lost: 1_500, lost_packets: 1, ..s }) < GIGABIT / 10.0, "a loss");
    // The available rate is used within one more round trip; the start ends at the first queue.
    let mut h = haul(&PathInfo { remembered: Some(path(70)), ..info() });
    run(&mut h, 0..3, Span::ZERO, Rate::from_mbit(2_000));
    assert!(h.rate > 1.9 * GIGABIT, "{}", h.rate);
    let mut h = haul(&PathInfo { remembered: Some(path(70)), ..info() });
    run(&mut h, 0..2, Span::from_millis(30), Rate::from_mbit(100));
    assert!(h.rate < 0.2 * GIGABIT, "{}", h.rate);
}

#[test]
fn excessive_queue_stops_the_sender_until_the_backlog_is_cleared() {
    let mut h = steady(100);
    run(&mut h, 0..4, Span::from_millis(4), Rate::from_mbit(100));
    // The path slows down to a tenth.
    let (tenth, full) = (Rate::from_mbit(10), Rate::from_mbit(100).bytes_in(RTT));
    run_rounds(&mut h, 4..6, RTT, tenth, |s| Signals { inflight: full, ..s });
    assert_eq!(h.state(), "drain");
    assert!(h.decision().cwnd < full / 4, "{:?}", h.decision());
    assert!((h.rate / 1.25e6 - 1.0).abs() < 0.1, "what arrives: {}", h.rate);
    run(&mut h, 6..8, RTT, tenth);
    assert_eq!(h.state(), "steady");
    // A queue that this did not shorten is not cleared again.
    run(&mut h, 8..10, RTT, tenth);
    assert_eq!(h.state(), "steady");
}

#[test]
fn backlog_ends_where_two_packets_leave_in_longer_than_an_outage() {
    let mut h = steady(100);
    run(&mut h, 0..4, Span::from_millis(4), Rate::from_mbit(100));
    // The path nearly stops; each report then comes 60 ms after the one before.
    let full = Rate::from_mbit(100).bytes_in(RTT);
    run_rounds(&mut h, 4..6, RTT, Rate::from_bits_per_sec(400_000), |s| Signals { inflight: full, ..s });
    assert_eq!(h.state(), "drain");
    let began = Time::ZERO + RTT * 6;
    for n in 1..=10 {
        let r = report(4 * n, Rate::from_bits_per_sec(400_000), Span::ZERO);
        h.on_feedback(&Signals { now: began + Span::from_millis(60) * n, acked: 3_000, inflight: 0, ..r });
    }
    assert_eq!(h.state(), "steady", "a sender stayed at these 400 kbit/s for good");
}

#[test]
fn start_without_train_samples_slows_down_after_some_rounds() {
    let mut h = haul(&info());
    let most = Rate::from_mbit(10_000_000);
    let mut growth = |rounds| {
        let before = h.rate;
        run(&mut h, rounds, Span::ZERO, most);
        h.rate / before
    };
    let early = growth(1..2);
    growth(2..5);
    let late = growth(5..6);
    assert!(late > 2.0 && late < early / 2.0, "{early} and then {late}");
}

/// Ten rounds of delays between 0 and 20 ms, `noisy` or not, and then 18 ms for some, on a path with spare capacity.
fn late_packets(noisy: bool, rounds: u64) -> Haul {
    let mut h = steady(100);
    run_rounds(&mut h, 0..10, Span::ZERO, Rate::from_mbit(1_000), |s| {
        let n = s.now.as_nanos() / (RTT / REPORTS).as_nanos();
        let late = Span::from_millis(if noisy { n * 3 % 5 * 5 } else { 0 });
        Signals { rtt: s.rtt.map(|r| r + late), ..s }
    });
    run(&mut h, 10..10 + rounds, Span::from_millis(18), Rate::from_mbit(1_000));
    h
}

#[test]
fn delay_seen_at_a_lower_rate_is_not_a_queue_if_noise_explains_it() {
    let (noisy, quiet) = (late_packets(true, 30), late_packets(false, 8));
    assert!(
        noisy.rate > 1.2 * quiet.rate && noisy.rtt() > 0.08,
        "{} {} {}",
        noisy.rate / GIGABIT,
        quiet.rate / GIGABIT,
        noisy.rtt()
    );
    assert!((quiet.rtt() - 0.07).abs() < 1e-6, "where delays are clean they are queues: {}", quiet.rtt());
}

/// Runs rounds on a path that lets `path` pass, drops the rest and delays nothing. Returns packets delivered and
/// lost.
fn overflow(h: &mut Haul, rounds: core::ops::Range<u64>, path: Rate) -> (u64, u64) {
    let (mut arrived, mut lost) = (0, 0);
    for n in rounds.start * REPORTS + 1..=rounds.end * REPORTS {
        let sent = h.decision().rate;
        let r = report(n, sent.min(path), Span::ZERO);
        let more = (sent.bytes_in(RTT) - sent.min(path).bytes_in(RTT)) / REPORTS / 1_500;
        h.on_feedback(&Signals {
            lost_packets: more,
            lost: more * 1_500,
            latest_lost_sent: (more > 0).then_some(r.now - RTT),
            ..r
        });
        (arrived, lost) = (arrived + r.acked_packets, lost + more);
    }
    (arrived, lost)
}

#[test]
fn loss_that_stops_at_a_lower_rate_is_overflow_of_a_shallow_queue() {
    let mut h = steady(900);
    h.bottleneck = None;
    let path = Rate::from_mbit(500);
    overflow(&mut h, 0..60, path);
    assert!(h.decision().quantum <= 2 * 1_500, "short trains: {h:?}");
    let (arrived, lost) = overflow(&mut h, 60..240, path);
    assert!(lost * 100 < arrived, "{lost} lost, {arrived} arrived");
    assert!(arrived > path.bytes_in(RTT * 180) / 1_500 * 95 / 100, "{arrived}");
}

#[test]
fn loss_that_remains_at_a_lower_rate_is_random_and_so_are_bursts() {
    for (percent, of_reports) in [(3, 1), (10, 4)] {
        let mut h = steady(1_000);
        let most = Rate::from_mbit(1_000);
        run_rounds(&mut h, 0..60, Span::ZERO, most, |s| {
            let n = s.now.since(Time::ZERO).as_nanos() * REPORTS / RTT.as_nanos();
            let hit = n.is_multiple_of(of_reports);
            if hit { lossy(percent)(s) } else { s }
        });
        assert!(h.rate > GIGABIT * 0.95, "{percent} % of each {of_reports}th: {}", h.rate / GIGABIT);
        assert!(h.losses.overflow_delay().is_infinite(), "no queue overflowed");
    }
}

#[test]
fn random_loss_that_is_detected_late_does_not_seem_to_stop() {
    let mut h = steady(1_000);
    let most = Rate::from_mbit(1_000);
    // As where the network reorders: packets are lost only a round trip after later ones have been acknowledged.
    let late = |s: Signals| Signals { latest_lost_sent: Some(s.now - RTT * 2), ..lossy(5)(s) };
    run_rounds(&mut h, 0..60, Span::ZERO, most, late);
    assert!(h.losses.overflow_delay().is_infinite(), "no queue overflowed");
    assert!(h.rate > GIGABIT * 0.95, "{}", h.rate / GIGABIT);
}

#[test]
fn loss_after_a_longer_queue_stood_is_no_overflow_of_a_shallow_one() {
    for (queue, is_overflow) in [(Span::ZERO, true), (Span::from_millis(30), false)] {
        let mut h = steady(500);
        let path = Rate::from_mbit(500);
        run(&mut h, 0..6, queue, path);
        run(&mut h, 6..9, Span::ZERO, path);
        let mut n = 9;
        while !h.shallow_queue.is_checking() {
            run_rounds(&mut h, n..n + 1, Span::ZERO, path, lossy(3));
            n += 1;
            assert!(n < 60, "nothing is checked: {h:?}");
        }
        // The losses stop by chance while this is checked.
        run(&mut h, n..n + 60, Span::ZERO, path);
        assert_eq!(h.losses.overflow_delay().is_finite(), is_overflow, "{queue:?}");
    }
}

#[test]
fn idle_restart_ends_an_rtt_probe() {
    let mut h = steady(1_000);
    // The minimum round trip is not seen for ten seconds.
    let mut n = 0;
    while h.state() != "probe_rtt" {
        n += 1;
        assert!(n < 300 * REPORTS, "no RTT probe");
        h.on_feedback(&report(n, Rate::from_mbit(1_000), Span::from_millis(4)));
    }
    let (rate, now) = (h.rate, Time::ZERO + RTT * n / REPORTS);
    h.on_event(now + RTT, Event::RestartFromIdle { idle_since: now });
    assert!(!h.min_rtt.is_stale(now + RTT * 2), "or it would begin again, with less each time");
    assert!(h.state() == "steady" && h.rate >= rate, "{h:?}");
}
