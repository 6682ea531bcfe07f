//! Protection domains and memory regions.

#![allow(
    clippy::disallowed_methods,
    reason = "deregistration waits for work that is under way, in the program's thread"
)]

use crate::abi::*;
use crate::device::{Context, context};
use crate::{errno_of, guarded, guarded_pointer};
use core::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};
use verbs::{Access, Error, Memory, MrId, PdId};

/// IBV_ACCESS_ZERO_BASED.
const ZERO_BASED: c_uint = 1 << 5;
/// Flags from this bit on are hints that may be ignored (IBV_ACCESS_OPTIONAL_RANGE), and so are on-demand paging and huge pages.
const IGNORED: c_uint = 0x3ff0_0000 | 1 << 6 | 1 << 7;
/// IBV_ACCESS_LOCAL_WRITE to IBV_ACCESS_MW_BIND.
const KNOWN: c_uint = 0x1f | ZERO_BASED;
/// How long deregistration waits for work that uses the memory.
const UNDER_WAY: Duration = Duration::from_secs(10);

#[repr(C)]
pub(crate) struct Domain {
    base: ibv_pd,
    pub(crate) id: PdId,
}

#[repr(C)]
struct Region {
    base: ibv_mr,
    id: MrId,
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

fn access_of(flags: c_uint) -> Result<Access, c_int> {
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
    let page = 4096;
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
    let base = if flags & ZERO_BASED != 0 { 0 } else { base };
    let writable = access.contains(Access::LOCAL_WRITE);
    // SAFETY: a program that registers memory promises to keep it until it deregisters it, as with any adapter.
    let memory: Memory = unsafe { engine::memory::of_program(addr.cast(), len, writable) };
    // SAFETY: the caller's domain.
    let (ours, id) = unsafe { domain(pd)? };
    let mr = ours.engine.reg_mr(id, memory, base, access).map_err(|e| errno_of(&e))?;
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
    Ok(Box::into_raw(Box::new(Region { base, id: mr.id })).cast())
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
        // Work that uses it is finished first, or ends with its queue pair.
        while let Err(e) = ours.engine.dereg_mr(id) {
            if !matches!(e, Error::Busy(_)) || start.elapsed() > UNDER_WAY {
                return Err(errno_of(&e));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(mr.cast::<Region>()) });
        Ok(())
    })
}
