//! Splits the received byte stream into records.

use super::deliver::tagged_cause;
use super::direct_placement::DirectRecord;
use super::read_ahead::ReadAhead;
use super::{Connection, End, State, expected};
use crate::ddp::{self, Header, Target};
use crate::mpa::frames::Frame;
use crate::mpa::startup::First;
use crate::mpa::{fpdu, markers};
use crate::rdmap::terminate::{self, Quote};
use crate::rdmap::{self, Opcode};
use base::Time;
use std::collections::VecDeque;
use verbs::{Adapter, MrRange};

/// Bytes of scratch memory: eight of the longest records, or twenty-one of a write as ends of Longhaul cut it, so that as many are
/// read by one call. What is checked there and copied from there stays in a processor's second cache.
const SCRATCH: usize = (8 * fpdu::MAX_FPDU).next_multiple_of(PAGE);
/// What comes first lies so far behind the start of a page: the kernel copies a message that is alone from the start of one, and
/// processors copy slowly to a place that is 1 to 63 bytes further in its page, as the start of a long `Vec` is.
const BEHIND: usize = 128;
const PAGE: usize = 4096;
/// What is allocated, so that such a place is in it with [`SCRATCH`] bytes behind it.
const ALLOCATED: usize = SCRATCH + PAGE;
/// With less room than this behind what waits, that is moved to the front.
const LITTLE: usize = 32 << 10;
/// Behind a payload that goes straight to its place, so much is read with it: its trailer and the next record's header,
/// so that the next payload goes straight to its place, too.
pub(super) const PEEK: usize = 512;
/// Of a record with markers, so much holds every header of DDP and the markers in it.
const FRONT: usize = 64;
/// A payload of which at least this much is still to come goes straight to its place, where that is allowed.
pub(super) const DIRECT: usize = 4096;

/// Behind a payload of at least this much, the next header alone is read, so that its payload goes straight to its place. Of shorter
/// records many are read by one call, and copied: a call for each of 8 KiB costs a receiver twice what the copies do.
const LONG: usize = 32 << 10;
/// So many short records may lie between two long ones of writes: the end of a message, and the announcement of the next.
const BETWEEN: u8 = 2;

/// Where a range of the stream's next bytes goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadTarget {
    /// ReadTarget [`ReadTargets::scratch`].
    Scratch {
        /// First byte.
        start: usize,
        /// Length in bytes.
        len: usize,
    },
    /// Into registered memory.
    Region(MrRange),
}

/// Where the stream's next bytes go, in order.
#[derive(Debug)]
pub struct ReadTargets<'a> {
    /// Scratch memory.
    pub scratch: &'a mut [u8],
    /// The ranges. Those of scratch memory follow each other there.
    pub ranges: &'a [ReadTarget],
}

/// Scratch memory that connections of one thread share: each has some only while a record is incomplete.
#[derive(Debug, Default)]
pub struct Scratch {
    free: Vec<Vec<u8>>,
    lent: usize,
}

/// Connections that may each keep scratch memory in which a record is incomplete. Further ones keep no more than the
/// record's bytes.
const MAX_LENT: usize = 64;
/// Scratch memory that waits to be lent at most.
const MAX_FREE: usize = 8;

impl Scratch {
    fn take(&mut self) -> Vec<u8> {
        self.lent += 1;
        self.free.pop().unwrap_or_else(|| vec![0; ALLOCATED])
    }
    fn put(&mut self, mut scratch: Vec<u8>) {
        self.lent = self.lent.saturating_sub(1);
        if self.free.len() < MAX_FREE {
            // It may have had to grow (`gather_again`).
            scratch.truncate(ALLOCATED);
            scratch.shrink_to_fit();
            self.free.push(scratch);
        }
    }
}

/// The receiving half.
pub(super) struct Receiver {
    pub(super) scratch: Vec<u8>,
    /// Where in it the first bytes are read to, and the [`SCRATCH`] bytes begin that are in use.
    home: usize,
    /// What of it waits to be looked at.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Position of `start` in the stream of records.
    pub(super) position: u64,
    /// Records taken so far.
    taken: u64,
    pub(super) direct: Option<DirectRecord>,
    /// Short records since the last long one whose payload went straight to its place, or would have, had its header come alone.
    pub(super) shorts: u8,
    pub(super) read_ahead: ReadAhead,
    /// Where the payload of the record that is being looked at belongs.
    pub(super) places: Vec<MrRange>,
    ranges: Vec<ReadTarget>,
    /// When the first byte of a record that is not complete came.
    pub(super) record_since: Option<Time>,
    /// Since when a whole record waits for a receive.
    pub(super) held_since: Option<Time>,
    /// A record was received and verified.
    pub(super) validated: bool,
    /// Number of the next message of each queue.
    pub(super) msn: [u32; ddp::QUEUES],
    /// The send that is arriving: its operation, and what of it is there.
    pub(super) sending: Option<(Opcode, u64)>,
    /// Reads that wait for their answers, by the keys of their destinations; at most the agreed number.
    pub(super) reads: VecDeque<u32>,
    /// What is there of the answer to the first of these.
    pub(super) read_at: u64,
    /// Atomic operations that wait for their answers; likewise.
    pub(super) atomics: VecDeque<u32>,
    /// Where the peer wants the answers to its reads; as many as wait at the adapter.
    pub(super) answers: VecDeque<(u32, u64)>,
    /// The answer to a read of no bytes, which was our first message, is to come.
    pub(super) expects_empty_answer: bool,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver {
            scratch: Vec::new(),
            home: 0,
            start: 0,
            end: 0,
            position: 0,
            taken: 0,
            direct: None,
            shorts: u8::MAX,
            read_ahead: ReadAhead::default(),
            places: Vec::new(),
            ranges: Vec::new(),
            record_since: None,
            held_since: None,
            validated: false,
            msn: [1; ddp::QUEUES],
            sending: None,
            reads: VecDeque::new(),
            read_at: 0,
            atomics: VecDeque::new(),
            answers: VecDeque::new(),
            expects_empty_answer: false,
        }
    }
    /// Nothing is taken in any more.
    pub(super) fn abandon(&mut self) {
        (self.start, self.end, self.direct, self.record_since) = (self.home, self.home, None, None);
        self.held_since = None;
        self.places.clear();
        self.reads.clear();
        self.atomics.clear();
        self.expects_empty_answer = false;
    }
    /// Takes scratch memory of full length into use, and what waits with it.
    fn settle_in(&mut self, mut scratch: Vec<u8>) {
        let waits = &self.scratch[self.start..self.end];
        self.home = BEHIND.wrapping_sub(scratch.as_ptr().addr()) % PAGE;
        scratch[self.home..self.home + waits.len()].copy_from_slice(waits);
        (self.start, self.end) = (self.home, self.home + waits.len());
        self.scratch = scratch;
    }
    /// Nothing waits to be looked at.
    pub(super) fn is_at_payload(&self) -> bool {
        self.start == self.end
    }
    /// The record whose payload goes straight to its place: header, operation, bytes of its payload.
    pub(super) fn arriving(&self) -> Option<(&Header, Opcode, usize)> {
        self.direct.as_ref().map(|d| (&d.header, d.op, d.payload))
    }
    /// What [`shorts`](Receiver::shorts) is behind one more record.
    pub(super) fn shorts_with(&self, ulpdu: usize, tagged: bool) -> u8 {
        match ulpdu {
            LONG.. => 0,
            _ if tagged => self.shorts.saturating_add(1),
            _ => u8::MAX,
        }
    }
    /// A record was taken from the front.
    pub(super) fn take(&mut self, len: usize) {
        self.start += len;
        self.position += len as u64;
        self.taken += 1;
    }
    pub(super) fn is_between_records(&self) -> bool {
        self.start == self.end && self.direct.is_none()
    }
    pub(super) fn awaits_answers(&self) -> bool {
        !self.reads.is_empty() || !self.atomics.is_empty()
    }
}

/// The result of processing the front of the scratch memory.
pub(super) enum Progress {
    /// Something was taken; look again.
    Again,
    /// More bytes are needed.
    More,
}

impl Connection {
    /// Lets the connection use scratch memory of `spare` until [`return_scratch`](Connection::return_scratch). Without it, it has its
    /// own.
    pub fn borrow_scratch(&mut self, spare: &mut Scratch) {
        if self.rx.scratch.len() < ALLOCATED {
            self.rx.settle_in(spare.take());
        }
    }
    /// Gives scratch memory back in which nothing waits. Call it when there is nothing more to read for now, and when the
    /// connection is over.
    pub fn return_scratch(&mut self, spare: &mut Scratch) {
        let rx = &mut self.rx;
        if rx.scratch.len() < ALLOCATED || rx.start < rx.end && spare.lent <= MAX_LENT {
            return;
        }
        let waits = rx.scratch[rx.start..rx.end].to_vec();
        (rx.home, rx.start, rx.end) = (0, 0, waits.len());
        spare.put(core::mem::replace(&mut rx.scratch, waits));
        if self.tx.batch.is_empty() {
            self.tx.batch.trim();
        }
    }

    /// Whether a whole record waits for a receive to be posted: then nothing is to be read; call
    /// [`resume`](Connection::resume) when there may be one.
    pub fn is_held(&self) -> bool {
        self.rx.held_since.is_some()
    }
    /// A receive may have been posted.
    #[cold]
    pub fn resume(&mut self, a: &mut Adapter, now: Time) {
        if self.is_held() {
            self.process_between(a, now);
            self.settle(a);
        }
    }

    /// Whether the record that is arriving lacks but a few bytes: those of a message's last segment, which come right behind the
    /// others. Then another look costs less than to wait for them elsewhere.
    pub fn lacks_little(&self) -> bool {
        let rx = &self.rx;
        let runs = self.state.runs() && !self.terms.markers_in;
        if rx.is_between_records() || !runs || self.is_held() {
            return false;
        }
        let there = rx.end - rx.start;
        let lacking = match (&rx.direct, rx.scratch.get(rx.start..rx.end)) {
            (Some(d), _) => {
                let tail = (d.pad + fpdu::CRC).saturating_sub(there);
                usize::try_from(d.missing).unwrap_or(usize::MAX).saturating_add(tail)
            }
            (None, Some(&[high, low, ..])) => {
                fpdu::len(usize::from(u16::from_be_bytes([high, low]))).saturating_sub(there)
            }
            _ => 0,
        };
        (1..DIRECT).contains(&lacking)
    }

    /// Looks whether the write that goes straight to its place may still go there. To be called before
    /// [`places`](Connection::places): through a key that was made void, nothing more arrives.
    pub fn recheck(&mut self, a: &mut Adapter, now: Time) {
        if let Some(DirectRecord { header, op: Opcode::Write, payload, .. }) = &self.rx.direct
            && let (Target::Tagged { stag, to }, Some(qp)) = (header.target, self.qp)
            && let Err(refusal) = a.may_write(qp, (stag, to, *payload as u64))
        {
            let mut ddp = Vec::new();
            header.put(&mut ddp);
            let len = (ddp.len() + payload) as u16;
            self.terminate(a, tagged_cause(refusal), Quote { len, ddp: &ddp, request: &[] }, now);
        }
        self.plan_ahead(a);
    }

    /// Where the next bytes of the stream go. All of them in one system call; then say how many came.
    pub fn places(&mut self) -> ReadTargets<'_> {
        let rx = &mut self.rx;
        if rx.scratch.len() < ALLOCATED {
            rx.settle_in(vec![0; ALLOCATED]);
        }
        // Not all there is behind it, so that what is read does not depend on where the memory lies.
        let limit = rx.home + SCRATCH;
        if rx.start == rx.end {
            (rx.start, rx.end) = (rx.home, rx.home);
        } else if rx.end + LITTLE > limit {
            rx.scratch.copy_within(rx.start..rx.end, rx.home);
            (rx.start, rx.end) = (rx.home, rx.home + rx.end - rx.start);
        }
        rx.ranges.clear();
        if let Some(d) = &rx.direct {
            let mut skip = d.payload as u64 - d.missing;
            for p in &rx.places {
                let past = skip.min(p.len);
                skip -= past;
                if past < p.len {
                    let rest = MrRange { offset: p.offset + past, len: p.len - past, ..*p };
                    rx.ranges.push(ReadTarget::Region(rest));
                }
            }
        }
        let mut at = rx.end;
        for range in rx.read_ahead.plan.drain(..) {
            rx.ranges.push(match range {
                ReadTarget::Scratch { len, .. } => {
                    at += len;
                    ReadTarget::Scratch { start: at - len, len }
                }
                region => region,
            });
        }
        if at == rx.end {
            // Behind a long payload that went straight to its place another one is likely: its header alone is read, since the copy
            // that is saved by that costs more than the further system call (64 KiB: 3 us and 0.3 us).
            let expects = rx.start == rx.end && rx.shorts <= BETWEEN;
            let room = if expects { PEEK } else { usize::MAX };
            rx.ranges.push(ReadTarget::Scratch { start: at, len: room.min(limit.saturating_sub(at)) });
        }
        ReadTargets { scratch: &mut rx.scratch, ranges: &rx.ranges }
    }

    /// `n` bytes came, into the first places that [`places`](Connection::places) named.
    pub fn on_received(&mut self, a: &mut Adapter, n: usize, now: Time) {
        match self.rx.ranges[..] {
            // As most often: of a record that is copied it need not be asked where what comes belongs.
            [ReadTarget::Scratch { len, .. }] if n <= len && self.rx.direct.is_none() => {
                self.rx.end = (self.rx.end + n).min(self.rx.scratch.len());
            }
            _ => self.place(a, n, now),
        }
        self.process(a, now);
        self.settle(a);
    }

    /// What came goes on where it is, or is counted there.
    #[inline(never)]
    fn place(&mut self, a: &mut Adapter, mut n: usize, now: Time) {
        let ranges = core::mem::take(&mut self.rx.ranges);
        for (i, range) in ranges.iter().enumerate() {
            if n == 0 || matches!(self.state, State::Ending(..) | State::Closed) {
                break;
            }
            let (here, as_expected) = match range {
                ReadTarget::Scratch { len, .. } => (n.min(*len), self.rx.direct_rest().is_none()),
                ReadTarget::Region(p) => {
                    let here = (n as u64).min(p.len);
                    (here as usize, self.rx.direct_rest().is_some_and(|r| holds(&r, p, here)))
                }
            };
            if !as_expected {
                self.gather_again(a, &ranges[i..], n, now);
                break;
            }
            match range {
                ReadTarget::Scratch { .. } => {
                    self.rx.end = (self.rx.end + here).min(self.rx.scratch.len());
                    // Where what follows belongs depends on it.
                    if n > here && !self.continues_write(a, ranges.get(i + 1), now) {
                        self.process_between(a, now);
                    }
                }
                ReadTarget::Region(_) if self.took_direct(a, here as u64) => {}
                // The region is gone or its memory failed.
                ReadTarget::Region(_) => self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now),
            }
            n -= here;
        }
        self.rx.ranges = ranges;
    }

    /// What came is not what was expected: takes `n` bytes from where they are as they would have come.
    #[cold]
    fn gather_again(&mut self, a: &mut Adapter, ranges: &[ReadTarget], n: usize, now: Time) {
        self.rx.read_ahead.mispredicted();
        let mut bytes = Vec::with_capacity(n);
        for range in ranges {
            let rest = n - bytes.len();
            match range {
                ReadTarget::Scratch { start, len } => {
                    bytes.extend_from_slice(&self.rx.scratch[*start..start + rest.min(*len)]);
                }
                ReadTarget::Region(p) => {
                    let here = (rest as u64).min(p.len);
                    let part = MrRange { len: here, ..*p };
                    if here > 0 && a.fold_mr(part, &mut |b| bytes.extend_from_slice(b)).is_err() {
                        return self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now);
                    }
                }
            }
        }
        let mut rest = &bytes[..];
        while let Some(p) = self.rx.direct_rest().filter(|_| !rest.is_empty()) {
            let (here, behind) = rest.split_at(rest.len().min(usize::try_from(p.len).unwrap_or(usize::MAX)));
            if a.write_mr(p.mr, p.offset, here).is_err() || !self.took_direct(a, here.len() as u64) {
                return self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now);
            }
            rest = behind;
        }
        let end = self.rx.end + rest.len();
        if self.rx.scratch.len() < end {
            self.rx.scratch.resize(end, 0);
        }
        self.rx.scratch[self.rx.end..end].copy_from_slice(rest);
        self.rx.end = end;
    }

    /// As a stream would: copies `bytes` to their places. For tests, and for streams that cannot scatter. Gives how many
    /// were taken: all, unless the connection is over, or [held](Connection::is_held).
    pub fn receive(&mut self, a: &mut Adapter, mut bytes: &[u8], now: Time) -> usize {
        let all = bytes.len();
        while !bytes.is_empty() && !self.is_closed() && !self.is_held() {
            self.recheck(a, now);
            let places = self.places();
            let (mut taken, mut failed) = (0, false);
            for range in places.ranges {
                let rest = &bytes[taken..];
                let n = match range {
                    ReadTarget::Scratch { start, len } => {
                        let n = rest.len().min(*len);
                        places.scratch[*start..start + n].copy_from_slice(&rest[..n]);
                        n
                    }
                    ReadTarget::Region(p) => {
                        let n = rest.len().min(usize::try_from(p.len).unwrap_or(usize::MAX));
                        failed |= a.write_mr(p.mr, p.offset, &rest[..n]).is_err();
                        n
                    }
                };
                taken += n;
            }
            bytes = &bytes[taken..];
            if failed {
                self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now);
            } else {
                self.on_received(a, taken, now);
            }
        }
        all - bytes.len()
    }

    /// Takes what can be taken from the scratch memory.
    #[inline(always)]
    pub(super) fn process(&mut self, a: &mut Adapter, now: Time) {
        let mut scratch = core::mem::take(&mut self.rx.scratch);
        let taken = self.rx.taken;
        // Every turn takes at least the eight bytes of an empty record.
        while let Progress::Again = self.look(a, &mut scratch, now) {}
        self.rx.scratch = scratch;
        let runs = self.state.runs();
        let waits = runs && !self.rx.is_between_records() && !self.is_held();
        if !waits {
            self.rx.record_since = None;
        } else if self.rx.record_since.is_none() || self.rx.taken != taken {
            self.rx.record_since = Some(now);
        }
    }

    /// The same where that is not all there is to a read.
    #[inline(never)]
    pub(super) fn process_between(&mut self, a: &mut Adapter, now: Time) {
        self.process(a, now);
    }

    #[inline(always)]
    fn look(&mut self, a: &mut Adapter, scratch: &mut [u8], now: Time) -> Progress {
        match self.state {
            State::AwaitReply | State::AwaitRequest => self.parse_startup_frame(a, scratch, now),
            // What a peer sends before it has its reply waits. A peer may not (RFC 5044, section 7.1.2): no more is
            // read than there is room for.
            State::Asked(_) => {
                if self.rx.end - self.rx.start >= SCRATCH {
                    self.finish(a, End::Mismatch, true, super::StreamAction::Abort);
                }
                Progress::More
            }
            State::Running | State::Closing if self.rx.direct.is_some() => {
                self.parse_trailer(a, scratch, now)
            }
            State::Running | State::Closing if self.terms.markers_in => {
                self.parse_marked_record(a, scratch, now)
            }
            State::Running | State::Closing => self.parse_record::<false>(a, scratch, now),
            State::Ending(..) | State::Closed => {
                (self.rx.start, self.rx.end) = (self.rx.home, self.rx.home);
                Progress::More
            }
        }
    }

    #[cold]
    fn parse_startup_frame(&mut self, a: &mut Adapter, scratch: &[u8], now: Time) -> Progress {
        let Some(kind) = expected(self.state) else { return Progress::More };
        let waiting = &scratch[self.rx.start..self.rx.end];
        match Frame::parse(waiting, kind) {
            Ok(None) => Progress::More,
            Ok(Some((frame, len, private))) => {
                self.rx.start += len;
                self.on_frame(a, frame, &waiting[private..len], now);
                Progress::Again
            }
            Err(e) => {
                // RFC 5044, section 8, code 4: the connection MUST be closed at once.
                self.finish(a, End::Frame(e), false, super::StreamAction::Abort);
                Progress::More
            }
        }
    }

    /// A record with markers: apart, so that what it takes does not lie between what others go through.
    #[inline(never)]
    fn parse_marked_record(&mut self, a: &mut Adapter, scratch: &mut [u8], now: Time) -> Progress {
        self.parse_record::<true>(a, scratch, now)
    }

    #[inline(always)]
    fn parse_record<const MARKED: bool>(
        &mut self,
        a: &mut Adapter,
        scratch: &mut [u8],
        now: Time,
    ) -> Progress {
        let at = self.rx.position;
        let waiting = &scratch[self.rx.start..self.rx.end];
        let front = if MARKED && markers::is_here(at) { markers::LEN } else { 0 };
        let Some(&[high, low]) = waiting.get(front..front + fpdu::LENGTH) else { return Progress::More };
        let ulpdu = usize::from(u16::from_be_bytes([high, low]));
        let mut len = fpdu::len(ulpdu);
        if MARKED {
            len += markers::LEN * markers::count(at, len);
        }
        if waiting.len() < len {
            return self.try_direct(a, scratch, ulpdu);
        }
        if !MARKED && is_write(waiting) && self.take_writes(a, scratch) {
            return if self.rx.start < self.rx.end { Progress::Again } else { Progress::More };
        }
        let record = &mut scratch[self.rx.start..][..len];
        let (covered, field) = record.split_at(len - fpdu::CRC);
        // RFC 5044, section 6: the CRC MUST be verified before anything is done with the record.
        if self.terms.crc && *field != fpdu::crc_field(fpdu::crc(0, covered)) {
            self.terminate(a, terminate::CRC, Quote::default(), now);
            return Progress::More;
        }
        if self.may_hold(a) && self.holds(a, &record[..len - fpdu::CRC], now) {
            return Progress::More;
        }
        if MARKED && markers::remove(at, record).1.is_err() {
            self.terminate(a, terminate::MARKER, Quote::default(), now);
            return Progress::More;
        }
        self.took(len);
        let tagged = Header::is_tagged(record[fpdu::LENGTH]);
        self.rx.shorts = if self.may_go_direct() { self.rx.shorts_with(ulpdu, tagged) } else { u8::MAX };
        self.deliver(a, &record[fpdu::LENGTH..fpdu::LENGTH + ulpdu], now);
        if self.rx.start < self.rx.end { Progress::Again } else { Progress::More }
    }

    /// Whether there is something that may have to wait: a receive that is there, and nothing that waited, is the usual case.
    fn may_hold(&self, a: &Adapter) -> bool {
        self.is_held() || !self.qp.is_some_and(|qp| a.has_receive(qp))
    }

    /// Whether the record at the front is to wait for a receive.
    #[cold]
    fn holds(&mut self, a: &Adapter, record: &[u8], now: Time) -> bool {
        let since = self.rx.held_since.take().unwrap_or(now);
        // The first message of the peer-to-peer model takes no receive.
        let first = !self.rx.validated && self.terms.expected.is_some();
        if first || self.config.receive_wait.is_zero() || since + self.config.receive_wait <= now {
            return false;
        }
        let mut front = [0; FRONT];
        let n = record.len().min(FRONT);
        front[..n].copy_from_slice(&record[..n]);
        let len =
            if self.terms.markers_in { markers::remove(self.rx.position, &mut front[..n]).0 } else { n };
        let header = front.get(fpdu::LENGTH..len).map(Header::parse);
        let Some(Ok(Header { control, target: Target::Untagged { mo: 0, .. }, .. })) = header else {
            return false;
        };
        let takes = matches!(Opcode::parse(control), Ok(Opcode::Send { .. } | Opcode::Immediate { .. }));
        let held = takes && self.qp.is_some_and(|qp| !a.has_receive(qp));
        self.rx.held_since = held.then_some(since);
        held
    }

    /// The same, and what begins with the first one that is taken.
    pub(super) fn took(&mut self, len: usize) {
        self.rx.take(len);
        // The answer to a first message that is a read is waited for (`skip_first_message`).
        let asked = || self.terms.first == Some(First::Read);
        if !self.rx.validated && matches!(self.state, State::Running) && !asked() {
            self.deadline = None;
        }
    }
}

/// Whether the record at the front is one of a write.
fn is_write(waiting: &[u8]) -> bool {
    matches!(*waiting, [_, _, first, rdmap::WRITE, ..] if Header::is_tagged(first))
}

/// Whether the first bytes of `p` are the first of `rest`.
fn holds(rest: &MrRange, p: &MrRange, len: u64) -> bool {
    rest.mr == p.mr && rest.offset == p.offset && len <= rest.len
}

/// Copies `bytes` to the front of `places`.
pub(super) fn put(a: &mut Adapter, places: &[MrRange], bytes: &[u8]) -> bool {
    let mut rest = bytes;
    for p in places {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(rest.len().min(usize::try_from(p.len).unwrap_or(usize::MAX)));
        if a.write_mr(p.mr, p.offset, now).is_err() {
            return false;
        }
        rest = later;
    }
    rest.is_empty()
}

#[cfg(test)]
impl Scratch {
    /// As if many connections had some.
    pub(super) fn pretend_lent(&mut self) {
        self.lent = MAX_LENT + 1;
    }
}
#[cfg(test)]
impl Connection {
    /// Records that came.
    pub(super) fn taken(&self) -> u64 {
        self.rx.taken
    }
    pub(super) fn scratch_kept(&self) -> usize {
        self.rx.scratch.len()
    }
}
