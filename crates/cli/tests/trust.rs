//! Who is let in, whom the client believes, and what it says otherwise.

mod common;

use common::{Bench, Server, expect, longhaul, stderr};
use std::fs;

#[test]
fn unknown_hosts_need_consent_and_changed_keys_are_refused() {
    let b = Bench::new();
    let mut server = b.serve("srv", &[]);
    let url = server.url("");
    let o = b.run(&["ls", &url]);
    expect(&o, 4);
    let print = server.ready["fingerprint"].as_str().unwrap().to_owned();
    assert!(stderr(&o).contains(&print) && stderr(&o).contains("--accept-new"), "{}", stderr(&o));
    assert!(!b.client.join("known_hosts").exists());
    expect(&b.run(&["ls", "--accept-new", &url]), 0);
    expect(&b.run(&["ls", &url]), 0);

    // Another machine takes over the address.
    let address = server.address.clone();
    server.kill();
    let other = b.path("other");
    let folder = b.path("srv");
    let _impostor = Server::start(
        &other,
        &["serve", folder.to_str().unwrap(), "--json", "--allow-any-key", "--listen", &address],
    );
    let o = b.run(&["ls", "--accept-new", &url]);
    expect(&o, 4);
    let said = stderr(&o);
    assert!(said.contains("known_hosts") && said.contains("line 1"), "{said}");
    // A known host that has changed is refused without --accept-new too, with what to do, and nothing is replaced.
    fs::write(b.path("file"), b"secret").unwrap();
    let file = b.path("file");
    let before = fs::read(b.client.join("known_hosts")).unwrap();
    for args in [&["ls", &url][..], &["put", file.to_str().unwrap(), &url], &["perf", "client", &address]] {
        let o = b.run(args);
        expect(&o, 4);
        assert!(stderr(&o).contains("delete line 1 of"), "{}", stderr(&o));
    }
    assert_eq!(fs::read(b.client.join("known_hosts")).unwrap(), before);
}

#[test]
fn unauthorised_keys_are_rejected_and_tokens_admit_once() {
    let b = Bench::new();
    let server = b.serve("srv", &["--token"]);
    let stranger = b.path("stranger");
    let url = server.url("");
    let ls = |token: Option<&str>| {
        let mut c = longhaul(&stranger);
        c.args(["ls", "--accept-new", &url]);
        if let Some(t) = token {
            c.args(["--token", t]);
        }
        c.output().unwrap()
    };
    let o = ls(None);
    expect(&o, 4);
    for way in ["authorized_keys", "longhaul keys show", "longhaul keys authorize", "longhaul keys token"] {
        assert!(stderr(&o).contains(way), "{way}: {}", stderr(&o));
    }
    assert!(!stderr(&o).contains("repeat the command"), "{}", stderr(&o));
    let token = server.ready["tokens"][0].as_str().unwrap();
    expect(&ls(Some(token)), 0);
    let o = ls(Some(token));
    expect(&o, 4);
    assert!(stderr(&o).contains("used already") && stderr(&o).contains("keys token"), "{}", stderr(&o));
    let o = ls(Some("nonsense"));
    expect(&o, 4);
    assert!(!stderr(&o).contains("nonsense"), "a secret was shown");
}

#[test]
fn token_for_another_server_is_not_presented() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let other = longhaul(&b.path("other")).args(["keys", "token"]).output().unwrap();
    expect(&other, 0);
    let token = String::from_utf8(other.stdout).unwrap();
    let o = longhaul(&b.path("stranger"))
        .args(["ls", &server.url(""), "--token", token.trim()])
        .output()
        .unwrap();
    expect(&o, 4);
    assert!(stderr(&o).contains("for another server"), "{}", stderr(&o));
}

#[test]
fn silent_and_unknown_hosts_are_reported() {
    let b = Bench::new();
    // A socket that nobody reads: the port is taken and silent.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("longhaul://{}/", silent.local_addr().unwrap());
    let o = b.run(&["ls", "--accept-new", "--connect-timeout", "500ms", &url]);
    expect(&o, 3);
    assert!(stderr(&o).contains("no answer") && stderr(&o).contains("firewall"), "{}", stderr(&o));
    let o = b.run(&["ls", "longhaul://no-such-host.invalid/"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("no-such-host.invalid"), "{}", stderr(&o));
    assert!(stderr(&o).contains("try another spelling"), "{}", stderr(&o));
}

#[test]
fn port_in_use_is_reported() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let folder = b.path("srv");
    let o = longhaul(&b.server)
        .args(["serve", folder.to_str().unwrap(), "--listen", &server.address])
        .output()
        .unwrap();
    expect(&o, 7);
    let said = stderr(&o);
    assert!(said.contains(&server.address) && said.contains("choose another"), "{said}");
}

#[test]
fn keys_commands_print_and_change_keys() {
    let b = Bench::new();
    let show = b.run(&["keys", "show"]);
    assert!(String::from_utf8_lossy(&show.stdout).starts_with("longhaul-ed25519 "));
    let list = longhaul(&b.server).args(["keys", "list"]).output().unwrap();
    let print = b.run(&["keys", "fingerprint"]);
    let print = String::from_utf8_lossy(&print.stdout).trim().to_owned();
    assert!(String::from_utf8_lossy(&list.stdout).contains(&print));
    fs::write(b.path("bad"), "ssh-ed25519 AAAA\n").unwrap();
    let o = b.run(&["keys", "authorize", b.path("bad").to_str().unwrap()]);
    expect(&o, 2);
    assert!(stderr(&o).contains("line 1"), "{}", stderr(&o));
}
