//! The report card of a congestion-control algorithm: its conformance, and its grades on paths of several kinds.
//!
//! The conformance kit's rules are pass or fail. Transfers over the real transport in virtual time are graded fine,
//! fair or poor; a poor grade may be what the algorithm is designed for (Reno on lossy paths). A transfer that hardly
//! progresses fails.

use crate::flows::{FlowPlan, Flows};
use crate::pair::Load;
use crate::steady::{Case, Measurement, measure};
use base::{Rate, Rng, Span, Time};
use cc::testkit::conformance::{
    Harness, Op, Path, bytes_sent_under_loss, check_cwnd_follows_use, check_recovery, run,
};
use cc::{Algorithm, Params, registry};
use netem::{Duplex, LinkConfig, Probability, Topology};
use transport::TransportOptions;
use wire::Module;

/// Random sequences of events that test the rules on each path.
const SEQUENCES: u64 = 40;
/// Most events in a sequence.
const MAX_OPS: u64 = 300;
/// Round trips after an incident within which it must recover.
const RECOVERY_ROUNDS: u64 = 12;
/// The rate of the simulated paths.
const RATE: Rate = Rate::from_mbit(50);
/// Timer granularity of the simulated hosts.
const SLACK: Span = Span::from_micros(20);
/// Shortest duration of a transfer, and fewest round trips.
const MIN_DURATION: Span = Span::from_secs(8);
const MIN_ROUNDS: u64 = 60;
/// Duration of transfers that share a path.
const SHARING_DURATION: Span = Span::from_secs(40);

/// A grade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Very good.
    Fine,
    /// Acceptable.
    Fair,
    /// A reason to choose another algorithm.
    Poor,
    /// It breaks a rule or does not work at all.
    Failed,
}

impl Grade {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Fine => "fine",
            Grade::Fair => "fair",
            Grade::Poor => "poor",
            Grade::Failed => "FAILED",
        }
    }
}

/// One line of a report card.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `conformance`, `utilisation`, `loss`, `queue`, `marks` or `fairness`.
    pub section: &'static str,
    /// What was tested.
    pub what: String,
    /// The result, as text.
    pub found: String,
    /// The graded number, if any.
    pub value: Option<f64>,
    /// The grade.
    pub grade: Grade,
}

/// A report card.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportCard {
    /// The algorithm with parameters.
    pub algorithm: String,
    /// Its lines.
    pub rows: Vec<Row>,
}

impl ReportCard {
    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|r| r.grade != Grade::Failed)
    }

    /// A line with the number of lines per grade, and whether it passed.
    pub fn summary(&self) -> String {
        let count = |m| self.rows.iter().filter(|r| r.grade == m).count();
        let verdict = if self.passed() { "passed" } else { "not passed" };
        let [fine, fair, poor, failed] = [Grade::Fine, Grade::Fair, Grade::Poor, Grade::Failed].map(count);
        format!("{fine} fine, {fair} fair, {poor} poor, {failed} failed: {verdict}")
    }
}

/// Grades an algorithm, given as for `--cc`, and passes on each line as soon as it is available. Once `ended` says
/// why the algorithm no longer decides, grading stops, since it would grade its fallback.
///
/// # Errors
/// An invalid selection, or why the algorithm no longer decides, as text.
pub fn grade(
    selection: &str,
    ended: &dyn Fn() -> Option<String>,
    mut say: impl FnMut(&Row),
) -> Result<ReportCard, String> {
    let (definition, params) = registry::parse(selection).map_err(|e| e.to_string())?;
    let subject = Subject { name: definition.name, params: &params, ended };
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        if let Some(why) = ended() {
            return Err(why);
        }
        say(&row);
        rows.push(row);
        Ok(())
    };
    for (what, check) in RULES {
        add(rule(what, check(&subject)))?;
    }
    for trial in TRIALS {
        add(trial.run(selection))?;
    }
    for other in [None, Some("reno"), Some("cubic")] {
        add(grade_sharing(selection, other))?;
    }
    Ok(ReportCard { algorithm: selection.to_owned(), rows })
}

// ---- rules ----

struct Subject<'a> {
    name: &'static str,
    params: &'a Params,
    ended: &'a dyn Fn() -> Option<String>,
}

impl Subject<'_> {
    fn create_algorithm(&self, path: &Path) -> Result<Box<dyn Algorithm>, String> {
        if let Some(why) = (self.ended)() {
            return Err(why);
        }
        registry::create(self.name, self.params, &path.info(), Rng::from_u64(7)).map_err(|e| e.to_string())
    }
    fn harness(&self, path: Path) -> Result<Harness, String> {
        Ok(Harness::new(self.create_algorithm(&path)?, path))
    }
}

type Rule = fn(&Subject<'_>) -> Result<(), String>;

const RULES: [(&str, Rule); 4] = [
    ("sane and deterministic, whatever happens", decisions_are_valid),
    ("gets going again after time-outs and pauses", recovers),
    ("does not outgrow its application", cwnd_follows_use),
    ("more loss never means more sending", reduces_under_loss),
];

fn paths() -> [Path; 5] {
    let path = |rate, rtt| Path { rate, rtt, packet: 1500 };
    [
        path(Rate::from_mbit(400_000), Span::from_secs(1)),
        path(Rate::from_mbit(100_000), Span::from_millis(70)),
        path(Rate::from_mbit(1_000), Span::from_micros(100)),
        path(Rate::from_mbit(10), Span::from_millis(30)),
        path(Rate::from_bits_per_sec(64_000), Span::from_millis(600)),
    ]
}

fn rule(what: &str, result: Result<(), String>) -> Row {
    let (mark, found) = match result {
        Ok(()) => (Grade::Fine, String::new()),
        Err(why) => (Grade::Failed, why),
    };
    Row { section: "conformance", what: what.to_owned(), found, value: None, grade: mark }
}

/// A random sequence of events, mostly without losses.
fn events(seed: u64) -> Vec<Op> {
    let mut rng = Rng::from_u64(seed);
    let mut byte = |below: u64| u8::try_from(rng.below(below)).unwrap_or(u8::MAX);
    let mut ops = Vec::new();
    while (ops.len() as u64) < MAX_OPS {
        let times = usize::from(byte(40)) + 1;
        let op = match byte(64) {
            0..=23 => Op::CLEAN,
            24..=47 => Op::Step { used: 255, lost: byte(6), marked: 0, queue: byte(256) },
            48..=52 => Op::Step { used: byte(256), lost: byte(256), marked: byte(256), queue: byte(256) },
            53..=54 => Op::Spurious,
            55..=57 => Op::Timeout(byte(12)),
            58 => Op::Persistent,
            59..=60 => Op::Idle(u16::from(byte(256)) * 200),
            61 => Op::PathChanged,
            _ => Op::PacketSize(576 + u16::from(byte(256)) * 33),
        };
        let times = if matches!(op, Op::Step { .. }) { times } else { 1 };
        ops.extend(core::iter::repeat_n(op, times));
    }
    ops
}

fn decisions_are_valid(subject: &Subject<'_>) -> Result<(), String> {
    for seed in 0..SEQUENCES {
        let ops = events(seed);
        for path in paths() {
            let first = run(subject.create_algorithm(&path)?, path, &ops)?;
            if run(subject.create_algorithm(&path)?, path, &ops)? != first {
                return Err("the same events lead to other decisions the second time".to_owned());
            }
        }
    }
    Ok(())
}

fn recovers(subject: &Subject<'_>) -> Result<(), String> {
    for seed in 0..SEQUENCES / 4 {
        let ops = events(seed);
        for path in paths() {
            for event in [Op::Timeout(3), Op::Persistent, Op::Idle(3_000)] {
                let mut h = subject.harness(path)?;
                ops.iter().try_for_each(|op| h.apply(*op).map(drop))?;
                check_recovery(&mut h, event, RECOVERY_ROUNDS)?;
            }
        }
    }
    Ok(())
}

fn cwnd_follows_use(subject: &Subject<'_>) -> Result<(), String> {
    for path in paths() {
        for busy in [0, 8, 40] {
            let mut h = subject.harness(path)?;
            h.repeat(Op::CLEAN, busy)?;
            check_cwnd_follows_use(&mut h, 60)?;
        }
    }
    Ok(())
}

fn reduces_under_loss(subject: &Subject<'_>) -> Result<(), String> {
    for path in paths() {
        for busy in [0, 40, 400] {
            let sending = |lost| {
                let mut h = subject.harness(path)?;
                h.repeat(Op::CLEAN, busy)?;
                bytes_sent_under_loss(&mut h, lost, 40)
            };
            let (clean, lossy): (u128, u128) = (sending(0)?, sending(100)?);
            if lossy > clean {
                return Err(format!(
                    "{} on {path:?}: {lossy} bytes with loss, {clean} without",
                    subject.name
                ));
            }
        }
    }
    Ok(())
}

// ---- transfers ----

/// Thresholds of the graded quantity of a transfer.
#[derive(Clone, Copy)]
enum Thresholds {
    /// The share of the path that it gets: the least for fine, fair and poor.
    Share([f64; 3]),
    /// The longest queue, in bandwidth-delay products: the most for fine and fair.
    Queue([f64; 2]),
}

struct Trial {
    section: &'static str,
    what: &'static str,
    rtt_ms: u64,
    loss: f64,
    queue: f64,
    mark: Option<f64>,
    thresholds: Thresholds,
}

/// Thresholds on clean paths, and with random loss, for which a loss-based algorithm cannot be better than poor
/// (Mathis et al., 1997).
const CLEAN: Thresholds = Thresholds::Share([0.9, 0.7, 0.05]);
const LOSSY: Thresholds = Thresholds::Share([0.9, 0.5, 0.01]);

const fn trial(section: &'static str, what: &'static str, rtt_ms: u64, graded: Thresholds) -> Trial {
    Trial { section, what, rtt_ms, loss: 0.0, queue: 1.0, mark: None, thresholds: graded }
}

const TRIALS: &[Trial] = &[
    trial("utilisation", "50 Mbit/s, 10 ms", 10, CLEAN),
    trial("utilisation", "50 Mbit/s, 50 ms", 50, CLEAN),
    trial("utilisation", "50 Mbit/s, 300 ms", 300, CLEAN),
    Trial { loss: 0.001, ..trial("loss", "0.1 % at random, 50 ms", 50, LOSSY) },
    Trial { loss: 0.01, ..trial("loss", "1 % at random, 50 ms", 50, LOSSY) },
    Trial { queue: 0.1, ..trial("utilisation", "a queue of a tenth of the product, 50 ms", 50, CLEAN) },
    Trial { queue: 4.0, ..trial("utilisation", "a queue of four products, 50 ms", 50, CLEAN) },
    Trial {
        queue: 4.0,
        ..trial("queue", "a queue of four products, 50 ms", 50, Thresholds::Queue([0.5, 2.0]))
    },
    Trial { mark: Some(0.2), ..trial("marks", "marked above a fifth of the product, 50 ms", 50, CLEAN) },
    Trial { mark: Some(0.2), ..trial("queue", "the same", 50, Thresholds::Queue([0.5, 0.95])) },
];

impl Trial {
    fn run(&self, selection: &str) -> Row {
        let rtt = Span::from_millis(self.rtt_ms);
        let loss = Probability::new(self.loss).unwrap_or(Probability::ZERO);
        let mut case = Case::new(RATE, rtt, loss, MIN_DURATION.max(rtt * MIN_ROUNDS));
        case.cc = selection.to_owned();
        case.queue_bdp = self.queue;
        case.mark_bdp = self.mark;
        case.slack = SLACK;
        let row = |found, value, mark| Row {
            section: self.section,
            what: self.what.to_owned(),
            found,
            value,
            grade: mark,
        };
        match measure(&case) {
            Ok(m) => {
                let (value, found, mark) = self.grade(&m);
                row(found, Some(value), mark)
            }
            Err(why) => row(why, None, Grade::Failed),
        }
    }

    fn grade(&self, m: &Measurement) -> (f64, String, Grade) {
        match self.thresholds {
            Thresholds::Share([fine, fair, poor]) => {
                let mark = match m.ratio {
                    r if r >= fine => Grade::Fine,
                    r if r >= fair => Grade::Fair,
                    r if r >= poor => Grade::Poor,
                    _ => Grade::Failed,
                };
                let found = format!(
                    "{:.1} % of the path, {:.2} % sent again",
                    m.ratio * 100.0,
                    m.retransmitted * 100.0
                );
                (m.ratio, found, mark)
            }
            Thresholds::Queue([fine, fair]) => {
                let mark = match m.queue_bdp {
                    q if q <= fine => Grade::Fine,
                    q if q <= fair => Grade::Fair,
                    _ => Grade::Poor,
                };
                (m.queue_bdp, format!("up to {:.2} products wait", m.queue_bdp), mark)
            }
        }
    }
}

// ---- fairness ----

/// Grades the sharing of a path: with another algorithm, or among equal flows.
fn grade_sharing(selection: &str, other: Option<&str>) -> Row {
    let what = match other {
        None => "four flows of it, 30 ms: Jain's index".to_owned(),
        Some(name) => format!("against {name}, 30 ms: its share"),
    };
    let row = |found, value, mark| Row { section: "fairness", what, found, value, grade: mark };
    let flows = match other {
        None => vec![selection; 4],
        Some(name) => vec![selection, name],
    };
    let got = match shares(&flows) {
        Ok(got) => got,
        Err(why) => return row(why, None, Grade::Failed),
    };
    let sum: f64 = got.iter().sum();
    let each = got.iter().map(|g| format!("{g:.1}")).collect::<Vec<_>>().join(", ");
    let (value, limits) = match other {
        // Jain, Chiu and Hawe, "A quantitative measure of fairness", 1984.
        None => {
            (sum * sum / (got.len() as f64 * got.iter().map(|g| g * g).sum::<f64>().max(1e-9)), [0.9, 0.7])
        }
        // Of two flows, half is fair: the grade is the lesser one's part of that.
        Some(_) => (got[0].min(got[1]) / (sum / 2.0).max(1e-9), [0.5, 0.2]),
    };
    let mark = match value {
        v if v >= limits[0] => Grade::Fine,
        v if v >= limits[1] => Grade::Fair,
        _ => Grade::Poor,
    };
    let value = if other.is_some() { got[0] / sum.max(1e-9) } else { value };
    row(format!("{value:.2}; {each} Mbit/s"), Some(value), mark)
}

/// Mbit/s of each flow in the second half.
fn shares(flows: &[&str]) -> Result<Vec<f64>, String> {
    let access = [Duplex::same(LinkConfig { delay: Span::from_millis(5), ..LinkConfig::default() })];
    let rtt = Span::from_millis(30);
    let bottleneck = LinkConfig {
        rate: Some(RATE),
        queue: RATE.bytes_in(rtt),
        delay: Span::from_millis(5),
        ..LinkConfig::default()
    };
    let topology = Topology::dumbbell(flows.len(), &access, &Duplex::same(bottleneck));
    let port =
        |side: &str, i: usize| topology.port(&format!("{side}{i}")).ok_or("the network has no such port");
    let mut plans = Vec::new();
    for (i, cc) in flows.iter().enumerate() {
        let options = TransportOptions {
            cc: (*cc).to_owned(),
            max_packet: 1_500,
            module: Module::Crc32c,
            ..TransportOptions::default()
        };
        let (from, to) = (port("left", i + 1)?, port("right", i + 1)?);
        let load = Load { message: 1 << 20, ahead: 64, messages: None };
        let starts = Time::ZERO + Span::from_secs(i as u64);
        plans.push(FlowPlan { from, to, options, load, starts });
    }
    let mut f = Flows::new(1, SLACK, &topology, &plans).map_err(|e| e.to_string())?;
    f.run_until(Time::ZERO + SHARING_DURATION / 2)?;
    let before: Vec<u64> = (0..flows.len()).map(|i| f.received(i)).collect();
    f.run_until(Time::ZERO + SHARING_DURATION)?;
    let time = (SHARING_DURATION / 2).as_secs_f64();
    Ok(before.iter().enumerate().map(|(i, b)| (f.received(i) - b) as f64 * 8e-6 / time).collect())
}
