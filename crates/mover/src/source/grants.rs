//! The memory of the sink that the data of one file may be written to.

use std::collections::BTreeMap;
use std::ops::Range;

/// Windows that are remembered for a file; beyond these the earliest in the file is forgotten.
const MAX_GRANTS: usize = 4096;

/// By the first byte: length and key.
#[derive(Debug, Default)]
pub(super) struct Grants(BTreeMap<u64, (u64, u32)>);

impl Grants {
    /// Memory for these bytes of the file. Earlier memory for any of them is gone: the sink grants bytes a second time only when
    /// it has taken the first window back, and its windows need not begin where the first ones did.
    pub fn insert(&mut self, bytes: Range<u64>, rkey: u32) {
        while let Some((&start, _)) =
            self.0.range(..bytes.end).next_back().filter(|(s, (len, _))| *s + len > bytes.start)
        {
            self.0.remove(&start);
        }
        if self.0.len() >= MAX_GRANTS {
            self.0.pop_first();
        }
        self.0.insert(bytes.start, (bytes.end - bytes.start, rkey));
    }
    /// The key for these bytes, and the byte of the file at which its memory begins.
    pub fn find(&self, bytes: Range<u64>) -> Option<(u64, u32)> {
        let (&start, &(len, rkey)) = self.0.range(..=bytes.start).next_back()?;
        (bytes.end <= start + len).then_some((start, rkey))
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_of_windows_that_were_taken_back_are_not_used() {
        let mut g = Grants::default();
        for (n, start) in (1..).zip([0, 4, 8]) {
            g.insert(start..start + 4, n);
        }
        assert_eq!((g.find(4..6), g.find(3..5), g.find(11..12)), (Some((4, 2)), None, Some((8, 3))));
        // A repair over the border of two windows, which have been taken back.
        g.insert(2..6, 9);
        assert_eq!((g.find(4..6), g.find(2..3)), (Some((2, 9)), Some((2, 9))));
        assert_eq!((g.find(0..1), g.find(6..7), g.find(8..12)), (None, None, Some((8, 3))));
        assert_eq!(g.len(), 2);
    }

    #[test]
    fn number_of_windows_is_limited() {
        let mut g = Grants::default();
        (0..2 * MAX_GRANTS as u64).for_each(|n| g.insert(n..n + 1, 0));
        assert_eq!(g.len(), MAX_GRANTS);
    }

    proptest! {
        #[test]
        fn newest_grant_of_a_byte_counts(all in proptest::collection::vec((0u64..60, 1u64..12), 1..40)) {
            let mut g = Grants::default();
            let mut model = [None; 72];
            for (n, (start, len)) in all.into_iter().enumerate() {
                let old: Vec<_> = model[start as usize..(start + len) as usize].iter().flatten().copied().collect();
                model.iter_mut().filter(|m| m.is_some_and(|k| old.contains(&k))).for_each(|m| *m = None);
                model[start as usize..(start + len) as usize].fill(Some(n as u32));
                g.insert(start..start + len, n as u32);
                for (at, want) in (0..).zip(&model) {
                    prop_assert_eq!(g.find(at..at + 1).map(|f| f.1), *want);
                }
            }
        }
    }
}
