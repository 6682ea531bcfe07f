//! `longhaul cc show` and `status`: what runs, for people and for programs.

use super::processes::{self, Running, unexpected};
use super::rules;
use crate::args::{ShowFlows, Status};
use crate::exit::{Failure, Outcome};
use crate::out;
use admin::proto::{Answer, Event, Flow, PolicyStatus, Request};
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
    match r.ask(&Request::Flows)? {
        Answer::Flows { flows, left_out } => Ok((flows, left_out)),
        _ => Err(unexpected(r)),
    }
}

fn flows_json(a: &ShowFlows) -> Outcome<Value> {
    let mut all = Vec::new();
    for mut r in processes::all(a.pid)? {
        // One that ends meanwhile has no flows any more.
        let Ok((flows, left_out)) = flows_of(&mut r) else { continue };
        let mut one = serde_json::to_value(&r.process).map_err(Failure::system)?;
        one["flows"] = json!(flows);
        one["left_out"] = json!(left_out);
        all.push(one);
    }
    Ok(json!({ "processes": all }))
}

fn flows_text(a: &ShowFlows) -> Outcome<String> {
    let mut text = String::new();
    for mut r in processes::all(a.pid)? {
        let Ok((flows, left_out)) = flows_of(&mut r) else { continue };
        let (p, now) = (&r.process, WallTime::now().unix_secs());
        let head = format!("process {} ({}), policy: {}", p.pid, p.command, policy_line(&p.policy, now));
        text += &format!("{}\n", text::line(&head));
        text += &table(&flows, p.pid, a.why);
        if left_out > 0 {
            text += &format!("  and {left_out} more flows\n");
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

fn policy_line(p: &PolicyStatus, now: u64) -> String {
    let trouble = if p.errors.is_empty() { "" } else { "; TROUBLE: see `longhaul cc status`" };
    if p.from.is_empty() {
        return format!("none{trouble}");
    }
    let revision = if p.revision > 0 { format!(" revision {}", p.revision) } else { String::new() };
    format!("{}{revision}, for {}{trouble}", p.from, ago(now.saturating_sub(p.since)))
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
    let cells = vec![
        format!("{pid}/{}", f.id),
        f.remote.clone(),
        or(&f.application, "-"),
        f.qos.clone(),
        or(&f.rule, "-"),
        or(&f.class, "-"),
        format!("{}{state}", by(&f.algorithm, &f.running)),
        or(&by(&f.peer_algorithm, &f.peer_running), "-"),
        rate(f.rate_bits_per_second),
        f.cap_bits_per_second.map_or("-".into(), rate),
        Span::from_secs_f64(f.srtt_seconds).to_string(),
        format!("{:.2}%", f.loss * 100.0),
    ];
    cells.into_iter().map(|c| text::line(&c).into_owned()).collect()
}

const HEAD: [&str; 12] = [
    "FLOW",
    "TO",
    "APPLICATION",
    "QOS",
    "RULE",
    "CLASS",
    "ALGORITHM",
    "PEER SENDS",
    "RATE",
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
            let change = Some(&f.change).filter(|c| !c.is_empty());
            f.why.iter().chain(change).for_each(|w| text += &format!("      {}\n", text::line(w)));
        }
    }
    text
}

/// Where policies are from, and how they fare.
pub fn status(a: &Status) -> Outcome<()> {
    let mut all = Vec::new();
    for mut r in processes::all(a.pid)? {
        let events = if a.events { events_of(&mut r)? } else { Vec::new() };
        all.push((r.process, events));
    }
    if a.json {
        let one = |(p, events): &(admin::proto::Process, Vec<Event>)| {
            let mut one = json!(p);
            if a.events {
                one["events"] = json!(events);
            }
            one
        };
        let processes: Vec<_> = all.iter().map(one).collect();
        out::json(&json!({ "processes": processes, "tcp": rules::values() }));
        return Ok(());
    }
    if all.is_empty() {
        out_line!("no process of this user moves data");
    }
    let begun = |since: u64| ago(WallTime::now().unix_secs().saturating_sub(since));
    rules::lines(begun).iter().for_each(|l| out_line!("{l}"));
    let now = WallTime::now().unix_secs();
    for (p, events) in &all {
        out_line!("process {} ({}), for {}", p.pid, p.command, ago(now.saturating_sub(p.started)));
        out_line!("  policy: {}, {} changes", policy_line(&p.policy, now), p.policy.changes);
        if !p.policy.source.is_empty() {
            out_line!("  watched: {}", p.policy.source);
        }
        p.policy.errors.iter().for_each(|e| out_line!("  TROUBLE: {e}"));
        if !p.programs.is_empty() {
            out_line!("  programs: {}", p.programs.join(", "));
        }
        for e in events {
            out_line!("  {} ago, {}: {}", ago(now.saturating_sub(e.time)), e.kind, e.text);
        }
    }
    Ok(())
}

fn events_of(r: &mut Running) -> Outcome<Vec<Event>> {
    match r.ask(&Request::Events { after: 0 })? {
        Answer::Events { events, .. } => Ok(events),
        _ => Err(unexpected(r)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_leave_nothing_empty() {
        let flow = |id: &str, algorithm: &str, running: &str| Flow {
            id: id.into(),
            remote: "10.0.0.1:4460".into(),
            qos: "ordinary".into(),
            algorithm: algorithm.into(),
            running: running.into(),
            state: "startup".into(),
            rate_bits_per_second: 500_000_000,
            why: vec!["because".into()],
            change: "this instead of that: so".into(),
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
        assert!(lines[1].starts_with("  4711/1.0") && lines[1].contains("500"));
        assert_eq!(table(&[], 1, false), "  no flows\n");
    }

    #[test]
    fn policies_are_told_in_a_line() {
        let mut p = PolicyStatus::default();
        assert_eq!(policy_line(&p, 9), "none");
        (p.from, p.revision, p.since) = ("etcd://h:1/k".into(), 7, 1_000);
        assert_eq!(policy_line(&p, 1_090), "etcd://h:1/k revision 7, for 90 s");
        p.errors.push("gone".into());
        assert!(policy_line(&p, 1_000 + 7_200).contains("2 h; TROUBLE"));
    }
}
