//! What people see of a transfer.

use crate::client::ConnectionSnapshot;
use crate::exit::{Failure, Outcome};
use crate::out;
use crate::units::show_bytes;
use base::{Rate, Span};
use endpoint::IwarpInfo;
use indicatif::{ProgressBar, ProgressStyle};
use mover::proto::NotCarried;
use mover::{Progress, Snapshot, Summary};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use transport::crypto::Suite;

/// How often the bar moves.
const BAR_EVERY: Duration = Duration::from_millis(200);
/// How often a line appears where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Of files that are smaller on average, it is told how many a second are done.
const SMALL_FILE: u64 = 256 << 10;
/// Characters of a file's name on the bar.
const NAME: usize = 40;

/// A thread that shows progress until it is told to end.
pub struct Display(Option<(SyncSender<()>, JoinHandle<()>)>);

impl Display {
    /// Shows nothing.
    pub fn none() -> Display {
        Display(None)
    }

    /// A bar on a terminal, plain lines otherwise.
    pub fn start(progress: &Progress, quiet: bool) -> Outcome<Display> {
        if quiet {
            return Ok(Display::none());
        }
        let (stop, stopped) = sync_channel(1);
        let progress = progress.clone();
        let terminal = out::error_is_terminal();
        let run = move || {
            let bar = terminal.then(bar);
            let every = if terminal { BAR_EVERY } else { LINE_EVERY };
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let p = progress.snapshot();
                let done = p.bytes_confirmed.saturating_add(p.bytes_skipped).min(p.bytes_total);
                match &bar {
                    Some(b) => {
                        b.set_length(p.bytes_total.max(1));
                        b.set_position(done);
                        b.set_message(base::text::line(&line(&p)).into_owned());
                    }
                    None => {
                        err_line!("{} of {}, {}", show_bytes(done), show_bytes(p.bytes_total), line(&p));
                    }
                }
            }
            if let Some(b) = bar {
                b.finish_and_clear();
            }
        };
        let thread =
            std::thread::Builder::new().name("display".into()).spawn(run).map_err(Failure::no_thread)?;
        Ok(Display(Some((stop, thread))))
    }

    /// Ends it and clears the bar.
    pub fn end(self) {
        if let Some((stop, thread)) = self.0 {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {bytes} of {total_bytes} {msg}");
    if let Ok(s) = style {
        bar.set_style(s);
    }
    bar
}

/// Rate over the last seconds, time left, files.
fn line(p: &Snapshot) -> String {
    let mut parts = Vec::new();
    if let Some(bytes) = p.bytes_per_second {
        let files = p.files_per_second.unwrap_or(0);
        if files > 0 && bytes / files < SMALL_FILE {
            parts.push(format!("{files} files/s"));
        }
        parts.push(Rate::from_bytes_per_sec(bytes).to_string());
    }
    if let Some(left) = p.seconds_left {
        parts.push(format!("{} left", time_left(left.ceil() as u64)));
    }
    let more = if p.complete { "" } else { "+" };
    let done = p.files_confirmed.saturating_add(p.files_skipped);
    parts.push(format!("{done} of {}{more} files", p.files_total));
    let mut out = parts.join(", ");
    if !p.current.is_empty() {
        let name: String = p.current.chars().rev().take(NAME).collect::<Vec<_>>().into_iter().rev().collect();
        out.push_str(&format!(" {name}"));
    }
    out
}

fn time_left(seconds: u64) -> String {
    match seconds {
        s if s < 60 => format!("{s} s"),
        s if s < 3600 => format!("{}:{:02} min", s / 60, s % 60),
        s => format!("{}:{:02} h", s / 3600, s % 3600 / 60),
    }
}

/// The last line of a transfer. What counts is what the receiving end has confirmed.
pub fn summary(s: &Summary, live: &ConnectionSnapshot, (dry_run, receives): (bool, bool)) -> String {
    let p = &s.progress;
    if dry_run {
        return format!(
            "would transfer {}, {}; {} ({}) up to date",
            count(p.files_total.saturating_sub(p.files_skipped), "file"),
            show_bytes(p.bytes_total.saturating_sub(p.bytes_skipped)),
            count(p.files_skipped, "file"),
            show_bytes(p.bytes_skipped),
        );
    }
    let seconds = s.nanos as f64 / 1e9;
    let rate = Rate::from_bytes_in(p.bytes_transferred(), Span::from_nanos(s.nanos.max(1)));
    let mut out = format!(
        "{} transferred; {} {} and verified in {seconds:.2} s ({rate})",
        count(p.files_confirmed, "file"),
        show_bytes(p.bytes_transferred()),
        if receives { "received" } else { "sent" },
    );
    if p.files_skipped > 0 {
        out.push_str(&format!("; {} up to date", count(p.files_skipped, "file")));
    }
    if p.bytes_resumed > 0 {
        out.push_str(&format!("; {} resumed from an earlier attempt", show_bytes(p.bytes_resumed)));
    }
    if live.stats.payload_sent > 0 && live.stats.payload_again > 0 {
        let share = live.stats.payload_again as f64 / live.stats.payload_sent as f64;
        out.push_str(&format!("; {:.3}% retransmitted", share * 100.0));
    }
    let ends = |p: &endpoint::PathStats| (p.local, p.remote);
    let used: BTreeSet<_> = live.stats.paths.iter().filter(|p| p.sent > 0).map(ends).collect();
    if used.len() > 1 {
        out.push_str(&format!("; over {} paths", used.len()));
    }
    if let Some(i) = &live.iwarp {
        out.push_str(&format!("; over {}", describe_iwarp(i)));
    }
    for note in &p.notes {
        out.push_str(&format!("\nnote: {note}"));
    }
    if let Some(behind) = not_carried(&p.not_carried) {
        out.push_str(&format!("\nnot carried: {behind}"));
    }
    out
}

/// A number of things, in the singular where it is one.
fn count(n: u64, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// What of the things that were sent did not travel; `None` where that is nothing.
fn not_carried(n: &NotCarried) -> Option<String> {
    let of = |n: u64| if n == 1 { "1 file or folder".to_owned() } else { format!("{n} files or folders") };
    let all = [
        (n.hard_links, format!("{} (each name became a file)", count(n.hard_links, "hard link"))),
        (n.extended_attributes, format!("extended attributes of {}", of(n.extended_attributes))),
        (n.access_control_lists, format!("access control lists of {}", of(n.access_control_lists))),
        (n.owners, format!("owners of {}", of(n.owners))),
        (n.special_bits, format!("set-user-id, set-group-id or sticky bits of {}", of(n.special_bits))),
    ];
    let some: Vec<String> = all.into_iter().filter(|(n, _)| *n > 0).map(|(_, text)| text).collect();
    (!some.is_empty()).then(|| some.join(", "))
}

/// Name of what carries a connection.
pub fn transport(i: Option<&IwarpInfo>) -> &'static str {
    if i.is_some() { "iwarp" } else { "longhaul" }
}

/// What protects packets; nothing does over plain iWARP, whose CRCs only find errors.
pub fn suite(s: Option<Suite>, i: Option<&IwarpInfo>) -> Option<&'static str> {
    s.filter(|_| i.is_none_or(|i| i.tls)).map(Suite::name)
}

/// A connection by iWARP in few words.
pub fn describe_iwarp(i: &IwarpInfo) -> String {
    let mut out = if i.tls { "iWARP with TLS" } else { "iWARP without TLS" }.to_owned();
    if i.crc {
        out.push_str(", CRC");
    }
    if i.markers_in || i.markers_out {
        out.push_str(", markers");
    }
    if !i.congestion.is_empty() {
        out.push_str(&format!(", TCP {}", i.congestion));
    }
    out
}

/// The same for machines; null for another transport.
pub fn iwarp_json(i: Option<&IwarpInfo>) -> serde_json::Value {
    i.map_or(serde_json::Value::Null, |i| {
        json!({
            "tls": i.tls,
            "crc": i.crc,
            "markers_in": i.markers_in,
            "markers_out": i.markers_out,
            "congestion_control": i.congestion,
        })
    })
}

/// Counters of a connection for machines.
pub fn stats_json(s: &endpoint::Stats, i: Option<&IwarpInfo>) -> serde_json::Value {
    json!({
        "payload_sent": s.payload_sent,
        "payload_acked": s.payload_acked,
        "payload_received": s.payload_received,
        "payload_retransmitted": s.payload_again,
        "packets_sent": s.packets_sent,
        "packets_received": s.packets_received,
        "packets_lost": s.packets_lost,
        "packets_marked": s.ce_packets,
        "packets_spurious": s.packets_spurious,
        "bytes_sent": s.bytes_sent,
        "bytes_received": s.bytes_received,
        "control_bytes_sent": s.control_bytes_sent,
        "control_packets_sent": s.control_packets_sent,
        "probe_timeouts": s.probe_timeouts,
        "srtt_seconds": s.srtt.as_secs_f64(),
        "min_rtt_seconds": s.min_rtt.as_secs_f64(),
        "pacing_bits_per_second": s.rate.bits_per_sec(),
        "mtu": s.mtu,
        // Of what this end sends; a get's report has the sender's instead.
        "congestion_control": i.map_or(s.cc.0, |i| i.congestion.as_str()),
        "congestion_state": s.cc.1,
        "paths": s.paths.iter().map(crate::perf::PathFigures::new).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_formatted_by_magnitude() {
        assert_eq!(time_left(59), "59 s");
        assert_eq!(time_left(61), "1:01 min");
        assert_eq!(time_left(7_380), "2:03 h");
    }

    #[test]
    fn attributes_not_carried_are_counted_by_kind() {
        assert_eq!(not_carried(&NotCarried::default()), None);
        let n = NotCarried { hard_links: 3, owners: 1, special_bits: 2, ..NotCarried::default() };
        let text = "3 hard links (each name became a file), owners of 1 file or folder, set-user-id, set-group-id or sticky bits \
                    of 2 files or folders";
        assert_eq!(not_carried(&n).unwrap(), text);
    }

    #[test]
    fn progress_line_has_rate_time_left_and_files() {
        let p = Snapshot {
            bytes_per_second: Some(1_250_000),
            files_per_second: Some(0),
            seconds_left: Some(1.2),
            complete: true,
            files_total: 3,
            files_confirmed: 1,
            ..Snapshot::default()
        };
        assert_eq!(line(&p), "10.0 Mbit/s, 2 s left, 1 of 3 files");
        // Nothing is made up before anything was measured.
        assert_eq!(line(&Snapshot::default()), "0 of 0+ files");
        let small = Snapshot { files_per_second: Some(1000), files_skipped: 1, ..p };
        assert_eq!(line(&small), "1000 files/s, 10.0 Mbit/s, 2 s left, 2 of 3 files");
    }
}
