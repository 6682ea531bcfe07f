//! Flags of transfers over ssh.

use crate::args::heading;
use clap::Args;
use core::fmt;
use core::str::FromStr;

/// How a machine is reached by ssh.
#[derive(Args, Clone, Debug, Default)]
pub struct SshOptions {
    /// Command that connects over ssh, with options as in a shell, such as 'ssh -p 2222' (default: ssh).
    #[arg(short = 'e', long, value_name = "COMMAND", help_heading = heading::NETWORK)]
    pub rsh: Option<String>,
    /// UDP ports of which the far end over ssh listens at one, such as 60000:60010 (default: any free one).
    #[arg(long, value_name = "A:B", hide_short_help = true, help_heading = heading::NETWORK)]
    pub port_range: Option<PortRange>,
    /// Copy this program to ~/.cache/longhaul at the far end over ssh, where it is not installed.
    #[arg(long, conflicts_with = "remote_program", hide_short_help = true, help_heading = heading::NETWORK)]
    pub bootstrap: bool,
    /// What to start at the far end over ssh: a path, or a command that the shell there reads (default: longhaul).
    #[arg(long, value_name = "PATH", hide_short_help = true, help_heading = heading::NETWORK)]
    pub remote_program: Option<String>,
}

impl SshOptions {
    /// Whether what the command line asks for means something with an address that is not reached by ssh.
    ///
    /// # Errors
    /// What does not.
    pub fn check_unused(&self) -> Result<(), String> {
        let given = [
            (self.rsh.is_some(), "--rsh"),
            (self.port_range.is_some(), "--port-range"),
            (self.bootstrap, "--bootstrap"),
            (self.remote_program.is_some(), "--remote-program"),
        ];
        let named: Vec<&str> = given.into_iter().filter(|g| g.0).map(|g| g.1).collect();
        if named.is_empty() {
            return Ok(());
        }
        Err(format!(
            "cannot use {} with a server's address: it is for ssh; try [user@]host:path",
            named.join(", ")
        ))
    }
}

/// UDP ports, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first one, not 0.
    pub first: u16,
    /// The last one, not below the first.
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;
    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let port =
            |t: &str| t.parse::<u16>().ok().filter(|p| *p > 0 && t.bytes().all(|b| b.is_ascii_digit()));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(PortRange { first, last }),
            _ => {
                Err("it must be two ports from 1 to 65535, the lower one first, as in 60000:60010".to_owned())
            }
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_parsed_and_displayed() {
        let r: PortRange = "60000:60010".parse().unwrap();
        assert_eq!((r.first, r.last, r.to_string().as_str()), (60_000, 60_010, "60000:60010"));
        assert_eq!("7".parse::<PortRange>().unwrap(), PortRange { first: 7, last: 7 });
        for bad in ["", ":", "1:", ":1", "2:1", "0:1", "1:65536", "a:b", "+1:2", "1:2:3", "1-2"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
    }
}
