//! Options for deltas and compression.

use super::heading;
use clap::Args;
use mover::{DataReduction, ReductionMode};

/// How less is sent than there is.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct SavingOptions {
    /// Send files as a whole that exist at the destination and differ (default: where that is faster).
    ///
    /// Otherwise only the parts of a file from 1 MiB to 4 TiB are sent that the destination does not have. By default that is
    /// done where the path is slower than both ends read and compare, and a round trip takes 2 ms or more.
    #[arg(short = 'W', long, overrides_with = "no_whole_file", hide_short_help = true, help_heading = heading::TRANSFER)]
    whole_file: bool,
    /// Send only the parts of large files that the destination does not have, however fast the path is.
    #[arg(long, overrides_with = "whole_file", hide_short_help = true, help_heading = heading::TRANSFER)]
    no_whole_file: bool,
    /// Compress what is sent, with zstd (default: where that is faster).
    ///
    /// What does not become shorter is sent as it is. By default a transfer compresses while it waits for a path that is slower
    /// than half of what one thread compresses, and a processor has nothing to do.
    #[arg(short = 'z', long, overrides_with = "no_compress", hide_short_help = true, help_heading = heading::TRANSFER)]
    compress: bool,
    /// Do not compress what is sent.
    #[arg(long, overrides_with = "compress", hide_short_help = true, help_heading = heading::TRANSFER)]
    no_compress: bool,
}

impl SavingOptions {
    /// The same as the mover calls it.
    pub fn data_reduction(self) -> DataReduction {
        let choice = |always, never| match (always, never) {
            (true, _) => ReductionMode::Always,
            (_, true) => ReductionMode::Never,
            _ => ReductionMode::Auto,
        };
        DataReduction {
            deltas: choice(self.no_whole_file, self.whole_file),
            compress: choice(self.compress, self.no_compress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        saving: SavingOptions,
    }

    #[test]
    fn later_of_two_contradicting_options_applies() {
        let of =
            |line: &str| Line::parse_from(format!("x {line}").split_whitespace()).saving.data_reduction();
        assert_eq!(of(""), DataReduction::default());
        let e = |deltas, compress| DataReduction { deltas, compress };
        assert_eq!(of("-W -z"), e(ReductionMode::Never, ReductionMode::Always));
        assert_eq!(of("--no-whole-file --no-compress"), e(ReductionMode::Always, ReductionMode::Never));
        assert_eq!(of("-W --no-whole-file -z --no-compress"), e(ReductionMode::Always, ReductionMode::Never));
        assert_eq!(of("--no-whole-file --whole-file"), e(ReductionMode::Never, ReductionMode::Auto));
    }
}
