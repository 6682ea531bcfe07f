//! Short messages by iWARP: two endpoints joined by a stream in memory, whose bytes go from and to their places as the driver
//! moves them.

use crate::region::counted_if;
use anyhow::{Context, Result, bail, ensure};
use base::{Rng, Span, Time};
use endpoint::{
    Authority, Config, ConnInfo, Connect, Endpoint, Event, Iwarp, IwarpServer, ServerConfig, StreamCommand,
    StreamId,
};
use iwarp::Piece;
use std::hint::black_box;
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Data, Memory, Mr, RecvWr, SendOp, SendWr, Sge, Sges};

/// Bytes of a message.
const SMALL: usize = 4;
/// Bytes of a segment, as over loopback: records need not be shorter.
const EMSS: usize = 65_483;
/// Turns of either end until a connection is up, at most.
const SET_UP: usize = 200;
/// Round trips before counting begins: tables have grown.
const FIRST_TRIPS: u64 = 500;

/// One end.
struct End {
    endpoint: Endpoint,
    stream: Option<StreamId>,
    info: Option<ConnInfo>,
    region: Option<Mr>,
    /// What is on its way here.
    coming: Vec<u8>,
    /// Messages that have arrived.
    arrived: u64,
}

fn config(n: u8, server: Option<ServerConfig>) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([n; 32]))));
    c.static_secret = [n; 32];
    c.server = server;
    c
}

impl End {
    fn new(n: u8, server: Option<ServerConfig>) -> Result<End> {
        let endpoint = Endpoint::new(config(n, server), Rng::from_u64(n.into()))?;
        Ok(End { endpoint, stream: None, info: None, region: None, coming: Vec::new(), arrived: 0 })
    }

    /// Takes in what has come: `io::tcp`'s reading.
    fn read(&mut self, now: Time) {
        let (Some(id), false) = (self.stream, self.coming.is_empty()) else { return };
        let e = &mut self.endpoint;
        let Some(io) = e.stream_io(id) else {
            let taken = e.feed_stream(now, id, &self.coming);
            self.coming.drain(..taken);
            return;
        };
        io.engine.borrow_scratch(io.spare);
        let taken = io.engine.receive(io.adapter, &self.coming, now);
        self.coming.drain(..taken);
        let mut settled = false;
        if let Some(io) = e.stream_io(id) {
            io.engine.return_scratch(io.spare);
            settled = io.engine.is_settled();
        }
        if !settled {
            e.stream_done(now, id);
        }
    }

    /// Gives what is to be sent to `out`: its writing.
    fn write(&mut self, now: Time, out: &mut Vec<u8>) {
        let e = &mut self.endpoint;
        while let Some(id) = e.poll_stream(now) {
            while let Some(io) = e.stream_io(id) {
                let Some(t) = io.engine.transmit(io.adapter, now) else { break };
                let before = out.len();
                for p in t.pieces {
                    match p {
                        Piece::Scratch { start, len } => {
                            out.extend_from_slice(&t.scratch[*start..start + len])
                        }
                        // A region that is gone ends the connection, which is noticed.
                        Piece::Region(p) => drop(io.adapter.fold_mr(*p, &mut |b| out.extend_from_slice(b))),
                    }
                }
                io.engine.on_sent(io.adapter, out.len() - before);
                e.stream_sent();
            }
            e.stream_done(now, id);
        }
    }

    fn post_receive(&mut self) -> Result<()> {
        let (qp, mr) = (self.qp()?, self.region.context("no region")?);
        let sges = Sges::One(Sge { lkey: mr.lkey, offset: 0, len: SMALL as u64 });
        self.endpoint.adapter().post_recv(qp, RecvWr { wr_id: 0, sges }).context("posting a receive")
    }

    fn post_message(&mut self) -> Result<()> {
        let qp = self.qp()?;
        let bytes = (self.arrived as u32).to_le_bytes();
        let wr = SendWr::new(self.arrived, SendOp::Send, Data::Inline(bytes[..].into()));
        let wr = SendWr { signaled: false, ..wr };
        self.endpoint.adapter().post_send(qp, wr).context("posting a message")
    }

    fn qp(&self) -> Result<verbs::QpId> {
        Ok(self.info.as_ref().context("not connected")?.qps[0])
    }

    /// Takes completions; answers what has arrived.
    fn drive(&mut self) -> Result<()> {
        let cq = self.info.as_ref().context("not connected")?.cq;
        while self.endpoint.adapter().poll_cq(cq).is_some() {
            self.arrived += 1;
            self.post_message()?;
            self.post_receive()?;
        }
        Ok(())
    }

    /// Everything that an end does with a message: what the driver's loop calls, in its order.
    fn turn(&mut self, now: Time, out: &mut Vec<u8>) -> Result<()> {
        self.read(now);
        self.endpoint.handle_timeout(now);
        self.drive()?;
        self.write(now, out);
        black_box(self.endpoint.next_timeout());
        Ok(())
    }
}

/// Joins both ends.
fn connected(crc: bool) -> Result<[End; 2]> {
    let settings = iwarp::Config { crc, ..iwarp::Config::default() };
    let server = ServerConfig {
        auth: ClientAuth::AnyKey,
        authority: Authority { keys: None, tokens: Vec::new() },
        iwarp: Some(IwarpServer { plain: true, settings, ..IwarpServer::default() }),
        ..ServerConfig::default()
    };
    let mut ends = [End::new(2, None)?, End::new(1, Some(server))?];
    let now = Time::from_nanos(1_000_000_000);
    let connect = Connect {
        remote: "192.0.2.2:4460".parse()?,
        server_name: "server.example".into(),
        trust: ServerTrust::Pinned(vec![Identity::from_seed([1; 32]).public_key()]),
        token: None,
        options: None,
        iwarp: Some(Iwarp { tls: false, settings, ..Iwarp::default() }),
    };
    ends[0].endpoint.connect(now, connect)?;
    for _ in 0..SET_UP {
        while let Some(order) = ends[0].endpoint.poll_stream_command() {
            if let StreamCommand::Connect { stream, .. } = order {
                let there = ends[1].endpoint.stream_accepted(now, "192.0.2.1:1000".parse()?, Some(EMSS));
                (ends[0].stream, ends[1].stream) = (Some(stream), there);
                ends[0].endpoint.stream_connected(now, stream, Some(EMSS));
            }
        }
        for k in 0..2 {
            let mut out = Vec::new();
            ends[k].read(now);
            ends[k].write(now, &mut out);
            ends[1 - k].coming.extend(out);
            while let Some(event) = ends[k].endpoint.poll_event() {
                match event {
                    Event::Connected { conn } | Event::Incoming { conn } => {
                        ends[k].info = ends[k].endpoint.connection(conn).cloned();
                    }
                    Event::Closed { reason, .. } => bail!("the connection has closed: {reason}"),
                    _ => {}
                }
            }
        }
        if ends.iter().all(|e| e.info.is_some()) {
            return Ok(ends);
        }
    }
    bail!("the ends did not connect")
}

/// Round trips of Sends, one message at a time.
pub fn small(units: u64, crc: bool) -> Result<u64> {
    let mut ends = connected(crc)?;
    for e in &mut ends {
        let pd = e.info.as_ref().context("not connected")?.pd;
        let memory = Memory::from(vec![0; SMALL]);
        let mr = e.endpoint.adapter().reg_mr(pd, memory, Access::ALL).map_err(|e| e.0);
        e.region = Some(mr.context("registering memory")?);
        e.post_receive()?;
    }
    let mut now = Time::from_nanos(2_000_000_000);
    ends[0].post_message()?;
    let mut out = Vec::with_capacity(4_096);
    ends[0].turn(now, &mut out)?;
    let mut counted = 0;
    while counted < units {
        let count = ends[0].arrived >= FIRST_TRIPS;
        for k in [1, 0] {
            now += Span::from_micros(4);
            let before = ends[k].arrived;
            ends[k].coming.append(&mut out);
            let end = &mut ends[k];
            counted_if(count, || end.turn(now, &mut out))?;
            ensure!(end.arrived == before + 1, "a message did not get across");
        }
        counted += u64::from(count);
    }
    Ok(counted)
}
