//! One connection without I/O: routes datagrams, frames and timers to the modules that own the state.

mod authority;
mod cc_notifications;
mod close;
mod congestion;
mod coupling;
mod crypto_stream;
mod deferred_feedback;
mod fallback;
mod flows;
mod frames;
mod handshake;
mod lanes;
mod migration;
mod peer_preferences;
mod receive;
mod train;
mod transmit;

pub use authority::Authority;
pub(crate) use authority::UNAUTHORISED;
pub use cc_notifications::{CcChange, CcInUse, PeerPreferences};
pub use close::RETRY_PN;
pub use crypto_stream::{MAX_CRYPTO_BUFFERED, MAX_CRYPTO_PIECES};
pub use fallback::FallbackStates;
pub use flows::FlowStats;
pub use handshake::{AcceptParams, CRYPTO_LEVELS, ConnectParams};
pub use lanes::MAX_LANES;
pub use migration::LaneAddresses;
pub use receive::{DatagramInfo, MAX_EARLY, MAX_EARLY_BYTES};
pub use transmit::{
    MAX_INLINE_SEAL, MAX_SEGMENTS, MAX_TRAIN, MAX_UNRELIABLE_FRAMES, SingleBuffer, Transmit, TransmitBuffers,
};

use crate::config::TransportOptions;
use crate::crypto::{KeyPair, PeerIdentity, Side, Suite};
use crate::error::CloseReason;
use crate::lane::path_validation::PathValidation;
use crate::lane::{Lane, Stage};
use crate::negotiation::CcChangeReason;
use crate::scheduler::Scheduler;
use crate::stats::{Gauge, Stats, Usage, limits};
use crate::streams::Streams;
use base::{Rate, Rng, Span, Time};
use cc::engine::Flow;
use cc::platform::EcnPath;
use close::Closing;
use handshake::HandshakeState;
use std::collections::VecDeque;
use wire::frame::Addresses;
use wire::{CcPropose, Cid, Frame, Params, QpOpen};

/// Priority of queue pairs that do not ask for another.
pub const DEFAULT_PRIORITY: u8 = 4;
/// Paths of 1 to 2 ms, where each wake-up would take in five packets, wait this long for ten.
const MAX_SHORT_RECEIVE_DELAY: Span = Span::from_micros(125);
/// Control frames that wait at most; more is a broken invariant of the layer above, or a flood by the peer.
pub const MAX_QUEUED_FRAMES: usize = 1 << 16;

/// Events for the layer above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// The handshake is done and the peer is authorised.
    Established,
    /// The peer opens a queue pair; answer with [`Connection::accept_qp`].
    QpOpen(QpOpen),
    /// The peer answered: zero, or why not.
    QpAccept(u16, u64),
    /// The peer's queue pair went into error.
    QpError(u16, u64),
    /// The peer has posted receives up to this number.
    RecvLimit(u16, u64),
    /// A packet of this end was refused by the peer's memory: the local queue pair goes into error.
    PlaceFailed(u16, u64),
    /// The peer is at another address.
    PathChanged(std::net::SocketAddr),
    /// The client asks for a further lane of this number; answer with [`Connection::accept_lane`].
    LaneWanted(u32),
    /// Data can go over this lane, or can again.
    LaneUp(u32),
    /// No data goes over this lane: it leads nowhere, is dead for now, or was closed.
    LaneDown(u32),
    /// The server has told where it can be reached: see [`Connection::peer_addresses`].
    Addresses,
    /// A problem of this lane, as text; at most once for each.
    LaneTrouble(u32, &'static str),
    /// Packets as large as those of this lane were do not get through any more: they have this many bytes from now on,
    /// until larger ones are found to pass. True when the system said so; else nothing was heard of them for a while.
    PacketsShrank(u32, u16, bool),
    /// The peer proposes this for what this end sends: answer with [`Connection::answer_cc`].
    CcWanted(CcPropose),
    /// The peer sends with another congestion control, as it had proposed.
    CcOfPeer {
        /// On which queue pair; `None`: on all that have none of their own.
        qpn: Option<u16>,
        /// Algorithm and parameters.
        spec: String,
    },
    /// A proposal of this end was answered.
    CcAnswered {
        /// On which queue pair; `None`: on all that have none of their own.
        qpn: Option<u16>,
        /// For this end's sending, which is to change now, else for the peer's.
        sending: bool,
        /// Algorithm and parameters.
        spec: String,
        /// Zero: it holds. Else a code of [`crate::negotiation::refusal`].
        code: u64,
    },
    /// The peer refused a preference set by [`Connection::set_peer_cc_preferences`].
    PreferenceRefused {
        /// On which queue pair; `None`: on all that have none of their own.
        qpn: Option<u16>,
        /// Algorithm and parameters.
        spec: String,
        /// A code of [`crate::negotiation::refusal`].
        code: u64,
    },
    /// The fallback of a flow's algorithm takes effect on a lane, or the chosen algorithm again.
    FallbackChanged {
        /// The lane.
        lane: u32,
        /// The flow.
        flow: u8,
        /// What decides from now on.
        spec: String,
        /// What its own algorithm lacks; `None`: nothing any more.
        why: Option<&'static str>,
    },
    /// The algorithm of a flow changed without a proposal to the peer.
    CcReplaced {
        /// The flow.
        flow: u8,
        /// What decided before.
        from: String,
        /// What decides from now on.
        to: String,
        /// Why.
        why: CcChangeReason,
    },
    /// The peer reports such a change of its own sending.
    CcReplacedByPeer {
        /// On which queue pair; `None`: on all that have none of their own.
        qpn: Option<u16>,
        /// What decided before, as far as that is known.
        from: String,
        /// What decides from now on.
        to: String,
        /// Why.
        why: CcChangeReason,
    },
    /// Views of this connection's keys are out of date: see [`Connection::train_opener`].
    OpenersChanged,
    /// The connection has ended. The last event.
    Closed(CloseReason),
}

#[derive(Debug)]
enum State {
    Handshake,
    Open,
    Closing(Closing),
    Closed,
}

/// One connection, sans I/O. See the crate's documentation.
pub struct Connection {
    side: Side,
    state: State,
    options: TransportOptions,
    handshake: HandshakeState,
    keys: Option<KeyPair>,
    suite: Suite,
    peer: Option<PeerIdentity>,
    peer_params: Params,
    authorised: bool,
    lanes: Vec<Lane>,
    scheduler: Scheduler,
    /// Frames to send once and repeat when lost.
    frames: VecDeque<Frame<'static>>,
    /// Lanes that were asked for and are not answered yet.
    pending_lanes: Vec<lanes::PendingLane>,
    /// The highest number of a lane that this end has asked for.
    lanes_ever: u32,
    /// The addresses that a server sent last.
    advertised: Addresses,
    /// The addresses that a client received last.
    advertised_by_peer: Option<Addresses>,
    /// What is known of lanes that share a bottleneck, once there are several.
    coupler: Option<coupling::Coupler>,
    /// Identifiers of packets for this end on lanes beside the first.
    cids: Vec<Cid>,
    /// The lane that is looked at first for something to send.
    next_lane: usize,
    /// Sockets, a bit each, whose lanes carry data only while no other lane does.
    spare: u64,
    events: VecDeque<ConnEvent>,
    stats: Stats,
    rng: Rng,
    /// When the last authentic packet arrived.
    last_received: Time,
    /// When the last packet that asks for feedback was sent.
    last_eliciting_sent: Time,
    /// When the keys before the peer's last update are forgotten.
    discard_keys_at: Option<Time>,
    /// This end is to update its keys as soon as it may.
    update_wanted: bool,
    /// The generation of keys under which a PING was sent, to have something acknowledged.
    update_ping: Option<u64>,
    /// How long reports that were asked for wait for data that takes them along.
    answer_wait: Span,
    /// Reports to digest when an answer has left.
    deferred_feedback: deferred_feedback::DeferredFeedback,
    /// When this end may update its keys again.
    settle_keys_at: Option<Time>,
    next_flow: usize,
    /// What hops wrote in front of the packet that is being read.
    packet_telemetry: Option<Vec<base::telemetry::Hop>>,
    /// How flows are made, by number.
    flow_setups: Vec<flows::FlowSetup>,
    /// The scheduler tree that divides what the host sends.
    tree: Option<cc::engine::SharedTree>,
    rate_cap: Option<Rate>,
    /// Flows may have a cap.
    capped: bool,
    /// Memory for reports that lead data.
    lead: Vec<u8>,
    /// What is agreed on about congestion control.
    congestion: congestion::Congestion,
    /// Reports of algorithms that changed without a proposal.
    cc_notifications: cc_notifications::CcNotifications,
    /// Algorithms of flows that may be stopped.
    has_programs: bool,
    early: Vec<Vec<u8>>,
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Connection")
            .field("side", &self.side)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// The next event.
    pub fn poll_event(&mut self) -> Option<ConnEvent> {
        self.events.pop_front()
    }
    /// Whether everything is over and nothing more will be sent.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }
    /// Whether data may be sent.
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }
    /// Which end this is.
    pub const fn side(&self) -> Side {
        self.side
    }
    /// The peer's identity, once the handshake has authenticated it.
    pub const fn peer(&self) -> Option<&PeerIdentity> {
        self.peer.as_ref()
    }
    /// The peer's transport parameters.
    pub const fn peer_params(&self) -> &Params {
        &self.peer_params
    }
    /// The suite that protects data packets.
    pub const fn suite(&self) -> Suite {
        self.suite
    }
    /// From which address of this host it leaves, as far as that is known.
    pub fn local(&self) -> Option<std::net::IpAddr> {
        self.lanes[0].local
    }
    /// Where the peer is.
    pub fn remote(&self) -> std::net::SocketAddr {
        self.lanes[0].remote
    }
    /// The identifier of packets for this end.
    pub fn local_cid(&self) -> Cid {
        self.lanes[0].local_cid
    }
    /// Queue pairs open from the start: the larger request of both ends, within what both allow.
    pub fn initial_qps(&self) -> u16 {
        let wanted = u64::from(self.options.initial_qps).max(self.peer_params.initial_qps);
        wanted.min(u64::from(self.options.max_qps)).min(self.peer_params.max_qps).clamp(1, 256) as u16
    }
    /// Whether the initial queue pairs are reliable: unless both ends ask for the contrary.
    pub fn initial_reliable(&self) -> bool {
        self.options.reliable || self.peer_params.reliable
    }

    /// How long received datagrams may wait to be processed without the peer noticing: a sixteenth of the shortest
    /// round trip, or an eighth of it up to 125 us, and at most half of the feedback interval that the peer asks for.
    /// Zero while no round trip is known.
    pub fn max_receive_delay(&self) -> Span {
        let of = |l: &Lane| match l.rtt.is_known() {
            true => {
                let rtt = l.rtt.min();
                (rtt / 16).max((rtt / 8).min(MAX_SHORT_RECEIVE_DELAY)).min(l.received.interval() / 2)
            }
            false => Span::ZERO,
        };
        self.lanes.iter().filter(|l| l.stage == Stage::Open).map(of).min().unwrap_or(Span::ZERO)
    }

    /// Since when packets are outstanding on all open lanes, of which none was acknowledged. None: on one of them nothing is.
    pub fn silent_since(&self) -> Option<Time> {
        let open = self.lanes.iter().filter(|l| l.stage == Stage::Open).map(Lane::silent_since);
        // The lane that was heard last decides.
        open.reduce(|a, b| Some(a?.max(b?))).flatten()
    }
    /// The smoothed round-trip time of the main lane.
    pub fn srtt(&self) -> Span {
        self.lanes[self.main_lane()].rtt.smoothed()
    }

    /// Counters and estimates.
    pub fn stats(&self) -> Stats {
        let lane = &self.lanes[self.main_lane()];
        let flow = &lane.flows[0];
        let d = flow.decision();
        let open = || self.lanes.iter().filter(|l| l.stage == Stage::Open);
        let flows = || self.lanes.iter().flat_map(|l| &l.flows);
        let decided = || open().map(|l| l.flows[0].decision());
        Stats {
            srtt: lane.rtt.smoothed(),
            min_rtt: lane.rtt.min(),
            rate: if self.lanes.len() == 1 { d.rate } else { sum_of(decided().map(|d| d.rate)) },
            cwnd: decided().map(|d| d.cwnd).fold(0, u64::saturating_add),
            inflight: flows().map(Flow::inflight).sum(),
            delivered: flows().map(Flow::delivered).sum(),
            lanes: open().count() as u32,
            mtu: lane.mtu.current().into(),
            cc: flow.describe(),
            usage: self.usage(),
            paths: self.lanes.iter().map(Lane::stats).collect(),
            key_generation: self.keys.as_ref().map_or(0, |k| k.seal_keys().generation()),
            ..self.stats.clone()
        }
    }

    /// The path's rate and round trip, for a later connection; `None` until the application has used all of it for
    /// some round trips.
    pub fn remembered_path(&self) -> Option<cc::Remembered> {
        let lane = &self.lanes[0];
        let rates: Vec<_> = lane.flows.iter().filter_map(Flow::carried).collect();
        let rate = rates.iter().map(|r| r.bytes_per_sec()).fold(0, u64::saturating_add);
        let rtt = lane.rtt.min();
        let train = lane.flows.iter().filter_map(Flow::longest_train).min();
        (rate > 0 && !rtt.is_zero()).then(|| cc::Remembered {
            rate: base::Rate::from_bytes_per_sec(rate),
            rtt,
            train,
        })
    }

    /// Memory in use, each kind beside its limit.
    pub fn usage(&self) -> Usage {
        let lanes = self.lanes.len();
        let sum = |f: fn(&Lane) -> usize| self.lanes.iter().map(f).sum();
        let (crypto_bytes, crypto_pieces) = self.handshake.buffered();
        Usage {
            sent_packets: Gauge::new(sum(|l| l.sent.tracked()), lanes * limits::MAX_TRACKED),
            sent_trains: Gauge::new(sum(|l| l.sent.trains().len()), lanes * (limits::MAX_TRACKED + 1)),
            sent_holes: Gauge::new(sum(|l| l.sent.holes()), lanes * limits::MAX_SENT_HOLES),
            received_runs: Gauge::new(sum(|l| l.received.runs()), lanes * limits::MAX_RUNS),
            control_packets: Gauge::new(sum(Lane::kept_control), lanes * limits::MAX_CONTROL),
            lost_frames: Gauge::new(sum(|l| l.lost_frames.len()), lanes * limits::MAX_LOST_FRAMES),
            queued_frames: Gauge::new(self.frames.len(), limits::MAX_QUEUED_FRAMES),
            unreliable_frames: Gauge::new(
                sum(|l| l.unreliable_frames.len()),
                lanes * limits::MAX_UNRELIABLE_FRAMES,
            ),
            crypto_bytes: Gauge::new(crypto_bytes, limits::CRYPTO_LEVELS * limits::MAX_CRYPTO_BUFFERED),
            crypto_pieces: Gauge::new(crypto_pieces, limits::CRYPTO_LEVELS * limits::MAX_CRYPTO_PIECES),
            early_datagrams: Gauge::new(self.early.len(), limits::MAX_EARLY),
            early_bytes: Gauge::new(self.early.iter().map(Vec::len).sum(), limits::MAX_EARLY_BYTES),
            flows: Gauge::new(sum(|l| l.flows.len()), lanes * limits::MAX_FLOWS),
            queue_pairs: Gauge::new(self.scheduler.len(), limits::MAX_QUEUE_PAIRS),
        }
    }

    fn path_info(&self, lane: usize) -> cc::PathInfo {
        let l = &self.lanes[lane];
        cc::PathInfo {
            packet_bytes: u64::from(l.mtu.current()) + u64::from(l.overhead()),
            handshake_rtt: l.rtt.latest(),
            ecn: !matches!(l.ecn.paths()[0], EcnPath::Failed(_)),
            // What is known is known of the path that it connected over.
            known_rate: self.options.known_rate.filter(|_| l.id == 0),
            remembered: None,
        }
    }

    /// Changes the keys of what this end sends, as soon as the rules of RFC 9001, section 6, allow.
    pub fn request_key_update(&mut self) {
        self.update_wanted = true;
    }

    /// The queue pair is gone: its work is not scheduled any more.
    pub fn remove_qp(&mut self, qpn: u16) {
        self.scheduler.remove(qpn);
        self.forget_qp_cc(qpn);
    }

    /// The queue pair has something to send.
    pub fn activate(&mut self, qpn: u16) {
        self.scheduler.activate(qpn);
    }

    /// Asks the peer for a queue pair; the answer is [`ConnEvent::QpAccept`].
    pub fn open_qp(&mut self, open: QpOpen) {
        self.push_frame(Frame::QpOpen(open));
    }
    /// Answers [`ConnEvent::QpOpen`]: zero, or why not.
    pub fn accept_qp(&mut self, qpn: u16, code: u64) {
        self.push_frame(Frame::QpAccept { qpn, code });
    }
    /// Tells the peer how many receives are posted.
    pub fn send_recv_limit(&mut self, qpn: u16, limit: u64) {
        // An older, lower limit that still waits is overtaken.
        let same = |f: &&mut Frame<'static>| matches!(f, Frame::RecvLimit { qpn: q, .. } if *q == qpn);
        match self.frames.iter_mut().rev().take(64).find(same) {
            Some(f) => *f = Frame::RecvLimit { qpn, limit },
            None => self.push_frame(Frame::RecvLimit { qpn, limit }),
        }
    }
    /// Reports what has arrived at once, in front of frames that are queued: the peer is about to lose whom it sent that to.
    pub fn hurry_reports(&mut self) {
        self.lanes.iter_mut().for_each(|l| l.received.hurry_report());
    }
    /// Tells the peer that the queue pair went into error.
    pub fn send_qp_error(&mut self, qpn: u16, code: u64) {
        self.push_frame(Frame::QpError { qpn, code });
    }

    fn push_frame(&mut self, f: Frame<'static>) {
        if self.frames.len() < MAX_QUEUED_FRAMES {
            self.frames.push_back(f);
        }
    }

    /// The system refused a datagram of this size to this address (EMSGSIZE).
    pub fn on_too_large(&mut self, now: Time, remote: std::net::SocketAddr, size: u16) {
        for i in 0..self.lanes.len() {
            if self.lanes[i].target().0 == remote && self.lanes[i].mtu.on_too_large(now, size) {
                self.on_packet_size(now, i, true);
            }
        }
    }

    /// When [`Connection::handle_timeout`] or [`Connection::poll_transmit`] wants to be called.
    pub fn next_timeout(&mut self) -> Option<Time> {
        let mut at = match &self.state {
            State::Closed => return None,
            State::Closing(c) => return Some(c.next_timeout()),
            State::Handshake => self.handshake.next_timeout(),
            State::Open => None,
        };
        let mut earliest = |t: Option<Time>| {
            if let Some(t) = t {
                at = Some(at.map_or(t, |a: Time| a.min(t)));
            }
        };
        earliest(self.idle_deadline());
        earliest(self.authorisation_deadline());
        earliest(self.stall_deadline());
        if !self.handshake.is_confirmed() {
            earliest(self.handshake.next_timeout());
        }
        let says = self
            .cc_notifications
            .next_timeout()
            .into_iter()
            .chain(self.congestion.preference_searches.next_timeout())
            .min();
        earliest(says.filter(|_| self.is_open() && self.authorised));
        earliest(self.coupler.as_ref().and_then(coupling::Coupler::deadline));
        earliest(self.discard_keys_at);
        earliest(self.settle_keys_at);
        if self.keys.is_some() {
            if let Some(k) = self.options.keep_alive {
                earliest(Some(self.last_eliciting_sent.max(self.last_received) + k));
            }
            for l in &mut self.lanes {
                // What is due on a lane over which nothing leaves would be due for ever.
                let leaves = matches!(l.stage, Stage::Open | Stage::Dead);
                if leaves {
                    earliest(l.loss_deadline());
                    earliest(l.pto_deadline());
                    earliest(l.dead_notice_due());
                }
                if !l.blocked {
                    earliest(l.path.as_ref().map(PathValidation::next_timeout));
                    earliest(l.received.due(self.answer_wait).filter(|_| leaves));
                    earliest(l.next_send.filter(|_| leaves));
                }
            }
        }
        at
    }

    /// When a client that announced a token must have proven it.
    fn authorisation_deadline(&self) -> Option<Time> {
        (matches!(self.state, State::Open) && !self.authorised).then(|| self.handshake.give_up())
    }

    fn idle_timeout(&self) -> Span {
        let ours = self.options.idle_timeout;
        let theirs = Span::from_millis(self.peer_params.idle_ms);
        if theirs.is_zero() { ours } else { ours.min(theirs) }
    }

    fn idle_deadline(&self) -> Option<Time> {
        Some(self.last_received + self.idle_timeout())
    }

    /// When a peer that is heard of, but acknowledges nothing, or no data, has had its time. Of one that has fallen
    /// silent meanwhile the idle time-out tells.
    fn stall_deadline(&self) -> Option<Time> {
        // A dead lane's data goes over others.
        let counts = |l: &&Lane| l.stage != Stage::Dead;
        let since = self.lanes.iter().filter(counts).filter_map(Lane::unacknowledged_since).min()?;
        let idle = self.idle_timeout();
        let alive = self.last_received >= since + idle / 2;
        (alive && matches!(self.state, State::Open)).then_some(since + idle)
    }

    /// Lets time pass: repeats what was lost, probes, gives up.
    pub fn handle_timeout(&mut self, now: Time, streams: &mut impl Streams) {
        self.process_deferred_feedback_or_close(now, streams);
        match &mut self.state {
            State::Closed => return,
            State::Closing(c) => {
                if c.is_over(now) {
                    self.state = State::Closed;
                } else if now >= c.next_timeout() {
                    self.handshake.repeat_for_close();
                }
                return;
            }
            State::Handshake | State::Open => {}
        }
        if self.idle_deadline().is_some_and(|t| t <= now) {
            let reason = match self.state {
                State::Handshake => CloseReason::NoAnswer(self.remote().to_string()),
                _ => CloseReason::IdleTimeout(now.since(self.last_received).as_nanos() / 1_000_000_000),
            };
            return self.end(reason);
        }
        if self.stall_deadline().is_some_and(|t| t <= now) {
            return self.stall(now);
        }
        if self.authorisation_deadline().is_some_and(|t| t <= now) {
            return self.fail(now, &authority::unauthorised());
        }
        if !self.handshake.is_confirmed() {
            if self.handshake.is_over(now) {
                return self.end(CloseReason::NoAnswer(self.remote().to_string()));
            }
            if self.handshake.repeat(now) && self.keys.is_some() {
                self.push_frame(Frame::Ping);
                self.handshake.rearm(now);
            }
        }
        if let Some(k) = &mut self.keys {
            if self.discard_keys_at.take_if(|t| *t <= now).is_some() {
                k.discard_previous();
            }
            if self.settle_keys_at.take_if(|t| *t <= now).is_some() {
                k.settle();
            }
        }
        self.on_path_validation_timeout(now);
        if self.keys.is_none() {
            return;
        }
        if self
            .options
            .keep_alive
            .is_some_and(|k| self.last_eliciting_sent.max(self.last_received) + k <= now)
        {
            // On every lane, so that no NAT forgets one.
            self.lanes.iter_mut().filter(|l| l.stage == Stage::Open).for_each(|l| l.ping = true);
            self.last_eliciting_sent = now;
        }
        for i in 0..self.lanes.len() {
            self.lane_timeout(now, i, streams);
        }
        self.report_dead_lanes(now);
    }

    fn lane_timeout(&mut self, now: Time, i: usize, streams: &mut impl Streams) {
        let lane = &mut self.lanes[i];
        if lane.loss_deadline().is_some_and(|t| t <= now) {
            let out = lane.on_loss_timeout(now, streams);
            self.count(now, i, out);
        }
        let lane = &mut self.lanes[i];
        if lane.pto_deadline().is_some_and(|t| t <= now) {
            let out = lane.on_probe_timeout(now, streams);
            self.stats.probe_timeouts += 1;
            let lane = &mut self.lanes[i];
            lane.ping |= lane.sent.outstanding() > 0 || lane.stage == Stage::Dead;
            self.count(now, i, out);
            self.mark_dead_if_silent(now, i, streams);
        }
    }

    /// Enters a lane's outcome into the counters, and tells flows of a new packet size.
    fn count(&mut self, now: Time, lane: usize, out: crate::lane::FeedbackOutcome) {
        self.stats.packets_lost += out.lost;
        self.lanes[lane].carried.lost += out.lost;
        self.stats.packets_spurious += out.spurious;
        self.stats.ce_packets += out.marked;
        self.update_fallbacks(now, lane);
        if out.mtu_changed {
            self.on_packet_size(now, lane, false);
        }
    }

    /// Tells flows of a new packet size, and the layer above of one that fell; `certain` when the system said so.
    fn on_packet_size(&mut self, now: Time, lane: usize, certain: bool) {
        let size = self.path_info(lane).packet_bytes;
        let l = &mut self.lanes[lane];
        l.flows.iter_mut().for_each(|f| f.on_event(now, cc::Event::PacketSize(size)));
        if l.mtu.current() == crate::lane::mtu::BASE {
            self.events.push_back(ConnEvent::PacketsShrank(l.id, l.mtu.current(), certain));
        }
    }

    /// Ends at once: no more packets, and one last event, unless it was told already when closing began.
    fn end(&mut self, reason: CloseReason) {
        if matches!(self.state, State::Handshake | State::Open) {
            self.events.push_back(ConnEvent::Closed(reason));
        }
        self.state = State::Closed;
    }
}

fn sum_of(rates: impl Iterator<Item = Rate>) -> Rate {
    Rate::from_bytes_per_sec(rates.map(|r| r.bytes_per_sec()).fold(0, u64::saturating_add))
}
