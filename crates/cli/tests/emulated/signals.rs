//! Marks and telemetry that an emulated path writes into packets of real sockets, and what happens where they vanish.

use crate::common::{expect, json};
use crate::net::{EmulatedNetwork, flows, interrupt, pause, start};
use admin::proto::{Flow, PathSignals};
use lab::TopologySpec;

/// Both links; the way there has what is added.
const LINK: &str = "rate=30mbit delay=5ms queue=500KiB";

/// An algorithm, what the path does that it needs, and how that is taken away.
struct Case {
    algorithm: &'static str,
    good: &'static str,
    bad: &'static str,
    /// Whether the signal was found, and whether it was found to be gone.
    found: fn(&PathSignals) -> bool,
    gone: fn(&PathSignals) -> bool,
    /// Its packets are marked.
    marked: bool,
}

const CASES: [Case; 4] = [
    Case {
        algorithm: "dctcp",
        good: "ecn=15KiB",
        bad: "ecn=15KiB ect=bleach",
        found: |s| s.ect0 == "capable" && s.marks == "yes" && s.ect1 == "unknown",
        gone: |s| s.ect0 == "bleached",
        marked: true,
    },
    Case {
        algorithm: "prague",
        good: "ecn=300KiB ecn1=6KiB",
        bad: "ecn=300KiB ecn1=6KiB ect=bleach",
        found: |s| s.ect1 == "capable" && s.marks == "yes" && s.l4s == "yes",
        gone: |s| s.ect1 == "bleached",
        marked: true,
    },
    Case {
        algorithm: "prague",
        good: "ecn=300KiB ecn1=6KiB",
        bad: "ecn=300KiB ecn1=6KiB ect=ect0",
        found: |s| s.ect1 == "capable" && s.marks == "yes" && s.l4s == "yes",
        gone: |s| s.ect1 == "remarked",
        marked: true,
    },
    Case {
        algorithm: "hpcc",
        good: "telemetry=on",
        bad: "telemetry=off",
        found: |s| s.telemetry == "yes",
        gone: |s| s.telemetry == "no",
        marked: false,
    },
];

#[test]
fn path_signals_reach_algorithms_and_a_fallback_runs_while_they_vanish() {
    let link = |more: &str| format!("{LINK} {more}");
    let path =
        TopologySpec::Path { forward: link(CASES[0].good).as_str().into(), reverse: Some(LINK.into()) };
    let Some(mut net) = EmulatedNetwork::new("signals", &path) else { return };
    let server = net.serve("b", &["perf", "server", "--no-control"]);
    for case in &CASES {
        net.lab.set_link("forward", &link(case.good)).unwrap();
        let what = ["perf", "client", &server.address, "--accept-new", "--discover", "off", "--quiet"];
        let how = ["-t", "1h", "--stop", "--region", "1MiB", "-s", "64KiB", "--cc", case.algorithm];
        let client = start(net.longhaul("a", "client", &[&what[..], &how].concat()));
        let mut control = net.process();
        let mut until = |what: &str, holds: &dyn Fn(&Flow, &PathSignals) -> bool| loop {
            let all = flows(&mut control);
            if let Some(f) = all.first().filter(|f| f.signals.first().is_some_and(|s| holds(f, s))) {
                println!("{} {what}: {:?}", case.algorithm, f.signals[0]);
                return f.clone();
            }
            pause();
        };
        let own = until("finds its signals", &|f, s| f.running == case.algorithm && (case.found)(s));
        assert_eq!(own.signals[0].fallback_reason, None);
        assert_eq!(own.marked_packets > 0, case.marked, "{own:?}");
        net.lab.set_link("forward", &link(case.bad)).unwrap();
        let other = until("misses them", &|f, s| f.running != case.algorithm && (case.gone)(s));
        // What was chosen stays chosen; the default decides.
        assert_eq!((other.running.as_str(), other.algorithm.as_str()), ("haul", case.algorithm));
        assert!(other.signals[0].fallback_reason.is_some(), "{other:?}");
        let before = other.delivered_bytes;
        until("moves on", &|f, _| f.running == "haul" && f.delivered_bytes > before + (1 << 20));
        net.lab.set_link("forward", &link(case.good)).unwrap();
        let back = until("has them again", &|f, s| f.running == case.algorithm && (case.found)(s));
        assert_eq!(back.signals[0].fallback_reason, None);
        // Both turns are in the log of what happened.
        let o = net.longhaul("a", "status", &["cc", "status", "--events", "--json"]).output().unwrap();
        expect(&o, 0);
        let all = json(&o)["processes"][0]["events"].clone();
        let all: Vec<_> = all.as_array().unwrap().iter().filter(|e| e["kind"] == "fallback").collect();
        let of = |words: &str| all.iter().any(|e| e["text"].as_str().is_some_and(|t| t.contains(words)));
        assert!(of(&format!("haul decides instead of {}: ", case.algorithm)), "{all:?}");
        assert!(of(&format!("{} decides instead of haul: the path carries", case.algorithm)), "{all:?}");
        drop(control);
        interrupt(client);
    }
}

#[test]
fn ecn_marks_of_the_path_are_in_the_report() {
    let link = format!("{LINK} ecn=300KiB ecn1=6KiB");
    let path = TopologySpec::Path { forward: link.as_str().into(), reverse: Some(LINK.into()) };
    let Some(net) = EmulatedNetwork::new("marks", &path) else { return };
    let server = net.serve("b", &["perf", "server", "--no-control"]);
    let what = ["perf", "client", &server.address, "--accept-new", "--discover", "off", "--json", "--verify"];
    let how = ["-n", "8MiB", "--region", "1MiB", "-s", "64KiB", "-i", "100ms", "--cc", "prague"];
    let o = net.longhaul("a", "client", &[&what[..], &how].concat()).output().unwrap();
    expect(&o, 0);
    let r = json(&o);
    assert_eq!(r["verified"], true);
    let signals = &r["client"]["paths"][0]["signals"];
    assert_eq!((signals["ect1"].as_str(), signals["l4s"].as_str()), (Some("capable"), Some("yes")), "{r}");
    let marked = r["client"]["packets_marked"].as_u64().unwrap();
    let all: Vec<_> = r["intervals"].as_array().unwrap().iter().collect();
    assert!(all.iter().all(|i| i["congestion_control"] == "prague"), "{r}");
    assert!(marked > 0 && all.last().is_some_and(|i| i["marked_packets"].as_u64() <= Some(marked)), "{r}");
    // The emulator counts the same packets.
    let records = net.records();
    let by_link: u64 = records
        .iter()
        .filter_map(|r| match r {
            lab::emulator::record::Record::Summary(s) => Some(s.links.iter().map(|l| l.marked).sum::<u64>()),
            _ => None,
        })
        .sum();
    // Reports of the last marks may not have come back before the end.
    assert!(marked <= by_link && marked * 10 >= by_link * 9, "{marked} of {by_link} marks were told");
}
