//! What clients of the control socket say, and what a central store answers: nothing panics, and a request that was read
//! is written as a line that reads as the same.
//!
//! Byte 0 of the input chooses the parser.

#![no_main]

use admin::etcd::{read_change, read_range};
use admin::proto::{MAX_REQUEST, Response, line, read_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    match which % 4 {
        0 => {
            let Ok(request) = read_request(data) else { return };
            let text = line(&request);
            assert_eq!(text.iter().filter(|b| **b == b'\n').count(), 1);
            if text.len() <= MAX_REQUEST {
                assert_eq!(read_request(&text).expect("what was written is read"), request);
            }
        }
        1 => {
            if let Ok(answer) = serde_json::from_slice::<Response>(data) {
                serde_json::from_slice::<Response>(&line(&answer)).expect("what was written is read");
            }
        }
        2 => drop(read_range(data)),
        _ => drop(read_change(data)),
    }
});
