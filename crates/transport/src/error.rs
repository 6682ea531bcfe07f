//! Close codes and the reasons why connections end.

use std::net::SocketAddr;
use thiserror::Error;

/// Codes of the CLOSE frame. Applications use codes from [`code::APPLICATION`] on.
pub mod code {
    /// Nothing wrong.
    pub const NO_ERROR: u64 = 0;
    /// An internal fault of the sender of this code.
    pub const INTERNAL: u64 = 1;
    /// A packet or frame that the specification does not allow.
    pub const PROTOCOL: u64 = 2;
    /// Feedback about packets that were never sent.
    pub const FALSE_FEEDBACK: u64 = 3;
    /// Transport parameters that cannot be or do not fit what stood in clear.
    pub const PARAMETERS: u64 = 4;
    /// More than a stated limit.
    pub const LIMIT: u64 = 5;
    /// Neither key nor token is known here.
    pub const UNAUTHORISED: u64 = 6;
    /// The encryption modules or suites offered do not meet.
    pub const NO_COMMON_SUITE: u64 = 7;
    /// The server takes no more connections.
    pub const BUSY: u64 = 8;
    /// The keys have reached their limit and could not be updated.
    pub const KEYS_EXHAUSTED: u64 = 9;
    /// No data was acknowledged for the idle time-out, although the peer was heard of.
    pub const STALLED: u64 = 10;
    /// What one end can send with, the other will not have.
    pub const NO_COMMON_CC: u64 = 11;
    /// TLS alerts: this plus the alert's number.
    pub const TLS: u64 = 0x100;
    /// First code for applications.
    pub const APPLICATION: u64 = 0x1000;
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// This end closed it.
    #[error("closed by this end")]
    Local,
    /// The peer closed it.
    #[error("closed by the peer: {reason} (code {code:#x})")]
    Peer {
        /// A code of [`code`], or the application's.
        code: u64,
        /// In words.
        reason: String,
    },
    /// Nothing arrived for the idle time-out.
    #[error("nothing heard from the peer for {0} s: is the path up, and is the peer still running?")]
    IdleTimeout(u64),
    /// The peer is alive, but acknowledged nothing, or no data, for the idle time-out.
    #[error(
        "the peer is alive but has acknowledged no data for {0} s: does the path drop what is sent to it, or full-sized packets, or is the peer overloaded?"
    )]
    Stalled(u64),
    /// The handshake got no answer.
    #[error(
        "no answer from {0}: is the server running, is its UDP port open in the firewall, and is the address right?"
    )]
    NoAnswer(String),
    /// The handshake got no answer, and the network said twice that there will be none.
    #[error("{}", why.words(*remote))]
    Unreachable {
        /// Where it was asked.
        remote: SocketAddr,
        /// What the network said.
        why: Unreachable,
    },
    /// The peer has no memory of the connection: it was restarted.
    #[error("the peer has forgotten this connection: it was restarted; connect again")]
    Reset,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(String),
    /// Both ends have no congestion control, or no encryption, in common: this end has found it out, as the other would have.
    #[error("{0}")]
    NothingInCommon(String),
    /// The server takes no more connections. Not authenticated: it comes before any key is agreed on.
    #[error("the server at {remote} is full ({words}): try again later")]
    Busy {
        /// Where it was asked.
        remote: String,
        /// How full, in the server's words.
        words: String,
    },
    /// A byte stream ended without TLS's closing words (RFC 8446, section 6.1: a truncation attack, for all that is known).
    #[error(
        "the stream ended without the peer's closing words: the peer's program ended, or somebody on the path cut it off"
    )]
    CutOff,
    /// The handshake failed.
    #[error("{0}")]
    Handshake(String),
    /// A connection by iWARP ended, otherwise than at either end's request.
    #[error("{0}")]
    Stream(String),
    /// No common version.
    #[error(
        "the server speaks other versions ({offered}) than this program ({ours}): update the older of the two"
    )]
    Version {
        /// What the server offered.
        offered: String,
        /// What this end speaks.
        ours: String,
    },
}

/// What ICMP says of a place (RFC 792, RFC 4443), or the system where it knows no way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Nobody listens at the port.
    Port,
    /// No host answers at the address.
    Host,
    /// There is no route.
    Network,
    /// A packet filter does not let packets there.
    Forbidden,
}

impl Unreachable {
    /// All of them.
    pub const ALL: [Unreachable; 4] =
        [Unreachable::Port, Unreachable::Host, Unreachable::Network, Unreachable::Forbidden];

    fn words(self, remote: SocketAddr) -> String {
        let (ip, port) = (remote.ip(), remote.port());
        match self {
            Unreachable::Port => format!(
                "nobody listens there at UDP port {port} (ICMP port unreachable from {ip}); is `longhaul serve` or `longhaul perf \
                 server` running, and is the port right?"
            ),
            Unreachable::Host => {
                format!(
                    "no host answers at {ip} (host unreachable); is it running, and is the address right?"
                )
            }
            Unreachable::Network => {
                format!("there is no route to {ip} (network unreachable); is this host on the network?")
            }
            Unreachable::Forbidden => {
                format!("a packet filter lets nothing to {remote}; open UDP port {port} in the firewall")
            }
        }
    }
}

/// A peer's words, fit to be shown in a line (see [`base::text`]).
pub fn words(reason: &[u8]) -> String {
    base::text::line_of(reason)
}

/// A peer's violation found while handling a packet: closes the connection with a code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Violation {
    /// For the CLOSE frame.
    pub code: u64,
    /// In words, for both ends' logs.
    pub reason: String,
}

impl Violation {
    /// A violation of the specification.
    pub fn protocol(reason: impl Into<String>) -> Violation {
        Violation { code: code::PROTOCOL, reason: reason.into() }
    }
    /// With a code.
    pub fn new(code: u64, reason: impl Into<String>) -> Violation {
        Violation { code, reason: reason.into() }
    }
}

impl From<wire::WireError> for Violation {
    fn from(e: wire::WireError) -> Violation {
        Violation::protocol(e.to_string())
    }
}
