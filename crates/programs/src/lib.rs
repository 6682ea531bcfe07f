//! Congestion-control programs: algorithms that anyone writes once, in restricted C against [`HEADER`], and that run here
//! in a sandbox and in the kernel's TCP as eBPF.
//!
//! [`manifest`] reads what a program says of itself.

pub mod manifest;
pub mod shipped;

pub use manifest::Manifest;

/// The interface that programs are written against, `opencc.h`.
pub const HEADER: &str = include_str!("../include/opencc.h");
/// What window-based programs share, `opencc_window.h`.
pub const WINDOW_HEADER: &str = include_str!("../include/opencc_window.h");
