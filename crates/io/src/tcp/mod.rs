//! The TCP streams of iWARP connections, whose bytes go from and to registered memory directly.
//!
//! Once the engine knows a header it names where the payload belongs, and `readv` puts it there; what is sent is gathered from
//! where it lies by `sendmsg`, many records at a time. What arrives before a stream has places, and under TLS, goes through a
//! buffer.

mod bytes;
mod client_limits;
mod low_watermark;
mod prepared_read;
mod socket;
mod stream_socket;
mod tcp_info;

use crate::poll::Source;
use base::{Span, Time};
use bytes::{PollAttempts, Read, on_read, read_buffered, read_direct, send_direct, send_sealed};
use client_limits::ClientLimits;
use endpoint::{Endpoint, StreamCommand, StreamId};
pub use low_watermark::MAX_LOW_WATERMARK;
use prepared_read::PreparedResult;
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use stream_socket::StreamSocket;

/// So many streams are waited for one by one, more of them through epoll: which costs a system call more for each wait.
pub(crate) const FEW: usize = 16;
/// Sources that are waited for at most: a listener's, and those of few streams.
pub const MAX_WAITED: usize = 1 + FEW;

/// What a wait source stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitSource {
    /// Streams that others make.
    Listener,
    /// One stream.
    Stream(StreamId),
    /// So many that the kernel keeps the list.
    Many,
}

/// Reads of a stream in a turn, and sends: so that none keeps the loop from the others.
const READS: usize = 8;
const SENDS: usize = 2;
/// Looks in vain after which a stream is looked at only every so often, while nothing is told of any.
const VAIN: u32 = 1_000;
const LOOK_AT_ALL: u32 = 16;
/// Looks at streams, without having been told of anything, for each look for new clients: a look in vain costs the system as
/// much as a message, since it has a socket ready before it finds that nobody wants it.
const POLLS_PER_ACCEPT: u32 = 256;
/// Clients taken in a turn.
const ACCEPTS: usize = 64;
/// Events taken from epoll in a turn.
const EVENTS: usize = 256;
/// Ranges of memory for one system call; further ones wait for the next.
const RANGES: usize = 256;
/// Bytes read at once from a stream without places.
const BUFFER: usize = 64 << 10;
/// How often to ask for the path's segment size.
const ASK_EMSS: Span = Span::from_secs(1);
/// How often the endpoint is told what the system says of streams, and of how many at a time.
const REPORT_INTERVAL: Span = Span::from_millis(100);
const MAX_REPORTED: usize = 64;
/// Records are made to fit segments below this size; others are as long as they can be.
const LONG: usize = 65_532;

/// Options for accepting TCP clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Congestion control by the system's name for it (`TCP_CONGESTION`), or several in order of preference, divided by
    /// commas: the first that the system has. `None` takes the system's choice.
    pub congestion: Option<String>,
}

/// Ranges for a system call. Empty but from when they are named until after the call.
#[derive(Debug, Default)]
pub struct Ranges(Vec<libc::iovec>);
// SAFETY: there are no pointers in it when another thread gets it.
unsafe impl Send for Ranges {}

/// The TCP streams of an endpoint.
#[derive(Debug)]
pub struct Streams {
    listener: Option<(OwnedFd, SocketAddr)>,
    /// Somebody may have connected.
    accept_ready: bool,
    /// A descriptor to turn a client away with when there are no others.
    spare: Option<OwnedFd>,
    /// Clients cannot be taken in, and it was said.
    full: bool,
    /// Those that clients have made, by where they are.
    client_limits: ClientLimits,
    /// Nor turned away: they are not looked at for a while.
    accept_paused: bool,
    /// Looks at streams, all told.
    looks: u32,
    /// Looks since the last for who may have.
    polls_since_accept: u32,
    /// Something came since it was asked.
    has_received: bool,
    slots: BTreeMap<StreamId, StreamSocket>,
    /// So many are waited for one by one.
    few: usize,
    /// Those with something to read, perhaps.
    due: VecDeque<StreamId>,
    /// Those of which it is decided whether they are connected, and those that have room again.
    writable: Vec<StreamId>,
    /// The one that something came from last.
    last: Option<StreamId>,
    /// What was read from it before its turn.
    prepared: Option<PreparedResult>,
    epoll: OwnedFd,
    ranges: Ranges,
    buffer: Vec<u8>,
    /// When to tell what the system says of streams, and from which on.
    tell: (Time, StreamId),
}

/// What epoll calls the listener; streams have numbers of their own.
const LISTENER: u64 = u64::MAX;
const NONE: epoll::EventFlags = epoll::EventFlags::empty();

/// Whether connections by TCP can have this congestion control (`TCP_CONGESTION`).
///
/// # Errors
/// The system does not have it, or not for this user; in words.
pub fn check_congestion(name: &str) -> io::Result<()> {
    socket::set_congestion(&socket::socket(SocketAddr::from(([127, 0, 0, 1], 0)))?, name)
}

/// The first of these names, in order of preference and divided by commas, that connections by TCP can have.
///
/// # Errors
/// The system has none of them, or not for this user; in words.
pub fn first_congestion(names: &str) -> io::Result<&str> {
    let mut refusals = Vec::new();
    for name in names.split(',').map(str::trim) {
        match check_congestion(name) {
            Ok(()) => return Ok(name),
            Err(e) => refusals.push(e),
        }
    }
    let kind = refusals.first().map_or(ErrorKind::InvalidInput, io::Error::kind);
    let words: Vec<String> = refusals.iter().map(io::Error::to_string).collect();
    Err(io::Error::new(kind, words.join("; ")))
}

impl Streams {
    /// Without any, yet.
    ///
    /// # Errors
    /// No file descriptors are left.
    pub fn new() -> io::Result<Streams> {
        Ok(Streams {
            listener: None,
            accept_ready: false,
            spare: None,
            full: false,
            client_limits: ClientLimits::default(),
            accept_paused: false,
            looks: 0,
            polls_since_accept: 0,
            has_received: false,
            slots: BTreeMap::new(),
            few: FEW,
            due: VecDeque::new(),
            writable: Vec::new(),
            last: None,
            prepared: None,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            ranges: Ranges::default(),
            buffer: Vec::new(),
            tell: (Time::ZERO, StreamId(0)),
        })
    }

    /// Accepts clients at this address from now on.
    ///
    /// # Errors
    /// The address is taken, or not this machine's, or there is no such congestion control.
    pub fn listen(&mut self, at: SocketAddr, o: &StreamOptions) -> io::Result<()> {
        let congestion = o.congestion.as_deref().map(first_congestion).transpose()?;
        let fd = socket::listen(at, congestion)?;
        let local = rustix::net::getsockname(&fd)?;
        let local = SocketAddr::try_from(local).map_err(io::Error::from)?;
        self.listener = Some((fd, local));
        self.client_limits = ClientLimits::new(crate::descriptors::for_streams());
        self.spare = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        Ok(())
    }

    /// Where clients are taken.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|(_, at)| *at)
    }

    /// The descriptor that is readable whenever there is something to do for any stream, or for the listener: they are all waited for
    /// by it from now on, by whichever thread.
    ///
    /// # Errors
    /// The system's.
    pub fn watch_all(&mut self) -> io::Result<&OwnedFd> {
        self.few = 0;
        if let Some((listener, _)) = &self.listener {
            epoll::add(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        }
        Ok(&self.epoll)
    }

    /// Whether something was received since the last call.
    pub fn take_has_received(&mut self) -> bool {
        core::mem::take(&mut self.has_received)
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes in clients, and what has arrived; true when there may be more. `looks`: without having been told of anything, so
    /// many times where one stream alone is worth it. A further look costs a system call, another turn of the loop twice that.
    ///
    /// # Errors
    /// Waiting is beyond use.
    pub fn receive(&mut self, now: Time, endpoint: &mut Endpoint, looks: u32) -> io::Result<bool> {
        let look = looks > 0;
        self.polls_since_accept += u32::from(look);
        if self.accept_ready || self.polls_since_accept >= POLLS_PER_ACCEPT {
            self.polls_since_accept = 0;
            self.accept_ready = self.accept(now, endpoint);
        }
        if self.slots.len() > self.few || self.few == 0 {
            self.collect()?;
        } else if look {
            self.poll_all(now, endpoint);
        }
        let looks = if self.due.len() == 1 { looks } else { 1 };
        // Each once: those that have more to read come up in the next turn.
        for _ in 0..self.due.len() {
            let Some(id) = self.due.pop_front() else { break };
            if self.read(now, id, endpoint, looks) {
                self.make_due(id);
            }
            self.watch(id, endpoint);
        }
        Ok(self.accept_ready || !self.due.is_empty())
    }

    /// Takes it that each stream may have something to read, and room. Of one that gathers it is asked.
    fn poll_all(&mut self, now: Time, endpoint: &Endpoint) {
        self.looks = self.looks.wrapping_add(1);
        let all = self.looks.is_multiple_of(LOOK_AT_ALL);
        // Those that say nothing for long are looked at seldom.
        let often = |s: &StreamSocket| all || s.vain < VAIN || s.connecting || s.blocked;
        let mut ids = [StreamId(0); FEW];
        let mut n = 0;
        for ((id, _), free) in self.slots.iter().filter(|(_, s)| often(s)).zip(&mut ids) {
            *free = *id;
            n += 1;
        }
        for id in ids.into_iter().take(n) {
            let Some(s) = self.slots.get_mut(&id) else { continue };
            let decided = !s.connecting || socket::is_connect_done(&s.fd);
            let waits_for_more = s.waits_for_more() && !s.has_enough(now, wants_read(s, id, endpoint));
            let readable = decided && !waits_for_more;
            self.on_ready(id, readable, decided);
        }
    }

    fn make_due(&mut self, id: StreamId) {
        if let Some(s) = self.slots.get_mut(&id) {
            s.make_due(id, &mut self.due);
        }
    }

    /// Has epoll wait for what the stream waits for. While there are few, they are waited for one by one.
    #[inline]
    fn watch(&mut self, id: StreamId, endpoint: &Endpoint) {
        if self.slots.len() > self.few {
            self.watch_by_epoll(id, endpoint);
        }
    }

    #[inline(never)]
    fn watch_by_epoll(&mut self, id: StreamId, endpoint: &Endpoint) {
        let Some(s) = self.slots.get_mut(&id) else { return };
        let mut wants = NONE;
        wants.set(epoll::EventFlags::IN, wants_read(s, id, endpoint));
        wants.set(epoll::EventFlags::OUT, s.blocked);
        let (before, data) = (core::mem::replace(&mut s.watched, wants), epoll::EventData::new_u64(id.0));
        // What nothing is wanted of would be told of all the same when it fails, again and again. Adding fails only without
        // memory; then the stream is not noticed until it changes, or is given up.
        let _ = match (before.is_empty(), wants.is_empty()) {
            _ if before == wants => Ok(()),
            (true, _) => epoll::add(&self.epoll, &s.fd, data, wants),
            (_, true) => epoll::delete(&self.epoll, &s.fd),
            _ => epoll::modify(&self.epoll, &s.fd, data, wants),
        };
    }

    /// Asks epoll.
    fn collect(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for e in events {
            let (data, flags) = (e.data, e.flags);
            if data.u64() == LISTENER {
                self.accept_ready = true;
                continue;
            }
            self.on_ready(
                StreamId(data.u64()),
                flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP),
                flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::ERR | epoll::EventFlags::HUP),
            );
        }
        Ok(())
    }

    fn on_ready(&mut self, id: StreamId, readable: bool, writable: bool) {
        if readable {
            self.make_due(id);
        }
        if let Some(s) = self.slots.get_mut(&id).filter(|s| s.blocked && writable) {
            s.blocked = false;
            self.writable.push(id);
        }
    }

    fn accept(&mut self, now: Time, endpoint: &mut Endpoint) -> bool {
        for _ in 0..ACCEPTS {
            let Some((listener, _)) = self.listener.as_ref().filter(|_| !self.accept_paused) else {
                return false;
            };
            match socket::accept(listener) {
                Ok(Some((fd, remote))) if !self.has_room(now, remote.ip(), endpoint) => {
                    self.warn_full(&"as many are connected as may be");
                    socket::reset(fd);
                }
                Ok(Some((fd, remote))) => match endpoint.stream_accepted(now, remote, socket::emss(&fd)) {
                    Some(id) => self.add_client(id, fd, remote.ip(), endpoint),
                    None => socket::reset(fd),
                },
                Ok(None) => return false,
                Err(error) => self.reject_client(&error),
            }
        }
        true
    }

    /// A client cannot be accepted, for lack of descriptors most likely. It would wait, and keep the loop awake.
    fn reject_client(&mut self, error: &io::Error) {
        self.warn_full(error);
        self.spare = None;
        let next = self.listener.as_ref().map(|(fd, _)| socket::accept(fd));
        self.accept_paused = !matches!(next, Some(Ok(_)));
        if let Some(Ok(Some((fd, _)))) = next {
            socket::reset(fd);
        }
        self.spare = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
    }

    /// Whether a client from there may have a descriptor. One that has as many as a place may have, or comes when all are taken, has
    /// it instead of the oldest of its own that has shown nothing yet.
    fn has_room(&mut self, now: Time, from: IpAddr, endpoint: &mut Endpoint) -> bool {
        if self.client_limits.admits(from) {
            self.full = self.full && !self.client_limits.has_ample_room();
            return true;
        }
        let evicted = endpoint.evict_stream_of(now, from);
        self.run_commands(now, endpoint);
        evicted && self.client_limits.admits(from)
    }

    /// Logs it once, until it changes.
    fn warn_full(&mut self, error: &dyn core::fmt::Display) {
        if !core::mem::replace(&mut self.full, true) {
            tracing::warn!(
                %error,
                "clients by TCP cannot be taken in and are turned away until that changes: is the limit of open files \
                 (ulimit -n) too low?"
            );
        }
    }

    fn add_client(&mut self, id: StreamId, fd: OwnedFd, from: IpAddr, endpoint: &mut Endpoint) {
        self.client_limits.on_accepted(from);
        self.add(id, fd, false, endpoint);
        if let Some(s) = self.slots.get_mut(&id) {
            s.from = Some(from);
        }
    }

    /// Takes a stream out of the list, if it is there.
    fn remove(&mut self, id: StreamId) -> Option<StreamSocket> {
        let s = self.slots.remove(&id)?;
        s.from.inspect(|from| self.client_limits.on_closed(*from));
        Some(s)
    }

    fn add(&mut self, id: StreamId, fd: OwnedFd, connecting: bool, endpoint: &mut Endpoint) {
        self.slots.insert(id, StreamSocket::new(fd, connecting));
        self.make_due(id);
        if self.slots.len() == self.few + 1 {
            self.release_memory(endpoint);
            self.slots.values_mut().for_each(|s| s.set_low_watermark(1));
            self.slots
                .keys()
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|id| self.watch(id, endpoint));
        }
        self.watch(id, endpoint);
    }

    /// Reads from a stream, `looks` times until something is there; true when there may be more.
    fn read(&mut self, now: Time, id: StreamId, endpoint: &mut Endpoint, looks: u32) -> bool {
        // Few keep their scratch memory until the loop sleeps: giving it back with each message is a tenth of what that takes.
        let many = self.slots.len() > self.few;
        for _ in 0..READS {
            let Some(s) = self.slots.get_mut(&id) else { return false };
            s.due = false;
            if s.connecting || s.ended {
                return false;
            }
            if !s.rest.is_empty() {
                if !endpoint.stream_reads(id) {
                    return false;
                }
                let rest = core::mem::take(&mut s.rest);
                let taken = endpoint.feed_stream(now, id, &rest);
                s.rest = rest[taken..].to_vec();
                continue;
            }
            let early = self.prepared.take_if(|e| e.id == id);
            let direct = endpoint.stream_io(id).map(|mut io| {
                let looks = PollAttempts { times: looks, asks: s.asks() };
                (!io.engine.is_held()).then(|| match early {
                    Some(e) => on_read(&mut io, e.got, e.offered, now),
                    None => read_direct(&s.fd, &mut self.ranges.0, &mut io, now, looks),
                })
            });
            let Read { got, more, settled } = match direct {
                Some(Some(read)) => read,
                None if endpoint.stream_reads(id) => read_buffered(s, &mut self.buffer, (now, id), endpoint),
                _ => return false,
            };
            match got {
                Ok(0) => {
                    end(now, id, s, endpoint);
                    return false;
                }
                Ok(n) => {
                    (s.vain, self.has_received, self.last) = (0, true, Some(id));
                    s.has_read(n);
                    s.brought(n);
                    s.borrows = true;
                    if many && !more {
                        give_back(endpoint, id, s);
                    }
                    if !settled {
                        endpoint.stream_done(now, id);
                    }
                    if !more {
                        return false;
                    }
                }
                Err(Errno::AGAIN) => {
                    s.vain = s.vain.saturating_add(1);
                    s.has_read(0);
                    s.borrows = true;
                    if many {
                        give_back(endpoint, id, s);
                    }
                    return false;
                }
                Err(Errno::INTR) => {}
                Err(e) => {
                    s.ended = true;
                    endpoint.stream_failed(now, id, &io::Error::from(e).to_string());
                    return false;
                }
            }
        }
        true
    }

    /// Before the loop sleeps: streams give back memory they do not need.
    pub fn release_memory(&mut self, endpoint: &mut Endpoint) {
        for (id, s) in self.slots.iter_mut().filter(|(_, s)| s.borrows) {
            give_back(endpoint, *id, s);
        }
    }

    /// Carries out orders, and sends what is to be sent; true when there may be more.
    pub fn transmit(&mut self, now: Time, endpoint: &mut Endpoint) -> bool {
        self.run_commands(now, endpoint);
        if !self.writable.is_empty() {
            self.resume_writable(now, endpoint);
        }
        let mut more = false;
        let mut turn = self.slots.len().max(FEW);
        while let Some(id) = endpoint.poll_stream(now) {
            more |= self.send(now, id, endpoint);
            self.watch(id, endpoint);
            turn = turn.saturating_sub(1);
            if turn == 0 {
                more = true;
                break;
            }
        }
        if now >= self.tell.0 {
            self.report_stats(now, endpoint);
        }
        self.run_commands(now, endpoint);
        more
    }

    /// Of those that were waited for: some are connected now, others have room.
    #[inline(never)]
    fn resume_writable(&mut self, now: Time, endpoint: &mut Endpoint) {
        for id in core::mem::take(&mut self.writable) {
            match self.slots.get(&id) {
                Some(s) if s.connecting => self.on_connected(now, id, endpoint),
                _ => endpoint.touch_stream(id),
            }
        }
    }

    /// Reports the kernel's statistics of streams to the endpoint: of some of them in turn, when there are many.
    #[inline(never)]
    fn report_stats(&mut self, now: Time, endpoint: &mut Endpoint) {
        let (_, from) = self.tell;
        self.accept_paused = false;
        let mut next = StreamId(0);
        for (told, (id, s)) in self.slots.range(from..).filter(|(_, s)| !s.connecting).enumerate() {
            if told == MAX_REPORTED {
                next = *id;
                break;
            }
            if let Some(f) = tcp_info::stream_stats(&s.fd) {
                endpoint.set_stream_stats(now, *id, f);
            }
        }
        self.tell = (now + REPORT_INTERVAL, next);
    }

    #[inline]
    fn run_commands(&mut self, now: Time, endpoint: &mut Endpoint) {
        while let Some(order) = endpoint.poll_stream_command() {
            self.run_command(now, order, endpoint);
        }
    }

    #[inline(never)]
    fn run_command(&mut self, now: Time, order: StreamCommand, endpoint: &mut Endpoint) {
        match order {
            StreamCommand::Connect { stream, remote, congestion, dscp } => {
                match socket::connect(remote, congestion.as_deref(), dscp) {
                    Ok(fd) => self.add(stream, fd, true, endpoint),
                    Err(e) => endpoint.stream_failed(now, stream, &e.to_string()),
                }
            }
            StreamCommand::QueryStats(id) => {
                if let Some(f) = self.slots.get(&id).and_then(|s| tcp_info::stream_stats(&s.fd)) {
                    endpoint.set_stream_stats(now, id, f);
                }
            }
            StreamCommand::SetCongestion { stream, name } => {
                let done = self.slots.get(&stream).map(|s| socket::set_congestion(&s.fd, &name));
                if let Some(Err(error)) = done {
                    tracing::warn!(%error, "a stream keeps its congestion control");
                }
            }
            StreamCommand::SetDscp { stream, dscp } => {
                let done = self.slots.get(&stream).map(|s| socket::set_dscp(&s.fd, dscp));
                if let Some(Err(error)) = done {
                    tracing::warn!(%error, dscp, "packets of a stream keep their code point");
                }
            }
            StreamCommand::SetPacing { stream, rate } => {
                if let Some(s) = self.slots.get(&stream) {
                    tcp_info::set_pacing_rate(&s.fd, rate);
                }
            }
            StreamCommand::Shutdown(id) => {
                if let Some(s) = self.slots.get(&id) {
                    socket::shutdown(&s.fd);
                }
            }
            StreamCommand::Close(id) => drop(self.remove(id)),
            StreamCommand::Abort(id) => {
                if let Some(s) = self.remove(id) {
                    socket::reset(s.fd);
                }
            }
        }
    }

    #[cold]
    fn on_connected(&mut self, now: Time, id: StreamId, endpoint: &mut Endpoint) {
        let Some(s) = self.slots.get_mut(&id) else { return };
        match socket::connect_result(&s.fd) {
            Ok(()) => {
                s.connecting = false;
                self.make_due(id);
                let Some(s) = self.slots.get(&id) else { return };
                endpoint.stream_connected(now, id, socket::emss(&s.fd));
            }
            Err(e) => {
                self.slots.remove(&id);
                endpoint.stream_failed(now, id, &e.to_string());
            }
        }
    }

    /// Sends on a stream; true when there may be more to send.
    fn send(&mut self, now: Time, id: StreamId, endpoint: &mut Endpoint) -> bool {
        let Some(s) = self.slots.get_mut(&id).filter(|s| !s.connecting && s.dead.is_none()) else {
            endpoint.stream_done(now, id);
            return false;
        };
        if !s.rest.is_empty() {
            // What waited for a receive may be taken in now.
            s.make_due(id, &mut self.due);
        }
        let mut more = !s.blocked;
        for _ in 0..SENDS {
            if s.blocked {
                break;
            }
            let Some(mut io) = endpoint.stream_io(id) else {
                match send_sealed(s, now, id, endpoint) {
                    Ok(true) => continue,
                    Ok(false) => more = false,
                    Err(e) => return self.is_dead(now, id, e, endpoint),
                }
                break;
            };
            if s.ask <= now && io.engine.emss() < LONG {
                s.ask = now + ASK_EMSS;
                if let Some(emss) = socket::emss(&s.fd) {
                    endpoint.set_stream_emss(id, emss);
                    continue;
                }
            }
            match send_direct(&s.fd, &mut self.ranges.0, &mut io, now) {
                Ok(None) => more = false,
                Ok(Some((sent, offered))) => {
                    more = io.engine.has_more(io.adapter);
                    (s.blocked, s.flowed) = (sent < offered, 0);
                    endpoint.stream_sent();
                }
                Err(Errno::AGAIN) => s.blocked = true,
                Err(Errno::INTR) => {}
                Err(e) => return self.is_dead(now, id, e, endpoint),
            }
            if !more {
                break;
            }
        }
        more &= !s.blocked;
        endpoint.stream_done(now, id);
        if more {
            endpoint.touch_stream(id);
        }
        more
    }

    /// A stream takes nothing any more. What the peer said before it went is worth reading: the reading side tells of its end,
    /// unless that has come. It is not waited for to take more: the system would say at once that it can, again and again.
    #[cold]
    fn is_dead(&mut self, now: Time, id: StreamId, e: Errno, endpoint: &mut Endpoint) -> bool {
        let e = io::Error::from(e);
        tracing::debug!(error = %e, "a stream takes nothing more");
        let Some(s) = self.slots.get_mut(&id) else { return false };
        s.blocked = false;
        if s.ended {
            endpoint.stream_failed(now, id, &e.to_string());
        } else {
            s.dead = Some(e.to_string());
            self.make_due(id);
            endpoint.stream_done(now, id);
        }
        false
    }

    /// The sources to wait for, at most [`MAX_WAITED`], each with the stream it belongs to.
    pub fn sources<'a>(&'a self, endpoint: &Endpoint, mut out: impl FnMut(Source<'a>, WaitSource)) {
        if let Some((fd, _)) = self.listener.as_ref().filter(|_| !self.accept_paused) {
            out(Source::readable(fd), WaitSource::Listener);
        }
        if self.slots.len() > self.few {
            return out(Source::readable(&self.epoll), WaitSource::Many);
        }
        for (id, s) in &self.slots {
            let read = wants_read(s, *id, endpoint);
            if read || s.blocked {
                out(Source::choose(&s.fd, read, s.blocked), WaitSource::Stream(*id));
            }
        }
    }

    /// The result of waiting for one of [`sources`](Streams::sources): whether it is readable, and writable.
    pub fn on_wait(&mut self, now: Time, of: WaitSource, (readable, writable): (bool, bool)) {
        match of {
            WaitSource::Listener => self.accept_ready |= readable,
            WaitSource::Stream(id) => {
                let readable = self.slots.get_mut(&id).is_some_and(|s| s.on_wait_result(readable, now));
                if readable || writable {
                    self.on_ready(id, readable, writable);
                }
            }
            WaitSource::Many => {}
        }
    }
}

fn wants_read(s: &StreamSocket, id: StreamId, endpoint: &Endpoint) -> bool {
    !s.ended && !s.connecting && endpoint.stream_reads(id)
}

/// The peer sends nothing more.
#[cold]
fn end(now: Time, id: StreamId, s: &mut StreamSocket, endpoint: &mut Endpoint) {
    s.ended = true;
    let dead = s.dead.take();
    endpoint.stream_ended(now, id);
    if let Some(why) = dead {
        endpoint.stream_failed(now, id, &why);
    }
}

fn give_back(endpoint: &mut Endpoint, id: StreamId, s: &mut StreamSocket) {
    s.borrows = false;
    if let Some(io) = endpoint.stream_io(id) {
        io.engine.return_scratch(io.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_available_congestion_control_is_used() {
        // Every kernel has Reno, and lets everybody have it.
        assert_eq!(first_congestion("no_such_thing, reno,neither").expect("reno"), "reno");
        let error = first_congestion("no_such_thing,neither").expect_err("there are none").to_string();
        assert!(error.contains("`no_such_thing`") && error.contains("`neither`"), "{error}");
    }
}
