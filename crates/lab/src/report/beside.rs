//! Compares simulator results with emulated ones of the same plan.

use super::{cell_name, escape};
use crate::plan::Metric;
use crate::run::outcome::Results;
use std::fmt::Write as _;

/// Larger differences are highlighted.
const MAX_DIFFERENCE: f64 = 0.1;
/// The suffix of peers that Longhaul replaces in the simulator.
const STAND_IN_SUFFIX: &str = " (played by Longhaul's)";

/// A table of the headline metric in both, with the difference.
pub(super) fn section(p: &mut String, r: &Results, sim: &Results) {
    let metric = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let (mut rows, mut all, mut off) = (String::new(), 0, 0);
    for cell in &r.cells {
        let Some(other) = sim.cells.iter().find(|c| c.id == cell.id) else { continue };
        for peer in &cell.peers {
            let same = |n: &str| n == peer.name || n.strip_suffix(STAND_IN_SUFFIX) == Some(&peer.name);
            let Some(there) = other.peers.iter().find(|p| same(&p.name)) else { continue };
            let (Some(a), Some(b)) = (peer.figures.get(&metric), there.figures.get(&metric)) else {
                continue;
            };
            let change = if a.median == 0.0 { f64::INFINITY } else { b.median / a.median - 1.0 };
            all += 1;
            let differs = change.abs() > MAX_DIFFERENCE;
            off += usize::from(differs);
            // Writing to a string does not fail.
            let _ = writeln!(
                rows,
                "<tr><th>{}: {}</th><td>{}</td><td>{}</td><td{}>{:.1} %</td></tr>",
                escape(&cell_name(cell)),
                escape(&there.name),
                escape(&metric.show(a.median)),
                escape(&metric.show(b.median)),
                if differs { " class=\"off\"" } else { "" },
                change * 100.0
            );
        }
    }
    if all == 0 {
        return;
    }
    let _ = writeln!(
        p,
        "<section>\n<h2>Emulated and simulated: {}</h2>\n<p class=\"how\">{off} of {all} differ by more than {:.0} %. The \
         simulator has hosts of its own, and no emulator that delivers late. Peers of other make are played by Longhaul with the algorithm of the same name, which is not the \
         same program: BBR is version 3 there and version 1 in Linux.</p>\n<div class=\"scroll\"><table>\n\
         <thead><tr><th></th><th>emulated</th><th>simulated</th><th>difference</th></tr></thead>\n<tbody>\n{rows}</tbody>\
         </table></div>\n</section>",
        escape(metric.title()),
        MAX_DIFFERENCE * 100.0
    );
}
