//! Options of one end of a connection: ciphers, congestion control, packet sizes, time-outs, paths.

use crate::crypto::Suite;
use crate::negotiation::Allow;
use base::{Rate, Span};
use std::net::{IpAddr, SocketAddr};
use wire::Module;

/// A further path (pair of addresses) that a client adds to its connection once it is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdditionalPath {
    /// From this address of its own; the system chooses when left out.
    pub local: Option<IpAddr>,
    /// To this address of the server.
    pub remote: SocketAddr,
    /// It carries data only while no other path does.
    pub backup: bool,
}

/// Whether lanes that share a bottleneck are limited together to one flow's share of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// Those that are found to share one.
    #[default]
    Auto,
    /// All lanes, whatever is found: one at a time carries data.
    Always,
    /// None: each lane is a flow of its own.
    Never,
}

/// Whether a client adds paths by itself, over pairs of its own addresses and those that the server advertises, where
/// this machine has a route from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathDiscovery {
    /// As many as use further addresses: of a pair that is added, one is not used by any other path.
    #[default]
    Auto,
    /// All pairs.
    Mesh,
    /// None, and the server is not asked for its addresses; of a server: none are told.
    Off,
}

impl PathDiscovery {
    /// Whether a server is asked for its addresses.
    pub const fn asks(self) -> bool {
        !matches!(self, PathDiscovery::Off)
    }
}

/// Which lane carries which data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneChoice {
    /// All lanes carry what they can; the end of what waits goes where it arrives first.
    #[default]
    Aggregate,
    /// The lane with the shortest round trip, and another one when that is gone.
    Backup,
    /// Each message's end, and so all of a short one, goes where it arrives first.
    Latency,
}

/// What this end offers, accepts and prefers in the negotiation of congestion control. Both ends' settings are
/// combined in the handshake and also apply to later changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CcNegotiation {
    /// This end's choice for what it sends goes before what the peer preferences.
    pub prefer_own: bool,
    /// What this end sends with where the peer does not have its choice, best first, as [`cc::registry::parse`] reads it: at
    /// most [`wire::cc::MAX_CC_OFFERS`] with the choice. What `allow` contains comes behind.
    pub also: Vec<String>,
    /// What the peer may have this end send with instead, beside `also`.
    pub allow: Allow,
    /// What the peer should send with, best first: as [`cc::registry::parse`] reads it. Algorithms that this program
    /// does not know can be named without parameters.
    pub preferred: Vec<String>,
    /// The peer is to send with nothing but what is preferred.
    pub preferred_only: bool,
    /// Names of algorithms that the peer must not send with. With `preferred` at most [`wire::cc::MAX_CC_PREFERENCES`].
    pub refuse: Vec<String>,
}

/// Options of one end of a connection. Defaults suit a long fat path without tuning.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Cipher suites, best first.
    pub suites: Vec<Suite>,
    /// What they cost this end, as measured ([`crate::crypto::rank`]); empty: not measured. Both ends' costs decide.
    pub suite_costs: Vec<(Suite, u8)>,
    /// Encryption module: anything but AEAD must be asked for by both ends.
    pub module: Module,
    /// Congestion control of this end's sending: a name of [`cc::registry`] with parameters
    /// (`bbr`, `cubic`, `fixed:rate=500M`).
    pub cc: String,
    /// What the peer may do about that, and what it is to send with.
    pub negotiation: CcNegotiation,
    /// What the application says of its traffic: policies go by it.
    pub intent: cc::platform::Intent,
    /// What decides in its place while the path does not carry the signals that it needs; empty: nothing does.
    pub fallback: String,
    /// Largest IP packet to send, 1228 to 65,535 bytes; the search for the path's finds the rest.
    pub max_packet: u32,
    /// Close after this long without a packet.
    pub idle_timeout: Span,
    /// Send something this often when there is nothing to send; `None` lets idle connections time out.
    pub keep_alive: Option<Span>,
    /// Give up connecting after this long.
    pub connect_timeout: Span,
    /// A rate known to be free on the path (guaranteed): used from the first round trip.
    pub known_rate: Option<Rate>,
    /// What an earlier connection found on the path: used in part as soon as a round trip shows that it may be the same.
    pub remembered: Option<cc::Remembered>,
    /// The administrator's cap on this end's sending.
    pub rate_cap: Option<Rate>,
    /// Whether lost data of the initial queue pairs is sent again. Unreliable only when both ends ask for it.
    pub reliable: bool,
    /// Queue pairs that are open from the start, 1 to 256; the larger request of both ends holds.
    pub initial_qps: u16,
    /// Queue pairs allowed.
    pub max_qps: u32,
    /// Of a client: paths beside the one that it connects over.
    pub paths: Vec<AdditionalPath>,
    /// Which further ones it adds by itself; of a server, whether it tells clients its addresses.
    pub discover: PathDiscovery,
    /// Whether lanes that share a bottleneck take one share of it, in this end's sending.
    pub coupling: Coupling,
    /// Which lane carries what this end sends.
    pub lane_choice: LaneChoice,
}

impl Default for TransportOptions {
    fn default() -> TransportOptions {
        TransportOptions {
            suites: Suite::preferred(true).to_vec(),
            suite_costs: Vec::new(),
            module: Module::Aead,
            cc: cc::registry::DEFAULT.to_string(),
            fallback: cc::registry::DEFAULT.to_string(),
            negotiation: CcNegotiation::default(),
            intent: cc::platform::Intent::default(),
            max_packet: 65_535,
            idle_timeout: Span::from_secs(30),
            keep_alive: Some(Span::from_secs(10)),
            connect_timeout: Span::from_secs(10),
            known_rate: None,
            remembered: None,
            rate_cap: None,
            reliable: true,
            initial_qps: 1,
            max_qps: 1_024,
            paths: Vec::new(),
            discover: PathDiscovery::default(),
            coupling: Coupling::default(),
            lane_choice: LaneChoice::default(),
        }
    }
}

impl TransportOptions {
    /// Numbers of the suites, and what each costs, 0 where unknown.
    pub(crate) fn offered_suites(&self) -> (Vec<u8>, Vec<u8>) {
        let cost = |s: &Suite| self.suite_costs.iter().find(|(t, _)| t == s).map_or(0, |(_, c)| *c);
        (self.suites.iter().map(|s| s.id()).collect(), self.suites.iter().map(cost).collect())
    }

    /// Largest UDP payload to send over IPv4 or IPv6.
    pub fn max_datagram(&self, v6: bool) -> u16 {
        let overhead = if v6 { 48 } else { 28 };
        // A UDP payload over IPv4 is at most 65,507 bytes.
        self.max_packet.saturating_sub(overhead).clamp(1_200, 65_507) as u16
    }
}
