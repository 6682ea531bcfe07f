//! One transfer over one connection: routes messages to source or sink. What is common to client and
//! server; which of them is the source does not matter here.

use crate::link::{FIRST_RECEIVES, Link, LinkEvent};
use crate::placement::Placement;
use crate::proto::{
    Change, CopyMessage, Entry, Extra, Hello, Kind, Mapping, Name, ProtoError, Record, Totals, decode,
};
use crate::select::{Names, Select};
use crate::sink::Sink;
use crate::sink::list::ListingDemand;
use crate::source::{Source, send};
use crate::thread_state::ThreadState;
use base::{Rate, Span, Time};
use endpoint::{ConnId, Endpoint};
use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::Receiver;

/// Close codes of the mover, in the application's space of the transport.
pub(crate) mod code {
    /// Everything was done.
    pub const DONE: u64 = 0x1000;
    /// The request was refused.
    pub const REFUSED: u64 = 0x1001;
    /// The peer broke the protocol.
    pub const PROTOCOL: u64 = 0x1002;
    /// This end could not go on.
    pub const LOCAL: u64 = 0x1003;
    /// Stopped by the user.
    pub const INTERRUPTED: u64 = 0x1004;
    /// A newer session of the same transfer took over.
    pub const SUPERSEDED: u64 = 0x1005;
    /// The client is one of another service than this server's.
    pub const OTHER_SERVICE: u64 = 0x1006;
}

/// Code with which a server closes a connection whose client is one of another service.
pub const OTHER_SERVICE: u64 = code::OTHER_SERVICE;

/// What ends a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fatal {
    /// The peer broke the protocol.
    Protocol(String),
    /// This end cannot go on.
    Local(String),
    /// The peer speaks of something else than transfers.
    OtherService,
    /// The request cannot be served.
    Refuse(String),
    /// Nothing was begun, since this end's system failed (a full disk, say).
    Unable(String),
}
impl Fatal {
    pub fn protocol(text: &str) -> Fatal {
        Fatal::Protocol(text.into())
    }
    /// Close code and words.
    pub fn close(&self) -> (u64, &str) {
        match self {
            Fatal::Protocol(t) => (code::PROTOCOL, t),
            Fatal::OtherService => (code::OTHER_SERVICE, "this is a file server (longhaul serve)"),
            Fatal::Local(t) | Fatal::Unable(t) => (code::LOCAL, t),
            Fatal::Refuse(t) => (code::REFUSED, t),
        }
    }
}

/// What is wrong with a message. One that begins as JSON does is `longhaul perf`'s.
fn of_decoding(e: ProtoError) -> Fatal {
    match e {
        ProtoError::Type(b'{') => Fatal::OtherService,
        e => Fatal::Protocol(e.to_string()),
    }
}

/// An entry of a listing as a client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What is there.
    pub entry: Entry,
    /// The target of a symbolic link; `None` where the server did not tell it.
    pub target: Option<Vec<u8>>,
    /// What is kept beside mode and time, where a transfer asks for it.
    pub(crate) extra: Option<Box<Extra>>,
    /// The folder of `--link-dest` that it is in; `None`: it is at the destination.
    pub(crate) folder: Option<u8>,
}

/// What the owner of a session decides.
#[derive(Debug)]
pub(crate) enum Control {
    Hello(Box<Hello>),
    Select(Box<Select>),
    Names(Names),
    Placement(Box<Placement>),
    /// The client of a get wants another rate.
    Limit(Option<Rate>),
    Change(Change),
    Welcome(u64),
    Mapped(Mapping),
    Copy(Box<CopyMessage>),
    Abort {
        refused: bool,
        text: String,
    },
    SinkEnd(Totals),
    /// Entries of a message, for a client that lists.
    Entries(Vec<Listed>),
    /// One message of a listing was read: it took one of the credit.
    Listed,
    ListEnd,
    /// A failure that the peer met, for a client that lists.
    Failed {
        path: String,
        cause: u8,
        text: String,
    },
}

/// Which part this end plays.
pub(crate) enum Role {
    /// Not known yet.
    None,
    Source(Box<Source>),
    Sink(Box<Sink>),
    /// A server that lists.
    Lister {
        out: Receiver<Vec<u8>>,
        asking: ListingDemand,
        thread_state: ThreadState,
    },
    /// A client that lists.
    Reader,
}

/// Bytes of a listing that are on their way to its reader at most.
const MAX_LISTED: u64 = 1 << 20;
/// How often memory is adapted to the path when no round-trip time is known.
const FIT_EVERY: Span = Span::from_millis(100);

/// A transfer on a connection.
pub(crate) struct Session {
    pub link: Link,
    pub role: Role,
    events: VecDeque<LinkEvent>,
    controls: VecDeque<Control>,
    fitted: Time,
    received: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::None => f.write_str("no role yet")?,
            Role::Source(s) => write!(f, "{s:?}")?,
            Role::Sink(s) => write!(f, "{s:?}")?,
            Role::Lister { thread_state, .. } => write!(f, "lister: {thread_state:?}")?,
            Role::Reader => f.write_str("reader of a listing")?,
        }
        write!(f, "; {:?}; {} messages and returns to handle", self.link, self.events.len())
    }
}

/// The entry that a target belongs to: the one before it, of that name.
fn of_link<'a>(last: Option<&'a mut Listed>, name: &Name) -> Result<&'a mut Listed, Fatal> {
    let is_it = |l: &Listed| {
        let e = &l.entry;
        l.target.is_none() && (e.kind, e.root, &e.path) == (Kind::Link, name.root, &name.path)
    };
    last.filter(|l| is_it(l)).ok_or_else(|| Fatal::protocol("the target of a link that was not listed"))
}

/// Whether a record may stand behind a [`Record::Extra`].
fn has_attributes(r: &Record<'_>) -> bool {
    matches!(
        r,
        Record::Dir { .. }
            | Record::Link { .. }
            | Record::Small { .. }
            | Record::Touch { .. }
            | Record::Node { .. }
            | Record::Offer(_)
            | Record::Entry(_)
            | Record::Alternate { .. }
            | Record::LinkFrom(_)
    )
}

impl Session {
    /// On queue pair 0 of a connection that is ready.
    pub fn new(now: Time, ep: &mut Endpoint, conn: ConnId) -> Result<Session, Fatal> {
        let info = ep.connection(conn).ok_or(Fatal::Local("the connection is gone".into()))?;
        let qp = *info.qps.first().ok_or(Fatal::Local("the connection has no queue pair".into()))?;
        let (pd, cq, ordered) = (info.pd, info.cq, info.iwarp.is_some());
        let mut link = Link::new(ep.adapter(), pd, cq, qp)
            .map_err(|e| Fatal::Local(format!("cannot prepare {FIRST_RECEIVES} receive buffers: {e}")))?;
        if ordered {
            link.ordered();
        }
        Ok(Session::over(link, now))
    }
    pub(crate) fn over(link: Link, now: Time) -> Session {
        let (events, controls) = Default::default();
        Session { link, role: Role::None, events, controls, fitted: now, received: 0 }
    }
    /// Takes completions, and messages up to the first record that the owner decides about. Call again until it
    /// returns `None`.
    pub fn step(&mut self, a: &mut verbs::Adapter) -> Result<Option<Control>, Fatal> {
        let hold = matches!(&self.role, Role::Sink(s) if s.full()) || self.events.len() > FIRST_RECEIVES;
        let mut new = Vec::new();
        self.link.poll(a, hold, &mut new);
        self.events.extend(new);
        loop {
            if let Some(c) = self.controls.pop_front() {
                return Ok(Some(c));
            }
            match self.events.pop_front() {
                None => break,
                Some(LinkEvent::Message(m)) => self.message(m, a)?,
                Some(LinkEvent::Returned(b)) => {
                    if let Role::Source(s) = &mut self.role {
                        s.returned(b);
                    }
                }
                // The end of the connection follows.
                Some(LinkEvent::Broken) => {}
            }
        }
        match &mut self.role {
            Role::Source(s) => s.drive(a, &mut self.link)?,
            Role::Sink(s) => {
                s.drive(a, &mut self.link)?;
                // Reports may have made room; nothing else might wake this end again.
                if !s.full() {
                    self.link.repost(a);
                }
            }
            Role::Lister { out, .. } => {
                while self.link.queued() < FIRST_RECEIVES
                    && self.link.messages() < MAX_LISTED
                    && let Ok(m) = out.try_recv()
                {
                    self.link.send(m);
                }
            }
            Role::None | Role::Reader => {}
        }
        self.link.flush(a);
        Ok(None)
    }
    pub(crate) fn message(&mut self, m: Vec<u8>, a: &mut verbs::Adapter) -> Result<(), Fatal> {
        let mut entries = Vec::new();
        let (mut small, mut listed, mut extra) = (false, false, None);
        for r in decode(&m).map_err(of_decoding)? {
            if extra.is_some() && !has_attributes(&r) {
                return Err(Fatal::protocol("attributes of nothing"));
            }
            match r {
                Record::Extra(x) => {
                    extra = Some(Box::new(x));
                    continue;
                }
                // It says that what is there is the same, which only who was told can know.
                Record::Touch { .. } if matches!(&self.role, Role::Sink(s) if !s.lists()) => {
                    return Err(Fatal::protocol("mode and time of a file that nobody was told of"));
                }
                Record::Link { name, target, .. } if matches!(&self.role, Role::Reader) => {
                    of_link(entries.last_mut(), &name)?.target = Some(target.to_vec());
                }
                Record::Dir { .. }
                | Record::Link { .. }
                | Record::Small { .. }
                | Record::Touch { .. }
                | Record::Node { .. }
                | Record::LinkFrom(_)
                | Record::HardLink { .. } => small = true,
                Record::Zipped { len, frame } => match &mut self.role {
                    Role::Sink(s) => s.zipped(len, frame.to_vec())?,
                    _ => return Err(Fatal::protocol("files came to the sending side")),
                },
                Record::Offer(o) => match &mut self.role {
                    Role::Sink(s) => s.offer(o, extra.take())?,
                    _ => return Err(Fatal::protocol("a record out of turn")),
                },
                Record::Entry(entry) => {
                    listed = true;
                    entries.push(Listed { entry, target: None, extra: extra.take(), folder: None });
                }
                Record::Alternate { folder, entry } => {
                    listed = true;
                    let folder = Some(folder);
                    entries.push(Listed { entry, target: None, extra: extra.take(), folder });
                }
                r => {
                    listed |= matches!(r, Record::Failed { .. } | Record::ListEnd);
                    // The listing's end comes after its entries.
                    if !entries.is_empty() {
                        self.entries(std::mem::take(&mut entries))?;
                    }
                    self.record(r, a)?;
                }
            }
            extra = None;
        }
        if extra.is_some() {
            return Err(Fatal::protocol("attributes of nothing"));
        }
        if !entries.is_empty() {
            self.entries(entries)?;
        }
        match &mut self.role {
            Role::Sink(s) if small => s.message(m),
            _ if small => Err(Fatal::protocol("files came to the sending side")),
            Role::Reader if listed => {
                self.controls.push_back(Control::Listed);
                Ok(())
            }
            _ => Ok(()),
        }
    }
    fn entries(&mut self, e: Vec<Listed>) -> Result<(), Fatal> {
        match &mut self.role {
            Role::Source(s) => s.entries(e)?,
            Role::Reader => self.controls.push_back(Control::Entries(e)),
            _ => return Err(Fatal::protocol("a listing that was not asked for")),
        }
        Ok(())
    }
    fn record(&mut self, r: Record<'_>, a: &mut verbs::Adapter) -> Result<(), Fatal> {
        let control = match r {
            Record::Hello(h) => Control::Hello(Box::new(h)),
            Record::Select(s) => Control::Select(s),
            Record::Names(n) => Control::Names(n),
            Record::Change(c) => Control::Change(c),
            Record::Placement(p) => Control::Placement(p),
            Record::Limit(rate) => Control::Limit(rate),
            Record::Welcome { version } => Control::Welcome(version),
            Record::Mapped(m) => Control::Mapped(m),
            Record::Copy(m) => Control::Copy(Box::new(m)),
            Record::Abort { refused, text } => Control::Abort { refused, text },
            Record::SinkEnd(t) if matches!(&self.role, Role::Source(s) if s.ended()) => Control::SinkEnd(t),
            r => match (&mut self.role, r) {
                (Role::Source(s), r) => return s.record(r, &mut self.link),
                (Role::Sink(s), r) => return s.record(r, a),
                (Role::Lister { asking, .. }, Record::ListCredit(n)) => {
                    asking.more(n);
                    return Ok(());
                }
                (Role::Reader, Record::ListEnd) => Control::ListEnd,
                (Role::Reader, Record::Failed { path, cause, text }) => Control::Failed { path, cause, text },
                _ => return Err(Fatal::protocol("a record out of turn")),
            },
        };
        self.controls.push_back(control);
        Ok(())
    }
    /// Adapts buffers to the path, about once a round trip.
    pub fn fit(&mut self, now: Time, ep: &mut Endpoint, conn: ConnId) {
        let Some(s) = ep.stats(conn) else { return };
        let rtt = if s.srtt.is_zero() { FIT_EVERY } else { s.srtt };
        let passed = now.since(self.fitted);
        if passed < rtt {
            return;
        }
        // What came in, scaled to one round trip: wake-ups may be further apart.
        let came = (self.link.received() - self.received) as f64 * rtt.as_secs_f64() / passed.as_secs_f64();
        (self.fitted, self.received) = (now, self.link.received());
        self.link.fit(ep.adapter(), came.ceil() as u64);
        match &mut self.role {
            Role::Source(x) => x.fit(now, &s, passed.as_secs_f64() / rtt.as_secs_f64()),
            // This end sends little; what arrives tells how much the path holds.
            Role::Sink(x) => {
                let total = s.payload_received;
                x.arrived(total, passed, rtt);
            }
            _ => {}
        }
    }
    /// Queues one message of these records.
    pub fn send(&mut self, records: &[Record<'_>]) {
        send(&mut self.link, records);
    }
    /// Whether jobs of this end's own are under way for it: nothing moving is not the peer's doing.
    pub fn is_working(&self) -> bool {
        match &self.role {
            Role::Source(s) => s.is_working(),
            Role::Sink(s) => s.is_working(),
            Role::Lister { thread_state, .. } => thread_state.is_working(),
            _ => false,
        }
    }
    /// Gives all regions back. What is unfinished can be resumed.
    pub fn close(&mut self, a: &mut verbs::Adapter) {
        match &mut self.role {
            Role::Source(s) => s.close(),
            Role::Sink(s) => s.close(a),
            _ => {}
        }
        self.link.close(a);
    }
    /// After [`close`](Self::close): whether no job works for it any more.
    pub fn settle(&mut self) -> bool {
        match &mut self.role {
            Role::Sink(s) => s.settle(),
            _ => true,
        }
    }
}
