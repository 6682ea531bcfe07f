//! Receives that all queue pairs of a host share.

use super::plan::MAX_SHARED;
use endpoint::Endpoint;
use verbs::{Access, Memory, Mr, Opcode, PdId, RecvWr, Sge, SrqId, WorkCompletion};

/// Receives at most.
const MOST: u64 = 1 << 12;
/// Receives of one region.
const PIECE: u64 = 32;

/// A shared receive queue with its memory. Every receive is posted again when it has completed.
pub struct Pool {
    pd: PdId,
    pub srq: SrqId,
    regions: Vec<Mr>,
    /// Receives posted.
    slots: u64,
}

impl Pool {
    /// Two receives for each queue pair that will come, and some. All clients use them.
    pub fn new(pairs: u64, e: &mut Endpoint) -> Result<Pool, String> {
        let words = |e: verbs::Error| format!("shared receives: {e}");
        let a = e.adapter();
        let pd = a.alloc_pd().map_err(words)?;
        let srq = a.create_srq(pd, MOST as usize).map_err(words)?;
        let mut pool = Pool { pd, srq, regions: Vec::new(), slots: 0 };
        for _ in 0..2 * pairs + 4 {
            pool.more(e)?;
        }
        e.set_srq_of_incoming(Some(srq)).map_err(|e| e.to_string())?;
        Ok(pool)
    }

    fn more(&mut self, e: &mut Endpoint) -> Result<(), String> {
        if self.slots.is_multiple_of(PIECE) {
            let memory = Memory::zeroed((PIECE * MAX_SHARED) as usize);
            let region = e.adapter().reg_mr(self.pd, memory, Access::LOCAL_WRITE);
            self.regions.push(region.map_err(|(e, _)| format!("shared receives: {e}"))?);
        }
        self.slots += 1;
        self.post(self.slots - 1, e)
    }

    /// Where a receive has its bytes.
    fn place(&self, i: u64) -> Result<(Mr, u64), String> {
        let region = self.regions.get((i / PIECE) as usize);
        region.map(|r| (*r, i % PIECE * MAX_SHARED)).ok_or(format!("there is no shared receive {i}"))
    }

    fn post(&self, i: u64, e: &mut Endpoint) -> Result<(), String> {
        let (region, offset) = self.place(i)?;
        let sge = Sge { lkey: region.lkey, offset, len: MAX_SHARED };
        let wr = RecvWr { wr_id: i, sges: sge.into() };
        e.adapter().post_srq_recv(self.srq, wr).map_err(|e| format!("post_srq_recv: {e}"))
    }

    /// The bytes of a receive that has completed.
    pub fn read(&self, wc: &WorkCompletion, len: u64, e: &mut Endpoint) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len as usize];
        let (region, at) = self.place(wc.wr_id)?;
        e.adapter().read_mr(region.id, at, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    }

    /// Posts the receive of a completion again.
    pub fn back(&self, wc: &WorkCompletion, e: &mut Endpoint) -> Result<(), String> {
        match wc.opcode {
            Opcode::Recv | Opcode::RecvWriteImm => self.post(wc.wr_id, e),
            _ => Ok(()),
        }
    }

    /// Frees it, after the last connection: all receives must be there again.
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
