//! Congestion-control programs: algorithms that anyone writes once, in restricted C against [`HEADER`], and that run here
//! in a sandbox and in the kernel's TCP as eBPF.
//!
//! [`compile`](mod@compile) makes a WebAssembly module of a source; [`manifest`] reads what it says of itself; [`load_bytes`] makes it known
//! to the registry of algorithms. Each flow that selects it gets an instance of its own in the sandbox and a guard that puts a
//! built-in algorithm in its place once it misbehaves ([`Fault`]); [`events`] tells of that.

pub mod compile;
pub mod manifest;
pub mod shipped;

mod events;
mod guard;
mod load;
mod sandbox;
mod words;

pub use events::{MAX_EVENTS, Replaced, events, log_no_faults};
pub use guard::{Fault, MAX_BOUND, MAX_RATE};
pub use load::{LoadError, Loaded, Options, code_of, load_bytes, loaded, unload};
pub use manifest::Manifest;
pub use sandbox::{BUDGET, MAX_INSTANCES, MAX_MEMORY};

/// The interface that programs are written against, `opencc.h`.
pub const HEADER: &str = include_str!("../include/opencc.h");
/// What window-based programs share, `opencc_window.h`.
pub const WINDOW_HEADER: &str = include_str!("../include/opencc_window.h");
