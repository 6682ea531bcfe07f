//! Waking once for much.
//!
//! A receiver that sleeps is woken by each segment that arrives while it takes the last one out, and takes as little each time. While
//! much has come lately to which this end said nothing, the system wakes it for [`ENOUGH`] at a time (`SO_RCVLOWAT`, socket(7)), and
//! what comes slower is taken after [`LATEST`]. So one wait and one reading take what took two or three of each. Messages that are
//! answered are taken as they come: of one of 1 MiB the receiver's copying would else no longer run beside the sender's (a round
//! trip takes a quarter longer).

use super::{FEW, Slot, Streams, wants_read};
use base::{Span, Time};
use endpoint::Endpoint;
use rustix::fd::AsRawFd;

/// Bytes for which the system wakes the receiver of a flow.
const ENOUGH: u32 = 512 << 10;
/// What comes is taken this much after much began to be waited for at the latest, however often others end the wait.
const LATEST: Span = Span::from_micros(150);
/// After a wait for nothing, so much has to come at once before much is waited for again.
const SOME: usize = 32 << 10;
/// Bytes that come without anything being said to them, from which on more of the same is expected. Where they end, this end notices
/// [`LATEST`] late, which is a twentieth of what so many take at 40 Gbit/s.
const FLOW: u64 = 16 << 20;

impl Streams {
    /// Before a wait: asks the system to wake for what is worth it. Gives until when the wait may last then.
    pub fn gather(&mut self, now: Time, endpoint: &Endpoint) -> Option<Time> {
        if self.slots.len() > FEW {
            return None;
        }
        let mut until: Option<Time> = None;
        for (id, s) in &mut self.slots {
            let much = s.flowed >= FLOW && !s.stalls;
            s.set_gathers(much && wants_read(s, *id, endpoint));
            s.since = s.gathers.then(|| s.since.unwrap_or(now));
            until = until.into_iter().chain(s.since.map(|t| t + LATEST)).min();
        }
        until
    }
}

impl Slot {
    /// A wait is over in which the system told of something to read, or not. Gives whether to read: of little nobody is told while
    /// much is waited for.
    pub(super) fn was_told(&mut self, readable: bool, now: Time) -> bool {
        self.untold = !readable && self.since.is_some_and(|t| now >= t + LATEST);
        readable || self.untold
    }

    /// So much was read: none where there is none.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.since = None;
        if core::mem::take(&mut self.untold) && bytes == 0 {
            // It has ended, or its sender rests: waking every now and then for nothing costs more than waking for each byte.
            (self.flowed, self.stalls) = (0, true);
            return;
        }
        self.flowed = self.flowed.saturating_add(bytes as u64);
        self.stalls &= bytes < SOME;
    }

    /// Whether the system wakes for [`ENOUGH`] or for each byte.
    pub(super) fn set_gathers(&mut self, gathers: bool) {
        if self.gathers == gathers {
            return;
        }
        let bytes = if gathers { ENOUGH as i32 } else { 1 };
        let (fd, len) = (self.fd.as_raw_fd(), size_of::<i32>() as libc::socklen_t);
        // SAFETY: pointer and length describe `bytes`, which the kernel only reads.
        let done = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), len)
        };
        // Where it cannot be had, each byte wakes, as before.
        self.gathers = gathers && done == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Poller, Source};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn joined() -> (TcpStream, Slot) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let from = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (to, _) = listener.accept().expect("accepted");
        (from, Slot::new(to.into(), false))
    }

    fn is_told(s: &Slot, wait: Span) -> bool {
        let mut sources = [Source::readable(&s.fd)];
        Poller::new().expect("a poller").wait(&mut sources, Some(wait)).expect("waited");
        sources[0].readable
    }

    #[test]
    fn the_system_wakes_for_much_and_for_the_end() {
        let (mut from, mut s) = joined();
        s.set_gathers(true);
        assert!(s.gathers);
        from.write_all(&[7; 1_000]).expect("written");
        assert!(!is_told(&s, LATEST * 20), "little");
        s.set_gathers(false);
        assert!(is_told(&s, Span::ZERO), "each byte counts again");
        s.set_gathers(true);
        let mut sent = 1_000;
        while sent < ENOUGH as usize {
            sent += from.write(&[7; 50_000]).expect("written");
        }
        assert!(is_told(&s, Span::from_secs(5)), "much");
        let (from, mut s) = joined();
        s.set_gathers(true);
        drop(from);
        assert!(is_told(&s, Span::from_secs(5)), "the end");
    }

    #[test]
    fn a_flow_is_one_until_nothing_comes_any_more() {
        let (_from, mut s) = joined();
        let (begin, late) = (Time::from_nanos(1), Time::from_nanos(1) + LATEST);
        assert!(s.was_told(true, late) && !s.was_told(false, late), "much was not waited for");
        s.has_read(FLOW as usize);
        assert!(s.flowed >= FLOW);
        // Others end the wait, again and again: it is time when it is.
        s.since = Some(begin);
        assert!(!s.was_told(false, begin) && !s.was_told(false, Time::from_nanos(LATEST.as_nanos())));
        // Nobody was told, but something little is there: it goes on.
        assert!(s.was_told(false, late));
        s.has_read(5);
        assert_eq!(s.since, None);
        // Told, read, and a second look in vain: it goes on, too.
        s.since = Some(begin);
        assert!(s.was_told(true, late));
        s.has_read(70_000);
        s.has_read(0);
        assert!(s.flowed > FLOW && !s.stalls);
        // Nobody was told, and nothing is there.
        s.since = Some(begin);
        assert!(s.was_told(false, late));
        s.has_read(0);
        assert_eq!((s.flowed, s.stalls), (0, true));
        // Little by little it is waited for as it comes, until much comes at once.
        s.has_read(SOME - 1);
        assert!(s.stalls);
        s.has_read(0);
        s.has_read(SOME);
        assert!(!s.stalls);
    }
}
