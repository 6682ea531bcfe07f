//! The flows of a connection: which queue pairs share a congestion controller, which algorithm it runs, and what it
//! may send. A flow has one controller on each lane.

use super::cc_notifications::{CcChange, CcInUse};
use super::peer_preferences::PeerPreferences;
use super::{Connection, handshake};
use crate::lane::MAX_FLOWS;
use crate::negotiation::CcChangeReason;
use base::{Rate, Rng, Span, Time};
use cc::engine::{Flow, FlowId, Record, SharedTree};
use cc::registry::{Definition, Needs, Params};
use cc::{Algorithm, PathInfo};
use std::sync::Arc;

/// The settings of one flow, from which its controller on each lane is made.
#[derive(Clone, Debug)]
pub(super) struct FlowSetup {
    /// What the queue pairs that share this flow have in common; empty for the connection's own flow.
    pub key: String,
    /// Algorithm with parameters.
    pub spec: String,
    /// The same, parsed: used for further lanes, also after the name was removed or given to other code.
    pub made: Option<(&'static Definition, Params)>,
    /// The signals that the algorithm needs of the path.
    pub needs: Needs,
    /// The algorithm used while the path does not carry those signals; empty for none.
    pub fallback: String,
    /// What all its lanes together may send at most.
    pub cap: Option<Rate>,
    /// Differentiated-services code point of its packets, 0 to 63.
    pub dscp: u8,
    /// Its place in the tree of whoever divides what the host sends.
    pub share: Option<FlowId>,
    /// Whether it has requested a turn from the scheduler tree and not withdrawn the request.
    pub asks: bool,
    /// The congestion control in use when changes were last checked.
    pub last_reported: CcInUse,
    /// Why the algorithm was chosen.
    pub why: CcChangeReason,
    /// How what decides came to be another one, the last time.
    pub change: Option<CcChange>,
    /// Whether the algorithm comes and goes, and so may be stopped.
    pub is_program: bool,
    /// The preferences for the peer's congestion control on its queue pairs.
    pub preferences: Arc<PeerPreferences>,
}

impl FlowSetup {
    /// One that nobody limits.
    pub fn new(key: &str, spec: &str, fallback: &str) -> FlowSetup {
        let mut setup = FlowSetup {
            key: key.to_owned(),
            spec: String::new(),
            made: None,
            needs: Needs::NOTHING,
            fallback: fallback.to_owned(),
            cap: None,
            dscp: 0,
            share: None,
            asks: false,
            last_reported: CcInUse::default(),
            why: CcChangeReason::Agreed,
            change: None,
            is_program: false,
            preferences: Arc::default(),
        };
        setup.begin_with(spec);
        setup
    }

    /// Sets the chosen algorithm.
    fn choose(&mut self, spec: &str, why: CcChangeReason) {
        (self.spec, self.needs, self.why) = (spec.to_owned(), super::fallback::signals_needed(spec), why);
        self.made = cc::registry::parse(spec).ok();
        self.is_program = !cc::registry::is_built_in(spec.split(':').next().unwrap_or_default().trim());
    }

    /// Identifies the code of its algorithm among others of the same name: see [`Definition::code`].
    pub fn code(&self) -> &'static str {
        self.made.as_ref().map_or("", |(def, _)| def.code)
    }

    /// Whether it has been given this selection, and the code that its name stands for now.
    fn has(&self, spec: &str) -> bool {
        let name = spec.split(':').next().unwrap_or_default().trim();
        self.spec == spec && cc::registry::find(name).is_ok_and(|def| def.code == self.code())
    }

    /// An instance of its algorithm for one more path.
    ///
    /// # Errors
    /// It was never made: said in words.
    pub fn instance(&self, info: &PathInfo, rng: Rng) -> Result<Box<dyn Algorithm>, String> {
        let Some((def, params)) = &self.made else {
            return handshake::algorithm(&self.spec, &self.fallback, info, rng);
        };
        let mut made = def.make(params, info, rng);
        if self.fallback != cc::registry::DEFAULT {
            made.set_fallback(&self.fallback);
        }
        Ok(made)
    }

    /// Begins with this algorithm: there was none before.
    pub fn begin_with(&mut self, spec: &str) {
        self.choose(spec, CcChangeReason::Agreed);
        (self.last_reported, self.change) = (CcInUse::of(spec), None);
    }
}

/// Statistics of one flow, summed over its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    /// Its number; 0 is that of all queue pairs that asked for nothing of their own.
    pub flow: u8,
    /// Algorithm with parameters, as it was selected.
    pub spec: String,
    /// What tells its code from other code that was loaded by the same name; empty of what is built in.
    pub code: &'static str,
    /// The algorithm's name.
    pub name: &'static str,
    /// Its state in a word, for people.
    pub state: &'static str,
    /// At which rate it may send now, bytes on the wire.
    pub rate: Rate,
    /// Congestion window: how many bytes may be in flight.
    pub cwnd: u64,
    /// How many are.
    pub inflight: u64,
    /// Bytes delivered so far.
    pub delivered: u64,
    /// Packets that were declared lost and had arrived.
    pub spurious: u64,
    /// What it carried lately, as far as that was measured.
    pub carried: Option<Rate>,
    /// Smoothed round trip of the main lane; zero when not known.
    pub srtt: Span,
    /// Its lowest.
    pub min_rtt: Span,
    /// What it may send at most: the smaller of its own cap and the connection's.
    pub cap: Option<Rate>,
    /// Whether it has something to send.
    pub backlogged: bool,
    /// How its algorithm came to be another one than before, the last time.
    pub change: Option<CcChange>,
}

impl Connection {
    /// Makes a queue pair known to the scheduler. `cc` names an algorithm of its own; empty shares the
    /// connection's.
    ///
    /// # Errors
    /// An unknown algorithm or bad parameters, or too many different flows: said in words.
    pub fn add_qp(&mut self, qpn: u16, priority: u8, cc: &str) -> Result<(), String> {
        match cc {
            "" => self.scheduler.insert(qpn, 0, priority),
            _ => drop(self.add_qp_as(qpn, priority, cc, cc)?),
        }
        Ok(())
    }

    /// Makes a queue pair known to the scheduler, in the flow of all those that gave this key: a new one with the algorithm
    /// `spec` when it is the first. The number of the flow is returned.
    ///
    /// # Errors
    /// As [`Connection::add_qp`].
    pub fn add_qp_as(&mut self, qpn: u16, priority: u8, key: &str, spec: &str) -> Result<u8, String> {
        let flow = self.flow_of_key(None, key, spec)?;
        self.scheduler.insert(qpn, flow, priority);
        self.start_preference_search(qpn, flow);
        Ok(flow)
    }

    /// Moves a queue pair to the flow of all those that have this key, as [`Connection::add_qp_as`] has it. What it has in
    /// flight stays with the flow that it was in; a flow that nobody else is in goes on with it.
    ///
    /// # Errors
    /// As [`Connection::add_qp`].
    pub fn move_qp(&mut self, qpn: u16, key: &str, spec: &str) -> Result<u8, String> {
        let flow = self.flow_of_key(Some(qpn), key, spec)?;
        self.scheduler.move_to(qpn, flow);
        Ok(flow)
    }

    /// The flow of queue pairs that have this in common: one for all of them, so that asking again takes no larger share of
    /// the path. Where there is none, that of `qpn` if it is alone in it; else one that nobody is in; else a new one.
    fn flow_of_key(&mut self, qpn: Option<u16>, key: &str, spec: &str) -> Result<u8, String> {
        if let Some(i) = self.flow_setups.iter().position(|s| s.key == key) {
            return Ok(i as u8);
        }
        let index = self.flow_setups.len();
        let own = qpn.and_then(|q| self.scheduler.flow(q)).filter(|f| *f > 0);
        let own = own.filter(|f| self.scheduler.members_of(*f) == 1);
        if let Some(f) = own.or_else(|| (1..index as u8).find(|f| self.scheduler.members_of(*f) == 0)) {
            self.set_algorithm(f, spec, CcChangeReason::Agreed)?;
            let preferences = self.flow_setups[0].preferences.clone();
            let setup = &mut self.flow_setups[usize::from(f)];
            key.clone_into(&mut setup.key);
            if own.is_none() {
                // Another one's history.
                setup.begin_with(spec);
                setup.preferences = preferences;
            }
            return Ok(f);
        }
        if !self.has_flow_room() {
            return Err(format!("{MAX_FLOWS} algorithms are in use on this connection already: share one"));
        }
        // Where the host divides what it sends, a flow that joins others need not find out what they know of the path.
        let remembered = self.tree.as_ref().and_then(|_| self.remembered_path());
        let mut made = Vec::with_capacity(self.lanes.len());
        for i in 0..self.lanes.len() {
            let of_path = remembered.filter(|_| i == 0);
            let info = cc::PathInfo { remembered: of_path, ..self.path_info(i) };
            made.push(handshake::algorithm(spec, &self.options.fallback, &info, self.rng.fork())?);
        }
        let cap = self.rate_cap;
        for (l, algorithm) in self.lanes.iter_mut().zip(made) {
            l.flows.push(Flow::new(algorithm, cap));
        }
        let dscp = self.options.intent.dscp;
        let preferences = self.flow_setups[0].preferences.clone();
        let setup = FlowSetup::new(key, spec, &self.options.fallback);
        self.flow_setups.push(FlowSetup { dscp, preferences, ..setup });
        self.cc_notifications.mark_pending();
        self.note_programs();
        Ok(index as u8)
    }

    /// Whether queue pairs with this in common have a flow.
    pub fn has_flow(&self, key: &str) -> bool {
        self.flow_setups.iter().any(|s| s.key == key)
    }

    /// The flow that a queue pair is in.
    pub fn flow_of(&self, qpn: u16) -> Option<u8> {
        self.scheduler.flow(qpn)
    }

    /// The flow of a queue pair, or (`None`) of all that have none of their own.
    pub fn flow_of_own(&self, qpn: Option<u16>) -> Option<u8> {
        qpn.map_or(Some(0), |q| self.scheduler.flow(q))
    }

    /// Changes the algorithm of a flow on all lanes. Nothing in flight is lost, and the new algorithm starts from the
    /// measured rate. Without effect when it is in use already; a program that was reloaded under the same name is
    /// another one. The peer is notified, and [`ConnEvent::CcReplaced`](super::ConnEvent::CcReplaced) follows, unless
    /// both ends have agreed on it.
    ///
    /// # Errors
    /// No such flow, an unknown algorithm or bad parameters: said in words; the old one stays.
    pub fn set_algorithm(&mut self, flow: u8, spec: &str, why: CcChangeReason) -> Result<(), String> {
        let i = usize::from(flow);
        let Some(setup) = self.flow_setups.get(i) else { return Err(format!("there is no flow {flow}")) };
        if setup.has(spec) {
            return Ok(());
        }
        let mut made = Vec::with_capacity(self.lanes.len());
        for k in 0..self.lanes.len() {
            let info = self.path_info_of_flow(k, i);
            let fallback = &self.flow_setups[i].fallback;
            made.push(handshake::algorithm(spec, fallback, &info, self.rng.fork())?);
        }
        for (l, algorithm) in self.lanes.iter_mut().zip(made) {
            l.flows[i].replace(algorithm);
        }
        self.flow_setups[i].choose(spec, why);
        self.cc_notifications.mark_pending();
        self.note_programs();
        self.reset_fallback(i);
        self.share_cap();
        Ok(())
    }

    /// Whether there are programs among the algorithms: they are looked at more often.
    pub(super) fn note_programs(&mut self) {
        self.has_programs = self.flow_setups.iter().any(|s| s.is_program);
    }

    /// The path information for an algorithm that takes over a flow on a lane.
    pub(super) fn path_info_of_flow(&self, lane: usize, flow: usize) -> cc::PathInfo {
        let known = self.path_info(lane);
        let (rtt, current) = (self.lanes[lane].rtt.min(), self.lanes[lane].flows[flow].current());
        cc::PathInfo {
            handshake_rtt: Some(rtt).filter(|r| !r.is_zero()).or(known.handshake_rtt),
            known_rate: current.or(known.known_rate),
            ..known
        }
    }

    /// The algorithm of a flow, with parameters, as it was selected.
    pub fn algorithm(&self, flow: u8) -> Option<&str> {
        self.flow_setups.get(usize::from(flow)).map(|s| s.spec.as_str())
    }

    /// Sets the cap of a flow over all its lanes, beside the cap on the whole connection.
    pub fn set_flow_cap(&mut self, flow: u8, cap: Option<Rate>) {
        if let Some(s) = self.flow_setups.get_mut(usize::from(flow))
            && core::mem::replace(&mut s.cap, cap) != cap
        {
            self.share_cap();
        }
    }

    /// Sets the code point of a flow's packets, 0 to 63. Control packets of the connection use that of its own flow.
    pub fn set_flow_dscp(&mut self, flow: u8, dscp: u8) {
        if let Some(s) = self.flow_setups.get_mut(usize::from(flow)) {
            s.dscp = dscp & 0x3f;
        }
    }

    /// Sets the scheduler tree that is asked before a flow sends; `None` for none.
    pub fn set_tree(&mut self, tree: Option<SharedTree>) {
        self.tree = tree;
        if self.tree.is_none() {
            self.flow_setups.iter_mut().for_each(|s| (s.share, s.asks) = (None, false));
        }
    }

    /// The place of a flow in the tree; `None`: it sends unasked.
    pub fn set_share(&mut self, flow: u8, share: Option<FlowId>) {
        if let Some(s) = self.flow_setups.get_mut(usize::from(flow)) {
            s.share = share;
        }
    }

    /// Asks the scheduler tree of the host for permission to send a train of a flow.
    ///
    /// # Errors
    /// When to ask again, unless called before.
    pub(super) fn ask_tree(&mut self, now: Time, flow: usize, bytes: u64) -> Result<(), Time> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let s = &mut self.flow_setups[flow];
        let Some(share) = s.share else { return Ok(()) };
        s.asks = true;
        tree.lock().ask(now, share, bytes)
    }

    /// A flow has nothing to send, or may not.
    pub(super) fn leave_tree(&mut self, now: Time, flow: usize) {
        let Some(tree) = &self.tree else { return };
        let s = &mut self.flow_setups[flow];
        if core::mem::take(&mut s.asks)
            && let Some(share) = s.share
        {
            tree.lock().leave(now, share);
        }
    }

    /// A train did not need all that the tree permitted.
    pub(super) fn refund_tree(&mut self, flow: usize, bytes: u64) {
        if let (Some(tree), Some(share), 1..) = (&self.tree, self.flow_setups[flow].share, bytes) {
            tree.lock().refund(share, bytes);
        }
    }

    /// The administrator's cap on this end's sending rate, all flows together.
    pub fn rate_cap(&self) -> Option<Rate> {
        self.rate_cap
    }

    /// The administrator's cap on this end's sending rate, from now on.
    pub fn set_rate_cap(&mut self, cap: Option<Rate>) {
        self.rate_cap = cap;
        self.share_cap();
    }

    /// Whether the pacers of a flow, one on each lane, hold its caps and no others.
    pub fn enforces_cap(&self, flow: u8) -> bool {
        let own = self.flow_setups.get(usize::from(flow)).and_then(|s| s.cap);
        let told = self.rate_cap.into_iter().chain(own).min();
        let mut held = self.lanes.iter().filter_map(|l| l.flows.get(usize::from(flow))).map(Flow::cap);
        held.all(|held| match (held, told) {
            (None, None) => true,
            // A part of it, where several share it.
            (Some(held), Some(told)) => held <= told,
            _ => false,
        })
    }

    /// Splits the cap on this end's sending over the flows of all lanes that carry data, by what each could carry, and each
    /// flow's own over its lanes: all together keep them. A flow that sends nothing has the whole of it, until it begins.
    pub(super) fn share_cap(&mut self) {
        let caps = self.rate_cap.is_some() || self.flow_setups.iter().any(|s| s.cap.is_some());
        // Called after each report: mostly there is nothing to split, and nothing to take away.
        if !core::mem::replace(&mut self.capped, caps) && !caps {
            return;
        }
        let carries: Vec<bool> = (0..self.lanes.len()).map(|i| self.carries_data(i)).collect();
        let alone = self.lanes.len() == 1 && self.lanes[0].flows.len() == 1;
        let scheduler = &self.scheduler;
        let sends = |f: &Flow, i: usize| f.inflight() > 0 || scheduler.is_ready(i as u8);
        let wanted = |f: &Flow| u128::from(f.wanted().bytes_per_sec().max(1));
        // What of each flow's lanes send could carry, and all together.
        let mut sums = vec![0; self.flow_setups.len()];
        for (l, _) in self.lanes.iter().zip(&carries).filter(|(_, c)| **c) {
            for ((i, f), sum) in l.flows.iter().enumerate().zip(&mut sums).filter(|((i, f), _)| sends(f, *i))
            {
                debug_assert!(i < MAX_FLOWS);
                *sum += wanted(f);
            }
        }
        let all: u128 = sums.iter().sum();
        for (l, carries) in self.lanes.iter_mut().zip(&carries) {
            for (i, f) in l.flows.iter_mut().enumerate() {
                let part = |cap: Rate, of: u128| match alone || !carries || !sends(f, i) {
                    true => cap,
                    false => portion(cap, wanted(f), of),
                };
                let of_all = self.rate_cap.map(|cap| part(cap, all));
                let of_flow = self.flow_setups[i].cap.map(|cap| part(cap, sums[i]));
                let cap = of_all.into_iter().chain(of_flow).min();
                f.set_cap(cap);
            }
        }
    }

    /// Statistics of each flow.
    pub fn flow_stats(&self) -> impl Iterator<Item = FlowStats> + '_ {
        let main = &self.lanes[self.main_lane()];
        self.flow_setups.iter().enumerate().map(move |(i, s)| {
            let lanes = || self.lanes.iter().map(move |l| &l.flows[i]);
            let carrying = (0..self.lanes.len()).filter(|k| self.carries_data(*k));
            let decided = carrying.map(|k| self.lanes[k].flows[i].decision());
            let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0, u64::saturating_add);
            let (rate, cwnd) = decided.fold((0_u64, 0_u64), |(r, w), d| {
                (r.saturating_add(d.rate.bytes_per_sec()), w.saturating_add(d.cwnd))
            });
            let carried = sum(&mut lanes().filter_map(Flow::current).map(Rate::bytes_per_sec));
            let (name, state) = main.flows[i].describe();
            FlowStats {
                flow: i as u8,
                spec: s.spec.clone(),
                code: s.code(),
                name,
                state,
                rate: Rate::from_bytes_per_sec(rate),
                cwnd,
                inflight: sum(&mut lanes().map(Flow::inflight)),
                delivered: sum(&mut lanes().map(Flow::delivered)),
                spurious: sum(&mut lanes().map(Flow::spurious)),
                carried: (carried > 0).then(|| Rate::from_bytes_per_sec(carried)),
                srtt: main.rtt.smoothed(),
                min_rtt: main.rtt.min(),
                cap: s.cap.into_iter().chain(self.rate_cap).min(),
                backlogged: self.scheduler.is_ready(i as u8),
                change: s.change.clone(),
            }
        })
    }

    /// Bytes that each flow has delivered so far, by its number.
    pub fn delivered(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        (0..self.flow_setups.len()).map(|i| {
            (i as u8, self.lanes.iter().map(|l| l.flows[i].delivered()).fold(0, u64::saturating_add))
        })
    }

    /// Returns the inputs and decisions of the algorithms of flow `only`, or of all, since the last call, with lane
    /// and flow; and starts recording them. Returns how many were not recorded.
    pub fn take_trace(&mut self, only: Option<u8>, out: &mut dyn FnMut(u32, u8, Record)) -> u64 {
        let mut missed = 0;
        for (lane, l) in (0_u32..).zip(&mut self.lanes) {
            for (i, f) in (0_u8..).zip(&mut l.flows).filter(|(i, _)| only.is_none_or(|o| o == *i)) {
                missed += f.take_trace(&mut |r| out(lane, i, r));
            }
        }
        missed
    }

    /// Stops recording them.
    pub fn end_trace(&mut self) {
        self.lanes.iter_mut().flat_map(|l| &mut l.flows).for_each(Flow::end_trace);
    }

    /// Makes the first flow anew, for a path of which the handshake has told.
    pub(super) fn recreate_first_flow(&mut self) -> Result<(), String> {
        let info = cc::PathInfo { remembered: self.options.remembered, ..self.path_info(0) };
        let first = self.flow_setups[0].instance(&info, self.rng.fork())?;
        self.lanes[0].flows[0] = Flow::new(first, self.rate_cap);
        self.share_cap();
        Ok(())
    }
}

/// A flow's part of a cap, at least a byte per second: `demand` of what all of them want.
fn portion(cap: Rate, demand: u128, all: u128) -> Rate {
    let part = u128::from(cap.bytes_per_sec()) * demand / all.max(1);
    Rate::from_bytes_per_sec(u64::try_from(part).unwrap_or(u64::MAX).max(1)).min(cap)
}
