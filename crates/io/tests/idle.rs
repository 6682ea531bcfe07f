//! Memory and wake-ups of idle connections. Both ends of all of them are in this process, alone in it since all of
//! its memory is counted; time is virtual, so that minutes of idleness take none.

use base::{Rng, Span, Time};
use endpoint::{
    Authority, Config, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, ServerConfig, Transmit,
    TransportOptions,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};

const CONNECTIONS: usize = 1_000;
/// For both ends of all connections.
const MOST_BYTES: usize = 64 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with an account of what is in use.
struct Counting;

// SAFETY: everything is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on; `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn config(n: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(n))));
    c.static_secret = [n; 32];
    c.options = TransportOptions { max_packet: 1500, ..TransportOptions::default() };
    c
}

struct Pair {
    now: Time,
    ends: [Endpoint; 2],
    addrs: [SocketAddr; 2],
    buf: Vec<u8>,
    datagrams: usize,
    turns: usize,
}

impl Pair {
    /// Delivers everything that either end has to say, at once.
    fn exchange(&mut self) {
        let mut quiet = 0;
        while quiet < 2 {
            for from in 0..2 {
                quiet += 1;
                while let Some(t) = self.ends[from].poll_transmit(self.now, &mut self.buf) {
                    quiet = 0;
                    self.deliver(from, t);
                }
            }
        }
    }

    fn deliver(&mut self, from: usize, t: Transmit) {
        let meta = DatagramInfo {
            remote: self.addrs[from],
            local: None,
            ecn: base::Ecn::NotEct,
            waited: base::Span::ZERO,
        };
        self.datagrams += t.len.div_ceil(t.segment);
        self.ends[1 - from].handle_train(self.now, meta, &mut self.buf[..t.len], t.segment);
    }

    /// Lets time pass as two loops would: each end is woken when it asks to be.
    fn pass(&mut self, span: Span) {
        let until = self.now + span;
        self.exchange();
        while let Some(t) = self.ends.iter().filter_map(Endpoint::next_timeout).min().filter(|t| *t <= until)
        {
            self.now = self.now.max(t);
            self.turns += 1;
            let now = self.now;
            self.ends.iter_mut().for_each(|e| e.handle_timeout(now));
            self.exchange();
        }
        self.now = until;
    }
}

#[test]
fn thousand_idle_connections_use_little_memory_and_few_wakeups() {
    let server = Config {
        server: Some(ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys: Some(vec![identity(2).public_key()]), tokens: Vec::new() },
            max_connections: CONNECTIONS,
            retry_above: CONNECTIONS,
            ..ServerConfig::default()
        }),
        ..config(1)
    };
    let ends = [
        Endpoint::new(config(2), Rng::from_u64(1)).expect("client"),
        Endpoint::new(server, Rng::from_u64(2)).expect("server"),
    ];
    let addrs = ["192.0.2.1:1000", "192.0.2.2:4460"].map(|a| a.parse().expect("address"));
    let now = Time::from_nanos(1_000_000_000);
    let mut p = Pair { now, ends, addrs, buf: vec![0; MAX_TRAIN], datagrams: 0, turns: 0 };
    let before = LIVE.load(Relaxed);
    for _ in 0..CONNECTIONS {
        let connect = Connect {
            remote: p.addrs[1],
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
            token: None,
            options: None,
            iwarp: None,
        };
        p.ends[0].connect(p.now, connect).expect("connecting");
        p.pass(Span::from_millis(1));
    }
    p.pass(Span::from_secs(20));
    for e in &mut p.ends {
        let up = |e: &Event| matches!(e, Event::Connected { .. } | Event::Incoming { .. });
        assert_eq!(core::iter::from_fn(|| e.poll_event()).filter(up).count(), CONNECTIONS);
    }
    let used = LIVE.load(Relaxed) - before;
    println!("{} KiB for each connection, both ends together", (used / CONNECTIONS) >> 10);
    assert!(used < MOST_BYTES, "{CONNECTIONS} connections hold {} MiB", used >> 20);

    (p.datagrams, p.turns) = (0, 0);
    p.pass(Span::from_secs(60));
    // A PING every ten seconds, of one end or both, and the report on it.
    let (datagrams, turns) = (p.datagrams as f64 / CONNECTIONS as f64, p.turns as f64 / CONNECTIONS as f64);
    println!("in a minute, for each connection: {datagrams} datagrams and {turns} turns of the loops");
    assert!(datagrams <= 30.0, "{datagrams} datagrams in a minute of idleness");
    assert!(turns <= 60.0, "{turns} turns in a minute of idleness");
    assert!(LIVE.load(Relaxed) - before < MOST_BYTES, "idleness costs memory");
}
