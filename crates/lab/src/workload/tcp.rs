//! Bulk transfers over the kernel's TCP by a minimal sender and receiver (256 KiB a call, one thread per connection),
//! so that TCP itself is measured.

use super::{Bulk, CHUNK, Counter, MAX_CONNECTIONS, Report, announce_ready, mptcp, sleep};
use base::Span;
use lhio::clock::Clock;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// How often a blocked call checks whether its time is over.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time for connecting, since SYNs may be lost, too.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time for the receiver to read all of a given number of bytes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection with the congestion control asked for.
pub(super) fn connect(to: SocketAddr, cc: &str) -> Result<TcpStream, String> {
    establish(socket(to).map_err(|e| e.to_string())?, to, cc)
}

/// A socket for an address of this family.
pub(super) fn socket(at: SocketAddr) -> std::io::Result<Socket> {
    Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))
}

/// A connection with a socket prepared by `prepare`.
pub(super) fn connect_prepared(
    to: SocketAddr,
    prepare: impl FnOnce(SockRef<'_>) -> std::io::Result<()>,
) -> Result<TcpStream, String> {
    let socket = socket(to).map_err(|e| e.to_string())?;
    prepare(SockRef::from(&socket)).map_err(|e| format!("cannot set options of a socket: {e}"))?;
    establish(socket, to, "")
}

fn establish(socket: Socket, to: SocketAddr, cc: &str) -> Result<TcpStream, String> {
    set_congestion_control(&socket, cc)?;
    socket
        .connect_timeout(&to.into(), CONNECT_TIMEOUT)
        .map_err(|e| format!("cannot connect to {to}: {e}"))?;
    Ok(socket.into())
}

fn set_congestion_control(socket: &Socket, cc: &str) -> Result<(), String> {
    if cc.is_empty() {
        return Ok(());
    }
    socket.set_tcp_congestion(cc.as_bytes()).map_err(|e| {
        format!("the kernel has no congestion control `{cc}` ({e}); load it with `modprobe tcp_{cc}`")
    })
}

/// A listening socket with this congestion control; with DCTCP the receiver reports marked packets to the sender.
pub(super) fn listen(at: SocketAddr, cc: &str) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(at).map_err(|e| format!("receiving on {at}: {e}"))?;
    set_congestion_control(&SockRef::from(&listener), cc)?;
    Ok(listener)
}

/// Whether the kernel has this congestion control.
pub(super) fn available(cc: &str) -> Result<(), String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(|e| e.to_string())?;
    set_congestion_control(&socket, cc)
}

/// Sends until the time is over or the bytes are sent.
pub(super) fn send(b: &Bulk) -> Result<Report, String> {
    let before = counters();
    let connected = |_| match b.multipath {
        true => establish(mptcp::socket(b.to)?, b.to, &b.cc),
        false => connect(b.to, &b.cc),
    };
    if b.multipath {
        mptcp::allow()?;
    }
    let streams = (0..b.streams.max(1)).map(connected).collect::<Result<Vec<_>, String>>()?;
    let clock = Clock::new();
    let began = clock.now();
    let left = AtomicI64::new(b.bytes.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX)));
    let sent = std::thread::scope(|s| {
        let each: Vec<_> = streams.iter().map(|t| s.spawn(|| fill(t, b, &left))).collect();
        each.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread died".into()))).collect::<Vec<_>>()
    });
    let mut report = Report { seconds: clock.now().since(began).as_secs_f64(), ..Report::default() };
    for r in sent {
        match r {
            Ok(n) => report.bytes += n,
            Err(text) => report.note = text,
        }
    }
    (report.retransmitted, report.spurious) = retransmitted_shares(&before, &counters());
    Ok(report)
}

/// Writes the same memory repeatedly.
fn fill(mut stream: &TcpStream, b: &Bulk, left: &AtomicI64) -> Result<u64, String> {
    let words = |e: std::io::Error| format!("sending to {}: {e}", b.to);
    let data = vec![0x5a; CHUNK];
    let (clock, mut total) = (Clock::new(), 0);
    let began = clock.now();
    stream.set_write_timeout(Some(POLL_INTERVAL)).map_err(words)?;
    loop {
        let t = clock.now().since(began).as_secs_f64();
        let (on, next) = b.pattern.at(t);
        if t >= b.pattern.seconds {
            break;
        }
        if !on {
            sleep(Span::from_secs_f64((next - t).max(0.0)));
            continue;
        }
        let want = left.load(Ordering::Relaxed).clamp(0, CHUNK as i64) as usize;
        if want == 0 {
            break;
        }
        match stream.write(&data[..want]) {
            Ok(n) => {
                total += n as u64;
                if b.bytes.is_some() {
                    left.fetch_sub(n as i64, Ordering::Relaxed);
                }
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(words(e)),
        }
    }
    if b.bytes.is_some() {
        // The transfer ends when the receiver has read everything and closed.
        stream.shutdown(std::net::Shutdown::Write).map_err(words)?;
        stream.set_read_timeout(Some(DRAIN_TIMEOUT)).map_err(words)?;
        let _ = stream.read(&mut [0; 1]).map_err(words)?;
    } else {
        // Data in the socket's buffer must not be sent after the end.
        SockRef::from(stream).set_linger(Some(Duration::ZERO)).map_err(words)?;
    }
    Ok(total)
}

/// Receives until standard input ends.
pub(super) fn sink(listen: SocketAddr, also: Option<IpAddr>, cc: &str) -> Result<Report, String> {
    let words = |e: std::io::Error| format!("receiving on {listen}: {e}");
    let listener = match also {
        Some(address) => mptcp::listen(listen, address)?,
        None => self::listen(listen, cc)?,
    };
    listener.set_nonblocking(true).map_err(words)?;
    let (over, began) = (announce_ready(), Clock::new().now());
    let all = Mutex::new(Counter::new(began));
    std::thread::scope(|s| -> Result<(), String> {
        let mut connections = 0;
        while !over.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, _)) if connections < MAX_CONNECTIONS => {
                    connections += 1;
                    let (all, over) = (&all, &over);
                    s.spawn(move || {
                        let mut counter = Counter::new(began);
                        drain(stream, &mut counter, || over.load(Ordering::SeqCst));
                        if let Ok(mut all) = all.lock() {
                            all.merge(&counter);
                        }
                    });
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => sleep(Span::from_millis(5)),
                Err(e) => return Err(words(e)),
            }
        }
        Ok(())
    })?;
    let all = all.lock().map_err(|_| "a thread died")?;
    Ok(all.report())
}

/// Reads until the end of the stream, or of the measurement.
fn drain(mut stream: TcpStream, counter: &mut Counter, over: impl Fn() -> bool) {
    let mut data = vec![0; CHUNK];
    if stream.set_nonblocking(false).is_err() || stream.set_read_timeout(Some(POLL_INTERVAL)).is_err() {
        return;
    }
    while !over() {
        match stream.read(&mut data) {
            Ok(0) => return,
            Ok(n) => counter.add(n as u64),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            // The sender resets the connection when its time is over.
            Err(_) => return,
        }
    }
}

/// The TCP counters of this network namespace.
pub(super) fn counters() -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for file in ["/proc/self/net/snmp", "/proc/self/net/netstat"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        parse_counters(&text, &mut out);
    }
    out
}

/// Pairs of lines: names, then values, each behind the same first word.
fn parse_counters(text: &str, out: &mut BTreeMap<String, u64>) {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let values = pair[1].split_whitespace().skip(1);
        for (name, value) in pair[0].split_whitespace().skip(1).zip(values) {
            if let Ok(v) = value.parse() {
                out.insert(name.to_owned(), v);
            }
        }
    }
}

/// Retransmitted segments as a share of all, and those that the receiver already had (by its duplicate SACKs, RFC
/// 2883).
pub(super) fn retransmitted_shares(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> (Option<f64>, Option<f64>) {
    let change = |name: &str| Some(after.get(name)?.saturating_sub(*before.get(name)?) as f64);
    // OutSegs does not count retransmitted segments (RFC 4022).
    let (Some(out), Some(again)) = (change("OutSegs"), change("RetransSegs")) else { return (None, None) };
    let all = (out + again).max(1.0);
    (Some(again / all), change("TCPDSACKRecv").map(|d| d / all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Pattern;

    #[test]
    fn kernel_counters_are_parsed_from_pairs_of_lines() {
        let mut out = BTreeMap::new();
        parse_counters("Tcp: OutSegs RetransSegs X\nTcp: 90 10 -1\nUdp: A\nUdp: 3\n", &mut out);
        assert_eq!(out.get("OutSegs"), Some(&90));
        assert_eq!(out.get("A"), Some(&3));
        let zero = out.keys().map(|k| (k.clone(), 0)).collect();
        assert_eq!(retransmitted_shares(&zero, &out), (Some(0.1), None));
        assert_eq!(retransmitted_shares(&BTreeMap::new(), &BTreeMap::new()), (None, None));
    }

    #[test]
    fn bytes_sent_over_two_connections_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let all = std::thread::scope(|s| {
            let sink = s.spawn(|| {
                let mut all = Counter::new(Clock::new().now());
                for _ in 0..2 {
                    let (stream, _) = listener.accept().expect("a connection");
                    let mut c = Counter::new(all.began);
                    drain(stream, &mut c, || false);
                    all.merge(&c);
                }
                all.total
            });
            let pattern = Pattern { seconds: 60.0, on: 0.0, off: 0.0 };
            let b =
                Bulk { to, cc: String::new(), streams: 2, pattern, bytes: Some(3_000_000), multipath: false };
            let sent = send(&b).expect("a report");
            (sent.bytes, sink.join().expect("a total"))
        });
        assert!(all.0 >= 3_000_000 && all.0 == all.1, "{all:?}");
    }

    #[test]
    fn unknown_congestion_control_is_an_error() {
        let e = available("no_such_cc").expect_err("unknown");
        assert!(e.contains("no_such_cc"), "{e}");
        assert_eq!(available(""), Ok(()));
    }
}
