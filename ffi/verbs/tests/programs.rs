//! Programs in C, compiled with the stock header and run with our library in place of the system's.

#![allow(clippy::disallowed_methods, reason = "it runs programs")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");

/// The folder with `libibverbs.so.1`, linked as it is for programs.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["xtask", "ffi", "--profile", "dev"]).current_dir(root);
        // What `cargo test` tells this program about itself would have everything built anew.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_")
                || text.starts_with("CARGO_MANIFEST_")
                || text == "LD_LIBRARY_PATH"
            {
                cargo.env_remove(&name);
            }
        }
        let out = cargo.output().expect("cargo");
        assert!(out.status.success(), "cannot build the library:\n{}", said(&out));
        let path = String::from_utf8_lossy(&out.stdout);
        let path = path.lines().find_map(|l| l.strip_prefix("ffi: ")?.strip_suffix("/libibverbs.so.1"));
        PathBuf::from(path.expect("`cargo xtask ffi` says where the library is"))
    })
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A folder for one test, with a cluster's key.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(folder.path().join("cluster.key"));
        let key = engine::ClusterKey::generate().expect("a key");
        file.and_then(|mut f| f.write_all(key.to_line().as_bytes())).expect("written");
        Folder(folder)
    }

    /// Compiles a source text. Its warnings are errors.
    fn compile(&self, source: &Path, more: &[&str]) -> PathBuf {
        let program = self.0.path().join(source.file_stem().expect("a name"));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", SOURCES])
            .args(more);
        cc.arg("-o").arg(&program).arg(source).arg("-L").arg(self.0.path());
        // Linked by its name for programs, which ours has, too.
        let link = self.0.path().join("libibverbs.so");
        let _ = std::os::unix::fs::symlink(library().join("libibverbs.so.1"), &link);
        let out = cc.arg("-libverbs").output().expect("cc: apt-get install gcc");
        let hint = "the header is libibverbs-dev's: apt-get install libibverbs-dev";
        assert!(out.status.success(), "cannot compile {} ({hint}):\n{}", source.display(), said(&out));
        program
    }

    fn run(&self, program: &mut Command) -> Output {
        let program = program.env("LD_LIBRARY_PATH", library());
        program.env("LONGHAUL_CLUSTER", self.0.path().join("cluster.key")).output().expect("it starts")
    }
}

/// Compiles and runs one of the programs beside this file. None: it cannot be compiled here.
fn passes(name: &str) -> Option<Output> {
    passes_with(name, &[])
}

fn passes_with(name: &str, flags: &[&str]) -> Option<Output> {
    passes_as(name, flags, |_, _| {})
}

/// The same, with a folder and a command that are prepared for it.
fn passes_as(name: &str, flags: &[&str], prepare: impl Fn(&Path, &mut Command)) -> Option<Output> {
    let has_header = Path::new("/usr/include/infiniband/verbs.h").is_file();
    if !has_header || Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: it needs cc and the header of libibverbs-dev");
        return None;
    }
    let folder = Folder::new();
    let program = folder.compile(&Path::new(SOURCES).join(name).with_extension("c"), flags);
    // Memory that was freed is kept by the sanitizer for a while: little of it, so that what a program uses can be measured.
    let mut command = Command::new(program);
    prepare(folder.0.path(), command.env("ASAN_OPTIONS", "quarantine_size_mb=1"));
    let out = folder.run(&mut command);
    assert!(out.status.success() && out.stdout.ends_with(b"ok\n"), "{name}: {}\n{}", out.status, said(&out));
    Some(out)
}

#[test]
fn completion_queues_resize_and_vanished_memory_fails_the_work_that_uses_it() {
    passes("faults");
}

#[test]
fn sends_without_a_receive_and_to_a_killed_peer_fail_in_bounded_time() {
    let Some(out) = passes("retries") else { return };
    let text = said(&out);
    assert!(
        text.matches("longhaul: cannot reach the program at").count() <= 1,
        "said more than once:\n{text}"
    );
}

#[test]
fn datagrams_take_receives_from_shared_queues_and_failing_receives_complete_as_receives() {
    passes("datagrams");
}

#[test]
fn datagrams_to_a_group_reach_its_members_in_all_processes_and_nobody_else() {
    passes("groups");
}

/// Without the library among those that the program is linked with, as NCCL's.
#[test]
fn library_that_is_opened_by_name_has_all_that_nccl_asks_for() {
    passes_with("nccl", &["-Wl,--as-needed"]);
}

#[test]
fn memory_windows_show_their_range_until_their_key_is_void() {
    passes("windows");
}

#[test]
fn wrong_orders_states_lists_and_masks_are_refused_and_nothing_leaks() {
    passes_with("robust", &["-fsanitize=address"]);
}

#[test]
fn xrc_messages_reach_the_receive_queue_that_they_name_in_order() {
    passes("xrc");
}

#[test]
fn failed_network_ends_all_queue_pairs_with_events_and_is_said_once() {
    let Some(out) = passes("broken") else { return };
    let text = said(&out);
    assert_eq!(text.matches("longhaul: cannot use the network any more").count(), 1, "{text}");
}

/// Which end asks depends on the ports, which are drawn anew each time: until the end that asks was the one that is refused.
#[test]
fn request_for_a_queue_pair_that_is_destroyed_is_refused() {
    let asked = |out: Output| said(&out).contains("6 of 6 asked");
    let refused = (0..20).any(|_| passes("refused").is_none_or(asked));
    assert!(refused, "none of 20 programs had asked");
}

#[test]
fn process_that_is_not_there_is_said_once() {
    let Some(out) = passes("absent") else { return };
    let text = said(&out);
    assert_eq!(text.matches("longhaul: cannot reach the program at").count(), 1, "{text}");
}

#[test]
fn iwarp_refuses_what_it_has_not_and_tells_at_once_of_a_killed_peer() {
    let prepare = |_: &Path, c: &mut Command| {
        c.env("LONGHAUL_TRANSPORT", "iwarp");
    };
    let Some(out) = passes_as("iwarp", &[], prepare) else {
        return;
    };
    let text = said(&out);
    for what in ["datagram queue pairs", "unreliable queue pairs", "XRC", "memory windows", "immediate data"]
    {
        let sentences = text.lines().filter(|l| l.contains("by iWARP") && l.contains(what)).count();
        assert_eq!(sentences, 1, "{what}:\n{text}");
    }
}

/// Megabits a second that came, by the receiver's clock, under a policy with a cap for the program and its traffic class.
fn capped_rate(transport: &str, datagrams: bool, matches: &str) -> Option<u32> {
    let out = passes_as("capped", &[], |folder, c| {
        let policy = format!("[[rule]]\nname = \"of-the-test\"\nmatch = {{ {matches} }}\ncap = \"40M\"\n");
        std::fs::write(folder.join("policy.toml"), policy).expect("written");
        c.env("LONGHAUL_TRANSPORT", transport).env("LONGHAUL_POLICY", folder.join("policy.toml"));
        if datagrams {
            c.env("CAPPED_DATAGRAMS", "1");
        }
    })?;
    let text = said(&out);
    Some(text.lines().find_map(|l| l.strip_prefix("mbit ")?.parse().ok()).expect("a rate"))
}

#[test]
fn policy_caps_what_matches_the_program_and_its_traffic_class() {
    for (transport, datagrams) in [("longhaul", false), ("longhaul", true), ("iwarp", false)] {
        let of_class = |n: u8| format!("application = \"capped\", dscp = [{n}]");
        let Some(rate) = capped_rate(transport, datagrams, &of_class(10)) else { return };
        assert!((20..=44).contains(&rate), "{transport}, datagrams {datagrams}: {rate} Mbit/s");
        let other = capped_rate(transport, datagrams, &of_class(11)).expect("it ran before");
        assert!(other > 60, "{transport}, datagrams {datagrams}: {other} Mbit/s");
    }
}
