//! System calls bpf(2) and mount(2), which have no safe wrapper: the only `unsafe` code of this crate.
//!
//! `union bpf_attr` is written as bytes: each command's fields have the offsets of include/uapi/linux/bpf.h, unset ones are
//! zero, and pointers are to memory that the caller lends until the call returns.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2).
#[derive(Clone, Copy)]
#[repr(u32)]
enum Command {
    MapCreate = 0,
    MapUpdate = 2,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    BtfLoad = 18,
    MapTake = 21,
    MapFreeze = 22,
    LinkCreate = 28,
    LinkUpdate = 29,
}

const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_STRUCT_OPS: u32 = 27;
const ATTACH_CGROUP_SOCK_OPS: u32 = 3;
const ATTACH_STRUCT_OPS: u32 = 44;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_QUEUE: u32 = 22;
const MAP_TYPE_SK_STORAGE: u32 = 24;
const MAP_TYPE_STRUCT_OPS: u32 = 26;
/// Memory is taken when it is needed; a must for the storage of sockets.
const MAP_NO_PREALLOC: u32 = 1;
/// A connection has what the listening socket has that it comes of.
const MAP_INHERITED: u32 = 1 << 9;
/// What a program may only read.
const MAP_READ_ONLY: u32 = 1 << 7;
/// Registered by a link instead of by the update.
const MAP_BY_LINK: u32 = 1 << 13;

/// One instruction, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Insn {
    pub(crate) code: u8,
    /// Destination in the low half, source in the high one.
    pub(crate) regs: u8,
    pub(crate) off: i16,
    pub(crate) imm: i32,
}

/// The argument of bpf(2): enough for all commands used here.
#[repr(C, align(8))]
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Self {
        Attr([0; 128])
    }
    fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }
    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        // A descriptor is never negative.
        self.word(at, fd.as_raw_fd() as u32)
    }
    fn pointer<T>(mut self, at: usize, to: *const T) -> Self {
        self.0[at..at + 8].copy_from_slice(&(to as u64).to_ne_bytes());
        self
    }
    /// A name for people, cut to the 15 bytes that the kernel keeps.
    fn name(mut self, at: usize, name: &str) -> Self {
        let fits = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'.';
        for (to, b) in self.0[at..at + 15].iter_mut().zip(name.bytes().filter(fits)) {
            *to = b;
        }
        self
    }

    /// # Safety
    /// The pointers inside are to memory of the sizes that the command expects, which lives until this returns.
    unsafe fn call(mut self, command: Command) -> io::Result<i64> {
        // SAFETY: the attribute is ours and as long as said; what it points to is the caller's promise.
        let got = unsafe { libc::syscall(libc::SYS_bpf, command as u32, self.0.as_mut_ptr(), self.0.len()) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got) }
    }
    /// # Safety
    /// As [`call`](Attr::call), and the command gives a descriptor.
    unsafe fn open(self, command: Command) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise.
        let fd = unsafe { self.call(command) }? as i32;
        // SAFETY: the kernel has just given it to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// The attribute that makes a map of this kind with `entries` of `value` bytes.
fn map(kind: u32, key: u32, value: usize, entries: u32, flags: u32) -> Attr {
    // No value here has more than a few kilobytes.
    Attr::new().word(0, kind).word(4, key).word(8, value as u32).word(12, entries).word(16, flags)
}

fn update(map: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let key = 0u32;
    let attr = Attr::new().fd(0, map).pointer(8, &raw const key).pointer(16, value.as_ptr());
    // SAFETY: keys of these maps have four bytes; callers made the map for values of this length.
    unsafe { attr.call(Command::MapUpdate) }.map(drop)
}

/// A map of one value that programs only read, with this value. It has at least one byte.
pub(crate) fn constants(value: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: there are no pointers inside.
    let map = unsafe { map(MAP_TYPE_ARRAY, 4, value.len(), 1, MAP_READ_ONLY).open(Command::MapCreate) }?;
    update(borrow(&map), value)?;
    // SAFETY: there are no pointers inside.
    unsafe { Attr::new().fd(0, borrow(&map)).call(Command::MapFreeze) }?;
    Ok(map)
}

/// The kernel wants to know types of some maps, for people who list maps. It is told: 1, a number, and 2, an array of `words`
/// of them.
fn types(words: u32) -> io::Result<OwnedFd> {
    const KIND_INT: u32 = 1 << 24;
    const KIND_ARRAY: u32 = 3 << 24;
    let header = [0x0001_eb9f, 24, 0, 40, 40, 5];
    // Its name, kind, size in bytes; signed, in bits.
    let number = [1, KIND_INT, 4, 1 << 24 | 32];
    // No name, kind, no size; type of elements, of indices, how many.
    let array = [0, KIND_ARRAY, 0, 1, 1, words];
    let mut all: Vec<u8> = header.into_iter().chain(number).chain(array).flat_map(u32::to_ne_bytes).collect();
    all.extend_from_slice(b"\0int\0");
    let attr = Attr::new().pointer(0, all.as_ptr()).word(16, all.len() as u32);
    // SAFETY: the types live until the call returns and are as long as said.
    unsafe { attr.open(Command::BtfLoad) }
}

/// Memory of `value` bytes, a multiple of 4, that belongs to a socket and goes with it; where it is inherited, connections
/// have what the socket has that listened for them.
pub(crate) fn storage(value: u32, name: &str, inherited: bool) -> io::Result<OwnedFd> {
    let types = types(value / 4)?;
    let flags = MAP_NO_PREALLOC | if inherited { MAP_INHERITED } else { 0 };
    let attr = map(MAP_TYPE_SK_STORAGE, 4, value as usize, 0, flags);
    let attr = attr.name(28, name).fd(48, borrow(&types)).word(52, 1).word(56, 2);
    // SAFETY: there are no pointers inside.
    unsafe { attr.open(Command::MapCreate) }
}

/// A first-in, first-out queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) map: OwnedFd,
    value: usize,
}

impl Queue {
    pub(crate) fn new(value: u32, entries: u32, name: &str) -> io::Result<Queue> {
        let value = value as usize;
        // SAFETY: there are no pointers inside.
        let map =
            unsafe { map(MAP_TYPE_QUEUE, 0, value, entries, 0).name(28, name).open(Command::MapCreate) }?;
        Ok(Queue { map, value })
    }

    /// The oldest value.
    pub(crate) fn take(&self) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value];
        let attr = Attr::new().fd(0, borrow(&self.map)).pointer(16, value.as_mut_ptr());
        // SAFETY: the map was made for values of this length; queues have no keys.
        match unsafe { attr.call(Command::MapTake) } {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// A table of functions, of the kernel's type `of`, which takes effect with its link.
pub(crate) fn table(value: &[u8], of: u32, name: &str) -> io::Result<OwnedFd> {
    // Ignored, but there must be some.
    let types = types(1)?;
    let attr = map(MAP_TYPE_STRUCT_OPS, 4, value.len(), 1, MAP_BY_LINK).name(28, name).fd(48, borrow(&types));
    // SAFETY: there are no pointers inside.
    let map = unsafe { attr.word(60, of).open(Command::MapCreate) }?;
    update(borrow(&map), value)?;
    Ok(map)
}

/// Registers the table until the link and all its pins are gone.
pub(crate) fn register(table: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: there are no pointers inside.
    unsafe { Attr::new().fd(0, table).word(8, ATTACH_STRUCT_OPS).open(Command::LinkCreate) }
}

/// Calls the program for sockets of a group.
pub(crate) fn hook_group(program: BorrowedFd<'_>, group: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = Attr::new().fd(0, program).fd(4, group).word(8, ATTACH_CGROUP_SOCK_OPS);
    // SAFETY: there are no pointers inside.
    unsafe { attr.open(Command::LinkCreate) }
}

/// Has a link call another program from now on: every event is seen by the one or the other.
pub(crate) fn exchange(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: there are no pointers inside.
    unsafe { Attr::new().fd(0, link).fd(4, program).call(Command::LinkUpdate) }.map(drop)
}

/// What has this name in a BPF file system.
pub(crate) fn pinned(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a zero byte.
    unsafe { Attr::new().pointer(0, path.as_ptr()).open(Command::ObjGet) }
}

/// Gives an object a name in a BPF file system, which keeps it.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a zero byte.
    unsafe { Attr::new().pointer(0, path.as_ptr()).fd(8, object).call(Command::ObjPin) }.map(drop)
}

/// What a program is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Member `member` of the kernel's structure `of`.
    Member { of: u32, member: u32 },
    /// Events of sockets of a group.
    Sockets,
}

/// Loads a program. With a log, the verifier writes there what it did.
pub(crate) fn load(
    code: &[Insn],
    name: &str,
    purpose: Purpose,
    licence: &CStr,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let (kind, of, member) = match purpose {
        Purpose::Member { of, member } => (PROG_TYPE_STRUCT_OPS, of, member),
        Purpose::Sockets => (PROG_TYPE_SOCK_OPS, 0, ATTACH_CGROUP_SOCK_OPS),
    };
    let mut attr = Attr::new()
        .word(0, kind)
        .word(4, code.len() as u32)
        .pointer(8, code.as_ptr())
        .pointer(16, licence.as_ptr())
        .name(48, name)
        .word(68, member)
        .word(108, of);
    if !log.is_empty() {
        attr = attr.word(24, 1).word(28, log.len() as u32).pointer(32, log.as_mut_ptr());
    }
    // SAFETY: instructions, licence and log live until the call returns and are as long as said.
    unsafe { attr.open(Command::ProgLoad) }
}

/// Mounts a BPF file system.
pub(crate) fn mount_bpf(at: &CStr) -> io::Result<()> {
    let kind = c"bpf".as_ptr();
    // SAFETY: the texts end with zero bytes and live until the call returns; there is no data.
    let got = unsafe { libc::mount(kind, at.as_ptr(), kind, 0, std::ptr::null()) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn borrow(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}
