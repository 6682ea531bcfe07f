//! Completion queues and channels as the program's threads see them.

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
    /// A receive only: the key of ours that the peer made void with the message.
    pub invalidated: Option<u32>,
    /// Whether that is one of IPv4.
    pub is_v4: bool,
}

/// Nobody waits to be told.
const SILENT: u8 = 0;
/// The next completion is to be told.
const ANY: u8 = 1;
/// The next solicited or failed one is.
const SOLICITED: u8 = 2;

/// Rings that a completion queue has had at most: each is at least twice as large as the one before.
const MAX_RINGS: usize = 32;

/// A completion queue. What is put in goes into the newest of its rings; what is taken comes from the oldest that has something, so
/// that growing keeps the order and neither side waits for the other.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) id: CqId,
    ring: ArrayQueue<Completion>,
    /// Rings that were added when the queue grew, and how many.
    grown: [OnceLock<Box<ArrayQueue<Completion>>>; MAX_RINGS],
    rings: AtomicUsize,
    /// Entries that the program may rely on; the rings have room for at least as many.
    capacity: AtomicUsize,
    armed: AtomicU8,
    /// Where to tell, and by which number there.
    channel: Option<(Arc<Channel>, u64)>,
    /// Completions wait for room in the ring.
    overflowing: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(id: CqId, capacity: usize, channel: Option<(Arc<Channel>, u64)>) -> CompletionQueue {
        let capacity = capacity.max(1);
        CompletionQueue {
            id,
            ring: ArrayQueue::new(capacity),
            grown: Default::default(),
            rings: AtomicUsize::new(0),
            capacity: AtomicUsize::new(capacity),
            armed: AtomicU8::new(SILENT),
            channel,
            overflowing: AtomicU32::new(0),
        }
    }

    /// Entries that it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Acquire)
    }

    /// Takes the oldest completion, without a lock and without running the engine.
    pub fn take(&self) -> Option<Completion> {
        // Read first: what stands in an older ring was put in before the newer one was there.
        let grown = self.rings.load(Ordering::Acquire);
        let oldest = self.ring.pop();
        if grown == 0 || oldest.is_some() {
            return oldest;
        }
        self.grown[..grown].iter().find_map(|ring| ring.get()?.pop())
    }

    /// Completions that wait to be taken.
    fn len(&self) -> usize {
        let grown = self.grown[..self.rings.load(Ordering::Acquire)].iter();
        self.ring.len() + grown.filter_map(|r| r.get()).map(|r| r.len()).sum::<usize>()
    }

    /// The ring that takes what comes.
    fn newest(&self) -> &ArrayQueue<Completion> {
        let last = self.rings.load(Ordering::Acquire).checked_sub(1);
        last.and_then(|i| self.grown[i].get()).map_or(&self.ring, |ring| ring)
    }

    /// Sets how many entries it has room for. False, and nothing changes, when more than that wait to be taken. The caller is the one
    /// that puts completions in.
    pub(crate) fn resize(&self, capacity: usize) -> bool {
        if capacity == 0 || capacity < self.len() {
            return false;
        }
        if capacity > self.newest().capacity() {
            let i = self.rings.load(Ordering::Acquire);
            let larger = || Box::new(ArrayQueue::new(capacity.next_power_of_two()));
            let Some(place) = self.grown.get(i) else { return false };
            place.get_or_init(larger);
            self.rings.store(i + 1, Ordering::Release);
        }
        self.capacity.store(capacity, Ordering::Release);
        true
    }

    /// Takes out what a queue pair that is reset has completed, as adapters do. The caller is the one that puts completions in.
    pub(crate) fn remove_of(&self, number: u32) {
        let kept: Vec<Completion> =
            (0..self.len()).map_while(|_| self.take()).filter(|c| c.number != number).collect();
        for c in kept {
            // There is the room that they came from.
            let _ = self.newest().push(c);
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len() < self.capacity()
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
        if self.newest().push(c).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(wr_id: u64) -> Completion {
        let (status, opcode, byte_len, imm) = (Status::Success, Opcode::Send, 0, None);
        Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm,
            number: 1,
            peer: 2,
            solicited: false,
            has_grh: false,
            invalidated: None,
            is_v4: false,
        }
    }

    #[test]
    fn resized_queue_keeps_order_and_refuses_to_lose_entries() {
        let mut adapter = verbs::Adapter::new(verbs::Limits::default(), base::Rng::from_u64(1));
        let q = CompletionQueue::new(adapter.create_cq(1).expect("a queue"), 3, None);
        (0..3).for_each(|n| q.push(completion(n)));
        assert!(!q.has_room() && !q.resize(2) && !q.resize(0));
        assert_eq!(q.capacity(), 3);
        assert!(q.resize(5) && q.resize(4));
        q.push(completion(3));
        assert!(!q.has_room());
        assert_eq!(q.take().map(|c| c.wr_id), Some(0));
        assert!(q.has_room() && q.resize(100) && q.capacity() == 100);
        (4..100).for_each(|n| q.push(completion(n)));
        assert!((1..100).all(|n| q.take().map(|c| c.wr_id) == Some(n)) && q.take().is_none());
        assert!(q.resize(1));
        q.push(completion(7));
        assert!(!q.has_room());
        assert!(q.resize(4));
        q.push(Completion { number: 5, ..completion(8) });
        q.push(completion(9));
        q.remove_of(5);
        assert_eq!([q.take(), q.take(), q.take()].map(|c| c.map(|c| c.wr_id)), [Some(7), Some(9), None]);
    }
}
