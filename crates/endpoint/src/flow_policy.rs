//! Applies the administrator's policy to flows: when they are made, and after every change of the policy.

use crate::cap_source::CapSource;
use crate::congestion::apply_policy_terms;
use crate::iwarp::above;
use crate::{ConnId, Endpoint};
use base::{Rate, Span, Time};
use cc::engine::Record;
use cc::engine::admission::{self, Refusal};
use cc::engine::{Due, FlowId, SharedTree, Terms, Tree};
use cc::platform::{Carrier, Choice, Order, Policy, Qos, Traffic};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use transport::connection::{FlowStats, PeerPreferences};
use transport::{Allow, CcChangeReason, TransportOptions};
use verbs::QpId;

/// What is known about one flow, and what the policy chose for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowPolicy {
    pub traffic: Traffic,
    pub choice: Option<Choice>,
    /// What it announced, and by when that is promised to have left.
    pub due: Option<Due>,
    /// Its place in the tree.
    pub share: Option<FlowId>,
    /// What an administrator lets it send at most, beside all else, until the policy is another one.
    pub own_cap: Option<Rate>,
}

impl FlowPolicy {
    fn new(traffic: Traffic) -> FlowPolicy {
        FlowPolicy { traffic, choice: None, due: None, share: None, own_cap: None }
    }

    /// The smaller of what the policy's rule and an administrator let it send.
    fn cap(&self) -> Option<Rate> {
        self.choice.as_ref().and_then(|c| c.cap).into_iter().chain(self.own_cap).min()
    }
}

/// Whether a flow obeys its caps and its algorithm, as read back from where they are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compliance {
    /// It is not known yet: the system was asked.
    Unknown,
    /// It is.
    Met,
    /// It is not; what is done instead, in words.
    Violated(String),
}

/// One flow of an endpoint: its traffic, the policy's choice, and its statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// The connection it belongs to.
    pub conn: ConnId,
    /// What a policy is told of it.
    pub traffic: Traffic,
    /// What the policy chose; `None` where there is no policy.
    pub choice: Option<Choice>,
    /// The name of its class; empty where there is none.
    pub class: String,
    /// The queue pairs in it.
    pub qps: Vec<QpId>,
    /// What it does.
    pub facts: FlowStats,
    /// By when which bytes are promised to have left, of those that it announced.
    pub due: Option<Due>,
    /// What the peer says that it sends with on the same queue pairs; `None`: it does not say.
    pub peer: Option<PeerPreferences>,
}

/// The result of reloading a program, per flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramReload {
    /// Flows that run the new code now.
    pub moved: Vec<(ConnId, u8)>,
    /// Flows that go on with the code they have, and why.
    pub kept: Vec<(ConnId, u8, String)>,
}

/// What a queue pair requests, where it differs from its connection's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QpRequest {
    pub qos: Option<Qos>,
    pub application: Option<String>,
    pub dscp: Option<u8>,
}

/// The policy in force.
pub(crate) struct PolicyState {
    policy: Arc<dyn Policy>,
    /// The version that the flows were asked about; `None` before the first time.
    applied: Option<u64>,
    /// What divides what this endpoint sends.
    tree: SharedTree,
}

impl PolicyState {
    /// The policy in force.
    pub(crate) fn policy(&self) -> &Arc<dyn Policy> {
        &self.policy
    }
    /// Whether the policy is another one than when this was asked last.
    fn has_changed(&mut self) -> bool {
        let version = self.policy.version();
        self.applied.replace(version) != Some(version)
    }
}

/// Bytes on the wire of so many bytes of a message, at most: headers and tags are 70 of 1,500 bytes of the smallest usual
/// packet, 4.7 %, and a little is sent twice.
fn on_wire(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 16).saturating_add(1_500)
}

impl Endpoint {
    /// Sets the policy that chooses each flow's algorithm, class and cap. It applies to running flows at once, and
    /// again whenever its version grows, without losing anything in flight.
    pub fn set_policy(&mut self, policy: Arc<dyn Policy>) {
        match &mut self.policy_state {
            Some(g) => (g.policy, g.applied) = (policy, None),
            None => {
                let tree = SharedTree::new(Tree::new(policy.classes(), policy.process_cap()));
                self.policy_state = Some(PolicyState { policy, applied: None, tree });
            }
        }
        self.app_due = true;
    }

    /// The policy that holds.
    pub fn policy(&self) -> Option<&Arc<dyn Policy>> {
        self.policy_state.as_ref().map(|g| &g.policy)
    }

    /// All flows of connections that are not released.
    pub fn flows(&self) -> Vec<FlowReport> {
        let mut all = Vec::new();
        for (id, c) in &self.conns {
            for facts in c.connection.flow_stats() {
                let Some(ruled) = c.flows.get(usize::from(facts.flow)) else { continue };
                let of_it = |(qpn, qp): (usize, &Option<QpId>)| {
                    qp.filter(|_| c.connection.flow_of(qpn as u16) == Some(facts.flow))
                };
                let qps: Vec<QpId> = c.qps.iter().enumerate().filter_map(of_it).collect();
                let qpn =
                    qps.first().filter(|_| facts.flow > 0).and_then(|qp| self.by_qp.get(qp)).map(|q| q.1);
                let peer = c.connection.peer_cc_in_use(qpn).cloned();
                all.push(FlowReport { peer, ..self.report(*id, ruled, qps, facts) });
            }
        }
        for (id, b) in &self.iwarp_state.conns {
            let (Some(ruled), Some(s)) = (&b.ruled, self.iwarp_stats(*id)) else { continue };
            let facts = FlowStats {
                flow: 0,
                // What the system says that it goes by, whoever chose it.
                spec: b.info.iwarp.as_ref().map_or_else(String::new, |i| i.congestion.clone()),
                code: "",
                name: s.cc.0,
                state: s.cc.1,
                rate: s.rate,
                cwnd: s.cwnd,
                inflight: s.inflight,
                delivered: s.delivered,
                spurious: 0,
                carried: None,
                srtt: s.srtt,
                min_rtt: s.min_rtt,
                cap: self.iwarp_cap(*id).map(|(rate, _)| rate),
                backlogged: s.inflight > 0,
                change: None,
            };
            all.push(self.report(*id, ruled, b.info.qps.clone(), facts));
        }
        all
    }

    /// Bytes that each flow has delivered so far: what tells its rate, at little cost.
    pub fn delivered(&self) -> impl Iterator<Item = (ConnId, u8, u64)> + '_ {
        let native = self
            .conns
            .iter()
            .flat_map(|(id, c)| c.connection.delivered().map(move |(flow, bytes)| (*id, flow, bytes)));
        let by_tcp = self.iwarp_state.conns.iter().filter(|(_, b)| b.ruled.is_some());
        native.chain(by_tcp.filter_map(|(id, _)| Some((*id, 0, self.iwarp_stats(*id)?.delivered))))
    }

    /// The algorithm of new connections unless a policy chooses another.
    pub fn initial_algorithm(&self) -> &str {
        &self.config.options.cc
    }

    /// Moves flows that use a program of this name to the code loaded last, with the parameters they have. Nothing in
    /// flight is lost.
    pub fn reload_program(&mut self, name: &str) -> ProgramReload {
        let mut renewed = ProgramReload::default();
        let Ok(code) = cc::registry::find(name).map(|def| def.code) else { return renewed };
        for (id, c) in &mut self.conns {
            let runs = |spec: &str| spec.split(':').next().is_some_and(|n| n.trim() == name);
            let flows: Vec<_> =
                c.connection.flow_stats().filter(|f| runs(&f.spec) && f.code != code).collect();
            for f in flows {
                match c.connection.set_algorithm(f.flow, &f.spec, CcChangeReason::Policy) {
                    Ok(()) => renewed.moved.push((*id, f.flow)),
                    Err(why) => renewed.kept.push((*id, f.flow, why)),
                }
            }
        }
        // What decides may send at once.
        renewed.moved.iter().for_each(|(id, _)| self.touch(*id));
        renewed
    }

    /// Changes one flow, until the policy is another one: by what algorithm it is decided, and what it may send at most beside
    /// all other caps, where the inner `None` takes this one away. What is `None` stays. [`Endpoint::compliance`] says whether it is
    /// done.
    ///
    /// # Errors
    /// In words: no such flow, or an algorithm that cannot be made; of a connection by TCP, one that the system does not have.
    pub fn set_flow(
        &mut self,
        conn: ConnId,
        flow: u8,
        algorithm: Option<&str>,
        cap: Option<Option<Rate>>,
    ) -> Result<(), String> {
        let none = || format!("there is no flow {}.{flow}", conn.0);
        // A policy that came before must not undo it.
        self.check_policy();
        if let Some(c) = self.conns.get_mut(&conn) {
            if usize::from(flow) >= c.flows.len() {
                return Err(none());
            }
            if let Some(spec) = algorithm {
                c.connection.set_algorithm(flow, spec, CcChangeReason::Policy)?;
            }
            if let (Some(cap), Some(f)) = (cap, c.flows.get_mut(usize::from(flow))) {
                f.own_cap = cap;
                c.connection.set_flow_cap(flow, f.cap());
            }
            self.touch(conn);
            return Ok(());
        }
        if flow > 0 || !self.iwarp_state.conns.contains_key(&conn) {
            return Err(none());
        }
        if let Some(spec) = algorithm {
            self.set_iwarp_congestion(conn, spec)?;
        }
        if let Some(cap) = cap {
            self.set_iwarp_cap(conn, cap);
        }
        Ok(())
    }

    /// Whether a flow obeys its caps and its algorithm, as read back from where they are enforced: the lanes' pacers
    /// or the system's sockets.
    pub fn compliance(&self, conn: ConnId, flow: u8) -> Compliance {
        match self.conns.get(&conn) {
            Some(c) if c.connection.enforces_cap(flow) => Compliance::Met,
            Some(_) => Compliance::Violated(
                "its pacer keeps another cap than it was told: end the connection".to_owned(),
            ),
            None => match self.iwarp_compliance(conn) {
                None => Compliance::Unknown,
                Some(Ok(())) => Compliance::Met,
                Some(Err(why)) => Compliance::Violated(why),
            },
        }
    }

    /// The compliance of all flows: the first violation, with its connection.
    pub fn overall_compliance(&self) -> Compliance {
        if self.policy_state.as_ref().is_some_and(|g| g.applied != Some(g.policy.version())) {
            return Compliance::Unknown;
        }
        let native = self.conns.iter().filter(|(_, c)| !c.closed).flat_map(|(id, c)| {
            let flows = u8::try_from(c.flows.len()).unwrap_or(u8::MAX);
            (0..flows).map(|flow| (*id, flow))
        });
        let by_tcp = self.iwarp_state.conns.iter().filter(|(_, b)| !b.closed).map(|(id, _)| (*id, 0));
        let mut all = Compliance::Met;
        for (conn, flow) in native.chain(by_tcp) {
            match self.compliance(conn, flow) {
                Compliance::Met => {}
                Compliance::Unknown => all = Compliance::Unknown,
                Compliance::Violated(why) => {
                    return Compliance::Violated(format!("flow {}.{flow}: {why}", conn.0));
                }
            }
        }
        all
    }

    /// The smallest cap of a flow and its source; `None` when it has none. Of a cap that flows share it is the whole,
    /// of iWARP connections the part.
    pub fn cap_source(&self, conn: ConnId, flow: u8) -> Option<(Rate, CapSource)> {
        let Some(c) = self.conns.get(&conn) else { return self.iwarp_cap(conn) };
        let ruled = c.flows.get(usize::from(flow))?;
        self.caps(c.connection.rate_cap(), ruled, &[]).into_iter().min_by_key(|(rate, _)| *rate)
    }

    /// All caps of a flow. `parts` has what it has of those of the policy's classes, and of the process, by their nodes; of others
    /// it is the whole.
    pub(crate) fn caps(
        &self,
        limit: Option<Rate>,
        ruled: &FlowPolicy,
        parts: &[(usize, Rate)],
    ) -> Vec<(Rate, CapSource)> {
        let rule = || ruled.choice.as_ref().and_then(|c| Some((c.cap?, CapSource::Rule(c.rule.clone()))));
        let own = ruled.own_cap.map(|cap| (cap, CapSource::Own));
        let mut all: Vec<_> =
            limit.map(|cap| (cap, CapSource::Limit)).into_iter().chain(rule()).chain(own).collect();
        let Some(policy) = self.policy() else { return all };
        let classes = policy.classes();
        for node in above(classes, ruled) {
            let (cap, of) = match node.checked_sub(1) {
                Some(i) => (classes[i].cap, CapSource::Class(classes[i].name.clone())),
                None => (policy.process_cap(), CapSource::Process),
            };
            let part = parts.iter().find(|(of, _)| *of == node).map(|(_, part)| *part);
            all.extend(cap.map(|cap| (part.unwrap_or(cap), of)));
        }
        all
    }

    /// Returns the inputs and decisions of algorithms since the last call, of one flow or of all, with connection,
    /// lane and flow; and starts recording them. Returns how many records were dropped. For flows by the kernel's TCP
    /// see [`Endpoint::take_stream_samples`].
    pub fn take_trace(
        &mut self,
        only: Option<(ConnId, u8)>,
        mut out: impl FnMut(ConnId, u32, u8, Record),
    ) -> u64 {
        let chosen = self.conns.iter_mut().filter(|(id, _)| only.is_none_or(|o| o.0 == **id));
        let flow = only.map(|o| o.1);
        chosen
            .map(|(id, c)| c.connection.take_trace(flow, &mut |lane, flow, r| out(*id, lane, flow, r)))
            .sum()
    }

    /// Stops recording them.
    pub fn end_trace(&mut self) {
        self.conns.values_mut().for_each(|c| c.connection.end_trace());
        self.iwarp_state.end_trace();
    }

    fn report(&self, conn: ConnId, ruled: &FlowPolicy, qps: Vec<QpId>, facts: FlowStats) -> FlowReport {
        let class = self.policy().zip(ruled.choice.as_ref()).and_then(|(p, c)| p.classes().get(c.class));
        FlowReport {
            conn,
            traffic: ruled.traffic.clone(),
            choice: ruled.choice.clone(),
            class: class.map_or_else(String::new, |c| c.name.clone()),
            qps,
            facts,
            due: ruled.due,
            peer: None,
        }
    }

    /// What is known of a connection that is about to be made.
    fn traffic(
        &self,
        carrier: Carrier,
        local: Option<IpAddr>,
        remote: SocketAddr,
        o: &TransportOptions,
    ) -> Traffic {
        let anywhere = match remote {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let ip = local.unwrap_or(anywhere);
        // The port is that of the socket at this address, as far as whoever drives has told of it.
        let port = self.network.listening_at.iter().find(|a| a.ip() == ip).map_or(0, SocketAddr::port);
        // Whoever took what is the default anyhow has asked for nothing.
        let asked = if o.cc == cc::registry::DEFAULT { String::new() } else { o.cc.clone() };
        Traffic {
            carrier,
            local: SocketAddr::new(ip, port),
            remote,
            dscp: o.intent.dscp,
            application: o.intent.application.clone(),
            qos: o.intent.qos,
            asked,
            priority: 0,
        }
    }

    /// What the policy, if there is one, makes of this traffic, with a place in the tree.
    ///
    /// # Errors
    /// A guarantee or a deadline that cannot be kept.
    fn ruled(
        &self,
        now: Time,
        owner: ConnId,
        traffic: Traffic,
        known: (Option<Rate>, Span),
    ) -> Result<FlowPolicy, Refusal> {
        let mut ruled = FlowPolicy::new(traffic);
        let Some(g) = &self.policy_state else { return Ok(ruled) };
        let choice = g.policy.choose(&ruled.traffic);
        if let Qos::Deadline { bytes, within } = ruled.traffic.qos
            && g.policy.classes().get(choice.class).is_some_and(|c| c.order == Order::Deadline)
        {
            // What is to be there then has left half a round trip before, and is known to be there half of one later; it
            // takes one to begin.
            let by = now + (within - known.1 * 2);
            ruled.due = Some(Due { by, bytes: on_wire(bytes) });
        }
        self.admit(now, &choice, ruled.due, known).map_err(|e| match (e, ruled.traffic.qos) {
            // In the application's words.
            (Refusal::Deadline { earliest, .. }, Qos::Deadline { bytes, .. }) => {
                Refusal::Deadline { bytes, earliest }
            }
            (e, _) => e,
        })?;
        ruled.share = g.tree.lock().join(owner.0, &terms(&choice, ruled.due));
        ruled.choice = Some(choice);
        Ok(ruled)
    }

    /// Whether what a flow is to be promised can be kept beside what is promised.
    fn admit(
        &self,
        now: Time,
        choice: &Choice,
        due: Option<Due>,
        (known, rtt): (Option<Rate>, Span),
    ) -> Result<(), Refusal> {
        let Some(g) = self.policy_state.as_ref().filter(|_| due.is_some() || choice.guarantee.is_some())
        else {
            return Ok(());
        };
        let classes = g.policy.classes();
        let (dues, guaranteed) = g.tree.lock().promised(choice.class);
        let sure = admission::assured_rate(classes, g.policy.process_cap(), choice.class);
        if let Some(wanted) = choice.guarantee {
            admission::admit_guarantee(sure, guaranteed, wanted)?;
        }
        let Some(due) = due else { return Ok(()) };
        // Where the host knows no limit, what the path is known to carry is one.
        let Some(rate) = sure.into_iter().chain(choice.cap).min().or(known) else { return Ok(()) };
        let left = rate.bytes_per_sec().saturating_sub(guaranteed.bytes_per_sec());
        admission::admit_deadline(Rate::from_bytes_per_sec(left), now, &dues, due).map_err(|e| match e {
            Refusal::Deadline { bytes, earliest } => {
                // As the application counts: until all is known to be there.
                Refusal::Deadline { bytes, earliest: earliest.map(|s| s + rtt * 2) }
            }
            other => other,
        })
    }

    /// Settles by what algorithm a connection begins, as its options then say.
    ///
    /// # Errors
    /// A guarantee or a deadline that cannot be kept.
    pub(crate) fn apply_policy(
        &self,
        now: Time,
        local: Option<IpAddr>,
        remote: SocketAddr,
        o: &mut TransportOptions,
    ) -> Result<FlowPolicy, Refusal> {
        let traffic = self.traffic(Carrier::Native, local, remote, o);
        let rtt = o.remembered.map_or(Span::ZERO, |r| r.rtt);
        let mut ruled = self.ruled(now, ConnId(self.next_id), traffic, (o.known_rate, rtt))?;
        self.begin_by(&mut ruled, o);
        Ok(ruled)
    }

    /// Settles the same of a connection that a client makes. It is let in without what cannot be promised.
    pub(crate) fn apply_policy_to_incoming(
        &self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        o: &mut TransportOptions,
    ) -> FlowPolicy {
        let traffic = self.traffic(Carrier::Native, local, remote, o);
        let mut ruled = self.unpromised(ConnId(self.next_id), traffic);
        self.begin_by(&mut ruled, o);
        ruled
    }

    /// The options of a connection as the policy has it.
    fn begin_by(&self, ruled: &mut FlowPolicy, o: &mut TransportOptions) {
        if let Some(c) = &mut ruled.choice {
            o.cc = usable(c, &o.cc);
            o.fallback.clone_from(&c.fallback);
            o.intent.dscp = c.dscp.unwrap_or(o.intent.dscp);
            // What the peer may ask for is what the policy would let an application have.
            let names = cc::registry::names().into_iter().filter(|n| o.negotiation.allow.contains(n));
            let allowed = names.filter(|n| self.permits(&ruled.traffic, n)).map(str::to_owned);
            o.negotiation.allow = Allow::Only(allowed.collect());
            o.negotiation.also.retain(|spec| self.permits(&ruled.traffic, spec));
            apply_policy_terms(&mut o.negotiation, &c.peer);
        }
    }

    /// What the policy makes of traffic of which nobody here can refuse anything.
    pub(crate) fn unpromised(&self, owner: ConnId, traffic: Traffic) -> FlowPolicy {
        let mut ruled = FlowPolicy::new(traffic);
        let Some(g) = &self.policy_state else { return ruled };
        let mut choice = g.policy.choose(&ruled.traffic);
        if let Err(e) = self.admit(Time::ZERO, &choice, None, (None, Span::ZERO)) {
            choice.why.push(format!("without a guarantee: {e}"));
            choice.guarantee = None;
        }
        ruled.share = g.tree.lock().join(owner.0, &terms(&choice, None));
        ruled.choice = Some(choice);
        ruled
    }

    /// A flow that had a place in the tree is gone.
    pub(crate) fn forget_share(&self, ruled: &FlowPolicy) {
        if let (Some(g), Some(share)) = (&self.policy_state, ruled.share) {
            g.tree.lock().remove(share);
        }
    }

    /// All flows of a connection are gone.
    pub(crate) fn forget_shares(&mut self, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        c.connection.set_tree(None);
        let promised = c.opening.iter_mut().filter_map(|(.., p)| p.as_mut());
        let shares: Vec<FlowId> = c.flows.iter_mut().chain(promised).filter_map(|r| r.share.take()).collect();
        if let Some(g) = &self.policy_state {
            let mut tree = g.tree.lock();
            shares.into_iter().for_each(|s| tree.remove(s));
        }
    }

    /// The next connection to look at for sending: one that is ready, or whose turn it is.
    #[inline]
    pub(crate) fn next_ready(&mut self, now: Time) -> Option<ConnId> {
        let ready = self.ready.pop_front();
        if ready.is_none() && self.policy_state.is_some() { self.next_called(now) } else { ready }
    }

    /// The next one whose turn it is.
    fn next_called(&mut self, now: Time) -> Option<ConnId> {
        let g = self.policy_state.as_ref()?;
        loop {
            let id = ConnId(g.tree.lock().poll_call(now)?);
            if let Some(c) = self.conns.get_mut(&id) {
                c.queued = true;
                return Some(id);
            }
        }
    }

    /// When it may be somebody's turn.
    pub(crate) fn next_call(&self) -> Option<Time> {
        self.policy_state.as_ref()?.tree.lock().deadline()
    }

    /// Whether the policy lets this traffic have what it asks for now.
    pub(crate) fn permits(&self, traffic: &Traffic, asked: &str) -> bool {
        let traffic = Traffic { asked: asked.to_owned(), ..traffic.clone() };
        self.policy().is_none_or(|p| p.choose(&traffic).algorithm == asked)
    }

    /// Settles the same of a connection by TCP: what the system is to call its algorithm, and its cap.
    pub(crate) fn apply_policy_to_tcp_conn(
        &self,
        remote: SocketAddr,
        o: &TransportOptions,
    ) -> (FlowPolicy, Option<String>) {
        let traffic = self.traffic(Carrier::Tcp, None, remote, o);
        // TCP paces by itself: nobody is asked.
        let choice = self.policy().map(|p| p.choose(&traffic));
        let ruled = FlowPolicy { choice, ..FlowPolicy::new(traffic) };
        let name = ruled.choice.as_ref().and_then(|c| self.tcp_name(c));
        (ruled, name)
    }

    /// What a queue pair asks for that is to be opened, and what it has in common with others that share its flow; nothing
    /// of one that is in the connection's own.
    fn of_qp(
        &self,
        id: ConnId,
        qpn: Option<u16>,
        asked: &str,
        asks: &QpRequest,
    ) -> Option<(String, Traffic)> {
        let first = &self.conns.get(&id)?.flows.first()?.traffic;
        let apply_policy_terms =
            self.policy_state.is_some() && (asks.qos.is_some() || asks.application.is_some());
        if asked.is_empty() && !apply_policy_terms && asks.dscp.is_none() {
            return None;
        }
        let traffic = Traffic {
            qos: asks.qos.unwrap_or(first.qos),
            application: asks.application.clone().unwrap_or_else(|| first.application.clone()),
            dscp: asks.dscp.unwrap_or(first.dscp),
            asked: if asked.is_empty() { first.asked.clone() } else { asked.to_owned() },
            ..first.clone()
        };
        // One that is still to have a number shares with nobody.
        let key = key_of(asked, &traffic, qpn.unwrap_or(u16::MAX));
        Some((key, traffic))
    }

    /// Promises what a queue pair asks for that is about to be opened, where that is a promise.
    ///
    /// # Errors
    /// It cannot be kept.
    pub(crate) fn promise(
        &mut self,
        now: Time,
        id: ConnId,
        asked: &str,
        asks: &QpRequest,
    ) -> Result<Option<FlowPolicy>, Refusal> {
        let Some(Qos::Deadline { .. } | Qos::Guaranteed(_)) = asks.qos else { return Ok(None) };
        self.check_policy();
        let Some((key, traffic)) = self.of_qp(id, None, asked, asks) else { return Ok(None) };
        let Some(c) = self.conns.get(&id) else { return Ok(None) };
        if c.connection.has_flow(&key) {
            return Ok(None);
        }
        let of_first = c.connection.flow_stats().next();
        let known = of_first.map_or((None, Span::ZERO), |f| (f.carried, f.srtt));
        self.ruled(now, id, traffic, known).map(Some)
    }

    /// Makes a queue pair known to its connection, in the flow that suits what it asks for, and was promised.
    ///
    /// # Errors
    /// An unknown algorithm, or too many flows.
    pub(crate) fn join_flow(
        &mut self,
        id: ConnId,
        (qpn, priority): (u16, u8),
        (asked, asks): (&str, &QpRequest),
        promised: Option<FlowPolicy>,
    ) -> Result<(), String> {
        let own = self.of_qp(id, Some(qpn), asked, asks);
        let Some(c) = self.conns.get_mut(&id) else { return Err("the connection is gone".to_owned()) };
        let Some((key, traffic)) = own else {
            return c.connection.add_qp(qpn, priority, "");
        };
        if c.connection.has_flow(&key) {
            promised.iter().for_each(|p| self.forget_share(p));
            let Some(c) = self.conns.get_mut(&id) else { return Ok(()) };
            return c.connection.add_qp_as(qpn, priority, &key, "").map(drop);
        }
        let before = if asked.is_empty() { c.connection.algorithm(0).unwrap_or_default() } else { asked };
        let before = before.to_owned();
        let mut ruled = promised.unwrap_or_else(|| self.unpromised(id, traffic));
        let spec = match &mut ruled.choice {
            Some(choice) => usable(choice, &before),
            None => before,
        };
        let Some(c) = self.conns.get_mut(&id) else { return Ok(()) };
        match c.connection.add_qp_as(qpn, priority, &key, &spec) {
            Ok(flow) => {
                self.set_flow_policy(id, usize::from(flow), ruled);
                Ok(())
            }
            Err(e) => {
                self.forget_share(&ruled);
                Err(e)
            }
        }
    }

    /// What was ruled of a flow holds for it from now on.
    pub(crate) fn set_flow_policy(&mut self, id: ConnId, flow: usize, ruled: FlowPolicy) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        match c.flows.get_mut(flow) {
            // Somebody else's, who asks for the same: it has its place.
            Some(f) if f.traffic == ruled.traffic || flow == 0 => return self.forget_share(&ruled),
            // Nobody was in it any more.
            Some(f) => {
                let old = core::mem::replace(f, ruled);
                self.forget_share(&old);
            }
            None => c.flows.push(ruled),
        }
        self.apply_choice(id, flow);
    }

    /// Asks the policy again if it has changed.
    #[inline]
    pub(crate) fn check_policy(&mut self) {
        // Looked at with each turn of the loop.
        if self.policy_state.as_mut().is_some_and(PolicyState::has_changed) {
            self.reapply_policy();
        }
    }

    /// Asks the policy about all flows.
    #[cold]
    fn reapply_policy(&mut self) {
        let Some(g) = &self.policy_state else { return };
        let (policy, tree) = (g.policy.clone(), g.tree.clone());
        tree.lock().configure(policy.classes(), policy.process_cap());
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            let Some(c) = self.conns.get_mut(&id).filter(|c| !c.closed) else { continue };
            c.flows.iter_mut().for_each(|f| f.own_cap = None);
            let remote = c.connection.remote();
            let all: Vec<Traffic> = c.flows.iter().map(|f| Traffic { remote, ..f.traffic.clone() }).collect();
            all.into_iter().enumerate().for_each(|(i, traffic)| self.apply_policy_again(id, i, traffic));
            self.touch(id);
        }
        let all: Vec<ConnId> = self.iwarp_state.conns.keys().copied().collect();
        for id in all.iter().copied() {
            let Some(b) = self.iwarp_state.conns.get_mut(&id) else { continue };
            let Some(ruled) = &mut b.ruled else { continue };
            ruled.choice = Some(policy.choose(&ruled.traffic));
            ruled.own_cap = None;
            self.set_streams_dscp(id);
            self.apply_policy_to_tcp(id);
        }
        self.divide_caps();
        all.into_iter().for_each(|id| self.query_streams(id));
    }

    /// The policy says what becomes of a flow of which this is known now. What it was promised stays promised.
    pub(crate) fn apply_policy_again(&mut self, id: ConnId, flow: usize, traffic: Traffic) {
        let Some(f) = self.conns.get_mut(&id).and_then(|c| c.flows.get_mut(flow)) else { return };
        if let Some(g) = &self.policy_state {
            let choice = g.policy.choose(&traffic);
            let (terms, mut tree) = (terms(&choice, f.due), g.tree.lock());
            match f.share {
                Some(share) => tree.change(share, &terms),
                None => f.share = tree.join(id.0, &terms),
            }
            f.choice = Some(choice);
        }
        f.traffic = traffic;
        self.apply_choice(id, flow);
    }

    /// Has a flow do as the policy says.
    pub(crate) fn apply_choice(&mut self, id: ConnId, flow: usize) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let Some(f) = c.flows.get_mut(flow) else { return };
        let marked = f.choice.as_ref().and_then(|choice| choice.dscp);
        c.connection.set_flow_dscp(flow as u8, marked.unwrap_or(f.traffic.dscp));
        c.connection.set_flow_cap(flow as u8, f.cap());
        let Some(choice) = &mut f.choice else { return };
        if let Some(g) = &self.policy_state {
            c.connection.set_tree(Some(g.tree.clone()));
            c.connection.set_share(flow as u8, f.share);
        }
        let now = c.connection.algorithm(flow as u8).unwrap_or_default().to_owned();
        let spec = usable(choice, &now);
        if let Err(error) = c.connection.set_algorithm(flow as u8, &spec, CcChangeReason::Policy) {
            tracing::warn!(rule = choice.rule, algorithm = spec, error, "a flow keeps its algorithm");
        }
        c.connection.set_fallback(flow as u8, &choice.fallback);
        let mut says = c.said.clone();
        apply_policy_terms(&mut says, &choice.peer);
        if let Err(error) = c.connection.set_peer_cc_preferences(flow as u8, &says) {
            tracing::warn!(rule = choice.rule, error, "the preferences for the other end stay as they were");
        }
    }
}

/// How a flow takes part in the tree.
fn terms(choice: &Choice, due: Option<Due>) -> Terms {
    Terms { class: choice.class, weight: choice.weight, guarantee: choice.guarantee, deadline: due }
}

/// What queue pairs have in common that share a flow: what they ask for. Each promise of a time is one of its own.
pub(crate) fn key_of(asked: &str, t: &Traffic, qpn: u16) -> String {
    let Traffic { qos, dscp, application, .. } = t;
    match qos {
        Qos::Deadline { .. } => format!("{asked} {qos} {dscp} {application} {qpn}"),
        _ => format!("{asked} {qos} {dscp} {application}"),
    }
}

/// The algorithm that a choice comes down to: its own, or its fallback, or what there was where neither can be made (an
/// algorithm may have been unloaded since the policy was read). What was not possible is told in the choice.
fn usable(choice: &mut Choice, before: &str) -> String {
    let mut whys = Vec::new();
    let mut can = |spec: &str| match cc::registry::parse(spec) {
        Ok(_) => true,
        Err(e) => {
            whys.push(e.to_string());
            false
        }
    };
    let spec = [choice.algorithm.as_str(), choice.fallback.as_str()].into_iter().find(|s| can(s));
    let spec = spec.unwrap_or(before).to_owned();
    choice.why.extend(whys);
    spec
}
