//! The connection manager of RDMA programs: what the kernel does behind `/dev/infiniband/rdma_cm`, for the unchanged librdmacm.
//!
//! librdmacm writes commands (`rdma/rdma_user_cm.h`, version 4) to a descriptor and asks it for events. [`process`] owns descriptors,
//! sockets and a thread; [`Manager`] is the state of all identifiers, without any I/O: commands, messages of peers and time go in,
//! answers, events and messages come out.
//!
//! A service is found by its number: RDMA port P of a host is answered at UDP port P ([`lookup`]), which says by which UDP port the
//! engine of the listening process is reached. All else ([`message`]) travels between the two engines, on their encrypted
//! connection.

pub mod abi;
mod command;
mod event;
pub mod group;
pub mod lookup;
mod manager;
pub mod message;
pub mod process;

pub use command::{Command, Reply, Request};
pub use manager::{Action, ChannelId, Host, Manager, Origin};

/// An `errno` of the kernel's interface, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);
