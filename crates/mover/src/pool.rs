//! Worker threads for disks and hashing, and the reports they send back.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Most worker threads of a process.
const MAX_THREADS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// Wakes the loop that drives the endpoint. Called from any thread, often.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Shared {
    queue: Mutex<(VecDeque<Job>, bool)>,
    ready: Condvar,
}

/// Threads that take jobs in order. The number of jobs is bounded by those who submit: each session limits what it
/// has outstanding.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// As many threads as there are processors, at least 2 and at most 16.
    pub fn new() -> Pool {
        let n = std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(2, MAX_THREADS);
        Pool::with_threads(n)
    }
    /// With `n` threads, 1 to 16.
    pub fn with_threads(n: usize) -> Pool {
        let shared = Arc::new(Shared::default());
        let threads = (0..n.clamp(1, MAX_THREADS))
            .filter_map(|i| {
                let s = shared.clone();
                let b = std::thread::Builder::new().name(format!("mover-{i}"));
                b.spawn(move || work(&s)).ok()
            })
            .collect();
        Pool { shared, threads }
    }
    /// Queues a job.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        if self.threads.is_empty() {
            return job(); // no thread could be started: slow, but it works
        }
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(Box::new(job));
        self.shared.ready.notify_one();
    }
}
impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}
impl Drop for Pool {
    fn drop(&mut self) {
        let mut q = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        q.0.clear();
        q.1 = true;
        drop(q);
        self.shared.ready.notify_all();
        for t in self.threads.drain(..) {
            let _ = t.join(); // jobs do not unwind out of `work`
        }
    }
}

fn work(s: &Shared) {
    loop {
        let mut q = s.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = loop {
            if q.1 {
                return;
            }
            match q.0.pop_front() {
                Some(j) => break j,
                None => q = s.ready.wait(q).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(q);
        // `Desk::submit` turns a panic into a report; here it must only not end the thread.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// Where one session gives out jobs and gets their reports.
pub struct Desk<R> {
    pool: Arc<Pool>,
    wake: Wake,
    send: Sender<R>,
    receive: Receiver<R>,
    outstanding: Arc<AtomicUsize>,
    cancelled: Arc<AtomicBool>,
}

/// Lets a job send reports before it ends.
#[derive(Clone)]
pub struct Reporter<R> {
    send: Sender<R>,
    wake: Wake,
    cancelled: Arc<AtomicBool>,
}
impl<R> Reporter<R> {
    /// Sends one; false when nobody listens any more.
    pub fn report(&self, r: R) -> bool {
        let ok = self.send.send(r).is_ok();
        (self.wake)();
        ok
    }
    /// Whether the session has ended and the job should too.
    pub fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl<R: Send + 'static> Desk<R> {
    /// A desk that uses the threads of `pool`.
    pub fn new(pool: Arc<Pool>, wake: Wake) -> Desk<R> {
        let (send, receive) = channel();
        let (outstanding, cancelled) = (Arc::default(), Arc::default());
        Desk { pool, wake, send, receive, outstanding, cancelled }
    }
    /// For threads of their own.
    pub fn reporter(&self) -> Reporter<R> {
        Reporter { send: self.send.clone(), wake: self.wake.clone(), cancelled: self.cancelled.clone() }
    }
    /// Queues a job; what it returns comes out of [`poll`](Self::poll). `died` is reported instead if it panics.
    pub fn submit(&self, died: R, job: impl FnOnce(&Reporter<R>) -> R + Send + 'static) {
        let (r, n) = (self.reporter(), self.outstanding.clone());
        n.fetch_add(1, Ordering::Relaxed);
        self.pool.submit(move || {
            let out = catch_unwind(AssertUnwindSafe(|| job(&r))).unwrap_or(died);
            n.fetch_sub(1, Ordering::Release);
            r.report(out);
        });
    }
    /// The next report.
    pub fn poll(&self) -> Option<R> {
        self.receive.try_recv().ok()
    }
    /// Jobs that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }
    /// Asks running jobs to end early.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
    /// A flag that jobs which wait can watch.
    pub fn cancelled(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }
}
impl<R> Drop for Desk<R> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_back_and_a_panic_is_one() {
        let woken = Arc::new(AtomicUsize::new(0));
        let w = woken.clone();
        let desk: Desk<i32> = Desk::new(
            Arc::new(Pool::with_threads(2)),
            Arc::new(move || {
                w.fetch_add(1, Ordering::Relaxed);
            }),
        );
        for i in 0..100 {
            desk.submit(-1, move |r| {
                r.report(1000 + i);
                if i == 50 { panic!("on purpose") } else { i }
            });
        }
        let mut got: Vec<i32> = (0..200).map(|_| desk.receive.recv().unwrap()).collect();
        got.sort_unstable();
        let mut want: Vec<i32> = (0..100).chain(1000..1100).map(|i| if i == 50 { -1 } else { i }).collect();
        want.sort_unstable();
        assert_eq!(got, want);
        assert_eq!(desk.outstanding(), 0);
        assert!(desk.poll().is_none() && woken.load(Ordering::Relaxed) >= 199);
    }
}
