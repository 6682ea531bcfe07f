//! What stands behind this object: the C library's functions, and the connection manager in `libibverbs.so.1`.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function of this name in the objects behind this one; looked for once. There is one: programs are linked to it.
pub(crate) fn find(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = known.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: a name that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    known.store(found, Ordering::Relaxed);
    found
}

/// Functions that pass their arguments to the next function of their name. Where there is none they answer ENOSYS.
macro_rules! real {
    ($($name:ident ( $($arg:ident : $kind:ty),* ) -> $result:ty, $none:expr;)*) => {
        $(
            pub(crate) unsafe fn $name($($arg: $kind),*) -> $result {
                static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let found = $crate::next::find(NAME, &KNOWN);
                if found.is_null() {
                    // SAFETY: the C library's variable of this thread.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return $none;
                }
                // SAFETY: the C library's function of this name has this type, and the arguments are the caller's.
                unsafe {
                    let f: unsafe extern "C" fn($($kind),*) -> $result = core::mem::transmute(found);
                    f($($arg),*)
                }
            }
        )*
    };
}
pub(crate) use real as pass_on;

pub(crate) mod real {
    use super::*;

    super::pass_on! {
        open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, -1;
        open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, -1;
        openat(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, -1;
        openat64(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, -1;
        fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, core::ptr::null_mut();
        fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, core::ptr::null_mut();
        write(fd: c_int, bytes: *const c_void, len: usize) -> isize, -1;
        close(fd: c_int) -> c_int, -1;
        dup2(old: c_int, new: c_int) -> c_int, -1;
        dup3(old: c_int, new: c_int, flags: c_int) -> c_int, -1;
    }
}

/// The functions of `ffi/verbs` for this object.
pub(crate) struct Manager {
    pub(crate) open: unsafe extern "C" fn(c_int) -> c_int,
    pub(crate) write: unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
    pub(crate) close: unsafe extern "C" fn(c_int),
    pub(crate) sysfs: unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize,
}

static FOUND: OnceLock<Option<Manager>> = OnceLock::new();

/// Those of our `libibverbs.so.1`. `None`: the program has another one.
pub(crate) fn manager() -> Option<&'static Manager> {
    FOUND.get_or_init(look).as_ref()
}

/// The same, where it was looked for before.
pub(crate) fn manager_in_use() -> Option<&'static Manager> {
    FOUND.get()?.as_ref()
}

fn look() -> Option<Manager> {
    const LIBRARY: &CStr = c"libibverbs.so.1";
    const VERSION: &CStr = c"LONGHAUL_PRIVATE_1";
    // SAFETY: names that end with a zero; the functions of this version have these types, and their object is never unloaded.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        let find = |name: &CStr| {
            let found = libc::dlvsym(library, name.as_ptr(), VERSION.as_ptr());
            (!found.is_null()).then_some(found)
        };
        Some(Manager {
            open: core::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(find(
                c"longhaul_cm_open",
            )?),
            write: core::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
            >(find(c"longhaul_cm_write")?),
            close: core::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(find(
                c"longhaul_cm_close",
            )?),
            sysfs: core::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize,
            >(find(c"longhaul_sysfs")?),
        })
    }
}
