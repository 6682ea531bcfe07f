//! A running laboratory: its nodes, its emulator, and its removal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base::{Span, Time};
use lhio::clock::Clock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::emulator::record::{Mark, Summary};
use crate::emulator::{Answer, MAX_LINE, Request, Setup};
use crate::netns::{self, Addresses};
use crate::state::{self, AbandonedLab, State};
use crate::sys;
use crate::topology::{TopologyError, TopologySpec};

/// How long the emulator may take to answer, which allows for an overloaded machine.
const ANSWER_TIMEOUT: Span = Span::from_secs(30);

/// The longest name of a laboratory.
const MAX_NAME: usize = 32;

/// How a laboratory is set up, apart from its topology.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that becomes the emulator, and arguments that make it call
    /// [`emulator::main`](crate::emulator::main) with those after them. The default is this program with
    /// [`EMULATOR_ARGUMENT`].
    pub emulator: Option<(PathBuf, Vec<String>)>,
    /// The file for the emulator's records; `None` puts it into the laboratory's state folder, which is removed at
    /// the end.
    pub record: Option<PathBuf>,
    /// The length of the intervals in the records: 1 ms to 10 s.
    pub interval: Span,
    /// The MTU of the nodes' devices, and the size into which super-packets are split: 1280 to 9000 bytes.
    pub mtu: u16,
}

/// The hidden argument with which the program of the command line becomes the emulator.
pub const EMULATOR_ARGUMENT: &str = "lab-emulator";

/// Why a laboratory cannot be set up or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not root.
    #[error("the laboratory makes network namespaces and devices and needs root; run it with sudo")]
    NotRoot,
    /// The topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A name that cannot be used.
    #[error("`{0}` is no name for a laboratory; use 1 to 32 letters, digits, `-` and `_`")]
    Name(String),
    /// A laboratory of that name exists.
    #[error("there is a laboratory `{0}` already, and its owner is alive; end it or use another name")]
    Exists(String),
    /// An unknown node.
    #[error("there is no node `{0}`; the nodes are {1}")]
    Node(String, String),
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The emulator did not start or died.
    #[error("the emulator {0}")]
    Emulator(String),
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
}

impl Default for Options {
    fn default() -> Options {
        Options { emulator: None, record: None, interval: Span::from_millis(10), mtu: 1500 }
    }
}

/// The name of the device of [`Lab::connect_directly`] in each node.
const DIRECT: &str = "lhdirect";

/// Runs `ip` with these arguments.
fn ip(line: &str) -> io::Result<()> {
    let out = Command::new("ip").args(line.split_whitespace()).output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {line}: {}", text.trim()))) }
}

/// A running laboratory. Dropping it removes it.
#[derive(Debug)]
pub struct Lab {
    nodes: Vec<String>,
    paths: usize,
    record: PathBuf,
    namespaces: Vec<Arc<File>>,
    emulator: Emulator,
    state: State,
    /// The lock that shows that the owner is alive.
    _owner: File,
}

impl Lab {
    /// Builds namespaces, devices and the emulator with default [`Options`].
    ///
    /// # Errors
    /// Not root, a topology or name that cannot be used, or the system refuses; nothing is left behind then.
    pub fn up(name: &str, topology: &TopologySpec, seed: u64) -> Result<Lab, LabError> {
        Lab::up_with(name, topology, seed, &Options::default())
    }

    /// As [`Lab::up`], with options.
    ///
    /// # Errors
    /// See [`Lab::up`].
    pub fn up_with(
        name: &str,
        topology: &TopologySpec,
        seed: u64,
        options: &Options,
    ) -> Result<Lab, LabError> {
        check_root()?;
        check(name, options)?;
        topology.links()?;
        topology.traces()?;
        let nodes = topology.nodes();
        let folder =
            State::create(name, &nodes).map_err(system("make the state folder in /run/longhaul-lab"))?;
        let (state, owner) = folder.ok_or_else(|| LabError::Exists(name.to_owned()))?;
        // From here on, an error removes everything created so far.
        let built = Lab::build(&state, topology, seed, options);
        let (emulator, record, namespaces) = built.inspect_err(|_| {
            // Of several errors the first is returned.
            let _ = state.remove();
        })?;
        Ok(Lab {
            nodes,
            paths: topology.devices_per_node(),
            record,
            namespaces,
            emulator,
            state,
            _owner: owner,
        })
    }

    fn build(
        state: &State,
        topology: &TopologySpec,
        seed: u64,
        options: &Options,
    ) -> Result<(Emulator, PathBuf, Vec<Arc<File>>), LabError> {
        state::raise_host_limits().map_err(system("raise the limits of socket buffers"))?;
        let record = options.record.clone().unwrap_or_else(|| state.record());
        // The emulator runs in another folder.
        let record = std::path::absolute(&record).map_err(system("find the file of records"))?;
        let setup = Setup {
            topology: topology.absolute().map_err(system("find the traces"))?,
            seed,
            interval_ns: options.interval.as_nanos(),
            mtu: options.mtu,
            record: record.clone(),
        };
        state.write_setup(&setup).map_err(system("write the state of the laboratory"))?;
        let emulator = Emulator::start(state, options)?;
        let open = |(_, namespace): &(String, String)| netns::open(namespace).map(Arc::new);
        let namespaces = state.namespaces().iter().map(open).collect::<io::Result<_>>();
        Ok((emulator, record, namespaces.map_err(system("open the network namespaces"))?))
    }

    /// The names of the nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// A command that runs in a node's network namespace, with this process's environment and working directory. It
    /// is killed when the laboratory ends.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn command(&self, node: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let mut command = Command::new(program);
        sys::enter_before_exec(&mut command, Arc::clone(&self.namespaces[usize::from(self.index(node)?)]));
        Ok(command)
    }

    /// Runs `work` in a thread inside a node's network namespace, so that its sockets belong to the node.
    ///
    /// # Errors
    /// When there is no such node, or those of `work`.
    pub fn inside<T: Send>(
        &self,
        node: &str,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, LabError> {
        let namespace = &self.namespaces[usize::from(self.index(node)?)];
        netns::inside(namespace, work).map_err(system("work in a node"))
    }

    /// What `ip netns` calls a node's namespace.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn namespace(&self, node: &str) -> Result<String, LabError> {
        Ok(self.state.namespaces()[usize::from(self.index(node)?)].1.clone())
    }

    /// A node's IPv4 address on the first (or only) path.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn address(&self, node: &str) -> Result<Ipv4Addr, LabError> {
        self.address_on(node, 0)
    }

    /// A node's IPv6 address on the first (or only) path.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn address6(&self, node: &str) -> Result<Ipv6Addr, LabError> {
        self.address6_on(node, 0)
    }

    /// A node's IPv4 address on path `path`, from 0.
    ///
    /// # Errors
    /// When there is no such node or path.
    pub fn address_on(&self, node: &str, path: usize) -> Result<Ipv4Addr, LabError> {
        Ok(self.addresses(node, path)?.v4)
    }

    /// A node's IPv6 address on path `path`, from 0.
    ///
    /// # Errors
    /// When there is no such node or path.
    pub fn address6_on(&self, node: &str, path: usize) -> Result<Ipv6Addr, LabError> {
        Ok(self.addresses(node, path)?.v6)
    }

    /// Connects the two nodes of a path directly by a pair of virtual Ethernet devices, bypassing the emulator, so
    /// that only the kernel's costs are measured. Returns the nodes' addresses on it.
    ///
    /// # Errors
    /// There are not two nodes, or `ip` of iproute2 is missing or refuses.
    pub fn connect_directly(&self, mtu: u16) -> Result<[Ipv4Addr; 2], LabError> {
        let [(_, a), (_, b)] = self.state.namespaces() else {
            return Err(LabError::Option("only two nodes are joined directly; use a path".to_owned()));
        };
        let addresses = [Ipv4Addr::new(10, 76, 0, 1), Ipv4Addr::new(10, 76, 0, 2)];
        let dev = DIRECT;
        let pair =
            format!("link add {dev} netns {a} mtu {mtu} type veth peer name {dev} netns {b} mtu {mtu}");
        let mut lines = vec![pair];
        for (namespace, address) in [a, b].into_iter().zip(addresses) {
            lines.push(format!("-n {namespace} addr add {address}/24 dev {dev}"));
            lines.push(format!("-n {namespace} link set {dev} up"));
        }
        lines.iter().try_for_each(|l| ip(l)).map_err(system("join the nodes (by `ip` of iproute2)"))?;
        Ok(addresses)
    }

    /// The file of the emulator's records, see [`record`](crate::emulator::record).
    pub fn record_path(&self) -> &Path {
        &self.record
    }

    /// Restarts the links' schedules and traces (`at=...`, black-outs, rate changes): a change scheduled at 10 s
    /// happens 10 s after this call.
    ///
    /// # Errors
    /// When the emulator has died.
    pub fn restart_schedules(&mut self) -> Result<(), LabError> {
        self.emulator.request(&Request::RestartSchedules).map(drop)
    }

    /// Changes a link from now on, by its name and a description in the language of [`netem::LinkConfig::parse`].
    ///
    /// # Errors
    /// When there is no such link, the description cannot be read, or the emulator has died.
    pub fn set_link(&mut self, link: &str, config: &str) -> Result<(), LabError> {
        let request = Request::SetLink { link: link.to_owned(), config: config.to_owned() };
        self.emulator.request(&request).map(drop)
    }

    /// Marks this moment in the records. What follows belongs to this label until the next mark, whose record has the
    /// lateness since this one. Returns when the emulator has written it.
    ///
    /// # Errors
    /// When the emulator has died.
    pub fn mark(&mut self, label: &str) -> Result<Mark, LabError> {
        match self.emulator.request(&Request::Mark { label: label.to_owned() })? {
            Answer::Marked(mark) => Ok(mark),
            _ => Err(LabError::Emulator("gave an answer that was not asked for".to_owned())),
        }
    }

    /// Stops the emulator, kills all processes in the nodes, removes everything, and returns the emulator's totals. A
    /// record outside of the state folder is kept.
    ///
    /// # Errors
    /// When the emulator has died before, or something cannot be removed.
    pub fn down(mut self) -> Result<Summary, LabError> {
        let summary = self.emulator.stop();
        self.state.remove().map_err(system("remove the laboratory"))?;
        summary
    }

    fn index(&self, node: &str) -> Result<u8, LabError> {
        let index =
            self.nodes.iter().position(|name| name == node).and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| LabError::Node(node.to_owned(), self.nodes.join(", ")))
    }

    fn addresses(&self, node: &str, path: usize) -> Result<Addresses, LabError> {
        let node = self.index(node)?;
        let known = u8::try_from(path).ok().filter(|_| path < self.paths);
        let none = || LabError::Option(format!("there is no path {path}: this topology has {}", self.paths));
        Ok(Addresses::of(node, known.ok_or_else(none)?))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The namespaces' devices go first. Errors are ignored; `clean` finds what is left.
        let _ = self.emulator.stop();
        let _ = self.state.remove();
    }
}

/// The emulator's process and its standard input and output.
#[derive(Debug)]
struct Emulator {
    /// `None` after it was waited for.
    child: Option<Child>,
    output: Vec<u8>,
}

impl Emulator {
    fn start(state: &State, options: &Options) -> Result<Emulator, LabError> {
        let (program, arguments) = match &options.emulator {
            Some((program, arguments)) => (program.clone(), arguments.clone()),
            None => {
                let this = std::env::current_exe().map_err(system("find this program"))?;
                (this, vec![EMULATOR_ARGUMENT.to_owned()])
            }
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(state.folder()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C on the terminal is for the owner, whose end the emulator notices.
        command.process_group(0);
        let child = command.spawn().map_err(system("start the emulator"))?;
        let mut emulator = Emulator { child: Some(child), output: Vec::new() };
        match emulator.read_answer(ANSWER_TIMEOUT)? {
            Answer::Ready => Ok(emulator),
            _ => Err(LabError::Emulator("did not say that it is ready".to_owned())),
        }
    }

    fn request(&mut self, request: &Request) -> Result<Answer, LabError> {
        let mut line = serde_json::to_vec(request).map_err(|error| LabError::Emulator(error.to_string()))?;
        line.push(b'\n');
        let input = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        let sent = input.map(|input| input.write_all(&line));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.death_error());
        }
        match self.read_answer(ANSWER_TIMEOUT)? {
            Answer::Failed { reason } => Err(LabError::Option(reason)),
            answer => Ok(answer),
        }
    }

    /// Closes its input, which ends it, and reads its summary.
    fn stop(&mut self) -> Result<Summary, LabError> {
        let Some(child) = &mut self.child else {
            return Err(LabError::Emulator("has ended before".to_owned()));
        };
        drop(child.stdin.take());
        let last = self.read_answer(ANSWER_TIMEOUT);
        if let Some(mut child) = self.child.take() {
            if last.is_err() {
                // It may have ended already.
                let _ = child.kill();
            }
            child.wait().map_err(system("wait for the emulator"))?;
        }
        match last? {
            Answer::Ended(summary) => Ok(summary),
            _ => Err(LabError::Emulator("ended without a summary".to_owned())),
        }
    }

    /// Reads the next answer.
    fn read_answer(&mut self, patience: Span) -> Result<Answer, LabError> {
        let clock = Clock::new();
        let deadline = clock.now() + patience;
        loop {
            if let Some(end) = self.output.iter().position(|byte| *byte == b'\n') {
                let rest = self.output.split_off(end + 1);
                let line = std::mem::replace(&mut self.output, rest);
                let unreadable = |error| LabError::Emulator(format!("gave an answer that is none: {error}"));
                return serde_json::from_slice(&line).map_err(unreadable);
            }
            if self.output.len() > MAX_LINE * 64 {
                return Err(LabError::Emulator("does not end its answer".to_owned()));
            }
            if !self.read_output(deadline, clock.now())? {
                return Err(self.death_error());
            }
        }
    }

    /// Reads available output; false at its end.
    fn read_output(&mut self, deadline: Time, now: Time) -> Result<bool, LabError> {
        let Some(output) = self.child.as_mut().and_then(|child| child.stdout.as_mut()) else {
            return Ok(false);
        };
        let left = deadline.since(now);
        let timeout = Timespec { tv_sec: left.as_millis() as i64 / 1000 + 1, tv_nsec: 0 };
        match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if left.is_zero() => return Err(LabError::Emulator("does not answer".to_owned())),
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(true),
            Ok(_) => {}
            Err(error) => return Err(system("wait for the emulator")(error.into())),
        }
        let mut buffer = [0; 4096];
        let length = output.read(&mut buffer).map_err(system("hear the emulator"))?;
        self.output.extend_from_slice(&buffer[..length]);
        Ok(length > 0)
    }

    /// The error for an emulator that died, with its messages.
    fn death_error(&mut self) -> LabError {
        let Some(mut child) = self.child.take() else {
            return LabError::Emulator("has ended before".to_owned());
        };
        // A process that closed its output but still runs would be waited for in vain.
        let _ = child.kill();
        let mut said = String::new();
        if let Some(mut errors) = child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let end = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        LabError::Emulator(format!("died ({end}): {}", said.trim()))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.child.is_some() {
            // Errors are ignored.
            let _ = self.stop();
        }
    }
}

/// Removes what laboratories of dead owners left behind, and returns their names.
///
/// # Errors
/// Not root, or something cannot be removed.
pub fn clean() -> Result<Vec<String>, LabError> {
    check_root()?;
    let mut names = Vec::new();
    for dead in AbandonedLab::all().map_err(system("read /run/longhaul-lab"))? {
        names.push(dead.name());
        dead.remove().map_err(system("remove a laboratory whose owner is dead"))?;
    }
    Ok(names)
}

/// Converts a system error, with what was tried.
fn system(what: &str) -> impl FnOnce(io::Error) -> LabError + use<'_> {
    move |source| LabError::System { what: what.to_owned(), source }
}

fn check_root() -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

fn check(name: &str, options: &Options) -> Result<(), LabError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(fits) {
        return Err(LabError::Name(name.to_owned()));
    }
    if !(Span::from_millis(1)..=Span::from_secs(10)).contains(&options.interval) {
        let text = format!("an interval of {} is out of range; use 1 ms to 10 s", options.interval);
        return Err(LabError::Option(text));
    }
    // The minimum MTU of IPv6 (RFC 8200, section 5).
    if !(1280..=9000).contains(&options.mtu) {
        return Err(LabError::Option(format!(
            "an MTU of {} is out of range; use 1280 to 9000 bytes",
            options.mtu
        )));
    }
    Ok(())
}
