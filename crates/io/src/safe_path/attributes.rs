//! Finds which extended attributes a file has, by their names alone.

use rustix::io::Errno;
use std::os::fd::AsFd;

/// Room for the names that nearly every file has; one call is enough for it.
const USUAL: usize = 512;
/// Room for the names of any file (`XATTR_LIST_MAX`, `xattr(7)`).
const MOST: usize = 65_536;
/// Attributes that each system sets by itself, for each file anew.
const BY_THE_SYSTEM: [&[u8]; 4] =
    [b"security.selinux", b"security.SMACK64", b"security.ima", b"security.evm"];
/// How an access control list is stored (`acl(5)`): of the file itself, or of what is made in a folder.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether a file has extended attributes or an access control list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Extended attributes other than access control lists; without those that the system sets by itself.
    pub extended: bool,
    /// An access control list.
    pub acl: bool,
}

impl Attributes {
    /// Of an open file or folder. None where the file system has no such thing.
    pub fn of_file(f: &impl AsFd) -> Attributes {
        let mut names = [0u8; USUAL];
        match rustix::fs::flistxattr(f, &mut names[..]) {
            Ok(n) => Attributes::named(&names[..n]),
            Err(Errno::RANGE) => {
                let mut names = vec![0u8; MOST];
                let n = rustix::fs::flistxattr(f, &mut names[..]).unwrap_or(0);
                Attributes::named(&names[..n])
            }
            Err(_) => Attributes::default(),
        }
    }

    /// By a list of names, each with a zero behind it.
    fn named(list: &[u8]) -> Attributes {
        let mut out = Attributes::default();
        for name in list.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            if LISTS.contains(&name) {
                out.acl = true;
            } else if !BY_THE_SYSTEM.iter().any(|own| name.starts_with(own)) {
                out.extended = true;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, fsetxattr};

    #[test]
    fn acls_and_system_attributes_are_distinguished_by_name() {
        let (none, acl) = (Attributes::default(), Attributes { acl: true, extended: false });
        assert_eq!(Attributes::named(b""), none);
        assert_eq!(Attributes::named(b"security.selinux\0security.ima\0"), none);
        assert_eq!(Attributes::named(b"system.posix_acl_default\0security.selinux\0"), acl);
        assert_eq!(
            Attributes::named(b"security.capability\0system.posix_acl_access\0"),
            Attributes { acl: true, extended: true }
        );
    }

    #[test]
    fn attributes_with_long_names_are_found() {
        let f = tempfile::tempfile().unwrap();
        assert_eq!(Attributes::of_file(&f), Attributes::default());
        for i in 0..8 {
            // A file system without attributes has none to find.
            if fsetxattr(&f, format!("user.{i}{}", "n".repeat(200)), b"v", XattrFlags::empty()).is_err() {
                assert_eq!(Attributes::of_file(&f), Attributes::default());
                return;
            }
            assert_eq!(Attributes::of_file(&f), Attributes { extended: true, acl: false }, "{i}");
        }
    }
}
