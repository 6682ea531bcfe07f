//! Files and measurements by iWARP between real processes, in the clear and under TLS, and what goes wrong there. What needs
//! two hosts needs root and `ip` (iproute2), and says so and passes without: see the list of skips in CONTRIBUTING.md.

mod common;
#[path = "common/hosts.rs"]
mod hosts;

use common::{Bench, Server, bytes, carried, expect, json, mixed_tree, stderr, tree};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const BOTH: [&str; 3] = ["--iwarp", "both", "--allow-any-key"];
/// Of a client: in the clear, and under TLS.
const WAYS: [&[&str]; 2] = [&["--plain"], &["--accept-new"]];

fn url(s: &Server, path: &str) -> String {
    format!("iwarp://{}/{path}", s.address)
}

/// Not a measurement: whatever happens meanwhile is a valid moment.
fn wait_ms(ms: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(ms));
}

/// Passes connections by TCP on, and cuts all of them when it has passed on so many bytes from clients. Gives where it
/// listens.
fn relay(to: &str, bytes: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, to) = (listener.local_addr().unwrap(), to.to_owned());
    let budget = Arc::new(AtomicU64::new(bytes));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let ends = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (i, (from, to)) in ends.into_iter().enumerate() {
                let budget = (i == 0).then(|| budget.clone());
                thread::spawn(move || pump(from.unwrap(), to.unwrap(), budget));
            }
        }
    });
    at
}

fn pump(mut from: TcpStream, mut to: TcpStream, budget: Option<Arc<AtomicU64>>) {
    let mut b = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut b) {
        if let Some(left) = &budget
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |l| l.checked_sub(n as u64)).is_err()
        {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
        if to.write_all(&b[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn mixed_tree_survives_put_and_get() {
    let b = Bench::new();
    mixed_tree(&b.path("src"));
    let src = b.path("src/");
    let bare = ["--plain", "--mpa-crc", "off", "--mpa-markers"];
    for (n, (server, client)) in
        [(&[][..], WAYS[0]), (&["--mpa-crc", "off", "--mpa-markers"], &bare), (&[], WAYS[1])]
            .into_iter()
            .enumerate()
    {
        let server = b.serve(&format!("srv{n}"), &[&BOTH[..], server].concat());
        let (tls, crc) = (n == 2, n == 0);
        let to = url(&server, "in/");
        let put = [&["put", "--json", src.to_str().unwrap(), &to], client].concat();
        let o = b.run(&put);
        expect(&o, 0);
        let r = json(&o);
        assert_eq!(tree(&b.path("src")), tree(&b.path(&format!("srv{n}/in"))));
        let i = &r["iwarp"];
        assert_eq!(
            (&r["transport"], &i["tls"], &i["crc"]),
            (&"iwarp".into(), &tls.into(), &crc.into()),
            "{r}"
        );
        assert_eq!([&i["markers_in"], &i["markers_out"]], [n == 1, n == 1], "{r}");
        assert_eq!(r["suite"].is_string(), tls, "{r}");
        let c = &r["connection"];
        assert!(!c["congestion_control"].as_str().unwrap().is_empty(), "{r}");
        assert!(c["packets_sent"].as_u64().unwrap() > 0 && c["srtt_seconds"].as_f64().unwrap() > 0.0, "{r}");
        assert_eq!(stderr(&o).contains("NOT encrypted"), !tls, "{}", stderr(&o));

        // The second time nothing moves.
        let o = b.run(&put);
        expect(&o, 0);
        assert_eq!(json(&o)["bytes_transferred"], 0);

        let back = b.path(&format!("back{n}"));
        let o = b.run(&[&["get", &url(&server, "in/"), back.to_str().unwrap()], client].concat());
        expect(&o, 0);
        let said = stderr(&o);
        assert!(said.contains(if tls { "over iWARP with TLS" } else { "over iWARP without TLS" }), "{said}");
        assert_eq!(tree(&b.path("src")), tree(&back));

        let o = b.run(&[&["ls", "--json", "-r", "--checksum", &url(&server, "in")], client].concat());
        expect(&o, 0);
        let text = String::from_utf8(o.stdout).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let entry = lines.iter().find(|e| e["path"] == "size-1048576").expect("it is listed");
        assert_eq!(entry["blake3"], blake3::hash(&bytes(5, 1 << 20)).to_hex().as_str());
        let (last, code) = server.stop();
        assert_eq!((code, &last["event"]), (Some(0), &"end".into()));
    }
}

#[test]
fn one_port_serves_both_transports_within_rate_limits() {
    let b = Bench::new();
    let server = b.serve("srv", &BOTH);
    fs::write(b.path("file"), bytes(1, 6 << 20)).unwrap();
    let file = b.path("file");
    let native = server.url("native");
    let [plain, tls] = ["plain", "tls"].map(|n| url(&server, n));
    let start = |args: &[&str]| -> Child {
        let all = [&["put", "--json", "--limit", "4MB/s", file.to_str().unwrap()], args].concat();
        b.client(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The key is known before they start, so that they do not write the same file at once.
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    let all = [start(&[&native]), start(&[&plain, "--plain"]), start(&[&tls])];
    for (c, transport) in all.into_iter().zip(["longhaul", "iwarp", "iwarp"]) {
        let o = c.wait_with_output().unwrap();
        expect(&o, 0);
        let r = json(&o);
        assert_eq!(r["transport"], transport);
        // 6 MiB at 4 MB/s and no faster, whatever else runs here; a tenth for what leaves at once at the start.
        assert!(r["goodput_bits_per_second"].as_f64().unwrap() < 1.1 * 32e6, "{transport}: {r}");
    }
    for name in ["native", "plain", "tls"] {
        assert!(fs::read(b.path("srv").join(name)).unwrap() == bytes(1, 6 << 20), "{name}");
    }
    // A get's limit is the server's to keep.
    let back = b.path("back");
    let o = b.run(&["get", "--json", "--limit", "8MB/s", "--plain", &plain, back.to_str().unwrap()]);
    expect(&o, 0);
    assert!(json(&o)["goodput_bits_per_second"].as_f64().unwrap() < 1.1 * 64e6, "{}", json(&o));
}

#[test]
fn iwarp_transfer_resumes_after_either_end_is_killed() {
    // More than three attempts can move in their time, what waits in TCP included.
    const LEN: usize = 66 << 20;
    for way in WAYS {
        let b = Bench::new();
        fs::create_dir(b.path("src")).unwrap();
        for i in 0..3 {
            fs::write(b.path(&format!("src/{i}")), bytes(i, LEN / 3)).unwrap();
        }
        let src = b.path("src/");
        let mut server = b.serve("srv", &BOTH);
        let address = server.address.clone();
        let put = |to: &str, limit: &str| {
            let url = format!("iwarp://{to}/in/");
            let args = ["put", "--json", "--limit", limit, src.to_str().unwrap(), &url];
            let mut c = b.client(&[&args[..], way].concat());
            c.stdout(Stdio::piped()).stderr(Stdio::piped());
            c
        };
        // Finished files have their names.
        let over = || (0..3).all(|i| b.path(&format!("srv/in/{i}")).exists());
        // The client, by kill -9 and by Ctrl-C; the server, by kill -9.
        for kill in 0..3 {
            let mut client = put(&address, "8MB/s").spawn().unwrap();
            wait_ms(700);
            match kill {
                0 => client.kill().unwrap(),
                1 => {
                    let pid = rustix::process::Pid::from_raw(client.id() as i32).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
                }
                _ => server.kill(),
            }
            let o = client.wait_with_output().unwrap();
            if kill > 0 {
                expect(&o, 5);
            }
            if kill == 2 {
                let r = json(&o);
                let said = r["message"].as_str().unwrap();
                assert!(said.contains("by iWARP") || said.contains("the peer's program ended"), "{r}");
                server = b.serve_at("srv", &address, &BOTH);
            }
            assert!(!over(), "it was over before it was cut off");
        }
        // The connection, in the midst.
        let at = relay(&address, 2_000_000);
        let o = put(&at.to_string(), "100MB/s").output().unwrap();
        assert!(!over());
        expect(&o, 5);
        let o = put(&address, "1GB/s").output().unwrap();
        expect(&o, 0);
        assert!(tree(&b.path("src")) == tree(&b.path("srv/in")));
        let p = &json(&o)["transfer"]["progress"];
        let n = |k: &str| p[k].as_u64().unwrap();
        let (kept, moved) = (n("bytes_skipped") + n("bytes_resumed"), carried(&o));
        assert!(kept > 0 && kept + moved <= (LEN + LEN / 20) as u64, "kept {kept}, moved {moved}");

        comes_back_too(&b, &address, way);
    }
}

/// The other way round: a get whose connection is cut in the midst.
fn comes_back_too(b: &Bench, address: &str, way: &[&str]) {
    let back = b.path("back");
    let get = |to: &str| {
        let url = format!("iwarp://{to}/in/");
        b.run(&[&["get", "--json", &url, back.to_str().unwrap()], way].concat())
    };
    // What it says takes about as many bytes.
    let first = get(&relay(address, 2_000).to_string());
    assert!([Some(0), Some(3), Some(5)].contains(&first.status.code()), "{}", stderr(&first));
    let o = get(address);
    expect(&o, 0);
    assert!(tree(&b.path("src")) == tree(&back));
}

#[test]
fn iwarp_refusals_are_explained() {
    let b = Bench::new();
    fs::write(b.path("file"), b"new").unwrap();
    let file = b.path("file");
    for way in WAYS {
        let server = b.serve("a", &[&BOTH[..], &["--read-only"]].concat());
        let o = b.run(&[&["put", file.to_str().unwrap(), &url(&server, "file")], way].concat());
        expect(&o, 6);
        assert!(stderr(&o).contains("read-only"), "{}", stderr(&o));
        let o = b.run(&[&["get", &url(&server, "no-such"), "x"], way].concat());
        expect(&o, 1);
        assert!(stderr(&o).contains("no-such: cannot be read: No such file"), "{}", stderr(&o));
        let to = b.path("x");
        let get = |asks: &[&str], what: &str| {
            b.run(&[&["get", way[0]], asks, &[&url(&server, what), to.to_str().unwrap()]].concat())
        };
        let o = get(&["--known-rate", "1G"], "x");
        expect(&o, 2);
        assert!(stderr(&o).contains("longhaul://"), "{}", stderr(&o));
        // The server's TCP goes by what it is asked for, if it has that.
        fs::write(b.path("a/there"), b"some").unwrap();
        expect(&get(&["--cc", "reno"], "there"), 0);
        // Of several, the first that it has; it is said which.
        let o = get(&["--no-resume", "--cc", "haul,reno,cubic", "--dscp", "AF11"], "there");
        expect(&o, 0);
        assert!(stderr(&o).contains("reno"), "{}", stderr(&o));
        for none in ["haul", "haul,copa"] {
            let o = get(&["--cc", none], "there");
            expect(&o, 6);
            assert!(stderr(&o).contains("no congestion control of the system's TCP"), "{}", stderr(&o));
        }
        let put = |cc: &str| {
            let to = url(&server, "x");
            b.run(&[&["put", file.to_str().unwrap(), &to, "--tcp-cc", cc], way].concat())
        };
        let o = put("no_such_thing,neither");
        expect(&o, 2);
        assert!(stderr(&o).contains("`neither`: this system does not have it"), "{}", stderr(&o));
        // It has the second, and goes on to what the server says.
        expect(&put("no_such_thing,reno"), 6);
        // What only one of the transports has is refused for the other.
        let o = b.run(&["ls", "--encryption", "crc32c", way[0], &url(&server, "")]);
        expect(&o, 2);
        assert!(
            stderr(&o).contains("cannot use --encryption: the server's address is iwarp://"),
            "{}",
            stderr(&o)
        );
    }
    let server = b.serve("b", &[]);
    let o = b.run(&["ls", "--plain", &server.url("")]);
    expect(&o, 2);
    assert!(stderr(&o).contains("iwarp://"), "{}", stderr(&o));
    // A stranger's key is as good as none, under TLS too.
    let server = b.serve("c", &["--iwarp", "tls"]);
    let stranger = |b: &Bench| {
        common::longhaul(&b.path("stranger"))
            .args(["ls", "--accept-new", &url(&server, "")])
            .output()
            .unwrap()
    };
    let o = stranger(&b);
    expect(&o, 4);
    assert!(stderr(&o).contains("longhaul keys authorize"), "{}", stderr(&o));
    expect(&b.run(&["ls", "--accept-new", &url(&server, "")]), 0);
}

#[test]
fn server_policy_limits_the_tcp_congestion_control_of_get() {
    let b = Bench::new();
    let policy = b.path("policy.toml");
    fs::write(&policy, "[default]\ncc_allow = [\"reno\"]\n").unwrap();
    let server = b.serve("a", &[&BOTH[..], &["--policy", policy.to_str().unwrap()]].concat());
    fs::write(b.path("a/there"), b"some").unwrap();
    let (from, to) = (url(&server, "there"), b.path("x"));
    let get = |cc: &str| b.run(&["get", WAYS[0][0], "--no-resume", "--cc", cc, &from, to.to_str().unwrap()]);
    let o = get("cubic");
    expect(&o, 6);
    let said = stderr(&o);
    let (why, list) = said.split_once("it offers").unwrap_or_default();
    assert!(why.contains("does not lend") && list.contains("reno") && !list.contains("haul"), "{said}");
    expect(&get("reno"), 0);
    let o = get("cubic,reno");
    expect(&o, 0);
    assert!(stderr(&o).contains("reno"), "{}", stderr(&o));
}

/// So much to which nothing is said that two mebibytes are taken at a time (`crates/io/src/tcp/gather.rs`), and a short end.
#[test]
fn long_flow_is_verified_with_sleeping_and_spinning_ends() {
    let b = Bench::new();
    for (poll, early) in
        [("sleep", &[][..]), ("sleep", &["--mpa-early"]), ("spin", &[]), ("spin", &["--mpa-early"])]
    {
        let listen = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--poll", poll];
        let server = Server::start(&b.server, &[&listen[..], &BOTH, early].concat());
        let to = format!("iwarp://{}", server.address);
        for operation in ["write", "send"] {
            let args =
                ["perf", "client", &to, "--json", "--verify", "--plain", "--poll", poll, "-o", operation];
            let size = ["-s", "1000001", "-n", "200000200", "--region", "8MiB"];
            let o = b.run(&[&args[..], &size].concat());
            expect(&o, 0);
            let r = json(&o);
            assert!(r["verified"] == true && r["bytes"] == 200_000_200, "{operation} {early:?} {poll}: {r}");
        }
    }
}

#[test]
fn every_iwarp_operation_is_verified() {
    let b = Bench::new();
    let listen = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--mpa-crc", "off", "--mpa-markers"];
    let server = Server::start(&b.server, &[&listen[..], &BOTH].concat());
    let to = format!("iwarp://{}", server.address);
    let bare = ["--plain", "--mpa-crc", "off", "--mpa-markers"];
    for way in [WAYS[0], WAYS[1], &bare] {
        for operation in ["write", "send", "read"] {
            for direction in [&[][..], &["--reverse"]] {
                let args = ["perf", "client", &to, "--json", "--verify", "-o", operation];
                let size = ["-P", "2", "-n", "24MiB", "--region", "8MiB"];
                let o = b.run(&[&args[..], &size, way, direction].concat());
                expect(&o, 0);
                let r = json(&o);
                assert!(r["verified"] == true && r["bytes"] == 24 << 20, "{operation} {direction:?}: {r}");
                assert_eq!(
                    (&r["transport"], &r["iwarp"]["crc"]),
                    (&"iwarp".into(), &(way == WAYS[0]).into())
                );
                assert!(r["srtt_seconds"].as_f64().unwrap() > 0.0, "{r}");
            }
        }
        for operation in ["fetch-add", "compare-swap"] {
            for how in
                [&["-P", "2", "-n", "32000"][..], &["--latency", "-n", "800"], &["--reverse", "-n", "800"]]
            {
                let args = ["perf", "client", &to, "--json", "--verify", "-o", operation];
                let o = b.run(&[&args[..], how, way].concat());
                expect(&o, 0);
                let r = json(&o);
                let all = if how[0] == "-P" { 4_000 } else { 100 };
                assert!(r["verified"] == true && r["messages"] == all, "{operation} {how:?}: {r}");
                let trips = r["latency_nanoseconds"]["median"].as_u64();
                assert_eq!(trips.is_some_and(|t| t > 0), how[0] == "--latency", "{r}");
            }
        }
        for operation in ["send", "write"] {
            let args =
                ["perf", "client", &to, "--json", "--latency", "-n", "400", "-s", "4", "-o", operation];
            let o = b.run(&[&args[..], way].concat());
            expect(&o, 0);
            let r = json(&o);
            assert!(r["messages"] == 100 && r["latency_nanoseconds"]["median"].as_u64().unwrap() > 0, "{r}");
        }
    }
    // Every Linux has Reno, and lets everybody have it.
    let args = ["perf", "client", &to, "--plain", "-n", "1MiB", "--tcp-cc"];
    let o = b.run(&[&args[..], &["reno"]].concat());
    expect(&o, 0);
    assert!(
        String::from_utf8_lossy(&o.stdout).contains("iWARP without TLS, CRC, markers, TCP reno"),
        "{o:?}"
    );
    let o = b.run(&[&args[..], &["no-such-cc"]].concat());
    expect(&o, 2);
    assert!(stderr(&o).contains("tcp_available_congestion_control"), "{}", stderr(&o));
    let all = ["perf", "server", "--listen", "127.0.0.1:0", "--iwarp", "tls", "--tcp-cc", "no-such-cc"];
    let o = common::longhaul(&b.server).args(all).output().unwrap();
    assert!(!o.status.success() && stderr(&o).contains("no-such-cc"), "{}", stderr(&o));
    // Plain iWARP lets everybody in: whoever serves it must say so.
    let o = common::longhaul(&b.server).args(["serve", ".", "--iwarp", "plain"]).output().unwrap();
    expect(&o, 2);
    assert!(stderr(&o).contains("--allow-any-key"), "{}", stderr(&o));
}

/// A program in the kernel, taken away again at the end.
struct Attached {
    bench: Bench,
    name: String,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.bench.run(&["cc", "detach", &self.name]);
    }
}

#[test]
fn kernel_program_controls_an_iwarp_connection() {
    let clang =
        std::process::Command::new("clang").arg("--version").output().is_ok_and(|o| o.status.success());
    if !clang || !rustix::process::geteuid().is_root() || kernel::check_support().is_err() {
        println!("skipped: needs root, clang, and a kernel with struct_ops for TCP");
        return;
    }
    let name = format!("lh_iw{}", std::process::id());
    let a = Attached { bench: Bench::new(), name };
    let b = &a.bench;
    expect(&b.run(&["cc", "attach", "--tcp", "reno", "--name", &a.name]), 0);
    let listen = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--tcp-cc", &a.name];
    let server = Server::start(&b.server, &[&listen[..], &BOTH].concat());
    let to = format!("iwarp://{}", server.address);
    for direction in [&[][..], &["--reverse"]] {
        let args = ["perf", "client", &to, "--plain", "--verify", "-n", "16MiB", "--tcp-cc", &a.name];
        let o = b.run(&[&args[..], direction].concat());
        expect(&o, 0);
        let said = String::from_utf8_lossy(&o.stdout);
        assert!(said.contains(&format!("TCP {}", a.name)) && said.contains("content verified"), "{said}");
    }
}

#[test]
fn tls_at_one_end_only_is_reported_at_both() {
    let b = Bench::new();
    for (serves, way, said, noted) in [
        ("plain", "--accept-new", "try --plain", "it speaks TLS"),
        ("tls", "--plain", "try without --plain", "it speaks no TLS"),
    ] {
        let path = b.path("srv");
        fs::create_dir_all(&path).unwrap();
        let mut c = common::longhaul(&b.server);
        c.args(["serve", path.to_str().unwrap(), "--json", "--listen", "127.0.0.1:0", "--allow-any-key"]);
        let log = b.path("log");
        c.args(["--iwarp", serves]).stderr(fs::File::create(&log).unwrap());
        let server = hosts::Server::start_told(c);
        let o = b.run(&["ls", way, &format!("iwarp://{}/", server.1)]);
        expect(&o, 3);
        assert!(stderr(&o).contains(said), "{}", stderr(&o));
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains(noted), "{log}");
    }
}

#[test]
fn other_services_and_silence_at_the_port_are_reported() {
    let b = Bench::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    thread::spawn(move || {
        for mut c in other.incoming().flatten() {
            let _ = c.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
            // It stays until the client goes.
            let _ = c.read_to_end(&mut Vec::new());
        }
    });
    for (way, name) in WAYS.into_iter().zip(["MPA", "try --plain"]) {
        let ls = |to: SocketAddr| {
            b.run(&[&["ls", "--connect-timeout", "1s", &format!("iwarp://{to}/")], way].concat())
        };
        for (to, words) in [(nobody, "refused"), (mute.local_addr().unwrap(), "answer"), (at, name)] {
            let o = ls(to);
            expect(&o, 3);
            assert!(stderr(&o).contains(words), "{way:?} {words}: {}", stderr(&o));
        }
    }
}

#[test]
fn unauthorised_clients_and_garbage_do_not_exhaust_the_server() {
    let b = Bench::new();
    let server = b.serve("srv", &BOTH);
    fs::write(b.path("file"), bytes(1, 30 << 20)).unwrap();
    let (file, to) = (b.path("file"), url(&server, "slow"));
    let args = ["put", "--json", "--plain", "--limit", "2MB/s", file.to_str().unwrap(), &to];
    let slow = b.client(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let connect = || TcpStream::connect(&server.address).unwrap();
    // Bytes that mean nothing; a request and a hello of TLS that go wrong after their beginning, or stop there.
    let mut rng = base::Rng::from_u64(7);
    let mut kept = Vec::new();
    for start in [
        &b""[..],
        b"MPA ID Req Frame",
        b"MPA ID Req Frame\x40\x01\xff\xff",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        for len in [0, 1, 3, 200, 70_000] {
            let mut junk = vec![0; len];
            rng.fill(&mut junk);
            let mut c = connect();
            // It may be turned away in the midst.
            let _ = c.write_all(start).and_then(|()| c.write_all(&junk));
            kept.push(c);
        }
    }
    // More than may be half open (1,024): for those beyond it the oldest are reset.
    let silent: Vec<TcpStream> = (0..1_200).map(|_| connect()).collect();
    for c in &silent {
        c.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    let ended = |mut c: &TcpStream| c.read(&mut [0; 16]).is_ok_and(|n| n == 0) || c.take_error().is_ok();
    assert!(silent[..100].iter().all(ended), "more are half open than may be");
    // Others are served meanwhile, by both transports.
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    for way in WAYS {
        expect(&b.run(&[&["ls", &url(&server, "")], way].concat()), 0);
    }
    for mut c in &silent {
        let end = c.read(&mut [0; 16]);
        let reset = end.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(reset || end.is_ok_and(|n| n == 0), "a silent one may stay");
    }
    for way in WAYS {
        expect(&b.run(&[&["ls", &url(&server, "")], way].concat()), 0);
    }
    let o = slow.wait_with_output().unwrap();
    expect(&o, 0);
    assert!(fs::read(b.path("srv/slow")).unwrap() == bytes(1, 30 << 20));
}

/// A path that dies without a word is noticed within 30 seconds: what was sent is not acknowledged, or whoever waits asks in
/// vain (`crates/io/src/tcp/socket.rs`).
#[test]
fn dead_path_is_reported_and_the_transfer_resumes() {
    let Some(h) = hosts::Hosts::new("iw", 1_500) else {
        eprintln!("skipped: network namespaces need root and the ip command");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (file, dst, home) = (dir.path().join("file"), dir.path().join("dst"), dir.path().join("client"));
    fs::write(&file, bytes(1, 40 << 20)).unwrap();
    fs::create_dir(&dst).unwrap();
    let mut serve = h.longhaul(1, &dir.path().join("server"));
    serve.args(["serve", "--json", "--listen", "0.0.0.0:4460"]).args(BOTH).arg(&dst);
    let _server = hosts::Server::start(serve);
    let put = |limit: &str| {
        let mut c = h.longhaul(0, &home);
        c.args(["put", "--plain", "--json", "--limit", limit]).arg(&file).arg("iwarp://10.99.0.2/");
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c
    };
    let first = put("8MB/s").spawn().unwrap();
    wait_ms(2_000);
    assert!(hosts::ip(&["-n", &h.names[0], "link", "set", &h.devices[0], "down"]));
    let o = first.wait_with_output().unwrap();
    expect(&o, 5);
    let r = json(&o);
    assert!(r["message"].as_str().unwrap().contains("10.99.0.2"), "{r}");
    assert!(hosts::ip(&["-n", &h.names[0], "link", "set", &h.devices[0], "up"]));
    let o = put("1GB/s").output().unwrap();
    expect(&o, 0);
    let p = &json(&o)["transfer"]["progress"];
    assert!(p["bytes_resumed"].as_u64().unwrap() > 0, "{p}");
    assert!(fs::read(dst.join("file")).unwrap() == bytes(1, 40 << 20));
}
