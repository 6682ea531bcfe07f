//! The file attributes to preserve (`-a`, `-A`, `-X`, `-H`): requested by the client, granted by the sink.

/// A set of what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keep(u64);

impl Keep {
    /// Nothing.
    pub const NOTHING: Keep = Keep(0);
    /// The user that a file belongs to.
    pub const OWNER: Keep = Keep(1);
    /// The group that a file belongs to.
    pub const GROUP: Keep = Keep(2);
    /// Set-user-id, set-group-id and sticky bits.
    pub const SPECIAL_BITS: Keep = Keep(4);
    /// Pipes and sockets.
    pub const PIPES: Keep = Keep(8);
    /// Character and block devices.
    pub const DEVICES: Keep = Keep(16);
    /// Several names of one file.
    pub const HARD_LINKS: Keep = Keep(32);
    /// Access control lists.
    pub const ACLS: Keep = Keep(64);
    /// Extended attributes `user.*`.
    pub const ATTRIBUTES: Keep = Keep(128);
    /// Extended attributes `trusted.*` and `security.*`, file capabilities among them.
    pub const PRIVILEGED: Keep = Keep(256);
    /// Owners and groups by number, not by name.
    pub const NUMERIC: Keep = Keep(512);
    const ALL: u64 = 1023;

    /// As it travels.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// `None` where a bit has no meaning.
    pub fn from_bits(v: u64) -> Option<Keep> {
        (v <= Keep::ALL).then_some(Keep(v))
    }
    /// Both.
    #[must_use]
    pub const fn with(self, other: Keep) -> Keep {
        Keep(self.0 | other.0)
    }
    /// The same if `on`, else nothing.
    #[must_use]
    pub const fn only_if(self, on: bool) -> Keep {
        if on { self } else { Keep(0) }
    }
    /// What is in this one and not in the other.
    #[must_use]
    pub const fn without(self, other: Keep) -> Keep {
        Keep(self.0 & !other.0)
    }
    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Keep) -> Keep {
        Keep(self.0 & other.0)
    }
    /// Whether any of the other's is in this one.
    pub const fn has(self, other: Keep) -> bool {
        self.0 & other.0 != 0
    }
    /// Whether nothing is.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What may give a file more rights, or be more, than whoever sends it could make: a server keeps it if its operator
    /// allows that.
    pub const NEEDS_LEAVE: Keep =
        Keep(Keep::OWNER.0 | Keep::GROUP.0 | Keep::SPECIAL_BITS.0 | Keep::DEVICES.0 | Keep::PRIVILEGED.0);

    /// What a receiving end can do: without the privilege it gives no file to others, makes no devices, and sets no
    /// attributes of the system. As rsync does, it leaves out what it cannot.
    #[must_use]
    pub fn possible(self) -> Keep {
        let root = rustix::process::geteuid().is_root();
        let privileged = Keep::OWNER.with(Keep::DEVICES).with(Keep::PRIVILEGED);
        if root { self } else { self.without(privileged) }
    }

    /// Whether an extended attribute of this name is kept.
    pub fn takes(self, name: &[u8]) -> bool {
        const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
        // Each system sets these by itself, for each file anew.
        const SYSTEM: [&[u8]; 4] =
            [b"security.selinux", b"security.SMACK64", b"security.ima", b"security.evm"];
        if LISTS.contains(&name) {
            return self.has(Keep::ACLS);
        }
        if name.starts_with(b"user.") {
            return self.has(Keep::ATTRIBUTES);
        }
        let privileged = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        privileged && self.has(Keep::PRIVILEGED) && !SYSTEM.iter().any(|s| name.starts_with(s))
    }
    /// The part of a mode that is kept.
    pub const fn mode(self, mode: u32) -> u32 {
        mode & if self.has(Keep::SPECIAL_BITS) { 0o7777 } else { 0o777 }
    }
    /// Names of what is in it, for people.
    pub fn words(self) -> Vec<&'static str> {
        let all = [
            (Keep::OWNER, "owners"),
            (Keep::GROUP, "groups"),
            (Keep::SPECIAL_BITS, "set-id bits"),
            (Keep::PIPES, "pipes and sockets"),
            (Keep::DEVICES, "devices"),
            (Keep::HARD_LINKS, "hard links"),
            (Keep::ACLS, "access control lists"),
            (Keep::ATTRIBUTES, "extended attributes"),
            (Keep::PRIVILEGED, "attributes of the system"),
        ];
        all.into_iter().filter(|(k, _)| self.has(*k)).map(|(_, w)| w).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_taken_by_their_kind() {
        let x = Keep::ATTRIBUTES;
        assert!(x.takes(b"user.a") && !x.takes(b"trusted.a") && !x.takes(b"system.posix_acl_access"));
        let p = x.with(Keep::PRIVILEGED);
        assert!(
            p.takes(b"security.capability") && !p.takes(b"security.selinux") && !p.takes(b"system.nfs4_acl")
        );
        assert!(Keep::ACLS.takes(b"system.posix_acl_default"));
        assert_eq!((x.mode(0o6755), Keep::SPECIAL_BITS.mode(0o6755)), (0o755, 0o6755));
        assert_eq!(Keep::from_bits(1024), None);
    }
}
