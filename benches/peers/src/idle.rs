//! Connections that have nothing to do: what memory each takes at the server, beside the kernel's, and what processor time.
//!
//! One process serves, others connect so many times and then keep still. The server says how much of its memory is in the
//! machine's before the first connection, when all are there, and after some seconds of idleness.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use base::{Rng, Span, Time};
use clap::{Args, ValueEnum};
use endpoint::{App, Authority, Config, Connect, Endpoint, Event, Iwarp, IwarpServer, ServerConfig};
use lhio::clock::CpuTime;
use lhio::driver::{Driver, DriverOptions, Lanes};
use lhio::tcp::StreamOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};

use crate::net::{Kind, Net};
use crate::peer::{Process, first_line};
use crate::report;

/// Seeds of the keys of server and clients: nobody keeps them, nothing is protected by them.
const KEYS: [u8; 2] = [1, 2];
/// Connections that a client is making at a time.
const CONNECTING: usize = 64;
/// All connections must be there after this time.
const PATIENCE: Span = Span::from_secs(300);
/// File descriptors beside one for each connection.
const FURTHER_FILES: u64 = 256;

/// What carries the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    /// Longhaul's own transport.
    Native,
    /// iWARP without TLS.
    Iwarp,
    /// iWARP over TLS.
    IwarpTls,
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Carrier::Native => "native",
            Carrier::Iwarp => "iwarp",
            Carrier::IwarpTls => "iwarp-tls",
        }
    }
}

/// Options of the measurement.
#[derive(Args, Clone)]
pub struct Options {
    /// What carries the connections: native, iwarp, iwarp-tls
    #[arg(long, value_delimiter = ',', default_value = "iwarp,native")]
    carriers: Vec<Carrier>,
    /// How many there are
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Processes that connect, each an even part of them
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Seconds of idleness
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The network, see `longhaul-bench bulk --help`
    #[arg(long, default_value = "veth")]
    net: Kind,
    /// All figures as JSON into this file
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

/// One end of the measurement.
#[derive(Args)]
pub struct Part {
    /// Where the server listens
    at: SocketAddr,
    #[arg(long)]
    carrier: Carrier,
    #[arg(long)]
    connections: usize,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// What the server saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Held {
    /// Connections that came.
    open: usize,
    /// How long that took.
    seconds: f64,
    /// Bytes of the process in memory before any came, when all were there, and after the idle time.
    resident: [u64; 3],
    /// The kernel's own objects, of all processes, at the same times.
    slab: [u64; 3],
    /// Pages of all TCP buffers, at the same times.
    buffers: [u64; 3],
    /// Processor seconds in the idle time, and how long that was.
    idle: [f64; 2],
}

/// Measures and tells.
pub fn compare(o: &Options) -> Result<()> {
    println!("{} connections, idle for {} s, over {}", o.connections, o.seconds, o.net.name());
    println!(
        "{:10} {:>9} {:>14} {:>14} {:>16} {:>16} {:>12}",
        "", "made in", "KiB each", "idle, KiB each", "kernel, KiB each", "(both ends)", "CPU, idle"
    );
    let mut all = serde_json::Map::new();
    for carrier in &o.carriers {
        let held = measure(o, *carrier).with_context(|| carrier.name())?;
        ensure!(held.open == o.connections as usize, "only {} connections came in {PATIENCE}", held.open);
        show(*carrier, &held);
        all.insert(carrier.name().to_owned(), serde_json::to_value(&held)?);
    }
    if let Some(file) = &o.json {
        fs::write(file, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

fn show(carrier: Carrier, h: &Held) {
    let each = |[before, open, idle]: [u64; 3]| {
        [open, idle].map(|b| b.saturating_sub(before) as f64 / 1024.0 / h.open.max(1) as f64)
    };
    let (own, slab) = (each(h.resident), each(h.slab));
    let buffers = each(h.buffers.map(|p| p * rustix::param::page_size() as u64));
    let share = h.idle[0] / h.idle[1].max(1e-9) * 100.0;
    println!(
        "{:10} {:7.1} s {:14.2} {:14.2} {:16.2} {:16.2} {share:10.2} %",
        carrier.name(),
        h.seconds,
        own[0],
        own[1],
        slab[1],
        buffers[1]
    );
}

fn measure(o: &Options, carrier: Carrier) -> Result<Held> {
    let net = Net::up(o.net, 1500)?;
    let part = |end: usize, what: &str, at: &str, connections: u32| -> Result<Command> {
        let program = std::env::current_exe()?;
        let mut c = net.command(end, "0-1023", &program.to_string_lossy());
        c.args(["end", what, at, "--carrier", carrier.name(), "--connections", &connections.to_string()]);
        c.args(["--seconds", &o.seconds.to_string()]);
        c.stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(c)
    };
    let listen = SocketAddr::new(net.sink(), 4463).to_string();
    let mut server = Process(part(1, "idle-server", &listen, o.connections)?.spawn()?, None);
    let (line, mut rest) = first_line(&mut server)?;
    let at =
        line.trim().strip_prefix(report::LISTENING).context("the server did not say where it listens")?;
    let mut clients = Vec::new();
    for i in 0..o.clients {
        // An even part each, the first ones one more.
        let n = o.connections / o.clients + u32::from(i < o.connections % o.clients);
        clients.push(Process(part(0, "idle-client", at, n)?.spawn()?, None));
    }
    let mut said = String::new();
    BufReader::new(&mut rest).read_line(&mut said)?;
    serde_json::from_str(said.trim()).context("the server did not say what it saw")
}

/// Allows itself files for so many connections.
fn raise_limit(connections: usize) -> Result<()> {
    let wanted = connections as u64 + FURTHER_FILES;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|n| n >= wanted) {
        return Ok(());
    }
    let maximum = now.maximum.map(|m| m.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .with_context(|| format!("{wanted} open files are needed: run as root, or raise `ulimit -n`"))
}

fn driver(at: SocketAddr, serves: bool) -> Result<Driver> {
    let o = DriverOptions {
        lanes: Lanes::Count(1),
        serves,
        streams: serves.then(StreamOptions::default),
        ..DriverOptions::new(at)
    };
    Ok(Driver::with(o)?)
}

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

fn config(seed: u8) -> Config {
    Config { static_secret: [seed; 32], ..Config::client(Arc::new(Credentials::RawKey(identity(seed)))) }
}

/// Takes connections, and tells of its memory.
pub fn server(p: &Part) -> Result<()> {
    raise_limit(p.connections)?;
    let mut driver = driver(p.at, true)?;
    let server = ServerConfig {
        auth: ClientAuth::AnyKey,
        authority: Authority { keys: None, tokens: Vec::new() },
        max_connections: p.connections,
        max_half_open: p.connections,
        retry_above: p.connections,
        iwarp: Some(IwarpServer { plain: true, ..IwarpServer::default() }),
    };
    let mut endpoint =
        Endpoint::new(Config { server: Some(server), ..config(KEYS[0]) }, Rng::from_u64(seed()))?;
    report::listening(driver.local_addr())?;
    let mut app = Server {
        wanted: p.connections,
        idle: Span::from_secs_f64(p.seconds),
        held: Held::default(),
        began: None,
        full: None,
        told: false,
    };
    app.note(0)?;
    Ok(driver.run(&mut endpoint, &mut app)?)
}

/// Distinguishes the random numbers of processes.
fn seed() -> u64 {
    u64::from(std::process::id())
}

struct Server {
    wanted: usize,
    idle: Span,
    held: Held,
    began: Option<Time>,
    full: Option<(Time, CpuTime)>,
    told: bool,
}

impl Server {
    /// Notes what memory is used now.
    fn note(&mut self, i: usize) -> Result<()> {
        self.held.resident[i] = number("/proc/self/status", "VmRSS:", "")? * 1024;
        self.held.slab[i] = number("/proc/meminfo", "Slab:", "")? * 1024;
        self.held.buffers[i] = number("/proc/self/net/sockstat", "TCP:", "mem")?;
        Ok(())
    }

    fn look(&mut self, now: Time) -> Result<()> {
        let Some(began) = self.began else { return Ok(()) };
        if self.full.is_none() && self.held.open == self.wanted {
            self.held.seconds = now.since(began).as_secs_f64();
            self.note(1)?;
            self.full = Some((now, CpuTime::of_process()));
        }
        if let Some((at, cpu)) = self.full.filter(|(at, _)| now.since(*at) >= self.idle) {
            self.note(2)?;
            let spent = CpuTime::of_process().since(cpu).total().as_secs_f64();
            self.held.idle = [spent, now.since(at).as_secs_f64()];
            self.tell()
        } else if now.since(began) >= PATIENCE + self.idle {
            self.tell()
        } else {
            Ok(())
        }
    }

    fn tell(&mut self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&self.held)?)?;
        out.flush()?;
        self.told = true;
        Ok(())
    }
}

impl App for Server {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Incoming { .. } => {
                    self.began.get_or_insert(now);
                    self.held.open += 1;
                }
                Event::Closed { conn, reason } => {
                    // Afterwards clients are ended.
                    if !self.told {
                        eprintln!("a connection was closed: {reason}");
                        self.held.open = self.held.open.saturating_sub(1);
                    }
                    // It is closed, so that this cannot fail.
                    let _ = e.release(conn);
                }
                _ => {}
            }
        }
        if !self.told
            && let Err(error) = self.look(now)
        {
            eprintln!("memory cannot be read: {error:#}");
            self.told = true;
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        let began = self.began.filter(|_| !self.told)?;
        Some(self.full.map_or(began + PATIENCE + self.idle, |(at, _)| at + self.idle))
    }
}

/// The number behind a word, in the line of a file of the kernel's that begins with another; without a word, the first.
fn number(file: &str, line: &str, word: &str) -> Result<u64> {
    let text = fs::read_to_string(file)?;
    let found =
        text.lines().find_map(|l| l.strip_prefix(line)).with_context(|| format!("{file}: no {line}"))?;
    let mut words = found.split_whitespace();
    if !word.is_empty() {
        words.find(|w| *w == word);
    }
    words.next().and_then(|w| w.parse().ok()).with_context(|| format!("{file}: {line} {word}"))
}

/// Connects so many times, and keeps still.
pub fn client(p: &Part) -> Result<()> {
    raise_limit(p.connections)?;
    let any: IpAddr = if p.at.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let mut driver = driver(SocketAddr::new(any, 0), false)?;
    let mut endpoint = Endpoint::new(config(KEYS[1]), Rng::from_u64(seed()))?;
    let iwarp = match p.carrier {
        Carrier::Native => None,
        Carrier::Iwarp => Some(Iwarp::default()),
        Carrier::IwarpTls => Some(Iwarp { tls: true, ..Iwarp::default() }),
    };
    let connect = Connect {
        remote: p.at,
        server_name: "server".into(),
        trust: ServerTrust::Pinned(vec![identity(KEYS[0]).public_key()]),
        token: None,
        options: None,
        iwarp,
    };
    let mut app = Client { connect, wanted: p.connections, made: 0, open: 0, failed: None };
    driver.run(&mut endpoint, &mut app)?;
    match app.failed {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

struct Client {
    connect: Connect,
    wanted: usize,
    made: usize,
    open: usize,
    failed: Option<String>,
}

impl App for Client {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Connected { .. } => self.open += 1,
                Event::Closed { reason, .. } => {
                    eprintln!("a connection was closed: {reason}");
                    self.failed = Some(reason.to_string());
                }
                _ => {}
            }
        }
        while self.failed.is_none() && self.made < self.wanted && self.made - self.open < CONNECTING {
            self.made += 1;
            if let Err(error) = e.connect(now, self.connect.clone()) {
                eprintln!("cannot connect: {error}");
                self.failed = Some(error.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_kernel_are_found_by_their_words() {
        assert!(number("/proc/self/status", "VmRSS:", "").expect("resident memory") > 100);
        assert!(number("/proc/self/net/sockstat", "TCP:", "mem").is_ok());
        assert!(number("/proc/self/status", "VmMagic:", "").is_err());
    }
}
