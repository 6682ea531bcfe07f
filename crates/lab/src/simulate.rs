//! Runs of a plan in the simulator: the same topology and the same metrics in virtual time, with production endpoints of
//! Longhaul. Rates that no machine emulates in real time are no matter here.
//!
//! Peers of other make do not run in it. Those whose congestion control Longhaul has too are played by Longhaul with that
//! algorithm, and say so in their names; others are skipped with the reason.

use crate::plan::{Cell, Flow, Kind, Lineup, Plan, Program, Topology};
use crate::run::measure::{Observed, Seen, keep_completions};
use crate::run::outcome::{FlowResult, Results, RunResult};
use crate::run::{self, Bench, Failure, Settings, Watch};
use crate::workload::parts::{self, Parts};
use crate::workload::{Pattern, Requests, bulk, ends, outside, requests};
use base::{Span, Time};
use lhio::clock::Clock;
use netem::{Change, Duplex, LinkConfig, PortId};
use sim::world::{HostSpeed, LinkId, NodeId, NodeSetup, World};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::{AdditionalPath, TransportOptions};
use wire::Module;

/// Looks at counters in a run: this many, or every [`FINEST`], whichever are fewer.
const LOOKS: u64 = 4_000;
const FINEST: Span = Span::from_millis(2);
/// Granularity of timers and wake-ups of hosts, as in `sim::steady`.
const SLACK: Span = Span::from_micros(20);
/// Bytes of a Write on paths that hold less than [`LONG`], and on others.
const MESSAGE: (usize, usize) = (1 << 20, 4 << 20);
const LONG: u64 = 256 << 20;
/// Bytes posted ahead beside sixteen times what the path holds: work completes in order.
const AHEAD: u64 = 64 << 20;
/// Set in the numbers of hosts on the second path.
const SECOND: u32 = 1 << 20;
/// A trace's rate is the mean of so many milliseconds in the simulator.
const TRACE_STEP: u64 = 5;

/// What a slow host holds of what has arrived: a receive ring of some hundred packets.
const HOST_ROOM: u64 = 1 << 20;

/// Runs a plan in the simulator.
///
/// # Errors
/// As [`run::on`].
pub fn run(plan: &Plan, settings: &Settings, watch: &mut Watch<'_>) -> Result<Results, String> {
    let plan = played(plan);
    run::on(&plan, settings, &mut Simulator { stop: settings.stop.clone() }, watch)
}

/// The plan with peers of other make played by Longhaul, where that has their algorithm.
pub fn played(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for peer in plan.cells.iter_mut().flat_map(|c| &mut c.peers) {
        let mut foreign = false;
        for f in &mut peer.flows {
            foreign |= play(f);
        }
        if foreign {
            peer.name = format!("{} (played by Longhaul's)", peer.name);
        }
    }
    plan
}

/// Turns a flow into one of Longhaul; true where that was another program.
fn play(f: &mut Flow) -> bool {
    let ours = cc::registry::find(&f.cc).is_ok();
    let program = match f.program {
        Program::Tcp | Program::Iperf3 | Program::Quic if ours => Program::Longhaul,
        Program::TcpRequests if ours => Program::LonghaulRequests,
        Program::TcpOnOff if ours => {
            // Requests that follow each other at once on many queue pairs are bulk that can pause.
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

/// One run of a line-up, whose programs are all of Longhaul.
///
/// # Errors
/// The run failed or was stopped.
pub fn once(cell: &Cell, peer: &Lineup, seed: u64, stop: &AtomicBool) -> Result<RunResult, Failure> {
    Virtual::new(cell, peer, seed).map_err(Failure::Hopeless)?.run(stop)
}

struct Simulator {
    stop: Arc<AtomicBool>,
}

impl Bench for Simulator {
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, _: &str) -> Result<RunResult, Failure> {
        let clock = Clock::new();
        let began = clock.now();
        let mut run = once(cell, peer, seed, &self.stop)?;
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
        Some(Box::new(Simulator { stop: self.stop.clone() }))
    }
}

/// A link whose rate follows a trace.
fn traced(link: &LinkConfig, lines: Option<&[u64]>, lasts: Span) -> LinkConfig {
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

/// A plan's topology for the simulator, and the links that are measured, there and back.
fn topology(t: &Topology, lasts: Span) -> (netem::Topology, Vec<String>, Vec<String>) {
    let there = traced(&t.there, t.trace.as_deref().map(Vec::as_slice), lasts);
    let link = Duplex { there: there.clone(), back: t.back.clone() };
    let names = |n: &[&str]| n.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    match t.kind {
        Kind::Path | Kind::Direct => {
            (netem::Topology::path(&[link]), names(&["hop1.there"]), names(&["hop1.back"]))
        }
        Kind::Dumbbell => {
            let least = t.rtts.iter().min().copied().unwrap_or(Span::ZERO);
            // What a pair has more than the shortest round trip is split over its access links, two each way.
            let more = |rtt: &Span| LinkConfig { delay: (*rtt - least) / 4, ..LinkConfig::default() };
            let access: Vec<_> = t.rtts.iter().map(|rtt| Duplex::same(more(rtt))).collect();
            let d = netem::Topology::dumbbell(t.nodes as usize, &access, &link);
            (d, names(&["bottleneck.there"]), names(&["bottleneck.back"]))
        }
        Kind::Star => {
            let up = LinkConfig { delay: t.there.delay / 2, ..LinkConfig::default() };
            let down = LinkConfig { delay: t.there.delay - up.delay, ..there };
            let star = netem::Topology::star(t.nodes as usize, &Duplex { there: up, back: down });
            (star, names(&["host1.back"]), names(&["host1.there"]))
        }
        Kind::TwoPaths => {
            let second = t.second.clone().unwrap_or_else(|| (t.there.clone(), t.back.clone()));
            let second = Duplex { there: second.0, back: second.1 };
            let two = netem::Topology::two_paths(&link, &second);
            (two, names(&["path1.there", "path2.there"]), names(&["path1.back", "path2.back"]))
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

/// What a flow is made of.
enum Made {
    Bulk(Rc<RefCell<bulk::Board>>, usize),
    Requests(Rc<RefCell<requests::Board>>, u64),
    Parts(Rc<RefCell<parts::Board>>),
}

struct Running<'a> {
    flow: &'a Flow,
    made: Made,
    sender: NodeId,
    receiver: NodeId,
    shape: Vec<f64>,
    received: u64,
}

struct Virtual<'a> {
    cell: &'a Cell,
    world: World,
    step: Span,
    there: Vec<LinkId>,
    back: Vec<LinkId>,
    flows: Vec<Running<'a>>,
}

impl<'a> Virtual<'a> {
    fn new(cell: &'a Cell, peer: &'a Lineup, seed: u64) -> Result<Virtual<'a>, String> {
        let (net, there, back) = topology(&cell.topology, cell.duration);
        let find = |names: Vec<String>| names.iter().filter_map(|n| net.find_link(n)).collect::<Vec<_>>();
        let (there, back) = (find(there), find(back));
        let mut world = World::with_topology(seed, SLACK, &net).map_err(|e| e.to_string())?;
        let mut flows = Vec::new();
        for (i, flow) in peer.flows.iter().enumerate() {
            let port = |node: &str| {
                let name = port_name(node);
                // The first of two paths, where there are two.
                net.port(&name)
                    .or_else(|| net.port(&format!("{name}1")))
                    .ok_or_else(|| format!("the network has no node {node}"))
            };
            let ports = (port(&flow.from)?, port(&flow.to)?);
            let second = |node: &str| net.port(&format!("{}2", port_name(node)));
            let more = second(&flow.from).zip(second(&flow.to)).filter(|_| flow.multipath);
            flows.push(add(&mut world, cell, flow, (ports, more), i as u32, seed)?);
        }
        let step =
            (cell.duration / LOOKS).max(FINEST.min(cell.topology.rtt(0) / 4)).max(Span::from_micros(100));
        Ok(Virtual { cell, world, step, there, back, flows })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<RunResult, Failure> {
        let (t, lasts) = (&self.cell.topology, self.cell.duration);
        let mut o = Observed::new(t, self.step, lasts, (self.cell.warm_up, lasts));
        let mut last = (0, 0, 0);
        for i in 0..o.bins.len() {
            if stop.load(Ordering::SeqCst) {
                return Err(Failure::Stopped);
            }
            self.world.run_until(Time::ZERO + self.step * (i as u64 + 1));
            let (mut now, mut queue, mut queue_back) = ((0, 0, 0), 0, 0);
            for id in &self.there {
                let s = self.world.link_stats(*id);
                now = (now.0 + s.sent, now.1 + s.delivered_bytes, now.2 + s.dropped_queue);
                queue += s.queue_bytes;
            }
            for id in &self.back {
                queue_back += self.world.link_stats(*id).queue_bytes;
            }
            let b = &mut o.bins[i];
            (b.packets, b.delivered, b.dropped) = (now.0 - last.0, now.1 - last.1, now.2 - last.2);
            (b.queue, b.queue_back, last) = (queue, queue_back, now);
            let waits = self.flows.iter().map(|f| self.world.host_wait(f.receiver).as_secs_f64());
            b.host_wait = t.host_rate.and(waits.reduce(f64::max));
            self.look_at_flows()?;
        }
        for f in &mut self.flows {
            let mut seen = seen(f, &mut self.world, lasts);
            if t.kind == Kind::Star {
                seen.port.clone_from(&f.flow.to);
            }
            o.flows.push(seen);
        }
        let lost = self.there.iter().map(|id| self.world.link_stats(*id).dropped_loss).sum();
        Ok(finish(o, lost))
    }

    fn look_at_flows(&mut self) -> Result<(), Failure> {
        for f in &mut self.flows {
            let failure = match &f.made {
                Made::Bulk(b, _) => b.borrow().failure.clone(),
                Made::Requests(b, _) => b.borrow().course.failure.clone(),
                Made::Parts(b) => b.borrow().course.failure.clone(),
            };
            if let Some(why) = failure {
                return Err(Failure::Spoiled(format!("{}: {why}", f.flow.name)));
            }
            let received = received(&mut self.world, f);
            f.shape.push(received.saturating_sub(f.received) as f64);
            f.received = f.received.max(received);
        }
        Ok(())
    }
}

/// Payload that has arrived so far. Of a connection that is gone, what was known last.
fn received(world: &mut World, f: &Running<'_>) -> u64 {
    let e = world.inspect(f.receiver);
    let conns: Vec<_> = e.connections().collect();
    let now = conns.into_iter().filter_map(|c| e.stats(c)).map(|s| s.payload_received).sum::<u64>();
    now.max(f.received)
}

/// The two ends of a flow.
fn add<'a>(
    world: &mut World,
    cell: &Cell,
    flow: &'a Flow,
    ((from, to), more): ((PortId, PortId), Option<(PortId, PortId)>),
    nth: u32,
    seed: u64,
) -> Result<Running<'a>, String> {
    let streams = flow.streams.clamp(1, 128) as u16;
    let known = flow.known_rate.map(|r| r.bits_per_sec());
    let mut options = requests::options(&flow.cc, known, streams);
    // The ciphers make no difference in virtual time.
    (options.module, options.rate_cap) = (Module::Crc32c, flow.limit);
    options.max_packet = cell.topology.there.mtu.map_or(1_500, |m| m.clamp(1_280, 65_535) as u32);
    let [here, there] = [1, 2].map(|n| sim::pair::addr(2 * nth + n));
    // Addresses on the second path, apart from all those on the first.
    let [here2, there2] = [here, there].map(|a| sim::pair::addr(SECOND | host_of(a)));
    if more.is_some() {
        options.paths = vec![AdditionalPath { local: Some(here2.ip()), remote: there2, backup: false }];
    }
    let connect = ends::connect(there);
    let start = Time::ZERO + flow.start;
    let words = |e: endpoint::ConnectError| e.to_string();
    let (made, receiver, sender);
    if flow.program == Program::LonghaulRequests {
        let board = Rc::<RefCell<requests::Board>>::default();
        let server = requests::Server::new(flow.size, streams, Arc::default());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(server)).map_err(words)?;
        let what = what(flow, there, streams, known, seed ^ u64::from(nth));
        let client = requests::Client::new(what, connect, start, board.clone());
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(client)).map_err(words)?;
        made = Made::Requests(board, flow.size);
    } else if flow.program == Program::LonghaulParts {
        let board = Rc::<RefCell<parts::Board>>::default();
        let server = parts::Receiver::new(Arc::default());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(server)).map_err(words)?;
        // It is over before the world ends.
        let what = Parts { seconds: (flow.duration - FINEST).as_secs_f64(), ..outside::parts(flow, there) };
        let client = parts::Sender::new(&what, connect, start, board.clone())?;
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(client)).map_err(words)?;
        world.endpoint(sender).set_policy(Arc::new(parts::policy_of(&flow.policy)?));
        made = Made::Parts(board);
    } else {
        let board = Rc::<RefCell<bulk::Board>>::default();
        let t = &cell.topology;
        let full =
            t.there.bdp(t.rtts.iter().max().copied().unwrap_or(Span::ZERO)).unwrap_or(0) + t.there.queue;
        let message = if full < LONG { MESSAGE.0 } else { MESSAGE.1 };
        let load = bulk::Load {
            start,
            end: start + flow.duration,
            messages: flow.bytes.map(|b| b.div_ceil(message as u64).max(1)),
            ahead: (full.saturating_mul(16) + AHEAD) / message as u64,
            streams,
            message,
        };
        let app = bulk::Receiver::new(message, board.clone());
        receiver = world.add_node_at(to, there, setup(&options, true), Box::new(app)).map_err(words)?;
        let app = bulk::Sender::new(connect, load, board.clone());
        sender = world.add_node_at(from, here, setup(&options, false), Box::new(app)).map_err(words)?;
        made = Made::Bulk(board, message);
    }
    if let Some((from, to)) = more
        && !(world.add_address(sender, from, here2) && world.add_address(receiver, to, there2))
    {
        return Err("the addresses on the second path are taken".to_owned());
    }
    world.set_host(receiver, cell.topology.host_rate.map(|rate| HostSpeed { rate, room: HOST_ROOM }));
    Ok(Running { flow, made, sender, receiver, shape: Vec::new(), received: 0 })
}

/// The number of a simulated host.
fn host_of(a: SocketAddr) -> u32 {
    match a.ip() {
        std::net::IpAddr::V4(ip) => u32::from(ip) & 0x00ff_ffff,
        std::net::IpAddr::V6(_) => 0,
    }
}

fn what(flow: &Flow, to: SocketAddr, streams: u16, known_rate: Option<u64>, seed: u64) -> Requests {
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
fn seen(f: &mut Running<'_>, world: &mut World, lasts: Span) -> Seen {
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
        r.again = Some(s.payload_again as f64 / all);
        r.spurious = got.as_ref().map(|g| g.payload_duplicate as f64 / all);
        let data = s.bytes_sent.saturating_sub(s.control_bytes_sent);
        share = (data > 0).then(|| s.payload_sent as f64 / data as f64);
    }
    match &f.made {
        Made::Bulk(b, message) => {
            let b = b.borrow();
            if let (Some(start), Some(end), Some(bytes)) = (b.started, b.ended, f.flow.bytes) {
                r.seconds = end.since(start).as_secs_f64();
                r.completions = vec![r.seconds];
                r.bytes = r.bytes.max(bytes.div_ceil(*message as u64) * *message as u64);
            }
        }
        Made::Requests(b, size) => {
            let said = requests::report(&b.borrow(), *size);
            r.completions = said.completions;
            (r.again, share) = (r.again.or(said.again), share.or(said.payload_share));
        }
        Made::Parts(b) => {
            let said = parts::report(&b.borrow());
            (r.completions, r.parts) = (said.completions, said.parts);
        }
    }
    r.requests = keep_completions(&mut r.completions);
    Seen {
        result: r,
        shape: std::mem::take(&mut f.shape),
        payload_share: share.unwrap_or(0.96),
        whole: f.flow.bytes.is_some(),
        requests: matches!(f.made, Made::Requests(..)),
        port: String::new(),
    }
}

fn finish(mut o: Observed, lost: u64) -> RunResult {
    let figures = o.figures();
    RunResult {
        figures,
        curves: o.curves(),
        packets: [o.bins.iter().map(|b| b.packets).sum(), lost, o.bins.iter().map(|b| b.dropped).sum()],
        flows: o.flows.into_iter().map(|f| f.result).collect(),
        ..RunResult::default()
    }
}

#[cfg(test)]
mod tests;
