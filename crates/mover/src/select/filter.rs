//! Filter rules: patterns as rsync(1) has them (`--exclude`, `--include`), matched against names relative to the transfer.
//!
//! | pattern | matches |
//! | --- | --- |
//! | `x` without a slash | the last component of a name |
//! | `a/x` | the last components, as many as the pattern has |
//! | `/x` | from the top of the transfer |
//! | `x/` | folders only |
//! | `*`, `?`, `[a-z]` | no slash; `**` any bytes; `x/***` is `x` and all below it |
//!
//! The first rule that matches decides; without one a name is included. A pattern is a list of tokens that is run as a set of
//! states, so that a match costs at most length of the pattern times length of the name, whatever both are.

use super::MAX_PATTERN;

/// Words of a set of states: one state more than a pattern has tokens.
const WORDS: usize = MAX_PATTERN / 64 + 1;

/// A rule as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What matches is sent; else it is left out.
    pub include: bool,
    /// The pattern: 1 to [`MAX_PATTERN`] bytes, none of them NUL.
    pub pattern: Vec<u8>,
}

/// Reads one line of a list or one value of `--exclude` or `--include`: `- PATTERN` and `+ PATTERN` say for themselves what
/// they are, and `!` drops all rules before it.
///
/// # Errors
/// What is wrong with the pattern, and the way out.
pub fn add(rules: &mut Vec<Rule>, include: bool, line: &[u8]) -> Result<(), String> {
    if line == b"!" {
        rules.clear();
        return Ok(());
    }
    let (include, pattern) = match line {
        [b'-', b' ', rest @ ..] => (false, rest),
        [b'+', b' ', rest @ ..] => (true, rest),
        all => (include, all),
    };
    let shown = || crate::path::show(pattern);
    match () {
        () if pattern.is_empty() => Err("the pattern is empty; give a name, such as '*.tmp'".into()),
        () if pattern.len() > MAX_PATTERN => {
            Err(format!("a pattern has {} bytes; {MAX_PATTERN} are the most", pattern.len()))
        }
        () if pattern.contains(&0) => Err(format!("the pattern {} has a NUL byte; leave it out", shown())),
        () => {
            rules.push(Rule { include, pattern: pattern.to_vec() });
            Ok(())
        }
    }
}

/// Adds the rules of a file: a line each (or up to each NUL with `nul`), without empty ones and those that begin with `#` or `;`.
///
/// # Errors
/// As of [`add`], with the number of the line.
pub fn add_file(rules: &mut Vec<Rule>, include: bool, text: &[u8], nul: bool) -> Result<(), String> {
    let ends = |b: &u8| if nul { *b == 0 } else { matches!(b, b'\n' | b'\r') };
    for (n, line) in text.split(ends).enumerate() {
        if !line.is_empty() && !matches!(line[0], b'#' | b';') {
            add(rules, include, line).map_err(|e| format!("line {}: {e}", n + 1))?;
        }
    }
    Ok(())
}

/// Where in a name a pattern has to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// All of it.
    Whole,
    /// Its last components.
    Last(usize),
    /// All of it, or what is behind any of its slashes.
    AfterAnySlash,
}

#[derive(Clone, Debug)]
enum Token {
    Byte(u8),
    /// `?`
    NoSlash,
    /// A set of bytes; never a slash.
    Set(Box<[bool; 256]>),
    /// `*`
    Star,
    /// `**`
    Stars,
}

/// A pattern, ready to be matched.
#[derive(Clone, Debug)]
struct Pattern {
    include: bool,
    /// `None`: it has a set without an end or of no known class, and matches nothing.
    tokens: Option<Vec<Token>>,
    at: Where,
    folders_only: bool,
    last_component: bool,
    /// A slash is put in front of the name, so that `**/x` matches at its beginning.
    slash_before: bool,
    /// A slash is put behind the name of a folder, so that `x/***` matches it.
    slash_behind: bool,
}

impl Pattern {
    fn new(rule: &Rule) -> Pattern {
        let mut p = &rule.pattern[..];
        let folders_only = p.len() > 1 && p.ends_with(b"/");
        if folders_only {
            p = &p[..p.len() - 1];
        }
        let wild = p.iter().any(|b| b"*[?".contains(b));
        let stars = p.windows(2).position(|w| w == b"**");
        let slashes = p.iter().filter(|b| **b == b'/').count();
        let anchored = p.first() == Some(&b'/');
        let slash_before = stars == Some(0);
        let at = match stars {
            _ if anchored => Where::Whole,
            None if slashes > 0 => Where::Last(slashes + 1),
            Some(n) if n > 0 => Where::AfterAnySlash,
            _ => Where::Whole,
        };
        let body = if anchored { &p[1..] } else { p };
        Pattern {
            include: rule.include,
            tokens: if wild { tokens(body) } else { Some(body.iter().map(|b| Token::Byte(*b)).collect()) },
            at,
            folders_only,
            last_component: slashes == 0 && stars.is_none(),
            slash_before,
            slash_behind: stars.is_some() && p.ends_with(b"***"),
        }
    }
    fn matches(&self, name: &[u8], folder: bool) -> bool {
        let Some(tokens) = &self.tokens else { return false };
        if self.folders_only && !folder {
            return false;
        }
        if self.last_component {
            return run(tokens, last(name, 1).unwrap_or(name));
        }
        let (before, behind) = (self.slash_before, self.slash_behind && folder);
        let joined;
        let text = if before || behind {
            let slash = |on: bool| if on { &b"/"[..] } else { b"" };
            joined = [slash(before), name, slash(behind)].concat();
            &joined[..]
        } else {
            name
        };
        match self.at {
            Where::Whole => run(tokens, text),
            Where::Last(n) => last(text, n).is_some_and(|t| run(tokens, t)),
            Where::AfterAnySlash => run_anywhere(tokens, text),
        }
    }
}

/// The last `n` components; `None` where there are fewer.
fn last(name: &[u8], n: usize) -> Option<&[u8]> {
    let mut left = n;
    for (i, b) in name.iter().enumerate().rev() {
        if *b == b'/' {
            left -= 1;
            if left == 0 {
                return Some(&name[i + 1..]);
            }
        }
    }
    (left == 1).then_some(name)
}

/// Reads a pattern with wildcards. `\` takes away the meaning of what follows.
fn tokens(p: &[u8]) -> Option<Vec<Token>> {
    let (mut out, mut i) = (Vec::new(), 0);
    while let Some(&b) = p.get(i) {
        i += 1;
        out.push(match b {
            // One at the end stands for nothing that a name can have.
            b'\\' => {
                i += 1;
                Token::Byte(*p.get(i - 1)?)
            }
            b'?' => Token::NoSlash,
            b'*' => {
                let n = p[i..].iter().take_while(|b| **b == b'*').count();
                i += n;
                if n == 0 { Token::Star } else { Token::Stars }
            }
            b'[' => Token::Set(set(p, &mut i)?),
            b => Token::Byte(b),
        });
    }
    Some(out)
}

/// Reads a set behind its `[`; `i` is behind its `]` then.
fn set(p: &[u8], i: &mut usize) -> Option<Box<[bool; 256]>> {
    let mut out = Box::new([false; 256]);
    let inverted = matches!(p.get(*i), Some(b'!' | b'^'));
    *i += usize::from(inverted);
    let mut before = 0u8;
    let mut first = true;
    loop {
        let b = *p.get(*i)?;
        if b == b']' && !first {
            break;
        }
        first = false;
        *i += 1;
        before = match b {
            b'\\' => {
                let b = *p.get(*i)?;
                *i += 1;
                out[usize::from(b)] = true;
                b
            }
            b'-' if before != 0 && p.get(*i).is_some_and(|b| *b != b']') => {
                let mut end = p[*i];
                *i += 1;
                if end == b'\\' {
                    end = *p.get(*i)?;
                    *i += 1;
                }
                (before..=end).for_each(|b| out[usize::from(b)] = true);
                0
            }
            b'[' if p.get(*i) == Some(&b':') => {
                let end = *i + 1 + p[*i + 1..].iter().position(|b| *b == b']')?;
                if end > *i + 1 && p[end - 1] == b':' {
                    let class = class(&p[*i + 1..end - 1])?;
                    (0..=u8::MAX).filter(class).for_each(|b| out[usize::from(b)] = true);
                    *i = end + 1;
                    0
                } else {
                    out[usize::from(b'[')] = true;
                    b'['
                }
            }
            b => {
                out[usize::from(b)] = true;
                b
            }
        };
    }
    *i += 1;
    if inverted {
        out.iter_mut().for_each(|b| *b = !*b);
    }
    out[usize::from(b'/')] = false;
    Some(out)
}

/// A class of ASCII characters by its name.
fn class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| matches!(b, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// States of a pattern: state `n` is in front of token `n`.
struct States {
    words: [u64; WORDS],
    used: usize,
}

impl States {
    fn none(tokens: &[Token]) -> States {
        States { words: [0; WORDS], used: tokens.len() / 64 + 1 }
    }
    /// Adds a state, and the one behind it where that may be reached without a byte.
    fn add(&mut self, mut n: usize, tokens: &[Token]) {
        loop {
            self.words[n / 64] |= 1 << (n % 64);
            if !matches!(tokens.get(n), Some(Token::Star | Token::Stars)) {
                return;
            }
            n += 1;
        }
    }
    fn has(&self, n: usize) -> bool {
        self.words[n / 64] >> (n % 64) & 1 == 1
    }
    fn is_empty(&self) -> bool {
        self.words[..self.used].iter().all(|w| *w == 0)
    }
    /// What is reached by one more byte.
    fn step(&self, b: u8, tokens: &[Token]) -> States {
        let mut next = States::none(tokens);
        for (w, word) in self.words[..self.used].iter().enumerate() {
            let mut left = *word;
            while left != 0 {
                let n = w * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                match tokens.get(n) {
                    Some(Token::Byte(t)) if *t == b => next.add(n + 1, tokens),
                    Some(Token::NoSlash) if b != b'/' => next.add(n + 1, tokens),
                    Some(Token::Set(s)) if s[usize::from(b)] => next.add(n + 1, tokens),
                    Some(Token::Star) if b != b'/' => next.add(n, tokens),
                    Some(Token::Stars) => next.add(n, tokens),
                    _ => {}
                }
            }
        }
        next
    }
}

/// Whether all of a text matches.
fn run(tokens: &[Token], text: &[u8]) -> bool {
    let mut states = States::none(tokens);
    states.add(0, tokens);
    for b in text {
        states = states.step(*b, tokens);
        if states.is_empty() {
            return false;
        }
    }
    states.has(tokens.len())
}

/// Whether all of a text matches, or what is behind one of its slashes.
fn run_anywhere(tokens: &[Token], text: &[u8]) -> bool {
    let mut states = States::none(tokens);
    states.add(0, tokens);
    for b in text {
        states = states.step(*b, tokens);
        if *b == b'/' {
            states.add(0, tokens);
        }
    }
    states.has(tokens.len())
}

/// Rules, ready to decide.
#[derive(Clone, Debug, Default)]
pub struct Filter(Vec<Pattern>);

impl Filter {
    /// Of rules in their order.
    pub fn new(rules: &[Rule]) -> Filter {
        Filter(rules.iter().map(Pattern::new).collect())
    }
    /// Whether a name is left out: its path from the top of the transfer, without a slash in front. Who walks a tree leaves
    /// out what is below a folder that is left out.
    pub fn excludes(&self, name: &[u8], folder: bool) -> bool {
        if name.is_empty() {
            return false;
        }
        self.0.iter().find(|p| p.matches(name, folder)).is_some_and(|p| !p.include)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn excludes(rules: &[&str], name: &str, folder: bool) -> bool {
        let mut v = Vec::new();
        for r in rules {
            add(&mut v, false, r.as_bytes()).unwrap();
        }
        Filter::new(&v).excludes(name.as_bytes(), folder)
    }

    #[test]
    fn patterns_match_as_the_manual_of_rsync_says() {
        for (pattern, yes, no) in [
            ("x", &["x", "a/x", "a/b/x"][..], &["ax", "x/a", "xa"][..]),
            ("*.o", &["a.o", "d/a.o", ".o"], &["a.o/b", "a.c"]),
            ("/x", &["x"], &["a/x"]),
            ("a/x", &["a/x", "b/a/x"], &["x", "ca/x", "a/b/x"]),
            ("/a/*/x", &["a/b/x"], &["a/x", "a/b/c/x", "d/a/b/x"]),
            ("/a/**/x", &["a/b/x", "a/b/c/x"], &["a/x"]),
            ("**/x", &["x", "a/x", "a/b/x"], &["ax"]),
            ("a/**", &["a/x", "a/b/c", "d/a/x"], &["a", "ba/x"]),
            ("a**z", &["az", "a/z", "ab/cz", "d/ab/z"], &["da/z", "a/zb"]),
            ("[a-c]?", &["ax", "d/cx"], &["dx", "a", "axx"]),
            ("[!a-c]", &["d", "a/-"], &["a", "dd"]),
            ("[[:digit:]x]", &["7", "x"], &["y"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[\\]]", &["]"], &["\\"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("a\\b", &["a\\b"], &["ab"]),
            ("[a", &[], &["a", "[a"]),
            ("[[:no:]]", &[], &["n", "[[:no:]]"]),
        ] {
            yes.iter().for_each(|n| assert!(excludes(&[pattern], n, false), "{pattern} {n}"));
            no.iter().for_each(|n| assert!(!excludes(&[pattern], n, false), "{pattern} {n}"));
        }
        assert!(excludes(&["d/"], "a/d", true) && !excludes(&["d/"], "a/d", false));
        assert!(excludes(&["d/***"], "d", true) && excludes(&["d/***"], "d/x/y", false));
        assert!(!excludes(&["d/***"], "d", false));
    }

    #[test]
    fn the_first_match_decides_and_lists_say_what_each_line_is() {
        assert!(!excludes(&["+ a.o", "*.o"], "a.o", false) && excludes(&["+ a.o", "*.o"], "b.o", false));
        assert!(!excludes(&["*.o", "!"], "a.o", false));
        assert!(excludes(&["!a"], "!a", false), "more than the sign is a name");
        let mut v = Vec::new();
        add_file(&mut v, false, b"# x\n; y\n\n+ keep\r\n*.o\n- z", false).unwrap();
        let shown: Vec<_> = v.iter().map(|r| (r.include, r.pattern.as_slice())).collect();
        assert_eq!(shown, [(true, &b"keep"[..]), (false, b"*.o"), (false, b"z")]);
        let e = add_file(&mut v, false, b"a\n+ \n", false).unwrap_err();
        assert!(e.starts_with("line 2: "), "{e}");
        let mut v = Vec::new();
        add_file(&mut v, true, b"a\nb\0c", true).unwrap();
        assert_eq!(v.len(), 2);
        assert!(add(&mut v, true, &[b'x'; MAX_PATTERN + 1]).is_err() && add(&mut v, true, b"a\0").is_err());
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_its_length_times_that_of_the_name() {
        // What backtracks takes longer than the age of the universe for these.
        let name = vec![b'a'; 4000];
        for unit in [&b"*a"[..], b"**a", b"*?", b"a**"] {
            let mut pattern = unit.repeat((MAX_PATTERN - 1) / unit.len());
            pattern.push(b'b');
            let f = Filter::new(&[Rule { include: false, pattern }]);
            assert!(!f.excludes(&name, false));
        }
        let longest = Rule { include: false, pattern: vec![b'?'; MAX_PATTERN] };
        assert!(Filter::new(&[longest]).excludes(&vec![b'a'; MAX_PATTERN], false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pattern(pattern in proptest::collection::vec(1u8.., 1..MAX_PATTERN), name in ".{0,60}", folder: bool) {
            let f = Filter::new(&[Rule { include: false, pattern }]);
            let _ = f.excludes(name.as_bytes(), folder);
        }
    }
}
