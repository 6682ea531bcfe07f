//! The source's part of a delta: cuts its file while the sink lists its own, and says what is to be copied.

use super::read::{self, Piece};
use super::{Outgoing, Report, Source, send};
use crate::delta::{Copied, Cut, Cutter, Listed, Listing, Plan, aim, fits, most_pieces};
use crate::error::FileError;
use crate::hash::{Digest, HOLE};
use crate::hashes::Hashes;
use crate::link::Link;
use crate::proto::{MAX_COPIES, MAX_HASHES, Record};
use crate::session::Fatal;
use crate::source::overlapping;
use base::RangeSet;
use std::ops::Range;
use std::sync::Arc;

/// Files that are compared at a time, and jobs that cut them.
const MAX_COMPARED: usize = 16;
const MAX_CUTTING: usize = 2;
/// Bytes that one job cuts, at least one chunk.
const STEP: u64 = 4 << 20;
/// Memory for a piece: of this file, and of the other one in a list and a table.
const EACH_PIECE: u64 = 32 + 32 + 48;

/// A file that is compared with what is at the destination.
pub(super) struct Comparison {
    listing: Listing,
    listed: bool,
    /// `None` while a job has it.
    cutter: Option<Box<Cutter>>,
    buffer: Vec<u8>,
    pieces: Vec<Cut>,
    /// The first chunk that was not cut.
    next: u64,
    is_cut: bool,
    /// Hashes of its chunks, which come with the cuts.
    hashes: Hashes,
    /// Chunks that an earlier attempt left.
    have: RangeSet,
    /// Memory taken for it.
    noted: u64,
}

/// What one job has cut.
pub(super) struct Cuts {
    first: u64,
    hashes: Vec<Digest>,
    pieces: Vec<Cut>,
    cutter: Box<Cutter>,
    buffer: Vec<u8>,
}

impl Source {
    /// Whether a file that exists at the destination is to be compared: yes, no, or not now (`None`).
    pub(super) fn may_compare(&mut self, size: u64) -> Option<bool> {
        if !self.judge.deltas() || !fits(size) {
            return Some(false);
        }
        let others = self.files.values().filter(|f| f.comparison.is_some()).count();
        if others >= MAX_COMPARED {
            return None;
        }
        if self.limits.note(memory(size)) {
            return Some(true);
        }
        // Where there is no memory even for one, it is sent as a whole.
        if others > 0 { None } else { Some(false) }
    }
    /// Begins to compare a file that was offered; [`may_compare`](Self::may_compare) has taken memory for it.
    pub(super) fn compare(&mut self, id: u64) {
        let Some(f) = self.files.get_mut(&id) else { return };
        let size = f.info.size;
        f.comparison = Some(Box::new(Comparison {
            listing: Listing::new(most_pieces(size)),
            listed: false,
            cutter: Some(Box::new(Cutter::new(aim(size)))),
            buffer: Vec::new(),
            pieces: Vec::new(),
            next: 0,
            is_cut: false,
            hashes: Hashes::new(size, f.log2),
            have: RangeSet::new(),
            noted: memory(size),
        }));
        self.compared.push_back(id);
    }
    /// Gives workers files to cut.
    pub(super) fn cut(&mut self) {
        while self.cutting < MAX_CUTTING
            && let Some(id) = self.compared.pop_front()
        {
            let Some(f) = self.files.get_mut(&id) else { continue };
            let Some((p, last, c)) = next_cut(id, f) else { continue };
            let Some(mut cutter) = c.cutter.take() else { continue };
            let mut buffer = std::mem::take(&mut c.buffer);
            let (file, extents, shown) = (f.file.clone(), f.extents.clone(), f.shown.clone());
            let (log2, size, shared) = (f.log2, f.info.size, self.judge.shared.clone());
            self.cutting += 1;
            self.jobs.submit(Report::Died, move || {
                let bytes = p.first << log2..((p.first + p.count) << log2).min(size);
                let len = (bytes.end - bytes.start) as usize;
                buffer.resize(buffer.len().max(len), 0);
                let cut = || -> std::io::Result<(Vec<Digest>, Vec<Cut>)> {
                    let hashes = read::chunks(&file, p, log2, size, &extents, &mut buffer[..len])?;
                    let mut pieces = Vec::new();
                    for e in overlapping(&extents, bytes.clone()) {
                        let part = (e.start - bytes.start) as usize..(e.end - bytes.start) as usize;
                        cutter.feed(e.start, &buffer[part], &mut pieces);
                    }
                    if last {
                        cutter.end(&mut pieces);
                    }
                    Ok((hashes, pieces))
                };
                let result = shared.cutting.measure(len as u64, cut);
                let result = result.map_err(|e| FileError::io(&shown, "read", &e));
                let cuts = |(hashes, pieces)| Cuts { first: p.first, hashes, pieces, cutter, buffer };
                Report::Cut { file: id, result: Box::new(result.map(cuts)) }
            });
        }
    }
    pub(super) fn was_cut(&mut self, id: u64, r: Result<Cuts, FileError>, link: &mut Link) {
        self.cutting -= 1;
        let cuts = match r {
            Ok(c) => c,
            Err(e) => return self.give_up(id, e, link),
        };
        let Some(f) = self.files.get_mut(&id) else { return };
        let Some(c) = &mut f.comparison else { return };
        for (n, h) in (cuts.first..).zip(&cuts.hashes) {
            c.hashes.set(n, *h);
        }
        c.next = cuts.first + cuts.hashes.len() as u64;
        (c.cutter, c.buffer) = (Some(cuts.cutter), cuts.buffer);
        // What is behind so many pieces is sent.
        let room = (most_pieces(f.info.size) as usize).saturating_sub(c.pieces.len());
        c.pieces.extend(cuts.pieces.into_iter().take(room));
        c.is_cut = !f.data.iter().any(|r| r.end > c.next);
        match c.is_cut {
            true => self.match_up(id),
            false => self.compared.push_back(id),
        }
    }
    /// Pieces of the sink's file.
    pub(super) fn listed(&mut self, id: u64, pieces: &[Listed], last: bool) -> Result<(), Fatal> {
        let Some(f) = self.file(id)? else { return Ok(()) };
        let accepted = f.accepted;
        let Some(c) = f.comparison.as_mut().filter(|c| accepted && !c.listed) else {
            return Err(Fatal::protocol("a list of a file that was not asked for"));
        };
        c.listing.add(pieces).map_err(Fatal::protocol)?;
        c.listed = last;
        // Nothing is there to compare with: what was cut of it is of no use.
        c.is_cut |= last && c.listing.is_empty();
        self.match_up(id);
        Ok(())
    }
    /// When both files are known: finds what they have in common.
    fn match_up(&mut self, id: u64) {
        let Some(c) = self.files.get_mut(&id).and_then(|f| f.comparison.as_mut()) else { return };
        if !c.listed || !c.is_cut {
            return;
        }
        c.listed = false; // once
        let (pieces, listing) =
            (std::mem::take(&mut c.pieces), std::mem::replace(&mut c.listing, Listing::new(0)));
        self.jobs.submit(Report::Died, move || Report::Matched { file: id, copies: listing.find(&pieces) });
    }
    /// Tells the sink what to copy, and the hashes of what it has then.
    pub(super) fn matched(&mut self, id: u64, copies: Vec<Copied>, link: &mut Link) {
        let Some(f) = self.files.get_mut(&id) else { return };
        let Some(c) = f.comparison.take() else { return };
        self.limits.forget(c.noted);
        for part in copies.chunks(MAX_COPIES) {
            send(link, &[Record::Copies { file: id, copies: part.to_vec(), last: false }]);
        }
        send(link, &[Record::Copies { file: id, copies: Vec::new(), last: true }]);
        let any = !copies.is_empty();
        let plan = Plan::new(copies);
        let mut known = RangeSet::new();
        if any {
            known = plan.covered(&f.extents, &f.data, f.log2, f.info.size);
            let bytes = plan.bytes_without(&c.have, f.log2, f.info.size);
            self.progress.update(|s| s.bytes_matched += bytes);
            f.plan = Some(Arc::new(plan));
        }
        // A file of which nothing is there was perhaps not cut to its end.
        let cut = |r: &Range<u64>| r.end <= c.next;
        let (hashed, unread): (Vec<_>, Vec<_>) = c.have.iter().partition(cut);
        for r in hashed {
            known.insert(r);
        }
        let ranges: Vec<Range<u64>> = known.iter().collect();
        for r in ranges {
            f.taken.insert(r.clone());
            tell(id, f, &c.hashes, r, link);
        }
        let pieces: Vec<Piece> = unread.into_iter().flat_map(|r| super::split(id, r, f, false)).collect();
        self.todo.extend(pieces);
        self.check(id);
    }
    /// What the sink says it has of an offered file, until it can be told its hashes.
    pub(super) fn keep_for_later(c: &mut Comparison, have: &[Range<u64>]) {
        for r in have {
            c.have.insert(r.clone());
        }
    }
    /// The sink could not use what was there of a chunk: all of it is sent.
    pub(super) fn sends_whole(&mut self, id: u64, chunk: u64) {
        let Some(f) = self.files.get_mut(&id) else { return };
        let r = chunk << f.log2..((chunk + 1) << f.log2).min(f.info.size);
        if f.whole.insert(chunk..chunk + 1) > 0
            && let Some(p) = &f.plan
        {
            let less = p.bytes(r);
            self.progress.update(|s| s.bytes_matched = s.bytes_matched.saturating_sub(less));
        }
    }
    /// What was taken for a comparison that is over.
    pub(super) fn forget_comparison(&mut self, f: &Outgoing) {
        self.limits.forget(f.comparison.as_ref().map_or(0, |c| c.noted));
    }
}

/// Memory that it takes to compare a file.
fn memory(size: u64) -> u64 {
    most_pieces(size) * EACH_PIECE
}

/// The next chunks of a file to be cut, and whether they are the last.
fn next_cut(id: u64, f: &mut Outgoing) -> Option<(Piece, bool, &mut Comparison)> {
    let c = f.comparison.as_deref_mut().filter(|c| !c.is_cut)?;
    let r = f.data.iter().find(|r| r.end > c.next)?;
    let first = r.start.max(c.next);
    let count = (STEP >> f.log2).max(1).min(r.end - first);
    let last = f.data.last().is_some_and(|l| l.end == first + count);
    Some((Piece { file: id, first, count, send: false }, last, c))
}

/// Sends the hashes of chunks that were read already.
fn tell(id: u64, f: &mut Outgoing, of: &Hashes, r: Range<u64>, link: &mut Link) {
    for first in r.clone().step_by(MAX_HASHES) {
        let end = (first + MAX_HASHES as u64).min(r.end);
        let hashes: Vec<Digest> = (first..end).map(|n| of.get(n)).collect();
        for (n, h) in (first..).zip(&hashes) {
            f.left -= u64::from(f.hashes.get(n) == HOLE);
            f.hashes.set(n, *h);
        }
        send(link, &[Record::Hashes { file: id, first, hashes }]);
    }
}
