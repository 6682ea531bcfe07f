//! Two hosts on one machine: network namespaces joined by a veth pair.

// Each test file uses its part.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Namespaces of one test, gone when it ends, however it ends.
pub struct Hosts {
    pub names: [String; 2],
    /// Their interfaces.
    pub devices: [String; 2],
}

pub fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

impl Hosts {
    /// Called 10.99.0.1 and fd99::1, 10.99.0.2 and fd99::2. `None` where they cannot be made.
    pub fn new(tag: &str, mtu: u32) -> Option<Hosts> {
        Hosts::with(tag, mtu, [1, 1])
    }

    /// With these numbers of queues at each end, to send and to receive.
    pub fn with(tag: &str, mtu: u32, queues: [u32; 2]) -> Option<Hosts> {
        let names = ["a", "b"].map(|e| format!("lh{}{tag}{e}", std::process::id()));
        let devices = ["a", "b"].map(|e| format!("{tag}{e}{}", std::process::id()));
        let hosts = Hosts { names, devices };
        let ([a, b], [va, vb]) = (&hosts.names, &hosts.devices);
        let [qa, qb] = &queues.map(|n| n.to_string());
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&[
                &["link", "add", va, "netns", a, "numtxqueues", qa, "numrxqueues", qa, "type", "veth"][..],
                &["peer", "name", vb, "netns", b, "numtxqueues", qb, "numrxqueues", qb],
            ]
            .concat());
        if !made {
            return None;
        }
        for (ns, dev, n) in [(a, va, 1), (b, vb, 2)] {
            let (v4, v6) = (format!("10.99.0.{n}/24"), format!("fd99::{n}/64"));
            assert!(ip(&["-n", ns, "addr", "add", &v4, "dev", dev]));
            assert!(ip(&["-n", ns, "addr", "add", &v6, "dev", dev, "nodad"]));
            assert!(ip(&["-n", ns, "link", "set", dev, "mtu", &mtu.to_string(), "up"]));
            assert!(ip(&["-n", ns, "link", "set", "lo", "up"]));
        }
        Some(hosts)
    }

    /// The program on a host.
    pub fn longhaul(&self, host: usize, home: &Path) -> Command {
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_longhaul")]);
        c.env("LONGHAUL_HOME", home);
        c
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for n in &self.names {
            ip(&["netns", "del", n]);
        }
    }
}

/// A server that ends with the test.
pub struct Server(pub Child);

impl Server {
    pub fn start(c: Command) -> Server {
        Server::start_told(c).0
    }

    /// And where it listens.
    pub fn start_told(mut c: Command) -> (Server, String) {
        let mut child = c.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("started");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line when ready");
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        (Server(child), ready["listening"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
