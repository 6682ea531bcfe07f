//! Packets sealed and opened apart from the connection they belong to, on another thread.
//!
//! The connection decides what is in a train and which numbers its packets have; [`Sealing`] is all it takes to protect
//! them. In the other direction an [`OpenView`] opens packets under the key that is current. Which other key a packet
//! might need, whether its number is news and whether it may still be accepted are questions that only the connection can
//! answer: what a view does not open it leaves to it.

use super::packet::{HeaderKey, OpenKey, SealKey};
use base::seq;
use std::sync::Arc;
use wire::packet::{SHORT_CLEAR, flag};

/// Packets of one train that a view opens at most; longer trains are left to the connection.
pub const MAX_OPENED: usize = 64;

/// The keys of one generation that seal.
pub(super) struct TrainKey {
    pub key: SealKey,
    pub header: HeaderKey,
    pub tag_len: usize,
}

/// What a train that has been built is protected with. Its numbers are reserved for it: to be used once.
pub struct Sealing {
    pub(super) keys: Arc<TrainKey>,
    pub(super) lane: u32,
    pub(super) first_pn: u64,
}

impl Sealing {
    /// Seals and masks the packets of `train`, `segment` bytes apart, the last perhaps shorter, each with its clear
    /// header in place.
    pub fn seal(self, train: &mut [u8], segment: usize) {
        let TrainKey { key, header, tag_len } = &*self.keys;
        for (pn, packet) in (self.first_pn..).zip(train.chunks_mut(segment.max(1))) {
            let Some((clear, rest)) = packet.split_at_mut_checked(SHORT_CLEAR) else { continue };
            let Some((tag_at, body)) = rest.split_at_mut_checked(*tag_len) else { continue };
            match key.seal(self.lane, pn, clear, body) {
                Ok(tag) => tag_at.copy_from_slice(&tag[..*tag_len]),
                // Only sizes that no packet has are a reason; what is not sealed does not leave readable.
                Err(_) => body.fill(0),
            }
        }
        header.mask_segments(train, segment);
    }
}

/// What opens packets of one lane under the key of one generation.
#[derive(Clone)]
pub struct OpenView {
    pub(super) key: Arc<OpenKey>,
    pub(super) header: Arc<HeaderKey>,
    pub(super) tag_len: usize,
    pub(super) lane: u32,
    pub(super) generation: u64,
}

/// What became of a train's packets: by their place in it, the first one's bit is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedTrain {
    /// The generation of the key they were opened with.
    pub(crate) generation: u64,
    /// The number around which theirs were expanded.
    pub(crate) expected: u64,
    /// Packets that are open.
    pub(crate) opened: u64,
    /// Packets that did not authenticate; what they held is gone.
    pub(crate) failed: u64,
}

impl OpenView {
    /// Unmasks a train of short packets of this lane and opens those that carry the view's key phase, in place.
    /// `expected` is the number after the highest one so far that came under this lane; it moves on. `None`: the train was
    /// not touched.
    pub fn open_train(&self, expected: &mut u64, train: &mut [u8], stride: usize) -> Option<OpenedTrain> {
        if stride == 0 || train.len().div_ceil(stride) > MAX_OPENED {
            return None;
        }
        self.header.mask_segments(train, stride);
        let mut done = OpenedTrain { generation: self.generation, expected: *expected, opened: 0, failed: 0 };
        for (i, packet) in train.chunks_mut(stride).enumerate() {
            let Some((clear, rest)) = packet.split_at_mut_checked(SHORT_CLEAR) else { continue };
            let Some((tag, body)) = rest.split_at_mut_checked(self.tag_len) else { continue };
            let phase = clear[0] & flag::KEY_PHASE != 0;
            if phase != (self.generation & 1 == 1) || clear[0] & flag::LONG != 0 {
                continue;
            }
            let pn = done.number(clear);
            match self.key.open(self.lane, pn, clear, tag, body) {
                Ok(()) => {
                    done.opened |= 1 << i;
                    *expected = (*expected).max(pn + 1);
                }
                Err(_) => done.failed |= 1 << i,
            }
        }
        Some(done)
    }
}

impl OpenedTrain {
    /// The same of a train that begins `packets` later.
    pub fn after(&self, packets: usize) -> OpenedTrain {
        let shift = |bits: u64| u32::try_from(packets).ok().and_then(|n| bits.checked_shr(n)).unwrap_or(0);
        OpenedTrain { opened: shift(self.opened), failed: shift(self.failed), ..*self }
    }

    /// The number under which a packet with this clear header was opened.
    pub(crate) fn number(&self, clear: &[u8]) -> u64 {
        let low = clear.get(5..9).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
        seq::expand(low.into(), 32, self.expected)
    }
}

super::opaque_debug!(TrainKey, Sealing, OpenView);
