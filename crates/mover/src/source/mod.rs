//! The sending side of a transfer, at the client (put) or the server (get).
//!
//! Walking, reading and hashing happen on threads; this state machine runs in the endpoint's loop, posts what they
//! deliver and bounds what they may have outstanding.

mod compare;
mod delta;
mod extraneous;
mod feeder;
mod grants;
mod not_preserved;
mod read;
mod read_ahead;
mod scan;
mod state;

pub(crate) use compare::MAX_ASKED;
pub(crate) use feeder::{data_extents, hash_file};
pub(crate) use read::{data_chunks, overlapping};

use crate::attributes::PreservedAttributes;
use crate::data_reduction::{self, DataReduction, ReductionPolicy};
use crate::delta::Plan;
use crate::error::{Cause, FileError, NO_THREAD};
use crate::hash::{Digest, HOLE, chunk_log2};
use crate::hashes::Hashes;
use crate::keep::Keep;
use crate::limits::Limits;
use crate::link::{Link, Target};
use crate::path::RelPath;
use crate::pool::{JobQueue, Pool, Wake};
use crate::progress::Progress;
use crate::proto::{AccountAnswer, Flags, Name, Offer, Record, Root, put};
use crate::select::{Picker, Select};
use crate::session::{Fatal, Listed};
use crate::thread_state::ThreadState;
use crate::tree::Info;
use crate::walk::Start;
use base::{RangeSet, Span, Time};
use endpoint::Stats;
use feeder::{Feed, Feeder, Large};
use grants::Grants;
use not_preserved::Counter;
use read::{Direct, Piece, Ready};
use read_ahead::{MIN_STAGED, ReadAhead};
use scan::Scan;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use verbs::Adapter;

/// Large files offered and not finished, at most. Each takes a file descriptor at both ends.
const MAX_OFFERS: usize = 192;
/// Packs of small files being read, at most: 16 MiB.
const MAX_PACKS: usize = 64;
/// Messages and Writes that wait for the queue pair, at most, before reading pauses.
const MAX_QUEUED: usize = 256;
/// Bytes that one job reads, at least one chunk.
const PIECE: u64 = 1 << 20;
/// The same past the page cache: enough requests at a time to keep a fast disk busy.
const DIRECT_PIECE: u64 = 8 << 20;
/// Smaller files are read through the page cache in any case.
const DIRECT_FROM: u64 = 16 << 20;
/// Pieces up to this size are read in any case, one at a time.
const MIN_PIECE: u64 = 4 << 20;
/// Address space that the only piece leaves.
const LEAST_LEFT: u64 = 16 << 20;
/// Buffers kept for reuse.
const MAX_SPARE: usize = 64;
/// Messages of the sink's listing that may be on their way at first, and later: what is behind in it may concern nobody,
/// as the first name that is asked about tells.
pub(crate) const FIRST_LIST_CREDIT: u64 = 16;
pub(crate) const LIST_CREDIT: u64 = 64;
/// How often one chunk may be asked for again before the peer is taken for broken.
const MAX_RESENDS: u64 = 4;

enum Report {
    Packed(read::Packed),
    Read { piece: Piece, ready: Ready, new: u64 },
    ReadFailed { piece: Piece, buffer: u64, new: u64, error: FileError },
    Checked { file: u64, result: Result<Digest, FileError> },
    Cut { file: u64, result: Box<Result<delta::Cuts, FileError>> },
    Matched { file: u64, copies: Vec<crate::delta::Copied> },
    Died,
}

/// A large file on its way.
struct Outgoing {
    shown: Vec<u8>,
    file: Arc<File>,
    info: Info,
    log2: u8,
    extents: Arc<Vec<Range<u64>>>,
    /// Chunks with data.
    data: RangeSet,
    /// Chunks given to readers.
    taken: RangeSet,
    hashes: Hashes,
    /// Chunks whose hash has not been sent.
    left: u64,
    grants: Grants,
    accepted: bool,
    checking: bool,
    again: u64,
    ended: bool,
    /// Read past the page cache, for as long as its disk takes that.
    direct: Option<Arc<Direct>>,
    /// Compared with what is at the destination, until it is known what is to be sent.
    comparison: Option<Box<delta::Comparison>>,
    /// What the sink copies from its old file.
    plan: Option<Arc<Plan>>,
    /// Chunks of which nothing is copied all the same.
    whole: RangeSet,
}

impl Outgoing {
    /// Bytes that one job reads.
    fn piece(&self) -> u64 {
        let aim = if self.direct.is_some() { DIRECT_PIECE } else { PIECE };
        aim.max(1 << self.log2)
    }
    fn chunks(&self) -> u64 {
        self.info.size.div_ceil(1 << self.log2)
    }
}

/// The sending side.
pub(crate) struct Source {
    jobs: JobQueue<Report>,
    starts: Arc<Vec<Start>>,
    /// What the thread that walks is doing.
    walk: ThreadState,
    feeds: Receiver<Feed>,
    /// To that thread, until the listing has ended.
    listing: Option<Sender<Vec<Listed>>>,
    /// To that thread: what the sink makes of users and groups, and how many it has yet to tell.
    answers: Option<Sender<AccountAnswer>>,
    asked: u64,
    /// Messages of the sink's listing that came, and that were asked for.
    listed: u64,
    list_credit: u64,
    /// Messages of it that were used up.
    used: u64,
    progress: Progress,
    files: BTreeMap<u64, Outgoing>,
    next_file: u64,
    todo: VecDeque<Piece>,
    /// Read and waiting for room among the adapter's regions.
    stalled: VecDeque<(Piece, Ready)>,
    spare: Vec<Vec<u8>>,
    staged: u64,
    staged_max: u64,
    /// What it is to be for the path; others may need the memory.
    ahead: ReadAhead,
    limits: Limits,
    /// Bytes of new buffers that readers have not made yet, perhaps.
    making: u64,
    packs: usize,
    fed: bool,
    ended: bool,
    /// Large files are to be read past the page cache.
    direct: bool,
    /// What of the things sent stays behind.
    behind: Arc<Counter>,
    /// Counts ahead.
    scan: Option<Scan>,
    /// Files that were left out when the sink was told last how much there is.
    counts_told: Option<u64>,
    judge: ReductionPolicy,
    /// Files that are to be cut, and jobs that do it.
    compared: VecDeque<u64>,
    cutting: usize,
    /// What was found and waits for memory.
    held: Option<Feed>,
}

impl Source {
    /// All of the sources.
    #[cfg(test)]
    pub fn new(
        pool: Arc<Pool>,
        wake: Wake,
        starts: Vec<Start>,
        roots: Vec<Root>,
        (flags, keep): (Flags, Keep),
        progress: Progress,
        link: &mut Link,
    ) -> Result<Source, Fatal> {
        Source::selecting(pool, wake, (starts, roots), (flags, keep, Select::default()), progress, link)
    }
    /// Starts the walk over what is selected and tells the sink what the roots are.
    pub fn selecting(
        pool: Arc<Pool>,
        wake: Wake,
        (starts, roots): (Vec<Start>, Vec<Root>),
        (flags, keep, select): (Flags, Keep, Select),
        progress: Progress,
        link: &mut Link,
    ) -> Result<Source, Fatal> {
        let picker = Arc::new(Picker::new(select, &roots));
        let jobs = JobQueue::new(pool, wake.clone());
        let (out, feeds) = sync_channel(MAX_PACKS);
        let (listing, listed) = channel();
        let walk = ThreadState::default();
        let extras = PreservedAttributes::new(keep).changing(&picker.select.placement);
        let behind = Arc::new(Counter::new(Arc::new(extras)));
        let (answers, accounts) = channel();
        let f = Feeder {
            starts: starts.clone(),
            flags,
            listing: listed,
            answers: accounts,
            out,
            progress: progress.clone(),
            wake: wake.clone(),
            thread_state: walk.clone(),
            behind: behind.clone(),
            picker: picker.clone(),
        };
        feeder::spawn(f).map_err(|e| Fatal::Local(format!("cannot start a thread: {e}; {NO_THREAD}")))?;
        let scan =
            if flags.scan { Scan::start(starts.clone(), picker, progress.clone(), wake) } else { None };
        send(link, &[Record::Roots(roots), Record::ListCredit(FIRST_LIST_CREDIT)]);
        Ok(Source {
            jobs,
            starts: Arc::new(starts),
            walk,
            feeds,
            listing: Some(listing),
            answers: Some(answers),
            asked: 0,
            listed: 0,
            used: 0,
            list_credit: FIRST_LIST_CREDIT,
            progress,
            files: BTreeMap::new(),
            next_file: 0,
            todo: VecDeque::new(),
            stalled: VecDeque::new(),
            spare: Vec::new(),
            staged: 0,
            staged_max: MIN_STAGED,
            ahead: ReadAhead::default(),
            limits: Limits::alone(),
            making: 0,
            packs: 0,
            fed: false,
            ended: false,
            direct: false,
            behind,
            scan,
            counts_told: None,
            judge: ReductionPolicy::new(DataReduction::default(), Span::ZERO),
            compared: VecDeque::new(),
            cutting: 0,
            held: None,
        })
    }
    /// Has large files read past the page cache, where their file system can do that.
    pub fn directly(mut self, direct: bool) -> Source {
        self.direct = direct;
        self
    }
    /// Saves traffic as this says.
    pub fn saving(mut self, judge: ReductionPolicy) -> Source {
        self.judge = judge;
        self
    }
    /// Within a server's limits.
    pub fn within(mut self, limits: Limits) -> Source {
        self.limits = limits;
        self.staged_max = self.limits.data(self.ahead.wanted(), 0);
        self
    }
    /// Reports sources that were named and cannot be sent.
    pub fn without(&mut self, failed: Vec<FileError>, link: &mut Link) {
        for e in failed {
            send(
                link,
                &[Record::Failed { path: e.path.clone(), cause: e.cause as u8, text: e.text.clone() }],
            );
            self.progress.fail(e);
        }
    }
    /// Adapts memory to the path, and what is done to save traffic.
    pub fn fit(&mut self, now: Time, s: &Stats, round_trips: f64) {
        let (rtt, acked, waiting) = (s.min_rtt, s.payload_acked, self.staged);
        self.judge.look(data_reduction::PathSample { now, rtt, acked, waiting });
        self.ahead.sample(s.inflight.max(s.cwnd), acked, round_trips);
        self.staged_max = self.limits.data(self.ahead.wanted(), self.staged);
    }
    /// Listed entries of one message.
    ///
    /// # Errors
    /// It was not asked for so many: what is listed and not looked at yet takes memory.
    pub fn entries(&mut self, e: Vec<Listed>) -> Result<(), Fatal> {
        self.listed += 1;
        if self.listed > self.list_credit {
            return Err(Fatal::protocol("more of a listing than was asked for"));
        }
        if let Some(l) = &self.listing {
            let _ = l.send(e); // the walk may have ended already
        }
        Ok(())
    }
    /// A buffer came back from the link.
    pub fn returned(&mut self, b: Vec<u8>) {
        self.staged = self.staged.saturating_sub(b.len() as u64);
        self.keep(b);
    }
    fn keep(&mut self, b: Vec<u8>) {
        let kept = [PIECE, DIRECT_PIECE + lhio::direct::ALIGN as u64].contains(&(b.len() as u64));
        if self.spare.len() < MAX_SPARE && kept {
            self.spare.push(b);
        }
    }
    /// Whether all is said, and only the sink's end is missing.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// A record of the sink.
    pub fn record(&mut self, r: Record<'_>, link: &mut Link) -> Result<(), Fatal> {
        match r {
            Record::ListEnd => self.listing = None,
            Record::Kept { keep, denied, owners, attributes } => {
                self.behind.extras.limit(keep);
                self.progress.update(|s| s.kept(denied, owners, attributes));
            }
            Record::Account(a) => {
                self.asked =
                    self.asked.checked_sub(1).ok_or(Fatal::protocol("an answer that nobody asked for"))?;
                if let Some(out) = &self.answers {
                    let _ = out.send(a); // the walk may have ended
                }
            }
            Record::Note(text) => self.progress.note(text),
            Record::Accept { file, have } => self.accept(file, &have)?,
            Record::Basis { file, pieces, last } => self.listed(file, &pieces, last)?,
            Record::Grant { file, start, len, rkey } => self.grant(file, start, len, rkey)?,
            Record::Again { file, chunk } => self.again(file, chunk)?,
            Record::Done { file, failed } => self.done(file, failed, link)?,
            Record::Failed { path, cause, text } => {
                self.progress.fail(FileError { path, cause: Cause::from_wire(cause), text });
            }
            Record::Progress { files, bytes, resumed } => self.progress.confirmed(files, bytes, resumed),
            Record::Deleted(d) => self.progress.update(|s| s.deleted = d),
            _ => return Err(Fatal::protocol("a record that only the sending side may send")),
        }
        Ok(())
    }
    /// A file that was offered; `None` when it is over already.
    fn file(&mut self, id: u64) -> Result<Option<&mut Outgoing>, Fatal> {
        if id >= self.next_file {
            return Err(Fatal::Protocol(format!("file {id} was never offered")));
        }
        Ok(self.files.get_mut(&id))
    }
    fn accept(&mut self, id: u64, have: &[Range<u64>]) -> Result<(), Fatal> {
        let mut pieces = Vec::new();
        let Some(f) = self.file(id)? else { return Ok(()) };
        if std::mem::replace(&mut f.accepted, true) {
            return Err(Fatal::protocol("a file was accepted twice"));
        }
        for r in have {
            if r.end > f.chunks() || !f.data.contains_all(r.clone()) {
                return Err(Fatal::protocol("an accepted file has chunks outside of its data"));
            }
        }
        if let Some(c) = &mut f.comparison {
            Source::keep_for_later(c, have);
            return Ok(());
        }
        for r in have {
            f.taken.insert(r.clone());
            pieces.extend(split(id, r.clone(), f, false));
        }
        self.todo.extend(pieces);
        Ok(())
    }
    fn grant(&mut self, id: u64, start: u64, len: u64, rkey: u32) -> Result<(), Fatal> {
        let mut pieces = Vec::new();
        let Some(f) = self.file(id)? else { return Ok(()) };
        if f.comparison.is_some() {
            return Err(Fatal::protocol(
                "memory was granted for a file before it was said what is to be copied",
            ));
        }
        if start & ((1 << f.log2) - 1) != 0 || len == 0 || start + len > f.info.size {
            return Err(Fatal::protocol("memory was granted for bytes outside of the file"));
        }
        f.grants.insert(start..start + len, rkey);
        let chunks = start >> f.log2..(start + len).div_ceil(1 << f.log2);
        for want in f.data.iter().collect::<Vec<_>>() {
            let want = want.start.max(chunks.start)..want.end.min(chunks.end);
            if want.start >= want.end {
                continue;
            }
            for gap in f.taken.gaps(want.clone()).collect::<Vec<_>>() {
                pieces.extend(split(id, gap, f, true));
            }
            f.taken.insert(want);
        }
        self.todo.extend(pieces);
        Ok(())
    }
    fn again(&mut self, id: u64, chunk: u64) -> Result<(), Fatal> {
        let Some(f) = self.file(id)? else { return Ok(()) };
        f.again += 1;
        if !f.data.contains_all(chunk..chunk + 1) || f.again > MAX_RESENDS * f.chunks() {
            return Err(Fatal::protocol("a chunk was asked for that was not sent, or too often"));
        }
        self.sends_whole(id, chunk);
        self.todo.push_front(Piece { file: id, first: chunk, count: 1, send: true });
        Ok(())
    }
    fn done(&mut self, id: u64, failed: Option<(u8, String)>, link: &mut Link) -> Result<(), Fatal> {
        self.file(id)?;
        let Some(f) = self.files.remove(&id) else { return Ok(()) };
        self.forget_comparison(&f);
        if let Some((cause, text)) = failed {
            let e = FileError::new(&f.shown, Cause::from_wire(cause), text);
            // Tells the sink that no more Writes come, so that it can take its memory back.
            send(link, &[Record::Drop { file: id, cause: e.cause as u8, text: String::new() }]);
            self.progress.fail(e);
        }
        Ok(())
    }

    /// Takes what the threads delivered, gives them more, and queues what is to be sent.
    pub fn drive(&mut self, a: &mut Adapter, link: &mut Link) -> Result<(), Fatal> {
        while let Some(r) = self.jobs.poll() {
            self.report(r, a, link)?;
        }
        while let Some((p, r)) = self.stalled.pop_front() {
            if !self.write(p, r, a, link) {
                break;
            }
        }
        while !self.fed
            && self.files.len() < MAX_OFFERS
            && self.packs < MAX_PACKS
            && link.queued() < MAX_QUEUED
            && link.messages() < self.staged_max
            && let Some(f) = self.held.take().or_else(|| self.feeds.try_recv().ok())
        {
            self.held = self.feed(f, link);
            if self.held.is_some() {
                break;
            }
        }
        self.cut();
        self.read(link);
        // What the sink lists behind the last name of the walk concerns nobody; it stops when it hears this.
        if self.fed && !self.ended && self.files.is_empty() && self.packs == 0 {
            let not_preserved = self.behind.get();
            self.progress.update(|s| s.not_preserved = not_preserved);
            send(link, &[Record::Counts(self.counts()), Record::SourceEnd]);
            self.ended = true;
        }
        self.tell_counts(link);
        Ok(())
    }
    /// Begins to send what was found; returns it where it has to wait.
    fn feed(&mut self, f: Feed, link: &mut Link) -> Option<Feed> {
        match f {
            Feed::Message(m) => link.send(m),
            Feed::Credit => {
                // One more than was used up, until as many as may be are on their way.
                let more = 1 + u64::from(self.list_credit - self.used < LIST_CREDIT);
                self.used += 1;
                self.list_credit += more;
                send(link, &[Record::ListCredit(more)]);
            }
            Feed::ListFrom(name) => send(link, &[Record::ListFrom(name)]),
            Feed::AskAccount(sort, account) => {
                self.asked += 1;
                send(link, &[Record::AskAccount { sort, account }]);
            }
            Feed::End => self.fed = true,
            Feed::Pack(p) => {
                self.packs += 1;
                let (starts, progress, behind) =
                    (self.starts.clone(), self.progress.clone(), self.behind.clone());
                let shared = self.judge.shared.clone();
                self.jobs.submit(Report::Died, move || {
                    Report::Packed(read::pack(&starts, &p, &progress, &behind, &shared))
                });
            }
            Feed::Large(large) => {
                let compared = large.exists && !large.extents.is_empty();
                let Some(compared) =
                    (if compared { self.may_compare(large.found.info.size) } else { Some(false) })
                else {
                    return Some(Feed::Large(large));
                };
                self.offer(large, compared, link);
            }
        }
        None
    }
    fn offer(&mut self, large: Large, compared: bool, link: &mut Link) {
        let Large { found, file, extents, .. } = large;
        let id = self.next_file;
        self.next_file += 1;
        let size = found.info.size;
        let log2 = chunk_log2(size);
        let name = Name { root: found.root, path: found.path.clone() };
        let meta = self.behind.extras.meta_of(&found.info);
        let offer = Offer { file: id, name, meta, size, extents: extents.clone() };
        let ask = compared.then_some(Record::AskBasis { file: id });
        // One whose attributes cannot be read is sent without.
        let extra = self.behind.extras.of_file(&found.info, &file);
        self.behind.excluded(extra.as_ref().map_or(true, |e| e.1));
        let extra = extra.ok().and_then(|e| e.0).map(Record::Extra);
        send(link, &[extra, Some(Record::Offer(offer)), ask].into_iter().flatten().collect::<Vec<_>>());
        let data = data_chunks(&extents, log2);
        let shown = feeder::full_path(&self.starts[found.root as usize], &found);
        self.progress.update(|s| s.current = shown.to_string());
        let direct = (self.direct && size >= DIRECT_FROM).then(|| lhio::direct::enable(&file));
        if let Some(Err(e)) = &direct {
            let text = format!(
                "{shown}: read through the page cache, since its file system has no direct reads: {e}"
            );
            self.progress.note(text);
        }
        let f = Outgoing {
            direct: direct.filter(Result::is_ok).map(|_| Arc::new(self.direct_job(&shown))),
            shown: shown.as_bytes().to_vec(),
            file: Arc::new(file),
            info: found.info,
            log2,
            extents: Arc::new(extents),
            left: data.count(),
            hashes: Hashes::new(size, log2),
            data,
            taken: RangeSet::new(),
            grants: Grants::default(),
            accepted: false,
            checking: false,
            again: 0,
            ended: false,
            comparison: None,
            plan: None,
            whole: RangeSet::new(),
        };
        self.files.insert(id, f);
        if compared {
            self.compare(id);
        }
        self.check(id);
    }
    fn direct_job(&self, shown: &RelPath) -> Direct {
        let (on, progress) = (AtomicBool::new(true), self.progress.clone());
        Direct { on, shown: shown.as_bytes().to_vec(), progress }
    }
    /// Gives readers work while memory lasts.
    fn read(&mut self, link: &mut Link) {
        while let Some(&p) = self.todo.front() {
            let Some(f) = self.files.get(&p.file).filter(|f| !f.ended || p.send) else {
                self.todo.pop_front();
                continue;
            };
            let slack = if f.direct.is_some() { lhio::direct::ALIGN as u64 } else { 0 };
            let need = f.piece() + slack;
            if self.staged + need > self.staged_max {
                if self.staged > 0 || need > MIN_PIECE {
                    // One piece at least is read, but a large one only when there is memory for it.
                    self.staged_max = self.limits.data(self.ahead.wanted().max(need), self.staged);
                }
                if self.staged + need > self.staged_max && (self.staged > 0 || need > MIN_PIECE) {
                    return;
                }
            }
            let same = self.spare.iter().rposition(|b| b.len() as u64 == need);
            // Where address space ends, fewer pieces are read at a time; one must do.
            let left = if self.staged > 0 { lhio::memory::HEADROOM } else { LEAST_LEFT };
            let room = match same {
                Some(_) => Ok(()),
                None => lhio::memory::has_room(self.making + need, left),
            };
            if let Err(e) = room {
                if self.staged > 0 {
                    return;
                }
                let error = FileError::io(&f.shown, "get memory to send it", &e);
                self.todo.pop_front();
                self.give_up(p.file, error, link);
                continue;
            }
            self.todo.pop_front();
            self.staged += need;
            let mut buffer = same.map(|i| self.spare.swap_remove(i)).unwrap_or_default();
            let new = need - buffer.len() as u64;
            self.making += new;
            let (file, extents, direct) = (f.file.clone(), f.extents.clone(), f.direct.clone());
            let (log2, size, shown) = (f.log2, f.info.size, f.shown.clone());
            // What did not match is sent as it is.
            let again = f.whole.contains_all(p.first..p.first + p.count);
            let plan = f.plan.clone().filter(|_| !again);
            let shared = Some(self.judge.shared.clone()).filter(|s| p.send && !again && s.packs());
            self.jobs.submit(Report::Died, move || {
                buffer.resize(need as usize, 0);
                let read =
                    match &direct {
                        Some(d) => read::direct(&file, p, log2, size, buffer, d),
                        None => read::chunks(&file, p, log2, size, &extents, &mut buffer)
                            .map(|hashes| Ready { hashes, buffer, lead: 0, packed: Vec::new() }),
                    };
                match read {
                    Ok(mut ready) => {
                        if let Some(s) = shared {
                            read::pack_chunks(&mut ready, p, (log2, size), (&extents, plan.as_deref()), &s);
                        }
                        Report::Read { piece: p, ready, new }
                    }
                    Err(e) => {
                        let error = FileError::io(&shown, "read", &e);
                        Report::ReadFailed { piece: p, buffer: need, new, error }
                    }
                }
            });
        }
    }
    fn report(&mut self, r: Report, a: &mut Adapter, link: &mut Link) -> Result<(), Fatal> {
        match r {
            Report::Packed(p) => {
                self.packs -= 1;
                data_reduction::packed(&self.progress, p.before, p.after);
                p.messages.into_iter().for_each(|m| link.send(m));
            }
            Report::Read { piece, ready, new } => {
                self.making = self.making.saturating_sub(new);
                self.write(piece, ready, a, link);
            }
            Report::ReadFailed { piece, buffer, new, error } => {
                self.making = self.making.saturating_sub(new);
                self.staged = self.staged.saturating_sub(buffer);
                self.give_up(piece.file, error, link);
            }
            Report::Checked { file, result } => match result {
                Ok(hash) => {
                    if let Some(f) = self.files.get_mut(&file) {
                        f.ended = true;
                        send(link, &[Record::End { file, hash }]);
                    }
                }
                Err(e) => self.give_up(file, e, link),
            },
            Report::Cut { file, result } => self.was_cut(file, *result, link),
            Report::Matched { file, copies } => self.matched(file, copies, link),
            Report::Died => return Err(Fatal::Local("a reading thread failed; please report this".into())),
        }
        Ok(())
    }
    /// A file that cannot be sent to its end; the others go on.
    fn give_up(&mut self, id: u64, e: FileError, link: &mut Link) {
        if let Some(f) = self.files.remove(&id) {
            self.forget_comparison(&f);
            send(link, &[Record::Drop { file: id, cause: e.cause as u8, text: e.text.clone() }]);
            self.progress.fail(e);
        }
    }
    /// Queues the Writes of a piece and, behind them, its hashes. False when the adapter is full.
    fn write(
        &mut self,
        p: Piece,
        Ready { hashes, buffer, lead, packed }: Ready,
        a: &mut Adapter,
        link: &mut Link,
    ) -> bool {
        let Some(f) = self.files.get_mut(&p.file) else {
            self.returned(buffer); // failed meanwhile
            return true;
        };
        let start = p.first << f.log2;
        let end = ((p.first + p.count) << f.log2).min(f.info.size);
        let mut hashed_only = None;
        let mut saved = (0, 0);
        if p.send {
            let Some((base, rkey)) = f.grants.find(start..end) else {
                self.returned(buffer); // the sink took its memory back: it has all it wanted
                return true;
            };
            let again = f.whole.contains_all(p.first..p.first + p.count);
            let plan = f.plan.as_deref().filter(|_| !again);
            let mut pieces: Vec<(u64, u64, Target)> = Vec::new();
            for (r, len) in read::runs(p.first, &packed, hashes.len()) {
                let bytes = r.start << f.log2..(r.end << f.log2).min(f.info.size);
                let mut put = |at: u64, len: u64| {
                    pieces.push((lead + at - start, len, Target { rkey, offset: at - base }));
                };
                let data = read::to_send(&f.extents, plan, bytes.clone());
                if len > 0 {
                    put(bytes.start, len);
                    saved.0 += data.iter().map(|r| r.end - r.start).sum::<u64>();
                    saved.1 += len;
                } else {
                    data.into_iter().for_each(|r| put(r.start, r.end - r.start));
                }
            }
            if let Err(b) = link.write(a, buffer, &pieces) {
                self.stalled.push_front((p, Ready { hashes, buffer: b, lead, packed }));
                return false;
            }
        } else {
            self.staged = self.staged.saturating_sub(buffer.len() as u64);
            hashed_only = Some(buffer);
        }
        for (i, h) in (p.first..).zip(&hashes) {
            f.left -= u64::from(f.hashes.get(i) == HOLE);
            f.hashes.set(i, *h);
        }
        send(link, &read::records(p, &packed, &hashes));
        if saved.0 > 0 {
            data_reduction::packed(&self.progress, saved.0, saved.1);
        }
        self.check(p.file);
        if let Some(b) = hashed_only {
            self.keep(b);
        }
        true
    }
    /// When all hashes were sent: looks once more whether the file is still the one that was offered.
    fn check(&mut self, id: u64) {
        let Some(f) = self.files.get_mut(&id) else { return };
        if f.left > 0 || f.checking {
            return;
        }
        f.checking = true;
        let (file, info, hashes, shown) = (f.file.clone(), f.info, f.hashes.clone(), f.shown.clone());
        self.jobs.submit(Report::Died, move || {
            let result = match Info::of_file(&file) {
                Ok(now) if read::unchanged(&now, &info) => {
                    hashes.root().ok_or_else(|| FileError::new(&shown, Cause::Other, "cannot be hashed"))
                }
                Ok(_) => Err(FileError::new(&shown, Cause::Changed, "changed while it was sent")),
                Err(e) => Err(FileError::io(&shown, "look at", &e)),
            };
            Report::Checked { file: id, result }
        });
    }
    /// Whether a thread reads, walks or is about to.
    pub fn is_working(&self) -> bool {
        self.jobs.outstanding() > 0 || !self.fed && self.walk.is_working()
    }
    /// Whether a thread reads or is about to.
    #[cfg(test)]
    pub fn reading(&self) -> bool {
        self.jobs.outstanding() > 0
    }
    /// Bytes read and not acknowledged, and how many there may be.
    #[cfg(test)]
    pub fn memory(&self) -> (u64, u64) {
        (self.staged, self.staged_max)
    }
    #[cfg(test)]
    pub fn offered(&self) -> u64 {
        self.next_file
    }
    /// Ends the threads; nothing is sent any more.
    pub fn close(&mut self) {
        self.jobs.cancel();
        (self.listing, self.answers, self.scan, self.held) = (None, None, None, None);
    }
}

/// Chunks `r` of a file in pieces for one job each.
fn split(file: u64, r: Range<u64>, f: &Outgoing, send: bool) -> impl Iterator<Item = Piece> + use<> {
    let step = f.piece() >> f.log2;
    (r.start..r.end).step_by(step as usize).map(move |first| Piece {
        file,
        first,
        count: step.min(r.end - first),
        send,
    })
}

/// Queues records as one message.
pub(crate) fn send(link: &mut Link, records: &[Record<'_>]) {
    let mut m = Vec::new();
    records.iter().for_each(|r| put(&mut m, r));
    link.send(m);
}
