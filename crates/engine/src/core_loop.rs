//! The loop, and who runs it: a thread of the program that polls, else a thread of the engine's own.

use crate::fabric::Fabric;
use base::{Span, Time};
use crossbeam_queue::SegQueue;
use endpoint::{App, Endpoint};
use lhio::clock::Clock;
use lhio::driver::{Descriptors, Driver, Step, Wait};
use lhio::poll::{Poller, Source, Waker};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Turns that the engine's thread runs before it lets others have the loop.
const TURNS: usize = 64;
/// A thread that polls does so again within this time: it has the loop, and the engine's thread stays away.
const POLLING: Span = Span::from_micros(100);
/// How long the engine's thread then stays away: twice as long each time, since on a host without a free core each look takes the
/// core from a thread that polls, but no longer than a peer waits for a report before it probes (a millisecond).
const STAYS_AWAY: core::ops::RangeInclusive<Span> = Span::from_micros(50)..=Span::from_micros(500);
/// While a thread of the program has polled this lately, the engine's thread looks after deadlines each millisecond: those that
/// arise in the program's turns are not told to it.
const POLLED_LATELY: Span = Span::from_millis(10);
const LOOKS_EVERY: Span = Span::from_millis(1);

/// A program that polls answers a message within this time, mostly; a report on the message then travels with the answer.
const ANSWERS_WITHIN: Span = Span::from_micros(10);

/// Sees each turn of the loop, and what goes through its endpoint: policies and those who administer the process.
pub trait Governor: Send {
    /// Drives `app`, which does the engine's work.
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint, app: &mut dyn App);
    /// When it wants a turn although nothing happens.
    fn next_timeout(&self) -> Option<Time>;
}

/// What the driver drives.
struct Governed<'a> {
    fabric: &'a mut Fabric,
    governor: Option<&'a mut (dyn Governor + 'static)>,
}

impl App for Governed<'_> {
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint) {
        match &mut self.governor {
            Some(governor) => governor.drive(now, endpoint, self.fabric),
            None => self.fabric.drive(now, endpoint),
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        let governor = self.governor.as_ref().and_then(|g| g.next_timeout());
        self.fabric.next_timeout().into_iter().chain(governor).min()
    }
}

/// What the loop works on.
pub(crate) struct Core {
    driver: Driver,
    pub(crate) endpoint: Endpoint,
    pub(crate) fabric: Fabric,
    pub(crate) governor: Option<Box<dyn Governor>>,
    clock: Clock,
    /// The driver has failed for good.
    pub(crate) is_dead: bool,
}

impl Core {
    fn step(&mut self) -> Step {
        if !self.is_dead {
            let mut app = Governed { fabric: &mut self.fabric, governor: self.governor.as_deref_mut() };
            match self.driver.step(&mut self.endpoint, &mut app) {
                Ok(step) => return step,
                Err(error) => {
                    self.is_dead = true;
                    let why = base::text::line(&error.to_string()).into_owned();
                    self.fabric.fail_all(self.clock.now(), &mut self.endpoint, why);
                }
            }
        }
        // What is posted has to end all the same.
        self.fabric.drive(self.clock.now(), &mut self.endpoint);
        Step::Idle
    }
}

/// What threads share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    waker: Waker,
    clock: Clock,
    /// When a thread of the program last ran the loop, or tried to (nanoseconds of the clock).
    polled: AtomicU64,
    /// The engine's thread may sleep for longer than [`LOOKS_EVERY`]: what is posted has to wake it, also shortly after a poll.
    sleeps_long: AtomicBool,
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
        let fabric = fabric(announced.clone());
        let core = Mutex::new(Core {
            driver,
            endpoint,
            fabric,
            governor: None,
            clock: Clock::new(),
            is_dead: false,
        });
        let (polled, ends, sleeps_long) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let clock = Clock::new();
        let shared = Arc::new(Shared { core, waker, clock, polled, sleeps_long, announced, ends });
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

    /// Wakes the thread that runs the loop while nobody polls.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
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
        // The poll before this, if any, is seen by the thread before it sleeps, or the thread's flag is seen here.
        fence(Ordering::SeqCst);
        if self.sleeps_long.load(Ordering::Relaxed) || !self.is_polled_within(LOOKS_EVERY) {
            self.waker.wake();
        }
    }

    /// Whether a thread of the program has run the loop, or tried to, in so short a time.
    fn is_polled_within(&self, span: Span) -> bool {
        let now = self.clock.now().as_nanos();
        now.saturating_sub(self.polled.load(Ordering::Acquire)) < span.as_nanos()
    }

    /// Runs a turn of the loop unless somebody else does. What it brings may be answered before the next one.
    pub(crate) fn turn(&self) {
        self.polled.store(self.clock.now().as_nanos(), Ordering::Release);
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(core)) => core.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        core.endpoint.set_answer_wait(ANSWERS_WITHIN);
        core.step();
    }

    /// Runs turns until there is nothing to do, or for long enough. Gives what to wait for: no time when there is more to do.
    fn work(&self, waited: Wait, woken: bool, watches_streams: &mut bool) -> Wait {
        let mut core = self.lock();
        core.endpoint.set_answer_wait(Span::ZERO);
        let _ = core.driver.after_wait(waited, woken);
        if (0..TURNS).all(|_| core.step() == Step::Busy) {
            return Wait { timeout: Some(Span::ZERO), watches_socket: true };
        }
        let Core { driver, endpoint, fabric, governor, is_dead, .. } = &mut *core;
        let mut wait = driver.plan_wait(endpoint, &Governed { fabric, governor: governor.as_deref_mut() });
        // A socket that fails is readable for ever.
        if *is_dead {
            wait = Wait { timeout: Some(POLLED_LATELY), watches_socket: false };
            *watches_streams = false;
        }
        drop(core);
        self.sleeps_long.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_polled_within(POLLED_LATELY) {
            self.sleeps_long.store(false, Ordering::Relaxed);
            wait.timeout = Some(wait.timeout.map_or(LOOKS_EVERY, |t| t.min(LOOKS_EVERY)));
        }
        wait
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
    let mut away = *STAYS_AWAY.start();
    // Of an engine without streams, a descriptor that is not looked at.
    let streams = descriptors.streams.as_ref().unwrap_or(&descriptors.socket);
    let mut watches_streams = descriptors.streams.is_some();
    let mut wait = Wait { timeout: Some(Span::ZERO), watches_socket: true };
    loop {
        let Some(s) = shared.upgrade().filter(|s| !s.ends.load(Ordering::Acquire)) else { return };
        s.sleeps_long.store(false, Ordering::Relaxed);
        let is_polled = s.is_polled_within(POLLING);
        if is_polled {
            // Packets are for the program to take: they do not wake this thread, which would take the core from it.
            wait = Wait { timeout: Some(away), watches_socket: false };
            away = (away * 2).min(*STAYS_AWAY.end());
        } else {
            wait = s.work(wait, core::mem::take(&mut woken), &mut watches_streams);
            away = *STAYS_AWAY.start();
        }
        // The engine is not held while its thread sleeps, so that the last one who has it ends it.
        drop(s);
        let mut sources = [
            // Once it has rung it does so until the driver has heard it.
            Source::choose(&descriptors.waker, !woken, false),
            Source::choose(&descriptors.socket, wait.watches_socket, false),
            Source::choose(streams, watches_streams && !is_polled, false),
        ];
        if wait.timeout == Some(Span::ZERO) {
            std::thread::yield_now();
        } else if poller.wait(&mut sources, wait.timeout).is_err() {
            return;
        }
        woken |= sources[0].readable;
        // The driver expects many packets after a wait of its own without the socket; this was none.
        wait.watches_socket |= is_polled;
    }
}
