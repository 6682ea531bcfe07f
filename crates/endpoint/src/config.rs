//! Settings of endpoints, servers, connection attempts and queue pairs.

use std::net::SocketAddr;
use std::sync::Arc;
use transport::TransportOptions;
use transport::connection::Authority;
use transport::crypto::{ClientAuth, Credentials, OneTimeToken, ServerTrust};

/// Settings of an endpoint.
pub struct Config {
    /// Options of its connections.
    pub options: TransportOptions,
    /// What it shows of itself, as client and as server.
    pub credentials: Arc<Credentials>,
    /// Answers connections when present.
    pub server: Option<ServerConfig>,
    /// Limits of verbs objects.
    pub limits: verbs::Limits,
    /// Secret of stateless resets. One that survives a restart lets resets reach peers of the time before. No two endpoints
    /// at the same time may have the same: each would end the other's connections for whoever knows their identifiers (RFC
    /// 9000, section 21.11). All zero, as a client has it, which is at another port when it starts again: a random one.
    pub static_secret: [u8; 32],
    /// Seconds since 1970 at time zero of the driver's clock, for certificates.
    pub unix_epoch: u64,
}

impl core::fmt::Debug for Config {
    /// Without the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Config { options, credentials, server, limits, static_secret: _, unix_epoch } = self;
        f.debug_struct("Config")
            .field("options", options)
            .field("credentials", credentials)
            .field("server", server)
            .field("limits", limits)
            .field("unix_epoch", unix_epoch)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// A client with default options.
    pub fn client(credentials: Arc<Credentials>) -> Config {
        Config {
            options: TransportOptions::default(),
            credentials,
            server: None,
            limits: verbs::Limits::default(),
            static_secret: [0; 32],
            unix_epoch: 0,
        }
    }
}

/// Settings of the answering side.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Which clients the handshake accepts.
    pub auth: ClientAuth,
    /// Who of them may do anything: listed keys, or holders of one-time tokens.
    pub authority: Authority,
    /// Connections at most; further ones are refused with a word.
    pub max_connections: usize,
    /// Unfinished handshakes at most, counted apart. When there are more, the oldest of the address that has most of them is
    /// given up for one of another address.
    pub max_half_open: usize,
    /// From this many unfinished handshakes on, clients must prove their address first (Retry).
    pub retry_above: usize,
    /// Answers clients by iWARP, too, where the driver listens for them.
    pub iwarp: Option<crate::IwarpServer>,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys: Some(Vec::new()), tokens: Vec::new() },
            max_connections: 10_000,
            max_half_open: 4_096,
            retry_above: 256,
            iwarp: None,
        }
    }
}

/// The parameters of a client's connection.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Where the server is.
    pub remote: SocketAddr,
    /// Its name, for X.509 and messages.
    pub server_name: String,
    /// Which server is trusted.
    pub trust: ServerTrust,
    /// A one-time token to present.
    pub token: Option<OneTimeToken>,
    /// Options of this connection; `None` takes the endpoint's.
    pub options: Option<TransportOptions>,
    /// Connects by iWARP instead of the native transport; of the options only the number of queue pairs counts then.
    pub iwarp: Option<crate::Iwarp>,
}

/// Why a connection cannot be started, or a queue pair not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Settings that cannot be used.
    #[error("{0}")]
    Settings(String),
    /// No such connection, or it is not open.
    #[error("the connection is not open")]
    NotOpen,
    /// A limit of this end or of the peer.
    #[error("no more queue pairs on this connection: the limit of {0} is reached")]
    TooMany(u64),
    /// A guarantee or a deadline that cannot be kept.
    #[error("{0}")]
    Refused(#[from] cc::engine::admission::Refusal),
    /// The client at the other end has as many queue pairs here as it may.
    #[error("this client has its share of the {0} queue pairs; end other connections first")]
    Share(usize),
    /// The adapter has no room.
    #[error("{0}")]
    Verbs(#[from] verbs::Error),
}

/// A further queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpOptions {
    /// Whether lost data is sent again.
    pub reliable: bool,
    /// 0 (highest) to 7.
    pub priority: u8,
    /// Congestion control of its own (`cubic`, `fixed:rate=1gbit`), at both ends; empty shares the connection's.
    pub cc: String,
    /// What this end asks of the network for it; `None`: what the connection asks.
    pub qos: Option<cc::platform::Qos>,
    /// The application's name for policies, where it is another than the connection's.
    pub application: Option<String>,
    /// Differentiated-services code point of its packets, 0 to 63, where it is another than the connection's; a policy may
    /// name yet another.
    pub dscp: Option<u8>,
    /// For the peer's application, at most 1,024 bytes.
    pub private_data: Vec<u8>,
}

impl Default for QpOptions {
    fn default() -> QpOptions {
        let (cc, private_data) = Default::default();
        QpOptions { reliable: true, priority: 4, cc, qos: None, application: None, dscp: None, private_data }
    }
}
