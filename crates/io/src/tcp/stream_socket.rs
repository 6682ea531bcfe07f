//! The socket of one stream and what the driver knows about it.

use base::Time;
use endpoint::StreamId;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Bytes that come at once from which on reading in vain costs less than asking: measured for 16 to 64 KiB; between
/// 4 B, where it does not, and 16 KiB nothing was measured.
const LARGE: usize = 16 << 10;

/// The socket of a stream.
#[derive(Debug)]
pub(super) struct StreamSocket {
    pub(super) fd: OwnedFd,
    /// It is not connected yet.
    pub(super) connecting: bool,
    /// Stands among those to be read.
    pub(super) due: bool,
    /// Looks in a row that found nothing.
    pub(super) vain: u32,
    /// It takes nothing more for now.
    pub(super) blocked: bool,
    /// The peer sends nothing more.
    pub(super) ended: bool,
    /// It takes nothing any more, and why.
    pub(super) dead: Option<String>,
    /// Bytes that the endpoint could not take in yet.
    pub(super) rest: Vec<u8>,
    /// When to ask for the segment size.
    pub(super) ask: Time,
    /// It may have scratch memory that it need not keep.
    pub(super) borrows: bool,
    /// What epoll waits for.
    pub(super) watched: epoll::EventFlags,
    /// Of so many bytes the system tells, not of fewer.
    pub(super) low_watermark: u32,
    /// When much began to be waited for; nothing was read since.
    pub(super) since: Option<Time>,
    /// It is read though nothing was told of it, since it is time.
    pub(super) untold: bool,
    /// Much was waited for in vain, and has not come since.
    pub(super) stalls: bool,
    /// Bytes that came since something was sent.
    pub(super) flowed: u64,
    /// Where a client is that has come by it.
    pub(super) from: Option<IpAddr>,
    /// The most that a reading brought, half of it after each since.
    lately: usize,
}

impl StreamSocket {
    /// Of a socket that is connected, or about to be.
    pub(super) fn new(fd: OwnedFd, connecting: bool) -> StreamSocket {
        StreamSocket {
            fd,
            connecting,
            due: false,
            vain: 0,
            blocked: connecting,
            ended: false,
            dead: None,
            rest: Vec::new(),
            ask: Time::ZERO,
            borrows: false,
            watched: epoll::EventFlags::empty(),
            low_watermark: 1,
            since: None,
            untold: false,
            stalls: false,
            flowed: 0,
            from: None,
            lately: 0,
        }
    }

    /// Puts it among those to be read, if there is anything to read from it.
    pub(super) fn make_due(&mut self, id: StreamId, due: &mut VecDeque<StreamId>) {
        if !(self.ended || self.connecting || self.due) {
            self.due = true;
            due.push_back(id);
        }
    }

    /// A reading has brought so much.
    pub(super) fn brought(&mut self, bytes: usize) {
        self.lately = bytes.max(self.lately / 2);
    }

    /// Whether a look that finds nothing is followed by asking, and not by reading again. Reading in vain holds the socket's lock:
    /// a message of a few bytes waits for that, and asking takes less time. Of 64 KiB the last segment comes while the first is
    /// copied from the socket, under the lock in any case; who asks begins with the first at once, takes in the last when it gives
    /// the lock back, and has the acknowledgement of both to send before it gets on, which the sender's processor does while it
    /// copies otherwise (3 us of each way over loopback).
    pub(super) fn asks(&self) -> bool {
        self.lately < LARGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_message_readers_retry_reads_instead_of_polling() {
        let (fd, _peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut s = StreamSocket::new(fd.into(), false);
        assert!(s.asks(), "nothing came yet");
        // A message of 64 KiB, in two readings, again and again.
        for _ in 0..3 {
            s.brought(65_483);
            assert!(!s.asks());
            s.brought(105);
            assert!(!s.asks());
        }
        // Small ones since.
        s.brought(28);
        s.brought(28);
        assert!(s.asks());
        s.brought(usize::MAX);
        assert!(!s.asks());
    }
}
