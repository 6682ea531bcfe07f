//! Folders with remains of all kinds, and with what only looks like one.

use super::*;
use crate::journal::{Identity, Journal};
use crate::proto::Meta;
use std::fs::{self, File};
use std::os::unix::fs::symlink;

const DAY: u64 = 86_400;
/// Two days from now, so that what tests make is old.
fn later() -> WallTime {
    let now = WallTime::now();
    WallTime { secs: now.secs + 2 * DAY as i64, ..now }
}
fn options(dir: &Path) -> CleanOptions {
    CleanOptions { dir: dir.to_owned(), older: DAY, doubtful: false, dry_run: false }
}
/// Path and result of each, in order; `-` for removed, `!` for failed.
fn run(o: &CleanOptions, now: WallTime) -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    clean(o, now, &mut |f| {
        let result = match f.result {
            CleanResult::Removed => "-",
            CleanResult::Kept(why) => why,
            CleanResult::Failed(_) => "!",
        };
        all.push((String::from_utf8(f.path).unwrap(), result));
    })
    .unwrap();
    all.sort();
    all
}
fn all(v: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    v.iter().map(|(p, f)| ((*p).to_owned(), *f)).collect()
}
fn journal(at: &Path) {
    let id = Identity::new(10 << 20, &Meta { mode: 0, secs: 5, nanos: 6 }, 18, &[]);
    let f = File::options().read(true).write(true).create(true).truncate(false).open(at).unwrap();
    Journal::open(f, &id).unwrap().0.append(&[(3, [3; 32])]).unwrap();
}
/// One of everything that may go, here and in a folder below.
fn remains(dir: &Path) {
    fs::create_dir_all(dir.join("t/deep")).unwrap();
    for d in [dir.to_owned(), dir.join("t/deep")] {
        fs::write(d.join(".f.longhaul-part"), [1; 5000]).unwrap();
        journal(&d.join(".f.longhaul-journal"));
        fs::write(d.join(".t.longhaul-session"), BootId::current().0).unwrap();
        symlink("/etc/passwd", d.join(".l.longhaul-part")).unwrap();
        fs::write(d.join("kept"), "kept").unwrap();
    }
    fs::write(dir.join(".root.longhaul-session"), b"").unwrap();
}

#[test]
fn only_old_leftovers_are_removed() {
    let d = tempfile::tempdir().unwrap();
    remains(d.path());
    // Names that no transfer makes.
    for n in [".longhaul-part", "f.longhaul-part", ".f.longhaul-part.bak", ".f.longhaul", ".longhaul-journal"]
    {
        fs::write(d.path().join(n), "mine").unwrap();
    }
    fs::create_dir(d.path().join(".d.longhaul-part")).unwrap();
    let here = [".f.longhaul-journal", ".f.longhaul-part", ".l.longhaul-part", ".t.longhaul-session"];
    let mut gone: Vec<String> = here
        .iter()
        .flat_map(|n| [(*n).to_owned(), format!("t/deep/{n}")])
        .chain([".root.longhaul-session".into()])
        .collect();
    gone.sort();
    let rehearsal = CleanOptions { dry_run: true, ..options(d.path()) };
    for o in [&rehearsal, &rehearsal, &options(d.path())] {
        let found = run(o, later());
        assert!(found.iter().all(|f| f.1 == "-"), "{found:?}");
        assert_eq!(found.into_iter().map(|f| f.0).collect::<Vec<_>>(), gone);
    }
    assert!(run(&options(d.path()), later()).is_empty());
    let mut left: Vec<_> = fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(
        left,
        [
            ".d.longhaul-part",
            ".f.longhaul",
            ".f.longhaul-part.bak",
            ".longhaul-journal",
            ".longhaul-part",
            "f.longhaul-part",
            "kept",
            "t"
        ]
    );
    assert!(Path::new("/etc/passwd").exists() && d.path().join("t/deep/kept").exists());
}

#[test]
fn recent_leftovers_are_kept() {
    let d = tempfile::tempdir().unwrap();
    remains(d.path());
    assert!(run(&options(d.path()), WallTime::now()).iter().all(|f| f.1 == RECENT));
    // A part whose source is old is not old itself.
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    File::open(d.path().join(".f.longhaul-part")).unwrap().set_modified(old).unwrap();
    assert!(run(&options(d.path()), WallTime::now()).iter().all(|f| f.1 == RECENT));
}

#[test]
fn leftovers_of_a_running_transfer_are_kept() {
    let d = tempfile::tempdir().unwrap();
    remains(d.path());
    let hold = |n: &str| LockedFile::new(File::open(d.path().join(n)).unwrap()).unwrap();
    // One file.
    let held = hold("t/deep/.f.longhaul-part");
    let o = CleanOptions { dry_run: true, ..options(d.path()) };
    let kept = |found: Vec<(String, &'static str)>| -> Vec<String> {
        found.into_iter().filter(|f| f.1 == RUNNING).map(|f| f.0).collect()
    };
    assert_eq!(kept(run(&o, later())), ["t/deep/.f.longhaul-journal", "t/deep/.f.longhaul-part"]);
    drop(held);
    // All below a root that is being written is left alone, looked at or not.
    let held = hold(".t.longhaul-session");
    let found = run(&o, later());
    assert!(found.iter().all(|f| !f.0.starts_with("t/")), "{found:?}");
    assert_eq!(kept(found), [".t.longhaul-session"]);
    for inside in ["t", "t/deep"] {
        let e = clean(&options(&d.path().join(inside)), later(), &mut |_| panic!("nothing is looked at"));
        assert!(e.unwrap_err().to_string().contains("a transfer is writing to"));
    }
    drop(held);
    // The whole folder.
    let held = hold(".root.longhaul-session");
    assert!(run(&o, later()).iter().all(|f| f.1 == RUNNING && !f.0.starts_with("t/")));
    assert!(clean(&options(&d.path().join("t/deep")), later(), &mut |_| ()).is_err());
    drop(held);
    assert!(kept(run(&o, later())).is_empty());
}

#[test]
fn files_with_foreign_contents_are_kept() {
    let d = tempfile::tempdir().unwrap();
    let f = |n: &str, data: &[u8]| fs::write(d.path().join(n), data).unwrap();
    f(".a.longhaul-journal", b"my diary, which is longer than the header of a journal of a transfer, by more than a few words of mine");
    f(".a.longhaul-part", b"belongs to the diary");
    f(".b.longhaul-journal", b"");
    f(".c.longhaul-journal", b"lhjr");
    f(".d.longhaul-journal", b"lhxr");
    f(".e.longhaul-session", b"notes");
    f(".f.longhaul-session", &[b'a'; 37]);
    f(".g.longhaul-session", b"0123-4567");
    let o = CleanOptions { doubtful: true, ..options(d.path()) };
    assert_eq!(
        run(&o, later()),
        all(&[
            (".a.longhaul-journal", FOREIGN),
            (".a.longhaul-part", FOREIGN),
            (".b.longhaul-journal", "-"),
            (".c.longhaul-journal", "-"),
            (".d.longhaul-journal", FOREIGN),
            (".e.longhaul-session", FOREIGN),
            (".f.longhaul-session", FOREIGN),
            (".g.longhaul-session", "-"),
        ])
    );
}

#[test]
fn session_file_from_before_a_reboot_is_kept_by_default() {
    let d = tempfile::tempdir().unwrap();
    fs::write(d.path().join(".t.longhaul-session"), [b'a'; 36]).unwrap();
    let o = options(d.path());
    assert_eq!(run(&o, later()), all(&[(".t.longhaul-session", DOUBTFUL)]));
    assert_eq!(run(&CleanOptions { doubtful: true, ..o }, later()), all(&[(".t.longhaul-session", "-")]));
    assert_eq!(fs::read_dir(d.path()).unwrap().count(), 0);
}

#[test]
fn links_to_folders_are_not_followed() {
    let (d, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    remains(outside.path());
    symlink(outside.path(), d.path().join("link")).unwrap();
    assert!(run(&options(d.path()), later()).is_empty());
    // The one that the user names is.
    assert!(!run(&options(&d.path().join("link")), later()).is_empty());
    assert!(outside.path().join("kept").exists());
}
