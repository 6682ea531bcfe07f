//! The loop's handles of its worker threads.

use super::packet_loss::LossInjector;
use super::worker::{Command, IncomingBatch, OutgoingBatch, Worker, WorkerEvent};
use super::{DriverError, meta_of};
use crate::datapath::{Datapath, DatapathKind};
use crate::poll::{Poller, Waker};
use crate::udp::{SendBatch, SendMeta, UdpError, UdpOptions};
use base::Time;
use endpoint::{Endpoint, MAX_INLINE_SEAL, MAX_TRAIN, OpenerUpdate, TrainSealer, Transmit, TransmitBuffers};
use handover::{Receiver, Sender, ring};
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// Batches that circulate between the loop and one thread: one is filled while another is sealed and a third one
/// sent.
const SEND_BATCHES: usize = 3;
/// Trains in one batch: a quarter of a mebibyte, so that the thread begins before much is built.
const TRAINS_PER_BATCH: usize = 4;
/// Receive batches that circulate: half a mebibyte each.
const RECV_BATCHES: usize = 4;
/// The most opener updates queued for a thread; beyond, they wait.
const MAX_OPENER_UPDATES: usize = 64;
/// Reports taken from one thread in a turn.
const REPORTS_PER_TURN: usize = 8;

/// The loop's handle of one thread and what circulates between them.
#[derive(Debug)]
struct WorkerHandle {
    commands: Sender<Command>,
    reports: Receiver<WorkerEvent>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// The thread as the system numbers it.
    number: u32,
    /// Loads at home.
    loads: Vec<OutgoingBatch>,
    filling: Option<OutgoingBatch>,
    /// Views that wait for room among the orders.
    opener_updates: VecDeque<OpenerUpdate>,
    arrived: Time,
    gone: bool,
}

/// Wakes the loop when a thread ends, also by a panic.
struct ExitNotifier(Waker);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The threads of the sockets from the second on: that of socket `k` is at index `k - 1`.
#[derive(Debug, Default)]
pub(super) struct Workers {
    handles: Vec<WorkerHandle>,
    /// What is to go wrong in whichever thread looks first.
    #[cfg(test)]
    pub fault: std::sync::Arc<std::sync::atomic::AtomicU8>,
}

impl Workers {
    /// Starts the thread of one more socket.
    pub fn add(
        &mut self,
        kind: &DatapathKind,
        options: &UdpOptions,
        cores: Vec<usize>,
        waker: Waker,
    ) -> Result<(), DriverError> {
        let socket = Datapath::open(kind, options)?;
        let poller = Poller::new()?;
        let (mut commands, inbox) = ring(SEND_BATCHES + RECV_BATCHES + MAX_OPENER_UPDATES);
        let (outbox, reports) = ring(SEND_BATCHES + RECV_BATCHES + 2);
        for _ in 0..RECV_BATCHES {
            let room = IncomingBatch { batch: socket.recv_batch(), read: Time::ZERO, opened: Vec::new() };
            let _ = commands.push(Command::Room(room));
        }
        let seat = WorkerHandle {
            commands,
            reports,
            waker: poller.waker(),
            thread: None,
            number: 0,
            loads: (0..SEND_BATCHES).map(|_| OutgoingBatch::default()).collect(),
            filling: None,
            opener_updates: VecDeque::new(),
            arrived: Time::ZERO,
            gone: false,
        };
        let worker = Worker {
            socket,
            poller,
            commands: inbox,
            reports: outbox,
            waker: waker.clone(),
            cores,
            #[cfg(test)]
            fault: self.fault.clone(),
        };
        let name = format!("longhaul-lane-{}", self.handles.len() + 1);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _knell = ExitNotifier(waker);
            worker.run();
        })?;
        self.handles.push(WorkerHandle { thread: Some(thread), ..seat });
        Ok(())
    }

    /// How many threads there are.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether a socket is one of its threads'. What is of any other leaves by the loop's own.
    pub fn has(&self, socket: u16) -> bool {
        (1..=self.handles.len()).contains(&usize::from(socket))
    }

    /// Ends all threads, and closes their sockets.
    pub fn stop_all(&mut self) {
        for mut s in self.handles.drain(..) {
            let (nobody, _) = ring(1);
            drop(core::mem::replace(&mut s.commands, nobody));
            s.waker.wake();
            s.join_thread();
        }
    }

    /// The threads as the system numbers them, in order; 0 while it is not known.
    pub fn threads(&self) -> Vec<u32> {
        self.handles.iter().map(|s| s.number).collect()
    }

    /// Whether everything that was built has left.
    pub fn is_idle(&self) -> bool {
        self.handles.iter().all(|s| s.gone || s.loads.len() == SEND_BATCHES)
    }

    fn handle(&mut self, socket: u16) -> Option<&mut WorkerHandle> {
        self.handles.get_mut(usize::from(socket).checked_sub(1)?).filter(|s| !s.gone)
    }

    /// A train stands in the slot of a further socket.
    pub fn commit(&mut self, t: &Transmit) -> Result<(), UdpError> {
        let Some(seat) = self.handle(t.socket) else { return Ok(()) };
        let Some(load) = &mut seat.filling else { return Ok(()) };
        load.batch.commit(meta(t), t.len)?;
        // A thread with nothing to do begins at once.
        if load.batch.len() == TRAINS_PER_BATCH || seat.loads.len() == SEND_BATCHES - 1 {
            seat.hand_over();
        }
        Ok(())
    }

    /// Nothing more is built for now: what is there leaves.
    pub fn hand_over(&mut self) {
        self.handles.iter_mut().for_each(WorkerHandle::hand_over);
    }

    /// Passes on what threads are to know, takes in what they report. True when there was something.
    pub fn collect(&mut self, now: Time, endpoint: &mut Endpoint, loss: &mut Option<LossInjector>) -> bool {
        while let Some(v) = endpoint.poll_opener_update() {
            if let Some(seat) = self.handle(v.socket) {
                seat.opener_updates.push_back(v);
            }
        }
        let mut any = false;
        for (i, seat) in self.handles.iter_mut().enumerate().filter(|(_, s)| !s.gone) {
            seat.send_opener_updates();
            for _ in 0..REPORTS_PER_TURN {
                let Some(report) = seat.reports.pop() else { break };
                any = true;
                seat.on_event(now, report, endpoint, loss);
            }
            if seat.reports.is_gone() || seat.gone {
                seat.gone = true;
                seat.join_thread();
                endpoint.abandon_socket(now, i as u16 + 1);
            }
        }
        any
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl WorkerHandle {
    /// Joins a thread that has ended or is about to, and logs a panic.
    fn join_thread(&mut self) {
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::error!("the thread of a lane ended by a panic, please report it: its lanes are closed");
        }
    }

    fn command(&mut self, order: Command) {
        // There is room for all buffers that go round.
        let _ = self.commands.push(order);
        self.waker.wake();
    }

    fn hand_over(&mut self) {
        match self.filling.take() {
            // Asked for, and then nothing was written into it.
            Some(load) if load.batch.is_empty() => self.loads.push(load),
            Some(load) => self.command(Command::Send(load)),
            None => {}
        }
    }

    fn send_opener_updates(&mut self) {
        while !self.opener_updates.is_empty() && !self.commands.is_full() {
            if let Some(v) = self.opener_updates.pop_front() {
                self.command(Command::SetOpener(v.cid, v.opener));
            }
        }
    }

    fn on_event(
        &mut self,
        now: Time,
        report: WorkerEvent,
        endpoint: &mut Endpoint,
        loss: &mut Option<LossInjector>,
    ) {
        match report {
            WorkerEvent::Began(number) => self.number = number,
            WorkerEvent::Sent(load, too_big) => {
                if let Some(big) = too_big {
                    endpoint.on_too_large(now, big.dst, big.segment);
                }
                self.loads.push(load);
                endpoint.resume();
            }
            WorkerEvent::Arrived(mut arrival) => {
                let opened = core::mem::take(&mut arrival.opened);
                for ((m, data), opened) in arrival.batch.iter_mut().zip(&opened) {
                    let at = Time::from_nanos(arrival.read.as_nanos().saturating_sub(m.age.as_nanos()));
                    self.arrived = self.arrived.max(at);
                    let (at, meta) = (self.arrived, meta_of(&m, m.age));
                    let hand = |data: &mut [u8], skipped: usize| match opened {
                        Some((cid, o)) => {
                            endpoint.handle_opened(at, meta, (*cid, &o.after(skipped)), (data, m.stride));
                        }
                        None => endpoint.handle_train(at, meta, data, m.stride),
                    };
                    LossInjector::pass(loss, data, m.stride, hand);
                }
                arrival.opened = opened;
                self.command(Command::Room(arrival));
            }
            WorkerEvent::Failed(e) => {
                tracing::error!(error = %e, "the socket of a lane is beyond use: its lanes are closed");
                self.gone = true;
            }
        }
    }
}

/// The send buffers of the loop's own socket and of the threads.
pub(super) struct SendSlots<'a> {
    pub own: &'a mut SendBatch,
    /// Trains that the own batch takes.
    pub most: usize,
    pub workers: &'a mut Workers,
}

impl TransmitBuffers for SendSlots<'_> {
    fn slot(&mut self, socket: u16) -> Option<&mut [u8]> {
        if !self.workers.has(socket) {
            return if self.own.len() < self.most { self.own.slot() } else { None };
        }
        let seat = self.workers.handle(socket)?;
        if seat.filling.is_none() {
            seat.filling = seat.loads.pop();
        }
        let load = seat.filling.as_mut()?;
        if load.batch.len() < TRAINS_PER_BATCH { load.batch.slot() } else { None }
    }

    fn protect(&mut self, socket: u16, sealing: TrainSealer, len: usize, segment: usize) {
        if self.workers.has(socket)
            && len > MAX_INLINE_SEAL
            && let Some(load) = self.workers.handle(socket).and_then(|s| s.filling.as_mut())
        {
            let place = load.batch.len();
            load.sealers[place] = Some(sealing.without_prefetch());
        } else if let Some(slot) = self.slot(socket) {
            sealing.seal(&mut slot[..len], segment);
        }
    }
}

/// Where a train goes, as the socket takes it.
pub(super) fn meta(t: &Transmit) -> SendMeta {
    debug_assert!(t.len <= MAX_TRAIN);
    SendMeta { dst: t.remote, src: t.local, ecn: t.ecn, dscp: t.dscp, segment: t.segment }
}
