//! Access control lists as Linux stores them (`system.posix_acl_access`, acl(5)): which users and groups they name.
//!
//! A version (2, four bytes, little-endian), then entries of eight bytes: tag, permissions, and the number of a user or group where
//! the tag says so.

use lhio::accounts::Sort;

const ENTRY: usize = 8;
const HEAD: usize = 4;
const USER: u16 = 2;
const GROUP: u16 = 8;

/// Whether an extended attribute of this name is such a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

fn entries(list: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let (head, rest) = list.split_at_checked(HEAD)?;
    (head == [2, 0, 0, 0] && rest.len() % ENTRY == 0).then(|| rest.chunks_exact(ENTRY))
}

/// Whose entry it is; `None` of those that name nobody.
fn named(entry: &[u8]) -> Option<(Sort, u32)> {
    let sort = match u16::from_le_bytes([entry[0], entry[1]]) {
        USER => Sort::User,
        GROUP => Sort::Group,
        _ => return None,
    };
    Some((sort, u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]])))
}

/// Users and groups that a list names; none where it is no such list.
pub(crate) fn accounts(list: &[u8]) -> Vec<(Sort, u32)> {
    entries(list).into_iter().flatten().filter_map(named).collect()
}

/// The same list with other numbers. Entries of one tag are sorted by them, as programs that change lists do.
pub(crate) fn renumbered(list: &[u8], mut number: impl FnMut(Sort, u32) -> u32) -> Vec<u8> {
    let Some(all) = entries(list) else { return list.to_vec() };
    let mut all: Vec<Vec<u8>> = all
        .map(|e| {
            let mut e = e.to_vec();
            if let Some((sort, id)) = named(&e) {
                e[4..].copy_from_slice(&number(sort, id).to_le_bytes());
            }
            e
        })
        .collect();
    let key = |e: &Vec<u8>| (u16::from_le_bytes([e[0], e[1]]), named(e).map_or(0, |n| n.1));
    all.sort_by_key(key);
    [&list[..HEAD], &all.concat()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(all: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, bits, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [vec![2, 0, 0, 0], all.iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn numbers_of_a_list_are_found_and_replaced() {
        let none = u32::MAX;
        let before = list(&[
            (1, 7, none),
            (2, 4, 10),
            (2, 6, 11),
            (4, 5, none),
            (8, 1, 10),
            (16, 7, none),
            (32, 0, none),
        ]);
        assert_eq!(accounts(&before), [(Sort::User, 10), (Sort::User, 11), (Sort::Group, 10)]);
        let after = renumbered(&before, |sort, id| if sort == Sort::User { 30 - id } else { 99 });
        let want = list(&[
            (1, 7, none),
            (2, 6, 19),
            (2, 4, 20),
            (4, 5, none),
            (8, 1, 99),
            (16, 7, none),
            (32, 0, none),
        ]);
        assert_eq!(after, want);
        assert_eq!(renumbered(&before, |_, id| id), before);
        for bad in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x02\0\0"] {
            assert!(accounts(bad).is_empty());
            assert_eq!(renumbered(bad, |_, _| 5), bad);
        }
    }
}
