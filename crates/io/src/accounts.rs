//! Names of users and groups, as the system's name service has them.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// Answers remembered at most; more are asked for anew each time.
const MAX_KNOWN: usize = 65_536;
/// Room for the strings of one answer, in bytes.
const ROOM: usize = 65_536;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// A user.
    User,
    /// A group.
    Group,
}

/// The name of a user or group.
type Name = Vec<u8>;

/// Remembers what was asked, since each question may go over a network.
#[derive(Debug, Default)]
pub struct Accounts {
    names: Mutex<HashMap<(Sort, u32), Name>>,
    numbers: Mutex<HashMap<(Sort, Name), Option<u32>>>,
}

impl Accounts {
    /// The name of a number; empty where there is none.
    pub fn name(&self, sort: Sort, id: u32) -> Vec<u8> {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = known.get(&(sort, id)) {
            return n.clone();
        }
        let name = ask_name(sort, id).unwrap_or_default();
        if known.len() < MAX_KNOWN {
            known.insert((sort, id), name.clone());
        }
        name
    }
    /// The number of a name; `None` where there is no such name.
    pub fn number(&self, sort: Sort, name: &[u8]) -> Option<u32> {
        let mut known = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = known.get(&(sort, name.to_vec())) {
            return *n;
        }
        let id = ask_number(sort, name);
        if known.len() < MAX_KNOWN {
            known.insert((sort, name.to_vec()), id);
        }
        id
    }
}

fn ask_name(sort: Sort, id: u32) -> Option<Vec<u8>> {
    let mut room = vec![0 as libc::c_char; ROOM];
    // SAFETY: each call gets a structure to fill, room for its strings with the length of that room, and a place for the
    // result, which points to the structure or is null; the name lies in `room`, ends with a zero and is copied here.
    unsafe {
        match sort {
            Sort::User => {
                let (mut entry, mut found) = (std::mem::zeroed(), std::ptr::null_mut());
                let r = libc::getpwuid_r(id, &raw mut entry, room.as_mut_ptr(), ROOM, &raw mut found);
                (r == 0 && !found.is_null())
                    .then(|| std::ffi::CStr::from_ptr((*found).pw_name).to_bytes().to_vec())
            }
            Sort::Group => {
                let (mut entry, mut found) = (std::mem::zeroed(), std::ptr::null_mut());
                let r = libc::getgrgid_r(id, &raw mut entry, room.as_mut_ptr(), ROOM, &raw mut found);
                (r == 0 && !found.is_null())
                    .then(|| std::ffi::CStr::from_ptr((*found).gr_name).to_bytes().to_vec())
            }
        }
    }
}

fn ask_number(sort: Sort, name: &[u8]) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut room = vec![0 as libc::c_char; ROOM];
    // SAFETY: as above; the name ends with a zero.
    unsafe {
        match sort {
            Sort::User => {
                let (mut entry, mut found) = (std::mem::zeroed(), std::ptr::null_mut());
                let at = room.as_mut_ptr();
                let r = libc::getpwnam_r(name.as_ptr(), &raw mut entry, at, ROOM, &raw mut found);
                (r == 0 && !found.is_null()).then(|| (*found).pw_uid)
            }
            Sort::Group => {
                let (mut entry, mut found) = (std::mem::zeroed(), std::ptr::null_mut());
                let at = room.as_mut_ptr();
                let r = libc::getgrnam_r(name.as_ptr(), &raw mut entry, at, ROOM, &raw mut found);
                (r == 0 && !found.is_null()).then(|| (*found).gr_gid)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_its_name_and_number_and_unknown_ones_have_none() {
        let a = Accounts::default();
        for _ in 0..2 {
            for sort in [Sort::User, Sort::Group] {
                assert_eq!(a.name(sort, 0), b"root");
                assert_eq!(a.number(sort, b"root"), Some(0));
                assert_eq!(a.name(sort, 4_123_456_789), b"");
                assert_eq!(a.number(sort, b"no such name"), None);
                assert_eq!(a.number(sort, b"a\0b"), None);
            }
        }
    }
}
