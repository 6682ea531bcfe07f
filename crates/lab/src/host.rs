//! Measures what this host takes time for, as simulations need it ([`HostModel`]): how late waits end, how long a
//! datagram waits for the loop that sleeps, and what turns of the loop cost in a transfer over loopback.

mod file;

pub use file::{HostFile, HostFileError, MAX_TEXT};

use crate::workload::requests::{self, Client, RequestsState, Server};
use crate::workload::{Pattern, Requests, ends};
use base::{Rate, Rng, Span, Time};
use endpoint::{App, Endpoint};
use lhio::clock::Clock;
use lhio::driver::{Driver, DriverOptions, Lanes, Step};
use lhio::poll::{Poller, Source, sharpen_timers};
use sim::world::{HostModel, Lateness};
use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Waits that are measured: between trains at 50 Mbit/s to 1 Gbit/s, and longer ones.
const WAITS: [Span; 4] =
    [Span::from_micros(300), Span::from_micros(500), Span::from_micros(1_000), Span::from_micros(2_000)];
/// Time between datagrams that wake a sleeping loop, and as much again at random.
const WAKE_INTERVAL: Span = Span::from_micros(500);
/// The transfer's rate, packets and messages: a long path's, without a path.
const RATE: Rate = Rate::from_bits_per_sec(1_000_000_000);
const PACKET: u32 = 1_500;
const MESSAGE: u64 = 1 << 20;
const STREAMS: u16 = 8;
/// Time after the transfer's end until its ends are given up.
const GRACE: Span = Span::from_secs(5);
/// A loop without anything to do looks at its flag so often.
const LONGEST_WAIT: Span = Span::from_millis(100);

/// A turn of a loop: its time, and the datagrams that it received and sent.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TurnSample {
    time: Span,
    received: u64,
    sent: u64,
}

/// What one end of the transfer did.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndSummary {
    /// Turns of its loop.
    pub turns: u64,
    /// Datagrams received and sent.
    pub datagrams: (u64, u64),
    /// Time of a turn.
    pub time: Lateness,
    /// Datagrams in a turn that received or sent any: median, 90th and 99th percentile.
    pub batch: [u64; 3],
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The parameters.
    pub model: HostModel,
    /// The sender and the receiver of the transfer.
    pub ends: [EndSummary; 2],
}

/// Measures for `each` in each of three parts.
///
/// # Errors
/// The system's, in words.
pub fn measure(each: Span) -> Result<Measured, String> {
    // Each in a thread of its own, whose timers it changes.
    let timer = in_thread(move || measure_waits(each))?;
    let wake = in_thread(move || measure_wakes(each))?;
    let [sender, receiver] = measure_transfer(each)?;
    let all: Vec<TurnSample> = sender.iter().chain(&receiver).copied().collect();
    let (turn, receive, send) = fit(&all).ok_or("too few turns of the loop: measure longer")?;
    let default = HostModel::default();
    let model = HostModel { timer, wake, turn, receive, send, ..default };
    Ok(Measured { model, ends: [summary(&sender), summary(&receiver)] })
}

fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let thread =
        std::thread::Builder::new().spawn(work).map_err(|e| format!("cannot start a thread: {e}"))?;
    thread.join().unwrap_or_else(|_| Err("a thread of the measurement panicked".to_owned()))
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// How much later than asked for the event loop's wait ends.
fn measure_waits(each: Span) -> Result<Lateness, String> {
    sharpen_timers();
    let (clock, mut poller) = (Clock::new(), Poller::new().map_err(words)?);
    let end = clock.now() + each;
    let mut late = Vec::new();
    for wait in WAITS.iter().cycle() {
        let began = clock.now();
        if began >= end {
            break;
        }
        poller.wait(&mut [], Some(*wait)).map_err(words)?;
        late.push(clock.now().since(began + *wait));
    }
    Ok(Lateness::measured(&mut late))
}

/// How long after a datagram was sent over loopback the loop runs that slept until it came.
fn measure_wakes(each: Span) -> Result<Lateness, String> {
    sharpen_timers();
    let (clock, mut poller) = (Clock::new(), Poller::new().map_err(words)?);
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(words)?;
    socket.set_nonblocking(true).map_err(words)?;
    let to = socket.local_addr().map_err(words)?;
    let end = clock.now() + each;
    let sender = std::thread::spawn(move || -> Result<(), String> {
        let (socket, mut rng) = (UdpSocket::bind("127.0.0.1:0").map_err(words)?, Rng::from_u64(1));
        while clock.now() < end {
            crate::workload::sleep(WAKE_INTERVAL + Span::from_nanos(rng.below(WAKE_INTERVAL.as_nanos())));
            socket.send_to(&clock.now().as_nanos().to_le_bytes(), to).map_err(words)?;
        }
        Ok(())
    });
    let mut late = Vec::new();
    while clock.now() < end {
        poller.wait(&mut [Source::readable(&socket)], Some(LONGEST_WAIT)).map_err(words)?;
        let (now, mut sent) = (clock.now(), [0; 8]);
        // Of several that came meanwhile, the first woke it.
        let mut first = true;
        while let Ok(8) = socket.recv(&mut sent) {
            if std::mem::take(&mut first) {
                late.push(now.since(Time::from_nanos(u64::from_le_bytes(sent))));
            }
        }
    }
    sender.join().unwrap_or_else(|_| Err("a thread of the measurement panicked".to_owned()))?;
    Ok(Lateness::measured(&mut late))
}

/// The turns of both ends of a transfer over loopback.
fn measure_transfer(each: Span) -> Result<[Vec<TurnSample>; 2], String> {
    let options = || {
        let mut o = requests::options("", None, STREAMS);
        (o.max_packet, o.rate_cap) = (PACKET, Some(RATE));
        o
    };
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let driver = |serves| {
        let o = DriverOptions { lanes: Lanes::Count(1), serves, ..DriverOptions::new(loopback) };
        Driver::with(o).map_err(words)
    };
    let mut server = driver(true)?;
    let to = server.local_addr();
    let over = Arc::new(AtomicBool::new(false));
    let limit = Clock::new().now() + each + GRACE;
    let stop = over.clone();
    let waker = server.waker();
    let thread = std::thread::spawn(move || {
        let mut endpoint = ends::endpoint(options(), true)?;
        observe(&mut server, &mut endpoint, &mut Server::new(MESSAGE, STREAMS, stop), limit)
    });
    let mut client = driver(false)?;
    let mut endpoint = ends::endpoint(options(), false)?;
    let pattern = Pattern { seconds: each.as_secs_f64(), on: 0.0, off: 0.0 };
    let what = Requests {
        to,
        cc: String::new(),
        size: MESSAGE,
        streams: STREAMS,
        pattern,
        every: None,
        known_rate: None,
        seed: 1,
    };
    let state = Rc::<RefCell<RequestsState>>::default();
    let mut app = Client::new(what, ends::connect(to), client.now(), state.clone());
    let sent = observe(&mut client, &mut endpoint, &mut app, limit);
    over.store(true, Ordering::SeqCst);
    waker.wake();
    let received =
        thread.join().unwrap_or_else(|_| Err("a thread of the measurement panicked".to_owned()))?;
    if let Some(why) = &state.borrow().course.failure {
        return Err(format!("the transfer over loopback failed: {why}"));
    }
    Ok([sent?, received])
}

/// Runs a loop until its application has finished, and measures its turns.
fn observe(
    driver: &mut Driver,
    endpoint: &mut Endpoint,
    app: &mut dyn App,
    limit: Time,
) -> Result<Vec<TurnSample>, String> {
    let (clock, mut poller) = (Clock::new(), Poller::new().map_err(words)?);
    driver.begin_steps(endpoint);
    let fds = driver.descriptors().map_err(words)?;
    let (mut turns, mut last) = (Vec::new(), (0, 0));
    loop {
        let began = clock.now();
        let step = driver.step(endpoint, app).map_err(words)?;
        let ended = clock.now();
        let now = counts(endpoint);
        // A connection that is gone takes its counters along.
        let (received, sent) = (now.0.saturating_sub(last.0), now.1.saturating_sub(last.1));
        turns.push(TurnSample { time: ended.since(began), received, sent });
        last = now;
        if (app.finished() && endpoint.is_quiet()) || ended > limit {
            return Ok(turns);
        }
        if step == Step::Idle {
            let wait = driver.plan_wait(endpoint, app);
            let longest = wait.timeout.map_or(LONGEST_WAIT, |t| t.min(LONGEST_WAIT));
            let mut sources =
                [Source::choose(&fds.socket, wait.watches_socket, false), Source::readable(&fds.waker)];
            poller.wait(&mut sources, Some(longest)).map_err(words)?;
            driver.after_wait(wait, sources[1].readable).map_err(words)?;
        }
    }
}

/// Packets received and sent so far.
fn counts(endpoint: &Endpoint) -> (u64, u64) {
    let stats = endpoint.connections().filter_map(|c| endpoint.stats(c));
    stats.fold((0, 0), |n, s| (n.0 + s.packets_received, n.1 + s.packets_sent))
}

fn summary(turns: &[TurnSample]) -> EndSummary {
    let mut times: Vec<Span> = turns.iter().map(|t| t.time).collect();
    let mut batches: Vec<u64> = turns.iter().map(|t| t.received + t.sent).filter(|n| *n > 0).collect();
    batches.sort_unstable();
    let at = |p: usize| batches.get(batches.len().saturating_sub(1) * p / 100).copied().unwrap_or(0);
    let sum = |of: fn(&TurnSample) -> u64| turns.iter().map(of).sum();
    EndSummary {
        turns: turns.len() as u64,
        datagrams: (sum(|t| t.received), sum(|t| t.sent)),
        time: Lateness::measured(&mut times),
        batch: [50, 90, 99].map(at),
    }
}

/// Times for a turn, a datagram received and a datagram sent, by least squares: the turn itself costs what turns with
/// hardly any datagrams take in their median. Turns in which the thread lost its processor do not count.
fn fit(turns: &[TurnSample]) -> Option<(Span, Span, Span)> {
    let mut times: Vec<Span> = turns.iter().map(|t| t.time).collect();
    times.sort_unstable();
    let longest = *times.get(times.len() * 99 / 100)?;
    let usual = || turns.iter().filter(|t| t.time <= longest);
    let mut few: Vec<Span> = usual().filter(|t| t.received + t.sent <= 1).map(|t| t.time).collect();
    few.sort_unstable();
    let turn = few.get(few.len() / 2)?.as_nanos() as f64;
    // The normal equations of both slopes, for times beyond that of a turn.
    let (mut rr, mut rs, mut ss, mut rt, mut st) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for t in usual().filter(|t| t.received + t.sent > 1) {
        let (r, s, y) = (t.received as f64, t.sent as f64, t.time.as_nanos() as f64 - turn);
        (rr, rs, ss, rt, st) = (rr + r * r, rs + r * s, ss + s * s, rt + r * y, st + s * y);
    }
    let det = rr * ss - rs * rs;
    if det <= 0.0 {
        return None;
    }
    let span = |ns: f64| Span::from_nanos(ns.max(0.0) as u64);
    Some((span(turn), span((rt * ss - st * rs) / det), span((st * rr - rt * rs) / det)))
}

#[cfg(test)]
mod tests;
