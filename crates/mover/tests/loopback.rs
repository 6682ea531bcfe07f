//! Transfers over real sockets: put, get, list, refusals, several at once.

mod common;

use common::{get, list, noise, put, put_with, same, serve};
use longhaul_mover::{Error, ServeOptions, TransferOptions};
use std::path::Path;

fn dirs() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}
fn sample(root: &Path) {
    std::fs::create_dir_all(root.join("t/a/b")).unwrap();
    std::fs::create_dir_all(root.join("t/empty")).unwrap();
    for i in 0..500 {
        std::fs::write(root.join(format!("t/a/{i}")), noise(i, (i as usize * 53) % 20_000)).unwrap();
    }
    std::fs::write(root.join("t/a/b/large"), noise(1, 70 << 20)).unwrap();
    std::fs::write(root.join("t/medium"), noise(2, 1 << 20)).unwrap();
    std::os::unix::fs::symlink("a/b", root.join("t/link")).unwrap();
}

#[test]
fn a_tree_goes_there_and_back() {
    let (from, served) = dirs();
    sample(from.path());
    let s = serve(ServeOptions::new(served.path()));
    let r = put(s.addr, &from.path().join("t"), "in").unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    assert_eq!((r.totals.files, r.totals.links), (502, 1));
    same(&from.path().join("t"), &served.path().join("in/t"));
    let back = tempfile::tempdir().unwrap();
    let r = get(s.addr, "/in/t", back.path()).unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    same(&from.path().join("t"), &back.path().join("t"));
    let r = get(s.addr, "/in/t/", &back.path().join("contents/")).unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    same(&from.path().join("t"), &back.path().join("contents"));
    let (r, names) = list(s.addr, "in/t", false).unwrap();
    assert!(r.success());
    assert_eq!(names, [".", "a", "empty", "link", "medium"]);
    assert_eq!(list(s.addr, "/", true).unwrap().1.len(), 3 + 3 + 1 + 502);
}

#[test]
fn what_is_not_allowed_is_refused_in_words() {
    let (from, served) = dirs();
    std::fs::write(from.path().join("f"), "new").unwrap();
    std::fs::write(served.path().join("f"), "older").unwrap();
    let f = from.path().join("f");
    let refused = |r: Result<longhaul_mover::Summary, Error>, word: &str| match r.unwrap().error.unwrap() {
        Error::Refused { text } => assert!(text.contains(word), "{text}"),
        e => panic!("{e}"),
    };
    let s = serve(ServeOptions { allow_write: false, ..ServeOptions::new(served.path()) });
    refused(put(s.addr, &f, ""), "read-only");
    refused(get(s.addr, "nothing", from.path()), "nothing");
    drop(s);
    let s = serve(ServeOptions { allow_read: false, ..ServeOptions::new(served.path()) });
    refused(get(s.addr, "f", from.path()), "gives none");
    drop(s);
    let s = serve(ServeOptions { allow_overwrite: false, ..ServeOptions::new(served.path()) });
    let r = put(s.addr, &f, "").unwrap();
    assert_eq!(r.error, Some(Error::Partial { failed: 1 }));
    assert_eq!(std::fs::read(served.path().join("f")).unwrap(), b"older");
    refused(put(s.addr, &f, "f/below"), "f");
    for (source, dest, word) in [("/nowhere/at/all", "x", "/nowhere/at/all"), ("/tmp", "../up", "..")] {
        match put(s.addr, Path::new(source), dest) {
            Err(Error::Local { text }) => assert!(text.contains(word), "{text}"),
            r => panic!("{r:?}"),
        }
    }
}

#[test]
fn several_clients_at_once_and_no_more_than_the_limit() {
    let (from, served) = dirs();
    sample(from.path());
    let s = serve(ServeOptions::new(served.path()));
    std::thread::scope(|x| {
        for i in 0..3 {
            let (addr, t) = (s.addr, from.path().join("t"));
            x.spawn(move || {
                let r = put(addr, &t, &format!("d{i}")).unwrap();
                assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
            });
        }
    });
    for i in 0..3 {
        same(&from.path().join("t"), &served.path().join(format!("d{i}/t")));
    }
    drop(s);
    let s = serve(ServeOptions { max_sessions: 0, ..ServeOptions::new(served.path()) });
    match put(s.addr, &from.path().join("t"), "x").unwrap().error {
        Some(Error::Refused { text }) => assert!(text.contains("limit"), "{text}"),
        e => panic!("{e:?}"),
    }
}

#[test]
fn a_stopped_transfer_goes_on() {
    let (from, served) = dirs();
    let f = from.path().join("f");
    std::fs::write(&f, noise(3, 200 << 20)).unwrap();
    let s = serve(ServeOptions::new(served.path()));
    let o = TransferOptions::default();
    let r = put_with(s.addr, &f, "", o, |p, wake| {
        std::thread::spawn(move || {
            while p.snapshot().bytes_done < 50 << 20 && p.outcome().is_none() {
                std::thread::yield_now();
            }
            p.interrupt();
            wake();
        });
    });
    assert_eq!(r.unwrap().error, Some(Error::Interrupted));
    assert!(!served.path().join("f").exists());
    let r = put(s.addr, &f, "").unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    assert!(r.progress.bytes_resumed >= 50 << 20, "{}", r.progress.bytes_resumed);
    assert!(r.progress.bytes_moved <= 151 << 20);
    assert!(std::fs::read(&f).unwrap() == std::fs::read(served.path().join("f")).unwrap());
}
