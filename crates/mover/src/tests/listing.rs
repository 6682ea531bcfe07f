//! Listings of any size stop nothing, whatever the order of names.

use super::*;

/// More than the listing's credit lets through at once.
const FILES: usize = 14_000;

/// Messages of their listing.
const LISTING: u64 = FILES as u64 * 217 / (32 * 1024);

/// A folder with [`FILES`] files, whose names are long, so that few of them make a long listing.
fn crowd(at: &Path) {
    let tail = "x".repeat(200);
    for i in 0..FILES {
        std::fs::File::create(at.join(format!("file-{i:06}-{tail}"))).unwrap();
    }
    const { assert!(LISTING > crate::source::LIST_CREDIT, "the listing is too short to stop anything") };
}
/// Brings what is in `from` into `to`.
fn contents(from: &Path, to: &Path, flags: Flags) -> Outcome {
    let o = Attempt { flags, ..Attempt::default() }.run(from, "", to, "");
    assert!(o.fatal.is_none() && o.source.errors.is_empty(), "{:?} {:?}", o.fatal, o.source.errors);
    o
}

#[test]
fn small_folder_is_transferred_beside_very_many_files_in_any_order_of_names() {
    let (from, to) = dirs();
    crowd(to.path());
    // Before all of them, among them, behind them; and both ends of them at once.
    for names in [&["aaa"][..], &["file-000500-y"], &["zzz"], &["a", "file-007000-y", "z"]] {
        let part = tempfile::tempdir_in(from.path()).unwrap();
        for n in names {
            std::fs::create_dir(part.path().join(n)).unwrap();
            std::fs::write(part.path().join(n).join("f"), n).unwrap();
            std::fs::write(part.path().join(n).join("large"), noise(3, 300_000)).unwrap();
        }
        for flags in [FLAGS, Flags { checksum: true, ..FLAGS }] {
            let o = contents(part.path(), to.path(), flags);
            let t = o.totals.unwrap();
            // The second time all is there already.
            let new = if flags.checksum { 0 } else { 2 * names.len() as u64 };
            assert_eq!((t.files, t.failed), (new, 0), "{names:?}");
            // What lies before the only name that is asked about, or behind it, is mostly passed over.
            assert!(
                names.len() > 1 || o.answers < LISTING / 2,
                "{names:?}: {} messages of {LISTING}",
                o.answers
            );
        }
        for n in names {
            assert_eq!(std::fs::read_to_string(to.path().join(n).join("f")).unwrap(), *n);
        }
    }
}

#[test]
fn very_many_files_are_transferred_beside_very_many_others() {
    let (from, to) = dirs();
    crowd(from.path());
    crowd(to.path());
    // Half of them are the same; the rest lies between those.
    for i in (0..FILES).step_by(2) {
        let old = from.path().join(format!("file-{i:06}-{}", "x".repeat(200)));
        std::fs::rename(&old, from.path().join(format!("file-{i:06}-{}", "y".repeat(200)))).unwrap();
    }
    let o = contents(from.path(), to.path(), Flags { checksum: true, ..FLAGS });
    assert_eq!(o.totals.unwrap().files, FILES as u64 / 2);
    assert_eq!(o.source.files_skipped, FILES as u64 / 2);
}

#[test]
fn dry_run_beside_very_many_files_ends() {
    let (from, to) = dirs();
    crowd(to.path());
    std::fs::write(from.path().join("aaa"), "a").unwrap();
    let o = contents(from.path(), to.path(), Flags { dry_run: true, ..FLAGS });
    assert_eq!((o.source.files_total, o.totals.unwrap()), (1, Totals::default()));
}
