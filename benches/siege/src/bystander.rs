//! The client that means no harm.

use crate::server::{Place, Server};
use anyhow::{Context, Result, bail, ensure};
use base::Span;
use lhio::clock::Clock;
use std::fs;
use std::process::{Command, Output};

/// What it does, again and again.
pub const WAYS: [&str; 4] = ["put", "put by iWARP", "get", "perf"];
/// Bytes that each moves.
const BYTES: u64 = 32 << 20;

/// Bytes per second of each way.
#[derive(Default)]
pub struct Rates([Vec<f64>; WAYS.len()], [usize; WAYS.len()]);

impl Rates {
    /// The middle one; zero of none.
    pub fn median(&self, way: usize) -> f64 {
        let mut all = self.0[way].clone();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    }
    /// How many there are, and were tried.
    pub fn runs(&self, way: usize) -> usize {
        self.0[way].len() + self.1[way]
    }
    pub fn failed(&self, way: usize) -> usize {
        self.1[way]
    }
}

pub struct Bystander<'a> {
    place: &'a Place,
    commands: [Vec<String>; WAYS.len()],
}

impl<'a> Bystander<'a> {
    pub fn new(place: &'a Place, [serve, perf]: [&Server; 2]) -> Result<Bystander<'a>> {
        let file = place.path("file");
        fs::write(&file, (0..BYTES / 8).flat_map(|n| (n * 0x9e37_79b9).to_le_bytes()).collect::<Vec<u8>>())?;
        let (file, to) =
            (file.to_string_lossy().into_owned(), place.path("got").to_string_lossy().into_owned());
        let at = serve.at;
        let words = |all: &[&str]| all.iter().map(|w| (*w).to_owned()).collect();
        let how = ["--json", "--accept-new"];
        // All is sent each time, and goes through the memory of the file once.
        let commands =
            [
                words(&[&["put", "--all", &file, &format!("longhaul://{at}/")][..], &how].concat()),
                words(&[&["put", "--all", &file, &format!("iwarp://{at}/")][..], &how].concat()),
                words(
                    &[&["get", "--all", "--no-sync", &format!("longhaul://{at}/data"), &to][..], &how]
                        .concat(),
                ),
                words(
                    &[
                        &[
                            "perf",
                            "client",
                            &perf.at.to_string(),
                            "-n",
                            &BYTES.to_string(),
                            "--region",
                            "4MiB",
                        ][..],
                        &how,
                    ]
                    .concat(),
                ),
            ];
        Ok(Bystander { place, commands })
    }

    /// Each once.
    pub fn use_all(&self) -> Result<()> {
        for (way, c) in WAYS.iter().zip(&self.commands) {
            let out = self.command(c).output()?;
            let said = String::from_utf8_lossy(&out.stderr);
            ensure!(out.status.success(), "{way} ended with {}: {said}", out.status);
        }
        Ok(())
    }

    fn command(&self, args: &[String]) -> Command {
        self.place.longhaul(&self.place.client, &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// All in turn, for so long and once at least.
    pub fn measure(&self, time: Span, servers: &[&Server; 2], rates: &mut Rates) -> Result<()> {
        let clock = Clock::new();
        let end = clock.now() + time;
        let mut way = 0;
        while clock.now() < end || way < WAYS.len() {
            let began = clock.now();
            let out = self.command(&self.commands[way % WAYS.len()]).output().context("the client")?;
            let took = clock.now().since(began).as_secs_f64();
            if let Some(s) = servers.iter().find(|s| !s.runs()) {
                bail!("{} has ended", s.name);
            }
            match out.status.success() {
                true => rates.0[way % WAYS.len()].push(BYTES as f64 / took),
                false => {
                    rates.1[way % WAYS.len()] += 1;
                    eprintln!("{} failed after {took:.1} s: {}", WAYS[way % WAYS.len()], why(&out));
                }
            }
            way += 1;
        }
        Ok(())
    }
}

/// What a command said of its failure, that of the first file before all else.
fn why(out: &Output) -> String {
    // The result is the last line; progress may stand before it.
    let last = out.stdout.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(last).unwrap_or_default();
    let first = &json["transfer"]["progress"]["errors"][0];
    match first["text"].as_str() {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    }
}
