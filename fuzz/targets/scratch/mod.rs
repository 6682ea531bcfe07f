//! A folder of this process's own, in memory where the system has such a place; gone when the process ends well.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The folder. The same one each time.
pub fn folder() -> &'static Path {
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(format!("longhaul-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        // SAFETY: `clean` takes and gives nothing, and needs nothing but the folder's name.
        unsafe { libc::atexit(clean) };
        folder
    })
}

extern "C" fn clean() {
    if let Some(folder) = FOLDER.get() {
        let _ = fs::remove_dir_all(folder);
    }
}
