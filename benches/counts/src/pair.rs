//! Two endpoints joined in memory. A train takes [`DELAY`]; time jumps to whatever happens next.

use crate::region::counted_if;
use anyhow::{Context, Result, ensure};
use base::{Rng, Span, Time};
use endpoint::{
    Authority, Config, ConnInfo, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, ServerConfig,
    TransportOptions,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Memory, Mr};

/// One way.
pub const DELAY: Span = Span::from_millis(1);
/// Steps without anything to do before something is wrong.
const MAX_STEPS: u64 = 10_000_000;
/// The end that connects, and sends where only one does.
pub const CLIENT: usize = 0;
/// The end that answers.
pub const SERVER: usize = 1;

/// Datagrams on their way, as they left: in a train.
struct Flying {
    at: Time,
    to: usize,
    bytes: Vec<u8>,
    segment: usize,
}

/// Which calls are counted, of which end.
#[derive(Clone, Copy, Default)]
pub struct Meter {
    /// `handle_train`.
    pub handle: [bool; 2],
    /// `poll_transmit`.
    pub transmit: [bool; 2],
}

/// The two ends and what flies between them.
pub struct Pair {
    pub now: Time,
    pub ends: [Endpoint; 2],
    pub infos: Vec<ConnInfo>,
    pub meter: Meter,
    /// Packets that each end has built, and has been given.
    pub sent: [u64; 2],
    pub received: [u64; 2],
    /// One packet of so many is lost on the way to the server; 0: none.
    pub loss_one_in: u64,
    addrs: [SocketAddr; 2],
    flying: VecDeque<Flying>,
    buf: Vec<u8>,
    rng: Rng,
}

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn config(n: u8, options: &TransportOptions) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(n))));
    c.static_secret = [n; 32];
    c.options = options.clone();
    c
}

impl Pair {
    /// Connects both ends with these options and waits until nothing of the set-up is under way.
    pub fn new(options: &TransportOptions) -> Result<Pair> {
        let keys = Some(vec![identity(2).public_key()]);
        let server = ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys, tokens: Vec::new() },
            ..ServerConfig::default()
        };
        let server = Config { server: Some(server), ..config(1, options) };
        let mut p = Pair {
            now: Time::from_nanos(1_000_000_000),
            ends: [
                Endpoint::new(config(2, options), Rng::from_u64(1))?,
                Endpoint::new(server, Rng::from_u64(2))?,
            ],
            infos: Vec::new(),
            meter: Meter::default(),
            sent: [0; 2],
            received: [0; 2],
            loss_one_in: 0,
            addrs: ["192.0.2.1:1000".parse()?, "192.0.2.2:4460".parse()?],
            flying: VecDeque::new(),
            buf: vec![0; MAX_TRAIN],
            rng: Rng::from_u64(3),
        };
        p.connect()?;
        Ok(p)
    }

    fn connect(&mut self) -> Result<()> {
        let connect = Connect {
            remote: self.addrs[SERVER],
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
            token: None,
            options: None,
            iwarp: None,
        };
        self.ends[CLIENT].connect(self.now, connect)?;
        let until = self.now + Span::from_millis(500);
        while self.now < until {
            self.step(until)?;
        }
        for e in &mut self.ends {
            let up = std::iter::from_fn(|| e.poll_event())
                .find_map(|e| match e {
                    Event::Connected { conn } | Event::Incoming { conn } => Some(conn),
                    _ => None,
                })
                .context("the ends did not connect")?;
            self.infos.push(e.connection(up).context("the connection is gone")?.clone());
        }
        Ok(())
    }

    /// Registers memory of one end with all rights.
    pub fn register(&mut self, end: usize, bytes: usize) -> Result<Mr> {
        let pd = self.infos[end].pd;
        let memory = Memory::from(vec![0; bytes]);
        self.ends[end]
            .adapter()
            .reg_mr(pd, memory, Access::ALL)
            .map_err(|e| e.0)
            .context("registering memory")
    }

    /// Takes out what an end has to say.
    fn collect(&mut self, end: usize) {
        loop {
            let counted = self.meter.transmit[end];
            let (now, e, buf) = (self.now, &mut self.ends[end], &mut self.buf);
            let Some(t) = counted_if(counted, || e.poll_transmit(now, buf)) else { return };
            self.sent[end] += t.len.div_ceil(t.segment) as u64;
            let bytes = if end == CLIENT && self.loss_one_in > 0 {
                let datagrams = self.buf[..t.len].chunks(t.segment);
                datagrams.filter(|_| self.rng.below(self.loss_one_in) != 0).flatten().copied().collect()
            } else {
                self.buf[..t.len].to_vec()
            };
            if !bytes.is_empty() {
                self.flying.push_back(Flying {
                    at: self.now + DELAY,
                    to: 1 - end,
                    bytes,
                    segment: t.segment,
                });
            }
        }
    }

    fn deliver(&mut self, mut f: Flying) {
        let counted = self.meter.handle[f.to];
        self.received[f.to] += f.bytes.len().div_ceil(f.segment) as u64;
        let meta = DatagramInfo {
            remote: self.addrs[1 - f.to],
            local: None,
            ecn: base::Ecn::NotEct,
            waited: Span::ZERO,
        };
        let (now, e) = (self.now, &mut self.ends[f.to]);
        counted_if(counted, || e.handle_train(now, meta, &mut f.bytes, f.segment));
    }

    /// Sends, moves to the next thing that happens, or to `until`, and lets it happen.
    pub fn step(&mut self, until: Time) -> Result<()> {
        self.collect(CLIENT);
        self.collect(SERVER);
        let timeouts = self.ends.iter().filter_map(Endpoint::next_timeout);
        let next = timeouts.chain(self.flying.front().map(|f| f.at)).min();
        let next = next.filter(|t| *t <= until).unwrap_or(until);
        self.now = self.now.max(next);
        let now = self.now;
        self.ends.iter_mut().for_each(|e| e.handle_timeout(now));
        while self.flying.front().is_some_and(|f| f.at <= now) {
            if let Some(f) = self.flying.pop_front() {
                self.deliver(f);
            }
        }
        Ok(())
    }

    /// Steps until `done`, doing `work` in between.
    pub fn run_until(
        &mut self,
        done: impl Fn(&Pair) -> bool,
        mut work: impl FnMut(&mut Pair) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..MAX_STEPS {
            if done(self) {
                return Ok(());
            }
            work(self)?;
            self.step(Time::from_nanos(u64::MAX))?;
            let closed = self.ends.iter_mut().any(|e| matches!(e.poll_event(), Some(Event::Closed { .. })));
            ensure!(!closed, "the connection has closed");
        }
        anyhow::bail!("{MAX_STEPS} steps were not enough")
    }

    /// What the other end of `end` is called where datagrams arrive.
    pub fn meta_at(&self, end: usize) -> DatagramInfo {
        DatagramInfo { remote: self.addrs[1 - end], local: None, ecn: base::Ecn::NotEct, waited: Span::ZERO }
    }
}
