//! Describes what a stalled sink waits for.

use super::{Sink, Stage};
use std::fmt;

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Roots => "waits for the roots",
            Stage::Preparing => "prepares the destination",
            Stage::Running if self.source_ended => "runs, the source has ended",
            Stage::Running => "runs, the source goes on",
            Stage::Finishing => "sets modes and times of folders",
            Stage::Ended => "has ended",
        };
        let spare: usize = self.spare.iter().map(|s| s.len()).sum();
        write!(f, "sink: {stage}; ")?;
        match &self.listing {
            Some(_) => write!(f, "its listing {:?}; ", self.lister)?,
            None => f.write_str("no listing; ")?,
        }
        write!(f, "{} jobs of workers, ", self.jobs.outstanding())?;
        write!(f, "{} bytes of messages wait for the disk; ", self.waiting)?;
        write!(f, "{} windows with {} of {} bytes granted, ", self.windows, self.granted, self.granted_max)?;
        write!(f, "{spare} bytes spare, {} files wait for memory; ", self.waiting_for_memory.len())?;
        write!(f, "{} large files of {}", self.files.len(), self.next_file)?;
        for (id, x) in self.files.iter().take(SHOWN) {
            write!(f, "; file {id} {}: {x:?}", x.path)?;
        }
        Ok(())
    }
}

/// Files that are described one by one.
const SHOWN: usize = 4;

impl fmt::Debug for super::incoming::Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened = if self.part.is_some() { "open" } else { "being opened" };
        let end = if self.end.is_some() { "ended" } else { "not ended" };
        write!(f, "{opened}, {end} by the source, {} windows, ", self.windows.len())?;
        write!(f, "{} of {} bytes verified", self.verified_bytes(), self.data_bytes())?;
        if self.delta != super::delta::DeltaStage::None {
            write!(f, ", its delta {:?}, {} copies so far", self.delta, self.copies.len())?;
        }
        if !self.to_copy.is_empty() {
            write!(f, ", {} chunks to be copied", self.to_copy.len())?;
        }
        if self.finishing {
            f.write_str(", gets its name")?;
        }
        if self.failed {
            f.write_str(", failed: waits until the source drops it")?;
        }
        Ok(())
    }
}
