//! What peers say, what hosts answer about services, and time.

use super::{ASKS_AGAIN, Action, Host, Id, MAX_INCOMING, Manager, PROGRAM_ANSWERS_WITHIN, SETTLES, State};
use crate::abi::{address_handle, event, reason};
use crate::event::{Details, Event};
use crate::lookup::{self, Packet};
use crate::message::{Kind, Message, Parameters};
use base::{Span, Time};
use std::net::{IpAddr, SocketAddr};

/// A host that says so often that nothing is at a port is believed; a service may be about to start.
const REFUSALS: u32 = 3;
/// As how many of these a process counts that says so itself: it is believed the second time. Programs name their port before they
/// listen at it (qperf 0.4.11).
const BY_PROCESS: u32 = 2;
/// IB_SIDR_UNSUPPORTED: nobody listens for datagrams.
const NO_DATAGRAMS: i32 = 1;
const TIMED_OUT: i32 = -libc::ETIMEDOUT;
const SLOWEST: Span = Span::from_secs(1);

/// From whom a message came, and where it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The engine that sent it.
    pub process: SocketAddr,
    /// The address of this host that it names.
    pub own: IpAddr,
}

impl Manager {
    /// Sends a message that has nothing but its kind.
    pub(super) fn send(&mut self, handle: u32, kind: Kind) {
        if let Some(id) = self.ids.get(&handle) {
            let m = Message::new(kind, id.wire(handle), id.peer);
            self.send_message(handle, &m);
        }
    }

    pub(super) fn send_message(&mut self, handle: u32, m: &Message) {
        let Some(id) = self.ids.get(&handle) else { return };
        if let (Some(to), Some((own, _))) = (id.process, id.path) {
            self.actions.push_back(Action::Send { to, own, bytes: m.encode() });
        }
    }

    /// Whether somebody listens at a taken port.
    pub fn answer(&self, host: &dyn Host, at: SocketAddr, query: &Packet) -> Packet {
        let listens = |i: &Id| i.state == State::Listening && i.service == Some(at) && i.space == query.space;
        query.answer(self.ids.values().any(listens).then(|| host.port()))
    }

    /// A host has answered about a service.
    pub fn on_answer(&mut self, now: Time, handle: u32, answer: &Packet) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let State::Asking { query, .. } = id.state else { return };
        if (answer.nonce, answer.space, answer.port) != (query.nonce, query.space, query.port) {
            return;
        }
        match answer.kind {
            lookup::Kind::Query => {}
            lookup::Kind::Nobody => self.count_refusals(now, handle, BY_PROCESS),
            lookup::Kind::Answer(port) => {
                let Some((_, peer)) = id.path else { return };
                id.process = Some(SocketAddr::new(peer, port));
                let Some(request) = id.request.clone() else { return };
                self.actions.push_back(Action::StopAsking { id: handle });
                self.set_state(handle, State::Requested, Some(now + PROGRAM_ANSWERS_WITHIN));
                self.send_message(handle, &request);
            }
        }
    }

    /// The peer's host says that nothing is at the port: an ICMP message, which anybody could have written.
    pub fn on_refusal(&mut self, now: Time, handle: u32) {
        self.count_refusals(now, handle, 1);
    }

    fn count_refusals(&mut self, now: Time, handle: u32, by: u32) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let State::Asking { refusals, again, .. } = &mut id.state else { return };
        *refusals += by;
        *again = (*again).min(now + ASKS_AGAIN);
        if *refusals >= REFUSALS {
            self.refuse(handle);
        }
        self.set_timer(handle);
    }

    /// Nobody listens.
    fn refuse(&mut self, handle: u32) {
        let Some(id) = self.ids.get(&handle) else { return };
        let target = id.target;
        self.actions.push_back(Action::StopAsking { id: handle });
        let (number, status) = if id.is_datagram() {
            (event::UNREACHABLE, NO_DATAGRAMS)
        } else {
            (event::REJECTED, reason::INVALID_SERVICE.into())
        };
        if let Some(a) = target {
            self.say(&format!(
                "cannot connect to port {} of {}: no program of this cluster listens there; try to start it by `longhaul run` first",
                a.port(),
                a.ip()
            ));
        }
        self.end(handle, number, status);
    }

    /// Nothing can be asked there.
    pub fn on_ask_failed(&mut self, handle: u32, code: i32) {
        let Some(id) = self.ids.get(&handle) else { return };
        if !matches!(id.state, State::Asking { .. }) {
            return;
        }
        self.actions.push_back(Action::StopAsking { id: handle });
        self.end(handle, event::UNREACHABLE, -code);
    }

    /// A message of a peer's manager. What does not fit is dropped.
    pub fn on_message(&mut self, now: Time, host: &mut dyn Host, origin: Origin, bytes: &[u8]) {
        let Some(m) = Message::decode(bytes) else { return };
        if matches!(m.kind, Kind::Request | Kind::DatagramRequest) {
            return self.on_request(host, origin, m);
        }
        if m.kind == Kind::Reject && m.to == 0 {
            return self.on_withdrawal(origin.process, m.from);
        }
        let handle = m.to & 0xffff;
        let is_meant = |id: &Id| {
            let knows = id.process == Some(origin.process) && (id.peer == 0 || id.peer == m.from);
            // A host with several addresses may answer from another one.
            let port = id.process.map(|p| p.port());
            let is_same = id.peer != 0 && id.peer == m.from && port == Some(origin.process.port());
            id.wire(handle) == m.to && (knows || is_same)
        };
        let Some(id) = self.ids.get_mut(&handle).filter(|id| is_meant(id)) else {
            if m.kind == Kind::Disconnect {
                // What is gone has ended.
                let gone = Message::new(Kind::Disconnected, m.to, m.from).encode();
                self.actions.push_back(Action::Send { to: origin.process, own: origin.own, bytes: gone });
            }
            return;
        };
        match (m.kind, &id.state) {
            (Kind::Reply, State::Requested) if is_of(origin.process, m.parameters.number) => {
                id.peer = m.from;
                self.on_reply(host, handle, origin, &m);
            }
            (Kind::DatagramReply, State::Requested) => self.on_datagram_reply(host, handle, &m),
            (Kind::Ready, State::Replied) => {
                self.set_state(handle, State::Established, None);
                self.tell(Event::plain(handle, event::ESTABLISHED, 0));
            }
            (Kind::Reject, State::Requested | State::Replied | State::Incoming | State::Answered) => {
                let details = Details::of_connection(&m);
                self.set_state(handle, State::Ended, None);
                let e = Event::plain(handle, event::REJECTED, m.reason.into());
                self.tell(Event { details, ..e });
            }
            (
                Kind::Disconnect,
                State::Replied | State::Answered | State::Established | State::Disconnecting,
            ) => {
                self.send(handle, Kind::Disconnected);
                self.set_state(handle, State::Disconnecting, Some(now + SETTLES));
            }
            (Kind::Disconnect, State::TimeWait | State::Ended) => self.send(handle, Kind::Disconnected),
            (Kind::Disconnected, State::Disconnecting) => self.end_connection(now, handle),
            _ => {}
        }
    }

    /// A peer does not wait any more for an answer to its request, and does not know our identifier of it yet.
    fn on_withdrawal(&mut self, process: SocketAddr, from: u32) {
        let is_it = |i: &Id| i.state == State::Incoming && i.peer == from && i.process == Some(process);
        let found = self.ids.iter().find(|(_, i)| is_it(i)).map(|(handle, _)| *handle);
        if let Some(handle) = found {
            self.set_state(handle, State::Ended, None);
        }
    }

    fn on_reply(&mut self, host: &dyn Host, handle: u32, origin: Origin, m: &Message) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let details = Details::of_connection(m);
        if let Details::Connection { parameters, .. } = &details {
            id.theirs = *parameters;
            id.own.responder_resources = parameters.responder_resources;
            id.own.initiator_depth = parameters.initiator_depth;
        }
        // The address that the peer sees is the one that it gives to its queue pair.
        if let Some((own, _)) = &mut id.path
            && host.gid_index(origin.own).is_some()
        {
            *own = origin.own;
        }
        self.set_state(handle, State::Answered, None);
        self.tell(Event { details, ..Event::plain(handle, event::CONNECT_RESPONSE, 0) });
    }

    fn on_datagram_reply(&mut self, host: &dyn Host, handle: u32, m: &Message) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        if m.reason != 0 {
            return self.end(handle, event::UNREACHABLE, m.reason.into());
        }
        let Some((own, peer)) = id.path else { return };
        (id.theirs, id.peer) = (m.parameters, m.from);
        let way = address_handle(peer, host.gid_index(own).unwrap_or(0));
        self.set_state(handle, State::Established, None);
        let details = Details::of_datagrams(m, way);
        self.tell(Event { details, ..Event::plain(handle, event::ESTABLISHED, 0) });
    }

    /// Who listens for a service at an own address, if that is not too busy.
    fn listener(&self, host: &dyn Host, origin: Origin, m: &Message) -> Result<u32, u16> {
        let is_datagram = m.kind == Kind::DatagramRequest;
        let rank = |i: &Id| {
            let at = i.source.filter(|s| s.port() == m.service)?;
            let fits = i.state == State::Listening && i.space == m.space && i.takes(m.qp_type, is_datagram);
            let ip = at.ip().to_canonical();
            let is_any =
                ip.is_unspecified() && (ip.is_ipv4() == origin.own.is_ipv4() || ip.is_ipv6() && !i.v6_only);
            let is_here = ip.is_loopback() && host.is_own(origin.process.ip());
            match () {
                () if !fits => None,
                () if ip == origin.own => Some(0),
                () if is_here => Some(1),
                () if is_any => Some(2),
                () => None,
            }
        };
        let ranked = self.ids.iter().filter_map(|(h, i)| Some((rank(i)?, *h, i)));
        let (_, handle, id) = ranked.min_by_key(|(rank, ..)| *rank).ok_or(reason::INVALID_SERVICE)?;
        let of_peer = self.incoming.get(&origin.process).copied().unwrap_or(0);
        if id.waiting >= id.backlog || of_peer >= MAX_INCOMING {
            return Err(reason::NO_RESOURCES);
        }
        Ok(handle)
    }

    fn on_request(&mut self, host: &mut dyn Host, origin: Origin, m: Message) {
        let is_datagram = m.kind == Kind::DatagramRequest;
        // Whose queue pair it is, is not for the peer to say.
        if host.gid_index(origin.own).is_none() || !is_datagram && !is_of(origin.process, m.parameters.number)
        {
            return;
        }
        let made = self.listener(host, origin, &m).and_then(|listener| {
            let made = self.insert_request(host, listener, origin, &m);
            made.map(|made| (listener, made)).ok_or(reason::NO_RESOURCES)
        });
        let (listener, made) = match made {
            Ok(made) => made,
            Err(why) => {
                let (kind, reason) = if is_datagram {
                    (Kind::DatagramReply, NO_DATAGRAMS as u16)
                } else {
                    (Kind::Reject, why)
                };
                let bytes = Message { reason, ..Message::new(kind, 0, m.from) }.encode();
                return self.actions.push_back(Action::Send { to: origin.process, own: origin.own, bytes });
            }
        };
        *self.incoming.entry(origin.process).or_default() += 1;
        if let Some(l) = self.ids.get_mut(&listener) {
            l.waiting += 1;
        }
        let details = if is_datagram {
            let way = address_handle(origin.process.ip(), host.gid_index(origin.own).unwrap_or(0));
            Details::of_datagrams(&m, way)
        } else {
            Details::of_connection(&m)
        };
        let e = Event::plain(listener, event::CONNECT_REQUEST, 0);
        self.tell(Event { made: Some(made), details, ..e });
    }

    /// The identifier of a peer's request.
    fn insert_request(
        &mut self,
        host: &mut dyn Host,
        listener: u32,
        origin: Origin,
        m: &Message,
    ) -> Option<u32> {
        let [a, b, ..] = host.random();
        let l = self.ids.get(&listener)?;
        let mut id = Id::new(l.channel, 0, l.space, l.qp_type, u16::from_ne_bytes([a, b]));
        let peer = origin.process.ip();
        id.state = State::Incoming;
        id.source = Some(SocketAddr::new(origin.own, m.service));
        id.target = Some(SocketAddr::new(peer, m.source_port));
        id.path = Some((origin.own, peer));
        (id.process, id.peer, id.theirs) = (Some(origin.process), m.from, m.parameters);
        let (resources, depth) = (m.parameters.initiator_depth, m.parameters.responder_resources);
        id.own =
            Parameters { responder_resources: resources, initiator_depth: depth, ..Parameters::default() };
        self.insert(id)
    }

    /// There is no connection to a process any more: it has ended, or fell silent.
    pub fn on_process_gone(&mut self, now: Time, process: SocketAddr) {
        let of: Vec<u32> =
            self.ids.iter().filter(|(_, i)| i.process == Some(process)).map(|(h, _)| *h).collect();
        for handle in of {
            let Some(id) = self.ids.get(&handle) else { continue };
            match id.state {
                State::Established if id.is_datagram() => {}
                State::Established | State::Disconnecting => {
                    self.set_state(handle, State::Disconnecting, Some(now + SETTLES));
                }
                State::Requested | State::Replied | State::Answered | State::Incoming => {
                    self.end(handle, event::UNREACHABLE, TIMED_OUT);
                }
                _ => {}
            }
        }
    }

    /// When [`Manager::on_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Enters the time at which something is due for an identifier.
    pub(super) fn set_timer(&mut self, handle: u32) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let next = match id.state {
            State::Asking { again, .. } => Some(id.deadline.map_or(again, |d| d.min(again))),
            _ => id.deadline,
        };
        if let Some(at) = id.timer {
            self.timers.remove(&(at, handle));
        }
        self.timers.extend(next.map(|at| (at, handle)));
        id.timer = next;
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Time) {
        let due: Vec<u32> = self.timers.range(..=(now, u32::MAX)).map(|(_, handle)| *handle).collect();
        for handle in due {
            self.on_due(now, handle);
            self.set_timer(handle);
        }
    }

    fn on_due(&mut self, now: Time, handle: u32) {
        let Some(id) = self.ids.get_mut(&handle) else { return };
        let is_over = id.deadline.is_some_and(|d| d <= now);
        let (target, asked_at) = (id.target, id.asked_at());
        match &mut id.state {
            State::Asking { query, tries, again, .. } if !is_over => {
                let wait = Span::from_nanos(ASKS_AGAIN.as_nanos() << (*tries).min(4)).min(SLOWEST);
                (*tries, *again) = (*tries + 1, now + wait);
                let query = *query;
                if let Some(to) = asked_at {
                    self.actions.push_back(Action::Ask { id: handle, to, query });
                }
            }
            State::Asking { .. } => {
                self.actions.push_back(Action::StopAsking { id: handle });
                self.end(handle, event::UNREACHABLE, TIMED_OUT);
                if let Some(a) = target {
                    self.say(&format!(
                        "cannot connect to port {port} of {}: UDP port {port} there has not answered for 10 s; try to start the program there by `longhaul run` with the same cluster key, or open the port in the firewall",
                        a.ip(),
                        port = a.port()
                    ));
                }
            }
            State::Requested | State::Replied => {
                self.send_reject(handle, reason::TIMEOUT, vec![]);
                self.end(handle, event::UNREACHABLE, TIMED_OUT);
            }
            State::Disconnecting => self.end_connection(now, handle),
            State::TimeWait => self.end(handle, event::TIMEWAIT_EXIT, 0),
            _ => id.deadline = None,
        }
    }
}

/// Whether a queue pair is one of this process.
fn is_of(process: SocketAddr, number: u32) -> bool {
    engine::address::port_of(number) == Some(process.port())
}
