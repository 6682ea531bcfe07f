//! A SIGBUS handler for this process's own file mappings.
//!
//! The handler is process-wide and async-signal-safe: it reads a fixed table of atomics and makes one system
//! call. For faults elsewhere it hands over to whoever handled SIGBUS before.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Once, OnceLock};

/// The most mappings that can be watched at a time.
pub const MAX_MAPPINGS: usize = 4_096;

/// One watched mapping. `end` zero: nothing is watched, though the entry may be reserved.
struct Entry {
    state: AtomicU8,
    start: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicBool,
    faulted: AtomicBool,
}

const FREE: u8 = 0;
const TAKEN: u8 = 1;

static TABLE: [Entry; MAX_MAPPINGS] = [const {
    Entry {
        state: AtomicU8::new(FREE),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        writable: AtomicBool::new(false),
        faulted: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

/// Entries at and beyond this were never used: keeps the handler's search short.
static HIGH: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();
/// The handler before ours: set before ours is installed and never changed again.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Bytes in a page.
pub(super) fn page_size() -> usize {
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            let n = rustix::param::page_size();
            PAGE.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// An entry of the table, given back when dropped.
#[derive(Debug)]
pub(super) struct Slot(usize);

/// Takes an entry, and installs the handler at first use. `None` when all are taken.
pub(super) fn reserve(writable: bool) -> Option<Slot> {
    INSTALL.call_once(install);
    let taken =
        |e: &Entry| e.state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let i = TABLE.iter().position(taken)?;
    TABLE[i].faulted.store(false, Ordering::Relaxed);
    TABLE[i].writable.store(writable, Ordering::Relaxed);
    HIGH.fetch_max(i + 1, Ordering::AcqRel);
    Some(Slot(i))
}

impl Slot {
    /// Begins to watch `len` bytes from `start`.
    pub(super) fn watch(&self, start: usize, len: usize) {
        let e = &TABLE[self.0];
        e.start.store(start, Ordering::Relaxed);
        // Publishes the others: the handler reads `end` first.
        e.end.store(start + len.next_multiple_of(page_size()), Ordering::Release);
    }

    /// Whether a fault happened in the range.
    pub(super) fn faulted(&self) -> bool {
        // The handler runs on the thread that copied: keeps the compiler from asking before the copy is made.
        compiler_fence(Ordering::SeqCst);
        TABLE[self.0].faulted.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let e = &TABLE[self.0];
        e.end.store(0, Ordering::Release);
        e.start.store(0, Ordering::Relaxed);
        e.state.store(FREE, Ordering::Release);
    }
}

fn install() {
    page_size();
    // SAFETY: integers and a pointer-sized handler, for which all zeroes is a value.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `old` is valid for the write; a null action changes nothing.
    unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &mut old) };
    let _ = PREVIOUS.set(old);
    // SAFETY: as above.
    let mut new: libc::sigaction = unsafe { core::mem::zeroed() };
    new.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternate stack where there is one, so that a handler before ours finds what it expects.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler is async-signal-safe, see `on_sigbus`; its type is what SA_SIGINFO asks for.
    unsafe { libc::sigaction(libc::SIGBUS, &new, core::ptr::null_mut()) };
}

/// # Safety
/// Called by the kernel only.
unsafe extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `info`, which for SIGBUS holds an address.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A machine check (BUS_MCEERR_*) means broken memory, which zeroes must not paper over.
    if code == libc::BUS_ADRERR && replace_page(at) {
        return;
    }
    // SAFETY: passes on what the kernel passed.
    unsafe { hand_over(PREVIOUS.get(), signal, info, context) };
}

/// Puts a page of zeroes where `at` points, if that is in a watched mapping. Async-signal-safe: atomics and
/// one system call, `errno` preserved.
fn replace_page(at: usize) -> bool {
    let page = PAGE.load(Ordering::Relaxed);
    let used = HIGH.load(Ordering::Acquire).min(MAX_MAPPINGS);
    for e in &TABLE[..used] {
        let end = e.end.load(Ordering::Acquire);
        let start = e.start.load(Ordering::Acquire);
        // Read again: the entry may have gone from one mapping to another in between.
        let torn = e.end.load(Ordering::Relaxed) != end;
        if torn || at < start || at >= end || start == 0 {
            continue;
        }
        let prot = if e.writable.load(Ordering::Relaxed) {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Before the page, so that whoever sees its zeroes also sees the flag.
        e.faulted.store(true, Ordering::SeqCst);
        // SAFETY: errno is this thread's own.
        let saved = unsafe { *libc::__errno_location() };
        let page_start = at & !(page - 1);
        let zeroes = |len: usize| {
            // SAFETY: the range lies in a mapping of ours, made by `MappedFile` and still alive, since the
            // thread that faulted is using it. Its bytes are reached through raw pointers only.
            unsafe { libc::mmap(page_start as *mut libc::c_void, len, prot, flags, -1, 0) }
        };
        let mut p = zeroes(page);
        if p == libc::MAP_FAILED {
            // The process has as many separate mappings as it may have (vm.max_map_count): replacing all of
            // the rest makes them fewer.
            p = zeroes(end - page_start);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = saved };
        return p != libc::MAP_FAILED;
    }
    false
}

/// Lets the handler that was there before ours decide; by default the process ends with the signal.
///
/// # Safety
/// With arguments the kernel gave for this signal.
pub(crate) unsafe fn hand_over(
    previous: Option<&libc::sigaction>,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    match previous {
        Some(old) if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN => {
            if old.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: SA_SIGINFO says that the handler has this type.
                let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { core::mem::transmute(old.sa_sigaction) };
                f(signal, info, context);
            } else {
                // SAFETY: without SA_SIGINFO it has this one.
                let f: extern "C" fn(i32) = unsafe { core::mem::transmute(old.sa_sigaction) };
                f(signal);
            }
        }
        // Ignoring a fault is impossible: the same instruction would fault for ever.
        _ => {
            // SAFETY: `signal` restores a default; async-signal-safe (signal-safety(7)). On return the
            // instruction faults again, and the process ends with the right signal and core dump; a signal
            // sent by kill(2) is raised again instead.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
    }
}
