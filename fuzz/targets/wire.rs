//! Parsers of the native protocol: no input panics, and what was parsed is written and read back unchanged.
//!
//! Byte 0 of the input chooses the parser, byte 1 is byte 0 of the packet where a data header is read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{Clear, DataHeader, Frame, Params, Put, Reader};

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => clear(rest),
        1 => data_header(rest),
        2 => frames(rest),
        _ => params(rest),
    }
});

fn clear(d: &[u8]) {
    let Ok(clear) = Clear::parse(d) else { return };
    let mut again = Vec::new();
    match &clear {
        // Nothing but these bytes was read.
        Clear::Short(cid) => assert_eq!(d[1..5], cid.0.to_be_bytes()),
        Clear::Long(h) => {
            assert!(h.clear + wire::packet::LONG_TAG <= d.len());
            wire::packet::put_long(&mut again, h.kind, h.dcid, h.scid, h.token, h.pn);
            let body = &d[h.clear..];
            let written = again.len();
            again.put(body);
            let Ok(Clear::Long(second)) = Clear::parse(&again) else { panic!("not read back: {clear:?}") };
            assert_eq!(second.clear, written);
            // The token's length may have come in a longer spelling than the one written.
            assert_eq!(wire::LongHeader { clear: h.clear, ..second }, *h);
        }
        Clear::UnknownVersion { version, .. } => {
            assert!(*version != 0 && *version != wire::packet::VERSION);
        }
        Clear::VersionNegotiation { dcid, scid, versions } => {
            let list: Vec<u32> = versions
                .chunks_exact(4)
                .map(|v| u32::from_be_bytes(v.try_into().expect("four bytes")))
                .collect();
            wire::packet::put_version_negotiation(&mut again, dcid, scid, &list);
            assert_eq!(Clear::parse(&again).as_ref(), Ok(&clear));
        }
    }
}

fn data_header(d: &[u8]) {
    let Some((&flags, rest)) = d.split_first() else { return };
    let mut r = Reader::new(rest);
    let Ok(h) = DataHeader::parse(flags, &mut r) else { return };
    let mut again = Vec::new();
    h.put(&mut again);
    assert_eq!(again.len(), h.encoded_len(), "{h:?}");
    again.put(r.rest());
    let mut second = Reader::new(&again);
    assert_eq!(DataHeader::parse(h.flags(), &mut second), Ok(h));
    assert_eq!(second.rest(), r.rest(), "the payload of {h:?} moved");
}

fn frames(d: &[u8]) {
    let mut r = Reader::new(d);
    while !r.is_empty() {
        let before = r.rest().len();
        let Ok(f) = Frame::parse(&mut r) else { return };
        assert!(r.rest().len() < before, "{f:?} took no bytes");
        let mut again = Vec::new();
        f.put(&mut again);
        assert_eq!(again.len(), f.encoded_len(), "{f:?}");
        let mut second = Reader::new(&again);
        assert_eq!(Frame::parse(&mut second).as_ref(), Ok(&f));
        assert!(second.is_empty(), "bytes left behind {f:?}");
    }
}

fn params(d: &[u8]) {
    let Ok(p) = Params::parse(d) else { return };
    let mut again = Vec::new();
    p.put(&mut again);
    assert_eq!(Params::parse(&again), Ok(p));
}
