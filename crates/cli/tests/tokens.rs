//! One-time tokens that are made while a server runs.

mod common;

use common::{Bench, Server, expect, longhaul, stderr};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Tokens made by the server's owner.
fn make(b: &Bench, args: &[&str]) -> Vec<String> {
    let o = longhaul(&b.server).args(["keys", "token"]).args(args).output().unwrap();
    expect(&o, 0);
    String::from_utf8(o.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A machine whose key nobody knows.
fn stranger(b: &Bench, name: &str, args: &[&str], token: &str) -> Output {
    longhaul(&b.path(name)).args(args).env("LONGHAUL_TOKEN", token).output().unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect()
}

#[test]
fn token_issued_while_the_server_runs_admits_once() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let tokens = make(&b, &["-n", "2"]);
    let folder = b.server.join("tokens");
    assert_eq!(files(&folder).len(), 2);
    for f in files(&folder) {
        assert_eq!(fs::metadata(&f).unwrap().permissions().mode() & 0o777, 0o600);
        // What lies on the disk does not let anybody in.
        let text = fs::read_to_string(&f).unwrap();
        assert!(tokens.iter().all(|t| !text.contains(&t[5..48]) && !f.to_str().unwrap().contains(&t[5..48])));
    }
    let list = longhaul(&b.server).args(["keys", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains("once, with a token"));

    fs::write(b.path("file"), b"content").unwrap();
    let file = b.path("file");
    // No --accept-new: the token says which server it is for.
    let put = ["put", file.to_str().unwrap(), &server.url("")];
    expect(&stranger(&b, "one", &put, &tokens[0]), 0);
    assert_eq!(fs::read(b.path("srv/file")).unwrap(), b"content");
    assert_eq!(files(&folder).len(), 1);
    let again = stranger(&b, "one", &put, &tokens[0]);
    expect(&again, 4);
    assert!(stderr(&again).contains("longhaul keys token"), "{}", stderr(&again));
    expect(&stranger(&b, "two", &put, &tokens[0]), 4);

    let address = server.address.clone();
    expect(&stranger(&b, "one", &["ls", &server.url("")], ""), 4);
    drop(server);
    let server = b.serve_at("srv", &address, &[]);
    let ls = ["ls", &server.url("")];
    expect(&stranger(&b, "one", &ls, &tokens[0]), 4);
    // The other one has waited; it is good at any server of this key.
    expect(&stranger(&b, "one", &ls, &tokens[1]), 0);
    assert!(files(&folder).is_empty());
}

#[test]
fn token_shared_by_many_admits_one() {
    let b = Bench::new();
    let server = b.serve("srv", &["--token"]);
    let made = make(&b, &[]);
    let printed = server.ready["tokens"][0].as_str().unwrap();
    for token in [made[0].as_str(), printed] {
        let url = server.url("");
        let run = |i: usize| {
            let b = &b;
            let url = &url;
            move || stranger(b, &format!("home-{i}"), &["ls", url], token).status.code()
        };
        let codes: Vec<_> = std::thread::scope(|s| {
            let all: Vec<_> = (0..6).map(|i| s.spawn(run(i))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(codes.iter().filter(|c| **c == Some(0)).count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|c| **c == Some(4)).count(), 5, "{codes:?}");
    }
}

#[test]
fn tokens_expire_and_work_with_perf() {
    let b = Bench::new();
    let server = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    let perf = ["perf", "client", &server.address, "-n", "1MiB", "-q"];
    expect(&stranger(&b, "one", &perf, &make(&b, &["--lifetime", "1h"])[0]), 0);
    // One that has ended: its file says so, as it will by itself after its lifetime.
    let token = &make(&b, &[])[0];
    let file = &files(&b.server.join("tokens"))[0];
    fs::write(file, "1000\n").unwrap();
    expect(&stranger(&b, "two", &perf, token), 4);
    for bad in ["0s", "10000h"] {
        let o = longhaul(&b.server).args(["keys", "token", "--lifetime", bad]).output().unwrap();
        expect(&o, 2);
        assert!(stderr(&o).contains("--lifetime"), "{}", stderr(&o));
    }
}

#[test]
fn keys_are_authorized_and_revoked_without_a_restart() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let ls = ["ls", "--accept-new", &server.url("")];
    let other = b.path("other");
    expect(&stranger(&b, "other", &ls, ""), 4);
    let key = longhaul(&other).args(["keys", "show"]).output().unwrap();
    fs::write(b.path("other.key"), key.stdout).unwrap();
    let file = b.path("other.key");
    let add = longhaul(&b.server).args(["keys", "authorize", file.to_str().unwrap()]).output().unwrap();
    expect(&add, 0);
    expect(&stranger(&b, "other", &ls, ""), 0);
    fs::remove_file(b.server.join("authorized_keys")).unwrap();
    expect(&stranger(&b, "other", &ls, ""), 4);
    expect(&b.run(&ls), 4);
}
