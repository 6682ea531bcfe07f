//! What memory holds before, and must hold after.

use super::plan::{Job, Op, Plan};
use base::Rng;

/// Bytes of a region before anything is written to it, everywhere where nothing is to be written afterwards too.
pub fn guard(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1
}

/// A fresh target region.
pub fn guards(len: u64) -> Vec<u8> {
    (0..len).map(guard).collect()
}

/// The source region of an end: never what a guard area holds at the same time.
pub fn source(plan: &Plan, side: usize) -> Vec<u8> {
    let mut bytes = vec![0; plan.source[side] as usize];
    Rng::from_u64(plan.seed ^ (side as u64 + 1) << 60).fill(&mut bytes);
    bytes
}

/// Which end's memory a job writes to, and whose it reads.
pub fn ends(job: &Job, side: usize) -> (usize, usize) {
    if job.op == Op::Read { (side, 1 - side) } else { (1 - side, side) }
}

/// The bytes of a job.
pub fn bytes<'a>(sources: &'a [Vec<u8>; 2], job: &Job, side: usize) -> &'a [u8] {
    let (_, from) = ends(job, side);
    &sources[from][job.from as usize..(job.from + job.len) as usize]
}

/// What the answer to an addition has to be: the bytes that were there before.
pub fn answer(job: &Job) -> [u8; 8] {
    core::array::from_fn(|i| guard(job.to + i as u64))
}
