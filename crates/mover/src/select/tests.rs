//! The walk with filter rules finds what rsync finds, for hundreds of random lists of patterns.

use super::*;
use crate::proto::{Kind, Root};
use crate::tree::Tree;
use crate::walk::{Start, Walk};
use base::Rng;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// How many lists are compared.
const LISTS: usize = 400;
const NAMES: [&str; 6] = ["a", "b", "ab", "c.d", "abc", "*"];
const PIECES: [&str; 22] = [
    "a",
    "b",
    "ab",
    "c.d",
    "abc",
    "*",
    "**",
    "***",
    "?",
    "/",
    "/",
    "[ab]",
    "[!a]",
    "[^b-z]",
    "[[:alpha:]]",
    "[]a]",
    "[",
    "\\a",
    "\\*",
    ".",
    "/**/",
    "[a\\]b]",
];

fn fill(at: &Path, depth: usize) {
    std::fs::create_dir_all(at).unwrap();
    for n in NAMES {
        if depth > 0 && n != "c.d" {
            fill(&at.join(n), depth - 1);
        } else {
            std::fs::write(at.join(n), "").unwrap();
        }
    }
}

fn pattern(rng: &mut Rng) -> String {
    let mut p = String::new();
    if rng.below(4) == 0 {
        p.push('/');
    }
    for _ in 0..=rng.below(4) {
        p.push_str(PIECES[rng.below(PIECES.len() as u64) as usize]);
    }
    if rng.below(5) == 0 {
        p.push('/');
    }
    p
}

/// What a walk finds of `top/t`, as rsync writes names: folders with a slash behind.
fn ours(top: &Path, rules: &[(bool, String)], contents: bool) -> BTreeSet<String> {
    let rules =
        rules.iter().map(|(include, p)| Rule { include: *include, pattern: p.as_bytes().to_vec() }).collect();
    let tree = Arc::new(Tree::open(top).unwrap());
    let start = Start { tree, path: RelPath::parse(b"t").unwrap() };
    let name = if contents { RelPath::root() } else { start.path.clone() };
    let select = Select { rules, ..Select::default() };
    let picker = Arc::new(Picker::new(select, &[Root { name: name.clone(), kind: Kind::Dir }]));
    let walk = Walk::new(vec![start], usize::MAX).selecting(picker, true);
    let shown = |f: crate::walk::Found| {
        let full = name.append(&f.path).unwrap();
        let slash = if f.info.kind == Kind::Dir { "/" } else { "" };
        if full.is_root() {
            "./".to_owned()
        } else {
            format!("{}{slash}", full.as_os_str().to_str().unwrap())
        }
    };
    walk.map(|f| shown(f.unwrap())).collect()
}

fn rsync(top: &Path, rules: &[(bool, String)], contents: bool) -> BTreeSet<String> {
    let mut c = Command::new("rsync");
    c.args(["-r", "-n", "--out-format=%n"]).current_dir(top);
    for (include, p) in rules {
        c.arg(format!("--{}={p}", if *include { "include" } else { "exclude" }));
    }
    let o = c.arg(if contents { "t/" } else { "t" }).arg("nowhere/").output().unwrap();
    let said = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(o.status.success(), "rsync {rules:?}: {said}");
    let names = String::from_utf8(o.stdout).unwrap();
    names.lines().filter(|l| !l.starts_with("created directory")).map(str::to_owned).collect()
}

#[test]
fn rules_select_what_rsync_selects() {
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("skipped: there is no rsync");
        return;
    }
    let d = tempfile::tempdir().unwrap();
    fill(&d.path().join("t"), 2);
    let mut rng = Rng::from_u64(20_261_128);
    let (mut all, mut some) = (0, 0);
    for n in 0..LISTS {
        let rules: Vec<(bool, String)> =
            (0..=rng.below(4)).map(|_| (rng.below(3) == 0, pattern(&mut rng))).collect();
        let contents = n % 2 == 0;
        let (a, b) = (ours(d.path(), &rules, contents), rsync(d.path(), &rules, contents));
        assert_eq!(a, b, "{rules:?} contents {contents}");
        let full = ours(d.path(), &[], contents).len();
        all += usize::from(a.len() == full);
        some += usize::from(a.len() > 2 && a.len() < full);
    }
    assert!(some > LISTS / 3, "the lists decide hardly anything: {some}, and {all} nothing");
}

#[test]
fn a_list_of_names_finds_them_and_the_folders_that_lead_there() {
    let d = tempfile::tempdir().unwrap();
    fill(&d.path().join("t"), 2);
    let tree = Arc::new(Tree::open(d.path()).unwrap());
    let start = Start { tree, path: RelPath::parse(b"t").unwrap() };
    let (names, bad) = Names::parse(b"# none\n/a/b/abc\nab/\nb\ngone/x\n../up\n", false);
    assert_eq!((names.len(), bad.len()), (4, 1));
    let select = Select { names: Some(names), ..Select::default() };
    let picker = Arc::new(Picker::new(select, &[Root { name: RelPath::root(), kind: Kind::Dir }]));
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for f in Walk::new(vec![start], usize::MAX).selecting(picker, true) {
        match f {
            Ok(f) => found.push(f.path.to_string()),
            Err(e) => failed.push(e.path),
        }
    }
    assert_eq!(failed, ["t/gone"]);
    let whole = ["ab", "ab/*", "ab/a", "ab/ab", "ab/abc", "ab/b", "ab/c.d"];
    let want: Vec<&str> = [".", "a", "a/b", "a/b/abc"].into_iter().chain(whole).chain(["b"]).collect();
    assert_eq!(found, want);
}

#[test]
fn ignore_files_leave_out_what_git_would() {
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    for f in ["src/main.rs", "src/main.o", "target/x", "src/keep/target", "src/keep/a.o", "doc/a.tmp"] {
        std::fs::create_dir_all(at(f).parent().unwrap()).unwrap();
        std::fs::write(at(f), f).unwrap();
    }
    std::fs::write(at(".longhaulignore"), "# built\n*.o\n/target/\n").unwrap();
    std::fs::write(at("src/keep/.longhaulignore"), "!a.o\n").unwrap();
    let tree = Arc::new(Tree::open(d.path()).unwrap());
    let find = |no_ignore| {
        let start = Start { tree: tree.clone(), path: RelPath::root() };
        let select = Select { no_ignore, ..Select::default() };
        let picker = Arc::new(Picker::new(select, &[Root { name: RelPath::root(), kind: Kind::Dir }]));
        let walk = Walk::new(vec![start], usize::MAX).selecting(picker.clone(), true);
        let found: Vec<_> = walk.map(|f| f.map(|f| f.path.to_string()).map_err(|e| e.path)).collect();
        (found, picker.excluded.get().by_ignore_files)
    };
    let (found, excluded) = find(false);
    let has = |n: &str| found.contains(&Ok(n.to_owned()));
    assert!(has("src/main.rs") && has("src/keep/target") && has("src/keep/a.o") && has(".longhaulignore"));
    assert!(!has("src/main.o") && !has("target") && excluded == 2, "{found:?}");
    assert_eq!(find(true).1, 0);
    assert!(find(true).0.contains(&Ok("target/x".to_owned())));
    // One that cannot be read leaves nothing to chance.
    std::fs::write(at("doc/.longhaulignore"), b"\xff\n").unwrap();
    let (found, _) = find(false);
    assert!(found.contains(&Err("doc/.longhaulignore".into())), "{found:?}");
    assert!(!found.iter().any(|f| f.as_ref().is_ok_and(|p| p.starts_with("doc/"))), "{found:?}");
}
