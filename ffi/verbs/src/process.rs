//! The one engine of the process, made when a device is opened first.

use core::ffi::c_int;
use engine::{ClusterKey, Engine, Options};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use zeroize::Zeroizing;

/// The file with the cluster's key; `longhaul run` sets it.
const CLUSTER: &str = "LONGHAUL_CLUSTER";
/// The congestion control of what this process sends.
const CC: &str = "LONGHAUL_CC";
/// `integrity` or `crc32c`: packets are not encrypted, if the peer asks for the same.
const ENCRYPTION: &str = "LONGHAUL_ENCRYPTION";

/// `iwarp`: queue pairs take streams by TCP. Else the native transport.
const TRANSPORT: &str = "LONGHAUL_TRANSPORT";
/// The congestion control of these streams, by the system's name for it.
const TCP_CC: &str = "LONGHAUL_TCP_CC";

static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);
/// The key of queries about services, once there is an engine.
static SERVICES: OnceLock<Zeroizing<[u8; 32]>> = OnceLock::new();
/// In a child after `fork`: the engine's thread and its locks are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);
static AT_FORK: Once = Once::new();
/// The thread that ends the process, once one does.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// The engine, which is started when there is none.
pub(crate) fn engine() -> Result<Engine, c_int> {
    check_fork()?;
    let mut held = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(e) = &*held {
        return Ok(e.clone());
    }
    let e = start().inspect_err(|why| eprintln!("longhaul: {why}")).map_err(|_| libc::EIO)?;
    AT_FORK.call_once(|| {
        // SAFETY: the handlers are functions that live as long as the process and touch atomics only.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
    *held = Some(e.clone());
    Ok(e)
}

/// The key of queries about services of this cluster. There is an engine.
pub(crate) fn services() -> Result<&'static [u8; 32], c_int> {
    SERVICES.get().map(|key| &**key).ok_or(libc::EIO)
}

/// Refuses what iWARP does not have, where queue pairs take it, with a sentence on standard error the first time.
pub(crate) fn needs_packets(engine: &Engine, what: &'static str) -> Result<(), c_int> {
    static TOLD: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    if !engine.is_iwarp() {
        return Ok(());
    }
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.contains(&what) {
        told.push(what);
        eprintln!(
            "longhaul: cannot serve {what} by iWARP, which has reliable connected queue pairs only; try --transport longhaul at both ends"
        );
    }
    Err(libc::EOPNOTSUPP)
}

/// Refuses in a child after `fork`, which has no engine.
pub(crate) fn check_fork() -> Result<(), c_int> {
    if FORKED.load(Ordering::Relaxed) { Err(libc::ENODEV) } else { Ok(()) }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether another thread ends the process.
pub(crate) fn is_ending() -> bool {
    let thread = ENDING.load(Ordering::Relaxed);
    // SAFETY: it takes nothing.
    thread != 0 && thread != unsafe { libc::gettid() }
}

/// Tells the peers, so that they need not wait until the connection has been silent for long.
extern "C" fn at_exit() {
    // SAFETY: it takes nothing.
    ENDING.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    if FORKED.load(Ordering::Relaxed) {
        return;
    }
    let _ = std::panic::catch_unwind(|| {
        if let Ok(held) = ENGINE.try_lock()
            && let Some(e) = &*held
        {
            e.close();
            // Its control socket goes with it.
            e.end_governor();
        }
    });
}

fn start() -> Result<Engine, String> {
    let path = std::env::var_os(CLUSTER).map(PathBuf::from).ok_or_else(|| {
        format!("cannot tell which cluster this program belongs to: {CLUSTER} is not set; try `longhaul run -- PROGRAM`")
    })?;
    let key = ClusterKey::read(&path).map_err(|e| e.to_string())?;
    let mut options = Options::new(&key);
    options.transport.intent.application = crate::governor::program();
    let _ = SERVICES.set(key.services());
    if let Ok(cc) = std::env::var(CC) {
        options.transport.cc = cc;
    }
    match std::env::var(TRANSPORT).as_deref() {
        Err(_) | Ok("" | "longhaul") => {}
        Ok("iwarp") => options.iwarp = true,
        Ok(name) => return Err(format!("cannot use the transport {name}: it is neither longhaul nor iwarp")),
    }
    options.tcp_congestion = std::env::var(TCP_CC).ok().filter(|names| !names.is_empty());
    match std::env::var(ENCRYPTION).as_deref() {
        Err(_) | Ok("" | "auto") => {}
        Ok(name) => options.set_encryption(name)?,
    }
    let engine = Engine::start(options).map_err(|e| e.to_string())?;
    crate::governor::start(&engine)?;
    Ok(engine)
}
