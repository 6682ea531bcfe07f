//! What is said of more than the contents of files: further names, pipes, owners and attributes, and what is to go.

use super::{meta, name, path};
use crate::bytes::Bytes;
use lhio::accounts::Sort;
use mover::proto::{
    Account, Change, Deleted, Extra, Extraneous, Kind, Node, NotPreserved, Record, SourceCounts,
};
use mover::select::{Backup, Delete, Excluded};
use mover::{Keep, Select};

/// Ascending, as they must be.
const ATTRIBUTES: [&[u8]; 6] = [
    b"security.capability",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"trusted.overlay.opaque",
    b"user.a",
    b"user.b",
];
/// An access control list of the owner, a named user, the group, the mask and others, as the kernel keeps them.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16,
    0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// A record; the upper half of `n` chooses details.
pub fn record(n: u8, b: &mut Bytes<'_>) -> Option<Record<'static>> {
    let bit = |i: u8| n >> (4 + i) & 1 == 1;
    Some(match b.u8()? % 10 {
        0 => Record::HardLink { name: name(b)?, to: name(b)? },
        1 => Record::Node { name: name(b)?, meta: meta(b)? },
        2 => Record::Extra(extra(b)?),
        3 => {
            let kind = [Kind::File, Kind::Dir, Kind::Link, Kind::Other][usize::from(n >> 4 & 3)];
            // The size of what is there, or another.
            let (name, size) = (name(b)?, if bit(2) { b.number()? } else { size_of(b.u8()?) });
            Record::Delete(Extraneous { name, kind, size, meta: meta(b)? })
        }
        4 => {
            let max = if bit(2) { Some(b.number()?) } else { None };
            let delete = Some(Delete { excluded: bit(1), ignore_errors: bit(3), max }).filter(|_| bit(0));
            let dir = if bit(3) { Some(path(b)?) } else { None };
            let backup = Some(Backup { suffix: b"~".to_vec(), dir }).filter(|_| bit(1));
            Record::Select(Box::new(Select { delete, backup, update: bit(2), ..Select::default() }))
        }
        5 => Record::Change(match n >> 4 & 3 {
            0 => Change::MakeFolder { parents: bit(2) },
            1 | 2 => Change::Remove { recursive: bit(2) },
            _ => Change::Rename,
        }),
        6 => Record::Deleted(Deleted {
            removed: b.number()?,
            kept: b.number()?,
            over_limit: b.number()?,
            held_back: b.number()?,
        }),
        7 => {
            let keep = || Keep::from_bits(u64::from(n) << 2).unwrap_or_default();
            Record::Kept { keep: keep(), denied: keep(), owners: b.number()?, attributes: b.number()? }
        }
        8 => {
            let not_preserved = NotPreserved { hard_links: b.number()?, ..NotPreserved::default() };
            let (same_files, same_bytes) = (b.number()?, b.number()?);
            let (files, bytes) = (b.number()?, b.number()?);
            Record::Counts(SourceCounts { files, bytes, same_files, same_bytes, not_preserved })
        }
        _ => Record::Excluded(Excluded {
            by_rules: b.number()?,
            by_destination: b.number()?,
            undeleted: b.number()?,
            ..Excluded::default()
        }),
    })
}

/// Sizes that files in the house have.
fn size_of(n: u8) -> u64 {
    [crate::house::CONTENTS.len() as u64, 3_000, 10, 17][usize::from(n & 3)]
}

fn extra(b: &mut Bytes<'_>) -> Option<Extra> {
    let (n, m) = (b.u8()?, b.u8()?);
    let account = |n: u8| Account { id: u32::from(n) * 0x1_01_01, name: vec![b'x'; usize::from(n & 3)] };
    let attributes = ATTRIBUTES.iter().enumerate().filter(|(i, _)| m >> i & 1 == 1);
    let value =
        |name: &[u8]| if name.starts_with(b"system") { ACL.to_vec() } else { vec![m; usize::from(m)] };
    let attributes = attributes.map(|(_, name)| (name.to_vec(), value(name))).collect();
    let format = [libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK][usize::from(n >> 6)];
    // Devices that do nothing, should one ever be made: `/dev/null`, `/dev/zero`.
    let device = if n >> 7 == 1 { (1, 3 + 2 * u32::from(m & 1)) } else { (0, 0) };
    Some(Extra {
        owner: (n & 1 != 0).then(|| account(m)),
        group: (n & 2 != 0).then(|| account(m >> 4)),
        attributes: (n & 4 != 0).then_some(attributes),
        digest: (n & 0x28 == 0x28).then_some([7; 32]),
        inode: (n & 8 != 0).then_some(u64::from(m & 3)),
        node: (n & 16 != 0).then_some(Node { format, device }),
        accounts: if n & 32 != 0 {
            vec![(Sort::User, account(m)), (Sort::Group, account(1))]
        } else {
            vec![]
        },
    })
}
