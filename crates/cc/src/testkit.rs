//! Test tools for every algorithm, public so that algorithms from elsewhere can be tested in the same way: a
//! conformance kit driven by operations ([`conformance`]), a small model of a bottleneck in virtual time ([`fluid`]),
//! and a comparison of two algorithms that should decide equally ([`twins`]).

pub mod conformance;
pub mod fluid;
#[cfg(test)]
mod tests;
pub mod twins;
