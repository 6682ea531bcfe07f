//! A lane: one UDP 4-tuple with its own packet numbers, path state, congestion control and pacer.

mod ack_batch;
pub mod burst;
pub mod delay_trace;
pub mod dispersion;
pub mod ecn;
mod floor;
pub mod mtu;
pub mod path_validation;
pub mod received;
pub mod rtt;
pub mod sent;
pub mod telemetry;

use crate::connection::FallbackStates;
use crate::error::{Violation, code};
use crate::stats::PathStats;
use crate::streams::Streams;
use ack_batch::AckBatch;
use base::{Rate, Rng, Span, Time};
use burst::Bursts;
use cc::engine::{Flow, PathSignals, Train, Trend};
use cc::platform::PathCapability;
use delay_trace::DelayTrace;
use dispersion::Dispersion;
use ecn::{EcnValidator, MarkedPackets};
use mtu::MtuSearch;
use path_validation::PathValidation;
use received::Received;
use rtt::{OneWayDelay, Rtt};
use sent::{Content, FalseFeedback, MAX_TRACKED, NO_TRAIN, SentPacket, SentPackets, State};
use std::collections::VecDeque;
use std::net::SocketAddr;
use telemetry::TelemetryDetector;
use wire::{Cid, Feedback, Floor, Frame};

/// Bounds of the feedback interval that this end asks for: an eighth of the round trip within them, but a quarter of it up to
/// [`SHORT_FEEDBACK`]. On short paths each report wakes a host for little news, and more come than a decision needs.
const MIN_FEEDBACK: Span = Span::from_micros(250);
const MAX_FEEDBACK: Span = Span::from_millis(25);
const SHORT_FEEDBACK: Span = Span::from_micros(500);
/// A host that is busy lets its program wait for milliseconds, in which nothing is lost. On paths much shorter than that a time-out
/// after less says little, and data is not repeated on it: Linux, too, waits so long for its tail-loss probe.
const BUSY_PEER: Span = Span::from_millis(10);
/// A probe time-out is never longer than this, so that work resumes soon after a long black-out.
const MAX_PTO: Span = Span::from_millis(1_000);
/// A packet number is left out on average this often: whoever acknowledges it acknowledges optimistically.
const SKIP_EVERY: (u64, u64) = (500, 4_500);
/// Flows on one lane at most. Most connections have one; a queue pair with an algorithm of its own has one of its own.
pub const MAX_FLOWS: usize = 64;
/// Control packets whose frames are kept for repetition at most.
pub const MAX_CONTROL: usize = 4_096;
/// Frames that one control packet repeats when lost at most.
pub const MAX_FRAMES_PER_PACKET: usize = 64;
/// Lost control frames that wait to be sent again at most. They leave before other frames do, so that frames kept for
/// repetition and those that wait for it never exceed this together.
pub const MAX_LOST_FRAMES: usize = MAX_CONTROL * MAX_FRAMES_PER_PACKET;

/// The state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The server has not received a packet of the client on it.
    Waiting,
    /// The client is validating the path.
    Validating,
    /// The lane carries data.
    Open,
    /// Nothing is received: it is probed, and others carry its data.
    Dead,
    /// The lane is closed.
    Closed,
}

/// Bytes and packets that a lane carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Bytes of data packets sent.
    pub sent: u64,
    /// Bytes of packets received that passed their tag.
    pub received: u64,
    /// Packets declared lost.
    pub lost: u64,
}

/// Whether a working lane carries data or rests because it shares a bottleneck with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CouplingHold {
    /// The lane carries data.
    Free,
    /// It is paused for an experiment.
    Paused,
    /// It rests: it shares a bottleneck with the lane of this number, which carries data for both.
    Resting(u32),
    /// It rests, but carries data for a moment, to see whether that is still right.
    Trial(u32),
}

impl CouplingHold {
    /// The lane that it rests for.
    pub const fn lead(self) -> Option<u32> {
        match self {
            CouplingHold::Resting(l) | CouplingHold::Trial(l) => Some(l),
            CouplingHold::Free | CouplingHold::Paused => None,
        }
    }

    /// Whether it carries no data now.
    pub const fn is_held(self) -> bool {
        matches!(self, CouplingHold::Paused | CouplingHold::Resting(_))
    }
}

/// The state of one lane. The connection routes packets, feedback and timers to it.
#[derive(Debug)]
pub struct Lane {
    /// Its number in the connection.
    pub id: u32,
    /// The identifier the peer puts into packets for this end.
    pub local_cid: Cid,
    /// The identifier of packets for the peer.
    pub remote_cid: Cid,
    /// Where the peer is.
    pub remote: SocketAddr,
    /// Where we are, when known (for hosts with several addresses).
    pub local: Option<std::net::IpAddr>,
    /// Which of the endpoint's sockets its packets leave by, and arrive at.
    pub socket: u16,
    /// Its socket took nothing more when it was looked at last.
    pub blocked: bool,
    /// How far it is.
    pub stage: Stage,
    /// Data could go over it once.
    pub has_worked: bool,
    /// The user was told that it is dead.
    pub dead_reported: bool,
    /// When that is to be told of a lane that is dead.
    pub dead_notice_at: Time,
    /// It carries data only while no other lane does.
    pub backup: bool,
    /// Whether it is held back because of another lane.
    pub hold: CouplingHold,
    /// Bytes of data packets sent and of packets received, and packets lost.
    pub carried: LaneCounters,
    /// Delays of late, when there are other lanes to compare with.
    pub trace: DelayTrace,
    /// Whether the peer is at the address that its packets come from.
    pub path: Option<PathValidation>,
    /// An answer to the peer's challenge that is to go elsewhere than the lane's packets: to where it came from.
    pub answer: Option<(SocketAddr, Option<std::net::IpAddr>, [u8; 8])>,
    /// Frames to send once on this lane; not retransmitted.
    pub unreliable_frames: VecDeque<Frame<'static>>,
    /// Something that asks for feedback is to leave on this lane.
    pub ping: bool,
    /// A train left while reports may wait: they are next.
    pub overtaken: bool,
    /// Data has left, since a report was asked for, that somebody waits to hear of.
    pub asks: bool,
    /// Whether its flows go on with what they began.
    pub bursts: Bursts,
    /// Packets sent.
    pub sent: SentPackets,
    /// Packets received.
    pub received: Received,
    /// Round-trip time.
    pub rtt: Rtt,
    owd: OneWayDelay,
    queue_delay: Span,
    /// The highest packet number reported.
    largest: Option<u64>,
    /// Dispersion of trains.
    pub dispersion: Dispersion,
    /// The arrival rate of a train, as measured from the feedback that is being processed.
    train_rate: Option<Rate>,
    /// Flows; the first is the connection's own.
    pub flows: Vec<Flow>,
    /// Packet size.
    pub mtu: MtuSearch,
    /// ECN validation.
    pub ecn: EcnValidator,
    /// Detection of in-band telemetry.
    pub telemetry: TelemetryDetector,
    /// Fallbacks of algorithms that lack signals here, by flow.
    pub fallbacks: FallbackStates,
    /// How fast the round trip and the one-way delay rise.
    trends: Trend<2>,
    /// How long the newest reported packet waited in the peer's host.
    host_delay: Span,
    /// Frames in flight that are repeated when lost, by index.
    control: Vec<Vec<Frame<'static>>>,
    free_control: Vec<u32>,
    /// Frames that were lost and must be sent again.
    pub lost_frames: VecDeque<Frame<'static>>,
    marked: u64,
    reorder: Span,
    reorder_shift: u32,
    pto_count: u32,
    last_eliciting: Time,
    /// Packets that may leave beside pacing, to find out what is lost.
    pub probes: u32,
    /// The feedback settings that the peer was sent last.
    floor: Option<Floor>,
    /// What that follows from may have changed since it was looked at.
    floor_moves: bool,
    /// Numbers that the peer lists as missing were decided since.
    holes_decided: bool,
    /// When the pacer lets the next train go.
    pub next_send: Option<Time>,
    skip_in: u64,
    /// Data packets whose fate is unknown.
    data_outstanding: u64,
    /// Since when data waits for its first, or its next, acknowledgement.
    data_since: Option<Time>,
    /// Since when packets are outstanding of which none was acknowledged.
    unheard_since: Time,
    /// Probe time-outs with packets larger than the base outstanding, since the last of those arrived: they hint
    /// at a path that lost its packet size, even while small packets pass.
    stalls: u32,
}

/// The result of processing feedback or a time-out, for the connection's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackOutcome {
    /// Packets declared lost.
    pub lost: u64,
    /// Packets that had been declared lost and had arrived.
    pub spurious: u64,
    /// Newly reported marks.
    pub marked: u64,
    /// The packet size changed.
    pub mtu_changed: bool,
}

impl Lane {
    /// A lane to `remote`.
    pub fn new(
        id: u32,
        cids: (Cid, Cid),
        remote: SocketAddr,
        mtu: MtuSearch,
        flow: Flow,
        rng: &mut Rng,
    ) -> Lane {
        Lane {
            id,
            local_cid: cids.0,
            remote_cid: cids.1,
            remote,
            local: None,
            socket: 0,
            blocked: false,
            stage: Stage::Open,
            has_worked: id == 0,
            dead_reported: false,
            dead_notice_at: Time::ZERO,
            backup: false,
            hold: CouplingHold::Free,
            trace: DelayTrace::default(),
            carried: LaneCounters::default(),
            path: None,
            answer: None,
            unreliable_frames: VecDeque::new(),
            ping: false,
            overtaken: false,
            asks: false,
            bursts: Bursts::default(),
            sent: SentPackets::default(),
            received: Received::new(),
            rtt: Rtt::new(),
            owd: OneWayDelay::new(),
            queue_delay: Span::ZERO,
            largest: None,
            dispersion: Dispersion::default(),
            train_rate: None,
            flows: vec![flow],
            mtu,
            ecn: EcnValidator::default(),
            telemetry: TelemetryDetector::default(),
            fallbacks: FallbackStates::default(),
            trends: Trend::new(),
            host_delay: Span::ZERO,
            control: Vec::new(),
            free_control: Vec::new(),
            lost_frames: VecDeque::new(),
            marked: 0,
            reorder: Span::ZERO,
            reorder_shift: 3,
            pto_count: 0,
            last_eliciting: Time::ZERO,
            probes: 0,
            floor: None,
            floor_moves: true,
            holes_decided: false,
            next_send: None,
            skip_in: rng.range(SKIP_EVERY.0, SKIP_EVERY.1),
            stalls: 0,
            data_outstanding: 0,
            data_since: None,
            unheard_since: Time::ZERO,
        }
    }

    /// Data packets leave; `again` when they repeat what was lost. New data behind none that is outstanding starts the
    /// wait anew: what went before was acknowledged, or nobody repeats it.
    pub fn on_data_sent(&mut self, now: Time, packets: u64, again: bool) {
        if self.data_outstanding == 0 && !again {
            self.data_since = None;
        }
        self.data_since.get_or_insert(now);
        self.data_outstanding += packets;
        self.start_waiting(now);
    }

    fn start_waiting(&mut self, now: Time) {
        if self.sent.outstanding() == 0 {
            self.unheard_since = now;
        }
    }

    /// Since when data is outstanding of which nothing was acknowledged, or packets of any kind.
    pub fn unacknowledged_since(&self) -> Option<Time> {
        let data = self.data_since.filter(|_| self.data_outstanding > 0);
        data.into_iter().chain(self.silent_since()).min()
    }

    /// Since when packets are outstanding of which none was acknowledged.
    pub fn silent_since(&self) -> Option<Time> {
        (self.sent.outstanding() > 0).then_some(self.unheard_since)
    }

    /// When the user is to be told that it is dead: once.
    pub fn dead_notice_due(&self) -> Option<Time> {
        (self.stage == Stage::Dead && !self.dead_reported).then_some(self.dead_notice_at)
    }

    /// Where packets go. The address of a lane that is being opened is the one that is being checked.
    pub fn target(&self) -> (SocketAddr, Option<std::net::IpAddr>) {
        match (&self.path, self.stage) {
            (Some(p), Stage::Waiting | Stage::Validating) => (p.remote, p.local),
            _ => (self.remote, self.local),
        }
    }

    /// The lane's statistics.
    pub fn stats(&self) -> PathStats {
        PathStats {
            lane: self.id,
            remote: self.remote,
            local: self.local,
            works: self.stage == Stage::Open,
            backup: self.backup,
            found: false,
            shares: self.hold.lead(),
            sent: self.carried.sent,
            received: self.carried.received,
            lost: self.carried.lost,
            srtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            rate: self.flows[0].decision().rate,
            capability: self.capability(),
            fallback_reason: self.fallbacks.why(0),
        }
    }

    /// The signals that the path carries.
    pub fn capability(&self) -> PathCapability {
        let ([ect0, ect1], (marks, l4s)) = (self.ecn.paths(), self.ecn.seen());
        PathCapability { ect0, ect1, marks, l4s, telemetry: self.telemetry.found() }
    }

    /// Hands all outstanding data over to other lanes.
    pub fn abandon_outstanding(&mut self, now: Time, streams: &mut impl Streams) {
        let (mut control, flows) = (Vec::new(), &mut self.flows);
        self.sent.lose_all(|p, train| {
            if let Some(t) = train {
                // The path is to blame, not the queue.
                flows[usize::from(t.flow)].on_lost(p.bytes.into(), p.time, false);
            }
            match p.content {
                Content::Data(qpn, segment) => streams.lost(qpn, segment),
                Content::Control(i) => control.push(i),
                Content::Nothing | Content::MtuProbe(_) => {}
            }
        });
        (self.data_outstanding, self.probes) = (0, 0);
        for i in control {
            let frames = core::mem::take(&mut self.control[i as usize]);
            self.lost_frames.extend(frames);
        }
        self.forget(now);
    }

    /// Bytes of IP and UDP headers on this path.
    pub fn overhead(&self) -> u16 {
        if self.remote.is_ipv6() { 48 } else { 28 }
    }

    /// Keeps the frames of a control packet for retransmission; the returned index is recorded with the packet.
    pub fn keep_control(&mut self, frames: Vec<Frame<'static>>) -> u32 {
        if let Some(i) = self.free_control.pop() {
            self.control[i as usize] = frames;
            return i;
        }
        self.control.push(frames);
        self.control.len() as u32 - 1
    }

    /// Whether one more control packet can be kept.
    pub fn can_keep_control(&self) -> bool {
        !self.free_control.is_empty() || self.control.len() < MAX_CONTROL
    }

    /// Control packets whose frames are kept: at most [`MAX_CONTROL`].
    pub fn kept_control(&self) -> usize {
        self.control.len() - self.free_control.len()
    }

    fn release_control(&mut self, i: u32) -> Vec<Frame<'static>> {
        self.free_control.push(i);
        core::mem::take(&mut self.control[i as usize])
    }

    /// A packet that asks for feedback has left.
    pub fn on_eliciting_sent(&mut self, now: Time) {
        self.start_waiting(now);
        self.last_eliciting = now;
    }

    /// Leaves out a packet number now and then: optimistic acknowledgements name it and are found out.
    pub fn maybe_skip(&mut self, now: Time, rng: &mut Rng) {
        if self.skip_in > 0 {
            self.skip_in -= 1;
            return;
        }
        self.skip_in = rng.range(SKIP_EVERY.0, SKIP_EVERY.1);
        self.sent.push(SentPacket {
            time: now,
            train: NO_TRAIN,
            bytes: 0,
            state: State::Skipped,
            content: Content::Nothing,
        });
    }

    /// Processes a feedback frame.
    pub fn on_feedback(
        &mut self,
        now: Time,
        f: &Feedback,
        streams: &mut impl Streams,
    ) -> Result<FeedbackOutcome, Violation> {
        let false_feedback = |_: FalseFeedback| {
            Violation::new(code::FALSE_FEEDBACK, "feedback about packets that were never sent")
        };
        if f.largest >= self.sent.next() {
            return Err(false_feedback(FalseFeedback));
        }
        let delay = Span::from_micros(f.delay_us.min(1_000_000));
        let acked_at = now - delay;
        let mut out = FeedbackOutcome::default();
        let mut newest: Option<(u64, Time)> = None;
        let (mut acks, mut joined) = (Vec::new(), AckBatch::default());
        let base = self.base_bytes();
        let sampled = self.newly_reported(f);
        let mut large = false;
        let (mut data_acked, mut resolved) = (false, 0);
        self.ecn.check(f, self.sent.next())?;
        self.pass_on_telemetry(now, f);
        let marks = MarkedPackets::of(f);
        let (flows, ecn, queue) = (&mut self.flows, &mut self.ecn, self.queue_delay);
        let telemetry = &mut self.telemetry;
        let verdict = self.sent.on_feedback(f.covered.clone(), &f.holes, |pn, p, train| {
            newest = newest.filter(|(n, _)| *n > pn).or(Some((pn, p.time)));
            large |= p.bytes > base && !matches!(p.content, Content::MtuProbe(_));
            if let Some(t) = train {
                let marked = marks.has(pn);
                notify_arrival(&mut flows[usize::from(t.flow)], p, t, marked);
                ecn.on_acked(now, t.ecn, marked, queue);
                telemetry.on_fate(t.telemetry, true);
            }
            out.spurious += u64::from(p.state == State::Lost);
            match p.content {
                Content::Data(qpn, segment) => {
                    data_acked = true;
                    resolved += u64::from(p.state == State::Outstanding);
                    joined.add(qpn, segment, streams);
                }
                Content::Nothing => {}
                Content::Control(_) | Content::MtuProbe(_) => acks.push(p.content.clone()),
            }
        });
        joined.flush(streams);
        verdict.map_err(false_feedback)?;
        self.data_outstanding = self.data_outstanding.saturating_sub(resolved);
        if data_acked {
            self.data_since = Some(now);
        }
        if large {
            self.stalls = 0;
        }
        for c in acks {
            match c {
                Content::Control(i) => drop(self.release_control(i)),
                Content::MtuProbe(size) => out.mtu_changed |= self.mtu.on_acked(size),
                _ => {}
            }
        }
        let sampled = sampled.filter(|_| newest.is_some());
        self.after_acks(now, f, delay, (newest, sampled), &mut out, streams);
        out.marked = self.count_marks(now, f);
        let rtt = sampled.and(self.rtt.latest());
        self.finish_flows(now, acked_at, rtt);
        self.forget(now);
        Ok(out)
    }

    /// How many marks are news, and what the report as a whole says of the path.
    fn count_marks(&mut self, now: Time, f: &Feedback) -> u64 {
        let marked = f.marked.saturating_sub(self.marked);
        self.marked = self.marked.max(f.marked);
        if f.signals.is_none() {
            self.flows.iter_mut().for_each(|f| f.on_marks_of_any(marked));
        }
        if f.covered.end > f.largest {
            self.ecn.on_report(now, self.rtt.smoothed(), f.signals.is_some());
            self.telemetry.on_report(now, self.rtt.smoothed(), f.signals.is_some());
        }
        marked
    }

    /// Passes telemetry to the flow whose packet it was written into.
    fn pass_on_telemetry(&mut self, now: Time, f: &Feedback) {
        let Some(t) = f.signals.as_ref().and_then(|s| s.telemetry.as_ref()) else { return };
        let train = self.sent.get(t.packet).and_then(|p| self.sent.trains().get(p.train));
        if let Some(flow) = train.filter(|t| t.telemetry).map(|t| usize::from(t.flow)) {
            self.flows[flow].on_telemetry(&t.hops);
            self.telemetry.on_echo(now, t.hops.len());
        }
    }

    /// When the newest packet of a report left, if that is news: the round trip is measured by it, also where it is one
    /// that asks for no report itself (a floor behind each train would else leave a flow without samples). Of a report
    /// in several statements, the last one tells of the newest packets.
    fn newly_reported(&mut self, f: &Feedback) -> Option<Time> {
        if f.covered.end <= f.largest || self.largest.is_some_and(|l| f.largest <= l) {
            return None;
        }
        self.largest = Some(f.largest);
        self.sent.get(f.largest).filter(|p| p.state != State::Skipped).map(|p| p.time)
    }

    /// Round-trip time, reordering and loss, once the newly acknowledged packets are known.
    fn after_acks(
        &mut self,
        now: Time,
        f: &Feedback,
        delay: Span,
        (newest, sampled): (Option<(u64, Time)>, Option<Time>),
        out: &mut FeedbackOutcome,
        streams: &mut impl Streams,
    ) {
        let Some((_, sent)) = newest else { return };
        self.unheard_since = now;
        self.pto_count = 0;
        self.probes = 0;
        if let Some(left) = sampled {
            self.rtt.update(now.since(left), delay);
            self.queue_delay = self.owd.update(now, left, f.arrival_us);
            let over = self.rtt.smoothed();
            let rtt = self.rtt.latest().map_or(0, |r| r.as_nanos() as i64);
            self.trends.add(left, [rtt, self.owd.latest().saturating_mul(1_000)], over);
            let waited = f.signals.as_ref().map_or(0, |s| s.host_delay_us.min(f.delay_us));
            self.host_delay = Span::from_micros(waited.min(1_000_000));
            self.trace.add(left, self.owd.latest());
            let bytes = |r| self.sent.bytes(r);
            self.train_rate = self.dispersion.update(f.largest, left, f.arrival_us, bytes);
        }
        if out.spurious > 0 {
            // Packets came later than the reordering window allowed: widen it (RFC 8985, section 6.2).
            self.reorder_shift = self.reorder_shift.saturating_sub(1);
        }
        self.reorder = (self.rtt.smoothed() / (1 << self.reorder_shift)).max(Span::from_micros(100));
        // RACK: lost is what left a reordering window before a packet that arrived (RFC 8985, section 3.2).
        self.declare_lost(now, sent - self.reorder, out, streams);
    }

    fn declare_lost(
        &mut self,
        now: Time,
        sent_before: Time,
        out: &mut FeedbackOutcome,
        streams: &mut impl Streams,
    ) {
        let mut control = Vec::new();
        let mut probes = Vec::new();
        let mut data = 0;
        let (flows, ecn, rtt) = (&mut self.flows, &mut self.ecn, self.rtt.smoothed());
        let telemetry = &mut self.telemetry;
        self.sent.detect_lost(sent_before, |_, p, train| {
            let probe = matches!(p.content, Content::MtuProbe(_));
            out.lost += u64::from(!probe);
            if let Some(t) = train {
                flows[usize::from(t.flow)].on_lost(p.bytes.into(), p.time, !probe);
                ecn.on_lost(now, t.ecn, rtt);
                telemetry.on_fate(t.telemetry, false);
            }
            match p.content {
                Content::Data(qpn, segment) => {
                    data += 1;
                    streams.lost(qpn, segment);
                }
                Content::Control(i) => control.push(i),
                Content::MtuProbe(size) => probes.push(size),
                Content::Nothing => {}
            }
        });
        self.data_outstanding = self.data_outstanding.saturating_sub(data);
        for i in control {
            // The packet stays tracked as lost; its late acknowledgement must not free the slot twice.
            let frames = core::mem::take(&mut self.control[i as usize]);
            self.lost_frames.extend(frames);
        }
        probes.into_iter().for_each(|size| self.mtu.on_lost(size));
    }

    fn finish_flows(&mut self, now: Time, acked_at: Time, rtt: Option<Span>) {
        let [rtt_trend, delay_trend] = self.trends.millionths();
        let lane = PathSignals {
            now,
            acked_at,
            rtt,
            srtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            queue_delay: self.queue_delay,
            dispersion: self.train_rate.take(),
            rtt_trend,
            delay_trend,
            host_delay: self.host_delay,
        };
        self.flows.iter_mut().for_each(|f| f.finish(&lane));
    }

    /// Forgets sent packets whose fate is decided.
    pub fn forget(&mut self, now: Time) {
        // A lost packet is watched for a further round trip or two: its late report is a spurious loss. Where the table
        // fills up (400 Gbit/s over 100 ms has 3.3 million packets in flight), knowing that is not worth a slower sender.
        let rtt = self.rtt.smoothed();
        let watch =
            if self.sent.tracked() < MAX_TRACKED / 2 { rtt * 3 } else { rtt + rtt / 4 } + self.reorder;
        let mut freed = Vec::new();
        let holes = &mut self.holes_decided;
        self.sent.forget(now, watch, |p| {
            *holes |= matches!(p.state, State::Lost | State::Skipped);
            if let Content::Control(i) = p.content {
                freed.push(i);
            }
        });
        self.free_control.append(&mut freed);
        // Round trips and decisions change with reports, and so before this.
        self.floor_moves = true;
    }

    /// How often this end wants reports.
    pub fn feedback_interval(&self) -> Span {
        interval_over(self.rtt.smoothed())
    }

    /// Whether a flow with `bytes` more in flight can send nothing before it hears of them, on a path on which reports come
    /// later than a round trip if none is asked for. Where they come in time, asking would only make trains short.
    pub fn waits_for_report(&self, flow: u8, bytes: u64) -> bool {
        let packet = u64::from(self.mtu.current()) + u64::from(self.overhead());
        let late = self.rtt.smoothed() < self.feedback_interval();
        late && self.flows[usize::from(flow)].is_full_with(bytes, packet)
    }

    /// When suspects are to be declared lost without further feedback.
    pub fn loss_deadline(&mut self) -> Option<Time> {
        let wait = self.rtt.until_reported() + self.reorder + self.feedback_interval() * 2;
        self.sent.oldest_suspect().map(|t| t + wait)
    }

    /// When a probe is to be sent because nothing was heard.
    pub fn pto_deadline(&self) -> Option<Time> {
        if self.sent.outstanding() == 0 {
            return None;
        }
        let pto = self.rtt.probe_timeout() + self.feedback_interval();
        let backoff = pto * (1 << self.pto_count.min(6));
        Some(self.last_eliciting + backoff.min(MAX_PTO.max(pto)))
    }

    /// The loss timer fired.
    pub fn on_loss_timeout(&mut self, now: Time, streams: &mut impl Streams) -> FeedbackOutcome {
        let mut out = FeedbackOutcome::default();
        if let Some(t) = self.sent.oldest_suspect() {
            self.declare_lost(now, t, &mut out, streams);
            self.finish_flows(now, now, None);
            self.forget(now);
        }
        out
    }

    /// The probe timer fired: the newest data goes out again beside pacing (RFC 8985, section 7). Where asking costs little
    /// beside what was waited, nothing does: the report on a PING tells what is lost (RFC 9002, section 6.2.4, allows both).
    pub fn on_probe_timeout(&mut self, now: Time, streams: &mut impl Streams) -> FeedbackOutcome {
        let mut out = FeedbackOutcome::default();
        self.pto_count += 1;
        let base = self.base_bytes();
        let mut large = false;
        let waited = now.since(self.last_eliciting);
        let asks_first = waited < BUSY_PEER && self.rtt.is_known() && self.rtt.min() * 4 <= waited;
        // The clock of the next time-out starts here even when nothing can be sent.
        self.last_eliciting = now;
        self.probes = if asks_first { 0 } else { 2 };
        for pn in self.sent.newest_data(2) {
            large |= self.sent.get(pn).is_some_and(|p| p.bytes > base);
            if asks_first {
                continue;
            }
            let Some(p) = self.sent.force_lost(pn) else { continue };
            if let Some(t) = self.sent.trains().get(p.train) {
                self.flows[usize::from(t.flow)].on_lost(p.bytes.into(), p.time, false);
            }
            match p.content {
                Content::Data(qpn, segment) => {
                    self.data_outstanding = self.data_outstanding.saturating_sub(1);
                    streams.lost(qpn, segment);
                }
                Content::Control(i) => {
                    let frames = core::mem::take(&mut self.control[i as usize]);
                    self.lost_frames.extend(frames);
                }
                Content::Nothing | Content::MtuProbe(_) => {}
            }
        }
        let event = cc::Event::ProbeTimeout { count: self.pto_count };
        self.flows.iter_mut().for_each(|f| f.on_event(now, event));
        if self.pto_count == 4 {
            // RFC 9002, section 7.6: nothing got through for several time-outs.
            self.flows.iter_mut().for_each(|f| f.on_event(now, cc::Event::PersistentCongestion));
        }
        self.ecn.on_timeout(now, self.rtt.smoothed());
        self.stalls += u32::from(large);
        if self.stalls >= 3 {
            self.stalls = 0;
            out.mtu_changed = self.mtu.on_black_hole(now);
        }
        out
    }

    /// Bytes on the wire of a packet that every path carries.
    fn base_bytes(&self) -> u32 {
        u32::from(mtu::BASE) + u32::from(self.overhead())
    }

    /// Consecutive probe time-outs.
    pub const fn pto_count(&self) -> u32 {
        self.pto_count
    }

    /// The peer is at another address now: what was learned of the path no longer holds.
    pub fn on_path_change(&mut self, now: Time, info: cc::PathInfo) {
        self.rtt = Rtt::new();
        self.owd = OneWayDelay::new();
        self.trace.clear();
        self.ecn.on_path_change();
        self.telemetry = TelemetryDetector::default();
        self.trends = Trend::new();
        (self.pto_count, self.probes) = (0, 0);
        self.flows.iter_mut().for_each(|f| f.on_path_change(now, info));
    }
}

fn interval_over(rtt: Span) -> Span {
    (rtt / 8).max((rtt / 4).min(SHORT_FEEDBACK)).clamp(MIN_FEEDBACK, MAX_FEEDBACK)
}

/// A packet of a flow arrived.
fn notify_arrival(flow: &mut Flow, p: &SentPacket, train: &Train, marked: bool) {
    let (bytes, lost) = (u64::from(p.bytes), p.state == State::Lost);
    match lost {
        true => flow.on_spurious(bytes),
        false => flow.on_acked(bytes, Some(train)),
    }
    if marked {
        flow.on_marked(bytes, !lost);
    }
}

#[cfg(test)]
mod tests;
