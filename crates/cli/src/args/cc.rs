//! `longhaul cc`: its subcommands and their flags.

use super::heading;
use super::live::{Control, Load, Pull, Push, Set, ShowFlows, Status, StoreAccess, TraceFlow, Unload};
use admin::source::Source;
use base::units;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What administrators see and say of congestion control.
#[derive(Subcommand, Debug)]
pub enum Cc {
    /// List algorithms, and programs in the kernel's TCP.
    List,
    /// Describe the parameters of one algorithm or of all.
    Describe {
        /// The algorithm.
        name: Option<String>,
    },
    /// Show processes that move data, and their flows.
    Show(ShowFlows),
    /// Show where each process has its policy from, and its state.
    Status(Status),
    /// Change the policy of running processes, or one flow.
    Set(Set),
    /// Write a policy into a central store, for all hosts that watch it.
    Push(Push),
    /// Print the policy of a central store.
    Pull(Pull),
    /// Print decisions of algorithms as they are made, until interrupted.
    Trace(TraceFlow),
    /// Load a program into running processes.
    ///
    /// Its name can be selected there from then on, and flows that run other code of this name change to it.
    Load(Load),
    /// Unload a program from running processes.
    ///
    /// Flows that run it keep it. Refused where the policy in force names it.
    Unload(Unload),
    /// Build a program: ALG.wasm for Longhaul and ALG.bpf.o for the kernel's TCP.
    ///
    /// The source is C against opencc.h. Needs clang and lld.
    Build(Build),
    /// Test an algorithm against the rules for all, and in virtual time.
    ///
    /// The exit code is 1 if it fails.
    Test(Test),
    /// Check and explain policies: which traffic gets which algorithm, class and share.
    #[command(subcommand)]
    Policy(Policy),
    /// Attach a program or a policy to the kernel's TCP.
    ///
    /// A program can then be chosen by any socket (TCP_CONGESTION); a policy holds for the TCP connections of all programs.
    Attach(Attach),
    /// Detach a program or a policy from the kernel's TCP; connections that use it keep it.
    Detach(Detach),
}

/// `longhaul cc detach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["name", "policy"]))]
pub struct Detach {
    /// The program, by its name in the kernel.
    pub name: Option<String>,
    /// Detach the policy for TCP connections.
    #[arg(long, help_heading = heading::CONGESTION_CONTROL)]
    pub policy: bool,
    /// Folder of the cgroup (version 2) to detach it from (default: all processes).
    #[arg(long, value_name = "FOLDER", requires = "policy", help_heading = heading::CONGESTION_CONTROL)]
    pub cgroup: Option<PathBuf>,
}

/// Policies.
#[derive(Subcommand, Debug)]
pub enum Policy {
    /// Check a policy file.
    ///
    /// Every mistake is printed with its line and a remedy. The exit code is 2 if the policy cannot be used.
    Check {
        /// The file.
        file: PathBuf,
        /// Print one JSON object on standard output.
        #[arg(long, help_heading = heading::OUTPUT)]
        json: bool,
    },
    /// Explain how a policy treats a flow: rule, algorithm, parameters, class, share.
    Explain {
        /// Flow, such as 10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=native cc=bbr priority=6.
        ///
        /// In one argument or several. Ports and words can be left out, and * stands for an address of this host.
        #[arg(required = true, value_name = "FLOW")]
        flow: Vec<String>,
        /// Policy file (default: the built-in policy).
        #[arg(long, value_name = "FILE", help_heading = heading::CONGESTION_CONTROL)]
        policy: Option<PathBuf>,
        /// Explain the policy that is attached to the cgroup in FOLDER, or to all processes (default: unset).
        ///
        /// See `longhaul cc attach --policy`.
        #[arg(long, value_name = "FOLDER", num_args = 0..=1, conflicts_with = "policy",
              help_heading = heading::CONGESTION_CONTROL)]
        attached: Option<Option<PathBuf>>,
        /// Print one JSON object on standard output.
        #[arg(long, help_heading = heading::OUTPUT)]
        json: bool,
    },
    /// Print the built-in policy, which holds where no other says anything.
    BuiltIn,
}

/// `longhaul cc build`.
#[derive(Args, Debug)]
pub struct Build {
    /// The source, ALG.c.
    pub source: PathBuf,
    /// Folder for the results (default: the current one).
    #[arg(short, long, value_name = "DIR", help_heading = heading::CONGESTION_CONTROL)]
    pub out: Option<PathBuf>,
    /// Write opencc.h and opencc_window.h there, too, for editors.
    #[arg(long, help_heading = heading::CONGESTION_CONTROL)]
    pub headers: bool,
}

/// `longhaul cc test`.
#[derive(Args, Debug)]
pub struct Test {
    /// Name of an algorithm or a shipped program, or a file (ALG.wasm, ALG.c), with parameters, such as gradient.c:gain=8.
    pub algorithm: String,
    /// Print one JSON object on standard output.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Programs that this process is to know.
#[derive(Args, Clone, Debug, Default)]
pub struct Programs {
    /// Congestion-control program, before the --cc that names it: ALG.wasm, ALG.c or a shipped name (repeatable; default:
    /// none).
    ///
    /// Shipped are reno-c, cubic-c, dctcp-c, vegas-c and gradient. ALG.c needs clang.
    #[arg(long = "cc-program", value_name = "FILE", value_parser = program, hide_short_help = true,
          help_heading = heading::CONGESTION_CONTROL)]
    pub programs: Vec<String>,
}

fn program(text: &str) -> Result<String, String> {
    crate::cc::programs::load(std::path::Path::new(text)).map(str::to_owned)
}

/// `longhaul cc attach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["tcp", "policy"]))]
pub struct Attach {
    /// Program for the kernel's TCP: FILE.c (needs clang), an object, or the name of a shipped one (default: unset).
    ///
    /// Objects are made by `clang -target bpf`.
    #[arg(long, value_name = "FILE", help_heading = heading::CONGESTION_CONTROL)]
    pub tcp: Option<PathBuf>,
    /// Policy for TCP connections of all programs: a file, or etcd[s]://HOST[:PORT][,HOST...]/KEY (default: unset; the
    /// built-in one without SOURCE).
    ///
    /// Its rules say by which of the kernel's algorithms new connections send, and how fast each may. Attached again, it
    /// replaces the one before at once.
    #[arg(long, value_name = "SOURCE", num_args = 0..=1, help_heading = heading::CONGESTION_CONTROL)]
    pub policy: Option<Option<Source>>,
    /// Keep running, and apply every change of SOURCE.
    #[arg(long, requires = "policy", help_heading = heading::CONGESTION_CONTROL)]
    pub watch: bool,
    #[command(flatten)]
    pub access: StoreAccess,
    #[command(flatten)]
    pub control: Control,
    /// Name in the kernel, 1 to 15 letters, digits or _ (default: the program's own).
    #[arg(long, conflicts_with = "policy", value_name = "NAME", help_heading = heading::CONGESTION_CONTROL)]
    pub name: Option<String>,
    /// Parameter of the program, a number with or without a unit such as 20mbit, 10ms, 64KiB or 0.5% (repeatable; default:
    /// as compiled).
    ///
    /// Without a unit, it is in the units of opencc.h: bytes, bytes per second, nanoseconds or parts of 100,000.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param, conflicts_with = "policy",
          help_heading = heading::CONGESTION_CONTROL)]
    pub params: Vec<(String, u64)>,
    /// Make it the default of new connections in this network namespace.
    #[arg(long, conflicts_with_all = ["cgroup", "policy"], help_heading = heading::CONGESTION_CONTROL)]
    pub default: bool,
    /// Folder of the cgroup (version 2) whose processes it is for (default: all processes).
    #[arg(long, value_name = "FOLDER", help_heading = heading::CONGESTION_CONTROL)]
    pub cgroup: Option<PathBuf>,
}

/// A parameter as programs have them in memory: bytes per second, nanoseconds, bytes, parts of 100,000. With a unit it is
/// converted; a letter alone (20M) could be a rate or a size.
fn param(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("not a parameter; try NAME=VALUE, such as gain=8")?;
    Ok((name.to_owned(), number_of(value.trim())?))
}

fn number_of(value: &str) -> Result<u64, String> {
    if let Ok(n) = value.parse() {
        return Ok(n);
    }
    if let Some(percent) = value.strip_suffix('%') {
        let parts = units::decimal(percent.trim(), 1_000);
        return parts.ok_or_else(|| format!("`{value}` is not a percentage; try one such as 0.5%"));
    }
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim().to_ascii_lowercase();
    if unit.len() > 1 {
        // No unit of two letters or more is one of two quantities.
        let rate = units::rate(value).map(|r| r.bytes_per_sec());
        let time = || units::time(value).map(|t| t.as_nanos());
        if let Ok(n) = rate.or_else(|_| time()).or_else(|_| units::size(value)) {
            return Ok(n);
        }
    }
    let one = match unit.as_str() {
        "s" | "h" | "d" => units::time(value).map(|t| t.as_nanos()),
        "b" => units::size(value),
        _ => {
            return Err(format!(
                "`{value}` is not a number; try a whole number, a rate such as 20mbit or 60MB/s, a time such as \
                 10ms, a size such as 64KiB, or a percentage such as 0.5%"
            ));
        }
    };
    one.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_parameters_parse_with_and_without_units() {
        for (text, value) in [
            ("x=17", 17),
            ("x=20mbit", 2_500_000),
            ("x=20Mbit/s", 2_500_000),
            ("x=1MB/s", 1_000_000),
            ("x=10ms", 10_000_000),
            ("x=3s", 3_000_000_000),
            ("x=64KiB", 65_536),
            ("x=1500B", 1_500),
            ("x=0.5%", 500),
        ] {
            assert_eq!(param(text), Ok(("x".to_owned(), value)), "{text}");
        }
        for bad in ["x=20M", "x=fast", "x=", "x=1.5", "x=-3s"] {
            assert!(param(bad).unwrap_err().contains("a rate such as 20mbit"), "{bad}");
        }
        assert!(param("x").is_err() && param("x=5y%").is_err());
    }
}
