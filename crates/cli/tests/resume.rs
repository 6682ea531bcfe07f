//! Either end is killed at random moments; repeating the command ends byte-identical and sends little again.

mod common;

use common::{Bench, Server, bytes, carried, expect, json, stderr, tree};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

/// Bytes of the tree: the short version, unless LONGHAUL_FULL_TESTS asks for 1 GiB.
fn size() -> usize {
    if std::env::var_os("LONGHAUL_FULL_TESTS").is_some() { 1 << 30 } else { 96 << 20 }
}
/// Kills, either end in turn: 20 each in the full version.
fn kills() -> u64 {
    if std::env::var_os("LONGHAUL_FULL_TESTS").is_some() { 40 } else { 6 }
}
const FILES: usize = 50;

#[test]
fn transfer_resumes_after_either_end_is_killed_at_random_moments() {
    let b = Bench::new();
    let each = size() / FILES;
    fs::create_dir(b.path("src")).unwrap();
    for i in 0..FILES {
        fs::write(b.path(&format!("src/file-{i:02}")), bytes(i as u64, each)).unwrap();
    }
    let mut server = b.serve("srv", &[]);
    let address = server.address.clone();
    let url = server.url("in/");
    let src = b.path("src/");
    // Slow enough that a kill always interrupts: a second for each kill.
    let limit = format!("{}kB/s", size() as u64 / kills() / 1_000);
    let put = ["put", "--accept-new", "--json", "--limit", &limit, src.to_str().unwrap(), &url];
    let mut rng = base::Rng::from_u64(42);
    // What the other end had taken when last it was asked, of which 5 % at most may be sent again.
    let mut acknowledged = 0;
    for kill in 0..kills() {
        let mut client = b.client(&put).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        wait_ms(300 + rng.below(900));
        if kill % 2 == 0 {
            client.kill().unwrap();
            client.wait().unwrap();
        } else {
            server.kill();
            server = b.serve_at("srv", &address, &[]);
            let o = client.wait_with_output().unwrap();
            expect(&o, 5);
            let p = &json(&o)["transfer"]["progress"];
            let kept = p["bytes_skipped"].as_u64().unwrap() + p["bytes_resumed"].as_u64().unwrap();
            assert!(kept + acknowledged / 20 >= acknowledged, "kept {kept} of {acknowledged} acknowledged");
            acknowledged = p["bytes_confirmed"].as_u64().unwrap();
        }
    }
    assert!(acknowledged > 0);
    let o = b.run(&put);
    expect(&o, 0);
    assert_eq!(tree(&b.path("src")), tree(&b.path("srv/in")));
    let p = &json(&o)["transfer"]["progress"];
    let kept = p["bytes_skipped"].as_u64().unwrap() + p["bytes_resumed"].as_u64().unwrap();
    let moved = carried(&o);
    // What was there is not sent again: together they are the whole, and 5 % of it at most.
    let whole = (each * FILES) as u64;
    assert!(kept > 0 && kept + moved <= whole + whole / 20, "kept {kept}, moved {moved} of {whole}");
    assert!(kept + acknowledged / 20 >= acknowledged, "kept {kept} of {acknowledged} acknowledged");
    println!("{} kills: kept {kept} of {acknowledged} acknowledged, {whole} in all", kills());
    drop::<Server>(server);
}

/// Kills a transfer once a third of the file is noted in the journal, and changes four places of what it left.
fn cut_off_and_changed(mut client: Child, server: Option<&mut Server>, dir: &Path) {
    let (journal, part) = (dir.join(".file.longhaul-journal"), dir.join(".file.longhaul-part"));
    // 128 chunks, a record of 48 bytes for each.
    while fs::metadata(&journal).map_or(0, |m| m.len()) < 43 * 48 {
        assert!(client.try_wait().unwrap().is_none(), "it ended early");
        wait_ms(20);
    }
    client.kill().unwrap();
    client.wait().unwrap();
    if let Some(s) = server {
        s.kill();
    }
    let f = fs::File::options().write(true).open(part).unwrap();
    for at in [100, 300_000, 5_000_000, 9_999_999] {
        f.write_all_at(b"tampered", at).unwrap();
    }
}

#[test]
fn changed_parts_of_an_unfinished_file_are_sent_again() {
    let b = Bench::new();
    let mut server = b.serve("srv", &[]);
    let address = server.address.clone();
    let want = bytes(5, 32 << 20);
    fs::write(b.path("file"), &want).unwrap();
    let (file, url) = (b.path("file"), server.url("in/"));
    let put = ["put", "--accept-new", "--json", "--limit", "16MB/s", file.to_str().unwrap(), &url];
    let start = |args: &[&str]| b.client(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    cut_off_and_changed(start(&put), Some(&mut server), &b.path("srv/in"));
    let server = b.serve_at("srv", &address, &[]);
    let check = |args: &[&str], at: &Path| {
        let o = b.run(args);
        expect(&o, 0);
        assert!(fs::read(at).unwrap() == want, "wrong bytes");
        let p = &json(&o)["transfer"]["progress"];
        let (resumed, moved) = (p["bytes_resumed"].as_u64().unwrap(), carried(&o));
        assert!(resumed > 0 && moved < want.len() as u64, "{resumed} resumed, {moved} moved");
    };
    check(&put, &b.path("srv/in/file"));
    let (url, back) = (server.url("in/file"), format!("{}/", b.path("back").display()));
    let get = ["get", "--accept-new", "--json", "--limit", "16MB/s", &url, &back];
    cut_off_and_changed(start(&get), None, &b.path("back"));
    check(&get, &b.path("back/file"));
}

#[test]
fn interrupted_client_prints_the_command_to_resume() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("file"), bytes(1, 32 << 20)).unwrap();
    let (file, url) = (b.path("file"), server.url("in put/"));
    let args = ["put", "--accept-new", "--limit", "4MB/s", file.to_str().unwrap(), &url];
    let client = b.client(&args).stderr(Stdio::piped()).spawn().unwrap();
    wait_ms(1_500);
    let pid = rustix::process::Pid::from_raw(client.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let o = client.wait_with_output().unwrap();
    expect(&o, 5);
    let said = stderr(&o);
    assert!(said.contains("to resume: ") && said.contains(&format!("'{url}'")), "{said}");
    assert!(!b.path("srv/in put/file").exists(), "an unfinished file has its name");
    let o = b.run(&["put", "--json", file.to_str().unwrap(), &url]);
    expect(&o, 0);
    assert!(json(&o)["transfer"]["progress"]["bytes_resumed"].as_u64().unwrap() > 0);
    assert_eq!(fs::read(b.path("srv/in put/file")).unwrap(), bytes(1, 32 << 20));
}

/// Lets the transfer run for a while. Not a measurement: whatever happens in it is a valid moment for a kill.
fn wait_ms(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(std::time::Duration::from_millis(ms));
}
