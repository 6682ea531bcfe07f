//! Steers packets to the sockets of a group that shares an address, by their connection identifier.
//!
//! The kernel spreads peers over such a group by a hash of their addresses. Ours are told apart by the identifier in each
//! packet (`wire::packet`): so that the packets of one lane come to one thread, wherever the peer is, a program of a few
//! instructions in the kernel reads it. Its rule is [`endpoint::socket_of`]: the identifier's last byte, modulo the number
//! of sockets; packets with a long header, and those too short to have an identifier, go to the first.

use super::{UdpError, UdpSocket, check};
use std::os::fd::AsRawFd;

/// Byte 0 of a packet: set in long headers (`wire::packet::flag::LONG`).
const LONG: u32 = 0x80;
/// Where the last byte of the identifier is in a short packet.
const CID_END: u32 = 4;

impl UdpSocket {
    /// Steers the group of `sockets` sockets that this one belongs to, all opened with `reuse_port` at one address. The
    /// order is that of their opening.
    ///
    /// # Errors
    /// [`UdpError::Option`] where the kernel (before 4.5) cannot.
    pub fn steer(&self, sockets: u16) -> Result<(), UdpError> {
        let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
        let give = libc::BPF_RET | libc::BPF_K;
        // The packet begins at the UDP payload. A load beyond its end gives 0, the first socket.
        let mut program = [
            op(load, 0, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 3, 0, LONG),
            op(load, 0, 0, CID_END),
            op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, u32::from(sockets.max(1))),
            op(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
            op(give, 0, 0, 0),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        // SAFETY: pointer and length describe `program`, whose instructions live through the call; the kernel copies them.
        let done = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), len)
        };
        check(done).map_err(|source| UdpError::Option { option: "SO_ATTACH_REUSEPORT_CBPF", source })
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use endpoint::socket_of;

    /// Sends one packet with each identifier and tells where it arrived.
    fn arrivals(bind: &str, sockets: u16, packets: &[Vec<u8>]) -> Vec<Option<usize>> {
        let options = UdpOptions { reuse_port: true, ..UdpOptions::new(bind.parse().unwrap()) };
        let first = UdpSocket::open(&options).unwrap();
        let at = first.local_addr();
        let mut group = vec![first];
        for _ in 1..sockets {
            group.push(UdpSocket::open(&UdpOptions { bind: at, ..options.clone() }).unwrap());
        }
        group[0].steer(sockets).unwrap();
        let sender = std::net::UdpSocket::bind((at.ip(), 0)).unwrap();
        let mut batches: Vec<_> = group.iter().map(UdpSocket::recv_batch).collect();
        let where_is = |p: &Vec<u8>| {
            sender.send_to(p, at).unwrap();
            // Loopback delivers before the call returns.
            let mut hits = group.iter().zip(&mut batches).map(|(s, b)| s.recv(b).unwrap());
            hits.position(|n| n == 1)
        };
        packets.iter().map(where_is).collect()
    }

    fn short(cid: u32) -> Vec<u8> {
        let mut p = vec![0x41];
        p.extend(cid.to_be_bytes());
        p.extend([7; 60]);
        p
    }

    #[test]
    fn packets_are_steered_by_connection_identifier() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            for n in [2u16, 3, 4] {
                let cids: Vec<u32> = (0..40u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
                let packets: Vec<_> = cids.iter().map(|c| short(*c)).collect();
                let expected: Vec<_> =
                    cids.iter().map(|c| Some(usize::from(socket_of(wire::Cid(*c), n)))).collect();
                assert_eq!(arrivals(bind, n, &packets), expected, "{bind} with {n}");
            }
        }
    }

    #[test]
    fn handshake_and_short_packets_go_to_the_first_socket() {
        let mut long = short(0xffff_ffff);
        long[0] = 0xc1;
        let packets = [long, vec![], vec![1], vec![0x41, 1, 1, 1]];
        assert_eq!(arrivals("127.0.0.1:0", 4, &packets), [Some(0); 4]);
    }
}
