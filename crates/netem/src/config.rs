//! The properties of a link and their scheduled changes.

use crate::Probability;
use base::{Ecn, Rate, Rng, Span, Time};

/// The properties of one direction of a link. The default is a perfect link: no delay, no limit, no loss.
///
/// Written and read as text by [`LinkConfig::parse`] and `Display`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bytes on the wire per second; `None` is infinitely fast (nothing ever queues). [`Rate::ZERO`] holds
    /// packets in the queue until the rate changes.
    pub rate: Option<Rate>,
    /// Most bytes in the queue, not counting the packet being sent. Zero is a link without a buffer.
    pub queue: u64,
    /// A policer at the entrance, which drops packets above its rate without queueing. `None`: no policer.
    pub police: Option<PolicerConfig>,
    /// When a packet with ECT is marked; `None`: never.
    pub ecn: Option<Marking>,
    /// Marking of packets with ECT(1), for example the almost empty queue of L4S (RFC 9332); `None`: as `ecn`.
    pub ecn1: Option<Marking>,
    /// What happens to the ECN field as a packet enters the link.
    pub ect: EcnHandling,
    /// Whether the queue's state is written into packets that leave it
    /// ([`Payload::stamp`](crate::Payload::stamp)). Needs a rate.
    pub telemetry: bool,
    /// Propagation delay, one way.
    pub delay: Span,
    /// Random variation of the delay.
    pub jitter: Jitter,
    /// Whether jitter and changes of delay preserve order: a packet that would overtake arrives together with the
    /// one ahead of it. Where packets follow each other faster than the jitter, this moves the delay towards the
    /// upper end of the jitter. Deliberate [`Reorder`]ing is not affected.
    pub keep_order: bool,
    /// Random loss at the entrance: lost packets take no room in the queue.
    pub loss: Loss,
    /// Deliberate reordering.
    pub reorder: Reorder,
    /// Probability that a packet arrives twice.
    pub duplicate: Probability,
    /// Probability that bits of a packet are flipped.
    pub corrupt: Probability,
    /// Largest packet in bytes on the wire; larger ones are dropped. `None` carries any size.
    pub mtu: Option<u64>,
    /// Scheduled changes in any order. Those in the past apply at once, in order of time.
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
            ect: EcnHandling::Pass,
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
    /// The default queue: 1 MiB, about that of a shallow-buffered switch port.
    pub const DEFAULT_QUEUE: u64 = 1 << 20;

    /// The default MTU of a path: that of Ethernet (RFC 894).
    pub const DEFAULT_MTU: u64 = 1500;

    /// A perfect link with an MTU of [`LinkConfig::DEFAULT_MTU`], the basis of descriptions of paths.
    pub fn path() -> LinkConfig {
        LinkConfig { mtu: Some(LinkConfig::DEFAULT_MTU), ..LinkConfig::default() }
    }

    /// The bandwidth-delay product in bytes for a round trip of `rtt`; `None` when the rate is infinite.
    pub fn bdp(&self, rtt: Span) -> Option<u64> {
        self.rate.map(|r| r.bytes_in(rtt))
    }
}

/// A policer as a single-colour token bucket (RFC 2697), the kind found in networks (Flach and others, "An
/// Internet-Wide Analysis of Traffic Policing", 2016). A packet for which there are too few tokens is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicerConfig {
    /// The long-run rate that it admits.
    pub rate: Rate,
    /// The size of the bucket in bytes, which is the burst it admits when full.
    pub burst: u64,
}

/// ECN marking by the bytes queued ahead of an arriving packet: none up to `low`, all above `high`, and between
/// them with a probability that grows linearly to `max_probability`. DCTCP needs a step, where `low` equals `high`
/// (RFC 8257, section 3.1); DCQCN was designed for a slope (Zhu et al., SIGCOMM 2015, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Queue length in bytes up to which nothing is marked.
    pub low: u64,
    /// Queue length in bytes above which everything is marked; at least `low`.
    pub high: u64,
    /// The probability reached at `high`.
    pub max_probability: Probability,
}

impl Marking {
    /// Marks every packet that finds more than `bytes` queued.
    pub const fn step(bytes: u64) -> Marking {
        Marking { low: bytes, high: bytes, max_probability: Probability::ONE }
    }

    /// Whether a packet that finds `waiting` bytes queued is marked. Draws a random number only between the
    /// thresholds.
    pub(crate) fn marks(&self, waiting: u64, rng: &mut Rng) -> bool {
        if waiting <= self.low || waiting > self.high {
            return waiting > self.high;
        }
        let share = (waiting - self.low) as f64 / (self.high - self.low) as f64;
        rng.unit() < share * self.max_probability.get()
    }
}

/// What a path does to the ECN field, as observed in networks (Bauer, Beverly and Berger, "Measuring the State of
/// ECN Readiness in Servers, Clients, and Routers", IMC 2011; RFC 9000, section 13.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum EcnHandling {
    /// The field is left as it is.
    #[default]
    Pass,
    /// The field is cleared, also from Congestion Experienced.
    Bleach,
    /// ECN-capable packets are dropped.
    Drop,
    /// ECT(1) becomes ECT(0).
    Ect0,
    /// ECT(0) becomes ECT(1).
    Ect1,
    /// Every ECN-capable packet is marked Congestion Experienced.
    Ce,
}

impl EcnHandling {
    /// All kinds.
    pub const ALL: [EcnHandling; 6] = [
        EcnHandling::Pass,
        EcnHandling::Bleach,
        EcnHandling::Drop,
        EcnHandling::Ect0,
        EcnHandling::Ect1,
        EcnHandling::Ce,
    ];

    /// Its name in descriptions of links.
    pub const fn name(self) -> &'static str {
        match self {
            EcnHandling::Pass => "pass",
            EcnHandling::Bleach => "bleach",
            EcnHandling::Drop => "drop",
            EcnHandling::Ect0 => "ect0",
            EcnHandling::Ect1 => "ect1",
            EcnHandling::Ce => "ce",
        }
    }

    /// The field after the path; `None`: the packet is dropped.
    pub const fn apply(self, ecn: Ecn) -> Option<Ecn> {
        Some(match (self, ecn) {
            (EcnHandling::Pass, _) | (EcnHandling::Drop, Ecn::NotEct) => ecn,
            (EcnHandling::Drop, _) => return None,
            (EcnHandling::Bleach, _) => Ecn::NotEct,
            (EcnHandling::Ect0, Ecn::Ect1) => Ecn::Ect0,
            (EcnHandling::Ect1, Ecn::Ect0) => Ecn::Ect1,
            (EcnHandling::Ce, Ecn::Ect0 | Ecn::Ect1) => Ecn::Ce,
            (EcnHandling::Ect0 | EcnHandling::Ect1 | EcnHandling::Ce, _) => ecn,
        })
    }
}

/// Random variation of the delay. A packet's delay never falls below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Jitter {
    /// No variation.
    #[default]
    None,
    /// Uniform between minus and plus this span.
    Uniform(Span),
    /// Normal with this standard deviation, cut off at four standard deviations.
    Normal(Span),
}

/// Random loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Independent loss of each packet.
    Independent(Probability),
    /// Loss in bursts.
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
    /// No loss.
    pub const NONE: Loss = Loss::Independent(Probability::ZERO);

    /// The long-run share of lost packets.
    pub fn mean(&self) -> Probability {
        match *self {
            Loss::Independent(p) => p,
            // A chain that never changes state stays in the good one, where it starts.
            Loss::Burst(b) if b.p == Probability::ZERO => b.good_loss,
            Loss::Burst(b) => {
                let (p, r) = (b.p.get(), b.r.get());
                let mean = (r * b.good_loss.get() + p * b.bad_loss.get()) / (p + r);
                Probability::new(mean.clamp(0.0, 1.0)).unwrap_or(Probability::ZERO)
            }
        }
    }
}

/// Deliberate delay of some packets, so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Reorder {
    /// Probability that a packet is late.
    pub probability: Probability,
    /// How much later it arrives.
    pub extra: Span,
}

/// One change of a running link.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new rate from the next bit on, also for packets already queued.
    Rate(Option<Rate>),
    /// A new propagation delay for packets that leave the queue from now on.
    Delay(Span),
    /// A new model of random loss.
    Loss(Loss),
    /// For this long, every packet that enters the link or leaves its queue is dropped. Packets on the wire still
    /// arrive.
    BlackOut(Span),
    /// A new route with this propagation delay. Unlike with [`Change::Delay`], packets on a shorter new route
    /// overtake those on the old one.
    Path(Span),
    /// New marking of ECN.
    Ecn(Option<Marking>),
    /// New marking of ECT(1).
    Ecn1(Option<Marking>),
    /// New handling of the ECN field.
    Ect(EcnHandling),
    /// Telemetry on or off.
    Telemetry(bool),
}
