//! Connections by iWARP: `iwarp://` addresses, and servers that answer them.

use super::heading;
use base::Span;
use clap::{Args, ValueEnum};
use endpoint::{Iwarp, IwarpServer, TransportOptions};
use lhio::tcp::StreamOptions;

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    #[default]
    On,
    /// No.
    Off,
}

/// What both ends ask for of MPA, the layer between TCP and RDMA.
#[derive(Args, Clone, Debug)]
pub struct Mpa {
    /// iWARP: checksum each record (CRC32C).
    ///
    /// It is off only if both ends say so. TCP's own checksum is weak; TLS needs none.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub mpa_crc: Switch,
    /// iWARP: ask the other end for MPA markers.
    ///
    /// They help only adapters that take segments out of order.
    #[arg(long, hide_short_help = true, help_heading = heading::NETWORK)]
    pub mpa_markers: bool,
    /// iWARP: place data before its checksum is verified, which saves a copy.
    ///
    /// Kernels and adapters do the same. Damaged data is never reported as arrived, but programs that watch the memory can
    /// see it, and a damaged header can make data land elsewhere in memory that is open to the peer.
    #[arg(long, hide_short_help = true, help_heading = heading::NETWORK)]
    pub mpa_early: bool,
    /// iWARP: congestion control of TCP, best first, such as cubic or bbr (default: the system's).
    ///
    /// The first one that the kernel has is used, loaded programs included.
    #[arg(long, value_name = "NAME[,NAME...]", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub tcp_cc: Option<String>,
}

impl Mpa {
    fn apply(&self, settings: &mut endpoint::IwarpConfig) {
        settings.crc = self.mpa_crc == Switch::On;
        settings.markers = self.mpa_markers;
        if self.mpa_early {
            settings.placement = endpoint::Placement::Early;
        }
    }
}

/// Of a client.
#[derive(Args, Clone, Debug)]
pub struct IwarpClientOptions {
    /// iWARP: connect without TLS, as in the RFCs; nothing is encrypted or authenticated.
    #[arg(long, hide_short_help = true, help_heading = heading::SECURITY)]
    pub plain: bool,
    #[command(flatten)]
    pub mpa: Mpa,
}

impl IwarpClientOptions {
    /// Whether what the command line asks for is to be had from this kind of address.
    ///
    /// # Errors
    /// What is not, and what to do instead.
    pub fn check(&self, iwarp: bool, o: &TransportOptions) -> Result<(), String> {
        let (wrong, why): (Vec<(bool, &str)>, _) = if iwarp {
            let native = vec![
                (o.cc != cc::registry::DEFAULT, "--cc"),
                (o.negotiation != endpoint::CcNegotiation::default(), "--cc-..."),
                (o.known_rate.is_some(), "--known-rate"),
                (o.module != ::wire::Module::Aead, "--encryption"),
                (!o.paths.is_empty(), "--path and --backup-path"),
            ];
            (
                native,
                "the server's address is iwarp://, where TCP sends; try longhaul://, or --tcp-cc and --plain",
            )
        } else {
            let iwarp = vec![
                (self.plain, "--plain"),
                (self.mpa.mpa_crc == Switch::Off, "--mpa-crc"),
                (self.mpa.mpa_markers, "--mpa-markers"),
                (self.mpa.tcp_cc.is_some(), "--tcp-cc"),
            ];
            (iwarp, "the server's address is not iwarp://; try without, or an iwarp:// address")
        };
        let named: Vec<&str> = wrong.into_iter().filter(|w| w.0).map(|w| w.1).collect();
        if named.is_empty() { Ok(()) } else { Err(format!("cannot use {}: {why}", named.join(", "))) }
    }

    /// How a connection by iWARP is to be made, within how long. Says aloud what is not protected.
    pub fn wanted(&self, connect_timeout: Span) -> Iwarp {
        if self.plain {
            err_line!(
                "WARNING: --plain: data is NOT encrypted and NOT authenticated, and the server's identity is not \
                 checked: anyone on the path can read and change everything"
            );
        }
        let mut i = Iwarp { tls: !self.plain, congestion: self.mpa.tcp_cc.clone(), ..Iwarp::default() };
        self.mpa.apply(&mut i.settings);
        i.settings.startup_timeout = connect_timeout;
        i
    }
}

/// Which clients by iWARP a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IwarpMode {
    /// With TLS below, which only Longhaul speaks: encrypted, and let in by key as others are.
    Tls,
    /// As the RFCs have it: not encrypted, and whoever reaches the port is let in (needs --allow-any-key).
    Plain,
    /// Both.
    Both,
}

/// Of a server.
#[derive(Args, Clone, Debug)]
pub struct IwarpServerOptions {
    /// Accept iWARP too, on the TCP port of the same number (default: off).
    #[arg(long, value_enum, value_name = "HOW", help_heading = heading::NETWORK)]
    pub iwarp: Option<IwarpMode>,
    #[command(flatten)]
    pub mpa: Mpa,
}

impl IwarpServerOptions {
    /// What the driver is told, if anything.
    pub fn streams(&self) -> Option<StreamOptions> {
        self.iwarp.map(|_| StreamOptions { congestion: self.mpa.tcp_cc.clone() })
    }

    /// What the endpoint is told, if anything. Says aloud what is not protected.
    ///
    /// # Errors
    /// Plain connections without having been told to let everybody in.
    pub fn server(&self, allow_any_key: bool) -> Result<Option<IwarpServer>, String> {
        let Some(answers) = self.iwarp else { return Ok(None) };
        let plain = answers != IwarpMode::Tls;
        if plain && !allow_any_key {
            return Err("cannot use --iwarp plain: clients present no key over it, and anyone who can reach the port \
                        is admitted; try --iwarp tls, or confirm it with --allow-any-key"
                .to_owned());
        }
        if plain {
            err_line!(
                "WARNING: --iwarp {}: over plain iWARP data is NOT encrypted and NOT authenticated, and anyone who \
                 can reach the port is admitted",
                if answers == IwarpMode::Plain { "plain" } else { "both" }
            );
        }
        let mut s = IwarpServer { plain, tls: answers != IwarpMode::Plain, ..IwarpServer::default() };
        // Those that have shown nothing have half of what connections by TCP may have.
        s.max_half_open = s.max_half_open.min(lhio::descriptors::for_streams() / 2).max(1);
        self.mpa.apply(&mut s.settings);
        Ok(Some(s))
    }
}
