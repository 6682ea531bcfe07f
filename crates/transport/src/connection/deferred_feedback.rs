//! Postpones the processing of feedback that arrived with data until the response to the data has been sent.
//!
//! A report changes nothing that a short answer depends on, and digesting it takes as long as building the answer.
//! Whatever else happens to the connection first (another packet, a time-out, a second train) finds it digested.

use super::{Connection, State};
use crate::error::Violation;
use crate::streams::Streams;
use base::Time;
use wire::Feedback;

/// The most feedback frames that are deferred; a packet with more has them processed at once.
const MAX_DEFERRED: usize = 8;

/// Feedback frames that are waiting to be processed.
#[derive(Debug, Default)]
pub(super) struct DeferredFeedback {
    /// Each with the time at which it came.
    reports: Vec<(Time, Feedback)>,
    /// A train has left since.
    overtaken: bool,
}

impl Connection {
    /// Whether feedback is waiting to be processed.
    pub fn has_deferred_feedback(&self) -> bool {
        !self.deferred_feedback.reports.is_empty()
    }

    /// Defers a feedback frame; returns it when it must be processed at once.
    #[inline]
    pub(super) fn defer_feedback(&mut self, now: Time, f: Feedback) -> Option<Feedback> {
        let may = self.authorised
            && matches!(self.state, State::Open)
            && self.deferred_feedback.reports.len() < MAX_DEFERRED;
        if !may {
            return Some(f);
        }
        self.deferred_feedback.reports.push((now, f));
        None
    }

    /// Whether the next train may be sent before the deferred feedback is processed. True once.
    pub(super) fn may_send_before_feedback(&mut self) -> bool {
        !core::mem::replace(&mut self.deferred_feedback.overtaken, true)
    }

    /// Processes the deferred feedback.
    pub(super) fn process_deferred_feedback(&mut self, streams: &mut impl Streams) -> Result<(), Violation> {
        if !self.has_deferred_feedback() {
            return Ok(());
        }
        let mut reports = core::mem::take(&mut self.deferred_feedback.reports);
        let result = reports.iter().try_for_each(|(at, f)| self.on_feedback(*at, f, streams));
        reports.clear();
        // The memory is used again.
        self.deferred_feedback = DeferredFeedback { reports, overtaken: false };
        result
    }

    /// As [`Connection::process_deferred_feedback`]; invalid feedback closes the connection.
    pub(super) fn process_deferred_feedback_or_close(&mut self, now: Time, streams: &mut impl Streams) {
        if let Err(v) = self.process_deferred_feedback(streams) {
            self.fail(now, &v);
        }
    }
}
