//! The driver's interface to byte streams: connection state changes, and where their bytes go.

use super::tls::StreamTls;
use super::{StreamCommand, StreamId};
use crate::Endpoint;
use crate::app::ConnId;
use ::iwarp::{Connection, Scratch, StreamAction};
use base::{Span, Time};
use std::net::{IpAddr, SocketAddr};
use transport::crypto::PeerIdentity;
use verbs::Adapter;

/// Bytes of a segment when the system does not tell: those of TCP over IPv4 with time stamps on Ethernet.
const USUAL_EMSS: usize = 1_448;
/// Least and most that is believed of a segment.
const EMSS: core::ops::RangeInclusive<usize> = 128..=65_532;

/// One stream.
pub(crate) struct Stream {
    /// The connection it belongs to, once that is known.
    pub conn: Option<ConnId>,
    /// Which stream of it.
    pub index: u16,
    pub remote: SocketAddr,
    pub is_client: bool,
    /// Once it is connected, or its first byte has come.
    pub engine: Option<Connection>,
    pub established: bool,
    /// Waits to be looked at by the driver.
    pub queued: bool,
    pub scheduled: Option<Time>,
    /// When there must be an engine; when the other streams of the connection must be there.
    pub deadline: Option<Time>,
    /// Bytes of a segment.
    pub emss: usize,
    /// TLS below MPA.
    pub sealed: Option<Box<StreamTls>>,
    /// Who the peer is, as TLS has shown.
    pub peer: Option<PeerIdentity>,
    /// It was let in as a further stream of a connection: what else it may be good for was not asked.
    pub further: bool,
}

impl Stream {
    pub fn new(remote: SocketAddr, is_client: bool, deadline: Time) -> Stream {
        Stream {
            conn: None,
            index: 0,
            remote,
            is_client,
            engine: None,
            established: false,
            queued: false,
            scheduled: None,
            deadline: Some(deadline),
            emss: USUAL_EMSS,
            sealed: None,
            peer: None,
            further: false,
        }
    }

    pub fn timeout(&self) -> Option<Time> {
        match (self.deadline, self.engine.as_ref().and_then(Connection::poll_timeout)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether something is to be done before it is next looked at.
    pub fn is_due_sooner(&self) -> bool {
        self.timeout().is_some_and(|at| self.scheduled.is_none_or(|t| at < t))
    }

    /// The system's word on the path's segments. Records are made of words of four bytes.
    pub fn set_emss(&mut self, emss: Option<usize>) {
        self.emss = emss.unwrap_or(USUAL_EMSS).clamp(*EMSS.start(), *EMSS.end()) & !3;
    }
}

/// What a driver needs to move a stream's bytes directly from and to registered memory. Call
/// [`Endpoint::stream_done`] afterwards, unless the engine [is settled](Connection::is_settled).
pub struct StreamIo<'a> {
    /// Says where bytes go and come from.
    pub engine: &'a mut Connection,
    /// Finds registered memory.
    pub adapter: &'a mut Adapter,
    /// Scratch memory.
    pub spare: &'a mut Scratch,
}

impl Endpoint {
    /// The next command for a stream.
    pub fn poll_stream_command(&mut self) -> Option<StreamCommand> {
        let order = self.iwarp_state.orders.pop_front()?;
        self.on_command(&order);
        Some(order)
    }

    /// A stream that may have something to send, or may read on after it did not: move its bytes, then call
    /// [`Endpoint::stream_done`]. Each comes up once; call again until there is none.
    #[inline]
    pub fn poll_stream(&mut self, now: Time) -> Option<StreamId> {
        self.collect_work();
        let id = self.iwarp_state.ready.pop_front()?;
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return Some(id) };
        s.queued = false;
        if s.engine.as_ref().is_some_and(Connection::is_held) {
            self.resume_held(now, id);
        }
        Some(id)
    }

    /// A message waits for its receive: perhaps there is one now.
    #[cold]
    fn resume_held(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let sealed = s.sealed.is_some();
        let Some(engine) = &mut s.engine else { return };
        engine.resume(&mut self.adapter, now);
        if sealed && !engine.is_held() {
            // What TLS has taken in already: perhaps nothing more comes to make it look.
            self.feed_sealed(now, id, &[]);
        }
    }

    /// Makes [`Endpoint::poll_stream`] return this stream again: it can send again, or has more to send.
    pub fn touch_stream(&mut self, id: StreamId) {
        self.iwarp_state.touch(id);
    }

    /// Bytes of a stream were taken by the system: there may be completions that the application has not seen.
    pub fn stream_sent(&mut self) {
        self.app_due = true;
    }

    /// Whether streams wait for [`Endpoint::poll_stream`] or orders for [`Endpoint::poll_stream_command`].
    pub fn has_streams_ready(&self) -> bool {
        !self.iwarp_state.ready.is_empty() || !self.iwarp_state.orders.is_empty()
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.iwarp_state.streams.len()
    }

    /// Whether there are connections by the native transport, or somebody who asks for one is to be answered.
    pub fn has_datagrams(&self) -> bool {
        !self.conns.is_empty() || self.acceptor.has_pending()
    }

    /// A stream that was ordered is connected; its segments hold `emss` bytes, as far as is known.
    pub fn stream_connected(&mut self, now: Time, id: StreamId, emss: Option<usize>) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        s.set_emss(emss);
        self.start_client(now, id);
        self.stream_done(now, id);
    }

    /// A client has connected. `None`: nobody is served by streams, reset it. Where as many have said too little as may, one makes
    /// room: of the address with most of them, the one that has had most time for it.
    pub fn stream_accepted(
        &mut self,
        now: Time,
        remote: SocketAddr,
        emss: Option<usize>,
    ) -> Option<StreamId> {
        let server = self.config.server.as_ref()?.iwarp.as_ref()?;
        let (most, patience) = (server.max_half_open.max(1), server.settings.startup_timeout);
        if self.iwarp_state.half_open.len() >= most {
            self.evict_half_open(now);
        }
        let mut s = Stream::new(remote, false, now + patience);
        s.set_emss(emss);
        let id = self.iwarp_state.insert(s);
        self.iwarp_state.half_open.insert(id, remote.ip());
        self.iwarp_state.schedule(id);
        Some(id)
    }

    /// Ends the oldest stream that is not established, of the address that has most of them: of none that belongs to a connection
    /// yet, if there is one, since such a one would take that with it.
    fn evict_half_open(&mut self, now: Time) {
        let alone = |id: &StreamId| self.iwarp_state.streams.get(id).is_none_or(|s| s.conn.is_none());
        if let Some(id) = self.iwarp_state.half_open.oldest_of_largest(alone) {
            self.evict(now, id);
        }
    }

    /// Ends the oldest stream that is not established of those from this address, so that another one from there can come in its
    /// place; false when there is none.
    pub fn evict_stream_of(&mut self, now: Time, ip: IpAddr) -> bool {
        let alone = |id: &StreamId| self.iwarp_state.streams.get(id).is_none_or(|s| s.conn.is_none());
        let id = self.iwarp_state.half_open.of(ip, alone);
        id.inspect(|id| self.evict(now, *id)).is_some()
    }

    fn evict(&mut self, now: Time, id: StreamId) {
        if let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) {
            engine.on_error(&mut self.adapter);
            engine.return_scratch(&mut self.iwarp_state.spare);
        }
        self.stream_over(now, id);
        self.iwarp_state.half_open.remove(id);
    }

    /// A stream could not be connected, or has failed; `why` in words.
    pub fn stream_failed(&mut self, now: Time, id: StreamId, why: &str) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let (conn, connected, sealed) = (s.conn, s.engine.is_some(), s.sealed.is_some());
        if let Some(engine) = &mut s.engine {
            engine.on_error(&mut self.adapter);
        }
        if let Some(conn) = conn {
            self.note_failure(conn, connected || sealed, why);
        }
        if connected {
            self.stream_done(now, id);
        }
        if !connected || sealed {
            // Last words under TLS, which a stream in order waits for, cannot leave any more.
            self.stream_over(now, id);
        }
    }

    /// The peer has shut down its sending side.
    pub fn stream_ended(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        if s.sealed.is_some() {
            return self.end_sealed(now, id);
        }
        match &mut s.engine {
            Some(engine) => {
                engine.on_fin(&mut self.adapter, now);
                self.stream_done(now, id);
            }
            None => {
                self.stream_over(now, id);
            }
        }
    }

    /// A stream's segments hold `emss` bytes from now on.
    pub fn set_stream_emss(&mut self, id: StreamId, emss: usize) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        s.set_emss(Some(emss));
        let emss = s.emss;
        if let Some(engine) = &mut s.engine
            && engine.emss() < super::conn::LONG_RECORDS
        {
            engine.set_emss(emss);
        }
    }

    /// A stream whose bytes are to be moved directly. `None`: what arrives goes to [`Endpoint::feed_stream`], or the stream
    /// is over.
    #[inline]
    pub fn stream_io(&mut self, id: StreamId) -> Option<StreamIo<'_>> {
        let s = self.iwarp_state.streams.get_mut(&id)?;
        let engine = s.engine.as_mut().filter(|_| s.sealed.is_none())?;
        Some(StreamIo { engine, adapter: &mut self.adapter, spare: &mut self.iwarp_state.spare })
    }

    /// Whether the driver is to read from a stream: not while a message waits for its receive.
    pub fn stream_reads(&self, id: StreamId) -> bool {
        self.iwarp_state.streams.get(&id).is_some_and(|s| s.engine.as_ref().is_none_or(|e| !e.is_held()))
    }

    /// Processes bytes of a stream that has no places for them yet. Returns how many were processed: offer the rest
    /// again when the stream [reads](Endpoint::stream_reads).
    pub fn feed_stream(&mut self, now: Time, id: StreamId, bytes: &[u8]) -> usize {
        let Some(s) = self.iwarp_state.streams.get(&id) else { return bytes.len() };
        if s.engine.is_none() && s.sealed.is_none() && !s.is_client && !bytes.is_empty() {
            self.start_server(now, id, bytes[0]);
        }
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return bytes.len() };
        if s.sealed.is_some() {
            return self.feed_sealed(now, id, bytes);
        }
        let Some(engine) = &mut s.engine else { return bytes.len() };
        engine.borrow_scratch(&mut self.iwarp_state.spare);
        let taken = engine.receive(&mut self.adapter, bytes, now);
        engine.return_scratch(&mut self.iwarp_state.spare);
        let taken = if engine.is_held() { taken } else { bytes.len() };
        self.stream_done(now, id);
        taken
    }

    /// Bytes of a stream were moved: what came of it goes to the application, and to the driver as orders.
    pub fn stream_done(&mut self, now: Time, id: StreamId) {
        // Most often nothing has happened but that bytes were moved.
        let moved = |s: &Stream| s.sealed.is_none() && s.engine.as_ref().is_some_and(|e| !e.has_events());
        if self.iwarp_state.streams.get(&id).is_some_and(|s| moved(s)) {
            return self.iwarp_state.follow_up(id);
        }
        self.process_stream_events(now, id);
    }

    #[inline(never)]
    fn process_stream_events(&mut self, now: Time, id: StreamId) {
        while let Some(e) =
            self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()?.next_event())
        {
            self.on_stream_event(now, id, e);
        }
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let sealed = s.sealed.is_some();
        let mut over = !sealed;
        while let Some(step) =
            self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()?.next_action())
        {
            if sealed {
                over |= self.step_sealed(id, step);
                continue;
            }
            self.iwarp_state.orders.push_back(match step {
                StreamAction::Shutdown => StreamCommand::Shutdown(id),
                StreamAction::Close => StreamCommand::Close(id),
                StreamAction::Abort => StreamCommand::Abort(id),
            });
        }
        if sealed {
            self.after_sealed(now, id);
        }
        let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) else {
            return;
        };
        if engine.is_closed() {
            engine.return_scratch(&mut self.iwarp_state.spare);
            if over {
                self.stream_over(now, id);
            }
            return;
        }
        self.iwarp_state.follow_up(id);
    }

    /// A receive was posted, for which a message may wait.
    pub(crate) fn resume_stream(&mut self, id: StreamId) {
        if self
            .iwarp_state
            .streams
            .get(&id)
            .is_some_and(|s| s.engine.as_ref().is_some_and(Connection::is_held))
        {
            self.iwarp_state.touch(id);
        }
    }

    /// Lets time pass for streams.
    pub(crate) fn stream_timeouts(&mut self, now: Time) {
        if self.iwarp_state.deadlines.first().is_some_and(|(t, _)| *t <= now) {
            self.stream_timeouts_due(now);
        }
    }

    #[inline(never)]
    fn stream_timeouts_due(&mut self, now: Time) {
        let later = self.iwarp_state.deadlines.split_off(&(now + Span::from_nanos(1), StreamId(0)));
        for (_, id) in core::mem::replace(&mut self.iwarp_state.deadlines, later) {
            let Some(s) = self.iwarp_state.streams.get_mut(&id) else { continue };
            s.scheduled = None;
            if s.deadline.is_some_and(|t| t <= now) {
                self.stream_too_late(now, id);
                continue;
            }
            if let Some(engine) = &mut s.engine {
                engine.on_timeout(&mut self.adapter, now);
                self.iwarp_state.touch(id);
            }
            self.stream_done(now, id);
            self.iwarp_state.schedule(id);
        }
    }

    /// The stream did not get anywhere in time.
    fn stream_too_late(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        s.deadline = None;
        let (conn, engine, sealed) = (s.conn, s.engine.is_some(), s.sealed.is_some());
        if let Some(conn) = conn {
            let why = match (engine, sealed) {
                (true, _) => "its further streams did not come in time",
                (false, true) => "no answer to the first words of TLS in time",
                (false, false) => "no answer",
            };
            self.note_failure(conn, engine || sealed, why);
        }
        let engine = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut());
        match engine.filter(|e| !e.is_closed()) {
            Some(engine) => {
                engine.abort(&mut self.adapter, now);
                self.iwarp_state.touch(id);
                self.stream_done(now, id);
            }
            None => {
                self.stream_over(now, id);
            }
        }
    }
}
