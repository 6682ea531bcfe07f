//! Descriptions of networks: where hosts are plugged in, and the links between them.
//!
//! A description is data: a [`Network`](crate::Network) makes it happen, whether in virtual time or between network
//! namespaces.

use crate::LinkConfig;
use core::fmt;
use std::collections::VecDeque;

/// Ports of one network at most: there is a table of routes between all of them.
pub const MAX_PORTS: usize = 1 << 11;
/// Links of one network at most.
pub const MAX_LINKS: usize = 1 << 14;

/// Where a host is plugged in. A host with two interfaces has two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub(crate) u32);

/// One direction of a link of a network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) u32);

/// A port or a switch of a [`Topology`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(pub(crate) u32);

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
    /// Towards the right in a dumbbell and a path, towards the switch in a star.
    pub there: LinkConfig,
    /// The other way.
    pub back: LinkConfig,
}

impl Duplex {
    /// The same both ways.
    pub fn same(config: LinkConfig) -> Duplex {
        Duplex { there: config.clone(), back: config }
    }
}

/// Why a network cannot be made, or something cannot be sent over it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// More ports than there is room for.
    #[error("a network has at most {MAX_PORTS} ports; use fewer hosts")]
    TooManyPorts,
    /// More links than there is room for.
    #[error("a network has at most {MAX_LINKS} links; use fewer hosts or hops")]
    TooManyLinks,
    /// A port, switch or link of another network.
    #[error("{0} is not of this network; use the identifiers that it gave")]
    Unknown(String),
    /// A route that does not hang together.
    #[error(
        "the route from {from} to {to} breaks off at {link}; each link must begin where the one before ends"
    )]
    Broken {
        /// Name of the first port.
        from: String,
        /// Name of the last port.
        to: String,
        /// Name of the link that does not fit.
        link: String,
    },
    /// More different routes than there is room for.
    #[error("a network has at most {0} different routes; leave those that are there as they are")]
    TooManyRoutes(usize),
}

/// What a place is.
#[derive(Clone, Debug, PartialEq)]
struct Vertex {
    name: String,
    port: Option<PortId>,
}

/// One direction of a link, described.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// For reports.
    pub name: String,
    /// Where it begins.
    pub from: Place,
    /// Where it ends.
    pub to: Place,
    /// What it is like.
    pub config: LinkConfig,
}

/// Ports, switches, and the links between them. Datagrams take the way with the fewest links, and of those the one whose
/// links were added first, unless [`Topology::set_route`] says otherwise. A switch forwards without delay; the queue of
/// each of its egress ports is that of the link which begins there, shared by all that goes that way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    places: Vec<Vertex>,
    ports: Vec<Place>,
    links: Vec<LinkPlan>,
    /// Links that begin at each place.
    leaving: Vec<Vec<LinkId>>,
    routes: Vec<(PortId, PortId, Vec<LinkId>)>,
}

impl Topology {
    /// Nothing yet.
    pub fn new() -> Topology {
        Topology::default()
    }

    fn add_place(&mut self, name: impl Into<String>, port: Option<PortId>) -> Place {
        self.places.push(Vertex { name: name.into(), port });
        self.leaving.push(Vec::new());
        Place(self.places.len() as u32 - 1)
    }
    /// Another port.
    pub fn add_port(&mut self, name: impl Into<String>) -> PortId {
        let id = PortId(self.ports.len() as u32);
        let place = self.add_place(name, Some(id));
        self.ports.push(place);
        id
    }
    /// Another switch.
    pub fn add_switch(&mut self, name: impl Into<String>) -> Place {
        self.add_place(name, None)
    }
    /// The place of a port; `None` for a port of another network.
    pub fn place(&self, port: PortId) -> Option<Place> {
        self.ports.get(port.index()).copied()
    }
    /// Another link, one way.
    ///
    /// # Errors
    /// A place of another network.
    pub fn add_link(
        &mut self,
        name: impl Into<String>,
        from: Place,
        to: Place,
        config: LinkConfig,
    ) -> Result<LinkId, NetworkError> {
        if let Some(p) = [from, to].into_iter().find(|p| p.0 as usize >= self.places.len()) {
            return Err(NetworkError::Unknown(format!("place {}", p.0)));
        }
        Ok(self.link_up(name.into(), from, to, config))
    }
    fn link_up(&mut self, name: String, from: Place, to: Place, config: LinkConfig) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        self.links.push(LinkPlan { name, from, to, config });
        self.leaving[from.0 as usize].push(id);
        id
    }
    /// Links both ways, `NAME.there` and `NAME.back`.
    fn join(&mut self, name: &str, left: Place, right: Place, link: &Duplex) -> (LinkId, LinkId) {
        let there = self.link_up(format!("{name}.there"), left, right, link.there.clone());
        let back = self.link_up(format!("{name}.back"), right, left, link.back.clone());
        (there, back)
    }

    /// Datagrams from one port to another take these links in turn, whatever way is shorter.
    ///
    /// # Errors
    /// Ports or links of another network, or links that do not hang together.
    pub fn set_route(&mut self, from: PortId, to: PortId, links: &[LinkId]) -> Result<(), NetworkError> {
        let place = |p: PortId| self.place(p).ok_or_else(|| NetworkError::Unknown(format!("port {}", p.0)));
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
        self.place(port).map_or("", |p| &self.places[p.0 as usize].name)
    }
    /// All links with their identifiers.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &LinkPlan)> {
        self.links.iter().enumerate().map(|(i, l)| (LinkId(i as u32), l))
    }
    /// A link.
    pub fn link(&self, id: LinkId) -> Option<&LinkPlan> {
        self.links.get(id.index())
    }
    /// What a link is like, to be changed before a network is made of it.
    pub fn link_mut(&mut self, id: LinkId) -> Option<&mut LinkConfig> {
        self.links.get_mut(id.index()).map(|l| &mut l.config)
    }
    /// The link with this name.
    pub fn find_link(&self, name: &str) -> Option<LinkId> {
        self.links().find(|(_, l)| l.name == name).map(|(id, _)| id)
    }

    /// The links from one port to another in turn; `None` where there is no way.
    pub fn route(&self, from: PortId, to: PortId) -> Option<Vec<LinkId>> {
        let given = self.routes.iter().find(|(f, t, _)| (*f, *t) == (from, to));
        if let Some((_, _, links)) = given {
            return Some(links.clone());
        }
        let (start, end) = (self.place(from)?, self.place(to)?);
        // Breadth first: the fewest links.
        let mut reached: Vec<Option<LinkId>> = vec![None; self.places.len()];
        let mut open = VecDeque::from([start]);
        while let Some(at) = open.pop_front().filter(|at| *at != end) {
            // A host does not forward what is not its own.
            if at != start && self.places[at.0 as usize].port.is_some() {
                continue;
            }
            for id in &self.leaving[at.0 as usize] {
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

/// The usual shapes.
impl Topology {
    /// Two ports, `left` and `right`, and hops between them one after the other, named `hop1`, `hop2`, ...
    pub fn path(hops: &[Duplex]) -> Topology {
        let mut t = Topology::new();
        let (left, right) = (t.add_port("left"), t.add_port("right"));
        let (mut at, end) = (t.ports[left.index()], t.ports[right.index()]);
        for (i, hop) in hops.iter().enumerate() {
            let next = if i + 1 == hops.len() { end } else { t.add_switch(format!("switch{}", i + 1)) };
            t.join(&format!("hop{}", i + 1), at, next, hop);
            at = next;
        }
        t
    }

    /// `n` ports on each side, `left1`, ... and `right1`, ..., behind one link that all share, `bottleneck`. Each port
    /// has its own link, with its port's name: on the left `there` leads to the bottleneck, on the right from it. Of
    /// `access`, the first is that of `left1` and `right1` and so on, from the start again where there are fewer; perfect
    /// links where there are none.
    pub fn dumbbell(n: usize, access: &[Duplex], bottleneck: &Duplex) -> Topology {
        let perfect = Duplex::default();
        let access = |i: usize| access.get((i - 1) % access.len().max(1)).unwrap_or(&perfect);
        let mut t = Topology::new();
        let (left, right) = (t.add_switch("left"), t.add_switch("right"));
        t.join("bottleneck", left, right, bottleneck);
        for i in 1..=n {
            let name = format!("left{i}");
            let port = t.add_port(&name);
            t.join(&name, t.ports[port.index()], left, access(i));
        }
        for i in 1..=n {
            let name = format!("right{i}");
            let port = t.add_port(&name);
            t.join(&name, right, t.ports[port.index()], access(i));
        }
        t
    }

    /// `n` ports, `host1`, ..., around one switch, each with its own link of its name: `there` leads to the switch,
    /// `back` from it, with one queue for whoever sends to that port.
    pub fn star(n: usize, access: &Duplex) -> Topology {
        let mut t = Topology::new();
        let switch = t.add_switch("switch");
        for i in 1..=n {
            let name = format!("host{i}");
            let port = t.add_port(&name);
            t.join(&name, t.ports[port.index()], switch, access);
        }
        t
    }

    /// Two hosts with two ports each, `left1`, `right1`, `left2`, `right2`, and two paths that share nothing, `path1` and
    /// `path2`.
    pub fn two_paths(first: &Duplex, second: &Duplex) -> Topology {
        let mut t = Topology::new();
        for (i, link) in [first, second].into_iter().enumerate() {
            let (left, right) = (t.add_port(format!("left{}", i + 1)), t.add_port(format!("right{}", i + 1)));
            t.join(&format!("path{}", i + 1), t.ports[left.index()], t.ports[right.index()], link);
        }
        t
    }
}

impl fmt::Display for Topology {
    /// A line for each link.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |p: Place| &self.places[p.0 as usize].name;
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
    fn the_usual_shapes_have_the_usual_routes() {
        let d = Duplex::default();
        let t = Topology::dumbbell(3, &[], &d);
        let want = ["left2.there", "bottleneck.there", "right3.there"];
        assert_eq!(names(&t, "left2", "right3").expect("a way"), want);
        let want = ["right3.back", "bottleneck.back", "left2.back"];
        assert_eq!(names(&t, "right3", "left2").expect("a way"), want);
        assert_eq!(names(&t, "left1", "left2").expect("a way"), ["left1.there", "left2.back"]);
        let t = Topology::star(4, &d);
        assert_eq!(names(&t, "host4", "host1").expect("a way"), ["host4.there", "host1.back"]);
        let t = Topology::path(&[d.clone(), d.clone(), d.clone()]);
        assert_eq!(names(&t, "left", "right").expect("a way"), ["hop1.there", "hop2.there", "hop3.there"]);
        let t = Topology::two_paths(&d, &d);
        assert_eq!(names(&t, "left2", "right2").expect("a way"), ["path2.there"]);
        assert_eq!(names(&t, "left1", "right2"), None);
        assert_eq!(names(&t, "left1", "left1").expect("itself"), Vec::<String>::new());
    }

    #[test]
    fn a_route_that_is_given_holds_and_one_that_breaks_off_is_refused() {
        let d = Duplex::default();
        let mut t = Topology::dumbbell(2, std::slice::from_ref(&d), &d);
        let link = |t: &Topology, n: &str| t.find_link(n).expect("a link");
        let (a, b) = (t.port("left1").expect("a port"), t.port("right1").expect("a port"));
        let detour = t.add_link(
            "detour",
            t.link(link(&t, "bottleneck.there")).expect("it").from,
            t.link(link(&t, "bottleneck.there")).expect("it").to,
            LinkConfig::default(),
        );
        let way = [link(&t, "left1.there"), detour.expect("places"), link(&t, "right1.there")];
        t.set_route(a, b, &way).expect("a way");
        assert_eq!(t.route(a, b).expect("a way"), way);
        for bad in [&way[1..], &way[..2]] {
            assert!(matches!(t.set_route(a, b, bad), Err(NetworkError::Broken { .. })));
        }
        assert_eq!(t.route(a, b).expect("a way"), way);
        assert!(matches!(t.set_route(a, PortId(99), &way), Err(NetworkError::Unknown(_))));
    }

    #[test]
    fn a_host_does_not_forward() {
        let d = Duplex::default();
        let mut t = Topology::new();
        let ports = ["a", "b", "c"].map(|n| t.add_port(n));
        let [a, b, c] = ports.map(|p| t.place(p).expect("a place"));
        t.join("ab", a, b, &d);
        t.join("bc", b, c, &d);
        assert_eq!(t.route(ports[0], ports[2]), None);
        assert!(t.route(ports[1], ports[2]).is_some());
    }
}
