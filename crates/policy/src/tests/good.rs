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
treat_as = "latency"
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
may_choose = false
"#;

#[test]
fn the_built_in_policy_is_right_and_maps_every_word() {
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
            assert!(cc::registry::parse(&c.algorithm).is_ok() && cc::registry::parse(&c.substitute).is_ok());
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

/// Where only the process's cap is written, the engine's admission has something to promise.
#[test]
fn a_cap_alone_leaves_room_for_guarantees_and_deadlines() {
    let p = read("[process]\ncap = \"1G\"");
    for flow in ["qos=guaranteed(200M)", "qos=deadline(1MB, 10s)", "qos=latency"] {
        let c = choose(&p, &format!("1.1.1.1->2.2.2.2 {flow}"));
        let sure = cc::engine::admission::sure_rate(p.classes(), p.process_cap(), c.class);
        assert!(sure.is_some_and(|r| r >= Rate::from_mbit(200)), "{flow}: {sure:?}");
    }
}

#[test]
fn what_makes_a_deadline_possible_is_used_from_the_start() {
    let deadline = "1.1.1.1->2.2.2.2 qos=deadline(1MB,10s)";
    let p = read(
        "[process]\ncap = \"1G\"\n[[class]]\nname = \"deadline\"\norder = \"deadline\"\nguarantee = \"700M\"",
    );
    let c = choose(&p, deadline);
    assert_eq!(c.algorithm, "haul:known_rate=700000000");
    assert!(
        c.why.iter().any(|w| w == "the rate that its class can count on is used from the first round trip")
    );
    // Not more than a flow may send, not what somebody names himself, and nothing where nothing can be counted on.
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
fn the_first_rule_that_fits_counts_and_layers_fill_in_the_rest() {
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
    // Not by that interface; not over that path; not what it asks.
    for flow in [
        "10.9.0.1->10.2.0.1 app=rsync",
        "10.1.0.1->10.3.0.1 app=rsync",
        "10.1.0.1->10.2.0.1 app=rsync qos=latency",
    ] {
        assert_eq!(choose(&p, flow).rule, "", "{flow}");
    }
    let c = choose(&p, "10.9.0.1->10.2.0.1");
    assert_eq!((class_of(&p, &c), c.algorithm.as_str(), c.weight), ("ordinary", "cubic", 100));
    // The file's code points before the built-in ones, which hold besides.
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=CS2")), "bulk");
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=CS1")), "ordinary");
    assert_eq!(class_of(&p, &choose(&p, "1.1.1.1->2.2.2.2 dscp=LE")), "scavenger");
    assert_eq!((p.process_cap(), p.clone().with_version(7).version()), (Some(Rate::from_mbit(8_000)), 7));
}

#[test]
fn parents_stand_before_their_children_and_ours_take_the_place_of_built_in_ones() {
    let p = read(
        "[[class]]\nname = \"a\"\nparent = \"b\"\n[[class]]\nname = \"b\"\nparent = \"bulk\"\n[[class]]\nname = \"bulk\"\nweight = 9",
    );
    for (i, c) in p.classes().iter().enumerate() {
        assert!(c.parent.is_none_or(|parent| parent < i), "{c:?}");
    }
    assert_eq!(p.classes().iter().filter(|c| c.name == "bulk").map(|c| c.weight).collect::<Vec<_>>(), [9]);
}

#[test]
fn applications_choose_where_they_may() {
    let p = read(HOST);
    let flow = |words: &str| choose(&p, &format!("1.1.1.1->2.2.2.2 {words}")).algorithm;
    assert_eq!(flow("cc=bbr"), "bbr");
    assert_eq!(flow("cc=bbr carrier=tcp"), "cubic");
    let named = read(
        "[[rule]]\nname = \"r\"\nmatch = { dscp = 1 }\nalgorithm = \"reno\"\n[[rule]]\nname = \"s\"\nmatch = { dscp = 2 }\nalgorithm = \"reno\"\nmay_choose = true",
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
fn guarantees_of_rules_stand_before_those_of_applications_and_caps_bound_both() {
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
fn explanations_name_the_rule_the_reasons_and_what_did_not_fit() {
    let p = read(HOST).with_interfaces(|_| vec![IpAddr::from([10, 1, 0, 1])]);
    let e = explain(&p, "10.1.0.1:9->10.2.0.1:22 app=rsync");
    assert_eq!(e.rule.as_ref().map(|r| (r.name.as_str(), r.line)), Some(("nightly", 43)));
    assert_eq!(e.class.path, "storage/backup");
    assert_eq!(e.algorithm.parameters["target"], "40ms");
    assert_eq!(e.passed_over.len(), 1);
    assert_eq!(
        e.passed_over[0].because,
        ["destination_port is 22, not \"4460-4469\"", "application is \"rsync\", not \"query*\"",]
    );
    // Classes of level 0 to 2 send everything; the backup is left its guarantee.
    assert_eq!(
        e.share.map(|s| (s.of, s.class_when_all_send, s.alone)),
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
    let because: Vec<_> = e.passed_over.iter().flat_map(|p| &p.because).collect();
    assert_eq!(because[1], "carrier is roce, not \"native\"");
    assert!(because[3].contains("10.9.0.1 is not known as an address of wan0"), "{because:?}");
    assert_eq!(because[4], "carrier is roce, not \"tcp\"");
    let json = serde_json::to_value(&e).unwrap();
    assert_eq!(json["algorithm"]["name"], "cubic");
    assert!(explain(&Policy::built_in(), "1.1.1.1->2.2.2.2").to_string().contains("the process has no cap"));
}

#[test]
fn what_is_settled_with_the_other_end_is_said_and_explained() {
    let p = read(
        r#"
[default]
cc_refuse = ["vegas", "ledbat++"]
cc_firm = true

[qos.bulk]
cc_allow = "none"
cc_refuse = "copa"

[[rule]]
name = "site"
match = { destination = "10.0.0.0/8" }
cc_wish = ["cubic:hystart=off", "reno", "vegas"]
cc_wish_only = true
cc_allow = ["bbr", "cubic"]
"#,
    );
    let rest = choose(&p, "1.1.1.1->2.2.2.2").peer;
    assert_eq!((rest.firm, rest.wish, rest.allow), (Some(true), None, None));
    assert_eq!(rest.refuse, ["vegas", "ledbat++"]);
    let bulk = choose(&p, "1.1.1.1->2.2.2.2 qos=bulk").peer;
    assert_eq!((bulk.allow, bulk.refuse), (Some(vec![]), vec!["copa".to_owned()]));
    let site = choose(&p, "1.1.1.1->10.2.2.2").peer;
    // What another layer refuses is wished no more.
    assert_eq!(site.wish, Some(vec!["cubic:hystart=off".to_owned(), "reno".into()]));
    assert!(site.wish_only && site.may_wish("cubic") && !site.may_wish("bbr") && !site.may_wish("vegas"));
    assert!(site.allows("bbr:probe_rtt=off") && !site.allows("reno"));
    let e = explain(&p, "1.1.1.1->10.2.2.2");
    let text = e.to_string();
    for words in [
        "other end   its wishes go behind this end's order; may wish bbr, cubic; is to send with nothing but \
         cubic:hystart=off, reno; must not send with vegas, ledbat++\n",
        "rule \"site\" lets the other end have this one send with bbr, cubic",
        "[default] refuses that the other end sends with vegas, ledbat++",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let json = serde_json::to_value(&e).unwrap();
    assert_eq!(json["peer"]["wish"][1], "reno");
    assert!(!explain(&read(""), "1.1.1.1->2.2.2.2").to_string().contains("other end"));
}
