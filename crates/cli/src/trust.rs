//! Whether a server is the one it should be: known hosts, first use, tokens.

use crate::args::Trusting;
use crate::exit::{self, Code, Failure, Outcome};
use crate::remedy::{self, Manner};
use crate::setup::{self, Me};
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

/// Too little time for another look.
const LEAST: Span = Span::from_millis(20);
/// Code with which the look at an unknown server's key ends.
const LOOKED: u64 = transport::error::code::APPLICATION;

/// The time for connecting, in all: looks at keys, the connection itself, and a second look when that fails. Questions to the
/// user are no part of it.
#[derive(Clone)]
pub struct Patience {
    clock: Clock,
    until: Time,
}

impl Patience {
    /// So much, from now on.
    pub fn begin(most: Span) -> Patience {
        let clock = Clock::new();
        Patience { until: clock.now() + most, clock }
    }

    /// What is left of it.
    pub fn left(&self) -> Span {
        self.until.since(self.clock.now())
    }

    /// Stops while the user is asked.
    fn paused<T>(&mut self, ask: impl FnOnce() -> T) -> T {
        let left = self.left();
        let answer = ask();
        self.until = self.clock.now() + left;
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
    pub patience: Patience,
}

impl Trusted {
    /// What bears on the remedy when the ends do not trust each other.
    pub fn manner(&self) -> Manner {
        Manner {
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
            i.settings.startup_timeout = self.patience.left();
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
    pub fn in_time(&self, options: &TransportOptions) -> TransportOptions {
        TransportOptions { connect_timeout: self.patience.left(), ..options.clone() }
    }
}

/// Decides whether to trust `server` and at which address. A server that was never met is asked for its key over a
/// connection of its own, so that nothing is sent before the user has agreed. A server that is known costs nothing.
pub fn establish(me: &Me, server: &Server, t: &Trusting, options: &TransportOptions) -> Outcome<Trusted> {
    let token = setup::token(t)?;
    let mut patience = Patience::begin(t.connect_timeout);
    let addresses = server.resolve()?;
    let host = server.host()?;
    let known = me.state.known_hosts();
    // Of several addresses the one that answers is found by looking at the key there.
    let one = |a: &[SocketAddr]| if let [only] = a { Some(*only) } else { None };
    t.by_iwarp.check(server.iwarp, options).map_err(Failure::usage)?;
    if let Some(name) = &t.by_iwarp.mpa.tcp_cc {
        lhio::tcp::first_congestion(name).map_err(|e| Failure::usage(format!("--tcp-cc: {e}")))?;
    }
    let iwarp = server.iwarp.then(|| t.by_iwarp.wanted(t.connect_timeout));
    let credentials = match &token {
        Some(t) => Arc::new(Credentials::RawKey(gate::key_of(t))),
        None => me.credentials.clone(),
    };
    let make = |remote, trust, patience: &Patience| {
        let (name, token, credentials) = (server.name.clone(), token.clone(), credentials.clone());
        let (iwarp, patience) = (iwarp.clone(), patience.clone());
        Trusted { remote, name, trust, token, credentials, iwarp, patience }
    };
    if iwarp.as_ref().is_some_and(|i| !i.tls) {
        let remote = which_listens(&addresses, t.connect_timeout)
            .ok_or_else(|| Failure::new(Code::Connect, format!("{server} has no address")))?;
        // Nobody shows anything.
        return Ok(make(remote, ServerTrust::FirstUse, &patience));
    }
    if let Some(file) = &t.ca {
        let trust = ServerTrust::X509 { roots: x509::roots(file)? };
        let remote = match one(&addresses) {
            Some(remote) => remote,
            None => first_answer(me, &addresses, server, (options, &patience), &trust)?.0,
        };
        return Ok(make(remote, trust, &patience));
    }
    let listed: Vec<PublicKey> =
        known.lookup(&host)?.iter().map(|(_, k)| PublicKey::from_bytes(k.0)).collect();
    if let (Some(remote), Some(print)) = (one(&addresses), token.as_ref().and_then(OneTimeToken::server)) {
        return Ok(make(remote, ServerTrust::Fingerprint(print), &patience));
    }
    if let (Some(remote), false) = (one(&addresses), listed.is_empty()) {
        return Ok(make(remote, ServerTrust::Pinned(listed), &patience));
    }
    let (remote, peer) = first_answer(me, &addresses, server, (options, &patience), &ServerTrust::FirstUse)?;
    if let Some(print) = token.as_ref().and_then(OneTimeToken::server) {
        return Ok(make(remote, ServerTrust::Fingerprint(print), &patience));
    }
    let PeerIdentity::RawKey(key) = peer else { return Err(certified(server)) };
    patience.paused(|| admit(&known, &host, key, t.accept_new))?;
    Ok(make(remote, ServerTrust::Pinned(vec![key]), &patience))
}

/// After a handshake with a known server failed: if it shows another key now, says where the old one stands and
/// what to do. In what is left of the time for connecting: of a server that did not answer nothing is, and it is not asked again.
pub fn explain(me: &Me, server: &Server, trusted: &Trusted, options: &TransportOptions) -> Option<Failure> {
    let host = server.host().ok()?;
    let options = trusted.in_time(options);
    if options.connect_timeout < LEAST {
        return None;
    }
    let peer = look(me, trusted.remote, server, options, &ServerTrust::FirstUse).ok()?;
    let PeerIdentity::RawKey(key) = peer else { return None };
    match me.state.known_hosts().check(&host, HostKey(*key.as_bytes())).ok()? {
        HostCheck::Changed(c) => Some(Failure::new(Code::Untrusted, c.to_string())),
        _ => None,
    }
}

/// Notes the key of a server that a token vouched for, so that the next connection needs none.
pub fn remember(me: &Me, server: &Server, peer: Option<&PeerIdentity>) -> Outcome<()> {
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
    if !accept_new && !ask(host, &print.to_string())? {
        return Err(Failure::new(Code::Untrusted, format!("{host} was not trusted; nothing was sent")));
    }
    known.add(host, as_file)?;
    if !out::is_quiet() {
        err_line!("{host} is a known host from now on ({print})");
    }
    Ok(())
}

fn certified(server: &Server) -> Failure {
    let text =
        format!("{server} shows an X.509 certificate: name the root that vouches for it with --ca FILE");
    Failure::new(Code::Untrusted, text)
}

fn ask(host: &Host, print: &str) -> Outcome<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !out::error_is_terminal() {
        let text = format!(
            "{host} was never met and there is no terminal to ask on. Its fingerprint is {print}: compare it with \
             what the server prints, then repeat with --accept-new"
        );
        return Err(Failure::new(Code::Untrusted, text));
    }
    out::ask(&format!(
        "{host} was never met. Its fingerprint is\n  {print}\nCompare it with what the server prints. Trust it from \
         now on? (yes/no) "
    ));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(Failure::system)?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

/// The first of several addresses at which somebody takes connections by TCP; the first of all when nobody does, and
/// connecting then says why.
fn which_listens(addresses: &[SocketAddr], patience: Span) -> Option<SocketAddr> {
    let first = *addresses.first()?;
    if addresses.len() == 1 {
        return Some(first);
    }
    // A name with a dead address must not cost the whole time.
    let each = Duration::from_nanos((patience / 4).as_nanos());
    let listens = |a: &&SocketAddr| TcpStream::connect_timeout(a, each).is_ok();
    Some(addresses.iter().find(listens).copied().unwrap_or(first))
}

fn first_answer(
    me: &Me,
    addresses: &[SocketAddr],
    server: &Server,
    (options, patience): (&TransportOptions, &Patience),
    trust: &ServerTrust,
) -> Outcome<(SocketAddr, PeerIdentity)> {
    let whole = patience.left();
    let mut last = Failure::new(Code::Connect, format!("{server} has no address"));
    for (i, remote) in addresses.iter().enumerate() {
        let mut o = options.clone();
        o.paths.clear();
        o.discover = endpoint::Discover::Off;
        // A name with a dead address must not cost the whole time.
        let (left, others) = (patience.left(), (addresses.len() - i - 1) as u64);
        o.connect_timeout = if others == 0 { left } else { (whole / 4).min(left / (others + 1)) };
        match look(me, *remote, server, o, trust) {
            Ok(key) => return Ok((*remote, key)),
            Err(f) if f.code == Code::Connect => last = f,
            Err(f) => return Err(f),
        }
    }
    Err(last)
}

/// Asks a server for its key; sends nothing else.
fn look(
    me: &Me,
    remote: SocketAddr,
    server: &Server,
    options: TransportOptions,
    trust: &ServerTrust,
) -> Outcome<PeerIdentity> {
    let connect_timeout = options.connect_timeout;
    // Over the kernel's UDP whatever was asked for: a look is a few packets, and other ways take long to open.
    let mut driver = Driver::bind(setup::client_address(remote, &options, false))?;
    let mut endpoint = me.endpoint(&me.credentials, options, None)?;
    let connect = Connect {
        remote,
        server_name: server.name.clone(),
        trust: trust.clone(),
        token: None,
        options: None,
        // What a look finds does not depend on how records are made.
        iwarp: server.iwarp.then(|| by_tls(connect_timeout)),
    };
    let mut app = Look { connect: Some(connect), key: None, ended: None };
    driver.run(&mut endpoint, &mut app)?;
    match (app.key, app.ended) {
        (Some(peer), _) => Ok(peer),
        (None, Some(reason)) => {
            let manner = Manner {
                shows_certificate: matches!(&*me.credentials, Credentials::X509 { .. }),
                wants_certificate: matches!(trust, ServerTrust::X509 { .. }),
                token: false,
                plain: server.iwarp.then_some(false),
            };
            let text = format!("cannot connect to {server}: {reason}");
            Err(remedy::explain(Failure { text, ..exit::of_close(&reason, false) }, manner))
        }
        (None, None) => Err(Failure::new(Code::Connect, format!("{server} showed no key"))),
    }
}

fn by_tls(connect_timeout: Span) -> Iwarp {
    let mut i = Iwarp { tls: true, ..Iwarp::default() };
    i.settings.startup_timeout = connect_timeout;
    i
}

struct Look {
    connect: Option<Connect>,
    key: Option<PeerIdentity>,
    ended: Option<CloseReason>,
}

impl App for Look {
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
                    ep.close(now, conn, LOOKED, "looked at the key");
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
