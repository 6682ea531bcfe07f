//! The sending side of a transfer, at the client (put) or the server (get).
//!
//! Walking, reading and hashing happen on threads; this state machine runs in the endpoint's loop, posts what they
//! deliver and bounds what they may have outstanding.

mod feeder;
mod not_carried;
mod read;
mod scan;
mod state;

pub(crate) use feeder::hash_file;
pub(crate) use read::{data_chunks, overlapping};

use crate::doing::Doing;
use crate::error::{Cause, FileError, NO_THREAD};
use crate::hash::{Digest, HOLE, chunk_log2};
use crate::hashes::Hashes;
use crate::limits::Limits;
use crate::link::{Link, Target};
use crate::path::RelPath;
use crate::pool::{Desk, Pool, Wake};
use crate::progress::{Progress, Snapshot};
use crate::proto::{Entry, Flags, Name, Offer, Record, Root, SourceCounts, put};
use crate::session::Fatal;
use crate::tree::Info;
use crate::walk::{Found, Start};
use base::RangeSet;
use feeder::{Feed, Feeder};
use not_carried::Counter;
use read::{Direct, Piece, Ready};
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
/// A sink whose user waits is told anew how much there is when so large a part more was left out.
const COUNTS_TOLD: u64 = 64;
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
/// Bytes read and not acknowledged: at least, and at most. The fewer they are, the more of them stay in the cache.
const MIN_STAGED: u64 = 32 << 20;
const MAX_STAGED: u64 = 2 << 30;
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
const MAX_AGAIN: u64 = 4;
/// Grants remembered for one file; the sink has far fewer open at a time.
const MAX_GRANTS: usize = 4096;

enum Report {
    Packed(Vec<Vec<u8>>),
    Read { piece: Piece, ready: Ready, new: u64 },
    ReadFailed { piece: Piece, buffer: u64, new: u64, error: FileError },
    Checked { file: u64, result: Result<Digest, FileError> },
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
    grants: BTreeMap<u64, (u64, u32)>,
    accepted: bool,
    checking: bool,
    again: u64,
    ended: bool,
    /// Read past the page cache, for as long as its disk takes that.
    direct: Option<Arc<Direct>>,
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
    desk: Desk<Report>,
    starts: Arc<Vec<Start>>,
    /// What the thread that walks is doing.
    walk: Doing,
    feeds: Receiver<Feed>,
    /// To that thread, until the listing has ended.
    listing: Option<Sender<Vec<Entry>>>,
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
    wanted: u64,
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
}

impl Source {
    /// Starts the walk and tells the sink what the roots are.
    pub fn new(
        pool: Arc<Pool>,
        wake: Wake,
        starts: Vec<Start>,
        roots: Vec<Root>,
        flags: Flags,
        progress: Progress,
        link: &mut Link,
    ) -> Result<Source, Fatal> {
        let desk = Desk::new(pool, wake.clone());
        let (out, feeds) = sync_channel(MAX_PACKS);
        let (listing, listed) = channel();
        let walk = Doing::default();
        let behind = Arc::new(Counter::new());
        let f = Feeder {
            starts: starts.clone(),
            flags,
            listing: listed,
            out,
            progress: progress.clone(),
            wake: wake.clone(),
            doing: walk.clone(),
            behind: behind.clone(),
        };
        feeder::spawn(f).map_err(|e| Fatal::Local(format!("cannot start a thread: {e}; {NO_THREAD}")))?;
        let scan = if flags.scan { Scan::start(starts.clone(), progress.clone(), wake) } else { None };
        send(link, &[Record::Roots(roots), Record::ListCredit(FIRST_LIST_CREDIT)]);
        Ok(Source {
            desk,
            starts: Arc::new(starts),
            walk,
            feeds,
            listing: Some(listing),
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
            wanted: MIN_STAGED,
            limits: Limits::alone(),
            making: 0,
            packs: 0,
            fed: false,
            ended: false,
            direct: false,
            behind,
            scan,
            counts_told: None,
        })
    }
    /// Has large files read past the page cache, where their file system can do that.
    pub fn directly(mut self, direct: bool) -> Source {
        self.direct = direct;
        self
    }
    /// Within a server's limits.
    pub fn within(mut self, limits: Limits) -> Source {
        self.limits = limits;
        self.staged_max = self.limits.data(self.wanted, 0);
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
    /// Adapts memory to the path: `bdp` bytes are in flight at its rate.
    pub fn fit(&mut self, bdp: u64) {
        let want = bdp.saturating_mul(2).saturating_add(8 << 20);
        self.wanted = self.wanted.max(want).clamp(MIN_STAGED, MAX_STAGED);
        self.staged_max = self.limits.data(self.wanted, self.staged);
    }
    /// Listed entries of one message.
    ///
    /// # Errors
    /// It was not asked for so many: what is listed and not looked at yet takes memory.
    pub fn entries(&mut self, e: Vec<Entry>) -> Result<(), Fatal> {
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
            Record::Accept { file, have } => self.accept(file, &have)?,
            Record::Grant { file, start, len, rkey } => self.grant(file, start, len, rkey)?,
            Record::Again { file, chunk } => self.again(file, chunk)?,
            Record::Done { file, failed } => self.done(file, failed, link)?,
            Record::Failed { path, cause, text } => {
                self.progress.fail(FileError { path, cause: Cause::from_wire(cause), text });
            }
            Record::Progress { files, bytes, resumed } => self.progress.confirmed(files, bytes, resumed),
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
            f.taken.insert(r.clone());
            pieces.extend(split(id, r.clone(), f, false));
        }
        self.todo.extend(pieces);
        Ok(())
    }
    fn grant(&mut self, id: u64, start: u64, len: u64, rkey: u32) -> Result<(), Fatal> {
        let mut pieces = Vec::new();
        let Some(f) = self.file(id)? else { return Ok(()) };
        if start & ((1 << f.log2) - 1) != 0 || len == 0 || start + len > f.info.size {
            return Err(Fatal::protocol("memory was granted for bytes outside of the file"));
        }
        if f.grants.len() >= MAX_GRANTS {
            f.grants.pop_first();
        }
        f.grants.insert(start, (len, rkey));
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
        if !f.data.contains_all(chunk..chunk + 1) || f.again > MAX_AGAIN * f.chunks() {
            return Err(Fatal::protocol("a chunk was asked for that was not sent, or too often"));
        }
        self.todo.push_front(Piece { file: id, first: chunk, count: 1, send: true });
        Ok(())
    }
    fn done(&mut self, id: u64, failed: Option<(u8, String)>, link: &mut Link) -> Result<(), Fatal> {
        self.file(id)?;
        let Some(f) = self.files.remove(&id) else { return Ok(()) };
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
        while let Some(r) = self.desk.poll() {
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
            && let Ok(f) = self.feeds.try_recv()
        {
            self.feed(f, link);
        }
        self.read(link);
        // What the sink lists behind the last name of the walk concerns nobody; it stops when it hears this.
        if self.fed && !self.ended && self.files.is_empty() && self.packs == 0 {
            let not_carried = self.behind.get();
            self.progress.update(|s| s.not_carried = not_carried);
            send(link, &[Record::Counts(self.counts()), Record::SourceEnd]);
            self.ended = true;
        }
        self.tell_counts(link);
        Ok(())
    }
    /// What was found so far.
    fn counts(&self) -> SourceCounts {
        let not_carried = self.behind.get();
        self.progress.with(|s| SourceCounts {
            files: s.files_total,
            bytes: s.bytes_total,
            same_files: s.files_skipped,
            same_bytes: s.bytes_skipped,
            not_carried,
        })
    }
    /// Tells a sink whose user waits how much there is, as soon as that is known, and then now and then how much of it is left out.
    fn tell_counts(&mut self, link: &mut Link) {
        let due = |s: &Snapshot| {
            let step = (s.files_total / COUNTS_TOLD).max(1);
            s.complete && self.counts_told.is_none_or(|told| s.files_skipped >= told + step)
        };
        if self.scan.is_some() && !self.ended && link.queued() == 0 && self.progress.with(due) {
            let counts = self.counts();
            self.counts_told = Some(counts.same_files);
            send(link, &[Record::Counts(counts)]);
        }
    }
    fn feed(&mut self, f: Feed, link: &mut Link) {
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
            Feed::End => self.fed = true,
            Feed::Pack(p) => {
                self.packs += 1;
                let (starts, progress, behind) =
                    (self.starts.clone(), self.progress.clone(), self.behind.clone());
                self.desk.submit(Report::Died, move || {
                    Report::Packed(read::pack(&starts, &p, &progress, &behind))
                });
            }
            Feed::Large { found, file, extents } => self.offer(found, file, extents, link),
        }
    }
    fn offer(&mut self, found: Found, file: File, extents: Vec<Range<u64>>, link: &mut Link) {
        let id = self.next_file;
        self.next_file += 1;
        let size = found.info.size;
        let log2 = chunk_log2(size);
        let name = Name { root: found.root, path: found.path.clone() };
        let offer = Offer { file: id, name, meta: found.info.meta, size, extents: extents.clone() };
        send(link, &[Record::Offer(offer)]);
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
            grants: BTreeMap::new(),
            accepted: false,
            checking: false,
            again: 0,
            ended: false,
        };
        self.files.insert(id, f);
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
                    self.staged_max = self.limits.data(self.wanted.max(need), self.staged);
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
            self.desk.submit(Report::Died, move || {
                buffer.resize(need as usize, 0);
                let read =
                    match &direct {
                        Some(d) => read::direct(&file, p, log2, size, buffer, d),
                        None => read::chunks(&file, p, log2, size, &extents, &mut buffer)
                            .map(|hashes| Ready { hashes, buffer, lead: 0 }),
                    };
                match read {
                    Ok(ready) => Report::Read { piece: p, ready, new },
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
            Report::Packed(messages) => {
                self.packs -= 1;
                messages.into_iter().for_each(|m| link.send(m));
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
            Report::Died => return Err(Fatal::Local("a reading thread failed; please report this".into())),
        }
        Ok(())
    }
    /// A file that cannot be sent to its end; the others go on.
    fn give_up(&mut self, id: u64, e: FileError, link: &mut Link) {
        if self.files.remove(&id).is_some() {
            send(link, &[Record::Drop { file: id, cause: e.cause as u8, text: e.text.clone() }]);
            self.progress.fail(e);
        }
    }
    /// Queues the Writes of a piece and, behind them, its hashes. False when the adapter is full.
    fn write(
        &mut self,
        p: Piece,
        Ready { hashes, buffer, lead }: Ready,
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
        if p.send {
            let grant = f.grants.range(..=start).next_back().filter(|(s, (len, _))| end <= *s + len);
            let Some((&base, &(_, rkey))) = grant else {
                self.returned(buffer); // the sink took its memory back: it has all it wanted
                return true;
            };
            let pieces: Vec<(u64, u64, Target)> = overlapping(&f.extents, start..end)
                .map(|e| (lead + e.start - start, e.end - e.start, Target { rkey, offset: e.start - base }))
                .collect();
            if let Err(b) = link.write(a, buffer, &pieces) {
                self.stalled.push_front((p, Ready { hashes, buffer: b, lead }));
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
        send(link, &[Record::Hashes { file: p.file, first: p.first, hashes }]);
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
        self.desk.submit(Report::Died, move || {
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
    pub fn works(&self) -> bool {
        self.desk.outstanding() > 0 || !self.fed && self.walk.works()
    }
    /// Whether a thread reads or is about to.
    #[cfg(test)]
    pub fn reading(&self) -> bool {
        self.desk.outstanding() > 0
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
        self.desk.cancel();
        (self.listing, self.scan) = (None, None);
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
