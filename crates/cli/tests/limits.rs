//! What clients may take of a server: memory, and file descriptors.

mod common;

use common::{Bench, Server, bytes, expect, json, stderr, tree};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// Not a measurement: whatever happens meanwhile is a valid moment.
fn wait_ms(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}

/// The most memory that a server has had, in bytes.
fn most_memory(s: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", s.child.id())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn descriptors(s: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", s.child.id())).unwrap().count()
}

/// Waits until a server has no more descriptors than before; up to so many tenths of a second.
fn given_back(s: &Server, before: usize, tenths: u32) {
    let is_done = (0..tenths).any(|_| {
        wait_ms(100);
        descriptors(s) <= before
    });
    assert!(is_done, "{} descriptors, {before} before", descriptors(s));
}

#[test]
fn measurement_beyond_the_server_memory_is_refused_with_numbers() {
    let b = Bench::new();
    let server = Server::start(
        &b.server,
        &["perf", "server", "--json", "--memory", "64MiB", "--listen", "127.0.0.1:0"],
    );
    let perf = ["perf", "client", &server.address, "--accept-new", "--json", "-n", "4MiB", "--verify"];
    for (how, wanted) in [
        (&["--region", "40MiB"][..], "40.0"),
        (&["-P", "128", "--region", "64MiB"], "8.0"),
        (&["-P", "128", "--region", "64KiB", "-s", "64KiB", "--depth", "4096", "-R"], "264.00 MiB"),
    ] {
        let o = b.run(&[&perf[..], how].concat());
        expect(&o, 6);
        let said = format!("{}{}", stderr(&o), String::from_utf8_lossy(&o.stdout));
        assert!(said.contains("64.00 MiB for all clients") && said.contains("32.00 MiB"), "{how:?}: {said}");
        assert!(said.contains(wanted) && said.contains("--region"), "{how:?}: {said}");
    }
    for how in [&["--region", "24MiB"][..], &["-P", "8", "--region", "2MiB"], &["-R", "--region", "24MiB"]] {
        let o = b.run(&[&perf[..], how].concat());
        expect(&o, 0);
        assert_eq!(json(&o)["verified"], true, "{how:?}");
    }
    let most = most_memory(&server);
    assert!(most < 128 << 20, "{most} bytes");
}

/// Whoever reaches the port can hold a connection by TCP, and all of them here: from the same address as the others.
#[test]
fn clients_connect_while_another_holds_all_its_tcp_connections() {
    let b = Bench::new();
    let folder = b.path("srv");
    fs::create_dir_all(&folder).unwrap();
    let mut c = Command::new("sh");
    c.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_longhaul"), "serve"]);
    c.arg(&folder).args(["--json", "--iwarp", "tls", "--listen", "127.0.0.1:0"]);
    c.env("LONGHAUL_HOME", &b.server).env_remove("RUST_LOG");
    let server = Server::start_command(c);
    // More large files than there are descriptors for at a time.
    let source = b.path("src");
    fs::create_dir_all(&source).unwrap();
    for n in 0..60 {
        fs::write(source.join(format!("{n}")), bytes(n, 300_000)).unwrap();
    }
    let from = format!("{}/", source.display());
    let put = |scheme: &str, to: &str| {
        let to = format!("{scheme}://{}/{to}/", server.address);
        let o = b.run(&["put", "--json", "--accept-new", &from, &to]);
        expect(&o, 0);
    };
    put("longhaul", "first");
    let before = descriptors(&server);
    let mut held = Vec::new();
    for n in 0..400 {
        let Ok(mut s) = TcpStream::connect(&server.address) else { continue };
        // Some begin a record of TLS, and some say what is none.
        let said: &[u8] = [&b""[..], &[22, 3, 1, 2, 0, 1], b"GET / HTTP/1.1\r\n"][n % 3];
        let _ = s.write_all(said);
        held.push(s);
    }
    put("longhaul", "native");
    put("iwarp", "iwarp");
    let under = descriptors(&server);
    assert!(under < 170, "{under} descriptors of 200");
    for to in ["native", "iwarp"] {
        assert_eq!(tree(&source), tree(&folder.join(to)), "{to}");
    }
    drop(held);
    given_back(&server, before, 300);
}

#[test]
fn oldest_silent_connection_is_closed_for_a_new_one() {
    let b = Bench::new();
    let folder = b.path("srv");
    fs::create_dir_all(&folder).unwrap();
    let mut c = Command::new("sh");
    c.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_longhaul"), "serve"]);
    c.arg(&folder).args(["--json", "--iwarp", "both", "--allow-any-key", "--listen", "127.0.0.1:0"]);
    c.env("LONGHAUL_HOME", &b.server).env_remove("RUST_LOG");
    let server = Server::start_command(c);
    let silent: Vec<TcpStream> = (0..100).filter_map(|_| TcpStream::connect(&server.address).ok()).collect();
    for mut s in silent.iter().take(60) {
        s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let end = s.read(&mut [0; 16]).map_err(|e| e.kind());
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    }
    for (way, scheme) in [("--plain", "iwarp"), ("--accept-new", "iwarp"), ("--accept-new", "longhaul")] {
        expect(&b.run(&["ls", way, &format!("{scheme}://{}/", server.address)]), 0);
    }
    assert!(descriptors(&server) < 64, "some are left");
}

/// Resets the connection instead of closing it (`SO_LINGER` of no time).
fn reset(s: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&s, Some(Duration::ZERO)).unwrap();
    drop(s);
}

#[test]
fn connections_that_clients_reset_leave_no_descriptors() {
    let b = Bench::new();
    let folder = b.path("srv");
    fs::create_dir_all(&folder).unwrap();
    let server = Server::start(
        &b.server,
        &[
            "serve",
            folder.to_str().unwrap(),
            "--json",
            "--iwarp",
            "both",
            "--allow-any-key",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    // By then it has opened all that it keeps.
    expect(&b.run(&["ls", "--accept-new", &format!("iwarp://{}/", server.address)]), 0);
    let before = descriptors(&server);
    // Nothing; a part of a record of TLS; a whole one of nonsense, which is answered by an end; a part of a request of MPA.
    let said: [&[u8]; 4] = [b"", &[22, 3, 1, 2, 0, 1], &[22, 3, 1, 0, 4, 9, 9, 9, 9], b"MPA ID Req"];
    for n in 0..80 {
        let mut s = TcpStream::connect(&server.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        s.write_all(said[n % 4]).unwrap();
        if n % 4 == 2 {
            let _ = s.read(&mut [0; 64]).unwrap();
        }
        if n % 8 < 4 {
            wait_ms(10);
        }
        reset(s);
    }
    // Sooner than anybody's time is up.
    given_back(&server, before, 100);
}
