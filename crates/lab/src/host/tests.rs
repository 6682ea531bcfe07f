use super::*;

#[test]
fn fit_finds_the_costs_of_turns_and_datagrams_beside_outliers() {
    let mut rng = Rng::from_u64(3);
    let cost = |r: u64, s: u64| Span::from_nanos(4_000 + 700 * r + 500 * s);
    let mut turns: Vec<TurnSample> = (0..5_000)
        .map(|_| {
            let (received, sent) = if rng.chance(0.3) { (0, 0) } else { (rng.below(40), rng.below(60)) };
            TurnSample { time: cost(received, sent), received, sent }
        })
        .collect();
    // In some turns, another thread had the processor.
    for t in turns.iter_mut().step_by(200) {
        t.time += Span::from_millis(4);
    }
    let (turn, receive, send) = fit(&turns).expect("costs");
    assert_eq!(turn.as_nanos(), 4_000);
    assert!(receive.as_nanos().abs_diff(700) < 20 && send.as_nanos().abs_diff(500) < 20, "{receive} {send}");
    assert_eq!(fit(&[]), None);
    assert_eq!(fit(&turns[..1]), None);
}

#[test]
fn measurement_of_this_host_gives_parameters_that_a_file_takes() {
    let m = measure(Span::from_millis(300)).expect("a measurement");
    assert!(m.model.timer.is_ordered() && m.model.wake.is_ordered());
    assert!(!m.model.turn.is_zero(), "a turn takes time");
    assert!(m.ends[0].datagrams.1 > 100 && m.ends[1].datagrams.0 > 100, "{m:?}");
    let file = HostFile { machine: "here".into(), model: m.model };
    assert_eq!(HostFile::parse(&file.text()), Ok(file));
}
