//! Policies that hold for the TCP sockets of a cgroup's processes: the link that calls the rules, and the map that keeps
//! programs' names, have names in a BPF file system, so that they stay when the process that attached them ends.

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

/// What is known of each policy that holds, for people: `rules-CGROUP`.
const NOTES: &str = "/run/longhaul/tcp";
/// In front of the number of the cgroup; no congestion control has a dash in its name.
const PREFIX: &str = "rules-";
/// Behind it: the map of names.
const NAMES: &str = "-names";
/// Most bytes of a note; a policy has a megabyte at most.
const MAX_NOTE: u64 = 2 << 20;
/// Most policies that are listed.
const MAX_LISTED: usize = 1000;

/// A policy that holds for a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The cgroup's folder.
    pub group: PathBuf,
    /// Where the policy was from.
    pub source: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// It, as it was written.
    pub policy: String,
    /// Whether the cgroup is still there.
    pub alive: bool,
}

/// The folder of the cgroup that all processes are in.
///
/// # Errors
/// [`Error::NoGroups`].
pub fn all_processes() -> Result<PathBuf, Error> {
    let text =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(Error::io("cannot read the mounts"))?;
    let mount = text.lines().find_map(|l| {
        // proc(5): the mount's place is the fifth word, the file system's kind the first behind a dash.
        let (before, behind) = l.split_once(" - ")?;
        let mut words = before.split(' ').skip(3);
        (behind.starts_with("cgroup2 ") && words.next()? == "/").then(|| words.next())?
    });
    mount.map(PathBuf::from).ok_or(Error::NoGroups)
}

/// Where the pins and the note of a cgroup are.
struct Places {
    link: PathBuf,
    names: PathBuf,
    note: PathBuf,
}

impl Places {
    fn of(number: &str) -> Places {
        let name = format!("{PREFIX}{number}");
        Places {
            link: Path::new(FOLDER).join(&name),
            names: Path::new(FOLDER).join(format!("{name}{NAMES}")),
            note: Path::new(NOTES).join(name),
        }
    }

    /// Nothing stays; the link last, so that what fails can be tried again.
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

/// Has the rules hold for new connections of processes in the cgroup, by the path of its folder, and of those below it,
/// until [`release`] or until the machine starts anew. Rules that hold there already are exchanged at once as a whole:
/// each connection is made by the ones or the others. Whether that was so. `source`, `policy` and `now` (seconds since
/// 1970) are what [`holding`] tells.
///
/// # Errors
/// Of the operating system, or what the kernel's verifier does not accept; what held then still does.
pub fn govern(rules: &Rules, group: &Path, source: &str, policy: &str, now: u64) -> Result<bool, Error> {
    let cannot = || format!("cannot open the cgroup {}", group.display());
    let folder = File::open(group).map_err(Error::io(cannot()))?;
    let number = folder.metadata().map_err(Error::io(cannot()))?.ino().to_string();
    let at = Places::of(&number);
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
    std::fs::create_dir_all(NOTES).map_err(Error::call("making /run/longhaul/tcp"))?;
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

fn begin(rules: &Rules, folder: &File, group: &Path, at: &Places) -> Result<(), Error> {
    let names = sys::storage(super::rules::NAME_ROOM, "longhaul_names", true)
        .map_err(Error::call("making a BPF map of programs' names"))?;
    let program = rules.load(names.as_fd())?;
    let link = pins::hooked(&program, folder, group)?;
    let keep = |fd: &OwnedFd, path: &Path| {
        sys::pin(fd.as_fd(), &text(path)?).map_err(Error::call("keeping a policy in the kernel"))
    };
    keep(&names, &at.names)?;
    keep(&link, &at.link)
}

/// Has a policy hold no more: new connections have the system's default. Those that are there keep what they have.
///
/// # Errors
/// [`Error::NoPolicy`], or what the operating system says.
pub fn release(group: &Path) -> Result<(), Error> {
    // A cgroup that is gone is known by its path only.
    let path = std::fs::canonicalize(group).unwrap_or_else(|_| group.to_owned());
    let number = std::fs::metadata(&path).map(|m| m.ino().to_string()).ok();
    let (at, _) = all()?
        .into_iter()
        .find(|(n, h)| number.as_ref() == Some(n) || number.is_none() && h.group == path)
        .ok_or_else(|| Error::NoPolicy(group.display().to_string()))?;
    Places::of(&at).remove()
}

/// The policies that hold, by their cgroups.
///
/// # Errors
/// What the operating system says.
pub fn holding() -> Result<Vec<Holding>, Error> {
    let mut all: Vec<_> = all()?.into_iter().map(|(_, h)| h).collect();
    all.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(all)
}

/// With the numbers of their cgroups.
fn all() -> Result<Vec<(String, Holding)>, Error> {
    let entries = match std::fs::read_dir(FOLDER) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::call("listing policies that hold"))?,
    };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let numbers =
        names.filter_map(|n| n.strip_prefix(PREFIX).filter(|n| !n.ends_with(NAMES)).map(str::to_owned));
    Ok(numbers.take(MAX_LISTED).map(|n| (n.clone(), note(&n))).collect())
}

/// What was written down; empty where it is not to be read.
fn note(number: &str) -> Holding {
    use io::Read as _;
    let mut text = String::new();
    let path = Places::of(number).note;
    let _ = File::open(path).and_then(|f| f.take(MAX_NOTE).read_to_string(&mut text));
    let mut parts = text.splitn(4, '\n');
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let (group, source, since, policy) = (PathBuf::from(next()), next(), next(), next());
    let alive = std::fs::metadata(&group).is_ok_and(|m| m.ino().to_string() == number);
    Holding { group, source, since: since.parse().unwrap_or(0), policy, alive }
}
