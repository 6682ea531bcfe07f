//! The record of a laboratory's resources, written before they are created, so that another process can remove them.
//!
//! Each laboratory has a folder in `/run/longhaul-lab`. Its owner and its emulator each hold a lock on a file in it;
//! the kernel releases the locks however they end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::Span;
use lhio::clock::Clock;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::emulator::Setup;
use crate::netns;

/// The parent of the state folders.
const ROOT: &str = "/run/longhaul-lab";
/// Locked while the host's settings change, see [`raise_host_limits`].
const LOCK: &str = ".lock";
/// The host's original settings.
const HOST: &str = ".host.json";
const NODES: &str = "state.json";
const SETUP: &str = "setup.json";
const OWNER: &str = "owner.lock";
const EMULATOR: &str = "emulator.lock";
const RECORD: &str = "record.jsonl";

/// Limits of socket buffers, which Linux has for the whole machine. They are raised so that no transport is limited
/// by them, and restored when the last laboratory ends.
const HOST_LIMITS: [&str; 2] = ["/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"];
/// 512 MB: more than any path's bandwidth-delay product here.
const HOST_LIMIT: u64 = 512 << 20;

/// How long an emulator without an owner may take to end by itself, and then to be killed.
const EMULATOR_EXIT_TIMEOUT: Span = Span::from_secs(5);

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
    /// Creates a folder and locks it as its owner; `None` if one with a living owner exists.
    pub(crate) fn create(name: &str, nodes: &[String]) -> io::Result<Option<(State, File)>> {
        fs::create_dir_all(ROOT)?;
        let folder = Path::new(ROOT).join(name);
        if folder.exists() {
            let Some(dead) = AbandonedLab::find(&folder)? else { return Ok(None) };
            dead.remove()?;
        }
        fs::create_dir(&folder)?;
        let Some(owner) = try_lock(&folder.join(OWNER))? else { return Ok(None) };
        let nodes = nodes.iter().map(|node| (node.clone(), format!("lh-{name}-{node}"))).collect();
        let state = State { folder, nodes };
        state.write(NODES, &Nodes { nodes: state.nodes.clone() })?;
        Ok(Some((state, owner)))
    }

    /// Opens an existing folder.
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

    /// The default file of records.
    pub(crate) fn record(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    pub(crate) fn write_setup(&self, setup: &Setup) -> io::Result<()> {
        self.write(SETUP, setup)
    }

    pub(crate) fn setup(&self) -> io::Result<Setup> {
        Ok(serde_json::from_slice(&fs::read(self.folder.join(SETUP))?)?)
    }

    /// Takes the emulator's lock and writes its process number.
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

    /// Removes the namespaces with all their processes, and the folder. Missing ones are no error.
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
pub(crate) struct AbandonedLab {
    folder: PathBuf,
    _owner: File,
}

impl AbandonedLab {
    /// All of them.
    pub(crate) fn all() -> io::Result<Vec<AbandonedLab>> {
        let folders = match fs::read_dir(ROOT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut dead = Vec::new();
        for entry in folders {
            let path = entry?.path();
            if path.is_dir() {
                dead.extend(AbandonedLab::find(&path)?);
            }
        }
        Ok(dead)
    }

    /// The laboratory in this folder; `None` if its owner is alive or it is gone.
    fn find(folder: &Path) -> io::Result<Option<AbandonedLab>> {
        let owner = match try_lock(&folder.join(OWNER)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        Ok(owner.map(|owner| AbandonedLab { folder: folder.to_owned(), _owner: owner }))
    }

    pub(crate) fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Waits for its emulator to end, or kills it, and removes what is left.
    pub(crate) fn remove(self) -> io::Result<()> {
        let clock = Clock::new();
        let begin = clock.now();
        while let Some(emulator) = self.emulator()? {
            let waited = clock.now().since(begin);
            if waited > EMULATOR_EXIT_TIMEOUT * 2 {
                let text = format!("its emulator, process {}, cannot be killed", emulator.as_raw_nonzero());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            if waited > EMULATOR_EXIT_TIMEOUT {
                // It may have ended by itself.
                let _ = rustix::process::kill_process(emulator, rustix::process::Signal::KILL);
            }
            let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 });
        }
        match State::open(&self.folder) {
            Ok(state) => state.remove(),
            // Its owner died, or its emulator removed it, before anything else was created.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                remove_folder(&self.folder)?;
                restore_host_limits()
            }
            Err(error) => Err(error),
        }
    }

    /// The process of its emulator, while alive.
    fn emulator(&self) -> io::Result<Option<rustix::process::Pid>> {
        let path = self.folder.join(EMULATOR);
        if !path.exists() || try_lock(&path).map(|lock| lock.is_some()).or_else(false_if_missing)? {
            return Ok(None);
        }
        let text =
            fs::read_to_string(&path).or_else(|error| false_if_missing(error).map(|_| String::new()))?;
        Ok(text.trim().parse().ok().and_then(rustix::process::Pid::from_raw))
    }
}

/// Treats a missing file as an unlocked one.
fn false_if_missing(error: io::Error) -> io::Result<bool> {
    if error.kind() == io::ErrorKind::NotFound { Ok(true) } else { Err(error) }
}

/// Creates the file if necessary and locks it; `None` if another process holds the lock.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).read(true).append(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The lock on the host's settings, released when dropped.
fn lock_host() -> io::Result<File> {
    let file = File::options().create(true).append(true).open(Path::new(ROOT).join(LOCK))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Raises the host's limits on socket buffers, and records the original ones.
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

/// Restores the limits if there is no other laboratory.
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
