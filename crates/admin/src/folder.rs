//! The folder of control sockets: one for each running process, named by its process number.

use lhio::identity::{IdentityError, check_folder};
use lhio::peer::Peer;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Sockets that are looked at in one folder.
pub const MAX_SOCKETS: usize = 4_096;
/// Names that a process tries: processes of other PID namespaces may have the same number.
const MAX_TRIES: u32 = 16;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is nowhere to put it.
    #[error("no folder for control sockets: set LONGHAUL_RUN or XDG_RUNTIME_DIR, or say --no-control")]
    Nowhere,
    /// The system said no.
    #[error("cannot {what} {}: {source}; set LONGHAUL_RUN to another folder, or say --no-control", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others could put things there.
    #[error(
        "{} belongs to somebody else or others may write to it, so it cannot hold control sockets: `chmod 700` it, or set \
         LONGHAUL_RUN to another folder", path.display()
    )]
    Unsafe {
        /// The folder.
        path: PathBuf,
    },
    /// Others could replace the folder.
    #[error("no control sockets in {}: {source}; set LONGHAUL_RUN to another folder, or say --no-control", path.display())]
    Above {
        /// The folder.
        path: PathBuf,
        /// What is wrong above it, and what mends it.
        source: IdentityError,
    },
    /// There is no such group.
    #[error("there is no group \"{name}\": give the name of a line in /etc/group, or a number")]
    NoGroup {
        /// As it was given.
        name: String,
    },
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::System { what, path: path.to_owned(), source }
}

/// Where control sockets of this user's processes are: `$LONGHAUL_RUN`, else `/run/longhaul` of root, else
/// `$XDG_RUNTIME_DIR/longhaul`.
///
/// # Errors
/// [`FolderError::Nowhere`] without any of them.
pub fn default_folder() -> Result<PathBuf, FolderError> {
    let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = named("LONGHAUL_RUN") {
        return Ok(folder);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/run/longhaul".into());
    }
    named("XDG_RUNTIME_DIR").map(|f| f.join("longhaul")).ok_or(FolderError::Nowhere)
}

/// The number of a group by its name in `/etc/group`, or as it is.
///
/// # Errors
/// [`FolderError::NoGroup`].
pub fn group(name: &str) -> Result<u32, FolderError> {
    let none = || FolderError::NoGroup { name: name.chars().take(64).collect() };
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let all = fs::read_to_string("/etc/group").unwrap_or_default();
    // group(5): name, password, number, members.
    let mut lines = all.lines().map(|l| l.split(':'));
    let found = lines.find_map(|mut f| (f.next() == Some(name)).then(|| f.nth(1)?.parse().ok()).flatten());
    found.ok_or_else(none)
}

/// A listening control socket, removed when dropped.
#[derive(Debug)]
pub struct ControlListener {
    /// The socket.
    pub socket: UnixListener,
    /// Where it is.
    pub path: PathBuf,
}

impl ControlListener {
    /// Nobody is to come any more.
    pub fn withdraw(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Listens in `folder`, which is made if it is not there; sockets of processes that are no more are removed. With a
/// `group`, its members may connect as well.
///
/// # Errors
/// [`FolderError`]: there is no such folder, or others could write to it.
pub fn listen(folder: &Path, group: Option<u32>) -> Result<ControlListener, FolderError> {
    prepare(folder, group)?;
    clean(folder);
    let pid = std::process::id();
    // Nobody sees it before it listens with the right permissions: others would take it for a dead process's.
    let hidden = folder.join(format!(".{pid}.new"));
    for attempt in 0..MAX_TRIES {
        let path = folder.join(match attempt {
            0 => format!("{pid}.sock"),
            n => format!("{pid}-{n}.sock"),
        });
        if path.exists() && !is_dead(&path) {
            continue;
        }
        let _ = fs::remove_file(&hidden);
        let socket = UnixListener::bind(&hidden).map_err(failed("listen at", &hidden))?;
        if let Some(g) = group {
            std::os::unix::fs::chown(&hidden, None, Some(g)).map_err(failed("give a group to", &hidden))?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).map_err(failed("protect", &hidden))?;
        fs::rename(&hidden, &path).map_err(failed("name", &path))?;
        socket.set_nonblocking(true).map_err(failed("listen at", &path))?;
        return Ok(ControlListener { socket, path });
    }
    let taken = io::Error::from(io::ErrorKind::AddrInUse);
    Err(failed("find a free name in", folder)(taken))
}

/// Makes the folder, and sees to it that only its owner (and the group) can use it.
fn prepare(folder: &Path, group: Option<u32>) -> Result<(), FolderError> {
    fs::create_dir_all(folder.parent().unwrap_or(folder)).map_err(failed("make", folder))?;
    match fs::DirBuilder::new().create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", folder)(e)),
        Err(_) => {}
        Ok(()) => {
            let mode = fs::Permissions::from_mode(0o700);
            fs::set_permissions(folder, mode).map_err(failed("protect", folder))?;
        }
    }
    let facts = fs::symlink_metadata(folder).map_err(failed("look at", folder))?;
    let ours = facts.uid() == rustix::process::geteuid().as_raw();
    if !facts.is_dir() || !ours || facts.mode() & 0o022 != 0 {
        return Err(FolderError::Unsafe { path: folder.to_owned() });
    }
    check_folder(folder).map_err(|source| FolderError::Above { path: folder.to_owned(), source })?;
    if let Some(g) = group {
        std::os::unix::fs::chown(folder, None, Some(g)).map_err(failed("give a group to", folder))?;
        let mode = fs::Permissions::from_mode(0o750);
        fs::set_permissions(folder, mode).map_err(failed("protect", folder))?;
    }
    Ok(())
}

/// Removes the sockets that nobody listens at.
fn clean(folder: &Path) {
    for path in sockets(folder).iter().filter(|p| is_dead(p)) {
        let _ = fs::remove_file(path);
    }
}

/// Nobody listens at it any more.
fn is_dead(path: &Path) -> bool {
    connect(path).err().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to a process at once or not at all: one that is stopped must not stop whoever asks it.
///
/// # Errors
/// The system's; `WouldBlock` when too many wait for the process already.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The sockets in `folder` by their names, alive or not; at most [`MAX_SOCKETS`].
pub fn sockets(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let visible = |p: &PathBuf| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or(".");
        !name.starts_with('.') && name.ends_with(".sock")
    };
    let mut all: Vec<_> =
        entries.filter_map(|e| Some(e.ok()?.path())).filter(visible).take(MAX_SOCKETS).collect();
    all.sort();
    all
}

/// Whether a process may ask and tell: of the same user or of root, or in the group that is let in.
pub fn may_control(peer: &Peer, group: Option<u32>) -> bool {
    peer.uid == rustix::process::geteuid().as_raw() || peer.uid == 0 || group.is_some_and(|g| peer.is_in(g))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_private_and_stale_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let first = listen(&folder, None).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&first.path)), (0o700, 0o600));
        // What a killed process leaves: a socket nobody listens at.
        let dead = folder.join("1.sock");
        drop(UnixListener::bind(&dead).unwrap());
        assert!(dead.exists());
        // The same number in another PID namespace: another name, and the first goes on.
        let second = listen(&folder, None).unwrap();
        assert!(!dead.exists());
        assert_eq!(sockets(&folder), [second.path.clone(), first.path.clone()]);
        connect(&first.path).unwrap();
        let path = second.path.clone();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn folders_owned_by_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(listen(&open, None), Err(FolderError::Unsafe { .. })));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert!(matches!(listen(&link, None), Err(FolderError::Unsafe { .. })));
        assert!(listen(&open, None).is_ok());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let e = listen(&open, None).unwrap_err();
        assert!(matches!(e, FolderError::Above { .. }) && e.to_string().contains("chmod go-w"), "{e}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(group("no such group"), Err(FolderError::NoGroup { .. })));
        assert_eq!((group("12").unwrap(), group("root").unwrap()), (12, 0));
    }

    #[test]
    fn only_owner_root_and_group_may_control() {
        let me = rustix::process::geteuid().as_raw();
        let peer = |uid, gid, groups: &[u32]| Peer { uid, gid, pid: 1, groups: groups.to_vec() };
        assert!(may_control(&peer(me, 9, &[]), None) && may_control(&peer(0, 9, &[]), None));
        let other = me + 1_000;
        assert!(!may_control(&peer(other, 7, &[7, 8]), None));
        assert!(may_control(&peer(other, 7, &[]), Some(7)) && may_control(&peer(other, 6, &[7]), Some(7)));
        assert!(!may_control(&peer(other, 6, &[8]), Some(7)));
    }
}
