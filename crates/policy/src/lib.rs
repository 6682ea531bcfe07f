//! Policies of OpenCC: which traffic gets which congestion control, class and share of what the host sends.
//!
//! A policy is a TOML file ([`Spec`] is what it says). [`Policy::read`] checks it as a whole and tells everything that is
//! wrong with it at once, with lines and remedies. A [`Policy`] answers for each flow what becomes of it
//! ([`cc::platform::Policy`]), and why ([`Policy::explain`]).

mod check;
mod explain;
mod flow;
mod pattern;
mod policy;
mod problem;
mod read;
mod region;
mod spec;
pub mod table;
mod tree;
mod units;

pub use cc::registry::kernel_names;
pub use explain::*;
pub use flow::{BadFlow, MAX_FLOW, parse_flow};
pub use policy::{BUILT_IN, Policy};
pub use problem::{MAX_PROBLEMS, Problem, Problems, Severity};
pub use spec::*;
pub use units::{MAX_RATE, MIN_RATE, Ports, Prefix, Priorities, dscp as read_dscp, show_dscp, show_rate};

#[cfg(test)]
mod tests;
