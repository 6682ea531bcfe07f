//! One run in the laboratory: sets it up, starts receivers and senders, removes it, and computes metrics.

use super::flows::{RunningFlow, payload_of, start};
use super::measure::{Interval, ObservedFlow, ObservedRun, thin_completions};
use super::outcome::{FlowResult, RunResult};
use super::{Bench, Failure, Programs, Settings, direct, why_unavailable};
use crate::emulator::record::{self, FlowInfo, Mark, Record, Verdict, verdict};
use crate::plan::{Cell, Flow, Kind, Lineup, Program, Topology};
use crate::workload::outside::{self, EndReports};
use crate::{Lab, LabError, LinkSpec, Options, TopologySpec};
use base::Span;
use lhio::clock::Clock;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Interval of the emulator's records.
const STEP: Span = Span::from_millis(10);
/// Port of the first flow's receiver; the others follow.
pub(super) const FIRST_PORT: u16 = 20_000;
/// Additional time for a sender to end: connections are made and closed, queues are emptied.
pub(super) const SENDER_EXIT_TIMEOUT: Span = Span::from_secs(30);
/// How often senders are polled.
pub(super) const POLL_INTERVAL: Span = Span::from_millis(20);

/// Runs in network namespaces.
pub(super) struct Laboratory {
    pub settings: Settings,
    pub programs: Programs,
}

impl Bench for Laboratory {
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, tag: &str) -> Result<RunResult, Failure> {
        let folder = self.settings.out.join(format!(".run-{}", std::process::id()));
        let home = TempFolder::new(&folder)?;
        let began = Clock::new().now();
        let done = if cell.topology.kind == Kind::Direct {
            direct::run(self, cell, peer, &home.0)
        } else {
            Trial { lab: self, cell, peer, seed, home: home.0.clone() }.run(tag)
        };
        if self.settings.stop.load(Ordering::SeqCst) {
            // Failures after a stop request are due to it, since signals reach the programs in the nodes, too.
            return Err(Failure::Stopped);
        }
        let mut run = done?;
        run.wall_seconds = Clock::new().now().since(began).as_secs_f64();
        Ok(run)
    }
    fn missing(&self, flow: &Flow) -> Option<String> {
        why_unavailable(flow, &self.programs)
    }
    fn simulated(&self) -> bool {
        false
    }
}

/// A folder that is removed when dropped.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(path: &Path) -> Result<TempFolder, Failure> {
        let words = |e: std::io::Error| Failure::Impossible(format!("cannot make {}: {e}", path.display()));
        match std::fs::remove_dir_all(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(words(e)),
            _ => {}
        }
        std::fs::create_dir_all(path).map_err(words)?;
        Ok(TempFolder(path.to_owned()))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What cannot be removed is removed before the next run.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The emulator's topology for a plan's. A trace is written into the folder.
pub(crate) fn topology(t: &Topology, home: &Path) -> Result<TopologySpec, String> {
    let (forward, reverse) = match &t.trace {
        None => (LinkSpec::Text(t.forward.to_string()), LinkSpec::Text(t.reverse.to_string())),
        Some(lines) => {
            let trace = home.join("trace");
            let text: String = lines.iter().map(|ms| format!("{ms}\n")).collect();
            std::fs::write(&trace, text).map_err(|e| format!("cannot write {}: {e}", trace.display()))?;
            let link = netem::LinkConfig { rate: None, ..t.forward.clone() };
            let link = link.to_string().replace("rate=unlimited ", "");
            (LinkSpec::Traced { link, trace }, LinkSpec::Text(t.reverse.to_string()))
        }
    };
    Ok(match t.kind {
        Kind::Path | Kind::Direct => TopologySpec::Path { forward, reverse: Some(reverse) },
        Kind::Dumbbell => {
            let least = t.rtts.iter().min().copied().unwrap_or(Span::ZERO);
            // A pair's additional round trip is divided between the two directions of its access link.
            let more = |rtt: &Span| LinkSpec::Text(format!("delay={}ns", ((*rtt - least) / 2).as_nanos()));
            let access = if t.rtts.len() > 1 { t.rtts.iter().map(more).collect() } else { Vec::new() };
            TopologySpec::Dumbbell {
                pairs: t.nodes as usize,
                bottleneck: forward,
                reverse: Some(reverse),
                access,
            }
        }
        Kind::Star => {
            // Half of the delay is before the switch, half after it.
            let (mut up, mut down) = (netem::LinkConfig::default(), t.forward.clone());
            (up.delay, up.queue) = (t.forward.delay / 2, 1 << 30);
            down.delay = t.forward.delay - up.delay;
            TopologySpec::Star {
                nodes: t.nodes as usize,
                up: Some(LinkSpec::Text(up.to_string())),
                down: LinkSpec::Text(down.to_string()),
            }
        }
        Kind::TwoPaths => {
            let second =
                t.second.as_ref().map_or_else(|| t.forward.to_string(), |(forward, _)| forward.to_string());
            TopologySpec::TwoPaths { first: forward, second: LinkSpec::Text(second) }
        }
    })
}

/// The names of the measured links in both directions.
pub(super) fn bottlenecks(kind: Kind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        Kind::Path | Kind::Direct => (&["forward"], &["reverse"]),
        Kind::Dumbbell => (&["bottleneck"], &["reverse"]),
        Kind::Star => (&["n1-down"], &["n1-up"]),
        Kind::TwoPaths => (&["first-forward", "second-forward"], &["first-reverse", "second-reverse"]),
    }
}

/// Whether another attempt may avoid an error.
pub(super) fn failure_of(e: LabError) -> Failure {
    match e {
        LabError::System { .. } | LabError::Emulator(_) => Failure::Discarded(e.to_string()),
        e => Failure::Impossible(e.to_string()),
    }
}

struct Trial<'a> {
    lab: &'a Laboratory,
    cell: &'a Cell,
    peer: &'a Lineup,
    seed: u64,
    home: PathBuf,
}

impl Trial<'_> {
    fn run(&self, tag: &str) -> Result<RunResult, Failure> {
        let spec = topology(&self.cell.topology, &self.home).map_err(Failure::Impossible)?;
        let record = match self.lab.settings.keep_records {
            true => self.lab.settings.out.join(format!("{tag}-{}.jsonl", self.number())),
            false => self.home.join("records.jsonl"),
        };
        let options = Options { record: Some(record.clone()), interval: STEP, ..Options::default() };
        let name = format!("run{}", std::process::id());
        let mut lab = Lab::up_with(&name, &spec, self.seed, &options).map_err(failure_of)?;
        let flows = self.start_receivers(&lab)?;
        lab.restart_schedules().map_err(failure_of)?;
        let zero = lab.mark("start").map_err(failure_of)?.at_ns;
        let (said, end) = self.send(&mut lab, flows)?;
        lab.down().map_err(failure_of)?;
        let late = end.lateness;
        if let Verdict::Discarded(why) = verdict(&end) {
            return Err(Failure::Discarded(why));
        }
        let observed = self.observe(&record, zero, &said)?;
        Ok(finish(observed, [late.p50_ns, late.p99_ns, late.max_ns].map(|n| n as f64 / 1e9)))
    }

    fn number(&self) -> usize {
        self.cell.peers.iter().position(|p| p.name == self.peer.name).map_or(0, |i| i + 1)
    }

    fn start_receivers<'b>(&'b self, lab: &Lab) -> Result<Vec<RunningFlow<'b>>, Failure> {
        let mut out = Vec::new();
        for (i, flow) in self.peer.flows.iter().enumerate() {
            let to = SocketAddr::new(
                IpAddr::V4(lab.address(&flow.to).map_err(failure_of)?),
                FIRST_PORT + i as u16,
            );
            let t = &self.cell.topology;
            let longest = t.rtts.iter().max().copied().unwrap_or(Span::ZERO);
            let holds = |link: &netem::LinkConfig, rtt| link.bdp(rtt).unwrap_or(0).saturating_add(link.queue);
            let other = t.second.as_ref().filter(|_| flow.multipath);
            let other = other.map_or(0, |(forward, reverse)| holds(forward, forward.delay + reverse.delay));
            let full = holds(&t.forward, longest).saturating_add(other);
            let seed = super::mix_seeds(self.seed, i as u64, 1, 0);
            let home = self.home.join(format!("flow{i}"));
            let on_second = |node: &str| lab.address_on(node, 1).map(IpAddr::V4).map_err(failure_of);
            let second =
                flow.multipath.then(|| Ok([on_second(&flow.from)?, on_second(&flow.to)?])).transpose()?;
            let job = outside::commands_of(
                flow,
                &self.lab.programs,
                outside::PathFacts { full, to, seed, second },
                &home,
            );
            out.push(start(lab, flow, to, job, &home)?);
        }
        for r in &mut out {
            r.await_receiver(&self.lab.settings.stop)?;
        }
        Ok(out)
    }

    /// Starts senders at their times, waits for them, and marks the end of the measured time.
    fn send(
        &self,
        lab: &mut Lab,
        mut flows: Vec<RunningFlow<'_>>,
    ) -> Result<(Vec<(SocketAddr, EndReports)>, Mark), Failure> {
        let clock = Clock::new();
        let began = clock.now();
        let mut end = None;
        loop {
            if self.lab.settings.stop.load(Ordering::SeqCst) {
                return Err(Failure::Stopped);
            }
            let t = clock.now().since(began);
            for f in flows.iter_mut().filter(|f| f.flow.start <= t) {
                f.launch(lab)?;
            }
            if end.is_none() && t >= self.cell.duration {
                end = Some(lab.mark("end").map_err(failure_of)?);
            }
            let mut running = false;
            for f in &mut flows {
                running |= f.is_running()?;
            }
            if !running && end.is_none() && flows.iter().all(|f| f.flow.bytes.is_some()) {
                // A given number of bytes may be sent before the time is over.
                end = Some(lab.mark("end").map_err(failure_of)?);
            }
            if let Some(end) = end.take_if(|_| !running) {
                let said = flows.into_iter().map(|f| f.finish(began)).collect::<Result<_, _>>()?;
                return Ok((said, end));
            }
            if t > self.cell.duration + SENDER_EXIT_TIMEOUT {
                return Err(Failure::Discarded(format!(
                    "a sender was not done {SENDER_EXIT_TIMEOUT} after its time"
                )));
            }
            crate::workload::sleep(POLL_INTERVAL);
        }
    }

    /// Reads the emulator's records, from the mark at `zero` on.
    fn observe(
        &self,
        file: &Path,
        zero: u64,
        said: &[(SocketAddr, EndReports)],
    ) -> Result<ObservedRun, Failure> {
        let discarded = |e: record::ReadError| Failure::Discarded(e.to_string());
        let (t, cell) = (&self.cell.topology, self.cell);
        let mut o = ObservedRun::new(t, STEP, cell.duration, (cell.warm_up, cell.duration));
        let mut reader = RecordReader::new(&mut o, zero, t.kind, said);
        for r in record::read(file).map_err(discarded)? {
            reader.take(r.map_err(discarded)?);
        }
        let (shapes, drops) = (reader.shapes, reader.drops);
        for (i, (_, s)) in said.iter().enumerate() {
            let flow = &self.peer.flows[i];
            let mut seen = observed_flow(flow, s, &shapes[i], drops[i], STEP);
            if t.kind == Kind::Star {
                seen.port.clone_from(&flow.to);
            }
            o.flows.push(seen);
        }
        Ok(o)
    }
}

/// A flow's result from the reports of its ends and the emulator's records; `drops` are packets sent and dropped.
fn observed_flow(
    flow: &Flow,
    said: &EndReports,
    shape: &[f64],
    drops: (u64, u64),
    step: Span,
) -> ObservedFlow {
    let (s, exact) = (&said.sender, payload_of(said, step, shape.len() - 1));
    let dropped = drops.1 as f64 / drops.0.max(1) as f64;
    // Retransmissions beyond the drops were unnecessary.
    let spurious = s.spurious.or_else(|| s.retransmitted.map(|a| (a - dropped).max(0.0)));
    // Bulk flows count data that arrived, if the receiver reports it.
    let arrived = said.receiver.as_ref().map(|r| r.bytes).filter(|b| *b > 0);
    let requests = matches!(flow.program, Program::TcpRequests | Program::LonghaulRequests);
    let mut result = FlowResult {
        name: flow.name.clone(),
        background: flow.background,
        bytes: if requests { s.bytes } else { arrived.unwrap_or(s.bytes) },
        seconds: s.seconds,
        cpu: said.cpu,
        retransmitted: s.retransmitted,
        spurious,
        completions: s.completions.clone(),
        parts: s.parts.clone(),
        note: s.note.clone(),
        ..FlowResult::default()
    };
    result.requests = thin_completions(&mut result.completions);
    ObservedFlow {
        result,
        shape: exact.unwrap_or_else(|| shape.to_vec()),
        payload_share: s.payload_share.unwrap_or(0.96),
        whole: flow.bytes.is_some(),
        requests,
        port: String::new(),
    }
}

fn finish(mut o: ObservedRun, lateness: [f64; 3]) -> RunResult {
    let figures = o.figures();
    let sum = |of: fn(&Interval) -> u64| o.intervals.iter().map(of).sum();
    RunResult {
        figures,
        curves: o.curves(),
        packets: [sum(|b| b.packets), 0, sum(|b| b.dropped)],
        lateness: Some(lateness),
        flows: o.flows.into_iter().map(|f| f.result).collect(),
        ..RunResult::default()
    }
}

/// Sorts records into intervals and flows.
struct RecordReader<'a> {
    o: &'a mut ObservedRun,
    zero: u64,
    links: (&'static [&'static str], &'static [&'static str]),
    ends: Vec<String>,
    /// Role of each link in the records: 1 forward, 2 reverse, 0 neither.
    link_roles: Vec<u8>,
    /// Our flow for each recorded flow, and whether it is the forward direction.
    flow_owners: BTreeMap<u32, (usize, bool)>,
    shapes: Vec<Vec<f64>>,
    drops: Vec<(u64, u64)>,
}

impl<'a> RecordReader<'a> {
    fn new(
        o: &'a mut ObservedRun,
        zero: u64,
        kind: Kind,
        said: &[(SocketAddr, EndReports)],
    ) -> RecordReader<'a> {
        let n = o.intervals.len();
        RecordReader {
            o,
            zero,
            links: bottlenecks(kind),
            ends: said.iter().map(|(to, _)| to.to_string()).collect(),
            link_roles: Vec::new(),
            flow_owners: BTreeMap::new(),
            // One more for what arrives after the measured time.
            shapes: vec![vec![0.0; n + 1]; said.len()],
            drops: vec![(0, 0); said.len()],
        }
    }

    fn flow(&mut self, f: &FlowInfo) {
        // A port belongs to one flow only, on any path.
        let of = |end: &str| {
            let port = |text: &str| text.rsplit_once(':').map(|(_, port)| port.to_owned());
            self.ends.iter().position(|e| e == end || port(e) == port(end))
        };
        let (forward, reverse) = (of(&f.destination), of(&f.source));
        if let Some(whose) = forward.map(|i| (i, true)).or(reverse.map(|i| (i, false))) {
            self.flow_owners.insert(f.flow, whose);
        }
    }

    fn take(&mut self, r: Record) {
        match r {
            Record::Header(h) => {
                let role = |name: &str| {
                    u8::from(self.links.0.contains(&name)) + 2 * u8::from(self.links.1.contains(&name))
                };
                self.link_roles = h.links.iter().map(|l| role(&l.name)).collect();
            }
            Record::Flow(f) => self.flow(&f),
            Record::Sample(s) => self.sample(&s),
            Record::Summary(s) => {
                for f in &s.flows {
                    if let Some((i, true)) = self.flow_owners.get(&f.flow) {
                        let d = &mut self.drops[*i];
                        d.0 += f.in_packets;
                        d.1 += f.dropped_queue + f.dropped_loss + f.dropped_other;
                    }
                }
            }
            Record::Mark(_) => {}
        }
    }

    fn sample(&mut self, s: &record::Sample) {
        let middle = s.at_ns.saturating_sub(s.length_ns / 2);
        let Some(at) = middle.checked_sub(self.zero) else { return };
        let at = (at / self.o.step.as_nanos().max(1)) as usize;
        for f in &s.flows {
            if let Some((i, true)) = self.flow_owners.get(&f.flow) {
                let shape = &mut self.shapes[*i];
                let last = shape.len() - 1;
                shape[at.min(last)] += f.delivered_payload as f64;
            }
        }
        let Some(bin) = self.o.intervals.get_mut(at) else { return };
        for l in &s.links {
            match self.link_roles.get(l.link as usize) {
                Some(1) => {
                    bin.packets += l.in_packets;
                    bin.delivered += l.delivered_bytes;
                    bin.dropped += l.dropped_queue;
                    bin.queue = bin.queue.max(l.queue_bytes);
                }
                Some(2) => bin.queue_back = bin.queue_back.max(l.queue_bytes),
                _ => {}
            }
        }
        // The sum of the mean delays in both directions.
        let mut delay = [(0.0, 0.0); 2];
        for f in &s.flows {
            let Some((_, forward)) = self.flow_owners.get(&f.flow) else { continue };
            let d = &mut delay[usize::from(!forward)];
            d.0 += f.delay_mean_ns as f64 * f.delivered_packets as f64;
            d.1 += f.delivered_packets as f64;
        }
        if delay.iter().all(|d| d.1 > 0.0) {
            bin.delays = Some(delay.iter().map(|d| d.0 / d.1 / 1e9).sum());
        }
    }
}

#[cfg(test)]
mod tests;
