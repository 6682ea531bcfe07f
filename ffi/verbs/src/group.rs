//! Groups of datagram queue pairs (multicast).

use crate::abi::*;
use crate::connection_manager::manager;
use crate::device::from_gid;
use crate::queue_pair::pair;
use crate::{errno_of, guarded};
use core::ffi::c_int;
use std::net::IpAddr;

/// The group of a GID, and the queue pair, which is one of datagrams.
///
/// # Safety
/// `qp` is null or one of ours; `gid` is null or the caller's.
unsafe fn of<'a>(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
) -> Result<(&'a crate::queue_pair::Pair, IpAddr), c_int> {
    // SAFETY: the caller's promise.
    let (p, gid) = unsafe { (pair(qp)?, gid.as_ref().ok_or(libc::EINVAL)?) };
    let group = from_gid(gid);
    let is_right = p.base.qp_base.qp_type == QPT_UD && group.is_multicast();
    if is_right { Ok((p, group)) } else { Err(libc::EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _: u16) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue pair and address.
        let (p, group) = unsafe { of(qp, gid)? };
        let manager = manager()?;
        if p.groups().contains(&group) {
            // It is in already, as with the kernel.
            return Ok(());
        }
        manager.join_group(group).map_err(|e| e.0)?;
        p.engine.set_member(&p.qp, group, true).map_err(|e| {
            manager.leave_group(group);
            errno_of(&e)
        })?;
        p.groups().push(group);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _: u16) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue pair and address.
        let (p, group) = unsafe { of(qp, gid)? };
        let manager = manager()?;
        let at = p.groups().iter().position(|g| *g == group).ok_or(libc::EINVAL)?;
        p.groups().swap_remove(at);
        let left = p.engine.set_member(&p.qp, group, false);
        manager.leave_group(group);
        left.map_err(|e| errno_of(&e))
    })
}
