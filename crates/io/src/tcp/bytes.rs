//! Reads a stream's bytes from its socket into their places, and sends them from where they lie.

use super::stream_socket::StreamSocket;
use super::{BUFFER, LONG, RANGES, socket};
use crate::poll::is_readable;
use base::Time;
use endpoint::{Endpoint, StreamId, StreamIo};
use iwarp::{Piece, ReadTarget};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::OwnedFd;

/// What came of reading.
pub(super) struct Read {
    /// How much came.
    pub(super) got: Result<usize, Errno>,
    /// There is likely to be more.
    pub(super) more: bool,
    /// Nothing is to follow.
    pub(super) settled: bool,
}

/// Questions whether there is something to read, or readings in vain, instead of each further look.
const TRIES: u32 = 4;

/// How a stream that was not reported readable is polled.
#[derive(Clone, Copy)]
pub(super) struct PollAttempts {
    /// So many times, at the last nothing, perhaps.
    pub(super) times: u32,
    /// By [asking](StreamSocket::asks) after the first.
    pub(super) asks: bool,
}

/// Reads what there is straight to its places.
pub(super) fn read_direct(
    fd: &OwnedFd,
    ranges: &mut Vec<libc::iovec>,
    io: &mut StreamIo<'_>,
    now: Time,
    looks: PollAttempts,
) -> Read {
    let Some(offered) = list_places(ranges, io, now) else {
        return Read { got: Err(Errno::INTR), more: true, settled: false };
    };
    // SAFETY: they are scratch memory and registered regions of the endpoint, which `io` borrows, so that neither was touched since
    // they were named; nobody else has references into them.
    let got = unsafe { read_or_try(fd, ranges, looks) };
    ranges.clear();
    on_read(io, got, offered, now)
}

/// Lists where what comes next goes. Gives for how many bytes there is room; `None`: nothing can be read, for now.
pub(super) fn list_places(ranges: &mut Vec<libc::iovec>, io: &mut StreamIo<'_>, now: Time) -> Option<usize> {
    io.engine.borrow_scratch(io.spare);
    io.engine.recheck(io.adapter, now);
    let places = io.engine.places();
    let mut offered = 0;
    ranges.clear();
    for range in places.ranges.iter().take(RANGES) {
        let (base, len) = match range {
            ReadTarget::Scratch { start, len } => match places.scratch.get_mut(*start..start + len) {
                Some(room) => (room.as_mut_ptr(), room.len()),
                None => break,
            },
            ReadTarget::Region(p) => match io.adapter.address(*p) {
                Ok(at) => (at, p.len as usize),
                Err(_) => {
                    // Deregistered in the midst of a record.
                    ranges.clear();
                    io.engine.on_error(io.adapter);
                    return None;
                }
            },
        };
        offered += len;
        ranges.push(libc::iovec { iov_base: base.cast(), iov_len: len });
    }
    Some(offered)
}

/// Takes in what was read to the places that were [named](name_places).
pub(super) fn on_read(io: &mut StreamIo<'_>, got: Result<usize, Errno>, offered: usize, now: Time) -> Read {
    let Ok(n @ 1..) = got else { return Read { got, more: false, settled: false } };
    io.engine.on_received(io.adapter, n, now);
    Read { got, more: n >= offered || io.engine.lacks_little(), settled: io.engine.is_settled() }
}

/// Reads what there is. Where that is nothing, looks for more, and reads it then.
///
/// # Safety
/// As [`socket::receive`]'s.
#[inline(always)]
unsafe fn read_or_try(fd: &OwnedFd, ranges: &[libc::iovec], looks: PollAttempts) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let mut got = unsafe { socket::receive(fd, ranges) };
    for _ in 0..looks.times.saturating_sub(1).saturating_mul(TRIES) {
        if got != Err(Errno::AGAIN) {
            break;
        }
        if !looks.asks || is_readable(fd) {
            // SAFETY: the caller's promise.
            got = unsafe { socket::receive(fd, ranges) };
        }
    }
    got
}

/// Reads what there is into a buffer, and has it taken in.
#[inline(never)]
pub(super) fn read_buffered(
    s: &mut StreamSocket,
    buffer: &mut Vec<u8>,
    (now, id): (Time, StreamId),
    endpoint: &mut Endpoint,
) -> Read {
    buffer.resize(BUFFER, 0);
    let got = rustix::io::read(&s.fd, &mut buffer[..]);
    if let Ok(n @ 1..) = got {
        let taken = endpoint.feed_stream(now, id, &buffer[..n]);
        s.rest = buffer[taken..n].to_vec();
        let more = n >= BUFFER || endpoint.stream_io(id).is_some_and(|io| io.engine.lacks_little());
        return Read { got, more, settled: false };
    }
    Read { got, more: false, settled: false }
}

/// Sends what TLS has sealed; true when there may be more.
#[inline(never)]
pub(super) fn send_sealed(
    s: &mut StreamSocket,
    now: Time,
    id: StreamId,
    endpoint: &mut Endpoint,
) -> Result<bool, Errno> {
    let bytes = endpoint.sealed(now, id);
    if bytes.is_empty() {
        return Ok(false);
    }
    match rustix::net::send(&s.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) => {
            s.blocked = n < bytes.len();
            endpoint.sealed_sent(now, id, n);
            Ok(!s.blocked)
        }
        Err(Errno::INTR) => Ok(true),
        Err(Errno::AGAIN) => {
            s.blocked = true;
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Sends what there is, from where it lies. Gives how much left, and how much there was; `None`: nothing.
pub(super) fn send_direct(
    fd: &OwnedFd,
    ranges: &mut Vec<libc::iovec>,
    io: &mut StreamIo<'_>,
    now: Time,
) -> Result<Option<(usize, usize)>, Errno> {
    let records_fit = io.engine.emss() < LONG;
    let Some(t) = io.engine.transmit(io.adapter, now) else { return Ok(None) };
    let (mut skip, mut offered) = (t.skip, 0);
    let whole = records_fit && t.pieces.len() <= RANGES;
    ranges.clear();
    for piece in t.pieces.iter().take(RANGES) {
        let (base, len) = match piece {
            Piece::Scratch { start, len } => match t.scratch.get(*start..start + len) {
                Some(b) => (b.as_ptr().cast_mut(), b.len()),
                None => break,
            },
            Piece::Region(p) => match io.adapter.address(*p) {
                Ok(at) => (at, p.len as usize),
                Err(_) => {
                    ranges.clear();
                    io.engine.on_error(io.adapter);
                    return Ok(None);
                }
            },
        };
        // Of the first range, some was sent before.
        let past = core::mem::take(&mut skip).min(len);
        offered += len - past;
        ranges.push(libc::iovec { iov_base: base.wrapping_add(past).cast(), iov_len: len - past });
    }
    // SAFETY: scratch memory is borrowed from the engine until here; the adapter's addresses hold until it is used again,
    // which is after the call. The kernel reads only.
    let sent = unsafe { socket::send(fd, ranges, whole) };
    ranges.clear();
    let sent = sent?;
    io.engine.on_sent(io.adapter, sent);
    Ok(Some((sent, offered)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poller;
    use base::Span;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn read(fd: &OwnedFd, to: &mut [u8], looks: PollAttempts) -> Result<usize, Errno> {
        let ranges = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
        // SAFETY: the range is that of `to`, which is borrowed for as long.
        unsafe { read_or_try(fd, &ranges, looks) }
    }

    #[test]
    fn data_and_end_of_stream_arriving_during_polling_are_read() {
        for asks in [true, false] {
            let looks = |times| PollAttempts { times, asks };
            let (mut from, to) = UnixStream::pair().expect("a pair");
            to.set_nonblocking(true).expect("set");
            let (to, mut bytes) = (OwnedFd::from(to), [0; 4]);
            assert_eq!(read(&to, &mut bytes, looks(0)), Err(Errno::AGAIN));
            assert_eq!(read(&to, &mut bytes, looks(2)), Err(Errno::AGAIN), "looked in vain");
            let writes = std::thread::spawn(move || {
                // Long after the first read was in vain, in all but the busiest hours.
                Poller::new().expect("a poller").wait(&mut [], Some(Span::from_millis(20))).expect("waited");
                from.write_all(b"abcd").expect("written");
                from
            });
            assert_eq!(read(&to, &mut bytes, looks(u32::MAX)), Ok(4));
            assert_eq!(&bytes, b"abcd");
            drop(writes.join().expect("written"));
            assert_eq!(read(&to, &mut bytes, looks(2)), Ok(0), "the end");
        }
    }
}
