//! Rate caps of iWARP connections, divided among their streams. TCP enforces them by pacing (`SO_MAX_PACING_RATE`);
//! what the system enforces is read back from the socket.

use super::fair_shares::fair_shares;
use super::{IwarpConn, StreamCommand};
use crate::CapSource;
use crate::Endpoint;
use crate::app::ConnId;
use crate::flow_policy::FlowPolicy;
use base::Rate;

/// Words of the system without anything sent, after which a stream counts as one that sends nothing.
pub(super) const QUIET: u8 = 3;

impl IwarpConn {
    /// Streams that have sent something lately.
    fn sending(&self) -> usize {
        self.quiet.iter().filter(|q| **q < QUIET).count()
    }

    /// Whether anything was sent lately.
    pub(super) fn is_busy(&self) -> bool {
        !self.closed && self.sending() > 0
    }
}

/// A connection while caps are divided.
struct Member {
    conn: ConnId,
    /// The nodes that it is below.
    nodes: Vec<usize>,
    is_busy: bool,
    need: Rate,
    parts: Vec<(usize, Rate)>,
}

impl Endpoint {
    /// What this end sends on a connection by iWARP at most, as whoever made it wants.
    pub(crate) fn set_iwarp_limit(&mut self, conn: ConnId, limit: Option<Rate>) {
        if let Some(b) = self.iwarp_state.conns.get_mut(&conn) {
            b.rate_limit = limit;
            self.share_rate(conn);
        }
    }

    /// What an administrator lets it send at most, beside that.
    pub(crate) fn set_iwarp_cap(&mut self, conn: ConnId, cap: Option<Rate>) {
        if let Some(ruled) = self.iwarp_state.conns.get_mut(&conn).and_then(|b| b.ruled.as_mut()) {
            ruled.own_cap = cap;
            self.share_rate(conn);
            self.query_streams(conn);
        }
    }

    /// The smallest of all caps of a connection by iWARP.
    pub(crate) fn iwarp_cap(&self, conn: ConnId) -> Option<(Rate, CapSource)> {
        let b = self.iwarp_state.conns.get(&conn)?;
        let ruled = b.ruled.as_ref()?;
        self.caps(b.rate_limit, ruled, &b.parts).into_iter().min_by_key(|(rate, _)| *rate)
    }

    /// Whether connections by iWARP have to share a cap of the policy: of a class, or of all.
    pub(super) fn divides_caps(&self) -> bool {
        self.policy()
            .is_some_and(|p| p.process_cap().is_some() || p.classes().iter().any(|c| c.cap.is_some()))
    }

    /// Divides the policy's caps of classes, and of the process, anew among the connections by iWARP that send: who needs less
    /// than an equal part leaves the rest to the others. One that does not send may begin with an equal part.
    pub(crate) fn divide_caps(&mut self) {
        let Some(policy) = self.policy().cloned() else { return };
        let classes = policy.classes();
        let mut members = self.cap_members(classes);
        // Children stand behind their parents: what the caps of classes leave to a connection bounds its need of the process's.
        for node in (0..=classes.len()).rev() {
            let cap = node.checked_sub(1).map_or(policy.process_cap(), |class| classes[class].cap);
            let Some(cap) = cap else { continue };
            let of_node = |m: &&mut Member| m.nodes.contains(&node);
            let mut sharing: Vec<&mut Member> = members.iter_mut().filter(of_node).collect();
            let needs: Vec<Rate> = sharing.iter().filter(|m| m.is_busy).map(|m| m.need).collect();
            let equal = cap.scale(1, needs.len().max(1) as u64);
            let mut shares = fair_shares(cap, &needs).into_iter();
            for m in &mut sharing {
                let part = if m.is_busy { shares.next().unwrap_or(equal) } else { equal };
                m.parts.push((node, part));
                m.need = m.need.min(part);
            }
        }
        for m in members {
            if let Some(b) = self.iwarp_state.conns.get_mut(&m.conn) {
                b.parts = m.parts;
            }
            self.share_rate(m.conn);
        }
    }

    /// The connections by iWARP below the policy's classes, with what each needs at most.
    fn cap_members(&self, classes: &[cc::platform::Class]) -> Vec<Member> {
        let member = |(conn, b): (&ConnId, &IwarpConn)| {
            let ruled = b.ruled.as_ref();
            let nodes: Vec<usize> = ruled.map(|r| above(classes, r).collect()).unwrap_or_default();
            // Caps that it shares with nobody; those of nodes are what is being divided.
            let alone = |(_, of): &(Rate, CapSource)| !matches!(of, CapSource::Class(_) | CapSource::Process);
            let caps = ruled.map(|r| self.caps(b.rate_limit, r, &[])).unwrap_or_default();
            let own = caps.iter().filter(|c| alone(c)).map(|(rate, _)| *rate).min().unwrap_or(Rate::MAX);
            let need = b.need.rate().min(own);
            Member { conn: *conn, nodes, is_busy: b.is_busy(), need, parts: Vec::new() }
        };
        self.iwarp_state.conns.iter().map(member).collect()
    }

    /// Divides the cap among the streams that send; TCP keeps to it by pacing. A stream that begins to send is counted when
    /// the system's next word on it comes: so long it may take a share that another has.
    pub(crate) fn share_rate(&mut self, conn: ConnId) {
        let cap = self.iwarp_cap(conn).map(|(rate, _)| rate);
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        match b.sending() {
            // Nothing was told yet: all of them may begin. Later, those that had a part keep it.
            0 if b.sharers == 0 => b.sharers = b.streams.len().max(1),
            0 => {}
            n => b.sharers = n,
        }
        let share = cap.map(|cap| cap.scale(1, b.sharers as u64));
        if b.rate_share == share || !b.told {
            return;
        }
        b.rate_share = share;
        for (stream, _) in
            b.streams.iter().flatten().filter(|(s, _)| self.iwarp_state.streams.contains_key(s))
        {
            // What the system said before is of another share.
            *b.unheard.entry(*stream).or_default() += 1;
            self.iwarp_state.orders.push_back(StreamCommand::SetPacing { stream: *stream, rate: share });
        }
        self.app_due = true;
    }

    /// Asks the system what each stream goes by now: [`Endpoint::compliance`] compares it with what was ordered.
    pub(crate) fn query_streams(&mut self, conn: ConnId) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn).filter(|b| b.told && !b.closed) else { return };
        for (stream, _) in
            b.streams.iter().flatten().filter(|(s, _)| self.iwarp_state.streams.contains_key(s))
        {
            b.unheard.entry(*stream).or_default();
            self.iwarp_state.orders.push_back(StreamCommand::QueryStats(*stream));
        }
        self.app_due = true;
    }

    /// The driver is about to carry out an order: what the system says from now on is of that.
    pub(super) fn on_command(&mut self, order: &StreamCommand) {
        let (StreamCommand::SetPacing { stream, .. }
        | StreamCommand::SetCongestion { stream, .. }
        | StreamCommand::SetDscp { stream, .. }) = order
        else {
            return;
        };
        let conn = self.iwarp_state.streams.get(stream).and_then(|s| s.conn);
        let bundle = conn.and_then(|conn| self.iwarp_state.conns.get_mut(&conn));
        if let Some(left) = bundle.and_then(|b| b.unheard.get_mut(stream)) {
            *left = left.saturating_sub(1);
        }
    }

    /// Whether the system does on all streams of a connection what it was told; `None`: it has not said since.
    ///
    /// # Errors
    /// What it does instead, in words.
    pub(crate) fn iwarp_compliance(&self, conn: ConnId) -> Option<Result<(), String>> {
        let Some(b) = self.iwarp_state.conns.get(&conn).filter(|b| !b.closed) else {
            return Some(Err("the connection has ended".to_owned()));
        };
        if !b.told {
            // It begins with what was ordered.
            return Some(Ok(()));
        }
        if !b.unheard.is_empty() {
            return None;
        }
        let shown = |rate: Option<Rate>| rate.map_or("no limit".to_owned(), |r| r.to_string());
        for f in b.facts.iter().filter(|f| f.mss > 0) {
            if f.max_rate != b.rate_share {
                let (is, should) = (shown(f.max_rate), shown(b.rate_share));
                return Some(Err(format!(
                    "TCP was told {should} for a stream and keeps {is} (SO_MAX_PACING_RATE); end the connection and make it anew"
                )));
            }
            if f.dscp != b.marked {
                let (is, should) = (f.dscp, b.marked);
                return Some(Err(format!(
                    "packets were to carry the code point {should} and carry {is} (IP_TOS): does the system refuse it?"
                )));
            }
            if let Some(name) = b.ordered.as_ref().filter(|name| **name != f.congestion) {
                return Some(Err(format!(
                    "TCP was told {name} and keeps {} (TCP_CONGESTION): the system refused it; see \
                     /proc/sys/net/ipv4/tcp_allowed_congestion_control",
                    f.congestion
                )));
            }
        }
        Some(Ok(()))
    }
}

impl Endpoint {
    /// What the kernel's TCP does not do of the policy for iWARP connections, and does instead: a sentence each.
    pub fn tcp_remarks(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (conn, b) in self.iwarp_state.conns.iter().filter(|(_, b)| b.told && !b.closed) {
            let Some(choice) = b.ruled.as_ref().and_then(|r| r.choice.as_ref()) else { continue };
            let runs = b.info.iwarp.as_ref().map(|i| i.congestion.as_str()).unwrap_or_default();
            let (name, params) = choice.algorithm.split_once(':').unwrap_or((&choice.algorithm, ""));
            let mut say = |text: String| all.push(format!("flow {}.0 by iWARP: {text}", conn.0));
            // The default is what is said where nobody says anything.
            if name != cc::registry::DEFAULT && !cc::registry::kernel_names(name).iter().any(|n| n == runs) {
                let why =
                    if b.asked_congestion { "which it asked for (--tcp-cc)" } else { "TCP here lacks that" };
                say(format!("it is not decided by {name} but by {runs}: {why}"));
            } else if !params.is_empty() && name != cc::registry::DEFAULT {
                say(format!("the parameters of {} are not TCP's: {runs} has its own", choice.algorithm));
            }
            if let Some(rate) = choice.guarantee {
                say(format!("TCP guarantees nothing: {rate} is not held"));
            }
        }
        all
    }
}

/// The nodes that a flow is below: its class, those above it (each by its index and one), and 0 for all.
pub(crate) fn above<'a>(
    classes: &'a [cc::platform::Class],
    ruled: &FlowPolicy,
) -> impl Iterator<Item = usize> + 'a {
    let first = ruled.choice.as_ref().map(|c| c.class).filter(|c| *c < classes.len());
    // Parents stand before their children.
    let up = core::iter::successors(first, |i| classes[*i].parent.filter(|p| p < i));
    up.map(|i| i + 1).chain([0])
}
