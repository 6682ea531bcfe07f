//! The processes of a flow: started, watched, ended, and their output parsed.

use super::Failure;
use crate::plan::Flow;
use crate::workload::outside::{self, CommandLine, EndReports, FlowCommands};
use crate::{Lab, workload};
use base::{Span, Time};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Longest time until a receiver is ready.
const READY_TIMEOUT: Span = Span::from_secs(20);
/// Longest time until a receiver ends when asked to.
const EXIT_TIMEOUT: Span = Span::from_secs(5);
/// How often processes are polled.
const POLL_INTERVAL: Span = Span::from_millis(10);
/// Most bytes kept of a program's output.
const MAX_OUTPUT: u64 = 64 << 20;

/// Both ends of a flow.
pub(super) struct RunningFlow<'a> {
    pub flow: &'a Flow,
    to: SocketAddr,
    home: PathBuf,
    receiver: Process,
    line: Option<CommandLine>,
    sender: Option<Process>,
}

/// A program that runs in a node; killed when dropped.
struct Process {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    ends_with_input: bool,
    name: String,
}

impl Process {
    fn start(lab: &Lab, node: &str, line: &CommandLine, home: &Path) -> Result<Process, Failure> {
        let name = line.program.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let hopeless =
            |e: String| Failure::Impossible(format!("cannot start {}: {e}", line.program.display()));
        std::fs::create_dir_all(home).map_err(|e| hopeless(e.to_string()))?;
        let mut c = lab.command(node, &line.program).map_err(|e| hopeless(e.to_string()))?;
        c.args(&line.args).env("LONGHAUL_HOME", home).env_remove("LONGHAUL_TOKEN").env("RUST_BACKTRACE", "0");
        c.stdin(if line.ends_with_input { Stdio::piped() } else { Stdio::null() });
        let mut child =
            c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| hopeless(e.to_string()))?;
        let (out, err) = (Arc::default(), Arc::default());
        let mut threads = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            threads.push(collect(pipe, &out));
        }
        if let Some(pipe) = child.stderr.take() {
            threads.push(collect(pipe, &err));
        }
        Ok(Process { child, out, err, threads, ends_with_input: line.ends_with_input, name })
    }

    fn printed(&self) -> String {
        self.out.lock().map(|o| o.clone()).unwrap_or_default()
    }

    /// Its error messages.
    fn error_text(&self) -> String {
        let err = self.err.lock().map(|o| o.clone()).unwrap_or_default();
        let last = err.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("without a word");
        format!("{}: {}", self.name, last.trim())
    }

    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to end, waits, and returns its output.
    fn end(&mut self) -> String {
        if self.ends_with_input {
            drop(self.child.stdin.take());
        } else if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let mut waited = Span::ZERO;
        while self.ended().is_none() && waited < EXIT_TIMEOUT {
            workload::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
        self.kill();
        for t in self.threads.drain(..) {
            // A thread that reads a pipe ends with the pipe.
            let _ = t.join();
        }
        self.printed()
    }

    fn kill(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn collect(pipe: impl Read + Send + 'static, into: &Arc<Mutex<String>>) -> std::thread::JoinHandle<()> {
    let into = into.clone();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe.take(MAX_OUTPUT));
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if let Ok(mut all) = into.lock() {
                all.push_str(&String::from_utf8_lossy(&line));
            }
            line.clear();
        }
    })
}

/// Starts a flow's receiver.
pub(super) fn start<'a>(
    lab: &Lab,
    flow: &'a Flow,
    to: SocketAddr,
    job: FlowCommands,
    home: &Path,
) -> Result<RunningFlow<'a>, Failure> {
    let words =
        |e: std::io::Error| Failure::Impossible(format!("cannot write below {}: {e}", home.display()));
    let receiver = Process::start(lab, &flow.to, &job.receiver, &home.join("receiver"))?;
    if let Some((file, size)) = job.file {
        std::fs::create_dir_all(home.join("received")).map_err(words)?;
        create_content(&file, size).map_err(words)?;
    }
    let home = home.join("sender");
    Ok(RunningFlow { flow, to, home, receiver, line: Some(job.sender), sender: None })
}

/// Creates a file with incompressible content that does not repeat within a chunk.
fn create_content(file: &Path, size: u64) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(file)?);
    let (mut rng, mut block, mut left) = (base::Rng::from_u64(size), vec![0; 1 << 20], size);
    while left > 0 {
        rng.fill(&mut block);
        let n = left.min(block.len() as u64) as usize;
        out.write_all(&block[..n])?;
        left -= n as u64;
    }
    out.flush()
}

impl RunningFlow<'_> {
    /// Waits until the receiver is ready.
    pub fn await_receiver(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let mut waited = Span::ZERO;
        loop {
            let printed = self.receiver.printed();
            if printed.contains("ready") || printed.contains("istening") {
                return Ok(());
            }
            if self.receiver.ended().is_some() {
                return Err(Failure::Impossible(format!(
                    "the receiver ended: {}",
                    self.receiver.error_text()
                )));
            }
            if stop.load(Ordering::SeqCst) {
                return Err(Failure::Stopped);
            }
            if waited > READY_TIMEOUT {
                return Err(Failure::Discarded(format!(
                    "the receiver of {} was not ready in {READY_TIMEOUT}",
                    self.flow.name
                )));
            }
            workload::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
    }

    /// Starts the sender, once.
    pub fn launch(&mut self, lab: &Lab) -> Result<(), Failure> {
        if let Some(line) = self.line.take() {
            self.sender = Some(Process::start(lab, &self.flow.from, &line, &self.home)?);
        }
        Ok(())
    }

    /// Whether the sender is still running.
    pub fn is_running(&mut self) -> Result<bool, Failure> {
        let Some(s) = &mut self.sender else { return Ok(true) };
        match s.ended() {
            None => Ok(true),
            Some(status) if status.success() => Ok(false),
            Some(_) => Err(Failure::Discarded(format!("{} failed: {}", self.flow.name, s.error_text()))),
        }
    }

    /// Ends the receiver and parses both outputs. Series are aligned to the start of the run, `began`.
    pub fn finish(mut self, began: Time) -> Result<(SocketAddr, EndReports), Failure> {
        let sender = self.sender.as_mut().map(Process::end).unwrap_or_default();
        let receiver = self.receiver.end();
        let said = outside::parse_reports(self.flow, &sender, &receiver);
        let mut said = said.map_err(|e| Failure::Discarded(format!("{}: {e}", self.flow.name)))?;
        if let Some(r) = &mut said.receiver {
            align(r, began);
        }
        Ok((self.to, said))
    }
}

/// Cuts or pads a series so that it begins at `began`.
fn align(r: &mut workload::Report, began: Time) {
    if r.interval_ns == 0 || r.bytes_per_interval.is_empty() {
        return;
    }
    let from = i128::from(began.as_nanos()) - i128::from(r.start_ns);
    let steps = from.div_euclid(i128::from(r.interval_ns));
    if steps >= 0 {
        r.bytes_per_interval.drain(..(steps as usize).min(r.bytes_per_interval.len()));
    } else {
        let pad = vec![0; (-steps) as usize];
        r.bytes_per_interval.splice(0..0, pad);
    }
    r.start_ns = began.as_nanos();
}

/// The receiver's own series in intervals of `step`, where it is more exact than the emulator's.
pub(super) fn payload_of(said: &EndReports, step: Span, n: usize) -> Option<Vec<f64>> {
    let r = said.receiver.as_ref().filter(|r| r.interval_ns > 0 && !r.bytes_per_interval.is_empty())?;
    let per = (r.interval_ns / step.as_nanos().max(1)).max(1) as usize;
    let mut out = vec![0.0; n];
    for (i, bytes) in r.bytes_per_interval.iter().enumerate() {
        for j in 0..per {
            if let Some(o) = out.get_mut(i * per + j) {
                *o += *bytes as f64 / per as f64;
            }
        }
    }
    // Data after the measured time is kept, since the program's count includes it.
    let rest: f64 = r.bytes_per_interval.iter().skip(n.div_ceil(per)).map(|b| *b as f64).sum();
    out.push(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Report;

    #[test]
    fn series_are_aligned_to_the_start_of_the_run() {
        let mut r = Report {
            start_ns: 100_000_000,
            interval_ns: 50_000_000,
            bytes_per_interval: vec![9, 50, 100],
            ..Report::default()
        };
        align(&mut r, Time::from_nanos(150_000_000));
        assert_eq!(r.bytes_per_interval, [50, 100]);
        let said = EndReports { receiver: Some(r.clone()), ..EndReports::default() };
        let out = payload_of(&said, Span::from_millis(10), 7).expect("a series");
        assert_eq!(out, [10.0, 10.0, 10.0, 10.0, 10.0, 20.0, 20.0, 0.0]);
        align(&mut r, Time::from_nanos(50_000_000));
        assert_eq!(r.bytes_per_interval, [0, 0, 50, 100]);
        assert_eq!(payload_of(&EndReports::default(), Span::from_millis(10), 7), None);
    }
}
