//! `longhaul clean`.

use super::heading;
use crate::units;
use base::Span;
use clap::Args;
use std::path::PathBuf;

/// Remove what interrupted transfers left in a folder and those below it: data of unfinished files, their journals, and the
/// marks of transfers that did not come to their end. Nothing that a running transfer has is touched, no symbolic link is
/// followed, and what only has such a name stays.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Clean {
    /// The folder, on this machine.
    pub dir: PathBuf,
    /// Remove only what was last changed this long ago or earlier.
    ///
    /// What is younger may still be resumed.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = units::span,
          help_heading = heading::TRANSFER)]
    pub older: Span,
    /// Remove the marks of transfers that were cut off by a restart of this machine, too.
    ///
    /// What they wrote may not have reached the disk. With its mark, the next transfer compares all contents; without, it
    /// goes by size and time.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub doubtful: bool,
    /// Show what would be removed, and remove nothing.
    #[arg(short = 'n', long, help_heading = heading::TRANSFER)]
    pub dry_run: bool,
    /// Print one JSON object per line, one line per item found.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}
