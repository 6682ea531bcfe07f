//! The platform's face: what is known of a flow, and what the administrator's policy makes of it.
//!
//! Policies are read and kept elsewhere; engines ask [`Policy::choose`] for each flow, once it is made and again after every
//! change, and obey.

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

/// What an application says of its traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Intent {
    /// What it calls itself; empty when it does not say.
    pub application: String,
    /// What it asks for.
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
    /// The application's name, as it calls itself; the name of its program if it says none.
    pub application: String,
    /// What the application asks for.
    pub qos: Qos,
    /// The algorithm with parameters that the application itself asks for; empty when it leaves that to the policy.
    pub asked: String,
    /// Priority of the socket of a program that has one of its own (`SO_PRIORITY`); 0 of all others.
    pub priority: u32,
}

/// What a policy makes of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The rule that matched, by its name; empty when none did.
    pub rule: String,
    /// Algorithm with parameters, as [`registry::parse`](crate::registry::parse) reads it.
    pub algorithm: String,
    /// What takes its place while the path does not carry the signals it needs, or when it misbehaves.
    pub substitute: String,
    /// Index of its class in [`Policy::classes`].
    pub class: usize,
    /// Its weight among the flows of its class, 1 to 10,000.
    pub weight: u32,
    /// What it may send at most.
    pub cap: Option<Rate>,
    /// What it may count on.
    pub guarantee: Option<Rate>,
    /// Differentiated-services code point that its packets are to carry, 0 to 63; `None`: what the application asks for.
    pub dscp: Option<u8>,
    /// What is to be settled with the other end.
    pub peer: PeerTerms,
    /// Why so, a sentence each, for people.
    pub why: Vec<String>,
}

/// What a policy has both ends of a flow settle about congestion control, beside this end's algorithm. It goes before what
/// the application says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerTerms {
    /// Whether this end's order goes before what the peer wishes; `None`: as the application has it.
    pub firm: Option<bool>,
    /// Names of the only algorithms that the peer may have this end send with, beside the one chosen; `None`: any.
    pub allow: Option<Vec<String>>,
    /// What the peer is to send with, best first, as [`registry::parse`](crate::registry::parse) reads it; `None`: what the
    /// application wishes.
    pub wish: Option<Vec<String>>,
    /// The peer is to send with nothing but what is wished here.
    pub wish_only: bool,
    /// Names that the peer must not send with, beside those that the application refuses.
    pub refuse: Vec<String>,
}

impl PeerTerms {
    /// Whether the peer may have this end send with this.
    pub fn allows(&self, selection: &str) -> bool {
        self.allow.as_ref().is_none_or(|names| names.iter().any(|n| n == name_of(selection)))
    }

    /// Whether the peer must not send with this, whatever is wished.
    pub fn refuses(&self, selection: &str) -> bool {
        self.refuse.iter().any(|n| n == name_of(selection))
    }

    /// Whether this end may wish that the peer sends with this.
    pub fn may_wish(&self, selection: &str) -> bool {
        let name = name_of(selection);
        let wished = || self.wish.iter().flatten().any(|w| name_of(w) == name);
        !self.refuses(name) && (!self.wish_only || wished())
    }
}

/// The name in front of an algorithm's parameters.
fn name_of(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

/// How flows of a class are put in order when not all can send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// By their weights.
    #[default]
    Fair,
    /// The heaviest first, the others only when it has nothing to send.
    Strict,
    /// The nearest deadline first.
    Deadline,
}

/// A class of traffic: a share of what this host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Index of the class whose share this one divides further; `None` of those directly below the host.
    pub parent: Option<usize>,
    /// Its weight among its siblings, 1 to 10,000.
    pub weight: u32,
    /// Classes of a lower level send only what those of higher levels (0 the highest) leave; 0 to 7.
    pub level: u8,
    /// What it may count on.
    pub guarantee: Option<Rate>,
    /// What it may send at most.
    pub cap: Option<Rate>,
    /// How its flows are put in order.
    pub order: Order,
}

/// A policy that holds.
pub trait Policy: Send + Sync + Debug {
    /// What becomes of a flow. First match wins; there is always an answer.
    fn choose(&self, traffic: &Traffic) -> Choice;
    /// The classes; at least one. Parents stand before their children.
    fn classes(&self) -> &[Class];
    /// What this host may send at most, all flows together.
    fn process_cap(&self) -> Option<Rate>;
    /// Grows with every change, so that whoever asked before knows to ask again.
    fn version(&self) -> u64;
    /// The algorithms that it names for what this host sends, by their names, and where: `rule "nightly" (line 7)`. One that
    /// is named in several places is there several times.
    fn algorithms(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
