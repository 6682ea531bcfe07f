//! `put` and `get`, and what they have in common with `ls`.

mod listing;

pub use listing::ls;

use crate::args::{AdminOptions, CompareOptions, ConnectOptions, Encryption, Get, Output, Put, Wire};
use crate::exit::{self, Code, Failure, Outcome};
use crate::policy_decision::PolicyDecision;
use crate::setup::{self, LocalIdentity};
use crate::show::Display;
use crate::stream::{self, Spool, Stream};
use crate::trust::{self, Trusted};
use crate::url::{Server, Url};
use crate::{govern, out, remedy, show, stop};
use base::{Span, Time};
use endpoint::{App, Connect, Endpoint, IwarpInfo, Remembered, Stats, TransportOptions};
use lhio::clock::{CpuTime, WallTime};
use mover::{ClientApp, GetOptions, Progress, PutOptions, Summary, TransferOptions, Wake};
use serde_json::json;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use transport::crypto::{PeerIdentity, ServerTrust, Suite};

/// How often figures of the connection are taken for the display and the samples.
const SAMPLE_EVERY: Span = Span::from_millis(50);
/// Samples kept at most: when they are full, every second one goes and the interval doubles.
const MAX_SAMPLES: usize = 4_096;

/// What is known of the connection while the transfer runs.
#[derive(Clone, Debug, Default)]
pub struct ConnectionSnapshot {
    /// Counters and estimates, a moment old.
    pub stats: Stats,
    /// Who the server is; `None` until the connection is up.
    pub peer: Option<PeerIdentity>,
    /// What protects packets; `None` until the connection is up.
    pub suite: Option<Suite>,
    /// What is particular to a connection by iWARP.
    pub iwarp: Option<IwarpInfo>,
    /// What the policy made of what this end sends; `None` where there is none.
    pub mapped: Option<PolicyDecision>,
    /// Seconds since the start of the transfer, and payload that had been received, or confirmed by the other end.
    pub samples: Vec<(f64, u64)>,
}

/// Shared between the loop's thread and the display's.
#[derive(Clone, Default)]
pub struct SharedSnapshot(Arc<Mutex<ConnectionSnapshot>>);

impl SharedSnapshot {
    /// The figures at present.
    pub fn get(&self) -> ConnectionSnapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn set(&self, f: impl FnOnce(&mut ConnectionSnapshot)) {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A transfer whose connection is watched.
struct MonitoredTransfer {
    inner: ClientApp,
    board: SharedSnapshot,
    start: Option<Time>,
    next: Time,
    every: Span,
    receives: bool,
    /// What the user wants of the encryption, until it was told what was agreed.
    asked: Option<Encryption>,
}

impl MonitoredTransfer {
    fn sample(&mut self, now: Time, ep: &Endpoint) {
        let Some(conn) = self.inner.connection() else { return };
        let (Some(stats), Some(info)) = (ep.stats(conn), ep.connection(conn)) else { return };
        // It is not up yet. By iWARP it has queue pairs from then on.
        if if info.iwarp.is_some() { info.qps.is_empty() } else { info.peer.is_none() } {
            return;
        }
        self.next = now + self.every;
        let seconds = now.since(*self.start.get_or_insert(now)).as_secs_f64();
        let delivered = if self.receives { stats.payload_received } else { stats.payload_acked };
        let (every, peer, suite) = (&mut self.every, info.peer.clone(), info.suite);
        let iwarp = info.iwarp.clone();
        if let Some(asked) = self.asked.take().filter(|_| iwarp.is_none()) {
            setup::tell_protection(asked, suite);
        }
        // Of what the other end sends, that tells.
        let mapped = if self.receives {
            self.inner.progress().mapped().map(PolicyDecision::told)
        } else {
            PolicyDecision::of(ep, conn)
        };
        self.board.set(|live| {
            (live.stats, live.peer, live.suite, live.iwarp) = (stats, peer, Some(suite), iwarp);
            live.mapped = mapped;
            if live.samples.len() >= MAX_SAMPLES {
                let mut nth = 0;
                live.samples.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
                *every = *every * 2;
            }
            live.samples.push((seconds, delivered));
        });
    }
}

impl App for MonitoredTransfer {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if now >= self.next {
            self.sample(now, ep);
        }
        let open = self.inner.progress().outcome().is_none();
        self.inner.drive(now, ep);
        if open && self.inner.progress().outcome().is_some() {
            self.sample(now, ep);
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        let next = (self.next > Time::ZERO).then_some(self.next);
        match (self.inner.next_timeout(), next) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
    fn finished(&self) -> bool {
        self.inner.finished()
    }
}

/// Everything a client command needs to connect.
struct Session {
    me: LocalIdentity,
    server: Server,
    options: TransportOptions,
    wire: Wire,
    trusted: Trusted,
    /// What it does, for administrators, and what they may do about it.
    governed: (&'static str, AdminOptions),
    /// Whether the user wants it to stop; set when it runs.
    stopped: OnceLock<Arc<AtomicBool>>,
}

impl Session {
    fn new(
        server: &Server,
        options: TransportOptions,
        wire: &Wire,
        t: &ConnectOptions,
        (command, admin_options): (&'static str, &AdminOptions),
    ) -> Outcome<Session> {
        let me = LocalIdentity::with(&t.certificate)?;
        let trusted = trust::establish(&me, server, t, &options)?;
        let governed = (command, admin_options.clone());
        let (server, wire, stopped) = (server.clone(), wire.clone(), OnceLock::new());
        Ok(Session { me, server, options, wire, trusted, governed, stopped })
    }

    /// Runs a transfer to its end.
    fn run(
        &self,
        make: impl FnOnce(Connect, Wake) -> Outcome<ClientApp>,
        receives: bool,
        display: impl FnOnce(&Progress) -> Outcome<Display>,
    ) -> Outcome<(Summary, ConnectionSnapshot)> {
        let bind = setup::client_address(self.trusted.remote, &self.options, false);
        let mut driver = setup::driver(bind, &self.wire, (false, None))?;
        let options = TransportOptions {
            remembered: self.recall_path(),
            ..self.trusted.within_deadline(&self.options)
        };
        let mut endpoint = self.me.endpoint(&self.trusted.credentials, options, None)?;
        let waker = driver.waker();
        let admin = govern::start(self.governed.0, &self.governed.1, &self.me, driver.waker())?;
        let wake: Wake = Arc::new(move || waker.wake());
        let inner = make(self.trusted.connect(), wake.clone())?;
        let progress = inner.progress();
        let board = SharedSnapshot::default();
        let interrupted = progress.clone();
        let stopped = stop::on_signal(move || {
            interrupted.interrupt();
            wake();
        })?;
        self.stopped.get_or_init(|| stopped);
        let display = display(&progress)?;
        let (start, next) = (None, Time::ZERO);
        let asked = Some(self.wire.encryption);
        let mut app = MonitoredTransfer {
            inner,
            board: board.clone(),
            start,
            next,
            every: SAMPLE_EVERY,
            receives,
            asked,
        };
        let ran = driver.run(&mut endpoint, &mut admin.govern(&mut app));
        display.end();
        ran?;
        self.remember_path(endpoint.remembered(self.trusted.remote.ip(), driver.now()));
        let live = board.get();
        if self.trusted.token.is_some() {
            trust::remember(&self.me, &self.server, live.peer.as_ref())?;
        }
        let summary = progress.outcome().ok_or_else(|| {
            Failure::system(
                "cannot tell how the transfer went: it ended without a \
                 result; try again",
            )
        })?;
        Ok((summary, live))
    }

    /// What an earlier transfer found on the path makes this one start sooner; without it, it only starts later.
    fn recall_path(&self) -> Option<Remembered> {
        let peer = self.trusted.remote.ip();
        match self.me.state.known_paths().recall(peer, WallTime::now()) {
            Ok(path) => {
                if let Some(p) = path {
                    tracing::debug!(
                        "the path to {peer} carried {} with {} within the last hour",
                        p.rate,
                        p.rtt
                    );
                }
                path
            }
            Err(e) => {
                tracing::debug!("{e}");
                None
            }
        }
    }

    fn remember_path(&self, found: Option<Remembered>) {
        let (peer, known) = (self.trusted.remote.ip(), self.me.state.known_paths());
        if let Some(Err(e)) = found.map(|path| known.remember(peer, path, WallTime::now())) {
            tracing::debug!("{e}");
        }
    }

    /// What a transfer's end means for the exit code, and in words.
    fn verdict(&self, summary: &Summary, live: &ConnectionSnapshot) -> Outcome<()> {
        let Some(error) = &summary.error else { return Ok(()) };
        let mut failure = exit::transfer_failure(error);
        if let mover::Error::Connection { text, .. } = error {
            let changed = match self.trusted.trust {
                ServerTrust::Pinned(_) if live.suite.is_none() => {
                    trust::explain(&self.me, &self.server, &self.trusted, &self.options)
                }
                _ => None,
            };
            if live.suite.is_none() || failure.code == Code::Untrusted {
                let code = if failure.code == Code::Interrupted { Code::Connect } else { failure.code };
                failure =
                    Failure { code, text: format!("cannot connect to {}: {text}", self.server), ..failure };
            }
            failure = changed.unwrap_or_else(|| remedy::explain(failure, self.trusted.trust_context()));
        }
        Err(failure)
    }
}

fn transfer(c: &CompareOptions, no_sync: bool, out: &Output) -> TransferOptions {
    TransferOptions {
        skip_same: !c.all,
        checksum: c.checksum,
        overwrite: !c.no_overwrite,
        dry_run: c.dry_run,
        durable: !no_sync,
        fresh: c.no_resume,
        direct: false,
        scan: !out.quiet && !out.json,
    }
}

/// `longhaul put`.
pub fn put(a: &Put) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    let options = setup::options(&a.wire, Some(&a.sending), Some(&a.connect_options));
    let input = if stream::is_input(&a.sources, &a.dest.path)? { Some(Spool::of_input()?) } else { None };
    let o = PutOptions {
        sources: input.as_ref().map_or_else(|| a.sources.clone(), |i| vec![i.file()]),
        nameless: input.is_some(),
        dest: a.dest.path.clone(),
        transfer: TransferOptions { direct: a.direct, ..transfer(&a.compare_options, false, &a.output) },
    };
    let session =
        Session::new(&a.dest.server, options, &a.wire, &a.connect_options, ("put", &a.admin_options))?;
    let result = session.run(
        |connect, wake| ClientApp::put(connect, &o, wake).map_err(Failure::usage),
        false,
        |p| Display::start(p, a.output.quiet || a.output.json),
    );
    finish(&session, result, &a.output, (a.compare_options.dry_run, false, false))
}

/// `longhaul get`.
pub fn get(a: &Get) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    let Some(Url { server, .. }) = a.sources.first() else {
        return Err(Failure::usage(
            "cannot fetch: no source is \
             given; try longhaul://HOST/PATH",
        ));
    };
    if let Some(other) = a.sources.iter().find(|u| u.server != *server) {
        let text = format!(
            "cannot fetch from {} and {server} at once: they are different servers; try one at a time",
            other.server
        );
        return Err(Failure::usage(text));
    }
    let request_options = &a.request_options;
    let native = request_options.known_rate.is_some()
        || request_options.intent.qos.is_some()
        || !request_options.peer_sending.is_empty();
    if server.iwarp && native {
        let text = "cannot use --known-rate, --qos, --cc-wish or --cc-refuse with iwarp://: the server's TCP sends, \
                    which takes none of them; try longhaul://, or leave them out";
        return Err(Failure::usage(text));
    }
    let (stream, spool) = stream_to(a)?;
    let mut options = setup::options(&a.wire, None, Some(&a.connect_options));
    options.negotiation = a.request_options.peer_sending.negotiation();
    options.intent =
        endpoint::Intent { qos: endpoint::Qos::Ordinary, ..setup::intent(&a.request_options.intent) };
    let o = GetOptions {
        sources: a.sources.iter().map(|u| u.path.clone()).collect(),
        dest: spool.as_ref().map_or_else(|| a.dest.clone(), Spool::file),
        one_file: stream.is_some(),
        transfer: transfer(&a.compare_options, a.no_sync || stream.is_some(), &a.output),
        sending: mover::Sending {
            rate_limit: a.request_options.limit,
            cc: a.request_options.cc.clone(),
            known_rate: a.request_options.known_rate,
            qos: a.request_options.intent.qos,
            application: a.request_options.intent.app.clone(),
            dscp: a.request_options.intent.dscp,
            tell: true,
        },
    };
    let session = Session::new(server, options, &a.wire, &a.connect_options, ("get", &a.admin_options))?;
    let mut result = session.run(
        |connect, wake| ClientApp::get(connect, &o, wake).map_err(Failure::usage),
        true,
        |p| Display::start(p, a.output.quiet || a.output.json),
    );
    if let (Ok((_, live)), false) = (&mut result, a.output.json || a.request_options.asks()) {
        // Who asked for nothing wants to hear of rules only.
        live.mapped = live.mapped.take().filter(|m| !m.rule.is_empty());
    }
    let taken = stream.as_ref().is_some_and(Stream::takes_output);
    if let (Some(stream), Some(spool)) = (stream, spool) {
        result = result.and_then(|done| {
            if done.0.success() && !a.compare_options.dry_run {
                stream.deliver(spool, &|| session.stopped.get().is_some_and(|s| s.load(Ordering::SeqCst)))?;
            }
            Ok(done)
        });
    }
    finish(&session, result, &a.output, (a.compare_options.dry_run, true, taken))
}

/// Where a `get` goes that makes no file, and where its file is kept until it is whole.
fn stream_to(a: &Get) -> Outcome<(Option<Stream>, Option<Spool>)> {
    let Some(stream) = Stream::of(&a.dest)? else { return Ok((None, None)) };
    if a.sources.len() > 1 {
        return Err(Failure::usage(
            "cannot write several sources to standard output, a pipe or a device: it takes one file; try one source, \
             or a folder as the destination",
        ));
    }
    Ok((Some(stream), Some(Spool::new()?)))
}

/// Says how it went; on standard output only if that is not `taken`.
fn finish(
    session: &Session,
    result: Outcome<(Summary, ConnectionSnapshot)>,
    out: &Output,
    (dry_run, receives, taken): (bool, bool, bool),
) -> Outcome<()> {
    let say = |report: &serde_json::Value| if taken { err_line!("{report}") } else { out::json(report) };
    let (summary, live) = match result {
        Ok(r) => r,
        Err(f) => {
            if out.json {
                say(&json!({ "code": f.code as u8, "error": { "text": f.text } }));
            }
            return Err(f);
        }
    };
    let verdict = session.verdict(&summary, &live);
    if out.json {
        say(&report(&summary, &live, &verdict, receives));
    } else if !out.quiet && moved(&summary) {
        err_lines!("{}", show::summary(&summary, &live, (dry_run, receives)));
        if let Some(m) = &live.mapped {
            err_line!("{m}");
        }
    }
    if !out.json {
        for e in &summary.progress.errors {
            err_line!("error: {e}");
        }
        let unlisted = summary.progress.failed.saturating_sub(summary.progress.errors.len() as u64);
        if unlisted > 0 {
            err_line!("error: {unlisted} more failures");
        }
    }
    verdict.map_err(|f| match f.code {
        Code::Interrupted => Failure::new(f.code, format!("{}\nto resume: {}", f.text, command_line())),
        _ => f,
    })
}

/// Whether there was a transfer of which there is something to say.
fn moved(s: &Summary) -> bool {
    let p = &s.progress;
    matches!(s.error, None | Some(mover::Error::Partial { .. }))
        || p.bytes_confirmed > 0
        || p.files_confirmed > 0
}

/// This command, quoted for a shell.
fn command_line() -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/.-_:=+,@%[]".contains(b);
    let quote = |a: std::ffi::OsString| {
        let bytes = a.into_vec();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !bytes.is_empty() && bytes.iter().all(plain) {
            text
        } else if std::str::from_utf8(&bytes).is_err() || text.chars().any(base::text::is_hidden) {
            // What is shown of it, bash reads as it is.
            format!("$'{}'", mover::path::show(&bytes).replace('\'', "\\'"))
        } else {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
    };
    std::env::args_os().map(quote).collect::<Vec<_>>().join(" ")
}

fn report(
    summary: &Summary,
    live: &ConnectionSnapshot,
    verdict: &Outcome<()>,
    receives: bool,
) -> serde_json::Value {
    let seconds = summary.nanos as f64 / 1e9;
    let cpu = CpuTime::of_process();
    let (s, moved) = (&live.stats, summary.progress.bytes_transferred());
    let mut connection = show::stats_json(s, live.iwarp.as_ref());
    if receives && let Some(m) = &live.mapped {
        // What counts is how the other end sends, as it has told.
        (connection["congestion_control"], connection["congestion_state"]) =
            (json!(m.algorithm), json!(null));
    }
    json!({
        "code": verdict.as_ref().map_or_else(|f| f.code as u8, |()| Code::Ok as u8),
        "message": verdict.as_ref().err().map(|f| f.text.as_str()),
        "transfer": summary,
        "seconds": seconds,
        "bytes_transferred": moved,
        "goodput_bits_per_second": if seconds > 0.0 { moved as f64 * 8.0 / seconds } else { 0.0 },
        "transport": show::transport(live.iwarp.as_ref()),
        "iwarp": show::iwarp_json(live.iwarp.as_ref()),
        "suite": show::suite(live.suite, live.iwarp.as_ref()),
        "connection": connection,
        "policy": live.mapped,
        "cpu": { "user_seconds": cpu.user.as_secs_f64(), "system_seconds": cpu.system.as_secs_f64() },
        "samples": live.samples,
    })
}
