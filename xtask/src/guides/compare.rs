//! Compares the output of a command with what its guide shows; numbers and their units may differ.

/// Compares what was printed with what is shown, in which a line `...` stands for any lines.
pub fn matches(shown: &[String], printed: &str) -> bool {
    let shown: Vec<String> = shown.iter().map(|l| normal(l)).filter(|l| !l.is_empty()).collect();
    let printed: Vec<String> = printed.lines().map(normal).filter(|l| !l.is_empty()).collect();
    rest_matches(&shown, &printed)
}

fn rest_matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|n| rest_matches(rest, &printed[n..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(p, others)| (first == p || word_matches(first, p)) && rest_matches(rest, others)),
    }
}

/// A word that ends with `...` stands for any that begins so.
fn word_matches(shown: &str, printed: &str) -> bool {
    let (a, b): (Vec<&str>, Vec<&str>) = (shown.split(' ').collect(), printed.split(' ').collect());
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| *a == b || a.strip_suffix("...").is_some_and(|head| b.starts_with(head)))
}

const UNITS: &[&str] = &[
    "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "B/s", "MiB/s", "B", "KiB", "MiB", "GiB", "TiB", "ns", "us", "ms",
    "s", "min", "h", "d",
];

/// Numbers become `#`, with the unit behind them, and any blanks one blank.
fn normal(line: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let word = numberless(word);
        let bare = word.trim_end_matches([',', ';', ')', '.']);
        let after_number = out.last().is_some_and(|l| l.ends_with('#'));
        if after_number && UNITS.contains(&bare) {
            let tail = word[bare.len()..].to_owned();
            if let Some(last) = out.last_mut() {
                last.push_str(&tail);
            }
        } else {
            out.push(word);
        }
    }
    out.join(" ")
}

fn numberless(word: &str) -> String {
    let mut out = String::new();
    let mut chars = word.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            out.push(c);
            continue;
        }
        while chars.next_if(|c| c.is_ascii_digit() || *c == ',').is_some() {}
        // A point inside a number, not one that ends a sentence.
        let mut ahead = chars.clone();
        if ahead.next() == Some('.') && ahead.next().is_some_and(|c| c.is_ascii_digit()) {
            chars.next();
            while chars.next_if(char::is_ascii_digit).is_some() {}
        }
        out.push('#');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(shown: &str, printed: &str) -> bool {
        matches(&shown.lines().map(str::to_owned).collect::<Vec<_>>(), printed)
    }

    #[test]
    fn numbers_units_and_blanks_may_differ_but_not_words() {
        assert!(fits(
            "2 files in place; 1.0 MiB sent in 0.52 s (16 Mbit/s)",
            "30 files in place;  7 B sent in 12 ms (1.25 Gbit/s)\n"
        ));
        assert!(!fits("2 files in place", "2 files are in place"));
        assert!(!fits("done", "done\nand more"));
        assert!(!fits("done\nand more", "done"));
        assert!(fits("10.2.0.7:51820", "10.2.0.9:4460"));
    }

    #[test]
    fn ellipsis_matches_lines_or_the_rest_of_a_word() {
        assert!(fits("a\n...\nz", "a\nb\nc\nz") && fits("a\n...", "a") && !fits("a\n...\nz", "a\nb"));
        assert!(fits("lht1_...", "lht1_AbC") && !fits("lht1_...", "lhx1_AbC"));
    }
}
