//! Copies from and to memory of somebody else that may have been unmapped: they report a fault instead of ending the process.
//!
//! The copy is a few instructions of its own (not `rep movsb`, which takes several times as long below 4 KiB on some processors). A handler of SIGSEGV and SIGBUS looks whether the fault arose at one of them, and if so
//! lets the thread go on where the copy reports failure; all other faults go to whoever handled the signal before. So a copy costs no
//! system call, which `process_vm_readv` would, and no table of ranges has to be kept. A program that installs a handler of its own
//! afterwards and does not call the one before it takes this away.

use crate::mmap::hand_over;
use std::sync::{Once, OnceLock};

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.longhaul_fault_copy,\"ax\",@progbits",
    ".hidden longhaul_fault_copy",
    ".hidden longhaul_fault_copy_first",
    ".hidden longhaul_fault_copy_end",
    ".hidden longhaul_fault_copy_failed",
    ".globl longhaul_fault_copy",
    ".globl longhaul_fault_copy_first",
    ".globl longhaul_fault_copy_end",
    ".globl longhaul_fault_copy_failed",
    ".type longhaul_fault_copy, @function",
    "longhaul_fault_copy:",
    "longhaul_fault_copy_first:",
    "cmp rdx, 64",
    "jb 3f",
    "2: movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 2b",
    "3: cmp rdx, 16",
    "jb 4f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "jmp 3b",
    "4: cmp rdx, 8",
    "jb 5f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "5: test rdx, rdx",
    "jz 6f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "add rsi, 1",
    "add rdi, 1",
    "sub rdx, 1",
    "jmp 5b",
    "6:",
    "longhaul_fault_copy_end:",
    "xor eax, eax",
    "ret",
    "longhaul_fault_copy_failed:",
    "mov eax, 1",
    "ret",
    ".size longhaul_fault_copy, . - longhaul_fault_copy",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.longhaul_fault_copy,\"ax\",@progbits",
    ".hidden longhaul_fault_copy",
    ".hidden longhaul_fault_copy_first",
    ".hidden longhaul_fault_copy_end",
    ".hidden longhaul_fault_copy_failed",
    ".globl longhaul_fault_copy",
    ".globl longhaul_fault_copy_first",
    ".globl longhaul_fault_copy_end",
    ".globl longhaul_fault_copy_failed",
    ".type longhaul_fault_copy, @function",
    "longhaul_fault_copy:",
    "longhaul_fault_copy_first:",
    "cmp x2, #16",
    "b.lo 2f",
    "1: ldp x3, x4, [x1], #16",
    "stp x3, x4, [x0], #16",
    "sub x2, x2, #16",
    "cmp x2, #16",
    "b.hs 1b",
    "2: cbz x2, 3f",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 2b",
    "3:",
    "longhaul_fault_copy_end:",
    "mov w0, #0",
    "ret",
    "longhaul_fault_copy_failed:",
    "mov w0, #1",
    "ret",
    ".size longhaul_fault_copy, . - longhaul_fault_copy",
    ".popsection",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod code {
    unsafe extern "C" {
        /// Copies; 0, or 1 when memory was not there.
        pub(super) fn longhaul_fault_copy(to: *mut u8, from: *const u8, len: usize) -> u32;
        safe static longhaul_fault_copy_first: [u8; 0];
        safe static longhaul_fault_copy_end: [u8; 0];
        safe static longhaul_fault_copy_failed: [u8; 0];
    }

    /// The instructions that may fault.
    pub(super) fn range() -> core::ops::Range<usize> {
        longhaul_fault_copy_first.as_ptr() as usize..longhaul_fault_copy_end.as_ptr() as usize
    }
    /// Where a thread that faulted goes on.
    pub(super) fn failed() -> usize {
        longhaul_fault_copy_failed.as_ptr() as usize
    }
}

/// The handlers before ours, of SIGSEGV and of SIGBUS.
static PREVIOUS: [OnceLock<libc::sigaction>; 2] = [OnceLock::new(), OnceLock::new()];
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Has faults of copies reported from now on. Faults elsewhere go to the handlers that are there now.
pub fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
            // SAFETY: integers and a pointer-sized handler, for which all zeroes is a value.
            let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
            // SAFETY: `old` is valid for the write; a null action changes nothing.
            unsafe { libc::sigaction(signal, core::ptr::null(), &mut old) };
            let _ = previous.set(old);
            new.sa_sigaction = on_fault as *const () as usize;
            // On the alternate stack where there is one, so that a handler before ours finds what it expects.
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: the handler is async-signal-safe, see `on_fault`; its type is what SA_SIGINFO asks for.
            unsafe { libc::sigaction(signal, &new, core::ptr::null_mut()) };
        }
    });
}

/// Compares two addresses and changes one: async-signal-safe.
///
/// # Safety
/// Called by the kernel only.
unsafe extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes the thread's context, which is restored on return.
    if unsafe { leave_copy(context) } {
        return;
    }
    let previous = SIGNALS.iter().position(|s| *s == signal).and_then(|i| PREVIOUS[i].get());
    // SAFETY: passes on what the kernel passed.
    unsafe { hand_over(previous, signal, info, context) };
}

/// Lets a thread whose copy faulted go on at the copy's end. False: it faulted elsewhere.
///
/// # Safety
/// `context` is what the kernel gave a handler.
unsafe fn leave_copy(context: *mut libc::c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise.
        let at =
            unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if code::range().contains(&(*at as usize)) {
            *at = code::failed() as i64;
            return true;
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: the caller's promise.
        let at = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc };
        if code::range().contains(&(*at as usize)) {
            *at = code::failed() as u64;
            return true;
        }
    }
    let _ = context;
    false
}

/// Copies `len` bytes. False when some of them could not be read or written; what was copied of them by then stays. Before
/// [`install`], and on processors other than x86-64 and 64-bit Arm, a fault ends the process.
///
/// # Safety
/// The ranges do not overlap. What is mapped of them may be read and written, and no Rust reference leads there from elsewhere.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        // SAFETY: the caller's promise; memory that is not there is what it is for.
        unsafe { code::longhaul_fault_copy(to, from, len) == 0 }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        true
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[test]
    fn copies_move_bytes_and_report_memory_that_is_gone() {
        install();
        let (page, flags) = (rustix::param::page_size(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: two new pages, of which the second is given back.
        let first = unsafe {
            let p = libc::mmap(core::ptr::null_mut(), 2 * page, prot, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED);
            assert_eq!(libc::munmap(p.byte_add(page), page), 0);
            p.cast::<u8>()
        };
        let source: Vec<u8> = (0..2 * page).map(|i| (i * 7) as u8).collect();
        let mut back = vec![0; 2 * page];
        for len in [0, 1, 7, 8, 15, 16, 17, 63, 64, 1_000, page] {
            // SAFETY: the page is ours, and the buffers are as long.
            unsafe {
                assert!(copy(source.as_ptr(), first, len));
                assert!(copy(first, back.as_mut_ptr(), len));
            }
            assert_eq!(back[..len], source[..len]);
        }
        // SAFETY: as above; the second page is not there.
        unsafe {
            assert!(!copy(source.as_ptr(), first.add(page - 8), 16));
            assert!(!copy(first.add(page - 8), back.as_mut_ptr(), 16));
            assert!(!copy(first.add(page), back.as_mut_ptr(), 1));
            assert!(copy(first.add(page), back.as_mut_ptr(), 0));
            // It may not be written.
            assert_eq!(libc::mprotect(first.cast(), page, libc::PROT_READ), 0);
            assert!(!copy(source.as_ptr(), first, 1));
            assert!(copy(first, back.as_mut_ptr(), page));
            libc::munmap(first.cast(), page);
        }
    }
}
