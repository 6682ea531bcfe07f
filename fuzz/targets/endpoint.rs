//! Two endpoints on a network that does what the fuzzer wants: loses, repeats, delays, cuts, changes and invents
//! datagrams while the application writes, reads and sends. No panic; memory holds only what was written, where it
//! was written; once the network behaves, all work completes.
//!
//! Input: byte 0 chooses whether the network behaves during the handshake; then operations, a byte each with its
//! arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;

use base::{Span, Time};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{ConnId, DatagramInfo, Event, QpOptions};
use pair::{InFlight, Pair};
use verbs::{Access, Memory, Mr, QpId, RecvWr, SendOp, SendWr, Sge, Sges};

/// Bytes of the regions at both ends.
const REGION: usize = 64 * 1024;
/// Bytes of one receive, and of the longest send.
const MESSAGE: u64 = 4_096;
/// Receives that the server posts; the client sends no more messages.
const RECEIVES: u64 = 64;
/// Operations of one input at most.
const MAX_OPS: usize = 512;
/// Work requests of one input at most.
const MAX_WORK: usize = 100;
/// Queue pairs opened by one input at most.
const MAX_QPS: usize = 4;
/// Datagrams in flight at most: more would be repeated without end.
const MAX_FLYING: usize = 4_096;

/// What the source region of the client, and the readable region of the server, hold at `i`.
fn pattern(i: usize) -> u8 {
    (i % 251) as u8 + 1
}

/// What an open connection has at both ends.
struct Open {
    client: ConnId,
    qps: Vec<QpId>,
    /// At the client: what is written and sent, where reads end.
    source: Mr,
    sink: Mr,
    /// At the server: where writes end, what is read, where receives end.
    target: Mr,
    readable: Mr,
}

struct World {
    pair: Pair,
    client: ConnId,
    server: Option<ConnId>,
    open: Option<Open>,
    /// Which bytes of the server's region the client has written.
    written: Vec<bool>,
    sends: u64,
    posted: usize,
    completed: usize,
    closed: bool,
}

fn filled(write: bool) -> Memory {
    Memory::from((0..REGION).map(|i| if write { pattern(i) } else { 0 }).collect::<Vec<u8>>())
}

impl World {
    fn new(orderly: bool) -> World {
        let mut pair = Pair::new();
        let client = pair.connect();
        let mut world = World {
            pair,
            client,
            server: None,
            open: None,
            written: vec![false; REGION],
            sends: 0,
            posted: 0,
            completed: 0,
            closed: false,
        };
        if orderly {
            world.pass(Span::from_millis(200));
            assert!(world.open.is_some(), "no connection though the network behaves");
        }
        world
    }

    fn pass(&mut self, span: Span) {
        self.pair.run(span);
        self.events();
    }

    fn events(&mut self) {
        let mut connected = false;
        for e in self.pair.client_events() {
            connected |= matches!(e, Event::Connected { conn } if conn == self.client);
            self.closed |= matches!(e, Event::Closed { conn, .. } if conn == self.client);
        }
        for e in self.pair.server_events() {
            match e {
                // A repeated first datagram may come to more connections, of which one gets further.
                Event::Incoming { conn } => self.server = Some(conn),
                Event::Closed { conn, .. } => self.closed |= self.server == Some(conn),
                _ => {}
            }
        }
        if connected && !self.closed {
            // The client may be a step ahead; its peer's last message is then still on the way.
            if self.server.is_none() {
                self.pair.run(Span::from_millis(50));
                let incoming = self.pair.server_events().into_iter().find_map(|e| match e {
                    Event::Incoming { conn } => Some(conn),
                    _ => None,
                });
                self.server = incoming;
            }
            if let Some(server) = self.server {
                self.open = Some(self.register(server));
            }
        }
        self.drain();
    }

    fn register(&mut self, server: ConnId) -> Open {
        let (c, s) = (self.pair.client.connection(self.client), self.pair.server.connection(server));
        let (c, s) = (c.expect("open").clone(), s.expect("open").clone());
        let client = self.pair.client.adapter();
        let source = client.reg_mr(c.pd, filled(true), Access::LOCAL_READ).map_err(|e| e.0).expect("room");
        let sink = client.reg_mr(c.pd, filled(false), Access::LOCAL_WRITE).map_err(|e| e.0).expect("room");
        let a = self.pair.server.adapter();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let target = a.reg_mr(s.pd, filled(false), rights).map_err(|e| e.0).expect("room");
        let readable = a.reg_mr(s.pd, filled(true), Access::REMOTE_READ).map_err(|e| e.0).expect("room");
        let len = (RECEIVES * MESSAGE) as usize;
        let inbox = a.reg_mr(s.pd, Memory::zeroed(len), Access::LOCAL_WRITE).map_err(|e| e.0).expect("room");
        for i in 0..RECEIVES {
            let sges = Sges::from(Sge { lkey: inbox.lkey, offset: i * MESSAGE, len: MESSAGE });
            a.post_recv(s.qps[0], RecvWr { wr_id: i, sges }).expect("room");
        }
        Open { client: self.client, qps: c.qps, source, sink, target, readable }
    }

    fn drain(&mut self) {
        if let Some(cq) = self.pair.client.connection(self.client).map(|c| c.cq) {
            while self.pair.client.adapter().poll_cq(cq).is_some() {
                self.completed += 1;
            }
        }
        if let Some(cq) = self.server.and_then(|s| self.pair.server.connection(s)).map(|c| c.cq) {
            while self.pair.server.adapter().poll_cq(cq).is_some() {}
        }
    }

    /// Bytes of both ends' regions: only what was written, only where it was.
    fn check(&mut self) {
        let Some(open) = &self.open else { return };
        let mut bytes = vec![0; REGION];
        self.pair.server.adapter().read_mr(open.target.id, 0, &mut bytes).expect("registered");
        for (i, b) in bytes.iter().enumerate() {
            assert!(*b == 0 || self.written[i] && *b == pattern(i), "byte {i} of the server's region is {b}");
        }
        self.pair.client.adapter().read_mr(open.sink.id, 0, &mut bytes).expect("registered");
        for (i, b) in bytes.iter().enumerate() {
            assert!(*b == 0 || *b == pattern(i), "byte {i} of what was read is {b}");
        }
    }

    fn post(&mut self, kind: u8, which: u8, offset: u16, len: u16) {
        let Some(open) = &self.open else { return };
        if self.posted >= MAX_WORK {
            return;
        }
        let offset = u64::from(offset);
        let len = u64::from(len).min(REGION as u64 - offset);
        let local = |mr: Mr| Sge { lkey: mr.lkey, offset, len };
        let mut qp = open.qps[usize::from(which) % open.qps.len()];
        let wr = match kind {
            0 => SendWr::new(0, SendOp::Write { rkey: open.target.rkey, offset }, local(open.source)),
            1 => SendWr::new(0, SendOp::Read { rkey: open.readable.rkey, offset }, local(open.sink)),
            _ => {
                if self.sends == RECEIVES {
                    return;
                }
                // Receives are posted on this one.
                qp = open.qps[0];
                let sge = Sge { len: len.min(MESSAGE), ..local(open.source) };
                if kind == 2 {
                    SendWr::new(0, SendOp::Send, sge)
                } else {
                    SendWr::new(0, SendOp::WriteImm { rkey: open.target.rkey, offset, imm: 7 }, sge)
                }
            }
        };
        let range = match wr.op {
            SendOp::Write { .. } => offset..offset + len,
            SendOp::WriteImm { .. } => offset..offset + len.min(MESSAGE),
            _ => 0..0,
        };
        if self.pair.client.adapter().post_send(qp, wr).is_ok() {
            self.posted += 1;
            self.sends += u64::from(kind >= 2);
            self.written[range.start as usize..range.end as usize].fill(true);
        }
    }

    fn in_flight(&mut self, which: u8) -> Option<&mut InFlight> {
        let n = self.pair.in_flight.len();
        (n > 0).then(|| &mut self.pair.in_flight[usize::from(which) % n])
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        match b.u8()? % 16 {
            0 => {
                let until = self.pair.now + Span::from_micros(u64::from(b.u16()?));
                self.pair.step(until);
                self.events();
            }
            1 => self.pass(Span::from_millis(u64::from(b.u8()?))),
            2 => {
                let which = usize::from(b.u8()?);
                let n = self.pair.in_flight.len().max(1);
                self.pair.in_flight.remove(which % n);
            }
            op @ 3..=9 => self.meddle(op, b)?,
            op @ 10..=13 => {
                let which = b.u8()?;
                self.post(op - 10, which, b.u16()?, b.u16()?);
            }
            14 => self.open_qp(b.u8()?),
            _ => {
                if b.u8()? == 0xff {
                    self.pair.client.close(self.pair.now, self.client, 9, "enough");
                }
            }
        }
        Some(())
    }

    /// Changes what flies.
    fn meddle(&mut self, op: u8, b: &mut Bytes<'_>) -> Option<()> {
        let (which, how) = (b.u8()?, b.u16()?);
        let raw = if op == 8 { b.take(usize::from(how % 1_600)).to_vec() } else { Vec::new() };
        let (now, client, server) = (self.pair.now, self.pair.client_addr, self.pair.server_addr);
        if op == 8 {
            let to_server = which & 1 == 0;
            let from = if to_server { client } else { server };
            self.pair.deliver(InFlight { at: now, from, to_server, bytes: raw });
            self.events();
            return Some(());
        }
        let room = self.pair.in_flight.len() < MAX_FLYING;
        let f = self.in_flight(which)?;
        match op {
            3 if room => {
                let mut copy = f.clone();
                copy.at += Span::from_micros(u64::from(how));
                self.pair.in_flight.push_back(copy);
            }
            4 => f.at += Span::from_micros(u64::from(how) * 16),
            5 => f.bytes.truncate(usize::from(how)),
            6 => {
                let bit = usize::from(how) % (f.bytes.len() * 8).max(1);
                if let Some(byte) = f.bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            7 => f.from.set_port(f.from.port() ^ how),
            9 => {
                // As a train with another stride than it was sent with.
                let mut copy = f.clone();
                let meta = DatagramInfo {
                    remote: copy.from,
                    local: None,
                    ecn: base::Ecn::from_bits(how as u8),
                    waited: Span::ZERO,
                };
                let end = if copy.to_server { &mut self.pair.server } else { &mut self.pair.client };
                end.handle_train(now, meta, &mut copy.bytes, usize::from(how));
                self.events();
            }
            _ => {}
        }
        Some(())
    }

    fn open_qp(&mut self, how: u8) {
        let Some(open) = &mut self.open else { return };
        if open.qps.len() >= MAX_QPS {
            return;
        }
        let options = QpOptions { priority: how & 7, reliable: true, ..QpOptions::default() };
        if let Ok(qp) = self.pair.client.open_qp(self.pair.now, open.client, options) {
            open.qps.push(qp);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(first & 1 == 0);
    let mut bytes = Bytes(rest);
    for _ in 0..MAX_OPS {
        if world.operation(&mut bytes).is_none() && bytes.0.is_empty() {
            break;
        }
    }
    world.check();
    // From here on the network behaves. A connection that is not dead by then carries out all work; a dead one
    // flushes it.
    let start: Time = world.pair.now;
    while world.completed < world.posted && world.pair.now.since(start) < Span::from_secs(120) {
        world.pass(Span::from_secs(1));
    }
    assert_eq!(world.completed, world.posted, "work without completion; closed: {}", world.closed);
    world.check();
});
