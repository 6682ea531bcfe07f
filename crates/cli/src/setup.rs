//! From flags to endpoints: keys, options, sockets.

use crate::args::{Admission, Encryption, Sending, Trusting, Wire};
use crate::exit::{Code, Failure, Outcome};
use base::Rng;
use endpoint::{Authority, Config, Endpoint, ServerConfig, TransportOptions};
use lhio::clock::{self, Clock, WallTime};
use lhio::identity::{AuthorizedKeys, StateFolder};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity, OneTimeToken, PublicKey, Suite};

/// This machine's identity.
pub struct Me {
    /// Where keys are kept.
    pub state: StateFolder,
    /// The key.
    pub identity: Identity,
    static_secret: [u8; 32],
}

impl Me {
    /// Reads the state folder; makes a key at first use.
    pub fn load() -> Outcome<Me> {
        let state = StateFolder::open_default()?;
        let key = state.host_key()?;
        let seed = *key.seed();
        // Survives restarts, so that resets reach peers of the time before; tells nothing of the key.
        let static_secret = blake3::derive_key("longhaul 2026 stateless reset and address validation", &seed);
        Ok(Me { state, identity: Identity::from_seed(seed), static_secret })
    }

    /// An endpoint of this machine; a server when `server` is given.
    pub fn endpoint(&self, options: TransportOptions, server: Option<ServerConfig>) -> Outcome<Endpoint> {
        let mut config = Config::client(Arc::new(Credentials::RawKey(self.identity.clone())));
        config.options = options;
        config.server = server;
        config.static_secret = self.static_secret;
        let up = Clock::new().now().as_nanos() / 1_000_000_000;
        config.unix_epoch = WallTime::now().unix_secs().saturating_sub(up);
        let seed = clock::seed().map_err(Failure::system)?;
        Ok(Endpoint::new(config, Rng::from_seed(seed))?)
    }

    /// Who may connect, and the tokens made for it, as text.
    pub fn admission(&self, a: &Admission) -> Outcome<(ServerConfig, Vec<String>)> {
        let listed = match &a.authorized_keys {
            Some(file) => {
                let text = std::fs::read_to_string(file).map_err(|e| {
                    Failure::usage(format!("cannot read the authorised keys in {}: {e}", file.display()))
                })?;
                AuthorizedKeys::parse(&text)
            }
            None => self.state.authorized_keys()?,
        };
        for (line, why) in listed.ignored() {
            tracing::warn!(line, why, "a line of the authorised keys grants nothing");
        }
        let keys: Vec<PublicKey> = listed.iter().map(|(k, _)| PublicKey::from_bytes(k.0)).collect();
        let mut tokens = Vec::new();
        for _ in 0..a.token.unwrap_or(0) {
            let secret = clock::seed().map_err(Failure::system)?;
            tokens.push(OneTimeToken::new(secret, Some(self.identity.public_key().fingerprint())));
        }
        let texts = tokens.iter().map(|t| t.to_text().to_string()).collect();
        let keys = if a.allow_any_key { None } else { Some(keys) };
        let authority = Authority { keys, tokens };
        Ok((ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() }, texts))
    }
}

/// Says what a server listens on, who may come and how.
pub fn announce(me: &Me, listen: SocketAddr, a: &Admission, config: &ServerConfig, tokens: &[String]) {
    let ip = listen.ip();
    eprintln!(
        "listening on UDP {listen}{}",
        match () {
            () if ip.is_loopback() =>
                " (this machine only; --listen 0.0.0.0:PORT or [::]:PORT lets others in)",
            () if ip.is_unspecified() => " (every address of this machine)",
            () => "",
        }
    );
    eprintln!("fingerprint of this server: {}", me.identity.public_key().fingerprint());
    match &config.authority.keys {
        None => eprintln!("WARNING: --allow-any-key: everybody who reaches this port is let in"),
        Some(keys) if keys.is_empty() && tokens.is_empty() => {
            let file = me.state.path().join("authorized_keys");
            let file = a.authorized_keys.as_deref().unwrap_or(&file).display();
            eprintln!(
                "nobody may connect yet: {file} lists no key. On the client, `longhaul keys show` prints its key; \
                 add it here with `longhaul keys authorize FILE`, or start with --token"
            );
        }
        Some(keys) => eprintln!("{} listed keys may connect", keys.len()),
    }
    for t in tokens {
        eprintln!("one-time token (for one connection): {t}");
    }
}

/// Options of the transport. Says aloud when packets are not encrypted.
pub fn options(wire: &Wire, sending: Option<&Sending>, trusting: Option<&Trusting>) -> TransportOptions {
    let mut o = TransportOptions { suites: aead_suites(), ..TransportOptions::default() };
    let first: &[Suite] = match wire.encryption {
        Encryption::Aead => &[],
        Encryption::Integrity => {
            o.module = ::wire::Module::Integrity;
            eprintln!(
                "WARNING: --encryption integrity: data is NOT encrypted, everybody on the way can read it"
            );
            &[Suite::IntegrityAegis, Suite::IntegrityGmac]
        }
        Encryption::Crc32c => {
            o.module = ::wire::Module::Crc32c;
            eprintln!(
                "WARNING: --encryption crc32c: data is NOT encrypted and NOT authenticated, everybody on the way \
                 can read and change it"
            );
            &[Suite::Crc32c]
        }
    };
    // If the other end does not agree, the connection is encrypted after all.
    o.suites.splice(0..0, first.iter().copied());
    if let Some(mtu) = wire.mtu {
        o.max_packet = mtu;
    }
    if let Some(s) = sending {
        o.cc.clone_from(&s.cc);
        o.rate_cap = s.limit;
        o.known_rate = s.known_rate;
    }
    if let Some(t) = trusting {
        o.connect_timeout = t.connect_timeout;
    }
    o
}

fn aead_suites() -> Vec<Suite> {
    #[cfg(target_arch = "x86_64")]
    let aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let aes = false;
    Suite::preferred(aes).to_vec()
}

/// Where a client's socket is bound: loopback for this machine, any address of the right family otherwise.
pub fn client_address(remote: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match (remote.ip().is_loopback(), remote.is_ipv6()) {
        (true, false) => Ipv4Addr::LOCALHOST.into(),
        (true, true) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// The token of the command line or the environment.
pub fn token(t: &Trusting) -> Outcome<Option<OneTimeToken>> {
    let text = t.token.clone().or_else(|| std::env::var("LONGHAUL_TOKEN").ok().filter(|v| !v.is_empty()));
    text.map(|t| t.parse().map_err(|e| Failure::new(Code::Untrusted, format!("{e}")))).transpose()
}
