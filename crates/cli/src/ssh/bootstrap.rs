//! `--bootstrap`: copies this program to a machine where it is not installed.

use super::channel;
use super::command::SshCommand;
use crate::exit::{Code, Failure, Outcome};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

/// The folder at the other end, in its user's home.
const FOLDER: &str = "~/.cache/longhaul";

/// Where the copy is at the other end, as its shell reads it.
pub fn program() -> String {
    format!("{FOLDER}/{}", name())
}

fn name() -> String {
    format!("longhaul-{}", env!("CARGO_PKG_VERSION"))
}

/// Copies this program there, if the other end is of the same kind of machine.
///
/// # Errors
/// Another kind of machine, or what the system there said.
pub fn copy(c: &SshCommand, host: &str) -> Outcome<()> {
    let here = this_machine();
    let (end, out) = channel::run(c, "uname -sm", None)?;
    let said = String::from_utf8_lossy(&out);
    // A shell may have said something before.
    let there = said.lines().last().unwrap_or_default().trim();
    if !end.status.is_some_and(|s| s.success()) {
        let text = format!(
            "cannot copy longhaul to {host}: `uname -sm` failed there; try to copy the program by hand"
        );
        return Err(Failure::line(Code::Connect, text));
    }
    if there != here {
        let text = format!(
            "cannot copy longhaul to {host}: it is for {here}, and {host} says that it is {there}; try one that was built \
             for that, with --remote-program"
        );
        return Err(Failure::line(Code::Usage, text));
    }
    let cannot = |why: String| Failure::system(format!("cannot copy longhaul to {host}: {why}"));
    let file =
        File::open("/proc/self/exe").map_err(|e| cannot(format!("this program cannot be read: {e}")))?;
    let size = file.metadata().map_err(|e| cannot(e.to_string()))?.size();
    err_line!("copying longhaul to {host}, {} ({} MiB)", program(), size >> 20);
    let (end, _) = channel::run(c, &install_script(size), Some(file))?;
    match end.status {
        Some(s) if s.success() => Ok(()),
        _ => Err(Failure::new(
            Code::Connect,
            format!(
                "cannot copy longhaul to {host}: it could not be written to {FOLDER} there, see above; try to copy it by hand"
            ),
        )),
    }
}

/// A script that takes the program from standard input. It has its name only when it is complete: a connection that breaks looks
/// as the end of a file does.
fn install_script(size: u64) -> String {
    let new = "\".new.$$\"";
    format!(
        "sh -c 'umask 077; mkdir -p {FOLDER} && cd {FOLDER} && cat > {new} && test \"$(wc -c < {new})\" -eq {size} && \
         chmod 700 {new} && mv -f {new} {} || {{ rm -f {new}; exit 1; }}'",
        name()
    )
}

/// As `uname -sm` says it.
fn this_machine() -> String {
    let u = rustix::system::uname();
    format!("{} {}", u.sysname().to_string_lossy(), u.machine().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn machine_name_matches_uname() {
        let out = Command::new("uname").arg("-sm").output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), this_machine());
    }

    #[test]
    fn installed_copy_is_named_only_when_complete() {
        let home = tempfile::tempdir().unwrap();
        let copy = |size: u64, content: &[u8]| {
            let mut c = Command::new("sh");
            c.args(["-c", &install_script(size)])
                .env("HOME", home.path())
                .stdin(Stdio::piped())
                .stderr(Stdio::null());
            let mut child = c.spawn().unwrap();
            child.stdin.take().unwrap().write_all(content).unwrap();
            child.wait().unwrap().success()
        };
        let folder = home.path().join(".cache/longhaul");
        assert!(!copy(9, b"12345"));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "something stayed");
        assert!(copy(5, b"12345"));
        assert_eq!(std::fs::read(folder.join(name())).unwrap(), b"12345");
    }
}
