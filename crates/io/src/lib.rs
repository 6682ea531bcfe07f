//! Clocks, sockets, files and threads: the only place that touches the operating system.
//!
//! | module | what it wraps |
//! | --- | --- |
//! | [`clock`] | monotonic and wall-clock time, CPU time, the system's randomness |
//! | [`udp`] | batches of UDP trains with GSO, GRO, ECN and packet information |
//! | [`poll`] | waiting for sockets, wakers and a deadline with nanosecond precision |
//! | [`mmap`] | mapped files, allocation, holes, and surviving a file that shrinks under a mapping |
//! | [`identity`] | host keys, known hosts, authorised keys and one-time tokens, in the manner of ssh |
//! | [`safe_path`] | file access that cannot leave a folder |
//! | [`relay`] | a UDP relay with the character of a long network |
//!
//! A driver loop reads the clock once a turn, hands [`udp::RecvBatch`] to the protocol, lets it fill
//! [`udp::SendBatch`], and waits in [`poll::Poller`] until its next deadline.
//!
//! Linux only: 64-bit, kernel 4.18 or later for GSO, 5.0 for GRO; both are detected at run time.

pub mod clock;
pub mod identity;
pub mod mmap;
pub mod poll;
pub mod relay;
pub mod safe_path;
pub mod udp;
