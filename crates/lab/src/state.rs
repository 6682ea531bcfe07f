//! What a laboratory has made, written down before it is made, so that somebody else can remove it.
//!
//! Each laboratory has a folder in `/run/longhaul-lab`. Its owner and its emulator each hold a lock on a file in it as long
//! as they live: the kernel lets go of it however they end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::Span;
use lhio::clock::Clock;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::emulator::Setup;
use crate::netns;

/// Where the folders are.
const ROOT: &str = "/run/longhaul-lab";
/// Held while the host's settings change, see [`raise_host_limits`].
const LOCK: &str = ".lock";
/// What the host's settings were.
const HOST: &str = ".host.json";
const NODES: &str = "state.json";
const SETUP: &str = "setup.json";
const OWNER: &str = "owner.lock";
const EMULATOR: &str = "emulator.lock";
const RECORD: &str = "record.jsonl";

/// Limits of socket buffers, which Linux keeps for the whole machine: no transport is limited by them in a laboratory. They
/// are restored when the last laboratory ends.
const HOST_LIMITS: [&str; 2] = ["/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"];
/// 512 MB: more than any path's bandwidth-delay product here.
const HOST_LIMIT: u64 = 512 << 20;

/// How long an emulator without an owner may take to end by itself, and then to be killed.
const PATIENCE: Span = Span::from_secs(5);

/// The state folder of one laboratory.
#[derive(Clone, Debug)]
pub(crate) struct State {
    folder: PathBuf,
    /// Names of nodes and of their namespaces.
    nodes: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
struct Nodes {
    nodes: Vec<(String, String)>,
}

impl State {
    /// A new folder, with the lock of its owner; `None` when there is one whose owner is alive.
    pub(crate) fn create(name: &str, nodes: &[String]) -> io::Result<Option<(State, File)>> {
        fs::create_dir_all(ROOT)?;
        let folder = Path::new(ROOT).join(name);
        if folder.exists() {
            let Some(dead) = Dead::find(&folder)? else { return Ok(None) };
            dead.remove()?;
        }
        fs::create_dir(&folder)?;
        let Some(owner) = try_lock(&folder.join(OWNER))? else { return Ok(None) };
        let nodes = nodes.iter().map(|node| (node.clone(), format!("lh-{name}-{node}"))).collect();
        let state = State { folder, nodes };
        state.write(NODES, &Nodes { nodes: state.nodes.clone() })?;
        Ok(Some((state, owner)))
    }

    /// A folder that is there.
    pub(crate) fn open(folder: &Path) -> io::Result<State> {
        let Nodes { nodes } = serde_json::from_slice(&fs::read(folder.join(NODES))?)?;
        Ok(State { folder: folder.to_owned(), nodes })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of nodes and of their namespaces.
    pub(crate) fn namespaces(&self) -> &[(String, String)] {
        &self.nodes
    }

    /// Where records go when nobody says otherwise.
    pub(crate) fn record(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    pub(crate) fn write_setup(&self, setup: &Setup) -> io::Result<()> {
        self.write(SETUP, setup)
    }

    pub(crate) fn setup(&self) -> io::Result<Setup> {
        Ok(serde_json::from_slice(&fs::read(self.folder.join(SETUP))?)?)
    }

    /// The lock of the emulator, with its process number.
    pub(crate) fn hold_as_emulator(&self) -> io::Result<File> {
        let mut file = try_lock(&self.folder.join(EMULATOR))?.ok_or(io::ErrorKind::ResourceBusy)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(file)
    }

    fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let mut file = File::create(self.folder.join(name))?;
        serde_json::to_writer(&mut file, value)?;
        file.sync_all()
    }

    /// Removes the namespaces with all that runs in them, and the folder. What is gone already is no error.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for (_, namespace) in &self.nodes {
            netns::remove(namespace)?;
        }
        remove_folder(&self.folder)?;
        restore_host_limits()
    }
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A laboratory whose owner is dead.
pub(crate) struct Dead {
    folder: PathBuf,
    _owner: File,
}

impl Dead {
    /// All there are.
    pub(crate) fn all() -> io::Result<Vec<Dead>> {
        let folders = match fs::read_dir(ROOT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut dead = Vec::new();
        for entry in folders {
            let path = entry?.path();
            if path.is_dir() {
                dead.extend(Dead::find(&path)?);
            }
        }
        Ok(dead)
    }

    /// `None` when its owner is alive, or it is gone.
    fn find(folder: &Path) -> io::Result<Option<Dead>> {
        let owner = match try_lock(&folder.join(OWNER)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        Ok(owner.map(|owner| Dead { folder: folder.to_owned(), _owner: owner }))
    }

    pub(crate) fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Lets its emulator end, or kills it, and removes what is left.
    pub(crate) fn remove(self) -> io::Result<()> {
        let clock = Clock::new();
        let begin = clock.now();
        while let Some(emulator) = self.emulator()? {
            let waited = clock.now().since(begin);
            if waited > PATIENCE * 2 {
                let text = format!("its emulator, process {}, cannot be killed", emulator.as_raw_nonzero());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            if waited > PATIENCE {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(emulator, rustix::process::Signal::KILL);
            }
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 });
        }
        match State::open(&self.folder) {
            Ok(state) => state.remove(),
            // Its owner died, or its emulator removed it, before there was anything else.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                remove_folder(&self.folder)?;
                restore_host_limits()
            }
            Err(error) => Err(error),
        }
    }

    /// Its emulator, while it is alive.
    fn emulator(&self) -> io::Result<Option<rustix::process::Pid>> {
        let path = self.folder.join(EMULATOR);
        if !path.exists() || try_lock(&path).map(|lock| lock.is_some()).or_else(gone)? {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).or_else(|error| gone(error).map(|_| String::new()))?;
        Ok(text.trim().parse().ok().and_then(rustix::process::Pid::from_raw))
    }
}

/// A file that is gone is as good as one that is not locked.
fn gone(error: io::Error) -> io::Result<bool> {
    if error.kind() == io::ErrorKind::NotFound { Ok(true) } else { Err(error) }
}

/// The file, made when it is not there, when nobody else holds it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).read(true).append(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The lock on the host's settings; let go of when dropped.
fn lock_host() -> io::Result<File> {
    let file = File::options().create(true).append(true).open(Path::new(ROOT).join(LOCK))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Raises the host's limits on socket buffers, and writes down what they were.
pub(crate) fn raise_host_limits() -> io::Result<()> {
    let _lock = lock_host()?;
    let before = HOST_LIMITS.map(|path| fs::read_to_string(path).unwrap_or_default());
    let record = Path::new(ROOT).join(HOST);
    if !record.exists() {
        fs::write(&record, serde_json::to_vec(&before)?)?;
    }
    for (path, before) in HOST_LIMITS.iter().zip(&before) {
        if before.trim().parse::<u64>().is_ok_and(|value| value < HOST_LIMIT) {
            fs::write(path, HOST_LIMIT.to_string())?;
        }
    }
    Ok(())
}

/// Restores them when there is no other laboratory.
fn restore_host_limits() -> io::Result<()> {
    if !Path::new(ROOT).exists() {
        return Ok(());
    }
    let _lock = lock_host()?;
    for entry in fs::read_dir(ROOT)? {
        if entry?.file_type()?.is_dir() {
            return Ok(());
        }
    }
    let record = Path::new(ROOT).join(HOST);
    let Ok(text) = fs::read(&record) else { return Ok(()) };
    let before: [String; 2] = serde_json::from_slice(&text).unwrap_or_default();
    for (path, before) in HOST_LIMITS.iter().zip(&before) {
        if !before.is_empty() {
            fs::write(path, before)?;
        }
    }
    fs::remove_file(record)
}
