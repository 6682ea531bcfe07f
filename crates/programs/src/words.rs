//! Encodes signals as the 64-bit words that `struct oc_signals` of `opencc.h` lays out.

use base::{Rate, Span, Time};
use cc::{Event, Hop, MAX_HOPS, PathInfo, SentTrain, Signals};

/// Words of `struct oc_decision`, its reserved words and the event.
pub const DECISION: usize = 8;
/// Index of `event` within these.
pub const EVENT: usize = 7;
/// Words of the parameters (`OC_MAX_PARAMS`).
pub const PARAMS: usize = crate::manifest::MAX_PARAMS;
/// Words of `struct oc_signals`.
pub const SIGNALS: usize = 44;
/// Words of the telemetry of hops.
pub const HOPS: usize = 5 * MAX_HOPS;
/// Words of `struct oc_io`.
pub const IO: usize = DECISION + PARAMS + SIGNALS + HOPS;

/// An unknown time (`OC_NONE`).
pub const NONE: u64 = u64::MAX;
/// The round trip assumed before any is known (RFC 9002, section 6.2.2), as in the built-in algorithms.
const INITIAL_RTT: Span = Span::from_millis(333);

/// Indices of the words that do not come from feedback.
mod index {
    pub const IDLE_SINCE: usize = 40;
    pub const SENT: usize = 41;
    pub const SENT_PACKETS: usize = 42;
    pub const HOPS: usize = 43;
}

/// The numbers of `OC_EVENT_...`; `None` for the change of path, which restarts the program.
pub fn event_number(event: Event) -> Option<u64> {
    match event {
        Event::ProbeTimeout { .. } => Some(1),
        Event::PersistentCongestion => Some(2),
        Event::RestartFromIdle { .. } => Some(3),
        Event::PacketSize(_) => Some(4),
        Event::PathChanged(_) => None,
    }
}

/// The state that is carried from call to call.
#[derive(Clone, Copy, Debug)]
pub struct View {
    info: PathInfo,
    pub packet: u64,
    pub srtt: Span,
    pub min_rtt: Span,
    timeouts: u64,
    inflight: u64,
    delivered: u64,
    round: u64,
    app_limited: bool,
    hops: u64,
}

impl View {
    pub fn new(info: &PathInfo) -> View {
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero());
        View {
            info: *info,
            packet: info.packet_bytes.max(1),
            srtt: rtt.unwrap_or(INITIAL_RTT),
            min_rtt: rtt.unwrap_or(Span::ZERO),
            timeouts: 0,
            inflight: 0,
            delivered: 0,
            round: 0,
            app_limited: false,
            hops: 0,
        }
    }

    /// The path's description, updated with the measured round trip.
    pub fn info(&self) -> PathInfo {
        PathInfo { packet_bytes: self.packet, handshake_rtt: Some(self.srtt), ..self.info }
    }

    /// Stores the number of hops of the next feedback's telemetry.
    pub fn set_hops(&mut self, hops: &[Hop]) {
        self.hops = hops.len().min(MAX_HOPS) as u64;
    }

    /// The words for the start of a flow.
    pub fn start(&self, now: Time) -> [u64; SIGNALS] {
        self.words(&Signals { now, ..Signals::default() })
    }

    /// The words for a feedback.
    pub fn feedback(&mut self, s: &Signals) -> [u64; SIGNALS] {
        if !s.srtt.is_zero() {
            self.srtt = s.srtt;
        }
        if !s.min_rtt.is_zero() {
            self.min_rtt = s.min_rtt;
        }
        if s.acked > 0 {
            self.timeouts = 0;
        }
        (self.inflight, self.delivered, self.round) = (s.inflight, s.delivered, s.round);
        self.app_limited = s.app_limited;
        let mut words = self.words(s);
        words[index::HOPS] = core::mem::take(&mut self.hops);
        words
    }

    /// The words for an event.
    pub fn event(&mut self, now: Time, event: Event) -> [u64; SIGNALS] {
        match event {
            Event::ProbeTimeout { count } => self.timeouts = u64::from(count),
            Event::PacketSize(bytes) => self.packet = bytes.max(1),
            Event::PathChanged(info) => *self = View::new(&info),
            Event::PersistentCongestion | Event::RestartFromIdle { .. } => {}
        }
        let mut words = self.start(now);
        if let Event::RestartFromIdle { idle_since } = event {
            words[index::IDLE_SINCE] = idle_since.as_nanos();
        }
        words
    }

    /// The words for a train that has left.
    pub fn sent(&mut self, train: &SentTrain) -> [u64; SIGNALS] {
        self.record_sent(train);
        let mut words = self.start(train.now);
        words[index::SENT] = train.bytes;
        words[index::SENT_PACKETS] = train.packets;
        words
    }

    /// Records a train for a program without a callback for trains.
    pub fn record_sent(&mut self, train: &SentTrain) {
        (self.inflight, self.app_limited) = (train.inflight, train.app_limited);
    }

    /// All words, in the order of `struct oc_signals`.
    fn words(&self, s: &Signals) -> [u64; SIGNALS] {
        let time = |t: Option<Time>| t.map_or(NONE, Time::as_nanos);
        let span = |t: Option<Span>| t.map_or(0, Span::as_nanos);
        let rate = |r: Option<Rate>| r.map_or(0, Rate::bytes_per_sec);
        let sample = s.rate.as_ref();
        let of = |f: fn(&cc::RateSample) -> u64| sample.map_or(0, f);
        [
            s.now.as_nanos(),
            self.packet,
            self.srtt.as_nanos(),
            self.min_rtt.as_nanos(),
            self.timeouts,
            self.inflight,
            s.prior_inflight,
            self.delivered,
            self.round,
            u64::from(self.app_limited),
            s.acked,
            s.acked_packets,
            s.lost,
            s.lost_packets,
            s.spurious,
            time(s.latest_lost_sent),
            time(s.newest_acked_sent),
            span(s.rtt),
            s.queue_delay.as_nanos(),
            s.host_delay.as_nanos(),
            s.rtt_trend.cast_unsigned(),
            s.delay_trend.cast_unsigned(),
            s.ce_packets,
            s.ce_acked,
            u64::from(s.round_start),
            u64::from(sample.is_some()),
            of(|r| r.rate.bytes_per_sec()),
            of(|r| r.interval.as_nanos()),
            of(|r| r.delivered),
            of(|r| r.prior_delivered),
            of(|r| r.tx_inflight),
            of(|r| r.lost),
            of(|r| r.forgone),
            of(|r| u64::from(r.app_limited)),
            rate(s.dispersion),
            u64::from(self.info.ecn),
            span(self.info.handshake_rtt),
            rate(self.info.known_rate),
            rate(self.info.remembered.map(|r| r.rate)),
            span(self.info.remembered.map(|r| r.rtt)),
            0,
            0,
            0,
            0,
        ]
    }
}

/// The words for the telemetry of hops.
pub fn hops(hops: &[Hop]) -> [u64; HOPS] {
    let mut words = [0; HOPS];
    for (hop, five) in hops.iter().zip(words.chunks_exact_mut(5)) {
        five.copy_from_slice(&[
            u64::from(hop.id),
            hop.at.as_nanos(),
            hop.queue,
            hop.sent,
            hop.rate.bytes_per_sec(),
        ]);
    }
    words
}
