//! Reports which peers have multimodal runs, and draws all runs as dots.

use super::{cell_name, escape};
use crate::plan::Metric;
use crate::run::outcome::{PeerResult, Results};
use crate::run::spread::Mode;
use std::fmt::Write as _;

/// Width and height of a strip of dots, and the radius of a dot.
const SIZE: (f64, f64) = (120.0, 10.0);
const RADIUS: f64 = 2.6;

/// A peer in a cell whose runs fall into several groups.
pub(super) struct MultimodalPeer {
    cell: String,
    peer: String,
    metric: Metric,
    modes: Vec<Mode>,
}

impl MultimodalPeer {
    /// The groups as text.
    pub fn words(&self) -> String {
        let one = |m: &Mode| format!("{} at {}", m.runs, self.metric.show(m.median));
        let modes = self.modes.iter().map(one).collect::<Vec<_>>().join(", ");
        format!("{}/{}: {modes}", self.cell, self.peer)
    }
}

/// All of them, by the headline metric: those of the compared peer first, by widest gap.
pub(super) fn multimodal_peers(r: &Results) -> Vec<MultimodalPeer> {
    let metric = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let mut out = Vec::new();
    for c in &r.cells {
        for p in &c.peers {
            let modes = p.modes(metric);
            if modes.len() > 1 {
                out.push(MultimodalPeer { cell: cell_name(c), peer: p.name.clone(), metric, modes });
            }
        }
    }
    let span = |s: &MultimodalPeer| match (s.modes.first(), s.modes.last()) {
        (Some(a), Some(b)) if b.median > 0.0 => a.median / b.median,
        _ => 1.0,
    };
    let other = |s: &MultimodalPeer| r.regret.as_ref().is_some_and(|t| t.regret.of != s.peer);
    out.sort_by(|a, b| other(a).cmp(&other(b)).then(span(a).total_cmp(&span(b))));
    out
}

/// The heading of the list.
pub(super) fn title(all: &[MultimodalPeer]) -> String {
    let (n, s) = (all.len(), if all.len() == 1 { "peer has" } else { "peers have" });
    format!(
        "{n} {s} runs of more than one mode in a cell (sorted runs are split where a gap is wider than a quarter of the median)"
    )
}

/// The list on the page.
pub(super) fn section(p: &mut String, r: &Results) {
    let all = multimodal_peers(r);
    if all.is_empty() {
        return;
    }
    let _ = writeln!(
        p,
        "<section>\n<h2>Runs of more than one mode</h2>\n<p class=\"warning\">{}.</p>",
        escape(&title(&all))
    );
    p.push_str("<ul class=\"runs\">\n");
    for s in &all {
        let _ = writeln!(p, "<li>{}</li>", escape(&s.words()));
    }
    p.push_str("</ul>\n</section>\n");
}

/// A dot for every run between zero and `top`; empty for a single run.
pub(super) fn strip(peer: &PeerResult, metric: Metric, top: f64) -> String {
    let values = peer.values(metric);
    if values.len() < 2 || top <= 0.0 || !top.is_finite() {
        return String::new();
    }
    let (width, height) = SIZE;
    let mut out = format!(
        "<svg class=\"strip\" viewBox=\"0 0 {width} {height}\"><path d=\"M0 {0}H{width}\"/>",
        height / 2.0
    );
    for v in values {
        let x = RADIUS + (v / top).clamp(0.0, 1.0) * (width - 2.0 * RADIUS);
        let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{}\" r=\"{RADIUS}\"/>", height / 2.0);
    }
    out.push_str("</svg>");
    out
}
