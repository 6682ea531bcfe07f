//! Each exit status of each command, and what provokes it: the table of docs/guides/move-files.md, played.

mod common;
#[path = "common/hostile.rs"]
mod hostile;

use common::{Bench, Server, bytes, longhaul, stderr};
use hostile::{HostileServer, Reply};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

/// What a command is to end with.
struct Case {
    status: i32,
    /// The words of the guide for what is provoked.
    what: &'static str,
    command: &'static str,
    output: Output,
    /// What its message has to name.
    names: String,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, status: i32, what: &'static str, command: &'static str, output: Output, names: &str) {
        self.0.push(Case { status, what, command, output, names: names.to_owned() });
    }
}

const CLIENTS: [&str; 4] = ["put", "get", "ls", "perf client"];

/// A command of a client that goes to `address`.
fn client(b: &Bench, command: &str, address: &str) -> Command {
    let (url, file, into) = (format!("longhaul://{address}/file"), b.path("file"), b.path("into/"));
    let (file, into) = (file.to_str().unwrap(), into.to_str().unwrap());
    match command {
        "put" => b.client(&["put", "--accept-new", file, &url]),
        "get" => b.client(&["get", "--accept-new", &url, into]),
        "ls" => b.client(&["ls", "--accept-new", &url]),
        _ => b.client(&["perf", "client", "--accept-new", address, "-n", "1MiB"]),
    }
}

fn bench() -> Bench {
    let b = Bench::new();
    fs::write(b.path("file"), bytes(1, 4 << 20)).unwrap();
    fs::create_dir(b.path("into")).unwrap();
    fs::create_dir(b.path("srv")).unwrap();
    fs::copy(b.path("file"), b.path("srv/file")).unwrap();
    b
}

fn perf_server(b: &Bench) -> Server {
    Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"])
}

/// Sends SIGINT as soon as the command catches it, and waits for its end.
fn interrupted(mut c: Command) -> Output {
    let child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let catches = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:\t")).map(str::to_owned);
        u64::from_str_radix(&mask.unwrap_or_default(), 16).unwrap_or(0) >> 1 & 1 == 1
    };
    while !catches() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

/// `c`, in a place where a small disk is mounted at `folder`.
fn on_a_small_disk(folder: &str, c: &Command) -> Command {
    let mut small = Command::new("unshare");
    small.args(["-rm", "sh", "-c", "mount -t tmpfs -o size=1m none \"$0\" && exec \"$@\"", folder]);
    small.arg(c.get_program()).args(c.get_args()).stdin(Stdio::null());
    small.envs(c.get_envs().filter_map(|(k, v)| Some((k, v?)))).env_remove("LONGHAUL_TOKEN");
    small
}

/// `c` as somebody whom permissions hold for: root's are taken away.
fn without_privileges(c: Command) -> Command {
    if !rustix::process::geteuid().is_root() {
        return c;
    }
    let mut bare = Command::new("setpriv");
    bare.arg("--bounding-set=-all").arg(c.get_program()).args(c.get_args()).stdin(Stdio::null());
    bare.envs(c.get_envs().filter_map(|(k, v)| Some((k, v?)))).env_remove("LONGHAUL_TOKEN");
    bare
}

/// A full disk of the machine's: nothing is left of it.
fn full() -> Stdio {
    fs::File::options().write(true).open("/dev/full").unwrap().into()
}

fn done(b: &Bench, cases: &mut Cases) {
    let what = "everything was done";
    let (server, perf) = (b.serve("srv", &[]), perf_server(b));
    for command in CLIENTS {
        let address = if command == "perf client" { &perf.address } else { &server.address };
        cases.add(0, what, command, client(b, command, address).output().unwrap(), "");
    }
    fs::remove_file(b.path("into/file")).unwrap();
    for (command, server) in [("serve", server), ("perf server", perf)] {
        let (_, code) = server.stop();
        assert_eq!(code, Some(0), "{command}: a signal to end is obeyed");
    }
}

fn partly_done(b: &Bench, cases: &mut Cases) {
    let what = "a folder stands where a file should go";
    let server = b.serve("taken", &[]);
    fs::create_dir_all(b.path("taken/file/x")).unwrap();
    let taken = server.url("");
    let file = b.path("file");
    let o = b.run(&["put", "--accept-new", file.to_str().unwrap(), &taken]);
    cases.add(1, what, "put", o, "file");
    drop(server);
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("into/file/x")).unwrap();
    cases.add(1, what, "get", client(b, "get", &server.address).output().unwrap(), "file");
    fs::remove_dir_all(b.path("into/file")).unwrap();
    drop(server);
    fs::create_dir(b.path("closed")).unwrap();
    fs::write(b.path("closed/file"), "content").unwrap();
    fs::set_permissions(b.path("closed/file"), fs::Permissions::from_mode(0o0)).unwrap();
    let closed = b.path("closed");
    let mut serve = longhaul(&b.server);
    serve.args(["serve", closed.to_str().unwrap(), "--json", "--listen", "127.0.0.1:0"]);
    let server = Server::start_command(without_privileges(serve));
    let o = b.run(&["ls", "--accept-new", "--checksum", &server.url("file")]);
    cases.add(1, "a file cannot be read for its checksum", "ls", o, "Permission denied");
}

fn unusable(b: &Bench, cases: &mut Cases) {
    let what = "an option has a value that it cannot take";
    for (command, args) in [
        ("put", &["put", "--limit", "fast", "x", "longhaul://h/"][..]),
        ("get", &["get", "--limit", "fast", "longhaul://h/x", "."]),
        ("ls", &["ls", "--connect-timeout", "soon", "longhaul://h/"]),
        ("perf client", &["perf", "client", "--time", "long", "h"]),
        ("serve", &["serve", "--limit", "fast", "."]),
        ("perf server", &["perf", "server", "--limit", "fast"]),
    ] {
        let value = ["fast", "soon", "long"].into_iter().find(|v| args.contains(v)).unwrap();
        cases.add(2, what, command, b.run(args), &format!("'{value}'"));
    }
    let missing = b.path("missing");
    let o = b.run(&["serve", missing.to_str().unwrap()]);
    cases.add(2, "the folder to serve is not there", "serve", o, "missing");
    let o = b.run(&["ls", "http://h/"]);
    cases.add(2, "an address is none of ours", "ls", o, "http://h/");
}

fn not_connected(b: &Bench, cases: &mut Cases) {
    // A socket that nobody reads: the port is taken and silent.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for command in CLIENTS {
        let mut c = client(b, command, &address);
        let o = c.args(["--connect-timeout", "300ms"]).output().unwrap();
        cases.add(3, "nobody answers at the address", command, o, &address);
    }
}

fn strangers(b: &Bench, cases: &mut Cases) {
    let (server, perf) = (b.serve("srv", &[]), perf_server(b));
    for command in CLIENTS {
        let address = if command == "perf client" { &perf.address } else { &server.address };
        let mut c = client(b, command, address);
        let o = c.env("LONGHAUL_HOME", b.path("stranger")).output().unwrap();
        cases.add(4, "the server does not know this machine's key", command, o, "longhaul keys show");
    }
    // Another key answers at an address that is known.
    let address = server.address.clone();
    assert!(client(b, "ls", &address).output().unwrap().status.success());
    drop(server);
    let folder = b.path("srv");
    let args = ["serve", folder.to_str().unwrap(), "--json", "--allow-any-key", "--listen", &address];
    let _other = Server::start(&b.path("other"), &args);
    for command in CLIENTS {
        let o = client(b, command, &address).output().unwrap();
        cases.add(4, "the server's key is not the one that is known", command, o, "known_hosts");
    }
}

fn ended_early(b: &Bench, cases: &mut Cases) {
    let host = HostileServer::start();
    host.says(Reply::Close(0));
    // Its key is known from here on.
    client(b, "ls", &host.address.to_string()).output().unwrap();
    host.says(Reply::Messages(Vec::new()));
    for command in CLIENTS {
        let o = interrupted(client(b, command, &host.address.to_string()));
        cases.add(5, "the user stops it", command, o, "");
    }
    host.says(Reply::Close(0x1000));
    for command in CLIENTS {
        let o = client(b, command, &host.address.to_string()).output().unwrap();
        cases.add(5, "the server ends the connection", command, o, "0x1000");
    }
    let server = perf_server(b);
    let what = ["perf", "client", "--accept-new", &server.address, "-t", "1s", "-i", "100ms"];
    let mut child = b.client(&what).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has begun when it tells of an interval.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
    let pid = Pid::from_raw(server.child.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let o = child.wait_with_output().unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    cases.add(
        5,
        "the server falls silent in a measurement",
        "perf client",
        o,
        "cannot get the server's result",
    );
}

fn refused(b: &Bench, cases: &mut Cases) {
    let server = b.serve("srv", &["--read-only"]);
    let o = client(b, "put", &server.address).output().unwrap();
    cases.add(6, "the server is read-only", "put", o, "read-only");
    let perf = perf_server(b);
    for command in CLIENTS {
        let (address, names) = match command {
            "perf client" => (&server.address, "cannot measure with"),
            _ => (&perf.address, "longhaul perf server"),
        };
        let o = client(b, command, address).output().unwrap();
        cases.add(6, "the server is of another service", command, o, names);
    }
    drop(server);
    let server = b.serve("srv", &["--write-only"]);
    for command in ["get", "ls"] {
        let o = client(b, command, &server.address).output().unwrap();
        cases.add(6, "the server is write-only", command, o, "ask the one who runs it");
    }
    let host = HostileServer::start();
    let no = serde_json::to_vec(&json!({ "refused": "too much memory" })).unwrap();
    host.says(Reply::Messages(vec![no]));
    let o = client(b, "perf client", &host.address.to_string()).output().unwrap();
    cases.add(6, "the measurement is more than the server lends", "perf client", o, "too much memory");
}

fn failed_systems(b: &Bench, cases: &mut Cases) {
    let what = "no room is left on the disk of the end that writes";
    let (small, into) = (b.path("small"), b.path("into"));
    fs::create_dir(&small).unwrap();
    let mut serve = longhaul(&b.server);
    serve.args(["serve", small.to_str().unwrap(), "--json", "--listen", "127.0.0.1:0"]);
    let server = Server::start_command(on_a_small_disk(small.to_str().unwrap(), &serve));
    let o = client(b, "put", &server.address).output().unwrap();
    cases.add(7, what, "put", o, "file");
    drop(server);
    let server = b.serve("srv", &[]);
    let get = client(b, "get", &server.address);
    let o = on_a_small_disk(into.to_str().unwrap(), &get).output().unwrap();
    cases.add(7, what, "get", o, "file");
    let perf = perf_server(b);
    for command in ["ls", "perf client"] {
        let address = if command == "ls" { &server.address } else { &perf.address };
        let o = client(b, command, address).stdout(full()).output().unwrap();
        cases.add(7, "standard output cannot be written to", command, o, "standard output");
    }
    let folder = b.path("srv");
    for (command, mut args) in
        [("serve", vec!["serve", folder.to_str().unwrap()]), ("perf server", vec!["perf", "server"])]
    {
        args.extend(["--listen", &server.address]);
        let o = longhaul(&b.server).args(args).output().unwrap();
        cases.add(7, "the port is in use", command, o, &server.address);
    }
}

/// The examples of each status, out of the guide's table.
fn guide() -> BTreeMap<i32, Vec<String>> {
    let text = include_str!("../../../docs/guides/move-files.md");
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, status, _, examples, _] = cells[..] else { return None };
        Some((status.parse().ok()?, examples.split(';').map(|e| e.trim().to_owned()).collect()))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn every_exit_status_in_the_guide_matches_its_examples() {
    let (b, mut cases) = (bench(), Cases::default());
    for provoke in
        [done, partly_done, unusable, not_connected, strangers, ended_early, refused, failed_systems]
    {
        provoke(&b, &mut cases);
    }
    let guide = guide();
    assert_eq!(guide.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    for c in &cases.0 {
        let said = stderr(&c.output);
        assert_eq!(c.output.status.code(), Some(c.status), "{}: {}: {said}", c.command, c.what);
        assert!(said.contains(&c.names), "{}: {}: {said}", c.command, c.what);
        assert!(guide[&c.status].iter().any(|e| e == c.what), "the guide lacks, of {}: {}", c.status, c.what);
    }
    for (status, examples) in &guide {
        for e in examples {
            assert!(
                cases.0.iter().any(|c| c.status == *status && c.what == e),
                "not provoked: {status}: {e}"
            );
        }
    }
    // Where nothing was moved there is no summary of it.
    for c in cases.0.iter().filter(|c| c.status > 2 && c.status < 7) {
        assert!(!stderr(&c.output).contains(" moved in "), "{}: {}", c.command, stderr(&c.output));
    }
}
