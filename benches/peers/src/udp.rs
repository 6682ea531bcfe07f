//! Datagrams without any protocol: what the machine allows.

mod load;
pub mod trips;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use base::{Ecn, Span};
use clap::ValueEnum;
use lhio::clock::Clock;
use lhio::poll::{Poller, Source};
use lhio::udp::{MAX_SEGMENTS, MAX_TRAIN, RecvBatch, SendBatch, SendMeta, UdpOptions, UdpSocket};

use crate::pattern::REGION;
use crate::report::{self, Begun};
use load::{Load, Places};

/// Bytes under way at most, as in a transport with a window. Without, what is dropped costs the sender its time: from memory
/// that is not in the cache a fifth less arrived.
const CREDIT: u64 = 4 << 20;
/// How much arrives between two reports.
const REPORT: u64 = 256 << 10;
/// Without a report for this long, what is under way is taken for lost.
const LOST: Span = Span::from_millis(20);
/// The sender has stopped when nothing came for this long.
const SILENCE: Span = Span::from_millis(300);
/// Nothing at all came.
const PATIENCE: Span = Span::from_secs(20);

struct Ends {
    socket: UdpSocket,
    poller: Poller,
    batch: RecvBatch,
}

impl Ends {
    fn bind(to: SocketAddr) -> Result<Ends> {
        let socket = UdpSocket::open(&UdpOptions::new(to))?;
        let batch = socket.recv_batch();
        Ok(Ends { socket, poller: Poller::new()?, batch })
    }
    fn wait(&mut self, at_most: Span) -> Result<()> {
        let mut sources = [Source::new(&self.socket, false)];
        self.poller.wait(&mut sources, Some(at_most))?;
        Ok(())
    }
    fn tell(&self, to: SocketAddr, bytes: u64) -> Result<()> {
        let mut out = SendBatch::new();
        let text = bytes.to_le_bytes();
        if let Some(slot) = out.slot() {
            slot[..text.len()].copy_from_slice(&text);
        }
        out.commit(
            SendMeta { dst: to, src: None, ecn: Ecn::NotEct, dscp: 0, segment: text.len() },
            text.len(),
        )?;
        self.socket.send(&mut out)?;
        Ok(())
    }
}

/// What packets are made of, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Content {
    /// The same trains again and again, out of the cache; what arrives is counted
    Hot,
    /// From a region that no cache holds to its places in another
    Cold,
    /// The same, sealed and opened on the way
    Sealed,
}

impl Content {
    /// Made from a region: whether packets are sealed.
    fn sealed(self) -> Option<bool> {
        (self != Content::Hot).then_some(self == Content::Sealed)
    }
}

/// Takes what arrives, counts its payload and reports bytes, until nothing does.
pub fn sink(listen: SocketAddr, content: Content) -> Result<()> {
    let mut places = content.sealed().map(|sealed| Places::new(REGION, sealed));
    let mut ends = Ends::bind(listen)?;
    report::listening(ends.socket.local_addr())?;
    let (mut arrived, mut told, mut payload) = (0, 0, 0);
    let mut begun: Option<Begun> = None;
    let (mut figures, mut idle, clock) = (None, None, Clock::new());
    loop {
        let n = ends.socket.recv(&mut ends.batch)?;
        let mut from = None;
        for (m, train) in ends.batch.iter_mut() {
            begun.get_or_insert_with(Begun::now);
            arrived += m.len as u64;
            payload += places.as_mut().map_or(Ok(m.len as u64), |p| p.take(train, m.stride))?;
            from = Some(m.remote);
        }
        if let Some(from) = from.filter(|_| arrived - told >= REPORT) {
            told = arrived;
            ends.tell(from, arrived)?;
        }
        if n > 0 {
            idle = None;
            continue;
        }
        let patience = if begun.is_some() { SILENCE } else { PATIENCE };
        match idle {
            None => {
                figures = begun.as_ref().map(|b| b.end(payload));
                idle = Some(clock.now());
            }
            Some(since) if clock.now().since(since) >= patience => break,
            Some(_) => {}
        }
        ends.wait(patience)?;
    }
    match figures {
        Some(f) => report::say(&f),
        None => bail!("nothing arrived"),
    }
}

/// Sends trains as long as they may be.
pub fn source(to: SocketAddr, seconds: f64, mtu: usize, content: Content) -> Result<()> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let mut ends = Ends::bind(SocketAddr::new(any, 0))?;
    let segment = mtu - if to.is_ipv4() { 28 } else { 48 };
    let len = (MAX_TRAIN / segment).clamp(1, MAX_SEGMENTS) * segment;
    let meta = SendMeta { dst: to, src: None, ecn: Ecn::NotEct, dscp: 0, segment };
    let mut load = content.sealed().map(|sealed| Load::new(REGION, sealed));
    let mut out = SendBatch::new();
    if load.is_none() {
        // Written once: untouched memory is one page of zeroes, which no sender has.
        while let Some(slot) = out.slot() {
            slot.fill(0x5a);
            out.commit(meta, len)?;
        }
        ends.socket.send(&mut out)?;
    }
    let begun = Begun::now();
    let (mut sent, mut confirmed, mut heard) = (0u64, 0u64, 0.0);
    while begun.seconds() < seconds {
        while sent.saturating_sub(confirmed) < CREDIT
            && let Some(slot) = out.slot()
        {
            load.as_mut().map_or(Ok(()), |l| l.fill(&mut slot[..len], segment))?;
            out.commit(meta, len)?;
            sent += len as u64;
        }
        if !out.is_empty() {
            ends.socket.send(&mut out)?;
        }
        ends.socket.recv(&mut ends.batch)?;
        for (_, data) in ends.batch.iter_mut() {
            let told = data.last_chunk().map_or(0, |b: &[u8; 8]| u64::from_le_bytes(*b));
            (confirmed, heard) = (confirmed.max(told), begun.seconds());
        }
        if sent.saturating_sub(confirmed) >= CREDIT {
            if begun.seconds() - heard > LOST.as_secs_f64() {
                (sent, heard) = (confirmed, begun.seconds());
            } else {
                ends.wait(Span::from_millis(1))?;
            }
        }
    }
    report::say(&begun.end(sent))
}
