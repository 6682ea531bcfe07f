//! `longhaul cc`: its subcommands and their flags.

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
    /// Gives a program to the kernel's TCP, for any socket that asks for it by TCP_CONGESTION.
    Attach(Attach),
    /// Takes it away again; connections that use it keep it.
    Detach {
        /// Its name in the kernel.
        name: String,
    },
}

/// `longhaul cc attach`.
#[derive(Args, Debug)]
pub struct Attach {
    /// Source (FILE.c, needs clang), object made by `clang -target bpf`, or the name of a shipped program.
    #[arg(long, value_name = "FILE")]
    pub tcp: PathBuf,
    /// Its name in the kernel: letters, digits, _ and ., 15 at most [default: the program's own].
    #[arg(long)]
    pub name: Option<String>,
    /// A parameter, in the units of opencc.h (bytes, nanoseconds, parts of 100,000); may be given several times.
    #[arg(long = "param", value_name = "NAME=NUMBER", value_parser = param)]
    pub params: Vec<(String, u64)>,
    /// Makes it what new connections in this network namespace use unless they ask for another.
    #[arg(long, conflicts_with = "cgroup")]
    pub default: bool,
    /// The same for processes in this cgroup (version 2): its folder.
    #[arg(long, value_name = "FOLDER")]
    pub cgroup: Option<PathBuf>,
}

fn param(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=NUMBER")?;
    let value = value.parse().map_err(|_| format!("{value} is not a whole number"))?;
    Ok((name.to_owned(), value))
}
