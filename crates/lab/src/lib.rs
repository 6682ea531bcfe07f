//! The laboratory: network namespaces connected by a process that emulates the network between them, plans of
//! experiments in it or in the simulator, and reports of the results.

pub mod emulator;
pub mod host;
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
