//! The server: sessions over one endpoint, all beneath one folder.

mod copies;
mod puts;

use crate::change::Changer;
use crate::copy::{Copies, Invitations};
use crate::data_reduction::ReductionPolicy;
use crate::error::{Error, NO_THREAD};
use crate::glob::expand;
use crate::limits::Budgets;
use crate::monitor::{Monitor, Recorder, SessionPeer};
use crate::path::{RelPath, show};
use crate::pool::{Pool, Wake};
use crate::progress::Progress;
use crate::proto::{Hello, Op, Record, Sending, Totals, VERSION};
use crate::request_preamble::RequestPreamble;
use crate::roots::{self, Sources};
use crate::sending::{PathSample, Policy, congestion_control, mapping};
use crate::session::{Control, Fatal, Role, Session, code};
use crate::sink::list::{Lister, ListingDemand};
use crate::source::Source;
use crate::thread_state::ThreadState;
use crate::timetable::Limiter;
use crate::tree::Tree;
use base::{Rate, Span, Time};
use copies::Arranging;
use endpoint::{
    App, CloseReason, ConnId, Displaced, Endpoint, Event, QpOptions, SessionProgress, ShareLimits, Shares,
};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use transport::crypto::PeerIdentity;
use transport::error::code::BUSY;
use verbs::QpId;

/// Sessions at a time unless the options say otherwise: 8 MiB of receive buffers each at the start.
pub const DEFAULT_SESSIONS: usize = 64;
/// How long a refused or finished client may take to close before the server does.
const LINGER: Span = Span::from_secs(5);
/// Paths of a request that the log names at most.
const SHOWN_PATHS: usize = 8;
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
    /// Clients may remove and rename: what is left over of a `put`, and what they name.
    pub allow_delete: bool,
    /// A transfer counts as done only when it is on the disk.
    pub durable: bool,
    /// Large files are read past the page cache.
    pub direct: bool,
    /// Sessions at a time, and when one that is not made use of gives way to another.
    pub sessions: ShareLimits,
    /// Memory of all sessions together for data on its way, in bytes.
    pub memory: u64,
    /// Descriptors of all sessions together for files that they receive.
    pub descriptors: u64,
    /// Most that each session sends; a client can ask for less. Must be the `rate_cap` of the endpoint's options,
    /// where there is one, since it takes its place.
    pub rate_limit: Option<Rate>,
    /// The congestion control of the endpoint's options: the one that a known rate is for when a client asks for no
    /// other.
    pub cc: String,
    /// Names of the congestion controls that clients may ask for.
    pub offered_cc: Vec<String>,
    /// The only request that is answered; any that the other options allow when left out.
    pub only: Option<AllowedRequest>,
    /// Clients may give files to others, set set-id bits and attributes of the system, and make devices.
    pub allow_privileged: bool,
}

/// The only request that a server answers, where it is started for one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedRequest {
    /// What the client wants.
    pub op: Op,
    /// The paths it names, in its order.
    pub paths: Vec<RelPath>,
}

impl ServeOptions {
    /// Serves `root` for reading and writing.
    pub fn new(root: impl Into<PathBuf>) -> ServeOptions {
        ServeOptions {
            root: root.into(),
            allow_read: true,
            allow_write: true,
            allow_overwrite: true,
            allow_delete: false,
            durable: true,
            direct: false,
            sessions: ShareLimits::of(DEFAULT_SESSIONS),
            memory: lhio::budget::memory_for_clients(None),
            descriptors: u64::MAX,
            rate_limit: None,
            cc: cc::registry::DEFAULT.to_owned(),
            offered_cc: cc::registry::names().into_iter().map(str::to_owned).collect(),
            only: None,
            allow_privileged: false,
        }
    }
}

struct Client {
    session: Session,
    progress: Progress,
    /// Who it is, or whom it acts for; none over plain iWARP.
    identity: Option<PeerIdentity>,
    /// Its key, where it was let in for one put of another client.
    guest: Option<[u8; 32]>,
    /// What it arranges between two servers.
    arranging: Option<Arranging>,
    /// The same for the log.
    who: SessionPeer,
    /// What of it was recorded in the endpoint's log.
    recorder: Recorder,
    /// What the receiving end counted, once it has come to its end.
    totals: Option<Totals>,
    transfer: Option<[u8; 16]>,
    /// A put that waits for an older session of the same transfer to end.
    waiting: Option<Box<Hello>>,
    /// A get that waits for the queue pair with the congestion control it asked for.
    opening: Option<(QpId, Box<Hello>)>,
    /// The rate that it asks for.
    asked_limit: Option<Rate>,
    /// What came in front of its request.
    asked: RequestPreamble,
    /// Said its last word; closed at this time unless the client does so before.
    deadline: Option<(Time, u64, String)>,
}

/// The server.
pub struct ServerApp {
    options: ServeOptions,
    budgets: Budgets,
    tree: Arc<Tree>,
    pool: Arc<Pool>,
    wake: Wake,
    clients: BTreeMap<ConnId, Client>,
    /// Closed, but jobs of theirs still run: (transfer, session).
    settling: Vec<(Option<[u8; 16]>, Session)>,
    monitor: Monitor,
    shares: Shares,
    /// Keys that are let in for clients; `None`: no client can ask for that.
    invitations: Option<Invitations>,
    /// What is sent to other servers; `None`: nothing is.
    copies: Option<Copies>,
    /// The rate of all sessions changes with the time of day.
    limiter: Option<Limiter>,
    next: Option<Time>,
}

impl ServerApp {
    /// Opens the folder. `wake` must wake the endpoint's loop, from any thread.
    ///
    /// # Errors
    /// [`Error::Local`] when the folder cannot be opened.
    pub fn new(options: ServeOptions, wake: Wake) -> Result<ServerApp, Error> {
        roots::not_empty(options.root.as_os_str().as_bytes(), "serve")?;
        let tree = Tree::open(&options.root).map_err(|e| Error::Local {
            text: format!(
                "cannot serve {}: {e}; give a folder that exists and can be read",
                options.root.display()
            ),
        })?;
        let (clients, settling) = Default::default();
        let pool = Arc::new(Pool::new());
        Ok(ServerApp {
            budgets: Budgets::new(options.memory, options.descriptors),
            shares: Shares::new(options.sessions, "transfers"),
            options,
            tree: Arc::new(tree),
            pool,
            wake,
            clients,
            settling,
            monitor: Monitor::default(),
            invitations: None,
            copies: None,
            limiter: None,
            next: None,
        })
    }
    /// What each session does and waits for, a line each, for those who look into one that stands still.
    pub fn state(&self) -> String {
        let line = |(c, x): (&ConnId, &Client)| format!("{} {}: {:?}\n", c.0, x.who.operation, x.session);
        self.clients.iter().map(line).collect()
    }
    /// Whether no client is there, and nothing of an earlier one is still being done.
    pub fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.settling.is_empty()
    }
    /// A view of it for other threads.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }
    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }

    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Incoming { conn } => self.incoming(now, conn, ep),
            Event::Closed { conn, reason } => {
                self.retire(now, conn, &reason, ep);
                let _ = ep.release(conn); // what is left is freed with the endpoint
            }
            Event::QpReady { conn, qp, by_peer: false, .. } => self.opened(now, conn, (qp, true), ep),
            Event::QpRefused { conn, qp, .. } => self.opened(now, conn, (qp, false), ep),
            _ => {}
        }
    }
    fn incoming(&mut self, now: Time, conn: ConnId, ep: &mut Endpoint) {
        let Some((remote, identity)) = ep.connection(conn).map(|i| (i.remote, i.peer.clone())) else {
            return;
        };
        let shown = identity.as_ref().map_or_else(|| "no key".to_owned(), ToString::to_string);
        let (identity, guest) = self.acts_for(identity);
        match self.shares.enter(now, conn, identity.as_ref(), remote) {
            Ok(displaced) => displaced.into_iter().for_each(|d| self.displace(now, &d, ep)),
            // A word with the end of the connection: no memory is spent on those who are refused.
            Err(full) => return ep.close(now, conn, code::REFUSED, &full.to_string()),
        }
        let peer = match (&guest, &identity) {
            (Some(_), Some(host)) => format!("{shown}, invited by {host}"),
            _ => shown,
        };
        let remote = remote.to_string();
        match Session::new(now, ep, conn) {
            Ok(session) => {
                self.guest_entered(guest.as_ref());
                let c = Client {
                    session,
                    progress: Progress::default(),
                    who: SessionPeer { remote, peer, operation: "", path: String::new() },
                    recorder: Recorder::new(now),
                    identity,
                    guest,
                    arranging: None,
                    totals: None,
                    transfer: None,
                    waiting: None,
                    opening: None,
                    asked_limit: None,
                    asked: RequestPreamble::default(),
                    deadline: None,
                };
                self.monitor.set(conn, &c.who, &c.progress);
                self.clients.insert(conn, c);
            }
            Err(f) => {
                self.shares.leave(conn);
                let (code, text) = f.close();
                ep.close(now, conn, code, text);
            }
        }
    }
    /// A session is over; jobs of it may still run.
    fn retire(&mut self, now: Time, conn: ConnId, reason: &CloseReason, ep: &mut Endpoint) {
        self.shares.leave(conn);
        if let Some(mut c) = self.clients.remove(&conn) {
            self.monitor.end(conn);
            self.guest_left(now, &c, reason);
            if let Some(stats) = ep.stats(conn) {
                c.progress.carried(&stats);
            }
            let last = (status(&c, reason), ep.log());
            c.recorder.end((now, conn), &c.who, &c.progress, c.totals, last);
            c.session.close(ep.adapter());
            self.settling.push((c.transfer, c.session));
        }
    }
    /// Ends a session that has lost its place. What it has done stays, and can be gone on with.
    fn displace(&mut self, now: Time, d: &Displaced, ep: &mut Endpoint) {
        let (client, peer) = match self.clients.get(&d.conn) {
            Some(c) => (c.who.remote.as_str(), c.who.peer.as_str()),
            None => ("", ""),
        };
        tracing::info!(client, peer, why = d.words, "a session gave way");
        ep.close(now, d.conn, BUSY, &d.words);
        let reason = CloseReason::Peer { code: BUSY, reason: d.words.to_string() };
        self.retire(now, d.conn, &reason, ep);
    }
    /// Closes sessions that do not say what they want.
    fn look(&mut self, now: Time, ep: &mut Endpoint) {
        let clients = &self.clients;
        let moved = |conn| {
            let working = clients.get(&conn).is_some_and(|c| c.session.is_working());
            SessionProgress { bytes: ep.payload_moved(conn), working }
        };
        for d in self.shares.check(now, moved) {
            self.displace(now, &d, ep);
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
                    self.shares.on_first_request(now, conn, ep.payload_moved(conn));
                    if let Err(f) = self.hello(now, conn, &mut c, h, ep) {
                        end(&mut c, now, f);
                    }
                    self.monitor.set(conn, &c.who, &c.progress);
                    if c.waiting.is_some() {
                        break;
                    }
                }
                Ok(Some(
                    ahead @ (Control::Select(_)
                    | Control::Names(_)
                    | Control::Placement(_)
                    | Control::Change(_)),
                )) => {
                    let begun = !matches!(c.session.role, Role::None);
                    if let Err(f) = c.asked.take(ahead, begun) {
                        end(&mut c, now, f);
                    }
                }
                Ok(Some(Control::Limit(rate))) => {
                    if !matches!(c.session.role, Role::Source(_)) {
                        end(&mut c, now, Fatal::protocol("a rate for what this end does not send"));
                        continue;
                    }
                    c.asked_limit = rate;
                    ep.set_rate_cap(conn, self.options.rate_limit.into_iter().chain(rate).min());
                }
                Ok(Some(Control::SinkEnd(totals))) => {
                    c.totals = Some(totals);
                    c.deadline = Some((now + LINGER, code::DONE, "done".into()));
                }
                Ok(Some(Control::Copy(m))) => {
                    if c.deadline.is_none()
                        && let Err(f) = self.arranged(now, conn, (&mut c, ep), *m)
                    {
                        end(&mut c, now, f);
                    }
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
        if let Err(f) = self.tell(now, &mut c) {
            end(&mut c, now, f);
        }
        settle(now, conn, &mut c, ep);
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
        let begun = begun || c.arranging.is_some();
        if begun || c.deadline.is_some() {
            return Err(Fatal::protocol("a second request in one session"));
        }
        if h.version != VERSION {
            let v = h.version;
            let text =
                format!("this server speaks version {VERSION}, the client {v}; update the older of the two");
            return Err(Fatal::Refuse(text));
        }
        c.who.operation = match h.op {
            Op::Put => "put",
            Op::Get => "get",
            Op::List => "list",
            Op::Change => c.asked.verb(),
            Op::Invite => "invite",
            Op::Copy => "copy",
        };
        c.who.path = shown_paths(&h.paths);
        self.guest_allowed(c, &h)?;
        if matches!(h.op, Op::Invite | Op::Copy) {
            return self.arrange(c, h);
        }
        self.allowed(&h)?;
        c.asked.allowed(&h, &self.options)?;
        if h.op == Op::Put {
            // A client that was cut off and comes again must not wait until its old connection times out.
            let older: Vec<ConnId> = self
                .clients
                .iter()
                .filter(|(_, o)| o.transfer == Some(h.transfer) && o.identity == c.identity)
                .map(|(id, _)| *id)
                .collect();
            for id in older {
                ep.close(now, id, code::SUPERSEDED, "a newer session of the same transfer took over");
                let superseded = "a newer session of the same transfer took over";
                self.retire(
                    now,
                    id,
                    &CloseReason::Peer { code: code::SUPERSEDED, reason: superseded.into() },
                    ep,
                );
            }
            c.transfer = Some(h.transfer);
            self.settle();
            if self.settling.iter().any(|(t, _)| *t == Some(h.transfer)) {
                c.waiting = Some(h);
                return Ok(());
            }
        }
        c.asked_limit = h.sending.rate_limit;
        if let Some(qp) = self.sending(now, conn, &h, ep)? {
            c.opening = Some((qp, h));
            return Ok(());
        }
        self.begin(c, &h, (conn, ep))
    }
    /// Obeys what the client asks of this end's sending; the queue pair to wait for, if it needs one.
    fn sending(&self, now: Time, conn: ConnId, h: &Hello, ep: &mut Endpoint) -> Result<Option<QpId>, Fatal> {
        let cap = self.options.rate_limit.into_iter().chain(h.sending.rate_limit).min();
        if cap.is_some() || self.limiter.is_some() {
            ep.set_rate_cap(conn, cap);
        }
        if ep.connection(conn).is_some_and(|i| i.iwarp.is_some()) {
            return self.sending_by_tcp(conn, h, ep).map(|()| None);
        }
        let stats = ep.stats(conn).ok_or(Fatal::Local("the connection is gone".into()))?;
        let path = PathSample { rtt: stats.srtt, packet: stats.mtu };
        let offered = self.offered(conn, ep);
        let policy = Policy { offered: &offered, own: &self.options.cc };
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
    /// What a client may ask for: of the algorithms that the server has, what its command line and its policy lend.
    fn offered(&self, conn: ConnId, ep: &Endpoint) -> Vec<String> {
        self.options.offered_cc.iter().filter(|name| ep.allows_peer_cc(conn, name)).cloned().collect()
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
            ep.set_iwarp_qos(conn, h.sending.application.as_deref(), h.sending.dscp).map_err(cannot)?;
        }
        let Some(cc) = &h.sending.cc else { return Ok(()) };
        let offered = self.offered(conn, ep);
        let mut lent = cc::registry::preferences(cc);
        lent.retain(|spec| offered.iter().any(|o| spec.split(':').next() == Some(o)));
        if lent.is_empty() {
            let there: Vec<&str> =
                offered.iter().map(String::as_str).filter(|name| ep.tcp_has(name)).collect();
            let offers = there.join(", ");
            let text = format!(
                "the server does not lend the congestion control `{cc}` to clients; it offers {offers}"
            );
            return Err(Fatal::Refuse(text));
        }
        ep.grant_tcp_congestion(conn, &lent.join(",")).map_err(cannot)
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
            self.monitor.set(conn, &c.who, &c.progress);
        }
        self.clients.insert(conn, c);
    }
    /// Whether clients are to learn nothing of what lies here.
    fn write_only(&self) -> bool {
        !self.options.allow_read
    }
    fn allowed(&self, h: &Hello) -> Result<(), Fatal> {
        let refuse = |t: &str| Err(Fatal::Refuse(t.into()));
        if self.options.only.as_ref().is_some_and(|o| o.op != h.op || o.paths != h.paths) {
            return refuse("the server was started for another transfer; start one for this");
        }
        match h.op {
            Op::Put if !self.options.allow_write => {
                refuse("the server is read-only; ask the one who runs it to serve it without --read-only")
            }
            Op::Get | Op::List if !self.options.allow_read => {
                refuse("the server takes files but gives none; ask the one who runs it to allow reading")
            }
            Op::Put if self.write_only() && h.flags.dry_run => refuse(
                "the server takes files and does not say what it has, so nothing can be found out in advance; leave out \
                 --dry-run",
            ),
            Op::Put if self.write_only() && self.options.allow_overwrite && !h.flags.overwrite => refuse(
                "the server takes files and does not say which it has, so --no-overwrite would tell; leave it out, or ask \
                 the one who runs the server to serve with --no-overwrite",
            ),
            Op::Put if h.paths.len() != 1 => Err(Fatal::protocol("a put has one destination")),
            Op::Put | Op::List | Op::Change if !h.sending.is_default() => {
                Err(Fatal::protocol("only a get says how the server is to send"))
            }
            Op::Get if h.paths.is_empty() => Err(Fatal::protocol("a get names at least one path")),
            _ => Ok(()),
        }
    }
    /// Gives the session its role.
    fn begin(&self, c: &mut Client, h: &Hello, (conn, ep): (ConnId, &Endpoint)) -> Result<(), Fatal> {
        let info = ep.connection(conn).ok_or(Fatal::Local("the connection is gone".into()))?;
        let limits = self.budgets.share(info, c.identity.as_ref());
        c.session.send(&[Record::Welcome { version: VERSION }]);
        let limit = self.options.rate_limit.into_iter().chain(h.sending.rate_limit).min();
        if let Some(m) = mapping(ep, conn, c.session.link.sends_on(), limit).filter(|_| h.sending.tell) {
            c.session.send(&[Record::Mapped(m)]);
        }
        match h.op {
            Op::Put => self.receive(c, h, limits)?,
            Op::Get => {
                let Sources { starts, roots, failed, .. } = self.sources(h);
                let what = (h.flags, h.keep, c.asked.select());
                let (pool, wake) = (self.pool.clone(), self.wake.clone());
                let rtt = ep.stats(conn).map_or(Span::ZERO, |s| s.min_rtt);
                let progress = c.progress.clone();
                let link = &mut c.session.link;
                let mut s = Source::selecting(pool, wake, (starts, roots), what, progress, link)?
                    .directly(self.options.direct)
                    .saving(ReductionPolicy::new(h.data_reduction, rtt))
                    .within(limits);
                s.without(failed, link);
                c.session.role = Role::Source(Box::new(s));
            }
            Op::List => self.list(c, h)?,
            Op::Change => self.change(c, h)?,
            Op::Invite | Op::Copy => return Err(Fatal::protocol("a request of another kind")),
        }
        Ok(())
    }
    fn sources(&self, h: &Hello) -> Sources {
        let mut out = Sources::default();
        for (i, p) in h.paths.iter().enumerate() {
            let contents = h.contents.get(i).copied().unwrap_or(false);
            for p in &expand(&self.tree, p) {
                let place = [p.as_bytes(), if contents { b"/" } else { b"" }].concat();
                out.add(roots::shown(p), &place, roots::served(&self.tree, p, contents));
            }
        }
        out
    }
    fn list(&self, c: &mut Client, h: &Hello) -> Result<(), Fatal> {
        let roots: Vec<(u32, RelPath)> = (0u32..).zip(h.paths.iter().cloned()).collect();
        let (asking, (out, listing)) = (ListingDemand::default(), sync_channel(4));
        let thread_state = ThreadState::default();
        let lister = Lister {
            tree: self.tree.clone(),
            roots,
            alternates: Vec::new(),
            depth: if h.flags.recursive { usize::MAX } else { 1 },
            hash: h.flags.checksum,
            report: true,
            link_targets: h.link_targets,
            extras: Arc::default(),
            asked: asking.asked(),
            out,
            wake: self.wake.clone(),
            thread_state: thread_state.clone(),
        };
        lister
            .spawn()
            .map_err(|e| Fatal::Local(format!("the server cannot start a thread: {e}; {NO_THREAD}")))?;
        c.session.role = Role::Lister { out: listing, asking, thread_state };
        Ok(())
    }
    fn change(&self, c: &mut Client, h: &Hello) -> Result<(), Fatal> {
        let (asking, (out, told)) = (ListingDemand::default(), sync_channel(4));
        let thread_state = ThreadState::default();
        let job = Changer {
            tree: self.tree.clone(),
            paths: h.paths.clone(),
            change: c.asked.change()?,
            asked: asking.asked(),
            out,
            wake: self.wake.clone(),
            thread_state: thread_state.clone(),
        };
        job.spawn()
            .map_err(|e| Fatal::Local(format!("the server cannot start a thread: {e}; {NO_THREAD}")))?;
        c.session.role = Role::Lister { out: told, asking, thread_state };
        Ok(())
    }
    /// Has the rate of all sessions change with the time of day; `rate_limit` of the options holds at first.
    #[must_use]
    pub fn limited(mut self, limiter: Option<Limiter>) -> ServerApp {
        self.limiter = limiter;
        self
    }
    fn limit(&mut self, now: Time, ep: &mut Endpoint) {
        let Some(rate) = self.limiter.as_mut().and_then(|l| l.change(now)) else { return };
        self.options.rate_limit = rate;
        for (conn, c) in &self.clients {
            ep.set_rate_cap(*conn, rate.into_iter().chain(c.asked_limit).min());
        }
    }
    fn settle(&mut self) {
        self.settling.retain_mut(|(_, s)| !s.settle());
    }
}

/// The paths of a request for the log, escaped; the first of many.
fn shown_paths(paths: &[RelPath]) -> String {
    let mut out: Vec<String> = paths.iter().take(SHOWN_PATHS).map(|p| show(roots::shown(p))).collect();
    if paths.len() > SHOWN_PATHS {
        out.push(format!("and {} more", paths.len() - SHOWN_PATHS));
    }
    out.join(" ")
}

/// How a session ended, for the log.
fn status(c: &Client, reason: &CloseReason) -> String {
    let done = |code: u64| code == code::DONE;
    match (c.totals, &c.deadline) {
        (Some(t), _) if t.failed > 0 => format!("{} could not be transferred", t.failed),
        (Some(_), _) => "done".to_owned(),
        (None, Some((_, code, _))) if done(*code) => "done".to_owned(),
        (None, Some((_, code::REFUSED, text))) => format!("refused: {text}"),
        (None, Some((_, _, text))) => format!("given up: {text}"),
        // A client that lists or is rehearsing says when it has all.
        (None, None) => match reason {
            CloseReason::Peer { code, .. } if done(*code) => "done".to_owned(),
            CloseReason::Peer { code: code::SUPERSEDED | BUSY, reason } => format!("interrupted: {reason}"),
            reason => format!("interrupted: {reason}"),
        },
    }
}

/// Sends what waits, and closes a session that is over, once its client has had time to hear of it.
fn settle(now: Time, conn: ConnId, c: &mut Client, ep: &mut Endpoint) {
    c.session.fit(now, ep, conn);
    c.session.link.flush(ep.adapter());
    let over = matches!(&c.session.role, Role::Sink(s) if s.ended());
    if let Role::Sink(s) = &c.session.role
        && over
    {
        c.totals = Some(s.totals());
    }
    if over && c.deadline.is_none() {
        c.deadline = Some((now + LINGER, code::DONE, "done".into()));
    }
    c.recorder.update(conn, &c.who, &c.progress, ep.log());
    if let Some((at, code, text)) = &c.deadline
        && *at <= now
    {
        ep.close(now, conn, *code, text);
    }
}
/// Says the last word. Where nothing was begun, it may take its time to be heard; after anything worse the connection
/// ends at once, with the reason, and nothing more of the client is carried out.
fn end(c: &mut Client, now: Time, f: Fatal) {
    if c.deadline.is_some() {
        return;
    }
    let (code, text) = f.close();
    let mut at = now;
    if matches!(f, Fatal::Refuse(_) | Fatal::Unable(_)) {
        let refused = matches!(f, Fatal::Refuse(_));
        c.session.send(&[Record::Abort { refused, text: text.to_string() }]);
        at = now + LINGER;
    }
    c.deadline = Some((at, code, text.to_string()));
}

impl App for ServerApp {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        self.limit(now, ep);
        self.settle();
        self.settle_copies(now);
        self.look(now, ep);
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
        let limit = self.limiter.as_ref().map(Limiter::next_look);
        self.next = deadlines
            .chain(limit)
            .chain(settle)
            .chain(self.shares.next_timeout())
            .chain(self.tell_next())
            .min();
    }
    fn next_timeout(&self) -> Option<Time> {
        self.next
    }
    fn finished(&self) -> bool {
        self.stopped() && self.is_idle() && self.copies_idle()
    }
}
