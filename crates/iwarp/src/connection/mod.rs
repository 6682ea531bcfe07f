//! One iWARP connection without I/O: start-up, tear-down and timers.

mod batch;
mod deliver;
mod direct_placement;
mod read_ahead;
mod receive;
mod transmit;
mod write_batch;

#[cfg(test)]
mod tests;

pub use batch::{Piece, Transmit};
pub use receive::{ReadTarget, ReadTargets, Scratch};

use crate::config::Config;
use crate::mpa::frames::{ENHANCED, Enhanced, Frame, FrameError, Kind, MAX_PRIVATE};
use crate::mpa::startup::{self, First, Terms, Unacceptable};
use crate::rdmap::terminate::{self, Cause, Quote};
use base::Time;
use receive::Receiver;
use std::collections::VecDeque;
use transmit::Transmitter;
use verbs::{Adapter, Error, QpId, QpState, Status};

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Both ends closed it.
    Closed,
    /// The start-up frames were wrong.
    Frame(FrameError),
    /// The reply does not fit the request.
    Mismatch,
    /// One end refused it.
    Rejected,
    /// The peer, or the application that was asked, took too long to start, to finish a record, or to close.
    TimedOut,
    /// The stream ended or failed while it was in use (RFC 5044, section 8, code 1).
    Lost,
    /// A Terminate message was sent or received, or there was cause for one.
    Terminated(Cause),
    /// The application ended it before it was established.
    Aborted,
}

/// Events for the application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Responder: a peer asks. Answer by [`Connection::accept`] or [`Connection::reject`].
    Requested {
        /// What the peer's application says.
        private: Vec<u8>,
        /// The peer's wishes, in revision 2.
        peer: Option<Enhanced>,
    },
    /// Both ends agreed; the queue pair is ready to send.
    Established {
        /// Initiator: what the peer's application says.
        private: Vec<u8>,
        /// The peer's figures, in revision 2.
        peer: Option<Enhanced>,
    },
    /// Initiator: the peer refused.
    Rejected {
        /// What the peer's application says.
        private: Vec<u8>,
        /// The peer's figures, in revision 2.
        peer: Option<Enhanced>,
    },
    /// The peer sends nothing any more. What was posted is sent, then the connection closes.
    PeerClosed,
    /// The connection is over; everything posted is completed. The last event.
    Closed {
        /// How.
        end: End,
        /// Whether the peer ended it.
        by_peer: bool,
    },
}

/// An action on the stream, for its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamAction {
    /// Shut down its sending side, behind all that was sent.
    Shutdown,
    /// Close it: both sides are done. (After a rejection it may be used for something else instead.)
    Close,
    /// Reset it.
    Abort,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Initiator: the request was queued.
    AwaitReply,
    /// Responder: nothing came yet.
    AwaitRequest,
    /// Responder: the application was asked.
    Asked(Frame),
    /// Records go both ways.
    Running,
    /// What is posted is sent, then our side is shut down.
    Closing,
    /// Nothing is taken in any more; what is queued is sent, then our side is shut down.
    Ending(End, bool),
    /// Over.
    Closed,
}

impl State {
    /// Whether records are taken in and sent.
    const fn runs(&self) -> bool {
        matches!(self, State::Running | State::Closing)
    }
}

/// One end of an iWARP connection.
pub struct Connection {
    config: Config,
    initiator: bool,
    state: State,
    qp: Option<QpId>,
    terms: Terms,
    rx: Receiver,
    tx: Transmitter,
    /// At most one of each kind.
    events: VecDeque<Event>,
    actions: VecDeque<StreamAction>,
    /// When the start-up or closing has taken too long.
    deadline: Option<Time>,
    shut: bool,
    peer_shut: bool,
    /// Both ends say how far long writes reach.
    announces: bool,
    /// Bytes of a write that a record holds at most where CRCs are in use.
    short_writes: Option<u32>,
}

impl Connection {
    /// The end that asks, over a stream that is connected. Its queue pair may have work posted once it is established.
    ///
    /// # Errors
    /// [`Error::Invalid`]: more private data than a frame holds (512 bytes, 508 in revision 2).
    pub fn initiator(config: Config, qp: QpId, private: &[u8], now: Time) -> Result<Connection, Error> {
        check_private(private, config.enhanced)?;
        let mut c = Connection::new(config, Some(qp), State::AwaitReply, now);
        // RFC 5044, section 7.1.2, rule 1.
        startup::request(&config).put(private, c.tx.batch.raw());
        c.tx.batch.seal();
        Ok(c)
    }

    /// The end that is asked.
    pub fn responder(config: Config, now: Time) -> Connection {
        Connection::new(config, None, State::AwaitRequest, now)
    }

    fn new(config: Config, qp: Option<QpId>, state: State, now: Time) -> Connection {
        Connection {
            config,
            initiator: qp.is_some(),
            state,
            qp,
            terms: Terms {
                markers_out: false,
                markers_in: false,
                crc: false,
                ird: 0,
                ord: 0,
                peer: None,
                first: None,
                expected: None,
            },
            rx: Receiver::new(),
            tx: Transmitter::new(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            deadline: Some(now + config.startup_timeout),
            shut: false,
            peer_shut: false,
            announces: false,
            short_writes: None,
        }
    }

    /// Accepts the peer that asked, for this queue pair.
    ///
    /// # Errors
    /// [`Error::State`] unless one asked, [`Error::Invalid`] (too much private data; depths beyond those of the queue
    /// pair), [`Error::NotFound`].
    pub fn accept(&mut self, a: &mut Adapter, qp: QpId, private: &[u8], now: Time) -> Result<(), Error> {
        let State::Asked(request) = self.state else { return Err(Error::State) };
        check_private(private, request.enhanced.is_some())?;
        let (reply, terms) = startup::accept(&self.config, &request);
        a.set_read_depths(qp, terms.ord.into(), terms.ird.into())?;
        reply.put(private, self.tx.batch.raw());
        self.tx.batch.seal();
        self.qp = Some(qp);
        self.establish(a, terms, Vec::new(), now);
        self.process_between(a, now);
        Ok(())
    }

    /// Refuses the peer that asked. The stream is closed once the reply is sent.
    ///
    /// # Errors
    /// [`Error::State`] unless one asked, [`Error::Invalid`] (too much private data).
    pub fn reject(&mut self, private: &[u8], now: Time) -> Result<(), Error> {
        let State::Asked(request) = self.state else { return Err(Error::State) };
        check_private(private, request.enhanced.is_some())?;
        startup::reject(&self.config, &request).put(private, self.tx.batch.raw());
        self.tx.batch.seal();
        self.drain_and_end(End::Rejected, false, now);
        Ok(())
    }

    /// Sends what was posted, then closes. Before the connection is established it is given up.
    pub fn close(&mut self, a: &mut Adapter, now: Time) {
        match self.state {
            State::Running => {
                self.state = State::Closing;
                self.deadline = Some(now + self.config.close_timeout);
                self.settle(a);
            }
            State::AwaitReply | State::AwaitRequest | State::Asked(_) => {
                self.finish(a, End::Aborted, false, StreamAction::Abort);
            }
            _ => {}
        }
    }

    /// The queue pair will be one whose state its application changes ([`Config::foreign_qp`]).
    pub fn make_foreign(&mut self) {
        self.config.foreign_qp = true;
    }

    /// The application takes its queue pair away. What was given out before is sent, then the connection closes; what the peer still
    /// sends has no place, and ends it.
    pub fn part(&mut self, a: &mut Adapter, now: Time) {
        if !matches!(self.state, State::Ending(..) | State::Closed) {
            self.qp = None;
            self.close(a, now);
            self.settle(a);
        }
    }

    /// Ends the connection at once, with a Terminate message when one can be sent.
    pub fn abort(&mut self, a: &mut Adapter, now: Time) {
        match self.state {
            State::Running | State::Closing => {
                self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now)
            }
            State::Closed => {}
            _ => self.finish(a, End::Aborted, false, StreamAction::Abort),
        }
    }

    /// What the application should hear of next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    /// What is to be done to the stream next.
    pub fn next_action(&mut self) -> Option<StreamAction> {
        self.actions.pop_front()
    }
    /// The queue pair.
    pub fn qp(&self) -> Option<QpId> {
        self.qp
    }
    /// Whether it is over: the stream is not to be used any more.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }
    /// What was agreed on; meaningful from [`Event::Established`] on.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }
    /// What the path's segments are taken to carry, in bytes.
    pub fn emss(&self) -> usize {
        self.config.emss
    }
    /// The path's segments carry this much from now on, in bytes.
    pub fn set_emss(&mut self, emss: usize) {
        self.config.emss = emss;
    }

    /// The peer checks what is written to it before it copies that to its place, where CRCs are in use: then records hold at most
    /// so many bytes of a write, which are in the peer's first cache still when it copies them. Nothing is announced to it, since
    /// it reads nothing straight to its place.
    pub fn shorten_writes(&mut self, payload: u32) {
        self.short_writes = Some(payload.max(1));
    }

    /// Whether there is something for [`next_event`](Connection::next_event) or [`next_action`](Connection::next_action), or it is
    /// over.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.actions.is_empty() || self.is_closed()
    }

    /// Whether nothing is to follow what was last done to it: it has no [events](Connection::has_events), nothing to send that only it knows
    /// of, and waits for no time.
    pub fn is_settled(&self) -> bool {
        !self.has_events() && self.poll_timeout().is_none() && !self.wants_to_send()
    }

    /// When [`on_timeout`](Connection::on_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let (record, held) = (self.rx.record_since, self.rx.held_since);
        // Most often there is none.
        self.deadline.or(record).or(held).or(self.tx.pause_until)?;
        let record = record.map(|t| t + self.config.record_timeout);
        let held = held.map(|t| t + self.config.receive_wait);
        [self.deadline, record, held, self.tx.pause_until].into_iter().flatten().min()
    }
    /// Time has passed.
    pub fn on_timeout(&mut self, a: &mut Adapter, now: Time) {
        if self.tx.pause_until.is_some_and(|t| t <= now) {
            self.tx.pause_until = None;
        }
        let record = self.rx.record_since.map(|t| t + self.config.record_timeout);
        if [self.deadline, record].into_iter().flatten().any(|t| t <= now) {
            let (end, by_peer) = match self.state {
                State::Ending(end, by_peer) => (end, by_peer),
                _ => (End::TimedOut, false),
            };
            self.finish(a, end, by_peer, StreamAction::Abort);
        }
        // What has waited long enough for a receive is an error now.
        self.resume(a, now);
    }

    /// The peer has shut down its sending side.
    pub fn on_fin(&mut self, a: &mut Adapter, now: Time) {
        self.peer_shut = true;
        match self.state {
            // RFC 5041, section 6.2.1: outbound requests are still processed. Whoever waits for answers waits in vain.
            State::Running | State::Closing if self.rx.is_between_records() && !self.rx.awaits_answers() => {
                if self.state == State::Running {
                    self.events.push_back(Event::PeerClosed);
                    self.close(a, now);
                }
            }
            State::Ending(..) => {}
            State::Closed => return,
            _ => self.finish(a, End::Lost, true, StreamAction::Abort),
        }
        self.settle(a);
    }
    /// The stream failed, or a range of registered memory could not be reached.
    pub fn on_error(&mut self, a: &mut Adapter) {
        // A peer that was told why may reset the stream in answer: that is no other end.
        let (end, by_peer) = match self.state {
            State::Ending(end, by_peer) => (end, by_peer),
            _ => (End::Lost, true),
        };
        self.finish(a, end, by_peer, StreamAction::Abort);
    }

    /// A whole frame of the start-up is there.
    fn on_frame(&mut self, a: &mut Adapter, frame: Frame, private: &[u8], now: Time) {
        let (private, peer) = (private.to_vec(), frame.enhanced);
        if self.state == State::AwaitRequest {
            self.state = State::Asked(frame);
            self.events.push_back(Event::Requested { private, peer });
            return;
        }
        if frame.reject {
            // RFC 5044, section 7.1.2, rule 3: MPA is left, the stream stays; its user may close it.
            self.events.push_back(Event::Rejected { private, peer });
            self.finish(a, End::Rejected, true, StreamAction::Close);
            return;
        }
        match startup::conclude(&self.config, &frame) {
            Ok(terms) => {
                let depths = self.qp.map(|qp| a.set_read_depths(qp, terms.ord.into(), terms.ird.into()));
                self.establish(a, terms, private, now);
                if depths != Some(Ok(())) {
                    self.terminate(a, terminate::MPA_CATASTROPHIC, Quote::default(), now);
                }
            }
            Err(Unacceptable::Mismatch) => self.finish(a, End::Mismatch, false, StreamAction::Abort),
            Err(Unacceptable::Terminate(cause)) => {
                // The Terminate message is a record: it takes markers and CRC as the reply says.
                self.terms =
                    Terms { markers_out: frame.markers, crc: self.config.crc || frame.crc, ..self.terms };
                self.terminate(a, cause, Quote::default(), now);
            }
        }
    }

    fn establish(&mut self, a: &mut Adapter, terms: Terms, private: Vec<u8>, now: Time) {
        self.terms = terms;
        self.state = State::Running;
        // A peer that is to begin (RFC 6581, section 9.2) still has to; one that is asked to answer, too.
        let begins = terms.expected.is_some() || terms.first == Some(First::Read);
        self.deadline = self.deadline.filter(|_| begins);
        if self.may_send() && !self.config.pause.is_zero() {
            self.tx.pause_until = Some(now + self.config.pause);
        }
        if let Some(qp) = self.qp.filter(|_| !self.config.foreign_qp) {
            // In another state already: then the application did it.
            let _ = a.modify_qp(qp, QpState::Rtr);
            let _ = a.modify_qp(qp, QpState::Rts);
        }
        self.events.push_back(Event::Established { private, peer: terms.peer });
    }

    /// A responder MUST have validated a record before it sends any (RFC 5044, section 7.1.2, rule 4).
    pub(super) fn may_send(&self) -> bool {
        let speaks_first = self.config.speak_first && self.terms.expected.is_none();
        self.initiator || self.rx.validated || speaks_first && self.state.runs()
    }

    /// Ends the connection because of something wrong: says so to the peer, once.
    fn terminate(&mut self, a: &mut Adapter, cause: Cause, quote: Quote<'_>, now: Time) {
        if matches!(self.state, State::Ending(..) | State::Closed) {
            return;
        }
        // Without a queue pair nothing is sent any more.
        if !self.may_send() || self.qp.is_none() {
            self.finish(a, End::Terminated(cause), false, StreamAction::Abort);
            return;
        }
        let mut message = Vec::new();
        terminate::put(cause, quote, &mut message);
        self.tx.terminate = Some(message);
        self.drain_and_end(End::Terminated(cause), false, now);
    }

    /// The peer sent a Terminate message.
    fn on_terminate(&mut self, a: &mut Adapter, cause: Cause, now: Time) {
        if let Some(qp) = self.qp {
            let _ = a.set_error(qp, cause.status());
        }
        // It reads nothing any more.
        self.tx.batch.clear();
        self.drain_and_end(End::Terminated(cause), true, now);
        self.settle(a);
    }

    /// Sends what is queued, and accepts nothing more.
    fn drain_and_end(&mut self, end: End, by_peer: bool, now: Time) {
        self.state = State::Ending(end, by_peer);
        self.deadline = Some(now + self.config.close_timeout);
        self.rx.abandon();
    }

    /// Shuts down and closes when it is time to.
    #[inline]
    fn settle(&mut self, a: &mut Adapter) {
        if matches!(self.state, State::Closing | State::Ending(..)) {
            self.close_when_drained(a);
        }
    }
    fn close_when_drained(&mut self, a: &mut Adapter) {
        let waits = |c: &Connection| c.qp.is_some_and(|q| a.has_segment(q)) || c.rx.awaits_answers();
        let (end, by_peer, done) = match self.state {
            State::Closing => (End::Closed, false, !waits(self)),
            State::Ending(end, by_peer) => (end, by_peer, self.tx.terminate.is_none()),
            _ => return,
        };
        if !done || !self.tx.batch.is_empty() {
            return;
        }
        if let (Some(qp), State::Ending(..)) = (self.qp, self.state) {
            let _ = a.set_error(qp, Status::FlushError);
        }
        if !self.shut {
            self.shut = true;
            self.actions.push_back(StreamAction::Shutdown);
        }
        if self.peer_shut {
            self.finish(a, end, by_peer, StreamAction::Close);
        }
    }

    /// It is over.
    fn finish(&mut self, a: &mut Adapter, end: End, by_peer: bool, step: StreamAction) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.deadline = None;
        self.rx.abandon();
        self.tx.batch.clear();
        (self.tx.pause_until, self.tx.terminate) = (None, None);
        let stays = self.config.foreign_qp && end == End::Closed;
        if let Some(qp) = self.qp.filter(|_| !stays) {
            let status = if end == End::Closed { Status::FlushError } else { Status::TransportFailed };
            let _ = a.set_error(qp, status);
        }
        self.actions.push_back(step);
        self.events.push_back(Event::Closed { end, by_peer });
    }
}

fn check_private(private: &[u8], enhanced: bool) -> Result<(), Error> {
    let most = if enhanced { MAX_PRIVATE - ENHANCED } else { MAX_PRIVATE };
    if private.len() > most {
        return Err(Error::Invalid("private data is 512 bytes at most, 508 in revision 2"));
    }
    Ok(())
}

/// The frame that is awaited in a state.
const fn expected(state: State) -> Option<Kind> {
    match state {
        State::AwaitReply => Some(Kind::Reply),
        State::AwaitRequest => Some(Kind::Request),
        _ => None,
    }
}
