//! What is copied: a folder of files whose content depends on their names only, made anew for each round and compared
//! after each run.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Case;

/// The folder's name, at both ends.
pub const NAME: &str = "tree";
/// Bytes written at a time.
const PIECE: usize = 1 << 20;

/// Makes the folder in `at`; gives the hash over all names and contents.
pub fn make(at: &Path, case: Case) -> Result<blake3::Hash> {
    let folder = at.join(NAME);
    let each = (0..case.folders).map(|n| folder.join(folder_name(n)));
    for folder in std::iter::once(folder.clone()).chain(each) {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut all = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    for n in 0..case.files {
        let name = name(case, n);
        let mut out = BufWriter::with_capacity(PIECE, File::create(folder.join(&name))?);
        let mut hash = blake3::Hasher::new();
        let (mut left, mut seed) = (case.length(n), n << 32);
        while left > 0 {
            let part = &mut piece[..left.min(PIECE as u64) as usize];
            seed = fill(part, seed);
            hash.update(part);
            out.write_all(part)?;
            left -= part.len() as u64;
        }
        out.flush()?;
        enter(&mut all, &name, hash.finalize());
    }
    Ok(all.finalize())
}

/// The hash of the folder in `at` as it is there; its files must be those of `case`.
pub fn look(at: &Path, case: Case) -> Result<blake3::Hash> {
    let folder = at.join(NAME);
    let count = |folder: &Path| -> Result<u64> {
        Ok(fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?.count() as u64)
    };
    let there = match case.folders {
        0 => count(&folder)?,
        n => (0..n).map(|n| count(&folder.join(folder_name(n)))).sum::<Result<u64>>()?,
    };
    ensure!(there == case.files, "{there} files arrived instead of {}", case.files);
    let mut all = blake3::Hasher::new();
    for n in 0..case.files {
        let name = name(case, n);
        let mut hash = blake3::Hasher::new();
        hash.update_reader(File::open(folder.join(&name))?)?;
        enter(&mut all, &name, hash.finalize());
    }
    Ok(all.finalize())
}

/// Takes `len` bytes of memory by way of a file, and frees them again: whoever takes memory next finds pages that the
/// machine has.
pub fn touch(path: &Path, len: u64) -> Result<()> {
    let mut out = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let piece = vec![0x5a; PIECE];
    let part = |at: u64| &piece[..(len - at).min(PIECE as u64) as usize];
    let written = (0..len).step_by(PIECE).try_for_each(|at| out.write_all(part(at)));
    drop(out);
    fs::remove_file(path)?;
    written.with_context(|| format!("cannot write {len} bytes to {}; use a smaller --size", path.display()))
}

fn folder_name(n: u64) -> String {
    format!("{n:04}")
}

fn name(case: Case, n: u64) -> String {
    match case.folders {
        0 => format!("{n:06}.data"),
        folders => format!("{}/{n:06}.data", folder_name(n % folders)),
    }
}

fn enter(all: &mut blake3::Hasher, name: &str, hash: blake3::Hash) {
    all.update(name.as_bytes()).update(hash.as_bytes());
}

/// Fills a piece with what nothing compresses; gives where to go on.
fn fill(out: &mut [u8], mut seed: u64) -> u64 {
    for word in out.chunks_mut(8) {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_touched_and_nothing_stays() {
        let path = std::env::temp_dir().join(format!("longhaul-bench-touch-{}", std::process::id()));
        touch(&path, 2_500_000).expect("written");
        assert!(!path.exists());
        assert!(touch(&path.join("nowhere"), 1).is_err());
    }

    #[test]
    fn a_changed_byte_or_a_missing_file_is_seen() {
        let at = std::env::temp_dir().join(format!("longhaul-bench-tree-{}", std::process::id()));
        let case = Case { name: "", files: 3, bytes: 3_000_001, folders: 0 };
        let made = make(&at, case).expect("made");
        assert_eq!(look(&at, case).expect("read"), made);
        let one = at.join(NAME).join(name(case, 1));
        let mut bytes = fs::read(&one).expect("a file");
        bytes[1_500_000] ^= 1;
        fs::write(&one, bytes).expect("written");
        assert_ne!(look(&at, case).expect("read"), made);
        fs::remove_file(&one).expect("removed");
        assert!(look(&at, case).is_err());
        fs::remove_dir_all(&at).expect("removed");
    }
}
