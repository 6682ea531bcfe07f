//! Endpoints: verbs and transport joined behind one interface without I/O.
//!
//! ```
//! use base::{Ecn, Rng, Span, Time};
//! use longhaul_endpoint::{Authority, Config, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, ServerConfig};
//! use std::sync::Arc;
//! use transport::crypto::{Credentials, Identity, ServerTrust};
//!
//! let config = |n| Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([n; 32]))));
//! let authority = Authority { keys: None, tokens: Vec::new() }; // any key is let in
//! let serving = Some(ServerConfig { authority, ..ServerConfig::default() });
//! let mut server = Endpoint::new(Config { server: serving, ..config(1) }, Rng::from_u64(1))?;
//! let mut client = Endpoint::new(config(2), Rng::from_u64(2))?;
//! let (server_at, client_at) = ("192.0.2.1:4460".parse()?, "192.0.2.2:1000".parse()?);
//!
//! let mut now = Time::ZERO;
//! let conn = client.connect(
//!     now,
//!     Connect {
//!         remote: server_at,
//!         server_name: "server.example".into(),
//!         trust: ServerTrust::Pinned(vec![Identity::from_seed([1; 32]).public_key()]),
//!         token: None,
//!         options: None,
//!         iwarp: None,
//!     },
//! )?;
//! // The driver's loop, here between two endpoints in memory with a round trip of 10 ms.
//! let mut buffer = vec![0; MAX_TRAIN];
//! for _ in 0..20 {
//!     for to_server in [true, false] {
//!         let (from, to, remote) = match to_server {
//!             true => (&mut client, &mut server, client_at),
//!             false => (&mut server, &mut client, server_at),
//!         };
//!         while let Some(train) = from.poll_transmit(now, &mut buffer) {
//!             let info = DatagramInfo { remote, local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
//!             to.handle_train(now, info, &mut buffer[..train.len], train.segment);
//!         }
//!         now = now + Span::from_millis(5);
//!         to.handle_timeout(now);
//!     }
//! }
//! assert_eq!(client.poll_event(), Some(Event::Connected { conn }));
//! assert!(matches!(server.poll_event(), Some(Event::Incoming { .. })));
//! let queue_pairs = &client.connection(conn).expect("open").qps;
//! assert_eq!(queue_pairs.len(), 1, "work requests are posted to it by `client.adapter()`");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Endpoint`] holds connections and the verbs objects of one application. A driver passes in datagrams and
//! time, takes out datagrams, and lets the [`App`] run after each turn; the driver of real sockets and the
//! simulator use the same calls.

mod accept;
mod app;
mod cap_source;
mod config;
mod congestion;
mod conn;
mod discovery;
mod event_log;
mod flow_policy;
mod half_open;
mod iwarp;
mod own_qp;
mod qp_shares;
mod receive_delay;
mod remembered_paths;
mod shares;
mod sockets;
mod streams;
mod wake_coalescing;

/// For programs that play a peer, fuzzers for one.
#[doc(hidden)]
pub use crate::iwarp::Hello as IwarpHello;
pub use crate::iwarp::{
    HasCongestion, Iwarp, IwarpServer, MAX_STREAMS, StreamCommand, StreamId, StreamIo, StreamStats,
};
pub use ::iwarp::{Config as IwarpConfig, Placement};
pub use app::{App, ClientAdmission, ConnId, ConnInfo, Event, IwarpInfo};
pub use cap_source::CapSource;
pub use cc::Remembered;
pub use cc::platform::{Choice, Intent, Policy, Qos, Traffic};
pub use config::{Config, Connect, ConnectError, QpOptions, ServerConfig};
pub use discovery::{MAX_AUTO_PATHS, MAX_MESH_PATHS, MAX_PATH_ATTEMPTS, MAX_REMOTES, Network, Route};
pub use flow_policy::{Compliance, FlowReport, ProgramReload};
pub use remembered_paths::LIFETIME as PATH_LIFETIME;
pub use shares::{Displaced, Holder, SessionProgress, ShareLimits, Shares, SharesFull, network_of};
pub use sockets::{MAX_SOCKETS, OpenerUpdate, socket_of};
pub use transport::connection::{Authority, CcChange, CcInUse, FlowStats, PeerPreferences};
pub use transport::connection::{MAX_INLINE_SEAL, SingleBuffer, TransmitBuffers};
pub use transport::crypto::{OpenedTrain, TrainOpener, TrainSealer};
pub use transport::{
    AdditionalPath, Allow, CcChangeReason, CcNegotiation, CloseReason, Coupling, DatagramInfo, Gauge,
    LaneChoice, PathDiscovery, PathStats, Stats, Transmit, TransportOptions, Unreachable, Usage, limits,
    refusal,
};
pub use wake_coalescing::WakeCoalescer;

use accept::Acceptor;
use base::{KeyMap, Rng, Span, Time};
use conn::Conn;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use transport::crypto::{ClientSetup, ResetKey};
use transport::{Connection, connection};
use verbs::{Adapter, QpId, SrqId};
use wire::{Cid, Clear, LongType};

/// Bytes that [`Endpoint::poll_transmit`] needs.
pub const MAX_TRAIN: usize = connection::MAX_TRAIN;
/// Events that wait for the application at most; beyond, new connections are not accepted.
const MAX_EVENTS: usize = 1 << 16;
/// Streams of the endpoint's randomness, for secrets that are drawn at its start.
const RESETS: u64 = 1;
const ADDRESS_TOKENS: u64 = 2;

/// Connections, and the verbs objects of one application.
pub struct Endpoint {
    config: Config,
    rng: Rng,
    adapter: Adapter,
    /// Boxed: a tree's nodes have room for eleven, half of them empty.
    conns: BTreeMap<ConnId, Box<Conn>>,
    by_cid: KeyMap<Cid, ConnId>,
    by_initial: HashMap<(SocketAddr, Vec<u8>), ConnId>,
    by_qp: KeyMap<QpId, (ConnId, u16)>,
    /// By the stateless-reset token that the peer gave. The map's keyed hash keeps what lookups take from telling
    /// anything of the tokens (RFC 9000, section 10.3.1).
    by_reset: HashMap<[u8; 16], ConnId>,
    acceptor: Acceptor,
    events: VecDeque<Event>,
    /// What happened, for those who show it.
    log: observe::EventLog,
    /// Connections that may have something to send.
    ready: VecDeque<ConnId>,
    /// Reports were digested while trains were built: there may be completions that the application has not seen.
    app_due: bool,
    deadlines: BTreeSet<(Time, ConnId)>,
    next_id: u64,
    incoming_srq: Option<SrqId>,
    /// Requests of peers for queue pairs are the application's to grant.
    asks_for_qps: bool,
    /// See [`Endpoint::set_answer_wait`].
    answer_wait: Span,
    paths: remembered_paths::RememberedPaths,
    client_admission: Option<Box<dyn ClientAdmission>>,
    /// How many sockets the driver has.
    sockets: u16,
    /// Sockets, a bit each, whose lanes carry data only while no others do.
    spare: u64,
    /// Connections with lanes whose sockets took nothing more.
    blocked: BTreeSet<ConnId>,
    /// What threads of sockets are to know: at most one entry for each lane and change of keys, taken every turn.
    opener_updates: VecDeque<OpenerUpdate>,
    /// Whether there are such threads.
    publishes_openers: bool,
    /// What the network was like when it was looked at last.
    network: Network,
    /// It is to be looked at.
    network_stale: bool,
    /// Connections by iWARP.
    iwarp_state: crate::iwarp::IwarpState,
    /// The administrator's policy.
    policy_state: Option<flow_policy::PolicyState>,
    receive_delay: receive_delay::ReceiveDelay,
    /// Where a client began to connect last, until the driver has asked.
    connect_target: Option<SocketAddr>,
    /// Queue pairs that clients hold.
    qp_shares: qp_shares::QpShares,
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint").field("connections", &self.conns.len()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint without connections.
    ///
    /// # Errors
    /// Credentials that cannot be used, in words.
    pub fn new(mut config: Config, mut rng: Rng) -> Result<Endpoint, ConnectError> {
        if config.static_secret == [0; 32] {
            rng.stream(RESETS).fill(&mut config.static_secret);
        }
        let adapter = Adapter::new(config.limits, rng.fork());
        let acceptor = Acceptor::new(&config, rng.stream(ADDRESS_TOKENS))
            .map_err(|e| ConnectError::Settings(e.to_string()))?;
        Ok(Endpoint {
            config,
            rng,
            adapter,
            conns: BTreeMap::new(),
            by_cid: KeyMap::default(),
            by_initial: HashMap::new(),
            by_qp: KeyMap::default(),
            by_reset: HashMap::new(),
            acceptor,
            events: VecDeque::new(),
            log: observe::EventLog::default(),
            ready: VecDeque::new(),
            app_due: false,
            deadlines: BTreeSet::new(),
            next_id: 0,
            incoming_srq: None,
            asks_for_qps: false,
            answer_wait: Span::ZERO,
            paths: remembered_paths::RememberedPaths::default(),
            client_admission: None,
            sockets: 1,
            spare: 0,
            blocked: BTreeSet::new(),
            opener_updates: VecDeque::new(),
            publishes_openers: true,
            network: Network::default(),
            network_stale: true,
            iwarp_state: Default::default(),
            policy_state: None,
            receive_delay: receive_delay::ReceiveDelay::default(),
            connect_target: None,
            qp_shares: Default::default(),
        })
    }

    /// The verbs objects: regions, queues, work requests.
    pub fn adapter(&mut self) -> &mut Adapter {
        &mut self.adapter
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Consults `admission` for each client from now on, once the handshake has authenticated it and
    /// [`ServerConfig::authority`] admits it. A rejected client costs no queue pair, no event and no place among
    /// [`ServerConfig::max_connections`]: the application never learns of it.
    pub fn set_client_admission(&mut self, admission: Option<Box<dyn ClientAdmission>>) {
        self.client_admission = admission;
    }

    /// The verbs objects and the peer of a connection, until it is released.
    pub fn connection(&self, conn: ConnId) -> Option<&ConnInfo> {
        let ours = self.conns.get(&conn).map(|c| &c.info);
        ours.or_else(|| self.iwarp_state.conns.get(&conn).map(|b| &b.info))
    }

    /// Since when a connection has packets outstanding of which none was acknowledged. None: it waits for nothing.
    pub fn silent_since(&self, conn: ConnId) -> Option<Time> {
        self.conns.get(&conn)?.connection.silent_since()
    }
    /// The smoothed round-trip time of a connection's main path.
    pub fn srtt(&self, conn: ConnId) -> Option<Span> {
        Some(self.conns.get(&conn)?.connection.srtt())
    }

    /// Counters and estimates of a connection.
    pub fn stats(&self, conn: ConnId) -> Option<Stats> {
        let Some(c) = self.conns.get(&conn) else { return self.iwarp_stats(conn) };
        let mut stats = c.connection.stats();
        stats.paths.iter_mut().for_each(|p| p.found = c.found.has(p.lane));
        // Queue pairs of a connection live as long as it does.
        stats.payload_acked =
            c.info.qps.iter().filter_map(|qp| self.adapter.stats(*qp)).map(|s| s.bytes_delivered).sum();
        Some(stats)
    }

    /// Payload that a connection has moved so far, both ways together, what was sent again left out; zero when it is gone.
    pub fn payload_moved(&self, conn: ConnId) -> u64 {
        let Some(s) = self.stats(conn) else { return 0 };
        s.payload_sent.saturating_sub(s.payload_again).saturating_add(s.payload_received)
    }

    /// Memory in use by a connection and each of its queue pairs, with the limits: by name, those of queue pairs once
    /// for each pair. Takes time in the number of unfinished messages.
    pub fn usage(&self, conn: ConnId) -> Option<Vec<(&'static str, Gauge)>> {
        let c = self.conns.get(&conn)?;
        let mut all: Vec<_> = c.connection.usage().iter().collect();
        for u in c.info.qps.iter().filter_map(|qp| self.adapter.usage(*qp)) {
            let again = (u.lost_ranges, limits::MAX_TRACKED);
            let resolved = (u.resolved_ranges, 2 * limits::MAX_TRACKED + verbs::MAX_MESSAGES_AHEAD as usize);
            let gauges = [
                ("send work requests", u.sends),
                ("receives", u.receives),
                ("messages sent", u.messages_out),
                ("messages to repeat", u.messages_again),
                ("messages received", u.messages_in),
                ("ranges received", u.received_ranges),
                ("answers to reads", u.answers),
                ("ranges to repeat", again),
                ("ranges decided", resolved),
            ];
            all.extend(gauges.map(|(name, (used, limit))| (name, Gauge::new(used, limit))));
        }
        Some(all)
    }

    /// What is held beside connections: events, as long as the application takes them each time it is driven, and
    /// stateless answers that wait to be sent.
    pub fn own_usage(&self) -> [(&'static str, Gauge); 2] {
        let events = Gauge::new(self.events.len(), MAX_EVENTS);
        [("events", events), ("stateless answers", self.acceptor.usage())]
    }

    /// All connections that are not released.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.keys().chain(self.iwarp_state.conns.keys()).copied()
    }

    /// Whether no connection has anything left to do: a program may end.
    pub fn is_quiet(&self) -> bool {
        self.conns.values().all(|c| c.connection.is_closed()) && self.iwarp_state.streams.is_empty()
    }

    /// Starts connecting; [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// Settings that cannot be used, in words.
    pub fn connect(&mut self, now: Time, mut c: Connect) -> Result<ConnId, ConnectError> {
        c.remote = canonical(c.remote);
        if let Some(wanted) = c.iwarp.clone() {
            return self.connect_iwarp(now, c, wanted);
        }
        let settings = |e: transport::crypto::HandshakeError| ConnectError::Settings(e.to_string());
        let setup = ClientSetup::new(&self.config.credentials, &c.trust).map_err(settings)?;
        let local_cid = self.new_cid();
        let mut options = c.options.unwrap_or_else(|| self.config.options.clone());
        for p in &mut options.paths {
            p.remote = canonical(p.remote);
            if p.remote.port() == 0 {
                p.remote.set_port(c.remote.port());
            }
        }
        let said = options.negotiation.clone();
        let ruled = self.apply_policy(now, None, c.remote, &mut options)?;
        let open = connection::ConnectParams {
            remote: c.remote,
            server_name: c.server_name,
            setup,
            token: c.token,
            options: self.with_remembered_path(c.remote, now, options),
            local_cid,
            reset_token: self.reset_token(local_cid),
            unix_time: self.unix_time(now),
        };
        let connection = Connection::open(now, open, self.rng.fork()).map_err(settings);
        let connection = connection.inspect_err(|_| self.forget_share(&ruled))?;
        self.connect_target = Some(c.remote);
        self.insert(connection, c.remote, true, (ruled, said))
    }

    /// The address to which a client has started to connect by datagrams since the last call: for a driver that can
    /// watch for ICMP.
    pub fn take_connect_target(&mut self) -> Option<SocketAddr> {
        self.connect_target.take()
    }

    /// Whether a client waits for the first answer from there.
    pub fn is_unanswered(&self, remote: SocketAddr) -> bool {
        self.conns.values().any(|c| c.info.remote == remote && c.connection.is_unanswered())
    }

    /// Ends connections to an address that still wait for the first response. ICMP can be forged by anyone on the
    /// path, so the caller must be sure.
    pub fn on_unreachable(&mut self, now: Time, remote: SocketAddr, why: Unreachable) {
        let waiting =
            self.conns.iter().filter(|(_, c)| c.info.remote == remote && c.connection.is_unanswered());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(c) = self.conns.get_mut(&id) {
                c.connection.unreachable(why);
            }
            self.after(now, id);
        }
    }

    /// Options for a connection on a path that an earlier one may have used.
    fn with_remembered_path(&self, remote: SocketAddr, now: Time, o: TransportOptions) -> TransportOptions {
        TransportOptions { remembered: o.remembered.or_else(|| self.paths.recall(remote.ip(), now)), ..o }
    }

    /// What is remembered of the path to `peer`, for callers that store it until the next start and pass it to
    /// [`TransportOptions::remembered`].
    pub fn remembered(&self, peer: std::net::IpAddr, now: Time) -> Option<Remembered> {
        self.paths.recall(peer, now)
    }

    fn insert(
        &mut self,
        connection: Connection,
        remote: SocketAddr,
        is_client: bool,
        (ruled, said): (flow_policy::FlowPolicy, transport::CcNegotiation),
    ) -> Result<ConnId, ConnectError> {
        let pd = self.adapter.alloc_pd().inspect_err(|_| self.forget_share(&ruled))?;
        let cq = self.adapter.create_cq(conn::CQ_ENTRIES).inspect_err(|_| {
            let _ = self.adapter.dealloc_pd(pd);
            self.forget_share(&ruled);
        })?;
        let id = ConnId(self.next_id);
        self.next_id += 1;
        self.by_cid.insert(connection.local_cid(), id);
        let suite = connection.suite();
        let info = ConnInfo { pd, cq, qps: Vec::new(), remote, peer: None, is_client, suite, iwarp: None };
        let mut c = Conn::new(connection, info, said);
        c.srq = self.incoming_srq.filter(|_| !is_client);
        c.connection.set_spare_sockets(self.spare);
        c.flows.push(ruled);
        self.conns.insert(id, Box::new(c));
        self.apply_choice(id, 0);
        self.touch(id);
        Ok(id)
    }

    fn new_cid(&mut self) -> Cid {
        self.new_cid_at(0)
    }

    fn reset_token(&self, cid: Cid) -> [u8; 16] {
        *ResetKey::new(&self.config.static_secret).token(&cid.0.to_be_bytes()).as_bytes()
    }

    fn unix_time(&self, now: Time) -> u64 {
        self.config.unix_epoch + now.as_nanos() / 1_000_000_000
    }

    /// Closes a connection. What is not completed is flushed: wait for completions first.
    pub fn close(&mut self, now: Time, conn: ConnId, code: u64, reason: &str) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.connection.close(now, code, reason);
            self.after(now, conn);
        } else {
            self.close_iwarp(now, conn, code, reason);
        }
    }

    /// Frees what is left of a closed connection: queue pairs, completion queue, protection domain. Regions must be
    /// deregistered before.
    ///
    /// # Errors
    /// The connection is still open, or regions are left in its protection domain.
    pub fn release(&mut self, conn: ConnId) -> Result<(), ConnectError> {
        let Some(c) = self.conns.get(&conn) else { return self.release_iwarp(conn) };
        if !c.closed {
            return Err(ConnectError::NotOpen);
        }
        let (info, bound) = (c.info.clone(), c.qps.clone());
        // Those of the application are its own to destroy.
        self.by_qp.retain(|qp, _| !bound.contains(&Some(*qp)));
        self.qp_shares.release(&c.parties, info.qps.len());
        for qp in info.qps {
            self.by_qp.remove(&qp);
            self.adapter.destroy_qp(qp)?;
        }
        while self.adapter.poll_cq(info.cq).is_some() {}
        if let Some(c) = self.conns.get_mut(&conn) {
            c.info.qps.clear();
            c.qps.clear();
        }
        // Once more after regions were in the way, what is freed already stays so.
        if self.adapter.cq_len(info.cq).is_some() {
            self.adapter.destroy_cq(info.cq)?;
        }
        self.adapter.dealloc_pd(info.pd)?;
        if let Some(c) = self.conns.get_mut(&conn) {
            c.released = true;
        }
        self.reap(conn);
        Ok(())
    }

    /// Changes the keys of what this end sends on a connection, as soon as the rules allow; the peer follows. Keys change
    /// by themselves long before they wear out.
    pub fn update_keys(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.connection.request_key_update();
            self.touch(conn);
        }
    }

    /// The administrator's cap on what this end sends on a connection, from now on.
    pub fn set_rate_cap(&mut self, conn: ConnId, cap: Option<base::Rate>) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.connection.set_rate_cap(cap);
            self.touch(conn);
        } else {
            self.set_iwarp_limit(conn, cap);
        }
    }

    /// The system refused a datagram of `size` bytes to `remote` (EMSGSIZE).
    pub fn on_too_large(&mut self, now: Time, remote: SocketAddr, size: usize) {
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        self.conns.values_mut().for_each(|c| c.connection.on_too_large(now, remote, size));
    }

    /// How long received datagrams may wait before they are processed, without any active peer noticing: at most an
    /// eighth of the shortest round trip among them.
    pub fn max_receive_delay(&self) -> Span {
        self.receive_delay.least().unwrap_or(Span::ZERO)
    }

    /// Processes a received train: datagrams of `stride` bytes, the last perhaps shorter. Works in place.
    pub fn handle_train(&mut self, now: Time, meta: DatagramInfo, data: &mut [u8], stride: usize) {
        let stride = stride.clamp(1, data.len().max(1));
        let mut rest = data;
        while !rest.is_empty() {
            let n = run_of_one_connection(rest, stride);
            let (run, tail) = rest.split_at_mut(n);
            rest = tail;
            if base::telemetry::is_led(run) {
                self.handle_with_telemetry(now, meta, run);
            } else if run[0] & wire::packet::flag::LONG != 0 {
                self.handle_long(now, meta, run);
            } else {
                self.handle_short(now, meta, run, stride);
            }
        }
    }

    fn handle_short(&mut self, now: Time, meta: DatagramInfo, run: &mut [u8], stride: usize) {
        let Ok(Clear::Short(cid)) = Clear::parse(run) else { return };
        let reset = || run.last_chunk::<16>().and_then(|t| self.by_reset.get(t));
        let Some(&id) = self.by_cid.get(&cid).or_else(reset) else {
            let token = self.reset_token(cid);
            let longest = run.len().min(stride);
            self.acceptor.stateless_reset(now, meta, longest, &token, &mut self.rng);
            return;
        };
        let Some(c) = self.conns.get_mut(&id) else { return };
        let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
        c.connection.handle_short(now, meta, run, stride, &mut s);
        self.receive_delay.note(now, c.connection.max_receive_delay());
        self.after(now, id);
    }

    /// A packet behind telemetry: nothing that hops wrote is a reason to drop it.
    fn handle_with_telemetry(&mut self, now: Time, meta: DatagramInfo, datagram: &mut [u8]) {
        let Some((lead, packet)) = base::telemetry::split(datagram) else { return };
        let hops = base::telemetry::hops(lead).map_or_else(Vec::new, Iterator::collect);
        let Ok(Clear::Short(cid)) = Clear::parse(packet) else { return };
        let Some(&id) = self.by_cid.get(&cid) else {
            let stride = packet.len();
            return self.handle_short(now, meta, packet, stride);
        };
        let Some(c) = self.conns.get_mut(&id) else { return };
        let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
        c.connection.handle_with_telemetry(now, meta, packet, hops, &mut s);
        self.after(now, id);
    }

    fn handle_long(&mut self, now: Time, meta: DatagramInfo, datagram: &[u8]) {
        let Ok(clear) = Clear::parse(datagram) else { return };
        let cid = |d: &[u8]| d.try_into().map(|b| Cid(u32::from_be_bytes(b))).ok();
        let known = |this: &Endpoint, dcid: &[u8]| {
            let by_cid = cid(dcid).and_then(|c| this.by_cid.get(&c).copied());
            by_cid.or_else(|| this.by_initial.get(&(meta.remote, dcid.to_vec())).copied())
        };
        match clear {
            Clear::Short(_) => {}
            Clear::UnknownVersion { dcid, scid, .. } => {
                self.acceptor.version_negotiation(now, meta, dcid, scid, datagram.len())
            }
            Clear::VersionNegotiation { dcid, versions, .. } => {
                if let Some(id) = known(self, dcid)
                    && let Some(c) = self.conns.get_mut(&id)
                {
                    c.connection.handle_version_negotiation(versions);
                    self.after(now, id);
                }
            }
            Clear::Long(h) => {
                let id = match known(self, h.dcid) {
                    Some(id) => Some(id),
                    None if h.kind == LongType::Initial && self.events.len() < MAX_EVENTS => {
                        self.accept(now, meta, &h, datagram)
                    }
                    None => None,
                };
                let Some(id) = id else { return };
                let Some(c) = self.conns.get_mut(&id) else { return };
                let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
                c.connection.handle_long(now, meta, &h, datagram, &mut s);
                self.after(now, id);
            }
        }
    }

    /// Writes the next train to send into `buf` of at least [`MAX_TRAIN`] bytes. Call it until it returns nothing.
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        self.poll_trains(now, &mut SingleBuffer(buf))
    }

    /// What the application posted goes to the connections it concerns.
    fn collect_work(&mut self) {
        while let Some(qp) = self.adapter.activated() {
            if let Some(&(id, qpn)) = self.by_qp.get(&qp)
                && let Some(c) = self.conns.get_mut(&id)
            {
                c.connection.activate(qpn);
                self.touch(id);
            } else if let Some(&stream) = self.iwarp_state.by_qp.get(&qp) {
                self.iwarp_state.touch(stream);
            }
        }
        while let Some(qp) = self.adapter.take_credit_changes() {
            let limit = self.adapter.recv_limit(qp);
            if let (Some(&(id, qpn)), Some(limit)) = (self.by_qp.get(&qp), limit)
                && let Some(c) = self.conns.get_mut(&id)
                && c.established
            {
                c.connection.send_recv_limit(qpn, limit);
                self.touch(id);
            } else if let Some(&stream) = self.iwarp_state.by_qp.get(&qp) {
                self.resume_stream(stream);
            }
        }
    }

    /// When [`Endpoint::handle_timeout`] wants to be called; [`Time::ZERO`] means at once.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.app_due || !self.ready.is_empty() || self.acceptor.has_pending() || self.has_streams_ready() {
            return Some(Time::ZERO);
        }
        let streams = self.iwarp_state.deadlines.first().map(|(t, _)| *t);
        let first = self.deadlines.first().map(|(t, _)| *t);
        first.into_iter().chain(streams).chain(self.next_call()).min()
    }

    /// Whether the application must run again before the loop sleeps: sending has produced completions or events.
    pub const fn needs_app(&self) -> bool {
        self.app_due
    }

    /// Processes expired timers.
    pub fn handle_timeout(&mut self, now: Time) {
        self.app_due = false;
        self.log.set_time(now);
        self.check_policy();
        self.stream_timeouts(now);
        while let Some(&(t, id)) = self.deadlines.first() {
            if t > now {
                return;
            }
            self.deadlines.pop_first();
            let Some(c) = self.conns.get_mut(&id) else { continue };
            c.deadline = None;
            let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
            c.connection.handle_timeout(now, &mut s);
            self.after(now, id);
        }
    }

    /// Has the connection looked at by the next [`Endpoint::poll_transmit`].
    fn touch(&mut self, id: ConnId) {
        if let Some(c) = self.conns.get_mut(&id)
            && !c.queued
        {
            if !c.local_known && c.established && c.connection.has_local_address() {
                (c.local_known, self.network_stale) = (true, true);
            }
            c.queued = true;
            self.ready.push_back(id);
        }
    }
}

/// IPv4 mapped into IPv6 is IPv4: so drivers give what arrives.
fn canonical(a: SocketAddr) -> SocketAddr {
    match a.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, a.port()),
        _ => a,
    }
}

/// Bytes at the start of `train` that belong to one connection: a long packet alone, or short packets with the
/// same identifier.
fn run_of_one_connection(train: &[u8], stride: usize) -> usize {
    if train.len() <= stride {
        return train.len();
    }
    let mut pieces = train.chunks(stride);
    let Some(first) = pieces.next() else { return 0 };
    if first[0] & wire::packet::flag::LONG != 0 || first.len() < 5 {
        return first.len();
    }
    let same =
        pieces.take_while(|p| p.len() >= 5 && p[0] & wire::packet::flag::LONG == 0 && p[1..5] == first[1..5]);
    first.len() + same.map(<[u8]>::len).sum::<usize>()
}
