//! Event loop, clocks, sockets, files and threads: the only crate that calls the operating system.
//!
//! ```no_run
//! use base::{Rng, Time};
//! use endpoint::{App, Authority, Config, Endpoint, Event, ServerConfig};
//! use longhaul_io::{clock, driver::Driver};
//! use std::sync::Arc;
//! use transport::crypto::{Credentials, Identity};
//!
//! /// A server that prints who connects, and runs for ever.
//! struct Greeter;
//! impl App for Greeter {
//!     fn drive(&mut self, _now: Time, endpoint: &mut Endpoint) {
//!         while let Some(event) = endpoint.poll_event() {
//!             if let Event::Incoming { conn } = event {
//!                 println!("{:?}", endpoint.connection(conn).map(|c| c.remote));
//!             }
//!         }
//!     }
//!     fn finished(&self) -> bool {
//!         false
//!     }
//! }
//!
//! let mut config = Config::client(Arc::new(Credentials::RawKey(Identity::generate()?)));
//! let authority = Authority { keys: None, tokens: Vec::new() };
//! config.server = Some(ServerConfig { authority, ..ServerConfig::default() });
//! let mut endpoint = Endpoint::new(config, Rng::from_seed(clock::seed()?))?;
//! Driver::bind("[::]:4460".parse()?)?.run(&mut endpoint, &mut Greeter)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it wraps |
//! | --- | --- |
//! | [`accounts`] | names and numbers of users and groups |
//! | [`budget`] | memory and descriptors that clients share, and how much there is |
//! | [`clock`] | monotonic and wall-clock time, CPU time, the system's randomness |
//! | [`datapath`] | one interface over the ways to the network |
//! | [`udp`] | batches of UDP trains with GSO, GRO, ECN and packet information |
//! | [`tcp`] | connections by TCP that carry iWARP, read and written in place |
//! | [`uring`] | the same through io_uring |
//! | [`xdp`] | the same past the kernel's network stack, where privilege and interface allow |
//! | [`poll`] | waiting for sockets, wakers and a deadline with nanosecond precision |
//! | [`descriptors`] | how many file descriptors there are, and who gets them |
//! | [`peer`] | credentials of the process at the other end of a Unix socket |
//! | [`mmap`] | memory-mapped files that survive truncation, allocation, holes |
//! | [`identity`] | host keys, known hosts, authorised keys and one-time tokens, in the manner of ssh |
//! | [`safe_path`] | file access that cannot leave a folder |
//! | [`relay`] | a UDP relay that emulates a long, lossy network |
//!
//! [`driver::Driver`] is the event loop. It reads the clock once a turn, hands a [`udp::RecvBatch`] to the protocol, lets
//! it fill a [`udp::SendBatch`], and waits in [`poll::Poller`] until its next deadline, as this loop does by itself:
//!
//! ```
//! use base::{Ecn, Span};
//! use longhaul_io::{clock::Clock, poll::*, udp::*};
//! let socket = UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse()?))?;
//! let (mut incoming, mut outgoing) = (socket.recv_batch(), SendBatch::new());
//! let (clock, mut poller) = (Clock::new(), Poller::new()?);
//! let mut received = 0;
//! while received < 3 {
//!     let _now = clock.now();
//!     socket.recv(&mut incoming)?;
//!     for (meta, train) in incoming.iter_mut() {
//!         received += train.chunks(meta.stride).count();
//!     }
//!     if let (0, Some(slot)) = (received, outgoing.slot()) {
//!         slot[..25].fill(7);
//!         let dst = socket.local_addr();
//!         outgoing.commit(SendMeta { dst, src: None, ecn: Ecn::Ect0, dscp: 0, segment: 10 }, 25)?;
//!     }
//!     let blocked = socket.send(&mut outgoing)?.blocked;
//!     poller.wait(&mut [Source::new(&socket, blocked == Blocked::Buffer)], Some(Span::from_millis(1)))?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Linux only: 64-bit, kernel 4.18 or later for GSO, 5.0 for GRO; both are detected at run time.

pub mod accounts;
pub mod budget;
pub mod clock;
pub mod datapath;
pub mod descriptors;
pub mod direct;
pub mod driver;
pub mod fault_copy;
mod icmp;
pub mod identity;
pub mod isolated_thread;
pub mod memory;
pub mod mmap;
mod netlink;
mod network;
mod numa;
pub mod peer;
pub mod poll;
pub mod relay;
pub mod safe_path;
pub mod staging;
mod syscall;
pub mod tcp;
pub mod udp;
pub mod uring;
pub mod xdp;

pub use network::{addresses_of_interface, host_addresses};
