//! Tests programs as congestion control of the kernel's TCP over the emulator. Needs root, `/dev/net/tun`, clang, and
//! a kernel that supports them; without one of these each test says so and passes.

use base::Rng;
use longhaul_lab::emulator::record::{self, Record, Summary};
use longhaul_lab::{Lab, Options, TopologySpec};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_longhaul-lab-node");
/// The headers that programs include.
const HEADERS: [kernel::Header<'static>; 2] =
    [("opencc.h", programs::HEADER), ("opencc_window.h", programs::WINDOW_HEADER)];

fn can_run() -> bool {
    let lab = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    let clang = std::process::Command::new("clang").arg("--version").output().is_ok();
    let can = lab && clang && kernel::check_support().is_ok();
    if !can {
        println!("skipped: it needs root, /dev/net/tun, clang, and a kernel with struct_ops for TCP");
    }
    can
}

fn up(test: &str, link: &str) -> (Lab, tempfile::NamedTempFile) {
    let record = tempfile::NamedTempFile::new().expect("a file");
    let options = Options {
        emulator: Some((PathBuf::from(PROGRAM), vec!["lab-emulator".to_owned()])),
        record: Some(record.path().to_owned()),
        ..Options::default()
    };
    let name = format!("{test}-{}", std::process::id());
    (Lab::up_with(&name, &TopologySpec::path(link), 7, &options).expect("a laboratory"), record)
}

/// A program's source, built and attached under a unique name.
fn attached(source: &str, prefix: &str, traced: bool, params: &[(&str, u64)]) -> kernel::Attached {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("program.c");
    std::fs::write(&path, source).expect("a file");
    let build = if traced { kernel::build_traced } else { kernel::build };
    let object = build(&path, &HEADERS).unwrap_or_else(|e| panic!("{e}"));
    let name = format!("{prefix}.{}", std::process::id());
    kernel::attach(&object, &name, params).unwrap_or_else(|e| panic!("{e}"))
}

/// A connection from node a to node b, both ends with this congestion control.
fn connection(lab: &Lab, cc: &str) -> (TcpStream, TcpStream) {
    let to = SocketAddr::new(lab.address("b").expect("a node").into(), 5001);
    let listener = lab.inside("b", || TcpListener::bind(to)).expect("a listener");
    SockRef::from(&listener).set_tcp_congestion(cc.as_bytes()).expect("the kernel has it");
    let socket =
        lab.inside("a", || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))).expect("a socket");
    socket.set_tcp_congestion(cc.as_bytes()).expect("the kernel has it");
    socket.connect(&to.into()).expect("a connection");
    let (receiver, _) = listener.accept().expect("a connection");
    for end in [SockRef::from(&socket), SockRef::from(&receiver)] {
        let name = end.tcp_congestion().expect("a name");
        assert_eq!(name.split(|b| *b == 0).next(), Some(cc.as_bytes()));
    }
    (socket.into(), receiver)
}

/// Sends bytes and checks that the same arrive.
fn transfer((mut sender, mut receiver): (TcpStream, TcpStream), length: usize) {
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

#[test]
fn shipped_programs_transfer_over_a_lossy_path() {
    if !can_run() {
        return;
    }
    for (name, source) in programs::shipped::SHIPPED {
        let program = attached(source, "lhl", false, &[]);
        let (lab, _records) = up(&format!("k{name}"), "rate=100mbit delay=5ms queue=128KiB loss=0.3%");
        transfer(connection(&lab, program.name()), 6 << 20);
        let summary = lab.down().expect("an end");
        println!(
            "{name}: {:?}",
            summary.links.iter().map(|l| (l.dropped_loss, l.dropped_queue)).collect::<Vec<_>>()
        );
        assert!(summary.links.iter().any(|l| l.dropped_loss > 0), "the path lost nothing");
    }
}

/// A program that decides what its parameters say.
const STEADY: &str = r#"
#include "opencc.h"
OC_PROGRAM("lh-steady", "a rate and a window", OC_NEEDS_NOTHING)
OC_COUNT(pace, "bytes/s", 1, 1000000000, 1000000, "how fast")
struct steady { u64 calls; };
OC_INLINE void decide(struct steady *t, const struct oc_signals *s, struct oc_decision *d)
{
	t->calls += 1;
	d->rate = OC_PARAM(pace);
	d->bound = 4000000;
	d->ssthresh = OC_NONE;
}
OC_INLINE void event(struct steady *t, const struct oc_signals *s, u64 what, struct oc_decision *d) { decide(t, s, d); }
OC_ALGORITHM(struct steady, decide, decide, event)
"#;

/// The rate at which bytes entered the link from a to b, in bit/s, without the first and last tenth of the time.
fn rate(records: &Path) -> f64 {
    let points: Vec<(u64, u64)> = record::read(records)
        .expect("records")
        .filter_map(|r| match r.expect("a record") {
            Record::Sample(s) => s.links.iter().find(|l| l.link == 0).map(|l| (s.at_ns, l.in_bytes)),
            _ => None,
        })
        .filter(|(_, bytes)| *bytes > 1000)
        .collect();
    let middle = &points[points.len() / 10..points.len() - points.len() / 10];
    let (first, last) = (middle.first().expect("samples"), middle.last().expect("samples"));
    let bytes: u64 = middle.iter().skip(1).map(|(_, bytes)| bytes).sum();
    bytes as f64 * 8e9 / (last.0 - first.0) as f64
}

#[test]
fn kernel_keeps_the_pacing_rate_of_the_program() {
    if !can_run() {
        return;
    }
    // Half of the link's rate, and ten times as much; the window does not matter.
    let queue = |pace: u64| {
        let program = attached(STEADY, "lhp", false, &[("pace", pace)]);
        let (lab, records) = up(&format!("k{pace}"), "rate=40mbit delay=5ms queue=256KiB");
        transfer(connection(&lab, program.name()), 4 << 20);
        let summary = lab.down().expect("an end");
        println!("asked {} bit/s, had {:.0}", pace * 8, rate(records.path()));
        forward(&summary)
    };
    let (slow, fast) = (queue(2_500_000), queue(50_000_000));
    println!("queue: {} bytes at half of the rate, {} at ten times", slow.0, fast.0);
    assert_eq!(slow.1, 0, "packets were dropped");
    // A late host sends what it owes at once: some packets, not hundreds.
    assert!(slow.0 < 128 << 10, "{} bytes waited", slow.0);
    assert!(fast.1 > 0, "the queue was never full");
}

/// Longest queue, packets dropped by it, and packets marked, on the link from a to b.
fn forward(summary: &Summary) -> (u64, u64, u64) {
    let link = summary.links.iter().find(|l| l.link == 0).expect("a link");
    (link.max_queue_bytes, link.dropped_queue, link.marked)
}

#[test]
fn dctcp_keeps_the_queue_at_the_threshold_that_reno_exceeds() {
    if !can_run() {
        return;
    }
    let run = |name: &str| {
        let source = programs::shipped::source(name).expect("it is shipped");
        let program = attached(source, "lhq", false, &[]);
        let (lab, records) = up(&format!("kq{name}"), "rate=100mbit delay=2ms queue=512KiB ecn=30KiB");
        transfer(connection(&lab, program.name()), 24 << 20);
        let summary = lab.down().expect("an end");
        // The mean over the samples, without slow start.
        let queues: Vec<u64> = record::read(records.path())
            .expect("records")
            .filter_map(|r| match r.expect("a record") {
                Record::Sample(s) => {
                    s.links.iter().find(|l| l.link == 0 && l.in_bytes > 0).map(|l| l.queue_bytes)
                }
                _ => None,
            })
            .collect();
        let later = &queues[queues.len() / 4..];
        let mean = later.iter().sum::<u64>() / later.len().max(1) as u64;
        println!("{name}: mean queue {mean} bytes, (most, dropped, marked) {:?}", forward(&summary));
        (mean, forward(&summary).2)
    };
    let (dctcp, reno) = (run("dctcp"), run("reno"));
    assert!(dctcp.1 > 0, "nothing was marked");
    assert_eq!(reno.1, 0, "reno does not ask for marks here");
    assert!(dctcp.0 * 2 < reno.0, "dctcp {} bytes, reno {}", dctcp.0, reno.0);
}

/// Runs the program compiled for this machine on the input of the kernel's copy; returns its comparison.
fn replay(source: &str, records: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).expect("a file");
    for (name, text) in HEADERS {
        write(name, text.as_bytes());
    }
    write("opencc_bpf.h", include_bytes!("replay/opencc_bpf.h"));
    write("program.c", source.as_bytes());
    write("records", records);
    let mut clang = std::process::Command::new("clang");
    let built = clang.args(["-O2", "-w", "-D__bpf__", "-o"]).arg(at("replay")).arg(at("program.c")).output();
    let built = built.expect("clang runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let input = std::fs::File::open(at("records")).expect("records");
    let done = std::process::Command::new(at("replay")).stdin(input).output().expect("it runs");
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn kernel_program_decides_like_the_same_source_compiled_natively() {
    if !can_run() {
        return;
    }
    for (name, source) in programs::shipped::SHIPPED {
        let program = attached(source, "lht", true, &[]);
        let (lab, _records) = up(&format!("kt{name}"), "rate=50mbit delay=4ms queue=64KiB loss=0.3%");
        transfer(connection(&lab, program.name()), 3 << 20);
        lab.down().expect("an end");
        let mut records = Vec::new();
        while let Some(record) = program.next_record().expect("a record") {
            records.extend_from_slice(&record);
        }
        let found = replay(source, &records);
        println!("{name}: {found}");
        let numbers: Vec<u64> = found.split(' ').filter_map(|w| w.parse().ok()).collect();
        let [count, losses, others] = numbers[..] else { panic!("{name}: {found}") };
        assert!(count > 100 && losses > 0, "{name}: {found}");
        assert_eq!(others, 0, "{name}: {found}");
    }
}
