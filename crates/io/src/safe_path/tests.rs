//! Attempts to escape by name, by link and by race; and ordinary use, both ways of resolving.

use super::*;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicBool;

/// A folder `in` beside a file `secret`, opened in both ways.
fn scene() -> (tempfile::TempDir, [Folder; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("in");
    fs::create_dir_all(inside.join("a/b")).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    fs::write(inside.join("a/b/file"), "inside").unwrap();
    let open = || Folder::open(&inside).unwrap();
    let both = [open(), open().walking()];
    (dir, both)
}

fn is(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}

fn text(mut f: File) -> String {
    let mut s = String::new();
    f.read_to_string(&mut s).unwrap();
    s
}

#[test]
fn escaping_names_are_rejected() {
    let (_dir, folders) = scene();
    let long = [b'x'; MAX_NAME + 1];
    let deep = b"d/".repeat(MAX_PATH / 2 + 1);
    let bad: [&[u8]; 13] = [
        b"",
        b"/etc",
        b"..",
        b"../secret",
        b"a/../../secret",
        b"a/..",
        b".",
        b"a/./b",
        b"a//b",
        b"a/",
        b"a\0b",
        &long,
        &deep,
    ];
    for f in &folders {
        for name in bad {
            let want = if name.len() > MAX_NAME { Errno::NAMETOOLONG } else { Errno::INVAL };
            let refused = |r: io::Result<()>| r.is_err_and(|e| is(&e, want));
            assert!(refused(f.open_read(name).map(drop)), "{name:?}");
            assert!(refused(f.sub(name).map(drop)) && refused(f.open_own(name, 0o600, true).map(drop)));
            assert!(refused(f.create_dir_all(name, 0o700).map(drop)));
            assert!(refused(f.rename(name, b"x")) && refused(f.rename(b"a/b/file", name)));
            assert!(refused(f.rename_new(name, b"x")) && refused(f.rename_new(b"a/b/file", name)));
            assert!(refused(f.remove_file(name)) && refused(f.read_link(name).map(drop)));
            assert!(refused(f.symlink(b"x", name)) && refused(f.stat(name).map(drop)));
            assert!(refused(f.set_modified(name, WallTime { secs: 0, nanos: 0 })));
        }
        assert!(f.open_read(b"a/b/file").is_ok());
    }
}

#[test]
fn symbolic_links_do_not_lead_outside() {
    let (dir, folders) = scene();
    let inside = dir.path().join("in");
    symlink(dir.path(), inside.join("out")).unwrap();
    symlink("..", inside.join("up")).unwrap();
    symlink("../secret", inside.join("direct")).unwrap();
    symlink("/proc/self/root", inside.join("magic")).unwrap();
    symlink("a/b", inside.join("short")).unwrap();
    for f in &folders {
        let escapes = |r: io::Result<()>| r.is_err_and(|e| is(&e, Errno::LOOP));
        for name in [&b"out/secret"[..], b"up/secret", b"direct", b"magic/etc/passwd", b"short/file"] {
            assert!(escapes(f.open_read(name).map(drop)), "{name:?}");
        }
        for name in [&b"out/secret"[..], b"up/secret", b"magic/etc/passwd", b"short/file"] {
            assert!(escapes(f.open_own(name, 0o600, false).map(drop)), "{name:?}");
        }
        for folder in [&b"out"[..], b"up"] {
            assert!(escapes(f.sub(folder).map(drop)));
            let inner = [folder, b"/new"].concat();
            assert!(escapes(f.open_own(&inner, 0o600, true).map(drop)));
            assert!(escapes(f.create_dir_all(&inner, 0o700).map(drop)));
            assert!(escapes(f.rename(b"a/b/file", &inner)) && escapes(f.rename_new(b"a/b/file", &inner)));
            assert!(escapes(f.symlink(b"x", &inner)));
            assert!(escapes(f.remove_file(&[folder, b"/secret"].concat())));
            assert!(escapes(f.stat(&[folder, b"/secret"].concat()).map(drop)));
        }
        // A link in the last place is seen for what it is, and not followed when a file is made there.
        assert_eq!(f.stat(b"direct").unwrap().kind, Kind::Link);
        assert_eq!(f.read_link(b"direct").unwrap(), b"../secret");
        f.set_modified(b"direct", WallTime { secs: 5, nanos: 0 }).unwrap();
        assert_eq!(f.stat(b"direct").unwrap().modified.secs, 5);
    }
    assert_eq!(fs::read_to_string(dir.path().join("secret")).unwrap(), "secret");
    assert_ne!(fs::metadata(dir.path().join("secret")).unwrap().modified().unwrap(), std::time::UNIX_EPOCH);
    assert!(!dir.path().join("new").exists());
}

#[test]
fn folder_swapped_for_a_link_does_not_escape() {
    const TURNS: usize = 3_000;
    let (dir, folders) = scene();
    let inside = dir.path().join("in");
    // Outside there is a tree of the same shape, with another content.
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    symlink(&outside, inside.join("a/link")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let (b, link) = (inside.join("a/b"), inside.join("a/link"));
            while !stop.load(Ordering::Relaxed) {
                // b is the folder, then the link, then the folder again.
                rustix::fs::renameat_with(rustix::fs::CWD, &b, rustix::fs::CWD, &link, RenameFlags::EXCHANGE)
                    .unwrap();
            }
        });
        for turn in 0..TURNS {
            let f = &folders[turn % 2];
            if let Ok(file) = f.open_read(b"a/b/file") {
                assert_eq!(text(file), "inside");
            }
            if let Ok(mut file) = f.open_own(b"a/b/new", 0o600, false) {
                file.write_all(b"x").unwrap();
            }
            drop(f.create_dir_all(b"a/b/dir", 0o700));
            let _ = f.rename(b"a/b/new", b"a/b/newer");
            let _ = f.remove_file(b"a/b/newer");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside");
}

#[test]
fn files_are_created_renamed_examined_and_removed() {
    let (_dir, folders) = scene();
    for f in &folders {
        let sub = f.create_dir_all(b"x/y/z", 0o755).unwrap();
        f.create_dir_all(b"x/y/z", 0o755).unwrap();
        let mut file = f.open_own(b"x/y/z/temp", 0o600, true).unwrap();
        file.write_all(b"content").unwrap();
        f.rename_new(b"x/y/z/temp", b"x/y/z/final").unwrap();
        f.open_own(b"x/other", 0o600, true).unwrap();
        let e = f.rename_new(b"x/other", b"x/y/z/final").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        let at = WallTime { secs: 1_000_000_007, nanos: 123_456_789 };
        set_attributes(&file, 0o640, at).unwrap();
        let stat = f.stat(b"x/y/z/final").unwrap();
        assert_eq!((stat.kind, stat.len, stat.mode, stat.modified), (Kind::File, 7, 0o640, at));
        assert_eq!(Stat::of_file(&file).unwrap(), stat);
        sub.set_own_attributes(0o710, at).unwrap();
        let own = f.stat(b"x/y/z").unwrap();
        assert_eq!((own.kind, own.mode, own.modified), (Kind::Folder, 0o710, at));
        assert_eq!(Stat::of_file(&sub.again().unwrap()).unwrap().id, own.id);
        assert_eq!(text(sub.open_read(b"final").unwrap()), "content");
        assert_eq!(text(sub.open_own(b"final", 0o600, true).unwrap()), "content");
        assert_eq!(text(sub.open_own(b"final", 0o600, false).unwrap()), "");
        f.rename(b"x/other", b"x/y/z/final").unwrap();
        assert_eq!(f.stat(b"x/y/z/final").unwrap().len, 0);
        sub.sync().unwrap();
        sub.sync_all().unwrap();
        sub.remove_file(b"final").unwrap();
        assert_eq!(f.stat(b"x/y/z/final").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(f.open_read(b"a/b").is_err() && f.open_own(b"a/b", 0o600, false).is_err());
        assert!(is(&f.create_dir_all(b"a/b/file/x", 0o700).unwrap_err(), Errno::NOTDIR));
    }
}

#[test]
fn listing_reports_kinds_and_accepts_any_bytes() {
    let (dir, folders) = scene();
    let f = &folders[0];
    let sub = f.create_dir_all(b"list/folder", 0o755).and(f.sub(b"list")).unwrap();
    let odd = b"not utf-8: \xff\xfe\n";
    sub.open_own(odd, 0o600, true).unwrap();
    sub.symlink(b"nowhere", b"link").unwrap();
    rustix::fs::mkfifoat(&sub, "pipe", Mode::from_raw_mode(0o600)).unwrap();
    let mut all: Vec<_> = sub.list().unwrap().map(|e| e.unwrap()).map(|e| (e.name, e.kind)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        (b"folder".to_vec(), Kind::Folder),
        (b"link".to_vec(), Kind::Link),
        (odd.to_vec(), Kind::File),
        (b"pipe".to_vec(), Kind::Other),
    ];
    assert_eq!(all, expected);
    // Opening a pipe does not wait for its other end.
    for r in [sub.open_read(b"pipe"), sub.open_read(b"folder")] {
        assert_eq!(r.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert!(Folder::open(&dir.path().join("secret")).is_err());
}

#[test]
fn own_file_is_never_shared_with_others() {
    let (dir, folders) = scene();
    let inside = dir.path().join("in");
    for f in &folders {
        for keep in [true, false] {
            let at = inside.join("temp");
            let precious = || fs::write(dir.path().join("precious"), "precious").unwrap();
            let plant: [&dyn Fn(); 4] = [
                &|| fs::hard_link(dir.path().join("precious"), &at).unwrap(),
                &|| symlink(dir.path().join("precious"), &at).unwrap(),
                &|| rustix::fs::mkfifoat(rustix::fs::CWD, &at, Mode::from_raw_mode(0o600)).unwrap(),
                &|| fs::create_dir(&at).unwrap(),
            ];
            for (i, p) in plant.iter().enumerate() {
                precious();
                p();
                let mut file = f.open_own(b"temp", 0o600, keep).unwrap();
                file.write_all(b"spoilt").unwrap();
                assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious", "{i}");
                assert_eq!(fs::read_to_string(&at).unwrap(), "spoilt", "{i}");
                fs::remove_file(&at).unwrap();
            }
            fs::create_dir_all(at.join("full")).unwrap();
            assert!(is(&f.open_own(b"temp", 0o600, keep).unwrap_err(), Errno::NOTEMPTY));
            fs::remove_dir_all(&at).unwrap();
        }
        // Somebody else's file: only the superuser can make one here.
        fs::write(inside.join("temp"), "theirs").unwrap();
        let id = Stat::of_file(&f.open_own(b"temp", 0o600, true).unwrap()).unwrap().id;
        assert_eq!(f.stat(b"temp").unwrap().id, id, "our own is kept");
        if std::os::unix::fs::chown(inside.join("temp"), Some(65_534), None).is_ok() {
            assert_eq!(text(f.open_own(b"temp", 0o600, true).unwrap()), "");
        }
        fs::remove_file(inside.join("temp")).unwrap();
    }
}

proptest::proptest! {
    #[test]
    fn accepted_names_have_plain_components(name in "[a./\0]{0,12}|\\PC{0,300}") {
        use std::path::Component;
        if check_name(name.as_bytes()).is_ok() {
            let parts: Vec<_> = Path::new(&name).components().collect();
            proptest::prop_assert!(!parts.is_empty());
            proptest::prop_assert!(parts.iter().all(|c| matches!(c, Component::Normal(_))), "{:?}", name);
            proptest::prop_assert_eq!(parts.len(), name.split('/').count());
        }
    }
}
