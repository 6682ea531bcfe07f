//! An endpoint that serves iWARP, with clients that send whatever they want over their streams: requests that name each
//! other's connections, records, TLS, garbage, ends and resets at any time.
//!
//! No panic; limits to streams that are not established; each connection told of once, and ended once; nothing left of
//! anybody after a while.
//!
//! Input: byte 0 says what is served; then operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;

use base::{Rng, Span, Time};
use bytes::Bytes;
use iwarp::mpa::{fpdu, startup};
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{
    ConnId, Endpoint, Event, IwarpConfig, IwarpHello, IwarpServer, StreamCommand, StreamId,
};
use pair::server_config;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use verbs::{RecvWr, Sges};

/// Operations of one input at most.
const OPERATIONS: usize = 200;
/// Streams that are not established at most.
const HALF_OPEN: usize = 6;
/// Longer than any time-out of a stream.
const LONG: Span = Span::from_secs(200);

struct World {
    now: Time,
    e: Endpoint,
    streams: Vec<StreamId>,
    alive: BTreeSet<StreamId>,
    /// Connections that the application knows of, and whether they have ended.
    known: BTreeMap<ConnId, bool>,
}

impl World {
    fn new(mode: u8) -> World {
        let mut c = server_config(&[2]);
        let mut settings = IwarpConfig { peer_to_peer: true, ..IwarpConfig::default() };
        settings.crc = mode & 1 != 0;
        settings.markers = mode & 2 != 0;
        settings.receive_wait = Span::from_secs(u64::from(mode >> 4 & 1) * 5);
        let served =
            IwarpServer { plain: mode & 4 == 0, tls: mode & 8 == 0, settings, max_half_open: HALF_OPEN };
        if let Some(s) = &mut c.server {
            (s.iwarp, s.max_connections) = (Some(served), 4);
        }
        let e = Endpoint::new(c, Rng::from_u64(mode.into())).expect("settings are sound");
        let now = Time::from_nanos(1_000_000_000);
        World { now, e, streams: Vec::new(), alive: BTreeSet::new(), known: BTreeMap::new() }
    }

    fn operate(&mut self, op: u8, b: &mut Bytes<'_>) -> Option<()> {
        let which = usize::from(b.u8()?);
        let id = self.streams.get(which % self.streams.len().max(1)).copied();
        let id = id.filter(|id| self.alive.contains(id));
        match op % 9 {
            0 => {
                let from = SocketAddr::from(([192, 0, 2, which as u8 & 1], 7));
                if let Some(id) = self.e.stream_accepted(self.now, from, None) {
                    self.streams.push(id);
                    self.alive.insert(id);
                }
            }
            1 => {
                let n = usize::from(b.u8()?);
                let bytes = b.take(n).to_vec();
                self.feed(id?, &bytes);
            }
            2 => {
                let request = request(b)?;
                self.feed(id?, &request);
            }
            3 => {
                let record = record(b)?;
                self.feed(id?, &record);
            }
            4 => self.e.stream_ended(self.now, id?),
            5 => self.e.stream_failed(self.now, id?, "reset"),
            6 => {
                let conns: Vec<ConnId> =
                    self.known.iter().filter(|(_, over)| !**over).map(|(c, _)| *c).collect();
                let conn = *conns.get(which % conns.len().max(1))?;
                self.e.close(self.now, conn, which as u64, "enough");
            }
            7 => self.receive(which),
            _ => self.now += Span::from_millis(which as u64 * 50),
        }
        Some(())
    }

    /// As the driver does: what is not taken is offered again later, here never.
    fn feed(&mut self, id: StreamId, bytes: &[u8]) {
        if !self.e.stream_reads(id) {
            return;
        }
        if let Some(io) = self.e.stream_io(id) {
            io.engine.borrow_scratch(io.spare);
            io.engine.receive(io.adapter, bytes, self.now);
            io.engine.return_scratch(io.spare);
            self.e.stream_done(self.now, id);
        } else {
            let taken = self.e.feed_stream(self.now, id, bytes);
            assert!(taken <= bytes.len());
        }
    }

    /// The application posts a receive.
    fn receive(&mut self, which: usize) {
        for (conn, _) in self.known.iter().filter(|(_, over)| !**over) {
            let Some(info) = self.e.connection(*conn).cloned() else { continue };
            let Some(qp) = info.qps.get(which % info.qps.len().max(1)) else { continue };
            let none = RecvWr { wr_id: 1, sges: Sges::None };
            // Not on one that has ended.
            let _ = self.e.adapter().post_recv(*qp, none);
            while self.e.adapter().poll_cq(info.cq).is_some() {}
        }
    }

    /// Everything that is to be sent is, until nothing more is to be done.
    fn turn(&mut self) {
        for turns in 0.. {
            assert!(turns < 10_000, "no end");
            self.e.handle_timeout(self.now);
            self.events();
            while let Some(id) = self.e.poll_stream(self.now) {
                while let Some(io) = self.e.stream_io(id)
                    && let Some(t) = io.engine.transmit(io.adapter, self.now)
                {
                    let n = t.len;
                    assert!(n > 0);
                    io.engine.on_sent(io.adapter, n);
                }
                while self.e.is_sealed(id) {
                    let n = self.e.sealed(self.now, id).len();
                    if n == 0 {
                        break;
                    }
                    self.e.sealed_sent(self.now, id, n);
                }
                self.e.stream_done(self.now, id);
            }
            while let Some(order) = self.e.poll_stream_command() {
                if let StreamCommand::Close(id) | StreamCommand::Abort(id) = order {
                    self.alive.remove(&id);
                }
            }
            self.events();
            if !self.e.has_streams_ready() {
                break;
            }
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.e.poll_event() {
            match event {
                Event::Incoming { conn } => assert_eq!(self.known.insert(conn, false), None),
                Event::Closed { conn, .. } => {
                    assert_eq!(self.known.insert(conn, true), Some(false), "ended twice, or never begun");
                    self.e.release(conn).expect("nothing of ours is left");
                }
                _ => {}
            }
        }
    }
}

/// A start-up request, as Longhaul makes it or changed.
fn request(b: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let (index, count, name) = (b.u8()?, b.u8()?, b.u8()?);
    let private = IwarpHello {
        id: [name % 4; 16],
        index: (index % 8).into(),
        count: (count % 8).into(),
        farewell: b.u8()?.into(),
        short_writes: name & 16 != 0,
        for_own_qp: name & 32 != 0,
    }
    .put(&[]);
    let settings = IwarpConfig { peer_to_peer: name & 4 == 0, crc: name & 8 == 0, ..IwarpConfig::default() };
    let mut out = Vec::new();
    startup::request(&settings).put(&private, &mut out);
    if name & 0x80 != 0 {
        let at = usize::from(b.u8()?) % out.len();
        out[at] ^= b.u8()?;
    }
    Some(out)
}

/// A record with any contents, whose CRC is right.
fn record(b: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let n = usize::from(b.u8()?);
    let contents = b.take(n);
    let mut out = (contents.len() as u16).to_be_bytes().to_vec();
    out.extend(contents);
    out.resize(fpdu::len(contents.len()) - fpdu::CRC, 0);
    let crc = fpdu::crc(0, &out);
    out.extend(fpdu::crc_field(crc));
    Some(out)
}

fuzz_target!(|data: &[u8]| {
    let mut b = Bytes(data);
    let Some(mode) = b.u8() else { return };
    let mut w = World::new(mode);
    for _ in 0..OPERATIONS {
        let Some(op) = b.u8() else { break };
        // Without its arguments, or its stream, nothing happens.
        let _ = w.operate(op, &mut b);
        w.turn();
        assert!(w.e.streams() <= HALF_OPEN + 4 * usize::from(longhaul_endpoint::MAX_STREAMS));
        assert_eq!(w.alive.len(), w.e.streams(), "sockets that nobody closes");
    }
    for (conn, over) in w.known.clone() {
        if !over {
            w.e.close(w.now, conn, 0, "");
        }
    }
    w.turn();
    for _ in 0..4 {
        w.now += LONG;
        w.turn();
    }
    assert_eq!(w.e.streams(), 0);
    assert!(w.known.values().all(|over| *over) && w.e.is_quiet());
});
