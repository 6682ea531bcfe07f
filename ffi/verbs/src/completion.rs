//! Completion channels and completion queues.

use crate::abi::*;
use crate::device::{MAX_CQE, context};
use crate::{errno_of, guarded, guarded_errno, guarded_pointer};
use core::ffi::{c_int, c_uint, c_void};
use engine::{Channel, Completion, CompletionQueue, Engine};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use verbs::{Opcode, Status};

/// IBV_WC_WITH_IMM; IBV_WC_GRH is 1.
pub(crate) const WITH_IMM: c_uint = 1 << 1;
/// IBV_WC_WITH_INV: the number is a key that was made void.
const WITH_INV: c_uint = 1 << 3;

/// Packets of RoCE version 2 over IPv6; over IPv4 it is one more.
const ROCE_V2_IPV6: u8 = 1;

#[repr(C)]
struct CompChannel {
    base: ibv_comp_channel,
    channel: Arc<Channel>,
}

/// A completion queue: what programs know as `ibv_cq` and `ibv_cq_ex` is its first field.
#[repr(C)]
pub(crate) struct Queue {
    pub(crate) base: ibv_cq_ex,
    pub(crate) engine: Engine,
    pub(crate) cq: Arc<CompletionQueue>,
    /// The completion that the program looks at (`ibv_start_poll`).
    pub(crate) current: Option<ibv_wc>,
    /// Events given out that were not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_create_comp_channel(c: *mut ibv_context) -> *mut ibv_comp_channel {
    guarded_pointer(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        let channel = Channel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?;
        let base = ibv_comp_channel { context: c, fd: channel.raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(CompChannel { base, channel })).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_destroy_comp_channel(ch: *mut ibv_comp_channel) -> c_int {
    guarded(|| {
        if ch.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's channel, which nobody uses afterwards.
        unsafe {
            if (*ch).refcnt > 0 {
                return Err(libc::EBUSY);
            }
            drop(Box::from_raw(ch.cast::<CompChannel>()));
        }
        Ok(())
    })
}

/// Makes a completion queue for both interfaces.
pub(crate) fn create(
    c: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut Queue, c_int> {
    crate::process::check_fork()?;
    // SAFETY: the caller's context.
    let ours = unsafe { context(c)? };
    if cqe <= 0 || cqe as u32 > MAX_CQE || vector != 0 {
        return Err(libc::EINVAL);
    }
    let made = Box::into_raw(Box::<Queue>::new_uninit());
    let tells = if channel.is_null() {
        None
    } else {
        // SAFETY: the caller's channel.
        unsafe {
            (*channel).refcnt += 1;
            Some(((*channel.cast::<CompChannel>()).channel.clone(), made as u64))
        }
    };
    let cq = ours.engine.create_cq(cqe as usize, tells);
    let cq = match cq {
        Ok(cq) => cq,
        Err(e) => {
            // SAFETY: it was made above, and holds nothing yet.
            drop(unsafe { Box::from_raw(made) });
            return Err(errno_of(&e));
        }
    };
    // SAFETY: integers and pointers, for which all zeroes is a value.
    let mut base: ibv_cq_ex = unsafe { core::mem::zeroed() };
    (base.base.context, base.base.channel, base.base.cq_context) = (c, channel, cq_context);
    (base.base.cqe, base.base.mutex, base.base.cond) =
        (cqe, libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER);
    let (unacknowledged, acknowledged) = (Mutex::new(0), Condvar::new());
    let queue = Queue { base, engine: ours.engine.clone(), cq, current: None, unacknowledged, acknowledged };
    // SAFETY: as above.
    unsafe {
        (*made).write(queue);
    }
    Ok(made.cast())
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_create_cq(
    c: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    guarded_pointer(|| Ok(create(c, cqe, cq_context, channel, vector)?.cast()))
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue.
        let queue = unsafe { cq.cast::<Queue>().as_mut() }.ok_or(libc::EINVAL)?;
        if cqe <= 0 || cqe as u32 > MAX_CQE {
            return Err(libc::EINVAL);
        }
        queue.engine.resize_cq(&queue.cq, cqe as usize).map_err(|e| errno_of(&e))?;
        queue.base.base.cqe = cqe;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    guarded(|| {
        if cq.is_null() {
            return Err(libc::EINVAL);
        }
        let queue: *mut Queue = cq.cast();
        // SAFETY: the caller's queue, which nobody uses afterwards.
        unsafe {
            (*queue).engine.destroy_cq(&(*queue).cq).map_err(|e| errno_of(&e))?;
            let ch = (*cq).channel;
            if !ch.is_null() {
                (*ch.cast::<CompChannel>()).channel.forget(queue as u64);
                (*ch).refcnt -= 1;
            }
            let mut open = (*queue).unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
            while *open > 0 {
                open = (*queue).acknowledged.wait(open).unwrap_or_else(PoisonError::into_inner);
            }
            drop(open);
            drop(Box::from_raw(queue));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_get_cq_event(
    ch: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guarded_errno(|| {
        if ch.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's channel; what is told on it is a queue that was not destroyed, since that forgets its events.
        unsafe {
            let number = (*ch.cast::<CompChannel>())
                .channel
                .take()
                .map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
            let queue = number as *mut Queue;
            *(*queue).unacknowledged.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            *cq = queue.cast();
            *cq_context = (*queue).base.base.cq_context;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    if cq.is_null() {
        return;
    }
    let queue: *mut Queue = cq.cast();
    // SAFETY: the caller's queue.
    let queue = unsafe { &*queue };
    let mut open = queue.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
    *open = open.saturating_sub(n);
    queue.acknowledged.notify_all();
}

pub(crate) const fn status_of(s: Status) -> c_int {
    match s {
        Status::Success | Status::LossReported { .. } => 0,
        Status::LocalLength => 1,
        Status::LocalProtection => 4,
        Status::FlushError => 5,
        Status::WindowBind => 6,
        Status::RemoteInvalidRequest => 9,
        Status::RemoteAccess => 10,
        Status::RemoteOperation => 11,
        Status::TransportFailed => 12,
        Status::ReceiverNotReady => 13,
    }
}

const fn opcode_of(o: Opcode) -> c_int {
    match o {
        Opcode::Send => 0,
        Opcode::Write => 1,
        Opcode::Read => 2,
        Opcode::CompareSwap => 3,
        Opcode::FetchAdd => 4,
        Opcode::Bind => 5,
        Opcode::LocalInvalidate => 6,
        Opcode::Recv => 128,
        Opcode::RecvWriteImm => 129,
    }
}

const fn flag(is_set: bool, bit: c_uint) -> c_uint {
    if is_set { bit } else { 0 }
}

pub(crate) fn wc_of(c: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: c.wr_id,
        status: status_of(c.status),
        opcode: opcode_of(c.opcode),
        vendor_err: 0,
        byte_len: u32::try_from(c.byte_len).unwrap_or(u32::MAX),
        imm_data: c.invalidated.unwrap_or_else(|| c.imm.unwrap_or(0).to_be()),
        qp_num: c.number,
        src_qp: c.peer,
        wc_flags: flag(c.imm.is_some(), WITH_IMM)
            | flag(c.invalidated.is_some(), WITH_INV)
            | flag(c.has_grh, 1),
        pkey_index: 0,
        slid: 0,
        // The kind of RoCE packet, as adapters have it there: UCX tells by it which part of the routing header counts.
        sl: if c.has_grh { ROCE_V2_IPV6 + u8::from(c.is_v4) } else { 0 },
        dlid_path_bits: 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    let mut n = 0;
    let failed = guarded(|| {
        // SAFETY: the caller's queue.
        let queue = unsafe { cq.cast::<Queue>().as_ref() }.ok_or(libc::EINVAL)?;
        crate::process::check_fork()?;
        while n < most {
            let next = if n == 0 { queue.engine.poll(&queue.cq) } else { queue.cq.take() };
            let Some(c) = next else { break };
            // SAFETY: the caller has room for `most`.
            unsafe { out.add(n as usize).write(wc_of(&c)) };
            n += 1;
        }
        Ok(())
    });
    if failed == 0 { n } else { -1 }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue.
        let queue = unsafe { cq.cast::<Queue>().as_ref() }.ok_or(libc::EINVAL)?;
        crate::process::check_fork()?;
        queue.engine.arm(&queue.cq, solicited_only != 0);
        Ok(())
    })
}
