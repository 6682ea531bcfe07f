//! Posting work requests.

use crate::abi::*;
use crate::guarded;
use crate::queue_pair::{Pair, pair};
use core::ffi::{c_int, c_uint};
use engine::Destination;
use std::sync::atomic::Ordering;
use verbs::{AtomicOp, Data, RecvWr, SendOp, SendWr, Sge, Sges};

const FENCE: c_uint = 1;
const SIGNALED: c_uint = 1 << 1;
const SOLICITED: c_uint = 1 << 2;
const INLINE: c_uint = 1 << 3;

/// The elements of a list.
///
/// # Safety
/// `list` has `n` elements.
unsafe fn elements<'a>(list: *const ibv_sge, n: c_int, most: u32) -> Result<&'a [ibv_sge], c_int> {
    let len = usize::try_from(n).ok().filter(|len| *len <= most as usize).ok_or(libc::EINVAL)?;
    if len == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { core::slice::from_raw_parts(list, len) })
}

pub(crate) fn sges_of(list: &[ibv_sge]) -> Sges {
    let one = |s: &ibv_sge| Sge { lkey: s.lkey, offset: s.addr, len: s.length.into() };
    match list {
        [] => Sges::None,
        [s] => Sges::One(one(s)),
        _ => Sges::Many(list.iter().map(one).collect()),
    }
}

/// A copy of what a list names.
///
/// # Safety
/// The list names memory that may be read.
pub(crate) unsafe fn inline_of(list: &[ibv_sge], most: u32) -> Result<Data, c_int> {
    let total: u64 = list.iter().map(|s| u64::from(s.length)).sum();
    if total > most.into() {
        return Err(libc::EINVAL);
    }
    let mut bytes = verbs::InlineBytes::with_capacity(total as usize);
    for s in list.iter().filter(|s| s.length > 0) {
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe {
            core::slice::from_raw_parts(s.addr as *const u8, s.length as usize)
        });
    }
    Ok(Data::Inline(bytes))
}

/// Whether work may be posted in this state: `EINVAL` before RTS.
pub(crate) fn check_state(p: &Pair) -> Result<(), c_int> {
    if p.state.load(Ordering::Acquire) < RTS { Err(libc::EINVAL) } else { Ok(()) }
}

/// Compares and swaps all 64 bits.
pub(crate) const fn compare_swap(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// Adds to all 64 bits.
pub(crate) const fn fetch_add(add: u64) -> AtomicOp {
    AtomicOp::FetchAdd { add, mask: 0 }
}

unsafe fn send_wr_of(p: &Pair, w: &ibv_send_wr) -> Result<SendWr, c_int> {
    // SAFETY: the caller's list.
    let list = unsafe { elements(w.sg_list, w.num_sge, p.cap.max_send_sge)? };
    // In host memory the key is the lower half of what follows the address.
    let (rkey, offset, imm) = (w.second as u32, w.remote_addr, u32::from_be(w.imm_data));
    let op = match w.opcode {
        0 => SendOp::Write { rkey, offset },
        1 => SendOp::WriteImm { rkey, offset, imm },
        2 => SendOp::Send,
        3 => SendOp::SendImm { imm },
        4 => SendOp::Read { rkey, offset },
        5 => SendOp::Atomic { rkey: w.atomic_rkey, offset, op: compare_swap(w.second, w.swap) },
        6 => SendOp::Atomic { rkey: w.atomic_rkey, offset, op: fetch_add(w.second) },
        7 => SendOp::LocalInvalidate { rkey: w.imm_data },
        // SAFETY: the caller's window.
        8 => unsafe { crate::window::binding(w.mw, w.mw_rkey, &w.bind_info)? },
        9 => SendOp::SendInvalidate { rkey: w.imm_data },
        _ => return Err(libc::EINVAL),
    };
    let is_answered = matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
    let sends_nothing = matches!(op, SendOp::LocalInvalidate { .. } | SendOp::Bind(_));
    let list = if sends_nothing { &[] } else { list };
    let is_inline = w.send_flags & INLINE != 0 && !is_answered;
    let data = if is_inline {
        // SAFETY: as above; what is to be copied may be read.
        unsafe { inline_of(list, p.cap.max_inline_data)? }
    } else {
        Data::Sges(sges_of(list))
    };
    Ok(SendWr {
        wr_id: w.wr_id,
        op,
        data,
        signaled: p.signals_all || w.send_flags & SIGNALED != 0,
        solicited: w.send_flags & SOLICITED != 0,
        fence: w.send_flags & FENCE != 0,
    })
}

/// Where a datagram goes.
///
/// # Safety
/// `ah` is null or an address handle of the caller's.
pub(crate) unsafe fn destination(
    p: &Pair,
    ah: *const core::ffi::c_void,
    number: u32,
    q_key: u32,
) -> Result<Destination, c_int> {
    /// With this bit in the work request's Q_Key, the queue pair's own is meant.
    const OWN: u32 = 1 << 31;
    // SAFETY: the caller's promise.
    let (own, host, dscp) = unsafe { crate::address_handle::route(ah)? };
    Ok(Destination { own, host, number, q_key: if q_key & OWN != 0 { p.attr.qkey } else { q_key }, dscp })
}

unsafe fn destination_of(p: &Pair, w: &ibv_send_wr) -> Result<Destination, c_int> {
    // SAFETY: the caller's address handle.
    unsafe { destination(p, w.remote_addr as *const _, w.second as u32, (w.second >> 32) as u32) }
}

/// What a work request is for, besides the queue pair's peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Towards {
    Peer,
    /// A datagram's destination.
    Host(Destination),
    /// A receive queue of the peer's (XRC).
    Queue(u32),
}

/// Posts one work request.
pub(crate) fn post_one(p: &Pair, wr: SendWr, to: Towards) -> Result<(), c_int> {
    let posted = match (p.base.qp_base.qp_type, wr.op, to) {
        (QPT_UD, SendOp::Send | SendOp::SendImm { .. }, Towards::Host(to)) => {
            p.engine.post_datagram(&p.qp, wr, to)
        }
        (QPT_XRC_SEND, SendOp::Bind(_) | SendOp::LocalInvalidate { .. }, _) => return Err(libc::EOPNOTSUPP),
        (QPT_XRC_SEND, _, Towards::Queue(queue)) => p.engine.post_send_to_queue(&p.qp, wr, queue),
        (QPT_UD | QPT_XRC_SEND | QPT_XRC_RECV, ..) => return Err(libc::EINVAL),
        _ => {
            if matches!(wr.op, SendOp::SendImm { .. }) {
                crate::process::needs_packets(&p.engine, "sends with immediate data")?;
            }
            p.engine.post_send(&p.qp, wr)
        }
    };
    if posted { Ok(()) } else { Err(libc::ENOMEM) }
}

/// A list of work requests, linked by the C program.
pub(crate) trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut ibv_send_wr {
        self.next
    }
}
impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut ibv_recv_wr {
        self.next
    }
}

/// Gives each work request of a list to `post`; the first that cannot be posted is told in `bad`.
///
/// # Safety
/// The list is the caller's, and `bad` is null or the caller's.
pub(crate) unsafe fn post_list<T: Linked>(
    first: *mut T,
    bad: *mut *mut T,
    mut post: impl FnMut(&T) -> Result<(), c_int>,
) -> c_int {
    let mut at = first;
    let failed = guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's promise.
        while let Some(w) = unsafe { at.as_ref() } {
            post(w)?;
            at = w.next();
        }
        Ok(())
    });
    if failed != 0 && !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad = at };
    }
    failed
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair and list, here and in what is called for each.
    unsafe {
        post_list(first, bad, |w| {
            let p = pair(qp)?;
            check_state(p)?;
            let to = match p.base.qp_base.qp_type {
                QPT_UD => Towards::Host(destination_of(p, w)?),
                QPT_XRC_SEND => Towards::Queue(w.remote_srqn),
                _ => Towards::Peer,
            };
            post_one(p, send_wr_of(p, w)?, to)
        })
    }
}

/// A receive as it was posted.
///
/// # Safety
/// The list has as many elements as it says.
pub(crate) unsafe fn recv_wr_of(w: &ibv_recv_wr, most: u32) -> Result<RecvWr, c_int> {
    // SAFETY: the caller's promise.
    let list = unsafe { elements(w.sg_list, w.num_sge, most)? };
    Ok(RecvWr { wr_id: w.wr_id, sges: sges_of(list) })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair and list, here and in what is called for each.
    unsafe {
        post_list(first, bad, |w| {
            let p = pair(qp)?;
            let is_xrc = matches!(p.base.qp_base.qp_type, QPT_XRC_SEND | QPT_XRC_RECV);
            if p.state.load(Ordering::Acquire) == RESET || !p.base.qp_base.srq.is_null() || is_xrc {
                return Err(libc::EINVAL);
            }
            let posted = p.engine.post_recv(&p.qp, recv_wr_of(w, p.cap.max_recv_sge)?);
            if posted { Ok(()) } else { Err(libc::ENOMEM) }
        })
    }
}
