//! Records to bytes.

use super::codec::Put;
use super::saving;
use super::{Account, Entry, Extra, Hello, Mapping, Meta, Name, Offer, Record, SourceCounts, Totals};
use crate::path::RelPath;
use base::Rate;
use std::ops::Range;

/// Record types on the wire.
pub(super) mod ty {
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const ABORT: u8 = 3;
    pub const ROOTS: u8 = 4;
    pub const ENTRY: u8 = 5;
    pub const LIST_END: u8 = 6;
    pub const LIST_CREDIT: u8 = 7;
    pub const DIR: u8 = 8;
    pub const LINK: u8 = 9;
    pub const SMALL: u8 = 10;
    pub const OFFER: u8 = 11;
    pub const ACCEPT: u8 = 12;
    pub const GRANT: u8 = 13;
    pub const HASHES: u8 = 14;
    pub const AGAIN: u8 = 15;
    pub const END: u8 = 16;
    pub const DROP: u8 = 17;
    pub const DONE: u8 = 18;
    pub const FAILED: u8 = 19;
    pub const PROGRESS: u8 = 20;
    pub const SOURCE_END: u8 = 21;
    pub const SINK_END: u8 = 22;
    pub const TOUCH: u8 = 23;
    pub const MAPPED: u8 = 24;
    pub const COUNTS: u8 = 25;
    pub const LIST_FROM: u8 = 26;
    pub const ASK_BASIS: u8 = 40;
    pub const BASIS: u8 = 41;
    pub const COPIES: u8 = 42;
    pub const PACKED: u8 = 43;
    pub const ZIPPED: u8 = 44;
    pub const EXTRA: u8 = 50;
    pub const NODE: u8 = 51;
    pub const HARD_LINK: u8 = 52;
    pub const KEPT: u8 = 53;
    pub const COPY: u8 = 70;
}

/// Additions to a Hello.
pub(super) mod addition {
    pub const RATE_LIMIT: u64 = 1;
    pub const CC: u64 = 2;
    pub const KNOWN_RATE: u64 = 3;
    pub const QOS: u64 = 4;
    pub const APPLICATION: u64 = 5;
    pub const DSCP: u64 = 6;
    pub const TELL: u64 = 7;
    pub const LINK_TARGETS: u64 = 8;
    pub const ECONOMY: u64 = 20;
    pub const KEEP: u64 = 32;
}

/// The length stands in front of the body, so that is built first; only `Small` bodies are long, and theirs is
/// computed instead.
pub(super) fn put(out: &mut Vec<u8>, r: &Record<'_>) {
    if let Record::Small { name, meta, hash, data } = r {
        let mut head = Vec::with_capacity(name.path.as_bytes().len() + 64);
        put_name(&mut head, name);
        put_meta(&mut head, meta);
        head.extend_from_slice(hash);
        out.push(ty::SMALL);
        out.num((head.len() + data.len()) as u64);
        out.extend_from_slice(&head);
        out.extend_from_slice(data);
        return;
    }
    let mut b = Vec::with_capacity(64);
    let t = body(&mut b, r);
    out.push(t);
    out.blob(&b);
}

fn body(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::Hello(h) => hello(b, h),
        Record::Welcome { version } => (b.num(*version), ty::WELCOME).1,
        Record::Mapped(m) => mapping(b, m),
        Record::Abort { refused, text } => {
            b.push(u8::from(*refused));
            b.blob(text.as_bytes());
            ty::ABORT
        }
        Record::Roots(v) => {
            b.num(v.len() as u64);
            for r in v {
                put_path(b, &r.name);
                b.push(r.kind as u8);
            }
            ty::ROOTS
        }
        Record::Entry(e) => entry(b, e),
        Record::ListEnd => ty::LIST_END,
        Record::ListCredit(n) => (b.num(*n), ty::LIST_CREDIT).1,
        Record::ListFrom(name) => {
            put_name(b, name);
            ty::LIST_FROM
        }
        Record::Dir { .. }
        | Record::Touch { .. }
        | Record::Link { .. }
        | Record::Small { .. }
        | Record::Extra(_)
        | Record::Node { .. }
        | Record::HardLink { .. }
        | Record::Kept { .. } => thing(b, r),
        Record::Counts(c) => counts(b, c),
        Record::SourceEnd => ty::SOURCE_END,
        Record::SinkEnd(t) => totals(b, t),
        Record::Copy(m) => {
            super::copy::put(b, m);
            ty::COPY
        }
        Record::Failed { path, cause, text } => {
            b.blob(path.as_bytes());
            b.push(*cause);
            b.blob(text.as_bytes());
            ty::FAILED
        }
        Record::Progress { files, bytes, resumed } => {
            b.num(*files);
            b.num(*bytes);
            b.num(*resumed);
            ty::PROGRESS
        }
        Record::Select(_)
        | Record::Names(_)
        | Record::Delete(_)
        | Record::Deleted(_)
        | Record::Excluded(_)
        | Record::Change(_) => super::select::body(b, r),
        Record::Placement(_)
        | Record::Alternate { .. }
        | Record::LinkFrom(_)
        | Record::AskAccount { .. }
        | Record::Account(_)
        | Record::Note(_)
        | Record::Limit(_) => super::placement::body(b, r),
        _ => file_body(b, r),
    }
}

/// Records about what is at one name, and about what is kept of it.
fn thing(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::Dir { name, meta } => {
            put_name(b, name);
            put_meta(b, meta);
            ty::DIR
        }
        Record::Touch { name, meta } => {
            put_name(b, name);
            put_meta(b, meta);
            ty::TOUCH
        }
        Record::Link { name, meta, target } => {
            put_name(b, name);
            put_meta(b, meta);
            b.blob(target);
            ty::LINK
        }
        Record::Small { .. } => ty::SMALL, // written by `put`
        Record::Extra(x) => extra(b, x),
        Record::Node { name, meta } => {
            put_name(b, name);
            put_meta(b, meta);
            ty::NODE
        }
        Record::HardLink { name, to } => {
            put_name(b, name);
            put_name(b, to);
            ty::HARD_LINK
        }
        Record::Kept { keep, denied, owners, attributes } => {
            [keep.bits(), denied.bits(), *owners, *attributes].into_iter().for_each(|v| b.num(v));
            ty::KEPT
        }
        _ => file_body(b, r),
    }
}

/// Records about one large file begin with its number.
fn file_body(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::Offer(o) => offer(b, o),
        Record::Accept { file, have } => {
            b.num(*file);
            put_ranges(b, have);
            ty::ACCEPT
        }
        Record::Grant { file, start, len, rkey } => {
            for v in [*file, *start, *len, u64::from(*rkey)] {
                b.num(v);
            }
            ty::GRANT
        }
        Record::Hashes { file, first, hashes } => {
            for v in [*file, *first, hashes.len() as u64] {
                b.num(v);
            }
            hashes.iter().for_each(|h| b.extend_from_slice(h));
            ty::HASHES
        }
        Record::Again { file, chunk } => {
            b.num(*file);
            b.num(*chunk);
            ty::AGAIN
        }
        Record::End { file, hash } => {
            b.num(*file);
            b.extend_from_slice(hash);
            ty::END
        }
        Record::Drop { file, cause, text } => {
            b.num(*file);
            b.push(*cause);
            b.blob(text.as_bytes());
            ty::DROP
        }
        Record::Done { file, failed } => {
            b.num(*file);
            b.push(u8::from(failed.is_some()));
            if let Some((cause, text)) = failed {
                b.push(*cause);
                b.blob(text.as_bytes());
            }
            ty::DONE
        }
        r => saving::body(b, r),
    }
}

pub(super) fn hello(b: &mut Vec<u8>, h: &Hello) -> u8 {
    b.num(h.version);
    b.push(h.op as u8);
    b.num(h.flags.bits());
    b.extend_from_slice(&h.transfer);
    b.push(u8::from(h.into));
    b.num(h.paths.len() as u64);
    for (i, p) in h.paths.iter().enumerate() {
        put_path(b, p);
        b.push(u8::from(h.contents.get(i).copied().unwrap_or(false)));
    }
    additions(b, h);
    ty::HELLO
}
/// Additions by ascending number, so that what a later version adds is passed over by this one.
fn additions(b: &mut Vec<u8>, h: &Hello) {
    let s = &h.sending;
    let number = |n: u64| {
        let mut v = Vec::new();
        v.num(n);
        v
    };
    let rate = |r: base::Rate| number(r.bytes_per_sec());
    let all = [
        (addition::RATE_LIMIT, s.rate_limit.map(rate)),
        (addition::CC, s.cc.as_ref().map(|c| c.as_bytes().to_vec())),
        (addition::KNOWN_RATE, s.known_rate.map(rate)),
        (addition::QOS, s.qos.map(|q| q.to_string().into_bytes())),
        (addition::APPLICATION, s.application.as_ref().map(|a| a.as_bytes().to_vec())),
        (addition::DSCP, s.dscp.map(|d| vec![d])),
        (addition::TELL, s.tell.then(Vec::new)),
        (addition::LINK_TARGETS, h.link_targets.then(Vec::new)),
        (addition::ECONOMY, saving::data_reduction(h.data_reduction)),
        (addition::KEEP, (!h.keep.is_empty()).then(|| number(h.keep.bits()))),
    ];
    b.num(all.iter().filter(|a| a.1.is_some()).count() as u64);
    for (id, body) in all {
        if let Some(body) = body {
            b.num(id);
            b.blob(&body);
        }
    }
}
/// The fields that are there follow a number with a bit for each.
fn extra(b: &mut Vec<u8>, x: &Extra) -> u8 {
    let there = [
        x.owner.is_some(),
        x.group.is_some(),
        x.attributes.is_some(),
        x.digest.is_some(),
        x.inode.is_some(),
        x.node.is_some(),
        !x.accounts.is_empty(),
    ];
    b.num((0..).zip(there).fold(0, |v, (i, on): (u32, bool)| v | u64::from(on) << i));
    x.owner.iter().chain(&x.group).for_each(|a| put_account(b, a));
    if let Some(all) = &x.attributes {
        b.num(all.len() as u64);
        all.iter().flat_map(|(n, v)| [n, v]).for_each(|part| b.blob(part));
    }
    b.extend_from_slice(x.digest.as_ref().map_or(&[][..], |d| d));
    x.inode.into_iter().for_each(|i| b.num(i));
    if let Some(n) = x.node {
        [n.format, n.device.0, n.device.1].into_iter().for_each(|v| b.num(u64::from(v)));
    }
    if !x.accounts.is_empty() {
        b.num(x.accounts.len() as u64);
        for (sort, a) in &x.accounts {
            super::placement::put_sort(b, *sort);
            put_account(b, a);
        }
    }
    ty::EXTRA
}
pub(super) fn put_account(b: &mut Vec<u8>, a: &Account) {
    b.num(u64::from(a.id));
    b.blob(&a.name);
}
fn mapping(b: &mut Vec<u8>, m: &Mapping) -> u8 {
    [&m.qos, &m.rule, &m.class, &m.algorithm].into_iter().for_each(|t| b.blob(t.as_bytes()));
    // A rate of 0 stands for none.
    [m.guarantee, m.cap].into_iter().for_each(|r| b.num(r.map_or(0, Rate::bytes_per_sec)));
    b.num(m.why.len() as u64);
    m.why.iter().for_each(|w| b.blob(w.as_bytes()));
    ty::MAPPED
}
fn entry(b: &mut Vec<u8>, e: &Entry) -> u8 {
    put_entry(b, e);
    ty::ENTRY
}
pub(super) fn put_entry(b: &mut Vec<u8>, e: &Entry) {
    b.num(u64::from(e.root));
    put_path(b, &e.path);
    b.push(e.kind as u8);
    b.num(e.size);
    put_meta(b, &e.meta);
    b.push(u8::from(e.hash.is_some()));
    b.extend_from_slice(e.hash.as_ref().map_or(&[][..], |h| h));
}
fn offer(b: &mut Vec<u8>, o: &Offer) -> u8 {
    b.num(o.file);
    put_name(b, &o.name);
    put_meta(b, &o.meta);
    b.num(o.size);
    put_ranges(b, &o.extents);
    ty::OFFER
}
pub(super) fn totals(b: &mut Vec<u8>, t: &Totals) -> u8 {
    for v in [t.files, t.dirs, t.links, t.bytes, t.resumed_bytes, t.repaired_chunks, t.failed] {
        b.num(v);
    }
    ty::SINK_END
}
pub(super) fn counts(b: &mut Vec<u8>, c: &SourceCounts) -> u8 {
    let n = &c.not_preserved;
    for v in [c.files, c.bytes, c.same_files, c.same_bytes] {
        b.num(v);
    }
    for v in [n.hard_links, n.extended_attributes, n.access_control_lists, n.owners, n.special_bits] {
        b.num(v);
    }
    ty::COUNTS
}
pub(super) fn put_path(b: &mut Vec<u8>, p: &RelPath) {
    b.blob(p.as_bytes());
}
pub(super) fn put_name(b: &mut Vec<u8>, n: &Name) {
    b.num(u64::from(n.root));
    put_path(b, &n.path);
}
pub(super) fn put_meta(b: &mut Vec<u8>, m: &Meta) {
    b.num(u64::from(m.mode));
    b.signed(m.secs);
    b.num(u64::from(m.nanos));
}
/// Ascending and apart, so differences are small numbers.
fn put_ranges(b: &mut Vec<u8>, v: &[Range<u64>]) {
    b.num(v.len() as u64);
    let mut at = 0;
    for r in v {
        b.num(r.start - at);
        b.num(r.end - r.start);
        at = r.end;
    }
}
