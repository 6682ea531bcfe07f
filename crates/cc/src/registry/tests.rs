use super::*;
use base::{Rate, Span};

fn info() -> PathInfo {
    PathInfo { packet_bytes: 1500, handshake_rtt: None, ecn: false, known_rate: None, remembered: None }
}

#[test]
fn every_algorithm_is_made_by_its_name() {
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
fn selections_are_read() {
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
fn mistakes_are_named_with_the_way_out() {
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
fn parameters_of_one_do_not_make_another() {
    let (_, params) = parse("bbr:probe_rtt=off").unwrap();
    let e = create("reno", &params, &info(), Rng::from_u64(1)).unwrap_err();
    assert_eq!(e, Error::WrongAlgorithm { name: "reno", theirs: "bbr" });
}
