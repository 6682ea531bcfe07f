//! Domains of extended reliable connections (XRC), and the queue pairs of them.

use crate::abi::*;
use crate::completion::Queue;
use crate::device::{MAX_RD_ATOMIC, MAX_SGE, context};
use crate::memory::domain;
use crate::queue_pair::{Made, Pair, check_cap, wrap};
use crate::{errno_of, guarded, guarded_pointer};
use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A domain. Those of the same file are one, within a process.
#[repr(C)]
pub(crate) struct Domain {
    base: ibv_xrcd,
    pub(crate) id: u64,
    /// Queue pairs and receive queues that belong to it.
    pub(crate) users: AtomicU32,
}

impl Domain {
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// # Safety
/// `xrcd` is null or one of ours that is open.
pub(crate) unsafe fn xrc_domain<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Domain, c_int> {
    // SAFETY: the caller's promise.
    unsafe { xrcd.cast::<Domain>().as_ref() }.ok_or(libc::EINVAL)
}

/// The number of the domain of a file; of none, one that is nobody else's.
fn number_of(fd: c_int) -> Result<u64, c_int> {
    static PRIVATE: AtomicU64 = AtomicU64::new(0);
    if fd == -1 {
        return Ok(PRIVATE.fetch_add(1, Ordering::Relaxed) | 1 << 63);
    }
    // SAFETY: integers, for which all zeroes is a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is ours.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return Err(libc::EBADF);
    }
    Ok((stat.st_dev.rotate_left(40) ^ stat.st_ino) & !(1 << 63))
}

pub(crate) unsafe extern "C" fn open_xrcd(
    c: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    /// IBV_XRCD_INIT_ATTR_FD and IBV_XRCD_INIT_ATTR_OFLAGS, which both must be given.
    const BOTH: u32 = 3;
    guarded_pointer(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's context and structure.
        let (ours, a) = unsafe { (context(c)?, attr.as_ref().ok_or(libc::EINVAL)?) };
        crate::process::needs_packets(&ours.engine, "XRC")?;
        if a.comp_mask != BOTH {
            return Err(libc::EINVAL);
        }
        let (base, users) = (ibv_xrcd { context: c }, AtomicU32::new(0));
        Ok(Box::into_raw(Box::new(Domain { base, id: number_of(a.fd)?, users })).cast())
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    guarded(|| {
        // SAFETY: the caller's domain, which nobody uses afterwards.
        unsafe {
            if xrc_domain(xrcd)?.users.load(Ordering::Acquire) > 0 {
                return Err(libc::EBUSY);
            }
            drop(Box::from_raw(xrcd.cast::<Domain>()));
        }
        Ok(())
    })
}

/// A queue pair that sends.
pub(crate) fn create_initiator(pd: *mut ibv_pd, a: &mut ibv_qp_init_attr) -> Result<*mut Pair, c_int> {
    check_cap(&a.cap)?;
    // SAFETY: the caller's domain and queue.
    let ((ours, pd_id), send) =
        unsafe { (domain(pd)?, a.send_cq.cast::<Queue>().as_ref().ok_or(libc::EINVAL)?) };
    crate::process::needs_packets(&ours.engine, "XRC")?;
    (a.cap.max_recv_wr, a.cap.max_recv_sge) = (0, 0);
    let cap = a.cap;
    let qp = ours.engine.create_xrc_initiator(pd_id, &send.cq, |init| {
        init.max_send_wr = (cap.max_send_wr as usize).max(1);
        init.max_recv_wr = 0;
        init.max_sge = MAX_SGE as usize;
        init.max_rd_atomic = MAX_RD_ATOMIC.into();
    });
    let qp = qp.map_err(|e| errno_of(&e))?;
    (a.recv_cq, a.srq) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: `domain` has found it sound.
    let context = unsafe { (*pd).context };
    Ok(wrap(ours, Made { context, pd, xrcd: core::ptr::null_mut(), qp }, a))
}

/// A queue pair that receives, for all receive queues of its domain. A protection domain is only remembered: access is that of
/// the receive queue's.
pub(crate) fn create_target(a: &mut ibv_qp_init_attr_ex, pd: *mut ibv_pd) -> Result<*mut Pair, c_int> {
    crate::process::check_fork()?;
    // SAFETY: the caller's domain.
    let d = unsafe { xrc_domain(a.xrcd)? };
    // SAFETY: the context that it was opened with.
    let ours = unsafe { context(d.base.context)? };
    let qp = ours.engine.create_xrc_target(d.id).map_err(|e| errno_of(&e))?;
    d.enter();
    // SAFETY: both begin with the same fields.
    let attr = unsafe { &mut *(&raw mut *a).cast::<ibv_qp_init_attr>() };
    let none = core::ptr::null_mut();
    (attr.send_cq, attr.recv_cq, attr.srq) = (none, none, core::ptr::null_mut());
    attr.cap = ibv_qp_cap::default();
    let made = Made { context: d.base.context, pd, xrcd: a.xrcd, qp };
    Ok(wrap(ours, made, attr))
}
