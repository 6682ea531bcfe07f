//! What encrypting, hashing and verifying cost without any transport: a folder is copied by threads that read a piece, hash
//! it, seal it, open it, hash it again, compare and write. There is neither a network nor anything for one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::fs::{FallocateFlags, fallocate};

use super::tree;
use crate::seal::{self, TAG, Way};

/// Threads, as both ends of a copy by a network have one at least.
const THREADS: usize = 2;
/// Bytes worked on at a time: a chunk of the mover. They stay in the second cache.
const PIECE: usize = 256 << 10;
/// Bytes that a thread takes at a time, opens files for and preallocates.
const PART: u64 = 16 << 20;

/// From where to where.
#[derive(Args)]
pub struct Folders {
    from: PathBuf,
    to: PathBuf,
}

/// A part of a file.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    from: PathBuf,
    to: PathBuf,
    at: u64,
    len: u64,
}

/// Copies the folder.
pub fn run(f: &Folders) -> Result<()> {
    let to = f.to.join(tree::NAME);
    fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    let parts = parts(&f.from.join(tree::NAME), &to)?;
    let next = AtomicUsize::new(0);
    thread::scope(|s| {
        let workers = [(); THREADS].map(|()| {
            s.spawn(|| {
                let mut worker = Worker::new();
                while let Some(part) = parts.get(next.fetch_add(1, Relaxed)) {
                    worker.copy(part).with_context(|| format!("cannot copy {}", part.from.display()))?;
                }
                Ok(())
            })
        });
        workers.into_iter().try_for_each(|w| w.join().expect("a worker does not panic"))
    })
}

/// All files of a folder, the long ones in parts.
fn parts(from: &Path, to: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let len = entry.metadata()?.len();
        for at in (0..len.max(1)).step_by(PART as usize) {
            let to = to.join(entry.file_name());
            parts.push(Part { from: entry.path(), to, at, len: PART.min(len - at) });
        }
    }
    Ok(parts)
}

struct Worker {
    /// What was read, then what was opened: the less memory, the more of it is in the cache.
    plain: Vec<u8>,
    sealed: Vec<u8>,
    /// Pieces so far: numbers are not used twice within a run of a thread.
    number: u64,
}

impl Worker {
    fn new() -> Worker {
        Worker { plain: vec![0; PIECE], sealed: vec![0; PIECE + TAG], number: 0 }
    }

    /// Copies a part.
    fn copy(&mut self, p: &Part) -> Result<()> {
        let from = File::open(&p.from)?;
        let to = File::options().write(true).create(true).truncate(false).open(&p.to)?;
        if p.len > 0 {
            fallocate(&to, FallocateFlags::empty(), p.at, p.len).map_err(io::Error::from)?;
        }
        for at in (p.at..p.at + p.len).step_by(PIECE) {
            let len = (p.at + p.len - at).min(PIECE as u64) as usize;
            from.read_exact_at(&mut self.plain[..len], at)?;
            to.write_all_at(self.pass(len, |_| {})?, at)?;
        }
        Ok(())
    }

    /// What both ends do with a piece between reading and writing it; `on_way` is what happens to it between them.
    fn pass(&mut self, len: usize, on_way: impl Fn(&mut [u8])) -> Result<&[u8]> {
        let (plain, sealed) = (&mut self.plain[..len], &mut self.sealed[..len + TAG]);
        let read = blake3::hash(plain);
        seal::seal(Way::There, self.number, plain, sealed)?;
        on_way(sealed);
        seal::open(Way::There, self.number, sealed, plain)?;
        self.number += 1;
        ensure!(blake3::hash(plain) == read, "what was opened is not what was read");
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Case;

    #[test]
    fn a_folder_arrives_as_it_is() {
        let at = std::env::temp_dir().join(format!("longhaul-bench-pipeline-{}", std::process::id()));
        let [from, to] = ["from", "to"].map(|end| at.join(end));
        let case = Case { name: "", files: 3, bytes: PART + PIECE as u64 + 1, folders: 0 };
        let made = tree::make(&from, case).expect("made");
        run(&Folders { from: from.clone(), to: to.clone() }).expect("copied");
        assert_eq!(tree::look(&to, case).expect("read"), made);
        assert!(run(&Folders { from: at.join("nowhere"), to }).is_err());
        fs::remove_dir_all(&at).expect("removed");
    }

    #[test]
    fn a_changed_piece_is_an_error() {
        let mut w = Worker::new();
        w.plain.fill(7);
        assert_eq!(w.pass(1000, |_| {}).expect("opens"), [7; 1000]);
        for at in [0, TAG, TAG + 999] {
            w.plain.fill(7);
            assert!(w.pass(1000, |sealed| sealed[at] ^= 1).is_err(), "{at}");
        }
    }
}
