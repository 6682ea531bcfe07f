//! `longhaul perf server`.

use super::arrivals::Arrivals;
use super::control::Control;
use super::load::Load;
use super::proto::Message;
use crate::args::PerfServer;
use crate::exit::{Failure, Outcome};
use crate::govern;
use crate::setup::{self, Me};
use crate::stop;
use base::Time;
use endpoint::{App, ConnId, Endpoint, Event};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::error::code;
use verbs::{CqId, Status};

/// Measurements at a time.
const MAX_SESSIONS: usize = 16;

/// Answers until interrupted.
pub fn run(a: &PerfServer) -> Outcome<()> {
    let me = Me::with(&a.admission.certificate)?;
    let options = setup::options(&a.wire, Some(&a.sending), None);
    let (gate, mut config, tokens) = me.admission(&a.admission)?;
    config.iwarp = a.iwarp.server(a.admission.allow_any_key).map_err(Failure::usage)?;
    let iwarp = config.iwarp.is_some();
    let mut driver = setup::driven(a.listen, &a.wire, &a.driving, (true, a.iwarp.streams()))?;
    let (listen, waker) = (driver.local_addr(), driver.waker());
    // Before it says that it listens: who hears that may end it.
    let stop = stop::wakes(&waker)?;
    setup::announce(&me, (listen, iwarp), &a.admission, &gate, &tokens);
    if a.json {
        let print = me.fingerprint().map(|p| p.to_string());
        println!("{}", json!({ "listening": listen.to_string(), "fingerprint": print, "tokens": tokens }));
    }
    let mut endpoint = me.endpoint(&me.credentials, options, Some(config))?;
    endpoint.set_gate(Some(Box::new(gate)));
    let admin = govern::start("perf server", &a.governing, &me, waker)?;
    let mut app = Server { sessions: Vec::new(), left: a.count, arrivals: a.arrivals, stop };
    Ok(driver.run(&mut endpoint, &mut admin.govern(&mut app))?)
}

struct Session {
    cq: CqId,
    control: Control,
    load: Option<Load>,
    /// It is the initiator and has not told its figures yet.
    running: bool,
    arrivals: Option<Arrivals>,
}

struct Server {
    /// Gone through in each turn, and by names only where one ends.
    sessions: Vec<(ConnId, Session)>,
    left: Option<u64>,
    /// Whether to print what arrived when.
    arrivals: bool,
    stop: Arc<AtomicBool>,
}

impl Server {
    #[inline(never)]
    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Incoming { conn } => {
                let Some(info) = ep.connection(conn).cloned() else { return };
                if self.sessions.len() >= MAX_SESSIONS || self.left == Some(0) {
                    return ep.close(
                        now,
                        conn,
                        code::BUSY,
                        "other measurements are running; try again later",
                    );
                }
                match Control::new(ep, &info) {
                    Ok(control) => {
                        tracing::info!(client = %info.remote, "a measurement begins");
                        let arrivals = self.arrivals.then(|| Arrivals::new(now));
                        let s = Session { cq: info.cq, control, load: None, running: false, arrivals };
                        self.sessions.push((conn, s));
                    }
                    Err(text) => ep.close(now, conn, code::INTERNAL, &text),
                }
            }
            Event::Closed { conn, reason } => {
                if let Some(at) = self.sessions.iter().position(|(c, _)| *c == conn) {
                    let (_, s) = self.sessions.remove(at);
                    tracing::info!(%reason, "a measurement ended");
                    s.control.close(ep);
                    if let Some(l) = s.load {
                        if let Some(a) = s.arrivals {
                            println!("{}", a.report());
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
            if wc.status == Status::FlushError {
                // The connection ends: why is told by its own event.
                continue;
            }
            if wc.status != Status::Success {
                return Err(format!("a work request ended with {:?}", wc.status));
            }
            if wc.qp == self.control.qp() {
                if let Some(m) = self.control.completion(ep, &wc)? {
                    self.message(now, conn, ep, m)?;
                }
            } else if let Some(load) = &mut self.load {
                load.completion(now, ep, &wc)?;
            }
        }
        if let Some(load) = &mut self.load {
            load.look(now, ep)?;
        }
        let Some(load) = self.load.as_mut().filter(|_| self.running) else { return Ok(()) };
        load.post(now, ep)?;
        if load.is_over() {
            self.running = false;
            let each = load.each();
            let figures = load.figures(ep, conn, &each);
            self.control.send(ep, &Message::Finish(each, figures))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn message(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint, m: Message) -> Result<(), String> {
        match (m, &mut self.load) {
            (Message::Ask(plan), None) => {
                if let Err(text) = plan.check().and_then(|()| plan.check_keys()) {
                    return self.control.send(ep, &Message::Refused(text));
                }
                let Some(info) = ep.connection(conn).cloned() else { return Ok(()) };
                let (reverse, latency, rkeys) = (plan.reverse, plan.latency, plan.rkeys.clone());
                let mut load = match Load::new(ep, &info, plan, reverse) {
                    Ok(l) => l,
                    Err(text) => return self.control.send(ep, &Message::Refused(text)),
                };
                self.control.send(ep, &Message::Ready(load.rkeys()))?;
                if !reverse {
                    if latency {
                        load.set_keys(now, ep, &rkeys)?;
                    }
                } else {
                    load.start(ep, &rkeys)?;
                    self.running = true;
                }
                self.load = Some(load);
                Ok(())
            }
            (Message::Finish(each, _), Some(load)) => {
                let figures = load.figures(ep, conn, &each);
                self.control.send(ep, &Message::Done(figures))
            }
            _ => Err("the client sent a message out of turn".to_owned()),
        }
    }
}

impl App for Server {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        let stop = self.stop.load(Ordering::SeqCst);
        for (conn, s) in &mut self.sessions {
            if let Some(a) = &mut s.arrivals {
                a.look(now, || Some(ep.stats(*conn)?.payload_received));
            }
            if stop {
                ep.close(now, *conn, code::APPLICATION, "the server was stopped");
            } else if let Err(text) = s.drive(now, *conn, ep) {
                // By iWARP the other end is not told.
                tracing::warn!(error = %text, "a measurement is given up");
                ep.close(now, *conn, code::APPLICATION, &text);
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.sessions.iter().filter(|(_, s)| s.running).filter_map(|(_, s)| s.load.as_ref()?.deadline()).min()
    }
    fn finished(&self) -> bool {
        self.sessions.is_empty() && (self.left == Some(0) || self.stop.load(Ordering::SeqCst))
    }
}
