//! Nodes, links and programs of a test.

use crate::common::Server;
use admin::client::Client;
use admin::proto::{Flow, Request, Response};
use base::Span;
use lab::emulator::record::{self, Record};
use lab::{Lab, Options, TopologySpec};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Waits of 10 ms in one test: what never comes is an error after some minutes.
const MAX_PAUSES: u32 = 18_000;

const LONGHAUL: &str = env!("CARGO_BIN_EXE_longhaul");

/// One test at a time: they need the processors.
static ALONE: Mutex<()> = Mutex::new(());

/// A laboratory with a folder for states, files, records and control sockets.
pub struct EmulatedNetwork {
    pub lab: Lab,
    pub dir: TempDir,
    alone: MutexGuard<'static, ()>,
}

impl EmulatedNetwork {
    /// `None`, and says so, where there can be none.
    pub fn new(tag: &str, topology: &TopologySpec) -> Option<EmulatedNetwork> {
        EmulatedNetwork::with(tag, topology, Options::default())
    }

    /// The same with records of each millisecond.
    pub fn every_ms(tag: &str, topology: &TopologySpec) -> Option<EmulatedNetwork> {
        EmulatedNetwork::with(tag, topology, Options { interval: Span::from_millis(1), ..Options::default() })
    }

    fn with(tag: &str, topology: &TopologySpec, options: Options) -> Option<EmulatedNetwork> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
            println!("skipped: the laboratory needs root and /dev/net/tun");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            emulator: Some((LONGHAUL.into(), vec![lab::EMULATOR_ARGUMENT.to_owned()])),
            record: Some(dir.path().join("records")),
            ..options
        };
        let name = format!("{tag}-{}", std::process::id());
        let lab = Lab::up_with(&name, topology, 1, &options).unwrap_or_else(|e| panic!("{e}"));
        Some(EmulatedNetwork { lab, dir, alone })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program in a node, whose state is that of `who` and whose control socket, if any, is in [`EmulatedNetwork::run`].
    pub fn longhaul(&self, node: &str, who: &str, args: &[&str]) -> Command {
        let mut c = self.lab.command(node, LONGHAUL).unwrap();
        c.env("LONGHAUL_HOME", self.path(who)).env("LONGHAUL_RUN", self.run()).env_remove("LONGHAUL_TOKEN");
        c.args(args).stdin(Stdio::null());
        c
    }

    /// The folder of control sockets.
    pub fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// A server in a node that lets everybody in.
    pub fn serve(&self, node: &str, args: &[&str]) -> Server {
        let listen = format!("{}:4460", self.lab.address(node).unwrap());
        let how = ["--json", "--allow-any-key", "--discover", "off", "--listen", &listen];
        Server::start_command(self.longhaul(node, "server", &[args, &how].concat()))
    }

    /// The one process with a control socket, once it has it.
    pub fn process(&self) -> Client {
        loop {
            if let Some(Ok(c)) = admin::client::all(&self.run()).into_iter().next() {
                return c;
            }
            pause();
        }
    }

    /// Ends the laboratory and gives what it wrote down, in order.
    pub fn records(self) -> Vec<Record> {
        let EmulatedNetwork { lab, dir, alone } = self;
        lab.down().unwrap();
        drop(alone);
        let file = dir.path().join("records");
        let all = record::read(&file).unwrap();
        all.map(Result::unwrap).collect()
    }
}

thread_local! {
    static PAUSES: Cell<u32> = const { Cell::new(0) };
}

/// Lets other processes go on.
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
pub fn pause() {
    PAUSES.set(PAUSES.get() + 1);
    assert!(PAUSES.get() < MAX_PAUSES, "what is waited for does not come");
    std::thread::sleep(std::time::Duration::from_millis(10));
}

pub fn start(mut c: Command) -> Child {
    c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Ends a process as Ctrl-C does, and waits for it.
pub fn interrupt(child: Child) -> Output {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

pub fn flows(c: &mut Client) -> Vec<Flow> {
    match c.request(&Request::Flows) {
        Ok(Response::Flows { flows, .. }) => flows,
        other => panic!("{other:?}"),
    }
}

/// Bytes of IP packets that were delivered to each address and port, as they add up: after each interval of the records, the
/// time in nanoseconds and all counts.
pub fn deliveries(records: &[Record]) -> Vec<(u64, BTreeMap<String, u64>)> {
    let (mut names, mut sums, mut out) = (BTreeMap::new(), BTreeMap::<String, u64>::new(), Vec::new());
    for r in records {
        match r {
            Record::Flow(f) => drop(names.insert(f.flow, f.destination.clone())),
            Record::Sample(s) => {
                for f in &s.flows {
                    let Some(name) = names.get(&f.flow) else { continue };
                    *sums.entry(name.clone()).or_default() += f.delivered_bytes;
                }
                out.push((s.at_ns, sums.clone()));
            }
            _ => {}
        }
    }
    out
}

/// When the owner marked so.
pub fn marked(records: &[Record], label: &str) -> u64 {
    let of = |r: &Record| match r {
        Record::Mark(m) if m.label == label => Some(m.at_ns),
        _ => None,
    };
    records.iter().find_map(of).expect("a mark")
}
