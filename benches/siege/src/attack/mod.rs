//! The attackers.

mod admitted;
mod datagrams;
mod forged;
mod memory;
mod streams;

use anyhow::{Context, Result};
use base::Span;
use lhio::identity::StateFolder;
use lhio::poll::Poller;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use transport::crypto::{Credentials, Identity};

/// Whom an attacker attacks, and from where.
#[derive(Clone, clap::Args)]
pub struct Target {
    #[arg(long)]
    pub serve: SocketAddr,
    #[arg(long)]
    pub perf: SocketAddr,
    #[arg(long)]
    pub from: IpAddr,
    #[arg(long)]
    pub scratch: PathBuf,
}

impl Target {
    /// Both servers.
    pub fn servers(&self) -> [SocketAddr; 2] {
        [self.serve, self.perf]
    }
}

/// What the attackers of a process share.
pub struct Common {
    pub target: Target,
    pub credentials: Arc<Credentials>,
    stop: AtomicBool,
    counts: Mutex<Vec<(&'static str, Arc<AtomicU64>)>>,
}

impl Common {
    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// A number that is told at the end.
    pub fn count(&self, name: &'static str) -> Arc<AtomicU64> {
        let n = Arc::new(AtomicU64::new(0));
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push((name, n.clone()));
        n
    }
    /// Adds one.
    pub fn add(n: &AtomicU64) {
        n.fetch_add(1, Ordering::Relaxed);
    }
}

/// Does something `burst` times, waits, and again, until the attack is over.
pub fn paced(c: &Common, every: Span, burst: usize, mut f: impl FnMut() -> Result<()>) -> Result<()> {
    let mut poller = Poller::new()?;
    while !c.over() {
        for _ in 0..burst {
            f()?;
        }
        poller.wait(&mut [], Some(every))?;
    }
    Ok(())
}

type Attack = fn(&Arc<Common>) -> Result<()>;

/// Each on a thread of its own.
const ATTACKS: [(&str, Attack); 10] = [
    ("half-open handshakes", datagrams::half_open),
    ("garbage datagrams", datagrams::garbage),
    ("replayed and mutated datagrams", datagrams::replays),
    ("spoofed resets", forged::resets),
    ("silent connections by TCP", streams::silent),
    ("garbage instead of TLS", streams::garbage),
    ("admitted clients that say nothing", admitted::silent),
    ("slow readers", admitted::slow_readers),
    ("slow senders", admitted::slow_senders),
    ("measurements with huge memory", memory::measurements),
];

/// Attacks until standard input ends.
pub fn run(t: &Target) -> Result<()> {
    lhio::descriptors::raise();
    let key = StateFolder::open_default()?.host_key()?;
    let credentials = Arc::new(Credentials::RawKey(Identity::from_seed(*key.seed())));
    let (stop, counts) = (AtomicBool::new(false), Mutex::default());
    let common = Arc::new(Common { target: t.clone(), credentials, stop, counts });
    let mut threads = Vec::new();
    for (name, attack) in ATTACKS {
        let c = common.clone();
        threads.push((name, thread::Builder::new().name(name.into()).spawn(move || attack(&c))?));
    }
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).context("standard input")?;
    common.stop.store(true, Ordering::Relaxed);
    for (name, t) in threads {
        match t.join() {
            Ok(Ok(())) => {}
            Ok(Err(e)) => eprintln!("{} {name}: {e:#}", common.target.from),
            Err(_) => eprintln!("{} {name}: panicked", common.target.from),
        }
    }
    let counts = common.counts.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<String> =
        counts.iter().map(|(name, n)| format!("{} {name}", n.load(Ordering::Relaxed))).collect();
    println!("{} {}", common.target.from, words.join(", "));
    Ok(())
}
