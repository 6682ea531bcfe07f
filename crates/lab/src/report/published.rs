//! Tables of figures that others published, and ours laid out like them.

use super::{escape, swatch};
use crate::plan::Published;
use crate::run::outcome::Results;
use std::fmt::Write as _;

/// All of them; nothing where there are none.
pub(super) fn section(p: &mut String, r: &Results) {
    if r.published.is_empty() {
        return;
    }
    p.push_str("<section>\n<h2>Beside what was published</h2>\n");
    for t in &r.published {
        let _ = writeln!(p, "<h3>{}</h3>\n<p>{}</p>", escape(&t.title), escape(t.about.trim()));
        theirs(p, t);
        ours(p, r, t);
    }
    p.push_str("</section>\n");
}

fn theirs(p: &mut String, t: &Published) {
    p.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
    let heading = |(i, c): (usize, &String)| {
        if i == 0 { format!("<th>Published: {}</th>", escape(c)) } else { format!("<th>{}</th>", escape(c)) }
    };
    t.columns.iter().enumerate().map(heading).for_each(|h| p.push_str(&h));
    p.push_str("</tr></thead>\n<tbody>\n");
    for row in &t.rows {
        p.push_str("<tr>");
        for (i, value) in row.iter().enumerate() {
            let tag = if i == 0 { "th" } else { "td" };
            let _ = write!(p, "<{tag}>{}</{tag}>", escape(value));
        }
        p.push_str("</tr>\n");
    }
    p.push_str("</tbody></table></div>\n");
}

/// A row for each peer, a column for each metric of each cell.
fn ours(p: &mut String, r: &Results, t: &Published) {
    let cells: Vec<_> = t.cells.iter().filter_map(|id| r.cells.iter().find(|c| c.id == *id)).collect();
    if cells.is_empty() || t.metrics.is_empty() {
        return;
    }
    let columns: Vec<_> = cells.iter().flat_map(|c| t.metrics.iter().map(move |m| (*c, *m))).collect();
    p.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>Here</th>");
    for (c, m) in &columns {
        let size = c.point.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>().join(", ");
        let _ = write!(p, "<th>{}: {}</th>", escape(&size), escape(m.title()));
    }
    p.push_str("</tr></thead>\n<tbody>\n");
    for (i, name) in super::peers(r).iter().enumerate() {
        if !t.peers.is_empty() && !t.peers.iter().any(|n| n == name) {
            continue;
        }
        let _ = write!(p, "<tr><th>{}{}</th>", swatch(i), escape(name));
        for (c, m) in &columns {
            let figure = c.peers.iter().find(|p| p.name == *name).and_then(|p| p.figures.get(m));
            let text = figure.map_or_else(|| "no figure".to_owned(), |f| m.show(f.median));
            let _ = write!(p, "<td>{}</td>", escape(&text));
        }
        p.push_str("</tr>\n");
    }
    p.push_str("</tbody></table></div>\n");
}
