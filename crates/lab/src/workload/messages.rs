//! Messages of one size over the kernel's TCP as an application would send them: one call per message, and reads that
//! fill a buffer of its size, ping-pong or streamed. The reference for iWARP.

use super::tcp::{self, connect_prepared};
use super::{Exchange, Report};
use base::Time;
use lhio::clock::{Clock, CpuTime};
use lhio::poll::{is_readable, wake_for};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// Most round trips that are kept.
const MAX_TRIPS: usize = 4 << 20;
/// Longest message.
pub const MAX_SIZE: usize = 1 << 30;

/// How an end sends and waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageOptions {
    /// Poll instead of sleeping in the call.
    pub busy_poll: bool,
    /// When polling, check for readable data (poll(2)) before reading.
    pub polls: bool,
    /// Bytes for which the system wakes a reader (`SO_RCVLOWAT`), or the rest of a message; `None` leaves that at
    /// one. With `spin` no check is made then.
    pub receive_low_water: Option<u32>,
    /// Size of each of the socket's buffers; `None` leaves it to the system, which adapts it.
    pub buffer: Option<usize>,
    /// Largest segment payload (`TCP_MAXSEG`); `None` leaves it to the system.
    pub maxseg: Option<u32>,
    /// Congestion control by the system's name; `None` uses the system's default.
    pub congestion: Option<String>,
}

impl MessageOptions {
    /// Applies the options to a connection. Segment sizes are set before connecting, see [`MessageOptions::prepare`].
    fn apply(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        if let Some(bytes) = self.receive_low_water {
            wake_for(stream, bytes)?;
        }
        stream.set_nonblocking(self.busy_poll)
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

/// A buffer for messages that begins 128 bytes after a page boundary, with its pages allocated.
pub struct Buffer {
    bytes: Vec<u8>,
    at: usize,
}

const PAGE: usize = 4096;
/// The kernel copies a message from or to the start of its own pages. Copies are slow if the destination lies 1 to 63
/// bytes after the source relative to page starts, and large allocations begin 16 bytes after one. The programs
/// compared with this one place their messages equally.
const PAGE_OFFSET: usize = 128;

impl Buffer {
    /// `len` bytes of this value.
    pub fn new(value: u8, len: usize) -> Buffer {
        let mut bytes = vec![0; len + PAGE];
        bytes.fill(value);
        let at = (PAGE_OFFSET + PAGE - bytes.as_ptr().addr() % PAGE) % PAGE;
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

/// Measures real and processor time.
struct Stopwatch {
    clock: Clock,
    at: Time,
    cpu: CpuTime,
}

impl Stopwatch {
    fn now() -> Stopwatch {
        let clock = Clock::new();
        Stopwatch { clock, at: clock.now(), cpu: CpuTime::of_process() }
    }
    fn seconds(&self) -> f64 {
        self.clock.now().since(self.at).as_secs_f64()
    }
    fn report(&self, bytes: u64) -> Report {
        let cpu_seconds = CpuTime::of_process().since(self.cpu).total().as_secs_f64();
        Report { bytes, seconds: self.seconds(), cpu_seconds, ..Report::default() }
    }
}

/// Measures round trips.
pub struct RoundTrips {
    clock: Clock,
    sent: Time,
    nanos: Vec<u32>,
}

impl Default for RoundTrips {
    fn default() -> RoundTrips {
        let clock = Clock::new();
        RoundTrips { clock, sent: clock.now(), nanos: Vec::with_capacity(MAX_TRIPS) }
    }
}

impl RoundTrips {
    /// Records that a message is sent.
    pub fn on_sent(&mut self) {
        self.sent = self.clock.now();
    }
    /// Records that its answer has arrived.
    pub fn on_answer(&mut self) {
        if self.nanos.len() < MAX_TRIPS {
            self.nanos.push(u32::try_from(self.clock.now().since(self.sent).as_nanos()).unwrap_or(u32::MAX));
        }
    }
    /// Number of round trips.
    pub fn count(&self) -> u64 {
        self.nanos.len() as u64
    }
    /// Minimum, median, 99th percentile and maximum, in seconds; `None` without any.
    pub fn summary(mut self) -> Option<[f64; 4]> {
        self.nanos.sort_unstable();
        let last = self.nanos.len().checked_sub(1)?;
        Some([0.0, 0.5, 0.99, 1.0].map(|s| f64::from(self.nanos[(last as f64 * s) as usize]) / 1e9))
    }
}

fn words(e: std::io::Error) -> String {
    format!("messages over TCP: {e}")
}

/// Reads a whole message; false at the end of the stream.
fn read_message(stream: &mut TcpStream, buf: &mut [u8], manner: &MessageOptions) -> Result<bool, String> {
    let mut at = 0;
    while at < buf.len() {
        match stream.read(&mut buf[at..]) {
            Ok(0) if at == 0 => return Ok(false),
            Ok(0) => return Err("the stream ended within a message".to_owned()),
            Ok(n) => at += n,
            Err(e) if manner.busy_poll && e.kind() == ErrorKind::WouldBlock => {
                // The end of a message may be less than the low-water mark.
                if manner.polls && manner.receive_low_water.is_none() {
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

/// Sends a message in one call, unless the socket takes only a part of it.
fn write_message(stream: &mut TcpStream, buf: &[u8], busy_poll: bool) -> Result<(), String> {
    let mut at = 0;
    while at < buf.len() {
        match stream.write(&buf[at..]) {
            Ok(n) => at += n,
            Err(e) if busy_poll && e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(words(e)),
        }
    }
    Ok(())
}

/// Accepts a connection and applies the options.
///
/// # Errors
/// The system's, in words.
pub fn accept(listener: &TcpListener, manner: &MessageOptions) -> Result<TcpStream, String> {
    let (stream, _) = listener.accept().map_err(words)?;
    manner.apply(&stream).map_err(words)?;
    Ok(stream)
}

/// Listens with the options.
///
/// # Errors
/// The system's, in words.
pub fn listen(at: SocketAddr, manner: &MessageOptions) -> Result<TcpListener, String> {
    let words = |e: std::io::Error| format!("cannot listen on {at}: {e}");
    let socket = tcp::socket(at).map_err(words)?;
    socket.set_reuse_address(true).map_err(words)?;
    manner.prepare(SockRef::from(&socket)).map_err(words)?;
    socket.bind(&at.into()).and_then(|()| socket.listen(1)).map_err(words)?;
    Ok(socket.into())
}

/// Connects with the options.
///
/// # Errors
/// The system's, in words.
pub fn connect(to: SocketAddr, manner: &MessageOptions) -> Result<TcpStream, String> {
    let stream = connect_prepared(to, |s| manner.prepare(s))?;
    manner.apply(&stream).map_err(words)?;
    Ok(stream)
}

/// Answers each message of `size` bytes with one, until the connection ends.
///
/// # Errors
/// The system's, in words.
pub fn echo(listener: &TcpListener, size: usize, manner: &MessageOptions) -> Result<Report, String> {
    let mut stream = accept(listener, manner)?;
    let mut buf = Buffer::new(0, size);
    let begun = Stopwatch::now();
    let mut bytes = 0;
    while read_message(&mut stream, &mut buf, manner)? {
        write_message(&mut stream, &buf, manner.busy_poll)?;
        bytes += size as u64;
    }
    Ok(begun.report(bytes))
}

/// Sends messages of `size` bytes for `seconds`, each after the answer to the last.
///
/// # Errors
/// The system's, in words.
pub fn ping(to: SocketAddr, size: usize, seconds: f64, manner: &MessageOptions) -> Result<Report, String> {
    let mut stream = connect(to, manner)?;
    let mut buf = Buffer::new(0x5a, size);
    let (mut trips, begun) = (RoundTrips::default(), Stopwatch::now());
    while begun.seconds() < seconds {
        trips.on_sent();
        write_message(&mut stream, &buf, manner.busy_poll)?;
        if !read_message(&mut stream, &mut buf, manner)? {
            return Err("the other end has gone".to_owned());
        }
        trips.on_answer();
    }
    let mut report = begun.report(trips.count() * size as u64);
    report.message_rtts = trips.summary();
    Ok(report)
}

/// Receives messages of `size` bytes into successive buffers in `region`, until the connection ends. The clock starts
/// with the first.
///
/// # Errors
/// The system's, in words.
pub fn receive_stream(
    listener: &TcpListener,
    region: &mut [u8],
    size: usize,
    manner: &MessageOptions,
) -> Result<Report, String> {
    let mut stream = accept(listener, manner)?;
    let slots = slots(region.len(), size)?;
    let (mut begun, mut count) = (None, 0);
    while read_message(&mut stream, &mut region[count % slots * size..][..size], manner)? {
        begun.get_or_insert_with(Stopwatch::now);
        count += 1;
    }
    Ok(begun.ok_or("nothing arrived")?.report(count as u64 * size as u64))
}

/// Sends messages of `size` bytes from `region` for `seconds`, one call each, and ends when the receiver has read
/// them all.
///
/// # Errors
/// The system's, in words.
pub fn send_stream(
    to: SocketAddr,
    region: &[u8],
    size: usize,
    seconds: f64,
    manner: &MessageOptions,
) -> Result<Report, String> {
    let mut stream = connect(to, manner)?;
    let slots = slots(region.len(), size)?;
    let begun = Stopwatch::now();
    let mut count = 0;
    while begun.seconds() < seconds {
        write_message(&mut stream, &region[count % slots * size..][..size], manner.busy_poll)?;
        count += 1;
    }
    stream.set_nonblocking(false).and_then(|()| stream.shutdown(Shutdown::Write)).map_err(words)?;
    // The receiver closes when it has everything, in whatever way.
    let _ = stream.read(&mut [0; 1]);
    Ok(begun.report(count as u64 * size as u64))
}

fn slots(region: usize, size: usize) -> Result<usize, String> {
    if (1..=MAX_SIZE).contains(&size) && region >= size {
        return Ok(region / size);
    }
    Err(format!("a message has 1 to {MAX_SIZE} bytes and fits the memory of {region}"))
}

/// Runs the receiver of an exchange, with a buffer of one message.
pub(super) fn run_receiver(at: SocketAddr, e: &Exchange) -> Result<Report, String> {
    let (manner, size) = (e.options(), e.size as usize);
    // Pages are allocated before the clock starts.
    let mut buffer = Buffer::new(1, size.min(MAX_SIZE));
    let listener = listen(at, &manner)?;
    let _over = super::announce_ready();
    if e.ping_pong {
        echo(&listener, size, &manner)
    } else {
        receive_stream(&listener, &mut buffer, size, &manner)
    }
}

/// Runs the sender of an exchange.
pub(super) fn run_sender(to: SocketAddr, e: &Exchange) -> Result<Report, String> {
    let (manner, size) = (e.options(), e.size as usize);
    if e.ping_pong {
        return ping(to, size, e.seconds, &manner);
    }
    send_stream(to, &Buffer::new(0x5a, size.min(MAX_SIZE)), size, e.seconds, &manner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(manner: &MessageOptions) -> (TcpListener, SocketAddr) {
        let listener = listen(([127, 0, 0, 1], 0).into(), manner).expect("a port");
        let at = listener.local_addr().expect("an address");
        (listener, at)
    }

    #[test]
    fn buffers_start_at_the_fixed_page_offset() {
        for len in [1, 4_000, 65_536, 1 << 20] {
            let b = Buffer::new(7, len);
            assert_eq!((b.as_ptr().addr() % PAGE, b.len()), (PAGE_OFFSET, len));
            assert!(b.iter().all(|x| *x == 7));
        }
    }

    #[test]
    fn messages_arrive_whole_with_sleeping_and_spinning_ends() {
        for (busy_poll, asks) in [(false, false), (true, false), (true, true)] {
            let congestion = Some("reno".to_owned());
            let enough = Some(500);
            let manner = MessageOptions {
                busy_poll,
                polls: asks,
                receive_low_water: enough,
                buffer: Some(1 << 16),
                maxseg: Some(1_000),
                congestion,
            };
            let (listener, to) = local(&manner);
            let (pinged, sunk, region) = std::thread::scope(|s| {
                let other = s.spawn(|| {
                    let mut region = vec![0; 50_000];
                    let echoed = echo(&listener, 20_001, &manner).expect("echo");
                    let sunk = receive_stream(&listener, &mut region, 20_001, &manner).expect("sink");
                    (echoed, sunk, region)
                });
                let trips = ping(to, 20_001, 0.05, &manner).expect("ping");
                let [least, median, _, most] = trips.message_rtts.expect("round trips");
                assert!(least > 0.0 && least <= median && median <= most);
                let sent = send_stream(to, &[7; 60_000], 20_001, 0.05, &manner).expect("source");
                let (echoed, sunk, region) = other.join().expect("no panic");
                assert_eq!((trips.bytes, sent.bytes), (echoed.bytes, sunk.bytes));
                (trips, sunk, region)
            });
            assert!(pinged.bytes > 0 && sunk.bytes % 20_001 == 0);
            assert!(region[..20_001].iter().all(|b| *b == 7) && region[40_002..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn invalid_sizes_and_truncated_messages_are_errors() {
        assert!(slots(10, 11).is_err() && slots(10, 0).is_err());
        assert_eq!(slots(10, 5), Ok(2));
        let manner = MessageOptions::default();
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
    fn summary_of_no_round_trips_is_none() {
        assert_eq!(RoundTrips::default().summary(), None);
        let t = RoundTrips { nanos: vec![3_000, 1_000, 2_000], ..RoundTrips::default() };
        assert_eq!((t.count(), t.summary()), (3, Some([1e-6, 2e-6, 2e-6, 3e-6])));
    }
}
