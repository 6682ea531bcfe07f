//! The loop's side: an application with an administrator beside it.

use crate::desk::{Job, Order};
use crate::office::Office;
use crate::proto::{Answer, Flow, FlowId, MAX_LISTED};
use base::Time;
use endpoint::{App, ConnId, Endpoint};

/// Orders done in one turn: more wait for the next.
const PER_TURN: usize = 4;

/// An application whose endpoint an administrator watches and changes while it runs.
#[allow(missing_debug_implementations, reason = "the application need not show itself")]
pub struct Governed<'a> {
    app: &'a mut dyn App,
    office: Office,
}

impl<'a> Governed<'a> {
    pub(crate) fn new(app: &'a mut dyn App, office: Office) -> Governed<'a> {
        Governed { app, office }
    }
}

impl App for Governed<'_> {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        for _ in 0..PER_TURN {
            let Some(job) = self.office.desk.take() else { break };
            serve(job, ep);
        }
        self.app.drive(now, ep);
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
        Order::Policy(_) => Answer::Done { text: "the policy is in force".into() },
        Order::SetFlow { flow, algorithm, cap } => {
            let conn = ConnId(flow.connection);
            if ep.connection(conn).is_none() {
                let errors = vec![format!("there is no flow {flow} any more: see `longhaul cc show`")];
                job.done(Answer::Refused { errors });
                return;
            }
            if let Some(cap) = cap {
                ep.set_rate_cap(conn, *cap);
            }
            let _ = algorithm;
            Answer::Done { text: format!("flow {flow} is changed") }
        }
    };
    job.done(answer);
}

fn flows(ep: &Endpoint) -> Answer {
    let all: Vec<_> = ep.connections().collect();
    let flows = all.iter().take(MAX_LISTED).filter_map(|c| flow(ep, *c)).collect();
    Answer::Flows { flows, left_out: all.len().saturating_sub(MAX_LISTED) }
}

fn flow(ep: &Endpoint, conn: ConnId) -> Option<Flow> {
    let (info, s) = (ep.connection(conn)?, ep.stats(conn)?);
    Some(Flow {
        id: FlowId { connection: conn.0, flow: 0 }.to_string(),
        carrier: if info.iwarp.is_some() { "tcp" } else { "native" }.into(),
        remote: info.remote.to_string(),
        algorithm: s.cc.0.into(),
        state: s.cc.1.into(),
        rate_bits_per_second: s.rate.bits_per_sec(),
        srtt_seconds: s.srtt.as_secs_f64(),
        min_rtt_seconds: s.min_rtt.as_secs_f64(),
        inflight_bytes: s.inflight,
        bound_bytes: Some(s.bound),
        delivered_bytes: s.delivered,
        loss: s.packets_lost as f64 / s.packets_sent.max(1) as f64,
        ..Flow::default()
    })
}
