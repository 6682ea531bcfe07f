//! `longhaul cc`: its subcommands and their flags.

use super::live::{Control, Load, Pull, Push, Set, ShowFlows, Status, StoreAccess, TraceFlow, Unload};
use admin::source::Source;
use base::units;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What administrators see and say of congestion control.
#[derive(Subcommand, Debug)]
pub enum Cc {
    /// Names and what they are; programs in the kernel's TCP.
    List,
    /// Parameters of one algorithm or of all.
    Describe {
        /// The algorithm.
        name: Option<String>,
    },
    /// Processes that move data, and their flows: what each is treated by, and what it does.
    Show(ShowFlows),
    /// Where the policy of each process is from, and how it fares.
    Status(Status),
    /// Give running processes another policy, or change one flow.
    Set(Set),
    /// Write a policy into a central store, from which all hosts that watch it take it.
    Push(Push),
    /// Print the policy that a central store has.
    Pull(Pull),
    /// Print decisions of algorithms as they are made, until interrupted.
    Trace(TraceFlow),
    /// Load a program into running processes: its name can be selected there from then on, and flows that run other code by
    /// this name run this.
    Load(Load),
    /// Take a program's name away in running processes; flows that run it go on with it. Refused where the policy in force
    /// names it.
    Unload(Unload),
    /// Build a program (C against opencc.h): ALG.wasm for Longhaul and ALG.bpf.o for the kernel's TCP. Needs clang and lld.
    Build(Build),
    /// Grade an algorithm: the rules that all have to keep, and transfers in virtual time. Exit code 1 if it fails.
    Test(Test),
    /// Policies: which traffic gets which algorithm, class and share.
    #[command(subcommand)]
    Policy(Policy),
    /// Gives a program to the kernel's TCP, for any socket that asks for it by TCP_CONGESTION; or has a policy's rules hold
    /// for the TCP connections of programs that know nothing of them.
    Attach(Attach),
    /// Takes either away again; connections that use it keep it.
    Detach(DetachWhat),
}

/// `longhaul cc detach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["name", "policy"]))]
pub struct DetachWhat {
    /// A program, by its name in the kernel.
    pub name: Option<String>,
    /// The policy that holds for TCP connections instead.
    #[arg(long)]
    pub policy: bool,
    /// Of this cgroup (version 2), by its folder; else of all processes.
    #[arg(long, value_name = "FOLDER", requires = "policy")]
    pub cgroup: Option<PathBuf>,
}

/// Policies.
#[derive(Subcommand, Debug)]
pub enum Policy {
    /// Check a policy file as a whole: everything that is wrong with it, with lines and remedies. Exit code 2 if it cannot
    /// be used.
    Check {
        /// The file.
        file: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Say what becomes of a flow, and why: rule, algorithm, parameters, class, share.
    Explain {
        /// The flow, in one argument or several: 10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=native
        /// cc=bbr priority=6. Ports and words can be left out, and * stands for an address of this host.
        #[arg(required = true, value_name = "FLOW")]
        flow: Vec<String>,
        /// The policy; the built-in one when left out.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// The policy that holds for TCP connections of this cgroup, or of all processes, instead (see `longhaul cc attach
        /// --policy`).
        #[arg(long, value_name = "FOLDER", num_args = 0..=1, conflicts_with = "policy")]
        attached: Option<Option<PathBuf>>,
        /// One JSON object.
        #[arg(long)]
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
    /// The folder for what is built; this one when left out.
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write opencc.h and opencc_window.h there too, for an editor to look things up in.
    #[arg(long)]
    pub headers: bool,
}

/// `longhaul cc test`.
#[derive(Args, Debug)]
pub struct Test {
    /// A name, also of a shipped program, or a program's file (ALG.wasm, ALG.c), with parameters: cubic, vegas-c, gradient.wasm, gradient.c:gain=8.
    pub algorithm: String,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Programs that this process is to know.
#[derive(Args, Clone, Debug, Default)]
pub struct Programs {
    /// A congestion-control program (ALG.wasm, ALG.c where clang is, or the name of one that comes with Longhaul: reno-c,
    /// cubic-c, dctcp-c, vegas-c, gradient), known by its name to what follows: give it before --cc.
    #[arg(long = "cc-program", value_name = "FILE", value_parser = program)]
    pub programs: Vec<String>,
}

fn program(text: &str) -> Result<String, String> {
    crate::cc::programs::load(std::path::Path::new(text)).map(str::to_owned)
}

/// `longhaul cc attach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["tcp", "policy"]))]
pub struct Attach {
    /// Source (FILE.c, needs clang), object made by `clang -target bpf`, or the name of a shipped program.
    #[arg(long, value_name = "FILE")]
    pub tcp: Option<PathBuf>,
    /// A policy, whose rules then say by which of the kernel's algorithms new TCP connections of any program send, and what
    /// each may send at most: a file, or a key in etcd as etcd://HOST[:PORT][,HOST...]/KEY (etcds:// with TLS); the built-in one
    /// when left out. Attached again, it takes the place of the one before at once.
    #[arg(long, value_name = "SOURCE", num_args = 0..=1)]
    pub policy: Option<Option<Source>>,
    /// Go on until interrupted, and have every other policy hold that is at SOURCE from then on.
    #[arg(long, requires = "policy")]
    pub watch: bool,
    #[command(flatten)]
    pub access: StoreAccess,
    #[command(flatten)]
    pub control: Control,
    /// Its name in the kernel: letters, digits and _, 15 at most [default: the program's own].
    #[arg(long, conflicts_with = "policy")]
    pub name: Option<String>,
    /// A parameter: a number in the units of opencc.h (bytes or bytes per second, nanoseconds, parts of 100,000), or one with its
    /// unit (20mbit, 10ms, 64KiB, 0.5%); may be given several times.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = param, conflicts_with = "policy")]
    pub params: Vec<(String, u64)>,
    /// Makes it what new connections in this network namespace use unless they ask for another.
    #[arg(long, conflicts_with_all = ["cgroup", "policy"])]
    pub default: bool,
    /// The same for processes in this cgroup (version 2): its folder. A policy holds for all processes without it.
    #[arg(long, value_name = "FOLDER")]
    pub cgroup: Option<PathBuf>,
}

/// A parameter as programs have them in memory: bytes per second, nanoseconds, bytes, parts of 100,000. With a unit it is
/// converted; a letter alone (20M) could be a rate or a size.
fn param(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=NUMBER, or a number with a unit")?;
    Ok((name.to_owned(), number_of(value.trim())?))
}

fn number_of(value: &str) -> Result<u64, String> {
    if let Ok(n) = value.parse() {
        return Ok(n);
    }
    if let Some(percent) = value.strip_suffix('%') {
        let parts = units::decimal(percent.trim(), 1_000);
        return parts.ok_or_else(|| format!("cannot read `{value}` as a percentage; write one such as 0.5%"));
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
                "cannot read `{value}`; write a whole number, a rate such as 20mbit or 60MB/s, a time such as 10ms, a size such as \
                 64KiB, or a percentage such as 0.5%"
            ));
        }
    };
    one.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_programs_are_read_with_and_without_units() {
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
