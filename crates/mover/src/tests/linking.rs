//! Files that are made from others of the destination (`--link-dest`).

use super::bounds::sink_with;
use super::*;
use crate::placement::Placement;
use crate::proto::LinkFrom;
use crate::select::Select;
use std::fs;

/// What was listed is changed like this before the source names it.
type Change = fn(&mut LinkFrom);

/// Has a sink link `t/f` to the one of folder `old`; gives how many were linked, and what failed.
fn link(to: &Path, change: Change) -> (u64, Vec<String>) {
    let placement = Placement { link_dest: vec![b"old".to_vec()], ..Placement::default() };
    let select = Select { placement, ..Select::default() };
    let budgets = Budgets::new(1 << 30, 100);
    let pool = Arc::new(Pool::with_threads(1));
    let (mut b, progress, bell) = sink_with(pool, to, &budgets, (&select, false));
    let info = Tree::open(to).unwrap().info(&rel("old/t/f")).unwrap();
    let mut l = LinkFrom {
        name: Name { root: 0, path: rel("f") },
        meta: info.meta,
        folder: 0,
        size: info.size,
        listed: info.meta,
        copy: false,
    };
    change(&mut l);
    b.s.message(forged(Record::LinkFrom(l)), &mut b.a).unwrap();
    b.s.message(forged(Record::SourceEnd), &mut b.a).unwrap();
    b.s.step(&mut b.a).unwrap();
    while !b.sink().ended() {
        bell.recv_timeout(STUCK).unwrap();
        b.s.step(&mut b.a).unwrap();
    }
    b.close();
    let s = progress.snapshot();
    (s.files_linked, s.errors.iter().map(ToString::to_string).collect())
}

#[test]
fn only_files_that_are_still_as_listed_are_linked() {
    let cases: [(Change, Option<&str>); 6] = [
        (|_| (), None),
        (|l| l.size += 1, Some("has changed meanwhile")),
        (|l| l.listed.secs -= 1, Some("has changed meanwhile")),
        (|l| l.listed.nanos ^= 1, Some("has changed meanwhile")),
        (|l| l.folder = 1, Some("a folder that was not named")),
        (|l| l.name.path = rel("absent"), Some("absent")),
    ];
    for (change, refused) in cases {
        let to = tempfile::tempdir().unwrap();
        fs::create_dir_all(to.path().join("old/t")).unwrap();
        fs::write(to.path().join("old/t/f"), "as before").unwrap();
        let (linked, errors) = link(to.path(), change);
        let of = |path: &str| fs::metadata(to.path().join(path)).map(|m| m.ino()).ok();
        match refused {
            None => assert_eq!((linked, errors, of("t/f")), (1, Vec::new(), of("old/t/f"))),
            Some(word) => {
                assert!(errors.len() == 1 && errors[0].contains(word), "{errors:?}");
                assert_eq!((linked, of("t/f")), (0, None));
            }
        }
    }
}
