use super::*;
use base::{Rate, Span};

fn info() -> PathInfo {
    PathInfo { packet_bytes: 1500, handshake_rtt: None, ecn: false, known_rate: None, remembered: None }
}

#[test]
fn every_algorithm_is_created_by_name() {
    assert_eq!(names()[0], DEFAULT);
    for def in list() {
        let made = create(def.name, &Params::default(), &info(), Rng::from_u64(1)).unwrap();
        assert_eq!(made.name(), def.name);
        assert!(help().contains(def.summary));
        for p in def.params {
            assert!(help().contains(p.name));
        }
    }
}

#[test]
fn selections_are_parsed() {
    let (def, params) = parse("fixed: rate=2.5G, breaker=12.5%").unwrap();
    assert_eq!(def.name, "fixed");
    assert_eq!(params.get("rate"), Some(Value::Rate(Some(Rate::from_mbit(2_500)))));
    assert_eq!(params.get("breaker"), Some(Value::Share(12_500)));
    let (_, params) = parse("bbr:probe_rtt=off,probe_interval=1.5s").unwrap();
    assert_eq!(params.get("probe_rtt"), Some(Value::Switch(false)));
    assert_eq!(params.get("probe_interval"), Some(Value::Span(Span::from_millis(1_500))));
    assert_eq!(parse("reno").unwrap().1.get("initial_window"), None);
}

#[test]
fn errors_name_the_mistake_and_the_remedy() {
    let text = |t: &str| parse(t).unwrap_err().to_string();
    assert!(text("bbrr").contains("choose one of: haul"));
    assert!(text("bbr:colour=red").contains("it has: "));
    assert!(text("bbr:probe_rtt=maybe").contains("on|off"));
    assert!(text("bbr:probe_rtt").contains("key=value"));
    assert!(text("fixed:rate=0").contains("bit/s"));
    assert!(text("fixed:rate=1..5G").contains("not valid"));
    assert!(text("fixed:breaker=20").contains('%'));
    assert!(text(&format!("bbr:{}", "x".repeat(MAX_TEXT + 1))).contains("at most"));
    assert!(text("reno:initial_window=99999999999999999999999").contains("packets"));
}

#[test]
fn parameters_of_another_algorithm_are_refused() {
    let (_, params) = parse("bbr:probe_rtt=off").unwrap();
    let e = create("reno", &params, &info(), Rng::from_u64(1)).unwrap_err();
    assert_eq!(e, Error::WrongAlgorithm { name: "reno", theirs: "bbr" });
}

fn loading(name: &str) -> Loading<'_> {
    Loading {
        name,
        summary: "one for this test",
        params: vec![ParamDef {
            name: intern("gain").unwrap(),
            help: intern("how much").unwrap(),
            kind: Kind::Count { unit: "", min: 1, max: 9, default: 3 },
        }],
        needs: Needs::NOTHING,
        code: "c0de",
        build: Box::new(|p, info, rng| {
            assert_eq!(p.get("gain"), Some(Value::Count(4)));
            create("reno", &Params::default(), info, rng).unwrap()
        }),
    }
}

#[test]
fn algorithms_are_loaded_replaced_and_unloaded() {
    let long = "x".repeat(MAX_NAME + 1);
    for bad in ["", "Reno", "9lives", "a b", "reno", &long] {
        assert!(matches!(load(loading(bad)), Err(Error::BadName { .. })), "{bad}");
    }
    for (taken, why) in [("cubic", "is built in"), ("htcp", "Linux kernel"), (&long, "15 at most")] {
        let e = check_name(taken).unwrap_err().to_string();
        assert!(e.contains("cannot call a program") && e.contains(why), "{e}");
    }
    assert_eq!(check_name(&"x".repeat(MAX_NAME)), Ok(()));
    let first = load(loading("of-the-test")).unwrap();
    let second = load(loading("of-the-test")).unwrap();
    assert!(!core::ptr::eq(first, second) && core::ptr::eq(first.name, second.name));
    assert_eq!(list().iter().filter(|d| d.name == "of-the-test").count(), 1);
    assert!(parse("of-the-test:gain=10").is_err());
    let (def, params) = parse("of-the-test:gain=4").unwrap();
    assert_eq!(create(def.name, &params, &info(), Rng::from_u64(1)).unwrap().name(), "reno");
    assert_eq!(def.code, "c0de");
    assert!(unload("of-the-test") && !unload("of-the-test") && !unload("reno"));
    assert!(matches!(parse("of-the-test"), Err(Error::UnknownAlgorithm { .. })));
    // A flow that runs it may create another one of it for a further path.
    assert_eq!(def.make(&params, &info(), Rng::from_u64(1)).name(), "reno");
}

#[test]
fn versions_differ_where_parameters_do() {
    let mut all: Vec<u32> = list().iter().map(|d| d.version()).collect();
    let n = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), n);
    let cubic = *find("cubic").unwrap();
    assert_eq!(Definition { summary: "another line", ..cubic }.version(), cubic.version());
    assert_ne!(Definition { params: &cubic.params[1..], ..cubic }.version(), cubic.version());
    let needs = Needs { telemetry: true, ..cubic.needs };
    assert_ne!(Definition { needs, ..cubic }.version(), cubic.version());
}

#[test]
fn preference_lists_are_split_into_selections() {
    let is = |text: &str, all: &[&str]| assert_eq!(preferences(text), all, "{text}");
    is("haul", &["haul"]);
    is("haul,cubic:hystart=off", &["haul", "cubic:hystart=off"]);
    is(
        "cubic:hystart=off,initial_window=20, reno ,fixed:rate=1G",
        &["cubic:hystart=off,initial_window=20", "reno", "fixed:rate=1G"],
    );
    is("", &[""]);
    is("haul,", &["haul", ""]);
    is("beta=1", &["beta=1"]);
}
