//! The client: `put`, `get` and `ls`, each over one connection.

use crate::data_reduction::{DataReduction, ReductionPolicy};
use crate::error::{Cause, Error, FileError};
use crate::keep::Keep;
use crate::limits::Limits;
use crate::path::{RelPath, show};
use crate::placement::Placement;
use crate::pool::{Pool, Wake};
use crate::progress::{Progress, Summary};
use crate::proto::{Change, Flags, Hello, MAX_MESSAGE, MAX_ROOTS, Op, Record, Sending, Totals, VERSION, put};
use crate::roots::{self, Sources, destination, means_contents, means_folder, not_empty};
use crate::select::{MAX_NAMES, MAX_NAMES_BYTES, Select};
use crate::session::{Control, Fatal, Listed, Role, Session, code};
use crate::sink::{Sink, SinkOptions};
use crate::source::Source;
use crate::timetable::Limiter;
use crate::tree::Tree;
use base::{Span, Time};
use endpoint::{App, ConnId, ConnInfo, Connect, Endpoint, Event};
use observe::Speed;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use transport::CloseReason;

/// How often the counters of the connection go into the progress.
const COUNT_EVERY: Span = Span::from_millis(100);
/// When nothing has moved for so long, the log says once what is waited for.
const STALL_REPORT: Span = Span::from_secs(10);
/// How often a listing that its reader does not take is offered again.
const RETRY_EVERY: Span = Span::from_millis(10);
/// Messages of a listing that may wait for their reader.
const LISTED: usize = 64;

/// How files are compared, replaced and kept.
#[derive(Clone, Copy, Debug)]
pub struct TransferOptions {
    /// Leave out what is the same at the destination already: same size and modification time.
    pub skip_same: bool,
    /// Compare contents (BLAKE3) instead of times.
    pub checksum: bool,
    /// Replace files that exist and differ.
    pub overwrite: bool,
    /// Only find out what would be sent.
    pub dry_run: bool,
    /// Get only: everything is on this end's disk before it counts as done.
    pub durable: bool,
    /// Start over: unfinished files and journals that an earlier attempt left are dropped, not used. Files that are
    /// finished and the same are still left out by `skip_same`.
    pub fresh: bool,
    /// Count ahead what is to be sent, so that the progress can tell how long it takes.
    pub scan: bool,
    /// Put only: large files are read past the page cache.
    pub direct: bool,
    /// How the source saves traffic.
    pub data_reduction: DataReduction,
    /// What is kept of files beside contents, permissions `rwx`, times and links.
    pub keep: Keep,
}
impl Default for TransferOptions {
    fn default() -> TransferOptions {
        TransferOptions {
            skip_same: true,
            checksum: false,
            overwrite: true,
            dry_run: false,
            durable: true,
            fresh: false,
            scan: false,
            direct: false,
            data_reduction: DataReduction::default(),
            keep: Keep::default(),
        }
    }
}
impl TransferOptions {
    pub(crate) fn flags(&self) -> Flags {
        Flags {
            skip_same: self.skip_same,
            checksum: self.checksum,
            overwrite: self.overwrite,
            dry_run: self.dry_run,
            recursive: false,
            fresh: self.fresh,
            scan: self.scan,
        }
    }
}

/// What to send where.
#[derive(Clone, Debug)]
pub struct PutOptions {
    /// Files and folders of this machine. `DIR/` with a slash (or `.`, or `..`) at its end means what is in it.
    pub sources: Vec<PathBuf>,
    /// The one source is a file without a name of its own: it goes to `dest` itself, never into a folder there.
    pub nameless: bool,
    /// Path in the served folder, as in the address. A slash at its end means a folder.
    pub dest: Vec<u8>,
    /// How.
    pub transfer: TransferOptions,
}

/// What to fetch to where.
#[derive(Clone, Debug)]
pub struct GetOptions {
    /// Paths in the served folder. A slash at the end means what is in the folder.
    pub sources: Vec<Vec<u8>>,
    /// Where to, on this machine.
    pub dest: PathBuf,
    /// Take a single file and nothing else.
    pub one_file: bool,
    /// How.
    pub transfer: TransferOptions,
    /// How the server is to send.
    pub sending: Sending,
}

/// What to list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Path in the served folder.
    pub path: Vec<u8>,
    /// Folders inside folders too.
    pub recursive: bool,
    /// With BLAKE3 of each file.
    pub checksum: bool,
    /// With the target of each symbolic link.
    pub link_targets: bool,
}

/// Decides whether the server that answered is the right one; the text says why not, and what to do.
pub type CheckPeer = Box<dyn FnOnce(&ConnInfo) -> Result<(), String> + Send>;

/// What the client does once it is connected.
enum Job {
    Put {
        sources: Sources,
        direct: bool,
        /// A server's, for what it sends for its clients.
        limits: Option<Limits>,
    },
    Get {
        tree: Arc<Tree>,
        options: SinkOptions,
    },
    /// `owed`: messages read for which no credit was given back.
    List {
        out: SyncSender<Vec<Listed>>,
        waiting: Option<Vec<Listed>>,
        owed: u64,
        ended: bool,
    },
}

/// A transfer of a client.
pub struct ClientApp {
    connect: Option<Connect>,
    conn: Option<ConnId>,
    hello: Hello,
    job: Job,
    session: Option<Session>,
    check: Option<CheckPeer>,
    pool: Arc<Pool>,
    wake: Wake,
    progress: Progress,
    started: Option<Time>,
    totals: Totals,
    /// Everything is done; the connection closes when the last words are acknowledged.
    done: bool,
    closed: bool,
    /// When the counters of the connection were looked at last, and how fast they grow.
    counted: Time,
    speed: Speed,
    /// What had been done when something was done last, when that was, and whether the log has it.
    still: ([u64; 5], Time, bool),
    retry: Option<Time>,
    /// What of the sources is sent, and what of the destination goes.
    select: Select,
    /// What a server is to do with its paths.
    change: Option<Change>,
    /// The rate changes with the time of day.
    limiter: Option<Limiter>,
}

fn local(text: String) -> Error {
    Error::Local { text }
}

impl ClientApp {
    /// Sends files and folders. `wake` must wake the endpoint's loop, from any thread. Sources that cannot be read are
    /// reported, and the others go on.
    ///
    /// # Errors
    /// [`Error::Local`] names a destination that cannot be, or what is wrong with the list of sources as a whole.
    pub fn put(connect: Connect, o: &PutOptions, wake: Wake) -> Result<ClientApp, Error> {
        check_count(o.sources.len(), "send")?;
        let mut sources = Sources::default();
        let mut id = identity();
        for s in &o.sources {
            let shown = s.as_os_str().as_bytes();
            not_empty(shown, "read")?;
            match roots::local(s) {
                Ok((start, mut root, full)) => {
                    if o.nameless {
                        root.name = RelPath::root();
                    }
                    let full = full.as_os_str().as_bytes();
                    id.update(full);
                    id.update(&[0]);
                    sources.add(shown, full, Ok((start, root)));
                }
                Err(e) => sources.add(shown, b"", Err(e)),
            }
        }
        fits(&Record::Roots(sources.roots.clone()))?;
        id.update(&o.dest);
        let mut hello = hello(Op::Put, o.transfer.flags(), vec![remote_path(&o.dest)?], &id);
        hello.into = means_folder(&o.dest) || o.sources.len() > 1;
        hello.data_reduction = o.transfer.data_reduction;
        hello.keep = o.transfer.keep;
        let job = Job::Put { sources, direct: o.transfer.direct, limits: None };
        Ok(ClientApp::new(connect, hello, job, wake))
    }
    /// Fetches files and folders. Sources that no server can have are reported, as are those that this one has not, and the
    /// others go on.
    ///
    /// # Errors
    /// [`Error::Local`] names a destination that cannot be used, or what is wrong with the list of sources as a whole.
    pub fn get(connect: Connect, o: &GetOptions, wake: Wake) -> Result<ClientApp, Error> {
        check_count(o.sources.len(), "fetch")?;
        o.sending.check().map_err(local)?;
        let (mut paths, mut contents, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for s in &o.sources {
            match RelPath::parse_lenient(s) {
                Ok(p) => {
                    paths.push(p);
                    contents.push(means_contents(s));
                }
                Err(e) => failed.push(FileError::of_path(s, e)),
            }
        }
        if let (true, Some(e)) = (paths.is_empty(), failed.first()) {
            return Err(local(e.to_string()));
        }
        let (tree, dest, into) = destination(&o.dest, o.sources.len() > 1, o.transfer.dry_run)?;
        let mut hello = hello(Op::Get, o.transfer.flags(), paths, &identity());
        (hello.contents, hello.sending, hello.keep) = (contents, o.sending.clone(), o.transfer.keep);
        hello.data_reduction = o.transfer.data_reduction;
        fits(&Record::Hello(hello.clone()))?;
        let (durable, one_file) = (o.transfer.durable, o.one_file);
        let options = SinkOptions {
            dest,
            into,
            flags: hello.flags,
            durable,
            one_file,
            write_only: None,
            keep: (hello.keep.possible(), Keep::default()),
            asked: !hello.keep.is_empty(),
            anywhere: true,
        };
        let app = ClientApp::new(connect, hello, Job::Get { tree: Arc::new(tree), options }, wake);
        failed.into_iter().for_each(|e| app.progress.fail(e));
        Ok(app)
    }
    /// Lists; the entries come out of the channel in the order of their names, until it is closed.
    ///
    /// # Errors
    /// [`Error::Local`] names a path that cannot be used.
    pub fn list(
        connect: Connect,
        o: &ListOptions,
        wake: Wake,
    ) -> Result<(ClientApp, Receiver<Vec<Listed>>), Error> {
        let flags =
            Flags { recursive: o.recursive, checksum: o.checksum, ..TransferOptions::default().flags() };
        let mut hello = hello(Op::List, flags, vec![remote_path(&o.path)?], &identity());
        hello.link_targets = o.link_targets;
        let (out, entries) = sync_channel(LISTED);
        let job = Job::List { out, waiting: None, owed: 0, ended: false };
        Ok((ClientApp::new(connect, hello, job, wake), entries))
    }
    /// Has the server make, remove or rename what the paths name. What failed is in the progress; each thing that was done
    /// comes out of the channel.
    ///
    /// # Errors
    /// [`Error::Local`] names a path that cannot be used.
    pub fn change(
        connect: Connect,
        change: Change,
        paths: &[Vec<u8>],
        wake: Wake,
    ) -> Result<(ClientApp, Receiver<Vec<Listed>>), Error> {
        check_count(paths.len(), "change")?;
        let paths = paths.iter().map(|p| remote_path(p)).collect::<Result<Vec<_>, _>>()?;
        let hello = hello(Op::Change, TransferOptions::default().flags(), paths, &identity());
        fits(&Record::Hello(hello.clone()))?;
        let (out, entries) = sync_channel(LISTED);
        let job = Job::List { out, waiting: None, owed: 0, ended: false };
        let mut app = ClientApp::new(connect, hello, job, wake);
        app.change = Some(change);
        Ok((app, entries))
    }
    /// A put that a server makes for a client of its own: the request as the other server expects it, and what to send.
    pub(crate) fn for_client(
        connect: Connect,
        hello: Hello,
        (sources, direct): (Sources, bool),
        limits: Limits,
        wake: Wake,
    ) -> ClientApp {
        let limits = Some(limits);
        ClientApp::new(connect, hello, Job::Put { sources, direct, limits }, wake)
    }
    fn new(connect: Connect, hello: Hello, job: Job, wake: Wake) -> ClientApp {
        ClientApp {
            connect: Some(connect),
            conn: None,
            hello,
            job,
            session: None,
            check: None,
            pool: Arc::new(Pool::new()),
            wake,
            progress: Progress::default(),
            started: None,
            totals: Totals::default(),
            done: false,
            closed: false,
            counted: Time::ZERO,
            speed: Speed::default(),
            still: ([0; 5], Time::ZERO, false),
            retry: None,
            select: Select::default(),
            change: None,
            limiter: None,
        }
    }
    /// Has the rate change with the time of day: of a put that of this end, of a get that which the server is asked for. What holds
    /// at first is up to the caller.
    ///
    /// # Errors
    /// [`Error::Local`] names a rate that no server takes.
    pub fn limited(mut self, limiter: Option<Limiter>) -> Result<ClientApp, Error> {
        let asks = matches!(self.job, Job::Get { .. });
        for rate in limiter.iter().filter(|_| asks).flat_map(Limiter::rates) {
            Sending { rate_limit: Some(rate), ..Sending::default() }.check().map_err(local)?;
        }
        self.limiter = limiter;
        Ok(self)
    }
    /// Changes the rate where it is time.
    fn limit(&mut self, now: Time, ep: &mut Endpoint) {
        let (Some(l), Some(s), Some(conn)) = (&mut self.limiter, &mut self.session, self.conn) else {
            return;
        };
        let Some(rate) = l.change(now).filter(|_| self.progress.outcome().is_none()) else { return };
        match self.job {
            Job::Put { .. } => ep.set_rate_cap(conn, rate),
            _ => s.send(&[Record::Limit(rate)]),
        }
        let said = rate.map_or_else(|| "no limit".to_owned(), |r| r.to_string());
        tracing::debug!("from now on: {said}");
    }
    /// Has part of the sources sent, and what is left over at the destination removed. Without this everything is sent that no
    /// `.longhaulignore` file names.
    ///
    /// # Errors
    /// [`Error::Local`] names a limit that the choices exceed, or what does not go together.
    pub fn selecting(mut self, select: Select) -> Result<ClientApp, Error> {
        select.check().map_err(local)?;
        let folder = |contents: bool| contents && (self.hello.contents.len() <= 1);
        let base = match &self.job {
            Job::Put { sources, .. } => folder(sources.roots.iter().all(|r| r.name.is_root())),
            _ => folder(self.hello.contents == [true]),
        };
        if let Some(names) = &select.names {
            if !base {
                let text = "a list of names needs one source, the folder that they are in; name it with a slash at its end";
                return Err(local(text.into()));
            }
            let bytes: usize = names.iter().map(|n| n.0.as_bytes().len() + 4).sum();
            let server_reads = matches!(self.job, Job::Get { .. });
            if server_reads && (names.len() > MAX_NAMES || bytes > MAX_NAMES_BYTES) {
                return Err(local(format!(
                    "the list has {} names of {bytes} bytes; a server takes {MAX_NAMES} of {MAX_NAMES_BYTES} bytes; split it",
                    names.len()
                )));
            }
        }
        self.select = select;
        Ok(self)
    }
    /// What goes in front of Hello.
    fn preamble(&self) -> Vec<Record<'static>> {
        let mine = self.select.for_peer(matches!(self.job, Job::Get { .. }));
        let mut out = Vec::new();
        if let Some(names) = &mine.names {
            out.extend(names.in_pieces(MAX_MESSAGE / 2).into_iter().map(Record::Names));
        }
        let placement = mine.placement;
        let mine = Select { names: None, placement: Placement::default(), ..mine };
        if mine != Select::default() {
            out.push(Record::Select(Box::new(mine)));
        }
        if placement != Placement::default() {
            out.push(Record::Placement(Box::new(placement)));
        }
        out.extend(self.change.map(Record::Change));
        out
    }
    /// Has the server's identity looked at before anything is sent to it: needed with first-use trust, where the
    /// handshake accepts every key.
    pub fn check_peer(&mut self, check: CheckPeer) {
        self.check = Some(check);
    }
    /// What it has done, its result, and the way to stop it.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
    /// What it does and waits for, for those who look into one that stands still.
    pub fn state(&self) -> String {
        self.session.as_ref().map_or_else(|| "no connection yet".into(), |s| format!("{s:?}"))
    }
    /// Its connection, once there is one.
    pub fn connection(&self) -> Option<ConnId> {
        self.conn
    }

    /// The first result counts.
    fn finish(&mut self, now: Time, error: Option<Error>) {
        let progress = self.progress.snapshot();
        self.still.2 = true;
        let (failed, system) = (progress.failed, progress.system);
        let error = error.or((failed > 0).then_some(Error::Partial { failed, system }));
        let stay = progress.deleted.over_limit.saturating_add(progress.excluded.undeleted);
        let error = error.or((stay > 0).then_some(Error::DeleteLimit { stay }));
        let nanos = self.started.map_or(0, |s| now.since(s).as_nanos());
        let dry_run = self.hello.flags.dry_run;
        self.progress.finish(Summary { error, progress, totals: self.totals, nanos, dry_run });
    }
    fn stop(&mut self, now: Time, ep: &mut Endpoint, error: Error, code: u64, text: &str) {
        self.count(now, ep);
        self.finish(now, Some(error));
        match self.conn {
            Some(c) => ep.close(now, c, code, text),
            None => self.closed = true,
        }
    }
    fn fatal(&mut self, now: Time, ep: &mut Endpoint, f: &Fatal) {
        let (code, text) = f.close();
        let error = match f {
            Fatal::Protocol(t) => Error::Protocol { text: t.clone() },
            Fatal::OtherService => Error::Protocol { text: "it does not speak of transfers".into() },
            Fatal::Local(t) | Fatal::Unable(t) => local(t.clone()),
            // By this end, of what it was told to do with what would come.
            Fatal::Refuse(text) => Error::Unusable { text: text.clone() },
        };
        self.stop(now, ep, error, code, text);
    }
    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Connected { conn } => match self.begin(now, ep, conn) {
                Ok(s) => self.session = Some(s),
                Err(f) => self.fatal(now, ep, &f),
            },
            Event::Closed { conn, reason } => {
                self.count(now, ep);
                if let Some(mut s) = self.session.take() {
                    s.close(ep.adapter());
                }
                let _ = ep.release(conn); // what is left is freed with the endpoint
                self.finish(now, Some(of_close(reason)));
                self.closed = true;
            }
            // The server sends over a queue pair with the congestion control that was asked for.
            Event::QpReady { conn, qp, by_peer: true, .. } if self.conn == Some(conn) => {
                let asked = self.hello.sending.needs_own_pair();
                if let Some(s) = self.session.as_mut().filter(|_| asked)
                    && let Err(e) = s.link.receive_on(ep.adapter(), qp)
                {
                    let text =
                        format!("cannot prepare receive buffers: {e}; raise the limit of locked memory");
                    self.fatal(now, ep, &Fatal::Local(text));
                }
            }
            _ => {}
        }
    }
    fn begin(&mut self, now: Time, ep: &mut Endpoint, conn: ConnId) -> Result<Session, Fatal> {
        if let Some(check) = self.check.take() {
            let info = ep.connection(conn).ok_or(Fatal::Local("the connection is gone".into()))?;
            check(info).map_err(Fatal::Local)?;
        }
        let mut s = Session::new(now, ep, conn)?;
        for r in self.preamble() {
            s.send(&[r]);
        }
        s.send(&[Record::Hello(self.hello.clone())]);
        let (pool, wake, progress) = (self.pool.clone(), self.wake.clone(), self.progress.clone());
        s.role = match &mut self.job {
            Job::Put { sources, direct, limits } => {
                let Sources { starts, roots, failed, .. } = std::mem::take(sources);
                let link = &mut s.link;
                let what = (self.hello.flags, self.hello.keep, self.select.clone());
                let mut source = Source::selecting(pool, wake, (starts, roots), what, progress, link)?;
                source.without(failed, link);
                if let Some(l) = limits.take() {
                    source = source.within(l);
                }
                let rtt = ep.stats(conn).map_or(Span::ZERO, |s| s.min_rtt);
                let source =
                    source.directly(*direct).saving(ReductionPolicy::new(self.hello.data_reduction, rtt));
                Role::Source(Box::new(source))
            }
            Job::Get { tree, options } => {
                let failed = progress.with(|s| s.failed > 0);
                let sink = Sink::new(pool, wake, tree.clone(), options.clone(), progress);
                Role::Sink(Box::new(sink.selecting(&self.select, failed)?))
            }
            Job::List { .. } => {
                s.send(&[Record::ListCredit(LISTED as u64)]);
                Role::Reader
            }
        };
        s.link.flush(ep.adapter());
        Ok(s)
    }
    fn control(&mut self, now: Time, c: Control, ep: &mut Endpoint) -> Result<(), Fatal> {
        match c {
            Control::Welcome(v) if v != VERSION => {
                return Err(Fatal::Protocol(format!(
                    "the server speaks version {v}, this program {VERSION}"
                )));
            }
            Control::Welcome(_) => {}
            Control::Mapped(m) => self.progress.map(m),
            Control::Abort { refused, text } => {
                let e = if refused { Error::Refused { text } } else { Error::Peer { text } };
                self.stop(now, ep, e, code::DONE, "understood");
            }
            Control::SinkEnd(t) => {
                self.totals = t;
                self.done = true;
            }
            Control::Entries(e) => {
                if let Job::List { waiting, .. } = &mut self.job {
                    waiting.get_or_insert_default().extend(e);
                }
            }
            Control::Listed => {
                if let Job::List { owed, .. } = &mut self.job {
                    *owed += 1;
                }
            }
            Control::ListEnd => {
                if let Job::List { ended, .. } = &mut self.job {
                    *ended = true;
                }
            }
            Control::Failed { path, cause, text } => {
                self.progress.fail(FileError { path, cause: Cause::from_wire(cause), text });
            }
            Control::Hello(_)
            | Control::Select(_)
            | Control::Names(_)
            | Control::Placement(_)
            | Control::Limit(_)
            | Control::Change(_)
            | Control::Copy(_) => {
                return Err(Fatal::protocol("a record that does not belong to this request"));
            }
        }
        Ok(())
    }
    /// Hands listed entries over, and lets as many more come.
    fn listed(&mut self, now: Time, s: &mut Session) {
        let Job::List { out, waiting, owed, ended } = &mut self.job else { return };
        if let Some(e) = waiting.take() {
            match out.try_send(e) {
                Ok(()) => {}
                Err(TrySendError::Full(e)) => *waiting = Some(e),
                Err(TrySendError::Disconnected(_)) => *ended = true,
            }
        }
        // Also for messages without entries, which tell of failures only.
        if waiting.is_none() && *owed > 0 {
            s.send(&[Record::ListCredit(std::mem::take(owed))]);
        }
        self.retry = waiting.is_some().then(|| now + RETRY_EVERY);
        self.done |= *ended && waiting.is_none();
    }
    fn run(&mut self, now: Time, ep: &mut Endpoint) {
        let Some(mut s) = self.session.take() else { return };
        let Some(conn) = self.conn else { return };
        loop {
            let r = s.step(ep.adapter());
            let r = match r {
                Ok(None) => break,
                Ok(Some(c)) => self.control(now, c, ep),
                Err(f) => Err(f),
            };
            if let Err(f) = r {
                self.fatal(now, ep, &f);
                break;
            }
            self.listed(now, &mut s);
        }
        self.listed(now, &mut s);
        if let Role::Sink(x) = &s.role
            && x.ended()
        {
            self.totals = x.totals();
            self.done = true;
        }
        s.fit(now, ep, conn);
        s.link.flush(ep.adapter());
        // The sink's last word must reach the source before the connection goes.
        if self.done && (s.link.drained() || matches!(s.role, Role::Source(_) | Role::Reader)) {
            self.count(now, ep);
            self.finish(now, None);
            ep.close(now, conn, code::DONE, "done");
        }
        self.session = Some(s);
    }
    /// Takes the counters of the connection into the progress, with what follows from them.
    fn count(&mut self, now: Time, ep: &Endpoint) {
        self.counted = now;
        let Some(stats) = self.conn.and_then(|c| ep.stats(c)) else { return };
        self.progress.carried(&stats);
        if self.session.is_none() {
            return;
        }
        let payload = match self.job {
            Job::Put { .. } => stats.payload_acked,
            Job::Get { .. } | Job::List { .. } => stats.payload_received,
        };
        let speed = &mut self.speed;
        self.progress.update(|s| {
            speed.add(now, payload, s.files_confirmed);
            (s.bytes_per_second, s.files_per_second) = (speed.bytes_per_second(), speed.files_per_second());
            let left = || speed.seconds_left(s.bytes_left(), s.files_left());
            s.seconds_left = s.complete.then(left).flatten();
        });
    }
}

impl ClientApp {
    /// Says in the log what a transfer waits for that stands still.
    fn watch(&mut self, now: Time) {
        let p = self.progress.snapshot();
        let received = self.session.as_ref().map_or(0, |s| s.link.received());
        // Compared one by one: the other end may say any number.
        let done = [p.bytes_sent, p.bytes_confirmed, p.files_confirmed, p.files_total, received];
        if done != self.still.0 {
            self.still = (done, now, false);
        } else if !self.still.2 && now.since(self.still.1) >= STALL_REPORT {
            self.still.2 = true;
            tracing::debug!("nothing has moved for {STALL_REPORT}: {}", self.state());
        }
    }
}

impl App for ClientApp {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            self.started = Some(now);
            self.counted = now;
            self.still.1 = now;
            match ep.connect(now, c) {
                Ok(id) => self.conn = Some(id),
                Err(e) => {
                    self.finish(now, Some(local(e.to_string())));
                    self.closed = true;
                }
            }
        }
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        if self.progress.interrupted() && self.progress.outcome().is_none() {
            self.stop(now, ep, Error::Interrupted, code::INTERRUPTED, "stopped by the user");
        }
        self.limit(now, ep);
        if self.progress.outcome().is_none() {
            self.run(now, ep);
            if now.since(self.counted) >= COUNT_EVERY {
                self.count(now, ep);
                self.watch(now);
            }
            if !self.still.2 && now.since(self.still.1) >= STALL_REPORT {
                self.watch(now);
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        let look = (!self.still.2 && self.session.is_some()).then(|| self.still.1 + STALL_REPORT);
        let limit = self.limiter.as_ref().filter(|_| self.session.is_some()).map(Limiter::next_look);
        self.retry.into_iter().chain(look).chain(limit).min()
    }
    fn finished(&self) -> bool {
        self.closed
    }
}

/// What a transfer's end means that is the end of its connection.
pub(crate) fn of_close(reason: CloseReason) -> Error {
    let text = reason.to_string();
    match reason {
        CloseReason::Peer { code: code::REFUSED, reason } => Error::Refused { text: reason },
        CloseReason::Peer { code: code::PROTOCOL, reason } => {
            Error::Peer { text: format!("it says that this end broke the protocol: {reason}") }
        }
        CloseReason::Peer { code: code::LOCAL, reason } => Error::Peer { text: reason },
        CloseReason::Peer { code: code::OTHER_SERVICE, reason } => Error::OtherService { text: reason },
        CloseReason::Peer { code, .. } => Error::Connection { text, code: Some(code) },
        _ => Error::Connection { text, code: None },
    }
}

pub(crate) fn hello(op: Op, flags: Flags, paths: Vec<RelPath>, id: &blake3::Hasher) -> Hello {
    let mut transfer = [0; 16];
    transfer.copy_from_slice(&id.finalize().as_bytes()[..16]);
    let contents = vec![false; paths.len()];
    let sending = Sending::default();
    let (link_targets, data_reduction) = (false, DataReduction::default());
    let (into, keep) = (false, Keep::default());
    Hello {
        version: VERSION,
        op,
        flags,
        transfer,
        paths,
        into,
        contents,
        sending,
        link_targets,
        data_reduction,
        keep,
    }
}
/// The same for every attempt of the same transfer from the same machine.
pub(crate) fn identity() -> blake3::Hasher {
    let mut h = blake3::Hasher::new();
    h.update(b"longhaul transfer\0");
    h.update(&std::fs::read("/etc/machine-id").unwrap_or_default());
    h.update(&[0]);
    h
}
pub(crate) fn remote_path(p: &[u8]) -> Result<RelPath, Error> {
    RelPath::parse_lenient(p)
        .map_err(|e| local(format!("cannot use the path {} of the server: it {e}", show(p))))
}
/// Whether so many sources can be named at a time.
pub(crate) fn check_count(n: usize, what: &str) -> Result<(), Error> {
    match n {
        0 => Err(local(format!("nothing to {what}; name at least one file or folder"))),
        n if n > MAX_ROOTS => Err(local(format!(
            "cannot {what} {n} sources by one command: {MAX_ROOTS} are the most; name the folder that they are in"
        ))),
        _ => Ok(()),
    }
}
/// Whether the names of all sources fit in one message.
pub(crate) fn fits(r: &Record<'_>) -> Result<(), Error> {
    let mut m = Vec::new();
    put(&mut m, r);
    if m.len() > MAX_MESSAGE {
        let text = "the names of the sources are too long together for one command; name fewer at a time";
        return Err(local(text.into()));
    }
    Ok(())
}
