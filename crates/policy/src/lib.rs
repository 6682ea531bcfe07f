//! Policies of OpenCC: which traffic gets which congestion control, class and share of what the host sends.
//!
//! A policy is a TOML file; [`Spec`] holds its content. [`Policy::read`] checks the whole file and reports all
//! problems at once, with line numbers and remedies. A [`Policy`] chooses the treatment of each flow
//! ([`cc::platform::Policy`]) and explains the choice ([`Policy::explain`]).

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
