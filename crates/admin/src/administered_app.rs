//! Wraps an application so that administrators can observe and change its flows while it runs.

use crate::event_text;
use crate::proto::{Decision, Flow, FlowId, MAX_ERRORS, MAX_LISTED, PathSignals, Program, Response};
use crate::rate_meter::RateMeter;
use crate::request_handler::{OWN, RequestHandler};
use crate::request_queue::{LoopRequest, QueuedRequest};
use base::{Rate, Span, Time};
use cc::engine::Record;
use cc::platform::Carrier;
use endpoint::{App, CapSource, Compliance, ConnId, Endpoint, FlowReport, ProgramReload, StreamStats};
use observe::{Event, Reader};

/// Orders done in one turn: more wait for the next.
const PER_TURN: usize = 4;
/// How long the system may take to say that it does what it was told.
const CONFIRMED_WITHIN: Span = Span::from_secs(2);
/// How often that is looked at where nothing else happens.
const LOOK_EVERY: Span = Span::from_millis(20);

/// An application whose endpoint administrators observe and change while it runs.
#[allow(missing_debug_implementations, reason = "the application need not show itself")]
pub struct AdministeredApp<'a> {
    app: &'a mut dyn App,
    administration: Administration,
}

/// The same without the application, which is given with each turn.
#[allow(missing_debug_implementations, reason = "it is what one loop keeps from turn to turn")]
pub struct Administration {
    handler: RequestHandler,
    /// Who watches decisions: how often that had changed when it was looked at last, and which flow they want.
    subscriptions: (u32, Option<Option<FlowId>>),
    /// Changes of which it is not known yet whether they act, and until when that is waited for.
    unconfirmed: Vec<(QueuedRequest, Time)>,
    /// When to look at them next, unless something happens before.
    look: Time,
    meter: RateMeter,
    /// What happens to connections; `None` before the first turn.
    events: Option<Reader>,
}

impl<'a> AdministeredApp<'a> {
    pub(crate) fn new(app: &'a mut dyn App, handler: RequestHandler) -> AdministeredApp<'a> {
        AdministeredApp { app, administration: Administration::new(handler) }
    }
}

impl Administration {
    pub(crate) fn new(handler: RequestHandler) -> Administration {
        let (unconfirmed, meter) = (Vec::new(), RateMeter::default());
        Administration {
            handler,
            subscriptions: (0, None),
            unconfirmed,
            look: Time::ZERO,
            meter,
            events: None,
        }
    }

    /// Drives an application, and does what administrators ask for.
    pub fn drive(&mut self, now: Time, ep: &mut Endpoint, app: &mut dyn App) {
        self.events.get_or_insert_with(|| ep.log().subscribe());
        self.confirm(now, ep);
        for _ in 0..PER_TURN {
            let Some(job) = self.handler.queue.take() else { break };
            let waits = serve(job, now, ep, &self.meter);
            self.unconfirmed.extend(waits.map(|job| (job, now + CONFIRMED_WITHIN)));
        }
        app.drive(now, ep);
        self.report_events(ep);
        self.deliver_decisions(now, ep);
        if self.meter.is_due(now) {
            self.meter.sample(now, ep.delivered().map(|(conn, flow, bytes)| ((conn.0, flow), bytes)));
        }
    }

    /// When it wants a turn although nothing happens.
    pub fn next_timeout(&self) -> Option<Time> {
        Some(self.look).filter(|_| !self.unconfirmed.is_empty())
    }

    /// Records what happened to connections, their paths, queue pairs and algorithms.
    fn report_events(&mut self, ep: &mut Endpoint) {
        let Some(reader) = &mut self.events else { return };
        if !ep.log().has_news(reader) {
            return;
        }
        let (missed, news) = ep.log().read(reader);
        let news: Vec<Event> = news.cloned().collect();
        if missed > 0 {
            let text = format!("{missed} events came faster than they could be recorded, and are lost");
            self.handler.process_state.record_connection_event("connection", text);
        }
        for e in &news {
            let remote = ep.connection(ConnId(e.connection)).map(|i| i.remote);
            if let Some((kind, text)) = event_text::describe(e, remote) {
                self.handler.process_state.record_connection_event(kind, text);
            }
        }
    }

    /// Answers those whose changes are known to act, or not to.
    fn confirm(&mut self, now: Time, ep: &Endpoint) {
        self.look = now + LOOK_EVERY;
        for (job, until) in core::mem::take(&mut self.unconfirmed) {
            match outcome(&job.request, ep) {
                Some(answer) => job.respond(answer),
                None if now < until => self.unconfirmed.push((job, until)),
                None => job.respond(Response::Refused {
                    errors: vec![
                        "it is ordered, and the system has not confirmed it within 2 s: see `longhaul cc show`".into(),
                    ],
                }),
            }
        }
    }

    /// Hands decisions to those who watch them.
    fn deliver_decisions(&mut self, now: Time, ep: &mut Endpoint) {
        let changes = self.handler.subscriptions.changes();
        if changes != self.subscriptions.0 {
            self.subscriptions = (changes, self.handler.subscriptions.watched());
            ep.end_trace();
        }
        let Some(only) = self.subscriptions.1 else { return };
        let only = only.map(|id| (ConnId(id.connection), u8::try_from(id.flow).unwrap_or(u8::MAX)));
        let subscriptions = &self.handler.subscriptions;
        ep.take_stream_samples(only.filter(|o| o.1 == 0).map(|o| o.0), |conn, stream, before, now_said| {
            let id = FlowId { connection: conn.0, flow: 0 };
            subscriptions.publish(&sample(now, id, stream, before, now_said), id);
        });
        let missed = ep.take_trace(only, |conn, lane, flow, r| {
            let id = FlowId { connection: conn.0, flow: flow.into() };
            subscriptions.publish(&decision(id, lane, &r), id);
        });
        subscriptions.add_missed(missed);
    }
}

impl App for AdministeredApp<'_> {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        self.administration.drive(now, ep, self.app);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.app.next_timeout().into_iter().chain(self.administration.next_timeout()).min()
    }
    fn finished(&self) -> bool {
        self.app.finished()
    }
}

impl Drop for Administration {
    fn drop(&mut self) {
        self.handler.queue.close();
    }
}

/// Carries an order out. It is given back if only the next turns can tell whether it is done.
fn serve(job: QueuedRequest, now: Time, ep: &mut Endpoint, meter: &RateMeter) -> Option<QueuedRequest> {
    let answer = match &job.request {
        LoopRequest::Flows => flows(now, ep, meter),
        LoopRequest::Policy(policy) => {
            ep.set_policy(policy.clone());
            return Some(job);
        }
        LoopRequest::Programs(programs) => count(programs.clone(), ep),
        LoopRequest::Renew(name) => reload_result(&ep.reload_program(name), name),
        LoopRequest::SetFlow { flow, algorithm, cap } => {
            let number = u8::try_from(flow.flow).unwrap_or(u8::MAX);
            match ep.set_flow(ConnId(flow.connection), number, algorithm.as_deref(), *cap) {
                Ok(()) => return Some(job),
                Err(text) => Response::Refused { errors: vec![format!("{text}; see `longhaul cc show`")] },
            }
        }
    };
    job.respond(answer);
    None
}

/// What became of a change, as read back from where it acts; `None`: that is not known yet.
fn outcome(request: &LoopRequest, ep: &Endpoint) -> Option<Response> {
    let (heeded, done) = match request {
        // Answered at once.
        LoopRequest::Flows | LoopRequest::Programs(_) | LoopRequest::Renew(_) => return None,
        LoopRequest::Policy(_) => {
            let text = "the policy is in force".to_owned();
            (ep.overall_compliance(), Response::Done { text, warnings: ep.tcp_remarks() })
        }
        LoopRequest::SetFlow { flow, cap, .. } => {
            let (conn, number) = (ConnId(flow.connection), u8::try_from(flow.flow).unwrap_or(u8::MAX));
            let mut text = format!("flow {flow} is changed, until the policy changes");
            // A cap that is not the smallest changes nothing.
            if let (Some(cap), Some((least, whose))) = (cap, ep.cap_source(conn, number))
                && whose != CapSource::Own
                && cap.is_none_or(|cap| least < cap)
            {
                text.push_str(&format!("; {whose} still keeps it to {least}"));
            }
            (ep.compliance(conn, number), Response::done(text))
        }
    };
    match heeded {
        Compliance::Unknown => None,
        Compliance::Met => Some(done),
        Compliance::Violated(why) => {
            Some(Response::Refused { errors: vec![format!("it is ordered and not done: {why}")] })
        }
    }
}

/// What became of flows whose program was loaded anew.
fn reload_result(r: &ProgramReload, name: &str) -> Response {
    let text = match r.moved.len() {
        0 => "no flow ran another code of it".to_owned(),
        1 => "1 flow that ran another code of it runs this one now".to_owned(),
        n => format!("{n} flows that ran another code of it run this one now"),
    };
    let kept = |(conn, flow, why): &(ConnId, u8, String)| {
        let id = FlowId { connection: conn.0, flow: (*flow).into() };
        format!(
            "flow {id} still runs the code it had: {why}; try `longhaul cc set --flow {}/{id} --cc {name}`",
            std::process::id()
        )
    };
    Response::Done { text, warnings: r.kept.iter().take(MAX_ERRORS).map(kept).collect() }
}

/// Counts which flows run these programs, and which were to.
fn count(mut programs: Vec<Program>, ep: &Endpoint) -> Response {
    let flows = ep.flows();
    let begins = name_of(ep.initial_algorithm());
    for p in &mut programs {
        for f in &flows {
            let runs = name_of(&f.facts.spec) == p.name;
            p.flows += u64::from(runs && f.facts.code == p.hash);
            p.flows_on_other_version += u64::from(runs && f.facts.code != p.hash);
            p.flows_on_fallback += u64::from(missing(f) == p.name);
        }
        if begins == p.name {
            p.required_by.push(OWN.to_owned());
        }
    }
    Response::Programs { programs }
}

/// What the policy chose for a flow and nobody can have, so that another algorithm decides; empty: nothing.
fn missing(r: &FlowReport) -> String {
    let chosen = r.choice.as_ref().map_or_else(String::new, |c| name_of(&c.algorithm));
    let is_missing = r.traffic.carrier == Carrier::Native
        && name_of(&r.facts.spec) != chosen
        && cc::registry::find(&chosen).is_err();
    if is_missing { chosen } else { String::new() }
}

fn flows(now: Time, ep: &Endpoint, meter: &RateMeter) -> Response {
    let all = ep.flows();
    let flows = all.iter().take(MAX_LISTED).map(|f| flow(now, ep, meter, f)).collect();
    Response::Flows { flows, omitted: all.len().saturating_sub(MAX_LISTED) }
}

/// The smallest of the caps that hold for a flow, and whose it is.
fn cap(ep: &Endpoint, r: &FlowReport) -> Option<(Rate, String)> {
    let (cap, of) = ep.cap_source(r.conn, r.facts.flow)?;
    let by = match of {
        CapSource::Limit => "limit".to_owned(),
        CapSource::Own => "cc set".to_owned(),
        CapSource::Rule(name) if name.is_empty() => "policy".to_owned(),
        CapSource::Rule(name) => format!("rule {name}"),
        CapSource::Class(name) => format!("class {name}"),
        CapSource::Process => "process".to_owned(),
    };
    Some((cap, by))
}

/// How many windows a pacer would send in a round trip for which it is said to limit nothing: no algorithm that paces is so far
/// above what it lets be in flight.
const UNPACED: u64 = 8;

/// The rate at which packets of a flow leave; `None` where only the window limits. TCP holds back by a rate where there is a
/// cap, and by itself with BBR; what else it reports as its pacing rate only holds with the queueing discipline fq, which it
/// does not tell of.
fn pacing(r: &FlowReport, cap: Option<Rate>) -> Option<Rate> {
    let f = &r.facts;
    let paces = match r.traffic.carrier {
        Carrier::Native => {
            f.srtt.is_zero() || f.rate <= Rate::from_bytes_in(f.cwnd.saturating_mul(UNPACED), f.srtt)
        }
        _ => f.spec.starts_with("bbr"),
    };
    // Where a class or the host is the cap, whoever divides what the host sends holds the flow back and not its own pacer.
    let own = paces.then_some(f.rate);
    own.into_iter().chain(cap).min().filter(|rate| *rate != Rate::MAX)
}

fn flow(now: Time, ep: &Endpoint, meter: &RateMeter, r: &FlowReport) -> Flow {
    let (t, f) = (&r.traffic, &r.facts);
    let stats = ep.stats(r.conn).unwrap_or_default();
    let guarantee = r.choice.as_ref().and_then(|c| c.guarantee);
    let is_anywhere = t.local.ip().is_unspecified() && t.local.port() == 0;
    let (cap, cap_source) = cap(ep, r).unzip();
    let (delivered, over) = meter.rate(now, (r.conn.0, f.flow), f.delivered).unzip();
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
        program_hash: f.code.into(),
        not_loaded: missing(r),
        running: f.name.into(),
        state: f.state.into(),
        last_change: f
            .change
            .as_ref()
            .map_or_else(String::new, |c| format!("{} instead of {}: {}", c.to, c.from, c.why.words())),
        peer_algorithm: r.peer.as_ref().map_or_else(String::new, |p| p.runs.chosen.clone()),
        peer_running: r.peer.as_ref().map_or_else(String::new, |p| name_of(p.runs.effective())),
        delivered_bits_per_second: delivered.map(Rate::bits_per_sec),
        delivered_over_seconds: over.map_or(0.0, Span::as_secs_f64),
        pacing_bits_per_second: pacing(r, cap).map(Rate::bits_per_sec),
        cap_bits_per_second: cap.map(Rate::bits_per_sec),
        cap_source: cap_source.unwrap_or_default(),
        guarantee_bits_per_second: guarantee.map(Rate::bits_per_sec),
        srtt_seconds: f.srtt.as_secs_f64(),
        min_rtt_seconds: f.min_rtt.as_secs_f64(),
        inflight_bytes: f.inflight,
        cwnd_bytes: Some(f.cwnd).filter(|_| t.carrier == Carrier::Native),
        delivered_bytes: f.delivered,
        loss_share: stats.packets_lost as f64 / stats.packets_sent.max(1) as f64,
        marked_packets: stats.ce_packets,
        signals: stats.paths.iter().map(PathSignals::new).collect(),
        reasons: r.choice.as_ref().map_or_else(Vec::new, |c| c.why.clone()),
    }
}

/// What the system's TCP said of a stream, as a decision: it is asked ten times a second, and tells no reasons.
fn sample(now: Time, id: FlowId, stream: u32, before: &StreamStats, f: &StreamStats) -> Decision {
    let since = |get: fn(&StreamStats) -> u64| get(f).saturating_sub(get(before));
    Decision {
        flow: id.to_string(),
        lane: stream,
        time: now.since(Time::ZERO).as_secs_f64(),
        trigger: "tcp".into(),
        algorithm: f.congestion.clone(),
        state: String::new(),
        rate_bits_per_second: f.rate.bits_per_sec(),
        cwnd_bytes: f.window,
        inflight_bytes: f.inflight,
        acked_bytes: since(|f| f.acked),
        lost_bytes: since(|f| f.again),
        marked_packets: since(|f| f.marked),
        rtt_seconds: None,
        srtt_seconds: f.srtt.as_secs_f64(),
        queue_seconds: (f.srtt - f.min_rtt).as_secs_f64(),
        delivery_bits_per_second: Some(f.delivery.bits_per_sec()),
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
        trigger: r.what.into(),
        algorithm: r.algorithm.0.into(),
        state: r.algorithm.1.into(),
        rate_bits_per_second: r.decision.rate.bits_per_sec(),
        cwnd_bytes: r.decision.cwnd,
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
