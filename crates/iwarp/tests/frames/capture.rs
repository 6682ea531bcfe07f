//! Writes a pcap file of TCP connections: Ethernet, IPv4 and TCP around the bytes of each segment.

use etherparse::PacketBuilder;

/// The file's format, version 2.4: times in microseconds, in the byte order of little-endian machines.
const MAGIC: u32 = 0xa1b2_c3d4;
/// Frames are Ethernet's.
const ETHERNET: u32 = 1;
/// What a receiver offers in each segment, in bytes (no scaling).
const WINDOW: u16 = 65_535;

/// Frames, in the format of libpcap.
pub struct Capture {
    bytes: Vec<u8>,
    frames: u32,
}

impl Capture {
    pub fn new() -> Capture {
        let mut bytes = Vec::new();
        // Magic number, version, zone, accuracy, longest frame, link type.
        for word in [MAGIC, 4 << 16 | 2, 0, 0, 1 << 18, ETHERNET] {
            bytes.extend(word.to_le_bytes());
        }
        Capture { bytes, frames: 0 }
    }
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Their number.
    pub fn frames(&self) -> u32 {
        self.frames
    }
    /// Adds a frame, a millisecond after the one before; gives its number, from 1 on.
    fn frame(&mut self, bytes: &[u8]) -> u32 {
        let len = bytes.len() as u32;
        for word in [self.frames / 1000, self.frames % 1000 * 1000, len, len] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(bytes);
        self.frames += 1;
        self.frames
    }
}

/// What a segment has beside bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flag {
    Syn,
    None,
    Fin,
    Reset,
}

/// A TCP connection in a capture. End 0 opened it.
pub struct Tcp {
    ports: [u16; 2],
    /// Number of the next byte of each end.
    next: [u32; 2],
}

impl Tcp {
    /// Opens connection number `n`, with bytes numbered from `first` on. The ports are nobody's, so that tshark has no
    /// other protocol for them.
    pub fn open(c: &mut Capture, n: u16, first: u32) -> Tcp {
        let mut tcp = Tcp { ports: [50_000 + n, 40_000 + n], next: [first, first] };
        tcp.segment(c, 0, Flag::Syn, &[]);
        tcp.segment(c, 1, Flag::Syn, &[]);
        tcp.segment(c, 0, Flag::None, &[]);
        tcp
    }
    pub fn ports(&self) -> [u16; 2] {
        self.ports
    }
    /// A segment of end `from`; gives the frame's number.
    pub fn segment(&mut self, c: &mut Capture, from: usize, flag: Flag, bytes: &[u8]) -> u32 {
        let to = 1 - from;
        let address = |end: usize| [192, 0, 2, 1 + end as u8];
        let mac = |end: usize| [2, 0, 0, 0, 0, 1 + end as u8];
        let mut p = PacketBuilder::ethernet2(mac(from), mac(to)).ipv4(address(from), address(to), 64).tcp(
            self.ports[from],
            self.ports[to],
            self.next[from],
            WINDOW,
        );
        // The first segment of all has nothing to acknowledge.
        if (flag, from) != (Flag::Syn, 0) {
            p = p.ack(self.next[to]);
        }
        p = match flag {
            Flag::Syn => p.syn(),
            Flag::None if bytes.is_empty() => p,
            Flag::None => p.psh(),
            Flag::Fin => p.fin(),
            Flag::Reset => p.rst(),
        };
        let mut frame = Vec::new();
        p.write(&mut frame, bytes).expect("a segment fits a packet");
        let takes = bytes.len() as u32 + u32::from(matches!(flag, Flag::Syn | Flag::Fin));
        self.next[from] = self.next[from].wrapping_add(takes);
        c.frame(&frame)
    }
}
