use super::model::{SHARE, exceeds_significantly};
use super::*;
use crate::RateSample;
use crate::registry::create;

fn info() -> PathInfo {
    PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(Span::from_millis(70)),
        ecn: true,
        known_rate: None,
        remembered: None,
    }
}

fn bbr() -> Bbr {
    let params = crate::registry::find("bbr").unwrap().defaults();
    Bbr::new(Config::from_params(&params), &info(), Rng::from_u64(1))
}

#[test]
fn one_percent_random_loss_never_exceeds_the_two_percent_threshold() {
    let mut rng = Rng::from_u64(5);
    for packets in [10u64, 30, 100, 300, 3_000] {
        let wrong = (0..4_000)
            .filter(|_| {
                let lost = (0..packets).filter(|_| rng.chance(0.01)).count() as u64;
                exceeds_significantly(lost, packets, 2_000)
            })
            .count();
        assert!(wrong <= 4, "{wrong} of 4000 rounds of {packets} packets");
    }
}

#[test]
fn loss_above_the_threshold_exceeds_it() {
    assert!(exceeds_significantly(20, 200, 2_000));
    assert!(exceeds_significantly(5, 10, 2_000));
    assert!(exceeds_significantly(900, 30_000, 2_000));
    assert!(!exceeds_significantly(3, 3, 2_000), "three losses prove nothing");
    assert!(!exceeds_significantly(0, 0, 2_000));
    assert!(!exceeds_significantly(u64::MAX, u64::MAX, SHARE * 2));
}

#[test]
fn first_decision_paces_the_initial_window_over_the_rtt() {
    let d = bbr().decision();
    assert!(d.cwnd >= 32 * 1_500);
    let nominal = Rate::from_bytes_in(32 * 1_500, Span::from_millis(70));
    assert_eq!(d.rate, nominal.scale(5_000, 1_000));
}

#[test]
fn known_rate_is_the_first_decision() {
    let known = Rate::from_mbit(2_000);
    let info = PathInfo { known_rate: Some(known), ..info() };
    let made = create("bbr", &Params::default(), &info, Rng::from_u64(1)).unwrap();
    assert_eq!(made.decision().rate, known);
    assert!(made.decision().cwnd >= known.bytes_in(Span::from_millis(70)));
    assert_eq!(made.state(), "resume");
}

/// The handshake's round-trip minimum must not count as old on a clock that has run for long, or transfers would
/// begin in ProbeRTT.
#[test]
fn first_feedback_on_an_old_clock_does_not_start_probe_rtt() {
    let info = PathInfo { handshake_rtt: Some(Span::from_millis(70)), ..info() };
    let mut b = create("bbr", &Params::default(), &info, Rng::from_u64(1)).unwrap();
    let late = Span::from_secs(1_000_000);
    for n in 0..4 {
        let f = feedback(n, Rate::from_mbit(10), 32, 0);
        b.on_feedback(&Signals { now: f.now + late, rtt: Some(Span::from_millis(75)), rate: None, ..f });
        assert!(b.state().starts_with("startup"), "{}", b.state());
    }
}

/// The feedback of a round: `packets` acknowledged, `lost` lost.
fn feedback(n: u64, rate: Rate, packets: u64, lost: u64) -> Signals {
    let rtt = Span::from_millis(70);
    let now = Time::ZERO + rtt * (n + 1);
    let inflight = rate.bytes_in(rtt);
    Signals {
        now,
        acked: packets * 1_500,
        acked_packets: packets,
        lost: lost * 1_500,
        lost_packets: lost,
        latest_lost_sent: (lost > 0).then_some(now - rtt),
        prior_inflight: inflight,
        inflight,
        rtt: Some(rtt),
        srtt: rtt,
        min_rtt: rtt,
        delivered: (n + 1) * 1_000_000_000,
        newest_acked_sent: Some(now - rtt),
        rate: Some(RateSample {
            rate,
            interval: rtt,
            delivered: packets * 1_500,
            prior_delivered: n * 1_000_000_000,
            tx_inflight: inflight,
            lost: lost * 1_500,
            forgone: 0,
            app_limited: false,
        }),
        ..Signals::default()
    }
}

fn round(b: &mut Bbr, n: u64, rate: Rate, packets: u64, lost: u64) {
    b.on_feedback(&feedback(n, rate, packets, lost));
}

fn cruising(rate: Rate) -> (Bbr, u64) {
    let mut b = bbr();
    for n in 0..40 {
        round(&mut b, n, rate, 1_000, 0);
        if b.state() == "probe_bw:cruise" {
            return (b, n + 1);
        }
    }
    panic!("forty rounds at one rate lead to cruising, not to {}", b.state());
}

#[test]
fn heavy_loss_while_cruising_reduces_the_rate_and_light_loss_does_not() {
    let rate = Rate::from_mbit(170);
    let (mut b, n) = cruising(rate);
    round(&mut b, n, rate, 990, 10);
    assert_eq!(b.bounds.bw_short, Rate::MAX);
    assert!(b.decision().rate >= rate);
    let half = rate.scale(1, 2);
    for n in n + 1..n + 4 {
        round(&mut b, n, half, 500, 500);
    }
    assert!(b.bounds.bw_short < rate, "{:?}", b.bounds);
    assert!(b.decision().rate < rate);
}

#[test]
fn bounds_are_restored_after_reordering() {
    let rate = Rate::from_mbit(170);
    let (mut b, n) = cruising(rate);
    for n in n..n + 3 {
        round(&mut b, n, rate.scale(1, 2), 500, 500);
    }
    assert!(b.bounds.bw_short < rate);
    let now = Time::ZERO + Span::from_millis(70) * (n + 4);
    b.on_feedback(&Signals { now, spurious: 500 * 1_500, ..Signals::default() });
    assert_eq!(b.bounds.bw_short, Rate::MAX);
}

#[test]
fn timeouts_halve_the_rate_from_the_second_on_until_feedback() {
    let rate = Rate::from_mbit(170);
    let (mut b, n) = cruising(rate);
    let before = b.decision().rate;
    let now = Time::ZERO + Span::from_secs(60);
    b.on_event(now, Event::ProbeTimeout { count: 1 });
    assert_eq!(b.decision().rate, before);
    b.on_event(now, Event::ProbeTimeout { count: 3 });
    assert_eq!(b.decision().rate, before.scale(1, 4));
    b.on_event(now, Event::ProbeTimeout { count: u32::MAX });
    assert!(b.decision().rate >= MIN_RATE);
    round(&mut b, n, rate, 1_000, 0);
    assert!(b.decision().rate >= rate.scale(9, 10));
}

#[test]
fn persistent_congestion_restarts_from_an_eighth_of_the_bandwidth() {
    let rate = Rate::from_mbit(170);
    let (mut b, _) = cruising(rate);
    b.on_event(Time::ZERO + Span::from_secs(60), Event::PersistentCongestion);
    assert_eq!(b.state(), "startup");
    assert!(b.decision().rate < rate);
}

#[test]
fn marks_count_as_losses_unless_disabled() {
    let rate = Rate::from_mbit(170);
    for (ecn, reduced) in [(true, true), (false, false)] {
        let (mut b, n) = cruising(rate);
        b.config.ecn = ecn;
        for n in n..n + 3 {
            let marked = Signals { ce_packets: 500, ..feedback(n, rate.scale(1, 2), 1_000, 0) };
            b.on_feedback(&marked);
        }
        assert_eq!(b.bounds.bw_short < rate, reduced, "{:?}", b.bounds);
    }
}
