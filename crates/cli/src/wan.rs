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
    let up = LinkConfig::parse_path(&words.join(" ")).map_err(Failure::usage)?;
    let down = match &a.back {
        Some(text) => LinkConfig::parse_path(text).map_err(Failure::usage)?,
        None => up.clone(),
    };
    let mut config = RelayConfig::new(a.listen, a.to);
    (config.up, config.down, config.seed) = (up.clone(), down.clone(), a.seed);
    let relay = RelayHandle::start(config).map_err(|e| match e {
        RelayError::Udp(_) | RelayError::MaxClients(_) => Failure::usage(e),
        e => Failure::system(e),
    })?;
    let listen = relay.local_addr();
    err_lines!("relaying UDP {listen} to {}\nforward: {up}\nreverse: {down}", a.to);
    if a.json {
        out::json(
            &json!({ "listening": listen.to_string(), "forward": up.to_string(), "reverse": down.to_string() }),
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

/// Why packets were dropped on a link, for people and as keys of JSON. In all they are [`netem::Stats::dropped`].
fn drops(l: &netem::Stats) -> [(&'static str, &'static str, u64); 6] {
    [
        ("queue full", "queue_full", l.dropped_queue),
        ("random loss", "random_loss", l.dropped_loss),
        ("larger than the MTU", "mtu", l.dropped_mtu),
        ("blackout", "blackout", l.dropped_black_out),
        ("ECN-capable (ect=drop)", "ecn_capable", l.dropped_ect),
        ("relay buffer full", "relay_full", l.dropped_link_full),
    ]
}

/// Each with how many, but those that are none; behind a word for all of them.
fn listed<'a>(what: &str, all: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let some: Vec<String> =
        all.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
    if some.is_empty() { String::new() } else { format!("{what}{}", some.join(", ")) }
}

/// In and duplicated are out, dropped and on the way.
fn direction(d: &DirectionStats) -> String {
    let l = &d.link;
    let dropped = match l.dropped() {
        0 => "; none dropped".to_owned(),
        n => listed(&format!("; {n} dropped: "), drops(l).map(|(name, _, n)| (name, n))),
    };
    let changed = [
        ("marked (ECN CE)", l.marked),
        ("duplicated", l.duplicated),
        ("corrupted", l.corrupted),
        ("reordered", l.reordered),
    ];
    let changed = listed("; ", changed);
    let unsent = listed("; of those out: ", [("send errors", d.send_dropped)]);
    format!(
        "{} packets in, {} out, {} in flight{dropped}{changed}{unsent}; late by {} (p99), {} max",
        l.sent,
        l.delivered,
        l.in_link,
        d.lateness.quantile(0.99),
        d.lateness.max(),
    )
}

fn text(s: &RelayStats) -> String {
    let cpu = s.cpu.total().as_secs_f64();
    let ignored = [("packets of clients beyond the limit", s.refused), ("stray packets", s.stray)];
    let ignored = listed(", ", ignored);
    format!(
        "forward: {}\nreverse: {}\n{} clients{ignored}, {cpu:.2} s of CPU",
        direction(&s.up),
        direction(&s.down),
        s.clients
    )
}

fn to_json(s: &RelayStats) -> Value {
    let one = |d: &DirectionStats| {
        let dropped: serde_json::Map<String, Value> =
            drops(&d.link).into_iter().map(|(_, key, n)| (key.to_owned(), n.into())).collect();
        json!({
            "packets_in": d.link.sent,
            "bytes_in": d.link.sent_bytes,
            "packets_out": d.link.delivered,
            "bytes_out": d.link.delivered_bytes,
            "in_flight": d.link.in_link,
            "dropped": dropped,
            "lost_by_chance": d.link.dropped_loss,
            "lost_by_queue": d.link.dropped_queue,
            "lost": d.link.dropped(),
            "marked": d.link.marked,
            "duplicated": d.link.duplicated,
            "corrupted": d.link.corrupted,
            "reordered": d.link.reordered,
            "longest_queue_bytes": d.link.max_queue_bytes,
            "send_errors": d.send_dropped,
            "late_p99_seconds": d.lateness.quantile(0.99).as_secs_f64(),
            "late_max_seconds": d.lateness.max().as_secs_f64(),
        })
    };
    json!({ "event": "end", "forward": one(&s.up), "reverse": one(&s.down), "over_limit_packets": s.refused, "unexpected_packets": s.stray,
            "cpu_seconds": s.cpu.total().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Ecn, Rng, Span, Time};
    use netem::{Link, Packet};

    /// Packets of several sizes, one for each 1 ms, over a link that does everything to them.
    fn driven() -> netem::Stats {
        let config = LinkConfig::parse_path(
            "rate=8mbit delay=20ms loss=5% queue=6000B ecn=3000B duplicate=2% corrupt=1% reorder=1%(5ms) at=500ms:blackout=100ms",
        );
        let mut link: Link<Vec<u8>> = Link::new(config.unwrap(), Rng::from_u64(7));
        for ms in 0..1_000 {
            let now = Time::ZERO + Span::from_millis(ms);
            let (bytes, ecn) = if ms % 50 == 0 { (9_000, Ecn::NotEct) } else { (1_100, Ecn::Ect0) };
            let _ = link.send(now, Packet { bytes, ecn, payload: vec![0] });
            while link.poll(now).is_some() {}
        }
        link.stats()
    }

    #[test]
    fn report_accounts_for_every_packet() {
        let link = driven();
        let d = DirectionStats { link, ..DirectionStats::default() };
        let s = RelayStats { up: d.clone(), ..RelayStats::default() };
        let json = to_json(&s);
        let forward = &json["forward"];
        let number = |key: &str| forward[key].as_u64().unwrap();
        let reasons: u64 =
            forward["dropped"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(
            number("packets_in") + number("duplicated"),
            number("packets_out") + reasons + number("in_flight")
        );
        for key in ["queue_full", "random_loss", "mtu", "blackout"] {
            assert!(forward["dropped"][key].as_u64().unwrap() > 0, "{key}: {forward}");
        }
        assert!(number("marked") > 0 && number("in_flight") > 0);

        let text = direction(&d);
        for (name, _, n) in drops(&link) {
            assert_eq!(text.contains(&format!("{n} {name}")), n > 0, "{name}: {text}");
        }
        assert!(text.contains(&format!("{} marked (ECN CE)", link.marked)), "{text}");
        assert!(text.contains(&format!("{} dropped: ", link.dropped())), "{text}");
        assert!(!text.contains("otherwise"), "{text}");
        assert!(
            direction(&DirectionStats::default()).contains("0 packets in, 0 out, 0 in flight; none dropped")
        );
    }
}
