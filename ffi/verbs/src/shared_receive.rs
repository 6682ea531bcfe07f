//! Shared receive queues.

use crate::abi::*;
use crate::device::MAX_SGE;
use crate::memory::domain;
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
    max_wr: u32,
    max_sge: u32,
    limit: AtomicU32,
}

fn create(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> Result<*mut Shared, c_int> {
    crate::process::check_fork()?;
    // SAFETY: the caller's domain and structure.
    let ((ours, pd_id), init) = unsafe { (domain(pd)?, init.as_mut().ok_or(libc::EINVAL)?) };
    let a = &mut init.attr;
    if a.max_wr == 0 || a.max_wr > 1 << 20 || a.max_sge > MAX_SGE {
        return Err(libc::EINVAL);
    }
    a.max_sge = a.max_sge.max(1);
    let id = ours.engine.create_srq(pd_id, a.max_wr as usize).map_err(|e| errno_of(&e))?;
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
    let made =
        Box::into_raw(Box::new(Shared { base, engine: ours.engine.clone(), id, max_wr, max_sge, limit }));
    crate::async_event::know_shared(id, made.cast(), &ours.events);
    Ok(made)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guarded_pointer(|| Ok(create(pd, init)?.cast()))
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// IBV_SRQ_INIT_ATTR_TYPE and IBV_SRQ_INIT_ATTR_PD.
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    guarded_pointer(|| {
        // SAFETY: the caller's structure.
        let a = unsafe { init.as_mut() }.ok_or(libc::EINVAL)?;
        let is_basic = a.comp_mask & TYPE == 0 || a.srq_type == 0;
        if a.comp_mask & PD == 0 || a.comp_mask & !(TYPE | PD) != 0 || !is_basic {
            return Err(libc::EOPNOTSUPP);
        }
        // Both begin with the same fields.
        Ok(create(a.pd, (&raw mut *a).cast())?.cast())
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
            drop(Box::from_raw(srq.cast::<Shared>()));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = first;
    let failed = guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue and list.
        unsafe {
            let s = shared(srq)?;
            while let Some(w) = at.as_ref() {
                let wr = crate::post::recv_wr_of(w, s.max_sge)?;
                s.engine.post_srq_recv(s.id, wr).map_err(|e| errno_of(&e))?;
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
