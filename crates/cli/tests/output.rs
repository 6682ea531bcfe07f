//! Standard output or error that cannot be written to: a closed pipe ends a command quietly, a full disk is named, and
//! nothing panics.

mod common;

use common::{Bench, Server, bytes, json, longhaul, stderr};
use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

/// A pipe whose reader has gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The disk of which nothing is left.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn run(c: &mut Command) -> Output {
    let o = c.output().unwrap();
    assert!(o.status.code().is_some_and(|code| code < 8), "{c:?}: {:?} {}", o.status, stderr(&o));
    assert!(!stderr(&o).contains("panicked"), "{c:?}: {}", stderr(&o));
    o
}

/// Runs a command that writes to standard output, with each of its outputs failing in each way.
#[track_caller]
fn fails_well(command: &dyn Fn() -> Command) {
    let well = run(&mut command());
    let code = well.status.code();
    assert!(!well.stdout.is_empty(), "{:?} says nothing", command());

    let o = run(command().stdout(closed_pipe()));
    assert_eq!(o.status.code(), code, "a closed pipe: {:?}: {}", command(), stderr(&o));
    assert!(!stderr(&o).contains("standard output"), "a closed pipe: {:?}: {}", command(), stderr(&o));

    let o = run(command().stdout(full()));
    let expected = if code == Some(0) { Some(7) } else { code };
    assert_eq!(o.status.code(), expected, "a full disk: {:?}: {}", command(), stderr(&o));
    let said = stderr(&o);
    assert!(
        said.contains("cannot write to standard output: No space left on device"),
        "{:?}: {said}",
        command()
    );
    assert_eq!(said.matches("standard output").count(), 1, "{:?}: {said}", command());

    for lost in [closed_pipe, full] {
        let o = run(command().stderr(lost()));
        assert_eq!(o.status.code(), code, "no standard error: {:?}", command());
        assert_eq!(o.stdout.is_empty(), well.stdout.is_empty(), "no standard error: {:?}", command());
    }
    let o = run(command().stdout(closed_pipe()).stderr(closed_pipe()));
    assert_eq!(o.status.code(), code, "neither: {:?}", command());
}

/// The words of every subcommand, by the names of their manual pages.
fn subcommands(b: &Bench) -> Vec<Vec<String>> {
    let pages = b.path("man");
    assert!(b.run(&["man", pages.to_str().unwrap()]).status.success());
    let words = |name: String| -> Vec<String> {
        let name = name.trim_end_matches(".1").replace("built-in", "built_in");
        name.split('-').skip(1).map(|w| w.replace('_', "-")).collect()
    };
    fs::read_dir(pages).unwrap().map(|e| words(e.unwrap().file_name().into_string().unwrap())).collect()
}

#[test]
fn help_of_every_subcommand_survives_outputs_that_fail() {
    let b = Bench::new();
    let all = subcommands(&b);
    assert!(all.len() > 25, "{all:?}");
    for words in all {
        let help = |flag: &str| {
            let mut c = longhaul(&b.client);
            c.args(&words).arg(flag);
            c
        };
        let o = run(&mut help("--help"));
        assert!(o.status.success() && String::from_utf8_lossy(&o.stdout).contains("Usage:"), "{words:?}");
        fails_well(&|| help(if words == ["ls"] { "--help" } else { "-h" }));
        let o = run(help("--no-such-flag").stderr(closed_pipe()));
        assert_eq!(o.status.code(), Some(2), "{words:?}");
    }
    fails_well(&|| b.client(&["--version"]));
    fails_well(&|| b.client(&["help", "put"]));
}

#[test]
fn commands_without_a_connection_survive_outputs_that_fail() {
    let b = Bench::new();
    fs::write(b.path("policy"), "").unwrap();
    fs::write(b.path("bad"), "nonsense = 1\n").unwrap();
    let (policy, bad) = (b.path("policy"), b.path("bad"));
    let (policy, bad) = (policy.to_str().unwrap(), bad.to_str().unwrap());
    for args in [
        &["lab", "list"][..],
        &["lab", "list", "--keys"],
        &["lab", "list", "fair"],
        &["lab", "list", "fair", "--cells"],
        &["cc", "list"],
        &["cc", "describe"],
        &["cc", "describe", "cubic"],
        &["cc", "show"],
        &["cc", "show", "--json"],
        &["cc", "status"],
        &["cc", "policy", "built-in"],
        &["cc", "policy", "check", policy],
        &["cc", "policy", "check", "--json", bad],
        &["cc", "policy", "explain", "*->10.2.0.7", "qos=ordinary"],
        &["keys", "show"],
        &["keys", "list"],
        &["keys", "fingerprint"],
        &["keys", "token"],
        &["sim", "steady", "--seconds", "1"],
        &["sim", "swarm", "--seeds", "0..1", "--json"],
    ] {
        fails_well(&|| {
            let mut c = b.client(args);
            c.env("LONGHAUL_RUN", b.path("run"));
            c
        });
    }
}

#[test]
fn transfers_keep_their_status_where_standard_output_fails() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("file"), bytes(1, 100_000)).unwrap();
    fs::create_dir_all(b.path("srv/many")).unwrap();
    for i in 0..5_000 {
        fs::write(b.path("srv/many").join(format!("{i:05}")), b"").unwrap();
    }
    let (file, url, many) = (b.path("file"), server.url("there"), server.url("many"));
    let (file, back) = (file.to_str().unwrap(), b.path("back"));
    let back = back.to_str().unwrap();
    let known = b.run(&["put", "--accept-new", "-q", file, &url]);
    assert!(known.status.success(), "{}", stderr(&known));
    fails_well(&|| b.client(&["put", "--json", "--all", file, &url]));
    fails_well(&|| b.client(&["get", "--json", "--all", &url, back]));
    fails_well(&|| b.client(&["get", "--json", &server.url("missing"), back]));
    fails_well(&|| b.client(&["ls", &many]));
    fails_well(&|| b.client(&["ls", "--json", &many]));
    assert_eq!(fs::read(back).unwrap(), bytes(1, 100_000));
    // What is said on standard error only.
    let o = run(b.client(&["put", "-v", "--all", file, &url]).stderr(closed_pipe()));
    assert!(o.status.success());

    let perf = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    let measure = ["perf", "client", &perf.address, "--accept-new", "-n", "1MiB"];
    fails_well(&|| b.client(&measure));
    fails_well(&|| b.client(&[&measure[..], &["--json"]].concat()));
}

#[test]
fn listing_ends_when_its_reader_closes_the_pipe() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("srv/many")).unwrap();
    for i in 0..20_000 {
        fs::write(b.path("srv/many").join(format!("{i:05}")), b"").unwrap();
    }
    let program = env!("CARGO_BIN_EXE_longhaul");
    let line =
        format!("'{program}' ls --accept-new {} | head -1; echo ${{PIPESTATUS[0]}}", server.url("many"));
    let o = Command::new("bash")
        .args(["-c", &line])
        .env("LONGHAUL_HOME", &b.client)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&o.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with(" 00000") && lines[1] == "0", "{said} {}", stderr(&o));
    assert!(o.stderr.is_empty() || stderr(&o).contains("known host"), "{}", stderr(&o));
}

#[test]
fn servers_and_the_relay_survive_outputs_that_fail() {
    let b = Bench::new();
    fs::create_dir(b.path("srv")).unwrap();
    let folder = b.path("srv");
    for args in [
        &["serve", folder.to_str().unwrap(), "--json", "--listen", "127.0.0.1:0", "-v"][..],
        &["perf", "server", "--json", "--listen", "127.0.0.1:0", "-v"],
        &["wan", "relay", "--json", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--interval", "1s"],
    ] {
        for (lost, code) in [(closed_pipe as fn() -> Stdio, 0), (full, 7)] {
            // Whether it serves yet, nobody is told: the control socket shows it, or the port.
            let run = b.path("run");
            let mut child = longhaul(&b.server)
                .args(args)
                .env("LONGHAUL_RUN", &run)
                .stdout(lost())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut err = std::io::BufReader::new(child.stderr.take().unwrap());
            std::io::BufRead::read_line(&mut err, &mut line).unwrap();
            // Signals are waited for from soon after the first line on; before that, one ends it with no code.
            let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
            let caught = || {
                let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
                let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:\t")).unwrap().to_owned();
                u64::from_str_radix(&mask, 16).unwrap() >> 14 & 1 == 1
            };
            while !caught() {
                std::thread::yield_now();
            }
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            let mut said = String::new();
            std::io::Read::read_to_string(&mut err, &mut said).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.code(), Some(code), "{args:?}: {line}{said}");
            assert!(!said.contains("panicked"), "{said}");
            assert_eq!(
                said.contains("standard output") || line.contains("standard output"),
                code == 7,
                "{said}"
            );
        }
    }
}

#[test]
fn outputs_closed_before_the_start_are_no_failure() {
    let b = Bench::new();
    let program = env!("CARGO_BIN_EXE_longhaul");
    for closed in [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        for args in ["keys show", "lab list --keys", "--help"] {
            let line = format!("'{program}' {args} {closed}");
            let mut c = Command::new("sh");
            let o = c.args(["-c", &line]).env("LONGHAUL_HOME", &b.client).output().unwrap();
            assert_eq!(o.status.code(), Some(0), "{line}: {}", stderr(&o));
        }
    }
    let o = b.run(&["keys", "show"]);
    assert!(o.status.success());
    let o = b.run(&["cc", "policy", "explain", "--json", "*->10.2.0.7", "qos=ordinary"]);
    json(&o);
}
