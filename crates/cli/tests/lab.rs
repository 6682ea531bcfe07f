//! `longhaul lab`, end to end. What makes network namespaces needs root; without it those tests say so and pass: see the
//! list of skips in CONTRIBUTING.md.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const PLAN: &str = r#"
title = "A small plan"
duration = "3s"
warm_up = "1s"
repetitions = 1
metrics = ["goodput", "share", "time_to_90", "rtt", "queue", "queue_loss", "completion", "cpu", "promise_met", "deadlines_met"]
[topology]
kind = "path"
rate = "40mbit"
rtt = "20ms"
queue = "1bdp"
[[peer]]
name = "Longhaul"
flow = [{ program = "longhaul" }]
[[peer]]
name = "TCP"
flow = [{ program = "tcp", cc = "cubic", streams = 2 }]
[[peer]]
name = "requests"
flow = [
  { program = "longhaul_requests", size = "20KiB", every = "50ms" },
  { program = "tcp_requests", size = "20KiB" },
]
[[peer]]
name = "parts"
[[peer.flow]]
program = "longhaul_parts"
policy = """
[process]
cap = "30M"
[[class]]
name = "deadline"
order = "deadline"
guarantee = "10M"
"""
part = [
  { name = "rest", qos = "bulk" },
  { name = "due", qos = ["deadline(500kB, 2s)", "deadline(9MB, 2s)"] },
]
[[peer]]
name = "file"
flow = [{ program = "put", bytes = "4MiB" }]
[[background]]
program = "udp_on_off"
rate = "2mbit"
on = "500ms"
off = "500ms"
"#;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_longhaul")).arg("lab").args(args).output().expect("the program runs")
}

fn words(o: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

fn plan(dir: &Path, text: &str) -> String {
    let file = dir.join("small.toml");
    std::fs::write(&file, text).expect("a file");
    file.to_str().expect("a name").to_owned()
}

/// Of a run whose sender has parts: what was refused says from when on it could be, the others got something.
fn parts_make_sense(run: &Value) {
    let parts = run["flows"][0]["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 3, "{run}");
    let rate = |key: &str| parts[0][key].as_f64();
    assert_eq!((&parts[0]["class"], &parts[0]["basis"]), (&"bulk".into(), &"rest".into()), "{run}");
    assert!(
        rate("achieved_rate").is_some_and(|g| g > 1e6) && rate("expected_rate").is_some_and(|p| p <= 30e6),
        "{run}"
    );
    assert!(parts[1]["completion"].as_f64().is_some_and(|t| t > 0.02) && parts[1]["refusal"] == "", "{run}");
    let earliest = parts[2]["earliest_completion"].as_f64();
    assert!(earliest.is_some_and(|e| e > 2.0), "{run}");
    assert!(parts[2]["refusal"].as_str().is_some_and(|w| w.contains("cannot be there in time")), "{run}");
}

#[test]
fn plan_with_all_workloads_writes_results_and_a_report() {
    if !is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out");
    let (plan, to) = (plan(dir.path(), PLAN), out.to_str().expect("a name"));
    let ran = lab(&["run", &plan, "--out", to, "--json", "--records"]);
    let text = words(&ran);
    let results: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {text}"));
    let peers = results["cells"][0]["peers"].as_array().expect("peers");
    assert_eq!(peers.len(), 5);
    for p in peers {
        assert!(p["skipped"].is_null(), "{p}");
        // A busy machine spoils runs; those that are good must make sense.
        for r in p["runs"].as_array().expect("runs") {
            let figure = |m: &str| r["figures"][m].as_f64();
            let name = p["name"].as_str().expect("a name");
            let most = if name == "requests" { 60e6 } else { 40e6 };
            assert!(figure("goodput").is_some_and(|g| g > 1e6 && g <= most), "{r}");
            assert!(figure("rtt").is_some_and(|t| t >= 0.0199), "{r}");
            assert_eq!(figure("completion").is_some(), name == "requests" || name == "file", "{r}");
            if name == "parts" {
                parts_make_sense(r);
            }
            assert!(r["flows"].as_array().expect("flows").iter().any(|f| f["background"] == true));
        }
        assert!(
            p["runs"].as_array().is_some_and(|r| !r.is_empty())
                || !p["discarded"].as_array().expect("why").is_empty(),
            "{p}"
        );
    }
    let page = std::fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("A small plan") && page.contains("<svg") && page.contains("Promised and got"));
    assert!(lab(&["report", to]).status.success());
    // Nothing is left behind.
    let left = lab(&["clean"]);
    assert!(words(&left).contains("removed 0"), "{}", words(&left));
}

#[test]
fn command_in_a_node_knows_the_addresses_of_the_others() {
    if !is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let o = lab(&[
        "exec",
        "--link",
        "rate=100mbit delay=5ms",
        "b",
        "--",
        "sh",
        "-c",
        "echo $LAB_A $LAB_B; exit 7",
    ]);
    let text = words(&o);
    assert!(text.contains("10.77.0.1 10.77.0.2"), "{text}");
    // The status is the command's own.
    assert_eq!(o.status.code(), Some(7));
    let o = lab(&["exec", "c", "--", "true"]);
    assert!(words(&o).contains("there is no node `c`"), "{}", words(&o));
}

#[test]
fn simulated_plan_runs_without_root() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out");
    let (plan, to) = (plan(dir.path(), PLAN), out.to_str().expect("a name"));
    let ran = lab(&["run", &plan, "--sim", "--out", to, "--only", "L", "--repeat", "2"]);
    let text = words(&ran);
    assert!(text.contains("the simulator has only Longhaul"), "the background is UDP: {text}");
    let bare: String = PLAN.split("[[background]]").next().expect("a plan").to_owned();
    std::fs::write(&plan, bare).expect("a file");
    let ran = lab(&["run", &plan, "--sim", "--out", to, "--repeat", "2"]);
    let text = words(&ran);
    assert!(ran.status.success(), "{text}");
    assert!(text.contains("TCP (played by Longhaul's)"), "{text}");
    assert!(out.join("report.html").exists() && out.join("results.json").exists());
    // The first metric has the bad end and every run beside its median, others their worst run.
    assert!(text.contains("tenth") && text.contains("each run") && text.contains("share/worst"), "{text}");
    let file = std::fs::read(out.join("results.json")).expect("a file");
    let results: Value = serde_json::from_slice(&file).expect("results");
    let figure = &results["cells"][0]["peers"][0]["figures"]["goodput"];
    for key in ["median", "worst", "worst_tenth", "modes"] {
        assert!(figure[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {figure}");
    }
}

#[test]
fn search_writes_a_plan_that_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, out) = (dir.path().join("found.toml"), dir.path().join("out"));
    let (file, out) = (file.to_str().expect("a name"), out.to_str().expect("a name"));
    // Reno takes each loss for congestion: two worlds in three have some.
    let ran =
        lab(&["search", "--cc", "reno", "--evaluations", "3", "--jobs", "2", "--keep", "1", "--out", file]);
    let text = words(&ran);
    assert!(ran.status.success() && text.contains("[[grid]]") && text.contains("3 paths tried"), "{text}");
    let ran = lab(&["run", file, "--sim", "--repeat", "1", "--out", out]);
    let text = words(&ran);
    assert!(ran.status.success(), "{text}");
    assert!(text.contains("reno beside the best median of bbr: 1 of 1 cells miss"), "{text}");
    let same = lab(&["search", "--cc", "bbr"]);
    assert_eq!(same.status.code(), Some(2));
    assert!(words(&same).contains("cannot compare an algorithm with itself"), "{}", words(&same));
}

#[test]
fn mistakes_in_plans_are_explained_with_status_2() {
    let dir = tempfile::tempdir().expect("a folder");
    let plan = plan(dir.path(), &PLAN.replace("rate = \"40mbit\"", "rate = \"fast\""));
    let o = lab(&["run", &plan, "--sim"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(words(&o).contains("small, line 9: topology.rate: cannot read `fast`"), "{}", words(&o));
    let o = lab(&["run", "no-such-plan", "--sim"]);
    assert!(words(&o).contains("name a file, or one of: fig2"), "{}", words(&o));
    let o = lab(&["run", "fig2", "--only", "nothing", "--sim"]);
    assert!(words(&o).contains("no cell's name contains `nothing`"), "{}", words(&o));
    let o = lab(&["run", "fig2", "--part", "3/2", "--sim"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(words(&o).contains("there is no part 3 of 2"), "{}", words(&o));
    let o = lab(&["list"]);
    assert!(o.status.success() && words(&o).contains("loss-recovery"), "{}", words(&o));
    assert!(words(&lab(&["list", "fig3"])).contains("[topology]"));
    assert!(words(&lab(&["list", "--keys"])).contains("queue_loss"));
}

#[test]
fn measured_host_is_saved_and_taken_by_simulations() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, out) = (dir.path().join("host.toml"), dir.path().join("out"));
    let (file, out) = (file.to_str().expect("a name"), out.to_str().expect("a name"));
    let o = lab(&["host", "--time", "100ms", "--out", file]);
    assert!(o.status.success(), "{}", words(&o));
    let text = std::fs::read_to_string(file).expect("a file");
    assert_eq!(String::from_utf8_lossy(&o.stdout), text);
    // The simulator has no background of UDP.
    let plan = plan(dir.path(), PLAN.split("[[background]]").next().expect("a plan"));
    let sim = |more: &[&str]| {
        let common = ["run", &plan, "--sim", "--only", "L", "--repeat", "1", "--out", out];
        lab(&[&common[..], more].concat())
    };
    for more in [&["--host", file][..], &["--ideal-hosts"]] {
        let o = sim(more);
        assert!(o.status.success(), "{}", words(&o));
    }
    let page = std::fs::read_to_string(dir.path().join("out/report.html")).expect("a page");
    assert!(page.contains("with hosts without cost"), "{page}");
    std::fs::write(file, text.replace("joined = ", "joined = 9")).expect("written");
    let o = sim(&["--host", file]);
    assert_eq!(o.status.code(), Some(2));
    assert!(words(&o).contains("cannot use"), "{}", words(&o));
    let o = sim(&["--host", "none.toml"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(words(&o).contains("try a file that `longhaul lab host --out FILE` wrote"), "{}", words(&o));
}
