//! Simulation of endpoints and networks in virtual time.
//!
//! A [`World`] connects production endpoints by links of the model in `netem`. Nothing in it reads a clock or draws
//! randomness other than from its seed, so the same seed gives the same simulation, packet by packet.

pub mod card;
pub mod flows;
pub mod pair;
pub mod steady;
pub mod streams;
pub mod swarm;
pub mod world;

pub use world::{LinkId, NodeId, NodeSetup, Totals, World};
