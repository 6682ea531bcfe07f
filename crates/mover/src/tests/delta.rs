//! Peers that lie about deltas, or say too much of them.

use super::bounds::limited_sink;
use super::*;
use crate::data_reduction::{DataReduction, ReductionMode, ReductionPolicy};
use crate::delta::{Copied, Listed, most_pieces};
use base::Span;

const SIZE: u64 = 2 << 20;

/// A source that has offered `f` and asked for what the sink has of it.
fn asking() -> (tempfile::TempDir, End, Receiver<()>, Progress) {
    let from = tempfile::tempdir().unwrap();
    std::fs::write(from.path().join("f"), noise(1, SIZE as usize)).unwrap();
    let (ring, bell) = channel();
    let wake: Wake = Arc::new(move || {
        let _ = ring.send(()); // the test is over
    });
    let mut a = End::new(1);
    let start = Start { tree: Arc::new(Tree::open(from.path()).unwrap()), path: rel("f") };
    let root = Root { name: rel("f"), kind: Kind::File };
    let (pool, p) = (Arc::new(Pool::with_threads(1)), Progress::default());
    let s =
        Source::new(pool, wake, vec![start], vec![root], (FLAGS, Keep::default()), p.clone(), &mut a.s.link)
            .ok()
            .unwrap();
    let data_reduction = DataReduction { deltas: ReductionMode::Always, compress: ReductionMode::Never };
    a.s.role = Role::Source(Box::new(s.saving(ReductionPolicy::new(data_reduction, Span::ZERO))));
    let (path, meta) = (RelPath::root(), Default::default());
    let e = Entry { root: 0, path, kind: Kind::File, size: 5, meta, hash: None };
    a.s.message(forged(Record::Entry(e)), &mut a.a).unwrap();
    a.s.message(forged(Record::ListEnd), &mut a.a).unwrap();
    while !matches!(&a.s.role, Role::Source(s) if s.offered() == 1) {
        bell.recv_timeout(STUCK).unwrap();
        a.s.step(&mut a.a).unwrap();
    }
    (from, a, bell, p)
}
fn listed(n: usize) -> Vec<Listed> {
    (0..n as u64).map(|k| Listed { gap: 0, len: 1, key: u128::from(k).to_be_bytes() }).collect()
}
fn basis(pieces: Vec<Listed>, last: bool) -> Vec<u8> {
    forged(Record::Basis { file: 0, pieces, last })
}
fn accept() -> Vec<u8> {
    forged(Record::Accept { file: 0, have: Vec::new() })
}

#[test]
fn a_source_takes_one_list_of_bounded_length_when_it_has_asked() {
    let grant = forged(Record::Grant { file: 0, start: 0, len: SIZE, rkey: 1 });
    let (_from, mut a, ..) = asking();
    protocol(a.s.message(basis(listed(1), false), &mut a.a), "not asked for");
    a.s.message(accept(), &mut a.a).unwrap();
    protocol(a.s.message(grant.clone(), &mut a.a), "before it was said");
    a.s.message(basis(listed(1), true), &mut a.a).unwrap();
    protocol(a.s.message(basis(listed(1), true), &mut a.a), "not asked for");

    // A list without end.
    let (_from, mut a, ..) = asking();
    a.s.message(accept(), &mut a.a).unwrap();
    let taken = (0..100_000).take_while(|_| a.s.message(basis(listed(500), false), &mut a.a).is_ok()).count();
    assert!((taken as u64) * 500 <= most_pieces(SIZE), "{taken}");

    // Of a file that is not compared.
    let (_from, mut a, bell, p) = asking();
    a.s.message(accept(), &mut a.a).unwrap();
    a.s.message(basis(Vec::new(), true), &mut a.a).unwrap();
    while a.s.message(grant.clone(), &mut a.a).is_err() {
        bell.recv_timeout(STUCK).unwrap();
        a.s.step(&mut a.a).unwrap();
    }
    assert_eq!(p.snapshot().bytes_matched, 0);
    protocol(a.s.message(basis(listed(1), true), &mut a.a), "not asked for");
}

/// A sink where `t/x` is `SIZE` bytes long, which has been offered another file of that name and asked for the old one.
fn asked(budgets: &Budgets) -> (tempfile::TempDir, End, Receiver<()>) {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("t")).unwrap();
    std::fs::write(to.path().join("t/x"), noise(2, SIZE as usize)).unwrap();
    let (mut b, _, bell) = limited_sink(to.path(), budgets);
    let name = Name { root: 0, path: rel("x") };
    let size = SIZE * 2;
    let o =
        Offer { file: 0, name, meta: Default::default(), size, extents: std::iter::once(0..size).collect() };
    let both = [forged(Record::Offer(o)), forged(Record::AskBasis { file: 0 })].concat();
    b.s.message(both, &mut b.a).unwrap();
    protocol(b.s.message(forged(Record::AskBasis { file: 0 }), &mut b.a), "twice, or too late");
    (to, b, bell)
}
/// Until the sink has listed: only then copies may come.
fn until_listed(b: &mut End, bell: &Receiver<()>) {
    let none = || forged(Record::Copies { file: 0, copies: Vec::new(), last: false });
    while b.s.message(none(), &mut b.a).is_err() {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
}
fn end(mut b: End) {
    b.close();
}

#[test]
fn a_sink_copies_nothing_from_or_to_outside_of_the_files() {
    let budgets = Budgets::new(256 << 20, 100);
    let c = |at, from, len| Copied { at, from, len };
    let copies = |v: Vec<Copied>, last| forged(Record::Copies { file: 0, copies: v, last });
    for (bad, first) in [
        (c(0, SIZE, 1), None),
        (c(0, SIZE - 1, 2), None),
        (c(SIZE * 2, 0, 1), None),
        (c(SIZE * 2 - 1, 0, 2), None),
        (c(0, 0, 10), Some(c(0, 0, 10))),
        (c(5, 0, 10), Some(c(0, 0, 10))),
    ] {
        let (_to, mut b, bell) = asked(&budgets);
        until_listed(&mut b, &bell);
        if let Some(f) = first {
            b.s.message(copies(vec![f], false), &mut b.a).unwrap();
        }
        protocol(b.s.message(copies(vec![bad], false), &mut b.a), "beyond the ends");
        end(b);
    }
    // Copies without end.
    let (_to, mut b, bell) = asked(&budgets);
    until_listed(&mut b, &bell);
    let many = |n: u64| (n * 1_000..(n + 1) * 1_000).map(|k| c(k * 2, 0, 1)).collect::<Vec<_>>();
    let taken = (0..2_000).take_while(|n| b.s.message(copies(many(*n), false), &mut b.a).is_ok()).count();
    assert!((taken as u64) * 1_000 <= most_pieces(SIZE * 2), "{taken}");
    end(b);
    assert_eq!(budgets.used(), 0);
}

#[test]
fn a_sink_takes_copies_and_frames_in_their_turn_only() {
    let budgets = Budgets::new(256 << 20, 100);
    let (_to, mut b, bell) = asked(&budgets);
    let all =
        |last| forged(Record::Copies { file: 0, copies: vec![Copied { at: 0, from: 0, len: SIZE }], last });
    protocol(b.s.message(all(true), &mut b.a), "not listed");
    let hashes = |first, n| forged(Record::Hashes { file: 0, first, hashes: vec![[1; 32]; n] });
    protocol(b.s.message(hashes(0, 1), &mut b.a), "no memory was granted");
    until_listed(&mut b, &bell);
    b.s.message(all(true), &mut b.a).unwrap();
    protocol(b.s.message(all(true), &mut b.a), "not listed");
    // The first eight chunks of 256 KiB are made of copies; a frame is for what is written to memory.
    let packed = |chunk, len| forged(Record::Packed { file: 0, chunk, len, hash: [1; 32] });
    protocol(b.s.message(packed(0, 100), &mut b.a), "no memory was granted");
    protocol(b.s.message(packed(9, 0), &mut b.a), "longer than its chunk");
    protocol(b.s.message(packed(9, (1 << 18) + 1), &mut b.a), "longer than its chunk");
    protocol(b.s.message(packed(77, 1), &mut b.a), "beyond the end");
    // What is copied and does not match is asked for, as it is.
    b.s.message(hashes(1, 7), &mut b.a).unwrap();
    protocol(b.s.message(hashes(1, 1), &mut b.a), "no memory was granted");
    let granted = |b: &End| match &b.s.role {
        Role::Sink(s) => s.memory().0,
        _ => 0,
    };
    while granted(&b) < SIZE {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
    end(b);
    assert_eq!(budgets.used(), 0);
}

#[test]
fn frames_that_hold_no_message_of_files_end_the_session() {
    let small = |data| {
        forged(Record::Small {
            name: Name { root: 0, path: rel("y") },
            meta: Default::default(),
            hash: [0; 32],
            data,
        })
    };
    let pack = |m: &[u8]| zstd::bulk::compress(m, 3).unwrap();
    let good = small(&[7; 9_000]);
    let other = [small(&[7; 100]), forged(Record::SourceEnd)].concat();
    for (frame, len) in [
        (pack(&good), good.len() - 1),
        (pack(&good), good.len() + 1),
        (pack(&good)[1..].to_vec(), good.len()),
        (pack(&other), other.len()),
        (pack(&vec![0; 10 << 20]), crate::proto::MAX_MESSAGE),
    ] {
        let (to, budgets) = (tempfile::tempdir().unwrap(), Budgets::new(256 << 20, 100));
        let (mut b, _, bell) = limited_sink(to.path(), &budgets);
        b.s.message(forged(Record::Zipped { len, frame: &frame }), &mut b.a).unwrap();
        bell.recv_timeout(STUCK).unwrap();
        protocol(b.s.step(&mut b.a).map(drop), "no message of files");
        end(b);
    }
    let (_from, mut a, ..) = asking();
    let z = forged(Record::Zipped { len: good.len(), frame: &pack(&good) });
    protocol(a.s.message(z, &mut a.a), "sending side");
}
