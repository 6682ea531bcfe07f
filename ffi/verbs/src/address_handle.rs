//! Address handles.

use crate::abi::*;
use crate::memory::domain;
use crate::{guarded, guarded_pointer};
use core::ffi::{c_int, c_void};

/// `ibv_ah` of the header, and what it was made from.
#[repr(C)]
struct AddressHandle {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    handle: u32,
    attr: ibv_ah_attr,
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
