//! The receiving side of a transfer, at the server (put) or the client (get).
//!
//! Memory for Writes is granted window by window within a budget; workers write what arrived in it to the files, and
//! then it is granted again. Messages with small files are held back while too many wait for the disk. So a slow disk
//! slows the source, and memory is bounded whatever the disk does.

mod answers;
mod backups;
mod budget;
mod created_dirs;
mod delta;
mod incoming;
mod large;
pub(crate) mod list;
mod packed;
mod removal;
mod small;
mod state;
mod verify;
mod watch;
pub(crate) mod write_only;

use crate::attributes::PreservedAttributes;
use crate::data_reduction;
use crate::error::{Cause, FileError, NO_THREAD};
use crate::hash::{Digest, chunk_log2};
use crate::hashes::Hashes;
use crate::keep::Keep;
use crate::limits::Limits;
use crate::link::Link;
use crate::path::RelPath;
use crate::placement::Placement;
use crate::pool::{JobQueue, Pool, Wake};
use crate::progress::Progress;
use crate::proto::{
    Account, AccountAnswer, Deleted, Extra, Flags, Kind, MAX_RANGES, Meta, Name, Offer, Record, Root, Totals,
};
use crate::select::Select;
use crate::session::Fatal;
use crate::source::{MAX_ASKED, send};
use crate::thread_state::ThreadState;
use crate::tree::Tree;
use base::Span;
use budget::Unopened;
use created_dirs::CreatedDirs;
use incoming::{Hashed, Incoming, Window};
use large::{Arrived, Wanted};
use lhio::accounts::Sort;
use lhio::staging::Staging;
use list::{Lister, ListingDemand};
use removal::Removal;
pub(crate) use small::BootId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use verbs::{Adapter, Memory};
use watch::Watch;
use write_only::{WriteOnly, told};

/// Memory granted and not verified, in bytes: at least, and at most. The less it is, the more of it stays in the cache.
const MIN_GRANTED: u64 = 32 << 20;
const MAX_GRANTED: u64 = 4 << 30;
/// Windows at a time.
const MAX_WINDOWS: usize = 1024;
/// Memory granted at a time for one file, in bytes: a sixteenth of all that may be granted, within these.
const MIN_WINDOW: u64 = 4 << 20;
const MAX_WINDOW: u64 = 64 << 20;
/// Verified bytes of a file after which they are brought to the disk, when that is wanted: the disk works while more
/// arrives, and one that is slow slows the source.
const SYNC_EVERY: u64 = 64 << 20;
/// Bytes of messages waiting for the disk before receives are held back.
const MAX_WAITING: usize = 32 << 20;
/// Large files open or waiting at a time; a peer that offers more breaks the protocol.
const MAX_OPEN: usize = 1024;
/// Further names of files that wait for the end; those beyond fail.
const MAX_NAMES: usize = 2_000_000;

/// How the receiving end is to behave.
#[derive(Clone, Debug)]
pub(crate) struct SinkOptions {
    /// Where the roots go.
    pub dest: RelPath,
    /// It was given with a slash at its end.
    pub into: bool,
    pub flags: Flags,
    /// Everything is on the disk before the transfer counts as done.
    pub durable: bool,
    /// Only a single file is taken.
    pub one_file: bool,
    /// The peer is to learn nothing of what lies here.
    pub write_only: Option<WriteOnly>,
    /// What is kept beside permissions and times, and what of it was asked for and is not allowed.
    pub keep: (Keep, Keep),
    /// Something of that was asked for.
    pub asked: bool,
    /// Folders beside the destination may be anywhere: they are named by the user of this end.
    pub anywhere: bool,
}

enum Report {
    Prepared(Result<small::Prepared, FileError>),
    Placed { len: usize, placed: small::Placed },
    Opened { file: u64, result: Box<Result<large::Opened, FileError>> },
    Window { file: u64, chunks: Range<u64>, result: Result<Staging, FileError>, new: u64 },
    Compared { file: u64, chunks: Vec<u64>, result: Result<Vec<u64>, FileError> },
    Basis { file: u64, step: delta::Step },
    Assembled { file: u64, chunks: Vec<u64>, result: Result<Vec<u64>, FileError> },
    Verified { file: u64, chunks: Vec<u64>, result: Result<Vec<u64>, FileError> },
    Closed { file: u64, result: Result<(), FileError> },
    Finished { file: u64, hashes: Hashes, result: Result<Vec<u64>, FileError> },
    Account(AccountAnswer),
    Final { names: u64, failed: Vec<FileError>, deleted: Deleted },
    BadFrame,
    Died,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Roots,
    Preparing,
    Running,
    Finishing,
    Ended,
}

/// The receiving side.
pub(crate) struct Sink {
    jobs: JobQueue<Report>,
    wake: Wake,
    /// The tree, and which of its folders this transfer has made.
    made: CreatedDirs,
    options: SinkOptions,
    boot: BootId,
    /// Tells who else opens unfinished files.
    watch: Arc<Watch>,
    progress: Progress,
    stage: Stage,
    targets: Arc<Vec<RelPath>>,
    /// What the source wants of the listing.
    asking: ListingDemand,
    listing: Option<Receiver<Vec<u8>>>,
    /// What the thread that lists is doing.
    lister: ThreadState,
    dirs: Vec<(RelPath, Meta)>,
    /// Further names of files, each with the first.
    names: Vec<(RelPath, RelPath)>,
    files: BTreeMap<u64, Incoming>,
    next_file: u64,
    /// Files that want windows, oldest first.
    waiting_for_memory: VecDeque<u64>,
    windows: usize,
    granted: u64,
    granted_max: u64,
    /// What it is to be for the path; others may need the memory.
    wanted: u64,
    limits: Limits,
    /// Offered, and not opened as long as others have the descriptors.
    unopened: VecDeque<Unopened>,
    /// Files that are open, or being opened.
    open: usize,
    /// Bytes of windows that workers have not made yet, perhaps.
    making: u64,
    /// Memory to be granted again: no more than `granted_max` together with what is granted.
    spare: Vec<Staging>,
    /// Payload bytes that had arrived when memory was adapted last.
    arrived: u64,
    waiting: usize,
    /// Bytes of large files verified; those of small files are in `totals`.
    verified: u64,
    totals: Totals,
    told: (u64, u64),
    source_ended: bool,
    /// A transfer of an earlier boot was cut off: what looks finished is compared.
    doubtful: bool,
    /// Old files that are to be listed, and jobs that do it.
    to_list: VecDeque<(u64, Box<delta::OldFile>)>,
    listing_jobs: usize,
    /// Files with chunks that are to be copied, and jobs that do it.
    to_copy: VecDeque<u64>,
    copying: usize,
    /// Keep other transfers away from the same roots.
    locks: Vec<crate::lock::LockedFile>,
    /// What is left over here and is to go.
    removal: Removal,
    /// How files are put in place.
    placement: Placement,
    /// Questions about users and groups that were answered, and those that are being answered.
    answered: usize,
    questions: VecDeque<(Sort, Account)>,
    answering: bool,
}

impl Sink {
    pub fn new(
        pool: Arc<Pool>,
        wake: Wake,
        tree: Arc<Tree>,
        options: SinkOptions,
        progress: Progress,
    ) -> Sink {
        Sink {
            jobs: JobQueue::new(pool, wake.clone()),
            wake,
            made: CreatedDirs::new(tree, options.flags.overwrite)
                .keeping(Arc::new(PreservedAttributes::new(options.keep.0))),
            options,
            boot: BootId::current(),
            watch: Watch::shared(),
            progress,
            stage: Stage::Roots,
            targets: Arc::default(),
            asking: ListingDemand::default(),
            listing: None,
            lister: ThreadState::default(),
            dirs: Vec::new(),
            names: Vec::new(),
            files: BTreeMap::new(),
            next_file: 0,
            waiting_for_memory: VecDeque::new(),
            windows: 0,
            granted: 0,
            granted_max: MIN_GRANTED,
            wanted: MIN_GRANTED,
            limits: Limits::alone(),
            unopened: VecDeque::new(),
            open: 0,
            making: 0,
            spare: Vec::new(),
            arrived: 0,
            waiting: 0,
            verified: 0,
            totals: Totals::default(),
            told: (0, 0),
            source_ended: false,
            doubtful: false,
            to_list: VecDeque::new(),
            listing_jobs: 0,
            to_copy: VecDeque::new(),
            copying: 0,
            locks: Vec::new(),
            removal: Removal::default(),
            placement: Placement::default(),
            answered: 0,
            questions: VecDeque::new(),
            answering: false,
        }
    }
    /// What the client has chosen to be kept and removed, and how files are put in place. Nothing is removed where `failed`
    /// sources could not even be asked for.
    ///
    /// # Errors
    /// Files cannot be given to whom they are to belong to.
    pub fn selecting(mut self, select: &Select, failed: bool) -> Result<Sink, Fatal> {
        let extras = PreservedAttributes::new(self.options.keep.0)
            .giving_to(&select.placement.chown)
            .map_err(Fatal::Refuse)?;
        self.made.extras = Arc::new(extras);
        self.placement = select.placement.clone();
        self.removal = Removal::new(select, failed);
        self.made.keep(select.backup.clone(), self.options.dest.clone());
        Ok(self)
    }
    /// Within a server's limits.
    pub fn within(mut self, limits: Limits) -> Sink {
        self.limits = limits;
        self.granted_max = self.limits.data(self.wanted, 0);
        self
    }
    /// Adapts memory to the path: `total` payload bytes have arrived on the connection so far, `passed` after the
    /// last call; `rtt` is a round trip.
    pub fn arrived(&mut self, total: u64, passed: Span, rtt: Span) {
        let rate = total.saturating_sub(self.arrived) as f64 / passed.as_secs_f64().max(1e-6);
        self.arrived = total;
        // Grants take a round trip to be used, verification some time more, and the rate may still double.
        let want = (rate * rtt.as_secs_f64() * 4.0) as u64;
        self.wanted = self.wanted.max(want).clamp(MIN_GRANTED, MAX_GRANTED);
        self.granted_max = self.limits.data(self.wanted, self.in_use());
    }
    /// Whether the source should be slowed down.
    pub fn full(&self) -> bool {
        // What waits is a part of what may be on its way.
        self.waiting as u64 > (MAX_WAITING as u64).min(self.granted_max / 4)
    }
    pub fn ended(&self) -> bool {
        self.stage == Stage::Ended
    }
    /// Whether the source was told what is there.
    pub fn lists(&self) -> bool {
        self.options.write_only.is_none()
    }
    pub fn totals(&self) -> Totals {
        self.totals
    }
    fn fail(&mut self, e: FileError, link: Option<&mut Link>) {
        self.totals.failed += 1;
        self.removal.failed(&e);
        if let Some(link) = link {
            let (cause, text) = told(&e, self.options.write_only.as_ref());
            send(link, &[Record::Failed { path: e.path.clone(), cause: cause as u8, text }]);
        }
        self.progress.fail(e);
    }

    /// A whole message of the source: what is small goes to a worker as it is.
    pub fn message(&mut self, m: Vec<u8>) -> Result<(), Fatal> {
        if self.stage != Stage::Running || self.options.flags.dry_run {
            return Err(Fatal::protocol("files came before the destination was prepared"));
        }
        self.waiting += m.len();
        let (made, targets, flags) = (self.made.clone(), self.targets.clone(), self.options.flags);
        self.jobs.submit(Report::Died, move || {
            let placed = small::small(&made, &targets, &m, flags);
            Report::Placed { len: m.len(), placed }
        });
        Ok(())
    }
    /// A record of the source that is no small thing.
    pub fn record(&mut self, r: Record<'_>, a: &mut Adapter) -> Result<(), Fatal> {
        match r {
            Record::Roots(v) => self.roots(v)?,
            Record::ListCredit(n) => self.asking.more(n),
            Record::ListFrom(name) => self.asking.from(name),
            Record::AskBasis { file } => self.asked_for_basis(file)?,
            Record::Copies { file, copies, last } => self.copies(file, copies, last)?,
            Record::Hashes { file, first, hashes } => self.hashes(file, first, hashes, None)?,
            Record::Packed { file, chunk, len, hash } => self.hashes(file, chunk, vec![hash], Some(len))?,
            Record::End { file, hash } => {
                if let Some(f) = self.file(file)? {
                    f.end = Some(hash);
                    self.advance(file);
                }
            }
            Record::Drop { file, cause, text } => self.dropped(file, cause, text, a)?,
            Record::Failed { path, cause, text } => {
                let e = FileError { path, cause: Cause::from_wire(cause), text };
                self.fail(e, None);
            }
            Record::Counts(c) => self.progress.update(|s| s.found(&c)),
            Record::Excluded(l) => self.progress.update(|s| s.excluded = l),
            Record::Delete(e) => self.extraneous(e)?,
            Record::AskAccount { sort, account } => self.asked_for_account(sort, account)?,
            Record::SourceEnd => {
                self.source_ended = true;
                // Nobody asks any more what else is here.
                self.asking.stop();
                self.listing = None;
            }
            _ => return Err(Fatal::protocol("a record that only the receiving side may send")),
        }
        Ok(())
    }
    fn roots(&mut self, roots: Vec<Root>) -> Result<(), Fatal> {
        if self.stage != Stage::Roots {
            return Err(Fatal::protocol("the roots came twice"));
        }
        if self.options.one_file
            && let Some(r) = roots.iter().find(|r| roots.len() > 1 || r.kind != Kind::File)
        {
            let text = format!(
                "cannot write {} to a stream or device: only a single file can be; name one, or a folder as the destination",
                r.name
            );
            return Err(Fatal::Refuse(text));
        }
        self.stage = Stage::Preparing;
        self.removal.roots(&roots);
        let (made, o, boot) = (self.made.clone(), self.options.clone(), self.boot);
        let placement = self.placement.clone();
        self.jobs.submit(Report::Died, move || {
            let placement = (&placement, o.anywhere);
            let write = !o.flags.dry_run;
            Report::Prepared(small::prepare(&made, &o.dest, o.into, &roots, write, &boot, placement))
        });
        Ok(())
    }
    fn prepared(&mut self, p: small::Prepared, link: &mut Link) -> Result<(), Fatal> {
        let (keep, denied) = self.options.keep;
        if !keep.with(denied).is_empty() || self.options.asked {
            send(link, &[Record::Kept { keep, denied, owners: 0, attributes: 0 }]);
            self.progress.update(|s| s.kept(denied, 0, 0));
        }
        self.targets = Arc::new(p.targets);
        self.locks = p.locks;
        for note in &p.folders.notes {
            send(link, &[Record::Note(note.clone())]);
            self.progress.note(note.clone());
        }
        self.made.using(p.folders);
        self.doubtful = p.doubtful;
        self.stage = Stage::Running;
        let (out, listing) = sync_channel(4);
        let f = self.options.flags;
        // Without these nobody asks what is there; a write-only server tells nobody.
        let wanted = self.lists() && (f.skip_same || !f.overwrite || self.removal.needs_listing());
        let roots = if wanted { small::present(self.made.tree(), &self.targets) } else { Vec::new() };
        let others = self.made.folders().alternates.iter().filter(|_| wanted && f.skip_same);
        let alternates = others.map(|a| (a.tree.clone(), small::present(&a.tree, &a.targets))).collect();
        let lister = Lister {
            tree: self.made.tree().clone(),
            roots,
            alternates,
            depth: usize::MAX,
            hash: f.checksum || p.doubtful,
            report: false,
            link_targets: false,
            extras: self.made.extras.clone(),
            asked: self.asking.asked(),
            out,
            wake: self.wake.clone(),
            thread_state: self.lister.clone(),
        };
        lister.spawn().map_err(|e| Fatal::Local(format!("cannot start a thread: {e}; {NO_THREAD}")))?;
        self.listing = Some(listing);
        Ok(())
    }
    /// A file that was offered; `None` when it is over already.
    fn file(&mut self, id: u64) -> Result<Option<&mut Incoming>, Fatal> {
        if id >= self.next_file {
            return Err(Fatal::Protocol(format!("file {id} was never offered")));
        }
        Ok(self.files.get_mut(&id))
    }
    pub fn offer(&mut self, o: Offer, extra: Option<Box<Extra>>) -> Result<(), Fatal> {
        if self.stage != Stage::Running || o.file != self.next_file || self.files.len() >= MAX_OPEN {
            return Err(Fatal::protocol("an offer out of turn"));
        }
        if self.options.flags.dry_run {
            return Err(Fatal::protocol("an offer in a rehearsal"));
        }
        self.next_file += 1;
        let log2 = chunk_log2(o.size);
        let name = Name { root: o.name.root, path: o.name.path };
        let target = match small::target(&self.targets, &name) {
            Err(e) if e.cause == Cause::BadPath => return Err(Fatal::Protocol(e.to_string())),
            // Too long for this end's place: the file fails, as it would if the system said so.
            t => t,
        };
        let path = target.as_ref().map_or(name.path, Clone::clone);
        self.progress.offered(&path, o.size);
        let noted = self.limits.note_offer(path.as_bytes(), o.extents.len());
        let mut f = Incoming::new(path.clone(), o.size, log2, if noted.is_ok() { &o.extents } else { &[] });
        f.noted = noted.as_ref().copied().unwrap_or(0);
        self.files.insert(o.file, f);
        let (flags, from) = (self.options.flags, self.options.write_only);
        let w = Wanted { path, size: o.size, log2, extents: o.extents, meta: o.meta, extra, flags, from };
        let failed = target.err().or(noted.err());
        self.unopened.push_back(Unopened { file: o.file, wanted: w, failed });
        self.open_some();
        Ok(())
    }
    /// Something here that the source has not.
    fn extraneous(&mut self, e: crate::proto::Extraneous) -> Result<(), Fatal> {
        if self.stage != Stage::Running {
            return Err(Fatal::protocol("something was to be deleted before the destination was prepared"));
        }
        let dry = self.options.flags.dry_run;
        if !dry && !self.limits.note_folder(e.name.path.as_bytes().len()) {
            self.removal.without_memory();
            return Ok(());
        }
        if let Some(shown) = self.removal.add(&self.targets, e, dry)? {
            self.progress.would_delete(&shown);
        }
        Ok(())
    }
    fn dropped(&mut self, id: u64, cause: u8, text: String, a: &mut Adapter) -> Result<(), Fatal> {
        let Some(f) = self.file(id)? else { return Ok(()) };
        if !f.failed {
            let cause = Cause::from_wire(cause);
            let e = FileError::new(f.path.as_bytes(), cause, text);
            if cause == Cause::Changed
                && let Some(p) = f.part.clone()
            {
                self.jobs.submit(Report::Died, move || {
                    p.discard();
                    Report::Closed { file: id, result: Ok(()) }
                });
            }
            self.fail(e, None);
        }
        self.forget(id, a);
        Ok(())
    }
    /// The source writes no more to this file: memory goes back.
    fn forget(&mut self, id: u64, a: &mut Adapter) {
        let Some(f) = self.files.remove(&id) else { return };
        self.release(&f);
        for w in f.windows.into_values() {
            self.close_window(w, a);
        }
    }
    /// Nothing more arrives in a window: its memory is granted again.
    fn close_window(&mut self, w: Window, a: &mut Adapter) {
        self.windows -= 1;
        self.granted -= w.len;
        let Some((mr, memory)) = w.memory else { return };
        let _ = a.dereg_mr(mr); // its other clone
        let spare: u64 = self.spare.iter().map(|s| s.len() as u64).sum();
        // A worker that still reads it belongs to a file that failed.
        if !memory.shared() && self.granted + spare + w.len <= self.granted_max {
            self.spare.push(memory);
        }
    }
    /// Data and journal go to the disk while more arrives.
    fn sync(&mut self, id: u64) {
        let Some(f) = self.files.get_mut(&id).filter(|f| f.unsynced >= SYNC_EVERY) else { return };
        f.unsynced = 0;
        if let Some(part) = f.part.clone().filter(|_| self.options.durable) {
            self.jobs.submit(Report::Died, move || Report::Closed { file: id, result: part.sync() });
        }
    }
    /// This end cannot go on with a file; the others go on. Its memory stays until the source's `Drop` says that
    /// no Writes are on their way any more.
    fn abandon(&mut self, id: u64, e: FileError, link: &mut Link) {
        let Some(f) = self.files.get_mut(&id).filter(|f| !f.failed) else { return };
        f.failed = true;
        let (cause, text) = told(&e, self.options.write_only.as_ref());
        let failed = Some((cause as u8, text));
        send(link, &[Record::Done { file: id, failed }]);
        self.fail(e, None);
    }
    /// Puts a file in place once everything of it is verified.
    fn advance(&mut self, id: u64) {
        let Some(f) = self.files.get_mut(&id) else { return };
        if f.wants_window() && !self.waiting_for_memory.contains(&id) {
            self.waiting_for_memory.push_back(id);
        }
        if !f.complete() {
            return;
        }
        let (Some(part), Some(end)) = (f.part.clone(), f.end) else { return };
        f.finishing = true;
        let hashes = std::mem::take(&mut f.hashes);
        let (durable, overwrite) = (self.options.durable, self.options.flags.overwrite);
        self.jobs.submit(Report::Died, move || {
            let result = part.finish(&hashes, &end, durable, overwrite);
            Report::Finished { file: id, hashes, result }
        });
    }

    /// Takes what the threads delivered and gives them more.
    pub fn drive(&mut self, a: &mut Adapter, link: &mut Link) -> Result<(), Fatal> {
        while let Some(r) = self.jobs.poll() {
            self.report(r, a, link)?;
        }
        while let Some(m) = self.listing.as_ref().and_then(|l| l.try_recv().ok()) {
            link.send(m);
        }
        self.open_some();
        self.list_some(link);
        self.copy_some();
        self.grant();
        self.tell(link, false);
        let idle = self.files.is_empty() && self.jobs.outstanding() == 0;
        if self.source_ended && idle && self.stage == Stage::Running {
            self.stage = Stage::Finishing;
            let (made, targets, dirs) =
                (self.made.clone(), self.targets.clone(), std::mem::take(&mut self.dirs));
            let names = std::mem::take(&mut self.names);
            let (durable, overwrite) = (self.options.durable, self.options.flags.overwrite);
            let mut removal = std::mem::take(&mut self.removal);
            // What failed may not have been compared.
            let (dry, clean) = (self.options.flags.dry_run, self.totals.failed == 0 || !self.doubtful);
            self.jobs.submit(Report::Died, move || {
                if dry {
                    return Report::Final { names: 0, failed: Vec::new(), deleted: Deleted::default() };
                }
                let (done, mut failed) = small::further_names(&made, &names, overwrite);
                failed.iter().for_each(|e| removal.failed(e));
                let (not_removed, deleted) = removal.carry_out(&made);
                failed.extend(not_removed);
                failed.extend(small::finish(&made, &targets, dirs, durable, clean));
                Report::Final { names: done, failed, deleted }
            });
        }
        Ok(())
    }
    /// Tells the source what is verified, one message at a time but for the `last`, which says what the end of the transfer shows.
    fn tell(&mut self, link: &mut Link, last: bool) {
        let now = (self.totals.files, self.totals.bytes + self.verified);
        if now != self.told && (last || link.queued() == 0) {
            self.told = now;
            let resumed = self.totals.resumed_bytes;
            send(link, &[Record::Progress { files: now.0, bytes: now.1, resumed }]);
            self.progress.confirmed(now.0, now.1, resumed);
        }
    }
    fn report(&mut self, r: Report, a: &mut Adapter, link: &mut Link) -> Result<(), Fatal> {
        match r {
            Report::Prepared(Ok(p)) => return self.prepared(p, link),
            // A disk that is full or read-only is no decision of whoever runs this end.
            Report::Prepared(Err(e)) if e.cause.is_system() => return Err(Fatal::Unable(e.to_string())),
            Report::Prepared(Err(mut e)) => {
                (e.cause, e.text) = told(&e, self.options.write_only.as_ref());
                return Err(Fatal::Refuse(e.to_string()));
            }
            Report::Placed { len, placed } => self.placed(len, placed, link),
            Report::Opened { file, result } => self.opened(file, *result, link),
            Report::Window { file, chunks, result, new } => {
                self.making = self.making.saturating_sub(new);
                self.windowed(file, chunks, result, link, a);
            }
            Report::Verified { file, chunks, result } => self.checked(file, &chunks, result, link, a),
            Report::Basis { file, step } => self.listed(file, step, link),
            Report::Assembled { file, chunks, result } => self.assembled(file, &chunks, result, link),
            Report::Closed { file, result } => {
                if let Err(e) = result {
                    self.abandon(file, e, link);
                }
            }
            Report::Compared { file, chunks, result } => self.compared(file, &chunks, result, link),
            Report::Finished { file, hashes, result } => match result {
                Ok(bad) if bad.is_empty() => {
                    if let Some(f) = self.files.remove(&file) {
                        self.release(&f);
                        self.totals.files += 1;
                        // From here on counted with the small ones.
                        self.totals.bytes += f.size;
                        self.verified = self.verified.saturating_sub(f.data_bytes());
                    }
                    send(link, &[Record::Done { file, failed: None }]);
                }
                Ok(bad) => self.spoilt(file, hashes, &bad, link),
                Err(e) => self.abandon(file, e, link),
            },
            Report::Account(a) => {
                self.answering = false;
                send(link, &[Record::Account(a)]);
                self.answer_next();
            }
            Report::Final { names, failed, deleted } => {
                self.totals.files += names;
                let (owners, attributes) = self.made.extras.lost();
                if owners + attributes > 0 {
                    let (keep, denied) = self.options.keep;
                    send(link, &[Record::Kept { keep, denied, owners, attributes }]);
                    self.progress.update(|s| s.kept(denied, owners, attributes));
                }
                self.progress.update(|s| s.deleted = deleted);
                if deleted != Deleted::default() {
                    send(link, &[Record::Deleted(deleted)]);
                }
                for e in failed {
                    self.fail(e, Some(link));
                }
                self.tell(link, true);
                send(link, &[Record::SinkEnd(self.totals)]);
                self.stage = Stage::Ended;
            }
            Report::BadFrame => return Err(Fatal::protocol("a frame that holds no message of files")),
            Report::Died => return Err(Fatal::Local("a writing thread failed; please report this".into())),
        }
        Ok(())
    }
    fn placed(&mut self, len: usize, p: small::Placed, link: &mut Link) {
        self.waiting -= len;
        self.totals.files += p.files;
        self.totals.links += p.links;
        self.progress.update(|s| s.files_linked += p.linked);
        self.totals.bytes += p.bytes;
        self.totals.dirs += p.dirs.len() as u64;
        self.remember(p.dirs);
        for (path, first) in p.names {
            let bytes = path.as_bytes().len() + first.as_bytes().len();
            if self.names.len() < MAX_NAMES && self.limits.note_folder(bytes) {
                self.names.push((path, first));
            } else {
                let text = "there are more hard links than this end can remember; send fewer at a time";
                self.fail(FileError::new(path.as_bytes(), Cause::NoMemory, text), Some(link));
            }
        }
        for e in p.failed {
            self.fail(e, Some(link));
        }
    }
    fn opened(&mut self, id: u64, r: Result<large::Opened, FileError>, link: &mut Link) {
        let o = match r {
            Ok(o) => o,
            Err(e) => return self.abandon(id, e, link),
        };
        let Some(f) = self.files.get_mut(&id) else { return };
        if o.restarted {
            let text = format!("{}: the source has changed since the last attempt; starting over", f.path);
            self.progress.note(text);
        }
        let have = f.opened(o.part, o.have, MAX_RANGES);
        let asked = f.delta == delta::DeltaStage::DemandReceiver;
        send(link, &[Record::Accept { file: id, have }]);
        if asked {
            self.list_basis(id, link);
        }
        self.advance(id);
    }
    fn windowed(
        &mut self,
        id: u64,
        chunks: Range<u64>,
        r: Result<Staging, FileError>,
        link: &mut Link,
        a: &mut Adapter,
    ) {
        // Gone meanwhile: `forget` has given the budget back.
        let Some(f) = self.files.get_mut(&id) else { return };
        let bytes = f.bytes(&chunks);
        let registered = r.and_then(|m| {
            let path = f.path.as_bytes();
            let mr = link.open_window(a, Memory::from_backing(Box::new(m.clone())));
            Ok((mr.map_err(|(e, _)| FileError::new(path, Cause::Other, e.to_string()))?, m))
        });
        match registered {
            Ok((mr, memory)) => {
                if let Some(w) = f.windows.get_mut(&chunks.start) {
                    w.memory = Some((mr.id, memory));
                }
                let len = bytes.end - bytes.start;
                let mut out = vec![Record::Grant { file: id, start: bytes.start, len, rkey: mr.rkey }];
                for c in chunks {
                    if f.again.remove(&c) {
                        out.push(Record::Again { file: id, chunk: c });
                    }
                }
                send(link, &out);
            }
            Err(e) => self.abandon(id, e, link),
        }
    }
    /// Bytes of memory for what arrives, granted or not, and how many there may be: one window more than is meant to be
    /// granted, since the last may reach beyond.
    #[cfg(test)]
    pub fn memory(&self) -> (u64, u64) {
        let spare: u64 = self.spare.iter().map(|s| s.len() as u64).sum();
        (self.granted + spare, self.granted_max + MIN_WINDOW)
    }
    /// Whether a thread works for it, lists or is about to.
    pub fn is_working(&self) -> bool {
        self.jobs.outstanding() > 0 || self.listing.is_some() && self.lister.is_working()
    }
    /// After [`close`](Self::close): takes reports away; true when no job is left.
    pub fn settle(&mut self) -> bool {
        while self.jobs.poll().is_some() {}
        self.jobs.outstanding() == 0
    }
    /// Gives all memory back; what arrived is kept for the next attempt.
    pub fn close(&mut self, a: &mut Adapter) {
        self.jobs.cancel();
        self.asking.stop();
        self.listing = None;
        for id in self.files.keys().copied().collect::<Vec<_>>() {
            self.forget(id, a);
        }
    }
}
