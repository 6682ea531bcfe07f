//! Tests the `breadth` plan: how its matrix is built, and a part of it. All of it: `longhaul lab run breadth --sim`.

use base::Span;
use longhaul_lab::plan::{Metric, Plan};
use longhaul_lab::run::Settings;
use longhaul_lab::simulate;
use std::collections::BTreeSet;

const SMALL: &str = r#"
title = "small"
duration = "2s"
metrics = ["share"]
simulator_only = true
seed = 5
[topology]
kind = "path"
rate = "100mbit"
rtt = "20ms"
[[peer]]
name = "A"
flow = [{ program = "longhaul" }]
"#;

fn ids(text: &str) -> Vec<String> {
    let plan = Plan::parse("p", text).unwrap_or_else(|e| panic!("{e}"));
    plan.cells.iter().map(|c| c.id.clone()).collect()
}

fn grid(name: &str, more: &str) -> String {
    format!("[[grid]]\nname = \"{name}\"\n{more}\n")
}

#[test]
fn grids_are_added_to_each_other_and_the_sweep() {
    let two = grid("a", "[grid.sweep]\nloss = [\"0%\", \"1%\"]\nrtt = [\"5ms\"]")
        + &grid("b", "duration = \"9s\"\n[grid.topology]\njitter = \"3ms\"\norder = \"free\"");
    assert_eq!(ids(&format!("{SMALL}{two}")), ["a,rtt=5ms,loss=0%", "a,rtt=5ms,loss=1%", "b"]);
    let swept = format!("{SMALL}[sweep]\nrate = [\"1mbit\", \"2mbit\"]\n{two}");
    assert_eq!(ids(&swept), ["rate=1mbit", "rate=2mbit", "a,rtt=5ms,loss=0%", "a,rtt=5ms,loss=1%", "b"]);
    let plan = Plan::parse("p", &swept).expect("a plan");
    let last = &plan.cells[4];
    assert_eq!((last.duration, last.topology.forward.keep_order), (Span::from_secs(9), false));
    assert_eq!(plan.cells[0].duration, Span::from_secs(2));
}

#[test]
fn pairwise_grid_has_base_single_values_and_pairs() {
    let sweep =
        "combine = \"pairs\"\n[grid.sweep]\nrtt = [\"5ms\", \"9ms\"]\njitter = [\"1ms\"]\nloss = [\"1%\"]";
    let got = ids(&format!("{SMALL}{}", grid("p", sweep)));
    let pairs = [
        "p",
        "p,rtt=5ms",
        "p,rtt=9ms",
        "p,rtt=5ms,jitter=1ms",
        "p,rtt=9ms,jitter=1ms",
        "p,rtt=5ms,loss=1%",
        "p,rtt=9ms,loss=1%",
        "p,jitter=1ms",
        "p,jitter=1ms,loss=1%",
        "p,loss=1%",
    ];
    assert_eq!(got, pairs);
}

#[test]
fn cell_keeps_its_seed_when_others_are_left_out() {
    let text = format!(
        "{SMALL}{}{}",
        grid("a", "[grid.sweep]\nloss = [\"0%\", \"1%\"]"),
        grid("b", "seed = 77\n[grid.sweep]\nloss = [\"0%\", \"1%\"]")
    );
    let plan = Plan::parse("p", &text).expect("a plan");
    let chances = |p: &Plan| p.cells.iter().map(|c| c.chance).collect::<Vec<_>>();
    assert_eq!(chances(&plan), [(5, 0), (5, 1), (77, 0), (77, 1)]);
    let mut part = plan.clone();
    part.keep_only("loss=1%").expect("cells");
    assert_eq!(chances(&part), [(5, 1), (77, 1)]);
    let mut part = plan.clone();
    part.keep_part(2, 3).expect("cells");
    assert_eq!(chances(&part), [(5, 1)]);
    assert!(plan.clone().keep_part(0, 3).is_err() && plan.clone().keep_part(5, 9).is_err());
}

#[test]
fn mistakes_in_grids_and_regrets_are_errors() {
    let wrong = |more: &str| Plan::parse("p", &format!("{SMALL}{more}")).expect_err("a mistake").to_string();
    let e = wrong(&(grid("a", "") + &grid("a", "")));
    assert!(e.contains("grid.name: each grid needs a name of its own"), "{e}");
    let e = wrong(&grid("a", "combine = \"some\""));
    assert!(e.contains("unknown variant `some`"), "{e}");
    let e = wrong(&grid("a", "[grid.sweep]\npolice = [\"5mbit\"]"));
    assert!(
        e.contains("topology.police: cannot read `5mbit`; write a rate and how much passes at once"),
        "{e}"
    );
    let with = |r: &str| SMALL.replace("seed = 5", &format!("seed = 5\nregret = {r}"));
    let e = Plan::parse("p", &with("{ of = \"A\", against = [\"B\"] }")).expect_err("a mistake").to_string();
    assert!(e.contains("regret: there is no peer `B`"), "{e}");
    let e = Plan::parse("p", &with("{ of = \"A\", against = [] }")).expect_err("a mistake").to_string();
    assert!(e.contains("regret.against: name one peer at least"), "{e}");
}

#[test]
fn breadth_matrix_covers_every_pair_of_factors() {
    let plan = Plan::open("breadth").expect("a plan");
    assert!((200..=600).contains(&plan.cells.len()), "{} cells", plan.cells.len());
    let names: BTreeSet<&str> = plan.cells.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(names.len(), plan.cells.len(), "each cell has a name of its own");
    assert_eq!(plan.repetitions, 10);
    for c in &plan.cells {
        assert_eq!(
            c.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
            ["haul", "bbr", "cubic", "copa"]
        );
        assert_eq!(c.warm_up, Span::from_secs(4));
    }
    let keys = ["rate", "rtt", "queue", "police", "jitter", "reorder", "host_rate", "loss"];
    for (i, a) in keys.iter().enumerate() {
        for b in &keys[i + 1..] {
            let both =
                |k: &str| plan.cells.iter().filter(|c| c.point.iter().any(|(key, _)| key == k)).count();
            let crossed =
                plan.cells.iter().any(|c| [a, b].iter().all(|k| c.point.iter().any(|(key, _)| key == *k)));
            assert!(crossed && both(a) > 1, "{a} and {b} are not crossed");
        }
    }
    let t = |f: &dyn Fn(&longhaul_lab::plan::Topology) -> bool| {
        plan.cells.iter().filter(|c| f(&c.topology)).count()
    };
    assert!(t(&|t| t.forward.loss.mean().get() >= 0.1) > 5, "ten per cent of loss");
    assert!(t(&|t| t.forward.police.is_some()) > 20 && t(&|t| t.host_rate.is_some()) > 20);
    assert!(t(&|t| t.trace.is_some()) > 20 && t(&|t| !t.forward.keep_order) > 50);
    assert!(t(&|t| t.rtts[0] >= Span::from_millis(600)) >= 3, "satellites");
}

#[test]
fn matrix_results_are_independent_of_the_number_of_threads() {
    let mut plan = Plan::open("breadth").expect("a plan");
    plan.keep_part(7, 50).expect("cells");
    plan.repetitions = 2;
    for c in &mut plan.cells {
        // The base and a small sample of the rest.
        c.duration = Span::from_secs(5);
        c.peers.truncate(2);
        c.peers.iter_mut().flat_map(|p| &mut p.flows).for_each(|f| f.duration = c.duration);
    }
    if let Some(r) = &mut plan.regret {
        r.against.truncate(1);
    }
    let run = |jobs: usize| {
        let out = tempfile::tempdir().expect("a folder");
        let settings = Settings {
            longhaul: "x".into(),
            out: out.path().into(),
            keep_records: false,
            stop: Default::default(),
            jobs,
            hosts: Some(Default::default()),
        };
        let mut r = simulate::run(&plan, &settings, &mut |_| {}).expect("results");
        r.machine = Default::default();
        let runs = r.cells.iter_mut().flat_map(|c| &mut c.peers).flat_map(|p| &mut p.runs);
        runs.for_each(|run| run.wall_seconds = 0.0);
        r
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one, two);
    assert!(one.complete && one.cells.len() == plan.cells.len());
    for (c, p) in one.cells.iter().flat_map(|c| c.peers.iter().map(move |p| (c, p))) {
        assert_eq!((p.runs.len(), p.discarded.len()), (2, 0), "{}", c.id);
        let figure = |m| p.figures.get(&m).map_or(0.0, |f| f.worst);
        assert!(figure(Metric::Share) > 0.0 && figure(Metric::FirstBytes) > 0.0, "{}: {:?}", c.id, p.figures);
    }
    assert_eq!(one.regret.map(|t| t.rows.len()), Some(plan.cells.len()));
}
