//! Permissions, owners, and folders beside the destination: rsync is run beside, and each must leave the same.

#![allow(clippy::disallowed_methods, reason = "real sockets and programs take real time")]

mod common;

use common::{get_selecting, noise, put_selecting, serve, serve_here};
use longhaul_mover::placement::chmod;
use longhaul_mover::select::{Backup, Delete};
use longhaul_mover::{Chown, Error, Keep, Placement, Select, ServeOptions, Summary, TransferOptions};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ROLE: &str = "LONGHAUL_PLACEMENT_TEST_ROLE";

/// Runs in a process of its own where the variable says so; else does nothing.
#[test]
fn child() {
    if let Ok(dir) = std::env::var(ROLE) {
        let o = ServeOptions { allow_privileged: true, allow_delete: true, ..ServeOptions::new(dir) };
        serve_here(o, common::LOCAL, |a, _, _| eprintln!("AT {a}"));
    }
}

/// A server in a process of its own; killed when dropped.
struct Served(Child, SocketAddr);

impl Served {
    /// `wrap`: a command that runs the one behind it.
    fn start(wrap: &[&str], dir: &Path) -> Served {
        use std::io::BufRead as _;
        let me = std::env::current_exe().unwrap();
        let mut c = match wrap {
            [] => Command::new(&me),
            [first, rest @ ..] => {
                let mut c = Command::new(first);
                c.args(rest).arg(&me);
                c
            }
        };
        let c = c.args(["--exact", "child", "--nocapture"]).env(ROLE, dir);
        let mut child = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let at = lines.find_map(|l| l.strip_prefix("AT ").map(|a| a.parse().unwrap())).expect("it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Served(child, at)
    }
}
impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_rsync() -> bool {
    let there = Command::new("rsync").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no rsync");
    }
    there
}
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}
/// Runs rsync; its status.
fn rsync(args: &[&str]) -> i32 {
    Command::new("rsync").args(args).output().unwrap().status.code().unwrap()
}

type Seen = BTreeMap<PathBuf, String>;

/// What `look` says of everything below a folder.
fn picture(top: &Path, look: &dyn Fn(&fs::Metadata) -> String) -> Seen {
    let (mut out, mut todo) = (Seen::new(), vec![top.to_path_buf()]);
    while let Some(at) = todo.pop() {
        for e in fs::read_dir(&at).unwrap() {
            let path = e.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            if about.is_dir() {
                todo.push(path.clone());
            }
            out.insert(path.strip_prefix(top).unwrap().to_path_buf(), look(&about));
        }
    }
    out
}
fn modes(top: &Path) -> Seen {
    picture(top, &|m| format!("{:o}", m.mode()))
}
fn owners(top: &Path) -> Seen {
    picture(top, &|m| format!("{} {}", m.uid(), m.gid()))
}
fn time(at: &Path, seconds: u64) {
    let t = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000 + seconds);
    fs::File::open(at).unwrap().set_modified(t).unwrap();
}
fn mode(at: &Path, bits: u32) {
    fs::set_permissions(at, fs::Permissions::from_mode(bits)).unwrap();
}
fn slash(p: &Path) -> String {
    format!("{}/", p.display())
}
fn done(r: Result<Summary, Error>) -> Summary {
    let r = r.unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    r
}
fn keeping(keep: Keep) -> TransferOptions {
    TransferOptions { keep, ..TransferOptions::default() }
}
fn placed(placement: Placement) -> Select {
    Select { placement, ..Select::default() }
}
/// What is taken from new files here.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

/// All forms that the manual of rsync has, alone and together.
const CHMODS: &[&str] = &[
    "D755,F644",
    "755",
    "0",
    "D2775,F664",
    "u+w",
    "go-w",
    "a=rX",
    "ugo=rwX",
    "Dg+s,ug+w,Fo-w,+X",
    "+w",
    "-w",
    "=r",
    "+X",
    "+s",
    "u+s",
    "g+s",
    "ug+s",
    "u-s,g-s",
    "+t",
    "-t",
    "o+t",
    "a+rwx",
    "Du=rwx,Dgo=rx,Fu=rw,Fgo=r",
    "u=",
    "go=",
    "g=u",
    "o=g",
    "g-o",
    "g=o,o=",
    "u=g",
    "o+u",
    "=u",
    "+g",
    "a=u",
    "ug=o",
    "go+u,u-x",
    "D+x,F-x",
    "u=rws",
    "g=rxs",
    "a=s",
    "Fu+x,Dgo-rx",
    "4755",
    "Fa-x,Du+rwx",
    "o=rwxt",
];

#[test]
fn permissions_are_changed_as_by_rsync_in_both_directions() {
    if !has_rsync() || !is_root() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    for bits in [0o600, 0o644, 0o755, 0o400, 0o777, 0o4711, 0o2755, 0o111, 0o040, 0o1640] {
        let folder = at("s").join(format!("d{bits:o}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("f"), "x").unwrap();
        fs::write(folder.join("large"), noise(1, 140_000)).unwrap();
        mode(&folder.join("f"), bits);
        mode(&folder.join("large"), bits);
        mode(&folder, bits | 0o700);
    }
    std::os::unix::fs::symlink("d600/f", at("s/link")).unwrap();
    let s = serve(ServeOptions { allow_privileged: true, ..ServeOptions::new(d.path()) });
    for text in CHMODS {
        for n in ["rsync", "put", "get"] {
            let _ = fs::remove_dir_all(at(n));
        }
        let code = rsync(&["-rlpt", &format!("--chmod={text}"), &slash(&at("s")), &slash(&at("rsync"))]);
        assert_eq!(code, 0, "{text}");
        let want = modes(&at("rsync"));
        let how = || {
            let chmod = chmod::parse(text, umask()).unwrap();
            (keeping(Keep::SPECIAL_BITS), placed(Placement { chmod, ..Placement::default() }))
        };
        done(put_selecting(s.addr, &slash(&at("s")), "put/", how(), |_, _| ()));
        assert_eq!(modes(&at("put")), want, "put {text}");
        done(get_selecting(s.addr, "s/", &at("get"), how()));
        assert_eq!(modes(&at("get")), want, "get {text}");
        let r = done(put_selecting(s.addr, &slash(&at("s")), "put/", how(), |_, _| ()));
        assert_eq!((r.progress.attributes_changed, r.progress.files_confirmed), (0, 0), "again {text}");
    }
    for bad in ["u+q", "rwx", "u+w,,g+w", "99", "Dx"] {
        assert_ne!(
            rsync(&["-rp", &format!("--chmod={bad}"), &slash(&at("s")), &slash(&at("rsync"))]),
            0,
            "{bad}"
        );
        assert!(chmod::parse(bad, 0o022).is_err(), "{bad}");
    }
}

#[test]
fn everything_belongs_to_whom_the_client_says_as_by_rsync() {
    if !has_rsync() || !is_root() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    fs::create_dir_all(at("s/a")).unwrap();
    for (n, owner) in [("f", 5), ("a/g", 7), ("a/large", 9)] {
        fs::write(at("s").join(n), noise(1, if n == "a/large" { 200_000 } else { 5 })).unwrap();
        chown(at("s").join(n), Some(owner), Some(owner + 1)).unwrap();
    }
    std::os::unix::fs::symlink("f", at("s/link")).unwrap();
    let s = serve(ServeOptions { allow_privileged: true, ..ServeOptions::new(d.path()) });
    for (text, user, group) in [
        ("1:2", "1", "2"),
        ("nobody:daemon", "nobody", "daemon"),
        ("daemon", "daemon", ""),
        (":nogroup", "", "nogroup"),
    ] {
        for n in ["rsync", "put", "get"] {
            let _ = fs::remove_dir_all(at(n));
        }
        assert_eq!(rsync(&["-rlpt", &format!("--chown={text}"), &slash(&at("s")), &slash(&at("rsync"))]), 0);
        let some = |n: &str| Some(n.as_bytes().to_vec()).filter(|n| !n.is_empty());
        let how = || {
            let placement =
                Placement { chown: Chown { user: some(user), group: some(group) }, ..Placement::default() };
            (keeping(placement.keep()), placed(placement))
        };
        done(put_selecting(s.addr, &slash(&at("s")), "put/", how(), |_, _| ()));
        assert_eq!(owners(&at("put")), owners(&at("rsync")), "put {text}");
        done(get_selecting(s.addr, "s/", &at("get"), how()));
        assert_eq!(owners(&at("get")), owners(&at("rsync")), "get {text}");
        let r = done(put_selecting(s.addr, &slash(&at("s")), "put/", how(), |_, _| ()));
        assert_eq!((r.progress.attributes_changed, r.progress.files_confirmed), (0, 0), "again {text}");
    }
    let nobody = Placement {
        chown: Chown { user: Some(b"no-such-user".to_vec()), group: None },
        ..Placement::default()
    };
    let how = (keeping(nobody.keep()), placed(nobody.clone()));
    match put_selecting(s.addr, &slash(&at("s")), "put/", how, |_, _| ()).unwrap().error {
        Some(Error::Refused { text }) => assert!(text.contains("no user no-such-user"), "{text}"),
        e => panic!("{e:?}"),
    }
    // A server gives nothing away unless its operator says so.
    let firm = serve(ServeOptions::new(d.path()));
    let chown = Chown { user: Some(b"1".to_vec()), group: None };
    let p = Placement { chown, ..Placement::default() };
    let r =
        done(put_selecting(firm.addr, &slash(&at("s")), "firm/", (keeping(p.keep()), placed(p)), |_, _| ()));
    assert_eq!((r.progress.not_allowed, fs::metadata(at("firm/f")).unwrap().uid()), (vec!["owners"], 0));
}

/// Names of `of` that are the same files in `with`.
fn linked(of: &Path, with: &Path) -> Vec<PathBuf> {
    let inodes = |p: &Path| picture(p, &|m| if m.is_file() { m.ino().to_string() } else { String::new() });
    let (a, b) = (inodes(of), inodes(with));
    a.into_iter().filter(|(p, i)| !i.is_empty() && b.get(p) == Some(i)).map(|(p, _)| p).collect()
}

fn snapshot_source(s: &Path) {
    for (n, len) in [
        ("same", 10),
        ("a/b/same", 9_000),
        ("large", 300_000),
        ("touched", 5),
        ("mode", 6),
        ("a/new contents", 7),
    ] {
        let p = s.join(n);
        fs::create_dir_all(p.parent().unwrap()).unwrap();
        fs::write(&p, noise(3, len)).unwrap();
        time(&p, 0);
    }
    std::os::unix::fs::symlink("same", s.join("link")).unwrap();
}
fn change_source(s: &Path) {
    fs::write(s.join("a/new contents"), noise(4, 7)).unwrap();
    time(&s.join("a/new contents"), 9);
    fs::write(s.join("added"), "added").unwrap();
    time(&s.join("touched"), 5);
    mode(&s.join("mode"), 0o600);
}

#[test]
fn files_of_an_earlier_snapshot_are_linked_as_by_rsync() {
    if !has_rsync() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    snapshot_source(&at("s"));
    let s = serve(ServeOptions::new(d.path()));
    let linking = |dirs: &[&str], checksum: bool| {
        let link_dest = dirs.iter().map(|d| d.as_bytes().to_vec()).collect();
        (
            TransferOptions { checksum, ..TransferOptions::default() },
            placed(Placement { link_dest, ..Placement::default() }),
        )
    };
    for n in ["rsync/1", "put/1", "get/1"] {
        fs::create_dir_all(at(n)).unwrap();
        assert_eq!(rsync(&["-rlpt", &slash(&at("s")), &slash(&at(n))]), 0);
        // Another folder with an older state of one file: named second, it is looked at second.
        let older = at(n).with_file_name("0");
        fs::create_dir_all(older.join("a")).unwrap();
        fs::write(older.join("same"), noise(3, 10)).unwrap();
        time(&older.join("same"), 0);
        fs::write(older.join("added"), "added").unwrap();
    }
    change_source(&at("s"));
    for n in ["rsync/0/added", "put/0/added", "get/0/added", "s/added"] {
        time(&at(n), 3);
    }
    for (day, checksum) in [("2", false), ("3", true)] {
        let more = if checksum { "-c" } else { "-t" };
        let to = slash(&at("rsync").join(day));
        assert_eq!(rsync(&["-rlpt", more, "--link-dest=../1", "--link-dest=../0", &slash(&at("s")), &to]), 0);
        let by_rsync = linked(&at("rsync").join(day), &at("rsync/1"));
        assert!(by_rsync.contains(&"same".into()) && !by_rsync.contains(&"mode".into()), "{by_rsync:?}");
        let how = linking(&["../1", "../0"], checksum);
        let r = done(put_selecting(s.addr, &slash(&at("s")), &format!("put/{day}/"), how, |_, _| ()));
        let r2 =
            done(get_selecting(s.addr, "s/", &at("get").join(day), linking(&["../1", "../0"], checksum)));
        for (n, r) in [("put", r), ("get", r2)] {
            let here = at(n).join(day);
            assert_eq!(linked(&here, &at(n).join("1")), by_rsync, "{n} {day}");
            assert_eq!(
                linked(&here, &at(n).join("0")),
                linked(&at("rsync").join(day), &at("rsync/0")),
                "{n} {day}"
            );
            common::same(&here, &at("rsync").join(day));
            let look = |m: &fs::Metadata| {
                if m.is_dir() { String::new() } else { format!("{:o} {}", m.mode(), m.mtime()) }
            };
            assert_eq!(picture(&here, &look), picture(&at("rsync").join(day), &look), "{n} {day}");
            let links = by_rsync.len() as u64 + 1;
            // By time, one more is sent: that which was touched.
            let sent = if checksum { 1 } else { 2 };
            assert_eq!((r.progress.files_linked, r.progress.files_confirmed), (links, sent), "{n} {day}");
            assert!(r.progress.bytes_sent + r.progress.bytes_received < 100_000, "{:?}", r.progress);
        }
    }
    // What is there and the same stays, whatever the other folder has; nothing is sent.
    let r = done(put_selecting(s.addr, &slash(&at("s")), "put/2/", linking(&["../1"], false), |_, _| ()));
    assert_eq!((r.progress.files_linked, r.progress.files_confirmed), (0, 0));
}

#[test]
fn folders_to_link_from_are_beneath_the_served_one_and_one_that_is_missing_is_said() {
    let (d, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("f"), "secret").unwrap();
    fs::create_dir_all(d.path().join("served/into")).unwrap();
    fs::create_dir(d.path().join("s")).unwrap();
    fs::write(d.path().join("s/f"), "secret").unwrap();
    time(&d.path().join("s/f"), 0);
    time(&outside.path().join("f"), 0);
    std::os::unix::fs::symlink(outside.path(), d.path().join("served/out")).unwrap();
    let s = serve(ServeOptions::new(d.path().join("served")));
    let put = |addr, dirs: &[&str]| {
        let link_dest = dirs.iter().map(|d| d.as_bytes().to_vec()).collect();
        let how = (TransferOptions::default(), placed(Placement { link_dest, ..Placement::default() }));
        put_selecting(addr, &slash(&d.path().join("s")), "into/", how, |_, _| ()).unwrap()
    };
    let refused = |r: Summary, word: &str| match r.error {
        Some(Error::Refused { text }) => assert!(text.contains(word), "{text}"),
        e => panic!("{e:?}"),
    };
    refused(put(s.addr, &["../.."]), "leads out of the served folder");
    refused(put(s.addr, &["/../x"]), "leads out of the served folder");
    refused(put(s.addr, &["../out"]), "no folder");
    let blind = serve(ServeOptions { allow_read: false, ..ServeOptions::new(d.path().join("served")) });
    refused(put(blind.addr, &["../x"]), "--link-dest would tell");
    let r = put(s.addr, &["../gone"]);
    assert!(
        r.success() && r.progress.notes == ["--link-dest ../gone: there is no such folder"],
        "{:?}",
        r.progress.notes
    );
    assert_eq!(fs::metadata(outside.path().join("f")).unwrap().nlink(), 1);
}

/// Interrupts a put as soon as some of the file is at its place; what is in the folder of unfinished files then.
fn cut_off(
    addr: SocketAddr,
    source: &str,
    how: (TransferOptions, Select),
    unfinished: &Path,
) -> Vec<PathBuf> {
    let folder = unfinished.to_path_buf();
    let r = put_selecting(addr, source, "to/", how, |p, wake| {
        std::thread::spawn(move || {
            loop {
                let some = fs::read_dir(&folder).into_iter().flatten().flatten().any(|e| {
                    e.path().to_string_lossy().ends_with("-journal")
                        && e.metadata().is_ok_and(|m| m.len() > 400)
                });
                if some || p.outcome().is_some() {
                    p.interrupt();
                    return wake();
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
    });
    assert_eq!(r.unwrap().error, Some(Error::Interrupted));
    let mut all: Vec<_> = fs::read_dir(unfinished).unwrap().map(|e| e.unwrap().file_name().into()).collect();
    all.sort();
    all
}

#[test]
fn unfinished_files_are_kept_in_their_folder_and_resumed_from_there() {
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    fs::create_dir_all(at("s/sub/.partial")).unwrap();
    fs::write(at("s/sub/big"), noise(1, 200 << 20)).unwrap();
    fs::write(at("s/sub/.partial/stray"), "never sent").unwrap();
    fs::create_dir(at("served")).unwrap();
    let served = Served::start(&[], &at("served"));
    let source = slash(&at("s"));
    for (dir, holder) in [(".partial", "served/to/sub/.partial"), ("/unfinished", "served/unfinished")] {
        let how = |delete: bool| {
            let partial_dir = Some(dir.as_bytes().to_vec());
            let rules = if dir.starts_with('/') {
                vec![longhaul_mover::select::Rule { include: false, pattern: b".partial/".to_vec() }]
            } else {
                Vec::new()
            };
            let placement = Placement { partial_dir, ..Placement::default() };
            let delete = delete.then(Delete::default);
            (TransferOptions::default(), Select { placement, delete, rules, ..Select::default() })
        };
        let _ = fs::remove_dir_all(at("served/to"));
        let left = cut_off(served.1, &source, how(false), &at(holder));
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(!at("served/to/sub/big").exists() && !at("served/to/sub/.partial/stray").exists());
        let r = done(put_selecting(served.1, &source, "to/", how(true), |_, _| ()));
        assert!(r.progress.bytes_resumed > 0, "{dir} {:?}", r.progress);
        assert!(fs::read(at("served/to/sub/big")).unwrap() == noise(1, 200 << 20));
        assert_eq!(r.progress.deleted.removed, 0, "{dir}");
        // One that is made for each folder goes when it is empty; one for all stays.
        assert_eq!(at(holder).exists(), dir.starts_with('/'), "{dir}");
    }
}

#[test]
fn a_folder_for_unfinished_files_is_neither_sent_nor_deleted_as_by_rsync() {
    if !has_rsync() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    for n in ["s/a/.partial", "rsync/a/.partial", "rsync/old/.partial", "put/a/.partial", "put/old/.partial"]
    {
        fs::create_dir_all(at(n)).unwrap();
        fs::write(at(n).join(if n.starts_with('s') { "sent" } else { "kept" }), "x").unwrap();
    }
    fs::write(at("s/f"), "f").unwrap();
    fs::write(at("s/a/.partially"), "f").unwrap();
    let code =
        rsync(&["-rlpt", "--delete", "--partial-dir=.partial", &slash(&at("s")), &slash(&at("rsync"))]);
    assert_eq!(code, 0);
    let s = serve(ServeOptions { allow_delete: true, ..ServeOptions::new(d.path()) });
    let placement = Placement { partial_dir: Some(b".partial".to_vec()), ..Placement::default() };
    let select = Select { placement, delete: Some(Delete::default()), ..Select::default() };
    done(put_selecting(s.addr, &slash(&at("s")), "put/", (TransferOptions::default(), select), |_, _| ()));
    let names = |n: &str| picture(&at(n), &|m| format!("{:?}", m.file_type()));
    assert_eq!(names("put"), names("rsync"));
    assert!(at("put/a/.partial/kept").exists() && !at("put/a/.partial/sent").exists());
}

#[test]
fn what_a_hard_link_replaces_is_backed_up_as_by_rsync() {
    if !has_rsync() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    fs::create_dir_all(at("s")).unwrap();
    fs::write(at("s/a"), "new").unwrap();
    fs::hard_link(at("s/a"), at("s/b")).unwrap();
    for n in ["rsync", "put"] {
        fs::create_dir_all(at(n)).unwrap();
        fs::write(at(n).join("a"), "old a").unwrap();
        fs::write(at(n).join("b"), "old b").unwrap();
    }
    assert_eq!(rsync(&["-rlptHb", &slash(&at("s")), &slash(&at("rsync"))]), 0);
    let s = serve(ServeOptions::new(d.path()));
    let select = Select { backup: Some(Backup::new(b"~", None).unwrap()), ..Select::default() };
    for round in 0..2 {
        let how = (keeping(Keep::HARD_LINKS), select.clone());
        done(put_selecting(s.addr, &slash(&at("s")), "put/", how, |_, _| ()));
        common::same(&at("put"), &at("rsync"));
        let ino = |n: &str| fs::metadata(at("put").join(n)).unwrap().ino();
        assert_eq!(ino("a"), ino("b"), "{round}");
        assert_eq!(fs::read(at("put/b~")).unwrap(), b"old b", "{round}");
    }
}

#[test]
fn a_device_that_may_not_be_made_is_named_and_the_rest_goes_as_by_rsync() {
    if !is_root() || !has_rsync() {
        return;
    }
    let without = ["setpriv", "--bounding-set", "-mknod", "--inh-caps", "-mknod"];
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    fs::create_dir_all(at("s/d")).unwrap();
    fs::create_dir_all(at("served")).unwrap();
    fs::write(at("s/d/f"), "f").unwrap();
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    mknodat(CWD, at("s/d/null"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
    mknodat(CWD, at("s/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut c = Command::new(without[0]);
    let o =
        c.args(&without[1..]).args(["rsync", "-a", &slash(&at("s")), &slash(&at("rsync"))]).output().unwrap();
    assert_eq!(o.status.code(), Some(23), "{}", String::from_utf8_lossy(&o.stderr));
    let s = Served::start(&without, &at("served"));
    let how = || {
        (
            keeping(Keep::DEVICES.with(Keep::PIPES)),
            Select { delete: Some(Delete::default()), ..Select::default() },
        )
    };
    fs::create_dir_all(at("served/put")).unwrap();
    fs::write(at("served/put/extra"), "goes all the same").unwrap();
    let r = put_selecting(s.1, &slash(&at("s")), "put/", how(), |_, _| ()).unwrap();
    assert_eq!(r.error, Some(Error::Partial { failed: 1, system: None }));
    let e = &r.progress.errors[0];
    assert!(e.path.ends_with("d/null") && e.text.contains("does not let the receiving end make"), "{e}");
    let names = |n: &str| picture(&at(n), &|m| format!("{:?}", m.file_type()));
    assert_eq!(names("served/put"), names("rsync"), "and nothing keeps what is left over from going");
}

#[test]
fn a_receiver_that_is_not_root_touches_nothing_again_for_a_group_it_cannot_set() {
    if !is_root() || !has_rsync() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    mode(d.path(), 0o755);
    fs::create_dir_all(at("s/a")).unwrap();
    for (n, group) in [("f", 12_345), ("a/g", 1), ("large", 65_534)] {
        fs::write(at("s").join(n), noise(1, if n == "large" { 200_000 } else { 9 })).unwrap();
        chown(at("s").join(n), Some(77), Some(group)).unwrap();
    }
    for n in ["served", "rsync"] {
        fs::create_dir(at(n)).unwrap();
        chown(at(n), Some(65_534), Some(65_534)).unwrap();
    }
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--groups", "65534,12345"];
    let mut c = Command::new(nobody[0]);
    let o =
        c.args(&nobody[1..]).args(["rsync", "-a", &slash(&at("s")), &slash(&at("rsync"))]).output().unwrap();
    assert_eq!(o.status.code(), Some(0), "{}", String::from_utf8_lossy(&o.stderr));
    let s = Served::start(&nobody, &at("served"));
    let keep = || (keeping(Keep::OWNER.with(Keep::GROUP)), Select::default());
    done(put_selecting(s.1, &slash(&at("s")), "put/", keep(), |_, _| ()));
    let want = owners(&at("rsync"));
    assert_eq!(owners(&at("served/put")), want);
    assert_eq!((&want[Path::new("f")][..], &want[Path::new("a/g")][..]), ("65534 12345", "65534 65534"));
    let changed = || picture(&at("served/put"), &|m| format!("{}.{}", m.ctime(), m.ctime_nsec()));
    let before = changed();
    let r = done(put_selecting(s.1, &slash(&at("s")), "put/", keep(), |_, _| ()));
    assert_eq!(
        (r.progress.attributes_changed, r.progress.files_confirmed, r.progress.owners_lost),
        (0, 0, 0)
    );
    let files =
        |p: Seen| p.into_iter().filter(|(n, _)| n.file_name().is_some_and(|n| n != "a")).collect::<Seen>();
    assert_eq!(files(changed()), files(before));
}

/// `u::rwx,u:ID:r,g::rx,g:ID:rx,m::rx,o::rx` as it is stored (acl(5)).
fn list(id: u32) -> Vec<u8> {
    let none = u32::MAX;
    let mut acl = vec![2, 0, 0, 0];
    for (tag, bits, id) in
        [(1u16, 7u16, none), (2, 4, id), (4, 5, none), (8, 5, id), (16, 5, none), (32, 5, none)]
    {
        acl.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}

#[test]
fn accounts_go_by_name_where_the_other_end_has_other_numbers_also_in_access_control_lists_as_by_rsync() {
    if !is_root() || !has_rsync() {
        return;
    }
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    let set = |p: &Path, acl: &[u8]| {
        rustix::fs::setxattr(p, "system.posix_acl_access", acl, rustix::fs::XattrFlags::empty()).is_ok()
    };
    fs::create_dir_all(at("s")).unwrap();
    fs::create_dir_all(at("served/rsync")).unwrap();
    // `daemon` is 1 here and 4001 there; nobody has the number 3999999 anywhere; 4500 has a name there only.
    for (n, id) in [("named", 1), ("nameless", 3_999_999), ("other", 4_500)] {
        fs::write(at("s").join(n), n).unwrap();
        chown(at("s").join(n), Some(id), Some(id)).unwrap();
        if !set(&at("s").join(n), &list(id)) {
            eprintln!("skipped: the file system has no access control lists");
            return;
        }
    }
    fs::write(
        at("passwd"),
        "root:x:0:0::/root:/bin/sh\ndaemon:x:4001:4001::/:/bin/sh\nsome:x:4500:4500::/:/bin/sh\n",
    )
    .unwrap();
    fs::write(at("group"), "root:x:0:\ndaemon:x:4001:\nsome:x:4500:\n").unwrap();
    let script = at("there");
    let mount = |n: &str| format!("mount --bind {} /etc/{n}", at(n).display());
    fs::write(&script, format!("#!/bin/sh\n{} && {} && exec \"$@\"\n", mount("passwd"), mount("group")))
        .unwrap();
    mode(&script, 0o755);
    let there = ["unshare", "-m", script.to_str().unwrap()];
    // rsync's other end in the same place: its remote shell gets a name of a machine first.
    let shell = at("shell");
    fs::write(&shell, format!("#!/bin/sh\nshift\nexec unshare -m {} \"$@\"\n", script.display())).unwrap();
    mode(&shell, 0o755);
    let s = Served::start(&there, &at("served"));
    let look = |n: &str| {
        picture(&at(n), &|m| format!("{} {} {:o}", m.uid(), m.gid(), m.mode()))
            .into_iter()
            .map(|(p, x)| {
                let f = fs::File::open(at(n).join(&p)).unwrap();
                (p, format!("{x} {:?}", lhio::safe_path::read_attributes(&f, |_| true).unwrap()))
            })
            .collect::<Seen>()
    };
    for (numeric, name) in [(false, "by-name"), (true, "by-number")] {
        let to = at("served/rsync").join(name);
        let more = if numeric { "--numeric-ids" } else { "-t" };
        let remote = format!("there:{}/", to.display());
        assert_eq!(rsync(&["-aA", more, "-e", shell.to_str().unwrap(), &slash(&at("s")), &remote]), 0);
        let by_rsync = look(&format!("served/rsync/{name}"));
        let keep = Keep::OWNER.with(Keep::GROUP).with(Keep::ACLS).with(Keep::NUMERIC.only_if(numeric));
        let put = || {
            put_selecting(
                s.1,
                &slash(&at("s")),
                &format!("{name}/"),
                (keeping(keep), Select::default()),
                |_, _| (),
            )
        };
        done(put());
        assert_eq!(look(&format!("served/{name}")), by_rsync, "{name}");
        assert_eq!(by_rsync[Path::new("named")].starts_with("4001 4001"), !numeric, "{by_rsync:?}");
        let r = done(put());
        assert_eq!((r.progress.attributes_changed, r.progress.files_confirmed), (0, 0), "{name}");
    }
}
