//! The one function inside which instructions count.

use std::hint::black_box;

/// Runs `work`; callgrind counts from entering to leaving (`--toggle-collect`), what it calls included. Never inside itself:
/// that would switch counting off.
///
/// A function named to callgrind, not the difference of a long and a short run: what one end of a connection costs cannot be
/// had as a difference, since the other end's work grows along with it. The name's pattern holds for every kind of mangling;
/// were it ever not found, the sum would be zero, which `cargo xtask counts` refuses.
#[inline(never)]
pub fn the_counted_region<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

/// Runs `work`, counted or not.
#[inline]
pub fn counted_if<R>(counted: bool, work: impl FnOnce() -> R) -> R {
    if counted { the_counted_region(work) } else { work() }
}
