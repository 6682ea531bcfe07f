//! Describes what a stalled source waits for.

use super::{Outgoing, Source};
use std::fmt;

/// Files that are described one by one.
const SHOWN: usize = 4;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let walk = if self.fed { "is over" } else { "goes on" };
        write!(f, "source: the walk {walk}, its thread {:?}; ", self.walk)?;
        f.write_str(match (&self.listing, self.ended) {
            (_, true) => "all is said, waits for the sink's end; ",
            (Some(_), _) => "the sink's listing goes on; ",
            (None, _) => "the sink's listing is over; ",
        })?;
        write!(f, "{} jobs of workers, {} packs being read, ", self.jobs.outstanding(), self.packs)?;
        write!(f, "{} pieces to read, {} stalled, ", self.todo.len(), self.stalled.len())?;
        write!(f, "{} of {} bytes read ahead; ", self.staged, self.staged_max)?;
        write!(f, "{} large files of {}", self.files.len(), self.next_file)?;
        for (id, x) in self.files.iter().take(SHOWN) {
            write!(f, "; file {id} {}: {x:?}", crate::path::show(&x.shown))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted = if self.accepted { "accepted" } else { "not answered" };
        write!(f, "{accepted}, {} grants, {} chunks not hashed", self.grants.len(), self.left)?;
        if self.comparison.is_some() {
            f.write_str(", compared with what is there")?;
        }
        f.write_str(match (self.checking, self.ended) {
            (_, true) => ", ended: waits until it is in place",
            (true, _) => ", looked at once more",
            _ => "",
        })
    }
}
