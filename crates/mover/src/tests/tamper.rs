//! Somebody changes what an unfinished transfer left, or what it is writing: what gets its name is right all the same,
//! and what the name of an unfinished file leads to is never written to.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// 32 chunks of 256 KiB.
const SIZE: usize = 8 << 20;
const CHUNK: u64 = 256 << 10;
/// Bytes that travel before the first attempt is cut off.
const CUT: u64 = 5 << 20;

/// An unfinished file, and something beside it that must not change.
struct Scene {
    from: tempfile::TempDir,
    to: tempfile::TempDir,
}
impl Scene {
    /// What an attempt left that was cut off.
    fn new() -> Scene {
        let s = Scene::empty();
        let wire = Wire { cut: Some(CUT), ..Wire::default() };
        let o = Attempt { wire, ..Attempt::default() }.run(s.from.path(), "f", s.to.path(), "");
        assert!(o.totals.is_none() && s.part().exists() && s.journal().exists());
        s
    }
    fn empty() -> Scene {
        let (from, to) = dirs();
        fs::write(from.path().join("f"), noise(1, SIZE)).unwrap();
        fs::write(to.path().join("precious"), "precious").unwrap();
        Scene { from, to }
    }
    fn part(&self) -> PathBuf {
        self.to.path().join(".f.longhaul-part")
    }
    fn journal(&self) -> PathBuf {
        self.to.path().join(".f.longhaul-journal")
    }
    fn precious(&self) -> PathBuf {
        self.to.path().join("precious")
    }
    /// The next attempt ends well, and nothing else was touched.
    fn go_on(&self, what: &str) -> Outcome {
        let o = Attempt::default().run(self.from.path(), "f", self.to.path(), "");
        self.right(&o, what);
        o
    }
    fn right(&self, o: &Outcome, what: &str) {
        assert!(
            o.fatal.is_none() && o.source.errors.is_empty(),
            "{what}: {:?} {:?}",
            o.fatal,
            o.source.errors
        );
        assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((1, 0)), "{what}");
        assert!(fs::read(self.to.path().join("f")).unwrap() == noise(1, SIZE), "{what}: wrong bytes");
        assert_eq!(fs::read_to_string(self.precious()).unwrap(), "precious", "{what}");
        let mut left: Vec<_> =
            fs::read_dir(self.to.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["f", "precious"], "{what}");
    }
}
fn change(p: &Path, at: u64) {
    fs::File::options().write(true).open(p).unwrap().write_all_at(b"tampered", at).unwrap();
}
fn fifo(p: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, p, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
}

#[test]
fn only_changed_bytes_of_a_part_file_are_retransmitted() {
    let s = Scene::new();
    let untouched = Scene::new().go_on("untouched").written;
    assert!(untouched <= SIZE as u64 - CUT + (1 << 20), "{untouched}");
    let at = [5, 3 * CHUNK + 9, 9 * CHUNK - 4, 12 * CHUNK];
    at.iter().for_each(|at| change(&s.part(), *at));
    let o = s.go_on("changed");
    // The third of them reaches over the border of two chunks.
    let most = untouched + 5 * CHUNK + (1 << 20);
    assert!(o.written <= most, "{} were sent, {most} at most were changed or missing", o.written);
    assert!(o.sink.bytes_resumed > 0 && o.sink.bytes_resumed + o.written >= SIZE as u64);
}

#[test]
fn truncated_extended_or_replaced_part_file_is_repaired() {
    type Act = fn(&Scene);
    let acts: [(&str, Act); 9] = [
        ("cut", |s| fs::File::options().write(true).open(s.part()).unwrap().set_len(CHUNK + 77).unwrap()),
        ("emptied", |s| fs::write(s.part(), "").unwrap()),
        ("longer", |s| fs::File::options().write(true).open(s.part()).unwrap().set_len(99 << 20).unwrap()),
        ("another file", |s| fs::write(s.part(), noise(7, SIZE)).unwrap()),
        ("removed", |s| fs::remove_file(s.part()).unwrap()),
        ("a link", |s| {
            fs::remove_file(s.part()).unwrap();
            symlink(s.precious(), s.part()).unwrap();
        }),
        ("a second name", |s| {
            fs::remove_file(s.part()).unwrap();
            fs::hard_link(s.precious(), s.part()).unwrap();
        }),
        ("a pipe", |s| {
            fs::remove_file(s.part()).unwrap();
            fifo(&s.part());
        }),
        ("a folder", |s| {
            fs::remove_file(s.part()).unwrap();
            fs::create_dir(s.part()).unwrap();
        }),
    ];
    for (what, act) in acts {
        let s = Scene::new();
        act(&s);
        s.go_on(what);
    }
}

#[test]
fn folder_in_place_of_a_part_file_is_reported() {
    let s = Scene::new();
    fs::remove_file(s.part()).unwrap();
    fs::create_dir_all(s.part().join("full")).unwrap();
    let o = Attempt::default().run(s.from.path(), "f", s.to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((0, 1)));
    assert!(o.source.errors[0].cause == Cause::IsFolder, "{:?}", o.source.errors);
    assert!(s.part().join("full").exists() && !s.to.path().join("f").exists());
}

#[test]
fn forged_or_replaced_journal_is_detected() {
    type Act = fn(&Scene);
    let acts: [(&str, Act); 7] = [
        ("garbage", |s| fs::write(s.journal(), noise(3, 100_000)).unwrap()),
        ("garbage behind", |s| {
            let mut b = fs::read(s.journal()).unwrap();
            b.extend(noise(3, 100_000));
            fs::write(s.journal(), b).unwrap();
        }),
        // It says that all chunks are there, with hashes that are none.
        ("records that lie", |s| {
            let mut b = fs::read(s.journal()).unwrap();
            for c in 0..SIZE as u64 / CHUNK {
                let r = [&c.to_be_bytes()[..], &[7; 32]].concat();
                b.extend_from_slice(&r);
                b.extend_from_slice(&blake3::hash(&r).as_bytes()[..8]);
            }
            fs::write(s.journal(), b).unwrap();
        }),
        ("removed", |s| fs::remove_file(s.journal()).unwrap()),
        ("a link", |s| {
            fs::remove_file(s.journal()).unwrap();
            symlink(s.precious(), s.journal()).unwrap();
        }),
        ("a second name", |s| {
            fs::remove_file(s.journal()).unwrap();
            fs::hard_link(s.precious(), s.journal()).unwrap();
        }),
        ("a pipe", |s| {
            fs::remove_file(s.journal()).unwrap();
            fifo(&s.journal());
        }),
    ];
    for (what, act) in acts {
        let s = Scene::new();
        act(&s);
        s.go_on(what);
    }
}

#[test]
fn data_written_into_holes_of_a_part_file_is_removed() {
    let (from, to) = dirs();
    let f = fs::File::create(from.path().join("f")).unwrap();
    f.set_len(40 << 20).unwrap();
    // Data at both ends, and in the middle of a chunk.
    for (at, len) in [(0, 3 << 20), ((20 << 20) + 70_000, 60_000), (37 << 20, 3 << 20)] {
        f.write_all_at(&noise(at, len), at).unwrap();
    }
    let wire = Wire { cut: Some(2 << 20), ..Wire::default() };
    assert!(Attempt { wire, ..Attempt::default() }.run(from.path(), "f", to.path(), "").totals.is_none());
    let part = to.path().join(".f.longhaul-part");
    for at in [10 << 20, (20 << 20) + 200_000, (20 << 20) + 1000] {
        change(&part, at);
    }
    let o = Attempt::default().run(from.path(), "f", to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((1, 0)), "{:?}", o.source.errors);
    same(&from.path().join("f"), &to.path().join("f"));
}

/// Whether the first chunk is in the file: what happens next is to happen to verified data.
fn first_chunk_is_there(part: &Path) -> bool {
    let want = noise(1, SIZE);
    let mut have = vec![0; CHUNK as usize];
    let read = fs::File::open(part).and_then(|f| f.read_exact_at(&mut have, 0));
    read.is_ok() && have[..] == want[..have.len()]
}

#[test]
fn data_that_others_change_while_it_is_received_is_retransmitted() {
    type Act = fn(&Path);
    let acts: [(&str, Act); 3] = [
        ("bytes", |p| change(p, 1000)),
        ("cut", |p| fs::File::options().write(true).open(p).unwrap().set_len(0).unwrap()),
        ("longer", |p| fs::File::options().write(true).open(p).unwrap().set_len(50 << 20).unwrap()),
    ];
    for (what, act) in acts {
        let s = Scene::empty();
        let part = s.part();
        let disturb: Box<dyn FnMut() -> bool> = Box::new(move || {
            let there = first_chunk_is_there(&part);
            if there {
                act(&part);
            }
            there
        });
        let o = Attempt { disturb: Some((5 << 20, disturb)), ..Attempt::default() };
        let o = o.run(s.from.path(), "f", s.to.path(), "");
        s.right(&o, what);
        let t = o.totals.unwrap();
        if what == "longer" {
            assert_eq!(t.repaired_chunks, 0, "nothing was wrong");
        } else {
            assert!(t.repaired_chunks > 0 && o.sink.notes.iter().any(|n| n.contains("another program")));
            assert!(o.written > SIZE as u64, "{what}");
        }
    }
}

#[test]
fn file_that_others_keep_reading_is_completed() {
    let s = Scene::empty();
    let part = s.part();
    let reader: Box<dyn FnMut() -> bool> = Box::new(move || {
        let part = part.clone();
        std::thread::spawn(move || while fs::File::open(&part).is_ok() {});
        true
    });
    let o = Attempt { disturb: Some((1 << 20, reader)), ..Attempt::default() };
    let o = o.run(s.from.path(), "f", s.to.path(), "");
    s.right(&o, "read");
    assert_eq!((o.totals.unwrap().repaired_chunks, o.written), (0, SIZE as u64));
}

#[test]
fn file_swapped_in_for_a_part_file_is_not_renamed_into_place() {
    let s = Scene::empty();
    let (part, other) = (s.part(), s.to.path().join("other"));
    fs::write(&other, noise(9, SIZE)).unwrap();
    let disturb: Box<dyn FnMut() -> bool> = Box::new(move || fs::rename(&other, &part).is_ok());
    let o = Attempt { disturb: Some((5 << 20, disturb)), ..Attempt::default() };
    let o = o.run(s.from.path(), "f", s.to.path(), "");
    assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((0, 1)));
    assert!(o.source.errors[0].cause == Cause::Changed, "{:?}", o.source.errors);
    assert!(!s.to.path().join("f").exists());
    s.go_on("the next attempt");
}

#[test]
fn links_in_place_of_temporary_files_are_not_written_through() {
    let (from, to) = dirs();
    fs::create_dir(from.path().join("t")).unwrap();
    symlink("nowhere", from.path().join("t/link")).unwrap();
    for n in ["small", "medium"] {
        fs::write(from.path().join("t").join(n), noise(2, if n == "small" { 1000 } else { 400_000 }))
            .unwrap();
    }
    let plants: [fn(&Path, &Path); 4] = [
        |precious, at| fs::hard_link(precious, at).unwrap(),
        |precious, at| symlink(precious, at).unwrap(),
        |_, at| fifo(at),
        |_, at| fs::create_dir(at).unwrap(),
    ];
    for plant in plants {
        let precious = to.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        fs::create_dir(to.path().join("t")).unwrap();
        for at in [
            "t/.small.longhaul-part",
            "t/.medium.longhaul-part",
            "t/.link.longhaul-part",
            ".t.longhaul-session",
        ] {
            plant(&precious, &to.path().join(at));
        }
        let o = Attempt::default().run(from.path(), "t", to.path(), "");
        assert_eq!(o.totals.map(|t| (t.files, t.failed)), Some((2, 0)), "{:?}", o.source.errors);
        same(&from.path().join("t"), &to.path().join("t"));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        fs::remove_dir_all(to.path().join("t")).unwrap();
    }
}

#[test]
fn attributes_of_existing_files_are_kept_without_overwrite() {
    let (from, to) = dirs();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let older = std::time::UNIX_EPOCH + Duration::from_secs(900_000_000);
    for (d, at, mode) in [(from.path(), old, 0o750), (to.path(), older, 0o700)] {
        fs::create_dir_all(d.join("there/deep")).unwrap();
        fs::write(d.join("there/same"), "same").unwrap();
        symlink("nowhere", d.join("there/link")).unwrap();
        for n in ["there/same", "there/deep", "there", ""] {
            let f = fs::File::open(d.join(n)).unwrap();
            f.set_permissions(PermissionsExt::from_mode(mode)).unwrap();
            f.set_modified(at).unwrap();
        }
    }
    fs::create_dir_all(from.path().join("new/deep")).unwrap();
    fs::write(from.path().join("new/deep/file"), "new").unwrap();
    for n in ["new/deep", "new"] {
        let f = fs::File::open(from.path().join(n)).unwrap();
        f.set_permissions(PermissionsExt::from_mode(0o555)).unwrap();
        f.set_modified(old).unwrap();
    }
    let attributes = |n: &str| {
        let m = fs::symlink_metadata(to.path().join(n)).unwrap();
        (m.mode() & 0o777, m.mtime())
    };
    let before: Vec<_> = ["there/same", "there/deep", "there", "there/link"].map(attributes).to_vec();
    // The same contents, found by contents: only their attributes differ. The client's word, then the server's alone.
    let flags = Flags { checksum: true, overwrite: false, ..FLAGS };
    let o = Attempt { flags, ..Attempt::default() }.run(from.path(), "", to.path(), "");
    assert_eq!(o.totals.map(|t| t.failed), Some(0), "{:?}", o.source.errors);
    assert_eq!(["there/same", "there/deep", "there", "there/link"].map(attributes).to_vec(), before);
    assert_eq!(attributes("").0, 0o700, "the root");
    // What is new has them all.
    assert_eq!((attributes("new/deep"), attributes("new")), ((0o555, 1_000_000_000), (0o555, 1_000_000_000)));
    let o = Attempt { flags: Flags { checksum: true, ..FLAGS }, ..Attempt::default() };
    o.run(from.path(), "", to.path(), "");
    assert_eq!(attributes("there/same"), (0o750, 1_000_000_000), "with overwriting");
    for n in ["new/deep", "new"] {
        for d in [from.path(), to.path()] {
            fs::set_permissions(d.join(n), PermissionsExt::from_mode(0o755)).unwrap();
        }
    }
}
