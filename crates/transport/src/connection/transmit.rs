//! Builds datagrams to send, in order: handshake, control frames, MTU probes, trains of data.

use super::{Connection, State};
use crate::crypto::KeyError;
use crate::crypto::TrainSealer;
use crate::error::{Violation, code};
use crate::lane::sent::{Content, SentPacket};
use crate::lane::{MAX_FRAMES_PER_PACKET, Stage};
use crate::streams::Streams;
use base::{Ecn, Prefetch, Span, Time};
use cc::Token;
use cc::engine::Train;
use std::net::{IpAddr, SocketAddr};
use wire::Frame;
use wire::packet::{SHORT_CLEAR, flag};

/// Segments of a train at most: the kernel's UDP_MAX_SEGMENTS.
pub const MAX_SEGMENTS: usize = 64;
/// Bytes of a train at most: what one UDP datagram over IPv4 could hold.
pub const MAX_TRAIN: usize = 65_507;

/// Feedback statements, floors and answers to challenges that wait at most. Statements are made only when the queue is
/// empty: 2^18 runs, each at most two varints of 8 bytes, take about 4,000 packets of 1,200 bytes.
pub const MAX_UNRELIABLE_FRAMES: usize = 1 << 13;

/// Control packets are at least this long, so that a peer that has forgotten the connection may answer with a
/// reset, which is shorter than what it answers (RFC 9000, section 10.3).
const MIN_CONTROL: usize = 48;
/// Reports travel with a data packet of at most this many bytes.
const MAX_PIGGYBACK_DATA: usize = 256;
/// Credits that wait behind data at most.
const MAX_CREDITS: usize = 8;
/// Bytes of reports that travel with a data packet at most: both together fit the smallest path.
const MAX_REPORTS: usize = 512;

/// A train that was written into the caller's buffer: `len` bytes in segments of `segment` bytes, the last perhaps
/// shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub remote: SocketAddr,
    /// From which address, when it matters.
    pub local: Option<IpAddr>,
    /// What its packets carry in the ECN field.
    pub ecn: Ecn,
    /// Their differentiated-services code point, 0 to 63.
    pub dscp: u8,
    /// Bytes of each datagram but the last.
    pub segment: usize,
    /// Bytes in all.
    pub len: usize,
    /// Which of the endpoint's sockets it leaves by: that of its lane.
    pub socket: u16,
}

/// The buffers into which trains are written: one for each socket.
pub trait TransmitBuffers {
    /// The memory of the next train of a socket, at least [`MAX_TRAIN`] bytes; the same until a train is committed, which
    /// is the driver's business. `None` while the socket takes nothing more.
    fn slot(&mut self, socket: u16) -> Option<&mut [u8]>;

    /// The slot holds a train of `len` bytes in segments of `segment`, which is to be sealed before it leaves: at once or
    /// by somebody else. Trains of at most [`MAX_INLINE_SEAL`] bytes are to be sealed at once.
    fn protect(&mut self, socket: u16, sealing: TrainSealer, len: usize, segment: usize);
}

/// Trains up to this length are sealed by the thread that builds them: handing them to another would cost more.
pub const MAX_INLINE_SEAL: usize = 1 << 12;

/// One buffer for all sockets, for callers that send each train before the next is built.
#[derive(Debug)]
pub struct SingleBuffer<'a>(pub &'a mut [u8]);

impl TransmitBuffers for SingleBuffer<'_> {
    fn slot(&mut self, _: u16) -> Option<&mut [u8]> {
        Some(self.0)
    }
    fn protect(&mut self, _: u16, sealing: TrainSealer, len: usize, segment: usize) {
        sealing.seal(&mut self.0[..len], segment);
    }
}

/// Packets of a train while which is sealed the payload of the next one is fetched.
const LONG_TRAIN: u64 = 4;

/// Permission to build a train. Only the pacer makes tokens, so unpaced sending does not compile; the one exception is
/// a probe after a time-out, a single packet, which gets feedback going again.
pub(super) enum Permit {
    Paced(Token),
    Probe(u64),
}

impl Permit {
    pub(super) fn covers(&self, bytes: u64) -> bool {
        self.bytes() >= bytes
    }
    /// Bytes that it is for.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Permit::Paced(t) => t.bytes(),
            Permit::Probe(left) => *left,
        }
    }
    pub(super) fn spend(&mut self, bytes: u64) {
        match self {
            // Covered: asked before the packet was built.
            Permit::Paced(t) => drop(t.spend(bytes)),
            Permit::Probe(left) => *left = left.saturating_sub(bytes),
        }
    }
}

/// The measures of a train under construction, needed to record it as sent.
pub(super) struct TrainDraft {
    pub(super) packets: u64,
    pub(super) wire_bytes: u64,
    pub(super) len: usize,
    pub(super) segment: usize,
    pub(super) ecn: Ecn,
}

impl TrainDraft {
    /// `n` packets more of so many bytes, each with `overhead` on the wire.
    pub(super) fn add(&mut self, n: usize, bytes: usize, overhead: u64) {
        self.packets += n as u64;
        self.len += n * bytes;
        self.wire_bytes += n as u64 * (bytes as u64 + overhead);
    }
}

impl Connection {
    /// From the next packets on, a report that the peer asked for waits so long for data that takes it along: who gives the
    /// application its messages between two turns sets it. Zero: it leaves at once.
    pub const fn set_answer_wait(&mut self, wait: Span) {
        self.answer_wait = wait;
    }

    /// Writes what is to be sent now into the slot of the socket by which it leaves. Call until it gives nothing.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        out: &mut impl TransmitBuffers,
        streams: &mut impl Streams,
    ) -> Option<Transmit> {
        if self.has_deferred_feedback() {
            // An answer leaves first, if there is one.
            if self.may_send_before_feedback()
                && let Some(t) = self.poll_train(now, out, streams)
            {
                return Some(t);
            }
            self.process_deferred_feedback_or_close(now, streams);
        }
        self.poll_train(now, out, streams)
    }

    fn poll_train(
        &mut self,
        now: Time,
        out: &mut impl TransmitBuffers,
        streams: &mut impl Streams,
    ) -> Option<Transmit> {
        match &self.state {
            State::Closed => return None,
            State::Closing(_) => {
                let setup = if self.keys.is_some() { self.transmit_setup(now, out) } else { None };
                return setup.or_else(|| self.transmit_close(now, out));
            }
            State::Handshake | State::Open => {}
        }
        if let Some(t) = self.transmit_setup(now, out) {
            return Some(t);
        }
        self.keys.as_ref()?;
        self.update_keys();
        self.couple(now);
        let lanes = self.lanes.len();
        for k in 0..lanes {
            let lane = round_robin_index(self.next_lane + k, lanes);
            if let Some(t) = self.transmit_lane(now, lane, out, streams) {
                // Lanes take turns: none waits for another that always has something to send.
                self.next_lane = round_robin_index(lane + 1, lanes);
                return Some(t);
            }
        }
        None
    }

    fn transmit_lane(
        &mut self,
        now: Time,
        lane: usize,
        out: &mut impl TransmitBuffers,
        streams: &mut impl Streams,
    ) -> Option<Transmit> {
        let socket = self.lanes[lane].socket;
        let buf = self.slot(lane, out)?;
        let l = &self.lanes[lane];
        if l.answer.is_some() || l.path.is_some() {
            let first = self.transmit_answer(now, lane, buf);
            if let Some(t) = first.or_else(|| self.transmit_challenge(now, lane, buf)) {
                return Some(t);
            }
        }
        match self.lanes[lane].stage {
            Stage::Closed => return None,
            // Nobody has answered there: nothing leaves but what finds out, and answers to the peer's finding out.
            Stage::Waiting | Stage::Validating => {
                return self.transmit_control(now, lane, out.slot(socket)?);
            }
            Stage::Open | Stage::Dead => {}
        }
        // One train may leave before a report does: somebody waits for its data, and a report can wait that long. Other
        // frames come first, since data may depend on them.
        let overtakes =
            !self.has_frames_for_data() && !core::mem::replace(&mut self.lanes[lane].overtaken, true);
        if overtakes && let Some(t) = self.transmit_data(now, lane, true, out, streams) {
            return Some(t);
        }
        if let Some(t) = self.transmit_control(now, lane, out.slot(socket)?) {
            return Some(t);
        }
        self.lanes[lane].overtaken = false;
        if let Some(t) = self.transmit_mtu_probe(now, lane, out.slot(socket)?) {
            return Some(t);
        }
        if overtakes {
            // There was no data a moment ago.
            return None;
        }
        let t = self.transmit_data(now, lane, false, out, streams)?;
        self.lanes[lane].overtaken = true;
        Some(t)
    }

    /// Whether frames wait that data may depend on. Credit is not among them: it is for what the peer sends.
    fn has_frames_for_data(&self) -> bool {
        let credit = |f: &Frame<'_>| matches!(f, Frame::RecvLimit { .. });
        let lost = self.lanes.iter().any(|l| !l.lost_frames.is_empty());
        lost || self.frames.len() > MAX_CREDITS || !self.frames.iter().all(credit)
    }

    /// Room for a train on a lane; where there is none, whoever drives looks again when there is
    /// ([`Connection::is_blocked`]).
    fn slot<'o>(&mut self, lane: usize, out: &'o mut impl TransmitBuffers) -> Option<&'o mut [u8]> {
        let slot = out.slot(self.lanes[lane].socket);
        self.lanes[lane].blocked = slot.is_none();
        slot
    }

    fn transmit_setup(&mut self, now: Time, out: &mut impl TransmitBuffers) -> Option<Transmit> {
        if !self.handshake.has_pending() {
            return None;
        }
        let buf = self.slot(0, out)?;
        let n = self.handshake.poll_datagram(now, self.side, buf)?;
        self.stats.packets_sent += 1;
        self.stats.bytes_sent += n as u64 + u64::from(self.lanes[0].overhead());
        Some(self.single(0, n))
    }

    fn single(&self, lane: usize, len: usize) -> Transmit {
        let (remote, local) = self.lanes[lane].target();
        let (dscp, socket) = (self.flow_setups[0].dscp, self.lanes[lane].socket);
        Transmit { remote, local, ecn: Ecn::NotEct, dscp, segment: len, len, socket }
    }

    fn transmit_close(&mut self, now: Time, out: &mut impl TransmitBuffers) -> Option<Transmit> {
        let lane = self.main_lane();
        let buf = self.slot(lane, out)?;
        let State::Closing(c) = &mut self.state else { return None };
        let mut frame = Vec::new();
        c.poll(now)?.put(&mut frame);
        let done = c.is_done();
        let n = if self.keys.is_some() {
            let n = self.seal_control(lane, &frame, 0, buf)?;
            // A repetition, or an acknowledgement after it, has a number of its own: nonces are used once.
            self.record_control(now, lane, n, Content::Nothing, false);
            Some(n)
        } else {
            let f = Frame::parse(&mut wire::Reader::new(&frame)).ok()?;
            self.handshake.write_close(&f, buf)
        };
        if done {
            self.state = State::Closed;
        }
        n.map(|n| self.single(lane, n))
    }

    /// Updates the keys when that is wanted and allowed. It is not before something sealed with the present keys is
    /// acknowledged (RFC 9001, section 6.1), and not over before the peer has seen the new ones. An end that has nothing to
    /// say, or only feedback, which nobody acknowledges, sends a PING for both.
    fn update_keys(&mut self) {
        let Some(k) = &mut self.keys else { return };
        if !self.update_wanted && !k.seal_keys().should_update() {
            return;
        }
        let updated = k.update();
        let generation = k.seal_keys().generation();
        match updated {
            Ok(()) => {
                self.update_wanted = false;
                self.stats.key_updates += 1;
            }
            Err(KeyError::NoUpdates) => return self.update_wanted = false,
            Err(_) if k.is_acknowledged() => return,
            Err(_) => {}
        }
        if self.update_ping.replace(generation) != Some(generation) {
            self.push_frame(Frame::Ping);
        }
    }

    /// Seals one control packet without recording it as sent. Its number is the next one.
    fn seal_control(&mut self, lane: usize, frames: &[u8], pad_to: usize, buf: &mut [u8]) -> Option<usize> {
        let keys = self.keys.as_mut()?;
        let tag_len = keys.suite().tag_len();
        let l = &self.lanes[lane];
        let pn = l.sent.next();
        let len = (SHORT_CLEAR + tag_len + frames.len()).max(pad_to);
        let packet = buf.get_mut(..len)?;
        packet[SHORT_CLEAR + tag_len..].fill(0);
        packet[SHORT_CLEAR + tag_len..][..frames.len()].copy_from_slice(frames);
        let phase = if keys.seal_keys().phase() { flag::KEY_PHASE } else { 0 };
        write_clear_header(packet, phase, l.remote_cid.0, pn);
        let (clear, rest) = packet.split_at_mut(SHORT_CLEAR);
        let (tag_at, body) = rest.split_at_mut(tag_len);
        let tag = keys.seal(l.id, pn, clear, body).ok()?;
        tag_at.copy_from_slice(&tag[..tag_len]);
        keys.seal_keys().header().mask_segments(packet, len);
        let bytes = len as u64 + u64::from(l.overhead());
        self.stats.packets_sent += 1;
        self.stats.bytes_sent += bytes;
        self.stats.control_packets_sent += 1;
        self.stats.control_bytes_sent += bytes;
        Some(len)
    }

    /// Records a control packet that was just sealed as sent.
    fn record_control(&mut self, now: Time, lane: usize, len: usize, content: Content, eliciting: bool) {
        let bytes = len as u32 + u32::from(self.lanes[lane].overhead());
        let l = &mut self.lanes[lane];
        let state = if eliciting {
            crate::lane::sent::State::Outstanding
        } else {
            crate::lane::sent::State::Untracked
        };
        // Control is not held back by congestion control, but counts as in flight.
        let train = if eliciting {
            let mut t = l.flows[0].begin_train(now, 0);
            l.flows[0].on_sent(now, &mut t, bytes.into(), 1, false);
            l.on_eliciting_sent(now);
            self.last_eliciting_sent = now;
            self.lanes[lane].sent.trains_mut().begin(t)
        } else {
            crate::lane::sent::NO_TRAIN
        };
        let l = &mut self.lanes[lane];
        l.sent.push(SentPacket { time: now, train, bytes, state, content });
        if !eliciting {
            // Nobody reports on it: an end that only receives would otherwise never forget its reports.
            l.forget(now);
        }
    }

    fn transmit_challenge(&mut self, now: Time, lane: usize, buf: &mut [u8]) -> Option<Transmit> {
        let l = &mut self.lanes[lane];
        if !l.sent.has_room_for_control() {
            return None;
        }
        let p = l.path.as_mut()?;
        let (remote, local) = (p.remote, p.local);
        let mut frame = Vec::new();
        p.poll(now)?.put(&mut frame);
        let n = self.seal_control(lane, &frame, 0, buf)?;
        self.record_control(now, lane, n, Content::Nothing, false);
        Some(Transmit { remote, local, ..self.single(lane, n) })
    }

    /// An answer to a challenge that came from elsewhere than the lane's packets go: alone, and no larger than what it
    /// answers.
    fn transmit_answer(&mut self, now: Time, lane: usize, buf: &mut [u8]) -> Option<Transmit> {
        let l = &mut self.lanes[lane];
        if l.stage == Stage::Closed || !l.sent.has_room_for_control() {
            return None;
        }
        let (remote, local, data) = l.answer.take()?;
        let mut frame = Vec::new();
        Frame::PathResponse(data).put(&mut frame);
        let n = self.seal_control(lane, &frame, 0, buf)?;
        self.record_control(now, lane, n, Content::Nothing, false);
        Some(Transmit { remote, local, ..self.single(lane, n) })
    }

    /// One packet of frames that wait.
    fn transmit_control(&mut self, now: Time, lane: usize, buf: &mut [u8]) -> Option<Transmit> {
        let room = usize::from(self.lanes[lane].mtu.current()) - SHORT_CLEAR - 16;
        if !self.lanes[lane].sent.has_room_for_control() {
            return None;
        }
        // Before anybody has answered there, a lane carries nothing but what is its own.
        let proven = matches!(self.lanes[lane].stage, Stage::Open | Stage::Dead);
        let main = proven && lane == self.main_lane();
        self.queue_reports(now, lane, (main, false), room - 64);
        let mut bytes = Vec::new();
        self.take_unreliable_frames(lane, room, &mut bytes);
        let ping = core::mem::take(&mut self.lanes[lane].ping);
        if ping {
            Frame::Ping.put(&mut bytes);
        }
        let kept = if main { self.take_frames(lane, room, &mut bytes) } else { Vec::new() };
        if bytes.is_empty() {
            return None;
        }
        let n = self.seal_control(lane, &bytes, MIN_CONTROL, buf)?;
        let content = if kept.is_empty() {
            Content::Nothing
        } else {
            Content::Control(self.lanes[lane].keep_control(kept))
        };
        let eliciting = ping || content != Content::Nothing;
        self.record_control(now, lane, n, content, eliciting);
        Some(self.single(lane, n))
    }

    /// Takes frames that are sent once.
    fn take_unreliable_frames(&mut self, lane: usize, room: usize, bytes: &mut Vec<u8>) {
        let waiting = &mut self.lanes[lane].unreliable_frames;
        while let Some(f) = waiting.front() {
            let before = bytes.len();
            f.put(bytes);
            // Most fit: cheaper than measuring each first.
            if bytes.len() > room {
                return bytes.truncate(before);
            }
            waiting.pop_front();
        }
    }

    /// Takes frames that are repeated when lost, of whatever lane they were lost on: those first.
    fn take_frames(&mut self, lane: usize, room: usize, bytes: &mut Vec<u8>) -> Vec<Frame<'static>> {
        let mut kept = Vec::new();
        while self.lanes[lane].can_keep_control() && kept.len() < MAX_FRAMES_PER_PACKET {
            let lost = self.lanes.iter_mut().map(|l| &mut l.lost_frames).find(|q| !q.is_empty());
            let queue = lost.unwrap_or(&mut self.frames);
            let Some(f) = queue.front() else { break };
            if bytes.len() + f.encoded_len() > room {
                break;
            }
            f.put(bytes);
            kept.extend(queue.pop_front());
        }
        kept
    }

    /// Queues what is to be told of a lane, once what was told before has left. The main one also tells of lanes that are
    /// dead: perhaps they are so in one direction only. Those that travel `along` with data leave sooner than alone.
    fn queue_reports(&mut self, now: Time, lane: usize, (main, along): (bool, bool), room: usize) {
        if self.lanes[lane].unreliable_frames.len() > 1 {
            return;
        }
        let signals = self.peer_params.signals;
        for i in 0..self.lanes.len() {
            let l = &mut self.lanes[i];
            let told_here = i == lane && matches!(l.stage, Stage::Open | Stage::Dead);
            let for_it = main && i != lane && l.stage == Stage::Dead;
            if !(told_here || for_it) {
                continue;
            }
            let due = match along {
                true => l.received.is_ripe(now),
                false => l.received.due(self.answer_wait).is_some_and(|t| t <= now),
            };
            let floor = l.take_floor();
            if !due && floor.is_none() {
                continue;
            }
            // The queue of the lane that it leaves on, which may be another one.
            let mut unreliable_frames = core::mem::take(&mut self.lanes[lane].unreliable_frames);
            let l = &mut self.lanes[i];
            if due {
                let mut queue = |f| unreliable_frames.push_back(Frame::Feedback(f));
                l.received.take_feedback(now, l.id, (room, signals), &mut queue);
            }
            if let Some(floor) = floor {
                unreliable_frames.push_back(Frame::Floor(floor));
            }
            self.lanes[lane].unreliable_frames = unreliable_frames;
        }
    }

    fn transmit_mtu_probe(&mut self, now: Time, lane: usize, buf: &mut [u8]) -> Option<Transmit> {
        if !self.lanes[lane].sent.has_room_for_control() {
            return None;
        }
        let size = self.lanes[lane].mtu.poll_probe(now)?;
        let mut frame = Vec::new();
        Frame::Ping.put(&mut frame);
        let n = self.seal_control(lane, &frame, size.into(), buf)?;
        self.record_control(now, lane, n, Content::MtuProbe(size), true);
        Some(self.single(lane, n))
    }

    /// One train of data from the flow whose turn it is; `reports`: reports that are due may travel with it.
    fn transmit_data(
        &mut self,
        now: Time,
        lane: usize,
        reports: bool,
        out: &mut impl TransmitBuffers,
        streams: &mut impl Streams,
    ) -> Option<Transmit> {
        self.lanes[lane].next_send = None;
        if !self.carries_data(lane) || !self.lanes[lane].sent.has_room() {
            return None;
        }
        let flows = self.lanes[lane].flows.len();
        for k in 0..flows {
            let flow = round_robin_index(self.next_flow + k, flows);
            if !self.scheduler.is_ready(flow as u8) {
                self.lanes[lane].flows[flow].mark_app_limited_if_free();
                self.leave_tree(now, flow);
                continue;
            }
            let l = &self.lanes[lane];
            let packet = u64::from(l.mtu.current()) + u64::from(l.overhead());
            let may = self.lanes.len() > 1 && l.flows[flow].wait(now, packet) == Some(Span::ZERO);
            if may && self.is_faster_elsewhere(now, lane, flow, streams) {
                self.lanes[lane].flows[flow].mark_app_limited_if_free();
                continue;
            }
            let Some(mut permit) = self.permit(now, lane, flow, packet) else { continue };
            let socket = self.lanes[lane].socket;
            let buf = out.slot(socket)?;
            let sent = self.build_train(now, (lane, flow as u8, reports), &mut permit, buf, streams);
            if let Permit::Paced(left) = permit {
                // What the train did not need goes back to the pacer.
                self.refund_tree(flow, left.bytes());
                self.lanes[lane].flows[flow].refund(left);
            }
            let Some((d, sealing)) = sent else { continue };
            out.protect(socket, sealing, d.len, d.segment);
            self.next_flow = round_robin_index(flow + 1, flows);
            let l = &self.lanes[lane];
            return Some(Transmit {
                remote: l.remote,
                local: l.local,
                ecn: d.ecn,
                dscp: self.flow_setups[flow].dscp,
                segment: d.segment,
                len: d.len,
                socket,
            });
        }
        None
    }

    /// Permission for a train of a flow: by its pacer, and by whoever divides what the host sends.
    fn permit(&mut self, now: Time, lane: usize, flow: usize, packet: u64) -> Option<Permit> {
        let l = &mut self.lanes[lane];
        if l.probes > 0 {
            l.probes -= 1;
            return Some(Permit::Probe(packet));
        }
        let want = l.most_packets(flow as u8) as u64 * packet;
        let asked = match l.flows[flow].poll_token(now, packet, want) {
            Ok(token) if self.tree.is_none() => return Some(Permit::Paced(token)),
            Ok(token) => match self.ask_tree(now, flow, token.bytes()) {
                Ok(()) => return Some(Permit::Paced(token)),
                Err(at) => {
                    self.lanes[lane].flows[flow].hold_back(token);
                    at
                }
            },
            Err(at) => {
                // Another lane may be allowed to.
                if self.lanes.len() == 1 {
                    self.leave_tree(now, flow);
                }
                at
            }
        };
        if asked != Time::MAX {
            let l = &mut self.lanes[lane];
            l.next_send = Some(l.next_send.map_or(asked, |t| t.min(asked)));
        }
        None
    }

    fn build_train(
        &mut self,
        now: Time,
        (lane, flow, reports): (usize, u8, bool),
        permit: &mut Permit,
        buf: &mut [u8],
        streams: &mut impl Streams,
    ) -> Option<(TrainDraft, TrainSealer)> {
        let ecn = self.codepoint(now, lane, flow.into());
        // What hops write stands in front of the packet.
        let lead = self.telemetry_room(now, lane, flow.into());
        let l = &mut self.lanes[lane];
        let most = l.most_packets(flow);
        l.maybe_skip(now, &mut self.rng);
        let train = Train { ecn, telemetry: lead > 0, ..l.flows[usize::from(flow)].begin_train(now, flow) };
        let number = l.sent.trains_mut().begin(train);
        let first_pn = l.sent.next();
        let mut d = self.fill_train(now, (lane, flow, number), (most, lead, ecn), permit, buf, streams);
        if let Some(qpn) = self.scheduler.current(flow) {
            self.scheduler.rotate(qpn);
        }
        let next = self.scheduler.current(flow).filter(|_| d.packets >= LONG_TRAIN);
        if d.packets == 0 {
            self.lanes[lane].sent.trains_mut().undo_last(number);
            return None;
        }
        if reports && lead == 0 && d.packets == 1 && d.len <= MAX_PIGGYBACK_DATA {
            self.prepend_reports(now, lane, &mut d, buf);
        }
        let last = match self.scheduler.is_ready(flow) {
            true => self.lanes[lane].waits_for_report(flow, d.wire_bytes),
            // Nothing stands behind it, and somebody waits to hear that it arrived, or something before it.
            false => core::mem::take(&mut self.lanes[lane].asks),
        };
        let l = &mut self.lanes[lane];
        // Short packets tell how fast hosts are, not the path.
        let full = 4 * d.segment >= 3 * usize::from(l.mtu.current());
        let measured = full && l.flows[usize::from(flow)].wants_dispersion() && l.dispersion.begin(now);
        let Some(sealing) =
            self.number_train(lane, first_pn, &d, (last, measured), &mut buf[lead..lead + d.len])
        else {
            let v = Violation::new(
                code::KEYS_EXHAUSTED,
                "the keys have sealed all they may and cannot be updated",
            );
            self.fail(now, &v);
            return None;
        };
        let sealing =
            if lead > 0 { self.lead_train(now, lane, &mut d, &mut buf[..lead], sealing) } else { sealing };
        self.finish_train(now, lane, &d, flow);
        let prefetch = next.map_or_else(Prefetch::default, |qpn| streams.prefetch_hint(qpn));
        Some((d, sealing.with_prefetch(prefetch)))
    }

    /// Leaves room for telemetry in front of the train's only packet.
    fn lead_train(
        &mut self,
        now: Time,
        lane: usize,
        d: &mut TrainDraft,
        lead: &mut [u8],
        sealing: TrainSealer,
    ) -> TrainSealer {
        base::telemetry::put_lead(lead);
        (d.len, d.wire_bytes) = (d.len + lead.len(), d.wire_bytes + lead.len() as u64);
        d.segment = d.len;
        let l = &mut self.lanes[lane];
        l.sent.lengthen_last(lead.len() as u32);
        l.telemetry.on_sent(now, l.rtt.smoothed(), l.feedback_interval());
        sealing.with_offset(lead.len())
    }

    /// Puts reports that are due in front of the data of a single short packet: an answer to a request then is one packet,
    /// and not one for itself and one for the report on the request.
    fn prepend_reports(&mut self, now: Time, lane: usize, d: &mut TrainDraft, buf: &mut [u8]) {
        let Some(tag_len) = self.keys.as_ref().map(|k| k.suite().tag_len()) else { return };
        let main = lane == self.main_lane();
        self.queue_reports(now, lane, (main, true), MAX_REPORTS);
        if self.lanes[lane].unreliable_frames.is_empty() {
            return;
        }
        // The same memory each time.
        let mut lead = core::mem::take(&mut self.lead);
        lead.clear();
        self.take_unreliable_frames(lane, MAX_REPORTS, &mut lead);
        if !lead.is_empty() {
            // As data it asks for feedback, and comes again when lost; what leads it was sent once.
            // What is padding instead of data needs no header.
            if buf[0] != 0 {
                Frame::Data { flags: buf[0], body: &[] }.put(&mut lead);
            }
            let start = SHORT_CLEAR + tag_len;
            buf.copy_within(start..d.len, start + lead.len());
            buf[start..start + lead.len()].copy_from_slice(&lead);
            buf[0] = 0;
            (d.len, d.wire_bytes) = (d.len + lead.len(), d.wire_bytes + lead.len() as u64);
            d.segment = d.len;
            self.stats.control_bytes_sent += lead.len() as u64;
            self.lanes[lane].sent.lengthen_last(lead.len() as u32);
            self.lanes[lane].overtaken = false;
        }
        self.lead = lead;
    }

    /// Writes the clear headers of a train, and reserves its numbers: it is ready to be sealed.
    fn number_train(
        &mut self,
        lane: usize,
        first_pn: u64,
        d: &TrainDraft,
        (last, measured): (bool, bool),
        train: &mut [u8],
    ) -> Option<TrainSealer> {
        let keys = self.keys.as_mut()?;
        let l = &self.lanes[lane];
        let phase = if keys.seal_keys().phase() { flag::KEY_PHASE } else { 0 };
        for (pn, packet) in (first_pn..).zip(train.chunks_mut(d.segment)) {
            // Nothing stands behind the last packet that somebody waits to hear of: have it reported at once. So are both ends of a train whose
            // dispersion is to be measured.
            let (is_first, is_last) = (pn == first_pn, pn + 1 == first_pn + d.packets);
            let ask = if last && is_last || measured && (is_first || is_last) { flag::ASK } else { 0 };
            let flags = packet[0] | phase | ask;
            write_clear_header(packet, flags, l.remote_cid.0, pn);
        }
        keys.sealer().reserve_train(l.id, first_pn, d.packets).ok()
    }

    fn finish_train(&mut self, now: Time, lane: usize, d: &TrainDraft, flow: u8) {
        let app_limited = !self.scheduler.is_ready(flow);
        let l = &mut self.lanes[lane];
        if let Some(t) = l.sent.trains_mut().last_mut() {
            l.flows[usize::from(flow)].on_sent(now, t, d.wire_bytes, d.packets, app_limited);
        }
        l.bursts.on_sent(flow, app_limited);
        l.ecn.on_sent(d.ecn, d.packets);
        l.on_eliciting_sent(now);
        l.carried.sent += d.wire_bytes;
        self.last_eliciting_sent = now;
        self.stats.packets_sent += d.packets;
        self.stats.bytes_sent += d.wire_bytes;
        self.stats.trains_sent += 1;
    }
}

/// The `i`th of `n` that take turns, counted on from the first again. Most often there is one: a division would be a part of
/// what a short message waits for.
fn round_robin_index(i: usize, n: usize) -> usize {
    if i < n { i } else { i % n.max(1) }
}

/// Writes the clear part of a short header.
fn write_clear_header(packet: &mut [u8], flags: u8, cid: u32, pn: u64) {
    let mut clear = [flags; SHORT_CLEAR];
    clear[1..5].copy_from_slice(&cid.to_be_bytes());
    clear[5..].copy_from_slice(&(pn as u32).to_be_bytes());
    packet[..SHORT_CLEAR].copy_from_slice(&clear);
}
