//! Sets of traffic, and what they have in common: how a rule is found to be unreachable.
//!
//! A condition on numbers (addresses, ports, code points, ...) is a set of ranges, exactly; one on names is a list of
//! patterns. A rule's [`Region`] is the product of its conditions. Differences of regions are exact in the numbers and
//! err towards "something is left" in the names, so that no rule is called unreachable that is not.
//!
//! Every comparison is paid for from a [`Budget`]; with nothing left of it, what is asked for is not found out.

use crate::pattern::{Pattern, fits};
use std::sync::Arc;

/// Steps that may still be taken: a step compares two ranges, two patterns or two of their characters, or copies one.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// So many steps.
    pub const fn new(steps: usize) -> Budget {
        Budget { left: steps }
    }

    /// Takes steps, as far as there are any.
    pub const fn spend(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }

    /// Whether nothing is left: what was found out last is incomplete.
    pub const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Steps that are left.
    #[cfg(test)]
    pub const fn left(&self) -> usize {
        self.left
    }
}

/// Ranges of numbers, ascending, with gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// Every number.
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

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `n` is among them.
    pub fn holds(&self, n: u128) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= n);
        behind > 0 && n <= self.0[behind - 1].1
    }

    /// What both hold.
    pub fn and(&self, other: &Ranges) -> Ranges {
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

    /// Whether they have a number in common.
    pub fn meets(&self, other: &Ranges) -> bool {
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            if a.0.max(b.0) <= a.1.min(b.1) {
                return true;
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        false
    }

    /// Whether `other` holds all that this does.
    fn is_within(&self, other: &Ranges) -> bool {
        self.0.iter().all(|&(first, last)| {
            let behind = other.0.partition_point(|o| o.0 <= first);
            behind > 0 && last <= other.0[behind - 1].1
        })
    }

    /// What this holds and `other` does not.
    pub fn minus(&self, other: &Ranges) -> Ranges {
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

/// Names by patterns: `*` stands for any characters, `?` for any one. `None` is every name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names(Option<Vec<Arc<Pattern>>>);

impl Names {
    /// Those that fit one of the patterns; every name if there is none.
    pub fn of(patterns: &[String]) -> Names {
        let any =
            patterns.is_empty() || patterns.iter().any(|p| !p.is_empty() && p.bytes().all(|b| b == b'*'));
        Names((!any).then(|| patterns.iter().map(|p| Arc::new(Pattern::new(p))).collect()))
    }

    /// The patterns; `None` for every name.
    pub fn patterns(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.0.as_ref()?.iter().map(|p| p.text()))
    }

    /// Whether `name` fits.
    pub fn holds(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|all| all.iter().any(|p| fits(p.text(), name)))
    }

    /// Whether one of `names` fits, or every name does.
    pub fn holds_any(&self, names: &[&str]) -> bool {
        self.0.is_none() || names.iter().any(|n| self.holds(n))
    }

    /// Parts this into what `other` surely holds as well, and the rest. `None` where nothing is.
    fn part(&self, other: &Names, budget: &mut Budget) -> (Option<Names>, Option<Names>) {
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

    /// Whether `other` surely holds a part of this: whether there is a first half of [`Names::part`].
    fn has_part(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(ours), Some(theirs)) => ours.iter().any(|p| theirs.iter().any(|t| t.covers(p, budget))),
        }
    }

    /// Whether `other` surely holds all of this: whether there is no second half of [`Names::part`].
    fn is_within(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(ours), Some(theirs)) => ours.iter().all(|p| theirs.iter().any(|t| t.covers(p, budget))),
        }
    }

    /// Whether a name may fit both.
    fn meets(&self, other: &Names, budget: &mut Budget) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => ours.iter().any(|p| theirs.iter().any(|t| p.meets(t, budget))),
            _ => true,
        }
    }

    /// Its patterns.
    fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }
}

/// Conditions on numbers, in the order in which a region keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    Carrier,
    Dscp,
    Qos,
    Priority,
}

impl Number {
    pub const ALL: [Number; 8] = [
        Number::Source,
        Number::Destination,
        Number::SourcePort,
        Number::DestinationPort,
        Number::Carrier,
        Number::Dscp,
        Number::Qos,
        Number::Priority,
    ];
}

/// Conditions on names, in the order in which a region keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Application,
    Interface,
}

/// The traffic for which all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// `None` where every number will do.
    numbers: [Option<Ranges>; Number::ALL.len()],
    names: [Names; 2],
}

/// One flow among all traffic.
#[derive(Clone, Debug)]
pub(crate) struct Point<'a> {
    pub numbers: [u128; Number::ALL.len()],
    pub application: &'a str,
    /// The interfaces that have its address.
    pub interfaces: Vec<&'a str>,
}

impl Region {
    /// All traffic.
    pub fn all() -> Region {
        Region { numbers: [const { None }; Number::ALL.len()], names: [Names(None), Names(None)] }
    }

    /// The part of it whose numbers are in `ranges`.
    pub fn narrow(mut self, which: Number, ranges: &Ranges) -> Region {
        let mine = &mut self.numbers[which as usize];
        *mine = Some(mine.as_ref().map_or_else(|| ranges.clone(), |m| m.and(ranges)));
        self
    }

    /// The same with names that fit; a region of every name is meant.
    pub fn named(mut self, which: Name, names: Names) -> Region {
        self.names[which as usize] = names;
        self
    }

    /// Its numbers of a kind; `None` where every one will do.
    pub fn ranges(&self, which: Number) -> Option<&Ranges> {
        self.numbers[which as usize].as_ref()
    }

    /// Its names of a kind.
    pub const fn names(&self, which: Name) -> &Names {
        &self.names[which as usize]
    }

    /// Whether a flow is in it.
    pub fn holds(&self, p: &Point<'_>) -> bool {
        self.numbers.iter().zip(&p.numbers).all(|(ranges, n)| ranges.as_ref().is_none_or(|r| r.holds(*n)))
            && self.names[Name::Application as usize].holds(p.application)
            && self.names[Name::Interface as usize].holds_any(&p.interfaces)
    }

    /// Whether no traffic is in it.
    pub fn is_empty(&self) -> bool {
        self.numbers.iter().flatten().any(Ranges::is_empty)
    }

    /// Whether some traffic may be in both.
    pub fn meets(&self, other: &Region, budget: &mut Budget) -> bool {
        self.meets_in_numbers(other, budget)
            && self.names.iter().zip(&other.names).all(|(a, b)| a.meets(b, budget))
    }

    fn meets_in_numbers(&self, other: &Region, budget: &mut Budget) -> bool {
        budget.spend(1);
        self.numbers.iter().zip(&other.numbers).all(|pair| {
            let (Some(a), Some(b)) = pair else { return true };
            // One range against one is within the step of the regions themselves.
            budget.spend((a.0.len() + b.0.len()).saturating_sub(2));
            a.meets(b)
        })
    }

    /// Whether `other` surely holds all of it.
    pub fn is_within(&self, other: &Region, budget: &mut Budget) -> bool {
        budget.spend(1);
        self.numbers.iter().zip(&other.numbers).all(|pair| {
            let (Some(a), Some(b)) = pair else { return pair.1.is_none() };
            budget.spend(a.0.len().saturating_sub(1));
            a.is_within(b)
        }) && self.names.iter().zip(&other.names).all(|(a, b)| a.is_within(b, budget))
    }

    /// Whether [`Region::minus`] would leave less of it than there is, or leave it in other pieces. Cheaper than doing it.
    fn is_cut_by(&self, other: &Region, budget: &mut Budget) -> bool {
        self.meets_in_numbers(other, budget)
            && self.names.iter().zip(&other.names).all(|(a, b)| a.has_part(b, budget))
    }

    /// What is left of it without `other`, in pieces that have nothing in common; `None`: all of it is.
    pub fn minus(&self, other: &Region, budget: &mut Budget) -> Option<Vec<Region>> {
        if !self.is_cut_by(other, budget) {
            return None;
        }
        let (mut pieces, mut inner) = (Vec::new(), self.copied(budget));
        for (i, theirs) in other.names.iter().enumerate() {
            let (within, rest) = inner.names[i].part(theirs, budget);
            if let Some(rest) = rest {
                let mut piece = inner.copied(budget);
                piece.names[i] = rest;
                pieces.push(piece);
            }
            match within {
                Some(within) => inner.names[i] = within,
                // Only where the budget was spent meanwhile.
                None => return Some(pieces),
            }
        }
        for (i, theirs) in other.numbers.iter().enumerate() {
            let Some(theirs) = theirs else { continue };
            let ours = inner.numbers[i].take().unwrap_or_else(Ranges::all);
            budget.spend(2 * (ours.0.len() + theirs.0.len()));
            let (rest, both) = (ours.minus(theirs), ours.and(theirs));
            if !rest.is_empty() {
                let mut piece = inner.copied(budget);
                piece.numbers[i] = Some(rest);
                pieces.push(piece);
            }
            inner.numbers[i] = Some(both);
        }
        Some(pieces)
    }

    /// A copy, which costs as many steps as there are parts.
    fn copied(&self, budget: &mut Budget) -> Region {
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

    /// What is left, however much there is to do.
    fn minus(a: &Region, b: &Region) -> Vec<Region> {
        a.minus(b, &mut Budget::new(usize::MAX)).unwrap_or_else(|| vec![a.clone()])
    }

    #[test]
    fn a_union_of_ranges_is_kept_without_overlaps() {
        assert_eq!(
            Ranges::of([(5, 9), (0, 2), (3, 4), (20, u128::MAX)]),
            Ranges(vec![(0, 9), (20, u128::MAX)])
        );
        assert!(Ranges::all().minus(&Ranges::all()).is_empty());
        assert_eq!(Ranges::all().minus(&Ranges::of([(5, 5)])), Ranges(vec![(0, 4), (6, u128::MAX)]));
    }

    #[test]
    fn names_err_towards_something_left() {
        let all = Region::all();
        let backup = all.clone().named(Name::Application, names(&["backup*"]));
        let two = all.clone().named(Name::Application, names(&["backup-a", "query"]));
        assert!(minus(&backup, &all).is_empty() && minus(&backup, &backup).is_empty());
        assert_eq!(minus(&two, &backup), [all.clone().named(Name::Application, names(&["query"]))]);
        let mut budget = Budget::new(100);
        assert_eq!(all.minus(&backup, &mut budget), None);
        assert!(!backup.meets(&all.clone().named(Name::Application, names(&["query"])), &mut budget));
        assert!(!budget.is_spent() && budget.left() < 100);
        // Without a step left, nothing is called taken that has to be looked for.
        let any = all.named(Name::Application, names(&["*backup*"]));
        assert_eq!((any.minus(&any, &mut Budget::new(0)), minus(&any, &any)), (None, Vec::new()));
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0_u128..30, 0_u128..8), 0..5)
            .prop_map(|v| Ranges::of(v.into_iter().map(|(first, more)| (first, first + more))))
    }

    proptest! {
        #[test]
        fn sets_do_as_sets_do(a in ranges(), b in ranges()) {
            for n in 0..40 {
                prop_assert_eq!(a.and(&b).holds(n), a.holds(n) && b.holds(n));
                prop_assert_eq!(a.minus(&b).holds(n), a.holds(n) && !b.holds(n));
            }
            prop_assert_eq!(a.meets(&b), !a.and(&b).is_empty());
            prop_assert_eq!(a.is_within(&b), a.minus(&b).is_empty());
        }

        #[test]
        fn differences_of_regions_are_exact_in_numbers(a in [ranges(), ranges()], b in [ranges(), ranges()]) {
            let region = |r: &[Ranges; 2]| {
                Region::all().narrow(Number::Source, &r[0]).narrow(Number::Dscp, &r[1])
            };
            let rest = minus(&region(&a), &region(&b));
            for (x, y) in (0..40).flat_map(|x| (0..40).map(move |y| (x, y))) {
                let holds = |r: &Region, which, n| r.numbers[which as usize].as_ref().is_none_or(|r| r.holds(n));
                let within = |r: &Region| holds(r, Number::Source, x) && holds(r, Number::Dscp, y);
                let is = within(&region(&a)) && !within(&region(&b));
                prop_assert_eq!(rest.iter().filter(|r| within(r)).count(), usize::from(is));
            }
        }
    }
}
