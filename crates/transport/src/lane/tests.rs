//! Tests of loss detection, probing and feedback on one lane.

use super::*;
use crate::streams::{NextSegment, PlaceError, Placed, SegmentRef};
use wire::DataHeader;

/// Notes what became of segments.
#[derive(Default)]
pub(super) struct RecordingStreams {
    acked: Vec<u64>,
    pub(super) pieces: Vec<SegmentRef>,
    lost: Vec<u64>,
}

impl Streams for RecordingStreams {
    fn next(&mut self, _: u16, _: usize, _: Option<usize>) -> Option<NextSegment> {
        None
    }
    fn has_more(&self, _: u16) -> bool {
        false
    }
    fn waiting(&self, _: u16) -> (u64, u64) {
        (0, 0)
    }
    fn gather(&mut self, _: u16, _: &NextSegment, _: &mut [u8]) -> bool {
        true
    }
    fn acked(&mut self, _: u16, s: SegmentRef) {
        self.acked.push(s.msn);
        self.pieces.push(s);
    }
    fn lost(&mut self, _: u16, s: SegmentRef) {
        self.lost.push(s.msn);
    }
    fn place(&mut self, _: &DataHeader, _: &[u8]) -> Result<Placed, PlaceError> {
        Ok(Placed::Done)
    }
}

fn lane() -> (Lane, Rng) {
    let mut rng = Rng::from_u64(1);
    let info = cc::PathInfo {
        packet_bytes: 1500,
        handshake_rtt: None,
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let algorithm =
        cc::registry::create(cc::registry::DEFAULT, &Default::default(), &info, rng.fork()).expect("default");
    let remote = "192.0.2.1:1".parse().expect("address");
    let lane = Lane::new(
        0,
        (Cid(1), Cid(2)),
        remote,
        MtuSearch::new(1472, 1472, 28),
        Flow::new(algorithm, None),
        &mut rng,
    );
    (lane, rng)
}

/// Sends one packet whose segment is named by its packet number.
fn send(lane: &mut Lane, rng: &mut Rng, now: Time) -> u64 {
    lane.maybe_skip(now, rng);
    let mut t = lane.flows[0].begin_train(now, 0);
    lane.flows[0].on_sent(now, &mut t, 1500, 1, false);
    let train = lane.sent.trains_mut().begin(t);
    let pn = lane.sent.next();
    let content = Content::Data(0, SegmentRef { msn: pn, offset: 0, len: 1433 });
    lane.on_eliciting_sent(now);
    lane.sent.push(SentPacket { time: now, train, bytes: 1500, state: State::Outstanding, content })
}

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn feedback(covered: core::ops::Range<u64>, holes: Vec<core::ops::Range<u64>>) -> Feedback {
    Feedback { largest: covered.end - 1, covered, holes, ..Feedback::default() }
}

#[test]
fn optimistic_acknowledgements_are_detected() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    let mut acked_before = 0;
    // The peer claims everything that may have been sent, ahead of its arrival, to speed the sender up.
    for n in 0..10_000 {
        let pn = send(&mut lane, &mut rng, at(n));
        match lane.on_feedback(at(n), &feedback(0..pn + 1, vec![]), &mut streams) {
            Ok(_) => acked_before = pn,
            Err(v) => {
                assert_eq!(v.code, code::FALSE_FEEDBACK);
                assert!(acked_before <= SKIP_EVERY.1);
                return;
            }
        }
    }
    panic!("not found out in 10,000 packets");
}

#[test]
fn feedback_on_unsent_packets_is_rejected_without_effect() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    let pn = send(&mut lane, &mut rng, at(1));
    assert!(lane.on_feedback(at(2), &feedback(0..pn + 2, vec![]), &mut streams).is_err());
    assert_eq!((lane.sent.outstanding(), streams.acked.len()), (1, 0));
}

#[test]
fn reordering_beyond_the_window_is_loss() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    // One packet a millisecond, a round trip of 80 ms: the window is an eighth of it, 10 ms.
    for n in 0..100 {
        send(&mut lane, &mut rng, at(n));
    }
    lane.on_feedback(at(80), &feedback(0..1, vec![]), &mut streams).expect("true");
    // Packet 20 left 5 ms before the newest reported one: not lost yet.
    #[allow(clippy::single_range_in_vec_init, reason = "a list of one hole")]
    let holes = vec![20..21];
    lane.on_feedback(at(105), &feedback(0..26, holes.clone()), &mut streams).expect("true");
    assert!(streams.lost.is_empty());
    lane.on_feedback(at(120), &feedback(0..41, holes), &mut streams).expect("true");
    assert_eq!(streams.lost, [20]);
    // It was only late: a spurious loss, and the window widens.
    let before = lane.reorder;
    let out = lane.on_feedback(at(130), &feedback(0..51, vec![]), &mut streams).expect("true");
    assert_eq!(out.spurious, 1);
    assert!(streams.acked.contains(&20));
    assert!(lane.reorder > before);
}

#[test]
fn packets_that_wait_in_a_slow_host_are_not_lost() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    for n in 0..100 {
        send(&mut lane, &mut rng, at(n));
    }
    // A round trip of 50 ms, and then 100 ms more in the receiver's host, where packet 20 is behind the others.
    lane.on_feedback(at(50), &feedback(0..1, vec![]), &mut streams).expect("true");
    #[allow(clippy::single_range_in_vec_init, reason = "a list of one hole")]
    let told = Feedback { delay_us: 100_000, ..feedback(0..26, vec![20..21]) };
    lane.on_feedback(at(175), &told, &mut streams).expect("true");
    assert_eq!(
        (lane.rtt.smoothed(), lane.rtt.until_reported()),
        (Span::from_millis(50), Span::from_millis(150))
    );
    let wait = lane.loss_deadline().expect("a suspect").since(at(20));
    assert!(wait >= Span::from_millis(150) + lane.reorder, "lost after {wait:?}");
}

#[test]
fn tail_loss_probes_back_off_within_a_second() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    for n in 0..10 {
        send(&mut lane, &mut rng, at(n));
    }
    lane.on_feedback(at(70), &feedback(0..5, vec![]), &mut streams).expect("true");
    let mut deadlines = Vec::new();
    let mut now = at(70);
    for _ in 0..8 {
        let t = lane.pto_deadline().expect("armed");
        deadlines.push(t.since(now));
        now = t;
        lane.on_probe_timeout(now, &mut streams);
        assert!(lane.probes > 0);
        send(&mut lane, &mut rng, now);
    }
    // The newest goes first.
    assert_eq!(streams.lost[..2], [9, 8]);
    assert!(deadlines.windows(2).skip(1).all(|w| w[1] >= w[0]), "{deadlines:?}");
    assert!(deadlines.iter().all(|d| *d <= MAX_PTO), "{deadlines:?}");
}

#[test]
fn short_path_sends_ping_before_retransmitting() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    let micros = |n: u64| Time::from_nanos(n * 1_000);
    for n in 0..10 {
        send(&mut lane, &mut rng, micros(1_000 + n));
    }
    // A round trip of a tenth of a millisecond.
    lane.on_feedback(micros(1_104), &feedback(0..5, vec![]), &mut streams).expect("true");
    let mut last = micros(1_009);
    let mut waits = Vec::new();
    while streams.lost.is_empty() {
        let t = lane.pto_deadline().expect("armed");
        waits.push(t.since(last).as_millis());
        last = t;
        lane.on_probe_timeout(t, &mut streams);
        assert_eq!(
            lane.probes > 0,
            !streams.lost.is_empty(),
            "data leaves beside the pacer only where it is a probe"
        );
    }
    // When nobody has answered for long, data is repeated after all, the newest first.
    assert!(waits.len() >= 3 && waits.iter().rev().skip(1).all(|w| *w < 10), "{waits:?}");
    assert!(waits.last().is_some_and(|w| (10..25).contains(w)), "{waits:?}");
    assert_eq!(streams.lost, [9, 8]);
}

#[test]
fn silence_is_measured_from_the_first_unacknowledged_packet() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    assert_eq!(lane.unacknowledged_since(), None);
    for n in 10..20 {
        lane.on_data_sent(at(n), 1, false);
        send(&mut lane, &mut rng, at(n));
    }
    assert_eq!(lane.unacknowledged_since(), Some(at(10)));
    // Probes do not start the wait anew.
    for n in 1..4 {
        lane.on_probe_timeout(at(1_000 * n), &mut streams);
        lane.on_data_sent(at(1_000 * n), 1, true);
        send(&mut lane, &mut rng, at(1_000 * n));
    }
    assert_eq!(lane.unacknowledged_since(), Some(at(10)));
    // An acknowledgement does, and when all is acknowledged there is nothing to wait for.
    lane.on_feedback(at(4_000), &feedback(0..1, vec![]), &mut streams).expect("true");
    assert_eq!(lane.unacknowledged_since(), Some(at(4_000)));
    let all = lane.sent.next();
    lane.on_feedback(at(4_001), &feedback(0..all, vec![]), &mut streams).expect("true");
    assert_eq!(lane.unacknowledged_since(), None);
    lane.on_data_sent(at(9_000), 1, false);
    send(&mut lane, &mut rng, at(9_000));
    assert_eq!(lane.unacknowledged_since(), Some(at(9_000)));
}

#[test]
fn lost_packets_are_kept_three_round_trips_unless_space_runs_out() {
    for (packets, kept) in [(1_000, true), (MAX_TRACKED / 2 + 1, false)] {
        let (mut lane, mut rng) = lane();
        let mut streams = RecordingStreams::default();
        for _ in 0..packets {
            lane.sent.push(SentPacket {
                time: at(1_000),
                train: NO_TRAIN,
                bytes: 1500,
                state: State::Outstanding,
                content: Content::Nothing,
            });
        }
        let newest = send(&mut lane, &mut rng, at(1_090));
        #[allow(clippy::single_range_in_vec_init, reason = "a list of one hole")]
        let told = feedback(0..newest + 1, vec![0..1]);
        let out = lane.on_feedback(at(1_170), &told, &mut streams).expect("true");
        assert_eq!(out.lost, 1);
        // Two round trips after it left.
        assert_eq!(lane.sent.get(0).is_some(), kept, "{packets} packets");
    }
}

#[test]
fn application_limited_tail_does_not_measure_the_path() {
    let (mut lane, mut rng) = lane();
    let mut streams = RecordingStreams::default();
    lane.skip_in = u64::MAX;
    // A packet each 10 us, acknowledged a round trip of 20 ms later: 150 MB/s.
    let us = |n: u64| Time::from_nanos(1_000_000_000 + n * 1_000);
    let mut times = Vec::new();
    for n in 0..40_000u64 {
        send(&mut lane, &mut rng, us(10 * n));
        times.push(lane.sent.next());
        if n >= 2_000 && n % 100 == 0 {
            let told = feedback(0..times[n as usize - 2_000], vec![]);
            lane.on_feedback(us(10 * n), &told, &mut streams).expect("true");
        }
    }
    let all = lane.sent.next();
    lane.on_feedback(us(420_000), &feedback(0..all, vec![]), &mut streams).expect("true");
    let before = lane.flows[0].carried().expect("many round trips").bytes_per_sec();
    assert!((130_000_000..170_000_000).contains(&before), "{before}");
    // Much later a message of one packet, and its report.
    for n in 1..5 {
        send(&mut lane, &mut rng, us(n * 1_000_000));
        let all = lane.sent.next();
        lane.on_feedback(us(n * 1_000_000 + 20_000), &feedback(0..all, vec![]), &mut streams).expect("true");
    }
    assert_eq!(lane.flows[0].carried().map(Rate::bytes_per_sec), Some(before));
}

#[test]
fn short_paths_request_fewer_reports() {
    let us = Span::from_micros;
    let cases = [
        (10, 250),
        (1_000, 250),
        (1_600, 400),
        (2_000, 500),
        (4_000, 500),
        (8_000, 1_000),
        (900_000, 25_000),
    ];
    for (rtt, interval) in cases {
        assert_eq!(interval_over(us(rtt)), us(interval), "round trip of {rtt} us");
    }
}
