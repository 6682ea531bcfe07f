//! Proposals and answers that change congestion control, over frames that may be late, duplicated or reordered.
//!
//! Each topic counts its proposals: both ends know the number of the last one that was answered, and the next one has the
//! number behind it. Each end has at most one proposal without an answer on a topic. When both propose under the same
//! number, the sender's of the direction counts, since it runs the algorithm; the other end's is as if never made.

use crate::crypto::Side;
use crate::error::{Violation, code};
use base::{Span, Time};
use std::collections::BTreeMap;
use wire::{CcAnswer, CcOffer, CcPropose, CcTopic};

/// Proposals of one end without an answer at most, over all topics.
pub const MAX_UNANSWERED: usize = 16;
/// Topics on which there ever was a proposal at most. One end begins half of them.
pub const MAX_TOPICS: usize = 1 << 13;
/// Proposals that an end makes at once; one more becomes free each round trip.
const OWN_BURST: u64 = 16;
/// Proposals of the peer that are looked at at once; two more each round trip. The others are refused. What a peer that
/// keeps to its rule sends within a round trip may arrive within a shorter one.
const THEIR_BURST: u64 = 64;
/// Proposals refused because they came too often, before the connection ends.
pub const MAX_TOO_OFTEN: u32 = 256;
/// Bounds of the round trip that the limits count by.
const MIN_ROUND: Span = Span::from_millis(1);
const MAX_ROUND: Span = Span::from_secs(1);

/// A token bucket refilled once per round trip.
#[derive(Debug)]
pub(crate) struct RateLimit {
    left: u64,
    most: u64,
    each_round: u64,
    /// When the round trip began that is being counted.
    since: Time,
}

impl RateLimit {
    pub(crate) const fn new(most: u64, each_round: u64) -> RateLimit {
        RateLimit { left: most, most, each_round, since: Time::ZERO }
    }

    fn refill(&mut self, now: Time, round: Span) {
        let round = round.clamp(MIN_ROUND, MAX_ROUND);
        let rounds = now.since(self.since).as_nanos() / round.as_nanos();
        if rounds > 0 {
            self.left = self.most.min(self.left.saturating_add(rounds.saturating_mul(self.each_round)));
            self.since = now;
        }
    }

    /// Whether one more is allowed now, which it then was.
    pub(crate) fn take_at(&mut self, now: Time, round: Span) -> bool {
        self.refill(now, round);
        self.take()
    }

    fn take(&mut self) -> bool {
        let any = self.left > 0;
        self.left -= u64::from(any);
        any
    }
}

#[derive(Debug, Default)]
struct Topic {
    /// The number of the last proposal that was answered.
    settled: u64,
    /// This end's proposal without an answer, under the next number.
    ours: Option<CcOffer>,
    /// The peer's proposal under the number behind that: it has answered ours, and its answer is late.
    early: Option<CcOffer>,
    /// The peer's proposal under the next number is being decided on.
    deciding: bool,
}

/// What a received frame leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The peer proposes this: decide, and tell by [`Proposals::decided`].
    Decide(CcPropose),
    /// The peer proposes too often: as [`Step::Decide`], but refused already.
    Refuse(CcPropose),
    /// This end's proposal was answered.
    Answered(CcTopic, CcOffer, u64),
    /// This end's proposal does not count: the peer's does.
    Crossed(CcTopic, CcOffer),
}

/// Why no proposal can be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The last one on this topic has no answer yet.
    #[error("the last change that was proposed here is not answered yet: wait for that")]
    Unanswered,
    /// Too many have none.
    #[error("{MAX_UNANSWERED} proposed changes are not answered yet: wait for one of them")]
    TooMany,
    /// Too many in a short time.
    #[error("too many changes were proposed in a short time: wait a round trip")]
    TooOften,
    /// Too many topics.
    #[error("changes were proposed for too many queue pairs of this connection: {} at most", MAX_TOPICS / 2)]
    TooManyTopics,
}

/// The proposals of a connection on all topics, at one end.
#[derive(Debug)]
pub struct Proposals {
    side: Side,
    topics: BTreeMap<CcTopic, Topic>,
    unanswered: usize,
    begun: usize,
    own: RateLimit,
    theirs: RateLimit,
    too_often: u32,
}

impl Proposals {
    /// Nothing was proposed.
    pub fn new(side: Side) -> Proposals {
        Proposals {
            side,
            topics: BTreeMap::new(),
            unanswered: 0,
            begun: 0,
            own: RateLimit::new(OWN_BURST, 1),
            theirs: RateLimit::new(THEIR_BURST, 2),
            too_often: 0,
        }
    }

    /// Topics that are kept.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    /// The number of the last proposal on a topic that was answered, as far as is known here; 0: none was.
    pub fn settled(&self, topic: CcTopic) -> u64 {
        self.topics.get(&topic).map_or(0, |t| t.settled)
    }

    /// Proposals of this end that have no answer.
    pub const fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Proposes; `round`: a round trip. The frame is to be sent until it arrives.
    ///
    /// # Errors
    /// Not now.
    pub fn propose(
        &mut self,
        now: Time,
        round: Span,
        topic: CcTopic,
        offer: CcOffer,
    ) -> Result<CcPropose, ProposeError> {
        let known = self.topics.get(&topic);
        if known.is_some_and(|t| t.ours.is_some() || t.deciding) {
            return Err(ProposeError::Unanswered);
        }
        if self.unanswered >= MAX_UNANSWERED {
            return Err(ProposeError::TooMany);
        }
        let new = known.is_none();
        if new && self.begun >= MAX_TOPICS / 2 {
            return Err(ProposeError::TooManyTopics);
        }
        self.own.refill(now, round);
        if !self.own.take() {
            return Err(ProposeError::TooOften);
        }
        self.begun += usize::from(new);
        self.unanswered += 1;
        let t = self.topics.entry(topic).or_default();
        t.ours = Some(offer.clone());
        Ok(CcPropose { topic, sequence: t.settled + 1, offer })
    }

    /// Whether this end sends in the topic's direction, and so wins crossings.
    fn sends(&self, topic: CcTopic) -> bool {
        topic.of_server == (self.side == Side::Server)
    }

    /// The peer proposes. Frames that come late or twice lead to nothing.
    ///
    /// # Errors
    /// What no peer sends that keeps to the rules.
    pub fn on_propose(&mut self, now: Time, round: Span, p: CcPropose) -> Result<Vec<Step>, Violation> {
        let sends = self.sends(p.topic);
        let full = self.topics.len() >= MAX_TOPICS;
        if full && !self.topics.contains_key(&p.topic) {
            return Err(Violation::new(code::LIMIT, "changes of congestion control on too many topics"));
        }
        let t = self.topics.entry(p.topic).or_default();
        let ahead = p.sequence.saturating_sub(t.settled);
        match (ahead, &t.ours) {
            (0, _) => Ok(Vec::new()),
            (1, _) if t.deciding => Ok(Vec::new()),
            // Both have proposed: the peer will find that ours counts.
            (1, Some(_)) if sends => Ok(Vec::new()),
            (1, _) => {
                let mut steps = Vec::new();
                if let Some(o) = t.ours.take() {
                    self.unanswered -= 1;
                    steps.push(Step::Crossed(p.topic, o));
                }
                steps.push(self.check_rate(now, round, p)?);
                Ok(steps)
            }
            (2, Some(_)) if t.early.as_ref().is_none_or(|e| *e == p.offer) => {
                t.early = Some(p.offer);
                Ok(Vec::new())
            }
            _ => Err(Violation::protocol("a change of congestion control out of its sequence")),
        }
    }

    /// Whether a proposal that counts comes too soon behind others.
    fn check_rate(&mut self, now: Time, round: Span, p: CcPropose) -> Result<Step, Violation> {
        self.theirs.refill(now, round);
        if self.theirs.left == self.theirs.most {
            self.too_often = 0;
        }
        if let Some(t) = self.topics.get_mut(&p.topic) {
            t.deciding = true;
        }
        if self.theirs.take() {
            return Ok(Step::Decide(p));
        }
        self.too_often += 1;
        if self.too_often > MAX_TOO_OFTEN {
            return Err(Violation::new(code::LIMIT, "endless changes of congestion control"));
        }
        Ok(Step::Refuse(p))
    }

    /// The answer to what [`Step::Decide`] gave. The frame is to be sent until it arrives.
    pub fn decided(&mut self, p: &CcPropose, code: u64) -> CcAnswer {
        if let Some(t) = self.topics.get_mut(&p.topic) {
            t.settled = t.settled.max(p.sequence);
            t.deciding = false;
        }
        CcAnswer { topic: p.topic, sequence: p.sequence, code }
    }

    /// The peer answers. What comes late or twice leads to nothing.
    ///
    /// # Errors
    /// Nothing was asked.
    pub fn on_answer(&mut self, now: Time, round: Span, a: CcAnswer) -> Result<Vec<Step>, Violation> {
        let nothing = || Violation::protocol("an answer about congestion control that nobody had asked for");
        let t = self.topics.get_mut(&a.topic).ok_or_else(nothing)?;
        if a.sequence <= t.settled {
            return Ok(Vec::new());
        }
        if a.sequence > t.settled + 1 {
            return Err(nothing());
        }
        let ours = t.ours.take().ok_or_else(nothing)?;
        t.settled = a.sequence;
        let early = t.early.take();
        self.unanswered -= 1;
        let mut steps = vec![Step::Answered(a.topic, ours, a.code)];
        if let Some(offer) = early {
            let p = CcPropose { topic: a.topic, sequence: a.sequence + 1, offer };
            steps.push(self.check_rate(now, round, p)?);
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests;
