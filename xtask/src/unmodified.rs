//! Programs for verbs as the distribution ships them, over Longhaul, between two hosts in network namespaces.

#![allow(clippy::disallowed_methods, reason = "it waits for programs that run")]

mod iwarp;
mod mpi;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::packages::{self, Tool};
use crate::process::{command, now, run, succeeds, target_dir};
use crate::{ffi, guides};

const TOOLS: &[Tool] = &[
    Tool { needs: "ibv_rc_pingpong", package: "ibverbs-utils" },
    Tool { needs: "ib_write_bw", package: "perftest" },
    Tool { needs: "rping", package: "rdmacm-utils" },
    Tool { needs: "fi_pingpong", package: "libfabric-bin" },
    Tool { needs: "ucx_perftest", package: "ucx-utils" },
    Tool { needs: "qperf", package: "qperf" },
    Tool { needs: "ip", package: "iproute2" },
];

/// A program: what each end is called with. `HOST` in the arguments is the server's address, which follows those of a client that
/// does not have it, and `OWN` the client's; without a client it is run alone.
struct Row {
    server: &'static str,
    client: Option<&'static str>,
    /// What the output of the last one must contain.
    says: &'static str,
    /// Run in CI.
    brief: bool,
    /// The server goes on until it is ended.
    stays: bool,
    /// What the server has to come up before its client asks.
    head_start: Duration,
    /// Of `longhaul run`, at both ends.
    options: &'static [&'static str],
}

impl Row {
    fn name(&self) -> String {
        let words = self.options.iter().copied().chain([self.client.unwrap_or(self.server)]);
        words.collect::<Vec<_>>().join(" ")
    }
}

const fn alone(command: &'static str, says: &'static str) -> Row {
    Row {
        server: command,
        client: None,
        says,
        brief: true,
        stays: false,
        head_start: HEAD_START,
        options: &[],
    }
}
const fn pair(command: &'static str, brief: bool) -> Row {
    both(command, command, "", brief)
}
/// Ends that are called in different ways.
const fn both(server: &'static str, client: &'static str, says: &'static str, brief: bool) -> Row {
    Row { server, client: Some(client), says, brief, stays: false, head_start: HEAD_START, options: &[] }
}
/// A server for many clients.
const fn served(server: &'static str, client: &'static str, says: &'static str, brief: bool) -> Row {
    Row { stays: true, ..both(server, client, says, brief) }
}
/// UCX, whose programs take a while to start.
macro_rules! ucx {
    ($transports:literal, $test:literal, $brief:literal) => {
        Row {
            head_start: Duration::from_secs(3),
            ..both(
                concat!("env UCX_NET_DEVICES=longhaul0:1 UCX_TLS=", $transports, ",self ucx_perftest"),
                concat!(
                    "env UCX_NET_DEVICES=longhaul0:1 UCX_TLS=",
                    $transports,
                    ",self ucx_perftest HOST -n 300 -w 30 -t ",
                    $test
                ),
                "Final:",
                $brief,
            )
        }
    };
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
    pair("ibv_xsrq_pingpong -g 0", true),
    pair("ibv_xsrq_pingpong -g 0 -e", false),
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
    pair("ib_send_bw -n 500 -c UD -s 1024 --use-srq", false),
    pair("ib_send_bw -n 500 -c XRC", true),
    pair("ib_send_lat -n 300 -c UD", true),
    pair("ib_send_lat -n 300", true),
    pair("ib_send_lat -n 300 -e", false),
    pair("ib_send_lat -a -n 30", false),
    // The connection manager.
    both("rping -s -a HOST -V -C 20 -S 60000", "rping -c -a HOST -V -C 20 -S 60000", "", true),
    both("rping -s -a HOST -q -C 5", "rping -c -a HOST -q -v -C 5", "rdma-ping-4", false),
    served("rping -s -a HOST -P", "rping -c -a HOST -v -C 3", "rdma-ping-2", true),
    both("ucmatose -c 100", "ucmatose -s HOST -c 100", "return status 0", true),
    both("ucmatose -c 20 -C 10 -S 1000", "ucmatose -s HOST -c 20 -C 10 -S 1000", "return status 0", false),
    both("udaddy -c 10 -C 10", "udaddy -s HOST -c 10 -C 10", "return status 0", true),
    // Without a route for groups the address to send from has to be named.
    both("mckey -m 239.1.2.3 -b HOST -C 20", "mckey -m 239.1.2.3 -b OWN -s -C 20", "return status 0", true),
    both(
        "mckey -m 239.1.2.4 -b HOST -C 20 -S 4000 -c 3",
        "mckey -m 239.1.2.4 -b OWN -s -C 20 -S 4000 -c 3",
        "return status 0",
        false,
    ),
    both("rdma_server", "rdma_client -s HOST", "end 0", true),
    both("rdma_xserver", "rdma_xclient -s HOST", "end 0", false),
    both("rdma_xserver -c x", "rdma_xclient -c x -s HOST", "end 0", true),
    served("cmtime", "cmtime -s HOST -c 20", "disconnect", false),
    both("rstream -C 10 -I 100 -S 64", "rstream -s HOST -C 10 -I 100 -S 64", "custom", true),
    both("rstream -T b -C 10 -I 50 -S 65536", "rstream -s HOST -T b -C 10 -I 50 -S 65536", "custom", false),
    both("riostream -C 10 -I 20 -S 65536", "riostream -s HOST -C 10 -I 20 -S 65536", "custom", false),
    served("rcopy", "rcopy /etc/services HOST:copied", "done", true),
    pair("ib_send_bw -R -n 500", true),
    pair("ib_write_bw -R -n 500 -q 4", false),
    pair("ib_read_lat -R -n 100", false),
    pair("ib_atomic_bw -R -n 300", false),
    pair("ib_send_bw -R -n 500 -c UD", false),
    served("qperf", "qperf -cm1 -t 1 HOST rc_lat", "latency", true),
    // libfabric and UCX.
    alone("fi_info -p verbs", "FI_PROTO_RDMA_CM_IB_RC"),
    both("fi_pingpong -p verbs -e msg", "fi_pingpong -p verbs -e msg HOST", "1m", true),
    both("fi_pingpong -p verbs;ofi_rxm -e rdm", "fi_pingpong -p verbs;ofi_rxm -e rdm HOST", "1m", false),
    both("fi_pingpong -p verbs -e dgram", "fi_pingpong -p verbs -e dgram HOST", "1k", false),
    ucx!("rc_verbs,ud_verbs", "tag_lat", true),
    ucx!("rc_verbs,ud_verbs", "tag_bw -s 65536", false),
    ucx!("rc_verbs,ud_verbs", "ucp_put_lat", false),
    ucx!("rc_verbs,ud_verbs", "ucp_put_bw -s 65536", false),
    ucx!("rc_verbs,ud_verbs", "ucp_get", false),
    ucx!("rc_verbs,ud_verbs", "ucp_am_lat", false),
    ucx!("rc_verbs,ud_verbs", "ucp_am_bw -s 65536", false),
    ucx!("rc_verbs,ud_verbs", "ucp_add", false),
    ucx!("rc_verbs,ud_verbs", "ucp_fadd", false),
    ucx!("rc_verbs,ud_verbs", "ucp_swap", false),
    ucx!("rc_verbs,ud_verbs", "ucp_cswap", false),
    ucx!("rc_verbs,ud_verbs", "stream_bw -s 65536", false),
    ucx!("ud_verbs", "tag_lat", false),
    ucx!("ud_verbs", "tag_bw -s 65536", false),
    ucx!("ud_verbs", "ucp_am_lat", false),
    ucx!("ud_verbs", "ucp_put_lat", false),
    ucx!("ud_verbs", "ucp_get", false),
    ucx!("ud_verbs", "ucp_fadd", false),
];

/// What a program may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What four ranks may take, which all poll.
const RANKS_PATIENCE: Duration = Duration::from_secs(300);
/// What a server has to come up before its client asks.
const HEAD_START: Duration = Duration::from_millis(600);

/// All rows.
///
/// # Errors
/// Programs that failed, by name.
pub fn run_all() -> Result<()> {
    run_rows(true)
}

/// Those of CI.
///
/// # Errors
/// As [`run_all`].
pub fn run_briefly() -> Result<()> {
    run_rows(false)
}

fn run_rows(is_full: bool) -> Result<()> {
    if !guides::supported() {
        println!(
            "skipped: the programs run on hosts in network namespaces, which need root and `ip` of iproute2"
        );
        return Ok(());
    }
    packages::need(TOOLS)?;
    let ways: Vec<_> = mpi::WAYS.iter().filter(|w| is_full || w.brief).collect();
    ffi::build("dev")?;
    let hosts = Hosts::up()?;
    let mut failed = Vec::new();
    let mut note = |name: String, start: Instant, outcome: Result<()>| {
        let seconds = start.elapsed().as_secs_f64();
        match &outcome {
            Ok(()) => println!("ok     {seconds:6.1} s  {name}"),
            Err(e) => {
                println!("FAILED {seconds:6.1} s  {name}\n{e:#}");
                failed.push(name);
            }
        }
    };
    for row in ROWS.iter().chain(iwarp::ROWS).filter(|r| is_full || r.brief) {
        let start = now();
        note(row.name(), start, hosts.run(row));
    }
    mpi::prepare(&ways, &hosts.folder, &hosts.names, &longhaul())?;
    for way in ways {
        let start = now();
        note(way.name.to_owned(), start, hosts.run_mpi(way));
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
/// What both ends of the cable are called.
const LINK: &str = "lhu0";

/// The program that starts others.
fn longhaul() -> PathBuf {
    target_dir().join("debug/longhaul")
}

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
        ip(&format!("link add {LINK} netns {a} type veth peer name {LINK} netns {b}"))?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev {LINK}"))?;
            ip(&format!("-n {name} link set {LINK} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// Starts a program on a host; what it says goes into a file.
    fn start(&self, host: usize, line: &str, options: &[&str]) -> Result<(Child, PathBuf)> {
        let said = self.folder.join(format!("{host}.txt"));
        let out = std::fs::File::create(&said)?;
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.names[host]]).arg(longhaul()).arg("run").args(options).arg("--");
        c.args(line.replace("HOST", ADDRESSES[1]).replace("OWN", ADDRESSES[0]).split_whitespace());
        c.env("LONGHAUL_HOME", &self.folder).current_dir(&self.folder);
        c.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        Ok((c.spawn().with_context(|| format!("cannot start {line}"))?, said))
    }

    /// Starts the ranks of an MPI program, from the first host.
    fn run_mpi(&self, way: &mpi::Way) -> Result<()> {
        let said = self.folder.join("mpi.txt");
        let out = std::fs::File::create(&said)?;
        let mut c = Command::new(self.folder.join("enter"));
        c.arg(ADDRESSES[0]).arg(way.command(&self.folder));
        c.env("LONGHAUL_HOME", &self.folder).current_dir(&self.folder);
        c.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        let mut started = c.spawn().with_context(|| format!("cannot start {}", way.name))?;
        finish(&mut started, &said, mpi::SAYS, RANKS_PATIENCE)
    }

    fn run(&self, row: &Row) -> Result<()> {
        let (mut server, server_said) = self.start(1, row.server, row.options)?;
        let Some(client) = row.client else {
            return finish(&mut server, &server_said, row.says, PATIENCE);
        };
        std::thread::sleep(row.head_start);
        let appended = if client.contains("HOST") || client.contains("OWN") { "" } else { " HOST" };
        let started = self.start(0, &format!("{client}{appended}"), row.options);
        let done = started.and_then(|(mut client, said)| {
            finish(&mut client, &said, row.says, PATIENCE).context("the client")
        });
        if row.stays || done.is_err() {
            let _ = server.kill();
        }
        if row.stays && done.is_ok() {
            let _ = server.wait();
            return Ok(());
        }
        done.and(finish(&mut server, &server_said, "", PATIENCE).context("the server"))
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
fn finish(child: &mut Child, said: &Path, says: &str, patience: Duration) -> Result<()> {
    let start: Instant = now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > patience {
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
        status.with_context(|| format!("not over after {} s; it said:\n    {end}", patience.as_secs()))?;
    ensure!(status.success(), "ended with {status}; it said:\n    {end}");
    ensure!(text.contains(says), "it did not say `{says}`, but:\n    {end}");
    Ok(())
}
