//! Programs for verbs and MPI as distributions ship them, under `longhaul run`, beside `longhaul perf`, TCP and bare UDP: over veth
//! and over an emulated path.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use base::Span;
use lab::workload::sleep;
use serde_json::Value;

use crate::files::Folder;
use crate::files::hosts::Hosts;
use crate::net::{Kind, Net};
use crate::peer::{Process, first_line};
use crate::report::LISTENING;
use crate::rounds::{Spread, spread};

/// Bytes of a message of the throughput rows.
const MESSAGE: u64 = 65_536;
/// Bytes of a message of MPI: a rendezvous takes two round trips.
const MPI_MESSAGE: u64 = 1 << 20;
/// Round trips of the latency rows.
const TRIPS: u32 = 50_000;
/// What a server without a word needs until it listens.
const HEAD_START: Span = Span::from_millis(800);
/// UDP port of `perf`, and TCP port of perftest.
const PORT: u16 = 4461;

/// Options of the comparison.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// How often each has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Emulated path, in the words of `longhaul wan relay`; needs root
    #[arg(long, default_value = "rate=200mbit delay=20ms loss=0.1% queue=1bdp")]
    path: String,
    /// Bytes of each transfer over the path
    #[arg(long, default_value = "300MiB", value_parser = crate::files::size)]
    size: u64,
    /// Bytes of each transfer over veth
    #[arg(long, default_value = "6GiB", value_parser = crate::files::size)]
    direct_size: u64,
    /// Only rows whose name contains one of these; all when left out
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Where `longhaul` and its libraries are
    #[arg(long, default_value = "target/dist")]
    programs: PathBuf,
}

/// Two hosts.
enum Network {
    Direct(Net),
    Path(Box<Hosts>),
}

/// Where a run finds everything.
struct Place<'a> {
    network: &'a Network,
    programs: PathBuf,
    /// For keys, programs that are compiled, and scripts.
    state: &'a Path,
    messages: u64,
}

/// What a run gave: Gbit/s or microseconds, and processor seconds of client and server.
struct Run {
    value: f64,
    cpu: [f64; 2],
}

/// One of those that are compared.
struct Row {
    name: &'static str,
    measure: fn(&Place<'_>) -> Result<Run>,
}

const DIRECT: &[Row] = &[
    Row { name: "perf -s 64KiB", measure: perf },
    Row { name: "ib_write_bw -s 65536", measure: write_bandwidth },
    Row { name: "TCP", measure: tcp },
];
const TRIP_ROWS: &[Row] = &[
    Row { name: "UDP ping-pong 64 B, polling", measure: udp_trips },
    Row { name: "ib_send_lat -s 64", measure: send_latency },
    Row { name: "perf --latency -s 64 --poll spin", measure: perf_trips },
];
const FAR: &[Row] = &[
    Row { name: "perf -s 64KiB", measure: perf },
    Row { name: "ib_write_bw -s 65536", measure: write_bandwidth },
    Row { name: "MPI, 1 MiB, over UCX (rc_verbs)", measure: mpi_verbs },
    Row { name: "MPI, 1 MiB, over TCP", measure: mpi_tcp },
    Row { name: "TCP", measure: tcp },
];

/// Measures and tells.
///
/// # Errors
/// No root, a program that is missing, or one that failed.
pub fn compare(o: &Options) -> Result<()> {
    let programs = std::path::absolute(&o.programs)?;
    let state = Folder::new(std::env::temp_dir().join(format!("longhaul-bench-{}", std::process::id())))?;
    {
        let network = Network::Direct(Net::up(Kind::Veth, 1500)?);
        let p = Place::new(&network, &programs, &state.0, o.direct_size);
        let bandwidth = turns(o, &p, DIRECT)?;
        show("veth", "Gbit/s", p.messages, &bandwidth);
        show("veth", "us a round trip", 0, &turns(o, &p, TRIP_ROWS)?);
    }
    let network = Network::Path(Box::new(Hosts::with_path(&o.path, &programs)?));
    let p = Place::new(&network, &programs, &state.0, o.size);
    prepare_mpi(&p)?;
    show(&o.path, "Gbit/s", p.messages, &turns(o, &p, FAR)?);
    Ok(())
}

type Runs = Vec<(&'static str, Vec<Run>)>;

fn turns(o: &Options, p: &Place<'_>, rows: &'static [Row]) -> Result<Runs> {
    let asked = |r: &&Row| o.peers.is_empty() || o.peers.iter().any(|part| r.name.contains(part.as_str()));
    let mut runs: Runs = rows.iter().filter(asked).map(|r| (r.name, Vec::new())).collect();
    for round in 1..=o.rounds {
        for row in rows.iter().filter(asked) {
            let run = (row.measure)(p).with_context(|| format!("{} failed", row.name))?;
            eprintln!("round {round} of {}, {}: {:.3}", o.rounds, row.name, run.value);
            if let Some((_, all)) = runs.iter_mut().find(|(name, _)| *name == row.name) {
                all.push(run);
            }
        }
    }
    Ok(runs)
}

/// Ratios are of the same round: the machine is not the same in every minute.
fn show(at: &str, unit: &str, messages: u64, runs: &Runs) {
    let Some((_, first)) = runs.first() else { return };
    println!("\n{at}: {unit}, and ratios to the first round by round");
    let words = |s: Option<Spread>| {
        s.map_or_else(String::new, |s| format!("{:.3} ({:.3} to {:.3})", s.median, s.least, s.most))
    };
    let gigabytes = (messages * MESSAGE) as f64 / 1e9;
    for (name, own) in runs {
        let value = words(spread(own.iter().map(|r| r.value)));
        let ratio = words(spread(own.iter().zip(first).map(|(r, f)| r.value / f.value)));
        let cpu = |end: usize| spread(own.iter().map(|r| r.cpu[end] / gigabytes)).map_or(0.0, |s| s.median);
        let known = messages > 0 && own.iter().all(|r| r.cpu[0].is_finite());
        let cpu = if known { format!("{:.2}, {:.2}", cpu(0), cpu(1)) } else { "-".to_owned() };
        println!("{name:34} {value:>26} {ratio:>26}  CPU s/GB {cpu}");
    }
}

impl<'a> Place<'a> {
    fn new(network: &'a Network, programs: &Path, state: &'a Path, bytes: u64) -> Place<'a> {
        Place { network, programs: programs.to_owned(), state, messages: bytes / MESSAGE }
    }
    /// The address of the server.
    fn server(&self) -> Result<IpAddr> {
        Ok(match self.network {
            Network::Direct(net) => net.sink(),
            Network::Path(hosts) => hosts.address()?.into(),
        })
    }

    /// A command at an end: 0 is the client. Its processor time is said on standard error.
    fn command(&self, end: usize, words: &[&str]) -> Result<Command> {
        let mut c = match self.network {
            Network::Direct(net) => net.command(end, ["0", "1"][end], "bash"),
            Network::Path(hosts) if end == 0 => hosts.client("bash")?,
            Network::Path(hosts) => hosts.server("bash")?,
        };
        c.args(["-c", "TIMEFORMAT='cpu %U %S'; time \"$0\" \"$@\""]).args(words);
        c.env("LONGHAUL_HOME", self.state).current_dir(self.state);
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(c)
    }

    fn longhaul(&self) -> String {
        self.programs.join("longhaul").display().to_string()
    }

    /// Starts a server, and a client once it listens; gives what both said.
    fn both(&self, server: &[&str], client: &[&str]) -> Result<[Said; 2]> {
        let server = Process(self.command(1, server)?.spawn()?, None);
        sleep(HEAD_START);
        let client = Process(self.command(0, client)?.spawn()?, None);
        Ok([said(client)?, said(server)?])
    }
}

/// What a process said, and its processor seconds.
struct Said {
    text: String,
    cpu: f64,
}

fn said(mut p: Process) -> Result<Said> {
    let (mut text, mut errors) = (String::new(), String::new());
    // Neither says more than a pipe holds. The first line may have been read by others.
    p.0.stdout.take().map(|mut out| out.read_to_string(&mut text)).transpose()?;
    p.0.stderr.take().map(|mut err| err.read_to_string(&mut errors)).transpose()?;
    ensure!(p.0.wait()?.success(), "{}", [text.trim(), errors.trim()].join("\n"));
    let times = errors.lines().rev().find_map(|l| l.strip_prefix("cpu "));
    let times = times.context("no processor time was said")?.split_whitespace();
    let cpu = times.map(|t| t.parse::<f64>().unwrap_or(0.0)).sum();
    Ok(Said { text, cpu })
}

/// The column of the last line with so many numbers in what perftest says.
fn column(text: &str, of: usize, at: usize) -> Result<f64> {
    let numbers = |l: &str| l.split_whitespace().map(|w| w.parse::<f64>().ok()).collect::<Option<Vec<_>>>();
    let row = text.lines().rev().filter_map(numbers).find(|n| n.len() == of);
    row.and_then(|r| r.get(at).copied()).with_context(|| format!("no figures in:\n{text}"))
}

fn write_bandwidth(p: &Place<'_>) -> Result<Run> {
    let (longhaul, host, n) = (p.longhaul(), p.server()?.to_string(), p.messages.to_string());
    let program = ["run", "--", "ib_write_bw", "-s", "65536", "-n", &n, "--report_gbits", "-F"];
    let server = [&[longhaul.as_str()][..], &program].concat();
    let [client, server] = p.both(&server, &[&server[..], &[&host]].concat())?;
    // Size, iterations, peak, average, messages.
    Ok(Run { value: column(&client.text, 5, 3)?, cpu: [client.cpu, server.cpu] })
}

fn send_latency(p: &Place<'_>) -> Result<Run> {
    let (longhaul, host, n) = (p.longhaul(), p.server()?.to_string(), TRIPS.to_string());
    let program = ["run", "--", "ib_send_lat", "-s", "64", "-n", &n, "-F"];
    let server = [&[longhaul.as_str()][..], &program].concat();
    let [client, server] = p.both(&server, &[&server[..], &[&host]].concat())?;
    // Size, iterations, least, most, typical, average, deviation, two percentiles: of half a round trip.
    Ok(Run { value: 2.0 * column(&client.text, 9, 4)?, cpu: [client.cpu, server.cpu] })
}

fn perf_with(p: &Place<'_>, options: &[&str], shared: &[&str]) -> Result<(Value, [f64; 2])> {
    let (longhaul, at) = (p.longhaul(), SocketAddr::new(p.server()?, PORT).to_string());
    let server = [&longhaul, "perf", "server", "--listen", &at, "--allow-any-key", "--count", "1", "--json"];
    let client = [&longhaul, "perf", "client", &at, "--accept-new", "--json", "-i", "0"];
    let [client, server] =
        p.both(&[&server[..], shared].concat(), &[&client[..], options, shared].concat())?;
    Ok((serde_json::from_str(&client.text)?, [client.cpu, server.cpu]))
}

fn perf(p: &Place<'_>) -> Result<Run> {
    let bytes = (p.messages * MESSAGE).to_string();
    let (v, cpu) = perf_with(p, &["-o", "write", "-s", "65536", "-n", &bytes], &[])?;
    let of = |key: &str| v[key].as_f64().with_context(|| format!("perf told no {key}"));
    Ok(Run { value: of("bytes")? * 8e-9 / of("seconds")?, cpu })
}

fn perf_trips(p: &Place<'_>) -> Result<Run> {
    let (v, cpu) = perf_with(p, &["--latency", "-o", "write", "-s", "64", "-t", "3s"], &["--poll", "spin"])?;
    let median = v["latency_nanoseconds"]["median"].as_f64().context("perf told no round trips")?;
    Ok(Run { value: median / 1e3, cpu })
}

/// One of our own pairs of ends.
fn own(p: &Place<'_>, ends: [&str; 2], client: &[&str], shared: &[&str]) -> Result<(Value, [f64; 2])> {
    let program = std::env::current_exe()?.display().to_string();
    let listen = SocketAddr::new(p.server()?, 0).to_string();
    let words = [&[&program, "end", ends[1], &listen][..], shared].concat();
    let mut server = Process(p.command(1, &words)?.spawn()?, None);
    let (line, mut rest) = first_line(&mut server)?;
    let at = line.trim().strip_prefix(LISTENING).context("the receiver did not say where it listens")?;
    let words = [&[&program, "end", ends[0], at][..], client, shared].concat();
    let client = said(Process(p.command(0, &words)?.spawn()?, None))?;
    let mut text = String::new();
    rest.read_to_string(&mut text)?;
    let figures = if ends[0].ends_with("ping") { &client.text } else { &text };
    Ok((serde_json::from_str(figures.trim())?, [client.cpu, said(server)?.cpu]))
}

fn tcp(p: &Place<'_>) -> Result<Run> {
    let (v, cpu) = own(p, ["tcp-source", "tcp-sink"], &["--seconds", "10"], &[])?;
    let of = |key: &str| v[key].as_f64().with_context(|| format!("an end told no {key}"));
    let sent = (p.messages * MESSAGE) as f64 / of("count")?;
    Ok(Run { value: of("count")? * 8e-9 / of("seconds")?, cpu: cpu.map(|c| c * sent) })
}

fn udp_trips(p: &Place<'_>) -> Result<Run> {
    let (v, cpu) = own(p, ["udp-ping", "udp-echo"], &["--seconds", "3"], &["--size", "64", "--spin"])?;
    Ok(Run { value: v["trips"][0].as_f64().context("an end told no round trips")?, cpu })
}

/// What starts ranks in place of ssh: `enter HOST COMMAND`.
const AGENT: &str = "enter";

/// Compiles the program.
fn prepare_mpi(p: &Place<'_>) -> Result<()> {
    let source = p.state.join("bandwidth.c");
    std::fs::write(&source, include_str!("verbs/bandwidth.c"))?;
    let mut cc = Command::new("mpicc.openmpi");
    let out = cc.args(["-O2", "-o"]).arg(p.state.join("bandwidth")).arg(&source).output();
    let out = out.context("mpicc.openmpi is needed: apt-get install libopenmpi-dev openmpi-bin")?;
    ensure!(out.status.success(), "mpicc: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

fn mpi_verbs(p: &Place<'_>) -> Result<Run> {
    let options =
        "--mca pml ucx --mca osc ucx -x UCX_NET_DEVICES=longhaul0:1 -x UCX_TLS=rc_verbs,ud_verbs,self";
    mpi(p, &format!("{} run --", p.longhaul()), options)
}

fn mpi_tcp(p: &Place<'_>) -> Result<Run> {
    let Network::Path(hosts) = p.network else { bail!("only over a path") };
    let device = format!("--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include {}/24", hosts.address()?);
    mpi(p, "env", &device)
}

/// Two ranks, whose processes are started under `wrapper`. The far end's are no children of ours: their time is not known.
fn mpi(p: &Place<'_>, wrapper: &str, options: &str) -> Result<Run> {
    let Network::Path(hosts) = p.network else { bail!("only over a path") };
    let [(a, first), (b, second)] = hosts.namespaces()?;
    // Names of hosts differ, as on real ones: by them ranks know with whom they share memory.
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -x ] && shift\ncase $1 in {a}) host={first} ;; {b}) host={second} ;; *) exit 1 ;; esac\nshift\n\
         exec ip netns exec $host unshare --uts sh -c 'hostname \"$0\"; exec {wrapper} sh -c \"$1\"' $host \"$*\"\n"
    );
    let agent = p.state.join(AGENT);
    std::fs::write(&agent, script)?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
    let agent = agent.display();
    let command = format!(
        "mpirun.openmpi --allow-run-as-root --host {a}:1,{b}:1 -np 2 --mca plm_rsh_agent {agent} --mca oob_tcp_if_include {a}/24 \
         {options} ./bandwidth {} {MPI_MESSAGE}",
        (p.messages * MESSAGE / MPI_MESSAGE).max(1)
    );
    let mut c = Command::new(p.state.join(AGENT));
    c.arg(a.to_string()).arg(command).env("LONGHAUL_HOME", p.state).current_dir(p.state);
    let out = c.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let rate = text.lines().find_map(|l| l.strip_prefix("mbit ")?.parse::<f64>().ok());
    let rate = rate.with_context(|| format!("{text}{}", String::from_utf8_lossy(&out.stderr)))?;
    Ok(Run { value: rate / 1e3, cpu: [f64::NAN; 2] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_perftest_are_those_of_the_last_row_of_numbers() {
        let text = " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 5000 9.10 8.20 0.015\n\
                     ---------\n 65536 5000 9.30 8.40 0.016\n---------\ncpu 0.1 0.2\n";
        assert_eq!(column(text, 5, 3).expect("a row"), 8.4);
        assert!(column(text, 9, 4).is_err(), "no row of latencies");
        assert!(column("", 5, 3).is_err());
    }
}
