//! Detects whether another process opens a part file while it is received (inotify(7)).
//!
//! What is written is hashed as it is written. Only somebody else could change it afterwards, and must open the file for
//! that: then it is read once more before it gets its name. So reading everything again, which costs a third of a local
//! transfer's time, is left to those cases.

use rustix::fs::inotify;
use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Bytes of events read at a time: events of files have no names, so that they are 16 bytes each.
const EVENTS: usize = 4096;

/// What is watched, and the kernel's queue of what happened to it.
pub(super) struct Watch {
    /// `None`: the kernel gave none. Then nobody knows, and all files count as opened.
    queue: Option<OwnedFd>,
    files: Mutex<HashMap<i32, Arc<AtomicBool>>>,
}

/// One file that is watched until this is dropped.
pub(super) struct Watched {
    watch: Arc<Watch>,
    number: Option<i32>,
    opened: Arc<AtomicBool>,
}

impl Watch {
    /// The only one of this process: the kernel allows few for each user.
    pub fn shared() -> Arc<Watch> {
        static SHARED: LazyLock<Arc<Watch>> = LazyLock::new(Watch::new);
        SHARED.clone()
    }
    fn new() -> Arc<Watch> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        Arc::new(Watch { queue: inotify::init(flags).ok(), files: Mutex::default() })
    }
    /// Watches a file from here on.
    pub fn file(self: &Arc<Watch>, f: &File) -> Watched {
        let opened = Arc::<AtomicBool>::default();
        // No event of it is read before it is in the table.
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.queue.as_ref().and_then(|q| {
            // By its descriptor, since its name may stand for something else by now.
            let path = format!("/proc/self/fd/{}", f.as_raw_fd());
            inotify::add_watch(q, path, inotify::WatchFlags::OPEN).ok()
        });
        if let Some(n) = number {
            files.insert(n, opened.clone());
        }
        drop(files);
        Watched { watch: self.clone(), number, opened }
    }
    /// Takes all events.
    fn read(&self) {
        let Some(q) = &self.queue else { return };
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut room = [MaybeUninit::uninit(); EVENTS];
        let mut reader = inotify::Reader::new(q, &mut room);
        while let Ok(e) = reader.next() {
            if e.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                files.values().for_each(|f| f.store(true, Ordering::Relaxed));
            } else if let Some(f) = files.get(&e.wd()) {
                f.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Watched {
    /// Whether somebody else has opened the file since this was asked last.
    pub fn opened(&self) -> bool {
        self.watch.read();
        self.opened.swap(false, Ordering::Relaxed) || self.number.is_none()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let (Some(n), Some(q)) = (self.number, &self.watch.queue) {
            let mut files = self.watch.files.lock().unwrap_or_else(PoisonError::into_inner);
            // The kernel has let go of it where the file is gone.
            let _ = inotify::remove_watch(q, n);
            files.remove(&n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_watched_file_is_noticed_once_and_others_are_not() {
        let d = tempfile::tempdir().unwrap();
        let at = |n: &str| d.path().join(n);
        let w = Watch::new();
        let make = |n: &str| {
            let f = File::create(at(n)).unwrap();
            let watched = w.file(&f);
            (f, watched)
        };
        let ((mut f, a), (_g, b)) = (make("a"), make("b"));
        std::io::Write::write_all(&mut f, b"our own").unwrap();
        assert!(!a.opened() && !b.opened());
        // By another name too.
        std::fs::hard_link(at("a"), at("c")).unwrap();
        drop(File::open(at("c")).unwrap());
        assert!(!b.opened() && a.opened() && !a.opened());
        drop(a);
        drop(File::open(at("a")).unwrap());
        assert!(!b.opened());
        // Where nothing can be watched, nobody knows.
        let none = Arc::new(Watch { queue: None, files: Mutex::default() });
        let c = none.file(&f);
        assert!(c.opened() && c.opened());
    }
}
