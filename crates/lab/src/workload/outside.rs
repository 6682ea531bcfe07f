//! Starts the two ends of a flow and parses their output: our own programs, `longhaul perf` and `put`, and other
//! programs where installed.

use super::by_program::KernelPrograms;
use super::parts::Parts;
use super::{ARGUMENT, Bulk, Exchange, Pattern, Report, Requests, Role, mptcp};
use crate::plan::{Flow, Program};
use base::Span;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Payload of a full TCP segment with timestamps in a packet of 1500 bytes.
const TCP_SHARE: f64 = 1448.0 / 1500.0;
/// Bytes of a Longhaul message, on fast and on slow paths.
const MESSAGE: (u64, u64) = (1 << 20, 64 << 10);
/// Below this many bytes in flight, the small message is used.
const SMALL_PATH: u64 = 4 << 20;
/// Memory that `perf server` may give a flow, for as many queue pairs as the plan has.
const MEMORY: &str = "16GiB";
/// Most messages in progress on a queue pair, as in `longhaul perf`.
const MAX_DEPTH: u64 = 4_096;
/// Bytes of the region of each queue pair.
const REGION: u64 = 8 << 20;

/// The available programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This executable.
    pub longhaul: PathBuf,
    /// quinn's, if built.
    pub quinn: Option<PathBuf>,
    /// iperf3, if installed.
    pub iperf3: Option<PathBuf>,
    /// Our congestion control in the kernel's TCP.
    pub kernel_programs: Arc<KernelPrograms>,
}

impl Programs {
    /// Searches for `quinn-perf` beside `longhaul` and in `PATH`, and for the others in `PATH`.
    pub fn find(longhaul: &Path) -> Programs {
        let in_path = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|d| d.join(name)).find(|p| p.is_file())
        };
        let beside = longhaul.parent().map(|d| d.join("quinn-perf")).filter(|p| p.is_file());
        Programs {
            longhaul: longhaul.to_owned(),
            quinn: beside.or_else(|| in_path("quinn-perf")),
            iperf3: in_path("iperf3"),
            kernel_programs: Arc::default(),
        }
    }
}

/// A command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Whether it ends, and reports, when its standard input does; otherwise it gets a signal.
    pub ends_with_input: bool,
}

/// Facts of the path for starting a flow.
#[derive(Clone, Copy, Debug)]
pub struct PathFacts {
    /// Bytes in flight and queued when the path is full.
    pub full: u64,
    /// Address and port of the receiver.
    pub to: SocketAddr,
    /// Seed of the flow.
    pub seed: u64,
    /// For a flow over two paths, the addresses of sender and receiver on the second.
    pub second: Option<[IpAddr; 2]>,
}

/// The two ends of a flow.
#[derive(Clone, Debug)]
pub struct FlowCommands {
    /// The receiver, started first.
    pub receiver: CommandLine,
    /// The sender, started at the flow's time.
    pub sender: CommandLine,
    /// A file that the sender needs, with its size.
    pub file: Option<(PathBuf, u64)>,
}

/// Why a flow cannot run on this machine, and the remedy; `None` if it can.
pub fn why_unavailable(flow: &Flow, p: &Programs) -> Option<String> {
    match flow.program {
        Program::Quic if p.quinn.is_none() => Some(
            "quinn-perf was not found beside this program or in PATH; build it: \
             cargo build --release -p quinn-perf"
                .to_owned(),
        ),
        Program::Iperf3 if p.iperf3.is_none() => {
            Some("iperf3 is not installed; install the package iperf3".to_owned())
        }
        Program::Udt => Some(udt_missing()),
        Program::Tcp if flow.multipath => {
            mptcp::available().and_then(|()| p.kernel_programs.name(&flow.cc)).err()
        }
        Program::Tcp
        | Program::TcpRequests
        | Program::TcpOnOff
        | Program::Iperf3
        | Program::TcpMessages
        | Program::IwarpMessages => p.kernel_programs.name(&flow.cc).err(),
        _ => None,
    }
}

/// UDT4 is a library without a program to start.
fn udt_missing() -> String {
    let folders = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    let here = folders.iter().any(|d| {
        let entries = std::fs::read_dir(d).into_iter().flatten().flatten();
        entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("libudt.so"))
    });
    if here {
        "libudt is installed, but it brings no program that sends and receives bulk data; UDT4 is left out"
            .to_owned()
    } else {
        "libudt is not installed, and it brings no program that sends and receives bulk data; UDT4 is left out"
            .to_owned()
    }
}

/// The kernel's name of a flow's congestion control, which `why_unavailable` has checked.
fn tcp_cc(flow: &Flow, p: &Programs) -> String {
    p.kernel_programs.name(&flow.cc).unwrap_or_else(|_| flow.cc.clone())
}

fn seconds(s: Span) -> String {
    // Whole milliseconds, which all programs accept.
    format!("{:.3}", s.as_secs_f64())
}

/// The command lines of a flow. `home` is a folder for its use.
pub fn commands_of(flow: &Flow, p: &Programs, at: PathFacts, home: &Path) -> FlowCommands {
    let tcp_cc = || tcp_cc(flow, p);
    let any: IpAddr = if at.to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let listen = SocketAddr::new(any, at.to.port());
    let own = |role: &Role| CommandLine {
        program: p.longhaul.clone(),
        // A role is plain data and can always be written as JSON.
        args: vec![ARGUMENT.to_owned(), serde_json::to_string(role).unwrap_or_default()],
        ends_with_input: true,
    };
    let pattern = Pattern {
        seconds: flow.duration.as_secs_f64(),
        on: flow.on.as_secs_f64(),
        off: flow.off.as_secs_f64(),
    };
    let bulk = || Bulk {
        to: at.to,
        cc: flow.cc.clone(),
        streams: flow.streams,
        pattern,
        bytes: flow.bytes,
        multipath: at.second.is_some(),
    };
    let requests = || Requests {
        to: at.to,
        cc: flow.cc.clone(),
        size: flow.size,
        streams: flow.streams.min(128) as u16,
        pattern,
        every: flow.every,
        known_rate: flow.known_rate.map(|r| r.bits_per_sec()),
        seed: at.seed,
    };
    let (receiver, sender) = match flow.program {
        Program::Longhaul => return perf(flow, p, at, listen),
        Program::IwarpMessages | Program::LonghaulMessages => return messages(flow, p, at, listen),
        Program::TcpMessages => {
            let seconds = flow.duration.as_secs_f64();
            let (size, ping_pong, busy_poll, cc) = (flow.size, flow.ping_pong, flow.busy_poll, tcp_cc());
            let exchange = Exchange { size, seconds, ping_pong, busy_poll, cc };
            let sender = Role::TcpMessages { to: at.to, exchange: exchange.clone() };
            (own(&Role::TcpMessageSink { listen, exchange }), own(&sender))
        }
        Program::Put => return put(flow, p, at, listen, home),
        Program::Quic => return quic(flow, p, at, listen),
        Program::Iperf3 | Program::Udt => return iperf3(flow, p, at),
        Program::Tcp | Program::TcpOnOff => {
            let also = at.second.map(|[_, there]| there);
            let cc = tcp_cc();
            (own(&Role::TcpSink { listen, also, cc: cc.clone() }), own(&Role::TcpSend(Bulk { cc, ..bulk() })))
        }
        Program::TcpRequests => {
            let cc = tcp_cc();
            let answers = Role::TcpAnswers { listen, cc: cc.clone() };
            (own(&answers), own(&Role::TcpRequests(Requests { cc, ..requests() })))
        }
        Program::LonghaulRequests => {
            let r = requests();
            let answers = Role::LonghaulAnswers { listen, size: r.size, streams: r.streams };
            (own(&answers), own(&Role::LonghaulRequests(r)))
        }
        Program::LonghaulParts => (own(&Role::PartsSink { listen }), own(&Role::Parts(parts(flow, at.to)))),
        Program::UdpOnOff => {
            let rate = flow.rate.map_or(1_000_000, |r| r.bits_per_sec());
            (own(&Role::UdpSink { listen }), own(&Role::UdpSend { to: at.to, rate, pattern }))
        }
    };
    FlowCommands { receiver, sender, file: None }
}

/// A sender of several parts.
pub fn parts(flow: &Flow, to: SocketAddr) -> Parts {
    Parts {
        to,
        cc: flow.cc.clone(),
        policy: flow.policy.clone(),
        seconds: flow.duration.as_secs_f64(),
        warm_up: flow.warm_up.as_secs_f64(),
        parts: flow.parts.clone(),
    }
}

fn line(program: &Path, args: &[&str]) -> CommandLine {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    CommandLine { program: program.to_owned(), args, ends_with_input: false }
}

/// Congestion control and rates, as arguments of `perf client` and `put`.
fn sender_args(flow: &Flow) -> Vec<String> {
    let mut out = Vec::new();
    if !flow.cc.is_empty() {
        out.extend(["--cc".to_owned(), flow.cc.clone()]);
    }
    for (flag, rate) in [("--known-rate", flow.known_rate), ("--limit", flow.limit)] {
        out.extend(rate.into_iter().flat_map(|r| [flag.to_owned(), format!("{}bit", r.bits_per_sec())]));
    }
    out.extend(flow.args.iter().cloned());
    out
}

/// Message size and messages in progress on each queue pair: enough that work, which completes in order, keeps the
/// path full despite repeated losses, and not so much that the end takes long.
pub fn message_size_and_depth(full: u64, streams: u32) -> (u64, u64) {
    let size = if full >= SMALL_PATH { MESSAGE.0 } else { MESSAGE.1 };
    let ahead = full.saturating_mul(8).div_ceil(size).div_ceil(u64::from(streams.max(1)));
    (size, ahead.clamp(4, MAX_DEPTH))
}

fn perf(flow: &Flow, p: &Programs, at: PathFacts, listen: SocketAddr) -> FlowCommands {
    let listen = listen.to_string();
    let args = [
        "perf",
        "server",
        "--listen",
        &listen,
        "--allow-any-key",
        "--json",
        "--discover",
        "off",
        "--arrivals",
        "--memory",
        MEMORY,
    ];
    let receiver = line(&p.longhaul, &args);
    let (size, depth) = message_size_and_depth(at.full, flow.streams);
    let (to, streams) = (at.to.to_string(), flow.streams.to_string());
    let amount = match flow.bytes {
        Some(b) => ["-n".to_owned(), b.to_string()],
        None => ["-t".to_owned(), seconds(flow.duration)],
    };
    let (size, depth, region) = (size.to_string(), depth.to_string(), REGION.max(size).to_string());
    let mut sender = line(
        &p.longhaul,
        &[
            "perf",
            "client",
            &to,
            "--json",
            "--accept-new",
            // Only over the paths of the plan.
            "--discover",
            "off",
            "--interval",
            "0",
            "-P",
            &streams,
            "--size",
            &size,
            "--depth",
            &depth,
            "--region",
            &region,
            &amount[0],
            &amount[1],
        ],
    );
    if flow.bytes.is_none() {
        // A flow that gets little rate would take long to finish what is in progress.
        sender.args.push("--stop".to_owned());
    }
    if let Some([here, there]) = at.second {
        sender.args.extend(["--path".to_owned(), format!("{here},{there}")]);
    }
    sender.args.extend(sender_args(flow));
    FlowCommands { receiver, sender, file: None }
}

/// Messages over iWARP or Longhaul's own transport. Both ends get the flow's arguments: settings of MPA, or what the
/// ends must agree on.
fn messages(flow: &Flow, p: &Programs, at: PathFacts, listen: SocketAddr) -> FlowCommands {
    let (iwarp, tcp_cc) = (flow.program == Program::IwarpMessages, tcp_cc(flow, p));
    let (listen, size, time) = (listen.to_string(), flow.size.to_string(), seconds(flow.duration));
    let to = if iwarp { format!("iwarp://{}", at.to) } else { at.to.to_string() };
    let kind: [&[&str]; 2] = match iwarp {
        true => [&["--iwarp", "plain"], &["--plain"]],
        false => [&["--discover", "off"], &["--discover", "off", "--accept-new"]],
    };
    let mut receiver = line(&p.longhaul, &["perf", "server", "--allow-any-key"]);
    receiver
        .args
        .extend(["--listen", &listen, "--json", "--count", "1", "--memory", MEMORY].map(str::to_owned));
    let mut sender = line(&p.longhaul, &["perf", "client", &to, "--json", "-i", "0", "-t", &time]);
    // One buffer of a message's size at each end, as with TCP.
    sender.args.extend(["--size", &size, "--region", &size].map(str::to_owned));
    let operation: &[&str] = if flow.ping_pong { &["-o", "send", "--latency"] } else { &["-o", "write"] };
    sender.args.extend(operation.iter().map(|a| (*a).to_owned()));
    for (end, kind) in [&mut receiver, &mut sender].into_iter().zip(kind) {
        end.args.extend(kind.iter().map(|a| (*a).to_owned()));
        end.args.extend(flow.busy_poll.then(|| ["--poll", "spin"].map(str::to_owned)).into_iter().flatten());
        if iwarp && !tcp_cc.is_empty() {
            end.args.extend(["--tcp-cc", &tcp_cc].map(str::to_owned));
        }
        end.args.extend(flow.args.iter().cloned());
    }
    if !iwarp && !flow.cc.is_empty() {
        sender.args.extend(["--cc".to_owned(), flow.cc.clone()]);
    }
    FlowCommands { receiver, sender, file: None }
}

fn put(flow: &Flow, p: &Programs, at: PathFacts, listen: SocketAddr, home: &Path) -> FlowCommands {
    let (listen, folder) = (listen.to_string(), home.join("received"));
    let folder = folder.display().to_string();
    let args = [
        "serve",
        &folder,
        "--listen",
        &listen,
        "--allow-any-key",
        "--json",
        "--no-sync",
        "--discover",
        "off",
    ];
    let receiver = line(&p.longhaul, &args);
    let file = home.join("file");
    let (source, to) = (file.display().to_string(), format!("longhaul://{}/", at.to));
    let mut sender = line(&p.longhaul, &["put", &source, &to, "--json", "--accept-new", "--discover", "off"]);
    sender.args.extend(sender_args(flow));
    FlowCommands { receiver, sender, file: Some((file, flow.bytes.unwrap_or(0))) }
}

fn quic(flow: &Flow, p: &Programs, at: PathFacts, listen: SocketAddr) -> FlowCommands {
    let program = p.quinn.clone().unwrap_or_else(|| "quinn-perf".into());
    let cc = if flow.cc.is_empty() { "cubic" } else { &flow.cc };
    // Windows hold what the path and its queue hold. With larger ones BBR overshoots until a stream has over 1024
    // gaps at once, at which quinn closes the connection ("too many gaps in stream buffer").
    let window = at.full.div_ceil(1 << 20).clamp(4, 4_096).to_string();
    let (listen, to) = (listen.to_string(), at.to.to_string());
    let receiver = line(&program, &["server", "--listen", &listen, "--cc", cc, "--window", &window]);
    let time = flow.duration.as_secs_f64().ceil().max(1.0).to_string();
    let streams = flow.streams.to_string();
    let sender = line(
        &program,
        &[
            "client",
            &to,
            "--json",
            "--stop",
            "--seconds",
            &time,
            "--streams",
            &streams,
            "--cc",
            cc,
            "--window",
            &window,
        ],
    );
    FlowCommands { receiver, sender, file: None }
}

fn iperf3(flow: &Flow, p: &Programs, at: PathFacts) -> FlowCommands {
    let program = p.iperf3.clone().unwrap_or_else(|| "iperf3".into());
    let port = at.to.port().to_string();
    let receiver = line(&program, &["-s", "-p", &port, "--forceflush"]);
    let (to, streams, time) = (at.to.ip().to_string(), flow.streams.to_string(), seconds(flow.duration));
    let time = time.split('.').next().unwrap_or("1").to_owned();
    let mut sender = line(&program, &["-c", &to, "-p", &port, "-J", "-P", &streams]);
    match flow.bytes {
        Some(b) => sender.args.extend(["-n".to_owned(), b.to_string()]),
        None => sender.args.extend(["-t".to_owned(), time]),
    }
    if !flow.cc.is_empty() {
        sender.args.extend(["-C".to_owned(), tcp_cc(flow, p)]);
    }
    FlowCommands { receiver, sender, file: None }
}

/// The reports of both ends of a flow.
#[derive(Clone, Debug, Default)]
pub struct EndReports {
    /// The sender's report.
    pub sender: Report,
    /// The receiver's report.
    pub receiver: Option<Report>,
    /// Processor seconds of both ends.
    pub cpu: Option<[f64; 2]>,
}

/// Parses the output of both ends.
///
/// # Errors
/// Unexpected output, as text.
pub fn parse_reports(flow: &Flow, sender: &str, receiver: &str) -> Result<EndReports, String> {
    match flow.program {
        Program::Longhaul => {
            let mut said = read_perf(&last_object(sender)?)?;
            // The receiver's report is optional, since it only adds the times of arrival.
            said.receiver = last_object(receiver).ok().and_then(|v| serde_json::from_value(v).ok());
            Ok(said)
        }
        Program::IwarpMessages | Program::LonghaulMessages => read_messages(&last_object(sender)?),
        Program::Put => read_put(&last_object(sender)?),
        Program::Quic => read_quic(&last_object(sender)?),
        Program::Iperf3 | Program::Udt => read_iperf3(sender),
        _ => {
            let read = |v: Value| serde_json::from_value::<Report>(v).map_err(|e| e.to_string());
            let (mut s, r) = (read(last_object(sender)?)?, read(last_object(receiver)?)?);
            if matches!(flow.program, Program::Tcp | Program::TcpOnOff | Program::TcpRequests) {
                s.payload_share = Some(TCP_SHARE);
            }
            let cpu = Some([s.cpu_seconds, r.cpu_seconds]);
            Ok(EndReports { sender: s, receiver: Some(r), cpu })
        }
    }
}

/// The last line that is a JSON object.
fn last_object(text: &str) -> Result<Value, String> {
    let mut lines = text.lines().rev().filter(|l| l.trim_start().starts_with('{'));
    let line = lines.next().ok_or("it printed no result")?;
    serde_json::from_str(line).map_err(|e| format!("its result cannot be read: {e}"))
}

fn number(v: &Value, path: &[&str]) -> Result<f64, String> {
    let found = path.iter().try_fold(v, |v, key| v.get(key)).and_then(Value::as_f64);
    found.ok_or_else(|| format!("its result lacks {}", path.join(".")))
}

fn cpu_of(v: &Value, end: &str) -> Result<f64, String> {
    Ok(number(v, &[end, "cpu_user_seconds"])? + number(v, &[end, "cpu_system_seconds"])?)
}

fn read_messages(v: &Value) -> Result<EndReports, String> {
    let trip = |key: &str| number(v, &["latency_nanoseconds", key]).map(|n| n / 1e9);
    let message_rtts = match v.get("latency_nanoseconds").filter(|l| !l.is_null()) {
        Some(_) => Some([trip("min")?, trip("median")?, trip("p99")?, trip("max")?]),
        None => None,
    };
    let (bytes, seconds) = (number(v, &["bytes"])? as u64, number(v, &["seconds"])?);
    let sender = Report { bytes, seconds, message_rtts, ..Report::default() };
    Ok(EndReports { sender, receiver: None, cpu: Some([cpu_of(v, "client")?, cpu_of(v, "server")?]) })
}

fn read_perf(v: &Value) -> Result<EndReports, String> {
    let sent = number(v, &["client", "payload_sent"])?;
    let packets = number(v, &["client", "bytes_sent"])? - number(v, &["client", "control_bytes_sent"])?;
    let sender = Report {
        // Data that had arrived when the time was over, including incomplete messages.
        bytes: number(v, &["server", "payload_received"]).or(number(v, &["bytes"]))? as u64,
        seconds: number(v, &["seconds"])?,
        retransmitted: Some(number(v, &["retransmitted_share"])?),
        payload_share: (packets > 0.0).then(|| sent / packets),
        ..Report::default()
    };
    Ok(EndReports { sender, receiver: None, cpu: Some([cpu_of(v, "client")?, cpu_of(v, "server")?]) })
}

fn read_put(v: &Value) -> Result<EndReports, String> {
    let connection = |key: &str| number(v, &["connection", key]);
    let seconds = number(v, &["seconds"])?;
    let sent = connection("payload_sent")?;
    let packets = connection("bytes_sent")? - connection("control_bytes_sent")?;
    let sender = Report {
        bytes: (number(v, &["goodput_bits_per_second"])? * seconds / 8.0) as u64,
        seconds,
        retransmitted: Some(connection("payload_retransmitted")? / sent.max(1.0)),
        payload_share: (packets > 0.0).then(|| sent / packets),
        completions: vec![seconds],
        ..Report::default()
    };
    Ok(EndReports { sender, receiver: None, cpu: None })
}

fn read_quic(v: &Value) -> Result<EndReports, String> {
    let cpu = |end: &str| -> Result<f64, String> {
        Ok(number(v, &[end, "cpu_user_s"])? + number(v, &[end, "cpu_system_s"])?)
    };
    let sent = number(v, &["sent_packets"])?;
    let datagram = number(v, &["udp_payload_bytes"])?;
    let sender = Report {
        bytes: number(v, &["receiver", "bytes"])? as u64,
        seconds: number(v, &["receiver", "seconds"])?,
        // QUIC retransmits the content of lost packets.
        retransmitted: Some(number(v, &["lost_packets"])? / sent.max(1.0)),
        // Short header with an 8-byte connection identifier, packet number, STREAM frame, tag: about 40 bytes.
        payload_share: Some((datagram - 40.0) / (datagram + 28.0)),
        ..Report::default()
    };
    Ok(EndReports { sender, receiver: None, cpu: Some([cpu("sender")?, cpu("receiver")?]) })
}

fn read_iperf3(text: &str) -> Result<EndReports, String> {
    let v: Value = serde_json::from_str(text).map_err(|e| format!("iperf3's result cannot be read: {e}"))?;
    if let Some(e) = v.get("error").and_then(Value::as_str) {
        return Err(format!("iperf3: {e}"));
    }
    let seconds = number(&v, &["end", "sum_received", "seconds"])?;
    let bytes = number(&v, &["end", "sum_received", "bytes"])?;
    let retransmitted = number(&v, &["end", "sum_sent", "retransmits"]).unwrap_or(0.0);
    let sent = number(&v, &["end", "sum_sent", "bytes"])?;
    let cpu = |key: &str| {
        number(&v, &["end", "cpu_utilization_percent", key]).map(|p| p / 100.0 * seconds).unwrap_or(0.0)
    };
    let sender = Report {
        bytes: bytes as u64,
        seconds,
        retransmitted: Some(retransmitted * 1448.0 / sent.max(1.0)),
        payload_share: Some(TCP_SHARE),
        ..Report::default()
    };
    Ok(EndReports { sender, receiver: None, cpu: Some([cpu("host_total"), cpu("remote_total")]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn flow(peer: &str) -> Flow {
        let text = format!(
            "title=\"x\"\nduration=\"3s\"\nmetrics=[\"goodput\"]\n[topology]\nkind=\"path\"\nrate=\"1gbit\"\n\
             rtt=\"70ms\"\n[[peer]]\nname=\"x\"\nflow=[{{ {peer} }}]\n"
        );
        Plan::parse("x", &text).expect("a plan").cells[0].peers[0].flows[0].clone()
    }

    fn lines(peer: &str) -> (String, String) {
        let p = Programs {
            longhaul: "/bin/lh".into(),
            quinn: Some("/bin/q".into()),
            iperf3: None,
            kernel_programs: Arc::default(),
        };
        let at = PathFacts { full: 17_500_000, to: ([10, 77, 0, 2], 20_000).into(), seed: 1, second: None };
        let j = commands_of(&flow(peer), &p, at, Path::new("/tmp/h"));
        let words = |l: CommandLine| format!("{} {}", l.program.display(), l.args.join(" "));
        (words(j.receiver), words(j.sender))
    }

    #[test]
    fn longhaul_commands_are_those_of_a_user() {
        let (r, s) = lines(
            "program=\"longhaul\", cc=\"cubic\", streams=3, known_rate=\"path\", args=[\"--suite\",\"crc32c\"]",
        );
        assert_eq!(
            r,
            "/bin/lh perf server --listen 0.0.0.0:20000 --allow-any-key --json --discover off --arrivals --memory 16GiB"
        );
        assert_eq!(
            s,
            "/bin/lh perf client 10.77.0.2:20000 --json --accept-new --discover off --interval 0 -P 3 --size 1048576 --depth 45 \
             --region 8388608 -t 3.000 --stop --cc cubic --known-rate 1000000000bit --suite crc32c"
        );
        let p = Programs {
            longhaul: "/bin/lh".into(),
            quinn: None,
            iperf3: None,
            kernel_programs: Arc::default(),
        };
        let second = Some([[10, 78, 0, 1].into(), [10, 78, 0, 2].into()]);
        let at = PathFacts { full: 17_500_000, to: ([10, 77, 0, 2], 20_000).into(), seed: 1, second };
        let j = commands_of(&flow("program=\"longhaul\""), &p, at, Path::new("/tmp/h"));
        assert!(j.sender.args.join(" ").contains("--path 10.78.0.1,10.78.0.2"), "{:?}", j.sender.args);
        let (_, s) = lines("program=\"put\", bytes=\"1GiB\"");
        assert_eq!(
            s,
            "/bin/lh put /tmp/h/file longhaul://10.77.0.2:20000/ --json --accept-new --discover off"
        );
        let (r, s) = lines("program=\"quic\", cc=\"bbr\", streams=10");
        assert_eq!(r, "/bin/q server --listen 0.0.0.0:20000 --cc bbr --window 17");
        assert!(s.contains("--seconds 3 --streams 10 --cc bbr"), "{s}");
    }

    #[test]
    fn own_workloads_get_a_role_in_json() {
        let (r, s) = lines("program=\"tcp\", cc=\"bbr\", streams=25");
        assert_eq!(
            r,
            "/bin/lh lab-workload {\"role\":\"tcp_sink\",\"listen\":\"0.0.0.0:20000\",\"also\":null,\"cc\":\"bbr\"}"
        );
        let role = s.split_once("lab-workload ").expect("a role").1;
        let Role::TcpSend(b) = serde_json::from_str(role).expect("a role") else { panic!("{role}") };
        assert_eq!((b.streams, b.cc.as_str(), b.pattern.seconds), (25, "bbr", 3.0));
    }

    #[test]
    fn message_programs_use_equal_sizes_buffers_and_settings() {
        let text = "title=\"x\"\nduration=\"3s\"\nmetrics=[\"message_rtt\"]\n[topology]\nkind=\"direct\"\n[sweep]\nsize=[\"64KiB\"]\n\
            [[peer]]\nname=\"x\"\nflow=[{ program=\"iwarp_messages\", args=[\"--mpa-crc\",\"off\"] }, \
            { program=\"iwarp_messages\", ping_pong=true, busy_poll=true }, { program=\"tcp_messages\", ping_pong=true }, \
            { program=\"longhaul_messages\", args=[\"--encryption\",\"crc32c\"] }]\n";
        let plan = Plan::parse("x", text).unwrap_or_else(|e| panic!("{e}"));
        let p = Programs {
            longhaul: "/bin/lh".into(),
            quinn: None,
            iperf3: None,
            kernel_programs: Arc::default(),
        };
        let at = PathFacts { full: 0, to: ([10, 76, 0, 2], 20_000).into(), seed: 1, second: None };
        let words = |i: usize| {
            let j = commands_of(&plan.cells[0].peers[0].flows[i], &p, at, Path::new("/tmp/h"));
            [j.receiver, j.sender].map(|l| l.args.join(" "))
        };
        let [r, s] = words(0);
        assert_eq!(
            r,
            "perf server --allow-any-key --listen 0.0.0.0:20000 --json --count 1 --memory 16GiB --iwarp plain --mpa-crc off"
        );
        assert_eq!(
            s,
            "perf client iwarp://10.76.0.2:20000 --json -i 0 -t 3.000 --size 65536 --region 65536 -o write --plain \
             --mpa-crc off"
        );
        let [r, s] = words(1);
        assert!(
            r.ends_with("--poll spin") && s.ends_with("-o send --latency --plain --poll spin"),
            "{r}, {s}"
        );
        let [r, s] = words(2);
        assert!(
            r.contains("tcp_message_sink")
                && s.contains("\"size\":65536")
                && s.contains("\"ping_pong\":true")
        );
        let [r, s] = words(3);
        assert_eq!(
            r,
            "perf server --allow-any-key --listen 0.0.0.0:20000 --json --count 1 --memory 16GiB --discover off --encryption crc32c"
        );
        assert_eq!(
            s,
            "perf client 10.76.0.2:20000 --json -i 0 -t 3.000 --size 65536 --region 65536 -o write --discover off \
             --accept-new --encryption crc32c"
        );
    }

    #[test]
    fn message_programs_use_the_congestion_control_of_the_plan() {
        // Reno is in every kernel.
        let text = "title=\"x\"\nduration=\"3s\"\nmetrics=[\"message_rtt\"]\n[topology]\nkind=\"direct\"\n[sweep]\nsize=[\"4B\"]\n\
            [[peer]]\nname=\"x\"\nflow=[{ program=\"iwarp_messages\", cc=\"reno\" }, { program=\"tcp_messages\", cc=\"reno\" }, \
            { program=\"longhaul_messages\", cc=\"reno\" }]\n";
        let plan = Plan::parse("x", text).unwrap_or_else(|e| panic!("{e}"));
        let p = Programs {
            longhaul: "/bin/lh".into(),
            quinn: None,
            iperf3: None,
            kernel_programs: Arc::default(),
        };
        let at = PathFacts { full: 0, to: ([10, 76, 0, 2], 20_000).into(), seed: 1, second: None };
        let ends = |i: usize| {
            let j = commands_of(&plan.cells[0].peers[0].flows[i], &p, at, Path::new("/tmp/h"));
            [j.receiver, j.sender].map(|l| l.args.join(" "))
        };
        for (i, what) in [(0, "--tcp-cc reno"), (1, "\"cc\":\"reno\"")] {
            assert!(ends(i).iter().all(|end| end.contains(what)), "{:?}", ends(i));
        }
        let [r, s] = ends(2);
        assert!(s.ends_with("--cc reno") && !r.contains("reno"), "{r}, {s}");
        let unknown = text.replacen("cc=\"reno\" }]", "cc=\"no_such_thing\" }]", 1);
        assert!(Plan::parse("x", &unknown).is_err(), "ours are checked when the plan is read");
    }

    #[test]
    fn round_trips_of_perf_are_parsed() {
        let cpu = r#"{"cpu_user_seconds":1,"cpu_system_seconds":0.5}"#;
        let text = format!(
            r#"{{"bytes":400,"seconds":2.0,"client":{cpu},"server":{cpu},"latency_nanoseconds":{{"min":1000,
"median":2000,"p99":3000,"max":4000}}}}"#
        )
        .replace(",\n", ",");
        let said = read_messages(&last_object(&text).expect("JSON")).expect("a result");
        assert_eq!(said.sender.message_rtts, Some([1e-6, 2e-6, 3e-6, 4e-6]));
        assert_eq!((said.sender.bytes, said.cpu), (400, Some([1.5, 1.5])));
        let bulk = text.replace("latency_nanoseconds", "no_trips");
        assert_eq!(
            read_messages(&last_object(&bulk).expect("JSON")).expect("a result").sender.message_rtts,
            None
        );
    }

    #[test]
    fn slow_paths_get_small_messages_and_small_depth() {
        assert_eq!(message_size_and_depth(17_500_000, 1), (1 << 20, 134));
        assert_eq!(message_size_and_depth(100_000, 1), (64 << 10, 13));
        assert_eq!(message_size_and_depth(0, 25), (64 << 10, 4));
        assert_eq!(message_size_and_depth(u64::MAX, 1).1, MAX_DEPTH);
    }

    #[test]
    fn reports_of_perf_and_quinn_are_parsed() {
        let perf = r#"{"listening":"x"}
{"bytes":1000000,"seconds":2.0,"retransmitted_share":0.01,"client":{"payload_sent":900,"bytes_sent":1100,
"control_bytes_sent":100,"cpu_user_seconds":0.5,"cpu_system_seconds":0.25},"server":{"cpu_user_seconds":1,"cpu_system_seconds":2}}"#
            .replace(",\n", ",");
        let arrived =
            "{\"listening\":\"x\"}\n{\"start_ns\":7,\"interval_ns\":10000000,\"bytes_per_interval\":[0,5]}";
        let said = parse_reports(&flow("program=\"longhaul\""), &perf, arrived).expect("a result");
        assert_eq!(
            said.receiver.as_ref().map(|r| (r.start_ns, r.bytes_per_interval.clone())),
            Some((7, vec![0, 5]))
        );
        assert_eq!((said.sender.bytes, said.sender.payload_share), (1_000_000, Some(0.9)));
        assert_eq!(said.cpu, Some([0.75, 3.0]));
        let end = r#"{"bytes":500,"seconds":1.5,"cpu_user_s":1.0,"cpu_system_s":0.5}"#;
        let quic = format!(
            r#"{{"sent_packets":200,"lost_packets":2,"udp_payload_bytes":1472,"sender":{end},"receiver":{end}}}"#
        );
        let said = parse_reports(&flow("program=\"quic\""), &quic, "").expect("a result");
        assert_eq!((said.sender.retransmitted, said.sender.bytes), (Some(0.01), 500));
        let e = parse_reports(&flow("program=\"longhaul\""), "{\"bytes\":1}", "").expect_err("not all there");
        assert!(e.contains("lacks client.payload_sent"), "{e}");
        assert!(
            parse_reports(&flow("program=\"longhaul\""), "", "").expect_err("nothing").contains("no result")
        );
    }

    #[test]
    fn missing_programs_are_skipped_with_a_remedy() {
        let p = Programs {
            longhaul: "/bin/lh".into(),
            quinn: None,
            iperf3: None,
            kernel_programs: Arc::default(),
        };
        assert!(
            why_unavailable(&flow("program=\"quic\""), &p)
                .expect("missing")
                .contains("cargo build --release -p quinn-perf")
        );
        assert!(why_unavailable(&flow("program=\"iperf3\""), &p).expect("missing").contains("install"));
        assert!(why_unavailable(&flow("program=\"udt\""), &p).expect("missing").contains("libudt"));
        assert_eq!(why_unavailable(&flow("program=\"longhaul\""), &p), None);
        assert!(
            why_unavailable(&flow("program=\"tcp\", cc=\"nonesuch\""), &p)
                .expect("missing")
                .contains("modprobe")
        );
    }
}
