//! Transfers between two servers, as a server sees them: it lets others in for its clients, and sends to others for them.

use super::{Client, LINGER, ServerApp};
use crate::copy::{Copies, CopyLimits, CopyRunner, INVITATION_LIFETIME, Invitations, Start};
use crate::proto::{CopyMessage, Hello, JobPhase, Op, Record, VERSION};
use crate::session::{Fatal, code};
use base::{Span, Time};
use endpoint::{CloseReason, ConnId, Endpoint, network_of};
use transport::crypto::PeerIdentity;

/// How often a client that watches a copy is told of it.
const TELL_EVERY: Span = Span::from_millis(250);
/// Failures of files told of at a time.
const FAILURES: usize = 64;

/// What a session is about that arranges a transfer between two servers.
pub(super) enum Arranging {
    /// Its client will name the key that may do this.
    Invitation(Box<Hello>),
    /// Its client will say what it wants.
    Question,
    /// It is told of this copy.
    Watching {
        job: u64,
        /// Attempt, and failures of it that were told.
        told: (u64, usize),
        next: Time,
    },
}

impl ServerApp {
    /// Lets others in for clients that ask for it. Who decides about clients asks [`Invitations::admit`] last.
    #[must_use]
    pub fn with_invitations(mut self, i: Invitations) -> ServerApp {
        self.invitations = Some(i);
        self
    }

    /// Sends to other servers for clients that ask for it.
    #[must_use]
    pub fn with_copies(mut self, runner: Box<dyn CopyRunner>, limits: CopyLimits) -> ServerApp {
        self.copies = Some(Copies::new(runner, limits));
        self
    }

    /// For whom a client acts, and its own key where that is another one.
    pub(super) fn acts_for(&self, peer: Option<PeerIdentity>) -> (Option<PeerIdentity>, Option<[u8; 32]>) {
        match self.invitations.as_ref().and_then(|i| i.host_of(peer.as_ref())) {
            Some((guest, host)) => (Some(host), Some(guest)),
            None => (peer, None),
        }
    }

    /// Counts the session of a guest.
    pub(super) fn guest_entered(&self, guest: Option<&[u8; 32]>) {
        if let (Some(i), Some(g)) = (&self.invitations, guest) {
            i.enter(g);
        }
    }

    /// The session of a guest is over, if it was one.
    pub(super) fn guest_left(&self, now: Time, c: &Client, reason: &CloseReason) {
        if let (Some(i), Some(g)) = (&self.invitations, &c.guest) {
            // A rehearsal has no totals; who is refused anything says so, too, but has heard that before.
            let by_itself = matches!(reason, CloseReason::Peer { code: code::DONE, .. });
            let rehearsed = c.deadline.is_none() && by_itself;
            i.leave(now, g, c.totals.is_some() || rehearsed);
        }
    }

    /// Whether a guest was invited for what it asks.
    pub(super) fn guest_allowed(&self, c: &Client, h: &Hello) -> Result<(), Fatal> {
        match (&self.invitations, &c.guest) {
            (Some(i), Some(g)) if !i.allows(g, h) => Err(Fatal::Refuse(
                "this key was let in for one other transfer; ask for an invitation for this".into(),
            )),
            (Some(_), Some(_)) if c.asked.reaches_beyond() => Err(Fatal::Refuse(
                "who was let in for another's transfer may use no folder but its destination; leave out --link-dest and \
                 --partial-dir"
                    .into(),
            )),
            (Some(_), Some(_)) if c.asked.removes() => Err(Fatal::Refuse(
                "who was let in for another's transfer may not have anything deleted; ask without that"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// A request to arrange a transfer between two servers.
    pub(super) fn arrange(&self, c: &mut Client, h: Box<Hello>) -> Result<(), Fatal> {
        let refuse = |t: &str| Err(Fatal::Refuse(t.into()));
        if c.identity.is_none() {
            return refuse(
                "without a key nobody can have a server do something for it; ask over longhaul://",
            );
        }
        if h.op == Op::Invite {
            if self.invitations.is_none() {
                return refuse(
                    "the server lets nobody in for others: it was started for one transfer, or admits certificates only (--ca)",
                );
            }
            self.allowed(&Hello { op: Op::Put, ..(*h).clone() })?;
            c.arranging = Some(Arranging::Invitation(h));
            return Ok(());
        }
        if self.copies.is_none() {
            return refuse(
                "the server does not send to other servers; ask the one who runs it to serve with --allow-copy",
            );
        }
        if !self.options.allow_read {
            return refuse("the server takes files but gives none; ask the one who runs it to allow reading");
        }
        c.session.send(&[Record::Welcome { version: VERSION }]);
        c.arranging = Some(Arranging::Question);
        Ok(())
    }

    /// What the client of such a session says.
    pub(super) fn arranged(
        &mut self,
        now: Time,
        conn: ConnId,
        (c, ep): (&mut Client, &Endpoint),
        m: CopyMessage,
    ) -> Result<(), Fatal> {
        let Some(owner) = c.identity.clone() else { return Err(Fatal::protocol("a request without a key")) };
        match (c.arranging.take(), m) {
            (Some(Arranging::Invitation(h)), CopyMessage::Invite { guest }) => {
                let Some(i) = &self.invitations else { return Err(Fatal::protocol("an invitation")) };
                i.issue(now, &owner, guest, &h).map_err(|t| Fatal::Refuse(t.into()))?;
                let seconds = INVITATION_LIFETIME.as_nanos() / 1_000_000_000;
                let invited = Record::Copy(CopyMessage::Invited { seconds });
                c.session.send(&[Record::Welcome { version: VERSION }, invited]);
                c.deadline = Some((now + LINGER, code::DONE, "done".into()));
                return Ok(());
            }
            (Some(Arranging::Question), CopyMessage::Start(r)) => {
                let to = r.to;
                let job = self.start_copy(now, (c, ep, conn), &owner, *r)?;
                tracing::info!(client = c.who.remote, peer = c.who.peer, %to, job, "a copy begins");
                self.watch_copy(now, c, job);
            }
            (Some(Arranging::Question), CopyMessage::List) => self.list_copies(now, c, &owner),
            (Some(Arranging::Question), CopyMessage::Follow { job }) => self.watch_copy(now, c, job),
            (Some(Arranging::Question), CopyMessage::Cancel { job }) => {
                if let Some(all) = &self.copies {
                    all.cancel(&owner, job);
                }
                self.watch_copy(now, c, job);
            }
            _ => return Err(Fatal::protocol("a message about copies out of turn")),
        }
        self.tell(now, c)
    }

    fn watch_copy(&self, now: Time, c: &mut Client, job: u64) {
        c.arranging = Some(Arranging::Watching { job, told: (1, 0), next: now });
    }

    fn start_copy(
        &mut self,
        now: Time,
        (c, ep, conn): (&mut Client, &Endpoint, ConnId),
        owner: &PeerIdentity,
        r: crate::proto::CopyRequest,
    ) -> Result<u64, Fatal> {
        let Some(all) = &mut self.copies else { return Err(Fatal::protocol("a copy")) };
        c.who.path = super::shown_paths(&r.sources.iter().map(|(p, _)| p.clone()).collect::<Vec<_>>());
        let network = ep.connection(conn).map(|i| network_of(i.remote.ip()).to_string());
        let groups = network.into_iter().chain([owner.to_string()]).collect();
        let start = Start {
            owner,
            tree: &self.tree,
            direct: self.options.direct,
            budgets: (&self.budgets, groups),
            wake: self.wake.clone(),
        };
        all.start(now, r, start).map_err(Fatal::Refuse)
    }

    fn list_copies(&mut self, now: Time, c: &mut Client, owner: &PeerIdentity) {
        let Some(all) = &mut self.copies else { return };
        for job in all.of(owner) {
            if let Some((s, _)) = all.status(now, owner, job) {
                c.session.send(&[Record::Copy(CopyMessage::Status(Box::new(s)))]);
            }
        }
        c.session.send(&[Record::Copy(CopyMessage::End)]);
        c.deadline = Some((now + LINGER, code::DONE, "done".into()));
    }

    /// Tells a client of the copy that it watches, if it is time and the client takes it.
    pub(super) fn tell(&mut self, now: Time, c: &mut Client) -> Result<(), Fatal> {
        let (Some(Arranging::Watching { job, told, next }), Some(all), Some(owner), None) =
            (&mut c.arranging, &mut self.copies, &c.identity, &c.deadline)
        else {
            return Ok(());
        };
        let Some((s, progress)) = all.status(now, owner, *job) else {
            let text = format!(
                "this client has no copy {job} here: it ended long ago, or the server was started again; list those it has, or \
                 repeat the copy, which goes on where it was"
            );
            return Err(Fatal::Refuse(text));
        };
        let ended = s.phase == JobPhase::Ended;
        if (now < *next && !ended) || c.session.link.queued() > 0 {
            return Ok(());
        }
        *next = now + TELL_EVERY;
        if told.0 != s.attempt {
            *told = (s.attempt, 0);
        }
        let failures =
            progress.with(|p| p.errors.iter().skip(told.1).take(FAILURES).cloned().collect::<Vec<_>>());
        told.1 += failures.len();
        let all_told = failures.len() < FAILURES;
        // The status of an attempt comes before its failures.
        c.session.send(&[Record::Copy(CopyMessage::Status(Box::new(s)))]);
        for e in failures {
            let failed = CopyMessage::Failed { path: e.path, cause: e.cause as u8, text: e.text };
            c.session.send(&[Record::Copy(failed)]);
        }
        if ended && all_told {
            c.session.send(&[Record::Copy(CopyMessage::End)]);
            c.deadline = Some((now + LINGER, code::DONE, "done".into()));
        }
        Ok(())
    }

    /// When a client is to be told of its copy next.
    pub(super) fn tell_next(&self) -> Option<Time> {
        let next = |c: &Client| match &c.arranging {
            Some(Arranging::Watching { next, .. }) if c.deadline.is_none() => Some(*next),
            _ => None,
        };
        self.clients.values().filter_map(next).min()
    }

    /// Notes copies that have ended; once the server is to stop, stops them all.
    pub(super) fn settle_copies(&mut self, now: Time) {
        let stopped = self.stopped();
        if let Some(all) = &mut self.copies {
            all.settle(now);
            if stopped {
                all.stop();
            }
        }
    }

    /// Whether no copy runs.
    pub(super) fn copies_idle(&self) -> bool {
        self.copies.as_ref().is_none_or(Copies::is_idle)
    }
}
