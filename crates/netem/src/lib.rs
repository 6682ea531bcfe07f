//! Network emulation without I/O: links with rate, queue, delay, loss and reordering, and networks of links, for
//! the simulator and for a relay in user space.
//!
//! A packet passes through, in this order:
//!
//! 1. the entrance: MTU, black-out, random loss, changes of the ECN field;
//! 2. a drop-tail queue counted in bytes, which may mark ECN and stamp telemetry, emptied at the link's rate;
//! 3. the wire: corruption, duplication, propagation delay, jitter, reordering.
//!
//! A [`Topology`] describes how links form a [`Network`]: dumbbells, stars, paths of several hops, disjoint
//! paths.
//!
//! Time and randomness are passed in, so the same seed and the same calls give the same deliveries.
//!
//! ```
//! use base::{Ecn, Rng, Time};
//! use longhaul_netem::{Link, LinkConfig, Packet, Verdict};
//!
//! let config = LinkConfig::parse("rate=500mbit delay=35ms loss=0.1% queue=1bdp(rtt 70ms)")?;
//! let mut link = Link::new(config, Rng::from_u64(1));
//! let packet = Packet { bytes: 1500, ecn: Ecn::NotEct, payload: vec![0u8; 1472] };
//! assert_eq!(link.send(Time::ZERO, packet), Verdict::Queued);
//! let at = link.next_delivery().expect("one packet is on its way");
//! assert_eq!(link.poll(at).expect("it is due").time.as_nanos(), 24_000 + 35_000_000);
//! # Ok::<(), longhaul_netem::SpecError>(())
//! ```

mod chance;
mod config;
mod flight;
mod link;
mod network;
mod packet;
mod police;
pub mod profiles;
mod serializer;
mod spec;
mod topology;

pub use chance::Probability;
pub use config::{BurstLoss, Change, EcnHandling, Jitter, LinkConfig, Loss, Marking, PolicerConfig, Reorder};
pub use link::{Link, MAX_PACKETS, Stats as LinkStats, Stats};
pub use network::{Arrival, Entered, Network, Transit};
pub use packet::{Delivery, DropReason, Packet, Payload, Verdict, flip_bits};
pub use spec::{MAX_SPEC_LEN, SpecError};
pub use topology::{Duplex, LinkId, LinkSpec, MAX_LINKS, MAX_PORTS, NetworkError, NodeId, PortId, Topology};
