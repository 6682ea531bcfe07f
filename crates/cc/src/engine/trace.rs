//! Traces of an algorithm's input and decisions.

use crate::{Algorithm, Decision, Event, Signals};
use base::Time;
use std::collections::VecDeque;

/// Most records kept for one flow; the oldest are dropped.
pub const MAX_RECORDS: usize = 1_024;

/// One call of an algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When.
    pub now: Time,
    /// The input: `feedback`, or the event's name in lower case.
    pub what: &'static str,
    /// The signals of a feedback.
    pub signals: Option<Signals>,
    /// The resulting decision, under the flow's cap.
    pub decision: Decision,
    /// Bytes in flight afterwards.
    pub inflight: u64,
    /// The algorithm's name and state.
    pub algorithm: (&'static str, &'static str),
}

/// The newest records of a traced flow.
#[derive(Debug, Default)]
pub(super) struct Trace {
    records: VecDeque<Record>,
    dropped: u64,
}

impl Trace {
    pub(super) fn push(&mut self, record: Record) {
        if self.records.len() >= MAX_RECORDS {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
    }

    pub(super) fn take(&mut self, out: &mut dyn FnMut(Record)) -> u64 {
        self.records.drain(..).for_each(out);
        core::mem::take(&mut self.dropped)
    }
}

pub(super) fn event_name(e: &Event) -> &'static str {
    match e {
        Event::ProbeTimeout { .. } => "probe timeout",
        Event::PersistentCongestion => "persistent congestion",
        Event::RestartFromIdle { .. } => "restart from idle",
        Event::PathChanged(_) => "path changed",
        Event::PacketSize(_) => "packet size",
    }
}

/// Creates the record of a call of `algorithm`.
pub(super) fn record(
    now: Time,
    what: &'static str,
    signals: Option<Signals>,
    algorithm: &dyn Algorithm,
    decision: Decision,
    inflight: u64,
) -> Record {
    let algorithm = (algorithm.name(), algorithm.state());
    Record { now, what, signals, decision, inflight, algorithm }
}
