//! Options of control sockets and policy sources, and the `cc` commands that use them.

use super::heading;
use admin::proto::FlowId;
use admin::source::{Source, Store};
use base::Rate;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// Who may see and change this process while it runs, and where its policy is from.
#[derive(Args, Clone, Debug, Default)]
pub struct AdminOptions {
    /// Congestion control policy: a file, or etcd[s]://HOST[:PORT][,HOST...]/KEY (default: built in).
    ///
    /// Changes there take effect while this runs. etcds:// is etcd with TLS.
    #[arg(long, value_name = "SOURCE", help_heading = heading::CONGESTION_CONTROL)]
    pub policy: Option<Source>,
    #[command(flatten)]
    pub access: StoreAccess,
    #[command(flatten)]
    pub control: Control,
}

/// Who may see and change a process while it runs.
#[derive(Args, Clone, Debug, Default)]
pub struct Control {
    /// Do not open a control socket, which hides this process from `longhaul cc show` and `set`.
    #[arg(long, hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub no_control: bool,
    /// Group whose members may use the control socket (default: this user and root only).
    #[arg(long, value_name = "GROUP", conflicts_with = "no_control", hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub control_group: Option<String>,
}

/// How to get at a central store. The password is in LONGHAUL_STORE_PASSWORD.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreAccess {
    /// CA certificates of the etcd store, in PEM (default: the system's).
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub store_ca: Option<PathBuf>,
    /// Client certificate for the etcd store, in PEM (default: none).
    #[arg(long, value_name = "FILE", requires = "store_key", hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub store_cert: Option<PathBuf>,
    /// Private key of --store-cert, in PEM (default: none).
    #[arg(long, value_name = "FILE", requires = "store_cert", hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub store_key: Option<PathBuf>,
    /// User of the etcd store (default: none).
    ///
    /// Its password is in the environment variable LONGHAUL_STORE_PASSWORD.
    #[arg(long, value_name = "NAME", hide_short_help = true, help_heading = heading::CONGESTION_CONTROL)]
    pub store_user: Option<String>,
}

/// A flow of one of several processes: `PID/CONNECTION.FLOW`, or without `PID/` where there is one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAddress {
    /// The process.
    pub pid: Option<u32>,
    /// The flow in it.
    pub flow: FlowId,
}

impl FromStr for FlowAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<FlowAddress, String> {
        let (pid, flow) = match text.split_once('/') {
            Some((pid, flow)) => (Some(pid), flow),
            None => (None, text),
        };
        let wrong = || "not a flow; try PID/CONNECTION.FLOW, as `longhaul cc show` prints it".to_owned();
        let pid = pid.map(str::parse).transpose().map_err(|_| wrong())?;
        Ok(FlowAddress { pid, flow: flow.parse().map_err(|_| wrong())? })
    }
}

#[derive(Args, Debug)]
pub struct ShowFlows {
    /// Show this process only (default: all).
    #[arg(long, value_name = "PID", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
    /// Repeat every second until interrupted.
    #[arg(short, long, help_heading = heading::OUTPUT)]
    pub watch: bool,
    /// Show why each flow is treated so.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub why: bool,
    /// Print one JSON object on standard output, one per line with --watch.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Status {
    /// Show this process only (default: all).
    #[arg(long, value_name = "PID", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
    /// Show recent events.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub events: bool,
    /// Print one JSON object on standard output.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "flow"]), after_help = heading::UNITS)]
pub struct Set {
    /// Policy file for the running processes, in force until their own source changes.
    #[arg(value_name = "POLICY")]
    pub file: Option<PathBuf>,
    /// Change this flow instead, until the policy changes (default: unset).
    #[arg(long, value_name = "PID/FLOW", conflicts_with_all = ["pid"], help_heading = heading::CONGESTION_CONTROL)]
    pub flow: Option<FlowAddress>,
    /// Congestion control of the flow with parameters, or the system's name of one for an iWARP flow (default: unchanged).
    #[arg(long, value_name = "SPEC", value_parser = of_running, requires = "flow", conflicts_with = "file",
          help_heading = heading::CONGESTION_CONTROL)]
    pub cc: Option<String>,
    /// Rate limit of the flow, or none (default: unchanged).
    ///
    /// The lowest of it, --limit and the policy's caps holds.
    #[arg(long, value_name = "RATE", value_parser = cap, requires = "flow", conflicts_with = "file",
          help_heading = heading::CONGESTION_CONTROL)]
    pub cap: Option<Cap>,
    /// Change this process only (default: all).
    #[arg(long, value_name = "PID", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
}

/// A cap, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub Option<Rate>);

/// Congestion control of a process that runs: what is not known here it may have loaded, and says itself what is wrong.
fn of_running(text: &str) -> Result<String, String> {
    match ::cc::registry::parse(text) {
        Ok(_) | Err(::cc::registry::Error::UnknownAlgorithm { .. }) => Ok(text.to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

fn cap(text: &str) -> Result<Cap, String> {
    if text == "none" { Ok(Cap(None)) } else { crate::units::rate(text).map(|r| Cap(Some(r))) }
}

#[derive(Args, Debug)]
pub struct Push {
    /// Policy file.
    ///
    /// All of it is checked before any of it is written.
    #[arg(value_name = "POLICY")]
    pub file: PathBuf,
    /// Store to write to: etcd[s]://HOST[:PORT][,HOST...]/KEY, where etcds is etcd with TLS.
    #[arg(long, value_name = "URL", help_heading = heading::CONGESTION_CONTROL)]
    pub store: Store,
    #[command(flatten)]
    pub access: StoreAccess,
    /// Print one JSON object on standard output.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Pull {
    /// Store to read from: etcd[s]://HOST[:PORT][,HOST...]/KEY, where etcds is etcd with TLS.
    #[arg(long, value_name = "URL", help_heading = heading::CONGESTION_CONTROL)]
    pub store: Store,
    #[command(flatten)]
    pub access: StoreAccess,
}

#[derive(Args, Debug)]
pub struct Load {
    /// Program: ALG.wasm, ALG.c (needs clang), or the name of a shipped one (reno, cubic, dctcp, vegas, gradient).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Load into this process only (default: all).
    #[arg(long, value_name = "PID", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
}

#[derive(Args, Debug)]
pub struct Unload {
    /// Its name.
    pub name: String,
    /// Unload even if the policy in force names the program.
    ///
    /// New flows of it run their fallback then, and `longhaul cc status` says so.
    #[arg(long, help_heading = heading::CONGESTION_CONTROL)]
    pub force: bool,
    /// Unload from this process only (default: all).
    #[arg(long, value_name = "PID", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
}

#[derive(Args, Debug)]
pub struct TraceFlow {
    /// Trace this flow only (default: all).
    #[arg(long, value_name = "PID/FLOW", help_heading = heading::CONGESTION_CONTROL)]
    pub flow: Option<FlowAddress>,
    /// Trace this process (default: the only one).
    #[arg(long, value_name = "PID", conflicts_with = "flow", help_heading = heading::CONGESTION_CONTROL)]
    pub pid: Option<u32>,
    /// Print every Nth decision of a flow, from 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..),
          help_heading = heading::OUTPUT)]
    pub every: u32,
    /// Exit after N decisions (default: none, run until interrupted).
    #[arg(short = 'n', long, value_name = "N", help_heading = heading::OUTPUT)]
    pub count: Option<u64>,
    /// Print one JSON object per line.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_addresses_and_caps_parse() {
        let flow = FlowId { connection: 3, flow: 1 };
        assert_eq!("47/3.1".parse(), Ok(FlowAddress { pid: Some(47), flow }));
        assert_eq!("3.1".parse(), Ok(FlowAddress { pid: None, flow }));
        for bad in ["", "x/3.1", "47/", "47/3.x", "-1/3"] {
            assert!(bad.parse::<FlowAddress>().unwrap_err().contains("PID/"), "{bad}");
        }
        assert_eq!(cap("none"), Ok(Cap(None)));
        assert_eq!(cap("8bit"), Ok(Cap(Some(Rate::from_bits_per_sec(8)))));
        assert!(cap("much").is_err());
    }
}
