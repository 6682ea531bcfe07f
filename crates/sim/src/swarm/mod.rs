//! Random worlds from seeds, checked against a model: the same seed gives the same world.

mod app;
mod hostile;
mod memory;
mod plan;

use crate::pair::{addr, identity};
use crate::world::{LinkId, NodeId, NodeSetup, World};
use app::{Board, Common, Peer};
use base::{Span, Time};
use core::ops::Range;
use endpoint::{Authority, ServerConfig};
use netem::{Change, LinkConfig};
use plan::{Fault, Plan};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use transport::crypto::{ClientAuth, Credentials, ServerTrust};

/// Happenings in one world at most: a world that needs more has gone astray.
const MAX_EVENTS: u64 = 5_000_000;
/// One seed in so many is run twice, to see that it does the same.
const TWICE: u64 = 16;
/// Everything is forgotten this long after the end: handshakes that hostile packets began time out.
const AFTERMATH: Span = Span::from_secs(60);

/// What one world did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Virtual time until both ends had everything.
    pub lasted: Span,
    /// Datagrams delivered.
    pub datagrams: u64,
    /// Completions checked.
    pub completions: u64,
    /// Connections established, at both ends.
    pub established: u64,
    /// Of what happened and when.
    pub digest: u64,
}

/// A world in which something was wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("seed {seed}: {what}\nrepeat with: longhaul sim swarm --seeds {seed}..{}\n{plan}\n{trace}", seed + 1)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// What kind of world it was.
    pub plan: String,
    /// The latest notes.
    pub trace: String,
}

/// What many worlds did.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Worlds.
    pub seeds: u64,
    /// Those in which something was wrong, at most a hundred, by seed.
    pub failures: Vec<Failure>,
    /// Datagrams delivered in all.
    pub datagrams: u64,
    /// Completions checked in all.
    pub completions: u64,
}

/// Runs the world of one seed.
///
/// # Errors
/// What was wrong with it.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    let first = once(seed)?;
    if seed.is_multiple_of(TWICE) {
        let second = once(seed)?;
        if first != second {
            let what = format!("two runs differ: {first:?}, {second:?}");
            return Err(Box::new(Failure { seed, what, plan: String::new(), trace: String::new() }));
        }
    }
    Ok(first)
}

/// Runs the worlds of many seeds on `threads` threads. `on_progress` is told of each: how many are done, and what
/// was wrong with it; when it returns false, no more worlds are begun.
pub fn run_range(
    seeds: Range<u64>,
    threads: usize,
    mut on_progress: impl FnMut(u64, Option<&Failure>) -> bool,
) -> Summary {
    const MAX_FAILURES: usize = 100;
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let mut summary = Summary::default();
    std::thread::scope(|scope| {
        let (send, results) = mpsc::channel();
        for _ in 0..threads.clamp(1, 256) {
            let (send, next, stop) = (send.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || send.send(guarded(seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for result in results {
            summary.seeds += 1;
            let failure = match result {
                Ok(r) => {
                    summary.datagrams += r.datagrams;
                    summary.completions += r.completions;
                    None
                }
                Err(f) => Some(f),
            };
            if !on_progress(summary.seeds, failure.as_deref()) {
                stop.store(true, Ordering::Relaxed);
            }
            summary.failures.extend(failure.filter(|_| summary.failures.len() < MAX_FAILURES).map(|f| *f));
        }
    });
    summary.failures.sort_by_key(|f| f.seed);
    summary
}

/// A panic is a failure of its seed, not of all.
fn guarded(seed: u64) -> Result<Report, Box<Failure>> {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        let what = format!("panic: {}", text.unwrap_or_default());
        Err(Box::new(Failure { seed, what, plan: describe(&Plan::new(seed)), trace: String::new() }))
    })
}

fn describe(p: &Plan) -> String {
    let jobs: usize = p.qps.iter().flat_map(|q| &q.lanes).map(|l| l.jobs.len()).sum();
    let bytes: u64 = p.qps.iter().flat_map(|q| &q.lanes).flat_map(|l| &l.jobs).map(|j| j.len).sum();
    let unreliable = p.qps.iter().filter(|q| !q.reliable).count();
    let [a, b] = &p.options;
    format!(
        "there: {}\nback:  {}\n{:?}, {} and {}, packets up to {} and {}; {} queue pairs, {unreliable} unreliable; {jobs} \
         jobs, {bytes} bytes, {} ahead, {} receives ahead, pause {:?}\nfaults {:?}; hostile {:?}; closers {:?}",
        p.links[0],
        p.links[1],
        a.module,
        a.cc,
        b.cc,
        a.max_packet,
        b.max_packet,
        p.qps.len(),
        p.ahead,
        p.recv_ahead,
        p.pause,
        p.faults,
        p.hostile,
        p.closers,
    )
}

/// Who plays where.
#[derive(Clone)]
struct Stage {
    nodes: [NodeId; 2],
    links: [LinkId; 2],
    common: Rc<Common>,
    trust: ServerTrust,
}

struct Arena {
    world: World,
    stage: Stage,
}

fn build(seed: u64) -> Result<Arena, String> {
    let plan = Plan::new(seed);
    let mut world = World::new(seed, plan.slack);
    let (client, server) = (identity(1, world.rng()), identity(2, world.rng()));
    let authority = Authority { keys: Some(vec![client.public_key()]), tokens: Vec::new() };
    let trust = ServerTrust::Pinned(vec![server.public_key()]);
    let mut setup = NodeSetup::new(Arc::new(Credentials::RawKey(server)));
    setup.options = plan.options[1].clone();
    let retry_above = if seed.is_multiple_of(5) { 0 } else { 256 };
    setup.server =
        Some(ServerConfig { auth: ClientAuth::AnyKey, authority, retry_above, ..ServerConfig::default() });
    let mut client_setup = NodeSetup::new(Arc::new(Credentials::RawKey(client)));
    client_setup.options = plan.options[0].clone();
    client_setup.static_secret = [8; 32];
    let sources = [memory::source(&plan, 0), memory::source(&plan, 1)];
    let links = plan.links.clone();
    let common = Rc::new(Common { plan, sources, board: RefCell::new(Board::default()) });
    let peer = Peer::new(1, common.clone(), None);
    let b = world.add_node(addr(2), setup, Box::new(peer)).map_err(|e| e.to_string())?;
    let peer = Peer::new(0, common.clone(), Some(trust.clone()));
    let a = world.add_node(addr(1), client_setup, Box::new(peer)).map_err(|e| e.to_string())?;
    let [there, back] = links;
    let (there, back) = world.join(a, b, there, back).map_err(|e| e.to_string())?;
    Ok(Arena { world, stage: Stage { nodes: [a, b], links: [there, back], common, trust } })
}

fn once(seed: u64) -> Result<Report, Box<Failure>> {
    let fail = |what: String, plan: String, trace: String| Box::new(Failure { seed, what, plan, trace });
    let mut arena = build(seed).map_err(|e| fail(e, String::new(), String::new()))?;
    let plan = arena.stage.common.plan.clone();
    for (at, fault) in &plan.faults {
        arena.stage.clone().schedule(&mut arena.world, Time::ZERO + *at, *fault);
    }
    if let Some(gap) = plan.hostile {
        hostile::start(&mut arena.world, arena.stage.nodes, gap);
    }
    let result = arena.finish(plan.limit);
    result.map_err(|what| {
        let stats = arena.stats();
        fail(what, describe(&plan), arena.world.trace().tail(60) + &stats)
    })
}

impl Stage {
    fn schedule(self, world: &mut World, at: Time, fault: Fault) {
        world.at(at, move |w| {
            let b = self.common.board.borrow();
            // Both have shown their keys: no handshake of a former life is still going on.
            let up = b.shown.iter().all(|s| s.target.is_some());
            let done = b.shown.iter().all(|s| s.done);
            drop(b);
            if !up && matches!(fault, Fault::Rebind | Fault::Reboot { .. }) {
                // These mean something to a connection only: once there is one.
                let later = w.now() + self.common.plan.rtt + Span::from_millis(1);
                // Never comes up in a world that fails.
                if later.since(Time::ZERO) < self.common.plan.limit {
                    self.schedule(w, later, fault);
                }
                return;
            }
            w.note(format!("{fault:?}"));
            self.happen(w, fault, done);
        });
    }

    fn happen(&self, w: &mut World, fault: Fault, done: bool) {
        match fault {
            Fault::BlackOut { there, back, lasts } => {
                let ways = [there, back];
                let which = self.links.into_iter().zip(ways).filter(|(_, dark)| *dark).map(|(l, _)| l);
                which.for_each(|l| black_out(w, l, lasts));
            }
            Fault::Rebind => {
                let host = 10 + w.rng().below(1 << 16) as u32;
                w.rebind(self.nodes[0], addr(host));
            }
            Fault::Reboot { side } if !done => {
                let trust = (side == 0).then(|| self.trust.clone());
                let peer = Peer::new(side, self.common.clone(), trust);
                // Cannot fail: the same settings were taken before.
                let _ = w.reboot(self.nodes[side], Box::new(peer));
            }
            Fault::Reboot { .. } => {}
            Fault::Mtu(mtu) => change(w, self.links, |c| c.mtu = Some(mtu)),
            Fault::Delay(d) => change(w, self.links, |c| c.delay = d),
        }
    }
}

impl Arena {
    fn stats(&mut self) -> String {
        let mut text = String::new();
        for n in self.stage.nodes {
            let e = self.world.inspect(n);
            let ids: Vec<_> = e.connections().collect();
            for id in ids {
                text += &format!("{n:?} {id:?}: {:?}\n", e.stats(id));
            }
        }
        for l in self.stage.links {
            text += &format!("{l:?}: {:?}\n", self.world.link_stats(l));
        }
        text + &format!("{:?} at {:?}\n", self.world.totals(), self.world.now())
    }

    /// Runs to the end of the work, then until everything is forgotten.
    fn finish(&mut self, limit: Span) -> Result<Report, String> {
        let until = Time::ZERO + limit;
        let (common, nodes) = (self.stage.common.clone(), self.stage.nodes);
        let mut seen = 0;
        self.world.run_until_done(until, |w| {
            let mut b = common.board.borrow_mut();
            seen += b.notes.len();
            for n in core::mem::take(&mut b.notes) {
                w.note(n);
            }
            if let Err(text) = check_written(w, &common, &mut b, nodes) {
                b.failure.get_or_insert(text);
            }
            if w.totals().events > MAX_EVENTS {
                b.failure.get_or_insert(format!("{MAX_EVENTS} events were not enough"));
            }
            b.failure.is_some() || b.gone.iter().all(|g| *g)
        });
        if let Some(text) = self.stage.common.board.borrow().failure.clone() {
            return Err(text);
        }
        if !self.stage.common.board.borrow().gone.iter().all(|g| *g) {
            return Err(format!("not done within {} s of virtual time", limit.as_millis() / 1_000));
        }
        let lasted = self.world.now().since(Time::ZERO);
        let end = self.world.now() + AFTERMATH;
        self.world.run_until(end);
        for n in self.stage.nodes {
            let left = self.world.inspect(n).connections().count();
            if left > 0 {
                return Err(format!("{n:?} still has {left} connections after the end"));
            }
        }
        let b = self.stage.common.board.borrow();
        Ok(Report {
            lasted,
            datagrams: self.world.totals().received,
            completions: b.completions,
            established: b.established,
            digest: self.world.digest(),
        })
    }
}

fn change(w: &mut World, links: [LinkId; 2], f: impl Fn(&mut LinkConfig)) {
    for l in links {
        let mut c = w.link_config(l);
        f(&mut c);
        w.set_link(l, c);
    }
}

fn black_out(w: &mut World, link: LinkId, lasts: Span) {
    let mut c = w.link_config(link);
    c.schedule = vec![(w.now(), Change::BlackOut(lasts))];
    w.set_link(link, c);
}

/// The bytes of writes that have completed must be in the other end's memory at that moment.
fn check_written(w: &mut World, common: &Common, b: &mut Board, nodes: [NodeId; 2]) -> Result<(), String> {
    for (side, q, i) in core::mem::take(&mut b.written) {
        let job = &common.plan.qps[q].lanes[side].jobs[i];
        let (Some(target), true) = (b.target_id[1 - side], job.len > 0) else { continue };
        let mut have = vec![0; job.len as usize];
        let adapter = w.inspect(nodes[1 - side]).adapter();
        adapter.read_mr(target, job.to, &mut have).map_err(|e| e.to_string())?;
        if have != memory::bytes(&common.sources, job, side) {
            return Err(format!(
                "queue pair {q}, end {side}: write {i} completed before its bytes were there"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_worlds_are_in_order() {
        let summary = run_range(0..100, 2, |_, f| f.is_none());
        assert!(summary.failures.is_empty(), "{}", summary.failures[0]);
        assert_eq!(summary.seeds, 100);
        assert!(summary.completions > 1_000);
    }

    /// Worlds that once failed: a black hole that was not noticed (148, 167), keys of a former life (5689, 10059), an
    /// address that changed before the handshake was confirmed (8527, 18043).
    #[test]
    fn worlds_that_once_failed_are_in_order() {
        for seed in [148, 167, 5_689, 8_527, 10_059, 18_043] {
            if let Err(f) = run(seed) {
                panic!("{f}");
            }
        }
    }

    #[test]
    fn the_checks_find_a_wrong_byte() {
        // A world at its end, with one byte of a target region changed under its feet.
        let mut arena = build(1).expect("a world");
        let common = arena.stage.common.clone();
        let server = arena.stage.nodes[1];
        let until = Time::ZERO + common.plan.limit;
        arena.world.run_until_done(until, |_| common.board.borrow().target_id[1].is_some());
        let target = common.board.borrow().target_id[1].expect("registered");
        arena.world.inspect(server).adapter().write_mr(target, 0, &[0]).expect("room");
        let e = arena.finish(common.plan.limit).expect_err("a guard byte was changed");
        assert!(e.contains("stray write"), "{e}");
    }

    #[test]
    fn seeds_beyond_the_first_failure_are_not_begun_when_told_so() {
        let summary = run_range(0..1_000, 1, |done, _| done < 3);
        assert!((3..=5).contains(&summary.seeds), "{}", summary.seeds);
    }
}
