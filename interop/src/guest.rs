//! The guest: a kernel in an emulated machine, on two virtual cables in this process's network namespace.
//!
//! One cable carries siw, the other what we tell the guest to do, so that loss on the first one does not touch the second.

use crate::clock;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Our end and the guest's of the cable for siw.
pub const DATA: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// Likewise, of the cable for commands.
const CONTROL: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];
/// Where the guest takes commands.
const SHELL: u16 = 5555;
/// How long booting may take: three seconds when nothing else runs.
const BOOT: Duration = Duration::from_secs(180);
/// Memory of the guest in megabytes.
const MEMORY: &str = "768";
/// What the guest's first process prints when it is ready.
const READY: &str = "GUEST-READY";
/// What the guest's kernel says when it is broken.
const FAULTS: [&str; 4] = ["kernel BUG at", "BUG: ", "Oops", "Kernel panic"];
/// What its line begins with that says how a script ended.
const ENDED: &str = "ended with ";

/// A guest that runs; stopped when dropped.
pub struct Guest {
    qemu: Child,
    console: PathBuf,
}

/// What a script printed, and its exit code.
#[derive(Debug)]
pub struct Output {
    pub text: String,
    pub code: i32,
}

/// A script that runs in the guest.
pub struct Task(JoinHandle<Result<Output>>);

impl Task {
    /// Waits until it ends.
    pub fn wait(self) -> Result<Output> {
        self.0.join().map_err(|_| anyhow::anyhow!("the thread of a script ended in a panic"))?
    }
    /// Waits until it ends, which has to be with success; gives what it printed.
    pub fn succeeds(self) -> Result<String> {
        let o = self.wait()?;
        ensure!(o.code == 0, "in the guest: exit code {}: {}", o.code, last_lines(&o.text));
        Ok(o.text)
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

impl Guest {
    /// Boots the guest that was built into `folder`. `console` takes what its console says.
    pub fn boot(folder: &Path, console: &Path) -> Result<Guest> {
        ip("link set lo up")?;
        for (name, address) in [("lhdata", DATA[0]), ("lhcontrol", CONTROL[0])] {
            ip(&format!("tuntap add {name} mode tap"))?;
            ip(&format!("addr add {address}/24 dev {name}"))?;
            ip(&format!("link set {name} up"))?;
        }
        // The last run's would look like this one's.
        std::fs::write(console, "").with_context(|| format!("cannot write {}", console.display()))?;
        let append = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check lh.data={}/24 lh.control={}/24",
            DATA[1], CONTROL[1]
        );
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-M", "q35", "-accel", "tcg,thread=multi,tb-size=512"])
            // What an emulated processor is slow at.
            .args(["-cpu", "max,-erms,-fsrm,-la57,-smap,-smep,-pku,-pks", "-m", MEMORY])
            // One processor with room for a second: QEMU 7.2 leaves out the barriers of a guest that can have only one,
            // though its own thread reads the guest's queues meanwhile. Then a frame is overlooked at some time, and the
            // guest's card sends nothing ever after.
            .args(["-smp", "1,maxcpus=2"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-netdev", "tap,id=data,ifname=lhdata,script=no,downscript=no"])
            .args(["-device", "virtio-net-pci,netdev=data,mac=52:54:00:77:00:02,romfile="])
            .args(["-netdev", "tap,id=control,ifname=lhcontrol,script=no,downscript=no"])
            .args(["-device", "virtio-net-pci,netdev=control,mac=52:54:00:78:00:02,romfile="])
            .arg("-kernel")
            .arg(folder.join("vmlinux"))
            .arg("-initrd")
            .arg(folder.join("initramfs.cpio"))
            .args(["-append", &append]);
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start QEMU")?;
        let mut guest = Guest { qemu, console: console.to_owned() };
        let start = clock::now();
        while !std::fs::read_to_string(console).unwrap_or_default().contains(READY) {
            if let Some(status) = guest.qemu.try_wait()? {
                bail!("QEMU ended with {status} while the guest booted");
            }
            ensure!(
                clock::now() - start < BOOT,
                "the guest did not boot in {BOOT:?}; see {}",
                console.display()
            );
            clock::pause(Duration::from_millis(50));
        }
        Ok(guest)
    }

    /// Fails when the guest's kernel has told of a fault of its own.
    pub fn survived(&self) -> Result<()> {
        let log = std::fs::read_to_string(&self.console).unwrap_or_default();
        let fault = log.lines().find(|line| FAULTS.iter().any(|word| line.contains(word)));
        ensure!(
            fault.is_none(),
            "the guest's kernel: {}; see {}",
            fault.unwrap_or(""),
            self.console.display()
        );
        Ok(())
    }

    /// Starts a shell script in the guest, which is ended after `limit`.
    pub fn start(&self, script: &str, limit: Duration) -> Task {
        let script = format!(
            "exec 2>&1\ncd /tmp\ntimeout {} sh <<'END-OF-SCRIPT'\n{script}\nEND-OF-SCRIPT\necho; echo {ENDED}$?\nexit\n",
            limit.as_secs().max(1)
        );
        // It has the same time again before it is given up here.
        Task(spawn(move || run(&script, limit * 2 + Duration::from_secs(20))))
    }

    /// Runs a shell script in the guest to its end, which has to be with success.
    pub fn run(&self, script: &str, limit: Duration) -> Result<String> {
        self.start(script, limit).succeeds()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn run(script: &str, limit: Duration) -> Result<Output> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((CONTROL[1], SHELL)), limit)
        .context("the guest takes no commands")?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(script.as_bytes())?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).context("the guest does not answer")?;
    let _ = stream.shutdown(Shutdown::Both);
    let all = String::from_utf8_lossy(&all);
    let (text, code) = all.trim_end().rsplit_once(ENDED).context("a script in the guest was cut off")?;
    Ok(Output { text: text.trim_end().to_owned(), code: code.trim().parse()? })
}

fn ip(args: &str) -> Result<()> {
    let status = Command::new("ip").args(args.split(' ')).status().context("cannot start `ip`")?;
    ensure!(status.success(), "`ip {args}` ended with {status}");
    Ok(())
}
