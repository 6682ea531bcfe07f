//! Memory windows (InfiniBand, 10.6.7): keys for parts of regions, of type 1 for all of a protection domain and of type 2 for the peer
//! of one queue pair.

use crate::abi::*;
use crate::memory::{access_of, domain, region_of};
use crate::post::Towards;
use crate::queue_pair::pair;
use crate::{errno_of, guarded, guarded_pointer};
use core::ffi::c_int;
use engine::Engine;
use verbs::{Binding, Data, MwId, SendOp, SendWr, Sges, WindowRange};

const TYPE_1: c_int = 1;
const TYPE_2: c_int = 2;
/// IBV_ACCESS_MW_BIND, which a region must have been registered with, and IBV_ACCESS_ZERO_BASED.
const MW_BIND: u32 = 1 << 4;
const ZERO_BASED: u32 = 1 << 5;
/// The bits of a key that are chosen when a window is bound.
const CHOSEN: u32 = 0xff;

#[repr(C)]
struct Window {
    base: ibv_mw,
    id: MwId,
    engine: Engine,
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    guarded_pointer(|| {
        crate::process::check_fork()?;
        if kind != TYPE_1 && kind != TYPE_2 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's domain.
        let (ours, pd_id, context) = unsafe {
            let (ours, id) = domain(pd)?;
            (ours, id, (*pd).context)
        };
        crate::process::needs_packets(&ours.engine, "memory windows")?;
        let (id, rkey) = ours.engine.alloc_mw(pd_id).map_err(|e| errno_of(&e))?;
        let base = ibv_mw { context, pd, rkey, handle: 0, mw_type: kind };
        Ok(Box::into_raw(Box::new(Window { base, id, engine: ours.engine.clone() })).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's window, which nobody uses afterwards.
        unsafe {
            let w = mw.cast::<Window>().as_ref().ok_or(libc::EINVAL)?;
            w.engine.dealloc_mw(w.id).map_err(|e| errno_of(&e))?;
            drop(Box::from_raw(mw.cast::<Window>()));
        }
        Ok(())
    })
}

/// The operation that binds a window of type 2.
///
/// # Safety
/// `mw` is null or a window of ours, and so is the region.
pub(crate) unsafe fn binding(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, c_int> {
    // SAFETY: the caller's promise.
    unsafe { operation(mw, rkey, info, TYPE_2) }
}

/// # Safety
/// As [`binding`].
unsafe fn operation(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
    kind: c_int,
) -> Result<SendOp, c_int> {
    // SAFETY: the caller's promise.
    let (w, region) = unsafe { (mw.cast::<Window>().as_ref().ok_or(libc::EINVAL)?, region_of(info.mr)) };
    if w.base.mw_type != kind || info.mw_access_flags & ZERO_BASED != 0 {
        return Err(libc::EINVAL);
    }
    let access = access_of(info.mw_access_flags)?;
    let (mr, len) = match region {
        Some((mr, flags)) if flags & MW_BIND != 0 => (mr, info.length),
        None if info.length == 0 => (verbs::MrId::of_raw(0), 0),
        _ => return Err(libc::EINVAL),
    };
    let range = WindowRange { mr, offset: info.addr, len, access };
    Ok(SendOp::Bind(Binding { mw: w.id, rkey, range, exclusive: kind == TYPE_2 }))
}

/// `ibv_bind_mw`: binds a window of type 1, by a work request whose key is chosen here.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue pair, window and structure.
        unsafe {
            let (p, b) = (pair(qp)?, bind.as_ref().ok_or(libc::EINVAL)?);
            let base = mw.as_mut().ok_or(libc::EINVAL)?;
            crate::post::check_state(p)?;
            let rkey = base.rkey & !CHOSEN | base.rkey.wrapping_add(1) & CHOSEN;
            let op = operation(mw, rkey, &b.bind_info, TYPE_1)?;
            let wr = SendWr {
                signaled: p.signals_all || b.send_flags & 1 << 1 != 0,
                fence: b.send_flags & 1 != 0,
                ..SendWr::new(b.wr_id, op, Data::Sges(Sges::None))
            };
            crate::post::post_one(p, wr, Towards::Peer)?;
            base.rkey = rkey;
        }
        Ok(())
    })
}
