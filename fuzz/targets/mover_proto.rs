//! Messages of a transfer: no message panics, and what was decoded is written and decoded to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mover::proto::{Record, decode, put};

fuzz_target!(|message: &[u8]| {
    match decode(message) {
        Ok(records) => {
            let mut again = Vec::new();
            for r in &records {
                put(&mut again, r);
            }
            match decode(&again) {
                Ok(second) => assert_eq!(second, records),
                // Bytes that are no text were replaced by longer ones; nobody sends such a record on.
                Err(_) if records.iter().any(replaced) => {}
                Err(e) => panic!("{records:?} is not read back: {e}"),
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});

/// Whether a text of the record holds replacements for bytes that were no UTF-8.
fn replaced(r: &Record<'_>) -> bool {
    let odd = |text: &String| text.contains(char::REPLACEMENT_CHARACTER);
    match r {
        Record::Abort { text, .. } | Record::Drop { text, .. } => odd(text),
        Record::Failed { path, text, .. } => odd(path) || odd(text),
        Record::Done { failed: Some((_, text)), .. } => odd(text),
        Record::Copy(m) => odd(&format!("{m:?}")),
        _ => false,
    }
}
