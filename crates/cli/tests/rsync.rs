//! Names, missing sources and statuses: rsync is run beside `put` and `get`, and each must leave the same, or what is said
//! here to be otherwise by design.

mod common;

use common::{Bench, Server, stderr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// As what travels: contents, folders, links, permissions, times.
const LIKE_OURS: &str = "-rlpt";

/// Everything below a folder: `dir`, `pipe`, `-> target`, or the contents.
type Tree = BTreeMap<PathBuf, String>;

/// What is to be there in the end.
#[derive(Clone, Copy)]
enum Want {
    /// What rsync leaves.
    Same,
    /// What was there before, with these in addition, or instead. Why not as by rsync is said beside it.
    Ours(&'static [(&'static str, &'static str)]),
}
use Want::{Ours, Same};

struct Case {
    /// Where the commands run, below the top.
    from: &'static str,
    sources: &'static [&'static str],
    dest: &'static str,
    /// Status of rsync, of put, of get.
    status: (i32, i32, i32),
    put: Want,
    get: Want,
}

/// One that is as by rsync in both directions.
const fn same(sources: &'static [&'static str], dest: &'static str, status: (i32, i32, i32)) -> Case {
    Case { from: "s", sources, dest, status, put: Same, get: Same }
}
/// One that is otherwise in both directions.
const fn other(
    sources: &'static [&'static str],
    dest: &'static str,
    status: (i32, i32, i32),
    ours: &'static [(&'static str, &'static str)],
) -> Case {
    Case { from: "s", sources, dest, status, put: Ours(ours), get: Ours(ours) }
}

/// All went well.
const DONE: (i32, i32, i32) = (0, 0, 0);
/// Some sources failed: rsync's 23 is this program's 1.
const SOME: (i32, i32, i32) = (23, 1, 1);
/// The destination cannot be used: 2 where it is this machine's, 6 where the server says so.
const NO_PLACE: (i32, i32, i32) = (3, 6, 2);

const CASES: &[Case] = &[
    // A file: to a new name, into a folder, over a file.
    same(&["f"], "new", DONE),
    same(&["f"], "new/", DONE),
    same(&["f"], "dir", DONE),
    same(&["f"], "dir/", DONE),
    same(&["f"], "dir/.", DONE),
    same(&["f"], "file", DONE),
    // A folder, and what is in it.
    same(&["d"], "new", DONE),
    same(&["d"], "new/", DONE),
    same(&["d"], "dir", DONE),
    same(&["d/"], "new", DONE),
    same(&["d/."], "new", DONE),
    same(&["d//"], "dir", DONE),
    same(&["./d"], "dir", DONE),
    Case { from: "s/d", sources: &["."], dest: "new", status: DONE, put: Same, get: Same },
    Case { from: "s/d", sources: &["./"], dest: "dir/", status: DONE, put: Same, get: Same },
    // No path of a server leads upwards.
    Case { from: "s", sources: &["d/e/.."], dest: "new", status: (0, 0, 2), put: Same, get: Ours(&[]) },
    // Symbolic links as sources: themselves, unless their contents are meant.
    same(&["tof"], "dir", DONE),
    same(&["tod"], "new", DONE),
    // Nothing of a server is reached by a link: what it points to is named instead.
    Case { from: "s", sources: &["tod/"], dest: "new", status: (0, 0, 1), put: Same, get: Ours(&[]) },
    // To a folder by a link, or in place of a link: a server follows none and replaces none that is named.
    Case { from: "s", sources: &["f"], dest: "todir", status: (0, 6, 0), put: Ours(&[]), get: Same },
    Case { from: "s", sources: &["f"], dest: "tofile", status: (0, 6, 0), put: Ours(&[]), get: Same },
    // Several.
    same(&["f", "d"], "new", DONE),
    same(&["f", "d/"], "dir", DONE),
    same(&["f", "f"], "new", DONE),
    same(&["d", "./d"], "dir", DONE),
    // Two of one name: the first goes. rsync says nothing of the second file, and merges folders.
    other(&["f", "x/f"], "dir", (0, 1, 1), &[("dir/f", "f")]),
    other(
        &["d", "x/d"],
        "dir",
        (0, 1, 1),
        &[("dir/d", "dir"), ("dir/d/e", "dir"), ("dir/d/e/h", "h"), ("dir/d/g", "g")],
    ),
    // What is not there is named, and the rest goes.
    same(&["gone"], "new", SOME),
    same(&["gone", "f"], "dir", SOME),
    same(&["f", "gone", "d", "gone/", "away/x"], "new", SOME),
    same(&["gone", "away"], "dir", SOME),
    same(&["f/"], "new", SOME),
    // The destination is a folder where several sources are named, however many of them are there.
    other(&["gone", "f"], "new", SOME, &[("new", "dir"), ("new/f", "f")]),
    // A pipe is no file. rsync says so and calls it success.
    same(&["pipe"], "new", (0, 1, 1)),
    same(&["pipe", "f"], "dir", (0, 1, 1)),
    // Nor is one replaced by a file: put says so, get writes to it (tests/streams.rs).
    Case { from: "s", sources: &["f"], dest: "pipe", status: (0, 1, -1), put: Ours(&[]), get: Ours(&[]) },
    // Over a file, where a folder is needed.
    same(&["d"], "file", NO_PLACE),
    same(&["d/"], "file", NO_PLACE),
    same(&["f"], "file/", NO_PLACE),
    same(&["f", "d"], "file", NO_PLACE),
    // All folders of a destination are made; rsync makes the last.
    other(&["f"], "a/b", (3, 0, 0), &[("a", "dir"), ("a/b", "f")]),
    other(&["f"], "a/b/", (11, 0, 0), &[("a", "dir"), ("a/b", "dir"), ("a/b/f", "f")]),
    other(&["f"], "new/.", (3, 0, 0), &[("new", "dir"), ("new/f", "f")]),
    // An empty name is refused.
    Case { from: "s", sources: &[""], dest: "dir", status: (1, 2, -1), put: Same, get: Same },
];

fn look(root: &Path) -> Tree {
    fn walk(root: &Path, below: &Path, out: &mut Tree) {
        for e in fs::read_dir(root.join(below)).unwrap() {
            let path = below.join(e.unwrap().file_name());
            let full = root.join(&path);
            let t = fs::symlink_metadata(&full).unwrap().file_type();
            let what = if t.is_symlink() {
                format!("-> {}", fs::read_link(&full).unwrap().display())
            } else if t.is_dir() {
                walk(root, &path, out);
                "dir".into()
            } else if t.is_fifo() {
                "pipe".into()
            } else {
                fs::read_to_string(&full).unwrap()
            };
            // What an attempt that failed keeps for the next one is not part of what arrived.
            if !path.to_string_lossy().contains(".longhaul-") {
                out.insert(path, what);
            }
        }
    }
    let mut out = Tree::new();
    walk(root, Path::new(""), &mut out);
    out
}

fn pipe(at: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

fn sources(top: &Path) {
    for p in ["s/d/e", "s/x/d"] {
        fs::create_dir_all(top.join(p)).unwrap();
    }
    for (p, data) in [("f", "f"), ("d/g", "g"), ("d/e/h", "h"), ("x/f", "other"), ("x/d/y", "y")] {
        fs::write(top.join("s").join(p), data).unwrap();
    }
    symlink("f", top.join("s/tof")).unwrap();
    symlink("d", top.join("s/tod")).unwrap();
    pipe(&top.join("s/pipe"));
}

/// A destination as it is before each command.
fn destination(at: &Path) -> Tree {
    let _ = fs::remove_dir_all(at); // of the case before
    fs::create_dir_all(at.join("dir")).unwrap();
    fs::write(at.join("file"), "old").unwrap();
    symlink("dir", at.join("todir")).unwrap();
    symlink("file", at.join("tofile")).unwrap();
    pipe(&at.join("pipe"));
    look(at)
}

/// Looks at what a command left, and at its status.
fn check(
    what: &str,
    c: &Case,
    o: &std::process::Output,
    (at, status): (&Path, i32),
    want: (Want, &Tree, &Tree),
) {
    let (want, before, by_rsync) = want;
    let want = match want {
        Same => by_rsync.clone(),
        Ours(changes) => {
            let mut t = before.clone();
            t.extend(changes.iter().map(|(p, data)| (PathBuf::from(p), (*data).to_owned())));
            t
        }
    };
    let said = stderr(o);
    assert_eq!(o.status.code(), Some(status), "{what} {:?} {}: {said}", c.sources, c.dest);
    assert_eq!(look(at), want, "{what} {:?} {}: {said}", c.sources, c.dest);
    // What is not there, or no file, is named; and nothing fails in silence.
    for s in
        c.sources.iter().filter(|s| status == 1 && ["gone", "away", "pipe"].iter().any(|n| s.contains(n)))
    {
        assert!(said.contains(s.trim_end_matches('/')), "{what} names {s}: {said}");
    }
    assert!(status == 0 || !said.is_empty(), "{what} {:?} {}", c.sources, c.dest);
}

fn run(b: &Bench, server: &Server, c: &Case) {
    let top = b.path("top");
    let (from, at) = (top.join(c.from), |n: &str| top.join(n));
    let before = destination(&at("rsync"));
    let mut rsync = Command::new("rsync");
    rsync.arg(LIKE_OURS).args(c.sources).arg(format!("{}/{}", at("rsync").display(), c.dest));
    let o = rsync.current_dir(&from).output().unwrap();
    assert_eq!(o.status.code(), Some(c.status.0), "rsync {:?} {}: {}", c.sources, c.dest, stderr(&o));
    let by_rsync = look(&at("rsync"));

    destination(&at("put"));
    let mut put = b.client(&["put", "--accept-new", "-q"]);
    put.args(c.sources).arg(server.url(&format!("put/{}", c.dest))).current_dir(&from);
    check("put", c, &put.output().unwrap(), (&at("put"), c.status.1), (c.put, &before, &by_rsync));

    if c.status.2 < 0 {
        return; // it has no counterpart
    }
    destination(&at("get"));
    let mut get = b.client(&["get", "--accept-new", "-q"]);
    get.args(c.sources.iter().map(|s| server.url(&format!("{}/{s}", c.from))));
    get.arg(format!("{}/{}", at("get").display(), c.dest));
    check("get", c, &get.output().unwrap(), (&at("get"), c.status.2), (c.get, &before, &by_rsync));
}

#[test]
fn names_and_statuses_match_rsync_except_where_documented() {
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("skipped: there is no rsync");
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("top")).unwrap();
    sources(&b.path("top"));
    let server = b.serve("top", &[]);
    for c in CASES {
        run(&b, &server, c);
    }
}
