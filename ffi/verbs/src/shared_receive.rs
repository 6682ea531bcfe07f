//! Shared receive queues.

use crate::abi::*;
use crate::completion::Queue;
use crate::device::MAX_SGE;
use crate::memory::domain;
use crate::xrc::xrc_domain;
use crate::{errno_of, guarded, guarded_pointer};
use core::ffi::c_int;
use engine::Engine;
use std::sync::atomic::{AtomicU32, Ordering};
use verbs::SrqId;

#[repr(C)]
pub(crate) struct Shared {
    base: ibv_srq,
    engine: Engine,
    pub(crate) id: SrqId,
    /// Of XRC: the number by which peers name it, and its domain.
    named: Option<(u32, *mut ibv_xrcd)>,
    max_wr: u32,
    max_sge: u32,
    limit: AtomicU32,
}

fn create(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<*mut Shared, c_int> {
    crate::process::check_fork()?;
    // SAFETY: the caller's domain and structure.
    let ((ours, pd_id), init) = unsafe { (domain(pd)?, init.as_mut().ok_or(libc::EINVAL)?) };
    let a = &mut init.attr;
    if a.max_wr == 0 || a.max_wr > 1 << 20 || a.max_sge > MAX_SGE {
        return Err(libc::EINVAL);
    }
    a.max_sge = a.max_sge.max(1);
    let (id, named) = match xrc {
        None => (ours.engine.create_srq(pd_id, a.max_wr as usize).map_err(|e| errno_of(&e))?, None),
        Some((xrcd, cq)) => {
            // SAFETY: the caller's domain and queue.
            let (d, cq) = unsafe { (xrc_domain(xrcd)?, cq.cast::<Queue>().as_ref().ok_or(libc::EINVAL)?) };
            let made = ours.engine.create_xrc_srq(pd_id, a.max_wr as usize, &cq.cq, d.id);
            let (id, number) = made.map_err(|e| errno_of(&e))?;
            d.enter();
            (id, Some((number, xrcd)))
        }
    };
    let base = ibv_srq {
        // SAFETY: `domain` has found it sound.
        context: unsafe { (*pd).context },
        srq_context: init.srq_context,
        pd,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let (max_wr, max_sge, limit) = (a.max_wr, a.max_sge, AtomicU32::new(0));
    let made = Box::into_raw(Box::new(Shared {
        base,
        engine: ours.engine.clone(),
        id,
        named,
        max_wr,
        max_sge,
        limit,
    }));
    crate::async_event::know_shared(id, made.cast(), &ours.events);
    Ok(made)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guarded_pointer(|| Ok(create(pd, init, None)?.cast()))
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// IBV_SRQ_INIT_ATTR_TYPE, _PD, _XRCD and _CQ; IBV_SRQT_BASIC and IBV_SRQT_XRC.
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    const XRCD: u32 = 1 << 2;
    const CQ: u32 = 1 << 3;
    const XRC: c_int = 1;
    guarded_pointer(|| {
        // SAFETY: the caller's structure.
        let a = unsafe { init.as_mut() }.ok_or(libc::EINVAL)?;
        let xrc = match (a.comp_mask, a.srq_type) {
            (mask, 0) if mask & TYPE != 0 && mask & !(TYPE | PD) == 0 => None,
            (PD, _) => None,
            (mask, XRC) if mask == TYPE | PD | XRCD | CQ => Some((a.xrcd, a.cq)),
            _ => return Err(libc::EOPNOTSUPP),
        };
        if a.comp_mask & PD == 0 {
            return Err(libc::EINVAL);
        }
        // Both begin with the same fields.
        Ok(create(a.pd, (&raw mut *a).cast(), xrc)?.cast())
    })
}

/// # Safety
/// `srq` is null or one of ours that is not destroyed.
unsafe fn shared<'a>(srq: *mut ibv_srq) -> Result<&'a Shared, c_int> {
    // SAFETY: the caller's promise.
    unsafe { srq.cast::<Shared>().as_ref() }.ok_or(libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, set: c_int) -> c_int {
    /// IBV_SRQ_LIMIT.
    const LIMIT: c_int = 1 << 1;
    guarded(|| {
        // SAFETY: the caller's queue and structure.
        let (s, a) = unsafe { (shared(srq)?, attr.as_ref().ok_or(libc::EINVAL)?) };
        if set & !LIMIT != 0 || a.srq_limit > s.max_wr {
            return Err(libc::EINVAL);
        }
        if set & LIMIT != 0 {
            s.engine.arm_srq_limit(s.id, a.srq_limit as usize).map_err(|e| errno_of(&e))?;
            s.limit.store(a.srq_limit, Ordering::Relaxed);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue and structure.
        unsafe {
            let s = shared(srq)?;
            let srq_limit = s.limit.load(Ordering::Relaxed);
            attr.write(ibv_srq_attr { max_wr: s.max_wr, max_sge: s.max_sge, srq_limit });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue, which nobody uses afterwards.
        unsafe {
            let s = shared(srq)?;
            s.engine.destroy_srq(s.id).map_err(|e| errno_of(&e))?;
            crate::async_event::forget_shared(s.id);
            if let Some((_, xrcd)) = s.named {
                xrc_domain(xrcd)?.leave();
            }
            drop(Box::from_raw(srq.cast::<Shared>()));
        }
        Ok(())
    })
}

/// The number by which peers name a receive queue of XRC.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, out: *mut u32) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue and variable.
        unsafe {
            let (number, _) = shared(srq)?.named.ok_or(libc::EOPNOTSUPP)?;
            out.write(number);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue and list, here and in what is called for each.
    unsafe {
        crate::post::post_list(first, bad, |w| {
            let s = shared(srq)?;
            let wr = crate::post::recv_wr_of(w, s.max_sge)?;
            s.engine.post_srq_recv(s.id, wr).map_err(|e| errno_of(&e))
        })
    }
}
