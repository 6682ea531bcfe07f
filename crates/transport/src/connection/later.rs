//! Reports that came with data: digested when the answer to the data has left, since somebody waits for that.
//!
//! A report changes nothing that a short answer depends on, and digesting it takes as long as building the answer.
//! Whatever else happens to the connection first (another packet, a time-out, a second train) finds it digested.

use super::{Connection, State};
use crate::error::Violation;
use crate::streams::Streams;
use base::Time;
use wire::Feedback;

/// Reports that wait at most; a packet with more has them digested at once.
const MAX_LATER: usize = 8;

/// Reports that wait.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// Each with the time at which it came.
    reports: Vec<(Time, Feedback)>,
    /// A train has left since.
    overtaken: bool,
}

impl Connection {
    /// Whether reports wait to be digested.
    pub fn has_later(&self) -> bool {
        !self.later.reports.is_empty()
    }

    /// Puts a report aside; one that cannot wait comes back.
    #[inline]
    pub(super) fn put_aside(&mut self, now: Time, f: Feedback) -> Option<Feedback> {
        let may =
            self.authorised && matches!(self.state, State::Open) && self.later.reports.len() < MAX_LATER;
        if !may {
            return Some(f);
        }
        self.later.reports.push((now, f));
        None
    }

    /// Whether the next train may leave before what waits is digested: once.
    pub(super) fn may_overtake(&mut self) -> bool {
        !core::mem::replace(&mut self.later.overtaken, true)
    }

    /// Digests what waits.
    pub(super) fn digest_later(&mut self, streams: &mut impl Streams) -> Result<(), Violation> {
        if !self.has_later() {
            return Ok(());
        }
        let mut reports = core::mem::take(&mut self.later.reports);
        let result = reports.iter().try_for_each(|(at, f)| self.on_feedback(*at, f, streams));
        reports.clear();
        // The memory is used again.
        self.later = Later { reports, overtaken: false };
        result
    }

    /// As [`Connection::digest_later`]; reports that cannot be true end the connection.
    pub(super) fn settle_later(&mut self, now: Time, streams: &mut impl Streams) {
        if let Err(v) = self.digest_later(streams) {
            self.fail(now, &v);
        }
    }
}
