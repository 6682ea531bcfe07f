//! Pins the links of attached programs in the BPF file system, so that they outlive the process that attached them.

use super::object::Object;
use super::sys::{self, Insn, Purpose};
use super::{Error, attach, load};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where BPF file systems are mounted, and our folder there.
const BPF_FS: &str = "/sys/fs/bpf";
pub(crate) const FOLDER: &str = "/sys/fs/bpf/longhaul";
/// Which default a program replaced, for each network namespace: `NAME.NAMESPACE`.
const REPLACED: &str = "/run/longhaul/tcp";
/// The default of the calling thread's network namespace.
const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Suffix of the name of a link to a cgroup; no congestion control has `-` in its name.
const OF_GROUP: &str = "-cgroup";
/// Maximum number of programs listed.
const MAX_LISTED: usize = 1000;

/// The sockets for which an attached program is the default; any other may choose it by `TCP_CONGESTION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// None: only sockets that ask for it use it.
    Asked,
    /// All new connections in the calling thread's network namespace.
    Namespace,
    /// All new connections of processes in this cgroup (version 2), by the path of its folder.
    Group(&'a Path),
}

/// A program that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedProgram {
    /// Its name for `TCP_CONGESTION`.
    pub name: String,
    /// Whether it is the default of the calling thread's network namespace.
    pub default: bool,
    /// Whether it is the default of a cgroup.
    pub group: bool,
}

/// Like [`attach`](super::attach), but the program stays until [`detach`] or a reboot.
///
/// # Errors
/// As there; nothing stays then.
pub fn attach_pinned(
    object: &[u8],
    name: &str,
    params: &[(&str, u64)],
    scope: Scope<'_>,
) -> Result<(), Error> {
    load::check_name(name)?;
    if name.contains('.') {
        // The file system of pinned programs has them for itself (`bpf_lookup`).
        return Err(Error::Dotted(name.to_owned()));
    }
    mounted()?;
    let attached = attach(object, name, params)?;
    let path = pin(&attached.registered.link, name)?;
    let more = match scope {
        Scope::Asked => Ok(()),
        Scope::Namespace => make_default(name),
        Scope::Group(group) => hook(&Object::parse(object)?, name, group),
    };
    if more.is_err() {
        let _ = std::fs::remove_file(path);
    }
    more
}

/// The kernel's name of a pinned program, found by that name or by the name of the algorithm that it implements; `None`: no
/// such program is pinned.
pub fn pinned_name(name: &str) -> Option<String> {
    let kept = |name: &String| load::check_name(name).is_ok() && Path::new(FOLDER).join(name).exists();
    core::iter::once(name.to_owned()).chain(policy::kernel_names(name)).find(kept)
}

/// Removes a pinned program, by any of its names ([`pinned_name`]), and returns its name in the kernel. If it is the default
/// of the calling thread's network namespace, the default that it replaced is restored. Connections that use it continue to.
///
/// # Errors
/// [`Error::NotAttached`], or what the operating system says.
pub fn detach(name: &str) -> Result<String, Error> {
    let name = &pinned_name(name).ok_or_else(|| Error::NotAttached(name.to_owned()))?;
    load::check_name(name)?;
    let remove = |path: PathBuf| match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::NotAttached(name.to_owned())),
        done => done.map_err(Error::call("removing a program")),
    };
    let path = Path::new(FOLDER).join(name);
    if !path.exists() {
        return Err(Error::NotAttached(name.to_owned()));
    }
    // First the default: one that is gone can be no default.
    restore(name)?;
    match remove(Path::new(FOLDER).join(format!("{name}{OF_GROUP}"))) {
        Err(Error::NotAttached(_)) => {}
        done => done?,
    }
    remove(path)?;
    Ok(name.clone())
}

/// The pinned programs, in the order of their names.
///
/// # Errors
/// What the operating system says.
pub fn pinned_programs() -> Result<Vec<PinnedProgram>, Error> {
    let entries = match std::fs::read_dir(FOLDER) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::call("listing attached programs"))?,
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|e| e.file_name().into_string().ok()).take(MAX_LISTED).collect();
    names.sort_unstable();
    let default = current_default();
    // What has a dash is no congestion control.
    let kept = names.iter().filter(|name| !name.contains('-')).map(|name| PinnedProgram {
        name: name.clone(),
        default: *name == default,
        group: names.contains(&format!("{name}{OF_GROUP}")),
    });
    Ok(kept.collect())
}

/// Makes sure that there is a BPF file system with our folder.
pub(crate) fn mounted() -> Result<(), Error> {
    let device = |path: &str| std::fs::metadata(path).map(|m| m.dev());
    let call = "making a folder in the BPF file system";
    // A mounted file system is another device than the folder above it.
    let there = matches!((device(BPF_FS), device("/sys/fs")), (Ok(a), Ok(b)) if a != b);
    if !there {
        let path = CString::new(BPF_FS).map_err(|e| Error::io(call)(e.into()))?;
        sys::mount_bpf(&path).map_err(Error::call("mounting the BPF file system at /sys/fs/bpf"))?;
    }
    match std::fs::create_dir(FOLDER) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done.map_err(Error::call(call)),
    }
}

fn pin(link: &OwnedFd, name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(FOLDER).join(name);
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::BadName(name.to_owned()))?;
    sys::pin(link.as_fd(), &text).map_err(|e| match e.raw_os_error() {
        Some(libc::EEXIST) => Error::NameTaken(name.to_owned()),
        _ => Error::call("keeping a program")(e),
    })?;
    Ok(path)
}

fn current_default() -> String {
    std::fs::read_to_string(DEFAULT).unwrap_or_default().trim().to_owned()
}

/// Where is kept what the program replaced in the calling thread's network namespace.
fn replaced(name: &str) -> Result<PathBuf, Error> {
    let namespace =
        std::fs::metadata("/proc/thread-self/ns/net").map_err(Error::io("cannot tell the namespace"))?;
    Ok(Path::new(REPLACED).join(format!("{name}.{}", namespace.ino())))
}

fn make_default(name: &str) -> Result<(), Error> {
    let before = current_default();
    let path = replaced(name)?;
    std::fs::create_dir_all(REPLACED).map_err(Error::call("making /run/longhaul/tcp"))?;
    std::fs::write(&path, before).map_err(Error::call("writing down the present default"))?;
    std::fs::write(DEFAULT, name).map_err(Error::call("setting the default"))
}

fn restore(name: &str) -> Result<(), Error> {
    let path = replaced(name)?;
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if current_default() == name && !before.is_empty() {
        let what = "setting the default to what it was";
        std::fs::write(DEFAULT, before.trim()).map_err(Error::call(what))?;
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(Error::call("forgetting the former default")),
    }
}

/// Lets sockets of a group choose the program when they connect or listen.
fn hook(object: &Object, name: &str, group: &Path) -> Result<(), Error> {
    let folder =
        File::open(group).map_err(Error::io(format!("cannot open the cgroup {}", group.display())))?;
    let program = sys::load(&chooser_program(name), name, Purpose::Sockets, &object.licence, &mut []);
    let program = program.map_err(Error::call("loading a BPF program for a cgroup"))?;
    let link = attach_to_group(&program, &folder, group)?;
    pin(&link, &format!("{name}{OF_GROUP}")).map(drop)
}

/// Calls a program for the sockets of a group, whose folder is open.
pub(crate) fn attach_to_group(program: &OwnedFd, folder: &File, group: &Path) -> Result<OwnedFd, Error> {
    sys::hook_group(program.as_fd(), folder.as_fd()).map_err(|e| match e.raw_os_error() {
        Some(libc::EBADF | libc::EINVAL) => {
            Error::Kernel(format!("{} is no cgroup of version 2 that takes programs", group.display()))
        }
        _ => Error::call("attaching to the cgroup")(e),
    })
}

/// A program that sets `TCP_CONGESTION` when a socket begins to connect or to listen (whose connections inherit it), so
/// early that the handshake can ask for ECN.
fn chooser_program(name: &str) -> Vec<Insn> {
    /// `BPF_SOCK_OPS_TCP_CONNECT_CB`, `BPF_SOCK_OPS_TCP_LISTEN_CB`; `bpf_setsockopt`.
    const CONNECT: i32 = 3;
    const LISTEN: i32 = 11;
    const SET_OPTION: i32 = 49;
    let insn = |code, regs, off, imm| Insn { code, regs, off, imm };
    let mut bytes = [0u8; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let part = |n: usize| i32::from_ne_bytes(std::array::from_fn(|i| bytes[4 * n + i]));
    let mut code = vec![
        // r2 = context->op, the first word; go on if it is one of the two, else to the end.
        insn(0x61, 0x12, 0, 0),
        insn(0x15, 0x02, 1, CONNECT),
        insn(0x55, 0x02, 10, LISTEN),
    ];
    // The name on the stack, a word at a time.
    code.extend((0..4).map(|n: i16| insn(0x62, 0x0a, 4 * n - 16, part(n as usize))));
    code.extend([
        // bpf_setsockopt(r1 = context, r2 = SOL_TCP, r3 = TCP_CONGESTION, r4 = the name, r5 = its length)
        insn(0xb7, 0x02, 0, libc::SOL_TCP),
        insn(0xb7, 0x03, 0, libc::TCP_CONGESTION),
        insn(0xbf, 0xa4, 0, 0),
        insn(0x07, 0x04, 0, -16),
        insn(0xb7, 0x05, 0, 16),
        insn(0x85, 0, 0, SET_OPTION),
        insn(0xb7, 0, 0, 1),
        insn(0x95, 0, 0, 0),
    ]);
    code
}
