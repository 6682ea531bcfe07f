//! Runs a plan in the simulator and prints every metric and each flow's rate per second, for work on algorithms.
//! `cargo run --release -p longhaul-lab --example simulate -- jitter "in order" haul:queue=2ms` runs the cells and
//! peers of plan `jitter` whose names contain "in order", with that algorithm where the plan names none.

use longhaul_lab::plan::{Metric, Plan, Program};
use longhaul_lab::report;
use longhaul_lab::run::Settings;
use longhaul_lab::simulate;

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let mut plan =
        simulate::with_stand_ins(&Plan::open(&args.next().ok_or("which plan? a name or a file")?)?);
    plan.repetitions = 1;
    if let Some(only) = args.next().filter(|o| !o.is_empty()) {
        plan.keep_only(&only)?;
    }
    if let Some(cc) = args.next() {
        let flows = plan.cells.iter_mut().flat_map(|c| &mut c.peers).flat_map(|p| &mut p.flows);
        for f in flows.filter(|f| matches!(f.program, Program::Longhaul) && f.cc.is_empty()) {
            f.cc.clone_from(&cc);
        }
    }
    let out = std::env::temp_dir().join(format!("simulate-{}", std::process::id()));
    let settings = Settings {
        longhaul: "".into(),
        out: out.clone(),
        keep_records: false,
        stop: Default::default(),
        jobs: 1,
        hosts: Some(Default::default()),
    };
    let results = simulate::run(&plan, &settings, &mut |_| {})?;
    // It was only for this.
    let _ = std::fs::remove_dir_all(out);
    for (cell, peer) in results.cells.iter().flat_map(|c| c.peers.iter().map(move |p| (c, p))) {
        println!("{} / {}", cell.id, peer.name);
        for run in &peer.runs {
            let figures = Metric::ALL.iter().filter_map(|m| Some((m, run.figures.get(m)?)));
            let words: Vec<_> = figures.map(|(m, v)| format!("{} {}", m.name(), m.show(*v))).collect();
            println!("  {}", words.join(", "));
            for (name, curve) in &run.curves.flows {
                let n = (1.0 / run.curves.step).round().max(1.0) as usize;
                let mean = |c: &[f32]| c.iter().sum::<f32>() / c.len() as f32 / 1e6;
                let seconds: Vec<_> = curve.chunks(n).map(|c| format!("{:.0}", mean(c))).collect();
                println!("  {name} (Mbit/s): {}", seconds.join(" "));
            }
        }
    }
    print!("{}", report::parts(&results));
    Ok(())
}
