//! Changes at random what an unfinished transfer left.

use super::noise;
use base::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Does something to some of the unfinished files and journals in a folder, perhaps; `precious` is a file that must not
/// change. Returns how many were changed.
pub fn tamper(dir: &Path, precious: &Path, rng: &mut Rng) -> usize {
    let Ok(all) = fs::read_dir(dir) else { return 0 };
    let mut names: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|n| n.ends_with(".longhaul-part") || n.ends_with(".longhaul-journal"));
    names.sort();
    let mut changed = 0;
    for n in names {
        if rng.below(2) == 0 {
            one(&dir.join(n), precious, rng);
            changed += 1;
        }
    }
    changed
}

fn one(p: &Path, precious: &Path, rng: &mut Rng) {
    let len = fs::symlink_metadata(p).unwrap().len();
    let open = || OpenOptions::new().write(true).open(p).unwrap();
    let bytes =
        |f: &File, rng: &mut Rng| f.write_all_at(&noise(rng.below(99), 8), rng.below(len.max(1))).unwrap();
    match rng.below(10) {
        // The likeliest, and the hardest to notice.
        0..=3 => {
            let f = open();
            (0..4).for_each(|_| bytes(&f, rng));
        }
        4 => open().set_len(rng.below(len.max(1))).unwrap(),
        5 => open().set_len(len + rng.below(1 << 20)).unwrap(),
        6 => fs::write(p, noise(7, len as usize)).unwrap(),
        7 => fs::remove_file(p).unwrap(),
        8 => {
            fs::remove_file(p).unwrap();
            fs::hard_link(precious, p).unwrap();
        }
        _ => {
            fs::remove_file(p).unwrap();
            std::os::unix::fs::symlink(precious, p).unwrap();
        }
    }
}
