//! Sends paced UDP trains through a relay and says what came through, how late, and at what CPU cost:
//! `cargo run --release -p longhaul-io --example relay_load -- MBIT SECONDS [LINK]`, where LINK is a
//! specification as `netem` reads it, by default `delay=35ms loss=0.1% queue=16MiB` at twice the rate.

use base::{Ecn, Rate, Span};
use longhaul_io::clock::{Clock, CpuTime};
use longhaul_io::poll::{Poller, Source};
use longhaul_io::relay::{RelayConfig, RelayHandle};
use longhaul_io::udp::{SendBatch, SendMeta, UdpOptions, UdpSocket};
use netem::LinkConfig;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const PACKET: usize = 1_448;
const TRAIN: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mbit: u64 = args.next().ok_or("MBIT is missing")?.parse()?;
    let seconds: u64 = args.next().ok_or("SECONDS is missing")?.parse()?;
    let spec = args.next().unwrap_or(format!("rate={}mbit delay=35ms loss=0.1% queue=16MiB", 2 * mbit));
    let any = "127.0.0.1:0".parse()?;
    let (source, sink) = (UdpSocket::open(&UdpOptions::new(any))?, UdpSocket::open(&UdpOptions::new(any))?);
    let mut config = RelayConfig::new(any, sink.local_addr());
    config.up = LinkConfig::parse(&spec)?;
    let relay = RelayHandle::start(config)?;
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let clock = Clock::new();
    let start = clock.now();
    let sent = std::thread::scope(|s| {
        s.spawn(|| sink_loop(&sink, &stop, &received));
        let sent = send_paced(&source, &relay, Rate::from_mbit(mbit), Span::from_secs(seconds));
        // What is still on the link.
        let rest = Poller::new().and_then(|mut p| p.wait(&mut [], Some(Span::from_secs(1))));
        stop.store(true, Relaxed);
        rest?;
        sent
    })?;
    let elapsed = clock.now().since(start) - Span::from_secs(1);
    let stats = relay.stop()?;
    let bytes = received.load(Relaxed);
    let packets = bytes / PACKET as u64;
    println!("link       {spec}");
    println!("sent       {sent} packets, {}", Rate::from_bytes_in(sent * PACKET as u64, elapsed));
    println!("received   {packets} packets, {}", Rate::from_bytes_in(bytes, elapsed));
    println!("dropped    {} by the link, {} by this machine", stats.up.link.dropped(), {
        sent.saturating_sub(packets + stats.up.link.dropped())
    });
    println!("trains     {} in, {} out", stats.up.trains_in, stats.up.trains_out);
    println!("lateness   {:?}", stats.up.lateness);
    println!("relay CPU  {} ({:.0} % of a core)", stats.cpu.total(), {
        100.0 * stats.cpu.total().as_secs_f64() / elapsed.as_secs_f64()
    });
    println!("all CPU    {}", CpuTime::of_process().total());
    Ok(())
}

fn send_paced(from: &UdpSocket, relay: &RelayHandle, rate: Rate, length: Span) -> std::io::Result<u64> {
    longhaul_io::poll::sharpen_timers();
    let (clock, mut poller) = (Clock::new(), Poller::new()?);
    let mut batch = SendBatch::new();
    let meta = SendMeta { dst: relay.local_addr(), src: None, ecn: Ecn::Ect0, dscp: 0, segment: PACKET };
    let (start, mut sent) = (clock.now(), 0);
    loop {
        let due = start + rate.time_for(sent * PACKET as u64);
        let now = clock.now();
        if now.since(start) >= length {
            return Ok(sent);
        }
        if due > now {
            poller.wait(&mut [Source::new(from, false)], Some(due.since(now)))?;
            continue;
        }
        batch.commit(meta, TRAIN * PACKET).map_err(std::io::Error::other)?;
        sent += (TRAIN * from.send(&mut batch).map_err(std::io::Error::other)?.sent) as u64;
        batch.clear();
    }
}

fn sink_loop(sink: &UdpSocket, stop: &AtomicBool, received: &AtomicU64) -> std::io::Result<()> {
    let mut batch = sink.recv_batch();
    let mut poller = Poller::new()?;
    while !stop.load(Relaxed) {
        poller.wait(&mut [Source::readable(sink)], Some(Span::from_millis(50)))?;
        while sink.recv(&mut batch).map_err(std::io::Error::other)? > 0 {
            received.fetch_add(batch.iter_mut().map(|(m, _)| m.len as u64).sum(), Relaxed);
        }
    }
    Ok(())
}
