//! Records about what is selected, removed and changed.

use super::codec::{Put, Reader};
use super::decode::{flag, kind, meta, name, path};
use super::encode::{put_meta, put_name, put_path};
use super::{Change, Deleted, Extraneous, MAX_MESSAGE, ProtoError, Record};
use crate::path::MAX_PATH;
use crate::select::{
    Backup, Delete, Excluded, MAX_NAMES, MAX_PATTERN, MAX_RULES, MAX_RULES_BYTES, MAX_SUFFIX, Names, Rule,
    Select,
};

const SELECT: u8 = 60;
const NAMES: u8 = 61;
const DELETE: u8 = 62;
const DELETED: u8 = 63;
const EXCLUDED: u8 = 64;
const CHANGE: u8 = 65;

// A record with all rules fits in a message.
const _: () = assert!(MAX_RULES_BYTES + MAX_PATH + MAX_SUFFIX + 256 <= MAX_MESSAGE);

/// The type of one of these records, with its body in `b`.
pub(super) fn body(b: &mut Vec<u8>, r: &Record<'_>) -> u8 {
    match r {
        Record::Select(s) => select(b, s),
        Record::Names(names) => {
            b.num(names.len() as u64);
            for (p, whole) in names.iter() {
                put_path(b, p);
                b.push(u8::from(*whole));
            }
            NAMES
        }
        Record::Delete(e) => {
            put_name(b, &e.name);
            b.push(e.kind as u8);
            b.num(e.size);
            put_meta(b, &e.meta);
            DELETE
        }
        Record::Deleted(d) => {
            [d.removed, d.kept, d.over_limit, d.held_back].into_iter().for_each(|n| b.num(n));
            DELETED
        }
        Record::Excluded(l) => {
            [l.by_rules, l.by_ignore_files, l.by_size, l.by_destination, l.undeleted]
                .into_iter()
                .for_each(|n| b.num(n));
            EXCLUDED
        }
        Record::Change(c) => {
            let (verb, with) = match *c {
                Change::MakeFolder { parents } => (0, parents),
                Change::Remove { recursive } => (1, recursive),
                Change::Rename => (2, false),
            };
            b.push(verb);
            b.push(u8::from(with));
            CHANGE
        }
        _ => unreachable!("`encode` hands over only these"),
    }
}

/// Reads one of these records.
pub(super) fn record<'a>(t: u8, r: &mut Reader<'a>) -> Result<Record<'a>, ProtoError> {
    Ok(match t {
        SELECT => Record::Select(Box::new(read_select(r)?)),
        NAMES => {
            let n = r.num_max(MAX_NAMES as u64, "number of names")?;
            let mut all = Vec::new();
            for _ in 0..n {
                all.push((path(r)?, flag(r)?));
            }
            if all.windows(2).any(|w| w[0].0 >= w[1].0) {
                return Err(ProtoError::Range("order of names"));
            }
            Record::Names(Names::new(all))
        }
        DELETE => {
            let e = Extraneous { name: name(r)?, kind: kind(r)?, size: r.num()?, meta: meta(r)? };
            if e.name.path.is_root() {
                return Err(ProtoError::Range("name to delete"));
            }
            Record::Delete(e)
        }
        DELETED => Record::Deleted(Deleted {
            removed: r.num()?,
            kept: r.num()?,
            over_limit: r.num()?,
            held_back: r.num()?,
        }),
        EXCLUDED => Record::Excluded(Excluded {
            by_rules: r.num()?,
            by_ignore_files: r.num()?,
            by_size: r.num()?,
            by_destination: r.num()?,
            undeleted: r.num()?,
        }),
        CHANGE => Record::Change(match (r.u8()?, flag(r)?) {
            (0, parents) => Change::MakeFolder { parents },
            (1, recursive) => Change::Remove { recursive },
            (2, false) => Change::Rename,
            _ => return Err(ProtoError::Range("change")),
        }),
        t => return Err(ProtoError::Type(t)),
    })
}

/// A number or none: a flag, then the number.
fn put_option(b: &mut Vec<u8>, v: Option<u64>) {
    b.push(u8::from(v.is_some()));
    v.into_iter().for_each(|v| b.num(v));
}
fn option(r: &mut Reader<'_>) -> Result<Option<u64>, ProtoError> {
    if flag(r)? { r.num().map(Some) } else { Ok(None) }
}

fn select(b: &mut Vec<u8>, s: &Select) -> u8 {
    let flags = [s.no_ignore, s.one_file_system, s.update, s.existing, s.ignore_existing, s.size_only];
    b.num(flags.iter().enumerate().fold(0, |v, (i, on)| v | u64::from(*on) << i));
    put_option(b, s.max_size);
    put_option(b, s.min_size);
    b.num(s.modify_window);
    b.num(s.rules.len() as u64);
    for r in &s.rules {
        b.push(u8::from(r.include));
        b.blob(&r.pattern);
    }
    b.push(u8::from(s.delete.is_some()));
    if let Some(d) = &s.delete {
        b.push(u8::from(d.excluded));
        b.push(u8::from(d.ignore_errors));
        put_option(b, d.max);
    }
    b.push(u8::from(s.backup.is_some()));
    if let Some(x) = &s.backup {
        b.blob(&x.suffix);
        b.push(u8::from(x.dir.is_some()));
        x.dir.iter().for_each(|d| put_path(b, d));
    }
    SELECT
}
fn read_select(r: &mut Reader<'_>) -> Result<Select, ProtoError> {
    let flags = r.num_max(63, "selection")?;
    let on = |n: u32| flags >> n & 1 == 1;
    let (max_size, min_size, modify_window) = (option(r)?, option(r)?, r.num()?);
    let n = r.num_max(MAX_RULES as u64, "number of rules")?;
    let mut rules = Vec::new();
    for _ in 0..n {
        let (include, pattern) = (flag(r)?, r.blob(MAX_PATTERN, "pattern")?.to_vec());
        if pattern.is_empty() || pattern.contains(&0) {
            return Err(ProtoError::Range("pattern"));
        }
        rules.push(Rule { include, pattern });
    }
    let delete = match flag(r)? {
        true => Some(Delete { excluded: flag(r)?, ignore_errors: flag(r)?, max: option(r)? }),
        false => None,
    };
    let backup = match flag(r)? {
        true => {
            let suffix = r.blob(MAX_SUFFIX, "suffix")?;
            let dir = if flag(r)? { Some(path(r)?) } else { None };
            Some(Backup::new(suffix, dir).map_err(|_| ProtoError::Range("backup"))?)
        }
        false => None,
    };
    let s = Select {
        rules,
        no_ignore: on(0),
        one_file_system: on(1),
        max_size,
        min_size,
        names: None,
        update: on(2),
        existing: on(3),
        ignore_existing: on(4),
        size_only: on(5),
        modify_window,
        delete,
        backup,
        placement: Default::default(),
    };
    s.check().map_err(|_| ProtoError::Range("rules"))?;
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Meta, Name, decode, put};
    use super::*;
    use crate::path::RelPath;

    fn p(s: &str) -> RelPath {
        RelPath::parse(s.as_bytes()).unwrap()
    }
    fn all() -> Vec<Record<'static>> {
        let select = Select {
            rules: vec![Rule { include: true, pattern: b"*.o".to_vec() }],
            max_size: Some(7),
            update: true,
            size_only: true,
            modify_window: 2,
            delete: Some(Delete { excluded: true, ignore_errors: false, max: Some(0) }),
            backup: Some(Backup::new(b"~", Some(p("old"))).unwrap()),
            ..Select::default()
        };
        let meta = Meta { mode: 0o777, secs: -1, nanos: 5 };
        vec![
            Record::Select(Box::default()),
            Record::Select(Box::new(select)),
            Record::Names(Names::new(vec![(p("b"), true), (p("a/b"), false)])),
            Record::Delete(Extraneous {
                name: Name { root: 3, path: p("x") },
                kind: Kind::Link,
                size: 9,
                meta,
            }),
            Record::Deleted(Deleted { removed: 1, kept: 2, over_limit: 3, held_back: 4 }),
            Record::Excluded(Excluded { by_rules: 1, undeleted: 300, ..Excluded::default() }),
            Record::Change(Change::MakeFolder { parents: true }),
            Record::Change(Change::Remove { recursive: false }),
            Record::Change(Change::Rename),
        ]
    }

    #[test]
    fn records_survive_the_wire_and_no_part_of_one_is_taken_for_it() {
        all().into_iter().for_each(crate::proto::tests::assert_survives_the_wire_whole);
    }

    #[test]
    fn the_seeds_of_the_fuzzer_are_such_records() {
        for n in ["change", "deleted", "excluded", "names", "delete", "select"] {
            let at = format!("{}/../../fuzz/seeds/mover_proto/{n}", env!("CARGO_MANIFEST_DIR"));
            assert_eq!(decode(&std::fs::read(at).unwrap()).map(|r| r.len()), Ok(1), "{n}");
        }
    }

    #[test]
    fn requests_beyond_limits_are_refused() {
        let refused = |r: &Record<'_>| {
            let mut m = Vec::new();
            put(&mut m, r);
            decode(&m).unwrap_err()
        };
        let rules = |n: usize, len: usize| {
            let rules = vec![Rule { include: false, pattern: vec![b'x'; len] }; n];
            Record::Select(Box::new(Select { rules, ..Select::default() }))
        };
        let mut m = Vec::new();
        put(&mut m, &rules(MAX_RULES, 8));
        assert!(decode(&m).is_ok());
        assert_eq!(refused(&rules(MAX_RULES + 1, 1)), ProtoError::Range("number of rules"));
        assert_eq!(refused(&rules(1, MAX_PATTERN + 1)), ProtoError::Range("pattern"));
        assert_eq!(refused(&rules(1, 0)), ProtoError::Range("pattern"));
        assert_eq!(refused(&rules(200, 1000)), ProtoError::Range("rules"));
        let root = Name { root: 0, path: RelPath::root() };
        let e = Extraneous { name: root, kind: Kind::Dir, size: 0, meta: Meta::default() };
        assert_eq!(refused(&Record::Delete(e)), ProtoError::Range("name to delete"));
        let name = |i: usize| (p(&format!("n{i}")), false);
        let many = Names::new((0..=MAX_NAMES).map(name).collect());
        assert!(many.in_pieces(MAX_MESSAGE / 2).len() > 3);
        let mut all = Names::default();
        let r: Result<(), String> =
            many.in_pieces(MAX_MESSAGE / 2).into_iter().try_for_each(|n| all.append(n));
        assert!(r.is_err());
    }
}
