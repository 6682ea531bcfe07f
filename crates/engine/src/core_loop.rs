//! The loop, and who runs it: a thread of the program that polls, else a thread of the engine's own.

use crate::fabric::Fabric;
use base::{Span, Time};
use crossbeam_queue::SegQueue;
use endpoint::Endpoint;
use lhio::clock::Clock;
use lhio::driver::{Descriptors, Driver, Step, Wait};
use lhio::poll::{Poller, Source, Waker};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Turns that the engine's thread runs before it lets others have the loop.
const TURNS: usize = 64;
/// A thread that polls does so again within this time: it has the loop, and the engine's thread stays away.
const POLLING: Span = Span::from_micros(5);
/// How long the engine's thread then stays away.
const STAYS_AWAY: Span = Span::from_micros(50);
/// While a thread of the program has polled this lately, the engine's thread looks after deadlines each millisecond: those that
/// arise in the program's turns are not told to it.
const POLLED_LATELY: Span = Span::from_millis(10);
const LOOKS_EVERY: Span = Span::from_millis(1);

/// What the loop works on.
pub(crate) struct Core {
    driver: Driver,
    pub(crate) endpoint: Endpoint,
    pub(crate) fabric: Fabric,
}

impl Core {
    fn step(&mut self) -> Step {
        match self.driver.step(&mut self.endpoint, &mut self.fabric) {
            Ok(step) => step,
            Err(error) => {
                tracing::error!(%error, "the network cannot be used any more");
                Step::Idle
            }
        }
    }
}

/// What threads share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    waker: Waker,
    clock: Clock,
    /// When a thread of the program last ran the loop, or tried to (nanoseconds of the clock).
    polled: AtomicU64,
    /// Numbers of queue pairs to which something was posted.
    announced: Arc<SegQueue<u32>>,
    ends: AtomicBool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Shared {
    pub(crate) fn start(
        mut driver: Driver,
        mut endpoint: Endpoint,
        fabric: impl FnOnce(Arc<SegQueue<u32>>) -> Fabric,
    ) -> io::Result<Arc<Shared>> {
        driver.begin_steps(&mut endpoint);
        let announced = Arc::new(SegQueue::new());
        let (waker, descriptors) = (driver.waker(), driver.descriptors()?);
        let core = Mutex::new(Core { driver, endpoint, fabric: fabric(announced.clone()) });
        let (polled, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { core, waker, clock: Clock::new(), polled, announced, ends });
        let weak = Arc::downgrade(&shared);
        let poller = Poller::new()?;
        std::thread::Builder::new()
            .name("longhaul".into())
            .spawn(move || run(&weak, &descriptors, poller))
            .map(drop)?;
        Ok(shared)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the loop's state, then a turn, so that what follows from it leaves at once.
    pub(crate) fn control<R>(&self, f: impl FnOnce(&mut Core, Time) -> R) -> R {
        let mut core = self.lock();
        let result = f(&mut core, self.clock.now());
        core.step();
        drop(core);
        // Deadlines may be others than those that it sleeps by.
        self.waker.wake();
        result
    }

    /// Says that something was posted to a queue pair.
    pub(crate) fn announce(&self, number: u32) {
        self.announced.push(number);
        if !self.is_polled_within(LOOKS_EVERY) {
            self.waker.wake();
        }
    }

    /// Whether a thread of the program has run the loop, or tried to, in so short a time.
    fn is_polled_within(&self, span: Span) -> bool {
        let now = self.clock.now().as_nanos();
        now.saturating_sub(self.polled.load(Ordering::Acquire)) < span.as_nanos()
    }

    /// Runs a turn of the loop unless somebody else does.
    pub(crate) fn turn(&self) {
        self.polled.store(self.clock.now().as_nanos(), Ordering::Release);
        match self.core.try_lock() {
            Ok(mut core) => drop(core.step()),
            Err(TryLockError::Poisoned(core)) => drop(core.into_inner().step()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Leaves the loop to the engine's thread: the program is about to wait.
    pub(crate) fn leave(&self) {
        self.polled.store(0, Ordering::Release);
        self.waker.wake();
    }
}

/// The engine's thread.
fn run(shared: &Weak<Shared>, descriptors: &Descriptors, mut poller: Poller) {
    lhio::poll::sharpen_timers();
    let mut woken = false;
    let mut wait = Wait { timeout: Some(Span::ZERO), watches_socket: true };
    loop {
        let Some(s) = shared.upgrade().filter(|s| !s.ends.load(Ordering::Acquire)) else { return };
        if s.is_polled_within(POLLING) {
            drop(s);
            wait = Wait { timeout: Some(LOOKS_EVERY), watches_socket: true };
            let _ = poller.wait(&mut [], Some(STAYS_AWAY));
        } else {
            let mut core = s.lock();
            let _ = core.driver.after_wait(wait, core::mem::take(&mut woken));
            if (0..TURNS).all(|_| core.step() == Step::Busy) {
                wait = Wait { timeout: Some(Span::ZERO), watches_socket: true };
                drop(core);
                std::thread::yield_now();
                continue;
            }
            let Core { driver, endpoint, fabric } = &mut *core;
            wait = driver.plan_wait(endpoint, fabric);
            drop(core);
            if s.is_polled_within(POLLED_LATELY) {
                wait.timeout = Some(wait.timeout.map_or(LOOKS_EVERY, |t| t.min(LOOKS_EVERY)));
            }
        }
        // The engine is not held while its thread sleeps, so that the last one who has it ends it.
        let mut sources = [
            // Once it has rung it does so until the driver has heard it.
            Source::choose(&descriptors.waker, !woken, false),
            Source::choose(&descriptors.socket, wait.watches_socket, false),
        ];
        if poller.wait(&mut sources, wait.timeout).is_err() {
            return;
        }
        woken |= sources[0].readable;
    }
}
