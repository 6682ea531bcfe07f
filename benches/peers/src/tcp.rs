//! Plain TCP, as lean as it can be: the honest reference. 256 KiB a call, read straight into the destination.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};

use crate::latency::Trips;
use crate::pattern::{self, REGION};
use crate::report::{self, Begun};

/// Bytes of a call.
const CHUNK: usize = 256 << 10;

/// Receives one stream into a region, round and round, and compares.
pub fn sink(listen: SocketAddr) -> Result<()> {
    let mut region = vec![0; REGION];
    // Pages are there before the clock runs, as those of a registered region are.
    region.iter_mut().step_by(4096).for_each(|b| *b = 1);
    let listener = TcpListener::bind(listen)?;
    report::listening(listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    let mut total = 0;
    let mut begun = None;
    loop {
        let at = total % REGION;
        let n = stream.read(&mut region[at..REGION.min(at + CHUNK)])?;
        if n == 0 {
            break;
        }
        begun.get_or_insert_with(Begun::now);
        total += n;
    }
    let mut end = begun.context("nothing arrived")?.end(total as u64);
    end.verified = Some(pattern::holds(&region, total));
    report::say(&end)
}

/// Sends a region again and again.
pub fn source(to: SocketAddr, seconds: f64) -> Result<()> {
    let region = pattern::region(REGION);
    let mut stream = TcpStream::connect(to)?;
    let begun = Begun::now();
    let mut total = 0;
    while begun.seconds() < seconds {
        let at = total % REGION;
        total += stream.write(&region[at..REGION.min(at + CHUNK)])?;
    }
    stream.shutdown(Shutdown::Write)?;
    // The end is when the receiver has everything.
    let _ = stream.read(&mut [0; 1])?;
    report::say(&begun.end(total as u64))
}

/// Fills `buf`; false at the end of the stream.
fn fill(stream: &mut TcpStream, buf: &mut [u8], spin: bool) -> Result<bool> {
    let mut at = 0;
    while at < buf.len() {
        match stream.read(&mut buf[at..]) {
            Ok(0) => {
                ensure!(at == 0, "the stream ended within a message");
                return Ok(false);
            }
            Ok(n) => at += n,
            Err(e) if spin && e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

fn put(stream: &mut TcpStream, buf: &[u8]) -> Result<()> {
    let mut at = 0;
    while at < buf.len() {
        match stream.write(&buf[at..]) {
            Ok(n) => at += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Answers each message of `size` bytes with one.
pub fn echo(listen: SocketAddr, size: usize, spin: bool) -> Result<()> {
    let listener = TcpListener::bind(listen)?;
    report::listening(listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(spin)?;
    let mut buf = vec![0; size];
    let begun = Begun::now();
    let mut count = 0;
    while fill(&mut stream, &mut buf, spin)? {
        put(&mut stream, &buf)?;
        count += 1;
    }
    report::say(&begun.end(count))
}

/// Sends messages, each when the answer to the last has come.
pub fn ping(to: SocketAddr, seconds: f64, size: usize, spin: bool) -> Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(spin)?;
    let mut buf = vec![0x5a; size];
    let mut trips = Trips::begin();
    while trips.seconds() < seconds {
        trips.leave();
        put(&mut stream, &buf)?;
        ensure!(fill(&mut stream, &mut buf, spin)?, "the other end has gone");
        trips.back();
    }
    report::say(&trips.end())
}
