//! Joins consecutive packets into trains for one send call.

use crate::poll::{Poller, Source};
use crate::udp::{Blocked, MAX_SEGMENTS, MAX_TRAIN, SendBatch, SendMeta, UdpError, UdpSocket};
use base::Span;

/// How long a full socket buffer may block the relay before packets are dropped, as an adapter's queue would drop
/// them.
const MAX_SEND_WAIT: Span = Span::from_millis(1);

/// The train under construction.
#[derive(Clone, Copy)]
struct OpenTrain {
    meta: SendMeta,
    len: usize,
    segments: usize,
    /// A short segment was the last.
    closed: bool,
}

/// What was sent and dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushReport {
    pub(super) trains: u64,
    pub(super) dropped: u64,
}

/// Joins packets for one socket at a time. Packets leave in the order given.
pub(super) struct TrainBuilder {
    batch: SendBatch,
    open: Option<OpenTrain>,
    waiter: Poller,
    left: FlushReport,
}

impl TrainBuilder {
    pub(super) fn new() -> std::io::Result<TrainBuilder> {
        let waiter = Poller::new()?;
        Ok(TrainBuilder { batch: SendBatch::new(), open: None, waiter, left: FlushReport::default() })
    }

    /// Adds a packet; `meta.segment` is its length. One that is empty or longer than any train is dropped and
    /// counted.
    pub(super) fn push(&mut self, socket: &UdpSocket, meta: SendMeta, bytes: &[u8]) -> Result<(), UdpError> {
        if bytes.is_empty() || bytes.len() > MAX_TRAIN {
            self.left.dropped += 1;
            return Ok(());
        }
        if !self.open.is_some_and(|o| o.takes(&meta, bytes.len())) {
            self.close()?;
            if self.batch.is_full() {
                self.send(socket)?;
            }
        }
        let open = self.open.get_or_insert(OpenTrain { meta, len: 0, segments: 0, closed: false });
        let Some(slot) = self.batch.slot().and_then(|s| s.get_mut(open.len..open.len + bytes.len())) else {
            self.left.dropped += 1;
            return Ok(());
        };
        slot.copy_from_slice(bytes);
        open.len += bytes.len();
        open.segments += 1;
        open.closed = bytes.len() < open.meta.segment;
        Ok(())
    }

    /// Sends all that was added. Tells what has left since the last call.
    pub(super) fn flush(&mut self, socket: &UdpSocket) -> Result<FlushReport, UdpError> {
        self.close()?;
        self.send(socket)?;
        Ok(core::mem::take(&mut self.left))
    }

    fn close(&mut self) -> Result<(), UdpError> {
        match self.open.take() {
            Some(o) => self.batch.commit(o.meta, o.len),
            None => Ok(()),
        }
    }

    fn send(&mut self, socket: &UdpSocket) -> Result<(), UdpError> {
        for attempt in 0..2 {
            if self.batch.is_empty() {
                return Ok(());
            }
            let r = socket.send(&mut self.batch)?;
            self.left.trains += r.sent as u64;
            self.left.dropped += r.dropped as u64;
            if r.blocked == Blocked::Buffer && attempt == 0 {
                self.waiter.wait(&mut [Source::new(socket, true)], Some(MAX_SEND_WAIT))?;
            }
        }
        self.left.dropped += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }
}

impl OpenTrain {
    fn takes(&self, meta: &SendMeta, len: usize) -> bool {
        let same = SendMeta { segment: 0, ..*meta } == SendMeta { segment: 0, ..self.meta };
        same && !self.closed
            && len <= self.meta.segment
            && self.segments < MAX_SEGMENTS
            && self.len + len <= MAX_TRAIN
    }
}
