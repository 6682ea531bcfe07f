//! The queue pairs of a connection that carry datagrams: queue pair 0, and one for each further code point that datagrams have.
//!
//! A code point belongs to a queue pair, so datagrams with another one than the process's need one more. The end that sends opens it:
//! the private data of its request is version 1 (one byte), the numbers 0 and 0 (four bytes each), which no queue pair of a program
//! has, and the code point (one byte). Only that end sends on it. Queue pair 0 carries what no further one can be had for.

use super::Fabric;
use super::datagram::{Datagrams, HEADER, MAX_DATAGRAM, Outgoing, Told};
use super::pairing::{NOT_HERE, TOO_MANY, encode};
use base::Time;
use endpoint::{ConnId, Endpoint, QpOptions};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use verbs::{
    Access, Adapter, CqId, Data, Error, Memory, Mr, Opcode, PdId, QpId, QpInit, QpState, RecvWr, SendOp,
    SendWr, Sge, Status, WorkCompletion,
};

/// Receives that are posted for datagrams on each queue pair.
const RECEIVES: u64 = 128;
const SLOT: u64 = (HEADER + MAX_DATAGRAM) as u64;
/// Queue pairs for further code points that each end of a connection opens at most: their receives take memory of the peer.
const MAX_FURTHER: usize = 8;

/// What a connection has for datagrams.
pub(super) struct Carrier {
    process: SocketAddr,
    pd: PdId,
    base: QpId,
    lanes: BTreeMap<QpId, Lane>,
    /// What this end has opened, by code point. None: it is not to be had.
    marked: BTreeMap<u8, Option<QpId>>,
    /// How many the peer has opened.
    of_peer: usize,
    /// Cleared once the connection ends.
    is_up: bool,
}

/// A queue pair that carries datagrams.
struct Lane {
    qp: QpId,
    cq: CqId,
    /// Where datagrams arrive, if any do.
    mr: Option<Mr>,
    /// Code point of what it carries; 0 is the process's.
    dscp: u8,
    /// Sends that it takes at a time.
    most: usize,
    /// Datagrams that wait for room.
    queue: VecDeque<Outgoing>,
    /// Those that were sent, in order, until they are acknowledged.
    sent: VecDeque<Told>,
    /// The peer has granted it.
    is_ready: bool,
}

impl Fabric {
    /// A connection is there: datagrams are received on it, and those that wait are sent.
    pub(super) fn carry(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId, process: SocketAddr) {
        let Some(info) = endpoint.connection(conn) else { return };
        let (pd, cq, Some(&base)) = (info.pd, info.cq, info.qps.first()) else { return };
        let most = endpoint.adapter().usage(base).map_or(1, |u| u.sends.1);
        let Ok(lane) = Lane::new(endpoint.adapter(), (pd, base, cq), most, true) else { return };
        let lanes = BTreeMap::from([(base, lane)]);
        let c = Carrier { process, pd, base, lanes, marked: BTreeMap::new(), of_peer: 0, is_up: true };
        self.datagrams.by_cq.insert(cq, (conn, base));
        self.datagrams.by_process.insert(process, conn);
        self.datagrams.carriers.insert(conn, c);
        for d in self.datagrams.waiting.remove(&process).unwrap_or_default() {
            self.send_on(now, endpoint, conn, d);
        }
    }

    /// A connection has ended.
    pub(super) fn carry_no_more(&mut self, endpoint: &mut Endpoint, conn: ConnId) {
        let Some(mut c) = self.datagrams.carriers.remove(&conn) else { return };
        self.datagrams.by_process.retain(|_, other| *other != conn);
        for (qp, lane) in core::mem::take(&mut c.lanes) {
            self.datagrams.close(endpoint, lane, qp != c.base);
        }
    }

    /// Sends a datagram on a connection that carries, by the queue pair of its code point.
    pub(super) fn send_on(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId, d: Outgoing) {
        let Some(c) = self.datagrams.carriers.get_mut(&conn) else { return self.datagrams.end(d.told) };
        let base = c.base;
        let qp = match (d.dscp, c.marked.get(&d.dscp)) {
            (0, _) => base,
            (_, Some(known)) => known.unwrap_or(base),
            (dscp, None) => self.open_lane(now, endpoint, conn, dscp).unwrap_or(base),
        };
        let c = self.datagrams.carriers.get_mut(&conn);
        match c.and_then(|c| Some((c.is_up, c.lanes.get_mut(&qp)?))) {
            Some((is_up, lane)) => {
                lane.queue.push_back(d);
                if is_up {
                    lane.send(endpoint.adapter());
                }
            }
            None => self.datagrams.end(d.told),
        }
    }

    /// Asks the peer for a queue pair for datagrams with this code point; what is meant for it waits until it is granted.
    fn open_lane(&mut self, now: Time, endpoint: &mut Endpoint, conn: ConnId, dscp: u8) -> Option<QpId> {
        let c = self.datagrams.carriers.get_mut(&conn)?;
        c.marked.insert(dscp, None);
        let most = c.lanes.get(&c.base)?.most;
        let private_data = [encode(0, 0), vec![dscp]].concat();
        let options = QpOptions { private_data, dscp: Some(dscp), ..QpOptions::default() };
        let made = match c.marked.values().flatten().count() < MAX_FURTHER {
            true => Lane::create(endpoint.adapter(), c.pd, dscp, most, false),
            false => Err(Error::Limit("code points of datagrams to one process")),
        };
        let opened = made.and_then(|lane| {
            let asked = endpoint.open_own_qp(now, conn, options, lane.qp);
            if asked.is_err() {
                self.datagrams.close(endpoint, lane, true);
                return Err(Error::Limit("queue pairs of a connection"));
            }
            Ok(lane)
        });
        let c = self.datagrams.carriers.get_mut(&conn)?;
        match opened {
            Ok(lane) => {
                let qp = lane.qp;
                self.datagrams.by_cq.insert(lane.cq, (conn, qp));
                c.marked.insert(dscp, Some(qp));
                c.lanes.insert(qp, lane);
                Some(qp)
            }
            Err(error) => {
                tracing::warn!(peer = %c.process, dscp, %error, "datagrams have the process's code point instead of theirs");
                None
            }
        }
    }

    /// Grants the peer a queue pair for its datagrams with a code point.
    pub(super) fn grant_lane(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        (conn, slot): (ConnId, u16),
        dscp: u8,
    ) {
        let Some(c) = self.datagrams.carriers.get_mut(&conn) else {
            return endpoint.refuse_requested_qp(now, conn, slot, NOT_HERE);
        };
        let lane = match c.of_peer < MAX_FURTHER {
            true => Lane::create(endpoint.adapter(), c.pd, dscp & 0x3f, 1, true),
            false => Err(Error::Limit("code points of datagrams")),
        };
        let Ok(lane) = lane else { return endpoint.refuse_requested_qp(now, conn, slot, TOO_MANY) };
        if endpoint.accept_qp(now, conn, slot, lane.qp).is_err() {
            // The peer was told, or is gone.
            self.datagrams.close(endpoint, lane, true);
            return;
        }
        c.of_peer += 1;
        self.datagrams.by_cq.insert(lane.cq, (conn, lane.qp));
        c.lanes.insert(lane.qp, lane);
    }

    /// A queue pair for datagrams may be used. False when it is none.
    pub(super) fn on_lane_ready(&mut self, endpoint: &mut Endpoint, conn: ConnId, qp: QpId) -> bool {
        let Some(lane) = self.datagrams.carriers.get_mut(&conn).and_then(|c| c.lanes.get_mut(&qp)) else {
            return false;
        };
        lane.is_ready = true;
        lane.send(endpoint.adapter());
        true
    }

    /// A queue pair for datagrams was refused, or has ended: what waits for it takes queue pair 0. False when it is none.
    pub(super) fn on_lane_gone(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        conn: ConnId,
        qp: QpId,
    ) -> bool {
        let Some(c) = self.datagrams.carriers.get_mut(&conn).filter(|c| c.base != qp) else { return false };
        let Some(mut lane) = c.lanes.remove(&qp) else { return false };
        if lane.mr.is_some() {
            c.of_peer -= 1;
        } else {
            tracing::warn!(peer = %c.process, dscp = lane.dscp, "datagrams have the process's code point instead of theirs");
            c.marked.insert(lane.dscp, None);
        }
        let left = core::mem::take(&mut lane.queue);
        self.datagrams.close(endpoint, lane, true);
        left.into_iter().for_each(|d| self.send_on(now, endpoint, conn, d));
        true
    }

    /// Takes what has arrived on the completion queue of a queue pair that carries. False when it is none of those.
    pub(super) fn take_arrived(&mut self, endpoint: &mut Endpoint, cq: CqId) -> bool {
        let Some(&(conn, qp)) = self.datagrams.by_cq.get(&cq) else { return false };
        loop {
            while let Some(wc) = endpoint.adapter().poll_cq(cq) {
                self.on_carried(endpoint, (conn, qp), &wc);
            }
            let _ = endpoint.adapter().req_notify_cq(cq, false);
            if endpoint.adapter().cq_len(cq).is_none_or(|n| n == 0) {
                break;
            }
        }
        let c = self.datagrams.carriers.get_mut(&conn).filter(|c| c.is_up);
        if let Some(lane) = c.and_then(|c| c.lanes.get_mut(&qp)) {
            lane.send(endpoint.adapter());
        }
        true
    }

    fn on_carried(&mut self, endpoint: &mut Endpoint, (conn, qp): (ConnId, QpId), wc: &WorkCompletion) {
        let Some(c) = self.datagrams.carriers.get_mut(&conn) else { return };
        let lost = if wc.status == Status::Success { Vec::new() } else { c.on_failed(qp) };
        let Some(lane) = c.lanes.get_mut(&qp) else { return };
        let sent = if wc.opcode == Opcode::Recv { None } else { lane.sent.pop_front() };
        if wc.status != Status::Success || wc.opcode != Opcode::Recv {
            sent.into_iter().chain(lost).for_each(|told| self.datagrams.end(told));
            return;
        }
        let Some(mr) = &lane.mr else { return };
        let (process, dscp) = (c.process, lane.dscp);
        let mut bytes = core::mem::take(&mut self.datagrams.arrived);
        bytes.resize(wc.byte_len.min(SLOT) as usize, 0);
        if endpoint.adapter().read_mr(mr.id, wc.wr_id * SLOT, &mut bytes).is_ok()
            && !self.take_management(process, &bytes)
        {
            self.deliver(endpoint, process.port(), dscp, &bytes);
        }
        self.datagrams.arrived = bytes;
        let c = self.datagrams.carriers.get_mut(&conn);
        if let Some(lane) = c.and_then(|c| c.lanes.get_mut(&qp)) {
            lane.receive(endpoint.adapter(), wc.wr_id);
        }
    }
}

impl Datagrams {
    /// Gives back what a queue pair had, and itself unless it is the connection's. What has not arrived is lost.
    fn close(&mut self, endpoint: &mut Endpoint, mut lane: Lane, is_own: bool) {
        self.by_cq.remove(&lane.cq);
        let adapter = endpoint.adapter();
        while adapter.poll_cq(lane.cq).is_some() {}
        // None of these fails: all of it is this lane's.
        if is_own {
            let _ = adapter.destroy_qp(lane.qp).and_then(|()| adapter.destroy_cq(lane.cq));
        }
        if let Some(mr) = &lane.mr {
            let _ = adapter.dereg_mr(mr.id);
        }
        lane.drain().into_iter().for_each(|told| self.end(told));
    }
}

impl Carrier {
    /// A queue pair is in error. Of queue pair 0 the connection's end says so for all; what waits for a further one is lost, and
    /// later datagrams of its code point take queue pair 0.
    fn on_failed(&mut self, qp: QpId) -> Vec<Told> {
        if qp == self.base {
            self.is_up = false;
            return Vec::new();
        }
        let Some(lane) = self.lanes.get_mut(&qp) else { return Vec::new() };
        lane.is_ready = false;
        if let Some(of) = self.marked.get_mut(&lane.dscp).filter(|of| **of == Some(qp)) {
            *of = None;
        }
        lane.queue.drain(..).map(|d| d.told).collect()
    }

    /// Takes all that is on its way.
    pub(super) fn drain(&mut self) -> Vec<Told> {
        self.lanes.values_mut().flat_map(Lane::drain).collect()
    }

    /// Whether something has not left yet, or not arrived.
    pub(super) fn is_busy(&self) -> bool {
        self.is_up && self.lanes.values().any(|l| !(l.queue.is_empty() && l.sent.is_empty()))
    }
}

impl Lane {
    /// By a queue pair of its own. `receives`: datagrams arrive on it.
    fn create(adapter: &mut Adapter, pd: PdId, dscp: u8, most: usize, receives: bool) -> Result<Lane, Error> {
        let cq = adapter.create_cq(most + RECEIVES as usize)?;
        let init = QpInit { max_send_wr: most, max_recv_wr: RECEIVES as usize, ..QpInit::new(cq, cq) };
        let qp = adapter.create_qp(pd, init);
        let ready = qp.and_then(|qp| {
            adapter.modify_qp(qp, QpState::Rtr)?;
            adapter.modify_qp(qp, QpState::Rts)?;
            Lane::new(adapter, (pd, qp, cq), most, receives)
        });
        if ready.is_err() {
            let _ = qp.and_then(|qp| adapter.destroy_qp(qp)).and_then(|()| adapter.destroy_cq(cq));
        }
        Ok(Lane { dscp, is_ready: receives, ..ready? })
    }

    /// By a queue pair that there is.
    fn new(
        adapter: &mut Adapter,
        (pd, qp, cq): (PdId, QpId, CqId),
        most: usize,
        receives: bool,
    ) -> Result<Lane, Error> {
        let mut mr = None;
        if receives {
            let memory = Memory::zeroed((RECEIVES * SLOT) as usize);
            mr = Some(adapter.reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|e| e.0)?);
        }
        let (queue, sent) = (VecDeque::new(), VecDeque::new());
        let mut lane = Lane { qp, cq, mr, dscp: 0, most, queue, sent, is_ready: true };
        for slot in 0..RECEIVES {
            lane.receive(adapter, slot);
        }
        adapter.req_notify_cq(cq, false)?;
        Ok(lane)
    }

    /// Posts the receive of a slot.
    fn receive(&mut self, adapter: &mut Adapter, slot: u64) {
        let Some(mr) = &self.mr else { return };
        let sges = Sge { lkey: mr.lkey, offset: slot * SLOT, len: SLOT }.into();
        let _ = adapter.post_recv(self.qp, RecvWr { wr_id: slot, sges });
    }

    /// Sends what waits, as far as the queue takes it. Completions say that there is room again.
    fn send(&mut self, adapter: &mut Adapter) {
        while self.is_ready
            && self.sent.len() < self.most
            && let Some(Outgoing { bytes, told, .. }) = self.queue.pop_front()
        {
            let wr = SendWr::new(0, SendOp::Send, Data::Inline(bytes));
            // There is room. Where the queue pair has failed, its end says so for all.
            let _ = adapter.post_send(self.qp, wr);
            self.sent.push_back(told);
        }
    }

    fn drain(&mut self) -> Vec<Told> {
        self.sent.drain(..).chain(self.queue.drain(..).map(|d| d.told)).collect()
    }
}
