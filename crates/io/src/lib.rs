//! Clocks, sockets, files and threads: the only place that touches the operating system.
//!
//! | module | what it wraps |
//! | --- | --- |
//! | [`budget`] | memory and descriptors that clients share, and how much there is |
//! | [`clock`] | monotonic and wall-clock time, CPU time, the system's randomness |
//! | [`datapath`] | one face for the ways to the network |
//! | [`udp`] | batches of UDP trains with GSO, GRO, ECN and packet information |
//! | [`tcp`] | connections by TCP that carry iWARP, read and written in place |
//! | [`uring`] | the same through io_uring |
//! | [`xdp`] | the same past the kernel's network stack, where privilege and interface allow |
//! | [`poll`] | waiting for sockets, wakers and a deadline with nanosecond precision |
//! | [`descriptors`] | how many file descriptors there are, and who gets them |
//! | [`peer`] | who is at the other end of a local socket |
//! | [`mmap`] | mapped files, allocation, holes, and surviving a file that shrinks under a mapping |
//! | [`identity`] | host keys, known hosts, authorised keys and one-time tokens, in the manner of ssh |
//! | [`safe_path`] | file access that cannot leave a folder |
//! | [`relay`] | a UDP relay with the character of a long network |
//!
//! A driver loop reads the clock once a turn, hands [`udp::RecvBatch`] to the protocol, lets it fill
//! [`udp::SendBatch`], and waits in [`poll::Poller`] until its next deadline.
//!
//! ```
//! use base::{Ecn, Span};
//! use longhaul_io::{clock::Clock, poll::*, udp::*};
//! let socket = UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse()?))?;
//! let (mut incoming, mut outgoing) = (socket.recv_batch(), SendBatch::new());
//! let (clock, mut poller) = (Clock::new(), Poller::new()?);
//! let mut said = 0;
//! while said < 3 {
//!     let _now = clock.now();
//!     socket.recv(&mut incoming)?;
//!     for (meta, train) in incoming.iter_mut() {
//!         said += train.chunks(meta.stride).count();
//!     }
//!     if let (0, Some(slot)) = (said, outgoing.slot()) {
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

pub mod budget;
pub mod clock;
pub mod datapath;
pub mod descriptors;
pub mod direct;
pub mod driver;
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
