//! Bytes to records.

use super::codec::Reader;
use super::encode::{addition, ty};
use super::placement::{LIMIT, PLACEMENT};
use super::saving;
use super::{
    Account, Entry, Extra, Flags, Hello, Kind, LISTED_ACCOUNT, MAX_ACCOUNT, MAX_ADDITION, MAX_ADDITIONS,
    MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTES, MAX_EXTENTS, MAX_HASHES, MAX_LINK, MAX_LISTED_ACCOUNT_BYTES,
    MAX_LISTED_ACCOUNTS, MAX_MESSAGE, MAX_RANGES, MAX_REASONS, MAX_ROOTS, MAX_SMALL, Mapping, Meta, Name,
    Node, NotPreserved, Offer, Op, ProtoError, RATES, Record, Root, Sending, SourceCounts, Totals,
    application_text, cc_text,
};
use crate::data_reduction::DataReduction;
use crate::error::MAX_TEXT;
use crate::hash::{MAX_CHUNK_LOG2, MAX_FILE, MIN_CHUNK_LOG2};
use crate::keep::Keep;
use crate::path::{MAX_NAME, MAX_PATH, RelPath};
use base::Rate;
use lhio::accounts::Sort;
use std::ops::Range;

/// Most chunks of any file.
const MAX_CHUNKS: u64 = MAX_FILE >> MIN_CHUNK_LOG2;

/// Reads all records of a message.
///
/// # Errors
/// The first [`ProtoError`]; nothing of the message should then be carried out.
pub fn decode(message: &[u8]) -> Result<Vec<Record<'_>>, ProtoError> {
    if message.len() > MAX_MESSAGE {
        return Err(ProtoError::TooLong);
    }
    let mut m = Reader(message);
    let mut out = Vec::new();
    while !m.0.is_empty() {
        let t = m.u8()?;
        let body = m.blob(MAX_MESSAGE, "length")?;
        let mut r = Reader(body);
        out.push(record(t, &mut r)?);
        r.end()?;
    }
    Ok(out)
}

fn record<'a>(t: u8, r: &mut Reader<'a>) -> Result<Record<'a>, ProtoError> {
    Ok(match t {
        ty::HELLO => Record::Hello(hello(r)?),
        ty::WELCOME => Record::Welcome { version: r.num()? },
        ty::MAPPED => Record::Mapped(mapping(r)?),
        ty::ABORT => Record::Abort { refused: flag(r)?, text: r.text(MAX_TEXT)? },
        ty::ROOTS => Record::Roots(roots(r)?),
        ty::ENTRY => Record::Entry(entry(r)?),
        ty::LIST_END => Record::ListEnd,
        ty::LIST_CREDIT => Record::ListCredit(r.num_max(u64::from(u32::MAX), "credit")?),
        ty::DIR => Record::Dir { name: name(r)?, meta: meta(r)? },
        ty::LIST_FROM => Record::ListFrom(name(r)?),
        ty::TOUCH => Record::Touch { name: name(r)?, meta: meta(r)? },
        ty::LINK => {
            let (name, meta) = (name(r)?, meta(r)?);
            let target = r.blob(MAX_LINK, "link target")?;
            if target.is_empty() || target.contains(&0) {
                return Err(ProtoError::Range("link target"));
            }
            Record::Link { name, meta, target }
        }
        ty::SMALL => {
            let (name, meta, hash) = (name(r)?, meta(r)?, r.array()?);
            if r.0.len() > MAX_SMALL {
                return Err(ProtoError::Range("size of a small file"));
            }
            Record::Small { name, meta, hash, data: r.bytes(r.0.len())? }
        }
        ty::FAILED => Record::Failed { path: r.text(4 * MAX_PATH)?, cause: r.u8()?, text: r.text(MAX_TEXT)? },
        ty::PROGRESS => Record::Progress { files: r.num()?, bytes: r.num()?, resumed: r.num()? },
        ty::COUNTS => Record::Counts(counts(r)?),
        ty::EXTRA => Record::Extra(extra(r)?),
        ty::NODE => Record::Node { name: name(r)?, meta: meta(r)? },
        ty::HARD_LINK => Record::HardLink { name: name(r)?, to: name(r)? },
        ty::KEPT => Record::Kept { keep: keep(r)?, denied: keep(r)?, owners: r.num()?, attributes: r.num()? },
        ty::SOURCE_END => Record::SourceEnd,
        ty::SINK_END => Record::SinkEnd(totals(r)?),
        ty::COPY => Record::Copy(super::copy::read(r)?),
        _ => file_record(t, r)?,
    })
}

fn file_record<'a>(t: u8, r: &mut Reader<'a>) -> Result<Record<'a>, ProtoError> {
    Ok(match t {
        ty::OFFER => Record::Offer(offer(r)?),
        ty::ACCEPT => Record::Accept { file: r.num()?, have: ranges(r, MAX_RANGES, MAX_CHUNKS)? },
        ty::GRANT => {
            let file = r.num()?;
            let start = r.num_max(MAX_FILE, "start")?;
            let len = r.num_max(MAX_FILE - start, "length")?;
            Record::Grant { file, start, len, rkey: r.num_max(u64::from(u32::MAX), "rkey")? as u32 }
        }
        ty::HASHES => {
            let (file, first) = (r.num()?, r.num_max(MAX_CHUNKS, "chunk")?);
            let n = r.num_max(MAX_HASHES as u64, "number of hashes")?;
            // Checked against the record's length before room is made.
            if r.0.len() as u64 != n * 32 {
                return Err(ProtoError::Truncated);
            }
            let hashes = (0..n).map(|_| r.array()).collect::<Result<_, _>>()?;
            Record::Hashes { file, first, hashes }
        }
        ty::AGAIN => Record::Again { file: r.num()?, chunk: r.num_max(MAX_CHUNKS, "chunk")? },
        ty::END => Record::End { file: r.num()?, hash: r.array()? },
        ty::DROP => Record::Drop { file: r.num()?, cause: r.u8()?, text: r.text(MAX_TEXT)? },
        ty::DONE => {
            let file = r.num()?;
            let failed = if flag(r)? { Some((r.u8()?, r.text(MAX_TEXT)?)) } else { None };
            Record::Done { file, failed }
        }
        ty::ASK_BASIS..=ty::ZIPPED => saving::record(t, r)?,
        PLACEMENT..=LIMIT => super::placement::record(t, r)?,
        t => return super::select::record(t, r),
    })
}

pub(super) fn flag(r: &mut Reader<'_>) -> Result<bool, ProtoError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ProtoError::Range("flag")),
    }
}
pub(super) fn path(r: &mut Reader<'_>) -> Result<RelPath, ProtoError> {
    Ok(RelPath::parse(r.blob(MAX_PATH, "path")?)?)
}
fn root_index(r: &mut Reader<'_>) -> Result<u32, ProtoError> {
    Ok(r.num_max(MAX_ROOTS as u64 - 1, "root")? as u32)
}
pub(super) fn name(r: &mut Reader<'_>) -> Result<Name, ProtoError> {
    Ok(Name { root: root_index(r)?, path: path(r)? })
}
pub(super) fn meta(r: &mut Reader<'_>) -> Result<Meta, ProtoError> {
    let mode = r.num_max(0o7777, "mode")? as u32;
    let secs = r.signed()?;
    Ok(Meta { mode, secs, nanos: r.num_max(999_999_999, "nanoseconds")? as u32 })
}
pub(super) fn kind(r: &mut Reader<'_>) -> Result<Kind, ProtoError> {
    Kind::from_wire(r.u8()?).ok_or(ProtoError::Range("kind"))
}
pub(super) fn hello(r: &mut Reader<'_>) -> Result<Hello, ProtoError> {
    let version = r.num()?;
    let op = match r.u8()? {
        0 => Op::Put,
        1 => Op::Get,
        2 => Op::List,
        3 => Op::Change,
        4 => Op::Invite,
        5 => Op::Copy,
        _ => return Err(ProtoError::Range("operation")),
    };
    let flags = Flags::from_bits(r.num()?).ok_or(ProtoError::Range("flags"))?;
    let (transfer, into) = (r.array()?, flag(r)?);
    let n = r.num_max(MAX_ROOTS as u64, "number of paths")?;
    let (mut paths, mut contents) = (Vec::new(), Vec::new());
    for _ in 0..n {
        paths.push(path(r)?);
        contents.push(flag(r)?);
    }
    let (sending, link_targets, data_reduction, keep) = additions(r)?;
    Ok(Hello {
        version,
        op,
        flags,
        transfer,
        paths,
        into,
        contents,
        sending,
        link_targets,
        data_reduction,
        keep,
    })
}
/// Numbers ascend; one that this version does not know is passed over.
fn additions(r: &mut Reader<'_>) -> Result<(Sending, bool, DataReduction, Keep), ProtoError> {
    let n = r.num_max(MAX_ADDITIONS as u64, "number of additions")?;
    let (mut s, mut link_targets, mut last) = (Sending::default(), false, None);
    let (mut data_reduction, mut kept) = (DataReduction::default(), Keep::default());
    for _ in 0..n {
        let id = r.num()?;
        if last.is_some_and(|l| l >= id) {
            return Err(ProtoError::Range("order of additions"));
        }
        last = Some(id);
        let mut body = Reader(r.blob(MAX_ADDITION, "length of an addition")?);
        match id {
            addition::RATE_LIMIT => s.rate_limit = Some(rate(&mut body, "rate limit")?),
            addition::KNOWN_RATE => s.known_rate = Some(rate(&mut body, "known rate")?),
            addition::CC => {
                let text = body.bytes(body.0.len())?;
                if !cc_text(text) {
                    return Err(ProtoError::Range("congestion control"));
                }
                s.cc = Some(String::from_utf8_lossy(text).into_owned());
            }
            addition::QOS => {
                let text = core::str::from_utf8(body.bytes(body.0.len())?).ok();
                let qos = text.and_then(|t| t.parse().ok());
                s.qos = Some(qos.ok_or(ProtoError::Range("quality of service"))?);
            }
            addition::APPLICATION => {
                let text = core::str::from_utf8(body.bytes(body.0.len())?).ok();
                let text = text.filter(|t| application_text(t)).ok_or(ProtoError::Range("application"))?;
                s.application = Some(text.to_owned());
            }
            addition::DSCP => {
                s.dscp = Some(Some(body.u8()?).filter(|d| *d < 64).ok_or(ProtoError::Range("code point"))?);
            }
            addition::TELL => s.tell = true,
            addition::LINK_TARGETS => link_targets = true,
            addition::ECONOMY => data_reduction = saving::read_economy(&mut body)?,
            addition::KEEP => {
                let some = Some(keep(&mut body)?).filter(|k| !k.is_empty());
                kept = some.ok_or(ProtoError::Range("what is kept"))?;
            }
            _ => continue,
        }
        body.end()?;
    }
    Ok((s, link_targets, data_reduction, kept))
}
fn keep(r: &mut Reader<'_>) -> Result<Keep, ProtoError> {
    Keep::from_bits(r.num()?).ok_or(ProtoError::Range("what is kept"))
}
pub(super) fn account(r: &mut Reader<'_>) -> Result<Account, ProtoError> {
    // The largest number stands for none in the system's calls.
    let id = r.num_max(u64::from(u32::MAX - 1), "user or group")? as u32;
    let name = r.blob(MAX_ACCOUNT, "name of a user or group")?.to_vec();
    if name.contains(&0) {
        Err(ProtoError::Range("name of a user or group"))
    } else {
        Ok(Account { id, name })
    }
}
/// Name and value of an attribute.
type Attribute = (Vec<u8>, Vec<u8>);

fn attributes(r: &mut Reader<'_>) -> Result<Vec<Attribute>, ProtoError> {
    let n = r.num_max(MAX_ATTRIBUTES as u64, "number of attributes")?;
    let (mut all, mut bytes) = (Vec::<Attribute>::new(), 0);
    for _ in 0..n {
        let name = r.blob(MAX_NAME, "name of an attribute")?.to_vec();
        let value = r.blob(1 << 16, "value of an attribute")?.to_vec();
        bytes += name.len() + value.len() + 8;
        let bad = name.is_empty() || name.contains(&0) || bytes > MAX_ATTRIBUTE_BYTES;
        if bad || all.last().is_some_and(|l| l.0 >= name) {
            return Err(ProtoError::Range("attributes"));
        }
        all.push((name, value));
    }
    Ok(all)
}
/// Of access control lists; their names fit in a message with the lists.
fn accounts(r: &mut Reader<'_>) -> Result<Vec<(Sort, Account)>, ProtoError> {
    let n = r.num_max(MAX_LISTED_ACCOUNTS as u64, "number of users and groups")?;
    let one = |r: &mut Reader<'_>| Ok::<_, ProtoError>((super::placement::sort(r)?, account(r)?));
    let all = (0..n).map(|_| one(r)).collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = all.iter().map(|(_, a)| a.name.len() + LISTED_ACCOUNT).sum();
    if all.is_empty() || bytes > MAX_LISTED_ACCOUNT_BYTES {
        return Err(ProtoError::Range("users and groups"));
    }
    Ok(all)
}
fn node(r: &mut Reader<'_>) -> Result<Node, ProtoError> {
    let mut number = |what| r.num_max(u64::from(u32::MAX), what).map(|n| n as u32);
    let (format, device) = (number("format")?, (number("device")?, number("device")?));
    match format {
        0o020_000 | 0o060_000 => Ok(Node { format, device }),
        0o010_000 | 0o140_000 if device == (0, 0) => Ok(Node { format, device }),
        _ => Err(ProtoError::Range("format")),
    }
}
fn extra(r: &mut Reader<'_>) -> Result<Extra, ProtoError> {
    let there = r.num_max(127, "fields")?;
    let has = |bit: u32| there >> bit & 1 == 1;
    Ok(Extra {
        owner: has(0).then(|| account(r)).transpose()?,
        group: has(1).then(|| account(r)).transpose()?,
        attributes: has(2).then(|| attributes(r)).transpose()?,
        digest: has(3).then(|| r.array()).transpose()?,
        inode: has(4).then(|| r.num()).transpose()?,
        node: has(5).then(|| node(r)).transpose()?,
        accounts: if has(6) { accounts(r)? } else { Vec::new() },
    })
}
fn rate(r: &mut Reader<'_>, what: &'static str) -> Result<Rate, ProtoError> {
    Some(Rate::from_bytes_per_sec(r.num()?)).filter(|r| RATES.contains(r)).ok_or(ProtoError::Range(what))
}
fn mapping(r: &mut Reader<'_>) -> Result<Mapping, ProtoError> {
    let text = |r: &mut Reader<'_>| r.text(MAX_TEXT);
    let (qos, rule, class, algorithm) = (text(r)?, text(r)?, text(r)?, text(r)?);
    let rate = |r: &mut Reader<'_>| Ok::<_, ProtoError>(Some(r.num()?).filter(|n| *n > 0));
    let [guarantee, cap] = [rate(r)?, rate(r)?].map(|n| n.map(Rate::from_bytes_per_sec));
    let n = r.num_max(MAX_REASONS as u64, "number of reasons")?;
    let why = (0..n).map(|_| text(r)).collect::<Result<_, _>>()?;
    Ok(Mapping { qos, rule, class, algorithm, guarantee, cap, why })
}
fn roots(r: &mut Reader<'_>) -> Result<Vec<Root>, ProtoError> {
    let n = r.num_max(MAX_ROOTS as u64, "number of roots")?;
    let mut v = Vec::new();
    for _ in 0..n {
        let name = path(r)?;
        if name.components().count() > 1 {
            return Err(ProtoError::Range("name of a root"));
        }
        v.push(Root { name, kind: kind(r)? });
    }
    Ok(v)
}
pub(super) fn entry(r: &mut Reader<'_>) -> Result<Entry, ProtoError> {
    let (root, path, kind, size, meta) = (root_index(r)?, path(r)?, kind(r)?, r.num()?, meta(r)?);
    let hash = if flag(r)? { Some(r.array()?) } else { None };
    Ok(Entry { root, path, kind, size, meta, hash })
}
fn offer(r: &mut Reader<'_>) -> Result<Offer, ProtoError> {
    let (file, name, meta) = (r.num()?, name(r)?, meta(r)?);
    let size = r.num_max(MAX_FILE, "size")?;
    Ok(Offer { file, name, meta, size, extents: ranges(r, MAX_EXTENTS, size)? })
}
pub(super) fn totals(r: &mut Reader<'_>) -> Result<Totals, ProtoError> {
    Ok(Totals {
        files: r.num()?,
        dirs: r.num()?,
        links: r.num()?,
        bytes: r.num()?,
        resumed_bytes: r.num()?,
        repaired_chunks: r.num()?,
        failed: r.num()?,
    })
}
pub(super) fn counts(r: &mut Reader<'_>) -> Result<SourceCounts, ProtoError> {
    Ok(SourceCounts {
        files: r.num()?,
        bytes: r.num()?,
        same_files: r.num()?,
        same_bytes: r.num()?,
        not_preserved: NotPreserved {
            hard_links: r.num()?,
            extended_attributes: r.num()?,
            access_control_lists: r.num()?,
            owners: r.num()?,
            special_bits: r.num()?,
        },
    })
}
/// Ascending, none empty, none touching the one before, all below `end`.
fn ranges(r: &mut Reader<'_>, max: usize, end: u64) -> Result<Vec<Range<u64>>, ProtoError> {
    let n = r.num_max(max as u64, "number of ranges")?;
    let (mut v, mut at) = (Vec::new(), 0u64);
    for i in 0..n {
        let (gap, len) = (r.num()?, r.num()?);
        let start = at.checked_add(gap).ok_or(ProtoError::Range("range"))?;
        let stop = start.checked_add(len).ok_or(ProtoError::Range("range"))?;
        if len == 0 || (i > 0 && gap == 0) || stop > end {
            return Err(ProtoError::Range("range"));
        }
        v.push(start..stop);
        at = stop;
    }
    Ok(v)
}

// The limits that keep a record within a message.
const _: () = assert!(MAX_HASHES * 32 + 64 <= MAX_MESSAGE);
const _: () = assert!(MAX_SMALL + MAX_PATH + 128 <= MAX_MESSAGE);
// An Extra and the record that it belongs to.
const _: () = assert!(
    MAX_ATTRIBUTE_BYTES + MAX_LISTED_ACCOUNT_BYTES + 2 * MAX_ACCOUNT + 256 + MAX_SMALL + MAX_PATH + 128
        <= MAX_MESSAGE
);
const _: () = assert!(MAX_EXTENTS * 20 + MAX_PATH + 128 <= MAX_MESSAGE);
const _: () = assert!(MAX_CHUNKS >> (MAX_CHUNK_LOG2 - MIN_CHUNK_LOG2) <= 1 << 24);
