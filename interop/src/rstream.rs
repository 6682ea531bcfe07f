//! `rstream` of rdma-core with `-T v`, over the protocol of rsockets, version 1, as it is over iWARP.
//!
//! Each end has a ring into which the other one writes, and a list of two entries that say which half of the ring may be
//! written next. Both are named in the private data, with the number of messages that may be sent. Data is a write into
//! the ring followed by a send of four bytes: what it is (3 bits) and a number (29 bits). Who has taken half of the ring
//! writes an entry into the other's list and says so by such a message too. Numbers in messages and entries are those of
//! the host, little-endian here.
//!
//! rstream sends a stream whose bytes count up from 0, and checks the one it gets.

use crate::peer::{Peer, Remote};
use anyhow::{Result, bail, ensure};
use iwarp::Config;
use std::net::{SocketAddr, TcpListener};
use verbs::{Access, Data, Mr, Opcode, SendOp, Status};

/// Half of our ring in bytes.
const HALF: usize = 256 << 10;
/// Messages that the other end may send us before it hears of more.
const CREDITS: u16 = 2048;
/// Receives that are posted: beyond those, some for messages that need no credit.
const RECEIVES: u64 = CREDITS as u64 + 64;
/// Bytes of a message.
const MESSAGE: usize = 4;
/// Bytes of an entry: address, key, length.
const ENTRY: usize = 16;
/// Bytes of the private data.
const PRIVATE: usize = 40;
/// Bytes of one write.
const TRANSFER: usize = 32 << 10;

/// What a message is.
const DATA: u32 = 0;
const LIST: u32 = 4;
const CONTROL: u32 = 7;
/// The number of a control message.
const DISCONNECT: u32 = 0;

/// Where the other end may be written.
#[derive(Clone, Copy, Default)]
struct Entry {
    to: Remote,
    len: usize,
}

/// How much is sent each way.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Bytes of a transfer.
    pub size: usize,
    /// Transfers in one direction, then the other.
    pub count: usize,
    pub rounds: usize,
}

impl Amount {
    /// The program's options for it.
    pub fn options(self) -> String {
        format!("-T v -S {} -C {} -I {}", self.size, self.count, self.rounds)
    }
    /// Bytes in each direction of each round.
    fn leg(self) -> u64 {
        self.size as u64 * self.count as u64
    }
}

/// Either end.
struct Stream {
    p: Peer,
    ring: Mr,
    /// The list that the other end writes.
    list: Mr,
    messages: Mr,
    /// Which entry is next, and what is left of the current one.
    next: usize,
    target: Entry,
    /// Data messages sent, and how many may be.
    sent: u16,
    may: u16,
    /// Data messages taken, and at which number we say so.
    taken: u16,
    tell: u16,
    /// The other end's list, and its entry that we write next.
    their_list: Remote,
    their_next: u64,
    /// Bytes of the ring that may be given, and where they begin.
    free: usize,
    free_at: usize,
    /// Positions in the streams.
    out: u64,
    got: u64,
    /// How far the other end may write, and will.
    granted: u64,
    total: u64,
    over: bool,
}

impl Stream {
    fn new() -> Result<Stream> {
        let mut p = Peer::new()?;
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (ring, list) = (p.region(2 * HALF, open)?, p.region(2 * ENTRY, open)?);
        let messages = p.region(RECEIVES as usize * MESSAGE, Access::LOCAL_WRITE)?;
        for i in 0..RECEIVES {
            p.post_recv(messages, i * MESSAGE as u64, MESSAGE as u64)?;
        }
        Ok(Stream {
            p,
            ring,
            list,
            messages,
            next: 1,
            target: Entry::default(),
            sent: 0,
            may: 0,
            taken: 0,
            tell: CREDITS / 2,
            their_list: Remote::default(),
            their_next: 1,
            free: HALF,
            free_at: HALF,
            out: 0,
            got: 0,
            granted: HALF as u64,
            total: 0,
            over: false,
        })
    }

    /// Our half of the private data: version, flags, credits; the list; the first half of the ring.
    fn private(&self) -> Vec<u8> {
        let mut b = vec![1, 0];
        b.extend(CREDITS.to_be_bytes());
        b.extend([0; 4]);
        for (mr, len) in [(self.list, 2), (self.ring, HALF as u32)] {
            b.extend(0u64.to_be_bytes());
            b.extend(mr.rkey.to_be_bytes());
            b.extend(len.to_be_bytes());
        }
        b
    }

    fn learn(&mut self, b: &[u8]) -> Result<()> {
        ensure!(b.len() >= PRIVATE && b[0] == 1, "private data that no rsocket sends: {b:02x?}");
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let remote =
            |at| Remote { offset: u64::from(word(at)) << 32 | u64::from(word(at + 4)), rkey: word(at + 8) };
        self.may = u16::from_be_bytes([b[2], b[3]]);
        self.their_list = remote(8);
        self.target = Entry { to: remote(24), len: word(36) as usize };
        Ok(())
    }

    fn message(&mut self, what: u32, number: u32) -> Result<()> {
        self.p.send(&(what << 29 | number & 0x1fff_ffff).to_le_bytes())
    }

    /// Takes what came; with `wait`, until something did.
    fn progress(&mut self, wait: bool) -> Result<()> {
        self.give()?;
        if wait {
            ensure!(self.p.ended.is_none() && !self.over, "it ended early: {:?}", self.p.ended);
            self.p.step()?;
        }
        while let Some(w) = self.p.next_done()? {
            ensure!(w.status == Status::Success, "{:?}: {:?}, {:?}", w.opcode, w.status, self.p.ended);
            if w.opcode != Opcode::Recv {
                continue;
            }
            let b = self.p.read(self.messages, w.wr_id, MESSAGE)?;
            self.p.post_recv(self.messages, w.wr_id, MESSAGE as u64)?;
            let message = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let number = message & 0x1fff_ffff;
            match message >> 29 {
                DATA => self.take(number as usize)?,
                LIST => self.may = number as u16,
                CONTROL => self.over |= number == DISCONNECT,
                other => bail!("a message of kind {other}"),
            }
        }
        self.give()
    }

    /// `len` bytes are in the ring.
    fn take(&mut self, len: usize) -> Result<()> {
        let at = self.got % (2 * HALF) as u64;
        let bytes = self.p.read(self.ring, at, len)?;
        let wrong = (self.got..).zip(&bytes).find(|(at, b)| *at as u8 != **b);
        ensure!(wrong.is_none(), "byte {:?} of the stream is another one", wrong.map(|(at, _)| at));
        self.got += len as u64;
        self.free += len;
        self.taken = self.taken.wrapping_add(1);
        Ok(())
    }

    /// Tells the other end of room and credits, unless it needs none any more: it may have closed already, and siw answers
    /// what comes then by a reset, with which is lost what TCP had still to send again.
    fn give(&mut self) -> Result<()> {
        let due = (self.taken.wrapping_sub(self.tell) as i16) >= 0;
        let room = self.free >= HALF && self.granted < self.total;
        if self.over || !room && !due {
            return Ok(());
        }
        if room {
            self.granted += HALF as u64;
            let mut entry = (self.free_at as u64).to_le_bytes().to_vec();
            entry.extend(self.ring.rkey.to_le_bytes());
            entry.extend((HALF as u32).to_le_bytes());
            let Remote { rkey, offset } = self.their_list;
            let offset = offset + self.their_next * ENTRY as u64;
            self.p.post(SendOp::Write { rkey, offset }, Data::Inline(entry.into()))?;
            self.free -= HALF;
            self.free_at = (self.free_at + HALF) % (2 * HALF);
            self.their_next ^= 1;
        }
        self.tell = self.taken.wrapping_add(CREDITS / 2);
        self.message(LIST, u32::from(self.taken.wrapping_add(CREDITS)))
    }

    /// Where the next bytes go: takes the next entry of our list when the current one is used up.
    fn room(&mut self) -> Result<usize> {
        if self.target.len == 0 {
            let at = (self.next * ENTRY) as u64;
            let b = self.p.read(self.list, at, ENTRY)?;
            let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
            let to = Remote { offset: u64::from(word(4)) << 32 | u64::from(word(0)), rkey: word(8) };
            self.target = Entry { to, len: word(12) as usize };
            if self.target.len > 0 {
                self.p.write(self.list, at, &[0; ENTRY])?;
                self.next ^= 1;
            }
        }
        Ok(if self.sent == self.may { 0 } else { self.target.len })
    }

    fn send(&mut self, mut len: u64) -> Result<()> {
        while len > 0 {
            self.progress(false)?;
            let n = self.room()?.min(TRANSFER).min(usize::try_from(len)?);
            if n == 0 {
                self.progress(true)?;
                continue;
            }
            let bytes: Vec<u8> = (self.out..self.out + n as u64).map(|at| at as u8).collect();
            let Remote { rkey, offset } = self.target.to;
            self.p.post(SendOp::Write { rkey, offset }, Data::Inline(bytes.into()))?;
            self.message(DATA, n as u32)?;
            self.target.to.offset += n as u64;
            self.target.len -= n;
            self.sent = self.sent.wrapping_add(1);
            self.out += n as u64;
            len -= n as u64;
        }
        self.progress(false)
    }

    fn receive(&mut self, len: u64) -> Result<()> {
        let end = self.got + len;
        while self.got < end {
            self.progress(true)?;
        }
        ensure!(self.got == end, "{} bytes too many", self.got - end);
        Ok(())
    }

    /// The whole test, as client or as server.
    fn run(&mut self, client: bool, amount: Amount) -> Result<()> {
        let sync = 16;
        self.total = sync + amount.leg() * amount.rounds as u64;
        for leg in std::iter::once(sync).chain(std::iter::repeat_n(amount.leg(), amount.rounds)) {
            if client {
                self.send(leg)?;
                self.receive(leg)?;
            } else {
                self.receive(leg)?;
                self.send(leg)?;
            }
        }
        Ok(())
    }
}

/// As the client.
pub fn client(to: SocketAddr, config: Config, amount: Amount) -> Result<()> {
    let mut s = Stream::new()?;
    let private = s.private();
    s.p.connect(to, config, &private)?;
    let theirs = s.p.private.clone().unwrap_or_default();
    s.learn(&theirs)?;
    s.run(true, amount)?;
    s.message(CONTROL, DISCONNECT)?;
    s.p.close().map(drop)
}

/// As the server.
pub fn server(listener: &TcpListener, config: Config, amount: Amount) -> Result<()> {
    let mut s = Stream::new()?;
    let private = s.private();
    s.p.accept(listener, config, |_| private)?;
    let theirs = s.p.private.clone().unwrap_or_default();
    s.learn(&theirs)?;
    s.run(false, amount)?;
    while !s.over && s.p.ended.is_none() {
        s.progress(true)?;
    }
    s.p.close().map(drop)
}
