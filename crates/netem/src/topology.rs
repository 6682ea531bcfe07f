//! Descriptions of networks: ports of hosts, switches, and the links between them.
//!
//! A description is plain data. A [`Network`](crate::Network) carries packets over it, in virtual time or between
//! network namespaces.

use crate::LinkConfig;
use core::fmt;
use std::collections::VecDeque;

/// Most ports of one network, which has a table of routes between all pairs of them.
pub const MAX_PORTS: usize = 1 << 11;
/// Most links of one network.
pub const MAX_LINKS: usize = 1 << 14;

/// The network port of a host. A host with two interfaces has two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub(crate) u32);

/// One direction of a link of a network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) u32);

/// A port or a switch of a [`Topology`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) u32);

impl PortId {
    /// Its number, from zero, in the order in which ports were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
impl LinkId {
    /// Its number, from zero, in the order in which links were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Both directions of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Duplex {
    /// Left to right in a dumbbell and a path, towards the switch in a star.
    pub forward: LinkConfig,
    /// The other direction.
    pub reverse: LinkConfig,
}

impl Duplex {
    /// A link with the same properties in both directions.
    pub fn same(config: LinkConfig) -> Duplex {
        Duplex { forward: config.clone(), reverse: config }
    }
}

/// Why a network cannot be built, or a packet cannot be sent over it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// More than [`MAX_PORTS`] ports.
    #[error("a network has at most {MAX_PORTS} ports; use fewer hosts")]
    TooManyPorts,
    /// More than [`MAX_LINKS`] links.
    #[error("a network has at most {MAX_LINKS} links; use fewer hosts or hops")]
    TooManyLinks,
    /// A port, switch or link of another network.
    #[error("{0} is not of this network; use the identifiers that it gave")]
    Unknown(String),
    /// A route whose links do not connect its ports.
    #[error(
        "the route from {from} to {to} breaks off at {link}; each link must begin where the one before ends"
    )]
    Broken {
        /// Name of the first port.
        from: String,
        /// Name of the last port.
        to: String,
        /// Name of the first link that does not connect.
        link: String,
    },
    /// Too many different routes.
    #[error("a network has at most {0} different routes; leave those that are there as they are")]
    TooManyRoutes(usize),
}

/// A node: a port, or a switch if `port` is `None`.
#[derive(Clone, Debug, PartialEq)]
struct Node {
    name: String,
    port: Option<PortId>,
}

/// The description of one direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Its name, for reports.
    pub name: String,
    /// The node where it begins.
    pub from: NodeId,
    /// The node where it ends.
    pub to: NodeId,
    /// Its properties.
    pub config: LinkConfig,
}

/// Ports, switches, and the links between them. Packets take the route with the fewest links and, of those, the
/// one whose links were added first, unless [`Topology::set_route`] says otherwise. A switch forwards without delay;
/// the queue of an egress port is that of its link, shared by all packets that leave there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    nodes: Vec<Node>,
    ports: Vec<NodeId>,
    links: Vec<LinkSpec>,
    /// The links that begin at each node.
    outgoing: Vec<Vec<LinkId>>,
    routes: Vec<(PortId, PortId, Vec<LinkId>)>,
}

impl Topology {
    /// An empty topology.
    pub fn new() -> Topology {
        Topology::default()
    }

    fn add_node(&mut self, name: impl Into<String>, port: Option<PortId>) -> NodeId {
        self.nodes.push(Node { name: name.into(), port });
        self.outgoing.push(Vec::new());
        NodeId(self.nodes.len() as u32 - 1)
    }
    /// Adds a port.
    pub fn add_port(&mut self, name: impl Into<String>) -> PortId {
        let id = PortId(self.ports.len() as u32);
        let place = self.add_node(name, Some(id));
        self.ports.push(place);
        id
    }
    /// Adds a switch.
    pub fn add_switch(&mut self, name: impl Into<String>) -> NodeId {
        self.add_node(name, None)
    }
    /// The node of a port; `None` for a port of another network.
    pub fn node_of_port(&self, port: PortId) -> Option<NodeId> {
        self.ports.get(port.index()).copied()
    }
    /// Adds a link in one direction.
    ///
    /// # Errors
    /// A node of another network.
    pub fn add_link(
        &mut self,
        name: impl Into<String>,
        from: NodeId,
        to: NodeId,
        config: LinkConfig,
    ) -> Result<LinkId, NetworkError> {
        if let Some(p) = [from, to].into_iter().find(|p| p.0 as usize >= self.nodes.len()) {
            return Err(NetworkError::Unknown(format!("place {}", p.0)));
        }
        Ok(self.push_link(name.into(), from, to, config))
    }
    fn push_link(&mut self, name: String, from: NodeId, to: NodeId, config: LinkConfig) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        self.links.push(LinkSpec { name, from, to, config });
        self.outgoing[from.0 as usize].push(id);
        id
    }
    /// Adds links in both directions, named `NAME.forward` and `NAME.reverse`.
    fn add_duplex(&mut self, name: &str, left: NodeId, right: NodeId, link: &Duplex) -> (LinkId, LinkId) {
        let forward = self.push_link(format!("{name}.forward"), left, right, link.forward.clone());
        let reverse = self.push_link(format!("{name}.reverse"), right, left, link.reverse.clone());
        (forward, reverse)
    }

    /// Sets the links for packets from one port to another, even if another route is shorter.
    ///
    /// # Errors
    /// Ports or links of another network, or links that do not connect the ports.
    pub fn set_route(&mut self, from: PortId, to: PortId, links: &[LinkId]) -> Result<(), NetworkError> {
        let place =
            |p: PortId| self.node_of_port(p).ok_or_else(|| NetworkError::Unknown(format!("port {}", p.0)));
        let (mut at, end) = (place(from)?, place(to)?);
        let broken = |link: String| NetworkError::Broken {
            from: self.port_name(from).to_owned(),
            to: self.port_name(to).to_owned(),
            link,
        };
        for id in links {
            let link = self.link(*id).ok_or_else(|| NetworkError::Unknown(format!("link {}", id.0)))?;
            if link.from != at {
                return Err(broken(link.name.clone()));
            }
            at = link.to;
        }
        if at != end {
            return Err(broken("its end".into()));
        }
        self.routes.retain(|(f, t, _)| (*f, *t) != (from, to));
        self.routes.push((from, to, links.to_vec()));
        Ok(())
    }

    /// All ports.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = PortId> + use<> {
        (0..self.ports.len() as u32).map(PortId)
    }
    /// The port with this name.
    pub fn port(&self, name: &str) -> Option<PortId> {
        self.ports().find(|p| self.port_name(*p) == name)
    }
    /// The name of a port; empty for a port of another network.
    pub fn port_name(&self, port: PortId) -> &str {
        self.node_of_port(port).map_or("", |p| &self.nodes[p.0 as usize].name)
    }
    /// All links with their identifiers.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &LinkSpec)> {
        self.links.iter().enumerate().map(|(i, l)| (LinkId(i as u32), l))
    }
    /// A link.
    pub fn link(&self, id: LinkId) -> Option<&LinkSpec> {
        self.links.get(id.index())
    }
    /// The properties of a link, for changes before a network is built.
    pub fn link_mut(&mut self, id: LinkId) -> Option<&mut LinkConfig> {
        self.links.get_mut(id.index()).map(|l| &mut l.config)
    }
    /// The link with this name.
    pub fn find_link(&self, name: &str) -> Option<LinkId> {
        self.links().find(|(_, l)| l.name == name).map(|(id, _)| id)
    }

    /// The links from one port to another in order; `None` without a route.
    pub fn route(&self, from: PortId, to: PortId) -> Option<Vec<LinkId>> {
        let given = self.routes.iter().find(|(f, t, _)| (*f, *t) == (from, to));
        if let Some((_, _, links)) = given {
            return Some(links.clone());
        }
        let (start, end) = (self.node_of_port(from)?, self.node_of_port(to)?);
        // Breadth-first search finds the fewest links.
        let mut reached: Vec<Option<LinkId>> = vec![None; self.nodes.len()];
        let mut open = VecDeque::from([start]);
        while let Some(at) = open.pop_front().filter(|at| *at != end) {
            // A host does not forward packets.
            if at != start && self.nodes[at.0 as usize].port.is_some() {
                continue;
            }
            for id in &self.outgoing[at.0 as usize] {
                let next = self.links[id.index()].to;
                if next != start && reached[next.0 as usize].is_none() {
                    reached[next.0 as usize] = Some(*id);
                    open.push_back(next);
                }
            }
        }
        let (mut at, mut links) = (end, Vec::new());
        while at != start {
            let id = reached[at.0 as usize]?;
            links.push(id);
            at = self.links[id.index()].from;
        }
        links.reverse();
        Some(links)
    }
}

/// Standard topologies.
impl Topology {
    /// Two ports, `left` and `right`, and hops between them in a row, named `hop1`, `hop2`, ...
    pub fn path(hops: &[Duplex]) -> Topology {
        let mut t = Topology::new();
        let (left, right) = (t.add_port("left"), t.add_port("right"));
        let (mut at, end) = (t.ports[left.index()], t.ports[right.index()]);
        for (i, hop) in hops.iter().enumerate() {
            let next = if i + 1 == hops.len() { end } else { t.add_switch(format!("switch{}", i + 1)) };
            t.add_duplex(&format!("hop{}", i + 1), at, next, hop);
            at = next;
        }
        t
    }

    /// `n` ports on each side, `left1`, ... and `right1`, ..., that share one link, `bottleneck`. Each port has
    /// its own access link of its name: on the left `there` leads to the bottleneck, on the right from it. The
    /// configurations in `access` are used in turn, repeated from the start where there are fewer; without any,
    /// access links are perfect.
    pub fn dumbbell(n: usize, access: &[Duplex], bottleneck: &Duplex) -> Topology {
        let perfect = Duplex::default();
        let access = |i: usize| access.get((i - 1) % access.len().max(1)).unwrap_or(&perfect);
        let mut t = Topology::new();
        let (left, right) = (t.add_switch("left"), t.add_switch("right"));
        t.add_duplex("bottleneck", left, right, bottleneck);
        for i in 1..=n {
            let name = format!("left{i}");
            let port = t.add_port(&name);
            t.add_duplex(&name, t.ports[port.index()], left, access(i));
        }
        for i in 1..=n {
            let name = format!("right{i}");
            let port = t.add_port(&name);
            t.add_duplex(&name, right, t.ports[port.index()], access(i));
        }
        t
    }

    /// `n` ports, `host1`, ..., around one switch, each with its own link of its name: `there` leads to the
    /// switch, `back` from it, with one queue for all packets to that port.
    pub fn star(n: usize, access: &Duplex) -> Topology {
        let mut t = Topology::new();
        let switch = t.add_switch("switch");
        for i in 1..=n {
            let name = format!("host{i}");
            let port = t.add_port(&name);
            t.add_duplex(&name, t.ports[port.index()], switch, access);
        }
        t
    }

    /// Two hosts with two ports each, `left1`, `right1`, `left2`, `right2`, and two disjoint paths, `path1` and
    /// `path2`.
    pub fn two_paths(first: &Duplex, second: &Duplex) -> Topology {
        let mut t = Topology::new();
        for (i, link) in [first, second].into_iter().enumerate() {
            let (left, right) = (t.add_port(format!("left{}", i + 1)), t.add_port(format!("right{}", i + 1)));
            t.add_duplex(&format!("path{}", i + 1), t.ports[left.index()], t.ports[right.index()], link);
        }
        t
    }
}

impl fmt::Display for Topology {
    /// One line for each link.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |p: NodeId| &self.nodes[p.0 as usize].name;
        for l in &self.links {
            writeln!(f, "{}: {} -> {}: {}", l.name, name(l.from), name(l.to), l.config)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(t: &Topology, from: &str, to: &str) -> Option<Vec<String>> {
        let (from, to) = (t.port(from).expect("a port"), t.port(to).expect("a port"));
        let links = t.route(from, to)?;
        Some(links.into_iter().map(|l| t.link(l).expect("a link").name.clone()).collect())
    }

    #[test]
    fn standard_shapes_have_the_expected_routes() {
        let d = Duplex::default();
        let t = Topology::dumbbell(3, &[], &d);
        let want = ["left2.forward", "bottleneck.forward", "right3.forward"];
        assert_eq!(names(&t, "left2", "right3").expect("a way"), want);
        let want = ["right3.reverse", "bottleneck.reverse", "left2.reverse"];
        assert_eq!(names(&t, "right3", "left2").expect("a way"), want);
        assert_eq!(names(&t, "left1", "left2").expect("a way"), ["left1.forward", "left2.reverse"]);
        let t = Topology::star(4, &d);
        assert_eq!(names(&t, "host4", "host1").expect("a way"), ["host4.forward", "host1.reverse"]);
        let t = Topology::path(&[d.clone(), d.clone(), d.clone()]);
        assert_eq!(
            names(&t, "left", "right").expect("a way"),
            ["hop1.forward", "hop2.forward", "hop3.forward"]
        );
        let t = Topology::two_paths(&d, &d);
        assert_eq!(names(&t, "left2", "right2").expect("a way"), ["path2.forward"]);
        assert_eq!(names(&t, "left1", "right2"), None);
        assert_eq!(names(&t, "left1", "left1").expect("itself"), Vec::<String>::new());
    }

    #[test]
    fn explicit_routes_are_used_and_disconnected_ones_refused() {
        let d = Duplex::default();
        let mut t = Topology::dumbbell(2, std::slice::from_ref(&d), &d);
        let link = |t: &Topology, n: &str| t.find_link(n).expect("a link");
        let (a, b) = (t.port("left1").expect("a port"), t.port("right1").expect("a port"));
        let detour = t.add_link(
            "detour",
            t.link(link(&t, "bottleneck.forward")).expect("it").from,
            t.link(link(&t, "bottleneck.forward")).expect("it").to,
            LinkConfig::default(),
        );
        let way = [link(&t, "left1.forward"), detour.expect("places"), link(&t, "right1.forward")];
        t.set_route(a, b, &way).expect("a way");
        assert_eq!(t.route(a, b).expect("a way"), way);
        for bad in [&way[1..], &way[..2]] {
            assert!(matches!(t.set_route(a, b, bad), Err(NetworkError::Broken { .. })));
        }
        assert_eq!(t.route(a, b).expect("a way"), way);
        assert!(matches!(t.set_route(a, PortId(99), &way), Err(NetworkError::Unknown(_))));
    }

    #[test]
    fn hosts_do_not_forward() {
        let d = Duplex::default();
        let mut t = Topology::new();
        let ports = ["a", "b", "c"].map(|n| t.add_port(n));
        let [a, b, c] = ports.map(|p| t.node_of_port(p).expect("a place"));
        t.add_duplex("ab", a, b, &d);
        t.add_duplex("bc", b, c, &d);
        assert_eq!(t.route(ports[0], ports[2]), None);
        assert!(t.route(ports[1], ports[2]).is_some());
    }
}
