//! OpenCC: congestion-control algorithms, and the interface between them and a transport.
//!
//! An [`Algorithm`] turns [`Signals`] into a [`Decision`]; the [`engine`] computes the signals and obeys the decision. An
//! algorithm never touches the state of a path, reads no clock, and draws only from the random generator that it was
//! given, so its decisions are reproducible. The [`registry`] creates algorithms by name and parameters; the [`pacer`]
//! turns decisions into [`Token`]s, without which no packet can be sent.
//!
//! ```
//! use base::{Rng, Span, Time};
//! use longhaul_cc::{Pacer, PathInfo, registry};
//!
//! let (cubic, params) = registry::parse("cubic:initial_window=20")?;
//! let rtt = Some(Span::from_millis(40));
//! let path = PathInfo { packet_bytes: 1_500, handshake_rtt: rtt, ecn: true, known_rate: None, remembered: None };
//! let algorithm = cubic.make(&params, &path, Rng::from_u64(1));
//!
//! // The first train leaves at once; the next one at the time that the pacer names.
//! let mut pacer = Pacer::new();
//! let train = pacer.poll(Time::ZERO, &algorithm.decision(), u64::MAX).expect("the first train is permitted");
//! assert_eq!(train.bytes(), algorithm.decision().quantum);
//! assert!(pacer.poll(Time::ZERO, &algorithm.decision(), u64::MAX).is_err());
//! # Ok::<(), longhaul_cc::Error>(())
//! ```

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

/// A decision: how fast a flow may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pacing rate, in bytes on the wire.
    pub rate: Rate,
    /// Congestion window (RFC 9002): most bytes in flight, a safety net beside the rate.
    pub cwnd: u64,
    /// Bytes that may leave back to back; the pacer makes trains of this size where there is enough data.
    pub quantum: u64,
}

/// A congestion-control algorithm: signals in, a decision out.
pub trait Algorithm: Send + core::fmt::Debug {
    /// The name it is selected by.
    fn name(&self) -> &'static str;
    /// Handles a train that has left.
    fn on_sent(&mut self, train: &SentTrain);
    /// Handles feedback.
    fn on_feedback(&mut self, signals: &Signals);
    /// Receives the telemetry of the hops that the newest acknowledged packet passed, first to last, at most
    /// [`MAX_HOPS`], just before [`on_feedback`](Algorithm::on_feedback) for the same feedback. Only where the path
    /// writes telemetry and [`Needs::telemetry`] asks for it.
    fn on_telemetry(&mut self, _now: Time, _hops: &[Hop]) {}
    /// Handles a rare event.
    fn on_event(&mut self, now: Time, event: Event);
    /// Sets the fallback should it have to be stopped, in the syntax of [`registry::parse`]. Built-in algorithms
    /// never have to.
    fn set_fallback(&mut self, _spec: &str) {}
    /// The decision in force until the next call. Must be cheap, since it is called for each train.
    fn decision(&self) -> Decision;
    /// Whether trains should request a report at their beginning and end, so that their dispersion can be measured.
    /// This costs two reports per train, so it is for short times only.
    fn wants_dispersion(&self) -> bool {
        false
    }
    /// Lateness of the host that the pacer may catch up with by sending more at once.
    fn catch_up(&self) -> base::Span {
        pacer::CATCH_UP
    }
    /// The longest train in bytes that the path's queue takes, where it is shorter than the usual ones, to be remembered
    /// with the path.
    fn longest_train(&self) -> Option<u64> {
        None
    }
    /// The internal state as text, for traces and `--json` (for instance "startup", "probe_bw:cruise").
    fn state(&self) -> &'static str {
        ""
    }
}
