//! Worlds of endpoints and links in virtual time.
//!
//! A [`World`] joins production endpoints by links of the model in `netem`. Nothing in it reads a clock or draws
//! randomness that does not come from its seed: the same seed gives the same world, packet by packet.

pub mod card;
pub mod flows;
pub mod pair;
pub mod steady;
pub mod streams;
pub mod swarm;
pub mod world;

pub use world::{LinkId, NodeId, NodeSetup, Totals, World};
