//! What is measured, and how it is told.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use crate::Control;

/// The clock and the processor time at the start of a transfer.
pub struct Start {
    clock: Instant,
    user: Duration,
    system: Duration,
}

impl Start {
    /// Starts to measure.
    pub fn now() -> Result<Self> {
        let (user, system) = cpu_times()?;
        Ok(Self { clock: clock(), user, system })
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        clock().duration_since(self.clock)
    }

    /// The figures of this end, which moved `bytes` since the start.
    pub fn end(&self, bytes: u64) -> Result<End> {
        let (user, system) = cpu_times()?;
        Ok(End {
            bytes,
            seconds: self.elapsed().as_secs_f64(),
            user: user.saturating_sub(self.user).as_secs_f64(),
            system: system.saturating_sub(self.system).as_secs_f64(),
        })
    }
}

/// A benchmark reads the clock.
#[allow(clippy::disallowed_methods)] // it measures real time, that is all it is for
fn clock() -> Instant {
    Instant::now()
}

/// Processor time of this process: in user code, in the kernel.
fn cpu_times() -> Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let convert = |time: nix::sys::time::TimeVal| -> Result<Duration> {
        Ok(Duration::new(time.tv_sec().try_into()?, u32::try_from(time.tv_usec())? * 1000))
    };
    Ok((convert(usage.user_time())?, convert(usage.system_time())?))
}

/// The figures of one end.
pub struct End {
    /// Payload bytes.
    pub bytes: u64,
    /// From the first byte to the last.
    pub seconds: f64,
    /// Processor seconds in user code.
    pub user: f64,
    /// Processor seconds in the kernel.
    pub system: f64,
}

impl End {
    /// 10^9 bit/s of payload.
    pub fn gbits(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8e-9 / self.seconds } else { 0.0 }
    }

    /// Processor seconds per 10^9 bytes.
    pub fn cpu_per_gb(&self) -> f64 {
        if self.bytes > 0 { (self.user + self.system) / (self.bytes as f64 * 1e-9) } else { 0.0 }
    }

    /// As it travels from the receiver to the sender.
    pub fn to_json(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "seconds": self.seconds,
            "gbit_per_s": self.gbits(),
            "cpu_user_s": self.user,
            "cpu_system_s": self.system,
            "cpu_s_per_gb": self.cpu_per_gb(),
        })
    }

    /// The other way round.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(text).context("the server's report is not JSON")?;
        let number =
            |name: &str| value[name].as_f64().with_context(|| format!("the server's report lacks `{name}`"));
        Ok(Self {
            bytes: value["bytes"].as_u64().context("the server's report lacks `bytes`")?,
            seconds: number("seconds")?,
            user: number("cpu_user_s")?,
            system: number("cpu_system_s")?,
        })
    }
}

/// The figures of both ends.
pub struct Report {
    /// The client.
    pub sender: End,
    /// The server. Its rate is the one that counts: it has the bytes.
    pub receiver: End,
    /// Packets that the sender declared lost.
    pub lost_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Bytes of UDP payload of a full packet.
    pub udp_payload: u16,
    /// Smoothed round-trip time at the end.
    pub rtt: Duration,
}

impl Report {
    /// One object with everything.
    pub fn to_json(&self, control: &Control) -> Value {
        json!({
            "peer": "quinn",
            "cc": name(control),
            "gbit_per_s": self.receiver.gbits(),
            "sender": self.sender.to_json(),
            "receiver": self.receiver.to_json(),
            "sent_packets": self.sent_packets,
            "lost_packets": self.lost_packets,
            "udp_payload_bytes": self.udp_payload,
            "rtt_us": u64::try_from(self.rtt.as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// For people.
    pub fn to_text(&self, control: &Control) -> String {
        let line = |name: &str, end: &End| {
            format!(
                "{name:9} {:7.3} Gbit/s  {:6.2} s  CPU {:.2} s user, {:.2} s system, {:.2} s/GB",
                end.gbits(),
                end.seconds,
                end.user,
                end.system,
                end.cpu_per_gb()
            )
        };
        format!(
            "{}\n{}\n{}, {} byte datagrams, {} sent, {} lost, RTT {:?}",
            line("sender", &self.sender),
            line("receiver", &self.receiver),
            name(control),
            self.udp_payload,
            self.sent_packets,
            self.lost_packets,
            self.rtt
        )
    }
}

fn name(control: &Control) -> &'static str {
    match control {
        Control::Cubic => "cubic",
        Control::Bbr => "bbr",
        Control::Newreno => "newreno",
    }
}
