//! HTML reports of results: one self-contained page for light and dark screens of any width.

mod beside;
mod parts;
mod plot;
mod published;
mod regret;
mod spread;
mod swept;
mod terminal;
pub mod truth;

pub use parts::text as parts;
pub use published::text as published;
pub use regret::text as regret;
pub use terminal::text as terminal;

use crate::plan::{Better, Metric};
use crate::run::outcome::{CellResult, PeerResult, Results, RunResult};
use plot::{Bars, COLOURS, DARK, Line, Lines};
use std::fmt::Write as _;

/// Most flows in a plot of flows.
const MAX_FLOWS: usize = 16;
/// Most cells with curves.
const MAX_DRAWN: usize = 60;

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The page; `sim` are results of the same plan in the simulator to show beside emulated ones.
pub fn html(r: &Results, sim: Option<&Results>) -> String {
    let mut page = String::new();
    let p = &mut page;
    // Writing to a string does not fail.
    let _ = write!(
        p,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
        escape(&r.title),
        style()
    );
    header(p, r);
    let names = peers(r);
    legend(p, &names);
    regret::section(p, r);
    spread::section(p, r);
    for metric in r.metrics.iter().copied() {
        table(p, r, &names, metric, Some(&metric) == r.metrics.first());
    }
    parts::section(p, r);
    published::section(p, r);
    if let Some(sim) = sim {
        beside::section(p, r, sim);
    }
    drawn(r).into_iter().for_each(|cell| details(p, r, cell, &names));
    discarded(p, r);
    footer(p, r);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// The cells whose curves are drawn: if there are many, those that miss something and those with multimodal runs.
fn drawn(r: &Results) -> Vec<&CellResult> {
    if r.cells.len() <= MAX_DRAWN {
        return r.cells.iter().collect();
    }
    let headline = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let missed: Vec<&str> = r.regret.iter().flat_map(|t| t.misses()).map(|m| m.cell.as_str()).collect();
    let place = |c: &&CellResult| missed.iter().position(|m| *m == c.id).unwrap_or(missed.len());
    let several =
        |c: &CellResult| c.peers.iter().any(|p| p.figures.get(&headline).is_some_and(|f| f.modes > 1));
    let mut cells: Vec<&CellResult> =
        r.cells.iter().filter(|c| place(c) < missed.len() || several(c)).collect();
    cells.sort_by_key(place);
    cells.truncate(MAX_DRAWN);
    cells
}

/// The names of all peers, in the order of their first appearance.
fn peers(r: &Results) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for p in r.cells.iter().flat_map(|c| &c.peers) {
        if !names.contains(&p.name.as_str()) {
            names.push(&p.name);
        }
    }
    names
}

fn header(p: &mut String, r: &Results) {
    let direct = r.cells.iter().any(|c| c.direct);
    let how = if r.simulated {
        format!(
            "simulated in virtual time: Longhaul only, with hosts {}",
            if r.timed_hosts { "whose timers, wake-ups and turns take time" } else { "without cost" }
        )
    } else {
        format!(
            "{} between network namespaces of one machine (Linux {}, {} processors)",
            if direct { "measured, with nothing emulated," } else { "emulated" },
            escape(&r.machine.kernel),
            r.machine.cpus
        )
    };
    let _ = write!(p, "<header>\n<p class=\"plan\">{}</p>\n<h1>{}</h1>\n", escape(&r.plan), escape(&r.title));
    if !r.about.trim().is_empty() {
        let _ = writeln!(p, "<p>{}</p>", escape(r.about.trim()));
    }
    let _ = writeln!(
        p,
        "<p class=\"how\">{how}. Medians of up to {} good runs; below stand the tenth from the bad end, the worst, and a dot for each run.</p>",
        r.repetitions
    );
    if !r.complete {
        p.push_str("<p class=\"warning\">The plan was interrupted: what is missing did not run.</p>\n");
    }
    p.push_str("</header>\n");
}

fn swatch(i: usize) -> String {
    format!("<i class=\"c{}\"></i>", i % COLOURS.len())
}

fn legend(p: &mut String, names: &[&str]) {
    p.push_str("<ul class=\"legend\">");
    for (i, name) in names.iter().enumerate() {
        let _ = write!(p, "<li>{}{}</li>", swatch(i), escape(name));
    }
    p.push_str("</ul>\n");
}

/// A cell's name, with room for line breaks.
fn cell_name(c: &CellResult) -> String {
    if c.id.is_empty() { "all".to_owned() } else { c.id.replace(',', ", ") }
}

fn table(p: &mut String, r: &Results, names: &[&str], metric: Metric, headline: bool) {
    let has = |c: &&CellResult| c.peers.iter().any(|p| p.figures.contains_key(&metric));
    let cells: Vec<&CellResult> = r.cells.iter().filter(has).collect();
    if cells.is_empty() {
        return;
    }
    let columns: Vec<(usize, &str)> = names
        .iter()
        .enumerate()
        .filter(|(_, n)| cells.iter().any(|c| c.peers.iter().any(|p| p.name == **n)))
        .map(|(i, n)| (i, *n))
        .collect();
    let _ = writeln!(p, "<section>\n<h2>{}</h2>", escape(metric.title()));
    if headline {
        let svg = plot::bars(&Bars { groups: groups(&cells, names, metric), show: formatter(metric) });
        figure(p, "", svg, "wide");
    }
    swept::plot(p, &cells, names, metric);
    p.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for (i, name) in &columns {
        let _ = write!(p, "<th>{}{}</th>", swatch(*i), escape(name));
    }
    p.push_str("</tr></thead>\n<tbody>\n");
    for c in cells {
        let best = best(c, metric);
        let top = c.peers.iter().filter_map(|p| p.figures.get(&metric)).map(|f| f.max).fold(0.0, f64::max);
        let _ = write!(p, "<tr><th>{}</th>", escape(&cell_name(c)));
        for (_, name) in &columns {
            let peer = c.peers.iter().find(|p| p.name == *name);
            let _ = write!(p, "{}", entry(peer, metric, best, top));
        }
        p.push_str("</tr>\n");
    }
    p.push_str("</tbody></table></div>\n</section>\n");
}

/// Names and figures of a plot of bars.
fn groups(cells: &[&CellResult], names: &[&str], metric: Metric) -> Vec<(String, Vec<plot::Bar>)> {
    let place = |name: &str| names.iter().position(|n| *n == name).unwrap_or(0);
    let bar = |p: &PeerResult| (place(&p.name), p.figures.get(&metric).map(|f| (f.median, p.values(metric))));
    let shown = |p: &&PeerResult| p.skipped.is_none() || !p.figures.is_empty();
    cells.iter().map(|c| (cell_name(c), c.peers.iter().filter(shown).map(bar).collect())).collect()
}

/// The formatter of a metric's values, as a plain function.
fn formatter(metric: Metric) -> fn(f64) -> String {
    match metric {
        Metric::Goodput => |v| Metric::Goodput.show(v),
        Metric::TimeTo50
        | Metric::TimeTo90
        | Metric::TimeTo95
        | Metric::Rtt
        | Metric::RttP95
        | Metric::Recovery => |v| Metric::Rtt.show(v),
        Metric::Completion | Metric::CompletionP99 => |v| Metric::Completion.show(v),
        Metric::FirstBytes => |v| Metric::FirstBytes.show(v),
        Metric::Jain => |v| Metric::Jain.show(v),
        Metric::Queue => |v| Metric::Queue.show(v),
        Metric::MessageRtt | Metric::MessageRttP99 => |v| Metric::MessageRtt.show(v),
        Metric::Cpu | Metric::CpuSend | Metric::CpuReceive => |v| Metric::Cpu.show(v),
        Metric::QueueLoss | Metric::StartLoss | Metric::Retransmitted | Metric::Spurious => {
            |v| Metric::QueueLoss.show(v)
        }
        _ => |v| Metric::Share.show(v),
    }
}

/// The best median in a cell; `None` without another peer.
fn best(c: &CellResult, metric: Metric) -> Option<f64> {
    let medians: Vec<f64> = c.peers.iter().filter_map(|p| p.figures.get(&metric).map(|f| f.median)).collect();
    if medians.len() < 2 {
        return None;
    }
    medians.into_iter().reduce(|a, b| if metric.better() == Better::More { a.max(b) } else { a.min(b) })
}

fn entry(peer: Option<&PeerResult>, metric: Metric, best: Option<f64>, top: f64) -> String {
    let Some(peer) = peer else { return "<td class=\"none\"></td>".to_owned() };
    let Some(f) = peer.figures.get(&metric) else {
        let why = match (&peer.skipped, peer.runs.is_empty()) {
            (Some(_), _) => "skipped",
            (None, true) => "no good run",
            (None, false) => "never",
        };
        return format!("<td class=\"none\">{why}</td>");
    };
    let class = if best == Some(f.median) { " class=\"best\"" } else { "" };
    let spread = if f.runs > 1 {
        let (worst_tenth, worst) = (metric.show(f.worst_tenth), metric.show(f.worst));
        format!(
            "<small>tenth {}, worst {}</small>{}",
            escape(&worst_tenth),
            escape(&worst),
            spread::strip(peer, metric, top)
        )
    } else {
        String::new()
    };
    let modes = if f.modes > 1 { format!(" <b class=\"off\">{} modes</b>", f.modes) } else { String::new() };
    // Some runs may not have reached the level at all.
    let some = if f.runs < peer.runs.len() {
        format!(" <small>in {} of {}</small>", f.runs, peer.runs.len())
    } else {
        String::new()
    };
    format!("<td{class}>{}{modes}{some}{spread}</td>", escape(&metric.show(f.median)))
}

fn figure(p: &mut String, caption: &str, svg: Option<String>, class: &str) {
    let Some(svg) = svg else { return };
    let caption = if caption.is_empty() {
        String::new()
    } else {
        format!("<figcaption>{}</figcaption>", escape(caption))
    };
    let _ = writeln!(p, "<figure class=\"{class}\">{caption}{svg}</figure>");
}

/// Plots over time of one cell, with the run nearest to the median of each peer.
fn details(p: &mut String, r: &Results, cell: &CellResult, names: &[&str]) {
    let headline = r.metrics.first().copied().unwrap_or(Metric::Goodput);
    let place = |name: &str| names.iter().position(|n| *n == name).unwrap_or(0);
    let typical: Vec<_> =
        cell.peers.iter().filter_map(|p| p.typical(headline).map(|run| (place(&p.name), p, run))).collect();
    if typical.is_empty() {
        return;
    }
    let open = if r.cells.len() <= 2 { " open" } else { "" };
    let _ = writeln!(p, "<details{open}>\n<summary>{}</summary>", escape(&cell_name(cell)));
    let _ = writeln!(p, "<p class=\"how\">{}</p>", escape(&cell.network));
    for (at, what) in &cell.events {
        let _ = writeln!(p, "<p class=\"how\">at {at} s: {}</p>", escape(what));
    }
    let took = typical.iter().map(|(_, p, run)| format!("{} {:.1} s", p.name, run.wall_seconds));
    let took = took.collect::<Vec<_>>().join(", ");
    let _ = writeln!(p, "<p class=\"how\">real time of the runs drawn here: {}</p>", escape(&took));
    p.push_str("<div class=\"plots\">\n");
    let events: Vec<f64> = cell.events.iter().map(|e| e.0).collect();
    let series = |step: f64, v: &[f32], by: f64| -> Vec<(f64, f64)> {
        v.iter().enumerate().map(|(i, v)| ((i as f64 + 0.5) * step, f64::from(*v) * by)).collect()
    };
    let over_time = |y: &str, of: &dyn Fn(&crate::run::outcome::Curves) -> Vec<(f64, f64)>, top: f64| {
        let lines = typical.iter().map(|(i, _, run)| Line { peer: *i, points: of(&run.curves) }).collect();
        plot::lines(&Lines { x: "seconds", y, lines, events: events.clone(), log: false, top })
    };
    let svg =
        over_time("Mbit/s", &|c| series(c.step, &c.throughput, 1e-6), cell.capacity.unwrap_or(0.0) / 1e6);
    figure(p, "Throughput of the bottleneck", svg, "");
    if cell.peers.iter().any(|p| p.runs.len() > 1) {
        let worst = cell.peers.iter().filter_map(|p| p.worst(headline).map(|run| (place(&p.name), run)));
        let line = |(i, run): (usize, &RunResult)| Line {
            peer: i,
            points: series(run.curves.step, &run.curves.throughput, 1e-6),
        };
        let (lines, top) = (worst.map(line).collect(), cell.capacity.unwrap_or(0.0) / 1e6);
        let all = Lines { x: "seconds", y: "Mbit/s", lines, events: events.clone(), log: false, top };
        figure(p, "Throughput in the worst run of each", plot::lines(&all), "");
    }
    let svg = over_time("ms", &|c| series(c.step, &c.rtt, 1e3), cell.rtt * 1e3);
    figure(p, "Round trip", svg, "");
    let svg = over_time("MB", &|c| series(c.step, &c.queue, 1e-6), 0.0);
    figure(p, "Queue", svg, "");
    let lines = typical.iter().map(|(i, p, _)| Line { peer: *i, points: cdf(p) }).collect();
    let svg = plot::lines(&Lines { x: "ms", y: "share", lines, events: Vec::new(), log: true, top: 0.0 });
    figure(p, "Completion times of requests, all runs", svg, "");
    for (_, peer, run) in typical.iter().filter(|(_, _, run)| run.curves.flows.len() > 1) {
        draw_flows(p, peer, &run.curves, &events);
    }
    p.push_str("</div>\n</details>\n");
}

/// The distribution of the completion times of all valid runs.
fn cdf(peer: &PeerResult) -> Vec<(f64, f64)> {
    let flows = peer.runs.iter().flat_map(|r| &r.flows).filter(|f| !f.background);
    let mut all: Vec<f64> = flows.flat_map(|f| f.completions.iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    let n = all.len();
    let step = (n / 400).max(1);
    let at = |i: usize| (all[i] * 1e3, (i + 1) as f64 / n as f64);
    let mut out: Vec<_> = (0..n).step_by(step).map(at).collect();
    out.extend(n.checked_sub(1).map(at));
    out
}

fn draw_flows(p: &mut String, peer: &PeerResult, c: &crate::run::outcome::Curves, events: &[f64]) {
    let of = |i: usize, v: &[f32]| Line {
        peer: i,
        points: v.iter().enumerate().map(|(k, v)| ((k as f64 + 0.5) * c.step, f64::from(*v) / 1e6)).collect(),
    };
    let lines = c.flows.iter().take(MAX_FLOWS).enumerate().map(|(i, (_, v))| of(i, v)).collect();
    let events = events.to_vec();
    let svg = plot::lines(&Lines { x: "seconds", y: "Mbit/s", lines, events, log: false, top: 0.0 });
    let Some(svg) = svg else { return };
    let names = c.flows.iter().take(MAX_FLOWS).enumerate();
    let names: String =
        names.map(|(i, (name, _))| format!("<li>{}{}</li>", swatch(i), escape(name))).collect();
    let _ = writeln!(
        p,
        "<figure><figcaption>Payload of each flow: {}</figcaption>{svg}<ul class=\"legend\">{names}</ul></figure>",
        escape(&peer.name)
    );
}

fn discarded(p: &mut String, r: &Results) {
    let mut lines = String::new();
    for c in &r.cells {
        for peer in &c.peers {
            let name = format!("{}, {}", escape(&cell_name(c)), escape(&peer.name));
            if let Some(why) = &peer.skipped {
                let _ = writeln!(lines, "<li>{name}: skipped: {}</li>", escape(why));
            }
            for s in &peer.discarded {
                let _ = writeln!(
                    lines,
                    "<li>{name}, repetition {}: discarded: {}</li>",
                    s.repetition,
                    escape(&s.why)
                );
            }
        }
    }
    let of = |f: fn(&PeerResult) -> usize| r.cells.iter().flat_map(|c| &c.peers).map(f).sum::<usize>();
    let (good, bad) = (of(|p| p.runs.len()), of(|p| p.discarded.len()));
    let _ = writeln!(
        p,
        "<section>\n<h2>Runs</h2>\n<p>{good} good runs, {bad} discarded and thrown away by rule.</p>"
    );
    if !lines.is_empty() {
        let _ = writeln!(p, "<ul class=\"runs\">\n{lines}</ul>");
    }
    p.push_str("</section>\n");
}

fn footer(p: &mut String, r: &Results) {
    let m = &r.machine;
    let memory = if r.simulated && m.peak_memory > 0 {
        format!(" and {:.0} MB of memory at most", m.peak_memory as f64 / 1e6)
    } else {
        String::new()
    };
    let _ = writeln!(
        p,
        "<footer>longhaul {} · {} s since 1970 · took {:.0} s{memory}. {}</footer>",
        escape(&m.version),
        m.unix_seconds,
        m.seconds,
        if r.cells.iter().any(|c| c.direct) { DIRECT } else { EMULATED }
    );
}

/// Explanations of the figures, emulated and direct.
const EMULATED: &str = "Goodput is payload after the warm-up: what programs counted, in the shape that the network saw. \
The time to a level is from the first data until the bottleneck stays at that level for a round trip. Standing queue is the \
median after the warm-up.";
const DIRECT: &str = "Goodput is payload from the first message to the last. Load is processor time, of the process with what \
the kernel does for it, by real time.";

fn style() -> String {
    let mut out = String::from(STYLE);
    for (i, c) in COLOURS.iter().enumerate() {
        let _ = write!(out, ".c{i}{{background:{}}}", plot::hex(*c));
    }
    out.push_str("@media(prefers-color-scheme:dark){");
    let dark = DARK.iter().map(|c| plot::hex(*c));
    let paint = COLOURS.iter().map(|c| plot::hex(*c)).zip(dark).chain([
        (plot::hex(plot::TEXT), "#D5D9E0".to_owned()),
        (plot::hex(plot::AXIS), "#7A828E".to_owned()),
        (plot::hex(plot::GRID), "#2E343C".to_owned()),
        (plot::hex(plot::EVENT), "#FF8080".to_owned()),
    ]);
    for (i, (light, dark)) in paint.enumerate() {
        if i < COLOURS.len() {
            let _ = write!(out, ".c{i}{{background:{dark}}}");
        }
        let _ = write!(out, "svg [stroke=\"{light}\"]{{stroke:{dark}}}svg [fill=\"{light}\"]{{fill:{dark}}}");
    }
    out.push('}');
    out
}

const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1c2126;--dim:#5b646f;--bg:#fff;--card:#f7f8fa;--line:#dfe3e8;--good:#0a6b3f;--bad:#a33}\
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ee;--dim:#9aa4b0;--bg:#14171b;--card:#1b2026;--line:#303741;--good:#5fd39b;--bad:#ff8d8d}}\
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}\
main{max-width:1120px;margin:0 auto;padding:24px 16px 64px}\
h1{font-size:1.7rem;line-height:1.2;margin:0 0 12px}h2{font-size:1.1rem;margin:36px 0 10px}\
header p{max-width:46rem;margin:0 0 8px}.plan{color:var(--dim);font-family:ui-monospace,monospace;font-size:.85rem}\
.how,footer{color:var(--dim);font-size:.86rem}.how{overflow-wrap:anywhere}.warning{color:var(--bad);font-weight:600}\
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:16px 0 0;padding:0;font-size:.9rem}\
figure .legend{margin:6px 4px 2px;font-size:.8rem}\
i{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.45em}\
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}\
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{text-align:right;padding:7px 12px;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}\
tbody tr:last-child>*{border-bottom:0}thead th{background:var(--card);font-weight:600}\
tbody th{text-align:left;font-weight:500;position:sticky;left:0;background:var(--bg);min-width:7.5rem;max-width:52vw;overflow-wrap:break-word;white-space:normal}thead th{white-space:normal;min-width:7rem}\
td small{display:block;color:var(--dim);font-size:.78em;font-weight:400}.best{color:var(--good);font-weight:650}.off{color:var(--bad)}.none{color:var(--dim)}\
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;min-width:0}\
figure.wide{margin:0 0 12px;max-width:820px}figcaption{font-size:.86rem;font-weight:600;padding:2px 6px 6px}\
svg{display:block;width:100%;height:auto}.strip{margin-left:auto;max-width:120px;min-width:80px}.strip circle{fill:var(--fg);fill-opacity:.55}.strip path{stroke:var(--line)}\
details{margin:14px 0;border:1px solid var(--line);border-radius:8px;padding:0 12px}\
details[open]{padding-bottom:12px}summary{cursor:pointer;padding:10px 0;font-weight:600;overflow-wrap:anywhere}\
.plots{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr))}\
.runs{font-size:.86rem;padding-left:1.2em;overflow-wrap:anywhere}footer{margin-top:40px}\
@media(max-width:520px){main{padding:16px 10px 48px}h1{font-size:1.35rem}th,td{padding:6px 8px}details{padding:0 8px}}";

#[cfg(test)]
pub(crate) use tests::results as tests_results;
#[cfg(test)]
mod tests;
