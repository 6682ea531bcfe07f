//! Shows published tables with our results in the same layout.

use super::{escape, swatch};
use crate::plan::Published;
use crate::run::outcome::{CellResult, Results};
use std::fmt::Write as _;

/// A table whose rows begin with a name and, on pages, have the number of a peer.
struct Grid {
    head: Vec<String>,
    rows: Vec<(Option<usize>, Vec<String>)>,
}

/// HTML of all tables; nothing without any.
pub(super) fn section(p: &mut String, r: &Results) {
    if r.published.is_empty() {
        return;
    }
    p.push_str("<section>\n<h2>Beside what was published</h2>\n");
    for t in &r.published {
        let _ = writeln!(p, "<h3>{}</h3>\n<p>{}</p>", escape(&t.title), escape(t.about.trim()));
        grids(r, t).iter().for_each(|g| draw(p, g));
    }
    p.push_str("</section>\n");
}

/// Text for a terminal; empty without any.
pub fn text(r: &Results) -> String {
    let mut out = String::new();
    for t in &r.published {
        let _ = writeln!(out, "{}", t.title);
        for g in grids(r, t) {
            let rows: Vec<&Vec<String>> =
                [&g.head].into_iter().chain(g.rows.iter().map(|(_, r)| r)).collect();
            let width =
                |k: usize| rows.iter().filter_map(|r| r.get(k)).map(|c| c.chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..g.head.len()).map(width).collect();
            for row in rows {
                let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}"));
                let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
            }
            out.push('\n');
        }
    }
    out
}

fn grids(r: &Results, t: &Published) -> Vec<Grid> {
    let mut head = t.columns.clone();
    if let Some(first) = head.first_mut() {
        *first = format!("Published: {first}");
    }
    let theirs = Grid { head, rows: t.rows.iter().map(|row| (None, row.clone())).collect() };
    let cells: Vec<_> = t.cells.iter().filter_map(|id| r.cells.iter().find(|c| c.id == *id)).collect();
    let mut out = vec![theirs];
    out.extend(by_peer(r, t, &cells));
    cells.iter().for_each(|c| out.extend(by_metric(t, c)));
    out
}

/// One row per peer, one column per metric of each cell.
fn by_peer(r: &Results, t: &Published, cells: &[&CellResult]) -> Option<Grid> {
    if cells.is_empty() || t.metrics.is_empty() || !t.ours.is_empty() {
        return None;
    }
    let columns: Vec<_> = cells.iter().flat_map(|c| t.metrics.iter().map(move |m| (*c, *m))).collect();
    let mut head = vec!["Here".to_owned()];
    head.extend(columns.iter().map(|(c, m)| {
        let size = c.point.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>().join(", ");
        format!("{size}: {}", m.title())
    }));
    let mut rows = Vec::new();
    for (i, name) in super::peers(r).iter().enumerate() {
        if t.peers.is_empty() || t.peers.iter().any(|n| n == name) {
            let figures = columns.iter().map(|(c, m)| figure(c, name, *m));
            rows.push((Some(i), [(*name).to_owned()].into_iter().chain(figures).collect()));
        }
    }
    Some(Grid { head, rows })
}

/// The published columns with our peers, one row per metric; columns without results are left out.
fn by_metric(t: &Published, c: &CellResult) -> Option<Grid> {
    let mut head = t.columns.clone();
    let first = head.first_mut()?;
    *first = if c.id.is_empty() { "Here".to_owned() } else { format!("Here: {}", c.id) };
    let ran = |n: &String| c.peers.iter().any(|p| p.name == *n && !p.runs.is_empty());
    let ours = t.ours.iter().filter(|o| o.peers.iter().any(ran));
    let rows: Vec<_> = ours
        .flat_map(|o| t.metrics.iter().map(move |m| (o, *m)))
        .map(|(o, m)| {
            let figures = o.peers.iter().map(|n| figure(c, n, m));
            (None, [format!("{}: {}", o.title, m.title())].into_iter().chain(figures).collect())
        })
        .collect();
    (!rows.is_empty()).then_some(Grid { head, rows })
}

fn figure(c: &CellResult, peer: &str, m: crate::plan::Metric) -> String {
    let figure = c.peers.iter().find(|p| p.name == peer).and_then(|p| p.figures.get(&m));
    figure.map_or_else(|| "no figure".to_owned(), |f| m.show(f.median))
}

fn draw(p: &mut String, g: &Grid) {
    p.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
    g.head.iter().for_each(|h| {
        let _ = write!(p, "<th>{}</th>", escape(h));
    });
    p.push_str("</tr></thead>\n<tbody>\n");
    for (peer, row) in &g.rows {
        p.push_str("<tr>");
        for (i, value) in row.iter().enumerate() {
            let tag = if i == 0 { "th" } else { "td" };
            let mark = peer.filter(|_| i == 0).map(swatch).unwrap_or_default();
            let _ = write!(p, "<{tag}>{mark}{}</{tag}>", escape(value));
        }
        p.push_str("</tr>\n");
    }
    p.push_str("</tbody></table></div>\n");
}
