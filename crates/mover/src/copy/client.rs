//! The client of a copy between two servers: invites the sender at one, starts it at the other, and watches.

use crate::client::{TransferOptions, check_count, fits, hello, identity, of_close, remote_path};
use crate::error::{Cause, Error, FileError};
use crate::path::{RelPath, show};
use crate::progress::{Progress, Summary};
use crate::proto::{
    CopyMessage, CopyRequest, Flags, Hello, JobPhase, JobStatus, Op, Record, SecretSeed, Totals, VERSION,
};
use crate::roots::{means_contents, means_folder};
use crate::session::{Control, Fatal, Session, code};
use base::Time;
use endpoint::{App, ConnId, Connect, Endpoint, Event};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use transport::crypto::PeerIdentity;

/// Copies of which a server may tell one client.
const MAX_JOBS: usize = 1024;

/// What goes where: the put that the destination is to expect, and what the source is to send.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    /// The put, without the number of its transfer.
    pub put: Hello,
    /// Paths at the source, and whether their contents are meant.
    pub sources: Vec<(RelPath, bool)>,
}

impl CopyPlan {
    /// From what the user wrote.
    ///
    /// # Errors
    /// [`Error::Local`] names a path that no server can have.
    pub fn new(sources: &[Vec<u8>], dest: &[u8], o: &TransferOptions) -> Result<CopyPlan, Error> {
        let put = CopyPlan::put(dest, sources.len(), o)?;
        let each = |s: &Vec<u8>| {
            let path = RelPath::parse_lenient(s)
                .map_err(|e| Error::Local { text: format!("cannot copy {}: it {e}", show(s)) })?;
            Ok((path, means_contents(s)))
        };
        let sources = sources.iter().map(each).collect::<Result<_, Error>>()?;
        Ok(CopyPlan { put, sources })
    }

    /// The put alone, of so many sources.
    ///
    /// # Errors
    /// [`Error::Local`] names a path that no server can have, or too many sources.
    pub fn put(dest: &[u8], sources: usize, o: &TransferOptions) -> Result<Hello, Error> {
        check_count(sources, "copy")?;
        let mut put = hello(Op::Put, o.flags(), vec![remote_path(dest)?], &identity());
        (put.transfer, put.data_reduction, put.keep) = ([0; 16], o.data_reduction, o.keep);
        put.into = means_folder(dest) || sources > 1;
        Ok(put)
    }

    /// What the source is asked: to send to this server, by the key of this seed.
    ///
    /// # Errors
    /// [`Error::Local`]: the names are too long together.
    pub fn request(self, to: SocketAddr, fingerprint: [u8; 32], seed: [u8; 32]) -> Result<CopyAsk, Error> {
        let (put, sources, seed) = (self.put, self.sources, SecretSeed(seed));
        let m = CopyMessage::Start(Box::new(CopyRequest { put, sources, to, fingerprint, seed }));
        fits(&Record::Copy(m.clone()))?;
        Ok(CopyAsk(Op::Copy, None, m))
    }
}

/// What a server is asked.
#[derive(Clone, Debug)]
pub struct CopyAsk(Op, Option<Hello>, CopyMessage);

impl CopyAsk {
    /// The destination: let the owner of this key (Ed25519) do this put.
    pub fn invite(put: Hello, guest: [u8; 32]) -> CopyAsk {
        CopyAsk(Op::Invite, Some(put), CopyMessage::Invite { guest })
    }
    /// The source: which copies there are.
    pub fn list() -> CopyAsk {
        CopyAsk(Op::Copy, None, CopyMessage::List)
    }
    /// The source: tell of this one.
    pub fn follow(job: u64) -> CopyAsk {
        CopyAsk(Op::Copy, None, CopyMessage::Follow { job })
    }
    /// The source: stop this one.
    pub fn cancel(job: u64) -> CopyAsk {
        CopyAsk(Op::Copy, None, CopyMessage::Cancel { job })
    }
}

/// What is told of copies: for other threads, too.
#[derive(Clone, Default)]
pub struct CopyWatch {
    progress: Progress,
    jobs: Arc<Mutex<Vec<JobStatus>>>,
}

impl CopyWatch {
    fn lock(&self) -> MutexGuard<'_, Vec<JobStatus>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// What the copy that is watched has done, the result, and the way to stop watching.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
    /// The copies, each as it was told of last.
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.lock().clone()
    }
    /// Whether this is the end of a copy that is watched; `None` of a message that is not about one.
    pub fn hear(&self, m: &CopyMessage) -> Option<bool> {
        match m {
            CopyMessage::Status(s) => {
                self.status(s);
                Some(false)
            }
            CopyMessage::Failed { path, cause, text } => {
                let e = FileError { path: path.clone(), cause: Cause::from_wire(*cause), text: text.clone() };
                self.progress.update(|p| {
                    if p.errors.len() < crate::progress::MAX_ERRORS {
                        p.errors.push(e);
                    }
                });
                Some(false)
            }
            CopyMessage::End => Some(true),
            _ => None,
        }
    }
    fn status(&self, s: &JobStatus) {
        let mut all = self.lock();
        let before = match all.iter_mut().find(|o| o.job == s.job) {
            Some(o) => Some(std::mem::replace(o, s.clone())),
            None => {
                if all.len() < MAX_JOBS {
                    all.push(s.clone());
                }
                None
            }
        };
        drop(all);
        let some = |n: u64| Some(n).filter(|n| *n > 0);
        self.progress.update(|p| {
            if before.is_some_and(|b| b.attempt != s.attempt) {
                p.errors.clear();
            }
            p.found(&s.found);
            p.complete = s.complete;
            (p.files_confirmed, p.bytes_confirmed, p.bytes_resumed) =
                (s.files_confirmed, s.bytes_confirmed, s.bytes_resumed);
            (p.bytes_sent, p.bytes_retransmitted) = (s.bytes_sent, s.bytes_retransmitted);
            (p.bytes_per_second, p.files_per_second) = (some(s.bytes_per_second), some(s.files_per_second));
            p.seconds_left = some(s.millis_left).map(|m| m as f64 / 1e3);
            (p.failed, p.current) = (s.failed, s.current.clone());
        });
    }
    /// How the copy that was watched ended, by what was told of it.
    pub fn result(&self) -> Option<Error> {
        self.lock().first().filter(|j| j.phase == JobPhase::Ended).and_then(|j| j.error.clone())
    }
    /// Nothing more is told: the first result counts. `nanos`: how long that took, where no copy was told of.
    pub fn finish(&self, error: Option<Error>, nanos: u64, dry_run: bool) {
        let progress = self.progress.snapshot();
        let all = self.jobs();
        let (nanos, totals) = match &all[..] {
            [one] => (one.nanos, one.totals),
            _ => (nanos, Totals::default()),
        };
        self.progress.finish(Summary { error, progress, totals, nanos, dry_run });
    }
}

/// Asks one thing of one server, and watches what comes of it.
pub struct CopyClient {
    connect: Option<Connect>,
    conn: Option<ConnId>,
    ask: CopyAsk,
    /// Leaves as soon as the copy has its number.
    detach: bool,
    session: Option<Session>,
    watch: CopyWatch,
    peer: Option<PeerIdentity>,
    started: Time,
    closed: bool,
}

impl CopyClient {
    /// Asks `ask`; with `detach`, a copy is begun and not watched.
    pub fn new(connect: Connect, ask: CopyAsk, detach: bool) -> CopyClient {
        CopyClient {
            connect: Some(connect),
            conn: None,
            ask,
            detach,
            session: None,
            watch: CopyWatch::default(),
            peer: None,
            started: Time::ZERO,
            closed: false,
        }
    }
    /// What it is told.
    pub fn watch(&self) -> CopyWatch {
        self.watch.clone()
    }
    /// Who answered, once somebody has.
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.peer.as_ref()
    }

    fn finish(&mut self, now: Time, error: Option<Error>) {
        let dry_run = matches!(&self.ask.2, CopyMessage::Start(r) if r.put.flags.dry_run);
        self.watch.finish(error, now.since(self.started).as_nanos(), dry_run);
    }
    fn stop(&mut self, now: Time, ep: &mut Endpoint, error: Option<Error>, (code, text): (u64, &str)) {
        self.finish(now, error);
        match self.conn {
            Some(c) => ep.close(now, c, code, text),
            None => self.closed = true,
        }
    }
    fn fatal(&mut self, now: Time, ep: &mut Endpoint, f: &Fatal) {
        let (code, text) = f.close();
        let error = match f {
            Fatal::OtherService => Error::Protocol { text: "it does not speak of transfers".into() },
            Fatal::Protocol(t) => Error::Protocol { text: t.clone() },
            Fatal::Local(t) | Fatal::Unable(t) | Fatal::Refuse(t) => Error::Local { text: t.clone() },
        };
        self.stop(now, ep, Some(error), (code, text));
    }
    fn event(&mut self, now: Time, e: Event, ep: &mut Endpoint) {
        match e {
            Event::Connected { conn } => match Session::new(now, ep, conn) {
                Ok(mut s) => {
                    self.peer = ep.connection(conn).and_then(|i| i.peer.clone());
                    let mut first = self.ask.1.clone().unwrap_or_else(|| {
                        let flags = Flags::from_bits(0).unwrap_or_else(|| TransferOptions::default().flags());
                        hello(Op::Copy, flags, Vec::new(), &identity())
                    });
                    first.op = self.ask.0;
                    s.send(&[Record::Hello(first)]);
                    s.send(&[Record::Copy(self.ask.2.clone())]);
                    s.link.flush(ep.adapter());
                    self.session = Some(s);
                }
                Err(f) => self.fatal(now, ep, &f),
            },
            Event::Closed { conn, reason } => {
                if let Some(mut s) = self.session.take() {
                    s.close(ep.adapter());
                }
                let _ = ep.release(conn); // what is left is freed with the endpoint
                self.finish(now, Some(of_close(reason)));
                self.closed = true;
            }
            _ => {}
        }
    }
    /// Takes what the server says; whether that was all.
    fn control(&mut self, c: Control) -> Result<bool, Fatal> {
        match c {
            Control::Welcome(v) if v != VERSION => {
                Err(Fatal::Protocol(format!("the server speaks version {v}, this program {VERSION}")))
            }
            Control::Welcome(_) => Ok(false),
            Control::Copy(m) => match *m {
                CopyMessage::Invited { .. } if self.ask.0 == Op::Invite => Ok(true),
                m if self.ask.0 == Op::Copy => match self.watch.hear(&m) {
                    Some(end) => Ok(end || self.detach && matches!(m, CopyMessage::Status(_))),
                    None => Err(Fatal::protocol("a message about copies out of turn")),
                },
                _ => Err(Fatal::protocol("a message about copies out of turn")),
            },
            _ => Err(Fatal::protocol("a record that does not belong to this request")),
        }
    }
    fn run(&mut self, now: Time, ep: &mut Endpoint) {
        let (Some(mut s), Some(conn)) = (self.session.take(), self.conn) else { return };
        loop {
            let done = match s.step(ep.adapter()) {
                Ok(None) => break,
                Ok(Some(Control::Abort { refused, text })) => {
                    let e = if refused { Error::Refused { text } } else { Error::Peer { text } };
                    self.stop(now, ep, Some(e), (code::DONE, "understood"));
                    break;
                }
                Ok(Some(c)) => self.control(c),
                Err(f) => Err(f),
            };
            match done {
                Ok(false) => {}
                Ok(true) => {
                    let listed = matches!(self.ask.2, CopyMessage::List);
                    let error = self.watch.result().filter(|_| !listed);
                    self.stop(now, ep, error, (code::DONE, "done"));
                    break;
                }
                Err(f) => {
                    self.fatal(now, ep, &f);
                    break;
                }
            }
        }
        s.fit(now, ep, conn);
        s.link.flush(ep.adapter());
        self.session = Some(s);
    }
}

impl App for CopyClient {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            self.started = now;
            match ep.connect(now, c) {
                Ok(id) => self.conn = Some(id),
                Err(e) => {
                    self.finish(now, Some(Error::Local { text: e.to_string() }));
                    self.closed = true;
                }
            }
        }
        while let Some(e) = ep.poll_event() {
            self.event(now, e, ep);
        }
        if self.watch.progress.interrupted() && self.watch.progress.outcome().is_none() {
            let end = (code::INTERRUPTED, "stopped watching");
            self.stop(now, ep, Some(Error::Interrupted), end);
        }
        if self.watch.progress.outcome().is_none() {
            self.run(now, ep);
        }
    }
    fn finished(&self) -> bool {
        self.closed
    }
}
