//! Verifies a server's identity: known hosts, trust on first use, one-time tokens.

use crate::args::ConnectOptions;
use crate::exit::{self, Code, Failure, Outcome};
use crate::remedy::{self, TrustContext};
use crate::setup::{self, LocalIdentity};
use crate::url::Server;
use crate::x509;
use crate::{gate, out};
use base::{Span, Time};
use endpoint::{App, CloseReason, Connect, Endpoint, Event, Iwarp, TransportOptions};
use lhio::clock::Clock;
use lhio::driver::Driver;
use lhio::identity::{Host, HostCheck, KnownHosts, PublicKey as HostKey};
use std::io::{BufRead as _, IsTerminal as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use transport::crypto::{Credentials, OneTimeToken, PeerIdentity, PublicKey, ServerTrust};

/// Too little time for another probe.
const MIN_PROBE_TIME: Span = Span::from_millis(20);
/// Code with which a probe for the key of an unknown server ends.
const PROBED: u64 = transport::error::code::APPLICATION;

/// The time for connecting, in all: probes for keys, the connection itself, and a second probe when that fails. Questions to the
/// user are no part of it.
#[derive(Clone)]
pub struct ConnectDeadline {
    clock: Clock,
    until: Time,
}

impl ConnectDeadline {
    /// So much, from now on.
    pub fn start(most: Span) -> ConnectDeadline {
        let clock = Clock::new();
        ConnectDeadline { until: clock.now() + most, clock }
    }

    /// What is left of it.
    pub fn remaining(&self) -> Span {
        self.until.since(self.clock.now())
    }

    /// Stops while the user is asked.
    fn extended_by<T>(&mut self, question: impl FnOnce() -> T) -> T {
        let remaining = self.remaining();
        let answer = question();
        self.until = self.clock.now() + remaining;
        answer
    }
}

/// A server whose address answers, and how its key is checked.
pub struct Trusted {
    /// Where it is.
    pub remote: SocketAddr,
    /// Its name as the user wrote it.
    pub name: String,
    /// Which keys are accepted.
    pub trust: ServerTrust,
    /// The token to present.
    pub token: Option<OneTimeToken>,
    /// What this end shows: with a token its key, which nothing but the connection itself may use.
    pub credentials: Arc<Credentials>,
    /// It is reached by iWARP.
    pub iwarp: Option<Iwarp>,
    /// For connecting to it.
    pub deadline: ConnectDeadline,
}

impl Trusted {
    /// What bears on the remedy when the ends do not trust each other.
    pub fn trust_context(&self) -> TrustContext {
        TrustContext {
            shows_certificate: matches!(&*self.credentials, Credentials::X509 { .. }),
            wants_certificate: matches!(self.trust, ServerTrust::X509 { .. }),
            token: self.token.is_some(),
            plain: self.iwarp.as_ref().map(|i| !i.tls),
        }
    }

    /// For the endpoint.
    pub fn connect(&self) -> Connect {
        let mut iwarp = self.iwarp.clone();
        if let Some(i) = &mut iwarp {
            i.settings.startup_timeout = self.deadline.remaining();
        }
        Connect {
            remote: self.remote,
            server_name: self.name.clone(),
            trust: self.trust.clone(),
            token: None,
            options: None,
            iwarp,
        }
    }

    /// The options, with what is left of the time for connecting.
    pub fn within_deadline(&self, options: &TransportOptions) -> TransportOptions {
        TransportOptions { connect_timeout: self.deadline.remaining(), ..options.clone() }
    }
}

/// Decides whether to trust `server` and at which address. A server that was never met is asked for its key over a
/// connection of its own, so that nothing is sent before the user has agreed. A server that is known costs nothing.
pub fn establish(
    me: &LocalIdentity,
    server: &Server,
    t: &ConnectOptions,
    options: &TransportOptions,
) -> Outcome<Trusted> {
    let token = setup::token(t)?;
    let mut deadline = ConnectDeadline::start(t.connect_timeout);
    let addresses = server.resolve()?;
    let host = server.host()?;
    let known = me.state.known_hosts();
    // Of several addresses the one that answers is found by looking at the key there.
    let one = |a: &[SocketAddr]| if let [only] = a { Some(*only) } else { None };
    t.by_iwarp.check(server.iwarp, options).map_err(Failure::usage)?;
    if let Some(name) = &t.by_iwarp.mpa.tcp_cc {
        lhio::tcp::first_congestion(name).map_err(|e| Failure::usage(format!("cannot use --tcp-cc: {e}")))?;
    }
    let iwarp = server.iwarp.then(|| t.by_iwarp.wanted(t.connect_timeout));
    let credentials = match &token {
        Some(t) => Arc::new(Credentials::RawKey(gate::key_of(t))),
        None => me.credentials.clone(),
    };
    let make = |remote, trust, deadline: &ConnectDeadline| {
        let (name, token, credentials) = (server.name.clone(), token.clone(), credentials.clone());
        let (iwarp, deadline) = (iwarp.clone(), deadline.clone());
        Trusted { remote, name, trust, token, credentials, iwarp, deadline }
    };
    if iwarp.as_ref().is_some_and(|i| !i.tls) {
        let remote = first_listening(&addresses, t.connect_timeout).ok_or_else(|| {
            Failure::new(
                Code::Connect,
                format!(
                    "cannot connect to {server}: it has no address; try \
                     another name"
                ),
            )
        })?;
        // Nobody shows anything.
        return Ok(make(remote, ServerTrust::FirstUse, &deadline));
    }
    if let Some(file) = &t.ca {
        let trust = ServerTrust::X509 { roots: x509::roots(file)? };
        let remote = match one(&addresses) {
            Some(remote) => remote,
            None => probe_until_one_answers(me, &addresses, server, (options, &deadline), &trust)?.0,
        };
        return Ok(make(remote, trust, &deadline));
    }
    let listed: Vec<PublicKey> =
        known.lookup(&host)?.iter().map(|(_, k)| PublicKey::from_bytes(k.0)).collect();
    if let (Some(remote), Some(print)) = (one(&addresses), token.as_ref().and_then(OneTimeToken::server)) {
        return Ok(make(remote, ServerTrust::Fingerprint(print), &deadline));
    }
    if let (Some(remote), false) = (one(&addresses), listed.is_empty()) {
        return Ok(make(remote, ServerTrust::Pinned(listed), &deadline));
    }
    let (remote, peer) =
        probe_until_one_answers(me, &addresses, server, (options, &deadline), &ServerTrust::FirstUse)?;
    if let Some(print) = token.as_ref().and_then(OneTimeToken::server) {
        return Ok(make(remote, ServerTrust::Fingerprint(print), &deadline));
    }
    let PeerIdentity::RawKey(key) = peer else { return Err(certificate_instead_of_key(server)) };
    deadline.extended_by(|| admit(&known, &host, key, t.accept_new))?;
    Ok(make(remote, ServerTrust::Pinned(vec![key]), &deadline))
}

/// After a handshake with a known server failed: if it shows another key now, says where the old one stands and
/// what to do. In what is left of the time for connecting: of a server that did not answer nothing is, and it is not asked again.
pub fn explain(
    me: &LocalIdentity,
    server: &Server,
    trusted: &Trusted,
    options: &TransportOptions,
) -> Option<Failure> {
    let host = server.host().ok()?;
    let options = trusted.within_deadline(options);
    if options.connect_timeout < MIN_PROBE_TIME {
        return None;
    }
    let peer = probe_key(me, trusted.remote, server, options, &ServerTrust::FirstUse).ok()?;
    let PeerIdentity::RawKey(key) = peer else { return None };
    match me.state.known_hosts().check(&host, HostKey(*key.as_bytes())).ok()? {
        HostCheck::Changed(c) => Some(Failure::new(Code::Untrusted, c.to_string())),
        _ => None,
    }
}

/// Notes the key of a server that a token vouched for, so that the next connection needs none.
pub fn remember(me: &LocalIdentity, server: &Server, peer: Option<&PeerIdentity>) -> Outcome<()> {
    let Some(PeerIdentity::RawKey(key)) = peer else { return Ok(()) };
    let (known, host, key) = (me.state.known_hosts(), server.host()?, HostKey(*key.as_bytes()));
    match known.check(&host, key)? {
        HostCheck::Unknown => Ok(known.add(&host, key)?),
        HostCheck::Known => Ok(()),
        HostCheck::Changed(c) => {
            err_line!("WARNING: the token vouched for this server, but {c}");
            Ok(())
        }
    }
}

/// Compares with the known hosts; an unknown one is added if the user agrees.
fn admit(known: &KnownHosts, host: &Host, key: PublicKey, accept_new: bool) -> Outcome<()> {
    let as_file = HostKey(*key.as_bytes());
    match known.check(host, as_file)? {
        HostCheck::Known => return Ok(()),
        HostCheck::Changed(c) => return Err(Failure::new(Code::Untrusted, c.to_string())),
        HostCheck::Unknown => {}
    }
    let print = key.fingerprint();
    if !accept_new && !ask_user(host, &print.to_string())? {
        return Err(Failure::new(
            Code::Untrusted,
            format!(
                "cannot connect to {host}: it is not trusted, and nothing \
                 was sent; try again and answer yes"
            ),
        ));
    }
    known.add(host, as_file)?;
    if !out::is_quiet() {
        err_line!("added {host} to the known hosts ({print})");
    }
    Ok(())
}

fn certificate_instead_of_key(server: &Server) -> Failure {
    let text =
        format!("cannot verify {server}: it presents an X.509 certificate; try --ca FILE with its root");
    Failure::new(Code::Untrusted, text)
}

fn ask_user(host: &Host, print: &str) -> Outcome<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !out::error_is_terminal() {
        let text = format!(
            "cannot verify {host}: it is not a known host, and there is no terminal to ask_user on; compare its \
             fingerprint {print} with what the server prints, then try --accept-new"
        );
        return Err(Failure::new(Code::Untrusted, text));
    }
    out::ask(&format!(
        "{host} is not a known host. Its fingerprint is\n  {print}\nCompare it with what the server prints. Trust it \
         and continue connecting? (yes/no) "
    ));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(Failure::system)?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

/// The first of several addresses at which somebody takes connections by TCP; the first of all when nobody does, and
/// connecting then says why.
fn first_listening(addresses: &[SocketAddr], deadline: Span) -> Option<SocketAddr> {
    let first = *addresses.first()?;
    if addresses.len() == 1 {
        return Some(first);
    }
    // A name with a dead address must not cost the whole time.
    let each = Duration::from_nanos((deadline / 4).as_nanos());
    let listens = |a: &&SocketAddr| TcpStream::connect_timeout(a, each).is_ok();
    Some(addresses.iter().find(listens).copied().unwrap_or(first))
}

fn probe_until_one_answers(
    me: &LocalIdentity,
    addresses: &[SocketAddr],
    server: &Server,
    (options, deadline): (&TransportOptions, &ConnectDeadline),
    trust: &ServerTrust,
) -> Outcome<(SocketAddr, PeerIdentity)> {
    let whole = deadline.remaining();
    let mut last = Failure::new(
        Code::Connect,
        format!("cannot connect to {server}: it has no address; try another name"),
    );
    for (i, remote) in addresses.iter().enumerate() {
        let mut o = options.clone();
        o.paths.clear();
        o.discover = endpoint::PathDiscovery::Off;
        // A name with a dead address must not cost the whole time.
        let (remaining, others) = (deadline.remaining(), (addresses.len() - i - 1) as u64);
        o.connect_timeout = if others == 0 { remaining } else { (whole / 4).min(remaining / (others + 1)) };
        match probe_key(me, *remote, server, o, trust) {
            Ok(key) => return Ok((*remote, key)),
            Err(f) if f.code == Code::Connect => last = f,
            Err(f) => return Err(f),
        }
    }
    Err(last)
}

/// Asks a server for its key; sends nothing else.
fn probe_key(
    me: &LocalIdentity,
    remote: SocketAddr,
    server: &Server,
    options: TransportOptions,
    trust: &ServerTrust,
) -> Outcome<PeerIdentity> {
    let connect_timeout = options.connect_timeout;
    // Over the kernel's UDP whatever was asked for: a probe is a few packets, and other ways take long to open.
    let mut driver = Driver::bind(setup::client_address(remote, &options, false))?;
    let mut endpoint = me.endpoint(&me.credentials, options, None)?;
    let connect = Connect {
        remote,
        server_name: server.name.clone(),
        trust: trust.clone(),
        token: None,
        options: None,
        // What a probe finds does not depend on how records are made.
        iwarp: server.iwarp.then(|| iwarp_over_tls(connect_timeout)),
    };
    let mut app = KeyProbe { connect: Some(connect), key: None, ended: None };
    driver.run(&mut endpoint, &mut app)?;
    match (app.key, app.ended) {
        (Some(peer), _) => Ok(peer),
        (None, Some(reason)) => {
            let trust_context = TrustContext {
                shows_certificate: matches!(&*me.credentials, Credentials::X509 { .. }),
                wants_certificate: matches!(trust, ServerTrust::X509 { .. }),
                token: false,
                plain: server.iwarp.then_some(false),
            };
            let text = format!("cannot connect to {server}: {reason}");
            Err(remedy::explain(Failure { text, ..exit::close_failure(&reason, false) }, trust_context))
        }
        (None, None) => Err(Failure::new(
            Code::Connect,
            format!("cannot verify {server}: it presented no key; try again"),
        )),
    }
}

fn iwarp_over_tls(connect_timeout: Span) -> Iwarp {
    let mut i = Iwarp { tls: true, ..Iwarp::default() };
    i.settings.startup_timeout = connect_timeout;
    i
}

struct KeyProbe {
    connect: Option<Connect>,
    key: Option<PeerIdentity>,
    ended: Option<CloseReason>,
}

impl App for KeyProbe {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take()
            && let Err(e) = ep.connect(now, c)
        {
            self.ended = Some(CloseReason::Handshake(e.to_string()));
        }
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Connected { conn } => {
                    self.key = ep.connection(conn).and_then(|c| c.peer.clone());
                    ep.close(now, conn, PROBED, "looked at the key");
                }
                Event::Closed { conn, reason } => {
                    self.ended = Some(reason);
                    // Nothing is registered, so nothing can be left over.
                    let _ = ep.release(conn);
                }
                _ => {}
            }
        }
    }
    fn finished(&self) -> bool {
        self.ended.is_some()
    }
}
