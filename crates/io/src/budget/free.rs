//! How much memory this process could still allocate.
//!
//! The least of what the machine has (`MemAvailable`), what its control groups leave (`memory.max` and `memory.high` of its group and
//! of those above; of version 1 the limit), and what its address space leaves (`RLIMIT_AS`).

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Groups above each other that are looked at.
const MAX_GROUPS: usize = 64;

/// Bytes that this process could still have; `u64::MAX` where nothing is known of a limit.
pub fn free_memory() -> u64 {
    free_below(Path::new("/"))
}

/// The same, as the files below `root` say it.
fn free_below(root: &Path) -> u64 {
    let text = |path: &str| read_to_string(root.join(path)).unwrap_or_default();
    let machine = available(&text("proc/meminfo"));
    let groups = text("proc/self/cgroup").lines().filter_map(|l| group_leaves(root, l)).min();
    let space = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let space = space.map(|limit| limit.saturating_sub(mapped(&text("proc/self/statm"))));
    machine.into_iter().chain(groups).chain(space).min().unwrap_or(u64::MAX)
}

/// What `/proc/meminfo` says of memory that can be had without swapping.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of address space in use: the first number of `/proc/self/statm`, in pages.
fn mapped(statm: &str) -> u64 {
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// What the group named by a line of `/proc/self/cgroup`, and those above it, leave.
fn group_leaves(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let path = path.trim_start_matches('/');
    let (mount, limits, used, cache): (_, &[&str], _, _) = match controllers {
        "" => ("sys/fs/cgroup", &["memory.max", "memory.high"], "memory.current", "inactive_file"),
        c if c.split(',').any(|c| c == "memory") => {
            let limits = &["memory.limit_in_bytes"];
            ("sys/fs/cgroup/memory", limits, "memory.usage_in_bytes", "total_inactive_file")
        }
        _ => return None,
    };
    // In a container the path may be that of the host, and what is mounted the group itself: then the names above are looked at.
    let paths = Path::new(path).ancestors().take(MAX_GROUPS).map(|p| root.join(mount).join(p));
    let of = |group: PathBuf| {
        let text = |name: &str| read_to_string(group.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let limit = limits.iter().filter_map(|n| number(n)).min()?;
        let stat = text("memory.stat").unwrap_or_default();
        let cache = stat.lines().find_map(|l| l.strip_prefix(cache)?.strip_prefix(' ')?.parse::<u64>().ok());
        // The page cache of a group gives way as that of the machine does.
        Some(limit.saturating_sub(number(used).unwrap_or(0).saturating_sub(cache.unwrap_or(0))))
    };
    paths.filter_map(of).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }
    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:  8000000 kB\nMemFree: 1000 kB\nMemAvailable:    4000000 kB\n");

    #[test]
    fn machine_memory_applies_without_a_cgroup_limit() {
        assert_eq!(free_below(machine(&[MEMINFO]).path()), 4_096_000_000);
        let group = ("proc/self/cgroup", "0::/user.slice\n");
        let unlimited = ("sys/fs/cgroup/user.slice/memory.max", "max\n");
        assert_eq!(free_below(machine(&[MEMINFO, group, unlimited]).path()), 4_096_000_000);
        assert!(free_memory() > 0 && free_memory() < u64::MAX);
    }

    #[test]
    fn tightest_parent_cgroup_applies_and_its_page_cache_counts_as_free() {
        let v2 = |extra: &[(&str, &str)]| {
            let of = |name: &str| format!("sys/fs/cgroup/a.slice/{name}");
            let names =
                ["memory.max", "memory.current", "b.service/memory.high", "b.service/memory.current"].map(of);
            let mut files = vec![MEMINFO, ("proc/self/cgroup", "0::/a.slice/b.service\n")];
            files.extend(names.iter().map(String::as_str).zip(["3000000", "1000000", "2500000", "900000"]));
            files.extend(extra);
            free_below(machine(&files).path())
        };
        assert_eq!(v2(&[]), 1_600_000);
        assert_eq!(v2(&[("sys/fs/cgroup/a.slice/b.service/memory.max", "1000000")]), 100_000);
        assert_eq!(v2(&[("sys/fs/cgroup/a.slice/b.service/memory.max", "100")]), 0);
        let cache = ("sys/fs/cgroup/a.slice/b.service/memory.stat", "anon 1\ninactive_file 300000\n");
        assert_eq!(v2(&[cache]), 1_900_000);
    }

    #[test]
    fn cgroup_v1_limits_apply_inside_containers() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000"),
        ];
        assert_eq!(free_below(machine(&files).path()), 500_000);
    }
}
