//! How an end sends, on the command line, and what both ends agree on about that.

use super::{Intent, Programs};
use crate::units;
use base::Rate;
use clap::Args;
use endpoint::{Allow, CcNegotiation, Coupling, LaneChoice};

/// How this end sends.
#[derive(Args, Clone, Debug)]
pub struct Sending {
    #[command(flatten)]
    pub programs: Programs,
    /// Send no faster than this (500mbit, 60MB/s).
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub limit: Option<Rate>,
    /// Congestion control with parameters (bbr, cubic, fixed:rate=500M), or several in order of preference
    /// (haul,cubic:hystart=off): the first that the other end and its wishes allow is used. See `longhaul cc describe`.
    #[arg(long, value_name = "SPEC[,SPEC...]", default_value = ::cc::registry::DEFAULT, value_parser = preferences)]
    pub cc: String,
    #[command(flatten)]
    pub lending: Lending,
    #[command(flatten)]
    pub wishing: Wishing,
    /// A rate known to be free on the path (guaranteed or leased): used from the first round trip.
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub known_rate: Option<Rate>,
    #[command(flatten)]
    pub intent: Intent,
    /// Whether paths of a connection that lead over the same bottleneck take one share of it together (auto: those that
    /// are found to; always: all of them; never).
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = super::coupling)]
    pub coupling: Coupling,
    /// What goes over which path of a connection that has several (aggregate: all carry what they can; backup: the nearest
    /// only, until it fails; latency: short messages and the ends of long ones where they arrive first).
    #[arg(long, value_name = "HOW", default_value = "aggregate", value_parser = super::lane_choice)]
    pub scheduler: LaneChoice,
}

/// How the server is to send. Its own limits hold as well.
#[derive(Args, Clone, Debug)]
pub struct Asking {
    /// Have the server send no faster than this (500mbit, 60MB/s); its own limit holds if it is smaller.
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub limit: Option<Rate>,
    /// Congestion control of the server with parameters (bbr, cubic, fixed:rate=500M), or several in order of preference:
    /// the first that it lends; its own when left out. See `longhaul cc describe`.
    #[arg(long, value_name = "SPEC[,SPEC...]", value_parser = preferences)]
    pub cc: Option<String>,
    #[command(flatten)]
    pub wishing: Wishing,
    /// A rate known to be free on the path (guaranteed or leased): used from the first round trip.
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub known_rate: Option<Rate>,
    #[command(flatten)]
    pub intent: Intent,
}

/// What the other end may have this one send with.
#[derive(Args, Clone, Debug, Default)]
pub struct Lending {
    /// What --cc names goes before what the other end wishes to be sent with.
    #[arg(long)]
    pub cc_firm: bool,
    /// Of the other algorithms, send with these only where the other end wishes it (NAME,NAME or none); with any of them
    /// when left out.
    #[arg(long, value_name = "NAMES")]
    pub cc_allow: Option<String>,
}

/// What the other end is to send with.
#[derive(Args, Clone, Debug, Default)]
pub struct Wishing {
    /// Congestion control that the other end is to send with, best first (reno,cubic:hystart=off). It has its way if it is firm.
    #[arg(long, value_name = "SPEC[,SPEC...]")]
    pub cc_wish: Option<String>,
    /// The other end sends with what --cc-wish names, or there is no connection.
    #[arg(long, requires = "cc_wish")]
    pub cc_wish_only: bool,
    /// Congestion control that the other end must not send with.
    #[arg(long, value_name = "NAMES")]
    pub cc_refuse: Option<String>,
}

impl Sending {
    /// The first choice for what this end sends.
    pub fn first_cc(&self) -> &str {
        ::cc::registry::preferences(&self.cc)[0]
    }

    /// What is settled with the other end.
    pub fn negotiation(&self) -> CcNegotiation {
        let also = ::cc::registry::preferences(&self.cc).into_iter().skip(1).map(str::to_owned).collect();
        let allow = match self.lending.cc_allow.as_deref() {
            None => Allow::All,
            Some("none") => Allow::Only(Vec::new()),
            Some(names) => Allow::Only(list(names)),
        };
        CcNegotiation { firm: self.lending.cc_firm, also, allow, ..self.wishing.negotiation() }
    }
}

impl Wishing {
    /// What is settled with the other end for what that sends.
    pub fn negotiation(&self) -> CcNegotiation {
        let wish = self.cc_wish.as_deref().map(::cc::registry::preferences).unwrap_or_default();
        CcNegotiation {
            wish: wish.into_iter().map(str::to_owned).collect(),
            only_wished: self.cc_wish_only,
            refuse: self.cc_refuse.as_deref().map(list).unwrap_or_default(),
            ..CcNegotiation::default()
        }
    }

    /// Whether nothing is wished.
    pub fn is_empty(&self) -> bool {
        self.cc_wish.is_none() && self.cc_refuse.is_none()
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

    fn put(flags: &str) -> Result<Sending, clap::Error> {
        let line = format!("longhaul put a longhaul://host/x {flags}");
        let command = crate::args::Cli::try_parse_from(line.split_whitespace())?.command;
        match command {
            crate::args::Command::Put(p) => Ok(p.sending),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn preferences_become_terms() {
        let s =
            put("--cc haul,cubic:hystart=off,initial_window=20,reno --cc-firm --cc-allow bbr,vegas").unwrap();
        let n = s.negotiation();
        assert_eq!(s.first_cc(), "haul");
        assert_eq!(
            (n.firm, &n.also[..]),
            (true, &["cubic:hystart=off,initial_window=20".to_owned(), "reno".into()][..])
        );
        assert_eq!(n.allow, Allow::Only(vec!["bbr".into(), "vegas".into()]));
        let n = put("--cc-wish reno,unheard-of --cc-wish-only --cc-refuse bbr --cc-allow none")
            .unwrap()
            .negotiation();
        assert_eq!((n.only_wished, n.wish.len(), n.refuse.len(), n.allow), (true, 2, 1, Allow::Only(vec![])));
        assert_eq!(put("").unwrap().negotiation(), CcNegotiation::default());
        for bad in ["--cc haul,nonsense", "--cc haul,", "--cc-wish-only", "--cc cubic:hystart=perhaps,reno"] {
            assert_eq!(put(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
