use super::*;
use crate::data_reduction::{DataReduction, ReductionMode};
use crate::delta::{Copied, Listed, MAX_PIECE};
use crate::hash::MAX_FILE;
use crate::path::PathError;
use cc::platform::Qos;
use proptest::prelude::*;

fn rel() -> impl Strategy<Value = RelPath> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..4)
        .prop_filter_map("not a path", |v| RelPath::parse(&v.join(&b'/')).ok())
}
fn name() -> impl Strategy<Value = Name> {
    (0..MAX_ROOTS as u32, rel()).prop_map(|(root, path)| Name { root, path })
}
fn meta() -> impl Strategy<Value = Meta> {
    (0..0o10000u32, any::<i64>(), 0..1_000_000_000u32).prop_map(|(mode, secs, nanos)| Meta {
        mode,
        secs,
        nanos,
    })
}
fn ranges(end: u64) -> impl Strategy<Value = Vec<Range<u64>>> {
    proptest::collection::btree_set(0..end, 0..20).prop_map(|s| {
        let v: Vec<u64> = s.into_iter().collect();
        v.chunks_exact(2).map(|c| c[0]..c[1]).collect::<Vec<_>>()
    })
}
fn sending() -> impl Strategy<Value = Sending> {
    let rate = || proptest::option::of((1_000..=125_000_000_000u64).prop_map(Rate::from_bytes_per_sec));
    let qos = proptest::option::of(proptest::sample::select(vec![
        Qos::Latency,
        Qos::Guaranteed(Rate::from_bytes_per_sec(1_234_567)),
        Qos::Deadline { bytes: 7_000, within: base::Span::from_micros(12_345) },
    ]));
    let (application, dscp) = (proptest::option::of("[a-zé]{1,64}"), proptest::option::of(0..64u8));
    (rate(), proptest::option::of("[ -~]{1,200}"), rate(), qos, application, dscp, any::<bool>()).prop_map(
        |(rate_limit, cc, known_rate, qos, application, dscp, tell)| Sending {
            rate_limit,
            cc,
            known_rate,
            qos,
            application,
            dscp,
            tell,
        },
    )
}
fn counts() -> impl Strategy<Value = Record<'static>> {
    any::<[u64; 9]>().prop_map(|v| {
        Record::Counts(SourceCounts {
            files: v[0],
            bytes: v[1],
            same_files: v[2],
            same_bytes: v[3],
            not_preserved: NotPreserved {
                hard_links: v[4],
                extended_attributes: v[5],
                access_control_lists: v[6],
                owners: v[7],
                special_bits: v[8],
            },
        })
    })
}
fn hello() -> impl Strategy<Value = Record<'static>> {
    let paths = proptest::collection::vec((rel(), any::<bool>()), 0..4);
    (paths, any::<[u8; 16]>(), 0..64u64, any::<[bool; 2]>(), sending(), data_reduction()).prop_map(
        |(p, transfer, f, [into, link_targets], sending, data_reduction)| {
            let (paths, contents) = p.into_iter().unzip();
            let flags = Flags::from_bits(f).unwrap();
            let (version, op) = (VERSION, Op::Get);
            Record::Hello(Hello {
                version,
                op,
                flags,
                transfer,
                paths,
                into,
                contents,
                sending,
                link_targets,
                data_reduction,
                keep: Keep::from_bits(f).unwrap(),
            })
        },
    )
}
fn data_reduction() -> impl Strategy<Value = DataReduction> {
    let choice =
        || prop_oneof![Just(ReductionMode::Auto), Just(ReductionMode::Always), Just(ReductionMode::Never)];
    (choice(), choice()).prop_map(|(deltas, compress)| DataReduction { deltas, compress })
}
fn listed() -> impl Strategy<Value = Vec<Listed>> {
    let one = (0..1u64 << 40, 1..=MAX_PIECE, any::<[u8; 16]>());
    proptest::collection::vec(one.prop_map(|(gap, len, key)| Listed { gap, len, key }), 0..9)
}
fn copies() -> impl Strategy<Value = Vec<Copied>> {
    proptest::collection::vec((0..1u64 << 40, 0..1u64 << 40, 1..1u64 << 40), 0..9).prop_map(|v| {
        let mut end = 0;
        let one = |(gap, from, len)| {
            let at = end + gap;
            end = at + len;
            Copied { at, from, len }
        };
        v.into_iter().map(one).collect()
    })
}
fn saving() -> impl Strategy<Value = Record<'static>> {
    prop_oneof![
        any::<u64>().prop_map(|file| Record::AskBasis { file }),
        (any::<u64>(), listed(), any::<bool>()).prop_map(|(file, pieces, last)| Record::Basis {
            file,
            pieces,
            last
        }),
        (any::<u64>(), copies(), any::<bool>()).prop_map(|(file, copies, last)| Record::Copies {
            file,
            copies,
            last
        }),
        (any::<u64>(), 0..1u64 << 24, 0..1u64 << 26, any::<[u8; 32]>())
            .prop_map(|(file, chunk, len, hash)| Record::Packed { file, chunk, len, hash }),
        (0..=MAX_MESSAGE).prop_map(|len| Record::Zipped { len, frame: &[9; 700] }),
    ]
}
fn extra() -> impl Strategy<Value = Extra> {
    let account = || {
        proptest::option::of(
            (0..u32::MAX, "[a-z]{0,9}").prop_map(|(id, n)| Account { id, name: n.into_bytes() }),
        )
    };
    let value = proptest::collection::vec(any::<u8>(), 0..300);
    let all = proptest::collection::btree_map("user\\.[a-z]{1,9}", value, 0..5);
    let attributes = all.prop_map(|m| m.into_iter().map(|(n, v)| (n.into_bytes(), v)).collect::<Vec<_>>());
    let device = |format| any::<(u32, u32)>().prop_map(move |device| Node { format, device });
    let node = prop_oneof![
        device(0o020_000),
        device(0o060_000),
        Just(Node { format: 0o010_000, device: (0, 0) }),
        Just(Node { format: 0o140_000, device: (0, 0) })
    ];
    let of = proptest::option::of::<BoxedStrategy<Node>>;
    let named = (any::<bool>(), 0..u32::MAX, "[a-z]{1,9}").prop_map(|(group, id, name)| {
        let sort = if group { lhio::accounts::Sort::Group } else { lhio::accounts::Sort::User };
        (sort, Account { id, name: name.into_bytes() })
    });
    let rest =
        (proptest::option::of(any::<[u8; 32]>()), proptest::option::of(any::<u64>()), of(node.boxed()));
    let accounts = proptest::collection::vec(named, 0..4);
    (account(), account(), proptest::option::of(attributes), rest, accounts).prop_map(
        |(owner, group, attributes, (digest, inode, node), accounts)| Extra {
            owner,
            group,
            attributes,
            digest,
            inode,
            node,
            accounts,
        },
    )
}
fn arb() -> impl Strategy<Value = Record<'static>> {
    let size = 1u64 << 40;
    prop_oneof![
        (any::<u64>()).prop_map(|version| Record::Welcome { version }),
        // Words of a peer are escaped when they are read: these have nothing to escape, so they stay as they are.
        (any::<bool>(), "[ -\\[\\]-~äΩ中]{0,20}").prop_map(|(refused, text)| Record::Abort { refused, text }),
        (
            "[ -\\[\\]-~äΩ中]{0,20}",
            "[ -\\[\\]-~äΩ中]{0,20}",
            proptest::option::of(1..1u64 << 40),
            proptest::collection::vec("[ -\\[\\]-~äΩ中]{0,9}", 0..4)
        )
            .prop_map(|(rule, algorithm, cap, why)| {
                let cap = cap.map(Rate::from_bytes_per_sec);
                let (qos, class, guarantee) = ("bulk".to_owned(), rule.clone(), cap);
                Record::Mapped(Mapping { qos, rule, class, algorithm, guarantee, cap, why })
            }),
        Just(Record::ListEnd),
        Just(Record::SourceEnd),
        extra().prop_map(Record::Extra),
        (name(), meta()).prop_map(|(name, meta)| Record::Node { name, meta }),
        (name(), name()).prop_map(|(name, to)| Record::HardLink { name, to }),
        (0..1024u64, 0..1024u64, any::<[u64; 2]>()).prop_map(|(keep, denied, [owners, attributes])| {
            let [keep, denied] = [keep, denied].map(|k| Keep::from_bits(k).unwrap());
            Record::Kept { keep, denied, owners, attributes }
        }),
        counts(),
        name().prop_map(Record::ListFrom),
        (name(), meta()).prop_map(|(name, meta)| Record::Dir { name, meta }),
        (name(), meta()).prop_map(|(name, meta)| Record::Touch { name, meta }),
        (name(), meta()).prop_map(|(name, meta)| Record::Link { name, meta, target: b"../else\xff" }),
        (name(), meta(), any::<[u8; 32]>()).prop_map(|(name, meta, hash)| Record::Small {
            name,
            meta,
            hash,
            data: &[7; 5000]
        }),
        (any::<u64>(), name(), meta(), ranges(1 << 40)).prop_map(move |(file, name, meta, extents)| {
            Record::Offer(Offer { file, name, meta, size, extents })
        }),
        (any::<u64>(), ranges(1 << 20)).prop_map(|(file, have)| Record::Accept { file, have }),
        (any::<u64>(), 0..1u64 << 49, 0..1u64 << 49, any::<u32>())
            .prop_map(|(file, start, len, rkey)| Record::Grant { file, start, len, rkey }),
        (any::<u64>(), 0..1u64 << 20, proptest::collection::vec(any::<[u8; 32]>(), 0..9))
            .prop_map(|(file, first, hashes)| Record::Hashes { file, first, hashes }),
        (any::<u64>(), any::<[u8; 32]>()).prop_map(|(file, hash)| Record::End { file, hash }),
        (any::<u64>(), proptest::option::of((any::<u8>(), "[ -\\[\\]-~äΩ中]{0,9}")))
            .prop_map(|(file, failed)| Record::Done { file, failed }),
        (name(), meta(), any::<u64>(), proptest::option::of(any::<[u8; 32]>())).prop_map(
            |(n, meta, size, hash)| {
                Record::Entry(Entry { root: n.root, path: n.path, kind: Kind::Link, size, meta, hash })
            }
        ),
        hello(),
        saving(),
        copy::tests::arb().prop_map(Record::Copy),
        any::<[u64; 7]>().prop_map(|v| Record::SinkEnd(Totals {
            files: v[0],
            dirs: v[1],
            links: v[2],
            bytes: v[3],
            resumed_bytes: v[4],
            repaired_chunks: v[5],
            failed: v[6],
        })),
    ]
}

proptest! {
    #[test]
    fn records_survive_the_wire(v in proptest::collection::vec(arb(), 0..6)) {
        let mut m = Vec::new();
        v.iter().for_each(|r| put(&mut m, r));
        prop_assert_eq!(decode(&m).unwrap(), v);
    }

    /// Whatever decodes is in its only spelling; nothing panics.
    #[test]
    fn any_bytes_are_safe(m in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(v) = decode(&m) {
            let mut again = Vec::new();
            v.iter().for_each(|r| put(&mut again, r));
            prop_assert_eq!(decode(&again).unwrap(), v);
        }
    }

    #[test]
    fn damaged_records_are_safe(r in arb(), at in any::<prop::sample::Index>(), bit in 0..8u32, cut in any::<prop::sample::Index>()) {
        let mut m = Vec::new();
        put(&mut m, &r);
        prop_assert!(decode(&m[..cut.index(m.len())]).map_or(true, |v| v.is_empty()));
        let i = at.index(m.len());
        m[i] ^= 1 << bit;
        let _ = decode(&m);
    }
}

fn raw(t: u8, body: &[u8]) -> Vec<u8> {
    let mut m = vec![t];
    codec::Put::blob(&mut m, body);
    m
}

#[test]
fn forged_records_are_refused() {
    let num = |v: u64| {
        let mut b = Vec::new();
        codec::Put::num(&mut b, v);
        b
    };
    let dir = |p: &[u8]| {
        let mut b = vec![0];
        codec::Put::blob(&mut b, p);
        b.extend_from_slice(&[0, 0, 0]);
        raw(encode::ty::DIR, &b)
    };
    assert!(decode(&dir(b"fine")).is_ok());
    assert_eq!(decode(&dir(b"../up")), Err(ProtoError::Path(PathError::DotDot)));
    assert_eq!(decode(&dir(b"/abs")), Err(ProtoError::Path(PathError::Absolute)));
    assert_eq!(decode(&dir(b"a\0")), Err(ProtoError::Path(PathError::Nul)));
    assert_eq!(decode(&dir(b"a//b")), Err(ProtoError::Path(PathError::EmptyComponent)));
    assert_eq!(decode(&dir(&[b'x'; 300])), Err(ProtoError::Path(PathError::NameTooLong)));
    // Sizes and offsets that overflow.
    let grant =
        |start: u64, len: u64| raw(encode::ty::GRANT, &[num(1), num(start), num(len), num(7)].concat());
    assert!(decode(&grant(0, 1)).is_ok());
    assert_eq!(decode(&grant(u64::MAX, 1)), Err(ProtoError::Range("start")));
    assert_eq!(decode(&grant(1 << 49, u64::MAX)), Err(ProtoError::Range("length")));
    // A range that wraps around, and one that is empty.
    let accept = |gap: u64, len: u64| raw(encode::ty::ACCEPT, &[num(1), num(1), num(gap), num(len)].concat());
    assert_eq!(decode(&accept(5, u64::MAX)), Err(ProtoError::Range("range")));
    assert_eq!(decode(&accept(5, 0)), Err(ProtoError::Range("range")));
    // A count without the bytes for it.
    let hashes = raw(encode::ty::HASHES, &[num(1), num(0), num(4000)].concat());
    assert_eq!(decode(&hashes), Err(ProtoError::Truncated));
    // Long spelling, unknown type, length beyond the message, bytes behind the end.
    assert_eq!(decode(&raw(encode::ty::WELCOME, &[0x81, 0x00])), Err(ProtoError::Number));
    assert_eq!(decode(&raw(99, &[])), Err(ProtoError::Type(99)));
    assert_eq!(decode(&[encode::ty::WELCOME, 9, 1]), Err(ProtoError::Truncated));
    assert_eq!(decode(&raw(encode::ty::LIST_END, &[1])), Err(ProtoError::Trailing));
    assert_eq!(decode(&vec![0; MAX_MESSAGE + 1]), Err(ProtoError::TooLong));
}

#[test]
fn forged_extras_are_refused() {
    let num = |v: u64| {
        let mut b = Vec::new();
        codec::Put::num(&mut b, v);
        b
    };
    let blob = |v: &[u8]| [num(v.len() as u64), v.to_vec()].concat();
    let extra = |parts: &[Vec<u8>]| decode(&raw(encode::ty::EXTRA, &parts.concat())).map(drop);
    let all = |v: &[(&[u8], usize)]| {
        let mut b = vec![num(4), num(v.len() as u64)];
        v.iter().for_each(|(n, len)| b.extend([blob(n), blob(&vec![7; *len])]));
        extra(&b)
    };
    assert_eq!(all(&[(b"user.a", 65_536), (b"user.b", 40_000)]), Ok(()));
    let bad = Err(ProtoError::Range("attributes"));
    assert_eq!(all(&[(b"user.a", 65_536), (b"user.b", 65_536)]), bad);
    assert_eq!(all(&[(b"user.b", 1), (b"user.a", 1)]), bad);
    assert_eq!(all(&[(b"user.a", 1), (b"user.a", 1)]), bad);
    assert_eq!(all(&[(b"", 1)]), bad);
    assert_eq!(all(&[(b"user.\0", 1)]), bad);
    assert_eq!(all(&[(b"user.a", 65_537)]), Err(ProtoError::Range("value of an attribute")));
    assert_eq!(extra(&[num(4), num(1_025)]), Err(ProtoError::Range("number of attributes")));
    assert_eq!(extra(&[num(4), num(1_000)]), Err(ProtoError::Truncated));
    assert_eq!(extra(&[num(128)]), Err(ProtoError::Range("fields")));
    assert_eq!(extra(&[num(1), num(u64::from(u32::MAX)), num(0)]), Err(ProtoError::Range("user or group")));
    let node = |f: u64, major, minor| extra(&[num(32), num(f), num(major), num(minor)]);
    assert_eq!((node(0o020_000, 1, 3), node(0o010_000, 0, 0)), (Ok(()), Ok(())));
    // A plain file is no node, and a pipe has no number.
    for (f, major) in [(0o100_000, 0), (0o040_000, 0), (0o010_000, 1)] {
        assert_eq!(node(f, major, 0), Err(ProtoError::Range("format")));
    }
    let kept = |keep| decode(&raw(encode::ty::KEPT, &[num(keep), num(0), num(0), num(0)].concat())).map(drop);
    assert_eq!((kept(1_023), kept(1_024)), (Ok(()), Err(ProtoError::Range("what is kept"))));
}

/// A record is read as it was written, and no part of it is.
pub(super) fn assert_survives_the_wire_whole(r: Record<'static>) {
    let mut m = Vec::new();
    put(&mut m, &r);
    assert_eq!(decode(&m).unwrap(), [r]);
    (1..m.len()).for_each(|n| assert!(decode(&m[..n]).is_err()));
}

/// A Hello with these additions, read.
fn hello_with(additions: &[(u64, &[u8])]) -> Result<Sending, ProtoError> {
    let mut b = vec![VERSION as u8, Op::Get as u8, 0];
    b.extend_from_slice(&[7; 16]);
    b.extend_from_slice(&[0, 0]); // into, no paths
    codec::Put::num(&mut b, additions.len() as u64);
    for (id, body) in additions {
        codec::Put::num(&mut b, *id);
        codec::Put::blob(&mut b, body);
    }
    match decode(&raw(encode::ty::HELLO, &b))?.pop() {
        Some(Record::Hello(h)) => {
            assert_eq!(h.link_targets, additions.iter().any(|(id, _)| *id == 8));
            Ok(h.sending)
        }
        r => panic!("{r:?}"),
    }
}

#[test]
fn additions_are_checked_and_unknown_ones_passed_over() {
    let num = |v: u64| {
        let mut b = Vec::new();
        codec::Put::num(&mut b, v);
        b
    };
    let rate = Some(Rate::from_bytes_per_sec(1_000_000));
    let all = hello_with(&[
        (1, &num(1_000_000)),
        (2, b"bbr"),
        (3, &num(1_000_000)),
        (4, b"target(8M)"),
        (5, "b\u{fc}ro".as_bytes()),
        (6, &[8]),
        (7, b""),
        (8, b""),
        (1 << 40, b"later"),
    ])
    .unwrap();
    assert_eq!(
        all,
        Sending {
            rate_limit: rate,
            cc: Some("bbr".into()),
            known_rate: rate,
            qos: Some(Qos::Target(Rate::from_bits_per_sec(8_000_000))),
            application: Some("b\u{fc}ro".into()),
            dscp: Some(8),
            tell: true,
        }
    );
    assert!(hello_with(&[]).unwrap().is_default());
    for (bad, what) in [
        (&[(1, &num(999)[..])][..], ProtoError::Range("rate limit")),
        (&[(3, &num(u64::MAX))], ProtoError::Range("known rate")),
        (&[(5, b"a\nb")], ProtoError::Range("application")),
        (&[(6, &[64])], ProtoError::Range("code point")),
        (&[(7, b"x")], ProtoError::Trailing),
        (&[(8, b"x")], ProtoError::Trailing),
        (&[(1, &[])], ProtoError::Truncated),
        (&[(1, &[0x80, 0x80, 0x01, 0])], ProtoError::Trailing),
        (&[(2, b"")], ProtoError::Range("congestion control")),
        (&[(2, b"b\nbr")], ProtoError::Range("congestion control")),
        (&[(2, &[b'x'; MAX_CC + 1])], ProtoError::Range("congestion control")),
        (&[(4, b"fast")], ProtoError::Range("quality of service")),
        (&[(4, b"\xff")], ProtoError::Range("quality of service")),
        (&[(2, b"bbr"), (1, &num(5_000))], ProtoError::Range("order of additions")),
        (&[(2, b"bbr"), (2, b"bbr")], ProtoError::Range("order of additions")),
        (&[(9, &[0; MAX_ADDITION + 1])], ProtoError::Range("length of an addition")),
    ] {
        assert_eq!(hello_with(bad), Err(what));
    }
    let many: Vec<(u64, &[u8])> = (100..100 + MAX_ADDITIONS as u64 + 1).map(|i| (i, &b""[..])).collect();
    assert_eq!(hello_with(&many), Err(ProtoError::Range("number of additions")));
    assert!(hello_with(&many[1..]).is_ok());
}

#[test]
fn lists_and_copies_beyond_all_limits_are_refused() {
    let num = |v: u64| {
        let mut b = Vec::new();
        codec::Put::num(&mut b, v);
        b
    };
    let key = vec![0; 16];
    let basis = |n: u64, gap: u64, len: u64| {
        let b = [num(1), vec![0], num(n), num(gap), num(len), key.clone()].concat();
        decode(&raw(encode::ty::BASIS, &b)).map(|_| ())
    };
    assert_eq!(basis(1, 0, u64::from(MAX_PIECE)), Ok(()));
    assert_eq!(basis(1, 0, 0), Err(ProtoError::Range("length of a piece")));
    assert_eq!(basis(1, 0, u64::from(MAX_PIECE) + 1), Err(ProtoError::Range("length of a piece")));
    assert_eq!(basis(1, MAX_FILE + 1, 1), Err(ProtoError::Range("gap")));
    assert_eq!(basis(MAX_LISTED as u64 + 1, 0, 1), Err(ProtoError::Range("number of pieces")));
    assert_eq!(basis(2, 0, 1), Err(ProtoError::Truncated));
    let copy = |n: u64, at: u64, from: u64, len: u64| {
        let b = [num(1), vec![1], num(n), num(at), num(from << 1), num(len)].concat();
        decode(&raw(encode::ty::COPIES, &b)).map(|_| ())
    };
    assert_eq!(copy(1, 0, MAX_FILE - 1, 1), Ok(()));
    for (at, from, len) in
        [(0, 0, 0), (0, MAX_FILE, 1), (MAX_FILE, 0, 1), (u64::MAX, 0, 1), (0, 1 << 62, 1), (0, 0, u64::MAX)]
    {
        assert_eq!(copy(1, at, from, len), Err(ProtoError::Range("copy")), "{at} {from} {len}");
    }
    assert_eq!(copy(MAX_COPIES as u64 + 1, 0, 0, 1), Err(ProtoError::Range("number of copies")));
    // Before the beginning of the old file.
    let before = [num(1), vec![1], num(1), num(0), num(1), num(1)].concat();
    assert_eq!(decode(&raw(encode::ty::COPIES, &before)), Err(ProtoError::Range("copy")));
    let zipped = |len: u64| decode(&raw(encode::ty::ZIPPED, &num(len))).map(|_| ());
    assert_eq!(zipped(MAX_MESSAGE as u64), Ok(()));
    assert_eq!(zipped(MAX_MESSAGE as u64 + 1), Err(ProtoError::Range("length of a message")));
    assert!(hello_with(&[(20, &[1, 2])]).is_ok());
    assert_eq!(hello_with(&[(20, &[1, 3])]), Err(ProtoError::Range("choice")));
    assert_eq!(hello_with(&[(20, &[1])]), Err(ProtoError::Truncated));
}
