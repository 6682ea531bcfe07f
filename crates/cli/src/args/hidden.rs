//! Secrets on the command line.

use core::convert::Infallible;
use core::fmt;
use core::str::FromStr;
use zeroize::Zeroizing;

/// A text that is never shown, and overwritten when it is dropped. The command line itself keeps a copy, which other users
/// can see: the environment is better.
#[derive(Clone)]
pub struct Hidden(pub Zeroizing<String>);

impl FromStr for Hidden {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Hidden, Infallible> {
        Ok(Hidden(Zeroizing::new(text.to_owned())))
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(..)")
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser as _;

    #[test]
    fn a_token_on_the_command_line_is_not_shown_with_the_arguments() {
        let cli = Cli::parse_from(["longhaul", "ls", "longhaul://h/", "--token", "lht1_secret"]);
        let shown = format!("{cli:?}");
        assert!(shown.contains("Hidden(..)") && !shown.contains("secret"), "{shown}");
    }
}
