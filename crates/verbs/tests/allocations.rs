//! The data path does not allocate for packets that come in order.
//!
//! Alone in its process, since it counts the allocations of all of it.

use longhaul_verbs::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;
static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on; `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: usize = 16 << 20;

fn open(seed: u64) -> (Adapter, CqId, QpId, Mr) {
    let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(seed));
    let pd = a.alloc_pd().unwrap();
    let cq = a.create_cq(16).unwrap();
    let qp = a.create_qp(pd, QpInit::new(cq, cq)).unwrap();
    a.modify_qp(qp, QpState::Rtr).unwrap();
    a.modify_qp(qp, QpState::Rts).unwrap();
    let mr = a.reg_mr(pd, Memory::zeroed(LEN), Access::ALL).unwrap();
    (a, cq, qp, mr)
}

#[test]
fn in_order_packets_do_not_allocate() {
    let (mut x, x_cq, x_qp, x_mr) = open(1);
    let (mut y, y_cq, y_qp, y_mr) = open(2);
    let all = Sge { lkey: x_mr.lkey, offset: 0, len: LEN as u64 };
    let sges = Sge { lkey: y_mr.lkey, ..all }.into();
    y.post_recv(y_qp, RecvWr { wr_id: 3, sges }).unwrap();
    x.set_send_limit(x_qp, 1).unwrap();
    x.post_send(x_qp, SendWr::new(1, SendOp::Write { rkey: y_mr.rkey, offset: 0 }, all)).unwrap();
    x.post_send(x_qp, SendWr::new(2, SendOp::Send, all)).unwrap();
    let mut payload = [0; 1400];
    let before = COUNT.load(Relaxed);
    let mut packets = 0;
    while let Some(seg) = x.next_segment(x_qp, 1400) {
        let payload = &mut payload[..seg.len as usize];
        x.gather(x_qp, &seg, payload).unwrap();
        assert_eq!(y.place(y_qp, &seg.incoming(), payload), Ok(Placed::New));
        x.on_acked(x_qp, seg.reference());
        packets += 1;
    }
    let allocations = COUNT.load(Relaxed) - before;
    assert!(x.poll_cq(x_cq).is_some() && x.poll_cq(x_cq).is_some() && y.poll_cq(y_cq).is_some());
    assert!(packets > 20_000);
    assert!(
        allocations < 50,
        "{allocations} allocations for {packets} packets: tables may grow, packets may not"
    );
}
