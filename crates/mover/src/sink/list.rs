//! The thread that lists a folder: for the source, which skips equal files, and for `ls`.

use super::large::JOURNAL_FROM;
use crate::attributes::PreservedAttributes;
use crate::error::FileError;
use crate::keep::Keep;
use crate::path::{RelPath, journal_name, part_name};
use crate::pool::Wake;
use crate::proto::{Entry, Extra, Kind, MAX_LINK, Name, Record, put};
use crate::source::hash_file;
use crate::thread_state::{Activity, ThreadState};
use crate::tree::Tree;
use crate::walk::{Found, Start, Walk};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Length of a message of entries.
const MESSAGE_AIM: usize = 32 * 1024;

/// Numbers of roots and where they are.
type Roots = Vec<(u32, RelPath)>;

/// What is listed, and how.
pub(crate) struct Lister {
    pub tree: Arc<Tree>,
    /// Number of the root and where it is.
    pub roots: Roots,
    /// The same of folders of `--link-dest`: their files are told beside.
    pub alternates: Vec<(Arc<Tree>, Roots)>,
    /// Levels below each root.
    pub depth: usize,
    /// Hash files too.
    pub hash: bool,
    /// Report what cannot be listed (`ls`) or leave it out (the source will send it).
    pub report: bool,
    /// Tell the targets of links (`ls`).
    pub link_targets: bool,
    /// What is kept beside mode and time, to be told.
    pub extras: Arc<PreservedAttributes>,
    pub asked: DemandReceiver,
    pub out: SyncSender<Vec<u8>>,
    pub wake: Wake,
    pub thread_state: ThreadState,
}

/// What the peer requests of a listing.
#[derive(Default)]
struct Demand {
    /// Messages that may be sent.
    credit: u64,
    /// Nothing before this is asked about any more.
    from: Option<Name>,
    /// Nobody listens any more.
    gone: bool,
}
type Shared = Arc<(Mutex<Demand>, Condvar)>;

/// The session's end of a listing, which passes on what the other end wants. The listing ends when it is dropped.
#[derive(Default)]
pub(crate) struct ListingDemand(Shared);
/// The listing thread's end.
pub(crate) struct DemandReceiver(Shared);

impl ListingDemand {
    pub fn asked(&self) -> DemandReceiver {
        DemandReceiver(self.0.clone())
    }
    fn change(&self, f: impl FnOnce(&mut Demand)) {
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
impl Drop for ListingDemand {
    fn drop(&mut self) {
        self.stop();
    }
}
impl DemandReceiver {
    fn wish(&self) -> MutexGuard<'_, Demand> {
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
    pub(crate) fn take(&self) -> bool {
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
        self.thread_state.set(Activity::Ended);
        (self.wake)();
    }
    fn list(&self) {
        let mut m = Vec::new();
        let first = Place::new(self.tree.clone(), self.roots.clone(), None, self.depth);
        let others = (0u8..).zip(&self.alternates);
        let others =
            others.map(|(n, (tree, roots))| Place::new(tree.clone(), roots.clone(), Some(n), self.depth));
        let mut places: Vec<Place> = std::iter::once(first).chain(others).collect();
        while !self.asked.gone() {
            if let Some(n) = self.asked.from() {
                places.iter_mut().for_each(|p| p.skip_to(&n));
            }
            let next = (0..places.len()).filter_map(|i| Some((places[i].peek()?, i))).min();
            let Some((_, i)) = next else {
                put(&mut m, &Record::ListEnd);
                self.send(&mut m);
                return;
            };
            match places[i].next() {
                Some(Ok(f)) => self.tell(&places[i], &f, &mut m),
                Some(Err(e)) if self.report => {
                    put(&mut m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text });
                }
                _ => {}
            }
            if m.len() >= MESSAGE_AIM && !self.send(&mut m) {
                return;
            }
        }
    }
    /// Writes what is there into a message.
    fn tell(&self, place: &Place, f: &Found, m: &mut Vec<u8>) {
        if let Some(folder) = place.folder {
            if f.info.kind == Kind::File {
                let (entry, ..) = self.entry(place, f);
                if let Some(x) = self.extra(place, f) {
                    put(m, &Record::Extra(x));
                }
                put(m, &Record::Alternate { folder, entry });
            }
            return;
        }
        if !self.report {
            self.tidy(f);
        }
        let (entry, target, unread) = self.entry(place, f);
        let name = Name { root: entry.root, path: entry.path.clone() };
        let meta = entry.meta;
        if let Some(x) = self.extra(place, f) {
            put(m, &Record::Extra(x));
        }
        put(m, &Record::Entry(entry));
        if let Some(target) = target.filter(|t| self.link_targets && fits(t)) {
            put(m, &Record::Link { name, meta, target: &target });
        }
        if let Some(e) = unread.filter(|_| self.report) {
            put(m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text });
        }
    }
    /// False when nobody listens any more.
    fn send(&self, m: &mut Vec<u8>) -> bool {
        self.thread_state.set(Activity::AwaitsCredit);
        if !self.asked.take() {
            return false;
        }
        self.thread_state.set(Activity::AwaitsSession);
        let sent = self.out.send(std::mem::take(m)).is_ok();
        self.thread_state.set(Activity::Works);
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
    /// What is told of it beside mode and time.
    fn extra(&self, place: &Place, f: &Found) -> Option<Extra> {
        let keep = self.extras.keep();
        let mut x = self.extras.plain(&f.info)?;
        let path = place.roots[f.root as usize].1.append(&f.path).ok()?;
        if keep.has(Keep::ACLS.with(Keep::ATTRIBUTES)) {
            let read = match f.info.kind {
                Kind::File => {
                    place.tree.read_file(&path).and_then(|file| self.extras.of_file(&f.info, &file))
                }
                Kind::Dir => {
                    let dir = place.tree.dir(&path).and_then(|d| d.open_for_attributes());
                    dir.and_then(|d| self.extras.of_file(&f.info, &d))
                }
                _ => Ok((None, false)),
            };
            if let Ok((Some(all), _)) = read {
                x = all.told();
            }
        }
        let named = keep.has(Keep::HARD_LINKS) && f.info.kind != Kind::Dir && f.info.links > 1;
        x.inode = named.then_some(f.info.id.1);
        Some(x)
    }
    /// What is told of it, the target of a link, and why the hash that was asked for is missing.
    fn entry(&self, place: &Place, f: &Found) -> (Entry, Option<Vec<u8>>, Option<FileError>) {
        let (root, base) = &place.roots[f.root as usize];
        let (mut unread, mut link) = (None, None);
        let hash = base.append(&f.path).ok().and_then(|p| match f.info.kind {
            Kind::Link => {
                let (dir, name) = p.split()?;
                let target = place.tree.dir(&dir).ok()?.read_link(name).ok()?;
                let hash = *blake3::hash(&target).as_bytes();
                link = Some(target);
                Some(hash)
            }
            Kind::File if self.hash => {
                let hash = place.tree.read_file(&p).and_then(|f| hash_file(&f, || self.asked.gone()));
                hash.inspect_err(|e| unread = Some(FileError::io(p.as_bytes(), "read", e))).ok()
            }
            _ => None,
        });
        let entry = Entry {
            root: *root,
            path: f.path.clone(),
            kind: f.info.kind,
            size: f.info.size,
            meta: self.extras.meta(&f.info.meta),
            hash,
        };
        (entry, link, unread)
    }
}

/// A tree with roots in it that are walked, and what was found there and not told yet.
struct Place {
    tree: Arc<Tree>,
    /// Number of each root and where it is.
    roots: Vec<(u32, RelPath)>,
    /// Which folder of `--link-dest`; `None`: the destination.
    folder: Option<u8>,
    walk: Walk,
    head: Option<Result<Found, FileError>>,
}

impl Place {
    fn new(tree: Arc<Tree>, roots: Vec<(u32, RelPath)>, folder: Option<u8>, depth: usize) -> Place {
        let starts = roots.iter().map(|(_, p)| Start { tree: tree.clone(), path: p.clone() }).collect();
        let mut walk = Walk::new(starts, depth);
        let head = walk.next();
        Place { tree, roots, folder, walk, head }
    }
    /// Where what comes next stands in the order of all places: a failure as soon as it is met. `None` at the end.
    fn peek(&self) -> Option<(u32, RelPath)> {
        match self.head.as_ref()? {
            Ok(f) => Some((self.roots[f.root as usize].0, f.path.clone())),
            Err(_) => Some((0, RelPath::root())),
        }
    }
    fn next(&mut self) -> Option<Result<Found, FileError>> {
        std::mem::replace(&mut self.head, self.walk.next())
    }
    /// Passes over all before a name.
    fn skip_to(&mut self, name: &Name) {
        let n = self.roots.partition_point(|r| r.0 < name.root);
        let there = self.roots.get(n).is_some_and(|r| r.0 == name.root);
        self.walk.skip_to(n as u32, if there { name.path.clone() } else { RelPath::root() });
    }
}

/// Whether a target can be told.
fn fits(target: &[u8]) -> bool {
    (1..=MAX_LINK).contains(&target.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn listing_sends_what_was_asked_for_and_ends_with_its_session() {
        let demand = ListingDemand::default();
        let listing = demand.asked();
        let (out, got) = channel();
        let thread = std::thread::spawn(move || {
            while listing.take() {
                out.send(()).unwrap(); // the test listens
            }
            assert!(listing.gone());
        });
        demand.more(2);
        assert!((0..2).all(|_| got.recv_timeout(Duration::from_secs(30)).is_ok()));
        assert!(got.recv_timeout(Duration::from_millis(20)).is_err(), "more than was asked for");
        drop(demand);
        assert!(got.recv_timeout(Duration::from_secs(30)).is_err());
        thread.join().unwrap();
    }
}
