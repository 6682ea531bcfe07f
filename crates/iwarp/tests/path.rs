//! Two ends over a modelled TCP, over links with delay, loss and reordering, in virtual time.
//!
//! The model has what matters to whoever uses a stream: a send buffer that fills, segments that are lost and come again
//! later, bytes that come in order and in lumps.

use base::{Ecn, Rng, Span, Time};
use longhaul_iwarp::{Config, Connection, End as Ending, Event, Piece, StreamAction};
use netem::{Link, LinkConfig, Packet, Payload, Verdict};
use std::collections::{BTreeMap, VecDeque};
use verbs::{
    Access, Adapter, AtomicOp, CqId, Kind, Limits, Memory, Mr, QpId, QpInit, RecvWr, SendOp, SendWr, Sge,
    Status,
};

/// Bytes of the send buffer.
const BUFFER: u64 = 300_000;
/// When a lost segment is sent again.
const AGAIN: Span = Span::from_millis(200);
const MSS: usize = 1448;
/// Bytes of each region.
const SIZE: usize = 4 << 20;

#[derive(Clone)]
struct Segment(u64, Box<[u8]>);
impl Payload for Segment {
    fn corrupt(&mut self, _: &mut Rng) {}
}

/// One direction of a TCP connection.
struct Stream {
    link: Link<Segment>,
    next: u64,
    expected: u64,
    lost: VecDeque<(Time, Segment)>,
    early: BTreeMap<u64, Box<[u8]>>,
    fin: bool,
    fin_told: bool,
}

impl Stream {
    fn new(spec: &str, seed: u64) -> Stream {
        let link = Link::new(LinkConfig::parse(spec).unwrap(), Rng::from_u64(seed));
        let (lost, early) = (VecDeque::new(), BTreeMap::new());
        Stream { link, next: 0, expected: 0, lost, early, fin: false, fin_told: false }
    }
    fn room(&self) -> usize {
        (BUFFER - (self.next - self.expected)) as usize
    }
    fn write(&mut self, now: Time, bytes: &[u8]) {
        for part in bytes.chunks(MSS) {
            let seq = self.next;
            self.next += part.len() as u64;
            self.offer(now, Segment(seq, part.into()));
        }
    }
    fn offer(&mut self, now: Time, s: Segment) {
        let packet = Packet { bytes: s.1.len() as u64 + 40, ecn: Ecn::NotEct, payload: s.clone() };
        if let Verdict::Dropped(_) = self.link.send(now, packet) {
            self.lost.push_back((now + AGAIN, s));
        }
    }
    /// What comes out at `now`.
    fn read(&mut self, now: Time) -> Vec<u8> {
        while let Some((at, _)) = self.lost.front()
            && *at <= now
            && let Some((_, s)) = self.lost.pop_front()
        {
            self.offer(now, s);
        }
        while let Some(d) = self.link.poll(now) {
            self.early.insert(d.payload.0, d.payload.1);
        }
        let mut out = Vec::new();
        while let Some(bytes) = self.early.remove(&self.expected) {
            self.expected += bytes.len() as u64;
            out.extend(bytes);
        }
        out
    }
    /// The end of the stream is what comes next.
    fn ends(&self) -> bool {
        self.fin && !self.fin_told && self.expected == self.next
    }
    fn next_event(&self) -> Option<Time> {
        let again = self.lost.front().map(|(at, _)| *at);
        [again, self.link.next_delivery()].into_iter().flatten().min()
    }
}

struct End {
    a: Adapter,
    cq: CqId,
    qp: QpId,
    src: Mr,
    dst: Mr,
    own: Mr,
    c: Connection,
    out: Stream,
    events: Vec<Event>,
}

impl End {
    fn new(seed: u64, spec: &str, c: impl FnOnce(QpId) -> Connection) -> End {
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let cq = a.create_cq(1000).unwrap();
        let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).unwrap();
        let mut bytes = vec![0; SIZE];
        Rng::from_u64(seed).fill(&mut bytes);
        let src = a.reg_mr(pd, bytes.into(), Access::REMOTE_READ).unwrap();
        let dst = a.reg_mr(pd, Memory::zeroed(SIZE), Access::ALL).unwrap();
        let own = a.reg_mr(pd, Memory::zeroed(SIZE), Access::LOCAL_WRITE).unwrap();
        for i in 0..16 {
            let sges = Sge { lkey: own.lkey, offset: i * 1000, len: 1000 }.into();
            a.post_recv(qp, RecvWr { wr_id: 100 + i, sges }).unwrap();
        }
        End { a, cq, qp, src, dst, own, c: c(qp), out: Stream::new(spec, seed), events: Vec::new() }
    }
    fn bytes(&self, mr: Mr, offset: u64, len: u64) -> Vec<u8> {
        let mut v = vec![0; len as usize];
        self.a.read_mr(mr.id, offset, &mut v).unwrap();
        v
    }
    fn post(&mut self, wr_id: u64, op: SendOp, lkey: u32, offset: u64, len: u64) {
        self.a.post_send(self.qp, SendWr::new(wr_id, op, Sge { lkey, offset, len })).unwrap();
    }
    /// Everything that the end does by itself at `now`.
    fn act(&mut self, now: Time) {
        if self.c.poll_timeout().is_some_and(|t| t <= now) {
            self.c.on_timeout(&mut self.a, now);
        }
        while let Some(e) = self.c.next_event() {
            if matches!(e, Event::Requested { .. }) {
                self.c.accept(&mut self.a, self.qp, b"", now).unwrap();
            }
            self.events.push(e);
        }
        while self.out.room() > 0
            && let Some(t) = self.c.transmit(&mut self.a, now)
        {
            let (skip, pieces, scratch) = (t.skip, t.pieces.to_vec(), t.scratch.to_vec());
            let bytes: Vec<u8> = pieces
                .iter()
                .flat_map(|p| match p {
                    Piece::Scratch { start, len } => scratch[*start..start + len].to_vec(),
                    Piece::Region(p) => {
                        let mut v = vec![0; p.len as usize];
                        self.a.read_mr(p.mr, p.offset, &mut v).unwrap();
                        v
                    }
                })
                .skip(skip)
                .take(self.out.room())
                .collect();
            self.out.write(now, &bytes);
            self.c.on_sent(&mut self.a, bytes.len());
        }
        while let Some(s) = self.c.next_action() {
            self.out.fin |= s == StreamAction::Shutdown;
        }
    }
    fn statuses(&mut self) -> Vec<(u64, Status)> {
        core::iter::from_fn(|| self.a.poll_cq(self.cq)).map(|w| (w.wr_id, w.status)).collect()
    }
}

fn deliver(from: &mut Stream, to: &mut End, now: Time) {
    let bytes = from.read(now);
    to.c.receive(&mut to.a, &bytes, now);
    if from.ends() {
        from.fin_told = true;
        to.c.on_fin(&mut to.a, now);
    }
}

/// Runs from `now` on until nothing happens any more; gives when that is.
fn run(x: &mut End, y: &mut End, mut now: Time) -> Time {
    for _ in 0..2_000_000 {
        deliver(&mut x.out, y, now);
        deliver(&mut y.out, x, now);
        x.act(now);
        y.act(now);
        if x.out.ends() || y.out.ends() {
            continue;
        }
        let timers = [x.c.poll_timeout(), y.c.poll_timeout(), x.out.next_event(), y.out.next_event()];
        match timers.into_iter().flatten().min() {
            Some(t) => now = now.max(t),
            None => return now,
        }
    }
    panic!("it never ends");
}

fn pair(spec: &str, config: Config) -> (End, End) {
    let x = End::new(1, spec, |qp| Connection::initiator(config, qp, b"", Time::ZERO).unwrap());
    let y = End::new(2, spec, |_| Connection::responder(config, Time::ZERO));
    (x, y)
}

#[test]
fn all_data_arrives_over_long_and_lossy_paths() {
    for spec in [
        "rate=100mbit delay=25ms queue=1bdp(rtt 50ms)",
        "rate=1gbit delay=50ms loss=1% queue=1bdp(rtt 100ms)",
        "rate=20mbit delay=5ms jitter=2ms loss=3% queue=100KiB",
    ] {
        for config in [
            Config { peer_to_peer: true, ..Config::default() },
            Config { markers: true, peer_to_peer: true, ..Config::default() },
            Config { crc: false, peer_to_peer: true, ..Config::default() },
        ] {
            let (mut x, mut y) = pair(spec, config);
            let now = run(&mut x, &mut y, Time::ZERO);
            assert!(now < Time::ZERO + Span::from_secs(3), "{spec}: established and quiet at {now:?}");
            let keys = |e: &End| (e.dst.rkey, e.src.rkey);
            let (of_x, of_y) = (keys(&x), keys(&y));
            for (e, (key, other)) in [(&mut x, of_y), (&mut y, of_x)] {
                let (src, own) = (e.src.lkey, e.own.lkey);
                e.post(1, SendOp::Write { rkey: key, offset: 64 }, src, 0, 2 << 20);
                e.post(2, SendOp::Read { rkey: other, offset: 0 }, own, 1 << 20, 1 << 20);
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                e.post(3, SendOp::Atomic { rkey: key, offset: 0, op }, own, 100_000, 8);
                e.post(4, SendOp::Send, src, 0, 1000);
            }
            let now = run(&mut x, &mut y, now);
            for (e, o) in [(&x, &y), (&y, &x)] {
                assert_eq!(o.bytes(o.dst, 64, 2 << 20), e.bytes(e.src, 0, 2 << 20), "{spec}");
                assert_eq!(e.bytes(e.own, 1 << 20, 1 << 20), o.bytes(o.src, 0, 1 << 20), "{spec}");
                assert_eq!(o.bytes(o.own, 0, 1000), e.bytes(e.src, 0, 1000), "{spec}");
            }
            for e in [&mut x, &mut y] {
                let mut done = e.statuses();
                done.sort_unstable_by_key(|d| d.0);
                assert_eq!(done, [1, 2, 3, 4, 100].map(|n| (n, Status::Success)), "{spec}");
            }
            x.c.close(&mut x.a, now);
            run(&mut x, &mut y, now);
            for e in [&x, &y] {
                let closed = Event::Closed { end: Ending::Closed, by_peer: false };
                assert_eq!(e.events.last(), Some(&closed), "{spec}");
            }
        }
    }
}

#[test]
fn path_failure_within_a_record_is_detected() {
    let spec = "rate=10mbit delay=10ms queue=1MiB";
    let (mut x, mut y) = pair(spec, Config::default());
    let now = run(&mut x, &mut y, Time::ZERO);
    let (key, src) = (y.dst.rkey, x.src.lkey);
    x.post(1, SendOp::Write { rkey: key, offset: 0 }, src, 0, 100_000);
    x.act(now);
    // Half of what is on its way arrives, and not the end of a record.
    let part = now + Span::from_millis(40);
    let mut bytes = x.out.read(part);
    bytes.truncate(bytes.len() / MSS * MSS - 100);
    y.c.receive(&mut y.a, &bytes, part);
    assert_eq!(y.c.poll_timeout(), Some(part + Config::default().record_timeout));
    y.act(part + Config::default().record_timeout);
    y.act(part + Config::default().record_timeout);
    assert_eq!(y.events.last(), Some(&Event::Closed { end: Ending::TimedOut, by_peer: false }));
    assert!(y.statuses().iter().all(|s| s.1 != Status::Success));
}
