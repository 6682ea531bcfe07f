//! Datagrams of nobody in particular.

use super::{Common, paced};
use anyhow::{Context, Result};
use base::{Rng, Span, Time};
use endpoint::{Config, Connect, Endpoint};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use transport::crypto::ServerTrust;

/// First packets that are made, and sent from ever new ports: a handshake each.
const FIRSTS: usize = 256;
/// A socket is used for so many.
const PER_PORT: u64 = 64;

/// First packets for a server, each of a handshake of its own.
fn firsts(c: &Common, to: SocketAddr, n: usize, seed: u64) -> Result<Vec<Vec<u8>>> {
    let mut made = Vec::new();
    for i in 0..n as u64 {
        let mut e = Endpoint::new(Config::client(c.credentials.clone()), Rng::from_u64(seed + i))?;
        let connect = Connect {
            remote: to,
            server_name: "server".into(),
            trust: ServerTrust::FirstUse,
            token: None,
            options: None,
            iwarp: None,
        };
        e.connect(Time::ZERO, connect)?;
        let mut buf = vec![0; 64 << 10];
        let t = e.poll_transmit(Time::ZERO, &mut buf).context("no first packet")?;
        buf.truncate(t.len);
        made.push(buf);
    }
    Ok(made)
}

/// Sends from the attacker's address, from another port now and then.
struct Sender {
    from: SocketAddr,
    socket: UdpSocket,
    sent: u64,
}

impl Sender {
    fn new(c: &Common) -> Result<Sender> {
        let from = SocketAddr::new(c.target.from, 0);
        Ok(Sender { from, socket: UdpSocket::bind(from)?, sent: 0 })
    }
    fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> Result<()> {
        self.sent += 1;
        if self.sent.is_multiple_of(PER_PORT) {
            self.socket = UdpSocket::bind(self.from)?;
        }
        // A full buffer loses it, as the network would.
        let _ = self.socket.send_to(bytes, to);
        Ok(())
    }
}

/// Handshakes that are begun and never gone on with: 2,000 a second at each server.
pub fn half_open(c: &Arc<Common>) -> Result<()> {
    let all = c.target.servers().map(|to| firsts(c, to, FIRSTS, 1).map(|f| (to, f)));
    let [serve, perf] = all;
    let (all, sent, mut n) = ([serve?, perf?], c.count("half-open handshakes"), 0);
    let mut sender = Sender::new(c)?;
    paced(c, Span::from_millis(10), 20, || {
        for (to, firsts) in &all {
            sender.send(*to, &firsts[n % firsts.len()])?;
            Common::add(&sent);
        }
        n += 1;
        if n.is_multiple_of(FIRSTS) {
            // The same again are other handshakes from another port.
            sender = Sender::new(c)?;
        }
        Ok(())
    })
}

/// Random bytes, some with a head of ours: 10,000 a second at each server.
pub fn garbage(c: &Arc<Common>) -> Result<()> {
    let (mut rng, sent) = (Rng::from_u64(7), c.count("garbage datagrams"));
    let (mut sender, mut buf) = (Sender::new(c)?, vec![0; 1_500]);
    paced(c, Span::from_millis(10), 100, || {
        let len = 1 + rng.below(1_500) as usize;
        rng.fill(&mut buf[..len]);
        for to in c.target.servers() {
            sender.send(to, &buf[..len])?;
            Common::add(&sent);
        }
        Ok(())
    })
}

/// The same first packets from one port, and others with some bits changed: 2,000 a second at each server.
pub fn replays(c: &Arc<Common>) -> Result<()> {
    let (mut rng, sent) = (Rng::from_u64(9), c.count("replays"));
    let [serve, perf] = c.target.servers().map(|to| firsts(c, to, 16, 1_000).map(|f| (to, f)));
    let (all, socket) = ([serve?, perf?], UdpSocket::bind((c.target.from, 0))?);
    paced(c, Span::from_millis(10), 20, || {
        for (to, firsts) in &all {
            let mut b = firsts[rng.below(firsts.len() as u64) as usize].clone();
            for _ in 0..rng.below(4) {
                let at = rng.below(b.len() as u64) as usize;
                b[at] ^= 1 << rng.below(8);
            }
            let _ = socket.send_to(&b, to);
            Common::add(&sent);
        }
        Ok(())
    })
}
