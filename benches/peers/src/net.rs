//! The networks that peers are compared over: loopback, and veth between two namespaces.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

/// Names of the namespaces; the devices in them are called `lhb`.
const NAMESPACES: [&str; 2] = ["lhbench-a", "lhbench-b"];

/// A kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// veth, super-packets pass whole.
    Veth,
    /// This machine's loopback, whose MTU is 64 KiB.
    Loopback,
    /// veth; the sender's kernel cuts, the receiver's joins: nearest to a physical adapter.
    Offgro,
    /// veth; cut and not joined.
    Vethoff,
}

impl Kind {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Veth => "veth on",
            Kind::Loopback => "loopback",
            Kind::Offgro => "veth offgro",
            Kind::Vethoff => "veth off",
        }
    }
}

/// A network that is up; dropped, it is gone.
pub struct Net {
    veth: bool,
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command")?;
    let out = Command::new(program).args(words).output();
    let out =
        out.with_context(|| format!("`{program}` is needed: apt-get install iproute2 ethtool util-linux"))?;
    ensure!(out.status.success(), "`{line}`: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

impl Net {
    /// Brings one up.
    ///
    /// # Errors
    /// No root, `ip` or `ethtool` missing, or namespaces that are there already.
    pub fn up(kind: Kind, mtu: u32) -> Result<Net> {
        if kind == Kind::Loopback {
            return Ok(Net { veth: false });
        }
        if matches!(kind, Kind::Offgro | Kind::Vethoff) {
            // What `ip` cannot find, it does not tell how to get.
            run("ethtool --version")?;
        }
        let [a, b] = NAMESPACES;
        run(&format!("ip netns add {a}")).context("veth needs root")?;
        let net = Net { veth: true };
        run(&format!("ip netns add {b}"))?;
        run(&format!("ip link add lhb netns {a} mtu {mtu} type veth peer name lhb netns {b} mtu {mtu}"))?;
        for (i, name) in NAMESPACES.iter().enumerate() {
            run(&format!("ip -n {name} addr add 10.78.0.{}/24 dev lhb", i + 1))?;
            run(&format!("ip -n {name} link set lhb up"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        let cut = "tso off gso off tx-udp-segmentation off";
        match kind {
            Kind::Veth | Kind::Loopback => {}
            Kind::Offgro => {
                run(&format!("ip netns exec {a} ethtool -K lhb {cut}"))?;
                run(&format!("ip netns exec {b} ethtool -K lhb {cut} gro on"))?;
            }
            Kind::Vethoff => {
                for name in NAMESPACES {
                    run(&format!("ip netns exec {name} ethtool -K lhb {cut} gro off"))?;
                }
            }
        }
        Ok(net)
    }

    /// Where receivers listen.
    pub fn sink(&self) -> IpAddr {
        if self.veth { Ipv4Addr::new(10, 78, 0, 2).into() } else { Ipv4Addr::LOCALHOST.into() }
    }

    /// A program at the sender's (0) or the receiver's (1) end, on cores of its own.
    pub fn command(&self, end: usize, cores: &str, program: &str) -> Command {
        let mut c = Command::new(if self.veth { "ip" } else { "taskset" });
        if self.veth {
            c.args(["netns", "exec", NAMESPACES[end], "taskset"]);
        }
        c.args(["-c", cores, program]);
        c
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.veth {
            for name in NAMESPACES {
                if let Err(e) = run(&format!("ip netns del {name}")) {
                    eprintln!("longhaul-bench: {e:#}");
                }
            }
        }
    }
}
