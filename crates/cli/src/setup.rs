//! Makes endpoints from options: keys, transport options, sockets.

use crate::args::{
    Admission, Certificate, ConnectOptions, Encryption, Intent, LoopOptions, Polling, SendOptions, Wire,
};
use crate::exit::{Code, Failure, Outcome};
use crate::gate::{self, Gate};
use crate::x509;
use base::{Rng, Span};
use endpoint::{Authority, Config, Endpoint, PathDiscovery, ServerConfig, TransportOptions};
use lhio::clock::{self, Clock, WallTime};
use lhio::driver::{Driver, DriverOptions, Idle};
use lhio::identity::{PublicKey as HostKey, StateFolder};
use lhio::tcp::StreamOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use transport::crypto::{ClientAuth, Credentials, Fingerprint, Identity, OneTimeToken, Suite, rank};
use zeroize::Zeroizing;

/// Seconds that a token can be good for: 400 days. What is needed longer should be a listed key.
const MAX_LIFETIME: u64 = 400 * 86_400;

/// With this set to anything, debuggers of the same user may attach and the process leaves core dumps.
const DEBUG: &str = "LONGHAUL_DEBUG";

/// Before the first secret is read: no core dump may hold it, and no other process of this user may look into this one's
/// memory (`prctl(2)`, PR_SET_DUMPABLE).
pub fn protect() -> Outcome<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if std::env::var_os(DEBUG).is_some_and(|v| !v.is_empty()) {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| {
        Failure::system(format!(
            "cannot disable core dumps, which could hold keys: {e}; try {DEBUG}=1 to allow them"
        ))
    })
}

/// This machine's identity.
pub struct LocalIdentity {
    /// Where keys are kept.
    pub state: StateFolder,
    /// The key.
    pub identity: Identity,
    /// What it shows of itself: the key, or a certificate.
    pub credentials: Arc<Credentials>,
    static_secret: Zeroizing<[u8; 32]>,
}

impl LocalIdentity {
    /// Reads the state folder; makes a key at first use.
    pub fn load() -> Outcome<LocalIdentity> {
        LocalIdentity::with(&Certificate::default())
    }

    /// With the certificate that the command line names, if it names one.
    pub fn with(c: &Certificate) -> Outcome<LocalIdentity> {
        protect()?;
        let certificate = x509::credentials(c)?;
        let state = StateFolder::open_default()?;
        let key = state.host_key()?;
        // Survives restarts, so that resets reach peers of the time before; tells nothing of the key.
        let static_secret = Zeroizing::new(blake3::derive_key("longhaul 2026 stateless reset", key.seed()));
        let identity = Identity::of_seed(key.seed());
        let credentials = certificate.unwrap_or_else(|| Credentials::RawKey(identity.clone()));
        Ok(LocalIdentity { state, identity, credentials: Arc::new(credentials), static_secret })
    }

    /// The fingerprint of the key that is shown; none when it is a certificate.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let raw = matches!(&*self.credentials, Credentials::RawKey(_));
        raw.then(|| self.identity.public_key().fingerprint())
    }

    /// An endpoint that shows `credentials`; a server when `server` is given.
    pub fn endpoint(
        &self,
        credentials: &Arc<Credentials>,
        options: TransportOptions,
        server: Option<Serving>,
    ) -> Outcome<Endpoint> {
        endpoint(&self.static_secret, credentials, options, server)
    }

    /// The gate of a server, what its handshake accepts, and the tokens made for it, as text.
    pub fn admission(&self, a: &Admission) -> Outcome<(Gate, ServerConfig, Vec<Zeroizing<String>>)> {
        let auth = match &a.ca {
            Some(file) => ClientAuth::X509 { roots: x509::roots(file)? },
            None => ClientAuth::AnyKey,
        };
        let tokens =
            (0..a.token.unwrap_or(0)).map(|_| self.new_token()).collect::<Outcome<Vec<OneTimeToken>>>()?;
        let gate = Gate::new(self, a, &tokens)?;
        let texts = tokens.iter().map(OneTimeToken::to_text).collect();
        // The gate decides, since it can learn of new keys and tokens while the server runs.
        let authority = Authority { keys: None, tokens: Vec::new() };
        Ok((gate, ServerConfig { auth, authority, ..ServerConfig::default() }, texts))
    }

    fn new_token(&self) -> Outcome<OneTimeToken> {
        let mut secret = Zeroizing::new([0; 32]);
        clock::fill_random(&mut *secret).map_err(Failure::system)?;
        Ok(OneTimeToken::of(&secret, Some(self.identity.public_key().fingerprint())))
    }

    /// Makes a token that every server of this key takes within `lifetime`, and whichever is first takes it.
    pub fn issue_token(&self, lifetime: Span) -> Outcome<OneTimeToken> {
        let seconds = lifetime.as_nanos().div_ceil(1_000_000_000);
        if !(1..=MAX_LIFETIME).contains(&seconds) {
            return Err(Failure::usage("cannot use --lifetime: it is out of range; try 1s to 400d"));
        }
        let token = self.new_token()?;
        let key = HostKey(*gate::key_of(&token).public_key().as_bytes());
        let now = WallTime::now().unix_secs();
        self.state.tokens()?.issue(&key, now, now.saturating_add(seconds))?;
        Ok(token)
    }
}

/// An endpoint that shows `credentials`; a server when `server` is given, with a secret of its host key for resets.
pub fn endpoint(
    static_secret: &[u8; 32],
    credentials: &Arc<Credentials>,
    options: TransportOptions,
    server: Option<Serving>,
) -> Outcome<Endpoint> {
    let mut config = Config::client(credentials.clone());
    config.options = options;
    if let Some(s) = server {
        config.static_secret = s.reset_secret(static_secret);
        config.server = Some(s.config);
    }
    let up = Clock::new().now().as_nanos() / 1_000_000_000;
    config.unix_epoch = WallTime::now().unix_secs().saturating_sub(up);
    let seed = clock::seed().map_err(Failure::system)?;
    // What is asked of the network means something also where no administrator wrote a policy; of a server, clients ask.
    let intent = &config.options.intent;
    let asks = config.server.is_some() || intent.qos != endpoint::Qos::Ordinary || intent.dscp > 0;
    let mut endpoint = Endpoint::new(config, Rng::from_seed(seed))?;
    if asks {
        endpoint.set_policy(Arc::new(policy::Policy::built_in()));
    }
    Ok(endpoint)
}

/// A server among those of one host key.
pub struct Serving {
    /// What the endpoint is told.
    pub config: ServerConfig,
    /// Which command it is.
    pub role: &'static str,
    /// Where it listens.
    pub listen: SocketAddr,
}

impl Serving {
    /// The secret of its stateless resets. Servers that run beside each other must not have the same (RFC 9000, section
    /// 21.11): else one of them ends the connections of another for whoever has seen their identifiers. One that is started
    /// again in its place must.
    fn reset_secret(&self, of_key: &[u8; 32]) -> [u8; 32] {
        // Containers and clones of one machine may have the same key and the same addresses.
        let host = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut h = blake3::Hasher::new_derive_key("longhaul 2026 stateless reset of one server");
        for part in [of_key, self.role.as_bytes(), self.listen.to_string().as_bytes(), &host] {
            h.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        *h.finalize().as_bytes()
    }
}

/// Says what a server listens on, who may come and how.
pub fn announce(
    me: &LocalIdentity,
    (listen, iwarp): (SocketAddr, bool),
    a: &Admission,
    gate: &Gate,
    tokens: &[Zeroizing<String>],
) {
    let ip = listen.ip();
    err_line!(
        "listening on {} {listen}{}",
        if iwarp { "UDP and TCP (iWARP)" } else { "UDP" },
        match () {
            () if ip.is_loopback() =>
                " (this machine only; try --listen 0.0.0.0:PORT or [::]:PORT to admit others)",
            () if ip.is_unspecified() => " (every address of this machine)",
            () => "",
        }
    );
    match (me.fingerprint(), &a.certificate.cert) {
        (Some(print), _) => err_line!("fingerprint of this server: {print}"),
        (None, Some(file)) => {
            err_line!(
                "this server presents the certificate in {}; clients need its root (--ca)",
                file.display()
            )
        }
        (None, None) => {}
    }
    gate.describe(a);
    for t in tokens {
        err_line!("one-time token (for one connection): {}", **t);
    }
}

/// Options of the transport. A server says aloud when packets may not be encrypted; a client does when it knows what was agreed
/// ([`tell_protection`]).
pub fn options(
    wire: &Wire,
    sending: Option<&SendOptions>,
    connect_options: Option<&ConnectOptions>,
) -> TransportOptions {
    let measured = aead_suites();
    let mut o = TransportOptions {
        suites: measured.iter().map(|(s, _)| *s).collect(),
        suite_costs: measured,
        ..TransportOptions::default()
    };
    let (name, first): (_, &[Suite]) = match wire.encryption {
        Encryption::Aead => ("", &[]),
        Encryption::Integrity => {
            o.module = ::wire::Module::Integrity;
            ("integrity", &[Suite::IntegrityAegis, Suite::IntegrityGmac])
        }
        Encryption::Crc32c => {
            o.module = ::wire::Module::Crc32c;
            ("crc32c", &[Suite::Crc32c])
        }
    };
    if let (Some(suite), None) = (first.first(), connect_options) {
        let what = unprotected(*suite).unwrap_or_default();
        err_line!("WARNING: --encryption {name}: with clients that ask for it too, {what}");
    }
    // If the other end does not agree, the connection is encrypted after all.
    o.suites.splice(0..0, first.iter().copied());
    o.discover = wire.discover;
    if let Some(mtu) = wire.mtu {
        o.max_packet = mtu;
    }
    if let Some(s) = sending {
        s.first_cc().clone_into(&mut o.cc);
        o.negotiation = s.negotiation();
        o.rate_cap = s.limit;
        o.known_rate = s.known_rate;
        o.intent = intent(&s.intent);
        (o.coupling, o.lane_choice) = (s.coupling, s.scheduler);
    }
    if let Some(t) = connect_options {
        o.connect_timeout = t.connect_timeout;
        o.paths = [&t.paths[..], &t.backup_paths].concat();
    }
    o
}

/// What packets of a suite are open to; `None` where they are encrypted.
fn unprotected(suite: Suite) -> Option<&'static str> {
    match suite {
        Suite::IntegrityGmac | Suite::IntegrityAegis => {
            Some("data is NOT encrypted: anyone on the path can read it")
        }
        Suite::Crc32c => {
            Some("data is NOT encrypted and NOT authenticated: anyone on the path can read and change it")
        }
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 | Suite::Aegis128L | Suite::Aegis128X2 => None,
    }
}

/// Says aloud what protects a connection that is up, where that is less than encryption, or more than was asked for.
pub fn tell_protection(asked: Encryption, agreed: Suite) {
    match (unprotected(agreed), asked) {
        (Some(what), _) => err_line!("WARNING: {what} ({})", agreed.name()),
        (None, Encryption::Aead) => {}
        (None, _) => err_line!(
            "cannot use less than encryption: the server does not allow it; data is encrypted ({}); try the same \
             --encryption there",
            agreed.name()
        ),
    }
}

/// What this end asks of the network. A program that does not say its name has that of its file.
pub fn intent(i: &Intent) -> endpoint::Intent {
    let application = i.app.clone().unwrap_or_else(|| "longhaul".to_owned());
    endpoint::Intent { application, qos: i.qos.unwrap_or_default(), dscp: i.dscp.unwrap_or(0) }
}

/// Which suites this processor is fastest with, by a measurement of about a millisecond; once for the process.
fn aead_suites() -> Vec<(Suite, u8)> {
    static MEASURED: OnceLock<Vec<(Suite, u8)>> = OnceLock::new();
    let measured = MEASURED.get_or_init(|| {
        let clock = Clock::new();
        rank::fastest_first(&mut || clock.now())
    });
    measured.clone()
}

/// Where a client's socket is bound: loopback for this machine; else any address, of both families where the connection may
/// have paths of both. A client that looks on for messages (`polls`) has them over IPv6 only where they are named: an IPv4
/// socket is quicker.
pub fn client_address(remote: SocketAddr, options: &TransportOptions, polls: bool) -> SocketAddr {
    let named = options.paths.iter().any(|p| p.remote.is_ipv6());
    let found = options.discover != PathDiscovery::Off && !polls;
    let v6 = remote.is_ipv6() || named || found && lhio::udp::has_ipv6();
    let ip: IpAddr = match (remote.ip().is_loopback(), v6) {
        (true, _) if remote.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        (true, _) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// A driver on `bind` that reaches the network as it was asked to, and sleeps while nothing happens. One that `serves` is
/// what clients connect to; the second of `serves`: by TCP for iWARP, too.
pub fn driver(bind: SocketAddr, wire: &Wire, serves: (bool, Option<StreamOptions>)) -> Outcome<Driver> {
    Ok(Driver::with(driver_options(bind, wire, serves))?)
}

fn driver_options(
    bind: SocketAddr,
    wire: &Wire,
    (serves, streams): (bool, Option<StreamOptions>),
) -> DriverOptions {
    DriverOptions {
        datapath: wire.datapath.clone(),
        lanes: wire.lanes,
        cores: wire.cores.clone(),
        always: wire.keep_threads,
        serves,
        streams,
        ..DriverOptions::new(bind)
    }
}

/// A driver on `bind` that also runs as it was asked to.
pub fn driven(
    bind: SocketAddr,
    wire: &Wire,
    d: &LoopOptions,
    serves: (bool, Option<StreamOptions>),
) -> Outcome<Driver> {
    let idle = match d.poll {
        Polling::Sleep => Idle::Sleep,
        Polling::Adaptive => Idle::Spin(Span::from_micros(50)),
        Polling::Spin => Idle::Poll,
    };
    let mut driver = Driver::with(DriverOptions { idle, ..driver_options(bind, wire, serves) })?;
    if let Some(share) = d.lose {
        let seed = clock::seed().map_err(Failure::system)?;
        driver.inject_loss(share, Rng::from_seed(seed));
    }
    Ok(driver)
}

/// The token of the command line or the environment. A certificate on the command line counts more than the
/// environment.
pub fn token(t: &ConnectOptions) -> Outcome<Option<OneTimeToken>> {
    let text = match (&t.token, &t.certificate.cert) {
        (Some(text), _) => Some(text.0.clone()),
        (None, Some(_)) => None,
        (None, None) => std::env::var("LONGHAUL_TOKEN").ok().filter(|v| !v.is_empty()).map(Zeroizing::new),
    };
    text.map(|t| t.parse().map_err(|e| Failure::new(Code::Untrusted, format!("{e}")))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_one_key_have_distinct_persistent_secrets() {
        let secret = |key: u8, role, listen: &str| {
            let (config, listen) = (ServerConfig::default(), listen.parse().unwrap());
            Serving { config, role, listen }.reset_secret(&[key; 32])
        };
        let one = secret(1, "serve", "0.0.0.0:4460");
        assert_eq!(one, secret(1, "serve", "0.0.0.0:4460"));
        let others = [
            secret(2, "serve", "0.0.0.0:4460"),
            secret(1, "perf server", "0.0.0.0:4460"),
            secret(1, "serve", "0.0.0.0:4461"),
            secret(1, "serve", "192.0.2.1:4460"),
            secret(1, "serve", "[::]:4460"),
        ];
        for (n, other) in others.iter().enumerate() {
            assert!(*other != one && !others[..n].contains(other), "{n}");
        }
    }
}
