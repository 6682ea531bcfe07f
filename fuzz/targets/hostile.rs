//! A peer that was let in and then says whatever it wants: control frames, data headers and payloads of the
//! fuzzer's choice in packets that authenticate. No panic, no byte outside of what the peer may write, and no
//! memory beyond a limit.
//!
//! Both ends ask for module CRC32C, whose packets anybody can make. Input: byte 0 chooses the victim (server or
//! client); then operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;
mod count;
mod guarded;

use base::Span;
use bytes::Bytes;
use guarded::{Guarded, UNTOUCHED};
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{ConnId, Event, Network, QpOptions, Route};
use pair::{InFlight, Pair, config, server_config};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use verbs::{Access, Memory, Mr, QpId, RecvWr, SendOp, SendWr, Sge, Sges};
use wire::frame::Addresses;
use wire::packet::{SHORT_CLEAR, flag};
use wire::{
    CcAnswer, CcOffer, CcPropose, CcRuns, CcTopic, Clear, DataHeader, DataOp, Feedback, Floor, Frame,
    LaneOpen, Module, Put, QpOpen, Tail,
};

/// Bytes of a tag of module CRC32C.
const TAG: usize = 4;
/// Operations of one input at most.
const MAX_OPS: usize = 512;
/// What a number stands for: the connection, or a queue pair near zero or anywhere.
fn topic(x: u64) -> CcTopic {
    let n = (x >> 1) as u16;
    CcTopic { qpn: n.checked_sub(1), of_server: x & 1 == 0 }
}

/// An address that is told, of either family; some are IPv4's in the other's clothes.
fn told(i: u64, x: u64, y: u64, z: u64) -> IpAddr {
    let v4 = Ipv4Addr::from((y.wrapping_add(x.wrapping_mul(i)) as u32).to_be_bytes());
    match i & (z >> 3) & 3 {
        1 => v4.to_ipv6_mapped().into(),
        2 => [0xfd00, 0, 0, 0, 0, 0, (y >> 16) as u16, i as u16].into(),
        _ => v4.into(),
    }
}

/// What the peer says that it sends with.
fn runs(x: u64, y: u64, z: u64) -> Frame<'static> {
    let names = cc::registry::names();
    let fallback = if z & 1 == 0 { String::new() } else { "unheard-of:a=b".to_owned() };
    let chosen = names[(z % names.len() as u64) as usize].to_owned();
    Frame::CcRuns(CcRuns { qpn: topic(x).qpn, sequence: y, number: y.max(1), reason: z, chosen, fallback })
}

/// Longest inner part of a forged packet.
const MAX_INNER: usize = 1_400;
/// Bytes that all of this may take at most, beyond what an idle connection takes.
const MAX_GROWTH: usize = 64 << 20;
/// What the peer writes.
const WRITTEN: u8 = 0x5a;

struct World {
    pair: Pair,
    /// The victim is the server.
    server: bool,
    conn: ConnId,
    qp: QpId,
    guarded: Arc<Guarded>,
    /// Open to the peer's writes; readable; for the victim's own work.
    regions: [Mr; 3],
    /// The identifier that the victim chose, as it stands in packets to it.
    cid: [u8; 4],
    /// Packet number of the next forged packet.
    pn: u64,
    /// Whether the peer's own packets pass too.
    honest: bool,
}

impl World {
    fn new(server: bool) -> World {
        let (mut c, mut s) = (config(2), server_config(&[2]));
        (c.options.module, s.options.module) = (Module::Crc32c, Module::Crc32c);
        let mut pair = Pair::with(c, s);
        let newest = Rc::new(RefCell::new(([0; 4], 0)));
        let seen = newest.clone();
        pair.filter = Box::new(move |f| {
            if f.to_server == server
                && let Ok(Clear::Short(cid)) = Clear::parse(&f.bytes)
                && let Some(pn) = f.bytes.get(5..SHORT_CLEAR)
            {
                let pn = u32::from_be_bytes(pn.try_into().expect("four bytes"));
                *seen.borrow_mut() = (cid.0.to_be_bytes(), u64::from(pn));
            }
            true
        });
        let (client, at_server) = pair.connected();
        let end = if server { &mut pair.server } else { &mut pair.client };
        let conn = if server { at_server } else { client };
        let info = end.connection(conn).expect("open").clone();
        let a = end.adapter();
        let (guarded, memory) = Guarded::memory();
        let plain = || Memory::from(vec![UNTOUCHED; guarded::REGION]);
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut register = |memory, access| a.reg_mr(info.pd, memory, access).map_err(|e| e.0).expect("room");
        let regions = [
            register(memory, open),
            register(plain(), Access::REMOTE_READ),
            register(plain(), Access::LOCAL_WRITE),
        ];
        let (cid, pn) = *newest.borrow();
        assert_ne!(cid, [0; 4], "no short packet was seen");
        let qp = info.qps[0];
        let mut world = World { pair, server, conn, qp, guarded, regions, cid, pn: pn + 1, honest: true };
        world.prove();
        world
    }

    /// Shows that forged packets are taken and placed, or all of this would test nothing.
    fn prove(&mut self) {
        let mut inner = Vec::new();
        let (op, last) = (DataOp::Write, Some(Tail::default()));
        let h = DataHeader {
            op,
            qpn: 0,
            msn: 0,
            key: self.regions[0].rkey,
            offset: 1,
            rsn: None,
            first: true,
            last,
        };
        h.put(&mut inner);
        inner.push(WRITTEN);
        self.forge(h.flags(), &inner);
        let region = self.guarded.check();
        assert_eq!(region[..3], [UNTOUCHED, WRITTEN, UNTOUCHED], "a forged packet was not placed");
    }

    /// Sends the victim a packet that authenticates.
    fn forge(&mut self, flags: u8, inner: &[u8]) {
        let mut p = vec![flags & flag::PROTECTED];
        p.put(&self.cid);
        p.put_u32(self.pn as u32);
        let mut pseudo = [0; 12];
        pseudo[4..].copy_from_slice(&self.pn.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&pseudo), &p), inner);
        p.put_u32(crc);
        p.put(inner);
        assert_eq!(p.len(), SHORT_CLEAR + TAG + inner.len());
        self.pn += 1;
        let from = if self.server { self.pair.client_addr } else { self.pair.server_addr };
        self.pair.deliver(InFlight { at: self.pair.now, from, to_server: self.server, bytes: p });
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        match b.u8()? % 13 {
            0 => self.pass(Span::from_micros(u64::from(b.u16()?) * 4)),
            1 => {
                let n = usize::from(b.u16()?) % MAX_INNER;
                let inner = b.take(n).to_vec();
                self.forge(0, &inner);
            }
            2 => {
                let (flags, n) = (b.u8()?, usize::from(b.u16()?) % MAX_INNER);
                let inner = b.take(n).to_vec();
                self.forge(flags, &inner);
            }
            3..=5 => self.data(b)?,
            6..=7 => self.frame(b)?,
            8 => self.pn = self.pn.wrapping_add(b.number()?).min(1 << 31),
            9 => self.pn = self.pn.saturating_sub(u64::from(b.u8()?)),
            10 => self.work(b)?,
            11 => self.honest = b.u8()? & 1 == 0,
            _ => self.feedback(b)?,
        }
        Some(())
    }

    /// A data packet with a sensible key more often than not.
    fn data(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (kind, marks) = (b.u8()?, b.u8()?);
        let op = match kind & 3 {
            0 => DataOp::Write,
            1 => DataOp::Send,
            2 if marks & 0x40 != 0 => DataOp::AtomicRequest,
            2 => DataOp::ReadRequest,
            _ => DataOp::ReadResponse,
        };
        let key = match kind >> 2 & 7 {
            n @ 0..=2 => self.regions[usize::from(n)].rkey,
            3 => self.regions[0].lkey,
            4 => 0,
            _ => self.regions[0].rkey,
        };
        let imm = (marks & 2 != 0).then_some(7);
        let h = DataHeader {
            op,
            qpn: if marks & 0x80 == 0 { 0 } else { b.u16()? },
            msn: b.u16()?,
            key,
            offset: b.number()?,
            rsn: Some(b.u16()?),
            first: marks & 4 != 0,
            last: (marks & 1 != 0).then_some(Tail {
                imm,
                invalidates: marks & 0x40 != 0,
                solicited: marks & 8 != 0,
                padding: (marks & 0x20 != 0).then_some(marks),
            }),
        };
        let mut inner = Vec::new();
        h.put(&mut inner);
        let len = usize::from(b.u16()?) % MAX_INNER;
        if op == DataOp::ReadRequest {
            // Source key and offset, length, sink key, reserved.
            inner.put_u32(key);
            inner.put_u64(len as u64);
            inner.put_u64(b.number()?);
            inner.put_u32(9);
            inner.put_u32(0);
        } else if op == DataOp::AtomicRequest {
            // Target key and offset, sink key, operation, operands.
            inner.put_u32(key);
            inner.put_u64(len as u64);
            inner.put_u32(9);
            inner.put_u32(u32::from(marks & 2));
            inner.resize(inner.len() + 32, WRITTEN);
        } else {
            inner.resize(inner.len() + len, WRITTEN);
        }
        let ask = if marks & 0x10 != 0 { flag::ASK } else { 0 };
        let phase = if marks & 0x60 == 0x60 { flag::KEY_PHASE } else { 0 };
        self.forge(h.flags() | ask | phase, &inner);
        Some(())
    }

    /// Control frames with numbers of the fuzzer's choice.
    fn frame(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let mut inner = Vec::new();
        // Above what older inputs mean.
        let kind = match b.u8()? {
            253.. => 17,
            n @ 240.. => 15 + n % 2,
            n => n % 15,
        };
        let (x, y, z) = (b.number()?, b.number()?, b.number()?);
        let qpn = x as u16;
        let text = match kind {
            0 | 1 | 13 => b.take(usize::from(y as u8)).to_vec(),
            15 => b.take(usize::from((x >> 24) as u8)).to_vec(),
            _ => Vec::new(),
        };
        let frame = match kind {
            0 => Frame::QpOpen(QpOpen {
                qpn,
                reliable: z & 1 == 0,
                priority: z as u8 >> 1 & 7,
                cc: if z & 0x10 == 0 { Vec::new() } else { text.clone() },
                private_data: text.clone(),
            }),
            1 => Frame::Crypto { offset: x, data: &text },
            2 => Frame::CryptoAck { offset: x },
            3 => Frame::Floor(Floor { lane: qpn.into(), floor: y, interval_us: z, packets: x }),
            4 => Frame::RecvLimit { qpn, limit: y },
            5 => Frame::QpAccept { qpn, code: y },
            6 => Frame::QpError { qpn, code: y },
            7 => Frame::PathChallenge(y.to_be_bytes()),
            8 => Frame::PathResponse(y.to_be_bytes()),
            9 => {
                let list = (0..z % 18).map(|i| SocketAddr::new(told(i, x, y, z), 4_460)).collect();
                Frame::Addresses(Addresses { sequence: x, list })
            }
            10 => Frame::LaneOpen(LaneOpen { lane: qpn.into(), cid: y as u32, backup: z & 1 == 0 }),
            11 => Frame::LaneAccept { lane: qpn.into(), cid: y as u32, code: z },
            12 => Frame::LaneClose { lane: qpn.into() },
            15 => {
                let def = cc::registry::list();
                let def = def[(z % def.len() as u64) as usize];
                // The right version, or another; parameters of the fuzzer's choice.
                let version = if z & 0x100 == 0 { def.version() } else { 1 };
                let params = text.iter().map(|b| char::from(b % 95 + 32)).collect();
                let offer = CcOffer { name: def.name.into(), version, needs: z >> 12, params };
                Frame::CcPropose(CcPropose { topic: topic(x), sequence: y, offer })
            }
            16 => Frame::CcAnswer(CcAnswer { topic: topic(x), sequence: y, code: z }),
            17 => runs(x, y, z),
            13 => Frame::Data { flags: z as u8 & 0x3e, body: &text },
            // Long runs of what takes little room and asks for much.
            _ => {
                for i in 0..x % 200 {
                    Frame::RecvLimit { qpn: (i + y) as u16, limit: z }.put(&mut inner);
                }
                Frame::Ping
            }
        };
        frame.put(&mut inner);
        self.forge(0, &inner[..inner.len().min(MAX_INNER)]);
        if kind == 9 {
            self.look_at_network(z & 1 == 0, (z >> 1 & 3) as u32);
        }
        Some(())
    }

    /// The victim's machine has routes to wherever the peer says, over IPv4 and IPv6.
    fn look_at_network(&mut self, own: bool, link: u32) {
        let p = &mut self.pair;
        let (end, local) =
            if self.server { (&mut p.server, p.server_addr) } else { (&mut p.client, p.client_addr) };
        let other: IpAddr =
            if local.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let way = |remote: IpAddr| {
            let here = if remote.is_ipv4() == local.is_ipv4() { local.ip() } else { other };
            Route { local: here, remote, own, default_source: own, link }
        };
        let routes = end.remotes().into_iter().map(way).collect();
        let network = Network { locals: vec![local.ip(), other], listening_at: vec![local], routes };
        end.set_network(p.now, network);
    }

    /// A statement of what arrived, true or not: the numbers are near what the victim may have sent, or anything.
    fn feedback(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (kind, largest) = (b.u8()?, b.number()? >> 2);
        let largest = if kind & 1 == 0 { largest & 0xff } else { largest };
        let to = (largest + 1).saturating_sub(u64::from(kind >> 4));
        let from = to.saturating_sub(if kind & 2 == 0 { u64::from(b.u8()?) } else { b.number()? });
        let mut f = Feedback {
            lane: u32::from(kind & 12 == 12),
            largest,
            delay_us: b.number()?,
            arrival_us: b.u32()?,
            marked: b.number()?,
            covered: from..to,
            holes: Vec::new(),
            signals: None,
        };
        let mut at = from;
        for _ in 0..b.u8()? {
            let start = at + 1 + u64::from(b.u8()?);
            let end = start + 1 + u64::from(b.u8()?);
            if end > to {
                break;
            }
            f.holes.push(start..end);
            at = end;
        }
        let mut inner = Vec::new();
        Frame::Feedback(f).put(&mut inner);
        self.forge(0, &inner);
        Some(())
    }

    /// The victim's own work.
    fn work(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (which, len) = (b.u8()?, u64::from(b.u8()?));
        let sge = Sge { lkey: self.regions[2].lkey, offset: 0, len };
        let now = self.pair.now;
        let end = if self.server { &mut self.pair.server } else { &mut self.pair.client };
        // The connection may be gone already; then these are errors.
        let _ = match which % 5 {
            0 => end.adapter().post_recv(self.qp, RecvWr { wr_id: 1, sges: Sges::from(sge) }),
            1 => end.adapter().post_send(self.qp, SendWr::new(2, SendOp::Send, sge)),
            2 => {
                let op = SendOp::Write { rkey: 1 << 24 | u32::from(which), offset: len };
                end.adapter().post_send(self.qp, SendWr::new(3, op, sge))
            }
            3 => end.adapter().post_send(self.qp, SendWr::new(4, SendOp::Read { rkey: 5, offset: 0 }, sge)),
            _ => {
                let _ = end.open_qp(now, self.conn, QpOptions::default());
                Ok(())
            }
        };
        Some(())
    }

    fn pass(&mut self, span: Span) {
        if !self.honest {
            let server = self.server;
            self.pair.in_flight.retain(|f| f.to_server != server);
        }
        self.pair.run(span);
        let end = if self.server { &mut self.pair.server } else { &mut self.pair.client };
        while let Some(e) = end.poll_event() {
            if let Event::QpReady { conn, .. } = e {
                assert_eq!(conn, self.conn);
            }
        }
        if let Some(cq) = end.connection(self.conn).map(|c| c.cq) {
            while end.adapter().poll_cq(cq).is_some() {}
        }
    }

    fn check(&mut self) {
        // What raw packets wrote may be anything.
        self.guarded.check();
        let end = if self.server { &mut self.pair.server } else { &mut self.pair.client };
        let mut bytes = [0; guarded::REGION];
        end.adapter().read_mr(self.regions[1].id, 0, &mut bytes).expect("registered");
        assert!(bytes.iter().all(|b| *b == UNTOUCHED), "a region without the right to write was written");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(first & 1 == 0);
    let before = count::live();
    let mut bytes = Bytes(rest);
    for _ in 0..MAX_OPS {
        if world.operation(&mut bytes).is_none() {
            break;
        }
        let growth = count::live().saturating_sub(before);
        assert!(growth < MAX_GROWTH, "{growth} bytes are held for one peer");
    }
    world.pass(Span::from_secs(1));
    world.check();
});
