//! The plan of a simulation, derived from its seed: the work of both applications, and the fault.

use super::tcp::{DirectionConfig, StreamFault};
use base::{Rng, Span};
use iwarp::{Config, Placement, Rtr};

/// Most work requests of an end.
const MAX_JOBS: u64 = 20;
/// Bytes between ranges that must not change.
const GUARD: u64 = 16;
/// Offset of the word for atomic operations in a target region, and the first free byte.
pub const WORD: u64 = 8;
const FIRST: u64 = 64;

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write,
    WriteImm,
    Send,
    /// A send that invalidates the key of a window that an earlier write used.
    SendInvalidate,
    /// A write through a window.
    WriteThroughWindow,
    Read,
    Add,
    Swap,
    /// Invalidates an own key.
    LocalInvalidate,
}

/// A planned work request.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub op: Op,
    pub len: u64,
    /// First byte in the source: of the own region, or for reads of the peer's.
    pub from: u64,
    /// First byte of the destination: in the peer's target, or for reads and atomic operations in the own memory.
    pub to: u64,
    pub pieces: u64,
    pub solicited: bool,
    pub inline: bool,
    pub fence: bool,
    /// The receive that it consumes.
    pub slot: Option<usize>,
    /// The window that it uses.
    pub window: Option<usize>,
    /// When it is posted, after the start of work.
    pub after: Span,
}

/// The plan of one end.
#[derive(Clone, Default, Debug)]
pub struct Side {
    pub config: Config,
    pub jobs: Vec<Job>,
    /// Receives: first byte in the own memory, length, and when they are posted after the start of work.
    pub slots: Vec<(u64, u64, Span)>,
    /// Windows over the own target: first byte and length.
    pub windows: Vec<(u64, u64)>,
    /// Bytes of its regions: source, target, own memory.
    pub sizes: [u64; 3],
    /// Whether its receives are posted to a shared queue.
    pub shared: bool,
    /// Probability of a slow reading, and its longest duration.
    pub slow_reads: (f64, Span),
}

/// An action when a number of bytes of a stream has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The network resets the connection.
    Reset,
    /// The receiving program ends: its kernel closes the connection.
    Kill,
    /// The receiving application gives the connection up.
    Abort,
    /// It closes the connection, with or without work in progress.
    Close,
    /// It shuts down its sending side, regardless of what it still has to send.
    HalfClose,
    /// It sets its queue pair to the error state.
    QpError,
    /// It deregisters its source (0) or its target (1), if that is not in use.
    Deregister(usize),
    /// It destroys a window.
    Unbind,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// A fault of the stream from end `from`, from a position on.
    OnStream(usize, u64, StreamFault),
    /// An action when this many bytes from end `from` have arrived.
    Action(usize, u64, Action),
    /// The request or the reply never arrives.
    Unanswered(usize),
    /// The application does not answer in time.
    SlowAnswer,
    Reject,
    /// This end writes with a wrong key.
    WrongKey(usize),
    /// This end posts no receives.
    NoReceives(usize),
}

/// The plan of a simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub sides: [Side; 2],
    pub directions: [DirectionConfig; 2],
    pub fault: Fault,
    /// The end that closes.
    pub closer: usize,
    /// When a request is answered.
    pub answer: Span,
    /// Whether both ends use the same scratch memory.
    pub shares: bool,
    /// Whether both ends announce the extent of long writes, as two ends of Longhaul do.
    pub announces: bool,
    /// Most bytes of a write in a record with a CRC, which ends of Longhaul that verify first ask for.
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
        // Revision 1 does not negotiate depths, so both ends need the same.
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
                Op::WriteThroughWindow
            }
            9 if windows && open > 0 => {
                open -= 1;
                if rng.chance(0.8) { Op::SendInvalidate } else { Op::LocalInvalidate }
            }
            _ => Op::Read,
        })
        .collect()
}

fn length(rng: &mut Rng, op: Op, large: bool) -> u64 {
    match op {
        Op::Add | Op::Swap => 8,
        Op::LocalInvalidate => 0,
        _ => match rng.below(6) {
            0 => 0,
            1..=3 => rng.below(200),
            4 => rng.below(5_000),
            _ => rng.below(if large { 80_000 } else { 9_000 }),
        },
    }
}

/// Allocates `len` bytes of a region, with a guard after them.
fn allocate(size: &mut u64, len: u64) -> u64 {
    let at = (*size).next_multiple_of(8);
    *size = at + len + GUARD;
    at
}

/// Plans the work of end `me` and allocates the ranges that it needs at the other end.
fn work(rng: &mut Rng, sides: &mut [Side; 2], me: usize, (windows, large): (bool, bool)) {
    let you = 1 - me;
    let (mut opened, mut after) = (Vec::new(), Span::ZERO);
    for op in ops(rng, windows) {
        let len = length(rng, op, large);
        let window = match op {
            Op::WriteThroughWindow => {
                opened.push(sides[you].windows.len());
                opened.last().copied()
            }
            Op::SendInvalidate => opened.pop(),
            // A window of its own, which the peer does not use.
            Op::LocalInvalidate => {
                let at = allocate(&mut sides[me].sizes[1], 8);
                sides[me].windows.push((at, 8));
                Some(sides[me].windows.len() - 1)
            }
            _ => None,
        };
        let slot =
            matches!(op, Op::Send | Op::SendInvalidate | Op::WriteImm).then_some(sides[you].slots.len());
        let source = if op == Op::Read { you } else { me };
        let from = allocate(&mut sides[source].sizes[0], len);
        let to = match op {
            Op::Read | Op::Add | Op::Swap => allocate(&mut sides[me].sizes[2], len),
            Op::Write | Op::WriteImm | Op::WriteThroughWindow => allocate(&mut sides[you].sizes[1], len),
            _ => 0,
        };
        if op == Op::WriteThroughWindow {
            // A window shows one byte at least.
            sides[you].windows.push((to, len.max(1)));
        }
        if slot.is_some() {
            let bytes = if op == Op::WriteImm { 0 } else { len };
            let room = bytes + if rng.chance(0.5) { rng.below(100) } else { 0 };
            let at = allocate(&mut sides[you].sizes[2], room);
            // Late receives are waited for.
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

fn ways(rng: &mut Rng, bytes: u64) -> [DirectionConfig; 2] {
    let delay = Span::from_micros([10, 1_000, 40_000, 150_000][rng.below(4) as usize]);
    [0, 1].map(|_| {
        // With many bytes, delivery is not byte by byte.
        let few = bytes < 20_000;
        let lumps: &[u64] = if few { &[1, 7, 100, 1448, 20_000] } else { &[200, 1448, 9_000, 70_000] };
        let buffers: &[u64] = if few { &[50, 1_000, 300_000] } else { &[5_000, 50_000, 1 << 20] };
        DirectionConfig {
            delay,
            jitter: Span::from_nanos(rng.below(1 + delay.as_nanos() / 2)),
            max_segment: lumps[rng.below(lumps.len() as u64) as usize],
            buffer: buffers[rng.below(buffers.len() as u64) as usize],
            stall_probability: if rng.chance(0.3) { 0.02 } else { 0.0 },
        }
    })
}

/// `total` is the approximate number of bytes that the streams carry.
fn fault(rng: &mut Rng, total: u64, crc: bool) -> Fault {
    let from = rng.below(2) as usize;
    // The start-up gets as many faults as the rest.
    let most = if rng.chance(0.2) { 100 } else { 100 + total };
    let at = rng.below(most);
    match rng.below(20) {
        0..=3 => Fault::None,
        4..=6 if crc => Fault::OnStream(from, at, StreamFault::Flip(rng.below(8) as u8)),
        7 => Fault::OnStream(from, at, StreamFault::Drip),
        8 => Fault::OnStream(from, at, StreamFault::Silence),
        9 => Fault::Action(from, at, Action::Reset),
        10 => Fault::Action(from, at, Action::Kill),
        11 => Fault::Action(from, at, Action::Abort),
        12 => Fault::Action(from, at, if rng.chance(0.5) { Action::Close } else { Action::QpError }),
        13 => Fault::Action(from, at, Action::HalfClose),
        14 | 15 => Fault::Action(from, at, Action::Deregister(rng.below(2) as usize)),
        16 => Fault::Action(from, at, Action::Unbind),
        17 => [Fault::Unanswered(from), Fault::SlowAnswer, Fault::Reject][rng.below(3) as usize],
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
                side.slow_reads = (0.1, Span::from_millis(1 + rng.below(300)));
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
        Plan { sides, directions: ways, fault, closer, answer, shares, announces, longest_write }
    }
}

impl Plan {
    /// The job of end `side` that uses a wrong key.
    pub fn wrong_job(&self, side: usize) -> Option<usize> {
        let wrong = self.fault == Fault::WrongKey(side);
        let uses = |j: &Job| matches!(j.op, Op::Write | Op::WriteImm | Op::Read) && j.len > 0;
        self.sides[side].jobs.iter().position(uses).filter(|_| wrong)
    }
    /// Whether a damaged record may leave wrong bytes at end `side`, at the place in its header, since its payload is
    /// placed before its CRC is known. They never complete.
    pub fn places_damage(&self, side: usize) -> bool {
        let flipped = matches!(self.fault, Fault::OnStream(from, _, StreamFault::Flip(_)) if from != side);
        flipped && self.sides[side].config.placement == Placement::Early
    }
    /// Whether CRCs are in use.
    pub fn crc(&self) -> bool {
        self.sides.iter().any(|s| s.config.crc)
    }
}
