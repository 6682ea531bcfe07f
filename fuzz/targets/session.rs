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

use house::{CONTENTS, FILLING, house};
use libfuzzer_sys::fuzz_target;
use mover::ServeOptions;
use served::{LONG_PATIENCE, PATIENCE};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::OnceLock;
use std::time::Duration;

fn run(input: &[u8], patience: Duration) {
    house::build();
    let options = ServeOptions { allow_delete: true, ..ServeOptions::new(house().join("served")) };
    served::run(input, options, Vec::new(), patience);
}

/// An honest client's wishes are carried out, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let at = |name: &str| house().join("served").join(name);
        let holds = |name, bytes: &[u8]| fs::read(at(name)).is_ok_and(|found| found == bytes);
        let is_there = |name| at(name).symlink_metadata().is_ok();
        let inode = |name| at(name).symlink_metadata().map(|m| m.ino()).ok();
        // Not everywhere are there extended attributes; then they need not arrive.
        let attribute =
            |name, attribute, len| match rustix::fs::getxattr(at(name), attribute, &mut [0; 64][..]) {
                Ok(n) => n == len,
                Err(e) => e == rustix::io::Errno::OPNOTSUPP,
            };
        type Seed<'a> = (&'static str, &'static [u8], &'a dyn Fn() -> bool);
        let all: [Seed<'_>; 8] = [
            ("put_small", include_bytes!("../seeds/session/put_small"), &|| {
                holds("dir/b", &[FILLING; 5_000])
            }),
            ("put_large", include_bytes!("../seeds/session/put_large"), &|| {
                holds("dir/a", &[FILLING; 300_000])
            }),
            ("put_hard_link", include_bytes!("../seeds/session/put_hard_link"), &|| {
                inode("dir/a").is_some_and(|n| inode("a") == Some(n))
            }),
            ("put_pipe", include_bytes!("../seeds/session/put_pipe"), &|| {
                at("secret").symlink_metadata().is_ok_and(|m| m.file_type().is_fifo())
            }),
            ("put_attributes", include_bytes!("../seeds/session/put_attributes"), &|| {
                holds("b", b"small")
                    && attribute("b", "user.a", 16)
                    && attribute("a", "system.posix_acl_access", 44)
            }),
            ("delete", include_bytes!("../seeds/session/delete"), &|| !is_there("a") && is_there("dir/b")),
            ("remove", include_bytes!("../seeds/session/remove"), &|| !is_there("dir") && is_there("a")),
            ("rename", include_bytes!("../seeds/session/rename"), &|| {
                !is_there("a") && holds("dir/secret", CONTENTS)
            }),
        ];
        for (name, input, done) in all {
            // Threads may be slow on a busy machine; not every time.
            let honest = (0..5).any(|_| {
                run(input, LONG_PATIENCE);
                done()
            });
            assert!(honest, "{name} was not carried out");
        }
    });
}

fuzz_target!(|input: &[u8]| {
    prove();
    run(input, PATIENCE);
});
