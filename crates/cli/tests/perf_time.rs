//! A measurement is over when its time is: over slow paths, by iWARP, and when the server has fallen silent.

#![allow(clippy::disallowed_methods, reason = "it is about the time that commands take")]

mod common;

use common::{Bench, Server, expect, json};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// A measurement of a second or two has failed that lasts longer, on any machine: what it may have had under way takes minutes.
const LONG: Duration = Duration::from_secs(20);

const OPERATIONS: [&str; 3] = ["write", "read", "send"];
const DIRECTIONS: [&[&str]; 2] = [&[], &["--reverse"]];

fn perf_server(b: &Bench, args: &[&str]) -> Server {
    Server::start(
        &b.server,
        &[&["perf", "server", "--json", "--listen", "127.0.0.1:0", "--mtu", "1500"], args].concat(),
    )
}

/// A path of 2 Mbit/s.
fn slow(b: &Bench, to: &str) -> Server {
    let relay = ["wan", "relay", "--json", "--seed", "1", "--listen", "127.0.0.1:0", "--to", to];
    Server::start(&b.client, &[&relay[..], &["rate=2mbit", "delay=10ms", "queue=25000B"]].concat())
}

/// Runs a client to its end, which has to come soon.
fn run(b: &Bench, to: &str, args: &[&str]) -> Value {
    let what = ["perf", "client", to, "--json", "--mtu", "1500"];
    let begin = Instant::now();
    let o = b.run(&[&what[..], args].concat());
    let took = begin.elapsed();
    expect(&o, 0);
    assert!(took < LONG, "{args:?} took {took:?}");
    json(&o)
}

/// Bytes in all, and of each interval; they agree.
fn intervals(r: &Value) -> (u64, Vec<u64>) {
    let each: Vec<u64> =
        r["intervals"].as_array().unwrap().iter().map(|i| i["bytes"].as_u64().unwrap()).collect();
    let all = r["bytes"].as_u64().unwrap();
    assert_eq!(each.iter().sum::<u64>(), all, "{each:?}");
    (all, each)
}

#[test]
fn measurement_over_a_slow_path_ends_in_time_and_counts_acknowledged_bytes() {
    let b = Bench::new();
    let server = perf_server(&b, &[]);
    for operation in OPERATIONS {
        for direction in DIRECTIONS {
            let relay = slow(&b, &server.address);
            let args = ["--accept-new", "-t", "2s", "-i", "500ms", "-o", operation];
            let r = run(&b, &relay.address, &[&args[..], direction].concat());
            let (all, each) = intervals(&r);
            // Less than one message: what is counted are its parts.
            assert!((50_000..1 << 20).contains(&all), "{operation} {direction:?}: {r}");
            assert!(each.iter().filter(|n| **n > 0).count() >= 2, "{operation} {direction:?}: {each:?}");
            let (seen, code) = relay.stop();
            assert_eq!(code, Some(0));
            let out = ["forward", "reverse"].map(|way| seen[way]["bytes_out"].as_u64().unwrap());
            let carried = out[0].max(out[1]);
            assert!((all..3 * all).contains(&carried), "{operation} {direction:?}: {all} of {carried}");
        }
    }
}

#[test]
fn iwarp_measurement_at_a_low_rate_ends_in_time() {
    let b = Bench::new();
    let server = perf_server(&b, &["--iwarp", "plain", "--allow-any-key", "--limit", "2mbit"]);
    let to = format!("iwarp://{}", server.address);
    for operation in OPERATIONS {
        for direction in DIRECTIONS {
            let args =
                ["--plain", "--limit", "2mbit", "-t", "1s", "-i", "250ms", "-o", operation, "--verify"];
            let r = run(&b, &to, &[&args[..], direction].concat());
            assert_eq!(r["verified"], true);
            assert!(intervals(&r).0 < 1 << 20, "{operation} {direction:?}: {r}");
        }
    }
}

#[test]
fn latency_measurement_without_a_round_trip_ends_in_time() {
    let b = Bench::new();
    let server = perf_server(&b, &[]);
    let relay = slow(&b, &server.address);
    let what = ["perf", "client", &relay.address, "--accept-new", "--mtu", "1500", "--latency", "-t", "1s"];
    for direction in DIRECTIONS {
        let begin = Instant::now();
        let o = b.run(&[&what[..], &["-s", "8MiB"], direction].concat());
        expect(&o, 0);
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        let said = String::from_utf8_lossy(&o.stdout);
        assert!(said.contains("no round trip completed"), "{said}");
        expect(&b.run(&[&what[..], direction].concat()), 0);
    }
}

/// Starts a client and waits until it has told of an interval.
fn started(b: &Bench, to: &str, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let what = ["perf", "client", to, "--mtu", "1500", "-t", "2s", "-i", "100ms"];
    let mut c = b.client(&[&what[..], args].concat());
    let mut child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains(" B "), "{line}");
    (child, out)
}

/// The client ends soon with the status of what is interrupted, and says why.
fn given_up((mut child, _out): (Child, BufReader<ChildStdout>)) {
    let begin = Instant::now();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{said}");
    assert!(said.contains("nothing heard from it for"), "{said}");
    assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
}

fn signal(s: &Server, what: Signal) {
    kill_process(Pid::from_raw(s.child.id() as i32).unwrap(), what).unwrap();
}

#[test]
fn path_that_is_cut_is_reported_when_the_time_is_over() {
    let b = Bench::new();
    for operation in OPERATIONS {
        for direction in DIRECTIONS {
            let server = perf_server(&b, &[]);
            let relay = slow(&b, &server.address);
            let client =
                started(&b, &relay.address, &[&["--accept-new", "-o", operation], direction].concat());
            signal(&relay, Signal::STOP);
            given_up(client);
            signal(&relay, Signal::CONT);
        }
    }
}

#[test]
fn stopped_iwarp_server_is_reported_when_the_time_is_over() {
    let b = Bench::new();
    for direction in DIRECTIONS {
        let server = perf_server(&b, &["--iwarp", "plain", "--allow-any-key"]);
        let to = format!("iwarp://{}", server.address);
        let client = started(&b, &to, &[&["--plain"], direction].concat());
        signal(&server, Signal::STOP);
        given_up(client);
        signal(&server, Signal::CONT);
    }
}
