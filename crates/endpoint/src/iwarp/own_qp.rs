//! Connections of one stream whose queue pair the application has created, see [`crate::Event::StreamRequested`].
//!
//! As with [`Endpoint::open_own_qp`] of the native transport, regions and completion queues are the application's, and so is the state
//! of the queue pair: a connection that ends in order leaves it as it is.

use super::hello::{Hello, Reply};
use super::{Iwarp, StreamId};
use crate::Endpoint;
use crate::app::{ConnId, Event};
use crate::config::ConnectError;
use base::Time;
use verbs::QpId;

/// The queue pair of the application's that a connection is for.
#[derive(Default)]
pub(super) struct OwnQp {
    /// Which, as soon as that is known.
    pub qp: Option<QpId>,
    /// The application is being asked which.
    asked: Option<(StreamId, Hello)>,
}

impl OwnQp {
    /// Whether the connection is for one.
    pub const fn is_set(&self) -> bool {
        self.qp.is_some() || self.asked.is_some()
    }
}

impl Endpoint {
    /// A client's queue pair has no stream yet.
    pub(super) fn check_own_qp(&self, wanted: &Iwarp) -> Result<(), ConnectError> {
        let Some(qp) = wanted.own_qp else { return Ok(()) };
        if !wanted.to_longhaul {
            let text = "a queue pair of the application's by iWARP needs a peer that is Longhaul".to_owned();
            return Err(ConnectError::Settings(text));
        }
        self.check_free(qp)
    }

    fn check_free(&self, qp: QpId) -> Result<(), ConnectError> {
        if self.adapter.qp_state(qp).is_none() {
            return Err(verbs::Error::NotFound("queue pair").into());
        }
        if self.iwarp_state.by_qp.contains_key(&qp) {
            return Err(verbs::Error::Busy("the queue pair").into());
        }
        Ok(())
    }

    /// A client asks for a queue pair of the application's.
    pub(super) fn ask_for_own_qp(
        &mut self,
        conn: ConnId,
        id: StreamId,
        hello: Hello,
        private: &[u8],
    ) -> Result<(), String> {
        let asks = self.asks_for_qps;
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return Ok(()) };
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return Ok(()) };
        if !asks || b.streams.len() != 1 {
            self.on_iwarp_closed(conn);
            return Err("this server's application has no queue pairs of its own".to_owned());
        }
        (s.conn, s.index) = (Some(conn), 0);
        b.own.asked = Some((id, hello));
        b.streams[0] = Some((id, None));
        self.app_due = true;
        self.emit(Event::StreamRequested { conn, private_data: private.to_vec() });
        Ok(())
    }

    /// Answers [`Event::StreamRequested`] with a queue pair of [`verbs::Kind::Ordered`] that the application created and moved to
    /// [`verbs::QpState::Rtr`] or further. [`Event::Incoming`] follows.
    ///
    /// # Errors
    /// The connection is gone; the queue pair does not exist or has a stream already, and the connection is refused.
    pub fn accept_stream(&mut self, now: Time, conn: ConnId, qp: QpId) -> Result<(), ConnectError> {
        let (id, hello) = self.take_asked(conn).ok_or(ConnectError::NotOpen)?;
        if let Err(e) = self.check_free(qp) {
            self.reject_stream(now, id, "its queue pair is gone, or connected already");
            return Err(e);
        }
        if let Some(b) = self.iwarp_state.conns.get_mut(&conn) {
            b.own.qp = Some(qp);
            b.streams[0] = Some((id, Some(qp)));
        }
        self.iwarp_state.by_qp.insert(qp, id);
        self.set_stream_dscp(conn, id);
        let short_writes = self.serves_short_writes();
        let reply = Reply { farewell: 0, short_writes }.put();
        let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) else {
            return Err(ConnectError::NotOpen);
        };
        super::conn::suit(engine, hello.short_writes);
        engine.make_foreign();
        if let Err(e) = engine.accept(&mut self.adapter, qp, &reply, now) {
            self.iwarp_state.by_qp.remove(&qp);
            self.reject_stream(now, id, "its queue pair cannot be connected");
            return Err(e.into());
        }
        self.iwarp_state.touch(id);
        self.stream_done(now, id);
        Ok(())
    }

    /// Turns down what [`Event::StreamRequested`] asks for; the peer's application gets the words. [`Event::Closed`] follows.
    pub fn refuse_stream(&mut self, now: Time, conn: ConnId, words: &str) {
        if let Some((id, _)) = self.take_asked(conn) {
            self.reject_stream(now, id, words);
        }
    }

    fn take_asked(&mut self, conn: ConnId) -> Option<(StreamId, Hello)> {
        let asked = self.iwarp_state.conns.get(&conn).filter(|b| !b.closed)?.own.asked?;
        self.iwarp_state.streams.contains_key(&asked.0).then_some(asked)
    }

    fn reject_stream(&mut self, now: Time, id: StreamId, words: &str) {
        if let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) {
            // Words that are too long are none of ours.
            let _ = engine.reject(words.as_bytes(), now);
        }
        self.iwarp_state.touch(id);
        self.stream_done(now, id);
    }

    /// Takes a queue pair of the application's from its connection by iWARP, which is closed. False: it has none.
    pub(crate) fn part_from_stream(&mut self, now: Time, qp: QpId) -> bool {
        let Some(id) = self.iwarp_state.by_qp.get(&qp).copied() else { return false };
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return false };
        let Some(b) = s.conn.and_then(|c| self.iwarp_state.conns.get_mut(&c)) else { return false };
        if b.own.qp != Some(qp) {
            return false;
        }
        self.iwarp_state.by_qp.remove(&qp);
        b.ending.get_or_insert(transport::CloseReason::Local);
        if let Some(engine) = &mut s.engine {
            engine.part(&mut self.adapter, now);
        }
        self.iwarp_state.touch(id);
        self.stream_done(now, id);
        true
    }
}
