use super::*;
use base::Rng;
use proptest::prelude::*;

const PACKET: u64 = 1500;

fn decision(rate: Rate) -> Decision {
    Decision { rate, cwnd: u64::MAX, quantum: quantum(rate, PACKET) }
}

#[test]
fn quantum_depends_on_the_rate() {
    assert_eq!(quantum(Rate::from_bits_per_sec(64_000), PACKET), 2 * PACKET);
    assert_eq!(quantum(Rate::from_mbit(100), PACKET), 8 * PACKET);
    assert_eq!(quantum(Rate::from_mbit(1_000), PACKET), 44 * PACKET);
    assert_eq!(quantum(Rate::from_mbit(100_000), PACKET), 4 * 44 * PACKET);
    assert_eq!(quantum(Rate::from_mbit(400_000), PACKET), 8 * 44 * PACKET);
    assert_eq!(quantum(Rate::from_mbit(1_000), 9000), 7 * 9000);
    assert_eq!(quantum(Rate::MAX, 0), quantum(Rate::MAX, 1));
}

#[test]
fn late_timers_do_not_reduce_the_average_rate() {
    for mbit in [1, 100, 10_000, 400_000] {
        let (d, mut pacer, mut rng) = (decision(Rate::from_mbit(mbit)), Pacer::new(), Rng::from_u64(mbit));
        let (mut now, mut sent, end) = (Time::ZERO, 0u64, Time::ZERO + Span::from_secs(2));
        while now < end {
            match pacer.poll(now, &d, u64::MAX) {
                Ok(mut t) => {
                    sent += t.bytes();
                    t.spend(t.bytes()).unwrap();
                }
                // The timer overshoots by 50 to 110 us, and now and then the thread is delayed by 3 ms.
                Err(when) => {
                    let late = if rng.chance(0.01) { 3_000_000 } else { rng.range(50_000, 110_000) };
                    now = when + Span::from_nanos(late);
                }
            }
        }
        let due = d.rate.bytes_in(now.since(Time::ZERO));
        assert!(sent + d.rate.bytes_in(CATCH_UP) + d.quantum >= due, "{mbit}: {sent} of {due}");
        assert!(sent <= due + d.quantum, "{mbit}: {sent} exceeds {due}");
    }
}

#[test]
fn idle_flow_earns_credit_for_one_train_only() {
    let d = decision(Rate::from_mbit(10_000));
    let mut pacer = Pacer::new();
    let t = pacer.poll(Time::ZERO, &d, 100).unwrap();
    assert_eq!(t.bytes(), 100);
    let later = Time::ZERO + Span::from_secs(9);
    assert_eq!(pacer.poll(later, &d, u64::MAX).unwrap().bytes(), d.quantum);
    assert!(pacer.poll(later, &d, u64::MAX).is_err());
}

#[test]
fn tokens_are_bounded_and_refundable() {
    let d = decision(Rate::from_mbit(1_000));
    let mut pacer = Pacer::new();
    let mut token = pacer.poll(Time::ZERO, &d, u64::MAX).unwrap();
    assert_eq!(token.spend(d.quantum + 1), Err(Overdrawn { wanted: d.quantum + 1, left: d.quantum }),);
    token.spend(d.quantum - 500).unwrap();
    pacer.refund(token);
    assert_eq!(pacer.poll(Time::ZERO, &d, 500).unwrap().bytes(), 500);
    assert_eq!(pacer.poll(Time::ZERO, &d, 0), Err(Time::MAX));
    let stopped = Decision { rate: Rate::ZERO, ..d };
    assert_eq!(pacer.poll(Time::ZERO, &stopped, 1), Err(Time::MAX));
}

proptest! {
    /// At any polling times: never above the rate plus the documented burst, and the returned time is one at which a
    /// token is granted.
    #[test]
    fn pacer_never_exceeds_the_rate_plus_burst(bits in 8u64..400_000_000_000, gaps in prop::collection::vec(0u64..20_000_000, 1..200)) {
        let d = decision(Rate::from_bits_per_sec(bits));
        let mut pacer = Pacer::new();
        let (mut now, mut sent) = (Time::ZERO, 0u64);
        for gap in gaps {
            now += Span::from_nanos(gap);
            match pacer.poll(now, &d, u64::MAX) {
                Ok(t) => sent += t.bytes(),
                Err(when) => {
                    prop_assert!(when > now);
                    prop_assert!(pacer.clone().poll(when, &d, u64::MAX).is_ok());
                }
            }
            prop_assert!(sent <= d.rate.bytes_in(now.since(Time::ZERO)) + d.quantum);
        }
    }
}

#[test]
fn credit_lost_to_lateness_is_counted() {
    let (d, mut pacer) = (decision(Rate::from_mbit(1_000)), Pacer::new());
    let send = |pacer: &mut Pacer, now| while pacer.poll(now, &d, u64::MAX).is_ok() {};
    let mut now = Time::ZERO + Span::from_secs(1);
    send(&mut pacer, now);
    // Lateness within the catch-up time does not count.
    now += CATCH_UP;
    send(&mut pacer, now);
    assert_eq!(pacer.forgone(), 0);
    // Five milliseconds more: a millisecond is 125,000 bytes.
    now += CATCH_UP + Span::from_millis(5);
    send(&mut pacer, now);
    let forgone = pacer.forgone();
    assert!(forgone.abs_diff(625_000) <= d.quantum, "{forgone}");
    // With less to catch up with, more is lost.
    let mut short = pacer.clone();
    short.limit_catch_up(Span::from_millis(1));
    send(&mut short, now + CATCH_UP);
    assert!((short.forgone() - forgone).abs_diff(375_000) <= d.quantum, "{}", short.forgone() - forgone);
    short.limit_catch_up(Span::from_secs(9));
    let before = short.forgone();
    send(&mut short, now + CATCH_UP + CATCH_UP);
    assert!(short.forgone() - before <= d.quantum, "as much as usually, with what was left of a train");
    // A flow with nothing to send forgoes nothing.
    assert_eq!(pacer.poll(now, &d, 0), Err(Time::MAX));
    send(&mut pacer, now + Span::from_secs(9));
    assert_eq!(pacer.forgone(), forgone);
}
