//! Attackers whose keys may connect.

use super::{Common, paced};
use anyhow::Result;
use base::{Rng, Span, Time};
use endpoint::{App, Config, Connect, Endpoint, Event};
use lhio::clock;
use lhio::driver::{Driver, DriverOptions, Lanes};
use mover::{ClientApp, GetOptions, PutOptions, TransferOptions, Wake};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use transport::crypto::ServerTrust;

/// Connections that say nothing, at each server: more than it has places.
const SILENT: usize = 80;
/// Transfers that hardly go on.
const SLOW: usize = 24;
/// How often one of them looks at what has come.
const STEP: Span = Span::from_secs(5);

pub fn connect(to: SocketAddr) -> Connect {
    Connect {
        remote: to,
        server_name: "server".into(),
        trust: ServerTrust::FirstUse,
        token: None,
        options: None,
        iwarp: None,
    }
}

pub fn ends(c: &Common) -> Result<(Driver, Endpoint)> {
    let o = DriverOptions { lanes: Lanes::Count(1), ..DriverOptions::new(SocketAddr::new(c.target.from, 0)) };
    let endpoint = Endpoint::new(Config::client(c.credentials.clone()), Rng::from_seed(clock::seed()?))?;
    Ok((Driver::with(o)?, endpoint))
}

/// Connects, shows its key, and says nothing; comes again when it was closed.
pub fn silent(c: &Arc<Common>) -> Result<()> {
    let (mut driver, mut endpoint) = ends(c)?;
    let open = c.target.servers().map(|to| (to, Vec::new()));
    let next = Time::ZERO;
    let mut app =
        Silent { common: c.clone(), open, next, made: c.count("admitted and silent"), closed: false };
    Ok(driver.run(&mut endpoint, &mut app)?)
}

struct Silent {
    common: Arc<Common>,
    open: [(SocketAddr, Vec<endpoint::ConnId>); 2],
    next: Time,
    made: Arc<AtomicU64>,
    closed: bool,
}

impl App for Silent {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            if let Event::Closed { conn, .. } = event {
                self.open.iter_mut().for_each(|(_, all)| all.retain(|c| *c != conn));
                // It is closed, so that this cannot fail.
                let _ = e.release(conn);
            }
        }
        if self.common.over() {
            for c in self.open.iter().flat_map(|(_, all)| all) {
                e.close(now, *c, 0, "over");
            }
            self.closed = true;
        } else if now >= self.next {
            // 20 a second.
            self.next = now + Span::from_millis(50);
            for (to, all) in &mut self.open {
                if all.len() < SILENT
                    && let Ok(conn) = e.connect(now, connect(*to))
                {
                    all.push(conn);
                    Common::add(&self.made);
                }
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        Some(self.next)
    }
    fn finished(&self) -> bool {
        self.closed
    }
}

/// A transfer whose application looks at it every five seconds only, while its transport does what it should.
struct Slow {
    inner: ClientApp,
    common: Arc<Common>,
    next: Time,
}

impl App for Slow {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if self.common.over() {
            self.inner.progress().interrupt();
            self.next = now;
        }
        let begins = self.inner.connection().is_none_or(|c| e.connection(c).is_none());
        if now >= self.next || begins {
            self.inner.drive(now, e);
        }
        if now >= self.next {
            self.next = now + STEP;
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        Some(self.next.min(self.inner.next_timeout().unwrap_or(self.next)))
    }
    fn finished(&self) -> bool {
        self.inner.finished()
    }
}

/// Runs slow transfers, each on a thread, again when they end.
fn slow(
    c: &Arc<Common>,
    name: &'static str,
    make: fn(&Common, usize, Wake) -> Result<ClientApp>,
) -> Result<()> {
    let made = c.count(name);
    let mut threads = Vec::new();
    for n in 0..SLOW {
        let (c, made) = (c.clone(), made.clone());
        threads.push(thread::spawn(move || {
            paced(&c.clone(), Span::from_secs(1), 1, || {
                let (mut driver, mut endpoint) = ends(&c)?;
                let waker = driver.waker();
                let inner = make(&c, n, Arc::new(move || waker.wake()))?;
                Common::add(&made);
                let mut app = Slow { inner, common: c.clone(), next: Time::ZERO };
                Ok(driver.run(&mut endpoint, &mut app)?)
            })
        }));
    }
    for t in threads {
        t.join().map_err(|_| anyhow::anyhow!("{name}: panicked"))??;
    }
    Ok(())
}

const TRANSFER: TransferOptions = TransferOptions {
    skip_same: false,
    checksum: false,
    overwrite: true,
    dry_run: false,
    durable: false,
    fresh: true,
    direct: false,
    data_reduction: mover::DataReduction {
        deltas: mover::ReductionMode::Auto,
        compress: mover::ReductionMode::Auto,
    },
    keep: mover::Keep::NOTHING,
    scan: false,
};

/// Get a large file, or many small ones, and do not take them.
pub fn slow_readers(c: &Arc<Common>) -> Result<()> {
    slow(c, "slow readers", |c, n, wake| {
        let dest = c.target.scratch.join(format!("got{n}"));
        std::fs::create_dir_all(&dest)?;
        let sources = vec![if n % 2 == 0 { b"large".to_vec() } else { b"small/".to_vec() }];
        let o =
            GetOptions { sources, dest, transfer: TRANSFER, sending: Default::default(), one_file: false };
        Ok(ClientApp::get(connect(c.target.serve), &o, wake)?)
    })
}

/// Offer a file of 1 TiB, have memory set aside for it, and do not fill it.
pub fn slow_senders(c: &Arc<Common>) -> Result<()> {
    let file = c.target.scratch.join("sparse");
    let f = std::fs::File::create(&file)?;
    f.set_len(1 << 40)?;
    for n in 0..64 {
        std::os::unix::fs::FileExt::write_all_at(&f, &[7; 4_096], n << 30)?;
    }
    slow(c, "slow senders", |c, n, wake| {
        let sources = vec![c.target.scratch.join("sparse")];
        let dest = format!("from{}-{n}", c.target.from).into_bytes();
        let o = PutOptions { sources, dest, transfer: TRANSFER, nameless: false };
        Ok(ClientApp::put(connect(c.target.serve), &o, wake)?)
    })
}
