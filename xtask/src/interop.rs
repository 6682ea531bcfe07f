//! Interoperation with the kernel's siw: what the host needs, the guest, and the matrix against it (`interop/`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{self, command, output, root, run, succeeds, target_dir};

/// What the guest and the matrix are made with: a program, and the package of Debian 12 that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("gcc-12", "gcc-12"),
    ("ip", "iproute2"),
    ("make", "make"),
    ("strip", "binutils"),
    ("unshare", "util-linux"),
    ("xz", "xz-utils"),
];
/// What the guest is made from, from the root.
const RECIPE: [&str; 3] = ["interop/siw/build.sh", "interop/siw/init", "interop/siw/solicited.c"];
/// What says that the guest was built to the end.
const DONE: &str = "done";

/// Builds the guest if need be and runs the matrix; `args` go to it. Where no guest can be had, says why, and that is
/// no failure.
///
/// # Errors
/// The guest cannot be built, or a row fails.
pub fn run_matrix(args: &[String]) -> Result<()> {
    if let Err(reason) = prepare() {
        println!("SKIPPED, there is no guest to be had here: {reason:#}");
        return Ok(());
    }
    let cache = target_dir().join("interop");
    let guest = build_guest(&cache)?;
    // As the tests are built: with assertions, and fast enough for an emulated peer.
    process::build_all()?;
    let program = target_dir().join("debug/longhaul-interop");
    // What the matrix makes, devices and processes, goes with its namespaces.
    let mut matrix = command("unshare");
    matrix.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program);
    matrix.arg("--guest").arg(guest).arg("--console").arg(cache.join("console.log")).args(args);
    run(&mut matrix)
}

/// Sees that everything is there, or gets it.
fn prepare() -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the guest is for x86-64");
    ensure!(output(command("id").arg("-u"))?.trim() == "0", "taps and namespaces need root");
    ensure!(succeeds(command("dpkg").arg("--version")), "the guest is made of Debian's packages: no dpkg");
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    ensure!(
        release.contains("VERSION_CODENAME=bookworm"),
        "the guest is made of the packages of Debian 12, and this is another system"
    );
    let in_path = |program: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    };
    let mut missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !in_path(program)).map(|(_, package)| *package).collect();
    if !Path::new("/usr/include/stdio.h").exists() {
        missing.push("libc6-dev");
    }
    let lists = std::fs::read_dir("/var/lib/apt/lists").is_ok_and(|mut l| {
        l.any(|entry| entry.is_ok_and(|e| e.file_name().to_string_lossy().contains("Packages")))
    });
    if !lists || !missing.is_empty() {
        run(command("apt-get").args(["update", "-qq"])).context("apt has no archive")?;
    }
    if !missing.is_empty() {
        println!("installing {}", missing.join(" "));
        run(command("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&missing))
        .context("packages cannot be installed")?;
    }
    // What cannot be in a container: namespaces and taps.
    let tap = "test -e /dev/net/tun || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; } && \
               unshare --net --pid --fork --mount-proc ip tuntap add lhprobe mode tap";
    ensure!(succeeds(command("sh").args(["-c", tap])), "taps in network namespaces cannot be made here");
    Ok(())
}

/// The folder of the guest that the recipe makes; builds it unless it is there.
fn build_guest(cache: &Path) -> Result<PathBuf> {
    let mut recipe = Vec::new();
    for file in RECIPE {
        recipe.extend(std::fs::read(root().join(file)).with_context(|| format!("cannot read {file}"))?);
    }
    let guest = cache.join(format!("guest-{:016x}", fingerprint(&recipe)));
    if guest.join(DONE).exists() {
        return Ok(guest);
    }
    println!("building the guest from Debian's packages into {}", guest.display());
    let start = process::now();
    let mut build = command("bash");
    build.arg(root().join(RECIPE[0])).arg(cache).arg(&guest);
    if run(&mut build).is_err() {
        // Lists of packages grow old: what they name may be gone from the archive.
        run(command("apt-get").args(["update", "-qq"])).context("apt has no archive")?;
        run(&mut build)?;
    }
    std::fs::write(guest.join(DONE), "")?;
    println!("the guest was built in {:.0} s", start.elapsed().as_secs_f64());
    Ok(guest)
}

/// Tells recipes apart (FNV-1a).
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_distinguished() {
        // The published values of the function.
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn the_recipe_is_there() {
        assert!(RECIPE.iter().all(|file| root().join(file).exists()));
    }
}
