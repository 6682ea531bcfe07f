//! A peer that sends segments of its choice: nothing outside of what it was given access to changes, whatever
//! they say, and nothing panics.
//!
//! Every region of the adapter but one stands for memory that the peer must not touch. That one lies in a larger
//! allocation, between guard areas. Input: segments, 18 bytes each, in the order of `segment`.

#![no_main]

mod guarded;

use base::Rng;
use guarded::{Guarded, REGION, UNTOUCHED};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use verbs::{
    Access, Adapter, Incoming, Kind, Limits, Memory, Mr, QpId, QpInit, QpState, RecvWr, SegmentOp, SendOp,
    SendWr, Sge, Sges, Tail,
};

/// What the peer writes.
const WRITTEN: u8 = 0x5a;
/// Longest payload of a segment.
const MAX_PAYLOAD: usize = 320;
/// Segments of one input at most.
const MAX_SEGMENTS: usize = 512;

struct World {
    adapter: Adapter,
    qp: QpId,
    guarded: Arc<Guarded>,
    /// Writable by the peer; local only; readable by the peer; where receives and reads of our own end.
    regions: [Mr; 4],
}

impl World {
    fn new(kind: Kind) -> World {
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(1));
        let pd = a.alloc_pd().expect("room");
        let other = a.alloc_pd().expect("room");
        let cq = a.create_cq(4_096).expect("room");
        let (guarded, open) = Guarded::memory();
        let plain = || Memory::from(vec![UNTOUCHED; REGION]);
        let mut register = |pd, memory, access| a.reg_mr(pd, memory, access).map_err(|e| e.0).expect("room");
        let regions = [
            register(pd, open, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            register(pd, plain(), Access::LOCAL_WRITE),
            register(pd, plain(), Access::LOCAL_READ | Access::REMOTE_READ),
            register(pd, plain(), Access::LOCAL_WRITE),
        ];
        // Of another protection domain: out of this peer's reach though its access allows everything.
        register(other, plain(), Access::ALL);
        let qp = a.create_qp(pd, QpInit { kind, ..QpInit::new(cq, cq) }).expect("room");
        for state in [QpState::Rtr, QpState::Rts] {
            a.modify_qp(qp, state).expect("in order");
        }
        let lkey = regions[3].lkey;
        for i in 0..8 {
            // The first half of the last region takes receives, in pieces of 16 bytes.
            let sges = Sges::from(Sge { lkey, offset: 16 * i, len: 16 });
            a.post_recv(qp, RecvWr { wr_id: i, sges }).expect("room");
        }
        if kind == Kind::Reliable {
            let wr =
                SendWr::new(100, SendOp::Read { rkey: 7, offset: 0 }, Sge { lkey, offset: 128, len: 64 });
            a.post_send(qp, wr).expect("room");
            a.set_send_limit(qp, 64).expect("exists");
            while a.next_segment(qp, 1_000).is_some() {}
        }
        World { adapter: a, qp, guarded, regions }
    }

    /// What holds at all times.
    fn check(&self) {
        let middle = self.guarded.check();
        assert!(middle.iter().all(|b| *b == UNTOUCHED || *b == WRITTEN), "bytes that the peer never sent");
        for (mr, from) in [(1, 0), (2, 0), (3, 192)] {
            let mut bytes = vec![0; REGION - from];
            self.adapter.read_mr(self.regions[mr].id, from as u64, &mut bytes).expect("registered");
            assert!(bytes.iter().all(|b| *b == UNTOUCHED), "region {mr} was written");
        }
    }
}

/// The next segment and the length of its payload.
fn segment(w: &World, s: &[u8; 18]) -> (Incoming, usize) {
    let [flags, key, m0, m1, r0, r1, p0, p1, p2, p3, p4, p5, p6, p7, l0, l1, k0, k1] = *s;
    let op = match flags & 3 {
        0 => SegmentOp::Write,
        1 => SegmentOp::Send,
        2 if flags & 0x80 != 0 => SegmentOp::AtomicRequest,
        2 => SegmentOp::ReadRequest,
        _ => SegmentOp::ReadResponse,
    };
    let known = w.regions.map(|m| m.rkey);
    let key = match key % 8 {
        n @ 0..4 => known[usize::from(n)],
        4 => w.regions[3].lkey,
        5 => w.regions[0].lkey,
        6 => 0,
        _ => u32::from_be_bytes([k0, k1, k0, k1]),
    };
    // Most positions near the region's ends, some anywhere.
    let position = match flags & 0x0c {
        0 | 4 => u64::from(u16::from_be_bytes([p6, p7])) % 600,
        8 => u64::from(u16::from_be_bytes([p6, p7])).wrapping_neg(),
        _ => u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
    };
    let last = (flags & 0x20 != 0).then_some(Tail {
        imm: (flags & 0x40 != 0).then_some(7),
        invalidates: flags & 0xc0 == 0xc0,
        solicited: flags & 0x80 != 0,
    });
    let seg = Incoming {
        op,
        msn16: u16::from_be_bytes([m0, m1]),
        rsn16: (r0 & 0x80 == 0).then_some(u16::from_be_bytes([r0 << 1, r1])),
        key,
        position,
        first: flags & 0x10 != 0,
        last,
    };
    (seg, usize::from(u16::from_be_bytes([l0, l1])) % MAX_PAYLOAD)
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    let mut w = World::new(if kind & 1 == 0 { Kind::Reliable } else { Kind::Unreliable });
    let payload = [WRITTEN; MAX_PAYLOAD];
    for s in rest.chunks_exact(18).take(MAX_SEGMENTS) {
        let (seg, len) = segment(&w, s.try_into().expect("18 bytes"));
        if seg.op == SegmentOp::ReadRequest && s[16] & 1 == 1 {
            // A request that can be read: source key and offset, length, sink.
            let mut request = Vec::from(seg.key.to_be_bytes());
            request.extend(u64::from(s[13]).to_be_bytes());
            request.extend(u64::from(s[15]).to_be_bytes());
            request.extend([0, 0, 0, 9, 0, 0, 0, 0]);
            let _ = w.adapter.place(w.qp, &seg, &request);
        } else if seg.op == SegmentOp::AtomicRequest && s[16] & 1 == 1 {
            // Target key and offset, sink, operation, operands.
            let mut request = Vec::from(seg.key.to_be_bytes());
            request.extend(u64::from(s[13]).to_be_bytes());
            request.extend([0, 0, 0, 9, 0, 0, 0, s[15]]);
            request.extend([WRITTEN; 32]);
            let _ = w.adapter.place(w.qp, &seg, &request);
        } else {
            let _ = w.adapter.place(w.qp, &seg, &payload[..len]);
        }
        let mut out = [0; 64];
        if let Some(answer) = w.adapter.next_segment(w.qp, 64) {
            let _ = w.adapter.gather(w.qp, &answer, &mut out[..answer.len as usize]);
        }
    }
    w.check();
});
