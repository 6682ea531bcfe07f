//! Results for a terminal: medians with the worst value, a mark for every run, and multimodal runs.

use super::spread;
use crate::plan::{Better, Metric};
use crate::run::outcome::{CellResult, PeerResult, Results};
use std::fmt::Write as _;

/// Columns of a strip of marks.
const STRIP: usize = 12;
/// Plans with more cells have one line per peer instead of one per peer and cell.
const MAX_CELLS: usize = 60;
/// Most lines of a list; the page has all.
const MAX_LINES: usize = 40;

/// Tables and lists of all results.
pub fn text(r: &Results) -> String {
    let mut out = if r.cells.len() > MAX_CELLS { columns(&by_peer(r)) } else { by_cell(r) };
    let several = spread::multimodal_peers(r);
    if !several.is_empty() {
        let _ = writeln!(out, "\n{}:", spread::title(&several));
        list(&mut out, several.iter().map(spread::MultimodalPeer::words).collect());
    }
    out
}

/// Appends lines, and the number of those left out.
pub(super) fn list(out: &mut String, lines: Vec<String>) {
    let more = lines.len().saturating_sub(MAX_LINES);
    for line in lines.iter().take(MAX_LINES) {
        let _ = writeln!(out, "  {line}");
    }
    if more > 0 {
        let _ = writeln!(out, "  and {more} more: see the page");
    }
}

/// Formats rows in aligned columns.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let width = |k: usize| rows.iter().filter_map(|r| r.get(k)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// One line per peer, below the name of its cell.
fn by_cell(r: &Results) -> String {
    let headline = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let many = r.cells.iter().flat_map(|c| &c.peers).any(|p| p.runs.len() > 1);
    let mut rows = vec![vec![" ".to_owned(), "peer".to_owned()]];
    for m in &r.metrics {
        rows[0].push(if many && *m != headline {
            format!("{}/worst", m.name())
        } else {
            m.name().to_owned()
        });
        if many && *m == headline {
            rows[0].extend(["tenth", "worst", "each run"].map(str::to_owned));
        }
    }
    rows[0].push("runs".to_owned());
    for c in &r.cells {
        let top = top(c, headline);
        for p in &c.peers {
            let split = p.figures.get(&headline).is_some_and(|f| f.modes > 1);
            let mut row = vec![if split { "!" } else { " " }.to_owned(), p.name.clone()];
            for m in &r.metrics {
                row.extend(entries(p, *m, *m == headline, many, top));
            }
            row.push(runs(p, headline));
            rows.push(row);
        }
    }
    with_names(&rows, r)
}

/// Inserts the names of cells above their rows.
fn with_names(rows: &[Vec<String>], r: &Results) -> String {
    let text = columns(rows);
    let mut lines = text.lines();
    let mut out = String::new();
    let mut put = |line: Option<&str>| line.into_iter().for_each(|l| out.push_str(&format!("{l}\n")));
    put(lines.next());
    for c in &r.cells {
        put(Some(c.id.as_str()).filter(|id| !id.is_empty()));
        c.peers.iter().for_each(|_| put(lines.next()));
    }
    out
}

/// The largest value of any run in a cell.
fn top(c: &CellResult, metric: Metric) -> f64 {
    c.peers.iter().filter_map(|p| p.figures.get(&metric)).map(|f| f.max).fold(0.0, f64::max)
}

fn entries(p: &PeerResult, m: Metric, headline: bool, many: bool, top: f64) -> Vec<String> {
    let none = "-".to_owned();
    let Some(f) = p.figures.get(&m) else {
        return vec![none; if headline && many { 4 } else { 1 }];
    };
    match (headline, many) {
        (true, true) => {
            vec![m.show(f.median), m.show(f.worst_tenth), m.show(f.worst), strip(&p.values(m), top)]
        }
        (false, true) if f.runs > 1 => vec![pair(&m.show(f.median), &m.show(f.worst))],
        _ => vec![m.show(f.median)],
    }
}

/// Two values with their common unit once.
fn pair(a: &str, b: &str) -> String {
    match (a.rsplit_once(' '), b.rsplit_once(' ')) {
        (Some((v, unit)), Some((_, other))) if unit == other => format!("{v}/{b}"),
        _ => format!("{a}/{b}"),
    }
}

/// The number of runs, and whether they are multimodal.
fn runs(p: &PeerResult, headline: Metric) -> String {
    if p.skipped.is_some() {
        return "skipped".to_owned();
    }
    let mut words = p.runs.len().to_string();
    if !p.discarded.is_empty() {
        let _ = write!(words, " ({} discarded)", p.discarded.len());
    }
    let modes = p.figures.get(&headline).map_or(0, |f| f.modes);
    if modes > 1 {
        let _ = write!(words, " of {modes} modes");
    }
    words
}

/// Marks for all runs between zero and the cell's maximum: a dot, or a count.
fn strip(values: &[f64], top: f64) -> String {
    let mut counts = [0usize; STRIP];
    for v in values {
        let at = if top > 0.0 { (v / top * STRIP as f64) as usize } else { 0 };
        counts[at.min(STRIP - 1)] += 1;
    }
    let mark = |n: &usize| match n {
        0 => '.',
        n @ 1..=9 => char::from(b'0' + *n as u8),
        _ => '#',
    };
    counts.iter().map(mark).collect()
}

/// One line per peer over all cells, for plans with many.
fn by_peer(r: &Results) -> Vec<Vec<String>> {
    let headline = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let head = [
        "peer",
        "cells",
        "median of cells",
        "tenth of cells",
        "worst cell",
        "worst run",
        "runs",
        "several modes",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for name in super::peers(r) {
        let peers = || r.cells.iter().filter_map(|c| c.peers.iter().find(|p| p.name == name));
        let figures: Vec<_> = peers().filter_map(|p| p.figures.get(&headline)).collect();
        let mut medians: Vec<f64> = figures.iter().map(|f| f.median).collect();
        medians.sort_by(f64::total_cmp);
        let worst = |of: &dyn Fn(usize) -> f64| {
            let all = (0..figures.len()).map(of);
            let one =
                if headline.better() == Better::More { all.reduce(f64::min) } else { all.reduce(f64::max) };
            one.map_or("-".to_owned(), |v| headline.show(v))
        };
        let worst_tenth = if headline.better() == Better::More { 0.1 } else { 0.9 };
        rows.push(vec![
            name.to_owned(),
            figures.len().to_string(),
            headline.show(crate::run::spread::quantile(&medians, 0.5)),
            headline.show(crate::run::spread::quantile(&medians, worst_tenth)),
            worst(&|i| figures[i].median),
            worst(&|i| figures[i].worst),
            peers().map(|p| p.runs.len()).sum::<usize>().to_string(),
            figures.iter().filter(|f| f.modes > 1).count().to_string(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::tests::{results, run};
    use super::*;

    #[test]
    fn line_shows_median_worst_value_and_every_run() {
        let text = text(&results());
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].contains("goodput")
                && lines[0].contains("tenth")
                && lines[0].contains("queue_loss/worst")
        );
        assert_eq!(lines[1], "loss=1%");
        assert!(lines[2].starts_with("   Longhaul "), "{text}");
        assert!(
            lines[2].contains("945.0 Mbit/s  909.0 Mbit/s  900.0 Mbit/s  ..........11  0.100/0.100 %"),
            "{text}"
        );
        assert!(lines[4].ends_with("skipped"), "{text}");
        assert!(!text.contains("modes"), "{text}");
        assert!(lines.iter().all(|l| l.len() < 140), "{text}");
    }

    #[test]
    fn bimodal_runs_are_marked_and_listed() {
        let mut r = results();
        r.cells[0].peers[0].runs.push(run(9e7));
        r.cells[0].peers[0].summarise();
        let text = text(&r);
        assert!(text.contains("\n!  Longhaul ") && text.contains("3 of 2 modes"), "{text}");
        assert!(text.contains("loss=1%/Longhaul: 1 at 90.0 Mbit/s, 2 at 945.0 Mbit/s"), "{text}");
    }

    #[test]
    fn plans_with_many_cells_get_one_line_per_peer() {
        let mut r = results();
        let cell = r.cells[0].clone();
        r.cells = vec![cell; MAX_CELLS + 1];
        let text = text(&r);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[..4], ["Longhaul", "61", "945.0", "Mbit/s"], "{text}");
    }

    #[test]
    fn strips_place_runs_between_zero_and_the_maximum() {
        assert_eq!(strip(&[0.0, 0.99, 1.0], 1.0), "1..........2");
        assert_eq!(strip(&[1.0; 12], 1.0), "...........#");
        assert_eq!(strip(&[0.0], 0.0), "1...........");
    }
}
