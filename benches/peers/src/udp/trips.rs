//! Messages to and fro in datagrams: bare, or sealed by the sender out of a buffer of the application's and opened by the
//! receiver into one.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lab::workload::messages::RoundTrips;

use super::SILENCE;
use crate::report::{self, Begun, End};
use crate::seal::{self, TAG, Way};
use crate::{Echo, Ping};

/// How often to look for an answer: some seconds. No clock is read between two looks, which would make them later.
const SPINS: u64 = 1 << 24;
const SLEEPS: u64 = 16;
/// Bytes of the longest datagram over IPv4: a longer message is several of them.
const MOST: usize = 65_507;

fn socket(at: SocketAddr, spin: bool) -> Result<UdpSocket> {
    let s = UdpSocket::bind(at)?;
    s.set_nonblocking(spin)?;
    s.set_read_timeout((!spin).then(|| Duration::from_millis(500)))?;
    Ok(s)
}

/// A message at one end.
struct Message {
    /// As the application has it.
    own: Vec<u8>,
    /// Bytes of the next one that are there.
    got: usize,
    /// `None`: it travels as it is.
    sealing: Option<Sealing>,
}

/// Beyond the application's buffer: both ends count datagrams, so that nothing but tags travels besides.
struct Sealing {
    /// A datagram that leaves or has arrived.
    datagram: Vec<u8>,
    /// The way of what leaves.
    way: Way,
    sent: u64,
    received: u64,
}

impl Message {
    fn new(size: usize, sealed: bool, way: Way) -> Message {
        let datagram = vec![0; MOST];
        let sealing = sealed.then_some(Sealing { datagram, way, sent: 0, received: 0 });
        Message { own: vec![0x5a; size.max(1)], got: 0, sealing }
    }

    /// Hands its datagrams to `out`.
    fn leave(&mut self, mut out: impl FnMut(&[u8]) -> io::Result<usize>) -> Result<()> {
        let Some(s) = &mut self.sealing else {
            self.own.chunks(MOST).try_for_each(|part| out(part).map(drop))?;
            return Ok(());
        };
        for part in self.own.chunks(MOST - TAG) {
            let datagram = &mut s.datagram[..part.len() + TAG];
            seal::seal(s.way, s.sent, part, datagram)?;
            out(datagram)?;
            s.sent += 1;
        }
        Ok(())
    }

    /// Takes a datagram from `from`: what came with it when that was the message's last, `None` as long as more is to come
    /// or nothing was there.
    fn take<T>(&mut self, from: impl FnOnce(&mut [u8]) -> io::Result<(usize, T)>) -> Result<Option<T>> {
        let rest = &mut self.own[self.got..];
        let arrived = from(self.sealing.as_mut().map_or(&mut *rest, |s| &mut s.datagram));
        let (n, with) = match arrived {
            Ok(arrived) => arrived,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        self.got += match &mut self.sealing {
            None => n,
            Some(s) => {
                let len = n.saturating_sub(TAG).min(rest.len());
                seal::open(s.way.other(), s.received, &mut s.datagram[..n], &mut rest[..len])?;
                s.received += 1;
                len
            }
        };
        if self.got < self.own.len() {
            return Ok(None);
        }
        self.got = 0;
        Ok(Some(with))
    }
}

/// Answers messages.
pub fn echo(e: &Echo, sealed: bool) -> Result<()> {
    let s = socket(e.listen, e.spin)?;
    report::listening(s.local_addr()?)?;
    let mut message = Message::new(e.size, sealed, Way::Back);
    let mut begun: Option<Begun> = None;
    let (mut count, mut last) = (0, 0.0);
    loop {
        match message.take(|buf| s.recv_from(buf))? {
            Some(from) => {
                message.leave(|part| s.send_to(part, from))?;
                count += 1;
                last = begun.get_or_insert_with(Begun::now).seconds();
            }
            // Spinning or not: the other end has stopped when it is silent for long.
            None if begun.as_ref().is_some_and(|b| b.seconds() - last > SILENCE.as_secs_f64()) => break,
            None => std::hint::spin_loop(),
        }
    }
    match begun {
        Some(b) => report::say(&b.end(count)),
        None => bail!("nothing arrived"),
    }
}

/// Sends messages, each when the answer to the last has come.
pub fn ping(p: &Ping, sealed: bool) -> Result<()> {
    let any: IpAddr = if p.to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let s = socket(SocketAddr::new(any, 0), p.spin)?;
    s.connect(p.to)?;
    let mut message = Message::new(p.size, sealed, Way::There);
    let (mut trips, begun) = (RoundTrips::default(), Begun::now());
    while begun.seconds() < p.seconds {
        trips.on_sent();
        message.leave(|part| s.send(part))?;
        let mut looks = 0;
        while message.take(|buf| Ok((s.recv(buf)?, ())))?.is_none() {
            looks += 1;
            ensure!(looks < if p.spin { SPINS } else { SLEEPS }, "a datagram was lost");
            std::hint::spin_loop();
        }
        trips.on_answer();
    }
    let end = begun.end(trips.count());
    let trips = trips.summary().map(|[_, median, p99, _]| [median * 1e6, p99 * 1e6]);
    report::say(&End { trips, ..end })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries a message from one end to the other; what `on_way` does to each datagram happens to it.
    fn carry(from: &mut Message, to: &mut Message, on_way: impl Fn(usize, &mut Vec<u8>)) -> Result<bool> {
        let mut datagrams = Vec::new();
        from.leave(|part| {
            datagrams.push(part.to_vec());
            Ok(part.len())
        })?;
        let mut whole = false;
        for (i, mut d) in datagrams.into_iter().enumerate() {
            assert!(!whole && d.len() <= MOST);
            on_way(i, &mut d);
            let arrived = to.take(|buf| {
                buf[..d.len()].copy_from_slice(&d);
                Ok((d.len(), ()))
            });
            whole = arrived?.is_some();
        }
        Ok(whole)
    }

    #[test]
    fn messages_come_and_go_whole() {
        for sealed in [false, true] {
            for size in [1, 4, 65_491, 65_492, 64 << 10] {
                let mut ends = [Way::There, Way::Back].map(|way| Message::new(size, sealed, way));
                ends[0].own = (0..size).map(|i| i as u8).collect();
                let sent = ends[0].own.clone();
                let [a, b] = &mut ends;
                for _ in 0..3 {
                    assert!(carry(a, b, |_, _| {}).expect("opens"), "{size}");
                    assert_eq!(b.own, sent);
                    a.own.fill(0);
                    assert!(carry(b, a, |_, _| {}).expect("opens"), "{size}");
                    assert_eq!(a.own, sent);
                }
            }
        }
    }

    #[test]
    fn what_was_changed_or_cut_is_an_error() {
        let two = || [Way::There, Way::Back].map(|way| Message::new(64 << 10, true, way));
        for changed in [0, 1] {
            let [mut a, mut b] = two();
            assert!(carry(&mut a, &mut b, |i, d| d[20] ^= u8::from(i == changed)).is_err());
            let [mut a, mut b] = two();
            assert!(carry(&mut a, &mut b, |i, d| d.truncate(if i == changed { 10 } else { MOST })).is_err());
        }
        let [_, mut b] = two();
        let nothing = b.take::<()>(|_| Err(io::ErrorKind::WouldBlock.into()));
        assert!(nothing.is_ok_and(|n| n.is_none()));
    }
}
