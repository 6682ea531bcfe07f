//! System calls without a safe wrapper: the only `unsafe` code of the laboratory.

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Offloads of TUN devices: checksums, and segmentation of TCP and UDP super-packets, so that the kernel passes
/// super-packets of up to 64 KiB instead of single segments.
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM
    | libc::TUN_F_TSO4
    | libc::TUN_F_TSO6
    | libc::TUN_F_TSO_ECN
    | libc::TUN_F_USO4
    | libc::TUN_F_USO6;

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: only the network namespace is left; the table of file descriptors, which is what makes `unshare` unsafe,
    // stays shared.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes a command's process enter a network namespace before it executes its program.
pub(crate) fn enter_before_exec(command: &mut Command, namespace: Arc<File>) {
    let enter = move || {
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&*namespace), Some(LinkNameSpaceType::Network))?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes one system call and neither allocates nor takes a lock; the file
    // stays open because the closure owns it.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Gives the calling thread real-time priority, on any CPU.
pub(crate) fn set_realtime_priority() -> io::Result<()> {
    // SAFETY: all fields of the structure are numbers, for which zero is a value.
    let mut param: libc::sched_param = unsafe { zeroed() };
    param.sched_priority = 1;
    // SAFETY: the structure lives until the call returns.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &param) })
}

/// Creates a TUN device in the thread's network namespace that passes super-packets with their offload headers.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = interface(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call returns.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(OFFLOADS)) })?;
    let fd = OwnedFd::from(file);
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

/// Sockets for configuring interfaces of the thread's network namespace.
pub(crate) struct Interfaces {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl Interfaces {
    pub(crate) fn open() -> io::Result<Interfaces> {
        let socket = |family| {
            // SAFETY: takes numbers only.
            let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
            check(fd)?;
            // SAFETY: the descriptor was opened above and nothing else owns it.
            io::Result::Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        // Without IPv6 in the kernel, IPv4 alone can be used.
        Ok(Interfaces { v4: socket(libc::AF_INET)?, v6: socket(libc::AF_INET6).ok() })
    }

    pub(crate) fn has_ipv6(&self) -> bool {
        self.v6.is_some()
    }

    pub(crate) fn set_mtu(&self, name: &str, mtu: u16) -> io::Result<()> {
        let mut request = interface(name)?;
        request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    /// Sets how many packets the device holds for its reader.
    pub(crate) fn set_queue(&self, name: &str, packets: u32) -> io::Result<()> {
        let mut request = interface(name)?;
        // The queue's length has no name of its own in the union; it is an `int` like the metric (netdevice(7)).
        request.ifr_ifru.ifru_metric = libc::c_int::try_from(packets).unwrap_or(libc::c_int::MAX);
        self.ioctl(libc::SIOCSIFTXQLEN, &mut request)
    }

    pub(crate) fn set_up(&self, name: &str) -> io::Result<()> {
        let mut request = interface(name)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has filled in this member of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Gives the interface an address, whose prefix is routed through the interface.
    pub(crate) fn add_ipv4(&self, name: &str, address: Ipv4Addr, prefix: u32) -> io::Result<()> {
        let mut request = interface(name)?;
        request.ifr_ifru.ifru_addr = socket_address(address);
        self.ioctl(libc::SIOCSIFADDR, &mut request)?;
        let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
        request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::from(mask));
        self.ioctl(libc::SIOCSIFNETMASK, &mut request)
    }

    /// The same for IPv6.
    pub(crate) fn add_ipv6(&self, name: &str, address: Ipv6Addr, prefix: u32) -> io::Result<()> {
        let Some(v6) = &self.v6 else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut request = interface(name)?;
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX has filled in this member of the union.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        let mut request = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
            ifr6_prefixlen: prefix,
            ifr6_ifindex: index,
        };
        // SAFETY: on an IPv6 socket SIOCSIFADDR reads one `in6_ifreq`, which lives until the call returns.
        check(unsafe { libc::ioctl(v6.as_raw_fd(), libc::SIOCSIFADDR as _, &mut request) })
    }

    fn ioctl(&self, request: libc::c_ulong, argument: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests used here read and write one `ifreq`, which lives until the call returns.
        check(unsafe { libc::ioctl(self.v4.as_raw_fd(), request as _, argument) })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn interface(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all members are numbers and arrays of them, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name of an interface has at most 15 bytes",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // The layout of `sockaddr_in`: family, port, address (ip(7)).
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}
