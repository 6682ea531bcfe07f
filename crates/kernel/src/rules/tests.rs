//! Tests that the program decides like the policy, by interpreting its instructions on random flows.

use super::code::{self, Action, FLOW, MapFds, Socket, act, flow};
use super::*;
use crate::asm::FRAME;
use crate::load::PSEUDO_MAP_VALUE;
use crate::sys::Insn;
use cc::platform::{Carrier, Policy as _, Qos, Traffic};
use policy::parse_flow;
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

const NOWHERE: MapFds = MapFds { constants: 3, names: 4 };
/// What no policy of these tests names, but programs may.
const ASKED: &str = "timely";

fn read(text: &str) -> Option<Policy> {
    let addresses = |_: &str| vec![IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().expect("an address")];
    Policy::read(text).ok().map(|(p, _)| p.with_interfaces(addresses))
}

/// A flow as it lies on the stack.
fn laid(t: &Traffic) -> [u8; flow::LEN as usize] {
    let mut out = [0; flow::LEN as usize];
    let mut put = |at: i16, bytes: &[u8]| out[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for (end, at) in [(t.local, flow::LOCAL), (t.remote, flow::REMOTE)] {
        let bits = match end.ip() {
            IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
            IpAddr::V6(a) => a.to_bits(),
        };
        put(at, &((bits >> 64) as u64).to_ne_bytes());
        put(at + 8, &(bits as u64).to_ne_bytes());
    }
    put(flow::LOCAL_PORT, &u32::from(t.local.port()).to_ne_bytes());
    put(flow::REMOTE_PORT, &u32::from(t.remote.port()).to_ne_bytes());
    put(flow::DSCP, &(1_u64 << t.dscp).to_ne_bytes());
    put(flow::PRIORITY, &t.priority.to_ne_bytes());
    put(flow::NAME, t.application.as_bytes());
    out
}

/// Carries the comparisons out; the number of what is to be done, if anything is.
fn decide(insns: &[Insn], start: usize, stack: &[u8]) -> Option<usize> {
    let mut r = [0_u64; 11];
    let mut at = start;
    // Every jump goes forward.
    for _ in 0..insns.len() {
        let i = insns[at];
        let (to, from) = (usize::from(i.regs & 15), usize::from(i.regs >> 4));
        let other = |r: &[u64; 11]| if i.code & 8 != 0 { r[from] } else { i64::from(i.imm) as u64 };
        at += 1;
        match i.code {
            0x61 | 0x71 | 0x79 => {
                assert_eq!(from, usize::from(FRAME));
                let len =
                    [(0x61, 4), (0x71, 1), (0x79, 8)].iter().find(|(c, _)| *c == i.code).map_or(0, |c| c.1);
                let mut bytes = [0; 8];
                bytes[..len].copy_from_slice(&stack[(i.off - FLOW) as usize..][..len]);
                r[to] = u64::from_ne_bytes(bytes);
            }
            0x18 => {
                let high = insns[at].imm as u32;
                at += 1;
                let whole = u64::from(high) << 32 | u64::from(i.imm as u32);
                r[to] = if from == usize::from(PSEUDO_MAP_VALUE) { u64::from(high) } else { whole };
            }
            0x07 | 0x0f => r[to] = r[to].wrapping_add(other(&r)),
            0x17 | 0x1f => r[to] = r[to].wrapping_sub(other(&r)),
            0x57 | 0x5f => r[to] &= other(&r),
            0xb7 | 0xbf => r[to] = other(&r),
            0x85 => return Some(r[2] as usize / act::LEN),
            0x95 => return None,
            0x05 | 0x15 | 0x1d | 0x55 | 0x5d | 0xb5 | 0xbd => {
                let is = match i.code & 0xf0 {
                    0x10 => r[to] == other(&r),
                    0x50 => r[to] != other(&r),
                    0xb0 => r[to] <= other(&r),
                    _ => true,
                };
                assert!(i.off >= 0, "jumps go forward");
                at += if is { i.off as usize } else { 0 };
            }
            code => panic!("an instruction {code:#x} among comparisons"),
        }
    }
    panic!("the comparisons do not end");
}

/// What the policy itself makes of a flow, as something to be done.
fn meant(policy: &Policy, t: &Traffic) -> Action {
    let c = policy.choose(t);
    let asks = policy.choose(&Traffic { asked: ASKED.into(), ..t.clone() });
    let outcome = Outcome {
        algorithm: c.algorithm,
        fallback: c.fallback,
        allow_override: asks.algorithm == ASKED,
        cap: c.cap,
        guarantee: c.guarantee,
        dscp: c.dscp,
    };
    Action::of(&outcome, &all)
}

/// A kernel with every algorithm, and no program.
fn all(name: &str) -> bool {
    !name.ends_with("_c")
}

#[test]
fn rule_finds_a_program_by_the_name_of_its_built_in_algorithm() {
    let has = |names: &'static [&'static str]| move |name: &str| names.contains(&name);
    for spec in ["dctcp", "dctcp-c", "dctcp_c"] {
        assert_eq!(
            select_algorithm(spec, "reno", has(&["reno", "dctcp"])),
            Selection::Algorithm("dctcp".into()),
            "{spec}"
        );
        // Where the kernel has one of its own, the program is the one that was attached on purpose.
        let both = has(&["reno", "dctcp", "dctcp_c"]);
        assert_eq!(select_algorithm(spec, "reno", both), Selection::Algorithm("dctcp_c".into()), "{spec}");
        assert_eq!(
            select_algorithm(spec, "reno", has(&["reno"])),
            Selection::Fallback("reno".into()),
            "{spec}"
        );
    }
}

fn program(policy: &Policy) -> (Rules, usize, Vec<Insn>) {
    let rules = Rules::of(policy, all);
    let (start, code) = rules.code(&Socket::NOWHERE, NOWHERE).expect("few rules");
    (rules, start, code)
}

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(all).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = String> {
    let fixed = one_of(&[
        "destination = \"10.0.0.0/8\"",
        "destination = [\"10.0.0.0/9\", \"10.128.0.0/10\", \"fd00::/8\"]",
        "destination = [\"0.0.0.0/0\", \"::/3\"]",
        "destination = \"fd00::12:0/112\"",
        "source = [\"10.0.0.1\", \"fd00::1\", \"8000::/1\"]",
        "dscp = [\"EF\", 1, \"telephony\"]",
        "dscp = \"CS1\"",
        "destination_port = [\"1-99\", 443, 500]",
        "source_port = \"100-65535\"",
        "carrier = [\"tcp\", \"roce\"]",
        "carrier = \"native\"",
        "qos = [\"latency\", \"bulk\"]",
        "qos = \"deadline\"",
        "path = \"wan\"",
        "path = [\"wan\", \"lan\"]",
        "priority = [6, \"1-2\"]",
        "priority = 4294967295",
    ]);
    let pattern = "[abc]{0,3}[*?abc]{1,6}".prop_map(|p| format!("application = [\"{p}\", \"no*one\"]"));
    prop_oneof![3 => fixed, 1 => pattern]
}

fn said() -> impl Strategy<Value = String> {
    one_of(&[
        "algorithm = \"bbr\"",
        "algorithm = \"ledbat++:target=40ms\"",
        "fallback = \"cubic\"",
        "cap = \"12.345M\"",
        "cap = \"40G\"",
        "allow_override = true",
        "allow_override = false",
        "dscp = \"AF11\"",
        "guarantee = \"64k\"",
    ])
}

fn keys(of: impl Strategy<Value = String>, n: usize) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(of, 0..n).prop_map(|mut v| {
        v.sort();
        v.dedup_by_key(|k| k.split('=').next().map(str::to_owned));
        v
    })
}

fn policies() -> impl Strategy<Value = String> {
    let treat = one_of(&["", "", "qos = \"scavenger\"", "qos = \"latency\""]);
    let rule = (keys(condition(), 4), keys(said(), 4), treat);
    (proptest::collection::vec(rule, 0..7), keys(said(), 3)).prop_map(|(rules, default)| {
        let mut text = format!(
            "[dscp]\nAF11 = \"latency\"\n[path.wan]\ndestination = \"10.0.0.0/7\"\n\
             [path.lan]\nsource = \"fd00::/8\"\ninterface = \"eth0\"\n[default]\n{}\n",
            default.join("\n")
        );
        for (i, (when, then, treat)) in rules.iter().enumerate() {
            let (when, then) = (when.join(", "), then.join("\n"));
            text += &format!("[[rule]]\nname = \"r{i}\"\nmatch = {{ {when} }}\n{treat}\n{then}\n");
        }
        text
    })
}

fn flows() -> impl Strategy<Value = Traffic> {
    const ENDS: &[&str] = &[
        "10.0.0.1:50",
        "10.200.1.1:443",
        "10.130.0.1:99",
        "11.0.0.1:1",
        "9.9.9.9:65535",
        "[fd00::1]:500",
        "[fd00::12:7]:99",
        "[::ffff:10.0.0.1]:100",
        "[::1]:443",
        "[9000::]:7",
    ];
    let parts = (
        one_of(ENDS),
        one_of(ENDS),
        0_u8..64,
        "[abc]{0,9}",
        prop_oneof![Just(0_u32), Just(1), Just(6), Just(u32::MAX)],
    );
    parts.prop_map(|(from, to, dscp, application, priority)| Traffic {
        carrier: Carrier::Tcp,
        local: from.parse::<SocketAddr>().expect("an address"),
        remote: to.parse().expect("an address"),
        dscp,
        application,
        qos: Qos::Ordinary,
        asked: String::new(),
        priority,
    })
}

proptest! {
    #[test]
    fn program_decides_like_the_policy(
        text in policies(),
        flows in proptest::collection::vec(flows(), 1..30),
    ) {
        let Some(policy) = read(&text) else { return Ok(()) };
        let (rules, start, code) = program(&policy);
        prop_assume!(!rules.remarks().iter().any(|r| r.contains("15 bytes")));
        for t in flows {
            let done = decide(&code, start, &laid(&t)).map(|n| rules.acts[n].clone());
            prop_assert_eq!(done, Some(meant(&policy, &t)), "{:?}\n{}", t, text);
        }
    }

    #[test]
    fn patterns_match_like_those_of_policies(pattern in "[ab]{0,2}[ab*?]{1,7}[b?*]{0,3}", name in "[ab]{0,15}") {
        let text = format!("[[rule]]\nname = \"r\"\nmatch = {{ application = \"{pattern}\" }}\nalgorithm = \"bbr\"\n");
        let policy = read(&text).expect("a policy");
        let (rules, start, code) = program(&policy);
        let t = Traffic { application: name, carrier: Carrier::Tcp, ..parse_flow("10.0.0.1->10.0.0.2").expect("a flow") };
        let remarked = rules.remarks().iter().any(|r| r.contains("15 bytes"));
        let done = decide(&code, start, &laid(&t)).map(|n| rules.acts[n].clone());
        prop_assert!(remarked || done == Some(meant(&policy, &t)), "{} {}", pattern, t.application);
    }
}

#[test]
fn unsupported_settings_are_remarked_with_their_effect() {
    let policy = read(
        "[default]\nalgorithm = \"cubic\"\n\
         [[rule]]\nname = \"long\"\nmatch = { application = \"a-name-of-more-bytes-than-that\" }\nalgorithm = \"bbr\"\n\
         [[rule]]\nname = \"due\"\nmatch = { qos = \"deadline\" }\nalgorithm = \"bbr\"\n\
         [[rule]]\nname = \"odd\"\nmatch = { destination_port = 1 }\nalgorithm = \"copa\"\nfallback = \"reno\"\n\
         [[rule]]\nname = \"none\"\nmatch = { destination_port = 2 }\nalgorithm = \"copa\"\nfallback = \"swift\"\n\
         [[rule]]\nname = \"twice\"\nmatch = { destination_port = 5 }\nalgorithm = \"swift\"\nfallback = \"swift\"\n\
         [[rule]]\nname = \"set\"\nmatch = { destination_port = 3 }\nalgorithm = \"cubic:hystart=off\"\n\
         [[rule]]\nname = \"fast\"\nmatch = { destination_port = 4 }\ncap = \"40G\"\nguarantee = \"1G\"\nclass = \"bulk\"\n",
    )
    .expect("a policy");
    let rules = Rules::of(&policy, |name| ["cubic", "reno", "bbr"].contains(&name));
    for (words, rule) in [
        ("\"a-name-of-more-bytes-than-that\" of rule \"long\" fits none", "15 bytes"),
        ("rule \"due\" is for what asks for deadline", "due"),
        ("this kernel has no copa: reno is used", "rule \"odd\""),
        ("this kernel has neither copa nor swift: its default stays", "rule \"none\""),
        ("this kernel has no swift: its default stays", "rule \"twice\""),
        ("the parameters of cubic:hystart=off are not the kernel's", "rule \"set\""),
        ("a cap of 40.00 Gbit/s is above", "rule \"fast\""),
        ("1.00 Gbit/s is not guaranteed", "rule \"fast\""),
        ("classes and weights", ""),
    ] {
        let is = |r: &&String| r.contains(words) && r.contains(rule);
        assert_eq!(rules.remarks().iter().filter(is).count(), 1, "{words}: {:#?}", rules.remarks());
    }
    let built_in = Rules::of(&Policy::built_in(), all);
    // The kernel's names have no plus.
    let [one] = built_in.remarks() else { panic!("{:#?}", built_in.remarks()) };
    assert!(one.contains("no ledbat++: haul is used"), "{one}");
}

#[test]
fn too_many_rules_are_refused() {
    let text: String = (0..4_000)
        .map(|i| {
            format!(
                "[[rule]]\nname = \"r{i}\"\nmatch = {{ destination = \"10.{}.{}.0/24\", source_port = 7, destination_port = 9 }}\ncap = \"1G\"\n",
                i / 256,
                i % 256
            )
        })
        .collect();
    let rules = Rules::of(&read(&text).expect("a policy"), all);
    let e = rules.code(&Socket::NOWHERE, NOWHERE).map(drop).expect_err("too many");
    assert!(e.to_string().contains("at most 8000"), "{e}");
    // What it is to do is written down once.
    assert_eq!(rules.acts.len(), Rules::of(&Policy::built_in(), all).acts.len() * 2);
}

#[test]
fn action_layout_matches_the_program() {
    let act = Action {
        algorithm: Some("bbr".into()),
        fallback: None,
        allow_override: true,
        cap: Some(1_250_000),
        dscp: Some(46),
    };
    let bytes = act.bytes();
    let word = |at: i16| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at as usize + i]));
    assert_eq!(&bytes[..4], b"bbr\0");
    assert_eq!((word(act::CAP), word(act::TOS)), (1_250_000, 46 << 2));
    assert_eq!(
        word(act::FLAGS) as i32,
        act::HAS_ALGORITHM | act::ALLOW_OVERRIDE | act::HAS_CAP | act::HAS_TOS
    );
    let _ = code::FLOW;
}
