//! The algorithms, one file (or folder) each, and the table they are found in.

pub mod bbr;
pub mod bbr1;
pub mod copa;
pub mod cubic;
pub mod dcqcn;
pub mod dctcp;
pub mod fixed;
pub mod haul;
pub mod hpcc;
pub mod ledbat;
pub mod prague;
pub mod reno;
pub mod swift;
pub mod timely;
pub mod vegas;

mod delay;
mod hystart;
#[cfg(test)]
mod kit;
mod marks;
mod paced;
mod window;

use crate::registry::Definition;

/// Every algorithm, the default first.
pub(crate) const ALL: &[Definition] = &[
    haul::DEFINITION,
    bbr::DEFINITION,
    bbr1::DEFINITION,
    cubic::DEFINITION,
    reno::DEFINITION,
    dctcp::DEFINITION,
    prague::DEFINITION,
    dcqcn::DEFINITION,
    swift::DEFINITION,
    timely::DEFINITION,
    hpcc::DEFINITION,
    vegas::DEFINITION,
    copa::DEFINITION,
    ledbat::DEFINITION,
    fixed::DEFINITION,
];

/// Least packets that any algorithm lets be in flight: with fewer a lost packet is only noticed by time-out.
pub const MIN_PACKETS: u64 = 2;

/// Least rate any algorithm decides, so that a probe can always leave: 24 kbit/s, two full packets a second.
pub const MIN_RATE: base::Rate = base::Rate::from_bits_per_sec(24_000);
