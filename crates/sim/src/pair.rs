//! The world that most measurements need: a sender and a receiver, joined by one link each way.

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

/// The same over IPv6: `fd00::x`.
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

/// What is transferred.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of one write, and of the region at each end that all of them use.
    pub message: usize,
    /// Writes that are posted ahead.
    pub ahead: usize,
    /// Writes in all; `None` never ends.
    pub messages: Option<u64>,
}

/// What both applications and the measurement know.
#[derive(Debug, Default)]
pub struct Shared {
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
    /// Why it went wrong.
    pub failure: Option<String>,
}

type Board = Rc<RefCell<Shared>>;

/// Writes the same memory again and again.
struct Sender {
    connect: Option<Connect>,
    starts: Time,
    load: Load,
    board: Board,
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

/// Registers memory to be written.
struct Receiver {
    message: usize,
    board: Board,
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
pub(crate) fn start(
    world: &mut World,
    (from, to): (PortId, PortId),
    (here, there): (SocketAddr, SocketAddr),
    plan: &FlowPlan,
) -> Result<Flow, ConnectError> {
    let (client, server) = (identity(1, world.rng()), identity(2, world.rng()));
    let authority = Authority { keys: Some(vec![client.public_key()]), tokens: Vec::new() };
    let trust = ServerTrust::Pinned(vec![server.public_key()]);
    let board = Board::default();
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
    Ok(Flow { sender, receiver, board })
}

/// A sender and a receiver.
#[derive(Debug)]
pub struct Pair {
    /// The world they are in.
    pub world: World,
    /// Who writes.
    pub sender: NodeId,
    /// Whose memory is written.
    pub receiver: NodeId,
    /// From the sender to the receiver.
    pub there: LinkId,
    /// From the receiver to the sender.
    pub back: LinkId,
    /// The same of the path that it connected over; with one path, the same links.
    pub first: [LinkId; 2],
    /// What both know.
    pub board: Rc<RefCell<Shared>>,
}

impl Pair {
    /// Joins them and has the sender connect.
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
        let topology = Topology::path(&[Duplex { there: links.0, back: links.1 }]);
        let mut world = World::with_topology(seed, slack, &topology).map_err(words)?;
        let mut links = topology.links().map(|(id, _)| id);
        let (Some(there), Some(back), (Some(from), Some(to))) =
            (links.next(), links.next(), (topology.port("left"), topology.port("right")))
        else {
            return Err(ConnectError::Settings("a path has two ports and two links".into()));
        };
        let plan = FlowPlan { from, to, options, load, starts: Time::ZERO };
        let Flow { sender, receiver, board } = start(&mut world, (from, to), (addr(1), addr(2)), &plan)?;
        Ok(Pair { world, sender, receiver, there, back, first: [there, back], board })
    }

    /// Joins them by two paths that share nothing; each has an address on each ([`Pair::second`]). The sender connects
    /// over the first. `there` and `back` are of the second path.
    ///
    /// # Errors
    /// Options that the endpoints refuse.
    pub fn over_two_paths(
        seed: u64,
        paths: [&Duplex; 2],
        options: TransportOptions,
        load: Load,
    ) -> Result<Pair, ConnectError> {
        Pair::between([[addr(1), addr(2)], Pair::second()], seed, paths, options, load)
    }

    /// The same with the sender's and the receiver's address on each path given.
    ///
    /// # Errors
    /// As [`Pair::over_two_paths`].
    pub fn between(
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
        let Flow { sender, receiver, board } = start(&mut world, (from, to), first.into(), &plan)?;
        let [here, there] = second;
        if !world.add_address(sender, port("left2")?, here)
            || !world.add_address(receiver, port("right2")?, there)
        {
            return Err(wrong("the addresses are taken"));
        }
        let link = |name| topology.find_link(name).ok_or_else(|| wrong("each path has two links"));
        let (there, back) = (link("path2.there")?, link("path2.back")?);
        let first = [link("path1.there")?, link("path1.back")?];
        Ok(Pair { world, sender, receiver, there, back, first, board })
    }

    /// The second addresses of the sender and the receiver.
    pub fn second() -> [SocketAddr; 2] {
        [addr(3), addr(4)]
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// What an application could not go on with.
    pub fn run_until(&mut self, until: Time) -> Result<(), String> {
        let board = self.board.clone();
        self.world.run_until_done(until, |_| {
            let b = board.borrow();
            b.failure.is_some() || b.finished.is_some()
        });
        self.board.borrow().failure.clone().map_or(Ok(()), Err)
    }
}
