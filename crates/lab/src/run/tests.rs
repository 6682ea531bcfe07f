//! Tests of the order of runs, discarded runs and results, with a scripted bench.

use super::*;
use std::collections::BTreeMap;

/// A scripted bench: the third run is discarded, and peers called "absent" cannot run.
#[derive(Default)]
struct ScriptedBench {
    order: Vec<(String, u64)>,
    stop_at: Option<usize>,
}

impl Bench for ScriptedBench {
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, _: &str) -> Result<RunResult, Failure> {
        self.order.push((cell.name_of(peer), seed));
        if self.stop_at == Some(self.order.len()) {
            return Err(Failure::Stopped);
        }
        match self.order.len() {
            3 => Err(Failure::Discarded("the machine was busy".into())),
            n => Ok(RunResult {
                figures: BTreeMap::from([(Metric::Goodput, n as f64 * 1e6)]),
                curves: outcome::Curves { step: 1.0, ..Default::default() },
                ..RunResult::default()
            }),
        }
    }
    fn missing(&self, flow: &Flow) -> Option<String> {
        (flow.name == "absent").then(|| "not installed; install it".to_owned())
    }
    fn simulated(&self) -> bool {
        true
    }
}

const PLAN: &str = r#"
title = "t"
duration = "2s"
repetitions = 2
metrics = ["goodput"]
[topology]
kind = "path"
rate = "8mbit"
rtt = "20ms"
at = ["1s:lose=1"]
[[peer]]
name = "A"
flow = [{ program = "tcp" }]
[[peer]]
name = "B"
flow = [{ program = "longhaul" }]
[[peer]]
name = "C"
flow = [{ program = "tcp", name = "absent" }]
"#;

fn settings(out: &std::path::Path) -> Settings {
    Settings {
        longhaul: "/bin/true".into(),
        out: out.into(),
        keep_records: false,
        stop: Arc::default(),
        jobs: 1,
        hosts: Some(Default::default()),
    }
}

#[test]
fn peers_alternate_and_discarded_runs_are_repeated() {
    let out = tempfile::tempdir().expect("a folder");
    let plan = Plan::parse("t", PLAN).expect("a plan");
    let (mut bench, mut said) = (ScriptedBench::default(), Vec::new());
    let results = run_on(&plan, &settings(out.path()), &mut bench, &mut |p| said.push(format!("{p:?}")))
        .expect("results");
    let order: Vec<_> = bench.order.iter().map(|(n, _)| n.as_str()).collect();
    // The second repetition begins with B; its first attempt is discarded.
    assert_eq!(order, ["A", "B", "B", "B", "A"]);
    assert_eq!(bench.order[0].1, bench.order[1].1, "the same chance for both");
    assert_ne!(bench.order[3].1, bench.order[2].1, "another attempt, another chance");
    let peers = &results.cells[0].peers;
    assert_eq!(peers[1].discarded, [Discarded { repetition: 2, why: "the machine was busy".into() }]);
    assert_eq!(peers[1].figures[&Metric::Goodput].median, 3e6);
    assert_eq!(peers[0].figures[&Metric::Goodput].runs, 2);
    assert!(peers[2].skipped.as_ref().expect("skipped").contains("install it") && peers[2].runs.is_empty());
    assert!(results.complete && results.cells[0].events == [(1.0, "one packet lost".to_owned())]);
    assert!(said.iter().any(|s| s.contains("Skipped")) && said.iter().any(|s| s.contains("Discarded")));
    let read = Results::read(&out.path().join("results.json")).expect("a file");
    assert_eq!(read, results);
}

#[test]
fn results_before_an_interruption_are_kept() {
    let out = tempfile::tempdir().expect("a folder");
    let plan = Plan::parse("t", PLAN).expect("a plan");
    let mut bench = ScriptedBench { stop_at: Some(2), ..ScriptedBench::default() };
    let results = run_on(&plan, &settings(out.path()), &mut bench, &mut |_| ()).expect("results");
    assert!(!results.complete);
    let read = Results::read(&out.path().join("results.json")).expect("a file");
    assert_eq!(read.cells[0].peers[0].runs.len(), 1);
}

#[test]
fn invalid_result_files_are_errors() {
    let out = tempfile::tempdir().expect("a folder");
    let file = out.path().join("results.json");
    assert!(Results::read(&file).expect_err("none").contains("cannot read"));
    std::fs::write(&file, "{}").expect("a file");
    assert!(Results::read(&file).expect_err("not one").contains("longhaul lab run"));
}

#[test]
fn large_plans_keep_only_typical_and_worst_curves() {
    let out = tempfile::tempdir().expect("a folder");
    let mut plan = Plan::parse("t", PLAN).expect("a plan");
    plan.repetitions = 400;
    assert!(plan.cost().0 > MANY_RUNS);
    let results =
        run_on(&plan, &settings(out.path()), &mut ScriptedBench::default(), &mut |_| ()).expect("results");
    let peers = &results.cells[0].peers;
    assert!(results.complete && peers[0].runs.len() == 400);
    for p in &peers[..2] {
        let kept: Vec<u32> = p.runs.iter().filter(|r| r.curves.step > 0.0).map(|r| r.repetition).collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        assert_eq!(kept[0], 1, "the first run is the worst here");
    }
    assert_eq!(Results::read(&out.path().join("results.json")).expect("a file"), results);
}
