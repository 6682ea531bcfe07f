use super::*;
use crate::config::{BurstLoss, Loss, Reorder};
use crate::{Probability, SpecError};
use base::{Rate, Rng};
use proptest::prelude::*;

const SIZE: u64 = 1500;

fn config(spec: &str) -> LinkConfig {
    LinkConfig::parse(spec).unwrap_or_else(|e: SpecError| panic!("{spec}: {e}"))
}
fn link(spec: &str) -> Link<Vec<u8>> {
    Link::new(config(spec), Rng::from_u64(7))
}
fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}
/// A packet whose payload is its number.
fn numbered(bytes: u64, number: u64) -> Packet<Vec<u8>> {
    Packet { bytes, ecn: Ecn::NotEct, payload: number.to_be_bytes().to_vec() }
}
fn number(d: &Delivery<Vec<u8>>) -> u64 {
    u64::from_be_bytes(d.payload[..8].try_into().unwrap())
}
/// Polls until the link is empty, moving time only to where the link asks for it.
fn drain(link: &mut Link<Vec<u8>>) -> Vec<Delivery<Vec<u8>>> {
    let mut out = Vec::new();
    while let Some(at) = link.next_delivery() {
        while let Some(d) = link.poll(at) {
            assert!(d.time >= at, "a delivery was due before next_delivery said so");
            out.push(d);
        }
    }
    out
}
fn burst(link: &mut Link<Vec<u8>>, at: Time, n: u64) -> u64 {
    (0..n).filter(|&i| link.send(at, numbered(SIZE, i)) == Verdict::Queued).count() as u64
}

#[test]
fn packet_takes_serialization_time_plus_delay() {
    let mut l = link("rate=12mbit delay=10ms");
    assert_eq!(l.next_delivery(), None);
    assert_eq!(l.send(ms(5), numbered(SIZE, 1)), Verdict::Queued);
    assert_eq!(l.next_delivery(), Some(ms(16)));
    assert_eq!(l.poll(Time::from_nanos(15_999_999)), None);
    assert_eq!(l.poll(ms(90)).map(|d| (d.time, number(&d), d.bytes)), Some((ms(16), 1, SIZE)));
    assert_eq!((l.poll(ms(90)), l.next_delivery()), (None, None));
}

#[test]
fn link_without_rate_never_queues() {
    let mut l = link("delay=1ms queue=0B");
    assert_eq!(burst(&mut l, ms(1), 1000), 1000);
    let out = drain(&mut l);
    assert!(out.iter().all(|d| d.time == ms(2)));
    assert!(out.iter().map(number).eq(0..1000));
}

#[test]
fn busy_link_delivers_at_exactly_its_rate() {
    for (spec, bytes) in [("rate=400gbit", 1472), ("rate=99.999999992gbit", 9001), ("rate=56kbit", 40)] {
        let mut l = link(&format!("{spec} queue=64MiB"));
        let rate = config(spec).rate.unwrap().bytes_per_sec();
        const N: u64 = 300_000;
        let (mut sent, mut last) = (0u64, Time::ZERO);
        while l.stats().delivered < N {
            while sent < N && l.stats().queue_bytes < 100_000 {
                assert_eq!(l.send(last, numbered(bytes, sent)), Verdict::Queued);
                sent += 1;
            }
            let at = l.next_delivery().unwrap();
            let d = l.poll(at).unwrap();
            // Packet n ends at n times its exact duration, rounded down once and not n times.
            let exact = u128::from((number(&d) + 1) * bytes) * 1_000_000_000 / u128::from(rate);
            assert_eq!(u128::from(d.time.as_nanos()), exact);
            last = at;
        }
    }
}

#[test]
fn full_queue_drops_arriving_packets() {
    // One packet is being sent, ten wait.
    let mut l = link("rate=12mbit queue=15000B");
    assert_eq!(burst(&mut l, ms(0), 20), 11);
    assert_eq!(l.send(ms(0), numbered(1, 99)), Verdict::Dropped(DropReason::QueueFull));
    assert_eq!((l.stats().queue_bytes, l.stats().dropped_queue), (15_000, 10));
    assert_eq!(burst(&mut l, ms(1), 2), 1);
    assert_eq!(drain(&mut l).len(), 12);
    assert_eq!((l.stats().queue_bytes, l.stats().max_queue_bytes), (0, 15_000));
    // Without a buffer, an idle link still carries one packet at a time.
    let mut l = link("rate=12mbit queue=0B");
    assert_eq!(burst(&mut l, ms(0), 3), 1);
    assert_eq!(burst(&mut l, ms(1), 3), 1);
}

#[test]
fn policer_drops_packets_above_its_rate_without_queueing() {
    let mut l = link("rate=100mbit queue=1MiB police=12mbit(15000B)");
    assert_eq!(burst(&mut l, ms(0), 20), 10);
    assert_eq!(l.send(ms(0), numbered(SIZE, 99)), Verdict::Dropped(DropReason::QueueFull));
    // A packet of 1500 bytes each millisecond.
    assert_eq!(burst(&mut l, ms(5), 20), 5);
    assert_eq!((l.stats().dropped_queue, drain(&mut l).len()), (26, 15));
}

#[test]
fn ect1_has_its_own_threshold_or_uses_the_common_one() {
    let marks = |spec: &str, ecn| {
        let mut l = link(spec);
        (0..20).for_each(|i| assert_eq!(l.send(ms(0), Packet { ecn, ..numbered(SIZE, i) }), Verdict::Queued));
        drain(&mut l).iter().filter(|d| d.ecn == Ecn::Ce).count()
    };
    // One packet is being sent; those behind three, or nine, others are marked.
    let both = "rate=12mbit queue=1MiB ecn=13500B ecn1=4500B";
    assert_eq!((marks(both, Ecn::Ect0), marks(both, Ecn::Ect1)), (9, 15));
    let one = "rate=12mbit queue=1MiB ecn=13500B";
    assert_eq!((marks(one, Ecn::Ect0), marks(one, Ecn::Ect1)), (9, 9));
    assert_eq!(marks(both, Ecn::NotEct), 0);
}

#[test]
fn ecn_handling_changes_the_field_as_configured() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    let passes = |path: &str| {
        let mut l = link(&format!("delay=1ms ect={path}"));
        let all = [NotEct, Ect0, Ect1, Ce];
        let entered = all.map(|ecn| l.send(ms(0), Packet { ecn, ..numbered(SIZE, 0) }));
        let dropped = entered.iter().filter(|v| **v == Verdict::Dropped(DropReason::Ect)).count() as u64;
        assert_eq!(l.stats().dropped(), dropped);
        drain(&mut l).iter().map(|d| d.ecn).collect::<Vec<_>>()
    };
    assert_eq!(passes("pass"), [NotEct, Ect0, Ect1, Ce]);
    assert_eq!(passes("bleach"), [NotEct; 4]);
    assert_eq!(passes("drop"), [NotEct]);
    assert_eq!(passes("ect0"), [NotEct, Ect0, Ect0, Ce]);
    assert_eq!(passes("ect1"), [NotEct, Ect1, Ect1, Ce]);
    assert_eq!(passes("ce"), [NotEct, Ce, Ce, Ce]);
}

#[test]
fn telemetry_is_stamped_only_while_enabled() {
    use base::telemetry::{hops, lead_len, put_lead, split};
    // 1 ms a packet; on from 2.5 ms, off from 4.5 ms.
    let mut l = link("rate=12mbit queue=1MiB delay=5ms at=2500us:telemetry=on at=4500us:telemetry=off");
    l.set_hop_id(7);
    for i in 0..6u64 {
        let mut payload = vec![0; lead_len(2)];
        put_lead(&mut payload);
        payload.extend_from_slice(&i.to_be_bytes());
        assert_eq!(l.send(ms(0), Packet { payload, ..numbered(SIZE, i) }), Verdict::Queued);
    }
    let told: Vec<_> = drain(&mut l)
        .iter_mut()
        .map(|d| hops(split(&mut d.payload).unwrap().0).unwrap().collect::<Vec<_>>())
        .collect();
    let hop = |n: u64| {
        let rate = Rate::from_mbit(12);
        // The packet being sent next no longer counts as waiting.
        vec![Hop { id: 7, at: ms(n), queue: (5 - n) * SIZE, sent: n * SIZE, rate }]
    };
    assert_eq!(told, [vec![], vec![], hop(3), hop(4), vec![], vec![]]);
}

#[test]
fn only_ecn_capable_packets_above_the_threshold_are_marked() {
    let mut l = link("rate=12mbit queue=1MiB ecn=3000B");
    for i in 0..8 {
        let ecn = if i % 2 == 0 { Ecn::Ect0 } else { Ecn::NotEct };
        assert_eq!(l.send(ms(0), Packet { ecn, ..numbered(SIZE, i) }), Verdict::Queued);
    }
    let ecn: Vec<Ecn> = drain(&mut l).iter().map(|d| d.ecn).collect();
    // Packet 3 finds 3000 bytes queued, which is not above; packet 4 finds 4500.
    let expected =
        [Ecn::Ect0, Ecn::NotEct, Ecn::Ect0, Ecn::NotEct, Ecn::Ce, Ecn::NotEct, Ecn::Ce, Ecn::NotEct];
    assert_eq!(ecn, expected);
    assert_eq!(l.stats().marked, 2);
}

#[test]
fn marking_probability_grows_linearly_with_the_queue() {
    const N: u64 = 100_000;
    // The queue is the same for every arrival: one packet leaves and one arrives each millisecond.
    let share = |waiting: u64| {
        let mut l = link("rate=12mbit queue=1MiB ecn=3000B..30000B(40%)");
        let capable = |i| Packet { ecn: Ecn::Ect0, ..numbered(SIZE, i) };
        (0..waiting + 1).for_each(|i| {
            assert_eq!(l.send(ms(0), Packet { ecn: Ecn::NotEct, ..capable(i) }), Verdict::Queued)
        });
        for i in 1..=N {
            assert_eq!(l.send(ms(i), capable(i)), Verdict::Queued);
            while l.poll(ms(i)).is_some() {}
        }
        l.stats().marked as f64 / N as f64
    };
    assert_eq!([share(3), share(22)], [0.0, 1.0]);
    for (waiting, expected) in [(3, 0.4 / 18.0), (11, 0.2), (20, 0.4)] {
        let measured = share(waiting + 1);
        assert!((measured / expected - 1.0).abs() < 0.1, "{waiting}: {measured}, expected {expected}");
    }
}

#[test]
fn packets_above_the_mtu_are_dropped() {
    let mut l = link("mtu=1500B");
    assert_eq!(l.send(ms(0), numbered(1501, 0)), Verdict::Dropped(DropReason::Mtu));
    assert_eq!(l.send(ms(0), numbered(1500, 0)), Verdict::Queued);
    assert_eq!(l.stats().dropped_mtu, 1);
}

#[test]
fn black_out_drops_packets_entering_the_link_and_leaving_the_queue() {
    // 1 ms a packet. Black-out from 3 ms up to, not including, 6 ms.
    let mut l = link("rate=12mbit delay=20ms at=3ms:blackout=3ms");
    assert_eq!(burst(&mut l, ms(0), 8), 8);
    assert_eq!(l.send(ms(3), numbered(SIZE, 90)), Verdict::Dropped(DropReason::BlackOut));
    assert_eq!(
        l.send(Time::from_nanos(5_999_999), numbered(SIZE, 91)),
        Verdict::Dropped(DropReason::BlackOut)
    );
    assert_eq!(l.send(ms(6), numbered(SIZE, 92)), Verdict::Queued);
    // Packet n leaves at n + 1 ms; the one that leaves as the black-out begins is dropped.
    let arrived: Vec<u64> = drain(&mut l).iter().map(number).collect();
    assert_eq!(arrived, [0, 1, 2, 5, 6, 7, 92]);
    assert_eq!(l.stats().dropped_black_out, 4);
}

#[test]
fn scheduled_changes_apply_at_their_times() {
    let spec = "rate=12mbit delay=10ms at=2ms:rate=24mbit at=4ms:delay=5ms at=5ms:loss=100%";
    let mut l = link(spec);
    assert_eq!(burst(&mut l, ms(0), 7), 7);
    let at: Vec<u64> = drain(&mut l).iter().map(|d| d.time.as_nanos() / 1_000).collect();
    // Two packets at 1 ms each, then half a ms each. The shorter delay must not let packets overtake.
    assert_eq!(at, [11_000, 12_000, 12_500, 13_000, 13_500, 14_000, 14_000]);
    assert_eq!(l.send(ms(15), numbered(SIZE, 9)), Verdict::Dropped(DropReason::Loss));
    assert_eq!(l.config().rate, Some(Rate::from_mbit(24)));
}

#[test]
fn packets_on_a_shorter_path_overtake() {
    let mut l = link("delay=50ms at=10ms:path=20ms");
    assert_eq!(l.send(ms(9), numbered(SIZE, 1)), Verdict::Queued);
    assert_eq!(l.send(ms(10), numbered(SIZE, 2)), Verdict::Queued);
    let order: Vec<_> = drain(&mut l).iter().map(|d| (number(d), d.time)).collect();
    assert_eq!(order, [(2, ms(30)), (1, ms(59))]);
}

#[test]
fn zero_rate_holds_packets_until_it_changes() {
    let mut l = link("rate=0bit delay=1ms");
    assert_eq!(burst(&mut l, ms(0), 3), 3);
    assert_eq!((l.poll(ms(1000)), l.next_delivery()), (None, None));
    l.set_config(ms(1000), config("rate=12mbit delay=1ms"));
    assert_eq!(drain(&mut l).last().map(|d| d.time), Some(ms(1004)));
}

#[test]
fn rate_change_applies_to_the_packet_being_sent() {
    let mut l = link("rate=12mbit delay=10ms");
    assert_eq!(burst(&mut l, ms(0), 3), 3);
    // Half of the first packet is out; the other half and the rest go at double the rate.
    l.set_config(Time::from_nanos(500_000), config("rate=24mbit delay=10ms"));
    let at: Vec<u64> = drain(&mut l).iter().map(|d| d.time.as_nanos() / 1_000).collect();
    assert_eq!(at, [10_750, 11_250, 11_750]);
    // Without a rate, all queued packets leave at once.
    let mut l = link("rate=12mbit delay=10ms");
    assert_eq!(burst(&mut l, ms(0), 3), 3);
    l.set_config(ms(1), config("delay=10ms"));
    assert!(drain(&mut l).iter().map(|d| d.time).eq([ms(11); 3]));
    assert_eq!(l.stats().queue_bytes, 0);
}

#[test]
fn lower_queue_limit_keeps_queued_packets() {
    let mut l = link("rate=12mbit queue=1MiB");
    assert_eq!(burst(&mut l, ms(0), 10), 10);
    l.set_config(ms(0), config("rate=12mbit queue=3000B"));
    assert_eq!(burst(&mut l, ms(0), 1), 0);
    assert_eq!(burst(&mut l, ms(8), 3), 1, "two wait below the new limit once one of three has room");
    assert_eq!(drain(&mut l).len(), 11);
}

#[test]
fn past_changes_apply_at_once_and_in_order() {
    let mut l = link("delay=1ms");
    assert_eq!(l.poll(ms(100)), None);
    l.set_config(ms(100), config("at=20ms:delay=7ms at=10ms:delay=3ms at=50ms:blackout=60ms"));
    assert_eq!(l.send(ms(109), numbered(SIZE, 0)), Verdict::Dropped(DropReason::BlackOut));
    assert_eq!(l.send(ms(110), numbered(SIZE, 0)), Verdict::Queued);
    assert_eq!(l.next_delivery(), Some(ms(117)));
}

#[test]
fn loss_has_the_configured_frequency() {
    for (spec, mean) in
        [("loss=0.1%", 0.001), ("loss=2%", 0.02), ("loss=burst(p=1%,r=25%,bad=50%)", 0.019_230_8)]
    {
        let mut l = link(spec);
        const N: u64 = 1_000_000;
        for i in 0..N {
            let _ = l.send(Time::from_nanos(i), numbered(SIZE, i));
            while l.poll(Time::from_nanos(i)).is_some() {}
        }
        let measured = l.stats().dropped_loss as f64 / N as f64;
        // The seed is fixed; 10 % is over three standard deviations of each case.
        assert!((measured / mean - 1.0).abs() < 0.1, "{spec}: {measured}");
    }
}

#[test]
fn duplicates_corruption_and_late_packets_are_marked_and_counted() {
    let mut l = link("delay=1ms duplicate=10% corrupt=5% reorder=2%(3ms)");
    const N: u64 = 100_000;
    for i in 0..N {
        assert_eq!(l.send(Time::from_nanos(i * 1000), numbered(SIZE, i)), Verdict::Queued);
    }
    let (out, s) = (drain(&mut l), l.stats());
    assert_eq!(out.len() as u64, N + s.duplicated);
    assert_eq!(out.iter().filter(|d| d.duplicate).count() as u64, s.duplicated);
    // A corrupted packet counts once; its copy, if any, has the same damage.
    assert_eq!(out.iter().filter(|d| d.corrupted && !d.duplicate).count() as u64, s.corrupted);
    assert!(out.windows(2).all(|w| w[0].time <= w[1].time));
    let overtaken =
        out.windows(2).filter(|w| !w[0].corrupted && !w[1].corrupted && number(&w[0]) > number(&w[1]));
    assert!(overtaken.count() > 1000);
    for (n, p) in [(s.duplicated, 0.1), (s.corrupted, 0.05), (s.reordered, 0.02 * 1.1)] {
        assert!((n as f64 / N as f64 / p - 1.0).abs() < 0.1, "{n} of {N}, expected {p}");
    }
}

#[test]
fn jitter_has_the_configured_mean_and_limits() {
    for (spec, least, most, deviation) in
        [("jitter=4ms", 16.0, 24.0, 4.0 / 3f64.sqrt()), ("jitter=normal(2ms)", 12.0, 28.0, 2.0)]
    {
        let mut l = link(&format!("delay=20ms order=free {spec}"));
        const N: u64 = 50_000;
        let delays: Vec<f64> = (0..N)
            .map(|i| {
                let sent = ms(i * 100);
                assert_eq!(l.send(sent, numbered(SIZE, i)), Verdict::Queued);
                drain(&mut l)[0].time.since(sent).as_secs_f64() * 1e3
            })
            .collect();
        let mean = delays.iter().sum::<f64>() / N as f64;
        let variance = delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / N as f64;
        assert!(delays.iter().all(|d| (least..=most).contains(d)), "{spec}");
        assert!(
            (mean - 20.0).abs() < 0.1 && (variance.sqrt() / deviation - 1.0).abs() < 0.02,
            "{spec}: {mean}"
        );
    }
}

#[test]
fn extreme_sizes_and_times_do_not_overflow() {
    let mut l = link("rate=8bit delay=1s queue=1GiB");
    l.set_config(ms(0), LinkConfig { queue: u64::MAX, delay: Span::MAX, ..config("rate=8bit") });
    for at in [Time::ZERO, Time::MAX, ms(3)] {
        for bytes in [0, u64::MAX, 1] {
            let _ = l.send(at, numbered(bytes, 0));
        }
        let _ = (l.poll(at), l.next_delivery());
    }
    assert!(l.stats().queue_bytes > 0);
}

/// One step of a driver.
#[derive(Clone, Debug)]
enum Step {
    Send { after: u64, bytes: u64, ect: bool },
    Poll { after: u64 },
    Reconfigure { to: usize },
}

/// Configurations with each part of the model, alone and together.
fn configs() -> Vec<LinkConfig> {
    let half = Probability::new(0.3).unwrap();
    let all = LinkConfig {
        reorder: Reorder { probability: half, extra: Span::from_micros(900) },
        duplicate: half,
        corrupt: half,
        loss: Loss::Burst(BurstLoss { p: half, r: half, good_loss: Probability::ZERO, bad_loss: half }),
        ..config("rate=100mbit delay=300us jitter=200us order=free ecn=4KiB queue=20KiB mtu=2500B")
    };
    vec![
        config("rate=100mbit delay=1ms queue=9000B police=40mbit(6000B)"),
        config("rate=333mbit delay=100us queue=0B jitter=normal(90us)"),
        config("delay=2ms jitter=1ms order=free duplicate=50%"),
        config(
            "rate=1gbit queue=10KiB at=1ms:rate=0bit at=3ms:rate=50mbit at=4ms:blackout=500us at=5ms:path=1us",
        ),
        all,
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0u64..60_000, 0u64..3000, any::<bool>()).prop_map(|(after, bytes, ect)| Step::Send { after, bytes, ect }),
        4 => (0u64..400_000).prop_map(|after| Step::Poll { after }),
        1 => (0usize..5).prop_map(|to| Step::Reconfigure { to }),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Runs the steps, checks the invariants after each, and returns the deliveries.
fn run(first: usize, seed: u64, steps: &[Step]) -> Result<Vec<Delivery<Vec<u8>>>, TestCaseError> {
    let mut link: Link<Vec<u8>> = Link::new(configs()[first].clone(), Rng::from_u64(seed));
    let (mut now, mut out, mut sent) = (Time::ZERO, Vec::<Delivery<Vec<u8>>>::new(), 0);
    let mut most_queue = link.config().queue;
    for step in steps {
        match step {
            Step::Send { after, bytes, ect } => {
                now += Span::from_nanos(*after);
                let ecn = if *ect { Ecn::Ect1 } else { Ecn::NotEct };
                let _ = link.send(now, Packet { ecn, ..numbered(*bytes, sent) });
                sent += 1;
            }
            Step::Poll { after } => {
                now += Span::from_nanos(*after);
                let promised = link.next_delivery();
                while let Some(d) = link.poll(now) {
                    prop_assert!(d.time <= now && promised.is_some_and(|p| p <= d.time));
                    out.push(d);
                }
                prop_assert!(link.next_delivery().is_none_or(|at| at > now));
            }
            Step::Reconfigure { to } => {
                let config = configs()[*to].clone();
                most_queue = most_queue.max(config.queue);
                link.set_config(now, config);
            }
        }
        let s = link.stats();
        prop_assert_eq!(s.sent + s.duplicated, s.delivered + s.dropped() + s.in_link);
        prop_assert_eq!(s.sent, sent);
        prop_assert!(s.max_queue_bytes <= most_queue && s.queue_bytes <= s.max_queue_bytes);
    }
    prop_assert!(out.windows(2).all(|w| w[0].time <= w[1].time));
    Ok(out)
}

proptest! {
    #[test]
    fn packets_are_conserved_and_equal_seeds_give_equal_runs(
        first in 0usize..5, seed in any::<u64>(), steps in steps()
    ) {
        prop_assert_eq!(run(first, seed, &steps)?, run(first, seed, &steps)?);
    }

    #[test]
    fn without_reordering_packets_arrive_in_order(seed in any::<u64>(), jitter in any_jitter(), steps in steps()) {
        let config = LinkConfig { jitter, ..config("rate=200mbit delay=300us queue=64KiB loss=5% duplicate=5%") };
        let mut link: Link<Vec<u8>> = Link::new(config, Rng::from_u64(seed));
        let (mut now, mut sent, mut numbers) = (Time::ZERO, 0, Vec::new());
        for step in steps {
            if let Step::Send { after, bytes, .. } = step {
                now += Span::from_nanos(after);
                let _ = link.send(now, numbered(bytes, sent));
                sent += 1;
            }
            while let Some(d) = link.poll(now) {
                numbers.push(number(&d));
            }
        }
        numbers.extend(drain(&mut link).iter().map(number));
        prop_assert!(numbers.is_sorted());
        prop_assert_eq!(numbers.len() as u64, link.stats().delivered);
    }
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    let span = || (0u64..2_000_000).prop_map(Span::from_nanos);
    prop_oneof![span().prop_map(Jitter::Uniform), span().prop_map(Jitter::Normal)]
}
