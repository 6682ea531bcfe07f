//! Requests and short answers over the kernel's TCP.

use super::tcp::{self, connect};
use super::{CHUNK, MAX_CONNECTIONS, Report, Requests, announce_ready, sleep};
use base::{Rng, Span, Time};
use lhio::clock::Clock;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of an answer.
pub(super) const ANSWER: usize = 16;
/// Most requests in progress on one connection; later ones wait, and their waiting time counts.
const MAX_UNANSWERED: usize = 1 << 16;
/// Time after the end for which answers are awaited.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends requests until the time is over, and waits for the answers.
pub(super) fn run_client(r: &Requests) -> Result<Report, String> {
    let before = tcp::counters();
    let streams = (0..r.streams.max(1)).map(|_| connect(r.to, &r.cc)).collect::<Result<Vec<_>, String>>()?;
    let (clock, mut rng) = (Clock::new(), Rng::from_u64(r.seed));
    let began = clock.now();
    let all = Mutex::new(Vec::new());
    let notes = std::thread::scope(|s| {
        let each: Vec<_> = streams
            .iter()
            .map(|t| {
                let (rng, all) = (rng.fork(), &all);
                s.spawn(move || run_connection(t, r, rng, all))
            })
            .collect();
        each.into_iter().filter_map(|t| t.join().ok().and_then(Result::err)).collect::<Vec<_>>()
    });
    let completions = all.into_inner().map_err(|_| "a thread died")?;
    let (retransmitted, spurious) = tcp::retransmitted_shares(&before, &tcp::counters());
    Ok(Report {
        bytes: completions.len() as u64 * r.size,
        seconds: clock.now().since(began).as_secs_f64(),
        completions,
        retransmitted,
        spurious,
        note: notes.into_iter().next().unwrap_or_default(),
        ..Report::default()
    })
}

/// One connection: this thread sends, another one reads the answers, in the order of the requests.
fn run_connection(
    stream: &TcpStream,
    r: &Requests,
    mut rng: Rng,
    all: &Mutex<Vec<f64>>,
) -> Result<(), String> {
    let words = |e: std::io::Error| format!("requests to {}: {e}", r.to);
    stream.set_nodelay(true).map_err(words)?;
    let mut out = stream;
    out.write_all(&r.size.to_be_bytes()).map_err(words)?;
    let clock = Clock::new();
    let (began, waiting, over, answered) =
        (clock.now(), Mutex::new(VecDeque::<Time>::new()), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let reader = s.spawn(|| read_answers(stream, &waiting, &over, &answered, all));
        let (data, mut due, mut sent) = (vec![0x5a; CHUNK], began, 0u64);
        let result = loop {
            let t = clock.now().since(began).as_secs_f64();
            let (on, next) = r.pattern.at(t);
            if t >= r.pattern.seconds {
                break Ok(());
            }
            if !on {
                sleep(Span::from_secs_f64((next - t).max(0.0)));
                due = due.max(clock.now());
                continue;
            }
            let arrival = match r.every {
                Some(mean) => {
                    due += exponential(&mut rng, mean * f64::from(r.streams.max(1)));
                    sleep(due.since(clock.now()));
                    due
                }
                None => {
                    while answered.load(Ordering::Acquire) < sent && !reader.is_finished() {
                        sleep(Span::from_micros(50));
                    }
                    clock.now()
                }
            };
            if reader.is_finished() {
                break Ok(());
            }
            if let Ok(mut w) = waiting.lock() {
                if w.len() >= MAX_UNANSWERED {
                    break Err("too many requests are unanswered; ask less often".to_owned());
                }
                w.push_back(arrival);
            }
            if let Err(e) = write_request(out, &data, r.size) {
                break Err(words(e));
            }
            sent += 1;
        };
        over.store(true, Ordering::SeqCst);
        result.and(reader.join().unwrap_or_else(|_| Err("a thread died".into())))
    })
}

fn write_request(mut out: &TcpStream, data: &[u8], size: u64) -> std::io::Result<()> {
    let mut left = size;
    while left > 0 {
        let n = left.min(data.len() as u64) as usize;
        out.write_all(&data[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// An exponentially distributed time with this mean in seconds.
pub(super) fn exponential(rng: &mut Rng, mean: f64) -> Span {
    Span::from_secs_f64(-(1.0 - rng.unit()).ln() * mean)
}

fn read_answers(
    mut stream: &TcpStream,
    waiting: &Mutex<VecDeque<Time>>,
    over: &AtomicBool,
    answered: &AtomicU64,
    all: &Mutex<Vec<f64>>,
) -> Result<(), String> {
    let clock = Clock::new();
    let mut grace: Option<Time> = None;
    let (mut answer, mut have) = ([0; ANSWER], 0);
    stream.set_read_timeout(Some(Duration::from_millis(50))).map_err(|e| e.to_string())?;
    loop {
        match stream.read(&mut answer[have..]) {
            Ok(0) => return Ok(()),
            Ok(n) => have += n,
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(format!("answers: {e}")),
        }
        let now = clock.now();
        if have == ANSWER {
            have = 0;
            let arrival = waiting.lock().ok().and_then(|mut w| w.pop_front());
            if let (Some(at), Ok(mut all)) = (arrival, all.lock()) {
                all.push(now.since(at).as_secs_f64());
            }
            answered.fetch_add(1, Ordering::Release);
        }
        if over.load(Ordering::SeqCst) {
            let since = *grace.get_or_insert(now);
            let none = waiting.lock().map_or(true, |w| w.is_empty());
            if none || now.since(since).to_std() >= ANSWER_TIMEOUT {
                return Ok(());
            }
        }
    }
}

/// Answers requests until standard input ends.
pub(super) fn run_server(listen: SocketAddr, cc: &str) -> Result<Report, String> {
    let words = |e: std::io::Error| format!("answering on {listen}: {e}");
    let listener = tcp::listen(listen, cc)?;
    listener.set_nonblocking(true).map_err(words)?;
    let (over, total) = (announce_ready(), AtomicU64::new(0));
    std::thread::scope(|s| -> Result<(), String> {
        let mut connections = 0;
        while !over.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, _)) if connections < MAX_CONNECTIONS => {
                    connections += 1;
                    let (over, total) = (&over, &total);
                    s.spawn(move || {
                        // The client reports failed connections.
                        let _ = serve(stream, over, total);
                    });
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => sleep(Span::from_millis(5)),
                Err(e) => return Err(words(e)),
            }
        }
        Ok(())
    })?;
    Ok(Report { bytes: total.into_inner(), ..Report::default() })
}

fn serve(mut stream: TcpStream, over: &AtomicBool, total: &AtomicU64) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let (mut data, mut header, mut have) = (vec![0; CHUNK], [0; 8], 0);
    let mut size = None;
    let mut got = 0u64;
    while !over.load(Ordering::SeqCst) {
        let n = match size {
            None => stream.read(&mut header[have..]),
            Some(_) => stream.read(&mut data),
        };
        let n = match n {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(e) => return Err(e),
        };
        let Some(bytes) = size else {
            have += n;
            size = (have == header.len()).then(|| u64::from_be_bytes(header).max(1));
            continue;
        };
        got += n as u64;
        total.fetch_add(n as u64, Ordering::Relaxed);
        while got >= bytes {
            got -= bytes;
            stream.write_all(&[0; ANSWER])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Pattern;
    use std::net::TcpListener;

    #[test]
    fn requests_are_answered_in_open_and_closed_loop() {
        for every in [None, Some(0.002)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let to = listener.local_addr().expect("an address");
            let (over, total) = (AtomicBool::new(false), AtomicU64::new(0));
            let report = std::thread::scope(|s| {
                s.spawn(|| {
                    for stream in listener.incoming().take(2) {
                        let (over, total) = (&over, &total);
                        s.spawn(move || serve(stream.expect("a connection"), over, total));
                    }
                });
                let pattern = Pattern { seconds: 0.3, on: 0.0, off: 0.0 };
                let r = Requests {
                    to,
                    cc: String::new(),
                    size: 100_000,
                    streams: 2,
                    pattern,
                    every,
                    known_rate: None,
                    seed: 1,
                };
                let report = run_client(&r).expect("a report");
                over.store(true, Ordering::SeqCst);
                report
            });
            assert!(report.completions.len() > 10, "{every:?}: {}", report.note);
            assert_eq!(report.bytes, report.completions.len() as u64 * 100_000);
            assert_eq!(total.load(Ordering::SeqCst), report.bytes);
        }
    }
}
