//! Wakes the receiver of a bulk flow for large amounts only (`SO_RCVLOWAT`).
//!
//! A receiver that sleeps is woken by each segment that arrives while it takes the last one out, and takes as little each time. While
//! much has come lately to which this end said nothing, the system wakes it for [`low_watermark`] at a time (`SO_RCVLOWAT`, socket(7)), and
//! what comes slower is taken after [`max_wait`]. So one wait takes what took three or ten, one reading what took two, and what arrives
//! meanwhile is queued by who brings it, joined to what is there, instead of waiting for a receiver that holds the socket's lock.
//! Messages that are answered are taken as they come: of one of 1 MiB the receiver's copying would else no longer run beside the
//! sender's (a round trip takes a quarter longer).

use super::{StreamSocket, Streams, wants_read};
use crate::poll::{is_readable, wake_for};
use base::{Rate, Span, Time};
use endpoint::Endpoint;

/// The largest low watermark in bytes, for a flow that is not answered.
pub const MAX_LOW_WATERMARK: u32 = 2 << 20;
/// The low watermark of a flow that begins, and of one that has lasted long. (Linux allows half of a socket's largest
/// buffer, `tcp_rmem`, and wakes in any case where the sender's window is used up.)
const LOW_WATERMARKS: [u32; 2] = [512 << 10, MAX_LOW_WATERMARK];
/// It is a part like this of what has come.
const PART: u64 = 32;
/// Bytes a second that are worth waiting for: 28 Gbit/s.
const WORTH: Rate = Rate::from_mbit(28_000);
/// After a wait for nothing, so much has to come at once before much is waited for again.
const SOME: usize = 32 << 10;
/// Bytes that come without anything being said to them, from which on more of the same is expected. Where they end, this end notices
/// [`max_wait`] late, which is a twentieth of what so many take at 40 Gbit/s.
const FLOW: u64 = PART * LOW_WATERMARKS[0] as u64;

/// The low watermark after so many bytes: a power of two, so that it is seldom set.
fn low_watermark(flowed: u64) -> u32 {
    let part = u32::try_from(flowed / PART).unwrap_or(u32::MAX);
    (1 << part.max(1).ilog2()).clamp(LOW_WATERMARKS[0], LOW_WATERMARKS[1])
}

/// The longest time from setting the low watermark to reading what has arrived, however often others end the wait.
fn max_wait(low_watermark: u32) -> Span {
    WORTH.time_for(low_watermark.into())
}

impl Streams {
    /// Before a wait: sets the low watermark of streams that are worth it. Returns until when the wait may last then.
    pub fn set_low_watermarks(&mut self, now: Time, endpoint: &Endpoint) -> Option<Time> {
        if self.slots.len() > self.few {
            return None;
        }
        let mut until: Option<Time> = None;
        for (id, s) in &mut self.slots {
            s.expect(now, wants_read(s, *id, endpoint));
            until = until.into_iter().chain(s.due_at()).min();
        }
        until
    }
}

impl StreamSocket {
    /// From now on much is waited for, if it is to be expected.
    fn expect(&mut self, now: Time, wants_read: bool) {
        let much = self.flowed >= FLOW && !self.stalls && wants_read;
        self.set_low_watermark(if much { low_watermark(self.flowed) } else { 1 });
        self.since = (self.low_watermark > 1).then(|| self.since.unwrap_or(now));
    }

    /// Whether a low watermark is set, or may be.
    pub(super) fn waits_for_more(&self) -> bool {
        self.flowed >= FLOW || self.low_watermark > 1
    }

    /// Whether to read, for an end that asks instead of waiting: where much is to be expected, when there is as much. Such an end
    /// would else hold the socket's lock most of the time, with little for it, against what arrives.
    pub(super) fn has_enough(&mut self, now: Time, wants_read: bool) -> bool {
        self.expect(now, wants_read);
        self.low_watermark == 1 || {
            let readable = is_readable(&self.fd);
            self.on_wait_result(readable, now)
        }
    }

    /// A wait is over in which the system told of something to read, or not. Gives whether to read: of little nobody is told while
    /// much is waited for.
    pub(super) fn on_wait_result(&mut self, readable: bool, now: Time) -> bool {
        self.untold = !readable && self.due_at().is_some_and(|t| now >= t);
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

    /// When what has come is taken, though it may be little.
    fn due_at(&self) -> Option<Time> {
        self.since.map(|t| t + max_wait(self.low_watermark))
    }

    /// For how many bytes the system wakes.
    pub(super) fn set_low_watermark(&mut self, low_watermark: u32) {
        if self.low_watermark == low_watermark {
            return;
        }
        // Where it cannot be had, each byte wakes, as before.
        self.low_watermark = if wake_for(&self.fd, low_watermark).is_ok() { low_watermark } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Poller, Source};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn joined() -> (TcpStream, StreamSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let from = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (to, _) = listener.accept().expect("accepted");
        (from, StreamSocket::new(to.into(), false))
    }

    fn is_told(s: &StreamSocket, wait: Span) -> bool {
        let mut sources = [Source::readable(&s.fd)];
        Poller::new().expect("a poller").wait(&mut sources, Some(wait)).expect("waited");
        sources[0].readable
    }

    #[test]
    fn kernel_wakes_at_the_low_watermark_and_at_the_end() {
        let (mut from, mut s) = joined();
        s.set_low_watermark(LOW_WATERMARKS[0]);
        assert_eq!(s.low_watermark, LOW_WATERMARKS[0]);
        from.write_all(&[7; 1_000]).expect("written");
        assert!(!is_told(&s, max_wait(LOW_WATERMARKS[0]) * 20), "little");
        s.set_low_watermark(1);
        assert!(is_told(&s, Span::ZERO), "each byte counts again");
        s.set_low_watermark(LOW_WATERMARKS[0]);
        let mut sent = 1_000;
        while sent < LOW_WATERMARKS[0] as usize {
            sent += from.write(&[7; 50_000]).expect("written");
        }
        assert!(is_told(&s, Span::from_secs(5)), "much");
        let (from, mut s) = joined();
        s.set_low_watermark(LOW_WATERMARKS[0]);
        drop(from);
        assert!(is_told(&s, Span::from_secs(5)), "the end");
    }

    #[test]
    fn low_watermark_grows_with_the_flow() {
        assert_eq!(low_watermark(FLOW), 512 << 10);
        assert_eq!(
            [2 * FLOW - 1, 2 * FLOW, 4 * FLOW, 400 * FLOW, u64::MAX].map(|n| low_watermark(n) >> 10),
            [512, 1024, 2048, 2048, 2048]
        );
        // Slower than 28 Gbit/s, which this is of each, it is taken before there is so much.
        for n in LOW_WATERMARKS {
            let rate = Rate::from_bytes_in(n.into(), max_wait(n)).bits_per_sec();
            assert!((27_900_000_000..28_100_000_000).contains(&rate), "{rate}");
        }
        assert!(max_wait(LOW_WATERMARKS[1]) < Span::from_micros(600));
    }

    #[test]
    fn spinning_reader_reads_at_the_low_watermark_or_deadline() {
        let (mut from, mut s) = joined();
        let now = Time::from_nanos(1);
        assert!(!s.waits_for_more(), "nothing came yet");
        s.has_read(FLOW as usize);
        assert!(s.waits_for_more());
        from.write_all(&[7; 1_000]).expect("written");
        assert!(!s.has_enough(now, true), "little");
        let late = now + max_wait(LOW_WATERMARKS[0]);
        assert!(!s.has_enough(Time::from_nanos(late.as_nanos() - 1), true));
        assert!(s.has_enough(late, true), "it is time");
        s.has_read(1_000);
        assert!(!s.has_enough(late, true), "and again");
        let mut sent = 1_000;
        while sent < LOW_WATERMARKS[0] as usize {
            sent += from.write(&[7; 50_000]).expect("written");
        }
        assert!(is_told(&s, Span::from_secs(5)) && s.has_enough(late, true), "much");
        // What is not to be read is not waited for either, and each byte counts again.
        assert!(s.has_enough(now, false) && s.low_watermark == 1);
        // This end has said something.
        s.set_low_watermark(LOW_WATERMARKS[0]);
        s.flowed = 0;
        assert!(s.waits_for_more() && s.has_enough(now, true) && !s.waits_for_more());
    }

    #[test]
    fn flow_ends_when_no_data_arrives() {
        let (_from, mut s) = joined();
        let begin = Time::from_nanos(1);
        s.set_low_watermark(LOW_WATERMARKS[0]);
        let late = begin + max_wait(LOW_WATERMARKS[0]);
        assert!(s.on_wait_result(true, late) && !s.on_wait_result(false, late), "much was not waited for");
        s.has_read(FLOW as usize);
        assert!(s.flowed >= FLOW);
        // Others end the wait, again and again: it is time when it is.
        s.since = Some(begin);
        assert!(
            !s.on_wait_result(false, begin)
                && !s.on_wait_result(false, Time::from_nanos(late.as_nanos() - 1))
        );
        // Nobody was told, but something little is there: it goes on.
        assert!(s.on_wait_result(false, late));
        s.has_read(5);
        assert_eq!(s.since, None);
        // Told, read, and a second look in vain: it goes on, too.
        s.since = Some(begin);
        assert!(s.on_wait_result(true, late));
        s.has_read(70_000);
        s.has_read(0);
        assert!(s.flowed > FLOW && !s.stalls);
        // Nobody was told, and nothing is there.
        s.since = Some(begin);
        assert!(s.on_wait_result(false, late));
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
