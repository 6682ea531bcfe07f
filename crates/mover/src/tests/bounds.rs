//! What a sink holds of memory and files, and when it slows its source down.

use super::*;
use crate::proto::Account;
use crate::select::Select;
use base::Span;
use lhio::accounts::Sort;

/// A sink that is ready for files, with memory and descriptors for clients, and what wakes it.
pub(super) fn limited_sink(to: &Path, budgets: &Budgets) -> (End, Progress, Receiver<()>) {
    sink_with(Arc::new(Pool::with_threads(1)), to, budgets, (&Select::default(), false))
}

/// As [`limited_sink`], with what the client selects, and whether some of its sources failed.
pub(super) fn sink_with(
    pool: Arc<Pool>,
    to: &Path,
    budgets: &Budgets,
    (select, failed): (&Select, bool),
) -> (End, Progress, Receiver<()>) {
    let (ring, bell) = channel();
    let wake: Wake = Arc::new(move || {
        let _ = ring.send(());
    });
    let mut b = End::new(1);
    let options = SinkOptions {
        dest: rel(""),
        into: false,
        flags: FLAGS,
        durable: false,
        one_file: false,
        write_only: None,
        keep: Default::default(),
        asked: false,
        anywhere: false,
    };
    let (tree, p) = (Arc::new(Tree::open(to).unwrap()), Progress::default());
    let sink = Sink::new(pool, wake, tree, options, p.clone()).within(budgets.share_of(vec!["a".to_owned()]));
    let sink = sink.selecting(select, failed).ok().unwrap();
    b.s.role = Role::Sink(Box::new(sink));
    b.s.message(forged(Record::Roots(vec![Root { name: rel("t"), kind: Kind::Dir }])), &mut b.a).unwrap();
    bell.recv_timeout(STUCK).unwrap();
    b.s.step(&mut b.a).unwrap();
    (b, p, bell)
}

/// Hashes of 1,000 such files would take 4 GiB, and their ranges 256 MiB; a message of 12 KiB brings one.
#[test]
fn offers_of_huge_sparse_files_take_no_more_than_the_sessions_share() {
    const SIZE: u64 = 1 << 43;
    let (to, budgets) = (tempfile::tempdir().unwrap(), Budgets::new(256 << 20, 100));
    let (mut b, progress, bell) = limited_sink(to.path(), &budgets);
    let extents: Vec<_> = (0..4_096).map(|n| n << 30..(n << 30) + 4_096).collect();
    for file in 0..1_000 {
        let name = Name { root: 0, path: rel(&format!("x{file}")) };
        let o = Offer { file, name, meta: Default::default(), size: SIZE, extents: extents.clone() };
        b.s.message(forged(Record::Offer(o)), &mut b.a).unwrap();
    }
    assert!(budgets.used() <= 256 << 20, "{}", budgets.used());
    let opened = |b: &End| b.held()[2] as usize;
    assert!((4..=20).contains(&opened(&b)), "{} of 1,000", opened(&b));
    // Every one whose ranges found no room failed by itself.
    while std::fs::read_dir(to.path().join("t")).map_or(0, Iterator::count) < 2 * opened(&b) {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
    assert!(
        progress.snapshot().errors.iter().all(|e| e.cause == Cause::NoMemory || e.cause == Cause::TooLarge)
    );
    b.close();
    drop(b);
    assert_eq!(budgets.used(), 0);
}

/// Messages that wait for the disk are a quarter of the memory that may be granted, which is 32 MiB on a short path.
#[test]
fn sink_is_full_while_its_disk_stands_still_and_not_afterwards() {
    const WAITING: u64 = 8 << 20;
    let (to, budgets) = (tempfile::tempdir().unwrap(), Budgets::new(1 << 30, 100));
    let pool = Arc::new(Pool::with_threads(1));
    let (mut b, progress, bell) = sink_with(pool.clone(), to.path(), &budgets, (&Select::default(), false));
    let (gate, shut) = channel::<()>();
    pool.submit(move || {
        let _ = shut.recv(); // an error: the gate is open
    });
    let data = vec![7; 60_000];
    let (mut files, mut sent) = (0, 0);
    while !b.sink().full() {
        let name = Name { root: 0, path: rel(&format!("x{files}")) };
        let hash = blake3::hash(&data).into();
        let small = forged(Record::Small { name, meta: Default::default(), hash, data: &data });
        (files, sent) = (files + 1, sent + small.len() as u64);
        b.s.message(small, &mut b.a).unwrap();
        assert!(sent <= WAITING + 70_000, "{sent} bytes wait");
    }
    assert!(sent > WAITING, "full with {sent} bytes");
    drop(gate);
    while b.held()[3] > 0 {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
    assert!(!b.sink().full());
    assert_eq!(progress.snapshot().failed, 0, "{:?}", progress.snapshot().errors);
    assert_eq!(std::fs::read_dir(to.path().join("t")).unwrap().count(), files);
    b.close();
}

/// Four round trips of what arrives, within 32 MiB and 4 GiB, and never less than before.
#[test]
fn memory_follows_rate_and_round_trip() {
    let (to, budgets) = (tempfile::tempdir().unwrap(), Budgets::new(1 << 40, 100));
    let (mut b, ..) = limited_sink(to.path(), &budgets);
    let mut total = 0;
    for (bytes, seconds, rtt_ms, want) in [
        (1_000_000, 1, 10, 32 << 20),
        (250_000_000, 2, 200, 100_000_000),
        (125_000_000, 1, 100, 100_000_000),
        (12_500_000_000, 1, 1_000, 4 << 30),
    ] {
        total += bytes;
        let Role::Sink(s) = &mut b.s.role else { panic!("no sink") };
        s.arrived(total, Span::from_secs(seconds), Span::from_millis(rtt_ms));
        let (_, most) = s.memory();
        assert_eq!(most, want + (4 << 20), "{bytes} bytes in {seconds} s, {rtt_ms} ms");
    }
    b.close();
}

#[test]
fn questions_about_accounts_are_bounded() {
    let (to, budgets) = (tempfile::tempdir().unwrap(), Budgets::new(1 << 30, 100));
    let pool = Arc::new(Pool::with_threads(1));
    let (mut b, ..) = sink_with(pool.clone(), to.path(), &budgets, (&Select::default(), false));
    let (gate, shut) = channel::<()>();
    pool.submit(move || {
        let _ = shut.recv(); // an error: the gate is open
    });
    let ask =
        || forged(Record::AskAccount { sort: Sort::User, account: Account { id: 7, name: Vec::new() } });
    // One is looked up, sixteen wait.
    for _ in 0..17 {
        b.s.message(ask(), &mut b.a).unwrap();
    }
    protocol(b.s.message(ask(), &mut b.a), "too many questions");
    drop(gate);
    b.close();
}
