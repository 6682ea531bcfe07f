//! Exit codes and errors of the program.

use core::fmt;

/// Exit codes. Part of the interface: scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Everything was done.
    Ok = 0,
    /// It ran to its end, but some files failed, or a check did not hold.
    Partial = 1,
    /// The command line or a local setting cannot be used.
    Usage = 2,
    /// No connection came about.
    Connect = 3,
    /// This end is not authorised, or the other end is not trusted.
    Untrusted = 4,
    /// Interrupted, by the user or by the network; repeat the command to resume.
    Interrupted = 5,
    /// The server's settings do not allow it.
    Refused = 6,
    /// The system of this or the other end failed (disk, sockets, memory).
    System = 7,
}

/// The table in the help.
pub const HELP: &str = "\
                        Exit codes:
  0  everything was done
  1  ran to its end, but some files failed or a check did not hold
  2  the command line or a local setting cannot be used
  3  no connection came about
  4  this end is not authorised, or the other end is not trusted
  5  interrupted; repeat the command to resume
  6  the server's settings do not allow it
  7  the system of one of the ends failed";

/// Why the program ends without success: a code, and words with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the shell.
    pub code: Code,
    /// For people; empty when everything has been said already.
    pub text: String,
    /// The code with which the peer closed the connection, if that is what happened.
    pub peer: Option<u64>,
    /// The status of a command that was run for the user, which is then the program's own.
    pub status: Option<u8>,
}

/// What commands return.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure in words.
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), peer: None, status: None }
    }
    /// What a command that was run for the user ended with: its own status, or as shells have it 128 and the signal that ended
    /// it.
    pub fn of_command(name: &str, status: std::process::ExitStatus) -> Failure {
        use std::os::unix::process::ExitStatusExt as _;
        let (n, text) = match (status.code(), status.signal()) {
            (Some(n), _) => (n, String::new()),
            (None, Some(n)) => (128 + n, format!("{name} was killed by signal {n}")),
            (None, None) => (Code::Partial as i32, format!("{name} ended without a status")),
        };
        Failure { status: u8::try_from(n).ok(), ..Failure::new(Code::Partial, text) }
    }
    /// A failure in words that another has a part in, such as a peer: they stay in one line.
    pub fn line(code: Code, text: impl fmt::Display) -> Failure {
        Failure::new(code, base::text::line(&text.to_string()))
    }
    /// The words, in which no line but the first begins as those of the program do: a name of a file may hold the end of a
    /// line.
    pub fn indented(&self) -> String {
        let later = |l: &str| if l.starts_with("  ") { l.to_owned() } else { format!("  {l}") };
        let mut lines = self.text.split('\n');
        let first = lines.next().unwrap_or_default().to_owned();
        lines.fold(first, |text, l| text + "\n" + &later(l))
    }
    /// A setting that cannot be used.
    pub fn usage(e: impl fmt::Display) -> Failure {
        Failure::new(Code::Usage, e.to_string())
    }
    /// The system starts no further thread.
    pub fn no_thread(e: std::io::Error) -> Failure {
        let text = format!(
            "cannot start a thread: {e}; try to raise the limits of threads and memory (ulimit -u, ulimit -v)"
        );
        Failure::new(Code::System, text)
    }
    /// The system said no.
    pub fn system(e: impl fmt::Display) -> Failure {
        Failure::new(Code::System, e.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<lhio::identity::IdentityError> for Failure {
    fn from(e: lhio::identity::IdentityError) -> Failure {
        Failure::usage(e)
    }
}

impl From<lhio::driver::DriverError> for Failure {
    fn from(e: lhio::driver::DriverError) -> Failure {
        Failure::system(e)
    }
}

impl From<endpoint::ConnectError> for Failure {
    fn from(e: endpoint::ConnectError) -> Failure {
        Failure::usage(e)
    }
}

/// The code and words of a transfer's end.
pub fn transfer_failure(e: &mover::Error) -> Failure {
    let peer = if let mover::Error::Connection { code, .. } = e { *code } else { None };
    let code = match e {
        mover::Error::Refused { .. } | mover::Error::OtherService { .. } => Code::Refused,
        mover::Error::Connection { code, .. } => peer_code(*code).unwrap_or(Code::Interrupted),
        mover::Error::Interrupted => Code::Interrupted,
        mover::Error::Partial { system: Some(_), .. } => Code::System,
        mover::Error::Partial { .. } | mover::Error::DeleteLimit { .. } => Code::Partial,
        mover::Error::Unusable { .. } => Code::Usage,
        mover::Error::Protocol { .. } | mover::Error::Local { .. } | mover::Error::Peer { .. } => {
            Code::System
        }
    };
    Failure { peer, ..Failure::new(code, e.to_string()) }
}

/// What the code tells with which a peer closed a connection; `None` of those that only say that it is over.
fn peer_code(code: Option<u64>) -> Option<Code> {
    use transport::error::code::{NO_COMMON_CC, NO_COMMON_SUITE, UNAUTHORISED};
    match code? {
        UNAUTHORISED => Some(Code::Untrusted),
        // The same command would be told the same again.
        NO_COMMON_CC | NO_COMMON_SUITE | mover::OTHER_SERVICE => Some(Code::Refused),
        _ => None,
    }
}

/// The code and words of a connection that did not come about or ended.
pub fn close_failure(reason: &endpoint::CloseReason, connected: bool) -> Failure {
    use endpoint::CloseReason as R;
    let peer = if let R::Peer { code, .. } = reason { Some(*code) } else { None };
    let code = match reason {
        R::Handshake(_) => Code::Untrusted,
        // The same command would be told the same again, whichever end is the first to say so.
        R::NothingInCommon(_) => Code::Refused,
        _ => peer_code(peer).unwrap_or(if connected { Code::Interrupted } else { Code::Connect }),
    };
    Failure { peer, ..Failure::new(code, reason.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use endpoint::CloseReason;

    #[test]
    fn help_lists_every_exit_code() {
        let all = [
            Code::Ok,
            Code::Partial,
            Code::Usage,
            Code::Connect,
            Code::Untrusted,
            Code::Interrupted,
            Code::Refused,
            Code::System,
        ];
        for c in all {
            assert!(HELP.contains(&format!("\n  {}  ", c as u8)), "{c:?}");
        }
    }

    #[test]
    fn failure_of_a_command_has_its_status() {
        use std::os::unix::process::ExitStatusExt as _;
        let of = |raw| Failure::of_command("sh", std::process::ExitStatus::from_raw(raw));
        assert_eq!((of(3 << 8).status, of(3 << 8).text.as_str()), (Some(3), ""));
        assert_eq!((of(9).status, of(9).text.as_str()), (Some(137), "sh was killed by signal 9"));
        assert_eq!(of(255 << 8).status, Some(255));
    }

    #[test]
    fn further_lines_of_a_failure_are_indented() {
        let f = Failure::new(Code::Usage, "a\nb\n  c\n\nd");
        assert_eq!(f.indented(), "a\n  b\n  c\n  \n  d");
        assert_eq!(Failure::new(Code::Usage, "a").indented(), "a");
    }

    #[test]
    fn transfer_errors_map_to_exit_codes() {
        let code = |e: mover::Error| transfer_failure(&e).code;
        assert_eq!(code(mover::Error::Partial { failed: 2, system: None }), Code::Partial);
        let system = Some(mover::Cause::Full);
        assert_eq!(code(mover::Error::Partial { failed: 2, system }), Code::System);
        assert_eq!(code(mover::Error::Interrupted), Code::Interrupted);
        assert_eq!(code(mover::Error::Unusable { text: "a folder".into() }), Code::Usage);
        assert_eq!(code(mover::Error::Refused { text: "read-only".into() }), Code::Refused);
        let closed = CloseReason::Peer { code: transport::error::code::UNAUTHORISED, reason: "no".into() };
        let ended = |code| mover::Error::Connection { text: "(code 0x6)".into(), code };
        assert_eq!(code(ended(Some(transport::error::code::UNAUTHORISED))), Code::Untrusted);
        assert_eq!(code(ended(Some(transport::error::code::NO_COMMON_CC))), Code::Refused);
        assert_eq!(code(ended(Some(transport::error::code::BUSY))), Code::Interrupted);
        assert_eq!(code(ended(None)), Code::Interrupted, "a peer's words decide nothing");
        assert_eq!(close_failure(&closed, true).code, Code::Untrusted);
        assert_eq!(close_failure(&CloseReason::NoAnswer("x".into()), false).code, Code::Connect);
        assert_eq!(close_failure(&CloseReason::IdleTimeout(30), true).code, Code::Interrupted);
    }
}
