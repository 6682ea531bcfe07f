//! Two servers of one host key: what one of them answers does not end the connections of the other (RFC 9000, section 21.11).

#![allow(
    clippy::disallowed_methods,
    reason = "a test plays somebody on a real path, and waits for other processes"
)]

mod common;

use common::{Bench, Server, bytes, expect};
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Somebody on the path between a client and `server`, who sees what passes and can send as the server.
struct OnPathAttacker {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Resets that were relayed to the client.
    relayed: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl OnPathAttacker {
    /// Passes datagrams on; after each of the client's, asks `oracle` about its connection, and gives the answer to the
    /// client as if the server had sent it.
    fn new(server: SocketAddr, oracle: SocketAddr) -> OnPathAttacker {
        let local = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (front, back, ask) = (local(), local(), local());
        for s in [&front, &back, &ask] {
            s.set_nonblocking(true).unwrap();
        }
        let (stop, relayed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let address = front.local_addr().unwrap();
        let (stopped, count) = (stop.clone(), relayed.clone());
        let pass = move || {
            let (mut client, mut buf) = (None, vec![0; 65_536]);
            while !stopped.load(Ordering::Relaxed) {
                let mut idle = true;
                while let Ok((n, from)) = front.recv_from(&mut buf) {
                    (client, idle) = (Some(from), false);
                    let _ = back.send_to(&buf[..n], server);
                    // Of packets with data keys, the identifier is in clear.
                    if buf[0] & 0x80 == 0 && n >= 9 {
                        let mut question = buf[..9].to_vec();
                        question.resize(100, 0);
                        let _ = ask.send_to(&question, oracle);
                    }
                }
                while let (Ok((n, _)), Some(to)) = (ask.recv_from(&mut buf), client) {
                    idle = false;
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = front.send_to(&buf[..n], to);
                }
                while let (Ok((n, _)), Some(to)) = (back.recv_from(&mut buf), client) {
                    idle = false;
                    let _ = front.send_to(&buf[..n], to);
                }
                if idle {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        };
        OnPathAttacker { address, stop, relayed, thread: Some(std::thread::spawn(pass)) }
    }
}

impl Drop for OnPathAttacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn perf_server(b: &Bench) -> Server {
    Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"])
}

#[test]
fn resets_of_perf_server_do_not_end_transfers_of_serve() {
    let b = Bench::new();
    let (serve, perf) = (b.serve("served", &[]), perf_server(&b));
    fs::write(b.path("f"), bytes(1, 8 << 20)).unwrap();
    let path = OnPathAttacker::new(serve.address.parse().unwrap(), perf.address.parse().unwrap());
    let url = format!("longhaul://{}/", path.address);
    let file = b.path("f");
    let o = b.run(&["put", "--accept-new", "--mtu", "1400", "--limit", "100M", file.to_str().unwrap(), &url]);
    expect(&o, 0);
    assert!(path.relayed.load(Ordering::Relaxed) > 0, "resets were relayed");
    assert!(fs::read(b.path("served/f")).unwrap() == bytes(1, 8 << 20));
}

#[test]
fn resets_of_serve_do_not_end_measurements() {
    let b = Bench::new();
    let (serve, perf) = (b.serve("served", &[]), perf_server(&b));
    let path = OnPathAttacker::new(perf.address.parse().unwrap(), serve.address.parse().unwrap());
    let at = path.address.to_string();
    let o = b.run(&[
        "perf",
        "client",
        &at,
        "--accept-new",
        "--json",
        "--mtu",
        "1400",
        "--limit",
        "100M",
        "-n",
        "8MiB",
    ]);
    expect(&o, 0);
    assert!(path.relayed.load(Ordering::Relaxed) > 0, "resets were relayed");
}

/// Killed and started again in its place, it tells its clients at once, as before.
#[test]
fn restarted_server_resets_clients_of_the_previous_one() {
    let b = Bench::new();
    let mut first = b.serve("served", &[]);
    fs::write(b.path("f"), bytes(1, 64 << 20)).unwrap();
    let (file, url) = (b.path("f"), first.url(""));
    let args = ["put", "--accept-new", "--limit", "20M", file.to_str().unwrap(), &url];
    let client = b.client(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let served = b.path("served");
    let arrives = || fs::read_dir(&served).unwrap().any(|e| e.unwrap().metadata().is_ok_and(|m| m.len() > 0));
    let start = Instant::now();
    while !arrives() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    first.kill();
    let again = b.serve_at("served", &first.address, &[]);
    let o = client.wait_with_output().unwrap();
    expect(&o, 5);
    let said = common::stderr(&o);
    assert!(said.contains("restarted"), "it was told, and did not wait in vain: {said}");
    assert_eq!(again.address, first.address);
}
