//! What goes wrong below a transfer while it runs: paths that take smaller packets than before, paths that are blocked,
//! processors that are taken away, memory and disks that run out. Everything arrives, or what did not is named and goes on
//! when the command is repeated; and it is said once. Those with hosts need root and `ip` (iproute2); without them they say
//! so and pass: see the list of skips in CONTRIBUTING.md.

#[path = "common/hosts.rs"]
mod hosts;

use hosts::{Hosts, Server, ip};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const SKIPPED: &str = "skipped: network namespaces need root and the ip command";
const SHRANK: &str = "large packets do not get through any more";
/// What has left when something happens: the path's packet size is known by then, and most is still to come.
const SOME: u64 = 4_000_000;

fn server(hosts: &Hosts, home: &Path, more: &[&str]) -> Server {
    let mut c = hosts.longhaul(1, home);
    c.args(["perf", "server", "--json", "--allow-any-key", "--listen", "0.0.0.0:4461"]).args(more);
    Server::start(c)
}

/// Starts to send 32 MiB at 100 Mbit/s, which takes some three seconds, and compares what arrives.
fn client(hosts: &Hosts, home: &Path, more: &[&str]) -> Child {
    let mut c = hosts.longhaul(0, home);
    c.args(["perf", "client", "10.99.0.2", "--accept-new", "--json", "--verify", "-i", "0"]);
    c.args(["-v", "-n", "32MiB", "--limit", "100mbit"]).args(more);
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
}

/// Waits for its end: everything must have arrived. Gives its figures and what it said.
fn ended(c: Child) -> (serde_json::Value, String) {
    let out: Output = c.wait_with_output().expect("ended");
    let (said, words) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said} {words}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["verified"], true, "{said}");
    (report, words.into_owned())
}

fn count(words: &str, what: &str) -> usize {
    words.matches(what).count()
}

/// A command in the namespace of a host; what it printed.
fn on(hosts: &Hosts, host: usize, args: &[&str]) -> String {
    let out = Command::new("ip").args(["netns", "exec", &hosts.names[host]]).args(args).output().expect("ip");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Waits until the first host has sent this many bytes.
// Other processes are waited for.
#[allow(clippy::disallowed_methods)]
fn until_sent(hosts: &Hosts, bytes: u64) {
    let file = format!("/sys/class/net/{}/statistics/tx_bytes", hosts.devices[0]);
    for _ in 0..3_000 {
        if on(hosts, 0, &["cat", &file]).trim().parse::<u64>().expect("a number") >= bytes {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{bytes} bytes did not leave");
}

/// Has a host forget, without a word to anybody, what comes from or to what `rule` says, as a firewall does.
fn block(hosts: &Hosts, host: usize, rule: &[&str]) {
    let ns = &hosts.names[host];
    // The table of the host's own addresses comes before all other rules: behind this one, instead.
    assert!(ip(&["-n", ns, "rule", "add", "pref", "100", "lookup", "local"]));
    assert!(ip(&[&["-n", ns, "rule", "add", "pref", "10"], rule, &["blackhole"]].concat()), "{rule:?}");
    assert!(ip(&["-n", ns, "rule", "del", "pref", "0"]));
}

/// A second address for each host on the same devices.
fn second_path(hosts: &Hosts) {
    for (host, address) in [(0, "10.98.0.1/24"), (1, "10.98.0.2/24")] {
        assert!(ip(&["-n", &hosts.names[host], "addr", "add", address, "dev", &hosts.devices[host]]));
    }
}

#[test]
fn packets_shrink_at_once_when_the_interface_mtu_is_lowered() {
    let Some(hosts) = Hosts::new("dm", 9_000) else { return eprintln!("{SKIPPED}") };
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(&hosts, &dir.path().join("server"), &[]);
    let c = client(&hosts, &dir.path().join("client"), &[]);
    until_sent(&hosts, SOME);
    assert!(ip(&["-n", &hosts.names[0], "link", "set", &hosts.devices[0], "mtu", "1400"]));
    let (report, words) = ended(c);
    assert!(words.contains(SHRANK), "{words}");
    let number = |name: &str| report["client"][name].as_f64().expect("a number");
    assert!(number("payload_sent") / number("packets_sent") < 5_000.0, "large packets after all: {report}");
}

#[test]
fn path_that_drops_large_packets_silently_is_detected() {
    let Some(hosts) = Hosts::new("db", 9_000) else { return eprintln!("{SKIPPED}") };
    // A veth drops what its other end does not take, and tells nobody, unless it is a super-packet: those are cut before.
    let device = &hosts.devices[0];
    let offload =
        ["ethtool", "-K", device, "tx-udp-segmentation", "off", "generic-segmentation-offload", "off"];
    if Command::new("ethtool").arg("--version").output().is_err() {
        return eprintln!("skipped: ethtool is missing");
    }
    on(&hosts, 0, &offload);
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(&hosts, &dir.path().join("server"), &[]);
    let c = client(&hosts, &dir.path().join("client"), &[]);
    until_sent(&hosts, SOME);
    assert!(ip(&["-n", &hosts.names[1], "link", "set", &hosts.devices[1], "mtu", "1400"]));
    let (report, words) = ended(c);
    assert!(words.contains(SHRANK), "{words}");
    let number = |name: &str| report["client"][name].as_f64().expect("a number");
    assert!(number("payload_sent") / number("packets_sent") < 5_000.0, "large packets after all: {report}");
}

#[test]
fn path_blocked_from_the_start_is_not_used() {
    let Some(hosts) = Hosts::new("ds", 1_500) else { return eprintln!("{SKIPPED}") };
    second_path(&hosts);
    block(&hosts, 1, &["from", "10.98.0.1"]);
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(&hosts, &dir.path().join("server"), &[]);
    let (_, words) = ended(client(&hosts, &dir.path().join("client"), &["--path", "10.98.0.1,10.98.0.2"]));
    assert_eq!(count(&words, "nobody answers there"), 1, "{words}");
}

#[test]
fn path_that_never_came_up_is_reported_after_a_short_transfer() {
    let Some(hosts) = Hosts::new("dn", 1_500) else { return eprintln!("{SKIPPED}") };
    second_path(&hosts);
    block(&hosts, 1, &["from", "10.98.0.1"]);
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(&hosts, &dir.path().join("server"), &[]);
    let mut c = hosts.longhaul(0, &dir.path().join("client"));
    c.args([
        "perf",
        "client",
        "10.99.0.2",
        "--accept-new",
        "--json",
        "-n",
        "1MiB",
        "--path",
        "10.98.0.1,10.98.0.2",
    ]);
    let out = c.stdin(Stdio::null()).output().expect("ran");
    let words = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{words}");
    let told: Vec<_> = words.lines().filter(|l| l.contains("10.98.0.1 to 10.98.0.2")).collect();
    assert!(told.len() == 1 && told[0].contains("WARN a path never came up"), "{words}");
}

#[test]
fn data_of_a_path_that_becomes_blocked_moves_to_the_other() {
    // Either path: that of the connection, too.
    for (path, blocked) in [(1, "10.98.0.1"), (0, "10.99.0.1")] {
        let Some(hosts) = Hosts::new("dw", 1_500) else { return eprintln!("{SKIPPED}") };
        second_path(&hosts);
        let dir = tempfile::tempdir().expect("folder");
        let _server = server(&hosts, &dir.path().join("server"), &[]);
        // Both lead over one veth: they are not to be taken for one path.
        let more = ["--path", "10.98.0.1,10.98.0.2", "--coupling", "never"];
        let c = client(&hosts, &dir.path().join("client"), &more);
        until_sent(&hosts, SOME);
        block(&hosts, 1, &["from", blocked]);
        let (_, words) = ended(c);
        let told = words.lines().filter(|l| l.contains("nothing comes back any more"));
        assert_eq!(told.filter(|l| l.contains(&format!("path={path} "))).count(), 1, "{blocked}: {words}");
    }
}

#[test]
fn data_of_a_blocked_lane_moves_to_the_others() {
    let Some(hosts) = Hosts::new("dl", 1_500) else { return eprintln!("{SKIPPED}") };
    let dir = tempfile::tempdir().expect("folder");
    let _server = server(&hosts, &dir.path().join("server"), &["--lanes", "2"]);
    let c = client(&hosts, &dir.path().join("client"), &["--lanes", "2"]);
    until_sent(&hosts, SOME);
    // The local ports of the two lanes.
    let sockets = on(&hosts, 0, &["ss", "-Huan"]);
    let ports: Vec<&str> = sockets
        .lines()
        .filter_map(|l| l.split_whitespace().nth(3)?.rsplit_once(':').map(|(_, p)| p))
        .collect();
    assert_eq!(ports.len(), 2, "{sockets}");
    block(&hosts, 1, &["ipproto", "udp", "sport", ports[1]]);
    ended(c);
}

#[test]
fn transfer_continues_when_processors_are_taken_away() {
    let Some(hosts) = Hosts::new("dc", 1_500) else { return eprintln!("{SKIPPED}") };
    let dir = tempfile::tempdir().expect("folder");
    let s = server(&hosts, &dir.path().join("server"), &["--lanes", "2"]);
    let c = client(&hosts, &dir.path().join("client"), &["--lanes", "2", "--cores", "0,1"]);
    until_sent(&hosts, SOME);
    for pid in [s.0.id(), c.id()] {
        confine(pid, 0);
    }
    let (report, _) = ended(c);
    assert_eq!(report["bytes"], 32 << 20, "{report}");
}

/// Leaves all threads of a process one processor.
fn confine(pid: u32, core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
        let id: i32 = task.expect("an entry").file_name().to_string_lossy().parse().expect("a number");
        // One that has just ended needs no processor.
        let _ = rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(id), &set);
    }
}

/// The program with at most this much address space.
fn confined(home: &Path, megabytes: u64, args: &[&str]) -> Command {
    let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", megabytes * 1_000_000 / 1024);
    let mut c = Command::new("sh");
    c.args(["-c", &script, env!("CARGO_BIN_EXE_longhaul")]).args(args).env("LONGHAUL_HOME", home);
    c
}

#[test]
fn receiver_without_memory_reports_it_and_keeps_received_data() {
    let dir = tempfile::tempdir().expect("folder");
    let (src, dst) = (dir.path().join("big"), dir.path().join("dst"));
    std::fs::create_dir(&dst).expect("made");
    let mut data = vec![0; 48 << 20];
    base::Rng::from_u64(5).fill(&mut data);
    std::fs::write(&src, &data).expect("written");
    let (home, folder) = (dir.path().join("server"), dst.display().to_string());
    let serve = ["serve", &folder, "--json", "--allow-any-key", "--listen"];
    let put = |address: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        c.args(["put", "--accept-new", "--quiet", "--connect-timeout", "5s"]).arg(&src);
        c.arg(format!("longhaul://{address}/"));
        c.env("LONGHAUL_HOME", dir.path().join("client")).output().expect("ran")
    };
    // What a server needs to start with, and what it takes for a transfer, differs between machines.
    for megabytes in [110, 160, 240] {
        let mut c = confined(&home, megabytes, &[&serve[..], &["127.0.0.1:0"]].concat());
        c.stderr(Stdio::null());
        let Some((mut server, address)) = try_start(c) else { continue };
        let out = put(&address);
        // Where the system refuses the program itself a little memory it ends, and says so. Else it goes on.
        let ended = server.0.try_wait().expect("known");
        assert!(ended.is_none_or(|s| s.code() == Some(7)), "{megabytes} MB: {ended:?}");
        if out.status.success() || ended.is_some() {
            continue;
        }
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        let told = words.contains("ulimit -v");
        assert!(told || words.contains("continues where it was"), "{megabytes} MB: {words}");
    }
    let (_server, address) =
        try_start(confined(&home, 8_000, &[&serve[..], &["127.0.0.1:0"]].concat())).expect("it starts");
    let out = put(&address);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(std::fs::read(dst.join("big")).expect("there") == data, "the file differs");
}

/// A run with little memory: it ended by itself, and unless all went well it said why.
fn told_why(what: &str, megabytes: u64, out: &Output) {
    let words = String::from_utf8_lossy(&out.stderr);
    let name = format!("{what} with {megabytes} MB: {:?} {words}", out.status);
    // By no signal: an abort is one.
    let code = out.status.code().unwrap_or_else(|| panic!("{name}"));
    assert!(code != 101 && !words.contains("panicked") && !words.contains("memory allocation"), "{name}");
    let why = ["ulimit", "memory", "Cannot allocate", "No buffer space", "Resource temporarily unavailable"];
    assert!(code == 0 || why.iter().any(|w| words.contains(w)), "{name}");
}

#[test]
fn no_command_aborts_in_a_small_address_space() {
    let dir = tempfile::tempdir().expect("folder");
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    for name in ["served", "here", "there"] {
        std::fs::create_dir(path(name)).expect("made");
    }
    let mut data = vec![0; 24 << 20];
    base::Rng::from_u64(6).fill(&mut data);
    std::fs::write(path("big"), &data).expect("written");
    std::fs::write(path("served/big"), &data).expect("written");
    let listening = |what: &[&str], megabytes| {
        let args = [what, &["--json", "--allow-any-key", "--listen", "127.0.0.1:0"]].concat();
        let mut c = confined(&path("server"), megabytes, &args);
        c.stderr(Stdio::null());
        try_start(c)
    };
    const ALL: u64 = 64_000;
    let (_files, files) = listening(&["serve", &text("served")], ALL).expect("it starts");
    let (_perf, perf) = listening(&["perf", "server"], ALL).expect("it starts");
    let client = |what: &[&str], megabytes| {
        let more = ["--accept-new", "--connect-timeout", "5s"];
        confined(&path("client"), megabytes, &[what, &more].concat())
            .stdin(Stdio::null())
            .output()
            .expect("ran")
    };
    assert!(client(&["perf", "client", &perf, "-n", "1MiB"], ALL).status.success());
    let (to, from) = (format!("longhaul://{files}/there"), format!("longhaul://{files}/big"));
    let mut went_well = 0;
    for megabytes in [60, 75, 90, 110, 140, 180, 230, 300, 500, 1_500] {
        let alone = confined(&path("client"), megabytes, &["--version"]).output().expect("ran");
        if !alone.status.success() {
            // Not even the system's loader could do its work.
            continue;
        }
        for (what, args) in [
            ("put", &["put", &text("big"), &to, "--no-resume", "--quiet"][..]),
            ("get", &["get", &from, &text("here"), "--no-resume", "--quiet"]),
            ("ls", &["ls", &format!("longhaul://{files}/")]),
            ("perf", &["perf", "client", &perf, "-n", "16MiB", "--quiet"]),
        ] {
            let out = client(args, megabytes);
            told_why(what, megabytes, &out);
            went_well += u32::from(out.status.success());
        }
        let _ = std::fs::remove_file(path("here/big"));
        let served = listening(&["serve", &text("served")], megabytes);
        let Some((mut server, address)) = served else { continue };
        let out = client(
            &["get", &format!("longhaul://{address}/big"), &text("here"), "--no-resume", "--quiet"],
            ALL,
        );
        let ended = server.0.try_wait().expect("known");
        assert!(ended.is_none_or(|s| s.code() == Some(7)), "{megabytes} MB: {ended:?}");
        assert!(out.status.code().is_some_and(|c| c != 101), "{megabytes} MB: {:?}", out.status);
        let _ = std::fs::remove_file(path("here/big"));
    }
    assert!(went_well >= 8, "with 500 MB and more, at least");
}

/// A server and its address; `None` when it ends instead.
fn try_start(mut c: Command) -> Option<(Server, String)> {
    use std::io::BufRead as _;
    let mut child = c.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("started");
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    let server = Server(child);
    let ready: serde_json::Value = serde_json::from_str(&line).ok()?;
    Some((server, ready["listening"].as_str()?.to_owned()))
}
