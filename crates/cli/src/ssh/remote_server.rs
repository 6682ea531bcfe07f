//! `longhaul serve --over-ssh`: the one-transfer server that ssh starts. It is hidden from help.

use super::answer::Answer;
use super::args::PortRange;
use super::bridge::{self, BRIDGE};
use super::resolve::{Request, resolve};
use crate::args::{AdminOptions, Wire};
use crate::exit::{Code, Failure, Outcome};
use crate::gate;
use crate::setup::{self, Serving};
use crate::{govern, log, out, stop, url};
use base::{Span, Time};
use clap::{Parser, ValueEnum};
use endpoint::{App, Authority, Endpoint, IwarpServer, ServerConfig};
use lhio::clock;
use lhio::driver::Driver;
use lhio::tcp::StreamOptions;
use lhio::udp::has_ipv6;
use mover::proto::Op;
use mover::{AllowedRequest, ServeOptions, ServerApp, Wake};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use transport::crypto::{ClientAuth, Credentials, Identity, OneTimeToken, PeerIdentity, PublicKey};
use zeroize::Zeroizing;

/// How long the client may take to hear that its connection is closed, after which this end goes of its own accord.
const LINGER: Span = Span::from_secs(5);
/// How long what was begun may take to end when the channel is closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// What somebody else than the client is told.
const REFUSAL: &str = "this is there for one transfer of one client";

/// What the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RemoteOperation {
    Put,
    Get,
    Ls,
    Change,
    /// It sends to another machine.
    Copy,
}

impl RemoteOperation {
    /// The command that wants it.
    pub fn name(self) -> &'static str {
        match self {
            RemoteOperation::Put => "put",
            RemoteOperation::Get => "get",
            RemoteOperation::Ls => "ls",
            RemoteOperation::Change => "change",
            RemoteOperation::Copy => "copy",
        }
    }
    /// Of the mover.
    pub fn op(self) -> Op {
        match self {
            RemoteOperation::Put => Op::Put,
            RemoteOperation::Get => Op::Get,
            RemoteOperation::Ls => Op::List,
            RemoteOperation::Change => Op::Change,
            RemoteOperation::Copy => Op::Copy,
        }
    }
}

/// Of the far end of a transfer over ssh. `longhaul put`, `get` and `ls` start it.
#[derive(Parser, Debug)]
#[command(name = "longhaul serve --over-ssh", version, max_term_width = 100)]
struct RemoteServerArgs {
    /// What the client wants.
    operation: RemoteOperation,
    /// Say more on standard error.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// UDP ports of which one is listened at.
    #[arg(long)]
    port_range: Option<PortRange>,
    /// The last so many of the paths are folders that are used beside what is asked for.
    #[arg(long, default_value_t = 0)]
    beside: usize,
    /// What is asked for, in the form of an address.
    #[arg(required = true)]
    paths: Vec<String>,
    #[command(flatten)]
    wire: Wire,
}

/// Runs it, where the command line asks for it.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != "serve" || args.next()? != "--over-ssh" {
        return None;
    }
    let name = std::iter::once("longhaul serve --over-ssh".into());
    let done = match RemoteServerArgs::try_parse_from(name.chain(args)) {
        Ok(far) => {
            log::begin(far.verbose);
            serve(&far)
        }
        Err(e) => {
            out::command_line(&e);
            Err(Failure::new(Code::Usage, ""))
        }
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            if !f.text.is_empty() {
                err_lines!("longhaul: {}", f.indented());
            }
            ExitCode::from(f.code as u8)
        }
    })
}

/// What does not change between the ways to reach this end.
struct OneTimeServer {
    op: Op,
    request: Request,
    /// How many of its paths are asked for; the others are folders beside.
    asked: usize,
    wire: Wire,
    /// Of this transfer only: it is never written anywhere.
    identity: Identity,
    /// The key that the token stands for.
    client: PublicKey,
}

fn serve(far: &RemoteServerArgs) -> Outcome<()> {
    setup::protect()?;
    let paths: Vec<Vec<u8>> =
        far.paths.iter().map(|p| url::decode(p)).collect::<Result<_, _>>().map_err(Failure::usage)?;
    let here = std::env::current_dir()
        .map_err(|e| Failure::usage(format!("cannot tell the home folder: {e}; try the path in full")))?;
    if far.operation == RemoteOperation::Copy {
        return super::copy::send(&paths, &here, &far.wire);
    }
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty()).map(PathBuf::from);
    let request = resolve(far.operation.op(), &paths, &here, home.as_deref())?;
    let identity = Identity::of_seed(&*random()?);
    let token = OneTimeToken::of(&*random()?, Some(identity.public_key().fingerprint()));
    let client = gate::key_of(&token).public_key();
    let asked = request.paths.len().saturating_sub(far.beside).max(1);
    let wire = far.wire.clone();
    let server = OneTimeServer { op: far.operation.op(), request, asked, wire, identity, client };

    let mut driver = listen(&server.wire, far.port_range)?;
    let answer = Answer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        port: driver.local_addr().port(),
        token,
        address: server_address(std::env::var("SSH_CONNECTION").ok().as_deref()),
        paths: server.request.paths.clone(),
    };
    let channel = Arc::new(ClientInput::default());
    let told = channel.clone();
    let mut say = Some(move || -> Outcome<()> {
        // At the start of a line, whatever a shell has printed.
        let line = Zeroizing::new([b"\n", answer.to_line().as_bytes()].concat());
        let mut out = std::fs::File::from(out::descriptor().map_err(Failure::system)?);
        out.write_all(&line).map_err(|e| Failure::system(format!("cannot answer through ssh: {e}")))?;
        told.listen()
    });
    server.run(&mut driver, &channel, None, &mut || say.take().map_or(Ok(()), |s| s()))?;
    drop(driver);
    let Some(through) = channel.take_bridge() else { return Ok(()) };
    let streams = StreamOptions { congestion: None };
    let mut driver = setup::driver(loopback(), &server.wire, (true, Some(streams)))?;
    server.run(&mut driver, &channel, Some(through), &mut || Ok(()))
}

fn random() -> Outcome<Zeroizing<[u8; 32]>> {
    let mut secret = Zeroizing::new([0; 32]);
    clock::fill_random(&mut *secret).map_err(Failure::system)?;
    Ok(secret)
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Listens at the first free port of the range, on all addresses.
fn listen(wire: &Wire, range: Option<PortRange>) -> Outcome<Driver> {
    let any: IpAddr = if has_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let Some(r) = range else { return setup::driver(SocketAddr::new(any, 0), wire, (true, None)) };
    let mut last = None;
    for port in r.first..=r.last {
        match setup::driver(SocketAddr::new(any, port), wire, (true, None)) {
            Ok(d) => return Ok(d),
            Err(f) => last = Some(f),
        }
    }
    let why = last.map_or_else(String::new, |f| f.text);
    Err(Failure::system(format!("cannot listen at any UDP port of {r}: {why}; try another --port-range")))
}

/// The address of this machine in what sshd says of its connection: client's address and port, server's address and port.
fn server_address(connection: Option<&str>) -> Option<IpAddr> {
    let address = connection?.split(' ').nth(2)?;
    address.parse::<IpAddr>().ok().map(|a| a.to_canonical())
}

impl OneTimeServer {
    /// Serves the one transfer. `ready` is called when it can come; with `through`, it comes by TCP through that channel.
    fn run(
        &self,
        driver: &mut Driver,
        channel: &ClientInput,
        through: Option<SyncSender<TcpStream>>,
        ready: &mut dyn FnMut() -> Outcome<()>,
    ) -> Outcome<()> {
        let listen = driver.local_addr();
        let waker = driver.waker();
        let wake: Wake = Arc::new(move || waker.wake());
        let mut paths = self.request.names()?;
        paths.truncate(self.asked);
        let only = Some(AllowedRequest { op: self.op, paths });
        let served = ServeOptions {
            allow_write: matches!(self.op, Op::Put | Op::Change),
            allow_delete: true,
            descriptors: lhio::descriptors::for_files(),
            only,
            // The client is the user himself.
            allow_privileged: true,
            ..ServeOptions::new(&self.request.root)
        };
        let inner = ServerApp::new(served, wake.clone()).map_err(|e| Failure::usage(&e))?;
        let options = setup::options(&self.wire, None, None);
        let config = ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys: None, tokens: Vec::new() },
            iwarp: through.is_some().then(|| IwarpServer {
                plain: false,
                tls: true,
                ..IwarpServer::default()
            }),
            ..ServerConfig::default()
        };
        let serving = Serving { config, role: "serve --over-ssh", listen };
        let credentials = Arc::new(Credentials::RawKey(self.identity.clone()));
        // The key is of this process only, so nothing that comes of it can be of use to another.
        let mut endpoint = setup::endpoint(&*random()?, &credentials, options, Some(serving))?;
        endpoint.set_client_admission(Some(Box::new(AdmitOnce { client: self.client, unused: true })));
        let admin =
            govern::start_in("serve", &AdminOptions::default(), Path::new("/nonexistent"), driver.waker())?;
        let stopping = inner.monitor();
        let stop = Arc::new(move || {
            stopping.stop();
            wake();
        });
        channel.on_end(stop.clone());
        stop::on_signal(move || stop())?;
        ready()?;
        if let Some(tx) = through {
            let stream = bridge::connect(listen)
                .map_err(|e| Failure::system(format!("cannot connect to this program itself: {e}")))?;
            let from = stream.try_clone().map_err(Failure::system)?;
            let _ = tx.send(stream); // the channel may have closed
            let out = out::descriptor().map(std::fs::File::from).map_err(Failure::system)?;
            let pass = move || bridge::copy(from, out);
            std::thread::Builder::new().name("to-ssh".into()).spawn(pass).map_err(Failure::no_thread)?;
        }
        let mut app = OneTransfer { inner, client_seen: false, idle_since: None };
        driver.run(&mut endpoint, &mut admin.govern(&mut app))?;
        Ok(())
    }
}

/// Lets the client in, once.
struct AdmitOnce {
    client: PublicKey,
    unused: bool,
}

impl endpoint::ClientAdmission for AdmitOnce {
    fn admit(&mut self, _: Time, peer: &PeerIdentity) -> Result<(), String> {
        let fits = matches!(peer, PeerIdentity::RawKey(k) if *k == self.client);
        if fits && std::mem::take(&mut self.unused) { Ok(()) } else { Err(REFUSAL.to_owned()) }
    }
}

/// The server, until its one transfer is over.
struct OneTransfer {
    inner: ServerApp,
    /// The client has been there.
    client_seen: bool,
    /// Since when it is gone.
    idle_since: Option<Time>,
}

impl App for OneTransfer {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        self.inner.drive(now, ep);
        let idle = self.inner.is_idle();
        self.client_seen |= !idle;
        self.idle_since = (self.client_seen && idle).then(|| self.idle_since.unwrap_or(now));
        if self.idle_since.is_some_and(|since| now.since(since) >= LINGER) {
            self.inner.monitor().stop();
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.inner.next_timeout().into_iter().chain(self.idle_since.map(|s| s + LINGER)).min()
    }
    fn finished(&self) -> bool {
        self.inner.finished()
    }
}

/// What is called when the channel ends, or the client wants something else.
type Stop = Arc<dyn Fn() + Send + Sync>;

/// Listens to what the client says by ssh's channel.
#[derive(Default)]
struct ClientInput {
    stop: Mutex<Option<Stop>>,
    over: AtomicBool,
    bridge: Mutex<Option<SyncSender<TcpStream>>>,
}

impl ClientInput {
    /// Calls `stop` when the channel ends, perhaps at once.
    fn on_end(&self, stop: Stop) {
        let mut s = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.load(Ordering::SeqCst) {
            stop();
        }
        *s = Some(stop);
    }

    /// Where to hand over a connection, if the client wants to go through the channel.
    fn take_bridge(&self) -> Option<SyncSender<TcpStream>> {
        self.bridge.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn stop(&self) {
        if let Some(stop) = &*self.stop.lock().unwrap_or_else(PoisonError::into_inner) {
            stop();
        }
    }

    fn listen(self: Arc<ClientInput>) -> Outcome<()> {
        let input = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::system)?;
        let hear = move || {
            let input = std::fs::File::from(input);
            if client_requests_bridge(&input) {
                let (tx, rx) = sync_channel(1);
                *self.bridge.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
                self.stop();
                forward_input(&input, &rx);
            }
            self.over.store(true, Ordering::SeqCst);
            self.stop();
            // Whatever still hangs then ends with the process.
            let (_never, end) = sync_channel::<()>(0);
            let _ = end.recv_timeout(SHUTDOWN_TIMEOUT);
            std::process::exit(Code::Interrupted as i32);
        };
        std::thread::Builder::new().name("from-ssh".into()).spawn(hear).map(drop).map_err(Failure::no_thread)
    }
}

/// Waits for the client's only word. It is read byte by byte, since what is behind it is not ours.
fn client_requests_bridge(mut input: &std::fs::File) -> bool {
    let mut word = [0; BRIDGE.len()];
    input.read_exact(&mut word).is_ok() && word == BRIDGE
}

fn forward_input(input: &std::fs::File, stream: &Receiver<TcpStream>) {
    if let Ok(stream) = stream.recv() {
        let _ = bridge::copy(input, &stream); // an error is an end
        bridge::end(&stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use endpoint::ClientAdmission as _;

    #[test]
    fn server_address_is_taken_from_ssh_connection() {
        let of = |s: &str| server_address(Some(s)).map(|a| a.to_string());
        assert_eq!(of("192.0.2.1 5000 192.0.2.2 22").as_deref(), Some("192.0.2.2"));
        assert_eq!(of("2001:db8::1 5000 2001:db8::2 22").as_deref(), Some("2001:db8::2"));
        assert_eq!(of("::ffff:192.0.2.1 5 ::ffff:192.0.2.2 22").as_deref(), Some("192.0.2.2"));
        // Another machine's interface means nothing here.
        assert_eq!(of("fe80::1%eth0 5000 fe80::2%eth0 22"), None);
        assert_eq!((of(""), of("a b c d"), server_address(None)), (None, None, None));
    }

    #[test]
    fn only_the_client_is_admitted_and_only_once() {
        let key = |n| Identity::from_seed([n; 32]).public_key();
        let mut gate = AdmitOnce { client: key(1), unused: true };
        let mut admit = |k| gate.admit(Time::ZERO, &PeerIdentity::RawKey(k)).is_ok();
        assert_eq!([admit(key(2)), admit(key(1)), admit(key(1))], [false, true, false]);
    }

    #[test]
    fn ports_in_use_are_skipped() {
        let wire = RemoteServerArgs::parse_from(["x", "put", "./a"]).wire;
        let first = listen(&wire, None).unwrap();
        let port = first.local_addr().port();
        let taken = PortRange { first: port, last: port };
        let f = listen(&wire, Some(taken)).err().unwrap();
        assert!(f.code == Code::System && f.text.contains("--port-range"), "{f}");
        let more = PortRange { first: port, last: port.saturating_add(20) };
        let second = listen(&wire, Some(more)).unwrap();
        assert_ne!(second.local_addr().port(), port);
    }
}
