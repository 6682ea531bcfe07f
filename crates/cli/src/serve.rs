//! `longhaul serve`.

use crate::args::Serve;
use crate::exit::{Failure, Outcome};
use crate::govern;
use crate::setup::{self, Me, Serving};
use crate::{out, stop};
use base::Time;
use endpoint::{App, Endpoint};
use lhio::budget::memory_for_clients;
use lhio::clock::CpuTime;
use mover::{Monitor, ServeOptions, ServerApp, Snapshot, Wake, Who};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Queue pairs of a connection at most: a transfer has one, and another where the client chooses how the server sends.
const QUEUE_PAIRS: u32 = 8;

/// Serves until interrupted.
pub fn run(a: &Serve) -> Outcome<()> {
    let me = Me::with(&a.admission.certificate)?;
    let mut options = setup::options(&a.wire, Some(&a.sending), None);
    options.max_qps = QUEUE_PAIRS;
    let (gate, mut config, tokens) = me.admission(&a.admission)?;
    config.iwarp = a.iwarp.server(a.admission.allow_any_key).map_err(Failure::usage)?;
    let iwarp = config.iwarp.is_some();
    let mut driver = setup::driver(a.listen, &a.wire, (true, a.iwarp.streams()))?;
    let listen = driver.local_addr();
    let waker = driver.waker();
    let wake: Wake = Arc::new(move || waker.wake());
    let served = ServeOptions {
        allow_read: !a.write_only,
        allow_write: !a.read_only,
        allow_overwrite: !a.no_overwrite,
        durable: !a.no_sync,
        direct: a.direct,
        memory: memory_for_clients(a.memory.memory),
        descriptors: lhio::descriptors::for_files(),
        rate_limit: a.sending.limit,
        cc: a.sending.first_cc().to_owned(),
        ..ServeOptions::new(&a.dir)
    };
    let admin = govern::start("serve", &a.governing, &me, driver.waker())?;
    let inner = ServerApp::new(served, wake.clone()).map_err(|e| Failure::usage(&e))?;
    setup::announce(&me, (listen, iwarp), &a.admission, &gate, &tokens);
    let host = if listen.ip().is_loopback() { listen.ip().to_string() } else { "THIS-HOST".to_owned() };
    let host = if listen.ip().is_loopback() && listen.is_ipv6() { format!("[{host}]") } else { host };
    err_line!("to send here: longhaul put FILES... longhaul://{host}:{}/", listen.port());
    if let Some(how) = config.iwarp.as_ref() {
        let plain = if how.tls { "" } else { " --plain" };
        err_line!("or by iWARP: longhaul put{plain} FILES... iwarp://{host}:{}/", listen.port());
    }
    if a.json {
        let print = me.fingerprint().map(|p| p.to_string());
        let tokens: Vec<&str> = tokens.iter().map(|t| t.as_str()).collect();
        out::json(&json!({ "listening": listen.to_string(), "fingerprint": print, "tokens": tokens }));
    }
    let mut endpoint =
        me.endpoint(&me.credentials, options, Some(Serving { config, role: "serve", listen }))?;
    endpoint.set_gate(Some(Box::new(gate)));
    let monitor = inner.monitor();
    let stopping = monitor.clone();
    stop::on_signal(move || {
        stopping.stop();
        wake();
    })?;
    let mut app = Served { inner, monitor, seen: BTreeMap::new(), next: Time::ZERO };
    driver.run(&mut endpoint, &mut admin.govern(&mut app))?;
    if a.json {
        let cpu = CpuTime::of_process();
        let cpu =
            json!({ "user_seconds": cpu.user.as_secs_f64(), "system_seconds": cpu.system.as_secs_f64() });
        out::json(&json!({ "ended": true, "cpu": cpu }));
    }
    err_line!("stopped; unfinished transfers go on when their commands are repeated");
    Ok(())
}

/// The server, watched: sessions are logged as they come and go.
struct Served {
    inner: ServerApp,
    monitor: Monitor,
    /// Of each session: its operation, and how many of its notes and errors were told.
    seen: BTreeMap<u64, (&'static str, usize, usize)>,
    next: Time,
}

/// How often sessions are looked at for the log.
const LOOK_EVERY: base::Span = base::Span::from_millis(500);

impl Served {
    fn log(&mut self) {
        for s in self.monitor.sessions() {
            self.told(s.conn, &s.who, &s.progress);
        }
        for e in self.monitor.take_ended() {
            self.told(e.conn, &e.who, &e.progress);
            self.seen.remove(&e.conn);
            let (files, bytes, failed, status) = (e.files, e.bytes, e.failed, &e.status);
            let (client, peer) = (&e.who.remote, &e.who.peer);
            let operation = e.who.operation;
            tracing::info!(client, peer, operation, files, bytes, failed, status, "a session ended");
        }
    }
    /// What is new of a session.
    fn told(&mut self, conn: u64, who: &Who, p: &Snapshot) {
        let (client, peer, operation) = (&who.remote, &who.peer, who.operation);
        let (before, notes, errors) = self.seen.get(&conn).copied().unwrap_or_default();
        for note in p.notes.iter().skip(notes) {
            tracing::info!(client, peer, "{note}");
        }
        // The client may not be told all of it.
        for e in p.errors.iter().skip(errors) {
            tracing::info!(client, peer, "{e}");
        }
        if before != operation {
            tracing::info!(client, peer, operation, "a session began");
        }
        self.seen.insert(conn, (operation, p.notes.len(), p.errors.len()));
    }
}

impl App for Served {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        self.inner.drive(now, ep);
        // The last ones as well.
        if now >= self.next || self.inner.finished() {
            self.next = now + LOOK_EVERY;
            self.log();
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout()
    }
    fn finished(&self) -> bool {
        self.inner.finished()
    }
}
