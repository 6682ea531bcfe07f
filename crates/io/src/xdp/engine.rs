//! An interface with the XDP program attached and a socket for each of its receive queues.

use super::XdpError;
use super::bpf::{Filter, Program, Sockets};
use super::frame::{self, ETHERNET, Template};
use super::socket::{self, CopyMode, LONGEST, Queue, SubmitResult};
use crate::netlink::{Link, Netlink};
use crate::udp::addr::traffic_class;
use crate::udp::{Blocked, RecvBatch, SendBatch, SendReport, TooBig};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Receive queues that get a socket; packets of further ones go the kernel's way. Each has 8 or 16 MiB of memory.
pub(super) const MAX_QUEUES: u32 = 16;

/// How often, and how far apart, a queue that another socket still has is tried again: a fifth of a second in all.
const BUSY_TRIES: usize = 20;
const BUSY_PAUSE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The datapath over one interface, at work.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) interface: Link,
    /// The program is in the path of packets as long as this is open.
    _attached: OwnedFd,
    _program: Program,
    _sockets: Sockets,
    queues: Vec<Queue>,
    /// The queue that is looked at first next time.
    next: usize,
    /// The program runs behind the driver, where the kernel has already made packets of frames.
    pub(super) generic: bool,
}

impl Engine {
    /// Takes the packets to `local` that come in over `interface`.
    ///
    /// # Errors
    /// [`XdpError`] says what is missing; nothing is left behind.
    pub(super) fn open(
        interface: Link,
        local: SocketAddr,
        dual: bool,
        netlink: &mut Netlink,
    ) -> Result<Engine, XdpError> {
        let name = || interface.name.clone();
        let mac = interface.mac.ok_or_else(|| XdpError::NotEthernet { name: name() })?;
        if !interface.up {
            return Err(XdpError::Down { name: name() });
        }
        let longest = interface.mtu + ETHERNET;
        let memory = socket::memory_for(longest).ok_or_else(|| XdpError::Mtu {
            name: name(),
            mtu: interface.mtu,
            most: LONGEST - ETHERNET,
        })?;
        let mut filter = Filter { mac, port: local.port(), v4: Vec::new(), v6: Vec::new(), longest };
        for ip in addresses(local, dual, netlink).map_err(|e| XdpError::of("asking for addresses", e))? {
            if !filter.add(ip) {
                tracing::info!(%ip, "AF_XDP leaves packets to this address to the kernel: there are many");
            }
        }
        let count = interface.queues.min(MAX_QUEUES);
        let sockets = Sockets::new(count).map_err(|e| XdpError::of("bpf(BPF_MAP_CREATE)", e))?;
        let program = Program::load(&filter, &sockets).map_err(|e| XdpError::of("bpf(BPF_PROG_LOAD)", e))?;
        let (attached, generic) = attach(&program, &interface)?;
        let queues = open_queues(&interface, count, memory, generic)?;
        for (n, queue) in queues.iter().enumerate() {
            sockets.set(n as u32, queue.as_fd()).map_err(|e| XdpError::of("bpf(BPF_MAP_UPDATE_ELEM)", e))?;
        }
        tracing::info!(
            interface = interface.name,
            queues = queues.len(),
            hook = if generic { "generic" } else { "native" },
            frames = if queues[0].passing == CopyMode::ZeroCopy { "zero copy" } else { "copied" },
            "AF_XDP carries datagrams"
        );
        let (_attached, _program, _sockets) = (attached, program, sockets);
        Ok(Engine { interface, _attached, _program, _sockets, queues, next: 0, generic })
    }

    /// What tells that frames have arrived.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd)
    }

    /// Takes what has arrived until the batch is full. Returns its trains.
    pub(super) fn receive(&mut self, batch: &mut RecvBatch) -> usize {
        batch.clear();
        let interface = self.interface.index;
        let mut full = false;
        for _ in 0..self.queues.len() {
            let queue = &mut self.queues[self.next];
            full = queue.receive(|bytes| match frame::parse(bytes, interface) {
                Some(d) => batch.push(d.remote, d.local.ip(), (d.dscp, d.ecn), &bytes[d.payload]),
                None => true,
            });
            if full {
                break;
            }
            self.next = (self.next + 1) % self.queues.len();
        }
        if !full {
            batch.note_single();
        }
        batch.trains()
    }

    /// Sends the first train of the batch as frames of at most `mtu` bytes behind their Ethernet headers. What does not
    /// go stays.
    ///
    /// # Errors
    /// The sockets are beyond use.
    pub(super) fn send(
        &mut self,
        template: &Template,
        mtu: usize,
        batch: &mut SendBatch,
        report: &mut SendReport,
    ) -> io::Result<()> {
        let Some((meta, rest)) = batch.head() else { return Ok(()) };
        let largest = meta.segment.min(rest.len());
        // The interface may have been given a larger MTU since: frames of memory did not grow with it.
        if largest + template.overhead() > mtu.min(self.interface.mtu) {
            report.too_big = Some(TooBig { dst: meta.dst, segment: largest });
            report.dropped += 1;
            batch.leave(rest.len());
            return Ok(());
        }
        // One queue sends all: a flow stays in order, and one thread has no use for more.
        let queue = &mut self.queues[0];
        let wanted = rest.len().div_ceil(meta.segment);
        let room = queue.sendable().min(wanted);
        let mut left = 0;
        for segment in rest.chunks(meta.segment).take(room) {
            if !queue.queue(|out| template.write(out, segment, traffic_class(meta.dscp, meta.ecn))) {
                break;
            }
            left += segment.len();
        }
        let whole = left == rest.len();
        if left > 0 && batch.leave(left) {
            report.sent += 1;
        }
        if queue.kick()? == SubmitResult::Later || !whole {
            report.blocked = Blocked::Device;
        }
        Ok(())
    }

    /// Goes on with what the device would not take.
    ///
    /// # Errors
    /// The sockets are beyond use.
    pub(super) fn push_on(&mut self) -> io::Result<()> {
        let queue = &mut self.queues[0];
        if queue.unsent() { queue.kick().map(|_| ()) } else { Ok(()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let dropped: u64 = self.queues.iter().map(Queue::dropped).sum();
        tracing::debug!(
            interface = self.interface.name,
            dropped,
            "AF_XDP ends; frames dropped for want of room"
        );
    }
}

/// The addresses for which packets are taken: the bound one, or those of this machine.
fn addresses(local: SocketAddr, dual: bool, netlink: &mut Netlink) -> io::Result<Vec<IpAddr>> {
    let ip = local.ip().to_canonical();
    if !ip.is_unspecified() {
        return Ok(vec![ip]);
    }
    let (v4, v6) = (local.is_ipv4() || dual, local.is_ipv6());
    let mut all: Vec<IpAddr> = netlink.addresses()?.iter().map(|a| a.ip).collect();
    all.retain(|ip| !ip.is_loopback() && if ip.is_ipv4() { v4 } else { v6 });
    all.sort();
    all.dedup();
    Ok(all)
}

/// Attaches at the driver if it can, else behind it; and says whether it is behind.
fn attach(program: &Program, interface: &Link) -> Result<(OwnedFd, bool), XdpError> {
    let taken = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
    let fail = |e: io::Error| match taken(&e) {
        true => XdpError::Taken { name: interface.name.clone() },
        false => XdpError::of("bpf(BPF_LINK_CREATE)", e),
    };
    match program.attach(interface.index, true) {
        Ok(link) => Ok((link, false)),
        Err(e) if taken(&e) => Err(fail(e)),
        Err(e) => {
            tracing::debug!(interface = interface.name, error = %e, "no XDP in the driver");
            Ok((program.attach(interface.index, false).map_err(fail)?, true))
        }
    }
}

/// A socket for each queue that the interface uses: the first one that does not exist ends the list.
fn open_queues(interface: &Link, count: u32, memory: usize, copy: bool) -> Result<Vec<Queue>, XdpError> {
    let mut queues = Vec::new();
    for n in 0..count {
        let open = || Queue::open(interface.index, n, memory, n == 0, copy);
        let mut opened = open();
        // The kernel takes a moment to free the queue of a process that has just ended.
        for _ in 0..BUSY_TRIES {
            if !opened.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) {
                break;
            }
            let _ = rustix::thread::nanosleep(&BUSY_PAUSE);
            opened = open();
        }
        match opened {
            Ok(queue) => queues.push(queue),
            Err(e) if n > 0 && e.raw_os_error() == Some(libc::EINVAL) => break,
            Err(e) => return Err(XdpError::of("an AF_XDP socket", e)),
        }
    }
    Ok(queues)
}
