//! The serving side: any number of sessions over one endpoint, all beneath one folder.

use crate::error::{Error, NO_THREAD};
use crate::path::RelPath;
use crate::pool::{Pool, Wake};
use crate::progress::Progress;
use crate::proto::{Hello, Op, Record, Root, Sending, VERSION};
use crate::sending::{PathNow, Policy, congestion_control, mapping};
use crate::session::{Control, Fatal, Role, Session, code};
use crate::sink::list::Lister;
use crate::sink::{Sink, SinkOptions};
use crate::source::Source;
use crate::tree::Tree;
use crate::walk::Start;
use base::{Rate, Span, Time};
use endpoint::{App, ConnId, Endpoint, Event, QpOptions};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use verbs::QpId;

/// Sessions at a time unless the options say otherwise: 4 MiB of receive buffers each at the start.
pub const DEFAULT_SESSIONS: usize = 64;
/// How long a refused or finished client may take to close before the server does.
const LINGER: Span = Span::from_secs(5);
/// How often closed sessions are looked at while their last jobs end.
const SETTLE_EVERY: Span = Span::from_millis(20);

/// What a server offers.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The folder; nothing outside of it is ever touched.
    pub root: PathBuf,
    /// Clients may get and list.
    pub allow_read: bool,
    /// Clients may put.
    pub allow_write: bool,
    /// Clients may replace files that exist.
    pub allow_overwrite: bool,
    /// A transfer counts as done only when it is on the disk.
    pub durable: bool,
    /// Large files are read past the page cache.
    pub direct: bool,
    /// Sessions at a time; further ones are refused.
    pub max_sessions: usize,
    /// Most that each session sends; a client can ask for less. Must be the `rate_cap` of the endpoint's options,
    /// where there is one, since it takes its place.
    pub rate_limit: Option<Rate>,
    /// The congestion control of the endpoint's options: the one that a known rate is for when a client asks for no
    /// other.
    pub cc: String,
    /// Names of the congestion controls that clients may ask for.
    pub offered_cc: Vec<String>,
}

impl ServeOptions {
    /// Serves `root` for reading and writing.
    pub fn new(root: impl Into<PathBuf>) -> ServeOptions {
        ServeOptions {
            root: root.into(),
            allow_read: true,
            allow_write: true,
            allow_overwrite: true,
            durable: true,
            direct: false,
            max_sessions: DEFAULT_SESSIONS,
            rate_limit: None,
            cc: cc::registry::DEFAULT.to_owned(),
            offered_cc: cc::registry::names().into_iter().map(str::to_owned).collect(),
        }
    }
}

/// One line about a session, for the server's log or display.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SessionInfo {
    /// Number of the connection.
    pub conn: u64,
    /// The client's address.
    pub remote: String,
    /// `put`, `get`, `list`, or nothing yet.
    pub operation: &'static str,
    /// What it has done.
    pub progress: crate::progress::Snapshot,
}

struct Client {
    session: Session,
    progress: Progress,
    remote: String,
    peer: String,
    operation: &'static str,
    transfer: Option<[u8; 16]>,
    /// A put that waits for an older session of the same transfer to end.
    waiting: Option<Box<Hello>>,
    /// A get that waits for the queue pair with the congestion control it asked for.
    opening: Option<(QpId, Box<Hello>)>,
    /// Said its last word; closed at this time unless the client does so before.
    deadline: Option<(Time, u64, String)>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sessions: Mutex<BTreeMap<u64, (String, &'static str, Progress)>>,
}

/// Watches and stops a server from other threads while its loop runs.
#[derive(Clone)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// Sessions at present.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let v = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let info = |(conn, (remote, operation, p)): (u64, (String, &'static str, Progress))| SessionInfo {
            conn,
            remote,
            operation,
            progress: p.snapshot(),
        };
        v.into_iter().map(info).collect()
    }
    /// Closes all sessions, in a state that can be resumed, and ends the loop at its next turn. The one who asks
    /// wakes it.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
    fn set(&self, id: ConnId, c: Option<&Client>) {
        let mut v = self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        match c {
            Some(c) => drop(v.insert(id.0, (c.remote.clone(), c.operation, c.progress.clone()))),
            None => drop(v.remove(&id.0)),
        }
    }
}

/// The server.
pub struct ServerApp {
    options: ServeOptions,
    tree: Arc<Tree>,
    pool: Arc<Pool>,
    wake: Wake,
    clients: BTreeMap<ConnId, Client>,
    /// Closed, but jobs of theirs still run: (transfer, session).
    settling: Vec<(Option<[u8; 16]>, Session)>,
    monitor: Monitor,
    next: Option<Time>,
}

impl ServerApp {
    /// Opens the folder. `wake` must wake the endpoint's loop, from any thread.
    ///
    /// # Errors
    /// [`Error::Local`] when the folder cannot be opened.
    pub fn new(options: ServeOptions, wake: Wake) -> Result<ServerApp, Error> {
        let tree = Tree::open(&options.root).map_err(|e| Error::Local {
            text: format!(
                "cannot serve {}: {e}; give a folder that exists and can be read",
                options.root.display()
            ),
        })?;
        let (clients, settling) = Default::default();
        let pool = Arc::new(Pool::new());
        Ok(ServerApp {
            options,
            tree: Arc::new(tree),
            pool,
            wake,
            clients,
            settling,
            monitor: Monitor(Arc::default()),
            next: None,
        })
    }
    /// A view of it for other threads.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }
    fn stopped(&self) -> bool {
        self.monitor.0.stop.load(Ordering::Relaxed)
    }

    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Incoming { conn } => self.incoming(now, conn, ep),
            Event::Closed { conn, .. } => {
                self.monitor.set(conn, None);
                if let Some(mut c) = self.clients.remove(&conn) {
                    c.session.close(ep.adapter());
                    self.settling.push((c.transfer, c.session));
                }
                let _ = ep.release(conn); // what is left is freed with the endpoint
            }
            Event::QpReady { conn, qp, by_peer: false, .. } => self.opened(now, conn, (qp, true), ep),
            Event::QpRefused { conn, qp, .. } => self.opened(now, conn, (qp, false), ep),
            _ => {}
        }
    }
    fn incoming(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint) {
        let Some((remote, peer)) =
            ep.connection(conn).map(|i| (i.remote.to_string(), format!("{:?}", i.peer)))
        else {
            return;
        };
        match Session::new(now, ep, conn) {
            Ok(session) => {
                let full = self.clients.len() >= self.options.max_sessions;
                let mut c = Client {
                    session,
                    progress: Progress::default(),
                    remote,
                    peer,
                    operation: "",
                    transfer: None,
                    waiting: None,
                    opening: None,
                    deadline: None,
                };
                if full {
                    let n = self.options.max_sessions;
                    let text = format!(
                        "{n} transfers are running, the server's limit; try again when one has ended"
                    );
                    end(&mut c, now, Fatal::Refuse(text));
                }
                self.monitor.set(conn, Some(&c));
                self.clients.insert(conn, c);
            }
            Err(f) => {
                let (code, text) = f.close();
                ep.close(now, conn, code, text);
            }
        }
    }
    /// Runs one client's session as far as it goes.
    fn serve(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint) {
        let Some(mut c) = self.clients.remove(&conn) else { return };
        if let Some(h) = c.waiting.take() {
            if self.settling.iter().any(|(t, _)| *t == Some(h.transfer)) {
                c.waiting = Some(h);
                self.clients.insert(conn, c);
                return;
            }
            if let Err(f) = self.begin(&mut c, &h, (conn, ep)) {
                end(&mut c, now, f);
            }
        }
        loop {
            match c.session.step(ep.adapter()) {
                Ok(None) => break,
                Ok(Some(Control::Hello(h))) => {
                    if let Err(f) = self.hello(now, conn, &mut c, h, ep) {
                        end(&mut c, now, f);
                    }
                    self.monitor.set(conn, Some(&c));
                    if c.waiting.is_some() {
                        break;
                    }
                }
                Ok(Some(Control::SinkEnd(_))) => {
                    c.deadline = Some((now + LINGER, code::DONE, "done".into()));
                }
                Ok(Some(_)) => end(&mut c, now, Fatal::protocol("a record that only a server may send")),
                // Whatever still comes after the last word is of no interest.
                Err(_) if c.deadline.is_some() => break,
                Err(f) => {
                    end(&mut c, now, f);
                    break;
                }
            }
        }
        c.session.fit(now, ep, conn);
        c.session.link.flush(ep.adapter());
        let over = matches!(&c.session.role, Role::Sink(s) if s.ended());
        if over && c.deadline.is_none() {
            c.deadline = Some((now + LINGER, code::DONE, "done".into()));
        }
        if let Some((at, code, text)) = &c.deadline
            && *at <= now
        {
            ep.close(now, conn, *code, text);
        }
        self.clients.insert(conn, c);
    }
    fn hello(
        &mut self,
        now: Time,
        conn: ConnId,
        c: &mut Client,
        h: Box<Hello>,
        ep: &mut Endpoint,
    ) -> Result<(), Fatal> {
        let begun = !matches!(c.session.role, Role::None) || c.waiting.is_some() || c.opening.is_some();
        if begun || c.deadline.is_some() {
            return Err(Fatal::protocol("a second request in one session"));
        }
        if h.version != VERSION {
            let v = h.version;
            let text =
                format!("this server speaks version {VERSION}, the client {v}; update the older of the two");
            return Err(Fatal::Refuse(text));
        }
        self.allowed(&h)?;
        if h.op == Op::Put {
            // A client that was cut off and comes again must not wait until its old connection times out.
            let older: Vec<ConnId> = self
                .clients
                .iter()
                .filter(|(_, o)| o.transfer == Some(h.transfer) && o.peer == c.peer)
                .map(|(id, _)| *id)
                .collect();
            for id in older {
                ep.close(now, id, code::SUPERSEDED, "a newer session of the same transfer took over");
                if let Some(mut o) = self.clients.remove(&id) {
                    o.session.close(ep.adapter());
                    self.settling.push((o.transfer, o.session));
                }
            }
            c.transfer = Some(h.transfer);
            self.settle();
            if self.settling.iter().any(|(t, _)| *t == Some(h.transfer)) {
                c.waiting = Some(h);
                return Ok(());
            }
        }
        if let Some(qp) = self.sending(now, conn, &h, ep)? {
            c.opening = Some((qp, h));
            return Ok(());
        }
        self.begin(c, &h, (conn, ep))
    }
    /// Obeys what the client asks of this end's sending; the queue pair to wait for, if it needs one.
    fn sending(&self, now: Time, conn: ConnId, h: &Hello, ep: &mut Endpoint) -> Result<Option<QpId>, Fatal> {
        let own = self.options.rate_limit;
        if let Some(cap) = own.into_iter().chain(h.sending.rate_limit).min() {
            ep.set_rate_cap(conn, Some(cap));
        }
        if ep.connection(conn).is_some_and(|i| i.iwarp.is_some()) {
            return self.sending_by_tcp(conn, h, ep).map(|()| None);
        }
        let stats = ep.stats(conn).ok_or(Fatal::Local("the connection is gone".into()))?;
        let path = PathNow { rtt: stats.srtt, packet: stats.mtu };
        let policy = Policy { offered: &self.options.offered_cc, own: &self.options.cc };
        let cc = congestion_control(&h.sending, &policy, path).map_err(Fatal::Refuse)?;
        if !h.sending.needs_own_pair() {
            return Ok(None);
        }
        let Sending { qos, application, dscp, .. } = h.sending.clone();
        let o = QpOptions { cc: cc.unwrap_or_default(), qos, application, dscp, ..QpOptions::default() };
        match ep.open_qp(now, conn, o) {
            Ok(qp) => Ok(Some(qp)),
            Err(e) => Err(Fatal::Refuse(format!("it cannot send as it is asked to: {e}"))),
        }
    }
    /// The same by iWARP, where the system's TCP sends, by its own names for congestion control.
    fn sending_by_tcp(&self, conn: ConnId, h: &Hello, ep: &mut Endpoint) -> Result<(), Fatal> {
        if h.sending.known_rate.is_some() || h.sending.qos.is_some() {
            let text =
                "it cannot send by iWARP at a known rate or with a quality of service: ask over longhaul://";
            return Err(Fatal::Refuse(text.into()));
        }
        let cannot = |e| Fatal::Refuse(format!("it cannot send as it is asked to: {e}"));
        if h.sending.application.is_some() || h.sending.dscp.is_some() {
            ep.ask_by_tcp(conn, h.sending.application.as_deref(), h.sending.dscp).map_err(cannot)?;
        }
        let Some(cc) = &h.sending.cc else { return Ok(()) };
        let offered = &self.options.offered_cc;
        let mut lent = cc::registry::preferences(cc);
        lent.retain(|spec| offered.iter().any(|o| spec.split(':').next() == Some(o)));
        if lent.is_empty() {
            let offers = offered.join(", ");
            let text = format!(
                "the server does not lend the congestion control `{cc}` to clients; it offers {offers}"
            );
            return Err(Fatal::Refuse(text));
        }
        ep.lend_by_tcp(conn, &lent.join(",")).map_err(cannot)
    }
    /// The client's end has agreed to the queue pair of its congestion control, or not.
    fn opened(&mut self, now: Time, conn: ConnId, (qp, agreed): (QpId, bool), ep: &Endpoint) {
        let Some(mut c) = self.clients.remove(&conn) else { return };
        if let Some((_, h)) = c.opening.take_if(|(q, _)| *q == qp) {
            let r = if agreed {
                c.session.link.send_on(qp);
                self.begin(&mut c, &h, (conn, ep))
            } else {
                let text =
                    "the client's end refused the congestion control that it asked for; ask for another";
                Err(Fatal::Refuse(text.into()))
            };
            if let Err(f) = r {
                end(&mut c, now, f);
            }
            self.monitor.set(conn, Some(&c));
        }
        self.clients.insert(conn, c);
    }
    fn allowed(&self, h: &Hello) -> Result<(), Fatal> {
        let refuse = |t: &str| Err(Fatal::Refuse(t.into()));
        match h.op {
            Op::Put if !self.options.allow_write => {
                refuse("the server is read-only; ask the one who runs it to serve it without --read-only")
            }
            Op::Get | Op::List if !self.options.allow_read => {
                refuse("the server takes files but gives none; ask the one who runs it to allow reading")
            }
            Op::Put if h.paths.len() != 1 => Err(Fatal::protocol("a put has one destination")),
            Op::Put | Op::List if !h.sending.is_default() => {
                Err(Fatal::protocol("only a get says how the server is to send"))
            }
            Op::Get if h.paths.is_empty() => Err(Fatal::protocol("a get names at least one path")),
            _ => Ok(()),
        }
    }
    /// Gives the session its role.
    fn begin(&self, c: &mut Client, h: &Hello, (conn, ep): (ConnId, &Endpoint)) -> Result<(), Fatal> {
        c.session.send(&[Record::Welcome { version: VERSION }]);
        let limit = self.options.rate_limit.into_iter().chain(h.sending.rate_limit).min();
        if let Some(m) = mapping(ep, conn, c.session.link.sends_on(), limit).filter(|_| h.sending.tell) {
            c.session.send(&[Record::Mapped(m)]);
        }
        match h.op {
            Op::Put => {
                c.operation = "put";
                let mut flags = h.flags;
                flags.overwrite &= self.options.allow_overwrite;
                let dest = h.paths.first().cloned().unwrap_or_default();
                let options = SinkOptions { dest, into: h.into, flags, durable: self.options.durable };
                let (pool, wake) = (self.pool.clone(), self.wake.clone());
                let sink = Sink::new(pool, wake, self.tree.clone(), options, c.progress.clone());
                c.session.role = Role::Sink(Box::new(sink));
            }
            Op::Get => {
                c.operation = "get";
                let (starts, roots) = self.roots(h)?;
                let (pool, wake) = (self.pool.clone(), self.wake.clone());
                let progress = c.progress.clone();
                let link = &mut c.session.link;
                let s = Source::new(pool, wake, starts, roots, h.flags, progress, link)?
                    .directly(self.options.direct);
                c.session.role = Role::Source(Box::new(s));
            }
            Op::List => {
                c.operation = "list";
                self.list(c, h)?;
            }
        }
        Ok(())
    }
    fn roots(&self, h: &Hello) -> Result<(Vec<Start>, Vec<Root>), Fatal> {
        let (mut starts, mut roots) = (Vec::new(), Vec::new());
        for (i, p) in h.paths.iter().enumerate() {
            let info = self.tree.info(p).map_err(|e| {
                Fatal::Refuse(format!(
                    "{p}: {e}; list the folder above it (longhaul ls) to see what is there"
                ))
            })?;
            let contents = h.contents.get(i).copied().unwrap_or(false);
            let name = match p.split() {
                Some((_, n)) if !contents => RelPath::parse(n).unwrap_or_default(),
                _ => RelPath::root(),
            };
            starts.push(Start { tree: self.tree.clone(), path: p.clone() });
            roots.push(Root { name, kind: info.kind });
        }
        Ok((starts, roots))
    }
    fn list(&self, c: &mut Client, h: &Hello) -> Result<(), Fatal> {
        let roots: Vec<(u32, RelPath)> = (0u32..).zip(h.paths.iter().cloned()).collect();
        let ((credit, credits), (out, listing)) = (channel(), sync_channel(4));
        let lister = Lister {
            tree: self.tree.clone(),
            roots,
            depth: if h.flags.recursive { usize::MAX } else { 1 },
            hash: h.flags.checksum,
            report: true,
            credit: credits,
            out,
            wake: self.wake.clone(),
        };
        lister
            .spawn()
            .map_err(|e| Fatal::Local(format!("the server cannot start a thread: {e}; {NO_THREAD}")))?;
        c.session.role = Role::Lister { out: listing, credit };
        Ok(())
    }
    fn settle(&mut self) {
        self.settling.retain_mut(|(_, s)| !s.settle());
    }
}

/// Says the last word. A refusal may take its time to be heard; after anything worse the connection ends at once, with
/// the reason, and nothing more of the client is carried out.
fn end(c: &mut Client, now: Time, f: Fatal) {
    if c.deadline.is_some() {
        return;
    }
    let (code, text) = f.close();
    let mut at = now;
    if matches!(f, Fatal::Refuse(_)) {
        c.session.send(&[Record::Abort { refused: true, text: text.to_string() }]);
        at = now + LINGER;
    }
    c.deadline = Some((at, code, text.to_string()));
}

impl App for ServerApp {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        self.settle();
        for conn in self.clients.keys().copied().collect::<Vec<_>>() {
            if self.stopped() {
                ep.close(
                    now,
                    conn,
                    code::INTERRUPTED,
                    "the server was stopped; repeat the command when it runs again",
                );
            } else {
                self.serve(now, conn, ep);
            }
        }
        let deadlines = self.clients.values().filter_map(|c| c.deadline.as_ref()).map(|d| d.0);
        let settle = (!self.settling.is_empty()).then(|| now + SETTLE_EVERY);
        self.next = deadlines.chain(settle).min();
    }
    fn next_timeout(&self) -> Option<Time> {
        self.next
    }
    fn finished(&self) -> bool {
        self.stopped() && self.clients.is_empty() && self.settling.is_empty()
    }
}
