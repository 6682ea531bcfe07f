//! Code generation for the rules: reading a connection's attributes, the comparisons of a row, and its action.
//!
//! The attributes are written to the stack and copied there by the kernel, and the copy is compared. The verifier knows
//! nothing of the copy's values, so that comparisons do not make it explore all paths through all rows.

use super::names::NameMatch;
use super::{Btf, Error, NO_CAP, Outcome, PreparedRow, kernel_name};
use crate::asm::{Asm, Condition, FRAME, Label, Op, Size};
use crate::btf::Kind;
use crate::load::{PSEUDO_MAP, PSEUDO_MAP_VALUE};
use policy::table::Interval;

/// MapFds in the context, `struct bpf_sock_ops` of include/uapi/linux/bpf.h.
mod context {
    pub(super) const OP: i16 = 0;
    pub(super) const FAMILY: i16 = 20;
    pub(super) const REMOTE_IP4: i16 = 24;
    pub(super) const LOCAL_IP4: i16 = 28;
    pub(super) const REMOTE_IP6: i16 = 32;
    pub(super) const LOCAL_IP6: i16 = 48;
    pub(super) const REMOTE_PORT: i16 = 64;
    pub(super) const LOCAL_PORT: i16 = 68;
    pub(super) const SOCKET: i16 = 184;
}

/// When the program is called (`BPF_SOCK_OPS_..._CB`): before a SYN is sent, when a connection was accepted, when a socket
/// begins to listen.
const CONNECT: i32 = 3;
const ACCEPTED: i32 = 5;
const LISTEN: i32 = 11;

/// The kernel's functions, by number.
mod helper {
    pub(super) const CURRENT_TASK: i32 = 35;
    pub(super) const SET_OPTION: i32 = 49;
    pub(super) const GET_OPTION: i32 = 57;
    pub(super) const STORAGE_OF_SOCKET: i32 = 107;
    pub(super) const READ_KERNEL: i32 = 113;
    pub(super) const READ_KERNEL_TEXT: i32 = 115;
    pub(super) const TCP_SOCKET: i32 = 137;
}

/// What is known of a connection, as it lies at [`FLOW`] on the stack.
pub(super) mod flow {
    pub(in super::super) const LOCAL: i16 = 0;
    pub(in super::super) const REMOTE: i16 = 16;
    pub(in super::super) const LOCAL_PORT: i16 = 32;
    pub(in super::super) const REMOTE_PORT: i16 = 36;
    /// A bit for its code point.
    pub(in super::super) const DSCP: i16 = 40;
    pub(in super::super) const PRIORITY: i16 = 48;
    /// Not zero where the program named its algorithm.
    pub(in super::super) const ASKED: i16 = 52;
    /// Name of the program, then zeros.
    pub(in super::super) const NAME: i16 = 56;
    pub(in super::super) const LEN: i16 = 72;
}
pub(super) const FLOW: i16 = -flow::LEN;
/// The same before it is copied, and eight bytes for whatever is read.
const RAW: i16 = 2 * FLOW;
const SCRATCH: i16 = RAW - 8;

/// Callee-saved registers for the context, the socket, and the kernel's socket structure.
const CONTEXT: u8 = 6;
const SOCKET: u8 = 7;
const INSIDE: u8 = 8;
/// The socket's present limit of its pacing rate.
const PACE: u8 = 9;

/// File descriptors of the maps.
#[derive(Clone, Copy)]
pub(super) struct MapFds {
    pub(super) constants: i32,
    pub(super) names: i32,
}

/// Offsets, in the running kernel's structures, of the fields that are read.
pub(super) struct Socket {
    priority: i16,
    pace: i16,
    tos: i16,
    asked: i16,
    asked_mask: i32,
    leader: i32,
    name: i32,
}

impl Socket {
    pub(super) fn of(types: &Btf) -> Result<Socket, Error> {
        let find = |of: &str, member: &str| {
            let lacks = || Error::Kernel(format!("its {of} has no {member}"));
            let id = types.find(of, Kind::Struct).ok_or_else(lacks)?;
            types.find_member(id, member).map(|m| (m.bits / 8, m.bits % 8)).ok_or_else(lacks)
        };
        let far = |_| Error::Kernel("its sockets are larger than a program can reach".into());
        // `struct sock` begins `inet_sock`, which begins `inet_connection_sock`, which begins `tcp_sock`.
        let near = |of, member| i16::try_from(find(of, member)?.0).map_err(far);
        let asked = find("inet_connection_sock", "icsk_ca_setsockopt")?;
        let task = |member| i32::try_from(find("task_struct", member)?.0).map_err(far);
        Ok(Socket {
            priority: near("sock", "sk_priority")?,
            pace: near("sock", "sk_max_pacing_rate")?,
            tos: near("inet_sock", "tos")?,
            asked: i16::try_from(asked.0).map_err(far)?,
            asked_mask: 1 << asked.1,
            leader: task("group_leader")?,
            name: task("comm")?,
        })
    }

    #[cfg(test)]
    pub(super) const NOWHERE: Socket =
        Socket { priority: 0, pace: 0, tos: 0, asked: 0, asked_mask: 1, leader: 0, name: 0 };
}

/// What is done with a connection, as [`apply`] reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Action {
    pub(super) algorithm: Option<String>,
    pub(super) fallback: Option<String>,
    pub(super) allow_override: bool,
    /// Bytes per second.
    pub(super) cap: Option<u32>,
    pub(super) dscp: Option<u8>,
}

/// MapFds in its bytes, and bits of its flags.
pub(super) mod act {
    pub(in super::super) const ALGORITHM: i16 = 0;
    pub(in super::super) const FALLBACK: i16 = 16;
    pub(in super::super) const CAP: i16 = 32;
    pub(in super::super) const TOS: i16 = 36;
    pub(in super::super) const FLAGS: i16 = 40;
    pub(in super::super) const LEN: usize = 48;
    pub(in super::super) const HAS_ALGORITHM: i32 = 1;
    pub(in super::super) const HAS_FALLBACK: i32 = 2;
    pub(in super::super) const ALLOW_OVERRIDE: i32 = 4;
    pub(in super::super) const HAS_CAP: i32 = 8;
    pub(in super::super) const HAS_TOS: i32 = 16;
}

impl Action {
    pub(super) fn of(o: &Outcome, has: &dyn Fn(&str) -> bool) -> Action {
        let fallback = kernel_name(&o.fallback, has);
        let algorithm = kernel_name(&o.algorithm, has);
        let cap = o.cap.map(base::Rate::bytes_per_sec).filter(|c| *c < NO_CAP);
        Action {
            fallback: fallback.filter(|s| algorithm.as_ref() != Some(s)),
            algorithm,
            allow_override: o.allow_override,
            cap: cap.and_then(|c| u32::try_from(c).ok()),
            dscp: o.dscp,
        }
    }

    pub(super) fn bytes(&self) -> [u8; act::LEN] {
        let mut out = [0; act::LEN];
        let mut flags = 0;
        let mut put = |at: i16, bytes: &[u8], flag: i32| {
            out.iter_mut().skip(at as usize).zip(bytes).for_each(|(to, from)| *to = *from);
            flags |= flag;
        };
        let name = |n: &Option<String>| n.clone().unwrap_or_default().into_bytes();
        if self.algorithm.is_some() {
            put(act::ALGORITHM, &name(&self.algorithm), act::HAS_ALGORITHM);
        }
        if self.fallback.is_some() {
            put(act::FALLBACK, &name(&self.fallback), act::HAS_FALLBACK);
        }
        if self.allow_override {
            put(0, &[], act::ALLOW_OVERRIDE);
        }
        if let Some(cap) = self.cap {
            put(act::CAP, &cap.to_ne_bytes(), act::HAS_CAP);
        }
        if let Some(dscp) = self.dscp {
            put(act::TOS, &u32::from(dscp << 2).to_ne_bytes(), act::HAS_TOS);
        }
        out[act::FLAGS as usize..][..4].copy_from_slice(&flags.to_ne_bytes());
        out
    }
}

/// Gathers what is known of a connection at [`FLOW`]; goes on behind itself with it, and ends the program at other events.
pub(super) fn gather(asm: &mut Asm, socket: &Socket, places: MapFds) {
    let [out, listens, accepted, known, copy] = std::array::from_fn(|_| asm.label());
    asm.reg(Op::Move, CONTEXT, 1);
    asm.load(Size::Word, 2, CONTEXT, context::OP);
    asm.load(Size::Double, SOCKET, CONTEXT, context::SOCKET);
    asm.jump_if(SOCKET, Condition::Equal, 0, out);
    asm.jump_if(2, Condition::Equal, LISTEN, listens);
    asm.jump_if(2, Condition::Equal, ACCEPTED, accepted);
    asm.jump_if(2, Condition::Differ, CONNECT, out);
    name_of_program(asm, socket, RAW + flow::NAME);
    asm.jump(known);

    // Who listens is known now, who accepts will not be.
    asm.place(listens);
    name_of_program(asm, socket, RAW + flow::NAME);
    asm.wide(1, PSEUDO_MAP, places.names, 0);
    asm.reg(Op::Move, 2, SOCKET);
    asm.stack(3, RAW + flow::NAME);
    asm.number(4, 1);
    asm.helper(helper::STORAGE_OF_SOCKET);
    asm.place(out);
    asm.give(1);

    asm.place(accepted);
    asm.clear(RAW + flow::NAME);
    asm.clear(RAW + flow::NAME + 8);
    asm.wide(1, PSEUDO_MAP, places.names, 0);
    asm.reg(Op::Move, 2, SOCKET);
    asm.number(3, 0);
    asm.number(4, 0);
    asm.helper(helper::STORAGE_OF_SOCKET);
    asm.jump_if(0, Condition::Equal, 0, known);
    for half in [0, 8] {
        asm.load(Size::Double, 2, 0, half);
        asm.store(Size::Double, FRAME, RAW + flow::NAME + half, 2);
    }

    asm.place(known);
    asm.reg(Op::Move, 1, SOCKET);
    asm.helper(helper::TCP_SOCKET);
    asm.jump_if(0, Condition::Equal, 0, out);
    asm.reg(Op::Move, INSIDE, 0);
    of_socket(asm, socket);
    addresses(asm, socket, copy);
    asm.place(copy);
    asm.imm(Op::Right, 2, 2);
    asm.imm(Op::And, 2, 63);
    asm.number(3, 1);
    asm.reg(Op::Left, 3, 2);
    asm.store(Size::Double, FRAME, RAW + flow::DSCP, 3);
    asm.stack(1, FLOW);
    asm.number(2, flow::LEN as u64);
    asm.stack(3, RAW);
    asm.helper(helper::READ_KERNEL);
}

/// Name of the process that is running, for at most its first 15 bytes.
fn name_of_program(asm: &mut Asm, socket: &Socket, at: i16) {
    asm.clear(at);
    asm.clear(at + 8);
    asm.helper(helper::CURRENT_TASK);
    // Threads may have names of their own.
    asm.reg(Op::Move, 3, 0);
    asm.imm(Op::Add, 3, socket.leader);
    asm.stack(1, SCRATCH);
    asm.number(2, 8);
    asm.helper(helper::READ_KERNEL);
    asm.load(Size::Double, 3, FRAME, SCRATCH);
    asm.imm(Op::Add, 3, socket.name);
    asm.stack(1, at);
    asm.number(2, super::names::ROOM as u64);
    asm.helper(helper::READ_KERNEL_TEXT);
}

/// Priority, ports, whether the program named an algorithm, and what it may send.
fn of_socket(asm: &mut Asm, socket: &Socket) {
    asm.load(Size::Word, 2, INSIDE, socket.priority);
    asm.store(Size::Word, FRAME, RAW + flow::PRIORITY, 2);
    asm.load(Size::Double, PACE, INSIDE, socket.pace);
    asm.load(Size::Byte, 2, INSIDE, socket.asked);
    asm.imm(Op::And, 2, socket.asked_mask);
    asm.store(Size::Word, FRAME, RAW + flow::ASKED, 2);
    asm.load(Size::Word, 2, CONTEXT, context::LOCAL_PORT);
    asm.store(Size::Word, FRAME, RAW + flow::LOCAL_PORT, 2);
    asm.load(Size::Word, 2, CONTEXT, context::REMOTE_PORT);
    asm.network_order(2);
    asm.store(Size::Word, FRAME, RAW + flow::REMOTE_PORT, 2);
}

/// Both addresses, and in register 2 the byte that has the code point; goes on at `next`.
fn addresses(asm: &mut Asm, socket: &Socket, next: Label) {
    let [six, mapped] = std::array::from_fn(|_| asm.label());
    asm.load(Size::Word, 2, CONTEXT, context::FAMILY);
    asm.jump_if(2, Condition::Equal, libc::AF_INET6, six);
    for (from, to) in [(context::LOCAL_IP4, flow::LOCAL), (context::REMOTE_IP4, flow::REMOTE)] {
        asm.load(Size::Word, 2, CONTEXT, from);
        asm.network_order(2);
        asm.number(3, 0xffff << 32);
        asm.reg(Op::Or, 2, 3);
        asm.clear(RAW + to);
        asm.store(Size::Double, FRAME, RAW + to + 8, 2);
    }
    asm.jump(mapped);

    asm.place(six);
    for (from, to) in [(context::LOCAL_IP6, flow::LOCAL), (context::REMOTE_IP6, flow::REMOTE)] {
        for half in [0, 8] {
            asm.load(Size::Word, 2, CONTEXT, from + half);
            asm.network_order(2);
            asm.imm(Op::Left, 2, 32);
            asm.load(Size::Word, 3, CONTEXT, from + half + 4);
            asm.network_order(3);
            asm.reg(Op::Or, 2, 3);
            asm.store(Size::Double, FRAME, RAW + to + half, 2);
        }
    }
    // Where IPv4 carries it, its packets have IPv4's byte.
    let class = asm.label();
    asm.load(Size::Double, 3, FRAME, RAW + flow::REMOTE);
    asm.jump_if(3, Condition::Differ, 0, class);
    asm.imm(Op::Right, 2, 32);
    asm.jump_if(2, Condition::Equal, 0xffff, mapped);
    asm.place(class);
    asm.clear(SCRATCH);
    asm.reg(Op::Move, 1, CONTEXT);
    asm.number(2, libc::SOL_IPV6 as u64);
    asm.number(3, libc::IPV6_TCLASS as u64);
    asm.stack(4, SCRATCH);
    asm.number(5, 4);
    asm.helper(helper::GET_OPTION);
    asm.load(Size::Word, 2, FRAME, SCRATCH);
    asm.jump(next);

    asm.place(mapped);
    asm.load(Size::Byte, 2, INSIDE, socket.tos);
}

/// The comparisons of rows, and the call of `apply` where all fit. Whether what follows can be reached.
pub(super) fn row(asm: &mut Asm, row: &PreparedRow, apply: Label, places: MapFds) -> bool {
    let next = asm.label();
    let before = asm.branches;
    let w = &row.when;
    for (spans, at) in [(&w.source, flow::LOCAL), (&w.destination, flow::REMOTE)] {
        if let Some(spans) = spans {
            any(asm, next, &split_ranges(spans), |asm, b, fits, no| address(asm, b, FLOW + at, fits, no));
        }
    }
    for (spans, at) in [
        (&w.source_port, flow::LOCAL_PORT),
        (&w.destination_port, flow::REMOTE_PORT),
        (&w.priority, flow::PRIORITY),
    ] {
        if let Some(spans) = spans {
            any(asm, next, spans, |asm, (first, last), fits, _| {
                within(asm, Size::Word, FLOW + at, *first as u64, *last as u64, fits);
            });
        }
    }
    if let Some(ways) = &row.names {
        any(asm, next, ways, name);
    }
    let conditional = asm.branches > before;
    let mut left = u64::MAX;
    for (points, number) in &row.acts {
        if left == 0 {
            break;
        }
        let other = asm.label();
        if left != *points {
            asm.load(Size::Double, 2, FRAME, FLOW + flow::DSCP);
            asm.number(3, *points);
            asm.reg(Op::And, 2, 3);
            asm.jump_if(2, Condition::Equal, 0, other);
        }
        left &= !points;
        asm.reg(Op::Move, 1, CONTEXT);
        // A program has no more than a million instructions, and less than that of these.
        asm.wide(2, PSEUDO_MAP_VALUE, places.constants, (number * act::LEN) as i32);
        asm.load(Size::Word, 3, FRAME, FLOW + flow::ASKED);
        asm.reg(Op::Move, 4, PACE);
        asm.call(apply);
        asm.exit();
        asm.place(other);
    }
    asm.place(next);
    left != 0 || conditional
}

/// Goes on if one of the values fits, else at `next`. `test` jumps to its first label if it does, or else goes on or jumps
/// to the second.
fn any<T>(asm: &mut Asm, next: Label, values: &[T], test: impl Fn(&mut Asm, &T, Label, Label)) {
    let fits = asm.label();
    for value in values {
        let no = asm.label();
        test(asm, value, fits, no);
        asm.place(no);
    }
    asm.jump(next);
    asm.place(fits);
}

/// Addresses whose upper and lower halves are within these.
type Halves = ((u64, u64), (u64, u64));

/// The same addresses, so that the halves can be compared apart.
fn split_ranges(spans: &[Interval]) -> Vec<Halves> {
    let mut out = Vec::new();
    for (first, last) in spans {
        let halves = |n: &u128| ((n >> 64) as u64, *n as u64);
        let ((mut upper, low), (mut end, high)) = (halves(first), halves(last));
        if upper == end {
            out.push(((upper, upper), (low, high)));
            continue;
        }
        if low > 0 {
            out.push(((upper, upper), (low, u64::MAX)));
            upper += 1;
        }
        if high < u64::MAX {
            out.push(((end, end), (0, high)));
            end -= 1;
        }
        if upper <= end {
            out.push(((upper, end), (0, u64::MAX)));
        }
    }
    out
}

fn address(asm: &mut Asm, (upper, lower): &Halves, at: i16, fits: Label, no: Label) {
    let all = (0, u64::MAX);
    if *lower == all {
        within(asm, Size::Double, at, upper.0, upper.1, fits);
        return;
    }
    asm.load(Size::Double, 2, FRAME, at);
    asm.number(3, upper.0);
    asm.jump_if_reg(2, Condition::Differ, 3, no);
    within(asm, Size::Double, at + 8, lower.0, lower.1, fits);
}

/// Jumps if the number on the stack is within these.
fn within(asm: &mut Asm, size: Size, at: i16, first: u64, last: u64, fits: Label) {
    asm.load(size, 2, FRAME, at);
    if first > 0 {
        asm.number(3, first);
        asm.reg(Op::Sub, 2, 3);
    }
    asm.number(3, last - first);
    asm.jump_if_reg(2, Condition::AtMost, 3, fits);
}

/// Jumps if the name fits this way.
fn name(asm: &mut Asm, way: &NameMatch, fits: Label, no: Label) {
    let at = FLOW + flow::NAME;
    for half in [0, 8] {
        let part = |bytes: &[u8; 16]| u64::from_ne_bytes(std::array::from_fn(|i| bytes[half + i]));
        let (mask, value) = (part(&way.mask), part(&way.value));
        if mask == 0 {
            continue;
        }
        asm.load(Size::Double, 2, FRAME, at + half as i16);
        if mask != u64::MAX {
            asm.number(3, mask);
            asm.reg(Op::And, 2, 3);
        }
        asm.number(3, value);
        asm.jump_if_reg(2, Condition::Differ, 3, no);
    }
    for byte in &way.some {
        asm.load(Size::Byte, 2, FRAME, at + *byte as i16);
        asm.jump_if(2, Condition::Equal, 0, no);
    }
    asm.jump(fits);
}

/// The function that does it: of context, act, whether the program named its algorithm, and what it may send already.
pub(super) fn apply(asm: &mut Asm) {
    const ACT: u8 = 7;
    const ASKED: u8 = 8;
    let [cap, tos, six, done, algorithm] = std::array::from_fn(|_| asm.label());
    asm.reg(Op::Move, CONTEXT, 1);
    asm.reg(Op::Move, ACT, 2);
    asm.reg(Op::Move, ASKED, 3);
    asm.reg(Op::Move, PACE, 4);
    let flag = |asm: &mut Asm, bit: i32, or: Label| {
        asm.load(Size::Word, 2, ACT, act::FLAGS);
        asm.imm(Op::And, 2, bit);
        asm.jump_if(2, Condition::Equal, 0, or);
    };
    let option = |asm: &mut Asm, level: i32, name: i32, at: i16, len: u64| {
        asm.reg(Op::Move, 1, CONTEXT);
        asm.number(2, level as u64);
        asm.number(3, name as u64);
        asm.reg(Op::Move, 4, ACT);
        asm.imm(Op::Add, 4, at.into());
        asm.number(5, len);
        asm.helper(helper::SET_OPTION);
    };
    flag(asm, act::ALLOW_OVERRIDE, algorithm);
    asm.jump_if(ASKED, Condition::Differ, 0, cap);
    asm.place(algorithm);
    for (bit, at) in [(act::HAS_ALGORITHM, act::ALGORITHM), (act::HAS_FALLBACK, act::FALLBACK)] {
        let next = asm.label();
        flag(asm, bit, next);
        option(asm, libc::SOL_TCP, libc::TCP_CONGESTION, at, 16);
        asm.jump_if(0, Condition::Equal, 0, cap);
        asm.place(next);
    }

    asm.place(cap);
    flag(asm, act::HAS_CAP, tos);
    asm.load(Size::Word, 2, ACT, act::CAP);
    // What the program itself wants to send at most may be less.
    asm.jump_if_reg(PACE, Condition::AtMost, 2, tos);
    option(asm, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, act::CAP, 4);

    asm.place(tos);
    flag(asm, act::HAS_TOS, done);
    asm.load(Size::Word, 2, CONTEXT, context::FAMILY);
    asm.jump_if(2, Condition::Equal, libc::AF_INET6, six);
    option(asm, libc::SOL_IP, libc::IP_TOS, act::TOS, 4);
    asm.jump(done);
    asm.place(six);
    option(asm, libc::SOL_IPV6, libc::IPV6_TCLASS, act::TOS, 4);
    asm.place(done);
    asm.give(1);
}
