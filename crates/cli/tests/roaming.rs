//! Addresses that are found, and that change while a transfer runs: network namespaces joined by one or two veth pairs.
//! Needs root and `ip` (iproute2); without them each test says so and passes: see the list of skips in CONTRIBUTING.md.

#[path = "common/hosts.rs"]
mod hosts;

use hosts::{Hosts, Server, ip};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes that are moved.
const SIZE: u32 = 24_000_000;
/// So that it takes some seconds, in which something can happen.
const LIMIT: &str = "64mbit";
/// Looks for the first bytes at most, 10 ms apart.
const LOOKS: u32 = 3_000;

/// Two hosts, a served folder, a file to move, and where it is to be.
struct TwoHosts {
    hosts: Hosts,
    dir: tempfile::TempDir,
}

impl TwoHosts {
    fn new(tag: &str) -> Option<TwoHosts> {
        let Some(hosts) = Hosts::new(tag, 1_500) else {
            eprintln!("skipped: network namespaces need root and the ip command");
            return None;
        };
        let dir = tempfile::tempdir().expect("folder");
        let bytes: Vec<u8> = (0..SIZE).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        std::fs::create_dir_all(dir.path().join("there")).expect("made");
        std::fs::create_dir_all(dir.path().join("here")).expect("made");
        std::fs::write(dir.path().join("big"), bytes).expect("written");
        Some(TwoHosts { hosts, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `ip` in a host's namespace.
    fn ip(&self, host: usize, words: &str) {
        let ns = &self.hosts.names[host];
        let args: Vec<&str> = ["-n", ns].into_iter().chain(words.split_whitespace()).collect();
        assert!(ip(&args), "ip {args:?}");
    }

    /// A second veth pair; no addresses yet.
    fn join_again(&self) -> [String; 2] {
        let [a, b] = &self.hosts.names;
        let devices = self.hosts.devices.clone().map(|d| format!("{d}x"));
        let [va, vb] = &devices;
        assert!(ip(&["link", "add", va, "netns", a, "type", "veth", "peer", "name", vb, "netns", b]));
        self.ip(0, &format!("link set {va} up"));
        self.ip(1, &format!("link set {vb} up"));
        devices
    }

    fn address_again(&self, devices: &[String; 2]) {
        self.ip(0, &format!("addr add 10.98.0.1/24 dev {}", devices[0]));
        self.ip(1, &format!("addr add 10.98.0.2/24 dev {}", devices[1]));
    }

    /// IPv4 over the first pair and IPv6 over another one, and nothing else; the client's IPv6 address only if `both`.
    fn one_family_each(&self, both: bool) -> [String; 2] {
        let devices = self.join_again();
        for (host, (first, second)) in self.hosts.devices.iter().zip(&devices).enumerate() {
            let n = host + 1;
            self.ip(host, &format!("addr del fd99::{n}/64 dev {first}"));
            if host == 1 || both {
                self.ip(host, &format!("addr add fd98::{n}/64 dev {second} nodad"));
            }
        }
        devices
    }

    fn serve(&self, folder: &str) -> Server {
        self.serve_at("0.0.0.0:4460", folder)
    }

    fn serve_at(&self, listen: &str, folder: &str) -> Server {
        let mut serve = self.hosts.longhaul(1, &self.path("server"));
        serve.args(["serve", "--json", "--allow-any-key", "--listen", listen]);
        Server::start({
            serve.arg(self.path(folder));
            serve
        })
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut c: Command = self.hosts.longhaul(0, &self.path("client"));
        c.args(words).args(["--accept-new", "--quiet", "--json", "-v", "--limit", LIMIT]);
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c.spawn().expect("started")
    }

    fn put(&self) -> Child {
        self.start(&["put", &self.path("big").display().to_string(), "longhaul://10.99.0.2/"])
    }

    /// Waits until something has arrived in a folder.
    fn until_it_runs(&self, folder: &str) {
        let folder = self.path(folder);
        let begun = |dir: &Path| std::fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some());
        assert!((0..LOOKS).any(|_| begun(&folder) || {
            rest(10);
            false
        }));
        // And some more.
        rest(500);
    }

    /// The report of a command that went well, and what it said.
    fn finish(&self, child: Child, folder: &str) -> (Value, String) {
        let out = child.wait_with_output().expect("ran");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        let same = std::fs::read(self.path("big")).expect("read")
            == std::fs::read(self.path(folder).join("big")).expect("arrived");
        assert!(same, "what arrived differs");
        (serde_json::from_slice(&out.stdout).expect("JSON"), said)
    }
}

/// Of each path of a report: its address here, whether it was found, bytes sent and received.
fn paths(report: &Value) -> Vec<(String, bool, u64)> {
    let one = |p: &Value| {
        let carried =
            p["bytes_sent"].as_u64().expect("sent") + p["bytes_received"].as_u64().expect("received");
        (p["local"].as_str().unwrap_or_default().to_owned(), p["discovered"] == true, carried)
    };
    report["connection"]["paths"].as_array().expect("paths").iter().map(one).collect()
}

#[test]
fn client_with_one_address_discovers_and_uses_the_second_path() {
    let Some(s) = TwoHosts::new("ra") else { return };
    let devices = s.join_again();
    s.address_again(&devices);
    let _server = s.serve("there");
    let (report, said) = s.finish(s.put(), "there");
    let p = paths(&report);
    assert_eq!(p.len(), 2, "{p:?} {said}");
    assert_eq!((p[0].0.as_str(), p[0].1), ("10.99.0.1", false), "{p:?}");
    assert_eq!((p[1].0.as_str(), p[1].1), ("10.98.0.1", true), "{p:?}");
    assert!(p.iter().all(|p| p.2 > u64::from(SIZE) / 20), "{p:?} {said}");
    assert!(said.contains("a path is added"), "{said}");
}

#[test]
fn discover_off_adds_no_paths() {
    let Some(s) = TwoHosts::new("ro") else { return };
    let devices = s.join_again();
    s.address_again(&devices);
    let _server = s.serve("there");
    let big = s.path("big").display().to_string();
    let child = s.start(&["put", &big, "longhaul://10.99.0.2/", "--discover", "off"]);
    let (report, said) = s.finish(child, "there");
    assert_eq!(paths(&report).len(), 1, "{said}");
}

#[test]
fn transfer_survives_loss_of_an_address_or_interface() {
    for (tag, found_goes) in [("rb", true), ("rc", false)] {
        let Some(s) = TwoHosts::new(tag) else { return };
        let devices = s.join_again();
        s.address_again(&devices);
        let _server = s.serve("there");
        let put = s.put();
        s.until_it_runs("there");
        if found_goes {
            s.ip(0, &format!("addr del 10.98.0.1/24 dev {}", devices[0]));
        } else {
            s.ip(0, &format!("link set {} down", s.hosts.devices[0]));
        }
        let (report, said) = s.finish(put, "there");
        assert!(said.contains("a path is down"), "{said}");
        assert_eq!(report["code"], 0);
    }
}

#[test]
fn transfer_continues_when_the_only_address_is_replaced() {
    for (tag, get) in [("rp", false), ("rg", true)] {
        let Some(s) = TwoHosts::new(tag) else { return };
        let (from, to) = if get { ("", "here") } else { ("there", "there") };
        let _server = s.serve(from);
        let here = s.path("here").display().to_string();
        let child = if get { s.start(&["get", "longhaul://10.99.0.2/big", &here]) } else { s.put() };
        s.until_it_runs(to);
        let dev = s.hosts.devices[0].clone();
        s.ip(0, &format!("addr del 10.99.0.1/24 dev {dev}"));
        rest(300);
        s.ip(0, &format!("addr add 10.99.0.77/24 dev {dev}"));
        let (report, said) = s.finish(child, to);
        let p = paths(&report);
        assert_eq!((p.len(), p[0].0.as_str()), (1, "10.99.0.77"), "{p:?} {said}");
        assert!(said.contains("goes on from another address"), "{said}");
    }
}

#[test]
fn addresses_that_appear_during_a_transfer_become_paths() {
    let Some(s) = TwoHosts::new("rv") else { return };
    let devices = s.join_again();
    let _server = s.serve("there");
    let put = s.put();
    s.until_it_runs("there");
    s.address_again(&devices);
    let (report, said) = s.finish(put, "there");
    let p = paths(&report);
    assert_eq!(p.len(), 2, "{p:?} {said}");
    assert_eq!((p[1].0.as_str(), p[1].1), ("10.98.0.1", true), "{p:?}");
    assert!(p[1].2 > u64::from(SIZE) / 100, "{p:?} {said}");
}

#[test]
fn client_with_ipv4_and_ipv6_on_two_networks_uses_both() {
    let Some(s) = TwoHosts::new("rf") else { return };
    s.one_family_each(true);
    let _server = s.serve_at("[::]:4460", "there");
    let big = s.path("big").display().to_string();
    for url in ["longhaul://10.99.0.2/", "longhaul://[fd98::2]/"] {
        let (report, said) = s.finish(s.start(&["put", &big, url, "--no-resume"]), "there");
        let mut p = paths(&report);
        p.sort();
        assert_eq!(p.len(), 2, "{p:?} {said}");
        assert_eq!([&p[0].0, &p[1].0], ["10.99.0.1", "fd98::1"], "{p:?}");
        assert!(p.iter().all(|p| p.2 > u64::from(SIZE) / 20), "{url}: {p:?} {said}");
        std::fs::remove_file(s.path("there/big")).expect("removed");
    }
    // Named, and not found.
    let words = ["put", &big, "longhaul://10.99.0.2/", "--discover", "off", "--path", "fd98::1,fd98::2"];
    let (report, said) = s.finish(s.start(&words), "there");
    let p = paths(&report);
    assert_eq!((p.len(), p[1].0.as_str(), p[1].1), (2, "fd98::1", false), "{p:?} {said}");
    assert!(p.iter().all(|p| p.2 > u64::from(SIZE) / 20), "{p:?} {said}");
}

#[test]
fn path_of_the_other_family_carries_the_rest_when_one_is_cut() {
    for (tag, get, v4_goes) in
        [("rh", false, true), ("ri", false, false), ("rj", true, true), ("rk", true, false)]
    {
        let Some(s) = TwoHosts::new(tag) else { return };
        let devices = s.one_family_each(true);
        let (from, to) = if get { ("", "here") } else { ("there", "there") };
        let _server = s.serve_at("[::]:4460", from);
        let here = s.path("here").display().to_string();
        let child = if get { s.start(&["get", "longhaul://10.99.0.2/big", &here]) } else { s.put() };
        s.until_it_runs(to);
        let gone = if v4_goes { &s.hosts.devices[0] } else { &devices[0] };
        s.ip(0, &format!("link set {gone} down"));
        let (report, said) = s.finish(child, to);
        assert!(said.contains("a path is down"), "{said}");
        let other = if v4_goes { "fd98::1" } else { "10.99.0.1" };
        let p = paths(&report);
        let carried = p.iter().find(|p| p.0 == other).map_or(0, |p| p.2);
        assert!(carried > u64::from(SIZE) / 4, "{tag}: {p:?} {said}");
    }
}

#[test]
fn transfer_roams_from_ipv4_to_ipv6_and_back() {
    let Some(s) = TwoHosts::new("rl") else { return };
    let devices = s.one_family_each(false);
    let _server = s.serve_at("[::]:4460", "there");
    let put = s.put();
    s.until_it_runs("there");
    let dev = s.hosts.devices[0].clone();
    s.ip(0, &format!("addr del 10.99.0.1/24 dev {dev}"));
    rest(300);
    s.ip(0, &format!("addr add fd98::1/64 dev {} nodad", devices[0]));
    rest(500);
    s.ip(0, &format!("addr del fd98::1/64 dev {}", devices[0]));
    rest(300);
    s.ip(0, &format!("addr add 10.99.0.1/24 dev {dev}"));
    let (report, said) = s.finish(put, "there");
    let p = paths(&report);
    assert_eq!((p.len(), p[0].0.as_str()), (1, "10.99.0.1"), "{p:?} {said}");
    assert_eq!(said.matches("goes on from another address").count(), 2, "{said}");
}

#[test]
fn other_family_on_the_same_interface_is_a_backup() {
    let Some(s) = TwoHosts::new("rm") else { return };
    let _server = s.serve_at("[::]:4460", "there");
    let put = s.put();
    s.until_it_runs("there");
    let all = |host: usize| format!("addr del 10.99.0.{}/24 dev {}", host + 1, s.hosts.devices[host]);
    s.ip(0, &all(0));
    let (report, said) = s.finish(put, "there");
    let p = paths(&report);
    assert!(said.contains("backup=true"), "{said}");
    // The backup, or the first one, where that was faster: neighbours may take a second to be found.
    let carried = p.iter().filter(|p| p.0 == "fd99::1").map(|p| p.2).max();
    assert!(carried > Some(u64::from(SIZE) / 4), "{p:?} {said}");
}

fn rest(ms: u64) {
    let (_open, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(std::time::Duration::from_millis(ms));
}
