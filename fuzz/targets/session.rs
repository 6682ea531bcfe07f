//! A client of the file server that says whatever it wants: it asks, offers, lists, sends files, links and hashes out of
//! turn, with names that lead elsewhere, and Writes where it was let and where not. No panic, nothing outside of the
//! folder that is served is read or changed, and a limit to the memory held.
//!
//! Jobs of the server's run on threads, so an input need not take the same way each time.
//!
//! Input: operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;
mod count;
mod house;
mod scratch;
mod served;
mod threads;
mod transfer;

use house::{FILLING, house};
use libfuzzer_sys::fuzz_target;
use mover::ServeOptions;
use served::{LONG_PATIENCE, PATIENCE};
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

fn run(input: &[u8], patience: Duration) {
    house::build();
    served::run(input, ServeOptions::new(house().join("served")), Vec::new(), patience);
}

/// An honest client's files are put in place, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let folder = house().join("served/dir");
        for (input, name, contents) in [
            (&include_bytes!("../seeds/session/put_small")[..], "b", &[FILLING; 5_000][..]),
            (include_bytes!("../seeds/session/put_large"), "a", &[FILLING; 300_000]),
        ] {
            // Threads may be slow on a busy machine; not every time.
            let arrived = (0..5).any(|_| {
                run(input, LONG_PATIENCE);
                fs::read(folder.join(name)).is_ok_and(|found| found == contents)
            });
            assert!(arrived, "{name} was not put in place");
        }
    });
}

fuzz_target!(|input: &[u8]| {
    prove();
    run(input, PATIENCE);
});
