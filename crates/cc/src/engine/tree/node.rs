//! Nodes of the tree, and the choice of and charge for the next flow.

use super::{BURST, CALL_TIMEOUT, CATCH_UP, GUARANTEE_BURST_TIME, MAX_SKIPPED, Tree};
use crate::engine::bucket::Bucket;
use crate::engine::schedule::{Queue, tag_step};
use crate::platform::Order;
use base::Time;

/// Levels of priority among siblings, 0 the highest.
pub(super) const LEVELS: usize = 8;
/// A node that paused for no longer than this keeps its turn.
const SHORT_PAUSE: base::Span = base::Span::from_millis(5);
/// Bytes that a node after such a pause may be behind its siblings.
const MAX_BEHIND: u64 = 1 << 18;
/// Bytes that a node may be ahead of its siblings because of its guarantee: about 7 ms at 10 Gbit/s.
const MAX_AHEAD: u64 = 1 << 23;

/// The root, a class, or a flow with a guarantee of its own.
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
    /// Flows directly in this node.
    pub queue: Queue,
    /// Number of waiting flows in and below this node.
    pub waiting_flows: usize,
    /// Virtual time of its next service, among its siblings.
    pub tag: u128,
    /// Virtual time of the next service of its own flows, among its children.
    pub own_tag: u128,
    /// Virtual time of its children, per level.
    pub virtual_time: [u128; LEVELS],
    /// When flows last waited here.
    pub last_active: Time,
    /// Whether a flow here or below can send now.
    pub can_send: bool,
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
            waiting_flows: 0,
            tag: 0,
            own_tag: 0,
            virtual_time: [0; LEVELS],
            last_active: Time::ZERO,
            can_send: false,
        }
    }

    /// Continues the state of the same class in the previous policy.
    pub fn inherit(&mut self, old: &Node) {
        let keep = |new: &mut Option<Bucket>, old: &Option<Bucket>| {
            if let (Some(n), Some(o)) = (new, old) {
                *n = o.with_rate(n.rate);
            }
        };
        keep(&mut self.assured, &old.assured);
        keep(&mut self.cap, &old.cap);
        (self.tag, self.own_tag, self.virtual_time, self.last_active) =
            (old.tag, old.own_tag, old.virtual_time, old.last_active);
    }

    pub fn give_back(&mut self, bytes: u64) {
        self.cap.iter_mut().for_each(|b| b.give_back(bytes));
        self.assured.iter_mut().for_each(|b| b.give_back(bytes));
        self.tag = self.tag.saturating_sub(tag_step(bytes, self.weight));
    }
}

/// A candidate for the next service: the node's own flows, or a child.
#[derive(Clone, Copy)]
enum Candidate {
    Own,
    Child(usize),
}

impl Tree {
    /// Fills all buckets up to now.
    pub(super) fn fill_buckets(&mut self, now: Time) {
        for n in &mut self.nodes {
            let late = n.waiting_flows > 0;
            if let Some(b) = &mut n.cap {
                b.fill(now, if late { BURST.max(b.rate.bytes_in(CATCH_UP)) } else { BURST });
            }
            if let Some(b) = &mut n.assured {
                b.fill(now, BURST.max(b.rate.bytes_in(GUARANTEE_BURST_TIME)));
            }
        }
    }

    /// Adds a flow to those that wait.
    pub(super) fn add_waiting(&mut self, flow: u32) {
        let Some(m) = self.flows.get_mut(flow as usize).and_then(Option::as_mut) else { return };
        if m.queue_key.is_some() {
            return;
        }
        let (mut i, wanted) = (m.node, m.last_wanted);
        let n = &mut self.nodes[i];
        // Unused time earns no credit, but short pauses do not lose the turn.
        let behind = tag_step(MAX_BEHIND, m.sched.weight.into());
        m.sched.tag = m.sched.tag.max(n.queue.virtual_time().saturating_sub(behind));
        if n.queue.is_empty() {
            n.own_tag = n.own_tag.max(n.virtual_time[0].saturating_sub(behind));
        }
        m.queue_key = Some(n.queue.insert(flow, &m.sched));
        self.waiting += 1;
        loop {
            let n = &mut self.nodes[i];
            n.waiting_flows += 1;
            let came = (n.waiting_flows == 1).then_some((n.level, n.last_active));
            n.last_active = n.last_active.max(wanted);
            if i == 0 {
                break;
            }
            let parent = n.parent;
            if let Some((level, last)) = came {
                let served = self.nodes[parent].virtual_time[usize::from(level)];
                let behind = if wanted.since(last) > SHORT_PAUSE {
                    0
                } else {
                    tag_step(MAX_BEHIND, self.nodes[i].weight)
                };
                let least = served.saturating_sub(behind);
                self.nodes[i].tag = self.nodes[i].tag.max(least);
            }
            i = parent;
        }
    }

    /// Removes a flow from those that wait; returns whether it did.
    pub(super) fn remove_waiting(&mut self, flow: u32) -> bool {
        let Some(m) = self.flows.get_mut(flow as usize).and_then(Option::as_mut) else { return false };
        let Some(place) = m.queue_key.take() else { return false };
        m.called_at = None;
        let mut i = m.node;
        self.nodes[i].queue.remove(&place, m.sched.weight);
        self.waiting -= 1;
        loop {
            let n = &mut self.nodes[i];
            n.waiting_flows -= 1;
            n.last_active = n.last_active.max(m.last_wanted);
            if i == 0 {
                break;
            }
            i = n.parent;
        }
        true
    }

    /// Counts permitted bytes of a flow.
    pub(super) fn count_permitted(&mut self, flow: u32, bytes: u64) {
        if let Some(Some(m)) = self.flows.get_mut(flow as usize) {
            m.permitted = m.permitted.saturating_add(bytes);
            if let Some(d) = &mut m.due_left {
                d.bytes = d.bytes.saturating_sub(bytes);
            }
        }
    }

    /// Charges a train to a flow, which continues to wait for the next one.
    pub(super) fn charge_train(&mut self, flow: u32, bytes: u64, by_guarantee: bool) {
        self.count_permitted(flow, bytes);
        let Some(mut m) = self.flows[flow as usize].take() else { return };
        let mut i = m.node;
        let queue = &mut self.nodes[i].queue;
        if let Some(p) = m.queue_key.take() {
            let all = queue.weight();
            queue.remove(&p, m.sched.weight);
            queue.on_served(m.sched.tag);
            m.sched.tag += tag_step(bytes, m.sched.weight.into());
            m.queue_key = Some(queue.insert(flow, &m.sched));
            self.charge_own_flows(i, bytes, all, by_guarantee);
        }
        self.flows[flow as usize] = Some(m);
        loop {
            let n = &mut self.nodes[i];
            n.cap.iter_mut().for_each(|b| b.take(bytes));
            if let Some(b) = &mut n.assured {
                if by_guarantee { b.take(bytes) } else { b.take_available(bytes) }
            }
            if i == 0 {
                break;
            }
            let (level, tag, step, parent) = (n.level, n.tag, tag_step(bytes, n.weight), n.parent);
            let now = &mut self.nodes[parent].virtual_time[usize::from(level)];
            if !by_guarantee {
                *now = (*now).max(tag);
            }
            // Service by guarantee does not count against the share beyond a limit.
            let most = *now + max_tag_lead(self.nodes[i].weight);
            self.nodes[i].tag = (tag + step).min(most.max(tag));
            i = parent;
        }
    }

    /// Charges a node's own flows, which weigh among the children as much as the waiting flows together.
    fn charge_own_flows(&mut self, node: usize, bytes: u64, weight: u64, by_guarantee: bool) {
        let n = &mut self.nodes[node];
        if n.children.is_empty() {
            return;
        }
        if !by_guarantee {
            n.virtual_time[0] = n.virtual_time[0].max(n.own_tag);
        }
        n.own_tag += tag_step(bytes, weight);
    }

    /// The flow whose turn it is in or below a node, and whether by guarantee. Takes time in the number of classes,
    /// once more for each called flow that did not ask.
    pub(super) fn next(&mut self, now: Time, scope: usize) -> Option<(u32, bool)> {
        for _ in 0..MAX_SKIPPED {
            let found = self.find_next(scope)?;
            let late = self.flows[found.0 as usize]
                .as_ref()
                .is_some_and(|m| m.called_at.is_some_and(|t| now.since(t) >= CALL_TIMEOUT));
            if !late {
                return Some(found);
            }
            self.remove_waiting(found.0);
        }
        None
    }

    fn find_next(&mut self, scope: usize) -> Option<(u32, bool)> {
        // Children come after their parents.
        for i in (scope..self.nodes.len()).rev() {
            let n = &self.nodes[i];
            let below = !n.queue.is_empty() || n.children.iter().any(|c| self.nodes[*c].can_send);
            self.nodes[i].can_send = n.used && below && n.cap.as_ref().is_none_or(Bucket::is_open);
        }
        if !self.nodes[scope].can_send {
            return None;
        }
        let due = |n: &&(usize, i128)| self.path_can_send(n.0, scope);
        let assured = self.nodes.iter().enumerate().skip(scope).filter_map(|(i, n)| {
            let b = n.assured.as_ref().filter(|b| n.can_send && b.is_open())?;
            Some((i, b.fill_time()))
        });
        let longest = assured.filter(|n| due(&n)).max_by_key(|n| n.1);
        match longest {
            Some((i, _)) => Some((self.next_below(i)?, true)),
            None => Some((self.next_below(scope)?, false)),
        }
    }

    /// Whether a node is in or below `scope`, and every node between may send.
    fn path_can_send(&self, node: usize, scope: usize) -> bool {
        let mut i = node;
        while i > scope {
            if !self.nodes[i].can_send {
                return false;
            }
            i = self.nodes[i].parent;
        }
        i == scope
    }

    /// The next flow below a node: highest level first, then by weights.
    fn next_below(&self, node: usize) -> Option<u32> {
        let mut i = node;
        loop {
            let n = &self.nodes[i];
            let own = (!n.queue.is_empty()).then_some((0, n.own_tag, Candidate::Own));
            let open = n.children.iter().filter(|c| self.nodes[**c].can_send);
            let children = open.map(|c| (self.nodes[*c].level, self.nodes[*c].tag, Candidate::Child(*c)));
            match own.into_iter().chain(children).min_by_key(|(level, tag, _)| (*level, *tag))?.2 {
                Candidate::Own => return n.queue.first(),
                Candidate::Child(c) => i = c,
            }
        }
    }
}

/// The most that a node's tag may be ahead.
fn max_tag_lead(weight: u64) -> u128 {
    tag_step(MAX_AHEAD, weight)
}
