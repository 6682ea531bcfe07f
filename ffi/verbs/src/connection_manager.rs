//! The connection manager of `ffi/rdmacm`, for the preloaded object: it cannot have one of its own, which would need this engine.

use crate::device::{GUID, gids};
use crate::{guarded_errno, process};
use core::ffi::{c_int, c_void};
use rdmacm::process::{ConnectionManager, Device};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Commands are no longer than this.
const MAX_COMMAND: usize = 1 << 16;

static MANAGER: OnceLock<ConnectionManager> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// The one of this process, which is started when there is none.
pub(crate) fn manager() -> Result<&'static ConnectionManager, c_int> {
    process::check_fork()?;
    let engine = process::engine()?;
    let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(m) = MANAGER.get() {
        return Ok(m);
    }
    crate::async_event::listen(&engine);
    let device = Device { gids: || gids().iter().map(|(a, _)| *a).collect(), guid: GUID.to_be() };
    let m = ConnectionManager::start(engine, process::services()?, device).map_err(|e| e.0)?;
    Ok(MANAGER.get_or_init(|| m))
}

/// Opens `/dev/infiniband/rdma_cm`.
#[unsafe(no_mangle)]
extern "C" fn lh_longhaul_cm_open(flags: c_int) -> c_int {
    let mut fd = -1;
    let failed = guarded_errno(|| {
        fd = manager()?.open(flags).map_err(|e| e.0)?;
        Ok(())
    });
    if failed == 0 { fd } else { -1 }
}

/// Writes a command to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_longhaul_cm_write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    let mut written = 0;
    let failed = guarded_errno(|| {
        process::check_fork()?;
        if bytes.is_null() {
            return Err(libc::EFAULT);
        }
        if len > MAX_COMMAND {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's bytes, as many as it says.
        let bytes = unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), len) };
        written = MANAGER.get().ok_or(libc::EBADF)?.write(fd, bytes).map_err(|e| e.0)?;
        Ok(())
    });
    // SAFETY: the C library's variable of this thread.
    while failed != 0 && unsafe { *libc::__errno_location() } == libc::EBADF && process::is_ending() {
        // Programs close the descriptor and end while a thread of theirs goes on to wait for events (rping). The kernel ends such a
        // thread at once; here it must not end the process with its own status while peers are told.
        // SAFETY: it takes nothing.
        unsafe { libc::pause() };
    }
    if failed == 0 { written as isize } else { -1 }
}

/// Its descriptor is about to be closed.
#[unsafe(no_mangle)]
extern "C" fn lh_longhaul_cm_close(fd: c_int) {
    // A child's copy is not the parent's.
    if process::check_fork().is_ok()
        && let Some(m) = MANAGER.get()
    {
        let _ = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| m.close(fd)));
    }
}
