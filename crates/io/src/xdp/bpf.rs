//! The XDP program in the interface's receive path, and the system calls that load and attach it.
//!
//! It sends what is ours and simple to the socket of its receive queue, and passes everything else to the kernel:
//!
//! ```text
//! to our Ethernet address, no longer than a frame of memory,
//! IPv4 without options, whole | IPv6 without extension headers,
//! UDP to our port and to one of our addresses  ->  bpf_redirect_map(sockets, queue, or else pass)
//! anything else                                ->  XDP_PASS
//! ```
//!
//! Written by hand: 40 instructions need no compiler, and the kernel's verifier proves them sound.

use super::frame::{self, Mac};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Local addresses of one family that the program compares with. A packet to a further one goes the kernel's way.
pub(super) const MAX_ADDRESSES: usize = 64;

const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_PROG_LOAD: u32 = 5;
const BPF_LINK_CREATE: u32 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_ATTACH_XDP: u32 = 37;
/// Attach to the driver's own hook.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
/// Attach behind the driver, where packets are the kernel's already.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
pub(super) const XDP_PASS: i32 = 2;
/// `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// What is taken from the kernel.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    /// The interface's address. Frames to others are not for this machine, however they got here.
    pub(super) mac: Mac,
    pub(super) port: u16,
    /// Our addresses. Others may be those of machines that this one forwards to.
    pub(super) v4: Vec<Ipv4Addr>,
    pub(super) v6: Vec<Ipv6Addr>,
    /// Bytes of the longest frame that a socket has room for.
    pub(super) longest: usize,
}

impl Filter {
    /// Adds an address; false when the program is long enough.
    pub(super) fn add(&mut self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) if self.v4.len() < MAX_ADDRESSES => self.v4.push(ip),
            IpAddr::V6(ip) if self.v6.len() < MAX_ADDRESSES => self.v6.push(ip),
            _ => return false,
        }
        true
    }
}

/// One instruction, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Insn {
    code: u8,
    /// Destination in the low half, source in the high one.
    regs: u8,
    off: i16,
    imm: i32,
}

/// A place that jumps lead to, by its number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Redirect,
    V6,
    /// The end of the comparison with the address of this number.
    Next(usize),
}

/// Widths of a load, as operation codes.
const BYTE: u8 = 0x71;
const HALF: u8 = 0x69;
const WORD: u8 = 0x61;
const DOUBLE: u8 = 0x79;
/// Jumps. The ones of 32 bits compare the lower half.
const JEQ32: u8 = 0x16;
const JNE32: u8 = 0x56;
const JSET: u8 = 0x45;
const JGT_REG: u8 = 0x2d;
const JLE_REG: u8 = 0xbd;
const JNE_REG: u8 = 0x5d;
const JEQ_REG: u8 = 0x1d;
const JUMP: u8 = 0x05;

/// Puts instructions together; jumps forward only.
#[derive(Default)]
struct Assembler {
    code: Vec<Insn>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.code.push(Insn { code, regs: dst | src << 4, off, imm });
    }
    fn load(&mut self, width: u8, dst: u8, src: u8, off: usize) {
        self.push(width, dst, src, off as i16, 0);
    }
    fn copy(&mut self, dst: u8, src: u8) {
        self.push(0xbf, dst, src, 0, 0);
    }
    fn set(&mut self, dst: u8, imm: i32) {
        self.push(0xb7, dst, 0, 0, imm);
    }
    /// Sets 64 bits; `src` 1 makes the number that of a map.
    fn set_wide(&mut self, dst: u8, src: u8, value: u64) {
        self.push(0x18, dst, src, 0, value as i32);
        self.push(0, 0, 0, 0, (value >> 32) as i32);
    }
    fn add(&mut self, dst: u8, imm: usize) {
        self.push(0x07, dst, 0, 0, imm as i32);
    }
    fn jump(&mut self, code: u8, dst: u8, src: u8, imm: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(code, dst, src, 0, imm);
    }
    /// Loads bytes of the packet and leaves unless they are these.
    fn expect(&mut self, at: usize, bytes: &[u8]) {
        let (width, value) = match *bytes {
            [a] => (BYTE, i32::from(a)),
            [a, b] => (HALF, i32::from(u16::from_ne_bytes([a, b]))),
            [a, b, c, d] => (WORD, i32::from_ne_bytes([a, b, c, d])),
            _ => unreachable!("callers name one, two or four bytes"),
        };
        self.load(width, 5, 2, at);
        self.jump(JNE32, 5, 0, value, Label::Pass);
    }
    /// Leaves unless the packet has this many bytes.
    fn expect_len(&mut self, len: usize) {
        self.copy(4, 2);
        self.add(4, len);
        self.jump(JGT_REG, 4, 3, 0, Label::Pass);
    }
    /// Jumps to `label` lead here.
    fn place(&mut self, label: Label) {
        let here = self.code.len();
        for (at, _) in self.jumps.extract_if(.., |(_, to)| *to == label) {
            // A program has at most some 600 instructions.
            self.code[at].off = (here - at - 1) as i16;
        }
    }
}

/// The program. Register 2 is the packet's start, 3 its end, 6 the context.
fn program(filter: &Filter, sockets: i32) -> Vec<Insn> {
    let mut a = Assembler::default();
    a.copy(6, 1);
    a.load(WORD, 2, 1, 0);
    a.load(WORD, 3, 1, 4);
    a.expect_len(42);
    a.copy(4, 2);
    a.add(4, filter.longest + 1);
    a.jump(JLE_REG, 4, 3, 0, Label::Pass);
    a.expect(0, &filter.mac[..4]);
    a.expect(4, &filter.mac[4..]);
    a.load(HALF, 5, 2, 12);
    a.jump(JEQ32, 5, 0, i32::from(u16::from_ne_bytes(frame::TYPE_IPV6)), Label::V6);
    a.jump(JNE32, 5, 0, i32::from(u16::from_ne_bytes(frame::TYPE_IPV4)), Label::Pass);
    a.expect(14, &[0x45]);
    // More fragments, or not the first one.
    a.load(HALF, 5, 2, 20);
    a.jump(JSET, 5, 0, i32::from(u16::from_ne_bytes([0x3f, 0xff])), Label::Pass);
    a.expect(23, &[frame::PROTOCOL_UDP]);
    a.expect(36, &filter.port.to_be_bytes());
    a.load(WORD, 5, 2, 30);
    for ip in &filter.v4 {
        a.jump(JEQ32, 5, 0, i32::from_ne_bytes(ip.octets()), Label::Redirect);
    }
    a.jump(JUMP, 0, 0, 0, Label::Pass);
    a.place(Label::V6);
    a.expect_len(62);
    a.expect(20, &[frame::PROTOCOL_UDP]);
    a.expect(56, &filter.port.to_be_bytes());
    a.load(DOUBLE, 7, 2, 38);
    a.load(DOUBLE, 8, 2, 46);
    for (n, ip) in filter.v6.iter().enumerate() {
        let half = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| ip.octets()[at + i]));
        a.set_wide(5, 0, half(0));
        a.jump(JNE_REG, 7, 5, 0, Label::Next(n));
        a.set_wide(5, 0, half(8));
        a.jump(JEQ_REG, 8, 5, 0, Label::Redirect);
        a.place(Label::Next(n));
    }
    a.place(Label::Pass);
    a.set(0, XDP_PASS);
    a.push(0x95, 0, 0, 0, 0);
    a.place(Label::Redirect);
    a.set_wide(1, 1, sockets as u64);
    // The receive queue, from the context.
    a.load(WORD, 2, 6, 16);
    a.set(3, XDP_PASS);
    a.push(0x85, 0, 0, 0, REDIRECT_MAP);
    a.push(0x95, 0, 0, 0, 0);
    a.code
}

/// Arguments of `bpf(2)`; what follows what a command knows must be zero.
#[repr(C, align(8))]
struct Attr([u32; 32]);

impl Attr {
    fn new(fields: &[(usize, u32)]) -> Attr {
        let mut a = Attr([0; 32]);
        for (at, value) in fields {
            a.0[*at] = *value;
        }
        a
    }
    /// A pointer (or another number of 64 bits) at the 32-bit field `at`.
    fn wide(mut self, at: usize, value: u64) -> Attr {
        let b = value.to_ne_bytes();
        self.0[at] = u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        self.0[at + 1] = u32::from_ne_bytes([b[4], b[5], b[6], b[7]]);
        self
    }
}

/// Calls `bpf(2)`.
///
/// # Safety
/// Pointers in `attr` must be good for what the command does with them, for the time of the call.
unsafe fn bpf(command: u32, attr: &mut Attr, fields: usize) -> io::Result<i32> {
    // SAFETY: `attr` is ours and at least `fields` words long; what it points to is the caller's duty.
    let n = unsafe { libc::syscall(libc::SYS_bpf, command, (&raw mut *attr), fields * 4) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as i32) }
}

/// As [`bpf`], for commands that return a descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_fd(command: u32, attr: &mut Attr, fields: usize) -> io::Result<OwnedFd> {
    // SAFETY: the caller's duty.
    let fd = unsafe { bpf(command, attr, fields) }?;
    // SAFETY: the kernel has just given us this descriptor (with close-on-exec set); nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The table from receive queues to sockets.
#[derive(Debug)]
pub(super) struct Sockets(OwnedFd);

impl Sockets {
    /// For queues 0 to `queues` - 1.
    pub(super) fn new(queues: u32) -> io::Result<Sockets> {
        let mut attr = Attr::new(&[(0, BPF_MAP_TYPE_XSKMAP), (1, 4), (2, 4), (3, queues)]);
        // SAFETY: the command takes numbers only.
        Ok(Sockets(unsafe { bpf_fd(BPF_MAP_CREATE, &mut attr, 5) }?))
    }

    /// Packets of `queue` go to `socket` from now on.
    pub(super) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let mut attr = Attr::new(&[(0, self.0.as_raw_fd() as u32)])
            .wide(2, (&raw const queue) as u64)
            .wide(4, (&raw const value) as u64);
        // SAFETY: key and value are four bytes each, as the table was made for, and live through the call.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr, 8) }.map(|_| ())
    }
}

/// The program, in the kernel but not yet anywhere in the path of packets.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    pub(super) fn load(filter: &Filter, sockets: &Sockets) -> io::Result<Program> {
        const LICENSE: &core::ffi::CStr = c"MIT";
        let code = program(filter, sockets.0.as_raw_fd());
        let mut attr = Attr::new(&[(0, BPF_PROG_TYPE_XDP), (1, code.len() as u32)])
            .wide(2, code.as_ptr() as u64)
            .wide(4, LICENSE.as_ptr() as u64);
        // SAFETY: instructions and licence live through the call, in which the kernel copies them.
        Ok(Program(unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr, 12) }?))
    }

    /// Puts it into the receive path of an interface, for as long as the result lives: also when the process is killed,
    /// since the kernel closes its descriptors then.
    pub(super) fn attach(&self, interface: u32, native: bool) -> io::Result<OwnedFd> {
        let mode = if native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
        let mut attr =
            Attr::new(&[(0, self.0.as_raw_fd() as u32), (1, interface), (2, BPF_ATTACH_XDP), (3, mode)]);
        // SAFETY: the command takes numbers only.
        unsafe { bpf_fd(BPF_LINK_CREATE, &mut attr, 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::frame::{FrameAddresses, Template};
    use base::Ecn;

    const BPF_PROG_TEST_RUN: u32 = 10;
    const XDP_ABORTED: i32 = 0;
    const XDP_REDIRECT: i32 = 4;
    const MAC: Mac = [2, 0, 0, 0, 0, 2];

    fn filter() -> Filter {
        let v4 = vec!["10.0.0.2".parse().unwrap(), "192.168.255.254".parse().unwrap()];
        let v6 = vec!["fd00::2".parse().unwrap(), "2001:db8:ffff::fffe".parse().unwrap()];
        Filter { mac: MAC, port: 4460, v4, v6, longest: 1_514 }
    }

    fn frame(src: &str, dst: &str, len: usize) -> Vec<u8> {
        let ends = FrameAddresses {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: MAC,
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
        };
        let mut out = vec![0; 4_096];
        let n = Template::new(&ends).unwrap().write(&mut out, &vec![7; len], Ecn::Ect0.bits()).unwrap();
        out.truncate(n);
        out
    }

    /// What the program says of a frame; `None` where the kernel does not let us ask.
    fn verdict(program: &Program, frame: &[u8]) -> io::Result<i32> {
        let mut attr = Attr::new(&[(0, program.0.as_raw_fd() as u32), (2, frame.len() as u32), (8, 1)])
            .wide(4, frame.as_ptr() as u64);
        // SAFETY: the frame lives through the call and is only read; no memory for results is named.
        unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr, 20) }?;
        Ok(attr.0[1] as i32)
    }

    /// The kernel redirects to the (absent) socket of a queue: the fallback then says "pass", as for everything
    /// else. So the program under test is one with "aborted" as fallback and is told apart by it.
    fn loaded() -> Option<Program> {
        let sockets = Sockets::new(4);
        if let Err(e) = &sockets {
            eprintln!("skipped: bpf(2) needs root: {e}");
            return None;
        }
        let sockets = sockets.unwrap();
        let mut code = program(&filter(), sockets.0.as_raw_fd());
        let fallback = code.len() - 3;
        assert_eq!((code[fallback].code, code[fallback].imm), (0xb7, XDP_PASS));
        code[fallback].imm = XDP_ABORTED;
        let mut attr = Attr::new(&[(0, BPF_PROG_TYPE_XDP), (1, code.len() as u32)])
            .wide(2, code.as_ptr() as u64)
            .wide(4, c"GPL".as_ptr() as u64);
        // SAFETY: instructions and licence live through the call.
        Some(Program(unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr, 12) }.expect("the verifier agrees")))
    }

    #[test]
    fn program_redirects_own_packets_and_passes_others() {
        let Some(program) = loaded() else { return };
        let ours = |f: &[u8]| {
            let v = verdict(&program, f).expect("run");
            assert!(v == XDP_ABORTED || v == XDP_PASS || v == XDP_REDIRECT, "{v}");
            v != XDP_PASS
        };
        for (src, dst) in [
            ("10.0.0.1:9", "10.0.0.2:4460"),
            ("10.0.0.1:9", "192.168.255.254:4460"),
            ("[fd00::1]:9", "[fd00::2]:4460"),
            ("[fd00::1]:9", "[2001:db8:ffff::fffe]:4460"),
        ] {
            assert!(ours(&frame(src, dst, 0)) && ours(&frame(src, dst, 1_400)), "{dst}");
            assert!(!ours(&frame(src, dst, 1_500)), "too long for the socket's memory");
            let mut other = frame(src, dst, 10);
            other[5] ^= 1;
            assert!(!ours(&other), "another Ethernet address");
        }
        for (src, dst) in [
            ("10.0.0.1:4460", "10.0.0.2:4461"),
            ("10.0.0.1:9", "10.0.0.3:4460"),
            ("[fd00::1]:9", "[fd00::2]:4461"),
            ("[fd00::1]:9", "[fd00::3]:4460"),
            ("[fd00::1]:9", "[fd01::2]:4460"),
        ] {
            assert!(!ours(&frame(src, dst, 100)), "{dst}");
        }
        let changed = |at: usize, value: u8| {
            let mut f = frame("10.0.0.1:9", "10.0.0.2:4460", 100);
            f[at] = value;
            f
        };
        assert!(ours(&changed(20, 0)), "without \"don't fragment\"");
        for (at, value, what) in [
            (12, 0x81, "VLAN"),
            (14, 0x46, "options"),
            (20, 0x20, "more fragments"),
            (21, 1, "a later fragment"),
            (23, 6, "TCP"),
        ] {
            assert!(!ours(&changed(at, value)), "{what}");
        }
        let mut extension = frame("[fd00::1]:9", "[fd00::2]:4460", 100);
        extension[20] = 44;
        assert!(!ours(&extension), "IPv6 fragment");
        // Every prefix of a frame is looked at without reading beyond it: the verifier has proved that, and short ones
        // pass. The kernel takes frames of 14 bytes and more.
        for len in 14..42 {
            assert!(!ours(&frame("10.0.0.1:9", "10.0.0.2:4460", 0)[..len]), "{len}");
        }
    }

    #[test]
    fn longest_program_passes_the_verifier() {
        let mut f = filter();
        let mut n = 0u8;
        while f.add(IpAddr::from([10, 1, 0, n])) {
            n += 1;
        }
        while f.add(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 1, n.into()])) {
            n += 1;
        }
        assert_eq!((f.v4.len(), f.v6.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
        match Sockets::new(1) {
            Ok(sockets) => drop(Program::load(&f, &sockets).expect("the verifier agrees")),
            Err(e) => eprintln!("skipped: bpf(2) needs root: {e}"),
        }
    }
}
