//! Peers, names of files and neighbours that try to steer the user's terminal: what they say is shown, and does nothing.

mod common;
#[path = "common/hostile.rs"]
mod hostile;

use admin::proto::{Decision, Event, Flow, PolicyStatus, Process, Program, Response};
use common::{Bench, longhaul, stderr};
use endpoint::Connect;
use hostile::{EVIL, HostilePeer, HostileServer, Reply, endpoint, evil_name, message};
use mover::Keep;
use mover::path::RelPath;
use mover::proto::{
    Deleted, Entry, Flags, Kind, Meta, Name, NotPreserved, Record, Root, SourceCounts, Totals, VERSION,
};
use mover::select::Excluded;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use transport::crypto::ServerTrust;

/// Nothing in it steers a terminal, and no line of another's making begins in it.
#[track_caller]
fn harmless(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{what}: {e}: {bytes:?}"));
    if let Some(c) = text.chars().find(|c| base::text::is_hidden(*c) && !matches!(c, '\n' | '\t')) {
        panic!("{what}: {c:?} in {text:?}");
    }
    assert!(!text.lines().any(|l| l.starts_with("longhaul: all is well")), "{what}: {text}");
}

/// Runs it, and looks at all that it says.
#[track_caller]
fn run(c: &mut Command) -> Output {
    let o = c.output().unwrap();
    let what = format!("{c:?}");
    harmless(&what, &o.stdout);
    harmless(&what, &o.stderr);
    if c.get_args().any(|a| a == "--json") {
        for line in String::from_utf8_lossy(&o.stdout).lines() {
            let read: Result<Value, _> = serde_json::from_str(line);
            assert!(read.is_ok(), "{what}: {read:?}: {line}");
        }
    }
    assert!(!stderr(&o).contains("panicked"), "{what}: {}", stderr(&o));
    o
}

fn evil_path() -> RelPath {
    RelPath::parse(evil_name().as_bytes()).unwrap()
}

fn failed() -> Record<'static> {
    Record::Failed { path: EVIL.into(), cause: 3, text: EVIL.into() }
}

fn mapped() -> Record<'static> {
    let evil = || EVIL.to_owned();
    let (guarantee, cap) = (None, None);
    let (qos, rule, class, algorithm, why) = (evil(), evil(), evil(), evil(), vec![evil()]);
    Record::Mapped(mover::Mapping { qos, rule, class, algorithm, guarantee, cap, why })
}

/// What a server of files can say to `put`, `get` and `ls`.
fn words_of_servers() -> Vec<Reply> {
    let welcome = || Record::Welcome { version: VERSION };
    let abort = |refused| Record::Abort { refused, text: EVIL.into() };
    let meta = Meta::default();
    let entry = Entry { root: 0, path: evil_path(), kind: Kind::File, size: 1, meta, hash: Some([7; 32]) };
    let small =
        Record::Small { name: Name { root: 0, path: RelPath::root() }, meta, hash: [7; 32], data: b"x" };
    let codes = [0, 1, 2, 5, 6, 7, 8, 11, 0x128, 0x1001, 0x1002, 0x1003, 0x1004, 0x1005, 0x7777];
    let mut all: Vec<Reply> = codes.into_iter().map(Reply::Close).collect();
    all.push(Reply::Rejected);
    for records in [
        vec![abort(true)],
        vec![welcome(), abort(false)],
        vec![welcome(), mapped(), failed(), abort(false)],
        // A listing, a sink that could do nothing, and a source whose file arrives damaged.
        vec![welcome(), Record::Entry(entry), failed(), Record::ListEnd],
        vec![
            welcome(),
            Record::ListEnd,
            failed(),
            Record::SinkEnd(Totals { failed: 1, ..Totals::default() }),
        ],
        vec![
            welcome(),
            mapped(),
            Record::Roots(vec![Root { name: evil_path(), kind: Kind::File }]),
            small,
            failed(),
            Record::SourceEnd,
        ],
    ] {
        all.push(Reply::Messages(vec![message(&records), message(&[abort(false)])]));
    }
    all
}

/// Every number that a server tells of what it receives, at its end.
fn numbers_of_a_sink() -> Vec<Record<'static>> {
    const MAX: u64 = u64::MAX;
    let (files, dirs, links, bytes) = (MAX, MAX, MAX, MAX);
    let (resumed_bytes, repaired_chunks, failed) = (MAX, MAX, MAX);
    vec![
        Record::Welcome { version: VERSION },
        Record::Kept { keep: Keep::default(), denied: Keep::default(), owners: MAX, attributes: MAX },
        Record::ListEnd,
        Record::Progress { files: MAX, bytes: MAX, resumed: MAX },
        Record::Deleted(Deleted { removed: MAX, kept: MAX, over_limit: MAX, held_back: MAX }),
        Record::SinkEnd(Totals { files, dirs, links, bytes, resumed_bytes, repaired_chunks, failed }),
    ]
}

/// And of what it sends.
fn numbers_of_a_source() -> Vec<Record<'static>> {
    const MAX: u64 = u64::MAX;
    let (hard_links, extended_attributes, access_control_lists) = (MAX, MAX, MAX);
    let not_preserved = NotPreserved {
        hard_links,
        extended_attributes,
        access_control_lists,
        owners: MAX,
        special_bits: MAX,
    };
    let (files, bytes, same_files, same_bytes) = (MAX, MAX, MAX, MAX);
    let (by_rules, by_ignore_files, by_size, by_destination) = (MAX, MAX, MAX, MAX);
    vec![
        Record::Welcome { version: VERSION },
        Record::Roots(vec![Root { name: RelPath::root(), kind: Kind::Dir }]),
        Record::ListCredit(u32::MAX.into()),
        Record::Counts(SourceCounts { files, bytes, same_files, same_bytes, not_preserved }),
        Record::Excluded(Excluded { by_rules, by_ignore_files, by_size, by_destination, undeleted: MAX }),
        Record::SourceEnd,
    ]
}

#[test]
fn numbers_that_no_transfer_has_are_shown_and_end_nothing() {
    let host = HostileServer::start();
    let b = client_that_knows(&host);
    fs::write(b.path("file"), b"content").unwrap();
    fs::create_dir(b.path("into")).unwrap();
    let (file, into) = (b.path("file"), b.path("into/"));
    let url = format!("longhaul://{}/x", host.address);
    for (says, command, shown) in [
        (numbers_of_a_sink(), ["put", file.to_str().unwrap(), &url], "owners of 18446744073709551615"),
        (numbers_of_a_source(), ["get", &url, into.to_str().unwrap()], "18446744073709551615 hard links"),
    ] {
        host.says(Reply::Messages(vec![message(&says)]));
        for json in [false, true] {
            let o = run(b.client(&command).args(json.then_some("--json")));
            let said = String::from_utf8([o.stdout, o.stderr].concat()).unwrap();
            let shown = if json { "18446744073709551615" } else { shown };
            assert!(said.contains(shown), "{command:?}: {said}");
        }
    }
}

fn client_that_knows(host: &HostileServer) -> Bench {
    let b = Bench::new();
    host.says(Reply::Close(0));
    for scheme in ["longhaul", "iwarp"] {
        let url = format!("{scheme}://{}/", host.address);
        let o = run(&mut b.client(&["ls", "--accept-new", &url]));
        assert!(b.client.join("known_hosts").exists(), "{}", stderr(&o));
    }
    b
}

#[test]
fn text_of_a_hostile_server_is_escaped_in_put_get_and_ls() {
    let host = HostileServer::start();
    let b = client_that_knows(&host);
    fs::write(b.path("file"), b"content").unwrap();
    fs::create_dir(b.path("into")).unwrap();
    let (file, into) = (b.path("file"), b.path("into/"));
    let (file, into) = (file.to_str().unwrap(), into.to_str().unwrap());
    let mut told = 0;
    for (n, say) in words_of_servers().into_iter().enumerate() {
        host.says(say.clone());
        let scheme = if n % 3 == 2 { "iwarp" } else { "longhaul" };
        let url = format!("{scheme}://{}/x", host.address);
        for command in [&["put", file, &url][..], &["get", &url, into], &["ls", &url]] {
            let json: &[&str] = if n % 2 == 0 { &[] } else { &["--json"] };
            let o = run(&mut b.client(&[&["-v"][..], command, json].concat()));
            let said = [o.stdout, o.stderr].concat();
            told += usize::from(String::from_utf8_lossy(&said).contains("all is well"));
        }
    }
    // Most of it was shown, so that the test is about something.
    assert!(told > 40, "{told}");
}

#[test]
fn text_of_a_hostile_perf_server_is_escaped() {
    let host = HostileServer::start();
    let b = client_that_knows(&host);
    let policy = json!({ "qos": EVIL, "rule": EVIL, "algorithm": EVIL, "class": EVIL, "guarantee_bits_per_second": null,
                         "cap_bits_per_second": null, "reasons": [EVIL] });
    let path = json!({ "local": EVIL, "remote": EVIL, "active": true, "shares_bottleneck_with": null,
                       "bytes_sent": 1, "bytes_received": 1, "packets_lost": 0, "srtt_seconds": 0.1 });
    let figures = json!({ "bytes": 1, "messages": 1, "seconds": 1.0, "cpu_user_seconds": 0.1,
        "cpu_system_seconds": 0.1, "payload_sent": 1, "payload_retransmitted": 0, "payload_received": 1,
        "bytes_sent": 1, "control_bytes_sent": 1, "packets_sent": 1, "packets_lost": 0, "policy": policy,
        "path_count": 1, "paths": [path], "srtt_seconds": 0.1, "min_rtt_seconds": 0.1, "verified": null,
        "latency": null });
    let bytes = |v: &Value| serde_json::to_vec(v).unwrap();
    let mut all: Vec<Reply> = [0, 1, 6, 8, 0x1000].map(Reply::Close).into();
    all.push(Reply::Messages(vec![bytes(&json!({ "refused": EVIL }))]));
    all.push(Reply::Messages(vec![
        bytes(&json!({ "ready": [1] })),
        bytes(&json!({ "finish": [[0], figures] })),
    ]));
    all.push(Reply::Messages(vec![bytes(&json!({ EVIL: EVIL }))]));
    let mut told = 0;
    for say in all {
        host.says(say.clone());
        for (to, json) in [("", false), ("", true), ("iwarp://", false)] {
            let address = format!("{to}{}", host.address);
            let mut args = vec!["-v", "perf", "client", &address, "--reverse", "-P", "1", "-n", "1MiB"];
            args.extend(json.then_some("--json"));
            let o = run(&mut b.client(&args));
            let said = [o.stdout, o.stderr].concat();
            told += usize::from(String::from_utf8_lossy(&said).contains("all is well"));
        }
    }
    assert!(told > 15, "{told}");
}

/// What a client can say to servers of both kinds.
fn words_of_clients() -> Vec<Reply> {
    let flags = Flags {
        skip_same: true,
        checksum: false,
        overwrite: true,
        dry_run: false,
        recursive: true,
        fresh: false,
        scan: false,
    };
    let hello = |op| {
        Record::Hello(mover::proto::Hello {
            version: VERSION,
            op,
            flags,
            transfer: [1; 16],
            paths: vec![evil_path()],
            into: false,
            contents: vec![false],
            sending: Default::default(),
            link_targets: false,
            data_reduction: mover::DataReduction::default(),
            keep: Default::default(),
        })
    };
    let abort = || Record::Abort { refused: false, text: EVIL.into() };
    vec![
        Reply::Close(0x1000),
        Reply::Close(2),
        Reply::Messages(vec![message(&[hello(mover::proto::Op::Put), failed(), abort()])]),
        Reply::Messages(vec![message(&[hello(mover::proto::Op::Get)])]),
        Reply::Messages(vec![message(&[hello(mover::proto::Op::List), abort()])]),
        Reply::Messages(vec![serde_json::to_vec(&json!({ "refused": EVIL })).unwrap()]),
        Reply::Messages(vec![serde_json::to_vec(&json!({ EVIL: EVIL })).unwrap()]),
    ]
}

#[test]
fn text_of_a_hostile_client_is_escaped_in_the_log_and_forges_no_lines() {
    let b = Bench::new();
    let log = b.path("log");
    for (command, op) in [("serve", true), ("perf", false)] {
        let folder = b.path("srv");
        fs::create_dir_all(&folder).unwrap();
        let mut c = longhaul(&b.server);
        match op {
            true => c.args(["-vvv", "serve", folder.to_str().unwrap()]),
            false => c.args(["-vvv", "perf", "server"]),
        };
        c.args(["--json", "--listen", "127.0.0.1:0", "--allow-any-key"]);
        let mut child = c.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = ready["listening"].as_str().unwrap().parse().unwrap();
        for say in words_of_clients() {
            let mut driver = lhio::driver::Driver::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let connect = Connect {
                remote: address,
                server_name: "127.0.0.1".into(),
                trust: ServerTrust::FirstUse,
                token: None,
                options: None,
                iwarp: None,
            };
            let mut app =
                HostilePeer::new(Arc::new(Mutex::new(say)), Some(connect), Arc::new(AtomicBool::new(true)));
            driver.run(&mut endpoint(77, None), &mut app).unwrap();
        }
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
        let said = fs::read(&log).unwrap();
        harmless(command, &said);
        // `serve` says nothing of what clients say, yet.
        let said = String::from_utf8_lossy(&said);
        assert!(op || said.contains("all is well"), "{command}: nothing was said: {said}");
    }
}

#[test]
fn hostile_file_names_are_escaped_and_exact_in_json() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let name = evil_name().replace('/', "");
    fs::create_dir(b.path("src")).unwrap();
    fs::write(b.path("src").join(&name), b"content").unwrap();
    fs::write(b.path("src").join(std::ffi::OsStr::from_bytes(b"raw\x9b\xff\\x9b")), b"content").unwrap();
    // Neither file nor folder: named with the reason.
    let pipe = format!("pipe{EVIL}");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        b.path("src").join(&pipe),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let (src, url) = (b.path("src/"), server.url("in/"));
    let src = src.to_str().unwrap();
    let shown = base::text::name(pipe.as_bytes());
    for args in [&["-v", "put", "--accept-new", "-n", src, &url][..], &["-vvv", "put", src, &url]] {
        let o = run(&mut b.client(args));
        assert!(stderr(&o).contains(&shown), "{args:?}: {}", stderr(&o));
    }
    let o = run(&mut b.client(&["put", "--json", src, &url]));
    let report: Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(report["transfer"]["progress"]["errors"][0]["path"], shown.as_str());

    let o = run(&mut b.client(&["ls", "-r", &url]));
    let listed = String::from_utf8(o.stdout).unwrap();
    assert!(listed.contains(&base::text::name(name.as_bytes())), "{listed}");
    assert!(listed.contains("raw\\x9b\\xff\\\\x9b"), "{listed}");
    let o = run(&mut b.client(&["ls", "-r", "--json", &url]));
    let listed: Vec<Value> =
        String::from_utf8(o.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(listed.iter().any(|e| e["path"] == name.as_str()), "{listed:?}");
    let raw = listed.iter().find(|e| e["path"].is_null()).expect("one name is not UTF-8");
    assert_eq!(raw["url_path"], "raw%9B%FF%5Cx9b");

    let back = b.path("back");
    run(&mut b.client(&["-v", "get", &url, back.to_str().unwrap()]));
    assert_eq!(fs::read(back.join(&name)).unwrap(), b"content");
    // What a command line names is of a shell's making, which may have put names of files there.
    let missing = b.path(&format!("missing{EVIL}"));
    for args in [
        &["put", missing.to_str().unwrap(), &url][..],
        &["get", &server.url("none"), missing.to_str().unwrap()],
        &["serve", missing.to_str().unwrap()],
        &["put", &format!("--{EVIL}"), &url],
        &[&format!("no-command{EVIL}")],
        &["ls", &format!("longhaul://{EVIL}/")],
        &["cc", "policy", "check", missing.to_str().unwrap()],
        &["cc", "build", missing.to_str().unwrap()],
        &["lab", "run", missing.to_str().unwrap()],
    ] {
        run(&mut b.client(args));
    }
}

#[test]
fn comments_of_keys_and_known_hosts_are_escaped() {
    let b = Bench::new();
    let evil = EVIL.replace(['\r', '\n'], " ");
    let add = |file: &Path, line: &str| {
        let mut text = fs::read_to_string(file).unwrap_or_default();
        text.push_str(line);
        fs::write(file, text).unwrap();
    };
    let key = b.run(&["keys", "show"]).stdout;
    let key = String::from_utf8(key).unwrap().split(' ').take(2).collect::<Vec<_>>().join(" ");
    add(&b.client.join("authorized_keys"), &format!("{key} {evil}\n"));
    add(&b.client.join("known_hosts"), &format!("host.example {key} {evil}\n"));
    let o = run(&mut b.client(&["keys", "list"]));
    assert!(String::from_utf8_lossy(&o.stdout).contains("all is well"), "{o:?}");
    fs::write(b.path("bad"), format!("{evil} {evil}\n")).unwrap();
    run(&mut b.client(&["keys", "authorize", b.path("bad").to_str().unwrap()]));
    add(&b.client.join("authorized_keys"), &format!("nonsense {evil}\n"));
    run(&mut b.client(&["keys", "list"]));
}

/// What another process of the same user answers by its control socket.
fn answers() -> Vec<(&'static str, Response)> {
    let evil = || EVIL.to_owned();
    let policy =
        PolicyStatus { source: evil(), origin: evil(), errors: vec![evil()], ..PolicyStatus::default() };
    let policy = PolicyStatus { path: evil(), hash: evil(), ..policy };
    let program = |loaded| {
        let (name, path, hash, required_by) = (evil(), evil(), evil(), vec![evil()]);
        Program { name, loaded, path, hash, required_by, ..Program::default() }
    };
    let (protocol, pid, started) = (admin::proto::VERSION, 1, 1);
    let (command, version, programs) = (evil(), evil(), vec![evil()]);
    let problems = vec![evil()];
    let process = Process { protocol, pid, command, version, started, policy, programs, problems };
    let flow = Flow {
        id: evil(),
        remote: evil(),
        application: evil(),
        qos: evil(),
        rule: evil(),
        class: evil(),
        algorithm: evil(),
        running: evil(),
        state: evil(),
        last_change: evil(),
        peer_algorithm: evil(),
        peer_running: evil(),
        program_hash: evil(),
        not_loaded: evil(),
        cap_source: evil(),
        cap_bits_per_second: Some(1),
        reasons: vec![evil()],
        ..Flow::default()
    };
    let event = Event { number: 1, time: 1, kind: evil(), text: evil() };
    let decision =
        Decision { flow: evil(), trigger: evil(), algorithm: evil(), state: evil(), ..Decision::default() };
    vec![
        ("hello", Response::Process(process)),
        ("flows", Response::Flows { flows: vec![flow], omitted: 0 }),
        ("programs", Response::Programs { programs: vec![program(true), program(false)] }),
        ("events", Response::Events { events: vec![event], missed: 0 }),
        ("unload", Response::Done { text: evil(), warnings: vec![evil()] }),
        ("trace", Response::Decision(decision)),
        ("", Response::Refused { errors: vec![evil(), evil()] }),
    ]
}

#[test]
fn text_of_a_hostile_process_of_the_same_user_is_escaped() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let b = Bench::new();
    let folder = b.path("run");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(folder.join("1.sock")).unwrap();
    std::thread::spawn(move || {
        for s in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut out = s.try_clone().unwrap();
                for line in BufReader::new(s).lines().map_while(Result::ok) {
                    let (_, answer) = answers().into_iter().find(|(r, _)| line.contains(r)).unwrap();
                    if writeln!(out, "{}", serde_json::to_string(&answer).unwrap()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    fs::write(b.path("policy"), "").unwrap();
    let policy = b.path("policy");
    for args in [
        &["cc", "show"][..],
        &["cc", "show", "--why"],
        &["cc", "show", "--json"],
        &["cc", "status", "--events"],
        &["cc", "status", "--events", "--json"],
        &["cc", "unload", "x"],
        &["cc", "set", policy.to_str().unwrap()],
        &["cc", "trace", "--count", "1"],
        &["cc", "trace", "--count", "1", "--json"],
    ] {
        let o = run(b.client(args).env("LONGHAUL_RUN", &folder));
        let said = [o.stdout, o.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("all is well"), "{args:?}: {said}");
    }
}
