//! Measures round trips: one message at a time, sent and answered.

use super::load::Stream;
use super::proto::{FRONT, PAGE, Plan};
use crate::args::Operation;
use base::Time;
use endpoint::Endpoint;
use verbs::{Data, InlineBytes, RecvWr, SendOp, SendWr, Sge, Sges};

/// Round trips that are kept: the latest million.
const MAX_KEPT: usize = 1 << 20;
/// Receives that both ends keep posted. One message is under way, but by Longhaul's own transport the other end hears of
/// receives in steps of a quarter of them: the more, the rarer.
const RECEIVES: u64 = 64;

/// How many that is by iWARP (`ordered`) or else. By iWARP nobody hears of them, and into the only one that waits, posted for
/// the next message, that is read straight.
pub const fn receives(ordered: bool) -> u64 {
    if ordered { 1 } else { RECEIVES }
}

/// Round trips, as the initiator measures them.
#[derive(Default)]
pub struct RoundTrips {
    left: Time,
    nanos: Vec<u64>,
    count: u64,
}

impl RoundTrips {
    /// The first message is about to be made.
    pub fn begin(&mut self, now: Time) {
        self.left = now;
    }

    /// The answer is there, and the next message is about to be made: what that takes counts, too.
    pub fn back(&mut self, now: Time) {
        let trip = now.since(core::mem::replace(&mut self.left, now)).as_nanos();
        if self.nanos.len() < MAX_KEPT {
            self.nanos.push(trip);
        } else {
            self.nanos[(self.count % MAX_KEPT as u64) as usize] = trip;
        }
        self.count += 1;
    }

    /// Least, median, 99th percentile, most; `None` of none.
    pub fn summary(&mut self) -> Option<[u64; 4]> {
        self.nanos.sort_unstable();
        let t = &self.nanos;
        let at = |num: usize, den: usize| t.get((t.len().saturating_sub(1)) * num / den).copied();
        Some([at(0, 1)?, at(1, 2)?, at(99, 100)?, at(1, 1)?])
    }
}

/// Messages up to so many bytes travel with their work requests: a copy of longer ones costs more than naming their place.
const INLINE: u64 = 256;

/// Where a message that arrives begins.
fn incoming(plan: &Plan) -> u64 {
    FRONT + (FRONT + plan.size).next_multiple_of(PAGE)
}

/// Whether messages are found by looking at the memory that they arrive in, as those are whose latency is told of adapters
/// (perftest's `ib_write_lat`): writes of one packet, which are all there or not at all. Bytes of longer ones arrive in any
/// order, so that these tell of themselves by immediate data.
pub fn is_watched(plan: &Plan) -> bool {
    plan.operation == Operation::Write && (1..=INLINE).contains(&plan.size)
}

/// What the `n`th message begins with, and how many bytes of it that are: never what the one before did.
fn mark(plan: &Plan, n: u64) -> ([u8; 8], usize) {
    ((n + 1).to_le_bytes(), plan.size.min(8) as usize)
}

/// Whether the `n`th message lies where messages arrive.
pub fn is_there(plan: &Plan, s: &Stream, n: u64, ep: &mut Endpoint) -> bool {
    let (want, len) = mark(plan, n);
    let mut seen = [0; 8];
    let read = ep.adapter().read_mr(s.region.id, incoming(plan), &mut seen[..len]);
    read.is_ok() && seen[..len] == want[..len]
}

/// The `n`th message. A write that is not `watched` for tells its arrival by immediate data.
pub fn message(plan: &Plan, s: &Stream, n: u64, watched: bool) -> SendWr {
    let op = match plan.operation {
        Operation::Send => SendOp::Send,
        _ if watched => SendOp::Write { rkey: s.rkey, offset: incoming(plan) },
        _ => SendOp::WriteImm { rkey: s.rkey, offset: incoming(plan), imm: n as u32 },
    };
    let data = if plan.size <= INLINE {
        let mut front = [0; 16];
        front[..8].copy_from_slice(&mark(plan, n).0);
        let size = plan.size as usize;
        let mut bytes = InlineBytes::from_buf_and_len(front, size.min(16));
        if size > 16 {
            // Zeroed memory is slower to get than memory, by 20 ns.
            bytes.resize(size, 0);
        }
        Data::Inline(bytes)
    } else {
        Data::from(Sge { lkey: s.region.lkey, offset: FRONT, len: plan.size })
    };
    // The answer tells that it arrived.
    SendWr { signaled: false, ..SendWr::new(n, op, data) }
}

/// A receive for the `n`th message.
pub fn receive(plan: &Plan, s: &Stream, n: u64) -> RecvWr {
    let sge = Sge { lkey: s.region.lkey, offset: incoming(plan), len: plan.size };
    RecvWr { wr_id: n, sges: Sges::One(sge) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_round_trips_count_when_there_are_too_many() {
        let mut t = RoundTrips::default();
        assert_eq!(t.summary(), None);
        let at = Time::from_nanos;
        let mut now = 0;
        t.begin(at(now));
        for n in 0..MAX_KEPT as u64 + 10 {
            now += if n < 10 { 1_000_000_000 } else { 100 + n % 2 };
            t.back(at(now));
        }
        assert_eq!(t.summary(), Some([100, 100, 101, 101]));
    }
}
