//! Seals and opens whole trains of packets on another thread than the connection's.
//!
//! The connection decides what is in a train and which numbers its packets have; [`TrainSealer`] is all it takes to protect
//! them. In the other direction an [`TrainOpener`] opens packets under the key that is current. Which other key a packet
//! might need, whether its number is news and whether it may still be accepted are questions that only the connection can
//! answer: what a view does not open it leaves to it.

use super::packet::{HeaderKey, OpenKey, SealKey};
use base::{Prefetch, seq};
use std::sync::Arc;
use wire::packet::{SHORT_CLEAR, flag};

/// The most packets of a train that a [`TrainOpener`] opens; longer trains are left to the connection.
pub const MAX_OPENED: usize = 64;

/// The keys of one generation that seal.
pub(super) struct TrainKey {
    pub key: SealKey,
    pub header: HeaderKey,
    pub tag_len: usize,
}

/// Seals one train. Its packet numbers are reserved, so it must be used once.
pub struct TrainSealer {
    pub(super) keys: Arc<TrainKey>,
    pub(super) lane: u32,
    pub(super) first_pn: u64,
    /// Bytes in front of the train's only packet that are not protected.
    pub(super) lead: usize,
    /// What the train after this one is made of.
    pub(super) prefetch: Prefetch,
}

impl TrainSealer {
    /// The same for a train of one packet that is preceded by `lead` bytes of telemetry.
    pub fn with_offset(self, lead: usize) -> TrainSealer {
        TrainSealer { lead, ..self }
    }

    /// The same for a thread that builds the next train from this payload, which is prefetched while this one is
    /// sealed: built from memory that is not cached, a train of 44 packets takes twice as long.
    pub fn with_prefetch(self, prefetch: Prefetch) -> TrainSealer {
        TrainSealer { prefetch, ..self }
    }

    /// The same for another thread than the one that builds trains.
    pub fn without_prefetch(self) -> TrainSealer {
        self.with_prefetch(Prefetch::default())
    }

    /// Seals and masks the packets of `train`, `segment` bytes apart, the last perhaps shorter, each with its clear
    /// header in place.
    pub fn seal(self, train: &mut [u8], segment: usize) {
        let Some(train) = train.get_mut(self.lead..) else { return };
        let segment = segment.saturating_sub(self.lead);
        let TrainKey { key, header, tag_len } = &*self.keys;
        let mut prefetch = self.prefetch.first(train.len());
        for (pn, packet) in (self.first_pn..).zip(train.chunks_mut(segment.max(1))) {
            let Some((clear, rest)) = packet.split_at_mut_checked(SHORT_CLEAR) else { continue };
            let Some((tag_at, body)) = rest.split_at_mut_checked(*tag_len) else { continue };
            prefetch.fetch(segment);
            match key.seal(self.lane, pn, clear, body) {
                Ok(tag) => tag_at.copy_from_slice(&tag[..*tag_len]),
                // Only sizes that no packet has are a reason; what is not sealed does not leave readable.
                Err(_) => body.fill(0),
            }
        }
        header.mask_segments(train, segment);
    }
}

/// Opens packets of one lane under the key of one generation.
#[derive(Clone)]
pub struct TrainOpener {
    pub(super) key: Arc<OpenKey>,
    pub(super) header: Arc<HeaderKey>,
    pub(super) tag_len: usize,
    pub(super) lane: u32,
    pub(super) generation: u64,
}

/// The result of opening a train, as bit sets by packet: the lowest bit is the first packet.
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

impl TrainOpener {
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

super::opaque_debug!(TrainKey, TrainSealer, TrainOpener);

#[cfg(test)]
mod tests {
    use super::super::keys::{KeyPair, OpenError, Opened, Secret, Side};
    use super::super::suite::Suite;
    use super::super::tls::DataSecrets;
    use super::*;

    fn ends(suite: Suite) -> (KeyPair, KeyPair) {
        let secrets =
            DataSecrets { client: Secret::from_bytes([1; 32]), server: Secret::from_bytes([2; 32]) };
        (
            KeyPair::data(suite, 1472, &secrets, Side::Client),
            KeyPair::data(suite, 1472, &secrets, Side::Server),
        )
    }

    /// A sealed train of lane 3: packets of 100 bytes, the last of 60, numbers from `first` on.
    fn train(keys: &mut KeyPair, first: u64, packets: usize) -> Vec<u8> {
        let mut t = vec![0; packets * 100 - 40];
        let phase = if keys.seal_keys().phase() { flag::KEY_PHASE } else { 0 };
        for (pn, p) in (first..).zip(t.chunks_mut(100)) {
            p.fill(pn as u8);
            p[0] = flag::KIND | phase;
            p[1..5].copy_from_slice(&7u32.to_be_bytes());
            p[5..9].copy_from_slice(&(pn as u32).to_be_bytes());
        }
        let sealing = keys.sealer().reserve_train(3, first, packets as u64).unwrap();
        sealing.seal(&mut t, 100);
        t
    }

    #[test]
    fn train_sealer_equals_sealing_packets_one_by_one() {
        for suite in Suite::ALL {
            let (mut a, mut b) = ends(suite);
            let t = train(&mut a, 5, 4);
            let tag_len = suite.tag_len();
            let mut copy = t.clone();
            b.open_keys().header().clone().mask_segments(&mut copy, 100);
            for (pn, p) in (5..).zip(copy.chunks_mut(100)) {
                let (clear, rest) = p.split_at_mut(SHORT_CLEAR);
                let (tag, body) = rest.split_at_mut(tag_len);
                assert_eq!(b.open(false, 3, pn, clear, tag, body), Ok(Opened::Current), "{suite}");
                assert!(body.iter().all(|x| *x == pn as u8), "{suite}");
            }
            let (mut copy, mut expected) = (t, 0);
            let o = b.open_keys().train_opener(3).open_train(&mut expected, &mut copy, 100).unwrap();
            assert_eq!((o.opened, o.failed, expected), (0b1111, 0, 9), "{suite}");
            assert!(copy.chunks(100).all(|p| p[SHORT_CLEAR + tag_len..].iter().all(|x| *x == p[8])));
        }
    }

    #[test]
    fn trains_of_the_longest_length_are_opened() {
        let (mut a, b) = ends(Suite::Aes128Gcm);
        let opener = b.open_keys().train_opener(3);
        let (mut t, mut expected) = (train(&mut a, 0, MAX_OPENED), 0);
        let o = opener.open_train(&mut expected, &mut t, 100).unwrap();
        assert_eq!((o.opened.count_ones() as usize, o.failed), (MAX_OPENED, 0));
        let mut t = train(&mut a, MAX_OPENED as u64, MAX_OPENED + 1);
        let was = t.clone();
        assert!(opener.open_train(&mut expected, &mut t, 100).is_none());
        assert_eq!(t, was, "not touched");
    }

    #[test]
    fn packet_numbers_are_expanded_around_the_expected_number() {
        let (mut a, b) = ends(Suite::Aegis128L);
        let first = (1 << 33) - 2;
        let (mut t, mut expected) = (train(&mut a, first, 5), first - 1_000);
        let o = b.open_keys().train_opener(3).open_train(&mut expected, &mut t, 100).unwrap();
        assert_eq!((o.opened, expected), (0b1_1111, first + 5));
        let numbers: Vec<_> = t.chunks(100).map(|p| o.number(p)).collect();
        assert_eq!(numbers, (first..first + 5).collect::<Vec<_>>());
        let later = o.after(2);
        assert_eq!((later.opened, later.failed), (0b111, 0));
        assert_eq!(o.after(200).opened, 0);
    }

    #[test]
    fn modified_packets_fail_and_other_key_phases_are_left_unopened() {
        let (mut a, mut b) = ends(Suite::Aes128Gcm);
        let view = b.open_keys().train_opener(3);
        let mut t = train(&mut a, 0, 3);
        t[150] ^= 1;
        let o = view.open_train(&mut 0, &mut t, 100).unwrap();
        assert_eq!((o.opened, o.failed), (0b101, 0b010));
        // Of another lane.
        let o = b.open_keys().train_opener(4).open_train(&mut 0, &mut train(&mut a, 3, 1), 100).unwrap();
        assert_eq!((o.opened, o.failed), (0, 1));
        // Under the next key: the connection decides, and tells by a new view.
        assert!(a.on_acknowledged(3, 0) && a.update().is_ok());
        let (mut expected, sealed) = (6, train(&mut a, 6, 2));
        let mut t = sealed.clone();
        let o = view.open_train(&mut expected, &mut t, 100).unwrap();
        assert_eq!((o.opened, o.failed, expected), (0, 0, 6));
        for (pn, p) in (6..).zip(t.chunks_mut(100)) {
            let (clear, rest) = p.split_at_mut(SHORT_CLEAR);
            let (tag, body) = rest.split_at_mut(16);
            let which = if pn == 6 { Opened::Updated } else { Opened::Current };
            assert_eq!(b.open(true, 3, pn, clear, tag, body), Ok(which));
        }
        // What the old view opens is late: accepted below what came under the new key, not above (RFC 9001, 6.4).
        assert_eq!(b.opener().admit(&o, 3, 5), Ok(Opened::Previous));
        assert_eq!(b.opener().admit(&o, 3, 6), Err(OpenError::Expired));
        let o = b.open_keys().train_opener(3).open_train(&mut 6, &mut sealed.clone(), 100).unwrap();
        assert_eq!(o.opened, 0b11);
        assert_eq!(b.opener().admit(&o, 3, 7), Ok(Opened::Current));
        b.discard_previous();
        let old = OpenedTrain { generation: 0, ..o };
        assert_eq!(b.opener().admit(&old, 3, 0), Err(OpenError::Expired));
        assert_eq!(b.opener().admit(&o, 64, 0), Err(OpenError::Lane(64)));
        let before = b.open_keys().forged();
        assert!(matches!(b.opener().reject(), OpenError::Forged(_)));
        assert_eq!(b.open_keys().forged(), before + 1);
    }

    #[test]
    fn fragments_and_long_trains_are_handled() {
        let (_, b) = ends(Suite::Aegis128L);
        let view = b.open_keys().train_opener(0);
        for len in 0..60 {
            for stride in [0, 1, 9, 24, 25, 30, 100] {
                if let Some(o) = view.open_train(&mut 0, &mut vec![0x41; len], stride) {
                    assert_eq!(o.opened, 0);
                }
            }
        }
        assert!(view.open_train(&mut 0, &mut [0x41; 65 * 30], 30).is_none());
    }
}
