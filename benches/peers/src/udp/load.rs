//! Packets made of a region that no cache holds, and brought to their places in another: what a transport does with payload
//! and nothing else. Numbers stand in front, as packets may be lost:
//!
//! ```text
//! 0..8     number, which tells the place
//! 8..24    tag, where packets are sealed
//! ..       payload
//! ```

use anyhow::{Context, Result};
use base::Prefetch;

use crate::pattern;
use crate::seal::{self, TAG, Way};

/// Bytes of a number.
const NUMBER: usize = 8;
/// A sender fetches the payload of the packet so many after the one that it makes: a train ahead, as Longhaul does.
const SENT_AHEAD: usize = 44;
/// A receiver fetches the place of the packet so many after the one that it has placed.
const PLACED_AHEAD: usize = 2;

/// Where a packet's payload of `len` bytes lies in a region; `None`: the region is shorter than that.
fn place(number: u64, len: usize, region: usize) -> Option<usize> {
    let places = (region.checked_div(len)? as u64).max(1);
    let at = (number % places) as usize * len;
    (at + len <= region).then_some(at)
}

/// Asks for what lies `ahead` packets behind the one at `at`. What is behind the region's end is no harm.
fn fetch(region: &[u8], at: usize, len: usize, ahead: usize) {
    Prefetch::new(region.as_ptr().wrapping_add(at + ahead * len), len).fetch(len);
}

/// What a sender makes packets of.
pub struct Load {
    region: Vec<u8>,
    sealed: bool,
    /// Of the next packet.
    number: u64,
}

impl Load {
    /// A whole region.
    pub fn new(len: usize, sealed: bool) -> Load {
        Load { region: pattern::region(len), sealed, number: 0 }
    }

    /// Makes the packets of a train, which are all `segment` bytes long.
    ///
    /// # Errors
    /// Packets without room for payload, or longer than the region.
    pub fn fill(&mut self, train: &mut [u8], segment: usize) -> Result<()> {
        for packet in train.chunks_exact_mut(segment) {
            self.make(packet).context("packets of this length cannot be made")?;
        }
        Ok(())
    }

    fn make(&mut self, packet: &mut [u8]) -> Result<()> {
        let (front, body) = packet.split_at_mut_checked(NUMBER).context("too short")?;
        front.copy_from_slice(&self.number.to_le_bytes());
        let len = body.len().saturating_sub(if self.sealed { TAG } else { 0 });
        let at = place(self.number, len, self.region.len()).context("no payload, or too much")?;
        fetch(&self.region, at, len, SENT_AHEAD);
        let payload = &self.region[at..at + len];
        if self.sealed {
            seal::seal(Way::There, self.number, payload, body)?;
        } else {
            body.copy_from_slice(payload);
        }
        self.number += 1;
        Ok(())
    }
}

/// Where a receiver brings what arrives.
pub struct Places {
    region: Vec<u8>,
    sealed: bool,
}

impl Places {
    /// A region, whose pages are there, as those of a registered one are.
    pub fn new(len: usize, sealed: bool) -> Places {
        let mut region = vec![0; len];
        region.iter_mut().step_by(4096).for_each(|b| *b = 1);
        Places { region, sealed }
    }

    /// Opens the packets of a train, `stride` bytes apart, and brings their payload to its places; gives its bytes.
    ///
    /// # Errors
    /// A packet that is none of ours, or does not open.
    pub fn take(&mut self, train: &mut [u8], stride: usize) -> Result<u64> {
        let each = train.chunks_mut(stride.max(1)).map(|packet| self.bring(packet));
        each.sum()
    }

    fn bring(&mut self, packet: &mut [u8]) -> Result<u64> {
        let (front, body) = packet.split_first_chunk_mut().context("a packet without a number arrived")?;
        let number = u64::from_le_bytes(*front);
        let len = body.len().saturating_sub(if self.sealed { TAG } else { 0 });
        let at = place(number, len, self.region.len()).context("a packet without a place arrived")?;
        let to = &mut self.region[at..at + len];
        if self.sealed {
            seal::open(Way::There, number, body, to)?;
        } else {
            to.copy_from_slice(body);
        }
        fetch(&self.region, at, len, PLACED_AHEAD);
        Ok(len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a multiple of a packet's payload.
    const LEN: usize = 10_000;
    const SEGMENT: usize = 1_472;

    fn train(load: &mut Load) -> Vec<u8> {
        let mut train = vec![0; 5 * SEGMENT];
        load.fill(&mut train, SEGMENT).expect("room");
        train
    }

    #[test]
    fn everything_comes_to_its_place_and_is_counted() {
        for (sealed, payload) in [(false, 1_464), (true, 1_448)] {
            let (mut load, mut places) = (Load::new(LEN, sealed), Places::new(LEN, sealed));
            let all = LEN / payload * payload;
            for _ in 0..4 {
                let mut train = train(&mut load);
                assert_eq!(places.take(&mut train, SEGMENT).expect("opens"), 5 * payload as u64);
            }
            assert!(pattern::holds(&places.region, all), "{sealed}");
            assert_eq!(places.region[all..], Places::new(LEN, sealed).region[all..]);
        }
    }

    #[test]
    fn what_is_lost_is_not_counted_and_leaves_its_place_alone() {
        let (mut load, mut places) = (Load::new(LEN, true), Places::new(LEN, true));
        let mut first = train(&mut load);
        first.drain(SEGMENT..2 * SEGMENT);
        assert_eq!(places.take(&mut first, SEGMENT).expect("opens"), 4 * 1_448);
        assert_eq!(places.region[..1_448], load.region[..1_448]);
        assert_eq!(places.region[1_448..2_896], Places::new(LEN, true).region[1_448..2_896]);
        assert_eq!(places.region[2_896..5 * 1_448], load.region[2_896..5 * 1_448]);
    }

    #[test]
    fn what_was_changed_is_an_error() {
        // The number, the tag, the payload.
        for at in [0, 8, 100] {
            let (mut load, mut places) = (Load::new(LEN, true), Places::new(LEN, true));
            let mut train = train(&mut load);
            train[2 * SEGMENT + at] ^= 1;
            assert!(places.take(&mut train, SEGMENT).is_err(), "{at}");
        }
        for len in [0, 7, 8, 8 + TAG] {
            assert!(Load::new(LEN, true).make(&mut vec![0; len]).is_err(), "{len}");
            assert!(Places::new(LEN, true).bring(&mut vec![0; len]).is_err(), "{len}");
        }
        assert!(Load::new(100, false).make(&mut [0; 109]).is_err());
    }
}
