//! Direct reads of files past the page cache (`O_DIRECT`), for files larger than the cache should hold.
//!
//! The disk's queue is kept full by io_uring, many parts of one read at a time; where a machine forbids it, parts are
//! read one after the other, and threads that read at the same time are what fills the queue.

use io_uring::{IoUring, opcode, types};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Offsets, lengths and memory of direct reads are multiples of this: the logical block of all but exotic disks, which
/// refuse and are read through the page cache.
pub const ALIGN: usize = 4096;
/// Bytes of one request to the disk.
const PART: usize = 256 << 10;
/// Requests under way at a time.
const DEPTH: u32 = 32;

/// Reads of `file` go past the page cache from now on: use a [`Reader`].
///
/// # Errors
/// When its file system cannot do that.
pub fn enable(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT)?)
}

/// Reads of `file` go through the page cache again.
///
/// # Errors
/// The system's.
pub fn disable(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)?.difference(OFlags::DIRECT))?)
}

/// A reader for one thread.
pub struct Reader {
    /// `None` where the machine has no io_uring for us.
    ring: Option<IoUring>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    /// With io_uring where it is allowed.
    pub fn new() -> Reader {
        Reader { ring: IoUring::new(DEPTH).ok() }
    }

    /// Reads `len` bytes from `offset`, a multiple of [`ALIGN`], into `buffer`, which is made as long as that takes. Gives
    /// where in the buffer they are: fewer bytes than asked for at the end of the file only.
    ///
    /// # Errors
    /// The system's. `InvalidInput` when the disk wants another alignment than [`ALIGN`]; the buffer is then as good as
    /// before, after other errors it may be empty.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        len: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Range<usize>> {
        let whole = len.next_multiple_of(ALIGN);
        if buffer.len() < whole + ALIGN {
            buffer.resize(whole + ALIGN, 0);
        }
        let lead = buffer.as_ptr().align_offset(ALIGN);
        if !offset.is_multiple_of(ALIGN as u64) || lead > ALIGN {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut done = match &mut self.ring {
            Some(ring) => match at_once(ring, file, offset, &mut buffer[lead..lead + whole]) {
                Ok(n) => n,
                Err(RingFailed(e)) => {
                    // The kernel may still write there: memory that is given up can be written by anybody.
                    std::mem::forget(std::mem::take(buffer));
                    self.ring = None;
                    return Err(e);
                }
            },
            None => 0,
        };
        // What is left: all of it without a ring, and what a request was refused or cut short. The kernel takes direct
        // reads at multiples of ALIGN only; anywhere else is the end of the file.
        while done < len && done.is_multiple_of(ALIGN) {
            let end = whole.min(done + PART);
            match file.read_at(&mut buffer[lead + done..lead + end], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(lead..lead + done.min(len))
    }
}

/// The ring failed while requests may still be in flight.
struct RingFailed(io::Error);

/// Reads all parts of `out`, [`DEPTH`] at a time; gives how many bytes arrived before the first part that is not whole.
fn at_once(ring: &mut IoUring, file: &File, offset: u64, out: &mut [u8]) -> Result<usize, RingFailed> {
    let fd = types::Fd(file.as_raw_fd());
    let mut whole = 0;
    for (group, memory) in out.chunks_mut(PART * DEPTH as usize).enumerate() {
        let base = group * PART * DEPTH as usize;
        let mut parts = 0usize;
        for (i, part) in memory.chunks_mut(PART).enumerate() {
            let at = offset + (base + i * PART) as u64;
            let request = opcode::Read::new(fd, part.as_mut_ptr(), part.len() as u32).offset(at).build();
            // SAFETY: the part is exclusively borrowed until this function returns, which it does only when all requests
            // have completed, or with `RingFailed`, upon which the caller gives the memory up. The file outlives the call.
            if unsafe { ring.submission().push(&request.user_data(i as u64)) }.is_err() {
                break; // cannot be: the queue has DEPTH places and was empty
            }
            parts += 1;
        }
        let mut got = [0usize; DEPTH as usize];
        let mut left = parts;
        while left > 0 {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => return Err(RingFailed(e)),
            }
            for c in ring.completion() {
                if let Some(n) = got.get_mut(c.user_data() as usize) {
                    *n = usize::try_from(c.result()).unwrap_or(0);
                }
                left = left.saturating_sub(1);
            }
        }
        for (n, part) in got.iter().zip(memory.chunks(PART)) {
            whole += n;
            if *n < part.len() {
                return Ok(whole);
            }
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in a folder whose file system takes direct reads, or `None`, with the reason told.
    fn direct_file(data: &[u8]) -> Option<(tempfile::NamedTempFile, File)> {
        let named = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(named.path(), data).unwrap();
        let file = File::open(named.path()).unwrap();
        match enable(&file) {
            Ok(()) => Some((named, file)),
            Err(e) => {
                eprintln!("not tested: this file system refuses direct reads: {e}");
                None
            }
        }
    }

    #[test]
    fn whole_file_is_read_with_and_without_io_uring() {
        let data: Vec<u8> = (0..(9 << 20) + 5_001u32).map(|i| (i.wrapping_mul(40_503) >> 8) as u8).collect();
        let Some((_named, file)) = direct_file(&data) else { return };
        for mut reader in [Reader::new(), Reader { ring: None }] {
            let mut buffer = Vec::new();
            for (at, len) in
                [(0, data.len()), (ALIGN, 100), (8 << 20, 5 << 20), (4 << 20, 1 << 20), (16 << 20, 10)]
            {
                let r = reader.read(&file, at as u64, len, &mut buffer).unwrap();
                let want = data.get(at..data.len().min(at + len)).unwrap_or_default();
                assert!(buffer[r] == *want, "{at} {len}");
            }
            let e = reader.read(&file, 1, 10, &mut buffer).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        }
        disable(&file).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 77).unwrap();
        assert_eq!(byte[0], data[77]);
    }
}
