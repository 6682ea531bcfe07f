//! The interface to the layer above: where segments to send come from and where received payload goes.

use base::Prefetch;
use wire::DataHeader;

/// Identifies a sent segment, for its acknowledgement or loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentRef {
    /// Message sequence number of the queue pair, whole.
    pub msn: u64,
    /// Offset in the message.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// The next data packet of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct NextSegment {
    /// Its inner header.
    pub header: DataHeader,
    /// What it carries.
    pub segment: SegmentRef,
    /// Whether it is a retransmission.
    pub again: bool,
    /// Whether nobody waits for its acknowledgement.
    pub quiet: bool,
}

/// The result of placing a received payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is where it belongs.
    Done,
    /// It had been there before; nothing was written.
    Duplicate,
    /// It cannot be taken now: treat the packet as if it had not arrived.
    Refused,
}

/// The peer asked for something it may not have. The queue pair goes into error; the connection lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceError {
    /// Code for the peer.
    pub code: u64,
}

/// The source of segments to send and the sink of segments received. Queue pairs are identified by their number on
/// the wire.
pub trait Streams {
    /// Takes the next piece to send, lost pieces first; header and payload together take at most `room` bytes. With
    /// `within`, only if that is at most so many (else nothing, and nothing changes); what lacks a little may be padded to
    /// be as long.
    fn next(&mut self, qpn: u16, room: usize, within: Option<usize>) -> Option<NextSegment>;
    /// Takes up to `most` pieces more behind the one that `next` gave last: of the next bytes of its message, each as long
    /// and with a header as long, none of them the last. Gives the first, and how many.
    fn run(&mut self, _qpn: u16, _most: usize) -> Option<(NextSegment, usize)> {
        None
    }
    /// Whether `next` has something.
    fn has_more(&self, qpn: u16) -> bool;
    /// Pending bytes: about those left of the current message, and at least so many in all.
    fn waiting(&self, qpn: u16) -> (u64, u64);
    /// Writes the payload of a piece into `out`, which is exactly as long. False when its memory failed: the piece must not leave.
    fn gather(&mut self, qpn: u16, next: &NextSegment, out: &mut [u8]) -> bool;
    /// Writes the payloads of the pieces that `run` gave last into their places in `out`: the first at byte `at`, each
    /// `stride` bytes behind the one before. False when their memory failed; then zeroes may leave in their place, since the end
    /// of their message never does.
    fn gather_run(&mut self, _qpn: u16, _out: &mut [u8], _stride: usize, _at: usize) -> bool {
        true
    }
    /// The payload that is likely to be gathered next: a hint.
    fn prefetch_hint(&self, _qpn: u16) -> Prefetch {
        Prefetch::default()
    }
    /// A segment, or several contiguous ones of a message, arrived.
    fn acked(&mut self, qpn: u16, segment: SegmentRef);
    /// A segment was lost: `next` gives it again, or its loss is reported, as the queue pair requires.
    fn lost(&mut self, qpn: u16, segment: SegmentRef);
    /// Checks a received packet and places its payload.
    fn place(&mut self, header: &DataHeader, payload: &[u8]) -> Result<Placed, PlaceError>;
}
