//! Either end is killed (SIGKILL) at random moments; `put` again ends with identical files and sends little again.
//! And servers on file systems that are full or read-only.

mod common;

use base::Rng;
use common::{noise, put, same, serve_here};
use longhaul_mover::journal::Contents;
use longhaul_mover::{Cause, DataReduction, ReductionMode, ServeOptions, TransferOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Tells this binary, run again as a child, which end to play.
const ROLE: &str = "LONGHAUL_TEST_ROLE";
const FILES: usize = 10;
const SIZE: usize = 12 << 20;
/// How often each end is killed.
const KILLS: u64 = 20;
/// Payload bytes between two kills at most.
const MAX_STEP: u64 = 24 << 20;

/// Not a test by itself: what a child does.
#[test]
fn child() {
    match std::env::var(ROLE).as_deref().map(|r| r.split_once(' ').unwrap()) {
        Ok(("serve", dir)) => {
            serve_here(ServeOptions::new(dir), common::LOCAL, |a, _, _| eprintln!("AT {a}"))
        }
        Ok((role @ ("put" | "delta"), args)) => {
            let (addr, dir) = args.split_once(' ').unwrap();
            let report = |p: longhaul_mover::Progress, _| {
                std::thread::spawn(move || {
                    let mut last = (u64::MAX, 0);
                    loop {
                        let over = p.outcome().is_some();
                        let s = p.snapshot();
                        let now = (s.bytes_transferred(), s.bytes_resumed + s.bytes_skipped);
                        if now != last {
                            eprintln!("AT {} {}", now.0, now.1);
                            last = now;
                        }
                        if over {
                            return;
                        }
                        std::thread::yield_now();
                    }
                });
            };
            let deltas = if role == "delta" { ReductionMode::Always } else { ReductionMode::Auto };
            let compress = if role == "delta" { ReductionMode::Always } else { ReductionMode::Auto };
            let o = TransferOptions {
                data_reduction: DataReduction { deltas, compress },
                ..TransferOptions::default()
            };
            common::put_with(addr.parse().unwrap(), Path::new(dir), "", o, report).unwrap();
        }
        Ok(("get", args)) => {
            let (addr, dir) = args.split_once(' ').unwrap();
            get_to_a_full_disk(addr.parse().unwrap(), Path::new(dir));
        }
        _ => {}
    }
}

/// With `t` of [`full_disk_is_reported_and_files_that_fit_are_transferred`], to a disk that is too small for it.
fn get_to_a_full_disk(addr: SocketAddr, dir: &Path) {
    std::fs::create_dir(dir.join("t")).unwrap();
    std::fs::write(dir.join("t/big"), "what was there before").unwrap();
    let r = common::get(addr, "t", dir).unwrap();
    full(&r);
    assert_eq!(std::fs::read(dir.join("t/small")).unwrap(), b"fits");
    assert_eq!(std::fs::read(dir.join("t/big")).unwrap(), b"what was there before");
}
/// Only `t/big` failed, since the disk is full.
fn full(r: &longhaul_mover::Summary) {
    let only = longhaul_mover::Error::Partial { failed: 1, system: Some(Cause::Full) };
    assert_eq!(r.error, Some(only), "{:?}", r.progress.errors);
    let e = &r.progress.errors[0];
    assert!(
        e.cause == Cause::Full && e.path.ends_with("t/big") && e.to_string().contains("free some space"),
        "{e}"
    );
}

/// Starts a child; its lines that begin with `AT ` are what it tells.
fn start(role: String) -> (Child, impl Iterator<Item = String> + Send + 'static) {
    start_as(Command::new(std::env::current_exe().unwrap()), role)
}
fn start_as(mut command: Command, role: String) -> (Child, impl Iterator<Item = String> + Send + 'static) {
    let mut c = command
        .args(["--exact", "child", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(c.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told = |l: String| {
        let at = l.strip_prefix("AT ").map(str::to_owned);
        if at.is_none() {
            // Why a child failed is not to be lost.
            eprintln!("child: {l}");
        }
        at
    };
    (c, lines.filter_map(told))
}
fn start_server(dir: &Path) -> (Child, SocketAddr) {
    listening(start(format!("serve {}", dir.display())))
}
/// This binary, in a place where a new file system, mounted with these options, is in place of `dir`.
fn on_new_disk(dir: &Path, mount: &str) -> Command {
    let script = format!("mount -t tmpfs -o {mount} none {} && exec \"$0\" \"$@\"", dir.display());
    let mut c = Command::new("unshare");
    c.args(["-rm", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
    c
}
fn start_server_on(dir: &Path, mount: &str) -> (Child, SocketAddr) {
    listening(start_as(on_new_disk(dir, mount), format!("serve {}", dir.display())))
}
fn listening(
    (mut c, mut lines): (Child, impl Iterator<Item = String> + Send + 'static),
) -> (Child, SocketAddr) {
    match lines.next() {
        Some(a) => {
            // Keeps reading, so that the child never waits for room in the pipe.
            std::thread::spawn(move || lines.count());
            (c, a.parse().unwrap())
        }
        None => panic!("the server did not start: {:?}", c.wait()),
    }
}

/// What lies at the destination, in bytes.
#[derive(Clone, Copy, Default)]
struct Safe {
    /// In finished files and in chunks that journals list: nothing of it may travel again.
    kept: u64,
    /// In chunks that hold data but were not verified: tried before they are sent again.
    hopeful: u64,
}
impl Safe {
    /// The server may still be at work on what a killed client had sent: a file may get its name meanwhile.
    fn of(dir: &Path) -> Safe {
        loop {
            match Safe::look(dir) {
                // The blow fell before anything was made.
                Err(_) if !dir.exists() => return Safe::default(),
                Ok(s) => return s,
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
            }
        }
    }
    fn look(dir: &Path) -> std::io::Result<Safe> {
        let mut s = Safe::default();
        for e in std::fs::read_dir(dir)? {
            let e = e?;
            let name = e.file_name().into_string().unwrap();
            if !name.starts_with('.') {
                s.kept += e.metadata()?.len();
            } else if name.ends_with("-journal") {
                let Some(j) = Contents::read(&std::fs::read(e.path())?) else { continue };
                let part = std::fs::read(dir.join(name.replace("-journal", "-part")))?;
                s.kept += j.bytes();
                for (c, chunk) in (0..).zip(part.chunks(1 << j.chunk_log2)) {
                    let ends = [&chunk[..64], &chunk[chunk.len() - 64..]];
                    let written = ends.iter().all(|e| e.iter().any(|b| *b != 0));
                    s.hopeful += if written && !j.chunks.contains_key(&c) { chunk.len() as u64 } else { 0 };
                }
            }
        }
        Ok(s)
    }
}

/// Counts what of the safe bytes each attempt sends again: what it neither left out nor found there.
fn killed_again_and_again(kill_server: bool) {
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (t, there) = (from.path().join("t"), served.path().join("t"));
    std::fs::create_dir(&t).unwrap();
    for i in 0..FILES {
        std::fs::write(t.join(i.to_string()), noise(i as u64, SIZE)).unwrap();
    }
    let mut rng = Rng::from_u64(11);
    let (mut server, mut addr) = start_server(served.path());
    let (mut kills, mut kept, mut again) = (0, 0, 0);
    let mut safe = Safe::default();
    while kills < KILLS {
        // Payload bytes after which the blow falls.
        let at = u64::from(rng.u32()) % MAX_STEP;
        let (mut client, lines) = start(format!("put {addr} {}", t.display()));
        let (mut there_already, mut cut) = (0, false);
        for l in lines {
            let n: Vec<u64> = l.split(' ').map(|n| n.parse().unwrap()).collect();
            there_already = n[1];
            // Whoever has not found everything yet is let go on, to its end if need be.
            if n[0] >= at && there_already >= safe.kept + safe.hopeful {
                cut = true;
                break;
            }
        }
        kept += safe.kept;
        again += (safe.kept + safe.hopeful).saturating_sub(there_already);
        if kill_server && cut {
            server.kill().unwrap();
            server.wait().unwrap();
        }
        // Without its server the client would wait for its idle time-out.
        client.kill().unwrap();
        client.wait().unwrap();
        if kill_server && cut {
            (server, addr) = start_server(served.path());
        }
        kills += u64::from(cut);
        safe = Safe::of(&there);
        if !cut {
            assert_eq!(safe.kept, (FILES * SIZE) as u64, "an attempt ended early");
            std::fs::remove_dir_all(&there).unwrap();
            safe = Safe::default();
        }
    }
    println!("{again} of {kept} safe bytes were sent again in {kills} attempts");
    assert!(kept > SIZE as u64, "hardly anything was safe: {kept}");
    assert!(again * 20 < kept, "{again} of {kept} safe bytes were sent again");
    let r = put(addr, &t, "").unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    let missing = (FILES * SIZE) as u64 - safe.kept;
    assert!(r.progress.bytes_sent <= missing + safe.kept / 20, "{} for {missing}", r.progress.bytes_sent);
    same(&t, &there);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn killed_server_loses_no_acknowledged_data() {
    killed_again_and_again(true);
}

#[test]
fn killed_client_loses_no_acknowledged_data() {
    killed_again_and_again(false);
}

/// Every file of `dir` that has its name has the bytes of that in `of`; how many there are.
fn all_right(dir: &Path, of: &Path) -> usize {
    let Ok(all) = std::fs::read_dir(dir) else { return 0 };
    // The server may be at work: a name may go meanwhile, none that has no dot before it.
    let names = all.map(|e| e.unwrap().file_name()).filter(|n| !n.as_encoded_bytes().starts_with(b"."));
    let mut n = 0;
    for name in names {
        let same = std::fs::read(dir.join(&name)).unwrap() == std::fs::read(of.join(&name)).unwrap();
        assert!(same, "{} has wrong bytes", name.display());
        n += 1;
    }
    n
}

/// 20 kills; 300 with LONGHAUL_FULL_TESTS=1.
#[test]
fn named_files_are_always_complete_after_kills_and_tampering() {
    let kills = if std::env::var_os("LONGHAUL_FULL_TESTS").is_some() { 300 } else { 20 };
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (t, there) = (from.path().join("t"), served.path().join("t"));
    std::fs::create_dir(&t).unwrap();
    // Files of many chunks, of one, and such as travel in messages.
    let sizes = [SIZE, SIZE / 2 + 1, 5 << 20, 3_000_000, 400_000, 200_000].into_iter();
    for (i, size) in sizes.chain(std::iter::repeat_n(50_000, 20)).enumerate() {
        std::fs::write(t.join(i.to_string()), noise(i as u64, size)).unwrap();
    }
    let precious = served.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let mut rng = Rng::from_u64(29);
    let (mut server, mut addr) = start_server(served.path());
    let (mut done, mut tampered, mut named, mut whole) = (0, 0, 0, 0);
    while done < kills {
        let at = u64::from(rng.u32()) % (20 << 20);
        let (mut client, lines) = start(format!("put {addr} {}", t.display()));
        let mut cut = false;
        for l in lines {
            cut = l.split(' ').next().unwrap().parse::<u64>().unwrap() >= at;
            if cut {
                break;
            }
        }
        // What is changed while somebody writes it is another test's (`tamper`): here both ends are gone.
        let spoil = cut && rng.below(3) > 0;
        let kill_server = spoil || done % 2 == 0;
        if kill_server {
            server.kill().unwrap();
            server.wait().unwrap();
        }
        client.kill().unwrap();
        client.wait().unwrap();
        if spoil {
            tampered += common::tamper::tamper(&there, &precious, &mut rng);
        }
        named += all_right(&there, &t);
        if kill_server {
            (server, addr) = start_server(served.path());
        }
        done += u64::from(cut);
        if !cut {
            let r = put(addr, &t, "").unwrap();
            assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
            same(&t, &there);
            std::fs::remove_dir_all(&there).unwrap();
            whole += 1;
        }
    }
    let r = put(addr, &t, "").unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    same(&t, &there);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    println!(
        "{done} kills, {tampered} files tampered with, {named} files looked at, {whole} transfers ended"
    );
    assert!(tampered > 0 && named > 0, "{tampered} were tampered with, {named} looked at");
    server.kill().unwrap();
    server.wait().unwrap();
}

/// A file with bytes replaced, added and moved; the last has hardly anything of the old one.
fn edited(n: usize, data: &[u8]) -> Vec<u8> {
    let mut new = data.to_vec();
    let fresh = if n == 3 { 8 << 20 } else { 300_000 };
    new.splice(2_000_000 + n..2_500_000, noise(50 + n as u64, fresh));
    let block: Vec<u8> = new.drain(5_000_000..6_000_000).collect();
    new.splice(1_000_000..1_000_000, block);
    new
}

/// 30 kills; 200 with LONGHAUL_FULL_TESTS=1. Both ends die at random moments while files are sent as deltas: each name has its
/// old bytes or its new ones, and in the end the new ones.
#[test]
fn a_delta_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let kills = if std::env::var_os("LONGHAUL_FULL_TESTS").is_some() { 200 } else { 30 };
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (t, there) = (from.path().join("t"), served.path().join("t"));
    std::fs::create_dir(&t).unwrap();
    let old: Vec<Vec<u8>> = (0..4u64).map(|n| noise(n, SIZE)).collect();
    let new: Vec<Vec<u8>> = old.iter().enumerate().map(|(n, data)| edited(n, data)).collect();
    new.iter().enumerate().for_each(|(n, data)| std::fs::write(t.join(n.to_string()), data).unwrap());
    let reset = || {
        std::fs::create_dir_all(&there).unwrap();
        for (n, data) in old.iter().enumerate() {
            std::fs::write(there.join(n.to_string()), data).unwrap();
            let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
            std::fs::File::open(there.join(n.to_string())).unwrap().set_modified(long_ago).unwrap();
        }
    };
    reset();
    let mut rng = Rng::from_u64(31);
    let (mut server, mut addr) = start_server(served.path());
    let (mut done, mut unfinished, mut whole) = (0, 0, 0);
    while done < kills {
        let (mut client, lines) = start(format!("delta {addr} {}", t.display()));
        // Before anything is verified as well, while the files are compared.
        let (at, patience) = (rng.below(56 << 20), rng.below(120_000));
        let mut cut = at < 8 << 20;
        if cut {
            std::thread::park_timeout(std::time::Duration::from_micros(patience));
        } else {
            for l in lines {
                cut = l.split(' ').map(|n| n.parse::<u64>().unwrap()).sum::<u64>() >= at;
                if cut {
                    break;
                }
            }
        }
        let kill_server = done % 2 == 0;
        if kill_server {
            server.kill().unwrap();
            server.wait().unwrap();
        }
        client.kill().unwrap();
        client.wait().unwrap();
        for (n, (old, new)) in old.iter().zip(&new).enumerate() {
            let now = std::fs::read(there.join(n.to_string())).unwrap();
            assert!(now == *old || now == *new, "{n} is neither the old file nor the new one");
            unfinished += u64::from(now == *old);
        }
        if kill_server {
            (server, addr) = start_server(served.path());
        }
        done += u64::from(cut);
        if !cut || rng.below(6) == 0 {
            assert!(put(addr, &t, "").unwrap().success());
            same(&t, &there);
            reset();
            whole += 1;
        }
    }
    let o = DataReduction { deltas: ReductionMode::Always, compress: ReductionMode::Never };
    let o = TransferOptions { data_reduction: o, ..TransferOptions::default() };
    let r = common::put_with(addr, &t, "", o, |_, _| ()).unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    same(&t, &there);
    println!("{done} kills, {unfinished} old files were looked at, {whole} transfers ended");
    assert!(unfinished > 0);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn full_disk_is_reported_and_files_that_fit_are_transferred() {
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let t = from.path().join("t");
    std::fs::create_dir(&t).unwrap();
    std::fs::write(t.join("big"), noise(1, 2 << 20)).unwrap();
    let (mut server, addr) = start_server_on(served.path(), "size=8m");
    assert!(put(addr, &t, "").unwrap().success());
    std::fs::write(t.join("big"), noise(2, 20 << 20)).unwrap();
    std::fs::write(t.join("small"), "fits").unwrap();
    let r = put(addr, &t, "").unwrap();
    full(&r);
    let back = from.path().join("back/");
    assert!(common::get(addr, "t/small", &back).unwrap().success());
    assert_eq!(std::fs::read(back.join("small")).unwrap(), b"fits");
    assert!(common::get(addr, "t/big", &back).unwrap().success());
    assert!(std::fs::read(back.join("big")).unwrap() == noise(1, 2 << 20), "what was there before is lost");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn full_disk_of_a_get_is_reported_and_files_that_fit_are_transferred() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let t = from.path().join("t");
    std::fs::create_dir(&t).unwrap();
    std::fs::write(t.join("big"), noise(2, 20 << 20)).unwrap();
    std::fs::write(t.join("small"), "fits").unwrap();
    let (mut server, addr) = start_server(from.path());
    let disk = on_new_disk(to.path(), "size=8m");
    let (mut client, lines) = start_as(disk, format!("get {addr} {}", to.path().display()));
    lines.count();
    assert!(client.wait().unwrap().success(), "the child's own output says why");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn a_read_only_file_system_is_named() {
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(from.path().join("f"), "f").unwrap();
    let (mut server, addr) = start_server_on(served.path(), "ro");
    match put(addr, &from.path().join("f"), "into/").unwrap().error {
        Some(longhaul_mover::Error::Peer { text }) => {
            assert!(text.contains("into") && text.contains("mount it writable"), "{text}");
        }
        e => panic!("{e:?}"),
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
