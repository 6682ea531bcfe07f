//! `put` and `get`, and what they have in common with `ls`.

mod listing;
mod remote;

pub use listing::ls;
pub use remote::{checksum, du, mkdir, mv, rm, stat};

use crate::args::{
    AdminOptions, CompareOptions, ConnectOptions, Encryption, Get, Output, Put, SavingOptions, Wire,
};
use crate::exit::{self, Code, Failure, Outcome};
use crate::policy_decision::PolicyDecision;
use crate::setup::{self, LocalIdentity};
use crate::show::{Display, ShowAs, WriteJson};
use crate::ssh::{self, Location, RemoteOperation, RemoteSession, SshOptions};
use crate::stream::{self, Input, Spool, Stream};
use crate::trust::{self, Trusted};
use crate::url::Server;
use crate::{govern, out, remedy, show, stop};
use base::{Span, Time};
use endpoint::{App, Connect, Endpoint, IwarpInfo, Remembered, Stats, TransportOptions};
use lhio::clock::{CpuTime, WallTime};
use mover::{ClientApp, GetOptions, Placement, Progress, PutOptions, Summary, TransferOptions, Wake};
use serde_json::json;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
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
    /// How it is reached: where ssh starts it for this transfer, that is found out on the way.
    reached: Reached,
    /// What it does, for administrators, and what they may do about it.
    governed: (&'static str, AdminOptions),
    /// Whether the user wants it to stop; set when it runs.
    stopped: OnceLock<Arc<AtomicBool>>,
}

/// How the other end is reached.
enum Reached {
    /// It was running.
    Server(Box<Trusted>),
    /// ssh has started it.
    Ssh(Box<RemoteSession>),
}

/// What a command says of the connection.
struct Connection<'a> {
    wire: &'a Wire,
    connect_options: &'a ConnectOptions,
    over: &'a SshOptions,
    options: TransportOptions,
    governing: &'a AdminOptions,
    /// Folders of a far end over ssh that are used beside.
    beside: Vec<Vec<u8>>,
}

impl Session {
    /// Connects to what the places name, which are of one machine; their paths there, and behind them those of the folders beside.
    fn new(
        operation: RemoteOperation,
        places: &[&Location],
        c: Connection<'_>,
    ) -> Outcome<(Session, Vec<Vec<u8>>)> {
        let me = LocalIdentity::with(&c.connect_options.certificate)?;
        let (reached, server, paths) = match places.first() {
            None => {
                return Err(Failure::usage(
                    "cannot fetch: no source is given; try longhaul://HOST/PATH or HOST:PATH",
                ));
            }
            Some(Location::Url(first)) => {
                c.over.check_unused().map_err(Failure::usage)?;
                let server = first.server.clone();
                let trusted = trust::establish(&me, &server, c.connect_options, &c.options)?;
                let paths = places.iter().map(|p| p.path().to_vec()).collect();
                (Reached::Server(Box::new(trusted)), server, paths)
            }
            Some(Location::Ssh(remote)) => {
                let paths = places.iter().map(|p| p.path().to_vec()).collect();
                let (wire, over, connect_options) = (c.wire, c.over, c.connect_options);
                let asked = ssh::RemoteRequest {
                    operation,
                    remote,
                    paths,
                    beside: c.beside,
                    over,
                    wire,
                    connect_options,
                };
                let link = RemoteSession::open(&asked, &c.options)?;
                let (name, port) = link.shown();
                let paths = link.paths().to_vec();
                (Reached::Ssh(Box::new(link)), Server { name, port, iwarp: false }, paths)
            }
        };
        let (options, wire, stopped) = (c.options, c.wire.clone(), OnceLock::new());
        let governed = (operation.name(), c.governing.clone());
        Ok((Session { me, server, options, wire, reached, governed, stopped }, paths))
    }

    /// Runs a transfer to its end.
    fn run(
        &self,
        mut make: impl FnMut(Connect, Wake) -> Outcome<ClientApp>,
        receives: bool,
        mut display: impl FnMut(&Progress) -> Outcome<Display>,
    ) -> Outcome<(Summary, ConnectionSnapshot)> {
        let mut attempt = |trusted: &Trusted| self.attempt(trusted, &mut make, receives, &mut display);
        match &self.reached {
            Reached::Server(trusted) => attempt(trusted),
            Reached::Ssh(link) => {
                link.connect_by_udp_or_ssh(attempt, |(summary, live): &(Summary, ConnectionSnapshot)| {
                    live.suite.is_none() && matches!(summary.error, Some(mover::Error::Connection { .. }))
                })
            }
        }
    }

    /// Runs it over one connection.
    fn attempt(
        &self,
        trusted: &Trusted,
        make: &mut dyn FnMut(Connect, Wake) -> Outcome<ClientApp>,
        receives: bool,
        display: &mut dyn FnMut(&Progress) -> Outcome<Display>,
    ) -> Outcome<(Summary, ConnectionSnapshot)> {
        let bind = setup::client_address(trusted.remote, &self.options, false);
        let mut driver = setup::driver(bind, &self.wire, (false, None))?;
        let remembered = self.recall_path(trusted.remote.ip());
        let options = TransportOptions { remembered, ..trusted.within_deadline(&self.options) };
        let mut endpoint = self.me.endpoint(&trusted.credentials, options, None)?;
        let waker = driver.waker();
        let admin = govern::start(self.governed.0, &self.governed.1, &self.me, driver.waker())?;
        let wake: Wake = Arc::new(move || waker.wake());
        let inner = make(trusted.connect(), wake.clone())?;
        let progress = inner.progress();
        let board = SharedSnapshot::default();
        let interrupted = progress.clone();
        let stop = Arc::new(move || {
            interrupted.interrupt();
            wake();
        });
        if let Reached::Ssh(link) = &self.reached {
            let stop = stop.clone();
            link.on_end(move || stop());
        }
        let stopped = stop::on_signal(move || stop())?;
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
        self.remember_path(trusted.remote.ip(), endpoint.remembered(trusted.remote.ip(), driver.now()));
        let live = board.get();
        if trusted.token.is_some() {
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

    /// Whether the user wanted it to stop.
    fn by_user(&self) -> bool {
        self.stopped.get().is_some_and(|s| s.load(Ordering::SeqCst))
    }

    /// What an earlier transfer found on the path makes this one start sooner; without it, it only starts later.
    fn recall_path(&self, peer: IpAddr) -> Option<Remembered> {
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

    fn remember_path(&self, peer: IpAddr, found: Option<Remembered>) {
        let known = self.me.state.known_paths();
        if let Some(Err(e)) = found.map(|path| known.remember(peer, path, WallTime::now())) {
            tracing::debug!("{e}");
        }
    }

    /// What a transfer's end means for the exit code, and in words.
    fn verdict(&self, summary: &Summary, live: &ConnectionSnapshot) -> Outcome<()> {
        let Some(error) = &summary.error else { return Ok(()) };
        let mut failure = exit::transfer_failure(error);
        let trusted = match &self.reached {
            Reached::Server(trusted) => trusted,
            Reached::Ssh(link) => {
                return Err(link.explain(failure, self.by_user(), live.suite.is_some()));
            }
        };
        if let mover::Error::Connection { text, .. } = error {
            let changed = match trusted.trust {
                ServerTrust::Pinned(_) if live.suite.is_none() => {
                    trust::explain(&self.me, &self.server, trusted, &self.options)
                }
                _ => None,
            };
            if live.suite.is_none() || failure.code == Code::Untrusted {
                let code = if failure.code == Code::Interrupted { Code::Connect } else { failure.code };
                failure =
                    Failure { code, text: format!("cannot connect to {}: {text}", self.server), ..failure };
            }
            failure = changed.unwrap_or_else(|| remedy::explain(failure, trusted.trust_context()));
        }
        Err(failure)
    }
}

fn transfer(
    (c, placement): (&CompareOptions, &Placement),
    saving: SavingOptions,
    no_sync: bool,
    out: &Output,
) -> TransferOptions {
    TransferOptions {
        skip_same: !c.all,
        checksum: c.checksum,
        overwrite: !c.no_overwrite,
        dry_run: c.dry_run,
        durable: !no_sync,
        fresh: c.no_resume,
        direct: false,
        data_reduction: saving.data_reduction(),
        keep: c.keep.keep().with(placement.keep()),
        scan: !out.quiet,
    }
}

/// How progress is shown; on standard output only if that is not `taken`.
fn show_as(out: &Output, taken: bool) -> ShowAs {
    match (out.quiet, out.json) {
        (true, _) => ShowAs::Nothing,
        (false, false) => ShowAs::Text,
        (false, true) => ShowAs::Json(json_writer(taken)),
    }
}

fn json_writer(taken: bool) -> WriteJson {
    if taken { |event| err_line!("{event}") } else { |event| out::json(event) }
}

/// `longhaul put`.
pub fn put(a: &Put) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    let mut options = setup::options(&a.wire, Some(&a.sending), Some(&a.connect_options));
    options.rate_cap = a.bandwidth.now(options.rate_cap);
    let mut select = a.select_options.select()?;
    let input = if stream::is_input(&a.sources, a.dest.path())? { Some(Input::open()?) } else { None };
    let (wire, connect_options, over, governing) = (&a.wire, &a.connect_options, &a.over, &a.admin_options);
    let beside = ssh::beside(&a.dest, &select.placement);
    let connection = Connection { wire, connect_options, over, options, governing, beside };
    let (session, mut paths) = Session::new(RemoteOperation::Put, &[&a.dest], connection)?;
    ssh::set_beside(&mut select.placement, paths.split_off(1));
    let o = PutOptions {
        sources: input.as_ref().map_or_else(|| a.sources.clone(), |i| vec![i.file()]),
        nameless: input.is_some(),
        dest: paths.pop().unwrap_or_default(),
        transfer: TransferOptions {
            direct: a.direct,
            ..transfer((&a.compare_options, &select.placement), a.saving, false, &a.output)
        },
    };
    let result = session.run(
        |connect, wake| {
            let app = ClientApp::put(connect, &o, wake).and_then(|app| app.selecting(select.clone()));
            let app = app.and_then(|app| app.limited(a.bandwidth.limiter()));
            app.map_err(Failure::usage)
        },
        false,
        |p| Display::start(p, show_as(&a.output, false)),
    );
    let result = finish(&session, result, &a.output, (a.compare_options.dry_run, false, false));
    result.map_err(|f| match (f.code, input) {
        (Code::Interrupted, Some(input)) => {
            let first = f.text.split(RESUME).next().unwrap_or_default().to_owned();
            Failure { text: format!("{first}\n{}", input.how_to_resume(&command_line())), ..f }
        }
        _ => f,
    })
}

/// What a `get` cannot fetch from, or to.
fn check_places(a: &Get) -> Outcome<()> {
    let Some(first) = a.sources.first() else {
        return Err(Failure::usage(
            "cannot fetch: no source is given; try longhaul://HOST/PATH or HOST:PATH",
        ));
    };
    if let Some(other) = a.sources.iter().find(|u| !u.is_beside(first)) {
        let text = format!(
            "cannot fetch from {} and {} at once: they are different servers; try one at a time",
            other.at(),
            first.at()
        );
        return Err(Failure::usage(text));
    }
    if ssh::looks_remote(a.dest.as_os_str()) && !a.dest.exists() {
        let shown = mover::path::show(a.dest.as_os_str().as_bytes());
        let text = format!(
            "cannot fetch to {shown}: it is on another machine; try a place on this one, or ./{shown} for a name with a colon"
        );
        return Err(Failure::usage(text));
    }
    let asking = &a.request_options;
    let native =
        asking.known_rate.is_some() || asking.intent.qos.is_some() || !asking.peer_sending.is_empty();
    if matches!(first, Location::Url(u) if u.server.iwarp) && native {
        let text = "cannot use --known-rate, --qos, --peer-cc or --peer-cc-refuse with iwarp://: the server's TCP sends, \
                    which takes none of them; try longhaul://, or leave them out";
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// `longhaul get`.
pub fn get(a: &Get) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    check_places(a)?;
    let select = a.select_options.select()?;
    let (stream, spool) = stream_to(a)?;
    let mut options = setup::options(&a.wire, None, Some(&a.connect_options));
    options.negotiation = a.request_options.peer_sending.negotiation();
    options.intent =
        endpoint::Intent { qos: endpoint::Qos::Ordinary, ..setup::intent(&a.request_options.intent) };
    let (wire, connect_options, over, governing) = (&a.wire, &a.connect_options, &a.over, &a.admin_options);
    let connection = Connection { wire, connect_options, over, options, governing, beside: Vec::new() };
    let (session, sources) =
        Session::new(RemoteOperation::Get, &a.sources.iter().collect::<Vec<_>>(), connection)?;
    let o = GetOptions {
        sources,
        dest: spool.as_ref().map_or_else(|| a.dest.clone(), Spool::file),
        one_file: stream.is_some(),
        transfer: transfer(
            (&a.compare_options, &select.placement),
            a.saving,
            a.no_sync || stream.is_some(),
            &a.output,
        ),
        sending: mover::Sending {
            rate_limit: a.bandwidth.now(a.request_options.limit),
            cc: a.request_options.cc.clone(),
            known_rate: a.request_options.known_rate,
            qos: a.request_options.intent.qos,
            application: a.request_options.intent.app.clone(),
            dscp: a.request_options.intent.dscp,
            tell: true,
        },
    };
    let through_ssh = GetOptions { sending: by_tcp(&o.sending), ..o.clone() };
    let mut result = session.run(
        |connect, wake| {
            let through = connect.iwarp.is_some() && matches!(session.reached, Reached::Ssh(_));
            let o = if through { &through_ssh } else { &o };
            let app = ClientApp::get(connect, o, wake).and_then(|app| app.selecting(select.clone()));
            let app = app.and_then(|app| app.limited(a.bandwidth.limiter()));
            app.map_err(Failure::usage)
        },
        true,
        |p| Display::start(p, show_as(&a.output, stream.as_ref().is_some_and(Stream::takes_output))),
    );
    if let (Ok((_, live)), false) = (&mut result, a.output.json || a.request_options.asks()) {
        // Who asked for nothing wants to hear of rules only.
        live.mapped = live.mapped.take().filter(|m| !m.rule.is_empty());
    }
    let taken = stream.as_ref().is_some_and(Stream::takes_output);
    if let (Some(stream), Some(spool)) = (stream, spool) {
        result = result.and_then(|done| {
            if done.0.success() && !a.compare_options.dry_run {
                stream.deliver(spool, &|| session.by_user())?;
            }
            Ok(done)
        });
    }
    finish(&session, result, &a.output, (a.compare_options.dry_run, true, taken))
}

/// Which preferences mean something where the far end's TCP sends into ssh.
fn by_tcp(s: &mover::Sending) -> mover::Sending {
    mover::Sending { rate_limit: s.rate_limit, tell: s.tell, ..mover::Sending::default() }
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

/// Stands between what happened to an interrupted transfer and how to go on with it.
const RESUME: &str = "\nto resume: ";

/// Says how it went; on standard output only if that is not `taken`.
fn finish(
    session: &Session,
    result: Outcome<(Summary, ConnectionSnapshot)>,
    out: &Output,
    (dry_run, receives, taken): (bool, bool, bool),
) -> Outcome<()> {
    let say = json_writer(taken);
    let (summary, live) = match result {
        Ok(r) => r,
        Err(f) => {
            if out.json {
                say(&json!({
                    "event": "end", "schema": show::SCHEMA, "code": f.code as u8, "error": { "text": f.text },
                }));
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
        Code::Interrupted => Failure::new(f.code, format!("{}{RESUME}{}", f.text, command_line())),
        _ => f,
    })
}

/// Whether there was a transfer of which there is something to say.
fn moved(s: &Summary) -> bool {
    let p = &s.progress;
    matches!(s.error, None | Some(mover::Error::Partial { .. } | mover::Error::DeleteLimit { .. }))
        || p.bytes_confirmed > 0
        || p.files_confirmed > 0
}

/// This command, quoted for a shell.
fn command_line() -> String {
    std::env::args_os().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A word, quoted for a shell.
pub fn quoted(word: std::ffi::OsString) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/.-_:=+,@%[]".contains(b);
    let bytes = word.into_vec();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        text
    } else if std::str::from_utf8(&bytes).is_err() || text.chars().any(base::text::is_hidden) {
        // What is shown of it, bash reads as it is.
        format!("$'{}'", mover::path::show(&bytes).replace('\'', "\\'"))
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
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
        "event": "end",
        "schema": show::SCHEMA,
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
