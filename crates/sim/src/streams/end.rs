//! One end of a simulated iWARP connection: an application that posts planned work and checks the results.

use super::plan::{Fault, Job, Op, Plan, WORD};
use base::{Rng, Span, Time};
use iwarp::{Connection, Event, Piece};
use std::rc::Rc;
use verbs::{
    Access, Adapter, AtomicOp, CqId, Data, Kind, Limits, Mr, MwId, Opcode, QpId, QpInit, RecvWr, SendOp,
    SendWr, Sge, SrqId, Status, WindowRange, WorkCompletion,
};

/// Indices of an end's regions.
pub const SOURCE: usize = 0;
pub const TARGET: usize = 1;
pub const OWN: usize = 2;
/// First work-request number of receives.
const RECEIVES: u64 = 1 << 32;
/// Initial content of target regions and own memory.
const EMPTY: u8 = 0xa5;

/// An end.
pub struct End {
    side: usize,
    plan: Rc<Plan>,
    pub a: Adapter,
    pub qp: QpId,
    cq: CqId,
    srq: Option<SrqId>,
    pub c: Connection,
    pub mrs: [Mr; 3],
    /// Which regions were deregistered.
    pub deregistered: [bool; 3],
    pub windows: Vec<(MwId, u32)>,
    source: Vec<u8>,
    /// Work posted, work completed, and receives completed.
    posted: usize,
    completed: usize,
    received: usize,
    /// Whether work or a receive has failed, after which no other may succeed.
    failed: [bool; 2],
    /// How many have succeeded.
    succeeded: [usize; 2],
    /// The values of the peer's word after each of our atomic operations.
    words: Vec<u64>,
    pub established: Option<Time>,
    pub requested: Option<Time>,
    pub closed: Option<(iwarp::End, bool)>,
    /// Whether the stream is no longer used.
    pub abandoned: bool,
    /// Whether the program has ended.
    pub killed: bool,
    /// Until when it reads nothing.
    pub busy_until: Time,
    /// The content of a window when it was destroyed, which must not change any more.
    frozen: Option<(u64, Vec<u8>)>,
    /// Receives posted.
    receives_posted: usize,
    /// Whether there may be something to send.
    pub ready: bool,
}

/// The content of an end's source region.
fn source(plan: &Plan, seed: u64, side: usize) -> Vec<u8> {
    let mut bytes = vec![0; plan.sides[side].sizes[SOURCE] as usize];
    Rng::from_u64(seed ^ (side as u64 + 1) << 60).fill(&mut bytes);
    bytes
}

impl End {
    pub fn new(plan: &Rc<Plan>, seed: u64, side: usize) -> Result<End, verbs::Error> {
        let me = &plan.sides[side];
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(seed.rotate_left(1) ^ side as u64));
        let pd = a.alloc_pd()?;
        let cq = a.create_cq(1000)?;
        let srq = if me.shared { Some(a.create_srq(pd, 100)?) } else { None };
        let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, srq, ..QpInit::new(cq, cq) })?;
        let source = source(plan, seed, side);
        let empty = |which: usize| {
            let mut bytes = vec![EMPTY; me.sizes[which] as usize];
            bytes[WORD as usize..WORD as usize + 8].fill(0);
            bytes
        };
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut register = |bytes: Vec<u8>, access| a.reg_mr(pd, bytes.into(), access).map_err(|(e, _)| e);
        let mrs = [
            register(source.clone(), Access::REMOTE_READ)?,
            register(empty(TARGET), open)?,
            register(empty(OWN), Access::LOCAL_WRITE)?,
        ];
        let mut windows = Vec::new();
        for (offset, len) in &me.windows {
            let mw = a.alloc_mw(pd)?;
            let range =
                WindowRange { mr: mrs[TARGET].id, offset: *offset, len: *len, access: Access::REMOTE_WRITE };
            windows.push((mw, a.bind_mw(qp, mw, range)?));
        }
        let c = if side == 0 {
            Connection::initiator(me.config, qp, b"who", Time::ZERO)?
        } else {
            Connection::responder(me.config, Time::ZERO)
        };
        let mut end = End {
            side,
            plan: plan.clone(),
            a,
            qp,
            cq,
            srq,
            c,
            mrs,
            deregistered: [false; 3],
            windows,
            source,
            posted: 0,
            completed: 0,
            received: 0,
            failed: [false; 2],
            succeeded: [0; 2],
            words: vec![0],
            established: None,
            requested: None,
            closed: None,
            abandoned: false,
            killed: false,
            busy_until: Time::ZERO,
            frozen: None,
            receives_posted: 0,
            ready: true,
        };
        if plan.announces {
            end.c.announce_writes();
        }
        if let Some(longest) = plan.longest_write {
            end.c.shorten_writes(longest);
        }
        end.post_due_receives(Span::ZERO)?;
        Ok(end)
    }
    fn jobs(&self) -> &[Job] {
        &self.plan.sides[self.side].jobs
    }

    fn slots(&self) -> &[(u64, u64, Span)] {
        let none = self.plan.fault == Fault::NoReceives(self.side);
        if none { &[] } else { &self.plan.sides[self.side].slots }
    }

    // ---- what it does ----

    /// Posts the receives that are due `since` after the start of work.
    fn post_due_receives(&mut self, since: Span) -> Result<(), verbs::Error> {
        while let Some(&(offset, len, due)) = self.slots().get(self.receives_posted)
            && due <= since
        {
            let sges = Sge { lkey: self.mrs[OWN].lkey, offset, len }.into();
            let wr = RecvWr { wr_id: RECEIVES + self.receives_posted as u64, sges };
            match self.srq {
                Some(srq) => self.a.post_srq_recv(srq, wr)?,
                None => self.a.post_recv(self.qp, wr)?,
            }
            self.receives_posted += 1;
        }
        Ok(())
    }
    /// Whether the adapter or the connection may have something to send.
    pub fn is_ready(&mut self) -> bool {
        while let Some(qp) = self.a.activated() {
            self.ready |= qp == self.qp;
        }
        self.ready |= self.c.wants_to_send();
        self.ready
    }

    /// Processes the connection's events.
    pub fn update_from_connection(&mut self, now: Time) {
        while let Some(e) = self.c.next_event() {
            match e {
                Event::Requested { .. } => self.requested = Some(now),
                Event::Established { .. } => self.established = Some(now),
                Event::Closed { end, by_peer } => self.closed = Some((end, by_peer)),
                Event::Rejected { .. } | Event::PeerClosed => {}
            }
        }
    }
    /// When it has to act without an event.
    pub fn next_action(&self) -> Option<Time> {
        if self.closed.is_some() || self.killed {
            return None;
        }
        let answer = self.requested.map(|t| t + self.plan.answer);
        let job = self
            .jobs()
            .get(self.posted)
            .filter(|_| !self.deregistered[SOURCE])
            .zip(self.established)
            .map(|(j, t)| t + j.after);
        let slot = self.slots().get(self.receives_posted).zip(self.established).map(|(s, t)| t + s.2);
        [answer, job, slot].into_iter().flatten().min()
    }
    /// Answers, and posts what is due. `keys` are those of the peer's source, target and windows.
    pub fn act(&mut self, now: Time, keys: &Keys) -> Result<(), String> {
        if self.requested.is_some_and(|t| t + self.plan.answer <= now) && self.closed.is_none() {
            self.requested = None;
            let answered = if self.plan.fault == Fault::Reject {
                self.c.reject(b"no", now)
            } else {
                self.c.accept(&mut self.a, self.qp, b"welcome", now)
            };
            // The caller sends the results.
            self.ready = true;
            answered.map_err(|e| format!("end {} cannot answer: {e}", self.side))?;
        }
        if let Some(t) = self.established.filter(|_| self.closed.is_none()) {
            self.post_due_receives(now.since(t))
                .map_err(|e| format!("end {} cannot post: {e}", self.side))?;
            self.c.resume(&mut self.a, now);
        }
        // After deregistering a region it posts nothing more.
        while self.closed.is_none()
            && !self.deregistered[SOURCE]
            && let (Some(job), Some(t)) = (self.jobs().get(self.posted).copied(), self.established)
            && t + job.after <= now
        {
            let wr = self.request(&job, keys);
            self.a.post_send(self.qp, wr).map_err(|e| format!("end {} cannot post: {e}", self.side))?;
            self.posted += 1;
        }
        Ok(())
    }

    fn request(&mut self, job: &Job, keys: &Keys) -> SendWr {
        let wrong = if self.plan.wrong_job(self.side) == Some(self.posted) { 0x5a5a } else { 0 };
        let (rkey, offset) = (keys.target ^ wrong, job.to);
        let window = |i: Option<usize>| i.and_then(|i| keys.windows.get(i)).copied().unwrap_or(0);
        let atomic = |op| SendOp::Atomic { rkey: keys.target, offset: WORD, op };
        let before = self.words.last().copied().unwrap_or(0);
        let op = match job.op {
            Op::Write => SendOp::Write { rkey, offset },
            Op::WriteImm => SendOp::WriteImm { rkey, offset, imm: self.posted as u32 },
            Op::Send => SendOp::Send,
            Op::SendInvalidate => SendOp::SendInvalidate { rkey: window(job.window) },
            Op::WriteThroughWindow => SendOp::Write { rkey: window(job.window), offset: 0 },
            Op::Read => SendOp::Read { rkey: keys.source ^ wrong, offset: job.from },
            Op::Add => atomic(AtomicOp::FetchAdd { add: 1 + self.posted as u64, mask: 0 }),
            // Every other one succeeds.
            Op::Swap => atomic(AtomicOp::CompareSwap {
                compare: before ^ (self.posted as u64 & 1),
                compare_mask: u64::MAX,
                swap: 1000 * self.posted as u64,
                swap_mask: u64::MAX,
            }),
            Op::LocalInvalidate => SendOp::LocalInvalidate {
                rkey: job.window.and_then(|i| self.windows.get(i)).map_or(0, |w| w.1),
            },
        };
        if let SendOp::Atomic { op, .. } = op {
            self.words.push(op.apply(before));
        }
        let wr = SendWr::new(self.posted as u64, op, self.data(job));
        SendWr { solicited: job.solicited, fence: job.fence, ..wr }
    }
    fn data(&self, job: &Job) -> Data {
        if job.inline {
            return Data::Inline(self.source[job.from as usize..(job.from + job.len) as usize].into());
        }
        let here = matches!(job.op, Op::Read | Op::Add | Op::Swap);
        let (lkey, at) = if here { (self.mrs[OWN].lkey, job.to) } else { (self.mrs[SOURCE].lkey, job.from) };
        // Atomic operations may return their eight bytes in one piece or several.
        let part = job.len.div_ceil(job.pieces).max(1);
        let cuts = (0..job.len).step_by(part as usize);
        Data::from(cuts.map(|o| Sge { lkey, offset: at + o, len: part.min(job.len - o) }).collect::<Vec<_>>())
    }

    /// The bytes that it sends in one call, at most `most`.
    pub fn transmit(&mut self, now: Time, most: u64) -> Result<Vec<u8>, String> {
        let Some(t) = self.c.transmit(&mut self.a, now) else { return Ok(Vec::new()) };
        let (mut bytes, mut regions) = (Vec::new(), Vec::new());
        for p in t.pieces {
            if bytes.len() as u64 >= t.skip as u64 + most {
                break;
            }
            match p {
                Piece::Scratch { start, len } => bytes.extend(&t.scratch[*start..start + len]),
                Piece::Region(p) => {
                    regions.push((bytes.len(), *p));
                    bytes.resize(bytes.len() + p.len as usize, 0);
                }
            }
        }
        let skip = t.skip;
        for (at, p) in regions {
            let part = &mut bytes[at..at + p.len as usize];
            self.a.read_mr(p.mr, p.offset, part).map_err(|e| format!("what is to be sent is gone: {e}"))?;
        }
        bytes.drain(..skip);
        bytes.truncate(most as usize);
        self.c.on_sent(&mut self.a, bytes.len());
        Ok(bytes)
    }

    // ---- what comes of it ----

    /// Checks completions.
    pub fn check(&mut self, other: &End) -> Result<u64, String> {
        let mut n = 0;
        while let Some(wc) = self.a.poll_cq(self.cq) {
            n += 1;
            let is_receive = wc.wr_id >= RECEIVES;
            let next = if is_receive { &mut self.received } else { &mut self.completed };
            let index = (wc.wr_id % RECEIVES) as usize;
            if index != *next {
                return Err(format!("end {}: {wc:?} completed instead of number {next}", self.side));
            }
            *next += 1;
            let failed = &mut self.failed[usize::from(is_receive)];
            if wc.status != Status::Success {
                *failed = true;
                continue;
            }
            self.succeeded[usize::from(is_receive)] += 1;
            if *failed {
                return Err(format!("end {}: {wc:?} succeeded behind one that failed", self.side));
            }
            let right = if is_receive {
                self.is_valid_receive(other, &wc)
            } else {
                self.is_valid_completion(other, &wc)
            };
            if !right {
                return Err(format!("end {}: {wc:?} is not what was to come", self.side));
            }
        }
        Ok(n)
    }
    /// The peer's job that consumes a receive.
    fn consumer<'a>(&self, other: &'a End, slot: usize) -> Option<(usize, &'a Job)> {
        other.jobs().iter().enumerate().find(|(_, j)| j.slot == Some(slot))
    }
    fn is_valid_receive(&self, other: &End, wc: &WorkCompletion) -> bool {
        let Some((i, job)) = self.consumer(other, self.received - 1) else { return false };
        let is_imm = job.op == Op::WriteImm;
        let place = self.plan.sides[self.side].slots[self.received - 1].0;
        let key = job.window.and_then(|w| self.windows.get(w)).map(|w| w.1);
        wc.opcode == if is_imm { Opcode::RecvWriteImm } else { Opcode::Recv }
            && wc.imm == is_imm.then_some(i as u32)
            && wc.solicited == job.solicited
            && wc.invalidated == key.filter(|_| job.op == Op::SendInvalidate)
            && (is_imm || wc.byte_len == job.len && self.memory_equals(OWN, place, other.bytes(job)))
            // Everything before it must be in place.
            && other.jobs()[..=i].iter().all(|j| self.has_write(other, j))
    }
    /// Whether a Write of the peer is in place.
    fn has_write(&self, other: &End, job: &Job) -> bool {
        let write = matches!(job.op, Op::Write | Op::WriteImm | Op::WriteThroughWindow);
        let known = !self.deregistered[TARGET] && !self.plan.places_damage(self.side);
        !write || !known || self.memory_equals(TARGET, job.to, other.bytes(job))
    }
    fn is_valid_completion(&self, other: &End, wc: &WorkCompletion) -> bool {
        let i = self.completed - 1;
        let job = &self.jobs()[i];
        let (opcode, right) = match job.op {
            Op::Read => {
                let want = &other.source[job.from as usize..(job.from + job.len) as usize];
                (Opcode::Read, self.memory_equals(OWN, job.to, want))
            }
            Op::Add | Op::Swap => {
                let atomics =
                    |jobs: &[Job]| jobs.iter().filter(|j| matches!(j.op, Op::Add | Op::Swap)).count();
                let before = self.words[atomics(&self.jobs()[..i])];
                let opcode = if job.op == Op::Add { Opcode::FetchAdd } else { Opcode::CompareSwap };
                (opcode, self.memory_equals(OWN, job.to, &before.to_ne_bytes()))
            }
            Op::LocalInvalidate => (Opcode::LocalInvalidate, true),
            Op::Send | Op::SendInvalidate => (Opcode::Send, true),
            _ => (Opcode::Write, true),
        };
        wc.opcode == opcode && right
    }
    /// The bytes that a job carries to the peer.
    fn bytes(&self, job: &Job) -> &[u8] {
        &self.source[job.from as usize..(job.from + job.len) as usize]
    }
    fn memory(&self, which: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.plan.sides[self.side].sizes[which] as usize];
        self.a.read_mr(self.mrs[which].id, 0, &mut bytes).ok().map(|()| bytes)
    }
    /// Destroys its first window.
    pub fn destroy_window(&mut self) {
        let Some((mw, _)) = self.windows.first() else { return };
        let (at, len) = self.plan.sides[self.side].windows[0];
        let mut bytes = vec![0; len as usize];
        if self.a.dealloc_mw(*mw).is_ok() && self.a.read_mr(self.mrs[TARGET].id, at, &mut bytes).is_ok() {
            self.frozen = Some((at, bytes));
        }
    }
    fn memory_equals(&self, which: usize, at: u64, want: &[u8]) -> bool {
        let mut have = vec![0; want.len()];
        self.a.read_mr(self.mrs[which].id, at, &mut have).is_ok() && have == want
    }

    /// Progress as text: posted, completed, received.
    pub fn progress(&self) -> String {
        let (jobs, slots) = (self.jobs().len(), self.plan.sides[self.side].slots.len());
        format!(
            "end {}: {} of {jobs} posted, {} done, {} of {slots} received, failed {:?}, closed {:?}",
            self.side, self.posted, self.completed, self.received, self.failed, self.closed
        )
    }
    /// Whether all work has completed successfully.
    pub fn all_done(&self, other: &End) -> bool {
        let consumed = other.jobs().iter().filter(|j| j.slot.is_some()).count();
        self.completed == self.jobs().len() && self.received == consumed && self.failed == [false; 2]
    }
    /// Whether all posted work has its completion.
    pub fn all_flushed(&self) -> bool {
        if self.c.qp().is_none() {
            // A connection that was never accepted has none.
            return self.posted == 0;
        }
        // A shared queue outlives its queue pairs.
        let left = self.srq.and_then(|s| self.a.srq_len(s)).unwrap_or(0);
        self.completed == self.posted && self.received + left == self.receives_posted
    }

    /// Compares all memory with its possible final contents: unchanged, or what was to arrive.
    pub fn check_memory(&self, other: &End) -> Result<(), String> {
        let wrong =
            |what: &str, at: usize| Err(format!("end {}: a stray byte at {at} of its {what}", self.side));
        if let Some(have) = self.memory(SOURCE)
            && let Some(at) = have.iter().zip(&self.source).position(|(a, b)| a != b)
        {
            return wrong("source", at);
        }
        if let Some(have) = self.memory(TARGET).filter(|_| !self.plan.places_damage(self.side)) {
            let mut want = vec![None; have.len()];
            for j in other
                .jobs()
                .iter()
                .filter(|j| matches!(j.op, Op::Write | Op::WriteImm | Op::WriteThroughWindow))
            {
                other.bytes(j).iter().enumerate().for_each(|(i, b)| want[j.to as usize + i] = Some(*b));
            }
            let word = WORD as usize..WORD as usize + 8;
            if let Some(at) = first_stray_byte(&have, &want, word.clone()) {
                return wrong("target", at);
            }
            if !other.words.iter().any(|w| have[word.clone()] == w.to_ne_bytes()) {
                return wrong("target", word.start);
            }
        }
        if self.frozen.as_ref().is_some_and(|(at, bytes)| !self.memory_equals(TARGET, *at, bytes)) {
            return Err(format!("end {}: written through a window that is gone", self.side));
        }
        let Some(have) = self.memory(OWN) else { return wrong("own memory", 0) };
        let mut want = vec![None; have.len()];
        for j in other.jobs().iter().filter(|j| matches!(j.op, Op::Send | Op::SendInvalidate)) {
            let place = j.slot.map_or(0, |s| self.plan.sides[self.side].slots[s].0 as usize);
            other.bytes(j).iter().enumerate().for_each(|(i, b)| want[place + i] = Some(*b));
        }
        for j in self.jobs().iter().filter(|j| j.op == Op::Read) {
            let bytes = &other.source[j.from as usize..(j.from + j.len) as usize];
            bytes.iter().enumerate().for_each(|(i, b)| want[j.to as usize + i] = Some(*b));
        }
        // Data read ahead may lie in the places of reads that never completed, and of the one receive that may have
        // begun: their contents are not checked, all others are.
        let read = |(i, j): (usize, &Job)| {
            (j.op == Op::Read && i >= self.succeeded[0]).then_some(j.to..j.to + j.len)
        };
        let begun = self.plan.sides[self.side].slots.get(self.succeeded[1]).map(|s| s.0..s.0 + s.1);
        let open: Vec<_> = self.jobs().iter().enumerate().filter_map(read).chain(begun).collect();
        let is_open = |at: usize| open.iter().any(|r| r.contains(&(at as u64)));
        // Results of atomic operations were compared when they completed.
        let results: Vec<_> = self.jobs().iter().filter(|j| matches!(j.op, Op::Add | Op::Swap)).collect();
        let skip = |at: usize| results.iter().any(|j| (j.to..j.to + 8).contains(&(at as u64)));
        let early = self.plan.places_damage(self.side);
        match (0..have.len()).find(|at| {
            let known = have[*at] == EMPTY
                || want[*at] == Some(have[*at])
                || (early && want[*at].is_some())
                || is_open(*at);
            !known && !skip(*at) && !(WORD as usize..WORD as usize + 8).contains(at)
        }) {
            Some(at) => wrong("own memory", at),
            None => Ok(()),
        }
    }
}

/// The first byte of `have` that is neither unchanged nor as wanted.
fn first_stray_byte(have: &[u8], want: &[Option<u8>], but: core::ops::Range<usize>) -> Option<usize> {
    (0..have.len()).find(|at| have[*at] != EMPTY && want[*at] != Some(have[*at]) && !but.contains(at))
}

/// The keys of an end's memory, for the peer.
pub struct Keys {
    pub source: u32,
    pub target: u32,
    pub windows: Vec<u32>,
}

impl End {
    pub fn keys(&self) -> Keys {
        Keys {
            source: self.mrs[SOURCE].rkey,
            target: self.mrs[TARGET].rkey,
            windows: self.windows.iter().map(|w| w.1).collect(),
        }
    }
}
