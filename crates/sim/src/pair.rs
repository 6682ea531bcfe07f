//! The simulation for most measurements: a sender and a receiver, connected by one link in each direction.

use crate::flows::{Flow, FlowPlan};
use crate::world::{LinkId, NodeId, NodeSetup, World};
use base::{Rng, Span, Time};
use endpoint::{App, Authority, ConnId, Connect, ConnectError, Endpoint, Event, ServerConfig};
use netem::{Duplex, LinkConfig, PortId, Topology};
use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use transport::TransportOptions;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Memory, Mr, SendOp, SendWr, Sge, Status};

/// An address of the simulated network: `10.x.y.z`, port 4433.
pub fn addr(host: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(0x0a00_0000 | host & 0x00ff_ffff).into(), 4433)
}

/// An IPv6 address of the simulated network: `fd00::x`.
pub fn addr6(host: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).into(), 4433)
}

/// The key pair of a simulated host.
pub fn identity(host: u32, rng: &mut Rng) -> Identity {
    let mut seed = [0; 32];
    rng.fill(&mut seed);
    seed[..4].copy_from_slice(&host.to_le_bytes());
    Identity::from_seed(seed)
}

/// The amount to transfer.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of one Write, and of the region at each end that all of them use.
    pub message: usize,
    /// Writes posted ahead.
    pub ahead: usize,
    /// Number of Writes; `None`: unlimited.
    pub messages: Option<u64>,
}

/// The state shared by both applications and the measurement.
#[derive(Debug, Default)]
pub struct TransferState {
    /// The receiver's region.
    pub target: Option<Mr>,
    /// The sender's connection, once it is up.
    pub sender: Option<ConnId>,
    /// The receiver's connection, once it is up.
    pub receiver: Option<ConnId>,
    /// Writes completed.
    pub completed: u64,
    /// When the first write was posted.
    pub started: Option<Time>,
    /// When the last write completed.
    pub finished: Option<Time>,
    /// The error, if it failed.
    pub failure: Option<String>,
}

type SharedState = Rc<RefCell<TransferState>>;

/// Writes the same memory repeatedly.
struct Sender {
    connect: Option<Connect>,
    starts: Time,
    load: Load,
    board: SharedState,
    conn: Option<ConnId>,
    region: Option<Mr>,
    posted: u64,
}

impl Sender {
    fn fail(&self, text: String) {
        self.board.borrow_mut().failure.get_or_insert(text);
    }

    fn work(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        if now >= self.starts
            && let Some(c) = self.connect.take()
        {
            e.connect(now, c).map_err(|e| e.to_string())?;
        }
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Connected { conn } => {
                    self.conn = Some(conn);
                    self.board.borrow_mut().sender = Some(conn);
                }
                Event::Closed { reason, .. } => return Err(format!("the sender's connection: {reason}")),
                _ => {}
            }
        }
        let (Some(conn), Some(target)) = (self.conn, self.board.borrow().target) else { return Ok(()) };
        let Some(info) = e.connection(conn) else { return Ok(()) };
        let (pd, cq, qp) = (info.pd, info.cq, info.qps[0]);
        let a = e.adapter();
        let region = match self.region {
            Some(r) => r,
            None => a
                .reg_mr(pd, Memory::zeroed(self.load.message), Access::LOCAL_READ)
                .map_err(|(e, _)| e.to_string())?,
        };
        self.region = Some(region);
        let mut board = self.board.borrow_mut();
        while let Some(wc) = a.poll_cq(cq) {
            if wc.status != Status::Success {
                return Err(format!("a write ended with {:?}", wc.status));
            }
            board.completed += 1;
            if Some(board.completed) == self.load.messages {
                board.finished = Some(now);
            }
        }
        board.started.get_or_insert(now);
        while self.posted - board.completed < self.load.ahead as u64
            && self.load.messages.is_none_or(|m| self.posted < m)
        {
            let op = SendOp::Write { rkey: target.rkey, offset: 0 };
            let sge = Sge { lkey: region.lkey, offset: 0, len: self.load.message as u64 };
            a.post_send(qp, SendWr::new(self.posted, op, sge)).map_err(|e| e.to_string())?;
            self.posted += 1;
        }
        Ok(())
    }
}

impl App for Sender {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Err(text) = self.work(now, e) {
            self.fail(text);
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.connect.as_ref().map(|_| self.starts)
    }
}

/// Registers memory for the Writes.
struct Receiver {
    message: usize,
    board: SharedState,
}

impl App for Receiver {
    fn drive(&mut self, _: Time, e: &mut Endpoint) {
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Incoming { conn } => {
                    let Some(info) = e.connection(conn) else { continue };
                    let pd = info.pd;
                    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                    let mr = e.adapter().reg_mr(pd, Memory::zeroed(self.message), access);
                    let mut board = self.board.borrow_mut();
                    board.receiver = Some(conn);
                    board.target = mr.ok();
                }
                Event::Closed { reason, .. } => {
                    let text = format!("the receiver's connection: {reason}");
                    self.board.borrow_mut().failure.get_or_insert(text);
                }
                _ => {}
            }
        }
    }
}

/// Adds a sender and a receiver to a world.
pub(crate) fn add_flow(
    world: &mut World,
    (from, to): (PortId, PortId),
    (here, there): (SocketAddr, SocketAddr),
    plan: &FlowPlan,
) -> Result<Flow, ConnectError> {
    let (client, server) = (identity(1, world.rng()), identity(2, world.rng()));
    let authority = Authority { keys: Some(vec![client.public_key()]), tokens: Vec::new() };
    let trust = ServerTrust::Pinned(vec![server.public_key()]);
    let board = SharedState::default();
    let mut setup = NodeSetup::new(Arc::new(Credentials::RawKey(server)));
    setup.options.clone_from(&plan.options);
    let credentials = Arc::new(Credentials::RawKey(client));
    let client_setup = NodeSetup { credentials, static_secret: [8; 32], ..setup.clone() };
    setup.server = Some(ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() });
    let app = Receiver { message: plan.load.message, board: board.clone() };
    let receiver = world.add_node_at(to, there, setup, Box::new(app))?;
    let name = "receiver".into();
    let connect =
        Connect { remote: there, server_name: name, trust, token: None, options: None, iwarp: None };
    let app = Sender {
        connect: Some(connect),
        starts: plan.starts,
        load: plan.load,
        board: board.clone(),
        conn: None,
        region: None,
        posted: 0,
    };
    let sender = world.add_node_at(from, here, client_setup, Box::new(app))?;
    Ok(Flow { sender, receiver, shared: board })
}

/// A sender and a receiver.
#[derive(Debug)]
pub struct Pair {
    /// The world they are in.
    pub world: World,
    /// The node that writes.
    pub sender: NodeId,
    /// The node whose memory is written.
    pub receiver: NodeId,
    /// From the sender to the receiver.
    pub forward: LinkId,
    /// From the receiver to the sender.
    pub reverse: LinkId,
    /// Both directions of the path that it connected over; with one path, the same links.
    pub first_path: [LinkId; 2],
    /// The state shared by both ends.
    pub shared: Rc<RefCell<TransferState>>,
}

impl Pair {
    /// Creates both and lets the sender connect.
    ///
    /// # Errors
    /// Options that the endpoints refuse.
    pub fn new(
        seed: u64,
        slack: Span,
        links: (LinkConfig, LinkConfig),
        options: TransportOptions,
        load: Load,
    ) -> Result<Pair, ConnectError> {
        let words = |e: netem::NetworkError| ConnectError::Settings(e.to_string());
        let topology = Topology::path(&[Duplex { forward: links.0, reverse: links.1 }]);
        let mut world = World::with_topology(seed, slack, &topology).map_err(words)?;
        let mut links = topology.links().map(|(id, _)| id);
        let (Some(forward), Some(reverse), (Some(from), Some(to))) =
            (links.next(), links.next(), (topology.port("left"), topology.port("right")))
        else {
            return Err(ConnectError::Settings("a path has two ports and two links".into()));
        };
        let plan = FlowPlan { from, to, options, load, starts: Time::ZERO };
        let Flow { sender, receiver, shared: board } =
            add_flow(&mut world, (from, to), (addr(1), addr(2)), &plan)?;
        Ok(Pair { world, sender, receiver, forward, reverse, first_path: [forward, reverse], shared: board })
    }

    /// Connects them by two disjoint paths, with an address of each end on each ([`Pair::second_addresses`]). The
    /// sender connects over the first; `there` and `back` are of the second.
    ///
    /// # Errors
    /// Options that the endpoints refuse.
    pub fn over_two_paths(
        seed: u64,
        paths: [&Duplex; 2],
        options: TransportOptions,
        load: Load,
    ) -> Result<Pair, ConnectError> {
        Pair::between_addresses([[addr(1), addr(2)], Pair::second_addresses()], seed, paths, options, load)
    }

    /// The same with given addresses of sender and receiver on each path.
    ///
    /// # Errors
    /// As [`Pair::over_two_paths`].
    pub fn between_addresses(
        [first, second]: [[SocketAddr; 2]; 2],
        seed: u64,
        paths: [&Duplex; 2],
        options: TransportOptions,
        load: Load,
    ) -> Result<Pair, ConnectError> {
        let wrong = |e: &str| ConnectError::Settings(e.to_owned());
        let topology = Topology::two_paths(paths[0], paths[1]);
        let mut world =
            World::with_topology(seed, Span::ZERO, &topology).map_err(|e| wrong(&e.to_string()))?;
        let port = |name| topology.port(name).ok_or_else(|| wrong("two paths have two ports at each end"));
        let (from, to) = (port("left1")?, port("right1")?);
        let plan = FlowPlan { from, to, options, load, starts: Time::ZERO };
        let Flow { sender, receiver, shared: board } = add_flow(&mut world, (from, to), first.into(), &plan)?;
        let [here, there] = second;
        if !world.add_address(sender, port("left2")?, here)
            || !world.add_address(receiver, port("right2")?, there)
        {
            return Err(wrong("the addresses are taken"));
        }
        let link = |name| topology.find_link(name).ok_or_else(|| wrong("each path has two links"));
        let (forward, reverse) = (link("path2.forward")?, link("path2.reverse")?);
        let first = [link("path1.forward")?, link("path1.reverse")?];
        Ok(Pair { world, sender, receiver, forward, reverse, first_path: first, shared: board })
    }

    /// The second addresses of the sender and the receiver.
    pub fn second_addresses() -> [SocketAddr; 2] {
        [addr(3), addr(4)]
    }

    /// Runs until `until`.
    ///
    /// # Errors
    /// A failure of an application.
    pub fn run_until(&mut self, until: Time) -> Result<(), String> {
        let board = self.shared.clone();
        self.world.run_until_done(until, |_| {
            let b = board.borrow();
            b.failure.is_some() || b.finished.is_some()
        });
        self.shared.borrow().failure.clone().map_or(Ok(()), Err)
    }
}
