//! Cross traffic: UDP at a rate, on and off, without congestion control.

use super::{Counter, Pattern, Report, announce_ready, sleep};
use base::Span;
use lhio::clock::Clock;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of payload: packets of 1500 bytes.
const PAYLOAD: usize = 1_472;
/// Bytes of IPv4 and UDP headers, which count towards the rate.
const HEADERS: usize = 28;
/// Most packets that are made up for after a delay of the sender.
const MAX_BURST: u64 = 256;

pub(super) fn send(to: SocketAddr, rate: u64, pattern: &Pattern) -> Result<Report, String> {
    let words = |e: std::io::Error| format!("sending UDP to {to}: {e}");
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).map_err(words)?;
    socket.connect(to).map_err(words)?;
    let (clock, data) = (Clock::new(), [0x5a; PAYLOAD]);
    let gap = ((PAYLOAD + HEADERS) as f64 * 8.0 / rate.max(1) as f64).max(1e-9);
    let began = clock.now();
    let (mut report, mut due) = (Report::default(), 0.0f64);
    loop {
        let t = clock.now().since(began).as_secs_f64();
        let (on, next) = pattern.at(t);
        if t >= pattern.seconds {
            break;
        }
        if !on {
            sleep(Span::from_secs_f64((next - t).max(0.0)));
            due = next;
            continue;
        }
        due = due.max(t - gap * MAX_BURST as f64);
        while due <= t {
            due += gap;
            // A full buffer or a refused port loses the packet, as a network would.
            if socket.send(&data).is_ok() {
                report.bytes += PAYLOAD as u64;
            }
        }
        sleep(Span::from_secs_f64((due - t).clamp(0.0, 0.001)));
    }
    report.seconds = clock.now().since(began).as_secs_f64();
    report.payload_share = Some(PAYLOAD as f64 / (PAYLOAD + HEADERS) as f64);
    Ok(report)
}

pub(super) fn sink(listen: SocketAddr) -> Result<Report, String> {
    let words = |e: std::io::Error| format!("receiving UDP on {listen}: {e}");
    let socket = UdpSocket::bind(listen).map_err(words)?;
    socket.set_read_timeout(Some(Duration::from_millis(100))).map_err(words)?;
    let over = announce_ready();
    let (mut counter, mut data) = (Counter::new(Clock::new().now()), vec![0; 65_536]);
    while !over.load(Ordering::SeqCst) {
        // The time-out is used to check whether it is over.
        if let Ok(n) = socket.recv(&mut data) {
            counter.add(n as u64);
        }
    }
    Ok(counter.report())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_sender_keeps_its_rate_while_on() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let to = socket.local_addr().expect("an address");
        let r = send(to, 8_000_000, &Pattern { seconds: 0.4, on: 0.1, off: 0.1 }).expect("a report");
        // 0.2 s of 1 MB/s less headers is 196 kB at most, and one packet at each start.
        assert!(r.bytes > 20_000 && r.bytes <= 200_000, "{}", r.bytes);
    }
}
