//! The latest samples of something that grows, for rates over the time between them.

use base::{Span, Time};
use std::collections::VecDeque;

/// Samples, the oldest first: those of a time span, no nearer to each other than a step.
#[derive(Clone, Debug)]
pub struct History<T> {
    samples: VecDeque<(Time, T)>,
    step: Span,
    most: usize,
}

impl<T> History<T> {
    /// Keeps `most` samples at most (two at least), which are `step` apart at least; but the last one is always the newest.
    pub fn new(step: Span, most: usize) -> History<T> {
        History { samples: VecDeque::new(), step, most: most.max(2) }
    }

    /// Adds a sample. It takes the place of the last one where that is nearer than a step to the one before.
    pub fn push(&mut self, at: Time, sample: T) {
        if let [.., before, last] = self.samples.make_contiguous()
            && last.0.since(before.0) < self.step
        {
            *last = (at, sample);
            return;
        }
        if self.samples.len() == self.most {
            self.samples.pop_front();
        }
        self.samples.push_back((at, sample));
    }

    /// The newest sample.
    pub fn last(&self) -> Option<&(Time, T)> {
        self.samples.back()
    }

    /// The samples, the newest first.
    pub fn newest_first(&self) -> impl DoubleEndedIterator<Item = &(Time, T)> {
        self.samples.iter().rev()
    }

    /// What `find` gives of the newest sample that is `age` old at `now` and has something; without one that old, of the oldest.
    pub fn before<'a, U>(
        &'a self,
        now: Time,
        age: Span,
        find: impl Fn(&'a T) -> Option<U>,
    ) -> Option<(Time, U)> {
        let known = || self.newest_first().filter_map(|(at, sample)| Some((*at, find(sample)?)));
        known().find(|(at, _)| now.since(*at) >= age).or_else(|| known().last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_a_step_apart_and_the_last_is_the_newest() {
        let at = |ms: u64| Time::ZERO + Span::from_millis(ms);
        let mut h = History::new(Span::from_millis(100), 3);
        for ms in [0, 10, 60, 100, 130, 210, 320] {
            h.push(at(ms), ms);
        }
        assert_eq!(h.newest_first().map(|s| s.1).collect::<Vec<_>>(), [320, 210, 100]);
        let found = |age| h.before(at(320), Span::from_millis(age), |ms| Some(*ms)).map(|f| f.1);
        assert_eq!([0, 100, 110, 111, 500].map(found), [320, 210, 210, 100, 100].map(Some));
        assert_eq!(h.before(at(320), Span::ZERO, |ms| (*ms < 200).then_some(*ms)), Some((at(100), 100)));
    }
}
