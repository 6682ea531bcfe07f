//! What a link is like, and how that changes over time.

use crate::Probability;
use base::{Ecn, Rate, Rng, Span, Time};

/// What a link is like. The default is a perfect one: no delay, no limit, no loss.
///
/// Written and read as text by [`LinkConfig::parse`] and `Display`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bytes on the wire per second; `None` is infinitely fast (nothing ever queues). [`Rate::ZERO`] holds
    /// packets in the queue until the rate changes.
    pub rate: Option<Rate>,
    /// Most bytes that wait, not counting the packet that is being sent. Zero is a link without a buffer.
    pub queue: u64,
    /// A policer at the entrance: what is faster than it allows is dropped and never waits. `None`: none.
    pub police: Option<Police>,
    /// When a packet of an ECN-capable transport is marked; `None`: never.
    pub ecn: Option<Marking>,
    /// The same for packets with ECT(1), as a queue for L4S marks them when it is all but empty (RFC 9332); `None`: as
    /// `ecn`.
    pub ecn1: Option<Marking>,
    /// What becomes of the ECN field on entering.
    pub ect: EctPath,
    /// Whether packets are told what the queue was like when they left it ([`Payload::stamp`](crate::Payload::stamp)).
    /// A link without a rate has nothing to tell.
    pub telemetry: bool,
    /// Propagation delay, one way.
    pub delay: Span,
    /// Random variation of the delay.
    pub jitter: Jitter,
    /// Whether jitter and changes of delay keep packets in order: one that would overtake arrives together with
    /// the packet ahead of it. Where packets follow each other faster than the jitter, this pulls the delay
    /// towards the upper end of the jitter. Deliberate [`Reorder`]ing happens all the same.
    pub keep_order: bool,
    /// Random loss at the entrance: lost packets take no room in the queue.
    pub loss: Loss,
    /// Packets that arrive late on purpose.
    pub reorder: Reorder,
    /// Probability that a packet arrives twice.
    pub duplicate: Probability,
    /// Probability that bits of a packet are flipped.
    pub corrupt: Probability,
    /// Largest packet in bytes on the wire; larger ones are dropped. `None` carries any size.
    pub mtu: Option<u64>,
    /// Changes to come, each at its time; need not be sorted. Those in the past apply at once, in order.
    pub schedule: Vec<(Time, Change)>,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            rate: None,
            queue: LinkConfig::DEFAULT_QUEUE,
            police: None,
            ecn: None,
            ecn1: None,
            ect: EctPath::Pass,
            telemetry: false,
            delay: Span::ZERO,
            jitter: Jitter::None,
            keep_order: true,
            loss: Loss::NONE,
            reorder: Reorder::default(),
            duplicate: Probability::ZERO,
            corrupt: Probability::ZERO,
            mtu: None,
            schedule: Vec::new(),
        }
    }
}

impl LinkConfig {
    /// The queue in bytes when none is asked for: 1 MiB, about that of a shallow-buffered switch port.
    pub const DEFAULT_QUEUE: u64 = 1 << 20;

    /// Largest packet of a path across networks, unless it is said otherwise: what Ethernet carries (RFC 894).
    pub const DEFAULT_MTU: u64 = 1500;

    /// A perfect link that carries packets of [`LinkConfig::DEFAULT_MTU`] bytes at most: what a path is described on top of.
    pub fn path() -> LinkConfig {
        LinkConfig { mtu: Some(LinkConfig::DEFAULT_MTU), ..LinkConfig::default() }
    }

    /// The bandwidth-delay product in bytes for a round trip of `rtt`; `None` when the rate is infinite.
    pub fn bdp(&self, rtt: Span) -> Option<u64> {
        self.rate.map(|r| r.bytes_in(rtt))
    }
}

/// A policer: a bucket of tokens that fills at a rate up to a size, of which each packet takes its bytes; one that finds too few is
/// dropped (RFC 2697, of one colour; as networks police: Flach and others, "An Internet-Wide Analysis of Traffic Policing", 2016).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Police {
    /// Bytes per second that it lets through in the long run.
    pub rate: Rate,
    /// Bytes that it lets through at once after a rest.
    pub burst: u64,
}

/// How a queue marks, by the bytes that wait ahead of a packet as it arrives: never up to `low`, always beyond `high`, and
/// between them at random, with a probability that grows in proportion from nothing to `most`. A step, as DCTCP wants it (RFC
/// 8257, section 3.1), has both in one place; DCQCN was made for a slope (Zhu et al., SIGCOMM 2015, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Bytes up to which nothing is marked.
    pub low: u64,
    /// Bytes beyond which everything is marked; not below `low`.
    pub high: u64,
    /// The probability that is reached at `high`.
    pub most: Probability,
}

impl Marking {
    /// Everything is marked that finds more than `bytes` waiting.
    pub const fn step(bytes: u64) -> Marking {
        Marking { low: bytes, high: bytes, most: Probability::ONE }
    }

    /// Whether a packet is marked that finds so many bytes waiting. Draws only where chance decides.
    pub(crate) fn marks(&self, waiting: u64, rng: &mut Rng) -> bool {
        if waiting <= self.low || waiting > self.high {
            return waiting > self.high;
        }
        let share = (waiting - self.low) as f64 / (self.high - self.low) as f64;
        rng.unit() < share * self.most.get()
    }
}

/// What a path does with the ECN field of packets, as found in networks (Bauer, Beverly and Berger, "Measuring the State of
/// ECN Readiness in Servers, Clients, and Routers", IMC 2011; RFC 9000, section 13.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum EctPath {
    /// It stays what it is.
    #[default]
    Pass,
    /// It is cleared, Congestion Experienced too.
    Bleach,
    /// Packets that are ECN-capable are dropped.
    Drop,
    /// ECT(1) becomes ECT(0).
    Ect0,
    /// ECT(0) becomes ECT(1).
    Ect1,
    /// Whatever is ECN-capable is marked Congestion Experienced.
    Ce,
}

impl EctPath {
    /// All of them.
    pub const ALL: [EctPath; 6] =
        [EctPath::Pass, EctPath::Bleach, EctPath::Drop, EctPath::Ect0, EctPath::Ect1, EctPath::Ce];

    /// Its word in descriptions of links.
    pub const fn word(self) -> &'static str {
        match self {
            EctPath::Pass => "pass",
            EctPath::Bleach => "bleach",
            EctPath::Drop => "drop",
            EctPath::Ect0 => "ect0",
            EctPath::Ect1 => "ect1",
            EctPath::Ce => "ce",
        }
    }

    /// What becomes of a field; `None`: the packet is dropped.
    pub const fn apply(self, ecn: Ecn) -> Option<Ecn> {
        Some(match (self, ecn) {
            (EctPath::Pass, _) | (EctPath::Drop, Ecn::NotEct) => ecn,
            (EctPath::Drop, _) => return None,
            (EctPath::Bleach, _) => Ecn::NotEct,
            (EctPath::Ect0, Ecn::Ect1) => Ecn::Ect0,
            (EctPath::Ect1, Ecn::Ect0) => Ecn::Ect1,
            (EctPath::Ce, Ecn::Ect0 | Ecn::Ect1) => Ecn::Ce,
            (EctPath::Ect0 | EctPath::Ect1 | EctPath::Ce, _) => ecn,
        })
    }
}

/// Random variation of the delay. A packet's delay never falls below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Jitter {
    /// Every packet takes the same time.
    #[default]
    None,
    /// Uniform between this much less and this much more.
    Uniform(Span),
    /// Normally distributed with this standard deviation, cut off at four of them on both sides.
    Normal(Span),
}

/// Random loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each packet by itself.
    Independent(Probability),
    /// In bursts.
    Burst(BurstLoss),
}

/// The Gilbert-Elliott model: a Markov chain of a good and a bad state that may change after each packet (Gilbert,
/// "Capacity of a Burst-Noise Channel", 1960; Elliott, "Estimates of Error Rates for Codes on Burst-Noise
/// Channels", 1963). It begins in the good state. `tc-netem(8)` calls `p` and `r` the same, `bad_loss` "1-h" and
/// `good_loss` "1-k".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability of going from good to bad.
    pub p: Probability,
    /// Probability of going from bad to good; the mean stay in the bad state is `1 / r` packets.
    pub r: Probability,
    /// Loss in the good state.
    pub good_loss: Probability,
    /// Loss in the bad state.
    pub bad_loss: Probability,
}

impl Loss {
    /// Nothing is lost.
    pub const NONE: Loss = Loss::Independent(Probability::ZERO);

    /// The long-run share of packets lost.
    pub fn mean(&self) -> Probability {
        match *self {
            Loss::Independent(p) => p,
            // A chain that never changes state stays in the good one, where it began.
            Loss::Burst(b) if b.p == Probability::ZERO => b.good_loss,
            Loss::Burst(b) => {
                let (p, r) = (b.p.get(), b.r.get());
                let mean = (r * b.good_loss.get() + p * b.bad_loss.get()) / (p + r);
                Probability::new(mean.clamp(0.0, 1.0)).unwrap_or(Probability::ZERO)
            }
        }
    }
}

/// Packets that arrive late on purpose, so that those behind overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Reorder {
    /// Probability that a packet is late.
    pub probability: Probability,
    /// How much later it arrives.
    pub extra: Span,
}

/// One change of a link while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Another rate, from the next bit on; what waits in the queue is sent at the new rate.
    Rate(Option<Rate>),
    /// Another propagation delay for packets that leave the queue from now on.
    Delay(Span),
    /// Another random loss.
    Loss(Loss),
    /// For this long, every packet that enters the link or leaves its queue is dropped. What is on the wire
    /// arrives.
    BlackOut(Span),
    /// Another route with this propagation delay. Unlike with [`Change::Delay`], packets on a shorter new route
    /// overtake those still on the old one.
    Path(Span),
    /// Other marking.
    Ecn(Option<Marking>),
    /// The same for ECT(1).
    Ecn1(Option<Marking>),
    /// Something else becomes of the ECN field.
    Ect(EctPath),
    /// Packets are told of the queue from now on, or are not.
    Telemetry(bool),
}
