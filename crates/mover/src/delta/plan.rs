//! Which parts of a new file are copied from the old one.

use super::Copied;
use crate::source::overlapping;
use base::RangeSet;
use std::ops::Range;

/// Copies, ascending and apart in the new file.
#[derive(Debug, Default)]
pub(crate) struct Plan(Vec<Copied>);

impl Plan {
    /// Of copies that were checked ([`Plan::may_follow`]).
    pub fn new(copies: Vec<Copied>) -> Plan {
        Plan(copies)
    }
    /// Whether a copy may stand behind `last` for a file of `size` bytes, out of one of `old` bytes.
    pub fn may_follow(last: Option<&Copied>, c: &Copied, size: u64, old: u64) -> bool {
        let apart = last.is_none_or(|l| l.end() <= c.at);
        apart && c.len > 0 && c.end() <= size && c.from.saturating_add(c.len) <= old
    }
    /// What is copied of a part of the new file.
    pub fn copied(&self, r: Range<u64>) -> impl Iterator<Item = Copied> + '_ {
        let first = self.0.partition_point(|c| c.end() <= r.start);
        self.0[first..].iter().take_while(move |c| c.at < r.end).map(move |c| {
            let (at, end) = (c.at.max(r.start), c.end().min(r.end));
            Copied { at, from: c.from + (at - c.at), len: end - at }
        })
    }
    /// Bytes that are copied of a part of the new file.
    pub fn bytes(&self, r: Range<u64>) -> u64 {
        self.copied(r).map(|c| c.len).sum()
    }
    /// Bytes that are copied in a file of `size` bytes, without the chunks of 2^`log2` bytes in `have`, which are there already.
    pub fn bytes_without(&self, have: &RangeSet, log2: u8, size: u64) -> u64 {
        let there: u64 = have.iter().map(|r| self.bytes(r.start << log2..(r.end << log2).min(size))).sum();
        self.bytes(0..size) - there
    }
    /// What of the data in a part of the new file is not copied, ascending.
    pub fn literals(&self, extents: &[Range<u64>], r: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        for e in overlapping(extents, r) {
            let mut at = e.start;
            for c in self.copied(e.clone()) {
                out.extend(Some(at..c.at).filter(|r| r.start < r.end));
                at = c.end();
            }
            out.extend(Some(at..e.end).filter(|r| r.start < r.end));
        }
        out
    }
    /// Chunks of 2^`log2` bytes with data, all of which is copied.
    pub fn covered(&self, extents: &[Range<u64>], data: &RangeSet, log2: u8, size: u64) -> RangeSet {
        let mut out = RangeSet::new();
        for c in data.iter().flatten() {
            if self.literals(extents, c << log2..((c + 1) << log2).min(size)).is_empty() {
                out.insert(c..c + 1);
            }
        }
        out
    }
}
