//! Limits of file descriptors, and how they are divided.
//!
//! A stranger can hold a connection by TCP without showing a key, a descriptor each. So those have one half at most, files that are
//! received a quarter, and what else a server needs (its sockets and logs, files that it sends, folders that it lists) the rest.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Where the limit is not known.
const USUAL: u64 = 1_024;
/// Connections by TCP: one in so many descriptors.
const STREAMS: u64 = 2;
/// Files that are received: one in so many.
const FILES: u64 = 4;
/// More than this is not counted on.
const MOST: u64 = 1 << 20;

/// Raises the limit of descriptors to the hard limit. Where the system refuses, the limit stays.
pub fn raise() {
    let mut l = getrlimit(Resource::Nofile);
    if l.current != l.maximum {
        l.current = l.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, l) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}

/// The limit of descriptors.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST)
}

/// How many descriptors incoming TCP connections may use, at least one.
pub fn for_streams() -> usize {
    usize::try_from(limit().max(STREAMS) / STREAMS).unwrap_or(USUAL as usize)
}

/// How many descriptors received files may use.
pub fn for_files() -> u64 {
    limit() / FILES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own, since a limit holds for all of it.
    #[test]
    fn soft_limit_is_raised_to_the_hard_limit_and_divided() {
        const CHILD: &str = "LONGHAUL_TEST_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            let script = "ulimit -Sn 100 && ulimit -Hn 300 && exec \"$0\" \"$@\"";
            let me = std::env::current_exe().unwrap();
            let mut c = std::process::Command::new("sh");
            c.args(["-c", script]).arg(me).args(["the_soft_limit_is_raised", "--nocapture"]);
            let out = c.env(CHILD, "1").output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            return;
        }
        assert_eq!(limit(), 100);
        raise();
        assert_eq!((limit(), for_streams(), for_files()), (300, 150, 75));
        let files: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert_eq!(files.len(), 200);
    }
}
