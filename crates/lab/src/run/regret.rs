//! Compares a peer with the best of others in each cell, also by its worst run.

use super::outcome::{CellResult, PeerResult, Results};
use crate::plan::{Metric, Regret};
use serde::{Deserialize, Serialize};

/// The compared metrics: after the warm-up, and in the first four seconds.
pub const METRICS: [Metric; 2] = [Metric::Share, Metric::FirstBytes];

/// A peer beside the best of others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The compared peers and the thresholds.
    pub regret: Regret,
    /// Cells in which both can be compared, the worst first.
    pub rows: Vec<Row>,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The cell's name.
    pub cell: String,
    /// Ratio of the share after the warm-up.
    pub share: Option<Ratio>,
    /// Ratio of the payload of the first four seconds.
    pub bytes_in_first_4s: Option<Ratio>,
    /// The smallest ratio relative to its threshold: below one, the cell misses.
    pub score: f64,
}

/// The ratio of a peer's results to the best median of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// By its worst run.
    pub worst: f64,
    /// By its median.
    pub median: f64,
    /// The peer with the best median.
    pub best: String,
    /// The repetition of the worst run, from 1.
    pub repetition: u32,
    /// The seed of the worst run.
    pub seed: u64,
}

impl Row {
    /// Whether a ratio is below its threshold.
    pub fn misses(&self) -> bool {
        self.score < 1.0
    }
}

impl Table {
    /// The cells with a ratio below its threshold, the worst first.
    pub fn misses(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|r| r.misses())
    }
}

/// Compares all cells.
pub fn table(regret: &Regret, r: &Results) -> Table {
    let mut rows: Vec<Row> = r.cells.iter().filter_map(|c| row(regret, c)).collect();
    rows.sort_by(|a, b| a.score.total_cmp(&b.score));
    Table { regret: regret.clone(), rows }
}

fn row(regret: &Regret, cell: &CellResult) -> Option<Row> {
    let named = |n: &String| cell.peers.iter().find(|p| p.name == *n);
    let ours = named(&regret.of)?;
    let others: Vec<&PeerResult> = regret.against.iter().filter_map(named).collect();
    let [share, bytes_in_first_4s] = METRICS.map(|m| ratio(ours, &others, m));
    let parts = [&share, &bytes_in_first_4s].into_iter().flatten();
    let score = parts.flat_map(|r| [r.worst / regret.worst, r.median / regret.median]).reduce(f64::min)?;
    Some(Row { cell: cell.id.clone(), share, bytes_in_first_4s, score })
}

/// The ratio of `ours` to the best median of `others`; `None` if those have no results.
pub fn ratio(ours: &PeerResult, others: &[&PeerResult], metric: Metric) -> Option<Ratio> {
    let medians = others.iter().filter_map(|p| Some((p, p.figures.get(&metric)?.median)));
    let (best, most) = medians.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|b| b.1 > 0.0)?;
    let figure = ours.figures.get(&metric)?;
    let worst = ours.worst(metric)?;
    Some(Ratio {
        worst: figure.worst / most,
        median: figure.median / most,
        best: best.name.clone(),
        repetition: worst.repetition,
        seed: worst.seed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outcome::RunResult;
    use std::collections::BTreeMap;

    fn peer(name: &str, runs: &[(f64, f64)]) -> PeerResult {
        let run = |(i, (share, early)): (usize, &(f64, f64))| RunResult {
            repetition: i as u32 + 1,
            seed: 100 + i as u64,
            figures: BTreeMap::from([(Metric::Share, *share), (Metric::FirstBytes, *early)]),
            ..RunResult::default()
        };
        let mut p = PeerResult {
            name: name.into(),
            runs: runs.iter().enumerate().map(run).collect(),
            ..PeerResult::default()
        };
        p.summarise();
        p
    }

    fn cell(id: &str, ours: &[(f64, f64)]) -> CellResult {
        let peers = vec![
            peer("haul", ours),
            peer("bbr", &[(0.8, 40e6), (0.8, 10e6), (0.7, 50e6)]),
            peer("cubic", &[(0.1, 50e6), (0.2, 50e6), (0.9, 50e6)]),
        ];
        CellResult {
            id: id.into(),
            point: vec![],
            network: String::new(),
            direct: false,
            capacity: None,
            rtt: 0.05,
            window: (4.0, 12.0),
            events: vec![],
            peers,
        }
    }

    fn regret() -> Regret {
        Regret { of: "haul".into(), against: vec!["bbr".into(), "cubic".into()], worst: 0.9, median: 0.97 }
    }

    #[test]
    fn ratios_are_relative_to_the_best_median() {
        let r = row(&regret(), &cell("x", &[(0.8, 50e6), (0.08, 60e6), (0.88, 25e6)])).expect("a row");
        let (share, early) =
            (r.share.clone().expect("a share"), r.bytes_in_first_4s.clone().expect("a beginning"));
        assert!((share.worst - 0.1).abs() < 1e-9 && (share.median - 1.0).abs() < 1e-9, "{share:?}");
        assert_eq!((share.best.as_str(), share.repetition, share.seed), ("bbr", 2, 101));
        assert!((early.worst - 0.5).abs() < 1e-9 && (early.median - 1.0).abs() < 1e-9, "{early:?}");
        assert_eq!((early.best.as_str(), early.repetition), ("cubic", 3));
        // 0.1 where 0.9 is wanted is the least.
        assert!((r.score - 0.1 / 0.9).abs() < 1e-9 && r.misses());
    }

    #[test]
    fn rows_are_sorted_by_score_and_good_cells_do_not_miss() {
        let cells = vec![
            cell("good", &[(0.8, 50e6), (0.8, 50e6), (0.75, 48e6)]),
            cell("median", &[(0.76, 50e6), (0.76, 50e6), (0.76, 50e6)]),
            cell("worst", &[(0.8, 50e6), (0.4, 50e6), (0.8, 50e6)]),
        ];
        let mut r = crate::report::tests_results();
        r.cells = cells;
        let t = table(&regret(), &r);
        assert_eq!(t.misses().map(|r| r.cell.as_str()).collect::<Vec<_>>(), ["worst", "median"]);
        assert_eq!(t.rows.len(), 3);
    }

    #[test]
    fn comparison_needs_results_of_other_peers() {
        let mut c = cell("x", &[(0.5, 1e6)]);
        c.peers[1] = peer("bbr", &[(0.0, 0.0)]);
        c.peers[2] = peer("cubic", &[]);
        assert_eq!(row(&regret(), &c), None);
        c.peers.remove(0);
        assert_eq!(row(&regret(), &c), None);
    }
}
