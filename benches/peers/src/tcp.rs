//! Plain TCP, as lean as it can be: the honest reference. A stream goes 256 KiB a call, read straight into the destination;
//! messages go as [`messages`] has them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Error, Result};
use lab::workload::Report;
use lab::workload::messages::{self, Buffer, MessageOptions};

use crate::pattern::{self, REGION};
use crate::report::{self, Begun, End};
use crate::{Echo, Ping};

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

/// Answers each message with one.
pub fn echo(e: &Echo) -> Result<()> {
    let manner = e.manner.manner(e.spin);
    told(messages::echo(&listen(e.listen, &manner)?, e.size, &manner), e.size)
}

/// Sends messages, each when the answer to the last has come.
pub fn ping(p: &Ping) -> Result<()> {
    told(messages::ping(p.to, p.size, p.seconds, &p.manner.manner(p.spin)), p.size)
}

/// Receives messages into one buffer of their size, each whole.
pub fn collect(e: &Echo) -> Result<()> {
    let manner = e.manner.manner(e.spin);
    // Pages are there before the clock runs.
    let mut buf = Buffer::new(1, e.size);
    told(messages::receive_stream(&listen(e.listen, &manner)?, &mut buf, e.size, &manner), 1)
}

/// Sends messages out of one buffer of their size, one call each.
pub fn stream(p: &Ping) -> Result<()> {
    told(
        messages::send_stream(p.to, &Buffer::new(0x5a, p.size), p.size, p.seconds, &p.manner.manner(p.spin)),
        1,
    )
}

fn listen(at: SocketAddr, manner: &MessageOptions) -> Result<TcpListener> {
    let listener = messages::listen(at, manner).map_err(Error::msg)?;
    report::listening(listener.local_addr()?)?;
    Ok(listener)
}

/// Says what an end reports, counted in units of so many bytes.
fn told(report: Result<Report, String>, unit: usize) -> Result<()> {
    let r = report.map_err(Error::msg)?;
    let trips = r.message_rtts.map(|[_, median, p99, _]| [median * 1e6, p99 * 1e6]);
    let (count, cpu) = (r.bytes / unit.max(1) as u64, r.cpu_seconds);
    report::say(&End { count, seconds: r.seconds, cpu, trips, ..End::default() })
}
