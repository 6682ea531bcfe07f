//! One run in the laboratory: up, receivers, senders at their times, down, figures.

use super::flows::{Running, payload_of, start};
use super::measure::{Bin, Observed, Seen, keep_completions};
use super::outcome::{FlowResult, RunResult};
use super::{Bench, Failure, Programs, Settings, direct, missing};
use crate::emulator::record::{self, FlowInfo, Mark, Record, Verdict, verdict};
use crate::plan::{Cell, Flow, Kind, Lineup, Program, Topology};
use crate::workload::outside::{self, Said};
use crate::{Lab, LabError, LinkSpec, Options, TopologySpec};
use base::Span;
use lhio::clock::Clock;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Intervals of the emulator's records.
const STEP: Span = Span::from_millis(10);
/// Ports of receivers: this and the following, one for each flow.
pub(super) const FIRST_PORT: u16 = 20_000;
/// A sender may take this much longer than its time: connections are made and ended, queues are emptied.
pub(super) const GRACE: Span = Span::from_secs(30);
/// How often senders are looked at.
pub(super) const LOOK: Span = Span::from_millis(20);

/// Runs in network namespaces.
pub(super) struct Laboratory {
    pub settings: Settings,
    pub programs: Programs,
}

impl Bench for Laboratory {
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, tag: &str) -> Result<RunResult, Failure> {
        let folder = self.settings.out.join(format!(".run-{}", std::process::id()));
        let home = Folder::new(&folder)?;
        let began = Clock::new().now();
        let done = if cell.topology.kind == Kind::Direct {
            direct::run(self, cell, peer, &home.0)
        } else {
            Trial { lab: self, cell, peer, seed, home: home.0.clone() }.run(tag)
        };
        if self.settings.stop.load(Ordering::SeqCst) {
            // What failed then failed because it was stopped: signals reach the programs in the nodes too.
            return Err(Failure::Stopped);
        }
        let mut run = done?;
        run.wall_seconds = Clock::new().now().since(began).as_secs_f64();
        Ok(run)
    }
    fn missing(&self, flow: &Flow) -> Option<String> {
        missing(flow, &self.programs)
    }
    fn simulated(&self) -> bool {
        false
    }
}

/// A folder that is gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(path: &Path) -> Result<Folder, Failure> {
        let words = |e: std::io::Error| Failure::Hopeless(format!("cannot make {}: {e}", path.display()));
        match std::fs::remove_dir_all(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(words(e)),
            _ => {}
        }
        std::fs::create_dir_all(path).map_err(words)?;
        Ok(Folder(path.to_owned()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is removed before the next run.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A plan's topology for the emulator. A trace is written into the folder.
pub(crate) fn topology(t: &Topology, home: &Path) -> Result<TopologySpec, String> {
    let (there, back) = match &t.trace {
        None => (LinkSpec::Text(t.there.to_string()), LinkSpec::Text(t.back.to_string())),
        Some(lines) => {
            let trace = home.join("trace");
            let text: String = lines.iter().map(|ms| format!("{ms}\n")).collect();
            std::fs::write(&trace, text).map_err(|e| format!("cannot write {}: {e}", trace.display()))?;
            let link = netem::LinkConfig { rate: None, ..t.there.clone() };
            let link = link.to_string().replace("rate=unlimited ", "");
            (LinkSpec::Traced { link, trace }, LinkSpec::Text(t.back.to_string()))
        }
    };
    Ok(match t.kind {
        Kind::Path | Kind::Direct => TopologySpec::Path { forward: there, backward: Some(back) },
        Kind::Dumbbell => {
            let least = t.rtts.iter().min().copied().unwrap_or(Span::ZERO);
            // What a pair has more than the shortest round trip is split over its access link, both ways.
            let more = |rtt: &Span| LinkSpec::Text(format!("delay={}ns", ((*rtt - least) / 2).as_nanos()));
            let access = if t.rtts.len() > 1 { t.rtts.iter().map(more).collect() } else { Vec::new() };
            TopologySpec::Dumbbell { pairs: t.nodes as usize, bottleneck: there, back: Some(back), access }
        }
        Kind::Star => {
            // Half of the way is before the switch, half behind it.
            let (mut up, mut down) = (netem::LinkConfig::default(), t.there.clone());
            (up.delay, up.queue) = (t.there.delay / 2, 1 << 30);
            down.delay = t.there.delay - up.delay;
            TopologySpec::Star {
                nodes: t.nodes as usize,
                up: Some(LinkSpec::Text(up.to_string())),
                down: LinkSpec::Text(down.to_string()),
            }
        }
        Kind::TwoPaths => {
            let second =
                t.second.as_ref().map_or_else(|| t.there.to_string(), |(there, _)| there.to_string());
            TopologySpec::TwoPaths { first: there, second: LinkSpec::Text(second) }
        }
    })
}

/// The names of the links that are measured, there and back.
pub(super) fn bottlenecks(kind: Kind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        Kind::Path | Kind::Direct => (&["forward"], &["backward"]),
        Kind::Dumbbell => (&["bottleneck"], &["back"]),
        Kind::Star => (&["n1-down"], &["n1-up"]),
        Kind::TwoPaths => (&["first-forward", "second-forward"], &["first-backward", "second-backward"]),
    }
}

/// Errors that another attempt cannot mend, and others.
pub(super) fn judge(e: LabError) -> Failure {
    match e {
        LabError::System { .. } | LabError::Emulator(_) => Failure::Spoiled(e.to_string()),
        e => Failure::Hopeless(e.to_string()),
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
        let spec = topology(&self.cell.topology, &self.home).map_err(Failure::Hopeless)?;
        let record = match self.lab.settings.keep_records {
            true => self.lab.settings.out.join(format!("{tag}-{}.jsonl", self.number())),
            false => self.home.join("records.jsonl"),
        };
        let options = Options { record: Some(record.clone()), interval: STEP, ..Options::default() };
        let name = format!("run{}", std::process::id());
        let mut lab = Lab::up_with(&name, &spec, self.seed, &options).map_err(judge)?;
        let flows = self.start_receivers(&lab)?;
        lab.restart_schedules().map_err(judge)?;
        let zero = lab.mark("start").map_err(judge)?.at_ns;
        let (said, end) = self.send(&mut lab, flows)?;
        lab.down().map_err(judge)?;
        let late = end.lateness;
        if let Verdict::Spoiled(why) = verdict(&end) {
            return Err(Failure::Spoiled(why));
        }
        let observed = self.observe(&record, zero, &said)?;
        Ok(finish(observed, [late.p50_ns, late.p99_ns, late.max_ns].map(|n| n as f64 / 1e9)))
    }

    fn number(&self) -> usize {
        self.cell.peers.iter().position(|p| p.name == self.peer.name).map_or(0, |i| i + 1)
    }

    fn start_receivers<'b>(&'b self, lab: &Lab) -> Result<Vec<Running<'b>>, Failure> {
        let mut out = Vec::new();
        for (i, flow) in self.peer.flows.iter().enumerate() {
            let to =
                SocketAddr::new(IpAddr::V4(lab.address(&flow.to).map_err(judge)?), FIRST_PORT + i as u16);
            let t = &self.cell.topology;
            let longest = t.rtts.iter().max().copied().unwrap_or(Span::ZERO);
            let holds = |link: &netem::LinkConfig, rtt| link.bdp(rtt).unwrap_or(0).saturating_add(link.queue);
            let other = t.second.as_ref().filter(|_| flow.multipath);
            let other = other.map_or(0, |(there, back)| holds(there, there.delay + back.delay));
            let full = holds(&t.there, longest).saturating_add(other);
            let seed = super::mix(self.seed, i as u64, 1, 0);
            let home = self.home.join(format!("flow{i}"));
            let on_second = |node: &str| lab.address_on(node, 1).map(IpAddr::V4).map_err(judge);
            let second =
                flow.multipath.then(|| Ok([on_second(&flow.from)?, on_second(&flow.to)?])).transpose()?;
            let job =
                outside::job(flow, &self.lab.programs, outside::Path0 { full, to, seed, second }, &home);
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
        mut flows: Vec<Running<'_>>,
    ) -> Result<(Vec<(SocketAddr, Said)>, Mark), Failure> {
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
                end = Some(lab.mark("end").map_err(judge)?);
            }
            let mut running = false;
            for f in &mut flows {
                running |= f.is_running()?;
            }
            if !running && end.is_none() && flows.iter().all(|f| f.flow.bytes.is_some()) {
                // A given number of bytes may be over before the time.
                end = Some(lab.mark("end").map_err(judge)?);
            }
            if let Some(end) = end.take_if(|_| !running) {
                let said = flows.into_iter().map(|f| f.finish(began)).collect::<Result<_, _>>()?;
                return Ok((said, end));
            }
            if t > self.cell.duration + GRACE {
                return Err(Failure::Spoiled(format!("a sender was not done {GRACE} after its time")));
            }
            crate::workload::rest(LOOK);
        }
    }

    /// What the emulator saw, from the mark at `zero` on.
    fn observe(&self, file: &Path, zero: u64, said: &[(SocketAddr, Said)]) -> Result<Observed, Failure> {
        let spoiled = |e: record::ReadError| Failure::Spoiled(e.to_string());
        let (t, cell) = (&self.cell.topology, self.cell);
        let mut o = Observed::new(t, STEP, cell.duration, (cell.warm_up, cell.duration));
        let mut reader = Reader::new(&mut o, zero, t.kind, said);
        for r in record::read(file).map_err(spoiled)? {
            reader.take(r.map_err(spoiled)?);
        }
        let (shapes, drops) = (reader.shapes, reader.drops);
        for (i, (_, s)) in said.iter().enumerate() {
            let flow = &self.peer.flows[i];
            let mut seen = seen(flow, s, &shapes[i], drops[i], STEP);
            if t.kind == Kind::Star {
                seen.port.clone_from(&flow.to);
            }
            o.flows.push(seen);
        }
        Ok(o)
    }
}

/// A flow's result out of what its ends said and the emulator saw; `drops` is packets sent and packets dropped.
fn seen(flow: &Flow, said: &Said, shape: &[f64], drops: (u64, u64), step: Span) -> Seen {
    let (s, exact) = (&said.sender, payload_of(said, step, shape.len() - 1));
    let dropped = drops.1 as f64 / drops.0.max(1) as f64;
    // What was sent again beyond what was dropped was in vain.
    let spurious = s.spurious.or_else(|| s.again.map(|a| (a - dropped).max(0.0)));
    // Bulk counts what arrived, where the receiver counts.
    let arrived = said.receiver.as_ref().map(|r| r.bytes).filter(|b| *b > 0);
    let requests = matches!(flow.program, Program::TcpRequests | Program::LonghaulRequests);
    let mut result = FlowResult {
        name: flow.name.clone(),
        background: flow.background,
        bytes: if requests { s.bytes } else { arrived.unwrap_or(s.bytes) },
        seconds: s.seconds,
        cpu: said.cpu,
        again: s.again,
        spurious,
        completions: s.completions.clone(),
        parts: s.parts.clone(),
        note: s.note.clone(),
        ..FlowResult::default()
    };
    result.requests = keep_completions(&mut result.completions);
    Seen {
        result,
        shape: exact.unwrap_or_else(|| shape.to_vec()),
        payload_share: s.payload_share.unwrap_or(0.96),
        whole: flow.bytes.is_some(),
        requests,
        port: String::new(),
    }
}

fn finish(mut o: Observed, lateness: [f64; 3]) -> RunResult {
    let figures = o.figures();
    let sum = |of: fn(&Bin) -> u64| o.bins.iter().map(of).sum();
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
struct Reader<'a> {
    o: &'a mut Observed,
    zero: u64,
    links: (&'static [&'static str], &'static [&'static str]),
    ends: Vec<String>,
    /// Place of each link in the records: 1 there, 2 back, 0 neither.
    role: Vec<u8>,
    /// Which of our flows a flow of the records is, and whether it is the way there.
    whose: BTreeMap<u32, (usize, bool)>,
    shapes: Vec<Vec<f64>>,
    drops: Vec<(u64, u64)>,
}

impl<'a> Reader<'a> {
    fn new(o: &'a mut Observed, zero: u64, kind: Kind, said: &[(SocketAddr, Said)]) -> Reader<'a> {
        let n = o.bins.len();
        Reader {
            o,
            zero,
            links: bottlenecks(kind),
            ends: said.iter().map(|(to, _)| to.to_string()).collect(),
            role: Vec::new(),
            whose: BTreeMap::new(),
            // One more for what arrives after the measured time.
            shapes: vec![vec![0.0; n + 1]; said.len()],
            drops: vec![(0, 0); said.len()],
        }
    }

    fn flow(&mut self, f: &FlowInfo) {
        // A port belongs to one flow only, on whichever path.
        let of = |end: &str| {
            let port = |text: &str| text.rsplit_once(':').map(|(_, port)| port.to_owned());
            self.ends.iter().position(|e| e == end || port(e) == port(end))
        };
        let (there, back) = (of(&f.destination), of(&f.source));
        if let Some(whose) = there.map(|i| (i, true)).or(back.map(|i| (i, false))) {
            self.whose.insert(f.flow, whose);
        }
    }

    fn take(&mut self, r: Record) {
        match r {
            Record::Header(h) => {
                let role = |name: &str| {
                    u8::from(self.links.0.contains(&name)) + 2 * u8::from(self.links.1.contains(&name))
                };
                self.role = h.links.iter().map(|l| role(&l.name)).collect();
            }
            Record::Flow(f) => self.flow(&f),
            Record::Sample(s) => self.sample(&s),
            Record::Summary(s) => {
                for f in &s.flows {
                    if let Some((i, true)) = self.whose.get(&f.flow) {
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
            if let Some((i, true)) = self.whose.get(&f.flow) {
                let shape = &mut self.shapes[*i];
                let last = shape.len() - 1;
                shape[at.min(last)] += f.delivered_payload as f64;
            }
        }
        let Some(bin) = self.o.bins.get_mut(at) else { return };
        for l in &s.links {
            match self.role.get(l.link as usize) {
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
        // Mean delay there and back, each weighed by packets.
        let mut delay = [(0.0, 0.0); 2];
        for f in &s.flows {
            let Some((_, there)) = self.whose.get(&f.flow) else { continue };
            let d = &mut delay[usize::from(!there)];
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
