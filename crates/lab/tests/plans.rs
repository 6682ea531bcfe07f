//! Tests that shipped plans are valid and that mistakes are reported with line, key and remedy.

use longhaul_lab::plan::{Kind, Plan, Program, SHIPPED};

const SMALL: &str = r#"
title = "small"
duration = "2s"
metrics = ["goodput"]
[topology]
kind = "path"
rate = "100mbit"
rtt = "20ms"
queue = "1bdp"
[[peer]]
name = "A"
flow = [{ program = "tcp", cc = "cubic" }]
"#;

fn wrong(text: &str) -> String {
    Plan::parse("p.toml", text).expect_err("a mistake").to_string()
}

#[test]
fn shipped_plans_are_valid() {
    for (name, text) in SHIPPED {
        let plan = Plan::parse(name, text).unwrap_or_else(|e| panic!("{e}"));
        // Plans in real time must end within an hour.
        let most = if plan.simulator_only { 600 } else { 24 };
        assert!(!plan.about.is_empty() && plan.cells.len() <= most, "{name}");
        assert!(plan.cells.iter().all(|c| !c.peers.is_empty() && c.warm_up < c.duration), "{name}");
        let compares = plan.truth.is_some() || plan.cells.iter().any(|c| c.peers.len() > 1);
        assert!(compares, "{name} compares nobody");
    }
}

#[test]
fn figure_2_is_the_matrix_of_loss_streams_and_peers() {
    let plan = Plan::open("fig2").expect("a plan");
    assert_eq!(plan.cells.len(), 8);
    let ids: Vec<_> = plan.cells.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids[..2], ["loss=0.1%,streams=1", "loss=0.1%,streams=3"]);
    assert_eq!(ids[7], "loss=1%,streams=25");
    for c in &plan.cells {
        let peers: Vec<_> = c.peers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(peers, ["Longhaul", "TCP BBR", "TCP CUBIC"]);
        assert_eq!(c.topology.forward.queue, 8_750_000);
        assert_eq!(c.topology.forward.delay.as_millis(), 35);
        assert_eq!(c.topology.reverse.loss.mean().get(), 0.0, "acknowledgements are not lost");
        assert_eq!(c.topology.forward.loss.mean().get(), if c.id.contains("0.1%") { 0.001 } else { 0.01 });
    }
    assert_eq!(plan.cells[7].peers[1].flows[0].streams, 25);
    assert_eq!(plan.cost().0, 8 * 3 * 5);
}

#[test]
fn the_storage_experiment_has_every_pair_of_algorithms_by_both_transports() {
    let plan = Plan::open("storage").expect("a plan");
    assert_eq!(plan.cells.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["marked", "unmarked"]);
    let all = ["reno", "cubic", "bbr", "dctcp"];
    for c in &plan.cells {
        assert_eq!(c.peers.len(), 2 * 16 + 1);
        for i in 0..32 {
            let (prefix, query, backup) = (["", "TCP "][i / 16], all[i / 4 % 4], all[i % 4]);
            let name = format!("{prefix}{query}@query {backup}@backup");
            let peer = c.peers.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("no {name}"));
            let (queries, backups): (Vec<_>, Vec<_>) =
                peer.flows.iter().partition(|f| f.name.starts_with("query"));
            assert!(queries.len() == 2 && queries.iter().all(|f| f.cc == query && f.size == 128 << 10));
            assert!(backups.len() == 4 && backups.iter().all(|f| f.cc == backup));
        }
        assert_eq!(c.topology.forward.ecn, (c.id == "marked").then_some(netem::Marking::step(60_000)));
    }
    assert_eq!(plan.published.len(), 5);
    assert!(plan.published.iter().all(|t| t.ours.len() == 2 && t.columns.len() == 5));
}

#[test]
fn varied_peers_are_expanded_within_a_limit() {
    let vary = |v: &str| {
        SMALL
            .replace("name = \"A\"", &format!("name = \"A {{cc}}\"\nvary = {v}"))
            .replace("\"cubic\"", "\"{cc}\"")
    };
    let plan = Plan::parse("p", &vary("{ cc = [\"bbr\", \"reno\"] }")).unwrap_or_else(|e| panic!("{e}"));
    let peers = &plan.cells[0].peers;
    assert_eq!(peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["A bbr", "A reno"]);
    assert_eq!((peers[0].flows[0].cc.as_str(), peers[1].flows[0].cc.as_str()), ("bbr", "reno"));
    assert!(wrong(&vary("{ cc = [] }")).contains("stands for 0 peers"));
    let many: Vec<_> = (0..17).map(|i| format!("\"{i}\"")).collect();
    let many = format!("{{ cc = [{0}], x = [{0}] }}", many.join(","));
    assert!(wrong(&vary(&many)).contains("vary it into 1 to 256"));
    // Names must differ.
    let same = vary("{ cc = [\"bbr\", \"reno\"] }").replace("A {cc}", "A");
    assert!(wrong(&same).contains("a name of its own"));
}

#[test]
fn host_rate_is_for_the_simulator_only() {
    let slow = |text: &str, rate: &str| {
        text.replace("queue = \"1bdp\"", &format!("queue = \"1bdp\"\nhost_rate = \"{rate}\""))
    };
    let e = wrong(&slow(SMALL, "5gbit"));
    assert!(e.contains("only simulated hosts have a speed; write simulator_only = true"), "{e}");
    let simulated = format!("simulator_only = true\n{}", SMALL.trim_start());
    let e = wrong(&slow(&simulated, "0bit"));
    assert!(e.contains("write a rate above zero"), "{e}");
    let plan = Plan::parse("p", &slow(&simulated, "5gbit")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan.cells[0].topology.host_rate.map(|r| r.bits_per_sec()), Some(5_000_000_000));
}

const DIRECT: &str = r#"
title = "direct"
duration = "3s"
metrics = ["message_rtt"]
[topology]
kind = "direct"
[sweep]
size = ["4B", "64KiB"]
[[peer]]
name = "A"
flow = [{ program = "tcp_messages", ping_pong = true, duration = "1s" }, { program = "iwarp_messages" }]
[[published]]
title = "theirs"
about = "of old"
columns = ["who", "how long"]
rows = [["x", "1"]]
cells = ["size=4B"]
metrics = ["message_rtt"]
"#;

#[test]
fn direct_messages_have_the_swept_size_and_published_figures() {
    let plan = Plan::parse("p", DIRECT).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan.cells.len(), 2);
    for (cell, size) in plan.cells.iter().zip([4, 65_536]) {
        assert_eq!(cell.topology.kind, Kind::Direct);
        let flows = &cell.peers[0].flows;
        assert!(flows.iter().all(|f| f.size == size && f.from == "a" && f.to == "b"));
        assert!(flows[0].ping_pong && !flows[1].ping_pong);
        assert_eq!(flows[1].program, Program::IwarpMessages);
    }
    assert_eq!(plan.published[0].rows, [["x", "1"]]);
    let with = |a: &str, b: &str| wrong(&DIRECT.replace(a, b));
    let e = with("kind = \"direct\"", "kind = \"direct\"\nrtt = \"1ms\"");
    assert!(e.contains("nothing is emulated between direct nodes; remove it"), "{e}");
    let e = with("\"iwarp_messages\"", "\"tcp\"");
    assert!(e.contains("are for direct nodes"), "{e}");
    let e = with("\"4B\"", "\"0B\"");
    assert!(e.contains("a byte at least"), "{e}");
    let e = with("[[\"x\", \"1\"]]", "[[\"x\"]]");
    assert!(e.contains("as many values in each row as columns"), "{e}");
    let e = with("cells = [\"size=4B\"]", "cells = [\"size=5B\"]");
    assert!(e.contains("there is no cell `size=5B`"), "{e}");
    let e =
        wrong(&format!("{SMALL}[sweep]\nsize = [\"4B\"]\n").replace("\"tcp\", cc", "\"tcp_messages\", cc"));
    assert!(e.contains("are for direct nodes"), "{e}");
}

#[test]
fn only_selected_peers_and_cells_run() {
    let mut plan = Plan::open("fig2").expect("a plan");
    plan.keep_only("loss=1%,streams=3/TCP BBR").expect("a cell");
    assert_eq!((plan.cells.len(), plan.cells[0].peers.len()), (1, 1));
    let e = plan.keep_only("loss=2%").expect_err("no such cell");
    assert!(e.contains("loss=1%,streams=3/TCP BBR"), "{e}");
}

#[test]
fn dumbbell_flows_get_own_pairs_and_unique_names() {
    let plan = Plan::open("fair").expect("a plan");
    let cell = plan.cells.iter().find(|c| c.id == "10 equal").expect("a case");
    assert_eq!((cell.topology.kind, cell.topology.nodes), (Kind::Dumbbell, 10));
    let flows = &cell.peers[0].flows;
    assert_eq!(flows.len(), 10);
    assert_eq!((flows[9].from.as_str(), flows[9].to.as_str()), ("s10", "r10"));
    assert_eq!(flows[9].name, "longhaul 10");
    let late = plan.cells.iter().find(|c| c.id == "late-comer").expect("a case");
    assert_eq!(late.peers[0].flows[1].start.as_millis(), 5_000);
    assert_eq!(late.peers[0].flows[1].duration.as_millis(), 35_000);
    let rtts = plan.cells.iter().find(|c| c.id == "unequal round trips").expect("a case");
    assert_eq!([0, 1].map(|i| rtts.topology.rtt(i).as_millis()), [20, 100]);
}

#[test]
fn trace_replaces_the_rate() {
    let plan = Plan::open("cellular").expect("a plan");
    let t = &plan.cells[0].topology;
    let (lines, rate) = (t.trace.as_ref().expect("a trace"), t.forward.rate.expect("its mean"));
    assert!(lines.len() > 100_000);
    assert!((20_000_000..80_000_000).contains(&rate.bits_per_sec()), "{rate:?}");
}

#[test]
fn lose_one_drops_exactly_one_packet() {
    use base::{Rng, Span, Time};
    use netem::{Link, Packet};
    let text = SMALL.replace("queue = \"1bdp\"", "queue = \"1bdp\"\nat = [\"1s:lose=1\"]");
    let plan = Plan::parse("p", &text).expect("a plan");
    let mut link = Link::new(plan.cells[0].topology.forward.clone(), Rng::from_u64(1));
    for i in 0..20_000 {
        let packet = Packet { bytes: 100, ecn: base::Ecn::NotEct, payload: () };
        let _ = link.send(Time::ZERO + Span::from_micros(100) * i, packet);
    }
    assert_eq!(link.stats().dropped_loss, 1);
}

#[test]
fn plan_errors_name_line_key_and_remedy() {
    let with = |a: &str, b: &str| wrong(&SMALL.replace(a, b));
    let e = with("rate = \"100mbit\"", "rate = \"fast\"");
    assert!(e.starts_with("p.toml, line 7: topology.rate: cannot read `fast`; write a rate"), "{e}");
    let e = with("rtt = \"20ms\"", "rtd = \"20ms\"");
    assert!(e.contains("line 8: rtd: unknown field `rtd`, expected one of") && e.contains("remove"), "{e}");
    let e = with("kind = \"path\"", "kind = \"ring\"");
    assert!(e.contains("line 6: kind: unknown variant `ring`") && e.contains("dumbbell"), "{e}");
    let e = with("metrics = [\"goodput\"]", "metrics = [\"speed\"]");
    assert!(e.contains("line 4: metrics: no metric is called `speed`") && e.contains("time_to_90"), "{e}");
    let e = with("cc = \"cubic\"", "cc = \"../x\"");
    assert!(e.contains("line 12: flow.cc: write the name of one of the kernel's"), "{e}");
    let e = with("\"tcp\", cc = \"cubic\"", "\"longhaul\", cc = \"magic\"");
    assert!(e.contains("flow.cc: no congestion-control algorithm is called \"magic\"; choose one of"), "{e}");
    let e = with("cc = \"cubic\" }", "to = \"c\" }");
    assert!(e.contains("flow.to: there is no node `c`; there are a, b"), "{e}");
    let e = with("queue = \"1bdp\"", "queue = \"1bdp loss=3%\"");
    assert!(e.contains("line 9: topology.queue: cannot read"), "{e}");
    let e = with("duration = \"2s\"", "duration = \"2s\"\nwarm_up = \"3s\"");
    assert!(e.contains("line 4: warm_up: it must be shorter than the duration"), "{e}");
    let e = with("duration = \"2s\"", "duration = \"2h\"");
    assert!(e.contains("line 3: duration: write a time above zero of an hour (3600s) at most"), "{e}");
    let e = with("rtt = \"20ms\"", "");
    assert!(e.contains("topology.rtt: missing; write rtt = \"70ms\""), "{e}");
    let e = with("title = \"small\"", "");
    assert!(e.contains("missing field `title`"), "{e}");
    let e = with("queue = \"1bdp\"", "queue = \"1bdp\"\nat = [\"1s:magic=1\"]");
    assert!(e.contains("line 10: topology.at:"), "{e}");
    let e = with("program = \"tcp\", cc = \"cubic\"", "program = \"udp_on_off\"");
    assert!(e.contains("flow.rate: UDP has no rate of its own; add rate"), "{e}");
    let e = wrong(&format!("{SMALL}[sweep]\nstreams = [1, 0]\n"));
    assert!(e.contains("line 14: flow.streams: 0 is out of range; write 1 to 128"), "{e}");
    let e = wrong(&format!("{SMALL}[[peer]]\nname = \"A\"\nflow = []\n"));
    assert!(e.contains("peer.name: each peer needs a name of its own"), "{e}");
    let e = wrong("title = ");
    assert!(e.contains("line 1: title"), "{e}");
}

#[test]
fn programs_are_written_in_snake_case() {
    for (text, program) in
        [("longhaul_requests", Program::LonghaulRequests), ("udp_on_off", Program::UdpOnOff)]
    {
        let toml = SMALL.replace("\"tcp\", cc = \"cubic\"", &format!("\"{text}\", rate = \"1mbit\""));
        assert_eq!(Plan::parse("p", &toml).expect("a plan").cells[0].peers[0].flows[0].program, program);
    }
}

const PARTS: &str = r#"
title = "parts"
duration = "4s"
warm_up = "2s"
metrics = ["promise_met"]
[topology]
kind = "path"
rate = "100mbit"
rtt = "20ms"
queue = "1bdp"
[[peer]]
name = "{cc}"
vary = { cc = ["bbr", "reno"] }
[[peer.flow]]
program = "longhaul_parts"
start = "500ms"
policy = """
[default]
algorithm = "{cc}"
"""
part = [
    { name = "messages", qos = "latency", size = "8000B", every = "1ms" },
    { name = "transfer", qos = ["deadline(2MB, 1s)", "deadline(3MB, 2s)"], start = "100ms" },
    { name = "rest" },
]
"#;

#[test]
fn senders_have_parts_with_their_own_qos() {
    let plan = Plan::parse("p", PARTS).unwrap_or_else(|e| panic!("{e}"));
    let flow = &plan.cells[0].peers[1].flows[0];
    assert!(flow.policy.contains("algorithm = \"reno\""), "{}", flow.policy);
    assert_eq!((flow.program, flow.warm_up.as_millis()), (Program::LonghaulParts, 1_500));
    let parts: Vec<_> =
        flow.parts.iter().map(|p| (p.name.as_str(), p.qos.as_str(), p.bytes, p.start)).collect();
    assert_eq!(
        parts,
        [
            ("messages", "latency", None, 0.0),
            ("transfer 1", "deadline(2MB, 1s)", Some(2_000_000), 0.1),
            ("transfer 2", "deadline(3MB, 2s)", Some(3_000_000), 0.1),
            ("rest", "ordinary", None, 0.0)
        ]
    );
    assert_eq!((flow.parts[0].size, flow.parts[0].every, flow.parts[3].size), (8_000, Some(0.001), 65_536));
    let with = |a: &str, b: &str| {
        assert!(PARTS.contains(a), "{a}");
        wrong(&PARTS.replace(a, b))
    };
    for (a, b, why) in [
        ("\"latency\"", "\"soon\"", "line 22: part.qos: \"soon\" is not a quality of service"),
        ("\"8000B\"", "\"5MiB\"", "part.size: a message has 1 to 4194304 bytes"),
        ("name = \"rest\"", "name = \"messages\"", "part.name: each part needs a name of its own"),
        ("algorithm = ", "algorithn = ", "flow.policy: line 2: error: [default] has no key"),
        ("program = \"longhaul_parts\"", "program = \"longhaul\"", "only longhaul_parts has parts"),
        ("policy = ", "limit = \"1mbit\"\npolicy = ", "rates are the policy's"),
        ("every = \"1ms\"", "every = \"0s\"", "part.every"),
    ] {
        let e = with(a, b);
        assert!(e.contains(why), "{e}");
    }
    let e = wrong(&SMALL.replace("\"tcp\", cc = \"cubic\"", "\"longhaul_parts\""));
    assert!(e.contains("flow.part: longhaul_parts needs at least one"), "{e}");
    let many: Vec<_> = (0..64).map(|_| "\"bulk\"").collect();
    let e = with("{ name = \"rest\" }", &format!("{{ name = \"x\", qos = [{}] }}", many.join(", ")));
    assert!(e.contains("more than 63 parts"), "{e}");
}
