//! Ctrl-C and SIGTERM.

use crate::exit::{Failure, Outcome};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What shells expect of a program that SIGINT ended.
const KILLED: i32 = 130;

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
