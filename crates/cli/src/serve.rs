//! `longhaul serve`.

use crate::args::Serve;
use crate::exit::{Failure, Outcome};
use crate::govern;
use crate::setup::{self, Me};
use crate::stop;
use crate::units::show_bytes;
use base::Time;
use endpoint::{App, Endpoint};
use lhio::clock::CpuTime;
use mover::{Monitor, ServeOptions, ServerApp, Wake};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Serves until interrupted.
pub fn run(a: &Serve) -> Outcome<()> {
    let me = Me::with(&a.admission.certificate)?;
    let options = setup::options(&a.wire, Some(&a.sending), None);
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
        rate_limit: a.sending.limit,
        cc: a.sending.first_cc().to_owned(),
        ..ServeOptions::new(&a.dir)
    };
    let admin = govern::start("serve", &a.governing, &me, driver.waker())?;
    let inner = ServerApp::new(served, wake.clone()).map_err(|e| Failure::usage(&e))?;
    setup::announce(&me, (listen, iwarp), &a.admission, &gate, &tokens);
    let host = if listen.ip().is_loopback() { listen.ip().to_string() } else { "THIS-HOST".to_owned() };
    let host = if listen.ip().is_loopback() && listen.is_ipv6() { format!("[{host}]") } else { host };
    eprintln!("to send here: longhaul put FILES... longhaul://{host}:{}/", listen.port());
    if let Some(how) = config.iwarp.as_ref() {
        let plain = if how.tls { "" } else { " --plain" };
        eprintln!("or by iWARP: longhaul put{plain} FILES... iwarp://{host}:{}/", listen.port());
    }
    if a.json {
        let print = me.fingerprint().map(|p| p.to_string());
        println!("{}", json!({ "listening": listen.to_string(), "fingerprint": print, "tokens": tokens }));
    }
    let mut endpoint = me.endpoint(&me.credentials, options, Some(config))?;
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
        println!("{}", json!({ "ended": true, "cpu": cpu }));
    }
    eprintln!("stopped; unfinished transfers go on when their commands are repeated");
    Ok(())
}

/// The server, watched: sessions are logged as they come and go.
struct Served {
    inner: ServerApp,
    monitor: Monitor,
    /// Of each session: client, operation, files and bytes done, notes told.
    seen: BTreeMap<u64, (String, &'static str, u64, u64, usize)>,
    next: Time,
}

/// How often sessions are looked at for the log.
const LOOK_EVERY: base::Span = base::Span::from_millis(500);

impl Served {
    fn log(&mut self) {
        let sessions = self.monitor.sessions();
        for s in &sessions {
            let p = &s.progress;
            let entry = (s.remote.clone(), s.operation, p.files_done, p.bytes_done, p.notes.len());
            let old = self.seen.insert(s.conn, entry);
            for note in p.notes.iter().skip(old.as_ref().map_or(0, |o| o.4)) {
                tracing::info!(client = s.remote, "{note}");
            }
            if old.is_none_or(|old| old.1 != s.operation) && !s.operation.is_empty() {
                tracing::info!(client = s.remote, operation = s.operation, "a session began");
            }
        }
        self.seen.retain(|conn, (remote, operation, files, bytes, _)| {
            let open = sessions.iter().any(|s| s.conn == *conn);
            if !open {
                let bytes = show_bytes(*bytes);
                tracing::info!(client = remote, operation, files, bytes, "a session ended");
            }
            open
        });
    }
}

impl App for Served {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        self.inner.drive(now, ep);
        if now >= self.next {
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
