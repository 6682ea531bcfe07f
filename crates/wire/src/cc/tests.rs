use super::*;
use crate::{Frame, Params};
use proptest::prelude::*;

fn offer(name: &str, params: &str) -> CcOffer {
    CcOffer { name: name.into(), version: 0x0102_0304, needs: signal::MARKS, params: params.into() }
}

fn frame(bytes: &[u8]) -> Result<Frame<'_>, WireError> {
    Frame::parse(&mut Reader::new(bytes))
}

#[test]
fn frames_read_as_documented() {
    // The examples of docs/protocol.md, section 7.3.
    let bytes = [
        0x14, 0x03, 0x01, 0x05, 0x05, b'd', b'c', b't', b'c', b'p', 1, 2, 3, 4, 0x01, 0x05, b'g', b'=', b'6',
        b'.', b'2',
    ];
    let topic = CcTopic { qpn: Some(2), of_server: true };
    let f = Frame::CcPropose(CcPropose { topic, sequence: 5, offer: offer("dctcp", "g=6.2") });
    assert_eq!(frame(&bytes).as_ref(), Ok(&f));
    let answer = Frame::CcAnswer(CcAnswer { topic, sequence: 5, code: 3 });
    assert_eq!(frame(&[0x15, 0x03, 0x01, 0x05, 0x03]).as_ref(), Ok(&answer));
    let runs = CcRuns {
        qpn: Some(2),
        sequence: 5,
        number: 7,
        reason: 5,
        chosen: "dctcp:g=6.2".into(),
        fallback: "haul".into(),
    };
    let runs = Frame::CcRuns(runs);
    let bytes = b"\x16\x03\x05\x07\x05\x0bdctcp:g=6.2\x04haul";
    assert_eq!(frame(bytes).as_ref(), Ok(&runs));
    for f in [f, answer, runs] {
        let mut again = Vec::new();
        f.put(&mut again);
        assert_eq!(again.len(), f.encoded_len());
        assert_eq!(frame(&again).as_ref(), Ok(&f));
        assert!(f.is_eliciting() && !f.is_harmless());
    }
}

#[test]
fn what_no_frame_may_hold_is_refused() {
    let put = |o: CcOffer, sequence| {
        let mut b = Vec::new();
        let topic = CcTopic { qpn: None, of_server: false };
        Frame::CcPropose(CcPropose { topic, sequence, offer: o }).put(&mut b);
        frame(&b).map(|_| ())
    };
    assert_eq!(put(offer("bbr", ""), 1), Ok(()));
    assert_eq!(put(offer("bbr", ""), 0), Err(WireError::Invalid("sequence of a proposal")));
    for name in ["", "BBR", "b br", "b\u{e9}", "b:r"] {
        assert_eq!(put(offer(name, ""), 1), Err(WireError::Invalid("name of an algorithm")), "{name}");
    }
    assert_eq!(put(offer(&"x".repeat(33), ""), 1), Err(WireError::TooLong("name of an algorithm")));
    assert_eq!(put(offer("x", &"x".repeat(224)), 1), Err(WireError::TooLong("parameters of an algorithm")));
    assert_eq!(put(offer("x", "a\n"), 1), Err(WireError::Invalid("parameters of an algorithm")));
    let none = CcOffer { version: 0, ..offer("x", "") };
    assert_eq!(put(none, 1), Err(WireError::Invalid("version of congestion control")));
    // Queue pair 65,536; a third direction.
    let far = frame(&[0x15, 0x80, 1, 0, 1, 0, 1, 0]);
    assert_eq!(far, Err(WireError::Invalid("queue pair of congestion control")));
    assert_eq!(frame(&[0x15, 0, 2, 1, 0]), Err(WireError::Invalid("direction of congestion control")));
    assert_eq!(offer(&"x".repeat(32), &"y".repeat(223)).spec().len(), MAX_CC_SPEC);
    // What runs: nothing, no name, too long a name, what cannot be printed; number 0; queue pair 65,536.
    for bad in [&b"\x16\0\0\x01\0\0\0"[..], b"\x16\0\0\x01\0\x02:a\0", b"\x16\0\0\x01\0\x01x\x03x:\n"] {
        assert!(matches!(frame(bad), Err(WireError::Invalid(_))), "{bad:?}");
    }
    assert_eq!(frame(b"\x16\0\0\0\0\x01x\0"), Err(WireError::Invalid("sequence of a proposal")));
    assert_eq!(frame(b"\x16\x80\x01\0\x01\0\x01\0\x01x\0").unwrap_err(), far.unwrap_err());
    let long = [&b"\x16\0\0\x01\0\x21"[..], &[b'x'; 33], b"\0"].concat();
    assert_eq!(frame(&long), Err(WireError::TooLong("name of an algorithm")));
}

fn parameters(items: &[(u64, &[u8])]) -> Result<Params, WireError> {
    let mut b = Vec::new();
    for (id, v) in items {
        b.put_varint(*id);
        b.put_string(v);
    }
    Params::parse(&b)
}

#[test]
fn terms_stand_in_parameters_within_limits() {
    let preferred = CcPreference { refused: true, name: "reno".into(), version: 0, params: String::new() };
    let terms = CcTerms {
        prefer_own: true,
        only: false,
        echoes: signal::MARKS | signal::L4S,
        offers: vec![offer("haul", ""), offer("fixed", "rate=3M")],
        preferences: vec![
            preferred.clone(),
            CcPreference { refused: false, version: 9, params: "a=b".into(), ..preferred.clone() },
        ],
    };
    let p = Params { cc_terms: Some(terms), ..Params::default() };
    let mut b = Vec::new();
    p.put(&mut b);
    assert_eq!(Params::parse(&b), Ok(p));
    let o = offer_bytes(&offer("haul", ""));
    let w = preference_bytes(&preferred);
    let head: (u64, &[u8]) = (17, &[0, 1]);
    assert!(parameters(&[head, (18, &o), (19, &w)]).is_ok());
    assert!(parameters(&[(18, &o), head]).is_ok(), "in any order");
    let without = Err(WireError::Invalid("congestion-control offers"));
    assert_eq!(parameters(&[head]), without, "terms without an offer");
    assert_eq!(parameters(&[(18, &o)]), without, "an offer without terms");
    assert_eq!(parameters(&[(19, &w)]), without, "a preference without terms");
    assert_eq!(parameters(&[head, head, (18, &o)]), Err(WireError::Invalid("parameter given twice")));
    for (id, v, limit) in [(18, &o, MAX_CC_OFFERS), (19, &w, MAX_CC_PREFERENCES)] {
        let many = |n: usize| {
            let mut items = vec![head, (18, &o[..])];
            let there = if id == 18 { 1 } else { 0 };
            items.extend((there..n).map(|_| (id, &v[..])));
            parameters(&items).map(|_| ())
        };
        assert_eq!(many(limit), Ok(()));
        assert_eq!(many(limit + 1), Err(WireError::TooLong("congestion-control offers")));
        assert_eq!(many(5_000), Err(WireError::TooLong("congestion-control offers")), "thousands");
    }
    let bad = CcPreference { params: "a=b".into(), ..preferred };
    assert_eq!(parse_preference(&preference_bytes(&bad)), Err(WireError::Invalid("parameters preferred")));
    assert!(
        parse_preference(&preference_bytes(&CcPreference { refused: false, ..bad })).is_err(),
        "of no version"
    );
    let mut long = o;
    long.push(0);
    assert!(parse_offer(&long).is_err(), "bytes behind");
}

proptest! {
    #[test]
    fn arbitrary_terms_never_panic_and_round_trip(
        items in proptest::collection::vec((17_u64..20, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let items: Vec<_> = items.iter().map(|(id, v)| (*id, &v[..])).collect();
        if let Ok(p) = parameters(&items) {
            let mut b = Vec::new();
            p.put(&mut b);
            prop_assert_eq!(Params::parse(&b), Ok(p));
        }
    }
}
