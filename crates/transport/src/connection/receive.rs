//! Receives datagrams: removes header protection, decrypts, checks packet numbers and places the payload.

use super::{ConnEvent, Connection, State};
use crate::crypto::{OpenError, Opened, OpenedTrain, Side};
use crate::error::{CloseReason, Violation, code};
use crate::lane::received::Arrival;
use crate::lane::{Lane, Stage};
use crate::streams::{Placed, Streams};
use base::telemetry::Hop;
use base::{Ecn, Span, Time, seq};
use std::net::{IpAddr, SocketAddr};
use wire::packet::{SHORT_CLEAR, flag};
use wire::{Cid, DataHeader, Frame, Reader};

/// Datagrams that arrived before their keys, kept at most.
pub const MAX_EARLY: usize = 64;
/// Bytes of them kept at most: a handshake that is not finished may be anybody's.
pub const MAX_EARLY_BYTES: usize = 128 * 1024;

/// A stateless reset is at least this long, so that it looks like a packet.
pub(crate) const MIN_RESET: usize = 32;

/// Where a received train came from and how it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramInfo {
    /// The sender's address.
    pub remote: SocketAddr,
    /// The address it was sent to, where the system tells.
    pub local: Option<IpAddr>,
    /// The ECN field of its packets.
    pub ecn: Ecn,
    /// How long it waited in this host before it was processed.
    pub waited: Span,
}

/// The result of processing one packet.
enum PacketOutcome {
    /// It counts as received; whether it asks for feedback.
    Received { eliciting: bool },
    /// As if it had not arrived.
    Dropped,
}

/// What a [`TrainOpener`](crate::crypto::TrainOpener) on another thread has done with a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenerResult {
    Nothing,
    Opened,
    Failed,
}

impl OpenerResult {
    /// The result for packet `i`; a packet that was opened under another number than the connection expands it to
    /// counts as failed.
    fn of(t: &OpenedTrain, i: usize, same_number: bool) -> OpenerResult {
        let bit = u32::try_from(i).ok().and_then(|i| 1u64.checked_shl(i)).unwrap_or(0);
        match (t.opened & bit != 0, t.failed & bit != 0) {
            (true, _) if same_number => OpenerResult::Opened,
            (false, false) => OpenerResult::Nothing,
            _ => OpenerResult::Failed,
        }
    }
}

impl Connection {
    /// Takes in a train of short packets for this connection: segments of `stride` bytes, the last perhaps
    /// shorter. Works in place: `train` is scratch afterwards.
    pub fn handle_short(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        train: &mut [u8],
        stride: usize,
        streams: &mut impl Streams,
    ) {
        self.handle_opened(now, meta, (train, stride), None, streams);
    }

    /// As [`Connection::handle_short`], for one packet in front of which hops of the path wrote something. Anybody on the way
    /// may have: it is a hint, and no more than passed on to the sender.
    pub fn handle_with_telemetry(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        packet: &mut [u8],
        hops: Vec<Hop>,
        streams: &mut impl Streams,
    ) {
        let n = packet.len();
        self.packet_telemetry = Some(hops).filter(|_| self.peer_params.signals);
        self.handle_short(now, meta, packet, n, streams);
        self.packet_telemetry = None;
    }

    /// As [`Connection::handle_short`], for a train that a view of this connection's keys has been over
    /// ([`Connection::train_opener`]).
    pub fn handle_opened(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        (train, stride): (&mut [u8], usize),
        opened: Option<&OpenedTrain>,
        streams: &mut impl Streams,
    ) {
        match self.state {
            State::Closed => return,
            State::Closing(_) if self.keys.is_none() => return,
            _ => {}
        }
        self.process_deferred_feedback_or_close(now, streams);
        if self.check_stateless_reset(train, stride) {
            return;
        }
        let Some(keys) = &self.keys else {
            self.buffer_early_datagrams(train, stride);
            return;
        };
        if opened.is_none() {
            keys.open_keys().header().mask_segments(train, stride);
        }
        for (i, packet) in train.chunks_mut(stride.max(1)).enumerate() {
            match self.handle_packet(now, meta, packet, opened.map(|o| (o, i)), streams) {
                Ok(()) => {}
                Err(v) => {
                    self.fail(now, &v);
                    return;
                }
            }
        }
    }

    /// Buffers packets that arrive before the keys to open them, until the handshake completes.
    fn buffer_early_datagrams(&mut self, train: &[u8], stride: usize) {
        let kept: usize = self.early.iter().map(Vec::len).sum();
        if kept + train.len() <= MAX_EARLY_BYTES {
            let room = MAX_EARLY.saturating_sub(self.early.len());
            self.early.extend(train.chunks(stride.max(1)).take(room).map(<[u8]>::to_vec));
        }
    }

    /// Handles what was kept, now that the keys are there.
    pub(super) fn replay_early(&mut self, now: Time, meta: DatagramInfo, streams: &mut impl Streams) {
        for mut d in core::mem::take(&mut self.early) {
            let n = d.len();
            self.handle_short(now, meta, &mut d, n, streams);
        }
    }

    /// Closes the connection when the train ends with the stateless reset token that the peer gave (RFC 9000, section
    /// 10.3.1).
    fn check_stateless_reset(&mut self, train: &[u8], stride: usize) -> bool {
        let Some(token) = &self.peer_params.reset_token else { return false };
        // Resets come alone; a train of several packets is never one.
        if train.len() > stride || train.len() < MIN_RESET {
            return false;
        }
        let reset = crate::crypto::ResetToken::from_bytes(*token).ends(train);
        if reset {
            self.end(CloseReason::Reset);
        }
        reset
    }

    fn handle_packet(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        p: &mut [u8],
        opened: Option<(&OpenedTrain, usize)>,
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        let Some(keys) = &mut self.keys else { return Ok(()) };
        let tag_len = keys.suite().tag_len();
        if p.len() < SHORT_CLEAR + tag_len {
            self.stats.packets_forged += 1;
            return Ok(());
        }
        let (clear, rest) = p.split_at_mut(SHORT_CLEAR);
        let (tag, body) = rest.split_at_mut(tag_len);
        let cid = Cid(u32::from_be_bytes([clear[1], clear[2], clear[3], clear[4]]));
        let is_it = |l: &Lane| l.local_cid == cid && l.stage != Stage::Closed;
        let Some(i) = self.lanes.iter().position(is_it) else { return Ok(()) };
        let low = u32::from_be_bytes([clear[5], clear[6], clear[7], clear[8]]);
        let lane = &self.lanes[i];
        let wire_bytes = (SHORT_CLEAR + tag_len + body.len()) as u64 + u64::from(lane.overhead());
        let pn = seq::expand(low.into(), 32, lane.received.expected());
        // Duplicates cost no decryption. Nothing is changed by a packet that has not passed its tag.
        if lane.received.is_stale(pn) {
            self.stats.packets_stale += 1;
            return Ok(());
        }
        let flags = clear[0];
        let had =
            opened.map_or(OpenerResult::Nothing, |(t, i)| OpenerResult::of(t, i, t.number(clear) == pn));
        let result = match (had, opened) {
            (OpenerResult::Opened, Some((t, _))) => keys.opener().admit(t, lane.id, pn),
            (OpenerResult::Failed, _) => Err(keys.opener().reject()),
            _ => keys.open(flags & flag::KEY_PHASE != 0, lane.id, pn, clear, tag, body),
        };
        match result {
            Ok(Opened::Updated) => {
                self.discard_keys_at = Some(now + lane.rtt.probe_timeout() * 3);
                self.renew_openers();
            }
            Ok(_) => {}
            Err(OpenError::IntegrityLimit) => {
                return Err(Violation::new(code::KEYS_EXHAUSTED, "too many forged packets under one key"));
            }
            Err(_) => {
                self.stats.packets_forged += 1;
                return Ok(());
            }
        }
        self.stats.packets_received += 1;
        self.stats.bytes_received += wire_bytes;
        self.lanes[i].carried.received += wire_bytes;
        self.last_received = now;
        // Only who has our last handshake message has these keys.
        self.handshake.confirm(self.authorised);
        let verdict = if flags & flag::KIND == 0 {
            self.handle_control(now, (i, meta), body, streams)?
        } else {
            self.handle_data(flags, body, streams)?
        };
        if let PacketOutcome::Received { eliciting } = verdict {
            self.note_received(now, i, pn, (eliciting, flags & flag::ASK != 0), meta);
        }
        Ok(())
    }

    /// A packet counts as received.
    fn note_received(
        &mut self,
        now: Time,
        i: usize,
        pn: u64,
        (eliciting, ask): (bool, bool),
        meta: DatagramInfo,
    ) {
        let newest = pn >= self.lanes[i].received.expected();
        let arrival = Arrival { at: now, ecn: meta.ecn, waited: meta.waited };
        self.lanes[i].received.on_packet(&arrival, pn, eliciting, ask);
        if let Some(hops) = self.packet_telemetry.take() {
            self.lanes[i].received.on_telemetry(pn, hops);
        }
        let l = &mut self.lanes[i];
        l.local = match self.side {
            // Late packets that came to an address which the lane has left do not lead it back there.
            Side::Client => l.local.or(meta.local),
            // Nor is one of the other family of use before the client has answered there.
            Side::Server => meta.local.filter(|ip| ip.is_ipv4() == l.remote.is_ipv4()).or(l.local),
        };
        if newest && (meta.remote != l.remote || l.stage == Stage::Waiting) {
            self.on_new_address(now, i, meta);
        }
    }

    fn handle_data(
        &mut self,
        flags: u8,
        body: &[u8],
        streams: &mut impl Streams,
    ) -> Result<PacketOutcome, Violation> {
        if !self.authorised || !matches!(self.state, State::Open) {
            self.stats.packets_refused += 1;
            return Ok(PacketOutcome::Dropped);
        }
        let mut r = Reader::new(body);
        let header = DataHeader::parse(flags, &mut r)?;
        let payload = r.rest();
        if !self.scheduler.contains(header.qpn) {
            // Perhaps its opening was overtaken: the data comes again.
            self.stats.packets_refused += 1;
            return Ok(PacketOutcome::Dropped);
        }
        match streams.place(&header, payload) {
            Ok(Placed::Done) => self.stats.payload_received += payload.len() as u64,
            Ok(Placed::Duplicate) => self.stats.payload_duplicate += payload.len() as u64,
            Ok(Placed::Refused) => {
                self.stats.packets_refused += 1;
                return Ok(PacketOutcome::Dropped);
            }
            Err(e) => {
                // The queue pair goes into error at both ends; the connection and its other pairs live.
                self.events.push_back(ConnEvent::PlaceFailed(header.qpn, e.code));
                self.send_qp_error(header.qpn, e.code);
                // Not acknowledged: the sender's work request must fail, not complete.
                return Ok(PacketOutcome::Dropped);
            }
        }
        Ok(PacketOutcome::Received { eliciting: true })
    }

    fn handle_control(
        &mut self,
        now: Time,
        at: (usize, DatagramInfo),
        body: &[u8],
        streams: &mut impl Streams,
    ) -> Result<PacketOutcome, Violation> {
        let mut r = Reader::new(body);
        let (mut eliciting, mut refused, mut data) = (false, false, false);
        while !r.is_empty() {
            let f = Frame::parse(&mut r)?;
            eliciting |= f.is_eliciting();
            // Reports in front of data wait until that is answered.
            let f = match f {
                Frame::Feedback(f) => match self.defer_feedback(now, f) {
                    Some(f) => Frame::Feedback(f),
                    None => continue,
                },
                f => f,
            };
            if !matches!(f, Frame::Data { .. } | Frame::Floor(_)) {
                self.process_deferred_feedback(streams)?;
            }
            // Before it is authorised, a client may prove a token and keep the lane alive. The rest, which may have
            // overtaken the proof, counts as not received and comes again.
            match f {
                Frame::Data { flags, body } => {
                    data = true;
                    let placed = self.handle_data(flags, body, streams)?;
                    refused |= matches!(placed, PacketOutcome::Dropped);
                }
                f if self.authorised || f.is_harmless() => self.handle_frame(now, at, f, streams)?,
                _ => refused = true,
            }
        }
        if !data {
            self.process_deferred_feedback(streams)?;
        }
        if refused {
            self.stats.packets_refused += 1;
            return Ok(PacketOutcome::Dropped);
        }
        Ok(PacketOutcome::Received { eliciting })
    }
}
