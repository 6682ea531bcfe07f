//! What a source may have removed at the destination, and what stays whatever it says.

use super::bounds::sink_with;
use super::*;
use crate::proto::{Deleted, Extraneous};
use crate::select::{Delete, Rule, Select};
use std::fs;

/// A destination with files `a`, `b` and `c`, and a folder `d` that holds `e`.
fn destination() -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    fs::create_dir_all(to.path().join("t/d")).unwrap();
    for name in ["a", "b", "c", "d/e"] {
        fs::write(to.path().join("t").join(name), name).unwrap();
    }
    to
}

/// It as a listing of the destination has it.
fn listed(to: &Path, path: &str) -> Extraneous {
    let info = Tree::open(to).unwrap().info(&rel(&format!("t/{path}"))).unwrap();
    Extraneous { name: Name { root: 0, path: rel(path) }, kind: info.kind, size: info.size, meta: info.meta }
}

/// What is below a folder, without itself.
fn names(to: &Path) -> Vec<String> {
    let mut all: Vec<_> =
        picture(to).iter().skip(1).map(|t| String::from_utf8_lossy(&t.0).into_owned()).collect();
    all.sort();
    all
}

fn deleting(how: Delete) -> Select {
    Select { delete: Some(how), ..Select::default() }
}

/// Has a sink with so much memory remove these, and says what became of them. `said` comes before the source's end.
fn remove(
    to: &Path,
    select: (&Select, bool),
    memory: u64,
    all: Vec<Extraneous>,
    said: Option<Record<'_>>,
) -> Deleted {
    let budgets = Budgets::new(memory, 100);
    let (mut b, progress, bell) = sink_with(Arc::new(Pool::with_threads(1)), to, &budgets, select);
    for e in all {
        b.s.message(forged(Record::Delete(e)), &mut b.a).unwrap();
    }
    for r in said.into_iter().chain([Record::SourceEnd]) {
        b.s.message(forged(r), &mut b.a).unwrap();
    }
    b.s.step(&mut b.a).unwrap();
    while !b.sink().ended() {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
    b.close();
    progress.snapshot().deleted
}

const MEMORY: u64 = 1 << 30;

#[test]
fn what_is_as_listed_is_removed_innermost_first() {
    let to = destination();
    let all = ["a", "d", "d/e"].map(|n| listed(to.path(), n)).to_vec();
    let done = remove(to.path(), (&deleting(Delete::default()), false), MEMORY, all, None);
    assert_eq!(done, Deleted { removed: 3, ..Deleted::default() });
    assert_eq!(names(&to.path().join("t")), ["b", "c"]);
}

#[test]
fn what_has_changed_since_it_was_listed_stays() {
    let to = destination();
    let changes: [fn(&mut Extraneous); 4] =
        [|e| e.size += 1, |e| e.meta.nanos ^= 1, |e| e.meta.secs -= 1, |e| e.kind = Kind::Link];
    let mut all: Vec<_> = changes
        .iter()
        .zip(["a", "b", "c", "d/e"])
        .map(|(change, name)| {
            let mut e = listed(to.path(), name);
            change(&mut e);
            e
        })
        .collect();
    // A folder that is not empty; its time is that of what is in it, and does not count.
    let mut folder = listed(to.path(), "d");
    folder.meta.secs -= 1;
    all.push(folder);
    // What is gone already, and what lies below a file now, is neither removed nor kept.
    for gone in ["x", "a/x"] {
        all.push(Extraneous { name: Name { root: 0, path: rel(gone) }, ..listed(to.path(), "a") });
    }
    let done = remove(to.path(), (&deleting(Delete::default()), false), MEMORY, all, None);
    assert_eq!(done, Deleted { kept: 5, ..Deleted::default() });
    assert_eq!(names(&to.path().join("t")), ["a", "b", "c", "d", "d/e"]);
}

#[test]
fn links_on_the_way_are_not_followed() {
    let (to, outside) = (destination(), destination());
    let e = listed(to.path(), "d/e");
    fs::rename(to.path().join("t/d"), to.path().join("moved")).unwrap();
    fs::rename(outside.path().join("t/d/e"), outside.path().join("e")).unwrap();
    fs::rename(to.path().join("moved/e"), outside.path().join("t/d/e")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("t/d"), to.path().join("t/d")).unwrap();
    let done = remove(to.path(), (&deleting(Delete::default()), false), MEMORY, vec![e], None);
    assert_eq!(done.removed, 0);
    assert!(outside.path().join("t/d/e").exists());
}

#[test]
fn no_more_are_removed_than_allowed() {
    let to = destination();
    let all = ["a", "b", "c"].map(|n| listed(to.path(), n)).to_vec();
    let how = Delete { max: Some(2), ..Delete::default() };
    let done = remove(to.path(), (&deleting(how), false), MEMORY, all, None);
    assert_eq!(done, Deleted { removed: 2, over_limit: 1, ..Deleted::default() });
    assert_eq!(names(&to.path().join("t")).len(), 3);
}

#[test]
fn nothing_is_removed_after_a_failure_unless_errors_are_ignored() {
    let failure = |cause: Cause| {
        Some(Record::Failed { path: "t/x".into(), cause: cause as u8, text: "as said".into() })
    };
    for (source_failed, said, ignore_errors, goes) in [
        (false, None, false, true),
        (true, None, false, false),
        (true, None, true, true),
        (false, failure(Cause::Denied), false, false),
        (false, failure(Cause::Denied), true, true),
        (false, failure(Cause::Special), false, true),
        (false, failure(Cause::Exists), false, true),
        (false, failure(Cause::Vanished), false, true),
    ] {
        let to = destination();
        let all = ["a", "b"].map(|n| listed(to.path(), n)).to_vec();
        let how = Delete { ignore_errors, ..Delete::default() };
        let done = remove(to.path(), (&deleting(how), source_failed), MEMORY, all, said);
        let [removed, held_back] = if goes { [2, 0] } else { [0, 2] };
        assert_eq!(done, Deleted { removed, held_back, ..Deleted::default() });
        assert_eq!(to.path().join("t/a").exists(), !goes);
    }
}

#[test]
fn names_that_find_no_memory_stay() {
    let to = destination();
    let mut all = vec![listed(to.path(), "a")];
    for n in 0..20_000 {
        let path = rel(&format!("{n:0>200}"));
        all.push(Extraneous { name: Name { root: 0, path }, ..all[0].clone() });
    }
    // What was remembered of them does not exist, and is not counted.
    let done = remove(to.path(), (&deleting(Delete::default()), false), 1 << 20, all, None);
    assert!((1..20_000).contains(&done.kept), "{done:?}");
    assert_eq!(done, Deleted { removed: 1, kept: done.kept, ..Deleted::default() });
}

#[test]
fn a_source_has_nothing_removed_that_is_none_of_its_business() {
    let to = destination();
    let rule = Rule { include: false, pattern: b"*.keep".to_vec() };
    let keeping = Select { rules: vec![rule], ..deleting(Delete::default()) };
    let all = Delete { excluded: true, ..Delete::default() };
    let keeping_nothing = Select { delete: Some(all), ..keeping.clone() };
    let a = listed(to.path(), "a");
    let of = |root, path| Extraneous { name: Name { root, path: rel(path) }, ..a.clone() };
    for (select, e, refused) in [
        (&Select::default(), of(0, "a"), Some("that nobody asked for")),
        (&keeping, of(0, ""), Some("outside of its range")),
        (&keeping, of(1, "a"), Some("not announced")),
        (&keeping, of(0, "x.keep"), Some("that a rule of this end keeps")),
        (&keeping, of(0, "x.keep/a"), Some("that a rule of this end keeps")),
        (&keeping, of(0, "x"), None),
        (&keeping_nothing, of(0, "x.keep"), None),
    ] {
        let budgets = Budgets::new(MEMORY, 100);
        let pool = Arc::new(Pool::with_threads(1));
        let (mut b, ..) = sink_with(pool, to.path(), &budgets, (select, false));
        let got = b.s.message(forged(Record::Delete(e)), &mut b.a);
        match refused {
            Some(word) => protocol(got, word),
            None => got.unwrap(),
        }
        b.close();
    }
    assert_eq!(names(&to.path().join("t")).len(), 5);
}
