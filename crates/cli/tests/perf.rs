//! The measuring tool, the relay and the demonstration.

mod common;

use common::{Bench, Server, expect, json, longhaul, stderr};

/// Found by a user's command: the receives of 32 streams and more did not fit the connection's completion queue.
#[test]
fn many_streams_of_small_messages_have_enough_receives() {
    let b = Bench::new();
    let server = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    let args = ["perf", "client", &server.address, "--accept-new", "--json", "--verify", "-o", "send"];
    for streams in ["40", "128"] {
        let o = b
            .run(&[&args[..], &["-P", streams, "-s", "1000", "-n", "2560000", "--region", "20000"]].concat());
        expect(&o, 0);
        assert_eq!(
            (json(&o)["verified"].as_bool(), json(&o)["bytes"].as_u64()),
            (Some(true), Some(2_560_000))
        );
    }
}

#[test]
fn second_signal_ends_a_measurement_at_once() {
    use rustix::process::{Pid, Signal, kill_process};
    let b = Bench::new();
    let args = ["perf", "server", "--json", "--listen", "127.0.0.1:0"];
    let (_, code) = Server::start(&b.server, &args).stop();
    assert_eq!(code, Some(0), "one signal ends it in peace");
    let mut server = Server::start(&b.server, &args);
    let pid = Pid::from_raw(server.child.id() as i32).unwrap();
    // It does not run until it has both.
    kill_process(pid, Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    while !state().contains("State:\tT") {
        std::thread::yield_now();
    }
    for signal in [Signal::INT, Signal::TERM, Signal::CONT] {
        kill_process(pid, signal).unwrap();
    }
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
}

#[test]
fn atomic_operations_are_exact_over_the_native_transport() {
    let b = Bench::new();
    let server = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    for operation in ["fetch-add", "compare-swap"] {
        for (how, all) in [
            (&["-P", "2", "-n", "32000"][..], 4_000),
            (&["--latency", "-n", "800"], 100),
            (&["-R", "-n", "800"], 100),
            (&["--lose", "10%", "-n", "8000"], 1_000),
        ] {
            let args =
                ["perf", "client", &server.address, "--accept-new", "--json", "--verify", "-o", operation];
            let o = b.run(&[&args[..], how].concat());
            expect(&o, 0);
            let r = json(&o);
            assert!(r["verified"] == true && r["messages"] == all, "{operation} {how:?}: {r}");
        }
    }
}

#[test]
fn every_operation_is_verified_in_both_directions() {
    let b = Bench::new();
    let server = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    for operation in ["write", "send", "read"] {
        for direction in [&[][..], &["--reverse"]] {
            let mut args = vec!["perf", "client", &server.address, "--accept-new", "--json", "--verify"];
            args.extend(["-o", operation, "-P", "2", "-n", "24MiB", "--region", "8MiB", "--mtu", "1500"]);
            args.extend(direction);
            let o = b.run(&args);
            expect(&o, 0);
            let r = json(&o);
            assert_eq!(r["verified"], true, "{operation} {direction:?}");
            assert_eq!(r["bytes"], 24 << 20);
            assert!(r["goodput_bits_per_second"].as_f64().unwrap() > 0.0);
            assert!(r["server"]["cpu_user_seconds"].is_number());
        }
    }
    // Writes are watched for up to 256 bytes; an only byte is the same again after 256 messages.
    for (operation, size, poll, count) in [
        ("send", "4", "sleep", 100),
        ("write", "4", "spin", 100),
        ("write", "1", "adaptive", 600),
        ("write", "256", "sleep", 100),
        ("write", "257", "sleep", 100),
        ("send", "64KiB", "adaptive", 100),
        ("write", "64KiB", "sleep", 100),
    ] {
        let what =
            ["perf", "client", &server.address, "--latency", "-o", operation, "-s", size, "--poll", poll];
        for direction in [&[][..], &["--reverse"]] {
            let bytes = count * size.strip_suffix("KiB").map_or(1, |_| 1024);
            let bytes = bytes * size.trim_end_matches("KiB").parse::<u64>().unwrap();
            let all = bytes.to_string();
            let o = b.run(&[&what[..], &["-n", &all, "--json"], direction].concat());
            expect(&o, 0);
            let r = json(&o);
            let l = &r["latency_nanoseconds"];
            assert_eq!(r["messages"], count, "{operation} {size} {direction:?}");
            assert!(l["min"].as_u64().unwrap() > 0 && l["min"].as_u64() <= l["median"].as_u64());
            assert!(l["median"].as_u64() <= l["p99"].as_u64() && l["p99"].as_u64() <= l["max"].as_u64());
        }
    }
    // Some 6,000 packets of 64 KiB, of which 60 are lost and sent again.
    let lossy = ["-R", "--lose", "1%", "-n", "384MiB", "--verify"];
    let o = b.run(&[&["perf", "client", &server.address, "--json"][..], &lossy].concat());
    expect(&o, 0);
    let r = json(&o);
    assert!(r["verified"] == true && r["server"]["packets_lost"].as_u64().unwrap() > 10, "{r}");
    let slow = ["--limit", "8mbit", "-t", "300ms", "--stop", "--mtu", "1500"];
    let o = b.run(&[&["perf", "client", &server.address, "--json", "-s", "64KiB"][..], &slow].concat());
    expect(&o, 0);
    // 64 MiB are under way, which would take a minute.
    assert!(json(&o)["seconds"].as_f64().unwrap() < 10.0, "it waited for what was to be given up");
    let o = b.run(&["perf", "client", &server.address, "--latency", "-o", "read"]);
    expect(&o, 2);
    let o = b.run(&["perf", "client", &server.address, "-s", "2GiB", "--region", "2GiB"]);
    expect(&o, 2);
}

#[test]
fn two_paths_are_used_despite_a_dead_third() {
    let b = Bench::new();
    let any = ["perf", "server", "--json", "--listen", "0.0.0.0:0", "--allow-any-key"];
    let server = Server::start(&b.server, &any);
    let port = server.address.rsplit_once(':').expect("a port").1;
    let to = format!("127.0.0.1:{port}");
    // All of 127.0.0.0/8 is this machine; nobody listens on the last port.
    let paths = ["--path", "127.0.0.1,127.0.0.2", "--backup-path", "127.0.0.1,127.0.0.3", "--path"];
    let nowhere = "127.0.0.1,127.0.0.4:9";
    let what =
        ["-v", "perf", "client", &to, "--accept-new", "--json", "--verify", "--mtu", "1500", "-t", "1s"];
    let o = b.run(&[&what[..], &paths, &[nowhere]].concat());
    expect(&o, 0);
    assert_eq!(json(&o)["verified"], true);
    let up =
        |path| stderr(&o).lines().any(|l| l.contains("a path is up") && l.contains(&format!("path={path}")));
    assert_eq!([1, 2, 3].map(up), [true, false, true], "{}", stderr(&o));
    let o = b.run(&[&what[..], &["--path", "127.0.0.1,::1"]].concat());
    expect(&o, 2);
    assert!(stderr(&o).contains("try two of the same family"), "{}", stderr(&o));
}

#[test]
fn transfer_through_a_lossy_relay_completes() {
    let b = Bench::new();
    let server = Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0"]);
    let relay = Server::start(
        &b.client,
        &[
            "wan",
            "relay",
            "--json",
            "--seed",
            "1",
            "--listen",
            "127.0.0.1:0",
            "--to",
            &server.address,
            "delay=2ms",
            "loss=1%",
            "mtu=1500B",
        ],
    );
    let o = b.run(&["perf", "client", &relay.address, "--accept-new", "--json", "--verify", "-n", "16MiB"]);
    expect(&o, 0);
    let r = json(&o);
    assert_eq!(r["verified"], true);
    assert!(r["retransmitted_share"].as_f64().unwrap() > 0.001);
    let (last, code) = relay.stop();
    assert_eq!(code, Some(0));
    assert!(last["forward"]["lost_by_chance"].as_u64().unwrap() > 10);
}

#[test]
fn demo_verifies_its_transfer() {
    let b = Bench::new();
    let args =
        ["demo", "--json", "--large", "12MiB", "--small", "120", "--link", "rate=50mbit delay=5ms loss=0.5%"];
    let o = b.run(&args);
    expect(&o, 0);
    let r = json(&o);
    assert_eq!((&r["identical"], &r["files"]), (&true.into(), &124.into()));
    // It lasts longer than until the client first tells of its progress, and its figures are of the end.
    let of = |key: &str| r[key].as_f64().unwrap();
    assert!(of("seconds") > 1.0 && of("bytes") > 12e6, "{r}");
    assert!(of("goodput_bits_per_second") < 50e6 && of("path_bits_per_second") < 50e6, "{r}");
    assert!((0.2..=1.0).contains(&of("share_of_path")), "{r}");
    assert!(r["cpu_seconds_per_gigabyte"]["client"].as_f64() > Some(0.0), "{r}");
}

#[test]
fn bad_command_lines_are_explained() {
    let b = Bench::new();
    let o = b.run(&["wan", "relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "rate=fast"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("500mbit"), "{}", stderr(&o));
    expect(&b.run(&["no-such-command"]), 2);
    let o = longhaul(&b.client).arg("--version").output().unwrap();
    expect(&o, 0);
    assert!(String::from_utf8_lossy(&o.stdout).starts_with("longhaul "));
    let o = b.run(&["cc", "describe", "bbr"]);
    expect(&o, 0);
    assert!(!o.stdout.is_empty());
}

#[test]
fn lanes_on_several_cores_carry_every_operation() {
    let b = Bench::new();
    for (lent, used, expected) in [("3", "3", 3), ("1", "2", 2), ("2", "1", 1)] {
        let listen = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--lanes", lent];
        let server = Server::start(&b.server, &listen);
        let mut args = vec!["perf", "client", &server.address, "--accept-new", "--json", "--verify"];
        args.extend(["--lanes", used, "-P", "2", "-n", "512MiB", "--region", "8MiB", "--mtu", "1500"]);
        let run = |operation: &str, more: &[&str]| {
            let o = b.run(&[&args[..], &["-o", operation], more].concat());
            expect(&o, 0);
            let r = json(&o);
            assert!(
                r["verified"] == true && r["bytes"] == 512 << 20,
                "{lent} {used} {operation} {more:?}: {r}"
            );
            let paths = r["client"]["path_count"].as_u64().expect("a number of lanes");
            assert!(paths <= expected, "{lent} {used} {operation} {more:?}: {r}");
            paths == expected
        };
        for operation in ["write", "read"] {
            // A lane is asked for in the background, and asked for again after 50 ms and more where an answer is lost: on a
            // busy machine it may come after the fifth of a second that a run takes. It does come in some run.
            for more in [&[][..], &["--reverse"]] {
                let came = (0..10).any(|_| run(operation, more));
                assert!(came, "{lent} {used} {operation} {more:?}: {expected} lanes never worked at once");
            }
            run(operation, &["--lose", "0.5%"]);
        }
        // Processors may be named; one that there is not is no reason to stop.
        run("write", &["--cores", "0,1023"]);
    }
}
