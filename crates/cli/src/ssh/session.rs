//! The client's side of a transfer over ssh: starts the remote server, and connects to it by UDP or through ssh.

use super::answer::Answer;
use super::args::SshOptions;
use super::bootstrap;
use super::channel::{Channel, StartFailure};
use super::command::{Options, SshCommand, remote_command};
use super::location::Remote;
use super::remote_server::RemoteOperation;
use crate::args::{ConnectOptions, Encryption, Wire};
use crate::exit::{Code, Failure, Outcome};
use crate::trust::{ConnectDeadline, Trusted};
use crate::{gate, out};
use base::Span;
use clap::ValueEnum as _;
use endpoint::{Iwarp, TransportOptions};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use transport::crypto::{Credentials, Fingerprint, ServerTrust};
use zeroize::Zeroizing;

/// How long an answer by UDP is waited for, at all addresses together.
const UDP_TIMEOUT: Span = Span::from_secs(2);
/// Addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 4;

/// What is wanted of a machine.
pub struct RemoteRequest<'a> {
    /// What to do there.
    pub operation: RemoteOperation,
    /// Which machine.
    pub remote: &'a Remote,
    /// Paths there.
    pub paths: Vec<Vec<u8>>,
    /// Folders there that are used beside: they are served, too, and stand behind `paths` in the answer.
    pub beside: Vec<Vec<u8>>,
    /// How to get there.
    pub over: &'a SshOptions,
    /// What packets look like.
    pub wire: &'a Wire,
    /// What else the command line says of the connection.
    pub connect_options: &'a ConnectOptions,
}

/// A far end that runs.
pub struct RemoteSession {
    channel: Channel,
    answer: Answer,
    connecting: SshCommand,
    host: String,
    connect_timeout: Span,
}

impl RemoteSession {
    /// Starts the far end.
    ///
    /// # Errors
    /// ssh's failures, or that the program cannot be started there.
    pub fn open(asked: &RemoteRequest<'_>, options: &TransportOptions) -> Outcome<RemoteSession> {
        check(asked, options)?;
        let connecting = SshCommand::new(asked.over, asked.remote)?;
        let host = asked.remote.host().to_owned();
        let program = remote_program(asked.over);
        let paths = [&asked.paths[..], &asked.beside].concat();
        let mut shared = shared_options(asked.wire);
        if !asked.beside.is_empty() {
            shared.push(format!("--beside={}", asked.beside.len()));
        }
        let range = asked.over.port_range;
        let command = remote_command(&program, asked.operation.name(), range, &shared, &paths)?;
        let mut opened = Channel::open(&connecting, &command)?;
        if asked.over.bootstrap && opened.as_ref().is_err_and(|n| n.missing) {
            bootstrap::copy(&connecting, &host)?;
            opened = Channel::open(&connecting, &command)?;
        }
        let (channel, answer) = opened.map_err(|n| explain(&n, &host, &program, asked.over.bootstrap))?;
        if answer.version != env!("CARGO_PKG_VERSION") {
            tracing::info!(there = answer.version, "another version of longhaul runs there");
        }
        if answer.paths.len() != paths.len() {
            let text = format!(
                "cannot use the answer of longhaul on {host}: it is of other paths; try the same version at both ends"
            );
            return Err(Failure::new(Code::System, text));
        }
        Ok(RemoteSession {
            channel,
            answer,
            connecting,
            host,
            connect_timeout: asked.connect_options.connect_timeout,
        })
    }

    /// What was asked for, as the far end calls it.
    pub fn paths(&self) -> &[Vec<u8>] {
        &self.answer.paths
    }

    /// Where it is by UDP, for messages.
    pub fn shown(&self) -> (String, u16) {
        (self.host.clone(), self.answer.port)
    }

    /// For another machine that is to send to this far end: where it may be, the fingerprint of its key, and the seed of the key that
    /// it lets in.
    pub fn addresses_and_key(&self) -> (Vec<SocketAddr>, Fingerprint, Zeroizing<[u8; 32]>) {
        let at = self.addresses().into_iter().map(|ip| SocketAddr::new(ip, self.answer.port)).collect();
        // An answer without a fingerprint is none.
        let print = self.answer.token.server().unwrap_or(Fingerprint::from_bytes([0; 32]));
        (at, print, gate::seed_of(&self.answer.token))
    }

    /// Whether the far end is gone.
    pub fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }

    /// Calls `f` when the far end is gone, perhaps at once.
    pub fn on_end(&self, f: impl Fn() + Send + 'static) {
        self.channel.on_end(f);
    }

    /// Tries to reach the far end by UDP, and else through ssh; `attempt` makes the connection, and `unreached` says of what came of
    /// it that there was none.
    ///
    /// # Errors
    /// Those of `attempt`, and of the way through ssh.
    pub fn connect_by_udp_or_ssh<T>(
        &self,
        mut attempt: impl FnMut(&Trusted) -> Outcome<T>,
        unreached: impl Fn(&T) -> bool,
    ) -> Outcome<T> {
        let addresses = self.addresses();
        for ip in &addresses {
            let at = SocketAddr::new(*ip, self.answer.port);
            let deadline =
                ConnectDeadline::start((UDP_TIMEOUT / addresses.len() as u64).min(self.connect_timeout));
            tracing::info!(%at, "trying by UDP");
            let done = attempt(&self.trusted(at, None, deadline))?;
            if self.channel.has_ended() || !unreached(&done) {
                return Ok(done);
            }
        }
        if !out::is_quiet() {
            let port = self.answer.port;
            err_line!(
                "no answer from {} by UDP at port {port}: the transfer goes through ssh instead, and at TCP's pace; for UDP, open \
                 ports in the firewall there and name them with --port-range",
                self.host
            );
        }
        let at = self.channel.bridge().map_err(|e| {
            Failure::new(Code::Connect, format!("cannot reach {} through ssh: {e}; try again", self.host))
        })?;
        let mut iwarp = Iwarp { tls: true, ..Iwarp::default() };
        iwarp.settings.startup_timeout = self.connect_timeout;
        attempt(&self.trusted(at, Some(iwarp), ConnectDeadline::start(self.connect_timeout)))
    }

    /// The far end at one address: its key is the one that ssh brought, and it is shown the one of the token.
    fn trusted(&self, remote: SocketAddr, iwarp: Option<Iwarp>, deadline: ConnectDeadline) -> Trusted {
        let print = self.answer.token.server();
        Trusted {
            remote,
            name: remote.ip().to_string(),
            // An answer without a fingerprint is none.
            trust: print.map_or_else(|| ServerTrust::Pinned(Vec::new()), ServerTrust::Fingerprint),
            token: None,
            credentials: Arc::new(Credentials::RawKey(gate::key_of(&self.answer.token))),
            iwarp,
            deadline,
        }
    }

    /// Where to look for it: the address at which ssh arrived, and the host's own when that is another one, since there may be
    /// address translation in between.
    fn addresses(&self) -> Vec<IpAddr> {
        let arrived = self.answer.address;
        if arrived.is_some_and(is_global) {
            return arrived.into_iter().collect();
        }
        order_addresses(arrived, &self.resolved())
    }

    fn resolved(&self) -> Vec<IpAddr> {
        let mut name = self.host.clone();
        if self.connecting.is_ssh()
            && let Ok(o) = self.connecting.settings().output()
        {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            let found = text.lines().find_map(|l| l.strip_prefix("hostname "));
            name = found.map_or(name, |n| n.trim().to_owned());
        }
        let found = (name.as_str(), self.answer.port).to_socket_addrs();
        let mut all: Vec<IpAddr> =
            found.map(|a| a.take(MAX_ADDRESSES).map(|a| a.ip().to_canonical()).collect()).unwrap_or_default();
        all.dedup();
        all
    }

    /// The far end is gone.
    fn ended(&self) -> Failure {
        let how = self.channel.status().filter(|s| !s.success());
        let how = how.map_or_else(String::new, |s| format!(" (ssh: {s})"));
        let text = format!("longhaul on {} has ended, or ssh's connection to it{how}", self.host);
        Failure::new(Code::Interrupted, text)
    }

    /// What a failure means, when a transfer did not come to its end.
    pub fn explain(&self, failure: Failure, by_user: bool, connected: bool) -> Failure {
        if !by_user && self.channel.has_ended() && matches!(failure.code, Code::Interrupted | Code::Connect) {
            return self.ended();
        }
        if !connected
            && matches!(failure.code, Code::Interrupted | Code::Connect | Code::Untrusted)
            && !by_user
        {
            let text = format!(
                "cannot connect to longhaul on {}, which ssh has started: {}",
                self.host, failure.text
            );
            return Failure { code: Code::Connect, text, ..failure };
        }
        failure
    }
}

/// What is started at the far end.
pub fn remote_program(over: &SshOptions) -> String {
    match (&over.remote_program, over.bootstrap) {
        (Some(p), _) => p.clone(),
        (None, true) => bootstrap::program(),
        (None, false) => "longhaul".to_owned(),
    }
}

/// Whether the command line asks for what there is not over ssh.
fn check(asked: &RemoteRequest<'_>, options: &TransportOptions) -> Outcome<()> {
    let t = asked.connect_options;
    t.by_iwarp.check(false, options).map_err(Failure::usage)?;
    let given =
        [(t.certificate.cert.is_some(), "--cert"), (t.ca.is_some(), "--ca"), (t.token.is_some(), "--token")];
    let named: Vec<&str> = given.into_iter().filter(|g| g.0).map(|g| g.1).collect();
    if named.is_empty() {
        return Ok(());
    }
    let text =
        format!("cannot use {} over ssh: ssh says who both ends are; try without it", named.join(" and "));
    Err(Failure::usage(text))
}

/// What both ends must be told alike.
pub fn shared_options(wire: &Wire) -> Options {
    let mut o = Options::new();
    if wire.encryption != Encryption::default() {
        o.extend(wire.encryption.to_possible_value().map(|v| format!("--encryption={}", v.get_name())));
    }
    o.extend(wire.mtu.map(|m| format!("--mtu={m}")));
    match wire.discover {
        endpoint::PathDiscovery::Auto => {}
        endpoint::PathDiscovery::Off => o.push("--discover=off".into()),
        endpoint::PathDiscovery::Mesh => o.push("--discover=mesh".into()),
    }
    o
}

/// Addresses in the order in which to try them, two at most.
fn order_addresses(arrived: Option<IpAddr>, resolved: &[IpAddr]) -> Vec<IpAddr> {
    let Some(arrived) = arrived else { return resolved.iter().take(2).copied().collect() };
    let other = resolved.iter().find(|a| a.is_ipv4() == arrived.is_ipv4()).or(resolved.first()).copied();
    match other {
        Some(_) if resolved.contains(&arrived) => vec![arrived],
        // What is reached by a public address has a private one behind a translation, most likely.
        Some(o) if is_global(o) => vec![o, arrived],
        Some(o) => vec![arrived, o],
        None => vec![arrived],
    }
}

/// Whether an address means the same machine everywhere.
fn is_global(a: IpAddr) -> bool {
    match a {
        IpAddr::V4(a) => {
            let shared = a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64; // RFC 6598
            !(a.is_private() || a.is_loopback() || a.is_link_local() || a.is_unspecified() || shared)
        }
        IpAddr::V6(a) => {
            !(a.is_loopback() || a.is_unspecified() || a.is_unique_local() || a.is_unicast_link_local())
        }
    }
}

/// Why there is no far end.
pub fn explain(n: &StartFailure, host: &str, program: &str, bootstrap: bool) -> Failure {
    let cannot = |text: String| format!("cannot start longhaul on {host}: {text}");
    if n.missing && bootstrap {
        let text = cannot(format!(
            "it was copied to {program} there, and does not run; build it for that system, and name it with \
             --remote-program"
        ));
        return Failure::line(Code::Connect, text);
    }
    if n.missing && program != "longhaul" {
        let text = cannot(format!("there is no {program}; check --remote-program, or try --bootstrap"));
        return Failure::line(Code::Connect, text);
    }
    if n.missing {
        let text = cannot(format!(
            "it is not installed there; try --bootstrap, or copy {} to a folder where {host} looks for programs, such as \
             /usr/local/bin, or name its place there with --remote-program",
            std::env::current_exe().map_or_else(|_| "this program".to_owned(), |p| p.display().to_string())
        ));
        return Failure::line(Code::Connect, text);
    }
    let printed = match &n.noise[..] {
        [] => String::new(),
        lines => format!("; {host} printed instead: {}", lines.join(" | ")),
    };
    if let Some(why) = &n.unusable {
        let text = format!(
            "cannot use the answer of longhaul on {host}: {why}; try the same version there, and a shell that prints nothing for \
             commands{printed}"
        );
        return Failure::line(Code::Connect, text);
    }
    match n.status.and_then(|s| s.code()) {
        Some(255) => Failure::line(
            Code::Connect,
            format!(
                "cannot reach {host} by ssh: see above what ssh says; try `ssh {host}` by itself{printed}"
            ),
        ),
        Some(n @ 2..=7) => {
            let text = cannot(format!("see above what it says there (status {n}){printed}"));
            let code = match n {
                2 => Code::Usage,
                6 => Code::Refused,
                7 => Code::System,
                _ => Code::Connect,
            };
            Failure::line(code, text)
        }
        _ => {
            let how = n.status.map_or_else(|| "it does not end".to_owned(), |s| s.to_string());
            let text = cannot(format!("no answer came from it ({how}); see above what {host} says{printed}"));
            Failure::line(Code::Connect, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_address_is_tried_first_behind_nat() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let of = |arrived: Option<&str>, resolved: &[&str]| {
            let resolved: Vec<IpAddr> = resolved.iter().map(|s| ip(s)).collect();
            order_addresses(arrived.map(ip), &resolved).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(Some("10.0.0.5"), &["192.0.2.1"]), ["192.0.2.1", "10.0.0.5"]);
        assert_eq!(of(Some("10.0.0.5"), &["10.0.0.5", "10.1.0.5"]), ["10.0.0.5"]);
        assert_eq!(of(Some("10.0.0.5"), &["10.7.0.1"]), ["10.0.0.5", "10.7.0.1"]);
        assert_eq!(of(Some("fd00::1"), &["192.0.2.1", "fd00::2"]), ["fd00::1", "fd00::2"]);
        assert_eq!(of(Some("10.0.0.5"), &[]), ["10.0.0.5"]);
        assert_eq!(of(None, &["192.0.2.1"]), ["192.0.2.1"]);
        assert!(of(None, &[]).is_empty());
        for local in [
            "127.0.0.1",
            "10.1.1.1",
            "172.16.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "169.254.1.1",
            "::1",
            "fd00::1",
            "fe80::1",
        ] {
            assert!(!is_global(ip(local)), "{local}");
        }
        assert!(is_global(ip("198.51.100.1")) && is_global(ip("2001:db8::1")));
    }
}
