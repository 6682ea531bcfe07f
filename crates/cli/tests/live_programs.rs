//! What `longhaul cc` says of programs, policies and flows is what happens: measured at the other end.
#![allow(
    clippy::disallowed_methods,
    reason = "rates are measured over real time, which is what is specified"
)]

mod common;
#[path = "common/control_bench.rs"]
mod control_bench;
#[path = "../../programs/tests/common/parts.rs"]
mod parts;

use common::{Server, expect, json, stderr};
use control_bench::ControlBench;
use parts::ModuleParts;
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One megabyte a second, as a program decides it.
const RATE: i64 = 1_000_000;
/// How long what is waited for may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl ControlBench {
    /// A program that always decides this rate.
    fn steady(&self, file: &str, name: &str, rate: i64) -> String {
        self.file(file, &ModuleParts::steady(name, rate).module())
    }
    fn start(&self, args: &[&str]) -> Running {
        let child = self.client(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running(Some(child))
    }
    /// What `cc status` says of a process.
    fn status(&self, pid: u32) -> Value {
        json(&self.run(&["cc", "status", "--json", "--events", "--pid", &pid.to_string()]))["processes"][0]
            .clone()
    }
    /// The flows of a process, once it runs.
    fn flows(&self, pid: u32) -> Vec<Value> {
        let o = self.run(&["cc", "show", "--json", "--pid", &pid.to_string()]);
        if o.status.code() != Some(0) {
            return Vec::new();
        }
        json(&o)["processes"][0]["flows"].as_array().cloned().unwrap_or_default()
    }
    /// Waits until a process has a flow of which this holds.
    #[track_caller]
    fn until(&self, pid: u32, what: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let flows = self.flows(pid);
            if let Some(f) = flows.iter().find(|f| what(f)) {
                return f.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "what is waited for does not come: {flows:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process that is ended when this goes.
struct Running(Option<Child>);

impl Running {
    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }
    /// Ends it as Ctrl-C does.
    fn end(mut self) -> Output {
        let child = self.0.take().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(c) = &mut self.0 {
            let _ = (c.kill(), c.wait());
        }
    }
}

fn number(v: &Value, field: &str) -> u64 {
    v[field].as_u64().unwrap_or_else(|| panic!("{field} in {v}"))
}

/// Whether a rate is this one, give or take a fifth.
#[track_caller]
fn is_about(what: &str, found: u64, wanted: u64) {
    is_within(what, found, wanted, 0.2);
}

/// Whether a rate is this one, give or take so much of it.
#[track_caller]
fn is_within(what: &str, found: u64, wanted: u64, part: f64) {
    println!("{what}: {:.2} Mbit/s, wanted {:.2}", found as f64 / 1e6, wanted as f64 / 1e6);
    assert!(found.abs_diff(wanted) as f64 <= wanted as f64 * part, "{what}: {found} is not about {wanted}");
}

fn perf_server(d: &ControlBench, more: &[&str]) -> Server {
    let listen = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--no-control"];
    Server::start(&d.bench.server, &[&listen[..], more].concat())
}

/// Bytes of a second before a place in a series of arrivals in steps of ten milliseconds, in bits per second.
fn before(series: &[u64], at: usize) -> u64 {
    series[at.saturating_sub(100)..at].iter().sum::<u64>() * 8
}

#[test]
fn reloaded_program_takes_over_its_flows() {
    let d = ControlBench::new();
    let mut server = perf_server(&d, &["--arrivals", "--count", "1"]);
    let (first, second) =
        (d.steady("first.wasm", "steady", RATE), d.steady("second.wasm", "steady", 3 * RATE));
    let what =
        ["perf", "client", &server.address, "--accept-new", "--json", "-t", "1h", "--stop", "-s", "16KiB"];
    let run = d.start(&[&what[..], &["--cc-program", &first, "--cc", "steady"]].concat());
    let pid = run.pid();
    // Of a whole second.
    let f = d.until(pid, |f| {
        f["delivered_over_seconds"].as_f64() >= Some(1.0) && number(f, "delivered_bytes") > 2_000_000
    });
    is_about("delivered, first code", number(&f, "delivered_bits_per_second"), 8_000_000);
    assert_eq!(number(&f, "pacing_bits_per_second"), 8_000_000, "{f}");
    let state = |s: &Value| s["program_states"][0].clone();
    let before_load = state(&d.status(pid));
    assert_eq!((before_load["path"].as_str(), number(&before_load, "flows")), (Some(&first[..]), 1));
    // The same again is the same.
    let o = d.run(&["cc", "load", &first]);
    expect(&o, 0);
    assert!(String::from_utf8_lossy(&o.stdout).contains("loaded already"), "{o:?}");
    let o = d.run(&["cc", "load", &second]);
    expect(&o, 0);
    let said = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(said.contains("in place of code") && said.contains("1 flow that ran another code"), "{said}");
    let after = state(&d.status(pid));
    assert_eq!((after["path"].as_str(), number(&after, "flows")), (Some(&second[..]), 1), "{after}");
    assert_eq!(number(&after, "flows_on_other_version"), 0);
    assert!(after["hash"] != before_load["hash"] && number(&after, "since") > 0, "{after}");
    let text = String::from_utf8(d.run(&["cc", "status"]).stdout).unwrap();
    assert!(
        text.contains(&format!("program steady: {second}, code {}", after["hash"].as_str().unwrap())),
        "{text}"
    );
    let arrived =
        number(&d.until(pid, |f| number(f, "pacing_bits_per_second") == 24_000_000), "delivered_bytes");
    d.until(pid, |f| number(f, "delivered_bytes") > arrived + 7_000_000);
    run.end();
    // What arrived, as the other end counted it.
    let series: Vec<u64> = server.next_line()["bytes_per_interval"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect();
    let began = series.iter().position(|n| *n > 0).unwrap();
    is_about("arrived, first code", before(&series, began + 120), 8_000_000);
    let end = series.iter().rposition(|n| *n > 0).unwrap();
    is_about("arrived, second code", before(&series, end), 24_000_000);
}

#[test]
fn flow_with_parameters_unknown_to_new_code_is_reported_with_a_remedy() {
    let d = ControlBench::new();
    let server = perf_server(&d, &[]);
    let mut old = ModuleParts::steady("steady", RATE);
    old.manifest.push_str("param\tcount\tgain\t\t1\t9\t3\tof no use\t\n");
    let first = d.file("old.wasm", &old.module());
    let what = ["perf", "client", &server.address, "--accept-new", "-t", "1h", "--stop", "-s", "16KiB"];
    let run = d.start(&[&what[..], &["--cc-program", &first, "--cc", "steady:gain=4"]].concat());
    d.until(run.pid(), |f| number(f, "delivered_bytes") > 100_000);
    let o = d.run(&["cc", "load", &d.steady("new.wasm", "steady", 2 * RATE)]);
    expect(&o, 0);
    let said = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(
        said.contains("still runs the code it had") && said.contains("has no parameter \"gain\""),
        "{said}"
    );
    let p = d.status(run.pid())["program_states"][0].clone();
    assert_eq!((number(&p, "flows"), number(&p, "flows_on_other_version")), (0, 1), "{p}");
    // As it says.
    let hint = said.split('`').nth(1).unwrap();
    expect(&d.run(&hint.split(' ').skip(1).collect::<Vec<_>>()), 0);
    d.until(run.pid(), |f| number(f, "pacing_bits_per_second") == 16_000_000);
    assert_eq!(number(&d.status(run.pid())["program_states"][0], "flows"), 1);
}

#[test]
fn program_that_the_policy_needs_unloads_with_force_only() {
    let d = ControlBench::new();
    let program = d.steady("p.wasm", "steady", RATE);
    let policy = d.file(
        "p.toml",
        b"programs = \"steady\"\n[default]\nalgorithm = \"cubic\"\nallow_override = false\n\n[[rule]]\nname = \"all\"\nmatch = {}\nalgorithm = \"steady\"\nfallback = \"reno\"\n",
    );
    // The server sends, so that new flows come while it runs.
    let mut c = common::longhaul(&d.bench.server);
    c.env("LONGHAUL_RUN", &d.run);
    c.args([
        "perf",
        "server",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--cc-program",
        &program,
        "--policy",
        &policy,
    ]);
    let server = Server::start_command(c);
    let pid = server.child.id();
    let what = [
        "perf",
        "client",
        &server.address,
        "--accept-new",
        "-R",
        "-t",
        "1h",
        "--stop",
        "--no-control",
        "-s",
        "16KiB",
    ];
    let first = d.start(&[&what[..], &["--limit", "1gbit"]].concat());
    let f = d.until(pid, |f| number(f, "delivered_bytes") > 100_000);
    assert_eq!((f["algorithm"].as_str(), f["not_loaded"].as_str()), (Some("steady"), Some("")), "{f}");
    let o = d.run(&["cc", "unload", "steady"]);
    expect(&o, 6);
    assert!(stderr(&o).contains("rule \"all\", line 9") && stderr(&o).contains("--force"), "{}", stderr(&o));
    assert_eq!(d.status(pid)["program_states"][0]["loaded"], true);
    let o = d.run(&["cc", "unload", "steady", "--force"]);
    expect(&o, 0);
    let said = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(said.contains("1 flow that runs it goes on") && said.contains("which is not loaded"), "{said}");
    // Who runs it goes on; who comes has the fallback, and that is told.
    let second = d.start(&what);
    let f = d.until(pid, |f| f["not_loaded"] == "steady");
    assert_eq!(f["algorithm"], "reno", "{f}");
    assert!(d.flows(pid).iter().any(|f| f["algorithm"] == "steady"));
    let status = d.status(pid);
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(1), "{status}");
    let p = &status["program_states"][0];
    assert_eq!((p["loaded"].as_bool(), number(p, "flows_on_fallback")), (Some(false), 1), "{p}");
    assert!(status["events"].as_array().unwrap().iter().any(|e| e["kind"] == "problem"), "{status}");
    let text = String::from_utf8(d.run(&["cc", "status"]).stdout).unwrap();
    assert!(text.contains("PROBLEM: the policy in force names the program \"steady\""), "{text}");
    assert!(text.contains("steady: NOT LOADED"), "{text}");
    // Once it is back, so are the flows.
    expect(&d.run(&["cc", "load", &program]), 0);
    let begun = Instant::now();
    while d.flows(pid).iter().any(|f| f["algorithm"] != "steady") {
        assert!(begun.elapsed() < PATIENCE, "{:?}", d.flows(pid));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(d.status(pid)["problems"], serde_json::json!([]));
    drop((first, second, server));
}

#[test]
fn status_shows_the_policy_in_force() {
    let d = ControlBench::new();
    let server = perf_server(&d, &[]);
    let by = |cap: &str| format!("[[rule]]\nname = \"all\"\nmatch = {{}}\ncap = \"{cap}\"\n");
    let file = d.file("p.toml", by("20M").as_bytes());
    let run = d.start(&[
        "perf",
        "client",
        &server.address,
        "--accept-new",
        "-t",
        "1h",
        "--stop",
        "--policy",
        &file,
    ]);
    let pid = run.pid();
    d.until(pid, |f| f["cap_source"] == "rule all" && number(f, "cap_bits_per_second") == 20_000_000);
    let policy = || d.status(pid)["policy"].clone();
    let first = policy();
    assert_eq!(
        (first["path"].as_str(), first["on_disk"].as_str()),
        (Some(&file[..]), Some("same")),
        "{first}"
    );
    // Replaced by what cannot be used: what is in force is what it was.
    fs::write(&file, "nonsense = [").unwrap();
    let begun = Instant::now();
    while policy()["errors"].as_array().is_none_or(Vec::is_empty) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(100));
    }
    let bad = policy();
    assert_eq!((&bad["hash"], bad["on_disk"].as_str()), (&first["hash"], Some("differs")), "{bad}");
    let text = String::from_utf8(d.run(&["cc", "status"]).stdout).unwrap();
    assert!(text.contains("the file has changed since") && text.contains("PROBLEM"), "{text}");
    // Another by `cc set`: that file is named, with its hash.
    let other = d.file("other.toml", by("30M").as_bytes());
    expect(&d.run(&["cc", "set", &other]), 0);
    let set = policy();
    assert_eq!((set["path"].as_str(), set["on_disk"].as_str()), (Some(&other[..]), Some("same")), "{set}");
    assert!(set["hash"] != first["hash"] && set["origin"] == "control socket", "{set}");
    fs::remove_file(&other).unwrap();
    assert_eq!(policy()["on_disk"], "gone");
    drop(run);
}

/// A transfer over one transport with options, and the cap that it must show and keep.
struct Case {
    iwarp: bool,
    more: &'static [&'static str],
    policy: &'static str,
    cap: u64,
    by: &'static str,
}

const fn case(
    iwarp: bool,
    more: &'static [&'static str],
    policy: &'static str,
    cap: u64,
    by: &'static str,
) -> Case {
    Case { iwarp, more, policy, cap, by }
}

const RULE: &str = "[[rule]]\nname = \"all\"\nmatch = {}\ncap = \"20M\"\n";
const CLASS: &str =
    "[[class]]\nname = \"slow\"\ncap = \"30M\"\n\n[[rule]]\nname = \"all\"\nmatch = {}\nclass = \"slow\"\n";
const PROCESS: &str = "[process]\ncap = \"25M\"\n";

#[test]
fn show_prints_rates_and_caps_with_their_origin() {
    let d = ControlBench::new();
    let native = perf_server(&d, &[]);
    let iwarp = perf_server(&d, &["--iwarp", "plain", "--allow-any-key"]);
    let to_iwarp = format!("iwarp://{}", iwarp.address);
    let cases = [
        case(false, &["--limit", "10mbit"], "", 10_000_000, "limit"),
        case(false, &[], RULE, 20_000_000, "rule all"),
        case(false, &["--limit", "10mbit"], RULE, 10_000_000, "limit"),
        case(false, &[], CLASS, 30_000_000, "class slow"),
        case(false, &["--limit", "40mbit"], PROCESS, 25_000_000, "process"),
        case(true, &["--limit", "10mbit"], "", 10_000_000, "limit"),
        case(true, &[], RULE, 20_000_000, "rule all"),
    ];
    let start = |(i, c): (usize, &Case)| {
        let to: &[&str] = if c.iwarp { &[&to_iwarp, "--plain"] } else { &[&native.address, "--accept-new"] };
        let policy = (!c.policy.is_empty()).then(|| d.file(&format!("{i}.toml"), c.policy.as_bytes()));
        let policy: Vec<&str> = policy.iter().flat_map(|p| ["--policy", p]).collect();
        let how = ["-t", "1h", "--stop", "-s", "16KiB", "--depth", "16", "--region", "1MiB", "--json"];
        d.start(&[&["perf", "client"], to, &how, c.more, &policy].concat())
    };
    let running: Vec<Running> = cases.iter().enumerate().map(start).collect();
    for (c, r) in cases.iter().zip(&running) {
        // After what the start of a transfer may send at once.
        d.until(r.pid(), |f| number(f, "delivered_bytes") > c.cap / 8 * if c.iwarp { 5 } else { 2 });
        // TCP's counters come in lumps, as it takes and gives out bytes: some look sees what it sends on average.
        let near =
            |f: &Value| !c.iwarp || number(f, "delivered_bits_per_second").abs_diff(c.cap) <= c.cap * 3 / 10;
        let f = d.until(r.pid(), |f| f["delivered_over_seconds"].as_f64() >= Some(1.0) && near(f));
        assert_eq!((number(&f, "cap_bits_per_second"), f["cap_source"].as_str()), (c.cap, Some(c.by)), "{f}");
        let name = format!("{} by {}", if c.iwarp { "iWARP" } else { "native" }, c.by);
        // BBR sends a little more than TCP is told.
        is_within(&name, number(&f, "delivered_bits_per_second"), c.cap, if c.iwarp { 0.3 } else { 0.2 });
        let pacing = f["pacing_bits_per_second"].as_u64();
        assert!(pacing.is_none_or(|p| p <= c.cap * 11 / 10), "{f}");
        let shown = String::from_utf8(d.run(&["cc", "show", "--pid", &r.pid().to_string()]).stdout).unwrap();
        assert!(shown.contains("DELIVERED") && shown.contains(&format!("({})", c.by)), "{shown}");
    }
    // `cc set` has a cap of its own.
    let pid = running[1].pid();
    let flow = format!("{pid}/{}", d.flows(pid)[0]["id"].as_str().unwrap());
    expect(&d.run(&["cc", "set", "--flow", &flow, "--cap", "5mbit"]), 0);
    let f = d.until(pid, |f| number(f, "cap_bits_per_second") == 5_000_000);
    assert_eq!(f["cap_source"], "cc set");
}

#[test]
fn trace_of_an_iwarp_flow_prints_tcp_state_and_unknown_flows_fail() {
    let d = ControlBench::new();
    let server = perf_server(&d, &["--iwarp", "plain", "--allow-any-key"]);
    let to = format!("iwarp://{}", server.address);
    let run = d.start(&["perf", "client", &to, "--plain", "-t", "1h", "--stop", "--limit", "50mbit"]);
    let pid = run.pid();
    let f = d.until(pid, |f| number(f, "delivered_bytes") > 1 << 20);
    let flow = format!("{pid}/{}", f["id"].as_str().unwrap());
    let o = d.run(&["cc", "trace", "--flow", &flow, "-n", "5", "--json"]);
    expect(&o, 0);
    let lines: Vec<Value> =
        String::from_utf8_lossy(&o.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    for l in &lines {
        assert_eq!(
            (l["trigger"].as_str(), l["algorithm"].as_str()),
            (Some("tcp"), f["algorithm"].as_str()),
            "{l}"
        );
        assert!(number(l, "cwnd_bytes") > 0 && l["srtt_seconds"].as_f64() > Some(0.0), "{l}");
    }
    assert!(lines.iter().any(|l| number(l, "acked_bytes") > 0), "{lines:?}");
    let text = d.run(&["cc", "trace", "--flow", &flow, "-n", "1"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains(" tcp: "), "{text:?}");
    let o = d.run(&["cc", "trace", "--flow", &format!("{pid}/99.0")]);
    expect(&o, 6);
    assert!(stderr(&o).contains("cannot trace flow 99.0"), "{}", stderr(&o));
    drop(run);
}

#[test]
fn program_that_traps_is_reported_once_and_not_graded() {
    let d = ControlBench::new();
    let program = d.file("traps.wasm", &ModuleParts::trapping("traps", RATE, 5).module());
    let o = d.run(&["cc", "test", &program]);
    expect(&o, 1);
    let (said, why) = (String::from_utf8_lossy(&o.stdout).into_owned(), stderr(&o));
    assert_eq!(why.lines().count(), 1, "{why}");
    assert!(
        why.contains("cannot test traps")
            && why.contains("in call 6 of a flow")
            && why.contains("unreachable"),
        "{why}"
    );
    assert!(!said.contains("of the path") && !said.contains("passed"), "{said}");
    let v = json(&d.run(&["cc", "test", &program, "--json"]));
    assert_eq!((v["passed"].as_bool(), v["rows"].as_array().map(Vec::len)), (Some(false), Some(0)), "{v}");
    assert!(v["fault"].as_str().unwrap().contains("in call 6"), "{v}");
}

#[test]
fn program_with_a_taken_name_is_not_built() {
    let there = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there("clang") || !there("wasm-ld") {
        println!("skipped: clang and lld are not installed");
        return;
    }
    let d = ControlBench::new();
    let source = include_str!("../../programs/programs/reno.c");
    for (name, why) in [
        ("cubic", "cannot call a program \"cubic\": an algorithm of this name is built in"),
        ("htcp", "cannot call a program \"htcp\": an algorithm of the Linux kernel"),
        ("sixteen-letters-", "at most 15 characters"),
    ] {
        let file = d.file("p.c", source.replace("\"reno-c\"", &format!("\"{name}\"")).as_bytes());
        let o = d.run(&["cc", "build", &file, "-o", d.bench.path("out").to_str().unwrap()]);
        expect(&o, 2);
        assert!(stderr(&o).contains(why), "{}", stderr(&o));
        assert!(!d.bench.path("out/p.wasm").exists(), "{name}: what cannot be loaded is left");
    }
}

#[test]
fn client_of_another_service_is_told_what_the_server_is() {
    let d = ControlBench::new();
    let perf = perf_server(&d, &[]);
    let serve = d.bench.serve("served", &["--no-control"]);
    let file = d.file("file", b"data");
    let o = d.run(&["perf", "client", &serve.address, "--accept-new", "-t", "1s"]);
    expect(&o, 6);
    assert!(
        stderr(&o).contains("cannot measure with") && stderr(&o).contains("longhaul serve"),
        "{}",
        stderr(&o)
    );
    for args in [
        &["put", &file, &perf.url("x"), "--accept-new"][..],
        &["get", &perf.url("x"), d.bench.path("got").to_str().unwrap(), "--accept-new"],
        &["ls", &perf.url(""), "--accept-new"],
    ] {
        let o = d.run(args);
        expect(&o, 6);
        assert!(stderr(&o).contains("longhaul perf server"), "{args:?}: {}", stderr(&o));
    }
    // What is not there is not there; nothing was removed.
    let o = d.run(&["ls", &serve.url("nosuch"), "--accept-new"]);
    expect(&o, 1);
    assert!(stderr(&o).contains("cannot list \"nosuch\": no such file or folder"), "{}", stderr(&o));
}
