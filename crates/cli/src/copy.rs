//! `longhaul copy`: one machine sends to another, and this one arranges and watches it.
//!
//! Between servers, the destination is asked to let a key in that is made here for this one transfer, and the source is given that
//! key ([`mover::copy`]). Over ssh, the far end of the destination has such a key anyway, and that of the source is given it through
//! ssh's channel.

mod report;

use crate::args::Copy;
use crate::exit::{self, Code, Failure, Outcome};
use crate::setup::{self, LocalIdentity};
use crate::show::{Display, ShowAs};
use crate::ssh::{self, Location, RemoteOperation, RemoteSession};
use crate::trust::{self, Trusted};
use crate::url::Server;
use crate::{out, remedy, stop};
use endpoint::TransportOptions;
use lhio::clock;
use mover::proto::{JobPhase, JobStatus};
use mover::{CopyAsk, CopyClient, CopyPlan, Summary, TransferOptions, Wake};
use report::Report;
use std::net::SocketAddr;
use std::sync::Arc;
use transport::crypto::{Fingerprint, Identity, PeerIdentity, ServerTrust};
use zeroize::Zeroizing;

/// `longhaul copy`.
pub fn run(a: &Copy) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    let done = check(a).and_then(|()| match asked(a) {
        Some(ask) => manage(a, ask),
        None => copy(a),
    });
    match done {
        Ok(verdict) => verdict,
        Err(f) => {
            if a.output.json {
                report::failed(&f);
            }
            Err(f)
        }
    }
}

/// What a copy came to, about which everything has been said in JSON; or a failure, about which nothing has.
type CopyOutcome = Outcome<Outcome<()>>;

/// What is asked of a server about copies that it has.
fn asked(a: &Copy) -> Option<CopyAsk> {
    let follow = a.follow.map(CopyAsk::follow).or(a.cancel.map(CopyAsk::cancel));
    follow.or(a.status.then(CopyAsk::list))
}

fn check(a: &Copy) -> Outcome<()> {
    let usage = |t: String| Err(Failure::usage(t));
    let connecting = &a.connect_options;
    if setup::token(connecting)?.is_some() {
        return usage(
            "cannot copy with a one-time token, which is good for one connection: a copy needs several; try to have this machine's \
             key authorized (`longhaul keys show`), and leave out --token and LONGHAUL_TOKEN"
                .into(),
        );
    }
    if let Some(Location::Url(u)) = a.places.iter().find(|p| matches!(p, Location::Url(u) if u.server.iwarp))
    {
        return usage(format!("cannot copy with {}: copies do not go by iWARP; try longhaul://", u.server));
    }
    let ssh = a.places.iter().any(|p| matches!(p, Location::Ssh(_)));
    if !ssh {
        a.over.check_unused().map_err(Failure::usage)?;
    }
    let alone = asked(a).is_some();
    match &a.places[..] {
        [_] if alone && ssh => usage(
            "cannot look for copies over ssh: what ssh starts ends with its command; try longhaul://HOST"
                .into(),
        ),
        [_] if alone => Ok(()),
        _ if alone => {
            usage("cannot look at copies of several servers: each tells of its own; try the one that sends, longhaul://HOST".into())
        }
        [] | [_] => usage(
            "cannot copy: source and destination are needed; try longhaul copy FROM:PATH TO:PATH".into(),
        ),
        [first, .., _] => {
            let sources = a.places.split_last().map(|(_, s)| s).unwrap_or_default();
            if let Some(other) = sources.iter().find(|p| !p.is_beside(first)) {
                return usage(format!(
                    "cannot copy from {} and {} at once: they are different machines; try one at a time",
                    other.at(),
                    first.at()
                ));
            }
            if a.detach && ssh {
                return usage(
                    "cannot detach from a copy over ssh: what ssh starts ends with its command; try servers (longhaul://)".into(),
                );
            }
            Ok(())
        }
    }
}

/// How files are compared and replaced, for both ends alike.
fn transfer(a: &Copy) -> TransferOptions {
    let c = &a.compare_options;
    TransferOptions {
        skip_same: !c.all,
        checksum: c.checksum,
        overwrite: !c.no_overwrite,
        dry_run: c.dry_run,
        durable: true,
        fresh: c.no_resume,
        direct: false,
        data_reduction: mover::DataReduction::default(),
        keep: c.keep.keep(),
        scan: true,
    }
}

/// Where a copy goes, once the destination expects it.
struct Destination {
    /// Where it may be, in the order in which to try.
    addresses: Vec<SocketAddr>,
    fingerprint: Fingerprint,
    /// Seed of the key that it lets in.
    seed: Zeroizing<[u8; 32]>,
    /// The path there.
    path: Vec<u8>,
    /// The far end over ssh, which ends with this.
    link: Option<RemoteSession>,
}

fn copy(a: &Copy) -> CopyOutcome {
    let Some((dest, sources)) = a.places.split_last() else { return Ok(Ok(())) };
    let Some(first) = sources.first() else { return Ok(Ok(())) };
    let paths: Vec<Vec<u8>> = sources.iter().map(|p| p.path().to_vec()).collect();
    let me = LocalIdentity::with(&a.connect_options.certificate)?;
    let options = setup::options(&a.wire, None, Some(&a.connect_options));
    // The server that sends is looked at first: without it, nobody needs to be let in.
    let source = match first {
        Location::Url(u) => {
            Some((u.server.clone(), trust::establish(&me, &u.server, &a.connect_options, &options)?))
        }
        Location::Ssh(_) => None,
    };
    let mut to = destination(a, &me, &options, (&paths, dest))?;
    to.addresses = a.to_address.map_or(to.addresses, |at| vec![at]);
    let Some((server, trusted)) = source else {
        return over_ssh(a, (first, &paths), &to);
    };
    let mut last = None;
    for at in &to.addresses {
        let plan = CopyPlan::new(&paths, &to.path, &transfer(a)).map_err(Failure::usage)?;
        let ask = plan.request(*at, *to.fingerprint.as_bytes(), *to.seed).map_err(Failure::usage)?;
        let connection = CopyConnection { a, me: &me, server: &server, trusted: &trusted, options: &options };
        let answer = connection.ask(ask, a.detach, a.output.quiet || a.output.json)?;
        let unreached = answer.is_unreached();
        last = Some(answer);
        if !unreached {
            break;
        }
    }
    let answer = last.ok_or_else(|| {
        Failure::new(Code::Connect, format!("cannot find {}: it has no address; try another name", dest.at()))
    })?;
    Ok(answer.report(a, &server, Some(&dest.at()), &trusted))
}

/// Looks at copies, or stops one.
fn manage(a: &Copy, ask: CopyAsk) -> CopyOutcome {
    let Some(Location::Url(u)) = a.places.first() else { return Ok(Ok(())) };
    let me = LocalIdentity::with(&a.connect_options.certificate)?;
    let options = setup::options(&a.wire, None, Some(&a.connect_options));
    let trusted = trust::establish(&me, &u.server, &a.connect_options, &options)?;
    let connection = CopyConnection { a, me: &me, server: &u.server, trusted: &trusted, options: &options };
    let quiet = a.output.quiet || a.output.json || a.follow.is_none();
    let answer = connection.ask(ask, false, quiet)?;
    if a.status {
        answer.verdict(&u.server, None, &trusted)?;
        report::list(&answer.jobs, a.output.json);
        return Ok(Ok(()));
    }
    Ok(answer.report(a, &u.server, None, &trusted))
}

/// Has the destination expect the copy.
fn destination(
    a: &Copy,
    me: &LocalIdentity,
    options: &TransportOptions,
    (paths, dest): (&[Vec<u8>], &Location),
) -> Outcome<Destination> {
    let u = match dest {
        Location::Url(u) => u,
        Location::Ssh(remote) => {
            let (wire, connect_options, over) = (&a.wire, &a.connect_options, &a.over);
            let paths = vec![remote.path.clone()];
            let link = RemoteSession::open(
                &ssh::RemoteRequest {
                    operation: RemoteOperation::Put,
                    remote,
                    paths,
                    beside: Vec::new(),
                    over,
                    wire,
                    connect_options,
                },
                options,
            )?;
            let (addresses, fingerprint, seed) = link.addresses_and_key();
            let path = link.paths().first().cloned().unwrap_or_default();
            return Ok(Destination { addresses, fingerprint, seed, path, link: Some(link) });
        }
    };
    let mut seed = Zeroizing::new([0; 32]);
    clock::fill_random(&mut *seed).map_err(Failure::system)?;
    let guest = *Identity::of_seed(&seed).public_key().as_bytes();
    let put = CopyPlan::put(&u.path, paths.len(), &transfer(a)).map_err(Failure::usage)?;
    let trusted = trust::establish(me, &u.server, &a.connect_options, options)?;
    let connection = CopyConnection { a, me, server: &u.server, trusted: &trusted, options };
    let answer = connection.ask(CopyAsk::invite(put, guest), false, true)?;
    answer.verdict(&u.server, None, &trusted)?;
    let Some(PeerIdentity::RawKey(key)) = &answer.peer else {
        return Err(Failure::usage(format!(
            "cannot copy to {}: it presents a certificate, which the sending server cannot check; try a server with a key",
            u.server
        )));
    };
    let addresses = vec![trusted.remote];
    Ok(Destination { addresses, fingerprint: key.fingerprint(), seed, path: u.path.clone(), link: None })
}

/// A server that is asked something.
struct CopyConnection<'a> {
    a: &'a Copy,
    me: &'a LocalIdentity,
    server: &'a Server,
    trusted: &'a Trusted,
    options: &'a TransportOptions,
}

/// What came of it.
struct CopyReply {
    summary: Summary,
    jobs: Vec<JobStatus>,
    /// Who answered.
    peer: Option<PeerIdentity>,
    /// What is different now about a server whose key was known.
    changed: Option<Failure>,
}

impl CopyConnection<'_> {
    fn ask(&self, ask: CopyAsk, detach: bool, quiet: bool) -> Outcome<CopyReply> {
        let bind = setup::client_address(self.trusted.remote, self.options, false);
        let mut driver = setup::driver(bind, &self.a.wire, (false, None))?;
        let options = self.trusted.within_deadline(self.options);
        let mut endpoint = self.me.endpoint(&self.trusted.credentials, options, None)?;
        let waker = driver.waker();
        let wake: Wake = Arc::new(move || waker.wake());
        let mut app = CopyClient::new(self.trusted.connect(), ask, detach);
        let watch = app.watch();
        let progress = watch.progress();
        let interrupted = progress.clone();
        stop::on_signal(move || {
            interrupted.interrupt();
            wake();
        })?;
        let display = Display::start(&progress, ShowAs::text_unless(quiet || detach))?;
        let ran = driver.run(&mut endpoint, &mut app);
        display.end();
        ran?;
        let summary = progress.outcome().ok_or_else(|| {
            Failure::system("cannot tell how the copy went: it ended without a result; try --status")
        })?;
        let peer = app.peer().cloned();
        let pinned = matches!(self.trusted.trust, ServerTrust::Pinned(_));
        let changed = (peer.is_none() && pinned && summary.error.is_some())
            .then(|| trust::explain(self.me, self.server, self.trusted, self.options))
            .flatten();
        Ok(CopyReply { summary, jobs: watch.jobs(), peer, changed })
    }
}

impl CopyReply {
    /// The copy that was asked for or looked at, once it has a number.
    fn job(&self) -> Option<&JobStatus> {
        self.jobs.first()
    }

    fn ended(&self) -> bool {
        self.job().is_some_and(|j| j.phase == JobPhase::Ended)
    }

    /// Whether the source found nobody at the address.
    fn is_unreached(&self) -> bool {
        self.job().is_some_and(|j| {
            let nothing = j.bytes_sent == 0 && j.files_confirmed == 0;
            nothing && matches!(j.error, Some(mover::Error::Connection { code: None, .. }))
        })
    }

    /// What the end means for the exit code, and in words. `to`: the destination, where it is known.
    fn verdict(&self, server: &Server, to: Option<&str>, trusted: &Trusted) -> Outcome<()> {
        let Some(error) = &self.summary.error else { return Ok(()) };
        if self.ended() {
            return Err(job_failure(server, to, error, self.is_unreached()));
        }
        let mut failure = exit::transfer_failure(error);
        if let Some(j) = self.job() {
            let n = j.job;
            let text = format!(
                "{}: copy {n} goes on without this command, as long as {server} runs\nto watch it: longhaul copy --follow {n} \
                 longhaul://{server}\nto stop it: longhaul copy --cancel {n} longhaul://{server}",
                if failure.code == Code::Interrupted && *error == mover::Error::Interrupted {
                    "stopped watching".to_owned()
                } else {
                    format!("lost the connection to {server} ({error})")
                }
            );
            return Err(Failure::new(Code::Interrupted, text));
        }
        if let mover::Error::Connection { text, .. } = error
            && (self.peer.is_none() || failure.code == Code::Untrusted)
        {
            let code = if failure.code == Code::Interrupted { Code::Connect } else { failure.code };
            failure = Failure { code, text: format!("cannot connect to {server}: {text}"), ..failure };
        } else if !matches!(error, mover::Error::Interrupted) {
            let why = error;
            failure.text = format!("cannot copy: {server}: {why}");
        }
        Err(self.changed.clone().unwrap_or_else(|| remedy::explain(failure, trusted.trust_context())))
    }

    /// Says how it went.
    fn report(&self, a: &Copy, server: &Server, to: Option<&str>, trusted: &Trusted) -> Outcome<()> {
        let mut verdict = self.verdict(server, to, trusted);
        if a.cancel.is_some() && self.ended() && self.summary.error == Some(mover::Error::Interrupted) {
            verdict = Ok(());
        }
        let job = self.job().map(|j| j.job);
        if let (true, Ok(()), Some(n)) = (a.detach, &verdict, job) {
            report::begun(n, server, a.output.json, a.output.quiet);
            return Ok(());
        }
        Report { summary: &self.summary, job: self.job(), server: Some(server) }.say(&a.output, &verdict);
        verdict
    }
}

/// Why a copy did not come to its end, between source and destination.
fn job_failure(
    from: &dyn core::fmt::Display,
    to: Option<&str>,
    error: &mover::Error,
    unreached: bool,
) -> Failure {
    let f = exit::transfer_failure(error);
    let to = to.unwrap_or("the destination");
    match error {
        mover::Error::Connection { text, .. } if unreached => Failure::line(
            Code::Connect,
            format!(
                "cannot copy: {from} cannot reach {to}: {text}; try to open its UDP port in the firewall there (over ssh, those of \
                 --port-range), or another address of it with --to-address"
            ),
        ),
        mover::Error::Partial { .. } => f,
        mover::Error::Interrupted => Failure::new(
            Code::Interrupted,
            "interrupted: the copy was cancelled, or the server that sent was stopped; repeat the command to resume",
        ),
        why => Failure::line(f.code, format!("cannot copy from {from} to {to}: {why}")),
    }
}

/// The source is reached by ssh.
fn over_ssh(a: &Copy, (first, paths): (&Location, &[Vec<u8>]), to: &Destination) -> CopyOutcome {
    let Location::Ssh(remote) = first else { return Ok(Ok(())) };
    let asked = ssh::RemoteCopyRequest {
        remote,
        paths,
        over: &a.over,
        wire: &a.wire,
        addresses: &to.addresses,
        fingerprint: to.fingerprint,
        seed: &to.seed,
        dest: &to.path,
        transfer: transfer(a),
        link: to.link.as_ref(),
    };
    let dest = a.places.last().map(Location::at).unwrap_or_default();
    let sent = ssh::copy_from(&asked, a.output.quiet || a.output.json)?;
    let gone = to.link.as_ref().is_some_and(RemoteSession::has_ended);
    let verdict = match &sent.summary.error {
        None => Ok(()),
        Some(e) if sent.by_user => Err(Failure::new(Code::Interrupted, e.to_string())),
        Some(mover::Error::Connection { .. } | mover::Error::Interrupted) if gone => Err(Failure::new(
            Code::Interrupted,
            format!(
                "cannot copy to {dest}: longhaul there has ended, or ssh's connection to it; try again, which resumes"
            ),
        )),
        Some(e) => Err(job_failure(&remote.host(), Some(&dest), e, sent.unreached)),
    };
    Report { summary: &sent.summary, job: None, server: None }.say(&a.output, &verdict);
    Ok(verdict)
}
