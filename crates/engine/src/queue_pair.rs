//! Queue pairs as the program's threads see them: rings into which they post without a lock that the engine holds.

use crate::fabric::Towards;
use handover::{Receiver, Sender, ring};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use verbs::{RecvWr, SendWr};

/// A queue of work requests on its way to the engine.
#[derive(Debug)]
struct Queue<T> {
    /// Held by threads that post to the same queue pair at once, and by nobody else.
    sender: Mutex<Sender<T>>,
    /// Work requests ever posted, and those that have ended.
    posted: AtomicU64,
    ended: AtomicU64,
    limit: u64,
}

impl<T: Send> Queue<T> {
    fn new(limit: usize) -> (Queue<T>, Receiver<T>) {
        let (sender, receiver) = ring(limit.max(1));
        let (posted, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        (Queue { sender: Mutex::new(sender), posted, ended, limit: limit as u64 }, receiver)
    }

    /// False when as many are outstanding as there may be.
    fn push(&self, wr: T) -> bool {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let posted = self.posted.load(Ordering::Relaxed);
        if posted.wrapping_sub(self.ended.load(Ordering::Acquire)) >= self.limit || sender.push(wr).is_err() {
            return false;
        }
        self.posted.store(posted.wrapping_add(1), Ordering::Release);
        true
    }

    /// How many more may be outstanding.
    fn room(&self) -> u64 {
        let outstanding =
            self.posted.load(Ordering::Acquire).wrapping_sub(self.ended.load(Ordering::Acquire));
        self.limit.saturating_sub(outstanding)
    }

    /// Says how many of those that were taken out of the ring so far have not ended.
    fn set_outstanding(&self, taken: u64, outstanding: u64) {
        self.ended.store(taken.wrapping_sub(outstanding), Ordering::Release);
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    number: u32,
    sends: Queue<(SendWr, Towards)>,
    receives: Queue<RecvWr>,
    /// The engine knows that something was posted.
    announced: AtomicBool,
}

/// The engine's side of a queue pair's rings.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) sends: Receiver<(SendWr, Towards)>,
    pub(crate) receives: Receiver<RecvWr>,
}

impl QueuePair {
    pub(crate) fn new(number: u32, max_send: usize, max_recv: usize) -> (QueuePair, Posted) {
        let ((sends, s), (receives, r)) = (Queue::new(max_send), Queue::new(max_recv));
        let qp = QueuePair { number, sends, receives, announced: AtomicBool::new(false) };
        (qp, Posted { sends: s, receives: r })
    }

    /// Its number: 24 bits, see [`crate::address`].
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Work requests for sending that may be posted by now.
    pub fn send_room(&self) -> u64 {
        self.sends.room()
    }

    pub(crate) fn push_send(&self, wr: SendWr, to: Towards) -> bool {
        self.sends.push((wr, to))
    }
    pub(crate) fn push_receive(&self, wr: RecvWr) -> bool {
        self.receives.push(wr)
    }
    /// True when the engine has to be told.
    pub(crate) fn announce(&self) -> bool {
        !self.announced.swap(true, Ordering::AcqRel)
    }
    /// The engine looks into the rings now.
    pub(crate) fn looked(&self) {
        self.announced.store(false, Ordering::Release);
        // What is posted from here on is announced again; what was posted before is seen by the look that follows.
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    pub(crate) fn set_outstanding_sends(&self, taken: u64, outstanding: u64) {
        self.sends.set_outstanding(taken, outstanding);
    }
    pub(crate) fn set_outstanding_receives(&self, taken: u64, outstanding: u64) {
        self.receives.set_outstanding(taken, outstanding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Data, SendOp, Sges};

    #[test]
    fn no_more_may_be_outstanding_than_the_queue_has_room_for() {
        let (qp, mut posted) = QueuePair::new(7, 3, 2);
        let wr = |n| SendWr::new(n, SendOp::Send, Data::Sges(Sges::None));
        assert!((0..3).all(|n| qp.push_send(wr(n), Towards::Peer)));
        assert!(!qp.push_send(wr(3), Towards::Peer), "three are outstanding");
        assert_eq!(posted.sends.pop().map(|(w, _)| w.wr_id), Some(0));
        assert!(!qp.push_send(wr(3), Towards::Peer), "the engine has taken one, which has not ended");
        qp.set_outstanding_sends(1, 0);
        assert!(qp.push_send(wr(3), Towards::Peer) && !qp.push_send(wr(4), Towards::Peer));
        assert!((0..2).all(|wr_id| qp.push_receive(RecvWr { wr_id, sges: Sges::None })));
        assert!(!qp.push_receive(RecvWr { wr_id: 2, sges: Sges::None }));
        assert!(qp.announce() && !qp.announce());
        qp.looked();
        assert!(qp.announce());
    }
}
