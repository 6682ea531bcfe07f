//! The thread that walks the source, leaves out what the sink has, and packs small things together.

use crate::doing::{Doing, Step};
use crate::error::{Cause, FileError};
use crate::hash::{Digest, MAX_FILE};
use crate::path::RelPath;
use crate::pool::Wake;
use crate::progress::Progress;
use crate::proto::{Entry, Flags, Kind, MAX_EXTENTS, MAX_MESSAGE, MAX_SMALL, Name, Record, put};
use crate::source::not_carried::{Counter, Linked};
use crate::tree::{Info, SPECIAL_IN_THE_WAY};
use crate::walk::{Found, Start, Walk};
use lhio::safe_path::Attributes;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// Messages of records without file data are sent at this length.
const MESSAGE_AIM: usize = 32 * 1024;
/// Most files of one pack.
const MAX_PACK: usize = 512;
/// Bytes of one pack, with names: what fits in a message.
const PACK_MAX: usize = MAX_MESSAGE;

/// Bytes of a file that are hashed before it is asked whether the hash is still wanted.
const HASH_STEP: u64 = 64 << 20;

/// What the feeder found, for the session to send.
pub(super) enum Feed {
    /// Folders, links and failures, ready to send.
    Message(Vec<u8>),
    /// Small files to be read.
    Pack(Vec<Found>),
    /// A large file, open.
    Large { found: Found, file: File, extents: Vec<Range<u64>> },
    /// One message of the sink's listing was used up.
    Credit,
    /// Nothing before this is asked about any more.
    ListFrom(Name),
    /// That was all.
    End,
}

pub(super) struct Feeder {
    pub starts: Vec<Start>,
    pub flags: Flags,
    /// The sink's listing, in batches; ends when the sender is dropped.
    pub listing: Receiver<Vec<Entry>>,
    pub out: SyncSender<Feed>,
    pub progress: Progress,
    pub wake: Wake,
    pub doing: Doing,
    pub behind: Arc<Counter>,
}

/// The session is gone.
struct Gone;

struct State {
    feeder: Feeder,
    batch: std::vec::IntoIter<Entry>,
    /// The first listed entry that has not been passed.
    head: Option<Entry>,
    message: Vec<u8>,
    pack: Vec<Found>,
    pack_bytes: usize,
    linked: Linked,
    /// Files found so far, and their bytes.
    files: u64,
    bytes: u64,
}

impl Feeder {
    /// Runs to the end of the walk, or until the session is gone.
    pub fn run(self) {
        let walk = Walk::new(self.starts.clone(), usize::MAX);
        let doing = self.doing.clone();
        let mut s = State {
            feeder: self,
            batch: Vec::new().into_iter(),
            head: None,
            message: Vec::new(),
            pack: Vec::new(),
            pack_bytes: 0,
            linked: Linked::default(),
            files: 0,
            bytes: 0,
        };
        // Err: the session is gone, and with it everyone who could be told.
        let _ = s.run(walk);
        doing.set(Step::Ended);
    }
}

impl State {
    fn run(&mut self, walk: Walk) -> Result<(), Gone> {
        // The listing's first batch or its end comes before anything may be sent.
        self.pull(None)?;
        for found in walk {
            match found {
                Ok(f) => self.found(f)?,
                Err(e) => self.fail(e)?,
            }
        }
        self.flush()?;
        self.feeder.progress.found_all(self.files, self.bytes);
        self.feed(Feed::End)
    }
    fn feed(&mut self, f: Feed) -> Result<(), Gone> {
        self.feeder.doing.set(Step::AwaitsSession);
        let r = self.feeder.out.send(f).map_err(|_| Gone);
        self.feeder.doing.set(Step::Works);
        (self.feeder.wake)();
        r
    }
    fn flush(&mut self) -> Result<(), Gone> {
        if !self.pack.is_empty() {
            self.pack_bytes = 0;
            let p = std::mem::take(&mut self.pack);
            self.feed(Feed::Pack(p))?;
        }
        if !self.message.is_empty() {
            let m = std::mem::take(&mut self.message);
            self.feed(Feed::Message(m))?;
        }
        Ok(())
    }
    fn record(&mut self, r: &Record<'_>) -> Result<(), Gone> {
        if self.feeder.flags.dry_run {
            return Ok(());
        }
        self.say(r)
    }
    /// As [`record`](Self::record), in a rehearsal too.
    fn say(&mut self, r: &Record<'_>) -> Result<(), Gone> {
        put(&mut self.message, r);
        if self.message.len() >= MESSAGE_AIM {
            let m = std::mem::take(&mut self.message);
            self.feed(Feed::Message(m))?;
        }
        Ok(())
    }
    fn fail(&mut self, e: FileError) -> Result<(), Gone> {
        let r = Record::Failed { path: e.path.clone(), cause: e.cause as u8, text: e.text.clone() };
        let sent = self.say(&r);
        self.feeder.progress.fail(e);
        sent
    }

    /// Makes `head` the next listed entry, waiting for it; `None` at the end of the listing. What is listed before
    /// `wanted` is of no use.
    fn pull(&mut self, wanted: Option<&Found>) -> Result<(), Gone> {
        loop {
            self.head = self.batch.next();
            if self.head.is_some() {
                return Ok(());
            }
            self.flush()?;
            if let Some(f) = wanted {
                self.feed(Feed::ListFrom(Name { root: f.root, path: f.path.clone() }))?;
            }
            self.feeder.doing.set(Step::AwaitsListing);
            let more = self.feeder.listing.recv();
            self.feeder.doing.set(Step::Works);
            match more {
                Ok(b) => self.batch = b.into_iter(),
                Err(_) => return Ok(()),
            }
            self.feed(Feed::Credit)?;
        }
    }
    /// What the sink has under this name. Both lists are in the same order, so one pass over each is enough.
    fn existing(&mut self, f: &Found) -> Result<Option<Entry>, Gone> {
        while let Some(h) = &self.head {
            match (h.root, &h.path).cmp(&(f.root, &f.path)) {
                std::cmp::Ordering::Less => self.pull(Some(f))?,
                std::cmp::Ordering::Equal => return Ok(self.head.clone()),
                std::cmp::Ordering::Greater => return Ok(None),
            }
        }
        Ok(None)
    }
    fn start(&self, f: &Found) -> (&Start, RelPath) {
        let s = &self.feeder.starts[f.root as usize];
        (s, full_path(s, f))
    }

    fn found(&mut self, f: Found) -> Result<(), Gone> {
        let there = self.existing(&f)?;
        let name = Name { root: f.root, path: f.path.clone() };
        match f.info.kind {
            Kind::Dir => {
                self.feeder.behind.sent(&f.info, false);
                self.feeder.behind.attributes(f.attributes);
                self.record(&Record::Dir { name, meta: f.info.meta })
            }
            Kind::Other => {
                let (_, p) = self.start(&f);
                self.fail(FileError::new(p.as_bytes(), Cause::Special, "is neither file, folder nor link"))
            }
            // The sink says so by its own name for it, but not in a rehearsal.
            _ if self.feeder.flags.dry_run && there.as_ref().is_some_and(|e| e.kind == Kind::Other) => {
                let (_, p) = self.start(&f);
                self.fail(FileError::new(p.as_bytes(), Cause::Special, SPECIAL_IN_THE_WAY))
            }
            Kind::Link => self.link(f, name, there.as_ref()),
            Kind::File => self.file(f, name, there),
        }
    }
    fn link(&mut self, f: Found, name: Name, there: Option<&Entry>) -> Result<(), Gone> {
        let (s, full) = self.start(&f);
        let target = match full.split() {
            Some((dir, last)) => s.tree.dir(&dir).and_then(|d| d.read_link(last)),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        match target {
            Ok(t) => {
                let same = there.is_some_and(|e| {
                    e.kind == Kind::Link && e.hash.is_some_and(|h| h == *blake3::hash(&t).as_bytes())
                });
                let skip = self.feeder.flags.skip_same && same;
                if skip {
                    return Ok(());
                }
                self.feeder.behind.sent(&f.info, false);
                self.record(&Record::Link { name, meta: f.info.meta, target: &t })
            }
            Err(e) => self.fail(FileError::io(full.as_bytes(), "read the link", &e)),
        }
    }
    fn file(&mut self, f: Found, name: Name, there: Option<Entry>) -> Result<(), Gone> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(f.info.size);
        self.feeder.progress.found_more(self.files, self.bytes);
        let again = self.linked.again(&f.info);
        if let Some(e) = there {
            if self.feeder.flags.skip_same && self.same(&f, &e) {
                self.feeder.progress.update(|s| {
                    s.files_skipped += 1;
                    s.bytes_skipped += f.info.size;
                });
                // Attributes of what exists are not overwritten either.
                if e.meta == f.info.meta || !self.feeder.flags.overwrite {
                    return Ok(());
                }
                return self.record(&Record::Touch { name, meta: f.info.meta });
            }
            if !self.feeder.flags.overwrite {
                let (_, p) = self.start(&f);
                let text = "exists at the destination and differs";
                return self.fail(FileError::new(p.as_bytes(), Cause::Exists, text));
            }
        }
        if self.feeder.flags.dry_run {
            return Ok(());
        }
        self.feeder.behind.sent(&f.info, again);
        if f.info.size <= MAX_SMALL as u64 {
            let cost = f.info.size as usize + f.path.as_bytes().len() + 96;
            if self.pack_bytes + cost > PACK_MAX || self.pack.len() >= MAX_PACK {
                self.pack_bytes = 0;
                let p = std::mem::take(&mut self.pack);
                self.feed(Feed::Pack(p))?;
            }
            self.pack_bytes += cost;
            self.pack.push(f);
            return Ok(());
        }
        self.large(f)
    }
    /// The quick check is size and modification time; where the sink gave a hash, that decides.
    fn same(&self, f: &Found, e: &Entry) -> bool {
        if e.kind != Kind::File || e.size != f.info.size {
            return false;
        }
        match &e.hash {
            None => (e.meta.secs, e.meta.nanos) == (f.info.meta.secs, f.info.meta.nanos),
            Some(h) => {
                let (s, p) = self.start(f);
                s.tree.read_file(&p).and_then(|file| hash_file(&file, || false)).is_ok_and(|mine| mine == *h)
            }
        }
    }
    fn large(&mut self, mut found: Found) -> Result<(), Gone> {
        let (s, p) = self.start(&found);
        let opened = s.tree.read_file(&p).and_then(|f| {
            let info = Info::of_file(&f)?;
            let e = data_extents(&f, &info)?;
            Ok((f, info, e))
        });
        match opened {
            Ok((_, info, _)) if info.size > MAX_FILE => self.fail(FileError::new(
                p.as_bytes(),
                Cause::TooLarge,
                format!("is larger than {MAX_FILE} bytes"),
            )),
            Ok((file, info, extents)) => {
                found.info = info;
                self.feeder.behind.attributes(Attributes::of_file(&file));
                self.feed(Feed::Large { found, file, extents })
            }
            Err(e) => self.fail(FileError::io(p.as_bytes(), "read", &e)),
        }
    }
}

/// Path of something found, in the tree of its start. Both parts were checked and so is their sum, by the walk.
pub(super) fn full_path(s: &Start, f: &Found) -> RelPath {
    s.path.append(&f.path).unwrap_or_default()
}

/// BLAKE3 of a whole file, unless `gone` says meanwhile that nobody wants to know any more.
///
/// # Errors
/// The system's; `Interrupted` when nobody wants to know.
pub(crate) fn hash_file(f: &File, gone: impl Fn() -> bool) -> std::io::Result<Digest> {
    let mut h = blake3::Hasher::new();
    loop {
        let before = h.count();
        h.update_reader(f.take(HASH_STEP))?;
        if h.count() == before {
            return Ok(*h.finalize().as_bytes());
        }
        if gone() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
    }
}

/// Where a file has data, joined until there are no more than [`MAX_EXTENTS`].
fn data_extents(f: &File, info: &Info) -> std::io::Result<Vec<Range<u64>>> {
    if info.size == 0 {
        return Ok(Vec::new());
    }
    if info.allocated >= info.size {
        return Ok(vec![Range { start: 0, end: info.size }]);
    }
    let mut gap = 4096u64;
    let mut v: Vec<Range<u64>> = Vec::new();
    let extents = lhio::mmap::file::extents(f, std::path::Path::new("")).map_err(std::io::Error::other)?;
    for e in extents {
        let e = e.map_err(std::io::Error::other)?;
        push_extent(&mut v, e.offset..(e.offset + e.len).min(info.size), gap);
        while v.len() > MAX_EXTENTS {
            // Too many: holes up to twice as long are sent as data.
            gap *= 2;
            let old = std::mem::take(&mut v);
            old.into_iter().for_each(|r| push_extent(&mut v, r, gap));
        }
    }
    Ok(v)
}
fn push_extent(v: &mut Vec<Range<u64>>, r: Range<u64>, gap: u64) {
    match v.last_mut() {
        Some(l) if r.start.saturating_sub(l.end) < gap => l.end = l.end.max(r.end),
        _ if r.start < r.end => v.push(r),
        _ => {}
    }
}

/// Starts the thread.
///
/// # Errors
/// When no more threads can be started.
pub(super) fn spawn(f: Feeder) -> std::io::Result<()> {
    std::thread::Builder::new().name("mover-walk".into()).spawn(move || f.run()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_found_and_too_many_are_joined() {
        let f = tempfile::tempfile().unwrap();
        f.set_len(64 << 20).unwrap();
        f.write_all_at(&[1; 5000], 1 << 20).unwrap();
        f.write_all_at(&[1; 100], 40 << 20).unwrap();
        let v = data_extents(&f, &Info::of_file(&f).unwrap()).unwrap();
        let total: u64 = v.iter().map(|r| r.end - r.start).sum();
        assert!(v.iter().any(|r| r.contains(&(40 << 20))) && v.iter().any(|r| r.contains(&(1 << 20))));
        assert!(total < 1 << 20 || v.len() == 1, "{v:?}"); // a file system without holes shows one extent
        let mut v = Vec::new();
        for i in 0..100u64 {
            push_extent(&mut v, i * 10_000..i * 10_000 + 1, 4096);
        }
        assert_eq!(v.len(), 100);
        let mut w = Vec::new();
        v.into_iter().for_each(|r| push_extent(&mut w, r, 16_384));
        assert!(w.len() == 1 && w[0] == (0..990_001));
    }
}
