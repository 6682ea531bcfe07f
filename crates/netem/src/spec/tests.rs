use super::*;
use crate::Probability;
use base::Rate;
use proptest::prelude::*;

fn p(x: f64) -> Probability {
    Probability::new(x).unwrap()
}

#[test]
fn every_field_is_parsed() {
    let c = LinkConfig::parse(
        "queue=1bdp(rtt 70ms) police=50mbit(64KiB) rate=500mbit delay=35ms jitter=normal(1.5ms) order=free loss=0.1% ecn=64KiB ecn1=8KiB ect=bleach telemetry=on \
         reorder=1%(5ms) duplicate=0.01% corrupt=0.02% mtu=9000B at=10s:rate=100mbit at=1s:blackout=250ms \
         at=12s:loss=burst(p=0.1%, r=20%) at=13s:path=40ms at=14s:delay=41ms at=15s:rate=unlimited \
         at=16s:ecn=off at=16s:ecn=5KiB..200KiB(1%) at=17s:ecn1=4KiB at=18s:ect=ect1 at=19s:telemetry=off",
    )
    .unwrap();
    let burst = BurstLoss { p: p(0.001), r: p(0.2), good_loss: p(0.0), bad_loss: p(1.0) };
    let at = |s| Time::ZERO + Span::from_secs(s);
    let expected = LinkConfig {
        rate: Some(Rate::from_mbit(500)),
        queue: 4_375_000,
        police: Some(PolicerConfig { rate: Rate::from_mbit(50), burst: 64 << 10 }),
        ecn: Some(Marking::step(64 << 10)),
        ecn1: Some(Marking::step(8 << 10)),
        ect: EcnHandling::Bleach,
        telemetry: true,
        delay: Span::from_millis(35),
        jitter: Jitter::Normal(Span::from_micros(1500)),
        keep_order: false,
        loss: Loss::Independent(p(0.001)),
        reorder: Reorder { probability: p(0.01), extra: Span::from_millis(5) },
        duplicate: p(0.0001),
        corrupt: p(0.0002),
        mtu: Some(9000),
        schedule: vec![
            (at(1), Change::BlackOut(Span::from_millis(250))),
            (at(10), Change::Rate(Some(Rate::from_mbit(100)))),
            (at(12), Change::Loss(Loss::Burst(burst))),
            (at(13), Change::Path(Span::from_millis(40))),
            (at(14), Change::Delay(Span::from_millis(41))),
            (at(15), Change::Rate(None)),
            (at(16), Change::Ecn(None)),
            (at(16), Change::Ecn(Some(Marking { low: 5 << 10, high: 200 << 10, max_probability: p(0.01) }))),
            (at(17), Change::Ecn1(Some(Marking::step(4 << 10)))),
            (at(18), Change::Ect(EcnHandling::Ect1)),
            (at(19), Change::Telemetry(false)),
        ],
    };
    assert_eq!(c, expected);
    assert_eq!(LinkConfig::parse("").unwrap(), LinkConfig::default());
}

#[test]
fn queue_in_bdp_follows_rate_and_delay() {
    let queue = |text: &str| LinkConfig::parse(text).map(|c| c.queue);
    assert_eq!(queue("rate=1gbit delay=10ms queue=1bdp"), Ok(2_500_000));
    assert_eq!(queue("queue=0.5bdp delay=10ms rate=1gbit"), Ok(1_250_000));
    assert_eq!(queue("rate=1gbit delay=10ms queue=2bdp(40ms)"), Ok(10_000_000));
    assert_eq!(queue("queue=1bdp"), Err(SpecError::QueueNeedsRate));
    assert!(queue("rate=1tbit queue=99999999999bdp(rtt 100000s)").is_err());
}

#[test]
fn numbers_have_the_units_of_the_command_line() {
    let read = |text: &str| LinkConfig::parse(text).unwrap();
    assert_eq!(read("rate=20M delay=35ms queue=1MB"), read("rate=20Mbit/s delay=35MS queue=1000000B"));
    assert_eq!(read("rate=1MB/s at=2min:rate=1gbit"), read("rate=8mbit at=120s:rate=1000mbit"));
}

#[test]
fn path_mtu_defaults_to_1500_bytes() {
    let mtu = |text: &str| LinkConfig::parse_path(text).unwrap().mtu;
    assert_eq!(mtu("rate=20mbit delay=35ms"), Some(1500));
    assert_eq!((mtu("mtu=9000"), mtu("mtu=9000B"), mtu("mtu=off")), (Some(9000), Some(9000), None));
    assert_eq!((mtu("datacenter"), mtu("transatlantic loss=1%")), (Some(9000), Some(1500)));
    assert_eq!(LinkConfig::parse("rate=20mbit").unwrap().mtu, None);
}

#[test]
fn profiles_are_parsed_and_overridden_by_fields() {
    for (name, spec) in profiles::ALL {
        let c = LinkConfig::parse(name).unwrap();
        assert_eq!(c, LinkConfig::parse(spec).unwrap());
        assert_eq!(LinkConfig::parse(&c.to_string()).unwrap(), c, "{name}");
        assert!(c.rate.is_some() && !c.delay.is_zero());
    }
    let c = LinkConfig::parse("transatlantic loss=1% rate=100gbit").unwrap();
    assert_eq!((c.loss, c.delay), (Loss::Independent(p(0.01)), Span::from_millis(35)));
    assert!(matches!(LinkConfig::parse("loss=1% transatlantic"), Err(SpecError::LateProfile { .. })));
}

#[test]
fn errors_name_the_field_and_the_remedy() {
    let cases = [
        ("delay=35", "delay: cannot read `35`; write a time with its unit"),
        ("delay=-3ms", "delay: cannot read"),
        ("rate=5mb/s", "rate: cannot read `5mb/s`; write a rate with its unit, such as 500mbit"),
        ("rate=500", "rate: cannot read `500`; write a rate with its unit, such as 500mbit"),
        ("rate=999999999tbit", "rate: cannot read"),
        ("loss=0.1", "loss: cannot read `0.1`; write a percentage such as 0.1%"),
        ("loss=101%", "loss: cannot read"),
        ("loss=nan%", "loss: cannot read"),
        ("loss=burst(p=1%)", "loss: cannot read"),
        ("loss=burst(p=1%,r=1%,p=2%)", "loss: cannot read"),
        ("jitter=poisson(3ms)", "jitter: cannot read `poisson(3ms)`"),
        ("queue=5", "queue: cannot read `5`; write a size with its unit"),
        ("queue=xbdp rate=1gbit", "queue: cannot read `xbdp`"),
        ("queue=1bdp(rtt", "queue: cannot read"),
        ("reorder=1%", "reorder: cannot read `1%`; write a percentage and by how much"),
        ("order=maybe", "order: cannot read `maybe`; write `keep` or `free`"),
        ("ect=clear", "ect: cannot read `clear`; write `pass`, `bleach`"),
        ("telemetry=yes", "telemetry: cannot read `yes`; write `on` or `off`"),
        ("ecn1=3", "ecn1: cannot read `3`; write a size with its unit"),
        ("ecn=5KiB..5KiB(1%)", "ecn: cannot read `5KiB..5KiB(1%)`; write a size with its unit"),
        (
            "ecn=5KiB..9KiB",
            "where marking at random begins and ends and what it grows to, such as 5KiB..200KiB(1%)",
        ),
        ("at=1s:ect=all", "write `pass`, `bleach`"),
        ("at=10s", "at=10s: cannot read"),
        ("at=10s:mtu=5B", "write a time and a change"),
        ("speed=5", "`speed=5` is neither a field nor a profile; fields are written rate="),
        ("transatlantik", "transatlantic, transpacific"),
        ("delay=1ms delay=2ms", "delay: given twice"),
    ];
    for (text, message) in cases {
        let error = LinkConfig::parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
    let long = " ".repeat(MAX_SPEC_LEN + 1);
    assert_eq!(LinkConfig::parse(&long), Err(SpecError::TooLong(MAX_SPEC_LEN + 1)));
}

fn any_probability() -> impl Strategy<Value = Probability> {
    prop_oneof![
        Just(Probability::ZERO),
        Just(Probability::ONE),
        (0u32..=1_000_000).prop_map(|n| p(f64::from(n) / 1e6)),
        (0.0..=1.0f64).prop_map(p),
        (1e-300..1e-10f64).prop_map(p),
    ]
}
fn any_rate() -> impl Strategy<Value = Option<Rate>> {
    proptest::option::of((0u64..=u64::MAX / 8).prop_map(Rate::from_bytes_per_sec))
}
fn any_span() -> impl Strategy<Value = Span> {
    prop_oneof![any::<u64>().prop_map(Span::from_nanos), (0u64..10_000).prop_map(Span::from_millis)]
}
fn any_loss() -> impl Strategy<Value = Loss> {
    let burst = (any_probability(), any_probability(), any_probability(), any_probability());
    prop_oneof![
        any_probability().prop_map(Loss::Independent),
        burst.prop_map(|(p, r, good_loss, bad_loss)| Loss::Burst(BurstLoss { p, r, good_loss, bad_loss })),
    ]
}
fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![Just(Jitter::None), any_span().prop_map(Jitter::Uniform), any_span().prop_map(Jitter::Normal)]
}
fn any_ect() -> impl Strategy<Value = EcnHandling> {
    (0..EcnHandling::ALL.len()).prop_map(|i| EcnHandling::ALL[i])
}
fn any_marking() -> impl Strategy<Value = Option<Marking>> {
    let slope = (any::<u64>(), any::<u64>(), any_probability())
        .prop_filter_map("a slope goes up", |(a, b, most)| {
            (a != b).then(|| Marking { low: a.min(b), high: a.max(b), max_probability: most })
        });
    prop_oneof![Just(None), any::<u64>().prop_map(|b| Some(Marking::step(b))), slope.prop_map(Some)]
}
fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any_rate().prop_map(Change::Rate),
        any_span().prop_map(Change::Delay),
        any_loss().prop_map(Change::Loss),
        any_span().prop_map(Change::BlackOut),
        any_span().prop_map(Change::Path),
        any_marking().prop_map(Change::Ecn),
        any_marking().prop_map(Change::Ecn1),
        any_ect().prop_map(Change::Ect),
        any::<bool>().prop_map(Change::Telemetry),
    ]
}
fn any_police() -> impl Strategy<Value = Option<PolicerConfig>> {
    proptest::option::of((any_rate(), 1u64..)).prop_map(|p| {
        let (rate, burst) = p?;
        Some(PolicerConfig { rate: rate?, burst })
    })
}
prop_compose! {
    fn any_config()(
        (rate, queue, ecn, mtu) in (any_rate(), any::<u64>(), any_marking(), any::<Option<u64>>()),
        (delay, jitter, keep_order, loss) in (any_span(), any_jitter(), any::<bool>(), any_loss()),
        (late, extra, duplicate, corrupt) in (any_probability(), any_span(), any_probability(), any_probability()),
        (ecn1, ect, telemetry) in (any_marking(), any_ect(), any::<bool>()),
        police in any_police(),
        changes in proptest::collection::vec((any::<u64>(), any_change()), 0..4),
    ) -> LinkConfig {
        let mut schedule: Vec<_> = changes.into_iter().map(|(at, c)| (Time::from_nanos(at), c)).collect();
        schedule.sort_by_key(|(at, _)| *at);
        let reorder = Reorder { probability: late, extra };
        LinkConfig {
            rate, queue, police, ecn, ecn1, ect, telemetry, delay, jitter, keep_order, loss, reorder, duplicate, corrupt, mtu,
            schedule,
        }
    }
}

proptest! {
    #[test]
    fn displayed_config_parses_to_the_same(config in any_config()) {
        let text = config.to_string();
        prop_assert_eq!(LinkConfig::parse(&text), Ok(config), "{}", text);
    }

    #[test]
    fn parser_accepts_arbitrary_text_without_panic(text in "[a-z0-9=.,:%() eKMiB-]{0,60}", any in ".{0,60}") {
        let _ = LinkConfig::parse(&text);
        let _ = LinkConfig::parse(&any);
        for key in ["rate", "queue", "delay", "jitter", "loss", "reorder", "at", "mtu", "ect", "ecn", "police"] {
            let _ = LinkConfig::parse(&format!("{key}={text}"));
            let _ = LinkConfig::parse(&format!("rate=1gbit queue=1bdp({text})"));
        }
    }
}
