//! Datagram queue pairs (InfiniBand's UD): each message names its destination.
//!
//! Datagrams between two processes travel as sends on queue pair 0 of their connection, which is there from the start: they share its
//! pacing and encryption, and are sent again when packets are lost. A receiver that has posted no receive drops them.
//!
//! The first bytes of such a send are: version 1 (one byte), flags (bit 0: immediate data; one byte), the numbers of the queue pairs
//! that send and receive, the Q_Key and the immediate data (four bytes each, big endian), and the addresses from which and to which
//! (16 bytes each, IPv4 mapped). What follows is the payload.

use super::Fabric;
use crate::completion::{Completion, CompletionQueue};
use crate::queue_pair::{Posted, QueuePair};
use base::{KeyMap, Time};
use endpoint::{ConnId, Endpoint};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use verbs::{
    Access, CqId, Data, Memory, Mr, Opcode, PdId, QpId, RecvWr, SendOp, SendWr, Sge, Status, WorkCompletion,
};

const VERSION: u8 = 1;
const HAS_IMM: u8 = 1;
const HEADER: usize = 50;
/// Longest payload of a datagram: the largest MTU that InfiniBand has.
pub const MAX_DATAGRAM: usize = 4096;
/// Bytes in front of the payload in a receive: the global routing header.
pub const GRH: usize = 40;
/// Receives that are posted for datagrams on each connection.
const RECEIVES: u64 = 128;
const SLOT: u64 = (HEADER + MAX_DATAGRAM) as u64;
/// Datagrams that wait for a connection at most; further ones are lost.
const MAX_WAITING: usize = 1_024;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address of this host that it leaves from.
    pub own: IpAddr,
    /// The other host's.
    pub host: IpAddr,
    /// The queue pair there.
    pub number: u32,
    /// What that queue pair must have been given as its Q_Key.
    pub q_key: u32,
}

/// A datagram queue pair.
pub(super) struct DatagramPair {
    handle: Arc<QueuePair>,
    pd: PdId,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    pub(super) q_key: u32,
    /// Whether it receives.
    pub(super) is_ready: bool,
    posted: Posted,
    receives: VecDeque<RecvWr>,
    sends_taken: u64,
    /// Datagrams that are on their way.
    in_flight: u64,
    receives_taken: u64,
    /// Completions for which there is no room.
    waiting: VecDeque<(bool, Completion)>,
}

/// A datagram on its way, and what its queue pair is told when it has arrived, or is known to be lost. Told sooner, a program
/// might end before it has left.
struct Outgoing {
    bytes: Vec<u8>,
    from: u32,
    /// None where success makes no completion.
    told: Option<Completion>,
}

/// What a connection has for datagrams.
struct Carrier {
    process: SocketAddr,
    qp: QpId,
    cq: CqId,
    mr: Mr,
    /// Datagrams that wait for room in the queue pair.
    queue: VecDeque<Outgoing>,
    /// Those that were sent, in order, until they are acknowledged.
    sent: VecDeque<(u32, Option<Completion>)>,
    is_up: bool,
}

/// Datagram queue pairs, and the connections that carry for them.
#[derive(Default)]
pub(super) struct Datagrams {
    pub(super) pairs: BTreeMap<u32, DatagramPair>,
    carriers: BTreeMap<ConnId, Carrier>,
    by_cq: KeyMap<CqId, ConnId>,
    /// The connection that datagrams to a process take. Two processes that connect to each other at once have two.
    by_process: HashMap<SocketAddr, ConnId>,
    /// Datagrams for processes to which there is no connection yet.
    waiting: HashMap<SocketAddr, VecDeque<Outgoing>>,
}

struct Header {
    imm: Option<u32>,
    from: u32,
    to: u32,
    q_key: u32,
    own: Ipv6Addr,
    host: Ipv6Addr,
}

fn v6(a: IpAddr) -> Ipv6Addr {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

impl Header {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend([VERSION, u8::from(self.imm.is_some())]);
        for n in [self.from, self.to, self.q_key, self.imm.unwrap_or(0)] {
            out.extend(n.to_be_bytes());
        }
        out.extend(self.own.octets());
        out.extend(self.host.octets());
    }

    fn parse(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let (head, payload) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| {
            let four = head.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(four))
        };
        let address = |at: usize| {
            let octets: [u8; 16] = head.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets))
        };
        if head[0] != VERSION || payload.len() > MAX_DATAGRAM {
            return None;
        }
        let imm = number(14).filter(|_| head[1] & HAS_IMM != 0);
        let (from, to, q_key) = (number(2)?, number(6)?, number(10)?);
        Some((Header { imm, from, to, q_key, own: address(18)?, host: address(34)? }, payload))
    }

    /// The global routing header that the receiver finds in front of the payload: that of IPv6, or for IPv4 its header in the last
    /// 20 bytes, as RoCEv2 has it.
    fn grh(&self, payload: usize) -> [u8; GRH] {
        let mut grh = [0; GRH];
        let (next_udp, hops) = (17, 64);
        match (self.own.to_ipv4_mapped(), self.host.to_ipv4_mapped()) {
            (Some(own), Some(host)) => {
                let ip = &mut grh[20..];
                (ip[0], ip[8], ip[9]) = (0x45, hops, next_udp);
                ip[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
                ip[12..16].copy_from_slice(&own.octets());
                ip[16..20].copy_from_slice(&host.octets());
            }
            _ => {
                (grh[0], grh[6], grh[7]) = (0x60, next_udp, hops);
                grh[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
                grh[8..24].copy_from_slice(&self.own.octets());
                grh[24..40].copy_from_slice(&self.host.octets());
            }
        }
        grh
    }
}

impl Fabric {
    /// Makes a datagram queue pair.
    pub(crate) fn insert_datagram_pair(
        &mut self,
        pd: PdId,
        (send, receive): (CqId, CqId),
        (max_send, max_recv): (usize, usize),
    ) -> Option<Arc<QueuePair>> {
        let (send_cq, recv_cq) = (self.cqs.get(&send)?.clone(), self.cqs.get(&receive)?.clone());
        let number = self.numbers.take()?;
        let (qp, posted) = QueuePair::new(number, max_send, max_recv);
        let handle = Arc::new(qp);
        let pair = DatagramPair {
            handle: handle.clone(),
            pd,
            send_cq,
            recv_cq,
            q_key: 0,
            is_ready: false,
            posted,
            receives: VecDeque::new(),
            sends_taken: 0,
            in_flight: 0,
            receives_taken: 0,
            waiting: VecDeque::new(),
        };
        self.datagrams.pairs.insert(number, pair);
        Some(handle)
    }

    /// Sets a datagram queue pair's key and whether it receives. False when there is none of this number.
    pub(crate) fn set_datagram_pair(&mut self, number: u32, q_key: Option<u32>, is_ready: bool) -> bool {
        let Some(p) = self.datagrams.pairs.get_mut(&number) else { return false };
        p.q_key = q_key.unwrap_or(p.q_key);
        p.is_ready = is_ready;
        true
    }

    /// Ends all that is posted to a datagram queue pair: it goes into error.
    pub(crate) fn flush_datagram_pair(&mut self, number: u32) {
        let Some(p) = self.datagrams.pairs.get_mut(&number) else { return };
        p.is_ready = false;
        p.take_receives();
        for wr in core::mem::take(&mut p.receives) {
            let c = p.completion(wr.wr_id, Status::FlushError, Opcode::Recv);
            p.waiting.push_back((false, c));
        }
        while let Some((wr, _)) = p.posted.sends.pop() {
            p.sends_taken += 1;
            let c = p.completion(wr.wr_id, Status::FlushError, Opcode::Send);
            p.waiting.push_back((true, c));
        }
        p.settle();
    }

    pub(crate) fn remove_datagram_pair(&mut self, number: u32) -> bool {
        let found = self.datagrams.pairs.remove(&number).is_some();
        if found {
            self.numbers.give_back(number);
        }
        found
    }

    /// Hands over completions for which there was no room.
    pub(super) fn settle_datagrams(&mut self) {
        self.datagrams.pairs.values_mut().filter(|p| !p.waiting.is_empty()).for_each(DatagramPair::settle);
    }

    /// Sends what was posted to a datagram queue pair.
    pub(super) fn take_datagrams(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        loop {
            let Some(p) = self.datagrams.pairs.get_mut(&number) else { return };
            p.take_receives();
            let Some((wr, to)) = p.posted.sends.pop() else { break };
            p.sends_taken += 1;
            let sent = match (&wr.data, to) {
                (_, None) => Err(Status::LocalProtection),
                (Data::Inline(b), _) => Ok(b.to_vec()),
                (Data::Sges(s), _) => {
                    endpoint.adapter().read_sges(p.pd, s, MAX_DATAGRAM as u64).map_err(|e| match e {
                        verbs::Error::TooLong { .. } => Status::LocalLength,
                        _ => Status::LocalProtection,
                    })
                }
            };
            let told = |status| p.completion(wr.wr_id, status, Opcode::Send);
            match (sent, to) {
                (Ok(payload), Some(to)) => {
                    let imm = if let SendOp::SendImm { imm } = wr.op { Some(imm) } else { None };
                    let (own, host) = (v6(to.own), v6(to.host));
                    let head = Header { imm, from: number, to: to.number, q_key: to.q_key, own, host };
                    let mut bytes = Vec::with_capacity(HEADER + payload.len());
                    head.put(&mut bytes);
                    bytes.extend_from_slice(&payload);
                    let told = wr.signaled.then(|| told(Status::Success));
                    p.in_flight += 1;
                    self.send_datagram(now, endpoint, to, Outgoing { bytes, from: number, told });
                }
                (sent, _) => {
                    let failed = told(sent.err().unwrap_or(Status::LocalProtection));
                    p.waiting.push_back((true, failed));
                    p.settle();
                }
            }
        }
        if let Some(p) = self.datagrams.pairs.get_mut(&number) {
            p.settle();
        }
    }

    fn send_datagram(&mut self, now: Time, endpoint: &mut Endpoint, to: Destination, d: Outgoing) {
        let Some(process) = crate::address::address_of(to.host, to.number) else {
            return self.datagrams.end(d.from, d.told);
        };
        let conn = self.datagrams.by_process.get(&process);
        if let Some(c) = conn.and_then(|conn| self.datagrams.carriers.get_mut(conn)) {
            c.queue.push_back(d);
            return c.send(endpoint);
        }
        let queue = self.datagrams.waiting.entry(process).or_default();
        if queue.len() >= MAX_WAITING {
            return self.datagrams.end(d.from, d.told);
        }
        queue.push_back(d);
        if !self.peers.contains_key(&process) && !self.connect(now, endpoint, process) {
            self.drop_waiting(process);
        }
    }

    /// A connection is there: datagrams are received on it, and those that wait are sent.
    pub(super) fn carry(&mut self, endpoint: &mut Endpoint, conn: ConnId, process: SocketAddr) {
        let Some(info) = endpoint.connection(conn) else { return };
        let (pd, cq, Some(&qp)) = (info.pd, info.cq, info.qps.first()) else { return };
        let memory = Memory::zeroed((RECEIVES * SLOT) as usize);
        let Ok(mr) = endpoint.adapter().reg_mr(pd, memory, Access::LOCAL_WRITE) else { return };
        let queue = self.datagrams.waiting.remove(&process).unwrap_or_default();
        let mut c = Carrier { process, qp, cq, mr, queue, sent: VecDeque::new(), is_up: true };
        for slot in 0..RECEIVES {
            c.receive(endpoint, slot);
        }
        let _ = endpoint.adapter().req_notify_cq(cq, false);
        c.send(endpoint);
        self.datagrams.by_cq.insert(cq, conn);
        self.datagrams.by_process.insert(process, conn);
        self.datagrams.carriers.insert(conn, c);
    }

    /// A connection has ended.
    pub(super) fn carry_no_more(&mut self, endpoint: &mut Endpoint, conn: ConnId) {
        let Some(c) = self.datagrams.carriers.remove(&conn) else { return };
        self.datagrams.by_process.retain(|_, other| *other != conn);
        self.datagrams.by_cq.remove(&c.cq);
        while endpoint.adapter().poll_cq(c.cq).is_some() {}
        let _ = endpoint.adapter().dereg_mr(c.mr.id);
        let lost = c.sent.into_iter().chain(c.queue.into_iter().map(|d| (d.from, d.told)));
        lost.for_each(|(from, told)| self.datagrams.end(from, told));
    }

    /// Nobody can be reached there: what waits is lost.
    pub(super) fn drop_waiting(&mut self, process: SocketAddr) {
        for d in self.datagrams.waiting.remove(&process).unwrap_or_default() {
            self.datagrams.end(d.from, d.told);
        }
    }

    /// Takes what has arrived on the completion queue of a connection. False when it is none of those.
    pub(super) fn take_arrived(&mut self, endpoint: &mut Endpoint, cq: CqId) -> bool {
        let Some(&conn) = self.datagrams.by_cq.get(&cq) else { return false };
        loop {
            while let Some(wc) = endpoint.adapter().poll_cq(cq) {
                self.on_carried(endpoint, conn, &wc);
            }
            let _ = endpoint.adapter().req_notify_cq(cq, false);
            if endpoint.adapter().cq_len(cq).is_none_or(|n| n == 0) {
                break;
            }
        }
        if let Some(c) = self.datagrams.carriers.get_mut(&conn) {
            c.send(endpoint);
        }
        true
    }

    fn on_carried(&mut self, endpoint: &mut Endpoint, conn: ConnId, wc: &WorkCompletion) {
        let Some(c) = self.datagrams.carriers.get_mut(&conn) else { return };
        c.is_up &= wc.status == Status::Success;
        if wc.opcode != Opcode::Recv {
            if let Some((from, told)) = c.sent.pop_front() {
                self.datagrams.end(from, told);
            }
            return;
        }
        if wc.status != Status::Success {
            return;
        }
        let mut bytes = vec![0; wc.byte_len.min(SLOT) as usize];
        if endpoint.adapter().read_mr(c.mr.id, wc.wr_id * SLOT, &mut bytes).is_ok() {
            let port = c.process.port();
            self.deliver(endpoint, port, &bytes);
        }
        if let Some(c) = self.datagrams.carriers.get_mut(&conn) {
            c.receive(endpoint, wc.wr_id);
        }
    }

    /// A datagram for a queue pair of ours: dropped unless everything about it is right.
    fn deliver(&mut self, endpoint: &mut Endpoint, port: u16, bytes: &[u8]) {
        let Some((head, payload)) = Header::parse(bytes) else { return };
        // Who sent it is not for it to say.
        let is_from = crate::address::port_of(head.from) == Some(port);
        let Some(p) = self.datagrams.pairs.get_mut(&head.to).filter(|_| is_from) else { return };
        p.take_receives();
        if !p.is_ready || p.q_key != head.q_key || !p.recv_cq.has_room() {
            return;
        }
        let Some(wr) = p.receives.pop_front() else { return };
        let mut all = head.grh(payload.len()).to_vec();
        all.extend_from_slice(payload);
        let status = match endpoint.adapter().write_sges(p.pd, &wr.sges, &all) {
            Ok(()) => Status::Success,
            Err(verbs::Error::TooLong { .. }) => Status::LocalLength,
            Err(_) => Status::LocalProtection,
        };
        let c = Completion {
            byte_len: all.len() as u64,
            imm: head.imm,
            peer: head.from,
            has_grh: true,
            ..p.completion(wr.wr_id, status, Opcode::Recv)
        };
        p.waiting.push_back((false, c));
        p.settle();
    }
}

impl DatagramPair {
    fn completion(&self, wr_id: u64, status: Status, opcode: Opcode) -> Completion {
        let (number, byte_len, imm, peer) = (self.handle.number(), 0, None, 0);
        Completion { wr_id, status, opcode, byte_len, imm, number, peer, solicited: false, has_grh: false }
    }

    /// The engine looks at what was posted.
    pub(super) fn looked(&self) {
        self.handle.looked();
    }

    fn take_receives(&mut self) {
        while let Some(wr) = self.posted.receives.pop() {
            self.receives_taken += 1;
            self.receives.push_back(wr);
        }
    }

    /// Hands over completions as far as there is room. How many work requests are outstanding is said first: whoever sees a
    /// completion may post again.
    fn settle(&mut self) {
        loop {
            let next = self.waiting.front().copied();
            let next =
                next.filter(|(of_send, _)| if *of_send { &self.send_cq } else { &self.recv_cq }.has_room());
            if next.is_some() {
                self.waiting.pop_front();
            }
            let sends = self.waiting.iter().filter(|(of_send, _)| *of_send).count() as u64;
            self.handle.set_outstanding_sends(self.sends_taken, self.in_flight + sends);
            let receives = self.receives.len() as u64 + (self.waiting.len() as u64 - sends);
            self.handle.set_outstanding_receives(self.receives_taken, receives);
            match next {
                Some((true, c)) => self.send_cq.push(c),
                Some((false, c)) => self.recv_cq.push(c),
                None => return,
            }
        }
    }
}

impl Carrier {
    /// Posts the receive of a slot.
    fn receive(&mut self, endpoint: &mut Endpoint, slot: u64) {
        let sges = Sge { lkey: self.mr.lkey, offset: slot * SLOT, len: SLOT }.into();
        let _ = endpoint.adapter().post_recv(self.qp, RecvWr { wr_id: slot, sges });
    }

    /// Sends what waits, as far as the queue takes it. Completions say that there is room again.
    fn send(&mut self, endpoint: &mut Endpoint) {
        while self.is_up
            && let Some(d) = self.queue.pop_front()
        {
            let data = Data::Inline(d.bytes.as_slice().into());
            if endpoint.adapter().post_send(self.qp, SendWr::new(0, SendOp::Send, data)).is_err() {
                return self.queue.push_front(d);
            }
            self.sent.push_back((d.from, d.told));
        }
    }
}

impl Datagrams {
    /// A datagram has arrived, or is lost.
    fn end(&mut self, from: u32, told: Option<Completion>) {
        let Some(p) = self.pairs.get_mut(&from) else { return };
        p.in_flight = p.in_flight.saturating_sub(1);
        p.waiting.extend(told.map(|c| (true, c)));
        p.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_others_are_refused() {
        let (own, host) =
            (v6("192.0.2.1".parse().expect("an address")), v6("192.0.2.2".parse().expect("one")));
        for imm in [None, Some(7)] {
            let mut bytes = Vec::new();
            Header { imm, from: 1, to: 2, q_key: 3, own, host }.put(&mut bytes);
            assert_eq!(bytes.len(), HEADER);
            assert!((0..HEADER).all(|n| Header::parse(&bytes[..n]).is_none()));
            bytes.extend(b"payload");
            let (h, payload) = Header::parse(&bytes).expect("a header");
            assert_eq!((h.imm, h.from, h.to, h.q_key, h.own, h.host), (imm, 1, 2, 3, own, host));
            assert_eq!(payload, b"payload");
            let ip = &h.grh(7)[20..];
            assert_eq!((ip[0], &ip[12..16], &ip[16..20]), (0x45, &[192, 0, 2, 1][..], &[192, 0, 2, 2][..]));
            bytes[0] = 2;
            assert!(Header::parse(&bytes).is_none());
            bytes[0] = VERSION;
            bytes.resize(HEADER + MAX_DATAGRAM + 1, 0);
            assert!(Header::parse(&bytes).is_none(), "longer than any datagram");
        }
    }
}
