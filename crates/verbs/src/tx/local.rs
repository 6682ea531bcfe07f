//! What a send queue does at home: work requests that send nothing, memory that fails, and waiting for the peer.

use super::{Ctx, Tx, Wqe};
use crate::Kind;
use crate::work::{SendOp, Status};

impl Tx {
    /// Does a work request that sends nothing.
    pub(super) fn run_local(&mut self, number: u64, ctx: &mut Ctx<'_>) {
        let Some(w) = self.wqe(number) else { return };
        let done = match w.op {
            SendOp::LocalInvalidate { rkey } => ctx.regions.invalidate(rkey, ctx.qp).is_ok(),
            SendOp::Bind(b) => ctx.regions.bind_as(b, ctx.qp).is_ok(),
            _ => true,
        };
        w.status = if done { Status::Success } else { Status::WindowBind };
        w.done = true;
        self.pop_wqes(ctx);
    }

    /// Memory that an answer goes to failed: the read or atomic operation ends with that.
    pub(crate) fn note_fault(&mut self, number: u64) {
        if let Some(w) = self.wqe(number) {
            w.status = Status::LocalProtection;
        }
    }

    /// Whether nothing is under way and the next work request waits for a receive of the peer.
    pub(crate) fn waits_for_receive(&self) -> bool {
        let next = self.wqes.get((self.next_wqe - self.wqe_base) as usize);
        self.kind == Kind::Reliable
            && self.next_wqe == self.wqe_base
            && self.next_rsn >= self.send_limit
            && next.is_some_and(Wqe::consumes_receive)
    }
}
