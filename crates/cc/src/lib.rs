//! OpenCC: what a congestion-control algorithm is told, what it decides, and the algorithms.
//!
//! Mechanism and policy are apart: the engine computes [`Signals`], an [`Algorithm`] turns them into a
//! [`Decision`], and the engine obeys. An algorithm never touches path state, reads no clock and draws no
//! randomness but the seeded one it was given. The [`pacer`] turns a decision into [`pacer::Token`]s, the
//! only permission to send there is; the [`registry`] makes algorithms by name and parameters.

pub mod algorithms;
pub mod engine;
pub mod pacer;
pub mod platform;
pub mod registry;
pub mod signals;
pub mod testkit;

pub use pacer::{Pacer, Token};
pub use registry::{DEFAULT, Error, Marks, Needs, Params, create};
pub use signals::{Event, Hop, MAX_HOPS, PathInfo, RateSample, Remembered, SentTrain, Signals};

use base::{Rate, Time};

/// How fast a flow may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pacing rate, in bytes on the wire.
    pub rate: Rate,
    /// Bound on bytes in flight, a safety net beside the rate.
    pub bound: u64,
    /// Bytes that may leave back to back; the pacer makes trains of this size where data permits.
    pub quantum: u64,
}

/// A congestion-control algorithm: signals in, a decision out.
pub trait Algorithm: Send + core::fmt::Debug {
    /// The name it is selected by.
    fn name(&self) -> &'static str;
    /// A train has left.
    fn on_sent(&mut self, train: &SentTrain);
    /// Feedback has been digested.
    fn on_feedback(&mut self, signals: &Signals);
    /// The hops that the newest acknowledged packet passed, first to last, at most [`MAX_HOPS`]; called just before the
    /// [`on_feedback`](Algorithm::on_feedback) of the same feedback. Only where the path writes telemetry and
    /// [`Needs::telemetry`] asks for it.
    fn on_telemetry(&mut self, _now: Time, _hops: &[Hop]) {}
    /// Something rare has happened.
    fn on_event(&mut self, now: Time, event: Event);
    /// What takes its place should it have to be stopped, as [`registry::parse`] reads it. Built-in algorithms never have to.
    fn set_substitute(&mut self, _spec: &str) {}
    /// The decision that holds until the next call. Cheap: called for each train.
    fn decision(&self) -> Decision;
    /// Whether trains should ask for a report at their beginning and at their end, so that their dispersion can be
    /// measured. It costs two reports a train: for short times only.
    fn wants_dispersion(&self) -> bool {
        false
    }
    /// Internal state in words, for traces and `--json` (for instance "startup", "probe_bw:cruise").
    fn state(&self) -> &'static str {
        ""
    }
}
