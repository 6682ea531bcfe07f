//! `longhaul ls`: lines in the format of `ls -l`, without links, owner and group.

use super::{Connection, Session};
use crate::args::{AdminOptions, Control, Ls};
use crate::exit::{Failure, Outcome};
use crate::show::Display;
use crate::ssh::RemoteOperation;
use crate::url::{Server, Url};
use crate::{out, setup};
use lhio::clock::LocalTime;
use mover::proto::{Entry, Kind, Meta};
use mover::{ClientApp, ListOptions, Listed};
use serde_json::json;
use std::os::unix::ffi::OsStrExt as _;

/// Characters of a BLAKE3 in hexadecimal.
const CHECKSUM: usize = 64;

/// Lists a served folder.
pub fn ls(a: &Ls) -> Outcome<()> {
    let options = setup::options(&a.wire, None, Some(&a.connect_options));
    // It is over before anybody could look at it.
    let unseen = AdminOptions {
        control: Control { no_control: true, ..Control::default() },
        ..AdminOptions::default()
    };
    let (wire, connect_options, over) = (&a.wire, &a.connect_options, &a.over);
    let connection =
        Connection { wire, connect_options, over, options, governing: &unseen, beside: Vec::new() };
    let (session, mut paths) = Session::new(RemoteOperation::Ls, &[&a.url], connection)?;
    let path = paths.pop().unwrap_or_default();
    let o =
        ListOptions { path: path.clone(), recursive: a.recursive, checksum: a.checksum, link_targets: true };
    let mut printers = Vec::new();
    let style = Style { json: a.json, human_readable: a.human_readable, checksum: a.checksum, listed: path };
    let result = session.run(
        |connect, wake| {
            let (app, entries) = ClientApp::list(connect, &o, wake).map_err(Failure::usage)?;
            let style = style.clone();
            let print = move || {
                for listed in entries.iter().flatten() {
                    style.print(&listed);
                    if out::is_gone() {
                        return; // the listing ends with the reader of our output
                    }
                }
            };
            let named = std::thread::Builder::new().name("printer".into());
            printers.push(named.spawn(print).map_err(Failure::no_thread)?);
            Ok(app)
        },
        true,
        |_| Ok(Display::none()),
    );
    // The channels' senders went with the apps.
    for p in printers {
        let _ = p.join();
    }
    let (summary, live) = result?;
    report_errors(&summary);
    session.verdict(&summary, &live)
}

/// Names what could not be listed or changed.
pub(super) fn report_errors(summary: &mover::Summary) {
    for e in &summary.progress.errors {
        err_line!("error: {}", error_text(e));
    }
}

/// The line of one thing that is called so.
pub(super) fn line_of(l: &Listed, name: &[u8]) -> String {
    let style = Style { listed: name.to_vec(), ..Style::default() };
    let mut alone = l.clone();
    alone.entry.path = mover::path::RelPath::root();
    style.line(&alone)
}

/// A failure of a listing, in its own words: what is missing was not removed meanwhile.
fn error_text(e: &mover::FileError) -> String {
    match e.cause {
        mover::Cause::Missing => {
            format!(
                "cannot list \"{}\": no such file or folder; try `longhaul ls` with the folder above it",
                e.path
            )
        }
        _ => e.to_string(),
    }
}

/// How entries are printed.
#[derive(Clone, Debug, Default)]
struct Style {
    json: bool,
    human_readable: bool,
    checksum: bool,
    /// The path in the address, by which a file or link is called that is listed by itself.
    listed: Vec<u8>,
}

impl Style {
    fn print(&self, listed: &Listed) {
        let is_listed_folder = listed.entry.path.is_root() && listed.entry.kind == Kind::Dir;
        match () {
            () if self.json => out::json(&as_json(listed)),
            // Of a folder its contents are shown, as by `ls -l`.
            () if is_listed_folder => {}
            () => out_line!("{}", self.line(listed)),
        }
    }

    /// `drwxr-xr-x         4096 2026-11-28 11:02 name`.
    fn line(&self, Listed { entry, target, .. }: &Listed) -> String {
        let size = if self.human_readable { human_size(entry.size) } else { entry.size.to_string() };
        let width = if self.human_readable { 5 } else { 12 };
        let mut line = format!("{} {size:>width$} {} ", mode(entry.kind, entry.meta.mode), time(entry.meta));
        if self.checksum {
            // That of a link is its target's, which stands behind it.
            let sum = entry.hash.filter(|_| entry.kind == Kind::File);
            line.push_str(&format!("{:<CHECKSUM$} ", sum.map_or_else(|| "-".to_owned(), |h| hex(&h))));
        }
        let name = if entry.path.is_root() { &self.listed } else { entry.path.as_bytes() };
        line.push_str(&mover::path::show(name));
        if let Some(target) = target {
            line.push_str(&format!(" -> {}", mover::path::show(target)));
        }
        line
    }
}

/// Type and permissions as `ls -l` has them.
fn mode(kind: Kind, mode: u32) -> String {
    let kind = match kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Link => 'l',
        Kind::Other => '?',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let bits = bits.map(|(bit, letter)| if mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(kind).chain(bits).collect()
}

/// When it was modified, in the time zone of this machine, as `ls -l --time-style=long-iso` has it; seconds since 1970 of
/// what no calendar reaches.
fn time(m: Meta) -> String {
    let shown =
        |t: LocalTime| format!("{:04}-{:02}-{:02} {:02}:{:02}", t.year, t.month, t.day, t.hour, t.minute);
    LocalTime::of(m.secs).map_or_else(|| m.secs.to_string(), shown)
}

/// Bytes as `ls -h` has them: in powers of 1,024, rounded up, with one decimal below 10.
fn human_size(n: u64) -> String {
    if n < 1024 {
        return n.to_string();
    }
    let mut unit = 1_u128;
    for letter in ["K", "M", "G", "T", "P", "E"] {
        unit *= 1024;
        let tenths = (u128::from(n) * 10).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        let whole = u128::from(n).div_ceil(unit);
        if whole < 1024 || letter == "E" {
            return format!("{whole}{letter}");
        }
    }
    n.to_string()
}

fn name(e: &Entry) -> &[u8] {
    if e.path.is_root() { b"." } else { e.path.as_bytes() }
}

pub(super) fn as_json(Listed { entry, target, .. }: &Listed) -> serde_json::Value {
    let text = |bytes: &[u8]| std::ffi::OsStr::from_bytes(bytes).to_str().map(str::to_owned);
    let server = Server { name: "h".into(), port: 1, iwarp: false };
    json!({
        "path": text(name(entry)),
        "url_path": Url { server, path: name(entry).to_vec() }.path_text(),
        "kind": format!("{:?}", entry.kind).to_lowercase(),
        "size": entry.size,
        "mode": entry.meta.mode & 0o777,
        "mtime_seconds": entry.meta.secs,
        "mtime_nanoseconds": entry.meta.nanos,
        "target": target.as_deref().and_then(text),
        "blake3": entry.hash.map(|h| hex(&h)),
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_writes_them() {
        assert_eq!(mode(Kind::Dir, 0o755), "drwxr-xr-x");
        assert_eq!(mode(Kind::File, 0o640), "-rw-r-----");
        assert_eq!(mode(Kind::Link, 0o777), "lrwxrwxrwx");
        assert_eq!(mode(Kind::Other, 0), "?---------");
    }

    #[test]
    fn human_sizes_are_rounded_up_as_ls_rounds_them() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (1_048_575, "1.0M"),
            (1_047_552, "1023K"),
            (5 << 30, "5.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn times_beyond_every_calendar_are_seconds() {
        assert_eq!(time(Meta { mode: 0, secs: i64::MIN, nanos: 0 }), i64::MIN.to_string());
        assert_eq!(time(Meta { mode: 0, secs: 1_764_331_200, nanos: 0 }).len(), "2025-11-28 12:00".len());
    }
}
