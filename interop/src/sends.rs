//! The programs of rdma-core that only send: `ucmatose` (the server sends so many messages, then the client sends as many
//! back), `rdma_client` and `rdma_server` (the client sends one message, the server answers with one).

use crate::clock;
use crate::peer::{Peer, config};
use anyhow::{Result, ensure};
use iwarp::{Config, End};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use verbs::{Access, Mr, Opcode};

/// How long ends wait for each other.
const MEET: Duration = Duration::from_secs(60);

/// Messages of `ucmatose`, in each direction.
#[derive(Clone, Copy)]
pub struct Messages {
    pub count: usize,
    pub size: usize,
}

/// Either end, with receives posted.
fn prepared(m: Messages) -> Result<(Peer, Mr)> {
    let mut p = Peer::new()?;
    let buffer = p.region(m.size * m.count, Access::LOCAL_WRITE)?;
    for i in 0..m.count {
        p.post_recv(buffer, (i * m.size) as u64, m.size as u64)?;
    }
    Ok((p, buffer))
}

fn receive(p: &mut Peer, m: Messages) -> Result<()> {
    for i in 0..m.count {
        let w = p.wait(Opcode::Recv)?;
        ensure!(w.byte_len == m.size as u64, "message {i} has {} bytes instead of {}", w.byte_len, m.size);
    }
    Ok(())
}

fn send(p: &mut Peer, m: Messages) -> Result<()> {
    for i in 0..m.count {
        p.send(&vec![i as u8; m.size])?;
    }
    for _ in 0..m.count {
        p.wait(Opcode::Send)?;
    }
    Ok(())
}

/// Where so many ends wait for each other, so that all are connected at once.
pub struct Meeting {
    here: AtomicUsize,
    ends: usize,
}

impl Meeting {
    pub fn of(ends: usize) -> Arc<Meeting> {
        Arc::new(Meeting { here: AtomicUsize::new(0), ends })
    }
    fn wait(&self) -> Result<()> {
        let start = clock::now();
        self.here.fetch_add(1, Ordering::SeqCst);
        while self.here.load(Ordering::SeqCst) < self.ends {
            let here = self.here.load(Ordering::SeqCst);
            ensure!(clock::now() - start < MEET, "only {here} of {} ends are connected", self.ends);
            clock::pause(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// As the client of `ucmatose`.
pub fn ucmatose_client(to: SocketAddr, config: Config, m: Messages, meeting: &Meeting) -> Result<()> {
    let (mut p, _) = prepared(m)?;
    p.connect(to, config, b"")?;
    meeting.wait()?;
    receive(&mut p, m)?;
    send(&mut p, m)?;
    // The server closes.
    p.wait_end().map(drop)
}

/// As the server of `ucmatose`, for one connection. The server speaks first.
pub fn ucmatose_server(listener: &TcpListener, config: Config, m: Messages, meeting: &Meeting) -> Result<()> {
    let (mut p, _) = prepared(m)?;
    p.accept(listener, Config { speak_first: true, ..config }, |_| Vec::new())?;
    meeting.wait()?;
    send(&mut p, m)?;
    receive(&mut p, m)?;
    p.close().map(drop)
}

/// What `rdma_client` and `rdma_server` exchange.
const ONE: Messages = Messages { count: 1, size: 16 };

/// As `rdma_client`.
pub fn rdma_client(to: SocketAddr, crc: bool) -> Result<()> {
    let (mut p, _) = prepared(ONE)?;
    p.connect(to, config(crc), b"")?;
    send(&mut p, ONE)?;
    receive(&mut p, ONE)?;
    p.close().map(drop)
}

/// As `rdma_server`.
pub fn rdma_server(listener: &TcpListener, crc: bool) -> Result<()> {
    let (mut p, _) = prepared(ONE)?;
    p.accept(listener, config(crc), |_| Vec::new())?;
    receive(&mut p, ONE)?;
    send(&mut p, ONE)?;
    // The client closes.
    let end = p.wait_end()?;
    ensure!(end.0 == End::Closed, "at the end: {end:?}");
    Ok(())
}
