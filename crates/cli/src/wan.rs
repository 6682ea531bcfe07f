//! `longhaul wan relay`.

use crate::args::Relay;
use crate::exit::{Failure, Outcome};
use crate::{out, stop};
use lhio::relay::{DirectionStats, RelayConfig, RelayError, RelayHandle, RelayStats};
use netem::LinkConfig;
use serde_json::{Value, json};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Longest wait for a signal without an interval.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// Relays until interrupted.
pub fn relay(a: &Relay) -> Outcome<()> {
    let mut words = a.profile.clone().into_iter().collect::<Vec<_>>();
    words.extend(a.link.iter().cloned());
    let up = LinkConfig::parse(&words.join(" ")).map_err(Failure::usage)?;
    let down = match &a.back {
        Some(text) => LinkConfig::parse(text).map_err(Failure::usage)?,
        None => up.clone(),
    };
    let mut config = RelayConfig::new(a.listen, a.to);
    (config.up, config.down, config.seed) = (up.clone(), down.clone(), a.seed);
    let relay = RelayHandle::start(config).map_err(|e| match e {
        RelayError::Udp(_) | RelayError::MaxClients(_) => Failure::usage(e),
        e => Failure::system(e),
    })?;
    let listen = relay.local_addr();
    err_lines!("relaying UDP {listen} to {}\nthere: {up}\nback:  {down}", a.to);
    if a.json {
        out::json(
            &json!({ "listening": listen.to_string(), "there": up.to_string(), "back": down.to_string() }),
        );
    }
    let (tx, stopped) = sync_channel(2);
    stop::on_signal(move || {
        let _ = tx.try_send(()); // full means that it is being stopped already
    })?;
    let every = a.interval.filter(|i| !i.is_zero()).map_or(FOREVER, |i| i.to_std());
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
        if a.interval.is_some() {
            err_lines!("{}", text(&relay.stats().map_err(Failure::system)?));
        }
    }
    let last = relay.stop().map_err(Failure::system)?;
    err_lines!("{}", text(&last));
    if a.json {
        out::json(&to_json(&last));
    }
    Ok(())
}

fn text(s: &RelayStats) -> String {
    let one = |d: &DirectionStats| {
        format!(
            "{} packets in, {} out, lost {} by chance, {} by the queue, {} otherwise; late by {} (99%), {} at most",
            d.link.sent,
            d.link.delivered,
            d.link.dropped_loss,
            d.link.dropped_queue,
            d.link.dropped() - d.link.dropped_loss - d.link.dropped_queue,
            d.lateness.quantile(0.99),
            d.lateness.max(),
        )
    };
    let cpu = s.cpu.total().as_secs_f64();
    format!("there: {}\nback:  {}\n{} clients, {cpu:.2} s of CPU", one(&s.up), one(&s.down), s.clients)
}

fn to_json(s: &RelayStats) -> Value {
    let one = |d: &DirectionStats| {
        json!({
            "packets_in": d.link.sent,
            "bytes_in": d.link.sent_bytes,
            "packets_out": d.link.delivered,
            "bytes_out": d.link.delivered_bytes,
            "lost_by_chance": d.link.dropped_loss,
            "lost_by_queue": d.link.dropped_queue,
            "lost": d.link.dropped(),
            "marked": d.link.marked,
            "longest_queue_bytes": d.link.max_queue_bytes,
            "unsent_by_this_machine": d.send_dropped,
            "late_p99_seconds": d.lateness.quantile(0.99).as_secs_f64(),
            "late_max_seconds": d.lateness.max().as_secs_f64(),
        })
    };
    json!({ "ended": true, "there": one(&s.up), "back": one(&s.down), "refused": s.refused, "stray": s.stray,
            "cpu_seconds": s.cpu.total().as_secs_f64() })
}
