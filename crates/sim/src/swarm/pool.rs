//! Receives that all queue pairs of a host share.

use super::plan::MAX_SHARED;
use endpoint::Endpoint;
use verbs::{Access, Memory, Mr, Opcode, PdId, QpId, RecvWr, Sge, SrqId, WorkCompletion};

/// Receives for each queue pair at most.
const MOST_EACH: u64 = 16;

/// A shared receive queue with its memory. Every receive is posted again when it has completed.
pub struct Pool {
    pd: PdId,
    pub srq: SrqId,
    region: Mr,
    /// Receives posted, and how many there may be.
    slots: u64,
    most: u64,
}

impl Pool {
    /// Two receives for each queue pair that will come, and some. All clients use them.
    pub fn new(pairs: u64, e: &mut Endpoint) -> Result<Pool, String> {
        let words = |e: verbs::Error| format!("shared receives: {e}");
        let a = e.adapter();
        let pd = a.alloc_pd().map_err(words)?;
        let (slots, most) = (2 * pairs + 4, MOST_EACH * pairs + 4);
        let memory = Memory::zeroed((most * MAX_SHARED) as usize);
        let region = a.reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|(e, _)| words(e))?;
        let srq = a.create_srq(pd, most as usize).map_err(words)?;
        let pool = Pool { pd, srq, region, slots, most };
        for i in 0..slots {
            pool.post(i, e)?;
        }
        e.set_srq_of_incoming(Some(srq)).map_err(|e| e.to_string())?;
        Ok(pool)
    }

    /// Posts one more for each queue pair that has none. A receive is promised to one queue pair, and those that are
    /// idle keep theirs: without more, those that came last would wait for ever.
    pub fn feed(&mut self, e: &mut Endpoint) -> Result<(), String> {
        let ids: Vec<_> = e.connections().collect();
        let pairs = ids.into_iter().filter_map(|c| e.connection(c)).flat_map(|i| i.qps.clone());
        let starving = |qp: &QpId, e: &mut Endpoint| {
            e.adapter().query_qp(*qp).is_some_and(|i| i.srq.is_some() && i.receives == 0)
        };
        let pairs: Vec<_> = pairs.collect();
        for qp in pairs {
            while self.slots < self.most && starving(&qp, e) {
                self.post(self.slots, e)?;
                self.slots += 1;
            }
        }
        Ok(())
    }

    fn post(&self, i: u64, e: &mut Endpoint) -> Result<(), String> {
        let sge = Sge { lkey: self.region.lkey, offset: i * MAX_SHARED, len: MAX_SHARED };
        let wr = RecvWr { wr_id: i, sges: sge.into() };
        e.adapter().post_srq_recv(self.srq, wr).map_err(|e| format!("post_srq_recv: {e}"))
    }

    /// The bytes of a receive that has completed.
    pub fn read(&self, wc: &WorkCompletion, len: u64, e: &mut Endpoint) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len as usize];
        let at = wc.wr_id * MAX_SHARED;
        e.adapter().read_mr(self.region.id, at, &mut bytes).map_err(|e| e.to_string())?;
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
        a.dereg_mr(self.region.id).map_err(words)?;
        a.dealloc_pd(self.pd).map_err(words)
    }
}
