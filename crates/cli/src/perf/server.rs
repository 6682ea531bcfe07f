//! `longhaul perf server`.

use super::arrivals::Arrivals;
use super::claim::MemoryClaim;
use super::control::Control;
use super::load::Load;
use super::proto::{MAX_STREAMS, Message};
use crate::args::PerfServer;
use crate::exit::{Failure, Outcome};
use crate::gate::shown;
use crate::govern;
use crate::setup::{self, LocalIdentity, Serving};
use crate::{out, stop};
use base::Time;
use endpoint::{App, ConnId, Endpoint, Event, SessionProgress, ShareLimits, Shares};
use lhio::budget::{Budget, memory_for_clients};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::error::code;
use verbs::{CqId, Status};

/// Measurements at a time.
const MAX_SESSIONS: usize = 16;

/// Answers until interrupted.
pub fn run(a: &PerfServer) -> Outcome<()> {
    let me = LocalIdentity::with(&a.admission.certificate)?;
    let mut options = setup::options(&a.wire, Some(&a.sending), None);
    // One for the words about a measurement.
    options.max_qps = u32::from(MAX_STREAMS) + 1;
    let (gate, mut config, tokens) = me.admission(&a.admission)?;
    config.iwarp = a.iwarp.server(a.admission.allow_any_key).map_err(Failure::usage)?;
    let iwarp = config.iwarp.is_some();
    let mut driver = setup::driven(a.listen, &a.wire, &a.loop_options, (true, a.iwarp.streams()))?;
    let (listen, waker) = (driver.local_addr(), driver.waker());
    // Before it says that it listens: who hears that may end it.
    let stop = stop::wakes(&waker)?;
    setup::announce(&me, (listen, iwarp), &a.admission, &gate, &tokens);
    if a.json {
        let print = me.fingerprint().map(|p| p.to_string());
        let tokens: Vec<&str> = tokens.iter().map(|t| t.as_str()).collect();
        out::json(&json!({ "listening": listen.to_string(), "fingerprint": print, "tokens": tokens }));
    }
    let serving = Serving { config, role: "perf server", listen };
    let mut endpoint = me.endpoint(&me.credentials, options, Some(serving))?;
    endpoint.set_client_admission(Some(Box::new(gate)));
    let admin = govern::start("perf server", &a.admin_options, &me, waker)?;
    let shares = Shares::new(ShareLimits::of(MAX_SESSIONS), "measurements");
    let memory = Budget::new(memory_for_clients(a.memory.memory));
    let mut app = Server { sessions: Vec::new(), shares, left: a.count, arrivals: a.arrivals, memory, stop };
    Ok(driver.run(&mut endpoint, &mut admin.govern(&mut app))?)
}

struct Session {
    /// Its address and key, for the log.
    who: (String, String),
    cq: CqId,
    control: Control,
    load: Option<Load>,
    claim: MemoryClaim,
    stage: Stage,
    /// It is the initiator and has not told its figures yet.
    running: bool,
    arrivals: Option<Arrivals>,
}

/// How far a client has come; each message of it moves on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has not said what to measure.
    RequestOptions,
    /// Its memory is being made.
    Preparing,
    Measuring,
    /// It was refused, or has its result.
    Over,
}

struct Server {
    /// Gone through in each turn, and by names only where one ends.
    sessions: Vec<(ConnId, Session)>,
    shares: Shares,
    left: Option<u64>,
    /// Whether to print what arrived when.
    arrivals: bool,
    /// For all measurements together.
    memory: Budget,
    stop: Arc<AtomicBool>,
}

impl Server {
    #[inline(never)]
    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Incoming { conn } => {
                let Some(info) = ep.connection(conn).cloned() else { return };
                let (client, peer) = (info.remote.to_string(), shown(info.peer.as_ref()));
                if self.left == Some(0) {
                    return ep.close(now, conn, code::BUSY, "the server is stopping; try again later");
                }
                match self.shares.enter(now, conn, info.peer.as_ref(), info.remote) {
                    Ok(Some(d)) => ep.close(now, d.conn, code::BUSY, &d.words),
                    Ok(None) => {}
                    Err(full) => {
                        tracing::info!(client, peer, why = %full, "measurement refused");
                        return ep.close(now, conn, code::BUSY, &full.to_string());
                    }
                }
                match Control::new(ep, &info) {
                    Ok(control) => {
                        tracing::info!(client, peer, "measurement started");
                        let arrivals = self.arrivals.then(|| Arrivals::new(now));
                        let claim = MemoryClaim::new(&self.memory, &info, now);
                        let (cq, stage) = (info.cq, Stage::RequestOptions);
                        let who = (client, peer);
                        let s =
                            Session { who, cq, control, load: None, claim, stage, running: false, arrivals };
                        self.sessions.push((conn, s));
                    }
                    Err(text) => {
                        self.shares.leave(conn);
                        ep.close(now, conn, code::INTERNAL, &text);
                    }
                }
            }
            Event::Closed { conn, reason } => {
                self.shares.leave(conn);
                if let Some(at) = self.sessions.iter().position(|(c, _)| *c == conn) {
                    let (_, s) = self.sessions.remove(at);
                    let (client, peer) = &s.who;
                    // Once all is said, what is still under way is cut off.
                    let reason =
                        if s.stage == Stage::Over { "results exchanged".into() } else { reason.to_string() };
                    tracing::info!(client, peer, reason, "measurement ended");
                    s.control.close(ep);
                    if let Some(l) = s.load {
                        if let Some(a) = s.arrivals {
                            out::json(&a.report());
                        }
                        l.close(ep);
                        self.left = self.left.map(|n| n.saturating_sub(1));
                    }
                }
                if let Err(e) = ep.release(conn) {
                    tracing::warn!(error = %e, "a connection was not freed");
                }
            }
            _ => {}
        }
    }
}

impl Session {
    fn drive(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint) -> Result<(), String> {
        if let Some(load) = &mut self.load {
            load.post_late(ep)?;
        }
        while let Some(wc) = ep.adapter().poll_cq(self.cq) {
            if wc.status == Status::FlushError || wc.status != Status::Success && self.stage == Stage::Over {
                // The connection ends: why is told by its own event.
                continue;
            }
            if wc.status != Status::Success {
                return Err(format!("a work request completed with {:?}", wc.status));
            }
            if wc.qp == self.control.qp() {
                if let Some(m) = self.control.completion(ep, &wc)? {
                    self.message(now, conn, ep, m)?;
                }
            } else if let Some(load) = &mut self.load {
                load.completion(now, ep, &wc)?;
            }
        }
        if self.stage == Stage::Preparing {
            self.prepare(now, ep)?;
        }
        if let Some(load) = &mut self.load {
            load.look(now, ep)?;
        }
        let Some(load) = self.load.as_mut().filter(|_| self.running) else { return Ok(()) };
        load.post(now, ep)?;
        if load.is_over() {
            self.running = false;
            let each = load.each(ep);
            let figures = load.figures(ep, conn, &each);
            self.over(now);
            self.control.send(ep, &Message::Finish(each, figures))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn message(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint, m: Message) -> Result<(), String> {
        match (m, self.stage, &mut self.load) {
            (Message::Ask(plan), Stage::RequestOptions, None) => {
                let Some(info) = ep.connection(conn).cloned() else { return Ok(()) };
                let reverse = plan.reverse;
                let checked =
                    plan.check().and_then(|()| plan.check_keys()).and_then(|()| self.claim.take(&plan));
                match checked.and_then(|()| Load::new(conn, &info, plan, reverse)) {
                    Ok(load) => (self.load, self.stage) = (Some(load), Stage::Preparing),
                    Err(text) => self.refuse(now, ep, text)?,
                }
                Ok(())
            }
            (Message::Finish(each, _), Stage::Measuring, Some(load)) => {
                let figures = load.figures(ep, conn, &each);
                self.over(now);
                self.control.send(ep, &Message::Done(figures))
            }
            _ => Err("the client sent a message out of turn".to_owned()),
        }
    }

    /// Makes the next part of the memory that a measurement goes through, and begins when all is there.
    #[inline(never)]
    fn prepare(&mut self, now: Time, ep: &mut Endpoint) -> Result<(), String> {
        let Some(load) = &mut self.load else { return Ok(()) };
        match load.prepare(ep) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(text) => return self.refuse(now, ep, text),
        }
        self.stage = Stage::Measuring;
        self.control.send(ep, &Message::Ready(load.rkeys()))?;
        let plan = load.plan();
        let (reverse, latency, rkeys) = (plan.reverse, plan.latency, plan.rkeys.clone());
        if reverse {
            load.start(ep, &rkeys)?;
            self.running = true;
        } else if latency {
            load.set_keys(now, ep, &rkeys)?;
        }
        Ok(())
    }

    /// Says no.
    fn refuse(&mut self, now: Time, ep: &mut Endpoint, text: String) -> Result<(), String> {
        self.over(now);
        if let Some(l) = self.load.take() {
            l.close(ep);
        }
        self.claim.give_back();
        self.control.send(ep, &Message::Refused(text))
    }

    fn over(&mut self, now: Time) {
        self.stage = Stage::Over;
        self.claim.end(now);
    }

    /// When this session is to be looked at, if nothing happens before.
    fn next(&self) -> Time {
        if self.stage == Stage::Preparing {
            return Time::ZERO;
        }
        let deadline = self.load.as_ref().filter(|_| self.running).and_then(Load::deadline);
        deadline.into_iter().chain([self.claim.next_look()]).min().unwrap_or(Time::ZERO)
    }
}

impl App for Server {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        for d in
            self.shares.check(now, |conn| SessionProgress { bytes: ep.payload_moved(conn), working: false })
        {
            ep.close(now, d.conn, code::BUSY, &d.words);
        }
        let stop = self.stop.load(Ordering::SeqCst);
        for (conn, s) in &mut self.sessions {
            if let Some(a) = &mut s.arrivals {
                a.look(now, || Some(ep.stats(*conn)?.payload_received));
            }
            if stop {
                ep.close(now, *conn, code::APPLICATION, "the server was stopped");
                continue;
            }
            if let Some(why) = s.claim.look(now, || ep.payload_moved(*conn)) {
                ep.close(now, *conn, code::APPLICATION, why);
                continue;
            }
            let asked = s.stage != Stage::RequestOptions;
            let driven = s.drive(now, *conn, ep);
            if !asked && s.stage != Stage::RequestOptions {
                self.shares.on_first_request(now, *conn, ep.payload_moved(*conn));
            }
            if let Err(text) = driven {
                // By iWARP the other end is not told.
                let (client, peer) = &s.who;
                tracing::warn!(client, peer, error = %text, "measurement aborted");
                let other = text == super::control::OTHER_SERVICE;
                let code = if other { mover::OTHER_SERVICE } else { code::APPLICATION };
                ep.close(now, *conn, code, &text);
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.sessions.iter().map(|(_, s)| s.next()).chain(self.shares.next_timeout()).min()
    }
    fn finished(&self) -> bool {
        self.sessions.is_empty() && (self.left == Some(0) || self.stop.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests;
