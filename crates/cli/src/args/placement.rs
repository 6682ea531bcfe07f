//! How `put` and `get` put files in place: rsync's options by rsync's names.

use super::heading;
use crate::exit::{Failure, Outcome};
use clap::Args;
use mover::placement::chmod;
use mover::{Chown, Placement};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Permissions, owners, and folders beside the destination.
#[derive(Args, Clone, Debug, Default)]
pub struct PlacementOptions {
    /// Change permissions on the way, such as D755,F644,go-w,Dg+s,+X,g=u (repeatable; default: unset).
    ///
    /// D is for folders, F for everything else, as in rsync. Set-id and sticky bits need -p.
    #[arg(long, value_name = "CHMOD", hide_short_help = true, help_heading = heading::TRANSFER)]
    chmod: Vec<String>,
    /// Give everything to a user and group, by name or number (implies -o and -g; default: unset).
    ///
    /// Names are those of the receiving end, which has to run as root for users.
    #[arg(long, value_name = "USER:GROUP", hide_short_help = true, help_heading = heading::TRANSFER)]
    chown: Option<OsString>,
    /// Make hard links to the files in DIR that are the same there, for snapshots (repeatable, up to 20; default: none).
    ///
    /// DIR is relative to the destination; of `put`, in the served folder. A file is the same by size and time (or --checksum), and
    /// by all else that is kept; where only the contents are the same, it is copied there.
    #[arg(long, value_name = "DIR", conflicts_with = "all", hide_short_help = true, help_heading = heading::TRANSFER)]
    link_dest: Vec<OsString>,
    /// Keep unfinished files in DIR, relative to the folder of each file (default: hidden beside the file).
    ///
    /// A relative DIR is made when it is needed and removed when it is empty; what has its name is neither sent nor deleted. A full
    /// path is one folder for all files, on the same file system.
    #[arg(long, value_name = "DIR", hide_short_help = true, help_heading = heading::TRANSFER)]
    partial_dir: Option<OsString>,
}

impl PlacementOptions {
    /// The same as the mover calls it.
    pub fn placement(&self) -> Outcome<Placement> {
        let mut changes = Vec::new();
        for text in &self.chmod {
            let parsed = chmod::parse(text, umask());
            changes.extend(parsed.map_err(|e| Failure::usage(format!("cannot use --chmod: {e}")))?);
        }
        let bytes = |d: &OsString| d.as_bytes().to_vec();
        let placement = Placement {
            chmod: changes,
            chown: self.owners()?,
            link_dest: self.link_dest.iter().map(bytes).collect(),
            partial_dir: self.partial_dir.as_ref().map(bytes),
        };
        placement.check().map_err(|e| Failure::usage(format!("cannot put files in place so: {e}")))?;
        Ok(placement)
    }

    fn owners(&self) -> Outcome<Chown> {
        let Some(text) = &self.chown else { return Ok(Chown::default()) };
        let mut parts = text.as_bytes().splitn(2, |b| *b == b':');
        let mut next = || parts.next().filter(|n| !n.is_empty()).map(<[u8]>::to_vec);
        let chown = Chown { user: next(), group: next() };
        let longest = chown.user.iter().chain(&chown.group).map(Vec::len).max();
        if longest.is_none_or(|n| n > mover::proto::MAX_ACCOUNT) {
            let shown = mover::path::show(text.as_bytes());
            return Err(Failure::usage(format!(
                "cannot use --chown {shown}: it names neither a user nor a group; try USER:GROUP, USER or :GROUP"
            )));
        }
        Ok(chown)
    }
}

/// What this process's user has taken from new files (`umask(2)`), without changing it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    line.and_then(|l| u32::from_str_radix(l.trim(), 8).ok()).unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        placement: PlacementOptions,
        #[arg(long)]
        all: bool,
    }
    fn of(line: &str) -> Result<Placement, String> {
        let parsed =
            Line::try_parse_from(format!("x {line}").split_whitespace()).map_err(|e| e.to_string())?;
        parsed.placement.placement().map_err(|f| f.text)
    }

    #[test]
    fn owners_are_users_groups_or_both() {
        let chown = |user: &str, group: &str| {
            let some = |n: &str| Some(n.as_bytes().to_vec()).filter(|n| !n.is_empty());
            Chown { user: some(user), group: some(group) }
        };
        for (text, user, group) in
            [("anna", "anna", ""), ("anna:", "anna", ""), (":5", "", "5"), ("a:b", "a", "b")]
        {
            assert_eq!(of(&format!("--chown {text}")).unwrap().chown, chown(user, group));
        }
        assert!(of("--chown :").unwrap_err().contains("try USER:GROUP"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_a_reason() {
        assert_eq!(of("--chmod u+w,go-w --chmod D755").unwrap().chmod.len(), 3);
        let many = "--link-dest x ".repeat(21);
        for (line, said) in [
            ("--chmod u+q", "no change of permissions"),
            ("--partial-dir .", "folder of the files itself"),
            ("--partial-dir ../x", ".."),
            ("--link-dest x --all", "cannot be used with"),
            (&many, "20 are the most"),
        ] {
            let e = of(line).unwrap_err();
            assert!(e.contains(said), "{line}: {e}");
        }
    }
}
