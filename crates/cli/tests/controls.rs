//! Every control on every transport: set, changed and taken away while data moves, and what becomes of it measured from
//! outside, by the packets on loopback and by what the kernel says of its sockets. With `--nocapture` a table at the end.
//! Needs root and `ss` of iproute2, and for the kernel's TCP cgroups of version 2; says `skipped: ...` and passes without.
#![allow(clippy::disallowed_methods, reason = "these tests wait for other processes, and measure rates")]

mod common;
#[path = "common/packets.rs"]
mod packets;

use common::{Bench, Server, expect, json, longhaul, stderr};
use packets::Packets;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// What each process is limited to from its start, in Mbit/s: what "no cap" comes to here.
const LIMIT: f64 = 24.0;
/// Of a rate that is asked for: more is a control that does not act, less a machine that is too busy, or a control that stays.
const MOST: f64 = 1.15;
const LEAST: f64 = 0.62;
/// How often a rate is measured until it is what was asked for, for so long each.
const TRIES: u32 = 12;
const MEASURE: Duration = Duration::from_millis(1_000);

/// Rows of the table: transport, control, what was done, what came of it.
static TABLE: Mutex<Vec<[String; 4]>> = Mutex::new(Vec::new());

fn cell(transport: &str, control: &str, done: &str, came: impl ToString) {
    let row = [transport, control, done, &came.to_string()].map(str::to_owned);
    println!("| {} |", row.join(" | "));
    TABLE.lock().unwrap().push(row);
}

/// Cargo runs tests of a file in parallel: these measure one after the other.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn outside() -> Option<Packets> {
    let ss = Command::new("ss").arg("-V").output().is_ok_and(|o| o.status.success());
    let packets = Packets::new().filter(|_| ss);
    if packets.is_none() {
        println!("skipped: needs root, for a packet socket, and ss of iproute2");
    }
    packets
}

/// A process that sends by one transport, until it is dropped.
struct Sender<'a> {
    bench: Bench,
    packets: &'a Packets,
    transport: &'static str,
    server: Server,
    child: Child,
    flow: String,
    port: u16,
}

impl<'a> Sender<'a> {
    fn new(packets: &'a Packets, transport: &'static str) -> Sender<'a> {
        let bench = Bench::new();
        let mut c = longhaul(&bench.server);
        c.env("LONGHAUL_RUN", bench.path("run-server")).args(["perf", "server", "--json"]);
        c.args(["--listen", "127.0.0.1:0", "--iwarp", "plain", "--allow-any-key"]);
        let server = Server::start_command(c);
        let port = server.address.parse::<SocketAddr>().unwrap().port();
        let (to, how) = match transport {
            "iWARP" => (format!("iwarp://{}", server.address), "--plain"),
            _ => (server.address.clone(), "--accept-new"),
        };
        let limit = format!("{LIMIT}mbit");
        let args = ["perf", "client", &to, how, "--json", "-t", "1h", "--stop", "--limit", &limit];
        let mut c = bench.client(&args);
        c.env("LONGHAUL_RUN", bench.path("run")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut s = Sender {
            child: c.spawn().unwrap(),
            bench,
            packets,
            transport,
            server,
            flow: String::new(),
            port,
        };
        let until = Instant::now() + Duration::from_secs(30);
        while s.flow.is_empty() {
            assert!(Instant::now() < until, "nothing is sent by {transport}");
            thread::sleep(Duration::from_millis(50));
            let flows = s.flows("run");
            let moves = |f: &&serde_json::Value| f["delivered_bytes"].as_u64() > Some(100_000);
            if let Some(id) = flows.iter().find(moves).and_then(|f| f["id"].as_str()) {
                s.flow = format!("{}/{id}", s.child.id());
            }
        }
        s
    }

    fn command(&self, args: &[&str]) -> Output {
        self.bench.client(args).env("LONGHAUL_RUN", self.bench.path("run")).output().unwrap()
    }

    /// Flows as `cc show` has them, of the client or of the server.
    fn flows(&self, run: &str) -> Vec<serde_json::Value> {
        let o =
            self.bench.client(&["cc", "show", "--json"]).env("LONGHAUL_RUN", self.bench.path(run)).output();
        let all = json(&o.unwrap());
        let all = all["processes"].as_array().into_iter().flatten();
        all.flat_map(|p| p["flows"].as_array().into_iter().flatten().cloned()).collect()
    }

    /// Changes the flow; what was said.
    fn set(&self, what: &[&str]) -> String {
        let o = self.command(&[&["cc", "set", "--flow", &self.flow], what].concat());
        expect(&o, 0);
        String::from_utf8_lossy(&o.stdout).into_owned()
    }

    /// Gives the process a policy; what was said.
    fn policy(&self, text: &str) -> String {
        let file = self.bench.path("policy.toml");
        fs::write(&file, text).unwrap();
        let o = self.command(&["cc", "set", file.to_str().unwrap()]);
        expect(&o, 0);
        String::from_utf8_lossy(&o.stdout).into_owned()
    }

    /// Measures until it is so many Mbit/s that leave.
    fn sends(&self, control: &str, done: &str, mbit: f64) {
        let mut rate = 0.0;
        for _ in 0..TRIES {
            rate = self.packets.rate(self.port, MEASURE);
            if rate <= mbit * MOST && rate >= mbit * LEAST {
                return cell(self.transport, control, done, format!("{rate:.1} Mbit/s"));
            }
        }
        panic!("{}, {control}, {done}: {rate:.1} Mbit/s instead of {mbit}", self.transport);
    }

    fn carries(&self, done: &str, dscp: u8) {
        for _ in 0..TRIES {
            thread::sleep(Duration::from_millis(200));
            if self.packets.dscp(self.port) == dscp {
                return cell(self.transport, "DSCP", done, format!("packets carry {dscp}"));
            }
        }
        panic!("{}, DSCP, {done}: packets carry {}", self.transport, self.packets.dscp(self.port));
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.server.child.kill();
    }
}

fn pacing(of: &str, mbit: &str) -> String {
    match (of, mbit) {
        (_, "") => "[default]\nfallback = \"cubic\"\n".to_owned(),
        ("rule", _) => format!("[[rule]]\nname = \"all\"\nmatch = {{}}\ncap = \"{mbit}\"\n"),
        ("class", _) => {
            format!("[default]\nclass = \"slow\"\n[[class]]\nname = \"slow\"\ncap = \"{mbit}\"\n")
        }
        _ => format!("[process]\ncap = \"{mbit}\"\n"),
    }
}

/// The limit of the start holds all the time; each cap beside it is set, changed and taken away.
fn caps(packets: &Packets, transport: &'static str) {
    let s = Sender::new(packets, transport);
    s.sends("--limit 24mbit", "from the start", LIMIT);
    for (cap, mbit) in [("8mbit", 8.0), ("16mbit", 16.0), ("8mbit", 8.0)] {
        s.set(&["--cap", cap]);
        s.sends("flow's cap", &format!("cc set --cap {cap}"), mbit);
    }
    let said = s.set(&["--cap", "none"]);
    assert!(said.contains("the connection's limit still keeps it to 24.0 Mbit/s"), "{transport}: {said}");
    s.sends("flow's cap", "cc set --cap none, beside --limit", LIMIT);
    for of in ["rule", "class", "process"] {
        for (cap, mbit) in [("8M", 8.0), ("16M", 16.0), ("", LIMIT)] {
            s.policy(&pacing(of, cap));
            let done =
                if cap.is_empty() { "policy without it".to_owned() } else { format!("cap = \"{cap}\"") };
            s.sends(&format!("{of}'s cap"), &done, mbit);
        }
    }
    // Beside each other the smallest counts, whichever comes first.
    s.policy(&pacing("rule", "16M"));
    s.set(&["--cap", "8mbit"]);
    s.sends("flow's beside rule's cap", "8 beside 16", 8.0);
    let said = s.set(&["--cap", "20mbit"]);
    assert!(said.contains("rule \"all\" still keeps it to 16.0 Mbit/s"), "{transport}: {said}");
    s.sends("flow's beside rule's cap", "20 beside 16", 16.0);
}

fn marks(s: &Sender<'_>) {
    for (point, dscp) in [("AF11", 10), ("CS1", 8), ("", 0)] {
        let (policy, done) = match point {
            "" => (pacing("rule", ""), "policy without it".to_owned()),
            _ => (format!("[default]\ndscp = \"{point}\"\n"), format!("dscp = \"{point}\"")),
        };
        s.policy(&policy);
        s.carries(&done, dscp);
    }
}

/// Algorithms whose rate shows which one decides and with which parameters; and what the other end is told.
fn native(packets: &Packets) {
    let s = Sender::new(packets, "native");
    for (spec, mbit) in [("fixed:rate=8M", 8.0), ("fixed:rate=16M", 16.0), ("haul", LIMIT)] {
        s.set(&["--cc", spec]);
        s.sends("algorithm, parameters", &format!("cc set --cc {spec}"), mbit);
    }
    expect(&s.command(&["cc", "load", "vegas"]), 0);
    let told = |name: &str, done: &str| {
        for _ in 0..TRIES * 4 {
            thread::sleep(Duration::from_millis(100));
            if s.flows("run-server").iter().any(|f| f["peer_algorithm"] == name) {
                return cell("native", "program", done, format!("the other end sees {name}"));
            }
        }
        panic!("{done}: {:?}", s.flows("run-server"));
    };
    s.set(&["--cc", "vegas-c"]);
    told("vegas-c", "cc set --cc vegas-c");
    s.sends("program", "rate under it", LIMIT);
    expect(&s.command(&["cc", "unload", "vegas-c"]), 0);
    s.set(&["--cc", "reno"]);
    told("reno", "cc unload, cc set --cc reno");
    marks(&s);
}

/// What `ss` says of the sockets that send to a port.
fn ss(port: u16) -> String {
    let o = Command::new("ss").args(["-Htin", "dst", &format!("127.0.0.1:{port}")]).output().unwrap();
    String::from_utf8_lossy(&o.stdout).into_owned()
}

/// The kernel's name of the algorithm that sends to a port.
fn algorithm_at(port: u16, names: &[&str]) -> String {
    let text = ss(port);
    let mut words = text.split_whitespace();
    words.find(|w| names.contains(w)).unwrap_or_default().to_owned()
}

/// A program in the kernel, by the name that it got there; `None` where none can be attached.
struct InKernel {
    name: String,
}

impl InKernel {
    fn new(program: &str, more: &[&str]) -> Option<InKernel> {
        let bench = Bench::new();
        let clang = Command::new("clang").arg("--version").output().is_ok_and(|o| o.status.success());
        let o = bench.run(&[&["cc", "attach", "--tcp", program], more].concat());
        if !clang || o.status.code() == Some(7) {
            println!("skipped: no programs in this kernel: {}", stderr(&o));
            return None;
        }
        expect(&o, 0);
        let name = String::from_utf8_lossy(&o.stdout).split(' ').next().unwrap().to_owned();
        Some(InKernel { name })
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        let _ = kernel::detach(&self.name);
    }
}

fn own_name() -> String {
    format!("lhm{}", std::process::id())
}

fn iwarp(packets: &Packets, program: Option<&InKernel>) {
    let s = Sender::new(packets, "iWARP");
    let names: Vec<&str> =
        ["reno", "cubic", "bbr"].into_iter().chain(program.map(|p| p.name.as_str())).collect();
    let goes_by = |control: &str, done: &str, name: &str| {
        let is = algorithm_at(s.port, &names);
        assert_eq!(is, name, "{done}: {}", ss(s.port));
        cell("iWARP", control, done, format!("ss: {is}"));
    };
    for name in ["reno", "cubic"] {
        s.set(&["--cc", name]);
        goes_by("algorithm", &format!("cc set --cc {name}"), name);
    }
    s.policy("[default]\nalgorithm = \"reno\"\n");
    goes_by("algorithm", "policy: reno", "reno");
    if let Some(p) = program {
        s.set(&["--cc", &p.name]);
        goes_by("program", "attached, cc set --cc", &p.name);
        s.set(&["--cc", "cubic"]);
        goes_by("program", "cc set --cc cubic", "cubic");
    }
    let o = s.command(&["cc", "set", "--flow", &s.flow, "--cc", "cubic:hystart=off"]);
    expect(&o, 6);
    assert!(stderr(&o).contains("takes no parameters"), "{}", stderr(&o));
    cell("iWARP", "parameters", "cc set --cc cubic:hystart=off", "refused: the system's TCP takes none");
    for (algorithm, words) in [
        ("cubic:hystart=off", "the parameters of cubic:hystart=off are not TCP's"),
        ("copa", "it is not decided by copa but by"),
    ] {
        let said = s.policy(&format!("[default]\nalgorithm = \"{algorithm}\"\n"));
        assert!(said.contains(words), "{algorithm}: {said}");
        cell("iWARP", "parameters, algorithm", &format!("policy: {algorithm}"), format!("said: {words}"));
    }
    marks(&s);
}

/// Tells [`sends_for_another_test`] where to.
const TO: &str = "LONGHAUL_TEST_SENDS_TO";

/// Not a test but a program that knows nothing of Longhaul: it sends 24 Mbit/s, as far as it may.
#[test]
fn sends_for_another_test() {
    let Ok(to) = std::env::var(TO) else { return };
    let mut out = TcpStream::connect(to).unwrap();
    let began = Instant::now();
    for sent in 0_u32.. {
        let due = Duration::from_millis(10) * sent;
        thread::sleep(due.saturating_sub(began.elapsed()));
        if out.write_all(&[7; 30_000]).is_err() {
            return;
        }
    }
}

struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = kernel::detach_policy(&self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

struct OtherPrograms(Child, u16);

impl Drop for OtherPrograms {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection of another program in the group, to a port of its own.
fn stranger(group: &Cgroup) -> OtherPrograms {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut from, _) = listener.accept().unwrap();
        std::io::copy(&mut from, &mut std::io::sink())
    });
    let child = Command::new("sh")
        .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
        .arg(&group.0)
        .arg(std::env::current_exe().unwrap())
        .args(["sends_for_another_test", "--exact"])
        .env(TO, to.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    OtherPrograms(child, to.port())
}

/// Rates of a stranger's connection: it has what it was made with.
fn of_stranger(packets: &Packets, port: u16, mbit: f64) -> String {
    let mut rate = 0.0;
    for _ in 0..TRIES {
        rate = packets.rate(port, MEASURE);
        if rate <= mbit * MOST && rate >= mbit * LEAST {
            return format!("{rate:.1} Mbit/s");
        }
    }
    panic!("TCP of another program: {rate:.1} Mbit/s instead of {mbit}: {}", ss(port));
}

fn kernel_tcp(packets: &Packets, program: Option<&InKernel>) {
    const TCP: &str = "kernel TCP";
    let Ok(all) = kernel::root_cgroup() else { return println!("skipped: no cgroups of version 2") };
    let group = Cgroup(all.join(format!("longhaul-controls-{}", std::process::id())));
    fs::create_dir(&group.0).unwrap();
    let bench = Bench::new();
    let file = bench.path("policy.toml");
    let attach = |text: &str| {
        fs::write(&file, text).unwrap();
        let (group, file) = (group.0.to_str().unwrap(), file.to_str().unwrap());
        let o = bench.run(&["cc", "attach", "--cgroup", group, "--policy", file]);
        expect(&o, 0);
        String::from_utf8_lossy(&o.stdout).into_owned()
    };
    let rule = |name: &str, cap: &str, dscp: &str| {
        format!(
            "[[rule]]\nname = \"all\"\nmatch = {{}}\nalgorithm = \"{name}\"\ncap = \"{cap}\"\ndscp = \"{dscp}\"\n"
        )
    };
    let names: Vec<&str> =
        ["reno", "cubic", "bbr"].into_iter().chain(program.map(|p| p.name.as_str())).collect();
    for (name, cap, dscp, mbit, point) in [("reno", "8M", "AF11", 8.0, 10), ("cubic", "16M", "CS1", 16.0, 8)]
    {
        attach(&rule(name, cap, dscp));
        let s = stranger(&group);
        cell(TCP, "rule's cap", &format!("cap = \"{cap}\""), of_stranger(packets, s.1, mbit));
        assert_eq!(algorithm_at(s.1, &names), name, "{}", ss(s.1));
        cell(TCP, "algorithm", &format!("algorithm = \"{name}\""), format!("ss: {name}"));
        assert_eq!(packets.dscp(s.1), point);
        cell(TCP, "DSCP", &format!("dscp = \"{dscp}\""), format!("packets carry {point}"));
    }
    if let Some(p) = program {
        attach(&format!("programs = [\"{0}\"]\n{1}", p.name, rule(&p.name, "16M", "0")));
        let s = stranger(&group);
        of_stranger(packets, s.1, 16.0);
        assert_eq!(algorithm_at(s.1, &names), p.name, "{}", ss(s.1));
        cell(TCP, "program", "attached, named by a rule", format!("ss: {}", p.name));
    }
    // What a socket cannot be told is said.
    let said = attach(
        "[process]\ncap = \"8M\"\n[default]\nclass = \"slow\"\nalgorithm = \"cubic:hystart=off\"\n[[class]]\nname = \"slow\"\ncap = \"8M\"\n",
    );
    for (control, words) in [
        ("parameters", "the parameters of cubic:hystart=off are not the kernel's"),
        ("class's cap", "the kernel's sockets are in none"),
        ("process's cap", "[process] is about what Longhaul sends"),
    ] {
        assert!(said.contains(words), "{words}\n{said}");
        cell(TCP, control, "cc attach --policy", format!("said: {words}"));
    }
    expect(&bench.run(&["cc", "detach", "--policy", "--cgroup", group.0.to_str().unwrap()]), 0);
    let s = stranger(&group);
    cell(TCP, "rule's cap", "cc detach --policy", of_stranger(packets, s.1, LIMIT));
    let flow = format!("{}/1.0", s.0.id());
    let o = bench.run(&["cc", "set", "--flow", &flow, "--cap", "8mbit"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("cannot find process"), "{}", stderr(&o));
    cell(TCP, "--limit, flow's cap", "cc set --flow", "refused: no process of Longhaul");
}

#[test]
fn every_control_takes_effect_on_every_transport() {
    let _alone = alone();
    let Some(packets) = outside() else { return };
    let program = InKernel::new("vegas", &["--name", &own_name()]);
    let (packets, program) = (&packets, program.as_ref());
    thread::scope(|s| {
        let all = [
            s.spawn(move || caps(packets, "native")),
            s.spawn(move || caps(packets, "iWARP")),
            s.spawn(move || native(packets)),
            s.spawn(move || iwarp(packets, program)),
            s.spawn(move || kernel_tcp(packets, program)),
        ];
        all.into_iter().for_each(|t| t.join().unwrap());
    });
    println!("\n| transport | control | done | found outside |\n| --- | --- | --- | --- |");
    let mut rows = TABLE.lock().unwrap().clone();
    rows.sort_by(|a, b| a[..2].cmp(&b[..2]));
    rows.iter().for_each(|row| println!("| {} |", row.join(" | ")));
}

/// A program that comes with Longhaul is called in the kernel like the algorithm that it decides as, if that name is free there,
/// and found by that name, and by its own, whatever it got.
#[test]
fn kernel_program_is_found_by_its_name() {
    let _alone = alone();
    let Some(packets) = outside() else { return };
    let Some(free) = InKernel::new("vegas", &[]) else { return };
    assert_eq!(free.name, "vegas");
    // Every kernel has Reno itself.
    let Some(taken) = InKernel::new("reno", &[]) else { return };
    assert_eq!(taken.name, "reno_c");
    let s = Sender::new(&packets, "iWARP");
    for (asked, name) in [("vegas", "vegas"), ("reno", "reno_c"), ("cubic", "cubic")] {
        s.set(&["--cc", asked]);
        assert_eq!(algorithm_at(s.port, &["vegas", "reno", "reno_c", "cubic"]), name, "{}", ss(s.port));
    }
    if let Ok(all) = kernel::root_cgroup() {
        let group = Cgroup(all.join(format!("longhaul-names-{}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        for (rule, name) in [("vegas", "vegas"), ("vegas-c", "vegas"), ("reno", "reno_c")] {
            let file = s.bench.path("names.toml");
            fs::write(&file, format!("programs = [\"vegas-c\"]\n[default]\nalgorithm = \"{rule}\"\n"))
                .unwrap();
            let attach =
                ["cc", "attach", "--cgroup", group.0.to_str().unwrap(), "--policy", file.to_str().unwrap()];
            expect(&s.bench.run(&attach), 0);
            let stranger = stranger(&group);
            of_stranger(&packets, stranger.1, LIMIT);
            let is = algorithm_at(stranger.1, &["vegas", "reno", "reno_c", "cubic", "bbr"]);
            assert_eq!(is, name, "{rule}: {}", ss(stranger.1));
        }
    }
    for (asked, name) in [("vegas-c", "vegas"), ("reno", "reno_c")] {
        let o = s.bench.run(&["cc", "detach", asked]);
        expect(&o, 0);
        assert_eq!(String::from_utf8_lossy(&o.stdout), format!("{name} is detached\n"));
    }
    // As the default of a network namespace, and gone again.
    let lh = env!("CARGO_BIN_EXE_longhaul");
    let now = "cat /proc/sys/net/ipv4/tcp_congestion_control";
    let script = format!("{lh} cc attach --tcp dctcp --default && {now} && {lh} cc detach dctcp && {now}");
    let o = Command::new("unshare").args(["-n", "sh", "-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&o.stdout).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.first().is_some_and(|l| l.starts_with("dctcp is attached")), "{said}{}", stderr(&o));
    assert_eq!((lines.get(1), lines.get(2)), (Some(&"dctcp"), Some(&"dctcp is detached")), "{said}");
}
