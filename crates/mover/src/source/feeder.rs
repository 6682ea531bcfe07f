//! The thread that walks the source, skips what the sink has, and packs small files together.

use crate::error::{Cause, FileError};
use crate::hash::{Digest, MAX_FILE};
use crate::keep::Keep;
use crate::path::RelPath;
use crate::placement::MAX_LINK_DESTS;
use crate::pool::Wake;
use crate::progress::Progress;
use crate::proto::{
    Account, AccountAnswer, Entry, Extra, Flags, Kind, LinkFrom, MAX_EXTENTS, MAX_MESSAGE, MAX_SMALL, Name,
    Record, put,
};
use crate::select::Picker;
use crate::session::Listed;
use crate::source::compare::Answers;
use crate::source::extraneous::ExtraneousFiles;
use crate::source::not_preserved::{Counter, Linked};
use crate::thread_state::{Activity, ThreadState};
use crate::tree::{Info, SPECIAL_IN_THE_WAY};
use crate::walk::{Found, Start, Walk};
use lhio::accounts::Sort;
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

/// Said of a device, pipe or socket that the sink does not keep, though it was asked to.
const NOT_MADE_THERE: &str = "is skipped: the destination may not make devices, pipes or sockets of this kind; it has to run as \
                              root, and a server to allow it (serve --allow-privileged)";
/// Bytes of a file that are hashed before it is asked whether the hash is still wanted.
const HASH_STEP: u64 = 64 << 20;

/// What the feeder found, for the session to send.
pub(super) enum Feed {
    /// Folders, links and failures, ready to send.
    Message(Vec<u8>),
    /// Small files to be read.
    Pack(Vec<Found>),
    /// A large file, open.
    Large(Large),
    /// One message of the sink's listing was used up.
    Credit,
    /// Nothing before this is asked about any more.
    ListFrom(Name),
    /// What the sink makes of a user or group; it is waited for.
    AskAccount(Sort, Account),
    /// That was all.
    End,
}

/// A large file, open.
pub(super) struct Large {
    pub found: Found,
    pub file: File,
    /// Where it has data.
    pub extents: Vec<Range<u64>>,
    /// A file of this name is at the destination.
    pub exists: bool,
}

pub(super) struct Feeder {
    pub starts: Vec<Start>,
    pub flags: Flags,
    /// The sink's listing, in batches; ends when the sender is dropped.
    pub listing: Receiver<Vec<Listed>>,
    /// What the sink makes of users and groups, in the order of the questions.
    pub answers: Receiver<AccountAnswer>,
    pub out: SyncSender<Feed>,
    pub progress: Progress,
    pub wake: Wake,
    pub thread_state: ThreadState,
    pub behind: Arc<Counter>,
    pub picker: Arc<Picker>,
}

/// The session has ended.
pub(super) struct SessionEnded;

pub(super) struct State {
    pub feeder: Feeder,
    batch: std::vec::IntoIter<Listed>,
    /// The first listed entry that has not been passed.
    head: Option<Listed>,
    message: Vec<u8>,
    pack: Vec<Found>,
    pack_bytes: usize,
    linked: Linked,
    /// What folders of `--link-dest` have under the name that is looked at.
    alternates: Vec<Listed>,
    /// What the sink makes of users and groups.
    pub numbers: Answers,
    /// What only the sink has, where that is to go.
    extraneous: Option<ExtraneousFiles>,
    /// Files found so far, and their bytes.
    files: u64,
    bytes: u64,
}

impl Feeder {
    /// Runs to the end of the walk, or until the session is gone.
    pub fn run(self) {
        let walk = Walk::new(self.starts.clone(), usize::MAX).selecting(self.picker.clone(), true);
        let extraneous = ExtraneousFiles::new(&self.picker);
        let thread_state = self.thread_state.clone();
        let mut s = State {
            feeder: self,
            batch: Vec::new().into_iter(),
            head: None,
            message: Vec::new(),
            pack: Vec::new(),
            pack_bytes: 0,
            linked: Linked::default(),
            alternates: Vec::new(),
            numbers: Answers::default(),
            extraneous,
            files: 0,
            bytes: 0,
        };
        // Err: the session is gone, and with it everyone who could be told.
        let _ = s.run(walk);
        thread_state.set(Activity::Ended);
    }
}

impl State {
    fn run(&mut self, walk: Walk) -> Result<(), SessionEnded> {
        // The listing's first batch or its end comes before anything may be sent.
        self.pull(None)?;
        for found in walk {
            match found {
                Ok(f) => self.found(f)?,
                Err(e) => self.fail(e)?,
            }
        }
        self.rest()?;
        self.flush()?;
        self.feeder.progress.found_all(self.files, self.bytes);
        self.feed(Feed::End)
    }
    pub fn feed(&mut self, f: Feed) -> Result<(), SessionEnded> {
        self.feeder.thread_state.set(Activity::AwaitsSession);
        let r = self.feeder.out.send(f).map_err(|_| SessionEnded);
        self.feeder.thread_state.set(Activity::Works);
        (self.feeder.wake)();
        r
    }
    fn flush(&mut self) -> Result<(), SessionEnded> {
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
    fn record(&mut self, r: &Record<'_>) -> Result<(), SessionEnded> {
        if self.feeder.flags.dry_run {
            return Ok(());
        }
        self.say(r)
    }
    /// As [`record`](Self::record), in a rehearsal too.
    fn say(&mut self, r: &Record<'_>) -> Result<(), SessionEnded> {
        put(&mut self.message, r);
        if self.message.len() >= MESSAGE_AIM {
            let m = std::mem::take(&mut self.message);
            self.feed(Feed::Message(m))?;
        }
        Ok(())
    }
    fn fail(&mut self, e: FileError) -> Result<(), SessionEnded> {
        let r = Record::Failed { path: e.path.clone(), cause: e.cause as u8, text: e.text.clone() };
        let sent = self.say(&r);
        self.feeder.progress.fail(e);
        sent
    }

    /// Makes `head` the next listed entry, waiting for it; `None` at the end of the listing. What is listed before
    /// `wanted` is of no use.
    fn pull(&mut self, wanted: Option<&Found>) -> Result<(), SessionEnded> {
        loop {
            self.head = self.batch.next();
            if self.head.is_some() {
                return Ok(());
            }
            self.flush()?;
            // All of it is looked at where what is left over goes.
            if let Some(f) = wanted.filter(|_| self.extraneous.is_none()) {
                self.feed(Feed::ListFrom(Name { root: f.root, path: f.path.clone() }))?;
            }
            self.feeder.thread_state.set(Activity::AwaitsListing);
            let more = self.feeder.listing.recv();
            self.feeder.thread_state.set(Activity::Works);
            match more {
                Ok(b) => self.batch = b.into_iter(),
                Err(_) => return Ok(()),
            }
            self.feed(Feed::Credit)?;
        }
    }
    /// What the sink has under this name. Both lists are in the same order, so one pass over each is enough.
    fn existing(&mut self, f: &Found) -> Result<Option<Listed>, SessionEnded> {
        let links = !self.feeder.picker.select.placement.link_dest.is_empty();
        self.alternates.clear();
        let mut there = None;
        while let Some(h) = &self.head {
            match (h.entry.root, &h.entry.path).cmp(&(f.root, &f.path)) {
                std::cmp::Ordering::Less => self.pass_over(Some(f))?,
                std::cmp::Ordering::Equal if !links => return self.take(),
                std::cmp::Ordering::Equal => {
                    // Those of other folders follow.
                    match h.folder {
                        None => there = self.take()?,
                        Some(_) if self.alternates.len() < MAX_LINK_DESTS => self.alternates.push(h.clone()),
                        Some(_) => {}
                    }
                    self.pull(Some(f))?;
                }
                std::cmp::Ordering::Greater => break,
            }
        }
        Ok(there)
    }
    /// The listed entry of the name that is looked for. The next one is not waited for yet.
    fn take(&mut self) -> Result<Option<Listed>, SessionEnded> {
        let there = self.head.clone();
        if let (Some(l), Some(h)) = (&mut self.extraneous, &there) {
            l.has(&h.entry);
        }
        Ok(there)
    }
    /// Goes on to the next listed entry; the source has none of the name of this one.
    fn pass_over(&mut self, wanted: Option<&Found>) -> Result<(), SessionEnded> {
        if let (Some(l), Some(h)) = (&mut self.extraneous, self.head.take().filter(|h| h.folder.is_none())) {
            l.add(&self.feeder.starts, h.entry);
        }
        self.pull(wanted)
    }
    /// Tells the sink what is left over there, once all else was told, and what was left out.
    fn rest(&mut self) -> Result<(), SessionEnded> {
        if self.extraneous.is_some() {
            while self.head.is_some() {
                self.pass_over(None)?;
            }
        }
        let mut excluded = self.feeder.picker.excluded.get();
        if let Some(l) = self.extraneous.take() {
            excluded.undeleted = l.too_many();
            for e in l.gone_for_good(&self.feeder.starts) {
                if self.feeder.flags.dry_run {
                    let shown = self.feeder.picker.shown(&e.name);
                    self.feeder.progress.would_delete(&shown);
                }
                self.say(&Record::Delete(e))?;
            }
        }
        self.feeder.progress.update(|s| s.excluded = excluded);
        self.say(&Record::Excluded(excluded))
    }
    fn start(&self, f: &Found) -> (&Start, RelPath) {
        let s = &self.feeder.starts[f.root as usize];
        (s, full_path(s, f))
    }

    fn found(&mut self, mut f: Found) -> Result<(), SessionEnded> {
        let there = self.existing(&f)?;
        if self.feeder.picker.leaves_out(&f.info, there.as_ref().map(|l| &l.entry)) {
            return Ok(());
        }
        f.info.meta = self.feeder.behind.extras.meta_of(&f.info);
        let name = Name { root: f.root, path: f.path.clone() };
        match f.info.kind {
            Kind::Dir => {
                self.feeder.behind.sent(&f.info, false);
                self.feeder.behind.attributes(f.attributes);
                let extra = self.extra_of_dir(&f);
                self.note_change(&f, extra.as_ref(), there.as_ref())?;
                self.record_with(extra, &Record::Dir { name, meta: f.info.meta })
            }
            Kind::Other if f.info.node.is_some_and(|n| self.feeder.behind.extras.keep().has(n.kind())) => {
                self.node(&f, name, there.as_ref())
            }
            Kind::Other => {
                let (_, p) = self.start(&f);
                let asked = f.info.node.is_some_and(|n| self.feeder.behind.extras.asked().has(n.kind()));
                let text = if asked { NOT_MADE_THERE } else { "is neither file, folder nor link" };
                self.fail(FileError::new(p.as_bytes(), Cause::Special, text))
            }
            // The sink says so by its own name for it, but not in a rehearsal.
            _ if self.feeder.flags.dry_run && there.as_ref().is_some_and(|e| e.entry.kind == Kind::Other) => {
                let (_, p) = self.start(&f);
                self.fail(FileError::new(p.as_bytes(), Cause::Special, SPECIAL_IN_THE_WAY))
            }
            Kind::Link => self.link(f, name, there.as_ref()),
            Kind::File => self.file(f, name, there),
        }
    }
    /// A record with what is kept of the thing beside it, in one message.
    fn record_with(&mut self, extra: Option<Extra>, r: &Record<'_>) -> Result<(), SessionEnded> {
        if self.feeder.flags.dry_run {
            return Ok(());
        }
        if let Some(x) = extra {
            if self.message.len() + crate::proto::MAX_ATTRIBUTE_BYTES > MAX_MESSAGE / 2 {
                let m = std::mem::take(&mut self.message);
                if !m.is_empty() {
                    self.feed(Feed::Message(m))?;
                }
            }
            put(&mut self.message, &Record::Extra(x));
        }
        self.say(r)
    }
    fn extra_of_dir(&self, f: &Found) -> Option<Extra> {
        let behind = &self.feeder.behind;
        if behind.extras.keep().is_empty() {
            return None;
        }
        let (s, full) = self.start(f);
        let read = s.tree.dir(&full).and_then(|d| d.open_for_attributes());
        match read.and_then(|d| behind.extras.of_file(&f.info, &d)) {
            Ok((x, excluded)) => {
                behind.excluded(excluded);
                x
            }
            Err(_) => {
                behind.excluded(true);
                behind.extras.plain(&f.info)
            }
        }
    }
    /// Counts a folder or special file that the sink has and whose mode or owner or attributes differ there.
    fn note_change(
        &mut self,
        f: &Found,
        extra: Option<&Extra>,
        there: Option<&Listed>,
    ) -> Result<(), SessionEnded> {
        let Some(there) = there else { return Ok(()) };
        if there.entry.meta.mode != f.info.meta.mode || !self.same_extra(extra, there.extra.as_deref())? {
            self.feeder.progress.update(|s| s.attributes_changed += 1);
        }
        Ok(())
    }
    fn node(&mut self, f: &Found, name: Name, there: Option<&Listed>) -> Result<(), SessionEnded> {
        if self.further_name(f, &name, there)? {
            return Ok(());
        }
        let (_, p) = self.start(f);
        let other = |e: &Listed| e.entry.kind == Kind::Other;
        let same_node = |e: &Listed| e.extra.as_ref().is_some_and(|x| x.node == f.info.node);
        if there.is_some_and(|e| other(e) && !same_node(e)) {
            return self.fail(FileError::new(p.as_bytes(), Cause::Special, SPECIAL_IN_THE_WAY));
        }
        if there.is_some_and(|e| !other(e)) && !self.feeder.flags.overwrite {
            let text = "exists at the destination and differs";
            return self.fail(FileError::new(p.as_bytes(), Cause::Exists, text));
        }
        let extra = self.feeder.behind.extras.plain(&f.info);
        let same = match there.filter(|e| same_node(e) && e.entry.meta == f.info.meta) {
            Some(e) => self.same_extra(extra.as_ref(), e.extra.as_deref())?,
            None => false,
        };
        if let Some(e) = there.filter(|e| same_node(e)) {
            self.linked.stays(&f.info, e);
        }
        if same || there.is_some() && !self.feeder.flags.overwrite {
            return Ok(());
        }
        let again = self.is_again(&f.info);
        self.feeder.behind.sent(&f.info, again);
        self.record_with(extra, &Record::Node { name, meta: f.info.meta })
    }
    fn link(&mut self, f: Found, name: Name, there: Option<&Listed>) -> Result<(), SessionEnded> {
        if self.further_name(&f, &name, there)? {
            return Ok(());
        }
        let (s, full) = self.start(&f);
        let target = match full.split() {
            Some((dir, last)) => s.tree.dir(&dir).and_then(|d| d.read_link(last)),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        match target {
            Ok(t) => {
                let extra = self.feeder.behind.extras.plain(&f.info);
                let hash = *blake3::hash(&t).as_bytes();
                let same = match there.filter(|l| l.entry.kind == Kind::Link && l.entry.hash == Some(hash)) {
                    Some(Listed { extra: Some(x), .. }) if extra.is_some() => {
                        self.same_extra(extra.as_ref(), Some(x))?
                    }
                    there => there.is_some(),
                };
                let skip = self.feeder.flags.skip_same && same;
                if let Some(e) = there.filter(|_| skip) {
                    self.linked.stays(&f.info, e);
                    return Ok(());
                }
                let again = self.is_again(&f.info);
                self.feeder.behind.sent(&f.info, again);
                self.record_with(extra, &Record::Link { name, meta: f.info.meta, target: &t })
            }
            Err(e) => self.fail(FileError::io(full.as_bytes(), "read the link", &e)),
        }
    }
    /// A further name of a file, link or special file: true if that is all there is to say of it.
    fn further_name(&mut self, f: &Found, name: &Name, there: Option<&Listed>) -> Result<bool, SessionEnded> {
        if !self.feeder.behind.extras.keep().has(Keep::HARD_LINKS) {
            return Ok(false);
        }
        let Some(first) = self.linked.met(&f.info, Some(name)) else { return Ok(false) };
        let Some(to) = first.name else { return Ok(false) };
        let inode = there.and_then(|e| e.extra.as_ref()).and_then(|x| x.inode);
        if first.there.is_some() && first.there == inode {
            let file = f.info.kind == Kind::File;
            self.feeder.progress.update(|s| s.files_skipped += u64::from(file));
        } else if there.is_some_and(|e| e.entry.kind == Kind::Other) && f.info.kind == Kind::Other {
            // What others have open is not replaced: it stays a special file of its own.
            self.feeder.behind.split();
            return Ok(false);
        } else if there.is_some() && !self.feeder.flags.overwrite {
            let (_, p) = self.start(f);
            let text = "exists at the destination and is not the same file as its other names";
            self.fail(FileError::new(p.as_bytes(), Cause::Exists, text))?;
        } else {
            self.feeder.behind.sent(&f.info, true);
            self.record(&Record::HardLink { name: name.clone(), to })?;
        }
        Ok(true)
    }
    /// Whether each name becomes a file, and this was sent under another.
    fn is_again(&mut self, info: &Info) -> bool {
        !self.feeder.behind.extras.keep().has(Keep::HARD_LINKS) && self.linked.again(info)
    }
    /// What is kept of a file that is to stay where it is.
    fn extra_of_file(&self, f: &Found) -> Option<Extra> {
        let extras = &self.feeder.behind.extras;
        let keep = extras.keep();
        if !keep.has(Keep::ACLS.with(Keep::ATTRIBUTES)) {
            return extras.plain(&f.info);
        }
        let (s, p) = self.start(f);
        let read = s.tree.read_file(&p).and_then(|file| extras.of_file(&f.info, &file));
        read.map_or_else(|_| extras.plain(&f.info), |r| r.0)
    }
    fn file(&mut self, f: Found, name: Name, there: Option<Listed>) -> Result<(), SessionEnded> {
        self.files += 1;
        if self.further_name(&f, &name, there.as_ref())? {
            self.feeder.progress.found_more(self.files, self.bytes);
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(f.info.size);
        self.feeder.progress.found_more(self.files, self.bytes);
        let again = self.is_again(&f.info);
        let exists = there.as_ref().is_some_and(|l| l.entry.kind == Kind::File && l.entry.size > 0);
        let mut mine = None;
        if let Some(listed) = there {
            let e = listed.entry.clone();
            if self.feeder.flags.skip_same && self.same(&f, &e, &mut mine) {
                self.feeder.progress.update(|s| {
                    s.files_skipped += 1;
                    s.bytes_skipped += f.info.size;
                });
                self.linked.stays(&f.info, &listed);
                let extra = self.extra_of_file(&f);
                // Attributes of what exists are not overwritten either.
                let same = e.meta.mode == f.info.meta.mode
                    && self.same_time(&f, &e)
                    && self.same_extra(extra.as_ref(), listed.extra.as_deref())?;
                if same || !self.feeder.flags.overwrite {
                    return Ok(());
                }
                self.feeder.progress.update(|s| s.attributes_changed += 1);
                return self.record_with(extra, &Record::Touch { name, meta: f.info.meta });
            }
            if !self.feeder.flags.overwrite {
                let (_, p) = self.start(&f);
                let text = "exists at the destination and differs";
                return self.fail(FileError::new(p.as_bytes(), Cause::Exists, text));
            }
        }
        if self.link_from(&f, &name, &mut mine)? || self.feeder.flags.dry_run {
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
        self.large(f, exists)
    }
    /// Has a file made from one that a folder of `--link-dest` has, if one has it: true if that is all there is to say of it.
    fn link_from(&mut self, f: &Found, name: &Name, mine: &mut Option<Digest>) -> Result<bool, SessionEnded> {
        if !self.feeder.flags.skip_same {
            return Ok(false);
        }
        let all = std::mem::take(&mut self.alternates);
        let same = all.into_iter().filter(|l| self.same(f, &l.entry, mine)).collect::<Vec<_>>();
        let extra = if same.is_empty() { None } else { self.extra_of_file(f) };
        let mut found = None;
        for l in same {
            let e = &l.entry;
            let whole = e.meta.mode == f.info.meta.mode
                && self.same_time(f, e)
                && self.same_extra(extra.as_ref(), l.extra.as_deref())?;
            if whole || found.is_none() {
                found = Some((l, !whole));
            }
            if whole {
                break;
            }
        }
        let Some((l, copy)) = found else { return Ok(false) };
        self.feeder.progress.update(|s| {
            s.files_skipped += 1;
            s.bytes_skipped += f.info.size;
            s.files_linked += u64::from(!copy);
        });
        let (name, meta, folder) = (name.clone(), f.info.meta, l.folder.unwrap_or(0));
        let link = LinkFrom { name, meta, folder, size: l.entry.size, listed: l.entry.meta, copy };
        self.record_with(extra, &Record::LinkFrom(link))?;
        Ok(true)
    }
    /// The quick check is size and modification time; where the sink gave a hash, that decides. `mine` is that of the file, once
    /// it was asked for.
    fn same(&self, f: &Found, e: &Entry, mine: &mut Option<Digest>) -> bool {
        if e.kind != Kind::File || e.size != f.info.size {
            return false;
        }
        match &e.hash {
            None => self.feeder.picker.select.size_only || self.same_time(f, e),
            Some(h) => {
                if mine.is_none() {
                    let (s, p) = self.start(f);
                    *mine = s.tree.read_file(&p).and_then(|file| hash_file(&file, || false)).ok();
                }
                mine.as_ref() == Some(h)
            }
        }
    }
    fn same_time(&self, f: &Found, e: &Entry) -> bool {
        self.feeder.picker.select.same_time(&f.info.meta, &e.meta)
    }
    fn large(&mut self, mut found: Found, exists: bool) -> Result<(), SessionEnded> {
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
                self.feed(Feed::Large(Large { found, file, extents, exists }))
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
pub(crate) fn data_extents(f: &File, info: &Info) -> std::io::Result<Vec<Range<u64>>> {
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
