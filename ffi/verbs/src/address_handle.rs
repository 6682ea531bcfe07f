//! Address handles.

use crate::abi::*;
use crate::device::{from_gid, gid_at, gids, to_gid};
use crate::memory::domain;
use crate::{guarded, guarded_pointer};
use core::ffi::{c_int, c_void};
use std::net::IpAddr;

/// `ibv_ah` of the header, and what it was made from.
#[repr(C)]
struct AddressHandle {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    handle: u32,
    attr: ibv_ah_attr,
}

/// From which address of ours, and to which, an address handle leads, and the code point of its traffic class.
///
/// # Safety
/// `ah` is null or a handle that was created here and is not destroyed.
pub(crate) unsafe fn route(ah: *const c_void) -> Result<(IpAddr, IpAddr, u8), c_int> {
    // SAFETY: the caller's promise.
    let ah = unsafe { ah.cast::<AddressHandle>().as_ref() }.ok_or(libc::EINVAL)?;
    let own = gid_at(ah.attr.grh.sgid_index.into()).ok_or(libc::EINVAL)?;
    Ok((own, from_gid(&ah.attr.grh.dgid), ah.attr.grh.traffic_class >> 2))
}

/// The address to answer a datagram at, by the routing header in front of it.
///
/// # Safety
/// `wc` and `grh` are null or the caller's; `grh` has 40 bytes.
unsafe fn answer_to(
    port: u8,
    wc: *const ibv_wc,
    grh: *const [u8; engine::GRH],
) -> Result<ibv_ah_attr, c_int> {
    // SAFETY: the caller's promise.
    let (wc, grh) = unsafe { (wc.as_ref().ok_or(libc::EINVAL)?, grh.as_ref().ok_or(libc::EINVAL)?) };
    if wc.wc_flags & 1 == 0 {
        return Err(libc::EINVAL);
    }
    let v4 = |at: usize| IpAddr::from([grh[at], grh[at + 1], grh[at + 2], grh[at + 3]]);
    let v6 = |at: usize| grh.get(at..at + 16).and_then(|b| <[u8; 16]>::try_from(b).ok()).map(IpAddr::from);
    let (from, to, traffic_class) = if grh[20] >> 4 == 4 && grh[0] >> 4 != 6 {
        (v4(32), v4(36), grh[21])
    } else {
        (v6(8).ok_or(libc::EINVAL)?, v6(24).ok_or(libc::EINVAL)?, grh[0] << 4 | grh[1] >> 4)
    };
    let index = gids().iter().position(|(a, _)| *a == to.to_canonical()).ok_or(libc::EINVAL)?;
    let mut attr = ibv_ah_attr { is_global: 1, port_num: port, sl: wc.sl, ..ibv_ah_attr::default() };
    attr.grh.dgid = to_gid(from.to_canonical());
    attr.grh.sgid_index = u8::try_from(index).map_err(|_| libc::EINVAL)?;
    attr.grh.traffic_class = traffic_class;
    attr.grh.hop_limit = 64;
    Ok(attr)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_init_ah_from_wc(
    _: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const [u8; engine::GRH],
    out: *mut ibv_ah_attr,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's structures.
        unsafe { out.write(answer_to(port, wc, grh)?) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *const ibv_wc,
    grh: *const [u8; engine::GRH],
    port: u8,
) -> *mut c_void {
    // SAFETY: the caller's structures.
    guarded_pointer(|| unsafe {
        let mut attr = answer_to(port, wc, grh)?;
        Ok(lh_ibv_create_ah(pd, &raw mut attr))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut c_void {
    guarded_pointer(|| {
        // SAFETY: the caller's domain and structure.
        unsafe {
            domain(pd)?;
            let attr = *attr.as_ref().ok_or(libc::EINVAL)?;
            if attr.is_global == 0 || attr.port_num != 1 {
                return Err(libc::EINVAL);
            }
            if from_gid(&attr.grh.dgid).is_multicast() {
                // It finds the members of groups.
                crate::connection_manager::manager()?;
            }
            let ah = AddressHandle { context: (*pd).context, pd, handle: 0, attr };
            Ok(Box::into_raw(Box::new(ah)).cast())
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_destroy_ah(ah: *mut c_void) -> c_int {
    guarded(|| {
        if ah.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's handle, which nobody uses afterwards.
        drop(unsafe { Box::from_raw(ah.cast::<AddressHandle>()) });
        Ok(())
    })
}
