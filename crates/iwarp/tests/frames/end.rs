//! One end of a captured connection: an engine and its memory.

use base::{Rng, Time};
use longhaul_iwarp::{Connection, Event, Piece, StreamAction};
use verbs::{
    Access, Adapter, Kind, Limits, Memory, Mr, PdId, QpId, QpInit, RecvWr, SendWr, Sge, WindowRange,
};

/// Bytes of each region.
pub const SIZE: u64 = 256 << 10;
/// Reads at a time that a queue pair is made for.
pub const MAX_READS: u16 = 16;
/// Bytes of each receive.
pub const RECEIVE: u64 = 16 << 10;

/// One end.
pub struct End {
    pub a: Adapter,
    pub pd: PdId,
    pub qp: QpId,
    /// The peer may read it.
    pub src: Mr,
    /// The peer may write it.
    pub dst: Mr,
    pub own: Mr,
    pub c: Connection,
    pub events: Vec<Event>,
    /// It wants its sending side shut down.
    pub shut: bool,
    /// It wants the stream reset.
    pub reset: bool,
}

impl End {
    pub fn new(seed: u64, connection: impl FnOnce(QpId) -> Connection) -> End {
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let cq = a.create_cq(1000).unwrap();
        let max_rd_atomic = MAX_READS.into();
        let init = QpInit { kind: Kind::Ordered, max_rd_atomic, ..QpInit::new(cq, cq) };
        let qp = a.create_qp(pd, init).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        Rng::from_u64(seed).fill(&mut bytes);
        let src = a.reg_mr(pd, bytes.into(), Access::REMOTE_READ).unwrap();
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let dst = a.reg_mr(pd, Memory::zeroed(SIZE as usize), open).unwrap();
        let own = a.reg_mr(pd, Memory::zeroed(SIZE as usize), Access::LOCAL_WRITE).unwrap();
        let (events, c) = (Vec::new(), connection(qp));
        End { a, pd, qp, src, dst, own, c, events, shut: false, reset: false }
    }
    pub fn sge(&self, len: u64) -> Sge {
        Sge { lkey: self.src.lkey, offset: 0, len }
    }
    pub fn sink(&self, len: u64) -> Sge {
        Sge { lkey: self.own.lkey, offset: 0, len }
    }
    /// Bytes of the region that the peer may read.
    pub fn source(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.a.read_mr(self.src.id, at, &mut bytes).unwrap();
        bytes
    }
    /// The word at byte `at` of the region that the peer may change.
    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.a.read_mr(self.dst.id, at, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }
    pub fn post(&mut self, wr: SendWr) {
        self.a.post_send(self.qp, wr).unwrap();
    }
    pub fn receive(&mut self) {
        self.receive_in(RECEIVE);
    }
    /// Posts a receive of `len` bytes.
    pub fn receive_in(&mut self, len: u64) {
        let sges = Sge { lkey: self.own.lkey, offset: 0, len }.into();
        self.a.post_recv(self.qp, RecvWr { wr_id: 0, sges }).unwrap();
    }
    /// A window over the region that the peer may write.
    pub fn window(&mut self) -> u32 {
        let mw = self.a.alloc_mw(self.pd).unwrap();
        let range = WindowRange { mr: self.dst.id, offset: 0, len: 64, access: Access::REMOTE_WRITE };
        self.a.bind_mw(self.qp, mw, range).unwrap()
    }
    /// What it has to send in one call.
    pub fn batch(&mut self) -> Vec<u8> {
        let Some(t) = self.c.transmit(&mut self.a, Time::ZERO) else { return Vec::new() };
        let (mut bytes, mut regions) = (Vec::new(), Vec::new());
        for p in t.pieces {
            match p {
                Piece::Scratch { start, len } => bytes.extend(&t.scratch[*start..start + len]),
                Piece::Region(p) => {
                    regions.push((bytes.len(), *p));
                    bytes.resize(bytes.len() + p.len as usize, 0);
                }
            }
        }
        for (at, p) in regions {
            self.a.read_mr(p.mr, p.offset, &mut bytes[at..at + p.len as usize]).unwrap();
        }
        self.c.on_sent(&mut self.a, bytes.len());
        bytes
    }
    pub fn look(&mut self) {
        self.events.extend(core::iter::from_fn(|| self.c.next_event()));
        while let Some(s) = self.c.next_action() {
            self.shut |= s == StreamAction::Shutdown;
            self.reset |= s == StreamAction::Abort;
        }
    }
}
