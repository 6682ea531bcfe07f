//! Prints the progress and result of a transfer, as text or JSON.

use crate::client::ConnectionSnapshot;
use crate::exit::{Failure, Outcome};
use crate::out;
use crate::units::show_bytes;
use base::{Rate, Span};
use endpoint::IwarpInfo;
use indicatif::{ProgressBar, ProgressStyle};
use mover::proto::NotPreserved;
use mover::{Progress, Snapshot, Summary};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use transport::crypto::Suite;

/// How often the bar moves.
const BAR_EVERY: Duration = Duration::from_millis(200);
/// How often a line appears where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How often a line of JSON does.
const JSON_EVERY: Duration = Duration::from_secs(1);
/// The version of the events of `--json`. New fields and events do not change it.
pub const SCHEMA: u32 = 1;
/// Of files that are smaller on average, it is told how many a second are done.
const SMALL_FILE: u64 = 256 << 10;
/// Characters of a file's name on the bar.
const NAME: usize = 40;

/// Writes a line of JSON.
pub type WriteJson = fn(&serde_json::Value);

/// How progress is shown.
#[derive(Clone, Copy, Debug)]
pub enum ShowAs {
    /// Not at all.
    Nothing,
    /// A bar on a terminal, plain lines otherwise.
    Text,
    /// A line of JSON for each event, and for the counters once a second.
    Json(WriteJson),
}

impl ShowAs {
    /// For people, or not at all.
    pub const fn text_unless(is_quiet: bool) -> ShowAs {
        if is_quiet { ShowAs::Nothing } else { ShowAs::Text }
    }
}

/// A thread that shows progress until it is told to end.
pub struct Display(Option<(SyncSender<()>, JoinHandle<()>)>);

impl Display {
    /// Shows nothing.
    pub fn none() -> Display {
        Display(None)
    }

    /// Shows what `as_what` says, until it is ended.
    pub fn start(progress: &Progress, as_what: ShowAs) -> Outcome<Display> {
        let (stop, stopped) = sync_channel(1);
        let progress = progress.clone();
        let run: Box<dyn FnOnce() + Send> = match as_what {
            ShowAs::Nothing => return Ok(Display::none()),
            ShowAs::Text => Box::new(move || show_text(&progress, &stopped)),
            ShowAs::Json(write) => Box::new(move || Events::default().follow(&progress, &stopped, write)),
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

/// A bar on a terminal, plain lines otherwise.
fn show_text(progress: &Progress, stopped: &Receiver<()>) {
    let terminal = out::error_is_terminal();
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
}

/// What of a transfer was told as events.
#[derive(Default)]
struct Events {
    notes: usize,
    errors: usize,
}

impl Events {
    /// Writes what happens, and where the transfer is, until it is told to stop.
    fn follow(mut self, progress: &Progress, stopped: &Receiver<()>, write: WriteJson) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(JSON_EVERY) {
            self.news(&progress.snapshot()).iter().for_each(write);
        }
    }

    /// The events since the last call.
    fn news(&mut self, p: &Snapshot) -> Vec<serde_json::Value> {
        let notes = p.notes.get(self.notes..).unwrap_or_default();
        let notes = notes.iter().map(|text| json!({ "event": "note", "text": text }));
        let errors = p.errors.get(self.errors..).unwrap_or_default();
        let errors = errors.iter().map(|e| json!({ "event": "error", "text": e.to_string(), "error": e }));
        let mut all: Vec<_> = notes.chain(errors).collect();
        (self.notes, self.errors) = (p.notes.len(), p.errors.len());
        all.push(json!({
            "event": "progress",
            "files_total": p.files_total,
            "bytes_total": p.bytes_total,
            "complete": p.complete,
            "files_confirmed": p.files_confirmed,
            "bytes_confirmed": p.bytes_confirmed,
            "bytes_resumed": p.bytes_resumed,
            "files_skipped": p.files_skipped,
            "bytes_skipped": p.bytes_skipped,
            "bytes_sent": p.bytes_sent,
            "bytes_received": p.bytes_received,
            "bytes_retransmitted": p.bytes_retransmitted,
            "bytes_per_second": p.bytes_per_second,
            "files_per_second": p.files_per_second,
            "seconds_left": p.seconds_left,
            "current": p.current,
            "failed": p.failed,
        }));
        all
    }
}

/// What does not fit the terminal's width is cut off, so that the line can be drawn over.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {bytes} of {total_bytes} {wide_msg}");
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
        let mut out = format!(
            "would transfer {}, {}; {} ({}) up to date{}",
            count(p.files_total.saturating_sub(p.files_skipped), "file"),
            show_bytes(p.bytes_total.saturating_sub(p.bytes_skipped)),
            count(p.files_skipped, "file"),
            show_bytes(p.bytes_skipped),
            changed(p.attributes_changed, "would get"),
        );
        out.push_str(&selected(p));
        out.extend(p.would_delete.iter().map(|name| format!("\nwould delete: {name}")));
        let more = p.would_delete_count.saturating_sub(p.would_delete.len() as u64);
        if more > 0 {
            out.push_str(&format!("\nwould delete: {more} more"));
        }
        return out;
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
    if p.files_linked > 0 {
        out.push_str(&format!("; {} of them linked (--link-dest)", count(p.files_linked, "file")));
    }
    out.push_str(&changed(p.attributes_changed, "got"));
    if p.bytes_resumed > 0 {
        out.push_str(&format!("; {} resumed from an earlier attempt", show_bytes(p.bytes_resumed)));
    }
    if p.bytes_matched > 0 {
        out.push_str(&format!("; {} copied from what was there", show_bytes(p.bytes_matched)));
    }
    if p.bytes_before_compression > 0 {
        let (before, after) = (show_bytes(p.bytes_before_compression), show_bytes(p.bytes_after_compression));
        out.push_str(&format!("; {before} compressed to {after}"));
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
    out.push_str(&selected(p));
    for note in &p.notes {
        out.push_str(&format!("\nnote: {note}"));
    }
    if let Some(behind) = not_preserved(&p.not_preserved) {
        out.push_str(&format!("\nnot carried: {behind}"));
    }
    if let Some(lost) = not_kept(p) {
        out.push_str(&format!("\nnot kept at the destination: {lost}"));
    }
    out
}

/// What was left out, and what became of what was left over.
fn selected(p: &Snapshot) -> String {
    let (l, d) = (&p.excluded, &p.deleted);
    [
        (l.by_rules, "left out by filter rules"),
        (l.by_ignore_files, "left out by .longhaulignore files (--no-ignore sends it)"),
        (l.by_size, "left out by size"),
        (l.by_destination, "left as it is at the destination"),
        (d.removed, "deleted"),
        (d.kept, "left over and not deleted: changed or filled meanwhile, or holding what a rule keeps"),
        (d.over_limit, "not deleted: more than --max-delete"),
        (d.held_back, "not deleted, since something failed (--ignore-errors deletes all the same)"),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("; {n} {what}"))
    .collect()
}

/// A number of things, in the singular where it is one.
fn count(n: u64, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// Of what the contents are the same and mode, time, owner or attributes are not.
fn changed(n: u64, verb: &str) -> String {
    if n == 0 { String::new() } else { format!("; {n} {verb} mode, time, owner or attributes only") }
}

/// What the receiving end did not keep of what it was asked for.
fn not_kept(p: &Snapshot) -> Option<String> {
    let of = |n: u64| if n == 1 { "1 file or folder".to_owned() } else { format!("{n} files or folders") };
    let mut all = Vec::new();
    if !p.not_allowed.is_empty() {
        let what = p.not_allowed.join(", ");
        all.push(format!(
            "{what} (the server does not allow it; its operator can, with serve --allow-privileged)"
        ));
    }
    if p.owners_lost > 0 {
        all.push(format!("owners of {} (its system refused)", of(p.owners_lost)));
    }
    if p.attributes_lost > 0 {
        all.push(format!("attributes of {} (its file system refused some)", of(p.attributes_lost)));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// What of the things that were sent did not travel; `None` where that is nothing.
fn not_preserved(n: &NotPreserved) -> Option<String> {
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
    fn attributes_not_preserved_are_counted_by_kind() {
        assert_eq!(not_preserved(&NotPreserved::default()), None);
        let n = NotPreserved { hard_links: 3, owners: 1, special_bits: 2, ..NotPreserved::default() };
        let text = "3 hard links (each name became a file), owners of 1 file or folder, set-user-id, set-group-id or sticky bits \
                    of 2 files or folders";
        assert_eq!(not_preserved(&n).unwrap(), text);
    }

    #[test]
    fn events_tell_each_note_and_error_once_and_the_counters_each_time() {
        let mut events = Events::default();
        let mut p =
            Snapshot { notes: vec!["started over".into()], bytes_confirmed: 7, ..Snapshot::default() };
        let kinds = |all: &[serde_json::Value]| {
            all.iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let first = events.news(&p);
        assert_eq!(kinds(&first), ["note", "progress"]);
        assert_eq!((&first[0]["text"], &first[1]["bytes_confirmed"]), (&json!("started over"), &json!(7)));
        assert_eq!(kinds(&events.news(&p)), ["progress"]);
        p.notes.push("again".into());
        assert_eq!(kinds(&events.news(&p)), ["note", "progress"]);
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
