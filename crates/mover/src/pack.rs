//! Compression: Zstandard (RFC 8878), frame by frame, with what is unpacked bounded before.

use crate::proto::MAX_MESSAGE;
use std::cell::RefCell;
use std::io::{self, BufReader, Read};

/// The library's own default: a few hundred megabytes a second and core.
const LEVEL: i32 = 3;
/// log2 of the largest window that is unpacked, in bytes: 8 MiB, the memory that a frame may ask for. RFC 8878 recommends
/// it as the most that any receiver should support.
const MAX_WINDOW_LOG2: u32 = 23;
/// Bytes read at a time out of what arrived.
const READ: usize = 1 << 16;
/// Bytes that are tried before all is.
const SAMPLE: usize = 16 << 10;

thread_local! {
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Packs `data`, if it becomes shorter by an eighth at least. A sample out of its middle is tried first, so that what cannot be
/// packed is left alone at little cost.
pub(crate) fn pack(data: &[u8]) -> Option<Vec<u8>> {
    if data.len() >= 4 * SAMPLE {
        let middle = data.len() / 2;
        let sample = &data[middle..middle + SAMPLE];
        frame(sample).filter(|f| worth(f.len(), SAMPLE))?;
    }
    frame(data).filter(|f| worth(f.len(), data.len()))
}

fn worth(packed: usize, raw: usize) -> bool {
    packed <= raw - raw / 8
}

fn frame(data: &[u8]) -> Option<Vec<u8>> {
    PACKER.with_borrow_mut(|p| {
        if p.is_none() {
            *p = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        p.as_mut()?.compress(data).ok()
    })
}

/// Unpacks a message of exactly `len` bytes, at most [`MAX_MESSAGE`].
pub(crate) fn message(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    if len > MAX_MESSAGE {
        return None;
    }
    let out = zstd::bulk::decompress(packed, len).ok()?;
    (out.len() == len).then_some(out)
}

/// Unpacks a frame piece by piece.
pub(crate) struct Unpacker<'a, R: Read>(zstd::stream::read::Decoder<'a, BufReader<R>>);

impl<R: Read> Unpacker<'_, R> {
    /// Of the frame that `from` holds.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(from: R) -> io::Result<Self> {
        let mut d =
            zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(READ, from))?.single_frame();
        d.window_log_max(MAX_WINDOW_LOG2)?;
        Ok(Unpacker(d))
    }
    /// The next bytes.
    ///
    /// # Errors
    /// It is no frame, a window is too large, or it ends before.
    pub fn fill(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(out)
    }
    /// Whether that was all of it.
    pub fn is_over(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn text(len: usize) -> Vec<u8> {
        (0..len).map(|i| b"all work and no play "[i % 21]).collect()
    }
    fn noise(len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        base::Rng::from_u64(9).fill(&mut v);
        v
    }

    #[test]
    fn text_is_compressed_and_random_data_is_not() {
        for len in [100, 5_000, 70_000, 1 << 20] {
            let packed = pack(&text(len)).unwrap();
            assert!(packed.len() <= len - len / 8);
            let mut u = Unpacker::new(&packed[..]).unwrap();
            let (mut a, mut b) = (vec![0; len / 3], vec![0; len - len / 3]);
            u.fill(&mut a).unwrap();
            assert!(!u.is_over());
            let mut u = Unpacker::new(&packed[..]).unwrap();
            u.fill(&mut a).unwrap();
            u.fill(&mut b).unwrap();
            assert!(u.is_over() && [a, b].concat() == text(len));
            assert_eq!(pack(&noise(len)), None);
        }
        assert_eq!(pack(b""), None);
        // Noise with a compressible rim: the sample tells.
        let mut mixed = noise(1 << 20);
        mixed[..100_000].fill(0);
        assert_eq!(pack(&mixed), None);
    }

    #[test]
    fn messages_unpack_to_what_was_said_or_not_at_all() {
        let m = text(100_000);
        let packed = pack(&m).unwrap();
        assert_eq!(message(&packed, m.len()).as_ref(), Some(&m));
        for len in [0, 1, m.len() - 1, m.len() + 1, MAX_MESSAGE, MAX_MESSAGE + 1, usize::MAX] {
            assert_eq!(message(&packed, len), None, "{len}");
        }
        for cut in [0, 1, 4, packed.len() / 2, packed.len() - 1] {
            assert_eq!(message(&packed[..cut], m.len()), None, "{cut}");
        }
        // A bomb: hardly a byte that stands for a gigabyte.
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        assert!(bomb.len() < 1 << 14 && message(&bomb, MAX_MESSAGE).is_none());
    }

    #[test]
    fn frames_that_ask_for_large_windows_are_refused() {
        let frame = |log2: u32| {
            // Written piece by piece, so that the window stands in the frame as it is.
            let mut e = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            e.set_parameter(zstd::zstd_safe::CParameter::WindowLog(log2)).unwrap();
            e.write_all(&text(4 << 20)).unwrap();
            e.finish().unwrap()
        };
        let fill = |f: &[u8]| Unpacker::new(f).and_then(|mut u| u.fill(&mut [0; 1000]));
        assert!(fill(&frame(MAX_WINDOW_LOG2)).is_ok());
        assert!(fill(&frame(MAX_WINDOW_LOG2 + 1)).is_err());
    }

    #[test]
    fn damaged_frames_are_errors() {
        let packed = pack(&text(10_000)).unwrap();
        for i in 0..packed.len() {
            let mut b = packed.clone();
            b[i] ^= 0x55;
            let mut out = vec![0; 10_000];
            if let Ok(mut u) = Unpacker::new(&b[..]) {
                let _ = u.fill(&mut out).map(|()| u.is_over());
            }
            let _ = message(&b, 10_000);
        }
    }
}
