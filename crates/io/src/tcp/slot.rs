//! What the driver knows of a stream's socket.

use base::Time;
use endpoint::StreamId;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// A stream's socket.
#[derive(Debug)]
pub(super) struct Slot {
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
    pub(super) enough: u32,
    /// When much began to be waited for; nothing was read since.
    pub(super) since: Option<Time>,
    /// It is read though nothing was told of it, since it is time.
    pub(super) untold: bool,
    /// Much was waited for in vain, and has not come since.
    pub(super) stalls: bool,
    /// Bytes that came since something was sent.
    pub(super) flowed: u64,
}

impl Slot {
    /// Of a socket that is connected, or about to be.
    pub(super) fn new(fd: OwnedFd, connecting: bool) -> Slot {
        Slot {
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
            enough: 1,
            since: None,
            untold: false,
            stalls: false,
            flowed: 0,
        }
    }

    /// Puts it among those to be read, if there is anything to read from it.
    pub(super) fn make_due(&mut self, id: StreamId, due: &mut VecDeque<StreamId>) {
        if !(self.ended || self.connecting || self.due) {
            self.due = true;
            due.push_back(id);
        }
    }
}
