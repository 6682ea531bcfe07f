//! What a client asks of the server's sending, and starting afresh.

mod common;

use common::{Bench, Server, bytes, carried, expect, json, stderr, tree};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const SIZE: usize = 4_000_000;

#[test]
fn get_respects_the_rate_limits_of_both_ends() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("srv/file"), bytes(1, SIZE)).unwrap();
    let open = b.serve("srv", &[]);
    let slow = b.serve("srv", &["--limit", "40mbit"]);
    for (server, asked) in [
        (&open, &["--limit", "40mbit"][..]),
        (&open, &["--cc", "fixed:rate=40M"]),
        (&open, &["--cc", "fixed", "--known-rate", "40mbit"]),
        (&open, &["--cc", "cubic", "--limit", "5MB/s"]),
        (&slow, &[]),
        (&slow, &["--limit", "10gbit"]),
        (&slow, &["--cc", "fixed:rate=1G"]),
    ] {
        let (url, back) = (server.url("file"), b.path("back"));
        let _ = fs::remove_file(&back);
        let args = ["get", "--accept-new", "--json", &url, back.to_str().unwrap()];
        let o = b.run(&[&args[..], asked].concat());
        expect(&o, 0);
        assert_eq!(fs::read(&back).unwrap(), bytes(1, SIZE), "{asked:?}");
        // A bound from above: however slow this machine is, it holds.
        let rate = json(&o)["goodput_bits_per_second"].as_f64().unwrap();
        assert!(rate <= 44e6, "{asked:?}: {rate}");
    }
}

/// Threads of their own seal, send, receive and open at both ends; one server lends fewer lanes than are asked for.
#[test]
fn files_transfer_intact_over_several_lanes() {
    const LARGE: usize = 60_000_000;
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("file"), bytes(3, LARGE)).unwrap();
    for lent in ["3", "1"] {
        let server = b.serve("srv", &["--lanes", lent]);
        let (url, file) = (server.url(lent), b.path("file"));
        expect(&b.run(&["put", "--accept-new", "--lanes", "3", file.to_str().unwrap(), &url]), 0);
        assert!(fs::read(b.path(&format!("srv/{lent}"))).unwrap() == bytes(3, LARGE), "{lent}");
        let back = b.path(&format!("back{lent}"));
        expect(&b.run(&["get", "--accept-new", "--lanes", "2", &url, back.to_str().unwrap()]), 0);
        assert!(fs::read(back).unwrap() == bytes(3, LARGE), "{lent}");
    }
}

#[test]
fn requests_that_a_server_cannot_fulfil_are_explained() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("srv/file"), b"x").unwrap();
    let server = b.serve("srv", &[]);
    let (url, back) = (server.url("file"), b.path("back"));
    let get =
        |asked: &[&str]| b.run(&[&["get", "--accept-new", &url, back.to_str().unwrap()], asked].concat());
    for (asked, word) in
        [(["--limit", "8"], "rate"), (["--cc", "nonsense"], "bbr"), (["--limit", "x"], "20mbit")]
    {
        let o = get(&asked);
        expect(&o, 2);
        assert!(stderr(&o).contains(word), "{}", stderr(&o));
    }
}

fn wait_ms(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(std::time::Duration::from_millis(ms));
}

/// Starts a command that writes to `folder` and kills it about a second after it has begun to.
fn interrupt(mut c: Command, folder: &Path) {
    let mut child = c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !part(folder) {
        wait_ms(20);
    }
    wait_ms(1_000);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn part(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name());
    names.into_iter().any(|n| n.to_string_lossy().contains("longhaul-part"))
}

#[test]
fn interrupted_transfer_resumes_with_all_but_not_with_no_resume() {
    let b = Bench::new();
    let big = 24 << 20;
    fs::create_dir_all(b.path("src")).unwrap();
    fs::write(b.path("src/file"), bytes(7, big)).unwrap();
    let src = b.path("src/");
    let here = b.serve("src", &[]);
    let there: Server = b.serve("srv", &[]);
    for flag in ["--no-resume", "--all"] {
        for get in [false, true] {
            let folder = if get { b.path("back") } else { b.path("srv/in") };
            let _ = fs::remove_dir_all(&folder);
            let (url, back) = if get {
                (here.url(""), format!("{}/", folder.display()))
            } else {
                (there.url("in/"), String::new())
            };
            let mut args = vec![if get { "get" } else { "put" }, "--accept-new", "--json"];
            args.extend(if get { [url.as_str(), &back] } else { [src.to_str().unwrap(), &url] });
            interrupt(b.client(&[&args[..], &["--limit", "5MB/s"]].concat()), &folder);
            assert!(part(&folder), "{flag}, get {get}: nothing was left over");
            let o = b.run(&[&args[..], &[flag]].concat());
            expect(&o, 0);
            let p = &json(&o)["transfer"]["progress"];
            let resumed = p["bytes_resumed"].as_u64().unwrap();
            let moved = carried(&o);
            if flag == "--all" {
                assert!(resumed > 0 && moved < big as u64, "get {get}: resumed {resumed}, moved {moved}");
            } else {
                assert!(resumed == 0 && moved >= big as u64, "get {get}: resumed {resumed}, moved {moved}");
            }
            assert_eq!(tree(&b.path("src")), tree(&folder));
            // Finished and the same: left out, unless everything is asked for.
            let o = b.run(&[&args[..], &[flag]].concat());
            let moved = carried(&o);
            assert_eq!(moved >= big as u64, flag == "--all", "get {get}: moved {moved}");
        }
    }
}

#[test]
fn get_with_an_unoffered_algorithm_is_refused_with_the_offered_ones() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    fs::write(b.path("srv/file"), bytes(1, 100_000)).unwrap();
    let policy = b.path("policy.toml");
    fs::write(&policy, "[default]\nalgorithm = \"haul\"\ncc_allow = \"none\"\n").unwrap();
    let by_policy = ["--policy", policy.to_str().unwrap()];
    for (lends, refused, list) in [
        (&["--cc", "haul", "--cc-allow", "none"][..], &["cubic", "bbr"][..], "it offers haul"),
        (&["--cc", "haul", "--cc-allow", "bbr"], &["cubic"], "it offers haul, bbr"),
        (&["--cc", "haul", "--cc-prefer-own"], &["cubic", "bbr"], "it offers haul"),
        (&by_policy, &["cubic"], "it offers haul"),
    ] {
        let iwarp = ["--iwarp", "plain", "--allow-any-key"];
        let server = b.serve("srv", &[lends, &iwarp].concat());
        let get = |url: &str, how: &str, cc: &str| {
            let back = b.path("back");
            let _ = fs::remove_file(&back);
            b.run(&["get", how, "--cc", cc, url, back.to_str().unwrap()])
        };
        let url = server.url("file");
        for cc in refused {
            let o = get(&url, "--accept-new", cc);
            expect(&o, 6);
            assert!(stderr(&o).contains(list), "{lends:?} {cc}: {}", stderr(&o));
            assert!(!b.path("back").exists(), "{lends:?} {cc}");
        }
        // Of several, the first that it lends.
        expect(&get(&url, "--accept-new", "cubic,haul"), 0);
        // By iWARP the same, where every kernel has Reno; what TCP sends with anyhow may be asked for.
        let url = format!("iwarp://{}/file", server.address);
        let default = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        if default.trim() != "reno" {
            let o = get(&url, "--plain", "reno");
            expect(&o, 6);
            assert!(stderr(&o).contains("does not lend"), "{lends:?}: {}", stderr(&o));
        }
        expect(&get(&url, "--plain", default.trim()), 0);
    }
    // Who puts, and who measures, preferences: what must be and cannot ends the connection.
    let server = b.serve("srv", &["--cc", "haul", "--cc-allow", "none"]);
    let file = b.path("srv/file");
    let put = |options: &[&str]| {
        b.run(&[&["put", "--accept-new", file.to_str().unwrap(), &server.url("there")], options].concat())
    };
    let o = put(&["--peer-cc", "cubic", "--peer-cc-only"]);
    expect(&o, 6);
    assert!(stderr(&o).contains("it offers haul"), "{}", stderr(&o));
    expect(&put(&["--peer-cc", "cubic"]), 0);
    let listen =
        ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--cc", "haul", "--cc-allow", "none"];
    let server = Server::start(&b.server, &listen);
    let perf = [
        "perf",
        "client",
        &server.address,
        "--accept-new",
        "-n",
        "1MiB",
        "--peer-cc",
        "cubic",
        "--peer-cc-only",
    ];
    let o = b.run(&perf);
    expect(&o, 6);
    assert!(stderr(&o).contains("it offers haul"), "{}", stderr(&o));
}
