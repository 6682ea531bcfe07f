//! Random simulations of iWARP connections over a modelled TCP, checked against a model of what must arrive and
//! reproducible from a seed.
//!
//! Two applications post all operations in both directions, with any parameters, over streams that deliver bytes
//! late, in pieces of any size and through small buffers. In most simulations a fault is injected. In every case,
//! completions must come in order and once, successful completions must have the right bytes, no other memory may
//! change, all posted work must complete, and no end may wait for ever.

mod end;
mod plan;
mod tcp;
mod walk;

use base::{Rng, Span, Time};
use core::ops::Range;
use end::{End, Keys, SOURCE, TARGET};
use iwarp::{End as Ending, Scratch, StreamAction, ddp, rdmap::terminate};
use plan::{Action, Fault, Op, Plan};
use std::rc::Rc;
use tcp::{Arrival, Pipe, StreamFault};
use verbs::QpState;
use walk::RecordParser;

/// Most events in one simulation; more indicate an endless loop.
const MAX_EVENTS: u64 = 1_000_000;
/// After a slow reading, an end reads quickly for at least this long, so that no record takes long enough to be given
/// up.
const MIN_PAUSE_INTERVAL: Span = Span::from_secs(2);
/// One of this many seeds is run twice, to verify reproducibility.
const REPEAT_ONE_IN: u64 = 16;

/// The result of one simulation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Completions checked.
    pub completions: u64,
    /// Virtual time at the end, in nanoseconds.
    pub duration: u64,
    /// Whether a fault occurred.
    pub had_fault: bool,
}

/// A simulation in which a check failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "seed {seed}: {what}\nrepeat with: cargo run --release -p longhaul-sim --example streams -- {seed}\n{world}"
)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The failed check.
    pub what: String,
    /// The plan, and how far it got.
    pub world: String,
}

/// Runs the simulation of one seed.
///
/// # Errors
/// The failed check.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    let first = run_once(seed)?;
    if seed.is_multiple_of(REPEAT_ONE_IN) && run_once(seed)? != first {
        let what = "two runs differ".to_owned();
        return Err(Box::new(Failure { seed, what, world: String::new() }));
    }
    Ok(first)
}

/// Runs the simulations of many seeds; returns their total and the failures.
pub fn run_range(seeds: Range<u64>) -> (Report, Vec<Failure>) {
    let (mut all, mut failures) = (Report::default(), Vec::new());
    for seed in seeds {
        match run_catching_panics(seed) {
            Ok(r) => {
                all.events += r.events;
                all.completions += r.completions;
                all.duration += r.duration;
                all.had_fault |= r.had_fault;
            }
            Err(f) => failures.push(*f),
        }
    }
    (all, failures)
}

/// Runs one seed and turns a panic into its failure.
fn run_catching_panics(seed: u64) -> Result<Report, Box<Failure>> {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        let what = format!("panic: {}", text.unwrap_or_default());
        Err(Box::new(Failure { seed, what, world: format!("{:?}", Plan::new(seed)) }))
    })
}

fn run_once(seed: u64) -> Result<Report, Box<Failure>> {
    let plan = Rc::new(Plan::new(seed));
    let fail = |what: String, world: String| Box::new(Failure { seed, what, world });
    let mut w = World::new(seed, &plan).map_err(|e| fail(e.to_string(), format!("{plan:?}")))?;
    w.run().map_err(|what| fail(what, w.describe()))?;
    let lasted = w.now.as_nanos();
    Ok(Report { events: w.events, completions: w.completions, duration: lasted, had_fault: w.has_fault() })
}

struct World {
    plan: Rc<Plan>,
    ends: [End; 2],
    keys: [Keys; 2],
    /// By the sending end.
    pipes: [Pipe; 2],
    /// Parsers of the bytes that have arrived from each end.
    record_parsers: [RecordParser; 2],
    /// The end whose stream was cut off within a record.
    cut: Option<usize>,
    scratch: Scratch,
    rng: Rng,
    now: Time,
    /// Whether the planned fault has been injected.
    fault_injected: bool,
    events: u64,
    completions: u64,
}

/// `(mine, the other's)`.
fn both<T>(pair: &mut [T; 2], side: usize) -> (&mut T, &mut T) {
    let [x, y] = pair;
    if side == 0 { (x, y) } else { (y, x) }
}

impl World {
    fn new(seed: u64, plan: &Rc<Plan>) -> Result<World, verbs::Error> {
        let mut rng = Rng::from_u64(seed ^ 0x7ea1);
        let harm = |from: usize| match plan.fault {
            Fault::OnStream(f, at, harm) if f == from => Some((at, harm)),
            Fault::Unanswered(f) if f == from => Some((0, StreamFault::Silence)),
            _ => None,
        };
        let ends = [End::new(plan, seed, 0)?, End::new(plan, seed, 1)?];
        let keys = [ends[0].keys(), ends[1].keys()];
        let pipes = [0, 1].map(|from| Pipe::new(plan.directions[from], harm(from), rng.fork()));
        let walks = [0, 1].map(|from: usize| RecordParser::new(plan.sides[1 - from].config.markers));
        let (now, spare, cut) = (Time::ZERO, Scratch::default(), None);
        Ok(World {
            record_parsers: walks,
            cut,
            scratch: spare,
            plan: plan.clone(),
            ends,
            keys,
            pipes,
            rng,
            now,
            fault_injected: false,
            events: 0,
            completions: 0,
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.run_until_quiet()?;
        if !self.has_fault() && !self.all_done() {
            return Err("nothing moves any more, and not all is done".into());
        }
        if let (Fault::Action(from, _, Action::QpError), true) = (self.plan.fault, self.fault_injected)
            && let e = &self.ends[1 - from]
            && e.established.is_some()
            && e.closed.is_none()
        {
            return Err("nobody notices that the queue pair is in error".into());
        }
        // Then one end closes and, on a dead path, so does the other.
        for side in [self.plan.closer, 1 - self.plan.closer] {
            let e = &mut self.ends[side];
            if e.closed.is_none() && !e.killed {
                e.ready = true;
                e.c.close(&mut e.a, self.now);
                self.run_until_quiet()?;
            }
        }
        self.check_outcome()
    }

    /// Processes all events that happen without further action.
    fn run_until_quiet(&mut self) -> Result<(), String> {
        loop {
            // Reading at one end makes room for the other.
            while self.step(0)? | self.step(1)? {
                self.count()?;
            }
            let Some(next) = self.next() else { return Ok(()) };
            self.now = self.now.max(next);
            self.count()?;
        }
    }
    fn count(&mut self) -> Result<(), String> {
        self.events += 1;
        if self.events > MAX_EVENTS {
            return Err(format!("{MAX_EVENTS} events were not enough"));
        }
        Ok(())
    }
    fn next(&self) -> Option<Time> {
        let of = |side: usize| {
            let e = &self.ends[side];
            let pipe = &self.pipes[1 - side];
            let arrival =
                if e.c.is_held() { pipe.next_reset() } else { pipe.next().map(|t| t.max(e.busy_until)) };
            let timer = e.c.poll_timeout().filter(|_| !e.killed);
            [arrival, timer, e.next_action()].into_iter().flatten().min()
        };
        [of(0), of(1)].into_iter().flatten().min()
    }

    /// Lets end `side` act; returns whether anything arrived or was sent.
    fn step(&mut self, side: usize) -> Result<bool, String> {
        let before = (self.pipes[1 - side].delivered(), self.pipes[side].written());
        self.deliver(side);
        let e = &mut self.ends[side];
        if e.killed {
            return Ok(false);
        }
        if e.c.poll_timeout().is_some_and(|t| t <= self.now) {
            e.c.on_timeout(&mut e.a, self.now);
        }
        e.update_from_connection(self.now);
        e.act(self.now, &self.keys[1 - side])?;
        e.update_from_connection(self.now);
        if self.ends[side].is_ready() {
            self.send(side)?;
        }
        self.apply_stream_actions(side);
        let (e, other) = both(&mut self.ends, side);
        self.completions += e.check(other)?;
        Ok(before != (self.pipes[1 - side].delivered(), self.pipes[side].written()))
    }

    /// Delivers what is due to end `side`.
    fn deliver(&mut self, side: usize) {
        let from = 1 - side;
        while self.now >= self.ends[side].busy_until {
            let mut most = u64::MAX;
            if let (Fault::Action(f, at, act), false) = (self.plan.fault, self.fault_injected)
                && f == from
            {
                most = at.saturating_sub(self.pipes[from].delivered());
                if most == 0 {
                    self.fault_injected = true;
                    self.inject_fault(side, act);
                    continue;
                }
            }
            // An end that waits for a receive reads nothing, but notices a reset.
            let held = self.ends[side].c.is_held();
            if held && self.pipes[from].next_reset().is_none_or(|t| t > self.now) {
                return;
            }
            if held {
                self.pipes[from].drop_unread();
            }
            let Some(arrival) = self.pipes[from].take(self.now, most) else { return };
            self.arrive(side, arrival);
            self.maybe_pause(side);
        }
    }

    fn arrive(&mut self, side: usize, arrival: Arrival) {
        let (from, e) = (1 - side, &mut self.ends[side]);
        match arrival {
            // No program is left, so the kernel resets the connection.
            Arrival::Bytes(_) if e.abandoned || e.killed => self.pipes[side].reset(self.now),
            _ if e.abandoned || e.killed => {}
            Arrival::Bytes(b) => {
                if self.plan.shares {
                    e.c.borrow_scratch(&mut self.scratch);
                }
                let taken = e.c.receive(&mut e.a, &b, self.now);
                if e.c.is_held() {
                    self.pipes[from].put_back(self.now, &b[taken..]);
                    self.record_parsers[from].take(&b[..taken]);
                } else {
                    self.record_parsers[from].take(&b);
                }
                if self.plan.shares {
                    e.c.return_scratch(&mut self.scratch);
                }
            }
            Arrival::End => {
                e.update_from_connection(self.now);
                if e.closed.is_none() && !self.record_parsers[from].is_at_record_boundary() {
                    self.cut = Some(side);
                }
                e.c.on_fin(&mut e.a, self.now);
            }
            Arrival::Reset => e.c.on_error(&mut e.a),
        }
    }

    /// Sometimes pauses an end for a while.
    fn maybe_pause(&mut self, side: usize) {
        let (how_often, how_long) = self.plan.sides[side].slow_reads;
        let e = &mut self.ends[side];
        if self.now >= e.busy_until + MIN_PAUSE_INTERVAL && self.rng.chance(how_often) {
            e.busy_until = self.now + Span::from_nanos(self.rng.below(1 + how_long.as_nanos()));
        }
    }

    fn inject_fault(&mut self, side: usize, act: Action) {
        let (now, e) = (self.now, &mut self.ends[side]);
        // The adapter reports a queue pair in error.
        e.ready |= act != Action::QpError;
        match act {
            Action::Reset => self.pipes.iter_mut().for_each(|p| p.reset(now)),
            Action::Kill => {
                e.killed = true;
                self.pipes[side].finish(now);
            }
            Action::Abort => e.c.abort(&mut e.a, now),
            Action::Close => e.c.close(&mut e.a, now),
            Action::HalfClose => self.pipes[side].finish(now),
            Action::QpError => drop(e.a.modify_qp(e.qp, QpState::Error)),
            Action::Deregister(which) => {
                let which = [SOURCE, TARGET][which % 2];
                // Regions in use by work or windows stay.
                e.deregistered[which] = e.a.dereg_mr(e.mrs[which].id).is_ok();
            }
            Action::Unbind => {
                e.destroy_window();
            }
        }
    }

    /// Writes what end `side` has to send to the stream, as far as it takes it.
    fn send(&mut self, side: usize) -> Result<(), String> {
        loop {
            let room = self.pipes[side].room();
            if room == 0 {
                return Ok(());
            }
            // Sometimes less than there is room for.
            let most = if self.rng.chance(0.2) { 1 + self.rng.below(room) } else { room };
            let bytes = self.ends[side].transmit(self.now, most)?;
            if bytes.is_empty() {
                self.ends[side].ready = false;
                return Ok(());
            }
            self.pipes[side].write(self.now, &bytes);
        }
    }

    /// Applies the connection's actions to the stream.
    fn apply_stream_actions(&mut self, side: usize) {
        let e = &mut self.ends[side];
        while let Some(s) = e.c.next_action() {
            e.abandoned |= s != StreamAction::Shutdown;
            match s {
                StreamAction::Shutdown | StreamAction::Close => self.pipes[side].finish(self.now),
                StreamAction::Abort => self.pipes[side].reset(self.now),
            }
        }
        e.update_from_connection(self.now);
    }

    // ---- judging ----

    fn all_done(&self) -> bool {
        let [x, y] = &self.ends;
        x.all_done(y) && y.all_done(x)
    }
    /// Whether a fault occurred, so that not everything needs to arrive.
    fn has_fault(&self) -> bool {
        match self.plan.fault {
            Fault::None => false,
            Fault::OnStream(from, at, StreamFault::Silence) => self.pipes[from].written() >= at,
            Fault::OnStream(from, at, _) => self.pipes[from].written() > at,
            Fault::Action(..) => self.fault_injected,
            Fault::Unanswered(_) | Fault::SlowAnswer | Fault::Reject => true,
            Fault::WrongKey(side) => self.plan.wrong_job(side).is_some(),
            Fault::NoReceives(side) => self.plan.sides[1 - side].jobs.iter().any(|j| j.slot.is_some()),
        }
    }

    fn check_outcome(&self) -> Result<(), String> {
        let [x, y] = &self.ends;
        for (e, other) in [(x, y), (y, x)] {
            if e.killed {
                continue;
            }
            let Some((end, by_peer)) = e.closed else { return Err("an end is not closed at the end".into()) };
            if !e.all_flushed() {
                return Err("work has no completion after the end".into());
            }
            e.check_memory(other)?;
            if !self.has_fault() && (end, by_peer) != (Ending::Closed, false) {
                return Err(format!("{end:?} in a world where nothing goes wrong"));
            }
        }
        if !self.has_fault() && !self.all_done() {
            return Err("not all is done at the end".into());
        }
        if let Some(side) = self.cut
            && self.ends[side].closed.is_some_and(|c| c.0 == Ending::Closed)
        {
            return Err(format!("a record that was cut off is no failure for end {side}"));
        }
        self.check_close_reason()
    }

    /// Checks the close reason where the fault determines it.
    fn check_close_reason(&self) -> Result<(), String> {
        let ended = |side: usize| self.ends[side].closed.map(|c| c.0);
        let want = |side: usize, end: Ending| {
            let right = ended(side) == Some(end);
            if right { Ok(()) } else { Err(format!("end {side} should have ended with {end:?}")) }
        };
        match self.plan.fault {
            Fault::Unanswered(0) => want(0, Ending::TimedOut).and_then(|()| want(1, Ending::TimedOut)),
            Fault::Unanswered(_) => want(0, Ending::TimedOut),
            Fault::SlowAnswer => want(1, Ending::TimedOut),
            Fault::Reject => want(0, Ending::Rejected).and_then(|()| want(1, Ending::Rejected)),
            Fault::NoReceives(side) if self.has_fault() => {
                want(side, Ending::Terminated(ddp::untagged::NO_BUFFER))
            }
            Fault::WrongKey(side) => {
                let Some(job) = self.plan.wrong_job(side) else { return Ok(()) };
                let is_read = self.plan.sides[side].jobs[job].op == Op::Read;
                let cause = if is_read { terminate::STAG } else { ddp::tagged::STAG };
                want(1 - side, Ending::Terminated(cause))
            }
            // The peer of an application that aborts has done nothing wrong and must not be told otherwise.
            Fault::Action(_, _, Action::QpError | Action::Abort) if self.fault_injected => {
                let told = |side: usize| matches!(ended(side), Some(Ending::Terminated(c)) if c != terminate::CATASTROPHIC);
                if told(0) || told(1) { Err("blamed for what the application did".into()) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn describe(&self) -> String {
        let [x, y] = &self.ends;
        let bytes: Vec<_> = self.pipes.iter().map(|p| (p.written(), p.delivered())).collect();
        format!(
            "at {:?}, {} events, bytes sent and arrived {bytes:?}\n{}\n{}\nfault {:?}, crc {}, {:?}\n{:?}\n{:?}",
            self.now,
            self.events,
            x.progress(),
            y.progress(),
            self.plan.fault,
            self.plan.crc(),
            self.plan.directions,
            self.plan.sides[0],
            self.plan.sides[1],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Seeds that are run unless `LONGHAUL_STREAM_SEEDS` (`A..B`) gives others.
    const SEEDS: Range<u64> = 0..4_000;

    fn seeds() -> Range<u64> {
        let text = std::env::var("LONGHAUL_STREAM_SEEDS").ok();
        let named = text.as_deref().and_then(|t| t.split_once(".."));
        let parsed = named.and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
        assert!(text.is_none() || parsed.is_some(), "LONGHAUL_STREAM_SEEDS is A..B");
        parsed.unwrap_or(SEEDS)
    }

    #[test]
    fn random_stream_worlds_pass_all_checks() {
        let (all, failures) = run_range(seeds());
        assert!(failures.is_empty(), "{} failed; the first: {}", failures.len(), failures[0]);
        assert!(all.completions > 0);
    }

    fn world(seed: u64) -> World {
        World::new(seed, &Rc::new(Plan::new(seed))).expect("a world")
    }

    #[test]
    fn random_worlds_cover_all_close_reasons() {
        let mut ends = BTreeSet::new();
        for seed in 0..300 {
            let mut w = world(seed);
            w.run().expect("in order");
            ends.extend(w.ends.iter().filter_map(|e| e.closed).map(|(end, _)| format!("{end:?}")));
        }
        let ends = ends.into_iter().collect::<Vec<_>>().join(", ");
        for end in
            ["Closed", "Rejected", "TimedOut", "Lost", "Aborted", "CRC", "catastrophic", "STag", "no buffer"]
        {
            assert!(ends.contains(end), "{end} is not among {ends}");
        }
    }

    #[test]
    fn queue_pair_error_is_noticed_without_other_events() {
        let quiet = (0..).filter(|s| Plan::new(*s).fault == Fault::None);
        for seed in quiet.take(10) {
            for side in [0, 1] {
                let mut w = world(seed);
                w.run_until_quiet().expect("in order");
                w.inject_fault(side, Action::QpError);
                w.run_until_quiet().expect("in order");
                assert!(w.ends.iter().all(|e| e.closed.is_some()), "seed {seed}, end {side}");
            }
        }
    }

    #[test]
    fn checks_detect_a_wrong_byte() {
        let seed =
            (0..).find(|s| Plan::new(*s).fault == Fault::None).expect("a world where nothing goes wrong");
        for which in 0..3 {
            let mut w = world(seed);
            w.run_until_quiet().expect("in order");
            let e = &mut w.ends[1];
            e.a.write_mr(e.mrs[which].id, 0, &[7]).expect("room");
            let wrong = w.run().expect_err("a byte that nobody sent");
            assert!(wrong.contains("stray"), "{wrong}");
        }
    }
}
