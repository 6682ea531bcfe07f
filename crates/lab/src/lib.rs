//! The laboratory: network namespaces joined by one process that emulates the network between them, plans of what runs
//! in them, and reports of what came out.

pub mod emulator;
mod lab;
pub mod netns;
mod state;
mod sys;
pub mod topology;
pub mod tun;

pub mod plan;
pub mod report;
pub mod run;
pub mod search;
pub mod simulate;
pub mod workload;

pub use lab::{EMULATOR_ARGUMENT, Lab, LabError, Options, clean};
pub use topology::{LinkSpec, TopologyError, TopologySpec};
