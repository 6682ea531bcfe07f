//! Super-packets: packets that the kernel passes with segmentation offload, addressed by segment and written again in
//! runs of segments.
//!
//! A TUN device with offloads passes packets of up to 64 KiB whose header gives the size of the segments to cut
//! (`struct virtio_net_hdr`, virtio 1.2, section 5.1.6.2). Nothing is cut here: a segment is an index, and a run of
//! consecutive segments is written with adapted headers and its part of the payload.
//!
//! The data comes from the local kernel, but programs may send packets through raw sockets, so no bytes cause a panic
//! here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base::Ecn;
use base::telemetry::{self, Hop};

use super::checksum;
use crate::tun::HEADER_LEN;

/// The longest headers of a super-packet, IP and transport together: the longest of IPv4 and TCP (60 bytes each), and
/// for IPv6 with TCP some extension headers.
pub const MAX_HEADERS: usize = 256;

/// Most segments of a super-packet: 64 KiB in the smallest segments that the kernel cuts (48 bytes of TCP, RFC 879's
/// least MSS, as Linux enforces it), and the limit of UDP's is far below.
pub const MAX_SEGMENTS: usize = 1500;

/// Most extension headers of IPv6 that are looked through for the transport.
const MAX_EXTENSIONS: usize = 8;

/// The checksum is to be completed: it covers the pseudo-header only (virtio: `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// The super-packet has TCP's CWR flag, which belongs to its first segment only.
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Places in TCP's header (RFC 9293, section 3.1).
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// The place of the checksum in UDP's header (RFC 768).
const UDP_CHECKSUM: usize = 6;

/// Why a packet cannot be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Neither IPv4 nor IPv6.
    #[error("the packet is neither IPv4 nor IPv6")]
    NotIp,
    /// Headers extend beyond the packet, or their lengths contradict each other.
    #[error("the packet's headers do not fit it")]
    Malformed,
    /// A super-packet of a kind that was not requested.
    #[error("a super-packet of kind {0:#x} cannot be carried")]
    Kind(u8),
    /// Too many segments, see [`MAX_SEGMENTS`].
    #[error("a super-packet of {0} segments cannot be carried")]
    Segments(usize),
}

/// The kernel's description of a packet: `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Whether the checksum is to be completed.
    pub flags: u8,
    /// Whether, and as what, the packet is to be cut.
    pub kind: u8,
    /// Length of all headers.
    pub headers: u16,
    /// Payload of each segment.
    pub segment: u16,
    /// Where the bytes begin that the checksum covers.
    pub checksum_start: u16,
    /// Where the checksum is, from there.
    pub checksum_offset: u16,
}

impl Offload {
    /// From the bytes in front of a packet.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Offload {
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Offload {
            flags: bytes[0],
            kind: bytes[1],
            headers: short(2),
            segment: short(4),
            checksum_start: short(6),
            checksum_offset: short(8),
        }
    }

    /// The bytes in front of a packet.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        (bytes[0], bytes[1]) = (self.flags, self.kind);
        let shorts = [self.headers, self.segment, self.checksum_start, self.checksum_offset];
        for (to, short) in bytes[2..].chunks_exact_mut(2).zip(shorts) {
            to.copy_from_slice(&short.to_ne_bytes());
        }
        bytes
    }
}

/// The identity of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The IP protocol.
    pub protocol: u8,
    /// Sender; port 0 where the protocol has none, and in fragments.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
}

/// A packet, or a super-packet that represents several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperPacket {
    offload: Offload,
    key: FlowKey,
    /// Where the transport's header begins.
    transport: usize,
    /// Offset of the segments' payload; for a single packet, the end of its IP header.
    headers: usize,
    /// Bytes of the payload that are the transport header of a single packet (0 in a super-packet).
    inner: usize,
    segments: usize,
    bytes: Box<[u8]>,
}

/// The headers of a run of segments, which precede its payload.
#[derive(Clone, Debug)]
pub struct RunHeaders {
    bytes: [u8; HEADER_LEN + MAX_HEADERS],
    length: usize,
}

impl RunHeaders {
    /// The device header and those of the packet.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Where things are in an IP packet.
struct IpHeader {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Where the transport's header begins.
    end: usize,
    fragment: bool,
}

impl SuperPacket {
    /// Parses a device's packet: its offload header, and the bytes after it.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn parse(offload: Offload, bytes: &[u8]) -> Result<SuperPacket, PacketError> {
        let ip = match bytes.first().map(|byte| byte >> 4) {
            Some(4) => parse_ipv4(bytes)?,
            Some(6) => parse_ipv6(bytes)?,
            _ => return Err(PacketError::NotIp),
        };
        let ports = if ip.fragment { None } else { ports(ip.protocol, &bytes[ip.end..]) };
        let (from, to) = ports.unwrap_or((0, 0));
        let key = FlowKey {
            protocol: ip.protocol,
            source: SocketAddr::new(ip.source, from),
            destination: SocketAddr::new(ip.destination, to),
        };
        let single = if ports.is_some() { transport_length(ip.protocol, &bytes[ip.end..]) } else { None };
        let (headers, segments) =
            if offload.kind == GSO_NONE { (ip.end, 1) } else { super_layout(&offload, &ip, bytes, single)? };
        let (offload, headers, inner) = if segments == 1 {
            let plain = Offload { kind: GSO_NONE, segment: 0, headers: 0, ..offload };
            check_partial(&plain, bytes.len())?;
            (plain, first_header(bytes), ip.end - first_header(bytes) + single.unwrap_or(0))
        } else {
            (offload, headers, 0)
        };
        Ok(SuperPacket { offload, key, transport: ip.end, headers, inner, segments, bytes: bytes.into() })
    }

    /// The flow that it belongs to.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The number of packets that it represents, 1 to [`MAX_SEGMENTS`].
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Bytes in memory.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// The ECN field of its IP header.
    pub fn ecn(&self) -> Ecn {
        match self.is_v4() {
            true => Ecn::from_bits(self.bytes[1]),
            false => Ecn::from_bits(self.bytes[1] >> 4),
        }
    }

    /// Length on the wire of the IP packet of segment `index`; zero for an invalid index.
    pub fn packet_length(&self, index: usize) -> usize {
        if index < self.segments { self.headers + self.range(index, 1).len() } else { 0 }
    }

    /// Payload bytes of segment `index` after the transport header.
    pub fn payload_length(&self, index: usize) -> usize {
        self.packet_length(index).saturating_sub(self.headers + self.inner)
    }

    /// The `count` segments from `first` as one super-packet (or as a packet, when `count` is 1), with this ECN
    /// field: its headers and its payload. `None` if there are no such segments.
    pub fn run(&self, first: usize, count: usize, ecn: Ecn) -> Option<(RunHeaders, &[u8])> {
        if count == 0 || first.checked_add(count)? > self.segments {
            return None;
        }
        let payload = &self.bytes[self.range(first, count)];
        let mut out = RunHeaders { bytes: [0; HEADER_LEN + MAX_HEADERS], length: HEADER_LEN + self.headers };
        let (offload, packet) = out.bytes.split_at_mut(HEADER_LEN);
        let headers = packet.get_mut(..self.headers)?;
        headers.copy_from_slice(&self.bytes[..self.headers]);
        let header = if self.segments == 1 {
            self.offload
        } else {
            self.adapt_transport(headers, first, count, payload.len());
            self.adapt_ip(headers, first, payload.len())
        };
        set_ecn(headers, ecn);
        let kind = if count > 1 {
            // CWR was left where it belongs.
            let cwr = self.key.protocol == TCP && headers[self.transport + TCP_FLAGS] & CWR != 0;
            (self.offload.kind & !GSO_ECN) | if cwr { GSO_ECN } else { 0 }
        } else {
            GSO_NONE
        };
        let segment = if count > 1 { self.offload.segment } else { 0 };
        let length = if count > 1 { self.headers as u16 } else { 0 };
        offload.copy_from_slice(&Offload { kind, segment, headers: length, ..header }.emit());
        Some((out, payload))
    }

    /// Segment `index` as a packet with a complete checksum, as on a wire without offloads. `None` for an invalid
    /// index.
    pub fn complete(&self, index: usize, ecn: Ecn) -> Option<Vec<u8>> {
        let (headers, payload) = self.run(index, 1, ecn)?;
        let (header, packet) = headers.as_bytes().split_first_chunk::<HEADER_LEN>()?;
        let mut packet = [packet, payload].concat();
        let offload = Offload::parse(header);
        if offload.flags & NEEDS_CHECKSUM != 0 {
            let start = usize::from(offload.checksum_start);
            let place = start + usize::from(offload.checksum_offset);
            let sum = checksum::finish(checksum::sum(packet.get(start..)?));
            // Zero means "none" to UDP (RFC 768).
            let sum = if sum == 0 && self.key.protocol == UDP { 0xffff } else { sum };
            packet.get_mut(place..place + 2)?.copy_from_slice(&sum.to_be_bytes());
        }
        Some(packet)
    }

    /// Whether segment `index` is a datagram into which hops write telemetry.
    pub fn carries_telemetry(&self, index: usize) -> bool {
        // Fragments have no ports here.
        let datagram = self.key.protocol == UDP && self.key.source.port() != 0 && index < self.segments;
        let skip = if self.segments == 1 { self.inner } else { 0 };
        datagram
            && self.bytes.get(self.range(index, 1)).and_then(|b| b.get(skip..)).is_some_and(telemetry::is_led)
    }

    /// As [`SuperPacket::complete`], with the telemetry of hops.
    pub fn stamped(&self, index: usize, ecn: Ecn, hops: &[Hop]) -> Option<Vec<u8>> {
        let mut packet = self.complete(index, ecn)?;
        if hops.is_empty() {
            return Some(packet);
        }
        let (headers, datagram) = packet.split_at_mut_checked(self.transport)?;
        let payload = datagram.get_mut(8..)?;
        hops.iter().for_each(|hop| {
            telemetry::stamp(payload, hop);
        });
        let place = datagram.get(UDP_CHECKSUM..UDP_CHECKSUM + 2)?;
        // The sender requested no checksum (RFC 768).
        if place == [0, 0] {
            return Some(packet);
        }
        datagram[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
        let addresses = if self.is_v4() { 12..20 } else { 8..40 };
        let pseudo = checksum::sum(headers.get(addresses)?) + u64::from(UDP) + datagram.len() as u64;
        let sum = checksum::finish(pseudo + checksum::sum(datagram));
        let sum = if sum == 0 { 0xffff } else { sum };
        datagram[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        Some(packet)
    }

    fn is_v4(&self) -> bool {
        self.key.source.is_ipv4()
    }

    /// Where the payload of a run is.
    fn range(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        if self.segments == 1 {
            return self.headers..self.bytes.len();
        }
        let size = usize::from(self.offload.segment);
        let end = (self.headers + (first + count) * size).min(self.bytes.len());
        self.headers + first * size..end
    }

    /// Adapts the transport header to a run: the fields that differ between segments, and the checksum of the
    /// pseudo-header for the run's length.
    fn adapt_transport(&self, headers: &mut [u8], first: usize, count: usize, payload: usize) {
        let length = self.headers - self.transport + payload;
        let pseudo = self.pseudo_header(length);
        let header = &mut headers[self.transport..];
        if self.key.protocol == TCP {
            let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            let offset = (first * usize::from(self.offload.segment)) as u32;
            header[4..8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
            // As Linux cuts: FIN and PSH on the last segment, CWR on the first (RFC 3168, section 6.1.2).
            if first + count < self.segments {
                header[TCP_FLAGS] &= !(FIN | PSH);
            }
            if first > 0 {
                header[TCP_FLAGS] &= !CWR;
            }
            header[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        } else {
            header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            header[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        }
    }

    /// The sum over the pseudo-header, not inverted, which the field holds until the checksum is completed.
    fn pseudo_header(&self, length: usize) -> u16 {
        let addresses = if self.is_v4() { 12..20 } else { 8..40 };
        let sum = checksum::sum(&self.bytes[addresses]) + u64::from(self.key.protocol) + length as u64;
        checksum::fold(sum)
    }

    /// Adapts the lengths and, for IPv4, the identification in the IP header; returns the device header.
    fn adapt_ip(&self, headers: &mut [u8], first: usize, payload: usize) -> Offload {
        let total = headers.len() + payload;
        if self.is_v4() {
            headers[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            let id = u16::from_be_bytes([headers[4], headers[5]]);
            headers[4..6].copy_from_slice(&id.wrapping_add(first as u16).to_be_bytes());
            checksum_ipv4(headers);
        } else {
            headers[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        }
        let offset = if self.key.protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
        Offload {
            flags: NEEDS_CHECKSUM,
            checksum_start: self.transport as u16,
            checksum_offset: offset as u16,
            ..self.offload
        }
    }
}

fn first_header(bytes: &[u8]) -> usize {
    if bytes[0] >> 4 == 4 { usize::from(bytes[0] & 15) * 4 } else { 40 }
}

fn parse_ipv4(bytes: &[u8]) -> Result<IpHeader, PacketError> {
    let end = usize::from(bytes[0] & 15) * 4;
    let total = usize::from(*bytes.get(2).ok_or(PacketError::Malformed)?) << 8;
    if end < 20 || bytes.len() < end || total | usize::from(bytes[3]) != bytes.len() {
        return Err(PacketError::Malformed);
    }
    let address =
        |at: usize| IpAddr::from(Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]));
    Ok(IpHeader {
        source: address(12),
        destination: address(16),
        protocol: bytes[9],
        end,
        // More fragments, or an offset (RFC 791, section 3.1).
        fragment: u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff != 0,
    })
}

fn parse_ipv6(bytes: &[u8]) -> Result<IpHeader, PacketError> {
    let header: &[u8; 40] = bytes.first_chunk().ok_or(PacketError::Malformed)?;
    if usize::from(u16::from_be_bytes([header[4], header[5]])) + 40 != bytes.len() {
        return Err(PacketError::Malformed);
    }
    let address = |at: usize| {
        let octets: [u8; 16] = std::array::from_fn(|index| header[at + index]);
        IpAddr::from(Ipv6Addr::from(octets))
    };
    let (mut protocol, mut end, mut fragment) = (header[6], 40, false);
    for _ in 0..MAX_EXTENSIONS {
        // Hop-by-hop options, routing, fragment, destination options (RFC 8200, section 4).
        if !matches!(protocol, 0 | 43 | 44 | 60) {
            break;
        }
        let [next, length] = *bytes.get(end..end + 2).ok_or(PacketError::Malformed)? else {
            return Err(PacketError::Malformed);
        };
        fragment |= protocol == 44;
        end += if protocol == 44 { 8 } else { 8 + usize::from(length) * 8 };
        protocol = next;
        if end > bytes.len() {
            return Err(PacketError::Malformed);
        }
    }
    Ok(IpHeader { source: address(8), destination: address(24), protocol, end, fragment })
}

/// Source and destination port.
fn ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    // TCP, UDP, DCCP, SCTP and UDP-Lite begin with them.
    if !matches!(protocol, TCP | UDP | 33 | 132 | 136) {
        return None;
    }
    let port = |at| Some(u16::from_be_bytes([*transport.get(at)?, *transport.get(at + 1)?]));
    Some((port(0)?, port(2)?))
}

/// The length of the transport's header.
fn transport_length(protocol: u8, transport: &[u8]) -> Option<usize> {
    let length = match protocol {
        TCP => usize::from(transport.get(12)? >> 4) * 4,
        UDP => 8,
        _ => return None,
    };
    (length <= transport.len() && length >= if protocol == TCP { 20 } else { 8 }).then_some(length)
}

/// Where the payload of a super-packet begins, and how many segments it has.
fn super_layout(
    offload: &Offload,
    ip: &IpHeader,
    bytes: &[u8],
    transport: Option<usize>,
) -> Result<(usize, usize), PacketError> {
    let v4 = ip.source.is_ipv4();
    let fits = match offload.kind & !GSO_ECN {
        GSO_TCP4 => ip.protocol == TCP && v4,
        GSO_TCP6 => ip.protocol == TCP && !v4,
        GSO_UDP => ip.protocol == UDP,
        _ => return Err(PacketError::Kind(offload.kind)),
    };
    let headers = ip.end + transport.ok_or(PacketError::Malformed)?;
    // The kernel completes the checksum of segments it cuts, so it must be incomplete here.
    let partial = offload.flags & NEEDS_CHECKSUM != 0 && usize::from(offload.checksum_start) == ip.end;
    let size = usize::from(offload.segment);
    if !fits || !partial || size == 0 || headers > MAX_HEADERS || headers >= bytes.len() {
        return Err(PacketError::Malformed);
    }
    let segments = (bytes.len() - headers).div_ceil(size);
    if segments > MAX_SEGMENTS { Err(PacketError::Segments(segments)) } else { Ok((headers, segments)) }
}

/// The kernel refuses a packet whose unfinished checksum lies outside it.
fn check_partial(offload: &Offload, length: usize) -> Result<(), PacketError> {
    let end = usize::from(offload.checksum_start) + usize::from(offload.checksum_offset) + 2;
    if offload.flags & NEEDS_CHECKSUM != 0 && end > length { Err(PacketError::Malformed) } else { Ok(()) }
}

fn set_ecn(headers: &mut [u8], ecn: Ecn) {
    if headers[0] >> 4 == 4 {
        if Ecn::from_bits(headers[1]) != ecn {
            headers[1] = (headers[1] & !3) | ecn.bits();
            checksum_ipv4(headers);
        }
    } else {
        headers[1] = (headers[1] & !0x30) | (ecn.bits() << 4);
    }
}

fn checksum_ipv4(headers: &mut [u8]) {
    let end = first_header(headers);
    headers[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&headers[..end]));
    headers[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
