//! How administrators see and change what runs, and where policies are from.

use admin::proto::FlowId;
use admin::source::{Source, Store};
use base::Rate;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// Who may see and change this process while it runs, and where its policy is from.
#[derive(Args, Clone, Debug, Default)]
pub struct Governing {
    /// Policy of congestion control: a file, or a key in etcd as etcd://HOST[:PORT][,HOST...]/KEY (etcds:// with TLS). What
    /// changes there takes effect while this runs.
    #[arg(long, value_name = "SOURCE")]
    pub policy: Option<Source>,
    #[command(flatten)]
    pub access: StoreAccess,
    #[command(flatten)]
    pub control: Control,
}

/// Who may see and change a process while it runs.
#[derive(Args, Clone, Debug, Default)]
pub struct Control {
    /// Listen at no control socket: `longhaul cc show` and `set` do not see this process.
    #[arg(long)]
    pub no_control: bool,
    /// Let the members of this group use the control socket, too; else this user and root.
    #[arg(long, value_name = "GROUP", conflicts_with = "no_control")]
    pub control_group: Option<String>,
}

/// How to get at a central store. The password is in LONGHAUL_STORE_PASSWORD.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreAccess {
    /// Certificates that the store's must come from, in a PEM file; else those that the system trusts.
    #[arg(long, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
    /// This host's certificate for the store, in a PEM file.
    #[arg(long, value_name = "FILE", requires = "store_key")]
    pub store_cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "store_cert")]
    pub store_key: Option<PathBuf>,
    /// User of the store.
    #[arg(long, value_name = "NAME")]
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
        let wrong =
            || format!("\"{text}\" is not a flow: write PID/CONNECTION.FLOW as `longhaul cc show` prints it");
        let pid = pid.map(str::parse).transpose().map_err(|_| wrong())?;
        Ok(FlowAddress { pid, flow: flow.parse().map_err(|_| wrong())? })
    }
}

#[derive(Args, Debug)]
pub struct ShowFlows {
    /// Of this process only.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Again each second, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Why each flow is treated so, beneath it.
    #[arg(long)]
    pub why: bool,
    /// One JSON object; with --watch one a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Status {
    /// Of this process only.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// What happened, too.
    #[arg(long)]
    pub events: bool,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "flow"]))]
pub struct Set {
    /// The policy that running processes are to have, until their own source has another one.
    #[arg(value_name = "POLICY")]
    pub file: Option<PathBuf>,
    /// Change this flow instead, until the policy changes.
    #[arg(long, value_name = "PID/FLOW", conflicts_with_all = ["pid"])]
    pub flow: Option<FlowAddress>,
    /// Its congestion control with parameters; of a flow by iWARP, a name of the system's TCP.
    #[arg(long, value_name = "SPEC", value_parser = of_running, requires = "flow", conflicts_with = "file")]
    pub cc: Option<String>,
    /// What it may send at most, beside --limit and the policy's caps, of which the smallest holds (500mbit, 60MB/s); none: no
    /// cap of its own.
    #[arg(long, value_name = "RATE", value_parser = cap, requires = "flow", conflicts_with = "file")]
    pub cap: Option<Cap>,
    /// This process only.
    #[arg(long, value_name = "PID")]
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
    /// The policy. All of it is checked before any of it is written.
    #[arg(value_name = "POLICY")]
    pub file: PathBuf,
    /// Where: etcd://HOST[:PORT][,HOST...]/KEY, or etcds:// with TLS.
    #[arg(long, value_name = "URL")]
    pub store: Store,
    #[command(flatten)]
    pub access: StoreAccess,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Pull {
    /// From where: etcd://HOST[:PORT][,HOST...]/KEY, or etcds:// with TLS.
    #[arg(long, value_name = "URL")]
    pub store: Store,
    #[command(flatten)]
    pub access: StoreAccess,
}

#[derive(Args, Debug)]
pub struct Load {
    /// The program: ALG.wasm, ALG.c where clang is, or the name of one that comes with Longhaul (reno, cubic, dctcp, vegas,
    /// gradient).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Into this process only.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

#[derive(Args, Debug)]
pub struct Unload {
    /// Its name.
    pub name: String,
    /// Even if the policy in force names it: new flows of it run their substitute then, and `longhaul cc status` says so.
    #[arg(long)]
    pub force: bool,
    /// From this process only.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

#[derive(Args, Debug)]
pub struct TraceFlow {
    /// Of this flow only.
    #[arg(long, value_name = "PID/FLOW")]
    pub flow: Option<FlowAddress>,
    /// Of this process, where there are several.
    #[arg(long, value_name = "PID", conflicts_with = "flow")]
    pub pid: Option<u32>,
    /// Only every so-many-th decision of a flow.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub every: u32,
    /// End after so many.
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// A JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_processes_and_caps_are_read() {
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
