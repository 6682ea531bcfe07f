//! Datagrams without any protocol: what the machine allows.

use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use base::{Ecn, Span};
use lhio::poll::{Poller, Source};
use lhio::udp::{MAX_SEGMENTS, MAX_TRAIN, RecvBatch, SendBatch, SendMeta, UdpOptions, UdpSocket};

use lab::workload::messages::Trips;

use crate::report::{self, Begun, End};

/// Bytes under way at most, as in a transport with a window.
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

/// Counts what arrives and reports it, until nothing does.
pub fn sink(listen: SocketAddr) -> Result<()> {
    let mut ends = Ends::bind(listen)?;
    report::listening(ends.socket.local_addr())?;
    let (mut total, mut told) = (0, 0);
    let mut begun: Option<Begun> = None;
    let mut figures = None;
    loop {
        let n = ends.socket.recv(&mut ends.batch)?;
        let from =
            ends.batch.iter_mut().map(|(m, _)| (m.remote, m.len as u64)).fold(None, |_, (from, len)| {
                total += len;
                Some(from)
            });
        if let Some(from) = from {
            let begun = begun.get_or_insert_with(Begun::now);
            if total - told >= REPORT {
                told = total;
                ends.tell(from, total)?;
            }
            figures = Some(begun.end(total));
        }
        if n == 0 {
            let before = begun.as_ref().map_or(0.0, Begun::seconds);
            ends.wait(if begun.is_some() { SILENCE } else { PATIENCE })?;
            match &begun {
                None => ensure!(ends.socket.recv(&mut ends.batch)? > 0, "nothing arrived"),
                Some(b) if b.seconds() - before >= SILENCE.as_secs_f64() => break,
                Some(_) => {}
            }
        }
    }
    match figures {
        Some(f) => report::say(&f),
        None => bail!("nothing arrived"),
    }
}

/// Sends trains as long as they may be.
pub fn source(to: SocketAddr, seconds: f64, mtu: usize) -> Result<()> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let mut ends = Ends::bind(SocketAddr::new(any, 0))?;
    let segment = mtu - if to.is_ipv4() { 28 } else { 48 };
    let len = (MAX_TRAIN / segment).clamp(1, MAX_SEGMENTS) * segment;
    let mut out = SendBatch::new();
    // Written once: untouched memory is one page of zeroes, which no sender has.
    while let Some(slot) = out.slot() {
        slot.fill(0x5a);
        out.commit(SendMeta { dst: to, src: None, ecn: Ecn::NotEct, dscp: 0, segment }, len)?;
    }
    ends.socket.send(&mut out)?;
    let begun = Begun::now();
    let (mut sent, mut confirmed, mut heard) = (0u64, 0u64, 0.0);
    while begun.seconds() < seconds {
        while sent.saturating_sub(confirmed) < CREDIT && out.slot().is_some() {
            out.commit(SendMeta { dst: to, src: None, ecn: Ecn::NotEct, dscp: 0, segment }, len)?;
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

fn socket(at: SocketAddr, spin: bool) -> Result<StdSocket> {
    let s = StdSocket::bind(at)?;
    s.set_nonblocking(spin)?;
    s.set_read_timeout((!spin).then(|| Duration::from_millis(500)))?;
    Ok(s)
}

/// Bytes of the longest datagram over IPv4: a longer message is several of them.
const MOST: usize = 65_507;

/// Answers messages of `size` bytes.
pub fn echo(listen: SocketAddr, size: usize, spin: bool) -> Result<()> {
    let s = socket(listen, spin)?;
    report::listening(s.local_addr()?)?;
    let mut buf = vec![0; size.max(1)];
    let mut begun: Option<Begun> = None;
    let (mut count, mut last, mut got) = (0, 0.0, 0);
    loop {
        match s.recv_from(&mut buf[got..]) {
            Ok((n, from)) => {
                got += n;
                if got < buf.len() {
                    continue;
                }
                for part in buf.chunks(MOST) {
                    s.send_to(part, from)?;
                }
                (count, got) = (count + 1, 0);
                last = begun.get_or_insert_with(Begun::now).seconds();
            }
            Err(_) => {
                // Spinning or not: the other end has stopped when it is silent for long.
                if begun.as_ref().is_some_and(|b| b.seconds() - last > SILENCE.as_secs_f64()) {
                    break;
                }
                std::hint::spin_loop();
            }
        }
    }
    match begun {
        Some(b) => report::say(&b.end(count)),
        None => bail!("nothing arrived"),
    }
}

/// Sends messages of `size` bytes, each when the answer to the last has come.
pub fn ping(to: SocketAddr, seconds: f64, size: usize, spin: bool) -> Result<()> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let s = socket(SocketAddr::new(any, 0), spin)?;
    s.connect(to)?;
    let mut buf = vec![0x5a; size.max(1)];
    let (mut trips, begun) = (Trips::default(), Begun::now());
    while begun.seconds() < seconds {
        trips.leave();
        for part in buf.chunks(MOST) {
            s.send(part)?;
        }
        let mut got = 0;
        while got < buf.len() {
            match s.recv(&mut buf[got..]) {
                Ok(n) => got += n,
                Err(e) if spin && e.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(e) => return Err(e.into()),
            }
        }
        trips.back();
    }
    let end = begun.end(trips.count());
    let trips = trips.summary().map(|[_, median, p99, _]| [median * 1e6, p99 * 1e6]);
    report::say(&End { trips, ..end })
}
