//! A queue of requests from other threads to the loop that moves data. The loop polls it once a turn, which costs one
//! load while it is empty; the requester waits, and the loop never does.

use crate::proto::{FlowId, Program, Response};
use base::{Rate, Span};
use cc::platform::Policy;
use lhio::poll::Waker;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most requests that wait.
pub const MAX_WAITING: usize = 64;
/// How long a requester waits for the loop, which turns many times a second however busy it is.
pub const RESPONSE_TIMEOUT: Span = Span::from_secs(5);

/// A request that only the loop can handle.
#[derive(Debug)]
pub enum LoopRequest {
    /// List all flows.
    Flows,
    /// Run another policy.
    Policy(Arc<dyn Policy>),
    /// Count the flows of these programs, and say whether the process itself needs them.
    Programs(Vec<Program>),
    /// Have flows that run other code by this name run what is loaded now.
    Renew(String),
    /// Change one flow.
    SetFlow {
        /// Which.
        flow: FlowId,
        /// Algorithm with parameters, as it was written.
        algorithm: Option<String>,
        /// Its own cap; the inner `None` takes it away.
        cap: Option<Option<Rate>>,
    },
}

/// A request, and where its response goes.
pub struct QueuedRequest {
    /// What to do.
    pub request: LoopRequest,
    reply: Option<SyncSender<Response>>,
}

impl QueuedRequest {
    /// Sends the response; it is dropped if the requester no longer waits.
    pub fn respond(self, answer: Response) {
        if let Some(reply) = self.reply {
            let _ = reply.try_send(answer);
        }
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<QueuedRequest>,
    closed: bool,
}

struct Inner {
    waiting: Mutex<Waiting>,
    /// There are some.
    any: AtomicBool,
    waker: Waker,
}

/// Both sides of the queue. Cheap to clone; clones are the same queue.
#[derive(Clone)]
pub struct RequestQueue(Arc<Inner>);

impl fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl RequestQueue {
    /// A queue whose loop is woken by `waker`.
    pub fn new(waker: Waker) -> RequestQueue {
        let (waiting, any) = (Mutex::default(), AtomicBool::new(false));
        RequestQueue(Arc::new(Inner { waiting, any, waker }))
    }

    fn put(&self, job: QueuedRequest) -> Result<(), String> {
        {
            let mut w = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if w.closed {
                return Err("the process is about to end".into());
            }
            if w.jobs.len() >= MAX_WAITING {
                return Err(format!("{MAX_WAITING} requests wait for the process already: try again"));
            }
            w.jobs.push_back(job);
            self.0.any.store(true, Ordering::Release);
        }
        self.0.waker.wake();
        Ok(())
    }

    /// Has the loop do something, whenever it comes to it.
    ///
    /// # Errors
    /// There is no room, or no loop any more.
    pub fn request(&self, request: LoopRequest) -> Result<(), String> {
        self.put(QueuedRequest { request, reply: None })
    }

    /// Has the loop do something, and waits until it has.
    pub fn request_and_wait(&self, request: LoopRequest) -> Response {
        let (tx, rx) = sync_channel(1);
        let refused = |text: String| Response::Refused { errors: vec![text] };
        if let Err(text) = self.put(QueuedRequest { request, reply: Some(tx) }) {
            return refused(text);
        }
        rx.recv_timeout(Duration::from_nanos(RESPONSE_TIMEOUT.as_nanos())).unwrap_or_else(|e| {
            refused(match e {
                std::sync::mpsc::RecvTimeoutError::Timeout => {
                    format!(
                        "the process did not answer within {RESPONSE_TIMEOUT}; it may still do what was asked"
                    )
                }
                std::sync::mpsc::RecvTimeoutError::Disconnected => "the process ended meanwhile".into(),
            })
        })
    }

    /// The loop's side: what waits next.
    #[inline]
    pub fn take(&self) -> Option<QueuedRequest> {
        // Looked at with each turn of the loop.
        if self.0.any.load(Ordering::Acquire) { self.take_waiting() } else { None }
    }
    #[cold]
    fn take_waiting(&self) -> Option<QueuedRequest> {
        let mut w = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let job = w.jobs.pop_front();
        self.0.any.store(!w.jobs.is_empty(), Ordering::Release);
        job
    }

    /// The loop has ended: whoever waits is told, and nobody can ask any more.
    pub fn close(&self) {
        let mut w = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        w.closed = true;
        w.jobs.clear();
        self.0.any.store(false, Ordering::Release);
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        self.0.waker.wake();
    }
}

/// The descriptor by which the loop is woken.
impl AsFd for RequestQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.waker.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_answered_and_refused_after_close() {
        let queue = RequestQueue::new(lhio::poll::Poller::new().unwrap().waker());
        assert!(queue.take().is_none());
        let asker = queue.clone();
        let asked = std::thread::spawn(move || asker.request_and_wait(LoopRequest::Flows));
        let job = loop {
            if let Some(job) = queue.take() {
                break job;
            }
            std::thread::yield_now();
        };
        assert!(matches!(job.request, LoopRequest::Flows));
        job.respond(Response::done("so"));
        assert_eq!(asked.join().unwrap(), Response::done("so"));
        for _ in 0..MAX_WAITING {
            queue.request(LoopRequest::Flows).unwrap();
        }
        assert!(queue.request(LoopRequest::Flows).unwrap_err().contains("try again"));
        queue.close();
        assert!(queue.take().is_none());
        assert!(matches!(queue.request_and_wait(LoopRequest::Flows), Response::Refused { .. }));
    }
}
