//! One sender whose traffic has several parts with different QoS: an application without I/O, for real sockets and
//! the simulator. A policy maps the QoS; the result lists each part's promise and what it got.
//!
//! The receiver names a region in a first Send; every part is a queue pair of Writes into it, opened when the part
//! begins. A part with an impossible deadline is refused then, with the earliest possible time.

use super::ends::{SenderConnection, SenderOutcome, run_receiver, run_sender};
use super::{Report, requests};
use base::{Span, Time};
use cc::engine::admission::Refusal;
use cc::platform::Qos;
use endpoint::{App, ConnId, Connect, ConnectError, Endpoint, Event, FlowReport, QpOptions};
use policy::Policy;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::error::code;
use verbs::{Access, Data, Error, Memory, Mr, QpId, RecvWr, SendOp, SendWr, Sge, Sges, Status};

/// Most parts of a flow: as many flows as a connection has besides that of its first queue pair.
pub const MAX_PARTS: usize = transport::limits::MAX_FLOWS - 1;
/// Most bytes of a Write, which is the size of the receiver's region.
pub const MAX_SIZE: u64 = 4 << 20;
/// Bytes posted ahead on each queue pair, and the fewest Writes.
const AHEAD: (u64, u64) = (16 << 20, 4);
/// Most message times kept for one part.
const MAX_TIMES: usize = 1 << 20;

/// A part of a sender's traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name, which policies see as the application's.
    pub name: String,
    /// The QoS it asks for, in the syntax of [`Qos`].
    pub qos: String,
    /// Bytes of a message.
    pub size: u64,
    /// Seconds from one message to the next; `None`: without pause.
    pub every: Option<f64>,
    /// When it begins, in seconds from the beginning of the sender.
    pub start: f64,
    /// Total bytes; `None`: until the end.
    pub bytes: Option<u64>,
}

/// A sender of several parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// The receiver.
    pub to: SocketAddr,
    /// Congestion control that the application asks for; empty for the policy's choice.
    pub cc: String,
    /// The policy of its process; the built-in one if empty.
    pub policy: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Seconds at the beginning that rates and times of messages leave out.
    pub warm_up: f64,
    /// Its parts, at most [`MAX_PARTS`].
    pub parts: Vec<Part>,
}

/// What a promise refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Nothing was promised.
    #[default]
    Nothing,
    /// A guarantee of the policy, on the wire.
    Guarantee,
    /// What the part asks to send, as payload.
    Offered,
    /// What the process's cap leaves it beside all others, on the wire.
    Rest,
    /// A deadline.
    Deadline,
}

/// The promise to a part and its result. Rates are in bits per second, times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartResult {
    /// Its name.
    pub name: String,
    /// The QoS it asked for.
    pub qos: String,
    /// The class chosen by the policy.
    pub class: String,
    /// The algorithm in use.
    pub algorithm: String,
    /// What its promise refers to.
    pub basis: Basis,
    /// The promised rate, by `basis`.
    pub expected_rate: Option<f64>,
    /// The achieved rate, by `basis`; without a promise, on the wire.
    pub achieved_rate: f64,
    /// Median and 95th percentile of the time from a message's turn to its arrival, for messages at intervals.
    pub message_times: Option<[f64; 2]>,
    /// The deadline.
    pub deadline: Option<f64>,
    /// The time it took.
    pub completion: Option<f64>,
    /// Why it was refused; empty if it was not.
    pub refusal: String,
    /// The earliest possible time, according to the refusal.
    pub earliest_completion: Option<f64>,
}

impl PartResult {
    /// Achieved as a share of the promised rate.
    pub fn share(&self) -> Option<f64> {
        self.expected_rate.filter(|p| *p > 0.0).map(|p| self.achieved_rate / p)
    }

    /// Whether its deadline was met; `None` without one, or if it was refused.
    pub fn kept(&self) -> Option<bool> {
        let within = self.deadline.filter(|_| self.refusal.is_empty())?;
        Some(self.completion.is_some_and(|took| took <= within))
    }
}

/// The results of all parts.
#[derive(Debug, Default)]
pub struct PartsState {
    /// Each part, in their order.
    pub parts: Vec<PartResult>,
    /// Times of all messages at intervals, in seconds.
    pub times: Vec<f64>,
    /// Payload that arrived.
    pub bytes: u64,
    /// Times and outcome of the sender.
    pub course: SenderOutcome,
}

/// A part in progress.
struct RunningPart {
    part: Part,
    qos: Qos,
    qp: Option<QpId>,
    is_ready: bool,
    asked: Option<Time>,
    posted: u64,
    completed: u64,
    /// The turn of each message in progress.
    turns: VecDeque<Time>,
    times: Vec<f64>,
    finished: Option<Time>,
    refused: Option<(String, Option<Span>)>,
    /// Bytes on the wire and of payload at the start of the measured time.
    before: Option<(u64, u64)>,
}

impl RunningPart {
    fn new(part: Part) -> Result<RunningPart, String> {
        let qos = part.qos.parse().map_err(|e: cc::platform::BadQos| e.to_string())?;
        Ok(RunningPart {
            part,
            qos,
            qp: None,
            is_ready: false,
            asked: None,
            posted: 0,
            completed: 0,
            turns: VecDeque::new(),
            times: Vec::new(),
            finished: None,
            refused: None,
            before: None,
        })
    }

    /// Number of messages; `None`: unlimited.
    fn messages(&self) -> Option<u64> {
        self.part.bytes.map(|b| b.div_ceil(self.part.size.max(1)).max(1))
    }

    /// Bytes of one message; the last one of a given amount may be shorter.
    fn size(&self, message: u64) -> u64 {
        match self.part.bytes {
            Some(b) => b.saturating_sub(message * self.part.size).clamp(1, self.part.size),
            None => self.part.size,
        }
    }

    fn payload(&self) -> u64 {
        let whole = self.completed * self.part.size;
        self.part.bytes.map_or(whole, |b| whole.min(b))
    }
}

/// Sends all parts.
pub struct Sender {
    /// The connection, to whose start the parts' times are relative.
    line: SenderConnection,
    seconds: Span,
    warm_up: Span,
    note: Option<Mr>,
    source: Option<Mr>,
    target: Option<u32>,
    parts: Vec<RunningPart>,
    is_measuring: bool,
    board: Rc<RefCell<PartsState>>,
}

/// The policy of a sender.
///
/// # Errors
/// All problems of the policy.
pub fn policy_of(text: &str) -> Result<Policy, String> {
    if text.is_empty() {
        return Ok(Policy::built_in());
    }
    Policy::read(text).map(|(policy, _)| policy).map_err(|problems| problems.to_string())
}

impl Sender {
    /// A sender that connects at `start`. Its endpoint must have the policy already.
    ///
    /// # Errors
    /// An invalid QoS of a part.
    pub fn new(
        what: &Parts,
        connect: Connect,
        start: Time,
        board: Rc<RefCell<PartsState>>,
    ) -> Result<Sender, String> {
        Ok(Sender {
            line: SenderConnection::new(connect, start),
            seconds: Span::from_secs_f64(what.seconds),
            warm_up: Span::from_secs_f64(what.warm_up),
            note: None,
            source: None,
            target: None,
            parts: what.parts.iter().cloned().map(RunningPart::new).collect::<Result<_, _>>()?,
            is_measuring: false,
            board,
        })
    }

    fn up(&mut self, conn: ConnId, e: &mut Endpoint) -> Result<(), String> {
        let Some(info) = e.connection(conn).cloned() else { return Ok(()) };
        let words = |(e, _): (Error, Memory)| e.to_string();
        let longest = self.parts.iter().map(|p| p.part.size).max().unwrap_or(1);
        let source = Memory::zeroed(longest.clamp(1, MAX_SIZE) as usize);
        self.source = Some(e.adapter().reg_mr(info.pd, source, Access::LOCAL_READ).map_err(words)?);
        let note = Memory::zeroed(size_of::<u32>());
        let note = e.adapter().reg_mr(info.pd, note, Access::LOCAL_WRITE).map_err(words)?;
        self.note = Some(note);
        let first = info.qps.first().ok_or("a connection without queue pairs")?;
        let sge = Sge { lkey: note.lkey, offset: 0, len: note.len };
        e.adapter().post_recv(*first, RecvWr { wr_id: 0, sges: Sges::One(sge) }).map_err(|e| e.to_string())
    }

    fn events(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Connected { conn } => self.up(conn, e)?,
                Event::QpReady { qp, by_peer: false, .. } => {
                    self.parts.iter_mut().filter(|p| p.qp == Some(qp)).for_each(|p| p.is_ready = true);
                }
                Event::QpRefused { qp, code, .. } => {
                    if let Some(p) = self.parts.iter().find(|p| p.qp == Some(qp)) {
                        return Err(format!("{}: the receiver refuses it with code {code}", p.part.name));
                    }
                }
                Event::Closed { reason, .. } => {
                    let regions = [self.source.take(), self.note.take()];
                    let course = &mut self.board.borrow_mut().course;
                    self.line.on_closed((now, &reason.to_string()), regions, course, e)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn completions(&mut self, now: Time, conn: ConnId, e: &mut Endpoint) -> Result<(), String> {
        let Some(info) = e.connection(conn) else { return Ok(()) };
        let (cq, first) = (info.cq, info.qps.first().copied());
        while let Some(wc) = e.adapter().poll_cq(cq) {
            if wc.status != Status::Success {
                return Err(format!("a work request ended with {:?}", wc.status));
            }
            if Some(wc.qp) == first {
                let Some(note) = &self.note else { continue };
                let mut key = [0; size_of::<u32>()];
                e.adapter().read_mr(note.id, 0, &mut key).map_err(|e| e.to_string())?;
                self.target = Some(u32::from_be_bytes(key));
                self.board.borrow_mut().course.began = Some(now);
                continue;
            }
            let Some(p) = self.parts.iter_mut().find(|p| p.qp == Some(wc.qp)) else { continue };
            p.completed += 1;
            let turn = p.turns.pop_front();
            if let Some(turn) = turn.filter(|_| self.is_measuring && p.times.len() < MAX_TIMES) {
                p.times.push(now.since(turn).as_secs_f64());
            }
            if Some(p.completed) == p.messages() {
                p.finished = Some(now);
            }
        }
        Ok(())
    }

    /// Opens and feeds a part; returns when it has to be called again.
    fn drive_part(
        p: &mut RunningPart,
        (now, start, conn): (Time, Time, ConnId),
        (source, target): (&Mr, u32),
        e: &mut Endpoint,
    ) -> Result<Option<Time>, String> {
        let begins = start + Span::from_secs_f64(p.part.start);
        if begins > now || p.refused.is_some() {
            return Ok(Some(begins).filter(|b| *b > now));
        }
        let Some(qp) = p.qp else {
            p.asked = Some(now);
            // The name separates its flow from that of another part with the same QoS.
            let (qos, application) = (Some(p.qos), Some(p.part.name.clone()));
            match e.open_qp(now, conn, QpOptions { qos, application, ..QpOptions::default() }) {
                Ok(qp) => p.qp = Some(qp),
                Err(ConnectError::Refused(why)) => {
                    let earliest = if let Refusal::Deadline { earliest, .. } = why { earliest } else { None };
                    p.refused = Some((why.to_string(), earliest));
                }
                Err(e) => return Err(format!("{}: {e}", p.part.name)),
            }
            return Ok(None);
        };
        let asked = p.asked.unwrap_or(now);
        let ahead = (AHEAD.0 / p.part.size.max(1)).max(AHEAD.1);
        while p.is_ready && p.messages().is_none_or(|n| p.posted < n) {
            let turn = p.part.every.map(|every| asked + Span::from_secs_f64(every * p.posted as f64));
            if let Some(turn) = turn.filter(|turn| *turn > now) {
                return Ok(Some(turn));
            }
            if p.posted - p.completed >= ahead {
                break;
            }
            let sge = Sge { lkey: source.lkey, offset: 0, len: p.size(p.posted) };
            let op = SendOp::Write { rkey: target, offset: 0 };
            match e.adapter().post_send(qp, SendWr::new(p.posted, op, Data::from(sge))) {
                Ok(()) => p.posted += 1,
                Err(Error::QueueFull | Error::CqFull) => break,
                Err(e) => return Err(e.to_string()),
            }
            p.turns.extend(turn);
        }
        Ok(None)
    }

    fn work(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        self.line.connect_when_due(now, e)?;
        self.events(now, e)?;
        let over = self.line.closed || self.board.borrow().course.ended.is_some();
        let (Some(conn), false) = (self.line.conn, over) else { return Ok(()) };
        self.completions(now, conn, e)?;
        let start = self.line.start;
        let (from, end) = (start + self.warm_up, start + self.seconds);
        self.line.wake = Some(if now < from { from } else { end });
        if let (Some(source), Some(target)) = (self.source, self.target) {
            for p in &mut self.parts {
                if let Some(at) = Self::drive_part(p, (now, start, conn), (&source, target), e)? {
                    self.line.wake = self.line.wake.map(|w| w.min(at));
                }
            }
        }
        if now >= from && !self.is_measuring {
            self.is_measuring = true;
            let flows = e.flows();
            self.parts.iter_mut().for_each(|p| p.before = Some((on_wire(&flows, p), p.payload())));
        }
        if now >= end {
            self.end(now, e);
            e.close(now, conn, code::NO_ERROR, "done");
        }
        Ok(())
    }

    /// Records the results.
    fn end(&mut self, now: Time, e: &mut Endpoint) {
        let flows = e.flows();
        let cap = e.policy().and_then(|p| p.process_cap()).map(|r| r.bits_per_sec() as f64);
        let seconds = now.since(self.line.start + self.warm_up).as_secs_f64();
        let mut board = self.board.borrow_mut();
        board.parts = self.parts.iter().map(|p| result(p, &flows, seconds)).collect();
        let wire: Vec<f64> = self.parts.iter().map(|p| wire_rate(p, &flows, seconds)).collect();
        promise_rest_of_cap(&mut board.parts, &wire, cap);
        board.bytes = self.parts.iter().map(RunningPart::payload).sum();
        board.times = self.parts.iter().flat_map(|p| p.times.iter().copied()).collect();
        board.course.ended = Some(now);
    }
}

/// The flow of a part's queue pair.
fn flow_of<'a>(flows: &'a [FlowReport], p: &RunningPart) -> Option<&'a FlowReport> {
    p.qp.and_then(|qp| flows.iter().find(|f| f.qps.contains(&qp)))
}

/// Bytes of IP packets delivered for a part.
fn on_wire(flows: &[FlowReport], p: &RunningPart) -> u64 {
    flow_of(flows, p).map_or(0, |f| f.facts.delivered)
}

fn wire_rate(p: &RunningPart, flows: &[FlowReport], seconds: f64) -> f64 {
    let before = p.before.map_or(0, |b| b.0);
    on_wire(flows, p).saturating_sub(before) as f64 * 8.0 / seconds.max(1e-9)
}

fn result(p: &RunningPart, flows: &[FlowReport], seconds: f64) -> PartResult {
    let flow = flow_of(flows, p);
    let mut r = PartResult {
        name: p.part.name.clone(),
        qos: p.part.qos.clone(),
        class: flow.map_or_else(String::new, |f| f.class.clone()),
        algorithm: flow.map_or_else(String::new, |f| f.facts.name.to_owned()),
        achieved_rate: wire_rate(p, flows, seconds),
        ..PartResult::default()
    };
    if let Some((why, earliest)) = &p.refused {
        (r.refusal, r.earliest_completion) = (why.clone(), earliest.map(Span::as_secs_f64));
    }
    let guarantee = flow.and_then(|f| f.choice.as_ref()).and_then(|c| c.guarantee);
    match (p.qos, p.part.every, guarantee) {
        (Qos::Deadline { within, .. }, ..) => {
            (r.basis, r.deadline) = (Basis::Deadline, Some(within.as_secs_f64()));
            r.completion = p.asked.zip(p.finished).map(|(asked, at)| at.since(asked).as_secs_f64());
        }
        (_, Some(every), None) => {
            let payload = p.payload().saturating_sub(p.before.map_or(0, |b| b.1));
            (r.basis, r.expected_rate) = (Basis::Offered, Some(p.part.size as f64 * 8.0 / every.max(1e-9)));
            r.achieved_rate = payload as f64 * 8.0 / seconds.max(1e-9);
        }
        (.., Some(rate)) => {
            (r.basis, r.expected_rate) = (Basis::Guarantee, Some(rate.bits_per_sec() as f64));
        }
        _ => {}
    }
    let mut times = p.times.clone();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len().saturating_sub(1) as f64 * share) as usize).copied();
    r.message_times = at(0.5).zip(at(0.95)).map(|(m, p)| [m, p]);
    r
}

/// If only one part takes as much as it can get, the rest of the process's cap is its promise.
fn promise_rest_of_cap(parts: &mut [PartResult], wire: &[f64], cap: Option<f64>) {
    let free: Vec<usize> = (0..parts.len())
        .filter(|i| parts[*i].basis == Basis::Nothing && parts[*i].refusal.is_empty())
        .collect();
    let ([i], Some(cap)) = (free.as_slice(), cap) else { return };
    let others: f64 = wire.iter().enumerate().filter(|(k, _)| k != i).map(|(_, w)| w).sum();
    (parts[*i].basis, parts[*i].expected_rate) = (Basis::Rest, Some((cap - others).max(0.0)));
}

impl App for Sender {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Err(text) = self.work(now, e) {
            self.line.give_up(now, text, &mut self.board.borrow_mut().course, e);
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.line.next_timeout()
    }
    fn finished(&self) -> bool {
        self.line.closed
    }
}

/// Provides memory for the Writes.
pub struct Receiver {
    stop: Arc<AtomicBool>,
    region: Option<(ConnId, Mr)>,
    /// Payload that arrived on closed connections.
    pub bytes: u64,
}

impl Receiver {
    /// The receiver of one [`Sender`]; it closes when `stop` is set.
    pub fn new(stop: Arc<AtomicBool>) -> Receiver {
        Receiver { stop, region: None, bytes: 0 }
    }

    fn up(&mut self, conn: ConnId, e: &mut Endpoint) -> Result<(), String> {
        let Some(info) = e.connection(conn).cloned() else { return Ok(()) };
        if self.region.is_some() {
            return Err("there is a sender already".to_owned());
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = e.adapter().reg_mr(info.pd, Memory::zeroed(MAX_SIZE as usize), access);
        let region = region.map_err(|(e, _)| e.to_string())?;
        self.region = Some((conn, region));
        let first = info.qps.first().ok_or("a connection without queue pairs")?;
        let key = Data::Inline(region.rkey.to_be_bytes()[..].into());
        e.adapter().post_send(*first, SendWr::new(0, SendOp::Send, key)).map_err(|e| e.to_string())
    }
}

impl App for Receiver {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Incoming { conn } => {
                    if let Err(text) = self.up(conn, e) {
                        e.close(now, conn, code::APPLICATION, &text);
                    }
                }
                Event::Closed { conn, .. } => {
                    self.bytes += e.stats(conn).map_or(0, |s| s.payload_received);
                    if let Some((_, region)) = self.region.take_if(|(c, _)| *c == conn) {
                        // These fail if the connection is gone already.
                        let _ = e.adapter().dereg_mr(region.id);
                    }
                    let _ = e.release(conn);
                }
                _ => {}
            }
        }
        let conns: Vec<ConnId> = e.connections().collect();
        for conn in conns {
            let cq = e.connection(conn).map(|i| i.cq);
            while cq.and_then(|cq| e.adapter().poll_cq(cq)).is_some() {}
            if self.stop.load(Ordering::SeqCst) {
                e.close(now, conn, code::NO_ERROR, "the receiver was stopped");
            }
        }
    }
    fn finished(&self) -> bool {
        self.region.is_none() && self.stop.load(Ordering::SeqCst)
    }
}

/// Sends over real sockets.
pub(super) fn send(w: &Parts) -> Result<Report, String> {
    let policy = Arc::new(policy_of(&w.policy)?);
    let board = Rc::<RefCell<PartsState>>::default();
    let app = |connect, now| Sender::new(w, connect, now, board.clone());
    run_sender(w.to, requests::options(&w.cc, None, 1), Some(policy), app)?;
    let b = board.borrow();
    match &b.course.failure {
        Some(why) => Err(why.clone()),
        None => Ok(report(&b)),
    }
}

/// The figures of a sender.
pub fn report(b: &PartsState) -> Report {
    let seconds = b.course.seconds();
    let (parts, completions) = (b.parts.clone(), b.times.clone());
    Report { bytes: b.bytes, seconds, completions, parts, ..Report::default() }
}

/// Receives over real sockets until standard input ends.
pub(super) fn sink(listen: SocketAddr) -> Result<Report, String> {
    let app = run_receiver(listen, requests::options("", None, 1), Receiver::new)?;
    Ok(Report { bytes: app.bytes, ..Report::default() })
}

#[cfg(test)]
mod tests;
