//! TUN devices that carry super-packets.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::netns::{self, Addresses};
use crate::sys;

/// Length of the header before each packet: `struct virtio_net_hdr` without the number of buffers (virtio 1.2,
/// section 5.1.6).
pub const HEADER_LEN: usize = 10;

/// Longest packet from the kernel with its header: 64 KiB of payload after an IPv6 header with room for extensions.
pub const MAX_READ: usize = HEADER_LEN + (64 << 10) + 1024;

/// Packets and super-packets that a device holds until they are read: 20 ms of 5 Gbit/s in single packets.
pub const QUEUE: u32 = 10_000;

/// Bits of the IPv4 prefix of all nodes on one path.
const PREFIX_V4: u32 = 16;
/// Bits of the IPv6 prefix of all nodes on one path.
const PREFIX_V6: u32 = 64;
/// Size of the buffer for the table of devices in a namespace: three lines of headers, and a line each for the
/// loopback device and two others.
const MAX_TABLE: usize = 4096;

/// One end of a TUN device: reading returns what the namespace sends, and what is written here it receives.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    /// The namespace's table of devices, opened inside it.
    table: File,
}

impl Tun {
    /// Creates the device in a named namespace, with addresses, and sets it up.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(namespace: &str, name: &str, addresses: Addresses, mtu: u16) -> io::Result<Tun> {
        netns::inside(&netns::open(namespace)?, || {
            let fd = sys::open_tun(name)?;
            let interfaces = sys::Interfaces::open()?;
            interfaces.set_mtu(name, mtu)?;
            interfaces.set_queue(name, QUEUE)?;
            interfaces.add_ipv4(name, addresses.v4, PREFIX_V4)?;
            interfaces.set_up(name)?;
            if interfaces.has_ipv6() {
                interfaces.add_ipv6(name, addresses.v6, PREFIX_V6)?;
            }
            Ok(Tun { fd, name: name.to_owned(), table: File::open("/proc/thread-self/net/dev")? })
        })
    }

    /// Reads one packet with its header into `buffer`, which should have [`MAX_READ`] bytes; `None` when there is none.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes one packet: its header and its parts.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.fd, parts)?;
        Ok(())
    }

    /// Number of packets that the device dropped because they were not read in time.
    ///
    /// # Errors
    /// When the kernel's table cannot be read.
    pub fn dropped(&self) -> io::Result<u64> {
        let mut text = [0; MAX_TABLE];
        let length = self.table.read_at(&mut text, 0)?;
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "the table of devices lacks a device");
        dropped(&text[..length], &self.name).ok_or_else(unknown)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The transmit drops of a device in `/proc/net/dev` (proc_pid_net(5)): the fourth of the eight transmit columns,
/// which follow eight receive columns.
fn dropped(table: &[u8], device: &str) -> Option<u64> {
    let text = std::str::from_utf8(table).ok()?;
    let (_, columns) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == device)?;
    columns.split_ascii_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transmit_drops_are_parsed_from_the_device_table() {
        let table = b"Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
             lo:       1       2    0    3    0     0          0         0        4       5    0    6    0     0       0          0\n   \
             lh0: 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28\n";
        assert_eq!(dropped(table, "lh0"), Some(24));
        assert_eq!(dropped(table, "lo"), Some(6));
        assert_eq!(dropped(table, "lh1"), None);
    }
}
