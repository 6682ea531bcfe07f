//! Child processes that end with their parent, and at a deadline at the latest.

use crate::exit::{Failure, Outcome};
use base::{Span, Time};
use lhio::clock::Clock;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

/// Lines of a child that may wait for us.
const LINES: usize = 64;

/// This program, run once more.
pub struct Process {
    name: &'static str,
    child: Child,
    lines: Receiver<String>,
    deadline: Time,
}

impl Process {
    /// Starts `longhaul ARGS` with its own keys in `home`. What it says on standard error goes where ours goes
    /// when `loud`.
    pub fn start(
        name: &'static str,
        home: &Path,
        args: &[String],
        deadline: Time,
        loud: bool,
    ) -> Outcome<Process> {
        let program = std::env::current_exe().map_err(Failure::system)?;
        let mut child = Command::new(program)
            .args(args)
            .env("LONGHAUL_HOME", home)
            .env_remove("LONGHAUL_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(if loud { Stdio::inherit() } else { Stdio::null() })
            .spawn()
            .map_err(|e| {
                Failure::system(format!(
                    "cannot start the {name}: {e}; try to raise the limits of processes \
                     and memory (ulimit -u, ulimit -v)"
                ))
            })?;
        let (tx, lines) = sync_channel(LINES);
        if let Some(out) = child.stdout.take() {
            let read = move || read_lines(out, &tx);
            std::thread::Builder::new().name(name.into()).spawn(read).map_err(Failure::system)?;
        }
        Ok(Process { name, child, lines, deadline })
    }

    /// The next line of its standard output, as JSON.
    pub fn json(&mut self) -> Outcome<Value> {
        let left: Span = self.deadline.since(Clock::new().now());
        let line = self.lines.recv_timeout(left.to_std()).map_err(|e| {
            let status = self.child.try_wait().ok().flatten().map_or_else(String::new, |s| format!(" ({s})"));
            Failure::system(format!(
                "cannot run the {}: it printed nothing: {e}{status}; try again with -v",
                self.name
            ))
        })?;
        serde_json::from_str(&line).map_err(|e| {
            Failure::system(format!(
                "cannot run the {}: {e}: {line}; try again \
                 with -v",
                self.name
            ))
        })
    }

    /// The end of a transfer, which comes behind lines about its progress.
    pub fn end(&mut self) -> Outcome<Value> {
        loop {
            let event = self.json()?;
            if event["event"] == "end" {
                return Ok(event);
            }
        }
    }

    /// Asks it to end, and takes its last words.
    pub fn stop(&mut self) -> Outcome<Value> {
        self.signal(rustix::process::Signal::TERM);
        let last = self.json()?;
        self.child.wait().map_err(Failure::system)?;
        Ok(last)
    }

    /// Its exit code, when it has ended by itself.
    pub fn wait(&mut self) -> Outcome<i32> {
        Ok(self.child.wait().map_err(Failure::system)?.code().unwrap_or(-1))
    }

    fn signal(&self, s: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, s);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read_lines(out: ChildStdout, tx: &std::sync::mpsc::SyncSender<String>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if tx.send(line).is_err() {
            return;
        }
    }
}
