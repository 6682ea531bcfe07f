//! Reads and writes lines over a stream, with limits on their length and duration.

use base::{Span, Time};
use lhio::clock::Clock;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes taken in at a time.
const CHUNK: usize = 64 << 10;

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The other end has hung up.
    #[error("the other end has hung up")]
    Ended,
    /// It is longer than it may be.
    #[error("a line has more than {0} bytes")]
    TooLong(usize),
    /// It did not come in time.
    #[error("no answer in time")]
    TooSlow,
    /// The system said no.
    #[error("cannot read or write: {0}")]
    System(#[from] io::Error),
}

/// A stream read and written by lines.
#[derive(Debug)]
pub struct Lines {
    stream: UnixStream,
    /// Read and not given out yet.
    buffer: Vec<u8>,
    /// So far there is no end of a line in it.
    searched: usize,
    longest: usize,
    clock: Clock,
}

impl Lines {
    /// Reads lines of at most `longest` bytes from `stream`, which blocks.
    pub fn new(stream: UnixStream, longest: usize) -> Lines {
        Lines { stream, buffer: Vec::new(), searched: 0, longest, clock: Clock::new() }
    }

    /// The stream below.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next line, its end included: it begins within `begin`, and takes at most `rest` from then on.
    ///
    /// # Errors
    /// [`LineError`]; the stream is of no use afterwards.
    pub fn next(&mut self, begin: Span, rest: Span) -> Result<Vec<u8>, LineError> {
        let mut deadline = self.clock.now() + if self.buffer.is_empty() { begin } else { rest };
        loop {
            if let Some(n) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                let tail = self.buffer.split_off(self.searched + n + 1);
                self.searched = 0;
                let line = std::mem::replace(&mut self.buffer, tail);
                return if line.len() > self.longest {
                    Err(LineError::TooLong(self.longest))
                } else {
                    Ok(line)
                };
            }
            self.searched = self.buffer.len();
            if self.searched > self.longest {
                return Err(LineError::TooLong(self.longest));
            }
            let left = self.left(deadline)?;
            self.stream.set_read_timeout(Some(left))?;
            self.buffer.resize(self.searched + CHUNK, 0);
            let read = self.stream.read(&mut self.buffer[self.searched..]);
            self.buffer.truncate(self.searched + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(LineError::Ended),
                Ok(_) if self.searched == 0 => deadline = self.clock.now() + rest,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_timeout(&e) => return Err(LineError::TooSlow),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes all of `bytes` within `within`.
    ///
    /// # Errors
    /// [`LineError`]; the stream is of no use afterwards.
    pub fn write(&mut self, mut bytes: &[u8], within: Span) -> Result<(), LineError> {
        let deadline = self.clock.now() + within;
        while !bytes.is_empty() {
            let left = self.left(deadline)?;
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(LineError::Ended),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_timeout(&e) => return Err(LineError::TooSlow),
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Err(LineError::Ended),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn left(&self, deadline: Time) -> Result<Duration, LineError> {
        let left = deadline.since(self.clock.now());
        if left.is_zero() { Err(LineError::TooSlow) } else { Ok(Duration::from_nanos(left.as_nanos())) }
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Span = Span::from_millis(20);
    const LATER: Span = Span::from_secs(30);

    #[test]
    fn lines_are_split_at_any_chunking() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut to, mut lines) = (a, Lines::new(b, 8));
        to.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.next(LATER, LATER).unwrap(), b"one\n");
        to.write_all(b"o\n\n12345").unwrap();
        assert_eq!(lines.next(LATER, LATER).unwrap(), b"two\n");
        assert_eq!(lines.next(LATER, LATER).unwrap(), b"\n");
        to.write_all(b"67\n12345678\n").unwrap();
        assert_eq!(lines.next(LATER, LATER).unwrap(), b"1234567\n");
        assert!(matches!(lines.next(LATER, LATER), Err(LineError::TooLong(8))));
    }

    #[test]
    fn oversized_or_slow_senders_are_disconnected() {
        let (mut to, b) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(b, 8);
        assert!(matches!(lines.next(SOON, LATER), Err(LineError::TooSlow)));
        to.write_all(b"half").unwrap();
        assert!(matches!(lines.next(LATER, SOON), Err(LineError::TooSlow)));
        to.write_all(b" of it").unwrap();
        assert!(matches!(lines.next(LATER, LATER), Err(LineError::TooLong(8))));
        let (to, b) = UnixStream::pair().unwrap();
        drop(to);
        let mut lines = Lines::new(b, 8);
        assert!(matches!(lines.next(LATER, LATER), Err(LineError::Ended)));
        assert!(matches!(lines.write(b"x", LATER), Err(LineError::Ended)));
    }

    #[test]
    fn readers_that_stall_are_disconnected() {
        let (_deaf, b) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(b, 8);
        assert!(matches!(lines.write(&vec![0; 64 << 20], SOON), Err(LineError::TooSlow)));
    }
}
