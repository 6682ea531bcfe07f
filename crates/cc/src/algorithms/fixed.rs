//! A fixed rate for paths with a guaranteed rate: no congestion control except for a circuit breaker.
//!
//! The breaker counts packets and losses per round trip. If the share of loss exceeds `breaker` in `patience` rounds
//! in a row, the rate is halved, down to a 64th of the configured one. Three probe time-outs in a row without feedback
//! halve it, too, and persistent congestion reduces it to that floor at once. RFC 8084 asks for such a circuit breaker
//! where a flow does not respond to congestion. It recovers slowly: by an eighth for every `patience` rounds in a row with
//! less than half of that share of loss.

use super::{MIN_PACKETS, MIN_RATE};
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals, pacer};
use base::{Rate, Span, Time};

/// The algorithm's entry in the registry.
pub(crate) const DEFINITION: Definition = Definition {
    name: "fixed",
    summary: "a fixed rate for paths of guaranteed rate, with a circuit breaker against lasting loss",
    params: &[
        ParamDef {
            name: "rate",
            help: "the rate on the wire; auto: the path's known rate, else 100 Mbit/s",
            kind: Kind::Rate {
                min: Rate::from_bits_per_sec(64_000),
                max: Rate::from_bits_per_sec(1_000_000_000_000),
            },
        },
        ParamDef {
            name: "breaker",
            help: "share of loss that trips the circuit breaker",
            kind: Kind::Share { min: 1_000, max: 90_000, default: 20_000 },
        },
        ParamDef {
            name: "patience",
            help: "round trips in a row above that share before the rate is halved",
            kind: Kind::Count { unit: "round trips", min: 1, max: 1_000, default: 3 },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| Box::new(Fixed::new(params, info)),
};

/// The rate if neither the parameter nor the path gives one.
const DEFAULT_RATE: Rate = Rate::from_mbit(100);
/// The breaker never reduces the rate below this part of it.
const FLOOR_DIVISOR: u64 = 64;
/// Successive probe time-outs that halve the rate.
const SILENT_TIMEOUTS: u32 = 3;
/// The round trip assumed before any is known.
const INITIAL_RTT: Span = Span::from_millis(333);
/// The congestion window holds what is sent in two round trips and this time, so that queues and late feedback do not
/// reduce the rate.
const SLACK: Span = Span::from_millis(100);
/// Unit of shares of loss: parts per 100,000, as in [`Kind::Share`].
const SHARE: u64 = 100_000;

/// The state of a sender with a fixed rate.
#[derive(Debug)]
pub struct Fixed {
    /// The parameter `rate`.
    configured: Option<Rate>,
    /// The rate while the breaker has not tripped.
    target: Rate,
    /// The present rate.
    rate: Rate,
    /// The share of loss that counts as bad, in [`SHARE`].
    breaker: u64,
    /// Rounds in a row after which the rate changes.
    patience: u64,
    /// Bytes of a full-sized packet.
    packet: u64,
    rtt: Span,
    /// Packets of the present round that were lost, and all whose fate is known.
    lost: u64,
    packets: u64,
    bad_rounds: u64,
    good_rounds: u64,
}

impl Fixed {
    fn new(params: &Params, info: &PathInfo) -> Fixed {
        let configured = params.rate("rate");
        let mut fixed = Fixed {
            configured,
            target: DEFAULT_RATE,
            rate: DEFAULT_RATE,
            breaker: params.share("breaker"),
            patience: params.count("patience"),
            packet: 1,
            rtt: INITIAL_RTT,
            lost: 0,
            packets: 0,
            bad_rounds: 0,
            good_rounds: 0,
        };
        fixed.set_path(info);
        fixed
    }

    fn set_path(&mut self, info: &PathInfo) {
        self.target = self.configured.or(info.known_rate).unwrap_or(DEFAULT_RATE).max(MIN_RATE);
        self.rate = self.target;
        self.packet = info.packet_bytes.max(1);
        self.rtt = info.handshake_rtt.filter(|r| !r.is_zero()).unwrap_or(INITIAL_RTT);
        (self.lost, self.packets, self.bad_rounds, self.good_rounds) = (0, 0, 0, 0);
    }

    fn floor(&self) -> Rate {
        self.target.scale(1, FLOOR_DIVISOR).max(MIN_RATE)
    }

    fn halve(&mut self) {
        self.rate = self.rate.scale(1, 2).max(self.floor());
        self.bad_rounds = 0;
        self.good_rounds = 0;
    }

    /// Evaluates the round that has ended.
    fn on_round(&mut self) {
        let share = u128::from(self.lost) * u128::from(SHARE) / u128::from(self.packets.max(1));
        (self.lost, self.packets) = (0, 0);
        if share > u128::from(self.breaker) {
            self.good_rounds = 0;
            self.bad_rounds += 1;
            if self.bad_rounds >= self.patience {
                self.halve();
            }
            return;
        }
        self.bad_rounds = 0;
        if share * 2 > u128::from(self.breaker) {
            self.good_rounds = 0;
            return;
        }
        self.good_rounds += 1;
        if self.good_rounds >= self.patience && self.rate < self.target {
            self.good_rounds = 0;
            self.rate = self.rate.scale(9, 8).max(Rate::from_bytes_per_sec(self.rate.bytes_per_sec() + 1));
            self.rate = self.rate.min(self.target);
        }
    }
}

impl Algorithm for Fixed {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.lost = self.lost.saturating_add(s.lost_packets);
        self.packets = self.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        if !s.srtt.is_zero() {
            self.rtt = s.srtt;
        }
        if s.round_start && self.packets > 0 {
            self.on_round();
        }
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } if count >= SILENT_TIMEOUTS => self.halve(),
            Event::PersistentCongestion => {
                self.rate = self.floor();
                self.good_rounds = 0;
            }
            Event::PathChanged(info) => self.set_path(&info),
            Event::PacketSize(bytes) => self.packet = bytes.max(1),
            Event::ProbeTimeout { .. } | Event::RestartFromIdle { .. } => {}
        }
    }

    fn decision(&self) -> Decision {
        let quantum = pacer::quantum(self.rate, self.packet);
        let cwnd = self.rate.bytes_in(self.rtt * 2 + SLACK).saturating_add(quantum.saturating_mul(4));
        Decision { rate: self.rate, cwnd: cwnd.max(self.packet.saturating_mul(MIN_PACKETS)), quantum }
    }

    fn state(&self) -> &'static str {
        if self.rate < self.target { "tripped" } else { "fixed" }
    }
}
