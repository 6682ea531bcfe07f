//! Programs for verbs as the distribution ships them, over Longhaul, between two hosts in network namespaces.

#![allow(clippy::disallowed_methods, reason = "it waits for programs that run")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::ffi;
use crate::packages::{self, Tool};
use crate::process::{cargo, command, now, run, succeeds, target_dir};

const TOOLS: &[Tool] = &[
    Tool { needs: "ibv_rc_pingpong", package: "ibverbs-utils" },
    Tool { needs: "ib_write_bw", package: "perftest" },
    Tool { needs: "ip", package: "iproute2" },
];

/// A program: what each end is called with. `HOST` in the client's arguments is the server's address; without a client it is run
/// alone.
struct Row {
    server: &'static str,
    client: Option<&'static str>,
    /// What the output of the last one must contain.
    says: &'static str,
    /// Run in CI.
    brief: bool,
}

const fn alone(command: &'static str, says: &'static str) -> Row {
    Row { server: command, client: None, says, brief: true }
}
const fn pair(command: &'static str, brief: bool) -> Row {
    Row { server: command, client: Some(command), says: "", brief }
}

const ROWS: &[Row] = &[
    alone("ibv_devices", "longhaul0"),
    alone("ibv_devinfo -v", "PORT_ACTIVE"),
    pair("ibv_rc_pingpong -g 0", true),
    pair("ibv_rc_pingpong -g 0 -e", true),
    pair("ibv_rc_pingpong -g 0 -c -s 70000 -n 100", true),
    pair("ibv_uc_pingpong -g 0", true),
    pair("ibv_uc_pingpong -g 0 -e", false),
    pair("ibv_ud_pingpong -g 0", true),
    pair("ibv_ud_pingpong -g 0 -e -s 4096", false),
    pair("ibv_srq_pingpong -g 0", true),
    pair("ibv_srq_pingpong -g 0 -e", true),
    pair("ib_write_bw -n 1000", true),
    pair("ib_write_bw -a -n 100", false),
    pair("ib_write_bw -n 500 -q 4 -b", true),
    pair("ib_write_bw -n 500 -c UC", false),
    pair("ib_write_bw -n 500 --use_old_post_send", true),
    pair("ib_write_lat -n 300", true),
    pair("ib_write_lat -a -n 30", false),
    pair("ib_read_bw -n 1000", true),
    pair("ib_read_bw -a -n 100", false),
    pair("ib_read_lat -n 300", true),
    pair("ib_atomic_bw -n 1000 -A FETCH_AND_ADD", true),
    pair("ib_atomic_bw -n 500 -A CMP_AND_SWAP -q 4 -b", false),
    pair("ib_atomic_lat -n 300 -A CMP_AND_SWAP", true),
    pair("ib_send_bw -n 1000", true),
    pair("ib_send_bw -a -n 100", false),
    pair("ib_send_bw -n 500 -e", true),
    pair("ib_send_bw -n 500 -b -q 3", false),
    pair("ib_send_bw -n 500 --use-srq", true),
    pair("ib_send_bw -n 500 -c UC", false),
    pair("ib_send_bw -n 1000 -c UD -s 2048", true),
    pair("ib_send_lat -n 300 -c UD", true),
    pair("ib_send_lat -n 300", true),
    pair("ib_send_lat -n 300 -e", false),
    pair("ib_send_lat -a -n 30", false),
];

/// What a program may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a server has to come up before its client asks.
const HEAD_START: Duration = Duration::from_millis(600);

/// All rows.
///
/// # Errors
/// Programs that failed, by name.
pub fn run_all() -> Result<()> {
    run_rows(|_| true)
}

/// Those of CI.
///
/// # Errors
/// As [`run_all`].
pub fn run_briefly() -> Result<()> {
    run_rows(|r| r.brief)
}

fn run_rows(takes: impl Fn(&Row) -> bool) -> Result<()> {
    packages::need(TOOLS)?;
    run(cargo().args(["build", "--quiet", "-p", "longhaul"]))?;
    ffi::build("dev")?;
    let hosts = Hosts::up()?;
    let mut failed = Vec::new();
    for row in ROWS.iter().filter(|r| takes(r)) {
        let start = now();
        let outcome = hosts.run(row);
        let seconds = start.elapsed().as_secs_f64();
        match &outcome {
            Ok(()) => println!("ok     {seconds:6.1} s  {}", row.server),
            Err(e) => {
                println!("FAILED {seconds:6.1} s  {}\n{e:#}", row.server);
                failed.push(row.server);
            }
        }
    }
    ensure!(failed.is_empty(), "{} programs failed: {}", failed.len(), failed.join(", "));
    Ok(())
}

/// Two network namespaces, joined by a cable.
struct Hosts {
    names: [String; 2],
    folder: PathBuf,
}

const ADDRESSES: [&str; 2] = ["10.9.8.1", "10.9.8.2"];

impl Hosts {
    fn up() -> Result<Hosts> {
        let id = std::process::id();
        let folder = target_dir().join(format!("unmodified-{id}"));
        std::fs::create_dir_all(&folder)?;
        let hosts = Hosts { names: [format!("lhu{id}a"), format!("lhu{id}b")], folder };
        let [a, b] = &hosts.names;
        let ip = |args: &str| {
            run(command("ip").args(args.split_whitespace())).context("network namespaces need root")
        };
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add lhu0 netns {a} type veth peer name lhu0 netns {b}"))?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev lhu0"))?;
            ip(&format!("-n {name} link set lhu0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// Starts a program on a host; what it says goes into a file.
    fn start(&self, host: usize, line: &str) -> Result<(Child, PathBuf)> {
        let said = self.folder.join(format!("{host}.txt"));
        let out = std::fs::File::create(&said)?;
        let longhaul = target_dir().join("debug/longhaul");
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.names[host]]).arg(longhaul).args(["run", "--"]);
        c.args(line.replace("HOST", ADDRESSES[1]).split_whitespace());
        c.env("LONGHAUL_HOME", &self.folder).current_dir(&self.folder);
        c.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        Ok((c.spawn().with_context(|| format!("cannot start {line}"))?, said))
    }

    fn run(&self, row: &Row) -> Result<()> {
        let (mut server, server_said) = self.start(1, row.server)?;
        let Some(client) = row.client else {
            return finish(&mut server, &server_said, row.says);
        };
        std::thread::sleep(HEAD_START);
        let started = self.start(0, &format!("{client} HOST"));
        let done =
            started.and_then(|(mut client, said)| finish(&mut client, &said, row.says).context("the client"));
        if done.is_err() {
            let _ = server.kill();
        }
        done.and(finish(&mut server, &server_said, "").context("the server"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            succeeds(command("ip").args(["netns", "del", name]));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a program's end, which must be status 0.
fn finish(child: &mut Child, said: &Path, says: &str) -> Result<()> {
    let start: Instant = now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = std::fs::read_to_string(said).unwrap_or_default();
    let end: Vec<&str> = text.lines().rev().take(6).collect();
    let end = end.into_iter().rev().collect::<Vec<_>>().join("\n    ");
    let status =
        status.with_context(|| format!("not over after {} s; it said:\n    {end}", PATIENCE.as_secs()))?;
    ensure!(status.success(), "ended with {status}; it said:\n    {end}");
    ensure!(text.contains(says), "it did not say `{says}`, but:\n    {end}");
    Ok(())
}
