//! Hierarchical sharing: divides the rate of a process among classes, and within a class among sub-classes and flows.
//!
//! As in hierarchical token buckets (Devera's HTB, after Floyd and Jacobson, "Link-sharing and Resource Management
//! Models for Packet Networks", ToN 3(4), 1995) a class has an assured rate and a ceiling, and borrows what others
//! leave. Unlike there, borrowed rate is divided by start-time fair queueing, so that weights hold exactly,
//! independent of bucket sizes.
//!
//! There are no packet queues: flows ask when they are about to send, and a flow that has to wait is called when it
//! is its turn ([`Tree::poll_call`]). A served flow counts as wanting more until it says otherwise ([`Tree::leave`])
//! or does not ask when called; otherwise the order would depend on who asks first.
//!
//! Without a process cap and a capped class above it, a flow may send at once.

mod node;
#[cfg(test)]
mod tests;

use super::bucket::Bucket;
use super::schedule::{QueueKey, SchedState, tag_step};
use crate::platform::{Class, Order};
use base::{Rate, Span, Time};
use node::{LEVELS, Node};

/// Most classes of a policy; further ones are left out.
pub const MAX_CLASSES: usize = 256;
/// Most nodes: classes, and flows with a guarantee of their own.
pub const MAX_NODES: usize = 1_024;
/// Most flows.
pub const MAX_TREE_FLOWS: usize = 1 << 20;
/// Bytes that an idle process or class may send at once in addition to one train.
pub const BURST: u64 = 1 << 16;
/// Lateness of timers that a process with waiting data catches up with, as in the pacer.
const CATCH_UP: Span = crate::pacer::CATCH_UP;
/// Unused time of a guarantee that is available at once.
const GUARANTEE_BURST_TIME: Span = Span::from_millis(10);
/// A called flow that does not ask within this time loses its turn.
const CALL_TIMEOUT: Span = Span::from_millis(1);
/// When to ask again if not called, as a safety net.
const RETRY_INTERVAL: Span = Span::from_millis(20);
/// Most called flows without reaction that are skipped in one call.
const MAX_SKIPPED: usize = 64;

/// A flow's identifier in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(u32);

/// The parameters of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Index of its class in the policy's.
    pub class: usize,
    /// Its weight among the flows of the class, 1 to 10,000.
    pub weight: u32,
    /// Its guaranteed rate, within its class's cap.
    pub guarantee: Option<Rate>,
    /// Its announced bytes and their deadline.
    pub deadline: Option<Due>,
}

/// Bytes with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time.
    pub by: Time,
    /// The bytes, on the wire.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
struct TreeFlow {
    owner: u64,
    node: usize,
    /// Whether it has a node of its own.
    own_node: bool,
    class: usize,
    sched: SchedState,
    /// The rest of its announced bytes.
    due_left: Option<Due>,
    queue_key: Option<QueueKey>,
    /// When it was called.
    called_at: Option<Time>,
    /// When it last wanted to send.
    last_wanted: Time,
    /// Total bytes permitted so far.
    permitted: u64,
}

/// The tree; see the documentation of the module.
#[derive(Debug)]
pub struct Tree {
    /// The root, then classes, parents before children, then flows with guarantees.
    nodes: Vec<Node>,
    classes: usize,
    flows: Vec<Option<TreeFlow>>,
    free: Vec<u32>,
    /// Number of waiting flows.
    waiting: usize,
    /// When the flow whose turn it is was called.
    last_call: Option<Time>,
}

/// The classes with invalid values corrected: weights of zero, levels out of range, parents after children.
fn sanitized(classes: &[Class]) -> impl Iterator<Item = (usize, &Class)> {
    classes.iter().take(MAX_CLASSES).enumerate()
}

impl Tree {
    /// A tree of these classes in a process with this cap.
    pub fn new(classes: &[Class], process_cap: Option<Rate>) -> Tree {
        let mut t = Tree {
            nodes: Vec::new(),
            classes: 0,
            flows: Vec::new(),
            free: Vec::new(),
            waiting: 0,
            last_call: None,
        };
        t.build(classes, process_cap);
        t
    }

    fn build(&mut self, classes: &[Class], process_cap: Option<Rate>) {
        let host = Node { cap: process_cap.map(Bucket::new), ..Node::new("", Order::Fair) };
        self.nodes = vec![host];
        for (i, c) in sanitized(classes) {
            let parent = c.parent.filter(|p| *p < i).map_or(0, |p| p + 1);
            self.nodes.push(Node {
                parent,
                weight: c.weight.max(1).into(),
                level: c.level.min(LEVELS as u8 - 1),
                assured: c.guarantee.map(Bucket::new),
                cap: c.cap.map(Bucket::new),
                ..Node::new(&c.name, c.order)
            });
        }
        if classes.is_empty() {
            self.nodes.push(Node { weight: 1, ..Node::new("", Order::Fair) });
        }
        self.classes = self.nodes.len() - 1;
        self.link();
    }

    /// Sets the children of each node.
    fn link(&mut self) {
        self.nodes.iter_mut().for_each(|n| n.children.clear());
        for i in 1..self.nodes.len() {
            if self.nodes[i].used {
                let parent = self.nodes[i].parent;
                self.nodes[parent].children.push(i);
            }
        }
    }

    /// Replaces the classes. Classes of the same name keep their credit and turn. Waiting flows continue to wait in
    /// the class with the name of theirs, until [`Tree::change`] assigns them.
    pub fn configure(&mut self, classes: &[Class], process_cap: Option<Rate>) {
        let old = core::mem::take(&mut self.nodes);
        self.build(classes, process_cap);
        for n in &mut self.nodes {
            let is_host = n.name.is_empty();
            if let Some(o) = old.iter().find(|o| o.name == n.name && (is_host || o.is_class)) {
                n.inherit(o);
            }
        }
        for i in 0..self.flows.len() {
            let Some(mut m) = self.flows[i].take() else { continue };
            let waits = m.queue_key.take().is_some();
            self.waiting -= usize::from(waits);
            let name = old.get(m.class + 1).map_or("", |o| o.name.as_str());
            m.class = self.nodes[1..].iter().position(|n| n.name == name).unwrap_or(0);
            (m.node, m.own_node) = (m.class + 1, false);
            self.flows[i] = Some(m);
            if waits {
                self.add_waiting(i as u32);
            }
        }
    }

    /// Adds a flow of `owner`, the value that [`Tree::poll_call`] returns. `None` if there are too many; it then
    /// sends without asking.
    pub fn join(&mut self, owner: u64, terms: &Terms) -> Option<FlowId> {
        let i = match self.free.pop() {
            Some(i) => i,
            None if self.flows.len() < MAX_TREE_FLOWS => {
                self.flows.push(None);
                self.flows.len() as u32 - 1
            }
            None => return None,
        };
        let standing = SchedState { weight: 1, deadline: None, tag: 0 };
        self.flows[i as usize] = Some(TreeFlow {
            owner,
            node: 1,
            own_node: false,
            class: 0,
            sched: standing,
            due_left: None,
            queue_key: None,
            called_at: None,
            last_wanted: Time::ZERO,
            permitted: 0,
        });
        self.change(FlowId(i), terms);
        Some(FlowId(i))
    }

    /// Changes a flow's parameters. Of an unchanged announcement, bytes already sent stay counted.
    pub fn change(&mut self, id: FlowId, terms: &Terms) {
        let waits = self.remove_waiting(id.0);
        let before = self.flow_mut(id.0).map(|m| m.node);
        self.release_own_node(id.0);
        let class = terms.class.min(self.classes.saturating_sub(1));
        let node = terms.guarantee.and_then(|g| self.own_node(class, terms.weight, g));
        let Some(m) = self.flow_mut(id.0) else { return };
        if before != Some(node.unwrap_or(class + 1)) {
            // Tags are relative to a node.
            m.sched.tag = 0;
        }
        (m.class, m.own_node, m.node) = (class, node.is_some(), node.unwrap_or(class + 1));
        m.sched.weight = terms.weight.clamp(1, 10_000);
        m.sched.deadline = terms.deadline.map(|d| d.by);
        if m.due_left.map(|d| d.by) != terms.deadline.map(|d| d.by) {
            m.due_left = terms.deadline;
        }
        if waits {
            self.add_waiting(id.0);
        }
    }

    /// Creates a node for a flow with a guarantee of its own.
    fn own_node(&mut self, class: usize, weight: u32, guarantee: Rate) -> Option<usize> {
        let i = match (self.classes + 1..self.nodes.len()).find(|i| !self.nodes[*i].used) {
            Some(i) => i,
            None if self.nodes.len() < MAX_NODES => {
                self.nodes.push(Node::new("", Order::Fair));
                self.nodes.len() - 1
            }
            None => return None,
        };
        self.nodes[i] = Node {
            parent: class + 1,
            is_class: false,
            weight: weight.clamp(1, 10_000).into(),
            assured: Some(Bucket::new(guarantee)),
            ..Node::new("", Order::Fair)
        };
        self.link();
        Some(i)
    }

    fn release_own_node(&mut self, flow: u32) {
        let Some(m) = self.flow_mut(flow).filter(|m| m.own_node) else { return };
        let (node, class) = (m.node, m.class);
        (m.own_node, m.node) = (false, class + 1);
        self.nodes[node].used = false;
        self.link();
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) {
        self.remove_waiting(id.0);
        self.release_own_node(id.0);
        if self.flows.get_mut(id.0 as usize).and_then(Option::take).is_some() {
            self.free.push(id.0);
        }
    }

    fn flow_mut(&mut self, flow: u32) -> Option<&mut TreeFlow> {
        self.flows.get_mut(flow as usize)?.as_mut()
    }

    /// The topmost node with a limit above a flow, below which flows wait for each other.
    fn topmost_limited(&self, node: usize) -> Option<usize> {
        let mut above = Some(node);
        let mut top = None;
        while let Some(i) = above {
            if self.nodes[i].cap.is_some() {
                top = Some(i);
            }
            above = (i > 0).then(|| self.nodes[i].parent);
        }
        top
    }

    /// Requests permission to send a train of these bytes on the wire now.
    ///
    /// # Errors
    /// The time to ask again, unless [`Tree::poll_call`] returns the owner before.
    pub fn ask(&mut self, now: Time, id: FlowId, bytes: u64) -> Result<(), Time> {
        let Some(m) = self.flow_mut(id.0) else { return Ok(()) };
        let node = m.node;
        (m.called_at, m.last_wanted) = (None, now);
        let Some(scope) = self.topmost_limited(node) else {
            self.remove_waiting(id.0);
            self.count_permitted(id.0, bytes);
            return Ok(());
        };
        self.fill_buckets(now);
        self.add_waiting(id.0);
        let Some((first, by_guarantee)) = self.next(now, scope) else { return Err(now + RETRY_INTERVAL) };
        if first != id.0 {
            return Err(now + RETRY_INTERVAL);
        }
        self.charge_train(id.0, bytes, by_guarantee);
        Ok(())
    }

    /// Returns unused permission of [`Tree::ask`].
    pub fn refund(&mut self, id: FlowId, bytes: u64) {
        let Some(m) = self.flow_mut(id.0) else { return };
        m.permitted = m.permitted.saturating_sub(bytes);
        if let Some(d) = &mut m.due_left {
            d.bytes = d.bytes.saturating_add(bytes);
        }
        let back = tag_step(bytes, m.sched.weight.into());
        let (mut i, waits) = (m.node, self.remove_waiting(id.0));
        if let Some(m) = self.flow_mut(id.0) {
            m.sched.tag = m.sched.tag.saturating_sub(back);
        }
        loop {
            self.nodes[i].give_back(bytes);
            if i == 0 {
                break;
            }
            i = self.nodes[i].parent;
        }
        if waits {
            self.add_waiting(id.0);
        }
    }

    /// Records that the flow has nothing to send, or may not for other reasons.
    pub fn leave(&mut self, now: Time, id: FlowId) {
        if self.remove_waiting(id.0)
            && let Some(m) = self.flow_mut(id.0)
        {
            m.last_wanted = now;
        }
    }

    /// The owner of a waiting flow whose turn it is and which should ask now. Each is returned once; call until it
    /// returns `None`.
    pub fn poll_call(&mut self, now: Time) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        self.fill_buckets(now);
        self.last_call = None;
        let (first, _) = self.next(now, 0)?;
        let m = self.flow_mut(first)?;
        let before = m.called_at;
        let (called, owner) = (*m.called_at.get_or_insert(now), m.owner);
        self.last_call = Some(called);
        before.is_none().then_some(owner)
    }

    /// When [`Tree::poll_call`] should be called next; `None` while no flow waits.
    pub fn deadline(&self) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        if let Some(host) = self.nodes[0].cap.as_ref().filter(|b| !b.is_open()) {
            return Some(host.opens_at());
        }
        // A flow was called, or all wait below a class that has used its rate.
        let shut = self.nodes.iter().filter(|n| n.waiting_flows > 0).filter_map(|n| n.cap.as_ref());
        let opens = shut.filter(|b| !b.is_open()).map(Bucket::opens_at).min();
        opens.into_iter().chain(self.last_call.map(|t| t + CALL_TIMEOUT)).min()
    }

    /// Total bytes that a flow was permitted to send.
    pub fn permitted(&self, id: FlowId) -> u64 {
        self.flows.get(id.0 as usize).and_then(Option::as_ref).map_or(0, |m| m.permitted)
    }

    /// What is granted to the flows of a class: deadlines with the rest of their bytes, and the sum of guarantees.
    pub fn promised(&self, class: usize) -> (Vec<Due>, Rate) {
        let of_class = || self.flows.iter().flatten().filter(|m| m.class == class);
        let dues = of_class().filter_map(|m| m.due_left).filter(|d| d.bytes > 0).collect();
        let own = of_class().filter(|m| m.own_node).filter_map(|m| self.nodes[m.node].assured.as_ref());
        let sum = own.map(|b| b.rate.bytes_per_sec()).fold(0, u64::saturating_add);
        (dues, Rate::from_bytes_per_sec(sum))
    }
}
