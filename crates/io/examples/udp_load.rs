//! Raw UDP over loopback, one thread sending and one receiving, as fast as it goes:
//! `cargo run --release -p longhaul-io --example udp_load -- SECONDS [SEGMENTS [SEGMENT_BYTES]]`.
//! The floor under every transport's cost: no protocol, nothing placed, nothing sealed.

use base::{Ecn, Rate, Span};
use longhaul_io::clock::{Clock, CpuTime};
use longhaul_io::poll::{Poller, Source};
use longhaul_io::udp::{Blocked, MAX_TRAIN, SendBatch, SendMeta, UdpError, UdpOptions, UdpSocket};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How long to look before blocking.
const SPIN: Span = Span::from_micros(20);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().ok_or("SECONDS is missing")?.parse()?;
    let segments: usize = args.next().map_or(Ok(44), |s| s.parse())?;
    let segment: usize = args.next().map_or(Ok(1_472), |s| s.parse())?;
    let any = "127.0.0.1:0".parse()?;
    let (source, sink) = (UdpSocket::open(&UdpOptions::new(any))?, UdpSocket::open(&UdpOptions::new(any))?);
    let len = (segments * segment).min(MAX_TRAIN);
    let meta = SendMeta { dst: sink.local_addr(), src: None, ecn: Ecn::Ect0, segment };
    let stop = AtomicBool::new(false);
    let length = Span::from_secs(seconds);
    let start = Clock::new().now();
    let (sender, receiver) = std::thread::scope(|s| {
        let receiver = s.spawn(|| receive(&sink, &stop));
        let sender = send(&source, meta, len, length);
        stop.store(true, Relaxed);
        (sender, receiver.join())
    });
    let (sent, send_cpu) = sender?;
    let (got, trains, recv_cpu) = receiver.map_err(|_| "the receiver panicked")??;
    let elapsed = Clock::new().now().since(start);
    let cost = |c: CpuTime| c.total().as_secs_f64() * 1e9 / got.max(1) as f64;
    println!("sent {}, received {}", Rate::from_bytes_in(sent, elapsed), Rate::from_bytes_in(got, elapsed));
    println!("bytes per train received: {}", got / trains.max(1));
    println!("CPU s/GB: sender {:.2}, receiver {:.2}", cost(send_cpu), cost(recv_cpu));
    println!("receive buffer {} KiB, GSO {}, GRO {}", sink.recv_buffer() >> 10, source.gso(), sink.gro());
    Ok(())
}

fn send(s: &UdpSocket, meta: SendMeta, len: usize, length: Span) -> Result<(u64, CpuTime), UdpError> {
    let (clock, mut poller, mut batch) = (Clock::new(), Poller::new(SPIN)?, SendBatch::new());
    let (start, before, mut sent) = (clock.now(), CpuTime::of_thread(), 0);
    while clock.now().since(start) < length {
        while !batch.is_full() {
            batch.commit(meta, len)?;
        }
        loop {
            let r = s.send(&mut batch)?;
            sent += (r.sent * len) as u64;
            if r.blocked == Blocked::No {
                break;
            }
            poller.wait(&mut [Source::new(s, true)], Some(Span::from_millis(1)))?;
        }
    }
    Ok((sent, CpuTime::of_thread().since(before)))
}

fn receive(s: &UdpSocket, stop: &AtomicBool) -> Result<(u64, u64, CpuTime), UdpError> {
    let (mut poller, mut batch) = (Poller::new(SPIN)?, s.recv_batch());
    let (before, mut got, mut trains) = (CpuTime::of_thread(), 0, 0);
    while !stop.load(Relaxed) {
        poller.wait(&mut [Source::readable(s)], Some(Span::from_millis(10)))?;
        while s.recv(&mut batch)? > 0 {
            for (meta, _) in batch.iter_mut() {
                got += meta.len as u64;
                trains += 1;
            }
        }
    }
    Ok((got, trains, CpuTime::of_thread().since(before)))
}
