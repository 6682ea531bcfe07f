//! Moves posted work from the rings to the adapter, and completions from the adapter to the rings that programs poll.

use super::datagram::Towards;
use super::{Entry, Fabric};
use crate::completion::Completion;
use base::Time;
use endpoint::Endpoint;
use verbs::{Error, Opcode, QpId, SendOp, SendWr, Status, Violation, WorkCompletion};

impl Fabric {
    /// Posts what programs have put into their rings.
    pub(super) fn take_posted(&mut self, now: Time, endpoint: &mut Endpoint) {
        // Those that are announced meanwhile wait for the next turn: a turn is bounded.
        for _ in 0..self.announced.len() {
            let Some(number) = self.announced.pop() else { return };
            let Some(e) = self.entries.get_mut(&number) else {
                if let Some(p) = self.datagrams.pairs.get(&number) {
                    p.looked();
                    self.take_datagrams(now, endpoint, number);
                }
                continue;
            };
            e.handle.looked();
            e.post(endpoint);
            if e.failing.is_some() && !self.failing.contains(&number) {
                self.failing.push(number);
            }
            self.note_wanted(number);
            self.note_posted(now, number);
            self.watch(now, number);
        }
    }

    /// Hands over completions, as far as there is room for them.
    pub(super) fn give_completions(&mut self, endpoint: &mut Endpoint) {
        let mut waiting = core::mem::take(&mut self.overflowing);
        while let Some(id) = endpoint.adapter().take_notified() {
            waiting.push(id);
        }
        for id in waiting {
            if self.take_arrived(endpoint, id) {
                continue;
            }
            let Some(cq) = self.cqs.get(&id).cloned() else { continue };
            loop {
                if !cq.has_room() {
                    cq.set_overflowing(true);
                    self.overflowing.push(id);
                    break;
                }
                let Some(wc) = endpoint.adapter().poll_cq(id) else {
                    cq.set_overflowing(false);
                    // Completions that are there already do not count: what came in between is looked for once more.
                    let _ = endpoint.adapter().req_notify_cq(id, false);
                    if endpoint.adapter().cq_len(id).is_none_or(|n| n == 0) {
                        break;
                    }
                    continue;
                };
                let Some(c) = self.completion(endpoint, &wc) else { continue };
                cq.push(c);
            }
        }
    }

    /// A completion as programs know it, once its place counts as free.
    fn completion(&mut self, endpoint: &mut Endpoint, wc: &WorkCompletion) -> Option<Completion> {
        let number = *self.by_id.get(&wc.qp)?;
        if wc.status == Status::WindowBind {
            // It was not the transport that failed: nobody else ends the queue pair.
            self.broken.push(number);
        }
        let e = self.entries.get_mut(&number)?;
        e.post(endpoint);
        if e.failing.is_some() && !self.failing.contains(&number) {
            self.failing.push(number);
        }
        self.note_wanted(number);
        let e = self.entries.get(&number)?;
        Some(Completion {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            imm: wc.imm,
            number,
            peer: e.remote.map_or(0, |r| r.number),
            solicited: wc.solicited,
            has_grh: false,
            invalidated: wc.invalidated,
            is_v4: false,
        })
    }

    /// A work request that cannot be done ends its queue pair, once those before it have ended.
    pub(super) fn end_failing(&mut self, now: Time, endpoint: &mut Endpoint) {
        for number in core::mem::take(&mut self.broken) {
            self.fail(now, endpoint, number, Status::FlushError);
        }
        for number in core::mem::take(&mut self.failing) {
            let Some(e) = self.entries.get_mut(&number) else { continue };
            let sends = endpoint.adapter().query_qp(e.id).map_or(0, |info| info.sends);
            let is_receive = e.failing.is_some_and(|c| c.opcode == Opcode::Recv);
            let cq = if is_receive { e.init.recv_cq } else { e.init.send_cq };
            let cq = self.cqs.get(&cq).filter(|cq| cq.has_room());
            let (true, Some(cq)) = (sends == 0, cq) else {
                self.failing.push(number);
                continue;
            };
            if let Some(c) = e.failing.take() {
                cq.push(c);
            }
            if is_receive && self.by_streams.is_none() {
                // Messages that are under way to it have nowhere to go: their sender is told.
                let id = self.entries.get(&number).map(|e| e.id);
                let code = u64::from(Violation::ReceiveFault.code());
                id.into_iter().for_each(|id| endpoint.disconnect_qp_for(now, id, code));
            }
            self.fail(now, endpoint, number, Status::FlushError);
        }
    }
}

impl Entry {
    /// The adapter's queue pair that receives.
    pub(super) fn receives_at(&self) -> QpId {
        self.twin.unwrap_or(self.id)
    }

    /// Tells the program's side how many work requests have ended.
    fn note_ended(&mut self, endpoint: &mut Endpoint) {
        let Some(info) = endpoint.adapter().query_qp(self.id) else { return };
        let waiting = u64::from(self.next_send.is_some()) + u64::from(self.failing.is_some());
        self.handle.set_outstanding_sends(self.sends_taken, info.sends as u64 + waiting);
        let receives = match self.twin {
            Some(twin) => endpoint.adapter().query_qp(twin).map_or(0, |info| info.receives),
            None => info.receives,
        };
        if self.init.srq.is_none() {
            let waiting = u64::from(self.next_receive.is_some());
            self.handle.set_outstanding_receives(self.receives_taken, receives as u64 + waiting);
        }
    }

    /// Posts what is in the rings, as far as the adapter takes it.
    pub(super) fn post(&mut self, endpoint: &mut Endpoint) {
        loop {
            let next = self.next_receive.take().or_else(|| {
                let wr = self.posted.receives.pop()?;
                self.receives_taken += 1;
                Some(wr)
            });
            let Some(wr) = next else { break };
            match endpoint.adapter().post_recv(self.receives_at(), wr.clone()) {
                Ok(()) => {}
                Err(Error::QueueFull | Error::CqFull) => {
                    self.next_receive = Some(wr);
                    break;
                }
                Err(e) => {
                    let failed = self.failed(wr.wr_id, Opcode::Recv, &e);
                    self.failing.get_or_insert(failed);
                }
            }
        }
        while self.failing.is_none() {
            let next = self.next_send.take().or_else(|| {
                let (wr, to) = self.posted.sends.pop()?;
                self.sends_taken += 1;
                Some((wr, if let Towards::Queue(queue) = to { queue } else { 0 }))
            });
            let Some((wr, queue)) = next else { break };
            if !self.is_at(endpoint, queue) {
                self.next_send = Some((wr, queue));
                break;
            }
            match endpoint.adapter().post_send(self.id, wr.clone()) {
                Ok(()) => {}
                Err(Error::QueueFull | Error::CqFull) => {
                    self.next_send = Some((wr, queue));
                    break;
                }
                Err(e) => self.failing = Some(self.failed(wr.wr_id, opcode_of(&wr), &e)),
            }
        }
        self.note_ended(endpoint);
    }

    fn failed(&self, wr_id: u64, opcode: Opcode, e: &Error) -> Completion {
        let status = match e {
            Error::TooLong { .. } => Status::LocalLength,
            _ => Status::LocalProtection,
        };
        tracing::debug!(number = self.handle.number(), error = %e, "a work request cannot be done");
        let peer = self.remote.map_or(0, |r| r.number);
        let (number, byte_len, imm, solicited) = (self.handle.number(), 0, None, false);
        Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm,
            number,
            peer,
            solicited,
            has_grh: false,
            invalidated: None,
            is_v4: false,
        }
    }
}

const fn opcode_of(wr: &SendWr) -> Opcode {
    match wr.op {
        SendOp::Write { .. } | SendOp::WriteImm { .. } => Opcode::Write,
        SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } => Opcode::Send,
        SendOp::Read { .. } => Opcode::Read,
        SendOp::Atomic { op, .. } => op.opcode(),
        SendOp::LocalInvalidate { .. } => Opcode::LocalInvalidate,
        SendOp::Bind(_) => Opcode::Bind,
    }
}
