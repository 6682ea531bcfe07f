//! `longhaul clean`.

use crate::units;
use base::Span;
use clap::Args;
use std::path::PathBuf;

/// Remove what interrupted transfers left in a folder and those below it: data of unfinished files, their journals, and the
/// marks of transfers that did not come to their end. Nothing that a running transfer has is touched, no symbolic link is
/// followed, and what only has such a name stays.
#[derive(Args, Debug)]
pub struct Clean {
    /// The folder, on this machine.
    pub dir: PathBuf,
    /// Remove only what was last changed this long ago, or earlier: what is younger may still be resumed.
    #[arg(long, value_name = "AGE", default_value = "1d", value_parser = units::span)]
    pub older: Span,
    /// Remove also marks of transfers that a restart of this machine cut off. What they wrote may not have reached the disk:
    /// with the mark, the next transfer compares all contents; without, it goes by size and time.
    #[arg(long)]
    pub doubtful: bool,
    /// Only say what would be removed.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// One JSON object a line, one line for each thing found.
    #[arg(long)]
    pub json: bool,
}
