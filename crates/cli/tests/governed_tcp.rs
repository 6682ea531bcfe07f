//! `longhaul cc attach --policy`: rules for TCP connections of other programs. Without root, BPF and cgroups of version 2:
//! `skipped: ...`.

mod common;

use common::{Bench, expect, json, stderr};
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// A cgroup with nobody in it, gone with the test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(tag: &str) -> Option<Cgroup> {
        let root = rustix::process::geteuid().is_root();
        let all = kernel::root_cgroup().ok().filter(|_| root);
        let Some(all) = all else {
            println!("skipped: needs root and cgroups of version 2");
            return None;
        };
        let path = all.join(format!("longhaul-{tag}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let group = Cgroup(path);
        let rules = kernel::Rules::of(&policy::Policy::built_in(), kernel::is_available);
        match kernel::attach_policy(&rules, &group.0, "", "", 0) {
            Err(e @ (kernel::Error::NotPermitted(_) | kernel::Error::Kernel(_))) => {
                println!("skipped: {e}");
                None
            }
            done => {
                done.unwrap();
                kernel::detach_policy(&group.0).unwrap();
                Some(group)
            }
        }
    }
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = kernel::detach_policy(&self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

const POLICY: &str = "[default]\nalgorithm = \"cubic\"\n[[rule]]\nname = \"copies\"\n\
                      match = { application = \"rsync\" }\nalgorithm = \"copa\"\nfallback = \"reno\"\ncap = \"80M\"\n";

fn out(o: &std::process::Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

#[test]
fn policy_is_attached_shown_explained_replaced_and_detached() {
    let Some(g) = Cgroup::new("attach") else { return };
    let b = Bench::new();
    let file = b.path("policy.toml");
    fs::write(&file, POLICY).unwrap();
    let attach = ["cc", "attach", "--cgroup", g.path(), "--policy", file.to_str().unwrap()];
    let o = b.run(&attach);
    expect(&o, 0);
    let hint = out(&o).split('`').nth(1).map(str::to_owned).unwrap();
    assert!(
        out(&o).contains("holds for new TCP connections")
            && out(&o).contains("no copa: reno is used (rule \"copies\")"),
        "{}",
        out(&o)
    );
    let o = b.run(&attach);
    expect(&o, 0);
    assert!(out(&o).contains("instead of the one before"), "{}", out(&o));
    let held = |o: &std::process::Output| {
        let all = json(o)["tcp"].as_array().unwrap().clone();
        all.into_iter().find(|h| {
            h["cgroup"].as_str().is_some_and(|c| c.ends_with(g.0.file_name().unwrap().to_str().unwrap()))
        })
    };
    let is = held(&b.run(&["cc", "status", "--json"])).unwrap();
    assert_eq!((is["cgroup_exists"].as_bool(), is["origin"].as_str()), (Some(true), file.to_str()), "{is}");
    assert_eq!(is["on_disk"], "same", "{is}");
    assert!(out(&b.run(&["cc", "status"])).contains(&format!("policy: {}", file.display())));
    let flow =
        ["cc", "policy", "explain", "10.0.0.1->10.0.0.2:873 carrier=tcp app=rsync", "--attached", g.path()];
    let o = b.run(&flow);
    expect(&o, 0);
    for line in
        ["rule        \"copies\"", "kernel TCP  not in this kernel: its fallback, reno", "cap 80.0 Mbit/s"]
    {
        assert!(out(&o).contains(line), "{line}\n{}", out(&o));
    }
    // What cannot be used changes nothing.
    fs::write(&file, "[default]\nalgorithm = \"nonsense\"\n").unwrap();
    expect(&b.run(&attach), 2);
    expect(&b.run(&flow), 0);
    // What holds is what the file said, not what it says now.
    let is = held(&b.run(&["cc", "status", "--json"])).unwrap();
    assert_eq!(is["on_disk"], "differs", "{is}");
    assert!(out(&b.run(&["cc", "status"])).contains("the file has changed since"));
    // As the first answer told to take it away.
    let detach: Vec<&str> = hint.split(' ').skip(1).collect();
    assert_eq!(detach, ["cc", "detach", "--policy", "--cgroup", g.path()]);
    expect(&b.run(&detach), 0);
    assert_eq!(held(&b.run(&["cc", "status", "--json"])), None);
    let o = b.run(&detach);
    expect(&o, 2);
    assert!(stderr(&o).contains("no policy is attached to"), "{}", stderr(&o));
    let o = b.run(&["cc", "attach", "--policy", "--cgroup", b.dir.path().to_str().unwrap()]);
    expect(&o, 7);
    assert!(stderr(&o).contains("no cgroup of version 2"), "{}", stderr(&o));
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
fn watched_policy_follows_its_file_and_outlives_the_watch() {
    let Some(g) = Cgroup::new("watch") else { return };
    let b = Bench::new();
    let file = b.path("policy.toml");
    fs::write(&file, POLICY).unwrap();
    let args =
        ["cc", "attach", "--cgroup", g.path(), "--watch", "--no-control", "--policy", file.to_str().unwrap()];
    let watch = Running(b.client(&args).stdout(std::process::Stdio::null()).spawn().unwrap());
    let says = |words: &str| {
        let flow = ["cc", "policy", "explain", "10.0.0.1->10.0.0.2:873 carrier=tcp", "--attached", g.path()];
        let limit = Instant::now() + Duration::from_secs(60);
        while !out(&b.run(&flow)).contains(words) {
            assert!(Instant::now() < limit, "{words}: {}", out(&b.run(&flow)));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    says("algorithm   cubic");
    let other = b.path("other.toml");
    fs::write(&other, POLICY.replace("\"cubic\"", "\"reno\"")).unwrap();
    fs::rename(&other, &file).unwrap();
    says("algorithm   reno");
    drop(watch);
    says("algorithm   reno");
}
