//! `longhaul cc show` and `status`: flows, policies and programs of running processes, as tables or JSON.

use super::file_state::{self, FileState};
use super::processes::{self, Running, unexpected_response};
use super::rules;
use crate::args::{ShowFlows, Status};
use crate::exit::{Failure, Outcome};
use crate::out;
use admin::proto::{Event, Flow, PolicyStatus, Process, Program, Request, Response};
use admin::request_handler::places;
use base::{Rate, Span, text};
use lhio::clock::WallTime;
use lhio::poll::Poller;
use serde_json::{Value, json};

/// How often --watch looks again.
const AGAIN: Span = Span::from_secs(1);

/// Processes and their flows.
pub fn show(a: &ShowFlows) -> Outcome<()> {
    let mut poller = Poller::new().map_err(Failure::system)?;
    loop {
        match (a.json, a.watch) {
            (true, _) => out::json(&flows_json(a)?),
            (false, true) => out::redraw(&flows_text(a)?),
            (false, false) => out_text!("{}", flows_text(a)?),
        }
        if !a.watch || out::is_gone() {
            return Ok(());
        }
        poller.wait(&mut [], Some(AGAIN)).map_err(Failure::system)?;
    }
}

fn flows_of(r: &mut Running) -> Outcome<(Vec<Flow>, usize)> {
    match r.request(&Request::Flows)? {
        Response::Flows { flows, omitted } => Ok((flows, omitted)),
        _ => Err(unexpected_response(r)),
    }
}

fn flows_json(a: &ShowFlows) -> Outcome<Value> {
    let mut all = Vec::new();
    for mut r in processes::all(a.pid)? {
        // One that ends meanwhile has no flows any more.
        let Ok((flows, omitted)) = flows_of(&mut r) else { continue };
        let mut one = serde_json::to_value(&r.process).map_err(Failure::system)?;
        one["flows"] = json!(flows);
        one["omitted"] = json!(omitted);
        all.push(one);
    }
    Ok(json!({ "processes": all }))
}

fn flows_text(a: &ShowFlows) -> Outcome<String> {
    let mut text = String::new();
    for mut r in processes::all(a.pid)? {
        let Ok((flows, omitted)) = flows_of(&mut r) else { continue };
        let (p, now) = (&r.process, WallTime::now().unix_secs());
        let head = format!("process {} ({}), policy: {}", p.pid, p.command, policy_line(p, now));
        text += &format!("{}\n", text::line(&head));
        text += &table(&flows, p.pid, a.why);
        if omitted > 0 {
            text += &format!("  and {omitted} more flows\n");
        }
    }
    if text.is_empty() {
        text = "no process of this user moves data\n".into();
    }
    Ok(text)
}

/// Seconds for people.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Where the policy of a process is from, which one it is, and since when it is in force.
fn policy_line(p: &Process, now: u64) -> String {
    let PolicyStatus { origin, path, hash, revision, since, errors, .. } = &p.policy;
    let trouble = !errors.is_empty() || !p.problems.is_empty();
    let trouble = if trouble { "; PROBLEM: see `longhaul cc status`" } else { "" };
    if origin.is_empty() {
        return format!("none{trouble}");
    }
    let file = if path.is_empty() || path == origin { String::new() } else { format!(" ({path})") };
    let revision = if *revision > 0 { format!(" revision {revision}") } else { String::new() };
    format!("{origin}{file}{revision}, hash {hash}, for {}{trouble}", ago(now.saturating_sub(*since)))
}

fn rate(bits: u64) -> String {
    Rate::from_bits_per_sec(bits).to_string()
}

/// A word for each column of a flow.
fn cells(f: &Flow, pid: u32) -> Vec<String> {
    let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let by = |algorithm: &str, running: &str| {
        let name = algorithm.split(':').next().unwrap_or_default();
        if running == name { algorithm.to_owned() } else { format!("{algorithm} by {running}") }
    };
    let state = if f.state.is_empty() { String::new() } else { format!(" ({})", f.state) };
    let missing =
        if f.not_loaded.is_empty() { String::new() } else { format!(" instead of {}", f.not_loaded) };
    let cap = |bits: u64| {
        if f.cap_source.is_empty() { rate(bits) } else { format!("{} ({})", rate(bits), f.cap_source) }
    };
    let cells = vec![
        format!("{pid}/{}", f.id),
        f.remote.clone(),
        or(&f.application, "-"),
        f.qos.clone(),
        or(&f.rule, "-"),
        or(&f.class, "-"),
        format!("{}{state}{missing}", by(&f.algorithm, &f.running)),
        or(&by(&f.peer_algorithm, &f.peer_running), "-"),
        f.delivered_bits_per_second.map_or("-".into(), rate),
        f.pacing_bits_per_second.map_or("-".into(), rate),
        f.cap_bits_per_second.map_or("-".into(), cap),
        Span::from_secs_f64(f.srtt_seconds).to_string(),
        format!("{:.2}%", f.loss_share * 100.0),
    ];
    cells.into_iter().map(|c| text::line(&c).into_owned()).collect()
}

const HEAD: [&str; 13] = [
    "FLOW",
    "TO",
    "APPLICATION",
    "QOS",
    "RULE",
    "CLASS",
    "ALGORITHM",
    "PEER SENDS",
    "DELIVERED",
    "PACING",
    "CAP",
    "RTT",
    "LOSS",
];

fn table(flows: &[Flow], pid: u32, why: bool) -> String {
    let rows: Vec<_> = flows.iter().map(|f| cells(f, pid)).collect();
    let head: Vec<_> = HEAD.iter().map(|h| (*h).to_owned()).collect();
    let width = |i: usize| rows.iter().chain([&head]).map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..HEAD.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}"));
        format!("  {}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    if flows.is_empty() {
        return "  no flows\n".into();
    }
    let mut text = line(&head);
    for (row, f) in rows.iter().zip(flows) {
        text += &line(row);
        if why {
            let change = Some(&f.last_change).filter(|c| !c.is_empty());
            f.reasons.iter().chain(change).for_each(|w| text += &format!("      {}\n", text::line(w)));
        }
    }
    text
}

/// What a process says of itself.
struct ProcessReport {
    process: Process,
    /// Its programs and what runs them; none when it did not say.
    programs: Vec<Program>,
    events: Vec<Event>,
    /// How the file of its policy compares with what is in force.
    on_disk: Option<FileState>,
}

impl ProcessReport {
    fn by(r: &mut Running, events: bool) -> Outcome<ProcessReport> {
        let events = if events { events_of(r)? } else { Vec::new() };
        let programs = match r.request(&Request::Programs) {
            Ok(Response::Programs { programs }) => programs,
            Ok(_) => return Err(unexpected_response(r)),
            // One that ends, or does not come to it: the rest is worth telling.
            Err(f) => {
                err_line!("longhaul: {f}");
                Vec::new()
            }
        };
        let process = r.process.clone();
        let on_disk = file_state::compare(&process.policy.path, &process.policy.hash);
        Ok(ProcessReport { process, programs, events, on_disk })
    }

    fn value(&self, events: bool) -> Value {
        let mut one = json!(self.process);
        one["program_states"] = json!(self.programs);
        one["policy"]["on_disk"] = json!(self.on_disk.map(FileState::word));
        if events {
            one["events"] = json!(self.events);
        }
        one
    }

    fn lines(&self, now: u64) {
        let p = &self.process;
        out_line!("process {} ({}), for {}", p.pid, p.command, ago(now.saturating_sub(p.started)));
        out_line!("  policy: {}, {} changes", policy_line(p, now), p.policy.changes);
        if let Some(text) = self.on_disk.and_then(FileState::text) {
            out_line!("  {}: {text}", p.policy.path);
        }
        if !p.policy.source.is_empty() {
            out_line!("  watched: {}", p.policy.source);
        }
        p.policy.errors.iter().chain(&p.problems).for_each(|e| out_line!("  PROBLEM: {e}"));
        self.programs.iter().for_each(|p| out_line!("  program {}", program_line(p, now)));
        for e in &self.events {
            out_line!("  {} ago, {}: {}", ago(now.saturating_sub(e.time)), e.kind, e.text);
        }
    }
}

fn flows_in_words(n: u64) -> String {
    format!("{n} {}", if n == 1 { "flow" } else { "flows" })
}

/// A program that is loaded or needed: its source, its code, since when, and what runs it.
fn program_line(p: &Program, now: u64) -> String {
    let needed = if p.required_by.is_empty() {
        String::new()
    } else {
        format!("; needed by {}", places(&p.required_by))
    };
    if !p.loaded {
        return format!(
            "{}: NOT LOADED; another algorithm decides for {} instead{needed}",
            p.name,
            flows_in_words(p.flows_on_fallback)
        );
    }
    let path = if p.path.is_empty() { String::new() } else { format!("{}, ", p.path) };
    let other = match p.flows_on_other_version {
        0 => String::new(),
        n => format!("; {} still on code loaded before", flows_in_words(n)),
    };
    let (for_long, flows) = (ago(now.saturating_sub(p.since)), flows_in_words(p.flows));
    format!("{}: {path}code {}, for {for_long}, {flows}{other}{needed}", p.name, p.hash)
}

/// Where policies are from, and how they fare.
pub fn status(a: &Status) -> Outcome<()> {
    let mut all = Vec::new();
    for mut r in processes::all(a.pid)? {
        all.push(ProcessReport::by(&mut r, a.events)?);
    }
    if a.json {
        let processes: Vec<_> = all.iter().map(|t| t.value(a.events)).collect();
        out::json(&json!({ "processes": processes, "tcp": rules::values() }));
        return Ok(());
    }
    if all.is_empty() {
        out_line!("no process of this user moves data");
    }
    let now = WallTime::now().unix_secs();
    let begun = |since: u64| ago(now.saturating_sub(since));
    rules::lines(begun).iter().for_each(|l| out_line!("{l}"));
    all.iter().for_each(|t| t.lines(now));
    Ok(())
}

fn events_of(r: &mut Running) -> Outcome<Vec<Event>> {
    match r.request(&Request::Events { after: 0 })? {
        Response::Events { events, .. } => Ok(events),
        _ => Err(unexpected_response(r)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_have_no_empty_cells() {
        let flow = |id: &str, algorithm: &str, running: &str| Flow {
            id: id.into(),
            remote: "10.0.0.1:4460".into(),
            qos: "ordinary".into(),
            algorithm: algorithm.into(),
            running: running.into(),
            state: "startup".into(),
            delivered_bits_per_second: Some(500_000_000),
            cap_bits_per_second: Some(600_000_000),
            cap_source: "rule nightly".into(),
            reasons: vec!["because".into()],
            last_change: "this instead of that: so".into(),
            peer_algorithm: "dctcp".into(),
            peer_running: "haul".into(),
            ..Flow::default()
        };
        let text =
            table(&[flow("1.0", "cubic:beta=0.7", "cubic"), flow("12.1", "dctcp", "reno")], 4711, true);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 7);
        let column = |line: &str, word: &str| line.find(word).unwrap();
        let at = column(lines[0], "ALGORITHM");
        assert_eq!(
            [column(lines[1], "cubic:beta=0.7 (startup)"), column(lines[4], "dctcp by reno (startup)")],
            [at; 2]
        );
        assert_eq!(column(lines[4], "dctcp by haul"), column(lines[0], "PEER SENDS"));
        assert_eq!(lines[2..4], ["      because", "      this instead of that: so"]);
        assert!(lines[1].starts_with("  4711/1.0"), "{text}");
        assert_eq!(column(lines[0], "DELIVERED"), column(lines[1], "500.0 Mbit/s"));
        assert_eq!(column(lines[0], "CAP"), column(lines[1], "600.0 Mbit/s (rule nightly)"));
        assert_eq!(table(&[], 1, false), "  no flows\n");
    }

    #[test]
    fn policy_line_names_source_hash_and_age() {
        let policy = PolicyStatus::default();
        let mut p = Process {
            protocol: 1,
            pid: 1,
            command: String::new(),
            version: String::new(),
            started: 0,
            policy,
            programs: Vec::new(),
            problems: Vec::new(),
        };
        assert_eq!(policy_line(&p, 9), "none");
        let s = &mut p.policy;
        (s.origin, s.revision, s.since, s.hash) = ("etcd://h:1/k".into(), 7, 1_000, "abc".into());
        assert_eq!(policy_line(&p, 1_090), "etcd://h:1/k revision 7, hash abc, for 90 s");
        (p.policy.path, p.policy.revision) = ("/p.toml".into(), 0);
        assert_eq!(policy_line(&p, 1_090), "etcd://h:1/k (/p.toml), hash abc, for 90 s");
        p.problems.push("gone".into());
        assert!(policy_line(&p, 1_000 + 7_200).contains("2 h; PROBLEM"));
    }

    #[test]
    fn program_line_names_path_code_and_flows() {
        let mut p = Program {
            name: "x".into(),
            flows_on_fallback: 1,
            required_by: vec!["rule a".into()],
            ..Program::default()
        };
        assert_eq!(
            program_line(&p, 9),
            "x: NOT LOADED; another algorithm decides for 1 flow instead; needed by rule a"
        );
        (p.loaded, p.path, p.hash, p.since, p.flows) = (true, "/x.c".into(), "abc".into(), 4, 2);
        assert_eq!(program_line(&p, 9), "x: /x.c, code abc, for 5 s, 2 flows; needed by rule a");
        p.flows_on_other_version = 1;
        assert!(program_line(&p, 9).contains("1 flow still on code loaded before"));
    }
}
