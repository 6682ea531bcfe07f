//! Transfers to and from machines that ssh reaches: `longhaul put data/ user@tower:/srv/data`.
//!
//! ```text
//! put, get, ls  --- ssh: starts it --->  longhaul serve --over-ssh      far.rs
//!               <-- one line: port, token with fingerprint ---          answer.rs
//!               === UDP: the transfer itself ===>
//!   or, where no answer comes by UDP:
//!               === iWARP with TLS, through ssh's pipes ===>            bridge.rs
//! ```
//!
//! The other end serves what was asked for and nothing else, to the one who has the token, and ends with ssh's channel.

mod answer;
mod args;
mod bootstrap;
mod bridge;
mod channel;
mod command;
pub mod far;
mod link;
mod place;
mod resolve;

pub use args::OverSsh;
pub use far::Wants;
pub use link::{Asked, Link};
pub use place::{Place, looks_remote};
