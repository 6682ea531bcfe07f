//! Tests of proposals over a network that reorders and duplicates.

use super::*;
use base::Rng;
use proptest::prelude::*;
use std::collections::VecDeque;

const ROUND: Span = Span::from_millis(10);

fn offer(n: u64) -> CcOffer {
    CcOffer { name: format!("a{n}"), version: 1, needs: 0, params: String::new() }
}
fn topic(qpn: Option<u16>, of_server: bool) -> CcTopic {
    CcTopic { qpn, of_server }
}
const CLIENTS: CcTopic = CcTopic { qpn: None, of_server: false };

#[derive(Clone, Debug)]
enum Message {
    Propose(CcPropose),
    Answer(CcAnswer),
}

/// One end, and what holds for each topic as far as it knows.
struct End {
    proposals: Proposals,
    holds: BTreeMap<CcTopic, String>,
    /// What it says to proposals that it decides on.
    refuses: u64,
    answered: usize,
    proposed: usize,
}

impl End {
    fn new(side: Side) -> End {
        let proposals = Proposals::new(side);
        End { proposals, holds: BTreeMap::new(), refuses: 0, answered: 0, proposed: 0 }
    }

    fn take(&mut self, now: Time, steps: Vec<Step>) -> Vec<Message> {
        let mut out = Vec::new();
        for s in steps {
            match s {
                Step::Decide(p) => {
                    // By the offer, so that it does not depend on when it is asked.
                    let refuse = u64::from(p.offer.name.len() as u64 % 2 == self.refuses);
                    if refuse == 0 {
                        self.holds.insert(p.topic, p.offer.name.clone());
                    }
                    out.push(Message::Answer(self.proposals.decided(&p, refuse)));
                }
                Step::Refuse(p) => out.push(Message::Answer(self.proposals.decided(&p, 6))),
                Step::Answered(topic, o, code) => {
                    self.answered += 1;
                    if code == 0 {
                        self.holds.insert(topic, o.name);
                    }
                }
                Step::Crossed(..) => self.answered += 1,
            }
        }
        let _ = now;
        out
    }

    fn receive(&mut self, now: Time, m: Message) -> Vec<Message> {
        let steps = match m {
            Message::Propose(p) => self.proposals.on_propose(now, ROUND, p),
            Message::Answer(a) => self.proposals.on_answer(now, ROUND, a),
        };
        let steps = steps.unwrap_or_else(|v| panic!("an honest peer is found at fault: {v}"));
        self.take(now, steps)
    }
}

/// Both ends propose at random moments; frames come in any order, some several times, each at least once.
fn play(seed: u64, topics: u64, proposals: usize) -> [End; 2] {
    let mut rng = Rng::from_u64(seed);
    let mut ends = [End::new(Side::Client), End::new(Side::Server)];
    ends[0].refuses = rng.below(3);
    ends[1].refuses = rng.below(3);
    let mut flying: [VecDeque<Message>; 2] = Default::default();
    let mut now = Time::from_nanos(1);
    let mut left = proposals;
    let copies = rng.below(4);
    for _ in 0..1_000_000 {
        if left == 0 && flying.iter().all(VecDeque::is_empty) {
            return ends;
        }
        now += Span::from_micros(rng.below(3_000));
        let i = rng.below(2) as usize;
        let mut out = Vec::new();
        if left > 0 && rng.chance(0.3) {
            left -= 1;
            let n = rng.below(topics);
            let topic = topic((n > 0).then_some(n as u16), rng.chance(0.5));
            if let Ok(p) = ends[i].proposals.propose(now, ROUND, topic, offer(rng.below(1_000))) {
                ends[i].proposed += 1;
                out.push(Message::Propose(p));
            }
        } else if !flying[i].is_empty() {
            let k = rng.below(flying[i].len() as u64) as usize;
            let m = flying[i][k].clone();
            // One that stays comes again.
            if rng.below(4) >= copies {
                flying[i].remove(k);
            }
            out = ends[i].receive(now, m);
        }
        flying[1 - i].extend(out);
    }
    panic!("seed {seed}: no end");
}

fn assert_agreed(ends: &[End; 2], seed: u64) {
    let [c, s] = ends;
    assert_eq!(c.holds, s.holds, "seed {seed}");
    for e in ends {
        assert_eq!((e.proposals.unanswered(), e.answered), (0, e.proposed), "seed {seed}");
        assert!(e.proposals.topics.values().all(|t| t.ours.is_none() && t.early.is_none()), "seed {seed}");
    }
    for (k, t) in &c.proposals.topics {
        assert_eq!(Some(t.settled), s.proposals.topics.get(k).map(|t| t.settled), "seed {seed}");
    }
}

#[test]
fn both_ends_agree_despite_crossing_reordering_and_duplication() {
    let mut changed = 0;
    for seed in 0..3_000 {
        let ends = play(seed, 1 + seed % 4, 60);
        assert_agreed(&ends, seed);
        changed += ends[0].holds.len();
    }
    assert!(changed > 3_000, "something was agreed on: {changed}");
}

proptest! {
    #[test]
    fn both_ends_agree_on_any_seed(seed in any::<u64>(), topics in 1_u64..20, n in 1_usize..200) {
        assert_agreed(&play(seed, topics, n), seed);
    }
}

#[test]
fn crossing_proposals_resolve_to_the_senders() {
    let (mut c, mut s) = (Proposals::new(Side::Client), Proposals::new(Side::Server));
    let now = Time::from_nanos(1);
    let by_client = c.propose(now, ROUND, CLIENTS, offer(1)).unwrap();
    let by_server = s.propose(now, ROUND, CLIENTS, offer(2)).unwrap();
    assert_eq!(c.on_propose(now, ROUND, by_server.clone()), Ok(vec![]));
    let steps = s.on_propose(now, ROUND, by_client.clone()).unwrap();
    assert_eq!(steps, [Step::Crossed(CLIENTS, offer(2)), Step::Decide(by_client.clone())]);
    let a = s.decided(&by_client, 0);
    // The next one of the server's overtakes its answer.
    let next = s.propose(now, ROUND, CLIENTS, offer(3)).unwrap();
    assert_eq!(next.sequence, 2);
    assert_eq!(c.on_propose(now, ROUND, next.clone()), Ok(vec![]));
    assert_eq!(c.on_propose(now, ROUND, next.clone()), Ok(vec![]), "twice");
    let steps = c.on_answer(now, ROUND, a).unwrap();
    assert_eq!(steps, [Step::Answered(CLIENTS, offer(1), 0), Step::Decide(next.clone())]);
    let a = c.decided(&next, 4);
    assert_eq!(s.on_answer(now, ROUND, a), Ok(vec![Step::Answered(CLIENTS, offer(3), 4)]));
    assert_eq!(s.on_answer(now, ROUND, a), Ok(vec![]), "twice");
    assert_eq!(c.on_propose(now, ROUND, by_server), Ok(vec![]), "long over");
}

#[test]
fn proposals_are_limited() {
    let mut e = Proposals::new(Side::Client);
    let now = Time::from_nanos(1);
    for n in 0..MAX_UNANSWERED as u16 {
        e.propose(now, ROUND, topic(Some(n), false), offer(1)).unwrap();
    }
    assert_eq!(e.propose(now, ROUND, topic(Some(0), false), offer(2)), Err(ProposeError::Unanswered));
    assert_eq!(e.propose(now, ROUND, CLIENTS, offer(2)), Err(ProposeError::TooMany));
    let a = CcAnswer { topic: topic(Some(0), false), sequence: 1, code: 0 };
    e.on_answer(now, ROUND, a).unwrap();
    assert_eq!(e.propose(now, ROUND, CLIENTS, offer(2)), Err(ProposeError::TooOften));
    let p = e.propose(now + ROUND, ROUND, topic(Some(0), false), offer(2)).unwrap();
    assert_eq!(p.sequence, 2);
}

#[test]
fn out_of_sequence_proposal_is_a_violation() {
    let now = Time::from_nanos(1);
    let p = |sequence, n| CcPropose { topic: CLIENTS, sequence, offer: offer(n) };
    let answer = |sequence| CcAnswer { topic: CLIENTS, sequence, code: 0 };
    let mut e = Proposals::new(Side::Client);
    assert_eq!(e.on_answer(now, ROUND, answer(1)).unwrap_err().code, code::PROTOCOL, "nothing was asked");
    for sequence in [2, 3, u64::MAX] {
        assert_eq!(e.on_propose(now, ROUND, p(sequence, 1)).unwrap_err().code, code::PROTOCOL);
    }
    e.propose(now, ROUND, CLIENTS, offer(1)).unwrap();
    assert_eq!(e.on_answer(now, ROUND, answer(2)).unwrap_err().code, code::PROTOCOL);
    assert_eq!(e.on_propose(now, ROUND, p(2, 1)), Ok(vec![]));
    assert_eq!(
        e.on_propose(now, ROUND, p(2, 2)).unwrap_err().code,
        code::PROTOCOL,
        "another under one number"
    );
    assert_eq!(e.on_propose(now, ROUND, p(3, 1)).unwrap_err().code, code::PROTOCOL);
}

#[test]
fn excessive_changes_are_refused_then_close_the_connection() {
    let now = Time::from_nanos(1);
    let mut e = Proposals::new(Side::Server);
    let (mut decided, mut refused) = (0, 0);
    let end = (1..10_000).find_map(|sequence| {
        let p = CcPropose { topic: CLIENTS, sequence, offer: offer(1) };
        match e.on_propose(now, ROUND, p) {
            Ok(steps) => {
                for s in steps {
                    let (Step::Decide(p) | Step::Refuse(p)) = &s else { panic!("{s:?}") };
                    decided += u64::from(matches!(s, Step::Decide(_)));
                    refused += u32::from(matches!(s, Step::Refuse(_)));
                    e.decided(p, 0);
                }
                None
            }
            Err(v) => Some(v.code),
        }
    });
    assert_eq!((end, decided, refused), (Some(code::LIMIT), THEIR_BURST, MAX_TOO_OFTEN));
}

#[test]
fn topics_are_limited() {
    let mut e = Proposals::new(Side::Server);
    let mut now = Time::from_nanos(1);
    for n in 0..MAX_TOPICS {
        now += ROUND;
        let p = CcPropose { topic: topic(Some(n as u16), false), sequence: 1, offer: offer(1) };
        let steps = e.on_propose(now, ROUND, p).unwrap();
        assert!(matches!(steps[..], [Step::Decide(_)]));
    }
    let p = CcPropose { topic: CLIENTS, sequence: 1, offer: offer(1) };
    assert_eq!(e.on_propose(now, ROUND, p).unwrap_err().code, code::LIMIT);
}
