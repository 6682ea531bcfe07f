//! The built-in algorithms, one module each, and the table of their definitions.

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
mod marked_share;
mod paced;
#[cfg(test)]
mod test_signals;
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

/// Fewest packets in flight that any algorithm allows: with fewer, a loss is only detected by time-out.
pub const MIN_PACKETS: u64 = 2;

/// Lowest rate of any algorithm, so that a probe can always be sent: 24 kbit/s, two full packets a second.
pub const MIN_RATE: base::Rate = base::Rate::from_bits_per_sec(24_000);
