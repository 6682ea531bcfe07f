//! Records about how files are put in place, about accounts, and what is said while a transfer runs.

use super::codec::{Put, Reader};
use super::decode::{account, entry, flag, meta, name};
use super::encode::{put_account, put_entry, put_meta, put_name};
use super::{AccountAnswer, LinkFrom, MAX_ACCOUNT, ProtoError, RATES, Record};
use crate::error::MAX_TEXT;
use crate::path::MAX_PATH;
use crate::placement::chmod::{AppliesTo, Class, MAX_CHANGES, ModeChange, Operation};
use crate::placement::{Chown, MAX_LINK_DESTS, Placement};
use base::Rate;
use lhio::accounts::Sort;

pub(super) const PLACEMENT: u8 = 80;
const ALTERNATE: u8 = 81;
const LINK_FROM: u8 = 82;
const ASK_ACCOUNT: u8 = 83;
const ACCOUNT: u8 = 84;
const NOTE: u8 = 85;
pub(super) const LIMIT: u8 = 86;

/// The type of one of these records, with its body in `b`.
pub(super) fn body(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::Placement(p) => {
            put_placement(b, p);
            PLACEMENT
        }
        Record::Alternate { folder, entry } => {
            b.push(*folder);
            put_entry(b, entry);
            ALTERNATE
        }
        Record::LinkFrom(l) => {
            put_name(b, &l.name);
            put_meta(b, &l.meta);
            b.push(l.folder);
            b.num(l.size);
            put_meta(b, &l.listed);
            b.push(u8::from(l.copy));
            LINK_FROM
        }
        Record::AskAccount { sort, account } => {
            put_sort(b, *sort);
            put_account(b, account);
            ASK_ACCOUNT
        }
        Record::Account(a) => {
            b.num(u64::from(a.id));
            b.push(u8::from(a.settable));
            ACCOUNT
        }
        Record::Note(text) => {
            b.blob(text.as_bytes());
            NOTE
        }
        Record::Limit(rate) => {
            b.num(rate.map_or(0, Rate::bytes_per_sec));
            LIMIT
        }
        _ => unreachable!("`encode` hands over only these"),
    }
}

/// Reads one of these records.
pub(super) fn record<'a>(t: u8, r: &mut Reader<'a>) -> Result<Record<'a>, ProtoError> {
    Ok(match t {
        PLACEMENT => Record::Placement(Box::new(read_placement(r)?)),
        ALTERNATE => Record::Alternate { folder: folder(r)?, entry: entry(r)? },
        LINK_FROM => {
            let (name, meta_of, folder, size) = (name(r)?, meta(r)?, folder(r)?, r.num()?);
            Record::LinkFrom(LinkFrom { name, meta: meta_of, folder, size, listed: meta(r)?, copy: flag(r)? })
        }
        ASK_ACCOUNT => Record::AskAccount { sort: sort(r)?, account: account(r)? },
        ACCOUNT => {
            let id = r.num_max(u64::from(u32::MAX - 1), "user or group")? as u32;
            Record::Account(AccountAnswer { id, settable: flag(r)? })
        }
        NOTE => Record::Note(r.text(MAX_TEXT)?),
        LIMIT => {
            let rate = Some(r.num()?).filter(|n| *n > 0).map(Rate::from_bytes_per_sec);
            if rate.is_some_and(|r| !RATES.contains(&r)) {
                return Err(ProtoError::Range("rate limit"));
            }
            Record::Limit(rate)
        }
        t => return Err(ProtoError::Type(t)),
    })
}

fn folder(r: &mut Reader<'_>) -> Result<u8, ProtoError> {
    let n = r.u8()?;
    if usize::from(n) < MAX_LINK_DESTS { Ok(n) } else { Err(ProtoError::Range("number of a folder")) }
}
pub(super) fn put_sort(b: &mut Vec<u8>, sort: Sort) {
    b.push(u8::from(sort == Sort::Group));
}
pub(super) fn sort(r: &mut Reader<'_>) -> Result<Sort, ProtoError> {
    Ok(if flag(r)? { Sort::Group } else { Sort::User })
}

fn put_placement(b: &mut Vec<u8>, p: &Placement) {
    b.num(p.chmod.len() as u64);
    for c in &p.chmod {
        b.push(c.applies_to as u8);
        b.push(c.operation as u8);
        b.num(u64::from(c.clear));
        b.num(u64::from(c.bits));
        b.push(u8::from(c.keep_x));
        b.push(c.copy_of.map_or(0, |class| 1 + class as u8));
    }
    for who in [&p.chown.user, &p.chown.group] {
        b.blob(who.as_deref().unwrap_or_default());
    }
    b.num(p.link_dest.len() as u64);
    p.link_dest.iter().for_each(|d| b.blob(d));
    b.blob(p.partial_dir.as_deref().unwrap_or_default());
}
fn read_placement(r: &mut Reader<'_>) -> Result<Placement, ProtoError> {
    let n = r.num_max(MAX_CHANGES as u64, "number of changes of permissions")?;
    let chmod = (0..n).map(|_| change(r)).collect::<Result<_, _>>()?;
    // Nobody has an empty name.
    let mut who = || {
        let name = r.blob(MAX_ACCOUNT, "name of a user or group")?.to_vec();
        if name.contains(&0) {
            return Err(ProtoError::Range("name of a user or group"));
        }
        Ok(Some(name).filter(|n| !n.is_empty()))
    };
    let chown = Chown { user: who()?, group: who()? };
    let n = r.num_max(MAX_LINK_DESTS as u64, "number of folders")?;
    let link_dest =
        (0..n).map(|_| Ok(r.blob(MAX_PATH, "folder")?.to_vec())).collect::<Result<_, ProtoError>>()?;
    let partial_dir = Some(r.blob(MAX_PATH, "folder")?.to_vec()).filter(|d| !d.is_empty());
    let p = Placement { chmod, chown, link_dest, partial_dir };
    p.check().map_err(|_| ProtoError::Range("folder"))?;
    Ok(p)
}
fn change(r: &mut Reader<'_>) -> Result<ModeChange, ProtoError> {
    let bad = ProtoError::Range("change of permissions");
    let applies_to = match r.u8()? {
        0 => AppliesTo::All,
        1 => AppliesTo::Folders,
        2 => AppliesTo::Files,
        _ => return Err(bad),
    };
    let operation = match r.u8()? {
        0 => Operation::Add,
        1 => Operation::Remove,
        2 => Operation::Set,
        _ => return Err(bad),
    };
    let clear = r.num_max(0o7777, "change of permissions")? as u32;
    let bits = r.num_max(0o7777, "change of permissions")? as u32;
    let keep_x = flag(r)?;
    let copy_of = match r.u8()? {
        0 => None,
        1 => Some(Class::User),
        2 => Some(Class::Group),
        3 => Some(Class::Other),
        _ => return Err(bad),
    };
    Ok(ModeChange { applies_to, operation, clear, bits, keep_x, copy_of })
}

// A record with all folders fits in a message.
const _: () = assert!((MAX_LINK_DESTS + 1) * (MAX_PATH + 4) + MAX_CHANGES * 10 + 1024 <= super::MAX_MESSAGE);

#[cfg(test)]
mod tests {
    use super::super::{Account, Entry, Kind, Meta, Name, decode, put};
    use super::*;
    use crate::path::RelPath;

    fn all() -> Vec<Record<'static>> {
        let name = Name { root: 1, path: RelPath::parse(b"a/b").unwrap() };
        let meta = Meta { mode: 0o644, secs: 7, nanos: 9 };
        let placement = Placement {
            chmod: crate::placement::chmod::parse("D755,Fgo-w,g=u,+X,u+s", 0o22).unwrap(),
            chown: Chown { user: Some(b"anna".to_vec()), group: None },
            link_dest: vec![b"../monday".to_vec(), b"/x".to_vec()],
            partial_dir: Some(b".partial".to_vec()),
        };
        let entry =
            Entry { root: 1, path: name.path.clone(), kind: Kind::File, size: 5, meta, hash: Some([3; 32]) };
        vec![
            Record::Placement(Box::default()),
            Record::Placement(Box::new(placement)),
            Record::Alternate { folder: 19, entry },
            Record::LinkFrom(LinkFrom { name, meta, folder: 3, size: 5, listed: meta, copy: true }),
            Record::AskAccount { sort: Sort::Group, account: Account { id: 5, name: b"x".to_vec() } },
            Record::Account(AccountAnswer { id: 1000, settable: false }),
            Record::Note("there is no such folder".into()),
            Record::Limit(None),
            Record::Limit(Some(Rate::from_bytes_per_sec(1_000_000))),
        ]
    }

    #[test]
    fn records_survive_the_wire_and_no_part_of_one_is_taken_for_it() {
        all().into_iter().for_each(crate::proto::tests::assert_survives_the_wire_whole);
    }

    #[test]
    fn the_seeds_of_the_fuzzer_are_such_records() {
        let names = [
            "placement_none",
            "placement",
            "alternate",
            "link_from",
            "ask_account",
            "account",
            "note",
            "no_limit",
            "limit",
        ];
        for (n, r) in names.into_iter().zip(all()) {
            let at = format!("{}/../../fuzz/seeds/mover_proto/{n}", env!("CARGO_MANIFEST_DIR"));
            let mut want = Vec::new();
            put(&mut want, &r);
            assert_eq!(std::fs::read(&at).unwrap(), want, "{n}");
        }
    }

    #[test]
    fn requests_beyond_limits_are_refused() {
        let refused = |r: &Record<'_>| {
            let mut m = Vec::new();
            put(&mut m, r);
            decode(&m).unwrap_err()
        };
        let folders = Placement { link_dest: vec![b"x".to_vec(); 21], ..Placement::default() };
        assert_eq!(refused(&Record::Placement(Box::new(folders))), ProtoError::Range("number of folders"));
        let partial = Placement { partial_dir: Some(b"../x".to_vec()), ..Placement::default() };
        assert_eq!(refused(&Record::Placement(Box::new(partial))), ProtoError::Range("folder"));
        let rate = Some(Rate::from_bytes_per_sec(10));
        assert_eq!(refused(&Record::Limit(rate)), ProtoError::Range("rate limit"));
    }
}
