//! The access log of a server: a line for each session that has ended.

use crate::args::{self, LogFormat};
use crate::exit::{Failure, Outcome};
use base::text;
use observe::SessionEnd;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Lines that wait for a slow disk at most; what comes then is left out, and said to be.
const MAX_WAITING: usize = 1024;

/// Appends to a file, on a thread of its own: a disk that hangs holds up no transfer. Ends, with all that waits, when dropped.
pub struct AccessLog {
    format: LogFormat,
    lines: Option<SyncSender<String>>,
    writer: Option<JoinHandle<()>>,
    /// It was said that lines are left out.
    is_behind: bool,
}

impl AccessLog {
    /// Finds out whether the file can be written; `None` where none is asked for.
    pub fn open(a: &args::AccessLog) -> Outcome<Option<AccessLog>> {
        let Some(file) = a.log.clone() else { return Ok(None) };
        appending(&file).map_err(|e| {
            let shown = mover::path::show(file.as_os_str().as_encoded_bytes());
            Failure::usage(format!("cannot open the log {shown}: {e}; try another file"))
        })?;
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let writer = std::thread::Builder::new().name("access-log".into());
        let writer = writer.spawn(move || write_all(&file, &waiting)).map_err(Failure::no_thread)?;
        Ok(Some(AccessLog {
            format: a.log_format,
            lines: Some(lines),
            writer: Some(writer),
            is_behind: false,
        }))
    }

    /// Has a line written.
    pub fn write(&mut self, end: &SessionEnd) {
        let line = match self.format {
            LogFormat::Text => as_text(&now(), end),
            LogFormat::Json => as_json(&now(), end),
        };
        let is_behind = self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_err());
        if is_behind && !self.is_behind {
            tracing::warn!(
                "cannot write the log as fast as sessions end: some lines are lost; try a faster disk"
            );
        }
        self.is_behind = is_behind;
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

/// Writes lines until nobody sends any. Where that fails, it is said once, and the server goes on.
fn write_all(file: &Path, lines: &Receiver<String>) {
    let mut is_failing = false;
    for line in lines {
        match appending(file).and_then(|mut f| f.write_all(line.as_bytes())) {
            Ok(()) => is_failing = false,
            Err(e) => {
                if !std::mem::replace(&mut is_failing, true) {
                    let file = file.display();
                    tracing::warn!(
                        "cannot write to the log {file}: {e}; sessions continue without it; see that it can be written"
                    );
                }
            }
        }
    }
}

/// Opened anew for each line, so that whoever rotates logs need not tell. Nothing but a file: a pipe may never be read.
fn appending(file: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    let f = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags as i32).open(file)?;
    if f.metadata()?.is_file() { Ok(f) } else { Err(io::Error::other("not a regular file")) }
}

/// As RFC 3339 has it, in UTC.
fn now() -> String {
    let mut out = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut out)); // a String takes everything
    out
}

/// Begins and ends a value that another chose, so that it cannot be taken for anything else.
fn quoted(value: &str) -> String {
    format!("\"{}\"", text::line(value).replace('\\', "\\\\").replace('"', "\\\""))
}

fn as_text(time: &str, e: &SessionEnd) -> String {
    format!(
        "{time} {} client={} key={} path={} files={} bytes={} resumed_bytes={} failed={} seconds={:.3} status={}\n",
        if e.operation.is_empty() { "nothing" } else { e.operation },
        e.client,
        quoted(&e.key),
        quoted(&e.path),
        e.files,
        e.bytes,
        e.resumed_bytes,
        e.failed,
        e.nanos as f64 / 1e9,
        quoted(&e.status),
    )
}

fn as_json(time: &str, e: &SessionEnd) -> String {
    let line = serde_json::json!({
        "time": time,
        "operation": e.operation,
        "client": e.client,
        "key": e.key,
        "path": e.path,
        "files": e.files,
        "bytes": e.bytes,
        "resumed_bytes": e.resumed_bytes,
        "failed": e.failed,
        "payload_sent": e.sent,
        "payload_received": e.received,
        "seconds": e.nanos as f64 / 1e9,
        "status": e.status,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> SessionEnd {
        SessionEnd {
            client: "192.0.2.1:4460".into(),
            key: "SHA256:abc".into(),
            operation: "put",
            path: "a\" status=\"done b".into(),
            files: 3,
            bytes: 1_000,
            resumed_bytes: 24,
            failed: 1,
            sent: 7,
            received: 1_100,
            nanos: 1_500_000_000,
            status: "interrupted: \u{1b}[2J\nby a peer".into(),
        }
    }

    #[test]
    fn access_log_lines_cannot_be_forged_by_clients() {
        let line = as_text("T", &end());
        let want = "T put client=192.0.2.1:4460 key=\"SHA256:abc\" path=\"a\\\" status=\\\"done b\" files=3 bytes=1000 \
                    resumed_bytes=24 failed=1 seconds=1.500 status=\"interrupted: \\\\x1b[2J\\\\nby a peer\"\n";
        assert_eq!(line, want);
        let v: serde_json::Value = serde_json::from_str(&as_json("T", &end())).unwrap();
        assert_eq!(
            (&v["bytes"], &v["seconds"], &v["operation"]),
            (&1_000.into(), &1.5.into(), &"put".into())
        );
        assert_eq!(as_json("T", &end()).lines().count(), 1);
    }

    #[test]
    fn rotated_log_starts_anew_and_unwritable_log_is_reported() {
        let d = tempfile::tempdir().unwrap();
        let file = d.path().join("log");
        let a = args::AccessLog { log: Some(file.clone()), log_format: LogFormat::Text };
        let write = |n: usize| {
            let mut log = AccessLog::open(&a).unwrap().unwrap();
            (0..n).for_each(|_| log.write(&end()));
        };
        write(1);
        std::fs::rename(&file, d.path().join("log.1")).unwrap();
        write(2);
        let lines = |p: &str| std::fs::read_to_string(d.path().join(p)).unwrap().lines().count();
        assert_eq!((lines("log.1"), lines("log")), (1, 2));
        let a = args::AccessLog { log: Some(d.path().join("missing/log")), ..a };
        let e = AccessLog::open(&a).err().unwrap();
        assert!(
            e.text.contains("missing/log") && e.text.contains("try") | e.text.contains("name"),
            "{}",
            e.text
        );
    }
}
