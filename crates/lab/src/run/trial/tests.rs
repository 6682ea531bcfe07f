use super::*;
use crate::plan::Plan;

fn cell(topology: &str) -> Cell {
    let text = format!(
        "title=\"x\"\nduration=\"2s\"\nmetrics=[\"goodput\"]\n[topology]\n{topology}\n[[peer]]\nname=\"x\"\n\
         flow=[{{ program=\"tcp\" }}]\n"
    );
    Plan::parse("x", &text).unwrap_or_else(|e| panic!("{e}")).cells.remove(0)
}

#[test]
fn plan_topologies_are_emulated_with_the_same_rtts() {
    let home = tempfile::tempdir().expect("a folder");
    let all = [
        "kind=\"path\"\nrate=\"1gbit\"\nrtt=\"70ms\"\nqueue=\"1bdp\"\nloss=\"1%\"\nat=[\"1s:blackout=200ms\"]",
        "kind=\"dumbbell\"\nnodes=2\nrate=\"1gbit\"\nrtts=[\"20ms\",\"100ms\"]\nqueue=\"1bdp\"",
        "kind=\"star\"\nnodes=3\nrate=\"1gbit\"\nrtt=\"10ms\"\nqueue=\"1MiB\"",
        "kind=\"two_paths\"\nrate=\"1gbit\"\nrtt=\"10ms\"\nsecond={ rate=\"500mbit\", rtt=\"50ms\" }",
    ];
    for text in all {
        let c = cell(text);
        let spec = topology(&c.topology, home.path()).expect("a topology");
        assert_eq!(spec.nodes(), c.topology.node_names());
        let links = spec.links().unwrap_or_else(|e| panic!("{e}"));
        let (forward, reverse) = bottlenecks(c.topology.kind);
        for name in forward.iter().chain(reverse) {
            assert!(links.iter().any(|(n, _)| n == name), "{name} in {text}");
        }
        let link = |n: &str| links.iter().find(|(m, _)| m == n).map(|(_, c)| c.clone()).expect("a link");
        match c.topology.kind {
            Kind::Path | Kind::Direct => {
                assert_eq!(link("forward"), c.topology.forward);
                assert_eq!(link("reverse").schedule.len(), 1, "an outage hits both ways");
            }
            Kind::Dumbbell => {
                let more = link("s2-up").delay + link("s2-down").delay;
                let both = link("bottleneck").delay + link("reverse").delay;
                assert_eq!((both + more).as_millis(), 100);
                assert_eq!(link("s1-up").delay, Span::ZERO);
            }
            Kind::Star => {
                assert_eq!((link("n2-up").delay + link("n1-down").delay).as_millis(), 5);
            }
            Kind::TwoPaths => assert_eq!(link("second-forward").delay.as_millis(), 25),
        }
    }
}

#[test]
fn trace_is_written_to_a_file() {
    let home = tempfile::tempdir().expect("a folder");
    let c = cell("kind=\"path\"\nrtt=\"60ms\"\nqueue=\"2MiB\"\ntrace=\"lte(seed=1,seconds=2)\"");
    let TopologySpec::Path { forward: LinkSpec::Traced { link, trace }, .. } =
        topology(&c.topology, home.path()).expect("a topology")
    else {
        panic!("no trace")
    };
    assert!(!link.contains("rate="), "{link}");
    let text = std::fs::read_to_string(trace).expect("a file");
    assert_eq!(crate::plan::trace::parse(&text).as_deref(), Ok(&c.topology.trace.expect("lines")[..]));
}

/// Records of a run in which one flow has half of the link, and a foreign one the rest.
fn records() -> Vec<Record> {
    use record::{FlowSample, Header, LinkInfo, LinkSample, Sample};
    let link = |n: &str| LinkInfo { name: n.into(), config: String::new() };
    let flow = |flow, source: &str, destination: &str| {
        let (from, to) = ("a".to_owned(), "b".to_owned());
        Record::Flow(FlowInfo {
            flow,
            at_ns: 0,
            protocol: 6,
            source: source.into(),
            destination: destination.into(),
            from,
            to,
        })
    };
    let mut out = vec![
        Record::Header(Header {
            version: 1,
            interval_ns: 10_000_000,
            seed: 1,
            nodes: vec![],
            links: vec![link("forward"), link("reverse")],
        }),
        flow(0, "10.77.0.1:999", "10.77.0.2:20000"),
        flow(1, "10.77.0.2:20000", "10.77.0.1:999"),
        flow(2, "10.77.0.1:7", "10.77.0.2:9"),
    ];
    // The run begins at 1 s and is measured until 3 s; the flow continues for a second.
    for i in 1..=400u64 {
        let sample = |flow, payload, delay| FlowSample {
            flow,
            delivered_packets: 10,
            delivered_payload: payload,
            delay_mean_ns: delay,
            ..FlowSample::default()
        };
        let forward = LinkSample {
            link: 0,
            in_packets: 20,
            delivered_bytes: 1_250_000,
            dropped_queue: 1,
            queue_bytes: 437_500,
            ..LinkSample::default()
        };
        out.push(Record::Sample(Sample {
            at_ns: i * 10_000_000,
            length_ns: 10_000_000,
            links: vec![forward, LinkSample { link: 1, queue_bytes: 5, ..LinkSample::default() }],
            flows: vec![sample(0, 600_000, 40_000_000), sample(1, 0, 35_000_000), sample(2, 1, 1)],
            lateness: record::Lateness::default(),
        }));
    }
    let total = FlowSample {
        flow: 0,
        in_packets: 1_000,
        dropped_queue: 30,
        dropped_loss: 10,
        ..FlowSample::default()
    };
    let summary = record::Summary { flows: vec![total], ..record::Summary::default() };
    out.push(Record::Summary(summary));
    out
}

#[test]
fn records_are_converted_to_intervals_flows_and_figures() {
    let home = tempfile::tempdir().expect("a folder");
    let c = cell("kind=\"path\"\nrate=\"1gbit\"\nrtt=\"70ms\"\nqueue=\"1bdp\"");
    let file = home.path().join("records");
    let text: String = records().iter().map(|r| serde_json::to_string(r).expect("JSON") + "\n").collect();
    std::fs::write(&file, text).expect("a file");
    let settings = Settings {
        longhaul: "x".into(),
        out: home.path().into(),
        keep_records: false,
        stop: Default::default(),
        jobs: 1,
        hosts: Some(Default::default()),
    };
    let programs = Programs {
        longhaul: "x".into(),
        quinn: None,
        iperf3: None,
        kernel_programs: std::sync::Arc::default(),
    };
    let lab = Laboratory { settings, programs };
    let trial = Trial { lab: &lab, cell: &c, peer: &c.peers[0], seed: 1, home: home.path().into() };
    let sender = crate::workload::Report {
        bytes: 180_000_000,
        retransmitted: Some(0.05),
        payload_share: Some(0.96),
        ..Default::default()
    };
    let said = EndReports { sender, receiver: None, cpu: Some([1.0, 2.0]) };
    let o = trial.observe(&file, 1_000_000_000, &[(([10, 77, 0, 2], 20_000).into(), said)]).expect("records");
    assert_eq!(o.intervals.len(), 200);
    assert_eq!((o.intervals[0].packets, o.intervals[0].queue, o.intervals[0].queue_back), (20, 437_500, 5));
    assert!((o.intervals[3].delays.expect("both ways") - 0.075).abs() < 1e-9);
    let r = finish(o, [0.0; 3]);
    use crate::plan::Metric as M;
    let of = |m: M| r.figures[&m];
    assert!((of(M::Goodput) - 480e6).abs() < 1.0, "{}", of(M::Goodput));
    assert!((of(M::Share) - 0.5).abs() < 1e-9);
    assert!((of(M::QueueLoss) - 0.05).abs() < 1e-9 && (of(M::Queue) - 0.05).abs() < 1e-9);
    assert!((of(M::Retransmitted) - 0.05).abs() < 1e-9 && (of(M::Spurious) - 0.01).abs() < 1e-9);
    assert!((of(M::Cpu) - 3.0 / 0.18).abs() < 1e-9);
    assert_eq!(r.packets, [4_000, 0, 200]);
}
