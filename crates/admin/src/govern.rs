//! The loop's side: an application with an administrator beside it.

use crate::desk::{Job, Order};
use crate::office::Office;
use crate::proto::{Answer, Decision, Flow, FlowId, MAX_LISTED, PathSignals};
use base::{Rate, Span, Time};
use cc::engine::Record;
use cc::platform::{Carrier, Choice};
use endpoint::{App, ConnId, Endpoint, FlowReport, Substitution};

/// Orders done in one turn: more wait for the next.
const PER_TURN: usize = 4;

/// An application whose endpoint an administrator watches and changes while it runs.
#[allow(missing_debug_implementations, reason = "the application need not show itself")]
pub struct Governed<'a> {
    app: &'a mut dyn App,
    office: Office,
    /// Who watches decisions: how often that had changed when it was looked at last, and which flow they want.
    taps: (u32, Option<Option<FlowId>>),
}

impl<'a> Governed<'a> {
    pub(crate) fn new(app: &'a mut dyn App, office: Office) -> Governed<'a> {
        Governed { app, office, taps: (0, None) }
    }

    /// Keeps in mind where another algorithm decides since a path lacks signals, and where no longer.
    fn tell_substitutions(&self, ep: &mut Endpoint) {
        if !ep.has_substitutions() {
            return;
        }
        for s in ep.take_substitutions() {
            let whose = match s.flow {
                Some(flow) => format!("flow {}", FlowId { connection: s.conn.0, flow: flow.into() }),
                None => format!("what the peer sends on connection {}", s.conn.0),
            };
            let Substitution { remote, from, to, why, .. } = s;
            let text = format!("{whose} (with {remote}): {to} decides instead of {from}: {}", why.words());
            self.office.board.tell("substitute", text);
        }
    }

    /// Hands decisions to those who watch them.
    fn show_decisions(&mut self, ep: &mut Endpoint) {
        let changes = self.office.taps.changes();
        if changes != self.taps.0 {
            self.taps = (changes, self.office.taps.wanted());
            ep.end_trace();
        }
        let Some(only) = self.taps.1 else { return };
        let only = only.map(|id| (ConnId(id.connection), u8::try_from(id.flow).unwrap_or(u8::MAX)));
        let taps = &self.office.taps;
        let missed = ep.take_trace(only, |conn, lane, flow, r| {
            let id = FlowId { connection: conn.0, flow: flow.into() };
            taps.offer(&decision(id, lane, &r), id);
        });
        taps.missed(missed);
    }
}

impl App for Governed<'_> {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        for _ in 0..PER_TURN {
            let Some(job) = self.office.desk.take() else { break };
            serve(job, ep);
        }
        self.app.drive(now, ep);
        self.tell_substitutions(ep);
        self.show_decisions(ep);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.app.next_timeout()
    }
    fn finished(&self) -> bool {
        self.app.finished()
    }
}

impl Drop for Governed<'_> {
    fn drop(&mut self) {
        self.office.desk.close();
    }
}

fn serve(job: Job, ep: &mut Endpoint) {
    let answer = match &job.order {
        Order::Flows => flows(ep),
        Order::Policy(policy) => {
            ep.set_policy(policy.clone());
            Answer::done("the policy is in force")
        }
        Order::SetFlow { flow, algorithm, cap } => {
            let number = u8::try_from(flow.flow).unwrap_or(u8::MAX);
            match ep.set_flow(ConnId(flow.connection), number, algorithm.as_deref(), *cap) {
                Ok(()) => Answer::done(format!("flow {flow} is changed, until the policy changes")),
                Err(text) => Answer::Refused { errors: vec![format!("{text}; see `longhaul cc show`")] },
            }
        }
    };
    job.done(answer);
}

fn flows(ep: &Endpoint) -> Answer {
    let all = ep.flows();
    let flows = all.iter().take(MAX_LISTED).map(|f| flow(ep, f)).collect();
    Answer::Flows { flows, left_out: all.len().saturating_sub(MAX_LISTED) }
}

fn flow(ep: &Endpoint, r: &FlowReport) -> Flow {
    let (t, f) = (&r.traffic, &r.facts);
    let stats = ep.stats(r.conn).unwrap_or_default();
    let chosen = |get: fn(&Choice) -> Option<Rate>| r.choice.as_ref().and_then(get).map(Rate::bits_per_sec);
    let is_anywhere = t.local.ip().is_unspecified() && t.local.port() == 0;
    Flow {
        id: FlowId { connection: r.conn.0, flow: f.flow.into() }.to_string(),
        carrier: t.carrier.name().into(),
        local: if is_anywhere { String::new() } else { t.local.to_string() },
        remote: t.remote.to_string(),
        application: t.application.clone(),
        qos: t.qos.to_string(),
        rule: r.choice.as_ref().map_or_else(String::new, |c| c.rule.clone()),
        class: r.class.clone(),
        weight: r.choice.as_ref().map_or(0, |c| c.weight),
        algorithm: if f.spec.is_empty() { f.name.into() } else { f.spec.clone() },
        running: f.name.into(),
        state: f.state.into(),
        change: f
            .change
            .as_ref()
            .map_or_else(String::new, |c| format!("{} instead of {}: {}", c.to, c.from, c.why.words())),
        peer_algorithm: r.peer.as_ref().map_or_else(String::new, |p| p.runs.chosen.clone()),
        peer_running: r.peer.as_ref().map_or_else(String::new, |p| name_of(p.runs.deciding())),
        rate_bits_per_second: f.rate.bits_per_sec(),
        cap_bits_per_second: f.cap.map(Rate::bits_per_sec),
        guarantee_bits_per_second: chosen(|c| c.guarantee),
        srtt_seconds: f.srtt.as_secs_f64(),
        min_rtt_seconds: f.min_rtt.as_secs_f64(),
        inflight_bytes: f.inflight,
        bound_bytes: Some(f.bound).filter(|_| t.carrier == Carrier::Native),
        delivered_bytes: f.delivered,
        loss: stats.packets_lost as f64 / stats.packets_sent.max(1) as f64,
        marked_packets: stats.ce_packets,
        signals: stats.paths.iter().map(PathSignals::new).collect(),
        why: r.choice.as_ref().map_or_else(Vec::new, |c| c.why.clone()),
    }
}

fn name_of(spec: &str) -> String {
    spec.split(':').next().unwrap_or_default().to_owned()
}

fn decision(id: FlowId, lane: u32, r: &Record) -> Decision {
    let s = r.signals.unwrap_or_default();
    Decision {
        flow: id.to_string(),
        lane,
        time: r.now.since(Time::ZERO).as_secs_f64(),
        what: r.what.into(),
        algorithm: r.algorithm.0.into(),
        state: r.algorithm.1.into(),
        rate_bits_per_second: r.decision.rate.bits_per_sec(),
        bound_bytes: r.decision.bound,
        inflight_bytes: r.inflight,
        acked_bytes: s.acked,
        lost_bytes: s.lost,
        marked_packets: s.ce_packets,
        rtt_seconds: s.rtt.map(Span::as_secs_f64),
        srtt_seconds: s.srtt.as_secs_f64(),
        queue_seconds: s.queue_delay.as_secs_f64(),
        delivery_bits_per_second: s.rate.map(|r| r.rate.bits_per_sec()),
    }
}
