//! Requests and short answers by Sends of Longhaul: applications without I/O, for real sockets and the simulator.

use super::ends::{SenderConnection, SenderOutcome, run_receiver, run_sender};
use super::tcp_requests::{ANSWER, exponential};
use super::{Report, Requests};
use base::{Rate, Rng, Span, Time};
use endpoint::{App, ConnId, Connect, Endpoint, Event, TransportOptions};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::error::code;
use verbs::{
    Access, Data, Error, Memory, Mr, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Sges, Status, WorkCompletion,
};

/// Receives that the client posts ahead on each queue pair for answers.
const ANSWERS_AHEAD: u64 = 256;
/// Bytes of requests for which the server posts receives on each queue pair, and the fewest and most receives.
const AHEAD_BYTES: u64 = 64 << 20;
const AHEAD: (u64, u64) = (4, 1_024);
/// Most requests waiting to be sent or answered on one queue pair.
const MAX_WAITING: usize = 1 << 16;
/// Time after the end for which answers are awaited.
const ANSWER_TIMEOUT: Span = Span::from_secs(10);

/// The results of a client.
#[derive(Debug, Default)]
pub struct RequestsState {
    /// Completion times in seconds.
    pub completions: Vec<f64>,
    /// Payload sent, and retransmitted.
    pub payload: (u64, u64),
    /// Bytes of data packets.
    pub wire: u64,
    /// Times and outcome of the client.
    pub course: SenderOutcome,
}

/// One queue pair of a client.
struct Stream {
    qp: QpId,
    /// Arrival times of requests not posted yet.
    pending: VecDeque<Time>,
    /// Arrival times of requests not answered yet.
    unanswered: VecDeque<Time>,
    receives: u64,
}

/// Sends requests.
pub struct Client {
    what: Requests,
    line: SenderConnection,
    rng: Rng,
    source: Option<Mr>,
    answers: Option<Mr>,
    streams: Vec<Stream>,
    began: Option<Time>,
    due: Time,
    turn: usize,
    board: Rc<RefCell<RequestsState>>,
}

impl Client {
    /// A client that connects at `start`, at which its pattern begins, too.
    pub fn new(what: Requests, connect: Connect, start: Time, board: Rc<RefCell<RequestsState>>) -> Client {
        let rng = Rng::from_u64(what.seed);
        Client {
            what,
            line: SenderConnection::new(connect, start),
            rng,
            source: None,
            answers: None,
            streams: Vec::new(),
            began: None,
            due: start,
            turn: 0,
            board,
        }
    }

    fn up(&mut self, now: Time, conn: ConnId, e: &mut Endpoint) -> Result<(), String> {
        let Some(info) = e.connection(conn).cloned() else { return Ok(()) };
        let words = |(e, _): (Error, Memory)| e.to_string();
        let source = Memory::zeroed(self.what.size as usize);
        let source = e.adapter().reg_mr(info.pd, source, Access::LOCAL_READ).map_err(words)?;
        let slots = Memory::zeroed(ANSWER * ANSWERS_AHEAD as usize);
        let answers = e.adapter().reg_mr(info.pd, slots, Access::LOCAL_WRITE).map_err(words)?;
        (self.source, self.answers) = (Some(source), Some(answers));
        for qp in info.qps.iter().take(usize::from(self.what.streams.max(1))) {
            let mut s =
                Stream { qp: *qp, pending: VecDeque::new(), unanswered: VecDeque::new(), receives: 0 };
            for _ in 0..ANSWERS_AHEAD {
                receive(e, &mut s, &answers, ANSWER as u64, ANSWERS_AHEAD)?;
            }
            self.streams.push(s);
        }
        (self.began, self.due) = (Some(now), now);
        self.board.borrow_mut().course.began = Some(now);
        Ok(())
    }

    fn completion(&mut self, now: Time, wc: &WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        if wc.status != Status::Success {
            return Err(format!("a work request ended with {:?}", wc.status));
        }
        if wc.opcode != Opcode::Recv {
            return Ok(());
        }
        let Some(s) = self.streams.iter_mut().find(|s| s.qp == wc.qp) else { return Ok(()) };
        if let Some(answers) = &self.answers {
            receive(e, s, answers, ANSWER as u64, ANSWERS_AHEAD)?;
        }
        // Answers come in the order of requests.
        if let Some(at) = s.unanswered.pop_front() {
            self.board.borrow_mut().completions.push(now.since(at).as_secs_f64());
        }
        Ok(())
    }

    /// Seconds since it began, whether requests arrive now, and the time of the next change.
    fn phase(&self, now: Time) -> Option<(f64, bool, Time)> {
        let began = self.began?;
        let t = now.since(began).as_secs_f64();
        let (on, next) = self.what.pattern.at(t);
        // A nanosecond more, so that the phase has changed by then.
        Some((t, on, began + Span::from_secs_f64(next) + Span::from_nanos(1)))
    }

    fn arrive(&mut self, now: Time) {
        let Some((_, on, _)) = self.phase(now) else { return };
        if !on {
            self.due = self.due.max(now);
            return;
        }
        match self.what.every {
            None => {
                for s in self.streams.iter_mut().filter(|s| s.pending.is_empty() && s.unanswered.is_empty()) {
                    s.pending.push_back(now);
                }
            }
            Some(mean) => {
                while self.due <= now && !self.streams.is_empty() {
                    let n = self.streams.len();
                    let s = &mut self.streams[self.turn % n];
                    if s.pending.len() + s.unanswered.len() < MAX_WAITING {
                        s.pending.push_back(self.due);
                    }
                    self.turn += 1;
                    self.due += exponential(&mut self.rng, mean).max(Span::from_nanos(1));
                }
            }
        }
    }

    fn post(&mut self, e: &mut Endpoint) -> Result<(), String> {
        let Some(source) = &self.source else { return Ok(()) };
        for s in &mut self.streams {
            while let Some(at) = s.pending.front().copied() {
                // Its answer needs a receive.
                if s.unanswered.len() as u64 >= ANSWERS_AHEAD {
                    break;
                }
                let sge = Sge { lkey: source.lkey, offset: 0, len: self.what.size };
                match e.adapter().post_send(s.qp, SendWr::new(0, SendOp::Send, Data::from(sge))) {
                    Ok(()) => {
                        s.pending.pop_front();
                        s.unanswered.push_back(at);
                    }
                    Err(Error::QueueFull | Error::CqFull) => break,
                    Err(e) => return Err(e.to_string()),
                }
            }
        }
        Ok(())
    }

    fn work(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        self.line.connect_when_due(now, e)?;
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Connected { conn } => self.up(now, conn, e)?,
                Event::Closed { reason, .. } => {
                    let regions = [self.source.take(), self.answers.take()];
                    let course = &mut self.board.borrow_mut().course;
                    self.line.on_closed((now, &reason.to_string()), regions, course, e)?;
                }
                _ => {}
            }
        }
        let (Some(conn), false, Some(_)) = (self.line.conn, self.line.closed, self.began) else {
            return Ok(());
        };
        let Some(cq) = e.connection(conn).map(|i| i.cq) else { return Ok(()) };
        while let Some(wc) = e.adapter().poll_cq(cq) {
            self.completion(now, &wc, e)?;
        }
        self.arrive(now);
        self.post(e)?;
        self.end(now, conn, e);
        self.line.wake = self.next_wake(now);
        Ok(())
    }

    /// When the client has to be driven without an event.
    fn next_wake(&self, now: Time) -> Option<Time> {
        let (t, on, change) = self.phase(now)?;
        if t >= self.what.pattern.seconds {
            return Some(self.began? + Span::from_secs_f64(self.what.pattern.seconds) + ANSWER_TIMEOUT);
        }
        let arrival = self.due.max(now + Span::from_nanos(1));
        Some(if on && self.what.every.is_some() { change.min(arrival) } else { change })
    }

    /// Closes when the time is over and everything is answered, or no more answers are expected.
    fn end(&mut self, now: Time, conn: ConnId, e: &mut Endpoint) {
        let Some((t, _, _)) = self.phase(now) else { return };
        let idle = self.streams.iter().all(|s| s.pending.is_empty() && s.unanswered.is_empty());
        let late = t >= self.what.pattern.seconds + ANSWER_TIMEOUT.as_secs_f64();
        let mut board = self.board.borrow_mut();
        if t < self.what.pattern.seconds || !(idle || late) || board.course.ended.is_some() {
            return;
        }
        if let Some(s) = e.stats(conn) {
            board.payload = (s.payload_sent, s.payload_again);
            board.wire = s.bytes_sent.saturating_sub(s.control_bytes_sent);
        }
        board.course.ended = Some(now);
        e.close(now, conn, code::NO_ERROR, "done");
    }
}

/// Posts a receive into the next slot of a region.
fn receive(e: &mut Endpoint, s: &mut Stream, region: &Mr, size: u64, slots: u64) -> Result<(), String> {
    let sge = Sge { lkey: region.lkey, offset: s.receives % slots * size, len: size };
    s.receives += 1;
    e.adapter().post_recv(s.qp, RecvWr { wr_id: 0, sges: Sges::One(sge) }).map_err(|e| e.to_string())
}

impl App for Client {
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

/// Answers requests.
pub struct Server {
    size: u64,
    streams: u16,
    conns: BTreeMap<ConnId, (Mr, Vec<Stream>)>,
    stop: Arc<AtomicBool>,
    /// Payload of requests that arrived.
    pub bytes: u64,
}

impl Server {
    /// A server for requests of this size on this many queue pairs; it closes when `stop` is set.
    pub fn new(size: u64, streams: u16, stop: Arc<AtomicBool>) -> Server {
        Server { size, streams, conns: BTreeMap::new(), stop, bytes: 0 }
    }

    fn slots(&self) -> u64 {
        let each = AHEAD_BYTES / self.size.max(1) / u64::from(self.streams.max(1));
        each.clamp(AHEAD.0, AHEAD.1)
    }

    fn up(&self, conn: ConnId, e: &mut Endpoint) -> Result<Option<(Mr, Vec<Stream>)>, String> {
        let Some(info) = e.connection(conn).cloned() else { return Ok(None) };
        let slots = self.slots();
        let memory = Memory::zeroed((slots * self.size) as usize);
        let region = e.adapter().reg_mr(info.pd, memory, Access::LOCAL_WRITE);
        let region = region.map_err(|(e, _)| e.to_string())?;
        let mut streams = Vec::new();
        for qp in info.qps.iter().take(usize::from(self.streams.max(1))) {
            let mut s =
                Stream { qp: *qp, pending: VecDeque::new(), unanswered: VecDeque::new(), receives: 0 };
            for _ in 0..slots {
                receive(e, &mut s, &region, self.size, slots)?;
            }
            streams.push(s);
        }
        Ok(Some((region, streams)))
    }

    fn answer(&mut self, conn: ConnId, wc: &WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        if wc.status != Status::Success {
            return Err(format!("a work request ended with {:?}", wc.status));
        }
        if wc.opcode != Opcode::Recv {
            return Ok(());
        }
        let (size, slots) = (self.size, self.slots());
        let Some((region, streams)) = self.conns.get_mut(&conn) else { return Ok(()) };
        let Some(s) = streams.iter_mut().find(|s| s.qp == wc.qp) else { return Ok(()) };
        receive(e, s, region, size, slots)?;
        self.bytes += wc.byte_len;
        let data = Data::Inline(vec![0; ANSWER].into());
        e.adapter().post_send(wc.qp, SendWr::new(0, SendOp::Send, data)).map_err(|e| e.to_string())
    }
}

impl App for Server {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Incoming { conn } => match self.up(conn, e) {
                    Ok(Some(c)) => {
                        self.conns.insert(conn, c);
                    }
                    Ok(None) => {}
                    Err(text) => e.close(now, conn, code::APPLICATION, &text),
                },
                Event::Closed { conn, .. } => {
                    if let Some((region, _)) = self.conns.remove(&conn) {
                        let _ = e.adapter().dereg_mr(region.id);
                    }
                    // This fails if the connection is gone already.
                    let _ = e.release(conn);
                }
                _ => {}
            }
        }
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            if self.stop.load(Ordering::SeqCst) {
                e.close(now, conn, code::NO_ERROR, "the server was stopped");
                continue;
            }
            let Some(cq) = e.connection(conn).map(|i| i.cq) else { continue };
            while let Some(wc) = e.adapter().poll_cq(cq) {
                if let Err(text) = self.answer(conn, &wc, e) {
                    e.close(now, conn, code::APPLICATION, &text);
                    break;
                }
            }
        }
    }
    fn finished(&self) -> bool {
        self.conns.is_empty() && self.stop.load(Ordering::SeqCst)
    }
}

/// Options of both ends.
pub fn options(cc: &str, known_rate: Option<u64>, streams: u16) -> TransportOptions {
    let mut o = TransportOptions { initial_qps: streams.max(1), ..TransportOptions::default() };
    if !cc.is_empty() {
        cc.clone_into(&mut o.cc);
    }
    o.known_rate = known_rate.map(Rate::from_bits_per_sec);
    o
}

/// Sends requests over real sockets.
pub(super) fn run_client(r: &Requests) -> Result<Report, String> {
    let board = Rc::<RefCell<RequestsState>>::default();
    let app = |connect, now| Ok(Client::new(r.clone(), connect, now, board.clone()));
    run_sender(r.to, options(&r.cc, r.known_rate, r.streams), None, app)?;
    let b = board.borrow();
    if b.completions.is_empty() {
        return Err(b.course.failure.clone().unwrap_or_else(|| "no request was answered".to_owned()));
    }
    Ok(report(&b, r.size))
}

/// The report of a client.
pub fn report(b: &RequestsState, size: u64) -> Report {
    Report {
        bytes: b.completions.len() as u64 * size,
        seconds: b.course.seconds(),
        completions: b.completions.clone(),
        retransmitted: (b.payload.0 > 0).then(|| b.payload.1 as f64 / b.payload.0 as f64),
        payload_share: (b.wire > 0).then(|| b.payload.0 as f64 / b.wire as f64),
        note: b.course.failure.clone().unwrap_or_default(),
        ..Report::default()
    }
}

/// Answers over real sockets until standard input ends.
pub(super) fn run_server(listen: SocketAddr, size: u64, streams: u16) -> Result<Report, String> {
    let app = run_receiver(listen, options("", None, streams), |over| Server::new(size, streams, over))?;
    Ok(Report { bytes: app.bytes, ..Report::default() })
}
