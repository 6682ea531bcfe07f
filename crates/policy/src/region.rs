//! Sets of traffic, and what they have in common: how a rule is found to be unreachable.
//!
//! A condition on numbers (addresses, ports, code points, ...) is a set of ranges, exactly; one on names is a list of
//! patterns. A rule's [`Region`] is the product of its conditions. Differences of regions are exact in the numbers and
//! err towards "something is left" in the names, so that no rule is called unreachable that is not.

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
pub(crate) struct Names(Option<Vec<String>>);

impl Names {
    /// Those that fit one of the patterns; every name if there is none.
    pub fn of(patterns: &[String]) -> Names {
        let any =
            patterns.is_empty() || patterns.iter().any(|p| !p.is_empty() && p.bytes().all(|b| b == b'*'));
        Names((!any).then(|| patterns.to_vec()))
    }

    /// Whether `name` fits.
    pub fn holds(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|all| all.iter().any(|p| fits(p, name)))
    }

    /// Whether one of `names` fits, or every name does.
    pub fn holds_any(&self, names: &[&str]) -> bool {
        self.0.is_none() || names.iter().any(|n| self.holds(n))
    }

    /// Parts this into what `other` surely holds as well, and the rest. `None` where nothing is.
    fn part(&self, other: &Names) -> (Option<Names>, Option<Names>) {
        match (&self.0, &other.0) {
            (_, None) => (Some(self.clone()), None),
            (None, Some(_)) => (None, Some(self.clone())),
            (Some(ours), Some(theirs)) => {
                let (within, rest): (Vec<_>, Vec<_>) =
                    ours.iter().cloned().partition(|p| theirs.iter().any(|t| covers(t, p)));
                let some = |v: Vec<String>| (!v.is_empty()).then_some(Names(Some(v)));
                (some(within), some(rest))
            }
        }
    }

    /// Whether a name may fit both.
    fn meets(&self, other: &Names) -> bool {
        match (&self.0, &other.0) {
            (Some(ours), Some(theirs)) => ours.iter().any(|p| theirs.iter().any(|t| common(p, t))),
            _ => true,
        }
    }
}

/// Whether a name fits a pattern. Greedy with one place to go back to: at most length times length steps.
fn fits(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.chars(), name.chars());
    // Behind the last star, and where what follows it begins in the name.
    let mut back: Option<(core::str::Chars<'_>, core::str::Chars<'_>)> = None;
    while let Some(c) = n.clone().next() {
        match p.clone().next() {
            Some('*') => {
                p.next();
                back = Some((p.clone(), n.clone()));
            }
            Some(k) if k == '?' || k == c => {
                p.next();
                n.next();
            }
            _ => {
                let Some((after, begin)) = &mut back else { return false };
                begin.next();
                (p, n) = (after.clone(), begin.clone());
            }
        }
    }
    p.all(|c| c == '*')
}

/// Whether every name that fits `inner` surely fits `outer`: a star of `inner` is a character that only a star takes, its
/// question mark one that only a star or a question mark takes.
fn covers(outer: &str, inner: &str) -> bool {
    table(outer, inner, |o, i| match (o, i) {
        ('*', _) => unreachable!("stars of the outer pattern are looked at before"),
        (_, '*') => false,
        ('?', _) => true,
        (_, '?') => false,
        (o, i) => o == i,
    })
}

/// Walks both patterns at once; `same` says whether one character of each may stand for the same. Stars of `outer` take
/// anything.
fn table(outer: &str, inner: &str, same: impl Fn(char, char) -> bool) -> bool {
    let inner: Vec<char> = inner.chars().collect();
    // row[j]: whether what was read of `outer` can stand for the first j characters of `inner`.
    let mut row = vec![false; inner.len() + 1];
    row[0] = true;
    for o in outer.chars() {
        let mut next = vec![false; inner.len() + 1];
        for j in 0..=inner.len() {
            next[j] = if o == '*' {
                row[j] || (j > 0 && next[j - 1])
            } else {
                j > 0 && row[j - 1] && same(o, inner[j - 1])
            };
        }
        row = next;
    }
    row[inner.len()]
}

/// Whether some name fits both patterns.
fn common(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<bool> = Vec::new();
    for i in 0..=a.len() {
        let mut next = vec![false; b.len() + 1];
        for j in 0..=b.len() {
            let (left, up, corner) = (j > 0 && next[j - 1], i > 0 && row[j], i > 0 && j > 0 && row[j - 1]);
            next[j] = (i == 0 && j == 0)
                // A star stands for nothing, or takes what is on the other side.
                || (i > 0 && a[i - 1] == '*' && (up || left))
                || (j > 0 && b[j - 1] == '*' && (up || left))
                || (corner && (a[i - 1] == b[j - 1] || a[i - 1] == '?' || b[j - 1] == '?'));
        }
        row = next;
    }
    row[b.len()]
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
}

impl Number {
    pub const ALL: [Number; 7] = [
        Number::Source,
        Number::Destination,
        Number::SourcePort,
        Number::DestinationPort,
        Number::Carrier,
        Number::Dscp,
        Number::Qos,
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
    numbers: [Ranges; Number::ALL.len()],
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
        Region { numbers: std::array::from_fn(|_| Ranges::all()), names: [Names(None), Names(None)] }
    }

    /// The part of it whose numbers are in `ranges`.
    pub fn narrow(mut self, which: Number, ranges: &Ranges) -> Region {
        let mine = &mut self.numbers[which as usize];
        *mine = mine.and(ranges);
        self
    }

    /// The same with names that fit; a region of every name is meant.
    pub fn named(mut self, which: Name, names: Names) -> Region {
        self.names[which as usize] = names;
        self
    }

    /// Whether a flow is in it.
    pub fn holds(&self, p: &Point<'_>) -> bool {
        self.numbers.iter().zip(&p.numbers).all(|(ranges, n)| ranges.holds(*n))
            && self.names[Name::Application as usize].holds(p.application)
            && self.names[Name::Interface as usize].holds_any(&p.interfaces)
    }

    /// Whether no traffic is in it.
    pub fn is_empty(&self) -> bool {
        self.numbers.iter().any(Ranges::is_empty)
    }

    /// Whether some traffic may be in both.
    pub fn meets(&self, other: &Region) -> bool {
        self.numbers.iter().zip(&other.numbers).all(|(a, b)| a.meets(b))
            && self.names.iter().zip(&other.names).all(|(a, b)| a.meets(b))
    }

    /// What is left of it without `other`, in pieces that have nothing in common.
    pub fn minus(&self, other: &Region) -> Vec<Region> {
        if !self.meets(other) {
            return vec![self.clone()];
        }
        let (mut pieces, mut inner) = (Vec::new(), self.clone());
        for (i, theirs) in other.names.iter().enumerate() {
            let (within, rest) = inner.names[i].part(theirs);
            if let Some(rest) = rest {
                let mut piece = inner.clone();
                piece.names[i] = rest;
                pieces.push(piece);
            }
            match within {
                Some(within) => inner.names[i] = within,
                None => return pieces,
            }
        }
        for (i, theirs) in other.numbers.iter().enumerate() {
            let rest = inner.numbers[i].minus(theirs);
            if !rest.is_empty() {
                let mut piece = inner.clone();
                piece.numbers[i] = rest;
                pieces.push(piece);
            }
            inner.numbers[i] = inner.numbers[i].and(theirs);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(patterns: &[&str]) -> Names {
        Names::of(&patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, name, is) in [
            ("backup*", "backup-nightly", true),
            ("backup*", "a-backup", false),
            ("*back*up", "a-back-b-up", true),
            ("?", "x", true),
            ("?", "", false),
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "aXbXb", false),
            ("a?c", "abc", true),
        ] {
            assert_eq!(fits(pattern, name), is, "{pattern} {name}");
        }
        assert!(
            covers("back*", "backup*")
                && covers("*", "x")
                && covers("?*", "ab*")
                && !covers("backup*", "back*")
        );
        assert!(!covers("a?", "a*") && covers("a*", "a?"));
        assert!(common("a*", "*b") && !common("a*", "b*") && common("?b", "a?") && !common("abc", "ab"));
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
        assert!(backup.minus(&all).is_empty() && backup.minus(&backup).is_empty());
        assert_eq!(two.minus(&backup), [all.clone().named(Name::Application, names(&["query"]))]);
        assert_eq!(all.minus(&backup).len(), 1);
        assert!(!backup.meets(&all.named(Name::Application, names(&["query"]))));
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
        }

        #[test]
        fn differences_of_regions_are_exact_in_numbers(a in [ranges(), ranges()], b in [ranges(), ranges()]) {
            let region = |r: &[Ranges; 2]| {
                Region::all().narrow(Number::Source, &r[0]).narrow(Number::Dscp, &r[1])
            };
            let rest = region(&a).minus(&region(&b));
            for (x, y) in (0..40).flat_map(|x| (0..40).map(move |y| (x, y))) {
                let within = |r: &Region| {
                    r.numbers[Number::Source as usize].holds(x) && r.numbers[Number::Dscp as usize].holds(y)
                };
                let is = within(&region(&a)) && !within(&region(&b));
                prop_assert_eq!(rest.iter().filter(|r| within(r)).count(), usize::from(is));
            }
        }

        #[test]
        fn what_covers_a_pattern_takes_its_names(outer in "[ab*?]{0,5}", inner in "[ab*?]{0,5}", name in "[ab]{0,6}") {
            if covers(&outer, &inner) && fits(&inner, &name) {
                prop_assert!(fits(&outer, &name));
            }
            if fits(&inner, &name) && fits(&outer, &name) {
                prop_assert!(common(&outer, &inner));
            }
        }
    }
}
