use super::*;
use base::{RangeSet, Rng};
use proptest::prelude::*;
use std::ops::Range;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Rng::from_u64(seed).fill(&mut v);
    v
}
fn cuts(data: &[u8], aim: usize, portion: usize) -> Vec<Cut> {
    let (mut c, mut out) = (Cutter::new(aim), Vec::new());
    for (i, p) in data.chunks(portion).enumerate() {
        c.feed((i * portion) as u64, p, &mut out);
    }
    c.end(&mut out);
    out
}
fn listed(cuts: &[Cut]) -> Vec<Listed> {
    let mut end = 0;
    let one = |c: &Cut| {
        let gap = c.offset - std::mem::replace(&mut end, c.offset + u64::from(c.len));
        Listed { gap, len: c.len, key: c.key }
    };
    cuts.iter().map(one).collect()
}
fn copies(new: &[u8], old: &[u8], aim: usize) -> Vec<Copied> {
    let mut l = Listing::new(u64::MAX);
    l.add(&listed(&cuts(old, aim, 70_000))).unwrap();
    l.find(&cuts(new, aim, 100_001))
}
/// The new file, of the old one and of what would be sent; how many bytes that is.
fn build(new: &[u8], old: &[u8], copies: Vec<Copied>) -> (Vec<u8>, usize) {
    let mut last = None;
    for c in &copies {
        assert!(Plan::may_follow(last, c, new.len() as u64, old.len() as u64), "{c:?} behind {last:?}");
        last = Some(c);
    }
    let plan = Plan::new(copies);
    let mut out = vec![0; new.len()];
    let all = 0..new.len() as u64;
    for c in plan.copied(all.clone()) {
        let part = &old[c.from as usize..(c.from + c.len) as usize];
        out[c.at as usize..c.end() as usize].copy_from_slice(part);
    }
    let literals = plan.literals(std::slice::from_ref(&all), all.clone());
    let sent = literals.iter().map(|r| (r.end - r.start) as usize).sum();
    for r in literals {
        let r = r.start as usize..r.end as usize;
        out[r.clone()].copy_from_slice(&new[r]);
    }
    (out, sent)
}

#[test]
fn pieces_depend_on_the_bytes_and_not_on_how_they_come() {
    let data = noise(1, 600_000);
    let whole = cuts(&data, 4096, data.len());
    for portion in [1, 999, 4096, 65_536] {
        assert_eq!(cuts(&data[..100_000], 4096, portion), cuts(&data[..100_000], 4096, 100_000));
        assert_eq!(cuts(&data, 4096, portion.max(500)), whole);
    }
    let mut at = 0;
    for c in &whole {
        assert_eq!((c.offset, c.len <= 4 * 4096), (at, true));
        at += u64::from(c.len);
        assert_eq!(c.key[..], blake3::hash(&data[c.offset as usize..at as usize]).as_bytes()[..16]);
    }
    assert_eq!(at, data.len() as u64);
    let mean = data.len() / whole.len();
    assert!((3000..7000).contains(&mean), "{mean}");
}

/// Both ends must cut alike for ever: other cuts would be another protocol.
#[test]
fn the_cuts_of_a_known_text_stay_where_they_are() {
    let mut text = vec![0; 64 << 10];
    blake3::Hasher::new().update(b"longhaul deltas").finalize_xof().fill(&mut text);
    let ends: Vec<u64> = cuts(&text, 4096, 5_000).iter().map(|c| c.offset + u64::from(c.len)).collect();
    assert_eq!(ends, ENDS);
}
const ENDS: [u64; 12] = [4713, 10735, 17255, 20370, 26307, 31133, 41424, 46807, 51711, 58528, 62689, 65536];

/// The cuts as docs/protocol.md has them (A.5), byte by byte.
fn as_documented(data: &[u8], aim: usize) -> Vec<usize> {
    const MASKS: [u64; 14] = [
        0x5900_0353_0000,
        0xd900_0353_0000,
        0xd901_0353_0000,
        0xd903_0353_0000,
        0xd903_1353_0000,
        0xd90f_0353_0000,
        0xd903_0353_7000,
        0xd907_0353_7000,
        0xd907_0753_7000,
        0xd917_0753_7000,
        0xd917_4753_7000,
        0xd917_6753_7000,
        0xd937_6753_7000,
        0xd937_7753_7000,
    ];
    let (gear, _) = fastcdc::v2020::get_gear_with_seed(0);
    let mask = |n: u32| MASKS[n as usize - 10];
    let (mut ends, mut start) = (Vec::new(), 0);
    while start < data.len() {
        let rest = &data[start..];
        let end = rest.len().min(4 * aim);
        let (mut h, mut len) = (0u64, end);
        if rest.len() > aim / 4 {
            for i in aim / 4..end - end % 2 {
                h = h.wrapping_mul(2).wrapping_add(gear[usize::from(rest[i])]);
                let m = if i < aim { mask(aim.ilog2() + 1) } else { mask(aim.ilog2() - 1) };
                if h & m == 0 {
                    len = i;
                    break;
                }
            }
        }
        start += len;
        ends.push(start);
    }
    ends
}

#[test]
fn cuts_are_those_of_the_documented_algorithm() {
    for (aim, len) in [(2048, 300_001), (4096, 500_000), (16_384, 700_003), (65_536, 2_000_000)] {
        let mut data = noise(11, len);
        // Where no cut is found, the longest piece.
        data[len / 2..len / 2 + len / 8].fill(0);
        let ours: Vec<usize> =
            cuts(&data, aim, 77_777).iter().map(|c| c.offset as usize + c.len as usize).collect();
        assert_eq!(ours, as_documented(&data, aim), "aim {aim}");
    }
}

#[test]
fn a_gap_begins_a_new_piece() {
    let data = noise(2, 100_000);
    let (mut c, mut out) = (Cutter::new(2048), Vec::new());
    c.feed(0, &data, &mut out);
    c.feed(1 << 30, &data, &mut out);
    c.end(&mut out);
    let (a, b): (Vec<&Cut>, Vec<&Cut>) = out.iter().partition(|c| c.offset < 1 << 30);
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(&b).all(|(a, b)| (a.key, a.len) == (b.key, b.len)));
    let mut l = Listing::new(1_000);
    l.add(&listed(&out)).unwrap();
    assert_eq!(l.find(&cuts(&data, 2048, 100_000)), [Copied { at: 0, from: 0, len: 100_000 }]);
}

#[test]
fn pieces_grow_with_the_file_and_their_number_stays_bounded() {
    assert_eq!(aim(1 << 20), 2048);
    assert_eq!(aim(64 << 20), 8 << 10);
    assert_eq!(aim(10 << 30), 64 << 10);
    assert_eq!(aim(1 << 40), 1 << 20);
    assert_eq!(aim(MAX_FILE), MAX_AIM);
    for size in [MIN_FILE, 1 << 30, (1 << 40) - 1, 3 << 40, MAX_FILE] {
        assert!(most_pieces(size) <= (2 << 20) + MORE_PIECES, "{size}");
    }
    assert!(fits(MIN_FILE) && fits(MAX_FILE) && !fits(MIN_FILE - 1) && !fits(MAX_FILE + 1));
}

#[test]
fn an_insertion_costs_the_pieces_around_it_only() {
    let old = noise(3, 4 << 20);
    let mut new = old.clone();
    new.splice(1_000_000..1_000_000, noise(4, 333));
    let (built, sent) = build(&new, &old, copies(&new, &old, aim(4 << 20)));
    assert!(built == new && sent < 4 * 4 * 2048, "{sent}");
    // Moved blocks are found wherever they were.
    let moved = [&old[2 << 20..], &old[..2 << 20]].concat();
    let (built, sent) = build(&moved, &old, copies(&moved, &old, aim(4 << 20)));
    assert!(built == moved && sent < 8 * 4 * 2048, "{sent}");
}

#[test]
fn a_list_that_is_too_long_or_reaches_too_far_is_refused() {
    let l = Listed { gap: 0, len: 1, key: [1; 16] };
    assert!(Listing::new(2).add(&[l, l]).is_ok());
    assert!(Listing::new(2).add(&[l, l, l]).is_err());
    assert!(Listing::new(9).add(&[Listed { gap: u64::MAX, ..l }]).is_err());
    assert!(Listing::new(9).add(&[Listed { gap: crate::hash::MAX_FILE, ..l }]).is_err());
}

#[test]
fn copies_outside_of_either_file_or_over_each_other_are_told() {
    let c = |at, from, len| Copied { at, from, len };
    let ok = |last: Option<Copied>, x: Copied| Plan::may_follow(last.as_ref(), &x, 100, 50);
    assert!(ok(None, c(0, 0, 50)) && ok(Some(c(0, 0, 50)), c(50, 0, 50)));
    for bad in
        [c(0, 0, 0), c(51, 0, 50), c(0, 1, 50), c(u64::MAX, 0, 2), c(0, u64::MAX, 2), c(0, 0, u64::MAX)]
    {
        assert!(!ok(None, bad), "{bad:?}");
    }
    assert!(!ok(Some(c(0, 0, 50)), c(49, 0, 10)));
}

#[test]
fn chunks_are_covered_where_all_their_data_is_copied() {
    // Chunks of 256 KiB; a hole in the third.
    let (log2, size) = (18, 5u64 << 18);
    let hole = (2u64 << 18) + 100..(3u64 << 18) - 100;
    let extents = [0..hole.start, hole.end..size];
    let data = crate::source::data_chunks(&extents, log2);
    let plan = Plan::new(vec![
        Copied { at: 10, from: 0, len: (2 << 18) + 90 },
        Copied { at: hole.end, from: 7, len: (1 << 18) + 100 },
    ]);
    let covered: Vec<Range<u64>> = plan.covered(&extents, &data, log2, size).iter().collect();
    assert!(covered.into_iter().eq(std::iter::once(1..4)));
    assert_eq!(plan.literals(&extents, 0..size), [0..10, 4 << 18..size]);
    assert_eq!(plan.bytes(0..20), 10);
    assert_eq!(plan.copied(15..20).collect::<Vec<_>>(), [Copied { at: 15, from: 5, len: 5 }]);
    assert_eq!(Plan::default().covered(&extents, &data, log2, size), RangeSet::new());
}

#[derive(Clone, Debug)]
enum Edit {
    Insert(usize, u64, usize),
    Delete(usize, usize),
    Overwrite(usize, u64, usize),
    Move(usize, usize, usize),
}
fn edit() -> impl Strategy<Value = Edit> {
    let (at, len) = (0usize..400_000, 1usize..60_000);
    prop_oneof![
        (at.clone(), any::<u64>(), len.clone()).prop_map(|(a, s, n)| Edit::Insert(a, s, n)),
        (at.clone(), len.clone()).prop_map(|(a, n)| Edit::Delete(a, n)),
        (at.clone(), any::<u64>(), len.clone()).prop_map(|(a, s, n)| Edit::Overwrite(a, s, n)),
        (at.clone(), len, at).prop_map(|(a, n, b)| Edit::Move(a, n, b)),
    ]
}
fn apply(v: &mut Vec<u8>, e: &Edit) {
    let within =
        |at: usize, len: usize, v: &[u8]| at.min(v.len())..(at + len).min(v.len()).max(at.min(v.len()));
    match *e {
        Edit::Insert(at, seed, len) => {
            let at = at.min(v.len());
            v.splice(at..at, noise(seed, len));
        }
        Edit::Delete(at, len) => drop(v.drain(within(at, len, v))),
        Edit::Overwrite(at, seed, len) => {
            let r = within(at, len, v);
            let n = r.len();
            v[r].copy_from_slice(&noise(seed, n));
        }
        Edit::Move(at, len, to) => {
            let block: Vec<u8> = v.drain(within(at, len, v)).collect();
            let to = to.min(v.len());
            v.splice(to..to, block);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn edited_files_are_built_exactly_and_cheaply(seed: u64, edits in proptest::collection::vec(edit(), 0..6)) {
        let old = noise(seed, 500_000);
        let mut new = old.clone();
        edits.iter().for_each(|e| apply(&mut new, e));
        let (built, sent) = build(&new, &old, copies(&new, &old, 2048));
        prop_assert!(built == new);
        let fresh: usize = edits.iter().map(|e| match e {
            Edit::Insert(_, _, n) | Edit::Overwrite(_, _, n) => *n,
            Edit::Delete(..) | Edit::Move(..) => 0,
        }).sum();
        // Each edit leaves three seams at most, with the pieces that they cross.
        prop_assert!(sent <= fresh + edits.len() * 3 * 5 * 2048, "{} sent, {} new", sent, fresh);
    }
}
