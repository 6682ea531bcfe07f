//! Two ends joined by a stream that delivers bytes in pieces of any size.

mod ends;
mod errors;
mod fields;
mod held;
mod limits;
mod operations;
mod read_ahead;
mod startup;
mod write_batch;

use super::{Connection, Event, Piece, StreamAction};
use crate::Config;
use base::{Rng, Time};
use std::collections::VecDeque;
use verbs::{
    Access, Adapter, CqId, Kind, Limits, Memory, Mr, PdId, QpId, QpInit, RecvWr, SendWr, Sge, Status,
    WorkCompletion,
};

/// Bytes of each region.
pub(super) const SIZE: usize = 512 << 10;

/// One end: adapter, queue pair, three regions, connection, and the bytes it has sent.
pub(super) struct End {
    pub(super) a: Adapter,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) qp: QpId,
    /// Random bytes that the peer may read.
    pub(super) src: Mr,
    /// Zeros that the peer may write and change.
    pub(super) dst: Mr,
    /// Zeros of our own.
    pub(super) own: Mr,
    pub(super) c: Connection,
    pub(super) events: Vec<Event>,
    pub(super) actions: Vec<StreamAction>,
    pub(super) wire: VecDeque<u8>,
    pub(super) shut: bool,
    pub(super) reset: bool,
}

pub(super) fn adapter(seed: u64) -> (Adapter, PdId, CqId, QpId) {
    let mut a = Adapter::new(Limits::default(), Rng::from_u64(seed));
    let pd = a.alloc_pd().unwrap();
    let cq = a.create_cq(1000).unwrap();
    let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).unwrap();
    (a, pd, cq, qp)
}

impl End {
    fn new(seed: u64, c: impl FnOnce(QpId) -> Connection) -> End {
        let (mut a, pd, cq, qp) = adapter(seed);
        // Quickly made: many tests need many ends.
        let word = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed << 1).swap_bytes();
        let bytes: Vec<u8> = (0..SIZE as u64 / 8).flat_map(|i| word(i).to_le_bytes()).collect();
        let src = a.reg_mr(pd, bytes.into(), Access::REMOTE_READ).unwrap();
        let zeros = || Memory::zeroed(SIZE);
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let dst = a.reg_mr(pd, zeros(), open).unwrap();
        let own = a.reg_mr(pd, zeros(), Access::LOCAL_WRITE).unwrap();
        let (events, actions, wire) = (Vec::new(), Vec::new(), VecDeque::new());
        End { a, pd, cq, qp, src, dst, own, c: c(qp), events, actions, wire, shut: false, reset: false }
    }
    pub(super) fn initiator(seed: u64, config: Config) -> End {
        End::new(seed, |qp| Connection::initiator(config, qp, b"hello", Time::ZERO).unwrap())
    }
    pub(super) fn responder(seed: u64, config: Config) -> End {
        End::new(seed, |_| Connection::responder(config, Time::ZERO))
    }
    pub(super) fn post(&mut self, wr: SendWr) {
        self.a.post_send(self.qp, wr).unwrap();
    }
    pub(super) fn source(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.src.lkey, offset, len }
    }
    pub(super) fn own(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.own.lkey, offset, len }
    }
    pub(super) fn recv(&mut self, wr_id: u64, offset: u64, len: u64) {
        let sges = self.own(offset, len).into();
        self.a.post_recv(self.qp, RecvWr { wr_id, sges }).unwrap();
    }
    pub(super) fn bytes(&self, mr: Mr, offset: u64, len: u64) -> Vec<u8> {
        let mut v = vec![0; len as usize];
        self.a.read_mr(mr.id, offset, &mut v).unwrap();
        v
    }
    pub(super) fn completions(&mut self) -> Vec<WorkCompletion> {
        core::iter::from_fn(|| self.a.poll_cq(self.cq)).collect()
    }
    /// Puts up to `most` bytes of what is to be sent on the wire; gives their number.
    pub(super) fn send(&mut self, most: usize, now: Time) -> usize {
        let Some(t) = self.c.transmit(&mut self.a, now) else { return 0 };
        let mut bytes = Vec::new();
        let mut regions = Vec::new();
        for p in t.pieces {
            match p {
                Piece::Scratch { start, len } => bytes.extend(&t.scratch[*start..start + len]),
                Piece::Region(p) => {
                    regions.push((bytes.len(), *p));
                    bytes.resize(bytes.len() + p.len as usize, 0);
                }
            }
        }
        let (skip, len) = (t.skip, t.len);
        for (at, p) in regions {
            self.a.read_mr(p.mr, p.offset, &mut bytes[at..at + p.len as usize]).unwrap();
        }
        assert_eq!(bytes.len() - skip, len);
        let n = len.min(most);
        self.wire.extend(&bytes[skip..skip + n]);
        self.c.on_sent(&mut self.a, n);
        n
    }
    /// Takes all events and actions from the connection.
    pub(super) fn collect_events(&mut self) {
        while let Some(e) = self.c.next_event() {
            self.events.push(e);
        }
        while let Some(s) = self.c.next_action() {
            self.shut |= s != StreamAction::Abort;
            self.reset |= s == StreamAction::Abort;
            self.actions.push(s);
        }
    }
    pub(super) fn answer(&mut self, now: Time) {
        if matches!(self.c.state, super::State::Asked(_)) {
            let qp = self.qp;
            self.c.accept(&mut self.a, qp, b"welcome", now).unwrap();
        }
    }
    pub(super) fn is_established(&self) -> bool {
        self.events.iter().any(|e| matches!(e, Event::Established { .. }))
    }
    pub(super) fn statuses(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|w| (w.wr_id, w.status)).collect()
    }
}

/// Carries up to `most` bytes from `from` to `to`, and the end of the stream behind them.
pub(super) fn carry(from: &mut End, to: &mut End, most: usize, now: Time) -> bool {
    let n = from.wire.len().min(most);
    let bytes: Vec<u8> = from.wire.iter().take(n).copied().collect();
    let taken = to.c.receive(&mut to.a, &bytes, now);
    from.wire.drain(..if to.c.is_held() { taken } else { n });
    let mut moved = taken > 0;
    if from.reset {
        from.reset = false;
        to.c.on_error(&mut to.a);
        moved = true;
    } else if from.shut && from.wire.is_empty() {
        from.shut = false;
        to.c.on_fin(&mut to.a, now);
        moved = true;
    }
    moved
}

/// Runs both ends until nothing moves, in pieces of random size up to `piece`; accepts who asks.
pub(super) fn run(x: &mut End, y: &mut End, rng: &mut Rng, piece: usize, now: Time) {
    for _ in 0..3_000_000 {
        let mut size = || 1 + rng.below(piece as u64) as usize;
        let mut moved = x.send(size(), now) > 0;
        moved |= y.send(size(), now) > 0;
        moved |= carry(x, y, size(), now);
        moved |= carry(y, x, size(), now);
        x.collect_events();
        y.collect_events();
        let before = y.events.len();
        y.answer(now);
        y.collect_events();
        let ending = x.shut || x.reset || y.shut || y.reset;
        let idle = (x.wire.is_empty() || y.c.is_held()) && (y.wire.is_empty() || x.c.is_held());
        if !moved && !ending && y.events.len() == before && idle {
            return;
        }
    }
    panic!("it never ends");
}

/// Two ends that are connected.
pub(super) fn pair(x: Config, y: Config) -> (End, End) {
    let (mut x, mut y) = (End::initiator(1, x), End::responder(2, y));
    run(&mut x, &mut y, &mut Rng::from_u64(3), 1 << 20, Time::ZERO);
    assert!(x.is_established() && y.is_established(), "{:?} {:?}", x.events, y.events);
    (x, y)
}
