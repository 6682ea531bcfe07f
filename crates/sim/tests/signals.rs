//! Tests the signals that algorithms need: they reach their flow, and a fallback decides while the path does not
//! carry them.

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

/// An endless transfer with this algorithm over this link.
fn pair(seed: u64, cc: &str, link: &str) -> Pair {
    let forward = LinkConfig::parse(&format!("rate=100mbit delay=5ms queue=500KiB {link}")).expect("a link");
    let reverse = LinkConfig::parse("rate=100mbit delay=5ms queue=500KiB").expect("a link");
    let options = TransportOptions { cc: cc.into(), max_packet: 1_500, ..TransportOptions::default() };
    let load = Load { message: 1 << 20, ahead: 8, messages: None };
    Pair::new(seed, Span::ZERO, (forward, reverse), options, load).expect("a pair")
}

struct Seen {
    algorithm: &'static str,
    path: transport::stats::PathStats,
    marked: u64,
    delivered: u64,
}

fn look(p: &mut Pair, ms: u64) -> Seen {
    p.run_until(at(ms)).expect("no failure");
    let conn = p.shared.borrow().sender.expect("connected");
    let s = p.world.endpoint(p.sender).stats(conn).expect("a connection");
    Seen { algorithm: s.cc.0, path: s.paths[0].clone(), marked: s.ce_packets, delivered: s.delivered }
}

#[test]
fn marks_are_counted_once_despite_lost_reports() {
    for seed in 0..10 {
        let mut p = pair(seed, "dctcp", "ecn=30KiB");
        look(&mut p, 300);
        let reverse = LinkConfig::parse("rate=100mbit delay=5ms queue=500KiB loss=20%").expect("a link");
        p.world.set_link(p.reverse, reverse);
        let seen = look(&mut p, 3_000);
        let link = p.world.link_stats(p.forward);
        assert!(link.marked > 100 && seen.algorithm == "dctcp", "{seed}: {}", link.marked);
        // Marks in flight, and those of the last report that was lost.
        assert!(seen.marked <= link.marked && seen.marked + 200 >= link.marked, "{seed}: {}", seen.marked);
        assert_eq!(seen.path.capability.ect0, EcnPath::Capable);
        assert_eq!(seen.path.capability.marks, Found::Yes);
        // The marked share keeps the queue at the threshold.
        assert!(seen.delivered > 20_000_000, "{seed}: {}", seen.delivered);
    }
}

#[test]
fn l4s_packets_carry_ect1_and_are_marked_at_their_own_threshold() {
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
fn ecn_faults_are_reported_and_a_fallback_is_used() {
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
            assert!(seen.path.fallback_reason.is_some());
            assert!(seen.delivered > 4_000_000, "{seed} {cc} {ect}: {}", seen.delivered);
        }
        // An algorithm that needs no marks continues.
        let mut p = pair(seed, "cubic", "ect=bleach");
        let seen = look(&mut p, 1_000);
        assert_eq!((seen.algorithm, seen.path.fallback_reason), ("cubic", None));
    }
}

/// The subject, algorithms and reason of a replacement for lack of signals.
fn replaced(e: &Event) -> Option<(Subject, &str, &str, &str)> {
    match &e.what {
        What::AlgorithmReplaced { subject, from, to, why, by_signals: true } => {
            Some((*subject, from, to, why))
        }
        _ => None,
    }
}

/// Signals vanish at 1 s and return at 2 s.
fn check_loss_and_return_of_signals(seed: u64, cc: &'static str, link: &str) {
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
    let (words, change) = (after.path.fallback_reason, format!("{cc} to haul"));
    assert_eq!((ours.as_str(), theirs.as_str(), why), ("haul", "haul", words.map(|w| (change, w))), "{seed}");
    assert!(after.delivered - before > 5_000_000, "{seed}: {}", after.delivered - before);
    // Probes are up to 64 round trips apart, which the fallback's queue makes longer.
    let reverse = look(&mut p, 2_000 + 160 * RTT_MS);
    assert_eq!((reverse.algorithm, reverse.path.fallback_reason), (cc, None), "{seed}: {:?}", reverse.path);
    // The frame that announces it may still be in flight.
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
        let reverse = |(_, _, to, why): &(_, _, &str, &str)| {
            *to == cc && *why == CcChangeReason::SignalsRestored.words()
        };
        assert!(told.iter().any(reverse), "{seed}: {told:?}");
        // Numbered without gaps and in order of time.
        assert!(all.windows(2).all(|w| w[0].number + 1 == w[1].number && w[0].time <= w[1].time), "{seed}");
    }
    let (ours, theirs, why) = shown(&mut p);
    if ours == cc {
        let change = (format!("haul to {cc}"), CcChangeReason::SignalsRestored.words());
        assert_eq!((theirs.as_str(), why), (cc, Some(change)), "{seed}");
    }
}

/// The sender's algorithm as shown at both ends, and the last change as reported by both: from, to, and why.
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
fn vanishing_marks_switch_to_the_fallback_and_back() {
    for seed in 0..20 {
        check_loss_and_return_of_signals(seed, "dctcp", "ecn=30KiB at=1s:ect=bleach at=2s:ect=pass");
        check_loss_and_return_of_signals(
            seed,
            "prague",
            "ecn=300KiB ecn1=30KiB at=1s:ect=ect0 at=2s:ect=pass",
        );
    }
}

#[test]
fn vanishing_telemetry_switches_to_the_fallback_and_back() {
    for seed in 0..20 {
        check_loss_and_return_of_signals(seed, "hpcc", "telemetry=on at=1s:telemetry=off at=2s:telemetry=on");
    }
    let mut p = pair(1, "hpcc", "telemetry=on");
    let seen = look(&mut p, 2_000);
    assert_eq!((seen.algorithm, seen.path.capability.telemetry), ("hpcc", Found::Yes));
    let link = p.world.link_stats(p.forward);
    // With the hop's telemetry the queue stays short and the link busy.
    assert!(link.max_queue_bytes < 250_000 && seen.delivered > 18_000_000, "{link:?} {}", seen.delivered);
}

#[test]
fn flapping_path_causes_a_bounded_number_of_switches_and_no_loss() {
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

/// One small Write after another: a dropped ECN-capable packet costs a time-out, and probes must cause few of them.
#[test]
fn small_messages_get_through_where_ecn_capable_packets_are_dropped() {
    let took = |seed: u64, more: &str| {
        let link = LinkConfig::parse(&format!("rate=1mbit delay=5ms queue=12KiB {more}")).expect("a link");
        let options =
            TransportOptions { cc: "reno".into(), max_packet: 1_500, ..TransportOptions::default() };
        let load = Load { message: 100, ahead: 1, messages: Some(2_000) };
        let mut p = Pair::new(seed, Span::ZERO, (link.clone(), link), options, load).expect("a pair");
        p.run_until(at(120_000)).expect("no failure");
        let board = p.shared.borrow();
        let finished = board.finished.unwrap_or_else(|| panic!("{} of 2,000 in 120 s", board.completed));
        finished.since(board.started.expect("begun")).as_secs_f64()
    };
    for seed in 0..5 {
        let (free, dropped) = (took(seed, ""), took(seed, "ect=drop"));
        println!("{free:.1} s, and {dropped:.1} where what is capable is dropped");
        assert!(dropped < free * 1.5, "{seed}: {free} s, and {dropped}");
    }
}
