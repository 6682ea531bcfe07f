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
        _ => return Err(libc::EINVAL),
    };
    let is_answered = matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
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
unsafe fn destination_of(p: &Pair, w: &ibv_send_wr) -> Result<Destination, c_int> {
    /// With this bit in the work request's Q_Key, the queue pair's own is meant.
    const OWN: u32 = 1 << 31;
    // SAFETY: the caller's address handle.
    let (own, host) = unsafe { crate::address_handle::route(w.remote_addr as *const _)? };
    let (number, q_key) = (w.second as u32, (w.second >> 32) as u32);
    Ok(Destination { own, host, number, q_key: if q_key & OWN != 0 { p.attr.qkey } else { q_key } })
}

/// Posts one work request.
unsafe fn post_one(p: &Pair, w: &ibv_send_wr) -> Result<(), c_int> {
    // SAFETY: the caller's list.
    let wr = unsafe { send_wr_of(p, w)? };
    let posted = if p.base.qp_base.qp_type == QPT_UD {
        if !matches!(wr.op, SendOp::Send | SendOp::SendImm { .. }) {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        p.engine.post_datagram(&p.qp, wr, unsafe { destination_of(p, w)? })
    } else {
        p.engine.post_send(&p.qp, wr)
    };
    if posted { Ok(()) } else { Err(libc::ENOMEM) }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = first;
    let failed = guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue pair and list.
        unsafe {
            let p = pair(qp)?;
            check_state(p)?;
            while let Some(w) = at.as_ref() {
                post_one(p, w)?;
                at = w.next;
            }
        }
        Ok(())
    });
    if failed != 0 && !bad.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *bad = at };
    }
    failed
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
    let mut at = first;
    let failed = guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue pair and list.
        unsafe {
            let p = pair(qp)?;
            if p.state.load(Ordering::Acquire) == RESET || !p.base.qp_base.srq.is_null() {
                return Err(libc::EINVAL);
            }
            while let Some(w) = at.as_ref() {
                if !p.engine.post_recv(&p.qp, recv_wr_of(w, p.cap.max_recv_sge)?) {
                    return Err(libc::ENOMEM);
                }
                at = w.next;
            }
        }
        Ok(())
    });
    if failed != 0 && !bad.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *bad = at };
    }
    failed
}
