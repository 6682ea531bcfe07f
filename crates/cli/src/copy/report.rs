//! Prints the progress and result of copies, as text or JSON.

use crate::args::Output;
use crate::client::ConnectionSnapshot;
use crate::exit::{Code, Failure, Outcome};
use crate::units::show_bytes;
use crate::url::Server;
use crate::{out, show};
use base::{Rate, Span};
use mover::Summary;
use mover::proto::{JobPhase, JobStatus};
use serde_json::json;

/// A copy that has ended, or is not watched any more.
pub struct Report<'a> {
    /// What was done.
    pub summary: &'a Summary,
    /// The copy at the server that sends.
    pub job: Option<&'a JobStatus>,
    /// That server.
    pub server: Option<&'a Server>,
}

impl Report<'_> {
    /// Says it.
    pub fn say(&self, out: &Output, verdict: &Outcome<()>) {
        let s = self.summary;
        if out.json {
            let (seconds, moved) = (s.nanos as f64 / 1e9, s.progress.bytes_transferred());
            return out::json(&json!({
                "event": "end",
                "schema": show::SCHEMA,
                "code": verdict.as_ref().map_or_else(|f| f.code as u8, |()| Code::Ok as u8),
                "message": verdict.as_ref().err().map(|f| f.text.as_str()),
                "job": self.job.map(|j| j.job),
                "server": self.server.map(|s| format!("longhaul://{s}")),
                "attempts": self.job.map(|j| j.attempt),
                "transfer": s,
                "seconds": seconds,
                "bytes_transferred": moved,
                "goodput_bits_per_second": if seconds > 0.0 { moved as f64 * 8.0 / seconds } else { 0.0 },
            }));
        }
        let p = &s.progress;
        let told = matches!(s.error, None | Some(mover::Error::Partial { .. })) || p.files_confirmed > 0;
        if !out.quiet && told && s.error != Some(mover::Error::Interrupted) {
            err_lines!("{}", show::summary(s, &ConnectionSnapshot::default(), (s.dry_run, false)));
        }
        for e in &p.errors {
            err_line!("error: {e}");
        }
        let unlisted = p.failed.saturating_sub(p.errors.len() as u64);
        if unlisted > 0 {
            err_line!("error: {unlisted} more failures");
        }
    }
}

/// A copy goes on alone.
pub fn begun(job: u64, server: &Server, as_json: bool, quiet: bool) {
    if as_json {
        out::json(&json!({ "code": 0, "job": job, "server": format!("longhaul://{server}") }));
    } else if !quiet {
        err_line!("copy {job} has begun: longhaul copy --follow {job} longhaul://{server} watches it");
    }
}

/// There was no copy, or none that could be watched.
pub fn failed(f: &Failure) {
    out::json(&json!({ "code": f.code as u8, "error": { "text": f.text } }));
}

/// The copies of a server.
pub fn list(jobs: &[JobStatus], as_json: bool) {
    if as_json {
        out::json(&json!({ "code": 0, "copies": jobs }));
        return;
    }
    if jobs.is_empty() {
        err_line!("no copy of this machine is under way there, and none has ended within the last hour");
    }
    for j in jobs {
        out_line!("{}", line(j));
    }
}

/// Number, how far it is, bytes and files, what.
fn line(j: &JobStatus) -> String {
    let how = match (j.phase, &j.error) {
        (JobPhase::Running, _) => "running".to_owned(),
        (JobPhase::Waiting, _) => "waiting for another attempt".to_owned(),
        (JobPhase::Ended, None) => "done".to_owned(),
        (JobPhase::Ended, Some(mover::Error::Interrupted)) => "cancelled".to_owned(),
        (JobPhase::Ended, Some(e)) => format!("failed ({e})"),
    };
    let done = j.bytes_confirmed.saturating_add(j.found.same_bytes);
    let files = j.files_confirmed.saturating_add(j.found.same_files);
    let more = if j.complete { "" } else { "+" };
    let rate = Rate::from_bytes_in(
        j.bytes_confirmed.saturating_sub(j.bytes_resumed),
        Span::from_nanos(j.nanos.max(1)),
    );
    format!(
        "{}: {how}, {} of {}{more}, {files} of {}{more} files, {rate}: {}",
        j.job,
        show_bytes(done),
        show_bytes(j.found.bytes),
        j.found.files,
        j.what
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover::proto::{SourceCounts, Totals};

    #[test]
    fn copy_status_is_one_line() {
        let found = SourceCounts {
            files: 3,
            bytes: 4 << 20,
            same_files: 1,
            same_bytes: 1 << 20,
            ..SourceCounts::default()
        };
        let mut j = JobStatus {
            job: 7,
            phase: JobPhase::Running,
            attempt: 1,
            nanos: 1_000_000_000,
            what: "a to 192.0.2.1:4460/b".into(),
            current: String::new(),
            complete: true,
            found,
            files_confirmed: 1,
            bytes_confirmed: 1 << 20,
            bytes_resumed: 0,
            bytes_sent: 0,
            bytes_retransmitted: 0,
            bytes_per_second: 0,
            files_per_second: 0,
            millis_left: 0,
            failed: 0,
            totals: Totals::default(),
            error: None,
        };
        assert_eq!(
            line(&j),
            "7: running, 2.00 MiB of 4.00 MiB, 2 of 3 files, 8.4 Mbit/s: a to 192.0.2.1:4460/b"
        );
        j.phase = JobPhase::Ended;
        assert!(line(&j).starts_with("7: done, "));
        j.error = Some(mover::Error::Interrupted);
        assert!(line(&j).starts_with("7: cancelled, "));
    }
}
