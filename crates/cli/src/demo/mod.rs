//! `longhaul demo`: server, long lossy path and client as three processes on this machine.

mod process;
mod tree;

use crate::args::Demo;
use crate::exit::{Code, Failure, Outcome};
use crate::setup;
use crate::stop;
use crate::units::show_bytes;
use base::Time;
use lhio::clock::Clock;
use lhio::identity::{Host, PublicKey, StateFolder};
use netem::{Change, LinkConfig};
use process::Process;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Time over which the rate is taken to say when it reached its share.
const WINDOW: f64 = 0.25;
/// The share of the path's limit whose reaching is timed.
const SHARE: f64 = 0.9;

/// Runs all of it.
pub fn run(a: &Demo) -> Outcome<()> {
    let deadline = Clock::new().now() + a.within;
    let link = LinkConfig::parse_path(&a.link).map_err(Failure::usage)?;
    let dir = tempfile::Builder::new().prefix("longhaul-demo-").tempdir().map_err(Failure::system)?;
    // Dropping the folder and the processes cleans up; a signal must not end us before.
    let stopped = stop::on_signal(|| ())?;
    let check = || if stopped.load(Ordering::SeqCst) { Err(interrupted()) } else { Ok(()) };
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let say = |text: String| {
        if !a.json {
            out_line!("{text}");
        }
    };
    say(format!(
        "creating {} in large files and {} small files (seed {})",
        show_bytes(a.large),
        a.small,
        a.seed
    ));
    std::fs::create_dir(&target).map_err(Failure::system)?;
    tree::make(&source, a.large, a.small, a.seed).map_err(Failure::system)?;
    let (before, files) = tree::hash(&source).map_err(Failure::system)?;
    check()?;

    let moved = transfer(a, dir.path(), deadline, &stopped, &say)?;
    check()?;
    let (after, _) = tree::hash(&target).map_err(Failure::system)?;
    let same = before == after && moved.code == 0;
    let result = figures(&moved, &link, files, same);
    if a.json {
        crate::out::json(&result);
    } else {
        table(&result, &link);
        out_line!("tree at the source      {}", before.to_hex());
        out_line!("tree at the destination {}", after.to_hex());
    }
    dir.close().map_err(Failure::system)?;
    if same {
        say("verified: both trees are identical".to_owned());
        Ok(())
    } else {
        Err(Failure::new(
            Code::Partial,
            format!(
                "cannot verify the transfer: the trees differ, or it failed (exit code {}); try again with -v",
                moved.code
            ),
        ))
    }
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, "interrupted")
}

/// What the three processes said.
struct Reports {
    code: i32,
    client: Value,
    server: Value,
    relay: Value,
}

fn transfer(
    a: &Demo,
    dir: &Path,
    deadline: Time,
    stopped: &AtomicBool,
    say: &dyn Fn(String),
) -> Outcome<Reports> {
    let (server_home, client_home) = (dir.join("server-home"), dir.join("client-home"));
    let args = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let path = |p: &Path| p.to_string_lossy().into_owned();
    let loud = tracing::enabled!(tracing::Level::INFO);

    // The two ends know each other's keys beforehand, as after `keys authorize` and a first connection.
    setup::protect()?;
    let client_key = StateFolder::open(&client_home)?.host_key()?.public();
    let server_state = StateFolder::open(&server_home)?;
    let server_key = server_state.host_key()?.public();
    write_authorized(&server_home, &client_key)?;

    let serve = args(&["serve", "--json", "--listen", "127.0.0.1:0", &path(&dir.join("target"))]);
    let mut server = Process::start("server", &server_home, &serve, deadline, loud)?;
    let at = listening(&server.json()?)?;
    let mut words = args(&["wan", "relay", "--json", "--listen", "127.0.0.1:0", "--to", &at]);
    words.extend(args(&["--seed", &a.seed.to_string()]));
    words.extend(a.link.split_whitespace().map(str::to_owned));
    let mut relay = Process::start("relay", &client_home, &words, deadline, loud)?;
    let via = listening(&relay.json()?)?;
    say(format!("server at {at}, reached through {via}: {}", a.link));

    let host = Host::parse(&via)?;
    StateFolder::open(&client_home)?.known_hosts().add(&host, server_key)?;
    let source = format!("{}/", path(&dir.join("source")));
    let mut put = args(&["put", "--json", "--cc", &a.sending.cc, &source, &format!("longhaul://{via}/")]);
    for (flag, rate) in [("--limit", a.sending.limit), ("--known-rate", a.sending.known_rate)] {
        if let Some(r) = rate {
            put.extend(args(&[flag, &r.bits_per_sec().to_string()]));
        }
    }
    let mut client = Process::start("client", &client_home, &put, deadline, loud)?;
    let said = client.end()?;
    if stopped.load(Ordering::SeqCst) {
        return Err(interrupted());
    }
    let code = client.wait()?;
    if code != 0 {
        say(format!("cannot run the demo: the client failed: {}; try again with -v", said["message"]));
    }
    Ok(Reports { code, client: said, server: server.stop()?, relay: relay.stop()? })
}

fn write_authorized(home: &Path, key: &PublicKey) -> Outcome<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = home.join("authorized_keys");
    let out = std::fs::File::options().write(true).create_new(true).mode(0o600).open(file);
    out.and_then(|mut f| std::io::Write::write_all(&mut f, format!("{key} demo\n").as_bytes()))
        .map_err(Failure::system)
}

fn listening(ready: &Value) -> Outcome<String> {
    let at = ready["listening"].as_str().map(str::to_owned);
    at.ok_or_else(|| {
        Failure::system(format!(
            "cannot run the demo: a process printed {ready} instead of its address; \
             try again with -v"
        ))
    })
}

/// When the rate of delivery first reached its share of `limit` bytes a second, in seconds after the connection
/// was up.
fn time_to_share(samples: &[(f64, u64)], limit: f64) -> Option<f64> {
    let mut first = 0;
    for (i, (t, bytes)) in samples.iter().enumerate() {
        while first + 1 < i && t - samples[first + 1].0 >= WINDOW {
            first += 1;
        }
        let (t0, bytes0) = samples[first];
        if t - t0 >= WINDOW && bytes.saturating_sub(bytes0) as f64 / (t - t0) >= SHARE * limit {
            return Some(*t);
        }
    }
    None
}

fn figures(m: &Reports, link: &LinkConfig, files: u64, same: bool) -> Value {
    let samples: Vec<(f64, u64)> = serde_json::from_value(m.client["samples"].clone()).unwrap_or_default();
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    let c = &m.client["connection"];
    let bytes = number(&m.client["bytes_transferred"]);
    let seconds = number(&m.client["seconds"]);
    let goodput = if seconds > 0.0 { bytes * 8.0 / seconds } else { 0.0 };
    let limit = path_limit(link, c, &m.relay["forward"]);
    let cpu = |v: &Value| number(&v["cpu"]["user_seconds"]) + number(&v["cpu"]["system_seconds"]);
    let per_gigabyte = |v: &Value| if bytes > 0.0 { cpu(v) / (bytes / 1e9) } else { 0.0 };
    json!({
        "identical": same,
        "files": files,
        "bytes": bytes,
        "seconds": seconds,
        "goodput_bits_per_second": goodput,
        "path_bits_per_second": limit.map(|l| l * 8.0),
        "share_of_path": limit.map(|l| (goodput / (l * 8.0)).min(1.0)),
        "seconds_to_90_percent": limit.and_then(|l| time_to_share(&samples, l)),
        "retransmitted_share": number(&c["payload_retransmitted"]) / number(&c["payload_sent"]).max(1.0),
        "srtt_seconds": c["srtt_seconds"],
        "cpu_seconds_per_gigabyte": { "client": per_gigabyte(&m.client), "server": per_gigabyte(&m.server) },
        "suite": m.client["suite"],
        "client": m.client,
        "server": m.server,
        "relay": m.relay,
    })
}

/// Bytes of payload that the path can carry in a second: its rate x what of it was not lost at random x what of the bytes on
/// the wire is payload. As it came about in this run, since chance takes a little more or less than its mean. `None` of a path
/// whose rate changes.
fn path_limit(link: &LinkConfig, connection: &Value, there: &Value) -> Option<f64> {
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    if link.schedule.iter().any(|(_, change)| matches!(change, Change::Rate(_))) {
        return None;
    }
    let (offered, lost) = (number(&there["packets_in"]), number(&there["lost_by_chance"]));
    // The link counts headers of IP and UDP, too, as its rate does.
    let (wire, payload) = (number(&there["bytes_in"]), number(&connection["payload_sent"]));
    let arrives = if offered > 0.0 { 1.0 - lost / offered } else { 1.0 };
    let share = if wire > 0.0 { (payload / wire).min(1.0) } else { 1.0 };
    link.rate.map(|r| r.bytes_per_sec() as f64 * arrives * share)
}

fn table(r: &Value, link: &LinkConfig) {
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    let row = |name: &str, value: String| out_line!("  {name:<24}{value}");
    out_line!("");
    row("transferred", format!("{} in {} files", show_bytes(number(&r["bytes"]) as u64), r["files"]));
    row("time", format!("{:.2} s", number(&r["seconds"])));
    row("goodput", format!("{:.1} Mbit/s", number(&r["goodput_bits_per_second"]) / 1e6));
    row("path", link.to_string());
    if let Some(share) = r["share_of_path"].as_f64() {
        row("path limit", format!("{:.1} Mbit/s of payload", number(&r["path_bits_per_second"]) / 1e6));
        row("share of path limit", format!("{:.1}%", share * 100.0));
        let t = r["seconds_to_90_percent"].as_f64();
        row("time to 90% of limit", t.map_or("not reached".to_owned(), |t| format!("{t:.2} s")));
    }
    row("retransmitted", format!("{:.3}%", number(&r["retransmitted_share"]) * 100.0));
    let lost = &r["relay"]["forward"];
    row(
        "lost on the path",
        format!(
            "{} at random, {} to the full queue, {} too large (path MTU discovery), {} in total",
            lost["lost_by_chance"], lost["lost_by_queue"], lost["dropped"]["mtu"], lost["lost"]
        ),
    );
    let cpu = &r["cpu_seconds_per_gigabyte"];
    row("CPU per GB, client", format!("{:.2} s", number(&cpu["client"])));
    row("CPU per GB, server", format!("{:.2} s", number(&cpu["server"])));
    row("cipher suite", r["suite"].as_str().unwrap_or("").to_owned());
    out_line!("");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_limit_counts_headers_and_actual_loss() {
        let link = LinkConfig::parse_path("rate=8mbit loss=50%").unwrap();
        let connection = json!({ "payload_sent": 900 });
        let there = json!({ "packets_in": 100, "lost_by_chance": 10, "bytes_in": 1_000 });
        assert_eq!(path_limit(&link, &connection, &there), Some(1e6 * 0.9 * 0.9));
        let changing = LinkConfig::parse_path("rate=8mbit at=1s:rate=9mbit").unwrap();
        assert_eq!(path_limit(&changing, &connection, &there), None);
        assert_eq!(path_limit(&LinkConfig::path(), &connection, &there), None);
    }

    #[test]
    fn time_to_share_is_measured_over_a_window() {
        // 100 bytes a second for a second, then 1,000.
        let bytes = |i: u64| if i < 20 { i * 5 } else { 100 + (i - 20) * 50 };
        let samples: Vec<(f64, u64)> = (0..60).map(|i| (i as f64 * 0.05, bytes(i))).collect();
        let t = time_to_share(&samples, 1_000.0).unwrap();
        assert!((1.2..1.35).contains(&t), "{t}");
        assert_eq!(time_to_share(&samples, 2_000.0), None);
        assert_eq!(time_to_share(&[], 1.0), None);
    }
}
