//! What two applications do in a world, and what goes wrong in it: all of it follows from the seed.

use super::tcp::{Harm, Way};
use base::{Rng, Span};
use iwarp::{Config, Placement, Rtr};

/// Work requests of an end, at most.
const MAX_JOBS: u64 = 20;
/// Bytes between ranges that nothing is to touch.
const GUARD: u64 = 16;
/// Where the word for atomic operations stands in a target region; what is behind it is free.
pub const WORD: u64 = 8;
const FIRST: u64 = 64;

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write,
    WriteImm,
    Send,
    /// A send that makes the key of a window void, which a write has used before.
    Invalidate,
    /// A write through a window.
    Through,
    Read,
    Add,
    Swap,
    /// Makes an own key void.
    Local,
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub op: Op,
    pub len: u64,
    /// First byte in the source: of the own region, for reads of the peer's.
    pub from: u64,
    /// First byte of the destination: in the peer's target, for reads and atomic operations in the own memory.
    pub to: u64,
    pub pieces: u64,
    pub solicited: bool,
    pub inline: bool,
    pub fence: bool,
    /// The receive that it consumes.
    pub slot: Option<usize>,
    /// The window that it uses.
    pub window: Option<usize>,
    /// When it is posted, counted from the start of the work.
    pub after: Span,
}

/// What an end does and has.
#[derive(Clone, Default, Debug)]
pub struct Side {
    pub config: Config,
    pub jobs: Vec<Job>,
    /// Receives: first byte in the own memory, room, and when they are posted, counted from the start of the work.
    pub slots: Vec<(u64, u64, Span)>,
    /// Windows over the own target: first byte and length.
    pub windows: Vec<(u64, u64)>,
    /// Bytes of its regions: source, target, own memory.
    pub sizes: [u64; 3],
    /// Its receives are posted to a shared queue.
    pub shared: bool,
    /// How often it is slow to read, and how long at most.
    pub lazy: (f64, Span),
}

/// What happens when a number of bytes of a stream has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The network resets the connection.
    Reset,
    /// The receiving program ends: its kernel closes the connection.
    Kill,
    /// The receiving application gives the connection up.
    Abort,
    /// It closes the connection, with work under way or not.
    Close,
    /// Its sending side is shut down, whatever it still has to send.
    HalfClose,
    /// It puts its queue pair into error.
    QpError,
    /// It deregisters its source (0) or its target (1), where nothing holds it.
    Deregister(usize),
    /// It destroys a window.
    Unbind,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// With what end `from` sends, from a position on.
    Harm(usize, u64, Harm),
    /// When so many bytes from end `from` have arrived.
    Act(usize, u64, Act),
    /// The request never comes, or the reply.
    Half(usize),
    /// The application does not answer in time.
    SlowAnswer,
    Reject,
    /// This end writes with a key that is not the peer's.
    WrongKey(usize),
    /// This end has no receives.
    NoReceives(usize),
}

/// A world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub sides: [Side; 2],
    pub ways: [Way; 2],
    pub fault: Fault,
    /// Who closes at the end.
    pub closer: usize,
    /// When a request is answered.
    pub answer: Span,
    /// Both ends use the same scratch memory.
    pub shares: bool,
    /// Both ends say how far long writes reach, as two ends of Longhaul do.
    pub announces: bool,
    /// Bytes of a write in a record with a CRC, as ends of Longhaul that check first ask for.
    pub longest_write: Option<u32>,
}

fn configs(rng: &mut Rng, crc: bool) -> [Config; 2] {
    let enhanced = rng.chance(0.8);
    let forms = [rng.chance(0.5), rng.chance(0.5), rng.chance(0.5)];
    let rtr = Rtr { send: forms[0], write: forms[1], read: forms[2] };
    let peer_to_peer = enhanced && rtr.any();
    let depth = 1 + rng.below(16) as u16;
    let crc_by = rng.below(3);
    [0, 1].map(|side: u64| {
        // Revision 1 does not negotiate depths: both ends have to be told the same.
        let mut depth_of = || if enhanced { 1 + rng.below(16) as u16 } else { depth };
        let (ird, ord) = (depth_of(), depth_of());
        Config {
            markers: rng.chance(0.3),
            crc: crc && (crc_by == 2 || crc_by == side),
            enhanced,
            ird,
            ord,
            peer_to_peer,
            rtr,
            placement: if rng.chance(0.5) { Placement::Early } else { Placement::Verified },
            emss: [150, 536, 1448, 8948, 64 << 10][rng.below(5) as usize] + rng.below(9) as usize,
            pause: Span::from_millis(if rng.chance(0.2) { 300 } else { 0 }),
            receive_wait: Span::from_secs(if rng.chance(0.4) { 5 } else { 0 }),
            ..Config::default()
        }
    })
}

fn ops(rng: &mut Rng, windows: bool) -> Vec<Op> {
    let least = 1;
    let mut open = 0;
    (0..rng.range(least, MAX_JOBS))
        .map(|_| match rng.below(10) {
            0 | 1 => Op::Write,
            2 => Op::WriteImm,
            3 | 4 => Op::Send,
            5 => Op::Read,
            6 => Op::Add,
            7 => Op::Swap,
            8 if windows => {
                open += 1;
                Op::Through
            }
            9 if windows && open > 0 => {
                open -= 1;
                if rng.chance(0.8) { Op::Invalidate } else { Op::Local }
            }
            _ => Op::Read,
        })
        .collect()
}

fn length(rng: &mut Rng, op: Op, large: bool) -> u64 {
    match op {
        Op::Add | Op::Swap => 8,
        Op::Local => 0,
        _ => match rng.below(6) {
            0 => 0,
            1..=3 => rng.below(200),
            4 => rng.below(5_000),
            _ => rng.below(if large { 80_000 } else { 9_000 }),
        },
    }
}

/// Takes `len` bytes of a region, with a guard behind them.
fn take(size: &mut u64, len: u64) -> u64 {
    let at = (*size).next_multiple_of(8);
    *size = at + len + GUARD;
    at
}

/// Work of end `me`; the places that it needs at the other are taken there.
fn work(rng: &mut Rng, sides: &mut [Side; 2], me: usize, (windows, large): (bool, bool)) {
    let you = 1 - me;
    let (mut opened, mut after) = (Vec::new(), Span::ZERO);
    for op in ops(rng, windows) {
        let len = length(rng, op, large);
        let window = match op {
            Op::Through => {
                opened.push(sides[you].windows.len());
                opened.last().copied()
            }
            Op::Invalidate => opened.pop(),
            // One of its own, which the peer does not use.
            Op::Local => {
                let at = take(&mut sides[me].sizes[1], 8);
                sides[me].windows.push((at, 8));
                Some(sides[me].windows.len() - 1)
            }
            _ => None,
        };
        let slot = matches!(op, Op::Send | Op::Invalidate | Op::WriteImm).then_some(sides[you].slots.len());
        let source = if op == Op::Read { you } else { me };
        let from = take(&mut sides[source].sizes[0], len);
        let to = match op {
            Op::Read | Op::Add | Op::Swap => take(&mut sides[me].sizes[2], len),
            Op::Write | Op::WriteImm | Op::Through => take(&mut sides[you].sizes[1], len),
            _ => 0,
        };
        if op == Op::Through {
            // A window shows one byte at least.
            sides[you].windows.push((to, len.max(1)));
        }
        if slot.is_some() {
            let bytes = if op == Op::WriteImm { 0 } else { len };
            let room = bytes + if rng.chance(0.5) { rng.below(100) } else { 0 };
            let at = take(&mut sides[you].sizes[2], room);
            // Those that come late are waited for.
            let mut due = sides[you].slots.last().map_or(Span::ZERO, |s| s.2);
            if !sides[you].config.receive_wait.is_zero() && rng.chance(0.2) {
                due += Span::from_millis(rng.below(500));
            }
            sides[you].slots.push((at, room, due));
        }
        if rng.chance(0.3) {
            after += Span::from_micros(rng.below(100_000));
        }
        let inline = len <= 1000 && rng.chance(0.2) && !matches!(op, Op::Read | Op::Add | Op::Swap);
        let (pieces, solicited, fence) = (1 + rng.below(3), rng.chance(0.3), rng.chance(0.1));
        let job = Job { op, len, from, to, pieces, solicited, inline, fence, slot, window, after };
        sides[me].jobs.push(job);
    }
}

fn ways(rng: &mut Rng, bytes: u64) -> [Way; 2] {
    let delay = Span::from_micros([10, 1_000, 40_000, 150_000][rng.below(4) as usize]);
    [0, 1].map(|_| {
        // Worlds with many bytes are not delivered one by one.
        let few = bytes < 20_000;
        let lumps: &[u64] = if few { &[1, 7, 100, 1448, 20_000] } else { &[200, 1448, 9_000, 70_000] };
        let buffers: &[u64] = if few { &[50, 1_000, 300_000] } else { &[5_000, 50_000, 1 << 20] };
        Way {
            delay,
            jitter: Span::from_nanos(rng.below(1 + delay.as_nanos() / 2)),
            lump: lumps[rng.below(lumps.len() as u64) as usize],
            buffer: buffers[rng.below(buffers.len() as u64) as usize],
            holdup: if rng.chance(0.3) { 0.02 } else { 0.0 },
        }
    })
}

/// `total` bytes are about what the streams carry.
fn fault(rng: &mut Rng, total: u64, crc: bool) -> Fault {
    let from = rng.below(2) as usize;
    // The start-up is worth as much attention as the rest.
    let most = if rng.chance(0.2) { 100 } else { 100 + total };
    let at = rng.below(most);
    match rng.below(20) {
        0..=3 => Fault::None,
        4..=6 if crc => Fault::Harm(from, at, Harm::Flip(rng.below(8) as u8)),
        7 => Fault::Harm(from, at, Harm::Drip),
        8 => Fault::Harm(from, at, Harm::Silence),
        9 => Fault::Act(from, at, Act::Reset),
        10 => Fault::Act(from, at, Act::Kill),
        11 => Fault::Act(from, at, Act::Abort),
        12 => Fault::Act(from, at, if rng.chance(0.5) { Act::Close } else { Act::QpError }),
        13 => Fault::Act(from, at, Act::HalfClose),
        14 | 15 => Fault::Act(from, at, Act::Deregister(rng.below(2) as usize)),
        16 => Fault::Act(from, at, Act::Unbind),
        17 => [Fault::Half(from), Fault::SlowAnswer, Fault::Reject][rng.below(3) as usize],
        18 => Fault::WrongKey(from),
        _ => Fault::NoReceives(from),
    }
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        let rng = &mut Rng::from_u64(seed);
        let crc = rng.chance(0.8);
        let mut sides: [Side; 2] = Default::default();
        for (side, config) in sides.iter_mut().zip(configs(rng, crc)) {
            side.config = config;
            side.sizes = [FIRST, FIRST, FIRST];
            side.shared = rng.chance(0.3);
            if rng.chance(0.3) {
                side.lazy = (0.1, Span::from_millis(1 + rng.below(300)));
            }
        }
        let shape = (rng.chance(0.6), rng.chance(0.3));
        work(rng, &mut sides, 0, shape);
        work(rng, &mut sides, 1, shape);
        let total: u64 = sides.iter().flat_map(|s| &s.jobs).map(|j| j.len + 60).sum();
        let ways = ways(rng, total);
        let fault = fault(rng, total / 2, crc);
        let answer = Span::from_millis(if fault == Fault::SlowAnswer { 11_000 } else { rng.below(100) });
        let (closer, shares) = (rng.below(2) as usize, rng.chance(0.7));
        let announces = rng.chance(0.5);
        let longest_write = rng.chance(0.3).then(|| 1 + rng.below(40_000) as u32);
        Plan { sides, ways, fault, closer, answer, shares, announces, longest_write }
    }
}

impl Plan {
    /// The job of end `side` that uses a wrong key.
    pub fn wrong_job(&self, side: usize) -> Option<usize> {
        let wrong = self.fault == Fault::WrongKey(side);
        let uses = |j: &Job| matches!(j.op, Op::Write | Op::WriteImm | Op::Read) && j.len > 0;
        self.sides[side].jobs.iter().position(uses).filter(|_| wrong)
    }
    /// Whether a damaged record may leave wrong bytes at end `side`, where its header says: its payload is placed before its
    /// CRC is known. Nothing completes with them.
    pub fn places_damage(&self, side: usize) -> bool {
        let flipped = matches!(self.fault, Fault::Harm(from, _, Harm::Flip(_)) if from != side);
        flipped && self.sides[side].config.placement == Placement::Early
    }
    /// Whether CRCs are in use.
    pub fn crc(&self) -> bool {
        self.sides.iter().any(|s| s.config.crc)
    }
}
