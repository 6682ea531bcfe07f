use super::*;
use crate::run::outcome::{Curves, Discarded, FlowResult, RunResult};
use std::collections::BTreeMap;

pub(super) fn run(goodput: f64) -> RunResult {
    let curve = |v: f32| vec![v; 40];
    RunResult {
        repetition: 1,
        figures: BTreeMap::from([(Metric::Goodput, goodput), (Metric::QueueLoss, 0.001)]),
        flows: vec![FlowResult {
            name: "x".into(),
            completions: vec![0.07, 0.08, 0.3],
            ..FlowResult::default()
        }],
        curves: Curves {
            step: 0.05,
            throughput: curve(goodput as f32),
            rtt: curve(0.07),
            queue: curve(1e6),
            flows: vec![("one <b>".into(), curve(1e6)), ("two".into(), curve(2e6))],
        },
        ..RunResult::default()
    }
}

pub(crate) fn results() -> Results {
    let peer = |name: &str, v: f64| {
        let mut p =
            PeerResult { name: name.into(), runs: vec![run(v), run(v * 1.1)], ..PeerResult::default() };
        p.summarise();
        p
    };
    let mut bad =
        PeerResult { name: "gone".into(), skipped: Some("not <installed>".into()), ..PeerResult::default() };
    bad.discarded.push(Discarded { repetition: 2, why: "late & lost".into() });
    let cell = CellResult {
        id: "loss=1%".into(),
        point: vec![("loss".into(), "1%".into())],
        network: "rate=1gbit delay=35ms".into(),
        direct: false,
        capacity: Some(1e9),
        rtt: 0.07,
        window: (5.0, 20.0),
        events: vec![(1.0, "blackout=200ms".into())],
        peers: vec![peer("Longhaul", 9e8), peer("<script>alert('x')</script>", 8e8), bad],
    };
    Results {
        format: crate::run::outcome::FORMAT,
        plan: "p".into(),
        title: "A \"title\" & <more>".into(),
        about: "words".into(),
        simulated: false,
        timed_hosts: false,
        machine: crate::run::outcome::Machine::default(),
        repetitions: 2,
        metrics: vec![Metric::Goodput, Metric::QueueLoss, Metric::Jain],
        cells: vec![cell],
        complete: true,
        published: Vec::new(),
        regret: None,
    }
}

#[test]
fn page_has_tables_plots_and_failures() {
    let page = html(&results(), None);
    assert_eq!(page.matches("<table>").count(), 2, "no table for a metric without a figure");
    // Bars, throughput, that of the worst runs, round trip, queue, completion times, and flows of two peers.
    assert_eq!(page.matches("<svg").count() - page.matches("class=\"strip\"").count(), 8);
    // A dot for each run: of two peers in the bars, and in the tables of two metrics.
    assert_eq!((page.matches("class=\"strip\"").count(), page.matches("<circle").count()), (4, 12));
    assert!(!page.contains("modes</b>"));
    assert!(page.contains("945.0 Mbit/s") && page.contains("tenth 909.0 Mbit/s, worst 900.0 Mbit/s"));
    assert!(page.contains("<td class=\"best\">945.0 Mbit/s"));
    assert!(page.contains("4 good runs, 1 discarded and thrown away by rule"));
    assert!(page.contains("skipped: not &lt;installed&gt;") && page.contains("discarded: late &amp; lost"));
    assert!(page.contains("at 1 s: blackout=200ms"));
    assert!(!page.contains("interrupted"));
}

#[test]
fn bimodal_runs_are_marked() {
    let mut r = results();
    r.cells[0].peers[1].runs.push(run(9e7));
    r.cells[0].peers[1].summarise();
    let page = html(&r, None);
    assert!(
        page.contains("<h2>Runs of more than one mode</h2>") && page.contains("<b class=\"off\">2 modes</b>")
    );
    assert!(page.contains("1 at 90.0 Mbit/s, 2 at 840.0 Mbit/s"));
    assert!(!page.contains("<script"), "{page}");
}

#[test]
fn input_is_escaped_in_html() {
    let page = html(&results(), None);
    for bad in ["<script", "<more>", "<b>", "<installed>", "alert('x')<"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("A &quot;title&quot; &amp; &lt;more&gt;"));
}

#[test]
fn page_is_self_contained_and_has_a_dark_mode() {
    let page = html(&results(), None);
    let addresses = page.matches("http").count();
    assert_eq!(
        addresses,
        page.matches("http://www.w3.org/2000/svg").count() + page.matches("http-equiv").count()
    );
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("width=device-width"));
    // Every colour of the plots has a rule for dark pages.
    let style = &page[..page.find("</style>").expect("a style")];
    for colour in COLOURS.map(plot::hex) {
        assert!(style.contains(&format!("svg [stroke=\"{colour}\"]")), "{colour}");
    }
}

/// The same peers at three sizes, beside a table of others.
fn swept() -> Results {
    let mut r = results();
    let cell = r.cells.remove(0);
    for size in ["4B", "1KiB", "64KiB"] {
        let mut c = cell.clone();
        (c.id, c.point, c.direct) = (format!("size={size}"), vec![("size".into(), size.into())], true);
        for (i, p) in c.peers.iter_mut().enumerate() {
            for run in &mut p.runs {
                run.figures.insert(Metric::MessageRtt, 1e-5 * (i + 1) as f64);
            }
            p.summarise();
        }
        r.cells.push(c);
    }
    r.metrics = vec![Metric::MessageRtt];
    let row = |v: &[&str]| v.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    r.published = vec![crate::plan::Published {
        title: "A <paper>".into(),
        about: "of 2005".into(),
        columns: row(&["ends", "4 bytes"]),
        rows: vec![row(&["tcp & tcp", "62.7"])],
        cells: vec!["size=4B".into()],
        peers: vec!["Longhaul".into()],
        metrics: vec![Metric::MessageRtt],
        ours: vec![],
    }];
    r
}

#[test]
fn swept_sizes_are_plotted_and_published_tables_shown_beside_results() {
    let page = html(&swept(), None);
    let plots = |r: &Results| html(r, None).matches("<svg").count();
    let mut two = swept();
    two.cells.pop();
    let mut unswept = swept();
    unswept.cells.iter_mut().for_each(|c| c.point.clear());
    assert_eq!(plots(&swept()), plots(&unswept) + 1, "a line over three sizes");
    assert!(page.contains(">bytes<") || page.contains("bytes"), "its axis");
    assert!(
        page.contains("<h3>A &lt;paper&gt;</h3>") && page.contains("<th>tcp &amp; tcp</th><td>62.7</td>")
    );
    assert!(page.contains("<th>4B: Message to and fro, median</th>") && page.contains("<td>10.0 us</td>"));
    assert!(page.contains("with nothing emulated"));
}

#[test]
fn own_results_are_shown_in_the_published_columns() {
    let mut r = swept();
    let ours = |title: &str, peer: &str| crate::plan::Ours { title: title.into(), peers: vec![peer.into()] };
    r.published[0].ours = vec![ours("Long", "Longhaul"), ours("none", "Nobody")];
    let page = html(&r, None);
    assert!(page.contains("<th>Here: size=4B</th><th>4 bytes</th>"), "{page}");
    assert!(page.contains("<th>Long: Message to and fro, median</th><td>10.0 us</td>"));
    assert!(!page.contains("none: ") && !page.contains("4B: Message"));
    let text = published(&r);
    assert!(text.starts_with("A <paper>\n  Published: ends"), "{text}");
    assert!(text.contains("Long: Message to and fro, median  10.0 us"), "{text}");
    assert_eq!(published(&results()), "");
}

#[test]
fn tags_are_balanced() {
    let page = html(&results(), None) + &html(&swept(), None);
    for tag in [
        "h3", "table", "tr", "td", "th", "section", "details", "figure", "svg", "ul", "li", "div", "main",
        "header",
    ] {
        let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn interrupted_plan_is_marked_incomplete() {
    let mut r = results();
    (r.complete, r.cells) = (false, Vec::new());
    assert!(html(&r, None).contains("was interrupted"));
}

#[test]
fn simulator_results_are_shown_beside_emulated_ones() {
    let (r, mut sim) = (results(), results());
    sim.simulated = true;
    sim.cells[0].peers[1].name = format!("{} (played by Longhaul's)", sim.cells[0].peers[1].name);
    for run in &mut sim.cells[0].peers[1].runs {
        run.figures.insert(Metric::Goodput, 4e8);
    }
    sim.cells[0].peers[1].summarise();
    let page = html(&r, Some(&sim));
    assert!(page.contains("Emulated and simulated"));
    assert!(page.contains("<td>0.0 %</td>"), "the same figures");
    assert!(page.contains("<td class=\"off\">-52.4 %</td>"), "400 of 840");
    assert!(page.contains("1 of 2 differ by more than 10 %"));
}
