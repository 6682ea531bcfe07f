//! Enumerates the cells of a plan: combinations of its sweep, its cases and its grids.

use super::MAX_CELLS;
use super::expand::{Expander, Result};
use super::file::{self, Case, Combine, File, Number, Sweep, Text};

/// One swept value.
#[derive(Clone)]
pub(super) enum Swept {
    Text(&'static str, Text),
    Number(&'static str, Number),
    Case(Box<Case>),
    /// The grid that a cell belongs to, always first.
    Grid(Box<file::Grid>),
}

impl Swept {
    pub fn words(&self) -> (String, String) {
        match self {
            Swept::Text(k, v) => ((*k).to_owned(), v.get_ref().clone()),
            Swept::Number(k, v) => ((*k).to_owned(), v.get_ref().to_string()),
            Swept::Case(c) => ("case".to_owned(), c.name.get_ref().clone()),
            Swept::Grid(g) => ("grid".to_owned(), g.name.get_ref().clone()),
        }
    }
}

/// All combinations: of the sweep and cases, unless there are grids only, and then of each grid.
pub(super) fn points(x: &Expander<'_>, file: &File) -> Result<Vec<Vec<Swept>>> {
    let own = dimensions(&file.case, &file.sweep);
    let mut out = if file.grid.is_empty() || !own.is_empty() {
        product(x, vec![Vec::new()], &own)?
    } else {
        Vec::new()
    };
    let mut names: Vec<&str> = Vec::new();
    for g in &file.grid {
        let name = g.name.get_ref().as_str();
        if name.is_empty() || names.contains(&name) {
            return Err(x.error_at(&g.name, "grid.name", "each grid needs a name of its own"));
        }
        names.push(name);
        let dimensions = dimensions(&g.case, &g.sweep);
        let start = vec![Swept::Grid(Box::new(g.clone()))];
        match g.combine {
            Combine::All => out.extend(product(x, vec![start], &dimensions)?),
            Combine::Pairs => out.extend(pairs(x, &start, &dimensions)?),
        }
        bounded(x, out.len())?;
    }
    Ok(out)
}

fn bounded(x: &Expander<'_>, cells: usize) -> Result<()> {
    if cells <= MAX_CELLS {
        return Ok(());
    }
    Err(x.file_error("sweep", format!("more than {MAX_CELLS} combinations; sweep over fewer values")))
}

fn product(
    x: &Expander<'_>,
    mut points: Vec<Vec<Swept>>,
    dimensions: &[Vec<Swept>],
) -> Result<Vec<Vec<Swept>>> {
    for dimension in dimensions {
        bounded(x, points.len() * dimension.len())?;
        points = points
            .iter()
            .flat_map(|p| dimension.iter().map(move |v| [p.as_slice(), std::slice::from_ref(v)].concat()))
            .collect();
    }
    Ok(points)
}

/// The start, each value alone, and all pairs of values of two dimensions.
fn pairs(x: &Expander<'_>, start: &[Swept], dimensions: &[Vec<Swept>]) -> Result<Vec<Vec<Swept>>> {
    let mut out = vec![start.to_vec()];
    for (i, first) in dimensions.iter().enumerate() {
        out.extend(product(x, vec![start.to_vec()], std::slice::from_ref(first))?);
        for second in &dimensions[i + 1..] {
            out.extend(product(x, vec![start.to_vec()], &[first.clone(), second.clone()])?);
            bounded(x, out.len())?;
        }
    }
    Ok(out)
}

/// The dimensions of a sweep, the first one outermost.
fn dimensions(cases: &[Case], s: &Sweep) -> Vec<Vec<Swept>> {
    let texts = [
        ("rate", &s.rate),
        ("rtt", &s.rtt),
        ("queue", &s.queue),
        ("police", &s.police),
        ("jitter", &s.jitter),
        ("order", &s.order),
        ("reorder", &s.reorder),
        ("host_rate", &s.host_rate),
        ("ecn", &s.ecn),
        ("trace", &s.trace),
        ("loss", &s.loss),
        ("size", &s.size),
    ];
    let numbers = [("flows", &s.flows), ("streams", &s.streams)];
    let mut all = vec![cases.iter().cloned().map(|c| Swept::Case(Box::new(c))).collect::<Vec<_>>()];
    all.extend(texts.map(|(k, v)| v.iter().map(|t| Swept::Text(k, t.clone())).collect()));
    all.extend(numbers.map(|(k, v)| v.iter().map(|t| Swept::Number(k, t.clone())).collect()));
    all.retain(|d: &Vec<Swept>| !d.is_empty());
    all
}

/// The field of the topology for a swept key.
pub(super) fn field<'a>(t: &'a mut file::Topology, key: &str) -> &'a mut Option<Text> {
    match key {
        "rate" => &mut t.rate,
        "rtt" => &mut t.rtt,
        "queue" => &mut t.queue,
        "police" => &mut t.police,
        "jitter" => &mut t.jitter,
        "order" => &mut t.order,
        "reorder" => &mut t.reorder,
        "host_rate" => &mut t.host_rate,
        "ecn" => &mut t.ecn,
        "trace" => {
            // A trace replaces the rate.
            t.rate = None;
            &mut t.trace
        }
        _ => &mut t.loss,
    }
}
