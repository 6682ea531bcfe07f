//! What iWARP with CRCs cannot do without: messages over plain TCP, of which each piece of at most 64 KiB is followed by its
//! CRC32C. Both ends compute it; messages to and fro are read to their places and checked there. Streams are checked where
//! they are read to and copied from there, as what is written into a peer's memory has to be, or are read to their places, too
//! (`longhaul --mpa-early`).

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{Context, Error, Result, ensure};
use crc_fast::{CrcAlgorithm, checksum};
use lab::workload::messages::{self, Buffer, RoundTrips};

use crate::report::{self, Begun, End};
use crate::{Echo, Ping};

/// Bytes of a piece: about a record of iWARP's over loopback.
const PIECE: usize = 65_480;
const CRC: usize = 4;
/// Pieces that are read by one call at most where they are copied.
const AHEAD: usize = 4;

fn crc(piece: &[u8]) -> [u8; CRC] {
    (checksum(CrcAlgorithm::Crc32Iscsi, piece) as u32).to_le_bytes()
}

/// Calls until something happens; while there is nothing to do, asks again.
fn again(mut call: impl FnMut() -> std::io::Result<usize>) -> Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            n => return Ok(n?),
        }
    }
}

/// Sends a message and the CRCs of its pieces.
fn put(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let crcs: Vec<[u8; CRC]> = message.chunks(PIECE).map(crc).collect();
    let both = message.chunks(PIECE).zip(&crcs).flat_map(|(piece, crc)| [piece, &crc[..]]);
    let mut slices: Vec<IoSlice<'_>> = both.map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let n = again(|| stream.write_vectored(rest))?;
        ensure!(n > 0, "the other end takes nothing more");
        IoSlice::advance_slices(&mut rest, n);
    }
    Ok(())
}

/// Reads a message to its place, and checks it; false at the end of the stream.
fn fill(stream: &mut TcpStream, message: &mut [u8]) -> Result<bool> {
    let mut crcs = vec![[0; CRC]; message.len().div_ceil(PIECE)];
    let both = message.chunks_mut(PIECE).zip(&mut crcs).flat_map(|(piece, crc)| [piece, &mut crc[..]]);
    let mut slices: Vec<IoSliceMut<'_>> = both.map(IoSliceMut::new).collect();
    let (mut rest, mut first) = (&mut slices[..], true);
    while !rest.is_empty() {
        let n = again(|| stream.read_vectored(rest))?;
        if n == 0 && first {
            return Ok(false);
        }
        ensure!(n > 0, "the stream ended within a message");
        first = false;
        IoSliceMut::advance_slices(&mut rest, n);
    }
    ensure!(message.chunks(PIECE).map(crc).eq(crcs), "a message was damaged");
    Ok(true)
}

fn accept(e: &Echo) -> Result<TcpStream> {
    let manner = e.manner.manner(e.spin);
    let listener = messages::listen(e.listen, &manner).map_err(Error::msg)?;
    report::listening(listener.local_addr()?)?;
    messages::accept(&listener, &manner).map_err(Error::msg)
}

fn connect(p: &Ping) -> Result<TcpStream> {
    messages::connect(p.to, &p.manner.manner(p.spin)).map_err(Error::msg)
}

/// Answers each message with one.
pub fn echo(e: &Echo) -> Result<()> {
    let (mut stream, mut buf) = (accept(e)?, Buffer::new(0, e.size));
    let (begun, mut count) = (Begun::now(), 0);
    while fill(&mut stream, &mut buf)? {
        put(&mut stream, &buf)?;
        count += 1;
    }
    report::say(&begun.end(count))
}

/// Sends messages, each when the answer to the last has come.
pub fn ping(p: &Ping) -> Result<()> {
    let (mut stream, mut buf) = (connect(p)?, Buffer::new(0x5a, p.size));
    let (begun, mut trips) = (Begun::now(), RoundTrips::default());
    while begun.seconds() < p.seconds {
        trips.on_sent();
        put(&mut stream, &buf)?;
        ensure!(fill(&mut stream, &mut buf)?, "the other end has gone");
        trips.on_answer();
    }
    let end = begun.end(trips.count());
    let trips = trips.summary().map(|[_, median, p99, _]| [median * 1e6, p99 * 1e6]);
    report::say(&End { trips, ..end })
}

/// Receives messages into one buffer of their size.
pub fn collect(e: &Echo) -> Result<()> {
    let mut stream = accept(e)?;
    let (mut place, mut scratch) = (Buffer::new(1, e.size), Buffer::new(1, AHEAD * (PIECE + CRC)));
    // Of the message, and of the scratch memory.
    let (mut at, mut held, mut total, mut begun) = (0, 0, 0, None);
    loop {
        let n = again(|| stream.read(&mut scratch[held..]))?;
        if n == 0 {
            ensure!(held == 0 && at == 0, "the stream ended within a message");
            break;
        }
        begun.get_or_insert_with(Begun::now);
        held += n;
        let mut from = 0;
        loop {
            let len = PIECE.min(place.len() - at);
            let Some((piece, sent)) = scratch[from..held].get(..len + CRC).map(|p| p.split_at(len)) else {
                break;
            };
            ensure!(crc(piece) == sent, "a message was damaged");
            place[at..at + len].copy_from_slice(piece);
            (from, total) = (from + len + CRC, total + len as u64);
            at = (at + len) % place.len();
        }
        scratch.copy_within(from..held, 0);
        held -= from;
    }
    report::say(&begun.context("nothing arrived")?.end(total))
}

/// The same, each message straight to its place.
pub fn place(e: &Echo) -> Result<()> {
    let (mut stream, mut place) = (accept(e)?, Buffer::new(1, e.size));
    // From the first message on.
    ensure!(fill(&mut stream, &mut place)?, "nothing arrived");
    let (begun, mut total) = (Begun::now(), e.size as u64);
    while fill(&mut stream, &mut place)? {
        total += e.size as u64;
    }
    report::say(&begun.end(total))
}

/// Sends messages out of one buffer of their size, one call each.
pub fn stream(p: &Ping) -> Result<()> {
    let (mut stream, buf) = (connect(p)?, Buffer::new(0x5a, p.size));
    let (begun, mut total) = (Begun::now(), 0);
    while begun.seconds() < p.seconds {
        put(&mut stream, &buf)?;
        total += p.size as u64;
    }
    stream.set_nonblocking(false)?;
    stream.shutdown(Shutdown::Write)?;
    // The end is when the receiver has everything.
    let _ = stream.read(&mut [0; 1]);
    report::say(&begun.end(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_message_arrives_whole_and_a_damaged_one_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its address");
        let mut a = TcpStream::connect(at).expect("a connection");
        let (mut b, _) = listener.accept().expect("its other end");
        for len in [1, PIECE, 3 * PIECE + 7] {
            let sent: Vec<u8> = (0..len).map(|i| (i / 251 + i) as u8).collect();
            let (mut got, copy) = (vec![0; len], sent.clone());
            let mut from = a.try_clone().expect("the same socket");
            let sender = std::thread::spawn(move || put(&mut from, &copy));
            assert!(fill(&mut b, &mut got).expect("undamaged"));
            sender.join().expect("no panic").expect("sent");
            assert_eq!(got, sent);
        }
        a.write_all(b"abcd\0\0\0\0").expect("a wrong CRC");
        assert!(fill(&mut b, &mut [0; 4]).is_err());
        drop(a);
        assert!(!fill(&mut b, &mut [0; 4]).expect("the end"));
    }
}
