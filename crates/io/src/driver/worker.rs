//! A worker thread with a further socket: seals and sends what the loop has built, receives and opens what arrives,
//! and leaves checking and placing to the loop.
//!
//! Buffers belong to one thread at a time and go round: loads from the loop to the thread and back when they have left;
//! arrivals from the thread to the loop and back when they have been read. A thread without loads and without rooms for
//! arrivals sleeps, and what arrives waits in its socket.

use super::DriverError;
use crate::clock::Clock;
use crate::datapath::Datapath;
use crate::poll::{Poller, Source, Waker, sharpen_timers};
use crate::udp::{Blocked, MAX_TRAINS, RecvBatch, SendBatch, TooBig};
use base::Time;
use endpoint::{OpenedTrain, TrainOpener, TrainSealer};
use handover::{Receiver, Sender};
use std::collections::{HashMap, VecDeque};
use wire::{Cid, Clear};

/// Trains to send, each with its sealer.
#[derive(Debug, Default)]
pub(super) struct OutgoingBatch {
    pub batch: Box<SendBatch>,
    pub sealers: Box<[Option<TrainSealer>; MAX_TRAINS]>,
}

/// Trains that were received.
#[derive(Debug)]
pub(super) struct IncomingBatch {
    pub batch: RecvBatch,
    /// When they were read.
    pub read: Time,
    /// For each train, in order: the lane's identifier and what has been opened, if anything has.
    pub opened: Vec<Option<(Cid, OpenedTrain)>>,
}

/// A command of the loop to the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// To be sealed and sent.
    Send(OutgoingBatch),
    /// Room for what arrives.
    Room(IncomingBatch),
    /// What packets with this identifier are opened with from now on.
    SetOpener(Cid, Option<TrainOpener>),
}

/// An event of the thread for the loop.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The thread runs; the number by which the system knows it.
    Began(u32),
    /// It has left, or cannot.
    Sent(OutgoingBatch, Option<TooBig>),
    Arrived(IncomingBatch),
    /// The socket is beyond use; the thread has ended.
    Failed(DriverError),
}

/// Everything that the thread owns.
#[derive(Debug)]
pub(super) struct Worker {
    pub socket: Datapath,
    pub poller: Poller,
    pub commands: Receiver<Command>,
    pub reports: Sender<WorkerEvent>,
    /// Wakes the loop.
    pub waker: Waker,
    /// The processors to stay on; none named: those of the thread that made it.
    pub cores: Vec<usize>,
    /// What is to go wrong: 1, its socket; 2, everything.
    #[cfg(test)]
    pub fault: std::sync::Arc<std::sync::atomic::AtomicU8>,
}

/// The running thread.
struct WorkerLoop {
    w: Worker,
    clock: Clock,
    loads: VecDeque<OutgoingBatch>,
    rooms: Vec<IncomingBatch>,
    /// By identifier: the view, and the packet number after the highest that it has opened.
    openers: HashMap<Cid, (TrainOpener, u64)>,
    /// The socket's buffer is full.
    full: bool,
    paused_until: Time,
}

impl Worker {
    /// Works until the loop is gone.
    pub fn run(self) {
        sharpen_timers();
        set_affinity(&self.cores);
        let clock = Clock::new();
        let (loads, rooms, openers) = (VecDeque::new(), Vec::new(), HashMap::new());
        let mut work =
            WorkerLoop { w: self, clock, loads, rooms, openers, full: false, paused_until: Time::ZERO };
        work.send_event(WorkerEvent::Began(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()));
        while !work.w.commands.is_gone() {
            if let Err(e) = work.turn() {
                work.send_event(WorkerEvent::Failed(e));
                return;
            }
        }
    }
}

/// Binds the calling thread to processors, if any are named.
pub(super) fn set_affinity(cores: &[usize]) {
    if cores.is_empty() {
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().filter(|c| **c < rustix::thread::CpuSet::MAX_CPU).for_each(|c| set.set(*c));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(?cores, %error, "a thread cannot be bound to these processors and goes where the system puts it");
    }
}

impl WorkerLoop {
    fn turn(&mut self) -> Result<(), DriverError> {
        #[cfg(test)]
        if !self.loads.is_empty() {
            match self.w.fault.swap(0, std::sync::atomic::Ordering::Relaxed) {
                0 => {}
                1 => return Err(DriverError::Wait(std::io::Error::other("made to fail by a test"))),
                _ => panic!("made to panic by a test"),
            }
        }
        let mut busy = self.take_commands();
        busy |= self.send()?;
        busy |= self.receive()?;
        if busy {
            return Ok(());
        }
        let now = self.clock.now();
        let pause = (now < self.paused_until).then(|| self.paused_until.since(now));
        let mut sources = [Source::choose(&self.w.socket, !self.rooms.is_empty(), self.full)];
        self.w.poller.wait(&mut sources, pause)?;
        Ok(())
    }

    fn send_event(&mut self, report: WorkerEvent) {
        // There is room for all buffers that go round, a first word and a last one.
        let _ = self.w.reports.push(report);
        self.w.waker.wake();
    }

    fn take_commands(&mut self) -> bool {
        let mut any = false;
        while let Some(order) = self.w.commands.pop() {
            any = true;
            match order {
                Command::Send(load) => self.loads.push_back(load),
                Command::Room(arrival) => self.rooms.push(arrival),
                Command::SetOpener(cid, None) => drop(self.openers.remove(&cid)),
                Command::SetOpener(cid, Some(view)) => {
                    let expected = self.openers.get(&cid).map_or(0, |(_, expected)| *expected);
                    self.openers.insert(cid, (view, expected));
                }
            }
        }
        any
    }

    /// Sends the oldest load; true when it went.
    fn send(&mut self) -> Result<bool, DriverError> {
        if self.clock.now() < self.paused_until {
            return Ok(false);
        }
        let Some(load) = self.loads.front_mut() else { return Ok(false) };
        for (i, sealing) in load.sealers.iter_mut().enumerate() {
            if let (Some(sealing), Some((train, segment))) = (sealing.take(), load.batch.train_mut(i)) {
                sealing.seal(train, segment);
            }
        }
        let report = self.w.socket.send(&mut load.batch)?;
        self.full = report.blocked == Blocked::Buffer;
        if report.blocked == Blocked::Device {
            self.paused_until = self.clock.now() + super::DEVICE_PAUSE;
        }
        if !load.batch.is_empty() {
            return Ok(false);
        }
        if let Some(load) = self.loads.pop_front() {
            self.send_event(WorkerEvent::Sent(load, report.too_big));
        }
        Ok(true)
    }

    fn receive(&mut self) -> Result<bool, DriverError> {
        let Some(arrival) = self.rooms.last_mut() else { return Ok(false) };
        if self.w.socket.recv(&mut arrival.batch)? == 0 {
            return Ok(false);
        }
        arrival.read = self.clock.now();
        arrival.opened.clear();
        for (meta, train) in arrival.batch.iter_mut() {
            arrival.opened.push(open(&mut self.openers, train, meta.stride));
        }
        if let Some(arrival) = self.rooms.pop() {
            self.send_event(WorkerEvent::Arrived(arrival));
        }
        Ok(true)
    }
}

/// Opens a train if all of it belongs to one lane that there is a view of.
fn open(
    openers: &mut HashMap<Cid, (TrainOpener, u64)>,
    train: &mut [u8],
    stride: usize,
) -> Option<(Cid, OpenedTrain)> {
    let Ok(Clear::Short(cid)) = Clear::parse(train) else { return None };
    let (view, expected) = openers.get_mut(&cid)?;
    let same = |p: &[u8]| matches!(Clear::parse(p), Ok(Clear::Short(c)) if c == cid);
    if !train.chunks(stride.max(1)).all(same) {
        return None;
    }
    Some((cid, view.open_train(expected, train, stride)?))
}
