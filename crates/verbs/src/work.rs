//! Work requests and completions: what applications post and poll.

use crate::error::Error;
use crate::memory::CopyError;
use crate::region::{Access, Regions, WindowRange};
use crate::slab::{MrId, MwId, PdId, QpId};
use base::Prefetch;

/// A scatter/gather element: a range of a local region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Local key of the region.
    pub lkey: u32,
    /// First byte, counted from the start of the region.
    pub offset: u64,
    /// Length in bytes; may be zero.
    pub len: u64,
}

/// A list of scatter/gather elements. A single one, the usual case, needs no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Sges {
    /// No bytes at all.
    #[default]
    None,
    /// One range.
    One(Sge),
    /// Several ranges, one after the other.
    Many(Box<[Sge]>),
}
impl Sges {
    /// The elements in order.
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            Sges::None => &[],
            Sges::One(s) => core::slice::from_ref(s),
            Sges::Many(v) => v,
        }
    }
}
impl From<Sge> for Sges {
    fn from(s: Sge) -> Sges {
        Sges::One(s)
    }
}
impl From<Vec<Sge>> for Sges {
    fn from(v: Vec<Sge>) -> Sges {
        match v[..] {
            [] => Sges::None,
            [s] => Sges::One(s),
            _ => Sges::Many(v.into_boxed_slice()),
        }
    }
}

/// Bytes that travel with a work request: of up to 16 without an allocation.
pub type InlineBytes = smallvec::SmallVec<[u8; 16]>;

/// The bytes of a send work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// Ranges of registered memory (for a read: where the answer goes).
    Sges(Sges),
    /// A copy that travels with the work request. At most [`MAX_INLINE`](crate::MAX_INLINE) bytes.
    Inline(InlineBytes),
}
impl From<Sge> for Data {
    fn from(s: Sge) -> Data {
        Data::Sges(Sges::One(s))
    }
}
impl From<Vec<Sge>> for Data {
    fn from(v: Vec<Sge>) -> Data {
        Data::Sges(Sges::from(v))
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Writes to the peer's region `rkey`, from byte `offset` on. The peer's application sees no completion.
    Write {
        /// The peer's remote key.
        rkey: u32,
        /// First byte in the peer's region.
        offset: u64,
    },
    /// As `Write`, then consumes a receive of the peer and hands it `imm`.
    WriteImm {
        /// The peer's remote key.
        rkey: u32,
        /// First byte in the peer's region.
        offset: u64,
        /// 32 bits for the peer's application.
        imm: u32,
    },
    /// Fills a receive of the peer.
    Send,
    /// As `Send`, with 32 bits for the peer's application.
    SendImm {
        /// 32 bits for the peer's application.
        imm: u32,
    },
    /// Reads from the peer's region `rkey`, from byte `offset` on.
    Read {
        /// The peer's remote key.
        rkey: u32,
        /// First byte in the peer's region.
        offset: u64,
    },
    /// As `Send`, then makes a key of the receiver void: one of a window that it bound for this queue pair. Not on unreliable
    /// queue pairs.
    SendInvalidate {
        /// The peer's remote key.
        rkey: u32,
    },
    /// Changes eight bytes of the peer's region at once and gives what they were before: the bytes of the work request
    /// are where that goes, eight of them. Not on unreliable queue pairs.
    Atomic {
        /// The peer's remote key.
        rkey: u32,
        /// First byte in the peer's region; a multiple of 8.
        offset: u64,
        /// What to do with them.
        op: AtomicOp,
    },
    /// Makes a key of our own void, that of a window bound for this queue pair, when its turn comes. Nothing is sent. Not on
    /// unreliable queue pairs.
    LocalInvalidate {
        /// Our own remote key.
        rkey: u32,
    },
    /// Binds a window when its turn comes. Nothing is sent. Reliable queue pairs only.
    Bind(Binding),
}

/// What a window is to show from now on. Its bytes are named as those of the region are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The window.
    pub mw: MwId,
    /// Its new key: of the window's key all but the lowest eight bits.
    pub rkey: u32,
    /// What it shows; of no bytes: nothing, and the key is void.
    pub range: WindowRange,
    /// Whether it shows that to the peer of this queue pair only, or to those of all of its protection domain.
    pub exclusive: bool,
}

/// What an atomic operation does with the 64 bits at its target, in the byte order of that machine (RFC 7306, section
/// 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds.
    FetchAdd {
        /// What is added.
        add: u64,
        /// A bit for the highest bit of each field: carries out of it are dropped. 0: one field of 64 bits.
        mask: u64,
    },
    /// Changes the bits of `swap_mask` to those of `swap`, if the bits of `compare_mask` are those of `compare`.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What is to stand there.
        swap: u64,
        /// The bits that are changed.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// As what it completes.
    pub const fn opcode(self) -> Opcode {
        match self {
            AtomicOp::FetchAdd { .. } => Opcode::FetchAdd,
            AtomicOp::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }
    /// The value that follows `old`.
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            // Fields are added without their highest bits, which then take part without a carry.
            AtomicOp::FetchAdd { add, mask } => {
                ((old & !mask).wrapping_add(add & !mask)) ^ ((old ^ add) & mask)
            }
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (old ^ compare) & compare_mask == 0 {
                    (old & !swap_mask) | (swap & swap_mask)
                } else {
                    old
                }
            }
        }
    }
}

/// A work request for the send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// The application's own number; comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub data: Data,
    /// Whether success makes a completion. Failure always does.
    pub signaled: bool,
    /// Whether the peer's completion is marked as solicited.
    pub solicited: bool,
    /// Whether to wait until all earlier reads have completed.
    pub fence: bool,
}
impl SendWr {
    /// A signaled work request without further marks.
    pub fn new(wr_id: u64, op: SendOp, data: impl Into<Data>) -> SendWr {
        SendWr { wr_id, op, data: data.into(), signaled: true, solicited: false, fence: false }
    }
}

/// A work request for a receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// The application's own number; comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: Sges,
}

/// How a work request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done.
    Success,
    /// The message was longer than the receive.
    LocalLength,
    /// Local memory failed or may not be used.
    LocalProtection,
    /// The peer refused the access to its memory.
    RemoteAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer could not carry the request out: the memory of its receive failed.
    RemoteOperation,
    /// The peer or the path to it is gone.
    TransportFailed,
    /// A window could not be bound, or a key not be made void.
    WindowBind,
    /// The peer has posted no receive for longer than was to be waited.
    ReceiverNotReady,
    /// Given up because the queue pair went to the error state.
    FlushError,
    /// Unreliable queue pairs only: sent, but this many bytes are known to be lost. A message without
    /// payload that was lost reports 0.
    LossReported {
        /// Bytes of the message that were lost.
        lost: u64,
    },
}

/// The operation that completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode {
    /// A write, with immediate data or without.
    Write,
    /// A send, with immediate data or without.
    Send,
    /// A read.
    Read,
    /// A receive, filled by a send.
    Recv,
    /// A receive, consumed by a write with immediate data.
    RecvWriteImm,
    /// A comparison and exchange.
    CompareSwap,
    /// An atomic addition.
    FetchAdd,
    /// A key made void.
    LocalInvalidate,
    /// A window bound.
    Bind,
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// Number given when posting.
    pub wr_id: u64,
    /// Where it was posted, or for a shared receive queue, where the message came in.
    pub qp: QpId,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Length of the message in bytes. For a write with immediate data on an unreliable queue pair: the bytes of
    /// it that arrived.
    pub byte_len: u64,
    /// Immediate data of the peer.
    pub imm: Option<u32>,
    /// Whether the peer asked for attention.
    pub solicited: bool,
    /// A receive only: the key that the peer made void with the message.
    pub invalidated: Option<u32>,
}

/// A range of a region, by its handle: one that was deregistered since is not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrRange {
    /// The region.
    pub mr: MrId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A range of a region that a work request holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSge {
    mr: MrId,
    offset: u64,
    len: u64,
}

/// The bytes of a posted work request: checked, and held against deregistration.
#[derive(Debug)]
pub(crate) enum Local {
    None,
    One(LocalSge),
    Many(Box<[LocalSge]>),
    Inline(InlineBytes),
}

impl Local {
    /// Checks `sges` and holds their regions; returns the bytes and their number.
    pub(crate) fn resolve(
        sges: &Sges,
        regions: &mut Regions,
        pd: PdId,
        need: Access,
        max_sge: usize,
    ) -> Result<(Local, u64), Error> {
        let list = sges.as_slice();
        if list.len() > max_sge {
            return Err(Error::Invalid("more scatter/gather elements than max_sge"));
        }
        let one = |s: &Sge| {
            let mr = regions.local(s.lkey, pd, need, s.offset, s.len)?;
            Ok(LocalSge { mr, offset: s.offset, len: s.len })
        };
        let local = match list {
            [] => Local::None,
            [s] => Local::One(one(s)?),
            _ => Local::Many(list.iter().map(one).collect::<Result<_, _>>()?),
        };
        let mut total = 0u64;
        for s in local.sges() {
            total = total.checked_add(s.len).ok_or(Error::OutOfBounds)?;
        }
        for s in local.sges() {
            regions.hold(s.mr);
        }
        Ok((local, total))
    }

    /// The region, and where in it, that all of the bytes lie in, where it is one.
    pub(crate) fn only(&self) -> Option<(MrId, u64)> {
        match self {
            Local::One(s) => Some((s.mr, s.offset)),
            _ => None,
        }
    }

    fn sges(&self) -> &[LocalSge] {
        match self {
            Local::None | Local::Inline(_) => &[],
            Local::One(s) => core::slice::from_ref(s),
            Local::Many(v) => v,
        }
    }

    /// Gives the regions back.
    #[inline(always)]
    pub(crate) fn release(&self, regions: &mut Regions) {
        for s in self.sges() {
            regions.release(s.mr);
        }
    }

    /// The regions of it, once for each range.
    pub(crate) fn regions(&self) -> impl Iterator<Item = MrId> {
        self.sges().iter().map(|s| s.mr)
    }

    /// Copies `out.len()` bytes from byte `at` of the message on.
    pub(crate) fn read(&self, regions: &Regions, mut at: u64, out: &mut [u8]) -> Result<(), CopyError> {
        if let Local::Inline(b) = self {
            let end = at.checked_add(out.len() as u64).ok_or(CopyError::Bounds)?;
            let src = b.get(at as usize..end as usize).ok_or(CopyError::Bounds)?;
            out.copy_from_slice(src);
            return Ok(());
        }
        let mut done = 0;
        for s in self.sges() {
            if at >= s.len {
                at -= s.len;
                continue;
            }
            let n = (s.len - at).min((out.len() - done) as u64) as usize;
            regions.read(s.mr, s.offset + at, &mut out[done..done + n])?;
            (done, at) = (done + n, 0);
            if done == out.len() {
                break;
            }
        }
        if done == out.len() { Ok(()) } else { Err(CopyError::Bounds) }
    }

    /// Appends `len` bytes from byte `at` of the message on to `out`.
    #[inline(always)]
    pub(crate) fn append(
        &self,
        regions: &Regions,
        at: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CopyError> {
        if let Local::Inline(b) = self {
            let from = usize::try_from(at).ok().and_then(|at| b.get(at..)?.get(..len));
            out.extend_from_slice(from.ok_or(CopyError::Bounds)?);
            return Ok(());
        }
        self.append_list(regions, at, len, out)
    }

    /// The same of registered memory.
    #[inline(never)]
    fn append_list(
        &self,
        regions: &Regions,
        at: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CopyError> {
        let before = out.len();
        out.resize(before + len, 0);
        self.read(regions, at, &mut out[before..])
    }

    /// Where the bytes from byte `at` of the message on lie, as far as they lie together.
    pub(crate) fn prefetch_hint(&self, regions: &Regions, mut at: u64) -> Prefetch {
        for s in self.sges() {
            if at < s.len {
                return regions.prefetch_hint(s.mr, s.offset + at, s.len - at);
            }
            at -= s.len;
        }
        Prefetch::default()
    }

    /// Names `len` bytes from byte `at` of the message on, those of registered memory. False when there are fewer.
    pub(crate) fn places(&self, mut at: u64, mut len: u64, out: &mut Vec<MrRange>) -> bool {
        for s in self.sges() {
            if len == 0 {
                break;
            }
            if at >= s.len {
                at -= s.len;
                continue;
            }
            let n = (s.len - at).min(len);
            out.push(MrRange { mr: s.mr, offset: s.offset + at, len: n });
            (len, at) = (len - n, 0);
        }
        len == 0
    }

    /// Copies `data` to byte `at` of the message and on.
    #[inline]
    pub(crate) fn write(&self, regions: &mut Regions, at: u64, data: &[u8]) -> Result<(), CopyError> {
        match self {
            Local::One(s) if at.saturating_add(data.len() as u64) <= s.len => {
                regions.write(s.mr, s.offset + at, data)
            }
            _ => self.write_list(regions, at, data),
        }
    }

    /// The same over several ranges.
    #[inline(never)]
    fn write_list(&self, regions: &mut Regions, mut at: u64, data: &[u8]) -> Result<(), CopyError> {
        let mut done = 0;
        for s in self.sges() {
            if at >= s.len {
                at -= s.len;
                continue;
            }
            let n = (s.len - at).min((data.len() - done) as u64) as usize;
            regions.write(s.mr, s.offset + at, &data[done..done + n])?;
            (done, at) = (done + n, 0);
            if done == data.len() {
                break;
            }
        }
        if done == data.len() { Ok(()) } else { Err(CopyError::Bounds) }
    }
}
