//! Ways for a receiver to bring what arrived into a new file, without a network: what each costs.
//!
//! Data comes in chunks from memory that is hot in the cache, as after a check. What reads it back is counted with those
//! ways that need it: what lies in a mapping is hashed from the file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use lhio::clock::{Clock, CpuTime};
use lhio::mmap::{MappedFile, file};

use crate::rounds::spread;

/// Bytes brought in at a time: a chunk of the mover.
const CHUNK: u64 = 256 << 10;
/// Bytes mapped or preallocated at a time.
const WINDOW: u64 = 64 << 20;

/// One way: fills a file of this length.
type Way = fn(&File, &Path, u64, &[u8]) -> Result<()>;

const WAYS: &[(&str, Way)] = &[
    ("write", |f, _, len, chunk| write(f, 0, len, chunk)),
    ("preallocate, write", |f, p, len, chunk| {
        file::allocate(f, p, len)?;
        write(f, 0, len, chunk)
    }),
    ("preallocate 64 MiB, write them", |f, p, len, chunk| {
        windows(len, |at, n| {
            file::allocate(f, p, at + n)?;
            write(f, at, n, chunk)
        })
    }),
    ("map, copy, read back", |f, p, len, chunk| {
        file::set_len(f, p, len)?;
        windows(len, |at, n| copy(f, p, at, n, chunk, false))
    }),
    ("preallocate, map, copy, read back", |f, p, len, chunk| {
        file::allocate(f, p, len)?;
        windows(len, |at, n| copy(f, p, at, n, chunk, false))
    }),
    ("preallocate, map, populate, copy, read back", |f, p, len, chunk| {
        file::allocate(f, p, len)?;
        windows(len, |at, n| copy(f, p, at, n, chunk, true))
    }),
];

fn windows(len: u64, mut each: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    (0..len).step_by(WINDOW as usize).try_for_each(|at| each(at, WINDOW.min(len - at)))
}

fn write(f: &File, at: u64, len: u64, chunk: &[u8]) -> Result<()> {
    for i in (at..at + len).step_by(CHUNK as usize) {
        f.write_all_at(&chunk[..CHUNK.min(at + len - i) as usize], i)?;
    }
    Ok(())
}

fn copy(f: &File, p: &Path, at: u64, len: u64, chunk: &[u8], populate: bool) -> Result<()> {
    let mut map = MappedFile::destination(f, p, at, len)?;
    if populate {
        map.populate(0, len as usize)?;
    }
    let mut back = vec![0; CHUNK as usize];
    for i in (0..len).step_by(CHUNK as usize) {
        let n = CHUNK.min(len - i) as usize;
        map.write(i as usize, &chunk[..n]);
        f.read_exact_at(&mut back[..n], at + i)?;
    }
    Ok(())
}

/// Measures each way in turn in a file of `len` bytes in `folder`; the disk itself is not waited for.
pub fn compare(folder: &Path, len: u64, rounds: u32) -> Result<()> {
    let chunk = vec![0x5a; CHUNK as usize];
    let path = folder.join("way");
    let clock = Clock::new();
    let mut runs = vec![(Vec::new(), Vec::new()); WAYS.len()];
    for _ in 0..rounds {
        for ((name, way), (rates, cpus)) in WAYS.iter().zip(&mut runs) {
            let f = File::options().read(true).write(true).create_new(true).open(&path)?;
            let (begun, cpu) = (clock.now(), CpuTime::of_thread());
            let done = way(&f, &path, len, &chunk).with_context(|| name.to_string());
            rates.push(len as f64 * 8e-9 / clock.now().since(begun).as_secs_f64());
            cpus.push(CpuTime::of_thread().since(cpu).total().as_secs_f64() / (len as f64 * 1e-9));
            std::fs::remove_file(&path)?;
            done?;
        }
    }
    println!("\nbringing {len} bytes into a new file in {}", folder.display());
    println!("{:44} {:>8} {:>16} {:>9}", "", "Gbit/s", "(least to most)", "CPU s/GB");
    for ((name, _), (rates, cpus)) in WAYS.iter().zip(runs) {
        let (Some(r), Some(c)) = (spread(rates), spread(cpus)) else { continue };
        let range = format!("({:.1} to {:.1})", r.least, r.most);
        println!("{name:44} {:8.2} {range:>16} {:9.2}", r.median, c.median);
    }
    Ok(())
}
