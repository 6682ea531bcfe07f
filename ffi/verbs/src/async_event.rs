//! Asynchronous events of queue pairs and shared receive queues.

use crate::abi::*;
use crate::device::context;
use crate::guarded_errno;
use core::ffi::{c_int, c_void};
use engine::{AsyncEvent, Channel, Engine};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use verbs::SrqId;

/// IBV_EVENT_SRQ_LIMIT_REACHED.
const SRQ_LIMIT_REACHED: c_int = 15;
/// IBV_EVENT_QP_LAST_WQE_REACHED.
const LAST_WQE_REACHED: c_int = 16;
/// An event on a channel is its type above this bit, and its element's address below: addresses have 47 bits.
const TYPE_SHIFT: u32 = 56;

/// What events can be about: the addresses that programs know, and the channel of their context.
#[derive(Default)]
struct Known {
    queue_pairs: HashMap<u32, (usize, Arc<Channel>)>,
    shared: HashMap<SrqId, (usize, Arc<Channel>)>,
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
            // A failed connection is told by completions. Only who shares receives must know that no more are taken.
            AsyncEvent::QueuePairFailed { number } => {
                (known(|k| k.queue_pairs.get(&number).cloned()), LAST_WQE_REACHED)
            }
            AsyncEvent::SharedReceiveQueueLow { srq } => {
                (known(|k| k.shared.get(&srq).cloned()), SRQ_LIMIT_REACHED)
            }
        };
        if let Some((element, channel)) = found {
            channel.tell((kind as u64) << TYPE_SHIFT | element as u64);
        }
    });
}

/// A queue pair with a shared receive queue.
pub(crate) fn know_queue_pair(number: u32, qp: *mut ibv_qp, channel: &Arc<Channel>) {
    known(|k| k.queue_pairs.insert(number, (qp as usize, channel.clone())));
}
pub(crate) fn forget_queue_pair(number: u32) {
    if let Some((element, channel)) = known(|k| k.queue_pairs.remove(&number)) {
        channel.forget((LAST_WQE_REACHED as u64) << TYPE_SHIFT | element as u64);
    }
}
pub(crate) fn know_shared(id: SrqId, srq: *mut ibv_srq, channel: &Arc<Channel>) {
    known(|k| k.shared.insert(id, (srq as usize, channel.clone())));
}
pub(crate) fn forget_shared(id: SrqId) {
    if let Some((element, channel)) = known(|k| k.shared.remove(&id)) {
        channel.forget((SRQ_LIMIT_REACHED as u64) << TYPE_SHIFT | element as u64);
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
