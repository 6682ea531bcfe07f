//! Plots as SVG. Each colour used here has a rule for dark mode in the page's style.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write as _;

/// Colours of peers, in their order, repeating if there are more peers. A palette for colour-blind readers (Okabe and
/// Ito, "Color Universal Design", 2008), darkened for white.
pub(super) const COLOURS: [(u8, u8, u8); 8] = [
    (0, 90, 160),
    (200, 80, 0),
    (0, 130, 95),
    (170, 80, 140),
    (120, 95, 0),
    (60, 150, 205),
    (90, 90, 90),
    (150, 20, 40),
];
/// The same for a dark page.
pub(super) const DARK: [(u8, u8, u8); 8] = [
    (95, 170, 255),
    (255, 150, 70),
    (60, 210, 160),
    (235, 150, 205),
    (225, 195, 60),
    (130, 210, 255),
    (185, 185, 185),
    (255, 115, 130),
];
/// Text, lines of axes, and lines of the grid.
pub(super) const TEXT: (u8, u8, u8) = (51, 56, 64);
pub(super) const AXIS: (u8, u8, u8) = (138, 144, 153);
pub(super) const GRID: (u8, u8, u8) = (226, 229, 233);
/// Event markers.
pub(super) const EVENT: (u8, u8, u8) = (190, 60, 60);

/// Size of a line plot: small enough that its text is readable on a phone, where it fills the width.
const SIZE: (u32, u32) = (400, 250);
/// Fonts.
const FONT: (&str, u32) = ("sans-serif", 16);
const BAR_FONT: (&str, u32) = ("sans-serif", 14);
/// Most characters of a bar's name.
const MAX_NAME: usize = 24;
/// Width of a bar plot, of its column of names and of its values, height of a bar, and gap between groups.
const WIDTH: u32 = 500;
const NAMES: u32 = 168;
const VALUES: u32 = 92;
const BAR: u32 = 14;
const GAP: u32 = 9;
/// Radius of a run's dot.
const DOT: i32 = 2;

type Error = Box<dyn std::error::Error>;

fn colour(c: (u8, u8, u8)) -> RGBColor {
    RGBColor(c.0, c.1, c.2)
}
fn of_peer(i: usize) -> RGBColor {
    colour(COLOURS[i % COLOURS.len()])
}

/// A colour in SVG.
pub(super) fn hex(c: (u8, u8, u8)) -> String {
    let mut out = String::from("#");
    for part in [c.0, c.1, c.2] {
        // Writing to a string does not fail.
        let _ = write!(out, "{part:02X}");
    }
    out
}

/// A line of a plot.
pub(super) struct Line {
    /// Which colour.
    pub peer: usize,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The content of a line plot.
pub(super) struct Lines<'a> {
    /// Label of the horizontal axis.
    pub x: &'a str,
    /// Label of the vertical axis.
    pub y: &'a str,
    /// The lines, the first one on top.
    pub lines: Vec<Line>,
    /// Times with a dashed line.
    pub events: Vec<f64>,
    /// Whether the horizontal axis is logarithmic.
    pub log: bool,
    /// The smallest upper end of the vertical axis.
    pub top: f64,
}

/// Draws lines; `None` when there is nothing to draw.
pub(super) fn lines(p: &Lines<'_>) -> Option<String> {
    let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let points = || p.lines.iter().flat_map(|l| l.points.iter()).filter(|q| finite(q));
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut top = p.top;
    for (x, y) in points() {
        (low, high, top) = (low.min(*x), high.max(*x), top.max(*y));
    }
    if low > high || top <= 0.0 {
        return None;
    }
    if high <= low {
        high = low + 1e-3;
    }
    let mut out = String::new();
    let drawn = if p.log {
        let from = low.max(1e-6);
        draw_log(&mut out, p, (from, (high * 1.05).max(from * 1.2)), top * 1.03)
    } else {
        draw_linear(&mut out, p, (low, high), top * 1.05)
    };
    drawn.ok().map(|()| out)
}

macro_rules! draw_on {
    ($out:ident, $p:ident, $x:expr, $top:expr) => {{
        let root = SVGBackend::with_string($out, SIZE).into_drawing_area();
        let font = FONT.into_font().color(&colour(TEXT));
        let mut chart = ChartBuilder::on(&root)
            .margin(6)
            .margin_right(14)
            .x_label_area_size(42)
            .y_label_area_size(60)
            .build_cartesian_2d($x, 0f64..$top)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(colour(GRID))
            .axis_style(colour(AXIS))
            .label_style(font.clone())
            .axis_desc_style(font)
            .x_labels(5)
            .y_labels(5)
            .x_label_formatter(&|v| short(*v))
            .y_label_formatter(&|v| short(*v))
            .x_desc($p.x)
            .y_desc($p.y)
            .draw()?;
        for at in &$p.events {
            let dashes = (0..10).map(|i| $top * f64::from(i) / 10.0);
            chart.draw_series(dashes.map(|y| {
                PathElement::new(vec![(*at, y), (*at, y + $top * 0.05)], colour(EVENT).stroke_width(1))
            }))?;
        }
        for l in $p.lines.iter().rev() {
            let points = l.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
            chart.draw_series(LineSeries::new(points, of_peer(l.peer).stroke_width(2)))?;
        }
        root.present()?;
        Ok(())
    }};
}

fn draw_linear(out: &mut String, p: &Lines<'_>, x: (f64, f64), top: f64) -> Result<(), Error> {
    draw_on!(out, p, x.0..x.1, top)
}
fn draw_log(out: &mut String, p: &Lines<'_>, x: (f64, f64), top: f64) -> Result<(), Error> {
    draw_on!(out, p, (x.0..x.1).log_scale(), top)
}

/// A number with few digits.
fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 || a == 0.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{}", (v * 10.0).round() / 10.0),
        a if a >= 0.1 => format!("{}", (v * 100.0).round() / 100.0),
        _ => format!("{}", (v * 1e5).round() / 1e5),
    }
}

/// A bar: its peer, and the median and all runs; `None` without a figure.
pub(super) type Bar = (usize, Option<(f64, Vec<f64>)>);

/// The content of a bar plot: named groups.
pub(super) struct Bars {
    /// Name and bars.
    pub groups: Vec<(String, Vec<Bar>)>,
    /// The formatter of values.
    pub show: fn(f64) -> String,
}

/// Draws horizontal bars with a dot for every run, groups below each other; `None` if there is nothing to draw.
pub(super) fn bars(b: &Bars) -> Option<String> {
    let top = b.groups.iter().flat_map(|g| &g.1).filter_map(|b| b.1.as_ref()).map(most).fold(0.0, f64::max);
    let rows: usize = b.groups.iter().map(|g| g.1.len()).sum();
    if top <= 0.0 || rows == 0 || !top.is_finite() {
        return None;
    }
    let mut out = String::new();
    draw_bars(&mut out, b, rows as u32, top).ok().map(|()| out)
}

/// The largest value of a bar and its runs.
fn most((median, runs): &(f64, Vec<f64>)) -> f64 {
    runs.iter().copied().fold(*median, f64::max)
}

fn draw_bars(out: &mut String, b: &Bars, rows: u32, top: f64) -> Result<(), Error> {
    let height = rows * BAR + b.groups.len() as u32 * GAP + 12;
    let root = SVGBackend::with_string(out, (WIDTH, height)).into_drawing_area();
    // Room for the value after the longest bar.
    let scale = f64::from(WIDTH - NAMES - VALUES) / top;
    let mut y = 8i32;
    for (name, group) in &b.groups {
        let middle = y + (group.len() as u32 * BAR / 2) as i32;
        let name: String = if name.chars().count() > MAX_NAME {
            name.chars().take(MAX_NAME - 1).chain(['…']).collect()
        } else {
            name.clone()
        };
        text(&root, &name, (NAMES as i32 - 8, middle), HPos::Right)?;
        for (peer, value) in group {
            let (left, bottom) = (NAMES as i32, y + BAR as i32 - 2);
            let mid = y + BAR as i32 / 2 - 1;
            match value {
                Some(figure @ (median, runs)) => {
                    let at = |v: f64| left + (v * scale) as i32;
                    let fill = of_peer(*peer).filled();
                    root.draw(&Rectangle::new([(left, y), (at(*median).max(left + 1), bottom)], fill))?;
                    if runs.len() > 1 {
                        let dot = |v: &f64| Circle::new((at(*v), mid), DOT, colour(TEXT).filled());
                        root.draw(&PathElement::new(
                            vec![
                                (at(runs.iter().copied().fold(f64::INFINITY, f64::min)), mid),
                                (at(most(figure)), mid),
                            ],
                            colour(TEXT).stroke_width(1),
                        ))?;
                        runs.iter().try_for_each(|v| root.draw(&dot(v)))?;
                    }
                    text(&root, &(b.show)(*median), (at(most(figure)) + 6, mid), HPos::Left)?;
                }
                None => text(&root, "no figure", (left + 4, mid), HPos::Left)?,
            }
            y += BAR as i32;
        }
        y += GAP as i32;
    }
    root.draw(&PathElement::new(vec![(NAMES as i32, 2), (NAMES as i32, y)], colour(AXIS).stroke_width(1)))?;
    root.present()?;
    Ok(())
}

fn text(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    words: &str,
    at: (i32, i32),
    side: HPos,
) -> Result<(), Error> {
    let style = BAR_FONT.into_font().color(&colour(TEXT)).pos(Pos::new(side, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

/// A point of a scatter plot.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Where.
    pub x: f64,
    pub y: f64,
    /// Its name, if it is to be drawn.
    pub label: Option<String>,
}

/// Size of a scatter plot: square, with room for names at its right.
const SCATTER: (u32, u32) = (760, 520);
const SCATTER_NAMES: u32 = 250;

/// Draws points over the diagonal on which both values are equal, and a band of `within` around it; `None` without points.
pub(super) fn scatter(points: &[Point], within: f64) -> Option<String> {
    let finite = |p: &&Point| p.x.is_finite() && p.y.is_finite();
    let top = points.iter().filter(finite).map(|p| p.x.max(p.y)).reduce(f64::max)?.max(1.0) * 1.05;
    let points: Vec<&Point> = points.iter().filter(finite).collect();
    let mut out = String::new();
    draw_scatter(&mut out, &points, within, top).ok().map(|()| out)
}

fn draw_scatter(out: &mut String, points: &[&Point], within: f64, top: f64) -> Result<(), Error> {
    let root = SVGBackend::with_string(out, SCATTER).into_drawing_area();
    root.fill(&WHITE)?;
    let font = FONT.into_font().color(&colour(TEXT));
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_right(SCATTER_NAMES)
        .x_label_area_size(42)
        .y_label_area_size(60)
        .build_cartesian_2d(0f64..top, 0f64..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(colour(GRID))
        .axis_style(colour(AXIS))
        .label_style(font.clone())
        .axis_desc_style(font)
        .x_desc("share of the limit, simulated")
        .y_desc("in real time")
        .draw()?;
    for (shift, width) in [(-within, 1), (0.0, 2), (within, 1)] {
        let line = vec![((-shift).max(0.0), shift.max(0.0)), (top.min(top - shift), top.min(top + shift))];
        chart.draw_series([PathElement::new(line, colour(AXIS).stroke_width(width))])?;
    }
    let mut n = 0;
    for p in points {
        let fill = of_peer(usize::from(p.label.is_some()));
        chart.draw_series([Circle::new((p.x, p.y), 4, fill.filled())])?;
        let Some(label) = &p.label else { continue };
        n += 1;
        let at = chart.backend_coord(&(p.x, p.y));
        text(&root, &n.to_string(), (at.0 + 6, at.1 - 7), HPos::Left)?;
        let row = (SCATTER.0 as i32 - SCATTER_NAMES as i32 + 8, 16 * n);
        text(&root, &format!("{n}  {label}"), row, HPos::Left)?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, log: bool) -> Option<String> {
        let lines = vec![Line { peer: 0, points }];
        super::lines(&Lines { x: "s", y: "Mbit/s", lines, events: vec![1.5], log, top: 0.0 })
    }

    #[test]
    fn lines_have_the_colour_of_their_peer_and_empty_plots_are_omitted() {
        for log in [false, true] {
            let svg = plot(vec![(1.0, 5.0), (2.0, 7.0), (f64::NAN, 1.0)], log).expect("a plot");
            assert!(svg.starts_with("<svg") && svg.contains(&hex(COLOURS[0])) && svg.contains(&hex(EVENT)));
            assert!(svg.contains("viewBox"), "it scales");
            assert!(!svg.contains("NaN"));
        }
        assert_eq!(plot(vec![], false), None);
        assert_eq!(plot(vec![(1.0, 0.0)], false), None);
        assert!(plot(vec![(1.0, 3.0)], true).is_some(), "a single point");
    }

    #[test]
    fn bars_have_values_and_names_are_escaped() {
        let groups = vec![
            (
                "<script>alert(1)</script> & more".to_owned(),
                vec![(0, Some((5.0, vec![4.0, 6.0]))), (1, None)],
            ),
            ("b".to_owned(), vec![(0, Some((0.0, vec![0.0])))]),
        ];
        let svg = bars(&Bars { groups, show: |v| format!("{v} units") }).expect("a plot");
        assert_eq!(svg.matches("<circle").count(), 2, "a dot for each run");
        assert!(svg.contains("5 units") && svg.contains("no figure") && svg.contains('…'));
        assert!(!svg.contains("<script>"), "{svg}");
        assert_eq!(bars(&Bars { groups: vec![], show: |v| v.to_string() }), None);
    }

    #[test]
    fn axis_numbers_are_short() {
        for (v, text) in [(0.0, "0"), (950.0, "950"), (12.34, "12.3"), (0.5, "0.5"), (0.001, "0.001")] {
            assert_eq!(short(v), text);
        }
    }
}
