//! What one seed means: links, options, workload and faults.

use base::{Rate, Rng, Span, Time};
use core::ops::Range;
use netem::{BurstLoss, Change, EctPath, Jitter, LinkConfig, Loss, Marking, Probability, Reorder};
use transport::crypto::Suite;
use transport::{Coupling, LaneChoice, TransportOptions};

/// Bytes of all messages of a world together at most, so that a seed takes a bounded time.
pub const MAX_BYTES: u64 = 8 << 20;
/// Longest message on an unreliable queue pair that is not a write: what the endpoint allows.
const MAX_DATAGRAM: u64 = 1_100;

/// Room of a receive of a shared queue, and so the longest message that is no write where the server has one.
pub const MAX_SHARED: u64 = 1 << 16;

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write,
    WriteImm,
    Send,
    Read,
    /// Adds to eight guard bytes what makes them the bytes of the source.
    Add,
}

/// One work request, planned.
#[derive(Clone, Debug)]
pub struct Job {
    pub op: Op,
    pub len: u64,
    /// Where the bytes come from: own source region, for reads the peer's.
    pub from: u64,
    /// Where the bytes go: the peer's target region, for reads the own.
    pub to: u64,
    /// Scatter/gather elements.
    pub pieces: u64,
    pub inline: bool,
    pub signaled: bool,
    pub fence: bool,
    /// Number among the queue pair's requests that consume a receive.
    pub recv: Option<usize>,
    /// Additions only: where in the own target region the guard bytes go.
    pub answer: u64,
}

/// A place for a receive.
#[derive(Clone, Debug)]
pub struct Slot {
    pub at: u64,
    pub room: u64,
}

/// One direction of a queue pair.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub jobs: Vec<Job>,
    /// Receives of the other end, in order.
    pub recvs: Vec<Slot>,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct QpPlan {
    /// Who opens it; nobody when it is there from the start.
    pub opener: Option<usize>,
    pub reliable: bool,
    pub cc: String,
    /// By the end that posts: 0 is the client.
    pub lanes: [Lane; 2],
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing passes, one way or both.
    BlackOut { there: bool, back: bool, lasts: Span },
    /// The client has another address.
    Rebind,
    /// One end forgets everything.
    Reboot { side: usize },
    /// Large packets vanish from now on.
    Mtu(u64),
    /// The path is longer or shorter.
    Delay(Span),
}

/// A change of congestion control that an end proposes.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// When, since the world began.
    pub at: Span,
    /// On which queue pair; `None`: on the connection.
    pub pair: Option<usize>,
    /// For what the end itself sends.
    pub sending: bool,
    pub cc: &'static str,
}

/// Everything that a seed decides.
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
    /// Receives are posted only this often; at once when zero.
    pub pause: Span,
    pub faults: Vec<(Span, Fault)>,
    /// Something hostile arrives this often.
    pub hostile: Option<Span>,
    /// Who closes.
    pub closers: [bool; 2],
    /// Whether the server's receives are shared by all its queue pairs.
    pub shared: bool,
    /// Further lanes of the client, between the same addresses: whether each is a backup.
    pub paths: Vec<bool>,
    /// What each end proposes while the connection lasts, in order.
    pub proposals: [Vec<Proposal>; 2],
    /// Whether an end reboots, so that an established connection may end before its work is done.
    pub may_end: bool,
    /// Virtual time in which everything must be done.
    pub limit: Span,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Between `lo` and `hi`, as likely in each decade.
fn spread(rng: &mut Rng, r: Range<f64>) -> f64 {
    (r.start.ln() + rng.unit() * (r.end / r.start).ln()).exp()
}

fn maybe(rng: &mut Rng, p: f64, most: f64) -> Probability {
    let x = if rng.chance(p) { spread(rng, most / 100.0..most) } else { 0.0 };
    Probability::new(x).unwrap_or(Probability::ZERO)
}

fn link(rng: &mut Rng, rate: Rate, rtt: Span, mtu: u64) -> LinkConfig {
    let delay = rtt / 2;
    let bdp = rate.bytes_in(rtt);
    let queue = (bdp as f64 * spread(rng, 0.05..4.0)) as u64;
    let loss = match rng.below(4) {
        0 => Loss::Independent(maybe(rng, 1.0, 0.05)),
        1 => Loss::Burst(BurstLoss {
            p: maybe(rng, 1.0, 0.005),
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
    // Apart from the rest, so that worlds which once failed stay as they were.
    let mut apart = Rng::from_u64(rate.bytes_per_sec() ^ queue.rotate_left(32) ^ 0x00ec_7000);
    let ect = |rng: &mut Rng| if rng.chance(0.2) { pick(rng, &EctPath::ALL) } else { EctPath::Pass };
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
        reorder: Reorder { probability: maybe(rng, 0.3, 0.1), extra: rtt / pick(rng, &[2, 8, 50]) },
        duplicate: maybe(rng, 0.3, 0.1),
        corrupt: maybe(rng, 0.3, 0.02),
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
        // The first suite of setting up is the one that every end must have.
        if !o.suites.contains(&Suite::Aes128Gcm) {
            o.suites.push(Suite::Aes128Gcm);
        }
    }
    o.idle_timeout = Span::from_secs(30);
    o
}

/// In four of ten worlds there are some. Drawn apart from the rest, so that worlds which once failed stay as they were.
fn further_paths(seed: u64) -> Vec<bool> {
    let mut rng = Rng::from_u64(seed ^ 0x0092_0000);
    let n = if rng.chance(0.4) { rng.range(1, 4) } else { 0 };
    (0..n).map(|_| rng.chance(0.3)).collect()
}

/// What each end does with several lanes, drawn apart as well.
fn lane_options(seed: u64, options: &mut [TransportOptions; 2]) {
    let mut rng = Rng::from_u64(seed ^ 0x0092_1000);
    for o in options {
        o.coupling = pick(&mut rng, &[Coupling::Auto, Coupling::Auto, Coupling::Always, Coupling::Never]);
        let choices = [LaneChoice::Aggregate, LaneChoice::Aggregate, LaneChoice::Latency, LaneChoice::Backup];
        o.lane_choice = pick(&mut rng, &choices);
    }
}

/// In half of the worlds ends wish and refuse in the handshake, and propose changes at random moments, some of them at once.
/// Drawn apart as well.
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
    let busy = spread(&mut rng, 1.0..100.0);
    for (o, list) in options.iter_mut().zip(&mut all) {
        o.negotiation.firm = rng.chance(0.3);
        o.negotiation.wish = (0..rng.below(3)).map(|_| pick(&mut rng, &SPECS).to_owned()).collect();
        if rng.chance(0.3) {
            // What no queue pair is opened with.
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
        let rate = Rate::from_bits_per_sec(spread(rng, 1e6..1e10) as u64);
        let rtt = Span::from_nanos(spread(rng, 1e5..4e8) as u64);
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
            ahead: spread(rng, 1.0..64.0) as usize,
            recv_ahead: spread(rng, 1.0..64.0) as usize,
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

    /// When and what the ends propose.
    fn negotiate(&mut self, bytes: u64) {
        let lasts = self.lasts(bytes);
        self.proposals = negotiation(self.seed, lasts, self.qps.len(), &mut self.options);
    }

    /// About how long it takes.
    fn lasts(&self, bytes: u64) -> Span {
        let slowest = self.links.iter().filter_map(|l| l.rate).min().unwrap_or(Rate::from_mbit(10_000));
        slowest.time_for(bytes) + self.rtt * 10
    }

    /// Whether the receives of an end come from a shared queue.
    pub fn shares(&self, side: usize) -> bool {
        self.shared && side == 1
    }

    /// Another connection in the same world, between other ends or the same, with at most so many bytes.
    pub fn beside(&self, number: u64, most: u64) -> Plan {
        let mut rng = Rng::from_u64(self.seed ^ 0xbe51_de00 ^ number << 40);
        let rng = &mut rng;
        let mut plan = self.clone();
        plan.seed ^= number << 48;
        plan.options[0].cc = pick(rng, &["bbr", "cubic", "reno"]).into();
        plan.options[0].max_packet = pick(rng, &[1_280, 1_500, 9_000]);
        let initial = usize::from(plan.options[1].initial_qps);
        plan.qps = further_pairs(rng, initial, plan.options[1].reliable);
        (plan.source, plan.target) = ([1 << 16; 2], [64; 2]);
        plan.ahead = spread(rng, 1.0..64.0) as usize;
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
        // On slow paths less is sent, or the virtual time would be all keep-alives and feedback.
        let budget = most.min(slowest.unwrap_or(u64::MAX).saturating_mul(20));
        let budget = spread(rng, 1e4..budget as f64) as u64;
        let typical = spread(rng, 1.0..budget as f64);
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
            // The place of the bytes, with a gap of guard bytes before it; for sends it is that of the receive.
            let taker = if op == Op::Read { side } else { 1 - side };
            let mut place = |room: u64, rng: &mut Rng| {
                let at = target[taker] + rng.range(1, 64);
                target[taker] = at + room + 64;
                at
            };
            let lane = &mut qp.lanes[side];
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

    /// In four of ten worlds reliable queue pairs end with a few atomic operations. Drawn apart as well.
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
            self.qps[i].lanes[side].jobs.push(job);
        }
    }

    fn add_faults(&mut self, rng: &mut Rng, bytes: u64) {
        let lasts = self.lasts(bytes);
        while rng.chance(0.4) && self.faults.len() < 6 {
            let at = Span::from_nanos(rng.below(lasts.as_nanos().max(1)));
            let fault = match rng.below(10) {
                0..=3 => {
                    let (there, back) = pick(rng, &[(true, true), (true, false), (false, true)]);
                    let lasts = Span::from_nanos(spread(rng, 1e6..4e9) as u64);
                    Fault::BlackOut { there, back, lasts }
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
        // Reno at 5 % loss and worse has a few packets in flight.
        let crawl = self.rtt * 3 * (bytes / 1_200 + 200);
        let posts = self.qps.iter().flat_map(|q| &q.lanes).map(|l| l.jobs.len() as u64).sum::<u64>();
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

/// Those from the start, and some that one of the ends opens later.
fn further_pairs(rng: &mut Rng, initial: usize, reliable: bool) -> Vec<QpPlan> {
    let plan =
        |opener, reliable, cc: &str| QpPlan { opener, reliable, cc: cc.into(), lanes: Default::default() };
    let mut qps: Vec<_> = (0..initial).map(|_| plan(None, reliable, "")).collect();
    while rng.chance(0.4) && qps.len() < 12 {
        let cc = pick(rng, &["", "", "cubic", "fixed:rate=20M"]);
        qps.push(plan(Some(rng.below(2) as usize), rng.chance(0.7), cc));
    }
    qps
}
