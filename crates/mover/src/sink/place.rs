//! Jobs of the receiving side for folders, links and small files, and for finding out where things go.

use super::large::drop_journal;
use super::made::Made;
use crate::error::{Cause, FileError};
use crate::path::{RelPath, session_name};
use crate::proto::{Flags, Kind, Meta, Name, Record, Root, decode};
use crate::tree::{Dir, Tree};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Identifies the time since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootId(pub [u8; 36]);

impl BootId {
    /// Of this machine now.
    pub fn current() -> BootId {
        let text = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut id = [b'?'; 36];
        if let Some(t) = text.get(..36) {
            id.copy_from_slice(t);
        }
        BootId(id)
    }
    /// Whether the kernel told it.
    pub fn known(&self) -> bool {
        self.0[0] != b'?'
    }
}

/// What one message of small things came to.
#[derive(Debug, Default)]
pub(super) struct Placed {
    pub files: u64,
    pub links: u64,
    pub bytes: u64,
    /// Folders, whose mode and time are set at the end.
    pub dirs: Vec<(RelPath, Meta)>,
    pub failed: Vec<FileError>,
}

/// Where the roots of a transfer go.
#[derive(Debug)]
pub(super) struct Prepared {
    pub targets: Vec<RelPath>,
    /// Whether a transfer was cut off by a crash of this machine: what looks finished must be verified.
    pub doubtful: bool,
    /// Held while the transfer runs.
    pub locks: Vec<File>,
}

/// The folder that the last name was in; sorted names share it.
struct Parent<'a> {
    made: &'a Made,
    last: Option<(RelPath, Dir)>,
}
impl Parent<'_> {
    /// Folder (made where missing) and last component of a path.
    fn of<'p>(&mut self, path: &'p RelPath) -> io::Result<(&Dir, &'p [u8])> {
        let Some((dir, name)) = path.split() else { return Err(io::ErrorKind::IsADirectory.into()) };
        if self.last.as_ref().is_none_or(|(p, _)| *p != dir) {
            let d = self.made.dir(&dir)?;
            self.last = Some((dir, d));
        }
        match &self.last {
            Some((_, d)) => Ok((d, name)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Path of a name in the tree.
pub(super) fn target(targets: &[RelPath], n: &Name) -> Result<RelPath, FileError> {
    let Some(t) = targets.get(n.root as usize) else {
        return Err(FileError::new(
            n.path.as_bytes(),
            Cause::BadPath,
            "belongs to a root that was not announced",
        ));
    };
    t.append(&n.path).map_err(|e| {
        // The reason first: texts are cut where they are too long, and these paths are long.
        let text = format!("its path at the destination {e}; it lies below {t}");
        let last = t.split().map_or(&b"."[..], |s| s.1);
        FileError::new(&[last, b"/", n.path.as_bytes()].concat(), Cause::NameTooLong, text)
    })
}

/// Carries out the folders, links and small files of a message. It was decoded once already.
pub(super) fn small(made: &Made, targets: &[RelPath], message: &[u8], flags: Flags) -> Placed {
    let mut out = Placed::default();
    let mut parent = Parent { made, last: None };
    for r in decode(message).unwrap_or_default() {
        let (name, r) = match &r {
            Record::Dir { name, .. } | Record::Link { name, .. } => (name.clone(), r),
            Record::Small { name, .. } | Record::Touch { name, .. } => (name.clone(), r),
            _ => continue,
        };
        let done = target(targets, &name).and_then(|path| {
            one(&mut parent, &path, &r, flags, &mut out).map_err(|e| match e.raw_os_error() {
                None => FileError::new(path.as_bytes(), cause_of(&e), e.to_string()),
                Some(_) => FileError::io(path.as_bytes(), "create", &e),
            })
        });
        out.failed.extend(done.err());
    }
    out
}

fn cause_of(e: &io::Error) -> Cause {
    if e.kind() == io::ErrorKind::InvalidData { Cause::Corrupt } else { Cause::of(e) }
}

fn one(p: &mut Parent<'_>, path: &RelPath, r: &Record<'_>, flags: Flags, out: &mut Placed) -> io::Result<()> {
    match r {
        Record::Dir { meta, .. } => {
            let d = p.made.dir(path)?;
            if !flags.overwrite && p.made.may_change(path) {
                // If this attempt is interrupted, the next one finds a folder that exists, and leaves it as it is.
                d.set_meta(&Meta { mode: meta.mode | 0o700, ..*meta })?;
            }
            out.dirs.push((path.clone(), *meta));
        }
        Record::Link { meta, target, .. } => {
            let (d, n) = p.of(path)?;
            d.put_link(n, target, meta, flags.overwrite)?;
            out.links += 1;
        }
        Record::Small { meta, hash, data, .. } => {
            if blake3::hash(data).as_bytes() != hash {
                let text = "the data does not match its checksum";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let (d, n) = p.of(path)?;
            if flags.fresh {
                drop_journal(d, n)?;
            }
            d.put_file(n, data, meta, flags.overwrite)?;
            out.files += 1;
            out.bytes += data.len() as u64;
        }
        // Attributes of what exists are not overwritten either.
        Record::Touch { .. } if !flags.overwrite => {}
        Record::Touch { meta, .. } => {
            let f = p.made.tree().read_file(path)?;
            crate::tree::set_meta(&f, meta)?;
        }
        _ => {}
    }
    Ok(())
}

/// Finds out where the roots go, makes the folders above them, and marks them as being written.
///
/// A single file goes to `dest` itself unless that is a folder or was given with a slash; everything else goes into
/// `dest` under its own name; the contents of a folder (`DIR/`, a root without a name) go to `dest` itself.
pub(super) fn prepare(
    made: &Made,
    dest: &RelPath,
    into: bool,
    roots: &[Root],
    write: bool,
    boot: &BootId,
) -> Result<Prepared, FileError> {
    let tree = made.tree();
    let fail = |e: &io::Error| FileError::io(dest.as_bytes(), "use as the destination", e);
    if roots.is_empty() {
        // All sources failed: not even a folder is made for them.
        return Ok(Prepared { targets: Vec::new(), doubtful: false, locks: Vec::new() });
    }
    let there = match tree.info(dest) {
        Ok(i) => Some(i.kind),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(fail(&e)),
    };
    let as_file = match roots {
        [r] => r.kind != Kind::Dir && !into && there != Some(Kind::Dir) && !dest.is_root(),
        _ => false,
    };
    if !as_file && there.is_some_and(|k| k != Kind::Dir) {
        let text = "is a file, and what is sent needs a folder there";
        return Err(FileError::new(dest.as_bytes(), Cause::NotFolder, text));
    }
    let mut targets = Vec::with_capacity(roots.len());
    for r in roots {
        let t = if as_file { Ok(dest.clone()) } else { dest.append(&r.name) };
        let t = t.map_err(|e| FileError::new(r.name.as_bytes(), Cause::NameTooLong, e.to_string()))?;
        if targets.contains(&t) {
            let text = "two sources have this name; send them one after the other to different destinations";
            return Err(FileError::new(t.as_bytes(), Cause::Exists, text));
        }
        targets.push(t);
    }
    let (mut doubtful, mut locks, mut marked) = (false, Vec::new(), Vec::new());
    if write {
        let above = if as_file { dest.split().map(|s| s.0).unwrap_or_default() } else { dest.clone() };
        made.dir(&above).map_err(|e| fail(&e))?;
        for (i, t) in targets.iter().enumerate() {
            match mark(tree, t, boot) {
                Ok(m) => {
                    doubtful |= m.doubtful;
                    locks.push(m.lock);
                    marked.push(m.made);
                }
                Err(e) => {
                    // Nothing was written beneath the others.
                    marked.iter().zip(&targets[..i]).filter(|m| *m.0).for_each(|m| unmark(tree, m.1));
                    return Err(match e.kind() {
                        io::ErrorKind::WouldBlock => {
                            FileError::new(t.as_bytes(), Cause::Busy, "another transfer is writing here")
                        }
                        _ => fail(&e),
                    });
                }
            }
        }
    }
    Ok(Prepared { targets, doubtful, locks })
}

fn marker(t: &RelPath) -> (RelPath, Vec<u8>) {
    match t.split() {
        Some((dir, name)) => (dir, session_name(name)),
        None => (RelPath::root(), session_name(b"root")),
    }
}

/// The mark of a root.
struct Mark {
    /// A transfer was cut off by a crash of this machine, and none has come to its end since.
    doubtful: bool,
    /// It was not there before.
    made: bool,
    lock: File,
}

/// Writes the boot id beside a root and locks it against other transfers. That of another boot stays until a transfer has
/// come to its end: what was written before is in doubt until then, however many are cut off.
fn mark(tree: &Tree, t: &RelPath, boot: &BootId) -> io::Result<Mark> {
    use std::io::{Read, Write};
    let (dir, name) = marker(t);
    let dir = tree.dir(&dir)?;
    let mut lock = dir.open_own_alone(&name)?;
    let mut old = Vec::new();
    (&mut lock).take(64).read_to_end(&mut old)?;
    let made = old.is_empty();
    if made {
        lock.write_all(&boot.0)?;
        lock.sync_all()?;
    }
    Ok(Mark { doubtful: !made && (old != boot.0 || !boot.known()), made, lock })
}

/// Takes the mark of a root away. One that stays costs the next transfer a little time and nothing else.
fn unmark(tree: &Tree, t: &RelPath) {
    let (dir, name) = marker(t);
    let _ = tree.dir(&dir).and_then(|d| d.remove(&name));
}

/// Sets modes and times of folders, innermost first, brings everything to the disk if asked, and takes the marks
/// away if `clean`: also where files failed, since what is in place is on the disk then.
pub(super) fn finish(
    made: &Made,
    targets: &[RelPath],
    mut dirs: Vec<(RelPath, Meta)>,
    durable: bool,
    clean: bool,
) -> Vec<FileError> {
    let (tree, mut failed) = (made.tree(), Vec::new());
    dirs.retain(|(path, _)| made.may_change(path));
    dirs.sort_unstable_by(|a, b| b.0.cmp(&a.0));
    for (path, meta) in &dirs {
        if let Err(e) = tree.dir(path).and_then(|d| d.set_meta(meta)) {
            failed.push(FileError::io(path.as_bytes(), "set mode and time of", &e));
        }
    }
    if durable && let Err(e) = tree.sync_all() {
        failed.push(FileError::io(b".", "write everything to the disk", &e));
        return failed; // what is in place is in doubt until the next transfer
    }
    if clean {
        targets.iter().for_each(|t| unmark(tree, t));
    }
    failed
}

/// Targets that exist, with their numbers, to be listed.
pub(super) fn present(tree: &Arc<Tree>, targets: &[RelPath]) -> Vec<(u32, RelPath)> {
    (0u32..).zip(targets).filter(|(_, t)| tree.info(t).is_ok()).map(|(i, t)| (i, t.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::put;

    const BOOT: BootId = BootId([b'a'; 36]);
    const FLAGS: Flags = crate::tests::FLAGS;
    fn made(at: &std::path::Path, overwrite: bool) -> Made {
        Made::new(Arc::new(Tree::open(at).unwrap()), overwrite)
    }
    fn p(s: &str) -> RelPath {
        RelPath::parse(s.as_bytes()).unwrap()
    }
    fn roots(v: &[(&str, Kind)]) -> Vec<Root> {
        v.iter().map(|(n, kind)| Root { name: p(n), kind: *kind }).collect()
    }

    #[test]
    fn destinations_are_those_people_expect_and_the_same_at_the_second_attempt() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        std::fs::create_dir(d.path().join("dir")).unwrap();
        std::fs::write(d.path().join("file"), "x").unwrap();
        let go = |dest: &str, into, r: &[(&str, Kind)]| {
            prepare(&t, &p(dest), into, &roots(r), true, &BOOT)
                .map(|x| x.targets.iter().map(ToString::to_string).collect::<Vec<_>>())
                .map_err(|e| e.cause)
        };
        for _ in 0..2 {
            assert_eq!(go("new", false, &[("f", Kind::File)]), Ok(vec!["new".into()]));
            assert_eq!(go("dir", false, &[("f", Kind::File)]), Ok(vec!["dir/f".into()]));
            assert_eq!(go("file", false, &[("f", Kind::File)]), Ok(vec!["file".into()]));
        }
        for _ in 0..2 {
            assert_eq!(go("made", true, &[("f", Kind::File)]), Ok(vec!["made/f".into()]));
            assert_eq!(go("x/y", false, &[("t", Kind::Dir)]), Ok(vec!["x/y/t".into()]));
            assert_eq!(go("c", false, &[("", Kind::Dir)]), Ok(vec!["c".into()]));
            assert_eq!(
                go("", false, &[("a", Kind::File), ("b", Kind::Dir)]),
                Ok(vec!["a".into(), "b".into()])
            );
        }
        assert_eq!(go("file", false, &[("t", Kind::Dir)]), Err(Cause::NotFolder));
        assert_eq!(go("dir", false, &[("a", Kind::File), ("a", Kind::File)]), Err(Cause::Exists));
    }

    #[test]
    fn a_mark_of_another_boot_casts_doubt_until_a_transfer_is_finished() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        let go = |boot| {
            prepare(&t, &p("x"), false, &roots(&[("t", Kind::Dir)]), true, &BootId([boot; 36])).unwrap()
        };
        assert!(!go(b'a').doubtful && !go(b'a').doubtful);
        // Also when the next ones are cut off as well.
        assert!(go(b'b').doubtful && go(b'b').doubtful);
        let x = go(b'b');
        assert!(finish(&t, &x.targets, Vec::new(), true, false).is_empty());
        drop(x);
        let x = go(b'b');
        assert!(x.doubtful, "what could not be compared is in doubt still");
        assert!(finish(&t, &x.targets, Vec::new(), true, true).is_empty());
        assert!(!go(b'c').doubtful);
    }

    #[test]
    fn a_refused_transfer_leaves_no_marks() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        let three = [("a", Kind::Dir), ("b", Kind::Dir), ("c", Kind::Dir)];
        std::fs::write(d.path().join(".a.longhaul-session"), BOOT.0).unwrap();
        let busy = prepare(&t, &p(""), false, &roots(&three[2..]), true, &BOOT).unwrap();
        let e = prepare(&t, &p(""), false, &roots(&three), true, &BOOT).unwrap_err();
        assert_eq!((e.cause, e.path.as_str()), (Cause::Busy, "c"));
        let mut left: Vec<_> = std::fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        // That of an earlier attempt, and that of the one that runs.
        assert_eq!(left, [".a.longhaul-session", ".c.longhaul-session"]);
        drop(busy);
        assert!(prepare(&t, &p(""), false, &roots(&three), true, &BOOT).is_ok());
    }

    #[test]
    fn small_things_are_placed_and_failures_named() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        let meta = Meta { mode: 0o755, secs: 77, nanos: 1 };
        let name = |s: &str| Name { root: 0, path: p(s) };
        let small = |m: &mut Vec<u8>, n: &str, data: &[u8], good: bool| {
            let hash = if good { *blake3::hash(data).as_bytes() } else { [1; 32] };
            put(m, &Record::Small { name: name(n), meta, hash, data });
        };
        let mut m = Vec::new();
        small(&mut m, "d/e/f", b"data", true);
        put(&mut m, &Record::Dir { name: name("d"), meta });
        put(&mut m, &Record::Link { name: name("d/l"), meta, target: b"/nowhere" });
        small(&mut m, "bad", b"data", false);
        small(&mut m, "d", b"over a folder", true);
        put(&mut m, &Record::Dir { name: Name { root: 5, path: p("q") }, meta });
        put(
            &mut m,
            &Record::Small {
                name: name("d/l/through"),
                meta,
                hash: *blake3::hash(b"").as_bytes(),
                data: b"",
            },
        );
        let r = super::small(&t, &[p("to")], &m, FLAGS);
        assert_eq!((r.files, r.links, r.bytes), (1, 1, 4));
        let causes: Vec<Cause> = r.failed.iter().map(|e| e.cause).collect();
        assert_eq!(causes, [Cause::Corrupt, Cause::IsFolder, Cause::BadPath, Cause::Link]);
        assert!(finish(&t, &[], r.dirs, true, true).is_empty());
        assert_eq!(t.tree().info(&p("to/d")).unwrap().meta, meta);
        assert_eq!(std::fs::read(d.path().join("to/d/e/f")).unwrap(), b"data");
        // Nothing is overwritten when that is not allowed.
        let r = super::small(&made(d.path(), false), &[p("to")], &m, Flags { overwrite: false, ..FLAGS });
        assert!(r.failed.iter().any(|e| e.cause == Cause::Exists && e.path == "to/d/e/f"));
    }
}
