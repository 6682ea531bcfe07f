//! Warns when the chosen processors are at another NUMA node than the network adapter.
//!
//! Memory comes from the node of the thread that touches it first, which is right for threads that stay where they are. What
//! a user can get wrong with `--cores` is the adapter's node: then every packet crosses between nodes. That is said, once.

use std::path::Path;
use std::sync::Once;

/// Entries of a folder of the system that are looked at: more than there are processors or interfaces.
const MAX_ENTRIES: usize = 8_192;

/// Warns if no adapter is at a node of the first of these processors, the loop's.
pub(crate) fn warn_of_remote_adapters(cores: &[usize]) {
    static SAID: Once = Once::new();
    if let Some(words) = cores.first().and_then(|c| far_adapters(Path::new("/sys"), *c)) {
        SAID.call_once(|| tracing::warn!("{words}"));
    }
}

/// In words, with a way out; `None` where all is well, where there is one node only, or nothing is known.
fn far_adapters(sys: &Path, core: usize) -> Option<String> {
    let nodes = names(&sys.join("devices/system/node")).filter(|n| number(n, "node").is_some()).count();
    let of_core =
        names(&sys.join(format!("devices/system/cpu/cpu{core}"))).find_map(|n| number(&n, "node"))?;
    // Virtual interfaces have no device, and those whose node is not known say -1.
    let adapters: Vec<(String, usize)> = names(&sys.join("class/net"))
        .filter_map(|n| {
            let of = |file: &str| std::fs::read_to_string(sys.join("class/net").join(&n).join(file)).ok();
            let up = of("operstate")?.trim() == "up";
            let node = of("device/numa_node")?.trim().parse().ok()?;
            up.then_some((n, node))
        })
        .collect();
    let (name, node) = adapters.first()?;
    if nodes < 2 || adapters.iter().any(|(_, node)| *node == of_core) {
        return None;
    }
    let list = std::fs::read_to_string(sys.join(format!("devices/system/node/node{node}/cpulist"))).ok()?;
    Some(format!(
        "processor {core} is at memory node {of_core}, but the adapter {name} at node {node}: every packet crosses between \
         them; processors near the adapter are {} (--cores)",
        list.trim()
    ))
}

fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES);
    let mut names: Vec<_> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names.into_iter()
}

/// `node3` is 3.
fn number(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with two nodes of two processors each, and these adapters.
    fn sys(adapters: &[(&str, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: String, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (node, list) in [(0, "0-1\n"), (1, "2-3\n")] {
            write(format!("devices/system/node/node{node}/cpulist"), list);
            for core in [2 * node, 2 * node + 1] {
                write(format!("devices/system/cpu/cpu{core}/node{node}/cpulist"), list);
            }
        }
        write("class/net/lo/operstate".into(), "unknown\n");
        for (name, state, node) in adapters {
            write(format!("class/net/{name}/operstate"), state);
            write(format!("class/net/{name}/device/numa_node"), node);
        }
        dir
    }

    #[test]
    fn adapter_at_another_node_is_reported_with_its_processors() {
        let s = sys(&[("eth0", "up\n", "1\n"), ("eth1", "down\n", "0\n")]);
        let words = far_adapters(s.path(), 0).unwrap();
        assert!(words.contains("eth0") && words.contains("node 1") && words.contains("2-3"), "{words}");
        assert_eq!(far_adapters(s.path(), 3), None);
        // One that is near is enough: which of them is used, routes tell.
        let s = sys(&[("eth0", "up\n", "1\n"), ("eth1", "up\n", "0\n")]);
        assert_eq!((far_adapters(s.path(), 0), far_adapters(s.path(), 2)), (None, None));
    }

    #[test]
    fn unknown_topology_yields_no_warning() {
        let s = sys(&[("eth0", "up\n", "-1\n")]);
        assert_eq!((far_adapters(s.path(), 0), far_adapters(s.path(), 99)), (None, None));
        let s = sys(&[("eth0", "up\n", "1\n")]);
        std::fs::remove_dir_all(s.path().join("devices/system/node/node0")).unwrap();
        assert_eq!(far_adapters(s.path(), 0), None, "one node only");
        assert_eq!(far_adapters(Path::new("/nonexistent"), 0), None);
    }
}
