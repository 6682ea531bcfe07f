//! Signals that algorithms steer by: they reach the flow they belong to, and where the path does not carry them, or stops to,
//! another algorithm decides until it does.

use base::{Span, Time};
use cc::platform::{EcnFault, EcnPath, Found};
use longhaul_sim::pair::{Load, Pair};
use netem::LinkConfig;
use observe::{Event, Subject, What};
use transport::{CcChangeReason, TransportOptions};

const RTT_MS: u64 = 10;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// A transfer without end by this algorithm over this link.
fn pair(seed: u64, cc: &str, link: &str) -> Pair {
    let there = LinkConfig::parse(&format!("rate=100mbit delay=5ms queue=500KiB {link}")).expect("a link");
    let back = LinkConfig::parse("rate=100mbit delay=5ms queue=500KiB").expect("a link");
    let options = TransportOptions { cc: cc.into(), max_packet: 1_500, ..TransportOptions::default() };
    let load = Load { message: 1 << 20, ahead: 8, messages: None };
    Pair::new(seed, Span::ZERO, (there, back), options, load).expect("a pair")
}

struct Seen {
    algorithm: &'static str,
    path: transport::stats::PathStats,
    marked: u64,
    delivered: u64,
}

fn look(p: &mut Pair, ms: u64) -> Seen {
    p.run_until(at(ms)).expect("no failure");
    let conn = p.board.borrow().sender.expect("connected");
    let s = p.world.endpoint(p.sender).stats(conn).expect("a connection");
    Seen { algorithm: s.cc.0, path: s.paths[0].clone(), marked: s.ce_packets, delivered: s.delivered }
}

#[test]
fn each_mark_is_counted_once_for_the_flow_although_reports_are_lost() {
    for seed in 0..10 {
        let mut p = pair(seed, "dctcp", "ecn=30KiB");
        look(&mut p, 300);
        let back = LinkConfig::parse("rate=100mbit delay=5ms queue=500KiB loss=20%").expect("a link");
        p.world.set_link(p.back, back);
        let seen = look(&mut p, 3_000);
        let link = p.world.link_stats(p.there);
        assert!(link.marked > 100 && seen.algorithm == "dctcp", "{seed}: {}", link.marked);
        // Marks under way, and those of the last report that was lost.
        assert!(seen.marked <= link.marked && seen.marked + 200 >= link.marked, "{seed}: {}", seen.marked);
        assert_eq!(seen.path.capability.ect0, EcnPath::Capable);
        assert_eq!(seen.path.capability.marks, Found::Yes);
        // By the share of marks the queue is held at the threshold.
        assert!(seen.delivered > 20_000_000, "{seed}: {}", seen.delivered);
    }
}

#[test]
fn packets_of_l4s_say_so_and_are_marked_at_their_own_threshold() {
    for seed in 0..5 {
        let mut p = pair(seed, "prague", "ecn=300KiB ecn1=12KiB");
        let seen = look(&mut p, 2_000);
        assert_eq!(seen.algorithm, "prague");
        assert_eq!(
            (seen.path.capability.ect0, seen.path.capability.ect1),
            (EcnPath::Unknown, EcnPath::Capable)
        );
        assert_eq!(seen.path.capability.l4s, Found::Yes, "{seed}");
    }
}

#[test]
fn each_fault_of_the_path_is_named_and_another_algorithm_decides() {
    use EcnFault::{Bleached, Dropped, Remarked};
    for seed in 0..5 {
        for (cc, fault, ect) in [
            ("dctcp", Bleached, "bleach"),
            ("dctcp", Remarked, "ect1"),
            ("dctcp", Dropped, "drop"),
            ("prague", Bleached, "bleach"),
            ("prague", Remarked, "ect0"),
            ("prague", Dropped, "drop"),
        ] {
            let mut p = pair(seed, cc, &format!("ecn=30KiB ect={ect}"));
            let seen = look(&mut p, 1_500);
            let path = seen.path.capability;
            let found = if cc == "prague" { path.ect1 } else { path.ect0 };
            assert_eq!((seen.algorithm, found), ("haul", EcnPath::Failed(fault)), "{seed} {cc} {ect}");
            assert!(seen.path.substituted.is_some());
            assert!(seen.delivered > 4_000_000, "{seed} {cc} {ect}: {}", seen.delivered);
        }
        // What does not need marks goes on without.
        let mut p = pair(seed, "cubic", "ect=bleach");
        let seen = look(&mut p, 1_000);
        assert_eq!((seen.algorithm, seen.path.substituted), ("cubic", None));
    }
}

/// Whose algorithm was replaced for want of signals, by which, and why.
fn replaced(e: &Event) -> Option<(Subject, &str, &str, &str)> {
    match &e.what {
        What::AlgorithmReplaced { subject, from, to, why, by_signals: true } => {
            Some((*subject, from, to, why))
        }
        _ => None,
    }
}

/// Signals vanish at 1 s and come back at 2 s.
fn vanish(seed: u64, cc: &'static str, link: &str) {
    let mut p = pair(seed, cc, link);
    let mut readers = [p.sender, p.receiver].map(|node| p.world.endpoint(node).log().subscribe());
    let seen = look(&mut p, 990);
    assert_eq!(seen.algorithm, cc, "{seed}: {:?}", seen.path);
    let before = look(&mut p, 1_000).delivered;
    assert_eq!(shown(&mut p), (cc.to_owned(), cc.to_owned(), None), "{seed}: nothing has changed so far");
    // A round trip until it shows, two windows, and reports that are an eighth of one apart.
    let seen = look(&mut p, 1_000 + 8 * RTT_MS);
    assert_eq!(seen.algorithm, "haul", "{seed} {:?}", seen.path);
    let after = look(&mut p, 2_000);
    assert_eq!(after.algorithm, "haul", "{seed}");
    let (ours, theirs, why) = shown(&mut p);
    let (words, change) = (after.path.substituted, format!("{cc} to haul"));
    assert_eq!((ours.as_str(), theirs.as_str(), why), ("haul", "haul", words.map(|w| (change, w))), "{seed}");
    assert!(after.delivered - before > 5_000_000, "{seed}: {}", after.delivered - before);
    // Probes are up to 64 round trips apart, which the substitute's queue makes longer.
    let back = look(&mut p, 2_000 + 160 * RTT_MS);
    assert_eq!((back.algorithm, back.path.substituted), (cc, None), "{seed}: {:?}", back.path);
    // The frame that says so may still be under way.
    look(&mut p, 2_000 + 200 * RTT_MS);
    for (node, reader) in [p.sender, p.receiver].into_iter().zip(&mut readers) {
        let (missed, all) = p.world.endpoint(node).log().read(reader);
        let all: Vec<_> = all.cloned().collect();
        let told: Vec<_> = all.iter().filter_map(replaced).collect();
        assert!(matches!(all[0].what, What::ConnectionOpened { .. }), "{seed}: {:?}", all[0]);
        let (subject, from, to, why) = told[0];
        assert_eq!((missed, from, to), (0, cc, "haul"), "{seed}");
        assert_ne!(why, CcChangeReason::SignalsRestored.words(), "{seed}");
        assert_eq!(matches!(subject, Subject::Flow(_)), node == p.sender, "{seed}");
        let back = |(_, _, to, why): &(_, _, &str, &str)| {
            *to == cc && *why == CcChangeReason::SignalsRestored.words()
        };
        assert!(told.iter().any(back), "{seed}: {told:?}");
        // Numbered without gaps, and each no earlier than the one before.
        assert!(all.windows(2).all(|w| w[0].number + 1 == w[1].number && w[0].time <= w[1].time), "{seed}");
    }
    let (ours, theirs, why) = shown(&mut p);
    if ours == cc {
        let change = (format!("haul to {cc}"), CcChangeReason::SignalsRestored.words());
        assert_eq!((theirs.as_str(), why), (cc, Some(change)), "{seed}");
    }
}

/// What the sender sends with, as both ends show it, and what both say of the last change: from and to, and why.
fn shown(p: &mut Pair) -> (String, String, Option<(String, &'static str)>) {
    let ours = p.world.endpoint(p.sender).flows().remove(0);
    let theirs = p.world.endpoint(p.receiver).flows()[0].peer.clone().expect("the peer negotiates");
    let change = ours.facts.change.as_ref();
    let why = change.map(|c| (format!("{} to {}", c.from, c.to), c.why.words()));
    assert_eq!(ours.facts.spec, theirs.runs.chosen, "the chosen one is the same at both ends");
    if ours.facts.name == theirs.runs.effective() && change.is_some() {
        assert_eq!(change.map(|c| c.why), Some(theirs.why));
    }
    (ours.facts.name.to_owned(), theirs.runs.effective().to_owned(), why)
}

#[test]
fn marks_that_vanish_and_come_back_change_the_algorithm_and_change_it_back() {
    for seed in 0..20 {
        vanish(seed, "dctcp", "ecn=30KiB at=1s:ect=bleach at=2s:ect=pass");
        vanish(seed, "prague", "ecn=300KiB ecn1=30KiB at=1s:ect=ect0 at=2s:ect=pass");
    }
}

#[test]
fn telemetry_that_vanishes_and_comes_back_changes_the_algorithm_and_changes_it_back() {
    for seed in 0..20 {
        vanish(seed, "hpcc", "telemetry=on at=1s:telemetry=off at=2s:telemetry=on");
    }
    let mut p = pair(1, "hpcc", "telemetry=on");
    let seen = look(&mut p, 2_000);
    assert_eq!((seen.algorithm, seen.path.capability.telemetry), ("hpcc", Found::Yes));
    let link = p.world.link_stats(p.there);
    // By what the hop says of its queue it stays short, and the link busy.
    assert!(link.max_queue_bytes < 250_000 && seen.delivered > 18_000_000, "{link:?} {}", seen.delivered);
}

#[test]
fn a_path_that_comes_and_goes_makes_no_more_changes_than_are_allowed_and_loses_nothing() {
    let mut link = "ecn=30KiB".to_owned();
    for n in 0..60 {
        let (off, on) = (300 + n * 600, 600 + n * 600);
        link += &format!(" at={off}ms:ect=bleach at={on}ms:ect=pass");
    }
    for seed in 0..3 {
        let mut p = pair(seed, "dctcp", &link);
        let seen = look(&mut p, 40_000);
        assert!(seen.delivered > 200_000_000, "{seed}: {}", seen.delivered);
    }
}

/// One small write after another: whatever leaves capable and is dropped costs a time-out, and probes are to take few of them.
#[test]
fn small_messages_get_through_where_what_is_capable_is_dropped() {
    let took = |seed: u64, more: &str| {
        let link = LinkConfig::parse(&format!("rate=1mbit delay=5ms queue=12KiB {more}")).expect("a link");
        let options =
            TransportOptions { cc: "reno".into(), max_packet: 1_500, ..TransportOptions::default() };
        let load = Load { message: 100, ahead: 1, messages: Some(2_000) };
        let mut p = Pair::new(seed, Span::ZERO, (link.clone(), link), options, load).expect("a pair");
        p.run_until(at(120_000)).expect("no failure");
        let board = p.board.borrow();
        let finished = board.finished.unwrap_or_else(|| panic!("{} of 2,000 in 120 s", board.completed));
        finished.since(board.started.expect("begun")).as_secs_f64()
    };
    for seed in 0..5 {
        let (free, dropped) = (took(seed, ""), took(seed, "ect=drop"));
        println!("{free:.1} s, and {dropped:.1} where what is capable is dropped");
        assert!(dropped < free * 1.5, "{seed}: {free} s, and {dropped}");
    }
}
