//! Tests the emulator with the kernel's own TCP and UDP at both ends. Needs root and `/dev/net/tun`; without them
//! each test says so and passes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::{Ecn, Rng, Span};
use lhio::udp::{SendBatch, SendMeta, UdpOptions, UdpSocket};
use longhaul_lab::emulator::record::{self, FlowSample, LinkSample, Record, Summary};
use longhaul_lab::{Lab, Options, TopologySpec, clean};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_longhaul-lab-node");

fn can_run() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    if !can {
        eprintln!("skipped: the laboratory needs root and /dev/net/tun");
    }
    can
}

/// Removing abandoned laboratories concerns those of all tests: who abandons one and looks for it has that to itself.
static CLEANING: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    CLEANING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Laboratories of concurrent tests need different names.
fn up(test: &str, topology: &TopologySpec) -> (Lab, tempfile::NamedTempFile) {
    let record = tempfile::NamedTempFile::new().expect("a file");
    let options = Options {
        emulator: Some((PathBuf::from(PROGRAM), vec!["lab-emulator".to_owned()])),
        record: Some(record.path().to_owned()),
        ..Options::default()
    };
    let name = format!("{test}-{}", std::process::id());
    (Lab::up_with(&name, topology, 7, &options).expect("a laboratory"), record)
}

fn address(lab: &Lab, node: &str, v6: bool) -> IpAddr {
    if v6 { lab.address6(node).expect("a node").into() } else { lab.address(node).expect("a node").into() }
}

fn udp(lab: &Lab, node: &str, port: u16, gro: bool) -> UdpSocket {
    let bind = SocketAddr::new(address(lab, node, false), port);
    let options = UdpOptions { gro, ..UdpOptions::new(bind) };
    lab.inside(node, || UdpSocket::open(&options).map_err(std::io::Error::other)).expect("a socket")
}

/// Sends datagrams of `segment` bytes as one super-packet, which enter the network at the same time.
fn train(from: &UdpSocket, to: SocketAddr, segment: usize, count: usize, ecn: Ecn) {
    let mut batch = SendBatch::new();
    let length = segment * count;
    batch.slot().expect("room")[..length].fill(7);
    batch.commit(SendMeta { dst: to, src: None, ecn, dscp: 0, segment }, length).expect("a train");
    assert_eq!(from.send(&mut batch).expect("sent").sent, 1);
}

/// Waits for this many datagrams and returns their ECN fields.
fn receive(socket: &UdpSocket, count: usize) -> Vec<Ecn> {
    let mut batch = socket.recv_batch();
    let mut seen = Vec::new();
    while seen.len() < count {
        let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec { tv_sec: 30, tv_nsec: 0 };
        assert!(
            rustix::event::poll(&mut fds, Some(&timeout)).expect("poll") > 0,
            "{} of {count} came",
            seen.len()
        );
        socket.recv(&mut batch).expect("received");
        for (meta, bytes) in batch.iter_mut() {
            seen.extend(std::iter::repeat_n(meta.ecn, bytes.len().div_ceil(meta.stride.max(1))));
        }
    }
    seen
}

/// Sends bytes over kernel TCP and checks that the same arrive.
fn tcp(lab: &Lab, from: &str, to: &str, v6: bool, length: usize) {
    let address = SocketAddr::new(address(lab, to, v6), 5001);
    let listener = lab.inside(to, || TcpListener::bind(address)).expect("a listener");
    let mut sender = lab.inside(from, || TcpStream::connect(address)).expect("a connection");
    let (mut receiver, _) = listener.accept().expect("a connection");
    let mut sent = vec![0; length];
    Rng::from_u64(length as u64).fill(&mut sent);
    let mut came = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&sent).expect("sent");
            drop(sender);
        });
        receiver.read_to_end(&mut came).expect("received");
    });
    assert!(came == sent, "the bytes that arrived are not those that were sent");
}

/// A counter of the kernel in a node, from the two-line tables of `/proc/net/snmp` and `netstat`.
fn counter(lab: &Lab, node: &str, table: &str, group: &str, name: &str) -> u64 {
    let text =
        lab.inside(node, || fs::read_to_string(format!("/proc/thread-self/net/{table}"))).expect("a table");
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{group}:")));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    columns.find(|(column, _)| *column == name).expect("a column").1.parse().expect("a number")
}

/// Checks that every packet is accounted for.
fn check_conservation(summary: &Summary) {
    let dropped = |link: &LinkSample| {
        link.dropped_queue + link.dropped_loss + link.dropped_black_out + link.dropped_other
    };
    for link in &summary.links {
        assert_eq!(
            link.in_packets + link.duplicated,
            link.delivered_packets + dropped(link) + link.in_link,
            "{link:?}"
        );
    }
    let all = |of: &dyn Fn(&LinkSample) -> u64| summary.links.iter().map(of).sum::<u64>();
    assert_eq!(
        summary.read_packets + all(&|link| link.duplicated),
        summary.written_packets
            + summary.refused_packets
            + summary.unroutable_packets
            + summary.over_limit_packets
            + summary.in_network
            + all(&dropped),
    );
    assert_eq!((summary.device_drops, summary.over_limit_packets, summary.lost_lines), (0, 0, 0));
}

/// The flow with most bytes to or from a port.
fn flow(records: &Path, summary: &Summary, port: u16) -> FlowSample {
    let end = format!(":{port}");
    let number = record::read(records).expect("records").find_map(|record| match record.expect("a record") {
        Record::Flow(flow) if flow.destination.ends_with(&end) => Some(flow.flow),
        _ => None,
    });
    summary.flows[number.expect("a flow to that port") as usize]
}

#[test]
fn packet_takes_the_configured_delay() {
    if !can_run() {
        return;
    }
    let (lab, records) = up("delay", &TopologySpec::path("delay=20ms"));
    let (a, b) = (udp(&lab, "a", 6000, true), udp(&lab, "b", 6001, true));
    for _ in 0..5 {
        let begin = lhio::clock::Clock::new().now();
        train(&a, b.local_addr(), 100, 1, Ecn::NotEct);
        receive(&b, 1);
        train(&b, a.local_addr(), 100, 1, Ecn::NotEct);
        receive(&a, 1);
        assert!(lhio::clock::Clock::new().now().since(begin) >= Span::from_millis(40));
    }
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    for port in [6000, 6001] {
        let flow = flow(records.path(), &summary, port);
        assert_eq!((flow.delivered_packets, flow.delivered_payload), (5, 500));
        assert_eq!((flow.delay_min_ns, flow.delay_max_ns), (20_000_000, 20_000_000));
    }
}

#[test]
fn tcp_survives_loss_reordering_duplicates_and_corruption() {
    if !can_run() {
        return;
    }
    let link = "rate=300mbit delay=3ms queue=256KiB loss=0.3% reorder=1%(1ms) duplicate=0.5% corrupt=0.1%";
    let (lab, _records) = up("exact", &TopologySpec::path(link));
    tcp(&lab, "a", "b", false, 12 << 20);
    tcp(&lab, "b", "a", true, 12 << 20);
    // Corruption was detected, so checksums are verified where they are complete.
    let damaged = |node| counter(&lab, node, "snmp", "Tcp", "InCsumErrors");
    assert!(damaged("a") + damaged("b") > 0);
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    assert!(
        summary.links.iter().all(|link| link.dropped_loss > 0 && link.duplicated > 0 && link.reordered > 0)
    );
    // Their length depends on congestion control: cubic, the default of most systems, sends a few packets here.
    assert!(summary.reads < summary.read_packets * 9 / 10, "super-packets were not read in one piece");
    assert!(summary.writes < summary.written_packets, "runs were not joined");
}

#[test]
fn uncorrupted_tcp_has_no_checksum_errors() {
    if !can_run() {
        return;
    }
    let (lab, _records) = up("sums", &TopologySpec::path("rate=300mbit delay=2ms queue=64KiB loss=0.5%"));
    for v6 in [false, true] {
        tcp(&lab, "a", "b", v6, 8 << 20);
    }
    for node in ["a", "b"] {
        assert_eq!(counter(&lab, node, "snmp", "Tcp", "InCsumErrors"), 0);
        // A repeated SYN-ACK after a lost handshake ACK counts as an error, too (RFC 5961).
        let again = counter(&lab, node, "netstat", "TcpExt", "TCPSYNChallenge");
        assert_eq!(counter(&lab, node, "snmp", "Tcp", "InErrs"), again);
        assert_eq!(counter(&lab, node, "netstat", "IpExt", "InCsumErrors"), 0);
    }
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    assert_eq!(summary.refused_packets, 0);
}

#[test]
fn queue_and_rate_are_exact() {
    if !can_run() {
        return;
    }
    // 1028 bytes on the wire take 8224 us; 9 wait behind the one being sent, the others are dropped.
    let (mut lab, records) = up("queue", &TopologySpec::path("rate=1mbit delay=5ms queue=9252B"));
    let (a, b) = (udp(&lab, "a", 6000, true), udp(&lab, "b", 6001, false));
    train(&a, b.local_addr(), 1000, 25, Ecn::NotEct);
    receive(&b, 10);
    let mark = lab.mark("first").expect("a mark");
    assert_eq!((mark.lateness.packets, mark.device_drops), (10, 0));
    // Ten times the rate, without drops.
    lab.set_link("forward", "rate=10mbit delay=1ms queue=1MiB").expect("another link");
    let other = udp(&lab, "b", 6002, false);
    train(&a, other.local_addr(), 1000, 25, Ecn::NotEct);
    receive(&other, 25);
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    let first = flow(records.path(), &summary, 6001);
    assert_eq!((first.in_packets, first.dropped_queue, first.delivered_packets), (25, 15, 10));
    assert_eq!((first.delay_min_ns, first.delay_max_ns), (8_224_000 + 5_000_000, 82_240_000 + 5_000_000));
    let second = flow(records.path(), &summary, 6002);
    assert_eq!((second.in_packets, second.dropped_queue, second.delivered_packets), (25, 0, 25));
    assert_eq!((second.delay_min_ns, second.delay_max_ns), (822_400 + 1_000_000, 20_560_000 + 1_000_000));
    assert_eq!(summary.links[0].max_queue_bytes, 24 * 1028);
    let records: Vec<Record> = record::read(records.path()).expect("records").map(Result::unwrap).collect();
    assert!(matches!(records.first(), Some(Record::Header(header)) if header.links[0].name == "forward"));
    assert!(matches!(records.last(), Some(Record::Summary(last)) if *last == summary));
    let samples = records.iter().filter_map(|r| if let Record::Sample(s) = r { Some(s) } else { None });
    let links: Vec<LinkSample> =
        samples.flat_map(|sample| sample.links.clone()).filter(|l| l.link == 0).collect();
    assert_eq!(
        links.iter().map(|link| link.delivered_packets).sum::<u64>(),
        summary.links[0].delivered_packets
    );
    assert_eq!(links.iter().map(|link| link.max_queue_bytes).max(), Some(24 * 1028));
}

#[test]
fn black_out_drops_everything_from_its_start() {
    if !can_run() {
        return;
    }
    let (mut lab, records) = up("dark", &TopologySpec::path("delay=1ms"));
    let (a, b) = (udp(&lab, "a", 6000, true), udp(&lab, "b", 6001, true));
    train(&a, b.local_addr(), 1000, 20, Ecn::NotEct);
    receive(&b, 20);
    lab.set_link("forward", "delay=1ms at=0s:blackout=3600s").expect("another link");
    train(&a, b.local_addr(), 1000, 20, Ecn::NotEct);
    // The other direction is not affected.
    train(&b, a.local_addr(), 1000, 1, Ecn::NotEct);
    receive(&a, 1);
    assert!(lab.set_link("sideways", "delay=1ms").is_err() && lab.set_link("forward", "nonsense").is_err());
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    assert_eq!(summary.links[0].dropped_black_out, 20);
    let flow = flow(records.path(), &summary, 6001);
    assert_eq!((flow.in_packets, flow.delivered_packets, flow.dropped_other), (40, 20, 20));
}

#[test]
fn ecn_marks_udp_and_tcp() {
    if !can_run() {
        return;
    }
    let (lab, _records) = up("marks", &TopologySpec::path("rate=20mbit delay=1ms queue=1MiB ecn=5140B"));
    let (a, b) = (udp(&lab, "a", 6000, true), udp(&lab, "b", 6001, true));
    train(&a, b.local_addr(), 1000, 20, Ecn::Ect0);
    // One is being sent; a packet is marked if more than 5 packets wait ahead of it.
    let seen = receive(&b, 20);
    assert_eq!(
        seen.iter().map(|ecn| *ecn == Ecn::Ce).collect::<Vec<_>>(),
        (0..20).map(|n| n > 6).collect::<Vec<_>>()
    );
    train(&a, b.local_addr(), 1000, 20, Ecn::NotEct);
    assert_eq!(receive(&b, 20), [Ecn::NotEct; 20]);
    for node in ["a", "b"] {
        lab.inside(node, || fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")).expect("a setting");
    }
    tcp(&lab, "a", "b", false, 2 << 20);
    assert!(counter(&lab, "b", "netstat", "IpExt", "InCEPkts") > 0);
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    assert!(summary.links[0].marked > 13 && summary.flows.iter().any(|flow| flow.marked == 13));
}

#[test]
fn star_shares_egress_queues_and_dumbbell_its_bottleneck() {
    if !can_run() {
        return;
    }
    let star = TopologySpec::Star {
        nodes: 3,
        up: Some("delay=1ms".into()),
        down: "rate=200kbit queue=20000B".into(),
    };
    let (lab, _records) = up("star", &star);
    let to = udp(&lab, "n3", 6001, false);
    let senders = ["n1", "n2"].map(|node| udp(&lab, node, 6000, true));
    for sender in &senders {
        train(sender, to.local_addr(), 1000, 15, Ecn::NotEct);
    }
    receive(&to, 20);
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    // 20 packets pass, plus one for each that was sent before the second train came.
    let port = summary.links[2];
    assert_eq!((port.in_packets, port.dropped_queue + port.delivered_packets), (30, 30));
    assert!(port.dropped_queue > 0 && port.max_queue_bytes > 15 * 1028, "{port:?}");
    assert_eq!(summary.flows.iter().map(|flow| flow.dropped_other).sum::<u64>(), port.dropped_queue);

    let dumbbell = TopologySpec::Dumbbell {
        pairs: 2,
        bottleneck: "rate=100mbit delay=1ms".into(),
        reverse: None,
        access: vec!["delay=1ms".into(), "delay=9ms".into()],
    };
    let (lab, records) = up("dumbbell", &dumbbell);
    for pair in 1..=2u16 {
        let from = udp(&lab, &format!("s{pair}"), 6000, true);
        let to = udp(&lab, &format!("r{pair}"), 6000 + pair, true);
        train(&from, to.local_addr(), 1000, 1, Ecn::NotEct);
        receive(&to, 1);
    }
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    assert_eq!(summary.links[0].delivered_packets, 2);
    for (port, delay) in [(6001, 2_000_000), (6002, 10_000_000)] {
        assert_eq!(flow(records.path(), &summary, port).delay_min_ns, delay + 82_240);
    }
}

#[test]
fn two_paths_have_two_addresses() {
    if !can_run() {
        return;
    }
    let two = TopologySpec::TwoPaths { first: "delay=1ms".into(), second: "delay=2ms".into() };
    let (lab, records) = up("paths", &two);
    for (path, port) in [(0, 6001), (1, 6002)] {
        let [from, to] = ["a", "b"].map(|node| {
            let bind = SocketAddr::new(lab.address_on(node, path).expect("an address").into(), port);
            lab.inside(node, || UdpSocket::open(&UdpOptions::new(bind)).map_err(std::io::Error::other))
                .expect("a socket")
        });
        train(&from, to.local_addr(), 1000, 2, Ecn::NotEct);
        receive(&to, 2);
    }
    assert!(lab.address_on("a", 2).is_err() && lab.address("c").is_err());
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    for (port, delay) in [(6001, 1_000_000), (6002, 2_000_000)] {
        assert_eq!(flow(records.path(), &summary, port).delay_max_ns, delay);
    }
}

#[test]
fn emulated_link_follows_a_trace() {
    if !can_run() {
        return;
    }
    let trace = tempfile::NamedTempFile::new().expect("a file");
    // Ten packets of 1500 bytes every 10 ms, in the fifth.
    fs::write(trace.path(), "5\n".repeat(10) + "10\n").expect("a trace");
    let traced =
        longhaul_lab::LinkSpec::Traced { link: "queue=1MiB".to_owned(), trace: trace.path().to_owned() };
    let (lab, records) = up("trace", &TopologySpec::Path { forward: traced, reverse: None });
    let (a, b) = (udp(&lab, "a", 6000, true), udp(&lab, "b", 6001, true));
    train(&a, b.local_addr(), 1472, 40, Ecn::NotEct);
    receive(&b, 40);
    let summary = lab.down().expect("an end");
    check_conservation(&summary);
    // 11 in each period: 40 take more than three periods and less than five, wherever in the first they begin.
    let delay = flow(records.path(), &summary, 6001).delay_max_ns;
    assert!((30_000_000..50_000_000).contains(&delay), "{delay}");
}

#[test]
fn commands_run_in_their_node_and_end_with_the_lab() {
    if !can_run() {
        return;
    }
    let (lab, _records) = up("commands", &TopologySpec::path("delay=1ms"));
    let shown = lab.command("b", "cat").expect("a node").arg("/proc/net/fib_trie").output().expect("cat");
    let text = String::from_utf8(shown.stdout).expect("text");
    assert!(text.contains("10.77.0.2") && !text.contains("10.77.0.1\n"), "{text}");
    let mut sleeper = lab.command("a", "sleep").expect("a node").arg("1000").spawn().expect("sleep");
    assert!(matches!(
        Lab::up(&format!("commands-{}", std::process::id()), &TopologySpec::path(""), 1),
        Err(longhaul_lab::LabError::Exists(_))
    ));
    lab.down().expect("an end");
    assert_eq!(sleeper.wait().expect("an end").signal(), Some(9));
    assert_gone(&format!("commands-{}", std::process::id()));
}

fn namespaces(name: &str) -> Vec<PathBuf> {
    let prefix = format!("lh-{name}-");
    let entries =
        fs::read_dir("/run/netns").into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries
        .filter(|path| path.file_name().unwrap_or_default().to_string_lossy().starts_with(&prefix))
        .collect()
}

fn assert_gone(name: &str) {
    assert_eq!(namespaces(name), Vec::<PathBuf>::new());
    assert!(!Path::new("/run/longhaul-lab").join(name).exists());
}

/// An owner process with its laboratory up.
fn owner(name: &str) -> Child {
    let topology = serde_json::to_string(&TopologySpec::path("delay=1ms")).expect("a text");
    let mut command = Command::new(PROGRAM);
    command.args(["up", name, &topology]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a process");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("an output")).read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    assert_eq!(namespaces(name).len(), 2);
    child
}

fn emulator(name: &str) -> Pid {
    let text =
        fs::read_to_string(Path::new("/run/longhaul-lab").join(name).join("emulator.lock")).expect("a lock");
    Pid::from_raw(text.trim().parse().expect("a number")).expect("a process")
}

#[test]
fn killed_owner_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let name = format!("killed-{}", std::process::id());
    let mut owner = owner(&name);
    owner.kill().expect("killed");
    owner.wait().expect("an end");
    // The emulator notices by itself; wait until the laboratory is removed.
    clean().expect("clean");
    assert_gone(&name);
}

#[test]
fn clean_removes_labs_of_killed_owner_and_emulator() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let name = format!("both-{}", std::process::id());
    let mut owner = owner(&name);
    let emulator = emulator(&name);
    // The owner first, which would clean up.
    kill_process(emulator, Signal::KILL).expect("killed");
    owner.kill().expect("killed");
    owner.wait().expect("an end");
    while fs::metadata(format!("/proc/{}", emulator.as_raw_nonzero())).is_ok() {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(namespaces(&name).len(), 2);
    assert!(clean().expect("clean").contains(&name));
    assert_gone(&name);
}

#[test]
fn killed_emulator_is_an_error_and_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let (mut lab, _records) = up("dead", &TopologySpec::path("delay=1ms"));
    let name = format!("dead-{}", std::process::id());
    kill_process(emulator(&name), Signal::KILL).expect("killed");
    assert!(lab.mark("after").is_err());
    assert!(lab.down().is_err());
    assert_gone(&name);
}

#[test]
fn directly_connected_nodes_bypass_the_emulator() {
    if !can_run() {
        return;
    }
    // A link that loses everything: only traffic that bypasses it arrives.
    let (lab, _record) = up("joined", &TopologySpec::path("delay=1ms loss=100%"));
    let [a, b] = lab.connect_directly(1500).expect("joined");
    let listener = lab.inside("b", || TcpListener::bind((b, 0))).expect("a listener");
    let to = listener.local_addr().expect("an address");
    let mut sender = lab.inside("a", || TcpStream::connect(to)).expect("a connection");
    assert_eq!(sender.local_addr().expect("an address").ip(), IpAddr::V4(a));
    sender.write_all(b"straight").expect("sent");
    let (mut receiver, _) = listener.accept().expect("a client");
    let mut got = [0; 8];
    receiver.read_exact(&mut got).expect("received");
    assert_eq!(&got, b"straight");
    drop((sender, receiver, listener));
    lab.down().expect("down");
    let (lab, _record) = up("star", &TopologySpec::Star { nodes: 3, up: None, down: "delay=1ms".into() });
    let error = lab.connect_directly(1500).expect_err("three nodes").to_string();
    assert!(error.contains("only two nodes"), "{error}");
}
