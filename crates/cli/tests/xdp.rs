//! Datagrams over AF_XDP between two hosts on one machine. Needs root, `ip` (iproute2) and a kernel with AF_XDP; without
//! them the tests say so and pass: see the list of skips in CONTRIBUTING.md.

#[path = "common/hosts.rs"]
mod hosts;

use hosts::{Hosts, Server};
use std::path::Path;
use std::process::{Command, Stdio};

const AT_WORK: &str = "AF_XDP carries datagrams";
const NOT_USED: &str = "AF_XDP is not used";

fn made(tag: &str, mtu: u32) -> Option<Hosts> {
    with_queues(tag, mtu, [1, 1])
}

fn with_queues(tag: &str, mtu: u32, queues: [u32; 2]) -> Option<Hosts> {
    let hosts = Hosts::with(tag, mtu, queues);
    if hosts.is_none() {
        eprintln!("skipped: network namespaces need root and the ip command");
    }
    hosts
}

/// Whether there is an XDP program on the interface of a host.
fn attached(hosts: &Hosts, host: usize) -> bool {
    let args = ["-n", &hosts.names[host], "link", "show", &hosts.devices[host]];
    let out = Command::new("ip").args(args).output().expect("ip");
    assert!(out.status.success());
    String::from_utf8_lossy(&out.stdout).contains("prog/xdp")
}

// Another process is waited for.
#[allow(clippy::disallowed_methods)]
fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..500 {
        if so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("waited in vain until {what}");
}

/// A server of measurements on host 1 that ends after one.
fn server(hosts: &Hosts, home: &Path, listen: &str, way: &str) -> Server {
    let mut c = hosts.longhaul(1, home);
    c.args(["perf", "server", "--json", "--allow-any-key", "--listen", listen, "--datapath", way]);
    Server::start(c)
}

/// Measures from host 0 and compares what arrived. Returns what was said.
fn measure(mut c: Command, home: &Path, to: &str, way: &str, more: &[&str]) -> String {
    c.env("LONGHAUL_HOME", home);
    c.args(["-v", "perf", "client", to, "--accept-new", "--json", "--verify", "-i", "0", "--datapath", way]);
    let out = c.args(more).stdin(Stdio::null()).output().expect("ran");
    let (said, words) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said} {words}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["verified"], true, "{said}");
    words.into_owned()
}

/// Whether the kernel has AF_XDP at all: then everything else must work.
fn possible(hosts: &Hosts) -> bool {
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(hosts, &dir.path().join("server"), "10.99.0.2:4460", "udp");
    let client = hosts.longhaul(0, dir.path());
    let words = measure(client, &dir.path().join("client"), "10.99.0.2:4460", "xdp", &["-n", "64KiB"]);
    if words.contains("this kernel has no AF_XDP") {
        eprintln!("skipped: {words}");
        return false;
    }
    assert!(words.contains(AT_WORK), "{words}");
    true
}

#[test]
fn data_transfers_with_af_xdp_at_either_end_or_both() {
    let Some(hosts) = made("x", 1_500) else { return };
    if !possible(&hosts) {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let (ours, theirs) = (dir.path().join("client"), dir.path().join("server"));
    let named = format!("xdp:{}", hosts.devices[1]);
    for (at_server, at_client) in [(named.as_str(), "xdp"), ("xdp", "udp"), ("udp", "xdp")] {
        for address in ["10.99.0.2:4461", "[fd99::2]:4461"] {
            for back in [&["-n", "32MiB"][..], &["-n", "32MiB", "--reverse"]] {
                let server = server(&hosts, &theirs, address, at_server);
                let words = measure(hosts.longhaul(0, &ours), &ours, address, at_client, back);
                let name = format!("{at_server} {at_client} {address} {back:?}");
                assert_eq!(words.contains(AT_WORK), at_client == "xdp", "{name}: {words}");
                assert!(!words.contains(NOT_USED), "{name}: {words}");
                // A server that was not told where finds out by its first answer.
                assert_eq!(attached(&hosts, 1), at_server != "udp", "{name}");
                assert!(!attached(&hosts, 0), "{name}: gone with the client");
                drop(server);
                wait_until("the program is gone", || !attached(&hosts, 1));
            }
        }
    }
}

#[test]
fn xdp_server_on_all_addresses_serves_both_families_and_loopback() {
    let Some(hosts) = made("y", 1_500) else { return };
    if !possible(&hosts) {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let (ours, theirs) = (dir.path().join("client"), dir.path().join("server"));
    let _server = server(&hosts, &theirs, "[::]:4461", &format!("xdp:{}", hosts.devices[1]));
    for address in ["10.99.0.2:4461", "[fd99::2]:4461"] {
        let words = measure(hosts.longhaul(0, &ours), &ours, address, "xdp", &["-n", "1MiB"]);
        assert!(words.contains(AT_WORK), "{words}");
    }
    let words = measure(hosts.longhaul(1, &ours), &ours, "127.0.0.1:4461", "xdp", &["-n", "1MiB"]);
    assert!(words.contains("they do not leave this machine"), "{words}");
}

#[test]
fn kernel_packets_are_received_beside_xdp_frames() {
    let Some(hosts) = made("s", 1_500) else { return };
    if !possible(&hosts) {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let (ours, theirs) = (dir.path().join("client"), dir.path().join("server"));
    let mut c = hosts.longhaul(1, &theirs);
    let way = format!("xdp:{}", hosts.devices[1]);
    c.args(["perf", "server", "--json", "--allow-any-key", "--listen", "[::]:4461", "--poll", "spin"]);
    c.args(["--datapath", &way]);
    let _server = Server::start(c);
    // One message at a time, to and fro, between two ends that look on.
    let mut c = hosts.longhaul(0, &ours);
    c.args(["-v", "perf", "client", "10.99.0.2:4461", "--accept-new", "--json", "-i", "0", "-t", "4s"]);
    c.args(["-l", "-s", "4", "--poll", "spin", "--datapath", "xdp"]);
    let players = c.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().expect("ran");
    // Meanwhile another one connects from the server's own machine, whose packets are never frames.
    let others = dir.path().join("other");
    let words = measure(hosts.longhaul(1, &others), &others, "127.0.0.1:4461", "udp", &["-n", "1MiB"]);
    assert!(!words.contains(AT_WORK), "{words}");
    let out = players.wait_with_output().expect("ended");
    let (said, words) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && words.contains(AT_WORK), "{said} {words}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(report["messages"].as_u64() > Some(1_000), "{said}");
}

#[test]
fn xdp_runs_in_generic_mode_and_over_several_queues() {
    // veth refuses the program where the other end sends over more queues than there are to receive in.
    for (tag, queues, hook) in
        [("g", [3, 1], "queues=1 hook=\"generic\""), ("q", [3, 3], "queues=3 hook=\"native\"")]
    {
        let Some(hosts) = with_queues(tag, 1_500, queues) else { return };
        if !possible(&hosts) {
            return;
        }
        let dir = tempfile::tempdir().expect("folder");
        let (ours, theirs) = (dir.path().join("client"), dir.path().join("server"));
        for back in [&["-n", "16MiB"][..], &["-n", "16MiB", "--reverse"]] {
            // The program is on host 1, where the client runs now; host 0's kernel sends super-packets.
            let mut c = hosts.longhaul(0, &theirs);
            c.args(["perf", "server", "--json", "--allow-any-key", "--listen", "10.99.0.1:4461"]);
            let _server = Server::start(c);
            let words = measure(hosts.longhaul(1, &ours), &ours, "10.99.0.1:4461", "xdp", back);
            assert!(words.contains(hook), "{words}");
        }
    }
}

#[test]
fn xdp_program_is_detached_when_the_process_is_killed() {
    let Some(hosts) = made("z", 1_500) else { return };
    if !possible(&hosts) {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let way = format!("xdp:{}", hosts.devices[1]);
    let mut server = server(&hosts, dir.path(), "10.99.0.2:4461", &way);
    assert!(attached(&hosts, 1));
    // Only one can have the interface; the other says so and does without.
    let second = self::server(&hosts, dir.path(), "10.99.0.2:4462", &way);
    let ours = dir.path().join("client");
    let words = measure(hosts.longhaul(0, &ours), &ours, "10.99.0.2:4462", "udp", &["-n", "1MiB"]);
    assert!(!words.contains(NOT_USED), "{words}");
    drop(second);
    // SIGKILL: nothing of ours runs any more.
    server.0.kill().expect("killed");
    wait_until("the program is gone", || !attached(&hosts, 1));
}

#[test]
fn without_xdp_the_kernel_is_used_with_one_warning() {
    let Some(hosts) = made("w", 9_000) else { return };
    let dir = tempfile::tempdir().expect("folder");
    let (ours, theirs) = (dir.path().join("client"), dir.path().join("server"));
    let _server = server(&hosts, &theirs, "10.99.0.2:4461", "udp");
    let bytes = ["-n", "1MiB"];
    for (way, reason) in
        [("xdp:lo", "lo is not Ethernet"), ("xdp:nothing", "no interface `nothing`"), ("xdp", "the MTU of")]
    {
        let words = measure(hosts.longhaul(0, &ours), &ours, "10.99.0.2:4461", way, &bytes);
        assert!(words.contains(reason), "{way}: {words}");
        assert_eq!(words.matches(NOT_USED).count(), 1, "{way}: {words}");
    }
    // Without the capabilities, as any user has it.
    let mut c = Command::new("ip");
    c.args(["netns", "exec", &hosts.names[0], "setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]);
    c.arg(env!("CARGO_BIN_EXE_longhaul"));
    assert!(hosts::ip(&["-n", &hosts.names[0], "link", "set", &hosts.devices[0], "mtu", "1500"]));
    let words = measure(c, &ours, "10.99.0.2:4461", "xdp", &bytes);
    assert!(words.contains("is not permitted: it needs root"), "{words}");
    assert_eq!(words.matches(NOT_USED).count(), 1, "{words}");
}
