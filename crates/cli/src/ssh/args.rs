//! Flags of transfers over ssh.

use clap::Args;
use core::fmt;
use core::str::FromStr;

/// How a machine is reached by ssh.
#[derive(Args, Clone, Debug, Default)]
pub struct OverSsh {
    /// Over ssh: the command that connects, instead of ssh, with options as in a shell: -e 'ssh -p 2222 -i key'.
    #[arg(short = 'e', long, value_name = "COMMAND")]
    pub rsh: Option<String>,
    /// Over ssh: UDP ports of which the other end listens at one; any free one when left out.
    #[arg(long, value_name = "A:B")]
    pub port_range: Option<PortRange>,
    /// Over ssh: where longhaul is not installed there, copy this program to ~/.cache/longhaul and start it from there.
    #[arg(long, conflicts_with = "remote_program")]
    pub bootstrap: bool,
    /// Over ssh: what to start there instead of longhaul: a path, or a command that the shell there reads.
    #[arg(long, value_name = "PATH")]
    pub remote_program: Option<String>,
}

impl OverSsh {
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
            "cannot use {} with a server's address: write [user@]host:path to go over ssh",
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
    fn ranges_of_ports_are_read_and_shown() {
        let r: PortRange = "60000:60010".parse().unwrap();
        assert_eq!((r.first, r.last, r.to_string().as_str()), (60_000, 60_010, "60000:60010"));
        assert_eq!("7".parse::<PortRange>().unwrap(), PortRange { first: 7, last: 7 });
        for bad in ["", ":", "1:", ":1", "2:1", "0:1", "1:65536", "a:b", "+1:2", "1:2:3", "1-2"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
    }
}
