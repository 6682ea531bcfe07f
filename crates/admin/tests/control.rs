//! The control socket with real clients: requests are answered, and slow, misbehaving or unauthorised clients harm
//! nobody.

mod common;

use common::Process;
use longhaul_admin::client::{Client, all};
use longhaul_admin::proto::{Decision, FlowId, MAX_REQUEST, Request, Response};
use longhaul_admin::server::{MAX_CLIENTS, Server};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;

fn send(c: &mut Client, request: Request) -> Response {
    c.request(&request).unwrap()
}

fn policy(text: &str) -> Request {
    Request::SetPolicy { text: text.into(), path: "/p.toml".into() }
}

fn unload(name: &str, force: bool) -> Request {
    Request::Unload { name: name.into(), force }
}

fn errors(a: Response) -> Vec<String> {
    match a {
        Response::Refused { errors } => errors,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_answered_in_order() {
    let (dir, p) = (tempfile::tempdir().unwrap(), Process::start());
    let folder = dir.path().join("run");
    let server = Server::start(&folder, None, p.handler.clone()).unwrap();
    let mut clients = all(&folder);
    assert_eq!(clients.len(), 1);
    let mut c = clients.remove(0).unwrap();
    let Response::Process(process) = send(&mut c, Request::Hello) else { panic!("no process") };
    assert_eq!((process.pid, process.command.as_str()), (std::process::id(), "test"));
    let Response::Flows { flows, omitted: 0 } = send(&mut c, Request::Flows) else { panic!("no flows") };
    assert_eq!(flows[0].id, "1.0");
    // A policy as a whole or not at all; all errors at once.
    assert_eq!(errors(send(&mut c, policy("bad"))).len(), 2);
    let Response::Policy { text, status } = send(&mut c, Request::Policy) else { panic!("no policy") };
    assert_eq!((text.as_str(), status.changes), ("", 0));
    assert!(matches!(send(&mut c, policy("good 1")), Response::Done { .. }));
    let Response::Policy { text, status } = send(&mut c, Request::Policy) else { panic!("no policy") };
    assert_eq!((text.as_str(), status.origin.as_str(), status.changes), ("good 1", "control socket", 1));
    // What may not be meant so is told to whoever sets it.
    let doubtful = send(&mut c, policy("good 2, in doubt"));
    assert!(matches!(doubtful, Response::Done { warnings, .. } if warnings == ["line 1: warning: doubtful"]));
    let flow = FlowId { connection: 7, flow: 2 };
    let set = |algorithm: Option<&str>, cap| Request::SetFlow {
        flow,
        algorithm: algorithm.map(str::to_owned),
        cap_bits_per_second: cap,
    };
    assert_eq!(send(&mut c, set(Some("cubic"), Some(8))), Response::done("7.2"));
    assert!(errors(send(&mut c, set(Some("nonsense"), None)))[0].contains("nonsense"));
    assert!(errors(send(&mut c, set(None, None)))[0].contains("nothing to change"));
    let load = |program: &str| Request::Load { program: program.into(), path: "/p.c".into() };
    assert!(matches!(send(&mut c, load("cHJvZ3JhbQ==")), Response::Done { .. }));
    assert_eq!(errors(send(&mut c, load("YQ=="))), ["not a program"]);
    assert!(errors(send(&mut c, load("?")))[0].contains("base64"));
    assert!(errors(send(&mut c, unload("reno", false)))[0].contains("reno"));
    let Response::Events { events, missed: 0 } = send(&mut c, Request::Events { after: 0 }) else {
        panic!("none")
    };
    let kinds: Vec<_> = events.iter().map(|e| e.kind.as_str()).collect();
    assert_eq!(kinds, ["refused", "policy", "policy", "flow", "program", "refused"]);
    // What the policy needs is not taken away, unless that is meant; then what is missing is told, until it is back.
    let process = |c: &mut Client| match send(c, Request::Hello) {
        Response::Process(p) => p,
        other => panic!("{other:?}"),
    };
    assert!(matches!(send(&mut c, policy("good 3, by novel")), Response::Done { .. }));
    let p = process(&mut c);
    assert_eq!((p.policy.path.as_str(), p.policy.hash.len(), &p.problems[..]), ("/p.toml", 12, &[][..]));
    let why = errors(send(&mut c, unload("novel", false)));
    assert!(why[0].contains("rule \"r\", line 1") && why[0].contains("--force"), "{why:?}");
    let Response::Done { text, warnings } = send(&mut c, unload("novel", true)) else { panic!("refused") };
    assert!(text.contains("novel is unloaded") && warnings.len() == 1, "{text} {warnings:?}");
    assert_eq!(process(&mut c).problems, warnings);
    let Response::Programs { programs } = send(&mut c, Request::Programs) else { panic!("no programs") };
    assert_eq!((programs.len(), programs[0].loaded, programs[0].required_by.len()), (1, false, 1));
    let Response::Done { text, .. } = send(&mut c, load("cHJvZ3JhbQ==")) else { panic!("refused") };
    assert!(text.contains("code c0de") && text.ends_with("2 flows run it"), "{text}");
    assert!(process(&mut c).problems.is_empty());
    let Response::Events { events, .. } = send(&mut c, Request::Events { after: 6 }) else { panic!("none") };
    let kinds: Vec<_> = events.iter().map(|e| e.kind.as_str()).collect();
    assert_eq!(kinds, ["policy", "program", "problem", "program", "problem"]);
    // A flow that there is not is not waited for.
    let mut watcher = Client::connect(server.path()).unwrap();
    watcher.trace(&Request::Trace { flow: Some(flow), every: 1 }).unwrap();
    assert!(
        matches!(watcher.follow().unwrap(), Some(Response::Refused { errors }) if errors[0].contains("7.2"))
    );
    drop(server);
    assert!(all(&folder).is_empty() && fs::read_dir(&folder).unwrap().count() == 0);
}

fn socket(server: &Server) -> UnixStream {
    UnixStream::connect(server.path()).unwrap()
}

fn first_line(s: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(s).read_line(&mut line).unwrap();
    line
}

#[test]
fn misbehaving_clients_do_not_disturb_others() {
    let (dir, p) = (tempfile::tempdir().unwrap(), Process::start());
    let server = Server::start(&dir.path().join("run"), None, p.handler.clone()).unwrap();
    // What is no request is refused, and the client may try again.
    let mut s = socket(&server);
    s.write_all(b"GET / HTTP/1.1\n{\"request\":\"hello\"}\n").unwrap();
    let lines: Vec<_> = BufReader::new(&s).lines().take(2).map(Result::unwrap).collect();
    assert!(lines[0].contains("refused") && lines[1].contains("\"process\""), "{lines:?}");
    // One without an end is not kept for ever.
    let mut endless = socket(&server);
    let piece = vec![b'x'; 64 << 10];
    let mut sent = 0;
    while sent <= MAX_REQUEST && endless.write_all(&piece).is_ok() {
        sent += piece.len();
    }
    assert!(first_line(&endless).contains("bytes"));
    // All places are taken by clients that say nothing; the next is told so, and the loop has turned all the time.
    let mut silent: Vec<_> = (0..MAX_CLIENTS).map(|_| socket(&server)).collect();
    let turned_away = loop {
        let one = socket(&server);
        one.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        let mut line = String::new();
        if BufReader::new(&one).read_line(&mut line).is_ok() && !line.is_empty() {
            break line;
        }
        silent.push(one);
    };
    assert!(turned_away.contains("too many"), "{turned_away}");
    let turns = p.turns.load(Ordering::Relaxed);
    p.until(|_| p.turns.load(Ordering::Relaxed) > turns + 1_000);
    drop((silent, s, endless));
    p.until(|_| {
        let mut s = socket(&server);
        s.write_all(b"{\"request\":\"flows\"}\n").is_ok() && first_line(&s).contains("\"flows\"")
    });
}

#[test]
fn decisions_are_streamed_until_the_watcher_disconnects() {
    let (dir, p) = (tempfile::tempdir().unwrap(), Process::start());
    let server = Server::start(&dir.path().join("run"), None, p.handler.clone()).unwrap();
    let id = FlowId { connection: 1, flow: 0 };
    let mut c = Client::connect(server.path()).unwrap();
    c.trace(&Request::Trace { flow: Some(id), every: 2 }).unwrap();
    p.until(|o| o.subscriptions.watched() == Some(Some(id)));
    for n in 0..4 {
        p.handler
            .subscriptions
            .publish(&Decision { flow: "1.0".into(), acked_bytes: n, ..Decision::default() }, id);
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Some(Response::Decision(d)) = c.follow().unwrap() {
            seen.push(d.acked_bytes);
        }
    }
    assert_eq!(seen, [0, 2]);
    drop(c);
    p.until(|o| o.subscriptions.watched().is_none());
}

/// Connects as another user, and reads what that is told. The folder and the socket are opened to all before, so that only
/// the kernel's word on who connects is left.
fn as_user(uid: u32, gid: u32, path: &Path) -> String {
    let path = path.to_owned();
    let connect = move || {
        // Of this thread only, and so what the kernel tells of its sockets.
        let (u, g) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(g, g, g).unwrap();
        rustix::thread::set_thread_res_uid(u, u, u).unwrap();
        let mut s = UnixStream::connect(path).unwrap();
        let _ = s.write_all(b"{\"request\":\"hello\"}\n");
        let mut said = vec![0; 4_096];
        let n = s.read(&mut said).unwrap();
        String::from_utf8_lossy(&said[..n]).into_owned()
    };
    std::thread::spawn(connect).join().unwrap()
}

#[test]
fn other_users_are_refused_unless_in_the_group() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be several users");
        return;
    }
    const USER: u32 = 61_234;
    const GROUP: u32 = 61_235;
    let (dir, p) = (tempfile::tempdir().unwrap(), Process::start());
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    let folder = dir.path().join("run");
    let server = Server::start(&folder, None, p.handler.clone()).unwrap();
    // Who is not in the group gets there all the same, and is refused by what it is.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    [&folder, server.path()].into_iter().for_each(open);
    assert!(as_user(0, 0, server.path()).contains("\"process\""));
    let refused = as_user(USER, GROUP, server.path());
    assert!(refused.contains("refused") && !refused.contains("pid"), "{refused}");
    p.until(|o| o.process_state.events(0).0.iter().any(|e| e.kind == "refused" && e.text.contains("61234")));
    let folder = dir.path().join("group");
    let server = Server::start(&folder, Some(GROUP), p.handler.clone()).unwrap();
    // Permissions as they are: 0750 and 0660.
    assert!(as_user(USER, GROUP, server.path()).contains("\"process\""));
    [&folder, server.path()].into_iter().for_each(open);
    assert!(as_user(USER, GROUP + 1, server.path()).contains("refused"));
}
