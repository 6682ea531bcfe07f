//! Whole transfers between two adapters in memory: everything but the network is real.

mod bounds;
mod deletion;
mod delta;
mod linking;
mod listing;
mod tamper;

use crate::error::Cause;
use crate::keep::Keep;
use crate::limits::Budgets;
use crate::link::Link;
use crate::path::RelPath;
use crate::pool::{Pool, Wake};
use crate::progress::{Progress, Snapshot};
use crate::proto::{Entry, Flags, Kind, Name, Offer, Record, Root, Totals, put};
use crate::session::{Control, Fatal, Role, Session};
use crate::sink::{Sink, SinkOptions};
use crate::source::Source;
use crate::tree::Tree;
use crate::walk::Start;
use base::Time;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use verbs::{Adapter, Limits, QpId, QpInit, QpState, SegmentOp};

/// Segments carried in one turn of the loop.
const TURN: usize = 16;
/// With nothing to do for this long, a test has failed: something waits for what never comes.
const STUCK: Duration = Duration::from_secs(30);

struct End {
    a: Adapter,
    qp: QpId,
    s: Session,
}

impl End {
    fn new(seed: u64) -> End {
        let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let cq = a.create_cq(8192).unwrap();
        let qp = a.create_qp(pd, QpInit::new(cq, cq)).unwrap();
        a.modify_qp(qp, QpState::Rtr).unwrap();
        a.modify_qp(qp, QpState::Rts).unwrap();
        let link = Link::new(&mut a, pd, cq, qp).unwrap();
        End { a, qp, s: Session::over(link, Time::ZERO) }
    }

    fn sink(&self) -> &Sink {
        match &self.s.role {
            Role::Sink(s) => s,
            _ => panic!("no sink"),
        }
    }

    fn held(&self) -> [u64; 5] {
        self.sink().held()
    }

    /// Ends the session of a sink, which then holds no memory and no file.
    fn close(&mut self) {
        self.s.close(&mut self.a);
        while !self.s.settle() {
            std::thread::yield_now();
        }
        let [windows, granted, files, ..] = self.held();
        assert_eq!([windows, granted, files], [0; 3]);
    }
}

/// What the network does to the bytes.
#[derive(Default)]
struct Wire {
    /// Payload bytes of Writes carried.
    written: u64,
    /// Everything ends when so much was carried.
    cut: Option<u64>,
    /// Every so many segments of Writes a byte is spoilt, so many times.
    spoil: Option<(u64, u32)>,
    segments: u64,
}

impl Wire {
    /// Carries what is ready; whether there was anything.
    fn carry(&mut self, from: &mut End, to: &mut End) -> bool {
        to.a.set_send_limit(to.qp, from.a.recv_limit(from.qp).unwrap()).unwrap();
        from.a.set_send_limit(from.qp, to.a.recv_limit(to.qp).unwrap()).unwrap();
        let mut buf = vec![0; 60_000];
        for n in 0..TURN {
            if self.cut.is_some_and(|c| self.written >= c) {
                return n > 0;
            }
            let Some(seg) = from.a.next_segment(from.qp, buf.len()) else { return n > 0 };
            let p = &mut buf[..seg.len as usize];
            from.a.gather(from.qp, &seg, p).unwrap();
            if seg.op == SegmentOp::Write {
                self.written += p.len() as u64;
                self.segments += 1;
                if let Some((every, left)) = &mut self.spoil
                    && *left > 0
                    && self.segments.is_multiple_of(*every)
                {
                    *left -= 1;
                    p[0] ^= 1;
                }
            }
            to.a.place(to.qp, &seg.incoming(), p).unwrap();
            from.a.on_acked(from.qp, seg.reference());
        }
        true
    }
}

/// A disk of the sink that stands still each time so many bytes more were carried, until nothing else happens.
struct Slow {
    every: u64,
    next: u64,
    pool: Arc<Pool>,
    /// Dropped, it goes on.
    gate: Option<Sender<()>>,
    /// How often it stood still.
    times: u32,
}
impl Slow {
    fn new(every: u64) -> Slow {
        Slow { every, next: every, pool: Arc::new(Pool::with_threads(1)), gate: None, times: 0 }
    }
    fn carried(&mut self, written: u64) {
        if self.gate.is_none() && written >= self.next {
            let (gate, shut) = channel::<()>();
            // An error says that the gate was opened: it is never anything else.
            self.pool.submit(move || {
                let _ = shut.recv();
            });
            (self.gate, self.next) = (Some(gate), written + self.every);
        }
    }
    /// Nothing moves any more: looks at what the ends hold, and lets the disk go on. False when it does not stand still, or
    /// the source is still reading.
    fn stuck(&mut self, a: &End, b: &End) -> bool {
        let (Role::Source(source), Role::Sink(sink)) = (&a.s.role, &b.s.role) else { return false };
        if self.gate.is_none() || source.reading() {
            return false;
        }
        let (held, most) = sink.memory();
        assert!(held <= most, "{held} bytes of memory instead of {most}");
        let (held, most) = source.memory();
        assert!(held <= most, "{held} bytes read ahead instead of {most}");
        self.times += 1;
        self.gate = None;
        true
    }
}

/// One attempt to transfer something.
struct Attempt {
    wire: Wire,
    slow: Option<Slow>,
    flags: Flags,
    /// Called when this many bytes of Writes were carried, until it says true.
    disturb: Option<(u64, Box<dyn FnMut() -> bool>)>,
}

pub(crate) const FLAGS: Flags = Flags {
    skip_same: true,
    checksum: false,
    overwrite: true,
    dry_run: false,
    recursive: false,
    fresh: false,
    scan: false,
};

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt { wire: Wire::default(), slow: None, flags: FLAGS, disturb: None }
    }
}

struct Outcome {
    totals: Option<Totals>,
    source: Snapshot,
    sink: Snapshot,
    written: u64,
    /// Messages that came back to the source.
    answers: u64,
    /// How often the sink's disk stood still.
    stood: u32,
    fatal: Option<Fatal>,
}

fn rel(s: &str) -> RelPath {
    RelPath::parse(s.as_bytes()).unwrap()
}

impl Attempt {
    /// Sends `from/name` to `to` (as `to/name`, or as `to/dest`).
    fn run(mut self, from: &Path, name: &str, to: &Path, dest: &str) -> Outcome {
        let (ring, bell) = channel();
        let wake: Wake = Arc::new(move || {
            let _ = ring.send(()); // the test is over
        });
        let pool = Arc::new(Pool::with_threads(2));
        let (mut a, mut b) = (End::new(1), End::new(2));
        let (pa, pb) = (Progress::default(), Progress::default());
        let tree = Arc::new(Tree::open(from).unwrap());
        let kind = tree.info(&rel(name)).map_or(Kind::File, |i| i.kind);
        let start = Start { tree, path: rel(name) };
        let root = Root { name: rel(name), kind };
        let source = Source::new(
            pool.clone(),
            wake.clone(),
            vec![start],
            vec![root],
            (self.flags, Keep::default()),
            pa.clone(),
            &mut a.s.link,
        );
        a.s.role = Role::Source(Box::new(source.ok().unwrap()));
        let options = SinkOptions {
            dest: rel(dest),
            into: false,
            flags: self.flags,
            durable: false,
            one_file: false,
            write_only: None,
            keep: Default::default(),
            asked: false,
            anywhere: false,
        };
        let tree = Arc::new(Tree::open(to).unwrap());
        let pool = self.slow.as_ref().map_or(pool, |s| s.pool.clone());
        b.s.role = Role::Sink(Box::new(Sink::new(pool, wake, tree, options, pb.clone())));
        let (totals, fatal) = self.turn(&mut a, &mut b, &bell);
        let answers = a.s.link.received();
        if totals.is_some() {
            assert_eq!(b.held(), [0; 5], "of a transfer that is over");
        }
        a.s.close(&mut a.a);
        b.close();
        let stood = self.slow.map_or(0, |s| s.times);
        Outcome {
            totals,
            source: pa.snapshot(),
            sink: pb.snapshot(),
            written: self.wire.written,
            answers,
            stood,
            fatal,
        }
    }
    fn turn(&mut self, a: &mut End, b: &mut End, bell: &Receiver<()>) -> (Option<Totals>, Option<Fatal>) {
        let mut totals = None;
        loop {
            loop {
                match a.s.step(&mut a.a) {
                    Ok(None) => break,
                    Ok(Some(Control::SinkEnd(t))) => totals = Some(t),
                    Ok(Some(c)) => panic!("{c:?}"),
                    Err(f) => return (totals, Some(f)),
                }
            }
            if let Err(f) = b.s.step(&mut b.a) {
                return (totals, Some(f));
            }
            let busy = self.wire.carry(a, b) | self.wire.carry(b, a);
            // A turn may carry so much that nothing of it has been written yet: then again in the next one.
            let written = self.wire.written;
            if self.disturb.as_mut().is_some_and(|(from, f)| written >= *from && f()) {
                self.disturb = None;
            }
            if totals.is_some() || self.wire.cut.is_some_and(|c| self.wire.written >= c) {
                return (totals, None);
            }
            if let Some(s) = &mut self.slow {
                s.carried(self.wire.written);
                if !busy && s.stuck(a, b) {
                    continue;
                }
            }
            if !busy {
                let rang = bell.recv_timeout(STUCK).is_ok();
                assert!(rang, "nothing happens any more:\nthe sender: {:?}\nthe receiver: {:?}", a.s, b.s);
            }
            while bell.try_recv().is_ok() {}
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    blake3::Hasher::new().update(&seed.to_be_bytes()).finalize_xof().fill(&mut v);
    v
}

/// Name, kind and mode, time, contents.
type Thing = (Vec<u8>, u32, i64, i64, Vec<u8>);

/// Everything below a folder.
fn picture(root: &Path) -> Vec<Thing> {
    let mut v = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(p) = todo.pop() {
        let m = std::fs::symlink_metadata(&p).unwrap();
        let data = if m.is_dir() {
            todo.extend(std::fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
            Vec::new()
        } else if m.is_symlink() {
            std::fs::read_link(&p).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            std::fs::read(&p).unwrap()
        };
        let name = p.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        v.push((name, m.mode(), m.mtime(), m.mtime_nsec(), data));
    }
    v.sort();
    v
}
fn same(a: &Path, b: &Path) {
    let (x, y) = (picture(a), picture(b));
    let names =
        |v: &[Thing]| v.iter().map(|e| String::from_utf8_lossy(&e.0).into_owned()).collect::<Vec<_>>();
    assert_eq!(names(&x), names(&y));
    for (x, y) in x.iter().zip(&y) {
        assert!(x == y, "{} differs", String::from_utf8_lossy(&x.0));
    }
}

/// A tree with one of everything.
fn sample(root: &Path) {
    let t = root.join("t");
    std::fs::create_dir_all(t.join("deep/er/est")).unwrap();
    std::fs::create_dir_all(t.join("empty folder")).unwrap();
    std::fs::create_dir_all(t.join("closed")).unwrap();
    for i in 0..700 {
        std::fs::write(t.join(format!("deep/{i}")), noise(i, (i as usize * 37) % 9000)).unwrap();
    }
    std::fs::write(t.join("deep/er/est/zero"), "").unwrap();
    std::fs::write(t.join("closed/in"), "x").unwrap();
    std::fs::write(t.join(std::ffi::OsStr::from_bytes(b"not \xff\xfe utf-8\n")), "odd").unwrap();
    std::fs::write(t.join("just small"), noise(1, 128 * 1024)).unwrap();
    std::fs::write(t.join("just large"), noise(2, 128 * 1024 + 1)).unwrap();
    std::fs::write(t.join("one chunk"), noise(3, 256 * 1024)).unwrap();
    std::fs::write(t.join("large"), noise(4, 9_000_001)).unwrap();
    std::os::unix::fs::symlink("../elsewhere/\u{e9}", t.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc", t.join("deep/absolute")).unwrap();
    let f = std::fs::File::create(t.join("sparse")).unwrap();
    f.set_len(3 << 30).unwrap();
    f.write_all_at(&noise(5, 100_000), 1 << 20).unwrap();
    f.write_all_at(&noise(6, 300_000), (2 << 30) - 1000).unwrap();
    let f = std::fs::File::create(t.join("only a hole")).unwrap();
    f.set_len(1 << 20).unwrap();
    let mode = |p: &str, m| std::fs::set_permissions(t.join(p), PermissionsExt::from_mode(m)).unwrap();
    mode("large", 0o600);
    mode("deep/7", 0o755);
    mode("closed", 0o555);
    let old = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    std::fs::File::open(t.join("large")).unwrap().set_modified(old).unwrap();
    std::fs::File::open(t.join("deep")).unwrap().set_modified(old).unwrap();
}

fn dirs() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

/// Without the contents of the 3 GiB sparse file, which would take the test's memory.
fn take_sparse(from: &Path, to: &Path) {
    let (f, g) = (from.join("t/sparse"), to.join("t/sparse"));
    let (m, n) = (f.metadata().unwrap(), g.metadata().unwrap());
    assert_eq!((m.len(), m.mode(), m.mtime()), (n.len(), n.mode(), n.mtime()));
    assert!(n.blocks() <= m.blocks() + 4096, "holes were filled: {} for {} blocks", n.blocks(), m.blocks());
    let (x, y) = (std::fs::File::open(&f).unwrap(), std::fs::File::open(&g).unwrap());
    for (at, len) in [(0, 2 << 20), ((2 << 30) - 4096, 600_000)] {
        let (mut p, mut q) = (vec![0; len], vec![1; len]);
        x.read_exact_at(&mut p, at).unwrap();
        y.read_exact_at(&mut q, at).unwrap();
        assert!(p == q);
    }
    std::fs::remove_file(f).unwrap();
    std::fs::remove_file(g).unwrap();
}

#[test]
fn tree_of_all_kinds_is_transferred_and_a_repeat_sends_nothing() {
    let (from, to) = dirs();
    sample(from.path());
    let o = Attempt::default().run(from.path(), "t", to.path(), "");
    assert!(o.source.errors.is_empty() && o.fatal.is_none(), "{:?} {:?}", o.source.errors, o.fatal);
    let t = o.totals.unwrap();
    assert_eq!((t.files, t.links, t.dirs, t.failed), (709, 2, 6, 0));
    assert_eq!(o.source.bytes_confirmed, o.source.bytes_total);
    let o = Attempt::default().run(from.path(), "t", to.path(), "");
    assert_eq!((o.written, o.totals.unwrap().files, o.source.files_skipped), (0, 0, 709));
    // By contents too, where only times differ.
    let now = std::time::UNIX_EPOCH + Duration::from_secs(5);
    std::fs::File::open(to.path().join("t/deep/3")).unwrap().set_modified(now).unwrap();
    let flags = Flags { checksum: true, ..FLAGS };
    std::fs::remove_file(to.path().join("t/sparse")).unwrap();
    let o = Attempt { flags, ..Attempt::default() }.run(from.path(), "t", to.path(), "");
    assert_eq!((o.totals.unwrap().files, o.source.files_skipped), (1, 708));
    take_sparse(from.path(), to.path());
    let deep = |d: &Path| {
        let old = std::time::UNIX_EPOCH;
        std::fs::File::open(d.join("t")).unwrap().set_modified(old).unwrap();
    };
    deep(from.path());
    deep(to.path());
    same(&from.path().join("t"), &to.path().join("t"));
}

#[test]
fn corrupted_chunks_are_retransmitted() {
    let (from, to) = dirs();
    std::fs::write(from.path().join("f"), noise(9, 20 << 20)).unwrap();
    let wire = Wire { spoil: Some((40, 5)), ..Wire::default() };
    let o = Attempt { wire, ..Attempt::default() }.run(from.path(), "f", to.path(), "g");
    let t = o.totals.unwrap();
    assert_eq!((t.files, t.failed), (1, 0));
    assert!(t.repaired_chunks >= 3 && o.written <= (20 << 20) + (5 << 18), "{t:?} {}", o.written);
    same(from.path().join("f").as_path(), to.path().join("g").as_path());
}

#[test]
fn file_whose_hash_never_matches_is_not_renamed_into_place() {
    let (from, to) = dirs();
    std::fs::write(from.path().join("f"), noise(9, 1 << 20)).unwrap();
    let wire = Wire { spoil: Some((1, u32::MAX)), ..Wire::default() };
    let o = Attempt { wire, ..Attempt::default() }.run(from.path(), "f", to.path(), "");
    assert_eq!(o.totals.unwrap().failed, 1);
    assert_eq!(o.source.errors[0].cause, Cause::Corrupt);
    assert!(!to.path().join("f").exists());
}

#[test]
fn stale_journal_is_removed_unless_it_is_in_use() {
    let (from, to) = dirs();
    std::fs::create_dir(from.path().join("t")).unwrap();
    std::fs::write(from.path().join("t/f"), noise(9, 1 << 20)).unwrap();
    let run = || Attempt::default().run(from.path(), "t", to.path(), "");
    assert_eq!(run().totals.unwrap().failed, 0);
    let journal = to.path().join("t/.f.longhaul-journal");
    let part = to.path().join("t/.f.longhaul-part");
    for in_use in [true, false] {
        std::fs::write(&journal, b"left over").unwrap();
        if in_use {
            std::fs::write(&part, b"").unwrap();
        }
        assert_eq!(run().totals.unwrap().failed, 0);
        assert_eq!(journal.exists(), in_use);
        let _ = std::fs::remove_file(&part);
    }
}

#[test]
fn interrupted_transfer_resumes() {
    let (from, to) = dirs();
    std::fs::create_dir(from.path().join("t")).unwrap();
    let size = 6 << 20;
    for i in 0..8 {
        std::fs::write(from.path().join(format!("t/{i}")), noise(i, size)).unwrap();
    }
    let total = 8 * size as u64;
    let mut rng = base::Rng::from_u64(7);
    let (mut sent, mut attempts) = (0, 0);
    loop {
        attempts += 1;
        let cut = (attempts < 9).then(|| (1 << 20) + u64::from(rng.u32()) % (12 << 20));
        let wire = Wire { cut, ..Wire::default() };
        let o = Attempt { wire, ..Attempt::default() }.run(from.path(), "t", to.path(), "");
        assert!(o.fatal.is_none() && o.source.errors.is_empty(), "{:?}", o.source.errors);
        sent += o.written;
        if o.totals.is_some() {
            break;
        }
    }
    same(&from.path().join("t"), &to.path().join("t"));
    assert!(attempts > 3, "it was never interrupted");
    // Each interruption costs the chunks that were only partly there, one for each piece on its way.
    assert!(sent <= total + attempts * (1 << 20), "{sent} of {total} in {attempts} attempts");
}

#[test]
fn changed_source_restarts_the_file_with_a_note() {
    let (from, to) = dirs();
    let f = from.path().join("f");
    std::fs::write(&f, noise(1, 8 << 20)).unwrap();
    let wire = Wire { cut: Some(5 << 20), ..Wire::default() };
    assert!(Attempt { wire, ..Attempt::default() }.run(from.path(), "f", to.path(), "").totals.is_none());
    std::fs::write(&f, noise(2, 8 << 20)).unwrap();
    let o = Attempt::default().run(from.path(), "f", to.path(), "");
    assert_eq!(o.totals.unwrap().files, 1);
    assert_eq!(o.written, 8 << 20);
    assert!(o.sink.notes.iter().any(|n| n.contains("starting over")), "{:?}", o.sink.notes);
    same(&f, &to.path().join("f"));
}

#[test]
fn file_that_changes_while_sent_is_reported_and_the_others_continue() {
    for shrink in [false, true] {
        let (from, to) = dirs();
        std::fs::create_dir(from.path().join("t")).unwrap();
        let f = from.path().join("t/f");
        std::fs::write(&f, noise(1, 300 << 20)).unwrap();
        std::fs::write(from.path().join("t/g"), "fine").unwrap();
        let disturb: Box<dyn FnMut() -> bool> = Box::new(move || {
            let f = std::fs::File::options().write(true).open(&f).unwrap();
            if shrink {
                f.set_len(1000).unwrap();
            } else {
                f.write_all_at(b"other", 299 << 20).unwrap();
            }
            true
        });
        let o = Attempt { disturb: Some((1 << 20, disturb)), ..Attempt::default() };
        let o = o.run(from.path(), "t", to.path(), "");
        assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((1, 1)));
        assert_eq!(o.source.errors[0].cause, Cause::Changed, "{:?}", o.source.errors);
        assert!(o.source.errors[0].path.ends_with("t/f"));
        let left: Vec<_> =
            std::fs::read_dir(to.path().join("t")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["g"], "nothing of the other is left");
    }
}

#[test]
fn obstacle_at_the_destination_is_reported_and_kept() {
    let (from, to) = dirs();
    for d in [from.path(), to.path()] {
        std::fs::create_dir(d.join("t")).unwrap();
    }
    std::fs::write(from.path().join("t/small"), "s").unwrap();
    std::fs::write(from.path().join("t/large"), noise(1, 1 << 20)).unwrap();
    std::fs::write(from.path().join("t/ok"), "ok").unwrap();
    for d in ["small", "large"] {
        std::fs::create_dir(to.path().join("t").join(d)).unwrap();
        std::fs::write(to.path().join("t").join(d).join("precious"), "p").unwrap();
    }
    let o = Attempt::default().run(from.path(), "t", to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((1, 2)));
    assert!(o.source.errors.iter().all(|e| e.cause == Cause::IsFolder), "{:?}", o.source.errors);
    for d in ["small", "large"] {
        assert!(to.path().join("t").join(d).join("precious").exists());
    }
}

#[test]
fn existing_files_are_kept_without_overwrite() {
    let (from, to) = dirs();
    for (d, text) in [(from.path(), "new"), (to.path(), "precious")] {
        std::fs::create_dir(d.join("t")).unwrap();
        std::fs::write(d.join("t/f"), text).unwrap();
    }
    std::fs::write(from.path().join("t/g"), "g").unwrap();
    let flags = Flags { overwrite: false, ..FLAGS };
    let o = Attempt { flags, ..Attempt::default() }.run(from.path(), "t", to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((1, 1)));
    assert_eq!(o.source.errors[0].cause, Cause::Exists);
    assert_eq!(std::fs::read(to.path().join("t/f")).unwrap(), b"precious");
}

#[test]
fn dry_run_changes_nothing() {
    let (from, to) = dirs();
    sample(from.path());
    let flags = Flags { dry_run: true, ..FLAGS };
    let o = Attempt { flags, ..Attempt::default() }.run(from.path(), "t", to.path(), "new/place");
    assert_eq!((o.source.files_total, o.source.complete, o.written), (709, true, 0));
    assert_eq!(o.totals.unwrap(), Totals::default());
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn symbolic_link_at_the_destination_is_not_followed() {
    let (from, to) = dirs();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(from.path().join("t/d")).unwrap();
    std::fs::write(from.path().join("t/d/small"), "s").unwrap();
    std::fs::write(from.path().join("t/d/large"), noise(1, 1 << 20)).unwrap();
    std::fs::create_dir(to.path().join("t")).unwrap();
    std::os::unix::fs::symlink(outside.path(), to.path().join("t/d")).unwrap();
    let o = Attempt::default().run(from.path(), "t", to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((0, 3)));
    assert!(o.source.errors.iter().all(|e| e.cause == Cause::Link), "{:?}", o.source.errors);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn ten_thousand_small_files_take_few_messages() {
    let (from, to) = dirs();
    for i in 0..10_000 {
        let d = from.path().join(format!("t/{:02}", i / 200));
        if i % 200 == 0 {
            std::fs::create_dir_all(&d).unwrap();
        }
        std::fs::write(d.join(format!("{i}")), noise(i, 4096)).unwrap();
    }
    let o = Attempt::default().run(from.path(), "t", to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((10_000, 0)));
    same(&from.path().join("t"), &to.path().join("t"));
}

/// A message as a peer might forge it.
fn forged(r: Record<'_>) -> Vec<u8> {
    let mut m = Vec::new();
    put(&mut m, &r);
    m
}
fn protocol(r: Result<(), Fatal>, word: &str) {
    match r {
        Err(Fatal::Protocol(t)) => assert!(t.contains(word), "{t}"),
        r => panic!("{word}: {r:?}"),
    }
}

#[test]
fn slow_disk_slows_the_source_within_bounded_memory() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let t = from.path().join("t");
    std::fs::create_dir(&t).unwrap();
    let mut all = 0;
    for (i, len) in [150 << 20, 9_000_001, 300_000, 20 << 20].into_iter().enumerate() {
        std::fs::write(t.join(format!("{i}")), noise(i as u64, len)).unwrap();
        all += len as u64;
    }
    let slow = Some(Slow::new(24 << 20));
    let o = Attempt { slow, ..Attempt::default() }.run(from.path(), "t", to.path(), "");
    assert!(o.fatal.is_none() && o.sink.failed == 0, "{:?}", o.sink.errors);
    let totals = o.totals.unwrap();
    assert_eq!((o.written, totals.files, totals.repaired_chunks), (all, 4, 0), "nothing was sent twice");
    assert!(o.stood >= 3, "it stood still {} times only", o.stood);
    same(&t, &to.path().join("t"));
}

#[test]
fn a_source_believes_nothing_about_files_it_did_not_offer() {
    let from = tempfile::tempdir().unwrap();
    std::fs::write(from.path().join("f"), noise(1, 1 << 20)).unwrap();
    let (ring, bell) = channel();
    let wake: Wake = Arc::new(move || {
        let _ = ring.send(());
    });
    let mut a = End::new(1);
    let start = Start { tree: Arc::new(Tree::open(from.path()).unwrap()), path: rel("f") };
    let root = Root { name: rel("f"), kind: Kind::File };
    let (pool, p) = (Arc::new(Pool::with_threads(1)), Progress::default());
    let s = Source::new(pool, wake, vec![start], vec![root], (FLAGS, Keep::default()), p, &mut a.s.link)
        .ok()
        .unwrap();
    a.s.role = Role::Source(Box::new(s));
    let accept = |have| forged(Record::Accept { file: 0, have });
    protocol(a.s.message(accept(Vec::new()), &mut a.a), "never offered");
    a.s.message(forged(Record::ListEnd), &mut a.a).unwrap();
    while !matches!(&a.s.role, Role::Source(s) if s.offered() == 1) {
        bell.recv_timeout(STUCK).unwrap();
        a.s.step(&mut a.a).unwrap();
    }
    let grant = |start, len| forged(Record::Grant { file: 0, start, len, rkey: 1 });
    for (m, word) in [
        (grant(0, (1 << 20) + 1), "outside"),
        (grant(100, 1000), "outside"),
        (grant(1 << 40, 1), "outside"),
        (accept(std::iter::once(2..9).collect()), "outside"),
        (forged(Record::Again { file: 0, chunk: 77 }), "not sent"),
        (forged(Record::Done { file: 5, failed: None }), "never offered"),
        (forged(Record::Grant { file: 5, start: 0, len: 1, rkey: 1 }), "never offered"),
        (forged(Record::SourceEnd), "sending side"),
        (forged(Record::SinkEnd(Totals::default())), "side"),
    ] {
        protocol(a.s.message(m, &mut a.a), word);
    }
}

#[test]
fn a_sink_takes_nothing_out_of_turn() {
    let to = tempfile::tempdir().unwrap();
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
    let tree = Arc::new(Tree::open(to.path()).unwrap());
    let pool = Arc::new(Pool::with_threads(1));
    b.s.role = Role::Sink(Box::new(Sink::new(pool, wake, tree, options, Progress::default())));
    let name = Name { root: 0, path: rel("x") };
    let meta = Default::default();
    let small = forged(Record::Small { name: name.clone(), meta, hash: [0; 32], data: b"x" });
    protocol(b.s.message(small, &mut b.a), "before the destination");
    let roots = || forged(Record::Roots(vec![Root { name: rel("t"), kind: Kind::Dir }]));
    b.s.message(roots(), &mut b.a).unwrap();
    protocol(b.s.message(roots(), &mut b.a), "twice");
    bell.recv_timeout(STUCK).unwrap();
    b.s.step(&mut b.a).unwrap();
    let offer = |file, root| {
        let (name, extents) = (Name { root, path: rel("x") }, std::iter::once(0..1 << 20).collect());
        forged(Record::Offer(Offer { file, name, meta, size: 1 << 20, extents }))
    };
    protocol(b.s.message(offer(1, 0), &mut b.a), "out of turn");
    protocol(b.s.message(offer(0, 9), &mut b.a), "not announced");
    b.s.message(offer(1, 0), &mut b.a).unwrap();
    let hashes = |first| forged(Record::Hashes { file: 1, first, hashes: vec![[1; 32]] });
    protocol(b.s.message(hashes(0), &mut b.a), "no memory was granted");
    protocol(b.s.message(hashes(4), &mut b.a), "beyond the end");
    protocol(b.s.message(forged(Record::End { file: 7, hash: [0; 32] }), &mut b.a), "never offered");
    protocol(b.s.message(forged(Record::ListEnd), &mut b.a), "receiving side");
    b.close();
}

#[test]
fn a_listing_that_was_not_asked_for_ends_the_session() {
    let from = tempfile::tempdir().unwrap();
    std::fs::write(from.path().join("f"), b"x").unwrap();
    let mut a = End::new(1);
    let start = Start { tree: Arc::new(Tree::open(from.path()).unwrap()), path: rel("f") };
    let root = Root { name: rel("f"), kind: Kind::File };
    let (pool, p) = (Arc::new(Pool::with_threads(1)), Progress::default());
    let s = Source::new(
        pool,
        Arc::new(|| ()),
        vec![start],
        vec![root],
        (FLAGS, Keep::default()),
        p,
        &mut a.s.link,
    )
    .ok()
    .unwrap();
    a.s.role = Role::Source(Box::new(s));
    // The walk has one name, and asks for no more than the first messages.
    let e =
        Entry { root: 0, path: rel("a"), kind: Kind::File, size: 1, meta: Default::default(), hash: None };
    let sent = (0..10_000).take_while(|_| a.s.message(forged(Record::Entry(e.clone())), &mut a.a).is_ok());
    assert_eq!(sent.count() as u64, crate::source::FIRST_LIST_CREDIT);
}
