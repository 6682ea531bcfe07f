//! What the administrator's policy makes of this endpoint's flows: asked when they are made, and again after every change.

use crate::{ConnId, Endpoint};
use base::Rate;
use cc::engine::Record;
use cc::platform::{Carrier, Choice, Policy, Qos, Traffic};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use transport::connection::FlowFacts;
use transport::{Allow, TransportOptions};
use verbs::QpId;

/// What is known of one flow, and what the policy made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruled {
    pub traffic: Traffic,
    pub choice: Option<Choice>,
}

/// One flow of an endpoint: what is known of it, what the policy made of it, and what it does.
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
    pub facts: FlowFacts,
}

/// The policy that holds.
pub(crate) struct Governor {
    policy: Arc<dyn Policy>,
    /// The version that the flows were asked about; `None` before the first time.
    applied: Option<u64>,
}

/// What the system calls an algorithm of ours (`TCP_CONGESTION`); `None` of those that it does not have. What is not built
/// in here is the system's by the name it was attached by.
fn kernel_name(spec: &str) -> Option<String> {
    const SAME: [&str; 5] = ["reno", "cubic", "dctcp", "vegas", "bbr"];
    let name = spec.split(':').next().unwrap_or_default();
    let known = SAME.contains(&name) || !cc::registry::is_built_in(name);
    (known && !name.is_empty()).then(|| name.to_owned())
}

impl Endpoint {
    /// From now on this policy says by what algorithm each flow is decided, in which class it stands, and what it may send.
    /// Flows that run are asked about at once, and again whenever the policy's version grows: what changes takes effect
    /// without anything in flight being lost.
    pub fn set_policy(&mut self, policy: Arc<dyn Policy>) {
        self.governor = Some(Governor { policy, applied: None });
    }

    /// The policy that holds.
    pub fn policy(&self) -> Option<&Arc<dyn Policy>> {
        self.governor.as_ref().map(|g| &g.policy)
    }

    /// All flows of connections that are not released.
    pub fn flows(&self) -> Vec<FlowReport> {
        let mut all = Vec::new();
        for (id, c) in &self.conns {
            for facts in c.connection.flow_facts() {
                let Some(ruled) = c.flows.get(usize::from(facts.flow)) else { continue };
                let of_it = |(qpn, qp): (usize, &Option<QpId>)| {
                    qp.filter(|_| c.connection.flow_of(qpn as u16) == Some(facts.flow))
                };
                let qps = c.qps.iter().enumerate().filter_map(of_it).collect();
                all.push(self.report(*id, ruled, qps, facts));
            }
        }
        for (id, b) in &self.hub.bundles {
            let (Some(ruled), Some(s)) = (&b.ruled, self.bundle_stats(*id)) else { continue };
            let facts = FlowFacts {
                flow: 0,
                spec: ruled.choice.as_ref().map_or_else(String::new, |c| c.algorithm.clone()),
                name: s.cc.0,
                state: s.cc.1,
                rate: s.rate,
                bound: s.bound,
                inflight: s.inflight,
                delivered: s.delivered,
                spurious: 0,
                carried: None,
                srtt: s.srtt,
                min_rtt: s.min_rtt,
                cap: b.rate_cap,
                backlogged: s.inflight > 0,
            };
            all.push(self.report(*id, ruled, b.info.qps.clone(), facts));
        }
        all
    }

    /// Changes one flow, until the policy is another one: by what algorithm it is decided, and what it may send at most, where
    /// the inner `None` takes its cap away. What is `None` stays.
    ///
    /// # Errors
    /// In words: no such flow, or an algorithm that cannot be made; of a connection by TCP, any algorithm.
    pub fn set_flow(
        &mut self,
        conn: ConnId,
        flow: u8,
        algorithm: Option<&str>,
        cap: Option<Option<Rate>>,
    ) -> Result<(), String> {
        let none = || format!("there is no flow {}.{flow}", conn.0);
        if let Some(c) = self.conns.get_mut(&conn) {
            if usize::from(flow) >= c.flows.len() {
                return Err(none());
            }
            if let Some(spec) = algorithm {
                c.connection.set_algorithm(flow, spec)?;
            }
            if let Some(cap) = cap {
                c.connection.set_flow_cap(flow, cap);
            }
            self.touch(conn);
            return Ok(());
        }
        if flow > 0 || !self.hub.bundles.contains_key(&conn) {
            return Err(none());
        }
        if algorithm.is_some() {
            return Err(
                "the system's TCP keeps the congestion control it began with: start anew with --tcp-cc"
                    .into(),
            );
        }
        if let Some(cap) = cap {
            self.set_rate_cap(conn, cap);
        }
        Ok(())
    }

    /// Gives out what algorithms were told and decided since the last call, of one flow or of all, with connection, lane and
    /// flow; and keeps it from now on. How many records were not kept is returned. Flows of the system's TCP tell nothing.
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

    /// Nobody watches any more.
    pub fn end_trace(&mut self) {
        self.conns.values_mut().for_each(|c| c.connection.end_trace());
    }

    fn report(&self, conn: ConnId, ruled: &Ruled, qps: Vec<QpId>, facts: FlowFacts) -> FlowReport {
        let class = self.policy().zip(ruled.choice.as_ref()).and_then(|(p, c)| p.classes().get(c.class));
        FlowReport {
            conn,
            traffic: ruled.traffic.clone(),
            choice: ruled.choice.clone(),
            class: class.map_or_else(String::new, |c| c.name.clone()),
            qps,
            facts,
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
        let port = self.network.reached_at.iter().find(|a| a.ip() == ip).map_or(0, SocketAddr::port);
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
        }
    }

    /// What the policy, if there is one, makes of this traffic.
    pub(crate) fn ruled(&self, traffic: Traffic) -> Ruled {
        let choice = self.policy().map(|p| p.choose(&traffic));
        Ruled { traffic, choice }
    }

    /// Settles by what algorithm a connection begins, as its options then say.
    pub(crate) fn rule(&self, local: Option<IpAddr>, remote: SocketAddr, o: &mut TransportOptions) -> Ruled {
        let mut ruled = self.ruled(self.traffic(Carrier::Native, local, remote, o));
        if let Some(c) = &mut ruled.choice {
            o.cc = usable(c, &o.cc);
            o.substitute.clone_from(&c.substitute);
            // What the peer may ask for is what the policy would let an application have.
            let names = cc::registry::names().into_iter().filter(|n| o.negotiation.allow.has(n));
            let allowed = names.filter(|n| self.permits(&ruled.traffic, n)).map(str::to_owned);
            o.negotiation.allow = Allow::Only(allowed.collect());
        }
        ruled
    }

    /// Whether the policy lets this traffic have what it asks for now.
    pub(crate) fn permits(&self, traffic: &Traffic, asked: &str) -> bool {
        let traffic = Traffic { asked: asked.to_owned(), ..traffic.clone() };
        self.policy().is_none_or(|p| p.choose(&traffic).algorithm == asked)
    }

    /// Settles the same of a connection by TCP: what the system is to call its algorithm, and its cap.
    pub(crate) fn rule_tcp(&self, remote: SocketAddr, o: &TransportOptions) -> (Ruled, Option<String>) {
        let ruled = self.ruled(self.traffic(Carrier::Tcp, None, remote, o));
        let name = ruled.choice.as_ref().and_then(|c| kernel_name(&c.algorithm));
        (ruled, name)
    }

    /// Makes a queue pair known to its connection, in the flow that suits what it asks for.
    ///
    /// # Errors
    /// An unknown algorithm, or too many flows.
    pub(crate) fn join_flow(
        &mut self,
        id: ConnId,
        qpn: u16,
        priority: u8,
        asked: &str,
        qos: Option<Qos>,
    ) -> Result<(), String> {
        let Some(c) = self.conns.get(&id) else { return Err("the connection is gone".to_owned()) };
        let Some(first) = c.flows.first() else { return Err("the connection has no flow".to_owned()) };
        let own = !asked.is_empty() || (qos.is_some() && self.governor.is_some());
        let traffic = Traffic {
            qos: qos.unwrap_or(first.traffic.qos),
            asked: if asked.is_empty() { first.traffic.asked.clone() } else { asked.to_owned() },
            ..first.traffic.clone()
        };
        let key = if own { key_of(asked, traffic.qos, qpn) } else { String::new() };
        let mut ruled = self.ruled(traffic);
        let fallback = if asked.is_empty() { c.connection.algorithm(0).unwrap_or_default() } else { asked };
        let spec = match &mut ruled.choice {
            Some(choice) => usable(choice, fallback),
            None => fallback.to_owned(),
        };
        let Some(c) = self.conns.get_mut(&id) else { return Ok(()) };
        let flow = c.connection.add_qp_as(qpn, priority, &key, &spec)?;
        let flow = usize::from(flow);
        match c.flows.get_mut(flow) {
            Some(f) if f.traffic == ruled.traffic => return Ok(()),
            // Nobody was in it any more.
            Some(f) if flow > 0 => *f = ruled,
            Some(_) => return Ok(()),
            None => c.flows.push(ruled),
        }
        self.obey(id, flow);
        Ok(())
    }

    /// Asks the policy again if it has changed.
    pub(crate) fn heed_policy(&mut self) {
        let Some(g) = &mut self.governor else { return };
        let version = g.policy.version();
        if g.applied.replace(version) == Some(version) {
            return;
        }
        let policy = g.policy.clone();
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            let Some(c) = self.conns.get_mut(&id).filter(|c| !c.closed) else { continue };
            let (remote, flows) = (c.connection.remote(), c.flows.len());
            for f in &mut c.flows {
                f.traffic.remote = remote;
                f.choice = Some(policy.choose(&f.traffic));
            }
            (0..flows).for_each(|i| self.obey(id, i));
            self.touch(id);
        }
        let all: Vec<ConnId> = self.hub.bundles.keys().copied().collect();
        for id in all {
            let Some(b) = self.hub.bundles.get_mut(&id) else { continue };
            let Some(ruled) = &mut b.ruled else { continue };
            ruled.choice = Some(policy.choose(&ruled.traffic));
            self.share_rate(id);
        }
    }

    /// Has a flow do as the policy says.
    pub(crate) fn obey(&mut self, id: ConnId, flow: usize) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let Some(choice) = c.flows.get_mut(flow).and_then(|f| f.choice.as_mut()) else { return };
        let now = c.connection.algorithm(flow as u8).unwrap_or_default().to_owned();
        let spec = usable(choice, &now);
        if let Err(error) = c.connection.set_algorithm(flow as u8, &spec) {
            tracing::warn!(rule = choice.rule, algorithm = spec, error, "a flow keeps its algorithm");
        }
        c.connection.set_flow_cap(flow as u8, choice.cap);
        c.connection.set_substitute(flow as u8, &choice.substitute);
    }
}

/// What queue pairs have in common that share a flow: what they ask for. Each promise of a time is one of its own.
pub(crate) fn key_of(asked: &str, qos: Qos, qpn: u16) -> String {
    match qos {
        Qos::Deadline { .. } => format!("{asked} {qos} {qpn}"),
        _ => format!("{asked} {qos}"),
    }
}

/// The algorithm that a choice comes down to: its own, or its substitute, or what there was where neither can be made (an
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
    let spec = [choice.algorithm.as_str(), choice.substitute.as_str()].into_iter().find(|s| can(s));
    let spec = spec.unwrap_or(before).to_owned();
    choice.why.extend(whys);
    spec
}
