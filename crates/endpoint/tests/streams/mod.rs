//! Two endpoints that speak iWARP over streams in memory; tests cut, change and hold back what is on the way.

#![allow(dead_code, reason = "each test binary uses its part")]

use crate::pair::{identity, server_config};
use base::{Rng, Span, Time};
use iwarp::{Piece, ReadTarget};
use longhaul_endpoint::{
    CloseReason, Config, ConnId, Connect, Endpoint, Event, Iwarp, IwarpServer, StreamCommand, StreamId,
    TransportOptions,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use transport::crypto::{OneTimeToken, ServerTrust};

/// One end of a stream: who has it, under which name, and what is on its way to it.
#[derive(Default)]
pub struct StreamEnd {
    pub end: usize,
    pub id: Option<StreamId>,
    pub bytes: VecDeque<u8>,
    pub shut: bool,
    pub reset: bool,
    pub told: bool,
}

pub type StreamFilter = Box<dyn FnMut(usize, &mut Vec<u8>)>;

/// Two endpoints, and the streams between them: 0 is the client.
pub struct Net {
    pub now: Time,
    pub ends: [Endpoint; 2],
    /// Both halves of each stream.
    pub streams: Vec<[StreamEnd; 2]>,
    pub by_id: BTreeMap<(usize, StreamId), (usize, usize)>,
    /// From where the next clients come.
    pub from: SocketAddr,
    pub events: [Vec<Event>; 2],
    /// Code points that the ends have ordered for streams that are there.
    pub marks: Vec<(usize, u8)>,
    pub rng: Rng,
    /// Streams that the server had no room for.
    pub turned_away: usize,
    /// Changes what goes to the server: the stream's number, and its bytes.
    pub meddle: StreamFilter,
}

impl Net {
    pub fn new(client: Config, server: Config) -> Net {
        Net {
            now: Time::from_nanos(1_000_000_000),
            ends: [
                Endpoint::new(client, Rng::from_u64(1)).expect("client"),
                Endpoint::new(server, Rng::from_u64(2)).expect("server"),
            ],
            streams: Vec::new(),
            by_id: BTreeMap::new(),
            from: "192.0.2.1:1000".parse().expect("address"),
            events: [Vec::new(), Vec::new()],
            rng: Rng::from_u64(3),
            turned_away: 0,
            marks: Vec::new(),
            meddle: Box::new(|_, _| {}),
        }
    }

    pub fn connect(&mut self, streams: u16, iwarp: Iwarp) -> ConnId {
        self.begin(streams, iwarp, None)
    }

    pub fn with_token(&mut self, streams: u16, token: OneTimeToken) -> ConnId {
        self.begin(streams, Iwarp { tls: true, ..Iwarp::default() }, Some(token))
    }

    pub fn begin(&mut self, streams: u16, iwarp: Iwarp, token: Option<OneTimeToken>) -> ConnId {
        let connect = Connect {
            remote: "192.0.2.2:4460".parse().expect("address"),
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
            token,
            options: Some(TransportOptions { initial_qps: streams, ..TransportOptions::default() }),
            iwarp: Some(iwarp),
        };
        self.ends[0].connect(self.now, connect).expect("begun")
    }

    /// A stream to the server that no endpoint of ours has.
    pub fn dial(&mut self) -> usize {
        let Some(id) = self.ends[1].stream_accepted(self.now, self.from, None) else {
            self.turned_away += 1;
            return usize::MAX;
        };
        let n = self.streams.len();
        let half = |end, id| StreamEnd { end, id, ..StreamEnd::default() };
        self.streams.push([half(0, None), half(1, Some(id))]);
        self.by_id.insert((1, id), (n, 1));
        n
    }

    pub fn apply_choice(&mut self, end: usize) -> bool {
        let mut moved = false;
        while let Some(order) = self.ends[end].poll_stream_command() {
            moved = true;
            match order {
                StreamCommand::Connect { stream, .. } => {
                    let n = self.dial();
                    if n == usize::MAX {
                        self.ends[end].stream_failed(self.now, stream, "reset");
                        continue;
                    }
                    self.streams[n][0].id = Some(stream);
                    self.by_id.insert((0, stream), (n, 0));
                    self.ends[0].stream_connected(self.now, stream, Some(1_448));
                }
                StreamCommand::QueryStats(_)
                | StreamCommand::SetPacing { .. }
                | StreamCommand::SetCongestion { .. } => {}
                StreamCommand::SetDscp { dscp, .. } => self.marks.push((end, dscp)),
                StreamCommand::Shutdown(id) => self.over(end, id, false),
                StreamCommand::Close(id) => {
                    self.over(end, id, false);
                    self.by_id.remove(&(end, id));
                }
                StreamCommand::Abort(id) => {
                    self.over(end, id, true);
                    self.by_id.remove(&(end, id));
                }
            }
        }
        moved
    }

    /// One end says no more: the other half sees it.
    pub fn over(&mut self, end: usize, id: StreamId, reset: bool) {
        if let Some(&(n, side)) = self.by_id.get(&(end, id)) {
            let other = &mut self.streams[n][1 - side];
            other.shut = true;
            other.reset |= reset;
        }
    }

    pub fn send(&mut self, end: usize, id: StreamId) {
        let e = &mut self.ends[end];
        loop {
            let mut bytes = Vec::new();
            if e.is_sealed(id) {
                bytes.extend(e.sealed(self.now, id));
                e.sealed_sent(self.now, id, bytes.len());
            } else if let Some(io) = e.stream_io(id)
                && let Some(t) = io.engine.transmit(io.adapter, self.now)
            {
                for p in t.pieces {
                    match p {
                        Piece::Scratch { start, len } => bytes.extend(&t.scratch[*start..start + len]),
                        Piece::Region(p) => io.adapter.fold_mr(*p, &mut |b| bytes.extend(b)).expect("there"),
                    }
                }
                bytes.drain(..t.skip);
                io.engine.on_sent(io.adapter, bytes.len());
                e.stream_sent();
            }
            if bytes.is_empty() {
                break;
            }
            if let Some(&(n, side)) = self.by_id.get(&(end, id)) {
                if end == 0 {
                    (self.meddle)(n, &mut bytes);
                }
                self.streams[n][1 - side].bytes.extend(bytes);
            }
        }
        e.stream_done(self.now, id);
    }

    pub fn receive(&mut self, n: usize, side: usize) -> bool {
        let h = &mut self.streams[n][side];
        let (end, Some(id)) = (h.end, h.id) else { return false };
        let e = &mut self.ends[end];
        if !self.by_id.contains_key(&(end, id)) || h.told {
            return false;
        }
        if h.bytes.is_empty() || h.reset {
            if h.shut {
                h.told = true;
                if h.reset {
                    e.stream_failed(self.now, id, "reset")
                } else {
                    e.stream_ended(self.now, id)
                }
                return true;
            }
            return false;
        }
        if !e.stream_reads(id) {
            return false;
        }
        let most = 1 + self.rng.below(70_000) as usize;
        let bytes: Vec<u8> = h.bytes.iter().take(most).copied().collect();
        let taken = match e.stream_io(id) {
            Some(io) => {
                io.engine.borrow_scratch(io.spare);
                io.engine.recheck(io.adapter, self.now);
                let places = io.engine.places();
                let mut at = 0;
                for range in places.ranges {
                    let rest = &bytes[at..];
                    match range {
                        ReadTarget::Scratch { start, len } => {
                            let n = rest.len().min(*len);
                            places.scratch[*start..start + n].copy_from_slice(&rest[..n]);
                            at += n;
                        }
                        ReadTarget::Region(p) => {
                            let n = rest.len().min(p.len as usize);
                            io.adapter.write_mr(p.mr, p.offset, &rest[..n]).expect("there");
                            at += n;
                        }
                    }
                }
                io.engine.on_received(io.adapter, at, self.now);
                io.engine.return_scratch(io.spare);
                e.stream_done(self.now, id);
                at
            }
            None => e.feed_stream(self.now, id, &bytes),
        };
        self.streams[n][side].bytes.drain(..taken);
        taken > 0
    }

    /// Until nothing moves.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for end in 0..2 {
                self.ends[end].handle_timeout(self.now);
                while let Some(e) = self.ends[end].poll_event() {
                    self.events[end].push(e);
                    moved = true;
                }
                moved |= self.apply_choice(end);
                while let Some(id) = self.ends[end].poll_stream(self.now) {
                    self.send(end, id);
                }
                moved |= self.apply_choice(end);
            }
            for n in 0..self.streams.len() {
                moved |= self.receive(n, 0) | self.receive(n, 1);
            }
            if !moved && self.ends.iter().all(|e| !e.has_streams_ready()) {
                return;
            }
        }
        panic!("it never ends");
    }

    pub fn pass(&mut self, time: Span) {
        let end = self.now + time;
        while let Some(t) = self.ends.iter().filter_map(Endpoint::next_timeout).min().filter(|t| *t < end) {
            self.now = t.max(self.now + Span::from_micros(1));
            self.run();
        }
        self.now = end;
        self.run();
    }

    pub fn incoming(&self) -> Vec<ConnId> {
        let of = |e: &Event| if let Event::Incoming { conn } = e { Some(*conn) } else { None };
        self.events[1].iter().filter_map(of).collect()
    }

    pub fn closed(&self, end: usize) -> Option<&CloseReason> {
        self.events[end]
            .iter()
            .find_map(|e| if let Event::Closed { reason, .. } = e { Some(reason) } else { None })
    }

    /// Regions, queue pairs and so on are all given back, and every socket is closed.
    pub fn is_clean(&mut self) -> bool {
        let limits = |e: &mut Endpoint| e.streams() == 0 && e.is_quiet();
        self.by_id.is_empty() && self.ends.iter_mut().all(limits)
    }
}

pub fn server(allowed: &[u8], iwarp: IwarpServer) -> Config {
    let mut c = server_config(allowed);
    c.server.as_mut().expect("a server").iwarp = Some(iwarp);
    c
}

pub fn both() -> IwarpServer {
    IwarpServer { plain: true, ..IwarpServer::default() }
}

pub fn by(tls: bool) -> Iwarp {
    Iwarp { tls, private_data: b"hello".to_vec(), ..Iwarp::default() }
}
