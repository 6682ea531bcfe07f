//! Records of deltas and compression.

use super::codec::{Put, Reader};
use super::decode::flag;
use super::encode::ty;
use super::{MAX_COPIES, MAX_LISTED, MAX_MESSAGE, ProtoError, Record};
use crate::data_reduction::{DataReduction, ReductionMode};
use crate::delta::{Copied, Listed, MAX_PIECE};
use crate::hash::{MAX_CHUNK_LOG2, MAX_FILE, MIN_CHUNK_LOG2};

/// The addition to a Hello, unless it is what holds without.
pub(super) fn data_reduction(e: DataReduction) -> Option<Vec<u8>> {
    (e != DataReduction::default()).then(|| vec![e.deltas as u8, e.compress as u8])
}
pub(super) fn read_economy(r: &mut Reader<'_>) -> Result<DataReduction, ProtoError> {
    let mut choice = || ReductionMode::from_wire(r.u8()?).ok_or(ProtoError::Range("choice"));
    Ok(DataReduction { deltas: choice()?, compress: choice()? })
}

pub(super) fn body(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::AskBasis { file } => (b.num(*file), ty::ASK_BASIS).1,
        Record::Basis { file, pieces, last } => {
            b.num(*file);
            b.push(u8::from(*last));
            b.num(pieces.len() as u64);
            for p in pieces {
                b.num(p.gap);
                b.num(u64::from(p.len));
                b.extend_from_slice(&p.key);
            }
            ty::BASIS
        }
        Record::Copies { file, copies, last } => {
            b.num(*file);
            b.push(u8::from(*last));
            b.num(copies.len() as u64);
            // What is next to the last one in either file is a small number.
            let (mut at, mut from) = (0, 0);
            for c in copies {
                b.num(c.at - at);
                b.signed(c.from.wrapping_sub(from) as i64);
                b.num(c.len);
                (at, from) = (c.at + c.len, c.from + c.len);
            }
            ty::COPIES
        }
        Record::Packed { file, chunk, len, hash } => {
            for v in [*file, *chunk, *len] {
                b.num(v);
            }
            b.extend_from_slice(hash);
            ty::PACKED
        }
        Record::Zipped { len, frame } => {
            b.num(*len as u64);
            b.extend_from_slice(frame);
            ty::ZIPPED
        }
        _ => unreachable!("the others have been handled"),
    }
}

pub(super) fn record<'a>(t: u8, r: &mut Reader<'a>) -> Result<Record<'a>, ProtoError> {
    Ok(match t {
        ty::ASK_BASIS => Record::AskBasis { file: r.num()? },
        ty::BASIS => {
            let (file, last) = (r.num()?, flag(r)?);
            let n = r.num_max(MAX_LISTED as u64, "number of pieces")?;
            Record::Basis { file, last, pieces: (0..n).map(|_| piece(r)).collect::<Result<_, _>>()? }
        }
        ty::COPIES => {
            let (file, last) = (r.num()?, flag(r)?);
            let n = r.num_max(MAX_COPIES as u64, "number of copies")?;
            let (mut copies, mut ends) = (Vec::new(), (0, 0));
            for _ in 0..n {
                let c = copy(r, ends)?;
                ends = (c.at + c.len, c.from + c.len);
                copies.push(c);
            }
            Record::Copies { file, copies, last }
        }
        ty::PACKED => {
            let file = r.num()?;
            let chunk = r.num_max(MAX_FILE >> MIN_CHUNK_LOG2, "chunk")?;
            let len = r.num_max(1 << MAX_CHUNK_LOG2, "length of a frame")?;
            Record::Packed { file, chunk, len, hash: r.array()? }
        }
        ty::ZIPPED => {
            let len = r.num_max(MAX_MESSAGE as u64, "length of a message")? as usize;
            Record::Zipped { len, frame: r.bytes(r.0.len())? }
        }
        t => return Err(ProtoError::Type(t)),
    })
}

fn piece(r: &mut Reader<'_>) -> Result<Listed, ProtoError> {
    let gap = r.num_max(MAX_FILE, "gap")?;
    let len = r.num_max(u64::from(MAX_PIECE), "length of a piece")? as u32;
    if len == 0 {
        return Err(ProtoError::Range("length of a piece"));
    }
    Ok(Listed { gap, len, key: r.array()? })
}
/// Behind one that ends at these bytes of the new and the old file; within the largest file in both.
fn copy(r: &mut Reader<'_>, (at, from): (u64, u64)) -> Result<Copied, ProtoError> {
    let bad = ProtoError::Range("copy");
    let at = at.checked_add(r.num()?).ok_or(bad)?;
    let from = from.checked_add_signed(r.signed()?).ok_or(bad)?;
    let len = r.num()?;
    let within = |x: u64| x.checked_add(len).is_some_and(|end| end <= MAX_FILE);
    if len == 0 || !within(at) || !within(from) {
        return Err(bad);
    }
    Ok(Copied { at, from, len })
}

// The limits that keep a record within a message.
const _: () = assert!(MAX_LISTED * (8 + 4 + 16) + 32 <= MAX_MESSAGE);
const _: () = assert!(MAX_COPIES * (8 + 8 + 8) + 32 <= MAX_MESSAGE);
