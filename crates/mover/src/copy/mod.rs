//! Transfers between two servers, which a client arranges and may leave.
//!
//! ```text
//! client --- Hello(Invite), key ---> B          who may do which put, for ten minutes
//! client --- Hello(Copy), request -> A          sources, the put, address and fingerprint of B, seed of the key
//!            A --- Hello(Put), ... ---> B       a transfer as any other
//! client <-- status, failures ------ A          while it watches
//! ```
//!
//! The key is the client's own making, for one transfer: A proves by it that it comes for the client, and B lets it do this one
//! put and nothing else. The data goes from A to B and nowhere else.

pub(crate) mod address;
mod client;
mod invitations;
mod jobs;

pub use client::{CopyAsk, CopyClient, CopyPlan, CopyWatch};
pub use invitations::{INVITATION_LIFETIME, Invitations};
pub(crate) use jobs::{Copies, Start};
pub use jobs::{CopyJob, CopyLimits, CopyRunner};
