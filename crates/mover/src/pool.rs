//! Worker threads for disks and hashing, and the reports they send back.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
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
        // The threads end when the queue is empty; jobs of sessions that are gone end at once.
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
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
            match q.0.pop_front() {
                Some(j) => break j,
                None if q.1 => return,
                None => q = s.ready.wait(q).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(q);
        // `JobQueue::submit` turns a panic into a report; here it must only not end the thread.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// The jobs of one session: submits them to the pool and receives their reports.
pub struct JobQueue<R> {
    pool: Arc<Pool>,
    wake: Wake,
    send: Sender<R>,
    receive: Receiver<R>,
    outstanding: usize,
    cancelled: Arc<AtomicBool>,
}

impl<R: Send + 'static> JobQueue<R> {
    /// A queue that uses the threads of `pool`.
    pub fn new(pool: Arc<Pool>, wake: Wake) -> JobQueue<R> {
        let (send, receive) = channel();
        JobQueue { pool, wake, send, receive, outstanding: 0, cancelled: Arc::default() }
    }
    /// Queues a job; what it returns comes out of [`poll`](Self::poll). `died` comes out instead if it panics, or
    /// if the session was cancelled before it began.
    pub fn submit(&mut self, died: R, job: impl FnOnce() -> R + Send + 'static) {
        self.queue(died, self.cancelled.clone(), job);
    }
    /// As [`submit`](Self::submit), but the job is done even if the session is cancelled before it began: what has
    /// arrived is worth keeping.
    pub fn submit_to_last(&mut self, died: R, job: impl FnOnce() -> R + Send + 'static) {
        self.queue(died, Arc::default(), job);
    }
    fn queue(&mut self, died: R, cancelled: Arc<AtomicBool>, job: impl FnOnce() -> R + Send + 'static) {
        let (send, wake) = (self.send.clone(), self.wake.clone());
        self.outstanding += 1;
        self.pool.submit(move || {
            // What the job holds (locked files) must be gone before its report is seen.
            let out = if cancelled.load(Ordering::Relaxed) {
                drop(job);
                died
            } else {
                catch_unwind(AssertUnwindSafe(job)).unwrap_or(died)
            };
            let _ = send.send(out); // the session is gone
            wake();
        });
    }
    /// The next report.
    pub fn poll(&mut self) -> Option<R> {
        let r = self.receive.try_recv().ok()?;
        self.outstanding -= 1;
        Some(r)
    }
    /// Jobs whose report was not taken.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
    /// Jobs that have not begun end at once.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
impl<R> Drop for JobQueue<R> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn reports_come_back_and_a_panic_is_one() {
        let woken = Arc::new(AtomicUsize::new(0));
        let w = woken.clone();
        let wake: Wake = Arc::new(move || {
            w.fetch_add(1, Ordering::Relaxed);
        });
        let pool = Arc::new(Pool::with_threads(2));
        let mut jobs: JobQueue<i32> = JobQueue::new(pool.clone(), wake);
        for i in 0..100 {
            jobs.submit(-1, move || if i == 50 { panic!("on purpose") } else { i });
        }
        let mut got = Vec::new();
        while jobs.outstanding() > 0 {
            got.extend(jobs.poll());
        }
        got.sort_unstable();
        let mut want: Vec<i32> = (0..100).map(|i| if i == 50 { -1 } else { i }).collect();
        want.sort_unstable();
        assert_eq!(got, want);
        jobs.cancel();
        jobs.submit(-1, || 7);
        while jobs.outstanding() > 0 {
            got = jobs.poll().into_iter().collect();
        }
        assert_eq!(got, [-1]);
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let d = done.clone();
            jobs.submit_to_last(-1, move || d.fetch_add(1, Ordering::Relaxed) as i32);
        }
        drop((jobs, pool));
        assert_eq!(done.load(Ordering::Relaxed), 10, "what is to be kept is done before the threads end");
        assert_eq!(woken.load(Ordering::Relaxed), 111);
    }
}
