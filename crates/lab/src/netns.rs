//! Network namespaces, their addresses, routes and settings.
//!
//! A namespace is named as `ip netns` names it: a file in `/run/netns` on which it is mounted, so that `ip netns exec`
//! and other tools work on it.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

/// Where named namespaces are.
const FOLDER: &str = "/run/netns";

/// How often processes in a namespace are searched for and killed before removal fails.
const KILL_ROUNDS: usize = 50;

/// Settings of each namespace: buffers that do not limit TCP on any emulated path, no metrics of earlier connections,
/// windows that idle connections keep, and no unsolicited traffic.
const SETTINGS: &[(&str, &str)] = &[
    ("net/ipv4/tcp_rmem", "4096 131072 268435456"),
    ("net/ipv4/tcp_wmem", "4096 16384 268435456"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv4/tcp_slow_start_after_idle", "0"),
];

/// The same for IPv6, where the kernel has it: no router solicitations, no link-local addresses.
const SETTINGS_IPV6: &[(&str, &str)] = &[
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv6/conf/default/addr_gen_mode", "1"),
    ("net/ipv6/conf/default/dad_transmits", "0"),
];

/// An address of a node's device with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The IPv4 address, in a network of 16 bits.
    pub v4: Ipv4Addr,
    /// The IPv6 address, in a network of 64 bits.
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// The addresses of node number `node` (from 0) on path number `path` (from 0).
    pub fn of(node: u8, path: u8) -> Addresses {
        Addresses {
            v4: Ipv4Addr::new(10, 77u8.wrapping_add(path), 0, node.wrapping_add(1)),
            v6: Ipv6Addr::new(0xfd77, u16::from(path), 0, 0, 0, 0, 0, u16::from(node) + 1),
        }
    }
}

/// The file of a named namespace.
pub fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Creates a named namespace with the laboratory's settings and its loopback device up.
///
/// # Errors
/// When the name is taken or the system refuses; nothing is left behind then.
pub fn create(name: &str) -> io::Result<()> {
    let path = path(name);
    fs::create_dir_all(FOLDER)?;
    // `create_new`: an existing namespace belongs to somebody else.
    File::options().write(true).create_new(true).open(&path)?;
    let made = in_thread(|| {
        sys::unshare_network()?;
        mount_bind("/proc/thread-self/ns/net", &path)?;
        let interfaces = sys::Interfaces::open()?;
        apply(SETTINGS)?;
        if interfaces.has_ipv6() {
            apply(SETTINGS_IPV6)?;
        }
        interfaces.set_up("lo")
    });
    if made.is_err() {
        remove(name)?;
    }
    made
}

fn apply(settings: &[(&str, &str)]) -> io::Result<()> {
    for (key, value) in settings {
        // These files show the namespace of the thread that opens them.
        fs::write(Path::new("/proc/sys").join(key), value)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot set {key} to {value}: {error}")))?;
    }
    Ok(())
}

/// Opens a named namespace, to be entered.
///
/// # Errors
/// When there is none of that name.
pub fn open(name: &str) -> io::Result<File> {
    File::open(path(name))
}

/// Runs `work` in a namespace, in a thread of its own.
///
/// # Errors
/// When the namespace cannot be entered, or those of `work`.
pub fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    in_thread(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    })
}

/// Runs `work` in a new thread, since entering a namespace affects only the calling thread.
fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let panicked = || Err(io::Error::other("the thread that works in a namespace panicked"));
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|_| panicked()))
}

/// Kills the processes in a named namespace and removes it. A missing one is no error.
///
/// # Errors
/// When the system refuses.
pub fn remove(name: &str) -> io::Result<()> {
    let path = path(name);
    if let Ok(metadata) = fs::metadata(&path) {
        kill_all(&metadata)?;
    }
    match unmount(&path, UnmountFlags::DETACH) {
        // Not a mount point: its creation was cut short.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Kills all processes in a namespace, including new ones.
fn kill_all(namespace: &fs::Metadata) -> io::Result<()> {
    for _ in 0..KILL_ROUNDS {
        let inside = processes(namespace)?;
        if inside.is_empty() {
            break;
        }
        for pid in inside {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 });
    }
    Ok(())
}

/// The processes in a namespace. Zombies belong to none.
fn processes(namespace: &fs::Metadata) -> io::Result<Vec<Pid>> {
    let mut inside = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let same = fs::metadata(entry.path().join("ns/net"))
            .is_ok_and(|other| (other.ino(), other.dev()) == (namespace.ino(), namespace.dev()));
        if same && pid != rustix::process::getpid() {
            inside.push(pid);
        }
    }
    Ok(inside)
}
