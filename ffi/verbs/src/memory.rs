//! Protection domains and memory regions.

#![allow(
    clippy::disallowed_methods,
    reason = "deregistration waits for work that is under way, in the program's thread"
)]

use crate::abi::*;
use crate::device::{Context, context};
use crate::{errno_of, guarded, guarded_errno, guarded_pointer};
use core::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};
use verbs::{Access, Memory, MrId, PdId};

/// IBV_ACCESS_ZERO_BASED.
const ZERO_BASED: c_uint = 1 << 5;
/// Flags from this bit on are hints that may be ignored (IBV_ACCESS_OPTIONAL_RANGE), and so are on-demand paging and huge pages.
const IGNORED: c_uint = 0x3ff0_0000 | 1 << 6 | 1 << 7;
/// IBV_ACCESS_LOCAL_WRITE to IBV_ACCESS_MW_BIND.
const KNOWN: c_uint = 0x1f | ZERO_BASED;
/// How long deregistration waits for work that uses the memory.
const UNDER_WAY: Duration = Duration::from_secs(5);

#[repr(C)]
pub(crate) struct Domain {
    base: ibv_pd,
    pub(crate) id: PdId,
}

#[repr(C)]
struct Region {
    base: ibv_mr,
    id: MrId,
    /// What its first byte is called, and what it was registered for.
    iova: u64,
    flags: c_uint,
}

/// A region and what it was registered for. None: null.
///
/// # Safety
/// `mr` is null or a region of ours that is registered.
pub(crate) unsafe fn region_of(mr: *mut ibv_mr) -> Option<(MrId, c_uint)> {
    // SAFETY: the caller's promise.
    unsafe { mr.cast::<Region>().as_ref() }.map(|r| (r.id, r.flags))
}

/// # Safety
/// `pd` is null or one that [`lh_ibv_alloc_pd`] gave and that is not deallocated.
pub(crate) unsafe fn domain<'a>(pd: *mut ibv_pd) -> Result<(&'a Context, PdId), c_int> {
    if pd.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { Ok((context((*pd).context)?, (*pd.cast::<Domain>()).id)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_alloc_pd(c: *mut ibv_context) -> *mut ibv_pd {
    guarded_pointer(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's context.
        let ours = unsafe { context(c)? };
        let id = ours.engine.alloc_pd().map_err(|e| errno_of(&e))?;
        Ok(Box::into_raw(Box::new(Domain { base: ibv_pd { context: c, handle: 0 }, id })).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guarded(|| {
        // SAFETY: the caller's domain, which nobody uses afterwards.
        unsafe {
            let (ours, id) = domain(pd)?;
            ours.engine.dealloc_pd(id).map_err(|e| errno_of(&e))?;
            drop(Box::from_raw(pd.cast::<Domain>()));
        }
        Ok(())
    })
}

pub(crate) fn access_of(flags: c_uint) -> Result<Access, c_int> {
    if flags & !(KNOWN | IGNORED) != 0 {
        return Err(libc::EINVAL);
    }
    let rights = [
        (1, Access::LOCAL_WRITE),
        (2, Access::REMOTE_WRITE),
        (4, Access::REMOTE_READ),
        (8, Access::REMOTE_ATOMIC),
    ];
    let given = rights.iter().filter(|(bit, _)| flags & bit != 0);
    Ok(given.fold(Access::LOCAL_READ, |all, (_, right)| all | *right))
}

/// Whether all pages of a range are mapped, without a look at them.
fn is_mapped(addr: *mut c_void, len: usize) -> bool {
    // SAFETY: it asks for a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let first = addr as usize & !(page - 1);
    let Some(end) = (addr as usize).checked_add(len) else { return false };
    // SAFETY: it changes nothing: for memory that no file is behind it does nothing, and for a file's it begins to write what was
    // changed. It fails where something is not mapped.
    unsafe { libc::msync(first as *mut c_void, end - first, libc::MS_ASYNC) == 0 }
}

fn register(
    pd: *mut ibv_pd,
    (addr, len): (*mut c_void, usize),
    base: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    crate::process::check_fork()?;
    let access = access_of(flags)?;
    if len > 0 && !is_mapped(addr, len) {
        return Err(libc::EFAULT);
    }
    let iova = if flags & ZERO_BASED != 0 { 0 } else { base };
    let writable = access.contains(Access::LOCAL_WRITE);
    // SAFETY: a program that registers memory promises to keep it until it deregisters it, as with any adapter.
    let memory: Memory = unsafe { engine::memory::of_program(addr.cast(), len, writable) };
    // SAFETY: the caller's domain.
    let (ours, id) = unsafe { domain(pd)? };
    let mr = ours.engine.reg_mr(id, memory, iova, access).map_err(|e| errno_of(&e))?;
    let base = ibv_mr {
        // SAFETY: `domain` has found it sound.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length: len,
        handle: 0,
        lkey: mr.lkey,
        rkey: mr.rkey,
    };
    Ok(Box::into_raw(Box::new(Region { base, id: mr.id, iova, flags })).cast())
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, flags: c_int) -> *mut ibv_mr {
    guarded_pointer(|| register(pd, (addr, len), addr as u64, flags as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    guarded_pointer(|| register(pd, (addr, len), iova, flags as c_uint))
}

/// There is no device that could reach memory of another one. The error is the one by which programs tell that from a failure.
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    guarded_pointer(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    guarded_pointer(|| register(pd, (addr, len), iova, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guarded(|| {
        if mr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's region, which nobody uses afterwards.
        let (ours, id) = unsafe { (context((*mr).context)?, (*mr.cast::<Region>()).id) };
        let start = Instant::now();
        if ours.engine.is_shown(id) {
            return Err(libc::EBUSY);
        }
        // Sends and answers that use it may finish first, since what was lost of them is sent again. Receives wait for ever: they
        // fail when a message comes for them, as with an adapter.
        while ours.engine.is_mr_in_use(id) && start.elapsed() < UNDER_WAY {
            std::thread::sleep(Duration::from_micros(100));
        }
        ours.engine.revoke_mr(id).map_err(|e| errno_of(&e))?;
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(mr.cast::<Region>()) });
        Ok(())
    })
}

/// Gives a region other memory, another domain or other rights; its keys stay. When that fails nothing has changed, which -1 says
/// (IBV_REREG_MR_ERR_INPUT).
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_rereg_mr(
    mr: *mut ibv_mr,
    what: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    guarded_errno(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's region, which no other thread uses meanwhile.
        let r = unsafe { mr.cast::<Region>().as_mut() }.ok_or(libc::EINVAL)?;
        let moves = what & TRANSLATION != 0;
        if what == 0 || what & !(TRANSLATION | PD | ACCESS) != 0 || moves && !is_mapped(addr, len) {
            return Err(libc::EINVAL);
        }
        let pd = if what & PD != 0 { pd } else { r.base.pd };
        let flags = if what & ACCESS != 0 { flags as c_uint } else { r.flags };
        let access = access_of(flags)?;
        let writable = access.contains(Access::LOCAL_WRITE);
        let (first, len) = if moves { (addr, len) } else { (r.base.addr, r.base.length) };
        let iova = if moves { addr as u64 } else { r.iova };
        // SAFETY: as when memory is registered.
        let memory = unsafe { engine::memory::of_program(first.cast(), len, writable) };
        // SAFETY: the caller's domain.
        let (ours, pd_id) = unsafe { domain(pd)? };
        ours.engine.rereg_mr(r.id, pd_id, access, Some((memory, iova))).map_err(|e| errno_of(&e))?;
        (r.base.pd, r.base.addr, r.base.length, r.iova, r.flags) = (pd, first, len, iova, flags);
        Ok(())
    })
}
