//! Transfers over real sockets: put, get, list, refusals, several at once.

mod common;

use base::Rate;
use common::{get, get_with, list, noise, put, put_with, same, serve};
use endpoint::ShareLimits;
use longhaul_mover::path::RelPath;
use longhaul_mover::proto::Op;
use longhaul_mover::{AllowedRequest, Error, Sending, ServeOptions, TransferOptions};
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
    drop(s);
    let s = serve(ServeOptions { allow_read: false, ..ServeOptions::new(served.path()) });
    refused(get(s.addr, "f", from.path()), "gives none");
    drop(s);
    let s = serve(ServeOptions { allow_overwrite: false, ..ServeOptions::new(served.path()) });
    let r = put(s.addr, &f, "").unwrap();
    assert_eq!(r.error, Some(Error::Partial { failed: 1, system: None }));
    assert_eq!(std::fs::read(served.path().join("f")).unwrap(), b"older");
    refused(put(s.addr, &f, "f/below"), "f");
    for (source, dest, word) in [("", "x", "empty"), ("/tmp", "../up", "..")] {
        match put(s.addr, Path::new(source), dest) {
            Err(Error::Local { text }) => assert!(text.contains(word), "{text}"),
            r => panic!("{r:?}"),
        }
    }
}

#[test]
fn a_server_for_one_request_answers_no_other() {
    let (from, served) = dirs();
    std::fs::write(from.path().join("f"), "new").unwrap();
    std::fs::write(served.path().join("other"), "secret").unwrap();
    let paths = |names: &[&str]| names.iter().map(|n| RelPath::parse(n.as_bytes()).unwrap()).collect();
    let of = |op, names| {
        serve(ServeOptions {
            only: Some(AllowedRequest { op, paths: paths(names) }),
            ..ServeOptions::new(served.path())
        })
    };
    let refused = |r: Result<longhaul_mover::Summary, Error>| {
        let e = r.unwrap().error;
        assert!(matches!(&e, Some(Error::Refused { text }) if text.contains("another transfer")), "{e:?}");
    };
    let f = from.path().join("f");
    let s = of(Op::Put, &["here"]);
    refused(put(s.addr, &f, "there"));
    refused(put(s.addr, &f, ""));
    refused(get(s.addr, "here", from.path()));
    refused(list(s.addr, "here", false).map(|r| r.0));
    assert!(put(s.addr, &f, "here").unwrap().success());
    drop(s);
    let s = of(Op::Get, &["here"]);
    refused(get(s.addr, "other", from.path()));
    refused(put(s.addr, &f, "here"));
    assert!(
        get(s.addr, "./here/", &from.path().join("x")).unwrap().error.is_some(),
        "a file has no contents"
    );
    assert!(get(s.addr, "here", &from.path().join("x")).unwrap().success());
    assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 2);
}

#[test]
fn sources_that_are_missing_are_named_by_the_end_that_looks() {
    let (from, served) = dirs();
    let s = serve(ServeOptions::new(served.path()));
    let nowhere = from.path().join("nowhere");
    let missing = |r: longhaul_mover::Summary, path: &str| {
        let e: Vec<_> = r.progress.errors.iter().map(|e| (e.path.as_str(), e.cause)).collect();
        assert_eq!(e, [(path, longhaul_mover::Cause::Missing)]);
        assert!(matches!(r.error, Some(Error::Partial { failed: 1, .. })), "{:?}", r.error);
    };
    missing(put(s.addr, &nowhere, "x").unwrap(), nowhere.to_str().unwrap());
    missing(get(s.addr, "nothing", from.path()).unwrap(), "nothing");
    let names = |p: &Path| std::fs::read_dir(p).unwrap().count();
    assert_eq!((names(from.path()), names(served.path())), (0, 0), "nothing is made for nothing");
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
    let s = serve(ServeOptions { sessions: ShareLimits::of(0), ..ServeOptions::new(served.path()) });
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
            while p.snapshot().bytes_confirmed < 50 << 20 && p.outcome().is_none() {
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
    assert!(r.progress.bytes_sent <= 151 << 20);
    assert!(std::fs::read(&f).unwrap() == std::fs::read(served.path().join("f")).unwrap());
}

/// A get of 24 MiB under what it asks for; the server must take it.
fn get_asking(s: &common::Server, sending: Sending, to: &Path) -> longhaul_mover::Summary {
    get_with(s.addr, "f", to, TransferOptions::default(), sending, |_, _| ()).unwrap()
}

#[test]
fn a_get_says_how_the_server_sends() {
    let (served, to) = dirs();
    std::fs::write(served.path().join("f"), noise(4, 24 << 20)).unwrap();
    let rate = |mbit| Some(Rate::from_mbit(mbit));
    let s = serve(ServeOptions::new(served.path()));
    let ask = |cc: &str, known_rate| Sending { cc: Some(cc.into()), known_rate, ..Sending::default() };
    let known = Sending { known_rate: rate(500), ..Sending::default() };
    for (i, q) in
        [ask("cubic", None), ask("fixed:rate=2G", None), ask("reno:initial_window=20", rate(300)), known]
            .into_iter()
            .enumerate()
    {
        let at = to.path().join(i.to_string());
        let r = get_asking(&s, q.clone(), &at);
        assert!(r.success(), "{q:?}: {:?} {:?}", r.error, r.progress.errors);
        assert!(std::fs::read(served.path().join("f")).unwrap() == std::fs::read(at).unwrap());
    }
    for (bad, word) in [
        ("nonsense", "it offers haul, bbr, bbr1, cubic"),
        ("cubic:speed=9", "speed"),
        ("fixed:rate=1", "rate"),
    ] {
        match get_asking(&s, ask(bad, None), &to.path().join("bad")).error {
            Some(Error::Refused { text }) => {
                assert!(text.contains(word) && text.contains("offers"), "{text}")
            }
            e => panic!("{e:?}"),
        }
    }
    drop(s);
    let only = ServeOptions { offered_cc: vec!["cubic".into()], ..ServeOptions::new(served.path()) };
    let s = serve(only);
    match get_asking(&s, ask("fixed:rate=9G", None), &to.path().join("bad")).error {
        Some(Error::Refused { text }) => assert!(text.contains("it offers cubic"), "{text}"),
        e => panic!("{e:?}"),
    }
    assert!(!to.path().join("bad").exists());
    // Out of range: told before anything is sent.
    let slow = Sending { rate_limit: Some(Rate::from_bytes_per_sec(1)), ..Sending::default() };
    match get_with(s.addr, "f", to.path(), TransferOptions::default(), slow, |_, _| ()) {
        Err(Error::Local { text }) => assert!(text.contains("rate limit"), "{text}"),
        r => panic!("{r:?}"),
    }
}

/// The pacer keeps the average below the limit, however fast or slow the machine is: bytes over time cannot be more.
#[test]
fn the_smaller_limit_of_both_ends_holds() {
    let (served, to) = dirs();
    let size = 12u64 << 20;
    std::fs::write(served.path().join("f"), noise(5, size as usize)).unwrap();
    let mbit = |n| Some(Rate::from_mbit(n));
    for (i, (own, asked, cc)) in
        [(None, mbit(80), None), (mbit(80), mbit(800), None), (mbit(800), mbit(80), Some("fixed:rate=1G"))]
            .into_iter()
            .enumerate()
    {
        let s = serve(ServeOptions { rate_limit: own, ..ServeOptions::new(served.path()) });
        let q = Sending { rate_limit: asked, cc: cc.map(str::to_owned), ..Sending::default() };
        let r = get_asking(&s, q, &to.path().join(i.to_string()));
        assert!(r.success(), "{:?}", r.error);
        // 80 Mbit/s are 10 MB/s; a tenth is left for what may leave at once at the start.
        let least = size * 9 / 10 * 1_000_000_000 / 10_000_000;
        assert!(r.nanos >= least, "{own:?} and {asked:?}: {} ns, expected {least} at least", r.nanos);
    }
}

#[test]
fn a_fresh_start_uses_nothing_that_was_left() {
    let (from, served) = dirs();
    let f = from.path().join("f");
    std::fs::write(&f, noise(6, 80 << 20)).unwrap();
    let s = serve(ServeOptions::new(served.path()));
    let stop = |p: longhaul_mover::Progress, wake: longhaul_mover::Wake| {
        std::thread::spawn(move || {
            while p.snapshot().bytes_confirmed < 20 << 20 && p.outcome().is_none() {
                std::thread::yield_now();
            }
            p.interrupt();
            wake();
        });
    };
    let fresh = TransferOptions { fresh: true, ..TransferOptions::default() };
    let left = |dir: &Path| dir.join(".f.longhaul-journal").exists() && dir.join(".f.longhaul-part").exists();
    let check = |r: longhaul_mover::Summary, dir: &Path| {
        assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
        assert_eq!((r.progress.bytes_resumed, r.totals.resumed_bytes), (0, 0));
        assert!(std::fs::read(&f).unwrap() == std::fs::read(dir.join("f")).unwrap());
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "something is left");
    };
    put_with(s.addr, &f, "", TransferOptions::default(), stop).unwrap();
    assert!(left(served.path()));
    check(put_with(s.addr, &f, "", fresh, |_, _| ()).unwrap(), served.path());
    let back = tempfile::tempdir().unwrap();
    get_with(s.addr, "f", back.path(), TransferOptions::default(), Sending::default(), stop).unwrap();
    assert!(left(back.path()));
    check(get_with(s.addr, "f", back.path(), fresh, Sending::default(), |_, _| ()).unwrap(), back.path());
    // A file that became small finds what was left of the large one, and drops that as well.
    for size in [1000, 300_000] {
        std::fs::write(served.path().join(".f.longhaul-part"), noise(1, 5 << 20)).unwrap();
        std::fs::write(served.path().join(".f.longhaul-journal"), "journal").unwrap();
        std::fs::write(&f, noise(7, size)).unwrap();
        check(put_with(s.addr, &f, "", fresh, |_, _| ()).unwrap(), served.path());
    }
}
