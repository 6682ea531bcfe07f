//! Nodes of the tree, and how the next flow is found and paid for.

use super::{BURST, CATCH_UP, MAX_PASSED, PATIENCE, SAVED, Tree};
use crate::engine::bucket::Bucket;
use crate::engine::schedule::{Queue, step};
use crate::platform::Order;
use base::Time;

/// Levels of priority among siblings, 0 the highest.
pub(super) const LEVELS: usize = 8;
/// Who was away for no longer than this keeps its turn.
const AWAY: base::Span = base::Span::from_millis(5);
/// Bytes that one that was away for so short may be behind its siblings.
const BEHIND: u64 = 1 << 18;
/// Bytes that one may be ahead of its siblings by what it had by a guarantee: about what leaves in 7 ms at 10 Gbit/s.
const AHEAD: u64 = 1 << 23;

/// The host, a class, or a flow with a guarantee of its own.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub name: String,
    pub used: bool,
    pub is_class: bool,
    pub parent: usize,
    pub children: Vec<usize>,
    pub weight: u64,
    pub level: u8,
    pub assured: Option<Bucket>,
    pub cap: Option<Bucket>,
    /// Flows that stand directly here.
    pub queue: Queue,
    /// Flows that wait here and below.
    pub active: usize,
    /// Virtual time at which it is served next, among its siblings.
    pub tag: u128,
    /// The same of the flows that stand here, among the children.
    pub own_tag: u128,
    /// Virtual time of its children, by level.
    pub now: [u128; LEVELS],
    /// When flows waited here last.
    pub last: Time,
    /// Somebody here or below can be served.
    pub open: bool,
}

impl Node {
    pub fn new(name: &str, order: Order) -> Node {
        Node {
            name: name.to_owned(),
            used: true,
            is_class: true,
            parent: 0,
            children: Vec::new(),
            weight: 1,
            level: 0,
            assured: None,
            cap: None,
            queue: Queue::new(order),
            active: 0,
            tag: 0,
            own_tag: 0,
            now: [0; LEVELS],
            last: Time::ZERO,
            open: false,
        }
    }

    /// Goes on where the same class of an older policy was.
    pub fn take_over(&mut self, old: &Node) {
        let keep = |new: &mut Option<Bucket>, old: &Option<Bucket>| {
            if let (Some(n), Some(o)) = (new, old) {
                *n = o.at(n.rate);
            }
        };
        keep(&mut self.assured, &old.assured);
        keep(&mut self.cap, &old.cap);
        (self.tag, self.own_tag, self.now, self.last) = (old.tag, old.own_tag, old.now, old.last);
    }

    pub fn give_back(&mut self, bytes: u64) {
        self.cap.iter_mut().for_each(|b| b.give_back(bytes));
        self.assured.iter_mut().for_each(|b| b.give_back(bytes));
        self.tag = self.tag.saturating_sub(step(bytes, self.weight));
    }
}

/// What of a node is compared: its flows of its own, or a child.
#[derive(Clone, Copy)]
enum Part {
    Own,
    Child(usize),
}

impl Tree {
    /// Credit of all buckets up to now.
    pub(super) fn fill(&mut self, now: Time) {
        for n in &mut self.nodes {
            let late = n.active > 0;
            if let Some(b) = &mut n.cap {
                b.fill(now, if late { BURST.max(b.rate.bytes_in(CATCH_UP)) } else { BURST });
            }
            if let Some(b) = &mut n.assured {
                b.fill(now, BURST.max(b.rate.bytes_in(SAVED)));
            }
        }
    }

    /// A flow waits from now on.
    pub(super) fn enter(&mut self, flow: u32) {
        let Some(m) = self.members.get_mut(flow as usize).and_then(Option::as_mut) else { return };
        if m.place.is_some() {
            return;
        }
        let (mut i, wanted) = (m.node, m.wanted);
        let n = &mut self.nodes[i];
        // What it did not want earlier gives no claim now; short pauses do no harm.
        let behind = step(BEHIND, m.standing.weight.into());
        m.standing.tag = m.standing.tag.max(n.queue.now().saturating_sub(behind));
        if n.queue.is_empty() {
            n.own_tag = n.own_tag.max(n.now[0].saturating_sub(behind));
        }
        m.place = Some(n.queue.insert(flow, &m.standing));
        self.waiting += 1;
        loop {
            let n = &mut self.nodes[i];
            n.active += 1;
            let came = (n.active == 1).then_some((n.level, n.last));
            n.last = n.last.max(wanted);
            if i == 0 {
                break;
            }
            let parent = n.parent;
            if let Some((level, last)) = came {
                let served = self.nodes[parent].now[usize::from(level)];
                let behind = if wanted.since(last) > AWAY { 0 } else { step(BEHIND, self.nodes[i].weight) };
                let least = served.saturating_sub(behind);
                self.nodes[i].tag = self.nodes[i].tag.max(least);
            }
            i = parent;
        }
    }

    /// A flow does not wait any more; whether it did.
    pub(super) fn take_out(&mut self, flow: u32) -> bool {
        let Some(m) = self.members.get_mut(flow as usize).and_then(Option::as_mut) else { return false };
        let Some(place) = m.place.take() else { return false };
        m.called = None;
        let mut i = m.node;
        self.nodes[i].queue.remove(&place, m.standing.weight);
        self.waiting -= 1;
        loop {
            let n = &mut self.nodes[i];
            n.active -= 1;
            n.last = n.last.max(m.wanted);
            if i == 0 {
                break;
            }
            i = n.parent;
        }
        true
    }

    /// Counts a train for a flow.
    pub(super) fn note(&mut self, flow: u32, bytes: u64) {
        if let Some(Some(m)) = self.members.get_mut(flow as usize) {
            m.permitted = m.permitted.saturating_add(bytes);
            if let Some(d) = &mut m.due {
                d.bytes = d.bytes.saturating_sub(bytes);
            }
        }
    }

    /// A train for a flow, which goes on waiting for the next one.
    pub(super) fn charge(&mut self, flow: u32, bytes: u64, by_guarantee: bool) {
        self.note(flow, bytes);
        let Some(mut m) = self.members[flow as usize].take() else { return };
        let mut i = m.node;
        let queue = &mut self.nodes[i].queue;
        if let Some(p) = m.place.take() {
            let all = queue.weight();
            queue.remove(&p, m.standing.weight);
            queue.served(m.standing.tag);
            m.standing.tag += step(bytes, m.standing.weight.into());
            m.place = Some(queue.insert(flow, &m.standing));
            self.serve_own(i, bytes, all, by_guarantee);
        }
        self.members[flow as usize] = Some(m);
        loop {
            let n = &mut self.nodes[i];
            n.cap.iter_mut().for_each(|b| b.take(bytes));
            if let Some(b) = &mut n.assured {
                if by_guarantee { b.take(bytes) } else { b.take_at_most(bytes) }
            }
            if i == 0 {
                break;
            }
            let (level, tag, step, parent) = (n.level, n.tag, step(bytes, n.weight), n.parent);
            let now = &mut self.nodes[parent].now[usize::from(level)];
            if !by_guarantee {
                *now = (*now).max(tag);
            }
            // What was had by a guarantee is not held against it for ever.
            let most = *now + ahead(self.nodes[i].weight);
            self.nodes[i].tag = (tag + step).min(most.max(tag));
            i = parent;
        }
    }

    /// Among children, the flows that stand in a class directly weigh what all that wait weigh together.
    fn serve_own(&mut self, node: usize, bytes: u64, weight: u64, by_guarantee: bool) {
        let n = &mut self.nodes[node];
        if n.children.is_empty() {
            return;
        }
        if !by_guarantee {
            n.now[0] = n.now[0].max(n.own_tag);
        }
        n.own_tag += step(bytes, weight);
    }

    /// The flow whose turn it is in or below a node, and whether that is so by a guarantee. Takes time in the number of
    /// classes, once more for each flow that did not come when called.
    pub(super) fn next(&mut self, now: Time, scope: usize) -> Option<(u32, bool)> {
        for _ in 0..MAX_PASSED {
            let found = self.look(scope)?;
            let late = self.members[found.0 as usize]
                .as_ref()
                .is_some_and(|m| m.called.is_some_and(|t| now.since(t) >= PATIENCE));
            if !late {
                return Some(found);
            }
            self.take_out(found.0);
        }
        None
    }

    fn look(&mut self, scope: usize) -> Option<(u32, bool)> {
        // Children stand behind their parents.
        for i in (scope..self.nodes.len()).rev() {
            let n = &self.nodes[i];
            let below = !n.queue.is_empty() || n.children.iter().any(|c| self.nodes[*c].open);
            self.nodes[i].open = n.used && below && n.cap.as_ref().is_none_or(Bucket::is_open);
        }
        if !self.nodes[scope].open {
            return None;
        }
        let due = |n: &&(usize, i128)| self.reaches(n.0, scope);
        let assured = self.nodes.iter().enumerate().skip(scope).filter_map(|(i, n)| {
            let b = n.assured.as_ref().filter(|b| n.open && b.is_open())?;
            Some((i, b.age()))
        });
        let longest = assured.filter(|n| due(&n)).max_by_key(|n| n.1);
        match longest {
            Some((i, _)) => Some((self.descend(i)?, true)),
            None => Some((self.descend(scope)?, false)),
        }
    }

    /// Whether a node is in or below `scope`, and every node between lets it send.
    fn reaches(&self, node: usize, scope: usize) -> bool {
        let mut i = node;
        while i > scope {
            if !self.nodes[i].open {
                return false;
            }
            i = self.nodes[i].parent;
        }
        i == scope
    }

    /// The flow that is next below a node: of the highest level, by weights.
    fn descend(&self, node: usize) -> Option<u32> {
        let mut i = node;
        loop {
            let n = &self.nodes[i];
            let own = (!n.queue.is_empty()).then_some((0, n.own_tag, Part::Own));
            let open = n.children.iter().filter(|c| self.nodes[**c].open);
            let children = open.map(|c| (self.nodes[*c].level, self.nodes[*c].tag, Part::Child(*c)));
            match own.into_iter().chain(children).min_by_key(|(level, tag, _)| (*level, *tag))?.2 {
                Part::Own => return n.queue.first(),
                Part::Child(c) => i = c,
            }
        }
    }
}

/// How far a node's tag may be ahead.
fn ahead(weight: u64) -> u128 {
    step(AHEAD, weight)
}
