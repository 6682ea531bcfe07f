//! Large files that exist at the destination and differ: only what differs is sent. And compression.

#![allow(clippy::disallowed_methods, reason = "a test waits for threads")]

mod common;

use base::Rng;
use common::{get_with, noise, put, put_with, serve};
use longhaul_mover::{DataReduction, ReductionMode, Sending, ServeOptions, Summary, TransferOptions};
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

const SIZE: usize = 24 << 20;

fn options(deltas: ReductionMode, compress: ReductionMode) -> TransferOptions {
    TransferOptions { data_reduction: DataReduction { deltas, compress }, ..TransferOptions::default() }
}
const DELTAS: fn() -> TransferOptions = || options(ReductionMode::Always, ReductionMode::Never);
const COMPRESS: fn() -> TransferOptions = || options(ReductionMode::Never, ReductionMode::Always);

/// An old time, so that the file is not taken for the same.
fn age(p: &Path) {
    let f = fs::File::options().write(true).open(p).unwrap();
    f.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000))
        .unwrap();
}
fn old(p: &Path, data: &[u8]) {
    fs::write(p, data).unwrap();
    age(p);
}
fn good(s: &Summary) {
    assert!(s.success(), "{:?} {:?}", s.error, s.progress.errors);
    assert_eq!(s.totals.repaired_chunks, 0);
}
/// As one edits: a block is inserted, one is taken away, one overwritten, and one moved.
fn edited(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new.splice(1_000_003..1_000_003, noise(77, 5_001));
    new.drain(9_000_000..9_004_000);
    new[12_345_678..12_346_000].copy_from_slice(&noise(78, 322));
    let block: Vec<u8> = new.drain(15_000_000..16_500_000).collect();
    new.splice(3_000_000..3_000_000, block);
    new
}

#[test]
fn an_edited_file_is_sent_as_what_differs_in_both_directions() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = noise(1, SIZE);
    let after = edited(&before);
    fs::write(here.path().join("f"), &after).unwrap();
    old(&there.path().join("f"), &before);
    let server = serve(ServeOptions::new(there.path()));
    let s = put_with(server.addr, &here.path().join("f"), "f", DELTAS(), |_, _| ()).unwrap();
    good(&s);
    assert!(fs::read(there.path().join("f")).unwrap() == after);
    let literal = after.len() as u64 - s.progress.bytes_matched;
    assert!(literal < 150_000, "{literal} bytes were sent of {}", after.len());
    assert!(s.progress.bytes_sent < 300_000, "{}", s.progress.bytes_sent);
    assert_eq!((s.totals.bytes, s.progress.bytes_confirmed), (after.len() as u64, after.len() as u64));

    // And back: this time here is what is old.
    let back = tempfile::tempdir().unwrap();
    old(&back.path().join("f"), &before);
    let s =
        get_with(server.addr, "f", &back.path().join("f"), DELTAS(), Sending::default(), |_, _| ()).unwrap();
    good(&s);
    assert!(fs::read(back.path().join("f")).unwrap() == after);
    assert_eq!(after.len() as u64 - s.progress.bytes_matched, literal);
    // What this end received, the names of pieces that it listed not included.
    assert!(s.progress.bytes_received < 300_000, "{}", s.progress.bytes_received);
}

#[test]
fn files_are_sent_whole_when_that_is_wanted() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = noise(1, 4 << 20);
    fs::write(here.path().join("f"), edited(&[&before[..], &noise(2, 14 << 20)].concat())).unwrap();
    let server = serve(ServeOptions::new(there.path()));
    old(&there.path().join("f"), &before);
    let o = options(ReductionMode::Never, ReductionMode::Auto);
    let s = put_with(server.addr, &here.path().join("f"), "f", o, |_, _| ()).unwrap();
    good(&s);
    assert_eq!(s.progress.bytes_matched, 0);
    common::same(here.path(), there.path());
}

#[test]
fn over_a_long_path_what_exists_is_compared_without_being_asked_for() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = noise(8, 6 << 20);
    let after = [&before[..2 << 20], &noise(9, 100_000), &before[2 << 20..]].concat();
    fs::write(here.path().join("f"), &after).unwrap();
    old(&there.path().join("f"), &before);
    let server = serve(ServeOptions::new(there.path()));
    let mut c = lhio::relay::RelayConfig::new(common::LOCAL, server.addr);
    let link: netem::LinkConfig = "rate=200mbit delay=10ms".parse().unwrap();
    (c.up, c.down) = (link.clone(), link);
    let relay = lhio::relay::RelayHandle::start(c).unwrap();
    let s = put(relay.local_addr(), &here.path().join("f"), "f").unwrap();
    relay.stop().unwrap();
    good(&s);
    assert!(fs::read(there.path().join("f")).unwrap() == after);
    assert!(s.progress.bytes_matched > 5 << 20 && s.progress.bytes_sent < 1 << 20, "{:?}", s.progress);
}

#[test]
fn holes_sizes_and_kinds_of_old_files_make_no_difference_to_the_result() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = noise(3, 6 << 20);
    let sparse = |p: &Path, at: &[(u64, &[u8])], len: u64| {
        let f = fs::File::create(p).unwrap();
        at.iter().for_each(|(o, d)| f.write_all_at(d, *o).unwrap());
        f.set_len(len).unwrap();
    };
    let (h, t) = (here.path(), there.path());
    // Name, the new file, the old one.
    sparse(&h.join("holes"), &[(1 << 20, &data), (40 << 20, &data[..3 << 20])], 50 << 20);
    sparse(&t.join("holes"), &[(5 << 20, &data)], 11 << 20);
    fs::write(h.join("shorter"), &data[..2 << 20]).unwrap();
    fs::write(t.join("shorter"), &data).unwrap();
    fs::write(h.join("longer"), &data).unwrap();
    fs::write(t.join("longer"), &data[1 << 20..3 << 20]).unwrap();
    fs::write(h.join("from nothing"), &data).unwrap();
    fs::write(t.join("from nothing"), b"").unwrap();
    fs::write(h.join("from little"), &data).unwrap();
    fs::write(t.join("from little"), b"x").unwrap();
    fs::write(h.join("zeroes"), vec![0; 5 << 20]).unwrap();
    fs::write(t.join("zeroes"), vec![0; 3 << 20]).unwrap();
    sparse(&h.join("all hole"), &[], 30 << 20);
    fs::write(t.join("all hole"), &data).unwrap();
    fs::write(h.join("small"), b"small").unwrap();
    fs::write(t.join("small"), &data).unwrap();
    fs::write(h.join("new"), &data).unwrap();
    fs::write(h.join("link"), &data).unwrap();
    std::os::unix::fs::symlink("longer", t.join("link")).unwrap();
    for e in fs::read_dir(t).unwrap() {
        let p = e.unwrap().path();
        if !p.is_symlink() {
            age(&p);
        }
    }
    let server = serve(ServeOptions::new(t));
    let s = put_with(
        server.addr,
        &h.join(""),
        "",
        options(ReductionMode::Always, ReductionMode::Always),
        |_, _| (),
    )
    .unwrap();
    good(&s);
    common::same(h, t);
    let holes = fs::metadata(t.join("holes")).unwrap();
    assert!(holes.blocks() * 512 < 12 << 20, "the holes are gone");
    assert!(s.progress.bytes_matched > 17 << 20, "{}", s.progress.bytes_matched);
}

#[test]
fn what_a_server_only_takes_is_not_compared() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = noise(4, 3 << 20);
    fs::write(here.path().join("f"), &data).unwrap();
    old(&there.path().join("f"), &data);
    let server = serve(ServeOptions { allow_read: false, ..ServeOptions::new(there.path()) });
    let s = put_with(server.addr, &here.path().join("f"), "f", DELTAS(), |_, _| ()).unwrap();
    good(&s);
    assert_eq!(s.progress.bytes_matched, 0);
    assert!(s.progress.bytes_sent >= data.len() as u64);
}

#[test]
fn an_old_file_that_changes_meanwhile_spoils_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = noise(5, SIZE);
    let after = edited(&before);
    fs::write(here.path().join("f"), &after).unwrap();
    let server = serve(ServeOptions::new(there.path()));
    let mut repaired = 0;
    for round in 0..8 {
        let to = there.path().join("f");
        old(&to, &before);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let path = to.clone();
        let vandal = std::thread::spawn(move || {
            let f = fs::File::options().write(true).open(path).unwrap();
            let mut rng = Rng::from_u64(round);
            if round % 4 == 3 {
                std::thread::sleep(std::time::Duration::from_millis(60));
                f.set_len(SIZE as u64 / 2).unwrap();
            }
            while stopped.try_recv().is_err() {
                f.write_all_at(b"vandal", rng.below(SIZE as u64)).unwrap();
            }
        });
        let s = put_with(server.addr, &here.path().join("f"), "f", DELTAS(), |_, _| ()).unwrap();
        stop.send(()).unwrap();
        vandal.join().unwrap();
        assert!(s.success(), "{:?} {:?}", s.error, s.progress.errors);
        assert!(fs::read(&to).unwrap() == after);
        repaired += s.progress.bytes_sent / 1_000_000;
    }
    assert!(repaired > 0, "nothing was ever spoilt: the test shows nothing");
}

fn text(len: usize) -> Vec<u8> {
    (0..)
        .flat_map(|n: u64| format!("line {n}: {:x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes())
        .take(len)
        .collect()
}

#[test]
fn compressible_files_travel_compressed_small_and_large_both_ways() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let t = here.path().join("t");
    fs::create_dir(&t).unwrap();
    fs::write(t.join("large"), text(9 << 20)).unwrap();
    fs::write(t.join("noise"), noise(6, 5 << 20)).unwrap();
    fs::write(t.join("mixed"), [text(700_000), noise(7, 900_000), text(2 << 20)].concat()).unwrap();
    (0..200).for_each(|n| fs::write(t.join(format!("s{n}")), text(n * 100)).unwrap());
    let total = fs::read_dir(&t).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    let server = serve(ServeOptions::new(there.path()));
    let s = put_with(server.addr, &t, "", COMPRESS(), |_, _| ()).unwrap();
    good(&s);
    common::same(&t, &there.path().join("t"));
    let p = &s.progress;
    assert!(p.bytes_before_compression > 12 << 20 && p.bytes_before_compression < total - (5 << 20));
    assert!(p.bytes_after_compression < p.bytes_before_compression / 2);
    assert!(p.bytes_sent < total - (5 << 20), "{} of {total}", p.bytes_sent);
    let put = (p.bytes_before_compression, p.bytes_after_compression);
    let back = tempfile::tempdir().unwrap();
    let s = get_with(server.addr, "t", back.path(), COMPRESS(), Sending::default(), |_, _| ()).unwrap();
    good(&s);
    common::same(&t, &back.path().join("t"));
    let p = &s.progress;
    let close = |a: u64, b: u64| a.abs_diff(b) < b / 20;
    assert!(
        close(p.bytes_before_compression, put.0) && close(p.bytes_after_compression, put.1),
        "{p:?} {put:?}"
    );
    assert!(p.bytes_received < total - (5 << 20));
    // Nothing is compressed when that is not wanted.
    let o = TransferOptions { skip_same: false, ..options(ReductionMode::Never, ReductionMode::Never) };
    let s = put_with(server.addr, &t, "", o, |_, _| ()).unwrap();
    good(&s);
    assert_eq!(s.progress.bytes_before_compression, 0);
}

#[test]
fn a_delta_is_compressed_as_well() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = text(SIZE);
    let mut after = before.clone();
    after.splice(5_000_000..5_000_000, text(2 << 20).into_iter().rev());
    fs::write(here.path().join("f"), &after).unwrap();
    old(&there.path().join("f"), &before);
    let server = serve(ServeOptions::new(there.path()));
    let o = options(ReductionMode::Always, ReductionMode::Always);
    let s = put_with(server.addr, &here.path().join("f"), "f", o, |_, _| ()).unwrap();
    good(&s);
    assert!(fs::read(there.path().join("f")).unwrap() == after);
    let p = &s.progress;
    assert!(p.bytes_matched > 23 << 20 && p.bytes_before_compression >= 2 << 20);
    assert!(p.bytes_after_compression < p.bytes_before_compression / 2 && p.bytes_sent < 3 << 19, "{p:?}");
}

/// Random edits by a seed: the result is always the new file.
#[test]
fn random_edits_arrive_as_they_are() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = serve(ServeOptions::new(there.path()));
    let (from, to) = (here.path().join("f"), there.path().join("f"));
    for seed in 0..24u64 {
        let mut rng = Rng::from_u64(seed);
        let before = noise(seed, 1_500_000 + rng.below(3_000_000) as usize);
        let mut after = before.clone();
        for _ in 0..rng.below(6) {
            let at = rng.below(after.len() as u64) as usize;
            let len = (rng.below(200_000) as usize).min(after.len() - at);
            match rng.below(4) {
                0 => drop(after.splice(at..at, noise(rng.below(1 << 40), len))),
                1 => drop(after.drain(at..at + len)),
                2 => after[at..at + len].copy_from_slice(&noise(rng.below(1 << 40), len)),
                _ => {
                    let block: Vec<u8> = after.drain(at..at + len).collect();
                    let to = rng.below(after.len() as u64 + 1) as usize;
                    after.splice(to..to, block);
                }
            }
        }
        fs::write(&from, &after).unwrap();
        old(&to, &before);
        let compress = if seed % 2 == 0 { ReductionMode::Always } else { ReductionMode::Never };
        let s =
            put_with(server.addr, &from, "f", options(ReductionMode::Always, compress), |_, _| ()).unwrap();
        good(&s);
        assert!(fs::read(&to).unwrap() == after, "seed {seed}");
    }
    let s = put(server.addr, &from, "f").unwrap();
    assert_eq!(s.progress.files_skipped, 1);
}
