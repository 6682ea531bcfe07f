//! put, get and ls between real processes.

mod common;

use common::{Bench, bytes, expect, json, mixed_tree, stderr, tree};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn mixed_tree_survives_put_and_get() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    mixed_tree(&b.path("src"));
    let src = b.path("src/");
    let o = b.run(&["put", "--accept-new", "--json", src.to_str().unwrap(), &server.url("in/")]);
    expect(&o, 0);
    let report = json(&o);
    assert_eq!(report["code"], 0);
    assert!(report["connection"]["packets_sent"].as_u64().unwrap() > 0);
    assert_eq!(tree(&b.path("src")), tree(&b.path("srv/in")));

    // The second time nothing moves.
    let o = b.run(&["put", "--json", src.to_str().unwrap(), &server.url("in/")]);
    expect(&o, 0);
    assert_eq!(json(&o)["bytes_transferred"], 0);

    let back = b.path("back");
    let o = b.run(&["get", "-q", &server.url("in/"), back.to_str().unwrap()]);
    expect(&o, 0);
    assert!(o.stderr.is_empty(), "{}", stderr(&o));
    assert_eq!(tree(&b.path("src")), tree(&back));

    let o = b.run(&["ls", "--json", "-r", "--checksum", &server.url("in")]);
    expect(&o, 0);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(o.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let entry = lines.iter().find(|e| e["path"] == "size-1048576").expect("it is listed");
    assert_eq!(entry["blake3"], blake3::hash(&bytes(5, 1 << 20)).to_hex().as_str());
    assert!(lines.iter().any(|e| e["url_path"] == "not-utf8-%FF%FE" && e["path"].is_null()));

    let (last, code) = server.stop();
    assert_eq!(code, Some(0));
    assert_eq!(last["event"], "end");
}

#[test]
fn dry_run_changes_nothing() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("file"), bytes(1, 100_000)).unwrap();
    let file = b.path("file");
    let o = b.run(&["put", "--accept-new", "-n", file.to_str().unwrap(), &server.url("")]);
    expect(&o, 0);
    assert!(stderr(&o).contains("would transfer 1 file,"), "{}", stderr(&o));
    assert!(tree(&b.path("srv")).is_empty());
}

#[test]
fn operations_that_the_server_forbids_are_refused() {
    let b = Bench::new();
    fs::write(b.path("file"), b"new").unwrap();
    let file = b.path("file");
    let put = |server: &common::Server| {
        b.run(&["put", "--accept-new", file.to_str().unwrap(), &server.url("file")])
    };
    let server = b.serve("a", &["--read-only"]);
    let o = put(&server);
    expect(&o, 6);
    assert!(stderr(&o).contains("read-only"), "{}", stderr(&o));
    drop(server);
    let server = b.serve("b", &["--write-only"]);
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 6);
    drop(server);
    fs::create_dir(b.path("c")).unwrap();
    fs::write(b.path("c/file"), b"older").unwrap();
    let server = b.serve("c", &["--no-overwrite"]);
    expect(&put(&server), 1);
    assert_eq!(fs::read(b.path("c/file")).unwrap(), b"older");
}

#[test]
fn bad_files_are_reported_and_the_rest_transferred() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("src")).unwrap();
    fs::create_dir_all(b.path("srv/in/taken/by-a-folder")).unwrap();
    fs::write(b.path("src/taken"), b"a file").unwrap();
    fs::write(b.path("src/good"), b"good").unwrap();
    let src = b.path("src/");
    let o = b.run(&["put", "--accept-new", src.to_str().unwrap(), &server.url("in/")]);
    expect(&o, 1);
    assert!(stderr(&o).contains("taken"), "{}", stderr(&o));
    assert_eq!(fs::read(b.path("srv/in/good")).unwrap(), b"good");

    // A name that no file system takes is found before anything is sent.
    let o = b.run(&["put", b.path("src/good").to_str().unwrap(), &server.url(&"n".repeat(300))]);
    expect(&o, 2);
    assert!(stderr(&o).contains("shorten"), "{}", stderr(&o));
}

#[test]
fn unwritable_folder_is_reported() {
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere: permissions cannot be tested, the read-only server stands in for it.
        return operations_that_the_server_forbids_are_refused();
    }
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir(b.path("srv/closed")).unwrap();
    fs::set_permissions(b.path("srv/closed"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::write(b.path("file"), b"new").unwrap();
    let o = b.run(&["put", "--accept-new", b.path("file").to_str().unwrap(), &server.url("closed/")]);
    expect(&o, 1);
    assert!(stderr(&o).contains("file"), "{}", stderr(&o));
}

#[test]
fn unencrypted_modes_need_both_ends_and_warn() {
    let b = Bench::new();
    fs::write(b.path("file"), bytes(9, 200_000)).unwrap();
    let file = b.path("file");
    for (theirs, suite) in [("integrity", "integrity-aegis"), ("aead", "")] {
        let server = b.serve(theirs, &["--encryption", theirs]);
        let url = server.url("");
        let args =
            ["put", "--accept-new", "--json", "--encryption", "integrity", file.to_str().unwrap(), &url];
        let o = b.run(&args);
        expect(&o, 0);
        // What is told is what was agreed.
        assert_eq!(stderr(&o).contains("NOT encrypted"), !suite.is_empty(), "{}", stderr(&o));
        let used = json(&o)["suite"].as_str().unwrap().to_owned();
        assert_eq!(used.starts_with("integrity"), !suite.is_empty(), "{used}");
        assert_eq!(fs::read(b.path(theirs).join("file")).unwrap(), bytes(9, 200_000));
    }
}

/// Both ends through io_uring; where the system has none, over plain UDP with one warning.
#[test]
fn files_transfer_through_io_uring() {
    let b = Bench::new();
    let server = b.serve("srv", &["--datapath", "uring"]);
    mixed_tree(&b.path("src"));
    std::fs::write(b.path("src/large"), bytes(3, 20_000_000)).unwrap();
    let src = b.path("src/");
    let o = b.run(&[
        "put",
        "--accept-new",
        "--json",
        "--datapath",
        "uring",
        src.to_str().unwrap(),
        &server.url("in/"),
    ]);
    expect(&o, 0);
    assert_eq!(tree(&b.path("src")), tree(&b.path("srv/in")));
    assert!(stderr(&o).matches("io_uring cannot be used").count() <= 1, "{}", stderr(&o));
    // And back to an end that uses the plain way.
    let back = b.path("back");
    expect(&b.run(&["get", "-q", &server.url("in/"), back.to_str().unwrap()]), 0);
    assert_eq!(tree(&b.path("src")), tree(&back));
    assert_eq!(server.stop().1, Some(0));
}

/// Both measure, and come to the same choice.
#[test]
fn ends_agree_on_a_cipher_suite() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("file"), bytes(9, 1_000)).unwrap();
    let file = b.path("file");
    let o = b.run(&["put", "--accept-new", "--json", file.to_str().unwrap(), &server.url("")]);
    expect(&o, 0);
    let used = json(&o)["suite"].as_str().unwrap().to_owned();
    let aead = ["aegis-128l", "aegis-128x2", "aes-128-gcm", "chacha20-poly1305"];
    assert!(aead.contains(&used.as_str()), "{used}");
}

/// What one end would send with and the other does not have gives way to the next; where nothing is left, both say why.
#[test]
fn first_common_algorithm_is_used() {
    let b = Bench::new();
    let server = b.serve("srv", &["--peer-cc-refuse", "cubic,bbr", "--peer-cc", "vegas"]);
    fs::write(b.path("file"), bytes(1, 300_000)).unwrap();
    let file = b.path("file");
    let put = |flags: &[&str]| {
        let to = server.url("");
        let put = ["put", "--accept-new", "--json", file.to_str().unwrap(), &to];
        b.run(&[&put[..], flags].concat())
    };
    let used = |flags: &[&str]| {
        let o = put(flags);
        expect(&o, 0);
        json(&o)["connection"]["congestion_control"].as_str().unwrap().to_owned()
    };
    assert_eq!(used(&["--cc", "cubic:hystart=off,reno", "--cc-prefer-own"]), "reno");
    assert_eq!(
        used(&["--cc", "cubic:hystart=off,reno"]),
        "vegas",
        "the receiver's preference, as nothing forbids it"
    );
    assert_eq!(used(&["--cc", "cubic,reno", "--cc-allow", "none"]), "reno");
    let o = put(&["--cc", "cubic,bbr", "--cc-allow", "none"]);
    assert_ne!(o.status.code(), Some(0));
    assert!(stderr(&o).contains("cannot agree on congestion control"), "{}", stderr(&o));
    assert!(stderr(&o).contains("cubic, bbr"), "{}", stderr(&o));
    // The one who gets names what the server is to send with; of those the first that it lends.
    let back = b.path("back");
    let o = b.run(&["get", "-q", "--cc", "unheard-of,reno", &server.url("file"), back.to_str().unwrap()]);
    expect(&o, 2);
    let o = b.run(&["get", "--json", "--cc", "vegas,reno", &server.url("file"), back.to_str().unwrap()]);
    expect(&o, 0);
    assert_eq!(json(&o)["connection"]["congestion_control"], "vegas");
}
