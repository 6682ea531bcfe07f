//! Attaches policies to cgroups, for the TCP sockets of their processes. The link that calls the rules, and the map of
//! program names, are pinned in the BPF file system, so that they outlive the process that attached them.

use super::pins::{self, FOLDER};
use super::rules::Rules;
use super::{Error, sys};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Folder of one note for each attached policy, `rules-CGROUP`, with what [`attached_policies`] reports.
const NOTE_FOLDER: &str = "/run/longhaul/tcp";
/// In front of the number of the cgroup; no congestion control has a dash in its name.
const PREFIX: &str = "rules-";
/// Behind it: the map of names.
const NAMES: &str = "-names";
/// Maximum size of a note in bytes; a policy has at most a megabyte.
const MAX_NOTE: u64 = 2 << 20;
/// Maximum number of policies listed.
const MAX_LISTED: usize = 1000;

/// A policy that is active for a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedPolicy {
    /// The cgroup's folder.
    pub group: PathBuf,
    /// The source of the policy, as given to [`attach_policy`].
    pub source: String,
    /// When it became active, in seconds since 1970.
    pub since: u64,
    /// The text of the policy.
    pub policy: String,
    /// Whether the cgroup still exists.
    pub cgroup_exists: bool,
}

/// The folder of the root cgroup, which contains all processes.
///
/// # Errors
/// [`Error::NoGroups`].
pub fn root_cgroup() -> Result<PathBuf, Error> {
    let text =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(Error::io("cannot read the mounts"))?;
    let mount = text.lines().find_map(|l| {
        // proc(5): the mount point is the fifth word, and the file system's type is the first after the dash.
        let (before, behind) = l.split_once(" - ")?;
        let mut words = before.split(' ').skip(3);
        (behind.starts_with("cgroup2 ") && words.next()? == "/").then(|| words.next())?
    });
    mount.map(PathBuf::from).ok_or(Error::NoGroups)
}

/// Paths of the pins and of the note of a cgroup.
struct Paths {
    link: PathBuf,
    names: PathBuf,
    note: PathBuf,
}

impl Paths {
    fn of(number: &str) -> Paths {
        let name = format!("{PREFIX}{number}");
        Paths {
            link: Path::new(FOLDER).join(&name),
            names: Path::new(FOLDER).join(format!("{name}{NAMES}")),
            note: Path::new(NOTE_FOLDER).join(name),
        }
    }

    /// Removes all of them; the link last, so that a failed removal can be retried.
    fn remove(&self) -> Result<(), Error> {
        for path in [&self.note, &self.names, &self.link] {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(Error::call("taking a policy from TCP"))?,
            }
        }
        Ok(())
    }
}

fn text(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| Error::io("a path with a zero byte")(e.into()))
}

fn pinned(path: &Path) -> Result<Option<OwnedFd>, Error> {
    match sys::pinned(&text(path)?) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        got => got.map(Some).map_err(Error::call("looking for a policy that holds")),
    }
}

/// Applies the rules to new connections of processes in the cgroup at `group` and in those below it, until [`detach_policy`] or a
/// reboot. Existing rules are replaced atomically: each connection is made under either the old or the new ones. Returns
/// whether there were existing rules. `source`, `policy` and `now` (seconds since 1970) are what [`attached_policies`]
/// reports.
///
/// # Errors
/// Errors of the operating system and rejections by the kernel's verifier; existing rules then stay active.
pub fn attach_policy(
    rules: &Rules,
    group: &Path,
    source: &str,
    policy: &str,
    now: u64,
) -> Result<bool, Error> {
    let cannot = || format!("cannot open the cgroup {}", group.display());
    let folder = File::open(group).map_err(Error::io(cannot()))?;
    let number = folder.metadata().map_err(Error::io(cannot()))?.ino().to_string();
    let at = Paths::of(&number);
    pins::mounted()?;
    let replaced = match (pinned(&at.link)?, pinned(&at.names)?) {
        (Some(link), Some(names)) => exchange(rules, &link, &names)?,
        _ => false,
    };
    if !replaced {
        at.remove()?;
        let made = begin(rules, &folder, group, &at);
        if made.is_err() {
            at.remove()?;
        }
        made?;
    }
    let group = std::fs::canonicalize(group).map_err(Error::io(cannot()))?;
    std::fs::create_dir_all(NOTE_FOLDER).map_err(Error::call("making /run/longhaul/tcp"))?;
    let source = source.replace('\n', " ");
    std::fs::write(&at.note, format!("{}\n{source}\n{now}\n{policy}", group.display()))
        .map_err(Error::call("writing down which policy holds"))?;
    Ok(replaced)
}

/// Exchanges the rules of a link; whether its cgroup is still there.
fn exchange(rules: &Rules, link: &OwnedFd, names: &OwnedFd) -> Result<bool, Error> {
    let program = rules.load(names.as_fd())?;
    match sys::exchange(link.as_fd(), program.as_fd()) {
        Err(e) if e.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
        done => done.map(|()| true).map_err(Error::call("exchanging the rules of TCP")),
    }
}

fn begin(rules: &Rules, folder: &File, group: &Path, at: &Paths) -> Result<(), Error> {
    let names = sys::storage(super::rules::NAME_ROOM, "longhaul_names", true)
        .map_err(Error::call("making a BPF map of programs' names"))?;
    let program = rules.load(names.as_fd())?;
    let link = pins::attach_to_group(&program, folder, group)?;
    let keep = |fd: &OwnedFd, path: &Path| {
        sys::pin(fd.as_fd(), &text(path)?).map_err(Error::call("keeping a policy in the kernel"))
    };
    keep(&names, &at.names)?;
    keep(&link, &at.link)
}

/// Detaches the policy of a cgroup: new connections use the system's default, existing ones keep their algorithm.
///
/// # Errors
/// [`Error::NoPolicy`], or what the operating system says.
pub fn detach_policy(group: &Path) -> Result<(), Error> {
    // A cgroup that is gone is known by its path only.
    let path = std::fs::canonicalize(group).unwrap_or_else(|_| group.to_owned());
    let number = std::fs::metadata(&path).map(|m| m.ino().to_string()).ok();
    let (at, _) = all()?
        .into_iter()
        .find(|(n, h)| number.as_ref() == Some(n) || number.is_none() && h.group == path)
        .ok_or_else(|| Error::NoPolicy(group.display().to_string()))?;
    Paths::of(&at).remove()
}

/// The attached policies, in the order of their cgroups.
///
/// # Errors
/// What the operating system says.
pub fn attached_policies() -> Result<Vec<AttachedPolicy>, Error> {
    let mut all: Vec<_> = all()?.into_iter().map(|(_, h)| h).collect();
    all.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(all)
}

/// The attached policies, with the inode numbers of their cgroups.
fn all() -> Result<Vec<(String, AttachedPolicy)>, Error> {
    let entries = match std::fs::read_dir(FOLDER) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::call("listing policies that hold"))?,
    };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let numbers =
        names.filter_map(|n| n.strip_prefix(PREFIX).filter(|n| !n.ends_with(NAMES)).map(str::to_owned));
    Ok(numbers.take(MAX_LISTED).map(|n| (n.clone(), note(&n))).collect())
}

/// Reads the note of a policy; its fields are empty if the note cannot be read.
fn note(number: &str) -> AttachedPolicy {
    use io::Read as _;
    let mut text = String::new();
    let path = Paths::of(number).note;
    let _ = File::open(path).and_then(|f| f.take(MAX_NOTE).read_to_string(&mut text));
    let mut parts = text.splitn(4, '\n');
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let (group, source, since, policy) = (PathBuf::from(next()), next(), next(), next());
    let cgroup_exists = std::fs::metadata(&group).is_ok_and(|m| m.ino().to_string() == number);
    AttachedPolicy { group, source, since: since.parse().unwrap_or(0), policy, cgroup_exists }
}
