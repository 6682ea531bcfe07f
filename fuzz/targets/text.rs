//! Texts that users and files give: links, algorithms, keys, fingerprints, one-time tokens. No text panics, and
//! what was read is shown in a form that reads as the same.
//!
//! Byte 0 of the input chooses the parser.

#![no_main]

use base::Rng;
use libfuzzer_sys::fuzz_target;
use netem::LinkConfig;
use transport::crypto::{Fingerprint, OneTimeToken, PublicKey};

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let Ok(text) = core::str::from_utf8(rest) else { return };
    match choice % 5 {
        0 => link(text),
        1 => algorithm(text),
        2 => key(text),
        3 => fingerprint(text),
        _ => token(text),
    }
});

fn link(text: &str) {
    match LinkConfig::parse(text) {
        Ok(config) => {
            let shown = config.to_string();
            match LinkConfig::parse(&shown) {
                Ok(again) => assert_eq!(again, config, "{text:?} is shown as {shown:?}"),
                // A schedule near the limit of length may be shown longer than it was written.
                Err(_) if shown.len() > netem::MAX_SPEC_LEN => {}
                Err(e) => panic!("{text:?} is shown as {shown:?}: {e}"),
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

fn algorithm(text: &str) {
    match cc::registry::parse(text) {
        Ok((definition, params)) => {
            let path = cc::testkit::conformance::Path {
                rate: base::Rate::from_bytes_per_sec(1_250_000),
                rtt: base::Span::from_millis(70),
                packet: 1_400,
            };
            // What was read can be built, and decides something.
            let made = cc::registry::create(definition.name, &params, &path.info(), Rng::from_u64(1));
            let made = made.expect("parsed for this algorithm");
            assert!(made.decision().cwnd > 0);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

fn key(line: &str) {
    if let Ok((key, comment)) = PublicKey::parse_line(line) {
        assert!(line.contains(comment));
        let shown = key.to_string();
        assert_eq!(PublicKey::parse_line(&shown), Ok((key, "")), "{shown:?}");
        assert_eq!(PublicKey::from_spki(&key.spki()), Ok(key));
    }
}

fn fingerprint(text: &str) {
    if let Ok(print) = text.parse::<Fingerprint>() {
        assert_eq!(print.to_string().parse(), Ok(print));
        assert_eq!(print.to_hex().parse(), Ok(print));
    }
}

fn token(text: &str) {
    if let Ok(token) = text.parse::<OneTimeToken>() {
        let shown = token.to_text();
        assert_eq!(shown.as_str(), text.trim());
        let again: OneTimeToken = shown.parse().expect("read once already");
        assert_eq!((again.id(), again.server()), (token.id(), token.server()));
    }
}
