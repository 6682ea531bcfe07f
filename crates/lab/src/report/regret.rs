//! Reports the cells in which a peer gets less than required of the best of other peers.

use super::escape;
use super::terminal::{columns, list};
use crate::run::outcome::Results;
use crate::run::regret::{Ratio, Row, Table};
use std::fmt::Write as _;

/// What was compared, and the number of misses.
fn title(t: &Table) -> String {
    let (r, misses) = (&t.regret, t.misses().count());
    format!(
        "{} beside the best median of {}: {misses} of {} cells miss {} (worst run) or {} (median)",
        r.of,
        r.against.join(", "),
        t.rows.len(),
        r.worst,
        r.median
    )
}

fn numbers(r: Option<&Ratio>) -> [String; 2] {
    r.map_or_else(|| ["-".to_owned(), "-".to_owned()], |r| [r.worst, r.median].map(|v| format!("{v:.2}")))
}

/// The peers with the best medians, of the share and of the first four seconds.
fn best(r: &Row) -> String {
    let mut names: Vec<&str> =
        [&r.share, &r.bytes_in_first_4s].into_iter().flatten().map(|r| r.best.as_str()).collect();
    names.dedup();
    names.join(", ")
}

fn cells(r: &Row) -> Vec<String> {
    let mut row = numbers(r.share.as_ref()).to_vec();
    row.extend(numbers(r.bytes_in_first_4s.as_ref()));
    row.extend([best(r), if r.cell.is_empty() { "all".to_owned() } else { r.cell.clone() }]);
    row
}

/// Text for a terminal; empty if the plan has no such comparison.
pub fn text(r: &Results) -> String {
    let Some(t) = &r.regret else { return String::new() };
    let mut out = title(t) + "\n";
    let head = ["share", "median", "first 4 s", "median", "best", "cell"].map(str::to_owned).to_vec();
    let rows: Vec<_> = [head].into_iter().chain(t.misses().map(cells)).collect();
    if rows.len() > 1 {
        list(&mut out, columns(&rows).lines().map(str::to_owned).collect());
    }
    out
}

/// HTML for the page.
pub(super) fn section(p: &mut String, r: &Results) {
    let Some(t) = &r.regret else { return };
    let _ = writeln!(p, "<section>\n<h2>Beside the best</h2>\n<p>{}.</p>", escape(&title(t)));
    let misses: Vec<_> = t.misses().collect();
    if !misses.is_empty() {
        p.push_str(
            "<div class=\"scroll\"><table>\n<thead><tr><th></th><th>share, worst</th><th>median</th>\
                    <th>first 4 s, worst</th><th>median</th><th>best</th></tr></thead>\n<tbody>\n",
        );
        for row in misses {
            let mut all = cells(row);
            let name = all.pop().unwrap_or_default().replace(',', ", ");
            let _ = write!(p, "<tr><th>{}</th>", escape(&name));
            all.iter().for_each(|c| {
                let _ = write!(p, "<td>{}</td>", escape(c));
            });
            p.push_str("</tr>\n");
        }
        p.push_str("</tbody></table></div>\n");
    }
    p.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::tests::results;
    use super::*;
    use crate::plan::Regret;

    #[test]
    fn misses_are_listed_with_both_ratios_and_the_better_peer() {
        let mut r = results();
        assert_eq!(text(&r), "");
        let ratio = |worst, median, best: &str| {
            Some(Ratio { worst, median, best: best.into(), repetition: 3, seed: 7 })
        };
        let row = |cell: &str, share, score| Row { cell: cell.into(), share, bytes_in_first_4s: None, score };
        let regret =
            Regret { of: "haul".into(), against: vec!["bbr".into(), "<i>".into()], worst: 0.9, median: 0.97 };
        let rows = vec![
            row("loss=1%,rtt=5ms", ratio(0.12, 0.99, "bbr"), 0.13),
            row("good", ratio(1.0, 1.0, "bbr"), 1.03),
        ];
        r.regret = Some(Table { regret, rows });
        let words = text(&r);
        assert!(
            words.starts_with("haul beside the best median of bbr, <i>: 1 of 2 cells miss 0.9"),
            "{words}"
        );
        assert!(words.contains("  0.12   0.99    -          -       bbr   loss=1%,rtt=5ms\n"), "{words}");
        assert!(!words.contains("good"), "{words}");
        let mut page = String::new();
        section(&mut page, &r);
        assert!(page.contains("<th>loss=1%, rtt=5ms</th><td>0.12</td><td>0.99</td><td>-</td>"), "{page}");
        assert!(!page.contains("<i>"));
    }
}
