//! Reads and writes extended attributes of open files, with their values.

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

/// Room for the names of any file, and for any value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`, `xattr(7)`).
const MOST: usize = 65_536;

/// Name and value.
pub type Attribute = (Vec<u8>, Vec<u8>);

fn names(f: &impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    let mut room = vec![0u8; MOST];
    let n = match flistxattr(f, &mut room[..]) {
        Ok(n) => n,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut out: Vec<Vec<u8>> =
        room[..n].split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect();
    out.sort_unstable();
    Ok(out)
}

/// The attributes whose names are `wanted`, sorted by name. None where the file system has no such thing.
///
/// # Errors
/// The system's.
pub fn read_attributes(f: &impl AsFd, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<Attribute>> {
    let mut out = Vec::new();
    for name in names(f)?.into_iter().filter(|n| wanted(n)) {
        let mut value = vec![0u8; MOST];
        match fgetxattr(f, &name[..], &mut value[..]) {
            Ok(n) => {
                value.truncate(n);
                value.shrink_to_fit();
                out.push((name, value));
            }
            Err(Errno::NODATA) => {} // gone meanwhile
            Err(e) => return Err(e.into()),
        }
    }
    Ok(out)
}

/// Makes the attributes whose names are `managed` these: sets what differs, and removes the others. Goes on after one that
/// fails.
///
/// # Errors
/// The first one's.
pub fn replace_attributes(
    f: &impl AsFd,
    want: &[Attribute],
    managed: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let there = read_attributes(f, &managed)?;
    let mut first = Ok(());
    for (name, _) in there.iter().filter(|(n, _)| want.iter().all(|w| w.0 != *n)) {
        match fremovexattr(f, &name[..]) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => first = first.and(Err(e)),
        }
    }
    for a in want.iter().filter(|a| managed(&a.0) && !there.contains(a)) {
        first = first.and(fsetxattr(f, &a.0[..], &a.1, XattrFlags::empty()));
    }
    Ok(first?)
}
