//! Jobs of the sink for folders, links and small files, and for finding destinations.

use super::created_dirs::CreatedDirs;
use super::large::drop_journal;
use crate::error::{Cause, FileError};
use crate::keep::Keep;
use crate::lock::LockedFile;
use crate::path::{RelPath, session_name};
use crate::placement::{Destination, Placement, Resolved};
use crate::proto::{Extra, Flags, Kind, LinkFrom, Meta, Name, Record, Root, decode};
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
    /// Files that were linked to others of this end.
    pub linked: u64,
    pub bytes: u64,
    /// Folders, whose mode and time are set at the end.
    pub dirs: Vec<(RelPath, Meta)>,
    /// Further names, each with the first, for the end.
    pub names: Vec<(RelPath, RelPath)>,
    pub failed: Vec<FileError>,
}

/// Where the roots of a transfer go.
#[derive(Debug)]
pub(super) struct Prepared {
    pub targets: Vec<RelPath>,
    /// Whether a transfer was cut off by a crash of this machine: what looks finished must be verified.
    pub doubtful: bool,
    /// Held while the transfer runs.
    pub locks: Vec<LockedFile>,
    /// Folders beside the destination.
    pub folders: Resolved,
}

/// The folder that the last name was in; sorted names share it.
struct Parent<'a> {
    made: &'a CreatedDirs,
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

/// Whether a message holds small files and nothing else.
pub(super) fn is_small(message: &[u8]) -> bool {
    decode(message).is_ok_and(|all| all.iter().all(|r| matches!(r, Record::Small { .. } | Record::Extra(_))))
}

/// Carries out the folders, links and small files of a message. It was decoded once already.
pub(super) fn small(made: &CreatedDirs, targets: &[RelPath], message: &[u8], flags: Flags) -> Placed {
    let mut out = Placed::default();
    let mut parent = Parent { made, last: None };
    let mut extra = None;
    for r in decode(message).unwrap_or_default() {
        let x: Option<Extra> = extra.take();
        let (name, r) = match &r {
            Record::Extra(x) => {
                extra = Some(x.clone());
                continue;
            }
            Record::Node { name, .. } | Record::HardLink { name, .. } => (name.clone(), r),
            Record::LinkFrom(l) => (l.name.clone(), r),
            Record::Dir { name, .. } | Record::Link { name, .. } => (name.clone(), r),
            Record::Small { name, .. } | Record::Touch { name, .. } => (name.clone(), r),
            _ => continue,
        };
        if let Record::HardLink { to, .. } = &r {
            let both = target(targets, &name).and_then(|n| Ok((n, target(targets, to)?)));
            match both {
                Ok(b) => out.names.push(b),
                Err(e) => out.failed.push(e),
            }
            continue;
        }
        let done = target(targets, &name).and_then(|path| {
            one(&mut parent, &path, (&r, x.as_ref()), flags, &mut out).map_err(|e| match e.raw_os_error() {
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

/// Said of a device, pipe or socket that the system does not let this end make.
const NO_RIGHT: &str =
    "is skipped: the system does not let the receiving end make such a device, pipe or socket";

const NOT_ALLOWED: &str = "a device, pipe or socket that was not asked for or is not allowed";

/// Keeps what is about to be replaced, if that is wanted.
fn keep(made: &CreatedDirs, d: &Dir, name: &[u8], path: &RelPath, flags: Flags) -> io::Result<()> {
    match made.backups().filter(|_| flags.overwrite) {
        Some(b) => b.keep(d, name, path),
        None => Ok(()),
    }
}

/// Gives something its owner by its name.
fn own(made: &CreatedDirs, d: &Dir, n: &[u8], x: Option<&Extra>) {
    let Some(x) = x else { return };
    let (user, group) = made.extras.owner(x);
    if user.is_some() || group.is_some() {
        made.extras.owned(d.set_owner(n, user, group));
    }
}

fn one(
    p: &mut Parent<'_>,
    path: &RelPath,
    (r, x): (&Record<'_>, Option<&Extra>),
    flags: Flags,
    out: &mut Placed,
) -> io::Result<()> {
    let made = p.made;
    let extras = &made.extras;
    match r {
        Record::Dir { meta, .. } => {
            let d = p.made.dir(path)?;
            let meta = &extras.meta(meta);
            if let Some(x) = x.filter(|_| p.made.may_change(path)) {
                extras.apply(&d.open_for_attributes()?, x);
            }
            if !flags.overwrite && p.made.may_change(path) {
                // If this attempt is interrupted, the next one finds a folder that exists, and leaves it as it is.
                d.set_meta(&Meta { mode: meta.mode | 0o700, ..*meta })?;
            }
            out.dirs.push((path.clone(), *meta));
        }
        Record::Link { meta, target, .. } => {
            let made = p.made;
            let (d, n) = p.of(path)?;
            keep(made, d, n, path, flags)?;
            d.put_link_with(n, target, meta, flags.overwrite, |d, n| own(made, d, n, x))?;
            out.links += 1;
        }
        Record::Node { meta, .. } => put_node(p, path, (meta, x), flags, out)?,
        Record::Small { meta, hash, data, .. } => {
            if blake3::hash(data).as_bytes() != hash {
                let text = "the data does not match its checksum";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let made = p.made;
            let (d, n) = p.of(path)?;
            if flags.fresh {
                drop_journal(d, n)?;
            }
            keep(made, d, n, path, flags)?;
            let dress = |f: &File| x.into_iter().for_each(|x| extras.apply(f, x));
            d.put_file_with(n, data, &extras.meta(meta), flags.overwrite, dress)?;
            out.files += 1;
            out.bytes += data.len() as u64;
        }
        Record::LinkFrom(l) => link_from(p, path, (l, x), flags, out)?,
        // Attributes of what exists are not overwritten either.
        Record::Touch { .. } if !flags.overwrite => {}
        Record::Touch { meta, .. } => {
            let f = p.made.tree().read_file(path)?;
            x.into_iter().for_each(|x| extras.apply(&f, x));
            crate::tree::set_meta(&f, &extras.meta(meta))?;
        }
        _ => {}
    }
    Ok(())
}

/// Puts a device, pipe or socket in place.
fn put_node(
    p: &mut Parent<'_>,
    path: &RelPath,
    (meta, x): (&Meta, Option<&Extra>),
    flags: Flags,
    out: &mut Placed,
) -> io::Result<()> {
    let made = p.made;
    let node = x.and_then(|x| x.node).filter(|n| made.extras.keep().has(n.kind()));
    let Some(node) = node else {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED));
    };
    let meta = made.extras.meta(meta);
    let (d, n) = p.of(path)?;
    keep(made, d, n, path, flags)?;
    let put = d.put_node_with(n, node, &meta, flags.overwrite, |d, n| own(made, d, n, x));
    put.map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => io::Error::new(io::ErrorKind::InvalidInput, NO_RIGHT),
        _ => e,
    })?;
    out.links += 1;
    Ok(())
}

/// Makes a file of one that a folder of `--link-dest` has, which must be as it was listed.
fn link_from(
    p: &mut Parent<'_>,
    path: &RelPath,
    (l, x): (&LinkFrom, Option<&Extra>),
    flags: Flags,
    out: &mut Placed,
) -> io::Result<()> {
    let made = p.made;
    let bad = |text: &str| io::Error::other(text.to_owned());
    let folder = made.folders().alternates.get(usize::from(l.folder));
    let root = folder.and_then(|f| Some((f, f.targets.get(l.name.root as usize)?)));
    let Some((folder, root)) = root else { return Err(bad("belongs to a folder that was not named")) };
    let from = root.append(&l.name.path).map_err(|e| bad(&e.to_string()))?;
    let Some((dir, of)) = from.split() else { return Err(io::ErrorKind::IsADirectory.into()) };
    let there = folder.tree.dir(&dir)?;
    let now = there.info(of)?;
    let time = |m: &Meta| (m.secs, m.nanos);
    if now.kind != Kind::File || now.size != l.size || time(&now.meta) != time(&l.listed) {
        return Err(bad("the file of --link-dest has changed meanwhile; try again"));
    }
    let (d, n) = p.of(path)?;
    keep(made, d, n, path, flags)?;
    if !l.copy {
        match d.put_name(n, (&there, of), flags.overwrite) {
            // As many names as a file can have, another file system, or one without such links.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EMLINK | libc::EXDEV | libc::EPERM | libc::EOPNOTSUPP)
                ) => {}
            r => {
                out.linked += u64::from(r.is_ok());
                return r;
            }
        }
    }
    let dress = |f: &File| x.into_iter().for_each(|x| made.extras.apply(f, x));
    d.put_copy_with(n, &there.read_file(of)?, &made.extras.meta(&l.meta), flags.overwrite, dress)
}

/// Gives files their further names, once all of them are in place; how many, and what failed.
pub(super) fn further_names(
    made: &CreatedDirs,
    names: &[(RelPath, RelPath)],
    overwrite: bool,
) -> (u64, Vec<FileError>) {
    let (mut done, mut failed) = (0, Vec::new());
    let mut parent = Parent { made, last: None };
    for (path, first) in names {
        let link = |parent: &mut Parent<'_>| {
            if !made.extras.keep().has(Keep::HARD_LINKS) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "hard links are not kept here"));
            }
            let Some((dir, of)) = first.split() else { return Err(io::ErrorKind::IsADirectory.into()) };
            let there = made.tree().dir(&dir)?;
            let (d, n) = parent.of(path)?;
            let first = there.info(of)?;
            if first.node.is_some_and(|n| !made.extras.keep().has(n.kind())) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED));
            }
            if let Some(b) = made.backups().filter(|_| overwrite && !d.is(n, &first)) {
                b.keep(d, n, path)?;
            }
            d.put_name(n, (&there, of), overwrite)
        };
        match link(&mut parent) {
            Ok(()) => done += 1,
            Err(e) => {
                failed.push(FileError::io(path.as_bytes(), "give a further name to the same file:", &e))
            }
        }
    }
    (done, failed)
}

/// Finds out where the roots go, makes the folders above them, and marks them as being written.
///
/// A single file goes to `dest` itself unless that is a folder or was given with a slash; everything else goes into
/// `dest` under its own name; the contents of a folder (`DIR/`, a root without a name) go to `dest` itself.
pub(super) fn prepare(
    made: &CreatedDirs,
    dest: &RelPath,
    into: bool,
    roots: &[Root],
    write: bool,
    boot: &BootId,
    (placement, anywhere): (&Placement, bool),
) -> Result<Prepared, FileError> {
    let tree = made.tree();
    let fail = |e: &io::Error| FileError::io(dest.as_bytes(), "use as the destination", e);
    if roots.is_empty() {
        // All sources failed: not even a folder is made for them.
        let folders = Resolved::default();
        return Ok(Prepared { targets: Vec::new(), doubtful: false, locks: Vec::new(), folders });
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
    let above = if as_file { dest.split().map(|s| s.0).unwrap_or_default() } else { dest.clone() };
    if write {
        made.dir(&above).map_err(|e| fail(&e))?;
    }
    let place = Destination { tree, folder: above, targets: &targets, anywhere, write };
    let folders = placement.resolve(&place, roots)?;
    if write {
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
    Ok(Prepared { targets, doubtful, locks, folders })
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
    lock: LockedFile,
}

/// Writes the boot id beside a root and locks it against other transfers. That of another boot stays until a transfer has
/// come to its end: what was written before is in doubt until then, however many are cut off.
fn mark(tree: &Tree, t: &RelPath, boot: &BootId) -> io::Result<Mark> {
    use std::io::{Read, Write};
    let (dir, name) = marker(t);
    let dir = tree.dir(&dir)?;
    let lock = dir.open_own_alone(&name)?;
    let mut old = Vec::new();
    (&*lock).take(64).read_to_end(&mut old)?;
    let made = old.is_empty();
    if made {
        (&*lock).write_all(&boot.0)?;
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
    made: &CreatedDirs,
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
    const PLAIN: (&Placement, bool) = (
        &Placement {
            chmod: Vec::new(),
            chown: crate::placement::Chown { user: None, group: None },
            link_dest: Vec::new(),
            partial_dir: None,
        },
        false,
    );
    fn made(at: &std::path::Path, overwrite: bool) -> CreatedDirs {
        CreatedDirs::new(Arc::new(Tree::open(at).unwrap()), overwrite)
    }
    fn p(s: &str) -> RelPath {
        RelPath::parse(s.as_bytes()).unwrap()
    }
    fn roots(v: &[(&str, Kind)]) -> Vec<Root> {
        v.iter().map(|(n, kind)| Root { name: p(n), kind: *kind }).collect()
    }

    #[test]
    fn time_since_start_is_known_if_the_kernel_tells_it() {
        assert!(BootId::current().known());
        assert!(!BootId([b'?'; 36]).known());
    }

    #[test]
    fn destinations_are_those_people_expect_and_the_same_at_the_second_attempt() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        std::fs::create_dir(d.path().join("dir")).unwrap();
        std::fs::write(d.path().join("file"), "x").unwrap();
        let go = |dest: &str, into, r: &[(&str, Kind)]| {
            prepare(&t, &p(dest), into, &roots(r), true, &BOOT, PLAIN)
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
    fn session_file_of_another_boot_forces_checksums_until_a_transfer_ends() {
        let d = tempfile::tempdir().unwrap();
        let t = made(d.path(), true);
        let go = |boot| {
            prepare(&t, &p("x"), false, &roots(&[("t", Kind::Dir)]), true, &BootId([boot; 36]), PLAIN)
                .unwrap()
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
        let busy = prepare(&t, &p(""), false, &roots(&three[2..]), true, &BOOT, PLAIN).unwrap();
        let e = prepare(&t, &p(""), false, &roots(&three), true, &BOOT, PLAIN).unwrap_err();
        assert_eq!((e.cause, e.path.as_str()), (Cause::Busy, "c"));
        let mut left: Vec<_> = std::fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        // That of an earlier attempt, and that of the one that runs.
        assert_eq!(left, [".a.longhaul-session", ".c.longhaul-session"]);
        drop(busy);
        assert!(prepare(&t, &p(""), false, &roots(&three), true, &BOOT, PLAIN).is_ok());
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

    #[test]
    fn what_is_not_granted_is_not_made_and_links_lead_to_no_other_file() {
        let (d, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), d.path().join("out")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), d.path().join("tofile")).unwrap();
        let name = |s: &str| Name { root: 0, path: p(s) };
        let pipe = crate::proto::Node { format: 0o010_000, device: (0, 0) };
        let meta = Meta { mode: 0o6755, secs: 1, nanos: 0 };
        let mut m = Vec::new();
        put(
            &mut m,
            &Record::Small { name: name("f"), meta, hash: *blake3::hash(b"x").as_bytes(), data: b"x" },
        );
        put(&mut m, &Record::Extra(Extra { node: Some(pipe), ..Extra::default() }));
        put(&mut m, &Record::Node { name: name("pipe"), meta });
        for (n, to) in [("again", "f"), ("a", "out/secret"), ("b", "tofile"), ("c", "gone"), ("out/d", "f")] {
            put(&mut m, &Record::HardLink { name: name(n), to: name(to) });
        }
        // Nothing is granted.
        let t = made(d.path(), true);
        let r = super::small(&t, &[p("")], &m, FLAGS);
        assert_eq!(r.failed.iter().map(|e| e.cause).collect::<Vec<_>>(), [Cause::Denied]);
        assert_eq!(t.tree().info(&p("f")).unwrap().meta.mode, 0o755);
        assert!(t.tree().info(&p("pipe")).is_err());
        let (n, failed) = further_names(&t, &r.names, true);
        assert_eq!((n, failed.len()), (0, 5));
        // All of it is.
        let keep = Keep::SPECIAL_BITS.with(Keep::PIPES).with(Keep::HARD_LINKS);
        let t = made(d.path(), true).keeping(Arc::new(crate::attributes::PreservedAttributes::new(keep)));
        for _ in 0..2 {
            let r = super::small(&t, &[p("")], &m, FLAGS);
            assert_eq!((r.failed.len(), r.links), (0, 1));
            let (n, failed) = further_names(&t, &r.names, true);
            let named: Vec<&str> = failed.iter().map(|e| e.path.as_str()).collect();
            assert_eq!((n, named), (2, vec!["a", "c", "out/d"]));
        }
        assert_eq!(std::fs::read_link(d.path().join("b")).unwrap(), outside.path().join("secret"));
        // A device at this end gets no further name from who may not make one.
        let mut m = Vec::new();
        put(&mut m, &Record::HardLink { name: name("null"), to: name("pipe") });
        let keep = Keep::DEVICES.with(Keep::HARD_LINKS);
        let t2 = made(d.path(), true).keeping(Arc::new(crate::attributes::PreservedAttributes::new(keep)));
        let r = super::small(&t2, &[p("")], &m, FLAGS);
        assert_eq!((further_names(&t2, &r.names, true).0, further_names(&t, &r.names, true).0), (0, 1));
        let info = |s: &str| t.tree().info(&p(s)).unwrap();
        assert_eq!((info("f").meta.mode, info("pipe").node), (0o6755, Some(pipe)));
        assert_eq!((info("f").id, info("f").links), (info("again").id, 2));
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        let left =
            |e: io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_encoded_bytes().starts_with(b".");
        assert!(!std::fs::read_dir(d.path()).unwrap().any(left), "no temporary name stays");
    }
}
