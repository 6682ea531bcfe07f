//! Completion queues and channels as the program's threads see them.

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use verbs::{CqId, Opcode, Status};

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number given when posting.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Length of the message in bytes.
    pub byte_len: u64,
    /// Immediate data of the peer.
    pub imm: Option<u32>,
    /// Number of the queue pair here.
    pub number: u32,
    /// Number of the peer's queue pair.
    pub peer: u32,
    /// Whether the peer asked for attention.
    pub solicited: bool,
    /// A datagram: what it brought begins with 40 bytes of routing header.
    pub has_grh: bool,
}

/// Nobody waits to be told.
const SILENT: u8 = 0;
/// The next completion is to be told.
const ANY: u8 = 1;
/// The next solicited or failed one is.
const SOLICITED: u8 = 2;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) id: CqId,
    ring: ArrayQueue<Completion>,
    armed: AtomicU8,
    /// Where to tell, and by which number there.
    channel: Option<(Arc<Channel>, u64)>,
    /// Completions wait for room in the ring.
    overflowing: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(id: CqId, capacity: usize, channel: Option<(Arc<Channel>, u64)>) -> CompletionQueue {
        let ring = ArrayQueue::new(capacity.max(1));
        let (armed, overflowing) = (AtomicU8::new(SILENT), AtomicU32::new(0));
        CompletionQueue { id, ring, armed, channel, overflowing }
    }

    /// Entries that it has room for.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Takes the oldest completion, without a lock and without running the engine.
    pub fn take(&self) -> Option<Completion> {
        self.ring.pop()
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.ring.is_full()
    }
    pub(crate) fn set_overflowing(&self, waits: bool) {
        self.overflowing.store(waits.into(), Ordering::Release);
    }
    /// Whether completions wait for room in the ring.
    pub fn is_overflowing(&self) -> bool {
        self.overflowing.load(Ordering::Acquire) != 0
    }

    /// Asks for one event on the channel when the next completion comes, or the next solicited or failed one. Poll once more
    /// afterwards: completions that are there already do not count.
    pub fn arm(&self, solicited_only: bool) {
        self.armed.store(if solicited_only { SOLICITED } else { ANY }, Ordering::SeqCst);
        // So that either the poll that follows sees a completion, or who puts it in sees this.
        fence(Ordering::SeqCst);
    }

    /// Puts in a completion for which there is room.
    pub(crate) fn push(&self, c: Completion) {
        let counts_as_solicited = c.solicited || c.status != Status::Success;
        if self.ring.push(c).is_err() {
            debug_assert!(false, "there was room");
        }
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::SeqCst);
        if armed == ANY || armed == SOLICITED && counts_as_solicited {
            self.armed.store(SILENT, Ordering::SeqCst);
            if let Some((channel, number)) = &self.channel {
                channel.tell(*number);
            }
        }
    }
}

/// A descriptor that becomes readable when a completion queue that was armed has a completion.
#[derive(Debug)]
pub struct Channel {
    /// Counts the events.
    event: OwnedFd,
    waiting: Mutex<VecDeque<u64>>,
}

impl Channel {
    /// A channel without events.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Arc<Channel>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Arc::new(Channel { event, waiting: Mutex::default() }))
    }

    /// Adds an event of the thing that the program knows by `number`.
    pub fn tell(&self, number: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(number);
        // It fails only when the counter would exceed 2^64 - 2.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes the oldest event; waits for one unless the descriptor was made non-blocking.
    ///
    /// # Errors
    /// `WouldBlock`, `Interrupted`.
    pub fn take(&self) -> io::Result<u64> {
        loop {
            rustix::io::read(&self.event, &mut [0; 8])?;
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            // None: its sender was destroyed meanwhile.
            if let Some(number) = next {
                return Ok(number);
            }
        }
    }

    /// Forgets the events of something that is being destroyed.
    pub fn forget(&self, number: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).retain(|n| *n != number);
    }

    /// The descriptor's number.
    pub fn raw_fd(&self) -> i32 {
        self.event.as_raw_fd()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
