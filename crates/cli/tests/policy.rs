//! Policies from the command line: checked, explained, and obeyed by transfers.

mod common;

use common::{Bench, expect, stderr};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Output;

fn example() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/policy.toml")
}

fn stdout(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

#[test]
fn example_policy_is_valid_without_warnings() {
    let b = Bench::new();
    let o = b.run(&["cc", "policy", "check", example().to_str().unwrap()]);
    expect(&o, 0);
    assert!(stdout(&o).ends_with("is valid: 3 rules, 3 classes, 0 warnings\n"), "{}", stdout(&o));
    let o = b.run(&["cc", "policy", "check", "--json", example().to_str().unwrap()]);
    expect(&o, 0);
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!((v["usable"].as_bool(), v["problems"].as_array().map(Vec::len)), (Some(true), Some(0)));
}

#[test]
fn policy_check_reports_all_mistakes_with_lines() {
    let b = Bench::new();
    let file = b.path("bad.toml");
    fs::write(&file, "[process]\ncap = \"fast\"\n[default]\nclass = \"bulkk\"\n[[rule]]\nname = \"a\"\nmatch = {}\n[[rule]]\nname = \"b\"\nmatch = { dscp = 1 }\n").unwrap();
    let file = file.to_str().unwrap();
    let o = b.run(&["cc", "policy", "check", file]);
    expect(&o, 2);
    for words in [
        "line 2: error",
        "line 4: error",
        "did you mean \"bulk\"?",
        "line 8: error",
        "never reached",
        "3 errors",
    ] {
        assert!(stderr(&o).contains(words), "{words}\n{}", stderr(&o));
    }
    let o = b.run(&["cc", "policy", "check", "--json", file]);
    expect(&o, 2);
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(v["usable"], false);
    assert_eq!(v["problems"][0]["line"], 2);
    assert_eq!(v["problems"][2]["severity"], "error");
    expect(&b.run(&["cc", "policy", "check", "/no/such/file"]), 2);
    // A policy with errors takes no effect.
    expect(&b.run(&["cc", "policy", "explain", "1.1.1.1->2.2.2.2", "--policy", file]), 2);
    fs::write(b.path("latin.toml"), b"# ok\n# \xe9\n").unwrap();
    let o = b.run(&["cc", "policy", "check", b.path("latin.toml").to_str().unwrap()]);
    expect(&o, 2);
    assert!(stderr(&o).contains("line 2 is not UTF-8"), "{}", stderr(&o));
}

#[test]
fn policy_explain_prints_text_and_json() {
    let b = Bench::new();
    let file = example();
    let file = file.to_str().unwrap();
    let flow = "10.1.0.5 -> 10.2.0.7:4460 app=backup-nightly";
    let o = b.run(&["cc", "policy", "explain", flow, "--policy", file]);
    expect(&o, 0);
    for line in [
        "rule        \"nightly backup to the other site\"",
        "algorithm   ledbat++ target=40ms",
        "class       storage/backup",
    ] {
        assert!(stdout(&o).contains(line), "{line}\n{}", stdout(&o));
    }
    let o = b.run(&["cc", "policy", "explain", "*->10.2.0.7", "qos=guaranteed(300M)", "--json"]);
    expect(&o, 0);
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(v["class"]["path"], "guaranteed");
    assert_eq!(v["guarantee_bits_per_second"], 300_000_000);
    assert_eq!(v["algorithm"]["parameters"]["known_rate"], "300000000");
    let o = b.run(&["cc", "policy", "explain", "nonsense"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("write a flow such as"), "{}", stderr(&o));
}

#[test]
fn built_in_policy_is_valid() {
    let b = Bench::new();
    let o = b.run(&["cc", "policy", "built-in"]);
    expect(&o, 0);
    fs::write(b.path("p.toml"), &o.stdout).unwrap();
    expect(&b.run(&["cc", "policy", "check", b.path("p.toml").to_str().unwrap()]), 0);
}

#[test]
fn put_reports_the_policy_decision() {
    let b = Bench::new();
    fs::write(b.path("file"), common::bytes(3, 300_000)).unwrap();
    let server = b.serve("srv", &[]);
    let (file, url) = (b.path("file"), server.url(""));
    let put = |words: &[&str]| {
        let o = b.run(&[&["put", "--all", "--accept-new", file.to_str().unwrap(), &url], words].concat());
        expect(&o, 0);
        o
    };
    let o = put(&["--qos", "scavenger"]);
    assert!(stderr(&o).contains("sent as scavenger: class scavenger, ledbat++"), "{}", stderr(&o));
    let o = put(&["--qos", "guaranteed(300M)", "--json"]);
    let v: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(v["policy"]["class"], "guaranteed");
    assert_eq!(v["policy"]["guarantee_bits_per_second"], 300_000_000);
    assert!(v["policy"]["algorithm"].as_str().unwrap().starts_with("haul:known_rate="));
    // Nothing is asked for: nothing is said.
    assert!(!stderr(&put(&[])).contains("sent as"));
    let o = b.run(&["put", file.to_str().unwrap(), &url, "--qos", "fast"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("deadline(10GB, 30s)"), "{}", stderr(&o));
}

#[test]
fn get_requests_qos_and_the_server_applies_it() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("srv/file"), common::bytes(4, 2_000_000)).unwrap();
    let server = b.serve("srv", &[]);
    let (url, back) = (server.url("file"), b.path("back"));
    for qos in ["latency", "target(40M)", "scavenger", "deadline(2MB, 10s)"] {
        let _ = fs::remove_file(&back);
        let o = b.run(&["get", "--accept-new", "--json", "--qos", qos, &url, back.to_str().unwrap()]);
        expect(&o, 0);
        assert_eq!(fs::read(&back).unwrap(), common::bytes(4, 2_000_000), "{qos}");
        if qos.starts_with("target") {
            // A bound from above: however slow this machine is, it holds.
            let rate = common::json(&o)["goodput_bits_per_second"].as_f64().unwrap();
            assert!(rate <= 44e6, "{rate}");
        }
    }
}

#[test]
fn get_and_perf_report_the_policy_decision() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("srv/file"), common::bytes(4, 300_000)).unwrap();
    let rule = "[[rule]]\nname = \"nightly\"\nmatch = { application = \"backup-*\" }\nalgorithm = \"cubic\"\ncap = \"50M\"\nclass = \"bulk\"\n";
    fs::write(b.path("policy.toml"), rule).unwrap();
    let policy = b.path("policy.toml");
    let policy = policy.to_str().unwrap();
    let server = b.serve("srv", &["--policy", policy]);
    let (url, back) = (server.url("file"), b.path("back"));
    let get = |words: &[&str]| {
        let _ = fs::remove_file(&back);
        let o = b.run(&[&["get", "--accept-new", &url, back.to_str().unwrap()], words].concat());
        expect(&o, 0);
        o
    };
    let told = |o: &Output| common::json(o)["policy"].clone();
    let p = told(&get(&["--app", "backup-1", "--json"]));
    assert_eq!((p["rule"].as_str(), p["algorithm"].as_str()), (Some("nightly"), Some("cubic")), "{p}");
    assert_eq!(
        (p["class"].as_str(), p["cap_bits_per_second"].as_u64()),
        (Some("bulk"), Some(50_000_000)),
        "{p}"
    );
    assert!(p["reasons"].as_array().is_some_and(|w| w.len() > 2), "{p}");
    // The smaller of the limits holds, and is told.
    let p = told(&get(&["--app", "backup-1", "--limit", "20mbit", "--json"]));
    assert_eq!(p["cap_bits_per_second"], 20_000_000, "{p}");
    let said = stderr(&get(&["--app", "backup-1"]));
    assert!(
        said.contains("sent as ordinary: class bulk, cubic, at most 50.0 Mbit/s (rule \"nightly\")"),
        "{said}"
    );
    assert!(stderr(&get(&["--qos", "scavenger"])).contains("sent as scavenger: class scavenger, ledbat++"));
    assert!(stderr(&get(&["--cc", "cubic"])).contains("sent as ordinary: class ordinary, cubic"));
    // Nothing is asked for: nothing is said but to programs.
    assert!(!stderr(&get(&[])).contains("sent as"));
    assert_eq!(told(&get(&["--json"]))["class"], "ordinary");
    // Both ends of a measurement have policies; that of the sending one is told.
    let args = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--policy", policy];
    let server = common::Server::start(&b.server, &args);
    let perf = |words: &[&str]| {
        let what = ["perf", "client", &server.address, "--accept-new", "-n", "1MiB", "--region", "1MiB"];
        let o = b.run(&[&what[..], words].concat());
        expect(&o, 0);
        o
    };
    let p = told(&perf(&["--app", "backup-2", "--policy", policy, "--json"]));
    assert_eq!(
        (p["rule"].as_str(), p["cap_bits_per_second"].as_u64()),
        (Some("nightly"), Some(50_000_000)),
        "{p}"
    );
    let said = stdout(&perf(&["--qos", "scavenger"]));
    assert!(said.contains("sent as scavenger: class scavenger, ledbat++"), "{said}");
    assert!(!stdout(&perf(&[])).contains("sent as"));
    assert_eq!(told(&perf(&["-R", "--json"]))["class"], "ordinary");
}
