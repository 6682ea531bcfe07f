//! One end of a simulated connection: posts planned jobs and checks their completions.

use super::memory;
use super::plan::{Job, Op, Plan};
use super::pool::Pool;
use base::Time;
use endpoint::{AdditionalPath, ConnId, Connect, Endpoint, Event, QpOptions};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use transport::crypto::ServerTrust;
use transport::{CloseReason, TransportOptions};
use verbs::{
    Access, AtomicOp, Data, Memory, Mr, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Status, WorkCompletion,
};

/// Most attempts to connect in one simulation.
const MAX_ATTEMPTS: usize = 8;

/// What one end tells the other outside of the network.
#[derive(Default)]
pub struct PublishedState {
    pub source: Option<Mr>,
    pub target: Option<Mr>,
    /// Whether this end has everything that it waits for.
    pub done: bool,
    /// Its connection and queue pairs, once all is done.
    pub ended_with: Option<(ConnId, Vec<Option<QpId>>)>,
}

/// The state that the simulation observes.
#[derive(Default)]
pub struct WorldState {
    pub published: [PublishedState; 2],
    pub failure: Option<String>,
    /// Completed Writes (end, queue pair, job), whose bytes must be in place now.
    pub written: Vec<(usize, usize, usize)>,
    pub notes: Vec<String>,
    /// Whether all shared receives, for which the server's first connection accounts, were there at the end.
    pub pool_ended: Option<bool>,
    /// Whether both ends have everything, so that the connection may be closed.
    pub may_close: bool,
    pub established: u64,
    pub completions: u64,
    /// Ends whose connections are closed and whose memory is released.
    pub released: [bool; 2],
    /// Number of reboots of the client. The server's state of a connection before the last one is ignored.
    pub client_boots: u32,
    pub target_id: [Option<verbs::MrId>; 2],
}

/// The shared state of a connection.
pub struct ConnectionState {
    /// Number of the connection.
    pub number: usize,
    pub plan: Plan,
    pub sources: [Vec<u8>; 2],
    pub board: RefCell<WorldState>,
}

/// The state of one queue pair at one end.
#[derive(Default)]
struct QpState {
    qp: Option<QpId>,
    opened: bool,
    ready: bool,
    posted: usize,
    /// Signaled jobs that have not completed, in order.
    waiting: VecDeque<usize>,
    completed: usize,
    recvs_posted: usize,
    recvs_done: usize,
    /// Receives that an unreliable queue pair has filled, by job.
    filled: Vec<usize>,
}

/// The server that a client connects to.
#[derive(Clone, Debug)]
pub struct Target {
    pub remote: SocketAddr,
    pub trust: ServerTrust,
}

pub struct Peer {
    side: usize,
    common: Rc<ConnectionState>,
    /// What the client needs.
    target: Option<Target>,
    attempts: usize,
    conn: Option<ConnId>,
    /// The client's number of reboots when the connection was established.
    client_boots: u32,
    regions: Option<(Mr, Mr)>,
    pairs: Vec<QpState>,
    closing: bool,
    next_post: Time,
    next_wake: Option<Time>,
    /// Planned proposals that were made, or could not be.
    proposed: usize,
    /// Proposals without an answer.
    unanswered: usize,
}

impl Peer {
    pub fn new(side: usize, common: Rc<ConnectionState>, target: Option<Target>) -> Peer {
        {
            let mut b = common.board.borrow_mut();
            b.published[side] = PublishedState::default();
            b.target_id[side] = None;
            if side == 0 {
                // What the server has published belongs to a connection before the client's reboot.
                b.published[1] = PublishedState::default();
                b.client_boots += 1;
            }
            b.released[side] = false;
        }
        Peer {
            side,
            common,
            target,
            attempts: 0,
            conn: None,
            client_boots: 0,
            regions: None,
            pairs: Vec::new(),
            closing: false,
            next_post: Time::ZERO,
            next_wake: None,
            proposed: 0,
            unanswered: 0,
        }
    }

    pub fn connect(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        let Some(Target { remote, trust }) = self.target.clone() else { return Ok(()) };
        if self.conn.is_some() || self.closing || self.attempts == MAX_ATTEMPTS {
            return Ok(());
        }
        self.attempts += 1;
        let plan = &self.common.plan;
        let paths = plan.paths.iter().map(|backup| AdditionalPath { local: None, remote, backup: *backup });
        let options = Some(TransportOptions { paths: paths.collect(), ..plan.options[0].clone() });
        let c = Connect { remote, server_name: "two".into(), trust, token: None, options, iwarp: None };
        self.conn = Some(e.connect(now, c).map_err(|e| e.to_string())?);
        Ok(())
    }

    fn start(&mut self, conn: ConnId, e: &mut Endpoint) -> Result<(), String> {
        let Some(info) = e.connection(conn).cloned() else { return Err("no information".into()) };
        let plan = &self.common.plan;
        let initial = plan.qps.iter().filter(|q| q.opener.is_none()).count();
        if info.qps.len() < initial {
            return Err(format!("{} queue pairs instead of {initial}", info.qps.len()));
        }
        let source = self.common.sources[self.side].clone();
        let target = memory::guard_bytes(plan.target[self.side]);
        let a = e.adapter();
        let read = Access::LOCAL_READ | Access::REMOTE_READ;
        let source = a.reg_mr(info.pd, Memory::from(source), read).map_err(|(e, _)| e.to_string())?;
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let target = a.reg_mr(info.pd, Memory::from(target), write).map_err(|(e, _)| e.to_string())?;
        self.regions = Some((source, target));
        self.pairs = plan.qps.iter().map(|_| QpState::default()).collect();
        // Queue pairs that the peer has opened meanwhile are reported by events.
        for (p, qp) in self.pairs.iter_mut().zip(&info.qps[..initial]) {
            (p.qp, p.ready) = (Some(*qp), true);
        }
        self.conn = Some(conn);
        let mut b = self.common.board.borrow_mut();
        b.established += 1;
        self.client_boots = b.client_boots;
        b.target_id[self.side] = Some(target.id);
        b.published[self.side] =
            PublishedState { source: Some(source), target: Some(target), ..PublishedState::default() };
        (self.proposed, self.unanswered) = (0, 0);
        Ok(())
    }

    /// Whether an event of this connection is for this end.
    pub fn has(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }
    /// Whether its work is done and its connection is gone.
    pub fn is_over(&self) -> bool {
        self.closing && self.conn.is_none()
    }
    /// Records that the host's shared receives exist, or were complete at the end.
    pub fn set_pool_ended(&self, ended: bool) {
        self.common.board.borrow_mut().pool_ended = Some(ended);
    }
    /// Reports a failure.
    pub fn fail(&self, text: &str) {
        let side = ["client", "server"][self.side];
        let text = format!("connection {}, {side}: {text}", self.common.number);
        self.common.board.borrow_mut().failure.get_or_insert(text);
    }

    /// Handles an event of this end's connection.
    pub fn handle(
        &mut self,
        now: Time,
        e: &mut Endpoint,
        ev: Event,
        pool: &mut Option<Pool>,
    ) -> Result<(), String> {
        let side = ["client", "server"][self.side];
        let note = format!("{} {side}: {ev:?}", self.common.number);
        self.common.board.borrow_mut().notes.push(note);
        match ev {
            Event::Connected { conn } | Event::Incoming { conn } => {
                if let Some(old) = self.conn.filter(|c| *c != conn) {
                    // A connection before the peer's reboot, which times out or is reset.
                    e.close(now, old, 0x1001, "superseded");
                    self.end(old, e, pool)?;
                }
                self.start(conn, e)
            }
            Event::QpReady { qp, private_data, by_peer: true, .. } => {
                let i = private_data.first().map(|b| usize::from(*b));
                let p = i.and_then(|i| self.pairs.get_mut(i)).ok_or("an unknown queue pair was opened")?;
                (p.qp, p.ready) = (Some(qp), true);
                Ok(())
            }
            Event::QpReady { qp, .. } => {
                let p = self.pairs.iter_mut().find(|p| p.qp == Some(qp));
                p.ok_or("an unknown queue pair is ready")?.ready = true;
                Ok(())
            }
            // The endpoint itself grants it.
            Event::QpRequested { .. } | Event::StreamRequested { .. } | Event::QpGone { .. } => Ok(()),
            Event::QpRefused { code, .. } => Err(format!("queue pair refused with code {code}")),
            Event::CcChanged { by_peer: true, .. } => Ok(()),
            Event::CcChanged { .. } | Event::CcRefused { .. } => {
                let left = self.unanswered.checked_sub(1);
                self.unanswered = left.ok_or("an outcome of what was not proposed")?;
                Ok(())
            }
            Event::CcReplaced { .. }
            | Event::CcReplacedByPeer { .. }
            | Event::PathChanged { .. }
            | Event::PathUp { .. }
            | Event::PathDown { .. } => Ok(()),
            Event::Closed { conn, reason } => self.closed(conn, reason, e, pool),
        }
    }

    fn closed(
        &mut self,
        conn: ConnId,
        reason: CloseReason,
        e: &mut Endpoint,
        pool: &mut Option<Pool>,
    ) -> Result<(), String> {
        if self.conn != Some(conn) {
            // An older connection, released when it was replaced.
            return Ok(());
        }
        let common = self.common.clone();
        let both = common.board.borrow().published.iter().all(|s| s.done);
        let established = self.regions.is_some();
        let allowed = !established || both || common.plan.may_end;
        if !allowed {
            return Err(format!("the connection ended early: {reason}"));
        }
        if matches!(reason, CloseReason::Violation(_)) {
            return Err(format!("a violation between honest ends: {reason}"));
        }
        self.end(conn, e, pool)?;
        if both {
            self.closing = true;
            self.common.board.borrow_mut().released[self.side] = true;
        } else if self.attempts == MAX_ATTEMPTS {
            return Err(format!("no connection after {MAX_ATTEMPTS} attempts: {reason}"));
        }
        Ok(())
    }

    /// Frees everything of a connection.
    fn end(&mut self, conn: ConnId, e: &mut Endpoint, pool: &mut Option<Pool>) -> Result<(), String> {
        if let Some(cq) = e.connection(conn).map(|i| i.cq) {
            while let Some(wc) = e.adapter().poll_cq(cq) {
                let done = matches!(wc.status, Status::Success | Status::LossReported { .. });
                if self.conn == Some(conn) && done {
                    self.completion(wc, e, pool)?;
                } else if let Some(pool) = pool {
                    pool.repost(&wc, e)?;
                }
            }
        }
        let established = self.conn == Some(conn) && self.regions.is_some();
        if self.conn == Some(conn) {
            if let Some((a, b)) = self.regions.take() {
                self.common.board.borrow_mut().target_id[self.side] = None;
                e.adapter().dereg_mr(a.id).map_err(|e| format!("source region: {e}"))?;
                let memory = e.adapter().dereg_mr(b.id).map_err(|e| format!("target region: {e}"))?;
                let bytes = memory.into_vec().map_err(|_| "the target region is no buffer")?;
                self.check_target(&bytes)?;
            }
            self.pairs.clear();
            self.conn = None;
            self.common.board.borrow_mut().published[self.side].target = None;
        }
        // Connections that were never established release themselves.
        if established { e.release(conn).map_err(|e| format!("release: {e}")) } else { Ok(()) }
    }

    /// Checks every byte of the target region: written as planned, entirely if completed, or untouched.
    fn check_target(&self, bytes: &[u8]) -> Result<(), String> {
        let plan = &self.common.plan;
        let both = self.common.board.borrow().published.iter().all(|s| s.done);
        let mut model: Vec<Option<u8>> = vec![None; bytes.len()];
        for (q, qp) in plan.qps.iter().enumerate() {
            for side in 0..2 {
                for (i, job) in qp.directions[side].jobs.iter().enumerate() {
                    if job.op == Op::Add && side == self.side {
                        for (m, b) in
                            model[job.answer as usize..].iter_mut().zip(memory::expected_answer(job))
                        {
                            *m = Some(b);
                        }
                    }
                    let elsewhere = job.op == Op::Send && (!qp.reliable || self.uses_shared_receives());
                    if memory::ends(job, side).0 != self.side || elsewhere {
                        continue;
                    }
                    let want = memory::bytes(&self.common.sources, job, side);
                    let at = job.to as usize;
                    for (k, b) in want.iter().enumerate() {
                        model[at + k] = Some(*b);
                    }
                    let exact = both && qp.reliable;
                    if exact && bytes[at..at + want.len()] != *want {
                        return Err(format!("queue pair {q}, end {side}, job {i}: wrong bytes at the end"));
                    }
                }
            }
            if !qp.reliable && !self.uses_shared_receives() {
                self.allow_filled(q, &mut model);
            }
        }
        for (at, (b, m)) in bytes.iter().zip(&model).enumerate() {
            if *b != memory::guard_byte(at as u64) && *m != Some(*b) {
                return Err(format!(
                    "byte {at} of end {}'s target region is {b:#x}: a stray write",
                    self.side
                ));
            }
        }
        Ok(())
    }

    /// Whether this end's receives come from a shared queue.
    fn uses_shared_receives(&self) -> bool {
        self.common.plan.uses_shared_receives(self.side)
    }

    /// Allows datagrams in any receive; completed ones were compared on completion.
    fn allow_filled(&self, q: usize, model: &mut [Option<u8>]) {
        let lane = &self.common.plan.qps[q].directions[1 - self.side];
        let Some(p) = self.pairs.get(q) else { return };
        for (slot, job) in lane.recvs.iter().zip(&p.filled) {
            let job = &lane.jobs[*job];
            if job.op == Op::Send {
                let want = memory::bytes(&self.common.sources, job, 1 - self.side);
                for (k, b) in want.iter().enumerate() {
                    model[slot.at as usize + k] = Some(*b);
                }
            }
        }
    }

    fn completions(&mut self, e: &mut Endpoint, pool: &mut Option<Pool>) -> Result<(), String> {
        let Some(cq) = self.conn.and_then(|c| e.connection(c)).map(|i| i.cq) else { return Ok(()) };
        if self.regions.is_none() {
            return Ok(());
        }
        while let Some(wc) = e.adapter().poll_cq(cq) {
            self.completion(wc, e, pool)?;
        }
        Ok(())
    }

    fn completion(
        &mut self,
        wc: WorkCompletion,
        e: &mut Endpoint,
        pool: &mut Option<Pool>,
    ) -> Result<(), String> {
        self.common.board.borrow_mut().completions += 1;
        let q = self
            .pairs
            .iter()
            .position(|p| p.qp == Some(wc.qp))
            .ok_or("completion of an unknown queue pair")?;
        match (wc.status, wc.opcode) {
            (Status::Success, Opcode::Recv | Opcode::RecvWriteImm) => match pool {
                Some(pool) => self.received_shared(q, wc, e, pool),
                None => self.received(q, wc, e),
            },
            (Status::Success | Status::LossReported { .. }, _) => self.sent(q, wc, e),
            (Status::FlushError | Status::TransportFailed, _) => {
                pool.as_mut().map_or(Ok(()), |p| p.repost(&wc, e))
            }
            _ => Err(format!("queue pair {q}: {wc:?}")),
        }
    }

    fn sent(&mut self, q: usize, wc: WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        let side = self.side;
        let common = self.common.clone();
        let plan = &common.plan.qps[q];
        let p = &mut self.pairs[q];
        // Losses are reported even if success is not.
        let unasked = matches!(wc.status, Status::LossReported { .. }) && wc.wr_id >= p.completed as u64;
        let i = match p.waiting.front() {
            Some(i) if wc.wr_id == *i as u64 => p.waiting.pop_front().unwrap_or_default(),
            Some(i) if wc.wr_id > *i as u64 || !unasked => {
                return Err(format!("queue pair {q}: {} completed before {i}", wc.wr_id));
            }
            None if !unasked => return Err(format!("queue pair {q}: {wc:?} of nothing")),
            _ => wc.wr_id as usize,
        };
        if plan.reliable && wc.status != Status::Success {
            return Err(format!("queue pair {q}: {wc:?}"));
        }
        // All earlier ones have completed as well, signaled or not.
        let before = core::mem::replace(&mut p.completed, i + 1)..i + 1;
        for i in before.filter(|_| plan.reliable) {
            let job = &plan.directions[side].jobs[i];
            match job.op {
                Op::Read => self.compare(q, job, side, e)?,
                Op::Add => {
                    self.compare_answer(q, job, e)?;
                    common.board.borrow_mut().written.push((side, q, i));
                }
                _ => common.board.borrow_mut().written.push((side, q, i)),
            }
        }
        Ok(())
    }

    /// Compares the bytes of a job with the own target region.
    fn compare(&self, q: usize, job: &Job, side: usize, e: &mut Endpoint) -> Result<(), String> {
        let Some((_, target)) = self.regions else { return Ok(()) };
        let mut have = vec![0; job.len as usize];
        e.adapter().read_mr(target.id, job.to, &mut have).map_err(|e| e.to_string())?;
        if have != memory::bytes(&self.common.sources, job, side) {
            return Err(format!("queue pair {q}: completed before its bytes were there: {job:?}"));
        }
        Ok(())
    }

    /// Compares the result of an atomic addition in the own target region with the original value.
    fn compare_answer(&self, q: usize, job: &Job, e: &mut Endpoint) -> Result<(), String> {
        let Some((_, target)) = self.regions else { return Ok(()) };
        let mut have = [0; 8];
        e.adapter().read_mr(target.id, job.answer, &mut have).map_err(|e| e.to_string())?;
        if have == memory::expected_answer(job) {
            return Ok(());
        }
        Err(format!("queue pair {q}: an addition found {have:?}: {job:?}"))
    }

    fn received(&mut self, q: usize, wc: WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        let from = 1 - self.side;
        let common = self.common.clone();
        let plan = &common.plan.qps[q];
        let lane = &plan.directions[from];
        let p = &mut self.pairs[q];
        if wc.wr_id != p.recvs_done as u64 {
            return Err(format!("queue pair {q}: receive {} completed before {}", wc.wr_id, p.recvs_done));
        }
        p.recvs_done += 1;
        let i = wc.imm.ok_or("a receive without its number")? as usize;
        let job = lane.jobs.get(i).ok_or("a receive with a number that was never sent")?;
        if p.filled.contains(&i) {
            return Err(format!("queue pair {q}: job {i} was received twice"));
        }
        p.filled.push(i);
        if plan.reliable {
            if job.recv != Some(wc.wr_id as usize) || wc.byte_len != job.len {
                return Err(format!("queue pair {q}: job {i} in the wrong receive, or cut: {wc:?}"));
            }
            // A receive completes only when the bytes of all earlier messages are in place.
            for job in lane.jobs[..=i].iter().filter(|j| j.op != Op::Read) {
                self.compare(q, job, from, e)?;
            }
        } else if job.op == Op::Send {
            let slot = Job { to: lane.recvs[wc.wr_id as usize].at, ..job.clone() };
            self.compare(q, &slot, from, e)?;
        }
        Ok(())
    }

    /// As [`Peer::received`] for shared receives: in any of them, which is posted again at once.
    fn received_shared(
        &mut self,
        q: usize,
        wc: WorkCompletion,
        e: &mut Endpoint,
        pool: &mut Pool,
    ) -> Result<(), String> {
        let from = 1 - self.side;
        let common = self.common.clone();
        let plan = &common.plan.qps[q];
        let lane = &plan.directions[from];
        let p = &mut self.pairs[q];
        let nth = p.recvs_done;
        p.recvs_done += 1;
        let i = wc.imm.ok_or("a receive without its number")? as usize;
        let job = lane.jobs.get(i).ok_or("a receive with a number that was never sent")?;
        if p.filled.contains(&i) {
            return Err(format!("queue pair {q}: job {i} was received twice"));
        }
        p.filled.push(i);
        if plan.reliable && (job.recv != Some(nth) || wc.byte_len != job.len) {
            return Err(format!("queue pair {q}: job {i} out of order, or cut: {wc:?}"));
        }
        if job.op == Op::Send {
            let want = memory::bytes(&common.sources, job, from);
            if pool.read(&wc, job.len, e)? != want {
                return Err(format!("queue pair {q}: job {i} completed before its bytes were there"));
            }
        }
        for job in
            lane.jobs[..=i].iter().filter(|j| plan.reliable && matches!(j.op, Op::Write | Op::WriteImm))
        {
            self.compare(q, job, from, e)?;
        }
        pool.repost(&wc, e)
    }

    fn open_pairs(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        let Some(conn) = self.conn else { return Ok(()) };
        for (i, plan) in self.common.plan.qps.iter().enumerate() {
            if plan.opener == Some(self.side) && !self.pairs[i].opened {
                let options = QpOptions {
                    reliable: plan.reliable,
                    cc: plan.cc.clone(),
                    private_data: vec![i as u8],
                    priority: (i % 8) as u8,
                    ..QpOptions::default()
                };
                self.pairs[i].opened = true;
                self.pairs[i].qp = Some(e.open_qp(now, conn, options).map_err(|e| e.to_string())?);
            }
        }
        Ok(())
    }

    fn post(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        let Some((source, target)) = self.regions else { return Ok(()) };
        let common = self.common.clone();
        let (pause, shares) = (common.plan.pause, self.uses_shared_receives());
        let may_receive = pause.is_zero() || now >= self.next_post;
        if may_receive {
            self.next_post = now + pause;
        } else {
            self.next_wake = Some(self.next_post);
        }
        let peer = {
            let b = common.board.borrow();
            (b.published[1 - self.side].source, b.published[1 - self.side].target)
        };
        for (p, plan) in self.pairs.iter_mut().zip(&common.plan.qps) {
            let Some(qp) = p.qp else { continue };
            let recvs = &plan.directions[1 - self.side].recvs;
            while may_receive
                && !shares
                && p.recvs_posted < recvs.len().min(p.recvs_done + common.plan.recv_ahead)
            {
                let slot = &recvs[p.recvs_posted];
                let sge = Sge { lkey: target.lkey, offset: slot.at, len: slot.room };
                let wr = RecvWr { wr_id: p.recvs_posted as u64, sges: sge.into() };
                e.adapter().post_recv(qp, wr).map_err(|e| format!("post_recv: {e}"))?;
                p.recvs_posted += 1;
                if !pause.is_zero() {
                    self.next_wake = Some(self.next_post);
                    break;
                }
            }
            let (Some(peer_source), Some(peer_target)) = peer else { continue };
            let jobs = &plan.directions[self.side].jobs;
            while p.posted < jobs.len() && p.posted - p.completed < common.plan.ahead {
                let i = p.posted;
                let last = i + 1 == jobs.len() || i + 1 - p.completed >= common.plan.ahead;
                let wr = request(
                    i,
                    &jobs[i],
                    last,
                    (source, target),
                    (peer_source, peer_target),
                    &common.sources[self.side],
                );
                if wr.signaled {
                    p.waiting.push_back(i);
                }
                e.adapter().post_send(qp, wr).map_err(|e| format!("post_send: {e}"))?;
                p.posted += 1;
            }
        }
        Ok(())
    }

    /// Makes the due proposals of congestion control, as far as possible.
    fn propose(&mut self, now: Time, e: &mut Endpoint) {
        let (Some(conn), common) = (self.conn, self.common.clone()) else { return };
        while let Some(p) = common.plan.proposals[self.side].get(self.proposed) {
            let at = Time::ZERO + p.at;
            if at > now {
                self.next_wake = Some(self.next_wake.map_or(at, |t| t.min(at)));
                return;
            }
            self.proposed += 1;
            let pair = p.pair.map(|i| &self.pairs[i]);
            let qp = pair.and_then(|p| p.qp.filter(|_| p.ready));
            if pair.is_none() || qp.is_some() {
                self.unanswered += usize::from(e.propose_cc(now, conn, qp, p.sending, p.cc).is_ok());
            }
        }
    }

    /// Whether this end has everything that it waits for.
    fn is_done(&self) -> bool {
        let plans = &self.common.plan.qps;
        let quiet = self.unanswered == 0 && self.proposed == self.common.plan.proposals[self.side].len();
        self.regions.is_some()
            && quiet
            && self.pairs.iter().zip(plans).all(|(p, plan)| {
                let received = !plan.reliable || p.recvs_done == plan.directions[1 - self.side].recvs.len();
                p.ready && received && p.completed == plan.directions[self.side].jobs.len()
            })
    }

    fn finish(&mut self, now: Time, e: &mut Endpoint) {
        let current = self.common.board.borrow().client_boots == self.client_boots;
        if current && self.is_done() {
            let shown = &mut self.common.board.borrow_mut().published[self.side];
            shown.done = true;
            shown.ended_with = self.conn.map(|c| (c, self.pairs.iter().map(|p| p.qp).collect()));
        }
        let both = self.common.board.borrow().published.iter().all(|s| s.done);
        let may_close = both && self.common.board.borrow().may_close;
        if may_close && self.common.plan.closers[self.side] && !self.closing {
            self.closing = true;
            if let Some(c) = self.conn {
                e.close(now, c, 0x1000, "done");
            }
        }
    }

    /// Processes completions and posts work, after all events.
    pub fn drive(&mut self, now: Time, e: &mut Endpoint, pool: &mut Option<Pool>) -> Result<(), String> {
        self.next_wake = None;
        self.completions(e, pool)?;
        if self.regions.is_some() && !self.closing {
            self.open_pairs(now, e)?;
            self.post(now, e)?;
            self.propose(now, e);
            self.finish(now, e);
        }
        Ok(())
    }

    /// When it has to be driven without an event.
    pub fn wants(&self) -> Option<Time> {
        self.next_wake
    }
}

/// The work request of a job.
fn request(i: usize, job: &Job, last: bool, own: (Mr, Mr), peer: (Mr, Mr), source: &[u8]) -> SendWr {
    let op = match job.op {
        Op::Write => SendOp::Write { rkey: peer.1.rkey, offset: job.to },
        Op::WriteImm => SendOp::WriteImm { rkey: peer.1.rkey, offset: job.to, imm: i as u32 },
        Op::Send => SendOp::SendImm { imm: i as u32 },
        Op::Read => SendOp::Read { rkey: peer.0.rkey, offset: job.from },
        Op::Add => {
            let want = core::array::from_fn(|i| source[job.from as usize + i]);
            let had = u64::from_ne_bytes(memory::expected_answer(job));
            let add = u64::from_ne_bytes(want).wrapping_sub(had);
            let op = AtomicOp::FetchAdd { add, mask: 0 };
            SendOp::Atomic { rkey: peer.1.rkey, offset: job.to, op }
        }
    };
    let (lkey, start) = match job.op {
        Op::Read => (own.1.lkey, job.to),
        Op::Add => (own.1.lkey, job.answer),
        _ => (own.0.lkey, job.from),
    };
    let data = if job.inline {
        Data::Inline(source[job.from as usize..(job.from + job.len) as usize].into())
    } else {
        let cut = |k: u64| job.len * k / job.pieces;
        let sge = |k| Sge { lkey, offset: start + cut(k), len: cut(k + 1) - cut(k) };
        Data::from((0..job.pieces).map(sge).collect::<Vec<_>>())
    };
    // The last one before waiting is signaled, since nothing else would continue the work.
    SendWr { signaled: job.signaled || last, fence: job.fence, ..SendWr::new(i as u64, op, data) }
}
