//! A client that says whatever it wants to a file server that does not let it do everything: what exists is not to be
//! replaced, nothing is to be written, or nothing is to be read. What is not allowed does not happen, whatever is said.
//!
//! Input: what is allowed (a byte), then as for `session`.

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

use house::{CONTENTS, Thing, UNTOLD, house};
use libfuzzer_sys::fuzz_target;
use mover::ServeOptions;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

/// What tells of the contents of what is there: names, bytes, hashes.
fn untold() -> Vec<&'static [u8]> {
    static HASH: OnceLock<[u8; 32]> = OnceLock::new();
    vec![UNTOLD.as_bytes(), CONTENTS, HASH.get_or_init(|| *blake3::hash(CONTENTS).as_bytes())]
}

/// What is there before and after.
fn run(choice: u8, input: &[u8], patience: Duration) -> [Vec<Thing>; 2] {
    house::build();
    let served = house().join("served");
    fs::write(served.join(UNTOLD), CONTENTS).expect("memory");
    let before = house::things(&served);
    let mut options = ServeOptions::new(&served);
    let heard = match choice & 3 {
        0 => {
            options.allow_overwrite = false;
            Vec::new()
        }
        1 => {
            (options.allow_write, options.allow_delete) = (false, choice & 4 != 0);
            Vec::new()
        }
        n => {
            (options.allow_read, options.allow_overwrite) = (false, n & 1 == 0);
            untold()
        }
    };
    served::run(input, options, heard, patience);
    [before, house::things(&served)]
}

/// Files that are new arrive where they may, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let (choice, input) = include_bytes!("../seeds/rights/new_file").split_first().expect("a byte");
        let arrived = (0..5).any(|_| {
            let [before, after] = run(*choice, input, served::LONG_PATIENCE);
            after.iter().filter(|t| !before.contains(t)).any(|(path, ..)| path.ends_with("dir/a"))
        });
        assert!(arrived, "a new file was not put in place");
    });
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    prove();
    let [before, after] = run(*choice, rest, served::PATIENCE);
    match choice & 3 {
        1 => house::assert_same(&before, &after),
        0 | 3 => house::assert_kept(&before, &after),
        _ => {}
    }
});
