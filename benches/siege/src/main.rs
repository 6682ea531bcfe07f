//! `longhaul serve` and `longhaul perf server` under all known attacks at once, while somebody else uses them.
//!
//! All of it is on loopback, whose addresses are all of 127.0.0.0/8: servers and the client are at 127.0.0.1, attackers at 127.0.0.2 and
//! 127.0.0.3, each a process that gives way to all others for the processor, as a machine elsewhere would not take it away. What the
//! servers do because of them is done at the servers' own expense.

mod attack;
mod bystander;
mod server;

use anyhow::{Context, Result, ensure};
use base::Span;
use bystander::{Bystander, Rates, WAYS};
use clap::Parser;
use lhio::poll::Poller;
use server::{Place, Server};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

/// Memory that a server may use under attack.
const MEMORY: u64 = 1 << 30;
/// Descriptors that each server may have: attackers can hold more connections than that.
const DESCRIPTORS: u64 = 2_048;
/// Of its rate, a client keeps so much at least.
const SHARE: f64 = 0.5;
/// What attackers held is given back so long after they left, at the latest: a connection without a word ends after 30 s, and what was
/// refused or is over may stay for as long.
const AFTERWARDS: Span = Span::from_secs(90);

/// Attacks servers in every known way at once, and measures what a client gets meanwhile
#[derive(Parser)]
enum Cli {
    /// The siege: fails when something does not hold.
    Run(Run),
    /// One attacker (started by `run`).
    Attack(attack::Target),
}

#[derive(clap::Args)]
struct Run {
    /// How long the attacks last; a third as long, two minutes at most, is measured without them.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The program `longhaul`.
    #[arg(long)]
    longhaul: PathBuf,
    /// Rates are told, and not judged: for short runs.
    #[arg(long)]
    no_rates: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse() {
        Cli::Run(r) => run(&r),
        Cli::Attack(t) => attack::run(&t),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-siege: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Attackers, ended with this.
struct Attackers(Vec<Child>);

impl Attackers {
    fn start(p: &Place, servers: &[&Server; 2]) -> Result<Attackers> {
        let me = std::env::current_exe().context("where this program is")?;
        let mut all = Attackers(Vec::new());
        for (n, home) in p.attackers.iter().enumerate() {
            let mut c = Command::new("nice");
            c.args(["-n", "19"]).arg(&me).arg("attack").env("LONGHAUL_HOME", home);
            c.args(["--from", &format!("127.0.0.{}", n + 2)]);
            c.args(["--serve", &servers[0].at.to_string(), "--perf", &servers[1].at.to_string()]);
            c.args(["--scratch"]).arg(home);
            c.stdin(Stdio::piped()).stdout(Stdio::piped());
            all.0.push(c.spawn().context("cannot start an attacker")?);
        }
        Ok(all)
    }

    /// Has them leave, and gives what each says it did.
    fn end(mut self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for mut c in self.0.drain(..) {
            drop(c.stdin.take());
            let out = c.wait_with_output().context("an attacker")?;
            said.push(String::from_utf8_lossy(&out.stdout).trim().to_owned());
        }
        Ok(said)
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for c in &mut self.0 {
            let _ = (c.kill(), c.wait());
        }
    }
}

fn run(r: &Run) -> Result<()> {
    let p = Place::new(&r.longhaul)?;
    let serve = Server::serve(&p, DESCRIPTORS)?;
    let perf = Server::perf(&p, DESCRIPTORS)?;
    let servers = [&serve, &perf];
    let client = Bystander::new(&p, servers)?;
    let quiet = Span::from_secs((r.seconds / 6).clamp(3, 60));
    println!("undisturbed, for {quiet}");
    // The first of each makes keys known, and has memory made that is used again.
    client.use_all()?;
    let before = servers.map(|s| s.descriptors());
    let open = servers.map(Server::what_is_open);
    let mut rates = Rates::default();
    client.measure(quiet, &servers, &mut rates)?;
    println!("under attack, for {} s", r.seconds);
    let attackers = Attackers::start(&p, &servers)?;
    let mut attacked = Rates::default();
    client.measure(Span::from_secs(r.seconds), &servers, &mut attacked)?;
    let held = servers.map(|s| s.descriptors());
    let said = attackers.end()?;
    for s in &said {
        println!("attacker: {s}");
    }
    let after = settle(&servers, before)?;
    println!("undisturbed, for {quiet}");
    client.measure(quiet, &servers, &mut rates)?;
    let mut broken = judge(&rates, &attacked, r.no_rates);
    for (n, s) in servers.iter().enumerate() {
        let most = s.most_memory()?;
        println!(
            "{:<12} memory at most {:>7.1} MiB, descriptors {} before, {} under attack, {} afterwards",
            s.name,
            most as f64 / f64::from(1 << 20),
            before[n],
            held[n],
            after[n]
        );
        if most > MEMORY {
            broken.push(format!("{} used {most} bytes of memory", s.name));
        }
        if after[n] > before[n] {
            broken.push(format!("{} holds {} descriptors, {} before", s.name, after[n], before[n]));
            println!("{}: before {:?}, now {:?}", s.name, open[n], s.what_is_open());
        }
    }
    client.use_all().context("after the attack")?;
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    println!("all held");
    Ok(())
}

/// Waits until servers hold no more descriptors than before, or for long enough.
fn settle(servers: &[&Server; 2], before: [usize; 2]) -> Result<[usize; 2]> {
    let mut poller = Poller::new()?;
    let step = Span::from_millis(200);
    for _ in 0..AFTERWARDS.as_nanos() / step.as_nanos() {
        if servers.iter().zip(before).all(|(s, n)| s.descriptors() <= n) {
            break;
        }
        poller.wait(&mut [], Some(step))?;
    }
    Ok(servers.map(|s| s.descriptors()))
}

/// Prints the rates; gives what does not hold.
fn judge(rates: &Rates, attacked: &Rates, told_only: bool) -> Vec<String> {
    println!(
        "{:<16} {:>14} {:>14} {:>7} {:>6} {:>7}",
        "", "undisturbed", "under attack", "share", "runs", "failed"
    );
    let mut broken = Vec::new();
    for (i, way) in WAYS.iter().enumerate() {
        let (was, is) = (rates.median(i), attacked.median(i));
        let share = if was > 0.0 { is / was } else { 0.0 };
        let [runs, failed] = [attacked.runs(i), attacked.failed(i)];
        println!(
            "{way:<16} {:>8.1} MiB/s {:>8.1} MiB/s {share:>7.2} {runs:>6} {failed:>7}",
            was / f64::from(1 << 20),
            is / f64::from(1 << 20)
        );
        // Of a few runs on a busy machine one may fail.
        if runs == failed || !told_only && failed * 10 > runs {
            broken.push(format!("{way}: {failed} of {runs} failed under attack"));
        }
        if share < SHARE && !told_only {
            broken.push(format!("{way}: {share:.2} of its rate is left"));
        }
    }
    broken
}
