//! Posts and completes the work requests of a measurement, at both ends.

use super::pattern;
use super::ping::{self, RoundTrips};
use super::proto::{ATOMIC_LEN, Figures, MAX_TOLD_PATHS, PathFigures, Plan};
use super::window::Window;
use crate::args::Operation;
use crate::policy_decision::PolicyDecision;
use base::{Span, Time};
use endpoint::{ConnId, ConnInfo, Endpoint, Stats};
use lhio::clock::{Clock, CpuTime};
use verbs::{
    Access, AtomicOp, Data, Error, Memory, Mr, Opcode, PdId, QpId, RecvWr, SendOp, SendWr, Sge, Sges,
    WorkCompletion,
};

/// A queue pair with its region.
pub struct Stream {
    qp: QpId,
    /// This end's memory.
    pub region: Mr,
    /// The key of the other end's.
    pub rkey: u32,
    posted: u64,
    completed: u64,
}

/// One end's part of a measurement.
pub struct Load {
    plan: Plan,
    conn: ConnId,
    initiator: bool,
    streams: Vec<Stream>,
    clock: Clock,
    started: Option<Time>,
    ended: Option<Time>,
    /// No further message is to be posted.
    stopped: bool,
    /// How much is under way, of a plan that grows.
    window: Option<Window>,
    /// The system was asked what TCP has had acknowledged by the end.
    asked: bool,
    cpu: CpuTime,
    trips: RoundTrips,
    /// The other end's keys are known.
    keyed: bool,
    /// A message that overtook the keys and is to be answered: its receive's number.
    owed: Option<u64>,
    /// A receive that is to be posted once the answer has left: its stream and number.
    late: Option<(usize, u64)>,
    /// It goes by iWARP.
    ordered: bool,
    /// Reads behind the last messages that are not answered.
    behind: Option<usize>,
    /// How its regions are made.
    regions: Regions,
}

/// Regions that are to be made.
struct Regions {
    pd: PdId,
    qps: Vec<QpId>,
    len: usize,
    access: Access,
    /// This end's hold what is sent.
    source: bool,
}

/// Number of the work requests that tell when everything has arrived.
const BEHIND: u64 = u64::MAX;

/// Memory whose pages are there before anything is measured, as those of registered memory are.
fn present(len: usize) -> Result<Vec<u8>, String> {
    const PAGE: usize = 4096;
    let mut out = lhio::memory::zeroed(len).map_err(no_memory(len))?;
    // Zero again, but written.
    out.iter_mut().step_by(PAGE).for_each(|b| *std::hint::black_box(b) = 0);
    Ok(out)
}

fn no_memory(len: usize) -> impl Fn(std::io::Error) -> String {
    move |e| {
        format!(
            "cannot allocate {len} bytes: {e}; try a higher limit (ulimit -v), smaller messages or fewer streams"
        )
    }
}

fn words(e: Error) -> String {
    format!("cannot go on with the measurement: {e}")
}

impl Load {
    /// Without its regions, which [`Load::prepare`] makes.
    pub fn new(conn: ConnId, info: &ConnInfo, plan: Plan, initiator: bool) -> Result<Load, String> {
        let qps = info.qps.get(1..=usize::from(plan.streams)).ok_or(
            "cannot measure: the connection has too few queue \
             pairs; try fewer streams",
        )?;
        let len = usize::try_from(plan.region_len()).map_err(|e| e.to_string())?;
        let source = (plan.operation == Operation::Read) != initiator;
        let access = match plan.operation {
            o if o.is_atomic() && !initiator => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
            o if o.is_atomic() => Access::LOCAL_WRITE,
            _ if plan.latency => Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Operation::Write if !initiator => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Operation::Read if !initiator => Access::REMOTE_READ,
            _ if source => Access::LOCAL_READ,
            _ => Access::LOCAL_WRITE,
        };
        // Reads of nothing name a place for it, too.
        let access = if info.iwarp.is_some() { access | Access::LOCAL_WRITE } else { access };
        let regions = Regions { pd: info.pd, qps: qps.to_vec(), len, access, source };
        Ok(Load {
            plan,
            conn,
            initiator,
            streams: Vec::new(),
            clock: Clock::new(),
            started: None,
            ended: None,
            stopped: false,
            window: None,
            asked: false,
            cpu: CpuTime::of_process(),
            trips: RoundTrips::default(),
            keyed: false,
            owed: None,
            late: None,
            ordered: info.iwarp.is_some(),
            behind: None,
            regions,
        })
    }

    /// With all its regions.
    pub fn prepared(ep: &mut Endpoint, conn: ConnId, plan: Plan, initiator: bool) -> Result<Load, String> {
        let info = ep.connection(conn).cloned().ok_or(
            "cannot go on with the measurement: the connection is gone; \
             try again",
        )?;
        let mut load = Load::new(conn, &info, plan, initiator)?;
        loop {
            match load.prepare(ep) {
                Ok(true) => return Ok(load),
                Ok(false) => {}
                Err(text) => {
                    load.close(ep);
                    return Err(text);
                }
            }
        }
    }

    /// Makes and registers the next region, and behind the last posts receives where messages come in; true when all is there. One
    /// at a time, so that others need not wait for more than that.
    pub fn prepare(&mut self, ep: &mut Endpoint) -> Result<bool, String> {
        let r = &self.regions;
        let i = self.streams.len();
        if let Some(&qp) = r.qps.get(i) {
            let content = if r.source {
                lhio::memory::has_room(r.len as u64, lhio::memory::HEADROOM).map_err(no_memory(r.len))?;
                pattern::fill(i, r.len)
            } else {
                present(r.len)?
            };
            let region = ep.adapter().reg_mr(r.pd, Memory::from(content), r.access);
            let region = region.map_err(|(e, _)| words(e))?;
            self.streams.push(Stream { qp, region, rkey: 0, posted: 0, completed: 0 });
        }
        if self.streams.len() < self.regions.qps.len() {
            return Ok(false);
        }
        let receives = if self.receives() { self.receives_ahead() } else { 0 };
        for i in 0..self.streams.len() {
            for n in 0..receives {
                self.post_recv(ep, i, n)?;
            }
        }
        // What comes before the load is not its cost: 1 GiB of pages takes a third of a second.
        self.cpu = CpuTime::of_process();
        Ok(true)
    }

    /// What is measured.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Remote keys for the other end.
    pub fn rkeys(&self) -> Vec<u32> {
        self.streams.iter().map(|s| s.region.rkey).collect()
    }

    /// Takes the other end's keys.
    pub fn set_keys(&mut self, now: Time, ep: &mut Endpoint, rkeys: &[u32]) -> Result<(), String> {
        let needs = self.plan.operation != Operation::Send;
        if needs && rkeys.len() != self.streams.len() {
            return Err("the other end gave not one remote key for each stream".to_owned());
        }
        self.streams.iter_mut().zip(rkeys).for_each(|(s, k)| s.rkey = *k);
        self.keyed = true;
        self.owed.take().map_or(Ok(()), |receive| self.ping_arrived(now, ep, 0, Some(receive)))
    }

    /// Begins as the initiator, with the other end's keys.
    pub fn start(&mut self, ep: &mut Endpoint, rkeys: &[u32]) -> Result<(), String> {
        // The turn began before the regions were filled, which may have taken a second.
        let now = self.clock.now();
        self.set_keys(now, ep, rkeys)?;
        self.cpu = CpuTime::of_process();
        self.started = Some(now);
        let most = u64::from(self.plan.depth).saturating_mul(self.plan.size);
        let most = most.saturating_mul(u64::from(self.plan.streams));
        self.window = (self.plan.grows && !self.plan.latency).then(|| Window::new(most, now));
        self.post(now, ep)
    }

    fn receives(&self) -> bool {
        self.pings() && !self.watches() || self.plan.operation == Operation::Send && !self.initiator
    }
    /// Messages go to and fro: round trips of atomic operations need no answer by the other end's application.
    fn pings(&self) -> bool {
        self.plan.latency && !self.plan.operation.is_atomic()
    }
    /// Messages are found by looking at memory.
    fn watches(&self) -> bool {
        !self.ordered && self.pings() && ping::is_watched(&self.plan)
    }

    /// Posts the receive for the next message, if the last one's answer has left. To be called at the start of each turn.
    pub fn post_late(&mut self, ep: &mut Endpoint) -> Result<(), String> {
        self.late.take().map_or(Ok(()), |(i, n)| self.post_recv(ep, i, n))
    }

    /// Looks whether the next message lies in memory. To be called in each turn.
    pub fn look(&mut self, now: Time, ep: &mut Endpoint) -> Result<(), String> {
        let Some(s) = self.streams.first().filter(|_| self.watches() && self.keyed) else { return Ok(()) };
        match ping::is_there(&self.plan, s, s.completed, ep) {
            true => self.ping_arrived(now, ep, 0, None),
            false => Ok(()),
        }
    }
    fn receives_ahead(&self) -> u64 {
        if self.plan.latency {
            return ping::receives(self.ordered);
        }
        self.plan.receives()
    }
    fn sge(&self, i: usize, n: u64) -> Sge {
        let offset = n % self.plan.slots() * self.plan.size;
        Sge { lkey: self.streams[i].region.lkey, offset, len: self.plan.size }
    }
    fn post_recv(&self, ep: &mut Endpoint, i: usize, n: u64) -> Result<(), String> {
        let wr = match self.plan.latency {
            true => ping::receive(&self.plan, &self.streams[i], n),
            false => RecvWr { wr_id: n, sges: Sges::One(self.sge(i, n)) },
        };
        ep.adapter().post_recv(self.streams[i].qp, wr).map_err(words)
    }

    fn posted(&self) -> u64 {
        self.streams.iter().map(|s| s.posted).sum()
    }
    /// Messages completed so far.
    pub fn completed(&self) -> u64 {
        self.streams.iter().map(|s| s.completed).sum()
    }
    /// Payload that has arrived at the end it goes to, as far as this end knows: parts of messages that are under way, too, so that
    /// it grows as the path carries it and not by whole messages.
    pub fn arrived(&self, ep: &mut Endpoint) -> u64 {
        if self.plan.latency || self.plan.operation.is_atomic() {
            return self.completed().saturating_mul(self.plan.size);
        }
        self.streams.iter().map(|s| self.arrived_of(s, ep)).sum()
    }
    fn arrived_of(&self, s: &Stream, ep: &mut Endpoint) -> u64 {
        let of = |s: verbs::Stats| if self.is_source() { s.bytes_delivered } else { s.bytes_in };
        ep.adapter().stats(s.qp).map_or(0, of)
    }
    /// Data leaves this end.
    fn is_source(&self) -> bool {
        (self.plan.operation == Operation::Read) != self.initiator
    }
    /// Whether completions do not tell what has arrived: by iWARP a message completes when TCP has taken it.
    fn completes_early(&self) -> bool {
        self.ordered
            && !self.plan.latency
            && matches!(self.plan.operation, Operation::Write | Operation::Send)
    }
    /// Messages completed on each stream; by iWARP, where what is under way is given up, those that the other end's TCP has.
    pub fn each(&self, ep: &mut Endpoint) -> Vec<u64> {
        let told = self.plan.stop && self.completes_early();
        let of = |s: &Stream| match told {
            true => s.completed.min(self.arrived_of(s, ep) / self.plan.size.max(1)),
            false => s.completed,
        };
        self.streams.iter().map(of).collect()
    }

    /// Whether no further message is to be posted.
    fn enough(&self, now: Time) -> bool {
        let Some(start) = self.started else { return true };
        match self.plan.messages {
            Some(n) => self.posted() >= n,
            None => now.since(start).as_nanos() >= self.plan.nanos,
        }
    }

    /// When the initiator stops posting, as long as it has not: what is under way then is given up, or ends by itself.
    pub fn deadline(&self) -> Option<Time> {
        let timed = self.plan.messages.is_none() && !self.stopped || self.asked && self.ended.is_none();
        self.started.filter(|_| timed).map(|s| s + Span::from_nanos(self.plan.nanos))
    }

    /// Posts what is to be under way.
    pub fn post(&mut self, now: Time, ep: &mut Endpoint) -> Result<(), String> {
        let depth = self.depth(now, ep);
        for i in 0..self.streams.len() {
            // Answers may come that were not asked for.
            while self.streams[i].posted.saturating_sub(self.streams[i].completed) < depth
                && !self.enough(now)
            {
                if self.plan.latency && self.streams[i].posted == 0 {
                    self.trips.begin(self.clock.now());
                }
                let wr = self.request(i);
                match ep.adapter().post_send(self.streams[i].qp, wr) {
                    Ok(()) => self.streams[i].posted += 1,
                    Err(Error::QueueFull | Error::CqFull) => break,
                    Err(e) => return Err(words(e)),
                }
            }
        }
        self.stopped = self.enough(now);
        let over = self.stopped && (self.plan.stop || self.posted() == self.completed());
        if self.ended.is_none() && over && self.is_counted(ep)? {
            self.ended = self.started.map(|_| now);
        }
        Ok(())
    }

    /// Messages that may be under way on each stream now: one at least.
    fn depth(&mut self, now: Time, ep: &mut Endpoint) -> u64 {
        let most = if self.plan.latency { 1 } else { u64::from(self.plan.depth) };
        let Some(mut w) = self.window.take() else { return most };
        if w.is_due(now) {
            let acked = match self.completes_early() {
                true => self.completed().saturating_mul(self.plan.size),
                false => self.arrived(ep),
            };
            let sends = self.is_source() && !self.ordered;
            let in_flight = if sends { ep.stats(self.conn).map_or(0, |s| s.cwnd) } else { 0 };
            w.reckon(now, acked, in_flight);
        }
        let bytes = w.bytes();
        self.window = Some(w);
        bytes.div_ceil(self.plan.size.max(1)).div_ceil(u64::from(self.plan.streams.max(1))).clamp(1, most)
    }

    /// Whether it is known what has arrived of what was sent. By iWARP the system is asked what TCP has had acknowledged; or, where
    /// nothing is given up, a read of nothing behind the last message of each stream is answered when that is in its place.
    fn is_counted(&mut self, ep: &mut Endpoint) -> Result<bool, String> {
        if !self.completes_early() || self.started.is_none() {
            return Ok(true);
        }
        if self.plan.stop {
            if !self.asked {
                ep.refresh_stats(self.conn);
            }
            return Ok(core::mem::replace(&mut self.asked, true));
        }
        if self.behind.is_none() {
            for s in &self.streams {
                let nothing = Sge { lkey: s.region.lkey, offset: 0, len: 0 };
                let wr = SendWr::new(BEHIND, SendOp::Read { rkey: s.rkey, offset: 0 }, nothing);
                ep.adapter().post_send(s.qp, wr).map_err(words)?;
            }
            self.behind = Some(self.streams.len());
        }
        Ok(self.behind == Some(0))
    }

    /// The next work request of a stream.
    fn request(&self, i: usize) -> SendWr {
        let (s, n) = (&self.streams[i], self.streams[i].posted);
        if self.plan.operation.is_atomic() {
            return self.atomic(i, n);
        }
        if self.plan.latency {
            return ping::message(&self.plan, s, n, self.watches());
        }
        let sge = self.sge(i, n);
        let (rkey, offset) = (s.rkey, sge.offset);
        let op = match self.plan.operation {
            Operation::Write => SendOp::Write { rkey, offset },
            Operation::Read => SendOp::Read { rkey, offset },
            _ => SendOp::Send,
        };
        SendWr::new(n, op, Data::from(sge))
    }

    /// The `n`th atomic operation of a stream, all of which count in the same 64 bits.
    fn atomic(&self, i: usize, n: u64) -> SendWr {
        let op = match self.plan.operation {
            Operation::CompareSwap => {
                let all = u64::MAX;
                AtomicOp::CompareSwap { compare: n, compare_mask: all, swap: n + 1, swap_mask: all }
            }
            _ => AtomicOp::FetchAdd { add: 1, mask: 0 },
        };
        let s = &self.streams[i];
        let answer = Sge { lkey: s.region.lkey, offset: 0, len: ATOMIC_LEN };
        SendWr::new(n, SendOp::Atomic { rkey: s.rkey, offset: 0, op }, Data::from(answer))
    }

    /// Takes a successful completion of one of its queue pairs.
    pub fn completion(&mut self, now: Time, ep: &mut Endpoint, wc: &WorkCompletion) -> Result<(), String> {
        let Some(i) = self.streams.iter().position(|s| s.qp == wc.qp) else { return Ok(()) };
        if wc.wr_id == BEHIND {
            self.behind = self.behind.map(|n| n.saturating_sub(1));
            return Ok(());
        }
        let arrived = matches!(wc.opcode, Opcode::Recv | Opcode::RecvWriteImm);
        match (self.pings(), arrived) {
            (true, true) => self.ping_arrived(now, ep, i, Some(wc.wr_id))?,
            // What left counts when it has come back.
            (true, false) => {}
            (false, true) => {
                self.streams[i].completed += 1;
                let next = wc.wr_id + self.receives_ahead();
                self.post_recv(ep, i, next)?;
            }
            (false, false) => {
                if self.plan.latency {
                    self.trips.back(self.clock.now());
                }
                self.streams[i].completed += 1;
            }
        }
        Ok(())
    }

    /// Answers first: the receive for the next message, if they take one, has time. By iWARP, where no credit goes with it, it has
    /// time until the answer has left.
    fn ping_arrived(
        &mut self,
        now: Time,
        ep: &mut Endpoint,
        i: usize,
        receive: Option<u64>,
    ) -> Result<(), String> {
        if !self.keyed {
            self.owed = receive;
            return Ok(());
        }
        if self.initiator {
            self.trips.back(self.clock.now());
            self.streams[i].completed += 1;
            if !self.ordered {
                // Else the call that ends each turn is early enough.
                self.post(now, ep)?;
            }
        } else {
            let n = self.streams[i].completed;
            let wr = ping::message(&self.plan, &self.streams[i], n, self.watches());
            ep.adapter().post_send(self.streams[i].qp, wr).map_err(words)?;
            self.streams[i].completed += 1;
        }
        let next = receive.map(|n| n + self.receives_ahead());
        if self.ordered {
            self.late = next.map(|n| (i, n));
            return Ok(());
        }
        next.map_or(Ok(()), |n| self.post_recv(ep, i, n))
    }

    /// Whether the initiator's load is over and completed.
    pub fn is_over(&self) -> bool {
        self.initiator && self.ended.is_some()
    }

    /// What this end counted; `messages` on each stream by the initiator's count, for the comparison.
    pub fn figures(&mut self, ep: &mut Endpoint, conn: ConnId, messages: &[u64]) -> Figures {
        let cpu = CpuTime::of_process().since(self.cpu);
        let s: Stats = ep.stats(conn).unwrap_or_default();
        // The other end's numbers may be any.
        let count = messages.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let seconds = match (self.started, self.ended) {
            (Some(a), Some(b)) => b.since(a).as_secs_f64(),
            _ => 0.0,
        };
        let sink = (self.plan.operation == Operation::Read) == self.initiator;
        let whole = count.saturating_mul(self.plan.size);
        let bytes = match self.plan.stop {
            // What was given up is no message, but parts of it have arrived.
            true => self.arrived(ep).max(whole),
            false => whole,
        };
        let compare = self.plan.verify && sink && !self.pings();
        Figures {
            bytes,
            messages: count,
            seconds,
            cpu_user_seconds: cpu.user.as_secs_f64(),
            cpu_system_seconds: cpu.system.as_secs_f64(),
            payload_sent: s.payload_sent,
            payload_retransmitted: s.payload_again,
            payload_received: s.payload_received,
            bytes_sent: s.bytes_sent,
            control_bytes_sent: s.control_bytes_sent,
            packets_sent: s.packets_sent,
            packets_lost: s.packets_lost,
            packets_marked: s.ce_packets,
            policy: PolicyDecision::of(ep, conn),
            path_count: s.lanes,
            paths: s.paths.iter().take(MAX_TOLD_PATHS).map(PathFigures::new).collect(),
            srtt_seconds: s.srtt.as_secs_f64(),
            min_rtt_seconds: s.min_rtt.as_secs_f64(),
            verified: compare.then(|| self.verify(ep, messages)),
            latency: self.trips.summary(),
        }
    }

    fn verify(&self, ep: &mut Endpoint, messages: &[u64]) -> bool {
        if self.plan.operation.is_atomic() {
            let mut count = [0; ATOMIC_LEN as usize];
            let mut counted = |s: &Stream, n: u64| {
                ep.adapter().read_mr(s.region.id, 0, &mut count).is_ok() && u64::from_ne_bytes(count) == n
            };
            return messages.len() == self.streams.len()
                && self.streams.iter().zip(messages).all(|(s, n)| counted(s, *n));
        }
        let mut buffer = vec![0; pattern::STEP];
        messages.len() == self.streams.len()
            && self.streams.iter().zip(messages).enumerate().all(|(i, (s, n))| {
                let block = pattern::block(i);
                // By iWARP what the other end's TCP has may not have been read from it yet.
                let told = self.ordered && self.plan.stop;
                let n = if told { (*n).min(self.arrived_of(s, ep) / self.plan.size) } else { *n };
                let end = n.min(self.plan.slots()) * self.plan.size;
                (0..end).step_by(pattern::STEP).all(|at| {
                    let piece = &mut buffer[..(end - at).min(pattern::STEP as u64) as usize];
                    ep.adapter().read_mr(s.region.id, at, piece).is_ok()
                        && pattern::matches(&block, at, piece)
                })
            })
    }

    /// Frees its regions, when the connection has closed.
    pub fn close(&self, ep: &mut Endpoint) {
        for s in &self.streams {
            // Fails only if it was freed before.
            let _ = ep.adapter().dereg_mr(s.region.id);
        }
    }
}
