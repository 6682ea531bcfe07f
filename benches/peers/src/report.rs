//! What one end of a measurement says: a line of JSON on standard output.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use base::Time;
use lhio::clock::{Clock, CpuTime};
use serde::{Deserialize, Serialize};

/// What a receiver prints before anything else, followed by its address.
pub const LISTENING: &str = "listening on ";

/// The figures of one end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// Payload bytes; of latency, round trips.
    pub count: u64,
    /// From first to last.
    pub seconds: f64,
    /// User and system.
    pub cpu: f64,
    /// Whether what arrived is what was sent, where it was looked at.
    pub verified: Option<bool>,
    /// Median and 99th percentile of round trips, in microseconds.
    pub trips: Option<[f64; 2]>,
    /// Packets sent, where they are counted.
    pub packets: Option<u64>,
}

/// A measurement that has begun.
pub struct Begun {
    clock: Clock,
    at: Time,
    cpu: CpuTime,
}

impl Begun {
    /// Begins.
    pub fn now() -> Begun {
        let clock = Clock::new();
        Begun { clock, at: clock.now(), cpu: CpuTime::of_process() }
    }
    /// Seconds since then.
    pub fn seconds(&self) -> f64 {
        self.clock.now().since(self.at).as_secs_f64()
    }
    /// Ends.
    pub fn end(&self, count: u64) -> End {
        let cpu = CpuTime::of_process().since(self.cpu).total().as_secs_f64();
        End { count, seconds: self.seconds(), cpu, ..End::default() }
    }
}

/// Says where this end listens.
pub fn listening(at: SocketAddr) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{LISTENING}{at}")?;
    out.flush().context("standard output is closed")
}

/// Says the figures.
pub fn say(end: &End) -> Result<()> {
    println!("{}", serde_json::to_string(end)?);
    Ok(())
}
