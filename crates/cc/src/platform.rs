//! The interface between transports and policies: what is known of a flow, and what a policy chooses for it.
//!
//! Policies are implemented elsewhere; engines call [`Policy::choose`] for each flow when it is created and after
//! every change of the policy, and obey.

mod capability;
mod qos;

pub use capability::{EcnFault, EcnPath, Found, Lack, PathCapability};
pub use qos::{BadQos, Qos};

use base::Rate;
use core::fmt::Debug;
use std::net::SocketAddr;

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Longhaul's own transport.
    Native,
    /// TCP of the kernel, under iWARP or of another program.
    Tcp,
    /// RoCEv2.
    Roce,
}

impl Carrier {
    /// Its name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Carrier::Native => "native",
            Carrier::Tcp => "tcp",
            Carrier::Roce => "roce",
        }
    }
}

/// An application's description of its traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Intent {
    /// The application's name; empty if it gives none.
    pub application: String,
    /// The service it asks for.
    pub qos: Qos,
    /// Differentiated-services code point of its packets, 0 to 63.
    pub dscp: u8,
}

/// What is known of a flow when its congestion control is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// What carries it.
    pub carrier: Carrier,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Differentiated-services code point of its packets, 0 to 63.
    pub dscp: u8,
    /// The application's name, or that of its program if it gives none.
    pub application: String,
    /// The service that the application asks for.
    pub qos: Qos,
    /// The algorithm with parameters that the application asks for; empty to leave it to the policy.
    pub asked: String,
    /// Priority of the socket (`SO_PRIORITY`) of a program with its own socket; 0 for all others.
    pub priority: u32,
}

/// A policy's choice for a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the rule that matched; empty if none did.
    pub rule: String,
    /// Algorithm with parameters, in the syntax of [`registry::parse`](crate::registry::parse).
    pub algorithm: String,
    /// The fallback while the path lacks signals that the algorithm needs, or when the algorithm misbehaves.
    pub fallback: String,
    /// Index of its class in [`Policy::classes`].
    pub class: usize,
    /// Its weight among the flows of its class, 1 to 10,000.
    pub weight: u32,
    /// Its maximum rate.
    pub cap: Option<Rate>,
    /// Its guaranteed rate.
    pub guarantee: Option<Rate>,
    /// Differentiated-services code point for its packets, 0 to 63; `None`: as the application asks for.
    pub dscp: Option<u8>,
    /// The terms for the peer's algorithm.
    pub peer: PeerTerms,
    /// The reasons, one sentence each, for people.
    pub why: Vec<String>,
}

/// A policy's terms for the negotiation of congestion control with the peer, besides this end's algorithm. They have
/// priority over the application's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerTerms {
    /// Whether this end's preference order has priority over the peer's preferences; `None`: as the application says.
    pub prefer_own: Option<bool>,
    /// Names of the only algorithms that the peer may request of this end, besides the one chosen; `None`: any.
    pub allow: Option<Vec<String>>,
    /// Algorithms that the peer should send with, best first, in the syntax of
    /// [`registry::parse`](crate::registry::parse); `None`: as the application preferences.
    pub preferred: Option<Vec<String>>,
    /// Whether the peer may send with nothing else.
    pub preferred_only: bool,
    /// Names of algorithms that the peer must not send with, besides those that the application refuses.
    pub refuse: Vec<String>,
}

impl PeerTerms {
    /// Whether the peer may request this algorithm of this end.
    pub fn allows(&self, selection: &str) -> bool {
        self.allow.as_ref().is_none_or(|names| names.iter().any(|n| n == algorithm_name(selection)))
    }

    /// Whether the peer must not send with this algorithm, whatever is preferred.
    pub fn refuses(&self, selection: &str) -> bool {
        self.refuse.iter().any(|n| n == algorithm_name(selection))
    }

    /// Whether this end may ask the peer to send with this algorithm.
    pub fn may_prefer(&self, selection: &str) -> bool {
        let name = algorithm_name(selection);
        let preferred = || self.preferred.iter().flatten().any(|w| algorithm_name(w) == name);
        !self.refuses(name) && (!self.preferred_only || preferred())
    }
}

/// The name without the parameters.
fn algorithm_name(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

/// How the flows of a class share its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// In proportion to their weights.
    #[default]
    Fair,
    /// The heaviest first, the others only when it has nothing to send.
    Strict,
    /// The earliest deadline first.
    Deadline,
}

/// A class of traffic: a share of what this process sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Index of its parent class; `None` for classes directly below the root.
    pub parent: Option<usize>,
    /// Its weight among its siblings, 1 to 10,000.
    pub weight: u32,
    /// Its level, 0 (the highest) to 7; lower levels send only what higher ones leave.
    pub level: u8,
    /// Its guaranteed rate.
    pub guarantee: Option<Rate>,
    /// Its maximum rate.
    pub cap: Option<Rate>,
    /// How its flows share its rate.
    pub order: Order,
}

/// A policy that is in force.
pub trait Policy: Send + Sync + Debug {
    /// Chooses for a flow. The first match wins; there is always a choice.
    fn choose(&self, traffic: &Traffic) -> Choice;
    /// The classes, at least one. Parents come before their children.
    fn classes(&self) -> &[Class];
    /// The maximum rate of this process, all flows together.
    fn process_cap(&self) -> Option<Rate>;
    /// A number that grows with every change, so that callers know when to choose again.
    fn version(&self) -> u64;
    /// The algorithms that the policy names for this end's sending, each with its place: `rule "nightly" (line 7)`.
    /// An algorithm named in several places is returned several times.
    fn algorithms(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
