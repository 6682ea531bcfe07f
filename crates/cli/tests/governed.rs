//! What administrators change while data moves: nothing is lost, nothing waits for them, and one word reaches all.

mod common;
#[path = "common/control_bench.rs"]
mod control_bench;

use admin::client::Client;
use admin::proto::{Flow, Request, Response};
use common::{Server, expect, json, longhaul, stderr};
use control_bench::ControlBench;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Changes during one transfer.
const CHANGES: usize = 1_000;
/// Waits of 10 ms in one test.
const MAX_PAUSES: u32 = 12_000;
/// Round trip of the emulated path, in milliseconds.
const RTT: u64 = 60;

impl ControlBench {
    /// The process that listens here, once it does.
    fn process(&self) -> Client {
        loop {
            if let Some(Ok(c)) = admin::client::all(&self.run).into_iter().next() {
                return c;
            }
            pause();
        }
    }
    /// A path with a delay to `server`.
    fn relay(&self, server: &Server, rate: &str) -> Server {
        let rate = format!("rate={rate}");
        let (half, listen) = (format!("delay={}ms", RTT / 2), ["--listen", "127.0.0.1:0", "--to"]);
        let link = [&rate, &half, "queue=2bdp", "mtu=1500B"];
        let args =
            [&["wan", "relay", "--json", "--seed", "1"], &listen[..], &[&server.address], &link[..]].concat();
        Server::start(&self.bench.client, &args)
    }
}

std::thread_local! {
    static PAUSES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Lets another process go on. What never comes is an error after some minutes of a test.
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
fn pause() {
    PAUSES.set(PAUSES.get() + 1);
    assert!(PAUSES.get() < MAX_PAUSES, "what is waited for does not come");
    std::thread::sleep(std::time::Duration::from_millis(10));
}

fn flows(c: &mut Client) -> Vec<Flow> {
    match c.request(&Request::Flows) {
        Ok(Response::Flows { flows, .. }) => flows,
        other => panic!("{other:?}"),
    }
}

/// Waits until a process has flows that have carried something.
fn moving(c: &mut Client) -> Vec<Flow> {
    loop {
        let all = flows(c);
        if all.iter().any(|f| f.delivered_bytes > 1 << 20) {
            return all;
        }
        pause();
    }
}

fn finish(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

fn start(mut c: Command) -> Child {
    c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A policy by which all flows run `algorithm`, with at most `cap`.
fn policy(algorithm: &str, cap: &str) -> String {
    format!(
        "[default]\nalgorithm = \"{algorithm}\"\n\n[[rule]]\nname = \"all of {algorithm}\"\nmatch = {{}}\ncap = \"{cap}\"\n"
    )
}

#[test]
fn thousand_changes_under_64_streams_lose_no_data() {
    let d = ControlBench::new();
    // The control socket of the server is not what is looked for.
    let listen = ["--listen", "127.0.0.1:0", "--arrivals", "--count", "1", "--no-control"];
    let mut server = Server::start(&d.bench.server, &[&["perf", "server", "--json"][..], &listen].concat());
    let relay = d.relay(&server, "400mbit");
    let first = d.file("first.toml", &policy("cubic", "350M"));
    let what = ["perf", "client", &relay.address, "--accept-new", "--json", "--verify", "--policy", &first];
    let load = ["-P", "64", "-s", "64KiB", "--region", "1MiB", "-n", "640MiB"];
    let child = start(d.client(&[&what[..], &load].concat()));
    let mut c = d.process();
    let before = moving(&mut c);
    assert!(before.iter().all(|f| f.algorithm == "cubic" && f.rule == "all of cubic"), "{before:?}");
    let mut done = 0;
    for i in 0..CHANGES {
        let algorithm = ["haul", "cubic", "bbr", "copa", "reno", "vegas"][i % 6];
        let request = match i % 4 {
            // A whole policy, one flow's algorithm, one flow's cap, and none.
            0 => Request::SetPolicy {
                text: policy(algorithm, ["300M", "350M", "10G"][i % 3]),
                path: String::new(),
            },
            n => Request::SetFlow {
                flow: before[0].id.parse().unwrap(),
                algorithm: (n == 1).then(|| algorithm.to_owned()),
                cap_bits_per_second: (n > 1).then_some(if n == 2 { 200_000_000 } else { 0 }),
            },
        };
        match c.request(&request) {
            Ok(Response::Done { .. }) => done += 1,
            other => panic!("change {i}: {other:?}"),
        }
    }
    // All of them were made while it ran.
    assert_eq!(done, CHANGES);
    let after = flows(&mut c);
    assert!(after.iter().all(|f| f.delivered_bytes < 640 << 20), "{after:?}");
    drop(c);
    let o = finish(child);
    expect(&o, 0);
    let r = json(&o);
    assert_eq!((r["verified"].as_bool(), r["bytes"].as_u64()), (Some(true), Some(640 << 20)));
    let arrivals = server.next_line();
    let steps = arrivals["bytes_per_interval"].as_array().expect("arrivals");
    // Before the data come the plan of the measurement and memory for it, over a round trip and more: none of that counts.
    let began = steps.iter().position(|s| s.as_u64() >= Some(1 << 16)).unwrap_or(0);
    let gaps = steps[began..].split(|s| s.as_u64() != Some(0)).map(<[_]>::len);
    let idle = gaps.max().unwrap_or(0) as u64;
    let step = arrivals["interval_ns"].as_u64().unwrap() / 1_000_000;
    println!(
        "{CHANGES} changes in {} s; nothing arrived for {} ms at most, with round trips of {RTT} ms at least",
        r["seconds"],
        (idle + 1) * step,
    );
    drop(relay);
}

#[test]
fn running_flows_are_shown_changed_and_traced() {
    let d = ControlBench::new();
    let server = Server::start(
        &d.bench.server,
        &["perf", "server", "--json", "--listen", "127.0.0.1:0", "--no-control"],
    );
    let how = ["--accept-new", "--json", "-t", "1h", "--limit", "200mbit", "--stop"];
    let what = [&["perf", "client", &server.address], &how[..]].concat();
    assert!(json(&d.run(&["cc", "show", "--json"]))["processes"].as_array().is_some_and(Vec::is_empty));
    let o = d.run(&["cc", "trace"]);
    expect(&o, 3);
    let child = start(d.client(&what));
    moving(&mut d.process());
    let shown = json(&d.run(&["cc", "show", "--json"]));
    let p = &shown["processes"][0];
    assert_eq!((p["pid"].as_u64(), p["command"].as_str()), (Some(child.id().into()), Some("perf client")));
    assert_eq!(p["flows"][0]["algorithm"], "haul");
    let flow = format!("{}/{}", child.id(), p["flows"][0]["id"].as_str().unwrap());
    let text = String::from_utf8(d.run(&["cc", "show"]).stdout).unwrap();
    assert!(text.contains(&flow) && text.contains("policy: none") && text.contains("haul"), "{text}");
    // One flow, then a policy, which takes its place.
    expect(&d.run(&["cc", "set", "--flow", &flow, "--cc", "cubic:hystart=off", "--cap", "100mbit"]), 0);
    let f = &json(&d.run(&["cc", "show", "--json"]))["processes"][0]["flows"][0];
    assert_eq!(
        (f["algorithm"].as_str(), f["cap_bits_per_second"].as_u64()),
        (Some("cubic:hystart=off"), Some(100_000_000))
    );
    let o = d.run(&["cc", "set", "--flow", &format!("{}/77.0", child.id()), "--cc", "cubic"]);
    expect(&o, 6);
    assert!(stderr(&o).contains("no flow 77.0"), "{}", stderr(&o));
    expect(&d.run(&["cc", "set", &d.file("good.toml", &policy("copa", "150M"))]), 0);
    let f = &json(&d.run(&["cc", "show", "--json"]))["processes"][0]["flows"][0];
    assert_eq!((f["algorithm"].as_str(), f["rule"].as_str()), (Some("copa"), Some("all of copa")));
    // A bad one is refused by the process, with all of its errors, and changes nothing.
    let bad = d.file("bad.toml", "[default]\nalgorithm = \"nonsense\"\nweight = 0\n");
    let o = d.run(&["cc", "set", &bad]);
    expect(&o, 6);
    assert!(stderr(&o).contains("line 2") && stderr(&o).contains("line 3"), "{}", stderr(&o));
    let status = json(&d.run(&["cc", "status", "--json", "--events"]));
    assert_eq!(status["processes"][0]["policy"]["changes"], 1);
    let events = status["processes"][0]["events"].as_array().cloned().unwrap_or_default();
    let of = |kind: &str| events.iter().filter(|e| e["kind"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!(["flow", "policy", "refused"].map(|kind| of(kind).len()), [1; 3], "{events:?}");
    let opened = format!("to {} is open", server.address);
    assert!(of("connection")[0]["text"].as_str().is_some_and(|t| t.contains(&opened)), "{events:?}");
    let o = d.run(&["cc", "trace", "--flow", &flow, "-n", "20", "--json"]);
    expect(&o, 0);
    let lines: Vec<serde_json::Value> =
        String::from_utf8_lossy(&o.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let decisions: Vec<_> = lines.iter().filter(|l| l["response"] == "decision").collect();
    assert_eq!(decisions.len(), 20);
    assert!(
        decisions
            .iter()
            .all(|d| d["algorithm"] == "copa" && d["rate_bits_per_second"].as_u64() <= Some(150_000_000))
    );
    let times: Vec<_> = decisions.iter().map(|d| d["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && decisions.iter().any(|d| d["acked_bytes"].as_u64() > Some(0)), "{lines:?}");
    end(child);
    assert!(fs::read_dir(&d.run).unwrap().next().is_none(), "its socket went with it");
}

/// Waits until the one flow of a process is decided by this.
fn decided_by(c: &mut Client, algorithm: &str) {
    while flows(c)[0].algorithm != algorithm {
        pause();
    }
}

#[test]
fn iwarp_congestion_control_changes_during_a_transfer() {
    let d = ControlBench::new();
    let listen = ["--iwarp", "plain", "--allow-any-key", "--listen", "127.0.0.1:0", "--no-control"];
    let server = Server::start(&d.bench.server, &[&["perf", "server", "--json"][..], &listen].concat());
    let to = format!("iwarp://{}", server.address);
    let what =
        ["perf", "client", &to, "--plain", "--json", "-t", "1h", "--limit", "200mbit", "--stop", "-P", "2"];
    let child = start(d.client(&what));
    let mut c = d.process();
    let flow = format!("{}/{}", child.id(), moving(&mut c)[0].id);
    for name in ["reno", "cubic", "reno"] {
        expect(&d.run(&["cc", "set", "--flow", &flow, "--cc", name]), 0);
        decided_by(&mut c, name);
    }
    // Neither a name that nobody has, nor one that the system does not have, nor parameters change anything.
    for (wrong, why) in [
        ("nonesuch", "this system does not have it"),
        ("haul", "no congestion control of the system's TCP"),
        ("cubic:hystart=off", "takes no parameters"),
    ] {
        let o = d.run(&["cc", "set", "--flow", &flow, "--cc", wrong]);
        expect(&o, 6);
        assert!(stderr(&o).contains(why), "{}", stderr(&o));
        assert_eq!(flows(&mut c)[0].algorithm, "reno");
    }
    // A policy takes its place.
    expect(&d.run(&["cc", "set", &d.file("cubic.toml", &policy("cubic", "150M"))]), 0);
    decided_by(&mut c, "cubic");
    let before = flows(&mut c)[0].delivered_bytes;
    while flows(&mut c)[0].delivered_bytes < before + (1 << 20) {
        pause();
    }
    drop(c);
    end(child);
}

/// Ends a process as Ctrl-C does, and waits for it.
fn end(child: Child) -> Output {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    finish(child)
}

#[test]
fn bad_policy_file_is_refused_at_start_and_ignored_later() {
    let d = ControlBench::new();
    let server = d.bench.serve("served", &["--no-control"]);
    let bad = d.file("p.toml", "[default]\nalgorithm = \"nonsense\"\nweight = 0\n");
    let file = d.file("file", "data");
    let put = ["put", &file, &server.url("x"), "--accept-new", "--policy", &bad];
    let o = d.run(&put);
    expect(&o, 2);
    assert!(stderr(&o).contains("line 2") && stderr(&o).contains("line 3"), "{}", stderr(&o));
    let good = d.file("p.toml", &policy("cubic", "100M"));
    assert_eq!(good, bad);
    expect(&d.run(&put), 0);
}

/// A policy by which all flows run the shipped program, which it says it needs, or not.
fn by_program(declared: bool) -> String {
    let declared = if declared { "programs = \"vegas-c\"\n" } else { "" };
    declared.to_owned() + &policy("vegas-c", "150M")
}

#[test]
fn policy_can_name_programs_loaded_in_the_process() {
    let d = ControlBench::new();
    let listen = ["--listen", "127.0.0.1:0", "--no-control"];
    let server = Server::start(&d.bench.server, &[&["perf", "server", "--json"][..], &listen].concat());
    let what = ["perf", "client", &server.address, "--accept-new", "--json"];
    let child = start(d.client(&[&what[..], &["-t", "1h", "--limit", "200mbit", "--stop"]].concat()));
    let mut c = d.process();
    moving(&mut c);
    let (bare, declared) =
        (d.file("bare.toml", &by_program(false)), d.file("declared.toml", &by_program(true)));
    let refused = |args: &[&str], code, words: &[&str]| {
        let o = d.run(args);
        expect(&o, code);
        words.iter().for_each(|w| assert!(stderr(&o).contains(w), "{w}\n{}", stderr(&o)));
    };
    // A file that is for any host says what it needs.
    refused(&["cc", "policy", "check", &bare], 2, &["line 2", "vegas-c", "programs = ["]);
    expect(&d.run(&["cc", "policy", "check", &declared]), 0);
    let o = d.run(&["cc", "policy", "explain", "1.1.1.1->2.2.2.2", "--policy", &declared]);
    expect(&o, 0);
    assert!(String::from_utf8_lossy(&o.stdout).contains("a program that is not loaded here"));
    // The process knows what it has.
    refused(&["cc", "set", &bare], 6, &["line 2: error", "vegas-c", "must be loaded first"]);
    refused(&["cc", "set", &declared], 6, &["line 1: error", "needs the program \"vegas-c\"", "cc load"]);
    expect(&d.run(&["cc", "load", "vegas"]), 0);
    for file in [&bare, &declared] {
        expect(&d.run(&["cc", "set", &d.file("other.toml", &policy("cubic", "150M"))]), 0);
        decided_by(&mut c, "cubic");
        expect(&d.run(&["cc", "set", file]), 0);
        decided_by(&mut c, "vegas-c");
    }
    drop(c);
    end(child);
}

#[test]
fn pushed_policy_waits_on_hosts_without_its_program() {
    let d = ControlBench::new();
    let Some(etcd) = Etcd::new(&d.bench.path("")) else { return };
    let store = etcd.store();
    let first = push(&d, &store, &d.file("one.toml", &policy("cubic", "90M")));
    let listen = ["--listen", "127.0.0.1:0", "--no-control"];
    let server = Server::start(&d.bench.server, &[&["perf", "server", "--json"][..], &listen].concat());
    let what = ["perf", "client", &server.address, "--accept-new", "--json", "--policy", &store];
    let child = start(d.client(&[&what[..], &["-t", "1h", "--stop"]].concat()));
    let mut c = d.process();
    decided_by(&mut c, "cubic");
    let o = d.run(&["cc", "push", &d.file("bare.toml", &by_program(false)), "--store", &store]);
    expect(&o, 2);
    assert!(stderr(&o).contains("nothing was changed") && stderr(&o).contains("vegas-c"), "{}", stderr(&o));
    let second = push(&d, &store, &d.file("two.toml", &by_program(true)));
    let status = || status(&d, child.id());
    while !status()["errors"].to_string().contains("needs the program") {
        pause();
    }
    assert_eq!((status()["revision"].as_u64(), flows(&mut c)[0].algorithm.as_str()), (Some(first), "cubic"));
    expect(&d.run(&["cc", "load", "vegas"]), 0);
    decided_by(&mut c, "vegas-c");
    assert_eq!((status()["revision"].as_u64(), &status()["errors"]), (Some(second), &serde_json::json!([])));
    drop(c);
    let o = end(child);
    let warned = stderr(&o);
    assert!(warned.contains("vegas-c") && warned.contains("stays in force"), "{warned}");
}

/// etcd on ports of its own. Killed when dropped.
struct Etcd {
    child: Option<Child>,
    data: PathBuf,
    ports: (u16, u16),
}

impl Etcd {
    fn new(folder: &Path) -> Option<Etcd> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: there is no etcd (Debian: etcd-server)");
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut etcd = Etcd { child: None, data: folder.join("etcd"), ports: (free(), free()) };
        etcd.start();
        Some(etcd)
    }
    fn start(&mut self) {
        let (client, peer) =
            (format!("http://127.0.0.1:{}", self.ports.0), format!("http://127.0.0.1:{}", self.ports.1));
        let mut c = Command::new("etcd");
        c.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
        ]);
        c.args([
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("default={peer}"),
            "--data-dir",
        ]);
        c.arg(&self.data).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(c.spawn().unwrap());
    }
    fn stop(&mut self) {
        if let Some(mut c) = self.child.take() {
            let _ = (c.kill(), c.wait());
        }
    }
    fn store(&self) -> String {
        format!("etcd://127.0.0.1:{}/longhaul/policy", self.ports.0)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a process says of its policy.
fn status(d: &ControlBench, pid: u32) -> serde_json::Value {
    json(&d.run(&["cc", "status", "--json", "--pid", &pid.to_string()]))["processes"][0]["policy"].clone()
}

/// Writes a policy to a store, which takes a moment to start, and says by which revision.
fn push(d: &ControlBench, store: &str, file: &str) -> u64 {
    loop {
        let o = d.run(&["cc", "push", file, "--store", store, "--json"]);
        if o.status.code() == Some(0) {
            return json(&o)["revision"].as_u64().unwrap();
        }
        assert!(matches!(o.status.code(), Some(3 | 6)), "{}", stderr(&o));
        pause();
    }
}

#[test]
fn push_reaches_all_processes_and_a_lost_store_is_only_reported() {
    let d = ControlBench::new();
    let Some(mut etcd) = Etcd::new(&d.bench.path("")) else { return };
    let store = etcd.store();
    let push = |name: &str, text: &str| push(&d, &store, &d.file(name, text));
    let first = push("one.toml", &policy("cubic", "90M"));
    let server = Server::start(
        &d.bench.server,
        &["perf", "server", "--json", "--listen", "127.0.0.1:0", "--no-control"],
    );
    let relay = d.relay(&server, "100mbit");
    let what = ["perf", "client", &relay.address, "--accept-new", "--json", "--verify"];
    let what = [&what[..], &["--policy", &store, "-n", "48MiB"]].concat();
    let children: Vec<_> = (0..2)
        .map(|_| start(d.client(&[&what[..], &["-P", "8", "-s", "64KiB", "--region", "1MiB"]].concat())))
        .collect();
    let until = |what: &dyn Fn(&serde_json::Value) -> bool| {
        for c in &children {
            while !what(&status(&d, c.id())) {
                pause();
            }
        }
    };
    while admin::client::all(&d.run).len() < 2 {
        pause();
    }
    until(&|p| p["revision"].as_u64() == Some(first));
    // Refused before it is written.
    let o = d.run(&[
        "cc",
        "push",
        &d.file("bad.toml", "[default]\nalgorithm = \"nonsense\"\n"),
        "--store",
        &store,
    ]);
    expect(&o, 2);
    assert!(stderr(&o).contains("nothing was changed"), "{}", stderr(&o));
    etcd.stop();
    until(&|p| {
        p["errors"][0].as_str().is_some_and(|e| e.contains("cannot reach"))
            && p["revision"].as_u64() == Some(first)
    });
    etcd.start();
    let second = push("two.toml", &policy("bbr", "95M"));
    until(&|p| p["revision"].as_u64() == Some(second) && p["errors"].as_array().is_some_and(Vec::is_empty));
    let shown = json(&d.run(&["cc", "show", "--json"]));
    for p in shown["processes"].as_array().unwrap() {
        assert_eq!(p["flows"][0]["algorithm"], "bbr", "{shown}");
    }
    for c in children {
        let o = finish(c);
        expect(&o, 0);
        assert_eq!(json(&o)["verified"], true);
        let warned = stderr(&o).lines().filter(|l| l.contains("cannot reach the store")).count();
        assert!(warned >= 1, "{}", stderr(&o));
    }
    let pulled = d.run(&["cc", "pull", "--store", &store]);
    assert_eq!(String::from_utf8_lossy(&pulled.stdout), policy("bbr", "95M"));
}

#[test]
fn process_without_a_control_socket_continues() {
    let d = ControlBench::new();
    fs::write(&d.run, "a file where the folder should be").unwrap();
    let server = d.bench.serve("served", &["--no-control"]);
    let file = d.file("file", "data");
    let o = d.run(&["put", &file, &server.url("x"), "--accept-new"]);
    expect(&o, 0);
    assert!(stderr(&o).contains("no control socket"), "{}", stderr(&o));
    let mut quiet = longhaul(&d.bench.client);
    quiet.env("LONGHAUL_RUN", &d.run).args(["put", &file, &server.url("y"), "--no-control"]);
    let o = quiet.output().unwrap();
    expect(&o, 0);
    assert!(!stderr(&o).contains("control socket"), "{}", stderr(&o));
}
