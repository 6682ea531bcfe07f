//! Plots over a swept message size, one line per peer.

use super::figure;
use super::plot::{self, Line, Lines};
use crate::plan::{Metric, units};
use crate::run::outcome::CellResult;

/// Fewest sizes for a line.
const MIN_SIZES: usize = 3;

/// Draws a metric over the size of messages, where sizes were swept and nothing else was.
pub(super) fn plot(p: &mut String, cells: &[&CellResult], names: &[&str], metric: Metric) {
    let size = |c: &CellResult| match c.point.as_slice() {
        [(key, value)] if key == "size" => units::bytes(value).ok(),
        _ => None,
    };
    let Some(sizes) = cells.iter().map(|c| size(c)).collect::<Option<Vec<u64>>>() else { return };
    if sizes.len() < MIN_SIZES {
        return;
    }
    let (unit, scale) = unit(metric);
    let line = |(i, name): (usize, &&str)| {
        let point = |(c, size): (&&CellResult, &u64)| {
            let figure = c.peers.iter().find(|p| p.name == **name)?.figures.get(&metric)?;
            Some((*size as f64, figure.median * scale))
        };
        Line { peer: i, points: cells.iter().zip(&sizes).filter_map(point).collect() }
    };
    let lines = names.iter().enumerate().map(line).collect();
    let svg = plot::lines(&Lines { x: "bytes", y: unit, lines, events: Vec::new(), log: true, top: 0.0 });
    figure(p, "", svg, "");
}

/// The unit of a metric's axis, and its scale factor.
fn unit(metric: Metric) -> (&'static str, f64) {
    match metric {
        Metric::Goodput => ("Gbit/s", 1e-9),
        Metric::MessageRtt | Metric::MessageRttP99 => ("us", 1e6),
        Metric::Cpu | Metric::CpuSend | Metric::CpuReceive => ("s/GB", 1.0),
        Metric::LoadSend | Metric::LoadReceive => ("%", 100.0),
        _ => ("", 1.0),
    }
}
