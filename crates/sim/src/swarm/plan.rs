//! The plan of a simulation, derived from its seed: links, options, workload and faults.

use base::{Rate, Rng, Span, Time};
use core::ops::Range;
use netem::{BurstLoss, Change, EcnHandling, Jitter, LinkConfig, Loss, Marking, Probability, Reorder};
use transport::crypto::Suite;
use transport::{Coupling, LaneChoice, TransportOptions};

/// Most bytes of all messages of a simulation together, so that a seed takes a bounded time.
pub const MAX_BYTES: u64 = 8 << 20;
/// Longest message on an unreliable queue pair other than a Write, as limited by the endpoint.
const MAX_DATAGRAM: u64 = 1_100;

/// Size of a receive of a shared queue, and so the longest message other than a Write where the server has one.
pub const MAX_SHARED: u64 = 1 << 16;

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write,
    WriteImm,
    Send,
    Read,
    /// Adds to eight guard bytes so that they become the bytes of the source.
    Add,
}

/// A planned work request.
#[derive(Clone, Debug)]
pub struct Job {
    pub op: Op,
    pub len: u64,
    /// Offset of the bytes in the source region: the own one, or for reads the peer's.
    pub from: u64,
    /// Offset of the destination in the target region: the peer's, or for reads the own one.
    pub to: u64,
    /// Scatter/gather elements.
    pub pieces: u64,
    pub inline: bool,
    pub signaled: bool,
    pub fence: bool,
    /// Index among the queue pair's requests that consume a receive.
    pub recv: Option<usize>,
    /// For additions, the offset in the own target region for the original bytes.
    pub answer: u64,
}

/// A buffer for a receive.
#[derive(Clone, Debug)]
pub struct Slot {
    pub at: u64,
    pub room: u64,
}

/// One direction of a queue pair.
#[derive(Clone, Debug, Default)]
pub struct QpDirection {
    pub jobs: Vec<Job>,
    /// Receives of the other end, in order.
    pub recvs: Vec<Slot>,
}

/// The plan of a queue pair.
#[derive(Clone, Debug)]
pub struct QpPlan {
    /// The end that opens it; `None` if it exists from the start.
    pub opener: Option<usize>,
    pub reliable: bool,
    pub cc: String,
    /// By the end that posts: 0 is the client.
    pub directions: [QpDirection; 2],
}

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing passes, in one direction or both.
    BlackOut { forward: bool, reverse: bool, lasts: Span },
    /// The client's address changes.
    Rebind,
    /// One end reboots.
    Reboot { side: usize },
    /// Packets larger than this are dropped from now on.
    Mtu(u64),
    /// The delay of the path changes.
    Delay(Span),
}

/// A change of congestion control that an end proposes.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// When, after the start of the simulation.
    pub at: Span,
    /// The queue pair; `None`: the connection.
    pub pair: Option<usize>,
    /// Whether it is for the end's own sending.
    pub sending: bool,
    pub cc: &'static str,
}

/// Everything that a seed determines.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub links: [LinkConfig; 2],
    pub rtt: Span,
    pub slack: Span,
    pub options: [TransportOptions; 2],
    pub qps: Vec<QpPlan>,
    /// Bytes of the source and target regions of each end.
    pub source: [u64; 2],
    pub target: [u64; 2],
    /// Work requests and receives posted ahead.
    pub ahead: usize,
    pub recv_ahead: usize,
    /// Interval at which receives are posted; zero: at once.
    pub pause: Span,
    pub faults: Vec<(Span, Fault)>,
    /// Mean interval of hostile datagrams.
    pub hostile: Option<Span>,
    /// The ends that close.
    pub closers: [bool; 2],
    /// Whether all queue pairs of the server share their receives.
    pub shared: bool,
    /// Additional lanes of the client, between the same addresses: whether each is a backup.
    pub paths: Vec<bool>,
    /// The proposals of each end, in order.
    pub proposals: [Vec<Proposal>; 2],
    /// Whether an end reboots, so that an established connection may end before its work is done.
    pub may_end: bool,
    /// Virtual time within which everything must be done.
    pub limit: Span,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// A random number in a range, uniform in its logarithm.
fn log_uniform(rng: &mut Rng, r: Range<f64>) -> f64 {
    (r.start.ln() + rng.unit() * (r.end / r.start).ln()).exp()
}

fn maybe_probability(rng: &mut Rng, p: f64, most: f64) -> Probability {
    let x = if rng.chance(p) { log_uniform(rng, most / 100.0..most) } else { 0.0 };
    Probability::new(x).unwrap_or(Probability::ZERO)
}

fn link(rng: &mut Rng, rate: Rate, rtt: Span, mtu: u64) -> LinkConfig {
    let delay = rtt / 2;
    let bdp = rate.bytes_in(rtt);
    let queue = (bdp as f64 * log_uniform(rng, 0.05..4.0)) as u64;
    let loss = match rng.below(4) {
        0 => Loss::Independent(maybe_probability(rng, 1.0, 0.05)),
        1 => Loss::Burst(BurstLoss {
            p: maybe_probability(rng, 1.0, 0.005),
            r: Probability::new(0.1 + 0.4 * rng.unit()).unwrap_or(Probability::ONE),
            good_loss: Probability::ZERO,
            bad_loss: Probability::new(0.5 + 0.5 * rng.unit()).unwrap_or(Probability::ONE),
        }),
        _ => Loss::NONE,
    };
    let jitter = match rng.below(6) {
        0 => Jitter::Uniform(delay / pick(rng, &[2, 10, 100])),
        1 => Jitter::Normal(delay / pick(rng, &[20, 100])),
        _ => Jitter::None,
    };
    // Drawn from a separate generator, so that regression seeds keep their plans.
    let mut apart = Rng::from_u64(rate.bytes_per_sec() ^ queue.rotate_left(32) ^ 0x00ec_7000);
    let ect = |rng: &mut Rng| if rng.chance(0.2) { pick(rng, &EcnHandling::ALL) } else { EcnHandling::Pass };
    LinkConfig {
        ecn1: apart.chance(0.2).then_some(Marking::step(4 * mtu)),
        ect: ect(&mut apart),
        telemetry: apart.chance(0.3),
        rate: (!rng.chance(0.05)).then_some(rate),
        queue: queue.max(8 * mtu),
        police: None,
        ecn: rng.chance(0.2).then_some(Marking::step(queue.max(8 * mtu) / 2)),
        delay,
        jitter,
        keep_order: rng.chance(0.7),
        loss,
        reorder: Reorder {
            probability: maybe_probability(rng, 0.3, 0.1),
            extra: rtt / pick(rng, &[2, 8, 50]),
        },
        duplicate: maybe_probability(rng, 0.3, 0.1),
        corrupt: maybe_probability(rng, 0.3, 0.02),
        mtu: Some(mtu),
        schedule: vec![(Time::ZERO + rtt * apart.range(3, 60), Change::Ect(ect(&mut apart)))],
    }
}

fn options(rng: &mut Rng, module: wire::Module, suite: usize) -> TransportOptions {
    let mut o = TransportOptions { module, ..TransportOptions::default() };
    o.cc = pick(rng, &["bbr", "bbr", "bbr", "cubic", "reno"]).into();
    o.max_packet = pick(rng, &[1_280, 1_500, 1_500, 9_000, 65_535]);
    if module == wire::Module::Aead {
        let n = o.suites.len().max(1);
        o.suites.rotate_left(suite % n);
        // The first setup suite is mandatory.
        if !o.suites.contains(&Suite::Aes128Gcm) {
            o.suites.push(Suite::Aes128Gcm);
        }
    }
    o.idle_timeout = Span::from_secs(30);
    o
}

/// Additional paths, in four of ten simulations. Drawn from a separate generator, so that regression seeds keep their
/// plans.
fn further_paths(seed: u64) -> Vec<bool> {
    let mut rng = Rng::from_u64(seed ^ 0x0092_0000);
    let n = if rng.chance(0.4) { rng.range(1, 4) } else { 0 };
    (0..n).map(|_| rng.chance(0.3)).collect()
}

/// Lane options of each end, from a separate generator as well.
fn lane_options(seed: u64, options: &mut [TransportOptions; 2]) {
    let mut rng = Rng::from_u64(seed ^ 0x0092_1000);
    for o in options {
        o.coupling = pick(&mut rng, &[Coupling::Auto, Coupling::Auto, Coupling::Always, Coupling::Never]);
        let choices = [LaneChoice::Aggregate, LaneChoice::Aggregate, LaneChoice::Latency, LaneChoice::Backup];
        o.lane_choice = pick(&mut rng, &choices);
    }
}

/// In half of the simulations ends state preferences and refusals in the handshake, and propose changes at random
/// times. From a separate generator as well.
fn negotiation(
    seed: u64,
    lasts: Span,
    pairs: usize,
    options: &mut [TransportOptions; 2],
) -> [Vec<Proposal>; 2] {
    const SPECS: [&str; 7] = ["bbr", "cubic", "reno", "vegas", "copa", "haul", "cubic:hystart=off"];
    let mut rng = Rng::from_u64(seed ^ 0x0092_2000);
    let mut all: [Vec<Proposal>; 2] = Default::default();
    if rng.chance(0.5) {
        return all;
    }
    let busy = log_uniform(&mut rng, 1.0..100.0);
    for (o, list) in options.iter_mut().zip(&mut all) {
        o.negotiation.prefer_own = rng.chance(0.3);
        o.negotiation.preferred = (0..rng.below(3)).map(|_| pick(&mut rng, &SPECS).to_owned()).collect();
        if rng.chance(0.3) {
            // Algorithms with which no queue pair is opened.
            o.negotiation.refuse = vec!["vegas".to_owned()];
        }
        for _ in 0..rng.below(busy as u64 + 1) {
            let at = Span::from_nanos(rng.below(lasts.as_nanos().max(1)));
            let pair = rng.chance(0.6).then(|| rng.below(pairs as u64) as usize);
            list.push(Proposal { at, pair, sending: rng.chance(0.5), cc: pick(&mut rng, &SPECS) });
        }
        list.sort_by_key(|p| p.at);
    }
    all
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Plan {
        let mut rng = Rng::from_u64(seed ^ 0x5eed_0000);
        let rng = &mut rng;
        let rate = Rate::from_bits_per_sec(log_uniform(rng, 1e6..1e10) as u64);
        let rtt = Span::from_nanos(log_uniform(rng, 1e5..4e8) as u64);
        let mtu = pick(rng, &[1_280, 1_400, 1_500, 1_500, 1_500, 4_352, 9_000]);
        let slower = Rate::from_bits_per_sec(rate.bits_per_sec() / pick(rng, &[1, 1, 2, 10]).max(1));
        let links = [link(rng, rate, rtt, mtu), link(rng, slower.max(Rate::from_mbit(1)), rtt, mtu)];
        let module = pick(
            rng,
            &[wire::Module::Aead, wire::Module::Aead, wire::Module::Integrity, wire::Module::Crc32c],
        );
        let suite = rng.below(8) as usize;
        let mut options = [options(rng, module, suite), options(rng, module, suite)];
        lane_options(seed, &mut options);
        let qps = queue_pairs(rng, &mut options);
        let mut plan = Plan {
            seed,
            links,
            rtt,
            slack: Span::from_micros(pick(rng, &[1, 5, 20, 50, 200])),
            options,
            qps,
            source: [1 << 16, 1 << 16],
            target: [64, 64],
            ahead: log_uniform(rng, 1.0..64.0) as usize,
            recv_ahead: log_uniform(rng, 1.0..64.0) as usize,
            pause: if rng.chance(0.2) { Span::from_micros(rng.range(100, 20_000)) } else { Span::ZERO },
            faults: Vec::new(),
            hostile: rng.chance(0.3).then(|| Span::from_micros(rng.range(200, 50_000))),
            closers: pick(rng, &[[true, false], [false, true], [true, true]]),
            shared: Rng::from_u64(seed ^ 0x5a5a_0000).chance(0.4),
            paths: further_paths(seed),
            proposals: Default::default(),
            may_end: false,
            limit: Span::ZERO,
        };
        let bytes = plan.jobs(rng, MAX_BYTES);
        plan.add_atomics();
        plan.add_faults(rng, bytes);
        plan.may_end = plan.faults.iter().any(|(_, f)| matches!(f, Fault::Reboot { .. }));
        plan.limit = plan.time_limit(bytes);
        plan.negotiate(bytes);
        plan
    }

    /// Plans the ends' proposals.
    fn negotiate(&mut self, bytes: u64) {
        let lasts = self.lasts(bytes);
        self.proposals = negotiation(self.seed, lasts, self.qps.len(), &mut self.options);
    }

    /// The approximate duration.
    fn lasts(&self, bytes: u64) -> Span {
        let slowest = self.links.iter().filter_map(|l| l.rate).min().unwrap_or(Rate::from_mbit(10_000));
        slowest.time_for(bytes) + self.rtt * 10
    }

    /// Whether an end's receives come from a shared queue.
    pub fn uses_shared_receives(&self, side: usize) -> bool {
        self.shared && side == 1
    }

    /// The plan of another connection in the same simulation, between other ends or the same, with at most `most`
    /// bytes.
    pub fn additional_plan(&self, number: u64, most: u64) -> Plan {
        let mut rng = Rng::from_u64(self.seed ^ 0xbe51_de00 ^ number << 40);
        let rng = &mut rng;
        let mut plan = self.clone();
        plan.seed ^= number << 48;
        plan.options[0].cc = pick(rng, &["bbr", "cubic", "reno"]).into();
        plan.options[0].max_packet = pick(rng, &[1_280, 1_500, 9_000]);
        let initial = usize::from(plan.options[1].initial_qps);
        plan.qps = further_pairs(rng, initial, plan.options[1].reliable);
        (plan.source, plan.target) = ([1 << 16; 2], [64; 2]);
        plan.ahead = log_uniform(rng, 1.0..64.0) as usize;
        plan.closers = pick(rng, &[[true, false], [false, true], [true, true]]);
        let bytes = plan.jobs(rng, most);
        plan.add_atomics();
        plan.limit = plan.time_limit(bytes);
        plan.negotiate(bytes);
        plan
    }

    fn jobs(&mut self, rng: &mut Rng, most: u64) -> u64 {
        let shared = self.shared;
        let slowest = self.links.iter().filter_map(|l| l.rate).map(Rate::bytes_per_sec).min();
        // On slow paths less is sent, since most of the virtual time would be keep-alives and feedback.
        let budget = most.min(slowest.unwrap_or(u64::MAX).saturating_mul(20));
        let budget = log_uniform(rng, 1e4..budget as f64) as u64;
        let typical = log_uniform(rng, 1.0..budget as f64);
        let (source, target) = (&mut self.source, &mut self.target);
        let mut total = 0;
        let (n, qps) = (rng.range(1, 80), self.qps.len() as u64);
        for _ in 0..n {
            let side = rng.below(2) as usize;
            let qp = &mut self.qps[rng.below(qps) as usize];
            let ops = [Op::Write, Op::Write, Op::WriteImm, Op::Send, Op::Read];
            let op = pick(rng, if qp.reliable { &ops } else { &ops[..4] });
            let mut len = match rng.below(10) {
                0 => 0,
                1..=7 => (rng.unit() * typical) as u64,
                _ => rng.below(200),
            };
            if !qp.reliable && op == Op::Send {
                len = len.min(rng.below(MAX_DATAGRAM + 1));
            }
            if shared && side == 0 && op == Op::Send {
                len = len.min(MAX_SHARED);
            }
            if total + len > budget {
                continue;
            }
            total += len;
            let inline = op != Op::Read && len <= 1_000 && rng.chance(0.3);
            let owner = if op == Op::Read { 1 - side } else { side };
            source[owner] = source[owner].max(len + 1);
            let from = rng.below(source[owner] - len);
            // The destination, after a gap of guard bytes; for sends it is that of the receive.
            let taker = if op == Op::Read { side } else { 1 - side };
            let mut place = |room: u64, rng: &mut Rng| {
                let at = target[taker] + rng.range(1, 64);
                target[taker] = at + room + 64;
                at
            };
            let lane = &mut qp.directions[side];
            let (to, recv) = match op {
                Op::Write | Op::Read | Op::Add => (place(len, rng), None),
                Op::WriteImm => {
                    let room = rng.below(64);
                    let room = if qp.reliable { room } else { MAX_DATAGRAM };
                    lane.recvs.push(Slot { at: place(room, rng), room });
                    (place(len, rng), Some(lane.recvs.len() - 1))
                }
                Op::Send => {
                    let room = if qp.reliable { len + rng.below(64) } else { MAX_DATAGRAM };
                    let at = place(room, rng);
                    lane.recvs.push(Slot { at, room });
                    (at, Some(lane.recvs.len() - 1))
                }
            };
            let pieces = rng.range(1, 5);
            let (signaled, fence) = (rng.chance(0.8), rng.chance(0.1));
            lane.jobs.push(Job { op, len, from, to, pieces, inline, signaled, fence, recv, answer: 0 });
        }
        total
    }

    /// In four of ten simulations reliable queue pairs end with some atomic operations. From a separate generator as
    /// well.
    fn add_atomics(&mut self) {
        let mut rng = Rng::from_u64(self.seed ^ 0xa703_1c00);
        let rng = &mut rng;
        let n = if rng.chance(0.4) { rng.range(1, 30) } else { 0 };
        for _ in 0..n {
            let side = rng.below(2) as usize;
            let i = rng.below(self.qps.len() as u64) as usize;
            if !self.qps[i].reliable {
                continue;
            }
            self.source[side] = self.source[side].max(9);
            let from = rng.below(self.source[side] - 8);
            let mut place = |owner: usize| {
                let at = self.target[owner].next_multiple_of(8) + 64;
                self.target[owner] = at + 64;
                at
            };
            let (to, answer) = (place(1 - side), place(side));
            let (pieces, signaled, fence) = (rng.range(1, 5), rng.chance(0.8), rng.chance(0.1));
            let (op, len, inline, recv) = (Op::Add, 8, false, None);
            let job = Job { op, len, from, to, pieces, inline, signaled, fence, recv, answer };
            self.qps[i].directions[side].jobs.push(job);
        }
    }

    fn add_faults(&mut self, rng: &mut Rng, bytes: u64) {
        let lasts = self.lasts(bytes);
        while rng.chance(0.4) && self.faults.len() < 6 {
            let at = Span::from_nanos(rng.below(lasts.as_nanos().max(1)));
            let fault = match rng.below(10) {
                0..=3 => {
                    let (forward, reverse) = pick(rng, &[(true, true), (true, false), (false, true)]);
                    let lasts = Span::from_nanos(log_uniform(rng, 1e6..4e9) as u64);
                    Fault::BlackOut { forward, reverse, lasts }
                }
                4 | 5 => Fault::Rebind,
                6 => Fault::Reboot { side: rng.below(2) as usize },
                7 => Fault::Mtu(1_280),
                _ => Fault::Delay(self.rtt / 2 * rng.range(1, 4) / rng.range(1, 4)),
            };
            self.faults.push((at, fault));
        }
    }

    fn time_limit(&self, bytes: u64) -> Span {
        let slowest = self.links.iter().filter_map(|l| l.rate).min().unwrap_or(Rate::from_mbit(10_000));
        // At 5 % loss and more Reno has a few packets in flight.
        let crawl = self.rtt * 3 * (bytes / 1_200 + 200);
        let posts = self.qps.iter().flat_map(|q| &q.directions).map(|l| l.jobs.len() as u64).sum::<u64>();
        slowest.time_for(bytes * 10) + crawl + self.pause * (posts + 10) + Span::from_secs(300)
    }
}

fn queue_pairs(rng: &mut Rng, options: &mut [TransportOptions; 2]) -> Vec<QpPlan> {
    let initial = rng.range(1, 5);
    let reliable = rng.chance(0.8);
    for o in options {
        o.initial_qps = initial as u16;
        o.reliable = reliable;
    }
    further_pairs(rng, initial as usize, reliable)
}

/// The initial queue pairs, and some that an end opens later.
fn further_pairs(rng: &mut Rng, initial: usize, reliable: bool) -> Vec<QpPlan> {
    let plan = |opener, reliable, cc: &str| QpPlan {
        opener,
        reliable,
        cc: cc.into(),
        directions: Default::default(),
    };
    let mut qps: Vec<_> = (0..initial).map(|_| plan(None, reliable, "")).collect();
    while rng.chance(0.4) && qps.len() < 12 {
        let cc = pick(rng, &["", "", "cubic", "fixed:rate=20M"]);
        qps.push(plan(Some(rng.below(2) as usize), rng.chance(0.7), cc));
    }
    qps
}
