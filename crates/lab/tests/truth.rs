//! Tests the plan `truth`: what it runs, and two of its paths in the simulator. Both sides: `longhaul lab run truth`.

use longhaul_lab::plan::Plan;
use longhaul_lab::report::truth::{rows, score};
use longhaul_lab::run::{Results, Settings};
use longhaul_lab::simulate;
use sim::world::HostModel;

fn simulated(plan: &Plan, hosts: Option<HostModel>) -> Results {
    let out = tempfile::tempdir().expect("a folder");
    let settings = Settings {
        longhaul: "x".into(),
        out: out.path().into(),
        keep_records: false,
        stop: Default::default(),
        jobs: 2,
        hosts,
    };
    let mut r = simulate::run(plan, &settings, &mut |_| {}).expect("results");
    r.machine = Default::default();
    let runs = r.cells.iter_mut().flat_map(|c| &mut c.peers).flat_map(|p| &mut p.runs);
    runs.for_each(|run| run.wall_seconds = 0.0);
    r
}

#[test]
fn truth_runs_24_paths_in_both_and_refuses_mistakes() {
    let plan = Plan::open("truth").expect("a plan");
    assert_eq!(plan.cells.len(), 24);
    assert!(!plan.simulator_only && plan.cells.iter().all(|c| c.peers.len() == 1));
    let text = longhaul_lab::plan::shipped("truth").expect("its text");
    let wrong = |from: &str, to: &str| {
        let text = text.replace(from, to);
        Plan::parse("p", &text).expect_err("a mistake").to_string()
    };
    assert!(wrong("within = 0.05", "within = 0.0").contains("write a difference above 0"));
    assert!(wrong("simulated = 3", "simulated = 0").contains("0 is out of range; write 1 to 1000"));
    let cell = "cell = \"table,1G 10ms queue 62500B\"";
    assert!(wrong(cell, "cell = \"none\"").contains("there is no cell `none`; correct the name"));
    assert!(wrong("repetitions = 1", "simulator_only = true").contains("runs in the simulator only"));
}

#[test]
fn two_paths_of_truth_depend_on_hosts_and_repeat_exactly() {
    let mut plan = Plan::open("truth").expect("a plan");
    plan.keep_only("50M ").expect("cells");
    assert_eq!(plan.cells.len(), 2);
    let timed = simulated(&plan, Some(HostModel::default()));
    assert_eq!(timed, simulated(&plan, Some(HostModel::default())), "the same seed, the same packets");
    let ideal = simulated(&plan, None);
    assert!(timed.timed_hosts && !ideal.timed_hosts);
    let truth = plan.truth.clone().expect("what is compared");
    let compared = rows(&truth, &timed, &ideal);
    assert_eq!(score(&truth, &compared).1, 2, "both have a share: {compared:?}");
    let differs = |r: &longhaul_lab::report::truth::Row| r.difference.is_some_and(|d| d != 0.0);
    assert!(compared.iter().all(differs), "hosts that take time change what happens: {compared:?}");
}
