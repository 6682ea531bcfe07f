//! The laboratory: network namespaces joined by one process that emulates the network between them, plans of what runs
//! in them, and reports of what came out.

pub mod emulator;
pub mod netns;
pub mod tun;

pub mod plan;
pub mod report;
pub mod run;
pub mod simulate;
pub mod workload;
