//! `longhaul cc trace`: decisions as they are made.

use super::processes::{self, unexpected_response};
use crate::args::TraceFlow;
use crate::exit::{Code, Failure, Outcome};
use crate::out;
use admin::client::ClientError;
use admin::lines::LineError;
use admin::proto::{Decision, Request, Response};
use base::{Rate, Span};

/// Prints decisions until the process ends, there were enough, or the reader of our output has gone.
pub fn run(a: &TraceFlow) -> Outcome<()> {
    let mut r = processes::exactly_one(a.flow.and_then(|f| f.pid).or(a.pid))?;
    let request = Request::Trace { flow: a.flow.map(|f| f.flow), every: a.every };
    r.client.trace(&request).map_err(|e| Failure::line(Code::Connect, e))?;
    let mut left = a.count.unwrap_or(u64::MAX);
    while left > 0 && !out::is_gone() {
        let answer = match r.client.follow() {
            Ok(None) => continue,
            Ok(Some(answer @ (Response::Decision(_) | Response::Missed { .. }))) => {
                if matches!(answer, Response::Decision(_)) {
                    left -= 1;
                }
                answer
            }
            Ok(Some(Response::Refused { errors })) => {
                return Err(Failure::new(Code::Refused, processes::escape_each(&errors).join("; ")));
            }
            Ok(Some(_)) => return Err(unexpected_response(&r)),
            Err(ClientError::Line { source: LineError::Ended, .. }) => break,
            Err(e) => return Err(Failure::line(Code::Connect, e)),
        };
        if a.json {
            out::json(&answer);
        } else {
            out_line!("{}", text(&answer));
        }
    }
    Ok(())
}

fn text(a: &Response) -> String {
    match a {
        Response::Missed { count } => format!("... {count} decisions missed"),
        Response::Decision(d) => decision(d),
        _ => String::new(),
    }
}

fn decision(d: &Decision) -> String {
    let span = |seconds: f64| Span::from_secs_f64(seconds).to_string();
    let state = if d.state.is_empty() { String::new() } else { format!(" ({})", d.state) };
    let mut line = format!(
        "{:.6} flow {} lane {} {}: {}{state} rate {} cwnd {} inflight {} rtt {} srtt {} queue {}",
        d.time,
        d.flow,
        d.lane,
        d.trigger,
        d.algorithm,
        Rate::from_bits_per_sec(d.rate_bits_per_second),
        d.cwnd_bytes,
        d.inflight_bytes,
        d.rtt_seconds.map_or("-".into(), span),
        span(d.srtt_seconds),
        span(d.queue_seconds),
    );
    if let Some(delivery) = d.delivery_bits_per_second {
        line += &format!(" delivery {}", Rate::from_bits_per_sec(delivery));
    }
    for (name, n) in [("acked", d.acked_bytes), ("lost", d.lost_bytes), ("marked", d.marked_packets)] {
        if n > 0 {
            line += &format!(" {name} {n}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_prints_a_decision_per_line() {
        let d = Decision {
            flow: "3.0".into(),
            time: 1.5,
            trigger: "feedback".into(),
            algorithm: "cubic".into(),
            state: "startup".into(),
            rate_bits_per_second: 1_000_000,
            lost_bytes: 1_500,
            rtt_seconds: Some(0.07),
            ..Decision::default()
        };
        let line = decision(&d);
        assert!(line.starts_with("1.500000 flow 3.0 lane 0 feedback: cubic (startup) rate "), "{line}");
        assert!(line.contains("rtt 70") && line.ends_with("lost 1500"), "{line}");
        assert!(text(&Response::Missed { count: 3 }).contains("3 decisions"));
    }
}
