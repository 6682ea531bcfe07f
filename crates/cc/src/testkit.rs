//! What every algorithm is tested with: a conformance kit driven by operations ([`conformance`]) and a small
//! model of a bottleneck in virtual time ([`fluid`]). Public, so that algorithms from elsewhere can be put
//! through the same; and [`twins`], to see that two algorithms are one.

pub mod conformance;
pub mod fluid;
#[cfg(test)]
mod tests;
pub mod twins;
