//! What congestion control promises, with real programs and sockets in network namespaces and a path between them that the
//! laboratory emulates. Needs root and `/dev/net/tun`: without them each test says so and passes.

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod net;
mod promises;
mod signals;
