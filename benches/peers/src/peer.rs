//! A measurement of a peer: its two ends started, waited for, read.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::net::Net;
use crate::report::{End, LISTENING};

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
}

impl<'a> Place<'a> {
    /// The same place, with other cores.
    pub fn on(&self, sender: &str, receiver: &str) -> Place<'a> {
        Place { cores: [sender.to_owned(), receiver.to_owned()], ..*self }
    }
    fn command(&self, end: usize, program: &str) -> Command {
        let mut c = self.net.command(end, &self.cores[end], program);
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

fn finish(command: &mut Command) -> Result<String> {
    let out = command.output().context("cannot start a sender")?;
    ensure!(out.status.success(), "a sender failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8(out.stdout)?)
}

/// One of our own pairs of ends: `NAME-sink` and `NAME-source`, or `-echo` and `-ping`.
pub fn own(p: &Place<'_>, ends: [&str; 2], options: [&[String]; 2]) -> Result<Both> {
    let listen = SocketAddr::new(p.net.sink(), 0).to_string();
    let args = |end: usize, to: &str| [&[ends[end].to_owned(), to.to_owned()][..], options[end]].concat();
    let mut sink = start(&mut p.own(1, &args(1, &listen))?)?;
    let (line, mut rest) = first_line(&mut sink)?;
    let address = line.trim().strip_prefix(LISTENING).context("the receiver did not say where it listens")?;
    let said = finish(&mut p.own(0, &args(0, address))?)?;
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
    let said = finish(client.args(options).args(shared))?;
    drop(rest);
    let v: Value = serde_json::from_str(&said)?;
    let number = |end: &str, key: &str| v[end][key].as_f64().unwrap_or(0.0);
    let count = v["bytes"].as_u64().context("perf told no bytes")?;
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
    };
    Ok([end("client"), end("server")])
}

/// `quinn-perf`.
pub fn quinn(p: &Place<'_>) -> Result<Both> {
    let program = p.program("quinn-perf")?;
    let mtu = p.mtu.to_string();
    let listen = SocketAddr::new(p.net.sink(), 0).to_string();
    let mut server = start(p.command(1, &program).args(["server", "--listen", &listen, "--mtu", &mtu]))?;
    let (line, rest) = first_line(&mut server)?;
    let address =
        line.trim().strip_prefix(LISTENING).context("quinn did not say where it listens")?.to_owned();
    let seconds = p.seconds.to_string();
    let mut client = p.command(0, &program);
    client.args(["client", &address, "--json", "--seconds", &seconds, "--mtu", &mtu]);
    let said = finish(&mut client)?;
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
    let said = finish(p.command(0, "iperf3").args(["-c", &address, "-t", &seconds, "-J"]))?;
    drop(rest);
    let v: Value = serde_json::from_str(&said)?;
    let sum = &v["end"]["sum_received"];
    let (count, seconds) =
        (sum["bytes"].as_u64().context("iperf3 told no bytes")?, sum["seconds"].as_f64().unwrap_or(0.0));
    let cpu = |key: &str| v["end"]["cpu_utilization_percent"][key].as_f64().unwrap_or(0.0) / 100.0 * seconds;
    let end = |key: &str| End { count, seconds, cpu: cpu(key), ..End::default() };
    Ok([end("host_total"), end("remote_total")])
}
