//! Which socket of a group that shares a port gets a datagram: the one whose connection it belongs to.
//!
//! By itself the kernel spreads datagrams over a group by their addresses: a connection whose client gets another address,
//! or that has several paths, would meet sockets that do not know it. A small program in the kernel reads the connection
//! identifier instead. Whoever gives out identifiers chooses their last byte so that it leads to the socket.

use super::{UdpError, UdpSocket, check};
use std::os::fd::AsRawFd;

/// Sockets in a group at most: the last byte of an identifier tells them apart.
pub const MAX_GROUP: usize = 256;

/// Where the last byte of a short packet's identifier lies in a datagram; bytes 1 to 4 are the identifier, big-endian.
const LAST_BYTE: u32 = 4;
/// The bit of byte 0 that says "long header".
const LONG: u32 = wire::packet::flag::LONG as u32;
const _: () = assert!(LAST_BYTE as usize == wire::packet::SHORT_PN - 1);

/// Steers what arrives for the group of `group` sockets that `socket` belongs to, all opened with
/// [`super::UdpOptions::reuse_port`]: a short packet goes to the socket of the number `last byte of the identifier modulo
/// group`. Sockets are numbered in the order in which they were opened, from 0; when one is closed, the last takes its
/// number. Everything else goes to number 0: packets of set-up (their identifiers mean nothing yet, and one place keeps
/// count of attempts), and what is too short to be ours.
///
/// A train that the kernel has joined goes where its first datagram belongs: the datagrams of one train have the same
/// addresses, and one connection's if the sender keeps one socket for each.
///
/// # Errors
/// [`UdpError::Group`] unless `group` is 1 to [`MAX_GROUP`]; [`UdpError::Option`] when the kernel refuses, as for a socket
/// that is in no group.
pub fn attach(socket: &UdpSocket, group: usize) -> Result<(), UdpError> {
    if !(1..=MAX_GROUP).contains(&group) {
        return Err(UdpError::Group { sockets: group });
    }
    let mut program = program(group as u32);
    let value = libc::sock_fprog { len: program.len() as _, filter: program.as_mut_ptr() };
    let (option, len) = (libc::SO_ATTACH_REUSEPORT_CBPF, size_of::<libc::sock_fprog>() as libc::socklen_t);
    // SAFETY: pointer and length describe `value`, which points to the program and its length; the kernel copies both.
    let done = unsafe {
        libc::setsockopt(socket.fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), len)
    };
    check(done).map_err(|source| UdpError::Option { option: "SO_ATTACH_REUSEPORT_CBPF", source })
}

/// Classic BPF over the UDP payload; what it returns is the socket's number. Reading beyond the datagram's end returns 0.
fn program(group: u32) -> [libc::sock_filter; 6] {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let byte = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    // Passes over three instructions when the bit is set.
    let long = libc::sock_filter { jt: 3, ..op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, LONG) };
    [
        op(byte, 0),
        long,
        op(byte, LAST_BYTE),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, group),
        op(libc::BPF_RET | libc::BPF_A, 0),
        op(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{SendBatch, SendMeta, UdpOptions};
    use super::*;
    use crate::poll::{Poller, Source};
    use base::Ecn;
    use std::net::SocketAddr;

    /// Sockets that share one port of `host`, steered.
    fn group(host: &str, n: usize) -> Vec<UdpSocket> {
        let mut o = UdpOptions { reuse_port: true, ..UdpOptions::new(host.parse().unwrap()) };
        let mut sockets = Vec::new();
        for _ in 0..n {
            let s = UdpSocket::open(&o).unwrap();
            o.bind = s.local_addr();
            sockets.push(s);
        }
        attach(&sockets[0], n).unwrap();
        sockets
    }

    fn send(from: &UdpSocket, dst: SocketAddr, bytes: &[u8]) {
        let mut batch = SendBatch::new();
        batch.slot().unwrap()[..bytes.len()].copy_from_slice(bytes);
        let meta = SendMeta { dst, src: None, ecn: Ecn::Ect0, segment: bytes.len() };
        batch.commit(meta, bytes.len()).unwrap();
        assert_eq!(from.send(&mut batch).unwrap().sent, 1);
    }

    /// Which socket gets what is sent next, and that it is whole.
    fn arrival(sockets: &[UdpSocket], bytes: &[u8]) -> usize {
        let mut sources: Vec<_> = sockets.iter().map(Source::readable).collect();
        Poller::new().unwrap().wait(&mut sources, None).unwrap();
        let at = sources.iter().position(|s| s.readable).unwrap();
        let mut got = sockets[at].recv_batch();
        assert_eq!(sockets[at].recv(&mut got).unwrap(), 1);
        assert_eq!(got.iter_mut().next().unwrap().1, bytes);
        at
    }

    #[test]
    fn packets_reach_the_socket_that_their_identifier_names() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            for n in 2..=4 {
                let sockets = group(host, n);
                let to = sockets[0].local_addr();
                // Each from several addresses: without steering they would spread by these.
                for client in 0..6 {
                    let from = UdpSocket::open(&UdpOptions::new(host.parse().unwrap())).unwrap();
                    for last in [0, 1, 2, 3, 4, 5, 127, 128, 254, 255_u8] {
                        let packet = [0x4c, 0xff, client, 0x80, last, 9, 9, 9, 9, 1, 2, 3];
                        send(&from, to, &packet);
                        assert_eq!(arrival(&sockets, &packet), usize::from(last) % n, "{last} of {n}");
                    }
                    // Set-up, whatever its identifiers; too short for an identifier; nothing of ours.
                    let long = [&[0x80, 0x4c, 0x48, 0, 3, 4, 1, 1, 1, 3][..], &[3; 1_190]].concat();
                    for other in [&long[..], &[0xff; 40], &[0x40], &[0x40, 1, 1, 1]] {
                        send(&from, to, other);
                        assert_eq!(arrival(&sockets, other), 0, "{} bytes of {n}", other.len());
                    }
                }
            }
        }
    }

    #[test]
    fn groups_that_cannot_be_are_refused() {
        let alone = UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
        for n in [0, MAX_GROUP + 1] {
            let e = attach(&alone, n).unwrap_err();
            assert!(e.to_string().contains(&n.to_string()), "{e}");
        }
        assert!(attach(&group("127.0.0.1:0", 1)[0], MAX_GROUP).is_ok());
        let e = attach(&alone, 2).unwrap_err();
        assert!(e.to_string().contains("REUSEPORT"), "{e}");
    }
}
