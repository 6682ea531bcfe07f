//! Messages of the file mover. Numbers have one spelling only, so what decodes is written back byte by byte, but for
//! texts: those that are not UTF-8 come back with replacement characters.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mover::proto::{MAX_MESSAGE, decode, put};

fuzz_target!(|d: &[u8]| {
    let Ok(records) = decode(d) else { return };
    assert!(d.len() <= MAX_MESSAGE);
    let mut again = Vec::new();
    records.iter().for_each(|r| put(&mut again, r));
    if again != d {
        // Replacement characters are longer than what they stand for: a text may outgrow its limit.
        let Ok(second) = decode(&again) else { return };
        assert_eq!(second, records);
    }
});
