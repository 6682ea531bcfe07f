//! The state of all identifiers of a process. Commands, messages, answers and time come in; replies, events and [`Action`]s go out.

mod address;
mod connect;
mod group;
mod peer;

pub use peer::Origin;

use crate::Errno;
use crate::abi::{QPT_RC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, event, space};
use crate::command::{Command, Reply, Request};
use crate::event::Event;
use crate::lookup::Packet;
use crate::message::{Kind, Message, Parameters};
use base::{Span, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Identifiers of a process at a time: librdmacm finds them by numbers of 16 bits.
const MAX_IDS: usize = 1 << 16;
/// Requests of one peer that no program has accepted or refused yet.
const MAX_INCOMING: u32 = 1_024;
/// The longest queue of requests that a program can ask for, and what it gets that asks for none.
const MAX_BACKLOG: u32 = 1_024;
/// How long an end of a connection waits for the other one's program.
const PROGRAM_ANSWERS_WITHIN: Span = Span::from_secs(60);
/// How long it waits for the end of a connection to be confirmed.
const ENDS_WITHIN: Span = Span::from_secs(5);
/// How long the end of a connection is held back that the peer has asked for: what it sent before is to be seen first, by threads that
/// wait for completions. With an adapter a message of its manager is slower than data, and programs rely on that.
const SETTLES: Span = Span::from_millis(10);
/// How long a queue pair rests after its connection has ended.
const TIME_WAIT: Span = Span::from_millis(500);
/// How long the host's answer about a service is waited for.
const ANSWERS_WITHIN: Span = Span::from_secs(10);
/// How long after the first query the second one goes; each further one takes twice as long, up to a second.
const ASKS_AGAIN: Span = Span::from_millis(100);

/// An event channel.
pub type ChannelId = u64;

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The number of events of a channel has changed by so many.
    Ring {
        /// Which.
        channel: ChannelId,
        /// By how many.
        by: i64,
    },
    /// Asks who has a service, on a socket that is kept for this identifier.
    Ask {
        /// Whose.
        id: u32,
        /// Where.
        to: SocketAddr,
        /// What.
        query: Packet,
    },
    /// An identifier asks no more.
    StopAsking {
        /// Whose.
        id: u32,
    },
    /// A message to another process, from this address.
    Send {
        /// Where its engine is.
        to: SocketAddr,
        /// The own address.
        own: IpAddr,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Something for the user.
    Say(String),
}

/// What the manager asks of the system while it does a command.
pub trait Host {
    /// Takes UDP port `at` for a service, or another free one for port 0; returns which.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES.
    fn take_service(&mut self, at: SocketAddr, v6_only: bool) -> Result<SocketAddr, Errno>;
    /// Gives it back. A port that was taken twice is given back twice.
    fn give_back_service(&mut self, at: SocketAddr);
    /// The own address and the peer's by which `to` is reached, from `from` where the program has said so.
    ///
    /// # Errors
    /// ENETUNREACH and the like.
    fn route(&self, to: IpAddr, from: Option<IpAddr>) -> Result<(IpAddr, IpAddr), Errno>;
    /// Whether this is an address of this host.
    fn is_own(&self, a: IpAddr) -> bool;
    /// The index of an own address among the device's GIDs.
    fn gid_index(&self, a: IpAddr) -> Option<u8>;
    /// The device's GUID, as `ibv_get_device_guid` gives it.
    fn guid(&self) -> u64;
    /// The engine's UDP port.
    fn port(&self) -> u16;
    /// Random bytes.
    fn random(&mut self) -> [u8; 16];
    /// The channel behind a descriptor.
    fn channel_of(&self, descriptor: u32) -> Option<ChannelId>;
    /// Bytes of the program.
    ///
    /// # Errors
    /// EFAULT.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Errno>;
}

/// How far an identifier has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// The peer's host is asked which process has the service.
    Asking {
        query: Packet,
        tries: u32,
        refusals: u32,
        again: Time,
    },
    /// The peer's program is asked.
    Requested,
    /// A peer's request is with the program.
    Incoming,
    /// The program has accepted; the peer is to be ready.
    Replied,
    /// The peer has accepted; the program is to be ready.
    Answered,
    Established,
    Disconnecting,
    /// It has ended, lately.
    TimeWait,
    Ended,
}

/// An identifier.
#[derive(Debug)]
struct Id {
    channel: ChannelId,
    /// What the program knows it by; 0 until a request is accepted.
    uid: u64,
    space: u16,
    qp_type: u8,
    state: State,
    /// When the state is over.
    deadline: Option<Time>,
    /// Its entry in the manager's timers.
    timer: Option<Time>,
    /// Own address and the peer's, as the program sees them.
    source: Option<SocketAddr>,
    target: Option<SocketAddr>,
    /// The UDP port that is taken for it.
    service: Option<SocketAddr>,
    /// Own address and the peer's, by which queue pairs find each other.
    path: Option<(IpAddr, IpAddr)>,
    reuses_address: bool,
    v6_only: bool,
    /// The time-out that the program wants for its queue pair.
    ack_timeout: Option<u8>,
    /// Type of service: the traffic class of what its queue pair sends.
    type_of_service: u8,
    events_reported: u32,
    backlog: u32,
    /// Requests that the program has not fetched.
    waiting: u32,
    /// What the peer's manager knows it by.
    tag: u16,
    /// The peer's engine, and what its manager knows this connection by (0: not yet known).
    process: Option<SocketAddr>,
    peer: u32,
    /// Of the own queue pair, and of the peer's.
    own: Parameters,
    theirs: Parameters,
    /// What goes out once it is known where to.
    request: Option<Message>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Manager {
    ids: BTreeMap<u32, Id>,
    next: u32,
    /// When something is due for which identifier.
    timers: BTreeSet<(Time, u32)>,
    channels: BTreeMap<ChannelId, VecDeque<Event>>,
    memberships: BTreeMap<u32, group::Membership>,
    next_membership: u32,
    next_channel: ChannelId,
    next_port: u16,
    /// Requests of each peer that no program has answered.
    incoming: HashMap<SocketAddr, u32>,
    actions: VecDeque<Action>,
    /// Of what the user was told.
    said: std::collections::HashSet<String>,
}

const INVALID: Errno = Errno(libc::EINVAL);

impl Id {
    fn new(channel: ChannelId, uid: u64, space: u16, qp_type: u8, tag: u16) -> Id {
        Id {
            channel,
            uid,
            space,
            qp_type,
            state: State::Idle,
            deadline: None,
            timer: None,
            source: None,
            target: None,
            service: None,
            path: None,
            reuses_address: false,
            v6_only: false,
            ack_timeout: None,
            type_of_service: 0,
            events_reported: 0,
            backlog: 0,
            waiting: 0,
            tag,
            process: None,
            peer: 0,
            own: Parameters::default(),
            theirs: Parameters::default(),
            request: None,
        }
    }

    const fn is_datagram(&self) -> bool {
        self.qp_type == QPT_UD
    }
    /// Whether it takes requests of a type of queue pair.
    fn takes(&self, qp_type: u8, is_datagram: bool) -> bool {
        match qp_type {
            QPT_XRC_SEND => self.qp_type == QPT_XRC_RECV,
            _ => self.is_datagram() == is_datagram && self.qp_type != QPT_XRC_RECV,
        }
    }

    /// What peers know it by: a number that was not used lately.
    fn wire(&self, handle: u32) -> u32 {
        u32::from(self.tag) << 16 | handle & 0xffff
    }
}

impl Manager {
    /// The next thing to do outside.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A new event channel.
    pub fn open(&mut self) -> ChannelId {
        self.next_channel += 1;
        self.channels.insert(self.next_channel, VecDeque::new());
        self.next_channel
    }

    /// A channel is closed: all its identifiers end.
    pub fn close(&mut self, host: &mut dyn Host, channel: ChannelId) {
        let of: Vec<u32> = self.ids.iter().filter(|(_, i)| i.channel == channel).map(|(h, _)| *h).collect();
        for handle in of {
            self.destroy(host, handle);
        }
        self.channels.remove(&channel);
    }

    /// Takes back what a command has made.
    pub fn take_back(&mut self, host: &mut dyn Host, reply: &Reply) {
        if let Some(handle) = reply.made {
            self.destroy(host, handle);
        }
        if let Some(membership) = reply.joined {
            self.end_membership(membership);
        }
    }

    /// How many identifiers there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Does a command that was written to a channel.
    ///
    /// # Errors
    /// As the kernel: ENOENT for an identifier that there is not, EINVAL for one of another channel or in another state, and by
    /// command. EAGAIN: there is no event.
    pub fn run(
        &mut self,
        now: Time,
        host: &mut dyn Host,
        channel: ChannelId,
        request: &Request<'_>,
    ) -> Result<Reply, Errno> {
        let room = request.room;
        let reply = |at: u64, bytes: Vec<u8>| {
            if at == 0 { Err(Errno(libc::EFAULT)) } else { Ok(Reply { at, bytes, ..Reply::default() }) }
        };
        let number = |at: u64, n: u32| reply(at, n.to_ne_bytes().to_vec());
        let none = |()| Reply::default();
        match request.command()? {
            Command::CreateId { at, uid, space, qp_type } => {
                let handle = self.create(host, channel, uid, (space, qp_type))?;
                let reply = number(at, handle).inspect_err(|_| drop(self.ids.remove(&handle)))?;
                Ok(Reply { made: Some(handle), ..reply })
            }
            Command::DestroyId { at, id } => {
                self.find(channel, id)?;
                let reported = self.destroy(host, id);
                number(at, reported)
            }
            Command::GetEvent { at } => {
                if at == 0 {
                    return Err(Errno(libc::EFAULT));
                }
                let bytes = self.take_event(channel, room)?;
                reply(at, bytes)
            }
            Command::MigrateId { at, id, descriptor } => {
                let reported = self.migrate(host, channel, id, descriptor)?;
                number(at, reported)
            }
            Command::Bind { id, to } => self.bind(host, channel, id, to).map(none),
            Command::ResolveAddress { id, from, to } => self.resolve(host, channel, id, (from, to)).map(none),
            Command::ResolveRoute { id } => self.resolve_route(channel, id).map(none),
            Command::QueryRoute { at, id } => reply(at, self.query_route(host, channel, id, room)?),
            Command::Query { at, id, option } => reply(at, self.query(host, channel, id, (option, room))?),
            Command::Connect { id, with } => self.connect(now, host, channel, (id, with)).map(none),
            Command::Listen { id, backlog } => self.listen(host, channel, id, backlog).map(none),
            Command::Accept { id, uid, with } => self.accept(now, channel, (id, uid), with).map(none),
            Command::Reject { id, reason, private } => self.reject(channel, id, reason, private).map(none),
            Command::Disconnect { id } => self.disconnect(now, channel, id).map(none),
            Command::QueuePairAttributes { at, id, state } => {
                reply(at, self.attributes(host, channel, id, state)?)
            }
            Command::SetOption { id, level, name, value, len } => {
                self.set_option(host, channel, id, ((level, name), (value, len))).map(none)
            }
            Command::Notify { id, event } => self.notify(channel, id, event).map(none),
            Command::Join { at, uid, id, to, flags } => {
                // Where it cannot be told, nothing is made.
                reply(at, vec![])?;
                let made = self.join(host, channel, (id, uid), (to, flags))?;
                Ok(Reply { joined: Some(made), ..number(at, made)? })
            }
            Command::Leave { at, id } => {
                reply(at, vec![])?;
                number(at, self.leave(channel, id)?)
            }
        }
    }

    fn find(&mut self, channel: ChannelId, handle: u32) -> Result<&mut Id, Errno> {
        match self.ids.get_mut(&handle) {
            None => Err(Errno(libc::ENOENT)),
            Some(i) if i.channel != channel => Err(INVALID),
            Some(i) => Ok(i),
        }
    }

    fn create(
        &mut self,
        host: &mut dyn Host,
        channel: ChannelId,
        uid: u64,
        (of, qp_type): (u16, u8),
    ) -> Result<u32, Errno> {
        let qp_type = match of {
            space::TCP => QPT_RC,
            space::UDP | space::IPOIB => QPT_UD,
            space::IB => qp_type,
            _ => return Err(INVALID),
        };
        let [a, b, ..] = host.random();
        self.insert(Id::new(channel, uid, of, qp_type, u16::from_ne_bytes([a, b]))).ok_or(Errno(libc::ENOMEM))
    }

    /// Gives an identifier its number, as late as possible after another one had it.
    fn insert(&mut self, id: Id) -> Option<u32> {
        if self.ids.len() >= MAX_IDS {
            return None;
        }
        while self.ids.contains_key(&self.next) {
            self.next = (self.next + 1) % MAX_IDS as u32;
        }
        let handle = self.next;
        self.next = (handle + 1) % MAX_IDS as u32;
        self.ids.insert(handle, id);
        Some(handle)
    }

    /// Forgets an identifier, and tells its peer. Returns how many events of it the program has seen.
    fn destroy(&mut self, host: &mut dyn Host, handle: u32) -> u32 {
        let Some(id) = self.ids.get(&handle) else { return 0 };
        let (channel, state) = (id.channel, id.state.clone());
        match state {
            State::Asking { .. } => self.actions.push_back(Action::StopAsking { id: handle }),
            State::Requested => self.send_reject(handle, crate::abi::reason::TIMEOUT, vec![]),
            State::Incoming => self.send_reject(handle, crate::abi::reason::CONSUMER, vec![]),
            State::Replied | State::Answered | State::Established if !id.is_datagram() => {
                self.send(handle, Kind::Disconnect);
            }
            _ => {}
        }
        self.leave_incoming(handle);
        let made = self.drop_events(channel, handle);
        for request in made {
            self.destroy(host, request);
        }
        self.memberships.retain(|_, m| m.owner != handle);
        let Some(id) = self.ids.remove(&handle) else { return 0 };
        if let Some(at) = id.timer {
            self.timers.remove(&(at, handle));
        }
        if let Some(at) = id.service {
            host.give_back_service(at);
        }
        id.events_reported
    }

    /// Takes out the events that nobody is to see any more; returns the identifiers that were to be made by them.
    fn drop_events(&mut self, channel: ChannelId, owner: u32) -> Vec<u32> {
        let Some(queue) = self.channels.get_mut(&channel) else { return vec![] };
        let before = queue.len();
        let made = queue.iter().filter(|e| e.owner == owner).filter_map(|e| e.made).collect();
        queue.retain(|e| e.owner != owner);
        let by = queue.len() as i64 - before as i64;
        self.ring(channel, by);
        made
    }

    fn ring(&mut self, channel: ChannelId, by: i64) {
        if by != 0 {
            self.actions.push_back(Action::Ring { channel, by });
        }
    }

    /// An event for the program. Before a request is accepted its identifier has none but the request itself.
    fn tell(&mut self, e: Event) {
        let Some(owner) = self.ids.get(&e.owner).filter(|i| i.uid != 0 || e.is_request()) else { return };
        let channel = owner.channel;
        let Some(queue) = self.channels.get_mut(&channel) else { return };
        queue.push_back(e);
        self.ring(channel, 1);
    }

    fn take_event(&mut self, channel: ChannelId, room: usize) -> Result<Vec<u8>, Errno> {
        let queue = self.channels.get_mut(&channel).ok_or(Errno(libc::EBADF))?;
        let e = queue.pop_front().ok_or(Errno(libc::EAGAIN))?;
        self.ring(channel, -1);
        let owner = self.ids.get_mut(&e.owner).ok_or(Errno(libc::EAGAIN))?;
        owner.events_reported = owner.events_reported.wrapping_add(1);
        owner.waiting -= u32::from(e.is_request()).min(owner.waiting);
        let uid = owner.uid;
        // Of a group the program knows its membership.
        let of_group = e.membership.and_then(|m| self.memberships.get_mut(&m));
        let uid = of_group.map_or(uid, |m| {
            m.events_reported = m.events_reported.wrapping_add(1);
            m.uid
        });
        Ok(e.bytes(uid, room))
    }

    /// Moves an identifier, and its events, from the channel behind `descriptor` to this one.
    fn migrate(
        &mut self,
        host: &dyn Host,
        to: ChannelId,
        handle: u32,
        descriptor: u32,
    ) -> Result<u32, Errno> {
        let from = host.channel_of(descriptor).ok_or(INVALID)?;
        let id = self.find(from, handle)?;
        id.channel = to;
        let reported = id.events_reported;
        let Some(queue) = self.channels.get_mut(&from) else { return Err(INVALID) };
        let (moved, kept): (VecDeque<_>, _) = queue.drain(..).partition(|e| e.owner == handle);
        *queue = kept;
        let by = moved.len() as i64;
        // Identifiers of requests that were not fetched go with the one that listens.
        for made in moved.iter().filter_map(|e| e.made) {
            if let Some(i) = self.ids.get_mut(&made) {
                i.channel = to;
            }
        }
        self.channels.entry(to).or_default().extend(moved);
        self.ring(from, -by);
        self.ring(to, by);
        Ok(reported)
    }

    /// A line for the user, once.
    fn say(&mut self, text: &str) {
        const MOST: usize = 64;
        if self.said.len() < MOST && self.said.insert(text.to_owned()) {
            self.actions.push_back(Action::Say(text.to_owned()));
        }
    }

    /// Leaves the state in which a request waits for the program.
    fn leave_incoming(&mut self, handle: u32) {
        let Some(i) = self.ids.get(&handle).filter(|i| i.state == State::Incoming) else { return };
        let Some(process) = i.process else { return };
        if let Some(n) = self.incoming.get_mut(&process) {
            *n -= 1;
            if *n == 0 {
                self.incoming.remove(&process);
            }
        }
    }

    /// Gives an identifier its next state, and the time by which that one is over.
    fn set_state(&mut self, handle: u32, state: State, deadline: Option<Time>) {
        self.leave_incoming(handle);
        if let Some(i) = self.ids.get_mut(&handle) {
            (i.state, i.deadline) = (state, deadline);
        }
        self.set_timer(handle);
    }

    /// The end of what an identifier was for.
    fn end(&mut self, handle: u32, number: u32, status: i32) {
        self.set_state(handle, State::Ended, None);
        self.tell(Event::plain(handle, number, status));
    }

    /// The end of a connection, after which its queue pair rests for a while.
    fn end_connection(&mut self, now: Time, handle: u32) {
        self.set_state(handle, State::TimeWait, Some(now + TIME_WAIT));
        self.tell(Event::plain(handle, event::DISCONNECTED, 0));
    }
}

#[cfg(test)]
mod tests;
