//! Commands on files of a server: `du`, `stat`, `checksum`, `mkdir`, `rm`, `mv`.

use super::listing::{as_json, hex, line_of, report_errors};
use super::{Connection, Session};
use crate::args::{AdminOptions, Checksum, Control, Du, Mkdir, Mv, RemoteOptions, Rm, Stat};
use crate::exit::{Failure, Outcome};
use crate::show::Display;
use crate::ssh::{Location, RemoteOperation};
use crate::{out, setup};
use endpoint::Connect;
use mover::path::{RelPath, show};
use mover::proto::{Change, Kind};
use mover::{ClientApp, ListOptions, Listed, Wake};
use serde_json::json;
use std::sync::mpsc::Receiver;

/// Runs a request that answers by a listing, and hands each thing to `take` on a thread of its own; false from it ends that.
fn run(
    operation: RemoteOperation,
    places: &[&Location],
    o: &RemoteOptions,
    mut make: impl FnMut(Connect, &[Vec<u8>], Wake) -> Result<(ClientApp, Receiver<Vec<Listed>>), mover::Error>,
    take: impl FnMut(&Listed) -> bool + Send + Clone + 'static,
) -> Outcome<()> {
    if let Some(other) = places.iter().find(|p| !p.is_beside(places[0])) {
        let text = format!(
            "cannot use {} and {} at once: they are different servers; try one at a time",
            other.at(),
            places[0].at()
        );
        return Err(Failure::usage(text));
    }
    let unseen = AdminOptions {
        control: Control { no_control: true, ..Control::default() },
        ..AdminOptions::default()
    };
    let options = setup::options(&o.wire, None, Some(&o.connect_options));
    let (wire, connect_options, over) = (&o.wire, &o.connect_options, &o.over);
    let connection =
        Connection { wire, connect_options, over, options, governing: &unseen, beside: Vec::new() };
    let (session, paths) = Session::new(operation, places, connection)?;
    let mut threads = Vec::new();
    let result = session.run(
        |connect, wake| {
            let (app, entries) = make(connect, &paths, wake).map_err(Failure::usage)?;
            let mut take = take.clone();
            let read = move || {
                for listed in entries.iter().flatten() {
                    if !take(&listed) || out::is_gone() {
                        return;
                    }
                }
            };
            let named = std::thread::Builder::new().name("printer".into());
            threads.push(named.spawn(read).map_err(Failure::no_thread)?);
            Ok(app)
        },
        true,
        |_| Ok(Display::none()),
    );
    for t in threads {
        let _ = t.join();
    }
    let (summary, live) = result?;
    report_errors(&summary);
    session.verdict(&summary, &live)
}

fn listing(recursive: bool, checksum: bool, path: &[u8]) -> ListOptions {
    ListOptions { path: path.to_vec(), recursive, checksum, link_targets: true }
}

/// A path of a listing, below what was listed.
fn below(top: &[u8], path: &RelPath) -> Vec<u8> {
    match (top, path.as_bytes()) {
        (b"", b"") => b".".to_vec(),
        (t, b"") => t.to_vec(),
        (b"", p) => p.to_vec(),
        (t, p) => [t, if t.ends_with(b"/") { b"" } else { b"/" }, p].concat(),
    }
}

/// `longhaul du`.
pub fn du(a: &Du) -> Outcome<()> {
    let (top, json, each) = (a.url.path().to_vec(), a.remote.json, !a.summarize);
    let sums = std::sync::Arc::new(std::sync::Mutex::new(Vec::<(RelPath, u64, u64)>::new()));
    let print = {
        let top = top.clone();
        move |path: &RelPath, bytes: u64, files: u64| {
            let name = below(&top, path);
            if json {
                out::json(&json!({ "path": String::from_utf8_lossy(&name), "bytes": bytes, "files": files }));
            } else {
                out_line!("{bytes:<12} {}", show(&name));
            }
        }
    };
    let (open, say) = (sums.clone(), print.clone());
    let close = move |open: &mut Vec<(RelPath, u64, u64)>| {
        if let Some((path, bytes, files)) = open.pop() {
            if let Some(above) = open.last_mut() {
                (above.1, above.2) = (above.1.saturating_add(bytes), above.2.saturating_add(files));
            }
            if each || open.is_empty() {
                say(&path, bytes, files);
            }
        }
    };
    let closing = close.clone();
    let done = run(
        RemoteOperation::Ls,
        &[&a.url],
        &a.remote,
        |connect, paths, wake| ClientApp::list(connect, &listing(true, false, &paths[0]), wake),
        move |l| {
            let mut open = open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            while open.last().is_some_and(|o| !l.entry.path.is_below(&o.0)) {
                close(&mut open);
            }
            let of_file = if l.entry.kind == Kind::Dir { (0, 0) } else { (l.entry.size, 1) };
            if l.entry.kind == Kind::Dir || open.is_empty() {
                open.push((l.entry.path.clone(), of_file.0, of_file.1));
            } else if let Some(o) = open.last_mut() {
                (o.1, o.2) = (o.1.saturating_add(of_file.0), o.2.saturating_add(of_file.1));
            }
            true
        },
    );
    let mut open = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    while !open.is_empty() {
        closing(&mut open);
    }
    done
}

/// `longhaul stat`.
pub fn stat(a: &Stat) -> Outcome<()> {
    let (top, json) = (a.url.path().to_vec(), a.remote.json);
    run(
        RemoteOperation::Ls,
        &[&a.url],
        &a.remote,
        |connect, paths, wake| ClientApp::list(connect, &listing(false, false, &paths[0]), wake),
        move |l| {
            // Of a folder the first entry is itself.
            if json {
                out::json(&as_json(l));
            } else {
                out_line!("{}", line_of(l, &below(&top, &l.entry.path)));
            }
            false
        },
    )
}

/// `longhaul checksum`.
pub fn checksum(a: &Checksum) -> Outcome<()> {
    for url in &a.urls {
        let (top, json) = (url.path().to_vec(), a.remote.json);
        run(
            RemoteOperation::Ls,
            &[url],
            &a.remote,
            |connect, paths, wake| ClientApp::list(connect, &listing(true, true, &paths[0]), wake),
            move |l| {
                if let (Kind::File, Some(h)) = (l.entry.kind, &l.entry.hash) {
                    let name = below(&top, &l.entry.path);
                    if json {
                        out::json(
                            &json!({ "path": String::from_utf8_lossy(&name), "blake3": hex(h), "size": l.entry.size }),
                        );
                    } else {
                        out_line!("{}  {}", hex(h), show(&name));
                    }
                }
                true
            },
        )?;
    }
    Ok(())
}

/// Does something with paths of one server, and says what was done where that is asked for.
fn change(change: Change, places: &[&Location], o: &RemoteOptions) -> Outcome<()> {
    let json = o.json;
    run(
        RemoteOperation::Change,
        places,
        o,
        |connect, paths, wake| ClientApp::change(connect, change, paths, wake),
        move |l| {
            if json {
                out::json(&as_json(l));
            }
            true
        },
    )
}

/// `longhaul mkdir`.
pub fn mkdir(a: &Mkdir) -> Outcome<()> {
    let places: Vec<&Location> = a.urls.iter().collect();
    change(Change::MakeFolder { parents: a.parents }, &places, &a.remote)
}

/// `longhaul rm`.
pub fn rm(a: &Rm) -> Outcome<()> {
    let places: Vec<&Location> = a.urls.iter().collect();
    change(Change::Remove { recursive: a.recursive }, &places, &a.remote)
}

/// `longhaul mv`.
pub fn mv(a: &Mv) -> Outcome<()> {
    change(Change::Rename, &[&a.from, &a.to], &a.remote)
}
