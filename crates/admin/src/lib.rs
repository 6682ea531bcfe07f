//! The administrator's live side of congestion control: what runs is shown and changed while it runs.
//!
//! | part | what it does |
//! | --- | --- |
//! | [`proto`] | requests and answers of the control socket; `docs/control.md` is its specification |
//! | [`server`], [`client`] | its two ends, in the [`folder`] of all such sockets |
//! | [`desk`] | where other threads ask things of the loop that moves data |
//! | [`govern`] | the loop's side of it: an application with an administrator beside it |
//! | [`tap`] | decisions on their way to those who watch them |
//! | [`source`], [`watch`] | where policies come from, and the threads that notice changes there |
//! | [`etcd`] | the central store, by its JSON gateway |
//!
//! Nothing here runs on the loop's thread but what [`govern`] does in a turn: a load when nobody asks.

pub mod admin;
pub mod board;
pub mod client;
pub mod desk;
pub mod etcd;
pub mod folder;
pub mod govern;
pub mod kept;
pub mod lines;
mod meter;
pub mod office;
pub mod proto;
pub mod server;
pub mod source;
pub mod tap;
pub mod watch;

pub use admin::{Admin, Options};
