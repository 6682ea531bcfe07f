//! Deltas and compression by the commands, beside what rsync sends of the same files.

mod common;

use common::{Bench, bytes, expect, json, stderr};
use std::fs;
use std::path::Path;
use std::process::Command;

const SIZE: usize = 32 << 20;

/// Writes the new file and the old one, each in a folder.
fn files(b: &Bench, new: &[u8], old: &[u8]) {
    for (dir, data) in [("new", new), ("old", old), ("rsync", old)] {
        fs::create_dir_all(b.path(dir)).unwrap();
        fs::write(b.path(dir).join("f"), data).unwrap();
    }
    for dir in ["old", "rsync"] {
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options().write(true).open(b.path(dir).join("f")).unwrap().set_modified(long_ago).unwrap();
    }
}
/// Bytes of data that rsync sends for this; `None` without rsync.
fn literal_of_rsync(from: &Path, to: &Path) -> Option<u64> {
    let o =
        Command::new("rsync").args(["--no-whole-file", "--stats", "-t"]).args([from, to]).output().ok()?;
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(o.status.success(), "{text}");
    let line = text.lines().find_map(|l| l.strip_prefix("Literal data: ")).unwrap();
    line.split(' ').next().unwrap().replace(',', "").parse().ok()
}

#[test]
fn deltas_send_no_more_than_twice_what_rsync_sends() {
    type Edit = fn(&mut Vec<u8>);
    let edits: [(&str, Edit); 5] = [
        ("overwritten in 40 places", |v| {
            (0..40).for_each(|n| v[n * 800_000 + 17..][..300].copy_from_slice(&bytes(n as u64 + 5, 300)));
        }),
        ("inserted in 20 places", |v| {
            for n in 0..20 {
                v.splice(n * 1_600_000..n * 1_600_000, bytes(n as u64, 777));
            }
        }),
        ("taken away in 20 places", |v| {
            (0..20).for_each(|n| drop(v.drain(n * 1_500_000..n * 1_500_000 + 999)))
        }),
        ("moved", |v| {
            let block: Vec<u8> = v.drain(1_000_001..9_000_001).collect();
            v.splice(20_000_000..20_000_000, block);
        }),
        ("appended to", |v| v.extend(bytes(9, 500_000))),
    ];
    let b = Bench::new();
    for (what, edit) in edits {
        let old = bytes(1, SIZE);
        let mut new = old.clone();
        edit(&mut new);
        files(&b, &new, &old);
        let server = b.serve("old", &[]);
        let o = b.run(&[
            "put",
            "--accept-new",
            "--json",
            "--no-whole-file",
            b.path("new/f").to_str().unwrap(),
            &server.url("f"),
        ]);
        expect(&o, 0);
        assert!(fs::read(b.path("old/f")).unwrap() == new);
        let p = json(&o)["transfer"]["progress"].clone();
        let n = |k: &str| p[k].as_u64().unwrap();
        let ours = new.len() as u64 - n("bytes_matched");
        assert_eq!(json(&o)["bytes_transferred"].as_u64(), Some(ours), "{what}");
        assert!(n("bytes_sent") < ours + new.len() as u64 / 100, "{what}: {} sent", n("bytes_sent"));
        let Some(theirs) = literal_of_rsync(&b.path("new/f"), &b.path("rsync/f")) else {
            println!("skipped: there is no rsync");
            return;
        };
        println!("{what}: rsync sends {theirs} bytes, longhaul {ours}");
        assert!(ours <= 2 * theirs, "{what}: rsync sends {theirs} bytes, longhaul {ours}");
    }
}

#[test]
fn image_with_one_percent_changed_sends_at_most_three_percent() {
    let b = Bench::new();
    let old = bytes(2, 96 << 20);
    let mut new = old.clone();
    // A database's way: runs of pages.
    let run = new.len() / 100 / 8;
    (0..8).for_each(|n| {
        let at = n * 12_000_000 + 4_096;
        new[at..at + run].copy_from_slice(&bytes(n as u64 + 9, run));
    });
    files(&b, &new, &old);
    let server = b.serve("old", &[]);
    let (from, to) = (b.path("new/f"), server.url("f"));
    let o = b.run(&["put", "--accept-new", "--no-whole-file", from.to_str().unwrap(), &to]);
    expect(&o, 0);
    assert!(stderr(&o).contains("copied from what was there"), "{o:?}");
    files(&b, &new, &old);
    let o = b.run(&["put", "--json", "--no-whole-file", from.to_str().unwrap(), &to]);
    expect(&o, 0);
    let carried = common::carried(&o) + json(&o)["connection"]["payload_received"].as_u64().unwrap();
    println!("{carried} of {} bytes moved in both directions", new.len());
    assert!(carried * 100 <= new.len() as u64 * 3, "{carried}");
    assert!(fs::read(b.path("old/f")).unwrap() == new);
    // And nothing of it when files are to be sent whole.
    files(&b, &new, &old);
    let o = b.run(&["put", "--json", "-W", from.to_str().unwrap(), &to]);
    expect(&o, 0);
    assert!(common::carried(&o) >= new.len() as u64);
}

#[test]
fn compression_is_reported_and_can_be_turned_off() {
    let b = Bench::new();
    fs::create_dir_all(b.path("served")).unwrap();
    let text: Vec<u8> =
        (0..).flat_map(|n: u32| format!("{n} bottles of beer\n").into_bytes()).take(8 << 20).collect();
    fs::write(b.path("text"), &text).unwrap();
    let server = b.serve("served", &[]);
    let (from, to) = (b.path("text"), server.url("text"));
    let o = b.run(&["put", "--accept-new", "-z", from.to_str().unwrap(), &to]);
    expect(&o, 0);
    assert!(stderr(&o).contains("8.0 MiB compressed to ") || stderr(&o).contains(" compressed to "), "{o:?}");
    let get = |more: &str| {
        let to = b.path("back");
        let o = b.run(&["get", "--json", "--all", more, &server.url("text"), to.to_str().unwrap()]);
        expect(&o, 0);
        assert!(fs::read(&to).unwrap() == text);
        json(&o)
    };
    let with = get("-z");
    let p = &with["transfer"]["progress"];
    assert_eq!(p["bytes_before_compression"], text.len());
    assert!(p["bytes_after_compression"].as_u64().unwrap() * 3 < text.len() as u64, "{p}");
    assert!(p["bytes_received"].as_u64().unwrap() * 3 < text.len() as u64, "{p}");
    let without = get("--no-compress");
    let p = &without["transfer"]["progress"];
    assert_eq!((&p["bytes_before_compression"], &p["bytes_after_compression"]), (&0.into(), &0.into()));
    assert!(p["bytes_received"].as_u64().unwrap() >= text.len() as u64);
}
