//! Memory regions and windows, and the tables that find them by key.

use crate::error::Error;
use crate::memory::{CopyError, Memory};
use crate::slab::{MrId, MwId, PdId, QpId, Slab};
use crate::tx::StridedBuffer;
use crate::work::{AtomicOp, Binding};
use base::Prefetch;

/// Access rights of a region.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Access(u8);

impl Access {
    /// Only as the source of local sends and writes.
    pub const LOCAL_READ: Access = Access(0);
    /// As the destination of receives and of the answers to local reads.
    pub const LOCAL_WRITE: Access = Access(1);
    /// As the destination of the peer's writes. Needs [`Access::LOCAL_WRITE`] too.
    pub const REMOTE_WRITE: Access = Access(2);
    /// As the source of the peer's reads.
    pub const REMOTE_READ: Access = Access(4);
    /// As the target of the peer's atomic operations. Needs [`Access::LOCAL_WRITE`] too.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Everything.
    pub const ALL: Access = Access(15);
    /// What a peer may do, of all of these.
    pub(crate) const REMOTE: Access = Access(14);

    /// What a peer may do that is not in `self`.
    pub(crate) const fn complement(self) -> Access {
        Access(!self.0 & Access::REMOTE.0)
    }
    /// Whether all rights of `other` are in `self`.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}
impl core::ops::BitAnd for Access {
    type Output = Access;
    fn bitand(self, o: Access) -> Access {
        Access(self.0 & o.0)
    }
}
impl core::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, o: Access) -> Access {
        Access(self.0 | o.0)
    }
}

/// A registered region, as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// Handle for [`Adapter::dereg_mr`](crate::Adapter::dereg_mr), `read_mr` and `write_mr`.
    pub id: MrId,
    /// Key that local work requests name the region by.
    pub lkey: u32,
    /// Key that the peer names the region by.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u64,
    /// What offsets count from: the first byte is at this offset (InfiniBand's I/O virtual address; zero unless registered with
    /// another).
    pub base: u64,
}

/// Keys are random already, and a peer cannot choose those that are stored.
pub(crate) type KeyMap<T> = base::KeyMap<u32, T>;

/// A key that `taken` does not hold yet. Zero is never a key.
pub(crate) fn fresh_key<T>(taken: &KeyMap<T>, rng: &mut base::Rng) -> u32 {
    // Tables are limited to far fewer than 2^31 keys, so half the tries succeed at the worst.
    loop {
        let k = rng.u32();
        if k != 0 && !taken.contains_key(&k) {
            return k;
        }
    }
}

struct Region {
    memory: Memory,
    /// The offset of its first byte: what applications and peers name bytes by.
    base: u64,
    pd: PdId,
    access: Access,
    lkey: u32,
    rkey: u32,
    /// Work requests, windows and read responses that refer to it.
    users: u32,
    /// Those of them that are receives, which may wait for ever.
    receives: u32,
}

impl Region {
    /// Whether `len` bytes from `offset` on lie within it.
    fn has(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_sub(self.base).and_then(|at| at.checked_add(len));
        end.is_some_and(|end| end <= self.memory.len())
    }
    /// Where in its memory the byte at `offset` is. What lies before it comes out beyond its end, which its memory refuses.
    const fn index(&self, offset: u64) -> u64 {
        offset.wrapping_sub(self.base)
    }
}

/// What a remote key names.
#[derive(Clone, Copy)]
enum KeyTarget {
    Region(MrId),
    Window(MwId),
}

/// The range that a window makes accessible to one queue pair.
struct WindowBinding {
    rkey: u32,
    /// None: all of its protection domain (InfiniBand's windows of type 1).
    qp: Option<QpId>,
    /// What the peer calls its first byte.
    base: u64,
    mr: MrId,
    offset: u64,
    len: u64,
    access: Access,
}

/// A memory window: a key of its own for a part of a region, which can be taken back without deregistering anything
/// (InfiniBand's windows of type 2).
struct Window {
    pd: PdId,
    /// What its keys have in common, where the application chooses the lowest eight bits.
    key: u32,
    bound: Option<WindowBinding>,
}

/// The part of a region that a remote key gives access to.
struct KeyRange {
    mr: MrId,
    /// What the peer calls its first byte.
    base: u64,
    /// That byte's offset in the region.
    offset: u64,
    len: u64,
    access: Access,
}

/// A range of a region that a window is to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowRange {
    /// The region.
    pub mr: MrId,
    /// First byte, counted as offsets of the region are. The window's own offsets count from here.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What the peer may do; only what the region allows as well.
    pub access: Access,
}

/// All regions of an adapter, and the windows into them.
pub(crate) struct Regions {
    slab: Slab<MrId, Region>,
    windows: Slab<MwId, Window>,
    by_lkey: KeyMap<MrId>,
    by_rkey: KeyMap<KeyTarget>,
    bytes: u64,
    max_bytes: u64,
}

/// The bits of a window's key that the application chooses when it binds.
const KEY_BITS: u32 = 0xff;
const NO_WINDOW: Error = Error::NotFound("memory window");

/// Why a remote access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessError {
    Key,
    Rights,
    Bounds,
    /// The key is another queue pair's, or of another protection domain.
    Association,
    /// Offset and length go beyond 64 bits.
    Wrap,
}

impl Regions {
    pub(crate) fn new(limit: usize, max_bytes: u64) -> Regions {
        let slab = Slab::new(limit.min(crate::MAX_REGIONS));
        let windows = Slab::new(limit.min(crate::MAX_REGIONS));
        Regions { slab, windows, by_lkey: KeyMap::default(), by_rkey: KeyMap::default(), bytes: 0, max_bytes }
    }

    pub(crate) fn register(
        &mut self,
        pd: PdId,
        memory: Memory,
        (base, access): (u64, Access),
        rng: &mut base::Rng,
    ) -> Result<Mr, (Error, Memory)> {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access & changes != Access::LOCAL_READ && !access.contains(Access::LOCAL_WRITE) {
            return Err((Error::Invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too"), memory));
        }
        if access.contains(Access::LOCAL_WRITE) && !memory.writable() {
            return Err((Error::Access, memory));
        }
        let len = memory.len();
        if base.checked_add(len).is_none() {
            return Err((Error::Invalid("the region's offsets must not go beyond 64 bits"), memory));
        }
        let Some(bytes) = self.bytes.checked_add(len).filter(|b| *b <= self.max_bytes) else {
            return Err((Error::Limit("registered bytes"), memory));
        };
        let lkey = fresh_key(&self.by_lkey, rng);
        let rkey = fresh_key(&self.by_rkey, rng);
        let region = Region { memory, base, pd, access, lkey, rkey, users: 0, receives: 0 };
        let id = self.slab.insert(region).map_err(|r| (Error::Limit("memory regions"), r.memory))?;
        self.by_lkey.insert(lkey, id);
        self.by_rkey.insert(rkey, KeyTarget::Region(id));
        self.bytes = bytes;
        Ok(Mr { id, lkey, rkey, len, base })
    }

    pub(crate) fn deregister(&mut self, id: MrId) -> Result<(Memory, PdId), Error> {
        let r = self.slab.get(id).ok_or(Error::NotFound("memory region"))?;
        if r.users > 0 {
            return Err(Error::Busy("the memory region"));
        }
        self.take_out(id)
    }
    /// Gives a region other memory, which it comes back as, another domain, or other rights. Its keys stay.
    pub(crate) fn change_region(
        &mut self,
        id: MrId,
        pd: PdId,
        access: Access,
        memory: Option<(Memory, u64)>,
    ) -> Result<PdId, Error> {
        if self.is_shown(id) {
            return Err(Error::Busy("the memory region, which a window shows"));
        }
        let r = self.slab.get_mut(id).ok_or(Error::NotFound("memory region"))?;
        let (writable, len, base) = memory
            .as_ref()
            .map_or((r.memory.writable(), r.memory.len(), r.base), |(m, b)| (m.writable(), m.len(), *b));
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access & changes != Access::LOCAL_READ && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::Invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too"));
        }
        if access.contains(Access::LOCAL_WRITE) && !writable {
            return Err(Error::Access);
        }
        let bytes = (self.bytes - r.memory.len()).checked_add(len).filter(|b| *b <= self.max_bytes);
        let bytes = bytes.filter(|_| base.checked_add(len).is_some());
        self.bytes = bytes.ok_or(Error::Limit("registered bytes"))?;
        if let Some((memory, base)) = memory {
            (r.memory, r.base) = (memory, base);
        }
        r.access = access;
        Ok(core::mem::replace(&mut r.pd, pd))
    }
    /// Deregisters a region that work uses: what uses it from here on fails. Handles are never given out twice.
    pub(crate) fn revoke(&mut self, id: MrId) -> Result<(Memory, PdId), Error> {
        if self.is_shown(id) {
            return Err(Error::Busy("the memory region, which a window shows"));
        }
        self.take_out(id)
    }
    /// Whether work uses a region that ends by itself: anything but receives.
    pub(crate) fn is_in_use(&self, id: MrId) -> bool {
        self.slab.get(id).is_some_and(|r| r.users > r.receives)
    }
    fn take_out(&mut self, id: MrId) -> Result<(Memory, PdId), Error> {
        let r = self.slab.remove(id).ok_or(Error::NotFound("memory region"))?;
        self.by_lkey.remove(&r.lkey);
        self.by_rkey.remove(&r.rkey);
        self.bytes -= r.memory.len();
        Ok((r.memory, r.pd))
    }

    /// Finds the region a local work request names and checks it.
    pub(crate) fn local(
        &self,
        lkey: u32,
        pd: PdId,
        need: Access,
        offset: u64,
        len: u64,
    ) -> Result<MrId, Error> {
        let id = *self.by_lkey.get(&lkey).ok_or(Error::BadKey)?;
        let r = self.slab.get(id).filter(|r| r.pd == pd).ok_or(Error::BadKey)?;
        if !r.access.contains(need) {
            return Err(Error::Access);
        }
        if r.has(offset, len) { Ok(id) } else { Err(Error::OutOfBounds) }
    }

    /// Finds the region a peer names and checks key, protection domain, rights and bounds.
    pub(crate) fn remote(
        &self,
        rkey: u32,
        pd: PdId,
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<MrId, AccessError> {
        let Some(KeyTarget::Region(id)) = self.by_rkey.get(&rkey) else { return Err(AccessError::Key) };
        self.recheck(*id, pd, need, at, len)?;
        Ok(*id)
    }
    /// As `remote`, for the key of a window that names bytes as its region does.
    pub(crate) fn remote_window(
        &self,
        rkey: u32,
        (pd, qp): (PdId, QpId),
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<MrId, AccessError> {
        let Some(KeyTarget::Window(_)) = self.by_rkey.get(&rkey) else { return Err(AccessError::Key) };
        let (mr, offset) = self.remote_or_window(rkey, (pd, qp), need, at, len)?;
        if offset == at { Ok(mr) } else { Err(AccessError::Bounds) }
    }

    /// As `remote`, for keys of windows too, and with the reasons that iWARP tells apart. Gives the region and where in
    /// it the range begins.
    pub(crate) fn remote_or_window(
        &self,
        rkey: u32,
        (pd, qp): (PdId, QpId),
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<(MrId, u64), AccessError> {
        let shown = self.resolve_key(rkey, (pd, qp))?;
        at.checked_add(len).ok_or(AccessError::Wrap)?;
        let at = at.checked_sub(shown.base).ok_or(AccessError::Bounds)?;
        if at + len > shown.len {
            return Err(AccessError::Bounds);
        }
        if !shown.access.contains(need) {
            return Err(AccessError::Rights);
        }
        Ok((shown.mr, shown.offset + at))
    }
    /// The region, and what of it from byte `at` on a key reaches: first byte and length. `None`: it does not, or not for that.
    pub(crate) fn writable_extent(
        &self,
        rkey: u32,
        owner: (PdId, QpId),
        need: Access,
        at: u64,
    ) -> Option<(MrId, u64, u64)> {
        let shown = self.resolve_key(rkey, owner).ok().filter(|s| s.access.contains(need))?;
        let at = at.checked_sub(shown.base)?;
        let room = shown.len.checked_sub(at)?;
        Some((shown.mr, shown.offset + at, room))
    }
    /// What a key stands for.
    #[inline]
    fn resolve_key(&self, rkey: u32, (pd, qp): (PdId, QpId)) -> Result<KeyRange, AccessError> {
        match self.by_rkey.get(&rkey).ok_or(AccessError::Key)? {
            KeyTarget::Region(id) => {
                let r = self.slab.get(*id).ok_or(AccessError::Key)?;
                if r.pd != pd {
                    return Err(AccessError::Association);
                }
                Ok(KeyRange { mr: *id, base: r.base, offset: r.base, len: r.memory.len(), access: r.access })
            }
            KeyTarget::Window(id) => {
                let w = self.windows.get(*id).ok_or(AccessError::Key)?;
                let b = w.bound.as_ref().ok_or(AccessError::Key)?;
                if w.pd != pd || b.qp.is_some_and(|only| only != qp) {
                    return Err(AccessError::Association);
                }
                Ok(KeyRange { mr: b.mr, base: b.base, offset: b.offset, len: b.len, access: b.access })
            }
        }
    }

    /// Creates a window; gives what its keys have in common, too.
    pub(crate) fn alloc_window(&mut self, pd: PdId, rng: &mut base::Rng) -> Result<(MwId, u32), Error> {
        let key = fresh_key(&self.by_rkey, rng) | KEY_BITS;
        let id = self.windows.insert(Window { pd, key, bound: None });
        Ok((id.map_err(|_| Error::Limit("memory windows"))?, key))
    }
    /// Whether a window shows something of a region. Takes time in the number of windows.
    pub(crate) fn is_shown(&self, mr: MrId) -> bool {
        self.windows.values().any(|w| w.bound.as_ref().is_some_and(|b| b.mr == mr))
    }
    /// Binds a window as a work request says: its bytes are named as those of the region. InfiniBand asks for the right to write
    /// locally where the peer may write, and for no other of the region.
    pub(crate) fn bind_as(&mut self, b: Binding, qp: QpId) -> Result<(), Error> {
        let WindowRange { mr, offset, len, access } = b.range;
        let window = self.windows.get(b.mw).ok_or(NO_WINDOW)?;
        if (b.rkey ^ window.key) & !KEY_BITS != 0 {
            return Err(Error::Invalid("all but the lowest eight bits of the key must be the window's"));
        }
        let pd = window.pd;
        if len == 0 {
            self.unbind(b.mw);
            return Ok(());
        }
        let region = self.slab.get(mr).ok_or(Error::NotFound("memory region"))?;
        let access = access & Access::REMOTE;
        let changes = access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) != Access::LOCAL_READ;
        if region.pd != pd || changes && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(Error::Access);
        }
        if !region.has(offset, len) {
            return Err(Error::OutOfBounds);
        }
        self.unbind(b.mw);
        if b.rkey == 0 || self.by_rkey.contains_key(&b.rkey) {
            return Err(Error::BadKey);
        }
        self.hold(mr);
        self.by_rkey.insert(b.rkey, KeyTarget::Window(b.mw));
        let (rkey, qp) = (b.rkey, b.exclusive.then_some(qp));
        if let Some(w) = self.windows.get_mut(b.mw) {
            w.bound = Some(WindowBinding { rkey, qp, base: offset, mr, offset, len, access });
        }
        Ok(())
    }
    /// Destroys a window; gives the protection domain it belonged to.
    pub(crate) fn dealloc_window(&mut self, id: MwId) -> Result<PdId, Error> {
        self.unbind(id);
        Ok(self.windows.remove(id).ok_or(NO_WINDOW)?.pd)
    }
    /// Shows `range` to `qp` under a new key. What the window showed before is no longer reached.
    pub(crate) fn bind(
        &mut self,
        id: MwId,
        (pd, qp): (PdId, QpId),
        range: WindowRange,
        rng: &mut base::Rng,
    ) -> Result<u32, Error> {
        let WindowRange { mr, offset, len, access } = range;
        let region = self.slab.get(mr).ok_or(Error::NotFound("memory region"))?;
        let window = self.windows.get(id).ok_or(NO_WINDOW)?;
        if region.pd != pd || window.pd != pd {
            return Err(Error::Invalid("window, region and queue pair must be of one protection domain"));
        }
        let access = access & Access::REMOTE;
        if !region.access.contains(access) {
            return Err(Error::Access);
        }
        if !region.has(offset, len) {
            return Err(Error::OutOfBounds);
        }
        self.unbind(id);
        let rkey = fresh_key(&self.by_rkey, rng);
        self.hold(mr);
        self.by_rkey.insert(rkey, KeyTarget::Window(id));
        if let Some(w) = self.windows.get_mut(id) {
            w.bound = Some(WindowBinding { rkey, qp: Some(qp), base: 0, mr, offset, len, access });
        }
        Ok(rkey)
    }
    fn unbind(&mut self, id: MwId) {
        if let Some(b) = self.windows.get_mut(id).and_then(|w| w.bound.take()) {
            self.by_rkey.remove(&b.rkey);
            self.release(b.mr);
        }
    }
    /// Makes the key of a window void, if it is bound to `qp`. Keys of regions cannot be invalidated: that is not a right.
    pub(crate) fn invalidate(&mut self, rkey: u32, qp: QpId) -> Result<(), AccessError> {
        let id = match self.by_rkey.get(&rkey) {
            Some(KeyTarget::Window(id)) => *id,
            Some(_) => return Err(AccessError::Rights),
            None => return Err(AccessError::Key),
        };
        if self.windows.get(id).and_then(|w| w.bound.as_ref()).is_none_or(|b| b.qp != Some(qp)) {
            return Err(AccessError::Association);
        }
        self.unbind(id);
        Ok(())
    }

    /// As `remote`, for a region that was found before and may have been deregistered since.
    pub(crate) fn recheck(
        &self,
        id: MrId,
        pd: PdId,
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        let r = self.slab.get(id).filter(|r| r.pd == pd).ok_or(AccessError::Key)?;
        if !r.access.contains(need) {
            return Err(AccessError::Rights);
        }
        if r.has(at, len) { Ok(()) } else { Err(AccessError::Bounds) }
    }

    /// Notes one more user. A region has fewer than 2^32 of them: queues are limited far below.
    pub(crate) fn hold(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.users = r.users.saturating_add(1);
        }
    }
    /// As `hold` and `release`, of a receive.
    pub(crate) fn hold_for_receive(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.receives = r.receives.saturating_add(1);
        }
    }
    pub(crate) fn release_receive(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.receives = r.receives.saturating_sub(1);
        }
        self.release(id);
    }
    pub(crate) fn release(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.users = r.users.saturating_sub(1);
        }
    }

    pub(crate) fn read(&self, id: MrId, offset: u64, out: &mut [u8]) -> Result<(), CopyError> {
        let r = self.slab.get(id).ok_or(CopyError::Bounds)?;
        r.memory.read(r.index(offset), out)
    }
    /// Copies the bytes from `offset` on to places of `len` bytes, one after the other.
    pub(crate) fn read_run(
        &self,
        id: MrId,
        offset: u64,
        len: u32,
        to: &mut StridedBuffer<'_>,
    ) -> Result<(), CopyError> {
        let r = self.slab.get(id).ok_or(CopyError::Bounds)?;
        (r.index(offset)..)
            .step_by(len.max(1) as usize)
            .zip(to.places(len as usize))
            .try_for_each(|(at, out)| r.memory.read(at, out))
    }
    pub(crate) fn prefetch_hint(&self, id: MrId, offset: u64, len: u64) -> Prefetch {
        self.slab.get(id).map_or_else(Prefetch::default, |r| r.memory.prefetch_hint(r.index(offset), len))
    }
    #[inline]
    pub(crate) fn write(&mut self, id: MrId, offset: u64, data: &[u8]) -> Result<(), CopyError> {
        let r = self.slab.get_mut(id).ok_or(CopyError::Bounds)?;
        r.memory.write(r.index(offset), data)
    }
    /// Does an atomic operation on the eight bytes from `offset` on; gives what they were before.
    pub(crate) fn change(&mut self, id: MrId, offset: u64, op: AtomicOp) -> Result<u64, CopyError> {
        let mut bytes = [0; 8];
        self.read(id, offset, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(id, offset, &op.apply(old).to_ne_bytes())?;
        Ok(old)
    }
    /// Gives the bytes of a range to `f`, in pieces of at most [`crate::memory::PIECE`] when they are foreign memory.
    pub(crate) fn fold(
        &self,
        id: MrId,
        offset: u64,
        len: u64,
        f: &mut dyn FnMut(&[u8]),
    ) -> Result<(), CopyError> {
        let r = self.slab.get(id).ok_or(CopyError::Bounds)?;
        r.memory.fold(r.index(offset), len, f)
    }
    /// The address of a range.
    pub(crate) fn address(&mut self, id: MrId, offset: u64, len: u64) -> Result<*mut u8, CopyError> {
        let r = self.slab.get_mut(id).ok_or(CopyError::Bounds)?;
        r.memory.address(r.index(offset), len)
    }
    pub(crate) fn describe(&self, id: MrId) -> Option<Mr> {
        self.slab.get(id).map(|r| Mr { id, lkey: r.lkey, rkey: r.rkey, len: r.memory.len(), base: r.base })
    }
}
