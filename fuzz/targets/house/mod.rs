//! A folder of this process's own: what a transfer may touch, and beside it what it must not.

#![allow(dead_code, reason = "each target uses its part")]

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What is outside of the folder, for nobody to see.
pub const SECRET: &[u8] = b"nobody outside of this house is to read these words";
/// What one of the files inside holds: the peer of a transfer that may not read must not see it.
pub const CONTENTS: &[u8] = b"contents of a";
/// A name inside that no peer ever says.
pub const UNTOLD: &str = "unmentioned-name";
/// What the contents of large files are.
pub const FILLING: u8 = 0x5a;
/// Modes of what is there at first.
const MODES: [(&str, u32); 4] =
    [("outside", 0o750), ("outside/secret", 0o640), ("served/a", 0o705), ("served/dir/b", 0o705)];
/// Bytes of a file at most, as the system limits it: nothing here fills the memory that the files are in.
const MAX_FILE: u64 = 64 << 20;

/// The folder of this process: `served` inside, and beside it what a transfer must not touch.
pub fn house() -> &'static PathBuf {
    static HOUSE: OnceLock<PathBuf> = OnceLock::new();
    HOUSE.get_or_init(|| {
        let limit = rustix::process::Rlimit { current: Some(MAX_FILE), maximum: Some(MAX_FILE) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("a limit");
        // SAFETY: no handler is called; writing beyond the limit is an error then.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        crate::scratch::folder().join("house")
    })
}

/// Builds it anew.
pub fn build() {
    let house = house();
    let _ = fs::remove_dir_all(house);
    let make = || {
        fs::create_dir_all(house.join("served/dir"))?;
        fs::create_dir(house.join("outside"))?;
        fs::write(house.join("outside/secret"), SECRET)?;
        fs::write(house.join("served/a"), CONTENTS)?;
        fs::write(house.join("served/dir/b"), vec![FILLING; 3_000])?;
        std::os::unix::fs::symlink("../outside", house.join("served/out"))?;
        std::os::unix::fs::symlink("../outside/secret", house.join("served/link"))?;
        for (name, mode) in MODES {
            fs::set_permissions(house.join(name), fs::Permissions::from_mode(mode))?;
        }
        // Known to the peer: it can say that just these are to go.
        for name in ["served/a", "served/dir/b", "served/out", "served/link"] {
            let time = Timespec { tv_sec: 5, tv_nsec: 5 };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, house.join(name), &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        std::io::Result::Ok(())
    };
    make().expect("memory");
}

/// Whether `words` are in `bytes`. Not by comparing at each place: libFuzzer takes part in every comparison, which made a
/// hundred milliseconds of half a mebibyte.
pub fn tells(bytes: &[u8], words: &[u8]) -> bool {
    memchr::memmem::find(bytes, words).is_some()
}

/// What is outside is as it was.
pub fn check() {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("is there").map(|e| e.expect("is there").file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(house()), ["outside", "served"]);
    assert_eq!(names(&house().join("outside")), ["secret"]);
    assert_eq!(fs::read(house().join("outside/secret")).expect("is there"), SECRET);
    for (name, mode) in MODES.into_iter().filter(|(name, _)| name.starts_with("outside")) {
        let m = house().join(name).symlink_metadata().expect("is there");
        assert_eq!((m.mode() & 0o7777, m.uid()), (mode, rustix::process::geteuid().as_raw()), "{name}");
        assert!(m.is_dir() || m.nlink() == 1, "{name} got a further name");
    }
}

/// One thing in the folder: its path, mode, modification time (none of a folder's), and contents or target.
pub type Thing = (PathBuf, u32, Option<(i64, i64)>, Vec<u8>);

/// All that is in the folder, in the order of its names.
pub fn things(folder: &Path) -> Vec<Thing> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for e in fs::read_dir(&next).expect("is there") {
            let path = e.expect("is there").path();
            let m = path.symlink_metadata().expect("is there");
            let time = (!m.is_dir()).then(|| (m.mtime(), m.mtime_nsec()));
            let contents = if m.is_symlink() {
                fs::read_link(&path).expect("is there").into_os_string().into_encoded_bytes()
            } else if m.is_file() {
                fs::read(&path).expect("is there")
            } else {
                folders.extend(m.is_dir().then(|| path.clone()));
                Vec::new()
            };
            all.push((path, m.mode(), time, contents));
        }
    }
    all.sort();
    all
}

/// What was there is there, as it was.
pub fn assert_kept(before: &[Thing], after: &[Thing]) {
    let changed: Vec<_> = before.iter().filter(|t| !after.contains(t)).map(|t| (&t.0, t.1, t.2)).collect();
    assert!(changed.is_empty(), "{changed:?} was changed");
}

/// And nothing else is.
pub fn assert_same(before: &[Thing], after: &[Thing]) {
    assert_kept(before, after);
    assert_kept(after, before);
}
