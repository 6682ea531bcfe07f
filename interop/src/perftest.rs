//! The programs of perftest (4.5) with `-R`: `ib_write_bw`, `ib_read_bw`, `ib_send_lat`.
//!
//! A first connection carries what the ends tell each other, by sends that are answered by sends of the same length: the
//! version, two sizes, the MTU, and then again and again a structure of 56 bytes that says where the buffer is (a
//! "handshake", which serves as barrier too). After the first handshake the client makes a second connection to the same
//! port, and the work is done there. The tests of throughput end with five figures that are exchanged likewise.

use crate::peer::{Peer, Remote, config};
use anyhow::{Context, Result, ensure};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use verbs::{Access, Mr, Opcode, SendOp, Sge};

/// Bytes of a handshake: LID, outstanding reads, QP, PSN, key (32 bits each, and 32 to align), address, GID, two more words.
const DEST: usize = 56;
/// Where in it the key stands.
const KEY: usize = 16;
/// Where in it the address stands.
const ADDRESS: usize = 24;
/// Bytes of the version's text.
const VERSION: usize = 16;
/// The text: what the exchange looks like depends on it, and 5.70 is the least that the program talks to.
const OURS: &[u8] = b"6.00";
/// Bytes of the server's buffer.
const BUFFER: usize = 1 << 20;
/// Requests on their way.
const WINDOW: usize = 32;

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    WriteBw,
    ReadBw,
    SendLat,
}

impl Program {
    pub const ALL: [Program; 3] = [Program::WriteBw, Program::ReadBw, Program::SendLat];
    pub fn name(self) -> &'static str {
        match self {
            Program::WriteBw => "ib_write_bw",
            Program::ReadBw => "ib_read_bw",
            Program::SendLat => "ib_send_lat",
        }
    }
    /// Handshakes between the second connection and the work.
    fn handshakes(self) -> usize {
        if self == Program::SendLat { 5 } else { 4 }
    }
}

/// The connection for figures.
struct Control {
    p: Peer,
    buffer: Mr,
}

impl Control {
    fn new() -> Result<Control> {
        let mut p = Peer::new()?;
        let buffer = p.region(DEST, Access::LOCAL_WRITE)?;
        p.post_recv(buffer, 0, DEST as u64)?;
        Ok(Control { p, buffer })
    }
    fn take(&mut self) -> Result<Vec<u8>> {
        let w = self.p.wait(Opcode::Recv)?;
        let bytes = self.p.read(self.buffer, 0, w.byte_len as usize)?;
        self.p.post_recv(self.buffer, 0, DEST as u64)?;
        Ok(bytes)
    }
    /// As client.
    fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.p.send(bytes)?;
        let answer = self.take()?;
        ensure!(answer.len() == bytes.len(), "{} bytes answered by {}", bytes.len(), answer.len());
        Ok(answer)
    }
}

/// What a handshake says: where the buffer is.
fn dest(rkey: u32) -> Vec<u8> {
    let mut d = vec![0; DEST];
    d[KEY..KEY + 4].copy_from_slice(&rkey.to_be_bytes());
    d
}

/// As the client: `count` requests of `size` bytes.
pub fn client(to: SocketAddr, crc: bool, program: Program, count: usize, size: usize) -> Result<()> {
    let mut control = Control::new()?;
    control.p.connect(to, config(crc), b"")?;
    let mut version = OURS.to_vec();
    version.resize(VERSION, 0);
    control.exchange(&version).context("versions")?;
    control.exchange(&4096u32.to_be_bytes())?;
    control.exchange(&64u32.to_be_bytes())?;
    control.exchange(b"3\0").context("MTU")?;
    control.exchange(&dest(0)).context("first handshake")?;

    let mut p = Peer::new()?;
    let mr = p.region(BUFFER, Access::ALL)?;
    p.post_recv(mr, 0, size as u64)?;
    p.connect(to, config(crc), b"").context("second connection")?;
    let mut theirs = Vec::new();
    for _ in 0..program.handshakes() {
        theirs = control.exchange(&dest(mr.rkey)).context("handshake")?;
    }
    let word = |at: usize| u32::from_be_bytes([theirs[at], theirs[at + 1], theirs[at + 2], theirs[at + 3]]);
    let offset = u64::from(word(ADDRESS)) << 32 | u64::from(word(ADDRESS + 4));
    let remote = Remote { rkey: word(KEY), offset };
    work(&mut p, mr, program, remote, count, size)?;
    if program != Program::SendLat {
        control.exchange(&dest(mr.rkey))?;
        // Size, requests, and three rates that are printed.
        for figure in [size as u64, count as u64, 0, 0, 0] {
            control.exchange(&figure.to_be_bytes()).context("figures")?;
        }
    }
    control.exchange(&dest(mr.rkey)).context("last handshake")?;
    p.close()?;
    control.p.close()?;
    Ok(())
}

fn work(p: &mut Peer, mr: Mr, program: Program, to: Remote, count: usize, size: usize) -> Result<()> {
    let sge = Sge { lkey: mr.lkey, offset: 0, len: size as u64 };
    let Remote { rkey, offset } = to;
    if program == Program::SendLat {
        for i in 0..count {
            p.post(SendOp::Send, sge)?;
            p.wait(Opcode::Recv).with_context(|| format!("answer {i}"))?;
            p.post_recv(mr, 0, size as u64)?;
        }
        return Ok(());
    }
    let (op, done) = match program {
        Program::ReadBw => (SendOp::Read { rkey, offset }, Opcode::Read),
        _ => (SendOp::Write { rkey, offset }, Opcode::Write),
    };
    for i in 0..count {
        if i >= WINDOW {
            p.wait(done)?;
        }
        p.post(op, sge)?;
    }
    for _ in 0..count.min(WINDOW) {
        p.wait(done)?;
    }
    Ok(())
}

/// As the server.
pub fn server(listener: &TcpListener, crc: bool, program: Program, size: usize) -> Result<()> {
    let mut control = Control::new()?;
    control.p.accept(listener, config(crc), |_| Vec::new())?;
    // Until the first handshake what comes goes back as it is: we agree to everything.
    loop {
        let bytes = control.take()?;
        control.p.send(&bytes)?;
        if bytes.len() == DEST {
            break;
        }
    }
    // It is sent when something is waited for next, which is another connection: send it now.
    control.p.wait(Opcode::Send)?;
    let mut p = Peer::new()?;
    let mr = p.region(BUFFER, Access::ALL)?;
    for _ in 0..WINDOW {
        p.post_recv(mr, 0, size as u64)?;
    }
    p.accept(listener, config(crc), |_| Vec::new()).context("second connection")?;
    let worker = thread::spawn(move || serve(p, mr, program, size));
    while let Ok(bytes) = control.take() {
        let answer = if bytes.len() == DEST { dest(mr.rkey) } else { bytes };
        control.p.send(&answer)?;
    }
    worker.join().map_err(|_| anyhow::anyhow!("the server's thread ended in a panic"))?
}

/// Serves the second connection until the client closes it.
fn serve(mut p: Peer, mr: Mr, program: Program, size: usize) -> Result<()> {
    while p.ended.is_none() {
        p.step()?;
        while program == Program::SendLat && p.poll(Opcode::Recv)?.is_some_and(|w| w.byte_len == size as u64)
        {
            p.post_recv(mr, 0, size as u64)?;
            p.post(SendOp::Send, Sge { lkey: mr.lkey, offset: 0, len: size as u64 })?;
        }
    }
    Ok(())
}
