//! Programs that misbehave, loaded into a process whose packets are real: the transfer goes on by the fallback, and what
//! happened is told.

#[path = "../../programs/tests/common/bad.rs"]
mod bad;
mod common;

use admin::client::Client;
use admin::proto::{Event, Request, Response};
use common::{Bench, Server, expect, json, stderr};
use std::cell::Cell;
use std::fs;
use std::process::{Command, Stdio};

/// Waits of 10 ms.
const MAX_PAUSES: u32 = 12_000;

thread_local! {
    static PAUSES: Cell<u32> = const { Cell::new(0) };
}

#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
fn pause() {
    PAUSES.set(PAUSES.get() + 1);
    assert!(PAUSES.get() < MAX_PAUSES, "what is waited for does not come");
    std::thread::sleep(std::time::Duration::from_millis(10));
}

fn events(c: &mut Client) -> Vec<Event> {
    match c.request(&Request::Events { after: 0 }) {
        Ok(Response::Events { events, .. }) => events,
        other => panic!("{other:?}"),
    }
}

/// Item 3 of what the platform has to show, but for the rate: that is held to in virtual time, by the tests of the programs.
#[test]
fn transfer_survives_every_hostile_program() {
    let b = Bench::new();
    let there = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !there("clang") || !there("wasm-ld") {
        println!("skipped: clang and lld are not installed");
        return;
    }
    let run = b.path("run");
    let client = |args: &[&str]| {
        let mut c = b.client(args);
        c.env("LONGHAUL_RUN", &run);
        c
    };
    let names: Vec<String> = bad::BAD.iter().map(|(bad, _)| format!("x-{bad}")).collect();
    for (name, (_, code)) in names.iter().zip(bad::BAD) {
        fs::write(b.path(&format!("{name}.c")), bad::misbehaving(name, 20, code)).unwrap();
    }
    // Held back until all of them have had their turn.
    fs::write(b.path("slow.toml"), "[default]\nalgorithm = \"cubic\"\ncap = \"20M\"\n").unwrap();
    let slow = b.path("slow.toml");
    let server =
        Server::start(&b.server, &["perf", "server", "--json", "--listen", "127.0.0.1:0", "--no-control"]);
    let what = ["perf", "client", &server.address, "--accept-new", "--json", "--verify"];
    let how = ["-n", "256MiB", "-s", "64KiB", "--region", "256MiB", "--policy", slow.to_str().unwrap()];
    // Of one lane: each lane has an instance of the program, which is replaced and told of by itself.
    let mut transfer = client(&[&what[..], &how, &["--lanes", "1"]].concat());
    let transfer = transfer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut control = loop {
        if let Some(Ok(c)) = admin::client::all(&run).into_iter().next() {
            break c;
        }
        pause();
    };
    let flow = loop {
        match control.request(&Request::Flows) {
            Ok(Response::Flows { flows, .. }) if flows.first().is_some_and(|f| f.delivered_bytes > 0) => {
                break format!("{}/{}", transfer.id(), flows[0].id);
            }
            Ok(_) => pause(),
            Err(e) => panic!("{e}"),
        }
    };
    for name in &names {
        let source = b.path(&format!("{name}.c"));
        expect(&client(&["cc", "load", source.to_str().unwrap()]).output().unwrap(), 0);
        expect(&client(&["cc", "set", "--flow", &flow, "--cc", name]).output().unwrap(), 0);
        let fallen = |e: &Event| e.kind == "program_fault" && e.text.contains(&format!("program {name} "));
        while !events(&mut control).iter().any(fallen) {
            pause();
        }
        let told = events(&mut control).into_iter().find(fallen).unwrap().text;
        println!("{told}");
        assert!(told.ends_with("haul replaces it"), "{told}");
    }
    let status = json(&client(&["cc", "status", "--json", "--events"]).output().unwrap());
    let shown = status["processes"][0]["events"].as_array().unwrap();
    assert_eq!(shown.iter().filter(|e| e["kind"] == "program_fault").count(), names.len(), "{status}");
    fs::write(b.path("fast.toml"), "[default]\nalgorithm = \"cubic\"\n").unwrap();
    expect(&client(&["cc", "set", b.path("fast.toml").to_str().unwrap()]).output().unwrap(), 0);
    drop(control);
    let o = transfer.wait_with_output().unwrap();
    expect(&o, 0);
    let r = json(&o);
    assert_eq!(
        (r["verified"].as_bool(), r["bytes"].as_u64()),
        (Some(true), Some(256 << 20)),
        "{}",
        stderr(&o)
    );
}
