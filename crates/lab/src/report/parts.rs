//! Reports the promised and achieved rates and deadlines of a sender's parts.

use super::{cell_name, escape};
use crate::plan::Metric;
use crate::run::outcome::{CellResult, Figure, PeerResult, Results};
use crate::workload::parts::{Basis, PartResult};
use std::fmt::Write as _;

const HEAD: [&str; 7] = ["part", "asks for", "class", "by", "promised", "got", "messages, 95 %"];

/// The rows of one peer: for each part, its promise and result over all valid runs.
fn rows(peer: &PeerResult) -> Vec<[String; 7]> {
    let of = |run: &crate::run::outcome::RunResult| -> Vec<PartResult> {
        run.flows.iter().flat_map(|f| f.parts.iter().cloned()).collect()
    };
    let runs: Vec<Vec<PartResult>> = peer.runs.iter().map(of).collect();
    let Some(first) = runs.first() else { return Vec::new() };
    (0..first.len()).map(|i| row(&runs.iter().filter_map(|r| r.get(i)).collect::<Vec<_>>())).collect()
}

/// One part in all runs; there is one at least.
fn row(part: &[&PartResult]) -> [String; 7] {
    let first = part[0];
    let over =
        |of: &dyn Fn(&PartResult) -> Option<f64>| Figure::of(part.iter().filter_map(|p| of(p)).collect());
    let times = over(&|p| p.message_times.map(|t| t[1]));
    let (promised, got) = match first.basis {
        Basis::Deadline => {
            (first.deadline.map_or_else(String::new, |w| format!("within {}", seconds(w))), deadline(part))
        }
        basis => {
            let what = match basis {
                Basis::Guarantee => "guaranteed",
                Basis::Offered => "what it offers",
                Basis::Rest => "the rest of the cap",
                Basis::Nothing | Basis::Deadline => "-",
            };
            let promised =
                over(&|p| p.expected_rate).map(|f| format!("{} ({what})", Metric::Goodput.show(f.median)));
            let share =
                over(&PartResult::share).map_or_else(String::new, |f| format!(", {:.1} %", f.median * 100.0));
            let got =
                over(&|p| Some(p.achieved_rate)).map(|f| Metric::Goodput.show(f.median)).unwrap_or_default();
            (promised.unwrap_or_else(|| "-".to_owned()), format!("{got}{share}"))
        }
    };
    [
        first.name.clone(),
        first.qos.clone(),
        first.class.clone(),
        first.algorithm.clone(),
        promised,
        got,
        times.map_or_else(String::new, |f| seconds(f.median)),
    ]
}

/// The outcome of a deadline.
fn deadline(part: &[&PartResult]) -> String {
    let refused: Vec<&&PartResult> = part.iter().filter(|p| !p.refusal.is_empty()).collect();
    if let Some(first) = refused.first() {
        let earliest = Figure::of(refused.iter().filter_map(|p| p.earliest_completion).collect());
        let told = match earliest {
            Some(f) => format!("refused: {} at the earliest", seconds(f.median)),
            None => first.refusal.clone(),
        };
        return if refused.len() < part.len() {
            format!("{told} (in {} of {} runs)", refused.len(), part.len())
        } else {
            told
        };
    }
    let kept = part.iter().filter(|p| p.kept() == Some(true)).count();
    let verdict = match kept {
        n if n == part.len() => "kept".to_owned(),
        0 => "late".to_owned(),
        n => format!("kept in {n} of {}", part.len()),
    };
    match Figure::of(part.iter().filter_map(|p| p.completion).collect()) {
        Some(f) => format!("{verdict}: {}, {} at most", seconds(f.median), seconds(f.max)),
        None => format!("{verdict}: not there at the end"),
    }
}

fn seconds(v: f64) -> String {
    if v >= 1.0 { format!("{v:.2} s") } else { format!("{:.1} ms", v * 1e3) }
}

/// Numbers of deadlines met, missed and refused in all runs of a peer; `None` without deadlines.
fn counts(peer: &PeerResult) -> Option<String> {
    let parts = peer.runs.iter().flat_map(|r| &r.flows).flat_map(|f| &f.parts);
    let all: Vec<&PartResult> =
        parts.filter(|p| p.basis == Basis::Deadline || p.deadline.is_some()).collect();
    let of = |state: Option<bool>| all.iter().filter(|p| p.kept() == state).count();
    let (kept, late, refused) = (of(Some(true)), of(Some(false)), of(None));
    (!all.is_empty()).then(|| {
        let runs = peer.runs.len();
        let in_runs = if runs > 1 { format!(" in {runs} runs") } else { String::new() };
        format!("{kept} kept, {late} late, {refused} refused{in_runs}")
    })
}

fn peers(r: &Results) -> impl Iterator<Item = (&CellResult, &PeerResult, Vec<[String; 7]>)> {
    let all = r.cells.iter().flat_map(|c| c.peers.iter().map(move |p| (c, p, rows(p))));
    all.filter(|(.., rows)| !rows.is_empty())
}

/// Text for a terminal; empty without parts.
pub fn text(r: &Results) -> String {
    let mut out = String::new();
    for (cell, peer, rows) in peers(r) {
        let counts = counts(peer).map_or_else(String::new, |c| format!(": {c}"));
        let of = if cell.id.is_empty() { String::new() } else { format!("{}, ", cell_name(cell)) };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{of}{}{counts}", peer.name);
        let head = HEAD.map(str::to_owned);
        let all: Vec<&[String; 7]> = [&head].into_iter().chain(&rows).collect();
        let width = |k: usize| all.iter().map(|r| r[k].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        for row in all {
            let cells = row.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}"));
            let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        out.push('\n');
    }
    out
}

/// HTML; nothing without parts.
pub(super) fn section(p: &mut String, r: &Results) {
    let mut all = peers(r).peekable();
    if all.peek().is_none() {
        return;
    }
    p.push_str("<section>\n<h2>Promised and got</h2>\n");
    for (cell, peer, rows) in all {
        let counts = counts(peer).map_or_else(String::new, |c| format!(": {c}"));
        let _ = writeln!(p, "<h3>{}, {}{counts}</h3>", escape(&cell_name(cell)), escape(&peer.name));
        p.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
        HEAD.iter().for_each(|h| p.push_str(&format!("<th>{h}</th>")));
        p.push_str("</tr></thead>\n<tbody>\n");
        for [name, rest @ ..] in rows {
            let _ = write!(p, "<tr><th>{}</th>", escape(&name));
            rest.iter().for_each(|c| p.push_str(&format!("<td>{}</td>", escape(c))));
            p.push_str("</tr>\n");
        }
        p.push_str("</tbody></table></div>\n");
    }
    p.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outcome::{FlowResult, RunResult};

    fn peer(runs: &[Vec<PartResult>]) -> PeerResult {
        let run = |parts: &Vec<PartResult>| {
            let flows = vec![FlowResult { parts: parts.clone(), ..FlowResult::default() }];
            RunResult { flows, ..RunResult::default() }
        };
        PeerResult { name: "one".into(), runs: runs.iter().map(run).collect(), ..PeerResult::default() }
    }

    fn due(completion: Option<f64>, refused: &str) -> PartResult {
        let earliest = (!refused.is_empty()).then_some(0.75);
        let (basis, deadline) = (Basis::Deadline, Some(0.5));
        PartResult {
            name: "d".into(),
            basis,
            deadline,
            completion,
            refusal: refused.into(),
            earliest_completion: earliest,
            ..PartResult::default()
        }
    }

    #[test]
    fn achieved_rates_are_shown_beside_promised_ones() {
        let part = |basis, expected_rate, achieved_rate| PartResult {
            basis,
            expected_rate,
            achieved_rate,
            ..PartResult::default()
        };
        let p = peer(&[vec![
            part(Basis::Guarantee, Some(3e8), 2.85e8),
            part(Basis::Rest, Some(5e8), 5e8),
            part(Basis::Nothing, None, 1e6),
        ]]);
        let rows = rows(&p);
        assert_eq!(
            (rows[0][4].as_str(), rows[0][5].as_str()),
            ("300.0 Mbit/s (guaranteed)", "285.0 Mbit/s, 95.0 %")
        );
        assert!(rows[1][4].contains("the rest of the cap"));
        assert_eq!((rows[2][4].as_str(), rows[2][5].as_str()), ("-", "1.0 Mbit/s"));
        assert_eq!(counts(&p), None);
    }

    #[test]
    fn deadlines_are_kept_late_or_refused_and_counted() {
        let p = peer(&[
            vec![due(Some(0.4), ""), due(Some(0.4), ""), due(None, ""), due(None, "no")],
            vec![due(Some(0.5), ""), due(Some(0.6), ""), due(None, ""), due(None, "no")],
        ]);
        let verdicts: Vec<_> = rows(&p).into_iter().map(|r| r[5].clone()).collect();
        assert_eq!(verdicts[0], "kept: 450.0 ms, 500.0 ms at most");
        assert_eq!(verdicts[1], "kept in 1 of 2: 500.0 ms, 600.0 ms at most");
        assert_eq!(
            (verdicts[2].as_str(), verdicts[3].as_str()),
            ("late: not there at the end", "refused: 750.0 ms at the earliest")
        );
        assert_eq!(counts(&p).as_deref(), Some("3 kept, 3 late, 2 refused in 2 runs"));
    }
}
