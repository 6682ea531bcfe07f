//! Secrets on the command line.

use core::convert::Infallible;
use core::fmt;
use core::str::FromStr;
use zeroize::Zeroizing;

/// A text that is never shown, and overwritten when it is dropped. The command line itself keeps a copy, which other users
/// can see: the environment is better.
#[derive(Clone)]
pub struct Secret(pub Zeroizing<String>);

impl FromStr for Secret {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Secret, Infallible> {
        Ok(Secret(Zeroizing::new(text.to_owned())))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser as _;

    #[test]
    fn debug_output_of_arguments_hides_the_token() {
        let cli = Cli::parse_from(["longhaul", "ls", "longhaul://h/", "--token", "lht1_secret"]);
        let shown = format!("{cli:?}");
        assert!(shown.contains("Secret(..)") && !shown.contains("secret"), "{shown}");
    }
}
