//! Measures the share of a path that one long transfer gets, and its costs.

use crate::pair::{Load, Pair};
use base::{Rate, Span, Time};
use core::fmt;
use netem::{LinkConfig, Loss, Marking, Probability};
use transport::TransportOptions;
use wire::Module;

/// Bytes of one Write, long enough that the number of Writes does not matter.
const MESSAGE: usize = 4 << 20;
/// Fewest bytes posted ahead, besides sixteen bandwidth-delay products: work completes in order, so a packet lost
/// three times delays the completions of several round trips, during which the sender must not run out of work.
const MIN_POSTED_AHEAD: u64 = 256 << 20;
/// Samples of the counters in a measurement.
const SAMPLES: u64 = 200;

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Case {
    /// Rate of the path, in bytes on the wire.
    pub rate: Rate,
    /// Idle round trip of the path.
    pub rtt: Span,
    /// Share of packets lost at random on the way to the receiver.
    pub loss: Probability,
    /// Size of the drop-tail queue in front of the path, in bandwidth-delay products.
    pub queue_bdp: f64,
    /// Queue length above which packets are marked Congestion Experienced, in bandwidth-delay products.
    pub mark_bdp: Option<f64>,
    /// Duration in virtual time.
    pub lasts: Span,
    /// Congestion control, with parameters.
    pub cc: String,
    /// Protection of packets.
    pub module: Module,
    /// Largest packet.
    pub max_packet: u32,
    /// Granularity of timers and wake-ups of both hosts.
    pub slack: Span,
    /// Seed of losses.
    pub seed: u64,
}

impl Case {
    /// The default congestion control, packets of 1500 bytes, a queue of one bandwidth-delay product, and checksums
    /// only, since ciphers make no difference in virtual time.
    pub fn new(rate: Rate, rtt: Span, loss: Probability, lasts: Span) -> Case {
        Case {
            rate,
            rtt,
            loss,
            queue_bdp: 1.0,
            mark_bdp: None,
            lasts,
            cc: cc::registry::DEFAULT.into(),
            module: Module::Crc32c,
            max_packet: 1_500,
            slack: Span::from_micros(20),
            seed: 1,
        }
    }

    fn link(&self, loss: Probability) -> LinkConfig {
        let queue = (self.rate.bytes_in(self.rtt) as f64 * self.queue_bdp) as u64;
        LinkConfig {
            rate: Some(self.rate),
            queue: queue.max(10 * u64::from(self.max_packet)),
            ecn: self
                .mark_bdp
                .map(|share| Marking::step((self.rate.bytes_in(self.rtt) as f64 * share) as u64)),
            delay: self.rtt / 2,
            loss: Loss::Independent(loss),
            ..LinkConfig::default()
        }
    }

    fn pair(&self, messages: Option<u64>) -> Result<Pair, String> {
        let options = TransportOptions {
            cc: self.cc.clone(),
            module: self.module,
            max_packet: self.max_packet,
            ..TransportOptions::default()
        };
        let ahead = (self.rate.bytes_in(self.rtt) * 16 + MIN_POSTED_AHEAD) / MESSAGE as u64;
        let load = Load { message: MESSAGE, ahead: ahead as usize, messages };
        let links = (self.link(self.loss), self.link(Probability::ZERO));
        Pair::new(self.seed, self.slack, links, options, load).map_err(|e| e.to_string())
    }
}

/// The result of a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measurement {
    /// Payload placed in the receiver's memory, in the second half.
    pub goodput: Rate,
    /// The maximum goodput: the rate without what is not payload. Random losses do not reduce it, since they happen
    /// in front of the queue.
    pub limit: Rate,
    /// Goodput as a share of the limit.
    pub ratio: f64,
    /// Payload over the whole time from the first work request on, as a share of the limit.
    pub whole: f64,
    /// From the first work request until the goodput of an interval first reached nine tenths of the limit.
    pub to_90: Option<Span>,
    /// Retransmitted data packets, as a share of all packets.
    pub retransmitted: f64,
    /// Bytes from the receiver to the sender as a share of those in the other direction.
    pub feedback: f64,
    /// The longest queue in bytes.
    pub max_queue: u64,
    /// The longest queue in bandwidth-delay products.
    pub queue_bdp: f64,
    /// Datagrams delivered in both directions.
    pub datagrams: u64,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mbit = |r: Rate| r.bits_per_sec() as f64 / 1e6;
        write!(
            f,
            "{:.1} of {:.1} Mbit/s ({:.1} %, with the start {:.1} %), 90 % after {}, {:.3} % again, {:.3} % feedback, \
             queue up to {:.2} BDP",
            mbit(self.goodput),
            mbit(self.limit),
            self.ratio * 100.0,
            self.whole * 100.0,
            self.to_90.map_or("never".into(), |t| format!("{} ms", t.as_millis())),
            self.retransmitted * 100.0,
            self.feedback * 100.0,
            self.queue_bdp,
        )
    }
}

/// Counters at one time.
#[derive(Clone, Copy, Default)]
struct CounterSample {
    at: Time,
    payload: u64,
}

/// Measures one long transfer over an otherwise empty path.
///
/// # Errors
/// Invalid settings, or a failed connection, as text.
pub fn measure(case: &Case) -> Result<Measurement, String> {
    let mut pair = case.pair(None)?;
    let until = Time::ZERO + case.lasts;
    let mut looks: Vec<CounterSample> = Vec::new();
    let mut at = Time::ZERO;
    while at < until {
        at += (case.lasts / SAMPLES).max(Span::from_micros(1));
        pair.run_until(at)?;
        let receiver = pair.shared.borrow().receiver;
        let stats = receiver.and_then(|c| pair.world.inspect(pair.receiver).stats(c));
        looks.push(CounterSample { at: pair.world.now(), payload: stats.map_or(0, |s| s.payload_received) });
    }
    summarise(case, &mut pair, &looks).ok_or_else(|| "nothing was transferred: give it more time".into())
}

fn summarise(case: &Case, pair: &mut Pair, looks: &[CounterSample]) -> Option<Measurement> {
    let (sender, started) = (pair.shared.borrow().sender?, pair.shared.borrow().started?);
    let stats = pair.world.inspect(pair.sender).stats(sender)?;
    let data_bytes = stats.bytes_sent - stats.control_bytes_sent;
    let share = stats.payload_sent as f64 / data_bytes.max(1) as f64;
    let limit = case.rate.bytes_per_sec() as f64 * share;
    let rate = |a: &CounterSample, b: &CounterSample| {
        (b.payload - a.payload) as f64 / b.at.since(a.at).as_secs_f64().max(1e-9)
    };
    let (half, last) = (looks.get(looks.len() / 2)?, looks.last()?);
    let steady = rate(half, last);
    // Over two round trips or one sample interval, whichever is longer.
    let window = (case.rtt * 2).as_nanos().div_ceil((case.lasts / SAMPLES).as_nanos().max(1)).max(1) as usize;
    let fast = looks.windows(window + 1).find(|w| rate(&w[0], &w[window]) >= 0.9 * limit);
    let whole = last.payload as f64 / last.at.since(started).as_secs_f64().max(1e-9);
    let (forward, reverse) = (pair.world.link_stats(pair.forward), pair.world.link_stats(pair.reverse));
    Some(Measurement {
        goodput: Rate::from_bytes_per_sec(steady as u64),
        limit: Rate::from_bytes_per_sec(limit as u64),
        ratio: steady / limit.max(1.0),
        whole: whole / limit.max(1.0),
        to_90: fast.map(|w| w[0].at.since(started)),
        retransmitted: stats.packets_again as f64 / stats.packets_sent.max(1) as f64,
        feedback: reverse.sent_bytes as f64 / forward.sent_bytes.max(1) as f64,
        max_queue: forward.max_queue_bytes,
        queue_bdp: forward.max_queue_bytes as f64 / case.rate.bytes_in(case.rtt).max(1) as f64,
        datagrams: pair.world.totals().received,
    })
}

/// Transfers `bytes` (rounded up to whole Writes) and returns the mean payload rate from the first work request to
/// the last completion at the sender, including start-up.
///
/// # Errors
/// As for [`measure`]; or it did not end within the case's time.
pub fn transfer(case: &Case, bytes: u64) -> Result<Rate, String> {
    let messages = bytes.div_ceil(MESSAGE as u64).max(1);
    let mut pair = case.pair(Some(messages))?;
    pair.run_until(Time::ZERO + case.lasts)?;
    let b = pair.shared.borrow();
    let (Some(started), Some(finished)) = (b.started, b.finished) else {
        return Err(format!(
            "{} of {messages} writes completed in {} s",
            b.completed,
            case.lasts.as_millis() / 1_000
        ));
    };
    Ok(Rate::from_bytes_in(messages * MESSAGE as u64, finished.since(started)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(mbit: u64, loss: f64, secs: u64) -> Case {
        let loss = Probability::new(loss).expect("a share");
        Case::new(Rate::from_mbit(mbit), Span::from_millis(70), loss, Span::from_secs(secs))
    }

    #[test]
    fn one_gbit_path_is_filled_at_any_random_loss() {
        for loss in [0.0, 0.001, 0.01] {
            let m = measure(&case(1_000, loss, 4)).expect("a transfer");
            assert!(m.ratio >= 0.95, "loss {loss}: {m}");
            assert!(m.feedback <= 0.01, "loss {loss}: {m}");
        }
    }

    #[test]
    fn ten_gbit_path_is_filled_at_one_percent_loss() {
        let m = measure(&case(10_000, 0.01, 3)).expect("a transfer");
        assert!(m.ratio >= 0.95 && m.feedback <= 0.01, "{m}");
    }

    #[test]
    fn gibibyte_transfer_with_startup_gets_92_percent_of_500_mbit() {
        for loss in [0.0, 0.01] {
            let case = case(500, loss, 60);
            let rate = transfer(&case, 1 << 30).expect("it ends");
            // Headers and tags take 4.5 %, losses their share.
            assert!(
                rate.bits_per_sec() as f64 >= 500e6 * (1.0 - loss) * 0.955 * 0.92,
                "loss {loss}: {rate:?}"
            );
        }
    }

    #[test]
    fn transfer_beyond_the_time_limit_is_an_error() {
        let e = transfer(&case(10, 0.0, 1), 1 << 30).expect_err("a second is not enough");
        assert!(e.contains("writes completed"), "{e}");
    }
}
