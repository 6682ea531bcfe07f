//! Ethernet frames as they come out of the receive ring of AF_XDP, from anybody on the link. No frame panics; what is taken
//! is what the RFCs allow, by a second and simpler reading; and what is taken can be written, and is read the same.
//!
//! Byte 0 of the input chooses: the frame as it is, or with lengths and checksums set right, so that more is looked at
//! behind them.

#![no_main]

use frame::{Datagram, ETHERNET, FrameAddresses, Template, parse};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;

mod netlink {
    /// As the driver's own.
    pub type Mac = [u8; 6];
}

#[allow(dead_code, reason = "the driver uses all of it")]
#[path = "../../crates/io/src/xdp/checksum.rs"]
mod checksum;
#[allow(dead_code, reason = "the driver uses all of it")]
#[path = "../../crates/io/src/xdp/frame.rs"]
mod frame;

/// The interface that frames come in over.
const LINK: u32 = 7;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// The sum of RFC 1071 as its section 4.1 has it, in network order.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|p| p.chunks(2)).map(|w| match w {
        [a, b] => u64::from(u16::from_be_bytes([*a, *b])),
        [a] => u64::from(*a) << 8,
        _ => 0,
    });
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Where the UDP header begins, if the frame is long enough and says that it is IP.
fn udp_at(f: &[u8]) -> Option<(usize, bool)> {
    match f.get(12..14)? {
        [8, 0] if f.len() >= ETHERNET + IPV4 + UDP => Some((ETHERNET + IPV4, true)),
        [0x86, 0xdd] if f.len() >= ETHERNET + IPV6 + UDP => Some((ETHERNET + IPV6, false)),
        _ => None,
    }
}

/// The pseudo-header's parts: addresses, and protocol with length.
fn pseudo(f: &[u8], at: usize, v4: bool) -> (&[u8], [u8; 4]) {
    let addresses = if v4 { &f[26..34] } else { &f[22..54] };
    (addresses, [0, 17, f[at + 4], f[at + 5]])
}

/// Sets lengths and checksums right, as a sender has to.
fn mend(f: &mut [u8]) {
    let Some((at, v4)) = udp_at(f) else { return };
    let (ip, udp) = (((f.len() - ETHERNET) as u16).to_be_bytes(), ((f.len() - at) as u16).to_be_bytes());
    f[at + 4..at + 6].copy_from_slice(&udp);
    if v4 {
        (f[14], f[20], f[21], f[23]) = (0x45, f[20] & 0x40, 0, 17);
        f[16..18].copy_from_slice(&ip);
        f[24..26].fill(0);
        let check = !sum(&[&f[14..34]]);
        f[24..26].copy_from_slice(&check.to_be_bytes());
    } else {
        (f[14], f[20]) = (0x60 | f[14] & 0xf, 17);
        f[18..20].copy_from_slice(&udp);
    }
    f[at + 6..at + 8].fill(0);
    let (addresses, rest) = pseudo(f, at, v4);
    let check = match !sum(&[addresses, &rest, &f[at..]]) {
        0 => 0xffff,
        n => n,
    };
    f[at + 6..at + 8].copy_from_slice(&check.to_be_bytes());
}

/// What was taken may be taken.
fn check(f: &[u8], d: &Datagram) {
    let (at, v4) = udp_at(f).expect("taken, so it is long enough");
    assert_eq!(f[if v4 { 23 } else { 20 }], 17, "not UDP");
    let len = usize::from(u16::from_be_bytes([f[at + 4], f[at + 5]]));
    assert_eq!(d.payload, at + UDP..at + len);
    assert!(d.payload.end <= f.len(), "payload beyond the frame");
    if v4 {
        assert_eq!((f[14], f[20] & 0x3f, f[21]), (0x45, 0, 0), "options or a fragment");
        assert_eq!(sum(&[&f[14..34]]), 0xffff, "the header's checksum is wrong");
    }
    let (addresses, rest) = pseudo(f, at, v4);
    let check = u16::from_be_bytes([f[at + 6], f[at + 7]]);
    let unfinished = check == sum(&[addresses, &rest]);
    let whole = sum(&[addresses, &rest, &f[at..at + len]]) == 0xffff;
    assert!(unfinished || whole || v4 && check == 0, "the checksum is wrong");
    let ip = d.remote.ip();
    assert!(!ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && d.remote.port() != 0);
    assert!(!matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()), "everybody has no address to answer");
    assert_eq!(ip.is_ipv4(), v4);
    assert_eq!(d.local.is_ipv4(), v4);
}

/// Written again, it reads the same.
fn again(f: &[u8], d: &Datagram) {
    let ends = FrameAddresses { src_mac: [2; 6], dst_mac: [3; 6], src: d.remote, dst: d.local };
    let template = Template::new(&ends).expect("one family");
    let class = d.dscp << 2 | d.ecn.bits();
    let mut out = vec![0xee; f.len() + ETHERNET];
    let n = template.write(&mut out, &f[d.payload.clone()], class).expect("it was one datagram before");
    let second = parse(&out[..n], LINK).expect("what was written is read");
    assert_eq!(&second, &Datagram { payload: second.payload.clone(), ..d.clone() });
    assert_eq!(out[second.payload], f[d.payload.clone()]);
}

/// One frame.
fn run(choice: u8, bytes: &[u8]) {
    let mut f = bytes.to_vec();
    if choice & 1 == 1 {
        mend(&mut f);
    }
    if let Some(d) = parse(&f, LINK) {
        check(&f, &d);
        again(&f, &d);
    }
}

fuzz_target!(|input: &[u8]| {
    if let Some((choice, frame)) = input.split_first() {
        run(*choice, frame);
    }
});
