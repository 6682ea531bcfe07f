//! Memory regions and the table that finds them by key.

use crate::error::Error;
use crate::memory::{CopyError, Memory};
use crate::slab::{MrId, PdId, Slab};
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

/// What a region may be used for.
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
    /// Everything.
    pub const ALL: Access = Access(7);

    /// Whether all rights of `other` are in `self`.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
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
}

/// Keys are random already, so one multiplication spreads them; a peer can look up keys of its choice but
/// cannot choose those that are stored.
#[derive(Default, Clone, Copy)]
pub(crate) struct KeyHasher(u64);
impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u32(u32::from(*b));
        }
    }
    fn write_u32(&mut self, x: u32) {
        let m = (self.0 ^ u64::from(x)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = m ^ (m >> 32);
    }
}
pub(crate) type KeyMap<T> = HashMap<u32, T, BuildHasherDefault<KeyHasher>>;

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
    pd: PdId,
    access: Access,
    lkey: u32,
    rkey: u32,
    /// Work requests and read responses that refer to it.
    users: u32,
}

/// All regions of an adapter.
pub(crate) struct Regions {
    slab: Slab<MrId, Region>,
    by_lkey: KeyMap<MrId>,
    by_rkey: KeyMap<MrId>,
    bytes: u64,
    max_bytes: u64,
}

/// Why a remote access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    Key,
    Rights,
    Bounds,
}

impl Regions {
    pub(crate) fn new(limit: usize, max_bytes: u64) -> Regions {
        let slab = Slab::new(limit.min(crate::MAX_REGIONS));
        Regions { slab, by_lkey: KeyMap::default(), by_rkey: KeyMap::default(), bytes: 0, max_bytes }
    }

    pub(crate) fn register(
        &mut self,
        pd: PdId,
        memory: Memory,
        access: Access,
        rng: &mut base::Rng,
    ) -> Result<Mr, (Error, Memory)> {
        if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err((Error::Invalid("REMOTE_WRITE needs LOCAL_WRITE too"), memory));
        }
        if access.contains(Access::LOCAL_WRITE) && !memory.writable() {
            return Err((Error::Access, memory));
        }
        let len = memory.len();
        let Some(bytes) = self.bytes.checked_add(len).filter(|b| *b <= self.max_bytes) else {
            return Err((Error::Limit("registered bytes"), memory));
        };
        let lkey = fresh_key(&self.by_lkey, rng);
        let rkey = fresh_key(&self.by_rkey, rng);
        let region = Region { memory, pd, access, lkey, rkey, users: 0 };
        let id = self.slab.insert(region).map_err(|r| (Error::Limit("memory regions"), r.memory))?;
        self.by_lkey.insert(lkey, id);
        self.by_rkey.insert(rkey, id);
        self.bytes = bytes;
        Ok(Mr { id, lkey, rkey, len })
    }

    pub(crate) fn deregister(&mut self, id: MrId) -> Result<(Memory, PdId), Error> {
        let r = self.slab.get(id).ok_or(Error::NotFound("memory region"))?;
        if r.users > 0 {
            return Err(Error::Busy("the memory region"));
        }
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
        match offset.checked_add(len) {
            Some(end) if end <= r.memory.len() => Ok(id),
            _ => Err(Error::OutOfBounds),
        }
    }

    /// Finds the region a peer names and checks key, protection domain, rights and bounds.
    pub(crate) fn remote(
        &self,
        rkey: u32,
        pd: PdId,
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<MrId, Denied> {
        let id = *self.by_rkey.get(&rkey).ok_or(Denied::Key)?;
        self.recheck(id, pd, need, at, len)?;
        Ok(id)
    }

    /// As `remote`, for a region that was found before and may have been deregistered since.
    pub(crate) fn recheck(&self, id: MrId, pd: PdId, need: Access, at: u64, len: u64) -> Result<(), Denied> {
        let r = self.slab.get(id).filter(|r| r.pd == pd).ok_or(Denied::Key)?;
        if !r.access.contains(need) {
            return Err(Denied::Rights);
        }
        match at.checked_add(len) {
            Some(end) if end <= r.memory.len() => Ok(()),
            _ => Err(Denied::Bounds),
        }
    }

    /// Notes one more user. A region has fewer than 2^32 of them: queues are limited far below.
    pub(crate) fn hold(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.users = r.users.saturating_add(1);
        }
    }
    pub(crate) fn release(&mut self, id: MrId) {
        if let Some(r) = self.slab.get_mut(id) {
            r.users = r.users.saturating_sub(1);
        }
    }

    pub(crate) fn read(&self, id: MrId, offset: u64, out: &mut [u8]) -> Result<(), CopyError> {
        self.slab.get(id).ok_or(CopyError::Bounds)?.memory.read(offset, out)
    }
    pub(crate) fn write(&mut self, id: MrId, offset: u64, data: &[u8]) -> Result<(), CopyError> {
        self.slab.get_mut(id).ok_or(CopyError::Bounds)?.memory.write(offset, data)
    }
    pub(crate) fn describe(&self, id: MrId) -> Option<Mr> {
        self.slab.get(id).map(|r| Mr { id, lkey: r.lkey, rkey: r.rkey, len: r.memory.len() })
    }
}
