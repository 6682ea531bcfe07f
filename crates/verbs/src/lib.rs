//! RDMA verbs as in InfiniBand, without a network: memory regions, queue pairs, completions and placement.
//!
//! ```
//! use longhaul_verbs::*;
//! let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(1));
//! let mut b = Adapter::new(Limits::default(), base::Rng::from_u64(2));
//! let open = |x: &mut Adapter| {
//!     let pd = x.alloc_pd()?;
//!     let cq = x.create_cq(16)?;
//!     let qp = x.create_qp(pd, QpInit::new(cq, cq))?;
//!     x.modify_qp(qp, QpState::Rtr)?;
//!     x.modify_qp(qp, QpState::Rts)?;
//!     Ok::<_, Error>((pd, cq, qp))
//! };
//! let (_, a_cq, a_qp) = open(&mut a)?;
//! let (b_pd, _, b_qp) = open(&mut b)?;
//! let mr = b.reg_mr(b_pd, Memory::zeroed(100), Access::ALL).map_err(|e| e.0)?;
//! let op = SendOp::Write { rkey: mr.rkey, offset: 40 };
//! a.post_send(a_qp, SendWr::new(7, op, Data::Inline(b"hello".as_slice().into())))?;
//! while let Some(seg) = a.next_segment(a_qp, 3) {
//!     let mut payload = vec![0; seg.len as usize];
//!     a.gather(a_qp, &seg, &mut payload).unwrap();
//!     assert_eq!(b.place(b_qp, &seg.incoming(), &payload), Ok(Placed::New));
//!     a.on_acked(a_qp, seg.reference());
//! }
//! assert_eq!(a.poll_cq(a_cq).map(|wc| (wc.wr_id, wc.status)), Some((7, Status::Success)));
//! let mut out = [0; 5];
//! b.read_mr(mr.id, 40, &mut out)?;
//! assert_eq!(&out, b"hello");
//! # Ok::<(), Error>(())
//! ```
//!
//! An [`Adapter`] stands for what InfiniBand calls a host channel adapter. Applications register memory, create
//! queue pairs and post work requests; whoever carries the packets asks each queue pair for its
//! [`next_segment`](Adapter::next_segment), copies the payload with [`gather`](Adapter::gather), reports the
//! segment's fate with [`on_acked`](Adapter::on_acked) and [`on_lost`](Adapter::on_lost), and hands what comes in to
//! [`place`](Adapter::place). Every segment says where it belongs, so it is placed the moment it arrives, in any
//! order.
//!
//! Ordering is that of InfiniBand's reliable connection (chapter 9): work requests complete in posting order; a
//! receive completes only when the bytes of all earlier messages are in place; a read sees all earlier writes, and an
//! atomic operation is carried out once, after all earlier messages.

mod adapter;
mod cq;
mod error;
mod memory;
pub mod ordered;
mod qp;
mod region;
mod rx;
mod segment;
mod slab;
mod srq;
mod transport_api;
mod tx;
mod unreliable;
mod work;

#[cfg(test)]
mod tests;

pub use adapter::{Adapter, Limits};
pub use error::{Error, GatherError};
pub use memory::{Backing, Memory};
pub use qp::{Kind, QpInfo, QpInit, QpState, QpUsage, Stats};
pub use region::{Access, Mr, WindowRange};
pub use segment::{
    ATOMIC_REQUEST_LEN, Incoming, Placed, READ_REQUEST_LEN, Segment, SegmentOp, SegmentRef, Tail, Violation,
};
pub use slab::{CqId, MrId, MwId, PdId, QpId, SrqId};
pub use tx::{MaxPayload, StridedBuffer};
pub use work::{
    AtomicOp, Binding, Data, InlineBytes, MrRange, Opcode, RecvWr, SendOp, SendWr, Sge, Sges, Status,
    WorkCompletion,
};

/// Longest write or read in bytes (1 TiB).
pub const MAX_RDMA_LEN: u64 = 1 << 40;
/// Longest send in bytes (2 GiB).
pub const MAX_SEND_LEN: u64 = 1 << 31;
/// Most bytes that travel inside a work request.
pub const MAX_INLINE: usize = 64 << 10;
/// A message is at most this far ahead of the oldest incomplete one, so that 16 bits tell them apart.
pub const MAX_MESSAGES_AHEAD: u64 = 1 << 14;
/// Most receives posted on one queue pair, so that 16 bits tell them apart.
pub const MAX_RECV_WR: usize = 1 << 14;
/// Most work requests outstanding on one send queue.
pub const MAX_SEND_WR: usize = 1 << 20;
/// Most scatter/gather elements of a work request.
pub const MAX_SGE: usize = 16;
/// Most reads and atomic operations outstanding on a queue pair in one direction.
pub const MAX_RD_ATOMIC: usize = 128;
/// Most separate ranges of received bytes a queue pair keeps track of, about 24 bytes each. At one hole for every
/// second packet this carries a million packets in flight.
pub const MAX_HOLES: usize = 1 << 19;
/// Most memory regions of an adapter.
pub const MAX_REGIONS: usize = 1 << 24;
