//! One end of one connection over a plain TCP socket: the engine of `longhaul-iwarp` and the shortest loop that drives it.
//!
//! What is to be sent is written until the socket took all of it, and only then is anything read. Two such ends could wait
//! for each other; against siw, which takes in whatever comes when it comes, this one cannot.

use crate::clock;
use anyhow::{Context, Result, bail, ensure};
use base::{Rng, Span};
use iwarp::{Config, Connection, End, Enhanced, Event, Piece, StreamAction};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use verbs::{
    Access, Adapter, CqId, Data, Kind, Limits, Memory, Mr, Opcode, PdId, QpId, QpInit, RecvWr, SendOp,
    SendWr, Sge, Status, WorkCompletion,
};

/// Work requests of either kind outstanding.
const DEPTH: usize = 4096;
/// Reads outstanding, of either end.
const READS: usize = 16;
/// How long the other end may be silent. An emulated machine on a busy one is slow.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a program may take until it listens.
const LISTENS: Duration = Duration::from_secs(20);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
/// siw can miss a record that comes right behind its reply.
pub const PAUSE: Span = Span::from_millis(300);
/// Bytes that are read from the socket at a time.
const CHUNK: usize = 256 << 10;

/// An address, a key and a length, as a peer named them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remote {
    /// First byte.
    pub offset: u64,
    /// Key.
    pub rkey: u32,
}

/// What one end wants of a connection to siw: as [`Config::default`], with the pause that siw needs.
pub fn config(crc: bool) -> Config {
    Config { crc, pause: PAUSE, ird: READS as u16, ord: READS as u16, ..Config::default() }
}

/// One end of one connection.
pub struct Peer {
    pub a: Adapter,
    pub pd: PdId,
    pub qp: QpId,
    cq: CqId,
    wire: Option<(Connection, TcpStream)>,
    start: Instant,
    done: VecDeque<WorkCompletion>,
    /// What the other end said that asks to connect.
    asked: Option<Vec<u8>>,
    /// What the other end's application said when the connection was made.
    pub private: Option<Vec<u8>>,
    /// The figures of the other end.
    pub depths: Option<Enhanced>,
    /// How the connection ended, and whether the other end did it.
    pub ended: Option<(End, bool)>,
    buffer: Vec<u8>,
    silence: Duration,
}

impl Peer {
    /// An end that is not connected yet: buffers can be registered and receives posted.
    pub fn new() -> Result<Peer> {
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(7));
        let pd = a.alloc_pd()?;
        let cq = a.create_cq(4 * DEPTH)?;
        let init = QpInit {
            kind: Kind::Ordered,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_rd_atomic: READS,
            ..QpInit::new(cq, cq)
        };
        let qp = a.create_qp(pd, init)?;
        Ok(Peer {
            a,
            pd,
            qp,
            cq,
            wire: None,
            start: clock::now(),
            done: VecDeque::new(),
            asked: None,
            private: None,
            depths: None,
            ended: None,
            buffer: vec![0; CHUNK],
            silence: SILENCE,
        })
    }

    /// Connects to `to`, as soon as something listens there.
    pub fn connect(&mut self, to: SocketAddr, config: Config, private: &[u8]) -> Result<()> {
        self.begin(to, config, private)?;
        while self.private.is_none() {
            if let Some(end) = self.ended {
                bail!("the connection was not made: {end:?}");
            }
            self.step()?;
        }
        Ok(())
    }

    /// As [`connect`](Peer::connect), without waiting for the answer.
    pub fn begin(&mut self, to: SocketAddr, config: Config, private: &[u8]) -> Result<()> {
        let stream = dial(to)?;
        let c = Connection::initiator(config, self.qp, private, clock::since(self.start))?;
        self.attach(c, stream)
    }

    /// Accepts the next connection of `listener`; `answer` makes our private data from the peer's.
    pub fn accept(
        &mut self,
        listener: &TcpListener,
        config: Config,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<()> {
        let asked = self.asked(listener, config)?;
        let (c, _) = self.wire.as_mut().context("not connected")?;
        c.accept(&mut self.a, self.qp, &answer(&asked), clock::since(self.start))?;
        self.turn()?;
        self.private = Some(asked);
        Ok(())
    }

    /// Refuses the next connection of `listener`; gives how it ended.
    pub fn refuse(&mut self, listener: &TcpListener, config: Config) -> Result<(End, bool)> {
        self.asked(listener, config)?;
        let (c, _) = self.wire.as_mut().context("not connected")?;
        c.reject(b"", clock::since(self.start))?;
        self.wait_end()
    }

    /// Waits for the next connection of `listener` and for what it asks.
    fn asked(&mut self, listener: &TcpListener, config: Config) -> Result<Vec<u8>> {
        let (stream, _) = accept_within(listener, LISTENS)?;
        let c = Connection::responder(config, clock::since(self.start));
        self.attach(c, stream)?;
        loop {
            if let Some(asked) = self.asked.take() {
                return Ok(asked);
            }
            ensure!(self.ended.is_none(), "instead of a request: {:?}", self.ended);
            self.receive()?;
        }
    }

    fn attach(&mut self, c: Connection, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(self.silence))?;
        self.wire = Some((c, stream));
        self.turn()
    }

    /// Sends what there is to be sent, and looks at what happened.
    fn turn(&mut self) -> Result<()> {
        let now = clock::since(self.start);
        let (c, stream) = self.wire.as_mut().context("not connected")?;
        if c.poll_timeout().is_some_and(|t| t <= now) {
            c.on_timeout(&mut self.a, now);
        }
        let mut failed = false;
        while let Some(t) = c.transmit(&mut self.a, now) {
            let (pieces, skip, mut bytes) = (t.pieces.to_vec(), t.skip, Vec::with_capacity(t.len + t.skip));
            let scratch = t.scratch.to_vec();
            for p in pieces {
                match p {
                    Piece::Scratch { start, len } => bytes.extend(&scratch[start..start + len]),
                    Piece::Region(p) => self.a.fold_mr(p, &mut |b| bytes.extend(b))?,
                }
            }
            if stream.write_all(&bytes[skip..]).is_err() {
                // What came before it broke is looked at first: a Terminate message, perhaps.
                failed = true;
                break;
            }
            c.on_sent(&mut self.a, bytes.len() - skip);
        }
        while let Some(s) = c.next_action() {
            // The peer may have closed it already.
            let _ =
                stream.shutdown(if s == StreamAction::Shutdown { Shutdown::Write } else { Shutdown::Both });
        }
        self.look();
        if failed && self.ended.is_none() {
            self.drain();
        }
        Ok(())
    }

    /// Events and completions.
    fn look(&mut self) {
        while let Some(w) = self.a.poll_cq(self.cq) {
            self.done.push_back(w);
        }
        let Some((c, _)) = self.wire.as_mut() else { return };
        while let Some(e) = c.next_event() {
            match e {
                Event::Requested { private, peer } => (self.asked, self.depths) = (Some(private), peer),
                Event::Established { private, peer } => (self.private, self.depths) = (Some(private), peer),
                Event::Closed { end, by_peer } => self.ended = Some((end, by_peer)),
                _ => {}
            }
        }
    }

    /// Writing failed: takes in what is there, until the stream ends.
    fn drain(&mut self) {
        while self.ended.is_none() {
            let Some((c, stream)) = self.wire.as_mut() else { return };
            match stream.read(&mut self.buffer) {
                Ok(n @ 1..) => {
                    c.receive(&mut self.a, &self.buffer[..n], clock::since(self.start));
                }
                _ => c.on_error(&mut self.a),
            }
            self.look();
        }
    }

    /// Waits for bytes until the connection's clock runs out, and takes them in.
    fn receive(&mut self) -> Result<()> {
        let quiet = clock::now();
        let (c, stream) = self.wire.as_mut().context("not connected")?;
        loop {
            let now = clock::since(self.start);
            let timer = c.poll_timeout().map(|t| t.since(now).to_std());
            let wait = timer.unwrap_or(self.silence).min(self.silence).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(wait))?;
            let got = stream.read(&mut self.buffer);
            let now = clock::since(self.start);
            match got {
                Ok(0) => c.on_fin(&mut self.a, now),
                // It takes all of it: no message waits for its receive.
                Ok(n) => {
                    c.receive(&mut self.a, &self.buffer[..n], now);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    ensure!(clock::now() - quiet < self.silence, "nothing came for {:?}", self.silence);
                    if timer.is_none_or(|t| t > wait) {
                        continue;
                    }
                    c.on_timeout(&mut self.a, now);
                }
                Err(_) => c.on_error(&mut self.a),
            }
            break;
        }
        self.look();
        Ok(())
    }

    /// Sends, then waits for something to happen.
    pub fn step(&mut self) -> Result<()> {
        self.turn()?;
        if self.ended.is_none() { self.receive() } else { Ok(()) }
    }

    /// The next completion of this kind, successful or not. Others are dropped.
    pub fn wait_any(&mut self, opcode: Opcode) -> Result<WorkCompletion> {
        loop {
            self.turn()?;
            while let Some(w) = self.done.pop_front() {
                if w.opcode == opcode {
                    return Ok(w);
                }
                if w.status != Status::Success {
                    bail!("{:?} failed with {:?}; the connection: {:?}", w.opcode, w.status, self.ended);
                }
            }
            if let Some(end) = self.ended {
                bail!("waiting for {opcode:?}, but the connection ended: {end:?}");
            }
            self.receive()?;
        }
    }

    /// The next completion of this kind, which has to be successful.
    pub fn wait(&mut self, opcode: Opcode) -> Result<WorkCompletion> {
        let w = self.wait_any(opcode)?;
        ensure!(w.status == Status::Success, "{opcode:?} failed with {:?}: {:?}", w.status, self.ended);
        Ok(w)
    }

    /// A completion of this kind that is there already, after sending what there is to be sent.
    pub fn poll(&mut self, opcode: Opcode) -> Result<Option<WorkCompletion>> {
        self.turn()?;
        let at = self.done.iter().position(|w| w.opcode == opcode);
        Ok(at.and_then(|at| self.done.remove(at)))
    }

    /// The next completion of any kind that is there already, after sending what there is to be sent.
    pub fn next_done(&mut self) -> Result<Option<WorkCompletion>> {
        self.turn()?;
        Ok(self.done.pop_front())
    }

    /// Waits until the connection is over.
    pub fn wait_end(&mut self) -> Result<(End, bool)> {
        loop {
            if let Some(end) = self.ended {
                return Ok(end);
            }
            self.step()?;
        }
    }

    /// Closes, and waits until the other end has closed too.
    pub fn close(&mut self) -> Result<(End, bool)> {
        if let Some((c, _)) = self.wire.as_mut() {
            c.close(&mut self.a, clock::since(self.start));
        }
        self.wait_end()
    }

    /// Sends these bytes as they are, behind what was sent before.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.turn()?;
        let (_, stream) = self.wire.as_mut().context("not connected")?;
        Ok(stream.write_all(bytes)?)
    }

    /// Waits for so long and does nothing.
    pub fn rest(&mut self, time: Duration) -> Result<()> {
        clock::pause(time);
        self.turn()
    }

    // ---- memory and work

    /// A region of `len` zeros.
    pub fn region(&mut self, len: usize, access: Access) -> Result<Mr> {
        self.a.reg_mr(self.pd, Memory::zeroed(len), access).map_err(|e| e.0.into())
    }
    /// Bytes of a region.
    pub fn read(&self, mr: Mr, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        self.a.read_mr(mr.id, offset, &mut out)?;
        Ok(out)
    }
    /// Changes bytes of a region.
    pub fn write(&mut self, mr: Mr, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.a.write_mr(mr.id, offset, bytes)?)
    }
    /// Posts a receive for `len` bytes of a region.
    pub fn post_recv(&mut self, mr: Mr, offset: u64, len: u64) -> Result<()> {
        let sges = Sge { lkey: mr.lkey, offset, len }.into();
        Ok(self.a.post_recv(self.qp, RecvWr { wr_id: offset, sges })?)
    }
    /// Posts work.
    pub fn post(&mut self, op: SendOp, data: impl Into<Data>) -> Result<()> {
        Ok(self.a.post_send(self.qp, SendWr::new(0, op, data))?)
    }
    /// Posts a send of these bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.post(SendOp::Send, Data::Inline(bytes.into()))
    }
}

/// Connects, as soon as something listens.
pub fn dial(to: SocketAddr) -> Result<TcpStream> {
    let start = clock::now();
    loop {
        match TcpStream::connect_timeout(&to, LISTENS) {
            Ok(stream) => return Ok(stream),
            Err(e) if clock::now() - start > LISTENS => {
                return Err(e).with_context(|| format!("nothing listens at {to}"));
            }
            Err(_) => clock::pause(RETRY),
        }
    }
}

/// The next connection, if one comes in time.
pub fn accept_within(listener: &TcpListener, limit: Duration) -> Result<(TcpStream, SocketAddr)> {
    let start = clock::now();
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false)?;
                return Ok((stream, from));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                ensure!(clock::now() - start < limit, "nobody connected for {limit:?}");
                clock::pause(Duration::from_millis(5));
            }
            Err(e) => return Err(e.into()),
        }
    }
}
