//! Asynchronous events of queue pairs and shared receive queues.

use crate::abi::*;
use crate::device::context;
use crate::guarded_errno;
use core::ffi::{c_int, c_void};
use engine::{AsyncEvent, Channel, Engine};
use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use verbs::SrqId;

/// IBV_EVENT_QP_FATAL and IBV_EVENT_DEVICE_FATAL.
const QP_FATAL: c_int = 1;
const DEVICE_FATAL: c_int = 8;
/// IBV_EVENT_SRQ_LIMIT_REACHED.
const SRQ_LIMIT_REACHED: c_int = 15;
/// IBV_EVENT_QP_LAST_WQE_REACHED.
const LAST_WQE_REACHED: c_int = 16;
/// An event on a channel is its type above this bit, and its element's address below: addresses have 47 bits.
const TYPE_SHIFT: u32 = 56;
/// Processes of which is told that they cannot be reached.
const MAX_LOST: usize = 64;

/// What events can be about: the addresses that programs know, and the channel of their context.
#[derive(Default)]
struct Known {
    queue_pairs: HashMap<u32, KnownPair>,
    shared: HashMap<SrqId, (usize, Arc<Channel>)>,
    /// Channels of the contexts that are open.
    contexts: Vec<Arc<Channel>>,
    /// Processes that could not be reached, of which was told.
    lost: HashSet<SocketAddr>,
}

struct KnownPair {
    element: usize,
    channel: Arc<Channel>,
    /// It takes receives from a shared queue.
    shares: bool,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn known<R>(f: impl FnOnce(&mut Known) -> R) -> R {
    let mut held = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    f(held.get_or_insert_default())
}

/// Has the engine's events passed on.
pub(crate) fn listen(engine: &Engine) {
    engine.listen(|event| {
        let (found, kind) = match event {
            AsyncEvent::ProcessLost { process, why } => return tell_once(process, &why),
            // A failed connection is told by completions. Only who shares receives must know that no more are taken.
            AsyncEvent::QueuePairFailed { number } => {
                let pair = |k: &mut Known| {
                    let p = k.queue_pairs.get(&number).filter(|p| p.shares)?;
                    Some((p.element, p.channel.clone()))
                };
                (known(pair), LAST_WQE_REACHED)
            }
            AsyncEvent::DeviceFailed { why } => return device_failed(&why),
            AsyncEvent::SharedReceiveQueueLow { srq } => {
                (known(|k| k.shared.get(&srq).cloned()), SRQ_LIMIT_REACHED)
            }
        };
        if let Some((element, channel)) = found {
            channel.tell(event_of(kind, element));
        }
    });
}

const fn event_of(kind: c_int, element: usize) -> u64 {
    (kind as u64) << TYPE_SHIFT | element as u64
}

/// The network cannot be used any more: says so on standard error, and by events of each queue pair and each context.
fn device_failed(why: &str) {
    let _ = writeln!(std::io::stderr(), "longhaul: cannot use the network any more: {why}");
    known(|k| {
        k.queue_pairs.values().for_each(|p| p.channel.tell(event_of(QP_FATAL, p.element)));
        k.contexts.iter().for_each(|channel| channel.tell(event_of(DEVICE_FATAL, 0)));
    });
}

pub(crate) fn know_context(channel: &Arc<Channel>) {
    known(|k| k.contexts.push(channel.clone()));
}
pub(crate) fn forget_context(channel: &Arc<Channel>) {
    known(|k| k.contexts.retain(|c| !Arc::ptr_eq(c, channel)));
}

/// Says on standard error, once for each process at the other end, why nothing reaches it: programs only see a status.
fn tell_once(process: SocketAddr, why: &str) {
    let is_first = known(|k| k.lost.len() < MAX_LOST && k.lost.insert(process));
    if is_first {
        // Where nobody reads it, it is left out.
        let _ = writeln!(std::io::stderr(), "longhaul: cannot reach the program at {process}: {why}");
    }
}

/// A queue pair; `shares` says that it has a shared receive queue.
pub(crate) fn know_queue_pair(number: u32, qp: *mut ibv_qp, channel: &Arc<Channel>, shares: bool) {
    let pair = KnownPair { element: qp as usize, channel: channel.clone(), shares };
    known(|k| k.queue_pairs.insert(number, pair));
}
pub(crate) fn forget_queue_pair(number: u32) {
    if let Some(p) = known(|k| k.queue_pairs.remove(&number)) {
        [LAST_WQE_REACHED, QP_FATAL].into_iter().for_each(|kind| p.channel.forget(event_of(kind, p.element)));
    }
}
pub(crate) fn know_shared(id: SrqId, srq: *mut ibv_srq, channel: &Arc<Channel>) {
    known(|k| k.shared.insert(id, (srq as usize, channel.clone())));
}
pub(crate) fn forget_shared(id: SrqId) {
    if let Some((element, channel)) = known(|k| k.shared.remove(&id)) {
        channel.forget(event_of(SRQ_LIMIT_REACHED, element));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_get_async_event(c: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    guarded_errno(|| {
        // SAFETY: the caller's context.
        let ours = unsafe { context(c)? };
        let event = ours.events.take().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
        let element = (event & ((1 << TYPE_SHIFT) - 1)) as *mut c_void;
        // SAFETY: the caller's structure.
        unsafe { out.write(ibv_async_event { element, event_type: (event >> TYPE_SHIFT) as c_int }) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_ack_async_event(_: *mut ibv_async_event) {}
