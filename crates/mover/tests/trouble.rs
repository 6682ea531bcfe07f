//! Things that go wrong while a transfer runs, over real sockets. Each must be named with a way out, leave the rest of
//! the transfer alone, show in its result, and cost nothing that was there before.

mod common;

use common::{get, noise, put, put_all, put_slowly, serve};
use longhaul_mover::{Cause, Error, ServeOptions, Summary};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;

/// Rate of transfers that something happens to, in Mbit/s.
const SLOW: u64 = 800;
/// More than a source reads ahead, so that its end is still on the disk when the beginning has arrived.
const LARGE: usize = 100 << 20;
/// Somebody without rights (`nobody`).
const NOBODY: u32 = 65_534;

fn dirs() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}
fn write(root: &Path, name: &str, data: impl AsRef<[u8]>) {
    let p = root.join(name);
    fs::create_dir_all(p.parent().unwrap()).unwrap();
    fs::write(p, data).unwrap();
}
/// Does something once this much has arrived.
fn when(
    bytes: u64,
    act: impl FnOnce() + Send + 'static,
) -> impl FnOnce(longhaul_mover::Progress, longhaul_mover::Wake) {
    move |p, _| {
        std::thread::spawn(move || {
            while p.snapshot().bytes_confirmed < bytes && p.outcome().is_none() {
                std::thread::yield_now();
            }
            act();
        });
    }
}
/// Exactly these failed, each for this cause, named and with advice.
fn failed(r: &Summary, what: &[(&str, Cause)]) {
    let mut errors: Vec<_> = r.progress.errors.iter().collect();
    errors.sort_by_key(|e| &e.path);
    let got: Vec<_> = errors.iter().map(|e| (e.path.as_str(), e.cause)).collect();
    assert_eq!(got.len(), what.len(), "{errors:?}");
    for ((path, cause), e) in what.iter().zip(&errors) {
        assert!(e.path.ends_with(path) && e.cause == *cause, "{path}: {e:?}");
        let text = e.to_string();
        assert!(text.starts_with(&e.path) && text.ends_with(cause.advice()) && !e.text.is_empty(), "{text}");
    }
    let system = r.progress.errors.iter().map(|e| e.cause).find(|c| c.is_system());
    assert_eq!(r.error, Some(Error::Partial { failed: what.len() as u64, system }));
}
/// Nothing of unfinished transfers lies in a folder.
fn clean(dir: &Path) {
    for e in fs::read_dir(dir).unwrap() {
        let n = e.unwrap().file_name().into_string().unwrap();
        assert!(!n.contains(".longhaul-part") && !n.contains(".longhaul-journal"), "{n} is left");
    }
}
/// Runs `f` without a superuser's rights to files, on this thread and those it starts.
fn as_nobody<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|s| {
        let t = s.spawn(|| {
            // SAFETY: changes nothing but this thread's identity for file access; without the right to do so,
            // nothing at all, and then files are denied to this user anyway.
            unsafe { libc::setfsuid(NOBODY) };
            f()
        });
        t.join().unwrap()
    })
}

#[test]
fn large_files_that_shrink_grow_or_change_are_named_and_one_that_is_unlinked_arrives() {
    let (from, served) = dirs();
    let t = from.path().join("t");
    for (i, n) in ["changes", "grows", "shrinks", "unlinked"].iter().enumerate() {
        write(&t, n, noise(i as u64, LARGE));
        if *n != "unlinked" {
            write(served.path(), &format!("t/{n}"), "what was there before");
        }
    }
    write(&t, "rest", "rest");
    let s = serve(ServeOptions::new(served.path()));
    let at = t.clone();
    let disturb = when(1 << 20, move || {
        let open = |n: &str| fs::File::options().write(true).open(at.join(n)).unwrap();
        open("changes").write_all_at(b"other", LARGE as u64 - 10).unwrap();
        fs::File::options().append(true).open(at.join("grows")).unwrap().write_all(b"more").unwrap();
        open("shrinks").set_len(1000).unwrap();
        fs::remove_file(at.join("unlinked")).unwrap();
    });
    let r = put_slowly(s.addr, &t, "", SLOW, disturb).unwrap();
    let changed = ["t/changes", "t/grows", "t/shrinks"].map(|n| (n, Cause::Changed));
    // One that was not open yet when it was unlinked is missing; either is right, and told.
    if served.path().join("t/unlinked").exists() {
        failed(&r, &changed);
        assert!(fs::read(served.path().join("t/unlinked")).unwrap() == noise(3, LARGE));
    } else {
        failed(&r, &[&changed[..], &[("t/unlinked", Cause::Vanished)]].concat());
    }
    for n in ["changes", "grows", "shrinks"] {
        assert_eq!(fs::read(served.path().join("t").join(n)).unwrap(), b"what was there before");
    }
    assert_eq!(fs::read(served.path().join("t/rest")).unwrap(), b"rest");
    clean(&served.path().join("t"));
}

#[test]
fn small_files_that_vanish_before_their_turn_are_named() {
    const FILES: usize = 1500;
    let (from, served) = dirs();
    let t = from.path().join("t");
    for i in 0..FILES {
        write(&t, &format!("{i:04}"), noise(i as u64, 100_000));
    }
    write(served.path(), &format!("t/{:04}", FILES - 1), "what was there before");
    let s = serve(ServeOptions::new(served.path()));
    let last = t.join(format!("{:04}", FILES - 1));
    let r = put_slowly(s.addr, &t, "", SLOW / 2, when(1, move || fs::remove_file(last).unwrap())).unwrap();
    failed(&r, &[("t/1499", Cause::Vanished)]);
    assert_eq!(r.totals.files, FILES as u64 - 1);
    assert_eq!(fs::read(served.path().join("t/1499")).unwrap(), b"what was there before");
    clean(&served.path().join("t"));
}

#[test]
fn files_that_may_not_be_read_are_named() {
    let (from, served) = dirs();
    let t = from.path().join("t");
    let dest = tempfile::tempdir().unwrap();
    for d in [&from, &served, &dest] {
        fs::set_permissions(d, PermissionsExt::from_mode(0o777)).unwrap();
    }
    write(&t, "ok", "ok");
    write(&t, "small", "small");
    write(&t, "large", noise(1, 2 << 20));
    write(&t, "shut/inside", "inside");
    for n in ["small", "large", "shut"] {
        fs::set_permissions(t.join(n), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let denied = [("t/large", Cause::Denied), ("t/shut", Cause::Denied), ("t/small", Cause::Denied)];
    let s = serve(ServeOptions::new(served.path()));
    let r = as_nobody(|| put(s.addr, &t, "")).unwrap();
    failed(&r, &denied);
    assert_eq!(fs::read(served.path().join("t/ok")).unwrap(), b"ok");
    clean(&served.path().join("t"));
    drop(s);
    // The same when it is the server that may not.
    let s = as_nobody(|| serve(ServeOptions::new(from.path())));
    let r = get(s.addr, "t", dest.path()).unwrap();
    failed(&r, &denied);
    assert_eq!(fs::read(dest.path().join("t/ok")).unwrap(), b"ok");
    fs::set_permissions(t.join("shut"), PermissionsExt::from_mode(0o700)).unwrap();
}

/// The kernel answers the reading of memory that is not there with EIO, as it does for a disk that fails.
#[test]
fn a_file_whose_storage_fails_is_named() {
    let (from, served) = dirs();
    write(from.path(), "ok", "ok");
    write(served.path(), "mem", "what was there before");
    let s = serve(ServeOptions::new(served.path()));
    let r = put_all(s.addr, &[&from.path().join("ok"), Path::new("/proc/self/mem")], "").unwrap();
    failed(&r, &[("mem", Cause::Storage)]);
    assert_eq!(fs::read(served.path().join("ok")).unwrap(), b"ok");
    assert_eq!(fs::read(served.path().join("mem")).unwrap(), b"what was there before");
    clean(served.path());
}

#[test]
fn folders_that_may_not_be_written_are_named() {
    let (from, served) = dirs();
    let t = from.path().join("t");
    for n in ["ok", "locked/new", "locked/old"] {
        write(&t, n, n);
    }
    write(&t, "locked/large", noise(1, 2 << 20));
    write(served.path(), "t/locked/old", "what was there before");
    let there = served.path().join("t");
    for d in [served.path(), &there, &there.join("locked")] {
        let _ = chown(d, Some(NOBODY), None); // not the superuser: it is this user's already
    }
    fs::set_permissions(there.join("locked"), PermissionsExt::from_mode(0o555)).unwrap();
    let s = as_nobody(|| serve(ServeOptions::new(served.path())));
    let r = put(s.addr, &t, "").unwrap();
    let denied = ["t/locked/large", "t/locked/new", "t/locked/old"].map(|n| (n, Cause::Denied));
    failed(&r, &denied);
    assert_eq!(fs::read(there.join("ok")).unwrap(), b"ok");
    assert_eq!(fs::read(there.join("locked/old")).unwrap(), b"what was there before");
    assert_eq!(fs::read_dir(there.join("locked")).unwrap().count(), 1);
    fs::set_permissions(there.join("locked"), PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn names_that_are_too_long_at_the_destination_are_named() {
    let (from, served) = dirs();
    let t = from.path().join("t");
    let (a, b) = ("a".repeat(200), "b".repeat(200));
    write(&t, "ok", "ok");
    write(&t, &format!("{a}/{b}"), "deep");
    write(&t, &format!("{a}/{b}-large"), noise(1, 2 << 20));
    let s = serve(ServeOptions::new(served.path()));
    // 19 folders of 200 bytes: 3,819 bytes with their slashes, 278 less than a path may have.
    let deep = vec!["d".repeat(200); 19].join("/");
    let r = put(s.addr, &t, &deep).unwrap();
    let (x, y) = (format!("{a}/{b}"), format!("{a}/{b}-large"));
    failed(&r, &[(&x, Cause::NameTooLong), (&y, Cause::NameTooLong)]);
    assert!(r.progress.errors.iter().all(|e| e.text.contains("longer than 4096")), "{:?}", r.progress.errors);
    let back = from.path().join("back");
    assert!(get(s.addr, &format!("{deep}/t/ok"), &back).unwrap().success());
    assert_eq!(fs::read(back).unwrap(), b"ok");
    // A name of the user's: refused before anything is sent.
    match put(s.addr, &t, &"n".repeat(256)) {
        Err(Error::Local { text }) => assert!(text.contains("255") && text.contains("shorten"), "{text}"),
        r => panic!("{r:?}"),
    }
    match put(s.addr, &t, &format!("{deep}/{deep}")) {
        Err(Error::Local { text }) => assert!(text.contains("4096"), "{text}"),
        r => panic!("{r:?}"),
    }
    // The longest name that there can be leaves no room for that of the unfinished file, and arrives all the same.
    let longest = "l".repeat(255);
    write(&t, &longest, noise(2, 2 << 20));
    assert!(put(s.addr, &t.join(&longest), "").unwrap().success());
    assert!(fs::read(served.path().join(&longest)).unwrap() == noise(2, 2 << 20));
}

#[test]
fn files_and_folders_in_each_others_way_are_named_both_ways() {
    let (from, served) = dirs();
    let t = from.path().join("t");
    let large = noise(1, 2 << 20);
    for (n, data) in
        [("ok", &b"ok"[..]), ("file", b"f"), ("large", &large), ("folder/x", b"x"), ("folder/large", &large)]
    {
        write(&t, n, data);
    }
    let obstruct = |to: &Path| {
        write(to, "t/file/precious", "p");
        write(to, "t/large/precious", "p");
        write(to, "t/folder", "precious");
    };
    let check = |r: Summary, to: &Path| {
        let f = Cause::NotFolder;
        failed(
            &r,
            &[
                ("t/file", Cause::IsFolder),
                ("t/folder", f),
                ("t/folder/large", f),
                ("t/folder/x", f),
                ("t/large", Cause::IsFolder),
            ],
        );
        assert_eq!(fs::read(to.join("t/ok")).unwrap(), b"ok");
        assert_eq!(fs::read(to.join("t/folder")).unwrap(), b"precious");
        for n in ["file", "large"] {
            assert_eq!(fs::read(to.join("t").join(n).join("precious")).unwrap(), b"p");
        }
        clean(&to.join("t"));
    };
    obstruct(served.path());
    let s = serve(ServeOptions::new(served.path()));
    check(put(s.addr, &t, "").unwrap(), served.path());
    drop(s);
    let back = tempfile::tempdir().unwrap();
    obstruct(back.path());
    let s = serve(ServeOptions::new(from.path()));
    check(get(s.addr, "t", back.path()).unwrap(), back.path());
}
