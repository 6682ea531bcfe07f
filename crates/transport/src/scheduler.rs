//! Chooses the queue pair that sends next: strict priority between levels, round robin within one.

use std::collections::VecDeque;

/// Priority levels, 0 the highest.
pub const LEVELS: usize = 8;

/// What the scheduler knows of one queue pair.
#[derive(Clone, Copy, Debug)]
struct Member {
    flow: u8,
    level: u8,
    queued: bool,
}

/// The queue pairs of a connection that have something to send, by flow and priority.
#[derive(Debug, Default)]
pub struct Scheduler {
    members: Vec<Option<Member>>,
    known: usize,
    /// For each flow, those that are ready.
    ready: Vec<Levels>,
}

/// The queue pairs of a flow that have something to send.
#[derive(Debug, Default)]
struct Levels {
    queues: [VecDeque<u16>; LEVELS],
    /// Levels with any, a bit each: this is asked several times for each train.
    busy: u8,
}

const _: () = assert!(LEVELS == u8::BITS as usize);

impl Levels {
    fn push(&mut self, level: u8, qpn: u16) {
        self.queues[usize::from(level)].push_back(qpn);
        self.busy |= 1 << level;
    }
    fn remove(&mut self, level: u8, qpn: u16) {
        let q = &mut self.queues[usize::from(level)];
        if q.front() == Some(&qpn) {
            q.pop_front();
        } else {
            q.retain(|x| *x != qpn);
        }
        if q.is_empty() {
            self.busy &= !(1 << level);
        }
    }
    /// The first of the most urgent level.
    fn first(&self) -> Option<u16> {
        self.queues.get(self.busy.trailing_zeros() as usize)?.front().copied()
    }
}

impl Scheduler {
    /// Makes a queue pair known. Its flow must exist on every lane.
    pub fn insert(&mut self, qpn: u16, flow: u8, level: u8) {
        let i = usize::from(qpn);
        if self.members.len() <= i {
            self.members.resize(i + 1, None);
        }
        self.known += usize::from(self.members[i].is_none());
        self.members[i] = Some(Member { flow, level: level.min(LEVELS as u8 - 1), queued: false });
        while self.ready.len() <= usize::from(flow) {
            self.ready.push(Default::default());
        }
    }

    /// Whether the queue pair is known.
    pub fn contains(&self, qpn: u16) -> bool {
        self.members.get(usize::from(qpn)).is_some_and(Option::is_some)
    }

    /// Queue pairs that are known.
    pub const fn len(&self) -> usize {
        self.known
    }

    /// Whether no queue pair is known.
    pub const fn is_empty(&self) -> bool {
        self.known == 0
    }

    /// The flow of a queue pair.
    pub fn flow(&self, qpn: u16) -> Option<u8> {
        self.members.get(usize::from(qpn))?.as_ref().map(|m| m.flow)
    }

    /// Queue pairs of a flow.
    pub fn members_of(&self, flow: u8) -> usize {
        self.members.iter().flatten().filter(|m| m.flow == flow).count()
    }

    /// All queue pairs, each with its flow.
    pub fn members(&self) -> impl Iterator<Item = (u16, u8)> + '_ {
        self.members.iter().zip(0_u16..).filter_map(|(m, qpn)| Some((qpn, m.as_ref()?.flow)))
    }

    /// The queue pair belongs to another flow from now on, which exists on every lane. It keeps its priority.
    pub fn move_to(&mut self, qpn: u16, flow: u8) {
        let Some(Some(m)) = self.members.get(usize::from(qpn)).copied() else { return };
        if m.flow != flow {
            self.deactivate(qpn);
            self.insert(qpn, flow, m.level);
            if m.queued {
                self.activate(qpn);
            }
        }
    }

    /// The queue pair has something to send.
    pub fn activate(&mut self, qpn: u16) {
        if let Some(Some(m)) = self.members.get_mut(usize::from(qpn))
            && !m.queued
        {
            m.queued = true;
            self.ready[usize::from(m.flow)].push(m.level, qpn);
        }
    }

    /// Whether any queue pair of the flow is ready.
    pub fn is_ready(&self, flow: u8) -> bool {
        self.ready.get(usize::from(flow)).is_some_and(|l| l.busy != 0)
    }

    /// Whether more than one queue pair of the flow is ready.
    pub fn has_several(&self, flow: u8) -> bool {
        self.ready
            .get(usize::from(flow))
            .is_some_and(|l| l.queues.iter().map(VecDeque::len).sum::<usize>() > 1)
    }

    /// The queue pair whose turn it is. It stays at the front until [`Scheduler::rotate`] or
    /// [`Scheduler::deactivate`].
    pub fn current(&self, flow: u8) -> Option<u16> {
        self.ready.get(usize::from(flow))?.first()
    }

    /// The queue pair had its train: the next of its level has its turn.
    pub fn rotate(&mut self, qpn: u16) {
        if let Some(Some(m)) = self.members.get(usize::from(qpn)) {
            let q = &mut self.ready[usize::from(m.flow)].queues[usize::from(m.level)];
            if q.front() == Some(&qpn) && q.len() > 1 {
                q.rotate_left(1);
            }
        }
    }

    /// The queue pair has nothing more to send.
    pub fn deactivate(&mut self, qpn: u16) {
        if let Some(Some(m)) = self.members.get_mut(usize::from(qpn))
            && m.queued
        {
            m.queued = false;
            self.ready[usize::from(m.flow)].remove(m.level, qpn);
        }
    }

    /// The queue pair is gone.
    pub fn remove(&mut self, qpn: u16) {
        self.deactivate(qpn);
        if let Some(m) = self.members.get_mut(usize::from(qpn)) {
            self.known -= usize::from(m.take().is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_is_strict_and_round_robin_within_a_level() {
        let mut s = Scheduler::default();
        for (qpn, level) in [(0, 4), (2, 4), (4, 1)] {
            s.insert(qpn, 0, level);
            s.activate(qpn);
            s.activate(qpn);
        }
        assert_eq!(s.current(0), Some(4));
        s.deactivate(4);
        let turns: Vec<_> = (0..4)
            .map(|_| {
                let q = s.current(0).unwrap();
                s.rotate(q);
                q
            })
            .collect();
        assert_eq!(turns, [0, 2, 0, 2]);
        s.remove(0);
        s.deactivate(2);
        assert!(!s.is_ready(0) && !s.contains(0));
        assert_eq!(s.current(3), None);
    }

    #[test]
    fn moved_queue_pair_keeps_its_turn_and_priority() {
        let mut s = Scheduler::default();
        for qpn in [0, 2, 4] {
            s.insert(qpn, 0, 3);
        }
        s.activate(2);
        s.move_to(2, 1);
        s.move_to(4, 1);
        assert!(!s.is_ready(0) && s.is_ready(1));
        assert_eq!((s.current(1), s.flow(2), s.len()), (Some(2), Some(1), 3));
        assert_eq!((s.members_of(0), s.members_of(1)), (1, 2));
        s.activate(4);
        s.move_to(2, 1);
        assert_eq!(s.current(1), Some(2), "moved to where it is");
        s.deactivate(2);
        assert_eq!(s.current(1), Some(4));
    }
}
