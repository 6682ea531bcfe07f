//! Administration of running processes: shows and changes congestion control through a control socket or a central
//! store.
//!
//! | part | what it does |
//! | --- | --- |
//! | [`proto`] | requests and answers of the control socket; `docs/control.md` is its specification |
//! | [`server`], [`client`] | its two ends, in the [`folder`] of all such sockets |
//! | [`request_queue`] | requests from other threads to the loop that moves data |
//! | [`administered_app`] | the loop's side of it: an application with an administrator beside it |
//! | [`subscriptions`] | decisions on their way to clients that follow a trace |
//! | [`source`], [`watch`] | where policies come from, and the threads that notice changes there |
//! | [`etcd`] | the central store, by its JSON gateway |
//!
//! Nothing here runs on the loop's thread but what [`administered_app`] does in a turn: a load when nobody asks.

pub mod admin;
pub mod administered_app;
pub mod client;
pub mod etcd;
mod event_text;
pub mod folder;
pub mod lines;
pub mod policy_cache;
pub mod process_state;
pub mod proto;
mod rate_meter;
pub mod request_handler;
pub mod request_queue;
pub mod server;
pub mod source;
pub mod subscriptions;
pub mod watch;

pub use admin::{Admin, Options};
