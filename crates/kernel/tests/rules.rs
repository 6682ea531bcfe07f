//! Tests of a policy's rules on sockets of programs that are unaware of them. They print `skipped: ...` without root, BPF,
//! cgroups of version 2, or the two algorithms that every kernel has.

use longhaul_kernel as kernel;
use policy::Policy;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a child is to do: `serve ADDRESS` or `connect ADDRESS`.
const DO: &str = "LONGHAUL_RULES_CHILD";
/// Options that it sets first: `dscp=`, `priority=`, `cc=`.
const OPTIONS: &str = "LONGHAUL_RULES_OPTIONS";
/// In front of what it tells.
const MARK: &str = "TOLD ";

/// A cgroup of its own, and programs in it.
struct Group {
    folder: PathBuf,
    programs: tempfile::TempDir,
    /// Where a hierarchy was mounted for this.
    mounted: Option<tempfile::TempDir>,
}

impl Group {
    fn new() -> Option<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root =
            std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        let algorithms = ["reno", "bbr"].iter().all(|n| kernel::is_available(n));
        for (there, what) in [(root, "not root"), (algorithms, "no BBR in this kernel")] {
            if !there {
                println!("skipped: {what}");
                return None;
            }
        }
        let mut mounted = None;
        let all = kernel::root_cgroup().or_else(|_| {
            let at = tempfile::tempdir().expect("a folder");
            let done = Command::new("mount").args(["-t", "cgroup2", "none"]).arg(at.path()).status();
            let path = at.path().to_owned();
            mounted = Some(at);
            done.ok().filter(|s| s.success()).map(|_| path).ok_or(())
        });
        let Ok(all) = all else {
            println!("skipped: no cgroups of version 2");
            return None;
        };
        let name = format!("longhaul-rules-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group =
            Group { folder: all.join(name), programs: tempfile::tempdir().expect("a folder"), mounted };
        std::fs::create_dir(&group.folder).expect("a cgroup");
        match group.rules("[default]\nalgorithm = \"reno\"\n") {
            Err(kernel::Error::NotPermitted(what)) => println!("skipped: {what} is not permitted"),
            Err(kernel::Error::Kernel(what)) => println!("skipped: {what}"),
            other => {
                other.expect("rules");
                return Some(group);
            }
        }
        None
    }

    fn rules(&self, text: &str) -> Result<bool, kernel::Error> {
        let (policy, _) = Policy::read(text).unwrap_or_else(|p| panic!("{p}"));
        kernel::attach_policy(
            &kernel::Rules::of(&policy, kernel::is_available),
            &self.folder,
            "a test",
            text,
            1_000,
        )
    }

    /// This test's program under another name, in the group.
    fn program(&self, name: &str, what: &str, options: &str) -> Program {
        let exe = self.programs.path().join(name);
        if !exe.exists() {
            std::fs::copy(std::env::current_exe().expect("a program"), &exe).expect("a copy");
        }
        let mut child = Command::new("sh")
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.folder)
            .arg(&exe)
            .args(["child", "--exact", "--nocapture"])
            .env(DO, what)
            .env(OPTIONS, options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Program { child, out }
    }

    fn serve(&self, name: &str, at: &str) -> (Program, SocketAddr) {
        let mut server = self.program(name, &format!("serve {at}"), "");
        let at = server.told().parse().expect("an address");
        (server, at)
    }

    /// What a client has, and what the server has of it.
    fn pair(&self, name: &str, (server, at): (&mut Program, SocketAddr), options: &str) -> [String; 2] {
        let mut client = self.program(name, &format!("connect {at}"), options);
        [client.told(), server.told()]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kernel::detach_policy(&self.folder);
        let _ = std::fs::remove_dir(&self.folder);
        if let Some(at) = &self.mounted {
            let _ = Command::new("umount").arg(at.path()).status();
        }
    }
}

struct Program {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn told(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).expect("a line") > 0, "the program ended");
            if let Some((_, told)) = line.trim_end().split_once(MARK) {
                return told.to_owned();
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An option of 32 bits at the level of sockets; given a value, sets it first.
fn option(socket: &impl AsFd, name: i32, set: Option<u32>) -> u32 {
    let (fd, mut value, mut len) = (socket.as_fd().as_raw_fd(), set.unwrap_or(0), 4);
    let at = (&raw mut value).cast();
    // SAFETY: `at` is to the four bytes that `len` says, and both live until the calls return.
    let done = unsafe {
        let done = if set.is_some() { libc::setsockopt(fd, libc::SOL_SOCKET, name, at, 4) } else { 0 };
        done | libc::getsockopt(fd, libc::SOL_SOCKET, name, at, &raw mut len)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    value
}

/// Algorithm, bytes per second at most, code point.
fn tell(socket: &TcpStream) {
    use rustix::net::sockopt;
    let cap = match option(socket, libc::SO_MAX_PACING_RATE, None) {
        u32::MAX => "any".to_owned(),
        rate => rate.to_string(),
    };
    let six = sockopt::socket_domain(socket).expect("a family") == rustix::net::AddressFamily::INET6;
    let octet = if six {
        sockopt::ipv6_tclass(socket).expect("an option") as u8
    } else {
        sockopt::ip_tos(socket).expect("an option")
    };
    let algorithm = sockopt::tcp_congestion(socket).expect("an option");
    println!("{MARK}{algorithm} {cap} {}", octet >> 2);
}

/// Not a test but the program of the others.
#[test]
fn child() {
    let Ok(what) = std::env::var(DO) else { return };
    let options = std::env::var(OPTIONS).unwrap_or_default();
    let (what, at) = what.split_once(' ').expect("two words");
    let at: SocketAddr = at.parse().expect("an address");
    if what == "serve" {
        let listener = TcpListener::bind(at).expect("a port");
        println!("{MARK}{}", listener.local_addr().expect("an address"));
        // Connections stay for as long as their clients.
        let mut all = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            tell(&stream);
            all.push(stream);
        }
        return;
    }
    let family =
        if at.is_ipv4() { rustix::net::AddressFamily::INET } else { rustix::net::AddressFamily::INET6 };
    let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).expect("a socket");
    for (key, value) in options.split_whitespace().filter_map(|o| o.split_once('=')) {
        use rustix::net::sockopt;
        let number = value.parse::<u8>().unwrap_or(0);
        match key {
            "dscp" if at.is_ipv4() => sockopt::set_ip_tos(&socket, number << 2).expect("an option"),
            "dscp" => sockopt::set_ipv6_tclass(&socket, u32::from(number) << 2).expect("an option"),
            "priority" => drop(option(&socket, libc::SO_PRIORITY, Some(number.into()))),
            "pace" => drop(option(&socket, libc::SO_MAX_PACING_RATE, value.parse().ok())),
            _ => sockopt::set_tcp_congestion(&socket, value).expect("an option"),
        }
    }
    rustix::net::connect(&socket, &at).expect("a connection");
    let stream = TcpStream::from(socket);
    tell(&stream);
    // Asked again by a line.
    for line in std::io::stdin().lines() {
        line.expect("a line");
        tell(&stream);
    }
}

#[test]
fn sockets_of_other_programs_follow_the_first_matching_rule() {
    let Some(g) = Group::new() else { return };
    let (mut four, at4) = g.serve("lh-web", "127.66.0.2:0");
    let (mut six, at6) = g.serve("lh-web", "[::1]:0");
    let (mut both, at) = g.serve("lh-store", "[::]:0");
    let mapped = SocketAddr::from(([127, 66, 0, 5], at.port()));
    let replaced = g
        .rules(&format!(
            "[default]\nalgorithm = \"cubic\"\n\
             [[rule]]\nname = \"backup\"\nmatch = {{ application = \"lh-back*\" }}\nalgorithm = \"reno\"\ncap = \"80M\"\n\
             [[rule]]\nname = \"urgent\"\nmatch = {{ priority = 6 }}\nalgorithm = \"bbr\"\n\
             [[rule]]\nname = \"low\"\nmatch = {{ dscp = \"CS1\" }}\nalgorithm = \"reno\"\ncap = \"8M\"\n\
             [[rule]]\nname = \"web\"\nmatch = {{ source = \"127.66.0.2\", source_port = {} }}\nalgorithm = \"bbr\"\ncap = \"16M\"\n\
             [[rule]]\nname = \"six\"\nmatch = {{ destination = \"::1\", destination_port = {} }}\nalgorithm = \"reno\"\ndscp = \"AF11\"\n\
             [[rule]]\nname = \"mapped\"\nmatch = {{ source = \"127.66.0.5\" }}\nalgorithm = \"bbr\"\ncap = \"24M\"\n\
             [[rule]]\nname = \"lacking\"\nmatch = {{ destination = \"127.66.0.5\", dscp = \"CS2\" }}\nalgorithm = \"copa\"\nfallback = \"reno\"\n\
             [[rule]]\nname = \"free\"\nmatch = {{ dscp = \"CS3\" }}\ncap = \"32M\"\n\
             [[rule]]\nname = \"no override\"\nmatch = {{ dscp = \"CS4\" }}\nalgorithm = \"bbr\"\n",
            at4.port(),
            at6.port(),
        ))
        .expect("rules");
    assert!(replaced, "there were others");
    for (name, options, client) in [
        ("lh-backup", "", "reno 10000000 0"),
        ("lh-other", "priority=6", "bbr any 0"),
        ("lh-other", "priority=5", "cubic any 0"),
        ("lh-other", "dscp=8", "reno 1000000 8"),
        // The program's own choice has priority over rules only where the policy leaves that to it.
        ("lh-other", "dscp=24 cc=reno", "reno 4000000 24"),
        ("lh-other", "dscp=32 cc=reno", "bbr any 32"),
        // A program that wants less than it may has less.
        ("lh-other", "dscp=8 pace=999", "reno 999 8"),
    ] {
        assert_eq!(g.pair(name, (&mut four, at4), options), [client, "bbr 2000000 0"], "{name} {options}");
    }
    assert_eq!(g.pair("lh-other", (&mut six, at6), ""), ["reno any 10", "cubic any 0"]);
    assert_eq!(g.pair("lh-other", (&mut six, at6), "dscp=8"), ["reno 1000000 8", "cubic any 0"]);
    // What is accepted by IPv4 at a socket for both is by its IPv4 address.
    assert_eq!(g.pair("lh-other", (&mut both, mapped), "dscp=16"), ["reno any 16", "bbr 3000000 0"]);
    // Of whoever listens, the name is known from then on.
    let (mut backup, at) = g.serve("lh-backup", "127.66.0.2:0");
    assert_eq!(g.pair("lh-other", (&mut backup, at), ""), ["cubic any 0", "reno 10000000 0"]);
}

#[test]
fn rules_are_replaced_atomically_and_removed_completely() {
    let Some(g) = Group::new() else { return };
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").expect("a default");
    let other = if default.trim() == "bbr" { "reno" } else { "bbr" };
    let rules = |algorithm: &str, cap: &str| {
        format!(
            "[default]\nalgorithm = \"{algorithm}\"\n[[rule]]\nname = \"all\"\nmatch = {{}}\ncap = \"{cap}\"\n"
        )
    };
    let (mut server, at) = g.serve("lh-web", "127.66.0.3:0");
    assert_eq!(g.rules(&rules(other, "80M")).ok(), Some(true));
    let mut first = g.program("lh-other", &format!("connect {at}"), "");
    let told = format!("{other} 10000000 0");
    assert_eq!([first.told(), server.told()], [told.clone(), told.clone()]);
    for n in 0..20 {
        let (algorithm, cap, bytes) =
            if n % 2 == 0 { ("reno", "8M", 1_000_000) } else { ("cubic", "16M", 2_000_000) };
        assert_eq!(g.rules(&rules(algorithm, cap)).ok(), Some(true), "{n}");
        let told = format!("{algorithm} {bytes} 0");
        assert_eq!(g.pair("lh-other", (&mut server, at), ""), [told.clone(), told]);
    }
    // Rules that the kernel does not take change nothing.
    let long: String = (0..4_000)
        .map(|i| format!("[[rule]]\nname = \"r{i}\"\nmatch = {{ destination = \"10.{}.{}.0/24\", source_port = 7, destination_port = 9 }}\ncap = \"1G\"\n", i / 256, i % 256))
        .collect();
    assert!(matches!(g.rules(&long), Err(kernel::Error::TooManyRules(_))));
    assert_eq!(g.pair("lh-other", (&mut server, at), ""), ["cubic 2000000 0", "cubic 2000000 0"]);
    // A connection has what it was made with.
    first.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("a line");
    assert_eq!(first.told(), told);

    let mine = |h: &kernel::AttachedPolicy| h.group == g.folder.canonicalize().expect("a folder");
    let all = kernel::attached_policies().expect("a list");
    let held = all.iter().find(|h| mine(h)).expect("it holds");
    assert_eq!((held.source.as_str(), held.since, held.cgroup_exists), ("a test", 1_000, true));
    assert_eq!(held.policy, rules("cubic", "16M"));
    assert!(kernel::pinned_programs().expect("a list").iter().all(|k| !k.name.starts_with("rules")));
    kernel::detach_policy(&g.folder).expect("released");
    let default = format!("{} any 0", default.trim());
    assert_eq!(g.pair("lh-other", (&mut server, at), ""), [default.clone(), default]);
    assert!(!kernel::attached_policies().expect("a list").iter().any(mine));
    assert!(matches!(kernel::detach_policy(&g.folder), Err(kernel::Error::NoPolicy(_))));
    let number =
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&g.folder).expect("a folder")).to_string();
    for folder in ["/sys/fs/bpf/longhaul", "/run/longhaul/tcp"] {
        let left = std::fs::read_dir(folder).into_iter().flatten().flatten();
        assert!(left.into_iter().all(|e| !e.file_name().to_string_lossy().contains(&number)), "{folder}");
    }
}

#[test]
fn long_policies_are_accepted_and_non_cgroups_refused() {
    let Some(g) = Group::new() else { return };
    let rules: String = (0..1_500)
        .map(|i| format!("[[rule]]\nname = \"r{i}\"\nmatch = {{ destination = \"10.{}.{}.0/24\", destination_port = {} }}\nalgorithm = \"reno\"\ncap = \"{}M\"\n", i / 256, i % 256, i + 1, i + 1))
        .collect();
    let text = format!(
        "{rules}[[rule]]\nname = \"last\"\nmatch = {{ destination = \"127.0.0.0/8\" }}\nalgorithm = \"bbr\"\ncap = \"8M\"\n"
    );
    g.rules(&text).unwrap_or_else(|e| panic!("{e}"));
    let (mut server, at) = g.serve("lh-web", "127.66.0.4:0");
    assert_eq!(g.pair("lh-other", (&mut server, at), ""), ["bbr 1000000 0", "bbr 1000000 0"]);
    let rules = kernel::Rules::of(&Policy::built_in(), kernel::is_available);
    let e = kernel::attach_policy(&rules, g.programs.path(), "", "", 0).expect_err("no cgroup");
    assert!(matches!(e, kernel::Error::Kernel(_)), "{e}");
    let e = kernel::attach_policy(&rules, Path::new("/no/such/folder"), "", "", 0).expect_err("no folder");
    assert!(e.to_string().contains("/no/such/folder"), "{e}");
    // A cgroup that is gone takes its rules along; what is left of them can be removed.
    drop(server);
    std::fs::remove_dir(&g.folder).expect("nobody is in it");
    let path = g.folder.clone();
    let gone = kernel::attached_policies()
        .expect("a list")
        .into_iter()
        .find(|h| h.group.ends_with(path.file_name().expect("a name")));
    assert!(gone.is_some_and(|h| !h.cgroup_exists));
    kernel::detach_policy(&path).expect("released");
}
