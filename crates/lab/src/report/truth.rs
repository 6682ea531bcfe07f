//! Compares simulated results with those of the same plan in real time, cell by cell: a table and a drawing.

use super::plot::{self, Point};
use super::terminal::columns;
use crate::plan::{Metric, Truth};
use crate::run::outcome::{Figure, Results};

/// One peer in one cell, in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Cell and peer.
    pub name: String,
    /// In real time; `None`: it has no valid run.
    pub real: Option<Figure>,
    /// In the simulator.
    pub simulated: Option<Figure>,
    /// The difference of the medians.
    pub difference: Option<f64>,
    /// The reason that the plan gives for it.
    pub why: Option<String>,
}

/// All cells and peers of a plan.
pub fn rows(truth: &Truth, real: &Results, simulated: &Results) -> Vec<Row> {
    let metric = headline(real);
    let peers = real.cells.iter().flat_map(|c| c.peers.iter().map(move |p| (c, p)));
    let row = |(cell, peer): (&crate::run::outcome::CellResult, &crate::run::outcome::PeerResult)| {
        let other = simulated.cells.iter().find(|c| c.id == cell.id);
        let other = other.and_then(|c| c.peers.iter().find(|p| p.name == peer.name));
        let figure = |p: &crate::run::outcome::PeerResult| p.figures.get(&metric).copied();
        let (real, simulated) = (figure(peer), other.and_then(figure));
        let several = cell.peers.len() > 1;
        Row {
            name: if several { format!("{}/{}", cell.id, peer.name) } else { cell.id.clone() },
            real,
            simulated,
            difference: real.zip(simulated).map(|(r, s)| r.median - s.median),
            why: truth.reasons.iter().find(|r| r.cell == cell.id).map(|r| r.why.clone()),
        }
    };
    peers.map(row).collect()
}

fn headline(r: &Results) -> Metric {
    r.metrics.first().copied().unwrap_or(Metric::Goodput)
}

/// How many of the cells that have a difference are within it, and how many there are.
pub fn score(truth: &Truth, rows: &[Row]) -> (usize, usize) {
    let all: Vec<f64> = rows.iter().filter_map(|r| r.difference).collect();
    (all.iter().filter(|d| d.abs() <= truth.within).count(), all.len())
}

/// The table for a terminal.
pub fn text(truth: &Truth, real: &Results, simulated: &Results) -> String {
    let (metric, rows) = (headline(real), rows(truth, real, simulated));
    let figure = |f: &Option<Figure>| match f {
        None => "-".to_owned(),
        Some(f) if f.runs > 1 => format!("{:.3} ({:.3} to {:.3})", f.median, f.min, f.max),
        Some(f) => format!("{:.3}", f.median),
    };
    let head = [" ", "real", "simulated", "difference", "cell", "reason"].map(str::to_owned).to_vec();
    let line = |r: &Row| {
        let off = r.difference.is_none_or(|d| d.abs() > truth.within);
        let why = r.why.clone().filter(|_| off).unwrap_or_default();
        let difference = r.difference.map_or("-".to_owned(), |d| format!("{d:+.3}"));
        let mark = if off { "!" } else { " " };
        vec![mark.to_owned(), figure(&r.real), figure(&r.simulated), difference, r.name.clone(), why]
    };
    let (within, all) = score(truth, &rows);
    let table: Vec<Vec<String>> = [head].into_iter().chain(rows.iter().map(line)).collect();
    format!(
        "{}: real time beside the simulator, {within} of {all} within {}\n{}",
        metric.title(),
        truth.within,
        columns(&table)
    )
}

/// The drawing: a point for each cell, and the band in which both agree; `None` if there is no cell with both.
pub fn svg(truth: &Truth, real: &Results, simulated: &Results) -> Option<String> {
    let rows = rows(truth, real, simulated);
    let point = |r: &Row| {
        let (real, simulated) = r.real.zip(r.simulated)?;
        let off = r.difference.is_none_or(|d| d.abs() > truth.within);
        Some(Point { x: simulated.median, y: real.median, label: off.then(|| r.name.clone()) })
    };
    plot::scatter(&rows.iter().filter_map(point).collect::<Vec<_>>(), truth.within)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{results, run};
    use super::*;
    use crate::plan::Reason;

    fn both() -> (Truth, Results, Results) {
        let mut real = results();
        real.metrics = vec![Metric::Share];
        let mut sim = real.clone();
        for (r, share) in [(&mut real, [0.9, 0.5, 0.7]), (&mut sim, [0.94, 0.8, 0.7])] {
            r.cells.truncate(1);
            for (p, share) in r.cells[0].peers.iter_mut().zip(share) {
                (p.skipped, p.runs) = (None, vec![run(1e6)]);
                p.runs[0].figures.insert(Metric::Share, share);
                p.summarise();
            }
        }
        let why = "the emulator is late".to_owned();
        let reasons = vec![Reason { cell: real.cells[0].id.clone(), why }];
        (Truth { within: 0.05, simulated: 1, reasons }, real, sim)
    }

    #[test]
    fn table_marks_cells_that_differ_and_says_why() {
        let (truth, real, sim) = both();
        let text = text(&truth, &real, &sim);
        let lines: Vec<&str> = text.lines().collect();
        let n = real.cells[0].peers.len();
        assert_eq!(lines.len(), n + 2, "{text}");
        assert!(lines[0].ends_with(&format!("{} of {n} within 0.05", n - 1)), "{text}");
        assert!(lines[2].contains("0.900  0.940") && lines[2].contains("-0.040"), "{text}");
        assert!(!lines[2].contains("late"), "no reason is needed: {text}");
        assert!(
            lines[3].starts_with("!  0.500  0.800") && lines[3].ends_with("the emulator is late"),
            "{text}"
        );
    }

    #[test]
    fn drawing_has_a_point_for_each_cell_that_ran_in_both() {
        let (truth, real, mut sim) = both();
        let svg = super::svg(&truth, &real, &sim).expect("a drawing");
        assert_eq!(svg.matches("<circle").count(), real.cells[0].peers.len(), "{svg}");
        sim.cells[0].peers[0].figures.clear();
        assert!(text(&truth, &real, &sim).lines().nth(2).is_some_and(|l| l.starts_with("!  0.900  -")));
        sim.cells.clear();
        assert_eq!(super::svg(&truth, &real, &sim), None);
    }
}
