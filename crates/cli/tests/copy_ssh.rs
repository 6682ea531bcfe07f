//! `longhaul copy` where ssh reaches one or both machines, with a real sshd for each. Without openssh-server and openssh-client the tests
//! say so and pass: see the list of skips in CONTRIBUTING.md.

mod common;
#[path = "common/sshd.rs"]
mod sshd;

use common::{Bench, Server, bytes, expect, json, longhaul, mixed_tree, stderr, tree};
use sshd::{SKIPPED, Sshd};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A client, and two machines that ssh reaches: alpha and beta.
struct Three {
    bench: Bench,
    alpha: Sshd,
    beta: Sshd,
}

impl Three {
    fn new() -> Option<Three> {
        let bench = Bench::new();
        let start = |name: &str| {
            let folder = bench.path(name);
            fs::create_dir(&folder).unwrap();
            Sshd::start(&folder)
        };
        let (Some(alpha), Some(beta)) = (start("alpha"), start("beta")) else {
            println!("{SKIPPED}");
            return None;
        };
        // One configuration with both of them.
        let of = |name: &str| {
            let text = fs::read_to_string(bench.path(name).join("ssh_config")).unwrap();
            let own = text.split("Host shared").next().unwrap().to_owned();
            own.replace("Host tower", &format!("Host {name}"))
        };
        fs::write(bench.path("ssh_config"), format!("{}{}", of("alpha"), of("beta"))).unwrap();
        Some(Three { bench, alpha, beta })
    }
    fn path(&self, name: &str) -> PathBuf {
        self.bench.path(name)
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut c = longhaul(&self.bench.client);
        let rsh = format!("ssh -F {}", self.path("ssh_config").display());
        c.args(["copy", "--accept-new", "-e", &rsh]).args(args).current_dir(self.bench.dir.path());
        c
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
    fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
    fn far_ends_go(&self) {
        for _ in 0..600 {
            if self.alpha.far_ends().is_empty() && self.beta.far_ends().is_empty() {
                return;
            }
            wait_ms(100);
        }
        panic!("far ends stay: {:?} {:?}", self.alpha.far_ends(), self.beta.far_ends());
    }
    /// A server that knows the client, with a folder.
    fn serve(&self, folder: &str, args: &[&str]) -> Server {
        self.bench.serve(folder, args)
    }
}

#[expect(clippy::disallowed_methods, reason = "tests wait for other processes")]
fn wait_ms(n: u64) {
    std::thread::sleep(Duration::from_millis(n));
}

fn kill(pids: &[i32], signal: rustix::process::Signal) {
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(*pid).unwrap();
        let _ = rustix::process::kill_process(pid, signal); // it may be gone
    }
}

#[test]
fn tree_is_copied_between_machines_over_ssh() {
    let Some(t) = Three::new() else { return };
    mixed_tree(&t.alpha.home.join("data"));
    let o = t.run(&["--json", "alpha:data/", "beta:results"]);
    expect(&o, 0);
    assert_eq!(tree(&t.alpha.home.join("data")), tree(&t.beta.home.join("results")));
    let said = json(&o);
    let files = said["transfer"]["totals"]["files"].as_u64().unwrap();
    assert!(files > 200 && said["transfer"]["progress"]["files_confirmed"] == files, "{said}");
    let again = t.run(&["alpha:data/", "beta:results"]);
    expect(&again, 0);
    assert!(stderr(&again).contains("up to date"), "{}", stderr(&again));
    t.far_ends_go();
    // What is missing is named, the rest goes.
    let o = t.run(&["--json", "alpha:data/script", "alpha:gone", "beta:some/"]);
    expect(&o, 1);
    assert_eq!(json(&o)["transfer"]["progress"]["errors"][0]["path"], "gone");
    assert!(t.beta.home.join("some/script").exists());
}

#[test]
fn copy_between_a_server_and_an_ssh_host_works() {
    let Some(t) = Three::new() else { return };
    mixed_tree(&t.alpha.home.join("data"));
    let s = t.serve("srv", &["--allow-copy"]);
    expect(&t.run(&["alpha:data", &s.url("in/")]), 0);
    assert_eq!(tree(&t.alpha.home.join("data")), tree(&t.path("srv/in/data")));
    expect(&t.run(&[&s.url("in/data/"), "beta:back"]), 0);
    assert_eq!(tree(&t.alpha.home.join("data")), tree(&t.beta.home.join("back")));
    t.far_ends_go();
    let o = t.run(&["-d", &s.url("in/data/"), "beta:back"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("cannot detach"), "{}", stderr(&o));
}

#[test]
fn unreachable_destination_error_names_the_ports() {
    let Some(t) = Three::new() else { return };
    fs::write(t.alpha.home.join("file"), "content").unwrap();
    let o = t.run(&["--json", "--to-address", "127.0.0.1:9", "alpha:file", "beta:in/"]);
    expect(&o, 3);
    let said = json(&o)["message"].as_str().unwrap().to_owned();
    assert!(said.contains("cannot reach") && said.contains("--port-range"), "{said}");
    t.far_ends_go();
    assert!(!t.beta.home.join("in/file").exists());
}

#[test]
fn interrupted_copy_leaves_no_process_and_resumes() {
    let Some(t) = Three::new() else { return };
    let want = bytes(3, 192 << 20);
    fs::write(t.alpha.home.join("big"), &want).unwrap();
    let copy = ["--json", "alpha:big", "beta:in/"];
    let part = t.beta.home.join("in/.big.longhaul-part");
    let written = || fs::metadata(&part).and_then(|m| m.modified()).ok();
    for round in 0..4 {
        let before = written();
        let mut client = t.start(&copy);
        // Until something has arrived.
        while written() == before && client.try_wait().unwrap().is_none() {
            wait_ms(2);
        }
        // The key is on no command line.
        for pid in t.alpha.far_ends() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(
                line.split(|b| *b == 0).all(|word| word.len() < 60),
                "{}",
                String::from_utf8_lossy(&line)
            );
        }
        match round {
            0 => kill(&[client.id() as i32], rustix::process::Signal::INT),
            1 => kill(&t.alpha.far_ends(), rustix::process::Signal::KILL),
            2 => kill(&t.beta.far_ends(), rustix::process::Signal::KILL),
            _ => client.kill().unwrap(),
        }
        let o = client.wait_with_output().unwrap();
        assert_ne!(o.status.code(), Some(0), "round {round} was not interrupted: {o:?}");
        assert!(round == 3 || o.status.code() == Some(5), "round {round}: {o:?}");
        t.far_ends_go();
        assert!(!t.beta.home.join("in/big").exists(), "it has its name after round {round}");
    }
    let o = t.run(&copy);
    expect(&o, 0);
    assert!(fs::read(t.beta.home.join("in/big")).unwrap() == want, "other bytes");
}
