//! The shared receive queue of a host.

use super::plan::MAX_SHARED;
use endpoint::Endpoint;
use verbs::{Access, Memory, Mr, Opcode, PdId, RecvWr, Sge, SrqId, WorkCompletion};

/// Most receives.
const MAX_RECEIVES: u64 = 1 << 12;
/// Receives per region.
const RECEIVES_PER_REGION: u64 = 32;

/// A shared receive queue with its memory. Every receive is posted again after its completion.
pub struct Pool {
    pd: PdId,
    pub srq: SrqId,
    regions: Vec<Mr>,
    /// Receives posted.
    slots: u64,
}

impl Pool {
    /// Two receives for each expected queue pair, and some more, shared by all clients.
    pub fn new(pairs: u64, e: &mut Endpoint) -> Result<Pool, String> {
        let words = |e: verbs::Error| format!("shared receives: {e}");
        let a = e.adapter();
        let pd = a.alloc_pd().map_err(words)?;
        let srq = a.create_srq(pd, MAX_RECEIVES as usize).map_err(words)?;
        let mut pool = Pool { pd, srq, regions: Vec::new(), slots: 0 };
        for _ in 0..2 * pairs + 4 {
            pool.add_region(e)?;
        }
        e.set_srq_of_incoming(Some(srq)).map_err(|e| e.to_string())?;
        Ok(pool)
    }

    fn add_region(&mut self, e: &mut Endpoint) -> Result<(), String> {
        if self.slots.is_multiple_of(RECEIVES_PER_REGION) {
            let memory = Memory::zeroed((RECEIVES_PER_REGION * MAX_SHARED) as usize);
            let region = e.adapter().reg_mr(self.pd, memory, Access::LOCAL_WRITE);
            self.regions.push(region.map_err(|(e, _)| format!("shared receives: {e}"))?);
        }
        self.slots += 1;
        self.post(self.slots - 1, e)
    }

    /// The memory of a receive.
    fn slot_of(&self, i: u64) -> Result<(Mr, u64), String> {
        let region = self.regions.get((i / RECEIVES_PER_REGION) as usize);
        region
            .map(|r| (*r, i % RECEIVES_PER_REGION * MAX_SHARED))
            .ok_or(format!("there is no shared receive {i}"))
    }

    fn post(&self, i: u64, e: &mut Endpoint) -> Result<(), String> {
        let (region, offset) = self.slot_of(i)?;
        let sge = Sge { lkey: region.lkey, offset, len: MAX_SHARED };
        let wr = RecvWr { wr_id: i, sges: sge.into() };
        e.adapter().post_srq_recv(self.srq, wr).map_err(|e| format!("post_srq_recv: {e}"))
    }

    /// The bytes of a completed receive.
    pub fn read(&self, wc: &WorkCompletion, len: u64, e: &mut Endpoint) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len as usize];
        let (region, at) = self.slot_of(wc.wr_id)?;
        e.adapter().read_mr(region.id, at, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }

    /// Posts the receive of a completion again.
    pub fn repost(&self, wc: &WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        match wc.opcode {
            Opcode::Recv | Opcode::RecvWriteImm => self.post(wc.wr_id, e),
            _ => Ok(()),
        }
    }

    /// Frees the queue after the last connection; all receives must have returned.
    pub fn end(self, e: &mut Endpoint) -> Result<(), String> {
        let words = |e: verbs::Error| format!("shared receives: {e}");
        e.set_srq_of_incoming(None).map_err(|e| e.to_string())?;
        let a = e.adapter();
        if a.srq_len(self.srq) != Some(self.slots as usize) {
            return Err(format!("{:?} of {} shared receives are left", a.srq_len(self.srq), self.slots));
        }
        a.destroy_srq(self.srq).map_err(words)?;
        for region in self.regions {
            a.dereg_mr(region.id).map_err(words)?;
        }
        a.dealloc_pd(self.pd).map_err(words)
    }
}
