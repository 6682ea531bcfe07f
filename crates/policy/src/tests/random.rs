//! Properties over random policies: no text panics, printing is reversible, and unreachable rules never match.

use super::*;
use crate::Spec;
use crate::read::Reader;
use proptest::prelude::*;

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(all).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = String> {
    one_of(&[
        "destination = \"10.0.0.0/8\"",
        "destination = [\"10.0.0.0/9\", \"10.128.0.0/10\"]",
        "destination = \"10.192.0.0/10\"",
        "source = \"10.0.0.1\"",
        "dscp = [\"EF\", 1, \"telephony\"]",
        "dscp = \"CS1\"",
        "destination_port = [\"1-99\", 443]",
        "source_port = \"100-65535\"",
        "carrier = [\"tcp\", \"roce\"]",
        "carrier = \"native\"",
        "application = \"back*\"",
        "application = [\"backup\", \"que?y\"]",
        "qos = [\"latency\", \"bulk\"]",
        "priority = [6, \"1-2\"]",
        "path = \"wan\"",
        "path = [\"wan\", \"lan\"]",
    ])
}

fn setting() -> impl Strategy<Value = String> {
    one_of(&[
        "algorithm = \"bbr\"",
        "algorithm = \"ledbat++:target=40ms\"",
        "fallback = \"cubic\"",
        "class = \"latency\"",
        "class = \"mine\"",
        "weight = 7",
        "cap = \"12.345M\"",
        "guarantee = \"64k\"",
        "allow_override = true",
        "cc_allow = [\"bbr\", \"reno\"]",
        "cc_allow = \"none\"",
        "peer_cc = [\"cubic:hystart=off\", \"vegas\"]",
        "peer_cc_refuse = \"bbr\"",
        "cc_prefer_own = true",
    ])
}

fn keys(of: impl Strategy<Value = String>, n: usize) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(of, 0..n).prop_map(|mut v| {
        v.sort();
        v.dedup_by_key(|k| k.split('=').next().map(str::to_owned));
        v
    })
}

/// Texts most of which are valid policies.
fn policies() -> impl Strategy<Value = String> {
    let rule = (keys(condition(), 4), keys(setting(), 4), proptest::bool::ANY);
    (proptest::collection::vec(rule, 0..7), keys(setting(), 5), keys(setting(), 5)).prop_map(|(rules, default, bulk)| {
        let mut text = "[process]\nrate = \"2.5G\"\n[dscp]\nAF11 = \"latency\"\n[[class]]\nname = \"mine\"\nparent = \"bulk\"\n\
                        [path.wan]\ndestination = \"10.0.0.0/7\"\n[path.lan]\nsource = \"fd00::/8\"\ninterface = \"eth0\"\n"
            .to_owned();
        text += &format!("[default]\n{}\n[qos.bulk]\n{}\n", default.join("\n"), bulk.join("\n"));
        for (i, (when, then, treat)) in rules.iter().enumerate() {
            let treat = if *treat { "qos = \"scavenger\"" } else { "" };
            let when = when.join(", ");
            text += &format!("[[rule]]\nname = \"r\\\"{i}\"\nmatch = {{ {when} }}\n{treat}\n{}\n", then.join("\n"));
        }
        text
    })
}

fn flows() -> impl Strategy<Value = String> {
    let parts = (
        one_of(&["10.0.0.1:50", "10.9.9.9:500", "11.0.0.1:70", "8.8.8.8:70"]),
        one_of(&["10.0.0.1:50", "10.200.1.1:443", "10.130.0.1:99", "11.0.0.1:1", "9.9.9.9:443"]),
        one_of(&["EF", "CS1", "0", "AF11"]),
        one_of(&["native", "tcp", "roce"]),
        one_of(&["backup", "back", "query", "web"]),
        one_of(&["ordinary", "latency", "bulk", "target(1M)"]),
    );
    parts.prop_map(|(from, to, dscp, carrier, app, qos)| {
        format!("{from}->{to} dscp={dscp} carrier={carrier} app={app} qos={qos}")
    })
}

fn spec(text: &str) -> Spec {
    let mut r = Reader::new(text, false);
    let spec = crate::read::spec(text, &mut r);
    assert!(r.problems.list.is_empty(), "{text}\n{}", r.problems);
    spec
}

proptest! {
    #[test]
    fn reader_accepts_arbitrary_text_without_panic(text in "(\\PC|\n){0,200}") {
        let _ = Policy::read(&text);
    }

    #[test]
    fn reader_accepts_mutated_policies_without_panic(text in policies(), at in any::<prop::sample::Index>(), to in "[\\[\\]{}=\",.#\n a-z0-9]{0,3}") {
        let mut at = at.index(text.len());
        while !text.is_char_boundary(at) { at -= 1; }
        let changed = format!("{}{to}{}", &text[..at], &text[at..]);
        match Policy::read(&changed) {
            Ok((p, _)) => { let _ = explain(&p, "1.1.1.1->2.2.2.2"); }
            Err(p) => {
                let lines = changed.lines().count() + 1;
                prop_assert!(p.list.iter().all(|p| (1..=lines).contains(&p.line)), "{p}");
            }
        }
    }

    #[test]
    fn printed_policy_parses_to_the_same(text in policies()) {
        let read = spec(&text);
        let printed = read.to_string();
        prop_assert_eq!(&spec(&printed), &read, "{}", printed);
        prop_assert_eq!(spec(&printed).to_string(), printed);
    }

    #[test]
    fn unreachable_rules_never_match_and_choices_agree_with_explanations(
        text in policies(),
        flows in proptest::collection::vec(flows(), 1..40),
    ) {
        match Policy::read(&text) {
            Ok((policy, _)) => for flow in flows {
                let (c, e) = (choose(&policy, &flow), explain(&policy, &flow));
                prop_assert_eq!(e.rule.map_or(String::new(), |r| r.name), c.rule);
                for p in e.unmatched_rules {
                    prop_assert!(!p.reasons.is_empty(), "{} {}", flow, p.name);
                }
                prop_assert!(c.class < policy.classes().len());
            },
            Err(p) => {
                // Removing the unreachable rules changes no choice.
                let never = |name: &str| {
                    let begins = format!("rule {} is never", crate::problem::quote(name));
                    p.list.iter().any(|p| p.message.starts_with(&begins))
                };
                let mut less = spec(&text);
                less.rules.retain(|r| !never(&r.name.value));
                if let Ok((policy, _)) = Policy::read(&less.to_string()) {
                    for flow in flows {
                        let chosen = choose(&policy, &flow).rule;
                        let all = spec(&text);
                        let first = all.rules.iter().find(|r| {
                            let t = parse_flow(&flow).unwrap();
                            crate::check::regions(&r.when, &all.paths).iter().any(|x| x.contains(&policy.point(&t)))
                        });
                        prop_assert_eq!(first.map_or("", |r| r.name.value.as_str()), chosen);
                    }
                }
            }
        }
    }
}
