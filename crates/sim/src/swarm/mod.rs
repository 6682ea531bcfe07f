//! Random simulations of connections between endpoints, checked against a model and reproducible from a seed.

mod app;
mod host;
mod hostile;
mod memory;
mod plan;
mod pool;
mod scene;

use crate::pair::{addr, identity};
use crate::world::{LinkId, NodeId, NodeSetup, World};
use app::{ConnectionState, Peer, Target, WorldState};
use base::{Span, Time};
use core::ops::Range;
use endpoint::{Authority, ServerConfig};
use host::Host;
use netem::{Change, LinkConfig};
use plan::{Fault, Plan};
use scene::Scene;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use transport::crypto::{ClientAuth, Credentials, PublicKey, ServerTrust};

/// Most events in one simulation; more indicate an endless loop.
const MAX_EVENTS: u64 = 5_000_000;
/// One of this many seeds is run twice, to verify reproducibility.
const REPEAT_ONE_IN: u64 = 16;
/// Memory use is compared with its limits once in this many steps.
const CHECK_INTERVAL: u64 = 64;
/// All state must be gone this long after the end: handshakes begun by hostile packets time out.
const CLEANUP_TIME: Span = Span::from_secs(60);

/// The result of one simulation.
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
    /// A digest of what happened and when.
    pub digest: u64,
}

/// A simulation in which a check failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("seed {seed}: {what}\nrepeat with: longhaul sim swarm --seeds {seed}..{}\n{plan}\n{trace}", seed + 1)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The failed check.
    pub what: String,
    /// A description of the plan.
    pub plan: String,
    /// The latest notes.
    pub trace: String,
}

/// The results of many simulations.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Number of simulations.
    pub seeds: u64,
    /// Failures by seed, at most a hundred.
    pub failures: Vec<Failure>,
    /// Datagrams delivered in all.
    pub datagrams: u64,
    /// Completions checked in all.
    pub completions: u64,
}

/// Runs the simulation of one seed.
///
/// # Errors
/// The failed check.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    let first = run_once(seed)?;
    if seed.is_multiple_of(REPEAT_ONE_IN) {
        let second = run_once(seed)?;
        if first != second {
            let what = format!("two runs differ: {first:?}, {second:?}");
            return Err(Box::new(Failure { seed, what, plan: String::new(), trace: String::new() }));
        }
    }
    Ok(first)
}

/// Runs the simulations of many seeds on `threads` threads. `on_progress` is called after each, with the number done
/// and its failure, if any; when it returns false, no more are started.
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
                    if seed >= seeds.end || send.send(run_catching_panics(seed)).is_err() {
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

/// Runs one seed and turns a panic into its failure.
fn run_catching_panics(seed: u64) -> Result<Report, Box<Failure>> {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        let what = format!("panic: {}", text.unwrap_or_default());
        Err(Box::new(Failure { seed, what, plan: describe(&Scene::new(seed)), trace: String::new() }))
    })
}

fn describe(s: &Scene) -> String {
    let mut text = format!("{:?}, lost at the close {:?}\n{}", s.shape, s.lost_at_close, s.topology);
    for (i, c) in s.connections.iter().enumerate() {
        text += &format!("connection {i} of hosts {:?}: {}\n", c.hosts, describe_plan(&c.plan));
    }
    let p = &s.connections[0].plan;
    text + &format!("faults {:?}; hostile {:?}", p.faults, p.hostile)
}

fn describe_plan(p: &Plan) -> String {
    let jobs: usize = p.qps.iter().flat_map(|q| &q.directions).map(|l| l.jobs.len()).sum();
    let bytes: u64 = p.qps.iter().flat_map(|q| &q.directions).flat_map(|l| &l.jobs).map(|j| j.len).sum();
    let unreliable = p.qps.iter().filter(|q| !q.reliable).count();
    let [a, b] = &p.options;
    format!(
        "{:?}, {} and {}, packets up to {} and {}; {} queue pairs, {unreliable} unreliable; {jobs} jobs, {bytes} bytes, {} \
         ahead, {} receives ahead, pause {:?}; closers {:?}; shared receives {}",
        a.module,
        a.cc,
        b.cc,
        a.max_packet,
        b.max_packet,
        p.qps.len(),
        p.ahead,
        p.recv_ahead,
        p.pause,
        p.closers,
        p.shared,
    )
}

/// The hosts and connections of a simulation.
struct SwarmState {
    scene: Scene,
    nodes: Vec<NodeId>,
    connections: Vec<Rc<ConnectionState>>,
    /// By host.
    keys: Vec<PublicKey>,
}

struct Swarm {
    world: World,
    stage: Rc<SwarmState>,
}

fn build(seed: u64) -> Result<Swarm, String> {
    let scene = Scene::new(seed);
    let slack = scene.connections[0].plan.slack;
    let mut world = World::with_topology(seed, slack, &scene.topology).map_err(|e| e.to_string())?;
    let identities: Vec<_> = (0..scene.hosts.len()).map(|h| identity(h as u32, world.rng())).collect();
    let keys: Vec<_> = identities.iter().map(|i| i.public_key()).collect();
    let common = |(number, c): (usize, &scene::Connection)| {
        let sources = [memory::source(&c.plan, 0), memory::source(&c.plan, 1)];
        Rc::new(ConnectionState {
            number,
            plan: c.plan.clone(),
            sources,
            board: RefCell::new(WorldState::default()),
        })
    };
    let commons = scene.connections.iter().enumerate().map(common).collect();
    let mut stage = SwarmState { scene, nodes: Vec::new(), connections: commons, keys };
    let retry_above = if seed.is_multiple_of(5) { 0 } else { 256 };
    for (h, id) in identities.into_iter().enumerate() {
        let (host, plan) = (&stage.scene.hosts[h], &stage.scene.connections[0].plan);
        let mut setup = NodeSetup::new(Arc::new(Credentials::RawKey(id)));
        setup.options = plan.options[usize::from(host.is_server)].clone();
        setup.static_secret = [h as u8; 32];
        if host.is_server {
            let authority = Authority { keys: Some(stage.keys.clone()), tokens: Vec::new() };
            let auth = ClientAuth::AnyKey;
            setup.server = Some(ServerConfig { auth, authority, retry_above, ..ServerConfig::default() });
        }
        let (port, at) = (host.port, host.at);
        let app = Box::new(stage.create_host(h));
        let node = world.add_node_at(port, at, setup, app).map_err(|e| e.to_string())?;
        stage.nodes.push(node);
    }
    Ok(Swarm { world, stage: Rc::new(stage) })
}

fn run_once(seed: u64) -> Result<Report, Box<Failure>> {
    let fail = |what: String, plan: String, trace: String| Box::new(Failure { seed, what, plan, trace });
    let mut arena = build(seed).map_err(|e| fail(e, String::new(), String::new()))?;
    let stage = arena.stage.clone();
    for (at, fault) in stage.scene.faults() {
        stage.clone().schedule(&mut arena.world, Time::ZERO + *at, *fault);
    }
    if let Some(gap) = stage.scene.connections[0].plan.hostile {
        let pair = |c: &scene::Connection| c.hosts.map(|h| stage.nodes[h]);
        hostile::start(&mut arena.world, stage.scene.connections.iter().map(pair).collect(), gap);
    }
    let result = arena.finish();
    result.map_err(|what| {
        let stats = arena.stats();
        fail(what, describe(&stage.scene), arena.world.trace().tail(60) + &stats)
    })
}

impl SwarmState {
    /// A new application for a host.
    fn create_host(&self, h: usize) -> Host {
        let (mut peers, mut keys, mut pairs) = (Vec::new(), Vec::new(), 0);
        for (i, side) in self.scene.of_host(h) {
            let c = &self.scene.connections[i];
            let trust = ServerTrust::Pinned(vec![self.keys[c.hosts[1]]]);
            let target = (side == 0).then_some(Target { remote: c.remote, trust });
            peers.push(Peer::new(side, self.connections[i].clone(), target));
            keys.push((side == 1).then_some(self.keys[c.hosts[0]]));
            pairs += c.plan.qps.len() as u64;
        }
        let shared = self.scene.hosts[h].is_server && self.scene.connections[0].plan.shared;
        Host::new(peers, keys, if shared { pairs } else { 0 })
    }

    /// The observed states of a host's connections.
    fn boards(&self, host: usize) -> impl Iterator<Item = std::cell::Ref<'_, WorldState>> {
        self.scene.of_host(host).map(|(i, _)| self.connections[i].board.borrow())
    }

    fn schedule(self: Rc<Self>, world: &mut World, at: Time, fault: Fault) {
        world.at(at, move |w| {
            // The affected host, for faults of a host.
            let which = (w.now().as_nanos() / 1_000) as usize % self.connections.len();
            let side = if let Fault::Reboot { side } = fault { side } else { 0 };
            let host = self.scene.connections[which].hosts[side];
            if matches!(fault, Fault::Rebind | Fault::Reboot { .. }) {
                if self.boards(host).any(|b| b.released.iter().any(|g| *g)) {
                    return;
                }
                // All have published their keys, so no handshake from before a reboot is in progress.
                let up = self.boards(host).all(|b| b.published.iter().all(|s| s.target.is_some()));
                if !up {
                    // These need an established connection.
                    let later = w.now() + self.scene.connections[0].plan.rtt + Span::from_millis(1);
                    // In a failing simulation it is never established.
                    if later.since(Time::ZERO) < self.scene.limit {
                        self.schedule(w, later, fault);
                    }
                    return;
                }
            }
            w.note(format!("{fault:?} (host {host})"));
            self.inject_fault(w, fault, host);
        });
    }

    fn inject_fault(&self, w: &mut World, fault: Fault, host: usize) {
        let links = self.scene.faulty;
        match fault {
            Fault::BlackOut { forward, reverse, lasts } => {
                let which =
                    links.into_iter().zip([forward, reverse]).filter(|(_, dark)| *dark).map(|(l, _)| l);
                which.for_each(|l| black_out(w, l, lasts));
            }
            Fault::Rebind => {
                let to = 10 + w.rng().below(1 << 16) as u32;
                w.rebind(self.nodes[host], addr(to));
            }
            Fault::Reboot { .. } => {
                if !self.boards(host).any(|b| b.published.iter().all(|s| s.done)) {
                    // Cannot fail, since the same settings were accepted before.
                    let _ = w.reboot(self.nodes[host], Box::new(self.create_host(host)));
                }
            }
            Fault::Mtu(mtu) => change(w, links, |c| c.mtu = Some(mtu)),
            Fault::Delay(d) => change(w, links, |c| c.delay = d),
        }
    }

    /// Checks each connection after an event.
    fn check_connections(&self, w: &mut World, steps: u64) -> Result<(), String> {
        for (common, c) in self.connections.iter().zip(&self.scene.connections) {
            let mut b = common.board.borrow_mut();
            for n in core::mem::take(&mut b.notes) {
                w.note(n);
            }
            if let Some(text) = &b.failure {
                return Err(text.clone());
            }
            check_written(w, common, &mut b, c.hosts.map(|h| self.nodes[h]))?;
            if !b.may_close && b.published.iter().all(|s| s.done) {
                b.may_close = true;
                check_agreed(w, &b, c.hosts.map(|h| self.nodes[h]))?;
                // The packets that close a connection may be lost like others.
                for (l, n) in self.scene.faulty.into_iter().zip(self.scene.lost_at_close) {
                    w.lose_next(l, n);
                }
                c.hosts.iter().for_each(|h| w.wake(self.nodes[*h]));
            }
        }
        if steps.is_multiple_of(CHECK_INTERVAL) {
            self.check_memory(w)?;
        }
        if w.totals().events > MAX_EVENTS {
            return Err(format!("{MAX_EVENTS} events were not enough"));
        }
        Ok(())
    }

    /// Checks that memory use stays within its limits.
    fn check_memory(&self, w: &mut World) -> Result<(), String> {
        for n in &self.nodes {
            let e = w.inspect(*n);
            let of_connections = e.connections().filter_map(|c| e.usage(c)).flatten();
            let exceeded = of_connections.chain(e.own_usage()).find(|(_, g)| !g.holds());
            if let Some((what, g)) = exceeded {
                return Err(format!("{n:?} holds {} {what} of at most {}", g.used, g.limit));
            }
        }
        Ok(())
    }

    fn all_released(&self) -> bool {
        self.connections.iter().all(|c| c.board.borrow().released.iter().all(|g| *g))
    }
}

impl Swarm {
    fn stats(&mut self) -> String {
        let mut text = String::new();
        for n in &self.stage.nodes {
            let e = self.world.inspect(*n);
            let ids: Vec<_> = e.connections().collect();
            for id in ids {
                text += &format!("{n:?} {id:?}: {:?}\n", e.stats(id));
                for qp in e.connection(id).map(|i| i.qps.clone()).unwrap_or_default() {
                    let (info, usage) = (e.adapter().query_qp(qp), e.adapter().usage(qp));
                    let left = info.and_then(|i| i.srq).and_then(|s| e.adapter().srq_len(s));
                    text += &format!("  {info:?} shared receives {left:?}\n  {usage:?}\n");
                }
            }
        }
        for (l, plan) in self.stage.scene.topology.links() {
            text += &format!("{}: {:?}\n", plan.name, self.world.link_stats(l));
        }
        text + &format!("{:?} at {:?}\n", self.world.totals(), self.world.now())
    }

    /// Runs to the end of the work, then until all state is gone.
    fn finish(&mut self) -> Result<Report, String> {
        let stage = self.stage.clone();
        let limit = stage.scene.limit;
        let (mut steps, mut wrong) = (0, None);
        self.world.run_until_done(Time::ZERO + limit, |w| {
            steps += 1;
            wrong = stage.check_connections(w, steps).err();
            wrong.is_some() || stage.all_released()
        });
        if let Some(text) = wrong {
            return Err(text);
        }
        if !stage.all_released() {
            return Err(format!("not done within {} s of virtual time", limit.as_millis() / 1_000));
        }
        let lasted = self.world.now().since(Time::ZERO);
        let end = self.world.now() + CLEANUP_TIME;
        self.world.run_until(end);
        // Hosts free the shared state of connections when the last one is gone.
        stage.nodes.iter().for_each(|n| self.world.wake(*n));
        self.world.run_until(end + Span::from_millis(1));
        stage.check_connections(&mut self.world, 0)?;
        for n in &stage.nodes {
            let left = self.world.inspect(*n).connections().count();
            if left > 0 {
                return Err(format!("{n:?} still has {left} connections after the end"));
            }
        }
        let mut report = Report {
            lasted,
            datagrams: self.world.totals().received,
            digest: self.world.digest(),
            ..Report::default()
        };
        for c in &stage.connections {
            let b = c.board.borrow();
            if b.pool_ended == Some(false) {
                return Err("shared receives are still there after the end".into());
            }
            report.completions += b.completions;
            report.established += b.established;
        }
        Ok(report)
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

/// When no proposals are left, both ends must agree on the congestion control of each direction.
fn check_agreed(w: &mut World, b: &WorldState, nodes: [NodeId; 2]) -> Result<(), String> {
    let mut says = Vec::new();
    for (side, node) in nodes.into_iter().enumerate() {
        let Some((conn, pairs)) = &b.published[side].ended_with else { return Ok(()) };
        let e = w.inspect(node);
        let of = |qp: Option<_>, sending| e.agreed_cc(*conn, qp, sending).map(str::to_owned);
        let topics = core::iter::once(None).chain(pairs.iter().copied());
        // The first is what the client sends with.
        says.push(topics.map(|qp| [of(qp, side == 0), of(qp, side == 1)]).collect::<Vec<_>>());
    }
    if says[0] == says[1] && says[0].iter().flatten().all(Option::is_some) {
        return Ok(());
    }
    Err(format!("the ends do not agree on congestion control: {says:?}"))
}

/// The bytes of completed Writes must be in the other end's memory at that moment.
fn check_written(
    w: &mut World,
    common: &ConnectionState,
    b: &mut WorldState,
    nodes: [NodeId; 2],
) -> Result<(), String> {
    for (side, q, i) in core::mem::take(&mut b.written) {
        let job = &common.plan.qps[q].directions[side].jobs[i];
        let shared = job.op == plan::Op::Send && common.plan.uses_shared_receives(1 - side);
        let (Some(target), true) = (b.target_id[1 - side], job.len > 0 && !shared) else { continue };
        let mut have = vec![0; job.len as usize];
        let adapter = w.inspect(nodes[1 - side]).adapter();
        adapter.read_mr(target, job.to, &mut have).map_err(|e| e.to_string())?;
        if have != memory::bytes(&common.sources, job, side) {
            return Err(format!(
                "connection {}, queue pair {q}, end {side}: write {i} completed before its bytes were there",
                common.number
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::scene::Shape;
    use super::*;

    const REGRESSION_SEEDS: [u64; 10] = [94, 148, 167, 1_226, 1_594, 2_284, 5_689, 8_527, 10_059, 18_043];
    /// The same, with several paths, which simulations may have now.
    const REGRESSION_SEEDS_WITH_PATHS: [u64; 10] =
        [16_484, 23_383, 27_248, 35_553, 43_599, 43_915, 103_077, 108_285, 116_303, 127_335];

    #[test]
    fn random_swarm_worlds_pass_all_checks() {
        let summary = run_range(0..100, 2, |_, f| f.is_none());
        assert!(summary.failures.is_empty(), "{}", summary.failures[0]);
        assert_eq!(summary.seeds, 100);
        assert!(summary.completions > 1_000);
    }

    /// Seeds that once failed: an undetected black hole (148, 167), keys from before a reboot (5689, 10059), an
    /// address that changed before the handshake was confirmed (8527, 18043), queue pairs of a shared receive queue
    /// that had none while idle ones had them all (94, 1226, 1594, 2284), data delayed by probes of a path that drops
    /// ECN-capable packets (16484, 23383, 35553, 43599), a handshake flight that waited as long as the preceding
    /// silence (43915); and errors of the model: it trusted a server's state from before the client's reboot (27248,
    /// 103077, 108285, 127335), or mistook a queue pair that the peer had opened for one of the first (116303).
    #[test]
    fn regression_seeds_pass_all_checks() {
        for seed in REGRESSION_SEEDS.into_iter().chain(REGRESSION_SEEDS_WITH_PATHS) {
            if let Err(f) = run(seed) {
                panic!("{f}");
            }
        }
    }

    #[test]
    fn checks_detect_a_wrong_byte() {
        // A finished simulation with one changed byte of a target region.
        let mut arena = build(1).expect("a world");
        let stage = arena.stage.clone();
        let (common, c) = (&stage.connections[0], &stage.scene.connections[0]);
        let until = Time::ZERO + common.plan.limit;
        arena.world.run_until_done(until, |_| common.board.borrow().target_id[1].is_some());
        let target = common.board.borrow().target_id[1].expect("registered");
        arena.world.inspect(stage.nodes[c.hosts[1]]).adapter().write_mr(target, 0, &[0]).expect("room");
        let e = arena.finish().expect_err("a guard byte was changed");
        assert!(e.contains("stray write"), "{e}");
    }

    #[test]
    fn random_worlds_cover_all_shapes_and_shared_receives() {
        let scenes: Vec<_> = (0..100).map(Scene::new).collect();
        let count = |f: &dyn Fn(&Scene) -> bool| scenes.iter().filter(|s| f(s)).count();
        assert!(count(&|s| matches!(s.shape, Shape::Dumbbell(n) if s.connections.len() == n)) > 5);
        assert!(count(&|s| matches!(s.shape, Shape::Star { .. })) > 5);
        assert!(count(&|s| matches!(s.shape, Shape::Path(_))) > 3);
        assert!(count(&|s| s.shape == Shape::TwoPaths) > 0);
        assert!(count(&|s| s.connections[0].plan.shared && s.connections.len() > 1) > 5);
        assert!(count(&|s| s.lost_at_close != [0; 2]) > 5);
        assert!(count(&|s| s.connections[0].plan.paths.len() > 1) > 10);
        let has_atomics = |s: &Scene| {
            let mut lanes = s.connections.iter().flat_map(|c| &c.plan.qps).flat_map(|q| &q.directions);
            lanes.any(|l| l.jobs.iter().any(|j| j.op == plan::Op::Add))
        };
        assert!(count(&has_atomics) > 20);
        // Plans of regression seeds must not change.
        for seed in REGRESSION_SEEDS {
            assert!(Scene::new(seed).connections[0].plan.paths.is_empty(), "{seed}");
        }
    }

    #[test]
    fn range_stops_when_the_progress_callback_returns_false() {
        let summary = run_range(0..1_000, 1, |done, _| done < 3);
        assert!((3..=5).contains(&summary.seeds), "{}", summary.seeds);
    }
}
