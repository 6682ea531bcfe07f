//! A program in Rust against the WebAssembly interface of `opencc.h`: sends at 125 % of the delivery rate.
#![no_std]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[used]
#[link_section = "opencc"]
static MANIFEST: [u8; 98] = *b"abi\t1\t\nname\tgain-rs\t\nsummary\tin Rust\t\nparam\tcount\tgain\tpercent\t100\t300\t125\tof what was delivered\t\n";

/// `struct oc_io`, in words: decision, parameters, signals. (Atomics, since other statics are immutable.)
static IO: [AtomicU64; 108] = [const { AtomicU64::new(0) }; 108];
const RATE: usize = 0;
const BOUND: usize = 1;
const QUANTUM: usize = 2;
const PARAMS: usize = 8;
const SIGNALS: usize = 24;
const PACKET: usize = SIGNALS + 1;
const SAMPLE: usize = SIGNALS + 25;
const SAMPLE_RATE: usize = SIGNALS + 26;

fn get(word: usize) -> u64 {
    IO[word].load(Relaxed)
}

fn decide(rate: u64) {
    IO[RATE].store(rate.max(3_000), Relaxed);
    // Half a second's worth, plus ten packets.
    IO[BOUND].store(rate / 2 + 10 * get(PACKET), Relaxed);
    IO[QUANTUM].store(0, Relaxed);
}

#[no_mangle]
pub extern "C" fn oc_io() -> *const AtomicU64 {
    IO.as_ptr()
}

#[no_mangle]
pub extern "C" fn oc_init() {
    decide(1_000_000);
}

#[no_mangle]
pub extern "C" fn oc_feedback() {
    let measured = get(SAMPLE_RATE) / 100 * get(PARAMS);
    decide(if get(SAMPLE) == 1 { measured } else { 1_000_000 });
}

#[no_mangle]
pub extern "C" fn oc_event() {
    decide(1_000_000);
}
