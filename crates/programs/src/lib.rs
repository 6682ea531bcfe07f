//! Congestion-control programs: algorithms written once in restricted C against [`HEADER`], which run here in a
//! WebAssembly sandbox and in the kernel's TCP as eBPF.
//!
//! [`compile`](mod@compile) compiles a source to a WebAssembly module, [`manifest`] parses the module's
//! description of itself, and [`load_bytes`] registers it as an algorithm. Each flow that selects it runs an instance
//! of its own, guarded: a program that misbehaves ([`Fault`]) is replaced by a built-in algorithm. [`events`] returns
//! the replacements.

pub mod compile;
pub mod manifest;
pub mod shipped;

mod events;
mod guard;
mod load;
mod sandbox;
mod words;

pub use events::{MAX_EVENTS, Replaced, events, log_no_faults};
pub use guard::{Fault, MAX_CWND, MAX_RATE};
pub use load::{LoadError, Loaded, Options, code_hash, load_bytes, loaded, unload};
pub use manifest::Manifest;
pub use sandbox::{CALL_BUDGET, MAX_INSTANCES, MAX_MEMORY};

/// `opencc.h`, the interface that programs are written against.
pub const HEADER: &str = include_str!("../include/opencc.h");
/// `opencc_window.h`, the helpers for window-based programs.
pub const WINDOW_HEADER: &str = include_str!("../include/opencc_window.h");
