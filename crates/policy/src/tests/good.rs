use super::*;
use crate::BUILT_IN;
use base::Rate;
use cc::platform::Order;
use std::net::IpAddr;

const HOST: &str = r#"
[process]
rate = "10G"
cap = "8G"

[default]
algorithm = "cubic"

[qos.latency]
weight = 300

[dscp]
CS2 = "bulk"
CS1 = "ordinary"

[path.wan]
destination = ["10.2.0.0/16", "fd00:2::/32"]
interface = "wan0"

[[class]]
name = "storage"
level = 2
weight = 300
cap = "6G"

[[class]]
name = "backup"
parent = "storage"
level = 5
guarantee = "500M"

[[class]]
name = "query"
parent = "storage"
level = 0

[[rule]]
name = "queries"
match = { carrier = "native", destination_port = "4460-4469", application = "query*" }
qos = "latency"
class = "query"

[[rule]]
name = "nightly"
match = { carrier = ["native", "roce"], path = "wan", application = ["backup*", "rsync"], qos = ["ordinary", "bulk"] }
algorithm = "ledbat++:target=40ms"
class = "backup"
cap = "2G"
weight = 7

[[rule]]
name = "kernel"
match = { carrier = "tcp" }
allow_override = false
"#;

#[test]
fn built_in_policy_is_valid_and_maps_every_qos_kind() {
    let p = read(BUILT_IN);
    let built_in = Policy::built_in();
    assert_eq!(p.classes(), built_in.classes());
    for (words, class, algorithm) in [
        ("", "ordinary", "haul"),
        ("qos=latency", "latency", "copa"),
        ("qos=bulk", "bulk", "haul"),
        ("qos=deadline(1GB,30s)", "deadline", "haul"),
        ("qos=guaranteed(300M)", "guaranteed", "haul:known_rate=300000000"),
        ("qos=target(1G)", "ordinary", "haul"),
        ("qos=scavenger", "scavenger", "ledbat++"),
        ("dscp=EF", "latency", "copa"),
        ("dscp=AF11", "bulk", "haul"),
        ("dscp=CS1", "scavenger", "ledbat++"),
        ("dscp=LE", "scavenger", "ledbat++"),
        ("dscp=CS1 qos=latency", "latency", "copa"),
    ] {
        for policy in [&p, &built_in] {
            let c = choose(policy, &format!("1.1.1.1->2.2.2.2 {words}"));
            assert_eq!((class_of(policy, &c), c.algorithm.as_str()), (class, algorithm), "{words}");
            assert!(cc::registry::parse(&c.algorithm).is_ok() && cc::registry::parse(&c.fallback).is_ok());
        }
    }
    let c = choose(&p, "1.1.1.1->2.2.2.2 qos=guaranteed(300M)");
    assert_eq!((c.guarantee, c.cap), (Some(Rate::from_mbit(300)), None));
    let c = choose(&p, "1.1.1.1->2.2.2.2 qos=target(1G)");
    assert_eq!((c.guarantee, c.cap), (None, Some(Rate::from_mbit(1_000))));
    let level = |name: &str| p.classes().iter().find(|c| c.name == name).map(|c| (c.level, c.order));
    assert_eq!(level("latency"), Some((2, Order::Fair)));
    assert_eq!(level("deadline"), Some((2, Order::Deadline)));
    assert_eq!(level("scavenger"), Some((7, Order::Fair)));
}

/// A process cap alone is enough for admission to grant guarantees.
#[test]
fn process_cap_alone_allows_guarantees_and_deadlines() {
    let p = read("[process]\ncap = \"1G\"");
    for flow in ["qos=guaranteed(200M)", "qos=deadline(1MB, 10s)", "qos=latency"] {
        let c = choose(&p, &format!("1.1.1.1->2.2.2.2 {flow}"));
        let sure = cc::engine::admission::assured_rate(p.classes(), p.process_cap(), c.class);
        assert!(sure.is_some_and(|r| r >= Rate::from_mbit(200)), "{flow}: {sure:?}");
    }
}

#[test]
fn admitted_deadline_rate_is_used_from_the_start() {
    let deadline = "1.1.1.1->2.2.2.2 qos=deadline(1MB,10s)";
    let p = read(
        "[process]\ncap = \"1G\"\n[[class]]\nname = \"deadline\"\norder = \"deadline\"\nguarantee = \"700M\"",
    );
    let c = choose(&p, deadline);
    assert_eq!(c.algorithm, "haul:known_rate=700000000");
    assert!(
        c.why.iter().any(|w| w == "the rate that its class can count on is used from the first round trip")
    );
    // At most the flow's cap, not for algorithms the application names itself, and nothing where nothing is
    // guaranteed.
    for (more, algorithm) in [
        ("[qos.deadline]\ncap = \"50M\"", "haul:known_rate=50000000"),
        ("[qos.deadline]\nalgorithm = \"haul:known_rate=9M\"", "haul:known_rate=9M"),
        ("[qos.deadline]\nalgorithm = \"cubic\"", "cubic"),
    ] {
        assert_eq!(choose(&read(&format!("[process]\ncap = \"1G\"\n{more}")), deadline).algorithm, algorithm);
    }
    assert_eq!(choose(&Policy::built_in(), deadline).algorithm, "haul");
}

#[test]
fn first_matching_rule_applies_and_layers_fill_in_the_rest() {
    let p = read(HOST).with_interfaces(|name| {
        assert_eq!(name, "wan0");
        vec![IpAddr::from([10, 1, 0, 1])]
    });
    let c = choose(&p, "10.1.0.1:9->10.2.0.1:4461 app=query-7");
    assert_eq!(
        (c.rule.as_str(), class_of(&p, &c), c.algorithm.as_str(), c.weight),
        ("queries", "query", "copa", 300)
    );
    let c = choose(&p, "10.1.0.1:9->10.2.0.1:22 app=rsync");
    assert_eq!(
        (c.rule.as_str(), class_of(&p, &c), c.algorithm.as_str()),
        ("nightly", "backup", "ledbat++:target=40ms")
    );
    assert_eq!((c.cap, c.weight), (Some(Rate::from_mbit(2_000)), 7));
    // Another interface; another path; another kind of QoS.
    for flow in [
        "10.9.0.1->10.2.0.1 app=rsync",
        "10.1.0.1->10.3.0.1 app=rsync",
        "10.1.0.1->10.2.0.1 app=rsync qos=latency",
    ] {
        assert_eq!(choose(&p, flow).rule, "", "{flow}");
    }
    let c = choose(&p, "10.9.0.1->10.2.0.1");
    assert_eq!((class_of(&p, &c), c.algorithm.as_str(), c.weight), ("ordinary", "cubic", 100));
    // Code points of the file override the built-in ones, which still apply otherwise.
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=CS2")), "bulk");
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=CS1")), "ordinary");
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=LE")), "scavenger");
    assert_eq!((p.process_cap(), p.clone().with_version(7).version()), (Some(Rate::from_mbit(8_000)), 7));
}

#[test]
fn parents_come_before_children_and_own_classes_replace_built_in_ones() {
    let p = read(
        "[[class]]\nname = \"a\"\nparent = \"b\"\n[[class]]\nname = \"b\"\nparent = \"bulk\"\n[[class]]\nname = \"bulk\"\nweight = 9",
    );
    for (i, c) in p.classes().iter().enumerate() {
        assert!(c.parent.is_none_or(|parent| parent < i), "{c:?}");
    }
    assert_eq!(p.classes().iter().filter(|c| c.name == "bulk").map(|c| c.weight).collect::<Vec<_>>(), [9]);
}

#[test]
fn applications_choose_algorithms_where_allowed() {
    let p = read(HOST);
    let flow = |words: &str| choose(&p, &format!("1.1.1.1->2.2.2.2 {words}")).algorithm;
    assert_eq!(flow("cc=bbr"), "bbr");
    assert_eq!(flow("cc=bbr carrier=tcp"), "cubic");
    let named = read(
        "[[rule]]\nname = \"r\"\nmatch = { dscp = 1 }\nalgorithm = \"reno\"\n[[rule]]\nname = \"s\"\nmatch = { dscp = 2 }\nalgorithm = \"reno\"\nallow_override = true",
    );
    assert_eq!(choose(&named, "1.1.1.1->2.2.2.2 dscp=1 cc=bbr").algorithm, "reno");
    assert_eq!(choose(&named, "1.1.1.1->2.2.2.2 dscp=2 cc=bbr").algorithm, "bbr");
    let mut t = parse_flow("1.1.1.1->2.2.2.2").unwrap();
    t.asked = "gone".into();
    let c = p.choose(&t);
    assert_eq!(c.algorithm, "cubic");
    assert!(c.why.iter().any(|w| w.contains("\"gone\"")), "{:?}", c.why);
}

#[test]
fn rule_guarantees_override_those_of_applications_and_caps_bound_both() {
    let p = read(
        "[[rule]]\nname = \"r\"\nmatch = { dscp = 1 }\nguarantee = \"100M\"\n[[rule]]\nname = \"s\"\nmatch = { dscp = 2 }\ncap = \"50M\"\n",
    );
    let g = |words: &str| {
        let c = choose(&p, &format!("1.1.1.1->2.2.2.2 {words}"));
        (c.guarantee.map(|r| r.bits_per_sec() / 1_000_000), c.cap.map(|r| r.bits_per_sec() / 1_000_000))
    };
    assert_eq!(g("dscp=1 qos=guaranteed(300M)"), (Some(100), None));
    assert_eq!(g("dscp=2 qos=guaranteed(300M)"), (Some(50), Some(50)));
    assert_eq!(g("dscp=2 qos=target(300M)"), (None, Some(50)));
    assert_eq!(g("dscp=2 qos=target(30M)"), (None, Some(30)));
}

#[test]
fn explanation_names_the_rule_the_reasons_and_the_unmatched_rules() {
    let p = read(HOST).with_interfaces(|_| vec![IpAddr::from([10, 1, 0, 1])]);
    let e = explain(&p, "10.1.0.1:9->10.2.0.1:22 app=rsync");
    assert_eq!(e.rule.as_ref().map(|r| (r.name.as_str(), r.line)), Some(("nightly", 43)));
    assert_eq!(e.class.path, "storage/backup");
    assert_eq!(e.algorithm.parameters["target"], "40ms");
    assert_eq!(e.unmatched_rules.len(), 1);
    assert_eq!(
        e.unmatched_rules[0].reasons,
        ["destination_port is 22, not \"4460-4469\"", "application is \"rsync\", not \"query*\"",]
    );
    // Classes of level 0 to 2 use the whole rate; the backup keeps its guarantee.
    assert_eq!(
        e.share.map(|s| (s.process_bits_per_second, s.class_bits_per_second, s.alone_bits_per_second)),
        Some((8_000_000_000, 500_000_000, 2_000_000_000))
    );
    let text = e.to_string();
    for line in [
        "rule        \"nightly\" (line 43)",
        "algorithm   ledbat++ target=40ms: ",
        "class       storage/backup: level 5, weight 100, fair, guarantee 500.0 Mbit/s",
        "share       of 8.00 Gbit/s: its class gets 500.0 Mbit/s while every class sends, it 2.00 Gbit/s alone",
        "not matched \"queries\" (line 37): destination_port is 22, ",
        "rule \"nightly\" says algorithm ledbat++:target=40ms",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let e = explain(&p, "10.9.0.1->10.2.0.1 app=rsync carrier=roce");
    assert_eq!(e.rule, None);
    let reasons: Vec<_> = e.unmatched_rules.iter().flat_map(|p| &p.reasons).collect();
    assert_eq!(reasons[1], "carrier is roce, not \"native\"");
    assert!(reasons[3].contains("10.9.0.1 is not known as an address of wan0"), "{reasons:?}");
    assert_eq!(reasons[4], "carrier is roce, not \"tcp\"");
    let json = serde_json::to_value(&e).unwrap();
    assert_eq!(json["algorithm"]["name"], "cubic");
    assert!(explain(&Policy::built_in(), "1.1.1.1->2.2.2.2").to_string().contains("the process has no cap"));
}

#[test]
fn terms_for_the_peer_are_chosen_and_explained() {
    let p = read(
        r#"
[default]
peer_cc_refuse = ["vegas", "ledbat++"]
cc_prefer_own = true

[qos.bulk]
cc_allow = "none"
peer_cc_refuse = "copa"

[[rule]]
name = "site"
match = { destination = "10.0.0.0/8" }
peer_cc = ["cubic:hystart=off", "reno", "vegas"]
peer_cc_only = true
cc_allow = ["bbr", "cubic"]
"#,
    );
    let rest = choose(&p, "1.1.1.1->2.2.2.2").peer;
    assert_eq!((rest.prefer_own, rest.preferred, rest.allow), (Some(true), None, None));
    assert_eq!(rest.refuse, ["vegas", "ledbat++"]);
    let bulk = choose(&p, "1.1.1.1->2.2.2.2 qos=bulk").peer;
    assert_eq!((bulk.allow, bulk.refuse), (Some(vec![]), vec!["copa".to_owned()]));
    let site = choose(&p, "1.1.1.1->10.2.2.2").peer;
    // An algorithm that another layer refuses is dropped from the preferences.
    assert_eq!(site.preferred, Some(vec!["cubic:hystart=off".to_owned(), "reno".into()]));
    assert!(
        site.preferred_only
            && site.may_prefer("cubic")
            && !site.may_prefer("bbr")
            && !site.may_prefer("vegas")
    );
    assert!(site.allows("bbr:probe_rtt=off") && !site.allows("reno"));
    let e = explain(&p, "1.1.1.1->10.2.2.2");
    let text = e.to_string();
    for words in [
        "other end   its preferences go behind this end's order; may request bbr, cubic; is to send with nothing but \
         cubic:hystart=off, reno; must not send with vegas, ledbat++\n",
        "rule \"site\" lets the other end have this one send with bbr, cubic",
        "[default] refuses that the other end sends with vegas, ledbat++",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let json = serde_json::to_value(&e).unwrap();
    assert_eq!(json["peer"]["preferred"][1], "reno");
    assert!(!explain(&read(""), "1.1.1.1->2.2.2.2").to_string().contains("other end"));
}
