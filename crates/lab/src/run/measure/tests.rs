use super::*;
use base::Rate;

/// 80 Mbit/s: 100,000 bytes in each interval of 10 ms; 40 ms round trip.
fn steady(bytes: &[u64]) -> ObservedRun {
    let step = Span::from_millis(10);
    let n = bytes.len();
    let bin = |b: &u64| Interval { packets: b / 1_000, delivered: *b, ..Interval::default() };
    ObservedRun {
        step,
        intervals: bytes.iter().map(bin).collect(),
        capacity: vec![100_000.0; n],
        rtt: Span::from_millis(40),
        window: (Span::ZERO, step * n as u64),
        flows: vec![ObservedFlow {
            shape: bytes.iter().map(|b| *b as f64).collect(),
            ..ObservedFlow::default()
        }],
        ..ObservedRun::default()
    }
}

#[test]
fn time_to_level_requires_the_level_for_a_whole_round_trip() {
    // Nothing for 3 intervals, a spike, a slow rise, then full.
    let mut bytes = vec![0, 0, 0, 100_000, 10_000, 50_000, 60_000];
    bytes.extend([100_000; 20]);
    let o = steady(&bytes);
    assert_eq!(o.data_start(), Some(Span::from_millis(30)));
    assert_eq!(
        o.first_time_at_level(Span::ZERO, 0.9),
        Some(Span::from_millis(60)),
        "60 + 3 x 100 of 4 x 100"
    );
    assert_eq!(o.first_time_at_level(Span::ZERO, 0.95), Some(Span::from_millis(70)));
    // From the spike on: 100 + 10 + 50 + 60 = 220 of 400.
    assert_eq!(o.first_time_at_level(Span::ZERO, 0.5), Some(Span::from_millis(30)));
    assert_eq!(o.first_time_at_level(Span::ZERO, 1.01), None);
    let f = o.clone().figures();
    assert_eq!(f[&Metric::TimeTo90], 0.03);
    assert_eq!(f[&Metric::TimeTo50], 0.0);
}

#[test]
fn first_4s_metric_needs_a_run_of_more_than_four_seconds() {
    let mut o = steady(&[1_000; 500]);
    o.flows[0].result.bytes = 500_000;
    assert_eq!(o.figures()[&Metric::FirstBytes], 400_000.0);
    let mut short = steady(&[1_000; 300]);
    assert_eq!(short.figures().get(&Metric::FirstBytes), None);
}

#[test]
fn policer_limits_the_capacity() {
    let police = Some(netem::PolicerConfig { rate: Rate::from_mbit(4), burst: 9_000 });
    let link = LinkConfig { rate: Some(Rate::from_mbit(8)), police, ..LinkConfig::default() };
    assert_eq!(capacity(&link, None, Span::from_millis(10), 2), [5e3, 5e3]);
    // 3,000 bytes in the first interval, 12,000 in the second.
    assert_eq!(
        capacity(&link, Some(&[5, 5, 15, 15, 15, 15, 15, 15, 15, 15]), Span::from_millis(10), 2),
        [3e3, 5e3]
    );
}

#[test]
fn handshakes_do_not_count_as_data() {
    // Handshakes of two packets, then nothing, then a slow start.
    let mut bytes = vec![0, 2_400, 0, 0, 0, 1_200, 1_200, 0, 0, 0, 0, 0, 14_000, 0, 0, 0, 28_000];
    bytes.extend([100_000; 20]);
    let mut o = steady(&bytes);
    assert_eq!(o.data_start(), Some(Span::from_millis(120)));
    assert_eq!(o.figures()[&Metric::TimeTo95], 0.05);
    o.delay = Span::from_millis(20);
    assert_eq!(o.data_start(), Some(Span::from_millis(100)));
    assert_eq!(o.figures()[&Metric::TimeTo95], 0.05, "both by the time at which packets left the queue");
    // The background does not count.
    o.flows[0].result.background = true;
    assert_eq!(o.data_start(), None);
}

#[test]
fn delivery_times_are_shifted_by_the_link_delay() {
    let mut bytes = vec![0; 10];
    bytes.extend([100_000; 20]);
    let mut o = steady(&bytes);
    o.delay = Span::from_millis(20);
    assert_eq!(o.first_time_at_level(Span::ZERO, 0.99), Some(Span::from_millis(80)));
}

#[test]
fn jain_index_matches_the_paper() {
    assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), Some(1.0));
    assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
    // The paper's example: 3 of 4 users satisfied equally is 0.75.
    assert_eq!(jain(&[20.0, 20.0, 20.0, 0.0]), Some(0.75));
    assert_eq!((jain(&[5.0]), jain(&[0.0, 0.0])), (None, None));
}

#[test]
fn capacity_follows_rates_and_black_outs() {
    let at = |ms| Time::ZERO + Span::from_millis(ms);
    let link = LinkConfig {
        rate: Some(Rate::from_mbit(8)),
        schedule: vec![
            (at(15), Change::Rate(Some(Rate::from_mbit(16)))),
            (at(30), Change::BlackOut(Span::from_millis(15))),
        ],
        ..LinkConfig::default()
    };
    // 1,000 bytes a millisecond, 2,000 from 15 ms on, none from 30 to 45 ms.
    let c = capacity(&link, None, Span::from_millis(10), 6);
    assert_eq!(c.iter().map(|v| v.round()).collect::<Vec<_>>(), [10e3, 15e3, 20e3, 0.0, 10e3, 20e3]);
    assert_eq!(last_event(&link), Some((Span::from_millis(30), Span::from_millis(45))));
    let c = capacity(&LinkConfig::default(), None, Span::from_millis(10), 2);
    assert!(c.iter().all(|v| v.is_infinite()));
}

#[test]
fn capacity_of_a_trace_repeats_its_opportunities() {
    let c = capacity(&LinkConfig::default(), Some(&[1, 1, 5, 20]), Span::from_millis(10), 5);
    assert_eq!(c, [4_500.0, 0.0, 6_000.0, 0.0, 6_000.0]);
}

#[test]
fn goodput_scales_the_observed_shape_to_the_program_bytes() {
    let mut o = steady(&[100_000; 100]);
    o.window = (Span::from_millis(500), Span::from_millis(1_000));
    let flow = |bytes, shape: Vec<f64>| ObservedFlow {
        result: FlowResult { bytes, cpu: Some([1.0, 0.5]), ..FlowResult::default() },
        shape,
        payload_share: 0.96,
        whole: false,
        ..ObservedFlow::default()
    };
    // A flow whose second half is three times as fast, and one that is constant.
    let half = [vec![1.0; 50], vec![3.0; 50]].concat();
    o.flows = vec![flow(4_000_000, half), flow(1_000_000, vec![7.0; 100])];
    let f = o.figures();
    assert_eq!(o.flows[0].result.goodput, 48e6);
    assert_eq!(o.flows[1].result.goodput, 8e6);
    assert_eq!(f[&Metric::Goodput], 56e6);
    assert!((f[&Metric::Share] - 56.0 / (80.0 * 0.96)).abs() < 1e-9);
    assert!((f[&Metric::MinShare] - 8.0 / 56.0).abs() < 1e-9);
    assert!((f[&Metric::FirstFlowShare] - 48.0 / 56.0).abs() < 1e-9);
    // 1.5 s for 4 MB and 1.5 s for 1 MB, weighed by bytes: 3 s for 5 MB.
    assert!((f[&Metric::Cpu] - 600.0).abs() < 1e-6, "{}", f[&Metric::Cpu]);
}

#[test]
fn sized_transfer_counts_as_a_whole() {
    let mut o = steady(&[100_000; 100]);
    o.window = (Span::from_millis(500), Span::from_millis(1_000));
    let result = FlowResult { bytes: 100_000, seconds: 0.1, ..FlowResult::default() };
    // All of it came before the window.
    let shape = [vec![1.0; 10], vec![0.0; 90]].concat();
    o.flows =
        vec![ObservedFlow { result, shape, payload_share: 1.0, whole: true, ..ObservedFlow::default() }];
    assert_eq!(o.figures()[&Metric::Goodput], 8e6);
}

#[test]
fn background_counts_only_for_the_share_of_the_first_flow() {
    let mut o = steady(&[100_000; 100]);
    let flow = |background| ObservedFlow {
        result: FlowResult { bytes: 1_000_000, background, ..FlowResult::default() },
        shape: vec![1.0; 100],
        payload_share: 1.0,
        whole: false,
        ..ObservedFlow::default()
    };
    o.flows = vec![flow(false), flow(true)];
    let f = o.figures();
    assert_eq!(f[&Metric::Goodput], 8e6);
    assert_eq!(f[&Metric::FirstFlowShare], 0.5);
    assert!(!f.contains_key(&Metric::Jain));
}

#[test]
fn queue_loss_and_rtt_metrics() {
    let mut o = steady(&[100_000; 200]);
    for (i, b) in o.intervals.iter_mut().enumerate() {
        // 100 packets each; half of a product waits; 2 dropped in the first second, 1 after it.
        (b.queue, b.dropped) = (200_000, if i < 100 { 2 } else { 1 });
    }
    o.window = (Span::from_secs(1), Span::from_secs(2));
    let f = o.figures();
    assert_eq!(f[&Metric::StartLoss], 0.02);
    assert_eq!(f[&Metric::QueueLoss], 0.01);
    assert_eq!(f[&Metric::Queue], 0.5);
    assert!((f[&Metric::Rtt] - 0.06).abs() < 1e-9);
    assert_eq!(f[&Metric::Utilisation], 1.0);
    o.intervals.iter_mut().for_each(|b| b.delays = Some(0.055));
    assert_eq!(o.figures()[&Metric::Rtt], 0.055);
}

#[test]
fn recovery_and_dip_metrics_after_an_outage() {
    let mut bytes = vec![100_000; 1_000];
    // An outage from 5.00 to 5.20 s, then 0.15 s at half speed.
    bytes[500..520].fill(0);
    bytes[520..535].fill(50_000);
    let mut o = steady(&bytes);
    o.capacity[500..520].fill(0.0);
    (o.event_start, o.event_end) = (Some(Span::from_millis(5_000)), Some(Span::from_millis(5_200)));
    let f = o.figures();
    assert!((f[&Metric::Recovery] - 0.15).abs() < 1e-9, "{}", f[&Metric::Recovery]);
    // The worst second: 20 intervals of nothing, 15 of half, 65 whole.
    assert!((f[&Metric::Dip] - 0.725).abs() < 1e-9);
}

#[test]
fn curves_are_downsampled_with_equal_area() {
    let o = ObservedRun {
        flows: vec![ObservedFlow {
            result: FlowResult { name: "x".into(), bytes: 1_000_000, ..FlowResult::default() },
            shape: vec![2.0; 1_000],
            payload_share: 1.0,
            whole: false,
            ..ObservedFlow::default()
        }],
        ..steady(&[100_000; 1_000])
    };
    let c = o.curves();
    assert!(c.throughput.len() <= MAX_POINTS && (c.throughput[3] - 80e6).abs() < 1.0);
    let area: f64 = c.flows[0].1.iter().map(|v| f64::from(*v) * c.step / 8.0).sum();
    assert!((area - 1e6).abs() < 1e6 * 0.01, "{area}");
}

#[test]
fn completion_times_are_thinned_evenly_with_their_ends() {
    let mut v: Vec<f64> = (0..10_001).rev().map(f64::from).collect();
    assert_eq!(thin_completions(&mut v), 10_001);
    assert_eq!((v.len(), v[0], v[MAX_COMPLETIONS - 1]), (MAX_COMPLETIONS, 0.0, 10_000.0));
    assert_eq!(quantile(&v, 0.5).map(|m| (m - 5_000.0).abs() < 6.0), Some(true));
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn stall_is_measured_in_round_trips_of_the_cut_path() {
    // 40 ms of what was on its way, 120 ms of nothing, a little, then all that is left: half.
    let mut bytes = vec![100_000; 10];
    bytes.extend([100_000; 4]);
    bytes.extend([0; 12]);
    bytes.extend([1_000, 0, 30_000]);
    bytes.extend([50_000; 30]);
    let mut o = steady(&bytes);
    o.capacity[10..].fill(50_000.0);
    o.flows[0].payload_share = 1.0;
    o.flows[0].result.bytes = bytes.iter().sum();
    assert!(!o.figures().contains_key(&Metric::Stall), "without an event");
    (o.event_start, o.event_end) = (Some(Span::from_millis(100)), Some(Span::from_secs(60)));
    o.event_rtt = Span::from_millis(80);
    let f = o.figures();
    assert_eq!(f[&Metric::Stall], 1.5);
    // From 280 ms on, 180 ms after the cut: 30,000 and seven times 50,000 of 400,000 are 95 %.
    assert_eq!(f[&Metric::Failover], 2.25);
    // The background may stall.
    let idle = ObservedFlow { shape: vec![0.0; bytes.len()], ..ObservedFlow::default() };
    let background = FlowResult { background: true, ..FlowResult::default() };
    o.flows.push(ObservedFlow { result: background, ..idle });
    assert_eq!(o.figures()[&Metric::Stall], 1.5);
}

#[test]
fn bulk_share_is_relative_to_the_capacity_left_by_requests() {
    let flow = |requests: bool, port: &str, goodput: f64, completions: Vec<f64>| ObservedFlow {
        result: FlowResult { goodput, completions, ..FlowResult::default() },
        payload_share: 0.9,
        requests,
        port: port.to_owned(),
        ..ObservedFlow::default()
    };
    // Two ports of 100 MB/s each carry 720 Mbit/s of payload; on one of them requests take 120.
    let mut o = steady(&[1_000_000; 100]);
    o.capacity = vec![1_000_000.0; o.intervals.len()];
    o.flows = vec![
        flow(false, "n1", 300e6, vec![]),
        flow(false, "n1", 240e6, vec![]),
        flow(false, "n2", 660e6, vec![]),
        flow(true, "n1", 120e6, vec![0.001, 0.002, 0.003, 0.010]),
        flow(true, "n3", 500e6, vec![]),
    ];
    let mut out = BTreeMap::new();
    o.add_flow_metrics(&mut out);
    assert_eq!(out[&Metric::Bulk], 400e6);
    assert!((out[&Metric::BulkShare] - 1200.0 / 1320.0).abs() < 1e-9, "{out:?}");
    assert!((out[&Metric::CompletionMean] - 0.004).abs() < 1e-12);
    assert_eq!(out[&Metric::CompletionP95], 0.010);
    // Without requests there is nothing to be beside.
    o.flows.truncate(3);
    out.clear();
    o.add_flow_metrics(&mut out);
    assert!(!out.contains_key(&Metric::Bulk) && !out.contains_key(&Metric::CompletionMean));
}
