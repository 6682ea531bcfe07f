//! Patterns of names: `*` stands for any characters, `?` for any one. What two of them have in common is found out without
//! trying names, and for most pairs by a look at where they begin and end.

use crate::region::Budget;

/// A pattern, with what is quick to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    chars: Box<[char]>,
    /// Characters in front of the first star, and behind the last; all of them where there is none.
    head: usize,
    tail: usize,
    /// Characters that are no stars: the shortest name that fits has so many.
    least: usize,
    /// A bit for each letter in it, and for each two that are neighbours: letters share bits.
    letters: u128,
}

impl Pattern {
    /// The pattern `text`.
    pub fn new(text: &str) -> Pattern {
        let chars: Box<[char]> = text.chars().collect();
        let star = |c: &char| *c == '*';
        let head = chars.iter().position(star).unwrap_or(chars.len());
        let tail = chars.iter().rev().position(star).unwrap_or(chars.len());
        let least = chars.iter().filter(|c| !star(c)).count();
        let letters = letters(&chars);
        Pattern { text: text.to_owned(), chars, head, tail, least, letters }
    }

    /// As it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn has_star(&self) -> bool {
        self.head < self.chars.len()
    }

    /// Whether every name that fits `inner` surely fits this: a star of `inner` is a character that only a star takes, its
    /// question mark one that only a star or a question mark takes. Where the budget is spent, it may say no.
    pub fn covers(&self, inner: &Pattern, budget: &mut Budget) -> bool {
        budget.spend(1);
        let known = self.letters & !inner.letters == 0 && self.least <= inner.least;
        known && self.takes(&inner.chars, |o, i| if o == '?' { i != '*' } else { o == i }, budget)
    }

    /// Whether some name fits both. Where the budget is spent, it may say yes.
    pub fn meets(&self, other: &Pattern, budget: &mut Budget) -> bool {
        budget.spend(1);
        let same = |a: char, b: char| a == b || a == '?' || b == '?';
        match (self.has_star(), other.has_star()) {
            // What is between the first and the last star of both fits, one behind the other, between the longer beginning
            // and the longer end.
            (true, true) => {
                let (head, tail) = (self.head.min(other.head), self.tail.min(other.tail));
                agree(&self.chars[..head], &other.chars[..head], same)
                    && agree(last(&self.chars, tail), last(&other.chars, tail), same)
            }
            (false, true) => other.takes(&self.chars, same, budget) || budget.is_spent(),
            _ => self.takes(&other.chars, same, budget) || budget.is_spent(),
        }
    }

    /// Whether the pattern can be laid over `text`: `same` says which characters of it each of its own takes, stars take any.
    fn takes(&self, text: &[char], same: impl Fn(char, char) -> bool, budget: &mut Budget) -> bool {
        if !self.has_star() {
            return text.len() == self.chars.len() && agree(&self.chars, text, same);
        }
        if text.len() < self.head + self.tail
            || !agree(&self.chars[..self.head], &text[..self.head], &same)
            || !agree(last(&self.chars, self.tail), last(text, self.tail), &same)
        {
            return false;
        }
        let inside = &self.chars[self.head..self.chars.len() - self.tail];
        between_stars(inside, &text[self.head..text.len() - self.tail], same, budget)
    }
}

/// Which letters there are, and which stand beside each other.
fn letters(chars: &[char]) -> u128 {
    let is_letter = |c: char| c != '*' && c != '?';
    let mut all = 0;
    for (i, &c) in chars.iter().enumerate().filter(|(_, c)| is_letter(**c)) {
        all |= 1 << (u32::from(c) % 64);
        if let Some(&next) = chars.get(i + 1).filter(|n| is_letter(**n)) {
            // Any mixture will do.
            all |= 1 << (64 + (u32::from(c).wrapping_mul(31) ^ u32::from(next)) % 64);
        }
    }
    all
}

fn last(chars: &[char], n: usize) -> &[char] {
    &chars[chars.len() - n..]
}

fn agree(a: &[char], b: &[char], same: impl Fn(char, char) -> bool) -> bool {
    a.iter().zip(b).all(|(a, b)| same(*a, *b))
}

/// Whether a pattern that begins and ends with a star can be laid over `text`. What stands between two stars is laid as far
/// to the left as it can be: if it can be laid there, what follows has the most room.
fn between_stars(
    pattern: &[char],
    text: &[char],
    same: impl Fn(char, char) -> bool,
    budget: &mut Budget,
) -> bool {
    let mut at = 0;
    for piece in pattern.split(|c| *c == '*').filter(|p| !p.is_empty()) {
        loop {
            let Some(here) = text.get(at..at + piece.len()) else { return false };
            let fits = piece.iter().zip(here).take_while(|(p, t)| same(**p, **t)).count();
            budget.spend(fits + 1);
            if budget.is_spent() {
                return false;
            }
            if fits == piece.len() {
                at += piece.len();
                break;
            }
            at += 1;
        }
    }
    true
}

/// Whether a name fits a pattern. Greedy with one place to go back to: at most length times length steps.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers(outer: &str, inner: &str) -> bool {
        Pattern::new(outer).covers(&Pattern::new(inner), &mut Budget::new(usize::MAX))
    }

    fn common(a: &str, b: &str) -> bool {
        Pattern::new(a).meets(&Pattern::new(b), &mut Budget::new(usize::MAX))
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
    fn without_steps_patterns_may_meet_but_cover_nothing() {
        let (a, b) = (Pattern::new("*ab*"), Pattern::new("xabx"));
        for steps in [0, 1] {
            assert!(a.meets(&b, &mut Budget::new(steps)) && !a.covers(&b, &mut Budget::new(steps)));
        }
        assert!(a.covers(&b, &mut Budget::new(9)));
    }

    /// The same by a table of all beginnings of both: row[j] says whether what was read of `a` goes with the first j
    /// characters of `b`.
    fn by_table(a: &str, b: &str, same: fn(char, char) -> bool, stars_of_b: bool) -> bool {
        let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
        let mut row: Vec<bool> = Vec::new();
        for i in 0..=a.len() {
            let mut next = vec![false; b.len() + 1];
            for j in 0..=b.len() {
                let (left, up, corner) =
                    (j > 0 && next[j - 1], i > 0 && row[j], i > 0 && j > 0 && row[j - 1]);
                next[j] = (i == 0 && j == 0)
                    || (i > 0 && a[i - 1] == '*' && (up || left))
                    || (stars_of_b && j > 0 && b[j - 1] == '*' && (up || left))
                    || (corner && a[i - 1] != '*' && same(a[i - 1], b[j - 1]));
            }
            row = next;
        }
        row[b.len()]
    }

    proptest! {
        #[test]
        fn what_covers_a_pattern_takes_its_names(outer in "[ab*?]{0,5}", inner in "[ab*?]{0,5}", name in "[ab]{0,6}") {
            if covers(&outer, &inner) && fits(&inner, &name) {
                prop_assert!(fits(&outer, &name));
            }
            if fits(&inner, &name) && fits(&outer, &name) {
                prop_assert!(common(&outer, &inner));
            }
        }

        #[test]
        fn shortcuts_agree_with_tables(a in "[abc*?]{0,8}", b in "[abc*?]{0,8}") {
            let covered = |o, i| if o == '?' { i != '*' } else { o == i };
            prop_assert_eq!(covers(&a, &b), by_table(&a, &b, covered, false));
            let both = |a, b| a == b || a == '?' || b == '?';
            prop_assert_eq!(common(&a, &b), by_table(&a, &b, both, true));
        }
    }
}
