//! `libibverbs.so.1` over Longhaul: the interface of rdma-core 44, for programs that exist.
//!
//! Programs find it by `LD_LIBRARY_PATH`, which `longhaul run` sets. It shows one device, `longhaul0`, whose GIDs are the host's
//! addresses. `exports.txt` lists what it exports, with versions; functions here carry the same names behind `lh_`, and `cargo xtask
//! ffi` joins the two. What is not served answers ENOSYS.
//!
//! Fast paths (`post_send`, `post_recv`, `poll_cq`) go through the tables in `ibv_context`, as programs were compiled to.

pub mod abi;
mod address_handle;
mod async_event;
mod completion;
mod completion_ex;
mod connection_manager;
mod device;
mod from_kernel;
mod governor;
mod group;
mod memory;
mod post;
mod post_ex;
mod process;
mod queue_pair;
mod retries;
mod shared_receive;
mod sysfs;
mod text;
mod window;
mod xrc;

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function that C calls: a panic becomes EIO, since none may cross the interface.
fn guarded(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => libc::EIO,
    }
}

/// The same of a function that gives a pointer: null, and `errno` says why.
fn guarded_pointer<T>(body: impl FnOnce() -> Result<*mut T, c_int>) -> *mut T {
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(p)) => return p,
        Ok(Err(code)) => code,
        Err(_) => libc::EIO,
    };
    set_errno(code);
    core::ptr::null_mut()
}

/// The same of a function that gives -1 and sets `errno`.
fn guarded_errno(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match guarded(body) {
        0 => 0,
        code => {
            set_errno(code);
            -1
        }
    }
}

fn set_errno(code: c_int) {
    // SAFETY: the C library's variable of this thread.
    unsafe { *libc::__errno_location() = code };
}

/// The `errno` for an error of ours.
fn errno_of(e: &verbs::Error) -> c_int {
    use verbs::Error;
    match e {
        Error::Busy(_) => libc::EBUSY,
        Error::Limit(_) | Error::QueueFull | Error::CqFull => libc::ENOMEM,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}
