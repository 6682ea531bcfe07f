//! `rping` of rdma-core, as either end, over a plain TCP socket: to try this crate against the kernel's iWARP.
//!
//! ```text
//! rping client HOST:PORT [ROUNDS] [SIZE] [WORDS...]     against: rping -s -a HOST [-P] [-S SIZE]
//! rping server ADDRESS:PORT [WORDS...]                  against: rping -c -a ADDRESS [-C ROUNDS] [-S SIZE]
//! ```
//!
//! Words: `nocrc`, `p2p`, `rev1`, `markers`, `early`, `pause` (0.3 s before the first record).

use base::{Rng, Span, Time};
use longhaul_iwarp::{Config, Connection, Event, Piece, Placement, StreamAction};
use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use verbs::{
    Access, Adapter, CqId, Data, Kind, Limits, Memory, Mr, Opcode, QpId, QpInit, RecvWr, SendOp, SendWr, Sge,
    Status, WorkCompletion,
};

/// Bytes of the largest buffer.
const SIZE: usize = 1 << 20;
/// Bytes of a message: address, key and length of a buffer.
const INFO: usize = 16;

struct Rping {
    a: Adapter,
    cq: CqId,
    qp: QpId,
    /// What is read, what is written, what is received.
    bufs: [Mr; 3],
    c: Connection,
    stream: TcpStream,
    established: bool,
    ended: Option<Event>,
}

fn wrong(what: impl ToString) -> Error {
    Error::other(what.to_string())
}

impl Rping {
    fn new(stream: TcpStream, make: impl FnOnce(QpId) -> Connection) -> Result<Rping> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(7));
        let pd = a.alloc_pd().map_err(wrong)?;
        let cq = a.create_cq(64).map_err(wrong)?;
        let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).map_err(wrong)?;
        let mut region = |access| a.reg_mr(pd, Memory::zeroed(SIZE), access).map_err(|e| wrong(e.0));
        let bufs = [
            region(Access::LOCAL_WRITE | Access::REMOTE_READ)?,
            region(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            region(Access::LOCAL_WRITE)?,
        ];
        for i in 0..2 {
            let sges = Sge { lkey: bufs[2].lkey, offset: i * INFO as u64, len: INFO as u64 }.into();
            a.post_recv(qp, RecvWr { wr_id: i, sges }).map_err(wrong)?;
        }
        Ok(Rping { a, cq, qp, bufs, c: make(qp), stream, established: false, ended: None })
    }

    /// Sends what there is to be sent, and looks at what happened.
    fn turn(&mut self) -> Result<()> {
        while let Some(e) = self.c.next_event() {
            eprintln!("{e:?}");
            match e {
                Event::Requested { .. } => {
                    self.c.accept(&mut self.a, self.qp, b"", Time::ZERO).map_err(wrong)?;
                }
                Event::Established { .. } => self.established = true,
                Event::Closed { .. } => self.ended = Some(e),
                _ => {}
            }
        }
        while let Some(t) = self.c.transmit(&mut self.a, Time::ZERO) {
            let (pieces, mut bytes) = (t.pieces.to_vec(), Vec::new());
            let (skip, scratch) = (t.skip, t.scratch.to_vec());
            for p in pieces {
                match p {
                    Piece::Scratch { start, len } => bytes.extend(&scratch[start..start + len]),
                    Piece::Region(p) => self.a.fold_mr(p, &mut |b| bytes.extend(b)).map_err(wrong)?,
                }
            }
            self.stream.write_all(&bytes[skip..])?;
            self.c.on_sent(&mut self.a, bytes.len() - skip);
        }
        while let Some(s) = self.c.next_action() {
            // The peer may have closed it already.
            let _ = self.stream.shutdown(if s == StreamAction::Shutdown {
                Shutdown::Write
            } else {
                Shutdown::Both
            });
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 1 << 16];
        match self.stream.read(&mut buffer)? {
            0 => self.c.on_fin(&mut self.a, Time::ZERO),
            n => {
                self.c.receive(&mut self.a, &buffer[..n], Time::ZERO);
            }
        }
        Ok(())
    }

    /// The next completion of this kind.
    fn wait(&mut self, opcode: Opcode) -> Result<WorkCompletion> {
        loop {
            self.turn()?;
            while let Some(w) = self.a.poll_cq(self.cq) {
                if w.status != Status::Success {
                    self.turn()?;
                    return Err(wrong(format!("{w:?} {:?}", self.ended)));
                }
                if w.opcode == opcode {
                    return Ok(w);
                }
            }
            self.receive()?;
        }
    }

    fn post(&mut self, op: SendOp, data: Data) -> Result<()> {
        self.a.post_send(self.qp, SendWr::new(9, op, data)).map_err(wrong)
    }
    fn send_info(&mut self, mr: Mr, size: usize) -> Result<()> {
        let mut info = vec![0; 8];
        info.extend(mr.rkey.to_be_bytes());
        info.extend((size as u32).to_be_bytes());
        self.post(SendOp::Send, Data::Inline(info.into()))
    }
    /// Address, key and length that the peer sent; the receive is posted again.
    fn wait_info(&mut self) -> Result<(u64, u32, u32)> {
        let w = self.wait(Opcode::Recv)?;
        let mut b = [0; INFO];
        let offset = w.wr_id * INFO as u64;
        self.a.read_mr(self.bufs[2].id, offset, &mut b).map_err(wrong)?;
        let sges = Sge { lkey: self.bufs[2].lkey, offset, len: INFO as u64 }.into();
        self.a.post_recv(self.qp, RecvWr { wr_id: w.wr_id, sges }).map_err(wrong)?;
        let word = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        Ok((u64::from(word(0)) << 32 | u64::from(word(4)), word(8), word(12)))
    }

    fn client(&mut self, rounds: usize, size: usize) -> Result<()> {
        while !self.established {
            self.turn()?;
            if let Some(e) = &self.ended {
                return Err(wrong(format!("{e:?}")));
            }
            if !self.established {
                self.receive()?;
            }
        }
        for round in 0..rounds {
            let mut text = format!("rping over longhaul, round {round} ").into_bytes();
            // The peer writes back as much as the string in its buffer is long, with its end.
            text.resize(size.saturating_sub(1), b'.');
            text.push(0);
            self.a.write_mr(self.bufs[0].id, 0, &text).map_err(wrong)?;
            let [source, sink, _] = self.bufs;
            self.send_info(source, size)?;
            self.wait_info()?;
            self.send_info(sink, size)?;
            self.wait_info()?;
            let mut back = vec![0; size];
            self.a.read_mr(sink.id, 0, &mut back).map_err(wrong)?;
            if back != text {
                return Err(wrong("other bytes came back"));
            }
        }
        println!("{rounds} rounds of {size} bytes: what the peer read from here it wrote back");
        self.close()
    }

    fn server(&mut self) -> Result<()> {
        let mut rounds = 0;
        loop {
            let lkey = self.bufs[0].lkey;
            let Ok((offset, rkey, len)) = self.wait_info() else { break };
            let sge = Sge { lkey, offset: 0, len: len.into() };
            self.post(SendOp::Read { rkey, offset }, sge.into())?;
            self.wait(Opcode::Read)?;
            self.post(SendOp::Send, Data::Inline(vec![0; INFO].into()))?;
            let (offset, rkey, len) = self.wait_info()?;
            let sge = Sge { lkey, offset: 0, len: len.into() };
            self.post(SendOp::Write { rkey, offset }, sge.into())?;
            self.post(SendOp::Send, Data::Inline(vec![0; INFO].into()))?;
            rounds += 1;
        }
        println!("{rounds} rounds served; then {:?}", self.ended);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.c.close(&mut self.a, Time::ZERO);
        while self.ended.is_none() {
            self.turn()?;
            if self.ended.is_none() && self.receive().is_err() {
                self.c.on_error(&mut self.a);
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|a| a == word);
    let config = Config {
        crc: !has("nocrc"),
        markers: has("markers"),
        enhanced: !has("rev1"),
        peer_to_peer: has("p2p"),
        placement: if has("early") { Placement::Early } else { Placement::Verified },
        ..Config::default()
    };
    let numbers: Vec<usize> = args.iter().filter_map(|a| a.parse().ok()).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", address, ..] => {
            let (rounds, size) =
                (numbers.first().copied().unwrap_or(3), numbers.get(1).copied().unwrap_or(64));
            let config = Config { pause: Span::from_millis(if has("pause") { 300 } else { 0 }), ..config };
            let stream = TcpStream::connect(address)?;
            let make = |qp| Connection::initiator(config, qp, b"", Time::ZERO).expect("no private data");
            let mut r = Rping::new(stream, make)?;
            if has("pause") {
                // There is no clock here: the pause is slept once the peer has replied.
                r.turn()?;
                r.receive()?;
                r.stream.set_read_timeout(Some(Duration::from_millis(300)))?;
                let _ = r.receive();
                r.stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                let later = Time::ZERO + Span::from_secs(1);
                r.c.on_timeout(&mut r.a, later);
            }
            r.client(rounds, size)
        }
        ["server", address, ..] => {
            let (stream, peer) = TcpListener::bind(address)?.accept()?;
            eprintln!("connection from {peer}");
            Rping::new(stream, |_| Connection::responder(config, Time::ZERO))?.server()
        }
        _ => Err(wrong(
            "usage: rping client HOST:PORT [ROUNDS] [SIZE] [WORDS...], or rping server ADDRESS:PORT [WORDS...]",
        )),
    }
}
