//! A measurement of a peer: its two ends started, waited for, read.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use base::Span;
use lab::workload::sleep;
use serde_json::Value;

use crate::net::Net;
use crate::pattern::REGION;
use crate::report::{End, LISTENING};

/// A sender may take so much longer than its time: it starts, and what is under way arrives.
const GRACE: Span = Span::from_secs(60);
/// How often senders are looked at.
const LOOK: Span = Span::from_millis(20);

/// A process, with its output while somebody has to keep it open. Ends however the measurement ends.
pub struct Process(pub Child, pub Option<BufReader<ChildStdout>>);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The figures of both ends: sender, receiver.
pub type Both = [End; 2];

/// What a measurement needs to know.
pub struct Place<'a> {
    /// Where.
    pub net: &'a Net,
    /// Cores of sender and receiver, as `taskset -c` takes them.
    pub cores: [String; 2],
    /// The folder of `longhaul` and `quinn-perf`.
    pub programs: &'a Path,
    /// How long to send.
    pub seconds: u32,
    /// MTU.
    pub mtu: u32,
    /// A folder for state.
    pub state: &'a Path,
    /// Count system calls and sample both ends by `perf`, into files of this folder.
    pub profile: Option<&'a Path>,
}

impl<'a> Place<'a> {
    /// The same place, with other cores.
    pub fn on(&self, sender: &str, receiver: &str) -> Place<'a> {
        Place { cores: [sender.to_owned(), receiver.to_owned()], ..*self }
    }
    fn command(&self, end: usize, program: &str) -> Command {
        let mut c = match self.profile {
            None => self.net.command(end, &self.cores[end], program),
            Some(folder) => {
                let mut c = self.net.command(end, &self.cores[end], "perf");
                c.args(crate::profile::wrap(folder, end)).arg(program);
                c
            }
        };
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c.env("LONGHAUL_HOME", self.state.join(if end == 0 { "client" } else { "server" }));
        c
    }
    fn program(&self, name: &str) -> Result<String> {
        let path = self.programs.join(name);
        ensure!(path.exists(), "{} is missing: build it, or say --programs", path.display());
        Ok(path.to_string_lossy().into_owned())
    }
    fn own(&self, end: usize, args: &[String]) -> Result<Command> {
        let program = std::env::current_exe()?;
        let mut c = self.command(end, &program.to_string_lossy());
        c.arg("end").args(args);
        Ok(c)
    }
}

/// Starts one.
pub fn start(command: &mut Command) -> Result<Process> {
    let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    Ok(Process(child, None))
}

/// The first line of a process that is not empty.
pub fn first_line(p: &mut Process) -> Result<(String, BufReader<ChildStdout>)> {
    let mut out = BufReader::new(p.0.stdout.take().context("no standard output")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    if line.is_empty() {
        let mut text = String::new();
        if let Some(e) = &mut p.0.stderr {
            e.read_to_string(&mut text)?;
        }
        bail!("a receiver did not start: {}", text.trim());
    }
    Ok((line, out))
}

/// What a sender says when it is done; one that is not in time is ended.
fn finish(p: &Place<'_>, command: &mut Command) -> Result<String> {
    let patience = GRACE + Span::from_secs(p.seconds.into());
    let mut sender = Process(command.spawn().context("cannot start a sender")?, None);
    let text = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut text = String::new();
            // A sender that says nothing readable is found out below.
            let _ = pipe.map(|mut p| p.read_to_string(&mut text));
            text
        })
    };
    let out = text(sender.0.stdout.take().map(|p| Box::new(p) as _));
    let errors = text(sender.0.stderr.take().map(|p| Box::new(p) as _));
    let mut waited = Span::ZERO;
    let status = loop {
        if let Some(status) = sender.0.try_wait()? {
            break status;
        }
        ensure!(waited < patience, "a sender was not done after {waited}");
        sleep(LOOK);
        waited += LOOK;
    };
    let [out, errors] = [out, errors].map(|t| t.join().unwrap_or_default());
    ensure!(status.success(), "a sender failed: {}", errors.trim());
    Ok(out)
}

/// One of our own pairs of ends: `NAME-sink` and `NAME-source`, or `-echo` and `-ping`.
pub fn own(p: &Place<'_>, ends: [&str; 2], options: [&[String]; 2]) -> Result<Both> {
    let listen = SocketAddr::new(p.net.sink(), 0).to_string();
    let args = |end: usize, to: &str| [&[ends[end].to_owned(), to.to_owned()][..], options[end]].concat();
    let mut sink = start(&mut p.own(1, &args(1, &listen))?)?;
    let (line, mut rest) = first_line(&mut sink)?;
    let address = line.trim().strip_prefix(LISTENING).context("the receiver did not say where it listens")?;
    let said = finish(p, &mut p.own(0, &args(0, address))?)?;
    let mut other = String::new();
    rest.read_to_string(&mut other)?;
    let parse = |text: &str| serde_json::from_str::<End>(text.trim()).context("an end's figures");
    Ok([parse(&said)?, parse(&other)?])
}

/// `longhaul perf`, with options of the client, of both ends, and of the server.
pub fn longhaul(p: &Place<'_>, options: &[&str], shared: &[&str], at_server: &[&str]) -> Result<Both> {
    let program = p.program("longhaul")?;
    let listen = SocketAddr::new(p.net.sink(), 4461).to_string();
    let mtu = p.mtu.to_string();
    let mut server = p.command(1, &program);
    server.args([
        "perf",
        "server",
        "--listen",
        &listen,
        "--allow-any-key",
        "--count",
        "1",
        "--json",
        "--mtu",
        &mtu,
        "--memory",
        MEMORY,
    ]);
    let mut server = start(server.args(shared).args(at_server))?;
    let (_, rest) = first_line(&mut server)?;
    let seconds = format!("{}s", p.seconds);
    let mut client = p.command(0, &program);
    client.args([
        "perf",
        "client",
        &listen,
        "--accept-new",
        "--json",
        "-i",
        "0",
        "-t",
        &seconds,
        "--mtu",
        &mtu,
    ]);
    let said = finish(p, client.args(options).args(shared))?;
    drop(rest);
    perf_figures(&said)
}

/// Settings of MPA, the framing of iWARP over TCP; both ends are told the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpa {
    /// CRC32C behind each record.
    pub crc: bool,
    /// Markers every 512 bytes.
    pub markers: bool,
    /// Payload goes to its place before its CRC is verified.
    pub early: bool,
}

impl Mpa {
    /// As `longhaul perf` takes them.
    fn args(self) -> Vec<&'static str> {
        let crc = ["--mpa-crc", if self.crc { "on" } else { "off" }];
        let markers = self.markers.then_some("--mpa-markers");
        crc.into_iter().chain(markers).chain(self.early.then_some("--mpa-early")).collect()
    }
}

/// Memory that `longhaul perf server` may give: the largest regions that are compared, twice.
const MEMORY: &str = "4GiB";

/// `longhaul perf` over iWARP, with options of the client and of both ends.
pub fn iwarp(p: &Place<'_>, mpa: Mpa, options: &[&str], shared: &[&str]) -> Result<Both> {
    let program = p.program("longhaul")?;
    let listen = SocketAddr::new(p.net.sink(), 4462).to_string();
    let shared = [shared, &mpa.args()].concat();
    let mut server = p.command(1, &program);
    server.args(["perf", "server", "--iwarp", "plain", "--allow-any-key", "--listen", &listen]);
    server.args(["--count", "1", "--json", "--memory", MEMORY]);
    let mut server = start(server.args(&shared))?;
    let (_, rest) = first_line(&mut server)?;
    let (seconds, url) = (format!("{}s", p.seconds), format!("iwarp://{listen}"));
    let mut client = p.command(0, &program);
    client.args(["perf", "client", &url, "--plain", "--json", "-i", "0", "-t", &seconds]);
    let said = finish(p, client.args(options).args(&shared))?;
    drop(rest);
    perf_figures(&said)
}

/// What `longhaul perf client --json` said.
fn perf_figures(said: &str) -> Result<Both> {
    let v: Value = serde_json::from_str(said)?;
    let number = |end: &str, key: &str| v[end][key].as_f64().unwrap_or(0.0);
    // Of latency, round trips.
    let unit = if v["latency"].as_bool() == Some(true) { "messages" } else { "bytes" };
    let count = v[unit].as_u64().with_context(|| format!("perf told no {unit}"))?;
    let trips = v["latency_nanoseconds"].as_object().map(|l| {
        let us = |key: &str| l.get(key).and_then(Value::as_f64).unwrap_or(0.0) / 1e3;
        [us("median"), us("p99")]
    });
    let end = |name: &str| End {
        count,
        seconds: v["seconds"].as_f64().unwrap_or(0.0),
        cpu: number(name, "cpu_user_seconds") + number(name, "cpu_system_seconds"),
        verified: v["verified"].as_bool(),
        trips,
        packets: v[name]["packets_sent"].as_u64(),
    };
    Ok([end("client"), end("server")])
}

/// `quinn-perf`.
pub fn quinn(p: &Place<'_>) -> Result<Both> {
    let program = p.program("quinn-perf")?;
    let mtu = p.mtu.to_string();
    let listen = SocketAddr::new(p.net.sink(), 0).to_string();
    // As much memory as the others go through.
    let region = (REGION >> 20).to_string();
    let shared = ["--mtu", &mtu, "--region", &region];
    let mut server = start(p.command(1, &program).args(["server", "--listen", &listen]).args(shared))?;
    let (line, rest) = first_line(&mut server)?;
    let address =
        line.trim().strip_prefix(LISTENING).context("quinn did not say where it listens")?.to_owned();
    let seconds = p.seconds.to_string();
    let mut client = p.command(0, &program);
    client.args(["client", &address, "--json", "--seconds", &seconds]).args(shared);
    let said = finish(p, &mut client)?;
    drop(rest);
    let v: Value = serde_json::from_str(&said)?;
    let end = |name: &str| {
        let number = |key: &str| v[name][key].as_f64().unwrap_or(0.0);
        End {
            count: v["receiver"]["bytes"].as_u64().unwrap_or(0),
            seconds: v["receiver"]["seconds"].as_f64().unwrap_or(0.0),
            cpu: number("cpu_user_s") + number("cpu_system_s"),
            ..End::default()
        }
    };
    Ok([end("sender"), end("receiver")])
}

/// iperf3, the way most people measure.
pub fn iperf3(p: &Place<'_>) -> Result<Both> {
    let address = p.net.sink().to_string();
    let mut server = p.command(1, "iperf3");
    let mut server = start(server.args(["-s", "-1", "-B", &address, "--forceflush"]))?;
    let (_, rest) = first_line(&mut server)?;
    let seconds = p.seconds.to_string();
    let said = finish(p, p.command(0, "iperf3").args(["-c", &address, "-t", &seconds, "-J"]))?;
    drop(rest);
    let v: Value = serde_json::from_str(&said)?;
    let sum = &v["end"]["sum_received"];
    let (count, seconds) =
        (sum["bytes"].as_u64().context("iperf3 told no bytes")?, sum["seconds"].as_f64().unwrap_or(0.0));
    let cpu = |key: &str| v["end"]["cpu_utilization_percent"][key].as_f64().unwrap_or(0.0) / 100.0 * seconds;
    let end = |key: &str| End { count, seconds, cpu: cpu(key), ..End::default() };
    Ok([end("host_total"), end("remote_total")])
}
