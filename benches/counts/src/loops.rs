//! The loops by name.

use crate::pair::{CLIENT, DELAY, Meter, Pair, SERVER};
use crate::region::{counted_if, the_counted_region};
use anyhow::{Context, Result, ensure};
use base::{Rate, Rng, Span, Time};
use cc::testkit::conformance::{Harness, Op, Path};
use cc::{Algorithm, Decision, Event, SentTrain, Signals};
use endpoint::{MAX_TRAIN, TransportOptions};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use transport::crypto::Suite;
use verbs::{Data, MAX_INLINE, Mr, Opcode, RecvWr, SendOp, SendWr, Sge, Sges};
use wire::{Feedback, Frame, Module, Reader};

/// A hot loop.
pub struct Loop {
    /// Its name, also in `benches/counts.json`.
    pub name: &'static str,
    /// What is counted, in the singular.
    pub unit: &'static str,
    /// How many of them, when the caller does not say.
    pub units: u64,
    /// Runs so many of them, or a few more; gives how many.
    pub run: fn(u64) -> Result<u64>,
}

/// All loops.
pub const LOOPS: &[Loop] = &[
    Loop {
        name: "send-aegis",
        unit: "packet",
        units: 10_000,
        run: |n| bulk(n, Suite::Aegis128L, Side::Send),
    },
    Loop { name: "send-gcm", unit: "packet", units: 10_000, run: |n| bulk(n, Suite::Aes128Gcm, Side::Send) },
    Loop { name: "send-crc32c", unit: "packet", units: 10_000, run: |n| bulk(n, Suite::Crc32c, Side::Send) },
    Loop {
        name: "receive-aegis",
        unit: "packet",
        units: 10_000,
        run: |n| bulk(n, Suite::Aegis128L, Side::Receive),
    },
    Loop {
        name: "receive-gcm",
        unit: "packet",
        units: 10_000,
        run: |n| bulk(n, Suite::Aes128Gcm, Side::Receive),
    },
    Loop {
        name: "receive-crc32c",
        unit: "packet",
        units: 10_000,
        run: |n| bulk(n, Suite::Crc32c, Side::Receive),
    },
    Loop {
        name: "send-short",
        unit: "message",
        units: 20_000,
        run: |n| writes(n, Suite::Aegis128L, Side::Send, SHORT),
    },
    Loop {
        name: "receive-short",
        unit: "message",
        units: 20_000,
        run: |n| writes(n, Suite::Aegis128L, Side::Receive, SHORT),
    },
    Loop {
        name: "feedback",
        unit: "packet",
        units: 10_000,
        run: |n| bulk(n, Suite::Aegis128L, Side::Feedback),
    },
    Loop { name: "small", unit: "round trip", units: 2_000, run: |n| small(n, true) },
    Loop { name: "small-quiet", unit: "round trip", units: 2_000, run: |n| small(n, false) },
    Loop { name: "iwarp-small", unit: "round trip", units: 2_000, run: |n| crate::streams::small(n, false) },
    Loop {
        name: "iwarp-small-crc",
        unit: "round trip",
        units: 2_000,
        run: |n| crate::streams::small(n, true),
    },
    Loop { name: "congestion-haul", unit: "report", units: 20_000, run: |n| congestion("haul", n) },
    Loop { name: "congestion-bbr", unit: "report", units: 20_000, run: |n| congestion("bbr", n) },
    Loop { name: "wire", unit: "frame", units: 2_000, run: wire },
];

// ---- a long Write ----

/// What is counted of a long Write.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// The sender's building and sealing.
    Send,
    /// The receiver's opening and placing.
    Receive,
    /// The sender's digesting of reports, at [`LOSS_ONE_IN`], for each packet sent.
    Feedback,
}

/// Fast enough for full trains.
const RATE: &str = "fixed:rate=10G";
/// Bytes of a long Write; two are always under way.
const WRITE: u64 = 8 << 20;
/// Bytes of a short one, and how many are under way.
const SHORT: (u64, usize) = (64, 500);
/// One packet of so many is lost where loss is wanted.
const LOSS_ONE_IN: u64 = 100;
/// Packets before counting begins: tables have grown, and the search for the path's packet size is over.
const WARM_UP: u64 = 5_000;

/// A packet of 1,500 bytes, one cipher, no idle messages.
fn options(suite: Suite, cc: &str) -> TransportOptions {
    let module = if suite == Suite::Crc32c { Module::Crc32c } else { Module::Aead };
    TransportOptions {
        suites: vec![suite],
        module,
        cc: cc.into(),
        max_packet: 1_500,
        ..TransportOptions::default()
    }
}

fn bulk(units: u64, suite: Suite, side: Side) -> Result<u64> {
    writes(units, suite, side, (WRITE, 2))
}

/// Writes of `len` bytes, `ahead` of them always under way.
fn writes(units: u64, suite: Suite, side: Side, (len, ahead): (u64, usize)) -> Result<u64> {
    let mut p = Pair::new(&options(suite, RATE))?;
    ensure!(p.infos[CLIENT].suite == suite, "the ends took {:?}", p.infos[CLIENT].suite);
    let from = p.register(CLIENT, len as usize)?;
    let to = p.register(SERVER, len as usize)?;
    p.loss_one_in = if side == Side::Feedback { LOSS_ONE_IN } else { 0 };
    let (mut under_way, mut posted) = (0, 0);
    let mut keep_writing = |p: &mut Pair| -> Result<()> {
        let info = p.infos[CLIENT].clone();
        let a = p.ends[CLIENT].adapter();
        under_way -= std::iter::from_fn(|| a.poll_cq(info.cq)).count();
        while under_way < ahead {
            let op = SendOp::Write { rkey: to.rkey, offset: 0 };
            let data = Data::from(Sge { lkey: from.lkey, offset: 0, len });
            a.post_send(info.qps[0], SendWr::new(posted, op, data)).context("posting")?;
            (under_way, posted) = (under_way + 1, posted + 1);
        }
        Ok(())
    };
    p.run_until(|p| p.sent[CLIENT] >= WARM_UP, &mut keep_writing)?;
    p.meter = match side {
        Side::Send => Meter { transmit: [true, false], ..Meter::default() },
        Side::Receive => Meter { handle: [false, true], ..Meter::default() },
        Side::Feedback => Meter { handle: [true, false], ..Meter::default() },
    };
    let count = |p: &Pair| if side == Side::Receive { p.received[SERVER] } else { p.sent[CLIENT] };
    let start = count(&p);
    p.run_until(|p| count(p) >= start + units, &mut keep_writing)?;
    Ok(count(&p) - start)
}

// ---- small messages ----

/// Bytes of a small message.
const SMALL: usize = 4;
/// Receives that are posted at each end: as many as `longhaul perf` posts. The peer hears of them in steps of a quarter.
const RECEIVES: u64 = 64;
/// Round trips before counting begins: the search for the path's packet size is over, tables have grown.
const FIRST_TRIPS: u64 = 500;
/// One way, for small messages: as long as over loopback.
const SHORT_DELAY: Span = Span::from_micros(7);
/// The longest that one message may take to get across.
const MAX_WAIT: Span = Span::from_secs(1);

/// One end of a ping-pong, as an application under the driver's loop.
struct Player {
    end: usize,
    /// Its own region, where messages arrive, and the peer's.
    own: Mr,
    peer: Mr,
    posted: u64,
    /// Messages that have arrived.
    arrived: u64,
    /// Whether its messages make completions; the answer tells that one arrived in any case.
    signaled: bool,
}

impl Player {
    fn post_receive(&mut self, p: &mut Pair) -> Result<()> {
        let qp = p.infos[self.end].qps[0];
        let sges = Sges::One(Sge { lkey: self.own.lkey, offset: 0, len: SMALL as u64 });
        p.ends[self.end].adapter().post_recv(qp, RecvWr { wr_id: 0, sges }).context("posting a receive")
    }

    fn post_message(&mut self, p: &mut Pair) -> Result<()> {
        const { assert!(SMALL <= MAX_INLINE) };
        let qp = p.infos[self.end].qps[0];
        let op = SendOp::WriteImm { rkey: self.peer.rkey, offset: 0, imm: self.posted as u32 };
        let bytes = (self.posted as u32).to_le_bytes();
        self.posted += 1;
        let wr = SendWr::new(self.posted, op, Data::Inline(bytes[..].into()));
        let wr = SendWr { signaled: self.signaled, ..wr };
        p.ends[self.end].adapter().post_send(qp, wr).context("posting a message")
    }

    /// Takes completions; answers what has arrived.
    fn drive(&mut self, p: &mut Pair) -> Result<()> {
        let cq = p.infos[self.end].cq;
        while let Some(wc) = p.ends[self.end].adapter().poll_cq(cq) {
            if wc.opcode == Opcode::RecvWriteImm {
                self.arrived += 1;
                self.post_receive(p)?;
                self.post_message(p)?;
            }
        }
        Ok(())
    }
}

/// One datagram on its way.
struct Letter {
    at: Time,
    to: usize,
    len: usize,
    segment: usize,
    bytes: Vec<u8>,
}

/// Everything that one end does when it is woken: what the driver's loop calls, in its order.
fn turn(p: &mut Pair, player: &mut Player, arrived: Option<&mut Letter>, out: &mut [Letter]) -> Result<()> {
    let (now, end) = (p.now, player.end);
    let meta = p.meta_at(end);
    if let Some(l) = arrived {
        p.ends[end].handle_train(now, meta, &mut l.bytes[..l.len], l.segment);
    }
    p.ends[end].handle_timeout(now);
    player.drive(p)?;
    loop {
        // Memory of trains is the driver's: it is kept, and its coming and going not counted to the end.
        let Some(l) = out.iter_mut().find(|l| l.len == 0) else {
            anyhow::bail!("more trains are under way than a small message makes")
        };
        let Some(t) = p.ends[end].poll_transmit(now, &mut l.bytes) else { break };
        (l.at, l.to, l.len, l.segment) = (now + SHORT_DELAY, 1 - end, t.len, t.segment);
    }
    black_box(p.ends[end].next_timeout());
    Ok(())
}

fn small(units: u64, signaled: bool) -> Result<u64> {
    let mut p = Pair::new(&options(Suite::Aegis128L, cc::registry::DEFAULT))?;
    let regions = [p.register(CLIENT, SMALL)?, p.register(SERVER, SMALL)?];
    let player = |end: usize| Player {
        end,
        own: regions[end],
        peer: regions[1 - end],
        posted: 0,
        arrived: 0,
        signaled,
    };
    let mut players = [player(CLIENT), player(SERVER)];
    for _ in 0..RECEIVES {
        players.iter_mut().try_for_each(|l| l.post_receive(&mut p))?;
    }
    // Credit for the receives gets across before the first message does.
    let until = p.now + DELAY * 20;
    while p.now < until {
        p.step(until)?;
    }
    let letter = || Letter { at: Time::ZERO, to: 0, len: 0, segment: 0, bytes: vec![0; MAX_TRAIN] };
    let mut letters: Vec<Letter> = std::iter::repeat_with(letter).take(64).collect();
    players[CLIENT].post_message(&mut p)?;
    turn(&mut p, &mut players[CLIENT], None, &mut letters)?;
    let mut counted = 0;
    while counted < units {
        let trip = players[CLIENT].arrived;
        let count = trip >= FIRST_TRIPS;
        let latest = p.now + MAX_WAIT;
        while players[CLIENT].arrived == trip {
            let due = letters.iter().enumerate().filter(|(_, l)| l.len > 0).min_by_key(|(_, l)| l.at);
            let due = due.map(|(i, l)| (l.at, l.to, i));
            let timeouts = (0..2).filter_map(|e| Some((p.ends[e].next_timeout()?, e)));
            let timeout = timeouts.min();
            let (at, end, arrived) = match (due, timeout) {
                (Some((at, to, i)), t) if t.is_none_or(|t| at <= t.0) => (at, to, Some(i)),
                (_, Some((at, end))) => (at, end, None),
                _ => anyhow::bail!("nothing happens any more"),
            };
            p.now = p.now.max(at);
            ensure!(p.now < latest, "a message did not get across");
            let mut got = arrived.map(|i| {
                let empty = Letter { at: Time::ZERO, to: 0, len: usize::MAX, segment: 0, bytes: Vec::new() };
                std::mem::replace(&mut letters[i], empty)
            });
            counted_if(count, || turn(&mut p, &mut players[end], got.as_mut(), &mut letters))?;
            if let (Some(i), Some(mut l)) = (arrived, got) {
                l.len = 0;
                letters[i] = l;
            }
        }
        counted += u64::from(count);
    }
    Ok(counted)
}

// ---- decisions ----

/// An algorithm of which one thing is counted: taking a report and deciding.
#[derive(Debug)]
struct Metered {
    inner: Box<dyn Algorithm>,
    /// Reports; those up to [`Metered::FIRST`] are not counted.
    reports: Arc<AtomicU64>,
}

impl Metered {
    /// Reports before counting begins: the start is over.
    const FIRST: u64 = 1_000;
}

impl Algorithm for Metered {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn on_sent(&mut self, train: &SentTrain) {
        self.inner.on_sent(train);
    }
    fn on_feedback(&mut self, signals: &Signals) {
        let n = self.reports.fetch_add(1, Relaxed);
        let inner = &mut self.inner;
        counted_if(n >= Metered::FIRST, || {
            inner.on_feedback(signals);
            black_box(inner.decision());
        });
    }
    fn on_event(&mut self, now: Time, event: Event) {
        self.inner.on_event(now, event);
    }
    fn decision(&self) -> Decision {
        self.inner.decision()
    }
    fn wants_dispersion(&self) -> bool {
        self.inner.wants_dispersion()
    }
}

/// Reports on 1 Gbit/s over 50 ms, some with a loss, some with a queue.
fn congestion(name: &str, units: u64) -> Result<u64> {
    let path = Path { rate: Rate::from_mbit(1_000), rtt: Span::from_millis(50), packet: 1_500 };
    let (definition, params) = cc::registry::parse(name)?;
    let inner = cc::create(definition.name, &params, &path.info(), Rng::from_u64(1))?;
    let reports = Arc::new(AtomicU64::new(0));
    let mut h = Harness::new(Box::new(Metered { inner, reports: Arc::clone(&reports) }), path);
    let mut n = 0u8;
    while reports.load(Relaxed) < Metered::FIRST + units {
        n = n.wrapping_add(1);
        let op =
            Op::Step { used: 255, lost: if n.is_multiple_of(16) { 3 } else { 0 }, marked: 0, queue: n / 16 };
        h.apply(op).map_err(anyhow::Error::msg)?;
    }
    Ok(reports.load(Relaxed) - Metered::FIRST)
}

// ---- frames ----

/// Holes of the report that is parsed.
const HOLES: u64 = 100;

fn wire(units: u64) -> Result<u64> {
    let covered = 1_000_000..1_000_000 + HOLES * 100 + 1;
    let holes =
        (0..HOLES).map(|n| covered.start + n * 100 + 50..covered.start + n * 100 + 51 + n % 3).collect();
    let f = Feedback {
        lane: 0,
        largest: covered.end - 1,
        delay_us: 120,
        arrival_us: 123_456_789,
        marked: 7,
        covered,
        holes,
        signals: None,
    };
    let mut bytes = Vec::new();
    Frame::Feedback(f).put(&mut bytes);
    for _ in 0..units {
        let parsed = the_counted_region(|| Frame::parse(&mut Reader::new(black_box(&bytes))).map(black_box));
        parsed.context("the frame does not parse")?;
    }
    Ok(units)
}
