//! Tokens from the host down to the flow: what the host may send is divided among classes, in a class among its
//! sub-classes and flows.
//!
//! As in hierarchical token buckets (Devera's HTB, after Floyd and Jacobson, "Link-sharing and Resource Management Models
//! for Packet Networks", ToN 3(4), 1995) a class has an assured rate and a ceiling, and borrows what others leave. Unlike
//! there, what is borrowed is divided by start-time fair queueing, so that weights hold exactly and not by the size of
//! buckets.
//!
//! Nobody here has queues of packets: flows ask when they are about to send, and who may not is called when it is its turn
//! ([`Tree::poll_call`]). A flow that was served counts as one that wants more until it says that it does not
//! ([`Tree::leave`]), or does not come when it is called; else the order would depend on who asks first.
//!
//! Where nothing is scarce (no cap of the host, and no class above the flow has one) a flow may send at once.

mod node;
#[cfg(test)]
mod tests;

use super::bucket::Bucket;
use super::schedule::{Place, Standing, step};
use crate::platform::{Class, Order};
use base::{Rate, Span, Time};
use node::{LEVELS, Node};

/// Classes of a policy at most; more are left out.
pub const MAX_CLASSES: usize = 256;
/// Classes, and flows with a guarantee of their own, at most.
pub const MAX_NODES: usize = 1_024;
/// Flows at most.
pub const MAX_TREE_FLOWS: usize = 1 << 20;
/// What a host that was idle, or a class, may send at once beside one train.
pub const BURST: u64 = 1 << 16;
/// How much lateness of timers a host with data waiting catches up with, as the pacer does.
const CATCH_UP: Span = crate::pacer::CATCH_UP;
/// A guarantee that was not used for this long is there at once.
const SAVED: Span = Span::from_millis(10);
/// Who is called and does not come within this time has lost its turn.
const PATIENCE: Span = Span::from_millis(1);
/// When to ask again if nobody called meanwhile: a net below the calls.
const ASK_AGAIN: Span = Span::from_millis(20);
/// Flows that do not come when called, passed over in one go.
const MAX_PASSED: usize = 64;

/// A flow of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(u32);

/// How a flow takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Index of its class in the policy's.
    pub class: usize,
    /// Its weight among the flows of the class, 1 to 10,000.
    pub weight: u32,
    /// What it may count on, within what its class may send.
    pub guarantee: Option<Rate>,
    /// When the bytes are to have left that it announced, and how many.
    pub deadline: Option<Due>,
}

/// Bytes that are to leave until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The time.
    pub by: Time,
    /// The bytes, on the wire.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
struct Member {
    owner: u64,
    node: usize,
    /// It has the node for itself.
    own_node: bool,
    class: usize,
    standing: Standing,
    /// What is left of what it announced.
    due: Option<Due>,
    place: Option<Place>,
    /// When it was called.
    called: Option<Time>,
    /// When it wanted something last.
    wanted: Time,
    /// Bytes that it was permitted so far.
    permitted: u64,
}

/// The tree. See the module's documentation.
#[derive(Debug)]
pub struct Tree {
    /// The host, then classes, parents before children, then flows with guarantees.
    nodes: Vec<Node>,
    classes: usize,
    members: Vec<Option<Member>>,
    free: Vec<u32>,
    /// Flows that wait.
    waiting: usize,
    /// When the flow was called whose turn it is.
    last_call: Option<Time>,
}

/// The policy's classes may not be trusted to be sound: weights of zero, levels beyond the last, parents behind children.
fn sane(classes: &[Class]) -> impl Iterator<Item = (usize, &Class)> {
    classes.iter().take(MAX_CLASSES).enumerate()
}

impl Tree {
    /// A tree of these classes below a host that may send so much.
    pub fn new(classes: &[Class], process_cap: Option<Rate>) -> Tree {
        let mut t = Tree {
            nodes: Vec::new(),
            classes: 0,
            members: Vec::new(),
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
        for (i, c) in sane(classes) {
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

    /// Tells parents of their children.
    fn link(&mut self) {
        self.nodes.iter_mut().for_each(|n| n.children.clear());
        for i in 1..self.nodes.len() {
            if self.nodes[i].used {
                let parent = self.nodes[i].parent;
                self.nodes[parent].children.push(i);
            }
        }
    }

    /// Other classes from now on. Classes of the same name keep their credit and their turn. Flows that wait go on waiting, in
    /// the class of the name that theirs had, until [`Tree::change`] says where they belong.
    pub fn configure(&mut self, classes: &[Class], process_cap: Option<Rate>) {
        let old = core::mem::take(&mut self.nodes);
        self.build(classes, process_cap);
        for n in &mut self.nodes {
            let is_host = n.name.is_empty();
            if let Some(o) = old.iter().find(|o| o.name == n.name && (is_host || o.is_class)) {
                n.take_over(o);
            }
        }
        for i in 0..self.members.len() {
            let Some(mut m) = self.members[i].take() else { continue };
            let waits = m.place.take().is_some();
            self.waiting -= usize::from(waits);
            let name = old.get(m.class + 1).map_or("", |o| o.name.as_str());
            m.class = self.nodes[1..].iter().position(|n| n.name == name).unwrap_or(0);
            (m.node, m.own_node) = (m.class + 1, false);
            self.members[i] = Some(m);
            if waits {
                self.enter(i as u32);
            }
        }
    }

    /// Takes in a flow of `owner`, whom [`Tree::poll_call`] names. `None` when there are too many: it sends unasked then.
    pub fn join(&mut self, owner: u64, terms: &Terms) -> Option<FlowId> {
        let i = match self.free.pop() {
            Some(i) => i,
            None if self.members.len() < MAX_TREE_FLOWS => {
                self.members.push(None);
                self.members.len() as u32 - 1
            }
            None => return None,
        };
        let standing = Standing { weight: 1, deadline: None, tag: 0 };
        self.members[i as usize] = Some(Member {
            owner,
            node: 1,
            own_node: false,
            class: 0,
            standing,
            due: None,
            place: None,
            called: None,
            wanted: Time::ZERO,
            permitted: 0,
        });
        self.change(FlowId(i), terms);
        Some(FlowId(i))
    }

    /// Other terms for a flow from now on. Of what it announced before, what has left stays left, unless it announces
    /// something else.
    pub fn change(&mut self, id: FlowId, terms: &Terms) {
        let waits = self.take_out(id.0);
        let before = self.member(id.0).map(|m| m.node);
        self.drop_node(id.0);
        let class = terms.class.min(self.classes.saturating_sub(1));
        let node = terms.guarantee.and_then(|g| self.own_node(class, terms.weight, g));
        let Some(m) = self.member(id.0) else { return };
        if before != Some(node.unwrap_or(class + 1)) {
            // Tags are those of a node.
            m.standing.tag = 0;
        }
        (m.class, m.own_node, m.node) = (class, node.is_some(), node.unwrap_or(class + 1));
        m.standing.weight = terms.weight.clamp(1, 10_000);
        m.standing.deadline = terms.deadline.map(|d| d.by);
        if m.due.map(|d| d.by) != terms.deadline.map(|d| d.by) {
            m.due = terms.deadline;
        }
        if waits {
            self.enter(id.0);
        }
    }

    /// A node for a flow with a guarantee of its own.
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

    fn drop_node(&mut self, flow: u32) {
        let Some(m) = self.member(flow).filter(|m| m.own_node) else { return };
        let (node, class) = (m.node, m.class);
        (m.own_node, m.node) = (false, class + 1);
        self.nodes[node].used = false;
        self.link();
    }

    /// The flow is gone.
    pub fn remove(&mut self, id: FlowId) {
        self.take_out(id.0);
        self.drop_node(id.0);
        if self.members.get_mut(id.0 as usize).and_then(Option::take).is_some() {
            self.free.push(id.0);
        }
    }

    fn member(&mut self, flow: u32) -> Option<&mut Member> {
        self.members.get_mut(flow as usize)?.as_mut()
    }

    /// The topmost node above a flow that has a limit: below it, flows wait for each other.
    fn scarce(&self, node: usize) -> Option<usize> {
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

    /// Asks for the permission to send a train of so many bytes on the wire now.
    ///
    /// # Errors
    /// When to ask again, unless [`Tree::poll_call`] calls before.
    pub fn ask(&mut self, now: Time, id: FlowId, bytes: u64) -> Result<(), Time> {
        let Some(m) = self.member(id.0) else { return Ok(()) };
        let node = m.node;
        (m.called, m.wanted) = (None, now);
        let Some(scope) = self.scarce(node) else {
            self.take_out(id.0);
            self.note(id.0, bytes);
            return Ok(());
        };
        self.fill(now);
        self.enter(id.0);
        let Some((first, by_guarantee)) = self.next(now, scope) else { return Err(now + ASK_AGAIN) };
        if first != id.0 {
            return Err(now + ASK_AGAIN);
        }
        self.charge(id.0, bytes, by_guarantee);
        Ok(())
    }

    /// Gives back what a train did not need of what [`Tree::ask`] permitted.
    pub fn refund(&mut self, id: FlowId, bytes: u64) {
        let Some(m) = self.member(id.0) else { return };
        m.permitted = m.permitted.saturating_sub(bytes);
        if let Some(d) = &mut m.due {
            d.bytes = d.bytes.saturating_add(bytes);
        }
        let back = step(bytes, m.standing.weight.into());
        let (mut i, waits) = (m.node, self.take_out(id.0));
        if let Some(m) = self.member(id.0) {
            m.standing.tag = m.standing.tag.saturating_sub(back);
        }
        loop {
            self.nodes[i].give_back(bytes);
            if i == 0 {
                break;
            }
            i = self.nodes[i].parent;
        }
        if waits {
            self.enter(id.0);
        }
    }

    /// The flow has nothing to send, or may not for reasons of its own.
    pub fn leave(&mut self, now: Time, id: FlowId) {
        if self.take_out(id.0)
            && let Some(m) = self.member(id.0)
        {
            m.wanted = now;
        }
    }

    /// The owner of a flow that waits and whose turn it is: it should ask now. Each is named once; call until it gives
    /// nothing.
    pub fn poll_call(&mut self, now: Time) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        self.fill(now);
        self.last_call = None;
        let (first, _) = self.next(now, 0)?;
        let m = self.member(first)?;
        let before = m.called;
        let (called, owner) = (*m.called.get_or_insert(now), m.owner);
        self.last_call = Some(called);
        before.is_none().then_some(owner)
    }

    /// When [`Tree::poll_call`] may have something to say; `None` when nobody waits.
    pub fn deadline(&self) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        if let Some(host) = self.nodes[0].cap.as_ref().filter(|b| !b.is_open()) {
            return Some(host.opens());
        }
        // Somebody was called, or everybody is below a class that has sent what it may.
        let shut = self.nodes.iter().filter(|n| n.active > 0).filter_map(|n| n.cap.as_ref());
        let opens = shut.filter(|b| !b.is_open()).map(Bucket::opens).min();
        opens.into_iter().chain(self.last_call.map(|t| t + PATIENCE)).min()
    }

    /// Bytes that a flow was permitted to send so far.
    pub fn permitted(&self, id: FlowId) -> u64 {
        self.members.get(id.0 as usize).and_then(Option::as_ref).map_or(0, |m| m.permitted)
    }

    /// What is promised in a class to flows: times by which bytes are to leave, what is left of them, and guarantees.
    pub fn promised(&self, class: usize) -> (Vec<Due>, Rate) {
        let of_class = || self.members.iter().flatten().filter(|m| m.class == class);
        let dues = of_class().filter_map(|m| m.due).filter(|d| d.bytes > 0).collect();
        let own = of_class().filter(|m| m.own_node).filter_map(|m| self.nodes[m.node].assured.as_ref());
        let sum = own.map(|b| b.rate.bytes_per_sec()).fold(0, u64::saturating_add);
        (dues, Rate::from_bytes_per_sec(sum))
    }
}
