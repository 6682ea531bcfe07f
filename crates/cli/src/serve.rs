//! `longhaul serve`.

use crate::access_log::AccessLog;
use crate::args::{CopyTo, Serve};
use crate::copy_jobs::Runner;
use crate::exit::{Failure, Outcome};
use crate::gate::Gate;
use crate::govern;
use crate::setup::{self, LocalIdentity, Serving};
use crate::{out, stop};
use base::Time;
use endpoint::{App, ConnId, Endpoint, TransportOptions};
use lhio::budget::memory_for_clients;
use lhio::clock::CpuTime;
use mover::{CopyLimits, ServeOptions, ServerApp, Wake};
use observe::{Event, Reader, SessionEnd, What};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Queue pairs of a connection at most: a transfer has one, and another where the client chooses how the server sends.
const QUEUE_PAIRS: u32 = 8;

/// Serves until interrupted.
pub fn run(a: &Serve) -> Outcome<()> {
    let me = LocalIdentity::with(&a.admission.certificate)?;
    let mut options = setup::options(&a.wire, Some(&a.sending), None);
    options.max_qps = QUEUE_PAIRS;
    options.rate_cap = a.bandwidth.now(options.rate_cap);
    let access_log = AccessLog::open(&a.logging)?;
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
        allow_delete: a.allow_delete,
        durable: !a.no_sync,
        direct: a.direct,
        allow_privileged: a.allow_privileged,
        memory: memory_for_clients(a.memory.memory),
        descriptors: lhio::descriptors::for_files(),
        rate_limit: options.rate_cap,
        cc: a.sending.first_cc().to_owned(),
        ..ServeOptions::new(&a.dir)
    };
    let admin = govern::start("serve", &a.admin_options, &me, driver.waker())?;
    let inner = ServerApp::new(served, wake.clone()).map_err(|e| Failure::usage(&e))?;
    let inner = inner.limited(a.bandwidth.limiter());
    let inner = arranging(inner, &gate, a, (&options, listen.ip(), me.state.path()));
    setup::announce(&me, (listen, iwarp), &a.admission, &gate, &tokens);
    let host = if listen.ip().is_loopback() { listen.ip().to_string() } else { "THIS-HOST".to_owned() };
    let host = if listen.ip().is_loopback() && listen.is_ipv6() { format!("[{host}]") } else { host };
    err_line!("to send files: longhaul put FILES... longhaul://{host}:{}/", listen.port());
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
    endpoint.set_client_admission(Some(Box::new(gate)));
    let stopping = inner.monitor();
    stop::on_signal(move || {
        stopping.stop();
        wake();
    })?;
    let mut app = LoggedServer { inner, events: None, access_log, who: BTreeMap::new() };
    driver.run(&mut endpoint, &mut admin.govern(&mut app))?;
    if a.json {
        let cpu = CpuTime::of_process();
        let cpu =
            json!({ "user_seconds": cpu.user.as_secs_f64(), "system_seconds": cpu.system.as_secs_f64() });
        out::json(&json!({ "event": "end", "cpu": cpu }));
    }
    err_line!("stopped; repeat the clients' commands to resume unfinished transfers");
    Ok(())
}

/// The server, with its part in transfers between servers, as far as it is to have one.
fn arranging(
    inner: ServerApp,
    gate: &Gate,
    a: &Serve,
    (options, listen, state): (&TransportOptions, IpAddr, &Path),
) -> ServerApp {
    let inner = match gate.invitations() {
        Some(i) => inner.with_invitations(i),
        None => inner,
    };
    let Some(to) = a.allow_copy else { return inner };
    let near = to == CopyTo::Near || listen.is_loopback();
    let runner = Runner {
        wire: a.wire.clone(),
        options: options.clone(),
        bandwidth: a.bandwidth.clone(),
        admin: a.admin_options.clone(),
        state: state.to_owned(),
    };
    inner.with_copies(Box::new(runner), CopyLimits { near, ..CopyLimits::default() })
}

/// The server, with what happens to its sessions in the logs.
struct LoggedServer {
    inner: ServerApp,
    events: Option<Reader>,
    access_log: Option<AccessLog>,
    /// Of each connection: its client and key.
    who: BTreeMap<u64, (String, String)>,
}

impl LoggedServer {
    /// Reads what happened since the last time.
    fn read(&mut self, ep: &mut Endpoint) {
        let mut reader = match self.events.take() {
            Some(r) => r,
            None => ep.log().subscribe(),
        };
        if ep.log().has_news(&reader) {
            let (missed, events) = ep.log().read(&mut reader);
            let events: Vec<Event> = events.cloned().collect();
            if missed > 0 {
                tracing::warn!("{missed} events came faster than they could be logged, and are lost");
            }
            events.iter().for_each(|e| self.log(e, ep));
        }
        self.events = Some(reader);
    }

    fn log(&mut self, e: &Event, ep: &Endpoint) {
        let known = |conn: u64| {
            let info = ep.connection(ConnId(conn))?;
            let key = info.peer.as_ref().map_or_else(|| "no key".to_owned(), ToString::to_string);
            Some((info.remote.to_string(), key))
        };
        if let What::SessionEnded(end) = &e.what {
            self.who.remove(&e.connection);
            if let Some(log) = &mut self.access_log {
                log.write(end);
            }
            let SessionEnd { client, key, operation, path, files, bytes, failed, status, .. } = end;
            return tracing::info!(
                client,
                key,
                operation,
                path,
                files,
                bytes,
                failed,
                status,
                "session ended"
            );
        }
        let unknown = || ("unknown".to_owned(), "unknown".to_owned());
        match &e.what {
            What::SessionStarted { operation } => {
                let (client, key) = self
                    .who
                    .entry(e.connection)
                    .or_insert_with(|| known(e.connection).unwrap_or_else(unknown));
                tracing::info!(client, key, operation, "session started");
            }
            // The client may not be told all of it.
            What::SessionNote { text } | What::FileFailed { text } => {
                let (client, key) = self
                    .who
                    .entry(e.connection)
                    .or_insert_with(|| known(e.connection).unwrap_or_else(unknown));
                tracing::info!(client, key, "{text}");
            }
            _ => {}
        }
    }
}

impl App for LoggedServer {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if self.events.is_none() {
            self.read(ep); // subscribes
        }
        self.inner.drive(now, ep);
        self.read(ep);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout()
    }
    fn finished(&self) -> bool {
        self.inner.finished()
    }
}
