//! Options for file attributes that `put` and `get` preserve (`-a`, `-o`, `-g`, `-A`, `-X`, `-H`).

use super::heading;
use clap::Args;
use mover::Keep;

/// As the options of rsync of these names.
#[derive(Args, Clone, Debug, Default)]
pub struct KeepOptions {
    /// Keep owners, groups, set-id and sticky bits, devices, pipes and sockets (-pogD).
    ///
    /// Contents, permissions rwx, times, symbolic links and folders are kept in any case. Hard links, access control lists
    /// and extended attributes are asked for by -H, -A and -X. What the receiving end may not do is left out and said.
    #[arg(short, long, help_heading = heading::TRANSFER)]
    pub archive: bool,
    /// Keep set-user-id, set-group-id and sticky bits too.
    #[arg(short, long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub perms: bool,
    /// Keep owners, if the receiving end runs as root.
    #[arg(short, long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub owner: bool,
    /// Keep groups.
    #[arg(short, long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub group: bool,
    /// Keep devices (if the receiving end runs as root), pipes and sockets.
    #[arg(short = 'D', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub devices: bool,
    /// Keep several names of a file one file.
    #[arg(short = 'H', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub hard_links: bool,
    /// Keep access control lists.
    #[arg(short = 'A', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub acls: bool,
    /// Keep extended attributes: user.*, and where both ends run as root trusted.* and security.*.
    #[arg(short = 'X', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub xattrs: bool,
    /// Keep owners and groups by number, not by name.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub numeric_ids: bool,
}

impl KeepOptions {
    /// What is asked for.
    pub fn keep(&self) -> Keep {
        let special = Keep::PIPES.with(Keep::DEVICES);
        let attributes = Keep::ATTRIBUTES.with(Keep::PRIVILEGED);
        let all = [
            (Keep::OWNER, self.owner || self.archive),
            (Keep::GROUP, self.group || self.archive),
            (Keep::SPECIAL_BITS, self.perms || self.archive),
            (special, self.devices || self.archive),
            (Keep::HARD_LINKS, self.hard_links),
            (Keep::ACLS, self.acls),
            (attributes, self.xattrs),
            (Keep::NUMERIC, self.numeric_ids),
        ];
        all.into_iter().fold(Keep::default(), |k, (what, on)| k.with(what.only_if(on)))
    }
}
