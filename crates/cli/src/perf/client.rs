//! `longhaul perf client`.

use super::control::Control;
use super::intervals::Intervals;
use super::load::Load;
use super::proto::{ATOMIC_LEN, Figures, Message, Plan, VERSION};
use super::silence::SilenceDetector;
use crate::args::{Encryption, Operation, PERF_PORT, PerfClient, Polling};
use crate::exit::{self, Code, Failure, Outcome};
use crate::setup::{self, LocalIdentity};
use crate::url::Server;
use crate::{govern, out, remedy, show, stop, trust};
use base::{Span, Time};
use endpoint::{App, ConnId, Connect, Endpoint, Event, IwarpInfo, Stats};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::crypto::{PeerIdentity, Suite};
use transport::error::code;
use verbs::{CqId, Status};

/// Bytes under way on all streams at most unless the user says otherwise.
const UNDER_WAY: u64 = 64 << 20;
/// Memory of each queue pair unless the user says otherwise, and of all of them together, but two messages each: what a server
/// gives a client beside others.
const REGION: u64 = 64 << 20;
const REGIONS: u64 = 256 << 20;
/// Size of a message unless the user says otherwise; and for latency.
const SIZE: u64 = 1 << 20;
const PING: u64 = 64;

/// Measures.
pub fn run(a: &PerfClient) -> Outcome<()> {
    out::set_quiet(a.output.quiet);
    let me = LocalIdentity::with(&a.connect_options.certificate)?;
    let plan = plan(a);
    plan.check().map_err(Failure::usage)?;
    let mut options = setup::options(&a.wire, Some(&a.sending), Some(&a.connect_options));
    options.initial_qps = a.streams + 1;
    if let Some(s) = a.suite {
        (options.suites, options.module) = (vec![s], s.module());
    }
    let trusted = trust::establish(&me, &a.server, &a.connect_options, &options)?;
    let polls = a.loop_options.poll != Polling::Sleep;
    let bind = setup::client_address(trusted.remote, &options, polls);
    let mut driver = setup::driven(bind, &a.wire, &a.loop_options, (false, None))?;
    let mut endpoint = me.endpoint(&trusted.credentials, trusted.within_deadline(&options), None)?;
    let waker = driver.waker();
    let admin = govern::start("perf client", &a.admin_options, &me, driver.waker())?;
    let stop = stop::wakes(&waker)?;
    let shown = !a.output.quiet && !a.output.json;
    let mut app = Client::new(trusted.connect(), plan, a.interval, shown, stop);
    app.encryption = a.suite.is_none().then_some(a.wire.encryption);
    driver.run(&mut endpoint, &mut admin.govern(&mut app))?;
    if trusted.token.is_some() {
        trust::remember(&me, &a.server, app.peer.as_ref())?;
    }
    if let Some(f) = app.failure.take() {
        if f.peer == Some(mover::OTHER_SERVICE) {
            return Err(files_only(&a.server, f));
        }
        let changed = (f.code == Code::Untrusted && app.peer.is_none())
            .then(|| trust::explain(&me, &a.server, &trusted, &options))
            .flatten();
        let f = match f.code {
            Code::Connect => Failure { text: format!("cannot connect to {}: {f}", a.server), ..f },
            _ => f,
        };
        return Err(changed.unwrap_or_else(|| remedy::explain(f, trusted.trust_context())));
    }
    let (Some(ours), Some(theirs)) = (&app.ours, &app.theirs) else {
        return Err(Failure::new(Code::Interrupted, "interrupted before there was a result"));
    };
    let report = report(&app, ours, theirs);
    if a.output.json {
        out::json(&report);
    } else if !a.output.quiet {
        let by = app.iwarp.as_ref().map(show::describe_iwarp);
        let by = by.as_deref().or(report["suite"].as_str()).unwrap_or("");
        print(&app.plan, &report, by, ours.latency.or(theirs.latency));
        // Of the end that sends: what was asked of it, or what its administrator's rule says.
        let asked = a.sending.intent.asks() || a.admin_options.policy.is_some();
        let source = source(&app.plan, ours, theirs);
        if let Some(m) = source.policy.as_ref().filter(|m| asked || !m.rule.is_empty()) {
            out_line!("{m}");
        }
    }
    if [ours, theirs].iter().any(|f| f.verified == Some(false)) {
        return Err(Failure::new(
            Code::Partial,
            "cannot verify the data: received and sent data differ; try again, \
             and suspect memory or hardware",
        ));
    }
    Ok(())
}

/// The server is no `longhaul perf server`.
fn files_only(server: &Server, f: Failure) -> Failure {
    let text = format!(
        "cannot measure with {server}: it is a file server (longhaul serve), not `longhaul perf server`; try the port of \
         `longhaul perf server` ({PERF_PORT} unless it was told another), or start one there"
    );
    Failure { text, ..f }
}

fn plan(a: &PerfClient) -> Plan {
    let usual = match a.operation {
        o if o.is_atomic() => ATOMIC_LEN,
        _ if a.latency => PING,
        _ => SIZE,
    };
    let size = a.size.unwrap_or(usual);
    let under_way = UNDER_WAY / size.max(1) / u64::from(a.streams);
    Plan {
        version: VERSION,
        operation: a.operation,
        latency: a.latency,
        size,
        streams: a.streams,
        depth: a.depth.unwrap_or(under_way.clamp(2, 4_096) as u32),
        grows: a.depth.is_none(),
        nanos: a.time.as_nanos(),
        messages: a.bytes.map(|b| b.div_ceil(size.max(1))),
        // Of atomic operations little is under way, and what they changed is compared with what was counted.
        stop: a.bytes.is_none() && !a.operation.is_atomic(),
        reverse: a.reverse,
        region: a
            .region
            .unwrap_or_else(|| (REGIONS / u64::from(a.streams)).min(REGION).max(2 * size))
            .max(size),
        verify: a.verify,
        rkeys: Vec::new(),
    }
}

struct Client {
    connect: Option<Connect>,
    plan: Plan,
    stop: Arc<AtomicBool>,
    conn: Option<ConnId>,
    cq: Option<CqId>,
    control: Option<Control>,
    load: Option<Load>,
    running: bool,
    peer: Option<PeerIdentity>,
    suite: Option<Suite>,
    /// What the user asked for, where no suite was named.
    encryption: Option<Encryption>,
    /// What is particular to a connection by iWARP, as it was last.
    iwarp: Option<IwarpInfo>,
    ours: Option<Figures>,
    theirs: Option<Figures>,
    failure: Option<Failure>,
    closed: bool,
    intervals: Intervals,
    silence: SilenceDetector,
    /// Bytes that the initiator counted, and no less than this end saw.
    total: u64,
}

impl Client {
    fn new(connect: Connect, plan: Plan, interval: Span, shown: bool, stop: Arc<AtomicBool>) -> Client {
        Client {
            connect: Some(connect),
            silence: SilenceDetector::default(),
            plan,
            stop,
            conn: None,
            cq: None,
            control: None,
            load: None,
            running: false,
            peer: None,
            suite: None,
            encryption: None,
            iwarp: None,
            ours: None,
            theirs: None,
            failure: None,
            closed: false,
            intervals: Intervals::new(interval, shown),
            total: 0,
        }
    }

    fn fail(&mut self, f: Failure) {
        self.failure.get_or_insert(f);
    }

    #[inline(never)]
    fn event(&mut self, e: Event, ep: &mut Endpoint) -> Result<(), String> {
        match e {
            Event::Connected { conn } => {
                let Some(info) = ep.connection(conn).cloned() else { return Ok(()) };
                (self.conn, self.peer, self.suite) = (Some(conn), info.peer.clone(), Some(info.suite));
                self.cq = Some(info.cq);
                if let Some(asked) = self.encryption.filter(|_| info.iwarp.is_none()) {
                    setup::tell_protection(asked, info.suite);
                }
                let mut control = Control::new(ep, &info)?;
                if self.plan.reverse || self.plan.latency {
                    let load = Load::prepared(ep, conn, self.plan.clone(), !self.plan.reverse)?;
                    self.plan.rkeys = load.rkeys();
                    self.load = Some(load);
                }
                control.send(ep, &Message::Ask(self.plan.clone()))?;
                self.control = Some(control);
            }
            Event::Closed { conn, reason } => {
                self.closed = true;
                if self.ours.is_none() || self.theirs.is_none() {
                    self.fail(exit::close_failure(&reason, self.suite.is_some()));
                }
                if let Some(c) = self.control.take() {
                    c.close(ep);
                }
                if let Some(l) = self.load.take() {
                    l.close(ep);
                }
                ep.release(conn).map_err(|e| e.to_string())?;
            }
            _ => {}
        }
        Ok(())
    }

    #[inline(never)]
    fn message(&mut self, now: Time, m: Message, ep: &mut Endpoint) -> Result<(), String> {
        let Some(conn) = self.conn else { return Ok(()) };
        match m {
            Message::Ready(rkeys) => {
                self.intervals.begin(now, self.plan.time());
                if let Some(time) = self.plan.time() {
                    self.silence.start(now + time);
                }
                if !self.plan.reverse {
                    let mut load = match self.load.take() {
                        Some(l) => l,
                        None => Load::prepared(ep, conn, self.plan.clone(), true)?,
                    };
                    load.start(ep, &rkeys)?;
                    self.load = Some(load);
                    self.running = true;
                } else if let Some(load) = self.load.as_mut().filter(|_| self.plan.latency) {
                    load.set_keys(now, ep, &rkeys)?;
                }
            }
            Message::Finish(each, figures) => {
                let load = self.load.as_mut().ok_or(
                    "cannot understand the server: it sent a result before the \
                     measurement; try the same version at both ends",
                )?;
                self.ours = Some(load.figures(ep, conn, &each));
                self.end_intervals(now, ep, conn, &figures);
                self.theirs = Some(figures);
            }
            Message::Done(figures) => self.theirs = Some(figures),
            Message::Refused(text) => {
                self.fail(Failure::line(Code::Refused, format_args!("the server refused: {text}")));
            }
            Message::Ask(_) => {
                return Err("cannot understand the server: it sent an unexpected message; try the same \
                            version at both ends"
                    .to_owned());
            }
        }
        Ok(())
    }

    fn work(&mut self, now: Time, ep: &mut Endpoint) -> Result<(), String> {
        let (Some(conn), Some(cq)) = (self.conn, self.cq) else { return Ok(()) };
        if let Some(load) = &mut self.load {
            load.post_late(ep)?;
        }
        while let Some(wc) = ep.adapter().poll_cq(cq) {
            if wc.status == Status::FlushError {
                // The connection ends: why is told by its own event.
                continue;
            }
            if wc.status != Status::Success {
                return Err(format!(
                    "cannot finish the measurement: a work request completed with {:?}; try again \
                     with -v",
                    wc.status
                ));
            }
            if self.control.as_ref().is_some_and(|c| c.qp() == wc.qp) {
                let m = self.control.as_mut().map(|c| c.completion(ep, &wc)).transpose()?.flatten();
                if let Some(m) = m {
                    self.message(now, m, ep)?;
                }
            } else if let Some(load) = &mut self.load {
                load.completion(now, ep, &wc)?;
            }
        }
        if let Some(load) = &mut self.load {
            load.look(now, ep)?;
        }
        if let Some(load) = self.load.as_mut().filter(|_| self.running) {
            load.post(now, ep)?;
            if load.is_over() {
                self.running = false;
                let each = load.each(ep);
                let figures = load.figures(ep, conn, &each);
                self.ours = Some(figures.clone());
                self.end_intervals(now, ep, conn, &figures);
                if let Some(c) = &mut self.control {
                    c.send(ep, &Message::Finish(each, figures))?;
                }
            }
        }
        self.report_interval(now, ep, conn);
        self.look_for_peer(now, ep, conn);
        let drained = self.control.as_ref().is_none_or(Control::is_drained);
        if (self.ours.is_some() && self.theirs.is_some() && drained) || self.failure.is_some() {
            self.iwarp = ep.connection(conn).and_then(|info| info.iwarp.clone());
            self.close(now, ep, conn);
        }
        Ok(())
    }

    /// Closes the connection. What is under way is given up, and of a peer that has fallen silent nothing is waited for.
    fn close(&self, now: Time, ep: &mut Endpoint, conn: ConnId) {
        ep.close(now, conn, code::NO_ERROR, "done");
        let qps = ep.connection(conn).map(|info| info.qps.clone()).unwrap_or_default();
        if self.silence.is_over() {
            ep.reset_streams(now, conn, &qps);
        } else if self.plan.stop || self.failure.is_some() {
            ep.reset_streams(now, conn, qps.get(1..).unwrap_or_default());
        }
    }

    /// Looks after the reports at intervals.
    #[inline(never)]
    fn report_interval(&mut self, now: Time, ep: &mut Endpoint, conn: ConnId) {
        if !self.intervals.is_due(now, || ep.refresh_stats(conn)) {
            return;
        }
        let Some(arrived) = self.load.as_ref().map(|l| l.arrived(ep)) else { return };
        let Some(s) = self.figures_of(ep, conn) else { return };
        let control = control(&s, self.iwarp.as_ref());
        self.intervals.add(now, arrived, &s, &control);
    }

    /// The measurement is over, of which the initiator counted `f`.
    fn end_intervals(&mut self, now: Time, ep: &Endpoint, conn: ConnId, f: &Figures) {
        let Some(s) = self.figures_of(ep, conn) else { return };
        let control = control(&s, self.iwarp.as_ref());
        let lasted = Span::from_secs_f64(f.seconds);
        self.total = self.intervals.end(now, lasted, f.bytes, &s, &control);
    }

    /// Gives up on a peer that has fallen silent, once the time is over.
    #[inline(never)]
    fn look_for_peer(&mut self, now: Time, ep: &mut Endpoint, conn: ConnId) {
        if self.ours.is_some() && self.theirs.is_some()
            || !self.silence.is_due(now, || ep.refresh_stats(conn))
        {
            return;
        }
        let Some(s) = ep.stats(conn) else { return };
        if let Some(silent) = self.silence.observe(now, s.packets_received, s.srtt) {
            let arrived = self.load.as_ref().map_or(0, |l| l.arrived(ep));
            let text = format!(
                "cannot get the server's result: nothing heard from it for {silent} ({arrived} bytes had arrived); \
                 try again when the path is up and the server runs"
            );
            self.fail(Failure::new(Code::Interrupted, text));
        }
    }

    fn figures_of(&mut self, ep: &Endpoint, conn: ConnId) -> Option<Stats> {
        self.iwarp = ep.connection(conn).and_then(|info| info.iwarp.clone());
        ep.stats(conn)
    }
}

impl App for Client {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        let mut result = Ok(());
        if let Some(c) = self.connect.take() {
            result = ep.connect(now, c).map(|c| self.conn = Some(c)).map_err(|e| e.to_string());
        }
        while let (Ok(()), Some(e)) = (&result, ep.poll_event()) {
            result = self.event(e, ep);
        }
        if result.is_ok() && !self.closed && self.suite.is_some() {
            result = self.work(now, ep);
        }
        if self.stop.load(Ordering::SeqCst) && !self.closed {
            self.fail(Failure::new(Code::Interrupted, "interrupted"));
        }
        if let Err(text) = result {
            self.fail(Failure::system(text));
        }
        if self.failure.is_some() && !self.closed {
            match self.conn {
                Some(c) => ep.close(now, c, code::NO_ERROR, "the client gave up"),
                None => self.closed = true,
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        let deadline = self.load.as_ref().filter(|_| self.running).and_then(Load::deadline);
        [deadline, self.intervals.next(), self.silence.next()].into_iter().flatten().min()
    }
    fn finished(&self) -> bool {
        self.closed
    }
}

/// What congestion control says of itself: its state, or by iWARP its name in the system.
fn control(s: &Stats, iwarp: Option<&IwarpInfo>) -> String {
    iwarp.map_or(s.cc.1, |i| i.congestion.as_str()).to_owned()
}

/// The figures of the end that sends.
fn source<'a>(plan: &Plan, ours: &'a Figures, theirs: &'a Figures) -> &'a Figures {
    // Data flows from the initiator, but for reads.
    if plan.reverse == (plan.operation == Operation::Read) { ours } else { theirs }
}

fn report(app: &Client, ours: &Figures, theirs: &Figures) -> Value {
    let plan = &app.plan;
    let initiator = if plan.reverse { theirs } else { ours };
    let source = source(plan, ours, theirs);
    let sink = if core::ptr::eq(source, ours) { theirs } else { ours };
    let share = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let bytes = app.total.max(initiator.bytes);
    let gigabytes = bytes as f64 / 1e9;
    let per_gigabyte = |f: &Figures| if gigabytes > 0.0 { f.cpu() / gigabytes } else { 0.0 };
    let goodput = if initiator.seconds > 0.0 { bytes as f64 * 8.0 / initiator.seconds } else { 0.0 };
    json!({
        "operation": plan.operation,
        "latency": plan.latency,
        "reverse": plan.reverse,
        "message_bytes": plan.size,
        "streams": plan.streams,
        "transport": show::transport(app.iwarp.as_ref()),
        "iwarp": show::iwarp_json(app.iwarp.as_ref()),
        "suite": show::suite(app.suite, app.iwarp.as_ref()),
        "seconds": initiator.seconds,
        "bytes": bytes,
        "messages": initiator.messages,
        "messages_per_second": if initiator.seconds > 0.0 { initiator.messages as f64 / initiator.seconds } else { 0.0 },
        "goodput_bits_per_second": goodput,
        "retransmitted_share": share(source.payload_retransmitted, source.payload_sent),
        "feedback_share": share(sink.control_bytes_sent, source.bytes_sent),
        "srtt_seconds": source.srtt_seconds,
        "min_rtt_seconds": source.min_rtt_seconds,
        "verified": ours.verified.or(theirs.verified),
        "latency_nanoseconds": initiator.latency.map(|[min, p50, p99, max]| json!({
            "min": min, "median": p50, "p99": p99, "max": max })),
        "cpu_seconds_per_gigabyte": { "client": per_gigabyte(ours), "server": per_gigabyte(theirs) },
        "policy": source.policy,
        "client": ours,
        "server": theirs,
        "intervals": app.intervals.list(),
    })
}

/// For people; `by`: what carried it, or protected it.
fn print(plan: &Plan, r: &Value, by: &str, latency: Option<[u64; 4]>) {
    let number = |key: &str| r[key].as_f64().unwrap_or(0.0);
    if plan.latency && latency.is_none() {
        let seconds = number("seconds");
        return out_line!(
            "{:?}, {} bytes: no round trip completed in {seconds:.3} s",
            plan.operation,
            plan.size
        );
    }
    if let Some([min, p50, p99, max]) = latency {
        let t = Span::from_nanos;
        out_line!(
            "{:?}, {} bytes: RTT {} min, {} median, {} p99, {} max ({} round trips, {})",
            plan.operation,
            plan.size,
            t(min),
            t(p50),
            t(p99),
            t(max),
            number("messages"),
            by
        );
        return;
    }
    if plan.operation.is_atomic() {
        let (rate, count, seconds) = (number("messages_per_second"), number("messages"), number("seconds"));
        out_line!("{:?}: {rate:.0} operations/s ({count} in {seconds:.3} s)", plan.operation);
    } else {
        out_line!(
            "{:?}: {:.1} Mbit/s ({} bytes in {:.3} s, {} messages)",
            plan.operation,
            number("goodput_bits_per_second") / 1e6,
            number("bytes"),
            number("seconds"),
            number("messages"),
        );
    }
    out_line!(
        "retransmitted {:.4}%, feedback {:.4}%, RTT {}, {}",
        number("retransmitted_share") * 100.0,
        number("feedback_share") * 100.0,
        Span::from_secs_f64(number("srtt_seconds")),
        by
    );
    let cpu = &r["cpu_seconds_per_gigabyte"];
    let cpu = |end: &str| cpu[end].as_f64().unwrap_or(0.0);
    out_line!("CPU per GB: client {:.3} s, server {:.3} s", cpu("client"), cpu("server"));
    if let Some(v) = r["verified"].as_bool() {
        out_line!("content {}", if v { "verified" } else { "DIFFERS" });
    }
}
