//! Tests with two adapters joined in memory.

mod adversary;
mod atomics;
mod lossy;
mod ordered;
mod queues;
mod regions;
mod runs;
mod semantics;
mod shared;
mod windows;

use crate::*;

/// Bytes in each region of an end.
pub(crate) const SIZE: u64 = 64 << 10;

/// One end: an adapter with a queue pair and three regions.
pub(crate) struct End {
    pub(crate) a: Adapter,
    pub(crate) pd: PdId,
    pub(crate) scq: CqId,
    pub(crate) rcq: CqId,
    pub(crate) qp: QpId,
    /// Random bytes, readable by the peer.
    pub(crate) src: Mr,
    /// Zeros, writable by the peer.
    pub(crate) dst: Mr,
    /// Zeros, for receives and the answers to reads.
    pub(crate) own: Mr,
}

impl End {
    pub(crate) fn new(seed: u64, change: impl FnOnce(&mut QpInit)) -> End {
        let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let (scq, rcq) = (a.create_cq(1000).unwrap(), a.create_cq(1000).unwrap());
        let mut init = QpInit::new(scq, rcq);
        change(&mut init);
        let qp = a.create_qp(pd, init).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        base::Rng::from_u64(seed).fill(&mut bytes);
        let src = a.reg_mr(pd, bytes.into(), Access::REMOTE_READ).unwrap();
        let zeros = || Memory::zeroed(SIZE as usize);
        let dst = a.reg_mr(pd, zeros(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let own = a.reg_mr(pd, zeros(), Access::LOCAL_WRITE).unwrap();
        let mut end = End { a, pd, scq, rcq, qp, src, dst, own };
        end.up();
        end
    }
    fn up(&mut self) {
        self.a.modify_qp(self.qp, QpState::Rtr).unwrap();
        self.a.modify_qp(self.qp, QpState::Rts).unwrap();
    }
    pub(crate) fn post(&mut self, wr: SendWr) {
        self.a.post_send(self.qp, wr).unwrap();
    }
    pub(crate) fn recv(&mut self, wr_id: u64, offset: u64, len: u64) {
        let sges = Sge { lkey: self.own.lkey, offset, len }.into();
        self.a.post_recv(self.qp, RecvWr { wr_id, sges }).unwrap();
    }
    pub(crate) fn bytes(&self, mr: Mr, offset: u64, len: u64) -> Vec<u8> {
        let mut v = vec![0; len as usize];
        self.a.read_mr(mr.id, offset, &mut v).unwrap();
        v
    }
    pub(crate) fn segment(&mut self, max: usize) -> Option<(Segment, Vec<u8>)> {
        let ahead = self.a.peek(self.qp, MaxPayload::same(max as u32));
        let had = self.a.has_segment(self.qp);
        let seg = self.a.next_segment(self.qp, max);
        assert_eq!(had, seg.is_some());
        // What was looked at is what comes.
        if ahead.is_some() {
            assert_eq!(seg, ahead);
        }
        let seg = seg?;
        let mut payload = vec![0; seg.len as usize];
        self.a.gather(self.qp, &seg, &mut payload).unwrap();
        Some((seg, payload))
    }
    pub(crate) fn place(&mut self, seg: &Segment, payload: &[u8]) -> Result<Placed, Violation> {
        self.a.place(self.qp, &seg.incoming(), payload)
    }
    pub(crate) fn sent(&mut self) -> Vec<WorkCompletion> {
        core::iter::from_fn(|| self.a.poll_cq(self.scq)).collect()
    }
    pub(crate) fn received(&mut self) -> Vec<WorkCompletion> {
        core::iter::from_fn(|| self.a.poll_cq(self.rcq)).collect()
    }
    pub(crate) fn own_sge(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.own.lkey, offset, len }
    }
    pub(crate) fn source(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.src.lkey, offset, len }
    }
}

pub(crate) fn reliable() -> (End, End) {
    (End::new(1, |_| {}), End::new(2, |_| {}))
}

/// Passes the receive limits of each end to the other.
pub(crate) fn give_credit(x: &mut End, y: &mut End) {
    let (lx, ly) = (x.a.recv_limit(x.qp).unwrap(), y.a.recv_limit(y.qp).unwrap());
    x.a.set_send_limit(x.qp, ly).unwrap();
    y.a.set_send_limit(y.qp, lx).unwrap();
}

/// Carries everything both ways over a perfect network until nothing moves.
pub(crate) fn run(x: &mut End, y: &mut End, max: usize) {
    for _ in 0..1_000_000 {
        give_credit(x, y);
        let moved = carry(x, y, max) | carry(y, x, max);
        if !moved {
            return;
        }
    }
    panic!("it never ends");
}

fn carry(from: &mut End, to: &mut End, max: usize) -> bool {
    let Some((seg, payload)) = from.segment(max) else { return false };
    assert_eq!(to.place(&seg, &payload), Ok(Placed::New));
    from.a.on_acked(from.qp, seg.reference());
    true
}

pub(crate) fn ids(wcs: &[WorkCompletion]) -> Vec<(u64, Status)> {
    wcs.iter().map(|w| (w.wr_id, w.status)).collect()
}
