//! Queue pair 0: messages about the measurement.

use super::proto::Message;
use endpoint::{ConnInfo, Endpoint};
use verbs::{Access, Data, Memory, Mr, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Sges, WorkCompletion};

/// Longest message.
const MAX: u64 = 32 << 10;
/// Receives that are posted.
const SLOTS: u64 = 4;
/// Work requests of messages that are sent have this number; receives have their slot's.
const SENT: u64 = SLOTS;

/// What is said to a client whose messages are not about measurements.
pub const OTHER_SERVICE: &str = "this is a measuring server (longhaul perf server)";

/// The receiving and sending of messages on one connection.
pub struct Control {
    qp: QpId,
    region: Mr,
    /// Sends that the other end has not acknowledged.
    unsent: u32,
}

impl Control {
    /// Posts receives on the connection's first queue pair.
    pub fn new(ep: &mut Endpoint, info: &ConnInfo) -> Result<Control, String> {
        let qp = *info.qps.first().ok_or("the connection has no queue pair")?;
        let a = ep.adapter();
        let memory = Memory::zeroed((MAX * SLOTS) as usize);
        let region = a.reg_mr(info.pd, memory, Access::LOCAL_WRITE).map_err(|(e, _)| e.to_string())?;
        let c = Control { qp, region, unsent: 0 };
        for slot in 0..SLOTS {
            c.post(ep, slot)?;
        }
        Ok(c)
    }

    /// Its queue pair.
    pub fn qp(&self) -> QpId {
        self.qp
    }

    /// Whether everything sent has been acknowledged.
    pub fn is_drained(&self) -> bool {
        self.unsent == 0
    }

    fn post(&self, ep: &mut Endpoint, slot: u64) -> Result<(), String> {
        let sge = Sge { lkey: self.region.lkey, offset: slot * MAX, len: MAX };
        let wr = RecvWr { wr_id: slot, sges: Sges::One(sge) };
        ep.adapter().post_recv(self.qp, wr).map_err(|e| e.to_string())
    }

    /// Sends a message.
    pub fn send(&mut self, ep: &mut Endpoint, m: &Message) -> Result<(), String> {
        let bytes = m.encode();
        if bytes.len() as u64 > MAX {
            return Err(
                "cannot request the measurement: its description is too long; try fewer streams".to_owned()
            );
        }
        self.unsent += 1;
        let data = Data::Inline(bytes.into());
        ep.adapter().post_send(self.qp, SendWr::new(SENT, SendOp::Send, data)).map_err(|e| e.to_string())
    }

    /// Takes a successful completion of this queue pair.
    pub fn completion(&mut self, ep: &mut Endpoint, wc: &WorkCompletion) -> Result<Option<Message>, String> {
        if wc.opcode != Opcode::Recv {
            self.unsent = self.unsent.saturating_sub(1);
            return Ok(None);
        }
        let mut bytes = vec![0; wc.byte_len.min(MAX) as usize];
        let at = wc.wr_id % SLOTS * MAX;
        ep.adapter().read_mr(self.region.id, at, &mut bytes).map_err(|e| e.to_string())?;
        self.post(ep, wc.wr_id)?;
        // Messages about measurements are JSON; those about files are not.
        if bytes.first() != Some(&b'{') {
            return Err(OTHER_SERVICE.to_owned());
        }
        Message::decode(&bytes).map(Some)
    }

    /// Frees its region, when the connection has closed.
    pub fn close(&self, ep: &mut Endpoint) {
        // Fails only if it was freed before.
        let _ = ep.adapter().dereg_mr(self.region.id);
    }
}
