//! The scene of a simulation, derived from its seed: hosts, the network between them, and their connections.

use super::plan::{Fault, MAX_BYTES, Plan};
use crate::pair::addr;
use base::{Rng, Span};
use netem::{Duplex, Jitter, LinkConfig, LinkId, Loss, PortId, Reorder, Topology};
use std::net::SocketAddr;

/// Number of the first host; the addresses of rebound hosts are below.
const FIRST_HOST: u32 = 0x10_0000;

/// The topology of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Two ends and one link in each direction.
    Pair,
    /// This many clients, each with a server of its own across a shared link.
    Dumbbell(usize),
    /// So many clients and servers around a switch; each client has a connection to each server, and all who send to one
    /// host share a queue.
    Star { clients: usize, servers: usize },
    /// Two ends with this many links between them.
    Path(usize),
    /// Two clients with a server each, over disjoint paths.
    TwoPaths,
}

/// A host of the network.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its port.
    pub port: PortId,
    /// Its address.
    pub at: SocketAddr,
    pub is_server: bool,
}

/// A connection between two hosts.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Indices of the client and the server.
    pub hosts: [usize; 2],
    /// The server's address.
    pub remote: SocketAddr,
    pub plan: Plan,
}

/// Everything that a seed determines.
#[derive(Clone, Debug)]
pub struct Scene {
    pub shape: Shape,
    pub topology: Topology,
    pub hosts: Vec<Host>,
    pub connections: Vec<Connection>,
    /// The link with most traffic, in both directions, to which faults apply.
    pub faulty: [LinkId; 2],
    /// Number of datagrams lost there in each direction while connections are closed.
    pub lost_at_close: [u64; 2],
    /// Virtual time within which everything must be done.
    pub limit: Span,
}

/// A link without impairments other than its delay.
fn plain(like: &LinkConfig, speed: u64, delay: Span) -> LinkConfig {
    LinkConfig {
        rate: like.rate.map(|r| r.scale(speed, 1)),
        delay,
        jitter: Jitter::None,
        loss: Loss::NONE,
        reorder: Reorder::default(),
        ecn: None,
        ect: netem::EcnHandling::Pass,
        duplicate: netem::Probability::ZERO,
        corrupt: netem::Probability::ZERO,
        ..like.clone()
    }
}

fn shape(rng: &mut Rng) -> Shape {
    match rng.below(20) {
        0..=9 => Shape::Pair,
        10..=12 => Shape::Dumbbell(rng.range(2, 6) as usize),
        13..=16 => Shape::Star { clients: rng.range(1, 5) as usize, servers: rng.range(1, 3) as usize },
        17 | 18 => Shape::Path(rng.range(2, 5) as usize),
        _ => Shape::TwoPaths,
    }
}

impl Scene {
    /// The scene of a seed.
    pub fn new(seed: u64) -> Scene {
        let plan = Plan::new(seed);
        let mut rng = Rng::from_u64(seed ^ 0x5ce0_0000);
        let rng = &mut rng;
        let shape = shape(rng);
        let (topology, ends) = lay_out(shape, &plan, rng);
        let port = |name: &str| topology.port(name).unwrap_or_else(|| panic!("no port {name}"));
        let mut hosts: Vec<Host> = Vec::new();
        for (name, is_server) in &ends.hosts {
            let at = addr(FIRST_HOST + hosts.len() as u32);
            hosts.push(Host { port: port(name), at, is_server: *is_server });
        }
        let n = ends.connections.len() as u64;
        let mut connections: Vec<Connection> = Vec::new();
        for (i, (client, server)) in ends.connections.into_iter().enumerate() {
            let plan =
                if i == 0 { plan.clone() } else { plan.additional_plan(i as u64, MAX_BYTES / (2 * n)) };
            connections.push(Connection { hosts: [client, server], remote: hosts[server].at, plan });
        }
        let link = |name: &str| topology.find_link(name).unwrap_or_else(|| panic!("no link {name}"));
        let faulty = ends.faulty.map(|name| link(&name));
        let limit = connections.iter().fold(Span::ZERO, |sum, c| sum + c.plan.limit);
        let lost_at_close = if rng.chance(0.3) { [rng.below(4), rng.below(4)] } else { [0; 2] };
        Scene { shape, faulty, hosts, connections, lost_at_close, limit, topology }
    }

    /// The faults and their times.
    pub fn faults(&self) -> &[(Span, Fault)] {
        &self.connections[0].plan.faults
    }

    /// The connections of a host, and its side of each.
    pub fn of_host(&self, host: usize) -> impl Iterator<Item = (usize, usize)> {
        let side = move |c: &Connection| c.hosts.iter().position(|h| *h == host);
        self.connections.iter().enumerate().filter_map(move |(i, c)| side(c).map(|s| (i, s)))
    }
}

/// The layout of a topology: names of ports, and indices of hosts.
struct Layout {
    hosts: Vec<(String, bool)>,
    /// Client and server.
    connections: Vec<(usize, usize)>,
    faulty: [String; 2],
}

fn lay_out(shape: Shape, plan: &Plan, rng: &mut Rng) -> (Topology, Layout) {
    let [forward, reverse] = &plan.links;
    let whole = Duplex { forward: forward.clone(), reverse: reverse.clone() };
    let access = |rng: &mut Rng| {
        let (speed, delay) = (rng.range(1, 5), plan.rtt / 8 * rng.below(4));
        Duplex { forward: plain(forward, speed, delay), reverse: plain(reverse, speed, delay) }
    };
    let both = |name: &str| [format!("{name}.forward"), format!("{name}.reverse")];
    let host = |name: String, is_server: bool| (name, is_server);
    match shape {
        Shape::Pair | Shape::Path(_) => {
            let mut hops = vec![whole];
            if let Shape::Path(n) = shape {
                hops.extend((1..n).map(|_| access(rng)));
            }
            let hosts = vec![host("left".into(), false), host("right".into(), true)];
            (Topology::path(&hops), Layout { hosts, connections: vec![(0, 1)], faulty: both("hop1") })
        }
        Shape::Dumbbell(n) => {
            let access: Vec<_> = (0..n).map(|_| access(rng)).collect();
            let left = (1..=n).map(|i| host(format!("left{i}"), false));
            let right = (1..=n).map(|i| host(format!("right{i}"), true));
            let hosts = left.chain(right).collect();
            let connections = (0..n).map(|i| (i, n + i)).collect();
            let topology = Topology::dumbbell(n, &access, &whole);
            (topology, Layout { hosts, connections, faulty: both("bottleneck") })
        }
        Shape::Star { clients, servers } => {
            let mut topology = Topology::star(clients + servers, &access(rng));
            // The first server is behind the shared link.
            let name = format!("host{}", clients + 1);
            let faulty = [format!("{name}.reverse"), format!("{name}.forward")];
            for (name, config) in faulty.iter().zip([forward, reverse]) {
                if let Some(c) = topology.find_link(name).and_then(|l| topology.link_mut(l)) {
                    c.clone_from(config);
                }
            }
            let hosts =
                (0..clients + servers).map(|i| host(format!("host{}", i + 1), i >= clients)).collect();
            let to = |c: usize| (clients..clients + servers).map(move |s| (c, s));
            (topology, Layout { hosts, connections: (0..clients).flat_map(to).collect(), faulty })
        }
        Shape::TwoPaths => {
            let topology = Topology::two_paths(&whole, &access(rng));
            let names = [("left1", false), ("left2", false), ("right1", true), ("right2", true)];
            let hosts = names.map(|(name, is_server)| host(name.into(), is_server)).into();
            let connections = vec![(0, 2), (1, 3)];
            (topology, Layout { hosts, connections, faulty: both("path1") })
        }
    }
}
