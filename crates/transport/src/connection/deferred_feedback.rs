//! Postpones the processing of feedback that arrived with data until the response to the data has been sent.
//!
//! A report changes nothing that a short answer depends on, and digesting it takes as long as building the answer.
//! Whatever else happens to the connection first (another packet, a time-out, a second train) finds it digested.

use super::{Connection, State};
use crate::error::Violation;
use crate::streams::Streams;
use base::Time;
use wire::Feedback;

/// Reports that wait at most; a packet with more has them digested at once.
const MAX_DEFERRED: usize = 8;

/// Reports that wait.
#[derive(Debug, Default)]
pub(super) struct DeferredFeedback {
    /// Each with the time at which it came.
    reports: Vec<(Time, Feedback)>,
    /// A train has left since.
    overtaken: bool,
}

impl Connection {
    /// Whether reports wait to be digested.
    pub fn has_deferred_feedback(&self) -> bool {
        !self.deferred_feedback.reports.is_empty()
    }

    /// Puts a report aside; one that cannot wait comes back.
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

    /// Whether the next train may leave before what waits is digested: once.
    pub(super) fn may_send_before_feedback(&mut self) -> bool {
        !core::mem::replace(&mut self.deferred_feedback.overtaken, true)
    }

    /// Digests what waits.
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

    /// As [`Connection::process_deferred_feedback`]; reports that cannot be true end the connection.
    pub(super) fn process_deferred_feedback_or_close(&mut self, now: Time, streams: &mut impl Streams) {
        if let Err(v) = self.process_deferred_feedback(streams) {
            self.fail(now, &v);
        }
    }
}
