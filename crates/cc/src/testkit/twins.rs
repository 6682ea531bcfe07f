//! Compares two algorithms that should decide equally: both get the same input, and their decisions are compared
//! after each call. The first one's are used.

use crate::{Algorithm, Decision, Event, Hop, SentTrain, Signals};
use base::Time;
use std::sync::{Arc, Mutex, PoisonError};

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Decisions compared.
    pub decisions: u64,
    /// How many of them differed.
    pub different: u64,
    /// The largest relative difference of the rates.
    pub rate: f64,
    /// The largest relative difference of the congestion windows.
    pub cwnd: f64,
    /// The first difference, as text.
    pub first: Option<String>,
}

impl Agreement {
    fn compare(&mut self, call: &dyn core::fmt::Debug, a: Decision, b: Decision) {
        self.decisions += 1;
        if a == b {
            return;
        }
        self.different += 1;
        let apart = |a: u64, b: u64| a.abs_diff(b) as f64 / a.max(1) as f64;
        self.rate = self.rate.max(apart(a.rate.bytes_per_sec(), b.rate.bytes_per_sec()));
        self.cwnd = self.cwnd.max(apart(a.cwnd, b.cwnd));
        self.first
            .get_or_insert_with(|| format!("decision {}, after {call:?}: {a:?}, and {b:?}", self.decisions));
    }
}

/// Two algorithms that act as one.
#[derive(Debug)]
pub struct Twins {
    first: Box<dyn Algorithm>,
    second: Box<dyn Algorithm>,
    agreement: Arc<Mutex<Agreement>>,
}

impl Twins {
    /// Pairs two new algorithms; returns the pair and the shared result.
    pub fn new(first: Box<dyn Algorithm>, second: Box<dyn Algorithm>) -> (Twins, Arc<Mutex<Agreement>>) {
        let agreement = Arc::new(Mutex::new(Agreement::default()));
        let twins = Twins { first, second, agreement: agreement.clone() };
        twins.compare(&"the start");
        (twins, agreement)
    }

    fn compare(&self, call: &dyn core::fmt::Debug) {
        let mut agreement = self.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        agreement.compare(call, self.first.decision(), self.second.decision());
    }
}

impl Algorithm for Twins {
    fn name(&self) -> &'static str {
        self.first.name()
    }

    fn on_sent(&mut self, train: &SentTrain) {
        self.first.on_sent(train);
        self.second.on_sent(train);
        self.compare(train);
    }

    fn on_feedback(&mut self, signals: &Signals) {
        self.first.on_feedback(signals);
        self.second.on_feedback(signals);
        self.compare(signals);
    }

    fn on_telemetry(&mut self, now: Time, hops: &[Hop]) {
        self.first.on_telemetry(now, hops);
        self.second.on_telemetry(now, hops);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        self.first.on_event(now, event);
        self.second.on_event(now, event);
        self.compare(&event);
    }

    fn decision(&self) -> Decision {
        self.first.decision()
    }

    fn wants_dispersion(&self) -> bool {
        self.first.wants_dispersion()
    }

    fn state(&self) -> &'static str {
        self.first.state()
    }
}
