//! Set-up with a peer that says whatever it wants in packets that authenticate: the keys of Initial packets anybody
//! can make, those of Handshake packets whoever answers a hello. Pieces of handshake messages, whole or changed,
//! overlapping, ahead of gaps, out of order; frames; transport parameters; Retry and Version Negotiation.
//!
//! No panic, nobody let in without a key that is known, a limit to the memory held for strangers and to what is sent
//! to an address that is not proven, and all of it forgotten after a while.
//!
//! Input: byte 0 chooses the victim, what it thinks of the peer's key, and whether all happens twice; then changes to
//! the parameters; then operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;
mod count;
mod puppet;

use base::{Rng, Span, Time};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, QpOptions};
use pair::{config, identity, server_config};
use puppet::Puppet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use transport::crypto::{Credentials, Level, ServerTrust};
use verbs::{Data, SendOp, SendWr};
use wire::packet::MAX_LONG_CID;
use wire::{Frame, Module, Params};

/// Operations of one input at most.
const MAX_OPS: usize = 256;
/// Attempts of the peer's in one input at most.
const MAX_PUPPETS: usize = 8;
/// Longest body of a forged packet: as much as a datagram holds.
const MAX_BODY: usize = 60_000;
/// Bytes that may be held for one stranger: 128 KiB ahead of a gap and as much in TLS, at both levels, and what a
/// connection takes that is up.
const MAX_GROWTH: usize = 2 << 20;
/// Bytes that may be left when all connections are gone, beyond what the same peers left before: tables do not shrink,
/// but are used again.
const MAX_LEFT: usize = 64 << 10;
/// Trains that one turn may send: more would never end.
const MAX_TRAINS: usize = 10_000;
/// Steps of time until all is forgotten.
const MAX_STEPS: usize = 100_000;
/// The puppet's identity. The server lets in 2; the client expects 1, or this one.
const STRANGER: u8 = 9;

struct World {
    now: Time,
    victim: Endpoint,
    /// The victim is the server.
    server: bool,
    /// The victim knows the puppet's key.
    trusted: bool,
    /// How puppets are made.
    params: Params,
    raw_params: Option<Vec<u8>>,
    puppets: Vec<Puppet>,
    /// Puppets that there were before these.
    earlier: u8,
    /// Bytes from each address to the victim, and back.
    traffic: BTreeMap<SocketAddr, (u64, u64)>,
    buf: Vec<u8>,
}

impl World {
    fn new(mode: u8, b: &mut Bytes<'_>) -> Option<World> {
        let (server, trusted) = (mode & 1 == 0, mode & 2 == 0);
        let mut settings =
            if server { server_config(&[if trusted { STRANGER } else { 2 }]) } else { config(2) };
        if let (true, Some(s)) = (mode & 4 != 0, &mut settings.server) {
            s.retry_above = 0;
        }
        if mode & 8 != 0 {
            settings.options.module = Module::Crc32c;
        }
        let (params, raw_params) = params(b)?;
        let world = World {
            now: Time::from_nanos(1_000_000_000),
            victim: Endpoint::new(settings, Rng::from_u64(mode.into())).expect("settings are sound"),
            server,
            trusted,
            params,
            raw_params,
            puppets: Vec::new(),
            earlier: 0,
            traffic: BTreeMap::new(),
            buf: vec![0; MAX_TRAIN],
        };
        Some(world)
    }

    /// The first peer; a client connects to it.
    fn begin(&mut self) {
        self.earlier += self.puppets.len() as u8;
        self.puppets.clear();
        self.traffic.clear();
        self.new_puppet();
        if !self.server {
            let key = identity(if self.trusted { STRANGER } else { 1 }).public_key();
            let connect = Connect {
                remote: self.puppets[0].addr,
                server_name: "server.example".into(),
                trust: ServerTrust::Pinned(vec![key]),
                token: None,
                options: None,
                iwarp: None,
            };
            self.victim.connect(self.now, connect).expect("settings are sound");
        }
        self.turn();
    }

    fn new_puppet(&mut self) {
        // A client talks to one server, at one address.
        if self.puppets.len() >= if self.server { MAX_PUPPETS } else { 1 } {
            return;
        }
        let n = self.earlier + self.puppets.len() as u8 + 1;
        // Two of them share an address.
        let addr = SocketAddr::from(([203, 0, 113, 1 + n / 2], 7));
        let credentials = Credentials::RawKey(identity(STRANGER));
        let (params, raw, scid) = (self.params.clone(), self.raw_params.clone(), vec![n; 4]);
        self.puppets.push(if self.server {
            Puppet::client(addr, credentials, params, raw, (vec![n; 8], scid))
        } else {
            Puppet::server(addr, credentials, params, raw, scid)
        });
    }

    /// The victim takes in one datagram of a puppet's.
    fn deliver(&mut self, which: usize, mut datagram: Vec<u8>) {
        let remote = self.puppets[which].addr;
        self.traffic.entry(remote).or_default().0 += datagram.len() as u64;
        let meta = DatagramInfo { remote, local: None, ecn: base::Ecn::NotEct, waited: Span::ZERO };
        let stride = datagram.len();
        self.victim.handle_train(self.now, meta, &mut datagram, stride);
        self.turn();
    }

    /// The victim's application runs, and what it sends arrives.
    fn turn(&mut self) {
        for trains in 0.. {
            self.events();
            let Some(t) = self.victim.poll_transmit(self.now, &mut self.buf) else { break };
            assert!(trains < MAX_TRAINS, "no end of sending at {:?}", self.now);
            assert!(t.len <= MAX_TRAIN && t.segment > 0 && t.len > 0, "{t:?}");
            for datagram in self.buf[..t.len].chunks(t.segment) {
                self.traffic.entry(t.remote).or_default().1 += datagram.len() as u64;
                let there = self.puppets.iter_mut().filter(|p| p.addr == t.remote);
                there.for_each(|p| p.hear(datagram));
            }
        }
        self.check_amplification();
    }

    fn events(&mut self) {
        while let Some(event) = self.victim.poll_event() {
            match event {
                Event::Incoming { conn } | Event::Connected { conn } => {
                    assert!(self.trusted, "let in without a key that is known: {event:?}");
                    // A client is satisfied by the server's last message, a server by the client's answer to that.
                    let complete = !self.server || self.puppets.iter().any(Puppet::is_complete);
                    assert!(complete, "let in without a handshake");
                    let Some(info) = self.victim.connection(conn).cloned() else { continue };
                    let _ = self.victim.open_qp(self.now, conn, QpOptions::default());
                    let hello = Data::Inline(b"hello".to_vec().into());
                    let _ = self.victim.adapter().post_send(info.qps[0], SendWr::new(1, SendOp::Send, hello));
                }
                Event::Closed { conn, .. } => {
                    let _ = self.victim.release(conn);
                }
                _ => {}
            }
        }
    }

    /// RFC 9000, section 8.1: at most three times what came from an address goes there until it is proven.
    fn check_amplification(&self) {
        if !self.server {
            return;
        }
        for (addr, (sent, got)) in &self.traffic {
            let proven = self.puppets.iter().any(|p| p.addr == *addr && p.proven);
            assert!(proven || *got <= 3 * sent, "{got} bytes to an address that sent {sent}");
        }
    }

    fn pass(&mut self, span: Span) {
        self.now += span;
        self.victim.handle_timeout(self.now);
        self.turn();
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let op = b.u8()?;
        let which = usize::from(op >> 5) % self.puppets.len();
        let level = if op & 0x10 == 0 { Level::Initial } else { Level::Handshake };
        match op & 15 {
            0 => {
                // Honest for a while.
                for _ in 0..64 {
                    let Some(datagram) = self.puppets[which].next_honest() else { break };
                    self.deliver(which, datagram);
                }
            }
            1 => {
                if let Some(datagram) = self.puppets[which].next_honest() {
                    self.deliver(which, datagram);
                }
            }
            2 => self.changed(which, b)?,
            3 => self.piece(which, level, b)?,
            4 => self.small_pieces(which, level, b)?,
            5 => self.frame(which, level, b)?,
            6 => {
                let n = usize::from(b.u16()?);
                let body = b.take(n).to_vec();
                self.say(which, level, body);
            }
            7 => self.pass(Span::from_millis(u64::from(b.u16()?) / 4)),
            8 => self.new_puppet(),
            9 => self.puppets[which].pn[level as usize] = b.u32()?,
            10 => self.puppets[which].repeat(),
            11 => self.retry(which, b)?,
            12 => {
                let n = usize::from(b.u8()?);
                let name = b.take(n).to_vec();
                let short = name[..name.len().min(MAX_LONG_CID)].to_vec();
                let puppet = &mut self.puppets[which];
                match n % 3 {
                    0 => puppet.scid = short,
                    1 => puppet.dcid = short,
                    _ => puppet.token = name,
                }
            }
            13 => {
                let n = usize::from(b.u16()?);
                let raw = b.take(n).to_vec();
                self.deliver(which, raw);
            }
            _ => self.pass(Span::from_micros(u64::from(b.u8()?) * 100)),
        }
        Some(())
    }

    fn say(&mut self, which: usize, level: Level, body: Vec<u8>) {
        let datagram = self.puppets[which].seal(level, body);
        self.deliver(which, datagram);
    }

    /// An honest packet with a few bytes changed: before it is sealed, or after.
    fn changed(&mut self, which: usize, b: &mut Bytes<'_>) -> Option<()> {
        let (how, changes) = (b.u8()?, b.u8()? % 8);
        let puppet = &mut self.puppets[which];
        if how & 1 == 0 {
            // From now on the message is another one.
            for _ in 0..changes {
                let (at, xor) = (usize::from(b.u16()?), b.u8()?);
                let out = &mut puppet.out[usize::from(how >> 1 & 1)];
                let n = out.len().max(1);
                if let Some(byte) = out.get_mut(at % n) {
                    *byte ^= xor;
                }
            }
            return Some(());
        }
        let Some(mut datagram) = puppet.next_honest() else { return Some(()) };
        for _ in 0..changes {
            let (at, xor) = (usize::from(b.u16()?) % datagram.len(), b.u8()?);
            datagram[at] ^= xor;
        }
        let len = datagram.len();
        datagram.truncate(if how & 2 == 0 { len } else { usize::from(b.u16()?) % len });
        self.deliver(which, datagram);
        Some(())
    }

    /// A piece of a handshake message at an offset of the fuzzer's choice: of the true one, of zeros, or invented.
    fn piece(&mut self, which: usize, level: Level, b: &mut Bytes<'_>) -> Option<()> {
        let (kind, offset, len) = (b.u8()?, b.number()?, usize::from(b.u16()?).min(MAX_BODY));
        let data = match kind % 3 {
            0 => {
                let out = &self.puppets[which].out[level as usize];
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(out.len());
                out[from..out.len().min(from.saturating_add(len))].to_vec()
            }
            1 => vec![0; len],
            _ => b.take(len).to_vec(),
        };
        let mut body = Vec::new();
        Frame::Crypto { offset, data: &data }.put(&mut body);
        self.say(which, level, body);
        Some(())
    }

    /// A packet full of short pieces.
    fn small_pieces(&mut self, which: usize, level: Level, b: &mut Bytes<'_>) -> Option<()> {
        let (start, stride, len) = (b.number()?, u64::from(b.u8()?), usize::from(b.u8()?));
        let piece = vec![0; len];
        let mut body = Vec::new();
        for n in 0..MAX_BODY as u64 {
            Frame::Crypto { offset: start.saturating_add(n * stride), data: &piece }.put(&mut body);
            if body.len() > MAX_BODY - 300 {
                break;
            }
        }
        self.say(which, level, body);
        Some(())
    }

    /// A frame, most of them not allowed here.
    fn frame(&mut self, which: usize, level: Level, b: &mut Bytes<'_>) -> Option<()> {
        let (kind, number) = (b.u8()?, b.number()?);
        let text = b.take(usize::from(kind >> 3)).to_vec();
        let frame = match kind % 8 {
            0 | 1 => Frame::CryptoAck { offset: number },
            2 => Frame::Close { code: number, reason: &text },
            3 => Frame::CloseAck,
            4 => Frame::Ping,
            5 => Frame::HandshakeDone,
            6 => Frame::TokenProof([kind; 32]),
            _ => Frame::Crypto { offset: number, data: &text },
        };
        let mut body = Vec::new();
        frame.put(&mut body);
        self.say(which, level, body);
        Some(())
    }

    fn retry(&mut self, which: usize, b: &mut Bytes<'_>) -> Option<()> {
        let (how, n) = (b.u8()?, usize::from(b.u8()?));
        let text = b.take(n).to_vec();
        let puppet = &mut self.puppets[which];
        let datagram = if how & 1 == 0 {
            let versions: Vec<u32> =
                text.chunks_exact(4).map(|v| u32::from_be_bytes([v[0], v[1], v[2], v[3]])).collect();
            puppet.versions(&versions)
        } else if self.server {
            return Some(());
        } else {
            puppet.retry(&text)
        };
        self.deliver(which, datagram);
        Some(())
    }

    /// The peer falls silent: everything about it is forgotten.
    fn silence(&mut self) {
        let end = self.now + Span::from_secs(600);
        for steps in 0.. {
            let Some(next) = self.victim.next_timeout().filter(|t| *t <= end) else { break };
            assert!(steps < MAX_STEPS, "no end of time-outs at {:?}", self.now);
            self.now = self.now.max(next);
            self.pass(Span::ZERO);
        }
        self.now = end;
        self.pass(Span::ZERO);
    }
}

/// The puppet's parameters: true ones with changes, or bytes.
fn params(b: &mut Bytes<'_>) -> Option<(Params, Option<Vec<u8>>)> {
    let mut p = Params { suites: vec![1, 2, 3, 0x80], cc: vec![b"bbr".to_vec()], ..Params::default() };
    let changes = b.u8()?;
    if changes == 0xff {
        let n = usize::from(b.u16()?);
        return Some((p, Some(b.take(n).to_vec())));
    }
    for _ in 0..changes % 8 {
        let what = b.u8()?;
        if what >= 240 {
            // Terms for congestion control, as far as they parse.
            let n = usize::from(b.u8()?);
            p.cc_terms = Params::parse(b.take(n)).ok().and_then(|p| p.cc_terms);
            continue;
        }
        match what % 12 {
            0 => p.suites = b.take(4).to_vec(),
            1 => p.module = Module::from_id(b.u8()?).unwrap_or_default(),
            2 => {
                let n = usize::from(b.u8()?) % 40;
                p.cc = vec![b.take(n).to_vec()];
            }
            3 => p.idle_ms = b.number()?,
            4 => p.max_datagram = b.number()?,
            5 => p.max_qps = b.number()?,
            6 => p.initial_qps = b.number()?,
            7 => p.max_lanes = b.number()?,
            8 => p.reliable = !p.reliable,
            9 => p.original_dcid = Some(b.take(8).to_vec()),
            10 => p.reset_token = Some([b.u8()?; 16]),
            _ => p.token = true,
        }
    }
    Some((p, None))
}

impl World {
    /// Carries out all operations, then the peer falls silent. Gives the bytes that are held then.
    fn round(&mut self, mut b: Bytes<'_>) -> usize {
        let before = count::live();
        self.begin();
        for _ in 0..MAX_OPS {
            if self.operation(&mut b).is_none() {
                break;
            }
            let growth = count::live().saturating_sub(before);
            let limit = MAX_GROWTH * self.puppets.len();
            assert!(growth < limit, "{growth} bytes are held for {} peers", self.puppets.len());
        }
        self.silence();
        let left = self.victim.connections().count();
        assert!(left == 0, "{left} connections of peers that are silent");
        count::live()
    }
}

fuzz_target!(|input: &[u8]| {
    let mut b = Bytes(input);
    let Some(mode) = b.u8() else { return };
    let Some(mut world) = World::new(mode, &mut b) else { return };
    let first = world.round(Bytes(b.0));
    if mode & 16 != 0 {
        let growth = world.round(b).saturating_sub(first);
        assert!(growth < MAX_LEFT, "{growth} bytes more are left each time");
    }
});
