//! Transfers to and from machines that ssh reaches: `longhaul put data/ user@tower:/srv/data`.
//!
//! ```text
//! put, get, ls  --- ssh: starts it --->  longhaul serve --over-ssh      remote_server.rs
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
mod copy;
mod location;
pub mod remote_server;
mod resolve;
mod session;

pub use args::SshOptions;
pub use copy::{RemoteCopyRequest, copy_from};
pub use location::{Location, beside, looks_remote, set_beside};
pub use remote_server::RemoteOperation;
pub use session::{RemoteRequest, RemoteSession};
