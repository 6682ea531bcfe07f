//! Replaces an algorithm by its fallback while a path does not carry the signals that it needs.

use super::{ConnEvent, Connection, handshake};
use base::Time;
use cc::platform::Lack;
use cc::registry::{Marks, Needs};

/// How often the algorithm of a flow on a lane is changed for the path's sake at most, so that a path that comes and goes has
/// an end. The last one is to the fallback.
const MAX_CHANGES: u32 = 31;
/// Round trips for which a fallback stays at least; twice as many each time, up to the factor.
const STAYS: u64 = 4;
const STAYS_DOUBLED: u32 = 6;

/// The state of one flow's fallback on a lane.
#[derive(Clone, Copy, Debug, Default)]
struct FallbackState {
    /// Why the fallback decides.
    why: Option<Lack>,
    changes: u32,
    /// Until when it stays.
    until: Time,
}

/// The fallbacks of a lane, by flow.
#[derive(Clone, Debug, Default)]
pub struct FallbackStates(Vec<FallbackState>);

impl FallbackStates {
    /// Why the fallback decides for a flow; `None` if it does not.
    pub fn why(&self, flow: usize) -> Option<&'static str> {
        self.lack(flow).map(Lack::words)
    }

    /// The same, not in words.
    pub fn lack(&self, flow: usize) -> Option<Lack> {
        self.0.get(flow)?.why
    }

    fn any(&self) -> bool {
        self.0.iter().any(|s| s.why.is_some())
    }

    fn get(&mut self, flow: usize) -> &mut FallbackState {
        if self.0.len() <= flow {
            self.0.resize(flow + 1, FallbackState::default());
        }
        &mut self.0[flow]
    }
}

/// The signals that an algorithm needs of the path.
pub(super) fn signals_needed(spec: &str) -> Needs {
    cc::registry::parse(spec).map_or(Needs::NOTHING, |(def, _)| def.needs)
}

impl Connection {
    /// After feedback or a time-out on a lane: switches each flow to its fallback where the path lacks the signals
    /// it needs, and back where it carries them again.
    pub(super) fn update_fallbacks(&mut self, now: Time, lane: usize) {
        let l = &mut self.lanes[lane];
        // Both are asked, so that neither stays news.
        let news = l.ecn.take_changed() | l.telemetry.take_changed();
        if !news && !l.fallbacks.any() {
            if self.has_programs {
                self.check_cc_changes();
            }
            return;
        }
        let (path, rtt) = (l.capability(), l.rtt.smoothed());
        for flow in 0..self.flow_setups.len() {
            let lacks = path.lacks(&self.flow_setups[flow].needs);
            let s = *self.lanes[lane].fallbacks.get(flow);
            let next = match (s.why, lacks) {
                (None, Some(why)) if s.changes < MAX_CHANGES => Some(why),
                (Some(_), None) if s.changes < MAX_CHANGES && now >= s.until => None,
                _ => continue,
            };
            let setup = &self.flow_setups[flow];
            let spec = if next.is_some() { &setup.fallback } else { &setup.spec }.clone();
            if spec.is_empty() || self.switch_algorithm(lane, flow, &spec).is_err() {
                // There is no fallback, or none that can be made: what there is goes on with what there is.
                continue;
            }
            let s = self.lanes[lane].fallbacks.get(flow);
            s.changes += 1;
            s.until = now + rtt * (STAYS << (s.changes / 2).min(STAYS_DOUBLED));
            s.why = next;
            let lane = self.lanes[lane].id;
            let why = next.map(Lack::words);
            self.events.push_back(ConnEvent::FallbackChanged { lane, flow: flow as u8, spec, why });
        }
        self.check_cc_changes();
    }

    /// Another algorithm decides for one flow on one lane, from what was measured there.
    fn switch_algorithm(&mut self, lane: usize, flow: usize, spec: &str) -> Result<(), String> {
        let info = self.path_info_of_flow(lane, flow);
        let setup = &self.flow_setups[flow];
        let algorithm = if setup.spec == spec {
            setup.instance(&info, self.rng.fork())?
        } else {
            handshake::algorithm(spec, &setup.fallback, &info, self.rng.fork())?
        };
        self.lanes[lane].flows[flow].replace(algorithm);
        self.share_cap();
        Ok(())
    }

    /// A flow's algorithm was chosen anew: whether the path carries what it needs is asked again at the next report.
    pub(super) fn reset_fallback(&mut self, flow: usize) {
        self.lanes.iter_mut().for_each(|l| {
            *l.fallbacks.get(flow) = FallbackState::default();
            l.ecn.mark_changed();
        });
    }

    /// Sets the algorithm used while the path does not carry the signals that a flow's algorithm needs, or when that
    /// is a program that misbehaves; empty for none (and the default for a misbehaving program).
    pub fn set_fallback(&mut self, flow: u8, spec: &str) {
        if let Some(s) = self.flow_setups.get_mut(usize::from(flow)) {
            if s.fallback == spec {
                return;
            }
            spec.clone_into(&mut s.fallback);
            let spec = if spec == cc::registry::DEFAULT { "" } else { spec };
            self.lanes
                .iter_mut()
                .filter_map(|l| l.flows.get_mut(usize::from(flow)))
                .for_each(|f| f.set_fallback(spec));
        }
    }

    /// The ECN codepoint of a flow's next train on a lane.
    pub(super) fn codepoint(&mut self, now: Time, lane: usize, flow: usize) -> base::Ecn {
        let l = &mut self.lanes[lane];
        let running = l.flows[flow].codepoint();
        let chosen = match self.flow_setups[flow].needs.marks {
            Marks::L4s => base::Ecn::Ect1,
            Marks::Optional | Marks::Step => base::Ecn::Ect0,
        };
        let rtt = l.rtt.smoothed();
        // Where a fallback decides, what the chosen one would send is probed for.
        match l.ecn.codepoint(now, chosen, rtt) {
            base::Ecn::NotEct if running != chosen => l.ecn.codepoint(now, running, rtt),
            ecn => ecn,
        }
    }

    /// Bytes for telemetry in front of the next packet of a flow: none, unless its algorithm wants that and one is due.
    pub(super) fn telemetry_room(&self, now: Time, lane: usize, flow: usize) -> usize {
        if !self.flow_setups[flow].needs.telemetry || !self.peer_params.signals {
            return 0;
        }
        let l = &self.lanes[lane];
        if l.telemetry.is_due(now) { crate::lane::telemetry::room(l.mtu.current().into()) } else { 0 }
    }
}
