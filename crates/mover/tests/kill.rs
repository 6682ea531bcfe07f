//! Either end is killed (SIGKILL) at random moments; `put` again ends with identical files and sends little again.

mod common;

use base::Rng;
use common::{noise, put, same, serve_here};
use longhaul_mover::{ServeOptions, TransferOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Tells this binary, run again as a child, which end to play.
const ROLE: &str = "LONGHAUL_TEST_ROLE";
const FILES: usize = 10;
const SIZE: usize = 12 << 20;

/// Not a test by itself: what a child does.
#[test]
fn child() {
    match std::env::var(ROLE).as_deref().map(|r| r.split_once(' ').unwrap()) {
        Ok(("serve", dir)) => serve_here(ServeOptions::new(dir), 0, |a, _, _| eprintln!("AT {a}")),
        Ok(("put", args)) => {
            let (addr, dir) = args.split_once(' ').unwrap();
            let report = |p: longhaul_mover::Progress, _| {
                std::thread::spawn(move || {
                    let mut last = u64::MAX;
                    while p.outcome().is_none() {
                        let now = p.snapshot().bytes_done;
                        if now != last {
                            eprintln!("AT {now}");
                            last = now;
                        }
                        std::thread::yield_now();
                    }
                });
            };
            let o = TransferOptions::default();
            common::put_with(addr.parse().unwrap(), Path::new(dir), "", o, report).unwrap();
        }
        _ => {}
    }
}

/// Starts a child; its lines that begin with `AT ` are what it tells.
fn start(role: String) -> (Child, impl Iterator<Item = String>) {
    let mut c = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(c.stderr.take().unwrap()).lines().map_while(Result::ok);
    (c, lines.filter_map(|l| l.strip_prefix("AT ").map(str::to_owned)))
}
fn start_server(dir: &Path) -> (Child, SocketAddr) {
    let (mut c, mut lines) = start(format!("serve {}", dir.display()));
    match lines.next() {
        Some(a) => {
            // Keeps reading, so that the child never waits for room in the pipe.
            std::thread::spawn(move || lines.count());
            (c, a.parse().unwrap())
        }
        None => panic!("the server did not start: {:?}", c.wait()),
    }
}

fn killed_again_and_again(kill_server: bool) {
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let t = from.path().join("t");
    std::fs::create_dir(&t).unwrap();
    for i in 0..FILES {
        std::fs::write(t.join(i.to_string()), noise(i as u64, SIZE)).unwrap();
    }
    let total = (FILES * SIZE) as u64;
    let mut rng = Rng::from_u64(11);
    let (mut server, mut addr) = start_server(served.path());
    for round in 1..=4u64 {
        // Verified bytes after which the blow falls: anywhere in the next fifth.
        let at = total * round / 6 + u64::from(rng.u32()) % (total / 6);
        let (mut client, lines) = start(format!("put {addr} {}", t.display()));
        for l in lines {
            if l.parse::<u64>().unwrap() >= at {
                break;
            }
        }
        let victim = if kill_server { &mut server } else { &mut client };
        victim.kill().unwrap();
        victim.wait().unwrap();
        if kill_server {
            // The client would wait for its idle time-out.
            client.kill().unwrap();
            client.wait().unwrap();
            (server, addr) = start_server(served.path());
        }
    }
    let done: u64 = total * 4 / 6;
    let r = put(addr, &t, "").unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    assert!(
        r.progress.bytes_moved <= (total - done) + total / 20,
        "{} bytes were sent although {done} of {total} were verified",
        r.progress.bytes_moved
    );
    same(&t, &served.path().join("t"));
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_killed_server_loses_nothing_that_was_acknowledged() {
    killed_again_and_again(true);
}

#[test]
fn a_killed_client_loses_nothing_that_was_acknowledged() {
    killed_again_and_again(false);
}
