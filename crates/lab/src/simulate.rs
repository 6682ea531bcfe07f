//! Executes plans in the simulator: the same topologies and metrics in virtual time, with production endpoints of
//! Longhaul, also at rates that no machine emulates in real time.
//!
//! Other programs do not run in it. Where Longhaul has their congestion control, Longhaul takes their place with that
//! algorithm, marked in the name; others are skipped with a reason.

use crate::plan::{Cell, Flow, Kind, Lineup, Plan, Program, Topology};
use crate::run::measure::{ObservedFlow, ObservedRun, thin_completions};
use crate::run::outcome::{FlowResult, Results, RunResult};
use crate::run::{self, Bench, Failure, ProgressSink, Settings};
use crate::workload::parts::{self, Parts};
use crate::workload::{Pattern, Requests, bulk, ends, outside, requests};
use base::{Span, Time};
use lhio::clock::Clock;
use netem::{Change, Duplex, LinkConfig, PortId};
use sim::world::{HostModel, HostSpeed, LinkId, NodeId, NodeSetup, World};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::{AdditionalPath, TransportOptions};
use wire::Module;

/// Samples of counters in a run: this many, or one every [`MIN_SAMPLE_INTERVAL`] if those are fewer.
const MAX_SAMPLES: u64 = 4_000;
const MIN_SAMPLE_INTERVAL: Span = Span::from_millis(2);
/// Granularity of hosts' timers and wake-ups, as in `sim::steady`.
const SLACK: Span = Span::from_micros(20);
/// Bytes of a Write on paths with less than [`LONG`] in flight, and on others.
const MESSAGE: (usize, usize) = (1 << 20, 4 << 20);
const LONG: u64 = 256 << 20;
/// Bytes posted ahead in addition to sixteen times the path's content, since work completes in order.
const POSTED_AHEAD: u64 = 64 << 20;
/// Set in the numbers of hosts on the second path.
const SECOND: u32 = 1 << 20;
/// A trace's rate is averaged over so many milliseconds in the simulator.
const TRACE_STEP: u64 = 5;

/// The receive buffer of a slow host: a ring of some hundred packets.
const HOST_BUFFER: u64 = 1 << 20;

/// Executes a plan in the simulator.
///
/// # Errors
/// As [`run::run_on`].
pub fn run(plan: &Plan, settings: &Settings, watch: &mut ProgressSink<'_>) -> Result<Results, String> {
    let plan = with_stand_ins(plan);
    let mut bench = Simulator { stop: settings.stop.clone(), hosts: settings.hosts };
    run::run_on(&plan, settings, &mut bench, watch)
}

/// The plan with other programs replaced by Longhaul, where it has their algorithm.
pub fn with_stand_ins(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for peer in plan.cells.iter_mut().flat_map(|c| &mut c.peers) {
        let mut foreign = false;
        for f in &mut peer.flows {
            foreign |= replace_by_longhaul(f);
        }
        if foreign {
            peer.name = format!("{} (played by Longhaul's)", peer.name);
        }
    }
    plan
}

/// Replaces a flow's program by Longhaul; returns whether that was another program.
fn replace_by_longhaul(f: &mut Flow) -> bool {
    let ours = cc::registry::find(&f.cc).is_ok();
    let program = match f.program {
        Program::Tcp | Program::Iperf3 | Program::Quic if ours => Program::Longhaul,
        Program::TcpRequests if ours => Program::LonghaulRequests,
        Program::TcpOnOff if ours => {
            // Back-to-back requests on many queue pairs are bulk traffic with pauses.
            (f.size, f.streams) = (1 << 20, 32);
            Program::LonghaulRequests
        }
        Program::Put => {
            f.program = Program::Longhaul;
            return false;
        }
        _ => return false,
    };
    f.program = program;
    true
}

/// One run of a line-up that consists of Longhaul's programs.
///
/// # Errors
/// The run failed or was stopped.
pub fn run_once(
    cell: &Cell,
    peer: &Lineup,
    seed: u64,
    hosts: Option<HostModel>,
    stop: &AtomicBool,
) -> Result<RunResult, Failure> {
    SimulatedRun::new(cell, peer, seed, hosts).map_err(Failure::Impossible)?.run(stop)
}

struct Simulator {
    stop: Arc<AtomicBool>,
    hosts: Option<HostModel>,
}

impl Bench for Simulator {
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, _: &str) -> Result<RunResult, Failure> {
        let clock = Clock::new();
        let began = clock.now();
        let mut run = run_once(cell, peer, seed, self.hosts, &self.stop)?;
        run.wall_seconds = clock.now().since(began).as_secs_f64();
        Ok(run)
    }
    fn missing(&self, flow: &Flow) -> Option<String> {
        let ours = [Program::Longhaul, Program::LonghaulRequests, Program::LonghaulParts];
        let longhaul = ours.contains(&flow.program);
        (!longhaul).then(|| {
            "the simulator has only Longhaul, and no algorithm of this name to play it; run the plan without --sim".to_owned()
        })
    }
    fn simulated(&self) -> bool {
        true
    }
    fn fork(&self) -> Option<Box<dyn Bench + Send>> {
        Some(Box::new(Simulator { stop: self.stop.clone(), hosts: self.hosts }))
    }
}

/// A link whose rate follows a trace.
fn with_trace(link: &LinkConfig, lines: Option<&[u64]>, lasts: Span) -> LinkConfig {
    let mut link = link.clone();
    let Some(lines) = lines.filter(|l| !l.is_empty()) else { return link };
    let step = Span::from_millis(TRACE_STEP);
    let n = lasts.as_nanos().div_ceil(step.as_nanos()) as usize + 1;
    let bare = LinkConfig { police: None, ..link.clone() };
    let each = run::measure::capacity(&bare, Some(lines), step, n);
    let rate = |bytes: f64| base::Rate::from_bytes_per_sec((bytes / step.as_secs_f64()) as u64);
    link.rate = each.first().map(|b| rate(*b));
    link.schedule.extend((0..n).map(|i| (Time::ZERO + step * i as u64, Change::Rate(Some(rate(each[i]))))));
    link.schedule.sort_by_key(|(at, _)| *at);
    link
}

/// The simulator's topology for a plan's, and the measured links in both directions.
fn topology(t: &Topology, lasts: Span) -> (netem::Topology, Vec<String>, Vec<String>) {
    let forward = with_trace(&t.forward, t.trace.as_deref().map(Vec::as_slice), lasts);
    let link = Duplex { forward: forward.clone(), reverse: t.reverse.clone() };
    let names = |n: &[&str]| n.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    match t.kind {
        Kind::Path | Kind::Direct => {
            (netem::Topology::path(&[link]), names(&["hop1.forward"]), names(&["hop1.reverse"]))
        }
        Kind::Dumbbell => {
            let least = t.rtts.iter().min().copied().unwrap_or(Span::ZERO);
            // A pair's additional round trip is divided between its access links, two each way.
            let more = |rtt: &Span| LinkConfig { delay: (*rtt - least) / 4, ..LinkConfig::default() };
            let access: Vec<_> = t.rtts.iter().map(|rtt| Duplex::same(more(rtt))).collect();
            let d = netem::Topology::dumbbell(t.nodes as usize, &access, &link);
            (d, names(&["bottleneck.forward"]), names(&["bottleneck.reverse"]))
        }
        Kind::Star => {
            let up = LinkConfig { delay: t.forward.delay / 2, ..LinkConfig::default() };
            let down = LinkConfig { delay: t.forward.delay - up.delay, ..forward };
            let star = netem::Topology::star(t.nodes as usize, &Duplex { forward: up, reverse: down });
            (star, names(&["host1.reverse"]), names(&["host1.forward"]))
        }
        Kind::TwoPaths => {
            let second = t.second.clone().unwrap_or_else(|| (t.forward.clone(), t.reverse.clone()));
            let second = Duplex { forward: second.0, reverse: second.1 };
            let two = netem::Topology::two_paths(&link, &second);
            (two, names(&["path1.forward", "path2.forward"]), names(&["path1.reverse", "path2.reverse"]))
        }
    }
}

/// The port of a node of a plan.
fn port_name(node: &str) -> String {
    match node.split_at(1) {
        ("a", "") => "left".to_owned(),
        ("b", "") => "right".to_owned(),
        ("s", n) => format!("left{n}"),
        ("r", n) => format!("right{n}"),
        (_, n) => format!("host{n}"),
    }
}

/// The shared state of a flow's applications.
enum AppState {
    Bulk(Rc<RefCell<bulk::BulkState>>, usize),
    Requests(Rc<RefCell<requests::RequestsState>>, u64),
    Parts(Rc<RefCell<parts::PartsState>>),
}

struct RunningFlow<'a> {
    flow: &'a Flow,
    state: AppState,
    sender: NodeId,
    receiver: NodeId,
    shape: Vec<f64>,
    received: u64,
}

struct SimulatedRun<'a> {
    cell: &'a Cell,
    world: World,
    step: Span,
    forward: Vec<LinkId>,
    reverse: Vec<LinkId>,
    flows: Vec<RunningFlow<'a>>,
}

impl<'a> SimulatedRun<'a> {
    fn new(
        cell: &'a Cell,
        peer: &'a Lineup,
        seed: u64,
        hosts: Option<HostModel>,
    ) -> Result<SimulatedRun<'a>, String> {
        let (net, forward, reverse) = topology(&cell.topology, cell.duration);
        let find = |names: Vec<String>| names.iter().filter_map(|n| net.find_link(n)).collect::<Vec<_>>();
        let (forward, reverse) = (find(forward), find(reverse));
        let mut world = World::with_topology(seed, SLACK, &net).map_err(|e| e.to_string())?;
        world.set_host_model(hosts);
        let mut flows = Vec::new();
        for (i, flow) in peer.flows.iter().enumerate() {
            let port = |node: &str| {
                let name = port_name(node);
                // On the first of two paths, where there are two.
                net.port(&name)
                    .or_else(|| net.port(&format!("{name}1")))
                    .ok_or_else(|| format!("the network has no node {node}"))
            };
            let ports = (port(&flow.from)?, port(&flow.to)?);
            let second = |node: &str| net.port(&format!("{}2", port_name(node)));
            let more = second(&flow.from).zip(second(&flow.to)).filter(|_| flow.multipath);
            flows.push(add_flow(&mut world, cell, flow, (ports, more), i as u32, seed)?);
        }
        let step = (cell.duration / MAX_SAMPLES)
            .max(MIN_SAMPLE_INTERVAL.min(cell.topology.rtt(0) / 4))
            .max(Span::from_micros(100));
        Ok(SimulatedRun { cell, world, step, forward, reverse, flows })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<RunResult, Failure> {
        let (t, lasts) = (&self.cell.topology, self.cell.duration);
        let mut o = ObservedRun::new(t, self.step, lasts, (self.cell.warm_up, lasts));
        let mut last = (0, 0, 0);
        for i in 0..o.intervals.len() {
            if stop.load(Ordering::SeqCst) {
                return Err(Failure::Stopped);
            }
            self.world.run_until(Time::ZERO + self.step * (i as u64 + 1));
            let (mut now, mut queue, mut queue_back) = ((0, 0, 0), 0, 0);
            for id in &self.forward {
                let s = self.world.link_stats(*id);
                now = (now.0 + s.sent, now.1 + s.delivered_bytes, now.2 + s.dropped_queue);
                queue += s.queue_bytes;
            }
            for id in &self.reverse {
                queue_back += self.world.link_stats(*id).queue_bytes;
            }
            let b = &mut o.intervals[i];
            (b.packets, b.delivered, b.dropped) = (now.0 - last.0, now.1 - last.1, now.2 - last.2);
            (b.queue, b.queue_back, last) = (queue, queue_back, now);
            let waits = self.flows.iter().map(|f| self.world.host_wait(f.receiver).as_secs_f64());
            b.receiver_delay = t.host_rate.and(waits.reduce(f64::max));
            self.sample_flows()?;
        }
        for f in &mut self.flows {
            let mut seen = observed_flow(f, &mut self.world, lasts);
            if t.kind == Kind::Star {
                seen.port.clone_from(&f.flow.to);
            }
            o.flows.push(seen);
        }
        let lost = self.forward.iter().map(|id| self.world.link_stats(*id).dropped_loss).sum();
        Ok(finish(o, lost))
    }

    fn sample_flows(&mut self) -> Result<(), Failure> {
        for f in &mut self.flows {
            let failure = match &f.state {
                AppState::Bulk(b, _) => b.borrow().failure.clone(),
                AppState::Requests(b, _) => b.borrow().course.failure.clone(),
                AppState::Parts(b) => b.borrow().course.failure.clone(),
            };
            if let Some(why) = failure {
                return Err(Failure::Discarded(format!("{}: {why}", f.flow.name)));
            }
            let received = received(&mut self.world, f);
            f.shape.push(received.saturating_sub(f.received) as f64);
            f.received = f.received.max(received);
        }
        Ok(())
    }
}

/// Payload that has arrived so far; for a closed connection, the last known value.
fn received(world: &mut World, f: &RunningFlow<'_>) -> u64 {
    let e = world.inspect(f.receiver);
    let conns: Vec<_> = e.connections().collect();
    let now = conns.into_iter().filter_map(|c| e.stats(c)).map(|s| s.payload_received).sum::<u64>();
    now.max(f.received)
}

/// Adds the two ends of a flow.
fn add_flow<'a>(
    world: &mut World,
    cell: &Cell,
    flow: &'a Flow,
    ((from, to), more): ((PortId, PortId), Option<(PortId, PortId)>),
    nth: u32,
    seed: u64,
) -> Result<RunningFlow<'a>, String> {
    let streams = flow.streams.clamp(1, 128) as u16;
    let known = flow.known_rate.map(|r| r.bits_per_sec());
    let mut options = requests::options(&flow.cc, known, streams);
    // Ciphers make no difference in virtual time.
    (options.module, options.rate_cap) = (Module::Crc32c, flow.limit);
    options.max_packet = cell.topology.forward.mtu.map_or(1_500, |m| m.clamp(1_280, 65_535) as u32);
    let [here, there] = [1, 2].map(|n| sim::pair::addr(2 * nth + n));
    // Addresses on the second path, distinct from those on the first.
    let [here2, there2] = [here, there].map(|a| sim::pair::addr(SECOND | host_of(a)));
    if more.is_some() {
        options.paths = vec![AdditionalPath { local: Some(here2.ip()), remote: there2, backup: false }];
    }
    let connect = ends::connect(there);
    let start = Time::ZERO + flow.start;
    let words = |e: endpoint::ConnectError| e.to_string();
    let (made, receiver, sender);
    if flow.program == Program::LonghaulRequests {
        let board = Rc::<RefCell<requests::RequestsState>>::default();
        let server = requests::Server::new(flow.size, streams, Arc::default());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(server)).map_err(words)?;
        let what = requests_of(flow, there, streams, known, seed ^ u64::from(nth));
        let client = requests::Client::new(what, connect, start, board.clone());
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(client)).map_err(words)?;
        made = AppState::Requests(board, flow.size);
    } else if flow.program == Program::LonghaulParts {
        let board = Rc::<RefCell<parts::PartsState>>::default();
        let server = parts::Receiver::new(Arc::default());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(server)).map_err(words)?;
        // It ends before the simulation does.
        let what = Parts {
            seconds: (flow.duration - MIN_SAMPLE_INTERVAL).as_secs_f64(),
            ..outside::parts(flow, there)
        };
        let client = parts::Sender::new(&what, connect, start, board.clone())?;
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(client)).map_err(words)?;
        world.endpoint(sender).set_policy(Arc::new(parts::policy_of(&flow.policy)?));
        made = AppState::Parts(board);
    } else {
        let board = Rc::<RefCell<bulk::BulkState>>::default();
        let load = bulk_load(cell, flow, start, streams);
        let message = load.message;
        let app = bulk::Receiver::new(message, board.clone());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(app)).map_err(words)?;
        let app = bulk::Sender::new(connect, load, board.clone());
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(app)).map_err(words)?;
        made = AppState::Bulk(board, message);
    }
    if let Some((from, to)) = more
        && !(world.add_address(sender, from, here2) && world.add_address(receiver, to, there2))
    {
        return Err("the addresses on the second path are taken".to_owned());
    }
    world.set_host(receiver, cell.topology.host_rate.map(|rate| HostSpeed { rate, room: HOST_BUFFER }));
    Ok(RunningFlow { flow, state: made, sender, receiver, shape: Vec::new(), received: 0 })
}

/// What a flow in bulk sends: messages short enough for the path, and so many at a time that it is never idle.
fn bulk_load(cell: &Cell, flow: &Flow, start: Time, streams: u16) -> bulk::Load {
    let t = &cell.topology;
    let full =
        t.forward.bdp(t.rtts.iter().max().copied().unwrap_or(Span::ZERO)).unwrap_or(0) + t.forward.queue;
    let message = if full < LONG { MESSAGE.0 } else { MESSAGE.1 };
    bulk::Load {
        start,
        end: start + flow.duration,
        messages: flow.bytes.map(|b| b.div_ceil(message as u64).max(1)),
        in_progress: (full.saturating_mul(16) + POSTED_AHEAD) / message as u64,
        streams,
        message,
    }
}

/// The number of a simulated host.
fn host_of(a: SocketAddr) -> u32 {
    match a.ip() {
        std::net::IpAddr::V4(ip) => u32::from(ip) & 0x00ff_ffff,
        std::net::IpAddr::V6(_) => 0,
    }
}

fn requests_of(flow: &Flow, to: SocketAddr, streams: u16, known_rate: Option<u64>, seed: u64) -> Requests {
    let pattern = Pattern {
        seconds: flow.duration.as_secs_f64(),
        on: flow.on.as_secs_f64(),
        off: flow.off.as_secs_f64(),
    };
    Requests {
        to,
        cc: flow.cc.clone(),
        size: flow.size,
        streams,
        pattern,
        every: flow.every,
        known_rate,
        seed,
    }
}

fn setup(options: &TransportOptions, server: bool) -> NodeSetup {
    let (credentials, config) = ends::credentials(server);
    let mut setup = NodeSetup::new(credentials);
    (setup.options, setup.server) = (options.clone(), config);
    setup.static_secret = [if server { 1 } else { 2 }; 32];
    setup
}

/// A flow's result.
fn observed_flow(f: &mut RunningFlow<'_>, world: &mut World, lasts: Span) -> ObservedFlow {
    let stats = |world: &mut World, node: NodeId| {
        let e = world.inspect(node);
        let conn = e.connections().next();
        conn.and_then(|c| e.stats(c))
    };
    let (sent, got) = (stats(world, f.sender), stats(world, f.receiver));
    let mut r = FlowResult {
        name: f.flow.name.clone(),
        background: f.flow.background,
        bytes: f.received,
        seconds: (lasts - f.flow.start).as_secs_f64(),
        ..FlowResult::default()
    };
    let mut share = None;
    if let Some(s) = &sent {
        let all = s.payload_sent.max(1) as f64;
        r.retransmitted = Some(s.payload_again as f64 / all);
        r.spurious = got.as_ref().map(|g| g.payload_duplicate as f64 / all);
        let data = s.bytes_sent.saturating_sub(s.control_bytes_sent);
        share = (data > 0).then(|| s.payload_sent as f64 / data as f64);
    }
    match &f.state {
        AppState::Bulk(b, message) => {
            let b = b.borrow();
            if let (Some(start), Some(end), Some(bytes)) = (b.started, b.ended, f.flow.bytes) {
                r.seconds = end.since(start).as_secs_f64();
                r.completions = vec![r.seconds];
                r.bytes = r.bytes.max(bytes.div_ceil(*message as u64) * *message as u64);
            }
        }
        AppState::Requests(b, size) => {
            let said = requests::report(&b.borrow(), *size);
            r.completions = said.completions;
            (r.retransmitted, share) = (r.retransmitted.or(said.retransmitted), share.or(said.payload_share));
        }
        AppState::Parts(b) => {
            let said = parts::report(&b.borrow());
            (r.completions, r.parts) = (said.completions, said.parts);
        }
    }
    r.requests = thin_completions(&mut r.completions);
    ObservedFlow {
        result: r,
        shape: std::mem::take(&mut f.shape),
        payload_share: share.unwrap_or(0.96),
        whole: f.flow.bytes.is_some(),
        requests: matches!(f.state, AppState::Requests(..)),
        port: String::new(),
    }
}

fn finish(mut o: ObservedRun, lost: u64) -> RunResult {
    let figures = o.figures();
    RunResult {
        figures,
        curves: o.curves(),
        packets: [
            o.intervals.iter().map(|b| b.packets).sum(),
            lost,
            o.intervals.iter().map(|b| b.dropped).sum(),
        ],
        flows: o.flows.into_iter().map(|f| f.result).collect(),
        ..RunResult::default()
    }
}

#[cfg(test)]
mod tests;
