use super::*;
use base::Span;

/// Simulates an algorithm that is bad with reordering and loss, the more the worse.
struct Planted;

impl Judge for Planted {
    fn judge(&self, w: &World, _: u64) -> Option<Verdict> {
        let bad = w.free && w.jitter.0 > 2_000 && w.loss.0 > 1_000;
        let share = if bad { 0.5 / (1.0 + w.jitter.0 as f64 / 10_000.0) } else { 1.0 };
        Some(Verdict { share, bytes_in_first_4s: 1.0 })
    }
}

fn options(evaluations: u64, jobs: usize) -> Options {
    Options { seed: 3, evaluations, until: Time::ZERO + Span::from_secs(1), jobs }
}

fn found(options: &Options, judge: &dyn Judge) -> Outcome {
    search(options, judge, &|| Time::ZERO, &AtomicBool::new(false), &mut |_, _| ()).expect("an outcome")
}

#[test]
fn search_finds_a_planted_bad_world_and_makes_it_worse() {
    let out = found(&options(8 * CLIMB_EVALUATIONS, 1), &Planted);
    assert_eq!(out.evaluations, 8 * CLIMB_EVALUATIONS);
    let worst = out.found.first().expect("a bad world");
    assert!(worst.world.free && worst.world.jitter.0 > 2_000 && worst.world.loss.0 > 1_000);
    // Badness begins at a half; a climb continues from there.
    assert!(worst.verdict.share < 0.25, "{worst:?}");
    assert!(out.found.is_sorted_by(|a, b| a.verdict.score() <= b.verdict.score()));
}

#[test]
fn search_result_is_independent_of_the_number_of_jobs() {
    let one = found(&options(100, 1), &Planted);
    assert_eq!(one, found(&options(100, 3), &Planted));
    assert_ne!(one, found(&Options { seed: 4, ..options(100, 1) }, &Planted));
    assert_eq!(one.evaluations, 100);
}

#[test]
fn search_stops_by_time_or_on_request() {
    let ticks = AtomicU64::new(0);
    let now = || Time::ZERO + Span::from_millis(10) * ticks.fetch_add(1, Ordering::SeqCst);
    let out = search(&options(u64::MAX / 2, 1), &Planted, &now, &AtomicBool::new(false), &mut |_, _| ());
    let tried = out.expect("an outcome").evaluations;
    assert!((50..=100).contains(&tried), "{tried}");
    let out = search(&options(100, 2), &Planted, &|| Time::ZERO, &AtomicBool::new(true), &mut |_, _| ());
    assert_eq!(out.expect("an outcome"), Outcome::default());
}

#[test]
fn random_worlds_are_valid_plans() {
    let mut rng = Rng::from_u64(1);
    let mut world = World::random(&mut rng);
    for i in 0..300 {
        let text = plan("haul", "bbr", &world.grid("w", i));
        let plan = Plan::parse("w", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let (cell, t) = (&plan.cells[0], &plan.cells[0].topology);
        assert_eq!((plan.cells.len(), cell.peers.len(), cell.chance), (1, 2, (i, 0)));
        assert_eq!(t.forward.rate.map(|r| r.bits_per_sec()), Some(world.rate * 1_000));
        assert!((t.forward.loss.mean().get() - world.loss.0 as f64 / 1e6).abs() < 2e-3, "{text}");
        assert_eq!((t.forward.police.is_some(), t.host_rate.is_some()), (world.police.0 > 0, world.host > 0));
        world = if i % 10 == 0 { World::random(&mut rng) } else { world.mutated(&mut rng) };
    }
}

#[test]
fn found_worlds_become_cells_of_a_plan() {
    let all = found(&options(8 * CLIMB_EVALUATIONS, 1), &Planted).found;
    let text = plan_of_found("haul", "bbr", 3, &all);
    let plan = Plan::parse("found", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(plan.cells.len(), all.len());
    assert_eq!(plan.regret.as_ref().map(|r| r.of.as_str()), Some("haul"));
    assert!(plan.cells.iter().all(|c| c.chance == (3, 0)), "each has the seeds with which it was found");
}

#[test]
fn search_finds_random_loss_for_loss_based_algorithms() {
    let stop = AtomicBool::new(false);
    let judge = SimulatorJudge { cc: "reno", against: "bbr", hosts: Some(Default::default()), stop: &stop };
    let lossy = World { rate: 20_000, rtt: 40_000, queue: 1_000, loss: (20_000, 1), ..World::default() };
    let v = judge.judge(&lossy, 1).expect("a verdict");
    assert!(v.share < 0.5 && v.bytes_in_first_4s < 0.8, "{v:?}");
    assert_eq!(judge.judge(&lossy, 1), Some(v), "the same again");
    let clean = World { loss: (0, 1), ..lossy };
    assert!(judge.judge(&clean, 1).expect("a verdict").share > 0.8);
}
