//! Groups of datagram queue pairs (InfiniBand's multicast).
//!
//! A datagram to a group is copied by its sender for each process that has members, over the connection that there is to it: so it is
//! encrypted, paced and sent again like all others, and nobody outside the cluster can forge, read or replay one. Who has members is
//! asked outside ([`Management::GroupWanted`]): a group is asked for when the program begins to send to it, and each second while it
//! does.

use super::datagram::{Destination, Header, MAX_WAITING, Outgoing, Told};
use super::{Fabric, Management};
use base::{Span, Time};
use endpoint::Endpoint;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use verbs::Error;

/// The queue pair number that means all members of a group.
pub const EVERY_MEMBER: u32 = 0xff_ffff;
/// Groups that a program has joined or sends to.
const MAX_GROUPS: usize = 1_024;
/// Queue pairs of a process that are members of one group.
const MAX_OWN_MEMBERS: usize = 1_024;
/// Processes that are known to have members of a group.
const MAX_PROCESSES: usize = 1_024;
/// The first datagrams to a group wait this long for its members to be found: the time for this many questions.
const FIRST_QUESTIONS: u32 = 3;
const BETWEEN_QUESTIONS: Span = Span::from_millis(70);
/// How often members are asked for while the program sends.
const ASKS_EVERY: Span = Span::from_secs(1);
/// A process that has not answered so many questions has no members any more.
const MOST_MISSED: u32 = 5;

/// A group.
#[derive(Default)]
struct Group {
    /// Own queue pairs that are members.
    own: BTreeSet<u32>,
    /// Processes elsewhere that have members, and how many questions they have not answered.
    others: BTreeMap<SocketAddr, u32>,
    /// When members were last asked for.
    asked: Option<Time>,
    /// Questions that are left before the first datagrams leave, and when the next one is due.
    searching: Option<(u32, Time)>,
    /// Datagrams that wait for that.
    waiting: VecDeque<(Destination, Outgoing)>,
}

/// The groups of a process.
#[derive(Default)]
pub(super) struct Groups {
    all: BTreeMap<IpAddr, Group>,
}

impl Groups {
    /// Room for one more: a group that nobody here is a member of, and to which nothing waits, is found again when it is needed.
    fn make_room(&mut self) {
        if self.all.len() < MAX_GROUPS {
            return;
        }
        let idle = |g: &Group| g.own.is_empty() && g.waiting.is_empty();
        let oldest = self.all.iter().filter(|(_, g)| idle(g)).min_by_key(|(_, g)| g.asked).map(|(a, _)| *a);
        oldest.and_then(|a| self.all.remove(&a));
    }

    fn entry(&mut self, group: IpAddr) -> Option<&mut Group> {
        if !self.all.contains_key(&group) {
            self.make_room();
        }
        let has_room = self.all.len() < MAX_GROUPS || self.all.contains_key(&group);
        has_room.then(|| self.all.entry(group).or_default())
    }

    /// When [`Fabric::search_groups`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.all.values().filter_map(|g| g.searching.map(|(_, at)| at)).min()
    }

    /// The members of this process.
    pub(super) fn own(&self, group: IpAddr) -> Vec<u32> {
        self.all.get(&group).map(|g| g.own.iter().copied().collect()).unwrap_or_default()
    }

    /// A queue pair is gone.
    pub(super) fn forget(&mut self, number: u32) {
        for g in self.all.values_mut() {
            g.own.remove(&number);
        }
    }

    /// Whether datagrams wait.
    pub(super) fn is_busy(&self) -> bool {
        self.all.values().any(|g| !g.waiting.is_empty())
    }

    /// All datagrams that wait.
    pub(super) fn drain(&mut self) -> Vec<Told> {
        let all = self.all.values_mut().flat_map(|g| {
            g.searching = None;
            g.waiting.drain(..)
        });
        all.map(|(_, d)| d.told).collect()
    }
}

/// Whether a datagram goes to a group.
pub(super) fn is_for_group(to: &Destination) -> bool {
    to.number == EVERY_MEMBER && to.host.is_multicast()
}

impl Fabric {
    /// Makes a datagram queue pair a member of a group.
    pub(crate) fn join(&mut self, number: u32, group: IpAddr) -> Result<(), Error> {
        let group = group.to_canonical();
        if !group.is_multicast() || !self.datagrams.pairs.contains_key(&number) {
            return Err(Error::Invalid("only datagram queue pairs join groups"));
        }
        let g = self.groups.entry(group).ok_or(Error::Limit("groups of a process"))?;
        if g.own.len() >= MAX_OWN_MEMBERS && !g.own.contains(&number) {
            return Err(Error::Limit("members of a group"));
        }
        g.own.insert(number);
        Ok(())
    }

    /// Takes a queue pair out of a group.
    pub(crate) fn leave(&mut self, number: u32, group: IpAddr) -> Result<(), Error> {
        let g = self.groups.all.get_mut(&group.to_canonical());
        let was_in = g.is_some_and(|g| g.own.remove(&number));
        if was_in { Ok(()) } else { Err(Error::NotFound("member of the group")) }
    }

    /// A process says that it has members of a group. Nobody is believed who was not asked for.
    pub(crate) fn note_member(&mut self, group: IpAddr, process: SocketAddr) {
        let Some(g) = self.groups.all.get_mut(&group.to_canonical()) else { return };
        if g.asked.is_some() && (g.others.len() < MAX_PROCESSES || g.others.contains_key(&process)) {
            g.others.insert(process, 0);
        }
    }

    /// Sends a datagram to all members of a group.
    pub(super) fn send_to_group(&mut self, now: Time, endpoint: &mut Endpoint, to: Destination, d: Outgoing) {
        let group = to.host.to_canonical();
        let Some(g) = self.groups.entry(group) else { return self.datagrams.end(d.told) };
        let is_new = g.asked.is_none();
        if is_new {
            g.searching = Some((FIRST_QUESTIONS, now + BETWEEN_QUESTIONS));
        }
        if g.asked.is_none_or(|at| now.since(at) >= ASKS_EVERY) {
            self.ask_for_members(now, group, to.own);
        }
        let Some(g) = self.groups.all.get_mut(&group) else { return };
        if g.searching.is_none() {
            return self.copy_to_group(now, endpoint, &to, d);
        }
        if g.waiting.len() >= MAX_WAITING {
            return self.datagrams.end(d.told);
        }
        g.waiting.push_back((to, d));
    }

    fn ask_for_members(&mut self, now: Time, group: IpAddr, own: IpAddr) {
        let Some(g) = self.groups.all.get_mut(&group) else { return };
        g.asked = Some(now);
        g.others.retain(|_, missed| {
            *missed += 1;
            *missed <= MOST_MISSED
        });
        if let Some(listener) = &self.management {
            listener(Management::GroupWanted { group, own });
        }
    }

    /// Asks again for groups whose first datagrams wait, or sends these.
    pub(super) fn search_groups(&mut self, now: Time, endpoint: &mut Endpoint) {
        let is_due = |g: &Group| g.searching.is_some_and(|(_, at)| at <= now);
        let due: Vec<IpAddr> = self.groups.all.iter().filter(|(_, g)| is_due(g)).map(|(a, _)| *a).collect();
        for group in due {
            let Some(g) = self.groups.all.get_mut(&group) else { continue };
            let left = g.searching.map_or(0, |(left, _)| left.saturating_sub(1));
            if left > 0 {
                g.searching = Some((left, now + BETWEEN_QUESTIONS));
                let own = g.waiting.front().map(|(to, _)| to.own);
                own.into_iter().for_each(|own| self.ask_for_members(now, group, own));
                continue;
            }
            g.searching = None;
            for (to, d) in core::mem::take(&mut g.waiting) {
                self.copy_to_group(now, endpoint, &to, d);
            }
        }
    }

    /// One copy for each process, and one for each member here. The sender is told when all of them have ended.
    fn copy_to_group(&mut self, now: Time, endpoint: &mut Endpoint, to: &Destination, d: Outgoing) {
        let group = to.host.to_canonical();
        let Some(g) = self.groups.all.get(&group) else { return self.datagrams.end(d.told) };
        let others: Vec<SocketAddr> = g.others.keys().copied().collect();
        if let Some((head, payload)) = Header::parse(&d.bytes) {
            let head = Header { dscp: d.dscp, ..head };
            self.deliver_to_group(endpoint, &head, payload);
        }
        let Some(copy) = self.datagrams.split(d.told, others.len()) else { return };
        for process in others {
            let copy = Outgoing { bytes: d.bytes.clone(), told: Told::Copy(copy), dscp: d.dscp };
            self.send_to_process(now, endpoint, process, copy);
        }
    }

    /// A datagram for the members here: each that has its Q_Key gets a copy, its sender included.
    pub(super) fn deliver_to_group(&mut self, endpoint: &mut Endpoint, head: &Header, payload: &[u8]) {
        for number in self.groups.own(IpAddr::V6(head.host).to_canonical()) {
            self.datagrams.put(endpoint, number, head, payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_for_all_at_a_group_means_a_group() {
        let to = |host: &str, number| {
            let host = host.parse().expect("an address");
            Destination { own: host, host, number, q_key: 1, dscp: 0 }
        };
        assert!(is_for_group(&to("224.0.1.9", EVERY_MEMBER)) && is_for_group(&to("ff0e::9", EVERY_MEMBER)));
        assert!(!is_for_group(&to("192.0.2.1", EVERY_MEMBER)) && !is_for_group(&to("224.0.1.9", 7)));
    }

    #[test]
    fn groups_that_nobody_here_is_in_make_room_for_others() {
        let mut groups = Groups::default();
        let address = |n: usize| IpAddr::from([239, 0, (n >> 8) as u8, n as u8]);
        let kept = groups.entry(address(0)).expect("room");
        kept.own.insert(7);
        for n in 1..MAX_GROUPS + 5 {
            assert!(groups.entry(address(n)).is_some(), "{n}");
            assert!(groups.all.len() <= MAX_GROUPS);
        }
        assert_eq!(groups.own(address(0)), [7]);
        for g in groups.all.values_mut() {
            g.own.insert(1);
        }
        assert!(groups.entry(address(MAX_GROUPS + 9)).is_none(), "members of all of them");
        groups.forget(1);
        assert_eq!(groups.own(address(0)), [7]);
    }
}
