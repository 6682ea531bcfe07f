//! The threads of further sockets, seen from the loop.

use super::loser::Loser;
use super::worker::{Arrival, Load, Order, Report, Worker};
use super::{DriverError, meta_of};
use crate::datapath::{Datapath, DatapathKind};
use crate::poll::{Poller, Waker};
use crate::udp::{SendBatch, SendMeta, UdpError, UdpOptions};
use base::Time;
use endpoint::{Endpoint, MAX_INLINE_SEAL, MAX_TRAIN, OpenerUpdate, TrainSealer, Transmit, TransmitBuffers};
use handover::{Receiver, Sender, ring};
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// Loads that go round between the loop and one thread: one is filled while another is sealed and a third one sent.
const LOADS: usize = 3;
/// Trains in one load: a quarter of a mebibyte, so that the thread begins before much is built.
const TRAINS_PER_LOAD: usize = 4;
/// Batches of arrivals that go round: half a mebibyte each.
const ROOMS: usize = 4;
/// Views on their way to a thread at most; beyond, they wait.
const VIEWS: usize = 64;
/// Reports taken from one thread in a turn.
const REPORTS_PER_TURN: usize = 8;

/// One thread and what goes round between it and the loop.
#[derive(Debug)]
struct Seat {
    orders: Sender<Order>,
    reports: Receiver<Report>,
    bell: Waker,
    thread: Option<JoinHandle<()>>,
    /// The thread as the system numbers it.
    number: u32,
    /// Loads at home.
    loads: Vec<Load>,
    filling: Option<Load>,
    /// Views that wait for room among the orders.
    views: VecDeque<OpenerUpdate>,
    arrived: Time,
    gone: bool,
}

/// Wakes the loop when a thread has ended, however it did.
struct Knell(Waker);

impl Drop for Knell {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The threads of the sockets from the second on: that of socket `k` is at place `k - 1`.
#[derive(Debug, Default)]
pub(super) struct Team {
    seats: Vec<Seat>,
    /// What is to go wrong in whichever thread looks first.
    #[cfg(test)]
    pub fault: std::sync::Arc<std::sync::atomic::AtomicU8>,
}

impl Team {
    /// Starts the thread of one more socket.
    pub fn add(
        &mut self,
        kind: &DatapathKind,
        options: &UdpOptions,
        cores: Vec<usize>,
        bell: Waker,
    ) -> Result<(), DriverError> {
        let socket = Datapath::open(kind, options)?;
        let poller = Poller::new()?;
        let (mut orders, inbox) = ring(LOADS + ROOMS + VIEWS);
        let (outbox, reports) = ring(LOADS + ROOMS + 2);
        for _ in 0..ROOMS {
            let room = Arrival { batch: socket.recv_batch(), read: Time::ZERO, opened: Vec::new() };
            let _ = orders.push(Order::Room(room));
        }
        let seat = Seat {
            orders,
            reports,
            bell: poller.waker(),
            thread: None,
            number: 0,
            loads: (0..LOADS).map(|_| Load::default()).collect(),
            filling: None,
            views: VecDeque::new(),
            arrived: Time::ZERO,
            gone: false,
        };
        let worker = Worker {
            socket,
            poller,
            orders: inbox,
            reports: outbox,
            bell: bell.clone(),
            cores,
            #[cfg(test)]
            fault: self.fault.clone(),
        };
        let name = format!("longhaul-lane-{}", self.seats.len() + 1);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _knell = Knell(bell);
            worker.run();
        })?;
        self.seats.push(Seat { thread: Some(thread), ..seat });
        Ok(())
    }

    /// How many threads there are.
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether a socket is one of its threads'. What is of any other leaves by the loop's own.
    pub fn has(&self, socket: u16) -> bool {
        (1..=self.seats.len()).contains(&usize::from(socket))
    }

    /// Ends all threads, and closes their sockets.
    pub fn dismiss(&mut self) {
        for mut s in self.seats.drain(..) {
            let (nobody, _) = ring(1);
            drop(core::mem::replace(&mut s.orders, nobody));
            s.bell.wake();
            s.mourn();
        }
    }

    /// The threads as the system numbers them, in order; 0 while it is not known.
    pub fn threads(&self) -> Vec<u32> {
        self.seats.iter().map(|s| s.number).collect()
    }

    /// Whether everything that was built has left.
    pub fn is_idle(&self) -> bool {
        self.seats.iter().all(|s| s.gone || s.loads.len() == LOADS)
    }

    fn seat(&mut self, socket: u16) -> Option<&mut Seat> {
        self.seats.get_mut(usize::from(socket).checked_sub(1)?).filter(|s| !s.gone)
    }

    /// A train stands in the slot of a further socket.
    pub fn commit(&mut self, t: &Transmit) -> Result<(), UdpError> {
        let Some(seat) = self.seat(t.socket) else { return Ok(()) };
        let Some(load) = &mut seat.filling else { return Ok(()) };
        load.batch.commit(meta(t), t.len)?;
        // A thread with nothing to do begins at once.
        if load.batch.len() == TRAINS_PER_LOAD || seat.loads.len() == LOADS - 1 {
            seat.hand_over();
        }
        Ok(())
    }

    /// Nothing more is built for now: what is there leaves.
    pub fn hand_over(&mut self) {
        self.seats.iter_mut().for_each(Seat::hand_over);
    }

    /// Passes on what threads are to know, takes in what they report. True when there was something.
    pub fn collect(&mut self, now: Time, endpoint: &mut Endpoint, loser: &mut Option<Loser>) -> bool {
        while let Some(v) = endpoint.poll_opener_update() {
            if let Some(seat) = self.seat(v.socket) {
                seat.views.push_back(v);
            }
        }
        let mut any = false;
        for (i, seat) in self.seats.iter_mut().enumerate().filter(|(_, s)| !s.gone) {
            seat.pass_on_views();
            for _ in 0..REPORTS_PER_TURN {
                let Some(report) = seat.reports.pop() else { break };
                any = true;
                seat.take_in(now, report, endpoint, loser);
            }
            if seat.reports.is_gone() || seat.gone {
                seat.gone = true;
                seat.mourn();
                endpoint.abandon_socket(now, i as u16 + 1);
            }
        }
        any
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.dismiss();
    }
}

impl Seat {
    /// Waits for a thread that has ended or is about to, and says so if it ended by a panic.
    fn mourn(&mut self) {
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            tracing::error!("the thread of a lane ended by a panic, please report it: its lanes are closed");
        }
    }

    fn order(&mut self, order: Order) {
        // There is room for all buffers that go round.
        let _ = self.orders.push(order);
        self.bell.wake();
    }

    fn hand_over(&mut self) {
        match self.filling.take() {
            // Asked for, and then nothing was written into it.
            Some(load) if load.batch.is_empty() => self.loads.push(load),
            Some(load) => self.order(Order::Send(load)),
            None => {}
        }
    }

    fn pass_on_views(&mut self) {
        while !self.views.is_empty() && !self.orders.is_full() {
            if let Some(v) = self.views.pop_front() {
                self.order(Order::View(v.cid, v.opener));
            }
        }
    }

    fn take_in(&mut self, now: Time, report: Report, endpoint: &mut Endpoint, loser: &mut Option<Loser>) {
        match report {
            Report::Began(number) => self.number = number,
            Report::Sent(load, too_big) => {
                if let Some(big) = too_big {
                    endpoint.on_too_large(now, big.dst, big.segment);
                }
                self.loads.push(load);
                endpoint.resume();
            }
            Report::Arrived(mut arrival) => {
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
                    Loser::pass(loser, data, m.stride, hand);
                }
                arrival.opened = opened;
                self.order(Order::Room(arrival));
            }
            Report::Failed(e) => {
                tracing::error!(error = %e, "the socket of a lane is beyond use: its lanes are closed");
                self.gone = true;
            }
        }
    }
}

/// The loop's own batch, and those of the threads.
pub(super) struct Slots<'a> {
    pub own: &'a mut SendBatch,
    /// Trains that the own batch takes.
    pub most: usize,
    pub team: &'a mut Team,
}

impl TransmitBuffers for Slots<'_> {
    fn slot(&mut self, socket: u16) -> Option<&mut [u8]> {
        if !self.team.has(socket) {
            return if self.own.len() < self.most { self.own.slot() } else { None };
        }
        let seat = self.team.seat(socket)?;
        if seat.filling.is_none() {
            seat.filling = seat.loads.pop();
        }
        let load = seat.filling.as_mut()?;
        if load.batch.len() < TRAINS_PER_LOAD { load.batch.slot() } else { None }
    }

    fn protect(&mut self, socket: u16, sealing: TrainSealer, len: usize, segment: usize) {
        if self.team.has(socket)
            && len > MAX_INLINE_SEAL
            && let Some(load) = self.team.seat(socket).and_then(|s| s.filling.as_mut())
        {
            let place = load.batch.len();
            load.sealings[place] = Some(sealing.without_prefetch());
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
