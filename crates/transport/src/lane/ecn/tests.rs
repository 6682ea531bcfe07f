//! Tests of ECN validation against modelled paths.

use super::*;
use EcnFault::{AllMarked, Bleached, Dropped, Remarked};
use EcnPath::{Capable, Failed, Testing, Unknown};
use wire::frame::ReceiverSignals;

const RTT: Span = Span::from_millis(10);

fn at(rtts: u64) -> Time {
    Time::ZERO + Span::from_secs(7) + RTT * rtts
}

/// What a path makes of packets.
type Network = fn(Ecn) -> Option<Ecn>;

struct Lane {
    watch: EcnValidator,
    sent: u64,
    counts: PeerCounts,
    round: u64,
}

impl Lane {
    fn new() -> Lane {
        Lane { watch: EcnValidator::default(), sent: 0, counts: PeerCounts::default(), round: 0 }
    }

    /// A round trip with so many packets of each flow: what each flow's packets carried.
    fn round(&mut self, wants: &[(Ecn, u64)], network: Network) -> Vec<Ecn> {
        let now = at(self.round);
        let mut carried = Vec::new();
        for (wanted, packets) in wants {
            let ecn = self.watch.codepoint(now, *wanted, RTT);
            self.watch.on_sent(ecn, *packets);
            carried.push(ecn);
            for _ in 0..*packets {
                self.sent += 1;
                let Some(arrives) = network(ecn) else {
                    self.watch.on_lost(now, ecn, RTT);
                    continue;
                };
                match arrives {
                    Ecn::NotEct => {}
                    Ecn::Ect0 => self.counts.ect0 += 1,
                    Ecn::Ect1 => self.counts.ect1 += 1,
                    Ecn::Ce => self.counts.ce += 1,
                }
                self.watch.on_acked(now, ecn, arrives == Ecn::Ce, Span::from_millis(1));
            }
        }
        let told =
            ReceiverSignals { ect0: self.counts.ect0, ect1: self.counts.ect1, ..ReceiverSignals::default() };
        let f = Feedback {
            largest: self.sent,
            marked: self.counts.ce,
            signals: Some(told),
            ..Feedback::default()
        };
        self.watch.check(&f, self.sent).unwrap();
        self.watch.on_report(at(self.round + 1), RTT, true);
        self.round += 1;
        carried
    }

    fn rounds(&mut self, n: u64, wanted: Ecn, network: Network) -> EcnPath {
        (0..n).for_each(|_| drop(self.round(&[(wanted, 40)], network)));
        self.watch.paths()[usize::from(wanted == Ecn::Ect1)]
    }
}

const PASS: Network = Some;
const BLEACH: Network = |_| Some(Ecn::NotEct);
const DROP: Network = |e| (e == Ecn::NotEct).then_some(e);
const CE: Network = |e| Some(if e == Ecn::NotEct { e } else { Ecn::Ce });
const TO_ECT0: Network = |e| Some(if e == Ecn::Ect1 { Ecn::Ect0 } else { e });
const TO_ECT1: Network = |e| Some(if e == Ecn::Ect0 { Ecn::Ect1 } else { e });

#[test]
fn ecn_is_validated_after_a_round_trip() {
    let mut l = Lane::new();
    assert_eq!(l.watch.paths(), [Unknown; 2]);
    assert_eq!(l.watch.codepoint(at(0), Ecn::Ect0, RTT), Ecn::Ect0);
    assert_eq!(l.watch.paths(), [Testing, Unknown]);
    assert_eq!(l.rounds(1, Ecn::Ect0, PASS), Capable);
    assert!(l.watch.take_changed() && !l.watch.take_changed());
    assert_eq!(l.rounds(1, Ecn::Ect1, PASS), Capable);
    assert_eq!(l.watch.codepoint(at(9), Ecn::NotEct, RTT), Ecn::NotEct);
}

#[test]
fn each_ecn_fault_is_identified_within_two_round_trips() {
    for (ecn, network, fault, rounds) in [
        (Ecn::Ect0, BLEACH, Bleached, 2),
        (Ecn::Ect1, BLEACH, Bleached, 2),
        (Ecn::Ect0, TO_ECT1, Remarked, 2),
        (Ecn::Ect1, TO_ECT0, Remarked, 2),
        (Ecn::Ect0, DROP, Dropped, 1),
        (Ecn::Ect0, CE, AllMarked, 8 + 1),
    ] {
        for before in [0, 20] {
            let mut l = Lane::new();
            l.rounds(before, ecn, PASS);
            let before_last = l.rounds(rounds - 1, ecn, network);
            assert!(!matches!(before_last, Failed(_)), "{fault:?}");
            assert_eq!(l.rounds(1, ecn, network), Failed(fault));
        }
    }
    // What becomes of the one codepoint says nothing of the other.
    let mut l = Lane::new();
    assert_eq!(
        (l.rounds(5, Ecn::Ect0, TO_ECT0), l.rounds(5, Ecn::Ect1, TO_ECT0)),
        (Capable, Failed(Remarked))
    );
    let mut l = Lane::new();
    (0..5).for_each(|_| drop(l.round(&[(Ecn::Ect0, 40), (Ecn::Ect1, 40)], TO_ECT0)));
    assert_eq!(l.watch.paths(), [Capable, Failed(Remarked)]);
}

#[test]
fn probing_backs_off_after_failure_and_recovers() {
    let mut l = Lane::new();
    assert_eq!(l.rounds(2, Ecn::Ect1, BLEACH), Failed(Bleached));
    let capable = |l: &mut Lane, network| l.round(&[(Ecn::Ect1, 40)], network)[0] == Ecn::Ect1;
    let probes: Vec<u64> = (0..400).filter(|_| capable(&mut l, BLEACH)).collect();
    let gaps: Vec<u64> = probes.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!((probes[0], &gaps[..5]), (4, &[8, 16, 32, 64, 64][..]));
    // Two good probes in a row, the second at once.
    let needed = (0..100).find(|_| l.rounds(1, Ecn::Ect1, PASS) == Capable);
    assert!(needed.is_some_and(|n| n <= 65), "{needed:?}");
    assert!(capable(&mut l, PASS));
}

#[test]
fn one_bad_window_or_scattered_loss_changes_nothing() {
    let mut l = Lane::new();
    l.rounds(3, Ecn::Ect0, PASS);
    for n in 0..50 {
        l.round(&[(Ecn::Ect0, 40)], if n % 2 == 0 { BLEACH } else { PASS });
        (0..9).for_each(|_| l.watch.on_lost(at(n), Ecn::Ect0, RTT));
    }
    assert_eq!(l.watch.paths()[0], Capable);
}

#[test]
fn queue_overflow_is_not_taken_for_an_ecn_black_hole() {
    let mut l = Lane::new();
    l.rounds(3, Ecn::Ect0, PASS);
    for n in 3..50 {
        // What the full queue dropped in a row, reported together with what it held.
        l.round(&[(Ecn::Ect0, 40)], PASS);
        (0..500).for_each(|_| l.watch.on_lost(at(n), Ecn::Ect0, RTT));
        assert_eq!(l.watch.paths()[0], Capable, "{n}");
    }
    // When nothing arrives any more it is one.
    (0..500).for_each(|_| l.watch.on_lost(at(51), Ecn::Ect0, RTT));
    assert_eq!(l.watch.paths()[0], Failed(Dropped));
}

#[test]
fn marks_on_ect1_with_a_short_queue_are_l4s() {
    let mut w = EcnValidator::default();
    w.on_acked(at(0), Ecn::Ect0, true, Span::ZERO);
    w.on_acked(at(0), Ecn::Ect1, true, Span::from_millis(20));
    assert_eq!(w.seen(), (Found::Yes, Found::Unknown));
    w.on_acked(at(0), Ecn::Ect1, true, Span::from_millis(1));
    assert_eq!(w.seen(), (Found::Yes, Found::Yes));
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range")]
fn impossible_ecn_counts_close_the_connection() {
    let statement = |largest, counts: [u64; 3], marks: Vec<core::ops::Range<u64>>| Feedback {
        largest,
        marked: counts[2],
        signals: Some(ReceiverSignals {
            ect0: counts[0],
            ect1: counts[1],
            marks,
            ..ReceiverSignals::default()
        }),
        ..Feedback::default()
    };
    let mut w = EcnValidator::default();
    let mut check = |f| w.check(&f, 100).map_err(|v| v.code);
    assert_eq!(check(statement(50, [10, 0, 2], vec![3..5])), Ok(()));
    // Statements may overtake each other, and several be about the same packet.
    assert_eq!(check(statement(40, [9, 0, 2], vec![])), Ok(()));
    assert_eq!(check(statement(50, [11, 0, 2], vec![])), Ok(()));
    assert_eq!(check(statement(50, [10, 0, 2], vec![])), Ok(()));
    let wrong = Err(code::FALSE_FEEDBACK);
    assert_eq!(check(statement(60, [10, 0, 2], vec![])), wrong, "fewer than before");
    assert_eq!(check(statement(40, [12, 0, 2], vec![])), wrong, "more than afterwards");
    assert_eq!(check(statement(60, [90, 9, 2], vec![])), wrong, "more than were sent");
    assert_eq!(check(statement(60, [u64::MAX, 2, 2], vec![])), wrong);
    assert_eq!(check(statement(60, [11, 0, 2], vec![3..6])), wrong, "more marks than are counted");
    assert_eq!(check(statement(60, [11, 0, 5], vec![3..6])), Ok(()));
}

#[test]
fn ecn_stays_unknown_without_counts_from_the_peer() {
    let mut w = EcnValidator::default();
    assert_eq!(w.codepoint(at(0), Ecn::Ect0, RTT), Ecn::Ect0);
    w.on_report(at(1), RTT, false);
    assert_eq!(w.paths()[0], Failed(EcnFault::Untold));
    assert!((0..1_000).all(|n| {
        w.on_sent(Ecn::Ect0, 44);
        w.codepoint(at(n), Ecn::Ect0, RTT) == Ecn::Ect0
    }));
}

/// Where a packet leaves with each time-out, a probe must not take sixteen of them.
#[test]
fn ecn_probe_ends_at_the_first_timeout() {
    let mut l = Lane::new();
    assert_eq!(l.rounds(2, Ecn::Ect0, DROP), Failed(Dropped));
    let mut cut_off = 0;
    for round in 0..4_000 {
        // One packet a round trip; when it does not arrive, the next leaves with a time-out.
        if l.round(&[(Ecn::Ect0, 1)], DROP) == [Ecn::Ect0] {
            cut_off += 1;
            l.watch.on_timeout(at(round), RTT);
        }
    }
    // After 4, 8, 16 and so on, and every 1,024 round trips in the end.
    assert!((8..=12).contains(&cut_off), "{cut_off}");
    assert_eq!(l.watch.paths()[0], Failed(Dropped));
    // The path is mended: that is found out with the next probe.
    assert_eq!(l.rounds(1_100, Ecn::Ect0, PASS), Capable);
}

/// A path that drops what is capable is found also beside a peer that tells of nothing.
#[test]
fn two_timeouts_mean_ecn_packets_are_dropped() {
    for told in [true, false] {
        let mut l = Lane::new();
        assert_eq!(l.watch.codepoint(at(0), Ecn::Ect0, RTT), Ecn::Ect0);
        l.watch.on_timeout(at(1), RTT);
        l.watch.on_timeout(at(1), RTT);
        assert_eq!(l.watch.codepoint(at(1), Ecn::Ect0, RTT), Ecn::Ect0, "none was sent");
        l.watch.on_sent(Ecn::Ect0, 1);
        l.watch.on_report(at(1), RTT, told);
        l.watch.on_timeout(at(2), RTT);
        assert_eq!(l.watch.codepoint(at(2), Ecn::Ect0, RTT), Ecn::Ect0, "one may be chance");
        // Packets without the field arrive meanwhile.
        l.watch.on_acked(at(2), Ecn::NotEct, false, Span::ZERO);
        l.watch.on_timeout(at(3), RTT);
        assert_eq!(l.watch.codepoint(at(3), Ecn::Ect0, RTT), Ecn::NotEct);
        assert_eq!(l.watch.paths(), [Failed(Dropped), Unknown]);
    }
}
