//! Sets of traffic and their differences, by which unreachable rules are found.
//!
//! A condition on numbers (addresses, ports, code points) is an exact set of ranges; a condition on names is a
//! list of patterns. A rule's [`Region`] is the product of its conditions. Differences of regions are exact in the
//! numbers and err towards a remainder in the names, so a reachable rule is never reported as unreachable.
//!
//! Every comparison spends steps of a [`Budget`], which bounds the time that hostile policies can take. With a
//! spent budget, answers err on the safe side.

use crate::pattern::{Pattern, pattern_matches};
use std::sync::Arc;

/// Remaining steps: one step compares two ranges, two patterns or two of their characters, or copies one.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// A budget of `steps`.
    pub const fn new(steps: usize) -> Budget {
        Budget { left: steps }
    }

    /// Spends steps, down to zero.
    pub const fn spend(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    /// Whether no step is left, in which case the latest answer may be incomplete.
    pub const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// The steps left.
    #[cfg(test)]
    pub const fn left(&self) -> usize {
        self.left
    }
}

/// A set of numbers as ascending ranges with gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// The set of all numbers.
    pub fn all() -> Ranges {
        Ranges(vec![(0, u128::MAX)])
    }

    /// The union of ranges from the first to the last number, in any order.
    pub fn of(ranges: impl IntoIterator<Item = (u128, u128)>) -> Ranges {
        let mut list: Vec<_> = ranges.into_iter().collect();
        list.sort_unstable();
        let mut out: Vec<(u128, u128)> = Vec::with_capacity(list.len());
        for (first, last) in list {
            match out.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => out.push((first, last)),
            }
        }
        Ranges(out)
    }

    /// The ranges.
    pub fn list(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains `n`.
    pub fn contains(&self, n: u128) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= n);
        behind > 0 && n <= self.0[behind - 1].1
    }

    /// The intersection of both sets.
    pub fn intersection(&self, other: &Ranges) -> Ranges {
        let (mut i, mut j, mut out) = (0, 0, Vec::new());
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                out.push((first, last));
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        Ranges(out)
    }

    /// Whether the sets have a number in common.
    pub fn overlaps(&self, other: &Ranges) -> bool {
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            if a.0.max(b.0) <= a.1.min(b.1) {
                return true;
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        false
    }

    /// Whether `other` contains all of this set.
    fn is_subset(&self, other: &Ranges) -> bool {
        self.0.iter().all(|&(first, last)| {
            let behind = other.0.partition_point(|o| o.0 <= first);
            behind > 0 && last <= other.0[behind - 1].1
        })
    }

    /// The numbers of this set that are not in `other`.
    pub fn difference(&self, other: &Ranges) -> Ranges {
        let mut out = Vec::new();
        for &(first, last) in &self.0 {
            let mut from = Some(first);
            let begins = other.0.partition_point(|o| o.1 < first);
            for o in other.0[begins..].iter().take_while(|o| o.0 <= last) {
                let start = from.unwrap_or(first);
                if o.0 > start {
                    out.push((start, o.0 - 1));
                }
                from = o.1.checked_add(1).filter(|n| *n <= last);
                if from.is_none() {
                    break;
                }
            }
            out.extend(from.map(|f| (f, last)));
        }
        Ranges(out)
    }
}

/// A set of names given by patterns: `*` stands for any characters, `?` for any one. `None` is the set of all
/// names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names(Option<Vec<Arc<Pattern>>>);

impl Names {
    /// The names that match any of the patterns; all names if there is no pattern.
    pub fn of(patterns: &[String]) -> Names {
        let any =
            patterns.is_empty() || patterns.iter().any(|p| !p.is_empty() && p.bytes().all(|b| b == b'*'));
        Names((!any).then(|| patterns.iter().map(|p| Arc::new(Pattern::new(p))).collect()))
    }

    /// The patterns; `None` for the set of all names.
    pub fn patterns(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.0.as_ref()?.iter().map(|p| p.text()))
    }

    /// Whether `name` matches.
    pub fn contains(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|all| all.iter().any(|p| pattern_matches(p.text(), name)))
    }

    /// Whether any of `names` matches, or the set is that of all names.
    pub fn contains_any(&self, names: &[&str]) -> bool {
        self.0.is_none() || names.iter().any(|n| self.contains(n))
    }

    /// Splits this set into what `other` certainly contains and the rest. An empty half is `None`.
    fn split_by(&self, other: &Names, budget: &mut Budget) -> (Option<Names>, Option<Names>) {
        match (&self.0, &other.0) {
            (_, None) => (Some(self.clone()), None),
            (None, Some(_)) => (None, Some(self.clone())),
            (Some(ours), Some(theirs)) => {
                let mut covered = |p: &Arc<Pattern>| theirs.iter().any(|t| t.covers(p, budget));
                let (within, rest): (Vec<_>, Vec<_>) = ours.iter().cloned().partition(|p| covered(p));
                let some = |v: Vec<Arc<Pattern>>| (!v.is_empty()).then_some(Names(Some(v)));
                (some(within), some(rest))
            }
        }
    }

    /// Whether `other` certainly contains a part of this set, that is, whether [`Names::split_by`] has a first
    /// half.
    fn covers_any_of(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(ours), Some(theirs)) => ours.iter().any(|p| theirs.iter().any(|t| t.covers(p, budget))),
        }
    }

    /// Whether `other` certainly contains all of this set, that is, whether [`Names::split_by`] has no second
    /// half.
    fn is_subset(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(ours), Some(theirs)) => ours.iter().all(|p| theirs.iter().any(|t| t.covers(p, budget))),
        }
    }

    /// Whether some name may be in both sets.
    fn overlaps(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => ours.iter().any(|p| theirs.iter().any(|t| p.overlaps(t, budget))),
            _ => true,
        }
    }

    /// The number of patterns.
    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }
}

/// The conditions on numbers, in the order in which a region stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumericField {
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    Carrier,
    Dscp,
    Qos,
    Priority,
}

impl NumericField {
    pub const ALL: [NumericField; 8] = [
        NumericField::Source,
        NumericField::Destination,
        NumericField::SourcePort,
        NumericField::DestinationPort,
        NumericField::Carrier,
        NumericField::Dscp,
        NumericField::Qos,
        NumericField::Priority,
    ];
}

/// The conditions on names, in the order in which a region stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameField {
    Application,
    Interface,
}

/// The traffic for which all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// One set per numeric field; `None` stands for all numbers.
    numbers: [Option<Ranges>; NumericField::ALL.len()],
    names: [Names; 2],
}

/// The coordinates of one flow.
#[derive(Clone, Debug)]
pub(crate) struct FlowPoint<'a> {
    pub numbers: [u128; NumericField::ALL.len()],
    pub application: &'a str,
    /// The interfaces that have its local address.
    pub interfaces: Vec<&'a str>,
}

impl Region {
    /// All traffic.
    pub fn all() -> Region {
        Region { numbers: [const { None }; NumericField::ALL.len()], names: [Names(None), Names(None)] }
    }

    /// The part of the region whose numbers are in `ranges`.
    pub fn with_numbers(mut self, which: NumericField, ranges: &Ranges) -> Region {
        let mine = &mut self.numbers[which as usize];
        *mine = Some(mine.as_ref().map_or_else(|| ranges.clone(), |m| m.intersection(ranges)));
        self
    }

    /// The region with another set of names. The region's set must be that of all names.
    pub fn with_names(mut self, which: NameField, names: Names) -> Region {
        self.names[which as usize] = names;
        self
    }

    /// Its numbers of a field; `None` for all numbers.
    pub fn ranges(&self, which: NumericField) -> Option<&Ranges> {
        self.numbers[which as usize].as_ref()
    }

    /// Its names of a field.
    pub const fn names(&self, which: NameField) -> &Names {
        &self.names[which as usize]
    }

    /// Whether the region contains a flow.
    pub fn contains(&self, p: &FlowPoint<'_>) -> bool {
        self.numbers.iter().zip(&p.numbers).all(|(ranges, n)| ranges.as_ref().is_none_or(|r| r.contains(*n)))
            && self.names[NameField::Application as usize].contains(p.application)
            && self.names[NameField::Interface as usize].contains_any(&p.interfaces)
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.numbers.iter().flatten().any(Ranges::is_empty)
    }

    /// Whether some traffic may be in both regions.
    pub fn overlaps(&self, other: &Region, budget: &mut Budget) -> bool {
        self.numbers_overlap(other, budget)
            && self.names.iter().zip(&other.names).all(|(a, b)| a.overlaps(b, budget))
    }

    fn numbers_overlap(&self, other: &Region, budget: &mut Budget) -> bool {
        budget.spend(1);
        self.numbers.iter().zip(&other.numbers).all(|pair| {
            let (Some(a), Some(b)) = pair else { return true };
            // Comparing one range with one is covered by the step of the regions themselves.
            budget.spend((a.0.len() + b.0.len()).saturating_sub(2));
            a.overlaps(b)
        })
    }

    /// Whether `other` certainly contains all of this region.
    pub fn is_subset(&self, other: &Region, budget: &mut Budget) -> bool {
        budget.spend(1);
        self.numbers.iter().zip(&other.numbers).all(|pair| {
            let (Some(a), Some(b)) = pair else { return pair.1.is_none() };
            budget.spend(a.0.len().saturating_sub(1));
            a.is_subset(b)
        }) && self.names.iter().zip(&other.names).all(|(a, b)| a.is_subset(b, budget))
    }

    /// Whether [`Region::difference`] would remove something or split the region; cheaper than computing it.
    fn is_changed_by(&self, other: &Region, budget: &mut Budget) -> bool {
        self.numbers_overlap(other, budget)
            && self.names.iter().zip(&other.names).all(|(a, b)| a.covers_any_of(b, budget))
    }

    /// What is left of the region without `other`, in disjoint pieces; `None` if nothing is removed.
    pub fn difference(&self, other: &Region, budget: &mut Budget) -> Option<Vec<Region>> {
        if !self.is_changed_by(other, budget) {
            return None;
        }
        let (mut pieces, mut inner) = (Vec::new(), self.clone_with_budget(budget));
        for (i, theirs) in other.names.iter().enumerate() {
            let (within, rest) = inner.names[i].split_by(theirs, budget);
            if let Some(rest) = rest {
                let mut piece = inner.clone_with_budget(budget);
                piece.names[i] = rest;
                pieces.push(piece);
            }
            match within {
                Some(within) => inner.names[i] = within,
                // Reached only if the budget was spent meanwhile.
                None => return Some(pieces),
            }
        }
        for (i, theirs) in other.numbers.iter().enumerate() {
            let Some(theirs) = theirs else { continue };
            let ours = inner.numbers[i].take().unwrap_or_else(Ranges::all);
            budget.spend(2 * (ours.0.len() + theirs.0.len()));
            let (rest, both) = (ours.difference(theirs), ours.intersection(theirs));
            if !rest.is_empty() {
                let mut piece = inner.clone_with_budget(budget);
                piece.numbers[i] = Some(rest);
                pieces.push(piece);
            }
            inner.numbers[i] = Some(both);
        }
        Some(pieces)
    }

    /// A copy, which costs one step per part.
    fn clone_with_budget(&self, budget: &mut Budget) -> Region {
        let numbers: usize = self.numbers.iter().flatten().map(|r| r.0.len()).sum();
        budget.spend(numbers + self.names.iter().map(Names::len).sum::<usize>());
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(patterns: &[&str]) -> Names {
        Names::of(&patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
    }

    /// The difference with an ample budget.
    fn difference(a: &Region, b: &Region) -> Vec<Region> {
        a.difference(b, &mut Budget::new(usize::MAX)).unwrap_or_else(|| vec![a.clone()])
    }

    #[test]
    fn union_of_ranges_is_merged() {
        assert_eq!(
            Ranges::of([(5, 9), (0, 2), (3, 4), (20, u128::MAX)]),
            Ranges(vec![(0, 9), (20, u128::MAX)])
        );
        assert!(Ranges::all().difference(&Ranges::all()).is_empty());
        assert_eq!(Ranges::all().difference(&Ranges::of([(5, 5)])), Ranges(vec![(0, 4), (6, u128::MAX)]));
    }

    #[test]
    fn difference_of_names_errs_towards_a_remainder() {
        let all = Region::all();
        let backup = all.clone().with_names(NameField::Application, names(&["backup*"]));
        let two = all.clone().with_names(NameField::Application, names(&["backup-a", "query"]));
        assert!(difference(&backup, &all).is_empty() && difference(&backup, &backup).is_empty());
        assert_eq!(
            difference(&two, &backup),
            [all.clone().with_names(NameField::Application, names(&["query"]))]
        );
        let mut budget = Budget::new(100);
        assert_eq!(all.difference(&backup, &mut budget), None);
        assert!(
            !backup.overlaps(&all.clone().with_names(NameField::Application, names(&["query"])), &mut budget)
        );
        assert!(!budget.is_spent() && budget.left() < 100);
        // With a spent budget, nothing that needs a comparison counts as removed.
        let any = all.with_names(NameField::Application, names(&["*backup*"]));
        assert_eq!((any.difference(&any, &mut Budget::new(0)), difference(&any, &any)), (None, Vec::new()));
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0_u128..30, 0_u128..8), 0..5)
            .prop_map(|v| Ranges::of(v.into_iter().map(|(first, more)| (first, first + more))))
    }

    proptest! {
        #[test]
        fn ranges_obey_set_algebra(a in ranges(), b in ranges()) {
            for n in 0..40 {
                prop_assert_eq!(a.intersection(&b).contains(n), a.contains(n) && b.contains(n));
                prop_assert_eq!(a.difference(&b).contains(n), a.contains(n) && !b.contains(n));
            }
            prop_assert_eq!(a.overlaps(&b), !a.intersection(&b).is_empty());
            prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
        }

        #[test]
        fn region_difference_is_exact_in_numbers(a in [ranges(), ranges()], b in [ranges(), ranges()]) {
            let region = |r: &[Ranges; 2]| {
                Region::all().with_numbers(NumericField::Source, &r[0]).with_numbers(NumericField::Dscp, &r[1])
            };
            let rest = difference(&region(&a), &region(&b));
            for (x, y) in (0..40).flat_map(|x| (0..40).map(move |y| (x, y))) {
                let holds = |r: &Region, which, n| r.numbers[which as usize].as_ref().is_none_or(|r| r.contains(n));
                let within = |r: &Region| holds(r, NumericField::Source, x) && holds(r, NumericField::Dscp, y);
                let is = within(&region(&a)) && !within(&region(&b));
                prop_assert_eq!(rest.iter().filter(|r| within(r)).count(), usize::from(is));
            }
        }
    }
}
