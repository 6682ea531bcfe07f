//! Datagram queue pairs (InfiniBand's UD): each message names its destination.
//!
//! Datagrams between two processes travel as sends on queue pairs of their connection (`carrier.rs`): they share its pacing and
//! encryption, and are sent again when packets are lost. A receiver that has posted no receive drops them.
//!
//! The first bytes of such a send are: version 1 (one byte), flags (bit 0: immediate data, bit 1: solicited; one byte), the numbers of the queue pairs
//! that send and receive, the Q_Key and the immediate data (four bytes each, big endian), and the addresses from which and to which
//! (16 bytes each, IPv4 mapped). What follows is the payload.

use super::Fabric;
use super::carrier::Carrier;
use crate::completion::{Completion, CompletionQueue};
use crate::queue_pair::{Posted, QueuePair};
use base::{KeyMap, Time};
use endpoint::{ConnId, Endpoint};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use verbs::{CqId, Data, InlineBytes, Opcode, PdId, QpId, RecvWr, SendOp, SendWr, SrqId, Status};

const VERSION: u8 = 1;
const HAS_IMM: u8 = 1;
const IS_SOLICITED: u8 = 2;
pub(super) const HEADER: usize = 50;
/// Longest payload of a datagram: the largest MTU that InfiniBand has.
pub const MAX_DATAGRAM: usize = 4096;
/// Bytes in front of the payload in a receive: the global routing header.
pub const GRH: usize = 40;
/// Datagrams that wait for a connection at most; further ones are lost.
pub(super) const MAX_WAITING: usize = 1_024;

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
    /// Code point of its packets: 0 to 63, of which 0 means the process's.
    pub dscp: u8,
}

/// What a work request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Towards {
    /// The queue pair's peer.
    Peer,
    /// The receive queue of this number in the peer's process.
    Queue(u32),
    /// A queue pair somewhere: it is a datagram.
    Host(Destination),
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
    /// Where it takes receives from instead.
    srq: Option<SrqId>,
    sends_taken: u64,
    /// Datagrams that were taken and of which the program is not told yet, in order, and the running number of the first.
    sends: VecDeque<Posting>,
    first_send: u64,
    receives_taken: u64,
    /// Completions for which there is no room.
    waiting: VecDeque<(bool, Completion)>,
}

/// A datagram on its way, and what its queue pair is told when it has arrived, or is known to be lost. Told sooner, a program
/// might end before it has left.
pub(super) struct Outgoing {
    pub(super) bytes: InlineBytes,
    pub(super) told: Told,
    /// See [`Destination::dscp`].
    pub(super) dscp: u8,
}

/// A datagram that was posted. The program is told in the order in which it has posted, whatever way they take: a completion means
/// that all before it have ended, too.
struct Posting {
    has_ended: bool,
    /// None where success makes no completion.
    told: Option<Completion>,
}

/// Who is told of a datagram's end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// Nobody.
    Nobody,
    /// The queue pair of this number, of its datagram with this running number.
    Sender(u32, u64),
    /// The datagram of which it is a copy.
    Copy(u64),
}

/// Datagram queue pairs, and the connections that carry for them.
#[derive(Default)]
pub(super) struct Datagrams {
    pub(super) pairs: BTreeMap<u32, DatagramPair>,
    pub(super) carriers: BTreeMap<ConnId, Carrier>,
    pub(super) by_cq: KeyMap<CqId, (ConnId, QpId)>,
    /// The connection that datagrams to a process take. Two processes that connect to each other at once have two.
    pub(super) by_process: HashMap<SocketAddr, ConnId>,
    /// Datagrams for processes to which there is no connection yet.
    pub(super) waiting: HashMap<SocketAddr, VecDeque<Outgoing>>,
    /// Datagrams of which copies are on their way: how many, and who is told when all have ended.
    copied: HashMap<u64, (usize, Told)>,
    next_copied: u64,
    /// The bytes of the datagram that is looked at: the same memory each time.
    pub(super) arrived: Vec<u8>,
    /// Nothing leaves any more.
    is_dead: bool,
}

pub(super) struct Header {
    pub(super) imm: Option<u32>,
    pub(super) solicited: bool,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) q_key: u32,
    pub(super) own: Ipv6Addr,
    pub(super) host: Ipv6Addr,
    /// Of the queue pair that carries it; not in its bytes.
    pub(super) dscp: u8,
}

pub(super) fn v6(a: IpAddr) -> Ipv6Addr {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

impl Header {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let solicited = if self.solicited { IS_SOLICITED } else { 0 };
        out.extend([VERSION, u8::from(self.imm.is_some()) | solicited]);
        for n in [self.from, self.to, self.q_key, self.imm.unwrap_or(0)] {
            out.extend(n.to_be_bytes());
        }
        out.extend(self.own.octets());
        out.extend(self.host.octets());
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<(Header, &[u8])> {
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
        let solicited = head[1] & IS_SOLICITED != 0;
        let (own, host) = (address(18)?, address(34)?);
        Some((Header { imm, solicited, from, to, q_key, own, host, dscp: 0 }, payload))
    }

    /// The global routing header that the receiver finds in front of the payload: that of IPv6, or for IPv4 its header in the last
    /// 20 bytes, as RoCEv2 has it.
    fn grh(&self, payload: usize) -> [u8; GRH] {
        let mut grh = [0; GRH];
        let (next_udp, hops) = (17, 64);
        match (self.own.to_ipv4_mapped(), self.host.to_ipv4_mapped()) {
            (Some(own), Some(host)) => {
                let ip = &mut grh[20..];
                (ip[0], ip[1], ip[8], ip[9]) = (0x45, self.dscp << 2, hops, next_udp);
                ip[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
                ip[12..16].copy_from_slice(&own.octets());
                ip[16..20].copy_from_slice(&host.octets());
            }
            _ => {
                // Version, traffic class, flow label.
                (grh[0], grh[1]) = (0x60 | self.dscp >> 2, self.dscp << 6);
                (grh[6], grh[7]) = (next_udp, hops);
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
        srq: Option<SrqId>,
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
            srq,
            sends_taken: 0,
            sends: VecDeque::new(),
            first_send: 0,
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
            let n = p.note_send(Some(c));
            p.end_send(n);
        }
        p.settle();
    }

    /// What was posted to it leaves all the same.
    pub(crate) fn remove_datagram_pair(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) -> bool {
        self.take_datagrams(now, endpoint, number);
        let Some(p) = self.datagrams.pairs.remove(&number) else { return false };
        if let Some(srq) = p.srq {
            endpoint.adapter().release_srq(srq);
        }
        self.groups.forget(number);
        self.numbers.give_back(number);
        true
    }

    /// Nothing leaves any more: all that is posted ends, and so does what is posted from here on.
    pub(super) fn fail_datagrams(&mut self) {
        let d = &mut self.datagrams;
        d.is_dead = true;
        let mut lost = self.groups.drain();
        for c in d.carriers.values_mut() {
            lost.extend(c.drain());
        }
        lost.extend(d.waiting.drain().flat_map(|(_, all)| all).map(|d| d.told));
        lost.into_iter().for_each(|told| d.end(told));
        let numbers: Vec<u32> = d.pairs.keys().copied().collect();
        numbers.into_iter().for_each(|n| self.flush_datagram_pair(n));
    }

    /// Hands over completions for which there was no room.
    pub(super) fn settle_datagrams(&mut self) {
        self.datagrams.pairs.values_mut().filter(|p| !p.waiting.is_empty()).for_each(DatagramPair::settle);
    }

    /// Sends what was posted to a datagram queue pair.
    pub(super) fn take_datagrams(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        if self.datagrams.is_dead {
            return self.flush_datagram_pair(number);
        }
        loop {
            let Some(p) = self.datagrams.pairs.get_mut(&number) else { return };
            p.take_receives();
            let Some((wr, to)) = p.posted.sends.pop() else { break };
            p.sends_taken += 1;
            match p.datagram(endpoint, &wr, to) {
                Ok((to, bytes)) => {
                    let told = wr.signaled.then(|| p.completion(wr.wr_id, Status::Success, Opcode::Send));
                    let told = Told::Sender(number, p.note_send(told));
                    self.send_datagram(now, endpoint, to, Outgoing { bytes, told, dscp: to.dscp });
                }
                Err(status) => {
                    let failed = p.completion(wr.wr_id, status, Opcode::Send);
                    let n = p.note_send(Some(failed));
                    p.end_send(n);
                }
            }
        }
        if let Some(p) = self.datagrams.pairs.get_mut(&number) {
            p.settle();
        }
    }

    pub(super) fn send_datagram(&mut self, now: Time, endpoint: &mut Endpoint, to: Destination, d: Outgoing) {
        if super::groups::is_for_group(&to) {
            return self.send_to_group(now, endpoint, to, d);
        }
        match crate::address::address_of(to.host, to.number) {
            Some(process) => self.send_to_process(now, endpoint, process, d),
            None => self.datagrams.end(d.told),
        }
    }

    pub(super) fn send_to_process(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        process: SocketAddr,
        d: Outgoing,
    ) {
        if let Some(&conn) = self.datagrams.by_process.get(&process) {
            return self.send_on(now, endpoint, conn, d);
        }
        let queue = self.datagrams.waiting.entry(process).or_default();
        if queue.len() >= MAX_WAITING {
            return self.datagrams.end(d.told);
        }
        queue.push_back(d);
        if !self.peers.contains_key(&process) && !self.connect(now, endpoint, process) {
            self.drop_waiting(process);
            self.tell_gone(process);
        }
    }

    /// Nobody can be reached there: what waits is lost.
    pub(super) fn drop_waiting(&mut self, process: SocketAddr) {
        for d in self.datagrams.waiting.remove(&process).unwrap_or_default() {
            self.datagrams.end(d.told);
        }
    }

    /// A datagram for a queue pair of ours, or for the members of a group.
    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint, port: u16, dscp: u8, bytes: &[u8]) {
        let Some((head, payload)) = Header::parse(bytes) else { return };
        let head = Header { dscp, ..head };
        // Who sent it is not for it to say.
        let is_from = crate::address::port_of(head.from) == Some(port);
        match head.to {
            _ if !is_from => {}
            super::groups::EVERY_MEMBER => self.deliver_to_group(endpoint, &head, payload),
            number => self.datagrams.put(endpoint, number, &head, payload),
        }
    }
}

impl DatagramPair {
    fn completion(&self, wr_id: u64, status: Status, opcode: Opcode) -> Completion {
        let (number, byte_len, imm, peer) = (self.handle.number(), 0, None, 0);
        Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm,
            number,
            peer,
            solicited: false,
            has_grh: false,
            is_v4: false,
            invalidated: None,
        }
    }

    /// The bytes of a work request with their header, and where they go.
    fn datagram(
        &self,
        endpoint: &mut Endpoint,
        wr: &SendWr,
        to: Towards,
    ) -> Result<(Destination, InlineBytes), Status> {
        let Towards::Host(to) = to else { return Err(Status::LocalProtection) };
        let imm = if let SendOp::SendImm { imm } = wr.op { Some(imm) } else { None };
        let (from, solicited) = (self.handle.number(), wr.solicited);
        let (own, host) = (v6(to.own), v6(to.host));
        let mut bytes = Vec::with_capacity(HEADER + MAX_DATAGRAM);
        Header { imm, solicited, from, to: to.number, q_key: to.q_key, own, host, dscp: 0 }.put(&mut bytes);
        match &wr.data {
            Data::Inline(b) if b.len() > MAX_DATAGRAM => return Err(Status::LocalLength),
            Data::Inline(b) => bytes.extend_from_slice(b),
            Data::Sges(s) => {
                let read = endpoint.adapter().read_sges(self.pd, s, MAX_DATAGRAM as u64, &mut bytes);
                read.map_err(|e| match e {
                    verbs::Error::TooLong { .. } => Status::LocalLength,
                    _ => Status::LocalProtection,
                })?;
            }
        }
        Ok((to, InlineBytes::from_vec(bytes)))
    }

    /// Enters a datagram that was taken; gives its running number.
    fn note_send(&mut self, told: Option<Completion>) -> u64 {
        self.sends.push_back(Posting { has_ended: false, told });
        self.first_send + self.sends.len() as u64 - 1
    }

    /// A datagram has arrived, is lost, or cannot be sent.
    fn end_send(&mut self, n: u64) {
        let at = n.checked_sub(self.first_send).and_then(|at| usize::try_from(at).ok());
        if let Some(p) = at.and_then(|at| self.sends.get_mut(at)) {
            p.has_ended = true;
        }
        while self.sends.front().is_some_and(|p| p.has_ended) {
            let Some(p) = self.sends.pop_front() else { break };
            self.first_send += 1;
            self.waiting.extend(p.told.map(|c| (true, c)));
        }
        self.settle();
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
            self.handle.set_outstanding_sends(self.sends_taken, self.sends.len() as u64 + sends);
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

impl Datagrams {
    /// A datagram has arrived, or is lost.
    pub(super) fn end(&mut self, told: Told) {
        match told {
            Told::Nobody => {}
            Told::Sender(from, n) => {
                if let Some(p) = self.pairs.get_mut(&from) {
                    p.end_send(n);
                }
            }
            Told::Copy(n) => {
                let Some((left, of)) = self.copied.get_mut(&n) else { return };
                *left -= 1;
                if *left == 0 {
                    let of = *of;
                    self.copied.remove(&n);
                    // Copies are not copied again.
                    if !matches!(of, Told::Copy(_)) {
                        self.end(of);
                    }
                }
            }
        }
    }

    /// Whether something has not left yet, or not arrived.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting.values().any(|q| !q.is_empty()) || self.carriers.values().any(Carrier::is_busy)
    }

    /// A datagram leaves as so many copies; gives the number that they name. None: it has ended, there are none.
    pub(super) fn split(&mut self, told: Told, copies: usize) -> Option<u64> {
        if copies == 0 {
            self.end(told);
            return None;
        }
        self.next_copied += 1;
        self.copied.insert(self.next_copied, (copies, told));
        Some(self.next_copied)
    }

    /// A datagram for a queue pair of ours: dropped unless everything about it is right.
    pub(super) fn put(&mut self, endpoint: &mut Endpoint, number: u32, head: &Header, payload: &[u8]) {
        let Some(p) = self.pairs.get_mut(&number) else { return };
        p.take_receives();
        if !p.is_ready || p.q_key != head.q_key || !p.recv_cq.has_room() {
            return;
        }
        let grh = head.grh(payload.len());
        let parts = [&grh[..], payload];
        let filled = match p.srq {
            Some(srq) => endpoint.adapter().fill_srq_recv(srq, &parts),
            None => {
                let wr = p.receives.pop_front();
                wr.map(|wr| (wr.wr_id, endpoint.adapter().write_sges(p.pd, &wr.sges, &parts)))
            }
        };
        let Some((wr_id, written)) = filled else { return };
        let status = match written {
            Ok(()) => Status::Success,
            Err(verbs::Error::TooLong { .. }) => Status::LocalLength,
            Err(_) => Status::LocalProtection,
        };
        let c = Completion {
            byte_len: (GRH + payload.len()) as u64,
            imm: head.imm,
            peer: head.from,
            solicited: head.solicited,
            has_grh: true,
            is_v4: head.host.to_ipv4_mapped().is_some(),
            ..p.completion(wr_id, status, Opcode::Recv)
        };
        p.waiting.push_back((false, c));
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
            let solicited = imm.is_none();
            Header { imm, solicited, from: 1, to: 2, q_key: 3, own, host, dscp: 0 }.put(&mut bytes);
            assert_eq!(bytes.len(), HEADER);
            assert!((0..HEADER).all(|n| Header::parse(&bytes[..n]).is_none()));
            bytes.extend(b"payload");
            let (h, payload) = Header::parse(&bytes).expect("a header");
            assert_eq!(h.solicited, solicited);
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
