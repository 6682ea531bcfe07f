//! `rping` of rdma-core: the client names a buffer by a send, the server reads it; the client names another one, the server
//! writes there what it read. Each of the server's turns ends with a send.

use crate::peer::{Peer, Remote};
use anyhow::{Context, Result, ensure};
use iwarp::End;
use verbs::{Access, Mr, Opcode, SendOp, Sge};

/// Bytes of a message: address, key and length of a buffer.
pub const INFO: usize = 16;
/// Messages for which receives are posted.
const RECEIVES: u64 = 2;

/// Either end.
pub struct Rping {
    pub p: Peer,
    /// What is read and sent.
    pub source: Mr,
    /// What is written.
    pub sink: Mr,
    messages: Mr,
}

impl Rping {
    /// An end with buffers of `size` bytes, not connected yet.
    pub fn new(size: usize) -> Result<Rping> {
        let mut p = Peer::new()?;
        let source = p.region(size, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let sink = p.region(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let messages = p.region(INFO * RECEIVES as usize, Access::LOCAL_WRITE)?;
        for i in 0..RECEIVES {
            p.post_recv(messages, i * INFO as u64, INFO as u64)?;
        }
        Ok(Rping { p, source, sink, messages })
    }

    /// Names a buffer to the peer.
    pub fn send_info(&mut self, offset: u64, rkey: u32, len: u32) -> Result<()> {
        let mut info = offset.to_be_bytes().to_vec();
        info.extend(rkey.to_be_bytes());
        info.extend(len.to_be_bytes());
        self.p.send(&info)
    }

    /// What the peer named, and its length; the receive is posted again.
    pub fn wait_info(&mut self) -> Result<(Remote, u32)> {
        let w = self.p.wait(Opcode::Recv)?;
        ensure!(w.byte_len == INFO as u64, "a message of {} bytes instead of {INFO}", w.byte_len);
        let b = self.p.read(self.messages, w.wr_id, INFO)?;
        self.p.post_recv(self.messages, w.wr_id, INFO as u64)?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let offset = u64::from(word(0)) << 32 | u64::from(word(4));
        Ok((Remote { offset, rkey: word(8) }, word(12)))
    }

    /// As client: `rounds` of `size` bytes; what comes back has to be what was read. Then closes.
    pub fn client(mut self, rounds: usize, size: usize) -> Result<()> {
        for round in 0..rounds {
            let text = text(round, size);
            self.p.write(self.source, 0, &text)?;
            self.send_info(0, self.source.rkey, size as u32)?;
            self.wait_info().with_context(|| format!("round {round}: the read"))?;
            self.send_info(0, self.sink.rkey, size as u32)?;
            self.wait_info().with_context(|| format!("round {round}: the write"))?;
            ensure!(self.p.read(self.sink, 0, size)? == text, "round {round}: other bytes came back");
        }
        let end = self.p.close()?;
        ensure!(end.0 == End::Closed, "at the end: {end:?}");
        Ok(())
    }

    /// As server: reads what the client names into our buffer.
    pub fn read_from(&mut self, from: Remote, len: u32) -> Result<()> {
        let Remote { rkey, offset } = from;
        let sge = Sge { lkey: self.source.lkey, offset: 0, len: len.into() };
        self.p.post(SendOp::Read { rkey, offset }, sge)?;
        self.p.wait(Opcode::Read).map(drop)
    }

    /// As server: writes our buffer to where the client names.
    pub fn write_to(&mut self, to: Remote, len: u32) -> Result<()> {
        let Remote { rkey, offset } = to;
        let sge = Sge { lkey: self.source.lkey, offset: 0, len: len.into() };
        self.p.post(SendOp::Write { rkey, offset }, sge)
    }

    /// As server: the client's turn.
    pub fn go_ahead(&mut self) -> Result<()> {
        self.p.send(&[0; INFO])
    }

    /// As server, until the client closes; gives the rounds that were served.
    pub fn server(mut self) -> Result<usize> {
        let mut rounds = 0;
        loop {
            let (from, len) = match self.wait_info() {
                Ok(info) => info,
                Err(_) if self.p.ended == Some((End::Closed, false)) => return Ok(rounds),
                Err(e) => return Err(e),
            };
            self.read_from(from, len)?;
            self.go_ahead()?;
            let (to, len) = self.wait_info()?;
            self.write_to(to, len)?;
            self.go_ahead()?;
            rounds += 1;
        }
    }
}

/// What round `round` carries: rping writes back as much as the string in its buffer is long, with its end.
fn text(round: usize, size: usize) -> Vec<u8> {
    let mut text = format!("rping over longhaul, round {round} ").into_bytes();
    let letters = (0..).map(|i: usize| b'a' + ((i + round) % 26) as u8);
    let room = size.saturating_sub(1 + text.len());
    text.extend(letters.take(room));
    text.truncate(size.saturating_sub(1));
    text.push(0);
    text
}
