//! A mixed tree of seeded content, and the hash of a whole tree.

use base::Rng;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Files among which the large bytes are divided, in unequal parts.
const LARGE_FILES: u64 = 4;
/// Small files have 1 to this many bytes.
const MAX_SMALL: u64 = 16 << 10;
/// Small files in a folder.
const PER_FOLDER: u32 = 100;
/// Bytes written at a time.
const PIECE: usize = 1 << 20;

/// Makes large files of `large` bytes in all and `small` small ones below `root`.
pub fn make(root: &Path, large: u64, small: u32, seed: u64) -> io::Result<()> {
    let mut rng = Rng::from_u64(seed);
    fs::create_dir_all(root)?;
    let mut left = large;
    for i in 0..LARGE_FILES {
        let size = if i + 1 == LARGE_FILES { left } else { left / 2 };
        left -= size;
        file(&root.join(format!("large-{i}.bin")), size, &mut rng)?;
    }
    for i in 0..small {
        let dir = root.join(format!("small/{:03}", i / PER_FOLDER));
        if i % PER_FOLDER == 0 {
            fs::create_dir_all(&dir)?;
        }
        let size = rng.range(0, MAX_SMALL + 1);
        file(&dir.join(format!("file-{i:06}.dat")), size, &mut rng)?;
    }
    fs::create_dir_all(root.join("empty"))?;
    std::os::unix::fs::symlink("large-0.bin", root.join("link"))
}

fn file(path: &Path, mut size: u64, rng: &mut Rng) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(PIECE, File::create(path)?);
    let mut piece = vec![0; PIECE.min(size as usize)];
    while size > 0 {
        let n = size.min(PIECE as u64) as usize;
        rng.fill(&mut piece[..n]);
        out.write_all(&piece[..n])?;
        size -= n as u64;
    }
    out.flush()
}

/// BLAKE3 over names, kinds, permissions and contents of everything below `root`, in the order of names; and how
/// many files there are.
pub fn hash(root: &Path) -> io::Result<(blake3::Hash, u64)> {
    let mut h = blake3::Hasher::new();
    let mut files = 0;
    walk(root, Path::new(""), &mut h, &mut files)?;
    Ok((h.finalize(), files))
}

fn walk(root: &Path, below: &Path, h: &mut blake3::Hasher, files: &mut u64) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(root.join(below))?.collect::<io::Result<Vec<_>>>()?;
    names.sort_by_key(|e| e.file_name());
    for e in names {
        let path = below.join(e.file_name());
        let meta = fs::symlink_metadata(root.join(&path))?;
        let mut part = |kind: u8, bytes: &[u8]| {
            h.update(&[kind]);
            h.update(&(bytes.len() as u64).to_le_bytes());
            h.update(bytes);
        };
        part(b'n', path.as_os_str().as_bytes());
        if meta.is_symlink() {
            part(b'l', fs::read_link(root.join(&path))?.as_os_str().as_bytes());
        } else if meta.is_dir() {
            part(b'd', &[]);
            walk(root, &path, h, files)?;
        } else {
            *files += 1;
            part(b'm', &(meta.permissions().mode() & 0o777).to_le_bytes());
            part(b's', &meta.len().to_le_bytes());
            let mut one = blake3::Hasher::new();
            one.update_reader(File::open(root.join(&path))?)?;
            h.update(one.finalize().as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_makes_the_same_tree_and_any_change_alters_the_hash() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        make(&a, 3 << 20, 150, 7).unwrap();
        make(&b, 3 << 20, 150, 7).unwrap();
        let (first, files) = hash(&a).unwrap();
        assert_eq!((hash(&b).unwrap().0, files), (first, 154));
        for change in [
            |p: &Path| fs::write(p.join("large-1.bin"), b"x").unwrap(),
            |p: &Path| fs::rename(p.join("large-2.bin"), p.join("large-9.bin")).unwrap(),
            |p: &Path| fs::remove_dir(p.join("empty")).unwrap(),
            |p: &Path| fs::set_permissions(p.join("large-0.bin"), fs::Permissions::from_mode(0o600)).unwrap(),
        ] {
            let before = hash(&b).unwrap().0;
            change(&b);
            assert_ne!(hash(&b).unwrap().0, before);
        }
    }
}
