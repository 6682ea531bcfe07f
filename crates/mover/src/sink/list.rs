//! The thread that lists what is there: for the source, so that it leaves out what is the same, and for `ls`.

use super::large::JOURNAL_FROM;
use crate::doing::{Doing, Step};
use crate::error::FileError;
use crate::path::{journal_name, part_name};
use crate::pool::Wake;
use crate::proto::{Entry, Kind, MAX_LINK, Name, Record, put};
use crate::source::hash_file;
use crate::tree::Tree;
use crate::walk::{Found, Start, Walk};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Length of a message of entries.
const MESSAGE_AIM: usize = 32 * 1024;

/// What is listed, and how.
pub(crate) struct Lister {
    pub tree: Arc<Tree>,
    /// Number of the root and where it is.
    pub roots: Vec<(u32, crate::path::RelPath)>,
    /// Levels below each root.
    pub depth: usize,
    /// Hash files too.
    pub hash: bool,
    /// Report what cannot be listed (`ls`) or leave it out (the source will send it).
    pub report: bool,
    /// Tell the targets of links (`ls`).
    pub link_targets: bool,
    pub asked: Asked,
    pub out: SyncSender<Vec<u8>>,
    pub wake: Wake,
    pub doing: Doing,
}

/// What the other end wants of a listing.
#[derive(Default)]
struct Wish {
    /// Messages that may be sent.
    credit: u64,
    /// Nothing before this is asked about any more.
    from: Option<Name>,
    /// Nobody listens any more.
    gone: bool,
}
type Shared = Arc<(Mutex<Wish>, Condvar)>;

/// The session's end of a listing, which passes on what the other end wants. The listing ends when it is dropped.
#[derive(Default)]
pub(crate) struct Asking(Shared);
/// The listing thread's end.
pub(crate) struct Asked(Shared);

impl Asking {
    pub fn asked(&self) -> Asked {
        Asked(self.0.clone())
    }
    fn change(&self, f: impl FnOnce(&mut Wish)) {
        f(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.1.notify_all();
    }
    /// This many more messages may come.
    pub fn more(&self, n: u64) {
        self.change(|w| w.credit = w.credit.saturating_add(n));
    }
    /// Nothing before this is asked about any more.
    pub fn from(&self, name: Name) {
        self.change(|w| w.from = Some(name));
    }
    /// Nothing is asked about any more.
    pub fn stop(&self) {
        self.change(|w| w.gone = true);
    }
}
impl Drop for Asking {
    fn drop(&mut self) {
        self.stop();
    }
}
impl Asked {
    fn wish(&self) -> MutexGuard<'_, Wish> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether nobody listens any more: then nothing more is looked at, since only that can be long.
    fn gone(&self) -> bool {
        self.wish().gone
    }
    /// Where to go on, if there is something to be passed over.
    fn from(&self) -> Option<Name> {
        self.wish().from.take()
    }
    /// Waits until one more message may be sent; false when nobody listens any more.
    fn take(&self) -> bool {
        let mut w = self.wish();
        while w.credit == 0 && !w.gone {
            w = self.0.1.wait(w).unwrap_or_else(PoisonError::into_inner);
        }
        w.credit = w.credit.saturating_sub(1);
        !w.gone
    }
}

impl Lister {
    /// Starts the thread. It ends when all is listed or the other ends of its channels are dropped; the last message
    /// carries [`Record::ListEnd`].
    pub fn spawn(self) -> std::io::Result<()> {
        std::thread::Builder::new().name("mover-list".into()).spawn(move || self.run()).map(drop)
    }
    fn run(self) {
        self.list();
        self.doing.set(Step::Ended);
        (self.wake)();
    }
    fn list(&self) {
        let mut m = Vec::new();
        let starts =
            self.roots.iter().map(|(_, p)| Start { tree: self.tree.clone(), path: p.clone() }).collect();
        let mut walk = Walk::new(starts, self.depth);
        while !self.asked.gone() {
            if let Some(n) = self.asked.from() {
                walk.skip_to(n.root, n.path);
            }
            let Some(f) = walk.next() else {
                put(&mut m, &Record::ListEnd);
                self.send(&mut m);
                return;
            };
            match f {
                Ok(f) => {
                    if !self.report {
                        self.tidy(&f);
                    }
                    let (entry, target, unread) = self.entry(&f);
                    let name = Name { root: entry.root, path: entry.path.clone() };
                    let meta = entry.meta;
                    put(&mut m, &Record::Entry(entry));
                    if let Some(target) = target.filter(|t| self.link_targets && fits(t)) {
                        put(&mut m, &Record::Link { name, meta, target: &target });
                    }
                    if let Some(e) = unread.filter(|_| self.report) {
                        put(&mut m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text });
                    }
                }
                Err(e) if self.report => {
                    put(&mut m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text });
                }
                Err(_) => {}
            }
            if m.len() >= MESSAGE_AIM && !self.send(&mut m) {
                return;
            }
        }
    }
    /// False when nobody listens any more.
    fn send(&self, m: &mut Vec<u8>) -> bool {
        self.doing.set(Step::AwaitsCredit);
        if !self.asked.take() {
            return false;
        }
        self.doing.set(Step::AwaitsSession);
        let sent = self.out.send(std::mem::take(m)).is_ok();
        self.doing.set(Step::Works);
        (self.wake)();
        sent
    }
    /// An attempt that was killed between giving a file its name and removing its journal left the journal.
    fn tidy(&self, f: &Found) {
        if f.info.kind != Kind::File || f.info.size < JOURNAL_FROM {
            return;
        }
        let (_, base) = &self.roots[f.root as usize];
        let Ok(path) = base.append(&f.path) else { return };
        if let Some((dir, name)) = path.split()
            && let Ok(dir) = self.tree.dir(&dir)
            && dir.info(&part_name(name)).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        {
            // Mostly there is none.
            let _ = dir.remove(&journal_name(name));
        }
    }
    /// What is told of it, the target of a link, and why the hash that was asked for is missing.
    fn entry(&self, f: &Found) -> (Entry, Option<Vec<u8>>, Option<FileError>) {
        let (root, base) = &self.roots[f.root as usize];
        let (mut unread, mut link) = (None, None);
        let hash = base.append(&f.path).ok().and_then(|p| match f.info.kind {
            Kind::Link => {
                let (dir, name) = p.split()?;
                let target = self.tree.dir(&dir).ok()?.read_link(name).ok()?;
                let hash = *blake3::hash(&target).as_bytes();
                link = Some(target);
                Some(hash)
            }
            Kind::File if self.hash => {
                let hash = self.tree.read_file(&p).and_then(|f| hash_file(&f, || self.asked.gone()));
                hash.inspect_err(|e| unread = Some(FileError::io(p.as_bytes(), "read", e))).ok()
            }
            _ => None,
        });
        let entry = Entry {
            root: *root,
            path: f.path.clone(),
            kind: f.info.kind,
            size: f.info.size,
            meta: f.info.meta,
            hash,
        };
        (entry, link, unread)
    }
}

/// Whether a target can be told.
fn fits(target: &[u8]) -> bool {
    (1..=MAX_LINK).contains(&target.len())
}
