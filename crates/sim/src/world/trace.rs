//! The latest notes of a simulation.

use base::Time;
use std::collections::VecDeque;

/// Notes kept.
const MAX_NOTES: usize = 400;

/// The latest notes with their times.
#[derive(Debug, Default)]
pub struct Trace(VecDeque<(Time, String)>);

impl Trace {
    /// Adds a note.
    pub fn push(&mut self, at: Time, text: String) {
        if self.0.len() == MAX_NOTES {
            self.0.pop_front();
        }
        self.0.push_back((at, text));
    }
    /// The last `n` notes, a line each.
    pub fn tail(&self, n: usize) -> String {
        let skip = self.0.len().saturating_sub(n);
        let lines = self.0.iter().skip(skip);
        lines.map(|(t, s)| format!("{:>14.6} ms  {s}\n", t.as_nanos() as f64 / 1e6)).collect()
    }
}
