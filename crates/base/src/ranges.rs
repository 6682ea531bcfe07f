//! A set of disjoint half-open ranges of `u64`.

use core::ops::Range;
use std::collections::BTreeMap;

/// Disjoint, non-adjacent half-open ranges. Appending behind the last range, the common case of data that
/// arrives in order, costs no search; anything else costs one search in the number of ranges (holes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// The range with the highest numbers, kept out of the map.
    last: Option<Range<u64>>,
    below: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// An empty set.
    pub const fn new() -> RangeSet {
        RangeSet { last: None, below: BTreeMap::new() }
    }
    /// Number of disjoint ranges.
    pub fn ranges(&self) -> usize {
        self.below.len() + usize::from(self.last.is_some())
    }
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }
    /// Takes everything out.
    pub fn clear(&mut self) {
        // Assigning an empty map would take an empty one apart.
        if self.last.take().is_some() && !self.below.is_empty() {
            self.below = BTreeMap::new();
        }
    }
    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.below.iter().map(|(&s, &e)| s..e).chain(self.last.clone())
    }
    /// The lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        self.iter().next()
    }
    /// The highest range.
    pub fn last(&self) -> Option<Range<u64>> {
        self.last.clone()
    }
    /// The range that holds `x`.
    pub fn containing(&self, x: u64) -> Option<Range<u64>> {
        if let Some(l) = &self.last
            && l.start <= x
        {
            return (x < l.end).then(|| l.clone());
        }
        self.below.range(..=x).next_back().map(|(&s, &e)| s..e).filter(|r| x < r.end)
    }
    /// Whether all of `r` is in the set. An empty range always is.
    pub fn contains_all(&self, r: Range<u64>) -> bool {
        r.start >= r.end || self.containing(r.start).is_some_and(|c| r.end <= c.end)
    }
    /// How many numbers are in the set.
    pub fn count(&self) -> u64 {
        self.iter().map(|r| r.end - r.start).sum()
    }
    /// Adds `r`; returns how many numbers were new.
    pub fn insert(&mut self, r: Range<u64>) -> u64 {
        if r.start >= r.end {
            return 0;
        }
        match &mut self.last {
            None => {
                let n = r.end - r.start;
                self.last = Some(r);
                return n;
            }
            // In order: grow the last range in place.
            Some(l) if r.start >= l.start && r.start <= l.end => {
                let n = r.end.saturating_sub(l.end);
                l.end = l.end.max(r.end);
                return n;
            }
            Some(l) if r.start > l.end => {
                let n = r.end - r.start;
                let old = core::mem::replace(l, r);
                self.below.insert(old.start, old.end);
                return n;
            }
            Some(_) => {}
        }
        self.insert_below(r)
    }

    /// Adds a range that starts before the last one.
    fn insert_below(&mut self, r: Range<u64>) -> u64 {
        let (mut start, mut end, mut new) = (r.start, r.end, r.end - r.start);
        if let Some((&s, &e)) = self.below.range(..=r.start).next_back()
            && e >= r.start
        {
            new -= e.min(r.end).saturating_sub(r.start);
            start = s;
            end = end.max(e);
            self.below.remove(&s);
        }
        while let Some((&s, &e)) = self.below.range(start..=end).next() {
            // Numbers of [s, e) that lie inside r were there before.
            new -= e.min(r.end).saturating_sub(s.max(r.start));
            end = end.max(e);
            self.below.remove(&s);
        }
        if let Some(l) = &mut self.last
            && end >= l.start
        {
            new -= r.end.min(l.end).saturating_sub(l.start);
            l.start = start;
            l.end = l.end.max(end);
        } else {
            self.below.insert(start, end);
        }
        new
    }

    /// Removes `r`; returns how many numbers were removed.
    pub fn remove(&mut self, r: Range<u64>) -> u64 {
        if r.start >= r.end {
            return 0;
        }
        if let Some(l) = &mut self.last
            && r.start <= l.start
            && r.end < l.end
            && self.below.is_empty()
        {
            // What came first goes first: nothing to search.
            let gone = r.end.saturating_sub(l.start);
            l.start += gone;
            return gone;
        }
        if let Some(l) = self.last.take() {
            self.below.insert(l.start, l.end);
        }
        let mut gone = 0;
        if let Some((&s, &e)) = self.below.range(..r.start).next_back()
            && e > r.start
        {
            self.below.insert(s, r.start);
            gone += e.min(r.end) - r.start;
            if e > r.end {
                self.below.insert(r.end, e);
            }
        }
        while let Some((&s, &e)) = self.below.range(r.start..r.end).next() {
            self.below.remove(&s);
            gone += e.min(r.end) - s;
            if e > r.end {
                self.below.insert(r.end, e);
            }
        }
        self.last = self.below.pop_last().map(|(s, e)| s..e);
        gone
    }

    /// The parts of `within` that are not in the set, in ascending order.
    pub fn gaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        // An empty or reversed range has no gaps; the map's own ranges must not be reversed.
        let within = within.start..within.end.max(within.start);
        let mut at = within.start;
        let before = self.containing(within.start);
        let inner = self.below.range(within.start..within.end).map(|(&s, &e)| s..e);
        let tail = self.last.clone().filter(move |l| l.start >= within.start && l.start < within.end);
        let end = within.end..within.end;
        before.into_iter().chain(inner).chain(tail).chain(core::iter::once(end)).filter_map(move |r| {
            let gap = at..r.start.min(within.end);
            at = at.max(r.end);
            (gap.start < gap.end).then_some(gap)
        })
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(it: I) -> RangeSet {
        let mut s = RangeSet::new();
        for r in it {
            s.insert(r);
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    fn reversed_ranges_are_empty() {
        let mut set: RangeSet = [1..3, 5..9].into_iter().collect();
        assert_eq!(set.gaps(7..2).count(), 0);
        assert_eq!((set.insert(7..2), set.remove(7..2)), (0, 0));
        assert!(set.contains_all(7..2));
    }

    proptest! {
        #[test]
        fn ranges_match_a_set_model(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..60)) {
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            for (add, start, len) in ops {
                let r = start..start + len;
                if add {
                    let new = r.clone().filter(|x| model.insert(*x)).count() as u64;
                    prop_assert_eq!(set.insert(r), new);
                } else {
                    let gone = r.clone().filter(|x| model.remove(x)).count() as u64;
                    prop_assert_eq!(set.remove(r), gone);
                }
                let flat: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(flat, model.iter().copied().collect::<Vec<_>>());
                let mut prev: Option<u64> = None;
                for r in set.iter() {
                    prop_assert!(r.start < r.end && prev.is_none_or(|p| p < r.start));
                    prev = Some(r.end);
                }
                let gaps: Vec<u64> = set.gaps(5..50).flatten().collect();
                prop_assert_eq!(gaps, (5..50).filter(|x| !model.contains(x)).collect::<Vec<_>>());
                for x in 0..80 {
                    prop_assert_eq!(set.containing(x).is_some(), model.contains(&x));
                }
            }
        }
    }
}
