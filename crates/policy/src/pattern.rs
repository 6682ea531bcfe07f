//! Name patterns with `*` (any characters) and `?` (any one character), and comparisons of two patterns that
//! rarely need more than their beginnings and ends.

use crate::region::Budget;

/// A pattern with precomputed properties that make comparisons quick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    chars: Box<[char]>,
    /// Characters before the first star and after the last; the whole pattern where there is no star.
    head: usize,
    tail: usize,
    /// Characters other than stars, which is the length of the shortest name that matches.
    min_len: usize,
    /// A Bloom filter of its letters and its pairs of neighbouring letters.
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
        let letters = letter_bits(&chars);
        Pattern { text: text.to_owned(), chars, head, tail, min_len: least, letters }
    }

    /// As it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn has_star(&self) -> bool {
        self.head < self.chars.len()
    }

    /// Whether every name that matches `inner` also matches this pattern. A star of `inner` is treated as a
    /// character that only a star matches, its question mark as one that only a star or a question mark matches. With
    /// a spent budget the answer may be a false no.
    pub fn covers(&self, inner: &Pattern, budget: &mut Budget) -> bool {
        budget.spend(1);
        let known = self.letters & !inner.letters == 0 && self.min_len <= inner.min_len;
        known && self.matches(&inner.chars, |o, i| if o == '?' { i != '*' } else { o == i }, budget)
    }

    /// Whether some name matches both patterns. With a spent budget the answer may be a false yes.
    pub fn overlaps(&self, other: &Pattern, budget: &mut Budget) -> bool {
        budget.spend(1);
        let same = |a: char, b: char| a == b || a == '?' || b == '?';
        match (self.has_star(), other.has_star()) {
            // Both have stars: whatever stands between the first and the last star of each can be placed one after
            // the other between the longer beginning and the longer end.
            (true, true) => {
                let (head, tail) = (self.head.min(other.head), self.tail.min(other.tail));
                all_match(&self.chars[..head], &other.chars[..head], same)
                    && all_match(last_chars(&self.chars, tail), last_chars(&other.chars, tail), same)
            }
            (false, true) => other.matches(&self.chars, same, budget) || budget.is_spent(),
            _ => self.matches(&other.chars, same, budget) || budget.is_spent(),
        }
    }

    /// Whether the pattern matches `text`, where `same` compares a character of the pattern with one of the text
    /// and a star matches any run.
    fn matches(&self, text: &[char], same: impl Fn(char, char) -> bool, budget: &mut Budget) -> bool {
        if !self.has_star() {
            return text.len() == self.chars.len() && all_match(&self.chars, text, same);
        }
        if text.len() < self.head + self.tail
            || !all_match(&self.chars[..self.head], &text[..self.head], &same)
            || !all_match(last_chars(&self.chars, self.tail), last_chars(text, self.tail), &same)
        {
            return false;
        }
        let inside = &self.chars[self.head..self.chars.len() - self.tail];
        between_stars(inside, &text[self.head..text.len() - self.tail], same, budget)
    }
}

/// A Bloom filter of the letters and of the pairs of neighbouring letters.
fn letter_bits(chars: &[char]) -> u128 {
    let is_letter = |c: char| c != '*' && c != '?';
    let mut all = 0;
    for (i, &c) in chars.iter().enumerate().filter(|(_, c)| is_letter(**c)) {
        all |= 1 << (u32::from(c) % 64);
        if let Some(&next) = chars.get(i + 1).filter(|n| is_letter(**n)) {
            // Any hash that spreads pairs over the bits will do.
            all |= 1 << (64 + (u32::from(c).wrapping_mul(31) ^ u32::from(next)) % 64);
        }
    }
    all
}

fn last_chars(chars: &[char], n: usize) -> &[char] {
    &chars[chars.len() - n..]
}

fn all_match(a: &[char], b: &[char], same: impl Fn(char, char) -> bool) -> bool {
    a.iter().zip(b).all(|(a, b)| same(*a, *b))
}

/// Whether a pattern that begins and ends with a star matches `text`. Each piece between two stars is placed as
/// far to the left as possible, which leaves the most room for the pieces after it.
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

/// Whether a name matches a pattern. Greedy with one position to return to, so at most pattern length times name
/// length steps.
pub(crate) fn pattern_matches(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.chars(), name.chars());
    // The position after the last star, and where its match begins in the name.
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

    fn overlap(a: &str, b: &str) -> bool {
        Pattern::new(a).overlaps(&Pattern::new(b), &mut Budget::new(usize::MAX))
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
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
            assert_eq!(pattern_matches(pattern, name), is, "{pattern} {name}");
        }
        assert!(
            covers("back*", "backup*")
                && covers("*", "x")
                && covers("?*", "ab*")
                && !covers("backup*", "back*")
        );
        assert!(!covers("a?", "a*") && covers("a*", "a?"));
        assert!(overlap("a*", "*b") && !overlap("a*", "b*") && overlap("?b", "a?") && !overlap("abc", "ab"));
    }

    #[test]
    fn with_a_spent_budget_patterns_overlap_and_cover_nothing() {
        let (a, b) = (Pattern::new("*ab*"), Pattern::new("xabx"));
        for steps in [0, 1] {
            assert!(a.overlaps(&b, &mut Budget::new(steps)) && !a.covers(&b, &mut Budget::new(steps)));
        }
        assert!(a.covers(&b, &mut Budget::new(9)));
    }

    /// Reference implementation by dynamic programming: row[j] says whether the part of `a` read so far is
    /// compatible with the first j characters of `b`.
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
        fn covering_pattern_matches_every_name_of_the_covered_one(outer in "[ab*?]{0,5}", inner in "[ab*?]{0,5}", name in "[ab]{0,6}") {
            if covers(&outer, &inner) && pattern_matches(&inner, &name) {
                prop_assert!(pattern_matches(&outer, &name));
            }
            if pattern_matches(&inner, &name) && pattern_matches(&outer, &name) {
                prop_assert!(overlap(&outer, &inner));
            }
        }

        #[test]
        fn quick_comparison_agrees_with_dynamic_programming(a in "[abc*?]{0,8}", b in "[abc*?]{0,8}") {
            let covered = |o, i| if o == '?' { i != '*' } else { o == i };
            prop_assert_eq!(covers(&a, &b), by_table(&a, &b, covered, false));
            let both = |a, b| a == b || a == '?' || b == '?';
            prop_assert_eq!(overlap(&a, &b), by_table(&a, &b, both, true));
        }
    }
}
