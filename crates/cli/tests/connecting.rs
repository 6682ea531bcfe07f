//! Connecting takes the time that is given, in all, and ends at once where the network says that nobody is there.
#![allow(clippy::disallowed_methods, reason = "the time that a command takes is what is specified")]

mod common;

use common::{Bench, expect, stderr};
use std::net::{TcpListener, UdpSocket};
use std::time::Instant;

/// The commands that connect, to `place`.
fn commands(b: &Bench, place: &str) -> Vec<Vec<String>> {
    let file = b.path("file").to_str().unwrap().to_owned();
    std::fs::write(&file, "x").unwrap();
    let back = b.path("back").to_str().unwrap().to_owned();
    let url = |scheme: &str| format!("{scheme}://{place}/");
    let mut all = Vec::new();
    for scheme in ["longhaul", "iwarp"] {
        all.push(vec!["put".to_owned(), file.clone(), url(scheme)]);
        all.push(vec!["get".to_owned(), format!("{}f", url(scheme)), back.clone()]);
        all.push(vec!["ls".to_owned(), url(scheme)]);
    }
    all.push(vec!["perf".to_owned(), "client".to_owned(), place.to_owned()]);
    all.push(vec!["perf".to_owned(), "client".to_owned(), format!("iwarp://{place}")]);
    all
}

/// Runs all of them at once; each ends with status 3, after so many seconds. What they said.
fn all_fail(b: &Bench, place: &str, timeout: &str, seconds: std::ops::Range<f64>) -> Vec<String> {
    let run = |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let begun = Instant::now();
        let o = b.run(&[&words[..], &["--accept-new", "--connect-timeout", timeout]].concat());
        let took = begun.elapsed().as_secs_f64();
        println!("{words:?}: {took:.2} s: {}", stderr(&o));
        expect(&o, 3);
        assert!(seconds.contains(&took), "{words:?} took {took:.2} s: {}", stderr(&o));
        stderr(&o)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = commands(b, place).into_iter().map(|w| s.spawn(|| run(w))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn connecting_to_a_silent_server_ends_after_connect_timeout() {
    let b = Bench::new();
    // It takes datagrams and connections, and says nothing.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let _tcp = TcpListener::bind(at).unwrap();
    all_fail(&b, &at.to_string(), "2s", 1.8..3.5);
}

#[test]
fn connecting_to_a_known_silent_server_ends_after_connect_timeout() {
    let b = Bench::new();
    let mut server = b.serve("srv", &["--iwarp", "tls"]);
    let address = server.address.clone();
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    server.kill();
    let _udp = UdpSocket::bind(&address).unwrap();
    let _tcp = TcpListener::bind(&address).unwrap();
    all_fail(&b, &address, "2s", 1.8..3.5);
}

#[test]
fn closed_port_is_reported_at_once() {
    let b = Bench::new();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for said in all_fail(&b, &free.to_string(), "20s", 0.0..5.0) {
        assert_eq!(said.matches("cannot connect to").count(), 1, "{said}");
        assert!(said.contains("nobody listens") || said.contains("Connection refused"), "{said}");
    }
}

#[test]
fn quiet_prints_errors_only() {
    let b = Bench::new();
    let server = b.serve("srv", &["--iwarp", "tls"]);
    std::fs::write(b.path("file"), "x").unwrap();
    let (file, back) = (b.path("file"), b.path("back"));
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    // The first is told to trust a server that was never met.
    for args in [
        &["put", "-q", "--accept-new", file, &server.url("")][..],
        &["put", "-q", "--all", file, &format!("iwarp://{}/", server.address)],
        &["get", "-q", &server.url("file"), back],
    ] {
        let o = b.run(args);
        expect(&o, 0);
        assert!(o.stderr.is_empty() && o.stdout.is_empty(), "{args:?}: {}", stderr(&o));
    }
    let o = b.run(&["get", "-q", &server.url("missing"), back]);
    expect(&o, 1);
    assert_eq!(stderr(&o).lines().filter(|l| l.starts_with("error: ")).count(), 1, "{}", stderr(&o));
}
