//! Policies and algorithms that change all the time while data moves.

use crate::common::{expect, json};
use crate::net::{EmulatedNetwork, deliveries, flows, marked, pause, start};
use admin::proto::{Request, Response};
use lab::TopologySpec;
use std::fs;

/// Changes during one transfer.
const CHANGES: usize = 1_000;
/// Round trip of the empty path.
const RTT_MS: u64 = 60;

/// A policy by which all flows run `algorithm`, with at most `cap`.
fn policy(algorithm: &str, cap: &str) -> String {
    format!("[default]\nalgorithm = \"{algorithm}\"\ncap = \"{cap}\"\n")
}

/// Item 4 of what the platform has to show: how long nothing arrives is counted by the path, to a millisecond.
#[test]
fn thousand_changes_under_64_streams_lose_no_data_and_block_nobody() {
    let link = format!("rate=200mbit delay={}ms queue=1bdp(rtt {RTT_MS}ms)", RTT_MS / 2);
    let path = TopologySpec::Path { forward: link.as_str().into(), reverse: None };
    let Some(mut net) = EmulatedNetwork::every_ms("changes", &path) else { return };
    let server = net.serve("b", &["perf", "server", "--no-control"]);
    let first = net.path("first.toml");
    fs::write(&first, policy("cubic", "180M")).unwrap();
    let what = ["perf", "client", &server.address, "--accept-new", "--discover", "off", "--json", "--verify"];
    let load = ["-P", "64", "-s", "64KiB", "--region", "1MiB", "-n", "384MiB", "--policy"];
    let args = [&what[..], &load, &[first.to_str().unwrap()]].concat();
    let child = start(net.longhaul("a", "client", &args));
    let mut c = net.process();
    while flows(&mut c).first().is_none_or(|f| f.delivered_bytes <= 16 << 20) {
        pause();
    }
    net.lab.mark("begin").unwrap();
    let mut longest = 0.0_f64;
    for i in 0..CHANGES {
        let algorithm = ["haul", "cubic", "bbr", "copa", "reno", "vegas"][i % 6];
        let f = flows(&mut c).into_iter().next().expect("it runs");
        longest = longest.max(f.srtt_seconds);
        let request = match i % 4 {
            // A whole policy, one flow's algorithm, one flow's cap, and none.
            0 => Request::SetPolicy {
                text: policy(algorithm, ["150M", "180M", "1G"][i % 3]),
                path: String::new(),
            },
            n => Request::SetFlow {
                flow: f.id.parse().unwrap(),
                algorithm: (n == 1).then(|| algorithm.to_owned()),
                cap_bits_per_second: (n > 1).then_some(if n == 2 { 100_000_000 } else { 0 }),
            },
        };
        match c.request(&request) {
            Ok(Response::Done { .. }) => {}
            other => panic!("change {i}: {other:?}"),
        }
        pause();
    }
    let after = flows(&mut c);
    assert!(after.iter().all(|f| f.delivered_bytes < 384 << 20), "{after:?}");
    net.lab.mark("end").unwrap();
    drop(c);
    let o = child.wait_with_output().unwrap();
    expect(&o, 0);
    let r = json(&o);
    assert_eq!((r["verified"].as_bool(), r["bytes"].as_u64()), (Some(true), Some(384 << 20)));
    let to = server.address.clone();
    drop(server);
    let records = net.records();
    let (begin, end) = (marked(&records, "begin"), marked(&records, "end"));
    let (mut last, mut pause_ns, mut count) = (begin, 0, 0);
    for (at, sums) in deliveries(&records).into_iter().filter(|(at, _)| (begin..=end).contains(at)) {
        let sum = sums.get(&to).copied().unwrap_or(0);
        if sum > count {
            (pause_ns, last, count) = (pause_ns.max(at - last), at, sum);
        }
    }
    println!(
        "{CHANGES} changes in {:.1} s: nothing arrived for {:.1} ms at most; round trips of {RTT_MS} to {:.0} ms",
        (end - begin) as f64 / 1e9,
        pause_ns as f64 / 1e6,
        longest * 1e3
    );
}
