//! Options for QoS, application name and code point of a connection (`--qos`, `--app`, `--dscp`).

use super::heading;
use cc::platform::Qos;
use clap::Args;

/// What is asked of the network, for policies to decide by.
#[derive(Args, Clone, Debug, Default)]
pub struct Intent {
    /// Quality of service, one of ordinary, latency, bulk, scavenger, deadline(SIZE, TIME), guaranteed(RATE) or target(RATE)
    /// (default: ordinary).
    ///
    /// Examples: deadline(10GB, 30s), guaranteed(300M). The policy of the sender says what that means.
    #[arg(long, value_name = "QOS", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub qos: Option<Qos>,
    /// Application name that policies match, 1 to 64 characters (default: longhaul).
    #[arg(long, value_name = "NAME", value_parser = application, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub app: Option<String>,
    /// DSCP of the packets, 0 to 63 or a name such as EF, AF41 or CS1 (default: the policy's).
    ///
    /// Without --qos, the traffic is classified by it. A policy can change it.
    #[arg(long, value_name = "DSCP", value_parser = code_point, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub dscp: Option<u8>,
}

impl Intent {
    /// Whether anything is asked.
    pub fn asks(&self) -> bool {
        self.qos.is_some() || self.app.is_some() || self.dscp.is_some()
    }
}

impl super::RequestOptions {
    /// Whether anything is asked but a limit.
    pub fn asks(&self) -> bool {
        self.cc.is_some() || self.known_rate.is_some() || self.intent.asks()
    }
}

/// One code point.
fn code_point(text: &str) -> Result<u8, String> {
    match policy::read_dscp(text).as_deref() {
        Some([point]) => Ok(*point),
        _ => Err("not a code point; try 0 to 63, or a name such as EF, CS1 or AF41".into()),
    }
}

/// A name that policies can match.
fn application(text: &str) -> Result<String, String> {
    let fits = (1..=policy::MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    let no = || format!("not a usable name; try 1 to {} printable characters", policy::MAX_NAME);
    if fits { Ok(text.to_owned()) } else { Err(no()) }
}
