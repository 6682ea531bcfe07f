//! Messages of one size over the kernel's TCP, the way an application would write it: one call sends a message, and reads
//! fill a buffer of its size. To and fro, or one behind the other. What iWARP is compared with.

use super::tcp::{self, connected};
use super::{Exchange, Report};
use base::Time;
use lhio::clock::{Clock, CpuTime};
use lhio::poll::{is_readable, wake_for};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// Round trips that are kept at most.
const MAX_TRIPS: usize = 4 << 20;
/// Longest message.
pub const MAX_SIZE: usize = 1 << 30;

/// How an end sends and waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Asks again and again, instead of sleeping in the call.
    pub spin: bool,
    /// Doing so, it asks whether there is something to read (poll(2)), where it would else read in vain.
    pub asks: bool,
    /// Bytes for which the system wakes who reads (`SO_RCVLOWAT`), or the rest of a message; `None` leaves that at one. Who spins
    /// does not ask then.
    pub enough: Option<u32>,
    /// Bytes of the socket's buffers, each; `None` leaves them to the system, which adapts them.
    pub buffer: Option<usize>,
    /// Payload of a segment at most (`TCP_MAXSEG`); `None` leaves it to the system.
    pub maxseg: Option<u32>,
    /// Congestion control by the system's name; `None` takes the system's choice.
    pub congestion: Option<String>,
}

impl Manner {
    /// Sets a connection's options. Segments are limited before a connection is made, see [`Manner::prepare`].
    fn apply(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        if let Some(bytes) = self.enough {
            wake_for(stream, bytes)?;
        }
        stream.set_nonblocking(self.spin)
    }

    /// Sets what must be set before a socket connects or listens.
    ///
    /// # Errors
    /// The system's.
    pub fn prepare(&self, socket: SockRef<'_>) -> std::io::Result<()> {
        if let Some(bytes) = self.buffer {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(name) = &self.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        self.maxseg.map_or(Ok(()), |m| socket.set_tcp_mss(m))
    }
}

/// Memory for messages that begins 128 bytes behind the start of a page, all of it there.
pub struct Buffer {
    bytes: Vec<u8>,
    at: usize,
}

const PAGE: usize = 4096;
/// The kernel copies a message to or from pages of its own, from their starts. Processors copy slowly to where lies 1 to 63
/// bytes behind the source, counted from the starts of their pages; long lists of bytes begin 16 behind it. What is compared
/// with this has its messages at the same place.
const PAST_PAGE: usize = 128;

impl Buffer {
    /// `len` bytes of this value.
    pub fn new(value: u8, len: usize) -> Buffer {
        let mut bytes = vec![0; len + PAGE];
        bytes.fill(value);
        let at = (PAST_PAGE + PAGE - bytes.as_ptr().addr() % PAGE) % PAGE;
        bytes.truncate(at + len);
        Buffer { bytes, at }
    }
}

impl core::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

impl core::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }
}

/// Processor and real time from a moment on.
struct Begun {
    clock: Clock,
    at: Time,
    cpu: CpuTime,
}

impl Begun {
    fn now() -> Begun {
        let clock = Clock::new();
        Begun { clock, at: clock.now(), cpu: CpuTime::of_process() }
    }
    fn seconds(&self) -> f64 {
        self.clock.now().since(self.at).as_secs_f64()
    }
    fn report(&self, bytes: u64) -> Report {
        let cpu_seconds = CpuTime::of_process().since(self.cpu).total().as_secs_f64();
        Report { bytes, seconds: self.seconds(), cpu_seconds, ..Report::default() }
    }
}

/// Round trips as they are measured.
pub struct Trips {
    clock: Clock,
    left: Time,
    nanos: Vec<u32>,
}

impl Default for Trips {
    fn default() -> Trips {
        let clock = Clock::new();
        Trips { clock, left: clock.now(), nanos: Vec::with_capacity(MAX_TRIPS) }
    }
}

impl Trips {
    /// A message leaves.
    pub fn leave(&mut self) {
        self.left = self.clock.now();
    }
    /// Its answer is there.
    pub fn back(&mut self) {
        if self.nanos.len() < MAX_TRIPS {
            self.nanos.push(u32::try_from(self.clock.now().since(self.left).as_nanos()).unwrap_or(u32::MAX));
        }
    }
    /// How many.
    pub fn count(&self) -> u64 {
        self.nanos.len() as u64
    }
    /// Least, median, 99th percentile and most, in seconds; `None` of none.
    pub fn summary(mut self) -> Option<[f64; 4]> {
        self.nanos.sort_unstable();
        let last = self.nanos.len().checked_sub(1)?;
        Some([0.0, 0.5, 0.99, 1.0].map(|s| f64::from(self.nanos[(last as f64 * s) as usize]) / 1e9))
    }
}

fn words(e: std::io::Error) -> String {
    format!("messages over TCP: {e}")
}

/// Reads until the buffer is full; false at the end of the stream.
fn fill(stream: &mut TcpStream, buf: &mut [u8], manner: &Manner) -> Result<bool, String> {
    let mut at = 0;
    while at < buf.len() {
        match stream.read(&mut buf[at..]) {
            Ok(0) if at == 0 => return Ok(false),
            Ok(0) => return Err("the stream ended within a message".to_owned()),
            Ok(n) => at += n,
            Err(e) if manner.spin && e.kind() == ErrorKind::WouldBlock => {
                // The end of a message may be less than what is told of.
                if manner.asks && manner.enough.is_none() {
                    while !is_readable(stream) {}
                } else {
                    std::hint::spin_loop();
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(words(e)),
        }
    }
    Ok(true)
}

/// Sends a message: one call, unless the socket takes only a part of it.
fn put(stream: &mut TcpStream, buf: &[u8], spin: bool) -> Result<(), String> {
    let mut at = 0;
    while at < buf.len() {
        match stream.write(&buf[at..]) {
            Ok(n) => at += n,
            Err(e) if spin && e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(words(e)),
        }
    }
    Ok(())
}

/// Takes a connection, with the options of a manner.
///
/// # Errors
/// The system's, in words.
pub fn accept(listener: &TcpListener, manner: &Manner) -> Result<TcpStream, String> {
    let (stream, _) = listener.accept().map_err(words)?;
    manner.apply(&stream).map_err(words)?;
    Ok(stream)
}

/// Listens with the options of a manner.
///
/// # Errors
/// The system's, in words.
pub fn listen(at: SocketAddr, manner: &Manner) -> Result<TcpListener, String> {
    let words = |e: std::io::Error| format!("cannot listen on {at}: {e}");
    let socket = tcp::socket(at).map_err(words)?;
    socket.set_reuse_address(true).map_err(words)?;
    manner.prepare(SockRef::from(&socket)).map_err(words)?;
    socket.bind(&at.into()).and_then(|()| socket.listen(1)).map_err(words)?;
    Ok(socket.into())
}

/// Connects with the options of a manner.
///
/// # Errors
/// The system's, in words.
pub fn connect(to: SocketAddr, manner: &Manner) -> Result<TcpStream, String> {
    let stream = connected(to, |s| manner.prepare(s))?;
    manner.apply(&stream).map_err(words)?;
    Ok(stream)
}

/// Answers each message of `size` bytes with one, until the connection ends.
///
/// # Errors
/// The system's, in words.
pub fn echo(listener: &TcpListener, size: usize, manner: &Manner) -> Result<Report, String> {
    let mut stream = accept(listener, manner)?;
    let mut buf = Buffer::new(0, size);
    let begun = Begun::now();
    let mut bytes = 0;
    while fill(&mut stream, &mut buf, manner)? {
        put(&mut stream, &buf, manner.spin)?;
        bytes += size as u64;
    }
    Ok(begun.report(bytes))
}

/// Sends messages of `size` bytes for so many seconds, each when the answer to the last has come.
///
/// # Errors
/// The system's, in words.
pub fn ping(to: SocketAddr, size: usize, seconds: f64, manner: &Manner) -> Result<Report, String> {
    let mut stream = connect(to, manner)?;
    let mut buf = Buffer::new(0x5a, size);
    let (mut trips, begun) = (Trips::default(), Begun::now());
    while begun.seconds() < seconds {
        trips.leave();
        put(&mut stream, &buf, manner.spin)?;
        if !fill(&mut stream, &mut buf, manner)? {
            return Err("the other end has gone".to_owned());
        }
        trips.back();
    }
    let mut report = begun.report(trips.count() * size as u64);
    report.trips = trips.summary();
    Ok(report)
}

/// Receives messages of `size` bytes into one buffer after the other within `region`, until the connection ends. The clock
/// starts with the first.
///
/// # Errors
/// The system's, in words.
pub fn sink(
    listener: &TcpListener,
    region: &mut [u8],
    size: usize,
    manner: &Manner,
) -> Result<Report, String> {
    let mut stream = accept(listener, manner)?;
    let slots = slots(region.len(), size)?;
    let (mut begun, mut count) = (None, 0);
    while fill(&mut stream, &mut region[count % slots * size..][..size], manner)? {
        begun.get_or_insert_with(Begun::now);
        count += 1;
    }
    Ok(begun.ok_or("nothing arrived")?.report(count as u64 * size as u64))
}

/// Sends messages of `size` bytes out of `region` for so many seconds, one call each. The end is when the receiver has read
/// them all.
///
/// # Errors
/// The system's, in words.
pub fn source(
    to: SocketAddr,
    region: &[u8],
    size: usize,
    seconds: f64,
    manner: &Manner,
) -> Result<Report, String> {
    let mut stream = connect(to, manner)?;
    let slots = slots(region.len(), size)?;
    let begun = Begun::now();
    let mut count = 0;
    while begun.seconds() < seconds {
        put(&mut stream, &region[count % slots * size..][..size], manner.spin)?;
        count += 1;
    }
    stream.set_nonblocking(false).and_then(|()| stream.shutdown(Shutdown::Write)).map_err(words)?;
    // The receiver closes when it has everything; how it does so does not matter.
    let _ = stream.read(&mut [0; 1]);
    Ok(begun.report(count as u64 * size as u64))
}

fn slots(region: usize, size: usize) -> Result<usize, String> {
    if (1..=MAX_SIZE).contains(&size) && region >= size {
        return Ok(region / size);
    }
    Err(format!("a message has 1 to {MAX_SIZE} bytes and fits the memory of {region}"))
}

/// The receiver's part of an exchange, with a buffer of one message.
pub(super) fn answer(at: SocketAddr, e: &Exchange) -> Result<Report, String> {
    let (manner, size) = (e.manner(), e.size as usize);
    // Pages are there before the clock runs.
    let mut buffer = Buffer::new(1, size.min(MAX_SIZE));
    let listener = listen(at, &manner)?;
    let _over = super::ready();
    if e.trips { echo(&listener, size, &manner) } else { sink(&listener, &mut buffer, size, &manner) }
}

/// The sender's part.
pub(super) fn ask(to: SocketAddr, e: &Exchange) -> Result<Report, String> {
    let (manner, size) = (e.manner(), e.size as usize);
    if e.trips {
        return ping(to, size, e.seconds, &manner);
    }
    source(to, &Buffer::new(0x5a, size.min(MAX_SIZE)), size, e.seconds, &manner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(manner: &Manner) -> (TcpListener, SocketAddr) {
        let listener = listen(([127, 0, 0, 1], 0).into(), manner).expect("a port");
        let at = listener.local_addr().expect("an address");
        (listener, at)
    }

    #[test]
    fn buffers_begin_where_they_should() {
        for len in [1, 4_000, 65_536, 1 << 20] {
            let b = Buffer::new(7, len);
            assert_eq!((b.as_ptr().addr() % PAGE, b.len()), (PAST_PAGE, len));
            assert!(b.iter().all(|x| *x == 7));
        }
    }

    #[test]
    fn messages_come_back_and_arrive_whole_sleeping_and_spinning() {
        for (spin, asks) in [(false, false), (true, false), (true, true)] {
            let congestion = Some("reno".to_owned());
            let enough = Some(500);
            let manner =
                Manner { spin, asks, enough, buffer: Some(1 << 16), maxseg: Some(1_000), congestion };
            let (listener, to) = local(&manner);
            let (there, sunk, region) = std::thread::scope(|s| {
                let other = s.spawn(|| {
                    let mut region = vec![0; 50_000];
                    let echoed = echo(&listener, 20_001, &manner).expect("echo");
                    let sunk = sink(&listener, &mut region, 20_001, &manner).expect("sink");
                    (echoed, sunk, region)
                });
                let trips = ping(to, 20_001, 0.05, &manner).expect("ping");
                let [least, median, _, most] = trips.trips.expect("round trips");
                assert!(least > 0.0 && least <= median && median <= most);
                let sent = source(to, &[7; 60_000], 20_001, 0.05, &manner).expect("source");
                let (echoed, sunk, region) = other.join().expect("no panic");
                assert_eq!((trips.bytes, sent.bytes), (echoed.bytes, sunk.bytes));
                (trips, sunk, region)
            });
            assert!(there.bytes > 0 && sunk.bytes % 20_001 == 0);
            assert!(region[..20_001].iter().all(|b| *b == 7) && region[40_002..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_and_a_torn_message_is_told() {
        assert!(slots(10, 11).is_err() && slots(10, 0).is_err());
        assert_eq!(slots(10, 5), Ok(2));
        let manner = Manner::default();
        let (listener, to) = local(&manner);
        let torn = std::thread::scope(|s| {
            let other = s.spawn(|| echo(&listener, 8, &manner));
            let mut stream = TcpStream::connect(to).expect("a connection");
            stream.write_all(&[1; 5]).expect("a part");
            drop(stream);
            other.join().expect("no panic")
        });
        assert!(torn.expect_err("torn").contains("within a message"));
    }

    #[test]
    fn of_no_round_trip_there_is_no_summary() {
        assert_eq!(Trips::default().summary(), None);
        let t = Trips { nanos: vec![3_000, 1_000, 2_000], ..Trips::default() };
        assert_eq!((t.count(), t.summary()), (3, Some([1e-6, 2e-6, 2e-6, 3e-6])));
    }
}
