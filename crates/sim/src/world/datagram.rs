//! Datagrams in flight, and the pool of their buffers.

use base::Rng;
use netem::{Payload, flip_bits};

/// Most buffers kept for reuse.
const MAX_POOLED: usize = 1 << 20;

/// A datagram between two addresses of a world.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Index of the address it comes from.
    pub(super) src: u32,
    /// Index of the address it goes to.
    pub(super) dst: u32,
    /// UDP payload.
    pub(super) data: Vec<u8>,
}

impl Datagram {
    /// A hash of what is the same in each run: lengths and addresses. Contents are not, since TLS draws its keys from
    /// the system.
    pub(super) fn fingerprint(&self) -> u64 {
        (self.data.len() as u64) << 48 ^ u64::from(self.dst) << 32
    }
}

impl Payload for Datagram {
    fn corrupt(&mut self, rng: &mut Rng) {
        flip_bits(&mut self.data, rng);
    }
    fn stamp(&mut self, hop: &base::telemetry::Hop) {
        base::telemetry::stamp(&mut self.data, hop);
    }
}

/// A pool of buffers, since 600,000 packets in flight would be costly to allocate one by one.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// A buffer with a copy of `data`.
    pub fn copy(&mut self, data: &[u8]) -> Vec<u8> {
        let mut b = self.0.pop().unwrap_or_default();
        b.clear();
        b.extend_from_slice(data);
        b
    }
    /// Returns a buffer to the pool.
    pub fn put(&mut self, b: Vec<u8>) {
        if self.0.len() < MAX_POOLED {
            self.0.push(b);
        }
    }
}
