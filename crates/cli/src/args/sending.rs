//! Options for congestion control, rates and lanes of an end, and for their negotiation with the peer.

use super::{Intent, Programs, heading};
use crate::units;
use base::Rate;
use clap::Args;
use endpoint::{Allow, CcNegotiation, Coupling, LaneChoice};

/// How this end sends.
#[derive(Args, Clone, Debug)]
pub struct SendOptions {
    #[command(flatten)]
    pub programs: Programs,
    /// Send no faster than RATE (default: no limit).
    #[arg(long, value_name = "RATE", value_parser = units::rate, help_heading = heading::NETWORK)]
    pub limit: Option<Rate>,
    /// Congestion control with parameters, or several in order of preference, such as haul,cubic:hystart=off.
    ///
    /// The first one that the other end accepts is used. `longhaul cc describe` lists them.
    #[arg(long, value_name = "SPEC[,SPEC...]", default_value = ::cc::registry::DEFAULT, value_parser = preferences,
          help_heading = heading::CONGESTION_CONTROL)]
    pub cc: String,
    #[command(flatten)]
    pub offered: OfferedAlgorithms,
    #[command(flatten)]
    pub peer_sending: PeerSending,
    /// Rate guaranteed on the path, used from the first round trip (default: unset).
    #[arg(long, value_name = "RATE", value_parser = units::rate, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub known_rate: Option<Rate>,
    #[command(flatten)]
    pub intent: Intent,
    /// Share of paths with a common bottleneck: auto (one share for those found to have one), always (one for all) or never.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = super::coupling, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub coupling: Coupling,
    /// Path scheduler: aggregate (use all paths), backup (the nearest until it fails) or latency.
    ///
    /// With latency, short messages and the ends of long ones go where they arrive first.
    #[arg(long, value_name = "HOW", default_value = "aggregate", value_parser = super::lane_choice,
          hide_short_help = true, help_heading = heading::NETWORK)]
    pub scheduler: LaneChoice,
}

/// How the server is to send. Its own limits hold as well.
#[derive(Args, Clone, Debug)]
pub struct RequestOptions {
    /// Ask the server to send no faster than RATE (default: no limit).
    ///
    /// Its own limit holds if it is lower.
    #[arg(long, value_name = "RATE", value_parser = units::rate, help_heading = heading::NETWORK)]
    pub limit: Option<Rate>,
    /// Congestion control of the server with parameters, or several in order of preference (default: the server's).
    ///
    /// The first one that the server offers is used. `longhaul cc describe` lists them.
    #[arg(long, value_name = "SPEC[,SPEC...]", value_parser = preferences, help_heading = heading::CONGESTION_CONTROL)]
    pub cc: Option<String>,
    #[command(flatten)]
    pub peer_sending: PeerSending,
    /// Rate guaranteed on the path, used from the first round trip (default: unset).
    #[arg(long, value_name = "RATE", value_parser = units::rate, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub known_rate: Option<Rate>,
    #[command(flatten)]
    pub intent: Intent,
}

/// What the other end may have this one send with.
#[derive(Args, Clone, Debug, Default)]
pub struct OfferedAlgorithms {
    /// Give --cc precedence over the other end's --peer-cc.
    #[arg(long, hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub cc_prefer_own: bool,
    /// Other algorithms that the other end may ask this one to send with, or none (default: all).
    #[arg(long, value_name = "NAMES", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub cc_allow: Option<String>,
}

/// What the other end is to send with.
#[derive(Args, Clone, Debug, Default)]
pub struct PeerSending {
    /// Congestion control that the other end should send with, best first (default: its choice).
    ///
    /// With --cc-prefer-own, the other end follows its own --cc.
    #[arg(long, value_name = "SPEC[,SPEC...]", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub peer_cc: Option<String>,
    /// Do not connect if the other end cannot send with one of --peer-cc.
    #[arg(long, requires = "peer_cc", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub peer_cc_only: bool,
    /// Congestion control that the other end must not send with (default: none).
    #[arg(long, value_name = "NAMES", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub peer_cc_refuse: Option<String>,
}

impl SendOptions {
    /// The first choice for what this end sends.
    pub fn first_cc(&self) -> &str {
        ::cc::registry::preferences(&self.cc)[0]
    }

    /// What is settled with the other end.
    pub fn negotiation(&self) -> CcNegotiation {
        let also = ::cc::registry::preferences(&self.cc).into_iter().skip(1).map(str::to_owned).collect();
        let allow = match self.offered.cc_allow.as_deref() {
            None => Allow::All,
            Some("none") => Allow::Only(Vec::new()),
            Some(names) => Allow::Only(list(names)),
        };
        CcNegotiation {
            prefer_own: self.offered.cc_prefer_own,
            also,
            allow,
            ..self.peer_sending.negotiation()
        }
    }
}

impl PeerSending {
    /// What is settled with the other end for what that sends.
    pub fn negotiation(&self) -> CcNegotiation {
        let preferred = self.peer_cc.as_deref().map(::cc::registry::preferences).unwrap_or_default();
        CcNegotiation {
            preferred: preferred.into_iter().map(str::to_owned).collect(),
            preferred_only: self.peer_cc_only,
            refuse: self.peer_cc_refuse.as_deref().map(list).unwrap_or_default(),
            ..CcNegotiation::default()
        }
    }

    /// Whether nothing is preferred.
    pub fn is_empty(&self) -> bool {
        self.peer_cc.is_none() && self.peer_cc_refuse.is_none()
    }
}

fn list(names: &str) -> Vec<String> {
    names.split(',').map(|n| n.trim().to_owned()).collect()
}

/// Selections in order of preference, each of which this program can use.
fn preferences(text: &str) -> Result<String, String> {
    ::cc::registry::preferences(text).into_iter().try_for_each(|one| super::congestion(one).map(drop))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn put(flags: &str) -> Result<SendOptions, clap::Error> {
        let line = format!("longhaul put a longhaul://host/x {flags}");
        let command = crate::args::Cli::try_parse_from(line.split_whitespace())?.command;
        match command {
            crate::args::Command::Put(p) => Ok(p.sending),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn congestion_control_options_become_negotiation_terms() {
        let s =
            put("--cc haul,cubic:hystart=off,initial_window=20,reno --cc-prefer-own --cc-allow bbr,vegas")
                .unwrap();
        let n = s.negotiation();
        assert_eq!(s.first_cc(), "haul");
        assert_eq!(
            (n.prefer_own, &n.also[..]),
            (true, &["cubic:hystart=off,initial_window=20".to_owned(), "reno".into()][..])
        );
        assert_eq!(n.allow, Allow::Only(vec!["bbr".into(), "vegas".into()]));
        let n = put("--peer-cc reno,unheard-of --peer-cc-only --peer-cc-refuse bbr --cc-allow none")
            .unwrap()
            .negotiation();
        assert_eq!(
            (n.preferred_only, n.preferred.len(), n.refuse.len(), n.allow),
            (true, 2, 1, Allow::Only(vec![]))
        );
        assert_eq!(put("").unwrap().negotiation(), CcNegotiation::default());
        for bad in ["--cc haul,nonsense", "--cc haul,", "--peer-cc-only", "--cc cubic:hystart=perhaps,reno"] {
            assert_eq!(put(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
