//! Handles SIGINT (Ctrl-C) and SIGTERM.

use crate::exit::{Failure, Outcome};
use lhio::poll::Waker;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What shells expect of a program that SIGINT ended.
const KILLED: i32 = 130;

/// Wakes a loop at the first signal; the second one ends the program at once. Returns a flag that tells whether there was one. No
/// thread is needed for it, which a loop that spins would feel (see [`lhio::isolated_thread`]).
pub fn wakes(waker: &Waker) -> Outcome<Arc<AtomicBool>> {
    let seen = Arc::new(AtomicBool::new(false));
    let register = |signal| {
        // In this order: the first signal finds the flag as it was.
        flag::register_conditional_shutdown(signal, KILLED, seen.clone())?;
        flag::register(signal, seen.clone())?;
        waker.wake_on(signal)
    };
    [SIGINT, SIGTERM].into_iter().try_for_each(register).map_err(Failure::system)?;
    Ok(seen)
}

/// Calls `stop` at the first signal; the second one ends the program at once. Returns a flag that tells whether
/// there was one.
pub fn on_signal(stop: impl Fn() + Send + 'static) -> Outcome<Arc<AtomicBool>> {
    let seen = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::system)?;
    let flag = seen.clone();
    let watch = move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(KILLED);
            }
            stop();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(Failure::no_thread)?;
    Ok(seen)
}
