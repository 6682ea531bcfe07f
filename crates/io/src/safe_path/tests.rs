//! Attempts to get out, by name, by link and by racing; and ordinary use, both ways of resolving.

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
    let open = || Folder::open(&inside, Links::Refuse).unwrap();
    let both = [open(), open().walking()];
    (dir, both)
}

fn text(mut f: File) -> String {
    let mut s = String::new();
    f.read_to_string(&mut s).unwrap();
    s
}

#[test]
fn names_that_could_leave_are_refused() {
    let (_dir, folders) = scene();
    let long = [b'x'; MAX_NAME + 1];
    let deep = b"d/".repeat(MAX_PATH / 2 + 1);
    let bad: [&[u8]; 12] = [
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
        &long,
        &deep,
    ];
    for f in &folders {
        for name in bad.into_iter().chain([&b"a\0b"[..]]) {
            let refused = |r: Result<(), PathError>| matches!(r, Err(PathError::BadName { .. }));
            assert!(refused(f.open_read(name).map(drop)), "{name:?}");
            assert!(refused(f.sub(name).map(drop)) && refused(f.create_new(name, 0o600).map(drop)));
            assert!(refused(f.create_dir_all(name, 0o700).map(drop)) && refused(f.create_dir(name, 0o700)));
            assert!(refused(f.rename(name, b"x")) && refused(f.rename(b"a/b/file", name)));
            assert!(refused(f.remove_file(name)) && refused(f.remove_dir(name)));
            assert!(refused(f.symlink(b"x", name)) && refused(f.stat(name).map(drop)));
            assert!(refused(f.create_temp(name, 0o600).map(drop)) && refused(f.set_mode(name, 0)));
        }
    }
}

#[test]
fn links_do_not_lead_outside() {
    let (dir, folders) = scene();
    let inside = dir.path().join("in");
    symlink(dir.path(), inside.join("out")).unwrap();
    symlink("..", inside.join("up")).unwrap();
    symlink("../secret", inside.join("direct")).unwrap();
    symlink("/proc/self/root", inside.join("magic")).unwrap();
    let lax = Folder::open(&inside, Links::Inside).unwrap();
    for f in folders.iter().chain([&lax]) {
        for name in [&b"out/secret"[..], b"up/secret", b"direct", b"magic/etc/passwd"] {
            let e = f.open_read(name).unwrap_err();
            assert!(matches!(e, PathError::Escapes { .. }), "{e:?}");
            assert!(e.to_string().contains(std::str::from_utf8(name).unwrap()), "{e}");
            assert!(matches!(f.open_write(name), Err(PathError::Escapes { .. })));
        }
        for folder in [&b"out"[..], b"up"] {
            assert!(matches!(f.sub(folder), Err(PathError::Escapes { .. })));
            let inner = [folder, b"/new"].concat();
            assert!(matches!(f.create_new(&inner, 0o600), Err(PathError::Escapes { .. })));
            assert!(matches!(f.create_dir_all(&inner, 0o700), Err(PathError::Escapes { .. })));
            assert!(matches!(f.rename(b"a/b/file", &inner), Err(PathError::Escapes { .. })));
            assert!(matches!(f.remove_file(&[folder, b"/secret"].concat()), Err(PathError::Escapes { .. })));
        }
        // A link in the last place is seen for what it is, and not followed when a file is made there.
        assert_eq!(f.stat(b"direct").unwrap().kind, Kind::Link);
        assert_eq!(f.read_link(b"direct").unwrap(), b"../secret");
        assert_eq!(f.create_new(b"direct", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(f.set_mode(b"direct", 0o777).is_err());
        f.set_modified(b"direct", WallTime { secs: 5, nanos: 0 }).unwrap();
    }
    assert_eq!(fs::read_to_string(dir.path().join("secret")).unwrap(), "secret");
    assert!(!dir.path().join("new").exists());
}

#[test]
fn links_inside_are_followed_when_allowed() {
    let (dir, folders) = scene();
    let inside = dir.path().join("in");
    symlink("a/b", inside.join("short")).unwrap();
    let lax = Folder::open(&inside, Links::Inside).unwrap();
    assert_eq!(text(lax.open_read(b"short/file").unwrap()), "inside");
    for f in &folders {
        assert!(matches!(f.open_read(b"short/file"), Err(PathError::Escapes { .. })));
    }
}

#[test]
fn a_folder_exchanged_for_a_link_meanwhile_gains_nothing() {
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
            if let Ok(mut file) = f.create_new(b"a/b/new", 0o600) {
                file.write_all(b"x").unwrap();
            }
            let _ = f.remove_file(b"a/b/new");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn files_are_made_renamed_examined_and_removed() {
    let (_dir, folders) = scene();
    for f in &folders {
        let sub = f.create_dir_all(b"x/y/z", 0o755).unwrap();
        f.create_dir_all(b"x/y/z", 0o755).unwrap();
        let (temp, mut file) = f.create_temp(b"x/y/z/final", 0o600).unwrap();
        assert!(temp.starts_with(b"x/y/z/."));
        file.write_all(b"content").unwrap();
        f.rename_new(&temp, b"x/y/z/final").unwrap();
        f.create_new(b"x/other", 0o600).unwrap();
        let e = f.rename_new(b"x/other", b"x/y/z/final").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        let at = WallTime { secs: 1_000_000_007, nanos: 123_456_789 };
        sub.set_modified(b"final", at).unwrap();
        sub.set_mode(b"final", 0o640).unwrap();
        let stat = f.stat(b"x/y/z/final").unwrap();
        assert_eq!((stat.kind, stat.len, stat.mode, stat.modified), (Kind::File, 7, 0o640, at));
        assert_eq!(text(sub.open_read(b"final").unwrap()), "content");
        f.rename(b"x/other", b"x/y/z/final").unwrap();
        assert_eq!(f.stat(b"x/y/z/final").unwrap().len, 0);
        sub.sync().unwrap();
        sub.remove_file(b"final").unwrap();
        assert_eq!(f.stat(b"x/y/z/final").unwrap_err().kind(), io::ErrorKind::NotFound);
        for dir in [&b"x/y/z"[..], b"x/y", b"x"] {
            f.remove_dir(dir).unwrap();
        }
        assert!(f.open_read(b"a/b").is_err() && f.open_write(b"a/b").is_err());
    }
}

#[test]
fn listing_tells_kinds_and_takes_any_bytes() {
    let (dir, folders) = scene();
    let f = &folders[0];
    f.create_dir(b"list", 0o755).unwrap();
    let sub = f.sub(b"list").unwrap();
    let odd = b"not utf-8: \xff\xfe\n";
    sub.create_new(odd, 0o600).unwrap();
    sub.create_dir(b"folder", 0o700).unwrap();
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
    // Opening a pipe does not wait for its other end, and errors do not carry control characters.
    assert!(matches!(sub.open_read(b"pipe"), Err(PathError::NotAFile { .. })));
    assert!(matches!(sub.open_write(b"pipe"), Err(PathError::NotAFile { .. })));
    assert!(!sub.open_read(b"a\nb").unwrap_err().to_string().contains('\n'));
    assert!(Folder::open(&dir.path().join("secret"), Links::Refuse).is_err());
}

proptest::proptest! {
    #[test]
    fn names_that_are_accepted_have_plain_components_only(name in "[a./\0]{0,12}|\\PC{0,300}") {
        use std::path::Component;
        if check_name(name.as_bytes()).is_ok() {
            let parts: Vec<_> = Path::new(&name).components().collect();
            proptest::prop_assert!(!parts.is_empty());
            proptest::prop_assert!(parts.iter().all(|c| matches!(c, Component::Normal(_))), "{:?}", name);
            proptest::prop_assert_eq!(parts.len(), name.split('/').count());
        }
    }
}
