//! The expected contents of memory.

use super::plan::{Job, Op, Plan};
use base::Rng;

/// The initial byte of a region at an offset, which must remain wherever nothing is to be written.
pub fn guard_byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1
}

/// A fresh target region.
pub fn guard_bytes(len: u64) -> Vec<u8> {
    (0..len).map(guard_byte).collect()
}

/// The content of an end's source region, which never equals the guard bytes at the same offset.
pub fn source(plan: &Plan, side: usize) -> Vec<u8> {
    let mut bytes = vec![0; plan.source[side] as usize];
    Rng::from_u64(plan.seed ^ (side as u64 + 1) << 60).fill(&mut bytes);
    bytes
}

/// The end whose memory a job writes, and the one whose it reads.
pub fn ends(job: &Job, side: usize) -> (usize, usize) {
    if job.op == Op::Read { (side, 1 - side) } else { (1 - side, side) }
}

/// The bytes of a job.
pub fn bytes<'a>(sources: &'a [Vec<u8>; 2], job: &Job, side: usize) -> &'a [u8] {
    let (_, from) = ends(job, side);
    &sources[from][job.from as usize..(job.from + job.len) as usize]
}

/// The result that an atomic addition must return: the original bytes.
pub fn expected_answer(job: &Job) -> [u8; 8] {
    core::array::from_fn(|i| guard_byte(job.to + i as u64))
}
