//! The sending half of a queue pair: turns work requests into segments, and acknowledgements into completions.

mod checks;
mod local;
mod lookahead;
mod ordered;
mod segment_run;

pub(crate) use checks::{ATOMIC_LEN, check_len};
pub use segment_run::StridedBuffer;

use crate::cq::Cqs;
use crate::error::GatherError;
use crate::memory::CopyError;
use crate::region::{KeyMap, Regions, fresh_key};
use crate::segment::{AtomicRequest, ReadRequest, Segment, SegmentOp, SegmentRef, Tail};
use crate::slab::{CqId, MrId, QpId};
use crate::work::{Local, Opcode, SendOp, Status, WorkCompletion};
use crate::{Kind, MAX_MESSAGES_AHEAD, Stats};
use base::RangeSet;
use std::collections::VecDeque;

/// What the halves of a queue pair use of their adapter.
pub(crate) struct Ctx<'a> {
    pub(crate) regions: &'a mut Regions,
    pub(crate) cqs: &'a mut Cqs,
    pub(crate) rng: &'a mut base::Rng,
    pub(crate) stats: &'a mut Stats,
    pub(crate) qp: QpId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
}

/// Flags of a work request.
pub(crate) struct WrFlags {
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
}

/// A posted work request.
pub(crate) struct Wqe {
    wr_id: u64,
    op: SendOp,
    local: Local,
    len: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
    /// Finished, but an earlier one is not.
    done: bool,
    status: Status,
    /// Message number, once started.
    msn: u64,
    /// Reads and atomic operations only, once started: the key of the destination.
    sink: u32,
}

impl Wqe {
    pub(crate) fn new(wr_id: u64, op: SendOp, local: Local, len: u64, flags: WrFlags) -> Wqe {
        let WrFlags { signaled, solicited, fence } = flags;
        let (done, status, msn, sink) = (false, Status::Success, 0, 0);
        Wqe { wr_id, op, local, len, signaled, solicited, fence, done, status, msn, sink }
    }
    const fn opcode(&self) -> Opcode {
        match self.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => Opcode::Write,
            SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => Opcode::Send,
            SendOp::Read { .. } => Opcode::Read,
            SendOp::Atomic { op, .. } => op.opcode(),
            SendOp::LocalInvalidate { .. } => Opcode::LocalInvalidate,
            SendOp::Bind(_) => Opcode::Bind,
        }
    }
    /// Whether it is done here, and sends nothing.
    const fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInvalidate { .. } | SendOp::Bind(_))
    }
    /// The request of a read or an atomic operation, which are finished by an answer.
    const fn request(&self) -> Option<SegmentOp> {
        match self.op {
            SendOp::Read { .. } => Some(SegmentOp::ReadRequest),
            SendOp::Atomic { .. } => Some(SegmentOp::AtomicRequest),
            _ => None,
        }
    }
    const fn is_answered(&self) -> bool {
        self.request().is_some()
    }
    /// Bytes of its message.
    fn message_len(&self) -> u64 {
        self.request().and_then(SegmentOp::request_len).unwrap_or(self.len)
    }
    /// Copies bytes of its message from byte `at` on.
    fn read(&self, regions: &Regions, at: u64, out: &mut [u8]) -> Result<(), CopyError> {
        let (len, sink, range) = (self.len, self.sink, at as usize..at as usize + out.len());
        match self.op {
            SendOp::Read { rkey, offset } => {
                out.copy_from_slice(&ReadRequest { rkey, offset, len, sink }.encode()[range]);
            }
            SendOp::Atomic { rkey, offset, op } => {
                out.copy_from_slice(&AtomicRequest { rkey, offset, sink, op }.encode()[range]);
            }
            _ => self.local.read(regions, at, out)?,
        }
        Ok(())
    }
    const fn consumes_receive(&self) -> bool {
        matches!(self.opcode(), Opcode::Send) || matches!(self.op, SendOp::WriteImm { .. })
    }
}

/// The answer to a peer's read or atomic operation, waiting or being sent. Without a region when it has no bytes of one.
#[derive(Clone, Copy)]
pub(crate) struct Response {
    pub(crate) mr: Option<MrId>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) sink: u32,
    /// The answer to an atomic operation: what was there before.
    pub(crate) atomic: Option<u64>,
}

#[derive(Clone, Copy)]
enum Source {
    Wqe(u64),
    Response(Response),
}

/// A message of which at least one segment was built.
struct OutMsg {
    source: Source,
    op: SegmentOp,
    len: u64,
    /// Bytes built so far.
    sent: u64,
    sent_all: bool,
    /// Bytes whose fate is known: acknowledged (or, on an unreliable queue pair, lost).
    resolved: RangeSet,
    resolved_bytes: u64,
    /// Bytes to be sent again (or, on an unreliable queue pair, those that were lost).
    lost: RangeSet,
    /// The same two for a message without payload, which has one empty segment.
    empty_resolved: bool,
    empty_lost: bool,
    /// Counted in `lost_messages`.
    is_lost: bool,
    /// Stands in `lost_queue`.
    in_lost_queue: bool,
    done: bool,
    rsn: Option<u64>,
    key: u32,
    /// Where byte 0 of the message goes.
    base: u64,
    tail: Option<Tail>,
    /// Its success makes no completion.
    quiet: bool,
}

impl OutMsg {
    fn new(source: Source, op: SegmentOp, len: u64) -> OutMsg {
        OutMsg {
            source,
            op,
            len,
            sent: 0,
            sent_all: false,
            resolved: RangeSet::new(),
            resolved_bytes: 0,
            lost: RangeSet::new(),
            empty_resolved: false,
            empty_lost: false,
            is_lost: false,
            in_lost_queue: false,
            done: false,
            rsn: None,
            key: 0,
            base: 0,
            tail: None,
            quiet: false,
        }
    }
    fn answer(r: Response) -> OutMsg {
        OutMsg { key: r.sink, ..OutMsg::new(Source::Response(r), SegmentOp::ReadResponse, r.len) }
    }
    fn is_resolved(&self) -> bool {
        self.sent_all && self.resolved_bytes == self.len && (self.len > 0 || self.empty_resolved)
    }
    fn segment(&self, msn: u64, offset: u64, len: u64, retransmission: bool) -> Segment {
        let last = offset + len == self.len;
        let with_rsn = last || self.op == SegmentOp::Send;
        Segment {
            op: self.op,
            msn,
            rsn: self.rsn.filter(|_| with_rsn),
            key: self.key,
            position: self.base + offset,
            offset,
            // At most the caller's max_payload, which is a u32.
            len: len as u32,
            first: offset == 0,
            last: last.then(|| self.tail.unwrap_or_default()),
            retransmission,
            quiet: self.quiet && !retransmission,
        }
    }
}

/// Messages, and ranges of each, that are looked at to tell how much waits.
const LOOK_AHEAD: usize = 16;

/// The sending half of a queue pair.
pub(crate) struct Tx {
    kind: Kind,
    max_rd_atomic: usize,
    /// Most reads of the peer outstanding.
    max_reads_in: usize,
    wqes: VecDeque<Wqe>,
    /// Running number of the first of `wqes`.
    wqe_base: u64,
    /// Running number of the first that was not started.
    next_wqe: u64,
    flight: VecDeque<OutMsg>,
    /// Message number of the first of `flight`.
    flight_base: u64,
    lost_queue: VecDeque<u64>,
    lost_messages: usize,
    /// The messages new data comes from: one of the send queue, one answer to a read, in turn.
    current_wr: Option<u64>,
    current_response: Option<u64>,
    responses_turn: bool,
    responses: VecDeque<Response>,
    reads_out: usize,
    /// Destinations of outstanding reads: running numbers of their work requests.
    sinks: KeyMap<u64>,
    next_rsn: u64,
    send_limit: u64,
    /// Of an ordered transport: what it has instead of `flight` and what belongs to that.
    stream: ordered::Stream,
}

/// The most payload bytes of a segment, by the kind of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPayload {
    /// Of a Write.
    pub tagged: u32,
    /// Of a Send, and of a request.
    pub untagged: u32,
    /// Of an answer to a Read.
    pub response: u32,
    /// What the last segment of a message leaves less room for.
    pub tail: u32,
    /// The same with immediate data.
    pub tail_imm: u32,
    /// Whether messages of a few segments are cut into such as are alike.
    pub even: bool,
}

impl MaxPayload {
    /// The same for all.
    pub const fn same(max: u32) -> MaxPayload {
        MaxPayload { tagged: max, untagged: max, response: max, tail: 0, tail_imm: 0, even: true }
    }
    const fn of(&self, op: SegmentOp) -> u32 {
        match op {
            SegmentOp::Write => self.tagged,
            SegmentOp::Send | SegmentOp::ReadRequest | SegmentOp::AtomicRequest => self.untagged,
            SegmentOp::ReadResponse => self.response,
        }
    }
}

/// Which parts of the sending half the queue pair's state lets run.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// Work requests may be started.
    pub(crate) start: bool,
    /// Started messages and answers to reads may go on.
    pub(crate) run: bool,
}

impl Tx {
    pub(crate) fn new(kind: Kind, max_rd_atomic: usize) -> Tx {
        Tx {
            kind,
            max_rd_atomic,
            max_reads_in: max_rd_atomic,
            wqes: VecDeque::new(),
            wqe_base: 0,
            next_wqe: 0,
            flight: VecDeque::new(),
            flight_base: 0,
            lost_queue: VecDeque::new(),
            lost_messages: 0,
            current_wr: None,
            current_response: None,
            // Over a stream an answer to the first message of the peer-to-peer model is waited for with everything else.
            responses_turn: kind == Kind::Ordered,
            responses: VecDeque::new(),
            reads_out: 0,
            sinks: KeyMap::default(),
            next_rsn: 0,
            send_limit: 0,
            stream: ordered::Stream::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.wqes.len()
    }
    pub(crate) fn unfinished_messages(&self) -> usize {
        self.flight.len() + self.stream.unfinished()
    }
    /// Ranges to be sent again, and ranges whose fate is known of messages that are not finished.
    pub(crate) fn ranges(&self) -> (usize, usize) {
        self.flight.iter().fold((0, 0), |(l, r), m| (l + m.lost.ranges(), r + m.resolved.ranges()))
    }
    /// Answers to the peer's reads that wait or are being sent.
    pub(crate) fn answers(&self) -> usize {
        let answering = self.current_response.is_some() || self.stream.is_answering();
        self.responses.len() + usize::from(answering)
    }
    /// Messages that are queued to be sent again.
    pub(crate) fn lost_queue(&self) -> usize {
        self.lost_queue.len()
    }
    pub(crate) fn send_limit(&self) -> u64 {
        self.send_limit
    }
    /// Raises the number of receives the peer has posted. It never falls.
    pub(crate) fn raise_send_limit(&mut self, limit: u64) {
        self.send_limit = self.send_limit.max(limit);
    }

    /// Adds a work request whose place in the completion queue is reserved and whose regions are held.
    pub(crate) fn post(&mut self, w: Wqe) {
        self.wqes.push_back(w);
    }

    fn wqe(&mut self, number: u64) -> Option<&mut Wqe> {
        self.wqes.get_mut(usize::try_from(number.checked_sub(self.wqe_base)?).ok()?)
    }
    fn message(&mut self, msn: u64) -> Option<&mut OutMsg> {
        self.flight.get_mut(usize::try_from(msn.checked_sub(self.flight_base)?).ok()?)
    }
    fn flight_of(&self, msn: u64) -> Option<&OutMsg> {
        self.flight.get(usize::try_from(msn.checked_sub(self.flight_base)?).ok()?)
    }

    /// Whether the first work request not started may start.
    fn head_ready(&self) -> bool {
        let Some(w) = self.wqes.get((self.next_wqe - self.wqe_base) as usize) else { return false };
        let fenced = w.fence && self.reads_out > 0;
        let too_many_reads = w.is_answered() && self.reads_out >= self.max_rd_atomic;
        let no_credit =
            self.kind == Kind::Reliable && w.consumes_receive() && self.next_rsn >= self.send_limit;
        !(fenced || too_many_reads || no_credit)
    }

    /// Whether `next_segment` would give one.
    pub(crate) fn has_segment(&self, gate: Gate) -> bool {
        if !gate.run {
            return false;
        }
        let goes_on = self.current_wr.is_some() || self.current_response.is_some();
        if goes_on || self.lost_messages > 0 || self.stream.has_current() {
            return true;
        }
        (self.unfinished_messages() as u64) < MAX_MESSAGES_AHEAD
            && (!self.responses.is_empty() || (gate.start && self.head_ready()))
    }

    /// Bytes that wait: the rest of the message being sent (of what is to be sent again, when there is any, or the first that
    /// was not started), and that with those of up to [`LOOK_AHEAD`] that follow.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let ranges = |set: &RangeSet| set.iter().take(LOOK_AHEAD).map(|r| r.end - r.start).sum::<u64>();
        let of = |msn: u64| self.flight_of(msn);
        let lost: u64 =
            self.lost_queue.iter().take(LOOK_AHEAD).filter_map(|m| of(*m)).map(|m| ranges(&m.lost)).sum();
        let rest = |msn: Option<u64>| msn.and_then(of).map_or(0, |m| m.len - m.sent);
        let new = rest(self.current_wr) + rest(self.current_response);
        let next = usize::try_from(self.next_wqe - self.wqe_base).unwrap_or(usize::MAX);
        let ahead = || self.wqes.iter().skip(next).take(LOOK_AHEAD).map(Wqe::message_len);
        let answers = || self.responses.iter().take(LOOK_AHEAD).map(|r| r.len);
        let first = match (lost, new) {
            (0, 0) => answers().next().or_else(|| ahead().next()).unwrap_or(0),
            (0, _) => new,
            _ => lost,
        };
        let all = ahead().chain(answers()).fold(lost + new, u64::saturating_add);
        (first, all)
    }

    pub(crate) fn next_segment(
        &mut self,
        max_payload: MaxPayload,
        gate: Gate,
        ctx: &mut Ctx<'_>,
    ) -> Option<Segment> {
        let no_room = [max_payload.tagged, max_payload.untagged, max_payload.response].contains(&0);
        if no_room || !gate.run || self.kind == Kind::Ordered {
            return None;
        }
        let seg = match self.next_lost(max_payload) {
            Some(s) => s,
            None => self.next_new(max_payload, gate, ctx)?,
        };
        ctx.stats.segments_out += 1;
        ctx.stats.bytes_out += u64::from(seg.len);
        if seg.retransmission {
            ctx.stats.retransmitted_segments += 1;
            ctx.stats.retransmitted_bytes += u64::from(seg.len);
        }
        Some(seg)
    }

    /// The next lost range. Entries of the queue whose loss proved spurious are dropped on the way.
    fn next_lost(&mut self, max_payload: MaxPayload) -> Option<Segment> {
        while let Some(&msn) = self.lost_queue.front() {
            let Some(m) = self.message(msn).filter(|m| m.is_lost) else {
                if let Some(m) = self.message(msn) {
                    m.in_lost_queue = false;
                }
                self.lost_queue.pop_front();
                continue;
            };
            let (offset, len) = m.next_lost(max_payload);
            m.lost.remove(offset..offset + len);
            m.empty_lost = false;
            let seg = m.segment(msn, offset, len, true);
            if m.lost.is_empty() {
                (m.is_lost, m.in_lost_queue) = (false, false);
                self.lost_messages -= 1;
                self.lost_queue.pop_front();
            }
            return Some(seg);
        }
        None
    }

    fn next_new(&mut self, max_payload: MaxPayload, gate: Gate, ctx: &mut Ctx<'_>) -> Option<Segment> {
        let msn = self.next_msn(max_payload.untagged, gate, ctx)?;
        let datagrams = self.kind == Kind::Unreliable;
        let m = self.message(msn)?;
        let offset = m.sent;
        let len = m.next_new(max_payload, datagrams);
        m.sent += len;
        let seg = m.segment(msn, offset, len, false);
        if seg.last.is_some() {
            m.sent_all = true;
            if self.current_wr == Some(msn) {
                self.current_wr = None;
            } else {
                self.current_response = None;
            }
        }
        Some(seg)
    }

    /// The message whose turn it is.
    fn next_msn(&mut self, max: u32, gate: Gate, ctx: &mut Ctx<'_>) -> Option<u64> {
        // Answers and own work requests take turns, so that a long message of one kind does not hold up the
        // other for hours.
        self.responses_turn = !self.responses_turn;
        if self.responses_turn {
            self.response_msn().or_else(|| self.wr_msn(max, gate, ctx))
        } else {
            self.wr_msn(max, gate, ctx).or_else(|| self.response_msn())
        }
    }

    fn window_open(&self) -> bool {
        (self.flight.len() as u64) < MAX_MESSAGES_AHEAD
    }
    fn push_message(&mut self, m: OutMsg) -> u64 {
        self.flight.push_back(m);
        self.flight_base + self.flight.len() as u64 - 1
    }

    /// The answer to a read being sent, or the next one to start.
    fn response_msn(&mut self) -> Option<u64> {
        if self.current_response.is_none() && self.window_open() {
            let r = self.responses.pop_front()?;
            self.current_response = Some(self.push_message(OutMsg::answer(r)));
        }
        self.current_response
    }

    /// The work request's message being sent, or the next one to start.
    fn wr_msn(&mut self, max: u32, gate: Gate, ctx: &mut Ctx<'_>) -> Option<u64> {
        while self.current_wr.is_none() && gate.start && self.window_open() && self.head_ready() {
            let number = self.next_wqe;
            self.next_wqe += 1;
            let unreliable = self.kind == Kind::Unreliable;
            let w = self.wqe(number)?;
            if unreliable && w.opcode() == Opcode::Send && w.len > u64::from(max) {
                // A datagram that no longer fits the path cannot be sent at all.
                w.status = Status::LossReported { lost: w.len };
                w.done = true;
                self.pop_wqes(ctx);
                continue;
            }
            if self.wqe(number).is_some_and(|w| w.is_local()) {
                self.run_local(number, ctx);
                continue;
            }
            let m = self.start(number, ctx)?;
            let msn = self.push_message(m);
            if let Some(w) = self.wqe(number) {
                w.msn = msn;
            }
            self.current_wr = Some(msn);
        }
        self.current_wr
    }

    fn start(&mut self, number: u64, ctx: &mut Ctx<'_>) -> Option<OutMsg> {
        let index = number.checked_sub(self.wqe_base)? as usize;
        let m = self.message_of(number, self.wqes.get(index)?)?;
        let w = self.wqes.get_mut(index)?;
        if w.is_answered() {
            w.sink = fresh_key(&self.sinks, ctx.rng);
            self.sinks.insert(w.sink, number);
            self.reads_out += 1;
        }
        self.next_rsn += u64::from(m.rsn.is_some());
        Some(m)
    }

    /// The message that a work request starts; `None` for what is done here.
    fn message_of(&self, number: u64, w: &Wqe) -> Option<OutMsg> {
        let source = Source::Wqe(number);
        let tail = |imm| Some(Tail { imm, invalidates: false, solicited: w.solicited });
        let mut m = match w.op {
            SendOp::Write { rkey, offset } | SendOp::WriteImm { rkey, offset, .. } => {
                let mut m = OutMsg::new(source, SegmentOp::Write, w.len);
                (m.key, m.base) = (rkey, offset);
                m
            }
            SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => {
                OutMsg::new(source, SegmentOp::Send, w.len)
            }
            SendOp::LocalInvalidate { .. } | SendOp::Bind(_) => return None,
            SendOp::Read { .. } => OutMsg::new(source, SegmentOp::ReadRequest, w.message_len()),
            SendOp::Atomic { .. } => OutMsg::new(source, SegmentOp::AtomicRequest, w.message_len()),
        };
        match w.op {
            SendOp::WriteImm { imm, .. } | SendOp::SendImm { imm } => m.tail = tail(Some(imm)),
            SendOp::Send => m.tail = tail(None),
            SendOp::SendInvalidate { rkey } => {
                m.tail = Some(Tail { imm: Some(rkey), invalidates: true, solicited: w.solicited });
            }
            _ => {}
        }
        // Answers complete reads, which others may wait for.
        m.quiet = !w.signaled && !w.is_answered();
        m.rsn = m.tail.is_some().then_some(self.next_rsn);
        Some(m)
    }

    /// Copies the payload of `seg` to `out`.
    pub(crate) fn gather(&self, seg: &Segment, regions: &Regions, out: &mut [u8]) -> Result<(), GatherError> {
        let index = seg.msn.checked_sub(self.flight_base).ok_or(GatherError::Stale)?;
        let m = self.flight.get(index as usize).filter(|m| !m.done).ok_or(GatherError::Stale)?;
        let end = seg.offset.checked_add(u64::from(seg.len)).ok_or(GatherError::Mismatch)?;
        if out.len() as u64 != u64::from(seg.len) || end > m.sent {
            return Err(GatherError::Mismatch);
        }
        let copied = match m.source {
            Source::Response(Response { mr: Some(mr), offset, .. }) => {
                regions.read(mr, offset + seg.offset, out)
            }
            Source::Response(Response { atomic: Some(value), .. }) => {
                out.copy_from_slice(&value.to_be_bytes()[seg.offset as usize..end as usize]);
                Ok(())
            }
            Source::Response(_) => Ok(()),
            Source::Wqe(number) => {
                let index = number.checked_sub(self.wqe_base).ok_or(GatherError::Stale)?;
                let w = self.wqes.get(index as usize).ok_or(GatherError::Stale)?;
                w.read(regions, seg.offset, out)
            }
        };
        copied.map_err(|_| GatherError::Fault)
    }

    /// The message of `r`, when it is outstanding and `r` lies in what was sent of it.
    fn outstanding(&mut self, r: SegmentRef) -> Option<(&mut OutMsg, core::ops::Range<u64>)> {
        let m = self.message(r.msn)?;
        let end = r.offset.checked_add(u64::from(r.len))?;
        // An empty range names a message without payload, and nothing else.
        let names_something = r.len > 0 || (m.len == 0 && m.sent_all);
        (!m.done && end <= m.sent && names_something).then_some((m, r.offset..end))
    }

    /// Takes note that the peer has the bytes of `r`, whether or not they were thought lost.
    pub(crate) fn on_acked(&mut self, r: SegmentRef, ctx: &mut Ctx<'_>) {
        let Some((m, range)) = self.outstanding(r) else { return };
        if range.is_empty() {
            (m.empty_resolved, m.empty_lost) = (true, false);
        } else {
            if !m.lost.is_empty() {
                m.lost.remove(range.clone());
            }
            let new = m.resolved.insert(range);
            m.resolved_bytes += new;
            if m.op.request_len().is_none() {
                ctx.stats.bytes_delivered += new;
            }
        }
        if m.is_lost && m.lost.is_empty() && !m.empty_lost {
            m.is_lost = false;
            self.lost_messages -= 1;
        }
        self.settle(r.msn, ctx);
    }

    /// Takes note that the bytes of `r` did not arrive.
    pub(crate) fn on_lost(&mut self, r: SegmentRef, ctx: &mut Ctx<'_>) {
        let unreliable = self.kind == Kind::Unreliable;
        let Some((m, range)) = self.outstanding(r) else { return };
        if range.is_empty() {
            m.empty_lost = true;
        } else {
            for gap in m.resolved.gaps(range.clone()) {
                m.lost.insert(gap);
            }
        }
        if unreliable {
            m.empty_resolved |= range.is_empty();
            m.resolved_bytes += m.resolved.insert(range);
            self.settle(r.msn, ctx);
            return;
        }
        if !m.is_lost && (m.empty_lost || !m.lost.is_empty()) {
            m.is_lost = true;
            let queue = !core::mem::replace(&mut m.in_lost_queue, true);
            self.lost_messages += 1;
            if queue {
                self.lost_queue.push_back(r.msn);
            }
        }
    }

    /// Finishes message `msn` if the fate of all its bytes is known, then everything in order before it.
    fn settle(&mut self, msn: u64, ctx: &mut Ctx<'_>) {
        let Some(m) = self.message(msn).filter(|m| m.is_resolved()) else { return };
        m.done = true;
        let lost = (m.empty_lost || !m.lost.is_empty()).then(|| m.lost.count());
        m.lost.clear();
        m.resolved.clear();
        match m.source {
            Source::Response(r) => r.mr.iter().for_each(|mr| ctx.regions.release(*mr)),
            Source::Wqe(number) => {
                if let Some(w) = self.wqe(number)
                    && !w.is_answered()
                {
                    w.done = true;
                    w.status = lost.map_or(Status::Success, |lost| Status::LossReported { lost });
                }
            }
        }
        while self.flight.front().is_some_and(|m| m.done) {
            self.flight.pop_front();
            self.flight_base += 1;
        }
        self.pop_wqes(ctx);
    }

    /// Completes work requests in posting order, as far as they are finished.
    fn pop_wqes(&mut self, ctx: &mut Ctx<'_>) {
        while self.wqes.front().is_some_and(|w| w.done) {
            let Some(w) = self.wqes.pop_front() else { return };
            self.wqe_base += 1;
            complete(w, None, ctx);
        }
    }

    /// The destination of an outstanding read or atomic operation: the work request's running number and length.
    pub(crate) fn sink(&self, key: u32) -> Option<(u64, u64)> {
        let number = *self.sinks.get(&key)?;
        let w = self.wqes.get((number - self.wqe_base) as usize)?;
        Some((number, w.len))
    }

    /// Places bytes of an answer. That of an atomic operation is a number, which travels with its highest byte first.
    pub(crate) fn fill_sink(
        &self,
        number: u64,
        at: u64,
        data: &[u8],
        regions: &mut Regions,
    ) -> Result<(), CopyError> {
        let w = self.wqes.get((number - self.wqe_base) as usize).ok_or(CopyError::Bounds)?;
        if w.opcode() != Opcode::Read && cfg!(target_endian = "little") {
            let mut number = [0; ATOMIC_LEN as usize];
            let end = at.checked_add(data.len() as u64).ok_or(CopyError::Bounds)?;
            let first = ATOMIC_LEN.checked_sub(end).ok_or(CopyError::Bounds)?;
            number.iter_mut().zip(data.iter().rev()).for_each(|(to, byte)| *to = *byte);
            return w.local.write(regions, first, &number[..data.len()]);
        }
        w.local.write(regions, at, data)
    }

    /// The answer to a read or an atomic operation is complete.
    pub(crate) fn on_read_done(&mut self, sink: u32, ctx: &mut Ctx<'_>) {
        let Some(number) = self.sinks.remove(&sink) else { return };
        self.reads_out -= 1;
        let Some(w) = self.wqe(number) else { return };
        w.done = true;
        let (msn, len) = (w.msn, w.message_len() as u32);
        // The answer proves that the request arrived, however its acknowledgement fares.
        self.on_acked(SegmentRef { msn, offset: 0, len }, ctx);
        self.pop_wqes(ctx);
    }

    /// Whether the peer may have one more answer.
    pub(crate) fn takes_response(&self) -> bool {
        self.answers() < self.max_reads_in
    }

    /// Queues the answer to a peer's read, whose region is held. False when there are too many.
    pub(crate) fn queue_response(&mut self, r: Response) -> bool {
        // One that was sent completely no longer counts: the peer may ask again once it has all bytes, which can
        // be before its acknowledgement arrives.
        if !self.takes_response() {
            return false;
        }
        self.responses.push_back(r);
        true
    }

    /// Completes everything with an error: the oldest with `status`, the others flushed.
    pub(crate) fn flush(&mut self, status: Status, ctx: &mut Ctx<'_>) {
        let mut status = status;
        self.wqe_base += self.wqes.len() as u64;
        self.next_wqe = self.wqe_base;
        for w in core::mem::take(&mut self.wqes) {
            let own = (w.status == Status::LocalProtection).then_some(w.status);
            complete(w, Some(own.unwrap_or(status)), ctx);
            status = Status::FlushError;
        }
        self.abandon(ctx);
    }

    /// Gives everything back without completions.
    pub(crate) fn discard(&mut self, ctx: &mut Ctx<'_>) {
        self.wqe_base += self.wqes.len() as u64;
        self.next_wqe = self.wqe_base;
        for w in core::mem::take(&mut self.wqes) {
            w.local.release(ctx.regions);
            ctx.cqs.unreserve(ctx.send_cq);
        }
        self.abandon(ctx);
    }

    fn abandon(&mut self, ctx: &mut Ctx<'_>) {
        self.flight_base += self.flight.len() as u64;
        let sent = self.flight.drain(..).filter(|m| !m.done).filter_map(|m| match m.source {
            Source::Response(r) => Some(r),
            Source::Wqe(_) => None,
        });
        let held = sent.chain(self.responses.drain(..)).filter_map(|r| r.mr);
        held.chain(self.stream.abandon()).for_each(|mr| ctx.regions.release(mr));
        self.lost_queue = VecDeque::new();
        self.lost_messages = 0;
        (self.current_wr, self.current_response) = (None, None);
        self.sinks = KeyMap::default();
        self.reads_out = 0;
    }
}

/// Completes one work request, with its own status or the one given.
fn complete(w: Wqe, status: Option<Status>, ctx: &mut Ctx<'_>) {
    w.local.release(ctx.regions);
    let status = status.unwrap_or(w.status);
    if status == Status::Success && !w.signaled {
        ctx.cqs.unreserve(ctx.send_cq);
        return;
    }
    let wc = WorkCompletion {
        wr_id: w.wr_id,
        qp: ctx.qp,
        status,
        opcode: w.opcode(),
        byte_len: w.len,
        imm: None,
        solicited: false,
        invalidated: None,
    };
    ctx.cqs.push(ctx.send_cq, wc);
}
