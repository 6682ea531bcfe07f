//! Two hosts on one machine: network namespaces joined by a veth pair, over IPv4 and IPv6, with Ethernet's and
//! jumbo packets. Needs root and `ip` (iproute2); without them the test says so and passes: see the list of skips
//! in CONTRIBUTING.md.

#[path = "common/hosts.rs"]
mod hosts;

use hosts::{Hosts, Server};
use std::path::Path;
use std::process::{Command, Stdio};

fn tree(dir: &Path) {
    std::fs::create_dir_all(dir.join("sub")).expect("made");
    let big: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(dir.join("big"), &big).expect("written");
    for n in 0..100 {
        std::fs::write(dir.join("sub").join(format!("{n}")), vec![n as u8; 4096]).expect("written");
    }
}

#[test]
fn files_transfer_between_two_hosts_over_ipv4_and_ipv6() {
    let Some(hosts) = Hosts::new("f", 9_000) else {
        eprintln!("skipped: network namespaces need root and the ip command");
        return;
    };
    let dir = tempfile::tempdir().expect("folder");
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src);
    for (n, (listen, url)) in
        [("10.99.0.2:4460", "longhaul://10.99.0.2/"), ("[fd99::2]:4460", "longhaul://[fd99::2]/")]
            .into_iter()
            .enumerate()
    {
        let to = dst.join(n.to_string());
        std::fs::create_dir_all(&to).expect("made");
        let mut serve = hosts.longhaul(1, &dir.path().join("server"));
        serve.args(["serve", "--json", "--allow-any-key", "--listen", listen]).arg(&to);
        let _server = Server::start(serve);
        let mut put = hosts.longhaul(0, &dir.path().join("client"));
        put.args(["put", "--accept-new", "--quiet"]).arg(&src).arg(url);
        let out = put.stdin(Stdio::null()).output().expect("ran");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let same = Command::new("diff").arg("-r").arg(&src).arg(to.join("src")).output().expect("diff");
        assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    }
}

#[test]
fn jumbo_mtu_is_discovered_and_used() {
    let Some(hosts) = Hosts::new("j", 9_000) else {
        eprintln!("skipped: network namespaces need root and the ip command");
        return;
    };
    let dir = tempfile::tempdir().expect("folder");
    let mut serve = hosts.longhaul(1, &dir.path().join("server"));
    serve.args(["perf", "server", "--json", "--allow-any-key", "--listen", "10.99.0.2:4461"]);
    let _server = Server::start(serve);
    let mut client = hosts.longhaul(0, &dir.path().join("client"));
    client.args(["perf", "client", "10.99.0.2", "--accept-new", "--json", "-n", "64MiB", "--verify"]);
    let out = client.stdin(Stdio::null()).output().expect("ran");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text} {}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let number = |name: &str| report["client"][name].as_f64().expect("a number");
    // 9,000 bytes less 28 of headers, but for what left before the path's size was found.
    let mean = number("payload_sent") / number("packets_sent");
    assert!(mean > 8_000.0, "{mean} bytes a packet: {text}");
}

#[test]
fn next_command_starts_with_the_remembered_path() {
    let Some(hosts) = Hosts::new("k", 9_000) else {
        eprintln!("skipped: network namespaces need root and the ip command");
        return;
    };
    let dir = tempfile::tempdir().expect("folder");
    let (src, dst, home) = (dir.path().join("src"), dir.path().join("dst"), dir.path().join("client"));
    tree(&src);
    std::fs::create_dir_all(&dst).expect("made");
    let mut serve = hosts.longhaul(1, &dir.path().join("server"));
    serve.args(["serve", "--json", "--allow-any-key", "--listen", "10.99.0.2:4462"]).arg(&dst);
    let _server = Server::start(serve);
    let mut relay = hosts.longhaul(1, &dir.path().join("relay"));
    relay.args(["wan", "relay", "--json", "--listen", "10.99.0.2:4463", "--to", "10.99.0.2:4462"]);
    relay.args(["rate=100mbit", "delay=10ms", "queue=1bdp(rtt 20ms)"]);
    let _relay = Server::start(relay);
    let put = || {
        let mut put = hosts.longhaul(0, &home);
        put.args(["put", "--accept-new", "--quiet", "-vv", "--checksum", "--no-resume"]);
        let out = put.arg(&src).arg("longhaul://10.99.0.2:4463/").stdin(Stdio::null()).output().expect("ran");
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{words}");
        words
    };
    const RECALLED: &str = "within the last hour";
    assert!(!put().contains(RECALLED));
    let known = std::fs::read_to_string(home.join("known_paths")).expect("a file");
    let fields: Vec<_> = known.split_whitespace().collect();
    let rate: f64 = fields[1].parse().expect("bits per second");
    let rtt: f64 = fields[2].parse().expect("microseconds");
    assert!(fields[0] == "10.99.0.2" && (80e6..110e6).contains(&rate), "{known}");
    assert!((20e3..60e3).contains(&rtt), "{known}");
    std::fs::remove_dir_all(dst.join("src")).expect("removed");
    assert!(put().contains(RECALLED));
    // A file that others could have written is not believed, and costs nothing else.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(home.join("known_paths"), mode).expect("set");
    std::fs::remove_dir_all(dst.join("src")).expect("removed");
    assert!(!put().contains(RECALLED));
}
